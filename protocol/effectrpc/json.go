package effectrpc

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// The decoder works in two steps. json.Valid looks at the whole line first: it
// needs no stack per level and refuses more than 10000 of them. The functions
// below then cut out the members of the few levels that belong to the protocol
// without looking inside; they rely on that first look. Unlike a struct for
// encoding/json they match keys exactly and copy nothing.

// members calls each with every key and value of the object in src, which must
// be valid JSON. It reports whether src is an object.
func members(src []byte, each func(key []byte, value json.RawMessage)) bool {
	i := skipSpace(src, 0)
	if src[i] != '{' {
		return false
	}
	for i = skipSpace(src, i+1); src[i] != '}'; {
		end := skipValue(src, i)
		key := stringBytes(src[i:end])
		i = skipSpace(src, end) // at the colon
		i = skipSpace(src, i+1) // at the value
		end = skipValue(src, i)
		each(key, src[i:end:end])
		if i = skipSpace(src, end); src[i] == ',' {
			i = skipSpace(src, i+1)
		}
	}
	return true
}

// elements returns the values of the array in src, which must be valid JSON. It
// reports whether src is an array.
func elements(src []byte) ([]json.RawMessage, bool) {
	i := skipSpace(src, 0)
	if src[i] != '[' {
		return nil, false
	}
	var all []json.RawMessage
	for i = skipSpace(src, i+1); src[i] != ']'; {
		end := skipValue(src, i)
		all = append(all, src[i:end:end])
		if i = skipSpace(src, end); src[i] == ',' {
			i = skipSpace(src, i+1)
		}
	}
	return all, true
}

func skipSpace(src []byte, i int) int {
	for i < len(src) && (src[i] == ' ' || src[i] == '\t' || src[i] == '\r' || src[i] == '\n') {
		i++
	}
	return i
}

// skipValue returns the index behind the value that starts at i.
func skipValue(src []byte, i int) int {
	switch src[i] {
	case '"':
		return skipString(src, i)
	case '{', '[':
		for depth := 0; ; {
			switch src[i] {
			case '"':
				i = skipString(src, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
			if depth == 0 {
				return i
			}
		}
	default: // a number or a word
		for i < len(src) && bytes.IndexByte([]byte(",]} \t\r\n"), src[i]) < 0 {
			i++
		}
		return i
	}
}

// skipString returns the index behind the string that starts at i: behind the
// next quote with an even number of backslashes before it.
func skipString(src []byte, i int) int {
	for start := i + 1; ; {
		quote := start + bytes.IndexByte(src[start:], '"')
		slash := quote
		for slash > i+1 && src[slash-1] == '\\' {
			slash--
		}
		if (quote-slash)%2 == 0 {
			return quote + 1
		}
		start = quote + 1
	}
}

// stringBytes returns the text of a valid JSON string.
func stringBytes(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return inner // cannot happen: the string is valid
	}
	return []byte(s)
}

// isString reports whether a trimmed JSON value is a string.
func isString(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// isNumber reports whether a trimmed JSON value is a number.
func isNumber(value []byte) bool {
	return len(value) > 0 && (value[0] == '-' || value[0] >= '0' && value[0] <= '9')
}

// quote returns s as a JSON string.
func quote(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`) // cannot happen: every string has a JSON form
	}
	return b
}

// oneLine returns a valid JSON value in a form that may stand in a frame:
// without line feeds, in valid UTF-8, and null for no value at all.
func oneLine(value json.RawMessage) json.RawMessage {
	if len(value) == 0 {
		return json.RawMessage("null")
	}
	if bytes.IndexByte(value, '\n') >= 0 {
		var b bytes.Buffer
		if json.Compact(&b, value) == nil {
			value = b.Bytes()
		}
	}
	if !utf8.Valid(value) {
		value = bytes.ToValidUTF8(value, []byte("\uFFFD"))
	}
	return value
}
