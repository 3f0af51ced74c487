package mockmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// with is a valid request of the protocol with some fields replaced; "" as the
// JSON text removes one.
func with(path string, fields ...string) string {
	o := map[string]json.RawMessage{
		"model":    json.RawMessage(`"m"`),
		"stream":   json.RawMessage("true"),
		"messages": json.RawMessage(`[{"role":"user","content":"hi"}]`),
	}
	if path == anthropicPath {
		o["max_tokens"] = json.RawMessage("4000")
	}
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			delete(o, fields[i])
		} else {
			o[fields[i]] = json.RawMessage(fields[i+1])
		}
	}
	var parts []string
	for k, v := range o {
		parts = append(parts, fmt.Sprintf("%q:%s", k, v))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// judge sends a request and returns the rule that it violated, or "".
func judge(t *testing.T, c *client, path, body string) (Rule, string) {
	t.Helper()
	status, answer := c.post(path, body)
	v := c.s.TakeViolations()
	switch {
	case status == 200 && len(v) == 0:
		return "", answer
	case status == 400 && len(v) == 1:
		var e struct {
			Type  string
			Error struct{ Type, Status, Message string }
		}
		err := json.Unmarshal([]byte(answer), &e)
		if err != nil || e.Error.Type != "invalid_request_error" && e.Error.Status != "INVALID_ARGUMENT" || e.Error.Message != v[0].Reason {
			t.Errorf("not the provider's error shape: %s", answer)
		}
		if path == anthropicPath && e.Type != "error" {
			t.Errorf("not the provider's error shape: %s", answer)
		}
		return v[0].Rule, v[0].Reason
	}
	t.Fatalf("status %d with the violations %v for %s", status, v, body)
	return "", ""
}

type verdict struct {
	rule Rule // "" is a request that is in order
	body string
}

func judgeAll(t *testing.T, path string, cases []verdict) {
	t.Helper()
	c := start(t, Options{})
	lenient := start(t, Options{Lenient: true})
	for _, tt := range cases {
		if rule, reason := judge(t, c, path, tt.body); rule != tt.rule {
			t.Errorf("got %q (%s), want %q for\n%s", rule, reason, tt.rule, tt.body)
		} else if rule != "" && len(reason) < 10 {
			t.Errorf("reason %q says nothing", reason)
		}
		// Without Strict the same is answered.
		if rule, reason := judge(t, lenient, path, tt.body); rule != "" {
			t.Errorf("lenient: %s (%s) for\n%s", rule, reason, tt.body)
		}
	}
}

// chatMessages is a request with a user message before those given.
func chatMessages(messages string) string {
	return with(chatPath, "messages", `[{"role":"user","content":"hi"},`+messages+`]`)
}

func chatCalls(ids ...string) string {
	var calls []string
	for _, id := range ids {
		calls = append(calls, `{"id":"`+id+`","type":"function","function":{"name":"bash","arguments":"{}"}}`)
	}
	return `{"role":"assistant","content":null,"tool_calls":[` + strings.Join(calls, ",") + `]}`
}

func chatResult(id string) string {
	return `{"role":"tool","tool_call_id":"` + id + `","content":"done"}`
}

func chatCallOf(call string) string {
	return chatMessages(`{"role":"assistant","content":null,"tool_calls":[` + call + `]},` + chatResult("a"))
}

func chatTool(function string) string {
	return with(chatPath, "tools", `[{"type":"function","function":`+function+`}]`)
}

const pixel = `iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==`

func TestStrictChat(t *testing.T) {
	judgeAll(t, chatPath, []verdict{
		// What is in order.
		{"", with(chatPath)},
		{"", chatMessages(chatCalls("a", "b") + "," + chatResult("b") + "," + chatResult("a") + `,{"role":"assistant","content":"ok"},{"role":"user","content":"more"}`)},
		{"", chatMessages(chatCalls("a") + "," + chatResult("a") + "," + chatCalls("a") + "," + chatResult("a"))},
		{"", chatMessages(strings.Replace(chatCalls("a"), "null", `""`, 1) + "," + chatResult("a"))},
		{"", chatMessages(strings.Replace(chatCalls("a"), `"content":null,`, ``, 1) + "," + chatResult("a"))},
		{"", chatMessages(`{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + pixel + `"}}]}`)},
		{"", with(chatPath, "messages", `[{"role":"system","content":"s"},{"role":"developer","content":[{"type":"text","text":"d"}]},{"role":"user","content":"\ud83d\ude00 \\ud800"}]`)},
		{"", with(chatPath, "max_tokens", "5", "temperature", "2", "stream_options", `{"include_usage":true}`)},
		{"", chatTool(`{"name":"bash","parameters":{"type":"object","properties":{}}}`)},
		{"", chatTool(`{"name":"bash","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"array","items":{"type":"object","properties":{"b":{"type":"string"}},"required":["b"],"additionalProperties":false}}},"required":["a"],"additionalProperties":false}}`)},

		// The request as a whole.
		{RuleModel, with(chatPath, "model", "")},
		{RuleModel, with(chatPath, "model", `""`)},
		{RuleField, with(chatPath, "stream", `"yes"`)},
		{RuleField, with(chatPath, "stream", "false", "stream_options", `{"include_usage":true}`)},
		{RuleMaxTokens, with(chatPath, "max_tokens", "0")},
		{RuleMaxTokens, with(chatPath, "max_completion_tokens", "1.5")},
		{RuleMaxTokens, with(chatPath, "max_tokens", "1", "max_completion_tokens", "1")},
		{RuleSampling, with(chatPath, "temperature", "2.1")},
		{RuleSampling, with(chatPath, "top_p", "-1")},
		{RuleEmpty, with(chatPath, "messages", "[]")},
		{RuleEmpty, with(chatPath, "messages", "")},
		{RuleField, with(chatPath, "messages", `["hi"]`)},
		{RuleUTF8, with(chatPath, "messages", "[{\"role\":\"user\",\"content\":\"a\xffb\"}]")},
		{RuleUTF8, with(chatPath, "messages", `[{"role":"user","content":"a\ud83d b"}]`)},
		{RuleUTF8, with(chatPath, "messages", `[{"role":"user","content":"a\ude00"}]`)},
		{RuleMessageID, with(chatPath, "messages", `[{"id":"1","role":"user","content":"a"},{"id":"1","role":"user","content":"b"}]`)},
		{RuleMessageID, with(chatPath, "messages", `[{"id":7,"role":"user","content":"a"}]`)},
		{RuleRole, chatMessages(`{"role":"robot","content":"x"}`)},
		{RuleRole, chatMessages(`{"content":"x"}`)},

		// Content.
		{RuleBlank, with(chatPath, "messages", `[{"role":"user","content":""}]`)},
		{RuleBlank, with(chatPath, "messages", `[{"role":"user","content":" \n\t"}]`)},
		{RuleBlank, with(chatPath, "messages", `[{"role":"system","content":""},{"role":"user","content":"a"}]`)},
		{RuleBlank, with(chatPath, "messages", `[{"role":"user","content":[{"type":"text","text":" "}]}]`)},
		{RuleEmpty, with(chatPath, "messages", `[{"role":"user","content":[]}]`)},
		{RuleEmpty, with(chatPath, "messages", `[{"role":"user"}]`)},
		{RuleField, with(chatPath, "messages", `[{"role":"user","content":7}]`)},
		{RuleField, with(chatPath, "messages", `[{"role":"user","content":[{"type":"video"}]}]`)},
		{RuleField, with(chatPath, "messages", `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/tiff;base64,`+pixel+`"}}]}]`)},
		{RuleField, with(chatPath, "messages", `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,?"}}]}]`)},
		{RuleField, with(chatPath, "messages", `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///x"}}]}]`)},
		{RuleEmpty, chatMessages(`{"role":"assistant","content":null}`)},
		{RuleEmpty, chatMessages(`{"role":"assistant"}`)},
		{RuleBlank, chatMessages(`{"role":"assistant","content":""}`)},
		{RuleBlank, chatMessages(`{"role":"assistant","content":" ","tool_calls":[{"id":"a","type":"function","function":{"name":"bash","arguments":"{}"}}]},` + chatResult("a"))},
		{RuleEmpty, chatMessages(`{"role":"assistant","content":"x","tool_calls":[]}`)},
		{RuleBlank, chatMessages(chatCalls("a") + `,{"role":"tool","tool_call_id":"a","content":""}`)},
		{RuleEmpty, chatMessages(chatCalls("a") + `,{"role":"tool","tool_call_id":"a"}`)},
		{RuleField, chatMessages(chatCalls("a") + `,{"role":"tool","tool_call_id":"a","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + pixel + `"}}]}`)},

		// Calls and their results.
		{RuleMissingResult, chatMessages(chatCalls("a"))},
		{RuleMissingResult, chatMessages(chatCalls("a", "b") + "," + chatResult("a"))},
		{RuleMissingResult, chatMessages(chatCalls("a") + `,{"role":"user","content":"x"},` + chatResult("a"))},
		{RuleMissingResult, chatMessages(chatCalls("a", "b") + "," + chatResult("a") + `,{"role":"user","content":"x"}`)},
		{RuleStrayResult, chatMessages(chatResult("a"))},
		{RuleStrayResult, chatMessages(chatCalls("a") + "," + chatResult("a") + "," + chatResult("b"))},
		{RuleStrayResult, chatMessages(chatCalls("a") + "," + chatResult("a") + `,{"role":"assistant","content":"x"},` + chatResult("a"))},
		{RuleDuplicateResult, chatMessages(chatCalls("a") + "," + chatResult("a") + "," + chatResult("a"))},
		{RuleDuplicateCall, chatMessages(chatCalls("a", "a") + "," + chatResult("a"))},
		{RuleCallID, chatMessages(chatCalls("a") + `,{"role":"tool","content":"x"}`)},
		{RuleCallID, chatCallOf(`{"type":"function","function":{"name":"bash","arguments":"{}"}}`)},
		{RuleField, chatCallOf(`{"id":"a","function":{"name":"bash","arguments":"{}"}}`)},
		{RuleCallName, chatCallOf(`{"id":"a","type":"function","function":{"name":"repo_browser.print_tree","arguments":"{}"}}`)},
		{RuleCallName, chatCallOf(`{"id":"a","type":"function","function":{"name":"` + strings.Repeat("x", 65) + `","arguments":"{}"}}`)},
		{RuleArguments, chatCallOf(`{"id":"a","type":"function","function":{"name":"bash","arguments":{}}}`)},
		{RuleArguments, chatCallOf(`{"id":"a","type":"function","function":{"name":"bash","arguments":"{\"a\":"}}`)},
		{RuleArguments, chatCallOf(`{"id":"a","type":"function","function":{"name":"bash","arguments":""}}`)},

		// Tools.
		{RuleTools, with(chatPath, "tools", "[]")},
		{RuleTools, with(chatPath, "tools", "null")},
		{RuleTools, with(chatPath, "tools", `[{"function":{"name":"bash"}}]`)},
		{RuleTools, with(chatPath, "tool_choice", `"auto"`)},
		{RuleTools, with(chatPath, "parallel_tool_calls", "true")},
		{RuleTools, chatTool(`{"name":"a.b"}`)},
		{RuleTools, chatTool(`{}`)},
		{RuleTools, with(chatPath, "tools", `[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}]`)},
		{RuleField, chatTool(`{"name":"a","strict":1}`)},
		{RuleSchema, chatTool(`{"name":"a","parameters":true}`)},
		{RuleSchema, chatTool(`{"name":"a","parameters":{"type":"string"}}`)},
		{RuleSchema, chatTool(`{"name":"a","parameters":{"properties":{}}}`)},
		{RuleSchema, chatTool(`{"name":"a","parameters":{"type":"object"}}`)},
		{RuleSchema, chatTool(`{"name":"a","parameters":{"type":"object","properties":[]}}`)},
		{RuleSchema, chatTool(`{"name":"a","parameters":{"type":"object","properties":{},"required":["x"]}}`)},
		{RuleSchema, chatTool(`{"name":"a","parameters":{"type":"object","properties":{},"required":"x"}}`)},
		{RuleSchema, chatTool(`{"name":"a","strict":true,"parameters":{"type":"object","properties":{}}}`)},
		{RuleSchema, chatTool(`{"name":"a","strict":true,"parameters":{"type":"object","properties":{"x":{}},"additionalProperties":false}}`)},
		{RuleSchema, chatTool(`{"name":"a","strict":true,"parameters":{"type":"object","properties":{"x":{"anyOf":[{"type":"object"},{"type":"null"}]}},"required":["x"],"additionalProperties":false}}`)},
	})
}

// messages is an Anthropic request with a user message before those given.
func messages(m string, fields ...string) string {
	return with(anthropicPath, append([]string{"messages", `[{"role":"user","content":"hi"},` + m + `]`}, fields...)...)
}

func uses(blocks ...string) string {
	return `{"role":"assistant","content":[` + strings.Join(blocks, ",") + `]}`
}

func use(id string) string {
	return `{"type":"tool_use","id":"` + id + `","name":"bash","input":{}}`
}

func user(blocks ...string) string {
	return `{"role":"user","content":[` + strings.Join(blocks, ",") + `]}`
}

func result(id string) string {
	return `{"type":"tool_result","tool_use_id":"` + id + `","content":"done"}`
}

const (
	say  = `{"type":"text","text":"x"}`
	mark = `"cache_control":{"type":"ephemeral"}`
)

func marked(n int) string {
	return user(strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"x",`+mark+`},`, n), ","))
}

func resultWith(fields string) string {
	return messages(uses(use("a")) + "," + user(`{"type":"tool_result","tool_use_id":"a",`+fields+`}`))
}

func tool(fields string) string {
	return with(anthropicPath, "tools", `[{`+fields+`}]`)
}

func thinkingOn(fields ...string) string {
	return with(anthropicPath, append([]string{"thinking", `{"type":"enabled","budget_tokens":1024}`}, fields...)...)
}

func TestStrictAnthropic(t *testing.T) {
	judgeAll(t, anthropicPath, []verdict{
		// What is in order.
		{"", with(anthropicPath)},
		{"", messages(uses(use("a"), use("b")) + "," + user(result("b"), result("a"), say))},
		{"", messages(uses(use("a"), use("b")) + "," + user(result("a")) + "," + user(result("b"), say))},
		{"", messages(user(say) + "," + uses(say) + "," + user(say))},
		{"", messages(uses(say) + "," + uses(use("a")) + "," + user(result("a")))},
		{"", with(anthropicPath, "system", `"s"`, "temperature", "0.5", "tools", "[]")},
		{"", with(anthropicPath, "system", `[{"type":"text","text":"s","cache_control":{"type":"ephemeral","ttl":"1h"}}]`)},
		{"", messages(marked(4))},
		{"", resultWith(`"content":[{"type":"text","text":"x"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + pixel + `"}}],"is_error":false`)},
		{"", thinkingOn("temperature", "1")},
		{"", with(anthropicPath, "thinking", `{"type":"adaptive","display":"summarized"}`, "output_config", `{"effort":"low"}`)},
		{"", with(anthropicPath, "thinking", `{"type":"disabled"}`, "temperature", "0")},
		{"", tool(`"name":"bash","input_schema":{"type":"object"}`)},

		// The request as a whole.
		{RuleModel, with(anthropicPath, "model", "")},
		{RuleMaxTokens, with(anthropicPath, "max_tokens", "")},
		{RuleMaxTokens, with(anthropicPath, "max_tokens", "0")},
		{RuleField, with(anthropicPath, "stream", "1")},
		{RuleField, with(anthropicPath, "frequency_penalty", "1")},
		{RuleSampling, with(anthropicPath, "temperature", "1.5")},
		{RuleSampling, with(anthropicPath, "top_k", "0")},
		{RuleEmpty, with(anthropicPath, "messages", "[]")},
		{RuleField, with(anthropicPath, "messages", "[7]")},
		{RuleRole, with(anthropicPath, "messages", `[{"role":"system","content":"a"}]`)},
		{RuleFirst, with(anthropicPath, "messages", `[{"role":"assistant","content":"a"},{"role":"user","content":"b"}]`)},
		{RuleLast, messages(uses(say))},
		{RuleField, with(anthropicPath, "messages", `[{"id":"1","role":"user","content":"a"}]`)},
		{RuleUTF8, with(anthropicPath, "messages", "[{\"role\":\"user\",\"content\":\"\xc3\"}]")},
		{RuleUTF8, with(anthropicPath, "messages", `[{"role":"user","content":"\ud800"}]`)},

		// Content.
		{RuleBlank, messages(`{"role":"user","content":""}`)},
		{RuleBlank, messages(`{"role":"user","content":" "}`)},
		{RuleBlank, messages(uses(`{"type":"text","text":""}`) + "," + user(say))},
		{RuleEmpty, messages(`{"role":"user","content":[]}`)},
		{RuleEmpty, messages(`{"role":"user"}`)},
		{RuleField, messages(user(`{"type":"video"}`))},
		{RuleField, messages(user(use("a")))},
		{RuleField, messages(uses(result("a")) + "," + user(say))},
		{RuleField, messages(user(`{"type":"text","text":"x","id":"1"}`))},
		{RuleField, messages(user(`{"type":"image","source":{"type":"base64","media_type":"image/bmp","data":"` + pixel + `"}}`))},
		{RuleField, messages(user(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":""}}`))},
		{RuleField, messages(user(`{"type":"image","source":{"type":"file"}}`))},
		{RuleField, messages(user(`{"type":"image","source":{"type":"url","url":"x"}}`))},
		{RuleBlank, with(anthropicPath, "system", `""`)},
		{RuleEmpty, with(anthropicPath, "system", `[]`)},
		{RuleField, with(anthropicPath, "system", `null`)},
		{RuleBlank, with(anthropicPath, "system", `[{"type":"text","text":" "}]`)},
		{RuleField, with(anthropicPath, "system", `[{"type":"image"}]`)},

		// Calls and their results.
		{RuleMissingResult, messages(uses(use("a")))},
		{RuleMissingResult, messages(uses(use("a")) + "," + user(say))},
		{RuleMissingResult, messages(uses(use("a"), use("b")) + "," + user(result("a")))},
		{RuleMissingResult, messages(uses(use("a")) + "," + user(say) + "," + uses(say) + "," + user(result("a")))},
		{RuleStrayResult, messages(user(result("a")))},
		{RuleStrayResult, messages(uses(use("a")) + "," + user(result("a"), result("b")))},
		{RuleDuplicateResult, messages(uses(use("a")) + "," + user(result("a"), result("a")))},
		{RuleResultsFirst, messages(uses(use("a")) + "," + user(say, result("a")))},
		{RuleResultsFirst, messages(uses(use("a"), use("b")) + "," + user(result("a"), say) + "," + user(result("b")))},
		{RuleDuplicateCall, messages(uses(use("a"), use("a")) + "," + user(result("a")))},
		{RuleDuplicateCall, messages(uses(use("a")) + "," + user(result("a")) + "," + uses(use("a")) + "," + user(result("a")))},
		{RuleCallID, messages(uses(use("a|b")) + "," + user(result("a|b")))},
		{RuleCallID, messages(uses(use("")) + "," + user(result("")))},
		{RuleCallName, messages(uses(`{"type":"tool_use","id":"a","name":"a.b","input":{}}`) + "," + user(result("a")))},
		{RuleArguments, messages(uses(`{"type":"tool_use","id":"a","name":"b","input":"{}"}`) + "," + user(result("a")))},
		{RuleArguments, messages(uses(`{"type":"tool_use","id":"a","name":"b"}`) + "," + user(result("a")))},
		{RuleBlank, resultWith(`"content":""`)},
		{RuleEmpty, resultWith(`"is_error":false`)},
		{RuleEmpty, resultWith(`"content":[]`)},
		{RuleBlank, resultWith(`"content":[{"type":"text","text":"\n"}]`)},
		{RuleField, resultWith(`"content":[{"type":"video"}]`)},
		{RuleField, resultWith(`"content":"x","is_error":"no"`)},
		{RuleField, resultWith(`"is_error":true,"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + pixel + `"}}]`)},

		// Thinking.
		{RuleThinking, thinkingOn("thinking", `{"type":"enabled","budget_tokens":1023}`)},
		{RuleThinking, thinkingOn("max_tokens", "1024")},
		{RuleThinking, thinkingOn("thinking", `{"type":"enabled"}`)},
		{RuleThinking, thinkingOn("thinking", `{"type":"on"}`)},
		{RuleField, thinkingOn("thinking", `{"type":"adaptive","budget_tokens":2000}`)},
		{RuleSampling, thinkingOn("temperature", "0")},
		{RuleSampling, thinkingOn("top_k", "5")},
		{RuleSampling, thinkingOn("top_p", "0.5")},
		{RuleThinking, thinkingOn("tools", `[{"name":"a","input_schema":{"type":"object"}}]`, "tool_choice", `{"type":"any"}`)},
		{RuleThinkingBlock, messages(uses(`{"type":"thinking","thinking":"x","signature":"never"}`, say) + "," + user(say))},
		{RuleThinkingBlock, messages(uses(`{"type":"thinking","thinking":"x","signature":""}`, say) + "," + user(say))},
		{RuleThinkingBlock, messages(uses(`{"type":"thinking","signature":"x"}`, say) + "," + user(say))},
		{RuleThinkingBlock, messages(uses(`{"type":"redacted_thinking","data":"never"}`, say) + "," + user(say))},
		{RuleThinkingBlock, messages(uses(`{"type":"redacted_thinking"}`, say) + "," + user(say))},

		// Cache marks.
		{RuleCacheControl, messages(marked(5))},
		{RuleCacheControl, messages(marked(3), "system", `[{"type":"text","text":"s",`+mark+`}]`, "tools", `[{"name":"a","input_schema":{"type":"object"},`+mark+`}]`)},
		{RuleCacheControl, messages(user(`{"type":"text","text":"x","cache_control":{"type":"persistent"}}`))},
		{RuleCacheControl, messages(user(`{"type":"text","text":"x","cache_control":{"type":"ephemeral","ttl":"2h"}}`))},
		{RuleCacheControl, messages(marked(1) + "," + user(`{"type":"text","text":"x","cache_control":{"type":"ephemeral","ttl":"1h"}}`))},
		{RuleField, messages(user(`{"type":"text","text":"x","cache_control":{"type":"ephemeral","scope":"x"}}`))},

		// Tools.
		{RuleTools, with(anthropicPath, "tools", "{}")},
		{RuleTools, with(anthropicPath, "tool_choice", `{"type":"auto"}`)},
		{RuleTools, tool(`"name":"a.b","input_schema":{"type":"object"}`)},
		{RuleTools, tool(`"input_schema":{"type":"object"}`)},
		{RuleTools, tool(`"name":"` + strings.Repeat("x", 65) + `","input_schema":{"type":"object"}`)},
		{RuleTools, tool(`"type":"web_search_20250305","name":"web_search"`)},
		{RuleTools, with(anthropicPath, "tools", `[{"name":"a","input_schema":{"type":"object"}},{"name":"a","input_schema":{"type":"object"}}]`)},
		{RuleField, tool(`"name":"a","parameters":{},"input_schema":{"type":"object"}`)},
		{RuleSchema, tool(`"name":"a"`)},
		{RuleSchema, tool(`"name":"a","input_schema":{"type":"array"}`)},
		{RuleSchema, tool(`"name":"a","input_schema":{"type":"object","required":["x"]}`)},
		{RuleSchema, tool(`"name":"a","strict":true,"input_schema":{"type":"object","properties":{}}`)},
	})
}

func TestThinkingMustComeBackAsIssued(t *testing.T) {
	const (
		thinking = `{"type":"thinking","thinking":"thöught","signature":"sig-1"}`
		redacted = `{"type":"redacted_thinking","data":"data-1"}`
	)
	c := start(t, Options{Scripts: map[string]Script{"think": {
		{Reasoning{Text: "thöught", Signature: "sig-1", Split: 2}, Reasoning{Redacted: true, Signature: "data-1"}, Text{Text: "x"}, Call{ID: "a", Name: "bash", Args: "{}"}},
		{Call{ID: "plain", Name: "bash", Args: "{}"}},
	}}})
	c.whole(anthropicPath, with(anthropicPath, "messages", `[{"role":"user","content":"script=think"}]`))
	c.whole(anthropicPath, with(anthropicPath, "messages", `[{"role":"user","content":"script=think"}]`))
	if err := c.s.SetScripts(nil); err != nil { // the rest gets any text
		t.Fatal(err)
	}
	c.s.Reset() // what was issued outlives it

	on := []string{"thinking", `{"type":"enabled","budget_tokens":1024}`}
	other := append([]string{"model", `"other"`}, on...)
	for _, tt := range []struct {
		name   string
		rule   Rule
		m      string
		fields []string
	}{
		{"as issued", "", uses(thinking, redacted, say, use("a")) + "," + user(result("a")), on},
		{"as issued, thinking off", "", uses(thinking, redacted, say, use("a")) + "," + user(result("a")), nil},
		{"left out with thinking off", "", uses(say, use("a")) + "," + user(result("a")), nil},
		{"left out of an earlier turn", "", uses(say, use("a")) + "," + user(result("a"), say), on},
		{"left out for another model", "", uses(say, use("a")) + "," + user(result("a")), other},
		{"a call without thinking", "", uses(use("plain")) + "," + user(result("plain")), on},
		{"a call that is not from here", "", uses(use("foreign")) + "," + user(result("foreign")), on},
		{"without calls it may stand anywhere", "", uses(say, thinking) + "," + user(say), on},
		{"all lost", RuleThinkingLost, uses(say, use("a")) + "," + user(result("a")), on},
		{"one lost", RuleThinkingLost, uses(thinking, say, use("a")) + "," + user(result("a")), on},
		{"other order", RuleThinkingLost, uses(redacted, thinking, say, use("a")) + "," + user(result("a")), on},
		{"lost two messages back", RuleThinkingLost, uses(use("a")) + "," + user(result("a")) + "," + uses(use("plain")) + "," + user(result("plain")), on},
		{"text changed", RuleThinkingBlock, uses(strings.Replace(thinking, "thöught", "thought", 1), redacted, use("a")) + "," + user(result("a")), on},
		{"signature changed", RuleThinkingBlock, uses(strings.Replace(thinking, "sig-1", "sig-2", 1), redacted, use("a")) + "," + user(result("a")), on},
		{"data changed", RuleThinkingBlock, uses(thinking, strings.Replace(redacted, "data-1", "data-2", 1), use("a")) + "," + user(result("a")), on},
		{"signature as data", RuleThinkingBlock, uses(`{"type":"redacted_thinking","data":"sig-1"}`, use("a")) + "," + user(result("a")), nil},
		{"sent to another model", RuleThinkingBlock, uses(thinking, redacted, say, use("a")) + "," + user(result("a")), other},
		{"not first", RuleThinkingOrder, uses(say, thinking, redacted, use("a")) + "," + user(result("a")), on},
		{"after the call", RuleThinkingOrder, uses(use("a"), thinking, redacted) + "," + user(result("a")), nil},
		{"marked", RuleField, uses(`{"type":"thinking","thinking":"thöught","signature":"sig-1",`+mark+`}`, redacted, use("a")) + "," + user(result("a")), on},
	} {
		if rule, reason := judge(t, c, anthropicPath, messages(tt.m, tt.fields...)); rule != tt.rule {
			t.Errorf("%s: got %q (%s), want %q", tt.name, rule, reason, tt.rule)
		}
	}
}

func TestHeadersAreChecked(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{})
		for name, f := range map[string]func(http.Header){
			"type":    func(h http.Header) { h.Set("Content-Type", "text/plain") },
			"no type": func(h http.Header) { h.Del("Content-Type") },
			"version": func(h http.Header) { h.Del("Anthropic-Version") },
		} {
			r := c.request(within(t), path, ask(path, "x"))
			f(r.Header)
			resp, err := c.http.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			v := c.s.TakeViolations()
			if name == "version" && path == chatPath {
				if len(v) != 0 {
					t.Errorf("chat asks for a version: %v", v)
				}
				continue
			}
			if resp.StatusCode != 400 || len(v) != 1 || v[0].Rule != RuleHeader {
				t.Errorf("%s: %d %v", name, resp.StatusCode, v)
			}
		}
	})
}

func TestBodiesThatAreNoObjectAreRefusedAlways(t *testing.T) {
	for _, lenient := range []bool{false, true} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{Lenient: lenient})
			for _, body := range []string{"", "{", "[]", "null", `"x"`, "{} {}"} {
				status, answer := c.post(path, body)
				if v := c.s.TakeViolations(); status != 400 || len(v) != 1 || v[0].Rule != RuleJSON {
					t.Errorf("%q: %d %s %v", body, status, answer, v)
				}
			}
		})
	}
}

func TestRefusedRequestsUseUpNoAnswer(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{{Text{Text: "one"}}}})
		if rule, _ := judge(t, c, path, ask(path, " ")); rule != RuleBlank {
			t.Errorf("rule %q", rule)
		}
		if got := understand(t, path, c.whole(path, ask(path, "x"))).text; got != "one" {
			t.Errorf("%q", got)
		}
		if r := c.s.Requests()[0]; r.Answer != -1 || r.Status != 400 || !r.Done {
			t.Errorf("%+v", r)
		}
	})
}

func TestKeyIsAskedFor(t *testing.T) {
	for _, tt := range []struct {
		require, header, value string
		ok                     bool
	}{
		{"secret", "Authorization", "Bearer secret", true},
		{"secret", "X-Api-Key", "secret", true},
		{"secret", "Authorization", "bearer secret", true},
		{"secret", "Authorization", "Bearer hunter2", false},
		{"secret", "Authorization", "Basic secret", false},
		{"secret", "X", "", false},
		{"any", "X-Api-Key", "whatever", true},
		{"any", "Authorization", "Bearer ", false},
		{"any", "X", "", false},
		{"", "X", "", true},
	} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{RequireKey: tt.require})
			r := c.request(within(t), path, ask(path, "x"))
			r.Header.Set(tt.header, tt.value)
			resp, err := c.http.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			v := c.s.TakeViolations()
			if tt.ok != (resp.StatusCode == 200 && len(v) == 0) || !tt.ok && (resp.StatusCode != 401 || len(v) != 1 || v[0].Rule != RuleKey) {
				t.Errorf("%+v: %d %v", tt, resp.StatusCode, v)
			}
			for _, x := range v {
				if strings.Contains(x.Reason, "secret") || strings.Contains(x.Reason, "hunter2") {
					t.Errorf("the key is shown: %s", x)
				}
			}
		})
	}
}

func TestUnknownPathsAreViolations(t *testing.T) {
	c := start(t, Options{})
	for _, path := range []string{"/", "/v1/completions", "/v1/messages/count_tokens", "/v1/embeddings"} {
		status, _ := c.post(path, "{}")
		if v := c.s.TakeViolations(); status != 404 || len(v) != 1 || v[0].Rule != RulePath {
			t.Errorf("%s: %d %v", path, status, v)
		}
	}
	resp, err := c.http.Get(c.s.URL() + chatPath)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if v := c.s.TakeViolations(); resp.StatusCode != 405 || len(v) != 1 || v[0].Rule != RulePath {
		t.Errorf("GET: %d %v", resp.StatusCode, v)
	}
}

func TestLoneSurrogate(t *testing.T) {
	for s, want := range map[string]int{
		``: -1, `abc`: -1, `\n`: -1, `\`: -1, `\u`: -1, `\u12`: -1,
		`\u00e9`: -1, `\ud83d\ude00`: -1, `\uD83D\uDE00x`: -1, `\\ud800`: -1, `\\\\ud800`: -1,
		`\ud800`: 0, `ab\udc00`: 2, `\ud800\ud800`: 0, `\ud800x`: 0, `\ud800\n`: 0, `\\\ud800`: 2, `\ud83d\ude00\ud83d`: 12,
		`\ud800\u`: 0,
	} {
		if got := loneSurrogate([]byte(s)); got != want {
			t.Errorf("%s: %d, want %d", s, got, want)
		}
	}
}

// FuzzLoneSurrogate: a JSON text has a lone surrogate exactly if decoding it
// puts the replacement character where the text has none.
func FuzzLoneSurrogate(f *testing.F) {
	for _, s := range []string{`"a\ud800"`, `"\ud83d\ude00"`, `"\\ud800"`, `"\udc00\ud800"`, `["\u00e9",{"\ud800":1}]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var v any
		if strings.Contains(s, "\uFFFD") || strings.Contains(strings.ToLower(s), `\ufffd`) || strings.ToValidUTF8(s, "") != s || json.Unmarshal([]byte(s), &v) != nil {
			return
		}
		// Keys of objects that are equal after decoding hide one another.
		if strings.Contains(s, "{") {
			return
		}
		if got, want := loneSurrogate([]byte(s)) >= 0, strings.Contains(text(v), "\uFFFD"); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	})
}

// FuzzRequests: whatever JSON object is sent, reading and checking it ends
// without a panic, and what passes the check can be answered.
func FuzzRequests(f *testing.F) {
	f.Add(with(chatPath))
	f.Add(chatMessages(chatCalls("a") + "," + chatResult("a")))
	f.Add(chatTool(`{"name":"a","strict":true,"parameters":{"type":"object","properties":{"x":{"anyOf":[{}]}}}}`))
	f.Add(with(anthropicPath))
	f.Add(messages(uses(`{"type":"thinking","thinking":"x","signature":"s"}`, use("a")) + "," + user(result("a"), say)))
	f.Add(tool(`"name":"a","input_schema":{"type":"object","required":["x"]}`))
	f.Add(contents(geminiUses(`"id":"a"`) + "," + geminiResult(`"id":"a"`)))
	f.Add(geminiTool(`{"type":"object","properties":{"x":{"anyOf":[{}]}}}`))
	f.Fuzz(func(t *testing.T, s string) {
		var o object
		if json.Unmarshal([]byte(s), &o) != nil {
			return
		}
		for _, d := range dialects {
			v := d.view(&http.Request{URL: &url.URL{Path: geminiPath}}, o)
			v.Prompt()
			findMarker(v)
			c := &checker{issued: newIssued(), view: v}
			c.raw([]byte(s))
			d.check(c, http.Header{"Anthropic-Version": {"x"}}, o)
			if c.rule == "" && (v.Model == "" || len(v.Messages) == 0 && v.System == "") {
				t.Errorf("%s takes a request in which it reads nothing: %s", d.name(), s)
			}
			if (c.rule == "") != (c.reason == "") {
				t.Errorf("rule %q, reason %q", c.rule, c.reason)
			}
		}
	})
}
