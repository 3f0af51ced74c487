package actors

import (
	"context"
	"strings"
	"sync"
	"time"

	"codework/messages"
)

// maxHandover is how much text of an answer waits for its session before the
// reading of the answer does: the provider is held back by its connection, not
// by our memory.
const maxHandover = 64 << 10

// handover carries the events of one answer to its session, in order. The first
// one is announced to the session at once; what comes until the session gets
// to it goes along, pieces of one part as one. So an answer never has more than
// one message in its session's mailbox.
type handover struct {
	ctx  context.Context // ends when nobody wants the answer any more
	tell func()          // announces that there is something to take
	// giveWay, if not nil, lets others go before a piece, as those of a turnstile.
	giveWay func(ctx context.Context, last time.Time) time.Time

	// The following are those of whoever puts.
	spoken bool      // a piece has come
	gave   time.Time // when it last gave way

	mu    sync.Mutex // guards what follows
	queue []streamPart
	size  int           // bytes of text in it
	room  chan struct{} // closed when all was taken; nil when nobody waits
}

// streamPart is an event, and for a piece the text that it grew to.
type streamPart struct {
	ev   messages.StreamEvent
	text *strings.Builder // nil: nothing was joined
}

// put hands on the next event. It waits for the session while much is waiting,
// and with a piece for a crowd of others that begin; what comes when nobody wants
// it is dropped. One goroutine at a time may call it.
func (h *handover) put(ev messages.StreamEvent) {
	if isDelta(ev.Kind) && h.giveWay != nil {
		if h.spoken { // the first word shows that there is an answer
			h.gave = h.giveWay(h.ctx, h.gave)
		}
		h.spoken = true
	}
	for {
		h.mu.Lock()
		if h.size < maxHandover || !isDelta(ev.Kind) {
			break
		}
		if h.room == nil {
			h.room = make(chan struct{})
		}
		room := h.room
		h.mu.Unlock()
		select {
		case <-room:
		case <-h.ctx.Done():
			return
		}
	}
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		h.queue, h.size = nil, 0
		return
	}
	h.size += len(ev.Delta)
	if n := len(h.queue); n > 0 {
		if h.queue[n-1].join(ev) {
			return
		}
		h.queue = append(h.queue, streamPart{ev: ev})
		return
	}
	h.queue = append(h.queue, streamPart{ev: ev})
	h.tell()
}

func isDelta(k messages.StreamKind) bool {
	switch k {
	case messages.StreamTextDelta, messages.StreamThinkingDelta, messages.StreamCallDelta:
		return true
	}
	return false
}

func (p *streamPart) join(ev messages.StreamEvent) bool {
	if p.ev.Kind != ev.Kind || p.ev.Index != ev.Index || !isDelta(ev.Kind) {
		return false
	}
	if p.text == nil {
		p.text = &strings.Builder{}
		p.text.WriteString(p.ev.Delta)
	}
	p.text.WriteString(ev.Delta)
	p.ev.More += 1 + ev.More
	return true
}

// take returns what waits.
func (h *handover) take() []messages.StreamEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]messages.StreamEvent, len(h.queue))
	for i, p := range h.queue {
		out[i] = p.ev
		if p.text != nil {
			out[i].Delta = p.text.String()
		}
	}
	h.queue, h.size = h.queue[:0], 0
	clear(h.queue[:len(out)])
	if h.room != nil {
		close(h.room)
		h.room = nil
	}
	return out
}

// progress carries what a running call shows to its session: what the session
// has not got to is replaced by what is newer.
type progress struct {
	tell func() // announces that there is something to take

	mu      sync.Mutex // guards what follows
	waiting bool
	last    messages.ToolResult
}

func (p *progress) put(r messages.ToolResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = r
	if !p.waiting {
		p.waiting = true
		p.tell()
	}
}

func (p *progress) take() messages.ToolResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = false
	return p.last
}
