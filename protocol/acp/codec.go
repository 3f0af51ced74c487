package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"
)

const (
	// MaxLine is the longest line that is accepted: a prompt with pasted images
	// is one line.
	MaxLine = 64 << 20
	// MaxOut is what no line that is sent reaches: several clients stop reading
	// at 16 or 32 MiB.
	MaxOut = 8 << 20
)

// ErrLineTooLong reports a line over MaxLine. Its bytes are skipped and the
// stream goes on behind it.
var ErrLineTooLong = errors.New("line too long")

// Lines cuts a stream of bytes into lines.
type Lines struct {
	read    func() ([]byte, error)
	limit   int
	piece   []byte // what is left of the last read
	pending []byte // the line whose end has not come yet
	skip    bool   // the rest of a line that was too long is on its way
	ended   bool
}

// NewLines reads through read, which returns the next bytes, valid until its
// next call.
func NewLines(read func() ([]byte, error)) *Lines { return &Lines{read: read, limit: MaxLine} }

// Next returns the next line that is not blank, without its end; it is the
// caller's to keep. What follows the last line end counts as a line when the
// stream ends with io.EOF. After ErrLineTooLong the next call goes on.
func (l *Lines) Next() ([]byte, error) {
	for {
		i := bytes.IndexByte(l.piece, '\n')
		end := i
		if i < 0 {
			end = len(l.piece)
		}
		long := !l.skip && len(l.pending)+end > l.limit
		if !l.skip && !long {
			l.pending = append(l.pending, l.piece[:end]...)
		}
		if i >= 0 {
			l.piece = l.piece[i+1:]
			line := l.pending
			l.pending = nil
			skipped := l.skip
			l.skip = false
			switch {
			case long:
				return nil, ErrLineTooLong
			case skipped || blank(line):
				continue
			}
			return line, nil
		}
		l.piece = nil
		if long {
			l.skip, l.pending = true, nil
			return nil, ErrLineTooLong
		}
		if l.ended {
			return nil, io.EOF
		}
		piece, err := l.read()
		if errors.Is(err, io.EOF) {
			l.ended = true
			// The last line may lack its end.
			piece = []byte{'\n'}
		} else if err != nil {
			return nil, err
		}
		l.piece = piece
	}
}

// Rest returns what was read and not returned by Next yet, for a connection
// that is handed over.
func (l *Lines) Rest() []byte { return append(bytes.Clone(l.pending), l.piece...) }

func blank(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 }

// ID is a request's id as the client wrote it: a string or a number, or null.
// Nil is a message without an id.
type ID = json.RawMessage

// Incoming is one message of a client.
type Incoming struct {
	ID     ID // nil for a notification
	Method string
	Params Params
	// Refused is why the message is answered with an error right away; Method
	// is empty then.
	Refused *Error
	// Response tells that it answers a request. Nothing is ever asked, so it
	// is dropped.
	Response bool
}

// Decode reads one line.
func Decode(line []byte) Incoming {
	refuse := func(id ID, code int, text string) Incoming {
		if id == nil {
			id = null
		}
		return Incoming{ID: id, Refused: &Error{Code: code, Message: text}}
	}
	if !json.Valid(line) {
		return refuse(nil, CodeParse, "Parse error")
	}
	var m map[string]json.RawMessage
	if bytes.TrimLeft(line, " \t\r")[0] != '{' || json.Unmarshal(line, &m) != nil {
		return refuse(nil, CodeInvalidRequest, "Invalid request: expected one request object")
	}
	id, hasID := m["id"]
	if hasID && !validID(id) {
		return refuse(nil, CodeInvalidRequest, "Invalid request: expected a string or a number as id")
	}
	var version, method string
	if json.Unmarshal(m["jsonrpc"], &version) != nil || version != "2.0" {
		return refuse(id, CodeInvalidRequest, `Invalid request: expected "jsonrpc":"2.0"`)
	}
	raw := m["method"]
	if absent(raw) {
		_, result := m["result"]
		_, failed := m["error"]
		if hasID && (result || failed) {
			return Incoming{Response: true}
		}
		return refuse(id, CodeInvalidRequest, "Invalid request: expected a method")
	}
	if raw[0] != '"' || json.Unmarshal(raw, &method) != nil || method == "" {
		return refuse(id, CodeInvalidRequest, "Invalid request: expected a method")
	}
	in := Incoming{Method: method, Params: Params{}}
	if hasID {
		in.ID = bytes.Clone(id)
	}
	if p := m["params"]; !absent(p) && (p[0] != '{' || json.Unmarshal(p, &in.Params) != nil) {
		in.Method = ""
		in.Refused = invalid("expected an object as params")
		if !hasID {
			in.Refused = nil // notifications are never answered
		}
	}
	return in
}

var null = json.RawMessage("null")

func validID(id json.RawMessage) bool {
	return len(id) > 0 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9' || bytes.Equal(id, null))
}

func absent(v json.RawMessage) bool { return len(v) == 0 || bytes.Equal(v, null) }

// Params are the members of a request's params.
type Params map[string]json.RawMessage

// has tells whether a member is there; null counts as left out.
func (p Params) has(key string) bool { return !absent(p[key]) }

// text is a member that is a string, "" when it is left out.
func (p Params) text(key string) (string, *Error) {
	v := p[key]
	if absent(v) {
		return "", nil
	}
	var s string
	if v[0] != '"' || json.Unmarshal(v, &s) != nil {
		return "", invalid(key + ": expected a string")
	}
	return s, nil
}

// need is a member that must be a string and not empty.
func (p Params) need(key string) (string, *Error) {
	s, err := p.text(key)
	if err == nil && s == "" {
		err = invalid(key + ": expected a string that is not empty")
	}
	return s, err
}

// object is a member that is an object, nil when it is left out.
func (p Params) object(key string) (Params, *Error) {
	v := p[key]
	if absent(v) {
		return nil, nil
	}
	var o Params
	if v[0] != '{' || json.Unmarshal(v, &o) != nil {
		return nil, invalid(key + ": expected an object")
	}
	return o, nil
}

// list is a member that is a list, nil when it is left out.
func (p Params) list(key string) ([]json.RawMessage, *Error) {
	v := p[key]
	if absent(v) {
		return nil, nil
	}
	var l []json.RawMessage
	if v[0] != '[' || json.Unmarshal(v, &l) != nil {
		return nil, invalid(key + ": expected a list")
	}
	return l, nil
}

// encode is the line for a message. Text is left readable and valid UTF-8.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // the types of this package always have a JSON form
	}
	line := b.Bytes()
	if !utf8.Valid(line) { // out of a raw value
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	return line
}

// Result is the line that answers a request.
func Result(id ID, result any) []byte {
	return encode(struct {
		Version string `json:"jsonrpc"`
		ID      ID     `json:"id"`
		Result  any    `json:"result"`
	}{"2.0", id, result})
}

// Key is an id in the one form that equal ids have: the same string may be
// written with other escapes.
func (in Incoming) Key() string { return keyOf(in.ID) }

func keyOf(id ID) string {
	var s string
	if len(id) == 0 || id[0] != '"' || json.Unmarshal(id, &s) != nil {
		return string(id)
	}
	return `"` + s
}

// maxMessage bounds what an error says, in characters: it may repeat what the
// client sent, which may be as long as a line.
const maxMessage = 4096

// Failure is the line that answers a request with an error.
func Failure(id ID, err *Error) []byte {
	if id == nil {
		id = null
	}
	if len(err.Message) > maxMessage {
		short := *err
		short.Message = clip(err.Message, maxMessage)
		err = &short
	}
	return encode(struct {
		Version string `json:"jsonrpc"`
		ID      ID     `json:"id"`
		Error   *Error `json:"error"`
	}{"2.0", id, err})
}

// Notify is the line that tells an update of a session.
func Notify(session string, u Update) []byte {
	type params struct {
		SessionID string `json:"sessionId"`
		Update    Update `json:"update"`
	}
	return encode(struct {
		Version string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  params `json:"params"`
	}{"2.0", MethodUpdate, params{session, u}})
}
