package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// log is a server half with one log per session, which outlives its
// connections. A subscription gets the log behind its position, and then what
// the test adds.
type log struct {
	t *testing.T

	mu       sync.Mutex                   // guards what follows
	events   map[string][]json.RawMessage // by session
	after    []map[string]int64           // positions that subscriptions named
	prompts  []string                     // ids
	loseWhen string                       // the connection is lost when this method is called
	live     []chan error                 // ends a subscription, one each
	wake     chan struct{}                // closed and made anew when something was added
	servers  []*effectrpc.Server
	clients  []*Client
}

func newLog(t *testing.T, sessions ...string) *log {
	l := &log{t: t, events: map[string][]json.RawMessage{}, wake: make(chan struct{})}
	for _, s := range sessions {
		l.events[s] = nil
	}
	return l
}

// add records an event: seq 0 is a live one, which only those hear who listen.
func (l *log) add(session string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := messages.Event{ID: fmt.Sprintf("evt_%d", n), Type: messages.EventTurnEnded, Session: session, Seq: n,
		Data: json.RawMessage(`{"timestamp":1,"sessionId":"` + session + `"}`)}
	b, err := contract.EncodeEvent(e)
	if err != nil {
		l.t.Error(err)
	}
	l.events[session] = append(l.events[session], b)
	close(l.wake)
	l.wake = make(chan struct{})
}

// connect opens a connection to the server.
func (l *log) connect(context.Context) (*Client, error) {
	here, there := effectrpc.Pipe()
	s := effectrpc.NewServer(there, effectrpc.ServerOptions{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(context.Background(), func(c *effectrpc.Call) { l.handle(s, c) }) // how it ends is the client's to say
	}()
	c := Over(here)
	l.mu.Lock()
	l.servers, l.clients = append(l.servers, s), append(l.clients, c)
	l.mu.Unlock()
	l.t.Cleanup(func() {
		c.Close()
		<-served
	})
	return c, nil
}

// lose ends the newest connection, and returns when it has ended.
func (l *log) lose() {
	l.mu.Lock()
	s := l.servers[len(l.servers)-1]
	l.mu.Unlock()
	s.Shutdown()
	synctest.Wait()
}

func (l *log) handle(s *effectrpc.Server, c *effectrpc.Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Method() == l.loseWhen {
		l.loseWhen = ""
		s.Shutdown()
		context.AfterFunc(c.Context(), func() { c.Succeed(nil) })
		return
	}
	switch c.Method() {
	case contract.SessionPrompt:
		var p contract.PromptPayload
		if err := json.Unmarshal(c.Payload(), &p); err != nil {
			l.t.Error(err)
		}
		l.prompts = append(l.prompts, p.ID)
		c.Succeed(nil)
	case contract.SessionHistory:
		c.Succeed(json.RawMessage(fmt.Sprintf(`{"entries":[],"more":false,"seq":%d}`, len(l.events[session]))))
	case contract.SessionInfo:
		c.Succeed(json.RawMessage(`{"id":"` + session + `"}`))
	case contract.SessionList:
		list := []string{}
		for id := range l.events {
			list = append(list, `{"id":"`+id+`"}`)
		}
		c.Succeed(json.RawMessage("[" + strings.Join(list, ",") + "]"))
	case contract.EventSubscribe:
		l.subscribe(c)
	default:
		c.DieUnknownMethod()
	}
}

func (l *log) subscribe(c *effectrpc.Call) {
	var q messages.Subscribe
	if err := json.Unmarshal(c.Payload(), &q); err != nil {
		l.t.Error(err)
	}
	l.after = append(l.after, q.After)
	sent := map[string]int64{}
	for id, list := range l.events {
		if after, ok := q.After[id]; ok {
			sent[id] = after
		} else {
			sent[id] = int64(len(list))
		}
	}
	end := make(chan error, 1)
	l.live = append(l.live, end)
	first := true
	c.Stream(func(ctx context.Context, _ effectrpc.Batch) ([]json.RawMessage, error) {
		if first {
			first = false
			return []json.RawMessage{json.RawMessage(`{"id":"e","type":"server.connected","data":{}}`)}, nil
		}
		for {
			l.mu.Lock()
			var out []json.RawMessage
			for id, list := range l.events {
				out = append(out, list[sent[id]:]...)
				sent[id] = int64(len(list))
			}
			wake := l.wake
			l.mu.Unlock()
			if len(out) > 0 {
				return out, nil
			}
			select {
			case <-wake:
			case err := <-end:
				return nil, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
}

// step is what a follower gave, as a short text.
func step(t *testing.T, f *Follower) string {
	t.Helper()
	s, err := f.Next(t.Context())
	switch {
	case err != nil:
		return "error"
	case s.Gap != nil:
		return "gap"
	}
	return fmt.Sprint(s.Event.Seq)
}

func steps(t *testing.T, f *Follower, want ...string) {
	t.Helper()
	for i, w := range want {
		if got := step(t, f); got != w {
			t.Fatalf("step %d is %s, want %s", i, got, w)
		}
	}
}

// following tests a follower of one session in a bubble of its own time.
func following(t *testing.T, o FollowOptions, redials bool, test func(t *testing.T, l *log, f *Follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t, session)
		l.add(session, 1)
		l.add(session, 2)
		c, _ := l.connect(t.Context())
		if redials && o.Dial == nil {
			o.Dial = l.connect
		}
		f, err := Follow(t.Context(), c, o)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		test(t, l, f)
	})
}

func TestFollowingBeginsNowOrBehindAPosition(t *testing.T) {
	following(t, FollowOptions{Session: session}, false, func(t *testing.T, l *log, f *Follower) {
		l.add(session, 3)
		steps(t, f, "3")
	})
	following(t, FollowOptions{Session: session, After: map[string]int64{session: 1}}, false, func(t *testing.T, l *log, f *Follower) {
		steps(t, f, "2")
		if n := f.Position(session); n != 2 {
			t.Errorf("position %d", n)
		}
	})
}

func TestALossIsTheEndUnlessThereIsAWayBack(t *testing.T) {
	following(t, FollowOptions{Session: session}, false, func(t *testing.T, l *log, f *Follower) {
		l.lose()
		if _, err := f.Next(t.Context()); !errors.Is(err, ErrConnectionLost) {
			t.Errorf("got %v", err)
		}
	})
}

func TestNothingIsMissedOrDoubledOverALoss(t *testing.T) {
	lost := 0
	o := FollowOptions{Session: session, Lost: func(err error) {
		lost++
		if !errors.Is(err, ErrConnectionLost) {
			t.Errorf("lost by %v", err)
		}
	}}
	following(t, o, true, func(t *testing.T, l *log, f *Follower) {
		l.add(session, 3)
		steps(t, f, "3")
		start := time.Now()
		l.lose()
		l.add(session, 4)
		l.add(session, 5)
		steps(t, f, "gap", "4", "5")
		if d := time.Since(start); d != firstDelay || lost != 1 {
			t.Errorf("after %s, lost %d times", d, lost)
		}
		if want := []map[string]int64{{session: 2}, {session: 3}}; !reflect.DeepEqual(l.after, want) {
			t.Errorf("subscribed after %v", l.after)
		}
		l.add(session, 5) // once more, as a subscription may do behind a replay
		l.add(session, 6)
		steps(t, f, "6")
	})
}

// A server that goes down ends its streams and refuses calls before it closes
// its connections.
func TestEveryWayOfGoingDownIsALoss(t *testing.T) {
	for _, end := range []error{io.EOF, &effectrpc.Defect{Name: messages.RefusedShutdown, Message: "bye"}} {
		following(t, FollowOptions{Session: session}, true, func(t *testing.T, l *log, f *Follower) {
			l.live[0] <- end
			steps(t, f, "gap")
			l.add(session, 3)
			steps(t, f, "3")
		})
	}
}

func TestAFinalErrorIsFinal(t *testing.T) {
	following(t, FollowOptions{Session: session}, true, func(t *testing.T, l *log, f *Follower) {
		l.live[0] <- &effectrpc.Defect{Name: messages.RefusedPosition, Message: "no such position"}
		var refused *messages.Refused
		if _, err := f.Next(t.Context()); !errors.As(err, &refused) || refused.Name != messages.RefusedPosition {
			t.Errorf("got %v", err)
		}
	})
}

func TestASlowReaderGoesOnOverTheSameConnection(t *testing.T) {
	for _, redials := range []bool{false, true} {
		following(t, FollowOptions{Session: session}, redials, func(t *testing.T, l *log, f *Follower) {
			l.add(session, 3)
			steps(t, f, "3")
			body, _ := contract.EncodeError(&messages.SubscriptionOverflow{Capacity: 4})
			l.live[0] <- &effectrpc.RemoteError{Body: body}
			s, err := f.Next(t.Context())
			var overflow *messages.SubscriptionOverflow
			if err != nil || s.Gap == nil || !errors.As(s.Gap.Cause, &overflow) {
				t.Fatalf("%+v, %v", s, err)
			}
			l.add(session, 4)
			steps(t, f, "4")
			if len(l.clients) != 1 || l.after[1][session] != 3 {
				t.Errorf("%d connections, after %v", len(l.clients), l.after)
			}
		})
	}
}

func TestAServerIsLookedForAsTheStockClientDoes(t *testing.T) {
	var at []time.Duration
	var start time.Time
	var l *log
	o := FollowOptions{Session: session, Dial: func(ctx context.Context) (*Client, error) {
		at = append(at, time.Since(start))
		if len(at) < 8 {
			return nil, fmt.Errorf("dial: %w", &effectrpc.StatusError{Status: http.StatusServiceUnavailable})
		}
		return l.connect(ctx)
	}}
	following(t, o, true, func(t *testing.T, server *log, f *Follower) {
		l, start = server, time.Now()
		l.lose()
		steps(t, f, "gap")
	})
	want := []time.Duration{500 * time.Millisecond, 1250 * time.Millisecond, 2375 * time.Millisecond}
	if len(at) != 8 || !slices.Equal(at[:3], want) || at[7]-at[6] != maxDelay {
		t.Errorf("dialled after %v", at)
	}
}

func TestPatienceEndsAndMayBeginAgain(t *testing.T) {
	here := false
	var l *log
	o := FollowOptions{Session: session, Patience: 3 * time.Second, Dial: func(ctx context.Context) (*Client, error) {
		if here {
			return l.connect(ctx)
		}
		return nil, io.ErrUnexpectedEOF
	}}
	following(t, o, true, func(t *testing.T, server *log, f *Follower) {
		l = server
		l.lose()
		start := time.Now()
		_, err := f.Next(t.Context())
		if d := time.Since(start); !errors.Is(err, ErrConnectionLost) || d != o.Patience {
			t.Errorf("after %s: %v", d, err)
		}
		here = true
		l.add(session, 3)
		steps(t, f, "gap", "3")
	})
}

func TestAServerThatRefusesIsNotLookedForAnyMore(t *testing.T) {
	o := FollowOptions{Session: session, Dial: func(context.Context) (*Client, error) {
		return nil, &effectrpc.StatusError{Status: http.StatusUnauthorized}
	}}
	following(t, o, true, func(t *testing.T, l *log, f *Follower) {
		l.lose()
		start := time.Now()
		var status *effectrpc.StatusError
		if _, err := f.Next(t.Context()); !errors.As(err, &status) || time.Since(start) != firstDelay {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

func TestTheEndOfAContextEndsOnlyTheWait(t *testing.T) {
	following(t, FollowOptions{Session: session}, true, func(t *testing.T, l *log, f *Follower) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := f.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
		l.lose()
		ctx, cancel = context.WithTimeout(t.Context(), firstDelay/2)
		if _, err := f.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("while looking for the server:", err)
		}
		cancel()
		l.add(session, 3)
		steps(t, f, "gap", "3")
	})
}

func TestAPromptIsSentAgainUnderItsId(t *testing.T) {
	following(t, FollowOptions{Session: session}, true, func(t *testing.T, l *log, f *Follower) {
		if err := f.Prompt(t.Context(), messages.Prompt{SessionID: session, Text: "x"}); err == nil {
			t.Error("a prompt without an id could run twice")
		}
		l.mu.Lock()
		l.loseWhen = contract.SessionPrompt
		l.mu.Unlock()
		if err := f.Prompt(t.Context(), messages.Prompt{SessionID: session, Text: "x", ID: "p1"}); err != nil {
			t.Error(err)
		}
		if !slices.Equal(l.prompts, []string{"p1"}) || len(l.clients) != 2 {
			t.Errorf("prompts %v over %d connections", l.prompts, len(l.clients))
		}
		l.add(session, 3)
		steps(t, f, "gap", "3")
	})
}

func TestOnlyWhatAFollowerDialledIsItsToClose(t *testing.T) {
	following(t, FollowOptions{Session: session}, true, func(t *testing.T, l *log, f *Follower) {
		l.lose()
		steps(t, f, "gap")
		f.Close()
		<-l.clients[1].Done()
		if _, err := f.Next(t.Context()); !errors.Is(err, effectrpc.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		f.Close()
	})
	following(t, FollowOptions{Session: session}, true, func(t *testing.T, l *log, f *Follower) {
		f.Close()
		synctest.Wait()
		select {
		case <-l.clients[0].Done():
			t.Error("closed the caller's connection")
		default:
		}
	})
}

func TestSessionsMadeDuringALossAreReadFromTheirBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const old, gone, young = "ses_old", "ses_gone", "ses_young"
		l := newLog(t, old, gone)
		l.add(old, 1)
		l.add(gone, 1)
		c, _ := l.connect(t.Context())
		f, err := Follow(t.Context(), c, FollowOptions{Dial: l.connect})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l.add(gone, 2)
		steps(t, f, "2")
		l.lose()
		l.mu.Lock()
		delete(l.events, gone)
		l.mu.Unlock()
		l.add(young, 1)
		steps(t, f, "gap", "1")
		if want := (map[string]int64{young: 0}); !reflect.DeepEqual(l.after[1], want) {
			t.Errorf("subscribed after %v", l.after[1])
		}
	})
}

func TestFollowingNeedsAServerThatIsThere(t *testing.T) {
	c, s := serve(t, func(c *effectrpc.Call) { c.DieUnknownMethod() })
	if f, err := Follow(soon(t), c, FollowOptions{Session: session}); err == nil {
		f.Close()
		t.Error("followed nothing")
	}
	s.Shutdown()
	<-c.Done()
	for _, o := range []FollowOptions{{Session: session}, {Session: session, Dial: func(context.Context) (*Client, error) { panic("dialled") }}} {
		if _, err := Follow(soon(t), c, o); !errors.Is(err, ErrConnectionLost) {
			t.Errorf("got %v", err)
		}
	}
}

func TestEndpointsArePutRight(t *testing.T) {
	for in, want := range map[string]string{
		"ws://127.0.0.1:7433":         "ws://127.0.0.1:7433" + contract.Path,
		"http://box:7433/":            "ws://box:7433" + contract.Path,
		"https://box":                 "wss://box" + contract.Path,
		"wss://box/rpc":               "wss://box/rpc",
		"ws://[::1]:7433/other":       "ws://[::1]:7433/other",
		"127.0.0.1:7433":              "",
		"box":                         "",
		"":                            "",
		"ftp://box":                   "",
		"ws://":                       "",
		"ws:///rpc":                   "",
		"ws://user@box":               "",
		"ws://user:hunter2@box":       "",
		"ws://box?token=hunter2":      "",
		"ws://bad host":               "",
		"ws://box:99999999999999/%zz": "",
	} {
		got, err := Endpoint(in)
		if (want == "") != (err != nil) || got != want {
			t.Errorf("%s: %q, %v", in, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a secret in %v", err)
		}
	}
}

func TestABlobComesInPieces(t *testing.T) {
	const whole = "abcdef"
	c, _ := serve(t, func(c *effectrpc.Call) {
		var q messages.GetBlob
		if err := json.Unmarshal(c.Payload(), &q); err != nil {
			t.Error(err)
		}
		if q.Blob == "stuck" {
			c.Succeed(json.RawMessage(`{"data":"","more":true}`))
			return
		}
		end := min(q.Offset+4, int64(len(whole)))
		b, err := json.Marshal(messages.BlobPiece{Data: []byte(whole[q.Offset:end]), More: end < int64(len(whole))})
		if err != nil {
			t.Error(err)
		}
		c.Succeed(b)
	})
	if b, err := c.Blob(soon(t), session, "b"); err != nil || string(b) != whole {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := c.Blob(soon(t), session, "stuck"); err == nil {
		t.Error("a blob without an end has ended")
	}
}

func TestExecHandsOutputOnAndReturnsTheExit(t *testing.T) {
	c, _ := serve(t, func(c *effectrpc.Call) {
		values := []json.RawMessage{json.RawMessage(`{"stream":"stdout","data":"YQ=="}`), json.RawMessage(`{"stream":"stderr","data":"Yg=="}`), json.RawMessage(`{"exitCode":3}`)}
		c.Stream(func(context.Context, effectrpc.Batch) ([]json.RawMessage, error) { return values, io.EOF })
	})
	var got []string
	last, err := c.Exec(soon(t), messages.ExecSandbox{SandboxID: "s", Argv: []string{"x"}}, func(o messages.ExecOutput) {
		got = append(got, fmt.Sprint(o.Stream, string(o.Data)))
	})
	if err != nil || last.ExitCode == nil || *last.ExitCode != 3 || !slices.Equal(got, []string{"stdouta", "stderrb"}) {
		t.Errorf("%v, %+v, %v", got, last, err)
	}
	c, _ = serve(t, func(c *effectrpc.Call) {
		c.Stream(func(context.Context, effectrpc.Batch) ([]json.RawMessage, error) { return nil, io.EOF })
	})
	if _, err := c.Exec(soon(t), messages.ExecSandbox{SandboxID: "s", Argv: []string{"x"}}, nil); err == nil {
		t.Error("a command without an exit succeeded")
	}
}
