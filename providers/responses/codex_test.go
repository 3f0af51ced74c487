package responses

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"codework/messages"
	"codework/providers/internal/dialecttest"
)

func codexRequest(baseURL string) *messages.Request {
	req := request(baseURL)
	req.Model.Protocol = messages.ProtocolCodex
	req.Model.Provider = messages.ModelProvider{ID: "openai-codex", Name: "OpenAI Codex", Env: []string{"OPENAI_CODEX_API_KEY"}}
	req.Login = &messages.Login{AccountID: "acc-1"}
	return req
}

func TestWhatCodexIsAsked(t *testing.T) {
	for _, c := range []struct{ base, want string }{
		{"/backend-api", "/backend-api/codex/responses"}, {"/backend-api/", "/backend-api/codex/responses"}, {"/backend-api/codex", "/backend-api/codex/responses"},
		{"/backend-api/codex/", "/backend-api/codex/responses"}, {"/backend-api/codex/responses", "/backend-api/codex/responses"}, {"", "/codex/responses"},
	} {
		s := dialecttest.Serve(t, dialecttest.Stream(events(created, said(0, "a"), completed)))
		dialecttest.Run(t, Dialect{Codex: true}, s.Client(t), codexRequest(s.URL+c.base)).Done(t)
		r, _ := s.Last(t)
		if r.URL.Path != c.want {
			t.Errorf("%s: %s", c.base, r.URL.Path)
		}
		for name, want := range map[string]string{"Authorization": "Bearer sk-secret-key", "chatgpt-account-id": "acc-1", "OpenAI-Beta": "responses=experimental",
			"originator": "codework", "Accept": "text/event-stream", "session-id": "ses_1", "x-client-request-id": "ses_1", "X-Api-Key": ""} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
}

func TestTheAccountIsFoundOrAskedFor(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(events(created, said(0, "a"), completed)))
	run := func(change func(*messages.Request)) dialecttest.Outcome {
		req := codexRequest(s.URL)
		req.Login = nil
		change(req)
		return dialecttest.Run(t, Dialect{Codex: true}, s.Client(t), req)
	}
	account := func() string {
		r, _ := s.Last(t)
		return r.Header.Get("chatgpt-account-id")
	}
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"https://api.openai.com/auth":{"chatgpt_account_id":"acc-2"}}`))
	run(func(r *messages.Request) { r.APIKey = "e30." + claims + ".x" }).Done(t)
	if account() != "acc-2" {
		t.Errorf("from the token: %q", account())
	}
	run(func(r *messages.Request) { r.Options.Headers = map[string]string{"ChatGPT-Account-ID": "acc-3"} }).Done(t)
	if account() != "acc-3" {
		t.Errorf("from the settings: %q", account())
	}
	asked := s.Asked()
	if f := run(func(*messages.Request) {}).Failed(t); f.Type != messages.FailAuthentication || f.Code != messages.CodeInvalid || !strings.Contains(f.Hint, "auth login --openai-codex") {
		t.Errorf("%+v", f)
	}
	if f := run(func(r *messages.Request) { r.APIKey = "" }).Failed(t); f.Type != messages.FailAuthentication || f.Code != messages.CodeMissing {
		t.Errorf("%+v", f)
	}
	if s.Asked() != asked {
		t.Error("it asked without an account")
	}
}

func TestLimitsOfAPlan(t *testing.T) {
	later := time.Now().Add(41*time.Minute + 30*time.Second).Unix()
	for _, c := range []struct {
		name    string
		status  int
		body    string
		typ     string
		retry   bool
		message string
		wait    bool
	}{
		{"the plan is used up", 429, fmt.Sprintf(`{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached","plan_type":"plus","resets_at":%d}}`, later),
			messages.FailQuota, false, "the usage limit of the ChatGPT plan plus is reached, it resets in about 42 min", true},
		{"in seconds", 429, `{"error":{"type":"usage_limit_reached","plan_type":"pro","resets_in_seconds":7201}}`,
			messages.FailQuota, false, "the usage limit of the ChatGPT plan pro is reached, it resets in about 121 min", true},
		{"nobody says when", 429, `{"error":{"code":"usage_limit_reached","message":"x"}}`, messages.FailQuota, false, "the usage limit of the ChatGPT plan is reached", false},
		{"it was some time ago", 429, `{"error":{"type":"usage_limit_reached","resets_at":1}}`, messages.FailQuota, false, "the usage limit of the ChatGPT plan is reached", false},
		{"the plan does not include it", 403, `{"error":{"type":"usage_not_included","message":"Upgrade","plan_type":"free"}}`,
			messages.FailQuota, false, "the ChatGPT plan free does not include this use", false},
		{"too fast", 429, `{"error":{"code":"rate_limit_exceeded","message":"Slow down","plan_type":"team"}}`,
			messages.FailRateLimit, true, "the usage limit of the ChatGPT plan team is reached", false},
		{"a bare 429", 429, `slow`, messages.FailRateLimit, true, "the usage limit of the ChatGPT plan is reached", false},
		{"something else", 400, `{"detail":"Unsupported parameter: seed"}`, messages.FailInvalidRequest, false, "unsupported parameter: seed", false},
		{"an expired token", 401, `{"error":{"message":"Token expired","code":"token_expired"}}`, messages.FailAuthentication, false, "token expired", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dialecttest.Serve(t, dialecttest.Status(c.status, map[string]string{"Content-Type": "application/json"}, c.body))
			f := dialecttest.Run(t, Dialect{Codex: true}, s.Client(t), codexRequest(s.URL)).Failed(t)
			if f.Type != c.typ || f.Retryable != c.retry || f.Message != c.message || f.Status != c.status || c.wait != (f.RetryAfter > 0) {
				t.Errorf("%+v", f)
			}
		})
	}
	s := dialecttest.Serve(t, dialecttest.Stream(events(created, `{"type":"error","error":{"type":"usage_limit_reached","plan_type":"plus","resets_in_seconds":60}}`)))
	f := dialecttest.Run(t, Dialect{Codex: true}, s.Client(t), codexRequest(s.URL)).Failed(t)
	if f.Type != messages.FailQuota || f.Message != "the usage limit of the ChatGPT plan plus is reached, it resets in about 1 min" {
		t.Errorf("inside a stream: %+v", f)
	}
}

// What Codex says of its reasoning comes back as it was.
func TestAWholeReasoningItemIsKept(t *testing.T) {
	const item = `{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"content":null,"encrypted_content":"gAAA\/+\u00fc==","status":null,"new":{"b":1.50,"a":[]}}`
	s := dialecttest.Serve(t, dialecttest.Stream(events(created, added(0, openThought), thinks(0, 0, "hm"), ended(0, strings.ReplaceAll(item, `,"`, ` , "`)), ended(1, callItem), completed)))
	m := dialecttest.Run(t, Dialect{Codex: true}, s.Client(t), codexRequest(s.URL)).Done(t)
	if m.Parts[0].Signature != item {
		t.Fatalf("kept %s", m.Parts[0].Signature)
	}
	result := messages.TextResult("x", false)
	m.State, m.Parts[1].Call, m.Parts[1].Result = messages.EntryCommitted, messages.CallCompleted, &result
	req := codexRequest(s.URL)
	req.Messages = append(req.Messages, *m)
	input := string(encoded(t, req, true)["input"])
	if !strings.Contains(input, item+`,{"type":"function_call","id":"fc_1","call_id":"call_1"`) {
		t.Errorf("sent %s", input)
	}
}

// The backend calls a tier that was asked for by its usual name.
func TestCodexBillsTheTierThatWasAskedFor(t *testing.T) {
	for _, c := range []struct {
		asked, served string
		factor        float64
	}{{"priority", "default", 2}, {"flex", "default", 0.5}, {"priority", "flex", 0.5}, {"", "default", 1}, {"", "priority", 2}, {"auto", "default", 1}} {
		s := dialecttest.Serve(t, dialecttest.Stream(events(created, said(0, "a"), strings.Replace(completed, `"service_tier":"default"`, fmt.Sprintf(`"service_tier":%q`, c.served), 1))))
		req := codexRequest(s.URL)
		if c.asked != "" {
			req.Options.Extra = map[string]json.RawMessage{"service_tier": json.RawMessage(`"` + c.asked + `"`)}
		}
		if got := dialecttest.Run(t, Dialect{Codex: true}, s.Client(t), req).Done(t).Usage.Cost.Output; got != 40e-6*c.factor {
			t.Errorf("asked %q, served %q: %g", c.asked, c.served, got)
		}
	}
}
