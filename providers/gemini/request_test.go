package gemini

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
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
	raw, err := encodeRequest(req)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return all
}

func assistant(parts ...messages.Part) messages.Message {
	return messages.Message{ID: "a", Role: messages.RoleAssistant, State: messages.EntryCommitted,
		Provider: "p", Protocol: "google", Model: "m", Parts: parts}
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
	word := func(level messages.ThinkingLevel, w string) func(*messages.Request) {
		return func(r *messages.Request) {
			r.Model.ThinkingLevelMap = map[messages.ThinkingLevel]*string{level: &w}
		}
	}
	const max = `"maxOutputTokens":65536`
	for _, c := range []struct {
		name, model string
		level       messages.ThinkingLevel // "" is a model that does not reason
		change      func(*messages.Request)
		field, want string
	}{
		{"plain", "m", "", nil, "generationConfig", `{` + max + `}`},
		{"nothing known", "m", "", func(r *messages.Request) { r.Model.MaxTokens, r.Model.ContextWindow = 0, 0 }, "generationConfig", ``},
		{"a cap", "m", "", func(r *messages.Request) { r.Options.MaxTokens = 7 }, "generationConfig", `{"maxOutputTokens":7}`},
		{"no system", "m", "", nil, "systemInstruction", ``},
		{"a system prompt", "m", "", func(r *messages.Request) { r.System = "be" }, "systemInstruction", `{"parts":[{"text":"be"}]}`},
		{"no tools", "m", "", nil, "tools", ``},
		{"tools", "m", "", func(r *messages.Request) {
			r.Tools = []messages.ToolDefinition{{Name: "f"}, {Name: "g", Description: "d", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`)}}
		}, "tools", `[{"functionDeclarations":[{"name":"f"},{"name":"g","description":"d","parameters":{"properties":{"a":{"type":"string"}},"type":"object"}}]}]`},
		{"temperature", "m", "", func(r *messages.Request) { r.Options.Temperature = &temperature }, "generationConfig", `{` + max + `,"temperature":0.5}`},
		{"options of the settings", "m", "", func(r *messages.Request) {
			r.Options.Extra = map[string]json.RawMessage{"generationConfig": json.RawMessage(`{"topK":5,"maxOutputTokens":9}`), "contents": json.RawMessage("[]"), "safetySettings": json.RawMessage(`[]`)}
		}, "generationConfig", `{"maxOutputTokens":9,"topK":5}`},
		{"other options of the settings", "m", "", func(r *messages.Request) {
			r.Options.Extra = map[string]json.RawMessage{"generationConfig": json.RawMessage(`{}`), "safetySettings": json.RawMessage(`[ ]`)}
		}, "safetySettings", `[]`},

		{"a level", "gemini-3-flash-preview", "low", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"low"}}`},
		{"a level above high", "gemini-3-pro-preview", "max", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"high"}}`},
		{"a level that the catalog names", "gemini-4-neon", "xhigh", word("xhigh", "xhigh"), "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"xhigh"}}`},
		{"the catalog's word", "gemma-4-31b-it", "high", word("high", "HIGH"), "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"HIGH"}}`},
		{"levels of an alias", "gemini-flash-latest", "medium", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"medium"}}`},
		{"levels off", "gemini-3-flash-preview", "off", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"thinkingLevel":"minimal"}}`},
		{"levels off for pro", "gemini-3-pro-preview", "off", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"thinkingLevel":"low"}}`},
		{"room for a level", "gemini-3-flash-preview", "low", func(r *messages.Request) { r.Options.MaxTokens = 1000 }, "generationConfig", `{"maxOutputTokens":3048,"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"low"}}`},

		{"a budget", "gemini-2.5-flash", "high", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingBudget":24576}}`},
		{"a budget of pro", "gemini-2.5-pro", "max", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingBudget":32768}}`},
		{"the least of lite", "gemini-2.5-flash-lite", "minimal", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingBudget":512}}`},
		{"a named budget", "gemini-2.5-flash", "low", func(r *messages.Request) {
			r.Options.ThinkingBudgets = map[messages.ThinkingLevel]int64{"low": 3000}
		}, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingBudget":3000}}`},
		{"a named budget of none", "gemini-2.5-flash", "low", func(r *messages.Request) {
			r.Options.ThinkingBudgets = map[messages.ThinkingLevel]int64{"low": 0}
		}, "generationConfig", `{` + max + `,"thinkingConfig":{"thinkingBudget":0}}`},
		{"a budget that gives way", "gemini-2.5-flash", "high", func(r *messages.Request) { r.Model.MaxTokens = 3024 }, "generationConfig", `{"maxOutputTokens":3024,"thinkingConfig":{"includeThoughts":true,"thinkingBudget":2000}}`},
		{"no room for a budget", "gemini-2.5-flash-lite", "high", func(r *messages.Request) { r.Model.MaxTokens = 1030 }, "generationConfig", `{"maxOutputTokens":1030,"thinkingConfig":{"thinkingBudget":0}}`},
		{"budgets off", "gemini-2.5-flash", "off", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"thinkingBudget":0}}`},
		{"pro cannot be off", "gemini-2.5-pro", "off", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"thinkingBudget":128}}`},
		{"another model thinks as it likes", "deep-research-preview", "high", nil, "generationConfig", `{` + max + `,"thinkingConfig":{"includeThoughts":true,"thinkingBudget":-1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request("http://localhost:1")
			req.Model.ID, req.Model.Reasoning, req.Thinking = c.model, c.level != "", c.level
			if c.change != nil {
				c.change(req)
			}
			if got := string(encoded(t, req)[c.field]); got != c.want {
				t.Errorf("%s is %s\nwant %s", c.field, got, c.want)
			}
		})
	}
}

func TestContents(t *testing.T) {
	image := messages.Part{Type: messages.PartImage, Data: dialecttest.PNG}
	gif := messages.Part{Type: messages.PartImage, Data: []byte("GIF89a....")}
	signed := called("c", "x")
	signed.Signature = "sig==+/"
	failed := called("c2", "broke")
	failed.Result.IsError = true
	pictured := called("c3", "")
	pictured.Result = &messages.ToolResult{Content: []messages.Part{{Type: messages.PartText, Text: "see"}, image}}
	thought := messages.Part{Type: messages.PartThinking, Text: "hm", Signature: "sig1"}
	alone := messages.Part{Type: messages.PartThinking, Redacted: true, Signature: "sig2"}
	unsignedThought := messages.Part{Type: messages.PartThinking, Text: "hm"}
	text := messages.Part{Type: messages.PartText, Text: "b", Signature: "sig3"}
	other := assistant(thought, text, signed)
	other.Model = "another"
	const (
		asked = `{"role":"user","parts":[{"text":"a"}]}`
		png   = `{"inlineData":{"mimeType":"image/png","data":"iVBORw0KGgoAAAANSUhEUg=="}}`
		use   = `{"functionCall":{"id":"c","name":"f","args":{"a":1}}`
		done  = `{"functionResponse":{"id":"c","name":"f","response":{"output":"x"}}}`
		skip  = `,"thoughtSignature":"skip_thought_signature_validator"}`
	)
	for _, c := range []struct {
		name, model string
		messages    []messages.Message
		want        string
	}{
		{"responses by themselves, in the order of the calls", "m", []messages.Message{user("1", "a"), assistant(signed, failed), user("2", "b"), user("3", "c")},
			`[` + asked + `,{"role":"model","parts":[` + use + `,"thoughtSignature":"sig==+/"},{"functionCall":{"id":"c2","name":"f","args":{"a":1}}}]},` +
				`{"role":"user","parts":[` + done + `,{"functionResponse":{"id":"c2","name":"f","response":{"error":"broke"}}}]},{"role":"user","parts":[{"text":"b"},{"text":"c"}]}]`},
		{"signatures as they came", "m", []messages.Message{user("1", "a"), assistant(thought, alone, text), user("2", "c")},
			`[` + asked + `,{"role":"model","parts":[{"text":"hm","thoughtSignature":"sig1","thought":true},{"text":"","thoughtSignature":"sig2"},{"text":"b","thoughtSignature":"sig3"}]},{"role":"user","parts":[{"text":"c"}]}]`},
		{"unsigned thinking stays behind", "m", []messages.Message{user("1", "a"), assistant(unsignedThought, text), user("2", "c")},
			`[` + asked + `,{"role":"model","parts":[{"text":"b","thoughtSignature":"sig3"}]},{"role":"user","parts":[{"text":"c"}]}]`},
		{"of another model", "m", []messages.Message{user("1", "a"), other},
			`[` + asked + `,{"role":"model","parts":[{"text":"hm"},{"text":"b"},` + use + `}]},{"role":"user","parts":[` + done + `]}]`},
		{"of another model, for one that wants signatures", "gemini-3-m", []messages.Message{user("1", "a"), assistant(signed, failed)},
			`[` + asked + `,{"role":"model","parts":[` + use + skip + `,{"functionCall":{"id":"c2","name":"f","args":{"a":1}}}]},` +
				`{"role":"user","parts":[` + done + `,{"functionResponse":{"id":"c2","name":"f","response":{"error":"broke"}}}]}]`},
		{"an image", "m", []messages.Message{{ID: "1", Role: messages.RoleUser, Parts: []messages.Part{image, {Type: messages.PartText, Text: "a"}, gif}}},
			`[{"role":"user","parts":[` + png + `,{"text":"a"},{"text":"[image left out: this provider reads no GIF]"}]}]`},
		{"an image in a result", "gemini-3-m", []messages.Message{user("1", "a"), assistant(pictured)},
			`[` + asked + `,{"role":"model","parts":[{"functionCall":{"id":"c3","name":"f","args":{"a":1}}` + skip + `]},` +
				`{"role":"user","parts":[{"functionResponse":{"id":"c3","name":"f","response":{"output":"see"},"parts":[` + png + `]}}]}]`},
		{"an image behind a result", "gemini-2.5-m", []messages.Message{user("1", "a"), assistant(pictured), user("2", "b")},
			`[` + asked + `,{"role":"model","parts":[{"functionCall":{"id":"c3","name":"f","args":{"a":1}}}]},` +
				`{"role":"user","parts":[{"functionResponse":{"id":"c3","name":"f","response":{"output":"see\n[the image follows]"}}}]},{"role":"user","parts":[` + png + `,{"text":"b"}]}]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request("http://localhost:1")
			req.Model.ID = c.model
			req.Messages = c.messages
			if got := string(encoded(t, req)["contents"]); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

var schemas = []struct{ name, in, want string }{
	{"nothing", `{"type":"object"}`, ``},
	{"no schema", `null`, ``},
	{"no properties", `{"type":"object","properties":{},"additionalProperties":false}`, ``},
	{"keywords that are dropped", `{"$schema":"x","type":"object","properties":{"a":{"type":"string","examples":["x"],"format":"uri","pattern":"^x"}},"additionalProperties":false,"required":["a","b","a"]}`,
		`{"properties":{"a":{"pattern":"^x","type":"string"}},"required":["a"],"type":"object"}`},
	{"references", `{"type":"object","properties":{"a":{"$ref":"#/$defs/x","description":"mine"},"b":{"$ref":"#/$defs/none"}},"$defs":{"x":{"type":"integer","description":"its"}}}`,
		`{"properties":{"a":{"description":"mine","type":"integer"},"b":{"type":"string"}},"type":"object"}`},
	{"a name with a slash", `{"type":"object","properties":{"a":{"$ref":"#/$defs/x~1y"}},"$defs":{"x/y":{"type":"integer"}}}`, `{"properties":{"a":{"type":"integer"}},"type":"object"}`},
	{"null among the types", `{"type":"object","properties":{"a":{"type":["string","null"]}}}`, `{"properties":{"a":{"nullable":true,"type":"string"}},"type":"object"}`},
	{"several types", `{"type":"object","properties":{"a":{"type":["string","integer","null"],"description":"d","minimum":1}}}`,
		`{"properties":{"a":{"anyOf":[{"minimum":1,"type":"string"},{"minimum":1,"type":"integer"}],"description":"d","nullable":true}},"type":"object"}`},
	{"a choice with null", `{"type":"object","properties":{"a":{"anyOf":[{"type":"string","maxLength":3},{"type":"null"}],"description":"d"}}}`,
		`{"properties":{"a":{"description":"d","maxLength":3,"nullable":true,"type":"string"}},"type":"object"}`},
	{"oneOf", `{"type":"object","properties":{"a":{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]}}}`,
		`{"properties":{"a":{"anyOf":[{"type":"string"},{"items":{"type":"string"},"type":"array"}]}},"type":"object"}`},
	{"const", `{"type":"object","properties":{"a":{"const":"x"},"b":{"const":5},"c":{"type":"boolean","const":true,"description":"d"}}}`,
		`{"properties":{"a":{"enum":["x"],"type":"string"},"b":{"description":"one of 5","type":"integer"},"c":{"description":"d (one of true)","type":"boolean"}},"type":"object"}`},
	{"enum", `{"type":"object","properties":{"a":{"enum":["x","",null]},"b":{"type":"integer","enum":[1,2]}}}`,
		`{"properties":{"a":{"enum":["x"],"nullable":true,"type":"string"},"b":{"description":"one of 1,2","type":"integer"}},"type":"object"}`},
	{"allOf", `{"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"properties":{"b":{"type":"number","format":"double"}},"required":["b"]}]}`,
		`{"properties":{"a":{"type":"string"},"b":{"format":"double","type":"number"}},"required":["a","b"],"type":"object"}`},
	{"exclusive bounds", `{"type":"object","properties":{"a":{"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":9},"b":{"type":"number","exclusiveMinimum":0.5}}}`,
		`{"properties":{"a":{"maximum":8,"minimum":1,"type":"integer"},"b":{"minimum":0.5,"type":"number"}},"type":"object"}`},
	{"lists", `{"type":"object","properties":{"a":{"type":"array"},"b":{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}]},"c":{"items":{"type":"object","additionalProperties":{"type":"string"}}}}}`,
		`{"properties":{"a":{"items":{"type":"string"},"type":"array"},"b":{"items":{"anyOf":[{"type":"string"},{"type":"integer"}]},"type":"array"},"c":{"items":{"type":"object"},"type":"array"}},"type":"object"}`},
	{"numbers as they are", `{"type":"object","properties":{"a":{"type":"integer","maximum":9007199254740993}}}`, `{"properties":{"a":{"maximum":9007199254740993,"type":"integer"}},"type":"object"}`},
}

func TestSchemasAreAdapted(t *testing.T) {
	for _, c := range schemas {
		t.Run(c.name, func(t *testing.T) {
			if got := string(parameters([]byte(c.in))); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A schema that contains itself ends somewhere.
func TestASchemaThatContainsItselfEnds(t *testing.T) {
	got := parameters([]byte(`{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array","items":{"$ref":"#"}}}}`))
	var v map[string]any
	if err := json.Unmarshal(got, &v); err != nil || len(got) > 10_000 {
		t.Fatalf("%v, %d bytes", err, len(got))
	}
	accepted(t, v)
}

// accepted fails on a schema that the API refuses.
func accepted(t *testing.T, s map[string]any) {
	t.Helper()
	for k := range s {
		if !slices.Contains(append(keptKeys, "type", "format", "enum", "properties", "required", "anyOf", "items"), k) {
			t.Errorf("keyword %q", k)
		}
	}
	kind, _ := s["type"].(string)
	if kind == "" && s["anyOf"] == nil {
		t.Errorf("no type: %v", s)
	}
	props, _ := s["properties"].(map[string]any)
	if s["properties"] != nil && len(props) == 0 {
		t.Errorf("no properties: %v", s)
	}
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := props[name.(string)]; !ok {
			t.Errorf("required: %v", name)
		}
	}
	if s["enum"] != nil && kind != "string" {
		t.Errorf("enum of %s", kind)
	}
	var inner []any
	for _, p := range props {
		inner = append(inner, p)
	}
	if kind == "array" || s["items"] != nil {
		inner = append(inner, s["items"])
	}
	anyOf, _ := s["anyOf"].([]any)
	for _, v := range append(inner, anyOf...) {
		m, ok := v.(map[string]any)
		if !ok {
			t.Errorf("not a schema: %v in %v", v, s)
			continue
		}
		accepted(t, m)
	}
}

// strict refuses what the API does.
func strict(raw []byte, provided func(string) bool, levels bool) error {
	if !utf8.Valid(raw) {
		return fmt.Errorf("invalid UTF-8")
	}
	type part struct {
		Text      *string
		Signature string `json:"thoughtSignature"`
		Call      *struct {
			ID, Name string
			Args     map[string]any
		} `json:"functionCall"`
		Response *struct {
			ID, Name string
			Response map[string]string
		} `json:"functionResponse"`
		Data *struct{ MimeType, Data string } `json:"inlineData"`
	}
	var s struct {
		Contents []struct {
			Role  string
			Parts []part
		}
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	safe := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	seen := map[string]bool{}
	var open []string
	for i, c := range s.Contents {
		if len(c.Parts) == 0 || i == 0 && c.Role != "user" || i > 0 && c.Role == "model" && s.Contents[i-1].Role == "model" {
			return fmt.Errorf("content %d is empty or of %s", i, c.Role)
		}
		calls, responses := 0, 0
		for j, p := range c.Parts {
			fail := func(what string) error { return fmt.Errorf("content %d part %d: %s: %+v", i, j, what, p) }
			if p.Signature != "" && !provided(p.Signature) && p.Signature != unsigned {
				return fail("signature")
			}
			if p.Response == nil && len(open) > 0 && c.Role == "user" {
				return fail("responses are missing")
			}
			switch {
			case p.Call != nil:
				if c.Role != "model" || !safe.MatchString(p.Call.ID) || !safe.MatchString(p.Call.Name) || seen[p.Call.ID] || p.Call.Args == nil {
					return fail("call")
				}
				if levels && calls == 0 && p.Signature == "" {
					return fail("a call without signature")
				}
				calls++
				seen[p.Call.ID] = true
			case p.Response != nil:
				responses++
				if len(open) == 0 || open[0] != p.Response.ID || len(p.Response.Response) != 1 {
					return fail("stray or empty response")
				}
				open = open[1:]
			case p.Data != nil:
				if c.Role != "user" || p.Data.Data == "" || p.Data.MimeType == "" {
					return fail("image")
				}
			case p.Text == nil || strings.TrimSpace(*p.Text) == "" && p.Signature == "":
				return fail("blank text")
			}
		}
		if responses > 0 && responses < len(c.Parts) {
			return fmt.Errorf("content %d mixes responses with others", i)
		}
		for _, p := range c.Parts {
			if p.Call != nil {
				open = append(open, p.Call.ID)
			}
		}
	}
	if len(open) > 0 || s.Contents[len(s.Contents)-1].Role != "user" {
		return fmt.Errorf("ends with the model or without responses: %q", open)
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
		levels := rapid.Bool().Draw(rt, "levels")
		if levels {
			low := "low"
			req.Model.ThinkingLevelMap = map[messages.ThinkingLevel]*string{"low": &low}
		}
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
					if m.Model == "m" && m.Provider == "p" && m.Protocol == "google" && p.Signature == s {
						return true
					}
				}
			}
			return false
		}
		if err := strict(fresh, provided, levels); err != nil {
			rt.Fatalf("%v\n%s", err, fresh)
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
		if string(cached) != string(fresh) {
			rt.Fatalf("cached\n%s\nfresh\n%s", cached, fresh)
		}
		if after, _ := json.Marshal(req.Messages); string(after) != string(before) {
			rt.Fatalf("changed from\n%s\nto\n%s", before, after)
		}
		// The server knows only signatures of its own, so it gets a model that
		// wrote none of this.
		req.Model.BaseURL, req.Model.ThinkingLevelMap = server.URL(), nil
		req.Model.ID = "gemini-2.5-flash"
		if levels {
			req.Model.ID = "gemini-3-flash"
		}
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
		call := called(fmt.Sprint("call_", i), strings.Repeat("some output of a command\n", 40))
		call.Signature = strings.Repeat("AbCd", 100)
		m := assistant(messages.Part{Type: messages.PartText, Text: strings.Repeat("answer \"quoted\"\n", 30)}, call)
		m.ID = fmt.Sprint("a", i)
		out = append(out, m)
	}
	return out
}

func benchmarkEncode(b *testing.B, n int) {
	req := request("http://localhost:1")
	req.Messages = conversation(n)
	req.Cache = &messages.EncodeCache{}
	if raw, err := encodeRequest(req); err != nil || len(raw) == 0 {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		raw, _ := encodeRequest(req)
		b.SetBytes(int64(len(raw)))
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
		raw, _ := encodeRequest(req)
		b.SetBytes(int64(len(raw)))
	}
}
