package anthropic

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

func encoded(t testing.TB, req *messages.Request) map[string]json.RawMessage {
	t.Helper()
	r, err := encodeRequest(req)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(r.body, &all); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	return all
}

func compatible(s string) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		panic(err)
	}
	return m
}

func assistant(parts ...messages.Part) messages.Message {
	return messages.Message{ID: "a", Role: messages.RoleAssistant, State: messages.EntryCommitted,
		Provider: "p", Protocol: "anthropic", Model: "m", Parts: parts}
}

func called(id, text string) messages.Part {
	r := messages.TextResult(text, false)
	return messages.Part{Type: messages.PartToolCall, CallID: id, Name: "f", Arguments: `{"a":1}`, Call: messages.CallCompleted, Result: &r}
}

func user(id, text string) messages.Message {
	return messages.Message{ID: id, Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: text}}}
}

func TestFieldsOfTheBody(t *testing.T) {
	temperature := 0.5
	for _, c := range []struct {
		name, compat string
		level        messages.ThinkingLevel // "" is a model that does not reason
		change       func(*messages.Request)
		want         map[string]string
	}{
		{"plain", `{}`, "", nil, map[string]string{"max_tokens": "64000", "thinking": "", "tools": "", "system": "", "temperature": "", "stream": "true", "model": `"m"`}},
		{"a cap", `{}`, "", func(r *messages.Request) { r.Options.MaxTokens = 7 }, map[string]string{"max_tokens": "7"}},
		{"nothing known", `{}`, "", func(r *messages.Request) { r.Model.MaxTokens, r.Model.ContextWindow = 0, 0 }, map[string]string{"max_tokens": "4096"}},
		{"adaptive", `{"forceAdaptiveThinking":true}`, "high", nil, map[string]string{"thinking": `{"display":"summarized","type":"adaptive"}`, "output_config": `{"effort":"high"}`, "max_tokens": "64000"}},
		{"adaptive with a cap", `{"forceAdaptiveThinking":true}`, "low", func(r *messages.Request) { r.Options.MaxTokens = 1000 }, map[string]string{"max_tokens": "3048"}},
		{"adaptive minimal", `{"forceAdaptiveThinking":true}`, "minimal", nil, map[string]string{"output_config": `{"effort":"low"}`}},
		{"adaptive by the model's word", `{"forceAdaptiveThinking":true}`, "high", func(r *messages.Request) {
			w := "max"
			r.Model.ThinkingLevelMap = map[messages.ThinkingLevel]*string{"high": &w}
		}, map[string]string{"output_config": `{"effort":"max"}`}},
		{"adaptive off", `{"forceAdaptiveThinking":true}`, "off", nil, map[string]string{"thinking": `{"type":"disabled"}`, "output_config": ""}},
		{"budget", `{}`, "high", nil, map[string]string{"thinking": `{"budget_tokens":16384,"type":"enabled"}`, "max_tokens": "64000", "output_config": ""}},
		{"budget on top of the cap", `{}`, "low", func(r *messages.Request) { r.Options.MaxTokens = 1000 }, map[string]string{"thinking": `{"budget_tokens":2024,"type":"enabled"}`, "max_tokens": "3048"}},
		{"named budget", `{}`, "low", func(r *messages.Request) {
			r.Options.ThinkingBudgets = map[messages.ThinkingLevel]int64{"low": 3000}
		}, map[string]string{"thinking": `{"budget_tokens":3000,"type":"enabled"}`}},
		{"no room for a budget", `{}`, "high", func(r *messages.Request) { r.Model.MaxTokens = 2000 }, map[string]string{"thinking": `{"type":"disabled"}`, "max_tokens": "2000"}},
		{"a budget below the least", `{}`, "low", func(r *messages.Request) {
			r.Options.ThinkingBudgets = map[messages.ThinkingLevel]int64{"low": 500}
		}, map[string]string{"thinking": `{"type":"disabled"}`}},
		{"off", `{}`, "off", nil, map[string]string{"thinking": `{"type":"disabled"}`}},
		{"calls that were made without thinking", `{}`, "high", func(r *messages.Request) {
			r.Messages = append(r.Messages, assistant(called("c", "x")))
		}, map[string]string{"thinking": `{"type":"disabled"}`}},
		{"the same for an adaptive model", `{"forceAdaptiveThinking":true}`, "high", func(r *messages.Request) {
			r.Messages = append(r.Messages, assistant(called("c", "x")))
		}, map[string]string{"thinking": `{"display":"summarized","type":"adaptive"}`}},
		{"temperature", `{}`, "", func(r *messages.Request) { r.Options.Temperature = &temperature }, map[string]string{"temperature": "0.5"}},
		{"temperature when thinking", `{}`, "high", func(r *messages.Request) { r.Options.Temperature = &temperature }, map[string]string{"temperature": ""}},
		{"temperature refused", `{"supportsTemperature":false}`, "", func(r *messages.Request) { r.Options.Temperature = &temperature }, map[string]string{"temperature": ""}},
		{"metadata and more", `{}`, "", func(r *messages.Request) {
			r.Options.Metadata = map[string]json.RawMessage{"user_id": json.RawMessage(`"u"`)}
			r.Options.Extra = map[string]json.RawMessage{"top_k": json.RawMessage("5"), "messages": json.RawMessage("[]")}
		}, map[string]string{"metadata": `{"user_id":"u"}`, "top_k": "5"}},
		{"system and tools are marked", `{}`, "", func(r *messages.Request) {
			r.System = "be"
			r.Tools = []messages.ToolDefinition{{Name: "f"}, {Name: "g", Description: "d"}}
		}, map[string]string{"system": `[{"type":"text","text":"be","cache_control":{"type":"ephemeral"}}]`,
			"tools": `[{"name":"f","input_schema":{"type":"object","properties":{}}},{"name":"g","description":"d","input_schema":{"type":"object","properties":{}},"cache_control":{"type":"ephemeral"}}]`}},
		{"long cache", `{}`, "", func(r *messages.Request) { r.System, r.Options.CacheRetention = "be", messages.CacheLong },
			map[string]string{"system": `[{"type":"text","text":"be","cache_control":{"type":"ephemeral","ttl":"1h"}}]`,
				"messages": `[{"role":"user","content":[{"type":"text","text":"hello","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]`}},
		{"long cache where there is none", `{"supportsLongCacheRetention":false}`, "", func(r *messages.Request) { r.System, r.Options.CacheRetention = "be", messages.CacheLong },
			map[string]string{"system": `[{"type":"text","text":"be","cache_control":{"type":"ephemeral"}}]`}},
		{"no cache", `{}`, "", func(r *messages.Request) {
			r.System, r.Options.CacheRetention, r.Tools = "be", messages.CacheNone, []messages.ToolDefinition{{Name: "f"}}
		}, map[string]string{"system": `[{"type":"text","text":"be"}]`, "tools": `[{"name":"f","input_schema":{"type":"object","properties":{}}}]`,
			"messages": `[{"role":"user","content":[{"type":"text","text":"hello"}]}]`}},
		{"no mark on tools", `{"supportsCacheControlOnTools":false}`, "", func(r *messages.Request) { r.Tools = []messages.ToolDefinition{{Name: "f"}} },
			map[string]string{"tools": `[{"name":"f","input_schema":{"type":"object","properties":{}}}]`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request("http://localhost:1")
			req.Model.Compat = compatible(c.compat)
			req.Model.Reasoning, req.Thinking = c.level != "", c.level
			if c.change != nil {
				c.change(req)
			}
			got := encoded(t, req)
			for field, want := range c.want {
				if string(got[field]) != want {
					t.Errorf("%s is %s\nwant %s", field, got[field], want)
				}
			}
		})
	}
}

func TestMessages(t *testing.T) {
	image := messages.Part{Type: messages.PartImage, Data: dialecttest.PNG}
	thought := messages.Part{Type: messages.PartThinking, Text: "hm \u2028\"", Signature: "sig=="}
	redacted := messages.Part{Type: messages.PartThinking, Redacted: true, Signature: "AAA="}
	text := messages.Part{Type: messages.PartText, Text: "b"}
	failed := called("c2", "broke")
	failed.Result.IsError = true
	pictured := called("c3", "")
	pictured.Result = &messages.ToolResult{Content: []messages.Part{image}}
	open := messages.Part{Type: messages.PartToolCall, CallID: "c4", Name: "f", Arguments: `{"a`, Call: messages.CallRunning}
	other := assistant(thought, redacted, text)
	other.Model = "another"
	unsigned := messages.Part{Type: messages.PartThinking, Text: "hm"}
	const use = `{"type":"tool_use","id":"c","name":"f","input":{"a":1}}`
	const done = `{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"x"}]}`
	for _, c := range []struct {
		name, compat string
		messages     []messages.Message
		want         string
	}{
		{"results before other content", `{}`, []messages.Message{user("1", "a"), assistant(called("c", "x"), failed), user("2", "b"), user("3", "c")},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[` + use + `,{"type":"tool_use","id":"c2","name":"f","input":{"a":1}}]},` +
				`{"role":"user","content":[` + done + `,{"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"broke"}],"is_error":true},{"type":"text","text":"b"},{"type":"text","text":"c"}]}]`},
		{"thinking as it came", `{}`, []messages.Message{user("1", "a"), assistant(thought, redacted, text), user("2", "c")},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"hm ` + "\u2028" + `\"","signature":"sig=="},{"type":"redacted_thinking","data":"AAA="},{"type":"text","text":"b"}]},{"role":"user","content":[{"type":"text","text":"c"}]}]`},
		{"thinking of another model", `{}`, []messages.Message{user("1", "a"), other, user("2", "c")},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"hm ` + "\u2028" + `\""},{"type":"text","text":"b"}]},{"role":"user","content":[{"type":"text","text":"c"}]}]`},
		{"unsigned thinking", `{}`, []messages.Message{user("1", "a"), assistant(unsigned, text), user("2", "c")},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"b"}]},{"role":"user","content":[{"type":"text","text":"c"}]}]`},
		{"unsigned thinking where it may be", `{"allowEmptySignature":true}`, []messages.Message{user("1", "a"), assistant(unsigned, text), user("2", "c")},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"b"}]},{"role":"user","content":[{"type":"text","text":"c"}]}]`},
		{"an image in a result", `{}`, []messages.Message{user("1", "a"), assistant(pictured)},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"tool_use","id":"c3","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c3","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgoAAAANSUhEUg=="}}]}]}]`},
		{"a call without a result", `{}`, []messages.Message{user("1", "a"), assistant(open)},
			`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"tool_use","id":"c4","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c4","content":[{"type":"text","text":"no result"}],"is_error":true}]}]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request("http://localhost:1")
			req.Model.Compat = compatible(c.compat)
			req.Options.CacheRetention = messages.CacheNone
			req.Messages = c.messages
			if got := string(encoded(t, req)["messages"]); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// strict refuses what the API does.
func strict(raw []byte, provided func(string) bool) error {
	if !utf8.Valid(raw) {
		return fmt.Errorf("invalid UTF-8")
	}
	type block struct {
		Type, Text, ID, Name, Thinking, Signature, Data string
		Input                                           map[string]any
		ToolUseID                                       string          `json:"tool_use_id"`
		Content                                         []block         `json:"content"`
		IsError                                         bool            `json:"is_error"`
		Cache                                           json.RawMessage `json:"cache_control"`
	}
	var s struct {
		Messages []struct {
			Role    string
			Content []block
		}
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	safe := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	seen := map[string]bool{}
	var open []string
	for i, m := range s.Messages {
		if want := []string{"user", "assistant"}[i%2]; m.Role != want {
			return fmt.Errorf("message %d is of %s", i, m.Role)
		}
		if len(m.Content) == 0 {
			return fmt.Errorf("message %d is empty", i)
		}
		other, calls := false, strings.Contains(fmt.Sprint(m.Content), "tool_use")
		for j, b := range m.Content {
			fail := func(what string) error { return fmt.Errorf("message %d block %d: %s: %+v", i, j, what, b) }
			if b.Type != "tool_result" && m.Role == "user" && len(open) > 0 {
				return fail("results are missing")
			}
			switch m.Role + " " + b.Type {
			case "user text", "assistant text":
				if strings.TrimSpace(b.Text) == "" {
					return fail("blank text")
				}
			case "user image":
			case "user tool_result":
				if len(open) == 0 || open[0] != b.ToolUseID || len(b.Content) == 0 {
					return fail("stray or empty result")
				}
				for _, c := range b.Content {
					if c.Type == "text" && strings.TrimSpace(c.Text) == "" || c.Type != "text" && b.IsError {
						return fail("content of a result")
					}
				}
				open = open[1:]
			case "assistant tool_use":
				if !safe.MatchString(b.ID) || !safe.MatchString(b.Name) || seen[b.ID] || b.Input == nil {
					return fail("call")
				}
				seen[b.ID] = true
				open = append(open, b.ID)
			case "assistant thinking":
				if other && calls || !provided(b.Signature) || j == len(m.Content)-1 {
					return fail("thinking")
				}
			case "assistant redacted_thinking":
				if other && calls || !provided(b.Data) || j == len(m.Content)-1 {
					return fail("redacted thinking")
				}
			default:
				return fail("kind of block")
			}
			other = other || !strings.Contains(b.Type, "thinking")
		}
	}
	if len(open) > 0 || len(s.Messages)%2 == 0 {
		return fmt.Errorf("ends with the assistant or without results: %q", open)
	}
	if n := strings.Count(string(raw), `"cache_control":{"type":"ephemeral"`); n > 4 {
		return fmt.Errorf("%d marks", n)
	}
	return nil
}

// The rule: whatever is stored, a strict provider accepts it; encoding with a
// cache gives the same bytes as without; and the conversation is not changed.
func TestAnyConversationIsAccepted(t *testing.T) {
	server := mockmodel.StartTest(t, mockmodel.Options{})
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		req := request("http://localhost:1")
		req.System = rapid.SampledFrom([]string{"", "be"}).Draw(rt, "system")
		req.Tools = []messages.ToolDefinition{{Name: "f"}}
		req.Model.Reasoning = true
		req.Thinking = rapid.SampledFrom([]messages.ThinkingLevel{"off", "low", "high"}).Draw(rt, "level")
		req.Options.CacheRetention = rapid.SampledFrom([]messages.CacheRetention{"", "none", "long"}).Draw(rt, "cache")
		req.Model.Compat = map[string]json.RawMessage{"forceAdaptiveThinking": json.RawMessage(rapid.SampledFrom([]string{"true", "false"}).Draw(rt, "adaptive"))}
		if rapid.Bool().Draw(rt, "text only") {
			req.Model.Input = []string{"text"}
		}
		req.Messages = dialecttest.Conversation(rt)
		before, _ := json.Marshal(req.Messages)
		fresh, err := encodeRequest(req)
		if err != nil {
			rt.Fatal(err)
		}
		provided := func(s string) bool {
			for _, m := range req.Messages {
				for _, p := range m.Parts {
					if m.Model == "m" && m.Provider == "p" && m.Protocol == "anthropic" && p.Signature == s && s != "" {
						return true
					}
				}
			}
			return false
		}
		if err := strict(fresh.body, provided); err != nil {
			rt.Fatalf("%v\n%s", err, fresh.body)
		}
		req.Cache = &messages.EncodeCache{}
		all := req.Messages
		for n := range len(all) + 1 { // as the conversation grew
			req.Messages = all[:n]
			if _, err := encodeRequest(req); err != nil {
				rt.Fatal(err)
			}
		}
		cached, _ := encodeRequest(req)
		if string(cached.body) != string(fresh.body) {
			rt.Fatalf("cached\n%s\nfresh\n%s", cached.body, fresh.body)
		}
		if after, _ := json.Marshal(req.Messages); string(after) != string(before) {
			rt.Fatalf("changed from\n%s\nto\n%s", before, after)
		}
		// The server knows only signatures of its own, so it gets a model that
		// wrote none of this.
		req.Model.BaseURL, req.Model.ID = server.URL(), "new"
		o := dialecttest.Run(t, Dialect{}, client, req)
		if v := server.TakeViolations(); len(v) > 0 || o.End().Kind != messages.StreamDone {
			rt.Fatalf("mockmodel: %+v %+v", v, o.End().Failure)
		}
	})
}

func conversation(n int) []messages.Message {
	var out []messages.Message
	for i := range n {
		if i%2 == 0 {
			out = append(out, user(fmt.Sprint("u", i), strings.Repeat("question ", 20)))
			continue
		}
		m := assistant(messages.Part{Type: messages.PartThinking, Text: "hm", Signature: "sig=="},
			messages.Part{Type: messages.PartText, Text: strings.Repeat("answer \"quoted\"\n", 30)},
			called(fmt.Sprint("call_", i), strings.Repeat("some output of a command\n", 40)))
		m.ID = fmt.Sprint("a", i)
		out = append(out, m)
	}
	return out
}

func benchmarkEncode(b *testing.B, n int) {
	req := request("http://localhost:1")
	req.Messages = conversation(n)
	req.Cache = &messages.EncodeCache{}
	if r, err := encodeRequest(req); err != nil || len(r.body) == 0 {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, _ := encodeRequest(req)
		b.SetBytes(int64(len(r.body)))
	}
}

func BenchmarkEncode10(b *testing.B)   { benchmarkEncode(b, 10) }
func BenchmarkEncode100(b *testing.B)  { benchmarkEncode(b, 100) }
func BenchmarkEncode1000(b *testing.B) { benchmarkEncode(b, 1000) }

func BenchmarkEncode1000WithoutCache(b *testing.B) {
	req := request("http://localhost:1")
	req.Messages = conversation(1000)
	b.ReportAllocs()
	for b.Loop() {
		r, _ := encodeRequest(req)
		b.SetBytes(int64(len(r.body)))
	}
}
