package effectrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"codework/protocol/rawjson"
)

const (
	// maxFrameBytes is the longest frame that is sent: below the limit of the
	// other side, which counts the line without its end.
	maxFrameBytes = defaultLineLimit - 1

	// chunkValues and chunkBytes bound one chunk; a larger value goes alone.
	// The next one waits until this one was acknowledged, so a chunk holds as
	// much as may be waiting: with few values in each, a busy moment of a
	// thousand sessions is more than goes through.
	chunkValues = 1024
	chunkBytes  = 1 << 20
)

// Call is one request of a client. It must be finished once, by Succeed, Fail,
// Die or Stream; what comes after that is dropped. Its methods may be called by
// any goroutine and none of them waits.
type Call struct {
	server       *Server
	id           json.RawMessage
	method       string
	payload      json.RawMessage
	discard      bool
	notification bool
	ctx          context.Context
	cancel       context.CancelCauseFunc

	// guarded by server.mu
	interrupted bool
	finished    bool
	awaiting    bool          // a chunk is not yet acknowledged
	acked       chan struct{} // holds one; nil unless streaming
}

// Context ends when the client interrupts the call (cause ErrInterrupted), when
// the connection ends (ErrConnectionLost), when the context of Serve ends, and
// after the call was finished (ErrFinished). A call that was interrupted must
// still be finished, which frees its id.
func (c *Call) Context() context.Context { return c.ctx }

// Method is the name of the called method.
func (c *Call) Method() string { return c.method }

// Payload is the JSON value of the payload, never null.
func (c *Call) Payload() json.RawMessage { return c.payload }

// Succeed answers with a value; nil means null, the value of a method that
// returns nothing. A value that is not JSON or too long for a frame becomes a
// defect.
func (c *Call) Succeed(value json.RawMessage) { c.answer(exitSuccess, value) }

// Fail answers with an error that the method declares: an object with a _tag.
func (c *Call) Fail(body json.RawMessage) { c.answer(exitFail, body) }

// Die answers with a defect, a failure that the method does not declare: a text,
// a *Defect, or anything else that has a JSON form. It must hold neither a stack
// trace nor a secret.
func (c *Call) Die(defect any) {
	body, err := json.Marshal(defect)
	if err != nil {
		body = quote(fmt.Sprintf("Failed to encode response of %s: %v", shorten(c.method), err))
	}
	c.answer(exitDie, body)
}

// DieUnknownMethod answers that there is no such method, in the words of the
// library.
func (c *Call) DieUnknownMethod() { c.Die("Unknown request tag: " + shorten(c.method)) }

func (c *Call) answer(kind exitKind, body json.RawMessage) {
	switch {
	case len(body) > 0 && !rawjson.Valid(body):
		kind, body = exitDie, quote("Failed to encode response of "+shorten(c.method)+": not JSON")
	case len(body)+len(c.id)+frameOverhead > maxFrameBytes:
		kind, body = exitDie, quote("Failed to encode response of "+shorten(c.method)+": too long for a frame")
	}
	c.finish(exit{kind: kind, body: oneLine(body)})
}

func (c *Call) finish(e exit) {
	s := c.server
	s.mu.Lock()
	if c.finished {
		s.mu.Unlock()
		return
	}
	c.finished = true
	s.inFlight--
	s.bytes -= len(c.payload)
	if !c.notification {
		delete(s.calls, string(c.id))
		switch {
		case c.interrupted:
			e = exit{kind: exitInterrupt}
		case c.discard && e.kind != exitDie:
			// The caller wants to know that it was done, not what came of it.
			e = exit{kind: exitSuccess, body: json.RawMessage("null")}
		}
		// Under the lock, so that no chunk of this call can follow.
		s.link.put(frame{kind: kindExit, id: c.id, exit: e})
	}
	if s.inFlight == 0 && s.answered != nil {
		close(s.answered)
		s.answered = nil
	}
	s.mu.Unlock()
	c.cancel(ErrFinished)
}

// Batch is how much a stream's source is asked for.
type Batch struct {
	Values int // most values
	Bytes  int // most bytes of JSON, except that one value may be larger
}

// Next gives the next values of a stream, in order and valid JSON. It waits
// until there is one, or until ctx ends, which is the call's context. The slice
// and the values are given away. Values beside an error are delivered before
// it. io.EOF ends the stream well, a *RemoteError with its body as declared
// error, a *Defect and any other error as a defect with the error's text.
type Next func(ctx context.Context, most Batch) ([]json.RawMessage, error)

// Stream answers with the values that next gives. It returns at once; next is
// called on a goroutine of the server, first now and then each time the client
// has acknowledged what it got, so values that accumulate meanwhile leave
// together. A source that needs to know when its reader is gone watches the
// call's context. For a caller that wants no values the call just succeeds.
func (c *Call) Stream(next Next) {
	if c.discard || c.notification {
		c.Succeed(nil)
		return
	}
	s := c.server
	s.mu.Lock()
	begins := !c.finished && c.acked == nil
	late := begins && s.over
	if begins && !late {
		c.acked = make(chan struct{}, 1)
		s.streams.Add(1)
	}
	s.mu.Unlock()
	switch {
	case late:
		c.finish(exit{kind: exitInterrupt}) // nobody is there any more
	case begins:
		go func() {
			defer s.streams.Done()
			defer c.survive()
			c.finish(c.pump(next))
		}()
	}
}

// pump moves values until the stream ends and says how.
func (c *Call) pump(next Next) exit {
	for {
		values, end := next(c.ctx, Batch{Values: chunkValues, Bytes: chunkBytes})
		for i := range values {
			values[i] = oneLine(values[i])
		}
		for len(values) > 0 {
			n := chunkLength(values)
			if n == 0 {
				return dying(&Defect{Name: InternalError, Message: "a value is too long for a frame"})
			}
			if !c.send(values[:n]) {
				return exit{kind: exitInterrupt}
			}
			values = values[n:]
		}
		if c.ctx.Err() != nil {
			return exit{kind: exitInterrupt}
		}
		if end != nil {
			return exitFor(end)
		}
	}
}

// chunkLength is how many of the values go into the next chunk, none if the
// first fits no frame.
func chunkLength(values []json.RawMessage) int {
	size := 0
	for i, v := range values[:min(len(values), chunkValues)] {
		size += len(v) + 1
		if i == 0 && size+maxIDBytes+frameOverhead > maxFrameBytes {
			return 0
		}
		if i > 0 && size > chunkBytes {
			return i
		}
	}
	return min(len(values), chunkValues)
}

// send sends one chunk and waits until it is acknowledged. It reports false when
// the call has ended instead.
func (c *Call) send(values []json.RawMessage) bool {
	f := frame{kind: kindChunk, id: c.id, values: values}
	for {
		c.server.mu.Lock()
		if c.finished || c.ctx.Err() != nil {
			c.server.mu.Unlock()
			return false
		}
		room := c.server.link.putIfRoom(f)
		if room == nil {
			c.awaiting = true
		}
		c.server.mu.Unlock()
		if room == nil {
			break
		}
		select {
		case <-room:
		case <-c.ctx.Done():
			return false
		}
	}
	select {
	case <-c.acked:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// exitFor is how a stream ends whose source returned err.
func exitFor(err error) exit {
	var failure *RemoteError
	var defect *Defect
	switch {
	case errors.Is(err, io.EOF):
		return exit{kind: exitSuccess, body: json.RawMessage("null")}
	case errors.As(err, &failure) && rawjson.Valid(failure.Body):
		return exit{kind: exitFail, body: oneLine(failure.Body)}
	case errors.As(err, &defect):
		return dying(defect)
	default:
		return dying(&Defect{Name: InternalError, Message: err.Error()})
	}
}

func dying(d *Defect) exit { return exit{kind: exitDie, body: d.encode()} }
