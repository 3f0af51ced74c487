package mockmodel

import (
	"encoding/json"
	"net/http"
	"strings"
)

// View is what a request says, whatever its protocol. It is made from valid and
// invalid requests alike and leaves out what it cannot read.
type View struct {
	Protocol  string    `json:"protocol"`
	Model     string    `json:"model"`
	Stream    bool      `json:"stream"`
	System    string    `json:"system"` // system texts, joined by blank lines
	Messages  []Message `json:"messages"`
	Tools     []Tool    `json:"tools"`
	MaxTokens int       `json:"max_tokens"` // 0: not stated
	// Thinking is what the request asks for: an effort, or the type of the
	// Anthropic thinking field; empty when it says nothing.
	Thinking string `json:"thinking"`

	// usage tells that a chat stream is to state its usage.
	usage bool
	// encrypted tells that Responses are to hold reasoning that can come back.
	encrypted bool
}

// Message is one message of the history. Results of tools are a message of the
// role "tool" in Chat Completions and parts of a user message in Anthropic
// Messages, as they were sent.
type Message struct {
	Role  string `json:"role"`
	Parts []Part `json:"parts"`
}

// The kinds of parts.
const (
	PartText      = "text"
	PartReasoning = "reasoning"
	PartCall      = "call"
	PartResult    = "result"
	PartImage     = "image"
	PartOther     = "other"
)

// Part is one part of a message.
type Part struct {
	Kind string `json:"kind"`
	// Text of a text, of thinking, or of a result (its texts joined by newlines).
	Text string `json:"text,omitempty"`
	// ID and Name belong to a call; a result has the ID of its call.
	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"`
	// Args is the JSON text of a call's arguments.
	Args string `json:"args,omitempty"`
	// Signature of thinking; of a redacted part, its data.
	Signature string `json:"signature,omitempty"`
	IsError   bool   `json:"is_error,omitempty"`
}

// Tool is a tool that the request offers.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
}

// Prompt returns the newest text that a user wrote, or "".
func (v *View) Prompt() string {
	for i := len(v.Messages) - 1; i >= 0; i-- {
		m := v.Messages[i]
		if m.Role != "user" {
			continue
		}
		for j := len(m.Parts) - 1; j >= 0; j-- {
			if m.Parts[j].Kind == PartText {
				return m.Parts[j].Text
			}
		}
	}
	return ""
}

// Texts returns the texts of all messages of a role, in order.
func (v *View) Texts(role string) []string {
	var out []string
	for _, m := range v.Messages {
		for _, p := range m.Parts {
			if m.Role == role && p.Kind == PartText {
				out = append(out, p.Text)
			}
		}
	}
	return out
}

// Parts returns the parts of a kind of all messages, in order.
func (v *View) Parts(kind string) []Part {
	var out []Part
	for _, m := range v.Messages {
		for _, p := range m.Parts {
			if p.Kind == kind {
				out = append(out, p)
			}
		}
	}
	return out
}

// Result returns the result for a call id, and whether there is one.
func (v *View) Result(id string) (Part, bool) {
	for _, p := range v.Parts(PartResult) {
		if p.ID == id {
			return p, true
		}
	}
	return Part{}, false
}

// object is a JSON object that nobody has checked yet.
type object = map[string]any

func str(v any) string    { s, _ := v.(string); return s }
func obj(v any) object    { m, _ := v.(object); return m }
func list(v any) []any    { a, _ := v.([]any); return a }
func whole(v any) int     { f, _ := v.(float64); return int(f) }
func truth(v any) bool    { b, _ := v.(bool); return b }
func blank(s string) bool { return strings.TrimSpace(s) == "" }

// text is a value that came from JSON as JSON text, without escapes for HTML.
func text(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "" // cannot happen to what was decoded
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// joinTexts is the text of a content value: a string, or the texts of its parts.
func joinTexts(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	var out []string
	for _, p := range list(v) {
		if t, ok := obj(p)["text"].(string); ok {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n")
}

// dialect is one wire protocol. Another one is a file with its dialect and its
// entry in the list of dialects.
type dialect interface {
	// name stands in the records.
	name() string
	// serves tells whether requests to the path speak the protocol.
	serves(path string) bool
	// view reads a request without checking it.
	view(r *http.Request, body object) *View
	// check reports to c what the provider would refuse.
	check(c *checker, h http.Header, body object)
	// errorBody is the body of a plain HTTP error; with status 200 it is the data
	// of an error event, whose name errorEvent is.
	errorBody(status int, e Error) any
	errorEvent() string
	// callID makes the n-th id of a tool call.
	callID(n int64) string
	// stream writes a message as events, and whole one without.
	stream(out *stream, v *View, id int64, u Usage) encoder
	whole(m *message, v *View, id int64, u Usage) any
}

// encoder writes the pieces of one message. The first error ends the answer.
type encoder interface {
	text(delta string) error
	// reasoning writes a delta of a part of thinking, reasoned its end.
	reasoning(st Reasoning, delta string) error
	reasoned(st Reasoning) error
	// call opens a call with the first of its arguments; args adds to them.
	call(st Call, first string) error
	args(st Call, fragment string) error
	end(st End) error
}

// message is an answer without events, collected piece by piece.
type message struct {
	text     strings.Builder
	thoughts []Reasoning
	calls    []Call
	ended    End
}

// collector is the encoder of answers without events.
type collector struct {
	message
	thought strings.Builder
}

func (c *collector) text(delta string) error { c.message.text.WriteString(delta); return nil }

func (c *collector) reasoning(_ Reasoning, delta string) error {
	c.thought.WriteString(delta)
	return nil
}

func (c *collector) reasoned(st Reasoning) error {
	st.Text = c.thought.String()
	c.thought.Reset()
	c.thoughts = append(c.thoughts, st)
	return nil
}

func (c *collector) call(st Call, first string) error {
	st.Args = first
	c.calls = append(c.calls, st)
	return nil
}

func (c *collector) args(_ Call, fragment string) error {
	c.calls[len(c.calls)-1].Args += fragment
	return nil
}

func (c *collector) end(st End) error { c.ended = st; return nil }
