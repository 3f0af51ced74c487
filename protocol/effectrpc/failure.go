package effectrpc

import (
	"bytes"
	"encoding/json"

	"codework/protocol/rawjson"
)

// RemoteError is an error that a method declares: an object with its own _tag
// and fields. The client half returns it for a failed call; a stream's source
// may return it to end the stream with it.
type RemoteError struct {
	Tag  string
	Body json.RawMessage // the whole object
}

func (e *RemoteError) Error() string { return e.Tag }

// Defect is a failure that a method does not declare: a fault, an unknown method,
// an undecodable payload, or one of the named refusals such as BusyError.
type Defect struct {
	Name    string // empty when the defect is only a text
	Message string
}

func (d *Defect) Error() string {
	if d.Name == "" {
		return d.Message
	}
	return d.Name + ": " + d.Message
}

// MarshalJSON writes a defect as {"name","message"}, or as a text when it has no
// name; clients take the first for an error of their own language.
func (d *Defect) MarshalJSON() ([]byte, error) { return d.encode(), nil }

func (d *Defect) encode() json.RawMessage {
	if d.Name == "" {
		return quote(d.Message)
	}
	return json.RawMessage(`{"name":` + string(quote(d.Name)) + `,"message":` + string(quote(d.Message)) + `}`)
}

// parseRemoteError reads the error of a Fail.
func parseRemoteError(body json.RawMessage) *RemoteError {
	e := &RemoteError{Body: body}
	for o := rawjson.Members(body); o.Next(); {
		if tag, ok := rawjson.Text(o.Value); ok && string(o.Key) == "_tag" {
			e.Tag = tag
		}
	}
	return e
}

// parseDefect reads any JSON value as a defect; what is neither a text nor has a
// message is kept as its JSON.
func parseDefect(body json.RawMessage) *Defect {
	d := &Defect{Message: string(bytes.TrimSpace(body))}
	if text, ok := rawjson.Text(body); ok {
		d.Message = text
		return d
	}
	for o := rawjson.Members(body); o.Next(); {
		text, ok := rawjson.Text(o.Value)
		if !ok {
			continue
		}
		switch string(o.Key) {
		case "name":
			d.Name = text
		case "message":
			d.Message = text
		}
	}
	return d
}
