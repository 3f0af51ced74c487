package store

import (
	"context"

	"github.com/dgraph-io/badger/v4"
)

// Count is the number of sessions.
func (s *Store) Count(ctx context.Context) (int, error) {
	n := 0
	err := s.view(func(txn *badger.Txn) error {
		return eachKey(txn, []byte(indexPrefix), func([]byte) bool {
			n++
			return ctx.Err() == nil
		})
	})
	if err == nil {
		err = ctx.Err()
	}
	return n, err
}
