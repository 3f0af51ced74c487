package supervisor

import (
	"errors"
	"log/slog"
	"os"
	"sync"

	"codework/sandboxes/supervisor/modes"
)

var (
	// ErrLost means the process that ran the command, or the one above it, was
	// killed: how the command ended is not known.
	ErrLost = errors.New("the process that ran the command was killed")
	// ErrClosed means the host was closed.
	ErrClosed = errors.New("supervisor closed")
)

// Options say how to start supervisors.
type Options struct {
	// Executable is a program that imports this package; "" is the running one.
	Executable string
	// Log receives what is worth knowing about lost processes; nil drops it.
	Log *slog.Logger
}

// Job is a command to start.
type Job struct {
	Path  string   // absolute path of the program
	Argv  []string // with the name of the program first
	Env   []string // "NAME=value", complete
	Dir   string   // absolute
	Umask int      // -1: the server's

	// Stdin is what the command reads; nil is the null device.
	Stdin *os.File
	// Stdout and Stderr are what the command writes to; they may be the same
	// file. The caller closes its own ends when Start has returned.
	Stdout, Stderr *os.File
}

// StartError means the program could not be started.
type StartError struct {
	Path string
	// Dir tells that the working folder was the reason, not the program.
	Dir bool
	Err error
}

func (e *StartError) Error() string { return "start " + e.Path + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Status is how a command's main process ended.
type Status struct {
	Code   int    // 0-255; 128+n for death by signal n
	Signal string // "SIGKILL" and the like, "" if none
}

// Process is a started command and the tree below it.
type Process struct {
	exited chan struct{}
	gone   chan struct{}
	kill   func()

	mu     sync.Mutex // guards the following
	status Status
	err    error
}

func newProcess() *Process {
	return &Process{exited: make(chan struct{}), gone: make(chan struct{})}
}

// Exited is closed when the main process has ended, could not be started, or
// was lost: Result tells.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Gone is closed when nothing of the tree runs any more. When the main process
// was the last of it, Gone is closed by the time Exited is.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Result is how the main process ended, once Exited is closed. The error is a
// *StartError or ErrLost.
func (p *Process) Result() (Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, p.err
}

// Kill ends the tree: Gone closes within two seconds. It does not block, may be
// called again, and does nothing to a tree that has ended.
func (p *Process) Kill() { p.kill() }

// settle records how the main process ended, the first time it is called, and
// whether that was the end of the tree.
func (p *Process) settle(s Status, err error, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gone && !modes.IsClosed(p.gone) {
		close(p.gone)
	}
	if !modes.IsClosed(p.exited) {
		p.status, p.err = s, err
		close(p.exited)
	}
}

// vanish records that nothing of the tree is left.
func (p *Process) vanish() { p.settle(Status{}, ErrLost, true) }
