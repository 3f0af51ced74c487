package chat

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"codework/integration/mockmodel"
	"codework/messages"
	"codework/providers/internal/dialecttest"
)

func with(base string, compat string) *messages.Request {
	req := request(base)
	if compat != "" {
		if err := json.Unmarshal([]byte(compat), &req.Model.Compat); err != nil {
			panic(err)
		}
	}
	return req
}

func assistant(parts ...messages.Part) messages.Message {
	return messages.Message{ID: "a", Role: messages.RoleAssistant, State: messages.EntryCommitted,
		Provider: "p", Protocol: "openai-compatible", Model: "m", Parts: parts}
}

func called(id, text string) messages.Part {
	r := messages.TextResult(text, false)
	return messages.Part{Type: messages.PartToolCall, CallID: id, Name: "f", Arguments: "{}", Call: messages.CallCompleted, Result: &r}
}

func TestFieldsOfTheBody(t *testing.T) {
	temperature := 0.5
	reasoning := func(r *messages.Request) { r.Model.Reasoning, r.Thinking = true, "high" }
	for _, c := range []struct {
		name, base, compat string
		change             func(*messages.Request)
		want               map[string]string // "" means absent
	}{
		{"a plain server", "http://localhost:1", "", nil,
			map[string]string{"model": `"m"`, "stream": "true", "stream_options": `{"include_usage":true}`, "tools": "", "max_tokens": "",
				"max_completion_tokens": "", "store": "", "reasoning_effort": "", "temperature": "", "prompt_cache_key": "", "metadata": ""}},
		{"no usage in streams", "http://localhost:1", `{"supportsUsageInStreaming":false}`, nil, map[string]string{"stream_options": ""}},
		{"a cap", "http://localhost:1", "", func(r *messages.Request) { r.Options.MaxTokens = 7 }, map[string]string{"max_tokens": "7"}},
		{"a cap at OpenAI", "https://api.openai.com/v1", "", func(r *messages.Request) { r.Options.MaxTokens = 7 },
			map[string]string{"max_completion_tokens": "7", "max_tokens": ""}},
		{"the field named", "https://api.openai.com/v1", `{"maxTokensField":"max_tokens"}`, func(r *messages.Request) { r.Options.MaxTokens = 7 },
			map[string]string{"max_tokens": "7"}},
		{"a cap above the maximum", "https://example.com", "", func(r *messages.Request) { r.Options.MaxTokens, r.Model.MaxTokens = 70, 50 },
			map[string]string{"max_tokens": "50"}},
		{"thinking on top of a cap", "https://api.openai.com/v1", "", func(r *messages.Request) { reasoning(r); r.Options.MaxTokens = 1000 },
			map[string]string{"max_completion_tokens": "17384"}},
		{"the model's maximum", "https://example.com", "", func(r *messages.Request) { r.Model.MaxTokens = 50 }, map[string]string{"max_tokens": "50"}},
		{"no maximum where it counts against limits", "https://api.groq.com/openai/v1", "", func(r *messages.Request) { r.Model.MaxTokens = 50 },
			map[string]string{"max_completion_tokens": "", "max_tokens": ""}},
		{"the window leaves less", "https://example.com", "", func(r *messages.Request) { r.Model.MaxTokens, r.Model.ContextWindow = 50000, 10000 },
			map[string]string{"max_tokens": "5903"}},
		{"temperature", "http://localhost:1", "", func(r *messages.Request) { r.Options.Temperature = &temperature }, map[string]string{"temperature": "0.5"}},
		{"temperature refused", "http://localhost:1", `{"supportsTemperature":false}`, func(r *messages.Request) { r.Options.Temperature = &temperature },
			map[string]string{"temperature": ""}},
		{"temperature of OpenAI's reasoning models", "https://api.openai.com/v1", "", func(r *messages.Request) { reasoning(r); r.Options.Temperature = &temperature },
			map[string]string{"temperature": "", "reasoning_effort": `"high"`}},
		{"effort only where it is known", "http://localhost:1", "", reasoning, map[string]string{"reasoning_effort": ""}},
		{"effort by compat", "http://localhost:1", `{"supportsReasoningEffort":true}`, reasoning, map[string]string{"reasoning_effort": `"high"`}},
		{"effort refused by compat", "https://api.openai.com/v1", `{"supportsReasoningEffort":false}`, reasoning, map[string]string{"reasoning_effort": ""}},
		{"effort by the model's word", "https://api.groq.com/openai/v1", "", func(r *messages.Request) {
			reasoning(r)
			word := "default"
			r.Model.ThinkingLevelMap = map[messages.ThinkingLevel]*string{"high": &word}
		}, map[string]string{"reasoning_effort": `"default"`}},
		{"off", "https://api.openai.com/v1", "", func(r *messages.Request) { reasoning(r); r.Thinking = "off" }, map[string]string{"reasoning_effort": ""}},
		{"no reasoning model", "https://api.openai.com/v1", "", func(r *messages.Request) { r.Thinking = "high" }, map[string]string{"reasoning_effort": ""}},
		{"OpenRouter", "https://openrouter.ai/api/v1", "", reasoning, map[string]string{"reasoning": `{"effort":"high"}`, "usage": `{"include":true}`, "reasoning_effort": ""}},
		{"OpenRouter off", "https://openrouter.ai/api/v1", "", nil, map[string]string{"reasoning": "", "usage": `{"include":true}`}},
		{"DeepSeek", "https://api.deepseek.com", "", reasoning, map[string]string{"thinking": `{"type":"enabled"}`, "reasoning_effort": `"high"`}},
		{"DeepSeek off", "https://api.deepseek.com", "", func(r *messages.Request) { r.Model.Reasoning = true }, map[string]string{"thinking": `{"type":"disabled"}`, "reasoning_effort": ""}},
		{"Z.ai", "https://api.z.ai/api/coding/paas/v4", `{"zaiToolStream":true,"supportsReasoningEffort":true}`, func(r *messages.Request) {
			reasoning(r)
			r.Tools = []messages.ToolDefinition{{Name: "f"}}
		}, map[string]string{"thinking": `{"type":"enabled"}`, "reasoning_effort": `"high"`, "tool_stream": "true"}},
		{"Together", "https://api.together.ai/v1", "", reasoning, map[string]string{"reasoning": `{"enabled":true}`, "reasoning_effort": ""}},
		{"Qwen", "https://example.com", `{"thinkingFormat":"qwen"}`, reasoning, map[string]string{"enable_thinking": "true"}},
		{"Baseten", "https://inference.baseten.co/v1", `{"thinkingFormat":"baseten","chatTemplateArgs":{"enable_thinking":{"$var":"thinking.enabled"},"x":1}}`, reasoning,
			map[string]string{"chat_template_args": `{"enable_thinking":true,"x":1}`, "reasoning_effort": ""}},
		{"cache at OpenAI", "https://api.openai.com/v1", "", nil, map[string]string{"prompt_cache_key": `"ses_1"`, "prompt_cache_retention": ""}},
		{"long cache", "https://api.openai.com/v1", "", func(r *messages.Request) { r.Options.CacheRetention = messages.CacheLong },
			map[string]string{"prompt_cache_key": `"ses_1"`, "prompt_cache_retention": `"24h"`}},
		{"short cache", "https://api.openai.com/v1", "", func(r *messages.Request) { r.Options.CacheRetention = messages.CacheShort }, map[string]string{"prompt_cache_retention": `"in_memory"`}},
		{"no cache", "https://api.openai.com/v1", "", func(r *messages.Request) { r.Options.CacheRetention = messages.CacheNone }, map[string]string{"prompt_cache_key": "", "prompt_cache_retention": ""}},
		{"cache elsewhere", "https://example.com", "", func(r *messages.Request) { r.Options.CacheRetention = messages.CacheLong }, map[string]string{"prompt_cache_key": "", "prompt_cache_retention": ""}},
		{"more options", "http://localhost:1", "", func(r *messages.Request) {
			r.Options.Extra = map[string]json.RawMessage{"top_k": json.RawMessage("4"), "stream_options": json.RawMessage("null"),
				"messages": json.RawMessage("[]"), "stream": json.RawMessage("false"), "seed": json.RawMessage(" 1 ")}
		}, map[string]string{"top_k": "4", "stream_options": "null", "stream": "true", "seed": "1"}},
		{"metadata", "http://localhost:1", "", func(r *messages.Request) {
			r.Options.Metadata = map[string]json.RawMessage{"a": json.RawMessage(`"b"`)}
		},
			map[string]string{"metadata": `{"a":"b"}`}},
		{"the provider's own name for the model", "http://localhost:1", "", func(r *messages.Request) { r.Model.API = &messages.ModelAPI{ID: "inner"} },
			map[string]string{"model": `"inner"`}},
		{"a compat of the wrong type counts as unset", "http://localhost:1", `{"maxTokensField":7,"supportsUsageInStreaming":"no"}`, func(r *messages.Request) { r.Options.MaxTokens = 7 },
			map[string]string{"max_tokens": "7", "stream_options": `{"include_usage":true}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := with(c.base, c.compat)
			if c.change != nil {
				c.change(req)
			}
			got := encoded(t, req)
			for field, want := range c.want {
				if string(got.all[field]) != want {
					t.Errorf("%s is %s, want %s", field, got.all[field], want)
				}
			}
			if len(got.Messages) == 0 {
				t.Error("no messages")
			}
		})
	}
}

func TestEveryHostsDefaultsAreRead(t *testing.T) {
	for _, h := range hosts {
		var c compat
		d := json.NewDecoder(strings.NewReader(h.compat))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			t.Errorf("%s: %v", h.host, err)
		}
	}
	if compatOf(request("https://notopenai.com/v1").Model).PromptCacheKey || compatOf(request("https://xapi.openai.com").Model).PromptCacheKey {
		t.Error("another host is taken for OpenAI")
	}
}

func TestHeaders(t *testing.T) {
	s := dialecttest.Serve(t, dialecttest.Stream(dialecttest.Data(frame(`{"content":"a"}`), finish("stop"))))
	req := with(s.URL+"/v1/", `{"sendSessionAffinityHeaders":true}`)
	req.Model.Headers = map[string]string{"X-From": "model", "X-Both": "model"}
	req.Options.Headers = map[string]string{"x-both": "options"}
	dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	r, _ := s.Last(t)
	if r.URL.Path != "/v1/chat/completions" || r.Method != "POST" {
		t.Errorf("%s %s", r.Method, r.URL)
	}
	for name, want := range map[string]string{"Authorization": "Bearer sk-secret-key", "Content-Type": "application/json", "Accept": "text/event-stream",
		"X-From": "model", "X-Both": "options", "Session_id": "ses_1"} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	req.APIKey = ""
	dialecttest.Run(t, Dialect{}, s.Client(t), req).Done(t)
	if r, _ = s.Last(t); len(r.Header["Authorization"]) > 0 {
		t.Errorf("without a key: %q", r.Header["Authorization"])
	}
}

func TestToolsAreSentWithASchema(t *testing.T) {
	req := request("http://localhost:1")
	req.Tools = []messages.ToolDefinition{
		{Name: "f", Description: "says \"f\"", Schema: json.RawMessage(`{ "type": "object", "properties": {"a": {"type": "string"}} }`)},
		{Name: "g"},
	}
	got := encoded(t, req).Tools
	want := []string{`{"type":"function","function":{"name":"f","description":"says \"f\"","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}`,
		`{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}}`}
	if len(got) != 2 || string(got[0]) != want[0] || string(got[1]) != want[1] {
		t.Errorf("%s", got)
	}
}

func TestMessagesInTheServersForm(t *testing.T) {
	image := messages.Part{Type: messages.PartImage, Data: dialecttest.PNG}
	pictured := called("c", "here")
	pictured.Result = &messages.ToolResult{Content: []messages.Part{image}}
	failed := called("c", "it broke")
	failed.Result.IsError = true
	user := func(id string, parts ...messages.Part) messages.Message {
		return messages.Message{ID: id, Role: messages.RoleUser, Parts: parts}
	}
	text := func(s string) messages.Part { return messages.Part{Type: messages.PartText, Text: s} }
	thinking := messages.Part{Type: messages.PartThinking, Text: "hm"}
	for _, c := range []struct {
		name, base, compat string
		messages           []messages.Message
		want               string
	}{
		{"text", "", "", []messages.Message{user("1", text("a"))}, `[{"role":"user","content":"a"}]`},
		{"two user messages", "", "", []messages.Message{user("1", text("a")), user("2", text("b"))}, `[{"role":"user","content":"a\n\nb"}]`},
		{"an image", "", "", []messages.Message{user("1", text("a"), image)},
			`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}}]}]`},
		{"a call", "", "", []messages.Message{user("1", text("a")), assistant(called("c", "done"))},
			`[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"done"}]`},
		{"a call where null is refused", "", `{"requiresEmptyContent":true,"requiresToolResultName":true}`, []messages.Message{user("1", text("a")), assistant(called("c", "done"))},
			`[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","name":"f","content":"done"}]`},
		{"a failed call", "", "", []messages.Message{user("1", text("a")), assistant(failed)},
			`[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"error: it broke"}]`},
		{"an image in a result", "", "", []messages.Message{user("1", text("a")), assistant(pictured), user("2", text("b"))},
			`[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"[the image follows]"},` +
				`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}},{"type":"text","text":"b"}]}]`},
		{"an image in a result where it may be", "", `{"imagesInToolResults":true}`, []messages.Message{user("1", text("a")), assistant(pictured)},
			`[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}}]}]`},
		{"thinking stays here", "", "", []messages.Message{user("1", text("a")), assistant(thinking, text("b")), user("2", text("c"))},
			`[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`},
		{"thinking goes back where it must", "https://api.deepseek.com", "", []messages.Message{user("1", text("a")), assistant(thinking, text("b")), user("2", text("c"))},
			`[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"hm"},{"role":"user","content":"c"}]`},
		{"nine letters", "https://api.mistral.ai/v1", "", []messages.Message{user("1", text("a")), assistant(called("abc123XYZ", "done"))},
			`[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"abc123XYZ","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abc123XYZ","name":"f","content":"done"}]`},
		{"a stopped answer last", "", "", []messages.Message{user("1", text("a")), {ID: "2", Role: messages.RoleAssistant, State: messages.EntryAborted, Parts: []messages.Part{thinking, text("half"), called("c", "x")}}},
			`[{"role":"user","content":"a"},{"role":"assistant","content":"half"},{"role":"user","content":"Continue."}]`},
		{"nothing", "", "", nil, `[{"role":"user","content":"Continue."}]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := c.base
			if base == "" {
				base = "http://localhost:1"
			}
			req := with(base, c.compat)
			req.Messages = c.messages
			if got := string(encoded(t, req).all["messages"]); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	req := request("http://localhost:1")
	req.System = "be"
	if got := string(encoded(t, req).all["messages"]); !strings.HasPrefix(got, `[{"role":"system","content":"be"},{"role":"user"`) {
		t.Error(got)
	}
	req = request("https://api.openai.com/v1")
	req.System, req.Model.Reasoning = "be", true
	if got := string(encoded(t, req).all["messages"]); !strings.HasPrefix(got, `[{"role":"developer","content":"be"},`) {
		t.Error(got)
	}
}

func TestMarksForACacheThatWantsThem(t *testing.T) {
	req := with("https://openrouter.ai/api/v1", `{"cacheControlFormat":"anthropic"}`)
	req.System = "be"
	req.Tools = []messages.ToolDefinition{{Name: "f"}, {Name: "g"}}
	req.Messages = append(req.Messages, assistant(messages.Part{Type: messages.PartText, Text: "b"}),
		messages.Message{ID: "2", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "c"}}}, func() messages.Message {
			m := assistant(called("c", "done"))
			m.ID = "b"
			return m
		}())
	const mark = `"cache_control":{"type":"ephemeral"}`
	want := `[{"role":"system","content":[{"type":"text","text":"be",` + mark + `}]},{"role":"user","content":"hello"},{"role":"assistant","content":"b"},` +
		`{"role":"user","content":[{"type":"text","text":"c",` + mark + `}]},` +
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"done"}]`
	if got := string(encoded(t, req).all["messages"]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := encoded(t, req).Tools; strings.Contains(string(got[0]), mark) || !strings.Contains(string(got[1]), mark) {
		t.Errorf("%s", got)
	}
	req.Options.CacheRetention = messages.CacheLong
	if raw, _ := body(req, compatOf(req.Model)); strings.Count(string(raw), `"ttl":"1h"`) != 3 {
		t.Errorf("%s", raw)
	}
	req.Options.CacheRetention = messages.CacheNone
	if raw, _ := body(req, compatOf(req.Model)); strings.Contains(string(raw), "cache_control") {
		t.Errorf("%s", raw)
	}
}

// strict refuses what the strictest servers of this protocol do.
func strict(raw []byte, idForm *regexp.Regexp) error {
	if !utf8.Valid(raw) {
		return fmt.Errorf("invalid UTF-8")
	}
	var s sent
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	name := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	seen := map[string]bool{}
	var open []string
	last := ""
	for i, m := range s.Messages {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("message %d (%s): %s", i, m.Role, fmt.Sprintf(format, args...))
		}
		var text string
		isText := json.Unmarshal(m.Content, &text) == nil
		if isText && strings.TrimSpace(text) == "" && len(m.ToolCalls) == 0 && i > 0 {
			return fail("blank content")
		}
		if m.Role != "tool" && len(open) > 0 {
			return fail("calls without result: %q", open)
		}
		switch m.Role {
		case "user":
			if last == "user" {
				return fail("follows a user message")
			}
		case "assistant":
			if last == "assistant" || last == "" {
				return fail("follows %q", last)
			}
			for _, c := range m.ToolCalls {
				if seen[c.ID] || !idForm.MatchString(c.ID) || !name.MatchString(c.Function.Name) {
					return fail("call id %q, name %q", c.ID, c.Function.Name)
				}
				var o map[string]any
				if err := json.Unmarshal([]byte(c.Function.Arguments), &o); err != nil {
					return fail("arguments %q: %v", c.Function.Arguments, err)
				}
				seen[c.ID] = true
				open = append(open, c.ID)
			}
		case "tool":
			if len(open) == 0 || open[0] != m.ToolCallID {
				return fail("result of %q, open are %q", m.ToolCallID, open)
			}
			open = open[1:]
		default:
			return fail("unknown role")
		}
		last = m.Role
	}
	if last != "user" && last != "tool" {
		return fmt.Errorf("ends with %q", last)
	}
	if len(open) > 0 {
		return fmt.Errorf("calls without result: %q", open)
	}
	return nil
}

// The rule: whatever is stored, a strict server accepts it; encoding with a
// cache gives the same bytes as without; and the conversation is not changed.
func TestAnyConversationIsAccepted(t *testing.T) {
	server := mockmodel.StartTest(t, mockmodel.Options{})
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		base := rapid.SampledFrom([]string{"http://localhost:1", "https://api.mistral.ai/v1", "https://api.deepseek.com", "https://openrouter.ai/api/v1"}).Draw(rt, "base")
		req := request(base)
		req.Model.Provider.ID = "p"
		if rapid.Bool().Draw(rt, "text only") {
			req.Model.Input = []string{"text"}
		}
		req.Messages = dialecttest.Conversation(rt)
		before, _ := json.Marshal(req.Messages)
		c := compatOf(req.Model)
		fresh, err := body(req, c)
		if err != nil {
			rt.Fatal(err)
		}
		form := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
		if c.ToolIDFormat == "alnum9" {
			form = regexp.MustCompile(`^[a-zA-Z0-9]{9}$`)
		}
		if err := strict(fresh, form); err != nil {
			rt.Fatalf("%v\n%s", err, fresh)
		}
		req.Cache = &messages.EncodeCache{}
		all := req.Messages
		for n := range len(all) + 1 { // as the conversation grew
			req.Messages = all[:n]
			if _, err := body(req, c); err != nil {
				rt.Fatal(err)
			}
		}
		cached, _ := body(req, c)
		if string(cached) != string(fresh) {
			rt.Fatalf("cached\n%s\nfresh\n%s", cached, fresh)
		}
		if after, _ := json.Marshal(req.Messages); string(after) != string(before) {
			rt.Fatalf("changed from\n%s\nto\n%s", before, after)
		}
		req.Model.BaseURL, req.Cache = server.URL()+"/v1", nil
		o := dialecttest.Run(t, Dialect{}, client, req)
		if v := server.TakeViolations(); len(v) > 0 || o.End().Kind != messages.StreamDone {
			rt.Fatalf("mockmodel: %+v %+v", v, o.End().Failure)
		}
	})
}

func TestAConversationWithTheStrictServer(t *testing.T) {
	server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{
		{mockmodel.Reasoning{Text: "let me see", Split: 3}, mockmodel.Text{Text: "Looking.", Split: 4},
			mockmodel.Call{ID: "t1", Name: "bash", Args: `{"command":"ls"}`, Split: 3}, mockmodel.Call{Name: "bash", Args: "", NoIndex: true, NoID: true, Whole: true}},
		{mockmodel.Text{Text: "Two files."}},
	}, RequireKey: "sk-secret-key"})
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	req := request(server.URL() + "/v1")
	req.System = "be brief"
	req.Tools = []messages.ToolDefinition{{Name: "bash", Description: "runs", Schema: json.RawMessage(`{"type":"object"}`)}}
	m := *dialecttest.Run(t, Dialect{}, client, req).Done(t)
	if len(m.Parts) != 4 || m.StopReason != messages.StopToolUse {
		t.Fatalf("%+v", m)
	}
	m.State = messages.EntryCommitted
	for i := range m.Parts[2:] {
		r := messages.TextResult("", false)
		m.Parts[2+i].Result, m.Parts[2+i].Call = &r, messages.CallCompleted
	}
	req.Messages = append(req.Messages, m)
	if got := parts(t, dialecttest.Run(t, Dialect{}, client, req)); got != "text:Two files." {
		t.Error(got)
	}
}

func conversation(n int) []messages.Message {
	var out []messages.Message
	for i := range n {
		if i%2 == 0 {
			out = append(out, messages.Message{ID: fmt.Sprint("u", i), Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: strings.Repeat("question ", 20)}}})
			continue
		}
		c := called(fmt.Sprint("call_", i), strings.Repeat("some output of a command\n", 40))
		m := assistant(messages.Part{Type: messages.PartText, Text: strings.Repeat("answer \"quoted\"\n", 30)}, c)
		m.ID = fmt.Sprint("a", i)
		out = append(out, m)
	}
	return out
}

func benchmarkEncode(b *testing.B, n int) {
	req := request("http://localhost:1")
	req.Messages = conversation(n)
	req.Cache = &messages.EncodeCache{}
	c := compatOf(req.Model)
	if raw, err := body(req, c); err != nil || len(raw) == 0 {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		raw, _ := body(req, c)
		b.SetBytes(int64(len(raw)))
	}
}

func BenchmarkEncode10(b *testing.B)   { benchmarkEncode(b, 10) }
func BenchmarkEncode100(b *testing.B)  { benchmarkEncode(b, 100) }
func BenchmarkEncode1000(b *testing.B) { benchmarkEncode(b, 1000) }

func BenchmarkEncode1000WithoutCache(b *testing.B) {
	req := request("http://localhost:1")
	req.Messages = conversation(1000)
	c := compatOf(req.Model)
	b.ReportAllocs()
	for b.Loop() {
		raw, _ := body(req, c)
		b.SetBytes(int64(len(raw)))
	}
}
