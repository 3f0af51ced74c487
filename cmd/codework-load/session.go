package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"codework/messages"
	"codework/protocol/client"
)

// session is one session of the run and the one who works in it.
type session struct {
	fleet *fleet
	index int
	kind  kind
	rand  *rand.Rand // used by its own goroutine only

	id     string
	reader *reader

	mu    sync.Mutex // guards what follows
	check checker
	lat   latencies
	turn  time.Time // when the running turn began
	round *round
	news  chan struct{} // closed and replaced when the position moves
}

// round is one prompt and what it sets off.
type round struct {
	start  time.Time       // from which its latencies count
	wanted map[string]bool // prompts that have not joined the work yet
	first  bool            // a delta has come
	began  chan struct{}   // closed when there is a delta or a command
	busy   bool            // began is closed
	over   chan outcome    // holds one
}

// outcome is how a round ended.
type outcome struct {
	at   time.Time
	kind string // type of the last event
	err  error  // why it failed
}

// on takes an event that arrived.
func (s *session) on(e messages.Event, at time.Time) {
	b, err := read(e)
	if err != nil {
		s.fleet.fail("an event that cannot be read: " + e.Type)
		return
	}
	s.fleet.events.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sent := range s.check.event(e, b) {
		s.lat.delta = append(s.lat.delta, took(sent, at))
	}
	if e.Durable() {
		close(s.news)
		s.news = make(chan struct{})
	}
	r := s.round
	switch e.Type {
	case messages.EventTurnStarted:
		s.turn = at
	case messages.EventTurnEnded:
		s.fleet.turns.Add(1)
		if !s.turn.IsZero() {
			s.lat.turn = append(s.lat.turn, took(s.turn, at))
		}
		s.turn = time.Time{}
	}
	if r == nil {
		return
	}
	switch e.Type {
	case messages.EventLLMTextDelta, messages.EventLLMCallDelta, messages.EventLLMThinkingDelta, messages.EventToolStarted:
		if e.Type != messages.EventToolStarted && !r.first {
			r.first = true
			s.lat.first = append(s.lat.first, took(r.start, at))
		}
		// A call's arguments are no work yet that could be stopped half way.
		if e.Type != messages.EventLLMCallDelta && !r.busy {
			r.busy = true
			close(r.began)
		}
	case messages.EventPromptPromoted:
		delete(r.wanted, b.MessageID)
	case messages.EventExecutionFailed:
		err := errors.New("execution failed")
		if b.Error != nil {
			err = fmt.Errorf("execution failed: %s: %s", b.Error.Type, b.Error.Message)
		}
		r.give(outcome{at, e.Type, err})
	case messages.EventExecutionInterrupted:
		r.give(outcome{at, e.Type, nil})
	case messages.EventExecutionSucceeded:
		if len(r.wanted) == 0 {
			r.give(outcome{at, e.Type, nil})
		}
	}
}

func (r *round) give(o outcome) {
	select {
	case r.over <- o:
	default: // it is over already
	}
}

// give ends the running round.
func (s *session) give(o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.round != nil {
		s.round.give(o)
	}
}

// position is the last durable one that was seen.
func (s *session) position() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.check.seq
}

// missed tells that live events may be missing from here.
func (s *session) missed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check.gap()
	s.turn = time.Time{}
}

// open makes the session on the server.
func (s *session) open(ctx context.Context, c *client.Client) error {
	began := time.Now()
	m := messages.CreateSession{HostDir: s.fleet.plan.dir}
	if s.fleet.plan.model != nil {
		m.Runtime = &messages.Runtime{Model: s.fleet.plan.model}
	}
	info, err := c.Create(ctx, m)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id, s.check.seq, s.check.answers = info.ID, 0, nil
	s.lat.create = append(s.lat.create, took(began, time.Now()))
	return nil
}

// live plays rounds until there are no more.
func (s *session) live(ctx context.Context) {
	for n := 0; ; n++ {
		start, ok := s.fleet.next(ctx, n)
		if !ok {
			return
		}
		s.fleet.running.Add(1)
		err := s.play(ctx, n, start)
		s.fleet.running.Add(-1)
		s.fleet.played.Add(1)
		if err != nil {
			if ctx.Err() == nil {
				s.fleet.fail(err.Error())
			}
			var gone *gaveUp
			if errors.As(err, &gone) || ctx.Err() != nil {
				return
			}
			// What still waits would run with the next prompt.
			if _, err := s.reader.client().Queue(ctx, messages.GetQueue{SessionID: s.id, Clear: true}); err != nil {
				s.fleet.fail("clear the queue: " + err.Error())
				return
			}
		}
	}
}

// gaveUp is the failure of a session that does not go on.
type gaveUp struct{ error }

// play is one round. Its latencies count from start.
func (s *session) play(ctx context.Context, n int, start time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.fleet.plan.timeout, fmt.Errorf("a round did not end within %s", s.fleet.plan.timeout))
	defer cancel()
	if s.kind.churn {
		if err := s.fleet.connect(ctx, s, nil); err != nil {
			return err
		}
		defer s.reader.close()
	}
	err := s.work(ctx, n, start)
	if err == nil && s.kind.churn {
		if err = s.settle(ctx); err == nil {
			s.reader.stop() // the deletion ends the subscription
			err = s.reader.client().Delete(ctx, s.id, false)
		}
	}
	if ctx.Err() != nil && err != nil {
		err = &gaveUp{context.Cause(ctx)}
	}
	return err
}

func (s *session) work(ctx context.Context, n int, start time.Time) error {
	r := &round{start: start, wanted: map[string]bool{}, began: make(chan struct{}), over: make(chan outcome, 1)}
	s.mu.Lock()
	s.round = r
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.round = nil
		s.mu.Unlock()
	}()
	p := messages.Prompt{Text: s.kind.prompt(s.rand, s.index, n)}
	if s.kind.image {
		data, err := picture(s.rand)
		if err != nil {
			return err
		}
		p.Parts = []messages.Part{{Type: messages.PartImage, MediaType: "image/png", Data: data}}
	}
	if err := s.prompt(ctx, r, p, start); err != nil {
		return err
	}
	stopped, err := s.meddle(ctx, r)
	if err != nil {
		return err
	}
	select {
	case o := <-r.over:
		return s.ended(r, o, stopped)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prompt sends one; its admission counts from began.
func (s *session) prompt(ctx context.Context, r *round, p messages.Prompt, began time.Time) error {
	p.SessionID, p.ID = s.id, messages.NewMessageID()
	s.mu.Lock()
	r.wanted[p.ID] = true
	s.mu.Unlock()
	if err := s.reader.client().Prompt(ctx, p, false); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lat.admitted = append(s.lat.admitted, took(began, time.Now()))
	return nil
}

// What happens to running work happens this long after it began, at most.
const (
	steerWithin  = 200 * time.Millisecond
	meddleWithin = 800 * time.Millisecond
)

// meddle does to running work what the session's kind asks for, and tells when
// it was told to stop.
func (s *session) meddle(ctx context.Context, r *round) (stopped time.Time, err error) {
	k := s.kind
	if !k.interrupt && !k.vanish && k.steers+k.followUps == 0 {
		return stopped, nil
	}
	select {
	case <-r.began:
	case o := <-r.over:
		r.over <- o
		return stopped, nil
	case <-ctx.Done():
		return stopped, ctx.Err()
	}
	for i := range k.steers + k.followUps {
		if err := pause(ctx, between(s.rand, 0, steerWithin)); err != nil {
			return stopped, err
		}
		p := messages.Prompt{Text: fmt.Sprintf("and this, %d", i+1), Delivery: messages.Steer}
		if i >= k.steers {
			p.Delivery = messages.FollowUp
		}
		if err := s.prompt(ctx, r, p, time.Now()); err != nil {
			return stopped, err
		}
	}
	if !k.interrupt && !k.vanish {
		return stopped, nil
	}
	if err := pause(ctx, between(s.rand, 0, meddleWithin)); err != nil {
		return stopped, err
	}
	if k.vanish {
		return stopped, s.reader.cut(ctx)
	}
	stopped = time.Now()
	did, err := s.reader.client().Interrupt(ctx, messages.Interrupt{SessionID: s.id})
	if err != nil {
		return stopped, fmt.Errorf("interrupt: %w", err)
	}
	if !did {
		return stopped, errors.New("interrupt: there was nothing to stop")
	}
	return stopped, nil
}

// ended judges how a round ended.
func (s *session) ended(r *round, o outcome, stopped time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(o.err, client.ErrConnectionLost):
		return &gaveUp{o.err}
	case o.err != nil:
		return o.err
	case s.kind.interrupt && o.kind != messages.EventExecutionInterrupted:
		return fmt.Errorf("interrupted, but it ended with %s", o.kind)
	case !s.kind.interrupt && o.kind != messages.EventExecutionSucceeded:
		return fmt.Errorf("it ended with %s", o.kind)
	case s.kind.interrupt:
		s.lat.interrupt = append(s.lat.interrupt, took(stopped, o.at))
	}
	s.lat.total = append(s.lat.total, took(r.start, o.at))
	return nil
}

// settleLimit is how long the last events may take to arrive.
const settleLimit = 10 * time.Second

// settle compares the last position that was seen with the server's, and with
// that what was lost at the end.
func (s *session) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	c := s.reader.client()
	if err := c.Wait(ctx, s.id); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	h, err := c.History(ctx, messages.GetHistory{SessionID: s.id, Limit: 1})
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	for {
		s.mu.Lock()
		at, news := s.check.seq, s.news
		s.mu.Unlock()
		if at >= h.Seq {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			s.mu.Lock()
			s.check.faults.LostEvents += h.Seq - s.check.seq
			s.mu.Unlock()
			return nil
		}
	}
}
