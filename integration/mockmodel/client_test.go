package mockmodel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait of a test: far more than any takes.
const patience = 10 * time.Second

// client talks to a server as an agent would, on connections of its own.
type client struct {
	t    *testing.T
	s    *Server
	http *http.Client
	key  string // sent as Google wants it, unless empty
}

func dial(t *testing.T, s *Server) *client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &client{t: t, s: s, http: &http.Client{Transport: tr}}
}

// start makes a server and a client for it. The test fails when it leaves
// violations behind.
func start(t *testing.T, o Options) *client {
	t.Helper()
	return dial(t, StartTest(t, o))
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

const (
	chatPath      = "/v1/chat/completions"
	anthropicPath = "/v1/messages"
)

func (c *client) request(ctx context.Context, path, body string) *http.Request {
	c.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.s.URL()+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if path == anthropicPath {
		r.Header.Set("Anthropic-Version", "2023-06-01")
	}
	if c.key != "" {
		r.Header.Set("X-Goog-Api-Key", c.key)
	}
	return r
}

// do sends and returns the answer with its body still to be read.
func (c *client) do(ctx context.Context, path, body string) (*http.Response, error) {
	c.t.Helper()
	return c.http.Do(c.request(ctx, path, body))
}

// post sends and returns status and whole body.
func (c *client) post(path, body string) (int, string) {
	c.t.Helper()
	resp, err := c.do(within(c.t), path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// event is one server-sent event.
type event struct{ name, data string }

// json decodes the data of an event.
func (e event) json(t *testing.T) object {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(e.data), &o); err != nil {
		t.Fatalf("event %q is no JSON object: %v", e.data, err)
	}
	return o
}

// reader reads events as the standard says: lines ended by LF, CR LF or CR,
// comments skipped, an event dispatched by a blank line.
type reader struct {
	r        *bufio.Reader
	comments []string
	lastCR   bool
}

func newReader(r io.Reader) *reader { return &reader{r: bufio.NewReader(r)} }

func (r *reader) line() (string, error) {
	var b []byte
	for {
		c, err := r.r.ReadByte()
		if err != nil {
			if err == io.EOF && len(b) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		cr := r.lastCR
		r.lastCR = c == '\r'
		switch {
		case c == '\n' && cr: // second half of a CR LF
		case c == '\n' || c == '\r':
			return string(b), nil
		default:
			b = append(b, c)
		}
	}
}

func (r *reader) next() (event, error) {
	var e event
	var data []string
	begun := false
	for {
		l, err := r.line()
		if err != nil {
			if err == io.EOF && begun {
				err = io.ErrUnexpectedEOF
			}
			return event{}, err
		}
		field, value, _ := strings.Cut(l, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case l == "" && begun:
			e.data = strings.Join(data, "\n")
			return e, nil
		case l == "":
		case field == "":
			r.comments = append(r.comments, value)
		case field == "event":
			e.name, begun = value, true
		case field == "data":
			data, begun = append(data, value), true
		default:
			return event{}, errors.New("not a line of an event: " + l)
		}
	}
}

// all reads to the end; err is nil for a proper end of the body.
func (r *reader) all() ([]event, error) {
	var out []event
	for {
		e, err := r.next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
}

// events posts and reads the whole stream. err is how it broke.
func (c *client) events(path, body string) ([]event, error) {
	c.t.Helper()
	resp, err := c.do(within(c.t), path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	return newReader(resp.Body).all()
}

// whole is events for streams that must not break.
func (c *client) whole(path, body string) []event {
	c.t.Helper()
	ev, err := c.events(path, body)
	if err != nil {
		c.t.Fatalf("stream broke after %d events: %v", len(ev), err)
	}
	return ev
}

// said is what a client understands of a stream.
type said struct {
	text, thinking, signature, stop string
	calls                           []Part
	usage                           object
	done                            bool
	fault                           object
}

// understand folds the events of either protocol.
func understand(t *testing.T, path string, events []event) said {
	t.Helper()
	if path == chatPath {
		return understandChat(t, events)
	}
	return understandAnthropic(t, events)
}

func understandChat(t *testing.T, events []event) said {
	t.Helper()
	var s said
	for _, e := range events {
		if s.done {
			t.Fatalf("event after [DONE]: %v", e)
		}
		if e.name != "" {
			t.Fatalf("chat events have no name: %v", e)
		}
		if e.data == "[DONE]" {
			s.done = true
			continue
		}
		o := e.json(t)
		if f := obj(o["error"]); f != nil {
			s.fault = f
			continue
		}
		if u := obj(o["usage"]); u != nil {
			s.usage = u
		}
		for _, ch := range list(o["choices"]) {
			ch := obj(ch)
			if f := str(ch["finish_reason"]); f != "" {
				s.stop = f
			}
			d := obj(ch["delta"])
			s.text += str(d["content"])
			for _, k := range []string{FieldReasoningContent, FieldReasoning, FieldReasoningText} {
				s.thinking += str(d[k])
			}
			for _, x := range list(d[FieldReasoningDetails]) {
				s.signature += str(obj(x)["signature"])
			}
			for _, x := range list(d["tool_calls"]) {
				c, f := obj(x), obj(obj(x)["function"])
				if str(f["name"]) != "" {
					s.calls = append(s.calls, Part{Kind: PartCall, ID: str(c["id"]), Name: str(f["name"])})
				}
				s.calls[len(s.calls)-1].Args += str(f["arguments"])
			}
		}
	}
	return s
}

func understandAnthropic(t *testing.T, events []event) said {
	t.Helper()
	var s said
	open, next := -1, 0
	for i, e := range events {
		o := e.json(t)
		if e.name != str(o["type"]) {
			t.Fatalf("event %q has the type %q", e.name, str(o["type"]))
		}
		if i == 0 && e.name != "message_start" && e.name != "error" {
			t.Fatalf("the first event is %s", e.name)
		}
		if s.done {
			t.Fatalf("event after message_stop: %v", e)
		}
		if strings.HasPrefix(e.name, "content_block_") {
			switch i := whole(o["index"]); {
			case e.name == "content_block_start":
				if open >= 0 || i != next {
					t.Fatalf("block %d starts while %d is open and %d is next", i, open, next)
				}
				open, next = i, next+1
			case i != open:
				t.Fatalf("%s for block %d while %d is open", e.name, i, open)
			case e.name == "content_block_stop":
				open = -1
			}
		}
		switch e.name {
		case "message_start":
			s.usage = obj(obj(o["message"])["usage"])
		case "content_block_start":
			switch b := obj(o["content_block"]); str(b["type"]) {
			case "tool_use":
				s.calls = append(s.calls, Part{Kind: PartCall, ID: str(b["id"]), Name: str(b["name"])})
			case "redacted_thinking":
				s.signature += str(b["data"])
			}
		case "content_block_delta":
			d := obj(o["delta"])
			s.text += str(d["text"])
			s.thinking += str(d["thinking"])
			s.signature += str(d["signature"])
			if p := str(d["partial_json"]); p != "" {
				s.calls[len(s.calls)-1].Args += p
			}
		case "message_delta":
			if open >= 0 {
				t.Fatal("message_delta while a block is open")
			}
			s.stop = str(obj(o["delta"])["stop_reason"])
			if u := obj(o["usage"]); u != nil {
				s.usage = u
			}
		case "message_stop":
			s.done = true
		case "error":
			s.fault = obj(o["error"])
		}
	}
	return s
}

// ask is a plain valid request of either protocol.
func ask(path, prompt string) string {
	o := object{"model": "m", "stream": true, "messages": []object{{"role": "user", "content": prompt}}}
	if path == anthropicPath {
		o["max_tokens"] = 1000
	}
	return text(o)
}

// both runs a test for each protocol.
func both(t *testing.T, f func(t *testing.T, path string)) {
	t.Run("chat", func(t *testing.T) { f(t, chatPath) })
	t.Run("anthropic", func(t *testing.T) { f(t, anthropicPath) })
}
