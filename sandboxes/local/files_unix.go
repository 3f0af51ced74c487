//go:build unix

package local

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openPlain opens for reading without waiting for the writer of a pipe.
func openPlain(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// writable tells whether this process may write to the file.
func writable(path string) error {
	return os.NewSyscallError("access", unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS))
}

// enterable tells whether a command can start in the folder.
func enterable(dir string) error {
	return os.NewSyscallError("access", unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS))
}

// keepOwner gives the file the other's owner and group where that is allowed,
// else the group alone.
func keepOwner(f *os.File, like fs.FileInfo) {
	want, ok := like.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	now, err := f.Stat()
	if err != nil {
		return
	}
	if have, ok := now.Sys().(*syscall.Stat_t); ok && have.Uid == want.Uid && have.Gid == want.Gid {
		return
	}
	if f.Chown(int(want.Uid), int(want.Gid)) != nil {
		_ = f.Chown(-1, int(want.Gid))
	}
}
