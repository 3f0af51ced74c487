package main

import (
	"context"
	"errors"
	"fmt"

	"codework/messages"
	"codework/protocol/client"
)

// tailEntries is how much of the conversation attach shows at first.
const tailEntries = 6

// attached prints what happens in a session.
type attached struct {
	out   *output
	calls map[string]bool // that were told when they started
}

// attach follows a session until ctx ends or the session is deleted. from is the
// position to begin behind, -1 the end of the log.
func (g *global) attach(ctx context.Context, c *client.Client, info messages.SessionInfo, from int64, asJSON bool) error {
	a := &attached{out: newOutput(g, "text"), calls: map[string]bool{}}
	if asJSON {
		a.out = newOutput(g, "stream-json")
	} else {
		a.out.follows(g)
	}
	if from < 0 {
		h, err := c.History(ctx, messages.GetHistory{SessionID: info.ID, Limit: tailEntries})
		if err != nil {
			return err
		}
		from = h.Seq
		if !asJSON {
			v := view{out: a.out.out, width: a.out.width}
			for _, m := range h.Entries {
				v.entry(m)
			}
			if n := len(h.Entries); n > 0 && h.Entries[n-1].Role == messages.RoleUser {
				v.rule("answer") // which follows
			}
		}
	}
	notice := func(text string) {
		if !g.quiet {
			fmt.Fprintln(g.err, text)
		}
	}
	f, err := client.Follow(ctx, c, client.FollowOptions{
		Session: info.ID, After: map[string]int64{info.ID: from}, Dial: g.dialAgain,
		Lost: func(error) { notice("the connection is lost; looking for the server again (ctrl-c ends that)") },
	})
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		step, err := f.Next(ctx)
		switch {
		case ctx.Err() != nil:
			a.out.endLine()
			return context.Cause(ctx)
		case err != nil:
			a.out.endLine()
			return deleted(err)
		case step.Gap == nil:
			pace(f, step.Event.Type)
			err = a.take(step.Event)
		case errors.Is(step.Gap.Cause, client.ErrConnectionLost):
			notice("connected again")
		}
		if err != nil {
			return err
		}
	}
}

// take prints an event.
func (a *attached) take(e messages.Event) error {
	o := a.out
	if o.format == "stream-json" {
		o.event(e)
		return o.written(nil)
	}
	var d messages.EventData
	if a.reads(e.Type) {
		var err error
		if d, err = e.Decode(); err != nil {
			return fmt.Errorf("event %s: %w", e.Type, err)
		}
	}
	switch e.Type {
	case messages.EventPromptPromoted:
		a.prompt(d.Prompt)
	case messages.EventPromptRemoved:
		o.tell("· a prompt was taken out of the queue")
	case messages.EventToolStarted:
		a.calls[d.CallID] = true
		o.work(e.Type, d)
	case messages.EventToolSettled:
		a.settled(d.Part)
	case messages.EventNotice:
		o.tell("warning: " + oneLine(d.Text))
	case messages.EventExecutionSucceeded, messages.EventExecutionFailed, messages.EventExecutionInterrupted:
		a.rest(e.Type, d)
	default:
		o.work(e.Type, d)
	}
	return o.written(nil)
}

// reads tells whether take looks into an event of this type.
func (a *attached) reads(kind string) bool {
	switch kind {
	case messages.EventPromptPromoted, messages.EventToolStarted, messages.EventToolSettled, messages.EventNotice:
		return true
	}
	return messages.Terminal(kind) || a.out.reads(kind)
}

func (a *attached) prompt(p *messages.PromptBody) {
	o := a.out
	o.endLine()
	v := view{out: o.err, width: o.width}
	v.rule("prompt")
	if p != nil {
		v.text(p.Text)
		for _, part := range p.Parts {
			if part.Type == messages.PartImage {
				o.tell(imageNote(part))
			} else {
				v.text(part.Text)
			}
		}
	}
	v.rule("answer")
	o.any = false // no blank line before the text that follows
}

// settled tells of a call that nobody told of when it started, and of one that
// did not go well.
func (a *attached) settled(p *messages.Part) {
	if p == nil {
		return
	}
	told := a.calls[p.CallID]
	delete(a.calls, p.CallID)
	if told && p.Call == messages.CallCompleted {
		return
	}
	a.out.tell(callLine(*p))
}

// rest tells how a busy period ended.
func (a *attached) rest(kind string, d messages.EventData) {
	o := a.out
	line := "succeeded"
	switch {
	case kind == messages.EventExecutionInterrupted:
		line = "interrupted (" + d.Reason + ")"
	case kind == messages.EventExecutionFailed && d.Error != nil:
		line = "failed: " + d.Error.Message
	case kind == messages.EventExecutionFailed:
		line = "failed"
	}
	if o.turns > 0 {
		line += " · " + dollars(o.usage.Cost.Total) + " · " + turns(o.turns)
	}
	o.endLine()
	o.rule(oneLine(line))
	o.turns, o.usage = 0, messages.Usage{}
}
