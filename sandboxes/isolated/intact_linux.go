//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity is which file a name leads to.
type identity struct {
	device, inode uint64
}

func identify(path string) (identity, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return identity{}, err
	}
	return identity{uint64(st.Dev), st.Ino}, nil
}

// pinned are the files and folders that mounts protect, as they are.
func (p *plan) pinned() (map[string]identity, error) {
	if p.Level != Full {
		return nil, nil
	}
	out := make(map[string]identity, len(p.Keep)+len(p.ReadOnly))
	for _, list := range [][]string{p.Keep, p.ReadOnly} {
		for _, path := range list {
			id, err := identify(path)
			if err != nil {
				return nil, fmt.Errorf("protect: %w", err)
			}
			out[path] = id
		}
	}
	return out, nil
}

// errUnpinned is why a sandbox ends whose protection has gone.
var errUnpinned = errors.New("a protected file was replaced from outside, which ends the sandbox; the next use begins a new one")

// intact checks that what is protected is still what it was, and ends the
// sandbox when it is not. The mount that makes a file read-only is on the file
// and not on its name: when a program of the host replaces it (git does, for
// config) the new one is not protected.
func (s *sandbox) intact() error {
	for path, was := range s.pinned {
		if now, err := identify(path); err != nil || now != was {
			_ = s.cmd.Process.Kill() // ended already is fine
			s.unpinned.Do(func() {
				s.driver.opt.Log.Warn("sandbox ended: a protected file was replaced from outside", "sandbox", s.spec.ID, "path", path)
			})
			return fmt.Errorf("%w (%s)", errUnpinned, path)
		}
	}
	return nil
}

// names are the changes to names in a folder.
const names = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// guard checks as soon as names change beside what is protected: something in
// the sandbox may be waiting for that. Where changes cannot be watched the check
// before each command has to do. It returns when the watch is closed.
func (s *sandbox) guard(watch *os.File) {
	buf := make([]byte, 4096)
	for s.intact() == nil {
		if _, err := watch.Read(buf); err != nil {
			return
		}
	}
}

// watchNames watches the folders of what is protected; nil when it cannot be.
func watchNames(pinned map[string]identity) *os.File {
	if len(pinned) == 0 {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	for path := range pinned {
		// One folder several times is one watch.
		if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), names); err != nil {
			watch.Close()
			return nil
		}
	}
	return watch
}
