package providers

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"codework/messages"
)

// asked is a request to a model of a provider.
func asked(provider, name string, env ...string) *messages.Request {
	return &messages.Request{APIKey: "sk-test-0123456789", Model: messages.Model{
		ID: "m", Provider: messages.ModelProvider{ID: provider, Name: name, Env: env}}}
}

// The bodies are those that the providers document, or are known to send.
func TestWhatProvidersSayBecomesSomethingToDo(t *testing.T) {
	var (
		openai     = asked("openai", "OpenAI", "OPENAI_API_KEY")
		anthropic  = asked("anthropic", "Anthropic", "ANTHROPIC_API_KEY")
		google     = asked("google", "Google Gemini", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY")
		xai        = asked("xai", "xAI", "XAI_API_KEY")
		openrouter = asked("openrouter", "OpenRouter", "OPENROUTER_API_KEY")
		copilot    = asked("github-copilot", "GitHub Copilot", "COPILOT_GITHUB_TOKEN")
		codex      = asked("openai-codex", "OpenAI Codex", "OPENAI_CODEX_API_KEY")
		mistral    = asked("mistral", "Mistral", "MISTRAL_API_KEY")
		deepseek   = asked("deepseek", "DeepSeek", "DEEPSEEK_API_KEY")
		zai        = asked("zai", "Z.ai", "ZAI_API_KEY")
		groq       = asked("groq", "Groq", "GROQ_API_KEY")
		ollama     = asked("ollama", "Ollama")
		llama      = asked("local", "llama.cpp")
	)
	const overflow, invalid, expired = messages.CodeContextOverflow, messages.CodeInvalid, messages.CodeExpired
	for _, c := range []struct {
		what   string
		req    *messages.Request
		status int
		body   string
		typ    string
		code   string // "" is not checked
		hint   string // a part of it
	}{
		// The key.
		{"wrong", openai, 401, `{"error":{"message":"Incorrect API key provided: sk-test-0123456789. You can find your API key at https://platform.openai.com/account/api-keys.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`,
			messages.FailAuthentication, invalid, "OPENAI_API_KEY"},
		{"wrong", anthropic, 401, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"},"request_id":"req_1"}`,
			messages.FailAuthentication, invalid, "ANTHROPIC_API_KEY"},
		{"wrong", google, 400, `[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}]`,
			messages.FailAuthentication, invalid, "GEMINI_API_KEY"},
		{"expired", google, 400, `{"error":{"code":400,"message":"API key expired. Please renew the API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}`,
			messages.FailAuthentication, expired, "renew the key"},
		{"not sent", google, 403, `{"error":{"code":403,"message":"Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.","status":"PERMISSION_DENIED"}}`,
			messages.FailAuthentication, "", "GEMINI_API_KEY"},
		{"wrong", xai, 400, `{"code":"Client specified an invalid argument","error":"Incorrect API key provided: sk***89. You can obtain an API key from https://console.x.ai."}`,
			messages.FailAuthentication, invalid, "XAI_API_KEY"},
		{"wrong", openrouter, 401, `{"error":{"message":"No auth credentials found","code":401}}`, messages.FailAuthentication, invalid, "OPENROUTER_API_KEY"},
		{"wrong", mistral, 401, `{"detail":"Unauthorized"}`, messages.FailAuthentication, invalid, "MISTRAL_API_KEY"},
		{"refused", copilot, 401, "unauthorized: token is invalid\n", messages.FailAuthentication, invalid, "codework auth login --github-copilot"},
		{"expired", codex, 401, `{"detail":{"code":"token_expired","message":"Provided authentication token is expired. Please try signing in again."}}`,
			messages.FailAuthentication, expired, "codework auth login --openai-codex"},
		// Money and plans.
		{"none left", openai, 429, `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`,
			messages.FailQuota, "insufficient_quota", "billing of OpenAI"},
		{"none left", anthropic, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}`,
			messages.FailQuota, "", "billing of Anthropic"},
		{"none left", google, 429, `{"error":{"code":429,"message":"You exceeded your current quota.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaMetric":"x","quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}}`,
			messages.FailQuota, "", "billing of Google Gemini"},
		{"none yet", xai, 403, `{"code":"The caller does not have permission to execute the specified operation","error":"Your newly created team doesn't have any credits or licenses yet. You can purchase those on https://console.x.ai."}`,
			messages.FailQuota, "", "billing of xAI"},
		{"none left", openrouter, 402, `{"error":{"message":"Insufficient credits. Add more using https://openrouter.ai/settings/credits","code":402}}`, messages.FailQuota, "", "billing of OpenRouter"},
		{"none left", deepseek, 402, `{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}`, messages.FailQuota, "", "billing of DeepSeek"},
		{"none left", zai, 429, `{"error":{"code":"1113","message":"Insufficient balance or no resource package. Please recharge."}}`, messages.FailQuota, "", "billing of Z.ai"},
		{"plan", codex, 429, `{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached","plan_type":"plus","resets_in_seconds":3600}}`, messages.FailQuota, "usage_limit_reached", "OpenAI Codex"},
		{"allowance", copilot, 402, `{"error":{"message":"You have exceeded your premium request allowance.","code":"quota_exceeded"}}`, messages.FailQuota, "quota_exceeded", "GitHub Copilot"},
		// The model.
		{"unknown", openai, 404, "{\"error\":{\"message\":\"The model `m` does not exist or you do not have access to it.\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"model_not_found\"}}",
			messages.FailModelUnavailable, "model_not_found", "model id"},
		{"unknown", anthropic, 404, `{"type":"error","error":{"type":"not_found_error","message":"model: m"}}`, messages.FailModelUnavailable, "", "model id"},
		{"unknown", google, 404, `{"error":{"code":404,"message":"models/m is not found for API version v1beta, or is not supported for generateContent.","status":"NOT_FOUND"}}`, messages.FailModelUnavailable, "", "model id"},
		{"unknown", xai, 404, `{"code":"Some requested entity was not found","error":"The model m does not exist or your team does not have access to it."}`, messages.FailModelUnavailable, "", "model id"},
		{"unknown", openrouter, 400, `{"error":{"message":"m is not a valid model ID","code":400},"user_id":"u"}`, messages.FailModelUnavailable, "", "model id"},
		{"unknown", copilot, 400, `{"error":{"message":"The requested model is not supported.","code":"model_not_supported","param":"model","type":"invalid_request_error"}}`, messages.FailModelUnavailable, "model_not_supported", "model id"},
		{"unknown", mistral, 400, `{"object":"error","message":"Invalid model: m","type":"invalid_model","param":null,"code":"1500"}`, messages.FailModelUnavailable, "", "model id"},
		{"gone", groq, 400, "{\"error\":{\"message\":\"The model `m` has been decommissioned and is no longer supported.\",\"type\":\"invalid_request_error\",\"code\":\"model_decommissioned\"}}", messages.FailModelUnavailable, "model_decommissioned", "model id"},
		{"not pulled", ollama, 404, `{"error":{"message":"model \"m\" not found, try pulling it first","type":"api_error","param":null,"code":null}}`, messages.FailModelUnavailable, "", "model id"},
		{"calls no tools", ollama, 400, `{"error":{"message":"registry.ollama.ai/library/m does not support tools","type":"api_error","param":null,"code":null}}`, messages.FailInvalidRequest, "", "compat.supportsTools"},
		{"calls no tools", openrouter, 404, `{"error":{"message":"No endpoints found that support tool use. To learn more about provider routing, visit: https://openrouter.ai/docs/provider-routing","code":404}}`, messages.FailModelUnavailable, "", "compat.supportsTools"},
		// The length.
		{"too long", openai, 400, `{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`,
			messages.FailInvalidRequest, overflow, "larger window"},
		{"too long", anthropic, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 200018 tokens > 200000 maximum"}}`, messages.FailInvalidRequest, overflow, "larger window"},
		{"too long", google, 400, `{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}`, messages.FailInvalidRequest, overflow, "larger window"},
		{"too long", xai, 400, `{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 200000 tokens."}`, messages.FailInvalidRequest, overflow, "larger window"},
		{"too long", openrouter, 400, `{"error":{"message":"This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 tokens.","code":400}}`, messages.FailInvalidRequest, overflow, "larger window"},
		{"too long", copilot, 400, `{"error":{"message":"prompt token count of 130000 exceeds the limit of 128000","code":"model_max_prompt_tokens_exceeded"}}`, messages.FailInvalidRequest, overflow, "larger window"},
		{"too long", llama, 400, `{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}`, messages.FailInvalidRequest, overflow, "larger window"},
		// The content.
		{"filtered", openai, 400, `{"error":{"message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy.","type":"invalid_request_error","param":null,"code":"invalid_prompt"}}`, messages.FailContentFilter, "invalid_prompt", "rephrase"},
		{"filtered", asked("azure", "Azure"), 400, `{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy.","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation"}}}`, messages.FailContentFilter, "content_filter", "rephrase"},
		{"filtered", openrouter, 403, `{"error":{"message":"m requires moderation. Your input was flagged for \"violence\".","code":403,"metadata":{"reasons":["violence"],"flagged_input":"…","provider_name":"p","model_slug":"m"}}}`, messages.FailContentFilter, "", "rephrase"},
		{"not the filter", openai, 400, `{"error":{"message":"Invalid prompt: expected a string.","type":"invalid_request_error","code":"invalid_prompt"}}`, messages.FailInvalidRequest, "invalid_prompt", ""},
		// The country.
		{"region", openai, 403, `{"error":{"code":"unsupported_country_region_territory","message":"Country, region, or territory not supported","param":null,"type":"request_forbidden"}}`, messages.FailAuthorization, "unsupported_country_region_territory", "HTTPS_PROXY"},
		{"region", google, 400, `{"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}`, messages.FailInvalidRequest, "", "HTTPS_PROXY"},
		// The provider itself.
		{"overloaded", anthropic, 529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, messages.FailUnavailable, "", "another model"},
		{"overloaded", google, 503, `{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}`, messages.FailUnavailable, "", "another model"},
		{"not allowed", anthropic, 403, `{"type":"error","error":{"type":"permission_error","message":"Your API key does not have permission to use the specified resource."}}`, messages.FailAuthorization, "", "may use m"},
	} {
		t.Run(c.req.Model.Provider.ID+" "+c.what, func(t *testing.T) {
			f := Classify(c.req, ReadFault(c.status, nil, []byte(c.body)))
			if f.Type != c.typ || c.code != "" && f.Code != c.code || !strings.Contains(f.Hint, c.hint) {
				t.Errorf("%s, code %q, hint %q", f.Type, f.Code, f.Hint)
			}
			if strings.Contains(f.Message+f.Hint, "sk-test") || f.Message == "" {
				t.Errorf("it says %q", f.Message)
			}
			if again := f.Type == messages.FailUnavailable; f.Retryable != again {
				t.Errorf("retryable: %v", f.Retryable)
			}
		})
	}
}

func TestNoKeyAtAllNamesTheVariable(t *testing.T) {
	req := asked("anthropic", "Anthropic", "ANTHROPIC_API_KEY")
	req.APIKey = ""
	f := Classify(req, ReadFault(401, nil, []byte(`{"type":"error","error":{"type":"authentication_error","message":"x-api-key header is required"}}`)))
	if f.Code != messages.CodeMissing || !strings.Contains(f.Hint, "set ANTHROPIC_API_KEY") {
		t.Errorf("%+v", f)
	}
}

// failedThrough is the failure of a request by a proxy.
func failedThrough(t *testing.T, proxy string) *messages.Failure {
	t.Helper()
	at, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{Proxy: http.ProxyURL(at)}
	defer transport.CloseIdleConnections()
	_, err = (&http.Client{Transport: transport}).Get("https://models.example/v1")
	if err == nil {
		t.Fatal("it was answered")
	}
	return ClassifyNetwork("models.example", err)
}

func TestTroubleWithAProxyIsSaidToBeThat(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	if f := failedThrough(t, "http://"+nobody); f.Message != "no connection to the proxy for models.example" || !f.Retryable || !strings.Contains(f.Hint, "HTTPS_PROXY") {
		t.Errorf("nobody there: %+v", f)
	}
	for status, c := range map[int]struct {
		says  string
		again bool
	}{
		407: {"the proxy refuses the connection to models.example: proxy authentication required", false},
		403: {"the proxy refuses the connection to models.example: forbidden", false},
		502: {"the proxy refuses the connection to models.example: bad gateway", true},
	} {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		f := failedThrough(t, proxy.URL)
		proxy.Close()
		if f.Type != messages.FailTransport || f.Message != c.says || f.Retryable != c.again || !strings.Contains(f.Hint, "HTTPS_PROXY") {
			t.Errorf("%d: %+v", status, f)
		}
	}
	if f := ClassifyNetwork("h", &url.Error{Op: "Post", Err: errors.New("something else")}); f.Message != "connection to h failed" {
		t.Errorf("%+v", f)
	}
}

func TestTroubleWithTLSSaysWhatToDo(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of the handshake
	server.StartTLS()
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	_, err := (&http.Client{Transport: transport}).Get(server.URL)
	if err == nil {
		t.Fatal("a strange certificate was taken")
	}
	if f := ClassifyNetwork("h", err); f.Type != messages.FailTransport || f.Retryable || !strings.Contains(f.Hint, "SSL_CERT_FILE") {
		t.Errorf("%+v", f)
	}
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }))
	defer plain.Close()
	_, err = (&http.Client{Transport: transport}).Get("https" + strings.TrimPrefix(plain.URL, "http"))
	if f := ClassifyNetwork("h", err); f.Retryable || !strings.Contains(f.Hint, "http:") {
		t.Errorf("%+v", f)
	}
	if f := ClassifyNetwork("h", &net.OpError{Op: "dial", Err: errors.New("no route to host")}); !f.Retryable || !strings.Contains(f.Hint, "HTTPS_PROXY") {
		t.Errorf("%+v", f)
	}
}
