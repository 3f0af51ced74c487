//go:build unix

package home

import (
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
