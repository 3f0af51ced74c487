package actors

import (
	"context"
	"errors"

	"codework/messages"
)

// feed brings an editor the events of one session, in order. It hands out a
// batch, and the next one when the actor has dealt with that one. A feed that
// falls too far behind goes on from the log, without the live events that it
// missed, which it says.
type feed struct {
	session string
	hub     *Ref
	store   Store
	sub     *subscription
	at      int64 // last durable position handed out; counts once behind
	behind  bool  // it went on from the log before
}

// eventBatch is what a feed hands out.
type eventBatch struct {
	events []messages.Event
	gap    bool // live events were lost before these
	live   bool // they come from the session itself, not from its log
}

// feedBatch is how many events are handed out at once.
const feedBatch = 256

func (f *feed) next(ctx context.Context, hand func(eventBatch) error) error {
	events, err := f.sub.next(ctx, feedBatch)
	var over *messages.SubscriptionOverflow
	if errors.As(err, &over) {
		return f.resume(ctx, hand)
	}
	if err != nil {
		return err
	}
	b := eventBatch{live: true}
	for _, p := range events {
		if f.wanted(p.Event) {
			b.events = append(b.events, p.Event)
		}
	}
	return hand(b)
}

// wanted tells whether an event is new.
func (f *feed) wanted(e messages.Event) bool {
	if e.Durable() {
		if e.Seq <= f.at {
			return false
		}
		f.at = e.Seq
		return true
	}
	return !f.behind || e.After >= f.at
}

// resume subscribes again and reads from the log what has been recorded since.
func (f *feed) resume(ctx context.Context, hand func(eventBatch) error) error {
	f.sub, f.behind = newSubscription(f.session), true
	if _, err := f.hub.request(subscribe{f.sub})(ctx); err != nil {
		return err
	}
	if err := hand(eventBatch{gap: true}); err != nil {
		return err
	}
	for {
		var b eventBatch
		err := f.store.Events(ctx, f.session, f.at, feedBatch, func(e messages.Event) error {
			b.events = append(b.events, e)
			f.at = e.Seq
			return nil
		})
		if err != nil || len(b.events) == 0 {
			return err
		}
		if err := hand(b); err != nil {
			return err
		}
	}
}

// run follows the session until ctx ends or nothing more comes.
func (f *feed) run(ctx context.Context, hand func(eventBatch) error) {
	defer func() { f.hub.Tell(unsubscribe{f.sub}) }()
	for f.next(ctx, hand) == nil {
	}
}
