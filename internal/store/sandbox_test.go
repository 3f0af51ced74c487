package store

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"codework/messages"
)

func box(id string, created int64, st messages.SandboxStatus) messages.SandboxRecord {
	return messages.SandboxRecord{ID: id, Driver: "d", Kind: messages.KindRemote, Ownership: "managed", Status: st, ResourceID: "r", Dir: "/w",
		Extra: []byte(`{"a":1}`), Config: []byte(`{"apiKey":"${K}"}`), CreatedAt: created, UpdatedAt: created}
}

func TestSandboxesAreSwappedByTheirStatus(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		conflict := func(err error, want messages.SandboxStatus) {
			t.Helper()
			var c *messages.SandboxTransitionConflict
			if !errors.As(err, &c) || c.Actual != want || c.ID != "sbx_1" || c.Expected == nil {
				t.Errorf("got %v, want a conflict with %q", err, want)
			}
		}
		made := box("sbx_1", 2, messages.SandboxProvisioning)
		conflict(s.SwapSandbox(ctx, made, messages.SandboxOnline), "")
		if err := s.SwapSandbox(ctx, made); err != nil {
			t.Fatal(err)
		}
		conflict(s.SwapSandbox(ctx, made), messages.SandboxProvisioning)
		online := box("sbx_1", 2, messages.SandboxOnline)
		conflict(s.SwapSandbox(ctx, online, messages.SandboxOffline, messages.SandboxFaulted), messages.SandboxProvisioning)
		if err := s.SwapSandbox(ctx, online, messages.SandboxFaulted, messages.SandboxProvisioning); err != nil {
			t.Fatal(err)
		}
		older := box("sbx_0", 1, messages.SandboxRemovedState)
		if err := s.SwapSandbox(ctx, older); err != nil {
			t.Fatal(err)
		}
		if all, err := s.Sandboxes(ctx); err != nil || !reflect.DeepEqual(all, []messages.SandboxRecord{older, online}) {
			t.Errorf("there are %+v, %v", all, err)
		}
		if err := s.DropSandbox(ctx, "sbx_0"); err != nil {
			t.Fatal(err)
		}
		if all, err := s.Sandboxes(ctx); err != nil || len(all) != 1 {
			t.Errorf("after one was dropped there are %+v, %v", all, err)
		}
		if n, err := s.Count(ctx); err != nil || n != 0 {
			t.Errorf("sandboxes count as %d sessions, %v", n, err)
		}
	})
}

func TestOfManySwapsOneWins(t *testing.T) {
	on(t, func(t *testing.T, s *Store) {
		if err := s.SwapSandbox(t.Context(), box("sbx_1", 1, messages.SandboxOnline)); err != nil {
			t.Fatal(err)
		}
		answers := make(chan error, 16)
		for range cap(answers) {
			go func() {
				answers <- s.SwapSandbox(t.Context(), box("sbx_1", 1, messages.SandboxSuspending), messages.SandboxOnline)
			}()
		}
		won := 0
		for range cap(answers) {
			if <-answers == nil {
				won++
			}
		}
		if won != 1 {
			t.Errorf("%d won", won)
		}
	})
}

func TestSandboxesAndTheServerIDOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	id, err := s.ServerID(t.Context())
	if err != nil || len(id) < 16 || id != strings.ToLower(id) {
		t.Fatalf("the server is called %q, %v", id, err)
	}
	want := box("sbx_1", 1, messages.SandboxOnline)
	if err := s.SwapSandbox(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	if again, err := s.ServerID(t.Context()); err != nil || again != id {
		t.Errorf("it is called %q now, %v", again, err)
	}
	if all, err := s.Sandboxes(t.Context()); err != nil || !reflect.DeepEqual(all, []messages.SandboxRecord{want}) {
		t.Errorf("there are %+v, %v", all, err)
	}
	if other, err := open(t, Options{}).ServerID(t.Context()); err != nil || other == id {
		t.Errorf("another store has the same id, %v", err)
	}
}

func TestSandboxRecordsThatCannotBe(t *testing.T) {
	s := open(t, Options{})
	for _, id := range []string{"", "a/b", strings.Repeat("x", maxID+1)} {
		if err := s.SwapSandbox(t.Context(), box(id, 1, messages.SandboxOnline)); err == nil {
			t.Errorf("%.20q was written", id)
		}
	}
	large := box("sbx_1", 1, messages.SandboxOnline)
	large.Extra = []byte(fmt.Sprintf("%q", strings.Repeat("x", maxBox)))
	if err := s.SwapSandbox(t.Context(), large); err == nil {
		t.Error("a record of any size was written")
	}
	full := open(t, Options{Dir: t.TempDir(), freeSpace: func(string) (int64, error) { return DefaultMinFree + 1, nil }})
	var refused *messages.Refused
	if err := full.SwapSandbox(t.Context(), box("sbx_1", 1, messages.SandboxOnline)); !errors.As(err, &refused) {
		t.Errorf("on a full disk: %v", err)
	}
}
