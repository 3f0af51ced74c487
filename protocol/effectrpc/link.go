package effectrpc

import (
	"fmt"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// messageSize is how many bytes go into one message, frames joined or split
	// as needed: large enough to make the cost of a message small, small enough
	// that a Pong does not wait long behind one and that a slow peer shows
	// progress between two.
	messageSize = 64 << 10

	// roomBytes is how much waits for the writer before streams and requests
	// are held back.
	roomBytes = 1 << 20

	// defaultQueuedBytes is how much waits for the writer before the peer counts
	// as not reading: four of the largest answers.
	defaultQueuedBytes = 64 << 20

	// defaultWriteTimeout is how long the peer may take to accept one message of
	// messageSize.
	defaultWriteTimeout = 30 * time.Second

	// drainGrace is how long a graceful end waits for what is queued.
	drainGrace = 2 * time.Second

	// closeGrace is how long the other side may take to notice an end.
	closeGrace = time.Second

	// maxPongs is how many Pongs are written together. More can only be due when
	// the peer does not read, and then it does not count them.
	maxPongs = 64
)

// link is one connection with its reader, which is whoever calls run, and its
// writer. Any goroutine may queue frames; none of them waits for the peer.
type link struct {
	conn         Conn
	lineLimit    int
	queuedLimit  int
	writeTimeout time.Duration

	wake    chan struct{} // tells the writer to look, holds one
	over    chan struct{} // closed by the first end
	flushed chan struct{} // closed when the writer has stopped
	tasks   sync.WaitGroup

	mu       sync.Mutex // guards what follows
	queue    []frame
	size     int           // bytes of queue and of what is being written
	pongs    int           // due, before everything in queue
	room     chan struct{} // closed when there is room again; nil when nobody waits
	ending   bool
	draining bool
	dead     bool // nothing more is written
	err      error
}

func newLink(conn Conn, lineLimit, queuedLimit int, writeTimeout time.Duration) *link {
	if lineLimit <= 0 {
		lineLimit = defaultLineLimit
	}
	if queuedLimit <= 0 {
		queuedLimit = defaultQueuedBytes
	}
	if writeTimeout <= 0 {
		writeTimeout = defaultWriteTimeout
	}
	return &link{
		conn: conn, lineLimit: lineLimit, queuedLimit: queuedLimit, writeTimeout: writeTimeout,
		wake: make(chan struct{}, 1), over: make(chan struct{}), flushed: make(chan struct{}),
	}
}

// run reads lines and gives them to each, in order, until the connection ends;
// it then calls ended, at once, and returns when the writer has stopped and the
// connection is closed. The error is the one of the first end. arrived, if set,
// is told about every piece that arrives.
func (l *link) run(arrived func(), each func(line []byte), ended func()) error {
	l.tasks.Go(l.write)
	lines := lineReader{limit: l.lineLimit, read: func() ([]byte, error) {
		piece, err := l.conn.Read()
		if err == nil && arrived != nil {
			arrived()
		}
		return piece, err
	}}
	for {
		line, err := lines.next()
		if err == nil {
			each(line)
			continue
		}
		if err != ErrLineTooLong {
			l.end(err, CloseNormal, "", false)
			break
		}
		l.end(err, CloseTooBig, "line too long", true)
		// The peer may still be sending that line, and hears of the close only
		// when it is done.
		for err = nil; err == nil; {
			_, err = l.conn.Read()
		}
		break
	}
	ended()
	l.tasks.Wait()
	return l.cause()
}

// end ends the connection; only the first end counts. A graceful one writes
// first what is queued, as far as that is possible within drainGrace. It does
// not wait.
func (l *link) end(err error, code int, reason string, graceful bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return
	}
	l.ending, l.draining, l.err = true, graceful, err
	close(l.over)
	if !graceful {
		l.kill()
	}
	l.signal()
	// Safe against the Wait in run: the reader is alive until some end came
	// first, so the counter is not zero here.
	l.tasks.Go(func() {
		if graceful {
			select {
			case <-l.flushed:
			case <-time.After(drainGrace):
			}
		}
		l.mu.Lock()
		l.kill()
		l.mu.Unlock()
		// What went wrong while closing is of no use to anybody: the
		// connection is gone either way.
		_ = l.conn.Close(code, reason)
	})
}

// broken gives up writing. Whatever broke the connection the reader sees too,
// and it may know more: how the peer closed. So it has a moment to end the
// connection before err does.
func (l *link) broken(err error) {
	l.mu.Lock()
	l.kill()
	l.mu.Unlock()
	select {
	case <-l.over:
	case <-time.After(closeGrace):
		l.end(err, CloseNormal, "", false)
	}
}

// kill drops what is queued and frees whoever waits for room. l.mu is held.
func (l *link) kill() {
	l.dead = true
	l.queue, l.pongs, l.size = nil, 0, 0
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
	l.signal()
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// put queues a frame. When too much waits the connection ends instead.
func (l *link) put(f frame) {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return
	}
	l.push(f)
	over := l.size > l.queuedLimit
	l.mu.Unlock()
	if over {
		l.end(ErrPeerStuck, ClosePolicy, "too much is waiting to be read", false)
	}
}

// putIfRoom queues a frame unless much is waiting already; then it returns a
// channel that is closed when trying again is worth it. On a dead link the
// frame is dropped.
func (l *link) putIfRoom(f frame) (wait <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil
	}
	if l.size >= roomBytes {
		if l.room == nil {
			l.room = make(chan struct{})
		}
		return l.room
	}
	l.push(f)
	return nil
}

func (l *link) push(f frame) {
	l.queue = append(l.queue, f)
	l.size += f.size()
	l.signal()
}

// pong queues a Pong before everything else.
func (l *link) pong() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dead && l.pongs < maxPongs {
		l.pongs++
		l.signal()
	}
}

// buffers holds what the writers encode into, so that an idle connection keeps
// none.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keepBuffer is the largest buffer that goes back to the pool: one message and
// the frame that made it full, unless that was an unusual one.
const keepBuffer = 4 * messageSize

// keepFrames is how long a slice of queued frames may be to be used again.
const keepFrames = 256

// write is the writer goroutine.
func (l *link) write() {
	stuck := time.AfterFunc(l.writeTimeout, func() {
		l.end(ErrPeerStuck, ClosePolicy, "not reading", false)
	})
	stuck.Stop()
	defer close(l.flushed)
	var taken []frame // from the queue, not yet written
	var done int      // how many of them are
	for {
		if done == len(taken) {
			clear(taken) // the values are others' to free
			taken, done = l.take(taken[:0]), 0
		}
		pongs, more := l.next(len(taken) - done)
		if !more {
			return
		}
		buffer := buffers.Get().(*[]byte)
		b := (*buffer)[:0]
		for range pongs {
			b = (&frame{kind: kindPong}).appendTo(b)
		}
		size := 0
		for ; done < len(taken) && len(b) < messageSize; done++ {
			b = taken[done].appendTo(b)
			size += taken[done].size()
		}
		err := l.send(b, stuck)
		if cap(b) <= keepBuffer {
			*buffer = b
			buffers.Put(buffer)
		}
		if err != nil {
			l.broken(fmt.Errorf("write: %w", err))
			return
		}
		l.written(size)
	}
}

// take moves everything that is queued to the writer, which leaves its empty
// slice behind unless that has grown large.
func (l *link) take(empty []frame) []frame {
	if cap(empty) > keepFrames {
		empty = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.queue
	l.queue = empty
	return taken
}

// next waits until there is something to write, the writer holding held frames,
// and returns the Pongs that are due. It reports false when there will be
// nothing more.
func (l *link) next(held int) (pongs int, more bool) {
	for {
		l.mu.Lock()
		pongs, l.pongs = l.pongs, 0
		queued, draining, dead := len(l.queue), l.draining, l.dead
		l.mu.Unlock()
		switch {
		case dead:
			return 0, false
		case pongs > 0 || held > 0 || queued > 0:
			return pongs, true
		case draining:
			return 0, false
		}
		<-l.wake
	}
}

// send writes b in messages of at most messageSize, cut between characters
// because every text message must be valid UTF-8. The timer ends the connection
// when one of them takes too long.
func (l *link) send(b []byte, stuck *time.Timer) error {
	for len(b) > 0 {
		n := min(len(b), messageSize)
		for n < len(b) && n > messageSize-utf8.UTFMax && !utf8.RuneStart(b[n]) {
			n--
		}
		stuck.Reset(l.writeTimeout)
		err := l.conn.Write(b[:n])
		stuck.Stop()
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// written takes note that size bytes have left.
func (l *link) written(size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return
	}
	l.size -= size
	if l.room != nil && l.size < roomBytes {
		close(l.room)
		l.room = nil
	}
}

// cause is why the connection ended.
func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
