package actors

import (
	"context"
	"net/http"
	"slices"
	"time"

	"codework/messages"
	"codework/providers"
)

// provider is the actor of one connection: a base URL with a credential. It
// owns the HTTP client and the shared answer to rate limits: when a request
// for a model is told to wait, every other request for that model on this
// connection holds back too and is let through in order afterwards, instead
// of each learning it for itself.
type provider struct {
	dialect providers.Dialect
	client  *http.Client
	holds   map[string]*hold // by model id
}

// hold is a model that the provider told to wait.
type hold struct {
	until   time.Time
	waiting []*openStream
	trial   *openStream // the request under way that shows whether the wait is over
	stop    func()
}

// openStream is one request under way.
type openStream struct {
	ctx  context.Context
	req  *messages.Request
	emit func(messages.StreamEvent)
	base time.Duration // how long the model is held back when the provider names no time
	max  time.Duration // longest a request holds back
}

type (
	limited struct { // a request was told to wait
		model string
		wait  time.Duration
	}
	answered  struct{ s *openStream } // a request got an answer
	abandoned struct{ s *openStream } // a request was interrupted before it had one
	holdOver  struct{ model string }
	given     struct{ s *openStream } // a held request was interrupted
	heldLong  struct{ s *openStream } // a request was held for as long as it may be
)

func newProvider(d providers.Dialect, client *http.Client) func() Actor {
	return func() Actor { return &provider{dialect: d, client: client, holds: map[string]*hold{}} }
}

func (p *provider) Receive(me *Self, m any) {
	switch m := m.(type) {
	case *openStream:
		if h := p.holds[m.req.Model.ID]; h != nil {
			p.holdBack(me, h, m)
			return
		}
		p.stream(me, m)
	case limited:
		p.limit(me, m)
	case answered:
		p.release(me, m.s)
	case abandoned:
		if h := p.holds[m.s.req.Model.ID]; h != nil && h.trial == m.s {
			p.try(me, m.s.req.Model.ID, h)
		}
	case holdOver:
		if h := p.holds[m.model]; h != nil && h.trial == nil {
			p.try(me, m.model, h)
		}
	case given:
		if p.takeOut(m.s) {
			m.s.emit(lostConnection())
		}
	case heldLong:
		if p.takeOut(m.s) {
			p.stream(me, m.s)
		}
	case Stopped:
		for _, h := range p.holds {
			for _, s := range h.waiting {
				s.emit(lostConnection())
			}
		}
		p.client.CloseIdleConnections()
	}
	me.Doing(p.doing())
}

// holdBack lets a request wait for its turn, or for as long as it may. An
// interrupt takes it out.
func (p *provider) holdBack(me *Self, h *hold, s *openStream) {
	h.waiting = append(h.waiting, s)
	tell := me.Later()
	enough := me.After(s.max, heldLong{s})
	context.AfterFunc(s.ctx, func() {
		enough()
		tell(given{s})
	})
}

// takeOut takes a request out of those that wait, and tells whether it did.
func (p *provider) takeOut(s *openStream) bool {
	h := p.holds[s.req.Model.ID]
	if h == nil {
		return false
	}
	i := slices.Index(h.waiting, s)
	if i < 0 {
		return false
	}
	h.waiting = slices.Delete(h.waiting, i, i+1)
	return true
}

// limit begins or prolongs a hold.
func (p *provider) limit(me *Self, m limited) {
	h := p.holds[m.model]
	if h == nil {
		h = &hold{}
		p.holds[m.model] = h
	}
	h.trial = nil
	if until := time.Now().Add(m.wait); until.After(h.until) {
		h.until = until
	}
	if h.stop != nil {
		h.stop()
	}
	h.stop = me.After(time.Until(h.until), holdOver{m.model})
}

// try lets the first waiting request through, to see whether the limit is
// over. Without one the hold ends.
func (p *provider) try(me *Self, model string, h *hold) {
	h.trial = nil
	for len(h.waiting) > 0 {
		s := h.waiting[0]
		h.waiting = h.waiting[1:]
		if s.ctx.Err() == nil {
			h.trial = s
			p.stream(me, s)
			return
		}
		s.emit(lostConnection())
	}
	delete(p.holds, model)
}

// release ends the hold of a model when its trial was answered: everyone goes
// on, in order. An older request that is answered only now shows nothing.
func (p *provider) release(me *Self, s *openStream) {
	model := s.req.Model.ID
	h := p.holds[model]
	if h == nil || h.trial != s {
		return
	}
	delete(p.holds, model)
	if h.stop != nil {
		h.stop()
	}
	for _, s := range h.waiting {
		p.stream(me, s)
	}
}

// stream sends one request, beside the actor. When the connection's actor
// ends under it, the request fails as a lost connection, which the session
// may retry.
func (p *provider) stream(me *Self, s *openStream) {
	tell := me.Later()
	me.Go(func(actorEnds context.Context) any {
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		defer context.AfterFunc(actorEnds, cancel)()
		emitted := false
		defer func() {
			if !emitted { // the dialect failed; the actor will be told
				s.emit(lostConnection())
			}
		}()
		for try := 0; ; try++ {
			end, again := p.once(ctx, s, tell)
			if end == nil {
				emitted = true
				return nil
			}
			if again && try < s.req.Options.HTTPRetries && sleep(ctx, httpRetryBase<<min(try, maxDoublings)) {
				continue
			}
			if actorEnds.Err() != nil && s.ctx.Err() == nil {
				*end = lostConnection()
			}
			emitted = true
			s.emit(*end)
			return nil
		}
	})
}

// The wait between the retries of options.maxRetries, doubled each time.
const (
	httpRetryBase = 500 * time.Millisecond
	maxDoublings  = 6
)

// once sends the request and hands on what comes. An error that ended it is
// not handed on but returned, with whether it came before anything else and
// may be tried again.
func (p *provider) once(ctx context.Context, s *openStream, tell func(any)) (end *messages.StreamEvent, again bool) {
	model := s.req.Model.ID
	started, over := false, false
	var pieces pace
	p.dialect.Stream(ctx, p.client, s.req, func(ev messages.StreamEvent) {
		switch {
		case over:
			return
		case ev.Kind == messages.StreamStart:
			started = true
			tell(answered{s})
		case ev.Kind == messages.StreamDone:
			over = true
		case ev.Kind == messages.StreamError:
			over = true
			switch f := ev.Failure; {
			case f != nil && f.Type == messages.FailRateLimit && f.Retryable:
				wait := f.RetryAfter
				if wait <= 0 {
					wait = s.base
				}
				tell(limited{model, min(wait, s.max)})
			case s.ctx.Err() != nil:
				tell(abandoned{s})
			default:
				tell(answered{s})
			}
			// A rate limit is the hold's matter, and the session's: they know
			// how long to wait.
			f := ev.Failure
			end, again = &ev, f != nil && f.Retryable && f.Type != messages.FailRateLimit && !started
			return
		}
		if isDelta(ev.Kind) {
			pieces.hold(ctx)
		}
		s.emit(ev)
	})
	if !over {
		tell(abandoned{s})
		lost := lostConnection()
		end = &lost
	}
	return end, again
}

// A stream is read at this many pieces a second at most, after the first
// streamBurst at once. The fastest models give two to three thousand tokens, often
// several in a piece: one that sends each by itself ends an answer of 8,000 a second
// later. What gives more, a cache, a local server or a broken one, would take a
// processor from all other sessions.
const (
	streamRate  = 2_000
	streamBurst = 1_000
	// streamNap is how far a stream gets ahead before it has to wait, and how much
	// it may make up for when nobody had time for it: what comes in between is
	// told together, which costs half as much, and nobody sees it.
	streamNap = 25 * time.Millisecond
)

// pace holds back whoever reads a stream that is too fast. The zero value is
// for a new stream.
type pace struct {
	begun int // pieces that were not held back
	due   time.Time
}

// hold is called for each piece.
func (p *pace) hold(ctx context.Context) {
	const gap = time.Second / streamRate
	if p.begun < streamBurst {
		p.begun++
		return
	}
	now := time.Now()
	if late := now.Add(-streamNap); p.due.Before(late) {
		p.due = late
	}
	p.due = p.due.Add(gap)
	if ahead := p.due.Sub(now); ahead > streamNap {
		sleep(ctx, ahead)
	}
}

// sleep waits for d and tells whether it did, or ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func lostConnection() messages.StreamEvent {
	return messages.StreamEvent{Kind: messages.StreamError, Failure: &messages.Failure{
		Type: messages.FailTransport, Message: "the connection to the provider was closed", Retryable: true}}
}

// connection is a Streamer over a provider actor.
type connection struct {
	slot  *connectionSlot
	retry Retry  // of the exchange
	asked func() // called with the first event of each request
}

func (c connection) Stream(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
	c.slot.touch()
	first := true
	c.slot.ref.TellOr(&openStream{ctx: ctx, req: req, base: c.retry.Base, max: c.retry.MaxDelay, emit: func(ev messages.StreamEvent) {
		if first {
			first = false
			c.asked()
		}
		emit(ev)
	}}, func() { emit(lostConnection()) })
}
