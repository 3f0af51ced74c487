package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"time"

	"codework/messages"
	"codework/protocol/effectrpc"
)

// A server that was lost is dialled after firstDelay, then at intervals that
// grow by half, up to maxDelay: the schedule of the stock client. One attempt
// takes at most dialLimit.
const (
	firstDelay = 500 * time.Millisecond
	maxDelay   = 5 * time.Second
	dialLimit  = 10 * time.Second
)

// FollowOptions say what a Follower follows. The zero value follows all
// sessions over one connection.
type FollowOptions struct {
	// Session is the session to follow; "" is all of them.
	Session string

	// After names, per session, the last durable position that was seen;
	// what is recorded behind it comes first. Without a position of Session,
	// following begins now.
	After map[string]int64

	// Dial connects again when the connection is lost. Nil means that the
	// loss of the connection is the end. What Dial makes the Follower closes.
	Dial func(context.Context) (*Client, error)

	// Patience is how long a lost server is looked for. Zero means as long
	// as the context of the call lasts.
	Patience time.Duration

	// Lost, if set, is told once that a connection is lost, before the
	// server is looked for.
	Lost func(cause error)
}

// Step is what a Follower gives: an event, or the news that events may be
// missing at this place.
type Step struct {
	Event messages.Event
	// Gap, if not nil, comes instead of an event.
	Gap *Reconnected
}

// Reconnected tells that a subscription was made anew. The durable events of
// the time between follow; live ones of that time are gone.
type Reconnected struct {
	// Cause is why the subscription before ended: an error that wraps
	// ErrConnectionLost, or *messages.SubscriptionOverflow for a reader that
	// was too slow.
	Cause error
}

// Follower is a subscription that outlives its connection. One goroutine uses
// it.
//
// Every durable event of the followed session comes once and in order,
// whatever happens to the connection. When all sessions are followed, that
// holds from the first event or position on that is known of a session, and
// for sessions that are made meanwhile from their beginning.
type Follower struct {
	o      FollowOptions
	client *Client
	dialed bool // client was made by o.Dial
	events *Events
	at     map[string]int64 // last durable position, per session
	known  map[string]bool  // sessions there were, when all are followed
	gap    *Reconnected     // to be told next
	down   error            // why there is no connection
	pace   time.Duration
	life   context.Context
	end    context.CancelFunc
	unsub  context.CancelFunc // ends the subscription that events reads
}

// Follow subscribes over c, which stays the caller's to close. Close must be
// called in the end. Errors are those of Subscribe: following begins only with
// a server that is there.
func Follow(ctx context.Context, c *Client, o FollowOptions) (*Follower, error) {
	f := &Follower{o: o, client: c, at: map[string]int64{}}
	maps.Copy(f.at, o.After)
	f.life, f.end = context.WithCancel(context.Background())
	err := f.begin(ctx)
	if err == nil {
		err = f.subscribe(ctx, c)
	}
	if err != nil {
		f.end()
		return nil, err
	}
	return f, nil
}

// begin finds out from where to go on after a loss.
func (f *Follower) begin(ctx context.Context) error {
	if f.o.Dial == nil {
		return nil
	}
	if f.o.Session == "" {
		return f.survey(ctx, f.client)
	}
	if _, ok := f.at[f.o.Session]; ok {
		return nil
	}
	h, err := f.client.History(ctx, messages.GetHistory{SessionID: f.o.Session, Limit: 1})
	f.at[f.o.Session] = h.Seq
	return err
}

// survey learns which sessions there are. Those that are new are to be read
// from their beginning; a position in one that is gone would be refused.
func (f *Follower) survey(ctx context.Context, c *Client) error {
	list, err := c.List(ctx, messages.ListSessions{})
	if err != nil {
		return err
	}
	first := f.known == nil
	known := make(map[string]bool, len(list))
	for _, s := range list {
		known[s.ID] = true
		if _, ok := f.at[s.ID]; !ok && !first && !f.known[s.ID] {
			f.at[s.ID] = 0
		}
	}
	maps.DeleteFunc(f.at, func(id string, _ int64) bool { return !known[id] && !first })
	f.known = known
	return nil
}

// subscribe asks c for the events behind what was seen.
func (f *Follower) subscribe(ctx context.Context, c *Client) error {
	// The subscription outlives ctx, which bounds the asking.
	life, cancel := context.WithCancel(f.life)
	stop := context.AfterFunc(ctx, cancel)
	e, err := c.Subscribe(life, messages.Subscribe{SessionID: f.o.Session, After: maps.Clone(f.at)})
	if !stop() && ctx.Err() != nil {
		if err == nil {
			e.Close()
		}
		cancel()
		return ctx.Err()
	}
	if err != nil {
		cancel()
		return err
	}
	if f.unsub != nil {
		f.unsub()
	}
	f.events, f.unsub = e, cancel
	e.Pace(f.pace)
	return nil
}

// Next waits for the next step. The end of ctx ends only the waiting. An
// error that wraps ErrConnectionLost says that the server was not found again
// within the patience; calling Next once more looks for it once more. Other
// errors are final: a position or a session that the server does not have any
// more, a token that is refused.
func (f *Follower) Next(ctx context.Context) (Step, error) {
	for {
		if err := f.up(ctx); err != nil {
			return Step{}, err
		}
		if gap := f.gap; gap != nil {
			f.gap = nil
			return Step{Gap: gap}, nil
		}
		e, err := f.events.Next(ctx)
		var overflow *messages.SubscriptionOverflow
		switch {
		case err == nil && e.Durable() && e.Seq <= f.at[e.Session]:
			continue // seen already
		case err == nil:
			if e.Durable() {
				f.at[e.Session] = e.Seq
			}
			return Step{Event: e}, nil
		case ctx.Err() != nil:
			return Step{}, ctx.Err()
		case errors.As(err, &overflow):
			f.gap = &Reconnected{err}
			if err = f.subscribe(ctx, f.client); err == nil {
				continue
			}
		}
		if !ended(err) {
			return Step{}, err
		}
		if f.o.Dial == nil {
			return Step{}, lostError(err)
		}
		f.drop(lostError(err))
	}
}

// Do makes a call on the connection that there is at the moment, and makes it
// again on the next one when that is lost, so it must be one that may be made
// twice.
func (f *Follower) Do(ctx context.Context, call func(*Client) error) error {
	for {
		if err := f.up(ctx); err != nil {
			return err
		}
		err := call(f.client)
		if err == nil || ctx.Err() != nil || f.o.Dial == nil || !ended(err) {
			return err
		}
		f.drop(lostError(err))
	}
}

// Prompt saves a prompt, which must have an id: under it the prompt is sent
// again when the connection is lost before the answer comes, and runs once.
func (f *Follower) Prompt(ctx context.Context, p messages.Prompt) error {
	if p.ID == "" {
		return errors.New("a prompt that may be sent twice needs an id")
	}
	return f.Do(ctx, func(c *Client) error { return c.Prompt(ctx, p, false) })
}

// Client is the connection that there was last. A call on it is made once, and
// fails with the connection.
func (f *Follower) Client() *Client { return f.client }

// Position is the last durable position that was given of a session, or that
// following began with.
func (f *Follower) Position(session string) int64 { return f.at[session] }

// Pace is that of the subscription, and of those that follow it after a loss.
func (f *Follower) Pace(d time.Duration) {
	f.pace = d
	if f.events != nil {
		f.events.Pace(d)
	}
}

// drop gives a lost connection up.
func (f *Follower) drop(cause error) {
	f.unsub()
	if f.dialed {
		f.client.Close()
	}
	f.events, f.down = nil, cause
	if f.o.Lost != nil {
		f.o.Lost(cause)
	}
}

// up returns when there is a connection.
func (f *Follower) up(ctx context.Context) error {
	if f.life.Err() != nil {
		return effectrpc.ErrClosed
	}
	if f.down == nil {
		return nil
	}
	begun, delay, last := time.Now(), firstDelay, f.down
	for {
		if f.o.Patience > 0 {
			left := f.o.Patience - time.Since(begun)
			if left <= 0 {
				return fmt.Errorf("%w, and not found again within %s: %w", ErrConnectionLost, f.o.Patience, last)
			}
			delay = min(delay, left)
		}
		t := time.NewTimer(delay)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		err := f.dial(ctx)
		switch {
		case err == nil:
			f.gap, f.down = &Reconnected{f.down}, nil
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !passing(err):
			return err
		}
		last, delay = err, min(delay*3/2, maxDelay)
	}
}

// dial connects once and subscribes behind what was seen.
func (f *Follower) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	c, err := f.o.Dial(ctx)
	if err != nil {
		return err
	}
	if f.o.Session == "" {
		err = f.survey(ctx, c)
	} else {
		// A server that was started again settles what its session left open
		// when somebody asks for it.
		_, err = c.Session(ctx, f.o.Session)
	}
	if err == nil {
		err = f.subscribe(ctx, c)
	}
	if err != nil {
		c.Close()
		return err
	}
	f.client, f.dialed = c, true
	return nil
}

// Close ends the subscription, and the connection if it is not the first.
func (f *Follower) Close() {
	f.end()
	if f.events != nil && f.dialed {
		f.client.Close()
	}
	f.events = nil
}

// ended tells whether an error means that the server went away. One that goes
// down ends its streams and refuses calls first.
func ended(err error) bool {
	var refused *messages.Refused
	return errors.Is(err, ErrConnectionLost) || errors.Is(err, io.EOF) || errors.Is(err, effectrpc.ErrInterrupted) ||
		errors.As(err, &refused) && refused.Name == messages.RefusedShutdown
}

func lostError(err error) error {
	if errors.Is(err, ErrConnectionLost) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrConnectionLost, err)
}

// passing tells whether an error of connecting may be gone after a while.
func passing(err error) bool {
	var status *effectrpc.StatusError
	if errors.As(err, &status) {
		return status.Status >= http.StatusInternalServerError || status.Status == http.StatusTooManyRequests
	}
	var network net.Error
	return ended(err) || errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF)
}
