package actors

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"codework/internal/plugin"
	"codework/messages"
)

// A plugin that ends crashBudget times within crashesWithin is given up. A
// process that has answered a call starts the count anew: somebody may kill a
// good plugin as often as they like, and one that dies of every call answers
// none.
const (
	crashBudget   = 5
	crashesWithin = time.Minute
)

// pluginPace is how fast plugins are started again and put to rest.
type pluginPace struct {
	// first is when a plugin that has ended may be started again; the wait
	// doubles with each further end, up to longest.
	first, longest time.Duration
	// patience is how long whoever needs a plugin waits for its next start.
	patience time.Duration
	// rest is how long a plugin runs that nobody uses.
	rest time.Duration
}

var usualPace = pluginPace{first: 500 * time.Millisecond, longest: 30 * time.Second, patience: 5 * time.Second, rest: 10 * time.Minute}

// pluginProcess is the actor of one plugin: its process, and when that is
// started again. It is started when somebody needs it.
//
// Whoever uses a process keeps it until the end of an exchange: one that was
// replaced by a reload ends when the last exchange that uses it has.
type pluginProcess struct {
	pluginFor
	host    *plugin.Host
	pace    pluginPace
	publish func([]messages.Event)
	parent  *Ref

	current  *plugin.Instance
	starting bool
	waiting  []pluginUser
	uses     map[*plugin.Instance]int // leases, of processes that have ended too
	alive    map[*plugin.Instance]bool

	next    *plugin.Instance // of a reload: waits for the others
	again   Reply            // whoever reloads
	crashes []time.Time
	delay   time.Duration
	due     time.Time // not started again before
	timer   func()
	rest    func()
	last    error // why it does not run
	given   bool  // it ended too often: only a reload starts it again
	ran     bool  // it has run before
	// required tells that it was seen to have hooks or the like: sessions must
	// not go on without it.
	required bool
}

type pluginUser struct {
	ends  context.Context
	reply Reply
}

type (
	// usePlugin asks for the running process, which is the asker's until ends
	// ends. The answer is a *plugin.Instance; an error is a *plugin.Error.
	usePlugin struct{ ends context.Context }
	// startAgain starts a process beside the one that runs and is answered
	// with startedAgain; changeOver tells which of the two stays.
	startAgain   struct{}
	startedAgain struct{ runs bool }
	changeOver   struct{ keep bool }

	pluginUp struct {
		inst *plugin.Instance
		err  error
	}
	pluginNext struct {
		inst *plugin.Instance
		err  error
	}
	pluginDown struct {
		inst *plugin.Instance
		err  *plugin.Error
	}
	pluginReleased struct{ inst *plugin.Instance }
	restartDue     struct{}
	pluginIdle     struct{}
)

func newPlugin(h *plugin.Host, pace pluginPace, f pluginFor, publish func([]messages.Event), parent *Ref) func() Actor {
	return func() Actor {
		return &pluginProcess{pluginFor: f, host: h, pace: pace, publish: publish, parent: parent, uses: map[*plugin.Instance]int{}, alive: map[*plugin.Instance]bool{}}
	}
}

func (p *pluginProcess) Receive(me *Self, m any) {
	switch m := m.(type) {
	case usePlugin:
		p.use(me, pluginUser{m.ends, me.TakeReply()})
	case pluginUp:
		p.up(me, m)
	case pluginDown:
		p.down(me, m)
	case restartDue:
		p.timer = nil
		if p.current == nil && !p.starting && !p.given && len(p.waiting)+len(p.uses) > 0 {
			p.start(me)
		}
	case pluginReleased:
		if p.uses[m.inst]--; p.uses[m.inst] <= 0 {
			delete(p.uses, m.inst)
		}
		p.retire(me, m.inst)
	case pluginIdle:
		if len(p.uses) == 0 && len(p.waiting) == 0 && !p.given {
			p.parent.Tell(pluginRests{p.key, me.Ref()})
		}
	case startAgain:
		p.startAgain(me)
	case pluginNext:
		p.next = m.inst
		if m.inst != nil {
			p.watch(me, m.inst)
		}
		p.again.Send(startedAgain{m.err == nil}, m.err)
	case changeOver:
		p.changeOver(me, m.keep)
	case Stopped:
		p.end()
		return
	}
	me.Doing(p.doing(), "")
	if p.rest != nil {
		p.rest()
		p.rest = nil
	}
	if len(p.uses) == 0 {
		p.rest = me.After(p.pace.rest, pluginIdle{})
	}
}

// use answers with the process, now or when it runs.
func (p *pluginProcess) use(me *Self, u pluginUser) {
	switch {
	case p.current != nil && p.current.Alive():
		p.lease(me, u)
	case p.current != nil: // its end is about to be told
		p.waiting = append(p.waiting, u)
	case p.given:
		u.reply.Send(nil, p.last)
	case p.starting:
		p.waiting = append(p.waiting, u)
	default:
		wait := time.Until(p.due)
		if wait > p.pace.patience {
			u.reply.Send(nil, p.last)
			return
		}
		p.waiting = append(p.waiting, u)
		if wait <= 0 {
			p.start(me)
		} else if p.timer == nil {
			p.timer = me.After(wait, restartDue{})
		}
	}
}

func (p *pluginProcess) lease(me *Self, u pluginUser) {
	inst, tell := p.current, me.Later()
	p.uses[inst]++
	context.AfterFunc(u.ends, func() { tell(pluginReleased{inst}) })
	u.reply.Send(inst, nil)
}

// start starts the process, beside the actor.
func (p *pluginProcess) start(me *Self) {
	p.starting = true
	p.launch(me, func(i *plugin.Instance, err error) any { return pluginUp{i, err} })
}

func (p *pluginProcess) launch(me *Self, told func(*plugin.Instance, error) any) {
	host, program := p.host, p.program
	me.Go(func(ctx context.Context) any {
		inst, err := host.Start(ctx, program)
		me.LaterOr(told(inst, err), func() {
			if inst != nil {
				go inst.Close()
			}
		})
		return nil
	})
}

func (p *pluginProcess) up(me *Self, m pluginUp) {
	p.starting = false
	waiting := p.waiting
	p.waiting = nil
	if m.err != nil {
		p.failed(me, m.err)
		for _, u := range waiting {
			u.reply.Send(nil, p.last)
		}
		return
	}
	if p.current != nil { // a reload was faster
		p.watch(me, m.inst)
		p.release(me, m.inst)
	} else {
		p.current = m.inst
		p.watch(me, m.inst)
		p.told(m.inst)
	}
	for _, u := range waiting {
		p.lease(me, u)
	}
}

// told tells listeners of a process that runs.
func (p *pluginProcess) told(inst *plugin.Instance) {
	status := messages.PluginLoaded
	if p.ran {
		status = messages.PluginRestarted
	}
	p.ran, p.last = true, nil
	p.required = p.required || inst.Declared != nil
	p.publish([]messages.Event{pluginUpdate(status, p.about(inst.ID), p.session)})
}

func (p *pluginProcess) about(id string) *plugin.Error {
	return &plugin.Error{ID: id, Reference: p.program.Reference, File: p.program.File}
}

// watch waits for the process's end.
func (p *pluginProcess) watch(me *Self, inst *plugin.Instance) {
	p.alive[inst] = true
	me.Go(func(ctx context.Context) any {
		select {
		case <-inst.Over():
			return pluginDown{inst, inst.Failure()}
		case <-ctx.Done():
			return nil
		}
	})
}

// down takes note of a process that has ended.
func (p *pluginProcess) down(me *Self, m pluginDown) {
	p.release(me, m.inst)
	if p.next == m.inst {
		p.next = nil
	}
	if p.current != m.inst {
		return
	}
	p.current = nil
	if m.inst.Served() {
		p.crashes, p.delay = nil, 0
	}
	err := m.err
	if err == nil {
		err = p.about(m.inst.ID)
		err.Slug, err.Detail = plugin.Crashed, "it was stopped"
	}
	p.failed(me, err)
}

// failed decides when the plugin may be started again.
func (p *pluginProcess) failed(me *Self, err error) {
	var known *plugin.Error
	if !errors.As(err, &known) {
		known = p.about(p.program.ID)
		known.Slug, known.Detail = plugin.StartFailed, err.Error()
	}
	why := *known
	why.Required = why.Required || p.required || p.program.Module
	now := time.Now()
	kept := p.crashes[:0]
	for _, at := range p.crashes {
		if now.Sub(at) < crashesWithin {
			kept = append(kept, at)
		}
	}
	if len(kept) == 0 {
		p.delay = 0
	}
	p.crashes = append(kept, now)
	p.delay = min(max(2*p.delay, p.pace.first), p.pace.longest)
	p.due = now.Add(p.delay)
	if len(p.crashes) >= crashBudget {
		p.given = true
		why.Detail += fmt.Sprintf("; it ended %d times within %s and is not started again", crashBudget, crashesWithin)
		why.Hint = "mend it, then: codework plugin reload"
	}
	p.last = &why
	me.Log().Warn("plugin does not run", "plugin", why.Name(), "slug", why.Slug, "err", why.Detail, "said", why.Tail)
	p.publish([]messages.Event{pluginUpdate(messages.PluginFailed, &why, p.session)})
	if p.given || p.delay > p.pace.patience {
		for _, u := range p.waiting {
			u.reply.Send(nil, p.last)
		}
		p.waiting = nil
	}
	if len(p.uses)+len(p.waiting) > 0 && !p.given && p.timer == nil {
		// An exchange uses it: by the next call it is there again.
		p.timer = me.After(p.delay, restartDue{})
	}
}

// startAgain starts a process for a reload. A plugin that nobody has started
// has nothing to reload.
func (p *pluginProcess) startAgain(me *Self) {
	if p.current == nil && !p.given && p.last == nil {
		me.Answer(startedAgain{}, nil)
		return
	}
	p.again = me.TakeReply()
	p.launch(me, func(i *plugin.Instance, err error) any { return pluginNext{i, err} })
}

// changeOver ends a reload.
func (p *pluginProcess) changeOver(me *Self, keep bool) {
	next := p.next
	p.next = nil
	if next == nil {
		return
	}
	if !keep {
		p.release(me, next)
		return
	}
	old := p.current
	p.current, p.given, p.crashes, p.delay, p.due = next, false, nil, 0, time.Time{}
	p.ran = true
	p.told(next)
	for _, u := range p.waiting { // for a start that is not needed any more
		p.lease(me, u)
	}
	p.waiting = nil
	if old != nil {
		p.retire(me, old)
	}
}

// retire ends a process that was replaced and that no exchange uses any more.
func (p *pluginProcess) retire(me *Self, inst *plugin.Instance) {
	if p.uses[inst] == 0 && inst != p.current && inst != p.next {
		p.release(me, inst)
	}
}

// release ends a process, beside the actor.
func (p *pluginProcess) release(me *Self, inst *plugin.Instance) {
	if !p.alive[inst] {
		return
	}
	delete(p.alive, inst)
	me.Go(func(context.Context) any {
		inst.Close()
		return nil
	})
}

// end ends every process, and waits for that.
func (p *pluginProcess) end() {
	var wg sync.WaitGroup
	for inst := range p.alive {
		wg.Go(inst.Close)
	}
	wg.Wait()
	if p.ran {
		p.publish([]messages.Event{pluginUpdate(messages.PluginDropped, p.about(p.program.ID), p.session)})
	}
}
