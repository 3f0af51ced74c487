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
//     transaction costs a sync. Large values are in their files before a batch
//     takes its place there: that holds up what comes behind it in its session,
//     and no other. Reads run in the goroutine of the caller and do not hold up
//     commits.
//   - Rest: on disk, the database is closed while nobody needs it, so that a
//     process that does nothing has no timers that run. The read or write that
//     needs it next waits for some tens of milliseconds until it is open. Who
//     comes when it cannot be opened, or is not there any more, is refused.
//   - Blobs: what a session names is there. What no session names any more is
//     removed some time after the deletion of the last one that did, when nobody
//     has needed the database for a while; see PutBlob and HoldBlobs. Nothing is
//     removed while the database is damaged, or another one is kept beside it,
//     and never what is older than the database.
//   - Damage: every event holds the hash of the one before it, so a torn or
//     altered log is told from a whole one when it is read. What can still be
//     read is returned with a description of the damage.
//   - Checkpoints: what they cover is not read, so damage there is for Check to
//     find. One that is not of the log as it is counts for nothing, and the log is
//     read instead.
//   - Close: whoever opened the store closes it, once, after the last Append;
//     what was appended is committed first.
//
// A session's keys are written for its actor only. The store holds at most one
// process at a time, also while it rests.
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
	"syscall"
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

	// Rested is called after the store has come to rest by itself, nil never: a
	// process that does nothing else can give memory back.
	Rested func()

	// freeSpace replaces the question to the file system in tests.
	freeSpace func(dir string) (int64, error)
}

// Store is an open store. All methods may be called from any goroutine.
type Store struct {
	dir    string // "" in memory
	log    *slog.Logger
	space  *space
	blobs  blobs
	files  *blobFolder // the same; nil in memory
	naming naming
	commit *committer
	opened time.Time
	schema uint64 // what the store was written with

	migrating sync.Mutex  // held by Migrate; guards schema
	filling   atomic.Bool // rows of the list index are being written anew
	tally     tally

	rested    func()
	sweep     sync.Once     // of what a crash left
	restAfter time.Duration // how long nobody needs the database when it is closed
	// closeWithin is how long the database gets to close.
	closeWithin time.Duration

	unlock func()      // gives the database's folder to another process
	folder os.FileInfo // what that is

	mu      sync.Mutex // guards what follows; held while the database is opened or closed
	db      *badger.DB // nil while the store rests
	closed  bool
	closing *closing // of the last database; nil when it is open
	reads   int      // under way
	unread  sync.Cond
	needed  time.Time   // when somebody needed the database last
	timer   *time.Timer // for the look whether somebody does
	failure failure     // the last one to open it
	// What the database said last: of its size, and how many sessions are in it.
	tables, logs int64
	sessions     int

	closeOnce sync.Once
	closeErr  error
}

// Open opens the store, or makes it. It does not migrate. Errors wrap
// ErrInUse, ErrNewer or ErrDamaged where they apply; without room on the disk
// the error is a *messages.Refused.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Store{log: o.Log, unlock: func() {}, opened: time.Now(), rested: o.Rested, restAfter: restAfter, closeWithin: closeLimit}
	s.unread.L = &s.mu
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
		s.files = &blobFolder{dir: filepath.Join(s.dir, "blobs"), space: s.space}
		s.blobs = s.files
		if err := s.prepareFolder(); err != nil {
			return nil, err
		}
	}
	db, err := openBadger(opt)
	if err == nil && s.dir != "" {
		if s.folder, err = os.Stat(s.badgerDir()); err != nil {
			err = errors.Join(err, db.Close())
		}
	}
	if err != nil {
		s.unlock()
		return nil, s.openError(err)
	}
	s.db = db
	s.schema, err = readSchema(db)
	if err == nil && s.schema > schemaVersion {
		err = fmt.Errorf("%w: %s has schema %d, this build knows %d; update codework, or use another --database",
			ErrNewer, s.where(), s.schema, schemaVersion)
	}
	if err == nil {
		s.commit, err = startCommitter(s)
	}
	if err != nil {
		err = errors.Join(err, db.Close())
		s.unlock()
		return nil, err
	}
	s.mu.Lock()
	s.needed = time.Now()
	s.watch(s.restAfter)
	s.mu.Unlock()
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
	unlock, err := lockFolder(s.badgerDir())
	if err != nil {
		return s.openError(err)
	}
	damage, err := s.inspectFolder(s.badgerDir())
	if err == nil && damage == "" {
		s.unlock = unlock
		return nil
	}
	defer unlock()
	if err == nil {
		if err = s.salvage(damage); err != nil {
			err = fmt.Errorf("%s; %w", damage, err)
		}
	}
	if err == nil { // there is another folder now
		s.unlock, err = lockFolder(s.badgerDir())
	}
	return s.openError(err)
}

func badgerOptions(dir string, log *slog.Logger) badger.Options {
	opt := badger.DefaultOptions(dir)
	opt.InMemory = dir == ""
	opt.BypassLockGuard = locksFolders // for longer than Badger would: also while it is closed
	opt.SyncWrites = true              // Badger's own default loses what was acknowledged
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
	case cause(err) != nil:
		return fmt.Errorf("open session store %s: %w", s.where(), cause(err))
	}
	return fmt.Errorf("%w: %s: %s; move that folder away to start with an empty one, or put back a copy of it",
		ErrDamaged, s.badgerDir(), firstLine(text))
}

// cause is what the system had against opening the database, nil for nothing. It
// may pass, and says nothing about the files: who moved them away would lose what
// is in them.
func cause(err error) error {
	for _, e := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT,
		syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.EIO} {
		// Badger keeps no more than the text of most.
		if errors.Is(err, e) || strings.HasSuffix(err.Error(), e.Error()) {
			return e
		}
	}
	return nil
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
		defer s.mu.Unlock()
		s.closed = true
		if s.timer != nil {
			s.timer.Stop()
		}
		// A read under way looks into memory maps that closing takes away.
		for s.reads > 0 {
			s.unread.Wait()
		}
		s.closeErr = s.shutDatabase()
		if s.closing == nil || s.closing.ended(0) {
			s.unlock()
		} // else it is locked until the process ends
	})
	return s.closeErr
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
	if s.schema >= to {
		return nil
	}
	db, err := s.take()
	if err != nil {
		return readError("schema version", err)
	}
	defer s.give()
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
		err := db.Update(func(txn *badger.Txn) error {
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
	if s.db != nil {
		s.tables, s.logs = s.db.Size()
	}
	st.DiskBytes = s.tables + s.logs
	s.mu.Unlock()
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
