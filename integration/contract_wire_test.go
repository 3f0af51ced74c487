package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codework/integration/mockmodel"
)

// server is a codework serve that a test has started.
type server struct {
	*world
	proc  *process
	url   string // ws://127.0.0.1:PORT/rpc/v1
	addr  string // host:port
	ended bool   // the test has seen to its end
}

// newServerWorld makes a world with a model server, ready for codework serve.
func newServerWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp(built.dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(dir, "openai-compatible")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.end(t.Failed()); err != nil {
			t.Error(err)
		}
	})
	w.script(t, nil)
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	return w
}

// newServer starts a server in a world of its own.
func newServer(t *testing.T, args ...string) *server {
	t.Helper()
	return newServerWorld(t).serveHere(t, nil, args...)
}

// serveHere starts codework serve on a free port and returns when it answers.
// At the end of the test it is told to stop, must end well, and may have said
// nothing that no process may say.
func (w *world) serveHere(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	s := w.beginServe(t, env, args...)
	s.announced(t)
	return s
}

// beginServe starts the program without waiting for its port.
func (w *world) beginServe(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	args = append([]string{"serve", "--port", "0", "--json"}, args...)
	env = append(append(w.environment(), "TMPDIR="+w.dir), env...)
	p, err := launch(start{dir: filepath.Join(w.dir, "work"), argv0: w.program, args: args, env: env})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{world: w, proc: p}
	t.Cleanup(func() {
		if !s.ended {
			s.stop(t)
		}
		if found := badLog.FindStringIndex(p.err.String()); found != nil {
			text := p.err.String()[found[0]:]
			t.Errorf("the server says:\n%s", text[:min(len(text), faultLimit)])
		}
		if t.Failed() {
			t.Logf("the server printed:\n%s%s", p.out.String(), p.err.String())
		}
	})
	return s
}

// announced waits for the line that says where the server listens.
func (s *server) announced(t *testing.T) {
	t.Helper()
	err := until(endLimit, func() string {
		select {
		case <-s.proc.done:
			return "it has ended:\n" + s.proc.out.String() + s.proc.err.String()
		default:
		}
		var line struct{ URL string }
		if err := json.Unmarshal([]byte(s.proc.out.String()), &line); err != nil {
			return "it has printed: " + s.proc.out.String() + s.proc.err.String()
		}
		s.url = line.URL
		s.addr = strings.TrimSuffix(strings.TrimPrefix(line.URL, "ws://"), "/rpc/v1")
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
}

// stopLimits is what a server may take to end: 10 s for its work, 20 s for
// what it runs, and a slow machine.
const stopLimits = 40 * time.Second

func (s *server) stop(t *testing.T) {
	t.Helper()
	s.ended = true
	_ = s.proc.cmd.Process.Signal(syscall.SIGTERM)
	code, err := s.proc.finish(stopLimits)
	if err != nil {
		_ = s.proc.cmd.Process.Kill()
		_, _ = s.proc.finish(endLimit)
	}
	if err != nil || code != 0 {
		t.Errorf("the server was told to stop: exit code %d, %v", code, err)
	}
}

// answers adds a script for the model under a name that prompts refer to.
func (s *server) answers(t *testing.T, name string, script ...mockmodel.Answer) {
	t.Helper()
	if err := s.model.SetScript(name, script); err != nil {
		t.Fatal(err)
	}
	s.scripts = append(s.scripts, name)
}

// reached waits until a request stands at a hold of the model.
func (s *server) reached(t *testing.T, hold string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), endLimit)
	defer cancel()
	if err := s.model.Reached(ctx, hold); err != nil {
		t.Fatalf("nobody reached %s: %v", hold, err)
	}
}

// answer is how a call ended, as it stands on the wire.
type answer struct {
	kind string // Success, Fail, Die, Interrupt
	body json.RawMessage
}

func (a answer) String() string { return a.kind + " " + string(a.body) }

// wire is a connection that speaks the protocol by itself, without a line of
// the product's client. Whatever comes is held against the protocol and the
// contract; what offends is reported at the end of the test.
type wire struct {
	t  *testing.T
	ws *websocket.Conn

	closed chan struct{} // when nothing more will come
	why    error         // valid then

	mu      sync.Mutex // guards what follows
	next    int
	calls   map[string]*pendingCall // by the raw id
	defects []json.RawMessage
	pongs   int
	faults  []string
	moved   chan struct{} // closed and replaced whenever something above changes
}

// pendingCall is a call that has not ended, or a stream.
type pendingCall struct {
	method string
	done   chan answer // holds one
	stream *stream
}

// dialWith connects with further headers.
func dialWith(t *testing.T, url string, header http.Header) (*wire, error) {
	t.Helper()
	return dialOver(t, url, header, nil)
}

func dialOver(t *testing.T, url string, header http.Header, client *http.Client) (*wire, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), endLimit)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: header, HTTPClient: client, CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		if resp != nil {
			return nil, &refusal{resp.StatusCode}
		}
		return nil, err
	}
	ws.SetReadLimit(-1)
	c := &wire{t: t, ws: ws, closed: make(chan struct{}), calls: map[string]*pendingCall{}, moved: make(chan struct{})}
	go c.read()
	t.Cleanup(func() {
		c.close()
		for _, f := range c.faults {
			t.Error(f)
		}
	})
	return c, nil
}

// refusal is an answer that did not upgrade.
type refusal struct{ status int }

func (r *refusal) Error() string { return "answered " + strconv.Itoa(r.status) }

func (s *server) dial(t *testing.T) *wire {
	t.Helper()
	c, err := dialWith(t, s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// close ends the connection in good order.
func (c *wire) close() {
	_ = c.ws.Close(websocket.StatusNormalClosure, "")
	<-c.closed
}

// vanish ends it without a word.
func (c *wire) vanish() {
	_ = c.ws.CloseNow()
	<-c.closed
}

// code is the close code that the server sent, once it has closed.
func (c *wire) code() websocket.StatusCode {
	select {
	case <-c.closed:
	case <-time.After(stopLimits):
		c.t.Fatal("the server does not close the connection")
	}
	return websocket.CloseStatus(c.why)
}

// maxFrame is what the stock client buffers for one line at most.
const maxFrame = 16 << 20

func (c *wire) read() {
	defer close(c.closed)
	var left []byte
	for {
		kind, message, err := c.ws.Read(context.Background())
		if err != nil {
			c.mu.Lock()
			c.why = err
			for _, p := range c.calls {
				p.lost()
			}
			c.mu.Unlock()
			return
		}
		if kind != websocket.MessageText {
			c.fault("the server sent a binary message")
		}
		left = append(left, message...)
		for {
			i := bytes.IndexByte(left, '\n')
			if i < 0 {
				break
			}
			c.line(left[:i])
			left = left[i+1:]
		}
	}
}

func (p *pendingCall) lost() {
	a := answer{kind: "lost"}
	if p.stream != nil {
		p.stream.finish(a)
		return
	}
	select {
	case p.done <- a:
	default:
	}
}

func (c *wire) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.faults) < 20 {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

// changed tells those who wait for something. c.mu is held.
func (c *wire) changed() {
	close(c.moved)
	c.moved = make(chan struct{})
}

// line takes a frame of the server.
func (c *wire) line(line []byte) {
	switch {
	case len(line) == 0:
		c.fault("the server sent an empty line")
		return
	case len(line) >= maxFrame:
		c.fault("the server sent a frame of %d bytes", len(line))
	}
	var f struct {
		Tag       string            `json:"_tag"`
		RequestID json.RawMessage   `json:"requestId"`
		Values    []json.RawMessage `json:"values"`
		Defect    json.RawMessage   `json:"defect"`
		Exit      struct {
			Tag   string          `json:"_tag"`
			Value json.RawMessage `json:"value"`
			Cause []struct {
				Tag     string          `json:"_tag"`
				Error   json.RawMessage `json:"error"`
				Defect  json.RawMessage `json:"defect"`
				FiberID json.RawMessage `json:"fiberId"`
			} `json:"cause"`
		} `json:"exit"`
	}
	if err := json.Unmarshal(line, &f); err != nil {
		c.fault("the server sent %.200q: %v", line, err)
		return
	}
	id := string(f.RequestID)
	c.mu.Lock()
	p := c.calls[id]
	c.mu.Unlock()
	switch f.Tag {
	case "Pong":
		c.mu.Lock()
		c.pongs++
		c.changed()
		c.mu.Unlock()
	case "Defect":
		if f.Defect == nil {
			c.fault("a Defect without its value: %.200s", line)
		}
		c.mu.Lock()
		c.defects = append(c.defects, bytes.Clone(f.Defect))
		c.changed()
		c.mu.Unlock()
	case "Chunk":
		switch {
		case p == nil:
			c.fault("a Chunk for %s, which is not running", id)
		case p.stream == nil:
			c.fault("%s was answered with a Chunk", p.method)
		case len(f.Values) == 0:
			c.fault("an empty Chunk of %s", p.method)
		default:
			p.stream.chunk(f.Values)
		}
	case "Exit":
		a := answer{kind: f.Exit.Tag, body: f.Exit.Value}
		if f.Exit.Tag == "Failure" {
			if len(f.Exit.Cause) != 1 {
				c.fault("a failure with %d causes: %.200s", len(f.Exit.Cause), line)
				return
			}
			r := f.Exit.Cause[0]
			a.kind = r.Tag
			switch r.Tag {
			case "Fail":
				a.body = r.Error
			case "Die":
				a.body = r.Defect
			case "Interrupt":
				a.body = r.FiberID
			}
		}
		if a.body == nil {
			c.fault("an Exit without its value: %.200s", line)
		}
		a.body = bytes.Clone(a.body)
		if p == nil {
			c.fault("an Exit for %s, which is not running", id)
			return
		}
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
		for _, what := range offends(p.method, a) {
			c.fault("%s: %s", p.method, what)
		}
		if p.stream != nil {
			p.stream.finish(a)
			return
		}
		p.done <- a
	default:
		c.fault("a frame of kind %q", f.Tag)
	}
}

// send writes text as one message, whatever it is.
func (c *wire) send(text string) {
	c.t.Helper()
	if err := c.write(websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

func (c *wire) write(kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	return c.ws.Write(ctx, kind, b)
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// request sends a call under a raw id. A string is a payload as it stands.
func (c *wire) request(id, method string, payload any) *pendingCall {
	c.t.Helper()
	body, raw := payload.(string)
	if !raw {
		body = encoded(c.t, payload)
	}
	p := &pendingCall{method: method, done: make(chan answer, 1)}
	if method == "event.subscribe" || method == "sandbox.exec" {
		p.stream = &stream{c: c, id: id, ended: make(chan struct{}), moved: make(chan struct{})}
	}
	c.mu.Lock()
	c.calls[id] = p
	c.mu.Unlock()
	c.send(`{"_tag":"Request","id":` + id + `,"tag":"` + method + `","payload":` + body + `,"headers":[]}` + "\n")
	return p
}

func (c *wire) nextID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	return strconv.Itoa(c.next - 1)
}

// callLimit bounds what needs no model and no command, on a machine that has
// much else to do.
const callLimit = 60 * time.Second

func (p *pendingCall) wait(t *testing.T) answer {
	t.Helper()
	select {
	case a := <-p.done:
		return a
	case <-time.After(callLimit):
		t.Fatalf("%s was not answered", p.method)
		return answer{}
	}
}

// begin sends a call without waiting for its answer.
func (c *wire) begin(method string, payload any) *pendingCall {
	c.t.Helper()
	return c.request(c.nextID(), method, payload)
}

// ask makes a call. A stream's answer is its end.
func (c *wire) ask(method string, payload any) answer {
	c.t.Helper()
	p := c.begin(method, payload)
	if p.stream != nil {
		return p.stream.wait(c.t)
	}
	return p.wait(c.t)
}

// o is a JSON object.
type o = map[string]any

// call makes a call that must succeed.
func (c *wire) call(method string, payload any) json.RawMessage {
	c.t.Helper()
	a := c.ask(method, payload)
	if a.kind != "Success" {
		c.t.Fatalf("%s %v: %s", method, payload, a)
	}
	return a.body
}

// fails makes a call that must fail with exactly this error.
func (c *wire) fails(method string, payload any, want o) {
	c.t.Helper()
	a := c.ask(method, payload)
	if a.kind != "Fail" || !sameJSON(a.body, []byte(encoded(c.t, want))) {
		c.t.Errorf("%s %v: got %s instead of the error %s", method, payload, a, encoded(c.t, want))
	}
}

// dies makes a call that must die with a defect that says this.
func (c *wire) dies(method string, payload any, says string) {
	c.t.Helper()
	a := c.ask(method, payload)
	if a.kind != "Die" || !strings.Contains(string(a.body), says) {
		c.t.Errorf("%s %v: got %s instead of a defect with %q", method, payload, a, says)
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

// at reads a string, number, … below keys, as text; "" when it is not there.
func at(raw json.RawMessage, keys ...string) string {
	for _, k := range keys {
		var m map[string]json.RawMessage
		var l []json.RawMessage
		switch {
		case json.Unmarshal(raw, &m) == nil:
			raw = m[k]
		case json.Unmarshal(raw, &l) == nil:
			i, err := strconv.Atoi(k)
			if err != nil || i >= len(l) {
				return ""
			}
			raw = l[i]
		default:
			return ""
		}
	}
	var s string
	if len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func items(t *testing.T, raw json.RawMessage) []json.RawMessage {
	t.Helper()
	var l []json.RawMessage
	if err := json.Unmarshal(raw, &l); err != nil || l == nil {
		t.Fatalf("%.200s is no list", raw)
	}
	return l
}

// pong sends a Ping and waits for the answer.
func (c *wire) pong() {
	c.t.Helper()
	c.mu.Lock()
	n := c.pongs
	c.mu.Unlock()
	c.send(`{"_tag":"Ping"}` + "\n")
	c.await("a Pong", func() bool { return c.pongs > n })
}

// await waits until something holds; cond is asked with c.mu held.
func (c *wire) await(what string, cond func() bool) {
	c.t.Helper()
	limit := time.After(callLimit)
	for {
		c.mu.Lock()
		ok, moved := cond(), c.moved
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-moved:
		case <-c.closed:
			c.t.Fatalf("the connection ended before %s: %v", what, c.why)
		case <-limit:
			c.t.Fatalf("no %s", what)
		}
	}
}

// defect waits for the next Defect of the connection and takes it.
func (c *wire) defect() string {
	c.t.Helper()
	c.await("a Defect", func() bool { return len(c.defects) > 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.defects[0]
	c.defects = c.defects[1:]
	return string(d)
}

// stream is a running stream and what it has brought.
type stream struct {
	c  *wire
	id string

	mu      sync.Mutex // guards what follows
	got     []json.RawMessage
	times   []time.Time
	read    int  // how many next has handed out
	stalled bool // chunks are not acknowledged
	owed    bool // one was not
	end     answer
	ended   chan struct{}
	moved   chan struct{}
	seen    map[string]int // events held against the contract, by type
}

func (s *stream) chunk(values []json.RawMessage) {
	s.mu.Lock()
	if s.owed {
		s.mu.Unlock()
		s.c.fault("a Chunk before the one before it was acknowledged")
		return
	}
	now := time.Now()
	for _, v := range values {
		s.got = append(s.got, bytes.Clone(v))
		s.times = append(s.times, now)
	}
	s.owed = true
	stalled := s.stalled
	close(s.moved)
	s.moved = make(chan struct{})
	s.mu.Unlock()
	if !stalled {
		s.acknowledge()
	}
}

// acknowledge sends the Ack that is owed.
func (s *stream) acknowledge() {
	s.mu.Lock()
	owed := s.owed
	s.owed = false
	s.mu.Unlock()
	if owed {
		// A connection that is gone needs none.
		_ = s.c.write(websocket.MessageText, []byte(`{"_tag":"Ack","requestId":`+s.id+`}`+"\n"))
	}
}

// stall stops or resumes acknowledging.
func (s *stream) stall(yes bool) {
	s.mu.Lock()
	s.stalled = yes
	s.mu.Unlock()
	if !yes {
		s.acknowledge()
	}
}

func (s *stream) finish(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended:
	default:
		s.end = a
		close(s.ended)
	}
}

// interrupt tells the server that nobody is interested any more.
func (s *stream) interrupt() { s.c.send(`{"_tag":"Interrupt","requestId":` + s.id + `}` + "\n") }

// wait waits for the end of the stream.
func (s *stream) wait(t *testing.T) answer {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(endLimit):
		t.Fatalf("stream %s does not end", s.id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// event is an event as it came.
type event struct {
	ID      string
	Type    string
	Durable *struct {
		AggregateID string
		Seq         int64
		Version     int
	}
	Data json.RawMessage
	raw  json.RawMessage
	time time.Time // of its arrival
}

// errOver says that a stream has ended.
var errOver = errors.New("the stream is over")

// next returns the next event, which it holds against the contract.
func (s *stream) next(limit time.Duration) (event, error) {
	raw, came, err := s.value(limit)
	if err != nil {
		return event{}, err
	}
	return s.parse(raw, came)
}

// value returns the next value of the stream, and when it came.
func (s *stream) value(limit time.Duration) (json.RawMessage, time.Time, error) {
	late := time.After(limit)
	for {
		s.mu.Lock()
		if s.read < len(s.got) {
			raw, came := s.got[s.read], s.times[s.read]
			s.read++
			s.mu.Unlock()
			return raw, came, nil
		}
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-moved:
			continue
		default:
		}
		select {
		case <-moved:
		case <-s.ended:
			s.mu.Lock()
			more := s.read < len(s.got)
			s.mu.Unlock()
			if !more {
				return nil, time.Time{}, fmt.Errorf("%w: %s", errOver, s.end)
			}
		case <-late:
			return nil, time.Time{}, errors.New("nothing further came")
		}
	}
}

// checkedOfAType is how many events of a type one stream holds against the
// contract: a storm of deltas needs no more.
const checkedOfAType = 50

func (s *stream) parse(raw json.RawMessage, came time.Time) (event, error) {
	e := event{raw: raw, time: came}
	if err := json.Unmarshal(raw, &e); err != nil {
		return e, fmt.Errorf("event %.200s: %w", raw, err)
	}
	if s.seen == nil {
		s.seen = map[string]int{}
	}
	if s.seen[e.Type]++; s.seen[e.Type] <= checkedOfAType {
		for _, what := range offendingEvent(e) {
			s.c.fault("event %s: %s: %.300s", e.Type, what, raw)
		}
	}
	return e, nil
}

// to returns the events up to and with the first that fits.
func (s *stream) to(t *testing.T, what string, fits func(event) bool) []event {
	t.Helper()
	var out []event
	for {
		e, err := s.next(endLimit)
		if err != nil {
			t.Fatalf("no %s: %v; there came %s", what, err, strings.Join(typesOf(out), " "))
		}
		out = append(out, e)
		if fits(e) {
			return out
		}
	}
}

// toEnd returns the events up to the end of a session's busy period.
func (s *stream) toEnd(t *testing.T, session string) []event {
	t.Helper()
	return s.to(t, "end of the work", func(e event) bool { return terminal(e.Type) && e.session() == session })
}

func terminal(kind string) bool {
	switch kind {
	case "session.execution.succeeded", "session.execution.failed", "session.execution.interrupted":
		return true
	}
	return false
}

func (e event) session() string { return at(e.Data, "sessionId") }

func (e event) seq() int64 {
	if e.Durable == nil {
		return 0
	}
	return e.Durable.Seq
}

func typesOf(events []event) []string {
	var out []string
	for _, e := range events {
		out = append(out, e.Type)
	}
	return out
}

// ofSession keeps one session's events.
func ofSession(events []event, id string) []event {
	var out []event
	for _, e := range events {
		if e.session() == id {
			out = append(out, e)
		}
	}
	return out
}

// subscribe begins a subscription; its first event must say that it stands.
func (c *wire) subscribe(payload any) *stream {
	c.t.Helper()
	s := c.begin("event.subscribe", payload).stream
	e, err := s.next(callLimit)
	if err != nil || e.Type != "server.connected" {
		c.t.Fatalf("the subscription begins with %s, %v", e.raw, err)
	}
	return s
}

// create makes a session in the server's folder.
func (c *wire) create(payload any) string {
	c.t.Helper()
	return at(c.call("session.create", payload), "id")
}

// prompt sends a prompt, which must be taken.
func (c *wire) prompt(session, text string) {
	c.t.Helper()
	if got := c.call("session.prompt", o{"sessionId": session, "text": text}); string(got) != "null" {
		c.t.Fatalf("a prompt was answered with %s", got)
	}
}

// idle waits for the end of a session's work.
func (c *wire) idle(session string) {
	c.t.Helper()
	p := c.begin("session.wait", o{"sessionId": session})
	select {
	case a := <-p.done:
		if a.kind != "Success" || string(a.body) != "null" {
			c.t.Fatalf("session.wait: %s", a)
		}
	case <-time.After(endLimit):
		c.t.Fatalf("session %s does not come to rest", session)
	}
}
