package home

import (
	"io/fs"
	"os/exec"
	"syscall"
)

// ownedByUser relies on the access list of the profile folder.
func ownedByUser(fs.FileInfo) bool { return true }

// detach gives a command a process group without a console.
func detach(c *exec.Cmd) {
	const detachedProcess = 0x00000008
	c.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP | detachedProcess}
}
