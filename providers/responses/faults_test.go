package responses

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"codework/integration/mockmodel"
	"codework/messages"
	"codework/providers/internal/dialecttest"
)

// whole is an answer with a part of each kind.
var whole = events(created, added(0, openThought), thinks(0, 0, "h"), thinks(0, 1, "m"), ended(0, thoughtItem),
	added(1, openMessage), said(1, "Hel"), said(1, "lo"), ended(1, messageItem),
	added(2, openCall), argued(2, `{"a":`), argued(2, `1}`), ended(2, callItem), completed)

// A stream that breaks off after any of its bytes, with the connection or in
// good order, is a failure that may be tried again.
func TestAnAnswerCutAtAnyByteIsTriedAgain(t *testing.T) {
	client := &http.Client{}
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := 0; at < len(whole)-2; at += step { // the last two bytes end the last event
		client.Transport = canned{"text/event-stream", whole[:at]}
		f := dialecttest.RunContext(context.Background(), t, Dialect{}, client, request("http://provider.example")).Failed(t)
		if f.Type != messages.FailTransport || !f.Retryable {
			t.Fatalf("ended after %d bytes: %+v", at, f)
		}
	}
	for at := 0; at < len(whole)-2; at += len(whole) / 25 {
		s := dialecttest.Serve(t, dialecttest.Cut(whole, at))
		f := dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL)).Failed(t)
		if f.Type != messages.FailTransport || !f.Retryable {
			t.Fatalf("cut after %d bytes: %+v", at, f)
		}
	}
}

// An error event anywhere in a stream is that error, and garbage is no answer.
func TestErrorsAndGarbageBetweenAnyTwoEvents(t *testing.T) {
	client := &http.Client{}
	for at := range whole {
		if at > 0 && !(whole[at-1] == '\n' && (at == 1 || whole[at-2] == '\n')) {
			continue
		}
		client.Transport = canned{"text/event-stream", whole[:at] + events(`{"type":"error","code":"server_error","message":"x"}`) + whole[at:]}
		if f := dialecttest.RunContext(context.Background(), t, Dialect{}, client, request("http://provider.example")).Failed(t); f.Type != messages.FailUnavailable || !f.Retryable {
			t.Fatalf("error after %d bytes: %+v", at, f)
		}
		client.Transport = canned{"text/event-stream", whole[:at] + "data: {]\n\n" + whole[at:]}
		if f := dialecttest.RunContext(context.Background(), t, Dialect{}, client, request("http://provider.example")).Failed(t); f.Type != messages.FailInvalidResponse || f.Retryable {
			t.Fatalf("garbage after %d bytes: %+v", at, f)
		}
	}
}

func TestAStalledAnswerTimesOut(t *testing.T) {
	for _, c := range []struct {
		name string
		at   int
	}{{"before the first byte", 0}, {"in the middle", len(whole) / 2}} {
		t.Run(c.name, func(t *testing.T) {
			s := dialecttest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
				if c.at > 0 {
					dialecttest.Stream(whole[:c.at])(w, r)
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
			})
			req := request(s.URL)
			req.Options.IdleTimeout = 50 * time.Millisecond
			if f := dialecttest.Run(t, Dialect{}, s.Client(t), req).Failed(t); f.Type != messages.FailTimeout || !f.Retryable {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestAStopEndsTheAnswer(t *testing.T) {
	s := dialecttest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		dialecttest.Stream(whole[:len(whole)/2])(w, r)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all []messages.StreamEvent
	req := request(s.URL)
	Dialect{}.Stream(ctx, s.Client(t), req, func(e messages.StreamEvent) {
		all = append(all, e)
		if e.Kind == messages.StreamTextDelta {
			cancel()
		}
	})
	dialecttest.Check(t, req, all)
	if f := all[len(all)-1].Failure; f == nil || f.Code != "aborted" || f.Retryable {
		t.Errorf("%+v", f)
	}
}

func TestStatuses(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		typ    string
		retry  bool
	}{
		{429, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`, messages.FailRateLimit, true},
		{429, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, messages.FailQuota, false},
		{500, `{"error":{"message":"The server had an error","type":"server_error"}}`, messages.FailUnavailable, true},
		{503, `<html>`, messages.FailUnavailable, true},
		{401, `{"error":{"message":"Incorrect API key provided: sk-secret-key.","code":"invalid_api_key"}}`, messages.FailAuthentication, false},
		{404, `{"error":{"message":"The model 'm' does not exist","code":"model_not_found"}}`, messages.FailModelUnavailable, false},
		{400, `{"error":{"message":"Your input exceeds the context window of this model.","code":"context_length_exceeded"}}`, messages.FailInvalidRequest, false},
		{400, `{"error":{"message":"The encrypted content gAAA could not be verified.","code":"invalid_encrypted_content"}}`, messages.FailInvalidRequest, false},
		{400, `{"error":{"message":"Invalid prompt: your prompt was flagged","code":"invalid_prompt"}}`, messages.FailContentFilter, false},
	} {
		s := dialecttest.Serve(t, dialecttest.Status(c.status, map[string]string{"x-request-id": "req_1"}, c.body))
		f := dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL)).Failed(t)
		if f.Type != c.typ || f.Retryable != c.retry || f.Status != c.status || f.Request != "req_1" {
			t.Errorf("%d %s: %+v", c.status, c.body, f)
		}
		if f.Code == "invalid_encrypted_content" && !strings.Contains(f.Hint, "another account") {
			t.Errorf("hint %q", f.Hint)
		}
	}
}

// The same against the model server: an answer whose connection breaks after
// any of its events is tried again, the answer unbroken is a success whatever
// the line ends and however small the pieces.
func TestBrokenAndUnbrokenAnswersOfTheModelServer(t *testing.T) {
	answer := func(more ...mockmodel.Step) mockmodel.Answer {
		return append(mockmodel.Answer{mockmodel.Reasoning{Text: "hm", Signature: "s=="}, mockmodel.Text{Text: "Grüße 😀", Split: 3},
			mockmodel.Call{ID: "a", Name: "write", Args: `{"path":"f","content":"ü"}`, Split: 4}}, more...)
	}
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	for _, codex := range []bool{false, true} {
		ask := func(server *mockmodel.Server) *messages.Request {
			req := request(server.URL() + "/v1")
			req.Login = &messages.Login{AccountID: "acc-1"}
			return req
		}
		want := `thinking:hm/{"itemId":"rs_00000001_0","reasoningEncryptedContent":"s=="} `
		if codex {
			want = `thinking:hm/{"encrypted_content":"s==","id":"rs_00000001_0","summary":[{"text":"hm","type":"summary_text"}],"type":"reasoning"} `
		}
		want += `text:Grüße 😀/msg_00000001_1r0 write(a/fc_00000001_2r0 {"path":"f","content":"ü"})`
		count := 0
		for _, newline := range []string{"\n", "\r\n", "\r"} {
			server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{answer(mockmodel.Framing{Newline: newline, Chop: 1})}})
			if got := parts(t, dialecttest.Run(t, Dialect{Codex: codex}, client, ask(server))); got != want {
				t.Errorf("line end %q:\ngot  %s\nwant %s", newline, got, want)
			}
			count = server.Requests()[0].Events
		}
		for _, mode := range []mockmodel.CutMode{mockmodel.CutClose, mockmodel.CutReset, mockmodel.CutEnd} {
			for n := range count {
				t.Run(fmt.Sprint(mode, " after ", n), func(t *testing.T) {
					server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{answer(mockmodel.After{Events: n, Step: mockmodel.Cut{Mode: mode}})}})
					f := dialecttest.Run(t, Dialect{Codex: codex}, client, ask(server)).Failed(t)
					if f.Type != messages.FailTransport || !f.Retryable {
						t.Errorf("%+v", f)
					}
				})
			}
		}
	}
}
