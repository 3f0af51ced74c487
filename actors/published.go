package actors

import (
	"encoding/json"
	"sync"

	"codework/messages"
	"codework/protocol/contract"
)

// maxJoined is how much text one event is joined to: far below what a frame
// holds, and few enough events for the longest answer.
const maxJoined = 64 << 10

// published is an event on its way to readers, with its JSON, made once for all
// of them. Until somebody takes it, a piece of an answer may grow by the ones
// behind it.
type published struct {
	messages.Event            // not changed once it was taken
	private        bool       // in one reader's queue only
	mu             sync.Mutex // guards what follows
	text           []byte     // of the pieces together; nil: nothing was joined
	more           int        // pieces that the text has beside the first
	taken          bool

	once sync.Once
	json json.RawMessage
	err  error
}

// announce makes events ready to be published.
func announce(events ...messages.Event) []*published {
	out := make([]*published, len(events))
	for i, e := range events {
		out[i] = &published{Event: e}
	}
	return out
}

// joinable tells whether two events that follow each other in a session are
// pieces of the same.
func joinable(a, b *messages.Event) bool {
	return a.Piece != nil && b.Piece != nil && a.Type == b.Type && a.Session == b.Session && a.After == b.After &&
		a.Piece.MessageID == b.Piece.MessageID && a.Piece.Part == b.Piece.Part && a.Piece.CallID == b.Piece.CallID
}

// join makes e a part of p, if they are pieces of the same and p still waits.
// It reports false when e must go by itself.
func (p *published) join(e *messages.Event) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken || !joinable(&p.Event, e) {
		return false
	}
	a, b := p.Piece, e.Piece
	switch {
	case a.CallID != "":
		p.Event = *e // what it replaces counts no more
		return true
	case p.text == nil:
		if len(a.Text)+len(b.Text) > maxJoined {
			return false
		}
		p.text = append(make([]byte, 0, 4*(len(a.Text)+len(b.Text))), a.Text...)
	case len(p.text)+len(b.Text) > maxJoined:
		return false
	}
	p.text = append(p.text, b.Text...)
	p.more += 1 + b.More
	return true
}

// beside is how many events it stands for beside itself.
func (p *published) beside() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Piece == nil {
		return 0
	}
	return p.Piece.More + p.more
}

// take ends the growing; the event is what it has become.
func (p *published) take() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return
	}
	p.taken = true
	if p.text == nil {
		return
	}
	piece := *p.Piece
	piece.Text, piece.More = string(p.text), piece.More+p.more
	p.Piece, p.text, p.more = &piece, nil, 0
	p.Data = encode(messages.EventData{Timestamp: piece.At, SessionID: p.Session, MessageID: piece.MessageID, PartIndex: &piece.Part, Delta: &piece.Text})
}

func (p *published) envelope() (json.RawMessage, error) {
	p.once.Do(func() { p.json, p.err = contract.EncodeEvent(p.Event) })
	return p.json, p.err
}
