package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// Keys of sandboxes, and of the id that this store's owner goes by with those
// who provide them:
//
//	b/<sandbox>   sandbox record, as JSON
//	m/server      id of the server
const boxPrefix = "b/"

var serverKey = []byte("m/server")

func boxKey(id string) []byte { return []byte(boxPrefix + id) }

// maxBox bounds a sandbox record, in bytes.
const maxBox = maxInline

// Sandboxes returns the records of all sandboxes, oldest first. One that cannot
// be read is left out with a warning.
func (s *Store) Sandboxes(ctx context.Context) ([]messages.SandboxRecord, error) {
	var out []messages.SandboxRecord
	err := s.view(func(txn *badger.Txn) error {
		opt := badger.DefaultIteratorOptions
		opt.PrefetchValues = false
		opt.Prefix = []byte(boxPrefix)
		it := txn.NewIterator(opt)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			var r messages.SandboxRecord
			err := it.Item().Value(func(v []byte) error { return json.Unmarshal(v, &r) })
			if err != nil || string(boxKey(r.ID)) != string(it.Item().Key()) {
				s.log.Warn("sandbox left out of the list", "sandbox", string(it.Item().Key()[len(boxPrefix):]), "error", err)
				continue
			}
			out = append(out, r)
		}
		return nil
	})
	if err != nil {
		return nil, readError("sandboxes", err)
	}
	slices.SortStableFunc(out, func(a, b messages.SandboxRecord) int { return int(a.CreatedAt - b.CreatedAt) })
	return out, nil
}

// SwapSandbox writes a sandbox's record if the one that is there has a status
// of from, or, without from, if there is none. It returns when that is on disk.
// *messages.SandboxTransitionConflict says what was there instead; nothing is
// written then.
func (s *Store) SwapSandbox(ctx context.Context, r messages.SandboxRecord, from ...messages.SandboxStatus) error {
	if r.ID == "" || len(r.ID) > maxID || strings.Contains(r.ID, "/") {
		return errors.New("write sandbox: bad id")
	}
	value, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write sandbox %s: %w", r.ID, err)
	}
	if len(value) > maxBox {
		return fmt.Errorf("write sandbox %s: its record is over %s", r.ID, mebibytes(maxBox))
	}
	return s.alone(ctx, int64(len(value)), func(txn *badger.Txn) error {
		actual := messages.SandboxStatus("")
		item, err := txn.Get(boxKey(r.ID))
		switch {
		case err == nil:
			var old messages.SandboxRecord
			if err := item.Value(func(v []byte) error { return json.Unmarshal(v, &old) }); err != nil {
				return err
			}
			actual = old.Status
		case !errors.Is(err, badger.ErrKeyNotFound):
			return err
		}
		if len(from) == 0 && actual != "" || len(from) > 0 && !slices.Contains(from, actual) {
			return &messages.SandboxTransitionConflict{ID: r.ID, Expected: append([]messages.SandboxStatus{}, from...), Actual: actual}
		}
		return txn.Set(boxKey(r.ID), value)
	})
}

// DropSandbox removes the record of a sandbox of which nothing ever was.
func (s *Store) DropSandbox(ctx context.Context, id string) error {
	return s.alone(ctx, 0, func(txn *badger.Txn) error { return txn.Delete(boxKey(id)) })
}

// ServerID is the name by which the resources that belong to this store are
// told from those of others. It is made when it is first asked for, and kept.
func (s *Store) ServerID(ctx context.Context) (id string, err error) {
	read := func(txn *badger.Txn) error {
		item, err := txn.Get(serverKey)
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) error { id = string(v); return nil })
	}
	err = s.view(read)
	if !errors.Is(err, badger.ErrKeyNotFound) {
		return id, readError("server id", err)
	}
	err = s.alone(ctx, 0, func(txn *badger.Txn) error {
		if err := read(txn); !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
		id = strings.ToLower(rand.Text())
		return txn.Set(serverKey, []byte(id))
	})
	return id, err
}

// alone runs a write of its own between those of the sessions.
func (s *Store) alone(ctx context.Context, size int64, f func(*badger.Txn) error) error {
	answer := make(chan error, 1)
	s.commit.push(&item{
		call: func() error {
			if err := s.space.check(size); err != nil {
				return err
			}
			err := s.db.Update(f)
			var conflict *messages.SandboxTransitionConflict
			if err != nil && !errors.As(err, &conflict) {
				err = writeError(s.where(), err)
			}
			return err
		},
		done: func(err error) { answer <- err },
	})
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
