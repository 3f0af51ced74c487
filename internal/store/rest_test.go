package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// Rest brings the store to rest at once.
func (s *Store) Rest(context.Context) error {
	s.tidy()
	_, err := s.shut()
	return err
}

// soon waits until something is so.
func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// awake is the open database, nil when there is none.
func awake(s *Store) *badger.DB {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.db
}

func TestAStoreThatRestsRunsNothingAndAnswersTheNextReadAndWrite(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 3)})
	size := s.Stats().DiskBytes
	for round := range int64(2) {
		if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
			t.Fatalf("does not rest: %v", err)
		}
		soon(t, "the database's goroutines have ended", func() bool {
			var all strings.Builder
			if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
				t.Fatal(err)
			}
			return !strings.Contains(all.String(), "dgraph-io")
		})
		if got := s.Stats().DiskBytes; got < size || awake(s) != nil {
			t.Errorf("it says that it takes %d bytes, which were %d; opened for that: %t", got, size, awake(s) != nil)
		}
		if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
			t.Errorf("told twice: %v", err)
		}
		if round == 0 {
			if n := len(mustLoad(t, s, "ses_a").Events); n != 3 {
				t.Errorf("%d events are left", n)
			}
			continue
		}
		mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", 3, 1)})
	}
	if n := len(mustLoad(t, s, "ses_a").Events); n != 4 {
		t.Errorf("%d events are left", n)
	}
}

// Whoever watches a process asks again and again how many sessions there are.
// A number that is known is not counted again, so it must follow what is written.
func TestTheNumberOfSessionsIsKept(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	counted := func() int {
		t.Helper()
		n, err := s.Count(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The first who count come while sessions are made and removed.
	var writers, readers sync.WaitGroup
	var written atomic.Bool
	for w := range 4 {
		writers.Go(func() {
			for n := range 20 {
				id := fmt.Sprintf("ses_%d_%d", w, n)
				all := []Batch{{Session: id, Record: session(id, "A", 1)}, {Session: id, Record: session(id, "B", 2)}, {Session: id, Delete: true}}
				if n%4 != 0 {
					all = all[:2]
				}
				for _, b := range all {
					if err := commit(s, b); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	readers.Go(func() {
		for !written.Load() {
			s.tally.more.Store(0) // as if nobody had
			if n, err := s.Count(t.Context()); err != nil || n < 0 || n > 4*20 {
				t.Errorf("counted %d, %v", n, err)
			}
		}
	})
	writers.Wait()
	written.Store(true)
	readers.Wait()
	const left = 4 * 15
	if n := counted(); n != left {
		t.Errorf("%d sessions are left, want %d", n, left)
	}
	s.tally.more.Store(0)
	if n := counted(); n != left {
		t.Errorf("there are %d sessions, want %d", n, left)
	}
	// What is refused makes none; a repair puts back what the list had lost.
	if err := commit(s, Batch{Session: "ses_0_0", Events: []messages.Event{{Seq: 1}}}); err == nil {
		t.Error("events of a session that is removed are written")
	}
	if err := s.db.Update(func(txn *badger.Txn) error { return txn.Delete(indexKey(2, "ses_0_1")) }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Repair(t.Context(), "ses_0_1"); err != nil {
		t.Fatal(err)
	}
	if n := counted(); n != left {
		t.Errorf("after a refusal and a repair there are %d, want %d", n, left)
	}
	if err := s.Rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := counted(); n != left {
		t.Errorf("at rest there are %d, want %d", n, left)
	}
	mustCommit(t, s, Batch{Session: "ses_more", Record: session("ses_more", "A", 1)})
	if n := counted(); n != left+1 {
		t.Errorf("with one more there are %d, want %d", n, left+1)
	}
}

func TestWhoCountsSessionsDoesNotKeepAStoreFromItsRest(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	needed := func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.needed
	}
	for n := 1; n <= 2; n++ {
		id := fmt.Sprint("ses_", n)
		mustCommit(t, s, Batch{Session: id, Record: session(id, "A", 1)})
		before := needed()
		for _, rests := range []bool{false, true} {
			if rests {
				if err := s.Rest(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := s.Count(t.Context()); got != n || err != nil {
				t.Errorf("resting %t: %d sessions of %d, %v", rests, got, n, err)
			}
			if (awake(s) == nil) != rests || !needed().Equal(before) {
				t.Errorf("resting %t: to count was a need", rests)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Count(t.Context()); err == nil {
		t.Error("a closed store counts")
	}
}

func TestAStoreThatNobodyNeedsComesToRestByItself(t *testing.T) {
	var rested atomic.Int64
	s := open(t, Options{Dir: t.TempDir(), Rested: func() { rested.Add(1) }})
	s.mu.Lock()
	s.restAfter = time.Millisecond
	s.watch(s.restAfter)
	s.mu.Unlock()
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	soon(t, "it rests behind a write", func() bool { return rested.Load() >= 1 && awake(s) == nil })
	before := rested.Load()
	reads, wait := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(wait)
		err := s.view(func(txn *badger.Txn) error {
			close(reads)
			time.Sleep(20 * s.restAfter) // the read takes that long
			_, _, err := s.record(txn, "ses_a")
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}()
	<-reads
	for n := rested.Load(); ; time.Sleep(s.restAfter) {
		select {
		case <-wait:
		default:
			if rested.Load() != n || awake(s) == nil {
				t.Error("closed under a read")
			}
			continue
		}
		break
	}
	soon(t, "it rests behind a read", func() bool { return rested.Load() > before && awake(s) == nil })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Record("ses_a"); err == nil {
		t.Error("a closed store was opened by a read")
	}
}

func TestAStoreInMemoryDoesNotRest(t *testing.T) {
	s := open(t, Options{})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	s.watch(0)
	if s.timer != nil {
		t.Error("it would be gone when it was closed")
	}
	mustLoad(t, s, "ses_a")
}

// Readers and writers with pauses of about the time behind which the store closes
// meet it open, resting, and on the way from one to the other.
func TestRestLosesNothingAndDisturbsNobody(t *testing.T) {
	dir := t.TempDir()
	var rested atomic.Int64
	s := open(t, Options{Dir: dir, Rested: func() { rested.Add(1) }})
	const pause = 2 * time.Millisecond
	s.mu.Lock()
	s.restAfter = pause
	s.watch(s.restAfter)
	s.mu.Unlock()
	stop := make(chan struct{})
	var others sync.WaitGroup
	const writers = 4
	written := make([]int64, writers)
	name := func(i int) string { return fmt.Sprint("ses_", i) }
	for i := range writers {
		mustCommit(t, s, Batch{Session: name(i), Record: session(name(i), "A", 1)})
	}
	for i := range writers {
		id := name(i)
		others.Go(func() {
			for n := 0; ; n++ {
				if err := commit(s, Batch{Session: id, Events: ofSize(id, written[i], 10, 100)}); err != nil {
					t.Error(err)
					return
				}
				written[i] += 10
				if snap, err := s.Load(context.Background(), id); err != nil || int64(len(snap.Events)) != written[i] || snap.Damaged != nil {
					t.Error(len(snap.Events), snap.Damaged, err)
					return
				}
				if found, err := s.List(context.Background(), messages.ListSessions{}); err != nil || len(found) != writers {
					t.Error(len(found), err)
					return
				}
				s.Stats()
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(n%10) * pause):
				}
			}
		})
	}
	told := 0
	soon(t, "it rested often", func() bool {
		if told%10 == 0 {
			if err := s.Rest(context.Background()); err != nil {
				t.Error(err)
			}
		}
		told++
		return rested.Load() >= 10 || t.Failed()
	})
	close(stop)
	others.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Rest(context.Background()); err == nil {
		t.Error("a closed store came to rest")
	}
	s = open(t, Options{Dir: dir})
	for i := range writers {
		if n := int64(len(mustLoad(t, s, name(i)).Events)); n != written[i] {
			t.Errorf("session %d has %d events, %d were written", i, n, written[i])
		}
	}
}

func TestWhatIsQueuedWhenAStoreThatRestsIsClosedIsCommitted(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
		t.Fatalf("does not rest: %v", err)
	}
	said := make(chan error, 1)
	release, closed := make(chan struct{}), make(chan error, 1)
	s.commit.push(&item{call: func() error { <-release; return nil }, rests: true, done: func(error) {}})
	s.Append(Batch{Session: "ses_a", Events: events("ses_a", 0, 1)}, func(err error) { said <- err })
	go func() { closed <- s.Close() }()
	soon(t, "it is closing", func() bool { s.commit.mu.Lock(); defer s.commit.mu.Unlock(); return s.commit.closing })
	close(release)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := <-said; err != nil {
		t.Fatal(err)
	}
	if n := len(mustLoad(t, open(t, Options{Dir: dir}), "ses_a").Events); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestAStoreGoesOnDeletingBeforeItRests(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 5000)})
	mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
	soon(t, "it rests", func() bool {
		if err := s.Rest(t.Context()); err != nil {
			t.Fatal(err)
		}
		return awake(s) == nil
	})
	if left := s.commit.deletions; len(left) > 0 {
		t.Errorf("it rests with %d deletions to do", len(left))
	}
}

// A disk may have become full while the store rested: opening would write.
func TestAStoreThatRestsOnAFullDiskRefusesUntilThereIsRoom(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 30)
	s := open(t, Options{Dir: t.TempDir(), freeSpace: func(string) (int64, error) { return free.Load(), nil }})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 1)})
	if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
		t.Fatalf("does not rest: %v", err)
	}
	free.Store(DefaultMinFree - 1)
	forget := func() {
		s.space.mu.Lock()
		defer s.space.mu.Unlock()
		s.space.asked = time.Time{}
	}
	forget()
	var refused *messages.Refused
	if _, err := s.Load(t.Context(), "ses_a"); !errors.As(err, &refused) || !strings.Contains(err.Error(), "full") {
		t.Errorf("read: %v", err)
	}
	free.Store(DefaultMinFree) // as much as Open asks for
	if n := len(mustLoad(t, s, "ses_a").Events); n != 1 {
		t.Errorf("%d events", n)
	}
	forget()
	if err := s.Rest(t.Context()); err != nil || awake(s) == nil {
		t.Errorf("what is open on a full disk goes on: %v", err)
	}
}

func TestAFolderThatTakesNoFilesHangsNobody(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	s.closeWithin = 50 * time.Millisecond
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 10)})
	var inTheWay []string // of the next table
	for n := range 10 {
		inTheWay = append(inTheWay, filepath.Join(s.badgerDir(), fmt.Sprintf("%06d.sst", n)))
		if err := os.Mkdir(inTheWay[n], 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Rest(context.Background()); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("the store came to rest though its table cannot be written: %v", err)
	}
	var refused *messages.Refused
	for range 3 {
		if _, err := s.Load(t.Context(), "ses_a"); !errors.As(err, &refused) {
			t.Errorf("read: %v", err)
		}
		if err := commit(s, Batch{Session: "ses_a", Events: events("ses_a", 10, 1)}); !errors.As(err, &refused) {
			t.Errorf("written: %v", err)
		}
	}
	for _, d := range inTheWay {
		if err := os.Remove(d); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "the way is free", func() bool {
		snap, err := s.Load(t.Context(), "ses_a")
		if err == nil && len(snap.Events) != 10 {
			t.Errorf("%d events of 10", len(snap.Events))
		}
		return err == nil
	})
	s.closeWithin = closeLimit
}

// Who takes the database's folder away, or makes the disk read-only, has a store
// that goes on as it is: one that was closed could not be opened again.
func TestRestLeavesAStoreAloneWhoseFolderTakesNoFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 10)})
	folder := filepath.Join(dir, "badger")
	if err := os.Rename(folder, folder+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := s.Rest(t.Context()); err != nil || awake(s) == nil {
		t.Errorf("%v, closed %t", err, awake(s) == nil)
	}
	if n := len(mustLoad(t, s, "ses_a").Events); n != 10 {
		t.Errorf("%d events are left", n)
	}
	if err := os.Rename(folder+".gone", folder); err != nil {
		t.Fatal(err)
	}
	if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
		t.Errorf("did not come to rest: %v", err)
	}
	if n := len(mustLoad(t, s, "ses_a").Events); n != 10 {
		t.Errorf("%d events are left", n)
	}
}

// A database that cannot be opened again refuses, and does not keep anybody
// waiting; whoever comes next tries again.
func TestADatabaseThatCouldNotBeOpenedIsOpenedByTheNextReadOrWrite(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	manifest := filepath.Join(dir, "badger", "MANIFEST")
	hide := func() {
		if err := errors.Join(os.Rename(manifest, manifest+".hidden"), os.Mkdir(manifest, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	show := func() {
		if err := errors.Join(os.Remove(manifest), os.Rename(manifest+".hidden", manifest)); err != nil {
			t.Fatal(err)
		}
	}
	last := int64(0)
	for _, next := range []func(){
		func() {
			mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", last, 1)})
			last++
		},
		func() { mustLoad(t, s, "ses_a") },
	} {
		hide()
		if err := s.Rest(t.Context()); err != nil {
			t.Fatal(err)
		}
		var refused *messages.Refused
		for range 3 { // the first transaction of a closed database is not the one that hangs
			if err := commit(s, Batch{Session: "ses_a", Events: events("ses_a", last, 1)}); !errors.As(err, &refused) {
				t.Errorf("written: %v", err)
			}
		}
		if err := commit(s, Batch{Session: "ses_a", Delete: true}); !errors.As(err, &refused) {
			t.Errorf("deleted: %v", err)
		}
		if _, err := s.Load(t.Context(), "ses_a"); !errors.As(err, &refused) || refused.Name != messages.RefusedStore {
			t.Errorf("read: %v", err)
		}
		s.Stats()
		if err := s.Rest(t.Context()); err != nil {
			t.Error(err)
		}
		show()
		next()
		if n := int64(len(mustLoad(t, s, "ses_a").Events)); n != last {
			t.Errorf("%d events are left of %d", n, last)
		}
	}
	// Closing does not wait for it either.
	hide()
	defer show()
	if err := s.Rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Badger makes an empty database where there is none, and whoever copies one back
// does not know that sessions in memory come from another.
func TestAStoreThatRestsDoesNotGoOnInAnotherDatabase(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 10)})
	folder, aside := filepath.Join(dir, "badger"), filepath.Join(dir, "aside")
	refuses := func(t *testing.T) {
		t.Helper()
		var refused *messages.Refused
		if _, err := s.List(t.Context(), messages.ListSessions{}); !errors.As(err, &refused) || !strings.Contains(err.Error(), folder) {
			t.Errorf("read: %v", err)
		}
		if err := commit(s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1)}); !errors.As(err, &refused) {
			t.Errorf("written: %v", err)
		}
	}
	for name, c := range map[string]struct{ take, put func() error }{
		"removed": {
			func() error { return os.Rename(folder, aside) },
			func() error { return os.Rename(aside, folder) },
		},
		"emptied": {
			func() error {
				return errors.Join(os.Mkdir(aside, 0o700), os.Rename(filepath.Join(folder, manifestName), filepath.Join(aside, manifestName)))
			},
			func() error {
				return errors.Join(os.Rename(filepath.Join(aside, manifestName), filepath.Join(folder, manifestName)), os.Remove(aside))
			},
		},
		"a copy in its place": {
			func() error { return errors.Join(os.Rename(folder, aside), os.CopyFS(folder, os.DirFS(aside))) },
			func() error { return errors.Join(os.RemoveAll(folder), os.Rename(aside, folder)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
				t.Fatalf("does not rest: %v", err)
			}
			if err := c.take(); err != nil {
				t.Fatal(err)
			}
			refuses(t)
			if err := c.put(); err != nil {
				t.Fatal(err)
			}
			if n := len(mustLoad(t, s, "ses_a").Events); n != 10 {
				t.Errorf("%d events are left", n)
			}
		})
	}
}

func TestAStoreThatRestsIsStillInUse(t *testing.T) {
	if !locksFolders {
		t.Skip("Badger's own lock ends when the database is closed: the home's lock keeps others out")
	}
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	for _, rests := range []bool{false, true} {
		if rests {
			if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
				t.Fatalf("does not rest: %v", err)
			}
		}
		if _, err := Open(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrInUse) {
			t.Errorf("resting %t: another store: %v", rests, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, open(t, Options{Dir: dir}), "ses_a")
}

// Badger leaks what it took for an attempt that fails.
func TestADatabaseThatCannotBeOpenedIsNotTriedForEveryRead(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	if err := s.Rest(t.Context()); err != nil || awake(s) != nil {
		t.Fatalf("does not rest: %v", err)
	}
	manifest := filepath.Join(dir, "badger", manifestName)
	whole, err := os.ReadFile(manifest)
	if err == nil {
		err = os.WriteFile(manifest, []byte("something else"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var refused *messages.Refused
	_, err = s.Record("ses_a")
	if !errors.As(err, &refused) {
		t.Fatalf("read: %v", err)
	}
	if err := os.WriteFile(manifest, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, again := s.Record("ses_a"); again != err {
		t.Errorf("within the pause: %v", again)
	}
	s.mu.Lock()
	first := s.failure.pause
	s.failure.at = s.failure.at.Add(-first) // the pause is over
	s.mu.Unlock()
	mustLoad(t, s, "ses_a")
	s.mu.Lock()
	defer s.mu.Unlock()
	if first != tryAgain || s.failure != (failure{}) {
		t.Errorf("the first pause is %v, then %v", first, s.failure)
	}
}

// Reads, writes, rests and the end at once: nobody hears of anything but of the
// end, and what was acknowledged is there.
func TestAStoreMayBeClosedWhileItComesToRestAndWakes(t *testing.T) {
	for round := range 5 {
		dir := t.TempDir()
		s := open(t, Options{Dir: dir})
		s.mu.Lock()
		s.restAfter = time.Millisecond
		s.watch(s.restAfter)
		s.mu.Unlock()
		ends := func(err error) bool {
			var refused *messages.Refused
			if err != nil && (!errors.As(err, &refused) || refused.Name != messages.RefusedShutdown) {
				t.Error(err)
			}
			return err != nil
		}
		var others sync.WaitGroup
		var written [3]atomic.Int64
		name := func(i int) string { return fmt.Sprint("ses_", i) }
		for i := range written {
			id, n := name(i), &written[i]
			mustCommit(t, s, Batch{Session: id, Record: session(id, "A", 1)})
			others.Go(func() {
				for at := int64(0); ; at += 3 {
					if ends(commit(s, Batch{Session: id, Events: events(id, at, 3), Checkpoint: &Checkpoint{Seq: at + 3, After: at}})) {
						return
					}
					n.Store(at + 3)
				}
			})
			others.Go(func() {
				for {
					least := n.Load()
					snap, err := s.Recall(context.Background(), id)
					if ends(err) {
						return
					}
					if snap.Head.Seq < least || snap.Damaged != nil {
						t.Errorf("%d events of %d, %v", snap.Head.Seq, least, snap.Damaged)
					}
				}
			})
			others.Go(func() {
				for !ends(s.Rest(context.Background())) {
					s.Stats()
				}
			})
		}
		soon(t, "all have written", func() bool {
			for i := range written {
				if written[i].Load() < int64(9*(round+1)) {
					return false
				}
			}
			return true
		})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		others.Wait()
		s = open(t, Options{Dir: dir})
		for i := range written {
			snap, again := mustLoad(t, s, name(i)), mustRecall(t, s, name(i))
			if snap.Head.Seq < written[i].Load() || again.Head != snap.Head || len(again.Events) > 0 {
				t.Errorf("%d events of %d, %d behind checkpoints", snap.Head.Seq, written[i].Load(), len(again.Events))
			}
		}
	}
}
