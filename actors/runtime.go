package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"codework/messages"
)

// This file is the only one that touches protoactor-go. It offers what is safe
// of it: spawn, tell, ask with a reply channel, children that restart within a
// budget, work beside an actor whose late results are dropped, timers, and a
// stop that can be waited for.

// Actor handles one message at a time. Receive must not wait for anything.
// It gets Started first, after every restart too, and Stopped last.
type Actor interface {
	Receive(me *Self, m any)
}

// Started is the first message of every incarnation.
type Started struct{}

// Stopped is the last message of every incarnation, also before a restart.
type Stopped struct{}

// Ended tells a parent that one of its children has stopped for good: it was
// asked to, or its restarts ran over the budget.
type Ended struct{ Child *Ref }

// errStopped answers those who asked an actor that has stopped.
var errStopped = &messages.Refused{Name: messages.RefusedShutdown, Message: "stopped before it could answer"}

// The budget of restarts of one child, which recovers with time.
const (
	restarts       = 10
	restartsWithin = time.Minute
)

// Runtime is the actor system of the process.
type Runtime struct {
	system *actor.ActorSystem
	log    *slog.Logger
	failed func() // called when an actor fails on a message; nil is nobody
	crew   *crew

	mu   sync.Mutex // guards live
	live map[*Ref]bool
}

// NewRuntime makes an actor system that logs to log. Shutdown ends it.
func NewRuntime(log *slog.Logger) *Runtime {
	system := actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return log }),
	)
	narrow(system.ProcessRegistry)
	return &Runtime{system: system, log: log, crew: newCrew(), live: map[*Ref]bool{}}
}

// registryBuckets is how many tables of 32 parts each the actors' names are spread
// over: many more parts than there are processors, which is all it takes.
const registryBuckets = 2

// narrow gives an actor system's registry fewer tables. It comes with 1,024, which
// are 2.7 MB before there is an actor; and each part that ever held a name keeps
// a few hundred bytes, so that thousands of sessions that came and went would
// leave as many pages of the heap behind that cannot be given back.
func narrow(names *actor.ProcessRegistryValue) {
	wide := names.LocalPIDs.LocalPIDs
	known := map[string]actor.Process{}
	for _, table := range wide {
		// Items and Clear would start 32 goroutines for each table.
		table.IterCb(func(id string, process any) { known[id] = process.(actor.Process) })
	}
	for id := range known {
		names.LocalPIDs.GetBucket(id).Remove(id)
	}
	names.LocalPIDs.LocalPIDs = slices.Clone(wide[:registryBuckets])
	for id, process := range known {
		names.Add(process, id)
	}
}

// Shutdown releases what the system itself holds. The actors must have been
// stopped before; calling it twice panics.
func (r *Runtime) Shutdown() {
	r.system.Shutdown()
	r.crew.close()
}

// Spawn starts an actor that nobody supervises but the runtime.
func (r *Runtime) Spawn(make func() Actor) *Ref {
	return r.spawn(r.system.Root.Spawn, make)
}

func (r *Runtime) spawn(spawn func(*actor.Props) *actor.PID, make func() Actor) *Ref {
	ref := newRef(r.system)
	r.add(ref)
	props := actor.PropsFromProducer(func() actor.Actor { return newCell(r, ref, make()) },
		actor.WithMailbox(func() actor.Mailbox {
			m := actor.Unbounded()()
			var box mailbox = m
			ref.vitals.mailbox.Store(&box)
			return m
		}),
		actor.WithDispatcher(r.crew),
		actor.WithSupervisor(actor.NewOneForOneStrategy(restarts, restartsWithin, actor.DefaultDecider)))
	ref.pid.Store(spawn(props))
	return ref
}

// Ref is an actor's address. It stays the same over restarts.
type Ref struct {
	system *actor.ActorSystem
	// pid is set by Spawn after the actor may already have run.
	pid  atomic.Pointer[actor.PID]
	done chan struct{}

	vitals vitals

	// mu guards mail and ended: letters on their way to the actor. What it
	// does not live to read is told to the sender.
	mu    sync.Mutex
	mail  map[*letter]struct{}
	ended bool
}

func newRef(system *actor.ActorSystem) *Ref {
	return &Ref{system: system, done: make(chan struct{}), mail: map[*letter]struct{}{}}
}

// Tell puts m into the actor's mailbox. It never blocks; an actor that has
// stopped does not get it.
func (r *Ref) Tell(m any) {
	if pid := r.pid.Load(); pid != nil && !r.gone() {
		r.system.Root.Send(pid, m)
	}
}

// Stop lets the actor finish what its mailbox holds and ends it. Done tells
// when.
func (r *Ref) Stop() {
	if !r.gone() {
		r.system.Root.Poison(r.pid.Load())
	}
}

// gone tells whether the actor has ended: what is sent to it then would only
// be counted as a dead letter.
func (r *Ref) gone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// TellOr is Tell for a message whose sender waits for something to come of it:
// lost is called, once and from any goroutine, if the actor stops for good
// before it gets to the message. It must not block.
func (r *Ref) TellOr(m any, lost func()) { r.post(&letter{m: m, lost: lost}) }

// Done is closed when the actor and all it started have ended.
func (r *Ref) Done() <-chan struct{} { return r.done }

// letter is a message whose loss is told.
type letter struct {
	m     any
	reply Reply
	lost  func()
	to    *Self // the only incarnation that may read it; nil is any
}

func (r *Ref) post(l *letter) {
	r.mu.Lock()
	ended := r.ended
	if !ended {
		r.mail[l] = struct{}{}
	}
	r.mu.Unlock()
	if ended {
		l.lost()
		return
	}
	r.Tell(l)
}

// received tells that the actor has got to l.
func (r *Ref) received(l *letter) {
	r.mu.Lock()
	delete(r.mail, l)
	r.mu.Unlock()
}

// end tells the senders of what is left in the mailbox, and then everybody.
func (r *Ref) end() {
	r.mu.Lock()
	r.ended = true
	left := r.mail
	r.mail = nil
	r.mu.Unlock()
	for l := range left {
		l.lost()
	}
	close(r.done)
}

// pass hands on a message and the duty to answer it.
func (r *Ref) pass(m any, reply Reply) {
	if reply.c == nil {
		r.Tell(m)
		return
	}
	reply.release()
	reply.owner = nil
	r.post(&letter{m: m, reply: reply, lost: func() { reply.Send(nil, errStopped) }})
}

type answer struct {
	value any
	err   error
}

// Reply answers one asker. The zero Reply answers nobody. Only the first
// answer counts.
type Reply struct {
	c     chan answer
	owner *Self  // who promised the answer, until it is given
	given func() // told once, behind the first answer; nil is nobody
}

// noting is the same right, with told called, once and from any goroutine, when
// the answer is given. It must not block. Nobody need have asked.
func (r Reply) noting(told func()) Reply {
	if r.c == nil {
		r.c = make(chan answer, 1)
	}
	r.given = sync.OnceFunc(told)
	return r
}

// Send gives the answer; it never blocks.
func (r Reply) Send(value any, err error) {
	if r.c == nil {
		return
	}
	r.release()
	select {
	case r.c <- answer{value, err}:
	default:
	}
	if r.given != nil {
		r.given()
	}
}

// release frees the actor that promised the answer from its promise.
func (r Reply) release() {
	if r.owner == nil {
		return
	}
	r.owner.mu.Lock()
	delete(r.owner.owed, r.c)
	r.owner.mu.Unlock()
}

// Ask sends m and waits for the answer, for ctx, or for the actor's end.
func Ask[T any](ctx context.Context, r *Ref, m any) (T, error) {
	var zero T
	v, err := r.request(m)(ctx)
	if err != nil {
		return zero, err
	}
	t, ok := v.(T)
	if !ok && v != nil {
		return zero, fmt.Errorf("unexpected answer %T", v)
	}
	return t, nil
}

// request sends m now, in order with other messages, and returns how to wait
// for the answer.
func (r *Ref) request(m any) func(context.Context) (any, error) {
	reply := Reply{c: make(chan answer, 1)}
	r.pass(m, reply)
	return func(ctx context.Context) (v any, err error) {
		select {
		case a := <-reply.c:
			return a.value, a.err
		case <-ctx.Done():
			err = ctx.Err()
		case <-r.Done():
			err = errStopped
		}
		select {
		case a := <-reply.c: // given in time counts, whatever else came
			return a.value, a.err
		default:
			return nil, err
		}
	}
}

// Self is an actor's handle on itself, valid for one incarnation.
type Self struct {
	rt    *Runtime
	ref   *Ref
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
	reply Reply
	taken bool
	spawn func(*actor.Props) *actor.PID

	// mu guards owed: answers promised but not yet given, failed when the
	// incarnation ends.
	mu   sync.Mutex
	owed map[chan answer]Reply

	children map[string]*Ref // by protoactor id
}

// Ref is the actor's address.
func (me *Self) Ref() *Ref { return me.ref }

// Context ends when this incarnation does.
func (me *Self) Context() context.Context { return me.ctx }

// Log is the logger of the actor system.
func (me *Self) Log() *slog.Logger { return me.rt.log }

// Answer replies to the current message, if somebody asked.
func (me *Self) Answer(value any, err error) { me.TakeReply().Send(value, err) }

// TakeReply keeps the right to answer the current message later. If this
// incarnation ends first, the asker is told.
func (me *Self) TakeReply() Reply {
	r := me.reply
	me.reply, me.taken = Reply{}, true
	if r.c == nil {
		return r
	}
	r.owner = me
	me.mu.Lock()
	me.owed[r.c] = r
	me.mu.Unlock()
	return r
}

// Forward hands the current message, and the duty to answer it, to another
// actor.
func (me *Self) Forward(to *Ref, m any) {
	r := me.reply
	me.reply, me.taken = Reply{}, true
	to.pass(m, r)
}

// Spawn starts a supervised child.
func (me *Self) Spawn(make func() Actor) *Ref {
	ref := me.rt.spawn(me.spawn, make)
	me.children[ref.pid.Load().Id] = ref
	return ref
}

// stamped is a message to one incarnation; the next one never sees it.
type stamped struct {
	to *Self
	m  any
}

// Later returns a function that tells this incarnation something: for work
// that runs beside the actor.
func (me *Self) Later() func(m any) {
	return func(m any) { me.ref.Tell(stamped{me, m}) }
}

// LaterOr is Later for a message that holds something: lost is called, once
// and from any goroutine, if this incarnation ends before it gets to it. It
// must not block.
func (me *Self) LaterOr(m any, lost func()) { me.ref.post(&letter{m: m, lost: lost, to: me}) }

// Go runs f beside the actor and tells the actor what it returned, unless
// that is nil or the incarnation has ended. The context ends with the
// incarnation, which waits for f.
func (me *Self) Go(f func(ctx context.Context) any) {
	me.wg.Add(1)
	me.ref.vitals.beside.Add(1)
	go func() {
		defer me.wg.Done()
		defer me.ref.vitals.beside.Add(-1)
		defer func() {
			if p := recover(); p != nil {
				me.rt.log.Error("panic beside an actor", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				me.Later()(crashed{fmt.Errorf("panic: %v", p)})
			}
		}()
		if m := f(me.ctx); m != nil {
			me.Later()(m)
		}
	}()
}

// crashed makes the actor fail for what failed beside it.
type crashed struct{ err error }

// After tells the actor m after d, unless it is stopped first or the
// incarnation ends.
func (me *Self) After(d time.Duration, m any) (stop func()) {
	a := &alarm{}
	a.letter.Store(&stamped{me, m})
	t := time.AfterFunc(d, a.rings)
	return func() {
		t.Stop()
		a.letter.Store(nil)
	}
}

// alarm is what a timer holds. A timer that was stopped may stay in the
// runtime's table until others are due: without the letter it keeps no actor in
// memory meanwhile.
type alarm struct{ letter atomic.Pointer[stamped] }

func (a *alarm) rings() {
	if l := a.letter.Swap(nil); l != nil {
		l.to.ref.Tell(*l)
	}
}

// cell is one incarnation of an actor inside protoactor.
type cell struct {
	me      *Self
	behave  Actor
	running bool
}

func newCell(rt *Runtime, ref *Ref, a Actor) *cell {
	ctx, stop := context.WithCancel(context.Background())
	ref.vitals.begin(a)
	return &cell{behave: a, me: &Self{rt: rt, ref: ref, ctx: ctx, stop: stop, owed: map[chan answer]Reply{}, children: map[string]*Ref{}}}
}

// Receive is protoactor's entrance.
func (c *cell) Receive(pc actor.Context) {
	switch m := pc.Message().(type) {
	case *actor.Started:
		c.me.ref.pid.CompareAndSwap(nil, pc.Self())
		c.me.spawn = func(p *actor.Props) *actor.PID { return pc.Spawn(p) }
		c.running = true
		c.handle(Started{}, Reply{})
	case *actor.Restarting:
		c.end()
	case *actor.Stopping:
		c.end()
	case *actor.Stopped:
		c.me.rt.remove(c.me.ref)
		c.me.ref.end()
	case *actor.Terminated:
		forget(pc.Children())
		if child, ok := c.me.children[m.Who.Id]; ok && c.running {
			delete(c.me.children, m.Who.Id)
			c.handle(Ended{child}, Reply{})
		}
	case actor.SystemMessage, actor.AutoReceiveMessage:
	case *letter:
		if !c.running {
			return // waits for its children to end; end tells the sender
		}
		c.me.ref.received(m)
		if m.to != nil && m.to != c.me {
			m.lost()
			return
		}
		c.handle(m.m, m.reply)
	case stamped:
		if m.to == c.me && c.running {
			c.handle(m.m, Reply{})
		}
	default:
		if c.running {
			c.handle(m, Reply{})
		}
	}
}

// forget clears the place behind a list of children that has become shorter by
// one: as the library leaves it, children that have ended stay in memory, with all
// they had, until as many live again.
func forget(children []*actor.PID) {
	if n := len(children); n < cap(children) {
		children[:n+1][n] = nil
	}
}

// handle runs the behaviour. A panic is answered, logged with its stack and
// passed on, for the supervisor to restart the actor.
func (c *cell) handle(m any, reply Reply) {
	me := c.me
	me.reply, me.taken = reply, false
	me.ref.vitals.enter(m)
	defer func() {
		me.ref.vitals.leave()
		p := recover()
		r := me.reply
		me.reply = Reply{}
		if p != nil {
			if me.rt.failed != nil {
				me.rt.failed()
			}
			me.rt.log.Error("actor failed", "actor", fmt.Sprintf("%T", c.behave), "message", fmt.Sprintf("%T", m),
				"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			r.Send(nil, &messages.Refused{Name: messages.RefusedInternal, Message: "internal error; the log says more"})
			panic(errors.New("actor failed"))
		}
		if r.c != nil && !me.taken {
			r.Send(nil, nil)
		}
	}()
	if crash, ok := m.(crashed); ok {
		panic(crash.err)
	}
	c.behave.Receive(me, m)
}

// end finishes the incarnation: whatever it started has ended when it
// returns. A panic here would revive the actor, so it is only logged.
func (c *cell) end() {
	if !c.running {
		return
	}
	c.running = false
	func() {
		defer func() {
			if p := recover(); p != nil {
				c.me.rt.log.Error("actor failed while stopping", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
		}()
		c.me.stop()
		c.behave.Receive(c.me, Stopped{})
	}()
	c.me.stop()
	c.me.wg.Wait()
	c.me.mu.Lock()
	owed := c.me.owed
	c.me.owed = map[chan answer]Reply{}
	c.me.mu.Unlock()
	for _, r := range owed {
		r.Send(nil, errStopped)
	}
}

// generation numbers turns and executions over the whole process, so that no
// late answer is ever taken for a current one.
var generation atomic.Uint64

func nextGeneration() uint64 { return generation.Add(1) }
