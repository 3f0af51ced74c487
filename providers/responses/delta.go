package responses

import (
	"unicode/utf8"

	"codework/providers/internal/scan"
)

// deltaKinds are the events of which an answer has thousands.
var deltaKinds = []string{
	"response.output_text.delta", "response.function_call_arguments.delta",
	"response.reasoning_summary_text.delta", "response.reasoning_text.delta",
}

// quick reads an event of deltaKinds in the form in which it always comes: a
// flat object. It is false, with e in any state, for whatever else; then the
// decoder decides.
func (e *event) quick(data []byte) bool {
	s := scan.Scanner{Data: data}
	// The fields that nobody reads are many and new ones come, so each may have
	// any name but one that the decoder takes for one of the others.
	const none = -1
	skipped := 4
	ok := s.Object(func(name []byte) int {
		var ok bool
		switch string(name) {
		case "type":
			var value []byte
			if value, ok = s.Plain(); ok && e.isDelta(value) {
				return 0
			}
			return none
		case "delta":
			if e.Delta, ok = s.Text(); ok {
				return 1
			}
			return none
		case "output_index":
			if e.Index, ok = s.Number(); ok {
				return 2
			}
			return none
		case "summary_index":
			if e.Section, ok = s.Number(); ok {
				return 3
			}
			return none
		case "text", "arguments", "item", "response":
			return none
		}
		for _, c := range name {
			if c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf {
				return none
			}
		}
		if skipped++; skipped > 63 || !s.Skip() {
			return none
		}
		return skipped
	})
	return ok && s.End() && e.Type != ""
}

func (e *event) isDelta(kind []byte) bool {
	for _, k := range deltaKinds {
		if string(kind) == k {
			e.Type = k
			return true
		}
	}
	return false
}
