package actors

import (
	"context"
	"strings"
	"sync"

	"codework/protocol/acp"
)

const (
	// outFrame is how much goes to the bridge in one frame.
	outFrame = 256 << 10
	// outHigh is how much waits for an editor before events do.
	outHigh = 1 << 20
	// outJoin is the longest text that pieces are joined to.
	outJoin = 256 << 10
)

// outbound is the only way to an editor: what is put first is written first.
// Putting never waits; whoever makes much waits for room by itself. While
// pieces of one text wait they are joined.
type outbound struct {
	mu     sync.Mutex // guards what follows
	items  []outItem
	size   int
	full   chan struct{} // closed when there is room again; nil: there is
	ending bool          // nothing more comes: the writer ends behind the last
	wake   chan struct{} // holds one
}

// outItem is a line, a word to the bridge, or a text that may grow.
type outItem struct {
	line    []byte
	word    *acp.Word
	session string
	chunk   acp.Chunk
	text    *strings.Builder
}

func newOutbound() *outbound { return &outbound{wake: make(chan struct{}, 1)} }

func (o *outbound) put(i outItem, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.items = append(o.items, i)
	o.grow(n)
}

// grow counts bytes; o.mu is held.
func (o *outbound) grow(n int) {
	if o.size += n; o.size > outHigh && o.full == nil {
		o.full = make(chan struct{})
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbound) write(line []byte) { o.put(outItem{line: line}, len(line)) }

// say queues a word to the bridge behind everything else.
func (o *outbound) say(w acp.Word) { o.put(outItem{word: &w}, 0) }

// update queues an update of a session.
func (o *outbound) update(session string, u acp.Update) {
	c, ok := u.(acp.Chunk)
	if !ok || c.Content.Type != "text" || c.SessionUpdate == acp.UserChunk { // a part of a prompt is one chunk
		o.write(acp.Notify(session, u))
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.items); n > 0 {
		if last := &o.items[n-1]; last.text != nil && last.session == session && last.chunk.SessionUpdate == c.SessionUpdate &&
			last.chunk.MessageID == c.MessageID && last.text.Len()+len(c.Content.Text) <= outJoin {
			last.text.WriteString(c.Content.Text)
			o.grow(len(c.Content.Text))
			return
		}
	}
	i := outItem{session: session, chunk: c, text: &strings.Builder{}}
	i.text.WriteString(c.Content.Text)
	o.items = append(o.items, i)
	o.grow(len(c.Content.Text))
}

// room is closed when there is room; nil says that there is now.
func (o *outbound) room() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.full
}

// finish lets the writer end behind what is queued.
func (o *outbound) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ending = true
	o.grow(0)
}

// take returns the next frame, waiting for it; false says that there are no
// more.
func (o *outbound) take(ctx context.Context) (acp.Frame, *acp.Word, bool) {
	for {
		o.mu.Lock()
		if frame, word := o.next(); word != nil || len(frame.Data) > 0 {
			if o.size <= outHigh/2 && o.full != nil {
				close(o.full)
				o.full = nil
			}
			o.mu.Unlock()
			return frame, word, true
		}
		ending := o.ending
		o.mu.Unlock()
		if ending {
			return acp.Frame{}, nil, false
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return acp.Frame{}, nil, false
		}
	}
}

// next takes items off the queue; o.mu is held.
func (o *outbound) next() (frame acp.Frame, word *acp.Word) {
	n := 0
	for n < len(o.items) && len(frame.Data) < outFrame {
		i := o.items[n]
		if i.word != nil {
			if n == 0 {
				word = i.word
				n++
			}
			break
		}
		n++
		if i.text != nil {
			o.size -= i.text.Len()
			i.chunk.Content.Text = i.text.String()
			i.line = acp.Notify(i.session, i.chunk)
		} else {
			o.size -= len(i.line)
		}
		if frame.Data == nil && len(i.line) >= outFrame {
			frame.Data = i.line
			break
		}
		frame.Data = append(frame.Data, i.line...)
	}
	clear(o.items[:n])
	o.items = o.items[n:]
	if len(o.items) == 0 {
		o.items = nil
	}
	return frame, word
}
