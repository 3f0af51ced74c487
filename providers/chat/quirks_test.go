package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"codework/messages"
	"codework/providers/internal/dialecttest"
)

// sent is a decoded request body.
type sent struct {
	Messages []struct {
		Role       string          `json:"role"`
		Content    json.RawMessage `json:"content"`
		Reasoning  *string         `json:"reasoning_content"`
		Details    json.RawMessage `json:"reasoning_details"`
		ToolCallID string          `json:"tool_call_id"`
		Name       string          `json:"name"`
		ToolCalls  []struct {
			ID       string `json:"id"`
			Type     string `json:"type"`
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	} `json:"messages"`
	Tools []json.RawMessage `json:"tools"`
	all   map[string]json.RawMessage
}

func encoded(t testing.TB, req *messages.Request) sent {
	t.Helper()
	raw, err := body(req, compatOf(req.Model))
	if err != nil {
		t.Fatal(err)
	}
	var s sent
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	if err := json.Unmarshal(raw, &s.all); err != nil {
		t.Fatal(err)
	}
	return s
}

func parts(t *testing.T, o dialecttest.Outcome) string {
	t.Helper()
	var out []string
	for _, p := range o.Done(t).Parts {
		switch p.Type {
		case messages.PartToolCall:
			id := p.CallID
			if strings.HasPrefix(id, "call_") && len(id) == len("call_")+32 {
				id = "made"
			}
			out = append(out, fmt.Sprintf("%s(%s %s)", p.Name, id, p.Arguments))
		default:
			out = append(out, fmt.Sprintf("%s:%s", p.Type, p.Text))
		}
	}
	return strings.Join(out, " ")
}

func TestWhatServersDoDifferently(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames []string
		want   string
		stop   messages.StopReason
	}{
		{"reasoning_content", []string{frame(`{"reasoning_content":"hm"}`), frame(`{"content":"a"}`), finish("stop")},
			"thinking:hm text:a", "stop"},
		{"reasoning", []string{frame(`{"reasoning":"hm"}`), frame(`{"content":"a"}`), finish("stop")}, "thinking:hm text:a", "stop"},
		{"reasoning_text", []string{frame(`{"reasoning_text":"hm"}`), frame(`{"content":"a"}`), finish("stop")}, "thinking:hm text:a", "stop"},
		{"the same thinking under two names", []string{frame(`{"reasoning_content":"hm","reasoning":"hm"}`), frame(`{"content":"a"}`), finish("stop")},
			"thinking:hm text:a", "stop"},
		{"thinking between tags", []string{frame(`{"content":"<th"}`), frame(`{"content":"ink>h"}`), frame(`{"content":"m</thi"}`),
			frame(`{"content":"nk>\n\n"}`), frame(`{"content":"a <think> b"}`), finish("stop")}, "thinking:hm text:a <think> b", "stop"},
		{"a tag that is none", []string{frame(`{"content":"<th"}`), frame(`{"content":"at is"}`), finish("stop")}, "text:<that is", "stop"},
		{"text that ends like a tag", []string{frame(`{"content":"<th"}`), finish("stop")}, "text:<th", "stop"},
		{"thinking as parts", []string{frame(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}`),
			frame(`{"content":[{"type":"text","text":"a"}]}`), finish("stop")}, "thinking:hm text:a", "stop"},
		{"call in fragments", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}`),
			frame(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}`),
			frame(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`), finish("tool_calls")}, `f(c {"a":1})`, "toolUse"},
		{"two calls in turns", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{"}},{"index":1,"id":"d","function":{"name":"g","arguments":"{"}}]}`),
			frame(`{"tool_calls":[{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":"}"}}]}`), finish("tool_calls")},
			`f(c {}) g(d {})`, "toolUse"},
		{"no index", []string{frame(`{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{"}}]}`),
			frame(`{"tool_calls":[{"id":"c","function":{"arguments":"}"}}]}`),
			frame(`{"tool_calls":[{"id":"d","function":{"name":"g","arguments":"{}"}}]}`), finish("tool_calls")}, `f(c {}) g(d {})`, "toolUse"},
		{"no index, id only once", []string{frame(`{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{"}}]}`),
			frame(`{"tool_calls":[{"function":{"arguments":"}"}}]}`), finish("tool_calls")}, `f(c {})`, "toolUse"},
		{"no id", []string{frame(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}`), finish("tool_calls")}, `f(made {})`, "toolUse"},
		{"neither index nor id, whole calls", []string{frame(`{"tool_calls":[{"function":{"name":"f","arguments":"{}"}},{"function":{"name":"f","arguments":"{\"a\":1}"}}]}`),
			finish("tool_calls")}, `f(made {}) f(made {"a":1})`, "toolUse"},
		{"every call has index 0", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}`),
			frame(`{"tool_calls":[{"index":0,"id":"d","function":{"name":"g","arguments":"{}"}}]}`), finish("tool_calls")}, `f(c {}) g(d {})`, "toolUse"},
		{"every call has index 0 and no id", []string{frame(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{\"a\":1}"}}]}`),
			frame(`{"tool_calls":[{"index":0,"function":{"name":"g","arguments":"{}"}}]}`), finish("tool_calls")}, `f(made {"a":1}) g(made {})`, "toolUse"},
		{"two calls with one id", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"c","function":{"name":"g","arguments":"{}"}}]}`),
			finish("tool_calls")}, `f(c {}) g(made {})`, "toolUse"},
		{"the name in every fragment", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\":"}}]}`),
			frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"1}"}}]}`), finish("tool_calls")}, `f(c {"a":1})`, "toolUse"},
		{"the name after the id", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"arguments":"{"}}]}`),
			frame(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"}"}}]}`), finish("tool_calls")}, `f(c {})`, "toolUse"},
		{"arguments as an object", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":{"a":1}}}]}`), finish("tool_calls")},
			`f(c {"a":1})`, "toolUse"},
		{"no arguments", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}`), finish("tool_calls")}, `f(c )`, "toolUse"},
		{"null arguments", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":null}}]}`), finish("tool_calls")}, `f(c )`, "toolUse"},
		{"stop with a call", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}`), finish("stop")}, `f(c {})`, "toolUse"},
		{"call without a name", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"arguments":"{}"}}]}`), finish("tool_calls")}, `(c {})`, "toolUse"},
		{"padding that is no call", []string{frame(`{"content":"a","tool_calls":[{"index":0,"function":{"name":"","arguments":""}}]}`), finish("stop")}, `text:a`, "stop"},
		{"tool_calls without one", []string{frame(`{"content":"a"}`), finish("tool_calls")}, "text:a", "stop"},
		{"length", []string{frame(`{"content":"a"}`), finish("length")}, "text:a", "length"},
		{"length in a call", []string{frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a"}}]}`), finish("length")}, `f(c {"a)`, "length"},
		{"blank text before a call", []string{frame(`{"content":"\n\n"}`), frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}`), finish("tool_calls")},
			`f(c {})`, "toolUse"},
		{"an empty finish reason is none", []string{`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":""}]}`, frame(`{"content":"b"}`), finish("stop")}, "text:ab", "stop"},
		{"null fields", []string{`{"id":"c1","choices":[{"index":0,"delta":{"content":"a","tool_calls":null,"reasoning":null},"finish_reason":null}],"usage":null,"error":null}`, finish("stop")}, "text:a", "stop"},
		{"a second choice", []string{`{"choices":[{"index":1,"delta":{"content":"x"}},{"index":0,"delta":{"content":"a"}}]}`, finish("stop")}, "text:a", "stop"},
		{"message instead of delta", []string{`{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`}, "text:a", "stop"},
		{"finish reason twice", []string{frame(`{"content":"a"}`), finish("stop"), finish("stop")}, "text:a", "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, end := range [][]string{{"[DONE]"}, nil} {
				o := answer(t, append(slices.Clone(c.frames), end...)...)
				if got := parts(t, o); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				if got := o.Done(t).StopReason; got != c.stop {
					t.Errorf("stop reason %s, want %s", got, c.stop)
				}
			}
		})
	}
}

func TestFailuresInsideTheStream(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames []string
		want   messages.Failure
	}{
		{"error object", []string{frame(`{"content":"a"}`), `{"error":{"message":"Boom.","type":"server_error","code":null}}`},
			messages.Failure{Type: messages.FailUnavailable, Message: "boom", Code: "server_error", Retryable: true}},
		{"error first", []string{`{"error":{"message":"Slow down","code":429}}`},
			messages.Failure{Type: messages.FailRateLimit, Message: "slow down", Status: 429, Code: "429", Retryable: true}},
		{"error beside choices", []string{`{"choices":[{"index":0,"delta":{},"finish_reason":"error","error":{"message":"down","code":502}}],"error":{"message":"down","code":502}}`},
			messages.Failure{Type: messages.FailUnavailable, Message: "down", Status: 502, Code: "502", Retryable: true}},
		{"error in a choice", []string{`{"choices":[{"index":0,"delta":{},"error":{"message":"down","code":503}}]}`},
			messages.Failure{Type: messages.FailUnavailable, Message: "down", Status: 503, Code: "503", Retryable: true}},
		{"error as a bare object", []string{`{"object":"error","message":"too long: context length exceeded","code":400}`},
			messages.Failure{Type: messages.FailInvalidRequest, Message: "too long: context length exceeded", Status: 400, Code: messages.CodeContextOverflow}},
		{"not JSON", []string{frame(`{"content":"a"}`), `oops`}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider sent a frame that is not JSON"}},
		{"no content", []string{finish("stop")}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the answer has no content"}},
		{"only white space", []string{frame(`{"content":" \n"}`), finish("stop")}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the answer has no content"}},
		{"nothing before the limit", []string{finish("length")}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the answer was cut off at its length limit before it had any content"}},
		{"content filter", []string{frame(`{"content":"a"}`), finish("content_filter")},
			messages.Failure{Type: messages.FailContentFilter, Code: "content_filter", Message: "the provider withheld the answer (content_filter)"}},
		{"refusal", []string{frame(`{"refusal":"I cannot"}`), frame(`{"refusal":" do that."}`), finish("stop")},
			messages.Failure{Type: messages.FailContentFilter, Code: "refusal", Message: "the model refused: I cannot do that"}},
		{"no resources", []string{frame(`{"content":"a"}`), finish("insufficient_system_resource")},
			messages.Failure{Type: messages.FailUnavailable, Code: "insufficient_system_resource", Message: "the provider ran out of resources", Retryable: true}},
		{"unknown reason", []string{frame(`{"content":"a"}`), finish("whatever")},
			messages.Failure{Type: messages.FailProviderUnknown, Message: "the answer ended for an unknown reason: whatever"}},
		{"content after the end", []string{frame(`{"content":"a"}`), finish("stop"), frame(`{"content":"b"}`)},
			messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"}},
		{"a call after the end", []string{frame(`{"content":"a"}`), finish("stop"), frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}`)},
			messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"}},
		{"another id", []string{frame(`{"content":"a"}`), `{"id":"c2","choices":[{"index":0,"delta":{"content":"b"}}]}`},
			messages.Failure{Type: messages.FailStream, Message: "the answer's id changed within one stream"}},
		{"only [DONE]", []string{"[DONE]"}, messages.Failure{Type: messages.FailTransport, Message: "the connection ended before the answer was complete", Retryable: true}},
		{"[DONE] without a reason", []string{frame(`{"content":"a"}`), "[DONE]"}, messages.Failure{Type: messages.FailTransport, Message: "the connection ended before the answer was complete", Retryable: true}},
		{"a clean end without a reason", []string{frame(`{"content":"a"}`)}, messages.Failure{Type: messages.FailTransport, Message: "the connection ended before the answer was complete", Retryable: true}},
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

func TestAnErrorBeforeTheAnswerHasNoStart(t *testing.T) {
	o := answer(t, `{"error":{"message":"no","type":"server_error"}}`)
	if len(o.Events) != 1 {
		t.Fatalf("%+v", o.Events)
	}
}

func TestUsageInItsPlaces(t *testing.T) {
	withUsage := func(f, usage string) string { return strings.TrimSuffix(f, "}") + `,"usage":` + usage + "}" }
	small, full := `{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}`, `{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}`
	for _, c := range []struct {
		name   string
		frames []string
		read   int64
	}{
		{"last chunk", []string{frame(`{"content":"a"}`), finish("stop"), `{"choices":[],"usage":` + full + `}`}, 0},
		{"every chunk", []string{withUsage(frame(`{"content":"a"}`), small), withUsage(finish("stop"), full)}, 0},
		{"zeros at the end", []string{withUsage(frame(`{"content":"a"}`), full), withUsage(finish("stop"), `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`)}, 0},
		{"x_groq", []string{frame(`{"content":"a"}`), strings.TrimSuffix(finish("stop"), "}") + `,"x_groq":{"usage":` + full + `}}`}, 0},
		{"in the choice", []string{frame(`{"content":"a"}`), `{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":` + full + `}]}`}, 0},
		{"DeepSeek's cache", []string{frame(`{"content":"a"}`), withUsage(finish("stop"), `{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12,"prompt_cache_hit_tokens":4}`)}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := answer(t, append(c.frames, "[DONE]")...).Done(t).Usage
			if u == nil || u.Input != 10-c.read || u.CacheRead != c.read || u.Output != 2 || u.TotalTokens != 12 {
				t.Errorf("%+v", u)
			}
		})
	}
	if u := answer(t, frame(`{"content":"a"}`), finish("stop")).Done(t).Usage; u != nil {
		t.Errorf("usage that nobody reported: %+v", u)
	}
	f := answer(t, frame(`{"content":"a"}`), finish("content_filter"), `{"choices":[],"usage":`+full+`}`)
	if u := f.End().Message.Usage; u == nil || u.TotalTokens != 12 {
		t.Errorf("usage of a failed answer: %+v", u)
	}
}

func TestAnAnswerThatIsNoStream(t *testing.T) {
	doc := `{"id":"x","model":"served","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":"a",
		"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`
	for _, c := range []struct{ name, kind, body, want string }{
		{"a document", "application/json", doc, "text:a f(c {})"},
		{"a document under no name", "text/plain", "\n " + doc, "text:a f(c {})"},
		{"a stream under no name", "text/plain", dialecttest.Data(frame(`{"content":"a"}`), finish("stop")), "text:a"},
		{"a stream that begins with a comment", "", ": hello\n\n" + dialecttest.Data(frame(`{"content":"a"}`), finish("stop")), "text:a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dialecttest.Serve(t, dialecttest.Status(200, map[string]string{"Content-Type": c.kind}, c.body))
			o := dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL))
			if got := parts(t, o); got != c.want {
				t.Errorf("got %s", got)
			}
		})
	}
	for _, c := range []struct{ name, kind, body, typ string }{
		{"an error document", "application/json", `{"error":{"message":"no","type":"insufficient_quota"}}`, messages.FailQuota},
		{"a web page", "text/html", "<!doctype html><p>Login", messages.FailInvalidResponse},
		{"a torn document", "application/json", doc[:100], messages.FailInvalidResponse},
		{"nothing", "application/json", "", messages.FailTransport},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dialecttest.Serve(t, dialecttest.Status(200, map[string]string{"Content-Type": c.kind}, c.body))
			if f := dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL)).Failed(t); f.Type != c.typ {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// A cut at any byte must be told from an end: what was half received would
// otherwise be run.
func TestACutAtEveryByteIsNeverASuccess(t *testing.T) {
	raw := dialecttest.Data(frame(`{"role":"assistant","content":""}`), frame(`{"reasoning_content":"hm"}`), frame(`{"content":"Hé"}`),
		frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"write","arguments":"{\"path\":"}}]}`),
		frame(`{"tool_calls":[{"index":0,"function":{"arguments":"\"f\"}"}}]}`), finish("tool_calls"), oneLine(counted), "[DONE]")
	complete := strings.Index(raw, `"finish_reason"`)
	complete += strings.Index(raw[complete:], "\n\n") + 2
	var answers []dialecttest.Answer
	for at := range complete {
		answers = append(answers, dialecttest.Cut(raw, at), dialecttest.Stream(raw[:at]))
	}
	answers = append(answers, dialecttest.Stream(raw))
	s := dialecttest.Serve(t, answers...)
	client, req := s.Client(t), request(s.URL)
	for range 2 * complete {
		f := dialecttest.Run(t, Dialect{}, client, req).Failed(t)
		if f.Type != messages.FailTransport || !f.Retryable {
			t.Fatalf("request %d: %+v", s.Asked(), f)
		}
	}
	dialecttest.Run(t, Dialect{}, client, req).Done(t)
}

// After the finish reason nothing is missing but perhaps the usage.
func TestACutAfterTheFinishReasonIsASuccess(t *testing.T) {
	raw := dialecttest.Data(frame(`{"content":"a"}`), finish("stop"))
	s := dialecttest.Serve(t, dialecttest.Cut(raw+"data: {", len(raw)+7))
	if got := parts(t, dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL))); got != "text:a" {
		t.Errorf("got %s", got)
	}
}

func TestOpenRoutersReasoningDetailsComeBackAsTheyCame(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(dialecttest.Data(
		frame(`{"reasoning":"h","reasoning_details":[{"type":"reasoning.text","index":0,"text":"h","format":"x"}]}`),
		frame(`{"reasoning":"m","reasoning_details":[{"type":"reasoning.text","index":0,"text":"m"}]}`),
		frame(`{"reasoning_details":[{"type":"reasoning.text","index":0,"signature":"sig=="}]}`),
		frame(`{"reasoning_details":[{"type":"reasoning.encrypted","index":1,"data":"AAA"}]}`),
		frame(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}`), finish("tool_calls"), "[DONE]")))
	req := request(s.URL)
	req.Model.Protocol = messages.ProtocolOpenRouter
	m := *dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	m.State = messages.EntryCommitted
	ok := messages.TextResult("done", false)
	m.Parts[len(m.Parts)-1].Result, m.Parts[len(m.Parts)-1].Call = &ok, messages.CallCompleted
	req.Messages = append(req.Messages, m)
	got := encoded(t, req).Messages[1]
	want := `[{"format":"x","index":0,"signature":"sig==","text":"hm","type":"reasoning.text"},{"data":"AAA","index":1,"type":"reasoning.encrypted"}]`
	if string(got.Details) != want {
		t.Errorf("got %s", got.Details)
	}
	req.Model.ID = "other"
	if got := encoded(t, req).Messages[1]; len(got.Details) > 0 {
		t.Errorf("another model got %s", got.Details)
	}
}

// OpenRouter keeps the connection alive with comments, says what the answer
// cost, and takes its routing from the options.
func TestOpenRouter(t *testing.T) {
	alive := ": OPENROUTER PROCESSING\n\n"
	counted := `{"id":"c","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"cost":0.0025,"cost_details":{"upstream_inference_cost":null}}}`
	s := dialecttest.Serve(t, dialecttest.Stream(alive+dialecttest.Data(frame(`{"content":"a"}`))+alive+dialecttest.Data(finish("stop"), counted, "[DONE]")))
	req := request(s.URL)
	req.Model.Protocol, req.Model.Reasoning, req.Thinking = messages.ProtocolOpenRouter, true, "low"
	req.Options.Extra = map[string]json.RawMessage{"provider": json.RawMessage(`{"order":["x"]}`), "models": json.RawMessage(`["a","b"]`)}
	m := dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	if u := m.Usage; u == nil || u.ProviderCost != 0.0025 || u.Input != 10 || u.Output != 5 || u.Cost.Total <= 0 || u.Cost.Total == u.ProviderCost {
		t.Errorf("usage %+v", m.Usage)
	}
	_, body := s.Last(t)
	for _, want := range []string{`"reasoning":{"effort":"low"}`, `"usage":{"include":true}`, `"provider":{"order":["x"]}`, `"models":["a","b"]`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
	req.Thinking = "off"
	dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	if _, body := s.Last(t); strings.Contains(string(body), `"reasoning"`) {
		t.Errorf("off: %s", body)
	}
	// Of another service the field may mean something else.
	req.Model.Protocol = messages.ProtocolCompatible
	if u := dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t).Usage; u.ProviderCost != 0 {
		t.Errorf("another service: %+v", u)
	}
}

func TestErrorsInsideAnOpenRouterStream(t *testing.T) {
	for _, c := range []struct {
		frame string
		want  messages.Failure
	}{
		{`{"id":"c","error":{"code":502,"message":"Provider returned error","metadata":{"provider_name":"x","raw":"the GPU is on fire"}},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}`,
			messages.Failure{Type: messages.FailUnavailable, Status: 502, Code: "502", Message: "the GPU is on fire", Retryable: true}},
		{`{"id":"c","error":{"code":402,"message":"Insufficient credits"}}`,
			messages.Failure{Type: messages.FailQuota, Status: 402, Code: "402", Message: "insufficient credits"}},
		{`{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"error","error":{"code":429,"message":"Rate limited"}}]}`,
			messages.Failure{Type: messages.FailRateLimit, Status: 429, Code: "429", Message: "rate limited", Retryable: true}},
	} {
		s := dialecttest.Serve(t, dialecttest.Stream(dialecttest.Data(frame(`{"content":"a"}`), c.frame)))
		req := request(s.URL)
		req.Model.Protocol = messages.ProtocolOpenRouter
		got := *dialecttest.Run(t, Dialect{}, s.Client(t), req).Failed(t)
		got.Hint = ""
		if got != c.want {
			t.Errorf("%s\ngot  %+v\nwant %+v", c.frame, got, c.want)
		}
	}
}
