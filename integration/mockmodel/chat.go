package mockmodel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
)

// chat is OpenAI Chat Completions.
type chat struct{}

func (chat) name() string             { return "chat" }
func (chat) serves(path string) bool  { return strings.HasSuffix(path, "/chat/completions") }
func (chat) callID(n int64) string    { return fmt.Sprintf("call_%08d", n) }
func (chat) errorEvent() string       { return "" }
func chatID(id int64) string          { return fmt.Sprintf("chatcmpl-%08d", id) }
func (chat) thinking(b object) string { return str(b["reasoning_effort"]) }

func (d chat) view(_ *http.Request, b object) *View {
	v := &View{Protocol: d.name(), Model: str(b["model"]), Stream: truth(b["stream"]), Thinking: d.thinking(b)}
	if v.Thinking == "" {
		v.Thinking = str(obj(b["reasoning"])["effort"])
	}
	v.usage = truth(obj(b["stream_options"])["include_usage"]) || truth(obj(b["usage"])["include"])
	if v.MaxTokens = whole(b["max_completion_tokens"]); v.MaxTokens == 0 {
		v.MaxTokens = whole(b["max_tokens"])
	}
	var system []string
	for _, raw := range list(b["messages"]) {
		m := obj(raw)
		role := str(m["role"])
		if role == "system" || role == "developer" {
			system = append(system, joinTexts(m["content"]))
			continue
		}
		msg := Message{Role: role}
		if role == "tool" {
			msg.Parts = append(msg.Parts, Part{Kind: PartResult, ID: str(m["tool_call_id"]), Text: joinTexts(m["content"])})
			v.Messages = append(v.Messages, msg)
			continue
		}
		for _, k := range []string{FieldReasoningContent, FieldReasoning, FieldReasoningText} {
			if s, ok := m[k].(string); ok {
				msg.Parts = append(msg.Parts, Part{Kind: PartReasoning, Text: s})
			}
		}
		for _, r := range list(m[FieldReasoningDetails]) {
			o := obj(r)
			msg.Parts = append(msg.Parts, Part{Kind: PartReasoning, Text: str(o["text"]), Signature: str(o["signature"])})
		}
		if s, ok := m["content"].(string); ok {
			msg.Parts = append(msg.Parts, Part{Kind: PartText, Text: s})
		}
		for _, p := range list(m["content"]) {
			switch o := obj(p); str(o["type"]) {
			case "text":
				msg.Parts = append(msg.Parts, Part{Kind: PartText, Text: str(o["text"])})
			case "image_url":
				msg.Parts = append(msg.Parts, Part{Kind: PartImage, Text: str(obj(o["image_url"])["url"])})
			default:
				msg.Parts = append(msg.Parts, Part{Kind: PartOther, Text: text(p)})
			}
		}
		for _, c := range list(m["tool_calls"]) {
			f := obj(obj(c)["function"])
			msg.Parts = append(msg.Parts, Part{Kind: PartCall, ID: str(obj(c)["id"]), Name: str(f["name"]), Args: str(f["arguments"])})
		}
		v.Messages = append(v.Messages, msg)
	}
	v.System = strings.Join(system, "\n\n")
	for _, t := range list(b["tools"]) {
		f := obj(obj(t)["function"])
		v.Tools = append(v.Tools, Tool{Name: str(f["name"]), Description: str(f["description"]), Schema: json.RawMessage(text(f["parameters"]))})
	}
	return v
}

// check follows the errors that the OpenAI API and the common compatible
// servers give.
func (chat) check(c *checker, _ http.Header, b object) {
	c.model(b)
	c.boolean("", b, "stream")
	c.positive(RuleMaxTokens, b, "max_tokens")
	c.positive(RuleMaxTokens, b, "max_completion_tokens")
	if b["max_tokens"] != nil && b["max_completion_tokens"] != nil {
		c.fault(RuleMaxTokens, "setting max_tokens and max_completion_tokens at the same time is not supported")
	}
	c.between(b, "temperature", 0, 2)
	c.between(b, "top_p", 0, 1)
	if _, ok := b["stream_options"]; ok && !truth(b["stream"]) {
		c.fault(RuleField, "stream_options: only allowed when stream is on")
	}
	chatTools(c, b)
	messages, ok := b["messages"].([]any)
	if !ok || len(messages) == 0 {
		c.fault(RuleEmpty, "messages: want a list of at least one message")
	}
	open := map[string]bool{} // calls of the last assistant message; true: has its result
	var order []string        // their ids
	caller := -1              // that message
	settle := func() {
		for _, id := range order {
			if !open[id] {
				c.fault(RuleMissingResult, "messages.%d: an assistant message with tool_calls must be followed by tool messages for each of them; %q has none", caller, id)
			}
		}
		open, order = map[string]bool{}, nil
	}
	ids := map[string]bool{}
	for i, raw := range messages {
		at := fmt.Sprintf("messages.%d", i)
		m, ok := raw.(object)
		if !ok {
			c.fault(RuleField, "%s: want an object", at)
			continue
		}
		c.messageID(at, m, ids)
		role := str(m["role"])
		if role != "tool" {
			settle()
		}
		switch role {
		case "system", "developer":
			chatContent(c, at, m["content"], false)
		case "user":
			chatContent(c, at, m["content"], true)
		case "assistant":
			caller = i
			order = chatAssistant(c, at, m)
			for _, id := range order {
				if _, twice := open[id]; twice {
					c.fault(RuleDuplicateCall, "%s.tool_calls: the id %q is used twice", at, id)
				}
				open[id] = false
			}
		case "tool":
			id := str(m["tool_call_id"])
			done, known := open[id]
			switch {
			case id == "":
				c.fault(RuleCallID, "%s.tool_call_id: field required", at)
			case !known:
				c.fault(RuleStrayResult, "%s: a tool message must follow the assistant message whose tool_calls it answers; %q is not among them", at, id)
			case done:
				c.fault(RuleDuplicateResult, "%s: a second result for the call %q", at, id)
			}
			open[id] = true
			chatContent(c, at, m["content"], false)
		default:
			c.fault(RuleRole, "%s.role: unknown role %s", at, text(m["role"]))
		}
	}
	settle()
}

func chatTools(c *checker, b object) {
	raw, ok := b["tools"]
	if !ok {
		for _, k := range []string{"tool_choice", "parallel_tool_calls"} {
			if _, ok := b[k]; ok {
				c.fault(RuleTools, "%s: only allowed when tools are given", k)
			}
		}
		return
	}
	tools, ok := raw.([]any)
	if !ok || len(tools) == 0 {
		c.fault(RuleTools, "tools: want a list of at least one tool, or no such field")
	}
	names := map[string]bool{}
	for i, t := range tools {
		at := fmt.Sprintf("tools.%d", i)
		if str(obj(t)["type"]) != "function" {
			c.fault(RuleTools, "%s.type: want \"function\"", at)
		}
		f := obj(obj(t)["function"])
		c.toolName(at+".function.name", f["name"], names)
		c.boolean(at+".function.", f, "strict")
		p, ok := f["parameters"]
		if !ok {
			continue
		}
		c.schema(at+".function.parameters", p)
		if _, ok := obj(p)["properties"]; !ok {
			c.fault(RuleSchema, "%s.function.parameters: an object schema needs properties", at)
		}
		if truth(f["strict"]) {
			c.strictSchema(at+".function.parameters", p)
		}
	}
}

// chatContent checks the content of any message but the assistant's.
func chatContent(c *checker, at string, v any, rich bool) {
	at += ".content"
	parts, ok := v.([]any)
	if !ok {
		if v == nil {
			c.fault(RuleEmpty, "%s: must not be null", at)
			return
		}
		c.text(at, v)
		return
	}
	if len(parts) == 0 {
		c.fault(RuleEmpty, "%s: must not be an empty list", at)
	}
	for i, p := range parts {
		at := fmt.Sprintf("%s.%d", at, i)
		o := obj(p)
		switch t := str(o["type"]); {
		case t == "text":
			c.text(at+".text", o["text"])
		case t == "image_url" && rich:
			url := str(obj(o["image_url"])["url"])
			if rest, ok := strings.CutPrefix(url, "data:"); ok {
				media, data, _ := strings.Cut(rest, ";base64,")
				c.image(at+".image_url", media, data)
			} else if !strings.HasPrefix(url, "http") {
				c.fault(RuleField, "%s.image_url.url: want a data or http URL", at)
			}
		default:
			c.fault(RuleField, "%s.type: %s is not supported here", at, text(o["type"]))
		}
	}
}

// chatAssistant checks an assistant message and returns the ids of its calls.
func chatAssistant(c *checker, at string, m object) []string {
	raw, called := m["tool_calls"]
	calls, ok := raw.([]any)
	if called && (!ok || len(calls) == 0) {
		c.fault(RuleEmpty, "%s.tool_calls: want a list of at least one call, or no such field", at)
	}
	switch content := m["content"].(type) {
	case nil:
		if len(calls) == 0 {
			c.fault(RuleEmpty, "%s.content: null is only allowed beside tool_calls", at)
		}
	case string:
		// Some servers want "" beside calls and not null; all take it.
		if content != "" || len(calls) == 0 {
			c.text(at+".content", content)
		}
	default:
		chatContent(c, at, content, false)
	}
	var ids []string
	for i, raw := range calls {
		at := fmt.Sprintf("%s.tool_calls.%d", at, i)
		call := obj(raw)
		id := str(call["id"])
		if id == "" {
			c.fault(RuleCallID, "%s.id: field required", at)
		}
		ids = append(ids, id)
		if str(call["type"]) != "function" {
			c.fault(RuleField, "%s.type: want \"function\"", at)
		}
		f := obj(call["function"])
		c.callName(at+".function.name", f["name"])
		if args, ok := f["arguments"].(string); !ok || !validJSON(args) {
			c.fault(RuleArguments, "%s.function.arguments: want a text that holds JSON", at)
		}
	}
	return ids
}

func (chat) errorBody(status int, e Error) any {
	if e.Type == "" {
		switch {
		case status == http.StatusTooManyRequests:
			e.Type = "rate_limit_error"
		case status >= 500 || status == http.StatusOK:
			e.Type = "server_error"
		default:
			e.Type = "invalid_request_error"
		}
	}
	var code any
	switch {
	case e.Code != "":
		code = e.Code
	case status == http.StatusUnauthorized:
		code = "invalid_api_key"
	case status == http.StatusTooManyRequests:
		code = "rate_limit_exceeded"
	}
	return object{"error": object{"message": e.Message, "type": e.Type, "param": nil, "code": code}}
}

func chatUsage(u Usage) object {
	prompt := u.Input + u.CacheRead + u.CacheWrite
	o := object{
		"prompt_tokens": prompt, "completion_tokens": u.Output, "total_tokens": prompt + u.Output,
		"prompt_tokens_details":     object{"cached_tokens": u.CacheRead},
		"completion_tokens_details": object{"reasoning_tokens": u.Reasoning},
	}
	if u.CacheWrite > 0 {
		obj(o["prompt_tokens_details"])["cache_write_tokens"] = u.CacheWrite
	}
	if u.Cost != 0 {
		o["cost"] = u.Cost
	}
	return o
}

// chatReasons says in chat's words what other protocols say in theirs.
var chatReasons = map[string]string{"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}

func chatReason(st End, calls int) string {
	switch {
	case st.Reason != "":
		if r, ok := chatReasons[st.Reason]; ok {
			return r
		}
		return st.Reason
	case calls > 0:
		return "tool_calls"
	}
	return "stop"
}

// chatStream writes a message as chunks.
type chatStream struct {
	out   *stream
	view  *View
	id    string
	usage Usage
	begun bool
	think bool // inside of <think>
	calls int
}

func (chat) stream(out *stream, v *View, id int64, u Usage) encoder {
	return &chatStream{out: out, view: v, id: chatID(id), usage: u}
}

func (e *chatStream) chunk(choices []object, usage any) error {
	c := object{"id": e.id, "object": "chat.completion.chunk", "created": 1700000000, "model": e.view.Model, "choices": choices}
	if usage != nil {
		c["usage"] = usage
	} else if e.usage.Place == PlaceEvery {
		c["usage"] = chatUsage(e.usage)
	}
	return e.out.event("", c)
}

func (e *chatStream) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	return e.delta(object{"role": "assistant", "content": ""})
}

func (e *chatStream) delta(d object) error {
	if err := e.begin(); err != nil {
		return err
	}
	return e.chunk([]object{{"index": 0, "delta": d, "finish_reason": nil}}, nil)
}

func (e *chatStream) text(delta string) error { return e.delta(object{"content": delta}) }

func (e *chatStream) reasoning(st Reasoning, delta string) error {
	switch st.Field {
	case FieldThink:
		if !e.think {
			e.think = true
			delta = "<think>" + delta
		}
		return e.text(delta)
	case FieldReasoningDetails:
		return e.delta(object{"reasoning": delta, "reasoning_details": []object{chatDetail(object{"text": delta})}})
	case "":
		return e.delta(object{FieldReasoningContent: delta})
	}
	return e.delta(object{st.Field: delta})
}

// chatDetail is an entry of OpenRouter's reasoning_details.
func chatDetail(more object) object {
	d := object{"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
	maps.Copy(d, more)
	return d
}

func (e *chatStream) reasoned(st Reasoning) error {
	switch {
	case st.Redacted:
	case st.Field == FieldThink:
		e.think = false
		return e.text("</think>")
	case st.Field == FieldReasoningDetails:
		return e.delta(object{"reasoning_details": []object{chatDetail(object{"signature": st.Signature})}})
	}
	return nil
}

func (e *chatStream) callDelta(st Call, c object) error {
	if !st.NoIndex {
		c["index"] = e.calls - 1
	}
	return e.delta(object{"tool_calls": []object{c}})
}

func (e *chatStream) call(st Call, first string) error {
	e.calls++
	return e.callDelta(st, chatCall(st, first))
}

func chatCall(st Call, args string) object {
	c := object{"type": "function", "function": object{"name": st.Name, "arguments": args}}
	if !st.NoID {
		c["id"] = st.ID
	}
	return c
}

func (e *chatStream) args(st Call, fragment string) error {
	return e.callDelta(st, object{"function": object{"arguments": fragment}})
}

func (e *chatStream) end(st End) error {
	if err := e.begin(); err != nil {
		return err
	}
	if !st.NoReason {
		var usage any
		if e.usage.Place == PlaceFinish && !st.NoUsage {
			usage = chatUsage(e.usage)
		}
		if err := e.chunk([]object{{"index": 0, "delta": object{}, "finish_reason": chatReason(st, e.calls)}}, usage); err != nil {
			return err
		}
	}
	if e.view.usage && e.usage.Place == "" && !st.NoUsage {
		if err := e.chunk([]object{}, chatUsage(e.usage)); err != nil {
			return err
		}
	}
	if st.NoDone {
		return nil
	}
	return e.out.event("", "[DONE]")
}

func (chat) whole(m *message, v *View, id int64, u Usage) any {
	msg := object{"role": "assistant", "content": nil}
	said := "" // thinking between tags, then the text
	for _, st := range m.thoughts {
		field := st.Field
		switch {
		case st.Redacted:
			continue
		case field == FieldThink:
			said += "<think>" + st.Text + "</think>"
			continue
		case field == FieldReasoningDetails:
			msg[field] = append(details(msg[field]), chatDetail(object{"text": st.Text, "signature": st.Signature}))
			field = FieldReasoning
		case field == "":
			field = FieldReasoningContent
		}
		msg[field] = str(msg[field]) + st.Text
	}
	said += m.text.String()
	if said != "" || len(m.calls) == 0 {
		msg["content"] = said
	}
	var calls []object
	for _, c := range m.calls {
		calls = append(calls, chatCall(c, c.Args))
	}
	if calls != nil {
		msg["tool_calls"] = calls
	}
	choice := object{"index": 0, "message": msg}
	if !m.ended.NoReason {
		choice["finish_reason"] = chatReason(m.ended, len(m.calls))
	}
	out := object{"id": chatID(id), "object": "chat.completion", "created": 1700000000, "model": v.Model, "choices": []object{choice}}
	if !m.ended.NoUsage {
		out["usage"] = chatUsage(u)
	}
	return out
}

func details(v any) []object { d, _ := v.([]object); return d }
