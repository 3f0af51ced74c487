package gemini

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

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
		APIKey:    "AIza-secret",
		Model: messages.Model{
			ID: "m", Protocol: messages.ProtocolGoogle, BaseURL: baseURL,
			Provider: messages.ModelProvider{ID: "p", Name: "Google", Env: []string{"GEMINI_API_KEY"}},
			Input:    []string{"text", "image"}, MaxTokens: 65536, ContextWindow: 1048576,
			Cost: messages.ModelCost{Rates: messages.Rates{Input: 1, Output: 10, CacheRead: 0.1}},
		},
		Messages: []messages.Message{{ID: "u", Role: messages.RoleUser,
			Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}}}},
		Blob: dialecttest.Blob,
	}
}

// frame is a chunk with these parts.
func frame(parts ...string) string {
	return `{"candidates":[{"content":{"parts":[` + strings.Join(parts, ",") + `],"role":"model"},"index":0}],"modelVersion":"served","responseId":"r1"}`
}

// last is a chunk that ends the answer.
func last(reason string, parts ...string) string {
	return `{"candidates":[{"content":{"parts":[` + strings.Join(parts, ",") + `],"role":"model"},"finishReason":"` + reason + `","index":0}],` +
		`"usageMetadata":{"promptTokenCount":110,"cachedContentTokenCount":100,"candidatesTokenCount":20,"thoughtsTokenCount":30,"totalTokenCount":160},"modelVersion":"served","responseId":"r1"}`
}

func answer(t *testing.T, frames ...string) dialecttest.Outcome {
	t.Helper()
	s := dialecttest.Serve(t, dialecttest.Stream(dialecttest.Data(frames...)))
	return dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL))
}

// parts shows a message; ids that were made here are "made".
func parts(t *testing.T, o dialecttest.Outcome) string {
	t.Helper()
	var out []string
	for _, p := range o.Done(t).Parts {
		signature := ""
		if p.Signature != "" {
			signature = "/" + p.Signature
		}
		switch {
		case p.Type == messages.PartToolCall:
			if strings.HasPrefix(p.CallID, "call_") {
				p.CallID = "made"
			}
			out = append(out, fmt.Sprintf("%s(%s %s)%s", p.Name, p.CallID, p.Arguments, signature))
		case p.Redacted:
			out = append(out, "alone"+signature)
		default:
			out = append(out, fmt.Sprintf("%s:%s%s", p.Type, p.Text, signature))
		}
	}
	return strings.Join(out, " ")
}

const (
	textPart    = `{"text":"Hel"}`
	textRest    = `{"text":"lo"}`
	thoughtPart = `{"text":"hm","thought":true}`
	callPart    = `{"functionCall":{"id":"c1","name":"f","args":{"a":1}}}`
	signedCall  = `{"functionCall":{"id":"c1","name":"f","args":{"a":1}},"thoughtSignature":"c2ln"}`
	otherCall   = `{"functionCall":{"id":"c2","name":"g","args":{}}}`
	loneSig     = `{"text":"","thoughtSignature":"c2ln"}`
)

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames []string
		want   string
		stop   messages.StopReason
	}{
		{"text", []string{frame(textPart), frame(textRest), last("STOP")}, "text:Hello", "stop"},
		{"all in one chunk", []string{last("STOP", textPart, textRest)}, "text:Hello", "stop"},
		{"thinking", []string{frame(thoughtPart), frame(textPart), last("STOP", textRest)}, "thinking:hm text:Hello", "stop"},
		{"a signature behind the text", []string{frame(textPart), frame(textRest), last("STOP", loneSig)}, "text:Hello/c2ln", "stop"},
		{"a signature on the last text", []string{frame(textPart), last("STOP", `{"text":"lo","thoughtSignature":"c2ln"}`)}, "text:Hello/c2ln", "stop"},
		{"a signature on the first text", []string{frame(`{"text":"Hel","thoughtSignature":"c2ln"}`), last("STOP", textRest)}, "text:Hello/c2ln", "stop"},
		{"two signatures", []string{frame(`{"text":"a","thoughtSignature":"QQ=="}`), last("STOP", `{"text":"b","thoughtSignature":"Qg=="}`)}, "text:a/QQ== text:b/Qg==", "stop"},
		{"a signed thought", []string{frame(thoughtPart), frame(`{"text":"","thought":true,"thoughtSignature":"c2ln"}`), last("STOP", textPart)}, "thinking:hm/c2ln text:Hel", "stop"},
		{"a call", []string{frame(textPart), last("STOP", signedCall)}, "text:Hel f(c1 {\"a\":1})/c2ln", "toolUse"},
		{"a call of a server that says so", []string{last("FUNCTION_CALL", signedCall)}, "f(c1 {\"a\":1})/c2ln", "toolUse"},
		{"parallel calls in one chunk", []string{last("STOP", signedCall, otherCall)}, "f(c1 {\"a\":1})/c2ln g(c2 {})", "toolUse"},
		{"parallel calls in two", []string{frame(signedCall), frame(otherCall), last("STOP")}, "f(c1 {\"a\":1})/c2ln g(c2 {})", "toolUse"},
		{"calls without ids", []string{last("STOP", `{"functionCall":{"name":"f","args":{}}}`, `{"functionCall":{"name":"f","args":{}}}`)}, "f(made {}) f(made {})", "toolUse"},
		{"calls of one id", []string{last("STOP", callPart, callPart)}, "f(c1 {\"a\":1}) f(made {\"a\":1})", "toolUse"},
		{"a call without arguments", []string{last("STOP", `{"functionCall":{"id":"c1","name":"f"}}`)}, "f(c1 )", "toolUse"},
		{"a signature behind a call", []string{frame(callPart), last("STOP", loneSig)}, "f(c1 {\"a\":1}) alone/c2ln", "toolUse"},
		{"a signature before a call", []string{frame(loneSig), last("STOP", callPart)}, "alone/c2ln f(c1 {\"a\":1})", "toolUse"},
		{"a blank part between", []string{frame(thoughtPart), frame(`{"text":"\n"}`), last("STOP", callPart)}, "thinking:hm f(c1 {\"a\":1})", "toolUse"},
		{"parts of another kind", []string{frame(`{"executableCode":{"code":"1"}}`), frame(textPart), last("STOP")}, "text:Hel", "stop"},
		{"another candidate", []string{`{"candidates":[{"index":1,"content":{"parts":[{"text":"x"}]}},{"content":{"parts":[{"text":"a"}]}}]}`, last("STOP")}, "text:a", "stop"},
		{"unknown fields", []string{`{"news":1,"candidates":[{"content":{"parts":[{"text":"a","mood":2}]},"groundingMetadata":{}}]}`, last("STOP")}, "text:a", "stop"},
		{"cut off at the limit", []string{frame(textPart), last("MAX_TOKENS")}, "text:Hel", "length"},
		{"a chunk of usage alone", []string{frame(textPart), last("STOP"), `{"usageMetadata":{"promptTokenCount":5},"responseId":"r1"}`}, "text:Hel", "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := answer(t, c.frames...)
			if got := parts(t, o); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			m := o.Done(t)
			if m.StopReason != c.stop || m.ResponseModel != "served" || m.ResponseID != "r1" {
				t.Errorf("stop reason %s of %s %s, want %s", m.StopReason, m.ResponseModel, m.ResponseID, c.stop)
			}
		})
	}
}

func TestUsageCountsCachedAndThoughtTokens(t *testing.T) {
	early := `{"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":{"promptTokenCount":110,"totalTokenCount":110}}`
	u := answer(t, early, last("STOP")).Done(t).Usage
	if u.Input != 10 || u.Output != 50 || u.Reasoning != 30 || u.CacheRead != 100 || u.TotalTokens != 160 {
		t.Errorf("%+v", u)
	}
	if got := fmt.Sprintf("%.6f", u.Cost.Total); got != "0.000520" { // 10×1 + 50×10 + 100×0.1, per million
		t.Errorf("cost %s", got)
	}
	u = answer(t, frame(textPart), `{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":7,"toolUsePromptTokenCount":3,"candidatesTokenCount":1}}`).Done(t).Usage
	if u.Input != 10 || u.Output != 1 || u.TotalTokens != 11 {
		t.Errorf("with the prompt of tools: %+v", u)
	}
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames []string
		want   messages.Failure
	}{
		{"safety", []string{frame(textPart), last("SAFETY")}, messages.Failure{Type: messages.FailContentFilter, Code: "SAFETY", Message: "the provider withheld the answer (SAFETY)"}},
		{"recitation", []string{last("RECITATION")}, messages.Failure{Type: messages.FailContentFilter, Code: "RECITATION", Message: "the provider withheld the answer (RECITATION)"}},
		{"a blocked prompt", []string{`{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT","blockReasonMessage":"no"},"usageMetadata":{"promptTokenCount":4}}`},
			messages.Failure{Type: messages.FailContentFilter, Code: "PROHIBITED_CONTENT", Message: "the provider blocked the prompt (PROHIBITED_CONTENT): no"}},
		{"a malformed call", []string{`{"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL","finishMessage":"Malformed function call: f("}]}`},
			messages.Failure{Type: messages.FailInvalidResponse, Code: "MALFORMED_FUNCTION_CALL", Retryable: true,
				Message: "the model wrote a tool call that is not valid (MALFORMED_FUNCTION_CALL): Malformed function call: f("}},
		{"an unexpected call", []string{last("UNEXPECTED_TOOL_CALL")}, messages.Failure{Type: messages.FailInvalidResponse, Code: "UNEXPECTED_TOOL_CALL", Retryable: true,
			Message: "the model wrote a tool call that is not valid (UNEXPECTED_TOOL_CALL)"}},
		{"another end", []string{last("OTHER")}, messages.Failure{Type: messages.FailProviderUnknown, Code: "OTHER", Message: "the answer ended early (OTHER)"}},
		{"an end with nothing", []string{last("STOP")}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the answer has no content"}},
		{"an error in the stream", []string{frame(textPart), `{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}`},
			messages.Failure{Type: messages.FailUnavailable, Status: 503, Code: "503", Message: "the model is overloaded", Retryable: true}},
		{"another id", []string{frame(textPart), strings.Replace(last("STOP"), "r1", "r2", 1)}, messages.Failure{Type: messages.FailStream, Message: "the answer's id changed within one stream"}},
		{"text after the end", []string{last("STOP", textPart), frame(textRest)}, messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"}},
		{"a call after the end", []string{last("STOP", textPart), frame(callPart)}, messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"}},
		{"not JSON", []string{frame(textPart), "oops"}, messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider sent a frame that is not JSON"}},
		{"a clean end too early", []string{frame(textPart), frame(callPart)}, messages.Failure{Type: messages.FailTransport, Message: "the connection ended before the answer was complete", Retryable: true}},
		{"nothing", nil, messages.Failure{Type: messages.FailTransport, Message: "the connection ended before the answer was complete", Retryable: true}},
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

// The usage of an answer that was withheld is counted all the same.
func TestAWithheldAnswerReportsItsUsage(t *testing.T) {
	o := answer(t, frame(textPart), last("SAFETY"))
	if u := o.End().Message.Usage; u == nil || u.TotalTokens != 160 {
		t.Errorf("%+v", u)
	}
}

func TestErrorAnswers(t *testing.T) {
	details := func(more string) string {
		return `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan.","status":"RESOURCE_EXHAUSTED","details":[` + more + `]}}`
	}
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   messages.Failure
	}{
		{"a limit with the wait in the body", 429, details(`{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerMinutePerProjectPerModel"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}`),
			messages.Failure{Type: messages.FailRateLimit, Status: 429, Code: "429", Retryable: true, RetryAfter: 34500 * time.Millisecond}},
		{"a limit of the day", 429, details(`{"violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},{"retryDelay":"34s"}`),
			messages.Failure{Type: messages.FailQuota, Status: 429, Code: "429", RetryAfter: 34 * time.Second}},
		{"a wrong key", 400, `{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}`,
			messages.Failure{Type: messages.FailAuthentication, Status: 400, Code: "invalid"}},
		{"an array around it", 503, `[{"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}]`,
			messages.Failure{Type: messages.FailUnavailable, Status: 503, Code: "503", Retryable: true}},
		{"too long a prompt", 400, `{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}`,
			messages.Failure{Type: messages.FailInvalidRequest, Status: 400, Code: messages.CodeContextOverflow}},
		{"no such model", 404, `{"error":{"code":404,"message":"models/x is not found for API version v1beta","status":"NOT_FOUND"}}`,
			messages.Failure{Type: messages.FailModelUnavailable, Status: 404, Code: "404"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dialecttest.Serve(t, dialecttest.Status(c.status, nil, c.body))
			got := *dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL)).Failed(t)
			got.Hint, got.Message = "", ""
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// Without the parameter for events, or through some gateways, the chunks come
// as one array, or the answer as one chunk.
func TestAWholeDocumentIsReadToo(t *testing.T) {
	for _, body := range []string{"[" + frame(textPart) + "," + last("STOP", textRest) + "]", last("STOP", textPart, textRest)} {
		s := dialecttest.Serve(t, dialecttest.Status(200, map[string]string{"Content-Type": "application/json"}, body))
		if got := parts(t, dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL))); got != "text:Hello" {
			t.Errorf("%s: %s", body, got)
		}
	}
	s := dialecttest.Serve(t, dialecttest.Status(200, map[string]string{"Content-Type": "application/json"},
		`[`+frame(textPart)+`,{"error":{"code":500,"message":"x","status":"INTERNAL"}}]`))
	if f := dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL)).Failed(t); f.Type != messages.FailUnavailable {
		t.Errorf("an error in the array: %+v", f)
	}
}

// A cut at any byte must be told from an end, also when the message is all
// there but its terminal event is not.
func TestACutAtEveryByteIsNeverASuccess(t *testing.T) {
	raw := dialecttest.Data(frame(thoughtPart), frame(textPart), frame(signedCall), last("STOP"))
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

// An answer whose connection breaks after any of its events, in any way, is
// a failure that may be tried again; the same answer unbroken is a success,
// whatever the line ends and however small the pieces.
func TestBrokenAndUnbrokenAnswersOfTheModelServer(t *testing.T) {
	whole := func(more ...mockmodel.Step) mockmodel.Answer {
		return append(mockmodel.Answer{mockmodel.Reasoning{Text: "hm", Signature: "c2ln"}, mockmodel.Text{Text: "Grüße 😀", Split: 3},
			mockmodel.Call{ID: "a", Name: "write", Args: `{"path":"f","content":"ü"}`, Split: 4}}, more...)
	}
	const want = `thinking:hm text:Grüße 😀 write(a {"path":"f","content":"ü"})/c2ln`
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	for _, newline := range []string{"\n", "\r\n", "\r"} {
		server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{whole(mockmodel.Framing{Newline: newline, Chop: 1})}})
		if got := parts(t, dialecttest.Run(t, Dialect{}, client, request(server.URL()))); got != want {
			t.Errorf("line end %q: %s", newline, got)
		}
	}
	for _, mode := range []mockmodel.CutMode{mockmodel.CutClose, mockmodel.CutReset, mockmodel.CutEnd} {
		for events := range 6 { // the sixth has the finish reason
			t.Run(fmt.Sprint(mode, " after ", events), func(t *testing.T) {
				server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{whole(mockmodel.After{Events: events, Step: mockmodel.Cut{Mode: mode}})}})
				f := dialecttest.Run(t, Dialect{}, client, request(server.URL())).Failed(t)
				if f.Type != messages.FailTransport || !f.Retryable {
					t.Errorf("%+v", f)
				}
			})
		}
	}
}

func TestHeadersAndPath(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(dialecttest.Data(last("STOP", textPart))))
	for _, c := range []struct{ base, model, want string }{
		{"", "m", "/v1beta/models/m:streamGenerateContent?alt=sse"},
		{"/", "m", "/v1beta/models/m:streamGenerateContent?alt=sse"},
		{"/v1beta", "m", "/v1beta/models/m:streamGenerateContent?alt=sse"},
		{"/v1/", "m", "/v1/models/m:streamGenerateContent?alt=sse"},
		{"/gateway", "m", "/gateway/v1beta/models/m:streamGenerateContent?alt=sse"},
		{"/v1beta?tenant=x", "m", "/v1beta/models/m:streamGenerateContent?alt=sse&tenant=x"},
		{"", "tunedModels/a?b", "/v1beta/tunedModels/a%3Fb:streamGenerateContent?alt=sse"},
	} {
		req := request(s.URL + c.base)
		req.Model.ID = c.model
		dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
		r, _ := s.Last(t)
		if r.RequestURI != c.want {
			t.Errorf("base %q model %q: %s", c.base, c.model, r.RequestURI)
		}
		if r.Header.Get("x-goog-api-key") != "AIza-secret" || r.Header.Get("Authorization") != "" {
			t.Errorf("%v", r.Header)
		}
	}
	req := request(s.URL)
	req.APIKey = ""
	dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	if r, _ := s.Last(t); len(r.Header["X-Goog-Api-Key"]) > 0 {
		t.Errorf("without a key: %v", r.Header)
	}
}

// Calls go back with their signatures, in parallel too; another model gets
// none, and says that it does not need them.
func TestAConversationWithTheStrictServer(t *testing.T) {
	for _, id := range []string{"gemini-3-flash", "gemini-2.5-flash"} {
		server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{
			{mockmodel.Reasoning{Text: "let me see", Signature: "c2lnLTE=", Split: 3},
				mockmodel.Call{ID: "t1", Name: "bash", Args: `{"command":"ls"}`, Split: 3}, mockmodel.Call{ID: "t2", Name: "bash", Args: `{"command":"pwd"}`}},
			{mockmodel.Call{Name: "bash", Args: `{}`, NoID: true}},
			{mockmodel.Text{Text: "Two files.", Split: 2}, mockmodel.Reasoning{Redacted: true, Signature: "c2lnLTI="}},
			{mockmodel.Text{Text: "From another."}},
			{mockmodel.Text{Text: "Back."}},
		}, RequireKey: "AIza-secret"})
		client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
		req := request(server.URL())
		req.Model.ID, req.Model.Reasoning, req.Thinking = id, true, "high"
		req.System = "be brief"
		req.Tools = []messages.ToolDefinition{{Name: "bash", Description: "runs", Schema: json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}}}`)}}
		req.Cache = &messages.EncodeCache{}
		said := func(want string) {
			t.Helper()
			o := dialecttest.Run(t, Dialect{}, client, req)
			if got := parts(t, o); got != want {
				t.Errorf("%s: got %s\nwant %s", id, got, want)
			}
			m := *o.Done(t)
			m.ID, m.State = fmt.Sprint("a", len(req.Messages)), messages.EntryCommitted
			for i := range m.Parts {
				if m.Parts[i].Type == messages.PartToolCall {
					r := messages.ToolResult{Content: []messages.Part{{Type: messages.PartText, Text: "x"}, {Type: messages.PartImage, Data: dialecttest.PNG}}}
					m.Parts[i].Result, m.Parts[i].Call = &r, messages.CallCompleted
				}
			}
			req.Messages = append(req.Messages, m)
		}
		ask := func(model string) {
			req.Model.ID = model
			req.Messages = append(req.Messages, user(fmt.Sprint("u", len(req.Messages)), "and?"))
		}
		said(`thinking:let me see bash(t1 {"command":"ls"})/c2lnLTE= bash(t2 {"command":"pwd"})`)
		if signed := req.Model.ID == "gemini-3-flash"; signed {
			o := dialecttest.Run(t, Dialect{}, client, req)
			m := *o.Done(t)
			if m.Parts[0].Signature == "" {
				t.Errorf("%+v", m.Parts)
			}
			m.ID, m.State = "second", messages.EntryCommitted
			r := messages.TextResult("", false)
			m.Parts[0].Result, m.Parts[0].Call = &r, messages.CallCompleted
			req.Messages = append(req.Messages, m)
		} else {
			said(`bash(made {})`)
		}
		said("text:Two files./c2lnLTI=")
		ask("gemini-3-other")
		said("text:From another.")
		ask(id)
		said("text:Back.")
	}
}

func TestWhatCannotBeSent(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(""))
	for _, option := range []string{"x", "generationConfig"} {
		req := request(s.URL)
		req.Options.Extra = map[string]json.RawMessage{option: json.RawMessage("{bad")}
		if f := dialecttest.Run(t, Dialect{}, s.Client(t), req).Failed(t); f.Type != messages.FailContextEncode {
			t.Errorf("option %s: %+v", option, f)
		}
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
