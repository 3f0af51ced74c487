package store

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"codework/messages"
)

func TestFullDiskRefusesAndGoesOnWhenThereIsRoom(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 30)
	dir := t.TempDir()
	o := Options{Dir: dir, freeSpace: func(string) (int64, error) { return free.Load(), nil }}
	s := open(t, o)
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 1)})

	free.Store(DefaultMinFree)
	refusedFor := func(what string, err error) {
		t.Helper()
		var refused *messages.Refused
		if !errors.As(err, &refused) || refused.Name != messages.RefusedStore || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The last answer about free space counts for a while: make it ask again.
	s.space.mu.Lock()
	s.space.asked = s.space.asked.Add(-spaceInterval)
	s.space.mu.Unlock()
	refusedFor("append", commit(s, Batch{Session: "ses_a", Events: events("ses_a", 1, 1)}))
	_, err := s.PutBlob([]byte("x"))
	refusedFor("blob", err)
	if n := len(mustLoad(t, s, "ses_a").Events); n != 1 {
		t.Errorf("%d events", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	free.Store(DefaultMinFree - 1)
	_, err = Open(context.Background(), o)
	refusedFor("open", err)

	free.Store(1 << 30)
	s = open(t, o)
	mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", 1, 1)})
	if n := len(mustLoad(t, s, "ses_a").Events); n != 2 {
		t.Errorf("%d events", n)
	}
}

func TestLargeBatchOnANearlyFullDiskDoesNotFailASmallOne(t *testing.T) {
	o := Options{Dir: t.TempDir(), freeSpace: func(string) (int64, error) { return DefaultMinFree + 1<<20, nil }}
	s := open(t, o)
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1)})
	ofLarge, ofSmall := make(chan error, 1), make(chan error, 1)
	blocked(s, func() {
		large := events("ses_a", 0, 1)
		large[0].Data = make([]byte, 2<<20)
		s.Append(Batch{Session: "ses_a", Events: large}, func(err error) { ofLarge <- err })
		s.Append(Batch{Session: "ses_b", Events: events("ses_b", 0, 1)}, func(err error) { ofSmall <- err })
	})
	var refused *messages.Refused
	if err := <-ofLarge; !errors.As(err, &refused) {
		t.Errorf("large: %v", err)
	}
	if err := <-ofSmall; err != nil {
		t.Errorf("small: %v", err)
	}
}

func TestManyBytesAreNotWrittenOnOneLookAtTheDisk(t *testing.T) {
	free, asked := int64(DefaultMinFree+10<<20), 0
	w := newSpace("/somewhere", Options{freeSpace: func(string) (int64, error) { asked++; return free, nil }})
	wrote := int64(0)
	for w.check(1<<20) == nil {
		wrote += 1 << 20
		free -= 1 << 20
		if wrote > 20<<20 {
			t.Fatal("wrote on without end")
		}
	}
	if free < DefaultMinFree || asked > 10 {
		t.Errorf("%d bytes left, asked %d times", free, asked)
	}
}
