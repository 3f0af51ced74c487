//go:build unix

package home

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

func ownedByUser(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Getuid()
}

// detach gives a command a session of its own, away from the terminal.
func detach(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// nobodyThere tells whether an error of dialing means that no process listens.
func nobodyThere(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// keepToSelf sees to it that no child inherits a descriptor.
func keepToSelf(fd int) { syscall.CloseOnExec(fd) }
