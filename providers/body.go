package providers

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"codework/messages"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD; nothing is escaped that need not be.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = AppendEscaped(dst, s)
	return append(dst, '"')
}

// AppendEscaped is AppendString without the quotes.
func AppendEscaped(dst []byte, s string) []byte {
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(dst, s[start:]...)
}

// Body builds the JSON object of a request. Fields come out in the order they
// were set; a field that Options.Extra names is left to Extra, except those
// the dialect itself depends on.
type Body struct {
	buf   []byte
	extra map[string]json.RawMessage
	err   error
}

// ownFields are never taken from Extra: without them there is no conversation,
// or no stream.
var ownFields = []string{"messages", "input", "contents", "model", "stream", "system", "instructions", "tools"}

// NewBody starts the body of a request; size is about how long it will be.
func NewBody(req *messages.Request, size int) *Body {
	extra := make(map[string]json.RawMessage, len(req.Options.Extra))
	for k, v := range req.Options.Extra {
		if !slices.Contains(ownFields, k) {
			extra[k] = v
		}
	}
	return &Body{buf: append(make([]byte, 0, size+1024), '{'), extra: extra}
}

func (b *Body) key(name string) bool {
	if _, ok := b.extra[name]; ok {
		return false
	}
	b.putKey(name)
	return true
}

func (b *Body) putKey(name string) {
	if len(b.buf) > 1 {
		b.buf = append(b.buf, ',')
	}
	b.buf = append(AppendString(b.buf, name), ':')
}

// String sets a field to a string.
func (b *Body) String(name, value string) {
	if b.key(name) {
		b.buf = AppendString(b.buf, value)
	}
}

// Set sets a field to what encoding/json makes of value.
func (b *Body) Set(name string, value any) {
	if !b.key(name) {
		return
	}
	raw, err := json.Marshal(value)
	if err != nil && b.err == nil {
		b.err = err
	}
	b.buf = append(b.buf, raw...)
}

// Write sets a field to the JSON that write appends.
func (b *Body) Write(name string, write func(dst []byte) []byte) {
	if b.key(name) {
		b.buf = write(b.buf)
	}
}

// Bytes ends the object and returns it.
func (b *Body) Bytes() ([]byte, error) {
	names := make([]string, 0, len(b.extra))
	for k := range b.extra {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		b.putKey(k)
		var compact bytes.Buffer
		if err := json.Compact(&compact, b.extra[k]); err != nil {
			return nil, err
		}
		b.buf = append(b.buf, compact.Bytes()...)
	}
	return append(b.buf, '}'), b.err
}
