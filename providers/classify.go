package providers

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"codework/messages"
)

const (
	// maxMessage bounds what of a provider's own words is kept, in runes.
	maxMessage = 400
	// maxCode bounds codes and request ids, in runes.
	maxCode = 128
	// maxWait bounds a wait hint, so that arithmetic on it cannot overflow. It
	// is far beyond any wait that is honoured.
	maxWait = 30 * 24 * time.Hour
)

// CodeAborted is the code of the failure of a request whose caller stopped it.
const CodeAborted = "aborted"

// offlineHint is the way out that needs no key.
const offlineHint = "or try: --model offline/guide"

// Fault is what a provider said went wrong, as far as it could be read.
type Fault struct {
	Status  int // HTTP status; 0 when the fault came inside a stream
	Header  http.Header
	Type    string
	Code    string
	Message string // the provider's own words; empty when it gave none
	Reasons string // further ids the provider gave, for the quota rule
	Wait    time.Duration
}

// ReadFault reads the error body of an HTTP answer. It knows the shapes in
// use: {"error":{message,type,code}}, {"error":"…"}, {"message":…},
// {"detail":…}, {"errors":[…]}, and an array around any of them.
func ReadFault(status int, header http.Header, body []byte) Fault {
	f := Fault{Status: status, Header: header}
	f.read(body, 0)
	return f
}

// maxErrorNesting is how deep errors inside errors are followed.
const maxErrorNesting = 4

func (f *Fault) read(body []byte, depth int) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 || depth > maxErrorNesting {
		return
	}
	if body[0] == '[' {
		var list []json.RawMessage
		if json.Unmarshal(body, &list) == nil && len(list) > 0 {
			f.read(list[0], depth+1)
		}
		return
	}
	if body[0] == '"' {
		if f.Message == "" {
			json.Unmarshal(body, &f.Message)
		}
		return
	}
	var o struct {
		Error   json.RawMessage `json:"error"`
		Errors  json.RawMessage `json:"errors"`
		Detail  json.RawMessage `json:"detail"`
		Message json.RawMessage `json:"message"`
		Msg     json.RawMessage `json:"msg"` // elements of a detail array
		Type    json.RawMessage `json:"type"`
		Code    json.RawMessage `json:"code"`
		Status  json.RawMessage `json:"status"` // Google's symbolic status
		Details []struct {
			Reason     string          `json:"reason"`
			RetryDelay string          `json:"retryDelay"` // google.rpc.RetryInfo
			Violations json.RawMessage `json:"violations"` // google.rpc.QuotaFailure
		} `json:"details"`
		ResetsAt json.RawMessage `json:"resets_at"` // epoch seconds
		ResetsIn json.RawMessage `json:"resets_in_seconds"`
		Metadata struct {
			Raw     json.RawMessage `json:"raw"`           // OpenRouter: what its provider said
			Flagged json.RawMessage `json:"flagged_input"` // OpenRouter: what its moderation did not like
		} `json:"metadata"`
	}
	if json.Unmarshal(body, &o) != nil {
		return
	}
	for _, inner := range []json.RawMessage{o.Error, o.Errors, o.Detail} {
		if len(inner) > 0 && string(inner) != "null" {
			f.read(inner, depth+1)
		}
	}
	first := func(dst *string, raw json.RawMessage) {
		if *dst == "" {
			*dst = scalar(raw)
		}
	}
	first(&f.Message, o.Message)
	first(&f.Message, o.Msg)
	first(&f.Code, o.Code)
	first(&f.Type, o.Type)
	if s := scalar(o.Status); s != "" && f.Type == "" {
		f.Type = s
	}
	for _, d := range o.Details {
		f.Reasons += " " + d.Reason + " " + string(d.Violations)
		if w, err := time.ParseDuration(d.RetryDelay); err == nil {
			f.Wait = max(f.Wait, w)
		}
	}
	if s, err := strconv.ParseFloat(scalar(o.ResetsIn), 64); err == nil {
		f.Wait = max(f.Wait, seconds(s))
	} else if s, err := strconv.ParseFloat(scalar(o.ResetsAt), 64); err == nil {
		f.Wait = max(f.Wait, seconds(s-float64(time.Now().Unix())))
	}
	if len(o.Metadata.Flagged) > 0 && f.Type == "" {
		f.Type = "content_filter"
	}
	// OpenRouter's own message is often just "Provider returned error".
	if raw := o.Metadata.Raw; len(raw) > 0 {
		var inner Fault
		if text := scalar(raw); text != "" {
			inner.read([]byte(text), depth+1)
			if inner.Message == "" && text[0] != '{' && text[0] != '<' {
				inner.Message = text
			}
		} else {
			inner.read(raw, depth+1)
		}
		if inner.Message != "" {
			f.Message = inner.Message
		}
		if f.Type == "" {
			f.Type = inner.Type
		}
	}
}

// scalar is a JSON string or number as text, else "".
func scalar(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return ""
	}
	if raw[0] == '"' {
		var s string
		json.Unmarshal(raw, &s)
		return s
	}
	if raw[0] == '-' || (raw[0] >= '0' && raw[0] <= '9') {
		return string(raw)
	}
	return ""
}

// Classify turns a fault into the failure that is recorded and steers the
// retry. Quota and content rules come before the status, because providers
// send them with several.
func Classify(req *messages.Request, f Fault) *messages.Failure {
	// Before anything is cut to length, so that no half of a key is left.
	for _, field := range []*string{&f.Message, &f.Code, &f.Type} {
		*field = hide(req, *field)
	}
	out := &messages.Failure{
		Status:     f.Status,
		Code:       code(f.Code),
		Request:    requestID(f.Header),
		RetryAfter: max(f.Wait, retryAfter(f.Header)),
	}
	if out.Code == "" {
		out.Code = code(f.Type)
	}
	out.RetryAfter = min(out.RetryAfter, maxWait)
	ids := strings.ToLower(f.Code + " " + f.Type)
	reasons := strings.ToLower(f.Reasons)
	said := strings.ToLower(f.Message)

	status := f.Status
	if status == 0 || status == http.StatusOK {
		if n, err := strconv.Atoi(f.Code); err == nil && n >= 300 && n < 600 {
			status = n // OpenRouter and others put the status into a 200 stream
			out.Status = n
		} else {
			out.Status = 0
		}
	}
	out.Message = Sentence(f.Message)
	if out.Message == "" {
		if status > 0 {
			out.Message = "request failed with HTTP " + strconv.Itoa(status)
		} else {
			out.Message = "the provider reported an error without a message"
		}
	}
	switch {
	case status == http.StatusPaymentRequired, quota(ids, reasons), unpaid(said):
		out.Type = messages.FailQuota
		out.Hint = "check the plan and billing of " + providerName(req.Model) + ", " + offlineHint
	case contains(ids, "content_filter", "content_policy", "contentfilter", "safety"),
		strings.Contains(ids, "invalid_prompt") && strings.Contains(said, "flagged"):
		out.Type = messages.FailContentFilter
		out.Hint = "rephrase the request, or try another model"
	case status == 0:
		inStream(req, out, ids, said)
	default:
		byStatus(req, out, status, ids+reasons, said)
	}
	if region(ids, said) {
		out.Hint = providerName(req.Model) + " does not serve where the request comes from; use another provider, or a way out elsewhere (HTTPS_PROXY)"
	}
	if strings.EqualFold(f.Header.Get("x-should-retry"), "false") {
		out.Retryable = false
	}
	if out.Retryable && out.RetryAfter > 0 {
		out.Hint = "the provider asks to wait " + out.RetryAfter.Round(time.Millisecond).String()
	}
	return out
}

// quota tells whether waiting a little would not help: money or a plan's limit
// is used up. Google calls every rate limit a quota in its violations; of those
// only the daily ones count.
func quota(ids, reasons string) bool {
	return contains(ids, "quota", "billing", "credit", "usage_limit_reached", "usage_not_included") ||
		contains(reasons, "perday", "per_day")
}

// unpaid tells the same where a provider says so in words only: Anthropic, xAI,
// Z.ai, DeepSeek.
func unpaid(said string) bool {
	return contains(said, "credit balance is too low", "any credits or licenses", "used all available credits", "insufficient credits", "insufficient balance")
}

// region tells whether the provider refuses the country: OpenAI by a code,
// Gemini and others in words.
func region(ids, said string) bool {
	return contains(ids, "unsupported_country") || contains(said,
		"country, region, or territory not supported", "location is not supported", "not available in your region", "not available in your country", "region is not supported")
}

// wrongKey tells whether an answer other than 401 is about the key: Gemini's and
// xAI's are 400, and Gemini's is 403 when there is none.
func wrongKey(status int, ids, said string) bool {
	return status == 400 && (contains(ids, "invalid_api_key", "api_key_invalid") || contains(said, "incorrect api key", "api key not valid")) ||
		status == 403 && strings.Contains(said, "unregistered callers")
}

// noModel tells whether an answer other than 404 is about the model.
func noModel(ids, said string) bool {
	return contains(ids, "model_not_found", "unknown_model", "model_not_supported", "invalid_model", "model_decommissioned") ||
		strings.Contains(said, "is not a valid model")
}

func byStatus(req *messages.Request, out *messages.Failure, status int, ids, said string) {
	switch {
	case status == 401, wrongKey(status, ids, said):
		authentication(req, out, ids, said)
	case status == 403:
		forbidden(req, out)
	case status == 404, status < 500 && noModel(ids, said):
		modelUnavailable(out, said)
	case status == 408:
		out.Type, out.Retryable = messages.FailTimeout, true
	case status == 409:
		unavailable(out)
	case status == 429:
		rateLimit(out)
	case status >= 400 && status < 500:
		invalidRequest(out, status, ids, said)
	case status == 500, status == 502, status == 503, status == 504, status >= 520 && status <= 524, status == 529:
		unavailable(out)
	case status >= 300 && status < 400:
		out.Type = messages.FailConfiguration
		out.Message = "the provider redirects to another address"
		out.Hint = "set the base URL to where the provider answers itself"
	default:
		out.Type = messages.FailProviderUnknown
	}
}

// inStream classifies an error that came inside an answer of status 200, by
// its type or code.
func inStream(req *messages.Request, out *messages.Failure, ids, said string) {
	switch {
	case contains(ids, "rate_limit", "ratelimit", "too_many_requests", "resource_exhausted", "throttl"):
		rateLimit(out)
	case contains(ids, "overloaded", "api_error", "server_error", "servererror", "unavailable", "internal_error"):
		unavailable(out)
	case contains(ids, "timeout", "deadline"):
		out.Type, out.Retryable = messages.FailTimeout, true
	case contains(ids, "authentication", "invalid_api_key", "unauthorized", "unauthenticated"):
		authentication(req, out, ids, said)
	case contains(ids, "permission", "forbidden"):
		forbidden(req, out)
	case contains(ids, "not_found"):
		modelUnavailable(out, said)
	case contains(ids, "invalid_", "badrequest", "bad_request", "context_length", "request_too_large"):
		invalidRequest(out, http.StatusBadRequest, ids, said)
	default:
		out.Type = messages.FailProviderUnknown
	}
}

func forbidden(req *messages.Request, out *messages.Failure) {
	out.Type = messages.FailAuthorization
	out.Hint = "check that the key of " + providerName(req.Model) + " may use " + req.Model.ID
}

func modelUnavailable(out *messages.Failure, said string) {
	out.Type = messages.FailModelUnavailable
	out.Hint = "check the model id and the base URL, " + offlineHint
	if noTools(said) {
		out.Hint = noToolsHint
	}
}

func unavailable(out *messages.Failure) {
	out.Type, out.Retryable = messages.FailUnavailable, true
	out.Hint = "the provider has a problem of its own; try again later, or use another model"
}

// noTools tells whether a server says that the model calls no tools: Ollama,
// OpenRouter, vLLM.
func noTools(said string) bool {
	return contains(said, "does not support tools", "support tool use", "tool choice requires", "tools are not supported", "does not support function calling")
}

// noToolsHint is for a model that is asked with tools and takes none.
const noToolsHint = "this model calls no tools; use another, or set compat.supportsTools to false in its entry in models[] to go without"

func rateLimit(out *messages.Failure) {
	out.Type, out.Retryable = messages.FailRateLimit, true
	out.Hint = "wait, or use another model"
}

func invalidRequest(out *messages.Failure, status int, ids, said string) {
	out.Type = messages.FailInvalidRequest
	if (status == 400 || status == 413) && overflow(ids, said) {
		out.Code = messages.CodeContextOverflow
		out.Hint = "the conversation is longer than the model can read; start a new session or use a model with a larger window"
	} else if noTools(said) {
		out.Hint = noToolsHint
	}
}

// overflow tells whether a provider says that the prompt is too long. A
// complaint about max_tokens itself is not one.
func overflow(ids, said string) bool {
	return contains(ids, "context_length", "context_window", "max_prompt_tokens") || contains(said,
		"context length", "context window", "context size", "context limit", "maximum context",
		"prompt is too long", "prompt too long", "prompt length", "input is too long", "input too long",
		"too many input tokens", "input token count", "maximum number of tokens", "maximum tokens",
		"exceeded model token limit", "more than max tokens allowed", "reduce the length")
}

func authentication(req *messages.Request, out *messages.Failure, ids, said string) {
	out.Type = messages.FailAuthentication
	vars := keyVariables(req.Model)
	switch {
	case strings.TrimSpace(req.APIKey) == "" && !hasAuthHeader(req):
		missing := MissingKey(req.Model)
		out.Code, out.Hint = missing.Code, missing.Hint
	case contains(ids+" "+said, "expired"):
		out.Code, out.Hint = messages.CodeExpired, "renew the key"
		if login := signIn(req.Model); login != "" {
			out.Hint = login
		}
	default:
		out.Code, out.Hint = messages.CodeInvalid, "check the key"
		if vars != "" {
			out.Hint += " in " + vars
		}
		if login := signIn(req.Model); login != "" {
			out.Hint += ", or " + login
		}
		out.Hint += ", " + offlineHint
	}
}

// MissingKey is the failure of a request for which no credential was found.
func MissingKey(m messages.Model) *messages.Failure {
	f := &messages.Failure{
		Type:    messages.FailAuthentication,
		Code:    messages.CodeMissing,
		Message: "no key for " + providerName(m),
		Hint:    "sign in, " + offlineHint,
	}
	if vars := keyVariables(m); vars != "" {
		f.Hint = "set " + vars + ", " + offlineHint
	}
	return f
}

// signIn is how to sign in to a model's provider; empty where there are only
// keys.
func signIn(m messages.Model) string {
	switch id := m.Provider.ID; id {
	case "openai-codex", "github-copilot":
		return "sign in with: codework auth login --" + id
	}
	return ""
}

// keyVariables names the variables that may hold the provider's key.
func keyVariables(m messages.Model) string {
	names := m.Provider.Env
	if key := m.Provider.Key; strings.HasPrefix(key, "${") && strings.HasSuffix(key, "}") {
		names = []string{key[2 : len(key)-1]}
	}
	return strings.Join(names, " or ")
}

func providerName(m messages.Model) string {
	if m.Provider.Name != "" {
		return m.Provider.Name
	}
	if m.Provider.ID != "" {
		return m.Provider.ID
	}
	return "the provider"
}

func contains(s string, any ...string) bool {
	for _, a := range any {
		if strings.Contains(s, a) {
			return true
		}
	}
	return false
}

// retryAfter reads the wait a provider asks for: retry-after-ms, or Retry-After
// in seconds, with a fraction too, or as a date. Anything else is no hint.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("retry-after-ms")), 64); err == nil && ms > 0 {
		return seconds(ms / 1000)
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		return seconds(s)
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(time.Until(at), 0), maxWait)
	}
	return 0
}

func seconds(s float64) time.Duration {
	if !(s > 0) || math.IsInf(s, 0) { // also NaN, which ParseFloat accepts
		return 0
	}
	if s > maxWait.Seconds() {
		return maxWait
	}
	return time.Duration(math.Ceil(s * float64(time.Second)))
}

func requestID(h http.Header) string {
	for _, name := range []string{"x-request-id", "request-id", "cf-ray"} {
		if v := code(h.Get(name)); v != "" {
			return v
		}
	}
	return ""
}

// code keeps of a provider's code or id what can be one: a single short word.
func code(s string) string {
	s = strings.TrimSpace(s)
	if strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
		return ""
	}
	return bounded(s, maxCode)
}

// Sentence makes one line of a provider's words in the form failures have:
// white space joined, no trailing punctuation, the first word in lower case
// unless it looks like a name or code, and of bounded length.
func Sentence(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.IsSpace(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	s = bounded(s, maxMessage)
	s = strings.TrimRight(s, ".!?,;: ")
	word, _, _ := strings.Cut(s, " ")
	first, size := utf8.DecodeRuneInString(word)
	rest := word[size:]
	if unicode.IsUpper(first) && (rest == "" && word != "I" || rest != "" && plain(rest)) {
		s = string(unicode.ToLower(first)) + s[size:]
	}
	return s
}

// plain tells whether the rest of a word is lower case with at most
// punctuation at its end: "Invalid", "Sorry,", but not "GPT-4" or "OpenAI".
func plain(rest string) bool {
	for _, r := range strings.TrimRight(rest, ".,;:!?)'\"") {
		if !unicode.IsLower(r) && r != '-' && r != '\'' {
			return false
		}
	}
	return true
}

// bounded cuts s to n runes.
func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	count := 0
	for i := range s {
		if count == n {
			return s[:i] + "…"
		}
		count++
	}
	return s
}

// minSecret is the shortest value that is taken for a secret; replacing
// shorter ones would garble text.
const minSecret = 6

// secrets are the values of a request that must never be shown.
func secrets(req *messages.Request) []string {
	var out []string
	add := func(s string) {
		if s = strings.TrimSpace(s); len(s) >= minSecret {
			out = append(out, s)
		}
	}
	add(req.APIKey)
	for _, headers := range []map[string]string{req.Model.Headers, req.Options.Headers} {
		for name, v := range headers {
			if !secretHeader(name) {
				continue
			}
			// "Bearer x" is a secret as x, too.
			if scheme, value, ok := strings.Cut(v, " "); ok && len(scheme) <= len("Bearer") {
				add(value)
			}
			add(v)
		}
	}
	return out
}

func secretHeader(name string) bool {
	return contains(strings.ToLower(name), "auth", "key", "token", "secret", "cookie", "password")
}

func hasAuthHeader(req *messages.Request) bool {
	for _, headers := range []map[string]string{req.Model.Headers, req.Options.Headers} {
		for name, v := range headers {
			if secretHeader(name) && v != "" {
				return true
			}
		}
	}
	return false
}

// redact hides the request's secrets in every word of a failure.
func redact(req *messages.Request, f *messages.Failure) *messages.Failure {
	out := *f
	for _, field := range []*string{&out.Message, &out.Code, &out.Request, &out.Hint} {
		*field = hide(req, *field)
	}
	return &out
}

// hide replaces the request's secrets by value, wherever a provider echoes
// them: a field name says nothing about its content.
func hide(req *messages.Request, s string) string {
	for _, secret := range secrets(req) {
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	return s
}
