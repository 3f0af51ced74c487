package ssh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"codework/sandboxes"
	"codework/sandboxes/agent"
)

const (
	// backoffFirst and backoffTop are the pauses between tries to reach a host
	// again; reachPatience is when an operation gives up.
	backoffFirst  = 200 * time.Millisecond
	backoffTop    = 5 * time.Second
	reachPatience = 30 * time.Second
)

// Sandbox is a folder on a host. When the connection is lost the next operation
// makes a new one; what was in flight fails and is not run again.
type Sandbox struct {
	driver *Driver
	spec   sandboxes.Spec
	config Config
	at     address
	// gone ends when the sandbox is closed.
	gone context.Context
	end  context.CancelFunc
	turn chan struct{} // holds one; who has put it in connects

	mu   sync.Mutex // guards life
	life life
}

// live is the connection that works, or a new one.
func (s *Sandbox) live(ctx context.Context) (life, error) {
	if l := s.current(); l != nil {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reachPatience)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.gone.Done():
		return nil, sandboxes.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l := s.current(); l != nil { // somebody else was there first
		return l, nil
	}
	defer context.AfterFunc(s.gone, cancel)()
	var last error // what was wrong, when that is not that the time was over
	for wait := backoffFirst; ; wait = min(2*wait, backoffTop) {
		if s.gone.Err() != nil {
			return nil, sandboxes.ErrClosed
		}
		l, err := s.driver.begin(ctx, s.spec, s.config, s.at)
		if err == nil {
			s.mu.Lock()
			s.life = l
			s.mu.Unlock()
			if s.gone.Err() != nil { // Close may have looked just before
				_ = l.Close(ctx)
				return nil, sandboxes.ErrClosed
			}
			return l, nil
		}
		var final permanentError
		if errors.As(err, &final) || errors.Is(err, sandboxes.ErrNotFound) {
			return nil, err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if pause(ctx, wait) != nil {
			if s.gone.Err() != nil {
				return nil, sandboxes.ErrClosed
			}
			return nil, last
		}
	}
}

// current is the connection if it works.
func (s *Sandbox) current() life {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.gone.Err() != nil || isLost(s.life) {
		return nil
	}
	return s.life
}

func isLost(l life) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// Mount makes a session's use of the sandbox.
func (s *Sandbox) Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	if s.gone.Err() != nil {
		return nil, sandboxes.ErrClosed
	}
	if o.Dir == "" {
		o.Dir = s.at.dir
	} else if o.Dir[0] != '/' {
		o.Dir = s.at.dir + "/" + o.Dir
	}
	l, err := s.live(ctx)
	if err != nil {
		return nil, err
	}
	inner, err := l.Mount(ctx, o)
	if err != nil {
		return nil, err
	}
	o.Dir = inner.Dir() // what it means now is what it means later
	return &mount{sandbox: s, options: o, life: l, inner: inner}, nil
}

// Close ends what was started through this connection, and the connection.
func (s *Sandbox) Close(ctx context.Context) error {
	s.end()
	s.driver.forget(s)
	s.mu.Lock()
	l := s.life
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	return l.Close(ctx)
}

// mount is a session's use of the sandbox, over one connection after the other.
type mount struct {
	sandbox *Sandbox
	options sandboxes.MountOptions

	mu     sync.Mutex // guards the following
	life   life
	inner  sandboxes.Mount
	held   int // locks of this connection that were not given back
	closed bool
}

// live is the mount over a connection that works. Who holds a lock that went
// with its connection must give it back first: nobody else may write in between
// what he began and what he ends.
func (m *mount) live(ctx context.Context) (sandboxes.Mount, error) {
	m.mu.Lock()
	life, inner, held, closed := m.life, m.inner, m.held, m.closed
	m.mu.Unlock()
	switch {
	case closed || m.sandbox.gone.Err() != nil:
		return nil, sandboxes.ErrClosed
	case !isLost(life):
		return inner, nil
	case held > 0:
		return nil, fmt.Errorf("%w, and a lock of a file with it", agent.ErrLost)
	}
	next, err := m.sandbox.live(ctx)
	if err != nil {
		return nil, err
	}
	again, err := next.Mount(ctx, m.options)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	switch {
	case m.closed:
		err = sandboxes.ErrClosed
	case m.life != life: // somebody else was here first
		inner = m.inner
	default:
		m.life, m.inner = next, again
		m.mu.Unlock()
		return again, nil
	}
	m.mu.Unlock()
	_ = again.Close()
	return inner, err
}

func (m *mount) Dir() string { return m.options.Dir }

func (m *mount) Scratch() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inner.Scratch()
}

func (m *mount) Close() error {
	m.mu.Lock()
	m.closed = true
	inner := m.inner
	m.mu.Unlock()
	return inner.Close()
}

// file runs a file operation over a connection that works.
func (m *mount) file(ctx context.Context, op, path string, do func(sandboxes.Mount) error) error {
	err := ctx.Err()
	var inner sandboxes.Mount
	if err == nil {
		inner, err = m.live(ctx)
	}
	if err != nil {
		return &sandboxes.FileError{Op: op, Path: path, Err: err}
	}
	return do(inner)
}

func (m *mount) Read(ctx context.Context, path string, offset, limit int64) (data []byte, err error) {
	err = m.file(ctx, "read", path, func(in sandboxes.Mount) (err error) {
		data, err = in.Read(ctx, path, offset, limit)
		return err
	})
	return data, err
}

func (m *mount) Write(ctx context.Context, path string, data []byte) error {
	return m.file(ctx, "write", path, func(in sandboxes.Mount) error { return in.Write(ctx, path, data) })
}

func (m *mount) Stat(ctx context.Context, path string) (info sandboxes.Info, err error) {
	err = m.file(ctx, "stat", path, func(in sandboxes.Mount) (err error) {
		info, err = in.Stat(ctx, path)
		return err
	})
	return info, err
}

func (m *mount) Lstat(ctx context.Context, path string) (info sandboxes.Info, err error) {
	err = m.file(ctx, "lstat", path, func(in sandboxes.Mount) (err error) {
		info, err = in.Lstat(ctx, path)
		return err
	})
	return info, err
}

func (m *mount) List(ctx context.Context, path string) (list []sandboxes.Info, err error) {
	err = m.file(ctx, "list", path, func(in sandboxes.Mount) (err error) {
		list, err = in.List(ctx, path)
		return err
	})
	return list, err
}

func (m *mount) Mkdir(ctx context.Context, path string) error {
	return m.file(ctx, "mkdir", path, func(in sandboxes.Mount) error { return in.Mkdir(ctx, path) })
}

func (m *mount) Remove(ctx context.Context, path string) error {
	return m.file(ctx, "remove", path, func(in sandboxes.Mount) error { return in.Remove(ctx, path) })
}

func (m *mount) RealPath(ctx context.Context, path string) (got string, err error) {
	err = m.file(ctx, "realpath", path, func(in sandboxes.Mount) (err error) {
		got, err = in.RealPath(ctx, path)
		return err
	})
	return got, err
}

func (m *mount) Lock(ctx context.Context, path string) (unlock func(), err error) {
	err = m.file(ctx, "lock", path, func(in sandboxes.Mount) error {
		inner, err := in.Lock(ctx, path)
		if err != nil {
			return err
		}
		m.hold(1)
		unlock = sync.OnceFunc(func() {
			inner()
			m.hold(-1)
		})
		return nil
	})
	return unlock, err
}

func (m *mount) hold(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held += n
}

func (m *mount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	none := sandboxes.Exit{Code: -1}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	inner, err := m.live(ctx)
	switch {
	case err == nil:
		return inner.Run(ctx, c)
	case ctx.Err() != nil:
		return none, ctx.Err()
	case errors.Is(err, sandboxes.ErrClosed):
		return none, &sandboxes.ShellError{Reason: "command ended", Err: err}
	}
	return none, &sandboxes.ShellError{Reason: "command not started", Err: err}
}
