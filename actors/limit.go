package actors

import (
	"context"
	"fmt"
	"sync"

	"codework/internal/store"
	"codework/messages"
)

// limit keeps the number of stored sessions from going over most, also when
// many are made at the same time.
type limit struct {
	store Store
	most  int // 0 is no limit

	mu     sync.Mutex // guards making; held while a session is written, so that none is counted twice
	making int        // sessions that have room and are not written yet
}

// room is the right to make one session. It is given back with leave, which
// does nothing once the session is written.
type room struct {
	limit *limit
	taken bool
}

// take refuses one more session than is allowed.
func (l *limit) take(ctx context.Context) (*room, error) {
	if l.most <= 0 {
		return &room{limit: l}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.store.Count(ctx)
	if err != nil {
		return nil, err
	}
	if n += l.making; n >= l.most {
		return nil, &messages.Refused{Name: messages.RefusedBusy, Message: fmt.Sprintf("the limit of this server is reached: there are %d of %d sessions (--max-sessions); delete some", n, l.most)}
	}
	l.making++
	return &room{limit: l, taken: true}, nil
}

// write stores the session that the room was taken for. It goes on when ctx
// ends: otherwise nobody knew whether there is a session.
func (r *room) write(ctx context.Context, b store.Batch) error {
	ctx = context.WithoutCancel(ctx)
	if !r.taken {
		return commit(ctx, r.limit.store, b)
	}
	r.limit.mu.Lock()
	defer r.limit.mu.Unlock()
	r.taken = false
	r.limit.making--
	return commit(ctx, r.limit.store, b)
}

func (r *room) leave() {
	if !r.taken {
		return
	}
	r.limit.mu.Lock()
	defer r.limit.mu.Unlock()
	r.taken = false
	r.limit.making--
}
