package effectrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// overBoth runs a test over a pipe and over a WebSocket on the loopback address.
func overBoth(t *testing.T, test func(t *testing.T, dial func(t *testing.T, s *testServer) Conn)) {
	t.Run("pipe", func(t *testing.T) {
		test(t, func(t *testing.T, s *testServer) Conn {
			conn, _, _ := s.serve(t, ServerOptions{})
			return conn
		})
	})
	t.Run("websocket", func(t *testing.T) {
		test(t, func(t *testing.T, s *testServer) Conn {
			return dialTest(t, listen(t, s, AcceptOptions{}), DialOptions{})
		})
	})
}

func dialTest(t testing.TB, server *httptest.Server, opts DialOptions) Conn {
	t.Helper()
	opts.HTTPClient = server.Client()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := Dial(ctx, "ws"+strings.TrimPrefix(server.URL, "http"), opts)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func startClient(t *testing.T, conn Conn) *Client {
	t.Helper()
	c := NewClient(conn, ClientOptions{})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// within returns a context that ends a test that hangs.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestClientAndServerUnderstandEachOther(t *testing.T) {
	overBoth(t, func(t *testing.T, dial func(*testing.T, *testServer) Conn) {
		s := newTestServer()
		c := startClient(t, dial(t, s))
		ctx := within(t)

		var got struct{ Text string }
		if err := c.Call(ctx, "echo", map[string]string{"text": "漢🙂\n\x00\u2028"}, &got); err != nil || got.Text != "漢🙂\n\x00\u2028" {
			t.Errorf("echo: %q, %v", got.Text, err)
		}
		var raw json.RawMessage
		if err := c.Call(ctx, "echo", nil, &raw); err != nil || string(raw) != "{}" {
			t.Errorf("a nil payload arrived as %s, %v", raw, err)
		}
		if err := c.Call(ctx, "echo", json.RawMessage("{\n}"), &raw); err != nil || string(raw) != "{}" {
			t.Errorf("a payload with a line feed arrived as %s, %v", raw, err)
		}
		if err := c.Call(ctx, "void", struct{}{}, nil); err != nil {
			t.Errorf("void: %v", err)
		}
		var typed *RemoteError
		if err := c.Call(ctx, "missing", nil, nil); !errors.As(err, &typed) || typed.Tag != "SessionNotFoundError" ||
			string(typed.Body) != `{"_tag":"SessionNotFoundError","sessionId":"ses_nope"}` {
			t.Errorf("missing: %v", err)
		}
		var defect *Defect
		if err := c.Call(ctx, "nobody", nil, nil); !errors.As(err, &defect) || *defect != (Defect{Message: "Unknown request tag: nobody"}) {
			t.Errorf("unknown method: %v", err)
		}
		if err := c.Call(ctx, "panic", nil, nil); !errors.As(err, &defect) || defect.Name != InternalError {
			t.Errorf("panic: %v", err)
		}
		if err := c.Call(ctx, "echo", nil, new(int)); err == nil || !strings.HasPrefix(err.Error(), "decode result of echo: ") {
			t.Errorf("wrong result type: %v", err)
		}
		if err := c.Call(ctx, "echo", make(chan int), nil); err == nil || !strings.HasPrefix(err.Error(), "encode payload of echo: ") {
			t.Errorf("impossible payload: %v", err)
		}
		if err := c.Call(ctx, "echo", strings.Repeat("x", defaultLineLimit), nil); err == nil || !strings.Contains(err.Error(), "too long for a frame") {
			t.Errorf("huge payload: %.100v", err)
		}
		large := strings.Repeat("漢", 300000)
		if err := c.Call(ctx, "echo", map[string]string{"text": large}, &got); err != nil || got.Text != large {
			t.Errorf("large payload: %d bytes, %v", len(got.Text), err)
		}
		if err := c.Call(ctx, "count", map[string]int{"n": 3}, nil); err == nil || err.Error() != "the method answers with a stream" {
			t.Errorf("stream taken for a call: %v", err)
		}
	})
}

func TestManyCallsAtOnceGetTheirOwnAnswers(t *testing.T) {
	overBoth(t, func(t *testing.T, dial func(*testing.T, *testServer) Conn) {
		c := startClient(t, dial(t, newTestServer()))
		ctx := within(t)
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				for j := range 20 {
					var got [2]int
					if err := c.Call(ctx, "echo", [2]int{i, j}, &got); err != nil || got != [2]int{i, j} {
						t.Errorf("%d %d: %v %v", i, j, got, err)
					}
				}
			})
		}
		all.Wait()
	})
}

func readAll(ctx context.Context, s *Stream) (values []string, err error) {
	for {
		v, err := s.Next(ctx)
		if err != nil {
			return values, err
		}
		values = append(values, string(v))
	}
}

func TestAStreamArrivesCompleteAndInOrder(t *testing.T) {
	overBoth(t, func(t *testing.T, dial func(*testing.T, *testServer) Conn) {
		c := startClient(t, dial(t, newTestServer()))
		ctx := within(t)
		for _, n := range []int{0, 1, 256, 257, 20000} {
			s, err := c.Stream(ctx, "count", map[string]int{"n": n})
			if err != nil {
				t.Fatal(err)
			}
			values, err := readAll(ctx, s)
			if err != io.EOF || len(values) != n {
				t.Fatalf("%d values, %v; want %d", len(values), err, n)
			}
			for i, v := range values {
				if v != fmt.Sprint(i) {
					t.Fatalf("value %d is %s", i, v)
				}
			}
			if _, err := s.Next(ctx); err != io.EOF {
				t.Errorf("behind the end: %v", err)
			}
			s.Close()
		}
	})
}

func TestStreamsEndWithTheErrorsOfCalls(t *testing.T) {
	c := startClient(t, func() Conn { conn, _, _ := newTestServer().serve(t, ServerOptions{}); return conn }())
	ctx := within(t)
	s, err := c.Stream(ctx, "overflow", nil)
	if err != nil {
		t.Fatal(err)
	}
	var typed *RemoteError
	if values, err := readAll(ctx, s); len(values) != 2 || !errors.As(err, &typed) || typed.Tag != "SubscriptionOverflowError" {
		t.Errorf("%v %v", values, err)
	}
	if s, err = c.Stream(ctx, "nobody", nil); err != nil {
		t.Fatal(err)
	}
	var defect *Defect
	if _, err := s.Next(ctx); !errors.As(err, &defect) || defect.Message != "Unknown request tag: nobody" {
		t.Errorf("%v", err)
	}
}

func TestTheEndOfACallsContextReturnsAtOnceAndInterruptsTheServer(t *testing.T) {
	overBoth(t, func(t *testing.T, dial func(*testing.T, *testServer) Conn) {
		s := newTestServer()
		c := startClient(t, dial(t, s))
		ctx, cancel := context.WithCancel(within(t))
		result := make(chan error, 1)
		go func() { result <- c.Call(ctx, "hold", nil, nil) }()
		call := <-s.held // never finished: the client must not wait for that
		cancel()
		if err := <-result; err != context.Canceled {
			t.Errorf("returned %v", err)
		}
		<-call.Context().Done()
		if cause := context.Cause(call.Context()); cause != ErrInterrupted {
			t.Errorf("server saw %v", cause)
		}
		if err := c.Call(ctx, "void", nil, nil); err != context.Canceled {
			t.Errorf("call with an ended context: %v", err)
		}
		call.Succeed(nil) // its Exit finds nobody
		if err := c.Call(within(t), "void", nil, nil); err != nil {
			t.Errorf("call behind it: %v", err)
		}
	})
}

func TestClosingAStreamInterruptsTheServer(t *testing.T) {
	for name, end := range map[string]struct {
		how  func(*Stream, context.CancelFunc)
		want error
	}{
		"Close":   {func(s *Stream, _ context.CancelFunc) { s.Close(); s.Close() }, ErrInterrupted},
		"context": {func(_ *Stream, cancel context.CancelFunc) { cancel() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestServer()
			conn, _, _ := s.serve(t, ServerOptions{})
			c := startClient(t, conn)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			stream, err := c.Stream(ctx, "feed", nil)
			if err != nil {
				t.Fatal(err)
			}
			s.values <- []json.RawMessage{json.RawMessage("1")}
			if v, err := stream.Next(within(t)); string(v) != "1" || err != nil {
				t.Fatalf("%s %v", v, err)
			}
			end.how(stream, cancel)
			if cause := <-s.stopped; cause != ErrInterrupted.Error() {
				t.Errorf("server saw %v", cause)
			}
			if _, err := stream.Next(within(t)); err != end.want {
				t.Errorf("Next returned %v", err)
			}
		})
	}
}

func TestTheContextOfNextEndsOnlyTheWaiting(t *testing.T) {
	s := newTestServer()
	conn, _, _ := s.serve(t, ServerOptions{})
	c := startClient(t, conn)
	stream, err := c.Stream(within(t), "feed", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := stream.Next(ctx); err != context.Canceled {
		t.Errorf("%v", err)
	}
	s.values <- []json.RawMessage{json.RawMessage("1")}
	if v, err := stream.Next(within(t)); string(v) != "1" || err != nil {
		t.Errorf("%s %v", v, err)
	}
}

func TestAReaderThatStallsHoldsUpItsStreamOnly(t *testing.T) {
	overBoth(t, func(t *testing.T, dial func(*testing.T, *testServer) Conn) {
		s := newTestServer()
		c := startClient(t, dial(t, s))
		ctx := within(t)
		stalled, err := c.Stream(ctx, "count", map[string]int{"n": 100000})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stalled.Next(ctx); err != nil {
			t.Fatal(err)
		}
		other, err := c.Stream(ctx, "count", map[string]int{"n": 5000})
		if err != nil {
			t.Fatal(err)
		}
		if values, err := readAll(ctx, other); len(values) != 5000 || err != io.EOF {
			t.Errorf("other stream: %d, %v", len(values), err)
		}
		if err := c.Call(ctx, "void", nil, nil); err != nil {
			t.Error(err)
		}
		stalled.mu.Lock()
		waiting := len(stalled.values)
		stalled.mu.Unlock()
		if waiting > streamValues+chunkValues {
			t.Errorf("%d values wait in the client", waiting)
		}
		if values, err := readAll(ctx, stalled); len(values) != 99999 || err != io.EOF {
			t.Errorf("stalled stream: %d, %v", len(values), err)
		}
	})
}

// script answers a client with literal frames.
func script(t *testing.T) (*Client, *wire) {
	t.Helper()
	near, far := Pipe()
	w := newWire(t, far)
	c := NewClient(near, ClientOptions{MaxLineBytes: 1 << 20})
	t.Cleanup(func() { _ = c.Close() })
	return c, w
}

func TestTheClientSendsTheFramesOfTheProtocol(t *testing.T) {
	c, w := script(t)
	ctx, cancel := context.WithCancel(within(t))
	result := make(chan error, 1)
	go func() { result <- c.Call(ctx, "a.b", map[string]int{"x": 1}, nil) }()
	w.expect(request("0", "a.b", `{"x":1}`))
	cancel()
	if err := <-result; err != context.Canceled {
		t.Error(err)
	}
	w.expect(interrupt("0"))

	s, err := c.Stream(within(t), `q"`, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.expect(request("1", `q\"`, `{}`))
	w.send(chunk("1", "7", ` {"a" : 1} `))
	w.expect(ack("1"))
	for _, want := range []string{"7", `{"a" : 1}`} {
		if v, err := s.Next(within(t)); err != nil || string(v) != want {
			t.Errorf("%s %v", v, err)
		}
	}
	s.Close()
	w.expect(interrupt("1"))
	w.send(chunk("1", "8"), success("1", "null")) // late: ignored
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	w.expectClosed(CloseNormal)
}

func TestTheClientReadsEveryAnswer(t *testing.T) {
	c, w := script(t)
	id := 0
	for _, x := range []struct{ answer, want string }{
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Success","value":5}}`, "5 <nil>"},
		{`{"exit":{"value":5,"_tag":"Success"},"requestId":%d,"more":[{}],"_tag":"Exit"}`, "5 <nil>"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Success"}}`, "0 <nil>"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[{"_tag":"Interrupt","fiberId":3}]}}`, "0 interrupted"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[]}}`, "0 interrupted"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure"}}`, "0 interrupted"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[{"_tag":"Interrupt"},{"_tag":"Die","defect":1},{"_tag":"Fail","error":{"_tag":"E"}}]}}`, "0 E"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[{"_tag":"Fail","error":"x"}]}}`, "0 "},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[{"_tag":"Die","defect":"text"}]}}`, "0 text"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[{"_tag":"Die","defect":{"name":"BusyError","message":"m"}}]}}`, "0 BusyError: m"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[{"_tag":"Die","defect":[1]}]}}`, "0 [1]"},
		{`{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Failure","cause":[{"_tag":"Die"}]}}`, "0 "},
		{"\r\n" + `{"_tag":"Newer"}` + "\n" + `{"_tag":"Exit","requestId":%d,"exit":{"_tag":"Success","value":5}}` + "\r", "5 <nil>"},
		{`{"_tag":"Exit","requestId":"%[1]d","exit":{"_tag":"Success","value":1}}` + "\n" + `{"_tag":"Exit","requestId":%[1]d,"exit":{"_tag":"Success","value":5}}`, "5 <nil>"},
		{`{"_tag":"Exit","requestId":%[1]d}` + "\n" + `{"_tag":"Exit","requestId":%[1]d,"exit":{"_tag":"Success","value":5}}`, "5 <nil>"},
	} {
		result := make(chan string, 1)
		go func() {
			n := 0
			err := c.Call(within(t), "m", nil, &n)
			result <- fmt.Sprint(n, " ", err)
		}()
		w.expect(request(fmt.Sprint(id), "m", "{}"))
		w.send(fmt.Sprintf(x.answer, id))
		if got := <-result; got != x.want {
			t.Errorf("%s\ngot  %s\nwant %s", x.answer, got, x.want)
		}
		id++
	}
}

func TestAConnectionDefectFailsEverythingInFlightAndTheConnectionGoesOn(t *testing.T) {
	c, w := script(t)
	s, err := c.Stream(within(t), "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	w.expect(request("0", "s", "{}"))
	result := make(chan error, 1)
	go func() { result <- c.Call(within(t), "m", nil, nil) }()
	w.expect(request("1", "m", "{}"))
	w.send(defect(`{"name":"E","message":"m"}`))
	var d *Defect
	if err := <-result; !errors.As(err, &d) || *d != (Defect{"E", "m"}) {
		t.Errorf("call: %v", err)
	}
	if _, err := s.Next(within(t)); !errors.As(err, &d) || *d != (Defect{"E", "m"}) {
		t.Errorf("stream: %v", err)
	}
	go func() { result <- c.Call(within(t), "m", nil, nil) }()
	w.expect(request("2", "m", "{}"))
	w.send(success("2", "null"))
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestALostConnectionFailsEverythingAndNamesTheCause(t *testing.T) {
	for name, x := range map[string]struct {
		lose func(*Client, *wire)
		is   func(error) bool
	}{
		"closed by the server": {func(_ *Client, w *wire) { _ = w.conn.Close(CloseGoingAway, "bye") },
			func(err error) bool {
				var closed *CloseError
				return errors.As(err, &closed) && *closed == CloseError{CloseGoingAway, "bye"}
			}},
		"closed by the client": {func(c *Client, _ *wire) { _ = c.Close() },
			func(err error) bool { return errors.Is(err, ErrClosed) }},
		"malformed frame": {func(_ *Client, w *wire) { w.send("{") },
			func(err error) bool { return errors.Is(err, errMalformed) }},
		"endless line": {func(_ *Client, w *wire) {
			w.sendRaw(strings.Repeat("x", 1<<20))
			w.sendRaw("x")
		}, func(err error) bool { return errors.Is(err, ErrLineTooLong) }},
	} {
		t.Run(name, func(t *testing.T) {
			c, w := script(t)
			s, err := c.Stream(within(t), "s", nil)
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() { result <- c.Call(within(t), "m", nil, nil) }()
			w.expect(request("0", "s", "{}"), request("1", "m", "{}"))
			w.send(chunk("0", "1"))
			w.expect(ack("0"))
			if err := c.Err(); err != nil {
				t.Errorf("error of an open connection: %v", err)
			}
			x.lose(c, w)
			if err := <-result; !errors.Is(err, ErrConnectionLost) || !x.is(err) {
				t.Errorf("call: %v", err)
			}
			values, err := readAll(within(t), s)
			if len(values) != 1 || !errors.Is(err, ErrConnectionLost) || !x.is(err) {
				t.Errorf("stream: %v, %v", values, err)
			}
			<-c.Done()
			if err := c.Err(); !errors.Is(err, ErrConnectionLost) || !x.is(err) {
				t.Errorf("Err: %v", err)
			}
			if err := c.Call(within(t), "m", nil, nil); !errors.Is(err, ErrConnectionLost) {
				t.Errorf("later call: %v", err)
			}
			if _, err := c.Stream(within(t), "m", nil); !errors.Is(err, ErrConnectionLost) {
				t.Errorf("later stream: %v", err)
			}
		})
	}
}

func TestASilentServerIsGivenUpAfterTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		c := NewClient(near, ClientOptions{})
		start := time.Now()
		w := newWire(t, far)
		if w.next() != ping || time.Since(start) != 5*time.Second {
			t.Errorf("first ping after %v", time.Since(start))
		}
		<-c.Done()
		if d := time.Since(start); d != 10*time.Second || !errors.Is(c.Err(), errSilent) {
			t.Errorf("after %v: %v", d, c.Err())
		}
		_ = far.Close(CloseNormal, "")
		synctest.Wait()
	})
}

func TestAnyFrameCountsAsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		c := NewClient(near, ClientOptions{})
		w := newWire(t, far) // reads the pings and answers none
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-time.After(4 * time.Second):
					w.send(chunk("77", "1"))
				case <-stop:
					return
				}
			}
		}()
		time.Sleep(time.Hour)
		if err := c.Err(); err != nil {
			t.Errorf("given up: %v", err)
		}
		close(stop)
		_ = c.Close()
		_ = far.Close(CloseNormal, "")
	})
}

func TestAnIdleConnectionStaysUpAndPingsCanBeOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, interval := range []time.Duration{0, -1} {
			near, far := Pipe()
			go func() { _ = NewServer(far, ServerOptions{}).Serve(context.Background(), newTestServer().handle) }()
			c := NewClient(near, ClientOptions{PingInterval: interval})
			time.Sleep(time.Hour)
			if err := c.Call(context.Background(), "void", nil, nil); err != nil {
				t.Error(err)
			}
			if got := c.received.Load(); interval < 0 && got != 1 {
				t.Errorf("%d pieces arrived without pings", got)
			}
			_ = c.Close()
			synctest.Wait()
		}
	})
}

// paced returns a stream with a pace, its server, and how to read from it.
func paced(t *testing.T, d time.Duration) (s *Stream, server *wire, next func(want string)) {
	t.Helper()
	near, far := Pipe()
	c := NewClient(near, ClientOptions{PingInterval: -1})
	t.Cleanup(func() { _ = c.Close() })
	server = newWire(t, far)
	s, err := c.Stream(context.Background(), "feed", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Pace(d)
	server.next() // the request
	return s, server, func(want string) {
		t.Helper()
		if got, err := s.Next(context.Background()); string(got) != want || err != nil {
			t.Fatalf("next is %s, %v; want %s", got, err, want)
		}
	}
}

// quiet fails when a frame has come.
func (w *wire) quiet() {
	w.t.Helper()
	synctest.Wait()
	select {
	case line := <-w.lines:
		w.t.Fatalf("too soon: %s", line)
	default:
	}
}

func TestAStreamIsAcknowledgedAtItsPace(t *testing.T) {
	const pace = 5 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		s, server, next := paced(t, pace)
		start := time.Now()
		server.send(chunk("0", "1"))
		server.expect(ack("0")) // alone, so at once
		server.send(chunk("0", "2"))
		next("1")
		next("2") // what came is not kept waiting
		server.quiet()
		server.expect(ack("0"))
		if d := time.Since(start); d != pace {
			t.Errorf("second acknowledgement after %v", d)
		}
		time.Sleep(pace)
		server.send(chunk("0", "3"))
		next("3")
		server.expect(ack("0"))
		if d := time.Since(start); d != 2*pace {
			t.Errorf("a chunk that came late was acknowledged after %v", d)
		}

		server.send(chunk("0", "4"))
		server.quiet()
		s.Pace(0)
		server.expect(ack("0"))
		server.send(chunk("0", "5"))
		server.expect(ack("0"))
		if d := time.Since(start); d != 2*pace {
			t.Errorf("acknowledged without a pace after %v", d)
		}
		time.Sleep(time.Hour) // nothing of the pace is left
		server.quiet()
	})
}

func TestAPacedStreamKeepsItsBoundsAndItsEnd(t *testing.T) {
	const pace = 5 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		s, server, next := paced(t, pace)
		values := make([]string, streamValues)
		for i := range values {
			values[i] = fmt.Sprint(i)
		}
		server.send(chunk("0", values...))
		time.Sleep(time.Hour)
		server.quiet() // its reader does not take anything
		next("0")
		server.expect(ack("0"))
		server.send(chunk("0", `"more"`))
		server.quiet()
		server.send(success("0", "null"))
		got, err := readAll(context.Background(), s)
		if want := append(values[1:], `"more"`); err != io.EOF || !slices.Equal(got, want) {
			t.Errorf("got %d values, %v", len(got), err)
		}
		time.Sleep(time.Hour)
		server.quiet() // what has ended is not acknowledged
		s.Pace(0)
		server.quiet()
	})
}

func TestACallThatWaitsForRoomEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		c := NewClient(near, ClientOptions{PingInterval: -1})
		payload := strings.Repeat("x", 12<<20) // more than the pipe holds: nobody reads
		go func() { _ = c.Call(context.Background(), "m", payload, nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := c.Call(ctx, "m", nil, nil); err != context.DeadlineExceeded {
			t.Error(err)
		}
		time.Sleep(defaultWriteTimeout)
		<-c.Done()
		if !errors.Is(c.Err(), ErrPeerStuck) {
			t.Error(c.Err())
		}
		_ = far.Close(CloseNormal, "")
	})
}
