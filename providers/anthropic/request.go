package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"codework/messages"
	"codework/providers"
)

const (
	// minBudget is the least thinking budget the API accepts.
	minBudget = 1024
	// maxImageBase64 is the most bytes of one image in base64.
	maxImageBase64 = 5 << 20
)

// fragment is the encoded form of one turn: content blocks joined by commas.
type fragment struct {
	blocks []byte // of the turn itself
	// results are the tool_result blocks that open the next user message.
	results []byte
	thinks  bool // begins with a thinking block
}

// compat are the names of a model's compat entry that this dialect knows.
type compat struct {
	// ForceAdaptiveThinking: the model takes an effort instead of a budget.
	ForceAdaptiveThinking bool `json:"forceAdaptiveThinking"`
	// SupportsTemperature false drops the option.
	SupportsTemperature bool `json:"supportsTemperature"`
	// SupportsLongCacheRetention false never asks for an hour.
	SupportsLongCacheRetention bool `json:"supportsLongCacheRetention"`
	// SupportsCacheControlOnTools false marks no tool.
	SupportsCacheControlOnTools bool `json:"supportsCacheControlOnTools"`
	// AllowEmptySignature sends the model's own unsigned thinking back.
	AllowEmptySignature bool `json:"allowEmptySignature"`
}

func compatOf(m messages.Model) compat {
	c := compat{SupportsTemperature: true, SupportsLongCacheRetention: true, SupportsCacheControlOnTools: true}
	for name, raw := range m.Compat {
		field, _ := json.Marshal(map[string]json.RawMessage{name: raw})
		json.Unmarshal(field, &c) // a wrong type counts as unset
	}
	return c
}

type encodedRequest struct {
	body        []byte
	interleaved bool
}

func encodeRequest(req *messages.Request) (encodedRequest, error) {
	c := compatOf(req.Model)
	target := providers.Target{
		KeepUnsigned:  c.AllowEmptySignature,
		MaxImageBytes: base64.StdEncoding.DecodedLen(maxImageBase64),
	}
	if c.AllowEmptySignature {
		target.Key = "unsigned"
	}
	turns := providers.History(req, target, encode)
	tools := providers.Tools(req, target, encodeTool)
	mark := cacheMark(req, c)

	size := len(req.System) + len(tools)
	for _, t := range turns {
		size += len(t.Body.blocks) + len(t.Body.results) + 64
	}
	b := providers.NewBody(req, size)
	b.String("model", providers.ModelID(req.Model))

	level, room := think(req, c, turns)
	b.Set("max_tokens", room.MaxTokens)
	if strings.TrimSpace(req.System) != "" {
		b.Write("system", func(dst []byte) []byte {
			dst = append(dst, `[{"type":"text","text":`...)
			dst = append(providers.AppendString(dst, req.System), '}')
			return append(marked(dst, mark), ']')
		})
	}
	b.Write("messages", func(dst []byte) []byte { return appendMessages(dst, turns, mark) })
	if len(tools) > 0 {
		b.Write("tools", func(dst []byte) []byte {
			dst = append(append(dst, '['), tools...)
			if c.SupportsCacheControlOnTools {
				dst = marked(dst, mark)
			}
			return append(dst, ']')
		})
	}
	active := level != providers.Off
	switch {
	case !req.Model.Reasoning:
	case active && c.ForceAdaptiveThinking:
		b.Set("thinking", map[string]string{"type": "adaptive", "display": "summarized"})
		b.Set("output_config", map[string]string{"effort": effort(req.Model, level)})
	case active:
		b.Set("thinking", map[string]any{"type": "enabled", "budget_tokens": room.Budget})
	default:
		b.Set("thinking", map[string]string{"type": "disabled"})
	}
	if t := req.Options.Temperature; t != nil && c.SupportsTemperature && !active {
		b.Set("temperature", *t)
	}
	if len(req.Options.Metadata) > 0 {
		b.Set("metadata", req.Options.Metadata)
	}
	b.Set("stream", true)
	raw, err := b.Bytes()
	return encodedRequest{
		body:        raw,
		interleaved: active && !c.ForceAdaptiveThinking && len(tools) > 0,
	}, err
}

// think decides the level and the room. Thinking with a budget is off where
// too little room is left for the least budget, and where the conversation
// goes on from calls that were made without thinking, which the API refuses.
func think(req *messages.Request, c compat, turns []providers.Turn[fragment]) (messages.ThinkingLevel, providers.Room) {
	level := req.Thinking
	if !req.Model.Reasoning || level == "" {
		level = providers.Off
	}
	prompt := providers.EstimateTokens(req)
	budget := providers.ThinkingBudget(level, req.Options.ThinkingBudgets)
	room := providers.FitRoom(req.Model, req.Options.MaxTokens, budget, prompt)
	if level == providers.Off || c.ForceAdaptiveThinking {
		return level, room
	}
	last := turns[len(turns)-1]
	if room.Budget < minBudget || last.Calls && !last.Body.thinks {
		return providers.Off, providers.FitRoom(req.Model, req.Options.MaxTokens, 0, prompt)
	}
	return level, room
}

// effort is the word of an adaptive model for a level.
func effort(m messages.Model, level messages.ThinkingLevel) string {
	if level == "minimal" && m.ThinkingLevelMap[level] == nil {
		return "low"
	}
	return providers.ThinkingValue(m, level)
}

// cacheMark is the cache_control field that marked blocks get; nil for none.
// The API allows four marks; system, tools and the last user block take three.
func cacheMark(req *messages.Request, c compat) []byte {
	switch {
	case req.Options.CacheRetention == messages.CacheNone:
		return nil
	case req.Options.CacheRetention == messages.CacheLong && c.SupportsLongCacheRetention:
		return []byte(`,"cache_control":{"type":"ephemeral","ttl":"1h"}`)
	}
	return []byte(`,"cache_control":{"type":"ephemeral"}`)
}

// marked puts the mark into the object that dst ends with.
func marked(dst, mark []byte) []byte {
	if mark == nil {
		return dst
	}
	return append(append(dst[:len(dst)-1], mark...), '}')
}

// appendMessages writes the turns. What follows each other as the user's
// becomes one message, results first: the API wants them there.
func appendMessages(dst []byte, turns []providers.Turn[fragment], mark []byte) []byte {
	dst = append(dst, '[')
	inUser := false
	user := func(blocks []byte) {
		switch {
		case len(blocks) == 0:
			return
		case inUser:
			dst = append(dst, ',')
		default:
			if len(dst) > 1 && dst[len(dst)-1] == '}' {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"role":"user","content":[`...)
		}
		inUser = true
		dst = append(dst, blocks...)
	}
	for _, t := range turns {
		if t.Role != messages.RoleAssistant {
			user(t.Body.blocks)
			continue
		}
		if inUser {
			dst = append(dst, ']', '}', ',')
			inUser = false
		}
		dst = append(dst, `{"role":"assistant","content":[`...)
		dst = append(dst, t.Body.blocks...)
		dst = append(dst, ']', '}')
		user(t.Body.results)
	}
	// The conversation never ends with the assistant.
	return append(marked(dst, mark), ']', '}', ']')
}

func encode(m messages.Message) fragment {
	if m.Role != messages.RoleAssistant {
		return fragment{blocks: appendContent(nil, m.Parts)}
	}
	var f fragment
	for i, p := range thinkingFirst(m.Parts) {
		if i > 0 {
			f.blocks = append(f.blocks, ',')
		}
		switch p.Type {
		case messages.PartText:
			f.blocks = append(f.blocks, `{"type":"text","text":`...)
			f.blocks = append(providers.AppendString(f.blocks, p.Text), '}')
		case messages.PartThinking:
			f.thinks = f.thinks || i == 0
			if p.Redacted {
				f.blocks = append(f.blocks, `{"type":"redacted_thinking","data":`...)
				f.blocks = append(providers.AppendString(f.blocks, p.Signature), '}')
				break
			}
			f.blocks = append(f.blocks, `{"type":"thinking","thinking":`...)
			f.blocks = providers.AppendString(f.blocks, p.Text)
			f.blocks = append(f.blocks, `,"signature":`...)
			f.blocks = append(providers.AppendString(f.blocks, p.Signature), '}')
		case messages.PartToolCall:
			f.blocks = append(f.blocks, `{"type":"tool_use","id":`...)
			f.blocks = providers.AppendString(f.blocks, p.CallID)
			f.blocks = append(f.blocks, `,"name":`...)
			f.blocks = providers.AppendString(f.blocks, p.Name)
			f.blocks = append(f.blocks, `,"input":`...)
			f.blocks = append(append(f.blocks, p.Arguments...), '}')
			if len(f.results) > 0 {
				f.results = append(f.results, ',')
			}
			f.results = append(f.results, `{"type":"tool_result","tool_use_id":`...)
			f.results = providers.AppendString(f.results, p.CallID)
			f.results = append(f.results, `,"content":[`...)
			f.results = append(appendContent(f.results, p.Result.Content), ']')
			if p.Result.IsError {
				f.results = append(f.results, `,"is_error":true`...)
			}
			f.results = append(f.results, '}')
		}
	}
	return f
}

// thinkingFirst puts thinking before everything else in a message with calls,
// where the API wants it. Messages of the provider itself have it there.
func thinkingFirst(parts []messages.Part) []messages.Part {
	rank := func(p messages.Part) int {
		if p.Type == messages.PartThinking {
			return 0
		}
		return 1
	}
	calls := slices.ContainsFunc(parts, func(p messages.Part) bool { return p.Type == messages.PartToolCall })
	if !calls {
		return parts
	}
	out := slices.Clone(parts)
	slices.SortStableFunc(out, func(a, b messages.Part) int { return rank(a) - rank(b) })
	return out
}

func appendContent(dst []byte, parts []messages.Part) []byte {
	for i, p := range parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		if p.Type == messages.PartImage {
			dst = append(dst, `{"type":"image","source":{"type":"base64","media_type":"`+p.MediaType+`","data":"`...)
			dst = append(base64.StdEncoding.AppendEncode(dst, p.Data), `"}}`...)
			continue
		}
		dst = append(dst, `{"type":"text","text":`...)
		dst = append(providers.AppendString(dst, p.Text), '}')
	}
	return dst
}

func encodeTool(dst []byte, d messages.ToolDefinition) []byte {
	dst = append(dst, `{"name":`...)
	dst = providers.AppendString(dst, d.Name)
	if d.Description != "" {
		dst = append(dst, `,"description":`...)
		dst = providers.AppendString(dst, d.Description)
	}
	dst = append(dst, `,"input_schema":`...)
	return append(append(dst, providers.Schema(d.Schema)...), '}')
}
