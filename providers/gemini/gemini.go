// Package gemini speaks Google's Gemini API: streamGenerateContent with
// server-sent events.
//
// The answer is complete with a finishReason, or with a promptFeedback that
// says why there will be none; a stream that ends before is a dropped
// connection, however properly it ended. Thought signatures go back byte for
// byte on the part they came with, because Gemini 3 and later refuse calls
// without theirs. For order, blocking and cancellation see package providers.
package gemini

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"codework/messages"
	"codework/providers"
	"codework/providers/sse"
)

// apiVersion is put behind a base URL that names no version.
const apiVersion = "v1beta"

// Dialect speaks streamGenerateContent. The zero value is ready for use.
type Dialect struct{}

// Stream sends the request; see providers.Dialect.
func (Dialect) Stream(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	body, err := encodeRequest(req)
	if err != nil {
		providers.NewAssembler(req, "", emit).Fail(&messages.Failure{
			Type:    messages.FailContextEncode,
			Message: "the request cannot be encoded: an option is not valid JSON",
		})
		return
	}
	h := http.Header{}
	if key := strings.TrimSpace(req.APIKey); key != "" {
		h.Set("x-goog-api-key", key) // in the URL it would end up in logs
	}
	s := &stream{req: req}
	providers.Attempt{
		URL:    endpoint(providers.BaseURL(req.Model), providers.ModelID(req.Model)),
		Header: h,
		Body:   body,
		Event:  func(a *providers.Assembler, e sse.Event) { s.chunk(a, e.Data) },
		Whole:  s.whole,
	}.Run(ctx, client, req, emit)
}

var version = regexp.MustCompile(`/v[0-9][0-9a-z]*$`)

// endpoint is where a model streams. A model's name may say its collection
// ("tunedModels/x"); else it is in models.
func endpoint(base, model string) string {
	u, err := url.Parse(strings.TrimSpace(base))
	if err != nil || base == "" {
		return ""
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if !version.MatchString(u.Path) {
		u = u.JoinPath(apiVersion)
	}
	segments := strings.Split(model, "/")
	if len(segments) == 1 {
		segments = []string{"models", model}
	}
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	segments[len(segments)-1] += ":streamGenerateContent"
	u = u.JoinPath(segments...)
	q := u.Query()
	q.Set("alt", "sse") // without it the answer is one array that grows
	u.RawQuery = q.Encode()
	return u.String()
}

// stream reads one answer.
type stream struct {
	req *messages.Request
	// c is used for every chunk again: there are many and they are alike.
	c         chunk
	id, model string // of the answer, as the last chunk said
	// open is the text or thinking that goes on with the next part of its kind.
	open   *providers.Block
	kind   messages.PartType
	filled bool // open has something to read in it
	signed bool // open has its signature
}

type chunk struct {
	Candidates []candidate     `json:"candidates"`
	Feedback   *feedback       `json:"promptFeedback"`
	Usage      usage           `json:"usageMetadata"`
	Model      raw             `json:"modelVersion"`
	ID         raw             `json:"responseId"`
	Error      json.RawMessage `json:"error"`
}

type candidate struct {
	Index   int `json:"index"`
	Content struct {
		Parts []part `json:"parts"`
	} `json:"content"`
	FinishReason  string `json:"finishReason"`
	FinishMessage string `json:"finishMessage"`
}

type part struct {
	Text      string `json:"text"`
	Thought   bool   `json:"thought"`
	Signature string `json:"thoughtSignature"`
	Call      *call  `json:"functionCall"`
}

type call struct {
	ID   string          `json:"id"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args"`
}

type feedback struct {
	BlockReason string `json:"blockReason"`
	Message     string `json:"blockReasonMessage"`
}

// usage is of the whole answer so far, with each report.
type usage struct {
	Prompt     int64 `json:"promptTokenCount"` // cached ones included
	ToolPrompt int64 `json:"toolUsePromptTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
	Total      int64 `json:"totalTokenCount"`
}

// raw is a JSON string whose bytes are kept where they are from chunk to chunk.
type raw []byte

// UnmarshalJSON keeps the bytes.
func (r *raw) UnmarshalJSON(data []byte) error {
	*r = append((*r)[:0], data...)
	return nil
}

// is tells whether the JSON string is s; what has escapes never is.
func (r raw) is(s string) bool {
	return len(r) == len(s)+2 && string(r[1:len(r)-1]) == s
}

func (r raw) text() string {
	var s string
	json.Unmarshal(r, &s) // another type says nothing
	return s
}

// whole reads an answer that came as one document: a chunk, or an array of
// them.
func (s *stream) whole(a *providers.Assembler, body []byte) {
	var chunks []json.RawMessage
	if json.Unmarshal(body, &chunks) != nil {
		chunks = []json.RawMessage{body}
	}
	for _, c := range chunks {
		s.chunk(a, c)
	}
}

// reset forgets what a chunk said, but keeps its memory: a decoder leaves
// fields alone that are not in the next one.
func (c *chunk) reset() {
	for i := range c.Candidates {
		parts := c.Candidates[i].Content.Parts
		clear(parts)
		c.Candidates[i] = candidate{}
		c.Candidates[i].Content.Parts = parts[:0]
	}
	c.Candidates = c.Candidates[:0]
	c.Feedback, c.Usage, c.Error = nil, usage{}, nil
	c.Model, c.ID = c.Model[:0], c.ID[:0]
}

func (s *stream) chunk(a *providers.Assembler, data []byte) {
	if string(data) == "[DONE]" {
		return // some gateways end every stream as Chat Completions does
	}
	c := &s.c
	c.reset()
	if !c.quick(data) {
		c.reset()
		var wrongType *json.UnmarshalTypeError
		if err := json.Unmarshal(data, c); err != nil && !errors.As(err, &wrongType) {
			a.Fail(&messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider sent a frame that is not JSON"})
			return
		}
	}
	if e := bytes.TrimSpace(c.Error); len(e) > 0 && string(e) != "null" {
		a.Fail(providers.Classify(s.req, providers.ReadFault(0, nil, data)))
		return
	}
	a.Start()
	s.response(a)
	s.usage(a)
	for i := range c.Candidates {
		cand := &c.Candidates[i]
		if cand.Index != 0 {
			continue // only one answer was asked for
		}
		for j := range cand.Content.Parts {
			s.part(a, &cand.Content.Parts[j])
		}
		if cand.FinishReason != "" && !a.Stopped() {
			s.close(a)
			s.finish(a, cand.FinishReason, cand.FinishMessage)
		}
	}
	if f := c.Feedback; f != nil && f.BlockReason != "" && !a.Stopped() {
		a.StopFailed(&messages.Failure{
			Type:    messages.FailContentFilter,
			Code:    f.BlockReason,
			Message: providers.Sentence(with("the provider blocked the prompt ("+f.BlockReason+")", f.Message)),
			Hint:    "rephrase the request, or try another model",
		})
	}
}

// response notes who answered. Each chunk repeats it.
func (s *stream) response(a *providers.Assembler) {
	if id := s.c.ID; len(id) > 0 && !id.is(s.id) {
		s.id = id.text()
		a.Response(s.id, "")
	}
	if model := s.c.Model; len(model) > 0 && !model.is(s.model) {
		s.model = model.text()
		a.Response("", s.model)
	}
}

func (s *stream) usage(a *providers.Assembler) {
	u := s.c.Usage
	if u == (usage{}) {
		return
	}
	a.Usage(func(out *messages.Usage, _ *providers.Billing) {
		cached := max(u.Cached, 0)
		*out = messages.Usage{
			Input:       max(u.Prompt+u.ToolPrompt-cached, 0),
			Output:      u.Candidates + u.Thoughts, // thoughts are billed as output
			Reasoning:   u.Thoughts,
			CacheRead:   cached,
			TotalTokens: u.Total,
		}
	})
}

func (s *stream) part(a *providers.Assembler, p *part) {
	if p.Call != nil {
		s.close(a)
		b := a.Begin(messages.Part{Type: messages.PartToolCall, CallID: p.Call.ID, Name: p.Call.Name})
		a.Sign(b, p.Signature)
		if args := bytes.TrimSpace(p.Call.Args); string(args) != "null" {
			a.Append(b, string(args))
		}
		a.End(b)
		return
	}
	kind := messages.PartText
	if p.Thought {
		kind = messages.PartThinking
	}
	switch {
	case p.Text != "":
		// A second signature needs a part of its own: one part has one.
		if s.open == nil || s.kind != kind || s.signed && p.Signature != "" {
			s.close(a)
			s.open, s.kind = a.Begin(messages.Part{Type: kind}), kind
		}
		a.Append(s.open, p.Text)
		s.filled = s.filled || strings.TrimSpace(p.Text) != ""
		s.sign(a, p.Signature)
	case p.Signature == "":
		// Nothing was said: padding, or a kind of part that is never asked for.
	case s.open != nil && s.filled && !s.signed:
		// The signature of streamed text comes behind it, on an empty part.
		s.sign(a, p.Signature)
	default:
		// A signature by itself keeps its place between the other parts.
		s.close(a)
		b := a.Begin(messages.Part{Type: messages.PartThinking, Redacted: true})
		a.Sign(b, p.Signature)
		a.End(b)
	}
}

func (s *stream) sign(a *providers.Assembler, signature string) {
	if signature != "" {
		a.Sign(s.open, signature)
		s.signed = true
	}
}

func (s *stream) close(a *providers.Assembler) {
	if s.open != nil {
		a.End(s.open)
	}
	s.open, s.kind, s.filled, s.signed = nil, "", false, false
}

func (s *stream) finish(a *providers.Assembler, reason, said string) {
	switch reason {
	case "STOP", "FUNCTION_CALL": // the second by servers that speak the API for others
		a.Stop(messages.StopStop)
	case "MAX_TOKENS":
		a.Stop(messages.StopLength)
	case "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR",
		"IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION":
		a.StopFailed(&messages.Failure{
			Type:    messages.FailContentFilter,
			Code:    reason,
			Message: providers.Sentence(with("the provider withheld the answer ("+reason+")", said)),
			Hint:    "rephrase the request, or try another model",
		})
	case "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS":
		// The model slipped, and usually does not do so twice.
		a.StopFailed(&messages.Failure{
			Type:      messages.FailInvalidResponse,
			Code:      reason,
			Message:   providers.Sentence(with("the model wrote a tool call that is not valid ("+reason+")", said)),
			Retryable: true,
		})
	default:
		a.StopFailed(&messages.Failure{
			Type:    messages.FailProviderUnknown,
			Code:    reason,
			Message: providers.Sentence(with("the answer ended early ("+reason+")", said)),
		})
	}
}

func with(message, said string) string {
	if said = strings.TrimSpace(said); said == "" {
		return message
	}
	return message + ": " + said
}
