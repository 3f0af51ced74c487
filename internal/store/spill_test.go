package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	"codework/messages"
)

// gate lets a test decide when each blob is written, and whether it can be.
type gate struct {
	blobs
	puts chan chan error // one for each blob: what is sent to it comes of the write
}

func (g gate) put(name string, data []byte) error {
	said := make(chan error)
	g.puts <- said
	if err := <-said; err != nil {
		return err
	}
	return g.blobs.put(name, data)
}

// gated makes a store wait for the test before it writes a blob.
func gated(s *Store) gate {
	g := gate{s.blobs, make(chan chan error)}
	s.blobs = g
	return g
}

// long makes an event with data of a size that no other has.
func long(session string, after int64, size int) []messages.Event {
	evs := events(session, after, 1)
	evs[0].Data = json.RawMessage(fmt.Sprintf(`{"a":"%s %d%s"}`, session, after, strings.Repeat("x", size)))
	return evs
}

func TestABlobThatTakesLongHoldsUpItsSessionOnly(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		for _, id := range []string{"ses_a", "ses_b", "ses_c"} {
			mustCommit(t, s, Batch{Session: id, Record: session(id, "A", 1)})
		}
		g := gated(s)
		answers := make(chan string, 2)
		say := func(what string) func(error) {
			return func(err error) { answers <- fmt.Sprint(what, err) }
		}
		s.Append(Batch{Session: "ses_a", Events: long("ses_a", 0, maxInline)}, say("large "))
		s.Append(Batch{Session: "ses_a", Events: events("ses_a", 1, 1)}, say("behind it "))
		slow := <-g.puts
		mustCommit(t, s, Batch{Session: "ses_b", Events: events("ses_b", 0, 1)})
		other := make(chan error, 1)
		s.Append(Batch{Session: "ses_c", Events: long("ses_c", 0, maxInline)}, func(err error) { other <- err })
		(<-g.puts) <- nil // of another session, which passes
		if err := <-other; err != nil {
			t.Error(err)
		}
		if st := s.Stats(); st.Queued != 2 || st.QueuedBytes < maxInline {
			t.Errorf("%d batches of %d bytes wait", st.Queued, st.QueuedBytes)
		}
		select {
		case a := <-answers:
			t.Errorf("answered before its blob was written: %s", a)
		default:
		}
		slow <- nil
		for _, want := range []string{"large <nil>", "behind it <nil>"} {
			if got := <-answers; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		if st := s.Stats(); st.Queued != 0 || st.QueuedBytes != 0 {
			t.Errorf("%d batches of %d bytes are left", st.Queued, st.QueuedBytes)
		}
		for _, id := range []string{"ses_a", "ses_b", "ses_c"} {
			if snap := mustLoad(t, s, id); snap.Damaged != nil || len(snap.Events) == 0 {
				t.Error(id, len(snap.Events), snap.Damaged)
			}
		}
	})
}

// Whatever blobs are written first, each session is answered in the order of its
// batches, and few of them are written at a time.
func TestSessionsKeepTheirOrderWhateverTheOrderOfTheirBlobs(t *testing.T) {
	s := open(t, Options{})
	g := gated(s)
	const sessions, batches = 3 * blobWriters, 12
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	answered := make(map[string][]int)
	large := 0
	var wg sync.WaitGroup
	want := make(map[string][]messages.Event)
	for n := range batches {
		for i := range sessions {
			id := fmt.Sprint("ses_", i)
			b := Batch{Session: id, Events: events(id, int64(n), 1)}
			if n == 0 {
				b.Record = session(id, "A", 1)
			}
			if r.IntN(3) == 0 {
				large++
				if b.Events = long(id, int64(n), maxInline); r.IntN(2) == 0 {
					b.Events = events(id, int64(n), 1)
					b.Checkpoint = &Checkpoint{Seq: int64(n) + 1, Data: long(id, int64(n), maxInline)[0].Data}
				}
			}
			want[id] = append(want[id], b.Events...)
			wg.Add(1)
			s.Append(b, func(err error) {
				defer wg.Done()
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(id, n, err)
				}
				answered[id] = append(answered[id], n)
			})
		}
	}
	var under []chan error  // way
	for range blobWriters { // as many as may be at a time
		under = append(under, <-g.puts)
	}
	for ; large > 0; large-- {
		if len(under) == 0 {
			under = append(under, <-g.puts)
		}
		for more := true; more; {
			select {
			case p := <-g.puts:
				under = append(under, p)
			default:
				more = false
			}
		}
		if len(under) > blobWriters {
			t.Fatalf("%d are written at a time", len(under))
		}
		i := r.IntN(len(under))
		under[i] <- nil
		under = append(under[:i], under[i+1:]...)
	}
	wg.Wait()
	for id, got := range answered {
		for n := range batches {
			if len(got) != batches || got[n] != n {
				t.Fatalf("%s was answered in the order %v", id, got)
			}
		}
		if snap := mustLoad(t, s, id); snap.Damaged != nil || !reflect.DeepEqual(snap.Events, want[id]) {
			t.Errorf("%s: %d events, damage %v", id, len(snap.Events), snap.Damaged)
		}
	}
}

func TestABlobThatCannotBeWrittenFailsItsBatchInItsPlace(t *testing.T) {
	s := open(t, Options{})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 1)})
	g := gated(s)
	answers := make(chan error, 3)
	say := func(err error) { answers <- err }
	s.Append(Batch{Session: "ses_a", Events: long("ses_a", 1, maxInline)}, say)
	s.Append(Batch{Session: "ses_a", Events: events("ses_a", 2, 1)}, say)
	s.Append(Batch{Session: "ses_a", Events: long("ses_a", 1, maxInline+1)}, say)
	broken := errors.New("the disk is broken")
	(<-g.puts) <- broken
	if err := <-answers; !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := <-answers; !errors.Is(err, ErrGap) {
		t.Errorf("what followed it: %v", err)
	}
	(<-g.puts) <- nil
	if err := <-answers; err != nil {
		t.Errorf("in its place: %v", err)
	}
	if snap := mustLoad(t, s, "ses_a"); len(snap.Events) != 2 || snap.Damaged != nil {
		t.Error(len(snap.Events), snap.Damaged)
	}
}

func TestCloseCommitsWhatWaitsForBlobs(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	g := gated(s)
	answers, closed := make(chan error, 3), make(chan error, 1)
	say := func(err error) { answers <- err }
	s.Append(Batch{Session: "ses_a", Events: long("ses_a", 0, maxInline)}, say)
	s.Append(Batch{Session: "ses_a", Events: long("ses_a", 1, maxInline)}, say)
	s.Append(Batch{Session: "ses_a", Events: events("ses_a", 2, 1)}, say)
	first := <-g.puts
	go func() { closed <- s.Close() }()
	soon(t, "it is closing", func() bool { s.commit.mu.Lock(); defer s.commit.mu.Unlock(); return s.commit.closing })
	var refused *messages.Refused
	if err := commit(s, Batch{Session: "ses_a", Events: events("ses_a", 3, 1)}); !errors.As(err, &refused) || refused.Name != messages.RefusedShutdown {
		t.Errorf("appended while it closes: %v", err)
	}
	first <- nil
	(<-g.puts) <- nil
	for range cap(answers) {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if snap := mustLoad(t, open(t, Options{Dir: dir}), "ses_a"); len(snap.Events) != 3 || snap.Damaged != nil {
		t.Error(len(snap.Events), snap.Damaged)
	}
}

// What others wait for does not write blobs, be it one long value, or many that
// together are too long for a transaction.
func TestTheCommitterWritesNoBlobs(t *testing.T) {
	s := open(t, Options{})
	rec := session("ses_a", "A", 1)
	rec.AppendSystemPrompt = strings.Repeat("x", maxInline)
	many := events("ses_a", 1, 20)
	for i := range many {
		many[i].Data = long("ses_a", int64(i), 200_000)[0].Data
	}
	g := gated(s)
	var answers sync.WaitGroup
	for _, b := range []Batch{
		{Session: "ses_a", Record: rec, Events: long("ses_a", 0, maxInline)},
		{Session: "ses_a", Events: many, Checkpoint: &Checkpoint{Seq: 21, Data: bytes.Repeat([]byte("y"), maxInline+1)}},
	} {
		answers.Add(1)
		s.Append(b, func(err error) {
			if err != nil {
				t.Error(err)
			}
			answers.Done()
		})
	}
	blocked(s, func() {
		for range 2 + len(many) + 1 {
			(<-g.puts) <- nil
		}
		soon(t, "all wait for the committer", func() bool {
			s.commit.mu.Lock()
			defer s.commit.mu.Unlock()
			return len(s.commit.held) == 0
		})
	})
	answers.Wait() // for ever, if one more was written
	if snap := mustLoad(t, s, "ses_a"); len(snap.Events) != 21 || snap.Damaged != nil {
		t.Error(len(snap.Events), snap.Damaged)
	}
}
