// Package modes is what runs in the processes above a command on Linux: the
// supervisor of a sandbox and its runners, both this same binary in a hidden
// mode, and what they and the server say to each other. A program that imports
// it has the modes: they are served while its packages are initialised, before
// main, and the process ends there.
//
// That is for their sake who wait for a command: initialising all packages of
// the product takes 4 to 5 ms of processor time, and a first command starts
// three processes. Go initialises in the order of names what is ready, so the
// imports are a few packages of the standard library, and neither net nor
// golang.org/x/sys. A test looks at the order.
//
// The server's side is package supervisor, which takes from here the frames and
// how processes are found and ended. Frames keep their order on each socket and
// are not lost but with their process; readers block; end of file ends a mode, and
// who opened a descriptor closes it.
package modes

import "time"

// Arguments of the hidden modes.
const (
	SupervisorArg = "__sandbox-supervisor" // with the mark of all below as a second argument
	RunnerArg     = "__sandbox-runner"
)

const (
	// TermGrace is what a tree gets between TERM and KILL: enough for a package
	// manager to release its lock, short for a person who waits. It is never
	// extended.
	TermGrace = time.Second
	// GonePatience is when a runner that was told to end its tree counts as
	// stuck (stopped by its own command, say): the grace and time to sweep.
	GonePatience = TermGrace + 250*time.Millisecond
)

// IsClosed tells whether a channel on which nothing is ever sent was closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
