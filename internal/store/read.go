package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// Snapshot is a session as the store has it.
type Snapshot struct {
	Record messages.SessionRecord
	Events []messages.Event // in order; the good ones when the log is damaged
	// Checkpoints are what is before Events, the oldest first. Only Recall has some.
	Checkpoints []Checkpoint
	Started     []string // tool calls that were started and have no result
	Head        Head     // of the last event in Events
	// Damaged says what is wrong with the log, nil for a whole one. Nothing
	// can be appended behind Events before Repair took out the rest.
	Damaged *Damage
}

// Damage is where a log stops making sense.
type Damage struct {
	Session string
	Seq     int64 // of the first event that is not good
	Reason  string
}

func (d *Damage) Error() string {
	return fmt.Sprintf("log of session %s is damaged at event %d: %s", d.Session, d.Seq, d.Reason)
}

// chain follows a log and finds where it breaks.
type chain struct {
	s       *Store
	session string
	started bool // an event, or the position to start behind, was seen
	head    Head
}

// next returns the event of a row, or the damage.
func (c *chain) next(key, value []byte) (messages.Event, error) {
	seq := seqOf(key)
	damage := func(at int64, format string, a ...any) error {
		return &Damage{Session: c.session, Seq: at, Reason: fmt.Sprintf(format, a...)}
	}
	r, err := decodeRecord(value)
	if err != nil {
		return messages.Event{}, damage(seq, "%v", err)
	}
	switch {
	case c.started:
		if seq != c.head.Seq+1 {
			return messages.Event{}, damage(c.head.Seq+1, "it is missing; the next one is %d", seq)
		}
		if r.flags&flagBase != 0 || r.prev != c.head.Hash {
			return messages.Event{}, damage(seq, "it does not follow the event before")
		}
	case r.flags&flagBase != 0: // a fork brings its own start
	case seq != 1:
		return messages.Event{}, damage(1, "it is missing; the first one is %d", seq)
	case r.prev != origin(c.session):
		return messages.Event{}, damage(seq, "it is another session's")
	}
	e, err := r.event(c.session, seq, c.s.Blob)
	if err != nil {
		return e, damage(seq, "%v", err)
	}
	c.started = true
	c.head = Head{Seq: seq, Hash: hashRecord(seq, value)}
	return e, nil
}

// finish looks at the end of a log, which was at last or behind it when the
// session's record was written.
func (c *chain) finish(last int64) error {
	if c.head.Seq < last {
		return &Damage{Session: c.session, Seq: c.head.Seq + 1, Reason: "it is missing, and all behind it"}
	}
	return nil
}

// cancelStride is how many rows a read handles between looks at its context.
const cancelStride = 256

// Load reads a session whole: one range read, and every event's hash checked.
// A damaged log is not an error, see Snapshot.Damaged. The error is
// *messages.SessionNotFound for a session that does not exist.
func (s *Store) Load(ctx context.Context, session string) (Snapshot, error) {
	return s.load(ctx, session, false)
}

// Recall is Load from the newest checkpoint on: Snapshot.Checkpoints are that one
// and those before it, Snapshot.Events what is behind it. What they cover is not
// read, and not checked.
func (s *Store) Recall(ctx context.Context, session string) (Snapshot, error) {
	return s.load(ctx, session, true)
}

func (s *Store) load(ctx context.Context, session string, recall bool) (Snapshot, error) {
	var snap Snapshot
	err := s.view(func(txn *badger.Txn) error {
		var err error
		var last int64
		if snap.Record, last, err = s.record(txn, session); err != nil {
			return err
		}
		fresh, err := isFresh(txn, session, last)
		if err != nil {
			return err
		}
		if fresh {
			return snap.started(txn, session)
		}
		c := &chain{s: s, session: session}
		if recall {
			list, end, err := s.checkpoints(txn, session)
			if err != nil {
				s.log.Warn("checkpoints left out", "session", session, "reason", err)
			}
			if len(list) > 0 {
				snap.Checkpoints, c.started, c.head = list, true, end
			}
		}
		err = s.eachEvent(ctx, txn, c, c.head.Seq, func(e messages.Event) error {
			snap.Events = append(snap.Events, e)
			return nil
		})
		if err == nil {
			err = c.finish(last)
		}
		snap.Head = c.head
		if err != nil && !errors.As(err, &snap.Damaged) {
			return err
		}
		return snap.started(txn, session)
	})
	if err != nil {
		return Snapshot{}, readError("session "+session, err)
	}
	if snap.Damaged != nil {
		s.log.Warn("damaged log", "session", session, "seq", snap.Damaged.Seq, "reason", snap.Damaged.Reason)
	}
	return snap, nil
}

// isFresh tells whether a session has no events, and should have none: one look
// at the end of its log instead of one from each side.
func isFresh(txn *badger.Txn, session string, last int64) (bool, error) {
	if last > 0 {
		return false, nil
	}
	end, err := lastEvent(txn, session)
	return end.Seq == 0, err
}

// started reads which calls have begun and not ended.
func (snap *Snapshot) started(txn *badger.Txn, session string) error {
	prefix := []byte(startedPrefix + session + "/")
	return eachKey(txn, prefix, func(key []byte) bool {
		snap.Started = append(snap.Started, string(key[len(prefix):]))
		return true
	})
}

// Events calls fn for the durable events behind a position, in order, at most
// limit of them (0: all). fn must not wait: the read holds on to old versions
// until it ends. An error of fn ends it and is returned as it is; *Damage ends
// it where the log breaks, *messages.SessionNotFound says there is no such
// session.
func (s *Store) Events(ctx context.Context, session string, after int64, limit int, fn func(messages.Event) error) error {
	var own error // what fn said
	n := 0
	err := s.view(func(txn *badger.Txn) error {
		if _, _, err := s.record(txn, session); err != nil {
			return err
		}
		c := &chain{s: s, session: session}
		if after > 0 {
			if err := c.resume(txn, after); err != nil {
				return err
			}
		}
		return s.eachEvent(ctx, txn, c, max(after, 0), func(e messages.Event) error {
			if own = fn(e); own != nil {
				return own
			}
			if n++; n == limit {
				return errEnough
			}
			return nil
		})
	})
	switch {
	case own != nil:
		return own
	case err == nil, errors.Is(err, errEnough):
		return nil
	}
	return readError("session "+session, err)
}

// errEnough ends an iteration that found what it wanted.
var errEnough = errors.New("enough")

// resume makes a chain go on behind a position that is in the log. Behind one
// that is not (a fork's base, or the end of the log) there is nothing to check
// the next event against.
func (c *chain) resume(txn *badger.Txn, after int64) error {
	item, err := txn.Get(eventKey(c.session, after))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return item.Value(func(v []byte) error {
		if len(v) < checkSize {
			return &Damage{Session: c.session, Seq: after, Reason: errCut.Error()}
		}
		c.started = true
		c.head = Head{Seq: after, Hash: hashRecord(after, v)}
		return nil
	})
}

// eachEvent goes through the events behind a position.
func (s *Store) eachEvent(ctx context.Context, txn *badger.Txn, c *chain, after int64, fn func(messages.Event) error) error {
	opt := badger.DefaultIteratorOptions
	opt.PrefetchValues = false // values are in the tables: prefetching only starts goroutines
	opt.Prefix = []byte(eventPrefix + c.session + "/")
	it := txn.NewIterator(opt)
	defer it.Close()
	n := 0
	for it.Seek(eventKey(c.session, after+1)); it.Valid(); it.Next() {
		if n++; n%cancelStride == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		item := it.Item()
		var e messages.Event
		err := item.Value(func(v []byte) (err error) {
			e, err = c.next(item.Key(), v)
			return err
		})
		if err != nil {
			return err
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	// Badger's iterators end at a block that cannot be read as if nothing came
	// behind it, so the end is looked at from the other side too.
	last, err := lastEvent(txn, c.session)
	if err != nil {
		return err
	}
	if last.Seq < c.head.Seq || last.Seq > max(c.head.Seq, after) {
		return &Damage{Session: c.session, Seq: max(c.head.Seq, after) + 1, Reason: "it cannot be read"}
	}
	return nil
}

// Back reads a log from its end: it calls fn for the durable events below a
// position (0: all), the newest first, until fn returns false. An event is valid
// during the call. What is read is checked like what Load reads, so that only a
// log that is whole to the event read last is read without an error: *Damage
// says that it is not.
//
// The record and the log are of one moment.
func (s *Store) Back(ctx context.Context, session string, below int64, fn func(messages.Event) (more bool)) (messages.SessionRecord, error) {
	var rec messages.SessionRecord
	err := s.view(func(txn *badger.Txn) error {
		var last int64
		var err error
		if rec, last, err = s.record(txn, session); err != nil {
			return err
		}
		it, prefix := backwards(txn, eventPrefix, session, below)
		defer it.Close()
		if below == 0 && (!it.ValidForPrefix(prefix) || seqOf(it.Item().Key()) < last) && last > 0 {
			return &Damage{Session: session, Seq: last, Reason: "it is missing"}
		}
		var newer record // the one that holds the hash of the next
		var at int64     // its position; 0 is none
		if below > 0 {
			item, err := txn.Get(eventKey(session, below))
			if err == nil {
				err = item.Value(func(v []byte) (err error) {
					newer, err = decodeRecord(v)
					return err
				})
			}
			if err != nil {
				return &Damage{Session: session, Seq: below, Reason: err.Error()}
			}
			at = below
		}
		for n := 1; it.ValidForPrefix(prefix); it.Next() {
			if n++; n%cancelStride == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			seq, more := seqOf(it.Item().Key()), true
			err := it.Item().Value(func(v []byte) error {
				r, err := decodeRecord(v)
				switch {
				case err != nil:
					return &Damage{Session: session, Seq: seq, Reason: err.Error()}
				case at > 0 && (newer.flags&flagBase != 0 || seq != at-1 || newer.prev != hashRecord(seq, v)):
					return &Damage{Session: session, Seq: at, Reason: "it does not follow the event before"}
				}
				e, err := r.borrowed(session, seq, s.Blob)
				if err != nil {
					return &Damage{Session: session, Seq: seq, Reason: err.Error()}
				}
				newer, at = r, seq
				more = fn(e)
				return nil
			})
			if err != nil || !more {
				return err
			}
		}
		if at > 1 && newer.flags&flagBase == 0 || at == 1 && newer.flags&flagBase == 0 && newer.prev != origin(session) {
			return &Damage{Session: session, Seq: 1, Reason: "the log does not begin where it should"}
		}
		return nil
	})
	return rec, readError("session "+session, err)
}

// Mention returns the position of the newest event below a position (0: all)
// whose record has a text in it. Data that is kept in a blob is not looked into.
func (s *Store) Mention(ctx context.Context, session, text string, below int64) (seq int64, err error) {
	want := []byte(text)
	err = s.view(func(txn *badger.Txn) error {
		it, prefix := backwards(txn, eventPrefix, session, below)
		defer it.Close()
		for n := 1; it.ValidForPrefix(prefix); it.Next() {
			if n++; n%cancelStride == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			err := it.Item().Value(func(v []byte) error {
				if bytes.Contains(v, want) {
					seq = seqOf(it.Item().Key())
				}
				return nil
			})
			if err != nil || seq > 0 {
				return err
			}
		}
		return nil
	})
	return seq, readError("session "+session, err)
}

// backwards is an iterator at the newest of a session's rows of one kind below a
// position, 0 for the newest of all, and the prefix of all of them.
func backwards(txn *badger.Txn, kind, session string, below int64) (*badger.Iterator, []byte) {
	prefix := []byte(kind + session + "/")
	opt := badger.DefaultIteratorOptions
	opt.PrefetchValues = false
	opt.Reverse = true
	it := txn.NewIterator(opt)
	from := ^uint64(0)
	if below > 0 {
		from = uint64(below) - 1
	}
	// Reverse iteration starts at or below the key it seeks.
	it.Seek(binary.BigEndian.AppendUint64(prefix[:len(prefix):len(prefix)], from))
	return it, prefix
}

// Record returns a session's record, or *messages.SessionNotFound.
func (s *Store) Record(session string) (messages.SessionRecord, error) {
	var r messages.SessionRecord
	err := s.view(func(txn *badger.Txn) (err error) {
		r, _, err = s.record(txn, session)
		return err
	})
	return r, readError("session "+session, err)
}

// record reads a session's record and the position of its last event when that
// was written.
func (s *Store) record(txn *badger.Txn, session string) (r messages.SessionRecord, last int64, err error) {
	if !validSession(session) {
		return r, 0, &messages.SessionNotFound{SessionID: session}
	}
	item, err := txn.Get(recordKey(session))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return r, 0, &messages.SessionNotFound{SessionID: session}
	}
	if err == nil {
		err = item.Value(func(v []byte) (err error) {
			r, last, err = decodeSession(v, s.Blob)
			return err
		})
	}
	return r, last, err
}

// List returns session records, newest first: those of a host directory and
// with a text in their title when the filter says so, only ones older than
// Before, at most Limit. Upper and lower case are one in titles, and so are
// letters with and without accents. A record that cannot be read is left out
// with a warning. An unknown Before is *messages.SessionNotFound.
//
// What is chosen by directory or title costs a look at a small row for each
// session up to the last one that is answered with.
func (s *Store) List(ctx context.Context, f messages.ListSessions) ([]messages.SessionRecord, error) {
	var out []messages.SessionRecord
	var chosen []string // not yet in a stretch
	choose := newFilter(f)
	bare := 0
	err := s.view(func(txn *badger.Txn) error {
		var under stretches
		defer under.Wait() // whatever happens: they read txn
		start := []byte(indexPrefix)
		if f.Before != "" {
			at := f.BeforeTime
			if at == 0 {
				r, _, err := s.record(txn, f.Before)
				if err != nil {
					return err
				}
				at = r.UpdatedAt
			}
			start = append(indexKey(at, f.Before), 0) // the next key there can be
		}
		opt := badger.DefaultIteratorOptions
		opt.PrefetchValues = false
		opt.Prefix = []byte(indexPrefix)
		it := txn.NewIterator(opt)
		defer it.Close()
		n := 0
		for it.Seek(start); it.Valid(); it.Next() {
			if n++; n%cancelStride == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			known, takes := true, true
			if !choose.none() {
				err := it.Item().Value(func(v []byte) error {
					var folder, title []byte
					folder, title, known = decodeIndex(v)
					takes = !known || choose.takes(folder, title)
					return nil
				})
				if err != nil {
					return err
				}
			}
			if !takes {
				continue
			}
			id, ok := indexedSession(it.Item().Key())
			if !ok {
				continue
			}
			if !known {
				bare++
				r, _, err := s.record(txn, id)
				if err == nil && !choose.takes([]byte(r.HostDir), []byte(fold(r.Title))) {
					continue
				}
			}
			chosen = append(chosen, id)
			full := len(out)+under.sessions+len(chosen) == f.Limit
			if len(chosen) == listStretch || full {
				s.readStretch(txn, &under, chosen)
				chosen = nil
			}
			if full {
				out = s.decoded(&under, out)
			}
			if len(out) == f.Limit && f.Limit > 0 {
				return nil
			}
		}
		s.readStretch(txn, &under, chosen)
		out = s.decoded(&under, out)
		return nil
	})
	if err != nil {
		return nil, readError("session list", err)
	}
	if bare > 0 && s.filling.CompareAndSwap(false, true) {
		s.fillIndex([]byte(indexPrefix))
	}
	return out, nil
}

// listStretch is how many records are read and decoded together: enough to be
// worth a goroutine, half a millisecond.
const listStretch = 50

// stretches are the records of a list that are read and decoded, in order, while
// the rows behind them are looked at: that is as much work, and there is a second
// processor for it.
type stretches struct {
	sync.WaitGroup
	all      []stretch
	sessions int
}

type stretch struct {
	ids     []string
	records []messages.SessionRecord
	errs    []error
}

// readStretch begins to read records. A transaction that only reads may be read
// by several goroutines.
func (s *Store) readStretch(txn *badger.Txn, under *stretches, ids []string) {
	st := stretch{ids, make([]messages.SessionRecord, len(ids)), make([]error, len(ids))}
	under.all = append(under.all, st)
	under.sessions += len(ids)
	under.Go(func() {
		for i, id := range st.ids {
			st.records[i], _, st.errs[i] = s.record(txn, id)
		}
	})
}

// decoded waits for the stretches and adds their records to out. One that cannot
// be read is left out with a warning.
func (s *Store) decoded(under *stretches, out []messages.SessionRecord) []messages.SessionRecord {
	under.Wait()
	for _, st := range under.all {
		for i, err := range st.errs {
			if err != nil {
				s.log.Warn("session left out of the list", "session", st.ids[i], "error", firstLine(err.Error()))
				continue
			}
			out = append(out, st.records[i])
		}
	}
	under.all, under.sessions = nil, 0
	return out
}

// Prompt tells which session admitted a prompt id, and the hash of what was
// admitted under it.
func (s *Store) Prompt(id string) (session, hash string, ok bool, err error) {
	if id == "" || len(id) > maxID {
		return "", "", false, nil
	}
	err = s.view(func(txn *badger.Txn) error {
		item, err := txn.Get(promptKey(id))
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) (err error) {
			session, hash, err = decodePrompt(v)
			ok = err == nil
			return err
		})
	})
	return session, hash, ok, readError("prompt id", err)
}

// eachKey calls fn for the keys with a prefix until it returns false. A key is
// valid during the call only.
func eachKey(txn *badger.Txn, prefix []byte, fn func(key []byte) bool) error {
	opt := badger.DefaultIteratorOptions
	opt.PrefetchValues = false
	opt.Prefix = prefix
	it := txn.NewIterator(opt)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		if !fn(it.Item().Key()) {
			return nil
		}
	}
	return nil
}

// readError says what was being read, unless the error speaks for itself.
func readError(what string, err error) error {
	var missing *messages.SessionNotFound
	var damage *Damage
	var refused *messages.Refused
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing), errors.As(err, &damage), errors.As(err, &refused),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, badger.ErrDBClosed):
		return &messages.Refused{Name: messages.RefusedShutdown, Message: "session store is closed"}
	}
	return fmt.Errorf("read %s: %s", what, firstLine(err.Error()))
}
