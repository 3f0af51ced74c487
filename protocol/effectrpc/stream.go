package effectrpc

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// A stream holds at most streamValues values or streamBytes of JSON that nobody
// took yet before it stops acknowledging, and the chunk that was on its way.
const (
	streamValues = 256
	streamBytes  = 1 << 20
)

// Stream is the answer of a method that gives many values. One goroutine reads
// it; Close may be called by any.
type Stream struct {
	client *Client
	id     uint64
	wake   chan struct{} // tells Next to look, holds one
	stop   func() bool   // forgets the context of the stream

	mu      sync.Mutex // guards what follows
	values  []json.RawMessage
	bytes   int
	unacked bool // a chunk is to be acknowledged when there is room
	err     error
	pace    time.Duration
	acked   time.Time   // when a chunk was last acknowledged, while there is a pace
	later   *time.Timer // acknowledges when the pace allows it; nil until that was needed
	waits   bool        // later will
}

// Stream calls a method that answers with a stream. The stream ends with ctx, as
// with Close. The errors of starting are those of Call; a method that fails says
// so from Next.
func (c *Client) Stream(ctx context.Context, method string, payload any) (*Stream, error) {
	s := &Stream{client: c, wake: make(chan struct{}, 1)}
	if _, err := c.start(ctx, method, payload, pending{stream: s}); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.interrupt(ctx.Err()) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = stop
	if s.err != nil { // it ended meanwhile
		stop()
	}
	return s, nil
}

// Next returns the next value; it is the caller's to keep. Values that arrived
// come before the end of the stream: io.EOF after a good one, otherwise the
// errors of Call. The end of ctx ends only the waiting.
func (s *Stream) Next(ctx context.Context) (json.RawMessage, error) {
	for {
		value, err := s.pop()
		if value != nil || err != nil {
			return value, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// pop returns what there is: a value, the end, or neither.
func (s *Stream) pop() (json.RawMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.values) == 0 {
		return nil, s.err
	}
	value := s.values[0]
	s.values[0] = nil
	s.values = s.values[1:]
	s.bytes -= len(value)
	s.acknowledge()
	return value, nil
}

// Pace sets the least time between two acknowledgements, none at first: what the
// server has to say meanwhile comes together then, which is cheaper for both
// sides. A value that comes alone is not kept waiting. Any goroutine may call it.
func (s *Stream) Pace(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pace == d {
		return
	}
	s.pace = d
	if s.waits {
		s.waits = !s.later.Stop()
	}
	s.acknowledge()
}

// acknowledge asks for the next chunk if one is due, there is room, and the pace
// allows it. s.mu is held.
func (s *Stream) acknowledge() {
	if !s.unacked || s.err != nil || s.waits || len(s.values) >= streamValues || s.bytes >= streamBytes {
		return
	}
	if s.pace > 0 {
		now := time.Now()
		if wait := s.pace - now.Sub(s.acked); wait > 0 {
			s.waits = true
			if s.later == nil {
				s.later = time.AfterFunc(wait, s.waited)
			} else {
				s.later.Reset(wait)
			}
			return
		}
		s.acked = now
	}
	s.unacked = false
	s.client.link.put(frame{kind: kindAck, id: numberID(s.id)})
}

// waited is called when the pace allows the next acknowledgement.
func (s *Stream) waited() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = false
	s.acknowledge()
}

// receive takes a chunk.
func (s *Stream) receive(values []json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if len(s.values) == 0 {
		s.values = values
	} else {
		s.values = append(s.values, values...)
	}
	for _, v := range values {
		s.bytes += len(v)
	}
	s.unacked = true
	s.acknowledge()
	s.signal()
}

// finish ends the stream behind the values that arrived. Only the first end
// counts.
func (s *Stream) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	if s.stop != nil {
		s.stop()
	}
	if s.later != nil {
		s.later.Stop()
	}
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close ends the stream: the server is told to stop, and values that were not
// taken are dropped. Next then returns ErrInterrupted, or how the stream had
// ended before. It does not wait.
func (s *Stream) Close() { s.interrupt(ErrInterrupted) }

func (s *Stream) interrupt(err error) {
	if s.client.forget(s.id) {
		s.client.link.put(frame{kind: kindInterrupt, id: numberID(s.id)})
	}
	s.mu.Lock()
	s.values, s.bytes = nil, 0
	s.mu.Unlock()
	s.finish(err)
}
