package mockmodel

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tailscale/hujson"
)

// Script is what the server says: its n-th answer goes to the n-th request.
type Script []Answer

// Answer is one reply, step by step. An answer with no steps is a message with
// no content.
type Answer []Step

// Step is one thing that happens while an answer is given: one of the types of
// this package that say so.
type Step interface{ kind() string }

// Text is a step that streams text in Split deltas (0 and 1: one), Delay apart.
// Consecutive texts continue the same part.
type Text struct {
	Text  string
	Split int
	Delay time.Duration
}

// Reasoning is a step that streams one part of thinking.
type Reasoning struct {
	Text string
	// Signature is made up when empty. Of a redacted part it is the data.
	Signature string
	// Redacted sends a part without readable text. Chat has no such part and
	// sends nothing.
	Redacted bool
	// Field is where Chat Completions puts it; empty is reasoning_content.
	Field string
	Split int
	Delay time.Duration
}

// The places in which servers of Chat Completions send thinking.
const (
	FieldReasoningContent = "reasoning_content"
	FieldReasoning        = "reasoning"
	FieldReasoningText    = "reasoning_text"
	FieldReasoningDetails = "reasoning_details" // OpenRouter: a list of objects
	FieldThink            = "think"             // in the text, between <think> tags
)

// Call is a step that asks for a tool call.
type Call struct {
	ID    string // made up when empty
	Name  string
	Args  string // sent as it is, valid or not
	Split int    // number of deltas that carry Args
	Delay time.Duration
	// NoIndex, NoID and Whole are habits of Chat Completions servers: no index
	// in the deltas, no id at all, everything in one delta.
	NoIndex, NoID, Whole bool
}

// Args is a step that sends more of the last call's arguments. What stands
// between the two steps happens in the middle of the arguments.
type Args struct {
	Args  string
	Split int
	Delay time.Duration
}

// Usage sets the token counts of the answer, wherever it stands in it.
type Usage struct {
	Input        int     `json:"input"` // without what the cache served or took
	Output       int     `json:"output"`
	Reasoning    int     `json:"reasoning"` // part of Output
	CacheRead    int     `json:"cache_read"`
	CacheWrite   int     `json:"cache_write"`
	CacheWrite1h int     `json:"cache_write_1h"` // part of CacheWrite
	Cost         float64 `json:"cost"`           // as OpenRouter states it; 0 is not sent
	// Place is where a chat stream carries it: empty for a chunk of its own when
	// the request asks for one, PlaceEvery, or PlaceFinish.
	Place string `json:"place"`
	// Tier is the service tier that Responses report; empty is "default".
	Tier string `json:"tier"`
}

// The habits of Chat Completions servers about usage that nobody asked for.
const (
	PlaceEvery  = "every"  // in every chunk
	PlaceFinish = "finish" // in the chunk that has the finish reason
)

// End is a step that ends the message. An answer that has no other last word
// gets the zero End.
type End struct {
	// Reason overrides the stop reason; the words of one protocol are
	// translated for the other, unknown ones are sent as they are.
	Reason string
	// NoReason, NoUsage and NoDone leave out the stop reason, the usage and the
	// closing event.
	NoReason, NoUsage, NoDone bool
}

// CutMode is how a connection breaks.
type CutMode string

// The ways to break a connection. The zero mode is CutClose.
const (
	CutClose CutMode = "close" // the socket is closed in mid-body
	CutReset CutMode = "reset" // the peer gets a reset
	CutEnd   CutMode = "end"   // the body ends properly, the message does not
)

// Cut is a step that breaks the connection.
type Cut struct{ Mode CutMode }

// Stall is a step that sends nothing for a time; zero: until the client leaves.
type Stall struct{ For time.Duration }

// Hold is a step that blocks until [Server.Release] is called with its name.
type Hold struct{ Name string }

// Headers is a step that sends the response headers without waiting for the
// first event.
type Headers struct{}

// Comment is a step that sends a comment line as keep-alive, Times times (0 and
// 1: once), Delay apart. Comments are not events.
type Comment struct {
	Text  string
	Times int
	Delay time.Duration
}

// HTTP is a step that answers with a status instead of a stream. Only stalls
// and holds may come before it.
type HTTP struct {
	Status int
	// Header values may hold {date+3s} or {date-1h}: an HTTP date that far from
	// now.
	Header map[string]string
	// Body is sent as it is. When empty, a body in the provider's shape is made
	// of Type, Message and Code; empty ones get a default by status.
	Body                string
	Type, Message, Code string
}

// Error is a step that sends an error event inside the stream and ends it.
type Error struct{ Type, Message, Code string }

// Garbage is a step that writes bytes that are no event. With Wire they go to
// the socket below HTTP, which is closed after them.
type Garbage struct {
	Bytes []byte
	Wire  bool
}

// Framing sets how the events of the answer are written, wherever it stands in
// it: the line end (empty: "\n") and the size in bytes of each write (0: whole
// events).
type Framing struct {
	Newline string
	Chop    int
}

// After makes a Cut, Stall, Hold, Comment, Garbage or Error happen once that
// many events have been sent, wherever it stands in the answer. Zero is right
// after the headers.
type After struct {
	Events int
	Step   Step
}

// stamped is the text of a marker: n deltas that carry the time at which they
// were written. With cut the connection breaks half way.
type stamped struct {
	n     int
	delay time.Duration
	cut   bool
}

func (Text) kind() string      { return "text" }
func (Reasoning) kind() string { return "reasoning" }
func (Call) kind() string      { return "call" }
func (Args) kind() string      { return "args" }
func (Usage) kind() string     { return "usage" }
func (End) kind() string       { return "end" }
func (Cut) kind() string       { return "cut" }
func (Stall) kind() string     { return "stall" }
func (Hold) kind() string      { return "hold" }
func (Headers) kind() string   { return "headers" }
func (Comment) kind() string   { return "comment" }
func (HTTP) kind() string      { return "http" }
func (Error) kind() string     { return "error" }
func (Garbage) kind() string   { return "garbage" }
func (Framing) kind() string   { return "framing" }
func (After) kind() string     { return "after" }
func (stamped) kind() string   { return "stamped" }

// last tells whether nothing can follow the step.
func last(s Step) bool {
	switch s := s.(type) {
	case End, Cut, HTTP, Error:
		return true
	case Garbage:
		return s.Wire
	}
	return false
}

// check finds what could never happen as written: a slip in a script must not
// look like a slip of the program under test.
func (s Script) check() error {
	for i, a := range s {
		if err := a.check(); err != nil {
			return fmt.Errorf("answer %d: %w", i+1, err)
		}
	}
	return nil
}

func (a Answer) check() error {
	called, began := false, false
	ended := "" // the step that ended the answer
	for i, st := range a {
		if st == nil {
			return fmt.Errorf("step %d is nil", i+1)
		}
		if err := checkStep(st); err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, st.kind(), err)
		}
		switch st.(type) {
		case After, Usage, Framing:
			continue // not bound to their place
		case Call:
			called = true
		case Args:
			if !called {
				return fmt.Errorf("step %d (args): no call before it", i+1)
			}
		case HTTP:
			if began {
				return fmt.Errorf("step %d (http): the answer has already begun", i+1)
			}
		}
		if ended != "" {
			return fmt.Errorf("step %d (%s) comes after %s and is never reached", i+1, st.kind(), ended)
		}
		switch st.(type) {
		case Stall, Hold:
		default:
			began = true
		}
		if last(st) {
			ended = st.kind()
		}
	}
	return nil
}

func checkStep(st Step) error {
	switch st := st.(type) {
	case Reasoning:
		switch st.Field {
		case "", FieldReasoningContent, FieldReasoning, FieldReasoningText, FieldReasoningDetails, FieldThink:
		default:
			return fmt.Errorf("unknown field %q", st.Field)
		}
	case Call:
		if st.Name == "" {
			return errors.New("a call needs a name")
		}
	case Usage:
		switch st.Place {
		case "", PlaceEvery, PlaceFinish:
		default:
			return fmt.Errorf("unknown place %q", st.Place)
		}
	case Cut:
		switch st.Mode {
		case "", CutClose, CutReset, CutEnd:
		default:
			return fmt.Errorf("unknown mode %q", st.Mode)
		}
	case Stall:
		if st.For < 0 {
			return errors.New("negative duration")
		}
	case Hold:
		if st.Name == "" {
			return errors.New("a hold needs a name")
		}
	case HTTP:
		if st.Status < 200 || st.Status > 599 || st.Status == 204 || st.Status == 304 {
			return fmt.Errorf("status %d is not one that has a body", st.Status)
		}
	case Framing:
		switch st.Newline {
		case "", "\n", "\r\n", "\r":
		default:
			return fmt.Errorf("%q is no line end", st.Newline)
		}
	case After:
		if st.Events < 0 {
			return errors.New("negative number of events")
		}
		switch st.Step.(type) {
		case Cut, Stall, Hold, Comment, Garbage, Error:
			return checkStep(st.Step)
		}
		return errors.New("only cut, stall, hold, comment, garbage and error can come after a number of events")
	}
	return nil
}

// ParseScripts reads the written form: a list of answers, which is the script
// named DefaultScript, or an object of such lists by name. Comments and trailing
// commas are allowed.
func ParseScripts(data []byte) (map[string]Script, error) {
	plain, err := hujson.Standardize(data)
	if err != nil {
		return nil, fmt.Errorf("read script: %w", err)
	}
	scripts := map[string]Script{}
	if t := bytes.TrimSpace(plain); len(t) > 0 && t[0] == '[' {
		var s Script
		if err := json.Unmarshal(plain, &s); err != nil {
			return nil, fmt.Errorf("read script: %w", err)
		}
		scripts[DefaultScript] = s
	} else {
		var named map[string]json.RawMessage
		if err := json.Unmarshal(plain, &named); err != nil {
			return nil, fmt.Errorf("read script: %w", err)
		}
		if named == nil {
			return nil, errors.New("read script: want a list of answers, or an object of such lists")
		}
		for name, raw := range named {
			var s Script
			if err := json.Unmarshal(raw, &s); err != nil {
				return nil, fmt.Errorf("read script %s: %w", name, err)
			}
			scripts[name] = s
		}
	}
	for name, s := range scripts {
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("script %s: %w", name, err)
		}
	}
	return scripts, nil
}

// UnmarshalJSON reads a list of answers.
func (s *Script) UnmarshalJSON(data []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil || raw == nil {
		return errors.New("want a list of answers")
	}
	out := make(Script, len(raw))
	for i, r := range raw {
		if err := out[i].UnmarshalJSON(r); err != nil {
			return fmt.Errorf("answer %d: %w", i+1, err)
		}
	}
	*s = out
	return nil
}

// UnmarshalJSON reads a list of steps, or a string, which is one text.
func (a *Answer) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil && bytes.HasPrefix(bytes.TrimSpace(data), []byte{'"'}) {
		*a = Answer{Text{Text: text}}
		return nil
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil || raw == nil {
		return errors.New("want a list of steps, or a text")
	}
	out := make(Answer, len(raw))
	for i, r := range raw {
		st, err := parseStep(r)
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		out[i] = st
	}
	*a = out
	return nil
}

// span is a duration in a script: a Go duration string or a number of seconds.
type span time.Duration

func (d *span) UnmarshalJSON(data []byte) error {
	var secs float64
	if json.Unmarshal(data, &secs) == nil {
		*d = span(secs * float64(time.Second))
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return errors.New("want a duration such as \"1.5s\", or a number of seconds")
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	*d = span(v)
	return nil
}

// stepParsers reads a step by its key. call and http come first: args is part of
// a call when there is one, and a step without; so is headers of http.
var stepParsers = []struct {
	key   string
	parse func([]byte) (Step, error)
}{
	{"call", parseCall},
	{"http", parseHTTP},
	{"text", parseText},
	{"reasoning", parseReasoning},
	{"args", parseArgs},
	{"usage", parseUsage},
	{"end", parseEnd},
	{"cut", parseCut},
	{"stall", parseStall},
	{"hold", parseHold},
	{"headers", parseHeaders},
	{"comment", parseComment},
	{"error", parseError},
	{"garbage", parseGarbage},
	{"framing", parseFraming},
}

func parseStep(data []byte) (Step, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil || keys == nil {
		return nil, errors.New("want an object such as {\"text\": \"hello\"}")
	}
	var after *int
	if raw, ok := keys["after"]; ok {
		if err := json.Unmarshal(raw, &after); err != nil || after == nil {
			return nil, errors.New("after: want a number of events")
		}
		delete(keys, "after")
	}
	// Not json.Marshal: it would write <, > and & of a call's arguments as
	// escapes, and arguments are sent as written.
	var rest bytes.Buffer
	enc := json.NewEncoder(&rest)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(keys); err != nil {
		return nil, err
	}
	for _, p := range stepParsers {
		if _, ok := keys[p.key]; !ok {
			continue
		}
		st, err := p.parse(rest.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.key, err)
		}
		if after != nil {
			return After{Events: *after, Step: st}, nil
		}
		return st, nil
	}
	names := make([]string, 0, len(keys))
	for k := range keys {
		names = append(names, k)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("no step has the keys %q", names)
}

// fields decodes an object and refuses keys that the step does not have.
func fields(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("text after the object")
	}
	return nil
}

func parseText(data []byte) (Step, error) {
	var j struct {
		Text  string `json:"text"`
		Split int    `json:"split"`
		Delay span   `json:"delay"`
	}
	err := fields(data, &j)
	return Text{j.Text, j.Split, time.Duration(j.Delay)}, err
}

func parseReasoning(data []byte) (Step, error) {
	var j struct {
		Text      string `json:"reasoning"`
		Signature string `json:"signature"`
		Redacted  bool   `json:"redacted"`
		Field     string `json:"field"`
		Split     int    `json:"split"`
		Delay     span   `json:"delay"`
	}
	err := fields(data, &j)
	return Reasoning{j.Text, j.Signature, j.Redacted, j.Field, j.Split, time.Duration(j.Delay)}, err
}

func parseCall(data []byte) (Step, error) {
	var j struct {
		Name    string          `json:"call"`
		ID      string          `json:"id"`
		Args    json.RawMessage `json:"args"`
		Split   int             `json:"split"`
		Delay   span            `json:"delay"`
		NoIndex bool            `json:"no_index"`
		NoID    bool            `json:"no_id"`
		Whole   bool            `json:"whole"`
	}
	if err := fields(data, &j); err != nil {
		return nil, err
	}
	c := Call{ID: j.ID, Name: j.Name, Split: j.Split, Delay: time.Duration(j.Delay),
		NoIndex: j.NoIndex, NoID: j.NoID, Whole: j.Whole}
	switch {
	case len(j.Args) == 0:
	case j.Args[0] == '"':
		if err := json.Unmarshal(j.Args, &c.Args); err != nil {
			return nil, err
		}
	default:
		var b bytes.Buffer
		if err := json.Compact(&b, j.Args); err != nil {
			return nil, err
		}
		c.Args = b.String()
	}
	return c, nil
}

func parseArgs(data []byte) (Step, error) {
	var j struct {
		Args  string `json:"args"`
		Split int    `json:"split"`
		Delay span   `json:"delay"`
	}
	err := fields(data, &j)
	return Args{j.Args, j.Split, time.Duration(j.Delay)}, err
}

func parseUsage(data []byte) (Step, error) {
	var j struct {
		Usage Usage `json:"usage"`
	}
	err := fields(data, &j)
	return j.Usage, err
}

func parseEnd(data []byte) (Step, error) {
	var j struct {
		Reason   string `json:"end"`
		NoReason bool   `json:"no_reason"`
		NoUsage  bool   `json:"no_usage"`
		NoDone   bool   `json:"no_done"`
	}
	err := fields(data, &j)
	return End{j.Reason, j.NoReason, j.NoUsage, j.NoDone}, err
}

func parseCut(data []byte) (Step, error) {
	var j struct {
		Cut  any     `json:"cut"`
		Mode CutMode `json:"mode"`
	}
	if err := fields(data, &j); err != nil {
		return nil, err
	}
	switch v := j.Cut.(type) {
	case string:
		if j.Mode != "" {
			return nil, errors.New("the mode is stated twice")
		}
		return Cut{Mode: CutMode(v)}, nil
	case float64:
		if v != float64(int(v)) {
			return nil, errors.New("want a whole number of events")
		}
		return After{Events: int(v), Step: Cut{Mode: j.Mode}}, nil
	}
	return nil, errors.New("want a mode or a number of events")
}

func parseStall(data []byte) (Step, error) {
	var j struct {
		For span `json:"stall"`
	}
	err := fields(data, &j)
	return Stall{time.Duration(j.For)}, err
}

func parseHold(data []byte) (Step, error) {
	var j struct {
		Name string `json:"hold"`
	}
	err := fields(data, &j)
	return Hold{j.Name}, err
}

func parseHeaders(data []byte) (Step, error) {
	var j struct {
		Headers bool `json:"headers"`
	}
	if err := fields(data, &j); err != nil {
		return nil, err
	}
	if !j.Headers {
		return nil, errors.New("want true")
	}
	return Headers{}, nil
}

func parseComment(data []byte) (Step, error) {
	var j struct {
		Text  string `json:"comment"`
		Times int    `json:"times"`
		Delay span   `json:"delay"`
	}
	err := fields(data, &j)
	return Comment{j.Text, j.Times, time.Duration(j.Delay)}, err
}

func parseHTTP(data []byte) (Step, error) {
	var j struct {
		Status  int               `json:"http"`
		Header  map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
		Type    string            `json:"type"`
		Message string            `json:"message"`
		Code    string            `json:"code"`
	}
	if err := fields(data, &j); err != nil {
		return nil, err
	}
	h := HTTP{Status: j.Status, Header: j.Header, Type: j.Type, Message: j.Message, Code: j.Code}
	h.Body = string(j.Body)
	if strings.HasPrefix(h.Body, `"`) {
		if err := json.Unmarshal(j.Body, &h.Body); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func parseError(data []byte) (Step, error) {
	var j struct {
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	err := fields(data, &j)
	return Error(j.Error), err
}

func parseGarbage(data []byte) (Step, error) {
	var j struct {
		Bytes  string `json:"garbage"`
		Base64 bool   `json:"base64"`
		Wire   bool   `json:"wire"`
	}
	if err := fields(data, &j); err != nil {
		return nil, err
	}
	g := Garbage{Bytes: []byte(j.Bytes), Wire: j.Wire}
	if j.Base64 {
		b, err := base64.StdEncoding.DecodeString(j.Bytes)
		if err != nil {
			return nil, err
		}
		g.Bytes = b
	}
	return g, nil
}

func parseFraming(data []byte) (Step, error) {
	var j struct {
		Framing struct {
			Newline string `json:"newline"`
			Chop    int    `json:"chop"`
		} `json:"framing"`
	}
	err := fields(data, &j)
	return Framing(j.Framing), err
}
