package actors

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// turnstile lets a few exchanges begin at a time, in the order in which they
// came. When hundreds of sessions are prompted at once, their beginnings would
// otherwise take the processors from prompts that are still to be admitted and
// from answers that stream already, and all of them would end late together.
type turnstile chan struct{}

const (
	// beginsPerProcessor are more than one, since a beginning waits for files
	// and for other actors in between.
	beginsPerProcessor = 2
	// beginsWithin is how long one that waits for something else, such as a
	// plugin or a container that starts, keeps others waiting.
	beginsWithin = 10 * time.Millisecond
)

func newTurnstile() turnstile { return make(turnstile, beginsPerProcessor*runtime.GOMAXPROCS(0)) }

// enter waits for its turn, or for ctx. leave ends it, unless it has ended by
// itself.
func (t turnstile) enter(ctx context.Context) (leave func()) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	let := sync.OnceFunc(func() { <-t })
	late := time.AfterFunc(beginsWithin, let)
	return func() {
		late.Stop()
		let()
	}
}
