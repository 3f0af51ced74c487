package local

import (
	"context"
	"sync"
)

// locks are the file locks of a sandbox, by real path. Waiters are served in
// the order in which they came.
type locks struct {
	mu   sync.Mutex // guards held
	held map[string]*lock
}

type lock struct {
	token chan struct{} // holds one token while the lock is taken
	users int           // who holds it or waits for it
}

// take waits for the lock of path.
func (l *locks) take(ctx context.Context, path string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = make(map[string]*lock)
	}
	k := l.held[path]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		l.held[path] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, path)
		}
	}
	select {
	case k.token <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	return sync.OnceFunc(func() {
		<-k.token
		leave()
	}), nil
}
