// Package dialecttest is what the tests of all dialects share: a scripted
// server, a collector that holds a dialect to its promises about order and
// ends, and random conversations. Nothing else imports it.
package dialecttest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"codework/messages"
	"codework/providers"
)

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

// Answer writes one answer of a Server.
type Answer func(w http.ResponseWriter, r *http.Request)

// Server is a provider that gives one answer after the other and keeps what it
// was asked.
type Server struct {
	*httptest.Server
	mu      sync.Mutex
	answers []Answer
	bodies  [][]byte
	heads   []*http.Request
}

// Serve starts a server with these answers; the last one is given again and
// again. It ends with the test.
func Serve(t testing.TB, answers ...Answer) *Server {
	s := &Server{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.bodies = append(s.bodies, body)
		s.heads = append(s.heads, r)
		answer := s.answers[0]
		if len(s.answers) > 1 {
			s.answers = s.answers[1:]
		}
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// Last is the latest request and its body.
func (s *Server) Last(t testing.TB) (*http.Request, []byte) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.heads) == 0 {
		t.Fatal("the server was not asked")
	}
	return s.heads[len(s.heads)-1], s.bodies[len(s.bodies)-1]
}

// Asked is how many requests came.
func (s *Server) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heads)
}

// Client is the server's client; its connections end with the test.
func (s *Server) Client(t testing.TB) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// Stream answers with an event stream.
func Stream(raw string) Answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, raw)
	}
}

// Cut answers with an event stream of announced length that breaks off.
func Cut(raw string, at int) Answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, raw[:at])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler) // the connection ends inside a chunk
	}
}

// Status answers with an error.
func Status(code int, header map[string]string, body string) Answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

// Data makes event frames that have only data.
func Data(frames ...string) string {
	var b bytes.Buffer
	for _, f := range frames {
		fmt.Fprintf(&b, "data: %s\n\n", f)
	}
	return b.String()
}

// Outcome is what one Stream emitted.
type Outcome struct {
	Events []messages.StreamEvent
}

// End is the last event.
func (o Outcome) End() messages.StreamEvent { return o.Events[len(o.Events)-1] }

// Done is the finished message; the test ends if there is none.
func (o Outcome) Done(t testing.TB) *messages.Message {
	t.Helper()
	if o.End().Kind != messages.StreamDone {
		t.Fatalf("failed: %+v", o.End().Failure)
	}
	return o.End().Message
}

// Failed is the failure; the test ends if there is none.
func (o Outcome) Failed(t testing.TB) *messages.Failure {
	t.Helper()
	if o.End().Kind != messages.StreamError {
		t.Fatalf("succeeded: %+v", o.End().Message)
	}
	return o.End().Failure
}

// Run streams one request and checks the promises of a dialect.
func Run(t testing.TB, d providers.Dialect, client *http.Client, req *messages.Request) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return RunContext(ctx, t, d, client, req)
}

// RunContext is Run under a context.
func RunContext(ctx context.Context, t testing.TB, d providers.Dialect, client *http.Client, req *messages.Request) Outcome {
	t.Helper()
	var o Outcome
	d.Stream(ctx, client, req, func(e messages.StreamEvent) { o.Events = append(o.Events, e) })
	Check(t, req, o.Events)
	return o
}

// Check holds a stream of events to the contract: a start first, each part
// started, grown and ended in its place, and one end of everything, whose
// message says the same as the events before it.
func Check(t testing.TB, req *messages.Request, events []messages.StreamEvent) {
	t.Helper()
	if len(events) == 0 {
		t.Fatal("nothing was emitted")
	}
	type part struct {
		kind messages.StreamKind
		text string
		end  *messages.Part
	}
	var parts []*part
	for i, e := range events {
		last := i == len(events)-1
		switch e.Kind {
		case messages.StreamDone, messages.StreamError:
			if !last {
				t.Fatalf("event %d of %d is an end", i, len(events))
			}
		case messages.StreamStart:
			if i != 0 {
				t.Fatalf("start is event %d", i)
			}
			if len(e.RequestDigest) != 64 {
				t.Fatalf("digest %q", e.RequestDigest)
			}
		case messages.StreamTextStart, messages.StreamThinkingStart, messages.StreamCallStart:
			if e.Index != len(parts) {
				t.Fatalf("part %d begins as number %d", len(parts), e.Index)
			}
			if e.Kind == messages.StreamCallStart && e.Part.CallID == "" {
				t.Fatalf("call without id: %+v", e.Part)
			}
			parts = append(parts, &part{kind: e.Kind})
		case messages.StreamTextDelta, messages.StreamThinkingDelta, messages.StreamCallDelta:
			if e.Index >= len(parts) || parts[e.Index].kind != e.Kind-1 || parts[e.Index].end != nil || e.Delta == "" {
				t.Fatalf("event %d: delta %+v does not fit", i, e)
			}
			parts[e.Index].text += e.Delta
		case messages.StreamTextEnd, messages.StreamThinkingEnd, messages.StreamCallEnd:
			if e.Index >= len(parts) || parts[e.Index].kind != e.Kind-2 || parts[e.Index].end != nil {
				t.Fatalf("event %d: end %+v does not fit", i, e)
			}
			parts[e.Index].end = &e.Part
		default:
			t.Fatalf("unknown event %+v", e)
		}
		if i == 0 && e.Kind != messages.StreamStart && e.Kind != messages.StreamError {
			t.Fatalf("first event is %+v", e)
		}
	}
	end := events[len(events)-1]
	if end.Kind == messages.StreamError {
		f := end.Failure
		if f == nil || f.Type == "" || f.Message == "" {
			t.Fatalf("failure says nothing: %+v", f)
		}
		if end.Message == nil || len(end.Message.Parts) > 0 {
			t.Fatalf("message of a failure: %+v", end.Message)
		}
		return
	}
	if end.Kind != messages.StreamDone {
		t.Fatalf("last event is %+v", end)
	}
	m := end.Message
	if m.ID != req.MessageID || m.Role != messages.RoleAssistant || m.Provider != req.Model.Provider.ID ||
		m.Protocol != string(req.Model.Protocol) || m.Model != req.Model.ID || m.Timestamp == 0 || m.StopReason == "" {
		t.Fatalf("finished message: %+v", m)
	}
	if m.Usage != nil && !m.Usage.Valid() {
		t.Fatalf("usage: %+v", m.Usage)
	}
	if len(m.Parts) != len(parts) || len(parts) == 0 {
		t.Fatalf("%d parts in the message, %d in the events", len(m.Parts), len(parts))
	}
	ids := map[string]bool{}
	for i, p := range parts {
		got := m.Parts[i]
		text := got.Text
		if got.Type == messages.PartToolCall {
			text = got.Arguments
			if ids[got.CallID] || got.CallID == "" {
				t.Fatalf("call id %q twice or empty", got.CallID)
			}
			ids[got.CallID] = true
		}
		if p.end == nil || text != p.text {
			t.Fatalf("part %d is %q, its deltas %q, ended %v", i, text, p.text, p.end != nil)
		}
	}
}
