package providers_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
	"codework/providers"
	"codework/providers/internal/dialecttest"
	"codework/providers/sse"
)

// plain is a dialect of one word per event: a word is text, "stop" ends.
type plain struct{}

func (plain) Stream(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	providers.Attempt{
		URL:    req.Model.BaseURL,
		Header: http.Header{"Authorization": {"Bearer " + req.APIKey}},
		Body:   []byte(`{"q":1}`),
		Event: func(a *providers.Assembler, e sse.Event) {
			if string(e.Data) == "stop" {
				a.Stop(messages.StopStop)
				return
			}
			a.Text(string(e.Data))
		},
	}.Run(ctx, client, req, emit)
}

func request(url string) *messages.Request {
	return &messages.Request{MessageID: "answer", APIKey: "sk-very-secret", Model: messages.Model{
		ID: "m", Protocol: "openai-compatible", BaseURL: url, Provider: messages.ModelProvider{ID: "p", Name: "Pro"}}}
}

// scripted is a transport whose body comes from a function that writes it, and
// ends as that of a real one does when the request's context ends.
type scripted func(w wire)

// wire is what a scripted body is written to. Nothing blocks on it for longer
// than the request lives.
type wire struct {
	ctx    context.Context
	chunks chan string
}

func (w wire) write(text string) {
	select {
	case w.chunks <- text:
	case <-w.ctx.Done():
	}
}

func (w wire) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.ctx.Done():
	}
}

func (w wire) stall() { <-w.ctx.Done() }

func (s scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	w := wire{r.Context(), make(chan string)}
	go func() {
		defer close(w.chunks)
		s(w)
	}()
	if _, ok := <-w.chunks; !ok { // the first chunk stands for the response headers
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: &scriptedBody{ctx: r.Context(), chunks: w.chunks}, Request: r}, nil
}

type scriptedBody struct {
	ctx    context.Context
	chunks chan string
	rest   string
}

func (b *scriptedBody) Read(p []byte) (int, error) {
	for b.rest == "" {
		select {
		case chunk, ok := <-b.chunks:
			if !ok {
				return 0, io.EOF
			}
			b.rest = chunk
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *scriptedBody) Close() error { return nil }

func TestDeadlines(t *testing.T) {
	for _, c := range []struct {
		name        string
		total, idle time.Duration
		script      scripted
		after       time.Duration
		typ         string // "" is a success
		message     string
	}{
		{"no answer", 0, 0, func(w wire) { w.stall() }, 5 * time.Minute, messages.FailTimeout, "the provider sent nothing for 5m0s"},
		{"headers and nothing more", 0, 2 * time.Second, func(w wire) { w.write(""); w.stall() },
			2 * time.Second, messages.FailTimeout, "the provider sent nothing for 2s"},
		{"two events and silence", 0, 2 * time.Second, func(w wire) {
			w.write("")
			w.write("data: a\n\n")
			w.pause(1500 * time.Millisecond)
			w.write("data: b\n\n")
			w.stall()
		}, 3500 * time.Millisecond, messages.FailTimeout, "the provider sent nothing for 2s"},
		{"keep-alives count", 0, 2 * time.Second, func(w wire) {
			w.write("")
			for range 100 {
				w.pause(1900 * time.Millisecond)
				w.write(":\n")
			}
			w.write("data: a\n\ndata: stop\n\n")
		}, 190 * time.Second, "", ""},
		{"half an event counts", 0, 2 * time.Second, func(w wire) {
			w.write("")
			for _, piece := range []string{"da", "ta: ", "a\n", "\ndata: stop\n", "\n"} {
				w.pause(1900 * time.Millisecond)
				w.write(piece)
			}
		}, 5 * 1900 * time.Millisecond, "", ""},
		{"slow but steady", 0, 2 * time.Second, func(w wire) {
			w.write("")
			for range 40 {
				w.pause(1500 * time.Millisecond)
				w.write("data: a\n\n")
			}
			w.write("data: stop\n\n")
		}, time.Minute, "", ""},
		{"the whole request", 10 * time.Second, 2 * time.Second, func(w wire) {
			w.write("")
			for range 40 {
				w.pause(1500 * time.Millisecond)
				w.write("data: a\n\n")
			}
		}, 10 * time.Second, messages.FailTimeout, "the answer was not complete after 10s"},
		{"an hour by default", 0, 0, func(w wire) {
			w.write("")
			for range 1000 {
				w.pause(4 * time.Minute)
				w.write("data: a\n\n")
			}
		}, time.Hour, messages.FailTimeout, "the answer was not complete after 1h0m0s"},
		{"no end of the stream after the answer's", 0, 0, func(w wire) {
			w.write("")
			w.write("data: a\n\ndata: stop\n\n")
			w.stall()
		}, time.Second, "", ""},
		{"keep-alives without end after the answer's", 0, 0, func(w wire) {
			w.write("")
			w.write("data: a\n\ndata: stop\n\n")
			for w.ctx.Err() == nil {
				w.pause(100 * time.Millisecond)
				w.write(":\n")
			}
		}, time.Second, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				req := request("http://provider.example")
				req.Options.Timeout, req.Options.IdleTimeout = c.total, c.idle
				began := time.Now()
				var last messages.StreamEvent
				plain{}.Stream(t.Context(), &http.Client{Transport: c.script, Timeout: time.Second}, req, func(e messages.StreamEvent) { last = e })
				took := time.Since(began)
				synctest.Wait()
				if took != c.after {
					t.Errorf("took %v, want %v", took, c.after)
				}
				switch {
				case c.typ == "" && last.Kind != messages.StreamDone:
					t.Errorf("failed: %+v", last.Failure)
				case c.typ != "" && (last.Kind != messages.StreamError || last.Failure.Type != c.typ || !last.Failure.Retryable || last.Failure.Message != c.message):
					t.Errorf("%+v", last.Failure)
				}
			})
		})
	}
}

// Only the provider's silence counts, not the time that the receiver takes.
func TestASlowReceiverIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		script := scripted(func(w wire) {
			w.write("")
			w.write("data: a\n\ndata: b\n\n")
			w.write("data: stop\n\n")
		})
		req := request("http://provider.example")
		req.Options.IdleTimeout = 2 * time.Second
		var last messages.StreamEvent
		plain{}.Stream(t.Context(), &http.Client{Transport: script}, req, func(e messages.StreamEvent) {
			last = e
			if e.Kind == messages.StreamTextDelta {
				time.Sleep(10 * time.Second) // this is the slowness, nothing is waited for
			}
		})
		synctest.Wait()
		if last.Kind != messages.StreamDone {
			t.Errorf("%+v", last.Failure)
		}
	})
}

func TestACallerCanStopAtAnyPoint(t *testing.T) {
	for name, script := range map[string]scripted{
		"before the headers": func(w wire) { w.stall() },
		"before an event":    func(w wire) { w.write(""); w.stall() },
		"in the answer":      func(w wire) { w.write(""); w.write("data: a\n\nda"); w.stall() },
		"after its end":      func(w wire) { w.write(""); w.write("data: a\n\ndata: stop\n\n"); w.stall() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(500*time.Millisecond, cancel)
				began := time.Now()
				o := dialecttest.RunContext(ctx, t, plain{}, &http.Client{Transport: script}, request("http://provider.example"))
				if f := o.Failed(t); f.Code != providers.CodeAborted || f.Retryable || time.Since(began) != 500*time.Millisecond {
					t.Errorf("%+v after %v", f, time.Since(began))
				}
			})
		})
	}
}

func TestNothingIsEmittedAfterTheCallerStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := dialecttest.Serve(t, dialecttest.Stream("data: a\n\ndata: b\n\ndata: c\n\ndata: stop\n\n"))
	var kinds []messages.StreamKind
	plain{}.Stream(ctx, s.Client(t), request(s.URL), func(e messages.StreamEvent) {
		kinds = append(kinds, e.Kind)
		if e.Kind == messages.StreamTextDelta {
			cancel()
		}
	})
	want := []messages.StreamKind{messages.StreamStart, messages.StreamTextStart, messages.StreamTextDelta, messages.StreamError}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", kinds, want)
	}
}

func TestAStopClosesTheConnection(t *testing.T) {
	gone := make(chan struct{})
	s := dialecttest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: a\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(context.Background())
	plain{}.Stream(ctx, s.Client(t), request(s.URL), func(e messages.StreamEvent) {
		if e.Kind == messages.StreamTextDelta {
			cancel()
		}
	})
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("the server still has the connection")
	}
}

func TestNetworkFailures(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	dial := func(err error) *http.Client {
		return &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, err }}}
	}
	hijack := func(end func(net.Conn)) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				end(conn)
				conn.Close()
			}
		}
	}
	reset := func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }
	eof := httptest.NewServer(http.HandlerFunc(hijack(func(net.Conn) {})))
	defer eof.Close()
	rst := httptest.NewServer(http.HandlerFunc(hijack(reset)))
	defer rst.Close()
	tlsServer := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	tlsServer.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that must fail
	tlsServer.StartTLS()
	defer tlsServer.Close()
	plainServer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer plainServer.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	usual := &http.Client{Transport: transport}
	for _, c := range []struct {
		name, url string
		client    *http.Client
		typ       string
		retry     bool
		says      string
	}{
		{"refused", "http://" + closed.Addr().String(), usual, messages.FailTransport, true, "was refused"},
		{"name not found", "http://provider.example", dial(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "provider.example", IsNotFound: true}}), messages.FailTransport, true, "the name provider.example could not be resolved"},
		{"dial timeout", "http://provider.example", dial(&net.OpError{Op: "dial", Err: timeoutError{}}), messages.FailTransport, true, "timed out"},
		{"no route", "http://provider.example", dial(&net.OpError{Op: "dial", Err: errors.New("no route")}), messages.FailTransport, true, "no connection to provider.example"},
		{"anything else", "http://provider.example", dial(errors.New("http2: server sent GOAWAY sk-very-secret")), messages.FailTransport, true, "connection to provider.example failed"},
		{"closed without an answer", eof.URL, usual, messages.FailTransport, true, "ended before the answer was complete"},
		{"reset", rst.URL, usual, messages.FailTransport, true, ""},
		{"certificate", tlsServer.URL, usual, messages.FailTransport, false, "certificate"},
		{"no TLS there", strings.Replace(plainServer.URL, "http:", "https:", 1), usual, messages.FailTransport, false, "does not speak TLS"},
		{"scheme", "ftp://provider.example", usual, messages.FailTransport, false, "unsupported scheme"},
		{"no URL", "", usual, messages.FailConfiguration, false, "no base URL"},
		{"not a URL", "http://[::1", usual, messages.FailConfiguration, false, "no base URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := dialecttest.Run(t, plain{}, c.client, request(c.url)).Failed(t)
			if f.Type != c.typ || f.Retryable != c.retry || !strings.Contains(f.Message, c.says) || strings.Contains(f.Message, "secret") {
				t.Errorf("%+v", f)
			}
		})
	}
}

type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

func TestRedirectsDoNotCarryTheKeyAway(t *testing.T) {
	const good = "data: a\n\ndata: stop\n\n"
	other := dialecttest.Serve(t, dialecttest.Stream(good))
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := dialecttest.Serve(t, dialecttest.Status(status, map[string]string{"Location": other.URL}, ""))
		f := dialecttest.Run(t, plain{}, s.Client(t), request(s.URL)).Failed(t)
		if f.Type != messages.FailConfiguration || f.Retryable || f.Status != status {
			t.Errorf("%d: %+v", status, f)
		}
	}
	if other.Asked() > 0 {
		t.Error("the other host was asked")
	}
	same := dialecttest.Serve(t, dialecttest.Status(307, map[string]string{"Location": "/elsewhere"}, ""), dialecttest.Stream(good))
	dialecttest.Run(t, plain{}, same.Client(t), request(same.URL)).Done(t)
	if r, body := same.Last(t); r.URL.Path != "/elsewhere" || string(body) != `{"q":1}` || r.Header.Get("Authorization") == "" {
		t.Errorf("same host: %s %s", r.URL, body)
	}
	loop := dialecttest.Serve(t, dialecttest.Status(307, map[string]string{"Location": "/"}, ""))
	dialecttest.Run(t, plain{}, loop.Client(t), request(loop.URL)).Failed(t)
	if n := loop.Asked(); n > 5 {
		t.Errorf("followed %d redirects in a circle", n)
	}
}

func TestErrorAnswers(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Status(503, map[string]string{"Retry-After": "1.5", "X-Request-Id": "req_1"}, `{"error":{"message":"Busy.","type":"overloaded"}}`))
	o := dialecttest.Run(t, plain{}, s.Client(t), request(s.URL))
	want := messages.Failure{Type: messages.FailUnavailable, Message: "busy", Status: 503, Code: "overloaded", Request: "req_1", Retryable: true, RetryAfter: 1500 * time.Millisecond,
		Hint: "the provider asks to wait 1.5s"}
	if got := *o.Failed(t); got != want || len(o.Events) != 1 {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	// A body without end costs no more than its first 64 KiB.
	endless := dialecttest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	})
	if f := dialecttest.Run(t, plain{}, endless.Client(t), request(endless.URL)).Failed(t); f.Message != "request failed with HTTP 500" {
		t.Errorf("%+v", f)
	}
	// One that does not come is not waited for longer than silence may last.
	stalled := dialecttest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	req := request(stalled.URL)
	req.Options.IdleTimeout = 20 * time.Millisecond
	if f := dialecttest.Run(t, plain{}, stalled.Client(t), req).Failed(t); f.Status != 500 {
		t.Errorf("%+v", f)
	}
}

func TestTheDigestIsThatOfTheBodySent(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream("data: a\n\ndata: stop\n\n"))
	o := dialecttest.Run(t, plain{}, s.Client(t), request(s.URL))
	_, body := s.Last(t)
	sum := sha256.Sum256(body)
	if got := o.Events[0].RequestDigest; got != hex.EncodeToString(sum[:]) {
		t.Errorf("%s", got)
	}
}

func TestAHeaderThatCannotBeSentIsRefusedWithoutShowingIt(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(""))
	for _, headers := range []map[string]string{{"X-Token": "abc\r\nX-Evil: 1"}, {"X Token": "a"}, {"": "a"}} {
		req := request(s.URL)
		req.Options.Headers = headers
		f := dialecttest.Run(t, plain{}, s.Client(t), req).Failed(t)
		if f.Type != messages.FailConfiguration || strings.Contains(f.Message, "abc") {
			t.Errorf("%v: %+v", headers, f)
		}
	}
	if s.Asked() > 0 {
		t.Error("it was sent")
	}
}

// A new connection for every turn would cost a handshake each.
func TestAConnectionIsUsedAgain(t *testing.T) {
	var conns atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: a\n\ndata: stop\n\n")
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	for range 5 {
		dialecttest.Run(t, plain{}, &http.Client{Transport: tr}, request(s.URL)).Done(t)
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestDeltasAreNotHeldBack(t *testing.T) {
	next := make(chan struct{})
	s := dialecttest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, word := range []string{"a", "b", "stop"} {
			io.WriteString(w, "data: "+word+"\n\n")
			w.(http.Flusher).Flush()
			if word != "stop" {
				<-next // only after the delta has arrived
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var text string
	plain{}.Stream(ctx, s.Client(t), request(s.URL), func(e messages.StreamEvent) {
		if e.Kind == messages.StreamTextDelta {
			text += e.Delta
			select {
			case next <- struct{}{}:
			case <-ctx.Done():
			}
		}
	})
	if text != "ab" {
		t.Errorf("got %q", text)
	}
}

func TestJoinURL(t *testing.T) {
	for _, c := range []struct{ base, path, want string }{
		{"http://h/v1", "chat/completions", "http://h/v1/chat/completions"},
		{"http://h/v1/", "/chat/completions", "http://h/v1/chat/completions"},
		{"http://h", "chat/completions", "http://h/chat/completions"},
		{"http://h/v1/chat/completions", "chat/completions", "http://h/v1/chat/completions"},
		{"http://h/v1?api-version=2", "chat/completions", "http://h/v1/chat/completions?api-version=2"},
		{" http://h/v1 ", "x", "http://h/v1/x"},
		{"http://h/a%2Fb/", "x/y", "http://h/a%2Fb/x/y"},
	} {
		if got, err := providers.JoinURL(c.base, c.path); err != nil || got != c.want {
			t.Errorf("%s + %s: %s %v", c.base, c.path, got, err)
		}
	}
	if _, err := providers.JoinURL("http://user:sk-very-secret@[::1", "x"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
