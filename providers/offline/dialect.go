package offline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"codework/messages"
)

// Dialect answers requests for offline/guide. Its stream has the form of every
// other dialect's.
type Dialect struct{}

const (
	// bytesPerToken is the usual rule of thumb; nothing is billed by it.
	bytesPerToken = 4
	// deltaBytes is about how much text one delta carries: a few words, as
	// models send them.
	deltaBytes = 32
)

// Stream answers the request. The client is not used.
func (Dialect) Stream(ctx context.Context, _ *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	sum, size, err := digest(req)
	if err != nil {
		emit(messages.StreamEvent{Kind: messages.StreamError, Failure: &messages.Failure{
			Type: messages.FailContextEncode, Message: fmt.Sprintf("encode the conversation: %v", err),
		}})
		return
	}
	s := &stream{ctx: ctx, emit: emit, message: messages.Message{
		ID:        req.MessageID,
		Role:      messages.RoleAssistant,
		State:     messages.EntryDraft,
		Provider:  req.Model.Provider.ID,
		Protocol:  string(req.Model.Protocol),
		Model:     req.Model.ID,
		Timestamp: time.Now().UnixMilli(),
		Usage:     &messages.Usage{Input: tokens(size)},
	}}
	s.send(messages.StreamEvent{Kind: messages.StreamStart, RequestDigest: sum})
	if s.ended {
		return
	}
	text, calls := reply(req)
	if text != "" {
		s.text(text)
	}
	for i, c := range calls {
		s.call(callID(req.MessageID, i), c)
	}
	s.done(len(calls) > 0)
}

// stream emits one answer. Once the context is done it emits the failure and
// then nothing more.
type stream struct {
	ctx     context.Context
	emit    func(messages.StreamEvent)
	message messages.Message
	written int // bytes of text and arguments
	ended   bool
}

func (s *stream) send(e messages.StreamEvent) {
	if s.ended {
		return
	}
	if s.ctx.Err() != nil {
		s.ended = true
		m := s.message
		m.Parts, m.State = nil, ""
		e = messages.StreamEvent{Kind: messages.StreamError, Message: &m, Failure: &messages.Failure{
			Type: messages.FailProviderUnknown, Code: "aborted", Message: "the request was stopped",
		}}
	}
	s.emit(e)
}

func (s *stream) text(text string) {
	i := len(s.message.Parts)
	part := messages.Part{Type: messages.PartText, Text: text}
	s.send(messages.StreamEvent{Kind: messages.StreamTextStart, Index: i})
	for delta := range deltas(text) {
		s.send(messages.StreamEvent{Kind: messages.StreamTextDelta, Index: i, Delta: delta})
	}
	s.send(messages.StreamEvent{Kind: messages.StreamTextEnd, Index: i, Part: part})
	s.add(part, len(text))
}

func (s *stream) call(id string, c call) {
	i := len(s.message.Parts)
	part := messages.Part{
		Type: messages.PartToolCall, CallID: id, Name: c.tool, Arguments: c.arguments(), Call: messages.CallPending,
	}
	s.send(messages.StreamEvent{Kind: messages.StreamCallStart, Index: i, Part: messages.Part{
		Type: messages.PartToolCall, CallID: id, Name: c.tool,
	}})
	for delta := range deltas(part.Arguments) {
		s.send(messages.StreamEvent{Kind: messages.StreamCallDelta, Index: i, Delta: delta})
	}
	s.send(messages.StreamEvent{Kind: messages.StreamCallEnd, Index: i, Part: part})
	s.add(part, len(part.Arguments))
}

func (s *stream) add(p messages.Part, bytes int) {
	s.message.Parts = append(s.message.Parts, p)
	s.written += bytes
}

func (s *stream) done(calls bool) {
	m := s.message
	m.StopReason = messages.StopStop
	if calls {
		m.StopReason = messages.StopToolUse
	}
	m.Usage.Output = tokens(s.written)
	m.Usage.TotalTokens = m.Usage.Input + m.Usage.Output
	s.send(messages.StreamEvent{Kind: messages.StreamDone, Message: &m})
}

// deltas cuts text after blanks into pieces of at least deltaBytes.
func deltas(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			n := len(text)
			if n > deltaBytes {
				if i := strings.IndexAny(text[deltaBytes:], " \n"); i >= 0 {
					n = deltaBytes + i + 1
				}
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

func tokens(bytes int) int64 { return int64(bytes+bytesPerToken-1) / bytesPerToken }

// callID makes an id that no other call of the session has, because no other
// message has that id.
func callID(messageID string, i int) string {
	return fmt.Sprintf("call_%s_%d", strings.ReplaceAll(messageID, "-", ""), i+1)
}

// digest is the SHA-256 of what a request to a server would hold, and how
// large that is. Messages are encoded once per session.
func digest(req *messages.Request) (sum string, size int, err error) {
	cache := map[string]any{}
	if req.Cache != nil {
		cache = req.Cache.For(string(messages.ProtocolOffline), len(req.Messages))
	}
	h := sha256.New()
	write := func(b []byte) {
		h.Write(b)
		size += len(b)
	}
	for _, v := range []any{req.Model.Ref(), req.System, req.Tools} {
		b, err := json.Marshal(v)
		if err != nil {
			return "", 0, err
		}
		write(b)
	}
	for _, m := range req.Messages {
		b, ok := cache[m.ID].([]byte)
		if !ok {
			if b, err = json.Marshal(m); err != nil {
				return "", 0, err
			}
			cache[m.ID] = b
		}
		write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}
