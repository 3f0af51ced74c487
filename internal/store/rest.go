package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// This file closes the database while nobody needs it, and opens it for the next
// who does. An open one costs a process that does nothing: its compactors look
// for work 40 times a second, for ever, and what it took for its write buffer,
// the log beside it and its cache it never gives back.

const (
	// restAfter is how long nobody has needed the database when it is closed: who
	// thinks about an answer for a while need not wait for it to open. Closing and
	// opening cost as much processor time as its compactors in five seconds, and
	// may leave a small table to be compacted.
	restAfter = 30 * time.Second
	// closeLimit is how long closing may take: long for a table of 16 MiB, short
	// for a process whose folder was removed, and that nobody can reach any more.
	closeLimit = 10 * time.Second
	// tryAgain is how long nobody tries again when the database could not be opened.
	// The pause doubles up to tryAgainMost.
	tryAgain     = time.Second
	tryAgainMost = time.Minute
	// flattenWorkers is how many goroutines compact behind a deletion. One:
	// nobody waits for it.
	flattenWorkers = 1
)

// take returns the database, open until give.
func (s *Store) take() (*badger.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.wake(); err != nil {
		return nil, err
	}
	s.reads++
	return s.db, nil
}

func (s *Store) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needed = time.Now()
	s.readEnds()
}

// peek returns the database, open until unpeek, for who does not need it: nil if
// it is closed. It says when somebody needed it last.
func (s *Store) peek() (*badger.DB, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.db == nil {
		return nil, time.Time{}
	}
	s.reads++
	return s.db, s.needed
}

func (s *Store) unpeek() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readEnds()
}

// readEnds is the end of a read. It needs mu.
func (s *Store) readEnds() {
	if s.reads--; s.reads == 0 {
		s.unread.Broadcast()
	}
}

// view runs a read. It fails with badger.ErrDBClosed after Close.
func (s *Store) view(fn func(*badger.Txn) error) error {
	db, err := s.take()
	if err != nil {
		return err
	}
	defer s.give()
	return db.View(fn)
}

// wake opens the database, if it is not open, for who needs it now. It needs mu.
func (s *Store) wake() error {
	if s.closed {
		return badger.ErrDBClosed
	}
	s.needed = time.Now()
	if s.db != nil {
		return nil
	}
	if s.closing != nil && !s.closing.ended(0) {
		return s.closesLate() // its folder is still locked
	}
	if err := s.isThere(); err != nil {
		return err
	}
	if left := s.failure.pause - time.Since(s.failure.at); left > 0 {
		return s.failure.err
	}
	// Badger writes through memory maps when it opens, much less than the reserve:
	// as much room as for Open is enough.
	if err := s.space.check(0); err != nil {
		return err
	}
	db, err := openBadger(badgerOptions(s.badgerDir(), s.log))
	if err != nil {
		refused := &messages.Refused{Name: messages.RefusedStore, Message: s.openError(err).Error()}
		s.failure = failure{refused, time.Now(), min(max(2*s.failure.pause, tryAgain), tryAgainMost)}
		return refused
	}
	s.db, s.closing, s.failure = db, nil, failure{}
	s.watch(s.restAfter)
	return nil
}

// isThere looks whether the closed database is still where it was. Badger would
// make an empty one in its place.
func (s *Store) isThere() error {
	dir := s.badgerDir()
	folder, err := os.Stat(dir)
	if err == nil && os.SameFile(folder, s.folder) {
		var manifest os.FileInfo
		if manifest, err = os.Stat(filepath.Join(dir, manifestName)); err == nil && manifest.Mode().IsRegular() {
			return nil
		}
	}
	why := "it was replaced"
	if err != nil {
		why = causeOf(err)
	}
	return &messages.Refused{Name: messages.RefusedStore,
		Message: fmt.Sprintf("session store %s is not what it was: %s", dir, why)}
}

// failure is that the database could not be opened, and how long nobody tries
// again. Each attempt costs memory, goroutines and file handles that Badger does
// not give back: some MB where it got far.
type failure struct {
	err   error
	at    time.Time
	pause time.Duration
}

// watch looks in a while whether the database is still needed. It needs mu.
func (s *Store) watch(in time.Duration) {
	if s.dir == "" {
		return
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(in, s.lull)
		return
	}
	s.timer.Reset(in)
}

// lull closes the database when nobody has needed it for a while. The next read or
// write opens it again: that one, and those that come meanwhile, wait for some tens
// of milliseconds. Nothing is closed while somebody reads, while rows of deleted
// sessions are being removed, or when it could be impossible to open it again.
func (s *Store) lull() {
	s.mu.Lock()
	if s.closed || s.db == nil { // who opens it watches again
		s.mu.Unlock()
		return
	}
	left := s.restAfter - time.Since(s.needed)
	if s.reads > 0 {
		left = s.restAfter
	}
	if left > 0 {
		s.watch(left)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	if !s.tidy() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.watch(s.restAfter)
		}
		return
	}
	rested, err := s.shut()
	if err != nil {
		s.log.Warn("session store does not come to rest", "error", firstLine(err.Error()))
	}
	if rested && s.rested != nil {
		s.rested()
	}
}

// tidy does what is better done when nobody waits: it removes what a crash left half
// written, and gives back the space of deleted sessions, which may take seconds. It
// tells whether still nobody waits.
func (s *Store) tidy() bool {
	s.sweep.Do(s.blobs.sweep)
	if !s.collect() {
		return false
	}
	if s.commit.takeDeleted() {
		s.flatten()
	}
	return true
}

// flatten gives back the space of deleted sessions.
func (s *Store) flatten() {
	db, err := s.take()
	if err == nil {
		defer s.give()
		err = db.Flatten(flattenWorkers)
	}
	if err != nil {
		s.log.Warn("compact session store", "error", firstLine(err.Error()))
	}
}

// shut closes the database between two writes, and tells whether it did.
func (s *Store) shut() (rested bool, err error) {
	answer := make(chan error, 1)
	s.commit.push(&item{
		call:  func() (err error) { rested, err = s.rest(); return err },
		rests: true,
		done:  func(err error) { answer <- err },
	})
	err = <-answer
	return rested, err
}

// rest runs in the committer's goroutine: nothing is written meanwhile.
func (s *Store) rest() (rested bool, err error) {
	s.mu.Lock() // who comes to read waits here
	defer s.mu.Unlock()
	switch {
	case s.closing != nil && !s.closing.ended(0):
		return false, s.closesLate()
	case s.db == nil:
		return false, nil
	case s.reads > 0, len(s.commit.deletions) > 0,
		s.space.check(memTableSize+valueLogSize) != nil, !takesFiles(s.badgerDir()):
		s.watch(s.restAfter)
		return false, nil
	}
	err = s.db.View(func(txn *badger.Txn) (err error) {
		s.sessions, err = count(context.Background(), txn)
		return err
	})
	if err != nil {
		s.watch(s.restAfter)
		return false, readError("number of sessions", err)
	}
	s.commit.heads = make(map[string]*head)
	err = s.shutDatabase()
	return err == nil, err
}

// shutDatabase closes the database. It gives up waiting after a while: Badger
// tries for ever to write its last table. What was acknowledged is in its log
// already. It needs mu.
func (s *Store) shutDatabase() error {
	if s.db != nil {
		s.tables, s.logs = s.db.Size()
		s.db, s.closing = nil, beginClosing(s.db)
	}
	switch {
	case s.closing == nil:
		return nil
	case !s.closing.ended(s.closeWithin):
		return s.closesLate()
	case s.closing.err != nil:
		return fmt.Errorf("close session store: %s", firstLine(s.closing.err.Error()))
	}
	return nil
}

func (s *Store) closesLate() error {
	return &messages.Refused{Name: messages.RefusedStore,
		Message: fmt.Sprintf("close session store: its folder %s takes no files any more", s.dir)}
}

// closing is a database that is being closed, or was.
type closing struct {
	done chan struct{} // closed when it is
	err  error         // then
}

func beginClosing(db *badger.DB) *closing {
	c := &closing{done: make(chan struct{})}
	go func() {
		c.err = db.Close()
		close(c.done)
	}()
	return c
}

// ended waits for a while until the database is closed.
func (c *closing) ended(within time.Duration) bool {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-c.done:
		return true
	default:
	}
	select {
	case <-c.done:
		return true
	case <-late.C:
		return false
	}
}

// takesFiles looks whether a folder is there and can be written to. A database
// whose folder was moved away, or whose disk became read-only, still reads as long
// as it is open, and closing it would not end.
func takesFiles(dir string) bool {
	path := filepath.Join(dir, "rest.tmp") // one name: a crash leaves one file at most
	return os.WriteFile(path, []byte{0}, 0o600) == nil && os.Remove(path) == nil
}
