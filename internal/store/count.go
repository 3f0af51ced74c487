package store

import (
	"context"

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
	n := 0
	err := db.View(func(txn *badger.Txn) (err error) {
		n, err = count(ctx, txn)
		return err
	})
	return n, err
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
