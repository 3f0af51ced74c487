package actors

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// gateway is the actor of one RPC connection: it turns calls into messages and
// answers into frames. Whatever a client does costs its own connection only.
type gateway struct {
	server   *effectrpc.Server
	system   *System
	local    bool   // over the socket of this machine
	name     string // of the connection, for prompts that are bound to it
	world    *messages.World
	bound    bool // some prompt was
	begun    bool
	guardian *Ref
	hub      *Ref
	came     callQueue
}

// callQueue are the calls that were read and not yet begun, which outlive the
// mailbox that tells of them: nobody else would answer those that the gateway
// does not get to.
type callQueue struct {
	mu     sync.Mutex // guards what follows
	calls  []*effectrpc.Call
	closed bool
}

// put takes a call; false means that it is too late for it.
func (q *callQueue) put(c *effectrpc.Call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.calls = append(q.calls, c)
	}
	return !q.closed
}

// take returns the oldest call; nil when there is none.
func (q *callQueue) take() (c *effectrpc.Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.calls) > 0 {
		c, q.calls[0] = q.calls[0], nil
		q.calls = q.calls[1:]
	}
	return c
}

// close takes no more calls and returns those that are left.
func (q *callQueue) close() []*effectrpc.Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.calls
	q.calls, q.closed = nil, true
	return left
}

// callCame tells a gateway of one call that was put into its queue.
type callCame struct{}

// connectionEnded tells a gateway that its client is gone.
type connectionEnded struct{ err error }

func (g *gateway) Receive(me *Self, m any) {
	switch m := m.(type) {
	case Started:
		if g.begun { // it failed, and its connection with it
			me.Ref().Stop()
			return
		}
		g.begun = true
		tell := me.Later()
		me.Go(func(ctx context.Context) any {
			return connectionEnded{g.server.Serve(ctx, func(c *effectrpc.Call) {
				if !g.came.put(c) {
					failCall(c, errStopped)
					return
				}
				tell(callCame{})
			})}
		})
	case callCame:
		if c := g.came.take(); c != nil {
			g.call(me, c)
		}
	case connectionEnded:
		if m.err != nil {
			me.Log().Debug("connection ended", "err", m.err)
		}
		me.Ref().Stop()
	case Stopped:
		for _, c := range g.came.close() {
			failCall(c, errStopped)
		}
		if g.bound {
			g.guardian.Tell(leaveLocal{g.name})
		}
	}
}

// call sends a call's message on at once, so that calls keep their order, and
// waits for the answer beside the actor.
func (g *gateway) call(me *Self, c *effectrpc.Call) {
	m, err := contract.Decode(c.Method(), c.Payload(), g.local)
	switch {
	case errors.Is(err, contract.ErrUnknownMethod):
		c.DieUnknownMethod()
		return
	case err != nil:
		c.Die(err.Error())
		return
	}
	switch m := m.(type) {
	case messages.CreateSession:
		m.World = g.world
		g.forward(me, c, g.guardian, m)
	case messages.Prompt:
		m.World = g.world
		if m.Bound != "" {
			m.Bound = ""
			if g.local {
				m.Bound, g.bound = g.name, true
			}
		}
		g.forward(me, c, g.guardian, toSession{m.SessionID, m})
	case messages.ListSessions, messages.Fork, messages.Delete, messages.Check:
		g.forward(me, c, g.guardian, m)
	case messages.ToSession:
		g.forward(me, c, g.guardian, toSession{m.Target(), m})
	case messages.CreateSandbox, messages.RegisterSandbox, messages.StopSandbox, messages.DestroySandbox:
		call := boxCall{ctx: c.Context(), m: m, world: g.world}
		if g.world != nil {
			call.hostDir = g.world.Dir
		}
		g.forward(me, c, g.guardian, call)
	case messages.ExecSandbox:
		g.exec(me, c, m)
	case messages.Subscribe:
		g.subscribe(me, c, m)
	case messages.GetTop:
		g.beside(me, c, func(ctx context.Context) (any, error) { return g.system.Top(ctx, m), nil })
	case messages.Hello:
		g.hello(me, c, m)
	case messages.ListModels:
		models, world := g.system.config.Models, g.world
		g.beside(me, c, func(ctx context.Context) (any, error) { return models(ctx, m.Provider, world) })
	case messages.AuthSave, messages.AuthStatus, messages.AuthRefresh, messages.AuthLogout:
		logins := g.system.config.Logins
		g.beside(me, c, func(ctx context.Context) (any, error) { return loginCall(ctx, logins, m) })
	default:
		g.serverCall(me, c)
	}
}

// beside answers a call with what f returns, which may take its time.
func (g *gateway) beside(me *Self, c *effectrpc.Call, f func(context.Context) (any, error)) {
	me.Go(func(context.Context) any {
		v, err := f(c.Context())
		answerCall(c, v, err)
		return nil
	})
}

// serverCall answers the calls without fields.
func (g *gateway) serverCall(me *Self, c *effectrpc.Call) {
	switch c.Method() {
	case contract.ServerInfo:
		g.beside(me, c, func(ctx context.Context) (any, error) { return g.system.Info(ctx) })
	case contract.ServerHandover:
		g.beside(me, c, func(ctx context.Context) (any, error) { return g.system.handover(ctx) })
	case contract.SandboxDrivers:
		g.forward(me, c, g.guardian, listDrivers{c.Context(), g.world})
	case contract.SandboxList:
		g.forward(me, c, g.guardian, listBoxes{})
	case contract.PluginReload:
		g.forward(me, c, g.guardian, reloadPlugins{})
	}
}

// loginCall answers the calls about stored logins.
func loginCall(ctx context.Context, logins Logins, m any) (any, error) {
	var info *messages.OAuthInfo
	var err error
	switch m := m.(type) {
	case messages.AuthSave:
		var saved messages.OAuthInfo
		saved, err = logins.Save(ctx, m.Credentials)
		info = &saved
	case messages.AuthStatus:
		info, err = logins.Status(ctx, m.Provider)
	case messages.AuthRefresh:
		info, err = logins.Refresh(ctx, m.Provider)
	case messages.AuthLogout:
		err = logins.Logout(ctx, m.Provider)
	}
	if err != nil {
		return nil, &messages.OAuthError{Message: err.Error()}
	}
	if info == nil {
		return nil, nil
	}
	return info, nil
}

// forward asks for the answer to a call and passes it on.
func (g *gateway) forward(me *Self, c *effectrpc.Call, to *Ref, m any) {
	admitted := func(error) {}
	if c.Method() == contract.SessionPrompt {
		admitted = g.system.admitting()
	}
	wait := to.request(m)
	me.Go(func(context.Context) any {
		v, err := wait(c.Context())
		admitted(err)
		for errors.Is(err, errStopped) && again(to, c, m) {
			v, err = to.request(m)(c.Context())
		}
		v, err = withoutError(c.Method(), v, err)
		answerCall(c, v, err)
		return nil
	})
}

// again tells whether a call that its session did not live to answer, because
// it was unloaded, mended or deleted, can be asked once more: what is the same
// when it is done twice can.
func again(to *Ref, c *effectrpc.Call, m any) bool {
	t, ok := m.(toSession)
	if !ok || c.Context().Err() != nil {
		return false
	}
	switch t.m.(type) {
	case messages.Wait, messages.GetSession, messages.HasMessage, messages.GetHistory, messages.GetBlob,
		messages.Configure, messages.Link, messages.Relink, messages.Rename:
	default:
		return false
	}
	select {
	case <-to.Done():
		return false
	default:
		return true
	}
}

// withoutError gives errors that a method does not declare another form: a
// missing session becomes an answer, a busy one a refusal.
func withoutError(method string, v any, err error) (any, error) {
	var busy *messages.SessionBusy
	if method == contract.SessionCheck && errors.As(err, &busy) {
		return nil, &messages.Refused{Name: messages.RefusedBusy, Message: busy.Error() + "; wait for it or interrupt it before its log is mended"}
	}
	var missing *messages.SessionNotFound
	if !errors.As(err, &missing) {
		return v, err
	}
	switch method {
	case contract.SessionInterrupt:
		return messages.Interrupted{}, nil
	case contract.SessionMessage:
		return messages.Found{}, nil
	}
	return v, err
}

func answerCall(c *effectrpc.Call, v any, err error) {
	if err != nil {
		failCall(c, err)
		return
	}
	b, err := contract.Encode(v)
	if err != nil {
		c.Die(&effectrpc.Defect{Name: messages.RefusedInternal, Message: err.Error()})
		return
	}
	c.Succeed(b)
}

func failCall(c *effectrpc.Call, err error) {
	if c.Context().Err() != nil || errors.Is(err, context.Canceled) {
		err = errStopped // whatever it was, the connection's end was first, or that of who was to answer
	}
	if b, ok := contract.EncodeError(err); ok {
		c.Fail(b)
		return
	}
	var refused *messages.Refused
	if errors.As(err, &refused) {
		c.Die(&effectrpc.Defect{Name: refused.Name, Message: refused.Message})
		return
	}
	c.Die(&effectrpc.Defect{Name: messages.RefusedInternal, Message: err.Error()})
}

// subscribe registers first; the stream begins after that, so that nothing
// that happens later is missed.
func (g *gateway) subscribe(me *Self, c *effectrpc.Call, q messages.Subscribe) {
	sub := newSubscription(q.SessionID)
	sub.after = maps.Clone(q.After)
	maps.DeleteFunc(sub.after, func(id string, _ int64) bool { return q.SessionID != "" && q.SessionID != id })
	hub, store := g.hub, g.system.config.Store
	registered := hub.request(subscribe{sub})
	context.AfterFunc(c.Context(), func() { hub.Tell(unsubscribe{sub}) })
	me.Go(func(context.Context) any {
		if _, err := registered(c.Context()); err != nil {
			failCall(c, err)
			return nil
		}
		r := newReader(sub, hub, store)
		c.Stream(func(ctx context.Context, most effectrpc.Batch) ([]json.RawMessage, error) {
			values, err := r.next(ctx, most.Values)
			return values, streamError(err)
		})
		return nil
	})
}

// streamError gives a subscription's end the form that the wire knows.
func streamError(err error) error {
	if b, ok := contract.EncodeError(err); ok {
		return &effectrpc.RemoteError{Body: b}
	}
	var refused *messages.Refused
	if errors.As(err, &refused) {
		return &effectrpc.Defect{Name: refused.Name, Message: refused.Message}
	}
	return err
}

// hello takes down what the client's world looks like. A client of another
// world is refused: a tool must never run elsewhere than its caller thinks.
func (g *gateway) hello(me *Self, c *effectrpc.Call, h messages.Hello) {
	if h.Host != g.system.identity.Host || h.MountNamespace != g.system.identity.MountNamespace {
		failCall(c, &messages.WrongWorld{Reason: "this home is in use by a process on " + g.system.identity.Host +
			" that sees other files (another machine or container)"})
		return
	}
	env := make([]string, 0, len(h.Env))
	for k, v := range h.Env {
		env = append(env, k+"="+v)
	}
	g.world = &messages.World{Dir: h.Cwd, Env: env, Umask: h.Umask, UserConfigDir: h.UserConfigDir}
	g.beside(me, c, func(ctx context.Context) (any, error) { return g.system.Info(ctx) })
}
