package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// found are the ids that a list answers with.
func found(t testing.TB, s *Store, f messages.ListSessions) (ids []string) {
	t.Helper()
	list, err := s.List(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		ids = append(ids, r.ID)
	}
	return ids
}

func wantFound(t testing.TB, s *Store, f messages.ListSessions, want ...string) {
	t.Helper()
	if got := found(t, s, f); !slices.Equal(got, want) {
		t.Errorf("%+v: %v, want %v", f, got, want)
	}
}

func TestSearchTakesLettersHoweverTheyWereTyped(t *testing.T) {
	for _, c := range []struct {
		title, search string
		found         bool
	}{
		{"Fix the parser", "PARSER", true},
		{"Fix the parser", "the  parser", false},
		{"Café am Rhein", "cafe", true},
		{"Cafe am Rhein", "café", true},
		{"Cafe\u0301 am Rhein", "CAFÉ", true},    // typed as e and an accent
		{"Café am Rhein", "cafe\u0301 am", true}, // the other way round
		{"ÜBUNG", "übung", true},
		{"İstanbul", "istanbul", true},
		{"ﬁle names", "file", true}, // one sign for two letters
		{"Привет", "ПРИВЕТ", true},
		{"日本語のテスト", "テスト", true},
		{"Straße", "strasse", false}, // another spelling, not another accent
		{"resume", "resumes", false},
	} {
		s := open(t, Options{})
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", c.title, 1)})
		if got := len(found(t, s, messages.ListSessions{Search: c.search})) == 1; got != c.found {
			t.Errorf("%q in %q: %t", c.search, c.title, got)
		}
	}
}

func TestTheListFollowsTheSessions(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		record := func(title, folder string, at int64) *messages.SessionRecord {
			r := session("ses_a", title, at)
			r.HostDir = folder
			return r
		}
		mustCommit(t, s, Batch{Session: "ses_a", Record: record("heron", "/one", 5)})
		mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "another heron", 4)})
		// Renamed and moved without a change of the time.
		mustCommit(t, s, Batch{Session: "ses_a", Record: record("sparrow", "/two", 5)})
		wantFound(t, s, messages.ListSessions{Search: "heron"}, "ses_b")
		wantFound(t, s, messages.ListSessions{Search: "sparrow"}, "ses_a")
		wantFound(t, s, messages.ListSessions{HostDir: "/one"})
		wantFound(t, s, messages.ListSessions{HostDir: "/two"}, "ses_a")
		mustCommit(t, s, Batch{Session: "ses_a", Record: record("eagle", "/two", 9)})
		wantFound(t, s, messages.ListSessions{Search: "sparrow"})
		wantFound(t, s, messages.ListSessions{Search: "e"}, "ses_a", "ses_b")
		mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
		wantFound(t, s, messages.ListSessions{Search: "e"}, "ses_b")
		mustCommit(t, s, Batch{Session: "ses_c", Record: session("ses_c", "fork of a heron", 10), Base: &Head{Seq: 7}, Events: events("ses_c", 7, 1)})
		wantFound(t, s, messages.ListSessions{Search: "heron"}, "ses_c", "ses_b")
	})
}

// Pages hold what was there when the list began, once each, whatever comes, goes
// or moves between two of them.
func TestPagesStayConsistentWhileSessionsComeAndGo(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		const n = 60
		id := func(i int) string { return fmt.Sprintf("ses_%03d", i) }
		for i := range n {
			mustCommit(t, s, Batch{Session: id(i), Record: session(id(i), "heron", int64(1000+i))})
		}
		seen := map[string]int{}
		q := messages.ListSessions{Search: "heron", Limit: 7}
		for round := 0; ; round++ {
			page, err := s.List(context.Background(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page {
				seen[r.ID]++
			}
			if len(page) < q.Limit {
				break
			}
			last := page[len(page)-1]
			q.Before, q.BeforeTime = last.ID, last.UpdatedAt
			// One comes, the last one seen moves to the front, one not seen yet goes.
			fresh := fmt.Sprintf("ses_new%d", round)
			mustCommit(t, s, Batch{Session: fresh, Record: session(fresh, "heron", int64(5000+round))})
			mustCommit(t, s, Batch{Session: last.ID, Record: session(last.ID, "heron", int64(6000+round))})
			mustCommit(t, s, Batch{Session: id(round), Delete: true})
			seen[id(round)] += 0
		}
		for i := range n {
			if c, gone := seen[id(i)], i < 8; c > 1 || c == 0 && !gone {
				t.Errorf("%s came %d times", id(i), c)
			}
		}
		for i := range seen {
			if strings.HasPrefix(i, "ses_new") {
				t.Errorf("%s was made behind the first page", i)
			}
		}
	})
}

// bare makes index rows what older builds write.
func bare(t testing.TB, s *Store) {
	t.Helper()
	err := s.db.Update(func(txn *badger.Txn) error {
		var keys [][]byte
		err := eachKey(txn, []byte(indexPrefix), func(key []byte) bool {
			keys = append(keys, bytes.Clone(key))
			return true
		})
		for _, k := range keys {
			err = errors.Join(err, txn.Set(k, nil))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// silent counts index rows that say nothing.
func silent(t testing.TB, s *Store) (n int) {
	t.Helper()
	err := s.view(func(txn *badger.Txn) error {
		opt := badger.DefaultIteratorOptions
		opt.Prefix = []byte(indexPrefix)
		it := txn.NewIterator(opt)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			if err := it.Item().Value(func(v []byte) error {
				if _, _, ok := decodeIndex(v); !ok {
					n++
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A home of an older build is searched as before, and its index is filled once.
func TestTheIndexOfAnOlderBuildIsFilledByTheFirstSearch(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	const n = 2*fillRows + 10
	var all sync.WaitGroup
	for i := range n {
		id := fmt.Sprintf("ses_%04d", i)
		all.Add(1)
		s.Append(Batch{Session: id, Record: session(id, fmt.Sprintf("Héron %04d", i), int64(i))}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			all.Done()
		})
	}
	all.Wait()
	bare(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	if got := found(t, s, messages.ListSessions{}); len(got) != n || silent(t, s) != n {
		t.Fatalf("%d sessions, %d rows say nothing: a list without a filter needs no more", len(got), silent(t, s))
	}
	wantFound(t, s, messages.ListSessions{Search: "heron 0007"}, "ses_0007")
	for late := time.Now().Add(10 * time.Second); silent(t, s) > 0; {
		if time.Now().After(late) {
			t.Fatalf("%d rows still say nothing", silent(t, s))
		}
		mustCommit(t, s, Batch{Session: "ses_0000"}) // behind a step of the filling
	}
	wantFound(t, s, messages.ListSessions{Search: "heron 0007"}, "ses_0007")
	if lines, err := s.Check(context.Background(), "ses_0007"); len(lines) > 0 || err != nil {
		t.Error(lines, err)
	}
}

func FuzzIndexRow(f *testing.F) {
	f.Add([]byte{}, "Title", "/folder")
	f.Add([]byte{indexVersion, 2, 'a', 'b', 'c'}, "Café", "")
	f.Add([]byte{indexVersion, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, "", "x")
	// Rule: any bytes are either refused or cut into a folder and a title; what
	// is written is read as it was.
	f.Fuzz(func(t *testing.T, b []byte, title, folder string) {
		if dir, text, ok := decodeIndex(b); ok && len(dir)+len(text) > len(b) {
			t.Errorf("%d and %d bytes out of %d", len(dir), len(text), len(b))
		}
		r := messages.SessionRecord{Title: title, HostDir: folder}
		dir, text, ok := decodeIndex(indexValue(&r))
		if !ok || string(dir) != folder || string(text) != fold(title) {
			t.Errorf("%q %q: %q %q %t", folder, title, dir, text, ok)
		}
	})
}

// back reads all that Back gives.
func back(t testing.TB, s *Store, id string, below int64, most int) (got []messages.Event, err error) {
	t.Helper()
	_, err = s.Back(context.Background(), id, below, func(e messages.Event) bool {
		e.Data = bytes.Clone(e.Data)
		got = append(got, e)
		return len(got) != most
	})
	return got, err
}

func TestALogIsReadFromItsEnd(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		evs := events("ses_a", 0, 20)
		evs[4].Data = []byte(`"` + strings.Repeat("x", maxInline) + `"`) // a blob
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: evs})
		mustCommit(t, s, Batch{Session: "ses_a2", Record: session("ses_a2", "B", 1), Events: events("ses_a2", 0, 3)})
		slices.Reverse(evs)
		for _, c := range []struct {
			below int64
			most  int
			want  []messages.Event
		}{{0, 0, evs}, {0, 3, evs[:3]}, {8, 2, evs[13:15]}, {1, 0, nil}, {6, 0, evs[15:]}} {
			got, err := back(t, s, "ses_a", c.below, c.most)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("below %d, %d: %d events, %v", c.below, c.most, len(got), err)
			}
		}
		base := Head{Seq: 7}
		mustCommit(t, s, Batch{Session: "ses_f", Record: session("ses_f", "F", 1), Base: &base, Events: events("ses_f", 7, 2)})
		if got, err := back(t, s, "ses_f", 0, 0); len(got) != 2 || err != nil {
			t.Errorf("a fork: %d events, %v", len(got), err)
		}
		mustCommit(t, s, Batch{Session: "ses_e", Record: session("ses_e", "E", 1)})
		if got, err := back(t, s, "ses_e", 0, 0); len(got) != 0 || err != nil {
			t.Errorf("no events: %v, %v", got, err)
		}
		var missing *messages.SessionNotFound
		if _, err := back(t, s, "ses_x", 0, 0); !errors.As(err, &missing) {
			t.Error(err)
		}
	})
}

func TestALogThatIsNotWholeIsNoticedFromItsEnd(t *testing.T) {
	for name, harm := range map[string]func(*testing.T, *Store){
		"its end is missing":    func(t *testing.T, s *Store) { drop(t, s, eventKey("ses_a", 9), eventKey("ses_a", 10)) },
		"one is missing":        func(t *testing.T, s *Store) { drop(t, s, eventKey("ses_a", 5)) },
		"the first is missing":  func(t *testing.T, s *Store) { drop(t, s, eventKey("ses_a", 1)) },
		"one is another log's":  func(t *testing.T, s *Store) { set(t, s, eventKey("ses_a", 5), value(t, s, eventKey("ses_b", 5))) },
		"one was altered":       func(t *testing.T, s *Store) { set(t, s, eventKey("ses_a", 5), []byte("x")) },
		"all is another log's":  func(t *testing.T, s *Store) { swap(t, s) },
		"the newest is altered": func(t *testing.T, s *Store) { set(t, s, eventKey("ses_a", 10), []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{})
			for _, id := range []string{"ses_a", "ses_b"} {
				mustCommit(t, s, Batch{Session: id, Record: session(id, "A", 1), Events: events(id, 0, 10)})
			}
			harm(t, s)
			var damage *Damage
			if got, err := back(t, s, "ses_a", 0, 0); !errors.As(err, &damage) {
				t.Errorf("%d events, %v", len(got), err)
			}
		})
	}
}

func value(t *testing.T, s *Store, key []byte) (v []byte) {
	t.Helper()
	if err := s.view(func(txn *badger.Txn) error {
		item, err := txn.Get(key)
		if err == nil {
			v, err = item.ValueCopy(nil)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return v
}

func drop(t *testing.T, s *Store, keys ...[]byte) {
	t.Helper()
	if err := s.db.Update(func(txn *badger.Txn) error {
		for _, k := range keys {
			if err := txn.Delete(k); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func swap(t *testing.T, s *Store) {
	t.Helper()
	for seq := range int64(10) {
		set(t, s, eventKey("ses_a", seq+1), value(t, s, eventKey("ses_b", seq+1)))
	}
}

func TestAMentionIsTheNewestOne(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		evs := events("ses_a", 0, 12)
		evs[2].Data, evs[8].Data = []byte(`{"messageId":"heron"}`), []byte(`{"text":"of a heron"}`)
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: evs})
		mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "heron", 1), Events: events("ses_b", 0, 3)})
		for below, want := range map[int64]int64{0: 9, 9: 3, 3: 0} {
			if got, err := s.Mention(context.Background(), "ses_a", "heron", below); got != want || err != nil {
				t.Errorf("below %d: %d, %v", below, got, err)
			}
		}
		if got, err := s.Mention(context.Background(), "ses_b", "heron", 0); got != 0 || err != nil {
			t.Errorf("another session: %d, %v", got, err)
		}
	})
}

// Rest reopens the database under readers and writers, and nobody notices.
// The longest folders and titles are more than one transaction holds.
func TestLongRowsOfAnOlderIndexAreFilledToo(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	var all sync.WaitGroup
	for i := range fillRows {
		id := fmt.Sprintf("ses_%04d", i)
		r := session(id, strings.Repeat("\ufdfa", 200), int64(i)) // folded it is eleven times as long
		r.HostDir = "/" + strings.Repeat("d", 4000)
		all.Add(1)
		s.Append(Batch{Session: id, Record: r}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			all.Done()
		})
	}
	all.Wait()
	bare(t, s)
	found(t, s, messages.ListSessions{Search: "x"})
	for late := time.Now().Add(10 * time.Second); silent(t, s) > 0; {
		if time.Now().After(late) {
			t.Fatalf("%d rows still say nothing", silent(t, s))
		}
		mustCommit(t, s, Batch{Session: "ses_0000"}) // behind a step of the filling
	}
}

// A page is full also where records between its sessions cannot be read, and a
// long list is in order however many decode it.
func TestAPageIsFullBesideRecordsThatCannotBeRead(t *testing.T) {
	s := open(t, Options{})
	const n = 3 * listStretch / 2
	var done sync.WaitGroup
	for i := range n {
		id := fmt.Sprintf("ses_%04d", i)
		done.Add(1)
		s.Append(Batch{Session: id, Record: session(id, id, int64(n-i))}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			done.Done()
		})
	}
	done.Wait()
	for _, i := range []int{0, 7, listStretch - 1, listStretch, n - 1} {
		set(t, s, recordKey(fmt.Sprintf("ses_%04d", i)), []byte("not a record"))
	}
	for _, limit := range []int{0, 1, 10, listStretch, n - 5, n} {
		list, err := s.List(context.Background(), messages.ListSessions{Limit: limit})
		want := n - 5
		if limit > 0 {
			want = min(limit, want)
		}
		if err != nil || len(list) != want {
			t.Fatalf("limit %d: %d sessions, want %d, %v", limit, len(list), want, err)
		}
		for i := 1; i < len(list); i++ {
			if list[i].ID <= list[i-1].ID {
				t.Fatalf("limit %d: %s behind %s", limit, list[i].ID, list[i-1].ID)
			}
		}
	}
}
