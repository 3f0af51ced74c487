// Package anthropic speaks the Anthropic Messages API.
//
// The answer is complete with message_stop; a stream that ends before is a
// dropped connection, whatever it brought. Thinking goes back as it came, with
// its signature. For order, blocking and cancellation see package providers.
package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"codework/messages"
	"codework/providers"
	"codework/providers/sse"
)

// apiVersion is the version of the protocol that every request names.
const apiVersion = "2023-06-01"

// interleavedBeta lets models with a thinking budget think between tool calls;
// adaptive ones do so by themselves.
const interleavedBeta = "interleaved-thinking-2025-05-14"

// Dialect speaks Messages. The zero value is ready for use.
type Dialect struct {
	// Bearer sends the key as a bearer token instead of x-api-key, as some
	// gateways want it.
	Bearer bool
}

// Stream sends the request; see providers.Dialect.
func (d Dialect) Stream(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	r, err := encodeRequest(req)
	if err != nil {
		providers.NewAssembler(req, "", emit).Fail(&messages.Failure{
			Type:    messages.FailContextEncode,
			Message: "the request cannot be encoded: an option is not valid JSON",
		})
		return
	}
	h := http.Header{}
	h.Set("anthropic-version", apiVersion)
	if key := strings.TrimSpace(req.APIKey); key != "" {
		if d.Bearer {
			h.Set("Authorization", "Bearer "+key)
		} else {
			h.Set("x-api-key", key)
		}
	}
	if r.interleaved {
		h.Set("anthropic-beta", interleavedBeta)
	}
	s := &stream{req: req, blocks: map[int]*block{}}
	providers.Attempt{
		URL:    endpoint(providers.BaseURL(req.Model)),
		Header: h,
		Body:   r.body,
		Event:  s.event,
	}.Run(ctx, client, req, emit)
}

// endpoint puts the path behind a base URL, which may have the version in it
// or not.
func endpoint(base string) string {
	if base == "" {
		return ""
	}
	path := "v1/messages"
	trimmed := strings.TrimRight(strings.TrimSpace(base), "/")
	switch {
	case strings.HasSuffix(trimmed, "/messages"):
		return trimmed
	case strings.HasSuffix(trimmed, "/v1"):
		path = "messages"
	}
	u, err := providers.JoinURL(base, path)
	if err != nil {
		return ""
	}
	return u
}

// maxBlocks bounds what is remembered of an answer that does not end.
const maxBlocks = 10_000

// stream reads one answer.
type stream struct {
	req    *messages.Request
	blocks map[int]*block
	reason string
	e      event // reused from event to event
}

type block struct {
	*providers.Block // nil for kinds that are skipped
	// input is that of a call which came whole with its start.
	input   string
	written bool
}

type event struct {
	Type    string `json:"type"`
	Message struct {
		ID    string `json:"id"`
		Model string `json:"model"`
		Usage usage  `json:"usage"`
	} `json:"message"`
	Index int `json:"index"`
	Block struct {
		Type      string          `json:"type"`
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Text      string          `json:"text"`
		Thinking  string          `json:"thinking"`
		Signature string          `json:"signature"`
		Data      string          `json:"data"`
		Input     json.RawMessage `json:"input"`
	} `json:"content_block"`
	Delta struct {
		Type       string `json:"type"`
		Text       string `json:"text"`
		Thinking   string `json:"thinking"`
		Signature  string `json:"signature"`
		Partial    string `json:"partial_json"`
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage usage `json:"usage"`
}

// usage has pointers because later reports repeat only some of the counts.
type usage struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
	Creation   struct {
		Hour *int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
}

func (s *stream) event(a *providers.Assembler, raw sse.Event) {
	if string(raw.Data) == "[DONE]" {
		return // some gateways end every stream as Chat Completions does
	}
	e := &s.e
	*e = event{}
	if !e.quick(raw.Data) {
		*e = event{}
		var wrongType *json.UnmarshalTypeError // compatible servers differ; such a field is left empty
		if err := json.Unmarshal(raw.Data, e); err != nil && !errors.As(err, &wrongType) {
			a.Fail(&messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider sent an event that is not what the protocol says"})
			return
		}
	}
	kind := e.Type
	if kind == "" {
		kind = raw.Type
	}
	if a.Stopped() && kind != "ping" && kind != "error" {
		a.Fail(&messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"})
		return
	}
	switch kind {
	case "error":
		a.Fail(providers.Classify(s.req, providers.ReadFault(0, nil, raw.Data)))
	case "message_start":
		a.Start()
		a.Response(e.Message.ID, e.Message.Model)
		s.usage(a, e.Message.Usage)
	case "content_block_start":
		s.begin(a, e)
	case "content_block_delta":
		s.delta(a, e)
	case "content_block_stop":
		s.end(a, e.Index)
	case "message_delta":
		if e.Delta.StopReason != "" {
			s.reason = e.Delta.StopReason
		}
		s.usage(a, e.Usage)
	case "message_stop":
		s.stop(a)
	}
	// Anything else is ping, or newer than this code.
}

func (s *stream) begin(a *providers.Assembler, e *event) {
	if s.blocks[e.Index] != nil {
		a.Fail(&messages.Failure{Type: messages.FailStream, Message: "the provider began one block of its answer twice"})
		return
	}
	if len(s.blocks) >= maxBlocks {
		a.Fail(&messages.Failure{Type: messages.FailInvalidResponse, Message: "the answer has too many parts"})
		return
	}
	b := &block{}
	s.blocks[e.Index] = b
	switch e.Block.Type {
	case "text":
		b.Block = a.Begin(messages.Part{Type: messages.PartText})
		a.Append(b.Block, e.Block.Text)
	case "thinking":
		b.Block = a.Begin(messages.Part{Type: messages.PartThinking})
		a.Append(b.Block, e.Block.Thinking)
		a.Sign(b.Block, e.Block.Signature)
	case "redacted_thinking":
		b.Block = a.Begin(messages.Part{Type: messages.PartThinking, Redacted: true})
		a.Sign(b.Block, e.Block.Data)
	case "tool_use":
		b.Block = a.Begin(messages.Part{Type: messages.PartToolCall, CallID: e.Block.ID, Name: e.Block.Name})
		if in := string(e.Block.Input); in != "" && in != "{}" && in != "null" {
			b.input = in
		}
	}
	// Blocks of other kinds belong to the provider's own tools, which are
	// never asked for.
}

func (s *stream) delta(a *providers.Assembler, e *event) {
	b := s.blocks[e.Index]
	if b == nil {
		a.Fail(&messages.Failure{Type: messages.FailInvalidResponse, Message: "the provider continued a block that it had not begun"})
		return
	}
	if b.Block == nil {
		return
	}
	switch e.Delta.Type {
	case "text_delta":
		a.Append(b.Block, e.Delta.Text)
	case "thinking_delta":
		a.Append(b.Block, e.Delta.Thinking)
	case "signature_delta":
		a.Sign(b.Block, e.Delta.Signature)
	case "input_json_delta":
		b.written = b.written || e.Delta.Partial != ""
		a.Append(b.Block, e.Delta.Partial)
	}
}

func (s *stream) end(a *providers.Assembler, index int) {
	b := s.blocks[index]
	if b == nil || b.Block == nil {
		return
	}
	if b.input != "" && !b.written {
		a.Append(b.Block, b.input)
	}
	a.End(b.Block)
}

func (s *stream) stop(a *providers.Assembler) {
	switch s.reason {
	case "end_turn", "stop_sequence", "pause_turn", "":
		// pause_turn only breaks up long work of the provider's own tools.
		a.Stop(messages.StopStop)
	case "max_tokens", "model_context_window_exceeded":
		a.Stop(messages.StopLength)
	case "tool_use":
		a.Stop(messages.StopToolUse)
	case "refusal", "sensitive", "content_filter":
		a.StopFailed(&messages.Failure{
			Type:    messages.FailContentFilter,
			Code:    s.reason,
			Message: "the model refused to answer",
			Hint:    "rephrase the request, or try another model",
		})
	default:
		a.StopFailed(&messages.Failure{
			Type:    messages.FailProviderUnknown,
			Message: providers.Sentence("the answer ended for an unknown reason: " + s.reason),
		})
	}
}

// usage takes the counts of a report. They are totals, not additions, and some
// compatible servers repeat a count as zero.
func (s *stream) usage(a *providers.Assembler, u usage) {
	if u.Input == nil && u.Output == nil && u.CacheRead == nil && u.CacheWrite == nil {
		return
	}
	a.Usage(func(out *messages.Usage, bill *providers.Billing) {
		set := func(dst *int64, n *int64) {
			if n != nil && *n > 0 {
				*dst = *n
			}
		}
		set(&out.Input, u.Input)
		set(&out.Output, u.Output)
		set(&out.CacheRead, u.CacheRead)
		set(&out.CacheWrite, u.CacheWrite)
		set(&bill.CacheWriteHour, u.Creation.Hour)
	})
}
