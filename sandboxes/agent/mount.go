package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"codework/sandboxes"
)

// mount is a session's use of the sandbox, seen from outside.
type mount struct {
	client  *Client
	id      uint32
	dir     string
	scratch string
}

// Mount makes a session's use of the sandbox. What the caller's environment
// holds stays outside: commands get that of the agent.
func (c *Client) Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	a, err := c.do(ctx, request{Op: opMount, Make: &wireMount{
		Session: o.Session, Dir: []byte(o.Dir), Umask: o.Umask, Pass: o.Pass, Set: toBytes(o.Set), Withhold: o.Withhold,
	}}, nil, nil)
	if err != nil {
		return nil, err
	}
	return &mount{client: c, id: a.Mount, dir: string(a.Dir), scratch: string(a.Scratch)}, nil
}

func (m *mount) Dir() string     { return m.dir }
func (m *mount) Scratch() string { return m.scratch }

// Close ends the mount; when the connection is lost it has ended already.
func (m *mount) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cancelPatience)
	defer cancel()
	_, err := m.client.do(ctx, request{Op: opUnmount, Mount: m.id}, nil, nil)
	if errors.Is(err, ErrLost) || errors.Is(err, sandboxes.ErrClosed) {
		return nil
	}
	return unanswered("unmount", err)
}

// fileOp makes a call about a path and dresses its error.
func (m *mount) fileOp(ctx context.Context, req request, path string, content []byte, take func(frame) error) (answer, error) {
	req.Mount, req.Path = m.id, []byte(path)
	a, err := m.client.do(ctx, req, content, take)
	if err != nil {
		return a, &sandboxes.FileError{Op: req.Op, Path: path, Err: err}
	}
	return a, nil
}

func (m *mount) Read(ctx context.Context, path string, offset, limit int64) ([]byte, error) {
	data := []byte{}
	_, err := m.fileOp(ctx, request{Op: opRead, Offset: offset, Limit: limit}, path, nil, func(f frame) error {
		if f.kind != kindData || limit >= 0 && int64(len(data)+len(f.body)) > limit {
			return protocolError("more than was asked for")
		}
		data = append(data, f.body...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

func (m *mount) Write(ctx context.Context, path string, data []byte) error {
	if data == nil {
		data = []byte{}
	}
	_, err := m.fileOp(ctx, request{Op: opWrite}, path, data, nil)
	return err
}

func (m *mount) Stat(ctx context.Context, path string) (sandboxes.Info, error) {
	return m.stat(ctx, opStat, path)
}

func (m *mount) Lstat(ctx context.Context, path string) (sandboxes.Info, error) {
	return m.stat(ctx, opLstat, path)
}

func (m *mount) stat(ctx context.Context, op, path string) (sandboxes.Info, error) {
	a, err := m.fileOp(ctx, request{Op: op}, path, nil, nil)
	if err == nil && a.Info == nil {
		err = &sandboxes.FileError{Op: op, Path: path, Err: protocolError("no information")}
	}
	if err != nil {
		return sandboxes.Info{}, err
	}
	return a.Info.info(), nil
}

func (m *mount) List(ctx context.Context, path string) ([]sandboxes.Info, error) {
	var data bytes.Buffer
	_, err := m.fileOp(ctx, request{Op: opList}, path, nil, func(f frame) error {
		if f.kind != kindData || data.Len()+len(f.body) > maxList {
			return protocolError("list too large")
		}
		data.Write(f.body)
		return nil
	})
	if err != nil {
		return nil, err
	}
	list := []sandboxes.Info{}
	for d := json.NewDecoder(&data); ; {
		var w wireInfo
		switch err := d.Decode(&w); err {
		case nil:
			list = append(list, w.info())
		case io.EOF:
			return list, nil
		default:
			return nil, &sandboxes.FileError{Op: opList, Path: path, Err: protocolError("list: %v", err)}
		}
	}
}

func (m *mount) Mkdir(ctx context.Context, path string) error {
	_, err := m.fileOp(ctx, request{Op: opMkdir}, path, nil, nil)
	return err
}

func (m *mount) Remove(ctx context.Context, path string) error {
	_, err := m.fileOp(ctx, request{Op: opRemove}, path, nil, nil)
	return err
}

func (m *mount) RealPath(ctx context.Context, path string) (string, error) {
	a, err := m.fileOp(ctx, request{Op: opRealPath}, path, nil, nil)
	return string(a.Path), err
}

// Lock holds a call open: taking the lock is told in its middle, and it is
// cancelled to give the lock back. With the connection all locks go.
func (m *mount) Lock(ctx context.Context, path string) (func(), error) {
	held := make(chan struct{})
	done := make(chan error, 1)
	// The call outlives ctx, which is only for the wait.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	go func() {
		_, err := m.fileOp(life, request{Op: opLock}, path, nil, func(f frame) error {
			if f.kind != kindHeld {
				return protocolError("unasked data")
			}
			select {
			case <-held:
			default:
				close(held)
			}
			return nil
		})
		done <- err
	}()
	select {
	case <-held:
	case err := <-done:
		stop()
		cancel()
		if cause := ctx.Err(); cause != nil && errors.Is(err, context.Canceled) {
			err = &sandboxes.FileError{Op: opLock, Path: path, Err: cause}
		}
		if err == nil { // cancelled when it was just held
			err = &sandboxes.FileError{Op: opLock, Path: path, Err: context.Canceled}
		}
		return nil, err
	}
	if !stop() {
		// The wait was given up just when it was over.
		<-done
		return nil, &sandboxes.FileError{Op: opLock, Path: path, Err: ctx.Err()}
	}
	return sync.OnceFunc(func() {
		cancel()
		<-done // so that a lock that is asked for next finds it free
	}), nil
}

func (m *mount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	wire := &wireCommand{
		Script: []byte(c.Script), Dir: []byte(c.Dir), Env: toBytes(c.Env), Timeout: c.Timeout,
		Silent: c.Output == nil, Joined: c.Joined, Full: []byte(c.Full),
	}
	for _, arg := range c.Argv {
		wire.Argv = append(wire.Argv, []byte(arg))
	}
	a, err := m.client.do(ctx, request{Op: opRun, Mount: m.id, Run: wire}, nil, func(f frame) error {
		switch {
		case c.Output == nil:
			return protocolError("unasked output")
		case f.kind == kindStdout:
			c.Output(sandboxes.Stdout, f.body)
		case f.kind == kindStderr:
			c.Output(sandboxes.Stderr, f.body)
		default:
			return protocolError("data of a command")
		}
		return nil
	})
	exit := sandboxes.Exit{Code: -1}
	if a.Exit != nil {
		exit = *a.Exit
	}
	var se *sandboxes.ShellError
	switch {
	case err == nil && a.Exit == nil:
		err = &sandboxes.ShellError{Reason: "command lost", Err: protocolError("no exit")}
	case err == nil, errors.As(err, &se), ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case errors.Is(err, sandboxes.ErrClosed):
		err = &sandboxes.ShellError{Reason: "command ended", Err: err}
	default: // never run again: what it did is not known
		err = &sandboxes.ShellError{Reason: "command lost", Err: err}
	}
	return exit, err
}

// maxList bounds a list: a million files have about a tenth of it.
const maxList = 1 << 30
