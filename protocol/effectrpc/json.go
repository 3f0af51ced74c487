package effectrpc

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

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
