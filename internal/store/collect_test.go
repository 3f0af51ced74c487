package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codework/messages"

	"pgregory.net/rapid"
)

// age makes every blob as old as it has to be. Nobody may be about to name one.
func age(s *Store) {
	s.naming.mu.Lock()
	defer s.naming.mu.Unlock()
	s.naming.young, s.naming.older, s.naming.later = nil, nil, time.Time{}
}

// files are the names of all blobs.
func files(t interface{ Fatal(...any) }, s *Store) (names []string) {
	err := s.files.each(func(n blobName) { names = append(names, hex.EncodeToString(n[:])) })
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func nameOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// eventNaming makes an event with data as the actors write it, that names blobs.
func eventNaming(session string, after int64, pad int, names ...string) []messages.Event {
	type part struct {
		Type string `json:"type"`
		Blob string `json:"blob"`
	}
	var parts []part
	for _, n := range names {
		parts = append(parts, part{"image", n})
	}
	evs := events(session, after, 1)
	data, err := json.Marshal(map[string]any{"sessionId": session, "at": after, "parts": parts, "text": strings.Repeat("heron ", pad/6+1)})
	if err != nil {
		panic(err)
	}
	evs[0].Data = data
	return evs
}

// owner is what a session of the model names.
type owner struct {
	seq         int64
	images      map[string]bool // in its events, be they in blobs or not
	others      map[string]bool // large values, and what forks copied
	first, last string          // blobs of its record, if it is that long
}

func (o *owner) names() map[string]bool {
	all := maps.Clone(o.images)
	maps.Copy(all, o.others)
	for _, n := range []string{o.first, o.last} {
		if n != "" {
			all[n] = true
		}
	}
	return all
}

// garden is a store, and what should be in it.
type garden struct {
	s       *Store
	owners  map[string]*owner
	carried map[string]bool // put, and not named yet
	made    int
}

func (g *garden) put(t *rapid.T, data []byte) string {
	name, err := g.s.PutBlob(data)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func (g *garden) commit(t *rapid.T, b Batch) {
	if err := commit(g.s, b); err != nil {
		t.Fatal(err)
	}
}

// check looks whether every blob is there that has to be.
func (g *garden) check(t *rapid.T) {
	there := files(t, g.s)
	need := maps.Clone(g.carried)
	for _, o := range g.owners {
		maps.Copy(need, o.names())
	}
	for n := range need {
		if _, is := slices.BinarySearch(there, n); !is {
			t.Fatalf("blob %s is gone", n)
		}
	}
}

// read looks whether every session is whole.
func (g *garden) read(t *rapid.T) {
	for id, o := range g.owners {
		snap, err := g.s.Recall(context.Background(), id)
		if err != nil || snap.Damaged != nil || snap.Head.Seq != o.seq {
			t.Fatalf("%s: at %d of %d, %v, %v", id, snap.Head.Seq, o.seq, snap.Damaged, err)
		}
		if found, err := g.s.Check(context.Background(), id); err != nil || found != nil {
			t.Fatalf("%s: %q, %v", id, found, err)
		}
	}
}

func (g *garden) pick(t *rapid.T) (string, *owner) {
	if len(g.owners) == 0 {
		t.Skip("no session")
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(g.owners))).Draw(t, "session")
	return id, g.owners[id]
}

func (g *garden) newID() string { g.made++; return fmt.Sprint("ses_", g.made) }

// write appends an event that names all that is carried, and other things that
// may be blobs, to a session or to a new one.
func (g *garden) write(t *rapid.T) {
	id := ""
	var o *owner
	if len(g.owners) == 0 || rapid.IntRange(0, 2).Draw(t, "new") == 0 {
		id, o = g.newID(), &owner{images: make(map[string]bool), others: make(map[string]bool)}
	} else {
		id, o = g.pick(t)
	}
	pad := rapid.SampledFrom([]int{10, 10, maxInline}).Draw(t, "size")
	b := Batch{Session: id, Events: eventNaming(id, o.seq, pad, slices.Sorted(maps.Keys(g.carried))...)}
	if pad >= maxInline {
		o.others[nameOf(b.Events[0].Data)] = true
	}
	if g.owners[id] == nil || rapid.IntRange(0, 2).Draw(t, "record") == 0 {
		b.Record = session(id, "A", o.seq+1)
		if rapid.IntRange(0, 2).Draw(t, "long record") == 0 {
			b.Record.AppendSystemPrompt = strings.Repeat("x", maxInline)
		}
		o.last = ""
		if text, err := json.Marshal(b.Record); err != nil {
			t.Fatal(err)
		} else if len(text) > maxInline {
			o.last = nameOf(text)
		}
		if g.owners[id] == nil {
			o.first = o.last
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "checkpoint") == 0 {
		b.Checkpoint = &Checkpoint{Seq: o.seq + 1, Data: bytes.Repeat(fmt.Append(nil, id, o.seq, " "), maxInline/2)}
		o.others[nameOf(b.Checkpoint.Data)] = true
	}
	g.commit(t, b)
	o.seq++
	maps.Copy(o.images, g.carried)
	clear(g.carried)
	g.owners[id] = o
}

func (g *garden) delete(t *rapid.T, id string) {
	g.commit(t, Batch{Session: id, Delete: true})
	delete(g.owners, id)
}

func (g *garden) rest(t *rapid.T) {
	settle(t, g.s)
	if err := g.s.Rest(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// fork makes a session that names what another does, while that may go.
func (g *garden) fork(t *rapid.T) {
	from, o := g.pick(t)
	release := g.s.HoldBlobs()
	defer release()
	snap, err := g.s.Load(context.Background(), from)
	if err != nil {
		t.Fatal(err)
	}
	images := maps.Clone(o.images)
	goes := func(when string) {
		if g.owners[from] != nil && rapid.IntRange(0, 3).Draw(t, when) == 0 {
			g.delete(t, from)
			if len(g.carried) == 0 {
				age(g.s)
			}
			g.rest(t)
		}
	}
	goes("source goes first")
	id := g.newID()
	copied, err := json.Marshal([]any{id, slices.Sorted(maps.Keys(images))})
	if err != nil {
		t.Fatal(err)
	}
	name := g.put(t, copied)
	b := Batch{Session: id, Record: session(id, "F", 1), Base: &snap.Head, Events: eventNaming(id, snap.Head.Seq, 10, name)}
	g.commit(t, b)
	g.owners[id] = &owner{seq: snap.Head.Seq + 1, images: images, others: map[string]bool{name: true}}
	goes("source goes then")
}

// gardenChecks is how many random histories run when nobody asks for a number.
const gardenChecks = 2

// TestBlobsAreThereAsLongAsTheyAreNamed writes, forks, deletes, collects, closes
// and crashes at random: what is named is there all the time, and in the end
// nothing else is.
func TestBlobsAreThereAsLongAsTheyAreNamed(t *testing.T) {
	limitChecks(t, gardenChecks)
	base := t.TempDir()
	dirs := 0
	newDir := func() string { dirs++; return filepath.Join(base, fmt.Sprint(dirs)) }
	rapid.Check(t, func(t *rapid.T) {
		dir := newDir()
		g := &garden{owners: make(map[string]*owner), carried: make(map[string]bool)}
		reopen := func() {
			var err error
			if g.s, err = Open(context.Background(), Options{Dir: dir}); err != nil {
				t.Fatal(err)
			}
		}
		reopen()
		defer func() { g.s.Close() }()
		g.write(t) // a database begins with its first commit: what was put before is another's
		t.Repeat(map[string]func(*rapid.T){
			"": g.check,
			"put": func(t *rapid.T) { // few, so that sessions share them
				n := rapid.IntRange(0, 5).Draw(t, "image")
				g.carried[g.put(t, fmt.Append(nil, "\x89PNG ", n))] = true
			},
			"write": g.write,
			"fork":  g.fork,
			"delete": func(t *rapid.T) {
				id, _ := g.pick(t)
				g.delete(t, id)
			},
			"collect": g.rest,
			"collect when nothing is young": func(t *rapid.T) {
				clear(g.carried) // who was about to name them thinks better of it
				age(g.s)
				g.rest(t)
				g.read(t)
			},
			"close": func(t *rapid.T) {
				clear(g.carried)
				if err := g.s.Close(); err != nil {
					t.Fatal(err)
				}
				reopen()
			},
			"crash": func(t *rapid.T) {
				clear(g.carried)
				next := newDir()
				copyOpenStore(t, dir, next)
				if err := g.s.Close(); err != nil {
					t.Fatal(err)
				}
				dir = next
				reopen()
			},
		})
		id := g.newID()
		g.commit(t, Batch{Session: id, Record: session(id, "A", 1)})
		g.delete(t, id)
		age(g.s)
		g.rest(t)
		g.read(t)
		want := make(map[string]bool)
		for _, o := range g.owners {
			maps.Copy(want, o.names())
		}
		if got := files(t, g.s); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Fatalf("%d blobs are there, %d are named", len(got), len(want))
		}
	})
}

// due leaves a store that has an image that nobody names, one that ses_a names,
// and a deletion behind it.
func due(t *testing.T, s *Store) (named, unnamed string) {
	t.Helper()
	var names []string
	for _, image := range []string{"\x89PNG named", "\x89PNG unnamed"} {
		name, err := s.PutBlob([]byte(image))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: eventNaming("ses_a", 0, 0, names[0])})
	mustCommit(t, s, Batch{Session: "ses_b", Record: session("ses_b", "B", 1), Events: eventNaming("ses_b", 0, 0, names[1])})
	mustCommit(t, s, Batch{Session: "ses_b", Delete: true})
	settle(t, s)
	return names[0], names[1]
}

// has tells which of the blobs of due are there.
func has(t *testing.T, s *Store, named, unnamed bool) {
	t.Helper()
	got := files(t, s)
	for image, want := range map[string]bool{"\x89PNG named": named, "\x89PNG unnamed": unnamed} {
		if slices.Contains(got, nameOf([]byte(image))) != want {
			t.Errorf("the blob %q is there: %t", image, !want)
		}
	}
}

func TestABlobGoesWithTheLastSessionThatNamesIt(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	due(t, s)
	rec := session("ses_l", "L", 1)
	rec.AppendSystemPrompt = strings.Repeat("x", maxInline)
	mustCommit(t, s, Batch{Session: "ses_l", Record: rec, Events: eventNaming("ses_l", 0, maxInline),
		Checkpoint: &Checkpoint{Seq: 1, Data: bytes.Repeat([]byte("y"), maxInline+1)}})
	age(s)
	if err := s.Rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, s, true, false)
	if snap := mustRecall(t, s, "ses_l"); len(snap.Checkpoints) != 1 || snap.Record.AppendSystemPrompt != rec.AppendSystemPrompt {
		t.Errorf("%d checkpoints", len(snap.Checkpoints))
	}
	if found, err := s.Check(t.Context(), "ses_l"); err != nil || found != nil {
		t.Errorf("large values: %q, %v", found, err)
	}
	mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
	settle(t, s)
	age(s)
	if err := s.Rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, s, false, false)
	if n := len(files(t, s)); n != 3 {
		t.Errorf("%d blobs are left, not a record, an event and a checkpoint", n)
	}
}

// Who puts a blob has time to name it, also one that was there before.
func TestWhatWasPutLatelyStays(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	due(t, s)
	s.collect()
	has(t, s, true, true)
	age(s)
	c := begun(t, s)
	if err := c.mark(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutBlob([]byte("\x89PNG unnamed")); err != nil { // when it is lost already
		t.Fatal(err)
	}
	if err := c.sweep(); err != nil {
		t.Error(err)
	}
	c.end()
	has(t, s, true, true)
	if s.collect(); s.naming.later.IsZero() {
		t.Error("it is looked for again and again")
	}
	age(s)
	s.collect()
	has(t, s, true, false)
}

// What is on a full disk is not looked through again and again.
func TestACollectionOnAFullDiskIsPutOff(t *testing.T) {
	var room atomic.Int64
	room.Store(2 * DefaultMinFree)
	s := open(t, Options{Dir: t.TempDir(), freeSpace: func(string) (int64, error) { return room.Load(), nil }})
	due(t, s)
	age(s)
	room.Store(0)
	s.space.mu.Lock()
	s.space.asked = time.Time{} // it is full now, not when somebody looks again
	s.space.mu.Unlock()
	if s.collect() {
		t.Error("it said on a full disk that nothing is left to do")
	}
	has(t, s, true, false)
	if c, err := s.beginCollection(); c != nil || err != nil {
		t.Errorf("begun again: %t, %v", c != nil, err)
	}
	room.Store(2 * DefaultMinFree)
	age(s)
	if !s.collect() {
		t.Error("it is not done with room")
	}
	if c, err := s.beginCollection(); c != nil || err != nil {
		t.Errorf("begun though nothing was deleted since: %t, %v", c != nil, err)
	}
}

// begun is a collection that has something to look for.
func begun(t *testing.T, s *Store) *collection {
	t.Helper()
	c, err := s.beginCollection()
	if c == nil {
		t.Fatal(err)
	}
	return c
}

func TestNothingIsCollectedWhileBlobsAreHeld(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	due(t, s)
	age(s)
	one, other := s.HoldBlobs(), s.HoldBlobs()
	s.collect()
	has(t, s, true, true)
	one()
	s.collect()
	has(t, s, true, true)
	other()
	s.collect()
	has(t, s, true, false)
}

// Whoever needs the database does not wait, and does not share the processor.
func TestWhoNeedsTheDatabaseEndsACollection(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	due(t, s)
	age(s)
	for _, marked := range []bool{false, true} {
		c := begun(t, s)
		if marked {
			if err := c.mark(); err != nil {
				t.Fatal(err)
			}
		}
		mustLoad(t, s, "ses_a")
		goOn := c.mark
		if marked {
			goOn = c.sweep
		}
		if err := goOn(); !errors.Is(err, errNeeded) {
			t.Error(err)
		}
		c.end()
		has(t, s, true, true)
	}
	if !s.collect() {
		t.Error("somebody still needs it")
	}
	has(t, s, true, false)
}

// A home in which nothing was deleted is not looked through, whoever left what.
func TestNothingIsCollectedWithoutADeletion(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	due(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir}) // the deletion is known from the process before
	s.collect()
	has(t, s, true, false)
	if _, err := s.PutBlob([]byte("\x89PNG unnamed")); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", 1, 1)})
	age(s)
	if c, err := s.beginCollection(); c != nil || err != nil {
		t.Errorf("begun: %t, %v", c != nil, err)
	}
	has(t, s, true, true)
}

// What a deletion leaves that ends during a collection is for the next one.
func TestADeletionThatEndsDuringACollectionIsNotForgotten(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	due(t, s)
	age(s)
	c := begun(t, s)
	if err := c.mark(); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
	settle(t, s)
	c.since = s.needed // as if that had begun before
	if err := c.sweep(); !errors.Is(err, errNeeded) {
		t.Error(err)
	}
	c.end()
	has(t, s, true, false)
	s.collect()
	has(t, s, false, false)
}

func TestBlobsOfAnotherDatabaseStay(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	due(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	aside := filepath.Join(t.TempDir(), "aside")
	for _, name := range files(t, s) { // of an hour ago
		hour := time.Now().Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(dir, "blobs", name), hour, hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, "badger"), aside); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir}) // an empty one
	mustCommit(t, s, Batch{Session: "ses_c", Record: session("ses_c", "C", 1)})
	own, err := s.PutBlob([]byte("own"))
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, Batch{Session: "ses_c", Delete: true})
	settle(t, s)
	age(s)
	s.collect()
	has(t, s, true, true)
	if slices.Contains(files(t, s), own) {
		t.Error("its own stays too")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "badger")), os.Rename(aside, filepath.Join(dir, "badger"))); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	// An older build did not say when it made the database.
	set(t, s, bornKey, nil)
	s.collect()
	has(t, s, true, false)
}

// Who puts back an old copy of the database may want the newer one again, whose
// blobs are younger than the copy.
func TestNothingIsCollectedBesideAnotherDatabase(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_c", Record: session("ses_c", "C", 1)})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	own, newer, copied := filepath.Join(dir, "badger"), filepath.Join(dir, "badger.old"), filepath.Join(t.TempDir(), "badger")
	if err := os.CopyFS(copied, os.DirFS(own)); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	due(t, s)
	if err := errors.Join(s.Close(), os.Rename(own, newer), os.Rename(copied, own)); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	mustCommit(t, s, Batch{Session: "ses_c", Delete: true})
	settle(t, s)
	s.collect()
	has(t, s, true, true)
	if err := os.RemoveAll(newer); err != nil {
		t.Fatal(err)
	}
	s.collect()
	has(t, s, false, false)
}

// A changed byte anywhere in a table hides rows, and with them names. Blobs do not
// go for it.
func TestNothingIsCollectedFromADamagedDatabase(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	var names []string
	const sessions = 20
	for i := range sessions {
		name, err := s.PutBlob(fmt.Append(nil, "\x89PNG ", i))
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint("ses_", i)
		evs := append(eventNaming(id, 0, 2000, name), eventNaming(id, 1, maxInline)...)
		names = append(names, name, nameOf(evs[1].Data))
		mustCommit(t, s, Batch{Session: id, Record: session(id, "A", 1), Events: evs})
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "badger", "*"+tableSuffix))
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	whole, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for at := 10; at < len(whole); at += len(whole) / 12 {
		copied := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(whole)
		bad[at] ^= 0x10
		if err := os.WriteFile(filepath.Join(copied, "badger", filepath.Base(tables[0])), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		var w warnings
		s, err := Open(t.Context(), Options{Dir: copied, Log: w.logger()})
		if err != nil {
			continue
		}
		mustCommit(t, s, Batch{Session: "ses_z", Record: session("ses_z", "Z", 1)})
		mustCommit(t, s, Batch{Session: "ses_z", Delete: true})
		settle(t, s)
		s.collect()
		got := files(t, s)
		for _, n := range names {
			if !slices.Contains(got, n) {
				t.Errorf("byte %d: a blob is gone: %s", at, w.String())
			}
		}
		kept++
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if kept < 6 {
		t.Errorf("only %d damaged databases could be opened", kept)
	}
}

// Nobody knows what an altered list of names said.
func TestNothingIsCollectedBesideAnAlteredText(t *testing.T) {
	var w warnings
	s := open(t, Options{Dir: t.TempDir(), Log: w.logger()})
	named, _ := due(t, s)
	text := []byte(`["` + named + `"]`)
	name, err := s.PutBlob(text)
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, Batch{Session: "ses_f", Record: session("ses_f", "F", 1), Events: eventNaming("ses_f", 0, 0, name)})
	mustCommit(t, s, Batch{Session: "ses_a", Delete: true})
	settle(t, s)
	age(s)
	path := filepath.Join(s.dir, "blobs", name)
	if err := os.WriteFile(path, bytes.Replace(text, []byte(named[:1]), []byte("x"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	s.collect()
	has(t, s, true, true)
	if !strings.Contains(w.String(), errAltered.Error()) {
		t.Errorf("said: %s", w.String())
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	age(s)
	s.collect()
	has(t, s, true, false)
}

// Sessions share images, are forked and deleted, while everything that can be
// collected is, also when they need the database.
func TestCollectionsBesideSessionsThatShareBlobs(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	var carries sync.RWMutex // read by who has put a blob and not named it yet
	stop := make(chan struct{})
	var others sync.WaitGroup
	for w := range 4 {
		others.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(r.IntN(20)) * time.Millisecond):
				}
				id := fmt.Sprintf("ses_%d_%d", w, n)
				carries.RLock()
				name, err := s.PutBlob(fmt.Append(nil, "\x89PNG ", r.IntN(3)))
				if err == nil {
					err = commit(s, Batch{Session: id, Record: session(id, "A", 1), Events: eventNaming(id, 0, r.IntN(2)*maxInline, name)})
				}
				carries.RUnlock()
				if err != nil {
					t.Error(err)
					return
				}
				release := s.HoldBlobs()
				fork := id + "_f"
				snap, err := s.Load(t.Context(), id)
				if err == nil {
					err = commit(s, Batch{Session: id, Delete: true})
				}
				time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond) // as a fork takes
				var copied string
				carries.RLock()
				if err == nil {
					copied, err = s.PutBlob(fmt.Appendf(nil, `["%s","%s"]`, fork, name))
				}
				if err == nil {
					err = commit(s, Batch{Session: fork, Record: session(fork, "F", 1), Base: &snap.Head, Events: eventNaming(fork, snap.Head.Seq, 0, copied)})
				}
				carries.RUnlock()
				release()
				for _, n := range []string{name, copied} {
					if err == nil {
						_, err = s.Blob(n)
					}
				}
				if err == nil {
					err = commit(s, Batch{Session: fork, Delete: true})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	swept := 0
	soon(t, "some was collected", func() bool {
		carries.Lock()
		age(s)
		carries.Unlock()
		c, err := s.beginCollection()
		if err != nil {
			t.Error(err)
		}
		if c != nil {
			defer c.end()
			c.goOn = func() error { return nil } // nobody waits in a test
			if err := c.mark(); err != nil {
				t.Error(err)
			}
			if len(c.left) > 0 {
				swept++
			}
			if err := c.sweep(); err != nil && !errors.Is(err, errNeeded) {
				t.Error(err)
			}
		}
		return swept == 20 || t.Failed()
	})
	close(stop)
	others.Wait()
	settle(t, s)
	age(s)
	s.collect()
	if left := files(t, s); len(left) > 0 {
		t.Errorf("%d blobs are left of nobody", len(left))
	}
}

// FuzzEachName: names are found where a run of hexadecimal digits is 64 long, and
// nowhere else.
func FuzzEachName(f *testing.F) {
	name := strings.Repeat("0123456789abcdef", 4)
	for _, s := range []string{"", name, `{"blob":"` + name + `"}`, name + "0", "x" + name + name + "x" + name, name[1:], strings.ToUpper(name)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got []string
		for _, run := range bytes.FieldsFunc(text, func(r rune) bool { return r > 'f' || !isHex(byte(r)) }) {
			if len(run) == hexName {
				want = append(want, string(run))
			}
		}
		eachName(text, func(n blobName) { got = append(got, hex.EncodeToString(n[:])) })
		if !slices.Equal(got, want) {
			t.Errorf("%q: found %q, want %q", text, got, want)
		}
	})
}
