package modes

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// sweepPause is the wait between two strikes: time for killed processes to
// become zombies, short against the 400 ms that a sweep has.
const sweepPause = time.Millisecond

// How long is struck before it is believed that a process is out of reach: of
// another user's soon, of one that waits for a disk when most waits are over.
// Supervisor and server may have to find the same in turn, in what is left of
// two seconds.
const (
	userPatience = 10 * time.Millisecond
	diskPatience = 100 * time.Millisecond
)

// tree is everything below this process, which must be a child subreaper and
// wait for its children nowhere else.
type tree struct {
	// onExit is told of each child that was reaped, onIdle after each round of
	// reaping whether nothing is left. Both are called with mu held.
	onExit func(pid int, w syscall.WaitStatus)
	onIdle func(empty bool)

	// mu guards the following. It is held while children are listed and
	// signalled, so that none is reaped and its id given to a stranger.
	mu      sync.Mutex
	started sync.Cond
	busy    bool
	empty   chan struct{} // closed when no child is left; a new one with the next child

	ending sync.Mutex // one end at a time, or the second one would extend the grace
}

func newTree() *tree {
	t := &tree{empty: make(chan struct{})}
	t.started.L = &t.mu
	close(t.empty)
	return t
}

// start runs fork, which starts a child, and passes on what it returns. Then is
// called with the child's id before it can be reaped.
func (t *tree) start(fork func() (int, error), then func(pid int)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return err
	}
	then(pid)
	if !t.busy {
		t.busy = true
		t.empty = make(chan struct{})
		t.started.Signal()
	}
	return nil
}

// reap waits for children for ever.
func (t *tree) reap() {
	const ofAll = 0 // P_ALL
	for {
		// Only look: the child is taken below, under the lock.
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, ofAll, 0, 0, syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		t.mu.Lock()
		t.collect()
		for !t.busy {
			t.started.Wait()
		}
		t.mu.Unlock()
	}
}

// collect takes all children that have ended. It needs mu.
func (t *tree) collect() {
	if !t.busy {
		return
	}
	for {
		var w syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &w, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD: none is left, not even a running one
			t.busy = false
			close(t.empty)
			t.onIdle(true)
			return
		case pid == 0:
			t.onIdle(false)
			return
		default:
			t.onExit(pid, w)
		}
	}
}

// current is a channel that closes when no child is left; it stands for the
// tree as it is now.
func (t *tree) current() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.empty
}

// end asks the tree that which stands for to end, and makes it end after the
// grace. When it returns true, nothing of it runs; false means that the rest is
// out of reach. What was started after the tree had ended is left alone.
func (t *tree) end(which <-chan struct{}, grace time.Duration) bool {
	t.ending.Lock()
	defer t.ending.Unlock()
	t.mu.Lock()
	if t.empty == which && t.busy {
		signalAll(forest(OwnChildren()), syscall.SIGTERM)
	}
	t.mu.Unlock()
	select {
	case <-which:
		return true
	case <-time.After(grace):
		return t.sweep(which)
	}
}

// sweep strikes until the tree that which stands for has ended, as end does.
func (t *tree) sweep(which <-chan struct{}) bool {
	for start := time.Now(); !IsClosed(which); {
		t.mu.Lock()
		if t.empty == which && t.busy {
			Strike(EachOwnChild)
			t.collect()
			if t.busy && Beyond(OwnChildren(), time.Since(start)) {
				t.mu.Unlock()
				return false
			}
		}
		t.mu.Unlock()
		select {
		case <-which:
		case <-time.After(sweepPause):
		}
	}
	return true
}

// OwnChildren lists the children of this process, zombies included.
func OwnChildren() []int { return childrenOf(os.Getpid()) }

// EachOwnChild visits the children of this process as soon as it learns of them.
func EachOwnChild(visit func(pid int)) { eachChild(os.Getpid(), visit) }

// Subreaper makes this process the one that adopts the orphans among its
// descendants. They are not reaped by that.
func Subreaper() error {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER
	_, _, errno := syscall.Syscall6(syscall.SYS_PRCTL, setChildSubreaper, 1, 0, 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}
