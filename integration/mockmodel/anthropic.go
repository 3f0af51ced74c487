package mockmodel

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"
)

// anthropic is Anthropic Messages.
type anthropic struct{}

// anthropicID is what ids of calls may look like.
var anthropicID = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

const (
	// maxCacheMarks is the number of cache_control marks of one request.
	maxCacheMarks = 4
	// minThinkingBudget is the least that budget_tokens may be.
	minThinkingBudget = 1024
)

func (anthropic) name() string            { return "anthropic" }
func (anthropic) serves(path string) bool { return strings.HasSuffix(path, "/messages") }
func (anthropic) callID(n int64) string   { return fmt.Sprintf("toolu_%08d", n) }
func (anthropic) errorEvent() string      { return "error" }
func anthropicMessageID(id int64) string  { return fmt.Sprintf("msg_%08d", id) }

func (d anthropic) view(_ *http.Request, b object) *View {
	v := &View{Protocol: d.name(), Model: str(b["model"]), Stream: truth(b["stream"]), MaxTokens: whole(b["max_tokens"]),
		System: joinTexts(b["system"]), Thinking: str(obj(b["thinking"])["type"])}
	for _, raw := range list(b["messages"]) {
		m := obj(raw)
		msg := Message{Role: str(m["role"])}
		for _, p := range anthropicBlocks(m["content"]) {
			part := Part{Kind: PartOther}
			switch str(p["type"]) {
			case "text":
				part = Part{Kind: PartText, Text: str(p["text"])}
			case "thinking":
				part = Part{Kind: PartReasoning, Text: str(p["thinking"]), Signature: str(p["signature"])}
			case "redacted_thinking":
				part = Part{Kind: PartReasoning, Signature: str(p["data"])}
			case "tool_use":
				part = Part{Kind: PartCall, ID: str(p["id"]), Name: str(p["name"]), Args: text(p["input"])}
			case "tool_result":
				part = Part{Kind: PartResult, ID: str(p["tool_use_id"]), Text: joinTexts(p["content"]), IsError: truth(p["is_error"])}
			case "image":
				part = Part{Kind: PartImage, Text: str(obj(p["source"])["media_type"])}
			default:
				part.Text = text(p)
			}
			msg.Parts = append(msg.Parts, part)
		}
		v.Messages = append(v.Messages, msg)
	}
	for _, t := range list(b["tools"]) {
		o := obj(t)
		v.Tools = append(v.Tools, Tool{Name: str(o["name"]), Description: str(o["description"]), Schema: json.RawMessage(text(o["input_schema"]))})
	}
	return v
}

// anthropicBlocks is a content value as blocks; a string is one text.
func anthropicBlocks(v any) []object {
	if s, ok := v.(string); ok {
		return []object{{"type": "text", "text": s}}
	}
	var out []object
	for _, p := range list(v) {
		if o := obj(p); o != nil {
			out = append(out, o)
		}
	}
	return out
}

// anthropicCheck goes through one request.
type anthropicCheck struct {
	*checker
	model    string
	thinking bool // asked for
	marks    int  // cache_control seen
	short    bool // one of five minutes among them
}

// check follows the errors that the Anthropic API gives.
func (anthropic) check(base *checker, h http.Header, b object) {
	c := &anthropicCheck{checker: base, model: str(b["model"])}
	if h.Get("Anthropic-Version") == "" {
		c.fault(RuleHeader, "anthropic-version: header is required")
	}
	c.checker.model(b)
	c.keys("", b, "model", "messages", "max_tokens", "cache_control", "container", "context_management", "inference_geo",
		"mcp_servers", "metadata", "output_config", "output_format", "service_tier", "speed", "stop_sequences", "stream",
		"system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p")
	if _, ok := b["max_tokens"]; !ok {
		c.fault(RuleMaxTokens, "max_tokens: field required")
	}
	c.positive(RuleMaxTokens, b, "max_tokens")
	c.boolean("", b, "stream")
	c.thinkingField(b)
	c.sampling(b)
	// Marks count in the order in which the provider reads a request.
	c.tools(b)
	c.system(b)
	c.messages(b)
	c.mark("", b)
}

func (c *anthropicCheck) thinkingField(b object) {
	raw, ok := b["thinking"]
	if !ok {
		return
	}
	th := obj(raw)
	switch str(th["type"]) {
	case "enabled":
		c.thinking = true
		c.keys("thinking.", th, "type", "budget_tokens", "display")
		budget, ok := th["budget_tokens"].(float64)
		switch {
		case !ok || budget != math.Trunc(budget):
			c.fault(RuleThinking, "thinking.budget_tokens: field required")
		case budget < minThinkingBudget:
			c.fault(RuleThinking, "thinking.budget_tokens: want at least %d", minThinkingBudget)
		case int(budget) >= whole(b["max_tokens"]):
			c.fault(RuleThinking, "max_tokens must be greater than thinking.budget_tokens")
		}
	case "adaptive":
		c.thinking = true
		c.keys("thinking.", th, "type", "display")
	case "disabled":
		c.keys("thinking.", th, "type")
	default:
		c.fault(RuleThinking, "thinking.type: want enabled, adaptive or disabled, got %s", text(th["type"]))
	}
}

func (c *anthropicCheck) sampling(b object) {
	c.between(b, "temperature", 0, 1)
	c.between(b, "top_p", 0, 1)
	c.positive(RuleSampling, b, "top_k")
	if !c.thinking {
		return
	}
	if t, ok := b["temperature"]; ok && t != 1.0 {
		c.fault(RuleSampling, "temperature: may only be 1 when thinking is on")
	}
	if _, ok := b["top_k"]; ok {
		c.fault(RuleSampling, "top_k: must not be set when thinking is on")
	}
	if p, ok := b["top_p"].(float64); ok && p < 0.95 {
		c.fault(RuleSampling, "top_p: must be at least 0.95 when thinking is on")
	}
	if t := str(obj(b["tool_choice"])["type"]); t == "any" || t == "tool" {
		c.fault(RuleThinking, "thinking may not be on when tool_choice forces a tool")
	}
}

func (c *anthropicCheck) tools(b object) {
	raw, ok := b["tools"]
	if !ok {
		if _, ok := b["tool_choice"]; ok {
			c.fault(RuleTools, "tool_choice: only allowed when tools are given")
		}
		return
	}
	tools, ok := raw.([]any)
	if !ok {
		c.fault(RuleTools, "tools: want a list")
	}
	names := map[string]bool{}
	for i, raw := range tools {
		at := fmt.Sprintf("tools.%d.", i)
		t := obj(raw)
		if k := str(t["type"]); k != "" && k != "custom" {
			c.fault(RuleTools, "%stype: tools of the type %q are not supported", at, k)
		}
		c.keys(at, t, "type", "name", "description", "input_schema", "cache_control", "strict", "defer_loading",
			"eager_input_streaming", "allowed_callers", "input_examples")
		c.toolName(at+"name", t["name"], names)
		c.schema(at+"input_schema", t["input_schema"])
		if truth(t["strict"]) {
			c.strictSchema(at+"input_schema", t["input_schema"])
		}
		c.mark(at, t)
	}
}

func (c *anthropicCheck) system(b object) {
	switch s := b["system"].(type) {
	case nil:
		if _, ok := b["system"]; ok {
			c.fault(RuleField, "system: must not be null")
		}
	case []any:
		if len(s) == 0 {
			c.fault(RuleEmpty, "system: must not be an empty list")
		}
		for i, raw := range s {
			at := fmt.Sprintf("system.%d.", i)
			p := obj(raw)
			if str(p["type"]) != "text" {
				c.fault(RuleField, "%stype: want \"text\"", at)
			}
			c.keys(at, p, "type", "text", "cache_control", "citations")
			c.text(at+"text", p["text"])
			c.mark(at, p)
		}
	default:
		c.text("system", s)
	}
}

// mark checks and counts the cache_control mark of an object.
func (c *anthropicCheck) mark(at string, o object) {
	raw, ok := o["cache_control"]
	if !ok || raw == nil {
		return
	}
	m := obj(raw)
	c.keys(at+"cache_control.", m, "type", "ttl")
	if str(m["type"]) != "ephemeral" {
		c.fault(RuleCacheControl, "%scache_control.type: want \"ephemeral\"", at)
	}
	if c.marks++; c.marks > maxCacheMarks {
		c.fault(RuleCacheControl, "%scache_control: at most %d blocks of a request may have one", at, maxCacheMarks)
	}
	switch ttl := str(m["ttl"]); {
	case ttl == "1h":
		if c.short {
			c.fault(RuleCacheControl, "%scache_control.ttl: 1h must not come after 5m", at)
		}
	case ttl == "5m" || m["ttl"] == nil:
		c.short = true
	default:
		c.fault(RuleCacheControl, "%scache_control.ttl: want 5m or 1h", at)
	}
}

// spoken is what one side said before the other spoke again: the provider
// merges messages of one role that follow each other.
type spoken struct {
	role   string
	index  int // of its first message
	blocks []object
	at     []string // where each block stands in the request
}

func (c *anthropicCheck) messages(b object) {
	messages, ok := b["messages"].([]any)
	if !ok || len(messages) == 0 {
		c.fault(RuleEmpty, "messages: want a list of at least one message")
		return
	}
	var turns []*spoken
	for i, raw := range messages {
		at := fmt.Sprintf("messages.%d", i)
		m, ok := raw.(object)
		if !ok {
			c.fault(RuleField, "%s: want an object", at)
			continue
		}
		role := str(m["role"])
		if role != "user" && role != "assistant" {
			c.fault(RuleRole, "%s.role: want user or assistant, got %s", at, text(m["role"]))
		}
		c.keys(at+".", m, "role", "content")
		parts, isList := m["content"].([]any)
		if s, ok := m["content"].(string); ok {
			c.text(at+".content", s)
		} else if !isList || len(parts) == 0 {
			c.fault(RuleEmpty, "%s.content: must not be empty", at)
		}
		if len(turns) == 0 || turns[len(turns)-1].role != role {
			turns = append(turns, &spoken{role: role, index: i})
		}
		t := turns[len(turns)-1]
		for j, p := range anthropicBlocks(m["content"]) {
			t.blocks = append(t.blocks, p)
			t.at = append(t.at, fmt.Sprintf("%s.content.%d", at, j))
		}
	}
	if len(turns) == 0 {
		return
	}
	if turns[0].role != "user" {
		c.fault(RuleFirst, "messages: the first message must have the user role")
	}
	calls := map[string]bool{} // ids of the whole request
	for i, t := range turns {
		for j, p := range t.blocks {
			c.block(t.role, t.at[j]+".", p, calls)
		}
		var before, after *spoken
		if i > 0 {
			before = turns[i-1]
		}
		if i+1 < len(turns) {
			after = turns[i+1]
		}
		if t.role == "assistant" {
			c.answered(t, after)
			c.thoughtsFirst(t)
		} else {
			c.results(t, before)
		}
	}
	c.thoughtsKept(turns)
	if turns[len(turns)-1].role != "user" {
		c.fault(RuleLast, "messages: the conversation must end with a message of the user")
	}
}

// block checks one block by itself.
func (c *anthropicCheck) block(role, at string, p object, calls map[string]bool) {
	kind := str(p["type"])
	switch role + " " + kind {
	case "user text", "assistant text":
		c.keys(at, p, "type", "text", "cache_control", "citations")
		c.text(at+"text", p["text"])
	case "user image":
		c.keys(at, p, "type", "source", "cache_control")
		c.source(at, p)
	case "user tool_result":
		c.keys(at, p, "type", "tool_use_id", "content", "is_error", "cache_control")
		c.boolean(at, p, "is_error")
		c.resultContent(at, p)
	case "assistant tool_use":
		c.keys(at, p, "type", "id", "name", "input", "cache_control", "caller")
		id := str(p["id"])
		switch {
		case !anthropicID.MatchString(id):
			c.fault(RuleCallID, "%sid: %s does not match %s", at, text(p["id"]), anthropicID)
		case calls[id]:
			c.fault(RuleDuplicateCall, "%sid: tool_use ids must be unique, %q is not", at, id)
		}
		calls[id] = true
		c.callName(at+"name", p["name"])
		if _, ok := p["input"].(object); !ok {
			c.fault(RuleArguments, "%sinput: want an object", at)
		}
	case "assistant thinking", "assistant redacted_thinking":
		if kind == "thinking" {
			c.keys(at, p, "type", "thinking", "signature")
			if _, ok := p["thinking"].(string); !ok {
				c.fault(RuleThinkingBlock, "%sthinking: field required", at)
			}
			if str(p["signature"]) == "" {
				c.fault(RuleThinkingBlock, "%ssignature: field required", at)
			}
		} else {
			c.keys(at, p, "type", "data")
			if str(p["data"]) == "" {
				c.fault(RuleThinkingBlock, "%sdata: field required", at)
			}
		}
		if why := c.issued.fault(c.thought(p)); why != "" {
			c.fault(RuleThinkingBlock, "%s%s: %s", at, kind, why)
		}
	default:
		c.fault(RuleField, "%stype: %s is not supported in a message of the role %q", at, text(p["type"]), role)
	}
	c.mark(at, p)
}

func (c *anthropicCheck) source(at string, p object) {
	src := obj(p["source"])
	switch str(src["type"]) {
	case "base64":
		c.image(at+"source", str(src["media_type"]), str(src["data"]))
	case "url":
		if !strings.HasPrefix(str(src["url"]), "http") {
			c.fault(RuleField, "%ssource.url: want an http URL", at)
		}
	default:
		c.fault(RuleField, "%ssource.type: %s is not supported", at, text(src["type"]))
	}
}

func (c *anthropicCheck) resultContent(at string, p object) {
	content := p["content"]
	if s, ok := content.(string); ok {
		c.text(at+"content", s)
		return
	}
	parts, ok := content.([]any)
	if !ok || len(parts) == 0 {
		c.fault(RuleEmpty, "%scontent: must not be empty", at)
	}
	for i, raw := range parts {
		at := fmt.Sprintf("%scontent.%d.", at, i)
		o := obj(raw)
		switch k := str(o["type"]); {
		case k == "text":
			c.keys(at, o, "type", "text", "cache_control", "citations")
			c.text(at+"text", o["text"])
		case k == "image" && !truth(p["is_error"]):
			c.source(at, o)
		case k == "image":
			c.fault(RuleField, "%stype: a result with is_error holds text only", at)
		default:
			c.fault(RuleField, "%stype: %s is not supported in a result", at, text(o["type"]))
		}
		c.mark(at, o)
	}
}

// answered checks that the calls of an assistant turn have results in the next.
func (c *anthropicCheck) answered(t, next *spoken) {
	have := map[string]bool{}
	if next != nil {
		for _, p := range next.blocks {
			if str(p["type"]) == "tool_result" {
				have[str(p["tool_use_id"])] = true
			}
		}
	}
	for i, p := range t.blocks {
		if str(p["type"]) == "tool_use" && !have[str(p["id"])] {
			c.fault(RuleMissingResult, "%s: the tool_use %q has no tool_result block immediately after it", t.at[i], str(p["id"]))
		}
	}
}

// results checks the results of a user turn against the calls before it.
func (c *anthropicCheck) results(t, before *spoken) {
	asked, seen := map[string]bool{}, map[string]bool{}
	if before != nil {
		for _, p := range before.blocks {
			if str(p["type"]) == "tool_use" {
				asked[str(p["id"])] = true
			}
		}
	}
	other := false
	for i, p := range t.blocks {
		if str(p["type"]) != "tool_result" {
			other = true
			continue
		}
		id := str(p["tool_use_id"])
		switch {
		case !asked[id]:
			c.fault(RuleStrayResult, "%s: unexpected tool_use_id %q: there is no such tool_use in the message before", t.at[i], id)
		case seen[id]:
			c.fault(RuleDuplicateResult, "%s: a second result for the tool_use %q", t.at[i], id)
		case other:
			c.fault(RuleResultsFirst, "%s: tool_result blocks must come before all other content", t.at[i])
		}
		seen[id] = true
	}
}

func thinks(p object) bool {
	k := str(p["type"])
	return k == "thinking" || k == "redacted_thinking"
}

func (c *anthropicCheck) thought(p object) thought {
	if str(p["type"]) == "redacted_thinking" {
		return thought{model: c.model, signature: str(p["data"]), redacted: true}
	}
	return thought{model: c.model, signature: str(p["signature"]), text: str(p["thinking"])}
}

// thoughtsFirst checks that in a turn with calls nothing comes before thinking.
func (c *anthropicCheck) thoughtsFirst(t *spoken) {
	calls, other := 0, false
	for _, p := range t.blocks {
		if str(p["type"]) == "tool_use" {
			calls++
		}
	}
	for i, p := range t.blocks {
		if thinks(p) && other && calls > 0 {
			c.fault(RuleThinkingOrder, "%s: thinking must come first in a message with tool calls", t.at[i])
		}
		other = other || !thinks(p)
	}
}

// thoughtsKept checks that the turn that still goes on, which is all since the
// user last said something, has the thinking that was issued with its calls.
func (c *anthropicCheck) thoughtsKept(turns []*spoken) {
	if !c.thinking {
		return
	}
	for i := len(turns) - 1; i >= 0; i-- {
		t := turns[i]
		if t.role == "user" {
			for _, p := range t.blocks {
				if str(p["type"]) != "tool_result" {
					return
				}
			}
			continue
		}
		var got []thought
		for j, p := range t.blocks {
			if thinks(p) {
				got = append(got, c.thought(p))
			}
			if str(p["type"]) != "tool_use" {
				continue
			}
			if !c.issued.complete(c.model, str(p["id"]), got) {
				c.fault(RuleThinkingLost, "%s: the thinking blocks issued before the tool_use %q must be sent back with it", t.at[j], str(p["id"]))
			}
		}
	}
}

func (anthropic) errorBody(status int, e Error) any {
	if e.Type == "" {
		switch status {
		case http.StatusOK, http.StatusInternalServerError:
			e.Type = "api_error"
		case http.StatusUnauthorized:
			e.Type = "authentication_error"
		case http.StatusForbidden:
			e.Type = "permission_error"
		case http.StatusNotFound:
			e.Type = "not_found_error"
		case http.StatusRequestEntityTooLarge:
			e.Type = "request_too_large"
		case http.StatusTooManyRequests:
			e.Type = "rate_limit_error"
		case 529: // the provider's own status for overload
			e.Type = "overloaded_error"
		default:
			e.Type = "invalid_request_error"
			if status > 500 {
				e.Type = "api_error"
			}
		}
	}
	inner := object{"type": e.Type, "message": e.Message}
	if e.Code != "" {
		inner["code"] = e.Code
	}
	return object{"type": "error", "error": inner}
}

// anthropicReasons says in this protocol's words what others say in theirs.
var anthropicReasons = map[string]string{"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}

func anthropicReason(st End, calls int) string {
	switch {
	case st.Reason != "":
		if r, ok := anthropicReasons[st.Reason]; ok {
			return r
		}
		return st.Reason
	case calls > 0:
		return "tool_use"
	}
	return "end_turn"
}

func anthropicUsage(u Usage, output int) object {
	return object{
		"input_tokens": u.Input, "output_tokens": output,
		"cache_read_input_tokens": u.CacheRead, "cache_creation_input_tokens": u.CacheWrite,
		"cache_creation": object{
			"ephemeral_5m_input_tokens": u.CacheWrite - u.CacheWrite1h,
			"ephemeral_1h_input_tokens": u.CacheWrite1h,
		},
	}
}

// anthropicStream writes a message as its events: each block is opened, filled
// and closed before the next.
type anthropicStream struct {
	out   *stream
	view  *View
	id    string
	usage Usage
	begun bool
	block int    // index of the next block
	open  string // type of the open block; empty: none
	calls int
}

func (anthropic) stream(out *stream, v *View, id int64, u Usage) encoder {
	return &anthropicStream{out: out, view: v, id: anthropicMessageID(id), usage: u}
}

func (e *anthropicStream) event(kind string, o object) error {
	o["type"] = kind
	return e.out.event(kind, o)
}

func (e *anthropicStream) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	err := e.event("message_start", object{"message": object{
		"id": e.id, "type": "message", "role": "assistant", "model": e.view.Model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": anthropicUsage(e.usage, 1),
	}})
	if err != nil {
		return err
	}
	return e.event("ping", object{})
}

// opened opens a block after closing the one before.
func (e *anthropicStream) opened(block object) error {
	if err := e.begin(); err != nil {
		return err
	}
	if err := e.shut(); err != nil {
		return err
	}
	e.open = str(block["type"])
	return e.event("content_block_start", object{"index": e.block, "content_block": block})
}

func (e *anthropicStream) shut() error {
	if e.open == "" {
		return nil
	}
	e.open = ""
	e.block++
	return e.event("content_block_stop", object{"index": e.block - 1})
}

func (e *anthropicStream) delta(d object) error {
	return e.event("content_block_delta", object{"index": e.block, "delta": d})
}

func (e *anthropicStream) text(delta string) error {
	if e.open != "text" {
		if err := e.opened(object{"type": "text", "text": ""}); err != nil {
			return err
		}
	}
	return e.delta(object{"type": "text_delta", "text": delta})
}

func (e *anthropicStream) reasoning(_ Reasoning, delta string) error {
	if e.open != "thinking" {
		if err := e.opened(object{"type": "thinking", "thinking": "", "signature": ""}); err != nil {
			return err
		}
	}
	return e.delta(object{"type": "thinking_delta", "thinking": delta})
}

func (e *anthropicStream) reasoned(st Reasoning) error {
	if st.Redacted {
		if err := e.opened(object{"type": "redacted_thinking", "data": st.Signature}); err != nil {
			return err
		}
		return e.shut()
	}
	if err := e.delta(object{"type": "signature_delta", "signature": st.Signature}); err != nil {
		return err
	}
	return e.shut()
}

func (e *anthropicStream) call(st Call, first string) error {
	if err := e.opened(object{"type": "tool_use", "id": st.ID, "name": st.Name, "input": object{}}); err != nil {
		return err
	}
	e.calls++
	return e.args(st, first)
}

func (e *anthropicStream) args(_ Call, fragment string) error {
	return e.delta(object{"type": "input_json_delta", "partial_json": fragment})
}

func (e *anthropicStream) end(st End) error {
	if err := e.begin(); err != nil {
		return err
	}
	if err := e.shut(); err != nil {
		return err
	}
	if !st.NoReason {
		o := object{"delta": object{"stop_reason": anthropicReason(st, e.calls), "stop_sequence": nil}}
		if !st.NoUsage {
			o["usage"] = anthropicUsage(e.usage, e.usage.Output)
		}
		if err := e.event("message_delta", o); err != nil {
			return err
		}
	}
	if st.NoDone {
		return nil
	}
	return e.event("message_stop", object{})
}

func (anthropic) whole(m *message, v *View, id int64, u Usage) any {
	content := []object{}
	for _, st := range m.thoughts {
		if st.Redacted {
			content = append(content, object{"type": "redacted_thinking", "data": st.Signature})
		} else {
			content = append(content, object{"type": "thinking", "thinking": st.Text, "signature": st.Signature})
		}
	}
	if s := m.text.String(); s != "" {
		content = append(content, object{"type": "text", "text": s})
	}
	for _, c := range m.calls {
		// Without a stream the provider has parsed the arguments; what is no JSON
		// can only be told as the string that it is.
		var input any = c.Args
		if validJSON(c.Args) {
			input = json.RawMessage(c.Args)
		}
		content = append(content, object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": input})
	}
	out := object{"id": anthropicMessageID(id), "type": "message", "role": "assistant", "model": v.Model, "content": content,
		"stop_reason": nil, "stop_sequence": nil}
	if !m.ended.NoReason {
		out["stop_reason"] = anthropicReason(m.ended, len(m.calls))
	}
	if !m.ended.NoUsage {
		out["usage"] = anthropicUsage(u, u.Output)
	}
	return out
}
