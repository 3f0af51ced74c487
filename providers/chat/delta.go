package chat

import (
	"encoding/json"

	"codework/providers/internal/scan"
)

// quick reads a frame in the form in which nearly all come: one choice with a
// piece of text, of thinking or of one call's arguments. It is false, with c in
// any state, for whatever else; then the decoder decides. c is empty before,
// and what it holds is data's.
//
// Names that nobody reads are listed: the decoder takes the others in other
// cases too, and those that are new are read by it.
func (c *chunk) quick(data []byte, last *chunk) bool {
	s := scan.Scanner{Data: data}
	ok := s.Object(func(name []byte) int {
		switch string(name) {
		case "id":
			if keep(&s, &c.ID, last.ID) {
				return 0
			}
		case "model":
			if keep(&s, &c.Model, last.Model) {
				return 1
			}
		case "object":
			if kind, _ := s.Plain(); string(kind) == "chat.completion.chunk" {
				c.Object = "chat.completion.chunk"
				return 2
			}
		case "choices":
			c.Choices = append(c.Choices, choice{})
			if s.Next('[') && c.Choices[0].quick(&s) && s.Next(']') {
				return 3
			}
		case "usage":
			if s.Literal("null") {
				return 4
			}
		case "created":
			return skipped(&s, 5)
		case "system_fingerprint":
			return skipped(&s, 6)
		case "service_tier":
			return skipped(&s, 7)
		case "provider":
			return skipped(&s, 8)
		case "obfuscation":
			return skipped(&s, 9)
		}
		return -1
	})
	return ok && s.End()
}

// keep takes a string that is mostly the same as in the frame before.
func keep(s *scan.Scanner, dst *string, last string) bool {
	value, ok := s.Plain()
	if *dst = last; ok && string(value) != last {
		*dst = string(value)
	}
	return ok
}

func skipped(s *scan.Scanner, field int) int {
	if s.Skip() {
		return field
	}
	return -1
}

func (ch *choice) quick(s *scan.Scanner) bool {
	return s.Object(func(name []byte) int {
		var ok bool
		switch string(name) {
		case "index":
			if ch.Index, ok = s.Number(); ok {
				return 0
			}
		case "delta":
			if ch.Delta = new(delta); ch.Delta.quick(s) {
				return 1
			}
		case "finish_reason":
			if s.Literal("null") {
				return 2
			}
		case "logprobs":
			return skipped(s, 3)
		case "native_finish_reason":
			return skipped(s, 4)
		case "stop_reason":
			return skipped(s, 5)
		}
		return -1
	})
}

func (d *delta) quick(s *scan.Scanner) bool {
	return s.Object(func(name []byte) int {
		switch string(name) {
		case "role":
			return skipped(s, 0)
		case "content":
			if value(s, &d.Content) {
				return 1
			}
		case "reasoning_content":
			if value(s, &d.ReasoningContent) {
				return 2
			}
		case "reasoning":
			if value(s, &d.Reasoning) {
				return 3
			}
		case "tool_calls":
			d.ToolCalls = append(d.ToolCalls, toolDelta{})
			if s.Next('[') && d.ToolCalls[0].quick(s) && s.Next(']') {
				return 4
			}
		case "refusal":
			if s.Literal("null") {
				return 5
			}
		}
		return -1
	})
}

func (d *toolDelta) quick(s *scan.Scanner) bool {
	return s.Object(func(name []byte) int {
		switch string(name) {
		case "index":
			n, ok := s.Number()
			if d.Index = &n; ok {
				return 0
			}
		case "type":
			return skipped(s, 1)
		case "function":
			ok := s.Object(func(name []byte) int {
				if string(name) == "arguments" && value(s, &d.Function.Arguments) {
					return 0
				}
				return -1
			})
			if ok {
				return 2
			}
		}
		return -1
	})
}

// value takes a string or null as it is.
func value(s *scan.Scanner, dst *json.RawMessage) bool {
	raw, plain := s.Raw()
	switch {
	case plain, raw != nil && json.Valid(raw):
		*dst = raw
	case raw == nil && s.Literal("null"):
		*dst = json.RawMessage("null")
	default:
		return false
	}
	return true
}
