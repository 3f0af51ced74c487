package providers

import (
	"strings"
	"time"
	"unicode"

	"codework/messages"
)

const (
	// maxAnswerBytes bounds one answer, so that its event fits into a frame of
	// 16 MiB even if every byte takes six in JSON. The longest answers that
	// models can give are a quarter of it.
	maxAnswerBytes = 2 << 20
	// maxAnswerParts bounds it for parts that are empty.
	maxAnswerParts = 10_000
)

// Assembler makes an answer out of what a dialect reads, and emits it. Parts
// are in the order in which their first content arrived. Once the end was
// emitted every call is without effect, so that a dialect need not ask after
// each step.
type Assembler struct {
	req    *messages.Request
	digest string
	emit   func(messages.StreamEvent)

	started bool
	stopped bool // the protocol's terminal event was seen
	ended   bool // StreamDone or StreamError was emitted
	stop    messages.StopReason
	refusal *messages.Failure
	message messages.Message
	// responseID is the whole of it; the message keeps no more than it should.
	responseID string
	usage      messages.Usage
	billing    Billing
	hasUsage   bool
	bytes      int
	blocks     []*Block
	open       *Block // what Text and Thinking go on with
	next       int
	ids        map[string]bool
}

// Block is one part of the answer that is being written. A text or thinking
// block that stays blank never becomes a part.
type Block struct {
	part      messages.Part
	text      strings.Builder // text, thinking or arguments
	signature strings.Builder
	index     int
	begun     bool
	done      bool
}

// NewAssembler returns an Assembler for the answer to req. The digest is that
// of the request's body.
func NewAssembler(req *messages.Request, digest string, emit func(messages.StreamEvent)) *Assembler {
	return &Assembler{req: req, digest: digest, emit: emit, ids: map[string]bool{}}
}

// Ended tells whether the last event was emitted.
func (a *Assembler) Ended() bool { return a.ended }

// Stopped tells whether the protocol's terminal event was seen.
func (a *Assembler) Stopped() bool { return a.stopped }

// Empty tells whether the answer has no part yet.
func (a *Assembler) Empty() bool { return a.next == 0 }

// Start emits StreamStart, the first time it is called.
func (a *Assembler) Start() {
	if a.started || a.ended {
		return
	}
	a.started = true
	a.emit(messages.StreamEvent{Kind: messages.StreamStart, RequestDigest: a.digest})
}

// Response notes who answered. An id that differs from the one before breaks
// the protocol and ends the answer; empty values say nothing.
func (a *Assembler) Response(id, model string) {
	if id != "" && a.responseID != "" && a.responseID != id {
		a.Fail(&messages.Failure{Type: messages.FailStream, Message: "the answer's id changed within one stream"})
		return
	}
	if id != "" {
		a.responseID = id
		a.message.ResponseID = bounded(id, maxCode)
	}
	if model != "" {
		a.message.ResponseModel = bounded(model, maxCode)
	}
}

// Begin opens a block of the given type. Of a tool call p may carry id, name
// and item id. The start is emitted with the first content.
func (a *Assembler) Begin(p messages.Part) *Block {
	b := &Block{part: p}
	if a.late() {
		return b
	}
	if len(a.blocks) >= maxAnswerParts {
		a.Fail(invalid("the answer has too many parts"))
		return b
	}
	a.Start()
	a.blocks = append(a.blocks, b)
	if p.Type == messages.PartToolCall {
		a.finishOpen()
		if p.Name != "" {
			a.begin(b)
		}
	}
	return b
}

// Named gives a call the name that did not come with its first fragment.
func (a *Assembler) Named(b *Block, id, name string) {
	if a.ended || b.begun {
		return
	}
	if id != "" {
		b.part.CallID = id
	}
	if name != "" {
		b.part.Name = name
		a.begin(b)
	}
}

// Append adds to a block's text, thinking or arguments.
func (a *Assembler) Append(b *Block, delta string) {
	if delta == "" || a.late() || b.done {
		return
	}
	if a.bytes += len(delta); a.bytes > maxAnswerBytes {
		a.Fail(invalid("the answer is longer than 2 MiB"))
		return
	}
	b.text.WriteString(delta)
	if b.begun {
		a.emit(messages.StreamEvent{Kind: deltaKind(b.part.Type), Index: b.index, Delta: delta})
		return
	}
	if b.part.Type != messages.PartToolCall && !blank(delta) {
		a.begin(b)
	}
}

// Sign adds to what the provider wants back with a block, also after its end.
// Redacted thinking and thinking that is not shown have nothing else.
func (a *Assembler) Sign(b *Block, signature string) {
	if signature == "" || a.late() {
		return
	}
	if a.bytes += len(signature); a.bytes > maxAnswerBytes {
		a.Fail(invalid("the answer is longer than 2 MiB"))
		return
	}
	b.signature.WriteString(signature)
	if b.done {
		b.part.Signature = b.signature.String()
	}
}

// End closes a block and emits its end.
func (a *Assembler) End(b *Block) {
	if a.ended || b.done {
		return
	}
	if !b.begun {
		switch {
		case b.part.Type == messages.PartToolCall && b.part.Name == "" && b.part.CallID == "" && b.text.Len() == 0:
			b.done = true // padding of some servers, not a call
			return
		case b.part.Type == messages.PartToolCall:
			a.begin(b)
		case b.signature.Len() > 0 && b.part.Type == messages.PartThinking:
			a.begin(b)
		default:
			b.done = true
			return
		}
	}
	b.done = true
	b.part.Signature = b.signature.String()
	if b.part.Type == messages.PartToolCall {
		b.part.Arguments = b.text.String()
		b.part.Call = messages.CallPending
	} else {
		b.part.Text = b.text.String()
	}
	a.emit(messages.StreamEvent{Kind: endKind(b.part.Type), Index: b.index, Part: b.part})
}

// Text goes on with the answer's text, for protocols that do not name blocks.
func (a *Assembler) Text(delta string) { a.on(messages.PartText, delta) }

// Thinking goes on with the model's thinking.
func (a *Assembler) Thinking(delta string) { a.on(messages.PartThinking, delta) }

// SignThinking signs the thinking that Thinking goes on with.
func (a *Assembler) SignThinking(signature string) {
	for i := len(a.blocks) - 1; i >= 0; i-- {
		if b := a.blocks[i]; b.part.Type == messages.PartThinking && !b.part.Redacted {
			a.Sign(b, signature)
			return
		}
	}
	b := a.Begin(messages.Part{Type: messages.PartThinking})
	a.Sign(b, signature)
}

func (a *Assembler) on(t messages.PartType, delta string) {
	if delta == "" || a.late() {
		return
	}
	if a.open == nil || a.open.part.Type != t {
		a.finishOpen()
		a.open = a.Begin(messages.Part{Type: t})
	}
	a.Append(a.open, delta)
}

func (a *Assembler) finishOpen() {
	if a.open != nil {
		a.End(a.open)
		a.open = nil
	}
}

// Usage changes the counted tokens; the price is computed at the end.
func (a *Assembler) Usage(change func(u *messages.Usage, b *Billing)) {
	if a.ended {
		return
	}
	a.hasUsage = true
	change(&a.usage, &a.billing)
}

// Stop notes the protocol's terminal event. Content after it breaks the
// protocol.
func (a *Assembler) Stop(reason messages.StopReason) {
	a.stopped, a.stop = true, reason
}

// StopFailed notes a terminal event that means a failure, a refusal for
// example. It is emitted by Finish, so that usage may still follow.
func (a *Assembler) StopFailed(f *messages.Failure) {
	a.stopped, a.refusal = true, f
}

// Finish ends the answer: done when its terminal event was seen and there is
// something in it, else a failure.
func (a *Assembler) Finish() {
	if a.ended {
		return
	}
	if !a.stopped {
		a.Fail(cutShort())
		return
	}
	if a.refusal != nil {
		a.Fail(a.refusal)
		return
	}
	calls := false
	var parts []messages.Part
	for _, b := range a.blocks {
		a.End(b)
	}
	a.open = nil
	for range a.next {
		parts = append(parts, messages.Part{})
	}
	for _, b := range a.blocks {
		if b.begun {
			parts[b.index] = b.part
			calls = calls || b.part.Type == messages.PartToolCall
		}
	}
	if len(parts) == 0 {
		f := invalid("the answer has no content")
		if a.stop == messages.StopLength {
			f.Message = "the answer was cut off at its length limit before it had any content"
			f.Hint = "allow more tokens with the option maxTokens, or a lower thinking level"
		}
		a.Fail(f)
		return
	}
	switch {
	case calls && a.stop == messages.StopStop:
		a.stop = messages.StopToolUse // common with compatible servers
	case !calls && a.stop == messages.StopToolUse:
		a.stop = messages.StopStop
	}
	m := a.summary()
	m.State = messages.EntryDraft
	m.Parts = parts
	m.StopReason = a.stop
	a.ended = true
	a.emit(messages.StreamEvent{Kind: messages.StreamDone, Message: m})
}

// Fail ends the answer with a failure.
func (a *Assembler) Fail(f *messages.Failure) {
	if a.ended {
		return
	}
	a.ended = true
	a.emit(messages.StreamEvent{Kind: messages.StreamError, Message: a.summary(), Failure: redact(a.req, f)})
}

// summary is the message without its parts.
func (a *Assembler) summary() *messages.Message {
	m := a.message
	m.ID = a.req.MessageID
	m.Role = messages.RoleAssistant
	m.Provider = a.req.Model.Provider.ID
	m.Protocol = string(a.req.Model.Protocol)
	m.Model = a.req.Model.ID
	m.Timestamp = time.Now().UnixMilli()
	if a.hasUsage {
		u := Price(a.req.Model, a.usage, a.billing)
		m.Usage = &u
	}
	return &m
}

// late ends the answer when content comes after its terminal event.
func (a *Assembler) late() bool {
	if a.stopped && !a.ended {
		a.Fail(&messages.Failure{Type: messages.FailStream, Message: "the provider went on after it had ended its answer"})
	}
	return a.ended
}

// begin gives a block its place and emits its start and what it holds so far.
func (a *Assembler) begin(b *Block) {
	b.begun, b.index = true, a.next
	a.next++
	e := messages.StreamEvent{Kind: startKind(b.part.Type), Index: b.index}
	if b.part.Type == messages.PartToolCall {
		// Results are matched to calls by id, so each needs one of its own.
		if b.part.CallID == "" || a.ids[b.part.CallID] {
			b.part.CallID = "call_" + strings.ReplaceAll(messages.NewMessageID(), "-", "")
		}
		a.ids[b.part.CallID] = true
		e.Part = messages.Part{Type: b.part.Type, CallID: b.part.CallID, Name: b.part.Name, ItemID: b.part.ItemID}
	}
	a.emit(e)
	if b.text.Len() > 0 {
		a.emit(messages.StreamEvent{Kind: deltaKind(b.part.Type), Index: b.index, Delta: b.text.String()})
	}
}

func startKind(t messages.PartType) messages.StreamKind {
	switch t {
	case messages.PartThinking:
		return messages.StreamThinkingStart
	case messages.PartToolCall:
		return messages.StreamCallStart
	}
	return messages.StreamTextStart
}

func deltaKind(t messages.PartType) messages.StreamKind { return startKind(t) + 1 }
func endKind(t messages.PartType) messages.StreamKind   { return startKind(t) + 2 }

// blank tells whether s has nothing to read in it.
func blank(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsSpace(r) }) < 0
}

func invalid(message string) *messages.Failure {
	return &messages.Failure{Type: messages.FailInvalidResponse, Message: message}
}

func cutShort() *messages.Failure {
	return &messages.Failure{
		Type:      messages.FailTransport,
		Message:   "the connection ended before the answer was complete",
		Retryable: true,
	}
}
