package effectrpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"codework/protocol/rawjson"
)

// maxIDBytes bounds a request id: it is echoed in every frame of its call, and
// stock clients count from zero.
const maxIDBytes = 1024

// frameOverhead is more than what a frame holds beside its id, method, and
// values.
const frameOverhead = 256

type kind uint8

const (
	kindUnknown kind = iota
	kindRequest
	kindAck
	kindInterrupt
	kindPing
	kindEof
	kindExit
	kindChunk
	kindPong
	kindDefect
)

// kinds are the tags of frames, as JSON.
var kinds = map[string]kind{
	`"Request"`:   kindRequest,
	`"Ack"`:       kindAck,
	`"Interrupt"`: kindInterrupt,
	`"Ping"`:      kindPing,
	`"Eof"`:       kindEof,
	`"Exit"`:      kindExit,
	`"Chunk"`:     kindChunk,
	`"Pong"`:      kindPong,
	`"Defect"`:    kindDefect,
}

// frame is one frame of either direction; which fields count depends on kind.
type frame struct {
	kind         kind
	id           json.RawMessage // id or requestId, the token as it came
	method       string          // Request
	payload      json.RawMessage // Request: nil when missing or null
	discard      bool            // Request
	notification bool            // Request
	values       []json.RawMessage
	exit         exit            // Exit
	defect       json.RawMessage // Defect
}

type exitKind uint8

const (
	exitSuccess exitKind = iota
	exitFail
	exitDie
	exitInterrupt
)

// exit is how a call ended, with the value, the error or the defect.
type exit struct {
	kind exitKind
	body json.RawMessage
}

// A badFrame is a line that no call can be blamed for. Its text is the defect
// that the peer gets.
type badFrame struct{ text string }

func (e *badFrame) Error() string { return e.text }

// errMalformed is what a line that is not JSON is wrapped in.
var errMalformed = errors.New("malformed JSON")

// malformed says what is wrong with a line, in the words of encoding/json.
func malformed(line []byte) error {
	var v json.RawMessage
	return fmt.Errorf("%w: %w", errMalformed, json.Unmarshal(line, &v))
}

// parseFrame reads one line. The frame aliases it. The errors are errMalformed,
// wrapped, and *badFrame. Only the few levels that belong to the protocol are cut
// apart; keys count as they are spelled.
func parseFrame(line []byte) (frame, error) {
	if !utf8.Valid(line) {
		return frame{}, fmt.Errorf("%w: invalid UTF-8", errMalformed)
	}
	var f frame
	var tag, id, requestID, method, exit json.RawMessage
	members := rawjson.Members(line)
	for members.Next() {
		switch value := members.Value; string(members.Key) {
		case "_tag":
			tag = value
		case "id":
			id = value
		case "requestId":
			requestID = value
		case "tag":
			method = value
		case "payload":
			f.payload = value
		case "discard":
			f.discard = string(value) == "true"
		case "isNotification":
			f.notification = string(value) == "true"
		case "values":
			f.values = elements(value)
		case "exit":
			exit = value
		case "defect":
			f.defect = value
		}
	}
	if members.Err() == rawjson.ErrMalformed {
		return frame{}, malformed(line)
	}
	if f.kind = kinds[string(tag)]; f.kind == kindUnknown {
		name, ok := rawjson.Text(tag)
		if !ok {
			name = string(tag)
		} else {
			f.kind = kinds[string(quote(name))] // written with escapes
		}
		if f.kind == kindUnknown {
			return frame{}, &badFrame{"Unknown request tag: " + shorten(name)}
		}
	}
	switch f.kind {
	case kindRequest:
		f.id = id
		if !isString(id) && !isNumber(id) || len(id) > maxIDBytes {
			return frame{}, &badFrame{"Invalid request id: " + shorten(string(id))}
		}
		f.method, _ = rawjson.Text(method)
		if string(f.payload) == "null" {
			f.payload = nil
		}
	case kindExit:
		f.id = requestID
		var ok bool
		if f.exit, ok = parseExit(exit); !ok {
			return frame{}, &badFrame{"Exit without a result"}
		}
	default:
		f.id = requestID
	}
	return f, nil
}

// elements returns the values of an array, none of anything else.
func elements(value json.RawMessage) []json.RawMessage {
	all, err := rawjson.Elements(value)
	if err != nil {
		return nil
	}
	return all
}

// parseExit reads the exit of an Exit frame. Of several reasons the one that
// says most counts: a typed error, then a defect, then an interruption.
func parseExit(src json.RawMessage) (exit, bool) {
	var tag string
	var value, cause json.RawMessage
	for o := rawjson.Members(src); o.Next(); {
		switch string(o.Key) {
		case "_tag":
			tag = string(o.Value)
		case "value":
			value = o.Value
		case "cause":
			cause = o.Value
		}
	}
	switch tag {
	case `"Success"`:
		return exit{kind: exitSuccess, body: value}, true
	case `"Failure"`:
	default:
		return exit{}, false
	}
	best := exit{kind: exitInterrupt}
	for _, reason := range elements(cause) {
		var tag string
		var failure, defect json.RawMessage
		for o := rawjson.Members(reason); o.Next(); {
			switch string(o.Key) {
			case "_tag":
				tag = string(o.Value)
			case "error":
				failure = o.Value
			case "defect":
				defect = o.Value
			}
		}
		switch {
		case tag == `"Fail"` && best.kind != exitFail:
			best = exit{kind: exitFail, body: failure}
		case tag == `"Die"` && best.kind == exitInterrupt:
			best = exit{kind: exitDie, body: defect}
		}
	}
	return best, true
}

// size is what a frame costs while it waits: about its bytes on the wire.
func (f *frame) size() int {
	n := frameOverhead + len(f.id) + len(f.method) + len(f.payload) + len(f.exit.body) + len(f.defect)
	for _, v := range f.values {
		n += len(v) + 1
	}
	return n
}

// appendTo adds the frame and its line feed to dst. Its parts must have gone
// through oneLine.
func (f *frame) appendTo(dst []byte) []byte {
	switch f.kind {
	case kindRequest:
		dst = append(dst, `{"_tag":"Request","id":`...)
		dst = append(dst, f.id...)
		dst = append(dst, `,"tag":`...)
		dst = append(dst, quote(f.method)...)
		dst = append(dst, `,"payload":`...)
		dst = append(dst, f.payload...)
		dst = append(dst, `,"headers":[]}`...)
	case kindAck:
		dst = append(dst, `{"_tag":"Ack","requestId":`...)
		dst = append(append(dst, f.id...), '}')
	case kindInterrupt:
		dst = append(dst, `{"_tag":"Interrupt","requestId":`...)
		dst = append(append(dst, f.id...), '}')
	case kindPing:
		dst = append(dst, `{"_tag":"Ping"}`...)
	case kindEof:
		dst = append(dst, `{"_tag":"Eof"}`...)
	case kindPong:
		dst = append(dst, `{"_tag":"Pong"}`...)
	case kindExit:
		dst = append(dst, `{"_tag":"Exit","requestId":`...)
		dst = append(dst, f.id...)
		switch f.exit.kind {
		case exitSuccess:
			dst = append(dst, `,"exit":{"_tag":"Success","value":`...)
			dst = append(append(dst, f.exit.body...), `}}`...)
		case exitFail:
			dst = append(dst, `,"exit":{"_tag":"Failure","cause":[{"_tag":"Fail","error":`...)
			dst = append(append(dst, f.exit.body...), `}]}}`...)
		case exitDie:
			dst = append(dst, `,"exit":{"_tag":"Failure","cause":[{"_tag":"Die","defect":`...)
			dst = append(append(dst, f.exit.body...), `}]}}`...)
		case exitInterrupt:
			dst = append(dst, `,"exit":{"_tag":"Failure","cause":[{"_tag":"Interrupt","fiberId":null}]}}`...)
		}
	case kindChunk:
		dst = append(dst, `{"_tag":"Chunk","requestId":`...)
		dst = append(append(dst, f.id...), `,"values":[`...)
		for i, v := range f.values {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, v...)
		}
		dst = append(dst, `]}`...)
	case kindDefect:
		dst = append(dst, `{"_tag":"Defect","defect":`...)
		dst = append(append(dst, f.defect...), '}')
	}
	return append(dst, '\n')
}

// quotedBytes is how much foreign text is repeated in an answer: enough to
// recognise it.
const quotedBytes = 200

// shorten cuts foreign text that is repeated in an answer.
func shorten(s string) string {
	if s == "" {
		return "none"
	}
	if len(s) <= quotedBytes {
		return s
	}
	for i := quotedBytes; ; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i] + "…"
		}
	}
}

// numberID is the id that the client half uses.
func numberID(n uint64) json.RawMessage { return strconv.AppendUint(nil, n, 10) }
