package local

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
)

// scratchPrefix begins the names of our folders in the state folder; lockName
// is the file in each that its living process holds locked.
const (
	scratchPrefix = "local-"
	lockName      = "lock"
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
	making := filepath.Join(state, "new-"+name)
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
		if !e.IsDir() || !strings.HasPrefix(e.Name(), scratchPrefix) {
			continue
		}
		dir := filepath.Join(state, e.Name())
		lock := flock.New(filepath.Join(dir, lockName))
		if ok, err := lock.TryLock(); err == nil && ok {
			_ = os.RemoveAll(dir) // tried again at the next start
			_ = lock.Close()
		}
	}
}

func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	return errors.Join(err, s.lock.Close())
}
