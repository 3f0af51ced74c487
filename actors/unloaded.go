package actors

import (
	"context"
	"errors"
	"slices"

	"codework/internal/store"
	"codework/messages"
)

// This file answers what can be read of a session that is not in memory, from
// the end of its log: looking at one costs what is shown of it, not its whole
// conversation, and leaves nothing behind in memory. Only a session at rest is
// answered for, since what a crash left open is settled by the session itself.

// errLoad means that only the session itself can answer.
var errLoad = errors.New("the session must be loaded")

// mustLoad is a message that must go to the session after all.
type mustLoad struct {
	m     toSession
	reply Reply
}

// reads tells whether a message asks for something that may be read without the
// session.
func reads(m any) bool {
	switch m := m.(type) {
	case messages.GetSession, messages.GetHistory, messages.Wait:
		return true
	case messages.GetQueue:
		return !m.Clear && m.Remove == ""
	}
	return false
}

// read answers a message for a session that is not in memory, or routes it to
// the session.
func (g *guardian) read(me *Self, m toSession) {
	reply, st, boxes := me.TakeReply(), g.config.Store, g.boxes.shelf
	me.Go(func(ctx context.Context) any {
		v, err := readUnloaded(ctx, st, boxes, m)
		var damage *store.Damage
		if errors.Is(err, errLoad) || errors.As(err, &damage) {
			return mustLoad{m, reply}
		}
		reply.Send(v, err)
		return nil
	})
}

func readUnloaded(ctx context.Context, st Store, boxes *shelf, m toSession) (any, error) {
	if q, ok := m.m.(messages.GetHistory); ok {
		return historyOf(ctx, st, q)
	}
	rests := restCheck{}
	rec, err := st.Back(ctx, m.id, 0, func(e messages.Event) bool {
		rests.newest(e)
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case rests.open:
		return nil, errLoad
	}
	switch m.m.(type) {
	case messages.GetSession:
		return infoOf(rec, boxes), nil
	case messages.GetQueue:
		if rec.Queued > 0 {
			return nil, errLoad
		}
		return messages.Queue{Queued: []messages.QueuedPrompt{}}, nil
	}
	return nil, nil
}

// restCheck looks at the newest event of a log: a session at rest has none, or
// one that ends its work or its making.
type restCheck struct {
	seq  int64
	open bool
}

func (c *restCheck) newest(e messages.Event) {
	if c.seq == 0 {
		c.seq = e.Seq
		c.open = !messages.Terminal(e.Type) && e.Type != messages.EventForked
	}
}

// historyOf reads a page of a conversation.
func historyOf(ctx context.Context, st Store, q messages.GetHistory) (messages.History, error) {
	below, err := placeOf(ctx, st, q.SessionID, q.Before)
	if err != nil {
		return messages.History{}, err
	}
	limit := pageLimit(q.Limit)
	var events []messages.Event
	for want := limit + 2; ; want *= 2 { // what ends a turn need not make an entry
		rests, makers := restCheck{}, 0
		events = events[:0]
		if below > 0 {
			if _, err := st.Back(ctx, q.SessionID, 0, func(e messages.Event) bool { rests.newest(e); return false }); err != nil {
				return messages.History{}, err
			}
		}
		whole := true
		rec, err := st.Back(ctx, q.SessionID, below, func(e messages.Event) bool {
			rests.newest(e)
			if rests.open {
				return false
			}
			if makesEntry(e.Type) {
				if makers++; makers > want {
					whole = false
					return false
				}
			}
			e.Data = slices.Clone(e.Data)
			events = append(events, e)
			return true
		})
		switch {
		case err != nil:
			return messages.History{}, err
		case rests.open:
			return messages.History{}, errLoad
		}
		entries, err := entriesOf(st, rec, events)
		if err != nil {
			return messages.History{}, errLoad
		}
		if whole || len(entries) > limit {
			page, more := lastPage(entries, limit)
			return messages.History{Entries: page, More: more || !whole, Seq: rests.seq}, nil
		}
	}
}

// makesEntry tells whether an event may add to the conversation.
func makesEntry(kind string) bool {
	switch kind {
	case messages.EventPromptPromoted, messages.EventTurnEnded, messages.EventLLMFailed, messages.EventForked:
		return true
	}
	return false
}

// entriesOf folds the end of a log, the newest event first. The entry of a
// message whose beginning is not among the events is left out: no other comes
// before it.
func entriesOf(st Store, rec messages.SessionRecord, events []messages.Event) ([]messages.Message, error) {
	if len(events) == 0 {
		return nil, nil
	}
	led := newLedger(rec)
	led.load = st.Blob
	led.seq = events[len(events)-1].Seq - 1
	for _, e := range slices.Backward(events) {
		d, err := e.Decode()
		if err == nil {
			err = led.apply(e, d)
		}
		if err != nil {
			return nil, err
		}
	}
	return led.entries, nil
}

// placeOf finds the position of the event that made an entry, 0 for no entry.
// An entry that is not in the log, as those that a fork copied, is the session's
// to find.
func placeOf(ctx context.Context, st Store, session, entry string) (seq int64, err error) {
	if entry == "" {
		return 0, nil
	}
	for {
		if seq, err = st.Mention(ctx, session, entry, seq); err != nil {
			return 0, err
		}
		if seq == 0 {
			return 0, errLoad
		}
		made := false
		err := st.Events(ctx, session, seq-1, 1, func(e messages.Event) error {
			if !makesEntry(e.Type) || e.Seq != seq {
				return nil
			}
			d, err := e.Decode()
			made = err == nil && d.MessageID == entry
			return err
		})
		if err != nil || made {
			return seq, err
		}
	}
}
