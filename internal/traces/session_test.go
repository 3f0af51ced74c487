package traces

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"codework/internal/traces/tracestest"
	"codework/messages"
)

func TestNobodyFollowsWithoutTraces(t *testing.T) {
	var tr *Traces
	s := tr.Session("ses_1")
	everything(s)
	if s.ID() != "" {
		t.Error("there is a trace")
	}
	if n := testing.AllocsPerRun(100, func() { everything(s) }); n > 0 {
		t.Errorf("following nothing makes %v allocations", n)
	}
	Part(context.Background(), "x")(nil)
}

var (
	asking = &messages.Request{Model: messages.Model{ID: "m", Provider: messages.ModelProvider{ID: "xai"}, Protocol: messages.ProtocolXAI}}
	answer = &messages.Message{StopReason: messages.StopStop, ResponseModel: "m-2", ResponseID: "resp_1", Usage: &messages.Usage{
		Input: 1, Output: 2, Reasoning: 1, CacheRead: 10, CacheWrite: 100, Cost: messages.Cost{Total: 0.5}}}
	trouble = &messages.Failure{Type: messages.FailRateLimit, Message: "words of a provider", Status: 429, Retryable: true, RetryAfter: time.Second}
)

// everything is told of one piece of work.
func everything(s *Session) {
	s.Admitted("msg_1")
	s.Stored("msg_1")
	s.Admitted("msg_2")
	s.Removed("msg_2")
	s.Began()
	_, over := s.Prepare()(context.Background())
	over(nil)
	s.Promoted("msg_1", messages.Steer, time.Time{})
	s.Turn("msg_3", 0)
	s.Request(context.Background(), asking, 0)
	s.Failed(trouble)
	s.TurnEnded(failed)
	s.Turn("msg_4", 1)
	s.Wait()()
	s.Request(context.Background(), asking, 1)
	s.Streaming()
	s.FirstPiece()
	s.Used(answer.Usage)
	s.Answered(answer)
	s.Settled(s.Call("bash", "call_1"), messages.CallCompleted)
	s.Settled(s.Call("", "call_2"), messages.CallError)
	s.TurnEnded(succeeded)
	s.Ended(succeeded, nil, "")
}

// BenchmarkUnfollowed is all that is told of a piece of work, without traces.
func BenchmarkUnfollowed(b *testing.B) {
	var s *Session
	b.ReportAllocs()
	for b.Loop() {
		everything(s)
	}
}

func TestTheTreeOfAPieceOfWork(t *testing.T) {
	c := tracestest.New(t)
	tr, _ := begin(t, c.URL)
	s := tr.Session("ses_1")
	everything(s)
	if s.ID() != "" || len(s.prompts) > 0 {
		t.Errorf("what is over is kept: %q, %v", s.ID(), s.prompts)
	}
	tr.Close()
	got := tracestest.Tree(c.Spans(), "codework.outcome", "codework.tool.state", "gen_ai.tool.name", "gen_ai.provider.name", "http.response.status_code")
	if want := `execution succeeded
  prompt
  exchange.prepare succeeded
  turn failed 429 !provider-rate-limit-error
    model.request failed x_ai 429 !provider-rate-limit-error
  turn succeeded
    model.request succeeded x_ai
    tool completed bash
    tool error unknown !tool-error
`; got != want {
		t.Errorf("got\n%s", got)
	}
	for _, span := range c.Spans() {
		if span.Name == spanRequest && span.Error == "" {
			for k, want := range map[string]any{"gen_ai.usage.input_tokens": int64(111), "gen_ai.usage.output_tokens": int64(2), "gen_ai.response.model": "m-2",
				"gen_ai.usage.cache_read.input_tokens": int64(10), "gen_ai.usage.cache_creation.input_tokens": int64(100),
				"codework.usage.cost_usd": 0.5, "codework.retries": int64(1), "gen_ai.conversation.id": "ses_1"} {
				if span.Attributes[k] != want {
					t.Errorf("%s is %v, not %v", k, span.Attributes[k], want)
				}
			}
			if !span.Client || len(span.Events) != 2 {
				t.Errorf("got %+v", span)
			}
		}
	}
}

// What is under way ends with the work, for whatever reason nobody told its end.
func TestNothingOutlivesItsWork(t *testing.T) {
	c := tracestest.New(t)
	tr, _ := begin(t, c.URL)
	s := tr.Session("ses_1")
	s.Began()
	s.Turn("msg_1", 0)
	s.Request(context.Background(), asking, 0)
	s.Call("bash", "call_1")
	s.Ended(failed, &messages.Failure{Type: messages.FailInternal}, "")
	s.Ended(failed, nil, "") // once more
	s.Began()
	s.Turn("msg_2", 0)
	s.Began() // the end was missed
	s.Ended(interrupted, nil, "user")
	tr.Close()
	if got := tracestest.Tree(c.Spans(), "codework.outcome", "codework.interrupt.reason"); got != `execution failed !internal-error
  turn failed !internal-error
    model.request failed !internal-error
    tool failed !internal-error
execution failed !internal-error
  turn failed !internal-error
execution interrupted user
` {
		t.Errorf("got\n%s", got)
	}
}

func TestHTTPTellsHowFarARequestIsAndSendsNoIDs(t *testing.T) {
	var sent http.Header
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sent = r.Header }))
	defer provider.Close()
	c := tracestest.New(t)
	tr, _ := begin(t, c.URL)
	s := tr.Session("ses_1")
	s.Began()
	s.Turn("msg_1", 0)
	ctx := s.Request(context.Background(), asking, 0)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := provider.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	s.Answered(answer)
	s.Ended(succeeded, nil, "")
	tr.Close()
	for _, name := range []string{"Traceparent", "Tracestate", "Baggage", "B3"} {
		if sent.Get(name) != "" {
			t.Errorf("%s is sent", name)
		}
	}
	var events []string
	for _, span := range c.Spans() {
		for _, e := range span.Events {
			events = append(events, e.Name)
		}
	}
	if got := strings.Join(events, " "); got != "http.connected http.request.sent http.response.headers" {
		t.Errorf("got %s", got)
	}
}

func TestPartsOfAPreparation(t *testing.T) {
	c := tracestest.New(t)
	tr, _ := begin(t, c.URL)
	s := tr.Session("ses_1")
	for _, err := range []error{nil, context.Canceled, &messages.Failure{Type: messages.FailSandboxMount}, errors.New("words")} {
		s.Began()
		ctx, over := s.Prepare()(context.Background())
		Part(ctx, "sandbox.mount", "codework.sandbox.driver", "local")(err)
		over(err)
		s.Ended(succeeded, nil, "")
	}
	tr.Close()
	if got := tracestest.Tree(c.Spans(), "codework.outcome", "codework.sandbox.driver"); got != `execution succeeded
  exchange.prepare succeeded
    sandbox.mount succeeded local
execution succeeded
  exchange.prepare interrupted
    sandbox.mount interrupted local
execution succeeded
  exchange.prepare failed !sandbox-mount-error
    sandbox.mount failed local !sandbox-mount-error
execution succeeded
  exchange.prepare failed !unknown-error
    sandbox.mount failed local !unknown-error
` {
		t.Errorf("got\n%s", got)
	}
}

// One bad byte must not cost the whole batch.
func TestNamesThatAreNoTextAreSent(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "http/json"} {
		c := tracestest.New(t)
		tr, l := begin(t, c.URL, "OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		s := tr.Session("ses_\xff")
		s.Began()
		s.Ended(failed, &messages.Failure{Type: "odd-\xff"}, "")
		tr.Close()
		spans := c.Spans()
		if len(spans) != 1 || spans[0].Attributes["gen_ai.conversation.id"] != "ses_\uFFFD" || spans[0].Error != "odd-\uFFFD" {
			t.Errorf("%s: got %+v; the log says\n%s", protocol, spans, l)
		}
	}
}
