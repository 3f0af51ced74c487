package chat

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"codework/messages"
	"codework/providers"
)

// maxCacheKey is the longest prompt_cache_key that is accepted.
const maxCacheKey = 64

// piece is a part of a user message: text as an escaped string without quotes,
// or an image part as a JSON object.
type piece struct {
	raw  []byte
	text bool
}

// fragment is the encoded form of one turn.
type fragment struct {
	// body is an assistant message and the results of its calls, joined by
	// commas.
	body []byte
	// user is what a user said, or the images of the results before it.
	user []piece
}

func body(req *messages.Request, c compat) ([]byte, error) {
	target := c.target()
	turns := providers.History(req, target, func(m messages.Message) fragment { return encode(m, c) })
	size := len(req.System)
	for _, t := range turns {
		size += len(t.Body.body)
		for _, p := range t.Body.user {
			size += len(p.raw) + 64
		}
	}
	tools := providers.Tools(req, target, encodeTool)
	b := providers.NewBody(req, size+len(tools))

	b.String("model", providers.ModelID(req.Model))
	mark := cacheMark(req, c)
	b.Write("messages", func(dst []byte) []byte { return appendMessages(dst, req, c, turns, mark) })
	if len(tools) > 0 { // some servers refuse an empty list
		b.Write("tools", func(dst []byte) []byte {
			dst = append(append(dst, '['), tools...)
			if mark != "" {
				dst = append(append(dst[:len(dst)-1], mark...), '}')
			}
			return append(dst, ']')
		})
		if c.ZAIToolStream {
			b.Set("tool_stream", true)
		}
	}
	b.Set("stream", true)
	if c.SupportsUsageInStreaming {
		b.Set("stream_options", map[string]bool{"include_usage": true})
	}
	if c.ThinkingFormat == "openrouter" {
		b.Set("usage", map[string]bool{"include": true})
	}
	if req.Options.MaxTokens > 0 || c.AsksForMaximum && req.Model.MaxTokens > 0 {
		// Reasoning counts as part of what is asked for here.
		var budget int64
		if req.Model.Reasoning {
			budget = providers.ThinkingBudget(req.Thinking, req.Options.ThinkingBudgets)
		}
		room := providers.FitRoom(req.Model, req.Options.MaxTokens, budget, providers.EstimateTokens(req))
		b.Set(c.MaxTokensField, room.MaxTokens)
	}
	// OpenAI's reasoning models refuse any temperature but their own.
	if t := req.Options.Temperature; t != nil && c.SupportsTemperature && !(c.SupportsDeveloperRole && req.Model.Reasoning) {
		b.Set("temperature", *t)
	}
	thinking(b, req, c)
	if len(req.Options.Metadata) > 0 {
		b.Set("metadata", req.Options.Metadata)
	}
	if c.PromptCacheKey && req.Options.CacheRetention != messages.CacheNone && req.SessionID != "" {
		b.String("prompt_cache_key", req.SessionID[:min(len(req.SessionID), maxCacheKey)])
		switch {
		case req.Options.CacheRetention == messages.CacheLong && c.SupportsLongCacheRetention:
			b.String("prompt_cache_retention", "24h")
		case req.Options.CacheRetention != "":
			b.String("prompt_cache_retention", "in_memory")
		}
	}
	return b.Bytes()
}

// thinking asks for a thinking level in the server's way.
func thinking(b *providers.Body, req *messages.Request, c compat) {
	if !req.Model.Reasoning {
		return
	}
	on := req.Thinking != "" && req.Thinking != providers.Off
	value := providers.ThinkingValue(req.Model, req.Thinking)
	switch c.ThinkingFormat {
	case "openrouter":
		if on {
			b.Set("reasoning", map[string]string{"effort": value})
		}
		return
	case "deepseek", "zai":
		kind := "disabled"
		if on {
			kind = "enabled"
		}
		b.Set("thinking", map[string]string{"type": kind})
	case "together":
		b.Set("reasoning", map[string]bool{"enabled": on})
	case "qwen":
		b.Set("enable_thinking", on)
	}
	if len(c.ChatTemplateArgs) > 0 {
		args := make(map[string]json.RawMessage, len(c.ChatTemplateArgs))
		for name, raw := range c.ChatTemplateArgs {
			var v struct {
				Var string `json:"$var"`
			}
			if json.Unmarshal(raw, &v) == nil && v.Var == "thinking.enabled" {
				raw, _ = json.Marshal(on)
			}
			args[name] = raw
		}
		b.Set("chat_template_args", args)
	}
	if on && c.effort() {
		b.String("reasoning_effort", value)
	}
}

// cacheMark is the field that marks what a cache shall keep; "" for none.
func cacheMark(req *messages.Request, c compat) string {
	switch {
	case c.CacheControlFormat != "anthropic", req.Options.CacheRetention == messages.CacheNone:
		return ""
	case req.Options.CacheRetention == messages.CacheLong && c.SupportsLongCacheRetention:
		return `,"cache_control":{"type":"ephemeral","ttl":"1h"}`
	}
	return `,"cache_control":{"type":"ephemeral"}`
}

func appendMessages(dst []byte, req *messages.Request, c compat, turns []providers.Turn[fragment], mark string) []byte {
	dst = append(dst, '[')
	first := true
	next := func() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
	}
	if strings.TrimSpace(req.System) != "" {
		next()
		role := "system"
		if c.SupportsDeveloperRole && req.Model.Reasoning {
			role = "developer"
		}
		dst = append(dst, `{"role":"`+role+`","content":`...)
		if mark == "" {
			dst = providers.AppendString(dst, req.System)
		} else {
			dst = append(dst, `[{"type":"text","text":`...)
			dst = append(append(providers.AppendString(dst, req.System), mark...), `}]`...)
		}
		dst = append(dst, '}')
	}
	// The last turn with words of the user is the one that is marked.
	last := -1
	for i, t := range turns {
		if len(t.Body.user) > 0 {
			last = i
		}
	}
	// User turns that follow each other become one message: the templates of
	// many models insist on turns that alternate.
	var user []piece
	flush := func(mark string) {
		if len(user) > 0 {
			next()
			dst = appendUser(dst, user, mark)
			user = user[:0]
		}
	}
	for i, t := range turns {
		if t.Role == messages.RoleAssistant {
			if i > last {
				flush(mark)
			} else {
				flush("")
			}
			next()
			dst = append(dst, t.Body.body...)
		}
		user = append(user, t.Body.user...)
	}
	flush(mark)
	return append(dst, ']')
}

// appendUser writes a user message, as a plain string when it is only text:
// not every server knows parts. A mark goes into the last part.
func appendUser(dst []byte, pieces []piece, mark string) []byte {
	dst = append(dst, `{"role":"user","content":`...)
	text := mark == ""
	for _, p := range pieces {
		text = text && p.text
	}
	if text {
		dst = append(dst, '"')
		for i, p := range pieces {
			if i > 0 {
				dst = append(dst, `\n\n`...)
			}
			dst = append(dst, p.raw...)
		}
		return append(dst, '"', '}')
	}
	dst = append(dst, '[')
	for i, p := range pieces {
		if i > 0 {
			dst = append(dst, ',')
		}
		if p.text {
			dst = append(dst, `{"type":"text","text":"`...)
			dst = append(append(dst, p.raw...), '"', '}')
		} else {
			dst = append(dst, p.raw...)
		}
	}
	if mark != "" {
		dst = append(append(dst[:len(dst)-1], mark...), '}')
	}
	return append(dst, ']', '}')
}

func encode(m messages.Message, c compat) fragment {
	if m.Role != messages.RoleAssistant {
		return fragment{user: pieces(m.Parts)}
	}
	var f fragment
	var text, thinking, details, calls []byte
	join := func(dst []byte, s, between string) []byte {
		if len(dst) > 0 {
			dst = append(dst, between...)
		}
		return providers.AppendEscaped(dst, s)
	}
	for _, p := range m.Parts {
		switch p.Type {
		case messages.PartText:
			text = join(text, p.Text, `\n\n`)
		case messages.PartThinking:
			thinking = join(thinking, p.Text, `\n\n`)
			if c.ThinkingFormat == "openrouter" && strings.HasPrefix(p.Signature, "[") && json.Valid([]byte(p.Signature)) {
				inner := strings.TrimSpace(p.Signature)
				inner = inner[1 : len(inner)-1]
				if len(details) > 0 && inner != "" {
					details = append(details, ',')
				}
				details = append(details, inner...)
			}
		case messages.PartToolCall:
			if len(calls) > 0 {
				calls = append(calls, ',')
			}
			calls = append(calls, `{"id":`...)
			calls = providers.AppendString(calls, p.CallID)
			calls = append(calls, `,"type":"function","function":{"name":`...)
			calls = providers.AppendString(calls, p.Name)
			calls = append(calls, `,"arguments":`...)
			calls = providers.AppendString(calls, p.Arguments)
			calls = append(calls, '}', '}')
		}
	}
	out := append(f.body, `{"role":"assistant","content":`...)
	switch {
	case len(text) > 0:
		out = append(append(append(out, '"'), text...), '"')
	case c.EmptyContent || len(calls) == 0:
		out = append(out, `""`...)
	default:
		out = append(out, "null"...)
	}
	if c.RequiresReasoningContent {
		out = append(append(append(out, `,"reasoning_content":"`...), thinking...), '"')
	}
	if len(details) > 0 {
		out = append(append(append(out, `,"reasoning_details":[`...), details...), ']')
	}
	if len(calls) > 0 {
		out = append(append(append(out, `,"tool_calls":[`...), calls...), ']')
	}
	out = append(out, '}')
	for _, p := range m.Parts {
		if p.Type == messages.PartToolCall {
			var images []piece
			out, images = appendResult(append(out, ','), p, c)
			f.user = append(f.user, images...)
		}
	}
	f.body = out
	return f
}

// appendResult writes a result message and returns the images that must follow
// as the user's.
func appendResult(dst []byte, call messages.Part, c compat) ([]byte, []piece) {
	dst = append(dst, `{"role":"tool","tool_call_id":`...)
	dst = providers.AppendString(dst, call.CallID)
	if c.RequiresToolResultName {
		dst = append(dst, `,"name":`...)
		dst = providers.AppendString(dst, call.Name)
	}
	dst = append(dst, `,"content":`...)
	all := pieces(call.Result.Content)
	var text, images []piece
	for _, p := range all {
		if p.text {
			text = append(text, p)
		} else {
			images = append(images, p)
		}
	}
	if len(images) > 0 && c.ImagesInToolResults {
		dst = append(dst, '[')
		for i, p := range all {
			if i > 0 {
				dst = append(dst, ',')
			}
			if p.text {
				dst = append(append(append(dst, `{"type":"text","text":"`...), p.raw...), '"', '}')
			} else {
				dst = append(dst, p.raw...)
			}
		}
		return append(dst, ']', '}'), nil
	}
	dst = append(dst, '"')
	// The protocol has no mark for a failed call.
	if call.Result.IsError && !(len(text) > 0 && startsWithError(text[0].raw)) {
		dst = append(dst, "error: "...)
	}
	for i, p := range text {
		if i > 0 {
			dst = append(dst, `\n`...)
		}
		dst = append(dst, p.raw...)
	}
	if len(images) > 0 {
		if len(text) > 0 {
			dst = append(dst, `\n`...)
		}
		dst = append(dst, "[the image follows]"...)
	}
	return append(dst, '"', '}'), images
}

func startsWithError(raw []byte) bool {
	const word = "error"
	return len(raw) >= len(word) && strings.EqualFold(string(raw[:len(word)]), word)
}

// pieces encodes text and images.
func pieces(parts []messages.Part) []piece {
	out := make([]piece, 0, len(parts))
	for _, p := range parts {
		if p.Type != messages.PartImage {
			out = append(out, piece{raw: providers.AppendEscaped(nil, p.Text), text: true})
			continue
		}
		raw := append([]byte(nil), `{"type":"image_url","image_url":{"url":"data:`+p.MediaType+`;base64,`...)
		raw = base64.StdEncoding.AppendEncode(raw, p.Data)
		out = append(out, piece{raw: append(raw, `"}}`...)})
	}
	return out
}

func encodeTool(dst []byte, d messages.ToolDefinition) []byte {
	dst = append(dst, `{"type":"function","function":{"name":`...)
	dst = providers.AppendString(dst, d.Name)
	if d.Description != "" {
		dst = append(dst, `,"description":`...)
		dst = providers.AppendString(dst, d.Description)
	}
	dst = append(dst, `,"parameters":`...)
	dst = append(dst, providers.Schema(d.Schema)...)
	return append(dst, '}', '}')
}

func header(req *messages.Request, c compat) http.Header {
	h := http.Header{}
	if key := strings.TrimSpace(req.APIKey); key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
	if c.SendSessionAffinityHeaders && req.SessionID != "" && req.Options.CacheRetention != messages.CacheNone {
		h.Set("session_id", req.SessionID)
		h.Set("x-session-affinity", req.SessionID)
	}
	return h
}
