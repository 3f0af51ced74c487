package store

import (
	"context"
	"errors"
	"fmt"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// Check says what is wrong with what the store has of a session, one line
// each; nothing when all is well.
func (s *Store) Check(ctx context.Context, session string) ([]string, error) {
	f, err := s.examine(ctx, session)
	return f.lines(), err
}

// Repair mends what Check finds and returns what it found. Events that are not
// good, and those behind them, are taken out of the log and kept apart, so
// that the session can be continued behind its last good event. Nobody may
// hold the session in memory meanwhile.
func (s *Store) Repair(ctx context.Context, session string) ([]string, error) {
	type result struct {
		f   findings
		err error
	}
	answer := make(chan result, 1)
	var f findings
	s.commit.push(&item{
		b: Batch{Session: session}, // behind those of its that are under way
		call: func() (err error) {
			if f, err = s.examine(ctx, session); err == nil {
				err = s.commit.repair(session, f)
			}
			return err
		},
		done: func(err error) { answer <- result{f, err} },
	})
	select {
	case r := <-answer:
		return r.f.lines(), r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// findings is what examine saw.
type findings struct {
	damage  *Damage
	good    Head     // the last good event
	end     int64    // position that the log reached, as far as is known
	missing bool     // no row in the list index
	bad     error    // what is wrong with the checkpoints
	extra   [][]byte // rows of the index that are wrong
	record  messages.SessionRecord
}

func (f findings) lines() []string {
	var out []string
	if f.damage != nil {
		out = append(out, fmt.Sprintf("log is damaged at event %d: %s", f.damage.Seq, f.damage.Reason))
	}
	if f.bad != nil {
		out = append(out, f.bad.Error())
	}
	if f.missing {
		out = append(out, "session is missing in the list")
	}
	if n := len(f.extra); n > 0 {
		out = append(out, fmt.Sprintf("session has %d outdated entries in the list", n))
	}
	return out
}

func (s *Store) examine(ctx context.Context, session string) (findings, error) {
	f := findings{missing: true}
	err := s.view(func(txn *badger.Txn) error {
		r, last, err := s.record(txn, session)
		if err != nil {
			return err
		}
		f.record = r
		c := &chain{s: s, session: session}
		err = s.eachEvent(ctx, txn, c, 0, func(messages.Event) error { return nil })
		if err == nil {
			err = c.finish(last)
		}
		if err != nil && !errors.As(err, &f.damage) {
			return err
		}
		f.good = c.head
		f.end = last
		if h, err := lastEvent(txn, session); err == nil {
			f.end = max(f.end, h.Seq)
		}
		_, _, f.bad = s.checkpoints(txn, session)
		want := string(indexKey(r.UpdatedAt, session))
		return eachKey(txn, []byte(indexPrefix), func(key []byte) bool {
			switch id, ok := indexedSession(key); {
			case string(key) == want:
				f.missing = false
			case ok && id == session:
				f.extra = append(f.extra, append([]byte(nil), key...))
			}
			return true
		})
	})
	return f, readError("session "+session, err)
}

// repair runs in the committer's goroutine: nothing else writes meanwhile.
func (c *committer) repair(session string, f findings) error {
	if len(f.lines()) == 0 {
		return nil
	}
	if err := c.s.space.check(maxBatchBytes); err != nil {
		return err
	}
	if f.damage != nil || f.bad != nil {
		if err := c.dropCheckpoints(session); err != nil {
			return writeError(c.s.where(), err)
		}
	}
	if f.damage != nil {
		for more := true; more; {
			var err error
			if more, err = c.moveAway(session, f.good.Seq); err != nil {
				return writeError(c.s.where(), err)
			}
		}
		if err := c.removeUnread(session, f.good.Seq, f.end); err != nil {
			return writeError(c.s.where(), err)
		}
	}
	kept, err := c.s.keepRecord(&f.record)
	if err != nil {
		return err
	}
	err = c.s.tally.unknown(func() error {
		return c.s.db.Update(func(txn *badger.Txn) error {
			for _, k := range f.extra {
				if err := txn.Delete(k); err != nil {
					return err
				}
			}
			if err := txn.Set(indexKey(f.record.UpdatedAt, session), indexValue(&f.record)); err != nil {
				return err
			}
			return txn.Set(recordKey(session), encodeSession(kept, f.good.Seq))
		})
	})
	if err != nil {
		return writeError(c.s.where(), err)
	}
	c.heads[session] = &head{exists: true, Head: f.good, updated: f.record.UpdatedAt}
	return nil
}

// removeUnread deletes events that no iteration shows.
func (c *committer) removeUnread(session string, last, end int64) error {
	for from := last + 1; from <= end; from += groupEvents {
		err := c.s.db.Update(func(txn *badger.Txn) error {
			for seq := from; seq <= end && seq < from+groupEvents; seq++ {
				if err := txn.Delete(eventKey(session, seq)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// moveAway takes events behind a position out of the log, as many as one
// transaction holds, the first ones first: a log that is cut off half way
// through this is as damaged as before.
func (c *committer) moveAway(session string, last int64) (more bool, err error) {
	var p prepared
	prefix := []byte(eventPrefix + session + "/")
	err = c.s.db.View(func(txn *badger.Txn) error {
		opt := badger.DefaultIteratorOptions
		opt.PrefetchValues = false
		opt.Prefix = prefix
		it := txn.NewIterator(opt)
		defer it.Close()
		for it.Seek(eventKey(session, last+1)); it.Valid(); it.Next() {
			key := it.Item().KeyCopy(nil)
			value, err := it.Item().ValueCopy(nil)
			if err != nil {
				return err
			}
			if len(p.rows) > 0 && p.bytes+len(value) > groupBytes || len(p.rows) >= 2*groupEvents {
				more = true
				return nil
			}
			p.set(removedKey(session, seqOf(key)), value)
			p.remove(key)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return more, c.s.db.Update(p.put)
}
