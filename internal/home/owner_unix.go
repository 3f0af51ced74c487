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

// detach gives a command a session of its own, away from the terminal, and the
// descriptor behind the standard ones for its report.
func detach(c *exec.Cmd, report *os.File) error {
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.ExtraFiles = []*os.File{report}
	return nil
}

// reportFile is what the starter gave for the report. Children do not inherit
// it: one that outlives this process would keep the starter waiting.
func reportFile() *os.File {
	const behindStandard = 3
	syscall.CloseOnExec(behindStandard)
	return os.NewFile(behindStandard, "report")
}

// nobodyThere tells whether an error of dialing means that no process listens.
func nobodyThere(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
