package anthropic

import "codework/providers/internal/scan"

// quick reads a delta of text, thinking or arguments, of which an answer has
// thousands. It is false, with e in any state, for whatever else; then the
// decoder decides. e is empty before.
func (e *event) quick(data []byte) bool {
	s := scan.Scanner{Data: data}
	ok := s.Object(func(name []byte) int {
		var ok bool
		switch string(name) {
		case "type":
			if kind, _ := s.Plain(); string(kind) == "content_block_delta" {
				e.Type = "content_block_delta"
				return 0
			}
		case "index":
			if e.Index, ok = s.Number(); ok {
				return 1
			}
		case "delta":
			if e.quickDelta(&s) {
				return 2
			}
		}
		return -1
	})
	return ok && s.End() && e.Type != ""
}

func (e *event) quickDelta(s *scan.Scanner) bool {
	return s.Object(func(name []byte) int {
		var ok bool
		switch string(name) {
		case "type":
			var kind []byte
			if kind, ok = s.Plain(); !ok {
				return -1
			}
			for _, k := range []string{"text_delta", "input_json_delta", "thinking_delta"} {
				if string(kind) == k {
					e.Delta.Type = k
					return 0
				}
			}
		case "text":
			if e.Delta.Text, ok = s.Text(); ok {
				return 1
			}
		case "partial_json":
			if e.Delta.Partial, ok = s.Text(); ok {
				return 2
			}
		case "thinking":
			if e.Delta.Thinking, ok = s.Text(); ok {
				return 3
			}
		}
		return -1
	})
}
