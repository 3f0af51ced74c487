package anthropic

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"codework/integration/mockmodel"
	"codework/messages"
	"codework/providers"
	"codework/providers/internal/dialecttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ providers.Dialect = Dialect{}

func request(baseURL string) *messages.Request {
	return &messages.Request{
		SessionID: "ses_1",
		MessageID: "answer",
		APIKey:    "sk-ant-secret",
		Model: messages.Model{
			ID: "m", Protocol: messages.ProtocolAnthropic, BaseURL: baseURL,
			Provider: messages.ModelProvider{ID: "p", Name: "Anthropic", Env: []string{"ANTHROPIC_API_KEY"}},
			Input:    []string{"text", "image"}, MaxTokens: 64000, ContextWindow: 200000,
			Cost: messages.ModelCost{Rates: messages.Rates{Input: 3, Output: 15, CacheRead: 0.3, CacheWrite: 3.75}},
		},
		Messages: []messages.Message{{ID: "u", Role: messages.RoleUser,
			Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}}}},
		Blob: dialecttest.Blob,
	}
}

const (
	start     = `{"type":"message_start","message":{"id":"msg_1","model":"served","role":"assistant","content":[],"usage":{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":50,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":30},"output_tokens":1}}}`
	stop      = `{"type":"message_stop"}`
	pingEvent = `{"type":"ping"}`
)

func opened(index int, content string) string {
	return fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, index, content)
}

func grow(index int, delta string) string {
	return fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, index, delta)
}

func closed(index int) string { return fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index) }

func ended(reason string) string {
	return `{"type":"message_delta","delta":{"stop_reason":"` + reason + `","stop_sequence":null},"usage":{"output_tokens":20}}`
}

// events are frames with their names, as the API sends them.
func events(frames ...string) string {
	var b strings.Builder
	for _, f := range frames {
		var e struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(f), &e); err != nil {
			e.Type = "bad"
		}
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", e.Type, f)
	}
	return b.String()
}

func answer(t *testing.T, frames ...string) dialecttest.Outcome {
	t.Helper()
	s := dialecttest.Serve(t, dialecttest.Stream(events(frames...)))
	return dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL))
}

func parts(t *testing.T, o dialecttest.Outcome) string {
	t.Helper()
	var out []string
	for _, p := range o.Done(t).Parts {
		switch {
		case p.Type == messages.PartToolCall:
			out = append(out, fmt.Sprintf("%s(%s %s)", p.Name, p.CallID, p.Arguments))
		case p.Redacted:
			out = append(out, "redacted:"+p.Signature)
		default:
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s:%s/%s", p.Type, p.Text, p.Signature), "/"))
		}
	}
	return strings.Join(out, " ")
}

var (
	textBlock = []string{opened(0, `{"type":"text","text":""}`), grow(0, `{"type":"text_delta","text":"Hel"}`), grow(0, `{"type":"text_delta","text":"lo"}`), closed(0)}
	callBlock = []string{opened(1, `{"type":"tool_use","id":"t1","name":"f","input":{}}`), grow(1, `{"type":"input_json_delta","partial_json":""}`),
		grow(1, `{"type":"input_json_delta","partial_json":"{\"a\":"}`), grow(1, `{"type":"input_json_delta","partial_json":"1}"}`), closed(1)}
)

func frames(groups ...[]string) []string { return slices.Concat(groups...) }

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames []string
		want   string
		stop   messages.StopReason
	}{
		{"text", frames([]string{start, pingEvent}, textBlock, []string{ended("end_turn"), stop}), "text:Hello", "stop"},
		{"a call", frames([]string{start}, textBlock, callBlock, []string{ended("tool_use"), stop}), `text:Hello f(t1 {"a":1})`, "toolUse"},
		{"thinking", frames([]string{start, opened(0, `{"type":"thinking","thinking":"","signature":""}`), grow(0, `{"type":"thinking_delta","thinking":"h"}`),
			grow(0, `{"type":"thinking_delta","thinking":"m"}`), grow(0, `{"type":"signature_delta","signature":"sig=="}`), closed(0),
			opened(1, `{"type":"text","text":""}`), grow(1, `{"type":"text_delta","text":"a"}`), closed(1), ended("end_turn"), stop}), "thinking:hm/sig== text:a", "stop"},
		{"thinking that is not shown", frames([]string{start, opened(0, `{"type":"thinking","thinking":"","signature":""}`),
			grow(0, `{"type":"signature_delta","signature":"sig=="}`), closed(0), opened(1, `{"type":"text","text":"a"}`), closed(1), ended("end_turn"), stop}), "thinking:/sig== text:a", "stop"},
		{"redacted thinking", frames([]string{start, opened(0, `{"type":"redacted_thinking","data":"AAA="}`), closed(0), opened(1, `{"type":"text","text":"a"}`), closed(1), ended("end_turn"), stop}),
			"redacted:AAA= text:a", "stop"},
		{"a whole input", []string{start, opened(0, `{"type":"tool_use","id":"t1","name":"f","input":{"a":1}}`), closed(0), ended("tool_use"), stop}, `f(t1 {"a":1})`, "toolUse"},
		{"a call without arguments", []string{start, opened(0, `{"type":"tool_use","id":"t1","name":"f","input":{}}`), closed(0), ended("tool_use"), stop}, `f(t1 )`, "toolUse"},
		{"a blank block", frames([]string{start, opened(0, `{"type":"text","text":""}`), grow(0, `{"type":"text_delta","text":"\n"}`), closed(0)}, callBlock, []string{ended("tool_use"), stop}), `f(t1 {"a":1})`, "toolUse"},
		{"a block of another kind", frames([]string{start, opened(7, `{"type":"server_tool_use","id":"s","name":"x","input":{}}`), grow(7, `{"type":"input_json_delta","partial_json":"{}"}`), closed(7)}, textBlock, []string{ended("end_turn"), stop}), "text:Hello", "stop"},
		{"an event of another kind", frames([]string{start, `{"type":"news","x":1}`}, textBlock, []string{ended("end_turn"), stop}), "text:Hello", "stop"},
		{"blocks that are not closed", []string{start, opened(0, `{"type":"text","text":"a"}`), ended("end_turn"), stop}, "text:a", "stop"},
		{"stop_sequence", frames([]string{start}, textBlock, []string{ended("stop_sequence"), stop}), "text:Hello", "stop"},
		{"pause_turn", frames([]string{start}, textBlock, []string{ended("pause_turn"), stop}), "text:Hello", "stop"},
		{"max_tokens", frames([]string{start}, textBlock, []string{ended("max_tokens"), stop}), "text:Hello", "length"},
		{"window full", frames([]string{start}, textBlock, []string{ended("model_context_window_exceeded"), stop}), "text:Hello", "length"},
		{"end_turn with a call", frames([]string{start}, callBlock, []string{ended("end_turn"), stop}), `f(t1 {"a":1})`, "toolUse"},
		{"no reason", frames([]string{start}, textBlock, []string{stop}), "text:Hello", "stop"},
		{"no start", frames(textBlock, []string{ended("end_turn"), stop}), "text:Hello", "stop"},
		{"a ping after the end", frames([]string{start}, textBlock, []string{ended("end_turn"), stop, pingEvent}), "text:Hello", "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := answer(t, c.frames...)
			if got := parts(t, o); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if got := o.Done(t).StopReason; got != c.stop {
				t.Errorf("stop reason %s, want %s", got, c.stop)
			}
		})
	}
}

func TestUsageOfStartAndEnd(t *testing.T) {
	m := answer(t, frames([]string{start}, textBlock, []string{ended("end_turn"), stop})...).Done(t)
	u := m.Usage
	if u.Input != 10 || u.Output != 20 || u.CacheRead != 100 || u.CacheWrite != 50 || u.TotalTokens != 180 {
		t.Errorf("%+v", u)
	}
	// 20 of the written tokens at the rate for five minutes, 30 at twice the input rate.
	if got, want := u.Cost.CacheWrite, 20*3.75e-6+30*6e-6; got < want*0.999999 || got > want*1.000001 {
		t.Errorf("cache write costs %g, want %g", got, want)
	}
	if m.ResponseID != "msg_1" || m.ResponseModel != "served" {
		t.Errorf("%q %q", m.ResponseID, m.ResponseModel)
	}
}

func TestFailuresInsideTheStream(t *testing.T) {
	errorEvent := func(kind, message string) string {
		return `{"type":"error","error":{"type":"` + kind + `","message":"` + message + `"}}`
	}
	for _, c := range []struct {
		name   string
		frames []string
		want   messages.Failure
	}{
		{"overloaded", []string{start, errorEvent("overloaded_error", "Overloaded")}, messages.Failure{Type: messages.FailUnavailable, Code: "overloaded_error", Message: "overloaded", Retryable: true}},
		{"rate limit", []string{errorEvent("rate_limit_error", "Slow down.")}, messages.Failure{Type: messages.FailRateLimit, Code: "rate_limit_error", Message: "slow down", Retryable: true}},
		{"inner error", frames([]string{start}, textBlock, []string{errorEvent("api_error", "Internal server error")}), messages.Failure{Type: messages.FailUnavailable, Code: "api_error", Message: "internal server error", Retryable: true}},
		{"too long", []string{errorEvent("invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum")},
			messages.Failure{Type: messages.FailInvalidRequest, Code: messages.CodeContextOverflow, Message: "prompt is too long: 200001 tokens > 200000 maximum"}},
		{"refusal", frames([]string{start}, textBlock, []string{ended("refusal"), stop}), messages.Failure{Type: messages.FailContentFilter, Code: "refusal", Message: "the model refused to answer"}},
		{"unknown reason", frames([]string{start}, textBlock, []string{ended("whatever"), stop}), messages.Failure{Type: messages.FailProviderUnknown, Message: "the answer ended for an unknown reason: whatever"}},
		{"no content", []string{start, ended("end_turn"), stop}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the answer has no content"}},
		{"another message", frames([]string{start}, textBlock, []string{strings.Replace(start, "msg_1", "msg_2", 1)}), messages.Failure{Type: messages.FailStream, Message: "the answer's id changed within one stream"}},
		{"an event after the end", frames([]string{start}, textBlock, []string{ended("end_turn"), stop}, callBlock), messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"}},
		{"a second end", frames([]string{start}, textBlock, []string{ended("end_turn"), stop, stop}), messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"}},
		{"a block twice", frames([]string{start}, textBlock, textBlock), messages.Failure{Type: messages.FailStream, Message: "the provider began one block of its answer twice"}},
		{"a block not begun", []string{start, grow(0, `{"type":"text_delta","text":"a"}`)}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider continued a block that it had not begun"}},
		{"not JSON", []string{start, "oops"}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider sent an event that is not what the protocol says"}},
		{"a clean end too early", frames([]string{start}, textBlock, []string{ended("end_turn")}), messages.Failure{Type: messages.FailTransport, Message: "the connection ended before the answer was complete", Retryable: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := *answer(t, c.frames...).Failed(t)
			got.Hint = ""
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestADocumentInsteadOfAStreamIsRefused(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Status(200, map[string]string{"Content-Type": "application/json"}, `{"id":"x","content":[]}`))
	f := dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL)).Failed(t)
	if f.Type != messages.FailInvalidResponse || f.Retryable || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

// A cut at any byte must be told from an end, also when the message is all
// there but its terminal event is not.
func TestACutAtEveryByteIsNeverASuccess(t *testing.T) {
	raw := events(frames([]string{start}, textBlock, callBlock, []string{ended("tool_use"), stop})...)
	var answers []dialecttest.Answer
	for at := range len(raw) {
		answers = append(answers, dialecttest.Cut(raw, at), dialecttest.Stream(raw[:at]))
	}
	s := dialecttest.Serve(t, append(answers, dialecttest.Stream(raw))...)
	client, req := s.Client(t), request(s.URL)
	for range answers {
		f := dialecttest.Run(t, Dialect{}, client, req).Failed(t)
		if f.Type != messages.FailTransport || !f.Retryable {
			t.Fatalf("request %d: %+v", s.Asked(), f)
		}
	}
	dialecttest.Run(t, Dialect{}, client, req).Done(t)
}

func TestHeadersAndPath(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(events(frames([]string{start}, textBlock, []string{ended("end_turn"), stop})...)))
	for _, base := range []string{"", "/", "/v1", "/v1/", "/v1/messages"} {
		dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL+base)).Done(t)
		r, _ := s.Last(t)
		if r.URL.Path != "/v1/messages" {
			t.Errorf("base %q: %s", base, r.URL.Path)
		}
		if r.Header.Get("x-api-key") != "sk-ant-secret" || r.Header.Get("anthropic-version") != "2023-06-01" || r.Header.Get("Authorization") != "" || r.Header.Get("anthropic-beta") != "" {
			t.Errorf("%v", r.Header)
		}
	}
	dialecttest.Run(t, Dialect{Bearer: true}, s.Client(t), request(s.URL)).Done(t)
	if r, _ := s.Last(t); r.Header.Get("x-api-key") != "" || r.Header.Get("Authorization") != "Bearer sk-ant-secret" {
		t.Errorf("bearer: %v", r.Header)
	}
	req := request(s.URL)
	req.APIKey = ""
	dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	if r, _ := s.Last(t); len(r.Header["X-Api-Key"]) > 0 {
		t.Errorf("without a key: %v", r.Header)
	}
	for _, c := range []struct {
		thinking messages.ThinkingLevel
		adaptive string
		tools    int
		want     string
	}{
		{"high", "false", 1, interleavedBeta}, {"high", "false", 0, ""}, {"high", "true", 1, ""}, {"off", "false", 1, ""},
	} {
		req := request(s.URL)
		req.Model.Reasoning, req.Thinking = true, c.thinking
		req.Model.Compat = map[string]json.RawMessage{"forceAdaptiveThinking": json.RawMessage(c.adaptive)}
		req.Tools = make([]messages.ToolDefinition, c.tools)
		dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
		if r, _ := s.Last(t); r.Header.Get("anthropic-beta") != c.want {
			t.Errorf("%+v: %q", c, r.Header.Get("anthropic-beta"))
		}
	}
}

func TestAConversationWithTheStrictServer(t *testing.T) {
	server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{
		{mockmodel.Reasoning{Text: "let me see", Signature: "sig-1", Split: 3}, mockmodel.Reasoning{Signature: "AAA", Redacted: true},
			mockmodel.Text{Text: "Looking.", Split: 4}, mockmodel.Call{ID: "t1", Name: "bash", Args: `{"command":"ls"}`, Split: 3},
			mockmodel.Call{ID: "t2", Name: "bash", Args: `{"command":"pwd"}`}},
		{mockmodel.Text{Text: "Two files."}},
		{mockmodel.Text{Text: "From another."}},
		{mockmodel.Text{Text: "Back."}},
	}, RequireKey: "sk-ant-secret"})
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	for _, adaptive := range []string{"true", "false"} {
		server.Reset()
		req := request(server.URL())
		req.Model.Reasoning, req.Thinking = true, "high"
		req.Model.Compat = map[string]json.RawMessage{"forceAdaptiveThinking": json.RawMessage(adaptive)}
		req.System = "be brief"
		req.Tools = []messages.ToolDefinition{{Name: "bash", Description: "runs", Schema: json.RawMessage(`{"type":"object"}`)}}
		req.Cache = &messages.EncodeCache{}
		m := *dialecttest.Run(t, Dialect{}, client, req).Done(t)
		if len(m.Parts) != 5 || m.StopReason != messages.StopToolUse {
			t.Fatalf("%+v", m)
		}
		m.ID, m.State = "first", messages.EntryCommitted
		for i := range m.Parts[3:] {
			r := messages.TextResult("", false)
			m.Parts[3+i].Result, m.Parts[3+i].Call = &r, messages.CallCompleted
		}
		req.Messages = append(req.Messages, m)
		if got := parts(t, dialecttest.Run(t, Dialect{}, client, req)); got != "text:Two files." {
			t.Error(got)
		}
		req.Model.ID = "other"
		req.Messages = append(req.Messages, messages.Message{ID: "u2", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "and?"}}})
		dialecttest.Run(t, Dialect{}, client, req).Done(t)
		req.Model.ID = "m"
		dialecttest.Run(t, Dialect{}, client, req).Done(t)
	}
}

func TestWhatCannotBeSent(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(""))
	req := request(s.URL)
	req.Options.Extra = map[string]json.RawMessage{"x": json.RawMessage("{bad")}
	if f := dialecttest.Run(t, Dialect{}, s.Client(t), req).Failed(t); f.Type != messages.FailContextEncode {
		t.Errorf("option: %+v", f)
	}
	for _, base := range []string{"", "http://[::1"} {
		if f := dialecttest.Run(t, Dialect{}, s.Client(t), request(base)).Failed(t); f.Type != messages.FailConfiguration {
			t.Errorf("base URL %q: %+v", base, f)
		}
	}
	if s.Asked() > 0 {
		t.Error("something was sent")
	}
}
