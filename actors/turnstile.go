package actors

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// turnstile lets a few exchanges begin at a time, in the order in which they
// came, and prompts that are still to be admitted go first. When hundreds of
// sessions are prompted at once, their beginnings would otherwise take the
// processors from admissions and from answers that stream already, and all of
// them would end late together.
type turnstile struct {
	slots chan struct{}

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
