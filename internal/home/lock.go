package home

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// Holder is who has a lock, as written into it.
type Holder struct {
	PID  int    `json:"pid"`
	Host string `json:"host"`
}

// HeldError means another process owns the database.
type HeldError struct {
	Path   string
	Holder Holder // zero when it could not be read
}

func (e *HeldError) Error() string {
	if e.Holder.PID == 0 {
		return "in use by another process: " + e.Path
	}
	return fmt.Sprintf("in use by process %d on %s: %s", e.Holder.PID, e.Holder.Host, e.Path)
}

// held keeps every lock of this process reachable: a lock whose file is
// collected is a lock that is gone.
var (
	heldMu sync.Mutex // guards held
	held   = map[string]*flock.Flock{}
)

// lockStep is how often a lock that somebody holds is tried again.
const lockStep = 5 * time.Millisecond

// Acquire takes the lock that makes this process the owner. While somebody
// else has it, it asks answers every few milliseconds whether the owner
// serves: then it returns false. The lock is kept until the process ends, or
// Release.
func (p Paths) Acquire(ctx context.Context, answers func() bool) (bool, error) {
	if err := p.Prepare(); err != nil {
		return false, err
	}
	l := flock.New(p.Lock, flock.SetPermissions(0o600))
	for {
		ok, err := l.TryLock()
		if err != nil {
			return false, fmt.Errorf("lock %s: %w", p.Lock, explain(err))
		}
		if ok {
			heldMu.Lock()
			held[p.Lock] = l
			heldMu.Unlock()
			p.sign()
			return true, nil
		}
		if answers != nil && answers() {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, &HeldError{Path: p.Database, Holder: readHolder(p.Lock)}
		case <-time.After(lockStep):
		}
	}
}

// Release gives the lock up before the process ends.
func (p Paths) Release() {
	heldMu.Lock()
	defer heldMu.Unlock()
	if l := held[p.Lock]; l != nil {
		delete(held, p.Lock)
		// The lock ends with the descriptor, whatever Unlock says.
		_ = l.Unlock()
	}
}

// sign writes into the lock file who has it. It is only for those who ask why
// they have to wait, and does not work everywhere (on Windows a locked file
// cannot be written through another descriptor): a lock without a name holds
// just as well.
func (p Paths) sign() {
	host, _ := os.Hostname() // the number alone still helps
	b, err := json.Marshal(Holder{PID: os.Getpid(), Host: host})
	if err != nil {
		return
	}
	_ = os.WriteFile(p.Lock, b, 0o600)
}

func readHolder(path string) Holder {
	var h Holder
	if b, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(b, &h) // an unreadable signature names nobody
	}
	return h
}
