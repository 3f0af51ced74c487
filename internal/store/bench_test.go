package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// ofSize makes n events with data of a size as sessions have it.
func ofSize(session string, after int64, n, size int) []messages.Event {
	evs := events(session, after, n)
	pad := strings.Repeat("some words of an answer ", size/24+1)[:size]
	for i := range evs {
		evs[i].Data = json.RawMessage(fmt.Sprintf(`{"timestamp":%d,"sessionId":%q,"text":%q}`, evs[i].Seq, session, pad))
	}
	return evs
}

// writers is how many goroutines append at once in BenchmarkCommitter.
const writers = 200

// BenchmarkCommitter measures events a second that many sessions get through
// the committer, each waiting for its answer.
func BenchmarkCommitter(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	last := make([]int64, writers)
	for i := range writers {
		id := fmt.Sprint("ses_", i)
		mustCommit(b, s, Batch{Session: id, Record: session(id, "A", 1)})
	}
	before := s.Stats()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			id := fmt.Sprint("ses_", i)
			for n := i; n < b.N; n += writers {
				if err := commit(s, Batch{Session: id, Events: ofSize(id, last[i], 1, 300)}); err != nil {
					b.Error(err)
					return
				}
				last[i]++
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(b.N)/float64(s.Stats().Commits-before.Commits), "events/commit")
}

// BenchmarkOneByOne is the same with a transaction for each event, from as
// many goroutines: what the committer is for.
func BenchmarkOneByOne(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			id := fmt.Sprint("ses_", i)
			h := Head{Hash: origin(id)}
			for n := i; n < b.N; n += writers {
				e := ofSize(id, h.Seq, 1, 300)[0]
				value, err := encodeEvent(&e, h.Hash, false, kept{data: e.Data})
				if err == nil {
					err = s.db.Update(func(txn *badger.Txn) error { return txn.Set(eventKey(id, e.Seq), value) })
				}
				if err != nil {
					b.Error(err)
					return
				}
				h = Head{Seq: e.Seq, Hash: hashRecord(e.Seq, value)}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{0, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			s := open(b, Options{Dir: dir})
			mustCommit(b, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: ofSize("ses_a", 0, n, 1000)})
			if err := s.Close(); err != nil { // read from tables, as after a start
				b.Fatal(err)
			}
			s = open(b, Options{Dir: dir})
			b.ReportAllocs()
			for b.Loop() {
				if snap := mustLoad(b, s, "ses_a"); len(snap.Events) != n || snap.Damaged != nil {
					b.Fatal(len(snap.Events), snap.Damaged)
				}
			}
		})
	}
}

// stocked is a store of n sessions that each were written to several times, as
// work does, read from tables as after a start.
func stocked(b *testing.B, n int) *Store {
	dir := b.TempDir()
	s := open(b, Options{Dir: dir})
	const rounds = 4
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range n {
			id, r := fmt.Sprintf("ses_01a22bb7-1d08-7447-a908-%012d", i), messages.SessionRecord{}
			r = *session(id, fmt.Sprintf("Look after heron %06d of the garden", i), int64(rounds*i+round))
			r.HostDir, r.Directory = fmt.Sprint("/home/someone/projects/garden-", i%20), fmt.Sprint("/home/someone/projects/garden-", i%20)
			wg.Add(1)
			s.Append(Batch{Session: id, Record: &r, Events: ofSize(id, int64(round), 1, 300)}, func(err error) {
				if err != nil {
					b.Error(err)
				}
				wg.Done()
			})
		}
		wg.Wait()
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	return open(b, Options{Dir: dir})
}

// BenchmarkList shows how finding sessions grows with those there are: pages
// must not, what looks at every title may.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		s := stocked(b, n)
		for _, q := range []struct {
			name string
			want int
			messages.ListSessions
		}{
			{"first", 50, messages.ListSessions{Limit: 50}},
			{"middle", 50, messages.ListSessions{Limit: 50, Before: fmt.Sprintf("ses_01a22bb7-1d08-7447-a908-%012d", n/2)}},
			{"folder", 50, messages.ListSessions{Limit: 50, HostDir: "/home/someone/projects/garden-7"}},
			{"search", 1, messages.ListSessions{Limit: 50, Search: fmt.Sprintf("%06d", n/2)}},
			{"nothing", 0, messages.ListSessions{Limit: 50, Search: "ostrich"}},
		} {
			b.Run(fmt.Sprint(q.name, "/", n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if list, err := s.List(context.Background(), q.ListSessions); len(list) != q.want || err != nil {
						b.Fatal(len(list), err)
					}
				}
			})
		}
	}
}

// BenchmarkHashChain is what chaining costs an event.
func BenchmarkHashChain(b *testing.B) {
	e := ofSize("ses_a", 0, 1, 300)[0]
	value, err := encodeEvent(&e, origin("ses_a"), false, kept{data: e.Data})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		hashRecord(1, value)
	}
}

func BenchmarkEncodeEvent(b *testing.B) {
	e := ofSize("ses_a", 0, 1, 300)[0]
	prev := origin("ses_a")
	for b.Loop() {
		if _, err := encodeEvent(&e, prev, false, kept{data: e.Data}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpenEmpty makes, opens and closes a store on disk.
func BenchmarkOpenEmpty(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		b.StartTimer()
		s, err := Open(context.Background(), Options{Dir: dir})
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReopen opens and closes a store that holds something.
func BenchmarkReopen(b *testing.B) {
	dir := b.TempDir()
	s := open(b, Options{Dir: dir})
	mustCommit(b, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: ofSize("ses_a", 0, 500, 300)})
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(context.Background(), Options{Dir: dir})
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCollect looks through a home of 100 MB for blobs that nothing names,
// which happens once behind deletions, when nobody needs the database.
func BenchmarkCollect(b *testing.B) {
	dir := b.TempDir()
	s := open(b, Options{Dir: dir})
	const sessions, size = 200, 500 << 10
	var wg sync.WaitGroup
	for i := range sessions {
		id := fmt.Sprint("ses_", i)
		wg.Add(1)
		s.Append(Batch{Session: id, Record: session(id, "A", 1), Events: ofSize(id, 0, 500, size/500)}, func(err error) {
			if err != nil {
				b.Error(err)
			}
			wg.Done()
		})
		wg.Wait()
	}
	if err := s.Close(); err != nil { // read from tables
		b.Fatal(err)
	}
	s = open(b, Options{Dir: dir})
	b.SetBytes(sessions * size)
	for b.Loop() {
		b.StopTimer()
		if _, err := s.PutBlob([]byte("of nobody")); err != nil {
			b.Fatal(err)
		}
		if err := s.db.Update(func(txn *badger.Txn) error { return txn.Delete(tidyKey) }); err != nil {
			b.Fatal(err)
		}
		age(s)
		b.StartTimer()
		if s.collect(); len(files(b, s)) > 0 {
			b.Fatal("it is still there")
		}
	}
}
