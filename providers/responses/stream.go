package responses

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"codework/messages"
	"codework/providers"
	"codework/providers/sse"
)

const (
	// maxItems bounds what is remembered of an answer that does not end.
	maxItems = 10_000
	// maxRefusal is how much of a refusal's text is kept, in bytes: more than is
	// shown.
	maxRefusal = 4 << 10
)

// stream reads one answer.
type stream struct {
	req     *messages.Request
	dialect Dialect
	items   map[int]*item // by output_index: ids are not the same everywhere
	refusal strings.Builder
	// identified: the response has told its id.
	identified bool
	// unpaired: reasoning came without the encrypted form. The API knows which
	// reasoning an item belongs to by the item's id, and refuses the one without
	// the other, so what follows keeps no id.
	unpaired bool
	e        event // reused from event to event
}

// item is one item of the answer's output.
type item struct {
	*providers.Block // nil for kinds that are skipped
	kind             string
	source           string // the kind of event that wrote it; none until now
	section          int    // of a summary, whose sections come one after the other
	done             bool
}

// event is one event of the stream, with the fields of all kinds.
type event struct {
	Type    string          `json:"type"`
	Index   int             `json:"output_index"`
	Section int             `json:"summary_index"`
	Delta   string          `json:"delta"`
	Text    string          `json:"text"`      // of the events that repeat a whole text
	Args    string          `json:"arguments"` // likewise
	Item    json.RawMessage `json:"item"`
	Answer  json.RawMessage `json:"response"`
}

// outputItem is an item as the stream shows it at its begin and its end.
type outputItem struct {
	Type      string        `json:"type"`
	ID        string        `json:"id"`
	Phase     string        `json:"phase"`
	Content   []contentPart `json:"content"`
	Summary   []contentPart `json:"summary"`
	Encrypted string        `json:"encrypted_content"`
	CallID    string        `json:"call_id"`
	Name      string        `json:"name"`
	Arguments string        `json:"arguments"`
}

type contentPart struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

// response is the whole answer, as the terminal events repeat it.
type response struct {
	ID         string            `json:"id"`
	Model      string            `json:"model"`
	Status     string            `json:"status"`
	Tier       string            `json:"service_tier"`
	Output     []json.RawMessage `json:"output"`
	Usage      *usage            `json:"usage"`
	Error      json.RawMessage   `json:"error"`
	Incomplete struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
}

type usage struct {
	Input        int64 `json:"input_tokens"`
	Output       int64 `json:"output_tokens"`
	Total        int64 `json:"total_tokens"`
	InputDetails struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"`
	} `json:"input_tokens_details"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
}

func fault(message string) *messages.Failure {
	return &messages.Failure{Type: messages.FailInvalidResponse, Message: message}
}

func broken(message string) *messages.Failure {
	return &messages.Failure{Type: messages.FailStream, Message: message}
}

// decode reads JSON whose fields of a wrong type are left empty, as long as it
// is JSON at all.
func decode(raw []byte, into any) bool {
	var wrongType *json.UnmarshalTypeError
	err := json.Unmarshal(raw, into)
	return err == nil || errors.As(err, &wrongType)
}

func (s *stream) event(a *providers.Assembler, raw sse.Event) {
	data := bytes.TrimSpace(raw.Data)
	if len(data) == 0 || string(data) == "[DONE]" {
		return // some gateways end every stream as in the older API
	}
	e := &s.e
	*e = event{}
	if !e.quick(data) {
		*e = event{}
		if !decode(data, e) {
			a.Fail(fault("the provider sent an event that is not what the protocol says"))
			return
		}
	}
	if e.Type == "" {
		e.Type = raw.Type
	}
	if e.Type == "" {
		// Gateways report their own errors without an envelope.
		if f, ok := providers.ErrorIn(data); ok {
			a.Fail(s.refused(f, data))
			return
		}
	}
	switch e.Type {
	case "error":
		a.Fail(s.failure(data))
	case "response.created", "response.queued", "response.in_progress":
		a.Start()
		var r response
		if decode(e.Answer, &r) && !a.Stopped() {
			s.answeredBy(a, &r)
		}
	case "response.output_item.added":
		s.added(a, e)
	case "response.output_text.delta":
		s.grow(a, e, "message", e.Delta)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		s.grow(a, e, "reasoning", e.Delta)
	case "response.function_call_arguments.delta":
		s.grow(a, e, "function_call", e.Delta)
	case "response.refusal.delta":
		s.declined(e.Delta)
	case "response.output_text.done":
		s.grow(a, e, "message", e.Text)
	case "response.reasoning_summary_text.done", "response.reasoning_text.done":
		s.grow(a, e, "reasoning", e.Text)
	case "response.function_call_arguments.done":
		s.grow(a, e, "function_call", e.Args)
	case "response.output_item.done":
		s.ended(a, e.Index, e.Item)
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done":
		s.terminal(a, e.Answer, strings.TrimPrefix(e.Type, "response."))
	}
	// Anything else repeats what these say, belongs to the provider's own tools,
	// or is newer than this code.
}

// answeredBy notes who answers.
func (s *stream) answeredBy(a *providers.Assembler, r *response) {
	id := r.ID
	if s.dialect.LooseIDs && s.identified {
		id = ""
	}
	s.identified = s.identified || id != ""
	a.Response(id, r.Model)
}

// added opens an item.
func (s *stream) added(a *providers.Assembler, e *event) {
	var out outputItem
	if !decode(e.Item, &out) {
		a.Fail(fault("the provider began an item that is not what the protocol says"))
		return
	}
	if it := s.items[e.Index]; it != nil && !it.done {
		a.Fail(broken("the provider began one item of its answer twice"))
		return
	}
	s.open(a, e.Index, &out)
}

// open begins an item's part of the answer.
func (s *stream) open(a *providers.Assembler, index int, out *outputItem) *item {
	if len(s.items) >= maxItems {
		a.Fail(fault("the answer has too many parts"))
		return nil
	}
	it := &item{kind: out.Type}
	s.items[index] = it
	switch out.Type {
	case "message":
		it.Block = a.Begin(messages.Part{Type: messages.PartText})
	case "reasoning":
		it.Block = a.Begin(messages.Part{Type: messages.PartThinking})
	case "function_call":
		id := out.ID
		if s.unpaired {
			id = ""
		}
		it.Block = a.Begin(messages.Part{Type: messages.PartToolCall, CallID: out.CallID, Name: out.Name, ItemID: id})
	}
	// Items of other kinds belong to the provider's own tools, which are never
	// asked for.
	return it
}

// grow adds to an item. Of the events that can write one, those of the first
// kind count: the others repeat them.
func (s *stream) grow(a *providers.Assembler, e *event, kind, text string) {
	it := s.items[e.Index]
	if it == nil {
		if kind == "function_call" {
			a.Fail(fault("the provider continued a call that it had not begun"))
			return
		}
		if it = s.open(a, e.Index, &outputItem{Type: kind}); it == nil {
			return
		}
	}
	if it.kind != kind || it.done || text == "" {
		return
	}
	if it.source == "" {
		it.source, it.section = e.Type, e.Section
	}
	if it.source != e.Type {
		return
	}
	if e.Section != it.section {
		it.section = e.Section
		a.Append(it.Block, "\n\n")
	}
	a.Append(it.Block, text)
}

// declined keeps the words of a refusal.
func (s *stream) declined(text string) {
	if s.refusal.Len() < maxRefusal {
		s.refusal.WriteString(text[:min(len(text), maxRefusal)])
	}
}

// ended closes an item with what it is as a whole.
func (s *stream) ended(a *providers.Assembler, index int, raw json.RawMessage) {
	var out outputItem
	if !decode(raw, &out) {
		a.Fail(fault("the provider ended an item that is not what the protocol says"))
		return
	}
	it := s.items[index]
	if it == nil || it.done && it.kind != out.Type {
		if it = s.open(a, index, &out); it == nil {
			return
		}
	}
	if it.done || it.kind != out.Type {
		return
	}
	it.done = true
	if it.Block == nil {
		return
	}
	switch it.kind {
	case "message":
		if it.source == "" {
			a.Append(it.Block, text(out.Content, "output_text", ""))
		}
		if s.refusal.Len() == 0 {
			for _, c := range out.Content {
				s.declined(c.Refusal)
			}
		}
		id := out.ID
		if s.unpaired {
			id = ""
		}
		a.Sign(it.Block, signText(id, out.Phase))
	case "reasoning":
		if it.source == "" {
			if a.Append(it.Block, text(out.Summary, "summary_text", "\n\n")); len(out.Summary) == 0 {
				a.Append(it.Block, text(out.Content, "reasoning_text", ""))
			}
		}
		signature := signThought(raw, &out, s.dialect.Codex)
		s.unpaired = s.unpaired || signature == ""
		a.Sign(it.Block, signature)
	case "function_call":
		if it.source == "" {
			a.Append(it.Block, out.Arguments)
		}
	}
	a.End(it.Block)
}

func text(parts []contentPart, kind, between string) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Type != kind {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(between)
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// terminal ends the answer. Its output is that of the whole stream: what the
// stream left out is taken from it.
func (s *stream) terminal(a *providers.Assembler, raw json.RawMessage, kind string) {
	if a.Stopped() {
		a.Fail(broken("the provider ended its answer twice"))
		return
	}
	var r response
	if !decode(raw, &r) {
		a.Fail(fault("the provider ended its answer with something that is not what the protocol says"))
		return
	}
	a.Start()
	if kind == "done" {
		kind = r.Status // the event of the backend's other transport
	}
	if kind == "completed" || kind == "incomplete" {
		for i, out := range r.Output {
			if it := s.items[i]; it == nil || !it.done && kind == "completed" {
				s.ended(a, i, out)
			}
		}
	}
	s.usage(a, &r)
	s.stop(a, &r, kind)
	s.answeredBy(a, &r)
}

func (s *stream) stop(a *providers.Assembler, r *response, kind string) {
	filtered := &messages.Failure{
		Type:    messages.FailContentFilter,
		Code:    "content_filter",
		Message: "the provider withheld the answer (content_filter)",
		Hint:    "rephrase the request, or try another model",
	}
	switch kind {
	case "completed":
		if s.refusal.Len() > 0 && a.Empty() {
			filtered.Code = "refusal"
			filtered.Message = providers.Sentence("the model refused: " + s.refusal.String())
			a.StopFailed(filtered)
			return
		}
		a.Stop(messages.StopStop)
	case "incomplete":
		switch reason := r.Incomplete.Reason; reason {
		case "max_output_tokens", "max_tokens":
			a.Stop(messages.StopLength)
		case "content_filter":
			a.StopFailed(filtered)
		default:
			a.StopFailed(&messages.Failure{
				Type:    messages.FailProviderUnknown,
				Message: providers.Sentence("the answer ended for an unknown reason: " + reason),
			})
		}
	case "failed":
		a.StopFailed(s.failure(r.Error))
	case "cancelled":
		a.StopFailed(&messages.Failure{Type: messages.FailProviderUnknown, Code: kind, Message: "the provider cancelled the answer"})
	default:
		a.StopFailed(&messages.Failure{
			Type:    messages.FailProviderUnknown,
			Message: providers.Sentence("the answer ended for an unknown reason: " + kind),
		})
	}
}

// usage takes the counts, which come once, and what the tier that served the
// request costs.
func (s *stream) usage(a *providers.Assembler, r *response) {
	u := r.Usage
	if u == nil {
		return
	}
	a.Usage(func(out *messages.Usage, bill *providers.Billing) {
		*out = messages.Usage{
			Input:       max(u.Input-u.InputDetails.Cached-u.InputDetails.CacheWrite, 0),
			Output:      u.Output,
			Reasoning:   u.OutputDetails.Reasoning,
			CacheRead:   u.InputDetails.Cached,
			CacheWrite:  u.InputDetails.CacheWrite,
			TotalTokens: u.Total,
		}
		bill.Factor = providers.ServiceTierFactor(s.req.Model.ID, s.tier(r.Tier))
	})
}

// tier is the service tier to pay for. The Codex backend reports "default" for
// one that was asked for by name.
func (s *stream) tier(served string) string {
	if !s.dialect.Codex || served != "default" {
		return served
	}
	var asked string
	json.Unmarshal(s.req.Options.Extra["service_tier"], &asked)
	if asked == "flex" || asked == "priority" {
		return asked
	}
	return served
}

// whole reads an answer that came as one document.
func (s *stream) whole(a *providers.Assembler, body []byte) {
	var r response
	decode(body, &r)
	s.terminal(a, body, r.Status)
}
