package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"codework/messages"
)

// at is a checkpoint whose data says what it covers.
func at(seq, after int64) *Checkpoint {
	return &Checkpoint{Seq: seq, After: after, Data: fmt.Appendf(nil, "%d to %d", after+1, seq)}
}

func mustRecall(t testing.TB, s *Store, session string) Snapshot {
	t.Helper()
	snap, err := s.Recall(context.Background(), session)
	if err != nil || snap.Damaged != nil {
		t.Fatal(err, snap.Damaged)
	}
	return snap
}

// withCheckpoints makes a session of 10 events with checkpoints at 3, 6 and 8.
func withCheckpoints(t testing.TB, s *Store, id string) {
	t.Helper()
	mustCommit(t, s, Batch{Session: id, Record: session(id, "A", 1), Events: events(id, 0, 3), Checkpoint: at(3, 0)})
	mustCommit(t, s, Batch{Session: id, Events: events(id, 3, 3), Checkpoint: at(6, 3)})
	mustCommit(t, s, Batch{Session: id, Events: events(id, 6, 2)})
	mustCommit(t, s, Batch{Session: id, Checkpoint: at(8, 6)})
	mustCommit(t, s, Batch{Session: id, Events: events(id, 8, 2)})
}

func TestALogIsReadFromItsNewestCheckpointOn(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		withCheckpoints(t, s, "ses_a")
		withCheckpoints(t, s, "ses_aa")
		snap, whole := mustRecall(t, s, "ses_a"), mustLoad(t, s, "ses_a")
		if want := []Checkpoint{*at(3, 0), *at(6, 3), *at(8, 6)}; !reflect.DeepEqual(snap.Checkpoints, want) {
			t.Errorf("checkpoints %+v, want %+v", snap.Checkpoints, want)
		}
		if !reflect.DeepEqual(snap.Events, events("ses_a", 8, 2)) || len(whole.Events) != 10 || whole.Checkpoints != nil {
			t.Errorf("%d events behind them, %d in the log, %v", len(snap.Events), len(whole.Events), whole.Checkpoints)
		}
		if snap.Head != whole.Head || !reflect.DeepEqual(snap.Record, whole.Record) {
			t.Errorf("%+v, want the head and the record of %+v", snap, whole)
		}
		// One that begins with the log takes the place of those before.
		mustCommit(t, s, Batch{Session: "ses_a", Checkpoint: at(10, 0)})
		if snap := mustRecall(t, s, "ses_a"); len(snap.Checkpoints) != 1 || len(snap.Events) != 0 || snap.Head != whole.Head {
			t.Errorf("%+v", snap)
		}
		if found, err := s.Check(context.Background(), "ses_a"); err != nil || found != nil {
			t.Error(found, err)
		}
		mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
		settle(t, s)
		for _, key := range rows(t, s, "ses_a") {
			if !strings.Contains(key, "ses_aa") {
				t.Errorf("left behind: %q", key)
			}
		}
		if snap := mustRecall(t, s, "ses_aa"); len(snap.Checkpoints) != 3 {
			t.Errorf("another session has %d checkpoints left", len(snap.Checkpoints))
		}
	})
}

func TestALargeCheckpointIsABlob(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		big := &Checkpoint{Seq: 2, Data: bytes.Repeat([]byte("heron "), maxInline)}
		mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 2), Checkpoint: big})
		if snap := mustRecall(t, s, "ses_a"); len(snap.Checkpoints) != 1 || !bytes.Equal(snap.Checkpoints[0].Data, big.Data) {
			t.Errorf("%d checkpoints", len(snap.Checkpoints))
		}
	})
}

// The first checkpoint of a log that an older build wrote may be larger than what
// may wait for the disk.
func TestEventsAreNotRefusedForALargeCheckpoint(t *testing.T) {
	s := open(t, Options{})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 1)})
	release, said := make(chan struct{}), make(chan error, 2)
	s.commit.push(&item{call: func() error { <-release; return nil }, done: func(error) {}})
	tell := func(err error) { said <- err }
	s.Append(Batch{Session: "ses_a", Events: events("ses_a", 1, 1)}, tell)
	s.Append(Batch{Session: "ses_a", Events: events("ses_a", 2, 1), Checkpoint: &Checkpoint{Seq: 3, Data: bytes.Repeat([]byte("x"), queueBytes)}}, tell)
	close(release)
	for range 2 {
		if err := <-said; err != nil {
			t.Error(err)
		}
	}
	if snap := mustRecall(t, s, "ses_a"); len(snap.Checkpoints) != 1 || len(snap.Checkpoints[0].Data) != queueBytes {
		t.Errorf("%d checkpoints", len(snap.Checkpoints))
	}
}

func TestACheckpointIsOfTheEndOfTheLog(t *testing.T) {
	s := open(t, Options{})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 3)})
	for _, c := range []*Checkpoint{at(2, 0), at(4, 0)} {
		if err := commit(s, Batch{Session: "ses_a", Checkpoint: c}); !errors.Is(err, ErrGap) {
			t.Errorf("at %d: %v", c.Seq, err)
		}
	}
	var refused *messages.Refused
	if err := commit(s, Batch{Session: "ses_a", Delete: true, Checkpoint: at(3, 0)}); !errors.As(err, &refused) {
		t.Error(err)
	}
	if snap := mustRecall(t, s, "ses_a"); snap.Checkpoints != nil || len(snap.Events) != 3 {
		t.Errorf("%+v", snap)
	}
}

func TestAForkHasCheckpointsAboveItsBase(t *testing.T) {
	s := open(t, Options{})
	base := Head{Seq: 7, Hash: origin("ses_other")}
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Base: &base, Events: events("ses_a", 7, 2), Checkpoint: at(9, 0)})
	mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", 9, 1)})
	if snap := mustRecall(t, s, "ses_a"); len(snap.Checkpoints) != 1 || len(snap.Events) != 1 || snap.Head != mustLoad(t, s, "ses_a").Head {
		t.Errorf("%+v", snap)
	}
}

// Whatever is wrong with a checkpoint, the log is read instead; Check says what it
// is, and Repair takes the checkpoints away and leaves the log alone.
func TestCheckpointsThatDoNotFitCountForNothing(t *testing.T) {
	remove := func(t *testing.T, s *Store, key []byte) {
		c := prepared{}
		c.remove(key)
		if err := s.db.Update(c.put); err != nil {
			t.Fatal(err)
		}
	}
	none, older := []int64(nil), []int64{3, 6}
	for _, x := range []struct {
		name    string
		count   []int64 // those that do fit
		finding string
		harm    func(*testing.T, *Store)
	}{
		{"one is missing", none, "checkpoint at event 6: it is missing", func(t *testing.T, s *Store) { remove(t, s, checkpointKey("ses_a", 6)) }},
		{"the first is missing", none, "checkpoint at event 3: it is missing", func(t *testing.T, s *Store) { remove(t, s, checkpointKey("ses_a", 3)) }},
		{"cut short", none, "checkpoint at event 8: record is cut short", func(t *testing.T, s *Store) { set(t, s, checkpointKey("ses_a", 8), []byte{checkpointVersion, 0, 1}) }},
		{"a changed byte", none, "checkpoint at event 3: record was changed: its checksum is wrong", func(t *testing.T, s *Store) {
			v := get(t, s, checkpointKey("ses_a", 3))
			v[checkpointHead]++
			set(t, s, checkpointKey("ses_a", 3), v)
		}},
		{"a newer form", none, "checkpoint at event 8: record was written by a newer version", func(t *testing.T, s *Store) {
			v := get(t, s, checkpointKey("ses_a", 8))
			v[0]++
			set(t, s, checkpointKey("ses_a", 8), reseal(v))
		}},
		{"of another log", older, "checkpoint at event 8: it was made from another log", func(t *testing.T, s *Store) {
			set(t, s, checkpointKey("ses_a", 8), get(t, s, checkpointKey("ses_b", 8)))
		}},
		{"at no event", []int64{3, 6, 8}, "checkpoint at event 11: it was made from another log", func(t *testing.T, s *Store) {
			set(t, s, checkpointKey("ses_a", 11), get(t, s, checkpointKey("ses_a", 8)))
		}},
		{"goes on from itself", none, "checkpoint at event 8: record has no known form", func(t *testing.T, s *Store) {
			v := get(t, s, checkpointKey("ses_a", 8))
			v[9] = 8
			set(t, s, checkpointKey("ses_a", 8), reseal(v))
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			var said warnings
			s := open(t, Options{Log: said.logger()})
			withCheckpoints(t, s, "ses_a")
			withCheckpoints(t, s, "ses_b")
			whole := mustLoad(t, s, "ses_a")
			x.harm(t, s)
			snap := mustRecall(t, s, "ses_a")
			var count []int64
			for _, c := range snap.Checkpoints {
				count = append(count, c.Seq)
			}
			covered := 0
			if len(count) > 0 {
				covered = int(count[len(count)-1])
			}
			if !slices.Equal(count, x.count) || snap.Head != whole.Head || !reflect.DeepEqual(snap.Events, whole.Events[covered:]) {
				t.Errorf("%v count, %d events behind them", count, len(snap.Events))
			}
			if !strings.Contains(said.String(), "checkpoints left out") {
				t.Error("nothing was said of it")
			}
			for _, find := range []func(context.Context, string) ([]string, error){s.Check, s.Repair} {
				if found, err := find(context.Background(), "ses_a"); err != nil || len(found) != 1 || found[0] != x.finding {
					t.Errorf("%q, %v", found, err)
				}
			}
			if found, err := s.Check(context.Background(), "ses_a"); err != nil || found != nil {
				t.Errorf("after repair: %q, %v", found, err)
			}
			if snap := mustRecall(t, s, "ses_a"); !reflect.DeepEqual(snap, whole) {
				t.Errorf("after repair: %+v", snap)
			}
			mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", 10, 1), Checkpoint: at(11, 0)})
			if snap := mustRecall(t, s, "ses_a"); len(snap.Checkpoints) != 1 || len(snap.Events) != 0 {
				t.Errorf("after a new one: %+v", snap)
			}
		})
	}
}

// A log that was cut off by Repair and went on is another one than that of its
// old checkpoints.
func TestRepairOfALogTakesItsCheckpointsAway(t *testing.T) {
	s := open(t, Options{})
	withCheckpoints(t, s, "ses_a")
	v := get(t, s, eventKey("ses_a", 5))
	v[len(v)-1]++
	set(t, s, eventKey("ses_a", 5), v)
	// Events that a checkpoint covers are not looked at.
	if snap := mustRecall(t, s, "ses_a"); len(snap.Checkpoints) != 3 {
		t.Errorf("%+v", snap)
	}
	if found, err := s.Repair(context.Background(), "ses_a"); err != nil || len(found) != 1 || !strings.HasPrefix(found[0], "log is damaged at event 5") {
		t.Fatalf("%q, %v", found, err)
	}
	other := events("ses_a", 4, 6)
	for i := range other {
		other[i].ID += "'"
	}
	mustCommit(t, s, Batch{Session: "ses_a", Events: other})
	if snap := mustRecall(t, s, "ses_a"); snap.Checkpoints != nil || len(snap.Events) != 10 {
		t.Errorf("%+v", snap)
	}
}

// A log that breaks off behind its checkpoints is told from a whole one.
func TestDamageBehindTheCheckpointsIsFound(t *testing.T) {
	s := open(t, Options{})
	withCheckpoints(t, s, "ses_a")
	for _, seq := range []int64{9, 10} {
		v := get(t, s, eventKey("ses_a", seq))
		v[3]++
		set(t, s, eventKey("ses_a", seq), reseal(v))
	}
	snap, err := s.Recall(context.Background(), "ses_a")
	if err != nil || snap.Damaged == nil || snap.Damaged.Seq != 9 {
		t.Errorf("%v, %v", snap.Damaged, err)
	}
}

// FuzzDecodeCheckpoint: whatever the bytes, they are refused or are the encoding
// of what they decode to.
func FuzzDecodeCheckpoint(f *testing.F) {
	good := encodeCheckpoint(4, origin("ses_a"), kept{data: []byte("5 to 9")})
	f.Add(good)
	f.Add(good[:20])
	f.Add([]byte{})
	f.Add([]byte{checkpointVersion + 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, reseal(b)} { // so that the checksum does not hide the rest
			c, event, blob, err := decodeCheckpoint(b)
			if err != nil {
				continue
			}
			if blob {
				continue // the name of a blob says nothing of what is in it
			}
			if again := encodeCheckpoint(c.After, event, kept{data: c.Data}); !bytes.Equal(again, b) {
				t.Errorf("%x decodes to what encodes as %x", b, again)
			}
		}
	})
}
