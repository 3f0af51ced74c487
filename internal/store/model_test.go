package store

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	"codework/messages"

	"pgregory.net/rapid"
)

// modelSession is a session of the model.
type modelSession struct {
	record  messages.SessionRecord
	events  []messages.Event
	started map[string]bool
}

// model is what the store should hold.
type model struct {
	sessions map[string]*modelSession
	prompts  map[string][2]string
}

// expect says what a batch should be answered and, when that is success,
// applies it.
func (m *model) expect(b Batch) (kind string) {
	s := m.sessions[b.Session]
	if s == nil && (b.Record == nil || b.Delete) {
		return "missing"
	}
	if b.PromptID != "" {
		if p, ok := m.prompts[b.PromptID]; ok {
			if p == [2]string{b.Session, b.PromptHash} {
				return "duplicate"
			}
			return "conflict"
		}
	}
	var last int64
	if s != nil {
		last = int64(len(s.events))
	}
	for _, e := range b.Events {
		if last++; e.Seq != last {
			return "gap"
		}
	}
	if b.Delete {
		delete(m.sessions, b.Session)
		for id, p := range m.prompts {
			if p[0] == b.Session {
				delete(m.prompts, id)
			}
		}
		return ""
	}
	if s == nil {
		s = &modelSession{started: make(map[string]bool)}
		m.sessions[b.Session] = s
	}
	if b.Record != nil {
		s.record = *b.Record
	}
	s.events = append(s.events, b.Events...)
	if b.PromptID != "" {
		m.prompts[b.PromptID] = [2]string{b.Session, b.PromptHash}
	}
	for _, id := range b.Started {
		s.started[id] = true
	}
	for _, id := range b.Settled {
		delete(s.started, id)
	}
	return ""
}

// kindOf names an answer the way the model does.
func kindOf(err error) string {
	var missing *messages.SessionNotFound
	var conflict *messages.PromptConflict
	switch {
	case err == nil:
		return ""
	case errors.As(err, &missing):
		return "missing"
	case errors.As(err, &conflict):
		return "conflict"
	case errors.Is(err, ErrDuplicatePrompt):
		return "duplicate"
	case errors.Is(err, ErrGap):
		return "gap"
	}
	return err.Error()
}

// check compares all that the store says with the model.
func (m *model) check(t *rapid.T, s *Store) {
	list, err := s.List(context.Background(), messages.ListSessions{})
	if err != nil {
		t.Fatal(err)
	}
	var want []messages.SessionRecord
	for _, ms := range m.sessions {
		want = append(want, ms.record)
	}
	sort.Slice(want, func(i, j int) bool {
		if want[i].UpdatedAt != want[j].UpdatedAt {
			return want[i].UpdatedAt > want[j].UpdatedAt
		}
		return want[i].ID < want[j].ID
	})
	if len(list)+len(want) > 0 && !reflect.DeepEqual(list, want) {
		t.Fatalf("list\n%+v\nwant\n%+v", list, want)
	}
	for id, ms := range m.sessions {
		snap, err := s.Load(context.Background(), id)
		if err != nil || snap.Damaged != nil {
			t.Fatalf("load %s: %v %v", id, err, snap.Damaged)
		}
		if len(snap.Events)+len(ms.events) > 0 && !reflect.DeepEqual(snap.Events, ms.events) {
			t.Fatalf("%s: %d events, want %d", id, len(snap.Events), len(ms.events))
		}
		started := make(map[string]bool)
		for _, call := range snap.Started {
			started[call] = true
		}
		if !reflect.DeepEqual(started, ms.started) {
			t.Fatalf("%s: started %v, want %v", id, started, ms.started)
		}
	}
	for id, p := range m.prompts {
		in, hash, ok, err := s.Prompt(id)
		if in != p[0] || hash != p[1] || !ok || err != nil {
			t.Fatalf("prompt %s: %q %q %t %v", id, in, hash, ok, err)
		}
	}
}

// sizes of event data; 0 stands for a short one, and two are over what is kept
// in the database.
var sizes = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1000, 1000, 20_000, 100_000, maxInline + 1, 800_000})

// batch draws a batch, mostly a sensible one.
func (m *model) batch(t *rapid.T) Batch {
	id := fmt.Sprint("ses_", rapid.IntRange(0, 3).Draw(t, "session"))
	b := Batch{Session: id}
	s := m.sessions[id]
	if s != nil && rapid.IntRange(0, 30).Draw(t, "delete") == 0 {
		b.Delete = true
		return b
	}
	if s == nil || rapid.Bool().Draw(t, "record") {
		b.Record = session(id, rapid.StringN(0, 20, -1).Draw(t, "title"), rapid.Int64Range(0, 50).Draw(t, "updated"))
	}
	var last int64
	if s != nil {
		last = int64(len(s.events))
	}
	if rapid.IntRange(0, 15).Draw(t, "wrong") == 0 {
		last += rapid.Int64Range(-1, 1).Draw(t, "shift")
	}
	b.Events = events(id, max(last, 0), rapid.IntRange(0, 4).Draw(t, "events"))
	for i := range b.Events {
		// Some over the limits of one value and of one transaction.
		if size := sizes.Draw(t, "size"); size > 0 {
			b.Events[i].Data = ofSize(id, b.Events[i].Seq, 1, size)[0].Data
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "prompt") == 0 {
		b.PromptID = fmt.Sprint("p", rapid.IntRange(0, 9).Draw(t, "id"))
		b.PromptHash = fmt.Sprint("h", rapid.IntRange(0, 1).Draw(t, "hash"))
	}
	call := fmt.Sprint("call_", rapid.IntRange(0, 2).Draw(t, "call"))
	switch rapid.IntRange(0, 4).Draw(t, "tool") {
	case 0:
		b.Started = []string{call}
	case 1:
		b.Settled = []string{call}
	}
	return b
}

// copyOpenStore copies the files of an open store that nobody appends to. A
// table may still be flushed, so it copies until nothing changed meanwhile.
func copyOpenStore(t *rapid.T, from, to string) {
	for {
		before := fileTimes(from)
		err := copyFiles(from, to)
		if fileTimes(from) == before {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
}

// fileTimes lists the files under a folder with size and time.
func fileTimes(dir string) string {
	var b strings.Builder
	filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintln(&b, path, err)
			return nil
		}
		if fi, err := e.Info(); err == nil && !e.IsDir() {
			fmt.Fprintln(&b, path, fi.Size(), fi.ModTime())
		}
		return nil
	})
	return b.String()
}

// copyFiles copies a folder and keeps the holes at the ends of files: logs are
// 16 and 32 MiB of mostly that.
func copyFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if e.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(target, bytes.TrimRight(data, "\x00"), 0o600)
		}
		if err == nil {
			err = os.Truncate(target, int64(len(data)))
		}
		return err
	})
}

// clone is another model of the same.
func (m *model) clone() *model {
	c := &model{sessions: make(map[string]*modelSession), prompts: maps.Clone(m.prompts)}
	for id, s := range m.sessions {
		c.sessions[id] = &modelSession{s.record, slices.Clone(s.events), maps.Clone(s.started)}
	}
	return c
}

// append appends several batches at once, so that they share transactions, and
// compares the answers. What waits for blobs is passed by other sessions, so
// the answers tell the order.
func (m *model) append(t *rapid.T, s *Store) {
	type answer struct {
		i   int
		err error
	}
	var batches []Batch
	answers := make(chan answer, 6)
	drawn := m.clone() // as if nothing was passed
	blocked(s, func() {
		for i := range rapid.IntRange(1, cap(answers)).Draw(t, "batches") {
			b := drawn.batch(t)
			if b.Delete && i > 0 {
				return // its prompts and its id are free when it is gone
			}
			drawn.expect(b)
			batches = append(batches, b)
			s.Append(b, func(err error) { answers <- answer{i, err} })
			if b.Delete {
				return
			}
		}
	})
	last := make(map[string]int)
	for range batches {
		a := <-answers
		b := batches[a.i]
		if want := m.expect(b); kindOf(a.err) != want {
			t.Fatalf("batch %d: %q, want %q", a.i, kindOf(a.err), want)
		}
		if before, ok := last[b.Session]; ok && before > a.i {
			t.Fatalf("batch %d of %s was answered before batch %d", before, b.Session, a.i)
		}
		last[b.Session] = a.i
	}
	if batches[0].Delete {
		settle(t, s)
	}
}

// How many random histories run when nobody asks for a number. On a disk, each
// opens the store some twenty times.
const (
	diskChecks   = 3
	memoryChecks = 20
)

// limitChecks sets rapid's number of checks for one test, unless it was set on
// the command line.
func limitChecks(t *testing.T, n int) {
	f := flag.Lookup("rapid.checks")
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(fmt.Sprint(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Value.Set(f.DefValue); err != nil {
			t.Error(err)
		}
	})
}

// TestStoreInMemoryAgreesWithAModel is the same without a disk.
func TestStoreInMemoryAgreesWithAModel(t *testing.T) {
	limitChecks(t, memoryChecks)
	rapid.Check(t, func(t *rapid.T) {
		s, err := Open(context.Background(), Options{Dir: InMemory})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		m := &model{sessions: make(map[string]*modelSession), prompts: make(map[string][2]string)}
		t.Repeat(map[string]func(*rapid.T){
			"":       func(t *rapid.T) { m.check(t, s) },
			"append": func(t *rapid.T) { m.append(t, s) },
		})
	})
}

// TestStoreAgreesWithAModel appends, reads, closes and crashes at random. A
// crash is a copy of the open store's files, as they are when every answer has
// been given.
func TestStoreAgreesWithAModel(t *testing.T) {
	limitChecks(t, diskChecks)
	base := t.TempDir()
	dirs := 0
	newDir := func() string { dirs++; return filepath.Join(base, fmt.Sprint(dirs)) }
	rapid.Check(t, func(t *rapid.T) {
		dir := newDir()
		s, err := Open(context.Background(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { s.Close() }()
		m := &model{sessions: make(map[string]*modelSession), prompts: make(map[string][2]string)}
		reopen := func() {
			if s, err = Open(context.Background(), Options{Dir: dir}); err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"":       func(t *rapid.T) { m.check(t, s) },
			"append": func(t *rapid.T) { m.append(t, s) },
			"close": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				reopen()
			},
			"crash": func(t *rapid.T) {
				next := newDir()
				copyOpenStore(t, dir, next)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				dir = next
				reopen()
			},
		})
	})
}
