// Package chat speaks OpenAI's Chat Completions as many servers do: Ollama,
// vLLM, LM Studio, llama.cpp, Groq, Mistral, DeepSeek, OpenRouter and others.
//
// The answer is complete once a finish_reason was seen; "[DONE]" may be
// missing. A stream that ends before is a dropped connection. What the servers
// do differently is in compat, switched by the model's compat entry and the
// base URL. For order, blocking and cancellation see package providers.
package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"codework/messages"
	"codework/providers"
	"codework/providers/internal/scan"
	"codework/providers/sse"
)

// Dialect speaks Chat Completions. The zero value is ready for use.
type Dialect struct{}

// Stream sends the request; see providers.Dialect.
func (Dialect) Stream(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	c := compatOf(req.Model)
	raw, err := body(req, c)
	if err != nil {
		providers.NewAssembler(req, "", emit).Fail(&messages.Failure{
			Type:    messages.FailContextEncode,
			Message: "the request cannot be encoded: an option is not valid JSON",
		})
		return
	}
	url := providers.BaseURL(req.Model)
	if url != "" {
		if url, err = providers.JoinURL(url, "chat/completions"); err != nil {
			url = ""
		}
	}
	s := &stream{req: req, compat: c, byIndex: map[int]*call{}, byID: map[string]*call{}, think: thinkSplitter{on: c.InlineThink}}
	providers.Attempt{
		URL:    url,
		Header: header(req, c),
		Body:   raw,
		Event:  s.event,
		Whole:  s.whole,
	}.Run(ctx, client, req, emit)
}

// maxRefusal is how much of a refusal's text is kept, in bytes: more than is
// shown.
const maxRefusal = 4 << 10

// maxDetails bounds the reasoning details that are kept until the end: the
// longest reasoning is a tenth of it.
const maxDetails = 4 << 20

// stream reads one answer.
type stream struct {
	req     *messages.Request
	compat  compat
	think   thinkSplitter
	calls   []*call
	byIndex map[int]*call
	byID    map[string]*call // by the id that the server gave
	refusal strings.Builder
	details []*detail // OpenRouter's reasoning_details
	held    int       // bytes in details
	last    chunk     // of which only id and model are kept
}

// call is a tool call that is being written.
type call struct {
	block *providers.Block
	id    string // as the server gave it
	name  string
	args  arguments
}

// chunk is one frame. Fields of a wrong type are left empty: servers differ,
// and what matters is checked.
type chunk struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
	Groq    struct {
		Usage *usage `json:"usage"`
	} `json:"x_groq"`
}

type choice struct {
	Index        int             `json:"index"`
	Delta        *delta          `json:"delta"`
	Message      *delta          `json:"message"` // of an answer that is no stream
	FinishReason string          `json:"finish_reason"`
	Usage        *usage          `json:"usage"` // Moonshot
	Error        json.RawMessage `json:"error"` // OpenRouter
}

type delta struct {
	Content          json.RawMessage   `json:"content"`
	Refusal          string            `json:"refusal"`
	ReasoningContent json.RawMessage   `json:"reasoning_content"`
	Reasoning        json.RawMessage   `json:"reasoning"`
	ReasoningText    json.RawMessage   `json:"reasoning_text"`
	ReasoningDetails []json.RawMessage `json:"reasoning_details"`
	ToolCalls        []toolDelta       `json:"tool_calls"`
}

type toolDelta struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

type usage struct {
	Prompt        int64   `json:"prompt_tokens"`
	Completion    int64   `json:"completion_tokens"`
	Total         int64   `json:"total_tokens"`
	CacheHit      int64   `json:"prompt_cache_hit_tokens"` // DeepSeek
	Cached        int64   `json:"cached_tokens"`           // Moonshot
	Cost          float64 `json:"cost"`                    // OpenRouter, in US dollars
	PromptDetails struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"` // OpenRouter
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (s *stream) event(a *providers.Assembler, e sse.Event) {
	switch data := bytes.TrimSpace(e.Data); string(data) {
	case "":
	case "[DONE]":
		a.Finish()
	default:
		s.chunk(a, data, e.Type == "error")
	}
}

// whole reads an answer that came as one document.
func (s *stream) whole(a *providers.Assembler, body []byte) {
	s.chunk(a, body, false)
	if !a.Ended() && !a.Stopped() {
		a.Stop(messages.StopStop) // the document is complete as it is
	}
}

func (s *stream) chunk(a *providers.Assembler, data []byte, isError bool) {
	var c chunk
	if !c.quick(data, &s.last) {
		c = chunk{}
		var wrongType *json.UnmarshalTypeError
		if err := json.Unmarshal(data, &c); err != nil && !errors.As(err, &wrongType) {
			a.Fail(&messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider sent a frame that is not JSON"})
			return
		}
	}
	s.last.ID, s.last.Model = c.ID, c.Model
	if isError || c.Object == "error" || present(c.Error) {
		a.Fail(providers.Classify(s.req, providers.ReadFault(0, nil, data)))
		return
	}
	for _, ch := range c.Choices {
		if present(ch.Error) {
			a.Fail(providers.Classify(s.req, providers.ReadFault(0, nil, ch.Error)))
			return
		}
	}
	a.Start()
	if len(c.Choices) > 0 {
		a.Response(c.ID, c.Model)
	}
	for _, u := range []*usage{c.Usage, c.Groq.Usage} {
		s.usage(a, u)
	}
	for _, ch := range c.Choices {
		if ch.Index != 0 {
			continue // only one answer was asked for
		}
		s.usage(a, ch.Usage)
		d := ch.Delta
		if d == nil {
			d = ch.Message
		}
		if d != nil {
			s.delta(a, d)
		}
		if ch.FinishReason != "" && ch.FinishReason != "null" && !a.Stopped() {
			s.finish(a, ch.FinishReason)
		}
	}
}

func (s *stream) usage(a *providers.Assembler, u *usage) {
	if u == nil || u.Prompt == 0 && u.Completion == 0 {
		return // some servers send zeros until the last chunk
	}
	a.Usage(func(out *messages.Usage, _ *providers.Billing) {
		read := max(u.PromptDetails.Cached, u.CacheHit, u.Cached)
		*out = messages.Usage{
			Input:       max(u.Prompt-read-u.PromptDetails.CacheWrite, 0),
			Output:      u.Completion,
			Reasoning:   u.CompletionDetails.Reasoning,
			CacheRead:   read,
			CacheWrite:  u.PromptDetails.CacheWrite,
			TotalTokens: u.Total,
		}
		if s.compat.ThinkingFormat == "openrouter" {
			out.ProviderCost = u.Cost // others may count in something else
		}
	})
}

func (s *stream) delta(a *providers.Assembler, d *delta) {
	for _, raw := range []json.RawMessage{d.ReasoningContent, d.Reasoning, d.ReasoningText} {
		// Some servers send the same words under two names.
		if text := text(raw); text != "" {
			a.Thinking(text)
			break
		}
	}
	for _, raw := range d.ReasoningDetails {
		if s.held += len(raw); s.held > maxDetails {
			a.Fail(&messages.Failure{Type: messages.FailInvalidResponse, Message: "the answer's reasoning details are longer than 4 MiB"})
			return
		}
		s.detail(raw)
	}
	s.content(a, d.Content)
	if s.refusal.Len() < maxRefusal {
		s.refusal.WriteString(d.Refusal)
	}
	for i := range d.ToolCalls {
		if a.Ended() {
			return // one frame can hold more calls than an answer may
		}
		s.tool(a, &d.ToolCalls[i])
	}
}

// content is a string, or an array of parts (Mistral), of which thinking has
// its own.
func (s *stream) content(a *providers.Assembler, raw json.RawMessage) {
	if len(raw) == 0 || raw[0] != '[' {
		s.text(a, text(raw))
		return
	}
	var parts []struct {
		Type     string          `json:"type"`
		Text     string          `json:"text"`
		Thinking json.RawMessage `json:"thinking"`
	}
	json.Unmarshal(raw, &parts)
	for _, p := range parts {
		if p.Type != "thinking" {
			s.text(a, p.Text)
			continue
		}
		if t := text(p.Thinking); t != "" {
			a.Thinking(t)
			continue
		}
		var inner []struct {
			Text string `json:"text"`
		}
		json.Unmarshal(p.Thinking, &inner)
		for _, t := range inner {
			a.Thinking(t.Text)
		}
	}
}

func (s *stream) text(a *providers.Assembler, delta string) {
	s.think.split(delta, a.Thinking, a.Text)
}

// tool takes one fragment of a call. Servers name the call it belongs to by
// index, by id, by neither, or wrongly by index 0 for each.
func (s *stream) tool(a *providers.Assembler, d *toolDelta) {
	args := written(d.Function.Arguments)
	c := s.find(d, args)
	if c == nil {
		s.think.flush(a.Thinking, a.Text)
		c = &call{id: d.ID, name: d.Function.Name}
		c.block = a.Begin(messages.Part{Type: messages.PartToolCall, CallID: d.ID, Name: d.Function.Name})
		s.calls = append(s.calls, c)
		if d.Index != nil {
			s.byIndex[*d.Index] = c
		}
		s.identify(c, d.ID)
	} else {
		if c.id == "" {
			c.id = d.ID
			s.identify(c, d.ID)
		}
		if c.name == "" {
			c.name = d.Function.Name
			a.Named(c.block, c.id, c.name)
		}
	}
	c.args.add(args)
	a.Append(c.block, args)
}

// identify notes the id of a call. Of several with the same one the first has it.
func (s *stream) identify(c *call, id string) {
	if id != "" && s.byID[id] == nil {
		s.byID[id] = c
	}
}

// find returns the call that a fragment goes on with, or nil for a new one.
func (s *stream) find(d *toolDelta, args string) *call {
	var c *call
	switch {
	case d.Index != nil:
		c = s.byIndex[*d.Index]
	case d.ID != "":
		return s.byID[d.ID]
	case len(s.calls) > 0:
		c = s.calls[len(s.calls)-1]
		if d.Function.Name != "" && c.name != "" && c.args.text.Len() > 0 {
			return nil // whole calls, one after the other
		}
	}
	if c == nil {
		return nil
	}
	if d.ID != "" && c.id != "" && d.ID != c.id && d.Function.Name != "" {
		return nil
	}
	if d.ID == "" && d.Function.Name != "" && c.name != "" && args != "" && c.args.complete() {
		return nil
	}
	return c
}

func (s *stream) finish(a *providers.Assembler, reason string) {
	s.think.flush(a.Thinking, a.Text)
	if len(s.details) > 0 {
		if raw, err := json.Marshal(s.details); err == nil {
			a.SignThinking(string(raw))
		}
	}
	filtered := &messages.Failure{
		Type:    messages.FailContentFilter,
		Code:    reason,
		Message: "the provider withheld the answer (" + reason + ")",
		Hint:    "rephrase the request, or try another model",
	}
	switch reason {
	case "stop", "eos", "end_turn", "stop_sequence", "eos_token", "STOP":
		if s.refusal.Len() > 0 && a.Empty() {
			filtered.Code = "refusal"
			filtered.Message = providers.Sentence("the model refused: " + s.refusal.String())
			a.StopFailed(filtered)
			return
		}
		a.Stop(messages.StopStop)
	case "length", "max_tokens", "model_length", "MAX_TOKENS":
		a.Stop(messages.StopLength)
	case "tool_calls", "function_call", "tool_use":
		a.Stop(messages.StopToolUse)
	case "content_filter", "safety", "SAFETY", "refusal", "sensitive": // the last is Z.ai's
		a.StopFailed(filtered)
	case "insufficient_system_resource": // DeepSeek
		a.StopFailed(&messages.Failure{Type: messages.FailUnavailable, Code: reason, Retryable: true,
			Message: "the provider ran out of resources"})
	case "network_error": // Z.ai
		a.StopFailed(&messages.Failure{Type: messages.FailTransport, Code: reason, Retryable: true,
			Message: "the provider lost its connection to the model"})
	default:
		a.StopFailed(&messages.Failure{Type: messages.FailProviderUnknown,
			Message: providers.Sentence("the answer ended for an unknown reason: " + reason)})
	}
}

// detail is one entry of OpenRouter's reasoning_details. Its fragments have the
// same type and index and come one after the other; text and summary grow, the
// other fields are the same or come once.
type detail struct {
	fields        map[string]json.RawMessage
	text, summary strings.Builder
}

func (s *stream) detail(raw json.RawMessage) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		return
	}
	var d *detail
	if n := len(s.details); n > 0 && s.details[n-1].continuedBy(fields) {
		d = s.details[n-1]
		for name, v := range fields {
			if present(v) {
				d.fields[name] = v
			}
		}
	} else {
		d = &detail{fields: fields}
		s.details = append(s.details, d)
	}
	d.text.WriteString(text(fields["text"]))
	d.summary.WriteString(text(fields["summary"]))
}

func (d *detail) continuedBy(next map[string]json.RawMessage) bool {
	return string(d.fields["type"]) == string(next["type"]) &&
		string(d.fields["index"]) == string(next["index"]) &&
		text(next["type"]) != "reasoning.encrypted"
}

// MarshalJSON gives the entry as if it had come in one piece.
func (d *detail) MarshalJSON() ([]byte, error) {
	for name, grown := range map[string]*strings.Builder{"text": &d.text, "summary": &d.summary} {
		if grown.Len() > 0 {
			d.fields[name] = providers.AppendString(nil, grown.String())
		}
	}
	return json.Marshal(d.fields)
}

// arguments are those of a call, as far as they have come. They are followed
// byte by byte, so that telling whether they are complete costs nothing while
// they are not: some servers give that occasion with each of many fragments.
type arguments struct {
	text     strings.Builder
	depth    int // open brackets
	inString bool
	escaped  bool
	closed   bool // the outermost bracket was
	broken   bool // closed, and no JSON
}

func (g *arguments) add(fragment string) {
	g.text.WriteString(fragment)
	for i := range len(fragment) {
		switch c := fragment[i]; {
		case g.escaped:
			g.escaped = false
		case g.inString:
			g.escaped, g.inString = c == '\\', c != '"'
		case c == '"':
			g.inString = true
		case c == '{', c == '[':
			g.depth++
		case c == '}', c == ']':
			g.depth--
			g.closed = g.closed || g.depth <= 0
		}
	}
}

// complete tells whether the arguments are JSON as they are.
func (g *arguments) complete() bool {
	if g.broken || g.inString || g.depth > 0 {
		return false
	}
	valid := json.Valid([]byte(g.text.String()))
	g.broken = g.closed && !valid
	return valid
}

// written is what a fragment says of the arguments: a string of JSON, or the JSON
// itself.
func written(raw json.RawMessage) string {
	if !present(raw) {
		return ""
	}
	if raw[0] == '"' {
		return text(raw)
	}
	return string(raw)
}

// text is a JSON string's value; anything else is empty.
func text(raw json.RawMessage) string {
	if len(raw) == 0 || raw[0] != '"' {
		return ""
	}
	s := scan.Scanner{Data: raw}
	value, _ := s.Text()
	return value
}

func present(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", `""`, "{}", "false":
		return false
	}
	return true
}
