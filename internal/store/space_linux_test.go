package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codework/messages"

	"golang.org/x/sys/unix"
)

// TestRealFullDisk fills a small file system up to the reserve.
func TestRealFullDisk(t *testing.T) {
	dir := t.TempDir()
	mountSmall(t, dir, 96<<20)
	const reserve = 48 << 20
	s := open(t, Options{Dir: dir, MinFree: reserve})
	mustCommit(t, s, Batch{Session: "ses_a", Record: session("ses_a", "A", 1)})
	var last int64
	var err error
	for range 1000 {
		e := events("ses_a", last, 1)
		e[0].Data = incompressible(200<<10, last)
		if err = commit(s, Batch{Session: "ses_a", Events: e}); err != nil {
			break
		}
		last++
	}
	var refused *messages.Refused
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("after %d events: %v", last, err)
	}
	// Somebody else takes the rest.
	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 1<<20))
	}
	f.Close() // only its size matters
	if err := commit(s, Batch{Session: "ses_a", Events: events("ses_a", last, 1)}); !errors.As(err, &refused) {
		t.Errorf("on a disk without a byte: %v", err)
	}
	if snap := mustLoad(t, s, "ses_a"); snap.Head.Seq != last || snap.Damaged != nil {
		t.Errorf("%d of %d events, %v", snap.Head.Seq, last, snap.Damaged)
	}
	// Room comes back, and the reserve is lowered to what there is now.
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.space.min = 16 << 20
	mustCommit(t, s, Batch{Session: "ses_a", Events: events("ses_a", last, 1)})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir, MinFree: 1 << 20})
	if snap := mustLoad(t, s, "ses_a"); snap.Head.Seq != last+1 || snap.Damaged != nil {
		t.Errorf("after reopening: %d of %d events, %v", snap.Head.Seq, last+1, snap.Damaged)
	}
}

// mountSmall mounts a file system in memory on a folder.
func mountSmall(t *testing.T, dir string, size int64) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("NOT TESTED: a really full disk. Mounting a tmpfs needs root and the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// incompressible is a JSON string that takes its size on the disk, too.
func incompressible(n int, seed int64) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"
	r := rand.New(rand.NewPCG(uint64(seed), 7))
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	b[0], b[n-1] = '"', '"'
	return b
}
