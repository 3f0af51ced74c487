package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes"
)

var ctxb = context.Background()

func filesMount(t *testing.T) (sandboxes.Mount, string) {
	m := newMount(t, newSandbox(t))
	return m, m.Dir()
}

func put(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func symlink(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func TestReadRange(t *testing.T) {
	m, dir := filesMount(t)
	put(t, dir+"/f", "0123456789", 0o644)
	for _, c := range []struct {
		offset, limit int64
		want          string
	}{
		{0, -1, "0123456789"}, {0, 0, ""}, {0, 4, "0123"}, {3, 4, "3456"}, {8, 4, "89"}, {8, -1, "89"},
		{10, 5, ""}, {99, -1, ""}, {99, 5, ""}, {0, 1 << 40, "0123456789"},
	} {
		got, err := m.Read(ctxb, "f", c.offset, c.limit)
		if err != nil || string(got) != c.want {
			t.Errorf("%d %d: %q %v, want %q", c.offset, c.limit, got, err, c.want)
		}
	}
	if _, err := m.Read(ctxb, "f", -1, 5); err == nil {
		t.Error("negative offset")
	}
	big := bytes.Repeat([]byte("0123456789abcde\n"), 200_000)
	put(t, dir+"/big", string(big), 0o644)
	if got, err := m.Read(ctxb, "big", 0, -1); err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// A file whose size is not known beforehand.
	if got, err := m.Read(ctxb, "/proc/self/status", 0, -1); err != nil || !bytes.Contains(got, []byte("Threads:")) {
		t.Errorf("%q %v", got, err)
	}
}

// TestOddPathsAreTypedErrors: nothing blocks, nothing is touched, and the cause
// is one a caller can tell.
func TestOddPathsAreTypedErrors(t *testing.T) {
	m, dir := filesMount(t)
	put(t, dir+"/file", "x", 0o644)
	if err := os.Mkdir(dir+"/folder", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	symlink(t, "loop", dir+"/loop")
	symlink(t, "fifo", dir+"/to-fifo")
	calls := map[string]func(path string) error{
		"read":  func(p string) error { _, err := m.Read(ctxb, p, 0, -1); return err },
		"write": func(p string) error { return m.Write(ctxb, p, []byte("y")) },
		"list":  func(p string) error { _, err := m.List(ctxb, p); return err },
		"mkdir": func(p string) error { return m.Mkdir(ctxb, p) },
		"stat":  func(p string) error { _, err := m.Stat(ctxb, p); return err },
	}
	for _, c := range []struct {
		op, path string
		want     error
	}{
		{"read", "missing", fs.ErrNotExist},
		{"read", "missing/below", fs.ErrNotExist},
		{"read", "folder", sandboxes.ErrIsDirectory},
		{"read", "file/below", sandboxes.ErrNotDirectory},
		{"read", "fifo", sandboxes.ErrNotRegular},
		{"read", "to-fifo", sandboxes.ErrNotRegular},
		{"read", "socket", sandboxes.ErrNotRegular},
		{"read", "/dev/zero", sandboxes.ErrNotRegular},
		{"read", "loop", syscall.ELOOP},
		{"read", "", errEmptyPath},
		{"read", "a\x00b", errNUL},
		{"read", strings.Repeat("a", 256), syscall.ENAMETOOLONG},
		{"read", "/" + strings.Repeat("a/", 2048), syscall.ENAMETOOLONG},
		{"write", "folder", sandboxes.ErrIsDirectory},
		{"write", "folder/", sandboxes.ErrIsDirectory},
		{"write", "new/", sandboxes.ErrIsDirectory},
		{"write", "..", sandboxes.ErrIsDirectory},
		{"write", "/", sandboxes.ErrIsDirectory},
		{"write", "file/below", sandboxes.ErrNotDirectory},
		{"write", "fifo", sandboxes.ErrNotRegular},
		{"write", "to-fifo", sandboxes.ErrNotRegular},
		{"write", "socket", sandboxes.ErrNotRegular},
		{"write", "/dev/null", sandboxes.ErrNotRegular},
		{"write", "loop", syscall.ELOOP},
		{"write", "", errEmptyPath},
		{"write", "a\x00b", errNUL},
		{"write", "/" + strings.Repeat("a/", 2048) + "b", syscall.ENAMETOOLONG},
		{"write", "fresh/" + strings.Repeat("a", 256), syscall.ENAMETOOLONG},
		{"list", "file", sandboxes.ErrNotDirectory},
		{"list", "missing", fs.ErrNotExist},
		{"mkdir", "file", sandboxes.ErrNotDirectory},
		{"mkdir", "file/below", sandboxes.ErrNotDirectory},
		{"stat", "missing", fs.ErrNotExist},
	} {
		err := calls[c.op](c.path)
		var fe *sandboxes.FileError
		if !errors.As(err, &fe) || fe.Op != c.op || fe.Path != c.path || !errors.Is(err, c.want) {
			t.Errorf("%s %.20q: %v, want %v", c.op, c.path, err, c.want)
		}
		if strings.Count(err.Error(), "file/below") > 1 {
			t.Errorf("path twice: %v", err)
		}
	}
	if got := text(t, dir+"/file"); got != "x" {
		t.Errorf("file became %q", got)
	}
	if _, err := os.Lstat(dir + "/fresh"); err == nil {
		t.Error("a refused path left a folder")
	}
	noLeftOver(t, dir)
}

// noLeftOver checks that no temporary file stayed.
func noLeftOver(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), tempPrefix) {
			t.Errorf("left over: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWriteKeepsModeOwnerAndLinks(t *testing.T) {
	m, dir := filesMount(t)
	put(t, dir+"/run.sh", "old", 0o755)
	put(t, dir+"/set-id", "old", 0o755)
	if err := os.Chmod(dir+"/set-id", 0o755|fs.ModeSetuid|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	put(t, dir+"/real/conf", "old", 0o640)
	symlink(t, "real/conf", dir+"/conf")
	outside := t.TempDir()
	put(t, outside+"/f", "old", 0o600)
	symlink(t, outside, dir+"/out")
	symlink(t, "../real/new", dir+"/real/up")
	symlink(t, "real/up", dir+"/dangling") // two links to nowhere
	symlink(t, "real/missing/deep", dir+"/dangling-deep")
	for _, c := range []struct {
		path, at string
		mode     fs.FileMode
	}{
		{"run.sh", "/run.sh", 0o755},
		{"set-id", "/set-id", 0o755 | fs.ModeSetuid | fs.ModeSetgid},
		{"conf", "/real/conf", 0o640},
		{"out/f", "/out/f", 0o600},
		{"dangling", "/real/new", 0o644},
		{"dangling-deep", "/real/missing/deep", 0o644},
		{"a/b/c/new", "/a/b/c/new", 0o644},
		{"out/../beside", "/../beside-check", 0},
	} {
		if c.mode == 0 {
			// ".." behind a link is the system's, not the text's
			if err := m.Write(ctxb, "out/../beside", []byte("new")); err != nil {
				t.Error(err)
			}
			if got := text(t, filepath.Dir(outside)+"/beside"); got != "new" {
				t.Errorf("beside: %q", got)
			}
			continue
		}
		if err := m.Write(ctxb, c.path, []byte("new "+c.path)); err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if got := text(t, dir+c.at); got != "new "+c.path {
			t.Errorf("%s: %q", c.path, got)
		}
		info, err := os.Lstat(dir + c.at)
		if err != nil || info.Mode() != c.mode {
			t.Errorf("%s: %v %v, want %v", c.path, info.Mode(), err, c.mode)
		}
	}
	for link, to := range map[string]string{"conf": "real/conf", "dangling": "real/up", "out": outside, "real/up": "../real/new"} {
		if got, err := os.Readlink(dir + "/" + link); err != nil || got != to {
			t.Errorf("%s: %q %v", link, got, err)
		}
	}
	noLeftOver(t, dir)
	if os.Getuid() == 0 {
		put(t, dir+"/theirs", "old", 0o644)
		if err := os.Chown(dir+"/theirs", 1234, 4321); err != nil {
			t.Fatal(err)
		}
		if err := m.Write(ctxb, "theirs", []byte("new")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir + "/theirs")
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 4321 {
			t.Errorf("owner is %d:%d", st.Uid, st.Gid)
		}
	} else {
		t.Log("not root: keeping another owner is not tested")
	}
}

// TestReadersNeverSeeAHalf reads while two mounts write.
func TestReadersNeverSeeAHalf(t *testing.T) {
	s := newSandbox(t)
	m := newMount(t, s)
	other := mountAt(t, s, sandboxes.MountOptions{Dir: m.Dir(), Umask: -1})
	const length = 300_000
	content := func(c byte) []byte { return bytes.Repeat([]byte{c}, length) }
	if err := m.Write(ctxb, "f", content('a')); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for i, w := range []sandboxes.Mount{m, other} {
		writers.Go(func() {
			for k := range 20 {
				if err := w.Write(ctxb, "f", content(byte('a'+i*13+k%13))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		writers.Wait()
		close(done)
	}()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		b, err := m.Read(ctxb, "f", 0, -1)
		if err != nil || len(b) != length || !bytes.Equal(b, content(b[0])) {
			t.Fatalf("saw %d bytes, %v", len(b), err)
		}
	}
	noLeftOver(t, m.Dir())
}

// asUser runs the function's checks only where permissions mean something.
func asUser(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may do everything: TestAsAnotherUser runs this again")
	}
}

func TestReadOnlyFileIsNotReplaced(t *testing.T) {
	asUser(t)
	m, dir := filesMount(t)
	put(t, dir+"/ro", "old", 0o444)
	if err := m.Write(ctxb, "ro", []byte("new")); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	if got := text(t, dir+"/ro"); got != "old" {
		t.Errorf("became %q", got)
	}
}

func TestWritableFileInAReadOnlyFolderIsWrittenInPlace(t *testing.T) {
	asUser(t)
	m, dir := filesMount(t)
	put(t, dir+"/d/f", "old and longer", 0o644)
	if err := os.Chmod(dir+"/d", 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir+"/d", 0o755)
	if err := m.Write(ctxb, "d/f", []byte("new")); err != nil {
		t.Error(err)
	}
	if got := text(t, dir+"/d/f"); got != "new" {
		t.Errorf("became %q", got)
	}
	if err := m.Write(ctxb, "d/other", nil); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}

func TestUnreadableFileAndFolder(t *testing.T) {
	asUser(t)
	m, dir := filesMount(t)
	put(t, dir+"/secret", "x", 0)
	if _, err := m.Read(ctxb, "secret", 0, -1); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	if err := os.Mkdir(dir+"/closed", 0); err != nil {
		t.Fatal(err)
	}
	_, err := m.Run(ctxb, sandboxes.Command{Script: "true", Dir: "closed"})
	var se *sandboxes.ShellError
	if !errors.As(err, &se) || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), dir+"/closed") {
		t.Error(err)
	}
}

func TestListStatRemoveRealPath(t *testing.T) {
	m, dir := filesMount(t)
	put(t, dir+"/d/b", "12345", 0o600)
	put(t, dir+"/d/.a", "", 0o644)
	if err := m.Mkdir(ctxb, "d/c/c"); err != nil {
		t.Fatal(err)
	}
	if err := m.Mkdir(ctxb, "d/c/c"); err != nil {
		t.Error("an existing folder is fine:", err)
	}
	symlink(t, "b", dir+"/d/link")
	symlink(t, "nowhere", dir+"/d/nowhere-link")
	list, err := m.List(ctxb, "d")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprint(e.Name, " ", e.Mode.Type()))
	}
	want := []string{".a ----------", "b ----------", "c d---------", "link L---------", "nowhere-link L---------"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if info, err := m.Stat(ctxb, "d/link"); err != nil || info.Size != 5 || info.Mode != 0o600 || time.Since(info.ModTime) > time.Minute {
		t.Errorf("%+v %v", info, err)
	}
	if info, err := m.Lstat(ctxb, "d/link"); err != nil || info.Mode.Type() != fs.ModeSymlink {
		t.Errorf("%+v %v", info, err)
	}
	for path, want := range map[string]string{
		"d/link":         "/d/b",
		"d/c/../b":       "/d/b",
		"d/new":          "/d/new",
		"d/nowhere-link": "/d/nowhere",
		".":              "",
		"d/c/":           "/d/c",
	} {
		if got, err := m.RealPath(ctxb, path); err != nil || got != dir+want {
			t.Errorf("real path of %s: %q %v", path, got, err)
		}
	}
	for _, path := range []string{"missing/x", "missing/.."} {
		if got, err := m.RealPath(ctxb, path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("real path of %s: %q %v", path, got, err)
		}
	}
	if err := m.Remove(ctxb, "d/link"); err != nil {
		t.Error(err)
	}
	if got := text(t, dir+"/d/b"); got != "12345" {
		t.Errorf("the link's target: %q", got)
	}
	if err := m.Remove(ctxb, "d"); err == nil {
		t.Error("removed a folder that is not empty")
	}
	if err := m.Remove(ctxb, "d/link"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestCancelledFileOperations(t *testing.T) {
	m, dir := filesMount(t)
	put(t, dir+"/f", "old", 0o644)
	ctx, cancel := context.WithCancel(ctxb)
	cancel()
	if _, err := m.Read(ctx, "f", 0, -1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := m.Write(ctx, "f", []byte("new")); !errors.Is(err, context.Canceled) || text(t, dir+"/f") != "old" {
		t.Error(err)
	}
}

func TestLockIsOneForAllNamesOfAFile(t *testing.T) {
	s := newSandbox(t)
	m := newMount(t, s)
	dir := m.Dir()
	other := mountAt(t, s, sandboxes.MountOptions{Dir: "/", Umask: -1})
	put(t, dir+"/real/f", "", 0o644)
	symlink(t, "real", dir+"/link")
	symlink(t, "real/f", dir+"/f")
	symlink(t, "real/new", dir+"/new")
	for name, others := range map[string][]string{
		"real/f":         {"f", "link/f", "link/../real/f", dir + "/f"},
		"real/new":       {"new", "link/new"},
		"none/yet/there": {dir + "/none/yet/there", "link/../none/yet/there"},
	} {
		unlock, err := m.Lock(ctxb, name)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, o := range others {
			by := m
			if filepath.IsAbs(o) {
				by = other
			}
			ctx, cancel := context.WithTimeout(ctxb, 10*time.Millisecond)
			if _, err := by.Lock(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s is held, %s: %v", name, o, err)
			}
			cancel()
		}
		free, err := m.Lock(ctxb, "another")
		if err != nil {
			t.Fatal(err)
		}
		free()
		unlock()
		unlock() // again is fine
		for _, o := range others {
			again, err := other.Lock(ctxb, filepath.Join(dir, "x/..", strings.TrimPrefix(o, dir)))
			if err != nil {
				t.Errorf("%s was given back, %s: %v", name, o, err)
				continue
			}
			again()
		}
	}
	if n := s.locks.Len(); n != 0 {
		t.Errorf("%d locks remembered", n)
	}
}

func TestLockLosesNoUpdate(t *testing.T) {
	s := newSandbox(t)
	m := newMount(t, s)
	put(t, m.Dir()+"/n", "", 0o644)
	var wg sync.WaitGroup
	const writers, rounds = 6, 15
	for range writers {
		w := mountAt(t, s, sandboxes.MountOptions{Dir: m.Dir(), Umask: -1})
		wg.Go(func() {
			for range rounds {
				unlock, err := w.Lock(ctxb, "n")
				if err != nil {
					t.Error(err)
					return
				}
				b, err := w.Read(ctxb, "n", 0, -1)
				if err == nil {
					err = w.Write(ctxb, "n", append(b, 'x'))
				}
				if err != nil {
					t.Error(err)
				}
				unlock()
			}
		})
	}
	wg.Wait()
	if got := len(text(t, m.Dir()+"/n")); got != writers*rounds {
		t.Errorf("%d of %d updates", got, writers*rounds)
	}
}

func TestClosingTheMountEndsTheWaitForALock(t *testing.T) {
	s := newSandbox(t)
	m, other := newMount(t, s), newMount(t, s)
	file := m.Dir() + "/f"
	unlock, err := m.Lock(ctxb, file)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	done := make(chan error, 1)
	go func() {
		_, err := other.Lock(ctxb, file)
		done <- err
	}()
	if err := eventually("somebody waits", func() bool {
		return s.locks.Queued(file) == 2
	}); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
}
