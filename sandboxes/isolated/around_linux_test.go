//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codework/sandboxes"
)

// TestInheritedDescriptorsStayOutside has the server be started with a folder of
// the host open, as a shell does it: no mount covers what is reached by it.
func TestInheritedDescriptorsStayOutside(t *testing.T) {
	s := newScene(t)
	write(t, s.home+"/.ssh/key", "secret")
	fd, err := unix.Open(s.home, unix.O_RDONLY|unix.O_DIRECTORY, 0) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	if r := run(t, m, fmt.Sprintf("cat /proc/[0-9]*/fd/%d/.ssh/key /proc/[0-9]*/fd/*/.ssh/key; ls -l /proc/1/fd", fd)); strings.Contains(r.out, "secret") {
		t.Errorf("read by an inherited descriptor:\n%s", r.out)
	}
}

// TestHiddenFilesStayHidden has programs of the host make and replace files
// that are hidden, as git does with stored passwords.
func TestHiddenFilesStayHidden(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, s scene) string{
		"replaced": func(t *testing.T, s scene) string {
			write(t, s.home+"/new", "secret")
			if err := os.Rename(s.home+"/new", s.home+"/.git-credentials"); err != nil {
				t.Fatal(err)
			}
			return s.home + "/.git-credentials"
		},
		"made": func(t *testing.T, s scene) string {
			write(t, s.home+"/.aws/credentials", "secret")
			return s.home + "/.aws/credentials"
		},
		"made with its parent": func(t *testing.T, s scene) string {
			write(t, s.home+"/.config/gcloud/key", "secret")
			return s.home + "/.config/gcloud/key"
		},
		"made by a setting's name": func(t *testing.T, s scene) string {
			write(t, s.home+"/vault/later", "secret")
			return s.home + "/vault/later"
		},
		"led elsewhere": func(t *testing.T, s scene) string {
			write(t, s.home+"/keys2/id", "secret")
			if err := os.Remove(s.home + "/.gnupg"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(s.home+"/keys2", s.home+"/.gnupg"); err != nil {
				t.Fatal(err)
			}
			return s.home + "/keys2/id"
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			write(t, s.home+"/.git-credentials", "secret")
			write(t, s.home+"/keys1/id", "secret")
			if err := os.Symlink(s.home+"/keys1", s.home+"/.gnupg"); err != nil {
				t.Fatal(err)
			}
			d := newDriver(t)
			config := `{"hide":["` + s.home + `/vault/later"]}`
			sb := newSandbox(t, d, s.project, config)
			m := newMount(t, sb)
			run(t, m, "true")
			path := change(t, s)
			_, err := m.Run(bg, sandboxes.Command{Script: "cat " + path, Output: func(_ sandboxes.Stream, b []byte) {
				if strings.Contains(string(b), "secret") {
					t.Errorf("%s was read", path)
				}
			}})
			if !errors.Is(err, errUnpinned) {
				t.Errorf("a command gave %v", err)
			}
			if _, err := m.Read(bg, path, 0, -1); err == nil {
				t.Errorf("%s was read as a file", path)
			}
			select {
			case <-sb.(sandboxes.Lost).Lost():
			case <-time.After(limit):
				t.Error("the sandbox goes on")
			}
			// The next one hides what is there now.
			m = newMount(t, newSandbox(t, d, s.project, config))
			if _, err := m.Read(bg, path, 0, -1); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("read %s: %v", path, err)
			}
		})
	}
}

// TestAFileInTheNumberOfAnother removes a file and makes another one, which
// gets the same number by many file systems.
func TestAFileInTheNumberOfAnother(t *testing.T) {
	s := newScene(t)
	path := filepath.Join(s.home, "file")
	same := 0
	for range 20 {
		write(t, path, "")
		was := identify(path)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if identify(path) != (identity{}) {
			t.Fatal("an absent file has an identity")
		}
		write(t, path, "")
		is := identify(path)
		if is == was && is.born != (unix.StatxTimestamp{}) {
			t.Fatal("another file has the same identity")
		}
		if is.inode == was.inode {
			same++
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 20 got the same number", same)
}

// TestWhatIsHiddenInTheProjectIsNotMovedAway has the project hold what is hidden:
// a moved folder takes its cover along, but the next sandbox would not know.
func TestWhatIsHiddenInTheProjectIsNotMovedAway(t *testing.T) {
	s := newScene(t)
	write(t, s.home+"/.config/gcloud/key", "secret")
	d := newDriver(t)
	m := newMount(t, newSandbox(t, d, s.home, ""))
	if r := run(t, m, rename+"ren .config .c2 && mkdir .config"); r.Code == 0 {
		t.Error("the folder above what is hidden was moved")
	}
	if r := run(t, m, "touch .config/other && rm .config/other"); r.Code != 0 {
		t.Errorf("beside what is hidden nothing works: %+v", r)
	}
	m = newMount(t, newSandbox(t, d, s.home, ""))
	if r := run(t, m, "grep -rs secret ."); strings.Contains(r.out, "secret") {
		t.Errorf("the next sandbox shows it:\n%s", r.out)
	}
}

// TestHiddenInTheProjectByPaths is the same for the level without mounts.
func TestHiddenInTheProjectByPaths(t *testing.T) {
	s := newScene(t)
	write(t, s.project+"/sub/private/key", "secret")
	write(t, s.project+"/sub/open", "open")
	m := newLandlocked(t, s, `{"hide":["`+s.project+`/sub/private"]}`)
	if r := run(t, m, "cat sub/open sub/private/key"); r.out != "open" {
		t.Errorf("%+v", r)
	}
}

// TestSocketsBoundByARelativeName are listed by the kernel as they were given.
func TestSocketsBoundByARelativeName(t *testing.T) {
	s := newScene(t)
	t.Chdir(s.home)
	ln, err := net.Listen("unix", "relative")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	attackIn(t, m, s.project, "unix:"+s.home+"/relative")
}
