package mockmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// responses is OpenAI Responses; with codex it is the backend of ChatGPT plans,
// which has an address, headers and refusals of its own.
type responses struct{ codex bool }

const (
	codexResponsesPath = "/codex/responses"
	// maxResponsesKey is the longest prompt_cache_key, call id or item id.
	maxResponsesKey = 64
	// minResponsesOutput is the least max_output_tokens.
	minResponsesOutput = 16
)

func (d responses) name() string {
	if d.codex {
		return "codex"
	}
	return "responses"
}

func (d responses) serves(path string) bool {
	return strings.HasSuffix(path, "/responses") && strings.HasSuffix(path, codexResponsesPath) == d.codex
}

func (responses) callID(n int64) string { return fmt.Sprintf("call_%08d", n) }
func (responses) errorEvent() string    { return "error" }
func responsesID(id int64) string       { return fmt.Sprintf("resp_%08d", id) }
func encryptedAsked(include any) bool {
	return slices.Contains(list(include), any("reasoning.encrypted_content"))
}
func (responses) itemKind(o object) string {
	if k := str(o["type"]); k != "" {
		return k
	}
	return "message"
}

// The ids of items name their response, their place in it, and, behind an "r",
// the place of the reasoning that they belong to: such an item does not come
// back without it.
var responsesItemID = regexp.MustCompile(`^(rs|msg|fc)_(\d{8,})_(\d+)(?:r(\d+))?$`)

func responsesItem(kind string, id int64, place, reasoning int) string {
	s := fmt.Sprintf("%s_%08d_%d", kind, id, place)
	if reasoning >= 0 {
		s += fmt.Sprintf("r%d", reasoning)
	}
	return s
}

func (d responses) view(_ *http.Request, b object) *View {
	v := &View{Protocol: d.name(), Model: str(b["model"]), Stream: truth(b["stream"]), Thinking: str(obj(b["reasoning"])["effort"]),
		MaxTokens: whole(b["max_output_tokens"]), encrypted: encryptedAsked(b["include"])}
	var system []string
	if s := str(b["instructions"]); s != "" {
		system = append(system, s)
	}
	said := func(role string, parts ...Part) {
		if n := len(v.Messages); n > 0 && role == "assistant" && v.Messages[n-1].Role == role {
			v.Messages[n-1].Parts = append(v.Messages[n-1].Parts, parts...)
			return
		}
		v.Messages = append(v.Messages, Message{Role: role, Parts: parts})
	}
	input := list(b["input"])
	if s, ok := b["input"].(string); ok {
		input = []any{object{"role": "user", "content": s}}
	}
	for _, raw := range input {
		o := obj(raw)
		switch d.itemKind(o) {
		case "reasoning":
			said("assistant", Part{Kind: PartReasoning, Text: summaryText(o), Signature: str(o["encrypted_content"])})
		case "function_call":
			said("assistant", Part{Kind: PartCall, ID: str(o["call_id"]), Name: str(o["name"]), Args: str(o["arguments"])})
		case "function_call_output":
			said("tool", Part{Kind: PartResult, ID: str(o["call_id"]), Text: joinTexts(o["output"])})
		case "message":
			role := str(o["role"])
			if role == "system" || role == "developer" {
				system = append(system, joinTexts(o["content"]))
				continue
			}
			var parts []Part
			if s, ok := o["content"].(string); ok {
				parts = append(parts, Part{Kind: PartText, Text: s})
			}
			for _, c := range list(o["content"]) {
				switch p := obj(c); str(p["type"]) {
				case "input_text", "output_text":
					parts = append(parts, Part{Kind: PartText, Text: str(p["text"])})
				case "input_image":
					parts = append(parts, Part{Kind: PartImage, Text: str(p["image_url"])})
				default:
					parts = append(parts, Part{Kind: PartOther, Text: text(c)})
				}
			}
			said(role, parts...)
		default:
			said("assistant", Part{Kind: PartOther, Text: text(raw)})
		}
	}
	v.System = strings.Join(system, "\n\n")
	for _, t := range list(b["tools"]) {
		o := obj(t)
		v.Tools = append(v.Tools, Tool{Name: str(o["name"]), Description: str(o["description"]), Schema: json.RawMessage(text(o["parameters"]))})
	}
	return v
}

func summaryText(o object) string {
	var out []string
	for _, s := range list(o["summary"]) {
		out = append(out, str(obj(s)["text"]))
	}
	return strings.Join(out, "\n\n")
}

// responsesFields are the parameters of the API, codexFields those that the
// backend of plans takes.
var (
	responsesFields = []string{"background", "context_management", "conversation", "include", "input", "instructions", "max_output_tokens",
		"max_tool_calls", "metadata", "model", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key",
		"prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options", "temperature",
		"text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"}
	codexFields = []string{"include", "input", "instructions", "model", "parallel_tool_calls", "prompt_cache_key", "reasoning",
		"service_tier", "store", "stream", "text", "tool_choice", "tools"}
	responsesInclude = []string{"reasoning.encrypted_content", "message.output_text.logprobs", "message.input_image.image_url"}
	responsesEfforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}
)

// check follows the errors of the OpenAI API, and of the backend of plans.
func (d responses) check(c *checker, h http.Header, b object) {
	if d.codex {
		d.checkCodex(c, h, b)
	}
	allowed := responsesFields
	if d.codex {
		allowed = codexFields
	}
	var unknown []string
	for k := range b {
		if !slices.Contains(allowed, k) {
			unknown = append(unknown, k)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		c.fault(RuleField, "unknown parameter: '%s'", unknown[0])
	}
	c.model(b)
	c.boolean("", b, "stream")
	if kept, ok := b["store"].(bool); !ok || kept {
		c.fault(RuleStore, "store: want false, so that nothing is kept and reasoning comes back encrypted")
	}
	for _, x := range list(b["include"]) {
		if !slices.Contains(responsesInclude, str(x)) {
			c.fault(RuleField, "include: %s is not supported", text(x))
		}
	}
	if f, ok := b["max_output_tokens"]; ok {
		c.positive(RuleMaxTokens, b, "max_output_tokens")
		if n, ok := f.(float64); ok && n < minResponsesOutput {
			c.fault(RuleMaxTokens, "max_output_tokens: want at least %d", minResponsesOutput)
		}
	}
	if k, ok := b["prompt_cache_key"]; ok && (str(k) == "" || len(str(k)) > maxResponsesKey) {
		c.fault(RuleField, "prompt_cache_key: want a text of at most %d characters", maxResponsesKey)
	}
	if raw, ok := b["reasoning"]; ok {
		r := obj(raw)
		c.keys("reasoning.", r, "effort", "summary")
		if e, ok := r["effort"]; ok && !slices.Contains(responsesEfforts, str(e)) {
			c.fault(RuleThinking, "reasoning.effort: %s is not supported", text(e))
		}
		if s, ok := r["summary"]; ok && !slices.Contains([]string{"auto", "concise", "detailed"}, str(s)) {
			c.fault(RuleThinking, "reasoning.summary: %s is not supported", text(s))
		}
		if _, ok := b["temperature"]; ok {
			c.fault(RuleSampling, "unsupported parameter: 'temperature' is not supported with a model that reasons")
		}
	}
	c.between(b, "temperature", 0, 2)
	c.between(b, "top_p", 0, 1)
	if s, ok := b["instructions"]; ok {
		c.text("instructions", s)
	}
	d.checkTools(c, b)
	d.checkInput(c, b)
}

// checkCodex checks what only the backend of plans asks for.
func (responses) checkCodex(c *checker, h http.Header, b object) {
	for _, want := range []struct{ name, value string }{
		{"chatgpt-account-id", ""}, {"originator", ""}, {"session-id", ""}, {"OpenAI-Beta", "responses=experimental"}, {"Accept", "text/event-stream"},
	} {
		switch got := h.Get(want.name); {
		case got == "":
			c.fault(RuleHeader, "%s: header is required", want.name)
		case want.value != "" && got != want.value:
			c.fault(RuleHeader, "%s: want %q, got %q", want.name, want.value, got)
		}
	}
	if h.Get("x-client-request-id") != h.Get("session-id") {
		c.fault(RuleHeader, "x-client-request-id: want the session's id")
	}
	if h.Get("X-Api-Key") != "" {
		c.fault(RuleHeader, "x-api-key: the token goes into Authorization")
	}
	if !truth(b["stream"]) {
		c.fault(RuleField, "stream must be set to true")
	}
	if _, ok := b["instructions"].(string); !ok {
		c.fault(RuleField, "instructions are required")
	}
	if str(b["tool_choice"]) != "auto" || !truth(b["parallel_tool_calls"]) {
		c.fault(RuleTools, "want tool_choice auto and parallel_tool_calls true")
	}
	if v := str(obj(b["text"])["verbosity"]); !slices.Contains([]string{"low", "medium", "high"}, v) {
		c.fault(RuleField, "text.verbosity: %q is not supported", v)
	}
}

func (responses) checkTools(c *checker, b object) {
	raw, ok := b["tools"]
	if !ok {
		return
	}
	tools, ok := raw.([]any)
	if !ok {
		c.fault(RuleTools, "tools: want a list")
	}
	names := map[string]bool{}
	for i, t := range tools {
		at := fmt.Sprintf("tools[%d]", i)
		o := obj(t)
		if str(o["type"]) != "function" {
			c.fault(RuleTools, "%s.type: want \"function\"", at)
		}
		c.keys(at+".", o, "type", "name", "description", "parameters", "strict")
		c.toolName(at+".name", o["name"], names)
		c.boolean(at+".", o, "strict")
		c.schema(at+".parameters", o["parameters"])
		if _, ok := obj(o["parameters"])["properties"]; !ok {
			c.fault(RuleSchema, "%s.parameters: an object schema needs properties", at)
		}
		// What does not say that it is not strict is taken for strict.
		if strict, ok := o["strict"].(bool); strict || !ok {
			c.strictSchema(at+".parameters", o["parameters"])
		}
	}
}

// responsesCheck goes through the items of one request.
type responsesCheck struct {
	*checker
	d     responses
	model string
	keeps bool            // reasoning was asked for in the form that comes back
	ids   map[string]bool // of items
	open  []string        // calls without a result
	calls map[string]bool // of the whole request; true: has its result
	turn  []thought       // since the other side last spoke
	said  map[string]bool // ids of the reasoning in the request
}

func (d responses) checkInput(base *checker, b object) {
	c := &responsesCheck{checker: base, d: d, model: str(b["model"]), keeps: encryptedAsked(b["include"]),
		ids: map[string]bool{}, calls: map[string]bool{}, said: map[string]bool{}}
	if s, ok := b["input"].(string); ok {
		c.text("input", s)
		return
	}
	input, ok := b["input"].([]any)
	if !ok || len(input) == 0 {
		c.fault(RuleEmpty, "input: want a list of at least one item")
		return
	}
	// Only the turn that still goes on must have its reasoning.
	lastSaid := -1
	for i, raw := range input {
		if o := obj(raw); d.itemKind(o) == "message" && str(o["role"]) == "user" {
			lastSaid = i
		}
	}
	for i, raw := range input {
		at := fmt.Sprintf("input[%d]", i)
		o, ok := raw.(object)
		if !ok {
			c.fault(RuleField, "%s: want an object", at)
			continue
		}
		var next object
		if i+1 < len(input) {
			next = obj(input[i+1])
		}
		switch kind := d.itemKind(o); kind {
		case "message":
			c.message(at, o)
		case "reasoning":
			c.reasoning(at, o, next)
		case "function_call":
			c.call(at, o, i > lastSaid)
		case "function_call_output":
			c.output(at, o)
		default:
			c.fault(RuleField, "%s.type: %q is not supported", at, kind)
		}
	}
	c.settled("the end")
}

// id checks the id of an item. It may be left out of everything but reasoning.
func (c *responsesCheck) id(at, prefix string, o object) {
	raw, ok := o["id"]
	if !ok {
		return
	}
	id := str(raw)
	m := responsesItemID.FindStringSubmatch(id)
	switch {
	case !strings.HasPrefix(id, prefix) || len(id) > maxResponsesKey:
		c.fault(RuleItemID, "%s.id: expected an id that begins with '%s', got %s", at, prefix, text(raw))
	case c.ids[id]:
		c.fault(RuleItemID, "%s: duplicate item found with id %s", at, id)
	case m == nil:
		c.fault(RuleItemID, "%s: item with id '%s' not found: it was never issued", at, id)
	case m[4] != "" && !c.said["rs_"+m[2]+"_"+m[4]]:
		c.fault(RuleThinkingLost, "%s: item '%s' was provided without its required 'reasoning' item: 'rs_%s_%s'", at, id, m[2], m[4])
	}
	c.ids[id] = true
}

func (c *responsesCheck) message(at string, o object) {
	role := str(o["role"])
	c.keys(at+".", o, "type", "role", "content", "id", "status", "phase")
	kinds := []string{"input_text", "input_image"}
	switch role {
	case "user", "system", "developer":
		c.settled(at)
		c.turn = nil
		if _, ok := o["phase"]; ok {
			c.fault(RuleField, "%s.phase: only for the assistant", at)
		}
	case "assistant":
		kinds = []string{"output_text", "refusal"}
		c.id(at, "msg", o)
		if p, ok := o["phase"]; ok && str(p) != "commentary" && str(p) != "final_answer" {
			c.fault(RuleField, "%s.phase: %s is not supported", at, text(p))
		}
	default:
		c.fault(RuleRole, "%s.role: unknown role %s", at, text(o["role"]))
		return
	}
	c.content(at+".content", o["content"], kinds)
}

func (c *responsesCheck) content(at string, v any, kinds []string) {
	if s, ok := v.(string); ok {
		c.text(at, s)
		return
	}
	parts, ok := v.([]any)
	if !ok || len(parts) == 0 {
		c.fault(RuleEmpty, "%s: must not be empty", at)
	}
	for i, raw := range parts {
		at := fmt.Sprintf("%s[%d]", at, i)
		p := obj(raw)
		kind := str(p["type"])
		if !slices.Contains(kinds, kind) {
			c.fault(RuleField, "%s.type: %s is not supported here", at, text(p["type"]))
			continue
		}
		switch kind {
		case "input_text":
			c.keys(at+".", p, "type", "text")
			c.text(at+".text", p["text"])
		case "output_text":
			c.keys(at+".", p, "type", "text", "annotations", "logprobs")
			c.text(at+".text", p["text"])
		case "input_image":
			c.keys(at+".", p, "type", "image_url", "detail", "file_id")
			url := str(p["image_url"])
			if rest, ok := strings.CutPrefix(url, "data:"); ok {
				media, data, _ := strings.Cut(rest, ";base64,")
				c.image(at+".image_url", media, data)
			} else if !strings.HasPrefix(url, "http") {
				c.fault(RuleField, "%s.image_url: want a data or http URL", at)
			}
		}
	}
}

func (c *responsesCheck) reasoning(at string, o, next object) {
	c.keys(at+".", o, "type", "id", "summary", "content", "encrypted_content", "status")
	c.id(at, "rs", o)
	id := str(o["id"])
	if id == "" {
		c.fault(RuleItemID, "%s.id: field required", at)
	}
	c.said[id] = true
	if _, ok := o["summary"].([]any); !ok {
		c.fault(RuleThinkingBlock, "%s.summary: field required", at)
	}
	for i, s := range list(o["summary"]) {
		c.keys(fmt.Sprintf("%s.summary[%d].", at, i), obj(s), "type", "text")
	}
	sealed := str(o["encrypted_content"])
	if sealed == "" {
		c.fault(RuleThinkingBlock, "%s: items are not kept when store is false: 'rs' needs its encrypted_content", at)
	}
	t := thought{model: c.model, signature: sealed, text: summaryText(o), redacted: len(list(o["summary"])) == 0}
	if t.text == "" && c.issued.fault(t) != "" {
		t.redacted = false // thinking that had no words
	}
	if why := c.issued.fault(t); why != "" {
		c.fault(RuleThinkingBlock, "%s: the encrypted content could not be verified: %s", at, why)
	}
	kind := ""
	if next != nil {
		kind = c.d.itemKind(next)
	}
	if kind != "reasoning" && kind != "function_call" && !(kind == "message" && str(next["role"]) == "assistant") {
		c.fault(RuleThinkingOrder, "%s: item '%s' of type 'reasoning' was provided without its required following item", at, id)
	}
	c.turn = append(c.turn, t)
}

func (c *responsesCheck) call(at string, o object, goesOn bool) {
	c.keys(at+".", o, "type", "id", "call_id", "name", "arguments", "status")
	c.id(at, "fc", o)
	id := str(o["call_id"])
	_, twice := c.calls[id]
	switch {
	case id == "" || len(id) > maxResponsesKey || c.d.codex && !anthropicID.MatchString(id):
		c.fault(RuleCallID, "%s.call_id: %s is not an id of at most %d characters", at, text(o["call_id"]), maxResponsesKey)
	case twice:
		c.fault(RuleDuplicateCall, "%s.call_id: the id %q is used twice", at, id)
	}
	c.calls[id] = false
	c.open = append(c.open, id)
	c.callName(at+".name", o["name"])
	if args, ok := o["arguments"].(string); !ok || !validJSON(args) {
		c.fault(RuleArguments, "%s.arguments: want a text that holds JSON", at)
	}
	if goesOn && c.keeps && !c.issued.complete(c.model, id, c.turn) {
		c.fault(RuleThinkingLost, "%s: the reasoning issued before the call %q must be sent back with it", at, id)
	}
}

func (c *responsesCheck) output(at string, o object) {
	c.keys(at+".", o, "type", "id", "call_id", "output", "status")
	id := str(o["call_id"])
	done, known := c.calls[id]
	switch {
	case !known:
		c.fault(RuleStrayResult, "%s: no tool call found for function call output with call_id %s", at, text(o["call_id"]))
	case done:
		c.fault(RuleDuplicateResult, "%s: a second output for the call %q", at, id)
	}
	c.calls[id] = true
	c.turn = nil
	c.open = slices.DeleteFunc(c.open, func(x string) bool { return x == id })
	c.content(at+".output", o["output"], []string{"input_text", "input_image"})
}

// settled checks that all calls have their results when somebody else speaks.
func (c *responsesCheck) settled(at string) {
	for _, id := range c.open {
		c.fault(RuleMissingResult, "no tool output found for function call %s before %s", id, at)
	}
	c.open = nil
}

func (responses) errorBody(status int, e Error) any {
	if status == http.StatusOK {
		// In the stream there is one word for what went wrong.
		code := e.Code
		if code == "" {
			code = e.Type
		}
		if code == "" {
			code = "server_error"
		}
		return object{"type": "error", "code": code, "message": e.Message, "param": nil, "sequence_number": 99}
	}
	return chat{}.errorBody(status, e)
}

func responsesUsage(u Usage) object {
	prompt := u.Input + u.CacheRead + u.CacheWrite
	o := object{
		"input_tokens": prompt, "input_tokens_details": object{"cached_tokens": u.CacheRead},
		"output_tokens": u.Output, "output_tokens_details": object{"reasoning_tokens": u.Reasoning},
		"total_tokens": prompt + u.Output,
	}
	if u.CacheWrite > 0 {
		obj(o["input_tokens_details"])["cache_write_tokens"] = u.CacheWrite
	}
	return o
}

// responsesReasons says in this protocol's words what others say in theirs; no
// word is a completed answer.
var responsesReasons = map[string]string{"": "", "stop": "", "end_turn": "", "tool_calls": "", "tool_use": "",
	"length": "max_output_tokens", "max_tokens": "max_output_tokens", "refusal": "content_filter"}

// responsesAnswer is the object that the last event repeats.
func responsesAnswer(v *View, id int64, u Usage, st End, output []object) object {
	reason, known := responsesReasons[st.Reason]
	if !known {
		reason = st.Reason
	}
	tier := u.Tier
	if tier == "" {
		tier = "default"
	}
	o := object{"id": responsesID(id), "object": "response", "created_at": 1700000000, "model": v.Model, "status": "completed",
		"output": output, "error": nil, "incomplete_details": nil, "service_tier": tier, "store": false, "usage": nil}
	if reason != "" {
		o["status"], o["incomplete_details"] = "incomplete", object{"reason": reason}
	}
	if !st.NoUsage {
		o["usage"] = responsesUsage(u)
	}
	return o
}

// responsesStream writes a message as its events: each item is opened, filled
// and closed before the next.
type responsesStream struct {
	out     *stream
	view    *View
	id      int64
	usage   Usage
	begun   bool
	n       int // events so far
	output  []object
	item    object // the open one; nil: none
	written strings.Builder
	thought int // place of the last reasoning; -1: none
}

func (responses) stream(out *stream, v *View, id int64, u Usage) encoder {
	return &responsesStream{out: out, view: v, id: id, usage: u, thought: -1}
}

func (e *responsesStream) event(kind string, o object) error {
	o["type"], o["sequence_number"] = kind, e.n
	e.n++
	return e.out.event(kind, o)
}

func (e *responsesStream) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	for _, kind := range []string{"created", "in_progress"} {
		err := e.event("response."+kind, object{"response": object{"id": responsesID(e.id), "object": "response", "status": "in_progress",
			"model": e.view.Model, "output": []any{}, "error": nil, "usage": nil, "service_tier": "auto"}})
		if err != nil {
			return err
		}
	}
	return nil
}

// part is where a delta belongs.
func (e *responsesStream) part(more object) object {
	o := object{"item_id": e.item["id"], "output_index": len(e.output)}
	for k, v := range more {
		o[k] = v
	}
	return o
}

// opened opens an item after closing the one before.
func (e *responsesStream) opened(kind, prefix string, item object) error {
	if err := e.begin(); err != nil {
		return err
	}
	if err := e.shut(); err != nil {
		return err
	}
	belongs := e.thought
	if kind == "reasoning" {
		belongs, e.thought = -1, len(e.output)
	}
	item["type"], item["id"] = kind, responsesItem(prefix, e.id, len(e.output), belongs)
	item["status"] = "in_progress"
	e.item = item
	e.written.Reset()
	return e.event("response.output_item.added", object{"output_index": len(e.output), "item": item})
}

// shut closes the open item with the events that repeat what was in it.
func (e *responsesStream) shut() error {
	if e.item == nil {
		return nil
	}
	whole := e.written.String()
	var err error
	switch e.item["type"] {
	case "message":
		part := object{"type": "output_text", "text": whole, "annotations": []any{}}
		e.item["content"] = []object{part}
		if err = e.event("response.output_text.done", e.part(object{"content_index": 0, "text": whole})); err == nil {
			err = e.event("response.content_part.done", e.part(object{"content_index": 0, "part": part}))
		}
	case "function_call":
		e.item["arguments"] = whole
		err = e.event("response.function_call_arguments.done", e.part(object{"arguments": whole}))
	}
	if err != nil {
		return err
	}
	e.item["status"] = "completed"
	if e.item["type"] == "reasoning" {
		delete(e.item, "status")
	}
	err = e.event("response.output_item.done", object{"output_index": len(e.output), "item": e.item})
	e.output = append(e.output, e.item)
	e.item = nil
	return err
}

func (e *responsesStream) text(delta string) error {
	if e.item == nil || e.item["type"] != "message" {
		if err := e.opened("message", "msg", object{"role": "assistant", "content": []any{}}); err != nil {
			return err
		}
		part := object{"type": "output_text", "text": "", "annotations": []any{}}
		if err := e.event("response.content_part.added", e.part(object{"content_index": 0, "part": part})); err != nil {
			return err
		}
	}
	e.written.WriteString(delta)
	return e.event("response.output_text.delta", e.part(object{"content_index": 0, "delta": delta, "logprobs": []any{}, "obfuscation": "xQ2"}))
}

func (e *responsesStream) reasoning(_ Reasoning, delta string) error {
	if e.item == nil || e.item["type"] != "reasoning" {
		if err := e.opened("reasoning", "rs", object{"summary": []any{}}); err != nil {
			return err
		}
		part := object{"type": "summary_text", "text": ""}
		if err := e.event("response.reasoning_summary_part.added", e.part(object{"summary_index": 0, "part": part})); err != nil {
			return err
		}
	}
	e.written.WriteString(delta)
	return e.event("response.reasoning_summary_text.delta", e.part(object{"summary_index": 0, "delta": delta}))
}

func (e *responsesStream) reasoned(st Reasoning) error {
	if st.Redacted {
		if err := e.opened("reasoning", "rs", object{"summary": []any{}}); err != nil {
			return err
		}
	} else {
		whole := e.written.String()
		part := object{"type": "summary_text", "text": whole}
		e.item["summary"] = []object{part}
		if err := e.event("response.reasoning_summary_text.done", e.part(object{"summary_index": 0, "text": whole})); err != nil {
			return err
		}
		if err := e.event("response.reasoning_summary_part.done", e.part(object{"summary_index": 0, "part": part})); err != nil {
			return err
		}
	}
	if e.view.encrypted {
		e.item["encrypted_content"] = st.Signature
	}
	return e.shut()
}

func (e *responsesStream) call(st Call, first string) error {
	err := e.opened("function_call", "fc", object{"call_id": st.ID, "name": st.Name, "arguments": ""})
	if err != nil || first == "" {
		return err
	}
	return e.args(st, first)
}

func (e *responsesStream) args(_ Call, fragment string) error {
	e.written.WriteString(fragment)
	return e.event("response.function_call_arguments.delta", e.part(object{"delta": fragment}))
}

func (e *responsesStream) end(st End) error {
	if err := e.begin(); err != nil {
		return err
	}
	if err := e.shut(); err != nil {
		return err
	}
	if st.NoReason || st.NoDone {
		return nil // one event says both
	}
	answer := responsesAnswer(e.view, e.id, e.usage, st, e.output)
	return e.event("response."+str(answer["status"]), object{"response": answer})
}

func (responses) whole(m *message, v *View, id int64, u Usage) any {
	output := []object{}
	thought := -1
	for _, st := range m.thoughts {
		item := object{"type": "reasoning", "id": responsesItem("rs", id, len(output), -1), "summary": []any{}}
		if !st.Redacted {
			item["summary"] = []object{{"type": "summary_text", "text": st.Text}}
		}
		if v.encrypted {
			item["encrypted_content"] = st.Signature
		}
		thought = len(output)
		output = append(output, item)
	}
	if s := m.text.String(); s != "" {
		output = append(output, object{"type": "message", "id": responsesItem("msg", id, len(output), thought), "role": "assistant",
			"status": "completed", "content": []object{{"type": "output_text", "text": s, "annotations": []any{}}}})
	}
	for _, c := range m.calls {
		output = append(output, object{"type": "function_call", "id": responsesItem("fc", id, len(output), thought), "status": "completed",
			"call_id": c.ID, "name": c.Name, "arguments": c.Args})
	}
	return responsesAnswer(v, id, u, m.ended, output)
}
