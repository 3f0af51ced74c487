//go:build unix

package main

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// brokenPipe are the signals of an output that nobody reads any more.
var brokenPipe = []os.Signal{syscall.SIGPIPE}

// protocolOutput keeps out for the protocol alone: what libraries and children
// print to standard output from now on goes to other.
func protocolOutput(out, other *os.File) (*os.File, error) {
	if out != os.Stdout {
		return out, nil // a test's own
	}
	fd, err := unix.FcntlInt(out.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keep standard output: %w", err)
	}
	own := os.NewFile(uintptr(fd), out.Name())
	if err := redirect(int(other.Fd()), int(out.Fd())); err != nil {
		own.Close()
		return nil, fmt.Errorf("redirect standard output: %w", err)
	}
	os.Stdout = other
	return own, nil
}
