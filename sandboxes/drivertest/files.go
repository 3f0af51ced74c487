package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

var fileRows = []row{
	{"text and binary arrive unchanged", 0, unchanged},
	{"a huge file arrives unchanged", 0, hugeFile},
	{"a range of a file", 0, ranges},
	{"odd names", 0, oddNames},
	{"names that are not UTF-8", rawNames, rawName},
	{"deep trees are made on the way", 0, deepTree},
	{"a long list is complete and sorted", 0, longList},
	{"stat, list, remove, real path", 0, lookAround},
	{"errors of files have a cause that is told apart", 0, fileErrors},
	{"bad paths are refused", 0, badPaths},
	{"files and commands see the same", 0, sameFiles},
	{"links", links, symlinks},
	{"a write keeps the mode", modes | programs, keepsMode},
	{"readers never see a half", 0, noHalves},
	{"a cancelled operation does nothing", 0, cancelledFiles},
	{"a lock loses no update", 0, lockUpdates},
	{"waiting for a lock can be given up", 0, lockWait},
	{"all names of a file have one lock", links, lockNames},
	{"the folder of a mount is checked", 0, mountFolder},
}

func unchanged(t *testing.T, s *scene) {
	all := make([]byte, 0, 256*4)
	for i := range 256 {
		all = append(all, byte(i), 0, '\r', '\n')
	}
	for name, want := range map[string]string{
		"empty": "", "text": "Grüße\n", "no newline": "x", "crlf": "a\r\nb\r\n", "binary": string(all),
	} {
		s.write(t, name, want)
		if got := s.text(t, name); got != want {
			t.Errorf("%s: %.50q became %.50q", name, want, got)
		}
		s.write(t, name, "replaced")
		if got := s.text(t, name); got != "replaced" {
			t.Errorf("%s is still %.50q", name, got)
		}
	}
}

func hugeFile(t *testing.T, s *scene) {
	big := make([]byte, 20<<20+7)
	for i := range big {
		big[i] = byte(i>>16) ^ byte(i)*31
	}
	if err := s.mount.Write(ctxb, "big", big); err != nil {
		t.Fatal(err)
	}
	if info, err := s.mount.Stat(ctxb, "big"); err != nil || info.Size != int64(len(big)) {
		t.Error(info, err)
	}
	if got, err := s.mount.Read(ctxb, "big", 0, -1); err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d of %d bytes, %v", len(got), len(big), err)
	}
	if got, err := s.mount.Read(ctxb, "big", 12<<20, 5<<20); err != nil || !bytes.Equal(got, big[12<<20:17<<20]) {
		t.Errorf("%d bytes of the middle, %v", len(got), err)
	}
}

func ranges(t *testing.T, s *scene) {
	s.write(t, "f", "0123456789")
	for _, c := range []struct {
		offset, limit int64
		want          string
	}{
		{0, -1, "0123456789"}, {0, 0, ""}, {0, 4, "0123"}, {3, 4, "3456"}, {8, 4, "89"}, {8, -1, "89"},
		{10, 5, ""}, {99, -1, ""}, {99, 5, ""}, {0, 1 << 40, "0123456789"},
	} {
		got, err := s.mount.Read(ctxb, "f", c.offset, c.limit)
		if err != nil || string(got) != c.want {
			t.Errorf("%d %d: %q %v, want %q", c.offset, c.limit, got, err, c.want)
		}
	}
	if _, err := s.mount.Read(ctxb, "f", -1, 5); err == nil {
		t.Error("negative offset")
	}
}

// goThrough writes, lists, reads and removes a file of the name.
func goThrough(t *testing.T, s *scene, name string) {
	t.Helper()
	s.write(t, name, "in "+name)
	if got := s.text(t, s.dir+"/"+name); got != "in "+name {
		t.Errorf("%q: %q", name, got)
	}
	list, err := s.mount.List(ctxb, ".")
	if err != nil || len(list) != 1 || list[0].Name != name {
		t.Errorf("%q: list %v %v", name, list, err)
	}
	if err := s.mount.Remove(ctxb, name); err != nil {
		t.Error(err)
	}
}

func oddNames(t *testing.T, s *scene) {
	for _, name := range []string{
		"a b", "-rf", "--", "it's", `"`, "$(id)", "`id`", `back\slash`, "new\nline", "*", "~", "#", "a;b&c|d>e", "Grüße", "日本語", ".hidden",
		" ", "...", strings.Repeat("n", 255), "%s", "tab\t",
	} {
		goThrough(t, s, name)
	}
}

func rawName(t *testing.T, s *scene) { goThrough(t, s, "raw\xff\xfe") }

func deepTree(t *testing.T, s *scene) {
	deep := strings.Repeat("d/", 60) + "f"
	s.write(t, deep, "deep")
	if got := s.text(t, deep); got != "deep" {
		t.Error(got)
	}
	if got, err := s.mount.RealPath(ctxb, deep); err != nil || !strings.HasSuffix(got, "/"+deep) {
		t.Error(got, err)
	}
	if err := s.mount.Mkdir(ctxb, "x/y/z"); err != nil {
		t.Error(err)
	}
	if err := s.mount.Mkdir(ctxb, "x/y/z"); err != nil {
		t.Error("an existing folder is fine:", err)
	}
}

func longList(t *testing.T, s *scene) {
	const n = 300
	var want []string
	for i := range n {
		name := fmt.Sprintf("%04d-%s", (i*7919)%n, strings.Repeat("x", 120))
		s.write(t, "l/"+name, "")
		want = append(want, name)
	}
	slices.Sort(want)
	list, err := s.mount.List(ctxb, "l")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		got = append(got, i.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d names, want %d", len(got), len(want))
	}
	if err := s.mount.Mkdir(ctxb, "empty"); err != nil {
		t.Fatal(err)
	}
	if list, err := s.mount.List(ctxb, "empty"); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
}

func lookAround(t *testing.T, s *scene) {
	s.write(t, "d/b", "12345")
	s.write(t, "d/.a", "")
	if err := s.mount.Mkdir(ctxb, "d/c"); err != nil {
		t.Fatal(err)
	}
	list, err := s.mount.List(ctxb, "d")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprint(e.Name, " ", e.Mode.Type()))
	}
	if want := []string{".a ----------", "b ----------", "c d---------"}; !slices.Equal(got, want) {
		t.Errorf("list: %q", got)
	}
	for _, stat := range []func(context.Context, string) (sandboxes.Info, error){s.mount.Stat, s.mount.Lstat} {
		info, err := stat(ctxb, "d/b")
		if err != nil || info.Name != "b" || info.Size != 5 || !info.Mode.IsRegular() {
			t.Errorf("%+v %v", info, err)
		}
		if !info.ModTime.IsZero() && time.Since(info.ModTime).Abs() > time.Hour {
			t.Errorf("modified %v", info.ModTime)
		}
		if info, err := stat(ctxb, "d"); err != nil || !info.Mode.IsDir() {
			t.Errorf("%+v %v", info, err)
		}
	}
	root, err := s.mount.RealPath(ctxb, ".")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"d/b": "/d/b", "d/c/../b": "/d/b", "d/new": "/d/new", "d/c/": "/d/c", s.dir: ""} {
		if got, err := s.mount.RealPath(ctxb, path); err != nil || got != root+want {
			t.Errorf("real path of %s: %q %v", path, got, err)
		}
	}
	if err := s.mount.Remove(ctxb, "d"); err == nil {
		t.Error("removed a folder that is not empty")
	}
	for _, path := range []string{"d/b", "d/.a", "d/c", "d"} {
		if err := s.mount.Remove(ctxb, path); err != nil {
			t.Error(err)
		}
		if _, err := s.mount.Stat(ctxb, path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

// fileCalls are the operations by the name that their errors carry.
func fileCalls(s *scene) map[string]func(path string) error {
	m := s.mount
	return map[string]func(path string) error{
		"read":     func(p string) error { _, err := m.Read(ctxb, p, 0, -1); return err },
		"write":    func(p string) error { return m.Write(ctxb, p, []byte("y")) },
		"list":     func(p string) error { _, err := m.List(ctxb, p); return err },
		"mkdir":    func(p string) error { return m.Mkdir(ctxb, p) },
		"stat":     func(p string) error { _, err := m.Stat(ctxb, p); return err },
		"lstat":    func(p string) error { _, err := m.Lstat(ctxb, p); return err },
		"remove":   func(p string) error { return m.Remove(ctxb, p) },
		"realpath": func(p string) error { _, err := m.RealPath(ctxb, p); return err },
	}
}

func fileErrors(t *testing.T, s *scene) {
	s.write(t, "file", "x")
	if err := s.mount.Mkdir(ctxb, "folder"); err != nil {
		t.Fatal(err)
	}
	calls := fileCalls(s)
	for _, c := range []struct {
		op, path string
		want     error
	}{
		{"read", "missing", fs.ErrNotExist},
		{"read", "missing/below", fs.ErrNotExist},
		{"read", "folder", sandboxes.ErrIsDirectory},
		{"read", "file/below", sandboxes.ErrNotDirectory},
		{"write", "folder", sandboxes.ErrIsDirectory},
		{"write", "folder/", sandboxes.ErrIsDirectory},
		{"write", "new/", sandboxes.ErrIsDirectory},
		{"write", "file/below", sandboxes.ErrNotDirectory},
		{"list", "file", sandboxes.ErrNotDirectory},
		{"list", "missing", fs.ErrNotExist},
		{"mkdir", "file", sandboxes.ErrNotDirectory},
		{"mkdir", "file/below", sandboxes.ErrNotDirectory},
		{"stat", "missing", fs.ErrNotExist},
		{"lstat", "missing", fs.ErrNotExist},
		{"remove", "missing", fs.ErrNotExist},
		{"realpath", "missing/x", fs.ErrNotExist},
	} {
		err := calls[c.op](c.path)
		var fe *sandboxes.FileError
		if !errors.As(err, &fe) || fe.Op != c.op || fe.Path != c.path || !errors.Is(err, c.want) {
			t.Errorf("%s %s: %#v (%v), want %v", c.op, c.path, err, err, c.want)
			continue
		}
		if strings.Count(err.Error(), c.path) > 1 {
			t.Errorf("path twice: %v", err)
		}
	}
	if got := s.text(t, "file"); got != "x" {
		t.Errorf("file became %q", got)
	}
}

func badPaths(t *testing.T, s *scene) {
	for op, call := range fileCalls(s) {
		for _, path := range []string{"", "a\x00b", strings.Repeat("a", 256), "/" + strings.Repeat("a/", 2048) + "b"} {
			var fe *sandboxes.FileError
			if err := call(path); !errors.As(err, &fe) || fe.Path != path {
				t.Errorf("%s %.20q: %v", op, path, err)
			}
		}
	}
	if list, err := s.mount.List(ctxb, "."); err != nil || len(list) > 0 {
		t.Error("left behind:", list, err)
	}
}

func sameFiles(t *testing.T, s *scene) {
	s.write(t, "from-files", "hello\n")
	if out := s.sh(t, "cat from-files; mkdir made; echo back > made/f"); out != "hello\n" {
		t.Errorf("command reads %q", out)
	}
	if got := s.text(t, "made/f"); got != "back\n" {
		t.Errorf("file has %q", got)
	}
	scratch := s.mount.Scratch()
	if !strings.HasPrefix(scratch, "/") {
		t.Errorf("scratch is %q", scratch)
	}
	s.write(t, scratch+"/f", "in scratch")
	r := s.run(t, sandboxes.Command{Script: `cat "$S/f"`, Env: map[string]string{"S": scratch}})
	if r.out != "in scratch" {
		t.Errorf("%+v", r)
	}
}

func symlinks(t *testing.T, s *scene) {
	s.write(t, "real/f", "old")
	s.sh(t, "ln -s real/f link; ln -s real folder; ln -s nowhere dangling; ln -s loop loop; ln -s ../real/new real/up")
	s.write(t, "link", "through")
	if got := s.text(t, "real/f"); got != "through" {
		t.Errorf("target has %q", got)
	}
	if info, err := s.mount.Lstat(ctxb, "link"); err != nil || info.Mode.Type() != fs.ModeSymlink {
		t.Errorf("the link was replaced: %+v %v", info, err)
	}
	if info, err := s.mount.Stat(ctxb, "link"); err != nil || !info.Mode.IsRegular() {
		t.Errorf("%+v %v", info, err)
	}
	s.write(t, "real/up", "new")
	if got := s.text(t, "real/new"); got != "new" {
		t.Errorf("through a link to nothing: %q", got)
	}
	root, err := s.mount.RealPath(ctxb, ".")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"link": "/real/f", "folder/f": "/real/f", "dangling": "/nowhere", "folder/..": ""} {
		if got, err := s.mount.RealPath(ctxb, path); err != nil || got != root+want {
			t.Errorf("real path of %s: %q %v", path, got, err)
		}
	}
	for op, call := range fileCalls(s) {
		if op == "lstat" || op == "remove" || op == "mkdir" {
			continue
		}
		if err := call("loop"); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of a loop: %v", op, err)
		}
	}
	if err := s.mount.Remove(ctxb, "link"); err != nil {
		t.Error(err)
	}
	if got := s.text(t, "real/f"); got != "through" {
		t.Errorf("removing the link took its target: %q", got)
	}
}

func keepsMode(t *testing.T, s *scene) {
	s.write(t, "run.sh", "#!/bin/sh\necho old\n")
	s.sh(t, "chmod 751 run.sh")
	s.write(t, "run.sh", "#!/bin/sh\necho new\n")
	if out := s.sh(t, "./run.sh"); out != "new\n" {
		t.Errorf("got %q", out)
	}
	if info, err := s.mount.Stat(ctxb, "run.sh"); err != nil || info.Mode.Perm() != 0o751 {
		t.Errorf("%v %v", info.Mode, err)
	}
}

func noHalves(t *testing.T, s *scene) {
	const length = 300_000
	content := func(c byte) []byte { return bytes.Repeat([]byte{c}, length) }
	s.write(t, "f", string(content('a')))
	other := s.another(t)
	var writers sync.WaitGroup
	for i, w := range []*scene{s, other} {
		writers.Go(func() {
			for k := range 10 {
				if err := w.mount.Write(ctxb, "f", content(byte('a'+i*13+k%13))); err != nil {
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
		b, err := s.mount.Read(ctxb, "f", 0, -1)
		if err != nil || len(b) != length || !bytes.Equal(b, content(b[0])) {
			t.Errorf("saw %d bytes, %v", len(b), err)
			<-done
			return
		}
	}
	if list, err := s.mount.List(ctxb, "."); err != nil || len(list) != 1 {
		t.Errorf("left behind: %v %v", list, err)
	}
}

func cancelledFiles(t *testing.T, s *scene) {
	s.write(t, "f", "old")
	ctx, cancel := context.WithCancel(ctxb)
	cancel()
	if _, err := s.mount.Read(ctx, "f", 0, -1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := s.mount.Write(ctx, "f", []byte("new")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := s.text(t, "f"); got != "old" {
		t.Errorf("written: %q", got)
	}
	late, cancel := context.WithTimeout(ctxb, -time.Second)
	defer cancel()
	if _, err := s.mount.Stat(late, "f"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func lockUpdates(t *testing.T, s *scene) {
	s.write(t, "n", "")
	var wg sync.WaitGroup
	const writers, rounds = 4, 8
	for range writers {
		w := s.another(t)
		wg.Go(func() {
			for range rounds {
				unlock, err := w.mount.Lock(ctxb, "n")
				if err != nil {
					t.Error(err)
					return
				}
				b, err := w.mount.Read(ctxb, "n", 0, -1)
				if err == nil {
					err = w.mount.Write(ctxb, "n", append(b, 'x'))
				}
				if err != nil {
					t.Error(err)
				}
				unlock()
			}
		})
	}
	wg.Wait()
	if got := len(s.text(t, "n")); got != writers*rounds {
		t.Errorf("%d of %d updates", got, writers*rounds)
	}
}

func lockWait(t *testing.T, s *scene) {
	unlock, err := s.mount.Lock(ctxb, "not/there/yet")
	if err != nil {
		t.Fatal(err)
	}
	other := s.another(t)
	ctx, cancel := context.WithTimeout(ctxb, 50*time.Millisecond)
	defer cancel()
	var fe *sandboxes.FileError
	if _, err := other.mount.Lock(ctx, "not/there/yet"); !errors.As(err, &fe) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	done := make(chan error, 1)
	leaving := s.another(t)
	go func() {
		_, err := leaving.mount.Lock(ctxb, "not/there/yet")
		done <- err
	}()
	free, err := other.mount.Lock(ctxb, "another")
	if err != nil {
		t.Fatal(err)
	}
	free()
	if err := leaving.mount.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, sandboxes.ErrClosed) {
		t.Error("the mount was closed:", err)
	}
	unlock()
	unlock() // again is fine
	free, err = other.mount.Lock(ctxb, "not/there/yet")
	if err != nil {
		t.Fatal(err)
	}
	free()
}

func lockNames(t *testing.T, s *scene) {
	s.write(t, "real/f", "")
	s.sh(t, "ln -s real link; ln -s real/f f")
	unlock, err := s.mount.Lock(ctxb, "real/f")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	other := s.another(t)
	for _, name := range []string{"f", "link/f", "link/../real/f", s.dir + "/f"} {
		ctx, cancel := context.WithTimeout(ctxb, 30*time.Millisecond)
		if _, err := other.mount.Lock(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func mountFolder(t *testing.T, s *scene) {
	s.write(t, "sub/f", "")
	if m := mountAt(t, s.sandbox, s.dir+"//sub/."); m.Dir() != s.dir+"/sub" {
		t.Errorf("mounted %s", m.Dir())
	} else if err := m.Close(); err != nil {
		t.Error(err)
	}
	var missing *messages.DirectoryNotFound
	if _, err := s.sandbox.Mount(ctxb, sandboxes.MountOptions{Dir: s.dir + "/none", Umask: -1}); !errors.As(err, &missing) ||
		missing.Directory != s.dir+"/none" || missing.SandboxID == "" {
		t.Errorf("missing: %v", err)
	}
	var not *messages.NotDirectory
	if _, err := s.sandbox.Mount(ctxb, sandboxes.MountOptions{Dir: s.dir + "/sub/f", Umask: -1}); !errors.As(err, &not) {
		t.Errorf("a file: %v", err)
	}
}
