package actors

import (
	"runtime"
	"sync"
	"time"
)

// crew runs the mailboxes of all actors on a few goroutines that stay. A
// goroutine for each run, which is protoactor's own way, begins with a small
// stack and copies it several times on its way down to a store or an encoder: a
// sixth of the processor time of 200 prompts that come at once.
//
// Runs begin in the order in which they were scheduled, and nobody waits long
// behind others: a run that was not begun within patience, because actors work
// for long or wait after all, gets one more goroutine, which goes when it is
// not needed. Schedule never blocks.
type crew struct {
	mu     sync.Mutex
	ready  *sync.Cond
	queue  []run // from next on
	next   int
	hands  int // goroutines there are
	idle   int // of them, those without work
	usual  int // so many stay
	watch  bool
	closed bool
}

// run is a mailbox that has something in it, and since when.
type run struct {
	f  func()
	at time.Time
}

const (
	// patience is how long a mailbox with something in it may wait for a hand
	// while the usual number is busy.
	patience = 2 * time.Millisecond
	// handsPerProcessor are more than one, since a run may be paused by the
	// system while it holds a processor.
	handsPerProcessor = 2
	// compactAt bounds the room that a queue keeps for later.
	compactAt = 1024
	// throughput is after how many messages an actor lets others go first, if
	// they need its processor.
	throughput = 300
)

func newCrew() *crew {
	c := &crew{usual: handsPerProcessor * runtime.GOMAXPROCS(0)}
	c.ready = sync.NewCond(&c.mu)
	return c
}

// Throughput is read by mailboxes.
func (c *crew) Throughput() int { return throughput }

// Schedule runs f soon.
func (c *crew) Schedule(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		go f()
		return
	}
	c.queue = append(c.queue, run{f, time.Now()})
	switch {
	case c.idle > 0:
		c.idle-- // for whoever is woken
		c.ready.Signal()
	case c.hands < c.usual:
		c.more()
	case !c.watch:
		c.watch = true
		time.AfterFunc(patience, c.look)
	}
}

// more hires a goroutine.
func (c *crew) more() {
	c.hands++
	go c.work()
}

// look hires one for a mailbox that waits for too long.
func (c *crew) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == len(c.queue) {
		c.watch = false
		return
	}
	if time.Since(c.queue[c.next].at) >= patience {
		c.more()
	}
	time.AfterFunc(patience, c.look)
}

func (c *crew) work() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for c.next < len(c.queue) {
			f := c.take()
			c.run(f)
		}
		if c.closed || c.hands > c.usual {
			c.hands--
			return
		}
		c.idle++
		c.ready.Wait()
	}
}

// run lets others go on while f runs. The lock is taken again however f ends, so
// that a panic is seen and not hidden by a lock that nobody holds.
func (c *crew) run(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}

// take is the next run of a queue that has one.
func (c *crew) take() func() {
	f := c.queue[c.next].f
	c.queue[c.next] = run{}
	c.next++
	switch {
	case c.next < len(c.queue):
		if c.next >= compactAt && c.next >= len(c.queue)/2 {
			c.queue, c.next = append(c.queue[:0], c.queue[c.next:]...), 0
		}
	case cap(c.queue) > compactAt:
		c.queue, c.next = nil, 0
	default:
		c.queue, c.next = c.queue[:0], 0
	}
	return f
}

// close lets the goroutines go when they have nothing left to do. What is
// scheduled later gets a goroutine of its own.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.idle = 0
	c.ready.Broadcast()
}
