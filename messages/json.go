package messages

import (
	"bytes"
	"encoding/json"
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
