package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// queueLength is how many frames wait to be sent. The queue is short because
// what is in it cannot be taken back; who finds it full waits, or gives up.
const queueLength = 16

// link is one end of the connection: it sends frames, from any goroutine, and
// ends once.
type link struct {
	conn io.ReadWriteCloser
	out  chan []byte
	done chan struct{} // closed when it has ended
	sent sync.WaitGroup

	mu    sync.Mutex // guards cause
	cause error      // why it has ended
}

// newLink starts to send.
func newLink(conn io.ReadWriteCloser) *link {
	l := &link{conn: conn, out: make(chan []byte, queueLength), done: make(chan struct{})}
	l.sent.Go(l.write)
	return l
}

// write sends what is queued, several small frames in one go.
func (l *link) write() {
	w := bufio.NewWriterSize(l.conn, maxBody)
	for {
		select {
		case b := <-l.out:
			_, err := w.Write(b)
			if err == nil && len(l.out) == 0 {
				err = w.Flush()
			}
			if err != nil {
				l.fail(err)
				return
			}
		case <-l.done:
			return
		}
	}
}

// read hands what arrives to handle until the end or an error of either.
func (l *link) read(r io.Reader, handle func(frame) error) {
	for {
		f, err := readFrame(r)
		if err == nil {
			err = handle(f)
		}
		if err != nil {
			l.fail(err)
			return
		}
	}
}

// fail ends the link; the first reason counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.cause != nil {
		l.mu.Unlock()
		return
	}
	l.cause = err
	l.mu.Unlock()
	close(l.done)
	_ = l.conn.Close() // it is of no use any more
}

// why is the reason of the end; nil while it goes on.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

var errEnded = errors.New("link ended")

// send queues a frame. The error is ctx's or errEnded.
func (l *link) send(ctx context.Context, f frame) error { return l.queue(ctx, f.encode()) }

func (l *link) queue(ctx context.Context, b []byte) error {
	select {
	case l.out <- b:
		return nil
	default:
	}
	select {
	case l.out <- b:
		return nil
	case <-l.done:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// message sends a JSON value, in parts if need be, the last one as kind k. It
// is whole or the receiver never hears the last part.
func (l *link) message(ctx context.Context, k kind, id uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return errTooLarge
	}
	for len(b) > pieceSize {
		if err := l.send(ctx, frame{kindPart, id, b[:pieceSize]}); err != nil {
			return err
		}
		b = b[pieceSize:]
	}
	return l.send(ctx, frame{k, id, b})
}

var errTooLarge = errors.New("too large to send")

// credit tells the peer that it may send n more bytes.
func (l *link) credit(ctx context.Context, id uint32, n int) error {
	return l.send(ctx, frame{kindCredit, id, binary.LittleEndian.AppendUint32(nil, uint32(n))})
}

// stream sends b as frames of kind k, no more than the window allows.
func (l *link) stream(ctx context.Context, k kind, id uint32, w *window, b []byte) error {
	for len(b) > 0 {
		n, err := w.take(ctx, l.done, min(len(b), pieceSize))
		if err != nil {
			return err
		}
		if err := l.send(ctx, frame{k, id, b[:n]}); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// window is how many bytes may still be sent. It has one taker.
type window struct {
	more chan struct{} // something was added; holds one

	mu sync.Mutex // guards n
	n  int
}

func newWindow() *window { return &window{more: make(chan struct{}, 1), n: windowSize} }

// take waits until something may be sent and takes up to want bytes. When the
// context has ended it still takes what is there.
func (w *window) take(ctx context.Context, ended <-chan struct{}, want int) (int, error) {
	for {
		w.mu.Lock()
		n := min(w.n, want)
		w.n -= n
		w.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-w.more:
		case <-ended:
			return 0, errEnded
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// add takes a frame of credit.
func (w *window) add(f frame) error {
	if len(f.body) != 4 {
		return protocolError("credit of %d bytes", len(f.body))
	}
	n := binary.LittleEndian.Uint32(f.body)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > windowSize || w.n+int(n) > windowSize {
		return protocolError("more credit than was used")
	}
	w.n += int(n)
	select {
	case w.more <- struct{}{}:
	default:
	}
	return nil
}

// inbox holds what has arrived for one call until it is taken. What it holds
// is bounded by the window. It has one taker.
type inbox struct {
	news chan struct{} // something has arrived; holds one

	mu     sync.Mutex // guards the following
	frames []frame
	open   int  // bytes that the peer may still send
	closed bool // what arrives is dropped
	owed   int  // bytes taken and not yet told to the sender
}

func newInbox() *inbox { return &inbox{news: make(chan struct{}, 1), open: windowSize} }

// put adds a frame of data. It never waits.
func (i *inbox) put(f frame) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(f.body) == 0 || len(f.body) > i.open {
		return protocolError("%d bytes of data where %d were expected", len(f.body), i.open)
	}
	i.open -= len(f.body)
	if !i.closed {
		i.frames = append(i.frames, f)
	}
	i.wake()
	return nil
}

// wake lets the taker look again.
func (i *inbox) wake() {
	select {
	case i.news <- struct{}{}:
	default:
	}
}

// take is what has arrived since, possibly nothing.
func (i *inbox) take() []frame {
	i.mu.Lock()
	defer i.mu.Unlock()
	frames := i.frames
	i.frames = nil
	return frames
}

// eaten counts n bytes as consumed and gives how many the sender is to be told
// of; 0 for not yet.
func (i *inbox) eaten(n int) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.owed += n
	if i.owed < creditSize {
		return 0
	}
	n, i.owed = i.owed, 0
	i.open += n
	return n
}

// drop forgets what is there and what comes.
func (i *inbox) drop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.frames, i.closed = nil, true
}

// hold adds a frame without data.
func (i *inbox) hold(f frame) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.closed && len(i.frames) == 0 { // once is enough
		i.frames = append(i.frames, frame{kind: f.kind})
	}
	i.wake()
}
