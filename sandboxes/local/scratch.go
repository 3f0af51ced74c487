package local

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

const (
	// scratchPrefix begins the names of our folders in the state folder.
	scratchPrefix = "local-"
	// makingPrefix is that of folders whose lock is not yet held.
	makingPrefix = "new-local-"
	// makingAge is when such a folder counts as left over.
	makingAge = time.Hour
	// lockName is the file in each folder that its living process holds locked.
	lockName = "lock"
)

// scratch is the folder that holds the scratch folders of all mounts of this
// process. The lock tells other processes that it is in use.
type scratch struct {
	dir  string
	lock *flock.Flock
}

func newScratch(state string) (*scratch, error) {
	if state == "" {
		return nil, errors.New("no state folder given")
	}
	state, err := filepath.Abs(state)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	removeLeftOver(state)
	// The folder gets its name when the lock is held, or another process could
	// take it for a left-over.
	name := rand.Text()
	making := filepath.Join(state, makingPrefix+name)
	if err := os.Mkdir(making, 0o700); err != nil {
		return nil, fmt.Errorf("make scratch: %w", err)
	}
	lock := flock.New(filepath.Join(making, lockName))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("lock scratch: %w", err), os.RemoveAll(making))
	}
	dir := filepath.Join(state, scratchPrefix+name)
	if err := os.Rename(making, dir); err != nil {
		return nil, errors.Join(err, lock.Unlock(), os.RemoveAll(making))
	}
	return &scratch{dir: dir, lock: lock}, nil
}

// removeLeftOver removes the folders that no living process holds.
func removeLeftOver(state string) {
	entries, err := os.ReadDir(state)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(state, e.Name())
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), makingPrefix) &&
			time.Since(info.ModTime()) > makingAge {
			_ = os.RemoveAll(dir)
		}
		if !strings.HasPrefix(e.Name(), scratchPrefix) {
			continue
		}
		lock := flock.New(filepath.Join(dir, lockName))
		if ok, err := lock.TryLock(); err == nil && ok {
			_ = os.RemoveAll(dir) // tried again at the next start
			_ = lock.Close()
		}
	}
}

// makeScratch makes a mount's folder if it is not there: most sessions need
// none. In a sandbox the one above may be gone as well: it lies in /tmp, which
// commands clear.
func makeScratch(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make scratch: %w", err)
	}
	return nil
}

func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	return errors.Join(err, s.lock.Close())
}
