package actors

import (
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"codework/messages"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// How long a driver may take. Making one may fetch an image; a connection that
// is not there after two minutes will not come.
const (
	createLimit = 15 * time.Minute
	reachLimit  = 2 * time.Minute
	mountLimit  = time.Minute
	stopLimit   = 2 * time.Minute
	lookLimit   = 30 * time.Second
	undoLimit   = 30 * time.Second
)

// The statuses that lead somewhere.
var (
	canMount   = []messages.SandboxStatus{messages.SandboxOnline, messages.SandboxOffline, messages.SandboxFaulted}
	canStop    = []messages.SandboxStatus{messages.SandboxOnline, messages.SandboxFaulted, messages.SandboxUnavail}
	canDestroy = []messages.SandboxStatus{messages.SandboxOffline, messages.SandboxUnavail}
)

type (
	// makeBox makes a sandbox of a record. The answer is its SandboxInfo.
	makeBox struct {
		ctx    context.Context // of who asked: an abandoned creation is stopped
		record messages.SandboxRecord
		lookup credentials.Lookup
	}
	// stopBox takes a sandbox offline; by force also when it is in use.
	stopBox struct {
		ctx   context.Context
		force bool
	}
	destroyBox struct{ ctx context.Context }
	// lookAt observes a sandbox anew. The answer is its SandboxInfo.
	lookAt struct {
		ctx    context.Context
		lookup credentials.Lookup
	}
)

// failCreation is what became of a sandbox whose creation nobody finished.
const failCreation = "SandboxCreationInterrupted"

// begin starts an operation beside the actor.
func (s *sandbox) begin(me *Self, op *operation, caller context.Context, reply Reply, f func(context.Context) (any, sandboxes.Sandbox, error)) {
	ctx, cancel := context.WithCancel(me.Context())
	op.cancel = cancel
	s.op = op
	me.Go(func(context.Context) any {
		defer cancel()
		if caller != nil {
			defer context.AfterFunc(caller, cancel)()
		}
		value, conn, err := f(ctx)
		me.LaterOr(opDone{op, reply, value, conn, err}, func() {
			if conn != nil {
				go s.disconnect(me, conn, nil)
			}
			reply.Send(nil, errStopped)
		})
		return nil
	})
}

// onDone ends an operation: its answer is given, and what waited goes on.
func (s *sandbox) onDone(me *Self, m opDone) {
	s.op = nil
	waiting := s.waiting
	s.waiting = nil
	if m.conn != nil {
		s.connected(me, m.conn)
	}
	m.reply.Send(m.value, m.err)
	for _, w := range waiting {
		if m.err != nil {
			s.deliver(me, w, nil, m.err)
			continue
		}
		s.want(me, w)
	}
	held := s.held
	s.held = nil
	for _, h := range held {
		me.reply = h.reply
		s.handle(me, h.m)
		me.reply = Reply{}
	}
	s.startRest(me)
	if _, ok := s.shelf.get(s.id); !ok && s.driver != nil {
		me.Ref().Stop() // not even a record is left
	}
}

// spec is for whom the driver is asked.
func (s *sandbox) spec(r messages.SandboxRecord) sandboxes.Spec {
	return sandboxes.Spec{ID: s.id, Server: s.server, Project: r.Project, Config: r.Config, Lookup: s.clean.through(*s.lookup.Load())}
}

func resourceOf(r messages.SandboxRecord) sandboxes.Resource {
	return sandboxes.Resource{ID: r.ResourceID, Status: r.Status, Dir: r.Dir, Extra: r.Extra}
}

func keep(r *messages.SandboxRecord, have sandboxes.Resource) {
	r.ResourceID, r.Dir, r.Extra = have.ID, have.Dir, have.Extra
}

// failure gives a driver's error the form in which it travels.
func (s *sandbox) failure(operation string, err error) error {
	return wireFailure(s.clean, s.id, s.record().Driver, operation, err)
}

func wireFailure(clean *cleaner, id, driver, operation string, err error) error {
	var config *sandboxes.ConfigError
	var refused *messages.Refused
	var tagged messages.Tagged
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &tagged):
		return err
	case errors.As(err, &config):
		return &messages.SandboxDriverRegistration{Driver: driver, Reason: clean.text(config.Reason)}
	case errors.Is(err, sandboxes.ErrNotFound):
		return &messages.SandboxUnavailable{ID: id, Reason: "its provider does not know it any more"}
	}
	return &messages.SandboxProvider{Driver: driver, Operation: operation, Sanitized: cleaned(clean, err)}
}

// cleaned is a driver's error as it is kept and told.
func cleaned(clean *cleaner, err error) messages.CleanedError {
	c := messages.CleanedError{Name: "Error", Message: clean.text(err.Error())}
	var shell *sandboxes.ShellError
	var file *sandboxes.FileError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c.Name = "TimeoutError"
	case errors.Is(err, context.Canceled):
		c.Name = "InterruptedError"
	case errors.As(err, &shell):
		c.Name = "ShellError"
	case errors.As(err, &file):
		c.Name = "SandboxFileSystemError"
	}
	return c
}

// conflict refuses what another change of the sandbox stands in the way of.
func (s *sandbox) conflict(actual messages.SandboxStatus, expected []messages.SandboxStatus) error {
	return &messages.SandboxTransitionConflict{ID: s.id, Expected: expected, Actual: actual}
}

// status is what others see now.
func (s *sandbox) status() messages.SandboxStatus {
	if s.op != nil && s.op.doing != "" {
		return s.op.doing
	}
	return s.record().Status
}

// mountable tells why the sandbox cannot be used.
func (s *sandbox) mountable() error {
	switch st := s.status(); st {
	case messages.SandboxOnline, messages.SandboxOffline:
		return nil
	case messages.SandboxFaulted:
		r := s.record()
		if r.ResourceID != "" || r.Extra != nil {
			return nil
		}
		why := "it could not be made"
		if r.Failure != nil {
			why += ": " + r.Failure.Message
		}
		return &messages.SandboxUnavailable{ID: s.id, Reason: why}
	case messages.SandboxRemovedState:
		return s.removed()
	case messages.SandboxUnavail:
		why := "its provider does not know it any more"
		if f := s.record().Failure; f != nil {
			why = f.Message
		}
		return &messages.SandboxUnavailable{ID: s.id, Reason: why}
	default:
		return s.conflict(st, canMount)
	}
}

func (s *sandbox) removed() error { return sandboxRemoved(s.record()) }

func sandboxRemoved(r messages.SandboxRecord) error {
	return &messages.SandboxRemoved{ID: r.ID, RemovedAt: messages.ISOTime(r.UpdatedAt)}
}

// make makes a sandbox: its record comes first, so that nothing is ever there
// that nobody knows of.
func (s *sandbox) make(me *Self, m makeBox) {
	s.lookup.Store(&m.lookup)
	reply := me.TakeReply()
	s.begin(me, &operation{doing: messages.SandboxProvisioning}, m.ctx, reply, func(ctx context.Context) (any, sandboxes.Sandbox, error) {
		rec := m.record
		if err := s.insert(ctx, rec); err != nil {
			return nil, nil, err
		}
		have, err := insist(ctx, createLimit, func(ctx context.Context) (sandboxes.Resource, error) { return s.driver.Create(ctx, s.spec(rec)) }, s.undo)
		var config *sandboxes.ConfigError
		if errors.As(err, &config) {
			// The call was wrong: nothing was made, and nothing is kept.
			return nil, nil, errors.Join(s.failure("create", err), s.remove(ctx))
		}
		if err == nil && !path.IsAbs(have.Dir) {
			s.undo(have)
			err = errors.New("the driver names no absolute working directory")
		}
		if err != nil {
			why := cleaned(s.clean, err)
			if ctx.Err() != nil {
				why.Name = failCreation
			}
			s.fault(me, why, messages.SandboxProvisioning)
			return nil, nil, s.failure("create", err)
		}
		err = s.move(ctx, messages.SandboxOnline, func(r *messages.SandboxRecord) { keep(r, have) }, messages.SandboxProvisioning)
		if err != nil {
			s.undo(have)
			s.fault(me, cleaned(s.clean, err), messages.SandboxProvisioning)
			return nil, nil, err
		}
		return s.record().Info(s.shelf.count(s.id)), nil, nil
	})
}

// undo ends a resource that was made for nothing.
func (s *sandbox) undo(have sandboxes.Resource) {
	_, _ = insist(context.Background(), undoLimit, func(ctx context.Context) (any, error) {
		var err error
		if d, ok := s.driver.(sandboxes.Stopper); ok {
			err = d.Stop(ctx, s.spec(s.record()), have)
		}
		if d, ok := s.driver.(sandboxes.Destroyer); ok {
			err = errors.Join(err, d.Destroy(ctx, s.spec(s.record()), have))
		}
		return nil, err // what is left of it is found by its label at the next start
	}, nil)
}

// fault records that the sandbox failed. That it cannot be recorded leaves what
// the next start looks into.
func (s *sandbox) fault(me *Self, why messages.CleanedError, from ...messages.SandboxStatus) {
	err := s.move(context.Background(), messages.SandboxFaulted, func(r *messages.SandboxRecord) { r.Failure = &why }, from...)
	if err != nil {
		me.Log().Warn("failure of a sandbox cannot be recorded", "sandbox", s.id, "err", err)
	}
}

// gone records that the provider does not know the sandbox any more.
func (s *sandbox) gone(ctx context.Context, from ...messages.SandboxStatus) error {
	return errors.Join(s.failure("attach", sandboxes.ErrNotFound), s.move(ctx, messages.SandboxUnavail, nil, from...))
}

// reach opens a connection, waking the sandbox if need be.
func (s *sandbox) reach(me *Self) {
	s.begin(me, &operation{reaching: true}, nil, Reply{}, func(ctx context.Context) (any, sandboxes.Sandbox, error) {
		was := s.record().Status
		conn, err := s.attempt(ctx, was != messages.SandboxOnline)
		if retriable(ctx, err) {
			conn, err = s.freshAttempt(ctx, was != messages.SandboxOnline)
		}
		switch {
		case err == nil && was == messages.SandboxOnline:
			return nil, conn, nil
		case err == nil:
			if err = s.move(ctx, messages.SandboxOnline, nil, canMount...); err != nil {
				s.disconnect(me, conn, nil)
				return nil, nil, err
			}
			return nil, conn, nil
		case errors.Is(err, sandboxes.ErrNotFound):
			return nil, nil, s.gone(ctx, canMount...)
		case retriable(ctx, err):
			s.fault(me, cleaned(s.clean, err), canMount...)
		}
		return nil, nil, s.failure("attach", err)
	})
}

// retriable tells whether it is worth another try: not when the sandbox is
// gone, when the configuration is refused, or when nobody waits any more.
func retriable(ctx context.Context, err error) bool {
	var config *sandboxes.ConfigError
	return err != nil && ctx.Err() == nil && !errors.Is(err, sandboxes.ErrNotFound) && !errors.As(err, &config)
}

func (s *sandbox) attempt(ctx context.Context, wake bool) (sandboxes.Sandbox, error) {
	rec := s.record()
	if w, ok := s.driver.(sandboxes.Waker); ok && wake {
		// A process that ends behind the wake must not leave it running unseen.
		err := s.move(ctx, rec.Status, func(r *messages.SandboxRecord) {
			r.Waking, r.Failure, r.UpdatedAt = true, rec.Failure, rec.UpdatedAt
		}, rec.Status)
		if err != nil {
			return nil, err
		}
		_, err = insist(ctx, reachLimit, func(ctx context.Context) (any, error) { return nil, w.Wake(ctx, s.spec(rec), resourceOf(rec)) }, nil)
		if err != nil {
			return nil, err
		}
	}
	return insist(ctx, reachLimit, func(ctx context.Context) (sandboxes.Sandbox, error) {
		return s.driver.Attach(ctx, s.spec(rec), resourceOf(rec))
	}, func(conn sandboxes.Sandbox) {
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		defer cancel()
		_ = conn.Close(ctx) // it came too late for anybody
	})
}

// freshAttempt looks before it tries again: a sandbox that was online by the
// last observation may have been stopped by somebody else.
func (s *sandbox) freshAttempt(ctx context.Context, wake bool) (sandboxes.Sandbox, error) {
	if _, ok := s.driver.(sandboxes.Inspector); ok {
		st, err := s.inspect(ctx)
		if err != nil {
			return nil, err
		}
		wake = st != messages.SandboxOnline
	}
	return s.attempt(ctx, wake)
}

func (s *sandbox) inspect(ctx context.Context) (messages.SandboxStatus, error) {
	return inspect(ctx, s.driver, s.spec(s.record()), resourceOf(s.record()))
}

// inspect looks at a sandbox. What the driver should not answer is a fault.
func inspect(ctx context.Context, d sandboxes.Driver, spec sandboxes.Spec, r sandboxes.Resource) (messages.SandboxStatus, error) {
	i, ok := d.(sandboxes.Inspector)
	if !ok {
		return "", errors.New("the driver cannot look at its sandboxes")
	}
	st, err := insist(ctx, lookLimit, func(ctx context.Context) (messages.SandboxStatus, error) { return i.Inspect(ctx, spec, r) }, nil)
	if err == nil && !slices.Contains(canMount, st) {
		st = messages.SandboxFaulted
	}
	return st, err
}

// letGo closes the connection.
func (s *sandbox) letGo(me *Self) {
	conn, old := s.take()
	s.begin(me, &operation{}, nil, Reply{}, func(context.Context) (any, sandboxes.Sandbox, error) {
		s.disconnect(me, conn, old)
		return nil, nil, nil
	})
}

// stop takes the sandbox offline.
func (s *sandbox) stop(me *Self, m stopBox) {
	rec, driver := s.record(), s.record().Driver
	stopper, can := s.driver.(sandboxes.Stopper)
	if rec.Ownership == messages.SandboxExternal || !can {
		me.Answer(nil, &messages.SandboxUnsupported{ID: s.id, Driver: driver, Operation: "stop"})
		return
	}
	if n := s.shelf.count(s.id); n > 0 && !m.force && s.status() != messages.SandboxSuspending {
		me.Answer(nil, &messages.SandboxBusy{ID: s.id, RefCount: n})
		return
	}
	if s.op != nil {
		if s.op.doing != "" && !m.force {
			me.Answer(nil, s.conflict(s.op.doing, canStop))
			return
		}
		if m.force && s.op.doing != messages.SandboxSuspending {
			s.op.cancel()
		}
		s.held = append(s.held, heldMessage{m, me.TakeReply()})
		return
	}
	switch {
	case rec.Status == messages.SandboxOffline:
		me.Answer(nil, nil)
		return
	case rec.Status == messages.SandboxRemovedState:
		me.Answer(nil, s.removed())
		return
	case !slices.Contains(canStop, rec.Status):
		me.Answer(nil, s.conflict(rec.Status, canStop))
		return
	}
	conn, old := s.take()
	reply := me.TakeReply()
	s.begin(me, &operation{doing: messages.SandboxSuspending}, m.ctx, reply, func(ctx context.Context) (any, sandboxes.Sandbox, error) {
		if conn != nil {
			s.disconnect(me, conn, old)
		}
		if err := s.move(ctx, messages.SandboxSuspending, nil, canStop...); err != nil {
			return nil, nil, err
		}
		var err error
		if rec.ResourceID != "" || rec.Extra != nil { // otherwise it was never made
			_, err = insist(ctx, stopLimit, func(ctx context.Context) (any, error) {
				return nil, stopper.Stop(ctx, s.spec(rec), resourceOf(rec))
			}, nil)
		}
		switch {
		case err == nil:
			return nil, nil, s.move(ctx, messages.SandboxOffline, nil, messages.SandboxSuspending)
		case errors.Is(err, sandboxes.ErrNotFound):
			return nil, nil, s.gone(ctx, messages.SandboxSuspending)
		}
		s.fault(me, cleaned(s.clean, err), messages.SandboxSuspending)
		return nil, nil, s.failure("stop", err)
	})
}

// destroy removes a stopped sandbox.
func (s *sandbox) destroy(me *Self, m destroyBox) {
	rec := s.record()
	destroyer, can := s.driver.(sandboxes.Destroyer)
	if rec.Ownership == messages.SandboxExternal || !can {
		me.Answer(nil, &messages.SandboxUnsupported{ID: s.id, Driver: rec.Driver, Operation: "destroy"})
		return
	}
	if s.op != nil && s.op.doing == "" && !s.op.reaching {
		s.held = append(s.held, heldMessage{m, me.TakeReply()})
		return
	}
	switch st := s.status(); {
	case st == messages.SandboxProvisioning || st == messages.SandboxSuspending || st == messages.SandboxRemoving:
		me.Answer(nil, s.conflict(st, canDestroy))
		return
	case st == messages.SandboxRemovedState:
		me.Answer(nil, s.removed())
		return
	case s.op != nil || !slices.Contains(canDestroy, st):
		me.Answer(nil, &messages.SandboxMustBeStopped{ID: s.id, Status: st})
		return
	}
	reply := me.TakeReply()
	s.begin(me, &operation{doing: messages.SandboxRemoving}, m.ctx, reply, func(ctx context.Context) (any, sandboxes.Sandbox, error) {
		if err := s.move(ctx, messages.SandboxRemoving, nil, canDestroy...); err != nil {
			return nil, nil, err
		}
		var err error
		if rec.ResourceID != "" || rec.Extra != nil {
			_, err = insist(ctx, stopLimit, func(ctx context.Context) (any, error) {
				return nil, destroyer.Destroy(ctx, s.spec(rec), resourceOf(rec))
			}, nil)
		}
		if err != nil && !errors.Is(err, sandboxes.ErrNotFound) {
			why := cleaned(s.clean, err)
			back := s.move(ctx, rec.Status, func(r *messages.SandboxRecord) { r.Failure = &why }, messages.SandboxRemoving)
			return nil, nil, errors.Join(s.failure("destroy", err), back)
		}
		return nil, nil, s.move(ctx, messages.SandboxRemovedState, nil, messages.SandboxRemoving)
	})
}

// look observes the sandbox anew: for one that somebody else made, that may be
// there again after its provider did not know it.
func (s *sandbox) look(me *Self, m lookAt) {
	if s.op != nil {
		s.held = append(s.held, heldMessage{m, me.TakeReply()})
		return
	}
	s.lookup.Store(&m.lookup)
	reply := me.TakeReply()
	s.begin(me, &operation{}, m.ctx, reply, func(ctx context.Context) (any, sandboxes.Sandbox, error) {
		rec := s.record()
		st, err := rec.Status, error(nil)
		switch d := s.driver.(type) {
		case sandboxes.Registrar:
			var have sandboxes.Resource
			have, err = insist(ctx, reachLimit, func(ctx context.Context) (sandboxes.Resource, error) {
				return d.Resolve(ctx, s.spec(rec), rec.ResourceID)
			}, nil)
			st = observed(have.Status)
		case sandboxes.Inspector:
			st, err = s.inspect(ctx)
		}
		if errors.Is(err, sandboxes.ErrNotFound) {
			return nil, nil, s.gone(ctx, rec.Status)
		}
		if err != nil {
			return nil, nil, s.failure("register", err)
		}
		if err := s.move(ctx, st, nil, rec.Status); err != nil {
			return nil, nil, err
		}
		return s.record().Info(s.shelf.count(s.id)), nil, nil
	})
}

// observed is what a driver says a sandbox is; one that says nothing has found
// it.
func observed(st messages.SandboxStatus) messages.SandboxStatus {
	switch {
	case st == "":
		return messages.SandboxOnline
	case !slices.Contains(canMount, st):
		return messages.SandboxFaulted
	}
	return st
}
