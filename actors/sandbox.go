package actors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"codework/messages"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// sandbox is the actor of one sandbox: its connection, its mounts, what runs in
// them, and its way through the states of a life. When it ends, every call that
// runs there ends as aborted.
//
// What takes time (making, reaching, stopping, removing) is one operation at a
// time, beside the actor. Who needs the sandbox meanwhile is refused when the
// operation is one that others see, and waits for it otherwise.
type sandbox struct {
	row
	driver sandboxes.Driver // nil: the host, which is always reached
	server string
	idle   time.Duration // after which a connection that nobody uses is closed
	clean  *cleaner
	lookup *atomic.Pointer[credentials.Lookup] // of who came last

	conn    sandboxes.Sandbox
	number  uint64 // of the connection: what belongs to an older one is dropped
	unwatch context.CancelFunc
	rest    func()                   // stops the timer of the connection
	mounts  map[string][]*mounted    // by session; the last one is current
	leaving map[string]chan struct{} // closed when a session's unmounted mounts are

	op      *operation
	waiting []wanted // mounts that wait for a connection
	held    []heldMessage
}

type mounted struct {
	options sandboxes.MountOptions
	mount   sandboxes.Mount
	used    int // how often somebody was given it
}

// operation is the work on a sandbox that is under way.
type operation struct {
	// doing is what others see meanwhile: provisioning, suspending, removing;
	// "" is nothing.
	doing    messages.SandboxStatus
	reaching bool
	cancel   context.CancelFunc
}

type (
	// mountFor asks for a session's mount; the answer is a place. A session
	// keeps its mount while its options stay the same. Where they change, the
	// old one stays until unmount, with its background jobs.
	mountFor struct {
		options sandboxes.MountOptions
		lookup  credentials.Lookup
	}
	// unmount ends a session's mounts and what they left running.
	unmount struct{ session string }
	// restMounts closes those mounts of a session that is unloaded of which
	// nothing would be missed: its next exchange gets new ones.
	restMounts struct{ session string }
	restful    struct { // the mounts that nothing hangs on, and how often each was given out
		session string
		mounts  map[*mounted]int
	}
	// leftMount is answered when what was unmounted of a session has ended.
	leftMount struct{ session string }
	mountLeft struct {
		session string
		done    chan struct{}
	}
	mountMade struct {
		want   wanted
		number uint64
		mount  sandboxes.Mount
		err    error
	}
	toolRun struct {
		ctx     context.Context
		options sandboxes.MountOptions
		call    func(context.Context, sandboxes.Mount)
		done    func()
	}
	released struct{} // nobody may be using the sandbox any more
	idleOver struct{ number uint64 }
	connLost struct{ number uint64 }
	opDone   struct {
		op    *operation
		reply Reply
		value any
		conn  sandboxes.Sandbox
		err   error
	}
)

// wanted is a mount that somebody waits for: an asker, or a tool call.
type wanted struct {
	options sandboxes.MountOptions
	reply   Reply
	run     *toolRun
	again   bool // it was made once, on a connection that broke meanwhile
}

func newSandbox(s sandbox) func() Actor {
	clean, lookup := &cleaner{}, &atomic.Pointer[credentials.Lookup]{}
	own := lookupIn(nil)
	lookup.Store(&own)
	return func() Actor {
		s := s
		s.clean, s.mounts, s.lookup = clean, map[string][]*mounted{}, lookup
		return &s
	}
}

func (s *sandbox) Receive(me *Self, m any) {
	switch m := m.(type) {
	case opDone:
		s.onDone(me, m)
	case mountMade:
		s.onMounted(me, m)
	case idleOver:
		if m.number == s.number && s.op == nil && s.conn != nil && s.shelf.count(s.id) == 0 && !s.keeps() {
			s.letGo(me)
		}
	case connLost:
		if m.number == s.number {
			me.Log().Info("connection to a sandbox is lost; its next use opens another one", "sandbox", s.id)
			s.drop(me)
		}
	case Stopped:
		s.end(me)
	default:
		s.handle(me, m)
	}
}

func (s *sandbox) handle(me *Self, m any) {
	switch m := m.(type) {
	case mountFor:
		if m.lookup != nil {
			s.lookup.Store(&m.lookup)
		}
		s.want(me, wanted{options: m.options, reply: me.TakeReply()})
	case toolRun:
		s.want(me, wanted{options: m.options, run: &m})
	case unmount:
		old := s.mounts[m.session]
		delete(s.mounts, m.session)
		if s.leaving == nil {
			s.leaving = map[string]chan struct{}{}
		}
		before, done := s.leaving[m.session], make(chan struct{})
		s.leaving[m.session] = done
		reply := me.TakeReply()
		me.Go(func(context.Context) any {
			closeMounts(me, old)
			if before != nil {
				<-before
			}
			close(done)
			reply.Send(nil, nil)
			return mountLeft{m.session, done}
		})
	case restMounts:
		s.lookForRest(me, m.session)
	case restful:
		s.closeRestful(me, m)
	case mountLeft:
		if s.leaving[m.session] == m.done {
			delete(s.leaving, m.session)
		}
	case leftMount:
		done := s.leaving[m.session]
		if done == nil {
			me.Answer(nil, nil)
			return
		}
		reply := me.TakeReply()
		me.Go(func(context.Context) any {
			<-done
			reply.Send(nil, nil)
			return nil
		})
	case released:
		s.startRest(me)
	case makeBox:
		s.make(me, m)
	case stopBox:
		s.stop(me, m)
	case destroyBox:
		s.destroy(me, m)
	case lookAt:
		s.look(me, m)
	}
}

// want gives somebody a mount, which may need a connection first.
func (s *sandbox) want(me *Self, w wanted) {
	if have := s.mounts[w.options.Session]; len(have) > 0 {
		if last := have[len(have)-1]; reflect.DeepEqual(last.options, w.options) {
			last.used++
			s.deliver(me, w, last.mount, nil)
			return
		}
	}
	if s.conn == nil {
		switch {
		case s.op != nil && s.op.reaching:
			s.waiting = append(s.waiting, w)
		case s.op != nil && s.op.doing == "":
			s.hold(me, w)
		default:
			if err := s.mountable(); err != nil {
				s.deliver(me, w, nil, err)
				return
			}
			s.waiting = append(s.waiting, w)
			s.reach(me)
		}
		return
	}
	conn, number, host := s.conn, s.number, s.driver == nil
	me.Go(func(ctx context.Context) any {
		var mount sandboxes.Mount
		var err error
		if host {
			mount, err = conn.Mount(ctx, w.options)
		} else {
			mount, err = insist(ctx, mountLimit, func(ctx context.Context) (sandboxes.Mount, error) { return conn.Mount(ctx, w.options) },
				func(m sandboxes.Mount) { closeMounts(me, []*mounted{{options: w.options, mount: m}}) })
		}
		made := mountMade{w, number, mount, err}
		me.LaterOr(made, func() {
			if err == nil {
				go closeMounts(me, []*mounted{{options: w.options, mount: mount}})
			}
			w.lost()
		})
		return nil
	})
}

// hold keeps a wanted mount until the operation is over.
func (s *sandbox) hold(me *Self, w wanted) {
	if w.run != nil {
		s.held = append(s.held, heldMessage{m: *w.run})
		return
	}
	s.held = append(s.held, heldMessage{mountFor{options: w.options}, w.reply})
}

// lost ends a tool call whose sandbox did not live to begin it.
func (w wanted) lost() {
	if w.run != nil {
		w.run.done()
	}
}

// deliver hands a mount to who wanted it.
func (s *sandbox) deliver(me *Self, w wanted, m sandboxes.Mount, err error) {
	if w.run == nil {
		w.reply.Send(place{me.Ref(), w.options, m}, err)
		return
	}
	if err != nil {
		m = noMount{w.options.Dir, err}
	}
	s.run(me, *w.run, m)
}

func (s *sandbox) onMounted(me *Self, m mountMade) {
	w := m.want
	if m.number != s.number || errors.Is(m.err, sandboxes.ErrClosed) && s.driver != nil {
		// The connection broke under it.
		if m.err == nil {
			s.closeBeside(me, nil, []*mounted{{options: w.options, mount: m.mount}})
		}
		if m.number == s.number {
			s.drop(me)
		}
		if !w.again {
			w.again = true
			s.want(me, w)
			return
		}
		m.err = sandboxes.ErrClosed
	}
	if m.err != nil {
		s.deliver(me, w, nil, s.mountError(w.options.Dir, m.err))
		return
	}
	mount := m.mount
	if s.driver != nil {
		mount = &watched{Mount: mount, clean: s.clean}
	}
	s.mounts[w.options.Session] = append(s.mounts[w.options.Session], &mounted{options: w.options, mount: mount})
	s.deliver(me, w, mount, nil)
}

// mountError is why a directory of the sandbox cannot be worked in.
func (s *sandbox) mountError(dir string, err error) error {
	if s.driver == nil {
		return err
	}
	var missing *messages.DirectoryNotFound
	var odd *messages.NotDirectory
	switch {
	case errors.As(err, &missing):
		return &messages.DirectoryNotFound{Directory: missing.Directory, SandboxID: s.id}
	case errors.As(err, &odd):
		return &messages.NotDirectory{Directory: odd.Directory, SandboxID: s.id}
	case errors.Is(err, fs.ErrNotExist):
		return &messages.DirectoryNotFound{Directory: dir, SandboxID: s.id}
	case errors.Is(err, sandboxes.ErrNotDirectory):
		return &messages.NotDirectory{Directory: dir, SandboxID: s.id}
	}
	return s.failure("mount", err)
}

func closeMounts(me *Self, old []*mounted) {
	for _, m := range old {
		if err := m.mount.Close(); err != nil {
			me.Log().Warn("mount did not close cleanly", "session", m.options.Session, "err", err)
		}
	}
}

// run runs a tool call beside the actor; the call's context ends with the
// caller's and with the sandbox.
func (s *sandbox) run(me *Self, r toolRun, m sandboxes.Mount) {
	me.Go(func(actorEnds context.Context) any {
		defer r.done()
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		defer context.AfterFunc(actorEnds, cancel)()
		r.call(ctx, m)
		return nil
	})
}

// connected begins to use a connection.
func (s *sandbox) connected(me *Self, conn sandboxes.Sandbox) {
	s.conn, s.number = conn, nextGeneration()
	lost, ok := conn.(sandboxes.Lost)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(me.Context())
	s.unwatch = cancel
	number := s.number
	me.Go(func(context.Context) any {
		select {
		case <-lost.Lost():
			return connLost{number}
		case <-ctx.Done():
			return nil
		}
	})
}

// take takes the connection and its mounts away from the actor.
func (s *sandbox) take() (sandboxes.Sandbox, []*mounted) {
	conn := s.conn
	var old []*mounted
	for _, m := range s.mounts {
		old = append(old, m...)
	}
	if s.unwatch != nil {
		s.unwatch()
	}
	s.conn, s.number, s.unwatch, s.mounts = nil, 0, nil, map[string][]*mounted{}
	return conn, old
}

// drop forgets a connection that broke.
func (s *sandbox) drop(me *Self) {
	conn, old := s.take()
	s.closeBeside(me, conn, old)
}

func (s *sandbox) closeBeside(me *Self, conn sandboxes.Sandbox, old []*mounted) {
	me.Go(func(context.Context) any {
		s.disconnect(me, conn, old)
		return nil
	})
}

// disconnect closes mounts and their connection, within a bound.
func (s *sandbox) disconnect(me *Self, conn sandboxes.Sandbox, old []*mounted) {
	_, err := insist(context.Background(), closing, func(ctx context.Context) (any, error) {
		if conn == nil {
			closeMounts(me, old)
			return nil, nil
		}
		return nil, conn.Close(ctx) // and with it the mounts
	}, nil)
	if err != nil {
		me.Log().Warn("connection to a sandbox did not close cleanly", "sandbox", s.id, "err", s.clean.text(err.Error()))
	}
}

// keeps tells whether something that a session counts on hangs on the
// connection.
func (s *sandbox) keeps() bool {
	for _, mounts := range s.mounts {
		if slices.ContainsFunc(mounts, func(m *mounted) bool {
			w, ok := m.mount.(*watched)
			return ok && w.keeps()
		}) {
			return true
		}
	}
	return false
}

// lookForRest finds, beside the actor, which mounts of a session nothing hangs
// on.
func (s *sandbox) lookForRest(me *Self, session string) {
	found := restful{session, map[*mounted]int{}}
	for _, m := range s.mounts[session] {
		found.mounts[m] = m.used
	}
	if len(found.mounts) == 0 {
		return
	}
	me.Go(func(context.Context) any {
		maps.DeleteFunc(found.mounts, func(m *mounted, _ int) bool {
			k, ok := m.mount.(sandboxes.Keeper)
			return !ok || k.Keeps()
		})
		return found
	})
}

// closeRestful closes them, unless somebody was given one meanwhile.
func (s *sandbox) closeRestful(me *Self, r restful) {
	var stay, leave []*mounted
	for _, m := range s.mounts[r.session] {
		if used, rests := r.mounts[m]; rests && used == m.used {
			leave = append(leave, m)
		} else {
			stay = append(stay, m)
		}
	}
	if len(leave) == 0 {
		return
	}
	if s.mounts[r.session] = stay; len(stay) == 0 {
		delete(s.mounts, r.session)
	}
	s.closeBeside(me, nil, leave)
}

// startRest closes the connection to a sandbox far away that nobody has used
// for a while.
func (s *sandbox) startRest(me *Self) {
	if s.rest != nil {
		s.rest()
		s.rest = nil
	}
	if s.conn != nil && s.driver != nil && s.driver.Kind() == messages.KindRemote && s.shelf.count(s.id) == 0 {
		s.rest = me.After(s.idle, idleOver{s.number})
	}
}

// end lets go of everything. The host itself belongs to whoever made it.
func (s *sandbox) end(me *Self) {
	for _, w := range s.waiting {
		w.lost()
	}
	for _, h := range s.held {
		if run, ok := h.m.(toolRun); ok {
			run.done()
		}
	}
	conn, old := s.take()
	if s.driver == nil {
		closeMounts(me, old)
		return
	}
	if conn != nil {
		s.disconnect(me, conn, old)
	}
}

// place is a Workplace in a mount of a sandbox actor.
type place struct {
	ref     *Ref
	options sandboxes.MountOptions
	mount   sandboxes.Mount
}

func (p place) Do(ctx context.Context, call func(context.Context, sandboxes.Mount), done func()) {
	p.ref.TellOr(toolRun{ctx, p.options, call, done}, done)
}

// insist waits for a call of a driver, which should end soon after its context.
// One that does not is left alone; late gets what it still returns. A driver
// that panics has failed.
func insist[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error), late func(T)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer cancel()
		var r result
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("panic: %v", p)
			}
			done <- r
		}()
		r.value, r.err = f(ctx)
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	grace := time.NewTimer(closing)
	defer grace.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-grace.C:
	}
	go func() {
		if r := <-done; r.err == nil && late != nil {
			late(r.value)
		}
	}()
	var none T
	return none, fmt.Errorf("no answer: %w", ctx.Err())
}
