package local

import (
	"context"
	"slices"
	"sync"
)

// locks are the file locks of a sandbox, by real path. Who waits is served in
// the order of arrival.
type locks struct {
	mu     sync.Mutex // guards queues
	queues map[string][]chan struct{}
}

// take waits for the lock of path. The first in a path's queue holds the lock;
// a waiter's channel is closed when it has become the first.
func (l *locks) take(ctx context.Context, path string) (unlock func(), err error) {
	turn := make(chan struct{})
	l.mu.Lock()
	if l.queues == nil {
		l.queues = make(map[string][]chan struct{})
	}
	l.queues[path] = append(l.queues[path], turn)
	if len(l.queues[path]) == 1 {
		close(turn)
	}
	l.mu.Unlock()
	leave := sync.OnceFunc(func() { l.leave(path, turn) })
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// leave takes one out of the queue, wherever it stands.
func (l *locks) leave(path string, turn chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[path]
	i := slices.Index(q, turn)
	q = slices.Delete(q, i, i+1)
	if len(q) == 0 {
		delete(l.queues, path)
		return
	}
	l.queues[path] = q
	if i == 0 {
		close(q[0])
	}
}
