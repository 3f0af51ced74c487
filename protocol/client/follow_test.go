package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// logged is a server with logs of sessions that keeps them when its
// connections break: what a real one is to a Follower.
type logged struct {
	t *testing.T

	mu       sync.Mutex // guards what follows
	logs     map[string]int64
	streams  []*subscriber
	servers  []*effectrpc.Server
	serving  sync.WaitGroup
	prompts  map[string]int // how often each id arrived
	admitted []string
	asked    []map[string]int64 // positions of subscriptions
	breaks   string             // method whose next call breaks the connection, once done
	twice    bool               // each durable event is sent twice
}

type subscriber struct {
	session string
	events  chan json.RawMessage
	end     chan error
}

func newLogged(t *testing.T) *logged {
	s := &logged{t: t, logs: map[string]int64{session: 0}, prompts: map[string]int{}}
	t.Cleanup(func() {
		s.lose()
		s.serving.Wait()
	})
	return s
}

// dial connects a client.
func (s *logged) dial(context.Context) (*Client, error) {
	here, there := effectrpc.Pipe()
	server := effectrpc.NewServer(there, effectrpc.ServerOptions{})
	s.mu.Lock()
	s.servers = append(s.servers, server)
	s.mu.Unlock()
	s.serving.Go(func() { _ = server.Serve(context.Background(), func(c *effectrpc.Call) { s.handle(server, c) }) })
	return Over(here), nil
}

// lose breaks all connections.
func (s *logged) lose() {
	s.mu.Lock()
	all := s.servers
	s.servers, s.streams = nil, nil
	s.mu.Unlock()
	for _, server := range all {
		server.Shutdown()
	}
}

func envelope(id string, seq int64) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"id":"evt_%d","type":"session.turn.ended","durable":{"aggregateId":%q,"seq":%d,"version":1},"data":{"sessionId":%q,"timestamp":1}}`, seq, id, seq, id))
}

const liveEvent = `{"id":"evt_live","type":"session.turn.started","data":{"sessionId":"` + session + `","timestamp":1}}`

// record appends events to a log and sends them.
func (s *logged) record(id string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.logs[id]++
		for _, sub := range s.streams {
			if sub.session == "" || sub.session == id {
				sub.events <- envelope(id, s.logs[id])
				if s.twice {
					sub.events <- envelope(id, s.logs[id])
				}
			}
		}
	}
}

func (s *logged) handle(server *effectrpc.Server, c *effectrpc.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := contract.Decode(c.Method(), c.Payload(), false)
	if err != nil {
		s.t.Error(c.Method(), err)
	}
	var answer any
	switch m := m.(type) {
	case messages.GetHistory:
		answer = messages.History{Entries: []messages.Message{}, Seq: s.logs[m.SessionID]}
	case messages.GetSession:
		answer = messages.SessionInfo{ID: m.SessionID}
	case messages.ListSessions:
		list := []messages.SessionInfo{}
		for id := range s.logs {
			list = append(list, messages.SessionInfo{ID: id})
		}
		answer = list
	case messages.Prompt:
		s.prompts[m.ID]++
		if s.prompts[m.ID] == 1 {
			s.admitted = append(s.admitted, m.ID)
		}
	case messages.Subscribe:
		s.subscribe(c, m)
		return
	}
	if c.Method() == s.breaks {
		s.breaks = ""
		go server.Shutdown() // the answer never comes
		context.AfterFunc(c.Context(), func() { c.Succeed(nil) })
		return
	}
	b, err := contract.Encode(answer)
	if err != nil {
		s.t.Error(err)
	}
	c.Succeed(b)
}

func (s *logged) subscribe(c *effectrpc.Call, m messages.Subscribe) {
	s.asked = append(s.asked, m.After)
	sub := &subscriber{session: m.SessionID, events: make(chan json.RawMessage, 1000), end: make(chan error, 1)}
	sub.events <- json.RawMessage(`{"id":"e","type":"server.connected","data":{}}`)
	for id, at := range m.After {
		last, ok := s.logs[id]
		if !ok || at > last {
			sub.end <- &effectrpc.Defect{Name: messages.RefusedPosition, Message: "no such position"}
		}
		for at < last {
			at++
			sub.events <- envelope(id, at)
		}
	}
	s.streams = append(s.streams, sub)
	c.Stream(func(ctx context.Context, _ effectrpc.Batch) ([]json.RawMessage, error) {
		select { // what is queued comes before the end
		case e := <-sub.events:
			return []json.RawMessage{e}, nil
		default:
		}
		select {
		case e := <-sub.events:
			return []json.RawMessage{e}, nil
		case err := <-sub.end:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}

func (s *logged) positions() []map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// follow begins to follow in a bubble of its own time.
func follow(t *testing.T, o FollowOptions, f func(t *testing.T, s *logged, f *Follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newLogged(t)
		if o.Dial == nil {
			o.Dial = s.dial
		}
		c, _ := s.dial(t.Context())
		defer c.Close()
		follower, err := Follow(t.Context(), c, o)
		if err != nil {
			t.Fatal(err)
		}
		defer follower.Close()
		f(t, s, follower)
	})
}

// seqs reads n durable events and returns their positions, and how many gaps
// were told on the way.
func seqs(t *testing.T, f *Follower, n int) (list []int64, gaps int) {
	t.Helper()
	for len(list) < n {
		step, err := f.Next(t.Context())
		switch {
		case err != nil:
			t.Fatalf("after %v: %v", list, err)
		case step.Gap != nil:
			gaps++
		case step.Event.Durable():
			list = append(list, step.Event.Seq)
		}
	}
	return list, gaps
}

func upTo(n int64) (list []int64) {
	for i := int64(1); i <= n; i++ {
		list = append(list, i)
	}
	return list
}

// The connection breaks behind every event, with some of those after it
// recorded while nobody listens.
func TestEveryDurableEventComesOnceWhereverTheConnectionBreaks(t *testing.T) {
	const events = 8
	for cut := range events {
		for missed := range events - cut {
			follow(t, FollowOptions{Session: session}, func(t *testing.T, s *logged, f *Follower) {
				s.record(session, cut)
				before, _ := seqs(t, f, cut)
				s.lose()
				s.record(session, missed)
				go func() {
					synctest.Wait()
					time.Sleep(time.Minute) // of the bubble: it has connected again
					s.record(session, events-cut-missed)
				}()
				after, gaps := seqs(t, f, events-cut)
				if got := append(before, after...); !slices.Equal(got, upTo(events)) || gaps != 1 {
					t.Errorf("cut after %d, %d missed: %v with %d gaps", cut, missed, got, gaps)
				}
			})
		}
	}
}

func TestALossIsToldOnceAndThenThatItIsOver(t *testing.T) {
	var lost []error
	o := FollowOptions{Session: session, Lost: func(err error) { lost = append(lost, err) }}
	follow(t, o, func(t *testing.T, s *logged, f *Follower) {
		s.record(session, 3)
		seqs(t, f, 3)
		s.lose()
		step, err := f.Next(t.Context())
		if err != nil || step.Gap == nil || !errors.Is(step.Gap.Cause, ErrConnectionLost) {
			t.Fatalf("got %+v, %v", step, err)
		}
		if len(lost) != 1 || !errors.Is(lost[0], ErrConnectionLost) {
			t.Errorf("told of %v", lost)
		}
		if got := s.positions(); !reflect.DeepEqual(got, []map[string]int64{{session: 0}, {session: 3}}) {
			t.Errorf("subscribed behind %v", got)
		}
		if f.Position(session) != 3 {
			t.Errorf("position %d", f.Position(session))
		}
	})
}

// Nothing durable had happened when the connection broke: the position is that
// of the beginning.
func TestFollowingBeginsAtTheEndOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLogged(t)
		s.record(session, 5)
		c, _ := s.dial(t.Context())
		defer c.Close()
		f, err := Follow(t.Context(), c, FollowOptions{Session: session, Dial: s.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s.lose()
		s.record(session, 1)
		if got, _ := seqs(t, f, 1); got[0] != 6 {
			t.Errorf("began with %v", got)
		}
	})
}

func TestAReaderThatWasTooSlowGoesOnOverTheSameConnection(t *testing.T) {
	o := FollowOptions{Session: session, Lost: func(err error) { t.Error("lost:", err) }}
	follow(t, o, func(t *testing.T, s *logged, f *Follower) {
		s.record(session, 2)
		seqs(t, f, 2)
		body, _ := contract.EncodeError(&messages.SubscriptionOverflow{Capacity: 9})
		s.mu.Lock()
		s.streams[0].end <- &effectrpc.RemoteError{Body: body}
		s.streams = nil
		s.mu.Unlock()
		s.record(session, 2)
		step, err := f.Next(t.Context())
		var overflow *messages.SubscriptionOverflow
		if err != nil || step.Gap == nil || !errors.As(step.Gap.Cause, &overflow) {
			t.Fatalf("got %+v, %v", step, err)
		}
		if got, _ := seqs(t, f, 2); !slices.Equal(got, []int64{3, 4}) {
			t.Errorf("got %v", got)
		}
	})
}

func TestWhatTheServerSendsTwiceComesOnce(t *testing.T) {
	follow(t, FollowOptions{Session: session}, func(t *testing.T, s *logged, f *Follower) {
		s.twice = true
		s.record(session, 3)
		s.mu.Lock()
		s.streams[0].events <- json.RawMessage(liveEvent)
		s.mu.Unlock()
		got, _ := seqs(t, f, 3)
		step, err := f.Next(t.Context())
		if !slices.Equal(got, upTo(3)) || err != nil || step.Event.Durable() {
			t.Errorf("got %v, then %+v, %v", got, step, err)
		}
	})
}

func TestAPaceOutlivesTheConnection(t *testing.T) {
	const pace = 5 * time.Millisecond
	follow(t, FollowOptions{Session: session}, func(t *testing.T, s *logged, f *Follower) {
		f.Pace(pace)
		s.lose()
		if step, err := f.Next(t.Context()); err != nil || step.Gap == nil {
			t.Fatalf("got %+v, %v", step, err)
		}
		start := time.Now()
		for _, wait := range []time.Duration{0, 0, pace, 2 * pace} { // the second is in the server when the first is acknowledged
			s.record(session, 1)
			seqs(t, f, 1)
			if d := time.Since(start); d != wait {
				t.Errorf("came after %v, want %v", d, wait)
			}
		}
		f.Pace(0)
		s.record(session, 1)
		seqs(t, f, 1)
		if d := time.Since(start); d != 2*pace {
			t.Errorf("came after %v without a pace", d)
		}
	})
}

func refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

func TestTheServerIsLookedForAtGrowingIntervals(t *testing.T) {
	var begun time.Time
	var at []time.Duration
	o := FollowOptions{Session: session, Patience: 30 * time.Second, Dial: func(context.Context) (*Client, error) {
		at = append(at, time.Since(begun))
		return nil, refused()
	}}
	follow(t, o, func(t *testing.T, s *logged, f *Follower) {
		s.lose()
		begun = time.Now()
		_, err := f.Next(t.Context())
		if !errors.Is(err, ErrConnectionLost) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v", err)
		}
		var waits []time.Duration
		last := time.Duration(0)
		for _, d := range at {
			waits = append(waits, d-last)
			last = d
		}
		ms := time.Millisecond
		want := []time.Duration{500 * ms, 750 * ms, 1125 * ms, 1687500 * time.Microsecond, 2531250 * time.Microsecond, 3796875 * time.Microsecond}
		if len(waits) < 8 || !slices.Equal(waits[:6], want) || waits[6] != 5*time.Second || waits[7] != 5*time.Second {
			t.Errorf("waited %v", waits)
		}
		if d := time.Since(begun); d != 30*time.Second || at[len(at)-1] != d {
			t.Errorf("gave up after %s, last tried after %s", d, at[len(at)-1])
		}
	})
}

func TestOneMoreNextLooksOnceMore(t *testing.T) {
	var back func(context.Context) (*Client, error)
	o := FollowOptions{Session: session, Patience: time.Second, Dial: func(ctx context.Context) (*Client, error) {
		if back == nil {
			return nil, refused()
		}
		return back(ctx)
	}}
	follow(t, o, func(t *testing.T, s *logged, f *Follower) {
		s.lose()
		if _, err := f.Next(t.Context()); !errors.Is(err, ErrConnectionLost) {
			t.Errorf("got %v", err)
		}
		s.record(session, 2)
		back = s.dial
		if got, gaps := seqs(t, f, 2); !slices.Equal(got, upTo(2)) || gaps != 1 {
			t.Errorf("got %v with %d gaps", got, gaps)
		}
	})
}

func TestTheEndOfAContextEndsOnlyTheWaiting(t *testing.T) {
	there := false
	var s *logged
	o := FollowOptions{Session: session, Dial: func(ctx context.Context) (*Client, error) {
		if !there {
			return nil, refused()
		}
		return s.dial(ctx)
	}}
	follow(t, o, func(t *testing.T, server *logged, f *Follower) {
		s = server
		limited := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			t.Cleanup(cancel)
			return ctx
		}
		for range 2 { // with a connection, and without
			if _, err := f.Next(limited()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			s.lose()
		}
		if err := f.Do(limited(), func(*Client) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call: %v", err)
		}
		there = true
		s.record(session, 1)
		if got, _ := seqs(t, f, 1); !slices.Equal(got, upTo(1)) {
			t.Errorf("got %v", got)
		}
	})
}

func TestOnlyWhatMayPassIsTriedAgain(t *testing.T) {
	for _, x := range []struct {
		err   error
		again bool
	}{
		{refused(), true},
		{&effectrpc.StatusError{Status: 503}, true},
		{&effectrpc.StatusError{Status: 429}, true},
		{fmt.Errorf("connect: %w", &effectrpc.StatusError{Status: 502}), true},
		{&messages.Refused{Name: messages.RefusedShutdown}, true},
		{io.ErrUnexpectedEOF, true},
		{context.DeadlineExceeded, true}, // of one attempt
		{&effectrpc.StatusError{Status: 401}, false},
		{&effectrpc.StatusError{Status: 404}, false},
		{&messages.Refused{Name: messages.RefusedPosition}, false},
		{&messages.SessionNotFound{SessionID: session}, false},
		{errors.New("another version"), false},
	} {
		tried := 0
		o := FollowOptions{Session: session, Patience: time.Second, Dial: func(context.Context) (*Client, error) {
			tried++
			return nil, x.err
		}}
		follow(t, o, func(t *testing.T, s *logged, f *Follower) {
			s.lose()
			_, err := f.Next(t.Context())
			if !errors.Is(err, x.err) || (tried > 1) != x.again || errors.Is(err, ErrConnectionLost) != x.again {
				t.Errorf("%v: tried %d times, got %v", x.err, tried, err)
			}
		})
	}
}

func TestAPositionThatIsGoneIsAnErrorAndNoGap(t *testing.T) {
	follow(t, FollowOptions{Session: session}, func(t *testing.T, s *logged, f *Follower) {
		s.record(session, 3)
		seqs(t, f, 3)
		s.lose()
		s.mu.Lock()
		s.logs[session] = 1 // another disk
		s.mu.Unlock()
		var err error
		for err == nil { // a gap is told, then that nothing can be told of it
			var step Step
			if step, err = f.Next(t.Context()); err == nil && step.Gap == nil {
				t.Fatalf("got %+v", step)
			}
		}
		var refused *messages.Refused
		if !errors.As(err, &refused) || refused.Name != messages.RefusedPosition {
			t.Errorf("got %v", err)
		}
	})
}

func TestAPromptIsSentAgainUnderItsIdAndRunsOnce(t *testing.T) {
	follow(t, FollowOptions{Session: session}, func(t *testing.T, s *logged, f *Follower) {
		s.mu.Lock()
		s.breaks = contract.SessionPrompt
		s.mu.Unlock()
		p := messages.Prompt{SessionID: session, Text: "hi", ID: "mine"}
		if err := f.Prompt(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if s.prompts["mine"] != 2 || !slices.Equal(s.admitted, []string{"mine"}) {
			t.Errorf("arrived %v, admitted %v", s.prompts, s.admitted)
		}
		if err := f.Prompt(t.Context(), messages.Prompt{SessionID: session, Text: "hi"}); err == nil {
			t.Error("a prompt without an id was sent")
		}
		step, err := f.Next(t.Context())
		if err != nil || step.Gap == nil {
			t.Errorf("the loss was not told: %+v, %v", step, err)
		}
	})
}

func TestOfAllSessionsNewOnesAreReadFromTheirBeginning(t *testing.T) {
	const other, later = "ses_other", "ses_later"
	follow(t, FollowOptions{}, func(t *testing.T, s *logged, f *Follower) {
		s.record(session, 2)
		s.record(other, 1)
		seqs(t, f, 3)
		s.lose()
		s.mu.Lock()
		delete(s.logs, other) // its position would be refused
		s.mu.Unlock()
		s.record(later, 2)
		s.record(session, 1)
		got := map[string][]int64{}
		for range 4 {
			step, err := f.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if step.Gap == nil {
				got[step.Event.Session] = append(got[step.Event.Session], step.Event.Seq)
			}
		}
		if want := (map[string][]int64{session: {3}, later: {1, 2}}); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestWithoutAWayBackALossIsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLogged(t)
		c, _ := s.dial(t.Context())
		defer c.Close()
		f, err := Follow(t.Context(), c, FollowOptions{Session: session})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s.lose()
		for range 2 {
			if _, err := f.Next(t.Context()); !errors.Is(err, ErrConnectionLost) {
				t.Errorf("got %v", err)
			}
		}
		if err := f.Do(t.Context(), func(c *Client) error { _, err := c.Info(t.Context()); return err }); !errors.Is(err, ErrConnectionLost) {
			t.Errorf("a call: %v", err)
		}
	})
}

func TestAClosedFollowerGivesNothing(t *testing.T) {
	follow(t, FollowOptions{Session: session}, func(t *testing.T, s *logged, f *Follower) {
		s.record(session, 1)
		f.Close()
		f.Close()
		if _, err := f.Next(t.Context()); !errors.Is(err, effectrpc.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestFollowingBeginsOnlyWithAServerThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLogged(t)
		c, _ := s.dial(t.Context())
		defer c.Close()
		s.lose()
		if _, err := Follow(t.Context(), c, FollowOptions{Session: session, Dial: s.dial}); !ended(err) || len(s.asked) > 0 {
			t.Errorf("got %v", err)
		}
	})
}
