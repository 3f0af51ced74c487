package providers

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"codework/messages"
)

func TestClassification(t *testing.T) {
	const said = `{"error":{"message":"Something went wrong.","type":"some_error","code":null}}`
	body := func(kind, code, message string) string {
		raw, _ := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": kind, "code": code}})
		return string(raw)
	}
	for _, c := range []struct {
		name   string
		status int
		body   string
		typ    string
		retry  bool
		code   string // checked when not empty
	}{
		{"401", 401, said, messages.FailAuthentication, false, messages.CodeInvalid},
		{"401 expired", 401, body("auth", "token_expired", "no"), messages.FailAuthentication, false, messages.CodeExpired},
		{"401 said to be expired", 401, body("auth", "", "Your token has expired."), messages.FailAuthentication, false, messages.CodeExpired},
		{"Gemini's invalid key", 400, `{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}`, messages.FailAuthentication, false, messages.CodeInvalid},
		{"402", 402, said, messages.FailQuota, false, ""},
		{"quota at 429", 429, body("insufficient_quota", "insufficient_quota", "You exceeded your current quota."), messages.FailQuota, false, "insufficient_quota"},
		{"quota at 403", 403, body("x", "quota_exceeded", "no"), messages.FailQuota, false, ""},
		{"billing", 400, body("billing_error", "", "no"), messages.FailQuota, false, ""},
		{"credits", 400, body("x", "out_of_credits", "no"), messages.FailQuota, false, ""},
		{"Anthropic's credit balance", 400, body("invalid_request_error", "", "Your credit balance is too low to access the API."), messages.FailQuota, false, ""},
		{"plan limit", 429, body("usage_limit_reached", "", "The usage limit has been reached"), messages.FailQuota, false, ""},
		{"not in the plan", 429, body("usage_not_included", "", "no"), messages.FailQuota, false, ""},
		{"Gemini's daily quota", 429, `{"error":{"code":429,"message":"no","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerDayPerProject"}]}]}}`, messages.FailQuota, false, ""},
		{"Gemini's quota of a minute", 429, `{"error":{"code":429,"message":"no","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerMinutePerProject"}]}]}}`, messages.FailRateLimit, true, ""},
		{"403", 403, said, messages.FailAuthorization, false, ""},
		{"content filter", 400, body("x", "content_filter", "no"), messages.FailContentFilter, false, "content_filter"},
		{"content policy", 400, body("x", "content_policy_violation", "no"), messages.FailContentFilter, false, ""},
		{"safety", 403, body("safety_error", "", "no"), messages.FailContentFilter, false, ""},
		{"404", 404, said, messages.FailModelUnavailable, false, ""},
		{"unknown model at 400", 400, body("invalid_request_error", "model_not_found", "no such model"), messages.FailModelUnavailable, false, ""},
		{"400", 400, said, messages.FailInvalidRequest, false, "some_error"},
		{"413", 413, said, messages.FailInvalidRequest, false, "some_error"},
		{"422", 422, said, messages.FailInvalidRequest, false, ""},
		{"418", 418, said, messages.FailInvalidRequest, false, ""},
		{"context at OpenAI", 400, body("invalid_request_error", "context_length_exceeded", "This model's maximum context length is 8192 tokens."), messages.FailInvalidRequest, false, messages.CodeContextOverflow},
		{"context at Anthropic", 400, body("invalid_request_error", "", "prompt is too long: 210000 tokens > 200000 maximum"), messages.FailInvalidRequest, false, messages.CodeContextOverflow},
		{"context at Gemini", 400, body("", "400", "The input token count (9) exceeds the maximum number of tokens allowed (8)."), messages.FailInvalidRequest, false, messages.CodeContextOverflow},
		{"context at 413", 413, body("", "", "Prompt too long"), messages.FailInvalidRequest, false, messages.CodeContextOverflow},
		{"a cap that is too large is no overflow", 400, body("invalid_request_error", "", "max_tokens is too large: 99999. This model supports at most 16384 completion tokens."), messages.FailInvalidRequest, false, "invalid_request_error"},
		{"408", 408, said, messages.FailTimeout, true, ""},
		{"409", 409, said, messages.FailUnavailable, true, ""},
		{"429", 429, said, messages.FailRateLimit, true, ""},
		{"500", 500, said, messages.FailUnavailable, true, ""},
		{"502", 502, said, messages.FailUnavailable, true, ""},
		{"503", 503, said, messages.FailUnavailable, true, ""},
		{"504", 504, said, messages.FailUnavailable, true, ""},
		{"520", 520, said, messages.FailUnavailable, true, ""},
		{"524", 524, said, messages.FailUnavailable, true, ""},
		{"529", 529, body("overloaded_error", "", "Overloaded"), messages.FailUnavailable, true, ""},
		{"501", 501, said, messages.FailProviderUnknown, false, ""},
		{"525", 525, said, messages.FailProviderUnknown, false, ""},
		{"302", 302, "", messages.FailConfiguration, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Classify(testRequest(""), ReadFault(c.status, nil, []byte(c.body)))
			if got.Type != c.typ || got.Retryable != c.retry || got.Status != c.status || (c.code != "" && got.Code != c.code) {
				t.Errorf("got %+v", got)
			}
			again := Classify(testRequest(""), ReadFault(c.status, http.Header{"X-Should-Retry": {"false"}}, []byte(c.body)))
			if again.Retryable {
				t.Error("x-should-retry: false was not heard")
			}
		})
	}
}

func TestClassificationInsideAStream(t *testing.T) {
	for _, c := range []struct {
		kind, code string
		typ        string
		retry      bool
		status     int
	}{
		{"rate_limit_error", "", messages.FailRateLimit, true, 0},
		{"", "rate_limit_exceeded", messages.FailRateLimit, true, 0},
		{"overloaded_error", "", messages.FailUnavailable, true, 0},
		{"api_error", "", messages.FailUnavailable, true, 0},
		{"server_error", "", messages.FailUnavailable, true, 0},
		{"InternalServerError", "", messages.FailUnavailable, true, 0},
		{"timeout_error", "", messages.FailTimeout, true, 0},
		{"authentication_error", "", messages.FailAuthentication, false, 0},
		{"permission_error", "", messages.FailAuthorization, false, 0},
		{"not_found_error", "", messages.FailModelUnavailable, false, 0},
		{"invalid_request_error", "", messages.FailInvalidRequest, false, 0},
		{"", "invalid_prompt", messages.FailInvalidRequest, false, 0},
		{"billing_error", "", messages.FailQuota, false, 0},
		{"", "insufficient_quota", messages.FailQuota, false, 0},
		{"", "content_filter", messages.FailContentFilter, false, 0},
		{"something", "", messages.FailProviderUnknown, false, 0},
		{"", "502", messages.FailUnavailable, true, 502},
		{"", "401", messages.FailAuthentication, false, 401},
		{"", "429", messages.FailRateLimit, true, 429},
		{"", "7", messages.FailProviderUnknown, false, 0},
	} {
		got := Classify(testRequest(""), Fault{Type: c.kind, Code: c.code, Message: "x"})
		if got.Type != c.typ || got.Retryable != c.retry || got.Status != c.status {
			t.Errorf("%s %s: %+v", c.kind, c.code, got)
		}
	}
}

func TestWaitHints(t *testing.T) {
	soon := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		name      string
		header    http.Header
		body      string
		low, high time.Duration
	}{
		{"seconds", http.Header{"Retry-After": {"7"}}, "", 7 * time.Second, 7 * time.Second},
		{"a fraction", http.Header{"Retry-After": {"1.5"}}, "", 1500 * time.Millisecond, 1500 * time.Millisecond},
		{"with spaces", http.Header{"Retry-After": {" 7 "}}, "", 7 * time.Second, 7 * time.Second},
		{"zero", http.Header{"Retry-After": {"0"}}, "", 0, 0},
		{"below zero", http.Header{"Retry-After": {"-5"}}, "", 0, 0},
		{"junk", http.Header{"Retry-After": {"abc"}}, "", 0, 0},
		{"empty", http.Header{"Retry-After": {""}}, "", 0, 0},
		{"not a number", http.Header{"Retry-After": {"NaN"}}, "", 0, 0},
		{"endless", http.Header{"Retry-After": {"Inf"}}, "", 0, 0},
		{"absurd", http.Header{"Retry-After": {"1e300"}}, "", maxWait, maxWait},
		{"a date", http.Header{"Retry-After": {soon(10 * time.Second)}}, "", 8 * time.Second, 10 * time.Second},
		{"a date in an hour", http.Header{"Retry-After": {soon(time.Hour)}}, "", 59 * time.Minute, time.Hour},
		{"a date long ago", http.Header{"Retry-After": {soon(-time.Hour)}}, "", 0, 0},
		{"milliseconds", http.Header{"Retry-After-Ms": {"2500"}, "Retry-After": {"1"}}, "", 2500 * time.Millisecond, 2500 * time.Millisecond},
		{"junk in milliseconds", http.Header{"Retry-After-Ms": {"x"}, "Retry-After": {"1"}}, "", time.Second, time.Second},
		{"Gemini", nil, `{"error":{"code":429,"message":"x","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}`, 34500 * time.Millisecond, 34500 * time.Millisecond},
		{"Gemini in a list", nil, `[{"error":{"code":429,"message":"x","details":[{"retryDelay":"2s"}]}}]`, 2 * time.Second, 2 * time.Second},
		{"Codex in seconds", nil, `{"error":{"type":"rate_limit_exceeded","message":"x","resets_in_seconds":120}}`, 2 * time.Minute, 2 * time.Minute},
		{"Codex at a time", nil, `{"error":{"type":"rate_limit_exceeded","message":"x","resets_at":` + json.Number(itoa(time.Now().Unix()+60)).String() + `}}`, 58 * time.Second, 61 * time.Second},
		{"the longer of two", http.Header{"Retry-After": {"9"}}, `{"error":{"message":"x","details":[{"retryDelay":"2s"}]}}`, 9 * time.Second, 9 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Classify(testRequest(""), ReadFault(429, c.header, []byte(c.body))).RetryAfter
			if got < c.low || got > c.high {
				t.Errorf("%v, want %v to %v", got, c.low, c.high)
			}
		})
	}
}

func itoa(n int64) string { raw, _ := json.Marshal(n); return string(raw) }

func TestShapesOfErrorBodies(t *testing.T) {
	for _, c := range []struct{ body, message, code string }{
		{`{"error":{"message":"Bad thing.","type":"t","code":"c"}}`, "bad thing", "c"},
		{`{"error":{"message":"Bad","code":42}}`, "bad", "42"},
		{`{"error":"Bad"}`, "bad", ""},
		{`{"message":"Bad"}`, "bad", ""},
		{`{"detail":"Bad"}`, "bad", ""},
		{`{"detail":[{"loc":["body"],"msg":"Field required","type":"missing"}]}`, "field required", "missing"},
		{`{"errors":[{"message":"Bad","code":"c"}]}`, "bad", "c"},
		{`[{"error":{"message":"Bad","status":"INVALID_ARGUMENT","code":400}}]`, "bad", "400"},
		{`{"type":"error","error":{"type":"not_found_error","message":"model: x"},"request_id":"r"}`, "model: x", "not_found_error"},
		{`{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"Real reason\"}}","provider_name":"x"}}}`, "real reason", "400"},
		{`{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"Real reason"}}}`, "real reason", "400"},
		{`{"error":{"message":"Mine","metadata":{"raw":"<html>"}}}`, "mine", ""},
		{`<html><body>Bad gateway</body></html>`, "request failed with HTTP 400", ""},
		{`upstream connect error`, "request failed with HTTP 400", ""},
		{``, "request failed with HTTP 400", ""},
		{`{"error":{}}`, "request failed with HTTP 400", ""},
		{`{"error":{"message":"Bad","code":"a code with spaces"}}`, "bad", ""},
		{`{"error":` + strings.Repeat(`{"error":`, 100) + `"deep"` + strings.Repeat("}", 101), "request failed with HTTP 400", ""},
	} {
		got := Classify(testRequest(""), ReadFault(400, nil, []byte(c.body)))
		if got.Message != c.message || got.Code != c.code {
			t.Errorf("%.60s: %q, %q", c.body, got.Message, got.Code)
		}
	}
}

func TestSentences(t *testing.T) {
	for in, want := range map[string]string{
		"Invalid key.":                   "invalid key",
		"Sorry, no!":                     "sorry, no",
		"API key not valid":              "API key not valid",
		"OpenAI is down":                 "OpenAI is down",
		"GPT-4 is gone":                  "GPT-4 is gone",
		"I refuse":                       "I refuse",
		"A problem":                      "a problem",
		"Übel":                           "übel",
		"two\r\n lines\t and\u2028 more": "two lines and more",
		"bytes \xff":                     "bytes \uFFFD",
		"...":                            "",
		"":                               "",
		"esc \x1b[31mred":                "esc [31mred",
	} {
		if got := Sentence(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	long := Sentence(strings.Repeat("ü", 100_000))
	if n := utf8.RuneCountInString(long); n > maxMessage+1 || !utf8.ValidString(long) {
		t.Errorf("%d runes", n)
	}
}

func TestHintsSayWhatToDo(t *testing.T) {
	req := testRequest("")
	if f := Classify(req, Fault{Status: 401}); !strings.Contains(f.Hint, "P_KEY or P_TOKEN") || !strings.Contains(f.Hint, "or try: --model offline/guide") {
		t.Errorf("wrong key: %q", f.Hint)
	}
	req.APIKey = ""
	f := Classify(req, Fault{Status: 401})
	if f.Code != messages.CodeMissing || f.Hint != "set P_KEY or P_TOKEN, or try: --model offline/guide" {
		t.Errorf("no key: %+v", f)
	}
	req.Model.Provider.Key = "${MY_KEY}"
	if f := MissingKey(req.Model); f.Hint != "set MY_KEY, or try: --model offline/guide" || f.Type != messages.FailAuthentication || f.Code != messages.CodeMissing {
		t.Errorf("named key: %+v", f)
	}
	req.Model.Provider = messages.ModelProvider{ID: "p"}
	if f := MissingKey(req.Model); f.Hint != "sign in, or try: --model offline/guide" || f.Message != "no key for p" {
		t.Errorf("no variables: %+v", f)
	}
	for _, status := range []int{402, 403, 404, 429} {
		if Classify(testRequest(""), Fault{Status: status}).Hint == "" {
			t.Errorf("no hint for %d", status)
		}
	}
	if f := Classify(testRequest(""), Fault{Status: 429, Header: http.Header{"Retry-After": {"3600"}}}); !strings.Contains(f.Hint, "1h0m0s") {
		t.Errorf("the wait is not stated: %q", f.Hint)
	}
}

func TestRequestIDs(t *testing.T) {
	for name, header := range map[string]http.Header{
		"a": {"X-Request-Id": {"a"}, "Request-Id": {"b"}}, "b": {"Request-Id": {"b"}, "Cf-Ray": {"c"}}, "c": {"Cf-Ray": {"c"}}, "": {"X-Request-Id": {"not an id"}},
	} {
		if got := Classify(testRequest(""), Fault{Status: 500, Header: header}).Request; got != name {
			t.Errorf("%q, want %q", got, name)
		}
	}
}

// Providers echo keys in their errors; nobody may see them there.
func TestKeysAreNotInFailures(t *testing.T) {
	req := testRequest("")
	req.Options.Headers = map[string]string{"Authorization": "Bearer other-secret", "X-Api-Key": "third-secret", "X-Plain": "visible-value"}
	said := "Incorrect API key sk-very-secret, other-secret, third-secret; visible-value. " + strings.Repeat("x", maxMessage) // sk-very-secret
	raw, _ := json.Marshal(map[string]any{"error": map[string]any{"message": said, "code": "sk-very-secret"}})
	f := Classify(req, ReadFault(401, http.Header{"X-Request-Id": {"sk-very-secret"}}, raw))
	f = redact(req, f)
	shown, _ := json.Marshal(f)
	if strings.Contains(string(shown), "secret") {
		t.Errorf("%s", shown)
	}
	if !strings.Contains(f.Message, "visible-value") {
		t.Errorf("too much is hidden: %s", shown)
	}
	// Nor half of one where the message is cut.
	raw, _ = json.Marshal(map[string]any{"error": strings.Repeat("x", maxMessage-5) + "sk-very-secret"})
	if f := Classify(req, ReadFault(401, nil, raw)); strings.Contains(f.Message, "sk-") {
		t.Errorf("%s", f.Message)
	}
}

// The rule: whatever a server sends, the failure is typed, has one line of
// bounded valid text, and no key is in it.
func FuzzFault(f *testing.F) {
	f.Add(401, []byte(`{"error":{"message":"sk-very-secret","details":[{"retryDelay":"1s"}]}}`))
	f.Add(200, []byte(`[{"error":{"code":502,"metadata":{"raw":"{}"}}}]`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		got := redact(testRequest(""), Classify(testRequest(""), ReadFault(status, nil, body)))
		if !strings.HasPrefix(got.Type, "provider-") || got.Message == "" || strings.ContainsAny(got.Message, "\n\r\x1b") ||
			!utf8.ValidString(got.Message) || utf8.RuneCountInString(got.Message) > maxMessage+len("[redacted]") || got.RetryAfter < 0 || got.RetryAfter > maxWait {
			t.Fatalf("%+v", got)
		}
		if strings.Contains(got.Message+got.Code, "sk-very-secret") {
			t.Fatalf("key in %+v", got)
		}
	})
}
