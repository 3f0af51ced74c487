package store

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// spaceInterval is how long an answer about free space counts: short enough
// that nothing fills 64 MiB meanwhile, long enough to cost nothing.
const spaceInterval = 100 * time.Millisecond

// spaceBytes is how much may be written before free space is asked for again,
// however little time has passed.
const spaceBytes = 4 << 20

// space watches the room on the disk.
type space struct {
	dir  string
	min  int64
	free func(dir string) (int64, error)

	mu      sync.Mutex // guards what follows
	last    int64      // free bytes when asked
	asked   time.Time
	written int64 // since then
}

func newSpace(dir string, o Options) *space {
	w := &space{dir: dir, min: o.MinFree, free: o.freeSpace}
	if w.min == 0 {
		w.min = DefaultMinFree
	}
	if w.free == nil {
		w.free = freeSpace
	}
	return w
}

// check refuses a write of n bytes that would leave less than the reserve.
func (w *space) check(n int64) error {
	if w.dir == "" || w.min < 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked.IsZero() || time.Since(w.asked) >= spaceInterval || w.written+n > spaceBytes {
		free, err := w.free(w.dir)
		if err != nil {
			return &messages.Refused{Name: messages.RefusedStore,
				Message: fmt.Sprintf("free space of %s is unknown: %v", w.dir, err)}
		}
		w.last, w.asked, w.written = free, time.Now(), 0
	}
	if left := w.last - w.written - n; left < w.min {
		w.asked = time.Time{} // ask again next time: somebody is about to make room
		return &messages.Refused{Name: messages.RefusedStore,
			Message: fmt.Sprintf("disk is full: %s has %s free, %s are kept in reserve",
				w.dir, mebibytes(w.last-w.written), mebibytes(w.min))}
	}
	w.written += n
	return nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// causeOf names the reason of a failed write without what Badger tells of the
// data.
func causeOf(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, badger.ErrDBClosed), errors.Is(err, badger.ErrBlockedWrites):
		return "it is closed"
	case errors.Is(err, badger.ErrTxnTooBig):
		return "more than one transaction holds"
	}
	return "the database refused it"
}
