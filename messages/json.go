package messages

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// JSON encodes a value of this package. Unlike json.Marshal it leaves <, > and
// & alone: escaped they would take six bytes each, and code is full of them.
func JSON(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// longText is how long a text must be for EventData.JSON to leave encoding/json
// out: that makes room for it by growing, and then copies it twice, which for an
// answer of a megabyte takes eight megabytes.
const longText = 32 << 10

// JSON is JSON of an event's data, in one piece of memory that is as long as
// that. Long texts come behind the other members of their object.
func (d EventData) JSON() (json.RawMessage, error) {
	content := ""
	if d.Content != nil && len(*d.Content) >= longText {
		content, d.Content = *d.Content, nil
	}
	var message *Message
	if d.Message != nil && d.Message.long() {
		message, d.Message = d.Message, nil
	}
	head, err := JSON(d)
	if err != nil || content == "" && message == nil {
		return head, err
	}
	var s spliced
	s.open(head)
	s.member("content", content)
	if message != nil {
		s.raw([]byte(`,"message":`))
		if err := s.message(*message); err != nil {
			return nil, err
		}
	}
	s.raw([]byte("}"))
	return s.join(), nil
}

func (m *Message) long() bool {
	for i := range m.Parts {
		if len(m.Parts[i].Text) >= longText || len(m.Parts[i].Arguments) >= longText {
			return true
		}
	}
	return false
}

// spliced is JSON in pieces.
type spliced []splice

// splice is JSON as it is, and behind it a long text that is still to be quoted,
// if there is one.
type splice struct {
	raw  []byte
	text string
}

func (s *spliced) raw(b []byte) { *s = append(*s, splice{raw: b}) }

// open adds an object with members, to which more can be added.
func (s *spliced) open(object []byte) { s.raw(object[:len(object)-1]) }

// member adds a text to it, if there is one.
func (s *spliced) member(name, text string) {
	if text == "" {
		return
	}
	*s = append(*s, splice{[]byte(`,"` + name + `":`), text})
}

func (s *spliced) message(m Message) error {
	parts := m.Parts
	m.Parts = []Part{}
	head, err := JSON(m)
	if err != nil {
		return err
	}
	// A quote within a text has a backslash before it, so this is no text.
	before := []byte(`"parts":[`)
	at := bytes.Index(head, before) + len(before)
	s.raw(head[:at])
	for i := range parts {
		if i > 0 {
			s.raw([]byte(","))
		}
		if err := s.part(parts[i]); err != nil {
			return err
		}
	}
	s.raw(head[at:])
	return nil
}

func (s *spliced) part(p Part) error {
	text, arguments := takeLong(&p.Text), takeLong(&p.Arguments)
	head, err := JSON(p)
	if err != nil {
		return err
	}
	s.open(head)
	s.member("text", text)
	s.member("arguments", arguments)
	s.raw([]byte("}"))
	return nil
}

// takeLong takes a long text out of its place, and leaves another where it is.
func takeLong(s *string) (text string) {
	if len(*s) >= longText {
		text, *s = *s, ""
	}
	return text
}

func (s spliced) join() json.RawMessage {
	n := 0
	for i := range s {
		n += len(s[i].raw)
		if s[i].text != "" {
			n += quotedSize(s[i].text)
		}
	}
	b := make([]byte, 0, n)
	for i := range s {
		b = append(b, s[i].raw...)
		if s[i].text != "" {
			b = appendQuoted(b, s[i].text)
		}
	}
	return b
}

const hexDigits = "0123456789abcdef"

// escape is what a byte of ASCII is in a JSON string, "" for itself. encoding/json
// writes the same.
var escape = func() (e [utf8.RuneSelf]string) {
	for c := range byte(' ') {
		e[c] = `\u00` + string(hexDigits[c>>4]) + string(hexDigits[c&0xf])
	}
	e['"'], e['\\'], e['\b'], e['\f'], e['\n'], e['\r'], e['\t'] = `\"`, `\\`, `\b`, `\f`, `\n`, `\r`, `\t`
	return e
}()

// eachEscape calls f with each stretch of a text that stays as it is and what
// stands behind it instead of what comes next.
func eachEscape(text string, f func(same, instead string)) {
	from, i := 0, 0
	instead := func(n int, by string) {
		f(text[from:i], by)
		i += n
		from = i
	}
	for i < len(text) {
		c := text[i]
		if c < utf8.RuneSelf {
			if by := escape[c]; by != "" {
				instead(1, by)
			} else {
				i++
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			instead(1, `\ufffd`)
		case r == '\u2028', r == '\u2029': // they end lines in JavaScript
			instead(n, `\u202`+string(hexDigits[r&0xf]))
		default:
			i += n
		}
	}
	f(text[from:], "")
}

func quotedSize(text string) int {
	n := len(`""`)
	eachEscape(text, func(same, instead string) { n += len(same) + len(instead) })
	return n
}

func appendQuoted(b []byte, text string) []byte {
	b = append(b, '"')
	eachEscape(text, func(same, instead string) { b = append(append(b, same...), instead...) })
	return append(b, '"')
}
