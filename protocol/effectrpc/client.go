package effectrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// defaultPingInterval is the stock client's: a server is given up when nothing
// came between two pings, which is ten seconds after it fell silent at most.
const defaultPingInterval = 5 * time.Second

// ClientOptions tune a client; the zero value is what the stock client does.
type ClientOptions struct {
	// PingInterval is the time between keep-alive pings. A connection on which
	// nothing arrives from one ping to the next is given up. Zero means 5
	// seconds, a negative value no pings at all.
	PingInterval time.Duration

	// MaxLineBytes is the longest line the server may send. Zero means 16 MiB.
	MaxLineBytes int

	// WriteTimeout is how long the server may take to accept one message. Zero
	// means 30 seconds.
	WriteTimeout time.Duration
}

// errSilent is the cause when keep-alive gives up.
var errSilent = errors.New("server is silent")

// Client is the client half of one connection. Its methods may be called by any
// goroutine.
type Client struct {
	link     *link
	received atomic.Uint64 // pieces that arrived, for keep-alive
	stop     chan struct{} // closed when the connection has ended: ends keep-alive
	done     chan struct{} // closed when everything has ended

	mu      sync.Mutex // guards what follows
	nextID  uint64
	pending map[uint64]pending
	err     error // why the connection ended
}

// pending is what waits for an answer: a call or a stream.
type pending struct {
	reply  chan reply // holds one
	stream *Stream
}

// reply is how a call ended: a value or an error.
type reply struct {
	value json.RawMessage
	err   error
}

// NewClient returns the client half for conn, which it takes over. Close must be
// called in the end.
func NewClient(conn Conn, opts ClientOptions) *Client {
	c := &Client{
		link:    newLink(conn, opts.MaxLineBytes, 0, opts.WriteTimeout),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
		pending: map[uint64]pending{},
	}
	interval := opts.PingInterval
	if interval == 0 {
		interval = defaultPingInterval
	}
	var alive sync.WaitGroup
	if interval > 0 {
		alive.Go(func() { c.keepAlive(interval) })
	}
	go func() {
		defer close(c.done)
		// What ended the connection is in c.err.
		_ = c.link.run(func() { c.received.Add(1) }, c.receive, c.ended)
		alive.Wait()
	}()
	return c
}

// Call calls a method and waits for its answer, which is decoded into result;
// a nil result drops it. A nil payload is an empty object.
//
// The errors are *RemoteError for one that the method declares, *Defect for one
// that it does not, ErrInterrupted when the server interrupted the call, one that
// wraps ErrConnectionLost, and that of ctx: then the server is told to stop, and
// whether it did the work is not known.
func (c *Client) Call(ctx context.Context, method string, payload, result any) error {
	w := pending{reply: make(chan reply, 1)}
	id, err := c.start(ctx, method, payload, w)
	if err != nil {
		return err
	}
	var r reply
	select {
	case r = <-w.reply:
	case <-ctx.Done():
		if c.forget(id) {
			c.link.put(frame{kind: kindInterrupt, id: numberID(id)})
			return ctx.Err()
		}
		r = <-w.reply // it came in the same moment
	}
	if r.err != nil {
		return r.err
	}
	if result == nil || r.value == nil {
		return nil
	}
	if err := json.Unmarshal(r.value, result); err != nil {
		return fmt.Errorf("decode result of %s: %w", method, err)
	}
	return nil
}

// encodePayload leaves <, > and & alone, which would otherwise take six bytes
// each.
func encodePayload(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// start sends a request for w.
func (c *Client) start(ctx context.Context, method string, payload any, w pending) (uint64, error) {
	body := json.RawMessage("{}")
	if payload != nil {
		var err error
		if body, err = encodePayload(payload); err != nil {
			return 0, fmt.Errorf("encode payload of %s: %w", method, err)
		}
	}
	f := frame{kind: kindRequest, method: method, payload: oneLine(body)}
	if f.size() > maxFrameBytes {
		return 0, fmt.Errorf("payload of %s: %d bytes are too long for a frame", method, len(body))
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	id := c.nextID
	c.nextID++
	c.pending[id] = w
	if w.stream != nil {
		w.stream.id = id
	}
	c.mu.Unlock()

	f.id = numberID(id)
	for {
		room := c.link.putIfRoom(f)
		if room == nil {
			return id, nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			c.forget(id)
			return 0, ctx.Err()
		}
	}
}

// forget reports whether the answer to id was still awaited; now it is not.
func (c *Client) forget(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.pending[id]
	delete(c.pending, id)
	return ok
}

// lookup returns what waits for a frame with that id. Ids that are not ours are
// ignored, as the stock client does.
func (c *Client) lookup(token json.RawMessage, last bool) (uint64, pending, bool) {
	id, err := strconv.ParseUint(string(token), 10, 64)
	if err != nil {
		return 0, pending{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.pending[id]
	if last {
		delete(c.pending, id)
	}
	return id, w, ok
}

func (c *Client) receive(line []byte) {
	f, err := parseFrame(line)
	var unknown *badFrame
	switch {
	case errors.As(err, &unknown):
		return // a frame of a newer server
	case err != nil:
		c.link.end(err, CloseNormal, "", false)
		return
	}
	switch f.kind {
	case kindExit:
		if _, w, ok := c.lookup(f.id, true); ok {
			w.finish(f.exit.reply())
		}
	case kindChunk:
		id, w, ok := c.lookup(f.id, false)
		switch {
		case !ok:
		case w.stream != nil:
			w.stream.receive(f.values)
		default:
			// Nobody will acknowledge: the call would hang.
			c.forget(id)
			c.link.put(frame{kind: kindInterrupt, id: numberID(id)})
			w.finish(reply{err: errors.New("the method answers with a stream")})
		}
	case kindDefect:
		// It names no call, so it may be about any of them.
		c.fail(parseDefect(f.defect))
	}
}

func (e exit) reply() reply {
	switch e.kind {
	case exitSuccess:
		return reply{value: e.body}
	case exitFail:
		return reply{err: parseRemoteError(e.body)}
	case exitDie:
		return reply{err: parseDefect(e.body)}
	default:
		return reply{err: ErrInterrupted}
	}
}

func (w pending) finish(r reply) {
	if w.stream == nil {
		w.reply <- r // has room: it comes once
		return
	}
	if r.err == nil {
		r.err = io.EOF
	}
	w.stream.finish(r.err)
}

// fail ends everything in flight.
func (c *Client) fail(err error) {
	c.mu.Lock()
	all := c.pending
	c.pending = map[uint64]pending{}
	c.mu.Unlock()
	for _, w := range all {
		w.finish(reply{err: err})
	}
}

// ended is called by the reader when the connection has ended.
func (c *Client) ended() {
	err := fmt.Errorf("%w: %w", ErrConnectionLost, c.link.cause())
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	c.fail(err)
	close(c.stop)
}

// keepAlive pings and gives up a server from which nothing came since the last
// ping.
func (c *Client) keepAlive(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var seen uint64
	pinged := false
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		received := c.received.Load()
		if pinged && received == seen {
			c.link.end(errSilent, CloseNormal, "", false)
			return
		}
		seen, pinged = received, true
		c.link.put(frame{kind: kindPing})
	}
}

// Close closes the connection with 1000 after writing what is queued, and waits
// until everything has ended, a few seconds at most. What is in flight fails
// with ErrConnectionLost.
func (c *Client) Close() error {
	c.link.end(ErrClosed, CloseNormal, "", true)
	<-c.done
	return nil
}

// Done is closed when the connection has ended and nothing of the client runs
// any more.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the connection ended: an error that wraps ErrConnectionLost and
// the cause, such as a *CloseError or ErrClosed. It is nil while the connection
// is up.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
