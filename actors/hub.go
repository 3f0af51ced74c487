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
	"time"

	"codework/internal/metrics"
	"codework/messages"
	"codework/protocol/contract"
)

const (
	// subscriberQueue is how many events wait for one reader. A reader that
	// lets more come is cut off; the number is the contract's.
	subscriberQueue = 4096
	// stalledAfter is how long a reader that takes something now and then is
	// not cut off for pieces, which take no place in the queue of their own.
	stalledAfter = time.Second
	// subscriberJoined is how much text waits for one reader in events that
	// others were joined to: seconds of what the fastest models write, and what
	// a reader that does not read costs beside its events.
	subscriberJoined = 4 << 20
)

// hub hands events to subscribers in the order in which sessions publish them.
// It never waits for a reader.
//
// An event costs what its own readers cost: a thousand clients that each follow
// one session are not looked through for every piece of text.
type hub struct {
	subs      map[*subscription]bool
	of        map[string]map[*subscription]bool // the same by session; "" for all
	standings map[string]standing               // of sessions in memory
	count     *metrics.Metrics                  // nil counts nothing
}

// standing is how far the readers of a session are: from is the last durable event
// that its log had when it was opened, told the last one that was published.
type standing struct{ from, told int64 }

type (
	// lastEvents ends all subscriptions behind what they still hold; the answer
	// are those that were there.
	lastEvents struct{}
	publish    struct{ events []*published }
	subscribe  struct{ sub *subscription }
	// opened tells that a session was read from its log up to seq: what follows
	// will be published.
	opened struct {
		session string
		seq     int64
	}
	// closed tells that a session publishes nothing more.
	closed struct{ session string }
	// deleted ends the subscriptions to one session behind what they still hold:
	// there is no such session any more.
	deleted struct{ session string }
	// beginning asks for the position from which on everything of a session is
	// published. The answer is an int64, or nil when it is not in memory: then
	// all that can be in its log now was there before.
	beginning   struct{ session string }
	unsubscribe struct{ sub *subscription }
)

func newHub(count *metrics.Metrics) Actor {
	return &hub{map[*subscription]bool{}, map[string]map[*subscription]bool{}, map[string]standing{}, count}
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
		for _, p := range m.events {
			p.take()
			if p.Durable() {
				h.tell(p.Session, p.Seq)
			}
			h.offer(p, h.of[""])
			if p.Session != "" {
				h.offer(p, h.of[p.Session])
			}
		}
	case subscribe:
		m.sub.told = map[string]int64{}
		for id := range m.sub.after {
			if at, ok := h.standings[id]; ok {
				m.sub.told[id] = at.told
			}
		}
		h.add(m.sub)
		me.Answer(nil, nil)
	case opened:
		h.standings[m.session] = standing{m.seq, m.seq}
	case closed:
		delete(h.standings, m.session)
	case deleted:
		for s := range h.of[m.session] {
			s.end(&messages.SessionNotFound{SessionID: m.session})
			h.remove(s)
		}
	case beginning:
		if at, ok := h.standings[m.session]; ok {
			me.Answer(at.from, nil)
		} else {
			me.Answer(nil, nil)
		}
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

// tell takes note of a durable event that is published. The one of a fork, whose
// session is not in memory, is in the log already, and nothing follows it.
func (h *hub) tell(session string, seq int64) {
	if at, ok := h.standings[session]; ok {
		at.told = seq
		h.standings[session] = at
	}
}

// subscription is one reader's queue. Pieces that wait in it behind each other
// in their session become one, so that a reader is cut off for what it does not
// read, not for how finely a model cuts its words. In a queue that nobody takes
// anything from they count all the same.
type subscription struct {
	session string           // "" for all
	after   map[string]int64 // positions of sessions behind which the reader goes on
	told    map[string]int64 // of those in memory: the last event published before it came; set by the hub

	mu     sync.Mutex // guards what follows
	queue  []*published
	head   uint64            // number of the event at queue[0]
	pieces map[string]uint64 // numbers of the events that are their session's newest, and pieces
	joined int               // bytes of text that were joined to others
	grown  int               // events that those in the queue stand for beside themselves
	since  time.Time         // since when something waits, or was taken last
	err    error             // ends the subscription once the queue is empty
	over   bool              // the reader has been told of the end
	done   chan struct{}     // closed then
	wake   chan struct{}     // holds one: the queue or err changed
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
	if len(s.queue) == 0 {
		s.since = time.Now()
	}
	stalled := len(s.queue)+s.grown >= subscriberQueue && time.Since(s.since) >= stalledAfter
	if !stalled && s.join(p) {
		return true
	}
	if stalled || len(s.queue) >= subscriberQueue {
		s.err = &messages.SubscriptionOverflow{Capacity: subscriberQueue}
		return false
	}
	if p.Piece != nil {
		if s.pieces == nil {
			s.pieces = map[string]uint64{}
		}
		s.pieces[p.Session] = s.head + uint64(len(s.queue))
	} else {
		delete(s.pieces, p.Session)
	}
	s.queue = append(s.queue, p)
	s.grown += p.beside()
	s.signal()
	return true
}

// join makes a piece part of the one before it, if that still waits. What
// others share is not touched: the reader gets its own.
func (s *subscription) join(p *published) bool {
	if p.Piece == nil || s.joined+len(p.Piece.Text) > subscriberJoined {
		return false
	}
	n, ok := s.pieces[p.Session]
	if !ok {
		return false
	}
	last := s.queue[n-s.head]
	if !last.private {
		if !joinable(&last.Event, &p.Event) {
			return false
		}
		last = &published{Event: last.Event, private: true}
	}
	if !last.join(&p.Event) {
		return false
	}
	s.queue[n-s.head] = last
	s.joined += len(p.Piece.Text)
	if p.Piece.CallID == "" {
		s.grown += 1 + p.Piece.More
	}
	return true
}

// pop takes up to n events that are size bytes at most, one at least.
func (s *subscription) pop(n, size int) []*published {
	n = min(n, len(s.queue))
	took := 0
	for took < n {
		p := s.queue[took]
		if s.pieces[p.Session] == s.head+uint64(took) {
			delete(s.pieces, p.Session)
		}
		s.grown -= p.beside()
		if p.private && p.Piece.CallID == "" {
			first := len(p.Piece.Text)
			p.take()
			s.joined -= len(p.Piece.Text) - first
		}
		took++
		if size -= len(p.Data); size <= 0 {
			break
		}
	}
	batch := slices.Clone(s.queue[:took])
	clear(s.queue[:took])
	s.queue, s.head, s.since = s.queue[took:], s.head+uint64(took), time.Now()
	if len(s.queue) == 0 {
		s.queue = nil
	}
	return batch
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

// nextBytes is about how much next returns at most: one frame of the wire.
const nextBytes = 1 << 20

// next returns up to n queued events, waiting for the first, or why there are
// no more.
func (s *subscription) next(ctx context.Context, n int) ([]*published, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			batch := s.pop(n, nextBytes)
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
//
// What was published before the reader registered comes from the log, what was
// published after it from the queue: were more taken from the log than that, the
// live events between would come too late.
type reader struct {
	sub     *subscription
	hub     *Ref
	store   Store
	after   map[string]int64 // last position handed out, per session
	todo    []string         // sessions whose log is still to be replayed
	checked bool             // the position in the first of them is in its log
	late    []*published     // taken from the queue, still to be handed out
	first   bool
}

// newReader makes the reader of a subscription that is registered.
func newReader(sub *subscription, hub *Ref, store Store) *reader {
	r := &reader{sub: sub, hub: hub, store: store, after: map[string]int64{}, first: true}
	for id, seq := range sub.after {
		r.after[id] = seq
		r.todo = append(r.todo, id)
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
		if len(r.late) == 0 {
			var err error
			if r.late, err = r.sub.next(ctx, most); err != nil {
				return nil, err
			}
		}
		out, err := r.present(ctx, most)
		if len(out) > 0 || err != nil {
			return out, err
		}
	}
}

// present gives what was taken from the queue, as far as it is new. What the
// log has before a durable event, and nobody published, comes before it.
func (r *reader) present(ctx context.Context, most int) (out []json.RawMessage, err error) {
	for len(r.late) > 0 && len(out) < most {
		p := r.late[0]
		if at, replayed := r.after[p.Session]; replayed && p.Durable() && p.Seq > at+1 {
			missed, err := r.read(ctx, p.Session, min(most-len(out), int(p.Seq-at-1)))
			out = append(out, missed...)
			if err != nil || len(missed) > 0 {
				return out, err
			}
		}
		r.late = r.late[1:]
		if !r.wanted(p.Event) {
			continue
		}
		b, err := p.envelope()
		if err != nil {
			return out, err
		}
		out = append(out, b)
	}
	return out, nil
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

// check refuses a position that is not in the log. A session that is missing
// ends the subscription that is about it alone as its deletion does.
func (r *reader) check(ctx context.Context, id string) error {
	at := r.after[id]
	found := at == 0
	err := r.store.Events(ctx, id, max(at-1, 0), 1, func(e messages.Event) error {
		found = found || e.Seq == at
		return nil
	})
	var missing *messages.SessionNotFound
	if errors.As(err, &missing) && id != "" && id == r.sub.session {
		return err // deleted, perhaps before its reader came to look
	}
	if errors.As(err, &missing) || err == nil && !found {
		return &messages.Refused{Name: messages.RefusedPosition, Message: fmt.Sprintf("position %d of session %s is not in its log", at, id)}
	}
	return err
}

// replay reads up to n events of a session's log, to where the queue begins.
func (r *reader) replay(ctx context.Context, id string, n int) ([]json.RawMessage, error) {
	if until, ok := r.sub.told[id]; ok {
		return r.read(ctx, id, min(n, int(until-r.after[id])))
	}
	// The session was not in memory. If it has been opened meanwhile, what it
	// appends may be on disk before it comes through the queue.
	at := r.after[id]
	out, err := r.read(ctx, id, n)
	if err != nil || len(out) == 0 {
		return out, err
	}
	from, err := r.hub.request(beginning{id})(ctx)
	if err != nil {
		return nil, err
	}
	if from, ok := from.(int64); ok {
		from = max(from, at)
		r.sub.told[id] = from
		if beyond := r.after[id] - from; beyond > 0 { // counted from the end: the log of a fork begins later
			out, r.after[id] = out[:int64(len(out))-beyond], from
		}
	}
	return out, nil
}

// read reads up to n events of a log behind the position that was handed out.
func (r *reader) read(ctx context.Context, id string, n int) ([]json.RawMessage, error) {
	if n <= 0 {
		return nil, nil
	}
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
