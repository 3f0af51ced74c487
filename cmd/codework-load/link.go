package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/effectrpc"
)

// link is a connection to the server that can be made to break off.
type link struct {
	*client.Client
	tcp net.Conn
}

// address is a server and what it asks for.
type address struct{ endpoint, token string }

func (a address) dial(ctx context.Context) (*link, error) {
	l := &link{}
	t := &http.Transport{DisableKeepAlives: true}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		l.tcp = c
		return c, err
	}
	conn, err := effectrpc.Dial(ctx, a.endpoint, effectrpc.DialOptions{HTTPClient: &http.Client{Transport: t}, Token: a.token})
	if err != nil {
		return nil, err
	}
	l.Client = client.Over(conn)
	return l, nil
}

// cut ends the connection as the loss of a network does: without a word.
func (l *link) cut() {
	if t, ok := l.tcp.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // then closing sends a reset
	}
	l.tcp.Close()
}

// redialLimit is how long a lost server is looked for, redialPause the time
// between two looks.
const (
	redialLimit = 10 * time.Second
	redialPause = 50 * time.Millisecond
)

// reader reads the events of sessions from one connection, over which their
// calls go, too. It makes connection and subscription anew when they are lost.
type reader struct {
	fleet *fleet
	one   string // the only session, "" for all
	cuts  bool   // the connection is lost on purpose

	cancel context.CancelFunc // ends the reading
	done   chan struct{}      // closed when it has ended

	mu       sync.Mutex // guards what follows
	link     *link
	sessions map[string]*session
	renewed  chan struct{} // closed once the connection that was cut is made anew
}

func (r *reader) client() *client.Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link.Client
}

// cut breaks the connection off and waits until there is a new one.
func (r *reader) cut(ctx context.Context) error {
	r.mu.Lock()
	renewed := make(chan struct{})
	r.renewed = renewed
	r.link.cut()
	r.mu.Unlock()
	select {
	case <-renewed:
		return nil
	case <-r.done:
		return &gaveUp{client.ErrConnectionLost}
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *reader) add(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[s.id] = s
}

func (r *reader) find(id string) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[id]
}

func (r *reader) all() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*session, 0, len(r.sessions))
	for _, s := range r.sessions {
		out = append(out, s)
	}
	return out
}

// subscribe asks for the events behind what each session has seen.
func (r *reader) subscribe(ctx context.Context) (*client.Events, error) {
	after := map[string]int64{}
	for _, s := range r.all() {
		after[s.id] = s.position()
	}
	return r.client().Subscribe(ctx, messages.Subscribe{SessionID: r.one, After: after})
}

// start begins to read; close must be called in the end.
func (r *reader) start(events *client.Events) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		r.read(ctx, events)
	}()
}

// stop ends the reading and waits for that.
func (r *reader) stop() {
	r.cancel()
	<-r.done
}

// close ends the reading and the connection, and waits for both.
func (r *reader) close() {
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.link.Close() // it may have been lost before
}

// read hands events to their sessions until the context ends or the server is
// gone for good.
func (r *reader) read(ctx context.Context, events *client.Events) {
	for {
		e, err := events.Next(ctx)
		if err == nil {
			at := time.Now()
			if s := r.find(e.Session); s != nil {
				s.on(e, at)
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		for _, s := range r.all() {
			s.missed()
		}
		var overflow *messages.SubscriptionOverflow
		switch {
		case errors.As(err, &overflow):
			r.fleet.fail("the subscription overflowed")
		case !r.cuts:
			r.fleet.fail("the connection was lost: " + err.Error())
		default:
			r.fleet.note("connections that broke off and were made anew")
		}
		if events, err = r.again(ctx, !errors.As(err, &overflow)); err != nil {
			if ctx.Err() == nil {
				for _, s := range r.all() {
					s.give(outcome{err: err})
				}
			}
			return
		}
	}
}

// again subscribes once more, over a new connection if that is the one that was
// lost.
func (r *reader) again(ctx context.Context, dial bool) (*client.Events, error) {
	late := time.Now().Add(redialLimit)
	for {
		events, err := r.attempt(ctx, dial)
		if err == nil || ctx.Err() != nil || time.Now().After(late) {
			return events, err
		}
		dial = true
		if err := pause(ctx, redialPause); err != nil {
			return nil, err
		}
	}
}

func (r *reader) attempt(ctx context.Context, dial bool) (*client.Events, error) {
	if dial {
		l, err := r.fleet.address.dial(ctx)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.link.Close()
		r.link = l
		if r.renewed != nil {
			close(r.renewed)
			r.renewed = nil
		}
		r.mu.Unlock()
	}
	return r.subscribe(ctx)
}

// pause waits, or fails with the context's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
