package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"codework/sandboxes"
)

const (
	// cancelPatience is how long a call that was given up still waits for its
	// end inside, which ending a tree of processes may take most of.
	cancelPatience = 2 * time.Second
	// maxNoise is what may come before the marker: start files of a shell that
	// print something.
	maxNoise = 64 << 10
	// quoteSize is how much of what is no handshake an error shows.
	quoteSize = 200
)

// DialOptions say how to begin.
type DialOptions struct {
	// Marker is the line that comes before the protocol; what is printed
	// before it is dropped, up to 64 KiB. "" means that nothing may come.
	Marker string
	// Log receives what is worth knowing; nil drops it.
	Log *slog.Logger
}

// Client is the sandbox as it is reached from outside. It is safe for
// concurrent use.
type Client struct {
	link *link
	log  *slog.Logger
	ends sync.WaitGroup // the reader

	mu     sync.Mutex // guards the following
	calls  map[uint32]*call
	next   uint32
	closed bool
}

var (
	_ sandboxes.Sandbox = (*Client)(nil)
	_ sandboxes.Lost    = (*Client)(nil)
)

// Dial begins to talk to an agent. The connection is the client's from then on,
// also after an error.
func Dial(ctx context.Context, conn io.ReadWriteCloser, o DialOptions) (*Client, error) {
	c := &Client{link: newLink(conn), log: o.Log, calls: make(map[uint32]*call)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	r := bufio.NewReaderSize(conn, maxBody)
	met := make(chan error, 1)
	c.ends.Go(func() {
		err := c.meet(r, o.Marker)
		met <- err
		if err != nil {
			c.link.fail(err)
			return
		}
		c.link.read(r, c.handle)
		if why := c.lostError(); why != sandboxes.ErrClosed {
			c.log.Warn("sandbox agent", "error", why)
		}
	})
	err := c.link.send(ctx, helloFrame())
	if err == nil || err == errEnded { // then meet knows why
		select {
		case err = <-met:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		c.link.fail(err)
		return nil, fmt.Errorf("reach the sandbox agent: %w", err)
	}
	return c, nil
}

// meet reads to the end of the handshake.
func (c *Client) meet(r *bufio.Reader, marker string) error {
	if err := skipNoise(r, marker); err != nil {
		return err
	}
	seen, _ := r.Peek(1)
	if len(seen) > 0 && kind(seen[0]) != kindHello {
		seen, _ = r.Peek(min(r.Buffered(), quoteSize))
		return fmt.Errorf("it does not speak the protocol but says %q", seen)
	}
	f, err := readFrame(r)
	switch {
	case err == io.EOF:
		return errors.New("it ended before it said anything")
	case err != nil:
		return err
	}
	return checkHello(f)
}

// skipNoise reads to the end of the marker's line.
func skipNoise(r *bufio.Reader, marker string) error {
	if marker == "" {
		return nil
	}
	var line []byte // only what may still be the marker
	var first []byte
	for read := 0; read < maxNoise; read++ {
		b, err := r.ReadByte()
		if err != nil {
			if len(first) > 0 {
				return fmt.Errorf("it ended before the marker, having said %q", first)
			}
			return fmt.Errorf("it ended before the marker: %w", err)
		}
		if len(first) < quoteSize {
			first = append(first, b)
		}
		if b != '\n' {
			if len(line) <= len(marker) {
				line = append(line, b)
			}
			continue
		}
		if string(bytes.TrimSuffix(line, []byte("\r"))) == marker {
			return nil
		}
		line = line[:0]
	}
	return fmt.Errorf("no marker within %d bytes; it begins with %q", maxNoise, first)
}

// Lost is closed when the connection has ended, in whatever way.
func (c *Client) Lost() <-chan struct{} { return c.link.done }

// lostError is why nothing works any more.
func (c *Client) lostError() error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return sandboxes.ErrClosed
	}
	if why := c.link.why(); why != nil && why != io.EOF {
		return fmt.Errorf("%w: %w", ErrLost, why)
	}
	return ErrLost
}

// Close ends what runs inside and the connection; see sandboxes.Sandbox.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.closed
	c.mu.Unlock()
	var err error
	if first {
		ctx, cancel := context.WithTimeout(ctx, cancelPatience)
		defer cancel()
		_, err = c.do(ctx, request{Op: opClose}, nil, nil)
		if errors.Is(err, ErrLost) {
			err = nil // then all has ended already
		}
		err = unanswered("close", err)
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.link.fail(sandboxes.ErrClosed)
	c.ends.Wait()
	return err
}

// unanswered says of an error whose deadline was ours what had it.
func unanswered(what string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: no answer from the agent in time: %w", what, err)
	}
	return err
}

// call is one that waits for its answer.
type call struct {
	id     uint32
	inbox  *inbox
	window *window

	// The following belong to the reader until answered is closed.
	parts    []byte
	answer   answer
	answered chan struct{}
}

// open registers a call.
func (c *Client) open() (*call, error) {
	call := &call{inbox: newInbox(), window: newWindow(), answered: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, sandboxes.ErrClosed
	}
	for {
		c.next++ // after four billion calls an old number may still be in use
		if _, used := c.calls[c.next]; !used {
			break
		}
	}
	call.id = c.next
	c.calls[call.id] = call
	return call, nil
}

func (c *Client) forget(call *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, call.id)
}

// handle takes a frame. It never waits.
func (c *Client) handle(f frame) error {
	c.mu.Lock()
	call := c.calls[f.id]
	c.mu.Unlock()
	if call == nil {
		return protocolError("kind %d for call %d, which is not open", f.kind, f.id)
	}
	switch f.kind {
	case kindStdout, kindStderr, kindData:
		return call.inbox.put(f)
	case kindHeld:
		call.inbox.hold(f)
		return nil
	case kindCredit:
		return call.window.add(f)
	case kindPart, kindAnswer:
		if len(call.parts)+len(f.body) > maxMessage {
			return protocolError("answer too large")
		}
		call.parts = append(call.parts, f.body...)
		if f.kind == kindPart {
			return nil
		}
		if err := json.Unmarshal(call.parts, &call.answer); err != nil {
			return protocolError("answer: %v", err)
		}
		call.parts = nil
		c.forget(call)
		close(call.answered)
		return nil
	}
	return protocolError("kind %d from inside", f.kind)
}

// cancel tells the inside that nobody waits for the call any more.
func (c *Client) cancel(call *call) {
	_ = c.link.send(context.Background(), frame{kindCancel, call.id, nil}) // waits no longer than the link lives
}

// do makes a call: it sends the request and the content, if there is any, and
// hands on what comes until the answer. The error is that of the answer; ctx's
// when it has ended and either the call ended for that or its end does not
// come; ErrLost; or sandboxes.ErrClosed.
func (c *Client) do(ctx context.Context, req request, content []byte, take func(frame) error) (answer, error) {
	if err := ctx.Err(); err != nil {
		return answer{}, err
	}
	call, err := c.open()
	if err != nil {
		return answer{}, err
	}
	if err := c.link.message(ctx, kindRequest, call.id, req); err != nil {
		// It has not begun: only the parts have to be thrown away.
		c.forget(call)
		go c.cancel(call)
		if err == errEnded {
			err = c.lostError()
		}
		return answer{}, err
	}
	// The consumer may be slow, or busy sending: the end is watched beside.
	stop := context.AfterFunc(ctx, func() { c.cancel(call) })
	defer stop()
	if content != nil {
		// What goes wrong here the answer, or its absence, says better.
		if c.link.stream(ctx, kindData, call.id, call.window, content) == nil {
			_ = c.link.send(ctx, frame{kindEnd, call.id, nil})
		}
	}
	patience := cancelPatience
	if req.Op == opClose || req.Op == opUnmount {
		patience = 0 // to wait for the end inside was what ctx was for
	}
	return c.await(ctx, call, take, patience)
}

// await hands on what comes until the answer.
func (c *Client) await(ctx context.Context, call *call, take func(frame) error, patience time.Duration) (answer, error) {
	ended := ctx.Done()
	var over <-chan time.Time
	for {
		select {
		case <-call.inbox.news:
			if err := c.deliver(call, take); err != nil {
				c.link.fail(err)
				return answer{}, c.lostError()
			}
		case <-call.answered:
			// What came before it is handed on before it.
			if err := c.deliver(call, take); err != nil {
				c.link.fail(err)
				return answer{}, c.lostError()
			}
			err := call.answer.Err.err()
			if cause := ctx.Err(); cause != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
				err = cause
			}
			return call.answer, err
		case <-c.link.done:
			select {
			case <-call.answered: // it came just before the end
				continue
			default:
			}
			c.forget(call)
			if err := ctx.Err(); err != nil {
				return answer{}, err
			}
			return answer{}, c.lostError()
		case <-ended:
			ended = nil
			timer := time.NewTimer(patience)
			defer timer.Stop()
			over = timer.C
		case <-over:
			// It stays registered, since its answer may still come.
			call.inbox.drop()
			c.log.Warn("the sandbox does not end a call that was given up")
			return answer{}, ctx.Err()
		}
	}
}

// deliver hands on what has arrived and gives the sender credit for it.
func (c *Client) deliver(call *call, take func(frame) error) error {
	for _, f := range call.inbox.take() {
		if take == nil {
			return protocolError("unasked data")
		}
		if err := take(f); err != nil {
			return err
		}
		if n := call.inbox.eaten(len(f.body)); n > 0 {
			// When it cannot be sent, the link has ended.
			_ = c.link.credit(context.Background(), call.id, n)
		}
	}
	return nil
}
