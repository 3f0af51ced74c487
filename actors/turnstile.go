package actors

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// turnstile lets a few exchanges begin at a time, in the order in which they
// came, and prompts that are still to be admitted go first. When hundreds of
// sessions are prompted at once, their beginnings would otherwise take the
// processors from admissions and from answers that stream already, and all of
// them would end late together. Behind a crowd the answers give way in turn: an
// answer takes its time once it is asked for, so what begins late ends late, and
// text that waits is joined, which costs less.
type turnstile struct {
	slots   chan struct{}
	waiting atomic.Int64 // beginnings that wait for their turn

	mu       sync.Mutex    // guards the following
	admitted chan struct{} // closed when no admission is under way; nil when none is
	under    int           // admissions under way
}

const (
	// beginsPerProcessor are more than one, since a beginning waits for files
	// and for other actors in between.
	beginsPerProcessor = 2
	// beginsWithin is how long one that waits for something else, such as a
	// plugin or a container that starts, keeps others waiting.
	beginsWithin = 10 * time.Millisecond
	// yieldsFor is how long a beginning lets admissions go first at most: prompts
	// may come without end. A hundred are admitted meanwhile.
	yieldsFor = 20 * time.Millisecond
	// crowd is how many beginnings must wait for answers to give way: fewer are
	// over in a quarter of a second.
	crowd = 256
	// givesWayFor is how long an answer gives way for each that waits, about what
	// one takes, and givesWayMost for all; then it goes on for as long at least.
	givesWayFor  = time.Millisecond
	givesWayMost = time.Second
)

func newTurnstile() *turnstile {
	return &turnstile{slots: make(chan struct{}, beginsPerProcessor*runtime.GOMAXPROCS(0))}
}

// admit tells that a prompt has come, until over is called, once.
func (t *turnstile) admit() (over func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.under++; t.under == 1 {
		t.admitted = make(chan struct{})
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.under--; t.under == 0 {
			close(t.admitted)
			t.admitted = nil
		}
	}
}

// enter waits for its turn, or for ctx. leave ends it, unless it has ended by
// itself.
func (t *turnstile) enter(ctx context.Context) (leave func()) {
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	t.yield(ctx)
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	let := sync.OnceFunc(func() { <-t.slots })
	late := time.AfterFunc(beginsWithin, let)
	return func() {
		late.Stop()
		let()
	}
}

// yield lets admissions go first.
func (t *turnstile) yield(ctx context.Context) {
	t.mu.Lock()
	admitted := t.admitted
	t.mu.Unlock()
	if admitted == nil {
		return
	}
	late := time.NewTimer(yieldsFor)
	defer late.Stop()
	select {
	case <-admitted:
	case <-late.C:
	case <-ctx.Done():
	}
}

// giveWay is called by an answer that gave way last at that time. It lets a crowd
// of beginnings go first, and returns when it last gave way.
func (t *turnstile) giveWay(ctx context.Context, last time.Time) time.Time {
	n := t.waiting.Load()
	if n < crowd || time.Since(last) < givesWayMost {
		return last
	}
	sleep(ctx, min(time.Duration(n)*givesWayFor, givesWayMost))
	return time.Now()
}
