package store

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode"
	"unicode/utf8"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/text/unicode/norm"
)

// A row of the list index says what sessions are chosen by, so that a search
// reads one range of small rows and only the records that it answers with:
//
//	version  1 byte
//	folder   a uvarint length and the host directory
//	title    the rest, folded
//
// It is written with the record, in the same transaction. Rows of older builds
// are empty: their sessions are looked at one by one until fillIndex has written
// what is missing. Older builds do not look into the rows.
const indexVersion = 1

func indexValue(r *messages.SessionRecord) []byte {
	b := append(make([]byte, 0, 4+len(r.HostDir)+len(r.Title)), indexVersion)
	b = binary.AppendUvarint(b, uint64(len(r.HostDir)))
	return append(append(b, r.HostDir...), fold(r.Title)...)
}

// decodeIndex reads the value of an index row, whose bytes it points into. ok
// is false for one that says nothing: of an older build, or a newer one.
func decodeIndex(v []byte) (folder, title []byte, ok bool) {
	if len(v) < 2 || v[0] != indexVersion {
		return nil, nil, false
	}
	n, w := binary.Uvarint(v[1:])
	rest := v[1+max(w, 0):]
	if w <= 0 || n > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:n], rest[n:], true
}

// fold brings text into the form in which titles are compared: upper and lower
// case are one, and so are letters with and without accents, however they were
// typed.
func fold(s string) string {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] < utf8.RuneSelf
	}
	if plain {
		return strings.ToLower(s)
	}
	var b strings.Builder
	for _, r := range norm.NFKD.String(s) {
		if !unicode.Is(unicode.Mn, r) {
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// filter is what a list is narrowed to.
type filter struct {
	folder []byte // nil: all
	search []byte // folded; nil: any
}

func newFilter(f messages.ListSessions) (c filter) {
	if f.HostDir != "" {
		c.folder = []byte(f.HostDir)
	}
	if f.Search != "" {
		c.search = []byte(fold(f.Search))
	}
	return c
}

func (c filter) none() bool { return c.folder == nil && c.search == nil }

func (c filter) takes(folder, title []byte) bool {
	return (c.folder == nil || bytes.Equal(c.folder, folder)) && (c.search == nil || bytes.Contains(title, c.search))
}

// fillRows is how many rows of the index are written at a time: what others
// wait for meanwhile. fillBytes is where less than that is enough: the longest
// folders and titles would be more than one transaction holds.
const (
	fillRows  = 500
	fillBytes = 1 << 20
)

// fillIndex writes what rows of an older build do not say, in the committer's
// goroutine, some at a time so that sessions are not held up. It is asked for by
// a list that found such rows, and goes on from where it was cut off.
func (s *Store) fillIndex(from []byte) {
	s.commit.push(&item{
		call: func() error {
			next, err := s.fillSome(from)
			if err == nil && next != nil {
				from = next
				return nil
			}
			from = nil
			return err
		},
		done: func(err error) {
			if err == nil && from != nil {
				s.fillIndex(from)
				return
			}
			if err != nil {
				s.log.Warn("fill the list of sessions", "cause", causeOf(err))
			}
			s.filling.Store(false)
		},
	})
}

func (s *Store) fillSome(from []byte) (next []byte, err error) {
	if err := s.space.check(fillBytes); err != nil {
		return nil, err
	}
	var p prepared
	err = s.db.View(func(txn *badger.Txn) error {
		opt := badger.DefaultIteratorOptions
		opt.PrefetchValues = false
		opt.Prefix = []byte(indexPrefix)
		it := txn.NewIterator(opt)
		defer it.Close()
		seen := 0
		for it.Seek(from); it.Valid(); it.Next() {
			if seen++; seen > 10*fillRows || len(p.rows) == fillRows || p.bytes > fillBytes {
				next = it.Item().KeyCopy(nil)
				return nil
			}
			id, ok := indexedSession(it.Item().Key())
			if !ok {
				continue
			}
			var known bool
			err := it.Item().Value(func(v []byte) error {
				_, _, known = decodeIndex(v)
				return nil
			})
			if err != nil {
				return err
			}
			if known {
				continue
			}
			// A row that is not its session's is for Check to find.
			if r, _, err := s.record(txn, id); err == nil && bytes.Equal(indexKey(r.UpdatedAt, id), it.Item().Key()) {
				p.set(it.Item().KeyCopy(nil), indexValue(&r))
			}
		}
		return nil
	})
	if err != nil || len(p.rows) == 0 {
		return next, err
	}
	return next, s.db.Update(p.put)
}
