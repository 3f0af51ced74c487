package ssh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"codework/sandboxes"
	"codework/sandboxes/agent"
)

// life is one connection to a sandbox; when it ends another one takes over.
type life interface {
	sandboxes.Sandbox
	sandboxes.Lost
}

// begin reaches a sandbox in the best way that the host allows. The error is
// sandboxes.ErrNotFound when its folder is not there.
func (d *Driver) begin(ctx context.Context, spec sandboxes.Spec, c Config, at address) (life, error) {
	client, err := d.connect(ctx, c, at)
	if err != nil {
		return nil, err
	}
	// Whatever waits for a host that does not answer ends with its connection.
	stop := context.AfterFunc(ctx, func() { client.Close() })
	l, err := d.inhabit(ctx, spec, c, client, at)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	return l, nil
}

func (d *Driver) inhabit(ctx context.Context, spec sandboxes.Spec, c Config, client *ssh.Client, at address) (life, error) {
	h := &host{client: client}
	r, reason := d.runner.get(d.opt.Executable)
	name := ""
	if reason == nil {
		name = r.name()
	}
	f, err := h.look(ctx, name, at.dir)
	if err != nil {
		return nil, err
	}
	if !f.folder {
		return nil, fmt.Errorf("%s: %w", at, sandboxes.ErrNotFound)
	}
	if reason == nil {
		reason = f.fits(r)
	}
	if reason == nil {
		l, err := h.startAgent(ctx, d, f, r, spec.ID)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		reason = err
	}
	p, err := h.startPlain(ctx, f, spec.ID, func(ctx context.Context) (*ssh.Client, error) { return d.connect(ctx, c, at) })
	if err != nil {
		return nil, err
	}
	d.warn(at.hostPort(), p.means, reason)
	return p, nil
}

// fits tells whether the runner can run there.
func (f facts) fits(r *runner) error {
	switch {
	case f.os != r.os || f.arch != r.arch:
		return fmt.Errorf("the host is %s on %s, the runner is for %s on %s", f.os, f.arch, r.os, r.arch)
	case f.cache == "":
		return errors.New("the host has no private folder for it")
	}
	return nil
}

// forgetSSH keeps commands from looking as if each came by ssh of its own: some
// builds of bash then read a start file first.
const forgetSSH = "unset SSH_CLIENT SSH2_CLIENT SSH_CONNECTION SSH_TTY\n"

// startAgent starts our runner, brought there first if need be. Its input is
// the connection: when that ends, in whatever way, everything it started does.
func (h *host) startAgent(ctx context.Context, d *Driver, f facts, r *runner, id string) (life, error) {
	if f.runner != r.sum {
		if err := h.upload(ctx, f, r); err != nil {
			return nil, err
		}
	}
	s, err := h.session(ctx)
	if err != nil {
		return nil, err
	}
	in, err := s.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.StdoutPipe()
	if err != nil {
		return nil, err
	}
	complaints := &head{}
	s.Stderr = complaints
	marker := "codework-" + rand.Text()
	args := agent.Args(agent.ServeOptions{ID: id, StateDir: f.cache + "/state", Marker: marker})
	if err := s.Start(shellCommand(forgetSSH+`exec "$@"`, append([]string{f.cache + "/bin/" + r.name()}, args...)...)); err != nil {
		s.Close()
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	conn := &agentConn{Reader: out, Writer: in, client: h.client, session: s}
	c, err := agent.Dial(ctx, conn, agent.DialOptions{Marker: marker, Log: d.opt.Log})
	if err != nil {
		if said := strings.TrimSpace(complaints.String()); said != "" {
			err = fmt.Errorf("%w; it says %.300q", err, said)
		}
		return nil, err
	}
	conn.whole.Store(true)
	return c, nil
}

// agentConn is the connection to the agent. Once the agent talks, the whole
// connection is its own and ends with it.
type agentConn struct {
	io.Reader
	io.Writer
	client  *ssh.Client
	session *ssh.Session
	whole   atomic.Bool
}

// Close does not wait for a host that does not answer.
func (c *agentConn) Close() error {
	if c.whole.Load() {
		return c.client.Close()
	}
	go c.session.Close()
	return nil
}
