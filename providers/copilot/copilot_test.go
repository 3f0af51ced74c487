package copilot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"codework/messages"
	"codework/providers/internal/dialecttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// github answers without a network.
type github struct {
	models func(ctx context.Context) (status int, body string, err error) // nil: there is no list

	mu    sync.Mutex // guards what follows
	lists int
	got   []*http.Request
	body  string // of the last request
}

const (
	claudeAnswer = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":1}}}\n\n" +
		"data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"hi\"}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		"data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n"
	gptAnswer = "data: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}\n\n" +
		"data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\",\"id\":\"i\",\"role\":\"assistant\",\"content\":[]}}\n\n" +
		"data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"item_id\":\"i\",\"delta\":\"hi\"}\n\n" +
		"data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"message\",\"id\":\"i2\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"hi\"}]}}\n\n" +
		"data: {\"type\":\"response.completed\",\"response\":{\"id\":\"r2\",\"status\":\"completed\"}}\n\n"
	chatAnswer = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
)

func (g *github) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, kind, body string) *http.Response {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
	}
	if r.Method == http.MethodGet {
		g.mu.Lock()
		g.lists++
		g.mu.Unlock()
		if g.models == nil {
			return answer(404, "text/plain", "no"), nil
		}
		status, body, err := g.models(r.Context())
		if err != nil {
			return nil, err
		}
		return answer(status, "application/json", body), nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	g.got, g.body = append(g.got, r), string(body)
	g.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/messages") {
		return answer(200, "text/event-stream", claudeAnswer), nil
	}
	if strings.HasSuffix(r.URL.Path, "/responses") {
		return answer(200, "text/event-stream", gptAnswer), nil
	}
	return answer(200, "text/event-stream", chatAnswer), nil
}

func request(id string, protocol messages.Protocol) *messages.Request {
	return &messages.Request{
		SessionID: "ses_1", MessageID: "msg_1", APIKey: "ghu_secret-token",
		Model: messages.Model{ID: id, Protocol: protocol, BaseURL: "https://copilot.example", Input: []string{"text", "image"}, Reasoning: true,
			Provider: messages.ModelProvider{ID: "github-copilot"}, ContextWindow: 200000, MaxTokens: 8000},
		Thinking: "high",
		Messages: []messages.Message{user("hello")},
	}
}

func user(text string) messages.Message {
	return messages.Message{ID: "u", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: text}}}
}

// ask sends a request and returns its end.
func ask(ctx context.Context, d *Dialect, g *github, req *messages.Request) messages.StreamEvent {
	var last messages.StreamEvent
	d.Stream(ctx, &http.Client{Transport: g}, req, func(ev messages.StreamEvent) { last = ev })
	return last
}

func listed(models string) func(context.Context) (int, string, error) {
	return func(context.Context) (int, string, error) { return 200, models, nil }
}

func TestEachModelIsAskedInItsFormat(t *testing.T) {
	const chat, claude, gpt = messages.ProtocolCompatible, messages.ProtocolAnthropic, messages.ProtocolOpenAI
	for _, c := range []struct {
		id       string
		protocol messages.Protocol
		list     string
		path     string
		wrote    messages.Protocol
	}{
		{"claude-sonnet-4.5", chat, ``, "/v1/messages", claude},
		{"claude-opus-5", claude, ``, "/v1/messages", claude},
		{"claude-3.5-sonnet", chat, ``, "/chat/completions", chat},
		{"gpt-4.1", chat, ``, "/chat/completions", chat},
		{"gemini-3-pro", chat, ``, "/chat/completions", chat},
		{"own-model", claude, ``, "/v1/messages", claude},
		{"gpt-5.6-luna", gpt, ``, "/responses", gpt},
		{"grok-4.5", chat, ``, "/responses", gpt},
		// The account knows better.
		{"claude-opus-5", claude, `["/chat/completions"]`, "/chat/completions", chat},
		{"gpt-5.6-luna", chat, `["/chat/completions","ws:/responses"]`, "/chat/completions", chat},
		{"gpt-4.1", chat, `["/v1/messages","/chat/completions"]`, "/chat/completions", chat},
		{"claude-opus-5", claude, `["/chat/completions","/responses"]`, "/responses", gpt},
		{"gpt-4.1", chat, `["/v1/messages"]`, "/v1/messages", claude},
		{"gpt-4.1", chat, `["/something/new"]`, "/chat/completions", chat},
		{"gpt-4.1", chat, `[]`, "/chat/completions", chat},
	} {
		g := &github{}
		if c.list != "" {
			g.models = listed(fmt.Sprintf(`{"data":[7,{"id":"other","supported_endpoints":["/responses"]},{"id":%q,"supported_endpoints":%s}]}`, c.id, c.list))
		}
		req := request(c.id, c.protocol)
		if c.protocol == claude {
			req.Model.BaseURL += "/v1" // as the catalog has it
		}
		end := ask(t.Context(), New(), g, req)
		if end.Kind != messages.StreamDone || end.Message.Protocol != string(c.wrote) || len(g.got) != 1 || g.got[0].URL.String() != "https://copilot.example"+c.path {
			t.Errorf("%s %s: %+v", c.id, c.list, end)
			for _, r := range g.got {
				t.Logf("asked %s", r.URL)
			}
		}
	}
}

func TestSettingsMayNameTheFormat(t *testing.T) {
	for method, path := range map[string]string{"chat": "/chat/completions", "messages": "/v1/messages", "responses": "/responses", "languageModel": "/v1/messages"} {
		g := &github{models: listed(`{"data":[{"id":"claude-opus-5","supported_endpoints":["/v1/messages"]}]}`)}
		req := request("claude-opus-5", messages.ProtocolAnthropic)
		req.Model.API = &messages.ModelAPI{Method: method}
		if end := ask(t.Context(), New(), g, req); end.Kind != messages.StreamDone || g.got[0].URL.Path != path {
			t.Errorf("%s: %+v", method, end.Failure)
		}
	}
}

func TestRequestsSayWhatCopilotWantsToKnow(t *testing.T) {
	g, d := &github{}, New()
	req := request("claude-sonnet-4.5", messages.ProtocolAnthropic)
	req.Options.Headers = map[string]string{"Editor-Version": "mine/1"}
	ask(t.Context(), d, g, req)
	for name, want := range map[string]string{
		"Authorization": "Bearer ghu_secret-token", "X-Api-Key": "", "User-Agent": "GitHubCopilotChat/0.35.0", "Editor-Plugin-Version": "copilot-chat/0.35.0",
		"Copilot-Integration-Id": "vscode-chat", "X-Github-Api-Version": "2026-08-01", "Openai-Intent": "conversation-edits",
		"X-Interaction-Type": "conversation-agent", "X-Interaction-Id": "ses_1", "X-Initiator": "user", "Copilot-Vision-Request": "",
		"Editor-Version": "mine/1", // what the settings say counts
	} {
		if got := g.got[0].Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if req.Model.Headers != nil || len(req.Options.Headers) != 1 {
		t.Error("the caller's request was changed")
	}
}

func TestResultsOfToolsAndImagesAreSaid(t *testing.T) {
	image := messages.Part{Type: messages.PartImage, MediaType: "image/png", Data: dialecttest.PNG}
	result := messages.TextResult("done", false)
	shown := messages.ToolResult{Content: []messages.Part{image}}
	call := func(r messages.ToolResult) messages.Message {
		return messages.Message{ID: "a", Role: messages.RoleAssistant, State: messages.EntryCommitted, StopReason: messages.StopToolUse,
			Parts: []messages.Part{{Type: messages.PartToolCall, CallID: "c", Name: "t", Arguments: "{}", Call: messages.CallCompleted, Result: &r}}}
	}
	picture := user("look")
	picture.Parts = append(picture.Parts, image)
	for name, c := range map[string]struct {
		talk              []messages.Message
		textOnly          bool
		initiator, vision string
	}{
		"a person":            {[]messages.Message{user("x")}, false, "user", ""},
		"the result of tools": {[]messages.Message{user("x"), call(result)}, false, "agent", ""},
		"a person after them": {[]messages.Message{user("x"), call(result), user("y")}, false, "user", ""},
		"an image":            {[]messages.Message{picture, call(result)}, false, "agent", "true"},
		"an image of a tool":  {[]messages.Message{user("x"), call(shown)}, false, "agent", "true"},
		"one that is dropped": {[]messages.Message{picture}, true, "user", ""},
		"going on":            {nil, false, "agent", ""},
	} {
		g := &github{}
		req := request("gpt-4.1", messages.ProtocolCompatible)
		req.Messages = c.talk
		if c.textOnly {
			req.Model.Input = []string{"text"}
		}
		if end := ask(t.Context(), New(), g, req); end.Kind != messages.StreamDone {
			t.Fatalf("%s: %+v", name, end.Failure)
		}
		h := g.got[0].Header
		if h.Get("X-Initiator") != c.initiator || h.Get("Copilot-Vision-Request") != c.vision {
			t.Errorf("%s: %q, %q", name, h.Get("X-Initiator"), h.Get("Copilot-Vision-Request"))
		}
	}
}

func TestTheLoginSaysWhereCopilotIs(t *testing.T) {
	g := &github{}
	req := request("gpt-4.1", messages.ProtocolCompatible)
	req.Login = &messages.Login{Endpoint: "https://copilot-api.company.ghe.com/"}
	ask(t.Context(), New(), g, req)
	if got := g.got[0].URL.String(); got != "https://copilot-api.company.ghe.com/chat/completions" {
		t.Errorf("asked %s", got)
	}
}

func TestTheChatRouteHasNoControlOfReasoning(t *testing.T) {
	g := &github{}
	req := request("gemini-4-neon", messages.ProtocolCompatible)
	req.Model.Compat = map[string]json.RawMessage{"supportsReasoningEffort": json.RawMessage("true")}
	ask(t.Context(), New(), g, req)
	if strings.Contains(g.body, "reasoning") || strings.Contains(g.body, "max_tokens") || strings.Contains(g.body, "max_completion_tokens") {
		t.Errorf("sent %s", g.body)
	}
}

func TestAdaptiveModelsGetNoBetasOfTheOlderOnes(t *testing.T) {
	for adaptive, want := range map[string]string{"true": "other-beta", "false": "interleaved-thinking-2025-05-14, other-beta,fine-grained-tool-streaming-2025-05-14"} {
		g := &github{}
		req := request("claude-opus-5", messages.ProtocolAnthropic)
		req.Model.Compat = map[string]json.RawMessage{"forceAdaptiveThinking": json.RawMessage(adaptive)}
		req.Options.Headers = map[string]string{"anthropic-beta": "interleaved-thinking-2025-05-14, other-beta,fine-grained-tool-streaming-2025-05-14"}
		req.Model.Headers = map[string]string{"Anthropic-Beta": "fine-grained-tool-streaming-2025-05-14"}
		ask(t.Context(), New(), g, req)
		if got := g.got[0].Header.Get("Anthropic-Beta"); got != want {
			t.Errorf("adaptive %s: %q", adaptive, got)
		}
	}
}

func TestTheListIsAskedForOncePerAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, d := &github{}, New()
		fails := true
		g.models = func(context.Context) (int, string, error) {
			time.Sleep(time.Second)
			if fails {
				return 0, "", errors.New("unreachable")
			}
			return 200, `{"data":[]}`, nil
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { ask(t.Context(), d, g, request("gpt-4.1", messages.ProtocolCompatible)) })
		}
		all.Wait()
		step := func(wait time.Duration, want int) {
			t.Helper()
			time.Sleep(wait)
			ask(t.Context(), d, g, request("gpt-4.1", messages.ProtocolCompatible))
			if g.lists != want {
				t.Errorf("asked %d times, want %d", g.lists, want)
			}
		}
		step(30*time.Second, 1)
		fails = false
		step(time.Minute, 2) // one that could not be had is asked for again
		step(25*time.Minute, 2)
		step(10*time.Minute, 3)
		other := request("gpt-4.1", messages.ProtocolCompatible)
		other.APIKey = "another"
		ask(t.Context(), d, g, other)
		if g.lists != 4 {
			t.Errorf("asked %d times with two accounts", g.lists)
		}
	})
}

func TestARequestWaitsForTheListThreeSecondsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, d := &github{}, New()
		g.models = func(ctx context.Context) (int, string, error) { <-ctx.Done(); return 0, "", ctx.Err() }
		began := time.Now()
		if end := ask(t.Context(), d, g, request("gpt-4.1", messages.ProtocolCompatible)); end.Kind != messages.StreamDone || time.Since(began) != listWait {
			t.Errorf("%+v after %v", end, time.Since(began))
		}
		// Whoever leaves meanwhile spoils it for nobody.
		other := request("gpt-4.1", messages.ProtocolCompatible)
		other.APIKey = "another"
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if end := ask(ctx, d, g, other); end.Kind != messages.StreamError {
			t.Errorf("%+v", end)
		}
		g.models = listed(`{"data":[{"id":"gpt-4.1","supported_endpoints":["/v1/messages"]}]}`)
		if end := ask(t.Context(), d, g, other); end.Kind != messages.StreamDone || end.Message.Protocol != string(messages.ProtocolAnthropic) {
			t.Errorf("%+v", end)
		}
	})
}

// Whatever the list is, it is read without harm, and what it yields names
// models and paths.
func FuzzList(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"a","supported_endpoints":["/responses"]},{"id":"b"},null,7]}`))
	f.Add([]byte(`{"data":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for id, paths := range parseList(body) {
			if id == "" || len(paths) == 0 {
				t.Errorf("%q: %q", id, paths)
			}
		}
	})
}
