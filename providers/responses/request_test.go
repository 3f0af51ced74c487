package responses

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"codework/integration/mockmodel"
	"codework/messages"
	"codework/providers/internal/dialecttest"
)

func encoded(t testing.TB, req *messages.Request, codex bool) map[string]json.RawMessage {
	t.Helper()
	raw, err := body(req, compatOf(req.Model), codex)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatalf("%v in %s", err, raw)
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

func word(s string) *string { return &s }

func assistant(parts ...messages.Part) messages.Message {
	return messages.Message{ID: "a", Role: messages.RoleAssistant, State: messages.EntryCommitted,
		Provider: "p", Protocol: "openai", Model: "m", Parts: parts}
}

func called(id, item, text string) messages.Part {
	r := messages.TextResult(text, false)
	return messages.Part{Type: messages.PartToolCall, CallID: id, ItemID: item, Name: "f", Arguments: `{"a":1}`, Call: messages.CallCompleted, Result: &r}
}

func user(id, text string) messages.Message {
	return messages.Message{ID: id, Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: text}}}
}

func TestFieldsOfTheBody(t *testing.T) {
	temperature := 0.5
	tool := []messages.ToolDefinition{{Name: "f", Description: "d", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`)}}
	const plainTool = `[{"type":"function","name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}},"strict":false}]`
	xai := func(r *messages.Request) { r.Model.Protocol = messages.ProtocolXAI }
	for _, c := range []struct {
		name, compat string
		codex        bool
		change       func(*messages.Request)
		want         map[string]string // "" is a field that is not there
	}{
		{"plain", `{}`, false, nil, map[string]string{"model": `"m"`, "stream": "true", "store": "false", "include": `["reasoning.encrypted_content"]`,
			"reasoning": `{"effort":"high","summary":"auto"}`, "prompt_cache_key": `"ses_1"`, "prompt_cache_retention": "", "instructions": "", "tools": "",
			"max_output_tokens": "", "temperature": "", "tool_choice": "", "parallel_tool_calls": "", "text": "", "service_tier": ""}},
		{"a model that does not reason", `{}`, false, func(r *messages.Request) { r.Model.Reasoning, r.Options.Temperature = false, &temperature },
			map[string]string{"include": "", "reasoning": "", "temperature": "0.5"}},
		{"a system prompt and tools", `{}`, false, func(r *messages.Request) { r.System, r.Tools = "be", tool }, map[string]string{"instructions": `"be"`, "tools": plainTool}},
		{"strict tools", `{"supportsStrictMode":true}`, false, func(r *messages.Request) { r.Tools = tool },
			map[string]string{"tools": `[{"type":"function","name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":["string","null"]}},"required":["a"],"additionalProperties":false},"strict":true}]`}},
		{"tools without a schema", `{"supportsStrictMode":true}`, false, func(r *messages.Request) { r.Tools = []messages.ToolDefinition{{Name: "f"}} },
			map[string]string{"tools": `[{"type":"function","name":"f","parameters":{"type":"object","properties":{},"required":[],"additionalProperties":false},"strict":true}]`}},
		{"off", `{}`, false, func(r *messages.Request) { r.Thinking = "off" }, map[string]string{"reasoning": `{"effort":"none"}`}},
		{"off by the model's word", `{}`, false, func(r *messages.Request) {
			r.Thinking, r.Model.ThinkingLevelMap = "off", map[messages.ThinkingLevel]*string{"off": word("minimal")}
		}, map[string]string{"reasoning": `{"effort":"minimal"}`}},
		{"off where there is none", `{}`, false, func(r *messages.Request) {
			r.Thinking, r.Model.ThinkingLevelMap = "off", map[messages.ThinkingLevel]*string{"off": nil}
		}, map[string]string{"reasoning": ""}},
		{"a level by the model's word", `{}`, false, func(r *messages.Request) {
			r.Model.ThinkingLevelMap = map[messages.ThinkingLevel]*string{"high": word("xhigh")}
		}, map[string]string{"reasoning": `{"effort":"xhigh","summary":"auto"}`}},
		{"no summary", `{"supportsReasoningSummary":false}`, false, nil, map[string]string{"reasoning": `{"effort":"high"}`}},
		{"no effort", `{"supportsReasoningEffort":false}`, false, nil, map[string]string{"reasoning": `{"summary":"auto"}`}},
		{"no encrypted reasoning", `{"supportsEncryptedReasoning":false}`, false, nil, map[string]string{"include": ""}},
		{"a cap has the thinking on top", `{}`, false, func(r *messages.Request) { r.Options.MaxTokens = 1000 }, map[string]string{"max_output_tokens": "17384"}},
		{"a cap too small for the API", `{}`, false, func(r *messages.Request) { r.Model.Reasoning, r.Options.MaxTokens = false, 3 }, map[string]string{"max_output_tokens": "16"}},
		{"no cache", `{}`, false, func(r *messages.Request) { r.Options.CacheRetention = messages.CacheNone }, map[string]string{"prompt_cache_key": "", "prompt_cache_retention": ""}},
		{"a long cache", `{"supportsLongCacheRetention":true}`, false, func(r *messages.Request) { r.Options.CacheRetention = messages.CacheLong },
			map[string]string{"prompt_cache_key": `"ses_1"`, "prompt_cache_retention": `"24h"`}},
		{"a long cache of OpenAI", `{}`, false, func(r *messages.Request) {
			r.Options.CacheRetention, r.Model.BaseURL = messages.CacheLong, "https://api.openai.com/v1"
		}, map[string]string{"prompt_cache_retention": `"24h"`}},
		{"a long session id", `{}`, false, func(r *messages.Request) { r.SessionID = strings.Repeat("s", 70) }, map[string]string{"prompt_cache_key": `"` + strings.Repeat("s", 64) + `"`}},
		{"metadata", `{}`, false, func(r *messages.Request) { r.Options.Metadata = compatible(`{"a":"b"}`) }, map[string]string{"metadata": `{"a":"b"}`}},
		{"options of one's own", `{}`, false, func(r *messages.Request) {
			r.Options.Extra = compatible(`{"service_tier":"flex","reasoning":{"effort":"low"},"input":[],"stream":false}`)
		}, map[string]string{"service_tier": `"flex"`, "reasoning": `{"effort":"low"}`, "stream": "true"}},
		{"xAI", `{}`, false, func(r *messages.Request) {
			xai(r)
			r.Options.Temperature, r.Options.Metadata = &temperature, compatible(`{"a":"b"}`)
		}, map[string]string{"reasoning": `{"effort":"high","summary":"auto"}`, "include": `["reasoning.encrypted_content"]`, "temperature": "0.5", "metadata": "", "store": "false"}},
		{"Codex", `{}`, true, func(r *messages.Request) {
			r.Options.Temperature, r.Options.MaxTokens, r.Options.CacheRetention = &temperature, 1000, messages.CacheLong
			r.Options.Metadata = compatible(`{"a":"b"}`)
			r.Options.Extra = compatible(`{"max_output_tokens":1,"top_p":1,"seed":1,"stop":"x","temperature":1,"service_tier":"priority"}`)
		}, map[string]string{"instructions": `"You are a helpful assistant."`, "tool_choice": `"auto"`, "parallel_tool_calls": "true", "text": `{"verbosity":"low"}`,
			"store": "false", "include": `["reasoning.encrypted_content"]`, "reasoning": `{"effort":"high","summary":"auto"}`, "prompt_cache_key": `"ses_1"`,
			"service_tier": `"priority"`, "max_output_tokens": "", "temperature": "", "top_p": "", "seed": "", "stop": "", "metadata": "", "prompt_cache_retention": ""}},
		{"Codex with instructions", `{}`, true, func(r *messages.Request) { r.System = "be"; r.Tools = tool }, map[string]string{"instructions": `"be"`, "tools": plainTool}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request("http://localhost:1")
			req.Model.Compat = compatible(c.compat)
			if c.change != nil {
				c.change(req)
			}
			got := encoded(t, req, c.codex)
			for field, want := range c.want {
				if string(got[field]) != want {
					t.Errorf("%s is %s\nwant %s", field, got[field], want)
				}
			}
		})
	}
}

func TestItems(t *testing.T) {
	image := messages.Part{Type: messages.PartImage, Data: dialecttest.PNG}
	const pixel = `{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}`
	sealed := messages.Part{Type: messages.PartThinking, Text: "hm \u2028\"", Signature: `{"itemId":"rs_1","reasoningEncryptedContent":"gAAA/+==ü\u0001"}`}
	const item = `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm ` + "\u2028" + `\""}],"encrypted_content":"gAAA/+==ü\u0001"}`
	codexItem := `{"id":"rs_9","type":"reasoning","summary":[],"content":null,"encrypted_content":"x\u00fc\/","new":[1]}`
	text := messages.Part{Type: messages.PartText, Text: "b", Signature: "msg_1"}
	const said = `{"type":"message","role":"assistant","id":"msg_1","content":[{"type":"output_text","text":"b"}]}`
	const hi = `{"role":"user","content":[{"type":"input_text","text":"a"}]}`
	const more = `{"role":"user","content":[{"type":"input_text","text":"c"}]}`
	call := func(call, item string) string {
		if item != "" {
			item = `"id":"` + item + `",`
		}
		return `{"type":"function_call",` + item + `"call_id":"` + call + `","name":"f","arguments":"{\"a\":1}"}`
	}
	output := func(call, text string) string {
		return `{"type":"function_call_output","call_id":"` + call + `","output":` + text + `}`
	}
	failed := called("c2", "", "broke")
	failed.Result.IsError = true
	saysSo := called("c2", "", "Error: broke")
	saysSo.Result.IsError = true
	pictured := called("c3", "fc_3", "")
	pictured.Result = &messages.ToolResult{Content: []messages.Part{{Type: messages.PartText, Text: "see"}, image}}
	phased := text
	phased.Signature = `{"id":"msg_1","phase":"commentary"}`
	other := assistant(sealed, text, called("c", "fc_1", "x"))
	other.Model = "another"
	stopped := assistant(sealed, text, called("c", "fc_1", "x"))
	stopped.State, stopped.Failure = messages.EntryAborted, &messages.Failure{Type: messages.FailProviderUnknown, Code: "aborted"}
	second := assistant(sealed, text, called("d", "fc_1", "x"))
	second.ID = "a2"
	join := func(items ...string) string { return "[" + strings.Join(items, ",") + "]" }
	for _, c := range []struct {
		name, compat string
		messages     []messages.Message
		want         string
	}{
		{"text and images", `{}`, []messages.Message{{ID: "1", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "a"}, image}}},
			`[{"role":"user","content":[{"type":"input_text","text":"a"},` + pixel + `]}]`},
		{"everything as it came", `{}`, []messages.Message{user("1", "a"), assistant(sealed, text, called("c", "fc_1", "x"), called("c2", "fc_2", "y"))},
			join(hi, item, said, call("c", "fc_1"), call("c2", "fc_2"), output("c", `"x"`), output("c2", `"y"`))},
		{"reasoning between calls", `{}`, []messages.Message{user("1", "a"), assistant(called("c", "fc_1", "x"), sealed, called("c2", "fc_2", "y"))},
			join(hi, call("c", "fc_1"), item, call("c2", "fc_2"), output("c", `"x"`), output("c2", `"y"`))},
		{"reasoning that nothing follows", `{}`, []messages.Message{user("1", "a"), assistant(text, sealed), user("2", "c")}, join(hi, said, more)},
		{"a whole reasoning item", `{}`, []messages.Message{user("1", "a"), assistant(messages.Part{Type: messages.PartThinking, Text: "x", Signature: codexItem}, text), user("2", "c")},
			join(hi, codexItem, said, more)},
		{"signatures of others", `{}`, []messages.Message{user("1", "a"), assistant(messages.Part{Type: messages.PartThinking, Text: "x", Signature: "sig=="},
			messages.Part{Type: messages.PartThinking, Text: "x", Signature: `{"itemId":"rs_1"}`}, text), user("2", "c")}, join(hi, said, more)},
		{"a phase", `{}`, []messages.Message{user("1", "a"), assistant(phased), user("2", "c")},
			join(hi, strings.Replace(said, `"msg_1"`, `"msg_1","phase":"commentary"`, 1), more)},
		{"ids of another form are left out", `{}`, []messages.Message{user("1", "a"), assistant(messages.Part{Type: messages.PartText, Text: "b", Signature: "abc"}, called("c", "item", "x"))},
			join(hi, `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]}`, call("c", ""), output("c", `"x"`))},
		{"ids that are too long are left out", `{}`, []messages.Message{user("1", "a"), assistant(called("c", "fc_"+strings.Repeat("x", 62), "x"))},
			join(hi, call("c", ""), output("c", `"x"`))},
		{"both ids in one", `{}`, []messages.Message{user("1", "a"), assistant(called("c|fc_1", "", "x"))}, join(hi, call("c", ""), output("c", `"x"`))},
		{"items that came twice", `{}`, []messages.Message{user("1", "a"), assistant(sealed, text, called("c", "fc_1", "x")), second},
			join(hi, item, said, call("c", "fc_1"), output("c", `"x"`),
				`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]}`, call("d", ""), output("d", `"x"`))},
		{"another model's", `{}`, []messages.Message{user("1", "a"), other},
			join(hi, `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hm `+"\u2028"+`\""}]}`,
				`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]}`, call("c", ""), output("c", `"x"`))},
		{"a stopped answer", `{}`, []messages.Message{user("1", "a"), stopped, user("2", "c")},
			join(hi, `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]}`, more)},
		{"errors say so", `{}`, []messages.Message{user("1", "a"), assistant(failed)}, join(hi, call("c2", ""), output("c2", `"error: broke"`))},
		{"errors say so once", `{}`, []messages.Message{user("1", "a"), assistant(saysSo)}, join(hi, call("c2", ""), output("c2", `"Error: broke"`))},
		{"an image in a result", `{}`, []messages.Message{user("1", "a"), assistant(pictured)},
			join(hi, call("c3", "fc_3"), output("c3", `[{"type":"input_text","text":"see"},`+pixel+`]`))},
		{"an image behind the results", `{"imagesInToolResults":false}`, []messages.Message{user("1", "a"), assistant(pictured, called("c", "", "x"))},
			join(hi, call("c3", "fc_3"), call("c", ""), output("c3", `"see\n[the image follows]"`), output("c", `"x"`), `{"role":"user","content":[`+pixel+`]}`)},
		{"what a user said twice stays two", `{}`, []messages.Message{user("1", "a"), user("2", "c")}, join(hi, more)},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request("http://localhost:1")
			req.Model.Compat = compatible(c.compat)
			req.Messages = c.messages
			if got := string(encoded(t, req, false)["input"]); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestXAIGetsImagesBehindResults(t *testing.T) {
	req := request("http://localhost:1")
	req.Model.Protocol = messages.ProtocolXAI
	if compatOf(req.Model).ImagesInToolResults {
		t.Error("inside")
	}
}

func TestStrictSchemas(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{`{"type":"object","properties":{}}`, `{"type":"object","properties":{},"required":[],"additionalProperties":false}`},
		{`{"$schema":"x","title":"T","type":"object","description":"d","properties":{"z":{"type":"string","title":"Z"},"a":{"type":"number","minimum":1}},"required":["z","a"]}`,
			`{"type":"object","description":"d","properties":{"z":{"type":"string"},"a":{"type":"number","minimum":1}},"required":["z","a"],"additionalProperties":false}`},
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x","y"]}},"additionalProperties":false}`,
			`{"type":"object","properties":{"a":{"type":["string","null"],"enum":["x","y",null]}},"required":["a"],"additionalProperties":false}`},
		{`{"type":"object","properties":{"a":{"type":"array","minItems":1,"items":{"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]}}},"required":["a"]}`,
			`{"type":"object","properties":{"a":{"type":"array","minItems":1,"items":{"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"],"additionalProperties":false}}},"required":["a"],"additionalProperties":false}`},
		{`{"type":"object","properties":{"o":{"type":"object","properties":{"b":{"type":"integer"}}}}}`,
			`{"type":"object","properties":{"o":{"anyOf":[{"type":"object","properties":{"b":{"type":["integer","null"]}},"required":["b"],"additionalProperties":false},{"type":"null"}]}},"required":["o"],"additionalProperties":false}`},
		// These have no such form.
		{`{"type":"object","properties":{"a":{"type":"object","additionalProperties":{"type":"string"}}}}`, ""},
		{`{"type":"object","properties":{},"additionalProperties":true}`, ""},
		{`{"type":"object","properties":{"a":{}}}`, ""},
		{`{"type":"object","properties":{"a":true}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array"}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","default":"x"}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":["string","null"]}}}`, ""},
		{`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`, ""},
		{`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"}]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","enum":"x"}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":"a"}`, ""},
		{`{"type":"object"}`, ""},
		{`[]`, ""},
	} {
		if got := string(strictSchema(json.RawMessage(c.schema))); got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.schema, got, c.want)
		}
	}
	deep := `{"type":"string"}`
	for range maxStrictDepth {
		deep = `{"type":"object","properties":{"a":` + deep + `},"required":["a"]}`
	}
	if strictSchema(json.RawMessage(deep)) == nil {
		t.Error("a schema of the allowed depth has no strict form")
	}
	if strictSchema(json.RawMessage(`{"type":"object","properties":{"a":`+deep+`}}`)) != nil {
		t.Error("a schema that is too deep has a strict form")
	}
}

// The rule: whatever is stored, a strict provider accepts it; encoding with a
// cache gives the same bytes as without; and the conversation is not changed.
func TestAnyConversationIsAccepted(t *testing.T) {
	server := mockmodel.StartTest(t, mockmodel.Options{})
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		codex := rapid.Bool().Draw(rt, "codex")
		req := request("http://localhost:1")
		req.System = rapid.SampledFrom([]string{"", " ", "be"}).Draw(rt, "system")
		req.Tools = []messages.ToolDefinition{{Name: "f"}, {Name: "g", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`)}}
		req.Thinking = rapid.SampledFrom([]messages.ThinkingLevel{"off", "low", "high"}).Draw(rt, "level")
		req.Options.CacheRetention = rapid.SampledFrom([]messages.CacheRetention{"", "none", "long"}).Draw(rt, "cache")
		req.Model.Compat = map[string]json.RawMessage{}
		for _, name := range []string{"supportsStrictMode", "imagesInToolResults"} {
			req.Model.Compat[name] = json.RawMessage(rapid.SampledFrom([]string{"true", "false"}).Draw(rt, name))
		}
		if rapid.Bool().Draw(rt, "text only") {
			req.Model.Input = []string{"text"}
		}
		req.Login = &messages.Login{AccountID: "account"}
		req.Messages = dialecttest.Conversation(rt)
		before, _ := json.Marshal(req.Messages)
		c := compatOf(req.Model)
		fresh, err := body(req, c, codex)
		if err != nil {
			rt.Fatal(err)
		}
		req.Cache = &messages.EncodeCache{}
		all := req.Messages
		for n := range len(all) + 1 { // as the conversation grew
			req.Messages = all[:n]
			if _, err := body(req, c, codex); err != nil {
				rt.Fatal(err)
			}
		}
		cached, _ := body(req, c, codex)
		if string(cached) != string(fresh) {
			rt.Fatalf("cached\n%s\nfresh\n%s", cached, fresh)
		}
		if after, _ := json.Marshal(req.Messages); string(after) != string(before) {
			rt.Fatalf("changed from\n%s\nto\n%s", before, after)
		}
		// The server knows only what it issued, so it gets a model that wrote
		// none of this.
		req.Model.BaseURL, req.Model.ID = server.URL(), "new"
		o := dialecttest.Run(t, Dialect{Codex: codex}, client, req)
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
		m := assistant(messages.Part{Type: messages.PartThinking, Text: "hm", Signature: fmt.Sprintf(`{"itemId":"rs_%d","reasoningEncryptedContent":%q}`, i, strings.Repeat("gAAA", 200))},
			messages.Part{Type: messages.PartText, Text: strings.Repeat("answer \"quoted\"\n", 30), Signature: fmt.Sprint("msg_", i)},
			called(fmt.Sprint("call_", i), fmt.Sprint("fc_", i), strings.Repeat("some output of a command\n", 40)))
		m.ID = fmt.Sprint("a", i)
		out = append(out, m)
	}
	return out
}

// What the request of the next turn costs when everything before is known.
func benchmarkEncode(b *testing.B, n int) {
	req := request("http://localhost:1")
	req.Messages = conversation(n)
	req.Cache = &messages.EncodeCache{}
	c := compatOf(req.Model)
	if raw, err := body(req, c, false); err != nil || len(raw) == 0 {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		raw, _ := body(req, c, false)
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
		raw, _ := body(req, c, false)
		b.SetBytes(int64(len(raw)))
	}
}
