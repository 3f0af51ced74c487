// Package filelock holds the locks of a sandbox's files by name. Who waits is
// served in the order of arrival; waiting ends with the context. Nothing is
// remembered of a name that nobody holds.
package filelock

import (
	"context"
	"slices"
	"sync"
)

// Table holds the locks of one sandbox. Its zero value is ready, and safe for
// concurrent use.
type Table struct {
	mu     sync.Mutex // guards queues
	queues map[string][]chan struct{}
}

// Take waits for the lock of path, which should be a real one: two names of a
// file are two locks. Unlocking again is fine. The first in a path's queue holds the lock;
// a waiter's channel is closed when it has become the first.
func (l *Table) Take(ctx context.Context, path string) (unlock func(), err error) {
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
func (l *Table) leave(path string, turn chan struct{}) {
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

// Queued is how many hold or wait for the lock of path.
func (l *Table) Queued(path string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queues[path])
}

// Len is how many files are locked.
func (l *Table) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queues)
}
