//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// identity is which file a name leads to; zero is none that can be seen. The
// number alone would not do: that of a file that is gone is given to the next.
type identity struct {
	device, inode uint64
	born          unix.StatxTimestamp // zero where the file system does not keep it
}

func identify(path string) identity {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return identity{}
	}
	id := identity{device: unix.Mkdev(st.Dev_major, st.Dev_minor), inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.born = st.Btime
	}
	return id
}

// pinned are the files and folders that mounts protect or hide, as they are.
func (p *plan) pinned() (map[string]identity, error) {
	if p.Level != Full {
		return nil, nil
	}
	out := make(map[string]identity, len(p.Keep)+len(p.ReadOnly)+len(p.Secrets))
	for _, path := range slices.Concat(p.Keep, p.ReadOnly) {
		id := identify(path)
		if id == (identity{}) {
			return nil, fmt.Errorf("protect: %s is gone", path)
		}
		out[path] = id
	}
	for _, path := range p.Secrets {
		id := identify(path)
		if id == (identity{}) && below(path, p.Write) {
			continue // it is for commands to make
		}
		out[path] = id
	}
	return out, nil
}

// errUnpinned is why a sandbox ends whose protection has gone.
var errUnpinned = errors.New("a file that is protected or hidden was made or replaced from outside, which ends the sandbox; the next use begins a new one")

// intact checks that what is protected or hidden is still what it was, and ends
// the sandbox when it is not. The mount that makes a file read-only, or covers it,
// is on the file and not on its name: when a program of the host replaces it (git
// does, for its config and its passwords) the new one is as any other.
func (s *sandbox) intact() error {
	for path, was := range s.pinned {
		if identify(path) != was {
			_ = s.cmd.Process.Kill() // ended already is fine
			s.unpinned.Do(func() {
				s.driver.opt.Log.Warn("sandbox ended: a file that is protected or hidden was made or replaced from outside", "sandbox", s.spec.ID, "path", path)
			})
			return fmt.Errorf("%w (%s)", errUnpinned, path)
		}
	}
	return nil
}

// names are the changes to names in a folder.
const names = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// guard checks as soon as names change beside what is protected or hidden:
// something in the sandbox may be waiting for that. Where changes cannot be
// watched the check before each use has to do. It returns when the watch is
// closed.
func (s *sandbox) guard(watch *os.File) {
	buf := make([]byte, 4096)
	for s.intact() == nil {
		if _, err := watch.Read(buf); err != nil {
			return
		}
		watchNames(watch, s.pinned) // a folder on the way to something may be new
	}
}

// newWatch watches the names in the folders of what is pinned; nil when nothing
// can be watched.
func newWatch(pinned map[string]identity) *os.File {
	if len(pinned) == 0 {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	watchNames(watch, pinned)
	return watch
}

// watchNames watches what is there of the folders of what is pinned. One folder
// several times is one watch.
func watchNames(watch *os.File, pinned map[string]identity) {
	c, err := watch.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Control(func(fd uintptr) { // an error means that it is closed
		for path := range pinned {
			for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
				_, err := unix.InotifyAddWatch(int(fd), dir, names)
				if err == nil || dir == "/" || !errors.Is(err, unix.ENOENT) {
					break
				}
			}
		}
	})
}
