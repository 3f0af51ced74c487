package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// This file removes the blobs that nothing names any more. Content may be named
// by many: events, removed events, checkpoints, records, and texts in blobs, as
// of forks. So when sessions were deleted, and then nobody needed the database
// for a while, everything is looked through, and what nobody names goes.
//
// What may be a name counts as one, whatever it stands in: rows that are damaged,
// or that only a newer build understands, keep their blobs. What names a blob and
// is not committed yet is not seen, so what was put lately stays, and nobody takes
// names from one session to another without saying so. Who needs the database ends
// it; another try is made at the next opportunity. A crash may come at any time:
// what is gone was named by nobody.

// Keys of what is known of the blobs.
//
//	m/tidy   there, if no deletion came to its end since blobs were collected
//	m/born   when the database was made, in milliseconds since 1970 (8 bytes);
//	         not there if an older build made it
var (
	tidyKey = []byte("m/tidy")
	bornKey = []byte("m/born")
)

// youth is how long a blob stays at least that was put by this process, named or
// not. From there to the commit of what names it takes some milliseconds, or as
// long as the disk is behind.
const youth = 10 * time.Minute

// blobName is the SHA-256 of a blob's content.
type blobName = [sha256.Size]byte

// naming is what keeps blobs that no committed row names.
type naming struct {
	mu    sync.Mutex // guards what follows; held while a blob is removed
	holds int
	later time.Time // nothing is collected before
	// Names that were put since turned, and in the period before. Two, so that
	// time that passes while the process is stopped makes nothing old.
	young, older map[blobName]struct{}
	turned       time.Time
}

// put notes a name. It comes before the look whether the blob is there.
func (n *naming) put(name blobName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.turn()
	n.young[name] = struct{}{}
}

// turn forgets what is old. It needs mu.
func (n *naming) turn() {
	if n.young == nil || time.Since(n.turned) >= youth {
		n.older, n.young, n.turned = n.young, make(map[blobName]struct{}), time.Now()
	}
}

// HoldBlobs keeps every blob that a session names now until release is called,
// once: for who reads names in one session and writes them into another, since the
// first may be deleted meanwhile.
func (s *Store) HoldBlobs() (release func()) {
	s.naming.mu.Lock()
	defer s.naming.mu.Unlock()
	s.naming.holds++
	return func() {
		s.naming.mu.Lock()
		defer s.naming.mu.Unlock()
		s.naming.holds--
	}
}

// snapshot is the database at a moment at which nobody holds blobs; nil if
// somebody does, or if it is too early.
func (n *naming) snapshot(db *badger.DB) *badger.Txn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holds > 0 || time.Now().Before(n.later) {
		return nil
	}
	n.turn()
	return db.NewTransaction(false)
}

// unlessYoung calls remove for a blob, unless it was put lately.
func (n *naming) unlessYoung(name blobName, remove func() error) (young bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, names := range [...]map[blobName]struct{}{n.young, n.older} {
		if _, young := names[name]; young {
			return true, nil
		}
	}
	return false, remove()
}

// wait puts off what could not be done now, and would need as long again.
func (n *naming) wait() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.later = time.Now().Add(youth)
}

// errAltered is that a blob's content is not what its name says.
var errAltered = errors.New("content was changed")

// errNeeded ends a collection because somebody needs the database.
var errNeeded = errors.New("the database is needed")

// collection is one look for blobs that nothing names.
type collection struct {
	s     *Store
	db    *badger.DB
	since time.Time // when somebody needed the database last
	// goOn returns errNeeded when somebody needed it since; tests go on.
	goOn  func() error
	ended int       // deletions before
	born  time.Time // older blobs are another database's
	txn   *badger.Txn
	left  map[blobName]struct{} // blobs that nothing was seen to name
	texts []blobName            // named, and to be looked into
}

// collect removes blobs that nothing names, if sessions were deleted. It returns
// false when somebody needed the database meanwhile.
func (s *Store) collect() bool {
	c, err := s.beginCollection()
	if c != nil {
		defer c.end()
		if err = c.mark(); err == nil {
			err = c.sweep()
		}
	}
	var refused *messages.Refused
	switch {
	case errors.Is(err, errNeeded):
		return false
	case errors.As(err, &refused): // it is being closed, or its disk is full
		s.naming.wait() // not to look through everything again and again until there is room
		return false
	case err != nil:
		s.naming.wait()
		s.log.Warn("blobs that no session names any more are kept", "error", firstLine(err.Error()))
	}
	return true
}

// beginCollection returns nil if there is nothing to do, or nothing may be done
// now. end is to be called for what it returns.
func (s *Store) beginCollection() (*collection, error) {
	if s.files == nil {
		return nil, nil
	}
	c := &collection{s: s, left: make(map[blobName]struct{})}
	c.goOn = c.needed
	if c.db, c.since = s.peek(); c.db == nil {
		return nil, nil
	}
	c.ended = s.commit.deletionsEnded()
	due, err := c.look()
	if err == nil && due {
		c.txn = s.naming.snapshot(c.db)
	}
	if c.txn == nil {
		s.unpeek()
		return nil, err
	}
	return c, nil
}

func (c *collection) end() {
	c.txn.Discard()
	c.s.unpeek()
}

// look finds out whether there is something to do, and what could go.
func (c *collection) look() (due bool, err error) {
	err = c.db.View(func(txn *badger.Txn) error {
		_, err := txn.Get(tidyKey)
		if !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
		due = true
		born, err := txn.Get(bornKey)
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return born.Value(func(v []byte) error {
			if len(v) != 8 {
				return errors.New("birth of the database has another form")
			}
			c.born = time.UnixMilli(int64(binary.BigEndian.Uint64(v)))
			return nil
		})
	})
	if err != nil || !due {
		return false, err
	}
	if other, err := c.s.besideAnother(); other || err != nil {
		return false, err
	}
	err = c.s.files.each(func(name blobName) { c.left[name] = struct{}{} })
	return len(c.left) > 0, err
}

// besideAnother tells whether another database is kept beside this one: a damaged
// one, or one that somebody moved away to put a copy in its place. Its rows name
// blobs too, and it may come back.
func (s *Store) besideAnother() (bool, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return false, err
	}
	own := filepath.Base(s.badgerDir())
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), damagedName) {
			return true, nil
		}
		if e.Name() == own {
			continue
		}
		if _, err := os.Stat(filepath.Join(s.dir, e.Name(), manifestName)); err == nil {
			return true, nil
		}
	}
	return false, nil
}

// needed tells whether somebody needed the database since the beginning.
func (c *collection) needed() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.closed || !c.s.needed.Equal(c.since) {
		return errNeeded
	}
	return nil
}

// mark finds out what is named.
func (c *collection) mark() error {
	opt := badger.DefaultIteratorOptions
	opt.PrefetchValues = false
	it := c.txn.NewIterator(opt)
	defer it.Close()
	n := 0
	for it.Rewind(); it.Valid() && len(c.left) > 0; it.Next() {
		if n++; n%cancelStride == 0 {
			if err := c.goOn(); err != nil {
				return err
			}
		}
		err := it.Item().Value(func(v []byte) error {
			c.markRow(v)
			return nil
		})
		if err != nil {
			return err
		}
	}
	for len(c.texts) > 0 && len(c.left) > 0 {
		if err := c.goOn(); err != nil {
			return err
		}
		text, err := c.s.files.text(c.texts[0])
		if err != nil {
			return err
		}
		c.texts = c.texts[1:]
		eachName(text, c.markName)
	}
	if len(c.left) > 0 {
		// Badger's iterators leave out what is in a block that cannot be read.
		if err := verify(c.db); err != nil {
			return err
		}
	}
	return c.goOn()
}

// markRow marks what a row may name: with the last bytes of its value, in front
// of a checksum or without one, or in a text.
func (c *collection) markRow(v []byte) {
	for _, behind := range [...]int{0, checkSize} {
		if end := len(v) - behind; end >= sha256.Size {
			c.markName(blobName(v[end-sha256.Size : end]))
		}
	}
	eachName(v, c.markName)
}

func (c *collection) markName(name blobName) {
	if _, ok := c.left[name]; ok {
		delete(c.left, name)
		c.texts = append(c.texts, name)
	}
}

// sweep removes what is left.
func (c *collection) sweep() error {
	more := false
	for name := range c.left {
		if err := c.goOn(); err != nil {
			return err
		}
		young, err := c.s.naming.unlessYoung(name, func() error { return c.s.files.remove(name, c.born) })
		if err != nil {
			return err
		}
		more = more || young
	}
	if more { // they may be old the next time
		c.s.naming.wait()
		return nil
	}
	answer := make(chan error, 1)
	c.s.commit.push(&item{
		rests: true, // it is open: end comes later
		call: func() error {
			if c.s.commit.deletionsEnded() != c.ended {
				return errNeeded // what it left was not looked for
			}
			if err := c.s.space.check(rowOverhead); err != nil {
				return err
			}
			return c.db.Update(func(txn *badger.Txn) error { return txn.Set(tidyKey, nil) })
		},
		done: func(err error) { answer <- err },
	})
	return <-answer
}

// verify reads every block of every table.
func verify(db *badger.DB) (err error) {
	defer func() {
		if p := recover(); p != nil { // Badger's answer to a block that it cannot read
			err = fmt.Errorf("%w: %v", errCheck, p)
		}
	}()
	return db.VerifyChecksum()
}

// hexName is the length of a name in a text.
const hexName = 2 * sha256.Size

// eachName calls fn for what may be names in a text: 64 hexadecimal digits in
// lower case between other characters.
func eachName(text []byte, fn func(blobName)) {
	for i := 0; i+hexName <= len(text); {
		// From behind: few places of a text are looked at.
		j := i + hexName
		for j > i && isHex(text[j-1]) {
			j--
		}
		if j > i {
			i = j
			continue
		}
		end := i + hexName
		for end < len(text) && isHex(text[end]) {
			end++
		}
		if end == i+hexName {
			var name blobName
			if _, err := hex.Decode(name[:], text[i:end]); err == nil {
				fn(name)
			}
		}
		i = end
	}
}

func isHex(b byte) bool { return '0' <= b && b <= '9' || 'a' <= b && b <= 'f' }

// each calls fn for the names of all blobs.
func (b *blobFolder) each(fn func(blobName)) error {
	entries, err := os.ReadDir(b.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if len(e.Name()) == hexName {
			eachName([]byte(e.Name()), fn)
		}
	}
	return nil
}

// text is the content of a blob that may name others: it is a JSON array or
// object. It is empty for others, and for a blob that is not there. What an altered
// one named cannot be known, which is an error.
func (b *blobFolder) text(name blobName) ([]byte, error) {
	path := filepath.Join(b.dir, hex.EncodeToString(name[:]))
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var first [1]byte
	if n, _ := f.Read(first[:]); n == 0 || first[0] != '{' && first[0] != '[' {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err == nil && sha256.Sum256(text) != name {
		err = fmt.Errorf("blob %x: %w", name, errAltered)
	}
	return text, err
}

// remove removes a blob that is not older than the database.
func (b *blobFolder) remove(name blobName, born time.Time) error {
	path := filepath.Join(b.dir, hex.EncodeToString(name[:]))
	fi, err := os.Lstat(path)
	if err == nil && fi.ModTime().Before(born) {
		return nil
	}
	if err == nil {
		err = os.Remove(path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
