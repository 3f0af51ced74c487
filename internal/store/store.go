// Package store keeps the logs of all sessions on disk, in one Badger
// database with large values in files beside it.
//
// What it promises:
//
//   - Order: the batches of one session are committed in the order in which
//     they were given to Append, and their done functions are called in that
//     order. Nothing is promised between sessions.
//   - Loss: a batch whose done function was called with nil survives the end
//     of the process, also by SIGKILL. A batch is there whole or not at all,
//     and a log never has a gap: events that do not follow the last one are
//     refused.
//   - Blocking: Append never waits for a disk. One goroutine commits what all
//     sessions append, many batches in one transaction, because each
//     transaction costs a sync. Reads run in the goroutine of the caller and
//     do not hold up commits.
//   - Damage: every event holds the hash of the one before it, so a torn or
//     altered log is told from a whole one when it is read. What can still be
//     read is returned with a description of the damage.
//   - Checkpoints: what they cover is not read, so damage there is for Check to
//     find. One that is not of the log as it is counts for nothing, and the log is
//     read instead.
//   - Close: whoever opened the store closes it, once, after the last Append;
//     what was queued is committed first.
//
// A session's keys are written for its actor only. The store holds at most one
// process at a time.
package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Errors of Open and Append that callers tell apart.
var (
	// ErrInUse means another process has the store open.
	ErrInUse = errors.New("session store in use by another process")
	// ErrNewer means a newer build wrote the store.
	ErrNewer = errors.New("session store written by a newer version")
	// ErrDamaged means the database files cannot be opened.
	ErrDamaged = errors.New("session store damaged")
	// ErrDuplicatePrompt means the same prompt was already admitted: success
	// for whoever sent it, and nothing was written.
	ErrDuplicatePrompt = errors.New("prompt already admitted")
	// ErrGap means the events do not follow the last one of their log: the
	// writer's picture of the session is not what the log says.
	ErrGap = errors.New("events do not follow the session's log")
)

// InMemory is the Dir of a store that leaves nothing behind.
const InMemory = ":memory:"

// DefaultMinFree is the free space below which nothing is written. A full disk
// ends the process (the database writes through memory maps), so the reserve
// covers what one table flush and the compaction behind it may need.
const DefaultMinFree = 64 << 20

// schemaVersion is what this build writes. An older store is changed by
// Migrate, a newer one is refused.
const schemaVersion = 1

// Sizes of the database. They bound what is kept in memory and what the
// preallocated files take while the store is open.
const (
	memTableSize   = 16 << 20 // also bounds a transaction: 15 % of it
	valueLogSize   = 8 << 20  // stays empty: values are small enough for tables
	blockCacheSize = 16 << 20
	// compactors is the least Badger takes. Each wakes 20 times a second for
	// ever, so more of them would cost an idle process.
	compactors = 2
)

// Options says where a store is. The zero value is an in-memory store.
type Options struct {
	// Dir is the database folder; the database is in its "badger" folder,
	// large values in "blobs". "" and ":memory:" keep everything in memory.
	Dir string
	// MinFree is the free space in bytes below which nothing is written.
	// 0 means DefaultMinFree, a negative value no check.
	MinFree int64
	// Log gets warnings about damage and what the database has to say.
	// nil means silence.
	Log *slog.Logger

	// freeSpace replaces the question to the file system in tests.
	freeSpace func(dir string) (int64, error)
}

// Store is an open store. All methods may be called from any goroutine.
type Store struct {
	dir    string // "" in memory
	db     *badger.DB
	log    *slog.Logger
	space  *space
	blobs  blobs
	commit *committer
	schema uint64 // what the store was written with

	migrating sync.Mutex  // held by Migrate; guards schema
	filling   atomic.Bool // rows of the list index are being written anew

	mu     sync.Mutex // guards closed, db against Rest, and reads against a Wait that has begun
	closed bool
	reads  sync.WaitGroup

	closeOnce sync.Once
	// closeWithin is how long the database gets to close.
	closeWithin time.Duration
	closeErr    error
}

// Open opens the store, or makes it. It does not migrate. Errors wrap
// ErrInUse, ErrNewer or ErrDamaged where they apply; without room on the disk
// the error is a *messages.Refused.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Store{log: o.Log, closeWithin: closeLimit}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Dir != "" && o.Dir != InMemory {
		dir, err := filepath.Abs(o.Dir)
		if err != nil {
			return nil, fmt.Errorf("open session store: %w", err)
		}
		s.dir = dir
	}
	s.space = newSpace(s.dir, o)

	opt := badgerOptions(s.badgerDir(), s.log)
	s.blobs = newBlobMap()
	if s.dir != "" {
		s.blobs = &blobFolder{dir: filepath.Join(s.dir, "blobs"), space: s.space}
		if err := s.prepareFolder(); err != nil {
			return nil, err
		}
	}
	db, err := openBadger(opt)
	if err != nil {
		return nil, s.openError(err)
	}
	s.db = db
	s.schema, err = readSchema(db)
	if err == nil && s.schema > schemaVersion {
		err = fmt.Errorf("%w: %s has schema %d, this build knows %d; update codework, or use another --database",
			ErrNewer, s.where(), s.schema, schemaVersion)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.commit, err = startCommitter(s)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// prepareFolder makes the folder, or makes sure that Badger can open what is in
// it.
func (s *Store) prepareFolder() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("open session store: %w", err)
	}
	if err := s.space.check(0); err != nil {
		return err
	}
	err := s.finishSalvage()
	if err == nil {
		err = os.MkdirAll(s.badgerDir(), 0o700)
	}
	if err != nil {
		return fmt.Errorf("open session store: %w", err)
	}
	// Badger takes the same lock when it opens. Between the two, only the
	// home's own lock keeps another process out.
	unlock, err := lockFolder(s.badgerDir())
	if err != nil {
		return s.openError(err)
	}
	defer unlock()
	damage, err := s.inspectFolder(s.badgerDir())
	if err == nil && damage != "" {
		if err = s.salvage(damage); err != nil {
			err = fmt.Errorf("%s; %w", damage, err)
		}
	}
	return s.openError(err)
}

func badgerOptions(dir string, log *slog.Logger) badger.Options {
	opt := badger.DefaultOptions(dir)
	opt.InMemory = dir == ""
	opt.SyncWrites = true // Badger's own default loses what was acknowledged
	opt.MemTableSize = memTableSize
	opt.NumMemtables = 2
	opt.ValueLogFileSize = valueLogSize
	opt.BlockCacheSize = blockCacheSize
	opt.NumCompactors = compactors
	opt.DetectConflicts = false // one committer writes
	opt.MetricsEnabled = false
	opt.ChecksumVerificationMode = options.OnBlockRead // a bad block must not become a short log
	opt.Logger = badgerLog{log}
	return opt
}

// openBadger turns a panic of Badger over damaged files into an error.
func openBadger(opt badger.Options) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fmt.Errorf("open database: %v", p)
		}
	}()
	return badger.Open(opt)
}

func (s *Store) openError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	var refused *messages.Refused
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, ErrNewer):
		return err
	// Badger has no sentinel for it.
	case errors.Is(err, ErrInUse), strings.Contains(text, "Cannot acquire directory lock"):
		return fmt.Errorf("%w: %s", ErrInUse, s.where())
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("open session store: %w", err)
	}
	return fmt.Errorf("%w: %s: %s; move that folder away to start with an empty one, or put back a copy of it",
		ErrDamaged, s.badgerDir(), firstLine(text))
}

func (s *Store) badgerDir() string {
	if s.dir == "" {
		return ""
	}
	return filepath.Join(s.dir, "badger")
}

func (s *Store) where() string {
	if s.dir == "" {
		return "the store in memory"
	}
	return s.dir
}

// Close commits what is queued, waits for reads under way and closes the
// database, for which it waits ten seconds at most. Later calls return what the
// first one did.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.commit.stop()
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		// A read under way looks into memory maps that closing takes away.
		s.reads.Wait()
		s.closeErr = s.closeDatabase()
	})
	return s.closeErr
}

// closeDatabase gives up after a while: Badger tries for ever to write its last
// table. What was acknowledged is in its log already.
func (s *Store) closeDatabase() error {
	closed := make(chan error, 1)
	db := s.db
	go func() { closed <- db.Close() }()
	late := time.NewTimer(s.closeWithin)
	defer late.Stop()
	select {
	case err := <-closed:
		if err != nil {
			return fmt.Errorf("close session store: %s", firstLine(err.Error()))
		}
		return nil
	case <-late.C:
		return fmt.Errorf("close session store: its folder %s takes no files any more", s.dir)
	}
}

// closeLimit is how long closing may take: long for a table of 16 MiB, short for
// a process whose folder was removed, and that nobody can reach any more.
const closeLimit = 10 * time.Second

// view runs a read. It fails with badger.ErrDBClosed after Close.
func (s *Store) view(fn func(*badger.Txn) error) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return badger.ErrDBClosed
	}
	s.reads.Add(1)
	db := s.db
	s.mu.Unlock()
	defer s.reads.Done()
	return db.View(fn)
}

// A migration turns a store of one schema version into the next. It runs
// before anything else reads or writes, and may run again after a crash.
type migration func(context.Context, *Store) error

// migrations holds the step that leads away from each older version.
var migrations = map[uint64]migration{}

// Migrate brings the store to this build's schema. It is called once, before
// the first Append, and does nothing when there is nothing to do.
func (s *Store) Migrate(ctx context.Context) error {
	return s.migrate(ctx, schemaVersion, migrations)
}

func (s *Store) migrate(ctx context.Context, to uint64, steps map[uint64]migration) error {
	s.migrating.Lock()
	defer s.migrating.Unlock()
	for s.schema < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.space.check(0); err != nil {
			return err
		}
		step := steps[s.schema]
		if step == nil {
			return fmt.Errorf("migrate session store %s: no way from schema %d", s.where(), s.schema)
		}
		if err := step(ctx, s); err != nil {
			return fmt.Errorf("migrate session store %s from schema %d: %w", s.where(), s.schema, err)
		}
		next := s.schema + 1
		err := s.db.Update(func(txn *badger.Txn) error {
			return txn.Set(schemaKey, binary.BigEndian.AppendUint64(nil, next))
		})
		if err != nil {
			return writeError(s.where(), err)
		}
		s.schema = next
	}
	return nil
}

// readSchema returns the version a store was written with. A new one has no
// version row yet: it comes with the first commit, which saves Open a sync.
func readSchema(db *badger.DB) (uint64, error) {
	version := uint64(schemaVersion)
	err := db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(schemaKey)
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) error {
			if len(v) != 8 {
				return errors.New("version row has another form")
			}
			version = binary.BigEndian.Uint64(v)
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("%w: read schema version: %s", ErrDamaged, firstLine(err.Error()))
	}
	return version, nil
}

// flattenWorkers is how many goroutines compact when the store is idle. One:
// nobody waits for it.
const flattenWorkers = 1

// Idle does what is better done when nobody waits: it gives back the space of
// deleted sessions and removes what a crash left half written. The owner calls
// it when no session is busy; it may take a second and stops early when ctx
// ends.
func (s *Store) Idle(ctx context.Context) {
	if s.dir == "" {
		return
	}
	s.blobs.sweep()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.reads.Add(1)
	db := s.db
	s.mu.Unlock()
	defer s.reads.Done()
	if s.commit.takeDeleted() {
		if err := db.Flatten(flattenWorkers); err != nil {
			s.log.Warn("compact session store", "error", firstLine(err.Error()))
		}
	}
	for ctx.Err() == nil && db.RunValueLogGC(gcDiscard) == nil {
	}
}

// restBytes is how much must have been written before Rest does anything: a
// server in which somebody says something once a minute is left alone.
const restBytes = 4 << 20

// Rest gives back what the database holds for work that is over: its write
// buffer, the log that is mapped beside that, its cache. They are filled by
// whatever is written and Badger keeps them for ever, so the database is closed
// and opened again, when much was written since it was. Batches and reads that
// come meanwhile wait for some tens of milliseconds. The owner calls it when
// there is no work.
//
// After an error the store refuses what is read until a later Rest, or the next
// write, has opened the database.
func (s *Store) Rest(ctx context.Context) error {
	if s.dir == "" {
		return nil
	}
	answer := make(chan error, 1)
	s.commit.push(&item{call: s.reopen, done: func(err error) { answer <- err }})
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reopen runs in the committer's goroutine: nothing is written meanwhile.
func (s *Store) reopen() error {
	full := s.space.check(memTableSize + valueLogSize)
	switch closed := s.db.IsClosed(); {
	case closed && full != nil:
		return full
	case !closed && (s.commit.sinceOpen < restBytes || full != nil || !takesFiles(s.badgerDir())):
		return nil // what is open goes on; it could be impossible to open it again
	}
	s.mu.Lock() // who comes to read waits here
	defer s.mu.Unlock()
	s.reads.Wait()
	if err := s.closeDatabase(); err != nil {
		return err
	}
	db, err := openBadger(badgerOptions(s.badgerDir(), s.log))
	if err != nil {
		return s.openError(err)
	}
	s.db, s.commit.sinceOpen = db, 0
	return nil
}

// takesFiles looks whether a folder is there and can be written to. A database
// whose folder was moved away, or whose disk became read-only, still reads as long
// as it is open, and closing it would not end.
func takesFiles(dir string) bool {
	path := filepath.Join(dir, "rest.tmp") // one name: a crash leaves one file at most
	return os.WriteFile(path, []byte{0}, 0o600) == nil && os.Remove(path) == nil
}

// gcDiscard is the share of dead values at which Badger rewrites a value log.
const gcDiscard = 0.5

// Stats says how the store is doing. Counters start at Open.
type Stats struct {
	Queued      int   // batches waiting to be committed
	QueuedBytes int64 // their size
	Batches     int64 // batches committed
	Events      int64 // events committed
	Commits     int64 // transactions they took
	Refused     int64 // batches answered with an error
	DiskBytes   int64 // tables and logs, without blobs; Badger counts once a minute
}

// Stats returns the counters of this moment.
func (s *Store) Stats() Stats {
	st := s.commit.stats()
	s.mu.Lock()
	tables, logs := s.db.Size()
	s.mu.Unlock()
	st.DiskBytes = tables + logs
	return st
}

// writeError is what callers get for a failed write. Badger's own texts may
// hold dumps of what was to be written.
func writeError(where string, err error) error {
	return &messages.Refused{Name: messages.RefusedStore,
		Message: "write to session store " + where + ": " + causeOf(err)}
}

// maxErrorText is what a person reads of an error of the database, in bytes.
const maxErrorText = 300

func firstLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + "…"
	}
	return text
}

// badgerLog passes on what Badger warns of. Its other messages are about its
// inner life.
type badgerLog struct{ log *slog.Logger }

func (l badgerLog) Errorf(format string, a ...any)   { l.warn(format, a) }
func (l badgerLog) Warningf(format string, a ...any) { l.warn(format, a) }
func (badgerLog) Infof(string, ...any)               {}
func (badgerLog) Debugf(string, ...any)              {}

func (l badgerLog) warn(format string, a []any) {
	l.log.Warn("session store", "badger", firstLine(fmt.Sprintf(format, a...)))
}
