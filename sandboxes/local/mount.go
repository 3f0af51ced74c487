package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"codework/sandboxes"
	"codework/sandboxes/supervisor"
)

// mount is a session's use of the host.
type mount struct {
	sandbox *Sandbox
	dir     string
	scratch string
	env     *environ
	umask   int // -1: the server's

	// ctx ends with the mount or the sandbox; its cause is ErrClosed.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards procs, and that no command begins once ctx has ended
	procs map[*supervisor.Process]struct{}
	runs  sync.WaitGroup // commands
}

func (m *mount) Dir() string     { return m.dir }
func (m *mount) Scratch() string { return m.scratch }

// alive is the reason not to begin anything.
func (m *mount) alive(ctx context.Context) error {
	if m.ctx.Err() != nil {
		return sandboxes.ErrClosed
	}
	return ctx.Err()
}

// begin counts a command as running; who calls it calls runs.Done.
func (m *mount) begin(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.alive(ctx); err != nil {
		return err
	}
	m.runs.Add(1)
	return nil
}

// track remembers a process tree until it is gone, and ends it at once when the
// mount is closed already.
func (m *mount) track(p *supervisor.Process) {
	m.mu.Lock()
	if m.procs == nil {
		m.procs = make(map[*supervisor.Process]struct{})
	}
	m.procs[p] = struct{}{}
	closed := m.ctx.Err() != nil
	m.mu.Unlock()
	if closed {
		p.Kill()
	}
	go func() {
		<-p.Gone()
		m.mu.Lock()
		delete(m.procs, p)
		m.mu.Unlock()
	}()
}

// Keeps tells whether something runs or lies in the scratch folder.
func (m *mount) Keeps() bool {
	m.mu.Lock()
	running := len(m.procs) > 0
	m.mu.Unlock()
	if running {
		return true
	}
	f, err := os.Open(m.scratch)
	switch {
	case errors.Is(err, fs.ErrNotExist): // nothing was ever put there
		return false
	case err != nil:
		return true
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	return err != io.EOF
}

// Close ends commands and background jobs and removes the scratch folder. It
// returns when nothing of them runs, within two seconds.
func (m *mount) Close() error {
	m.mu.Lock()
	m.cancel(sandboxes.ErrClosed)
	var left []*supervisor.Process
	for p := range m.procs {
		left = append(left, p)
	}
	m.mu.Unlock()
	for _, p := range left {
		p.Kill()
	}
	for _, p := range left {
		<-p.Gone()
	}
	m.runs.Wait()
	m.sandbox.mu.Lock()
	delete(m.sandbox.mounts, m)
	m.sandbox.mu.Unlock()
	return os.RemoveAll(m.scratch)
}
