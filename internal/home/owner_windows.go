package home

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/windows"
)

// ownedByUser relies on the access list of the profile folder.
func ownedByUser(fs.FileInfo) bool { return true }

// reportHandle is the variable that names the handle of the report: there are
// no numbers that parent and child agree on.
const reportHandle = "CODEWORK_REPORT_HANDLE"

// detach gives a command a process group without a console, and a handle for
// its report.
func detach(c *exec.Cmd, report *os.File) error {
	h := windows.Handle(report.Fd())
	if err := windows.SetHandleInformation(h, windows.HANDLE_FLAG_INHERIT, windows.HANDLE_FLAG_INHERIT); err != nil {
		return err
	}
	c.SysProcAttr = &syscall.SysProcAttr{
		CreationFlags:              windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS,
		AdditionalInheritedHandles: []syscall.Handle{syscall.Handle(h)},
	}
	c.Env = append(c.Env, reportHandle+"="+strconv.FormatUint(uint64(h), 10))
	return nil
}

// reportFile is what the starter gave for the report. Children inherit only
// handles that are named to them.
func reportFile() *os.File {
	h, _ := strconv.ParseUint(os.Getenv(reportHandle), 10, 64) // without one nobody listens
	_ = os.Unsetenv(reportHandle)
	return os.NewFile(uintptr(h), "report")
}

// nobodyThere tells whether an error of dialing means that no process listens.
// The network's numbers are not those of package syscall here.
func nobodyThere(err error) bool {
	return errors.Is(err, windows.ERROR_FILE_NOT_FOUND) || errors.Is(err, windows.ERROR_PATH_NOT_FOUND) ||
		errors.Is(err, windows.WSAECONNREFUSED) || errors.Is(err, windows.WSAECONNRESET)
}
