//go:build !linux

package supervisor

import (
	"context"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"codework/sandboxes/supervisor/modes"
)

// groupPause is how often a group with background jobs is asked whether it is
// still there.
const groupPause = 100 * time.Millisecond

// Host starts commands directly, each in a group of its own. Best effort: what
// leaves its group is not found again, nothing ends with a killed server, and
// Umask is not applied.
type Host struct {
	mu     sync.Mutex // guards the following
	closed bool
	procs  map[*Process]struct{}
}

// NewHost starts nothing yet.
func NewHost(Options) *Host { return &Host{procs: make(map[*Process]struct{})} }

// Start starts a command. An error means that nothing was started; a program
// that cannot be run is reported by the process.
func (h *Host) Start(j Job) (*Process, error) {
	if len(j.Path) == 0 || len(j.Argv) == 0 {
		return nil, &StartError{Path: j.Path, Err: syscall.EINVAL}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	p := newProcess()
	p.kill = func() {}
	cmd := &exec.Cmd{Path: j.Path, Args: j.Argv, Env: j.Env, Dir: j.Dir, Stdout: j.Stdout, Stderr: j.Stderr}
	if j.Stdin != nil {
		cmd.Stdin = j.Stdin
	}
	g, err := startGroup(cmd)
	if err != nil {
		p.settle(Status{}, &StartError{Path: j.Path, Err: err}, true)
		return p, nil
	}
	h.procs[p] = struct{}{}
	var once sync.Once
	p.kill = func() {
		once.Do(func() {
			go func() {
				g.ask()
				select {
				case <-p.gone:
				case <-time.After(modes.TermGrace):
					g.kill()
				}
			}()
		})
	}
	go func() {
		_ = cmd.Wait() // the state says it all
		p.settle(statusOfState(cmd.ProcessState), nil, !g.alive())
		for g.alive() {
			time.Sleep(groupPause)
		}
		g.close()
		p.vanish()
		h.mu.Lock()
		delete(h.procs, p)
		h.mu.Unlock()
	}()
	return p, nil
}

// Close ends everything and returns when nothing known of it runs, or with
// ctx's error.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	var left []*Process
	for p := range h.procs {
		left = append(left, p)
		p.Kill()
	}
	h.mu.Unlock()
	for _, p := range left {
		select {
		case <-p.gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
