package chat

import (
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"codework/messages"
	"codework/providers"
	"codework/providers/internal/dialecttest"
	"codework/providers/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ providers.Dialect = Dialect{}

func request(baseURL string) *messages.Request {
	return &messages.Request{
		SessionID: "ses_1",
		MessageID: "answer",
		APIKey:    "sk-secret-key",
		Model: messages.Model{
			ID: "m", Protocol: messages.ProtocolCompatible, BaseURL: baseURL,
			Provider: messages.ModelProvider{ID: "p", Name: "Pro", Env: []string{"P_KEY"}},
			Input:    []string{"text", "image"},
			Cost:     messages.ModelCost{Rates: messages.Rates{Input: 1, Output: 2, CacheRead: 0.5}},
		},
		Messages: []messages.Message{{ID: "u", Role: messages.RoleUser,
			Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}}}},
		Blob: dialecttest.Blob,
	}
}

// frame is one chunk of the protocol.
func frame(delta string) string {
	return `{"id":"c1","model":"served","choices":[{"index":0,"delta":` + delta + `}]}`
}

func finish(reason string) string {
	return `{"id":"c1","model":"served","choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

const counted = `{"id":"c1","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,
	"prompt_tokens_details":{"cached_tokens":40},"completion_tokens_details":{"reasoning_tokens":5}}}`

// oneLine removes the line breaks of a constant.
func oneLine(s string) string {
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		panic(err)
	}
	raw, _ := json.Marshal(v)
	return string(raw)
}

func answer(t *testing.T, frames ...string) dialecttest.Outcome {
	t.Helper()
	s := dialecttest.Serve(t, dialecttest.Stream(dialecttest.Data(frames...)))
	return dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL+"/v1"))
}

func TestATextAnswer(t *testing.T) {
	o := answer(t, frame(`{"role":"assistant","content":""}`), frame(`{"content":"Hel"}`), frame(`{"content":"lo"}`),
		finish("stop"), oneLine(counted), "[DONE]")
	m := o.Done(t)
	if len(m.Parts) != 1 || m.Parts[0].Text != "Hello" || m.StopReason != messages.StopStop {
		t.Fatalf("%+v", m)
	}
	if m.ResponseID != "c1" || m.ResponseModel != "served" {
		t.Errorf("answered by %q, %q", m.ResponseID, m.ResponseModel)
	}
	u := m.Usage
	if u == nil || u.Input != 60 || u.CacheRead != 40 || u.Output != 20 || u.Reasoning != 5 || u.TotalTokens != 120 ||
		u.Cost.Total != 60e-6+20e-6+40e-6 {
		t.Errorf("usage %+v", u)
	}
}

// What is held back until the end must not grow without bounds.
func TestWhatIsHeldBackIsBounded(t *testing.T) {
	endless := func(delta string, times int) []string {
		out := make([]string, times)
		for i := range out {
			out[i] = frame(delta)
		}
		return append(out, finish("stop"))
	}
	big := strings.Repeat("x", 1<<20)
	f := answer(t, endless(`{"reasoning_details":[{"type":"reasoning.text","index":0,"text":"`+big+`"}]}`, 5)...).Failed(t)
	if f.Type != messages.FailInvalidResponse {
		t.Errorf("reasoning details: %+v", f)
	}
	var s stream
	s.think.on = true
	count := 0
	for range 1000 {
		s.think.split("\n", func(string) {}, func(d string) { count += len(d) })
	}
	if count < 1000-maxLead {
		t.Errorf("white space: %d of 1000 were given out", count)
	}
	f = answer(t, endless(`{"refusal":"`+big+`"}`, 2)...).Failed(t)
	if f.Type != messages.FailContentFilter || len(f.Message) > 2000 {
		t.Errorf("refusal: %.100s", f.Message)
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

func TestTheModelsOwnAddressWins(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(dialecttest.Data(frame(`{"content":"a"}`), finish("stop"))))
	req := request("http://provider.example")
	req.Model.API = &messages.ModelAPI{ID: "inner", URL: s.URL + "/other"}
	dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	if r, body := s.Last(t); r.URL.Path != "/other/chat/completions" || !strings.Contains(string(body), `"model":"inner"`) {
		t.Errorf("%s %s", r.URL, body)
	}
	req.Model.API, req.Model.BaseURL = nil, "http://[::1"
	if f := dialecttest.Run(t, Dialect{}, s.Client(t), req).Failed(t); f.Type != messages.FailConfiguration {
		t.Errorf("%+v", f)
	}
}

func TestADocumentWithoutAReasonIsComplete(t *testing.T) {
	for body, want := range map[string]string{
		`{"choices":[{"index":0,"message":{"content":"a"}}]}`: "",
		`{"choices":[]}`: messages.FailInvalidResponse,
		`{"choices":[{"index":0,"message":{"content":"` + strings.Repeat("x", sse.MaxLine) + `"}}]}`: messages.FailInvalidResponse,
	} {
		s := dialecttest.Serve(t, dialecttest.Status(200, map[string]string{"Content-Type": "application/json"}, body))
		o := dialecttest.Run(t, Dialect{}, s.Client(t), request(s.URL))
		if want == "" {
			o.Done(t)
		} else if f := o.Failed(t); f.Type != want {
			t.Errorf("%.60s: %+v", body, f)
		}
	}
}

func TestAnEventThatIsTooLong(t *testing.T) {
	f := answer(t, strings.Repeat("x", sse.MaxLine+1)).Failed(t)
	if f.Type != messages.FailInvalidResponse || f.Retryable {
		t.Errorf("%+v", f)
	}
}
