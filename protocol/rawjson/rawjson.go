// Package rawjson cuts JSON into its members and elements without decoding
// them: for the wires, where most of what passes is only handed on.
//
// Every function checks what it looks at, each byte once, and accepts what
// encoding/json accepts, up to its 10000 levels; whatever comes in, none of them
// panics or needs stack per level. What they return aliases the input. Keys are
// matched by whoever asks, so exactly, which encoding/json does not.
package rawjson

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/bits"
	"unicode/utf8"
)

var (
	// ErrMalformed means that the input is not one JSON value.
	ErrMalformed = errors.New("malformed JSON")

	// ErrOtherKind means that the input is JSON, but not an object or an array.
	ErrOtherKind = errors.New("JSON of another kind")
)

// maxDepth is how many levels encoding/json accepts.
const maxDepth = 10000

// Valid reports whether src is one JSON value with nothing but space around it.
func Valid(src []byte) bool {
	i := skipValue(src, skipSpace(src, 0), 0)
	return i >= 0 && skipSpace(src, i) == len(src)
}

// Object walks over the members of an object, in their order.
//
//	for o := rawjson.Members(src); o.Next(); {
//		… o.Key, o.Value …
//	}
type Object struct {
	Key   []byte          // the text of the key
	Value json.RawMessage // without space around it

	src   []byte
	at    int // behind what was read
	state walk
	err   error
}

type walk uint8

const (
	walkBegins walk = iota
	walkGoes
	walkEnded
)

// Members begins a walk over the object in src.
func Members(src []byte) Object { return Object{src: src} }

// Next moves to the next member, if there is one.
func (o *Object) Next() bool {
	i := skipSpace(o.src, o.at)
	switch o.state {
	case walkBegins:
		if i == len(o.src) || o.src[i] != '{' {
			return o.end(otherKind(o.src))
		}
		if i = skipSpace(o.src, i+1); i < len(o.src) && o.src[i] == '}' {
			return o.close(i)
		}
	case walkGoes:
		switch {
		case i == len(o.src):
			return o.end(ErrMalformed)
		case o.src[i] == '}':
			return o.close(i)
		case o.src[i] != ',':
			return o.end(ErrMalformed)
		}
		i = skipSpace(o.src, i+1)
	default:
		return false
	}
	keyEnd := skipString(o.src, i)
	value := skipColon(o.src, keyEnd)
	end := skipValue(o.src, value, 1)
	if end < 0 {
		return o.end(ErrMalformed)
	}
	o.Key, o.Value = unquote(o.src[i:keyEnd]), o.src[value:end:end]
	o.at, o.state = end, walkGoes
	return true
}

func (o *Object) close(at int) bool {
	if skipSpace(o.src, at+1) != len(o.src) {
		return o.end(ErrMalformed)
	}
	return o.end(nil)
}

func (o *Object) end(err error) bool {
	o.Key, o.Value, o.state, o.err = nil, nil, walkEnded, err
	return false
}

// Err is what ended the walk: nil when all members were seen, ErrOtherKind or
// ErrMalformed. Of an object that is malformed the members before that place
// were seen.
func (o *Object) Err() error { return o.err }

// otherKind is the error for something that does not begin as it should.
func otherKind(src []byte) error {
	if Valid(src) {
		return ErrOtherKind
	}
	return ErrMalformed
}

// fewElements is room for the usual chunk of a stream.
const fewElements = 4

// Elements returns the values of the array in src, without space around them.
// The errors are ErrOtherKind and ErrMalformed.
func Elements(src []byte) ([]json.RawMessage, error) {
	i := skipSpace(src, 0)
	if i == len(src) || src[i] != '[' {
		return nil, otherKind(src)
	}
	var all []json.RawMessage
	if i = skipSpace(src, i+1); i == len(src) || src[i] != ']' {
		all = make([]json.RawMessage, 0, fewElements)
		for {
			end := skipValue(src, i, 1)
			if end < 0 {
				return nil, ErrMalformed
			}
			all = append(all, src[i:end:end])
			if i = skipSpace(src, end); i == len(src) || src[i] != ',' {
				break
			}
			i = skipSpace(src, i+1)
		}
	}
	if i == len(src) || src[i] != ']' || skipSpace(src, i+1) != len(src) {
		return nil, ErrMalformed
	}
	return all, nil
}

// Text returns the text of a string without space around it, and reports whether
// value is one.
func Text(value []byte) (string, bool) {
	if end := skipString(value, 0); end < 0 || end != len(value) {
		return "", false
	}
	return string(unquote(value)), true
}

// unquote returns the text of a valid string. Like encoding/json it puts U+FFFD
// for what is not UTF-8.
func unquote(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return inner
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return inner // cannot happen: the string is valid
	}
	return []byte(s)
}

// The functions below return the index behind something, or -1 where that is
// not what the grammar wants. A negative index, or one at the end, is none of
// theirs: it gives -1.

func skipSpace(src []byte, i int) int {
	for i < len(src) && (src[i] == ' ' || src[i] == '\t' || src[i] == '\r' || src[i] == '\n') {
		i++
	}
	return i
}

// skipColon goes from behind a key to the value.
func skipColon(src []byte, i int) int {
	if i < 0 {
		return -1
	}
	if i = skipSpace(src, i); i == len(src) || src[i] != ':' {
		return -1
	}
	return skipSpace(src, i+1)
}

// skipValue skips the value that begins at i, depth levels deep.
func skipValue(src []byte, i, depth int) int {
	if i < 0 || i >= len(src) {
		return -1
	}
	switch src[i] {
	case '"':
		return skipString(src, i)
	case '{', '[':
		return skipNested(src, i, depth)
	default:
		return skipScalar(src, i)
	}
}

// skipNested skips the object or array that begins at i.
func skipNested(src []byte, i, depth int) int {
	var l levels
	for {
		// i is where a value begins, or the end.
		if i >= len(src) {
			return -1
		}
		switch c := src[i]; c {
		case '{', '[':
			if depth++; depth > maxDepth {
				return -1
			}
			l.push(c == '{')
			if i = skipSpace(src, i+1); i == len(src) {
				return -1
			}
			if src[i] == c+2 { // } and ] stand two behind { and [
				break
			}
			if c == '{' {
				i = skipColon(src, skipString(src, i))
			}
			if i < 0 {
				return -1
			}
			continue
		case '"':
			i = skipString(src, i)
		default:
			i = skipScalar(src, i)
		}
		if i < 0 {
			return -1
		}
		// i is behind a value, or before the end of what is empty.
		for i = skipSpace(src, i); i < len(src) && src[i] == l.closing(); i = skipSpace(src, i+1) {
			depth--
			if l.pop(); l.n == 0 {
				return i + 1
			}
		}
		if i == len(src) || src[i] != ',' {
			return -1
		}
		if i = skipSpace(src, i+1); l.object() {
			i = skipColon(src, skipString(src, i))
		}
		if i < 0 {
			return -1
		}
	}
}

// levels are the objects and arrays that are open: one bit for each, set for an
// object.
type levels struct {
	n     int
	inner uint64   // the innermost up to 64, the last one lowest
	outer []uint64 // those around them, 64 a word
}

func (l *levels) push(object bool) {
	if l.n > 0 && l.n%64 == 0 {
		l.outer = append(l.outer, l.inner)
	}
	l.n++
	l.inner <<= 1
	if object {
		l.inner |= 1
	}
}

func (l *levels) pop() {
	l.n--
	l.inner >>= 1
	if l.n > 0 && l.n%64 == 0 {
		last := len(l.outer) - 1
		l.inner, l.outer = l.outer[last], l.outer[:last]
	}
}

// object reports whether the innermost level is an object.
func (l *levels) object() bool { return l.inner&1 == 1 }

// closing is what ends the innermost level.
func (l *levels) closing() byte {
	if l.object() {
		return '}'
	}
	return ']'
}

// each is a byte in all eight places of a word, ends their highest bits.
const (
	each = 0x0101010101010101
	ends = 0x8080808080808080
)

// skipString skips the string that begins at i.
func skipString(src []byte, i int) int {
	if i < 0 || i >= len(src) || src[i] != '"' {
		return -1
	}
	for i++; ; {
		// Eight bytes at a time: the lowest place with its highest bit set holds
		// the first byte below space, quote or backslash.
		for ; len(src)-i >= 8; i += 8 {
			w := binary.LittleEndian.Uint64(src[i:])
			quote, slash := w^('"'*each), w^('\\'*each)
			if found := ((w-' '*each)&^w | (quote-each)&^quote | (slash-each)&^slash) & ends; found != 0 {
				i += bits.TrailingZeros64(found) / 8
				break
			}
		}
		if i >= len(src) {
			return -1
		}
		switch c := src[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = skipEscape(src, i); i < 0 {
				return -1
			}
		case c < ' ':
			return -1
		default: // one of the last bytes of src
			i++
		}
	}
}

// skipEscape skips the escape that begins with the backslash at i.
func skipEscape(src []byte, i int) int {
	if i+1 >= len(src) {
		return -1
	}
	switch src[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
	default:
		return -1
	}
	if i+6 > len(src) {
		return -1
	}
	for _, c := range src[i+2 : i+6] {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return -1
		}
	}
	return i + 6
}

// skipScalar skips the number or word that begins at i.
func skipScalar(src []byte, i int) int {
	for _, word := range [...]string{"null", "true", "false"} {
		if src[i] == word[0] {
			if len(src)-i >= len(word) && string(src[i:i+len(word)]) == word {
				return i + len(word)
			}
			return -1
		}
	}
	if src[i] == '-' {
		i++
	}
	if i < len(src) && src[i] == '0' {
		i++
	} else if i = skipDigits(src, i); i < 0 {
		return -1
	}
	if i < len(src) && src[i] == '.' {
		if i = skipDigits(src, i+1); i < 0 {
			return -1
		}
	}
	if i < len(src) && (src[i] == 'e' || src[i] == 'E') {
		if i++; i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		return skipDigits(src, i)
	}
	return i
}

// skipDigits skips at least one digit.
func skipDigits(src []byte, i int) int {
	begin := i
	for i < len(src) && src[i] >= '0' && src[i] <= '9' {
		i++
	}
	if i == begin {
		return -1
	}
	return i
}
