package responses

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

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
		APIKey:    "sk-secret-key",
		Model: messages.Model{
			ID: "m", Protocol: messages.ProtocolOpenAI, BaseURL: baseURL,
			Provider:  messages.ModelProvider{ID: "p", Name: "OpenAI", Env: []string{"OPENAI_API_KEY"}},
			Reasoning: true, Input: []string{"text", "image"}, MaxTokens: 128000, ContextWindow: 400000,
			Cost: messages.ModelCost{Rates: messages.Rates{Input: 1, Output: 2, CacheRead: 0.5, CacheWrite: 4}},
		},
		Messages: []messages.Message{{ID: "u", Role: messages.RoleUser,
			Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}}}},
		Thinking: "high",
		Blob:     dialecttest.Blob,
	}
}

// Frames as the API sends them.
const created = `{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","model":"served","output":[],"error":null,"usage":null,"service_tier":"auto"}}`

func added(index int, item string) string {
	return fmt.Sprintf(`{"type":"response.output_item.added","output_index":%d,"item":%s}`, index, item)
}

func ended(index int, item string) string {
	return fmt.Sprintf(`{"type":"response.output_item.done","output_index":%d,"item":%s}`, index, item)
}

func said(index int, delta string) string {
	return fmt.Sprintf(`{"type":"response.output_text.delta","item_id":"msg_1","output_index":%d,"content_index":0,"delta":%q,"logprobs":[],"obfuscation":"aZ4"}`, index, delta)
}

func thinks(index, section int, delta string) string {
	return fmt.Sprintf(`{"type":"response.reasoning_summary_text.delta","item_id":"rs_1","output_index":%d,"summary_index":%d,"delta":%q}`, index, section, delta)
}

func argued(index int, delta string) string {
	return fmt.Sprintf(`{"type":"response.function_call_arguments.delta","item_id":"fc_1","output_index":%d,"delta":%q}`, index, delta)
}

const counted = `"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":40,"cache_write_tokens":10},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":120}`

func final(kind, more string) string {
	return fmt.Sprintf(`{"type":"response.%s","response":{"id":"resp_1","object":"response","model":"served","status":"%s","service_tier":"default","error":null,"incomplete_details":null,%s%s}}`, kind, kind, counted, more)
}

var completed = final("completed", "")

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
	return dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL+"/v1"))
}

func parts(t *testing.T, o dialecttest.Outcome) string {
	t.Helper()
	var out []string
	for _, p := range o.Done(t).Parts {
		if p.Type == messages.PartToolCall {
			out = append(out, fmt.Sprintf("%s(%s/%s %s)", p.Name, p.CallID, p.ItemID, p.Arguments))
			continue
		}
		out = append(out, strings.TrimSuffix(fmt.Sprintf("%s:%s/%s", p.Type, p.Text, p.Signature), "/"))
	}
	return strings.Join(out, " ")
}

const (
	messageItem  = `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hello","annotations":[]}]}`
	openMessage  = `{"type":"message","id":"msg_1","role":"assistant","status":"in_progress","content":[]}`
	thoughtItem  = `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"h"},{"type":"summary_text","text":"m"}],"encrypted_content":"gAAA\/+==\u00fc"}`
	openThought  = `{"type":"reasoning","id":"rs_1","summary":[]}`
	callItem     = `{"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{\"a\":1}","status":"completed"}`
	openCall     = `{"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"","status":"in_progress"}`
	thoughtSign  = `{"itemId":"rs_1","reasoningEncryptedContent":"gAAA/+==ü"}`
	signedHello  = "text:Hello/msg_1"
	signedCall   = `f(call_1/fc_1 {"a":1})`
	signedHM     = "thinking:h\n\nm/" + thoughtSign
	unsignedCall = `f(call_1/ {"a":1})`
)

func TestAnswers(t *testing.T) {
	text := func(i int) []string {
		return []string{added(i, openMessage), `{"type":"response.content_part.added","output_index":0,"content_index":0,"part":{"type":"output_text","text":""}}`,
			said(i, "Hel"), said(i, "lo"), fmt.Sprintf(`{"type":"response.output_text.done","output_index":%d,"text":"Hello"}`, i), ended(i, messageItem)}
	}
	call := func(i int) []string {
		return []string{added(i, openCall), argued(i, `{"a":`), argued(i, `1}`),
			fmt.Sprintf(`{"type":"response.function_call_arguments.done","output_index":%d,"arguments":"{\"a\":1}"}`, i), ended(i, callItem)}
	}
	reasoning := []string{added(0, openThought), thinks(0, 0, "h"), `{"type":"response.reasoning_summary_text.done","output_index":0,"summary_index":0,"text":"h"}`,
		thinks(0, 1, "m"), ended(0, thoughtItem)}
	for _, c := range []struct {
		name   string
		frames [][]string
		want   string
		stop   messages.StopReason
	}{
		{"text", [][]string{{created}, text(0), {completed}}, signedHello, "stop"},
		{"a call", [][]string{{created}, text(0), call(1), {completed}}, signedHello + " " + signedCall, "toolUse"},
		{"reasoning before what it led to", [][]string{{created}, reasoning, call(1), {completed}}, signedHM + " " + signedCall, "toolUse"},
		{"reasoning that is not shown", [][]string{{created, added(0, openThought), ended(0, `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}`)}, text(1), {completed}},
			`thinking:/{"itemId":"rs_1","reasoningEncryptedContent":"x"} ` + signedHello, "stop"},
		{"reasoning that cannot come back takes the ids with it", [][]string{{created, added(0, openThought), thinks(0, 0, "hm"), ended(0, openThought)}, call(1), {completed}},
			"thinking:hm " + unsignedCall, "toolUse"},
		{"reasoning in the open", [][]string{{created, added(0, openThought), `{"type":"response.reasoning_text.delta","output_index":0,"content_index":0,"delta":"hm"}`,
			thinks(0, 0, "again"), ended(0, openThought)}, text(1), {completed}}, "thinking:hm text:Hello", "stop"},
		{"a first section of nothing", [][]string{{created, added(0, openThought), thinks(0, 1, "hm"), ended(0, openThought)}, text(1), {completed}}, "thinking:hm text:Hello", "stop"},
		{"no deltas", [][]string{{created, added(0, openThought), ended(0, thoughtItem), added(1, openMessage), ended(1, messageItem), added(2, openCall), ended(2, callItem), completed}},
			signedHM + " " + signedHello + " " + signedCall, "toolUse"},
		{"ends alone", [][]string{{created, ended(0, thoughtItem), ended(1, messageItem), ended(2, callItem), completed}},
			signedHM + " " + signedHello + " " + signedCall, "toolUse"},
		{"the last event alone", [][]string{{final("completed", `,"output":[`+thoughtItem+","+messageItem+","+callItem+`]`)}},
			signedHM + " " + signedHello + " " + signedCall, "toolUse"},
		{"the last event repeats it all", [][]string{{created}, text(0), call(1), {final("completed", `,"output":[`+messageItem+","+callItem+`]`)}}, signedHello + " " + signedCall, "toolUse"},
		{"texts without deltas", [][]string{{created, added(0, openMessage), `{"type":"response.output_text.done","output_index":0,"text":"Hello"}`, ended(0, messageItem), completed}}, signedHello, "stop"},
		{"deltas without an item", [][]string{{created, said(0, "Hello"), completed}}, "text:Hello", "stop"},
		{"parallel calls that mix", [][]string{{created, added(0, openCall), added(1, strings.ReplaceAll(openCall, "_1", "_2")), argued(1, "{}"), argued(0, `{"a":1}`),
			ended(1, strings.ReplaceAll(callItem, "_1", "_2")), ended(0, callItem), completed}}, signedCall + " f(call_2/fc_2 {})", "toolUse"},
		{"ids that change on the way", [][]string{{created, added(0, openCall), strings.ReplaceAll(argued(0, `{"a":1}`), "fc_1", "zz"), ended(0, strings.ReplaceAll(callItem, "fc_1", "zzz")), completed}}, signedCall, "toolUse"},
		{"a phase", [][]string{{created, added(0, openMessage), said(0, "Hello"), ended(0, strings.Replace(messageItem, `"role"`, `"phase":"final_answer","role"`, 1)), completed}},
			`text:Hello/{"id":"msg_1","phase":"final_answer"}`, "stop"},
		{"the provider's own tools", [][]string{{created, added(0, `{"type":"web_search_call","id":"ws_1"}`), `{"type":"response.web_search_call.searching","output_index":0}`,
			ended(0, `{"type":"web_search_call","id":"ws_1"}`)}, text(1), {completed}}, signedHello, "stop"},
		{"events to come", [][]string{{created, `{"type":"response.dreaming.delta","delta":{"a":1},"output_index":"x"}`, `{"type":"keepalive"}`}, text(0), {completed, "[DONE]"}}, signedHello, "stop"},
		{"the length is reached", [][]string{{created}, text(0), {final("incomplete", `,"output":[]`)}}, "", ""},
		{"an answer that is done", [][]string{{created}, text(0), {strings.Replace(completed, "response.completed", "response.done", 1)}}, signedHello, "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := answer(t, slices.Concat(c.frames...)...)
			if c.stop == "" {
				if f := o.Failed(t); f.Type != messages.FailProviderUnknown {
					t.Fatalf("%+v", f)
				}
				return
			}
			if got := parts(t, o); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			m := o.Done(t)
			if m.StopReason != c.stop || m.ResponseModel != "served" && c.name != "deltas without an item" {
				t.Errorf("stop %s, model %s", m.StopReason, m.ResponseModel)
			}
			u := m.Usage
			if u == nil || u.Input != 50 || u.CacheRead != 40 || u.CacheWrite != 10 || u.Output != 20 || u.Reasoning != 5 || u.TotalTokens != 120 ||
				u.Cost.Input != 50e-6 || u.Cost.Output != 40e-6 || u.Cost.CacheRead != 20e-6 || u.Cost.CacheWrite != 40e-6 {
				t.Errorf("usage %+v", u)
			}
		})
	}
}

func incomplete(reason string) string {
	return strings.Replace(final("incomplete", ""), `"incomplete_details":null`, `"incomplete_details":{"reason":"`+reason+`"}`, 1)
}

func failed(code, message string) string {
	return strings.Replace(final("failed", ""), `"error":null`, fmt.Sprintf(`"error":{"code":%q,"message":%q}`, code, message), 1)
}

func TestALengthThatIsReachedIsAnAnswer(t *testing.T) {
	m := answer(t, created, added(0, openMessage), said(0, "cut"), incomplete("max_output_tokens")).Done(t)
	if m.StopReason != messages.StopLength || m.Parts[0].Text != "cut" || m.Usage == nil {
		t.Errorf("%+v", m)
	}
	m = answer(t, created, added(0, openCall), argued(0, `{"a`), incomplete("max_output_tokens")).Done(t)
	if m.StopReason != messages.StopLength || m.Parts[0].Arguments != `{"a` {
		t.Errorf("%+v", m)
	}
	f := answer(t, created, added(0, openThought), incomplete("max_output_tokens")).Failed(t)
	if f.Type != messages.FailInvalidResponse || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

func TestAnswersThatAreFailures(t *testing.T) {
	begun := []string{created, added(0, openMessage), said(0, "Hello")}
	for _, c := range []struct {
		name   string
		frames []string
		typ    string
		retry  bool
		code   string
		words  string
	}{
		{"an error event", append(begun, `{"type":"error","code":"server_error","message":"Something broke.","param":null,"sequence_number":3}`), messages.FailUnavailable, true, "server_error", "something broke"},
		{"an error event with an object", append(begun, `{"type":"error","error":{"type":"rate_limit_exceeded","code":"rate_limit_exceeded","message":"Slow"}}`), messages.FailRateLimit, true, "rate_limit_exceeded", "slow"},
		{"an error of a gateway", append(begun, `{"error":{"message":"Upstream is gone","code":502}}`), messages.FailUnavailable, true, "502", "upstream is gone"},
		{"failed", append(begun, failed("server_error", "An error.")), messages.FailUnavailable, true, "server_error", "an error"},
		{"overload", append(begun, failed("server_is_overloaded", "Busy.")), messages.FailUnavailable, true, "server_is_overloaded", "busy"},
		{"slow down", append(begun, failed("slow_down", "Busy.")), messages.FailUnavailable, true, "slow_down", "busy"},
		{"rate limit", append(begun, failed("rate_limit_exceeded", "Please try again in 1.5s.")), messages.FailRateLimit, true, "rate_limit_exceeded", "please try again in 1.5s"},
		{"quota", append(begun, failed("insufficient_quota", "No money.")), messages.FailQuota, false, "insufficient_quota", "no money"},
		{"too long", append(begun, failed("context_length_exceeded", "Your input exceeds the context window.")), messages.FailInvalidRequest, false, messages.CodeContextOverflow, ""},
		{"flagged", append(begun, failed("invalid_prompt", "Your prompt was flagged.")), messages.FailContentFilter, false, "invalid_prompt", ""},
		{"filtered", append(begun, incomplete("content_filter")), messages.FailContentFilter, false, "content_filter", ""},
		{"ended strangely", append(begun, incomplete("boredom")), messages.FailProviderUnknown, false, "", "boredom"},
		{"cancelled", append(begun, final("cancelled", "")), messages.FailProviderUnknown, false, "cancelled", ""},
		{"a refusal", []string{created, added(0, openMessage), `{"type":"response.refusal.delta","output_index":0,"delta":"I will "}`, `{"type":"response.refusal.delta","output_index":0,"delta":"not."}`,
			ended(0, `{"type":"message","id":"msg_1","content":[{"type":"refusal","refusal":"I will not."}]}`), completed}, messages.FailContentFilter, false, "refusal", "the model refused: I will not"},
		{"a refusal without deltas", []string{created, ended(0, `{"type":"message","id":"msg_1","content":[{"type":"refusal","refusal":"No."}]}`), completed}, messages.FailContentFilter, false, "refusal", "the model refused: No"},
		{"nothing", []string{created, completed}, messages.FailInvalidResponse, false, "", ""},
		{"a clean early end", begun, messages.FailTransport, true, "", ""},
		{"an early end that says done", append(begun, "[DONE]"), messages.FailTransport, true, "", ""},
		{"no JSON", append(begun, `{"type`), messages.FailInvalidResponse, false, "", ""},
		{"an item begun twice", append(begun, added(0, openMessage)), messages.FailStream, false, "", ""},
		{"another id", append(begun, strings.Replace(completed, "resp_1", "resp_2", 1)), messages.FailStream, false, "", ""},
		{"more after the end", append(begun, completed, said(0, "more")), messages.FailStream, false, "", ""},
		{"an item after the end", append(begun, completed, added(1, openCall)), messages.FailStream, false, "", ""},
		{"a second end", append(begun, completed, completed), messages.FailStream, false, "", ""},
		{"arguments of no call", append(begun, argued(7, "{}")), messages.FailInvalidResponse, false, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := answer(t, c.frames...).Failed(t)
			if f.Type != c.typ || f.Retryable != c.retry || c.code != "" && f.Code != c.code || !strings.Contains(f.Message, c.words) {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestAFailedAnswerStatesItsUsageAndItsWait(t *testing.T) {
	o := answer(t, created, failed("rate_limit_exceeded", "Limit 30000. Please try again in 1.5s. Visit us."))
	if f := o.Failed(t); f.RetryAfter.Milliseconds() != 1500 {
		t.Errorf("wait %s", f.RetryAfter)
	}
	if u := o.End().Message.Usage; u == nil || u.Output != 20 {
		t.Errorf("usage %+v", u)
	}
	if f := answer(t, created, failed("rate_limit_exceeded", "Please try again in 20ms.")).Failed(t); f.RetryAfter.Milliseconds() != 20 {
		t.Errorf("wait %s", f.RetryAfter)
	}
}

func TestATierChangesThePrice(t *testing.T) {
	for _, c := range []struct {
		model, tier string
		factor      float64
	}{{"m", "flex", 0.5}, {"m", "priority", 2}, {"gpt-5.5", "priority", 2.5}, {"m", "default", 1}, {"m", "", 1}} {
		s := dialecttest.Serve(t, dialecttest.Stream(events(created, said(0, "a"), strings.Replace(completed, `"service_tier":"default"`, fmt.Sprintf(`"service_tier":%q`, c.tier), 1))))
		req := request(s.URL)
		req.Model.ID = c.model
		if got := dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t).Usage.Cost.Output; got != 40e-6*c.factor {
			t.Errorf("%s of %s: %g", c.tier, c.model, got)
		}
	}
}

func TestAnAnswerThatIsNoStream(t *testing.T) {
	whole := `{"id":"resp_1","object":"response","model":"served","status":"completed","error":null,` + counted + `,"output":[` + thoughtItem + "," + messageItem + "," + callItem + `]}`
	s := dialecttest.Serve(t, dialecttest.Status(200, map[string]string{"Content-Type": "application/json"}, whole))
	if got := parts(t, dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL))); got != signedHM+" "+signedHello+" "+signedCall {
		t.Error(got)
	}
}

func TestWhereAndAsWhomItAsks(t *testing.T) {
	for _, c := range []struct{ base, want string }{{"/v1", "/v1/responses"}, {"/v1/", "/v1/responses"}, {"/v1/responses", "/v1/responses"}, {"", "/responses"}} {
		s := dialecttest.Serve(t, dialecttest.Stream(events(created, said(0, "a"), completed)))
		dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL+c.base)).Done(t)
		r, _ := s.Last(t)
		if r.URL.Path != c.want || r.Header.Get("Authorization") != "Bearer sk-secret-key" || r.Header.Get("chatgpt-account-id") != "" {
			t.Errorf("%s %v", r.URL.Path, r.Header)
		}
	}
	if f := dialecttest.Run(t, Dialect{}, dialecttest.Serve(t, nil).Client(t), request("")).Failed(t); f.Type != messages.FailConfiguration {
		t.Errorf("%+v", f)
	}
}

func TestGatewaysMayChangeIDs(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(events(created, `{"type":"response.in_progress","response":{"id":"another"}}`,
		said(0, "a"), strings.Replace(completed, "resp_1", "other", 1))))
	if m := dialecttest.Run(t, Dialect{LooseIDs: true}, s.Client(t), request(s.URL)).Done(t); m.ResponseID != "resp_1" {
		t.Errorf("id %q", m.ResponseID)
	}
}

func TestAnOptionThatIsNoJSONIsNotSent(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(""))
	req := request(s.URL)
	req.Options.Extra = map[string]json.RawMessage{"x": json.RawMessage("{bad")}
	if f := dialecttest.Run(t, Dialect{}, s.Client(t), req).Failed(t); f.Type != messages.FailContextEncode || f.Retryable || s.Asked() > 0 {
		t.Errorf("%+v, asked %d times", f, s.Asked())
	}
}
