package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"codework/internal/metrics"
	"codework/messages"
	"codework/protocol/contract"
)

// subscriberQueue is how many events wait for one reader. A reader that lets
// more come is cut off; the number is the contract's.
const subscriberQueue = 4096

// hub hands events to subscribers in the order in which sessions publish them.
// It never waits for a reader.
//
// An event costs what its own readers cost: a thousand clients that each follow
// one session are not looked through for every piece of text.
type hub struct {
	subs  map[*subscription]bool
	of    map[string]map[*subscription]bool // the same by session; "" for all
	count *metrics.Metrics                  // nil counts nothing
}

type (
	// lastEvents ends all subscriptions behind what they still hold; the answer
	// are those that were there.
	lastEvents  struct{}
	publish     struct{ events []messages.Event }
	subscribe   struct{ sub *subscription }
	unsubscribe struct{ sub *subscription }
)

func newHub(count *metrics.Metrics) Actor {
	return &hub{map[*subscription]bool{}, map[string]map[*subscription]bool{}, count}
}

func (h *hub) add(s *subscription) {
	h.subs[s] = true
	if h.of[s.session] == nil {
		h.of[s.session] = map[*subscription]bool{}
	}
	h.of[s.session][s] = true
}

func (h *hub) remove(s *subscription) {
	delete(h.subs, s)
	delete(h.of[s.session], s)
	if len(h.of[s.session]) == 0 {
		delete(h.of, s.session)
	}
}

func (h *hub) offer(p *published, subs map[*subscription]bool) {
	for s := range subs {
		if !s.offer(p) {
			h.remove(s)
			h.count.Overflow()
		}
	}
}

func (h *hub) Receive(me *Self, m any) {
	switch m := m.(type) {
	case publish:
		if len(h.subs) == 0 {
			return
		}
		for _, e := range m.events {
			p := &published{Event: e}
			h.offer(p, h.of[""])
			if e.Session != "" {
				h.offer(p, h.of[e.Session])
			}
		}
	case subscribe:
		h.add(m.sub)
		me.Answer(nil, nil)
	case unsubscribe:
		h.remove(m.sub)
		m.sub.end(io.EOF)
	case lastEvents:
		subs := slices.Collect(maps.Keys(h.subs))
		for _, s := range subs {
			s.end(errStopped)
		}
		me.Answer(subs, nil)
	case takeStock:
		me.Answer(h.readers(), nil)
	case Stopped:
		for s := range h.subs {
			s.end(errStopped)
		}
	}
}

// published is an event with its JSON, made once for all subscribers.
type published struct {
	messages.Event
	once sync.Once
	json json.RawMessage
	err  error
}

func (p *published) envelope() (json.RawMessage, error) {
	p.once.Do(func() { p.json, p.err = contract.EncodeEvent(p.Event) })
	return p.json, p.err
}

// subscription is one reader's queue.
type subscription struct {
	session string // "" for all

	mu    sync.Mutex // guards what follows
	queue []*published
	err   error         // ends the subscription once the queue is empty
	over  bool          // the reader has been told of the end
	done  chan struct{} // closed then
	wake  chan struct{} // holds one: the queue or err changed
}

func newSubscription(session string) *subscription {
	return &subscription{session: session, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// offer queues an event; false means the reader has been cut off.
func (s *subscription) offer(p *published) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false
	}
	if len(s.queue) >= subscriberQueue {
		s.err = &messages.SubscriptionOverflow{Capacity: subscriberQueue}
		return false
	}
	s.queue = append(s.queue, p)
	s.signal()
	return true
}

// end stops the subscription after what is queued.
func (s *subscription) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.signal()
}

func (s *subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next returns up to n queued events, waiting for the first, or why there are
// no more.
func (s *subscription) next(ctx context.Context, n int) ([]*published, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			n = min(n, len(s.queue))
			batch := append([]*published(nil), s.queue[:n]...)
			clear(s.queue[:n])
			s.queue = s.queue[n:]
			if len(s.queue) == 0 {
				s.queue = nil
			}
			s.mu.Unlock()
			return batch, nil
		}
		err := s.err
		if err != nil && !s.over {
			s.over = true
			close(s.done)
		}
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// reader gives a subscriber its events as JSON: first server.connected, then
// the durable ones after the positions it named, then what is published, each
// durable event once.
type reader struct {
	sub     *subscription
	store   Store
	after   map[string]int64 // last position handed out, per session
	todo    []string         // sessions whose log is still to be replayed
	checked bool             // the position in the first of them is in its log
	first   bool
}

func newReader(sub *subscription, store Store, q messages.Subscribe) *reader {
	r := &reader{sub: sub, store: store, after: map[string]int64{}, first: true}
	for id, seq := range q.After {
		if q.SessionID == "" || q.SessionID == id {
			r.after[id] = seq
			r.todo = append(r.todo, id)
		}
	}
	return r
}

// replayBatch is how many recorded events are read at a time.
const replayBatch = 256

func (r *reader) next(ctx context.Context, most int) ([]json.RawMessage, error) {
	if r.first {
		r.first = false
		e, err := contract.EncodeEvent(messages.Event{ID: messages.NewEventID(), Type: messages.EventConnected, Data: json.RawMessage("{}")})
		return []json.RawMessage{e}, err
	}
	// Those of many sessions leave together: a reader that comes back to a
	// thousand of them must not wait for a thousand answers.
	var past []json.RawMessage
	for len(r.todo) > 0 && len(past) < most {
		id := r.todo[0]
		if !r.checked {
			if err := r.check(ctx, id); err != nil {
				return past, err
			}
			r.checked = true
		}
		batch, err := r.replay(ctx, id, min(most-len(past), replayBatch))
		past = append(past, batch...)
		if err != nil {
			return past, err
		}
		if len(batch) == 0 {
			r.todo, r.checked = r.todo[1:], false
		}
	}
	if len(past) > 0 {
		return past, nil
	}
	for {
		events, err := r.sub.next(ctx, most)
		if err != nil {
			return nil, err
		}
		var out []json.RawMessage
		for _, p := range events {
			if !r.wanted(p.Event) {
				continue
			}
			b, err := p.envelope()
			if err != nil {
				return out, err
			}
			out = append(out, b)
		}
		if len(out) > 0 {
			return out, nil
		}
	}
}

// wanted tells whether a published event is new to a reader that replayed the
// log: neither recorded before the position it has reached, nor a live one
// that happened before it.
func (r *reader) wanted(e messages.Event) bool {
	at, replayed := r.after[e.Session]
	if !replayed {
		return true
	}
	if e.Durable() {
		if e.Seq <= at {
			return false
		}
		r.after[e.Session] = e.Seq
		return true
	}
	return e.After >= at
}

// check refuses a position that is not in the log.
func (r *reader) check(ctx context.Context, id string) error {
	at := r.after[id]
	found := at == 0
	err := r.store.Events(ctx, id, max(at-1, 0), 1, func(e messages.Event) error {
		found = found || e.Seq == at
		return nil
	})
	var missing *messages.SessionNotFound
	if errors.As(err, &missing) || err == nil && !found {
		return &messages.Refused{Name: messages.RefusedPosition, Message: fmt.Sprintf("position %d of session %s is not in its log", at, id)}
	}
	return err
}

func (r *reader) replay(ctx context.Context, id string, n int) ([]json.RawMessage, error) {
	var out []json.RawMessage
	err := r.store.Events(ctx, id, r.after[id], n, func(e messages.Event) error {
		b, err := contract.EncodeEvent(e)
		if err != nil {
			return err
		}
		out = append(out, b)
		r.after[id] = e.Seq
		return nil
	})
	return out, err
}
