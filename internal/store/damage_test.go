package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
	"github.com/klauspost/compress/s2"
)

// everyCut makes the tests of cut files try each offset.
var everyCut = flag.Bool("every-cut", false, "cut files at each of the last 4096 offsets, not at some")

// Of the store that is cut up.
const (
	cutSessions = 3
	cutEvents   = 40
	cutRange    = 4096
)

// cutID is the id of a session of the store that is cut up.
func cutID(i int) string { return fmt.Sprint("ses_", i) }

// cutLog is the log of one of its sessions.
func cutLog(i int) []messages.Event {
	evs := events(cutID(i), 0, cutEvents)
	words := rand.New(rand.NewPCG(uint64(i), 0))
	for k := range evs {
		var text strings.Builder
		for range 30 {
			fmt.Fprintf(&text, "%x ", words.Uint64())
		}
		evs[k].Data = []byte(fmt.Sprintf(`{"timestamp":%d,"sessionId":%q,"text":%q}`, k+1, cutID(i), text.String()))
	}
	return evs
}

// image is a store's badger folder, the way a crash or a close left it.
type image map[string][]byte

// makeImage fills a store, event by event.
func makeImage(t *testing.T, closed bool) image {
	t.Helper()
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	for i := range cutSessions {
		evs := cutLog(i)
		mustCommit(t, s, Batch{Session: cutID(i), Record: session(cutID(i), "T", int64(i)), Events: evs[:1]})
		for k := 1; k < len(evs); k++ {
			mustCommit(t, s, Batch{Session: cutID(i), Events: evs[k : k+1]})
		}
	}
	if closed {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m := make(image)
	entries, err := os.ReadDir(s.badgerDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(s.badgerDir(), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(e.Name(), walSuffix) { // the rest is a hole of 32 MiB
			end, err := scanWAL(bufio.NewReader(bytes.NewReader(data[logHeader:])), func(walRow) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			data = data[:end]
		}
		m[e.Name()] = data
	}
	return m
}

func (m image) write(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "badger"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range m {
		if err := os.WriteFile(filepath.Join(dir, "badger", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// with is the image with one file changed.
func (m image) with(name string, data []byte) image {
	out := make(image)
	for n, d := range m {
		out[n] = d
	}
	out[name] = data
	return out
}

// cuts are the bytes to cut off a file of a size.
func cuts(size int) (out []int) {
	for c := 1; c <= min(size, cutRange); {
		out = append(out, c)
		switch {
		case *everyCut || c < 4:
			c++
		default:
			c = 3*c + 2
		}
	}
	return append(out, size) // an empty file
}

// survives opens a damaged store, checks that what is there is good, works
// with it and opens it again. It returns how many events are left.
func survives(t *testing.T, m image) (left int, log string) {
	t.Helper()
	var w warnings
	dir := m.write(t)
	s, err := Open(context.Background(), Options{Dir: dir, Log: w.logger()})
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]int)
	list, err := s.List(context.Background(), messages.ListSessions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		snap := mustLoad(t, s, r.ID)
		n := len(snap.Events)
		left += n
		var i int
		fmt.Sscanf(r.ID, "ses_%d", &i)
		if n > 0 && !reflect.DeepEqual(snap.Events, cutLog(i)[:n]) {
			t.Errorf("%s: other events than were written", r.ID)
		}
		if snap.Record.HostDir == "" || snap.Record.Title != "T" {
			t.Errorf("%s: record lost: %+v", r.ID, snap.Record)
		}
		if snap.Damaged != nil {
			if _, err := s.Repair(context.Background(), r.ID); err != nil {
				t.Fatal(err)
			}
		}
		mustCommit(t, s, Batch{Session: r.ID, Record: &snap.Record, Events: events(r.ID, snap.Head.Seq, 2)})
		want[r.ID] = n + 2
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open(context.Background(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for id, n := range want {
		if snap := mustLoad(t, s, id); len(snap.Events) != n || snap.Damaged != nil {
			t.Errorf("%s after reopening: %d events of %d, %v", id, len(snap.Events), n, snap.Damaged)
		}
	}
	if len(want) != cutSessions {
		t.Errorf("%d sessions in the list", len(want))
	}
	return left, w.String()
}

// TestCutFilesLoseTheirTailOnly cuts every file of a closed store and of one
// whose process was killed.
func TestCutFilesLoseTheirTailOnly(t *testing.T) {
	const all = cutSessions * cutEvents
	for _, closed := range []bool{true, false} {
		m := makeImage(t, closed)
		for name, data := range m {
			for _, c := range cuts(len(data)) {
				emptied := c == len(data)
				isTable, isWAL := strings.HasSuffix(name, tableSuffix), strings.HasSuffix(name, walSuffix)
				if emptied && (isTable || isWAL) {
					continue // nothing is left to be found: below
				}
				t.Run(fmt.Sprintf("closed %t/%s/%d", closed, name, c), func(t *testing.T) {
					left, log := survives(t, m.with(name, data[:len(data)-c]))
					switch {
					case !isTable && !isWAL && left != all:
						t.Errorf("%d events of %d", left, all)
					case left < all/2:
						t.Errorf("%d events of %d: more than the tail", left, all)
					case left < all && log == "":
						t.Error("no warning")
					case isWAL && all-left > c/200+1:
						// An event takes more than 200 bytes, and one is torn.
						t.Errorf("%d events lost with %d bytes", all-left, c)
					}
				})
			}
		}
	}
}

func TestGarbageAtTheEndOfTheLogIsDropped(t *testing.T) {
	m := makeImage(t, false)
	for name, data := range m {
		if !strings.HasSuffix(name, walSuffix) {
			continue
		}
		noise := rand.New(rand.NewPCG(1, 2))
		for _, fill := range []func() byte{
			func() byte { return 0xff }, // lengths that overflow
			func() byte { return byte(noise.Uint32()) },
		} {
			bad := append([]byte(nil), data...)
			for range 300 {
				bad = append(bad, fill())
			}
			left, log := survives(t, m.with(name, bad))
			if left != cutSessions*cutEvents || !strings.Contains(log, "cut off") {
				t.Errorf("%d events left; %s", left, log)
			}
		}
	}
}

func TestLostTableOrManifestIsSalvagedAndKept(t *testing.T) {
	m := makeImage(t, true)
	for _, c := range []struct {
		name string
		data []byte
	}{
		{manifestName, nil},
		{manifestName, []byte("garbage instead of a manifest")},
		{manifestName, m[manifestName][:16]}, // whole entries, but the last is gone
	} {
		var w warnings
		dir := m.with(c.name, c.data).write(t)
		s := open(t, Options{Dir: dir, Log: w.logger()})
		for i := range cutSessions {
			if snap := mustLoad(t, s, cutID(i)); len(snap.Events) != cutEvents || snap.Damaged != nil {
				t.Errorf("%s %q: %d events, %v", c.name, c.data, len(snap.Events), snap.Damaged)
			}
		}
		if !strings.Contains(w.String(), "badger.damaged-1") {
			t.Errorf("warning does not name the kept files: %s", w.String())
		}
		if _, err := os.Stat(filepath.Join(dir, "badger.damaged-1", manifestName)); err != nil {
			t.Error(err)
		}
	}
}

func TestDatabaseOfANewerBadgerIsRefusedUntouched(t *testing.T) {
	m := makeImage(t, true)
	newer := append([]byte(nil), m[manifestName]...)
	newer[7] = 99
	dir := m.with(manifestName, newer).write(t)
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.Is(err, ErrNewer) {
		t.Errorf("open: %v", err)
	}
	for name, data := range m.with(manifestName, newer) {
		if now, err := os.ReadFile(filepath.Join(dir, "badger", name)); err != nil || !bytes.Equal(now, data) {
			t.Errorf("%s was changed; %v", name, err)
		}
	}
}

func TestFolderThatCannotBeReadIsAClearError(t *testing.T) {
	dir := makeImage(t, true).write(t)
	// A folder in place of a file is nothing that salvage gets around.
	path := filepath.Join(dir, "badger", registryName)
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(context.Background(), Options{Dir: dir})
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "move that folder away") {
		t.Errorf("open: %v", err)
	}
}

func TestEverythingLostOpensEmptyWithAWarning(t *testing.T) {
	m := makeImage(t, false)
	for name, data := range m {
		for _, left := range []int{0, 1, logHeader, logHeader + 1, logHeader + 30} {
			if !strings.HasSuffix(name, walSuffix) {
				continue
			}
			s := open(t, Options{Dir: m.with(name, data[:left]).write(t)})
			if list, err := s.List(context.Background(), messages.ListSessions{}); len(list) != 0 || err != nil {
				t.Errorf("%d bytes left: %d sessions, %v", left, len(list), err)
			}
			mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1), Events: events("ses_a", 0, 1)})
		}
	}
	m = makeImage(t, true)
	for name := range m {
		if !strings.HasSuffix(name, tableSuffix) {
			continue
		}
		var w warnings
		s := open(t, Options{Dir: m.with(name, nil).write(t), Log: w.logger()})
		if list, err := s.List(context.Background(), messages.ListSessions{}); len(list) != 0 || err != nil {
			t.Errorf("%d sessions, %v", len(list), err)
		}
		if !strings.Contains(w.String(), "badger.damaged-1") {
			t.Errorf("warning: %s", w.String())
		}
	}
}

// A byte that rots in a table must not become a short log without a word.
func TestChangedByteInATableIsNoticed(t *testing.T) {
	m := makeImage(t, true)
	for name, data := range m {
		if !strings.HasSuffix(name, tableSuffix) {
			continue
		}
		for at := 100; at < len(data); at += len(data) / 15 {
			t.Run(fmt.Sprint(at), func(t *testing.T) {
				bad := append([]byte(nil), data...)
				bad[at] ^= 0x10
				var w warnings
				s, err := Open(context.Background(), Options{Dir: m.with(name, bad).write(t), Log: w.logger()})
				if err != nil {
					if !errors.Is(err, ErrDamaged) {
						t.Fatal(err)
					}
					return
				}
				defer s.Close()
				noticed := w.String() != ""
				for i := range cutSessions {
					snap, err := s.Load(context.Background(), cutID(i))
					noticed = noticed || err != nil || snap.Damaged != nil
					if err == nil && len(snap.Events) < cutEvents && snap.Damaged == nil {
						t.Errorf("session %d has %d events, and nobody says why", i, len(snap.Events))
					}
				}
				_, err = s.List(context.Background(), messages.ListSessions{})
				if noticed = noticed || err != nil || w.String() != ""; !noticed {
					t.Error("went unnoticed")
				}
			})
		}
	}
}

func TestSalvageIsFinishedAfterACrash(t *testing.T) {
	dir := makeImage(t, true).write(t)
	if err := os.Rename(filepath.Join(dir, "badger"), filepath.Join(dir, "badger.new")); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Dir: dir})
	if n := len(mustLoad(t, s, cutID(0)).Events); n != cutEvents {
		t.Errorf("%d events", n)
	}
}

// FuzzDecodeRecord: whatever the bytes, decoding says no or returns the record
// that encodes to exactly them.
func FuzzDecodeRecord(f *testing.F) {
	e := events("ses_a", 0, 1)[0]
	e.Metadata = map[string]string{"k": "v"}
	good, err := encodeEvent(&e, origin("ses_a"), true, kept{data: e.Data})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte{})
	f.Add([]byte{recordVersion + 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err == nil && !bytes.Equal(r.encode(), b) {
			t.Errorf("%x decodes to what encodes as %x", b, r.encode())
		}
		resealed := reseal(b) // so that the checksum does not hide the rest
		r, err = decodeRecord(resealed)
		if err == nil && !bytes.Equal(r.encode(), resealed) {
			t.Errorf("%x decodes to what encodes as %x", resealed, r.encode())
		}
	})
}

// reseal puts a right checksum under a record.
func reseal(b []byte) []byte {
	return seal(append([]byte(nil), b[:max(0, len(b)-checkSize)]...))
}

// FuzzScanTable: no bytes make it panic, and every row it returns has a key.
func FuzzScanTable(f *testing.F) {
	f.Add(s2.EncodeSnappy(nil, []byte("not a block at all, but compressed")))
	f.Add([]byte{4, 0xfc, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(r walRow) error {
			if len(r.key) == 0 {
				t.Error("row without a key")
			}
			return nil
		}
		if err := scanTable(b, check); err != nil {
			t.Error(err)
		}
		for _, r := range blockRows(b) {
			_ = check(r)
		}
		// The length agrees with the decoder's, where that is content.
		if n := snappyLen(b); n > 0 {
			if _, err := s2.Decode(nil, b[:n]); err != nil && !errors.Is(err, s2.ErrCorrupt) {
				t.Error(err)
			}
		}
	})
}

// FuzzScanWAL: no bytes make it panic or fail, and the end is inside them.
func FuzzScanWAL(f *testing.F) {
	f.Add([]byte{metaTxn, 0, 9, 1, 0, 'k', 0, 0, 0, 0, 0, 0, 0, 0, 'v', 0, 0, 0, 0})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		end, err := scanWAL(bufio.NewReader(bytes.NewReader(b)), func(walRow) error { return nil })
		if err != nil || end < logHeader || end > logHeader+int64(len(b)) {
			t.Errorf("end %d of %d, %v", end, len(b), err)
		}
	})
}

// TestSalvageReadsWhatBadgerWrites compares the rows that salvage finds with
// those that Badger returns.
func TestSalvageReadsWhatBadgerWrites(t *testing.T) {
	for _, closed := range []bool{true, false} {
		dir := makeImage(t, closed).write(t)
		files, _, err := dataFiles(filepath.Join(dir, "badger"))
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[string]walRow)
		for _, path := range files {
			err := readRows(path, func(r walRow) error {
				if have, ok := found[string(r.key)]; !ok || have.version <= r.version {
					r.value = append([]byte(nil), r.value...)
					found[string(r.key)] = r
				}
				return nil
			})
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		s := open(t, Options{Dir: dir})
		n := 0
		err = s.db.View(func(txn *badger.Txn) error {
			it := txn.NewIterator(badger.DefaultIteratorOptions)
			defer it.Close()
			for it.Rewind(); it.Valid(); it.Next() {
				n++
				value, err := it.Item().ValueCopy(nil)
				if err != nil {
					return err
				}
				if r := found[string(it.Item().Key())]; !bytes.Equal(r.value, value) || r.version != it.Item().Version() {
					t.Errorf("%q differs", it.Item().Key())
				}
			}
			return nil
		})
		if err != nil || n < cutSessions*cutEvents {
			t.Errorf("%d rows, %v", n, err)
		}
	}
}
