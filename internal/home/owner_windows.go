package home

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// ownedByUser relies on the access list of the profile folder.
func ownedByUser(fs.FileInfo) bool { return true }

// detach gives a command a process group without a console.
func detach(c *exec.Cmd) {
	const detachedProcess = 0x00000008
	c.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP | detachedProcess}
}

// nobodyThere tells whether an error of dialing means that no process listens.
// The network's numbers are not those of package syscall here.
func nobodyThere(err error) bool {
	return errors.Is(err, windows.ERROR_FILE_NOT_FOUND) || errors.Is(err, windows.ERROR_PATH_NOT_FOUND) ||
		errors.Is(err, windows.WSAECONNREFUSED) || errors.Is(err, windows.WSAECONNRESET)
}

// keepToSelf has nothing to do: handles are not inherited unless named.
func keepToSelf(int) {}
