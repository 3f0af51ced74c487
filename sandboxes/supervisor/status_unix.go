//go:build unix

package supervisor

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// statusOf translates what wait returned.
func statusOf(w syscall.WaitStatus) Status {
	if w.Signaled() {
		return Status{Code: 128 + int(w.Signal()), Signal: signalName(w.Signal())}
	}
	return Status{Code: w.ExitStatus()}
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return "SIGRT" // real-time signals have no names of their own
}
