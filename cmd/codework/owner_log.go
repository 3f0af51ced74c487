package main

import (
	"io"
	"os"

	"codework/internal/home"
	"codework/internal/logs"
)

// homeLog is where an owner in the background logs to: the home's log, which
// makes room for a new one when it is long, if stderr leads there. What else is
// written to stderr, such as the trace of a crash, follows it.
func homeLog(p home.Paths, stderr *os.File) (lines io.Writer, end func()) {
	mine, err := stderr.Stat()
	there, missing := os.Stat(p.Log)
	if err != nil || missing != nil || !os.SameFile(mine, there) {
		return stderr, func() {}
	}
	f, err := logs.Open(p.Log, home.MaxLog, func(next *os.File) { replaceStderr(stderr, next) })
	if err != nil {
		return stderr, func() {}
	}
	return f, func() { _ = f.Close() } // what was written is there
}
