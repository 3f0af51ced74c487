package responses

import (
	"encoding/json"
	"unicode/utf8"
)

// deltaKinds are the events of which an answer has thousands.
var deltaKinds = []string{
	"response.output_text.delta", "response.function_call_arguments.delta",
	"response.reasoning_summary_text.delta", "response.reasoning_text.delta",
}

// quick reads an event of deltaKinds in the form in which it always comes: a
// flat object. It is false, with e in any state, for whatever else; then the
// decoder decides. Most of the time of an answer would otherwise go into
// fields that nobody reads.
func (e *event) quick(data []byte) bool {
	s := scanner{data: data}
	if !s.next('{') {
		return false
	}
	for first := true; ; first = false {
		if s.next('}') {
			break
		}
		if !first && !s.next(',') {
			return false
		}
		name, ok := s.plain()
		if !ok || !s.next(':') {
			return false
		}
		switch string(name) {
		case "type":
			value, ok := s.plain()
			if !ok {
				return false
			}
			if e.Type = ""; !e.isDelta(value) {
				return false
			}
		case "delta":
			if e.Delta, ok = s.text(); !ok {
				return false
			}
		case "output_index":
			if e.Index, ok = s.number(); !ok {
				return false
			}
		case "summary_index":
			if e.Section, ok = s.number(); !ok {
				return false
			}
		default:
			// The decoder also takes names in other cases.
			for _, c := range name {
				if c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf {
					return false
				}
			}
			switch string(name) {
			case "text", "arguments", "item", "response":
				return false
			}
			if !s.skip() {
				return false
			}
		}
	}
	s.space()
	return len(s.data) == 0 && e.Type != ""
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

// scanner reads the simple values of JSON from the front of data.
type scanner struct{ data []byte }

func (s *scanner) space() {
	for len(s.data) > 0 && (s.data[0] == ' ' || s.data[0] == '\t' || s.data[0] == '\n' || s.data[0] == '\r') {
		s.data = s.data[1:]
	}
}

// next takes the byte, after white space, if it is there.
func (s *scanner) next(c byte) bool {
	s.space()
	if len(s.data) == 0 || s.data[0] != c {
		return false
	}
	s.data = s.data[1:]
	return true
}

// quoted takes a string with its quotes and tells whether it stands for itself:
// ASCII without escapes. It is nil for what is none.
func (s *scanner) quoted() (raw []byte, plain bool) {
	s.space()
	if len(s.data) == 0 || s.data[0] != '"' {
		return nil, false
	}
	plain = true
	for i := 1; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			raw, s.data = s.data[:i+1], s.data[i+1:]
			return raw, plain
		case c == '\\':
			plain = false
			i++
		case c < ' ':
			return nil, false
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	return nil, false
}

// plain takes a string that stands for itself, without its quotes.
func (s *scanner) plain() ([]byte, bool) {
	raw, plain := s.quoted()
	if !plain {
		return nil, false
	}
	return raw[1 : len(raw)-1], true
}

// text takes any string.
func (s *scanner) text() (string, bool) {
	raw, plain := s.quoted()
	if plain {
		return string(raw[1 : len(raw)-1]), true
	}
	if raw == nil {
		return "", false
	}
	var out string
	err := json.Unmarshal(raw, &out)
	return out, err == nil
}

// maxDigits of a number that is read here fit into any int.
const maxDigits = 9

func (s *scanner) number() (int, bool) {
	s.space()
	n, digits := 0, 0
	for len(s.data) > digits && s.data[digits] >= '0' && s.data[digits] <= '9' {
		n = 10*n + int(s.data[digits]-'0')
		digits++
	}
	if digits == 0 || digits > maxDigits || digits > 1 && s.data[0] == '0' {
		return 0, false
	}
	s.data = s.data[digits:]
	if len(s.data) > 0 && (s.data[0] == '.' || s.data[0] == 'e' || s.data[0] == 'E') {
		return 0, false
	}
	return n, true
}

// skip takes a value that nobody reads: a plain string, a number or an empty
// list.
func (s *scanner) skip() bool {
	s.space()
	if len(s.data) == 0 {
		return false
	}
	switch s.data[0] {
	case '"':
		_, plain := s.quoted()
		return plain
	case '[':
		s.data = s.data[1:]
		return s.next(']')
	}
	_, ok := s.number()
	return ok
}
