package mockmodel

import (
	"encoding/json"
	"strings"
	"testing"
)

const (
	geminiPath  = "/v1beta/models/gemini-3-m:streamGenerateContent"
	gemini2Path = "/v1beta/models/gemini-2.5-m:streamGenerateContent"
	proPath     = "/v1beta/models/gemini-2.5-pro:streamGenerateContent"
	hello       = `{"role":"user","parts":[{"text":"hi"}]}`
	skip        = `,"thoughtSignature":"skip_thought_signature_validator"`
)

// contents is a request with a user content before those given.
func contents(more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"contents":[` + hello + more + `]}`
}

func geminiUses(id string, more ...string) string {
	parts := []string{`{"functionCall":{` + id + `,"name":"bash","args":{}}` + skip + `}`}
	return `{"role":"model","parts":[` + strings.Join(append(parts, more...), ",") + `]}`
}

func geminiResult(id string, more ...string) string {
	parts := []string{`{"functionResponse":{` + id + `,"name":"bash","response":{"output":"x"}}}`}
	return `{"role":"user","parts":[` + strings.Join(append(parts, more...), ",") + `]}`
}

func geminiTool(schema string) string {
	return `{"contents":[` + hello + `],"tools":[{"functionDeclarations":[{"name":"bash","description":"d","parameters":` + schema + `}]}]}`
}

func geminiConfig(fields string) string {
	return `{"contents":[` + hello + `],"generationConfig":{` + fields + `}}`
}

func TestStrictGemini(t *testing.T) {
	const a, b = `"id":"a"`, `"id":"b"`
	second := `{"functionCall":{"id":"b","name":"bash","args":{}}}`
	secondResult := `{"functionResponse":{"id":"b","name":"bash","response":{"output":"y"}}}`
	image := `{"inlineData":{"mimeType":"image/png","data":"` + pixel + `"}}`
	judgeAll(t, geminiPath, []verdict{
		// What is in order.
		{"", contents("")},
		{"", contents(geminiUses(a) + "," + geminiResult(a))},
		{"", contents(geminiUses(a, second) + "," + geminiResult(a, secondResult))},
		{"", contents(geminiUses(a) + "," + geminiResult(a) + `,{"role":"model","parts":[{"text":"ok"}]},` + hello)},
		{"", contents(geminiUses(a) + "," + geminiResult(a) + "," + hello)},
		{"", contents(`{"role":"user","parts":[` + image + `,{"text":"what?"}]}`)},
		{"", contents(`{"role":"model","parts":[{"text":"hm","thought":true},{"text":"ok"}]},` + hello)},
		{"", contents(geminiUses(a) + `,{"role":"user","parts":[{"functionResponse":{"id":"a","name":"bash","response":{"error":"x"},"parts":[` + image + `]}}]}`)},
		{"", geminiTool(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string","enum":["x"]},"nullable":true},"b":{"anyOf":[{"type":"string"},{"type":"integer"}]}},"required":["a"]}`)},
		{"", geminiConfig(`"temperature":2,"maxOutputTokens":5,"thinkingConfig":{"thinkingLevel":"low","includeThoughts":true}`)},
		{"", `{"contents":[` + hello + `],"systemInstruction":{"parts":[{"text":"be"}]}}`},

		// The order of contents.
		{RuleEmpty, `{"contents":[]}`},
		{RuleFirst, `{"contents":[{"role":"model","parts":[{"text":"a"}]},` + hello + `]}`},
		{RuleLast, contents(`{"role":"model","parts":[{"text":"a"}]}`)},
		{RuleRole, contents(`{"role":"assistant","parts":[{"text":"a"}]},` + hello)},
		{RuleRole, contents(`{"role":"model","parts":[{"text":"a"}]},{"role":"model","parts":[{"text":"b"}]},` + hello)},
		{RuleEmpty, contents(`{"role":"user","parts":[]}`)},
		{RuleBlank, contents(`{"role":"user","parts":[{"text":" "}]}`)},

		// Calls and their responses.
		{RuleMissingResult, contents(geminiUses(a) + "," + hello)},
		{RuleMissingResult, contents(geminiUses(a, second) + "," + geminiResult(a))},
		{RuleMissingResult, contents(geminiUses(a, second) + "," + geminiResult(b, strings.ReplaceAll(secondResult, `"b"`, `"a"`)))},
		{RuleStrayResult, contents(geminiResult(a))},
		{RuleStrayResult, contents(geminiUses(a) + "," + geminiResult(a) + "," + geminiResult(a))},
		{RuleResultsFirst, contents(geminiUses(a) + "," + geminiResult(a, `{"text":"more"}`))},
		{RuleEmpty, contents(geminiUses(a) + `,{"role":"user","parts":[{"functionResponse":{"id":"a","name":"bash","response":{}}}]}`)},
		{RuleArguments, contents(strings.Replace(geminiUses(a), `"args":{}`, `"args":"x"`, 1) + "," + geminiResult(a))},
		{RuleCallName, contents(strings.Replace(geminiUses(a), `"bash"`, `"ba sh"`, 1) + "," + geminiResult(a))},

		// Signatures.
		{RuleThinkingLost, contents(strings.Replace(geminiUses(a), skip, "", 1) + "," + geminiResult(a))},
		{"", contents(strings.Replace(geminiUses(a), skip, "", 1) + "," + geminiResult(a) + "," + hello)}, // an older turn
		{RuleThinkingBlock, contents(strings.Replace(geminiUses(a), skip, `,"thoughtSignature":"AAAA"`, 1) + "," + geminiResult(a))},
		{RuleThinkingBlock, contents(strings.Replace(geminiUses(a), skip, `,"thoughtSignature":"not base64"`, 1) + "," + geminiResult(a))},

		// Fields and kinds of parts.
		{RuleField, `{"contents":[` + hello + `],"stream":true}`},
		{RuleField, contents(`{"role":"user","parts":[{"text":"a","functionCall":{"name":"x"}}]}`)},
		{RuleField, contents(`{"role":"user","parts":[{"inlineData":{"mimeType":"image/gif","data":"R0lGODlh"}}]}`)},
		{RuleField, contents(`{"role":"user","parts":[{"inlineData":{"mimeType":"image/png","data":"%"}}]}`)},
		{RuleEmpty, `{"contents":[` + hello + `],"systemInstruction":{"parts":[]}}`},

		// Tools.
		{RuleTools, `{"contents":[` + hello + `],"tools":[]}`},
		{RuleTools, `{"contents":[` + hello + `],"tools":[{"functionDeclarations":[]}]}`},
		{RuleSchema, geminiTool(`{"type":"string"}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":["string","null"]}}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":"string","const":"x"}}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":"integer","enum":["x"]}}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":"string","enum":[""]}}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":"string","format":"uri"}}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":"array"}}}`)},
		{RuleSchema, geminiTool(`{"type":"object","properties":{"a":{"type":"string"}},"required":["b"]}`)},

		// What is asked of the model.
		{RuleThinking, geminiConfig(`"thinkingConfig":{"thinkingLevel":"low","thinkingBudget":5}`)},
		{RuleThinking, geminiConfig(`"thinkingConfig":{"thinkingLevel":"xhigh"}`)},
		{RuleThinking, geminiConfig(`"thinkingConfig":{"thinkingBudget":-2}`)},
		{RuleThinking, geminiConfig(`"thinkingConfig":{"thinkingBudget":0,"includeThoughts":true}`)},
		{RuleMaxTokens, geminiConfig(`"maxOutputTokens":0`)},
		{RuleField, geminiConfig(`"max_tokens":5`)},
	})
	judgeAll(t, gemini2Path, []verdict{
		{"", contents(strings.Replace(geminiUses(a), skip, "", 1) + "," + geminiResult(a))},
		{"", geminiConfig(`"thinkingConfig":{"thinkingBudget":0}`)},
		{RuleThinking, geminiConfig(`"thinkingConfig":{"thinkingLevel":"low"}`)},
		{RuleField, contents(geminiUses(a) + `,{"role":"user","parts":[{"functionResponse":{"id":"a","name":"bash","response":{"output":"x"},"parts":[` + image + `]}}]}`)},
	})
	judgeAll(t, proPath, []verdict{{RuleThinking, geminiConfig(`"thinkingConfig":{"thinkingBudget":0}`)}})
}

// frames are the chunks of a stream.
func geminiFrames(t *testing.T, stream string) []object {
	t.Helper()
	var out []object
	for _, line := range strings.Split(stream, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var o object
		if err := json.Unmarshal([]byte(data), &o); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		out = append(out, o)
	}
	return out
}

// What was signed must come back signed, with the same call, for the same
// model; what was not, must not.
func TestGeminiRemembersWhatItSigned(t *testing.T) {
	c := start(t, Options{Script: Script{
		{Reasoning{Text: "hm", Signature: "c2lnMQ=="}, Call{ID: "a", Name: "bash", Args: `{"x":1}`, Split: 3}, Call{ID: "b", Name: "bash"}},
		{Text{Text: "fine", Split: 2}, Reasoning{Redacted: true, Signature: "c2lnMg=="}}, {}, {},
	}})
	_, answer := c.post(geminiPath, contents(""))
	all := geminiFrames(t, answer)
	want := []string{`{"text":"hm","thought":true}`,
		`{"functionCall":{"args":{"x":1},"id":"a","name":"bash"},"thoughtSignature":"c2lnMQ=="}`,
		`{"functionCall":{"args":{},"id":"b","name":"bash"}}`, `{"text":""}`}
	if len(all) != len(want) {
		t.Fatalf("%d chunks: %s", len(all), answer)
	}
	for i, o := range all {
		cand := obj(list(o["candidates"])[0])
		if got := text(list(obj(cand["content"])["parts"])[0]); got != want[i] {
			t.Errorf("chunk %d: %s", i, got)
		}
		if reason := str(cand["finishReason"]); (reason == "STOP") != (i == len(all)-1) {
			t.Errorf("chunk %d: reason %q", i, reason)
		}
	}
	_, answer = c.post(geminiPath, contents(""))
	if !strings.Contains(answer, `{"text":"","thoughtSignature":"c2lnMg=="}`) {
		t.Errorf("the text's signature is missing: %s", answer)
	}
	turn := func(signature, args string) string {
		return contents(`{"role":"model","parts":[{"functionCall":{"id":"a","name":"bash","args":` + args + `}` + signature + `},{"functionCall":{"id":"b","name":"bash","args":{}}}]},` +
			`{"role":"user","parts":[{"functionResponse":{"id":"a","name":"bash","response":{"output":"x"}}},{"functionResponse":{"id":"b","name":"bash","response":{"output":"x"}}}]}`)
	}
	const signed = `,"thoughtSignature":"c2lnMQ=="`
	for _, tt := range []struct {
		path, body string
		rule       Rule
	}{
		{geminiPath, turn(signed, `{"x":1}`), ""},
		{geminiPath, turn(signed, `{"x":2}`), RuleThinkingBlock},
		{geminiPath, turn(skip, `{"x":1}`), RuleThinkingLost},
		{geminiPath, turn("", `{"x":1}`), RuleThinkingLost},
		{gemini2Path, turn(signed, `{"x":1}`), RuleThinkingBlock},
		{geminiPath, contents(`{"role":"model","parts":[{"text":"fine","thoughtSignature":"c2lnMg=="}]},` + hello), ""},
		{geminiPath, contents(`{"role":"model","parts":[{"text":"fin","thoughtSignature":"c2lnMg=="}]},` + hello), ""}, // the part it came on was empty
		{geminiPath, contents(geminiUses(`"id":"c"`, `{"text":"x","thoughtSignature":"c2lnMQ=="}`) + "," + geminiResult(`"id":"c"`)), RuleThinkingBlock},
	} {
		c.s.SetScripts(map[string]Script{DefaultScript: {{Text{Text: "ok"}}}})
		if rule, reason := judge(t, c, tt.path, tt.body); rule != tt.rule {
			t.Errorf("got %q (%s), want %q for\n%s", rule, reason, tt.rule, tt.body)
		}
	}
}

func TestGeminiErrorsKeysAndWholeAnswers(t *testing.T) {
	c := start(t, Options{RequireKey: "any", Script: Script{
		{HTTP{Status: 429, Message: "slow down"}}, {Text{Text: "a"}, Error{Type: "overloaded_error", Message: "busy"}},
		{Reasoning{Text: "hm"}, Text{Text: "a"}, Call{ID: "x", Name: "bash", Args: "{"}, Usage{Input: 3, CacheRead: 4, Output: 7, Reasoning: 2}},
	}})
	if status, _ := c.post(geminiPath, contents("")); status != 401 || len(c.s.TakeViolations()) != 1 {
		t.Errorf("without a key: %d", status)
	}
	c.key = "k"
	if status, body := c.post(geminiPath, contents("")); status != 429 || body != `{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED"}}` {
		t.Errorf("%d %s", status, body)
	}
	if _, body := c.post(geminiPath, contents("")); !strings.Contains(body, `data: {"error":{"code":503,"message":"busy","status":"UNAVAILABLE"}}`) {
		t.Errorf("in the stream: %s", body)
	}
	_, body := c.post(strings.Replace(geminiPath, geminiStream, geminiWhole, 1), contents(""))
	for _, want := range []string{`{"text":"hm","thought":true},{"text":"a"},{"functionCall":{"args":"{","id":"x","name":"bash"}}`, `"finishReason":"STOP"`,
		`"promptTokenCount":7`, `"candidatesTokenCount":5`, `"thoughtsTokenCount":2`, `"cachedContentTokenCount":4`, `"totalTokenCount":14`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
}
