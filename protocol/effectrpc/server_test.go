package effectrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// patience is how long a test waits for what must come at once.
const patience = 30 * time.Second

// wire is a client made of literal frames.
type wire struct {
	t     *testing.T
	conn  Conn
	lines chan string
	end   chan error // the error of the last Read
}

func newWire(t *testing.T, conn Conn) *wire {
	w := &wire{t: t, conn: conn, lines: make(chan string, 4096), end: make(chan error, 1)}
	r := lineReader{read: conn.Read, limit: 64 << 20}
	go func() {
		for {
			line, err := r.next()
			if err != nil {
				w.end <- err
				close(w.lines)
				return
			}
			w.lines <- string(line)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close(CloseNormal, "")
		for range w.lines { // until the reader has ended
		}
	})
	return w
}

// send sends the frames in one message.
func (w *wire) send(frames ...string) {
	w.t.Helper()
	w.sendRaw(strings.Join(frames, "\n") + "\n")
}

func (w *wire) sendRaw(message string) {
	w.t.Helper()
	if err := w.conn.Write([]byte(message)); err != nil {
		w.t.Fatalf("send: %v", err)
	}
}

func (w *wire) next() string {
	w.t.Helper()
	select {
	case line, ok := <-w.lines:
		if !ok {
			w.t.Fatalf("connection ended: %v", <-w.end)
		}
		return line
	case <-time.After(patience):
		w.t.Fatal("nothing came")
		return ""
	}
}

// expect reads the next frames and compares them literally.
func (w *wire) expect(frames ...string) {
	w.t.Helper()
	for _, want := range frames {
		if got := w.next(); got != want {
			w.t.Fatalf("got  %.300s\nwant %.300s", got, want)
		}
	}
}

// expectClosed reads until the connection ends and checks the code.
func (w *wire) expectClosed(code int) {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case _, ok := <-w.lines:
			if ok {
				continue
			}
			var closed *CloseError
			if err := <-w.end; !errors.As(err, &closed) || closed.Code != code {
				w.t.Fatalf("ended with %v, want code %d", err, code)
			}
			return
		case <-deadline:
			w.t.Fatal("connection not closed")
		}
	}
}

// testServer answers a few methods; what a test wants to see or steer goes
// through its channels.
type testServer struct {
	held     chan *Call // calls of "hold", which nobody answers
	stopped  chan string
	panicked chan any
	values   chan []json.RawMessage // what "feed" sends; closed: the end
}

func newTestServer() *testServer {
	return &testServer{
		held:     make(chan *Call, 4096),
		stopped:  make(chan string, 4096),
		panicked: make(chan any, 16),
		values:   make(chan []json.RawMessage, 4096),
	}
}

func (s *testServer) handle(c *Call) {
	switch c.Method() {
	case "echo":
		c.Succeed(c.Payload())
	case "void":
		c.Succeed(nil)
	case "missing":
		c.Fail(json.RawMessage(`{"_tag":"SessionNotFoundError","sessionId":"ses_nope"}`))
	case "die":
		c.Die("went wrong")
	case "panic":
		panic("no such thing")
	case "hold":
		s.held <- c
	case "work": // stops when it is told to, then answers as if nothing happened
		context.AfterFunc(c.Context(), func() {
			s.stopped <- fmt.Sprint(context.Cause(c.Context()))
			c.Succeed(json.RawMessage(`"late"`))
		})
	case "empty":
		c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) { return nil, io.EOF })
	case "count": // payload {"n":…}: the numbers below n, in one go
		var p struct{ N int }
		if err := json.Unmarshal(c.Payload(), &p); err != nil {
			c.Die(err.Error())
			return
		}
		c.Stream(func(_ context.Context, most Batch) ([]json.RawMessage, error) {
			all := make([]json.RawMessage, p.N)
			for i := range all {
				all[i] = numberID(uint64(i))
			}
			return all, io.EOF
		})
	case "feed":
		context.AfterFunc(c.Context(), func() { s.stopped <- fmt.Sprint(context.Cause(c.Context())) })
		c.Stream(func(ctx context.Context, most Batch) ([]json.RawMessage, error) {
			select {
			case v, ok := <-s.values:
				if !ok {
					return nil, io.EOF
				}
				for len(v) < most.Values {
					select {
					case more, ok := <-s.values:
						if ok {
							v = append(v, more...)
							continue
						}
						return v, io.EOF
					default:
					}
					break
				}
				return v, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
	case "overflow":
		values := []json.RawMessage{json.RawMessage(`1`), json.RawMessage(`2`)}
		c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) {
			return values, &RemoteError{Body: json.RawMessage(`{"_tag":"SubscriptionOverflowError","capacity":4096}`)}
		})
	case "broken stream":
		c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) { return nil, errors.New("disk on fire") })
	case "refusing stream":
		c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) {
			return nil, fmt.Errorf("subscribe: %w", &Defect{Name: "StoreError", Message: "full"})
		})
	case "panicking stream":
		c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) { panic("in the source") })
	default:
		c.DieUnknownMethod()
	}
}

// serve runs a server on a pipe until the test ends, and returns the client's
// end and what Serve will return.
func (s *testServer) serve(t *testing.T, opts ServerOptions) (Conn, *Server, <-chan error) {
	t.Helper()
	near, far := Pipe()
	opts.OnPanic = func(_ string, value any, _ []byte) { s.panicked <- value }
	server := NewServer(far, opts)
	result := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { result <- server.Serve(ctx, s.handle) })
	t.Cleanup(func() {
		_ = near.Close(CloseNormal, "")
		cancel()
		running.Wait()
	})
	return near, server, result
}

func startWire(t *testing.T, opts ServerOptions) (*wire, *testServer) {
	t.Helper()
	s := newTestServer()
	conn, _, _ := s.serve(t, opts)
	return newWire(t, conn), s
}

func request(id, method, payload string) string {
	return `{"_tag":"Request","id":` + id + `,"tag":"` + method + `","payload":` + payload + `,"headers":[]}`
}

func success(id, value string) string {
	return `{"_tag":"Exit","requestId":` + id + `,"exit":{"_tag":"Success","value":` + value + `}}`
}

func failure(id, reason string) string {
	return `{"_tag":"Exit","requestId":` + id + `,"exit":{"_tag":"Failure","cause":[` + reason + `]}}`
}

func die(id, defect string) string { return failure(id, `{"_tag":"Die","defect":`+defect+`}`) }

func chunk(id string, values ...string) string {
	return `{"_tag":"Chunk","requestId":` + id + `,"values":[` + strings.Join(values, ",") + `]}`
}

func ack(id string) string       { return `{"_tag":"Ack","requestId":` + id + `}` }
func interrupt(id string) string { return `{"_tag":"Interrupt","requestId":` + id + `}` }

func defect(value string) string { return `{"_tag":"Defect","defect":` + value + `}` }

const (
	ping            = `{"_tag":"Ping"}`
	pong            = `{"_tag":"Pong"}`
	interruptReason = `{"_tag":"Interrupt","fiberId":null}`
)

func TestAnswersHaveTheExactShapeOfTheProtocol(t *testing.T) {
	for name, c := range map[string]struct{ send, want string }{
		"value":          {request("0", "echo", `{"a":1}`), success("0", `{"a":1}`)},
		"void":           {request("1", "void", `{}`), success("1", `null`)},
		"typed error":    {request("4", "missing", `{}`), failure("4", `{"_tag":"Fail","error":{"_tag":"SessionNotFoundError","sessionId":"ses_nope"}}`)},
		"defect":         {request("5", "die", `{}`), die("5", `"went wrong"`)},
		"unknown method": {request("6", "session.teleport", `{}`), die("6", `"Unknown request tag: session.teleport"`)},
		"handler panics": {request("7", "panic", `{}`), die("7", `{"name":"InternalError","message":"panic failed: no such thing"}`)},
		"empty stream":   {request("8", "empty", `{}`), success("8", `null`)},
		"failing stream": {request("9", "broken stream", `{}`), die("9", `{"name":"InternalError","message":"disk on fire"}`)},
		"stream panics":  {request("10", "panicking stream", `{}`), die("10", `{"name":"InternalError","message":"panicking stream failed: in the source"}`)},
		"ping":           {ping, pong},
		"text id":        {request(`"1"`, "void", `{}`), success(`"1"`, `null`)},
		"negative id":    {request(`-7`, "void", `{}`), success(`-7`, `null`)},
		"fraction id":    {request(`1.50`, "void", `{}`), success(`1.50`, `null`)},
		"exponent id":    {request(`1E2`, "void", `{}`), success(`1E2`, `null`)},
		"escaped id":     {request(`"\u0061\n"`, "void", `{}`), success(`"\u0061\n"`, `null`)},
		"payload as written": {
			request("0", "echo", `{ "b" : [1, 2.0,"\u2028 `+"\u2028"+`漢🙂\u0000"] }`),
			success("0", `{ "b" : [1, 2.0,"\u2028 `+"\u2028"+`漢🙂\u0000"] }`)},
		"any order of keys, surplus ones, trace context": {
			`{"headers":[["a","b"]],"payload":{},"sampled":true,"x":{"_tag":"Ping","id":9},"spanId":"s","tag":"void","id":3,"traceId":"t","_tag":"Request"}`,
			success("3", "null")},
		"keys are matched exactly": {`{"_tag":"Request","id":3,"ID":4,"Tag":"x","tag":"void","payload":{}}`, success("3", "null")},
		"escaped key":              {`{"\u005ftag":"Request","id":3,"tag":"vo\u0069d","payload":{}}`, success("3", "null")},
		"headers missing":          {`{"_tag":"Request","id":3,"tag":"void","payload":{}}`, success("3", "null")},
		"headers not pairs":        {`{"_tag":"Request","id":3,"tag":"void","payload":{},"headers":{"a":[1]}}`, success("3", "null")},
		"payload missing":          {`{"_tag":"Request","id":3,"tag":"void","headers":[]}`, die("3", `"Missing key\n  at [\"payload\"]"`)},
		"payload null":             {request("3", "void", "null"), die("3", `"Missing key\n  at [\"payload\"]"`)},
		"method missing":           {`{"_tag":"Request","id":3,"payload":{}}`, die("3", `"Missing key\n  at [\"tag\"]"`)},
		"discard succeeds":         {`{"_tag":"Request","id":3,"tag":"echo","payload":{"a":1},"discard":true}`, success("3", "null")},
		"discard fails":            {`{"_tag":"Request","id":3,"tag":"missing","payload":{},"discard":true}`, success("3", "null")},
		"discard of a stream":      {`{"_tag":"Request","id":3,"tag":"feed","payload":{},"discard":true}`, success("3", "null")},
		"discard unknown method":   {`{"_tag":"Request","id":3,"tag":"x","payload":{},"discard":true}`, die("3", `"Unknown request tag: x"`)},
		"null":                     {`null`, defect(`"Unknown request tag: none"`)},
		"number":                   {`17`, defect(`"Unknown request tag: none"`)},
		"array":                    {`[1]`, defect(`"Unknown request tag: none"`)},
		"no tag":                   {`{"id":1}`, defect(`"Unknown request tag: none"`)},
		"unknown tag":              {`{"_tag":"Nope"}`, defect(`"Unknown request tag: Nope"`)},
		"id missing":               {`{"_tag":"Request","tag":"void","payload":{}}`, defect(`"Invalid request id: none"`)},
		"id null":                  {request("null", "void", "{}"), defect(`"Invalid request id: null"`)},
		"id object":                {request(`{"a":1}`, "void", "{}"), defect(`"Invalid request id: {\"a\":1}"`)},
		"long unknown tag":         {`{"_tag":"` + strings.Repeat("漢", 1000) + `"}`, defect(`"Unknown request tag: ` + strings.Repeat("漢", 66) + `…"`)},
		"long unknown method":      {request("6", strings.Repeat("x", 1000), `{}`), die("6", `"Unknown request tag: `+strings.Repeat("x", 200)+`…"`)},
		"long id":                  {request(`"`+strings.Repeat("1", 2000)+`"`, "void", "{}"), defect(`"Invalid request id: \"` + strings.Repeat("1", 199) + `…"`)},
		"refusing stream":          {request("11", "refusing stream", `{}`), die("11", `{"name":"StoreError","message":"full"}`)},
		"id true":                  {request(`true`, "void", "{}"), defect(`"Invalid request id: true"`)},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := startWire(t, ServerOptions{})
			w.send(c.send)
			w.expect(c.want)
			w.send(request("99", "void", "{}")) // the connection goes on
			w.expect(success("99", "null"))
		})
	}
}

func TestMalformedLinesAreDefectsAndSpareTheGoodFramesAround(t *testing.T) {
	for name, bad := range map[string]string{
		"half a frame":   `{"_tag":"Request"`,
		"spaces":         `   `,
		"word":           `nope`,
		"two values":     `{} {}`,
		"deep arrays":    strings.Repeat("[", 200000),
		"deep objects":   `{"_tag":"Request","id":1,"tag":"echo","payload":` + strings.Repeat(`{"a":`, 200000) + "1" + strings.Repeat("}", 200000) + "}",
		"invalid UTF-8":  "{\"_tag\":\"Request\",\"id\":1,\"tag\":\"vo\xffid\",\"payload\":{}}",
		"bare zero byte": "\x00",
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := startWire(t, ServerOptions{})
			w.send(request("1", "void", "{}"), bad, request("2", "void", "{}"))
			w.expect(success("1", "null"))
			got := w.next()
			if !strings.HasPrefix(got, `{"_tag":"Defect","defect":{"name":"NdjsonDecodeError","message":"","cause":{"name":"SyntaxError","message":"malformed JSON: `) || !json.Valid([]byte(got)) {
				t.Fatalf("got %s", got)
			}
			w.expect(success("2", "null"))
		})
	}
}

func TestFramesThatMeanNothingGetNoAnswer(t *testing.T) {
	for name, frames := range map[string]string{
		"eof":                       `{"_tag":"Eof"}`,
		"ack of an unknown id":      ack("5"),
		"ack without id":            `{"_tag":"Ack"}`,
		"interrupt of unknown id":   interrupt("5"),
		"interrupt without id":      `{"_tag":"Interrupt"}`,
		"exit":                      success("5", "null"),
		"chunk":                     chunk("5", "1"),
		"pong":                      pong,
		"defect":                    defect(`"x"`),
		"notification":              `{"_tag":"Request","id":5,"tag":"echo","payload":{},"isNotification":true}`,
		"notification, unknown":     `{"_tag":"Request","id":5,"tag":"x","payload":{},"isNotification":true}`,
		"notification, no payload":  `{"_tag":"Request","id":5,"tag":"x","isNotification":true}`,
		"notification of a stream":  `{"_tag":"Request","id":5,"tag":"count","payload":{"n":3},"isNotification":true}`,
		"notification that panics":  `{"_tag":"Request","id":5,"tag":"panic","payload":{},"isNotification":true}`,
		"empty lines":               "\r\n\n\n\r",
		"interrupt of a finished":   request("1", "void", "{}") + "\n" + interrupt("1"),
		"ack of a unary call":       request("1", "void", "{}") + "\n" + ack("1"),
		"second ack of a stream":    request("1", "empty", "{}") + "\n" + ack("1") + "\n" + ack("1"),
		"exit of a different shape": `{"_tag":"Interrupt","requestId":{"a":[1]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := startWire(t, ServerOptions{})
			w.send(frames)
			if strings.HasPrefix(frames, `{"_tag":"Request","id":1,`) {
				w.expect(success("1", "null"))
			}
			w.send(request("99", "void", "{}"))
			w.expect(success("99", "null"))
		})
	}
}

func TestMessageBoundariesMeanNothing(t *testing.T) {
	w, _ := startWire(t, ServerOptions{})
	all := request("1", "echo", `{"a":"漢🙂"}`) + "\r\n" + request("2", "void", "{}") + "\n"
	for i := range len(all) { // cuts characters too
		w.sendRaw(all[i : i+1])
	}
	w.expect(success("1", `{"a":"漢🙂"}`), success("2", "null"))
	w.sendRaw(all + all[:10])
	w.sendRaw(all[10:])
	w.expect(success("1", `{"a":"漢🙂"}`), success("2", "null"), success("1", `{"a":"漢🙂"}`), success("2", "null"))
}

func TestRequestsAreReadInOrderAndAnsweredInOrderOfCompletion(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	var frames []string
	for i := range 100 {
		frames = append(frames, request(fmt.Sprint(i), "hold", "{}"))
	}
	w.send(frames...)
	var calls []*Call
	for range 100 {
		calls = append(calls, <-s.held)
	}
	for i := 99; i >= 0; i-- {
		if string(calls[i].id) != fmt.Sprint(i) {
			t.Fatalf("request %d was read as number %s", i, calls[i].id)
		}
		calls[i].Succeed(calls[i].id)
	}
	for i := 99; i >= 0; i-- {
		w.expect(success(fmt.Sprint(i), fmt.Sprint(i)))
	}
}

func TestAnIDInFlightIsRefusedWithoutDisturbingTheFirstCall(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("1", "hold", "{}"), request("1", "void", "{}"), request(`"1"`, "void", "{}"))
	w.expect(defect(`"Request id in flight: 1"`), success(`"1"`, "null"))
	(<-s.held).Succeed(json.RawMessage("7"))
	w.expect(success("1", "7"))
	w.send(request("1", "void", "{}")) // free again
	w.expect(success("1", "null"))
}

func TestOnlyTheFirstAnswerOfACallCounts(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("1", "hold", "{}"))
	c := <-s.held
	c.Succeed(json.RawMessage("1"))
	c.Succeed(json.RawMessage("2"))
	c.Fail(json.RawMessage(`{"_tag":"X"}`))
	c.Die("x")
	c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) {
		t.Error("asked for values")
		return nil, io.EOF
	})
	if cause := context.Cause(c.Context()); cause != ErrFinished {
		t.Errorf("cause %v", cause)
	}
	w.send(request("2", "void", "{}"))
	w.expect(success("1", "1"), success("2", "null"))
}

func TestAnswersThatAreNoFramePartAreDefectsOrMadeFit(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	for _, c := range []struct {
		answer func(*Call)
		want   string
	}{
		{func(c *Call) { c.Succeed(json.RawMessage("{\n \"a\": 1\n}")) }, success("1", `{"a":1}`)},
		{func(c *Call) { c.Fail(json.RawMessage("{\"_tag\":\n\"X\"}")) }, failure("1", `{"_tag":"Fail","error":{"_tag":"X"}}`)},
		{func(c *Call) { c.Succeed(json.RawMessage("\"a\xffb\"")) }, success("1", "\"a\uFFFDb\"")},
		{func(c *Call) { c.Succeed(json.RawMessage(`{"a"`)) }, die("1", `"Failed to encode response of hold: not JSON"`)},
		{func(c *Call) { c.Succeed(json.RawMessage(`"` + strings.Repeat("x", defaultLineLimit) + `"`)) },
			die("1", `"Failed to encode response of hold: too long for a frame"`)},
		{func(c *Call) { c.Die(make(chan int)) }, die("1", `"Failed to encode response of hold: json: unsupported type: chan int"`)},
		{func(c *Call) { c.Die(map[string]int{"a": 1}) }, die("1", `{"a":1}`)},
		{func(c *Call) { c.Die(nil) }, die("1", `null`)},
		{func(c *Call) { c.Die(&Defect{Name: "StoreError", Message: "full"}) }, die("1", `{"name":"StoreError","message":"full"}`)},
		{func(c *Call) { c.Die(&Defect{Message: "text"}) }, die("1", `"text"`)},
		{func(c *Call) {
			c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) {
				return []json.RawMessage{json.RawMessage(`"` + strings.Repeat("x", defaultLineLimit) + `"`)}, io.EOF
			})
		}, die("1", `{"name":"InternalError","message":"a value is too long for a frame"}`)},
	} {
		w.send(request("1", "hold", "{}"))
		c.answer(<-s.held)
		w.expect(c.want)
	}
}

func TestTheLargestAnswerStaysBelowTheLineLimit(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("1", "hold", "{}"))
	value := `"` + strings.Repeat("x", maxFrameBytes-frameOverhead-10) + `"`
	(<-s.held).Succeed(json.RawMessage(value))
	if got := w.next(); got != success("1", value) || len(got) >= defaultLineLimit {
		t.Fatalf("got %d bytes", len(got))
	}
}

func TestAStreamHasOneUnacknowledgedChunk(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("9", "feed", "{}"))
	give := func(values ...string) {
		for _, v := range values {
			s.values <- []json.RawMessage{json.RawMessage(v)}
		}
	}
	give("1")
	w.expect(chunk("9", "1"))
	give("2", "3", "4")
	w.send(request("1", "void", "{}"), ping, request("2", "empty", "{}"))
	rest := map[string]bool{success("1", "null"): true, pong: true, success("2", "null"): true}
	for range 3 { // the waiting stream holds up nothing
		got := w.next()
		if !rest[got] {
			t.Fatalf("got %s", got)
		}
		delete(rest, got)
	}
	w.send(ack("9"))
	w.expect(chunk("9", "2", "3", "4")) // what waited leaves together
	close(s.values)
	w.send(request("3", "void", "{}"))
	w.expect(success("3", "null")) // the end waits for the Ack too
	w.send(ack("9"))
	w.expect(success("9", "null"))
}

func TestAcksDoNotAccumulate(t *testing.T) {
	w, _ := startWire(t, ServerOptions{})
	w.send(request("9", "count", `{"n":4000}`))
	w.next()
	w.send(ack("9"), ack("9"), ack("9"))
	w.next()
	w.send(ack("9"))
	got := w.next()
	if !strings.HasPrefix(got, `{"_tag":"Chunk","requestId":9,"values":[2048,`) {
		t.Fatalf("got %.100s", got)
	}
	w.send(request("1", "void", "{}"))
	w.expect(success("1", "null"))
}

func TestChunksAreCappedByCountAndBytes(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("9", "hold", `{}`))
	value := func(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", n-2) + `"`) }
	var all []json.RawMessage
	for range 2400 {
		all = append(all, value(10))
	}
	all = append(all, value(400<<10), value(400<<10), value(400<<10), value(3<<20), value(10), value(10))
	(<-s.held).Stream(func(_ context.Context, most Batch) ([]json.RawMessage, error) {
		if most != (Batch{Values: 1024, Bytes: 1 << 20}) {
			t.Errorf("asked for %v", most)
		}
		return all, io.EOF
	})
	var counts []int
	for {
		f, err := parseFrame([]byte(w.next()))
		if err != nil {
			t.Fatal(err)
		}
		if f.kind == kindExit {
			break
		}
		counts = append(counts, len(f.values))
		w.send(ack("9"))
	}
	if got := fmt.Sprint(counts); got != "[1024 1024 354 1 1 2]" {
		t.Fatalf("chunks of %s values", got)
	}
}

func TestAFailingStreamDeliversItsValuesFirstAndEndsAlone(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("8", "feed", "{}"), request("9", "overflow", "{}"))
	w.expect(chunk("9", "1", "2"))
	w.send(ack("9"))
	w.expect(failure("9", `{"_tag":"Fail","error":{"_tag":"SubscriptionOverflowError","capacity":4096}}`))
	s.values <- []json.RawMessage{json.RawMessage("7")}
	w.expect(chunk("8", "7"))
}

func TestInterruptStopsACallAndFreesItsID(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("8", "work", "{}"), interrupt("8"))
	w.expect(failure("8", interruptReason))
	if cause := <-s.stopped; cause != "interrupted" {
		t.Errorf("cause %s", cause)
	}
	w.send(request("8", "void", "{}"))
	w.expect(success("8", "null"))
}

func TestAnInterruptedCallKeepsItsIDUntilItHasStopped(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("8", "hold", "{}"), interrupt("8"), interrupt("8"), request("8", "void", "{}"))
	w.expect(defect(`"Request id in flight: 8"`))
	c := <-s.held
	<-c.Context().Done()
	c.Fail(json.RawMessage(`{"_tag":"X"}`))
	w.expect(failure("8", interruptReason))
}

func TestInterruptEndsAStreamWhileAChunkIsUnacknowledged(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("9", "feed", "{}"))
	s.values <- []json.RawMessage{json.RawMessage("1")}
	w.expect(chunk("9", "1"))
	s.values <- []json.RawMessage{json.RawMessage("2")}
	w.send(interrupt("9"))
	w.expect(failure("9", interruptReason))
	w.send(ack("9"), request("1", "void", "{}"))
	w.expect(success("1", "null")) // no chunk follows the Exit
}

func TestInterruptEndsAStreamThatWaitsForValues(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("9", "feed", "{}"), interrupt("9"))
	w.expect(failure("9", interruptReason))
	if cause := <-s.stopped; cause != "interrupted" {
		t.Errorf("cause %s", cause)
	}
}

func TestAPanicBehindAStartedStreamEndsTheStreamOnce(t *testing.T) {
	near, far := Pipe()
	server := NewServer(far, ServerOptions{})
	var running sync.WaitGroup
	running.Go(func() {
		_ = server.Serve(context.Background(), func(c *Call) {
			c.Stream(func(ctx context.Context, _ Batch) ([]json.RawMessage, error) { <-ctx.Done(); return nil, ctx.Err() })
			c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) { t.Error("second stream"); return nil, io.EOF })
			panic(errors.New("behind it"))
		})
	})
	w := newWire(t, near)
	w.send(request("1", "x", "{}"))
	w.expect(die("1", `{"name":"InternalError","message":"x failed: behind it"}`))
	_ = near.Close(CloseNormal, "")
	running.Wait()
}

func TestPanicsAreReported(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("1", "panic", "{}"))
	if got := <-s.panicked; got != "no such thing" {
		t.Errorf("reported %v", got)
	}
}

func TestCallsOverTheLimitAreBusyFailures(t *testing.T) {
	w, s := startWire(t, ServerOptions{MaxInFlight: 2, MaxInFlightBytes: 1000})
	w.send(request("1", "hold", "{}"), request("2", "hold", "{}"), request("3", "void", "{}"))
	w.expect(die("3", `{"name":"BusyError","message":"2 calls are running on this connection"}`))
	(<-s.held).Succeed(nil)
	w.expect(success("1", "null"))
	large := `{"a":"` + strings.Repeat("x", 2000) + `"}`
	w.send(request("3", "echo", large))
	w.expect(die("3", `{"name":"BusyError","message":"running calls on this connection hold 2 bytes"}`))
	(<-s.held).Succeed(nil)
	w.expect(success("2", "null"))
	w.send(request("3", "echo", large)) // alone it may be as large as a line
	w.expect(success("3", large))
}

func TestTheEndOfAConnectionCancelsItsCallsAndServeWaitsForItsStreams(t *testing.T) {
	s := newTestServer()
	conn, _, result := s.serve(t, ServerOptions{})
	w := newWire(t, conn)
	w.send(request("1", "hold", "{}"), request("2", "feed", "{}"), request("3", "count", `{"n":1}`))
	w.expect(chunk("3", "0"))
	c := <-s.held
	_ = conn.Close(CloseNormal, "")
	<-c.Context().Done()
	if cause := context.Cause(c.Context()); cause != ErrConnectionLost {
		t.Errorf("cause %v", cause)
	}
	if err := <-result; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if cause := <-s.stopped; cause != ErrConnectionLost.Error() {
		t.Errorf("stream was told %v", cause)
	}
	c.Succeed(nil) // nobody is there, nothing happens
}

func TestAStreamThatBeginsAfterItsConnectionIsNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		held := make(chan *Call, 1)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = NewServer(far, ServerOptions{}).Serve(t.Context(), func(c *Call) { held <- c })
		}()
		newWire(t, near).send(request("1", "x", "{}"))
		c := <-held
		_ = near.Close(CloseNormal, "")
		<-served
		c.Stream(func(context.Context, Batch) ([]json.RawMessage, error) {
			t.Error("a source was asked after Serve had returned")
			return nil, io.EOF
		})
		synctest.Wait()
	})
}

func TestShutdownWritesWhatIsQueuedAndClosesWith1001(t *testing.T) {
	s := newTestServer()
	conn, server, result := s.serve(t, ServerOptions{})
	w := newWire(t, conn)
	w.send(request("1", "hold", "{}"))
	(<-s.held).Succeed(json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`))
	server.Shutdown()
	server.Shutdown()
	w.expect(success("1", `"`+strings.Repeat("x", 1<<20)+`"`))
	w.expectClosed(CloseGoingAway)
	if err := <-result; err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

func TestRequestsDuringShutdownAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		server := NewServer(far, ServerOptions{})
		server.mu.Lock()
		server.stopping = true // as between Shutdown and the close
		server.mu.Unlock()
		go func() { _ = server.Serve(t.Context(), func(c *Call) { c.Succeed(nil) }) }()
		w := newWire(t, near)
		w.send(request("1", "x", "{}"))
		w.expect(die("1", `{"name":"ShutdownError","message":"server is going down"}`))
		_ = near.Close(CloseNormal, "")
		synctest.Wait()
	})
}

func TestTheEndOfServesContextClosesWith1001(t *testing.T) {
	near, far := Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	s := newTestServer()
	go func() { result <- NewServer(far, ServerOptions{}).Serve(ctx, s.handle) }()
	w := newWire(t, near)
	w.send(request("1", "work", "{}"))
	w.send(request("2", "void", "{}"))
	w.expect(success("2", "null"))
	cancel()
	w.expectClosed(CloseGoingAway)
	if err := <-result; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if cause := <-s.stopped; cause != context.Canceled.Error() {
		t.Errorf("call was told %v", cause)
	}
}

// What was done in spite of the end is told before the connection closes.
func TestCallsThatFinishAtTheEndOfServesContextAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() {
			result <- NewServer(far, ServerOptions{}).Serve(ctx, func(c *Call) {
				go func() {
					<-c.Context().Done()
					time.Sleep(answerGrace / 2) // the disk is slow
					c.Succeed(json.RawMessage(`"done"`))
				}()
			})
		}()
		w := newWire(t, near)
		w.send(request("1", "x", "{}"))
		synctest.Wait()
		cancel()
		synctest.Wait()
		w.send(request("2", "x", "{}"))
		w.expect(die("2", `{"name":"ShutdownError","message":"server is going down"}`))
		w.expect(success("1", `"done"`))
		w.expectClosed(CloseGoingAway)
		if err := <-result; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
}

func TestACallThatNeverFinishesDoesNotKeepAConnectionThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- NewServer(far, ServerOptions{}).Serve(ctx, func(*Call) {}) }()
		w := newWire(t, near)
		w.send(request("1", "x", "{}"))
		synctest.Wait()
		cancel()
		begun := time.Now()
		w.expectClosed(CloseGoingAway)
		if took := time.Since(begun); took != answerGrace {
			t.Errorf("closed after %s", took)
		}
		if err := <-result; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
}

func TestALineOverTheLimitClosesWith1009(t *testing.T) {
	const limit = 1 << 20
	s := newTestServer()
	conn, _, result := s.serve(t, ServerOptions{MaxLineBytes: limit})
	w := newWire(t, conn)
	// Exactly the limit is still a line.
	head := `{"_tag":"Request","id":1,"tag":"void","payload":{"a":"`
	tail := `"}}`
	w.sendRaw(head)
	w.sendRaw(strings.Repeat("x", limit-len(head)-len(tail)))
	w.sendRaw(tail + "\n")
	w.expect(success("1", "null"))

	w.sendRaw(strings.Repeat("x", limit))
	w.sendRaw("x")
	w.expectClosed(CloseTooBig)
	if err := <-result; !errors.Is(err, ErrLineTooLong) {
		t.Errorf("Serve returned %v", err)
	}
}

func TestAClientThatDoesNotReadIsCutOff(t *testing.T) {
	t.Run("when too much waits", func(t *testing.T) {
		near, far := Pipe()
		result := make(chan error, 1)
		value := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
		go func() {
			result <- NewServer(far, ServerOptions{MaxQueuedBytes: 4 << 20}).Serve(context.Background(), func(c *Call) {
				c.Succeed(value) // never blocks
			})
		}()
		for i := range 6 {
			if err := near.Write([]byte(request(fmt.Sprint(i), "x", "{}") + "\n")); err != nil {
				break // cut off already
			}
		}
		if err := <-result; !errors.Is(err, ErrPeerStuck) {
			t.Errorf("Serve returned %v", err)
		}
	})
	t.Run("when a write makes no progress", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			near, far := Pipe()
			start := time.Now()
			result := make(chan error, 1)
			go func() {
				result <- NewServer(far, ServerOptions{}).Serve(context.Background(), func(c *Call) {
					c.Succeed(json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`))
				})
			}()
			if err := near.Write([]byte(request("1", "x", "{}") + "\n")); err != nil {
				t.Fatal(err)
			}
			if err := <-result; !errors.Is(err, ErrPeerStuck) {
				t.Errorf("Serve returned %v", err)
			}
			if d := time.Since(start); d != defaultWriteTimeout {
				t.Errorf("after %v", d)
			}
		})
	})
	t.Run("but not one that is slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			near, far := Pipe()
			server := NewServer(far, ServerOptions{})
			var running sync.WaitGroup
			running.Go(func() {
				_ = server.Serve(context.Background(), func(c *Call) {
					c.Succeed(json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`))
				})
			})
			if err := near.Write([]byte(request("1", "x", "{}") + "\n")); err != nil {
				t.Fatal(err)
			}
			r := lineReader{limit: defaultLineLimit, read: func() ([]byte, error) {
				time.Sleep(defaultWriteTimeout / 2)
				return near.Read()
			}}
			if line, err := r.next(); err != nil || len(line) < 2<<20 {
				t.Errorf("got %d bytes, %v", len(line), err)
			}
			_ = near.Close(CloseNormal, "")
			running.Wait()
		})
	})
}

func TestShutdownDoesNotWaitForAClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		server := NewServer(far, ServerOptions{})
		result := make(chan error, 1)
		go func() {
			result <- server.Serve(context.Background(), func(c *Call) {
				c.Succeed(json.RawMessage(`"` + strings.Repeat("x", 4<<20) + `"`))
			})
		}()
		if err := near.Write([]byte(request("1", "x", "{}") + "\n")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		server.Shutdown()
		if err := <-result; err != nil {
			t.Errorf("Serve returned %v", err)
		}
		if d := time.Since(start); d != drainGrace {
			t.Errorf("after %v", d)
		}
	})
}

func TestPongOvertakesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		server := NewServer(far, ServerOptions{})
		go func() {
			_ = server.Serve(context.Background(), func(c *Call) {
				c.Succeed(json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`))
			})
		}()
		for i := range 4 {
			if err := near.Write([]byte(request(fmt.Sprint(i), "x", "{}") + "\n")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // the pipe is full in the middle of an answer, the others wait
		for range 100 {
			if err := near.Write([]byte(ping + "\n")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		w := newWire(t, near)
		pongs, exits := 0, 0
		for first := -1; exits < 4; {
			if strings.HasPrefix(w.next(), `{"_tag":"Exit"`) {
				exits++
				continue
			}
			if pongs++; first < 0 {
				first = exits
				// Only the answer that is being written is before it.
				if first > 1 {
					t.Errorf("the first Pong came behind %d answers", first)
				}
			}
		}
		if pongs != maxPongs {
			t.Errorf("%d Pongs, want %d", pongs, maxPongs)
		}
		_ = near.Close(CloseNormal, "")
		synctest.Wait()
	})
}

func TestAStreamIsHeldBackWhileMuchIsQueuedAndCanBeInterruptedThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe()
		server := NewServer(far, ServerOptions{})
		s := newTestServer()
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(context.Background(), s.handle) })
		send := func(frame string) {
			t.Helper()
			if err := near.Write([]byte(frame + "\n")); err != nil {
				t.Fatal(err)
			}
		}
		send(request("1", "hold", "{}"))
		(<-s.held).Succeed(json.RawMessage(`"` + strings.Repeat("x", 2*roomBytes+pipeDepth*messageSize) + `"`))
		send(request("8", "count", `{"n":1}`))
		send(request("9", "count", `{"n":2}`))
		synctest.Wait()
		server.link.mu.Lock()
		if len(server.link.queue) != 0 {
			t.Errorf("%d frames are queued", len(server.link.queue))
		}
		server.link.mu.Unlock()
		send(interrupt("8"))
		synctest.Wait()
		w := newWire(t, near) // reads at last
		w.next()
		w.expect(failure("8", interruptReason), chunk("9", "0", "1"))
		_ = near.Close(CloseNormal, "")
		running.Wait()
	})
}

func TestAnAckBeforeItsTimeOpensNothing(t *testing.T) {
	w, s := startWire(t, ServerOptions{})
	w.send(request("9", "feed", "{}"), ack("9"))
	s.values <- []json.RawMessage{json.RawMessage("1")}
	w.expect(chunk("9", "1"))
	s.values <- []json.RawMessage{json.RawMessage("2")}
	w.send(request("1", "void", "{}"))
	w.expect(success("1", "null"))
	w.send(ack("9"))
	w.expect(chunk("9", "2"))
}

func TestAMalformedLineFailsNoOtherConnection(t *testing.T) {
	s := newTestServer()
	a, _, _ := s.serve(t, ServerOptions{})
	b, _, _ := s.serve(t, ServerOptions{})
	bad, good := newWire(t, a), newWire(t, b)
	good.send(request("1", "hold", "{}"))
	call := <-s.held
	bad.send("{", interrupt("1"), ack("1"), request("1", "void", "{}"))
	bad.next()
	bad.expect(success("1", "null"))
	_ = a.Close(CloseNormal, "")
	if err := call.Context().Err(); err != nil {
		t.Errorf("the call of the other connection ended: %v", err)
	}
	call.Succeed(json.RawMessage("7"))
	good.expect(success("1", "7"))
}
