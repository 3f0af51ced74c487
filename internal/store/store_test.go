package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		appendForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

// open opens a store that the test closes at its end.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	return s
}

// on runs a test on a store in memory and on one on disk.
func on(t *testing.T, test func(*testing.T, *Store)) {
	t.Run("memory", func(t *testing.T) { test(t, open(t, Options{})) })
	t.Run("disk", func(t *testing.T) { test(t, open(t, Options{Dir: t.TempDir()})) })
}

// commit appends a batch and waits for its answer.
func commit(s *Store, b Batch) error {
	answer := make(chan error, 1)
	s.Append(b, func(err error) { answer <- err })
	return <-answer
}

func mustCommit(t testing.TB, s *Store, b Batch) {
	t.Helper()
	if err := commit(s, b); err != nil {
		t.Fatal(err)
	}
}

func mustLoad(t testing.TB, s *Store, session string) Snapshot {
	t.Helper()
	snap, err := s.Load(context.Background(), session)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func session(id, title string, updated int64) *messages.SessionRecord {
	return &messages.SessionRecord{ID: id, Title: title, HostDir: "/home/ann/work", CreatedAt: 1, UpdatedAt: updated}
}

// events makes n events behind a position.
func events(session string, after int64, n int) []messages.Event {
	out := make([]messages.Event, n)
	for i := range out {
		seq := after + 1 + int64(i)
		out[i] = messages.Event{
			ID: fmt.Sprintf("evt_%s_%d", session, seq), Type: messages.EventTurnEnded, Session: session, Seq: seq,
			Data: json.RawMessage(fmt.Sprintf(`{"timestamp":%d,"sessionId":%q,"messageId":"m%d"}`, seq, session, seq)),
		}
	}
	return out
}

func TestWhatWasAppendedIsLoaded(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		rec := session("ses_a", "First", 10)
		evs := events("ses_a", 0, 3)
		evs[1].Metadata = map[string]string{"k": "v"}
		evs[2].Data = nil
		mustCommit(t, s, Batch{Session: "ses_a", Record: rec, Events: evs[:2], Started: []string{"call_1", "call/2"}})
		mustCommit(t, s, Batch{Session: "ses_a", Events: evs[2:], Settled: []string{"call_1"}})
		mustCommit(t, s, Batch{Session: "ses_aa", Record: session("ses_aa", "Other", 10), Events: events("ses_aa", 0, 1)})

		snap := mustLoad(t, s, "ses_a")
		if !reflect.DeepEqual(snap.Record, *rec) {
			t.Errorf("record %+v, want %+v", snap.Record, *rec)
		}
		if !reflect.DeepEqual(snap.Events, evs) {
			t.Errorf("events %+v, want %+v", snap.Events, evs)
		}
		if !reflect.DeepEqual(snap.Started, []string{"call/2"}) {
			t.Errorf("started %q", snap.Started)
		}
		if snap.Damaged != nil || snap.Head.Seq != 3 {
			t.Errorf("damage %v, head %d", snap.Damaged, snap.Head.Seq)
		}
	})
}

func TestUnknownSessionIsNotFound(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		var missing *messages.SessionNotFound
		for _, id := range []string{"ses_none", "", "ses_a/", "other"} {
			if _, err := s.Load(context.Background(), id); !errors.As(err, &missing) {
				t.Errorf("load %q: %v", id, err)
			}
			err := s.Events(context.Background(), id, 0, 0, func(messages.Event) error { return nil })
			if !errors.As(err, &missing) {
				t.Errorf("events of %q: %v", id, err)
			}
		}
		if err := commit(s, Batch{Session: "ses_none", Events: events("ses_none", 0, 1)}); !errors.As(err, &missing) {
			t.Errorf("append without a record: %v", err)
		}
	})
}

func TestEventsThatDoNotFollowAreRefusedWhole(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 2)})
		skip := append(events("ses_a", 2, 1), events("ses_a", 4, 1)...)
		for name, evs := range map[string][]messages.Event{
			"again": events("ses_a", 1, 1), "gap": events("ses_a", 3, 1), "gap inside": skip,
		} {
			err := commit(s, Batch{Session: "ses_a", Record: session("ses_a", "B", 2), Events: evs, PromptID: "p-" + name, Started: []string{"c"}})
			if !errors.Is(err, ErrGap) {
				t.Errorf("%s: %v", name, err)
			}
			if _, _, ok, _ := s.Prompt("p-" + name); ok {
				t.Errorf("%s: prompt id was written", name)
			}
		}
		snap := mustLoad(t, s, "ses_a")
		if len(snap.Events) != 2 || snap.Record.Title != "A" || len(snap.Started) != 0 {
			t.Errorf("something of a refused batch was written: %+v", snap)
		}
	})
}

// blocked runs do while the committer waits, so that all that do appends is
// committed as one group.
func blocked(s *Store, do func()) {
	inside, release := make(chan struct{}), make(chan struct{})
	s.commit.push(&item{call: func() error { close(inside); <-release; return nil }, done: func(error) {}})
	<-inside
	defer close(release) // also when do gives up, or the store would never close
	do()
}

func TestOneBadBatchDoesNotFailItsGroup(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
		mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1)})
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		add := func(name string, b Batch) {
			wg.Add(1)
			s.Append(b, func(err error) {
				mu.Lock()
				got = append(got, fmt.Sprintf("%s %t", name, err == nil))
				mu.Unlock()
				wg.Done()
			})
		}
		before := s.Stats()
		blocked(s, func() {
			add("a1", Batch{Session: "ses_a", Events: events("ses_a", 0, 1), PromptID: "p", PromptHash: "x"})
			add("b1 same prompt", Batch{Session: "ses_b", Events: events("ses_b", 0, 1), PromptID: "p", PromptHash: "x"})
			add("a3 gap", Batch{Session: "ses_a", Events: events("ses_a", 2, 1)})
			add("a2", Batch{Session: "ses_a", Events: events("ses_a", 1, 1)})
			add("b1", Batch{Session: "ses_b", Events: events("ses_b", 0, 1)})
		})
		wg.Wait()
		want := []string{"a1 true", "b1 same prompt false", "a3 gap false", "a2 true", "b1 true"}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("answers %q, want %q", got, want)
		}
		if n := s.Stats().Commits - before.Commits; n != 1 {
			t.Errorf("took %d transactions", n)
		}
		if n := len(mustLoad(t, s, "ses_a").Events); n != 2 {
			t.Errorf("a has %d events", n)
		}
	})
}

func TestPromptIDIsClaimedOnce(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
		mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1)})
		admit := func(session, hash string, seq int64) error {
			return commit(s, Batch{Session: session, Events: events(session, seq-1, 1), PromptID: "p1", PromptHash: hash})
		}
		if err := admit("ses_a", "h1", 1); err != nil {
			t.Fatal(err)
		}
		if err := admit("ses_a", "h1", 2); !errors.Is(err, ErrDuplicatePrompt) {
			t.Errorf("same again: %v", err)
		}
		var conflict *messages.PromptConflict
		if err := admit("ses_a", "h2", 2); !errors.As(err, &conflict) || conflict.MessageID != "p1" {
			t.Errorf("other content: %v", err)
		}
		if err := admit("ses_b", "h1", 1); !errors.As(err, &conflict) || conflict.SessionID != "ses_b" {
			t.Errorf("other session: %v", err)
		}
		if n := len(mustLoad(t, s, "ses_a").Events) + len(mustLoad(t, s, "ses_b").Events); n != 1 {
			t.Errorf("%d events", n)
		}
		in, hash, ok, err := s.Prompt("p1")
		if in != "ses_a" || hash != "h1" || !ok || err != nil {
			t.Errorf("prompt: %q %q %t %v", in, hash, ok, err)
		}
	})
}

func TestListIsNewestFirst(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		for i, title := range []string{"Alpha", "beta", "Gamma", "ALPHABET"} {
			id := fmt.Sprintf("ses_%d", i)
			r := session(id, title, int64(100+i))
			if i == 1 {
				r.HostDir = "/elsewhere"
			}
			mustCommit(t, s, Batch{Session: id, Record: r})
		}
		mustCommit(t, s, Batch{Session: "ses_0", Record: session("ses_0", "Alpha", 500)}) // moves to the front
		for _, c := range []struct {
			f    messages.ListSessions
			want string
		}{
			{messages.ListSessions{}, "ses_0 ses_3 ses_2 ses_1"},
			{messages.ListSessions{Limit: 2}, "ses_0 ses_3"},
			{messages.ListSessions{Before: "ses_3"}, "ses_2 ses_1"},
			{messages.ListSessions{Before: "ses_0", Limit: 1}, "ses_3"},
			{messages.ListSessions{HostDir: "/elsewhere"}, "ses_1"},
			{messages.ListSessions{Search: "alpha"}, "ses_0 ses_3"},
			{messages.ListSessions{Search: "nothing"}, ""},
		} {
			list, err := s.List(context.Background(), c.f)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, r := range list {
				ids = append(ids, r.ID)
			}
			if got := strings.Join(ids, " "); got != c.want {
				t.Errorf("%+v: %s, want %s", c.f, got, c.want)
			}
		}
		var missing *messages.SessionNotFound
		if _, err := s.List(context.Background(), messages.ListSessions{Before: "ses_x"}); !errors.As(err, &missing) {
			t.Errorf("unknown before: %v", err)
		}
	})
}

func TestEventsAfterAPosition(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 10)})
		read := func(after int64, limit int) (seqs []int64) {
			err := s.Events(context.Background(), "ses_a", after, limit, func(e messages.Event) error {
				seqs = append(seqs, e.Seq)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return seqs
		}
		if got := read(7, 0); !reflect.DeepEqual(got, []int64{8, 9, 10}) {
			t.Errorf("after 7: %v", got)
		}
		if got := read(0, 2); !reflect.DeepEqual(got, []int64{1, 2}) {
			t.Errorf("first two: %v", got)
		}
		if got := read(10, 0); got != nil {
			t.Errorf("after the last: %v", got)
		}
		stop := errors.New("stop")
		if err := s.Events(context.Background(), "ses_a", 0, 0, func(messages.Event) error { return stop }); err != stop {
			t.Errorf("error of the reader: %v", err)
		}
	})
}

func TestLargeValuesAreBlobs(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		rec := session("ses_a", "A", 1)
		rec.AppendSystemPrompt = strings.Repeat("long ", 100_000)
		evs := events("ses_a", 0, 12)
		for i := range evs { // 3.6 MiB inline would be over a transaction
			evs[i].Data = json.RawMessage(`"` + strings.Repeat(string(rune('a'+i)), 300_000) + `"`)
		}
		evs[3].Data = json.RawMessage(`"` + strings.Repeat("x", 5<<20) + `"`)
		mustCommit(t, s, Batch{Session: "ses_a", Record: rec, Events: evs})
		many := events("ses_a", 12, 20)
		for i := range many { // each fits, together they do not
			many[i].Data = json.RawMessage(`"` + strings.Repeat(string(rune('a'+i)), 200_000) + `"`)
		}
		mustCommit(t, s, Batch{Session: "ses_a", Events: many})
		snap := mustLoad(t, s, "ses_a")
		if snap.Damaged != nil || !reflect.DeepEqual(snap.Record, *rec) || !reflect.DeepEqual(snap.Events, append(evs, many...)) {
			t.Errorf("large values changed; damage: %v", snap.Damaged)
		}
	})
}

func TestBatchTooLargeIsRefusedWithoutItsContent(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
		err := commit(s, Batch{Session: "ses_a", Events: events("ses_a", 0, maxBatchRows+1)})
		var refused *messages.Refused
		if !errors.As(err, &refused) || refused.Name != messages.RefusedStore {
			t.Errorf("too many events: %v", err)
		}
		secret := events("ses_a", 0, 1)
		secret[0].Type = strings.Repeat("secret", 20_000)
		if err := commit(s, Batch{Session: "ses_a", Events: secret}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("long type: %v", err)
		}
		long := "ses_" + strings.Repeat("secret", 20_000)
		if err := commit(s, Batch{Session: long, Record: session(long, "A", 1)}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("long id: %v", err)
		}
	})
}

func TestForkStartsAboveItsBase(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 5)})
		base := mustLoad(t, s, "ses_a").Head
		if err := commit(s, Batch{Session: "ses_a", Base: &base, Events: events("ses_a", 5, 1)}); !errors.Is(err, ErrGap) {
			t.Errorf("base in the middle of a log: %v", err)
		}
		mustCommit(t, s, Batch{Session: "ses_f", Record: session("ses_f", "F", 2), Base: &base, Events: events("ses_f", 5, 2)})
		mustCommit(t, s, Batch{Session: "ses_f", Events: events("ses_f", 7, 1)})
		snap := mustLoad(t, s, "ses_f")
		if snap.Damaged != nil || snap.Head.Seq != 8 || !reflect.DeepEqual(snap.Events, events("ses_f", 5, 3)) {
			t.Errorf("fork: %+v", snap)
		}
	})
}

func TestDeletedSessionLeavesNothing(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1), Events: events("ses_b", 0, 1), PromptID: "keep", Started: []string{"c"}})
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 3*deleteRows/2), Started: []string{"c"}})
		for i := range int64(10) {
			mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", 3*deleteRows/2+i, 1), PromptID: fmt.Sprint("p", i)})
		}
		mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
		var missing *messages.SessionNotFound
		if _, err := s.Load(context.Background(), "ses_a"); !errors.As(err, &missing) {
			t.Errorf("load: %v", err)
		}
		settle(t, s)
		if got := rows(t, s, "ses_a"); got != nil {
			t.Errorf("left: %q", got)
		}
		if _, _, ok, _ := s.Prompt("p3"); ok {
			t.Error("its prompt ids are still taken")
		}
		if _, _, ok, _ := s.Prompt("keep"); !ok || len(mustLoad(t, s, "ses_b").Events) != 1 {
			t.Error("another session lost something")
		}
		// The id is free again.
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 1)})
	})
}

// settle waits until no deletion is under way.
func settle(t interface{ Helper() }, s *Store) {
	t.Helper()
	for busy := true; busy; {
		answer := make(chan bool, 1)
		s.commit.push(&item{
			call: func() error { answer <- len(s.commit.deletions) > 0; return nil },
			done: func(error) {},
		})
		busy = <-answer
	}
}

// rows are the keys that name a session.
func rows(t *testing.T, s *Store, session string) (keys []string) {
	t.Helper()
	err := s.db.View(func(txn *badger.Txn) error {
		return eachKey(txn, nil, func(key []byte) bool {
			if strings.Contains(string(key), session) {
				keys = append(keys, string(key))
			}
			return true
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestDeletionGoesOnAfterReopening(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 5000)})
	s.Append(Batch{Session: "ses_a", Delete: true}, func(error) {})
	if err := s.Close(); err != nil { // stops in front of the deletion's steps
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	settle(t, s)
	if got := rows(t, s, "ses_a"); got != nil {
		t.Errorf("%d rows left", len(got))
	}
}

func TestCloseCommitsWhatIsQueued(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	var wg sync.WaitGroup
	wg.Add(1000)
	blocked(s, func() {
		for i := range int64(1000) {
			b := Batch{Session: "ses_a", Events: events("ses_a", i, 1)}
			if i == 0 {
				b.Record = session("ses_a", "A", 1)
			}
			s.Append(b, func(err error) {
				if err != nil {
					t.Error(err)
				}
				wg.Done()
			})
		}
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	var refused *messages.Refused
	if err := commit(s, Batch{Session: "ses_a", Events: events("ses_a", 1000, 1)}); !errors.As(err, &refused) || refused.Name != messages.RefusedShutdown {
		t.Errorf("append after close: %v", err)
	}
	if _, err := s.Load(context.Background(), "ses_a"); !errors.As(err, &refused) {
		t.Errorf("load after close: %v", err)
	}
	s = open(t, Options{Dir: dir})
	if n := len(mustLoad(t, s, "ses_a").Events); n != 1000 {
		t.Errorf("%d events", n)
	}
}

func TestOverTheByteBudgetIsBusy(t *testing.T) {
	s := open(t, Options{})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	data := json.RawMessage(`"` + strings.Repeat("x", 200<<10) + `"`)
	var mu sync.Mutex
	busy, good := 0, 0
	var wg sync.WaitGroup
	blocked(s, func() {
		for i := range int64(400) { // 80 MiB
			e := events("ses_a", i, 1)
			e[0].Data = data
			wg.Add(1)
			s.Append(Batch{Session: "ses_a", Events: e}, func(err error) {
				defer wg.Done()
				mu.Lock()
				defer mu.Unlock()
				var refused *messages.Refused
				switch {
				case err == nil && busy > 0:
					t.Error("written behind a refused one")
				case err == nil:
					good++
				case errors.As(err, &refused) && refused.Name == messages.RefusedBusy:
					busy++
				default:
					t.Error(err)
				}
			})
		}
		if q := s.Stats().QueuedBytes; q > queueBytes {
			t.Errorf("%d bytes queued", q)
		}
	})
	wg.Wait()
	if busy == 0 || good < 300 {
		t.Errorf("%d busy, %d good", busy, good)
	}
	mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", int64(good), 1)})
}

func TestBlobs(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		name, err := s.PutBlob([]byte("image"))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.PutBlob([]byte("image")); again != name || err != nil {
			t.Errorf("again: %s %v", again, err)
		}
		if data, err := s.Blob(name); string(data) != "image" || err != nil {
			t.Errorf("read: %q %v", data, err)
		}
		var missing *messages.BlobNotFound
		for _, bad := range []string{"", "../badger/MANIFEST", strings.Repeat("0", 64), strings.ToUpper(name)} {
			if _, err := s.Blob(bad); !errors.As(err, &missing) {
				t.Errorf("blob %q: %v", bad, err)
			}
		}
		if s.dir == "" {
			return
		}
		path := filepath.Join(s.dir, "blobs", name)
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("file: %v %v", fi.Mode(), err)
		}
		if err := os.WriteFile(path, []byte("other"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Blob(name); err == nil || errors.As(err, &missing) {
			t.Errorf("altered blob: %v", err)
		}
	})
}

func TestRestClearsAwayWhatACrashLeft(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	name, err := s.PutBlob([]byte("image"))
	if err != nil {
		t.Fatal(err)
	}
	old, young := filepath.Join(dir, "blobs", blobTemp+"1"), filepath.Join(dir, "blobs", blobTemp+"2")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * blobTempAge)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 1)})
	mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
	settle(t, s)
	if err := s.Rest(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old leftover: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a write under way lost its file: %v", err)
	}
	if _, err := s.Blob(name); err != nil {
		t.Error(err)
	}
	mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1)})
}

func TestSecondProcessIsToldTheStoreIsInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second open: %v", err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	future := map[uint64]migration{schemaVersion: func(context.Context, *Store) error { return nil }}
	if err := s.migrate(context.Background(), schemaVersion+1, future); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.Is(err, ErrNewer) {
		t.Errorf("open: %v", err)
	}
}

func TestMigrateRunsEachStepOnceInOrder(t *testing.T) {
	s := open(t, Options{})
	var ran []string
	failed := false
	steps := map[uint64]migration{
		1: func(context.Context, *Store) error { ran = append(ran, "1"); return nil },
		2: func(context.Context, *Store) error {
			if !failed {
				failed = true
				return errors.New("no luck")
			}
			ran = append(ran, "2")
			return nil
		},
	}
	if err := s.migrate(context.Background(), 3, steps); err == nil || !strings.Contains(err.Error(), "no luck") {
		t.Fatal(err)
	}
	if err := s.migrate(context.Background(), 3, steps); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(context.Background(), 3, nil); err != nil {
		t.Fatal(err)
	}
	if v, err := readSchema(s.db); v != 3 || err != nil || strings.Join(ran, " ") != "1 2" {
		t.Errorf("schema %d %v, ran %v", v, err, ran)
	}
	if err := s.migrate(context.Background(), 4, steps); err == nil {
		t.Error("a missing step went unnoticed")
	}
}

// warnings collects what a store logs.
type warnings struct {
	mu sync.Mutex
	b  strings.Builder
}

func (w *warnings) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func (w *warnings) logger() *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// set changes a row behind the store's back.
func set(t *testing.T, s *Store, key, value []byte) {
	t.Helper()
	err := s.db.Update(func(txn *badger.Txn) error {
		if value == nil {
			return txn.Delete(key)
		}
		return txn.Set(key, value)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, s *Store, key []byte) (value []byte) {
	t.Helper()
	err := s.db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(key)
		if err == nil {
			value, err = item.ValueCopy(nil)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestDamageIsFoundDescribedAndRepaired(t *testing.T) {
	alter := func(change func([]byte) []byte) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) {
			key := eventKey("ses_a", 6)
			set(t, s, key, change(get(t, s, key)))
		}
	}
	for name, c := range map[string]struct {
		break_ func(*testing.T, *Store)
		good   int
		reason string
	}{
		"byte changed": {alter(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), 5, "checksum"},
		"cut":          {alter(func(b []byte) []byte { return b[:10] }), 5, "cut short"},
		"last changed": {func(t *testing.T, s *Store) {
			b := get(t, s, eventKey("ses_a", 10))
			b[len(b)-1] ^= 1
			set(t, s, eventKey("ses_a", 10), b)
		}, 9, "checksum"},
		"missing":       {func(t *testing.T, s *Store) { set(t, s, eventKey("ses_a", 6), nil) }, 5, "missing"},
		"first missing": {func(t *testing.T, s *Store) { set(t, s, eventKey("ses_a", 1), nil) }, 0, "missing"},
		"rewritten with a right checksum": {alter(func(b []byte) []byte {
			r, err := decodeRecord(b)
			if err != nil {
				panic(err)
			}
			r.data = []byte(`{"forged":true}`)
			return r.encode()
		}), 6, "does not follow"},
		"another session's": {func(t *testing.T, s *Store) {
			set(t, s, eventKey("ses_a", 1), get(t, s, eventKey("ses_b", 1)))
		}, 0, "another session"},
		"blob missing": {func(t *testing.T, s *Store) {
			s.blobs = newBlobMap()
		}, 7, "blob"},
	} {
		t.Run(name, func(t *testing.T) {
			var log warnings
			s := open(t, Options{Log: log.logger()})
			evs := events("ses_a", 0, 10)
			evs[7].Data = json.RawMessage(`"` + strings.Repeat("x", maxInline) + `"`)
			mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1), Events: events("ses_b", 0, 1)})
			mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: evs})
			c.break_(t, s)

			snap := mustLoad(t, s, "ses_a")
			if snap.Damaged == nil || !strings.Contains(snap.Damaged.Reason, c.reason) || len(snap.Events) != c.good {
				t.Fatalf("%d good, damage %v", len(snap.Events), snap.Damaged)
			}
			if !strings.Contains(log.String(), "ses_a") {
				t.Error("no warning")
			}
			var damage *Damage
			err := s.Events(context.Background(), "ses_a", 0, 0, func(messages.Event) error { return nil })
			if !errors.As(err, &damage) {
				t.Errorf("events: %v", err)
			}
			found, err := s.Repair(context.Background(), "ses_a")
			if err != nil || len(found) != 1 {
				t.Fatalf("repair: %q %v", found, err)
			}
			if left, err := s.Check(context.Background(), "ses_a"); err != nil || left != nil {
				t.Errorf("left: %q %v", left, err)
			}
			mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", int64(c.good), 3)})
			snap = mustLoad(t, s, "ses_a")
			if snap.Damaged != nil || len(snap.Events) != c.good+3 {
				t.Errorf("after repair: %d events, %v", len(snap.Events), snap.Damaged)
			}
		})
	}
}

func TestListIndexIsRepaired(t *testing.T) {
	s := open(t, Options{})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 7)})
	set(t, s, indexKey(7, "ses_a"), nil)
	set(t, s, indexKey(3, "ses_a"), []byte{})
	found, err := s.Repair(context.Background(), "ses_a")
	if err != nil || len(found) != 2 {
		t.Fatalf("repair: %q %v", found, err)
	}
	if left, err := s.Check(context.Background(), "ses_a"); err != nil || left != nil {
		t.Errorf("left: %q %v", left, err)
	}
	if list, err := s.List(context.Background(), messages.ListSessions{}); len(list) != 1 || err != nil {
		t.Errorf("list: %v %v", list, err)
	}
}

// Nobody is told to move whole files away because a process has too many open.
func TestWhatTheSystemRefusesIsNotDamage(t *testing.T) {
	s := &Store{dir: "/somewhere"}
	for _, e := range []error{syscall.EMFILE, syscall.ENOSPC, syscall.EROFS, syscall.EACCES} {
		for _, err := range []error{
			&os.PathError{Op: "open", Path: "/somewhere/badger", Err: e},
			fmt.Errorf("While opening directory err: %+v", &os.PathError{Op: "open", Path: "/somewhere/badger", Err: e}), // as Badger has it
		} {
			if got := s.openError(err); errors.Is(got, ErrDamaged) || !errors.Is(got, e) && !strings.Contains(got.Error(), e.Error()) {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
	if got := s.openError(errors.New("file does not exist for table 1")); !errors.Is(got, ErrDamaged) {
		t.Error(got)
	}
}
