package actors

import (
	"context"

	"codework/messages"
)

// This file is about the end of admission: how it is decided that nothing works
// here any more, in one step with nothing being begun any more.
//
// Every call that leaves something behind passes the guardian, which counts it
// until it is answered. A prompt whose answer is given is known by then as its
// session's work. So the guardian sees all of it at any moment, and decides as
// the one that admits: whoever comes before the end is waited for, whoever comes
// behind it is refused before anything is written.

type (
	// closeIfIdle ends admission unless something works. The answer is whether
	// it has ended.
	closeIfIdle struct{}
	// callEnded tells that a call that was counted is answered.
	callEnded struct{}
	// underWay asks for a call to be counted until done is closed.
	underWay struct{ done <-chan struct{} }
	// editorsHold tells that editors that were asked hold what they read, and
	// whether they all have nothing under way.
	editorsHold struct {
		asked []*Ref
		quiet bool
		reply Reply
	}
)

// errDraining refuses new work at the end of the process.
var errDraining = &messages.Refused{Name: messages.RefusedShutdown, Message: "the server is going down"}

// admits counts a call that leaves something behind, until it is answered. After
// the end of admission one that would begin something is refused.
func (g *guardian) admits(me *Self, m any) bool {
	changes, begins := effect(m)
	switch {
	case begins && g.draining:
		me.Answer(nil, errDraining)
		return false
	case changes:
		g.count()
		self := me.Ref()
		me.reply = me.reply.noting(func() { self.Tell(callEnded{}) })
	}
	return true
}

// effect tells whether a call leaves something behind, and whether it begins
// something, rather than end it.
func effect(m any) (changes, begins bool) {
	switch m := m.(type) {
	case toSession:
		switch q := m.m.(type) {
		case messages.Prompt, resumeSession, messages.Configure, messages.Link, messages.Relink, messages.Rename:
			return true, true
		case messages.GetQueue:
			return q.Clear || q.Remove != "", false
		}
	case boxCall:
		switch m.m.(type) {
		case messages.CreateSandbox, messages.RegisterSandbox:
			return true, true
		}
		return true, false
	case messages.Check:
		return m.Repair, m.Repair
	case messages.CreateSession, messages.Fork, messages.Delete:
		return true, true
	case underWay: // which is counted beyond its answer
		return false, true
	}
	return false, false
}

func (g *guardian) count() {
	g.calls++
	g.tell()
}

func (g *guardian) callEnded() {
	g.calls--
	g.tell()
}

// works tells whether ending now would cut something off.
func (g *guardian) works() bool { return g.calls > 0 || g.busy > 0 }

// closeIfIdle ends admission if nothing works. Editors are asked first to hold
// what they read, for the moment that this takes: unlike other clients they
// could not tell their user that the next process will do it, so nothing of
// theirs may be on its way.
func (g *guardian) closeIfIdle(me *Self) {
	switch {
	case g.draining:
		me.Answer(true, nil)
		return
	case g.works(), g.deciding:
		me.Answer(false, nil)
		return
	}
	g.deciding = true
	hold := editorsHold{quiet: true, reply: me.TakeReply()}
	var held []func(context.Context) (any, error)
	for ref, editor := range g.gateways {
		if editor {
			hold.asked = append(hold.asked, ref)
			held = append(held, ref.request(holdEditor{}))
		}
	}
	if len(held) == 0 {
		g.onEditorsHold(hold)
		return
	}
	me.Go(func(ctx context.Context) any {
		for _, wait := range held {
			quiet, err := wait(ctx)
			hold.quiet = hold.quiet && (err != nil || quiet == true) // one that is gone has nothing
		}
		return hold
	})
}

// onEditorsHold decides, now that nothing of editors is on its way.
func (g *guardian) onEditorsHold(m editorsHold) {
	g.deciding = false
	quiet := m.quiet
	asked := map[*Ref]bool{}
	for _, ref := range m.asked {
		asked[ref] = true
	}
	for ref, editor := range g.gateways {
		quiet = quiet && (!editor || asked[ref]) // one that came meanwhile holds nothing
	}
	g.draining = g.draining || quiet && !g.works()
	if !g.draining {
		for _, ref := range m.asked {
			ref.Tell(goOnEditor{})
		}
	}
	m.reply.Send(g.draining, nil)
}
