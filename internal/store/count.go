package store

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
)

// Count is the number of sessions. It neither wakes a store that rests nor keeps
// one from coming to rest: whoever watches a process asks for it again and again.
func (s *Store) Count(ctx context.Context) (int, error) {
	db, _ := s.peek()
	if db == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return 0, badger.ErrDBClosed
		}
		return s.sessions, ctx.Err()
	}
	defer s.unpeek()
	return s.tally.count(func() (n int, err error) {
		err = db.View(func(txn *badger.Txn) (err error) {
			n, err = count(ctx, txn)
			return err
		})
		return n, err
	})
}

// tally knows the number of sessions once somebody has asked for it. To count them
// costs over a millisecond a thousand, and every client that says hello asks.
type tally struct {
	mu   sync.Mutex   // held to count, and to commit what changes the number
	more atomic.Int64 // one more than the number; 0: not known
}

// count returns the number, from look when it is not known.
func (t *tally) count(look func() (int, error)) (int, error) {
	if more := t.more.Load(); more > 0 {
		return int(more - 1), nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if more := t.more.Load(); more > 0 {
		return int(more - 1), nil
	}
	n, err := look()
	if err == nil {
		t.more.Store(int64(n) + 1)
	}
	return n, err
}

// change commits what makes so many sessions more, or less.
func (t *tally) change(by int, commit func() error) error {
	if by == 0 {
		return commit()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := commit()
	switch {
	case err != nil:
		t.more.Store(0) // whatever became of it
	case t.more.Load() > 0:
		t.more.Add(int64(by))
	}
	return err
}

// unknown commits what may change the number.
func (t *tally) unknown(commit func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.more.Store(0)
	return commit()
}

func count(ctx context.Context, txn *badger.Txn) (n int, err error) {
	err = eachKey(txn, []byte(indexPrefix), func([]byte) bool {
		n++
		return ctx.Err() == nil
	})
	if err == nil {
		err = ctx.Err()
	}
	return n, err
}
