package actors

import (
	"context"
	"net/http"
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
	trial   bool // one request is under way to see whether the wait is over
	stop    func()
}

// openStream is one request under way.
type openStream struct {
	ctx  context.Context
	req  *messages.Request
	emit func(messages.StreamEvent)
	max  time.Duration // longest a request holds back
}

type (
	limited struct { // a request was told to wait
		model string
		wait  time.Duration
	}
	answered struct{ model string } // a request got an answer
	holdOver struct{ model string }
	given    struct { // a held request was interrupted
		model string
		s     *openStream
	}
)

// defaultHold is how long a connection holds back when the provider names no
// time.
const defaultHold = 2 * time.Second

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
		p.release(me, m.model)
	case holdOver:
		if h := p.holds[m.model]; h != nil && !h.trial {
			p.try(me, m.model, h)
		}
	case given:
		p.forget(me, m)
	case Stopped:
		for _, h := range p.holds {
			for _, s := range h.waiting {
				s.emit(lostConnection())
			}
		}
		p.client.CloseIdleConnections()
	}
}

// holdBack lets a request wait for its turn. An interrupt takes it out.
func (p *provider) holdBack(me *Self, h *hold, s *openStream) {
	h.waiting = append(h.waiting, s)
	tell := me.Later()
	context.AfterFunc(s.ctx, func() { tell(given{s.req.Model.ID, s}) })
}

func (p *provider) forget(me *Self, m given) {
	h := p.holds[m.model]
	if h == nil {
		return
	}
	for i, s := range h.waiting {
		if s == m.s {
			h.waiting = append(h.waiting[:i:i], h.waiting[i+1:]...)
			m.s.emit(lostConnection())
			return
		}
	}
}

// limit begins or prolongs a hold.
func (p *provider) limit(me *Self, m limited) {
	h := p.holds[m.model]
	if h == nil {
		h = &hold{}
		p.holds[m.model] = h
	}
	h.trial = false
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
	for len(h.waiting) > 0 {
		s := h.waiting[0]
		h.waiting = h.waiting[1:]
		if s.ctx.Err() == nil {
			h.trial = true
			p.stream(me, s)
			return
		}
		s.emit(lostConnection())
	}
	delete(p.holds, model)
}

// release ends the hold of a model: everyone goes on, in order.
func (p *provider) release(me *Self, model string) {
	h := p.holds[model]
	if h == nil || !h.trial {
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
		for try := 0; ; try++ {
			end, again := p.once(ctx, s, tell)
			if end == nil {
				return nil
			}
			if again && try < s.req.Options.HTTPRetries && sleep(ctx, httpRetryBase<<min(try, maxDoublings)) {
				continue
			}
			if actorEnds.Err() != nil && s.ctx.Err() == nil {
				*end = lostConnection()
			}
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
	p.dialect.Stream(ctx, p.client, s.req, func(ev messages.StreamEvent) {
		switch {
		case over:
			return
		case ev.Kind == messages.StreamStart:
			started = true
			tell(answered{model})
		case ev.Kind == messages.StreamDone:
			over = true
		case ev.Kind == messages.StreamError:
			over = true
			if f := ev.Failure; f != nil && f.Type == messages.FailRateLimit && f.Retryable {
				tell(limited{model, min(max(f.RetryAfter, defaultHold), s.max)})
			} else {
				tell(answered{model})
			}
			end, again = &ev, ev.Failure != nil && ev.Failure.Retryable && !started
			return
		}
		s.emit(ev)
	})
	if !over {
		lost := lostConnection()
		end = &lost
	}
	return end, again
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
	ref *Ref
	max time.Duration
}

func (c connection) Stream(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
	c.ref.Tell(&openStream{ctx: ctx, req: req, emit: emit, max: c.max})
}
