package responses

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"

	"codework/messages"
	"codework/providers"
)

const (
	// maxCacheKey is the longest prompt_cache_key that is accepted.
	maxCacheKey = 64
	// minOutputTokens is the least max_output_tokens that is accepted.
	minOutputTokens = 16
	// maxItemID is the longest id of an item that is accepted.
	maxItemID = 64
	// noInstructions stands in for the instructions that the Codex backend
	// insists on.
	noInstructions = "You are a helpful assistant."
)

// notForCodex are fields that the Codex backend answers with 400.
var notForCodex = []string{"max_output_tokens", "temperature", "top_p", "seed", "stop", "metadata", "prompt_cache_retention"}

func body(req *messages.Request, c compat, codex bool) ([]byte, error) {
	target := c.target()
	turns := providers.History(req, target, func(m messages.Message) fragment { return encode(m, c) })
	tools := providers.Tools(req, target, func(dst []byte, d messages.ToolDefinition) []byte {
		return appendTool(dst, d, c.SupportsStrictMode)
	})
	size := len(req.System) + len(tools)
	for _, t := range turns {
		size += len(t.Body.items) + 1
	}
	if codex && len(req.Options.Extra) > 0 {
		fitted := *req
		fitted.Options.Extra = maps.Clone(req.Options.Extra)
		for _, name := range notForCodex {
			delete(fitted.Options.Extra, name)
		}
		req = &fitted
	}
	b := providers.NewBody(req, size)

	b.String("model", providers.ModelID(req.Model))
	switch {
	case strings.TrimSpace(req.System) != "":
		b.String("instructions", req.System)
	case codex:
		b.String("instructions", noInstructions)
	}
	b.Write("input", func(dst []byte) []byte { return appendInput(dst, turns) })
	if len(tools) > 0 {
		b.Write("tools", func(dst []byte) []byte { return append(append(append(dst, '['), tools...), ']') })
	}
	if codex {
		b.String("tool_choice", "auto")
		b.Set("parallel_tool_calls", true)
		b.Set("text", map[string]string{"verbosity": "low"})
	}
	b.Set("stream", true)
	b.Set("store", false)
	reasoning(b, req, c)
	if !codex {
		if req.Options.MaxTokens > 0 {
			// Reasoning counts as part of what is asked for here.
			var budget int64
			if req.Model.Reasoning {
				budget = providers.ThinkingBudget(req.Thinking, req.Options.ThinkingBudgets)
			}
			room := providers.FitRoom(req.Model, req.Options.MaxTokens, budget, providers.EstimateTokens(req))
			b.Set("max_output_tokens", max(room.MaxTokens, minOutputTokens))
		}
		if t := req.Options.Temperature; t != nil && c.SupportsTemperature {
			b.Set("temperature", *t)
		}
		if len(req.Options.Metadata) > 0 && c.SupportsMetadata {
			b.Set("metadata", req.Options.Metadata)
		}
	}
	if req.Options.CacheRetention != messages.CacheNone && req.SessionID != "" {
		b.String("prompt_cache_key", req.SessionID[:min(len(req.SessionID), maxCacheKey)])
		if req.Options.CacheRetention == messages.CacheLong && c.SupportsLongCacheRetention && !codex {
			b.String("prompt_cache_retention", "24h")
		}
	}
	return b.Bytes()
}

// reasoning asks for a thinking level, and for the reasoning in the encrypted
// form in which it may come back. Models that do not reason refuse both.
func reasoning(b *providers.Body, req *messages.Request, c compat) {
	if !req.Model.Reasoning {
		return
	}
	if c.SupportsEncryptedReasoning {
		b.Set("include", []string{"reasoning.encrypted_content"})
	}
	ask := map[string]string{}
	if req.Thinking != "" && req.Thinking != providers.Off {
		ask["effort"] = providers.ThinkingValue(req.Model, req.Thinking)
		if c.SupportsReasoningSummary {
			ask["summary"] = "auto"
		}
	} else if word, named := req.Model.ThinkingLevelMap[providers.Off]; !named {
		ask["effort"] = "none"
	} else if word != nil {
		ask["effort"] = *word
	}
	if !c.SupportsReasoningEffort {
		delete(ask, "effort")
	}
	if len(ask) > 0 {
		b.Set("reasoning", ask)
	}
}

// fragment is the encoded form of one turn: items joined by commas.
type fragment struct {
	items []byte
	ids   []span
}

// span is what of a fragment must go when another item has the id already:
// the field alone, or a whole item of reasoning with its comma.
type span struct {
	id         string
	start, end int
}

// appendInput writes the turns. A second item of one id is refused by the API;
// a careless server may have given it all the same.
func appendInput(dst []byte, turns []providers.Turn[fragment]) []byte {
	dst = append(dst, '[')
	seen := map[string]bool{}
	for i, t := range turns {
		if i > 0 {
			dst = append(dst, ',')
		}
		from := 0
		for _, s := range t.Body.ids {
			if seen[s.id] {
				dst = append(dst, t.Body.items[from:s.start]...)
				from = s.end
			}
			seen[s.id] = true
		}
		dst = append(dst, t.Body.items[from:]...)
	}
	return append(dst, ']')
}

func encode(m messages.Message, c compat) fragment {
	if m.Role != messages.RoleAssistant {
		return fragment{items: appendUser(nil, m.Parts)}
	}
	var f fragment
	next := func() {
		if len(f.items) > 0 {
			f.items = append(f.items, ',')
		}
	}
	for _, p := range m.Parts {
		switch p.Type {
		case messages.PartText:
			next()
			id, phase := readTextSignature(p.Signature)
			f.items = append(f.items, `{"type":"message","role":"assistant"`...)
			if itemID(id, "msg") {
				f.id(id)
			}
			if phase != "" {
				f.items = append(f.items, `,"phase":`...)
				f.items = providers.AppendString(f.items, phase)
			}
			f.items = append(f.items, `,"content":[{"type":"output_text","text":`...)
			f.items = append(providers.AppendString(f.items, p.Text), "}]}"...)
		case messages.PartThinking:
			raw, id := reasoningItem(p)
			if raw == nil {
				continue // not signed by this dialect
			}
			next()
			start := len(f.items)
			f.items = append(f.items, raw...)
			if id != "" { // something always follows, behind a comma
				f.ids = append(f.ids, span{id, start, len(f.items) + 1})
			}
		case messages.PartToolCall:
			next()
			f.items = append(f.items, `{"type":"function_call"`...)
			if itemID(p.ItemID, "fc") {
				f.id(p.ItemID)
			}
			f.items = append(f.items, `,"call_id":`...)
			f.items = providers.AppendString(f.items, p.CallID)
			f.items = append(f.items, `,"name":`...)
			f.items = providers.AppendString(f.items, p.Name)
			f.items = append(f.items, `,"arguments":`...)
			f.items = append(providers.AppendString(f.items, p.Arguments), '}')
		}
	}
	var images []messages.Part
	for _, p := range m.Parts {
		if p.Type == messages.PartToolCall {
			next()
			f.items, images = appendOutput(f.items, p, images, c)
		}
	}
	if len(images) > 0 {
		next()
		f.items = appendUser(f.items, images)
	}
	return f
}

// id writes the field of an item's id.
func (f *fragment) id(id string) {
	start := len(f.items)
	f.items = append(f.items, `,"id":`...)
	f.items = providers.AppendString(f.items, id)
	f.ids = append(f.ids, span{id, start, len(f.items)})
}

// itemID tells whether an id is one that the API takes back for an item of
// this kind. Items go without an id as well.
func itemID(id, kind string) bool {
	return strings.HasPrefix(id, kind) && len(id) <= maxItemID && providers.SafeCallID(id) == id
}

func appendUser(dst []byte, parts []messages.Part) []byte {
	dst = append(dst, `{"role":"user","content":[`...)
	return append(appendContent(dst, parts), "]}"...)
}

func appendContent(dst []byte, parts []messages.Part) []byte {
	for i, p := range parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		if p.Type == messages.PartImage {
			dst = append(dst, `{"type":"input_image","detail":"auto","image_url":"data:`+p.MediaType+`;base64,`...)
			dst = append(base64.StdEncoding.AppendEncode(dst, p.Data), `"}`...)
			continue
		}
		dst = append(dst, `{"type":"input_text","text":`...)
		dst = append(providers.AppendString(dst, p.Text), '}')
	}
	return dst
}

// appendOutput writes the result of a call, and adds to images those that must
// follow as the user's.
func appendOutput(dst []byte, call messages.Part, images []messages.Part, c compat) ([]byte, []messages.Part) {
	dst = append(dst, `{"type":"function_call_output","call_id":`...)
	dst = providers.AppendString(dst, call.CallID)
	dst = append(dst, `,"output":`...)
	var text, pictures []messages.Part
	for _, p := range call.Result.Content {
		if p.Type == messages.PartImage {
			pictures = append(pictures, p)
		} else {
			text = append(text, p)
		}
	}
	if len(pictures) > 0 && c.ImagesInToolResults {
		dst = appendContent(append(dst, '['), call.Result.Content)
		return append(dst, "]}"...), images
	}
	dst = append(dst, '"')
	// The protocol has no mark for a failed call.
	if call.Result.IsError && !(len(text) > 0 && startsWithError(text[0].Text)) {
		dst = append(dst, "error: "...)
	}
	for i, p := range text {
		if i > 0 {
			dst = append(dst, `\n`...)
		}
		dst = providers.AppendEscaped(dst, p.Text)
	}
	if len(pictures) > 0 {
		if len(text) > 0 {
			dst = append(dst, `\n`...)
		}
		dst = append(dst, "[the image follows]"...)
	}
	return append(dst, `"}`...), append(images, pictures...)
}

func startsWithError(s string) bool {
	const word = "error"
	return len(s) >= len(word) && strings.EqualFold(s[:len(word)], word)
}

func appendTool(dst []byte, d messages.ToolDefinition, strict bool) []byte {
	dst = append(dst, `{"type":"function","name":`...)
	dst = providers.AppendString(dst, d.Name)
	if d.Description != "" {
		dst = append(dst, `,"description":`...)
		dst = providers.AppendString(dst, d.Description)
	}
	schema := json.RawMessage(providers.Schema(d.Schema))
	exact := json.RawMessage(nil)
	if strict {
		exact = strictSchema(schema)
	}
	dst = append(dst, `,"parameters":`...)
	// Unset, the API makes schemas strict by itself, and fails at those that
	// cannot be.
	if exact != nil {
		return append(append(dst, exact...), `,"strict":true}`...)
	}
	return append(append(dst, schema...), `,"strict":false}`...)
}
