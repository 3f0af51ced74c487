package container

import (
	"bytes"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lookEvery is how often process 1 looks for processes that have lost their
// parent: with the kill, well within the two seconds in which they must end.
const lookEvery = 500 * time.Millisecond

// maxChildren bounds what is read of their list, in bytes.
const maxChildren = 64 << 10

// Main is process 1 of our containers, and must be called first thing in main,
// with os.Args. When handled is false the arguments are somebody else's.
//
// It waits for TERM, reaps, and kills what became its child: the agent and its
// runners adopt whatever commands leave behind, so that only what lost them all
// comes here.
func Main(args []string) (handled bool, code int) {
	if len(args) < 2 || args[1] != InitArg {
		return false, 0
	}
	if os.Getpid() != 1 {
		_, _ = os.Stderr.WriteString("this mode is for process 1 of a container\n")
		return true, 1
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	look := time.NewTicker(lookEvery)
	// Kept open: an engine may take the file system away below us.
	children, _ := os.Open("/proc/self/task/1/children") // without it they are only reaped
	for {
		select {
		case <-end:
			return true, 0
		case <-died:
		case <-look.C:
		}
		sweep(children)
	}
}

// sweep kills and reaps the children of this process.
func sweep(children *os.File) {
	list := make([]byte, maxChildren)
	n := 0
	if children != nil {
		n, _ = children.ReadAt(list, 0)
	}
	if n == len(list) { // the rest comes next time, and the last number may be cut
		n = bytes.LastIndexByte(list, ' ') + 1
	}
	for word := range strings.FieldsSeq(string(list[:n])) {
		if pid, err := strconv.Atoi(word); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
	}
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 {
			return
		}
	}
}
