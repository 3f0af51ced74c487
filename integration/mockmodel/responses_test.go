package mockmodel

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

const (
	responsesPath = "/v1/responses"
	codexPath     = "/backend-api/codex/responses"
)

// items is a request with a user message before those given, and with some
// fields replaced; "" removes one.
func items(input string, fields ...string) string {
	if input != "" {
		input = "," + input
	}
	o := map[string]json.RawMessage{
		"model": json.RawMessage(`"m"`), "stream": json.RawMessage("true"), "store": json.RawMessage("false"),
		"include": json.RawMessage(`["reasoning.encrypted_content"]`),
		"input":   json.RawMessage(`[{"role":"user","content":"hi"}` + input + `]`),
	}
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			delete(o, fields[i])
		} else {
			o[fields[i]] = json.RawMessage(fields[i+1])
		}
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func functionCall(id string) string {
	return `{"type":"function_call","call_id":"` + id + `","name":"bash","arguments":"{}"}`
}

func functionOutput(id string) string {
	return `{"type":"function_call_output","call_id":"` + id + `","output":"done"}`
}

func functionTool(more string) string {
	return items("", "tools", `[{"type":"function","name":"bash","parameters":{"type":"object","properties":{}}`+more+`}]`)
}

func TestStrictResponses(t *testing.T) {
	const more = `{"type":"message","role":"user","content":[{"type":"input_text","text":"more"}]}`
	said := `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]}`
	image := `{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,` + pixel + `"}`
	judgeAll(t, responsesPath, []verdict{
		// What is in order.
		{"", items("")},
		{"", items("", "input", `"hi"`)},
		{"", items(functionCall("a") + "," + functionCall("b") + "," + functionOutput("b") + "," + functionOutput("a") + "," + said + "," + more)},
		{"", items(said + "," + functionCall("a") + "," + functionOutput("a") + "," + functionCall("b") + "," + functionOutput("b"))},
		{"", items(strings.Replace(said, `"content"`, `"id":"msg_00000001_0","status":"completed","phase":"commentary","content"`, 1) + "," + more)},
		{"", items(`{"role":"user","content":[` + image + `]}`)},
		{"", items(functionCall("a") + `,{"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"x"},` + image + `]}`)},
		{"", items("", "max_output_tokens", "16", "temperature", "1", "instructions", `"be"`, "prompt_cache_key", `"k"`, "metadata", "{}", "service_tier", `"flex"`)},
		{"", items("", "reasoning", `{"effort":"none","summary":"auto"}`)},
		{"", functionTool(`,"strict":false`)},
		{"", items("", "tools", `[{"type":"function","name":"bash","strict":true,"parameters":{"type":"object","properties":{"a":{"type":["string","null"]}},"required":["a"],"additionalProperties":false}}]`)},

		// The request as a whole.
		{RuleModel, items("", "model", "")},
		{RuleField, items("", "stream", `"yes"`)},
		{RuleField, items("", "messages", `[]`)},
		{RuleField, items("", "max_tokens", "20")},
		{RuleField, items("", "include", `["everything"]`)},
		{RuleField, items("", "prompt_cache_key", `"`+strings.Repeat("k", 65)+`"`)},
		{RuleStore, items("", "store", "")},
		{RuleStore, items("", "store", "true")},
		{RuleMaxTokens, items("", "max_output_tokens", "15")},
		{RuleMaxTokens, items("", "max_output_tokens", `"many"`)},
		{RuleThinking, items("", "reasoning", `{"effort":"much"}`)},
		{RuleThinking, items("", "reasoning", `{"summary":"long"}`)},
		{RuleField, items("", "reasoning", `{"budget":1}`)},
		{RuleSampling, items("", "reasoning", `{"effort":"low"}`, "temperature", "1")},
		{RuleSampling, items("", "temperature", "3")},
		{RuleBlank, items("", "instructions", `" "`)},
		{RuleEmpty, items("", "input", "[]")},
		{RuleEmpty, items("", "input", "")},

		// Tools.
		{RuleTools, items("", "tools", `{}`)},
		{RuleTools, items("", "tools", `[{"type":"web_search"}]`)},
		{RuleTools, items("", "tools", `[{"type":"function","name":"a b","strict":false,"parameters":{"type":"object","properties":{}}}]`)},
		{RuleField, items("", "tools", `[{"type":"function","function":{}}]`)},
		{RuleSchema, functionTool("")}, // strict, as it does not say
		{RuleSchema, functionTool(`,"strict":true`)},
		{RuleSchema, items("", "tools", `[{"type":"function","name":"bash","strict":false,"parameters":{"type":"object"}}]`)},

		// Items.
		{RuleField, items(`"hi"`)},
		{RuleField, items(`{"type":"dream"}`)},
		{RuleRole, items(`{"role":"tool","content":"x"}`)},
		{RuleBlank, items(`{"role":"user","content":[{"type":"input_text","text":" "}]}`)},
		{RuleEmpty, items(`{"role":"user","content":[]}`)},
		{RuleField, items(`{"role":"user","content":[{"type":"output_text","text":"x"}]}`)},
		{RuleField, items(`{"role":"user","content":[{"type":"text","text":"x"}]}`)},
		{RuleField, items(`{"role":"user","content":[{"type":"input_image","image_url":"data:image/tiff;base64,AAAA"}]}`)},
		{RuleField, items(`{"role":"user","phase":"commentary","content":"x"}`)},
		{RuleField, items(strings.Replace(said, `"role"`, `"phase":"dream","role"`, 1) + "," + more)},
		{RuleItemID, items(strings.Replace(said, `"role"`, `"id":"fc_00000001_0","role"`, 1) + "," + more)},
		{RuleItemID, items(strings.Replace(said, `"role"`, `"id":"msg_abc","role"`, 1) + "," + more)},
		{RuleItemID, items(strings.Repeat(strings.Replace(said, `"role"`, `"id":"msg_00000001_0","role"`, 1)+",", 2) + more)},
		{RuleCallID, items(functionCall("") + "," + functionOutput(""))},
		{RuleCallID, items(functionCall(strings.Repeat("a", 65)) + "," + functionOutput(strings.Repeat("a", 65)))},
		{RuleItemID, items(strings.Replace(functionCall("a"), `"name"`, `"id":"call_1","name"`, 1) + "," + functionOutput("a"))},
		{RuleDuplicateCall, items(functionCall("a") + "," + functionOutput("a") + "," + functionCall("a") + "," + functionOutput("a"))},
		{RuleCallName, items(strings.Replace(functionCall("a"), "bash", "a b", 1) + "," + functionOutput("a"))},
		{RuleArguments, items(strings.Replace(functionCall("a"), `"{}"`, `"{"`, 1) + "," + functionOutput("a"))},
		{RuleArguments, items(strings.Replace(functionCall("a"), `"{}"`, `{}`, 1) + "," + functionOutput("a"))},
		{RuleMissingResult, items(functionCall("a"))},
		{RuleMissingResult, items(functionCall("a") + "," + more + "," + functionOutput("a"))},
		{RuleStrayResult, items(functionOutput("a"))},
		{RuleDuplicateResult, items(functionCall("a") + "," + functionOutput("a") + "," + functionOutput("a"))},
		{RuleEmpty, items(functionCall("a") + `,{"type":"function_call_output","call_id":"a","output":[]}`)},
		{RuleBlank, items(functionCall("a") + `,{"type":"function_call_output","call_id":"a","output":""}`)},

		// Reasoning that nobody issued.
		{RuleThinkingBlock, items(`{"type":"reasoning","id":"rs_00000001_0","summary":[],"encrypted_content":"x"},` + said + "," + more)},
		{RuleThinkingBlock, items(`{"type":"reasoning","id":"rs_00000001_0","summary":[]},` + said + "," + more)},
		{RuleItemID, items(`{"type":"reasoning","summary":[],"encrypted_content":"x"},` + said + "," + more)},
		{RuleThinkingLost, items(strings.Replace(functionCall("a"), `"name"`, `"id":"fc_00000001_1r0","name"`, 1) + "," + functionOutput("a"))},
	})
}

// output reads the items of an answer from its last event.
func output(t *testing.T, events []event) []object {
	t.Helper()
	last := events[len(events)-1]
	var out []object
	for _, raw := range list(obj(last.json(t)["response"])["output"]) {
		out = append(out, obj(raw))
	}
	return out
}

func TestReasoningMustComeBackAsIssued(t *testing.T) {
	c := start(t, Options{Script: Script{
		{Reasoning{Text: "hm", Signature: "sealed"}, Text{Text: "look"}, Call{ID: "a", Name: "bash", Args: "{}"}}, {Text{Text: "ok"}}, {Text{Text: "ok"}}, {Text{Text: "ok"}}}})
	got := output(t, c.whole(responsesPath, items("")))
	if len(got) != 3 || got[0]["encrypted_content"] != "sealed" || got[2]["id"] != "fc_00000001_2r0" {
		t.Fatalf("%v", got)
	}
	send := func(change func(all []string) []string) string {
		var all []string
		for _, o := range got {
			all = append(all, text(o))
		}
		return items(strings.Join(append(change(all), functionOutput("a")), ","))
	}
	for _, tt := range []struct {
		name string
		rule Rule
		body string
	}{
		{"as it was", "", send(func(all []string) []string { return all })},
		{"without ids", RuleThinkingLost, send(func(all []string) []string { return []string{functionCall("a")} })},
		{"without reasoning", RuleThinkingLost, send(func(all []string) []string { return all[1:] })},
		{"changed", RuleThinkingBlock, send(func(all []string) []string {
			return append([]string{strings.Replace(all[0], "hm", "oh", 1)}, all[1:]...)
		})},
		{"to another model", RuleThinkingBlock, strings.Replace(send(func(all []string) []string { return all }), `"model":"m"`, `"model":"other"`, 1)},
		{"at the end", RuleThinkingOrder, send(func(all []string) []string { return all[:1] })},
		{"as part of the past", "", strings.Replace(send(func(all []string) []string { return []string{functionCall("a")} }), `"done"}]`, `"done"},{"role":"user","content":"x"}]`, 1)},
		{"by one who did not ask for it", "", strings.Replace(send(func(all []string) []string { return []string{functionCall("a")} }), `"reasoning.encrypted_content"`, ``, 1)},
	} {
		if rule, reason := judge(t, c, responsesPath, tt.body); rule != tt.rule {
			t.Errorf("%s: got %q (%s), want %q", tt.name, rule, reason, tt.rule)
		}
	}
}

func TestResponsesHaveTheEventsOfTheAPI(t *testing.T) {
	c := start(t, Options{Script: Script{
		{Reasoning{Text: "hm", Split: 2}, Reasoning{Redacted: true, Signature: "x"}, Text{Text: "look", Split: 2}, Call{Name: "bash", Args: `{"a":1}`, Split: 2}, Usage{Input: 5, CacheRead: 3, CacheWrite: 2, Output: 4, Reasoning: 1, Tier: "flex"}},
		{Text{Text: "cut"}, End{Reason: "length"}},
		{Text{Text: "x"}, End{Reason: "refusal"}},
		{Text{Text: "x"}, End{NoDone: true}},
		{Text{Text: "x"}, Error{Type: "overloaded_error", Message: "busy"}},
		{Reasoning{Text: "hm"}, Text{Text: "ok"}},
	}})
	events := c.whole(responsesPath, items(""))
	var names []string
	for i, e := range events {
		o := e.json(t)
		if o["type"] != e.name || whole(o["sequence_number"]) != i {
			t.Errorf("event %d: %s %v", i, e.name, o)
		}
		names = append(names, strings.TrimPrefix(e.name, "response."))
	}
	want := []string{"created", "in_progress",
		"output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
		"output_item.added", "output_item.done",
		"output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
		"output_item.added", "function_call_arguments.delta", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"}
	if !slices.Equal(names, want) {
		t.Errorf("events\n%v\nwant\n%v", names, want)
	}
	response := obj(events[len(events)-1].json(t)["response"])
	if usage := text(response["usage"]); usage != `{"input_tokens":10,"input_tokens_details":{"cache_write_tokens":2,"cached_tokens":3},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":14}` || response["service_tier"] != "flex" {
		t.Errorf("usage %s, tier %v", usage, response["service_tier"])
	}
	for _, want := range []struct{ name, reason string }{{"incomplete", "max_output_tokens"}, {"incomplete", "content_filter"}} {
		events = c.whole(responsesPath, items(""))
		last := events[len(events)-1]
		if r := obj(last.json(t)["response"]); last.name != "response."+want.name || str(obj(r["incomplete_details"])["reason"]) != want.reason {
			t.Errorf("%s %v", last.name, r)
		}
	}
	events = c.whole(responsesPath, items(""))
	if last := events[len(events)-1]; last.name != "response.output_item.done" {
		t.Errorf("without an end: %s", last.name)
	}
	events = c.whole(responsesPath, items(""))
	if last := events[len(events)-1]; last.name != "error" || last.json(t)["code"] != "overloaded_error" {
		t.Errorf("error: %+v", last)
	}
	// Nothing comes in the form that can come back unless it was asked for.
	if got := output(t, c.whole(responsesPath, items("", "include", ""))); len(got) != 2 || got[0]["encrypted_content"] != nil {
		t.Errorf("%v", got)
	}
}

func TestAResponseWithoutAStream(t *testing.T) {
	c := start(t, Options{Script: Script{{Reasoning{Text: "hm", Signature: "s"}, Text{Text: "ok"}, Call{ID: "a", Name: "bash", Args: "{}"}}}})
	status, body := c.post(responsesPath, items("", "stream", "false"))
	var o object
	if err := json.Unmarshal([]byte(body), &o); err != nil || status != http.StatusOK {
		t.Fatal(status, err, body)
	}
	out := list(o["output"])
	if len(out) != 3 || obj(out[0])["encrypted_content"] != "s" || obj(out[2])["id"] != "fc_00000001_2r0" || o["status"] != "completed" {
		t.Errorf("%s", body)
	}
}

// codexBody is a request in order.
func codexBody(fields ...string) string {
	return items("", append([]string{"instructions", `"be"`, "tool_choice", `"auto"`, "parallel_tool_calls", "true", "text", `{"verbosity":"low"}`}, fields...)...)
}

func TestStrictCodex(t *testing.T) {
	c := start(t, Options{})
	send := func(body string, header map[string]string) (int, []Violation) {
		r := c.request(within(t), codexPath, body)
		for k, v := range map[string]string{"chatgpt-account-id": "a", "originator": "codework", "OpenAI-Beta": "responses=experimental",
			"Accept": "text/event-stream", "session-id": "s", "x-client-request-id": "s", "Authorization": "Bearer t"} {
			r.Header.Set(k, v)
		}
		for k, v := range header {
			r.Header.Del(k)
			if v != "" {
				r.Header.Set(k, v)
			}
		}
		resp, err := c.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, c.s.TakeViolations()
	}
	if status, v := send(codexBody("service_tier", `"priority"`), nil); status != http.StatusOK || len(v) > 0 {
		t.Fatal(status, v)
	}
	if got := c.s.Requests()[0].Protocol; got != "codex" {
		t.Errorf("protocol %q", got)
	}
	for _, tt := range []struct {
		rule   Rule
		body   string
		header map[string]string
	}{
		{RuleHeader, codexBody(), map[string]string{"chatgpt-account-id": ""}},
		{RuleHeader, codexBody(), map[string]string{"originator": ""}},
		{RuleHeader, codexBody(), map[string]string{"OpenAI-Beta": "x"}},
		{RuleHeader, codexBody(), map[string]string{"Accept": "*/*"}},
		{RuleHeader, codexBody(), map[string]string{"session-id": ""}},
		{RuleHeader, codexBody(), map[string]string{"x-client-request-id": "other"}},
		{RuleHeader, codexBody(), map[string]string{"X-Api-Key": "k"}},
		{RuleField, codexBody("max_output_tokens", "100"), nil},
		{RuleField, codexBody("top_p", "1"), nil},
		{RuleField, codexBody("seed", "1"), nil},
		{RuleField, codexBody("temperature", "1"), nil},
		{RuleField, codexBody("metadata", "{}"), nil},
		{RuleField, codexBody("instructions", ""), nil},
		{RuleField, codexBody("stream", "false"), nil},
		{RuleField, codexBody("text", ""), nil},
		{RuleStore, codexBody("store", "true"), nil},
		{RuleTools, codexBody("tool_choice", `"none"`), nil},
		{RuleTools, codexBody("parallel_tool_calls", "false"), nil},
		{RuleCallID, codexBody("input", `[{"role":"user","content":"hi"},`+functionCall("a|b")+`,`+functionOutput("a|b")+`]`), nil},
	} {
		status, v := send(tt.body, tt.header)
		if status != http.StatusBadRequest || len(v) != 1 || v[0].Rule != tt.rule {
			t.Errorf("%d %v, want %q for %v\n%s", status, v, tt.rule, tt.header, tt.body)
		}
	}
}
