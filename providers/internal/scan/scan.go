// Package scan reads the JSON of small events that are always alike.
//
// Of the events of an answer nearly all are a few words in the same envelope,
// and most of the time of decoding them would go into fields that nobody reads.
// A scanner takes what is simple: strings, small whole numbers, the literals,
// and lists and objects of them. Each method is false for whatever else, also
// for what is no JSON, and leaves the scanner anywhere; then encoding/json
// decides. What a method accepts means to encoding/json what it says here.
// Nothing blocks, and nothing of the input is kept.
package scan

import (
	"encoding/json"
	"unicode/utf8"
)

// maxDigits of a number that is read here fit into any int.
const maxDigits = 9

// maxDepth is how deep values that are skipped may be nested.
const maxDepth = 4

// Scanner reads values from the front of Data.
type Scanner struct{ Data []byte }

func (s *Scanner) space() {
	for len(s.Data) > 0 && (s.Data[0] == ' ' || s.Data[0] == '\t' || s.Data[0] == '\n' || s.Data[0] == '\r') {
		s.Data = s.Data[1:]
	}
}

// Next takes the byte, after white space, if it is there.
func (s *Scanner) Next(c byte) bool {
	s.space()
	if len(s.Data) == 0 || s.Data[0] != c {
		return false
	}
	s.Data = s.Data[1:]
	return true
}

// End tells whether nothing but white space is left.
func (s *Scanner) End() bool {
	s.space()
	return len(s.Data) == 0
}

// Object takes an object whose names stand for themselves and come once each.
// field is called behind each name; it takes the value and returns the number of
// the field, below 64, or -1 to end the scan: for a value that is not simple,
// and for a name that it does not know, since encoding/json takes names in other
// cases too.
func (s *Scanner) Object(field func(name []byte) int) bool {
	if !s.Next('{') {
		return false
	}
	var seen uint64
	for first := true; !s.Next('}'); first = false {
		if !first && !s.Next(',') {
			return false
		}
		name, ok := s.Plain()
		if !ok || !s.Next(':') {
			return false
		}
		n := field(name)
		if n < 0 || seen&(1<<n) != 0 {
			return false
		}
		seen |= 1 << n
	}
	return true
}

// Raw takes a string with its quotes and tells whether it stands for itself:
// ASCII without escapes. It is nil for what is none.
func (s *Scanner) Raw() (raw []byte, plain bool) {
	s.space()
	if len(s.Data) == 0 || s.Data[0] != '"' {
		return nil, false
	}
	plain = true
	for i := 1; i < len(s.Data); i++ {
		switch c := s.Data[i]; {
		case c == '"':
			raw, s.Data = s.Data[:i+1], s.Data[i+1:]
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

// Plain takes a string that stands for itself, without its quotes.
func (s *Scanner) Plain() ([]byte, bool) {
	raw, plain := s.Raw()
	if !plain {
		return nil, false
	}
	return raw[1 : len(raw)-1], true
}

// Text takes any string.
func (s *Scanner) Text() (string, bool) {
	raw, plain := s.Raw()
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

// Number takes a whole number of few digits, not below zero.
func (s *Scanner) Number() (int, bool) { return s.number(maxDigits) }

func (s *Scanner) number(most int) (int, bool) {
	s.space()
	n, digits := 0, 0
	for len(s.Data) > digits && s.Data[digits] >= '0' && s.Data[digits] <= '9' {
		n = 10*n + int(s.Data[digits]-'0')
		digits++
	}
	if digits == 0 || digits > most || digits > 1 && s.Data[0] == '0' {
		return 0, false
	}
	s.Data = s.Data[digits:]
	if len(s.Data) > 0 && (s.Data[0] == '.' || s.Data[0] == 'e' || s.Data[0] == 'E') {
		return 0, false
	}
	return n, true
}

// Literal takes one of null, true and false.
func (s *Scanner) Literal(word string) bool {
	s.space()
	if len(s.Data) < len(word) || string(s.Data[:len(word)]) != word {
		return false
	}
	s.Data = s.Data[len(word):]
	return true
}

// Skip takes a value that nobody reads.
func (s *Scanner) Skip() bool { return s.skip(0) }

func (s *Scanner) skip(depth int) bool {
	s.space()
	if len(s.Data) == 0 || depth > maxDepth {
		return false
	}
	switch s.Data[0] {
	case '"':
		_, ok := s.Plain()
		return ok
	case 'n':
		return s.Literal("null")
	case 't':
		return s.Literal("true")
	case 'f':
		return s.Literal("false")
	case '[':
		s.Data = s.Data[1:]
		for first := true; !s.Next(']'); first = false {
			if !first && !s.Next(',') || !s.skip(depth+1) {
				return false
			}
		}
		return true
	case '{':
		s.Data = s.Data[1:]
		for first := true; !s.Next('}'); first = false {
			if !first && !s.Next(',') {
				return false
			}
			if _, ok := s.Plain(); !ok || !s.Next(':') || !s.skip(depth+1) {
				return false
			}
		}
		return true
	}
	_, ok := s.number(len(s.Data)) // its value is lost
	return ok
}
