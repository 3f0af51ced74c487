package modes

import (
	"syscall"
	"time"
)

// cleanLooks is how often in a row no orphan must be seen to believe it: a list
// read while processes come and go may miss one.
const cleanLooks = 2

// nursery is the supervisor: it starts runners and ends what a dead one left.
type nursery struct {
	tree *tree
	name string        // argv[0] of runners
	wake chan struct{} // a runner has ended

	// The following are guarded by tree.mu.
	runners map[int]uint32 // living ones: process id to id
	ended   []uint32       // to be reported once the orphans are gone
}

// supervise is the hidden mode of a supervisor: it returns when the server has
// closed the control socket and nothing is left below.
func supervise(name string) {
	n := &nursery{
		tree:    newTree(),
		name:    name,
		wake:    make(chan struct{}, 1),
		runners: make(map[int]uint32),
	}
	n.tree.onExit = func(pid int, _ syscall.WaitStatus) {
		if id, ok := n.runners[pid]; ok {
			delete(n.runners, pid)
			n.ended = append(n.ended, id)
			select {
			case n.wake <- struct{}{}:
			default:
			}
		}
	}
	n.tree.onIdle = func(bool) {}
	go n.tree.reap()
	go n.sweepOrphans()
	for {
		f, fds, err := receive()
		if err != nil {
			break
		}
		switch f.Kind {
		case KindSpawn:
			n.spawn(f.ID, fds)
		case KindKill:
			n.kill(f.ID)
		}
		closeAll(fds)
	}
	// The runners have seen the same end and clean up with their grace.
	all := n.tree.current()
	select {
	case <-all:
	case <-time.After(GonePatience):
		n.tree.sweep(all)
	}
}

func (n *nursery) spawn(id uint32, fds []int) {
	if len(fds) != 1 {
		return
	}
	err := n.tree.start(func() (int, error) {
		return syscall.ForkExec(OwnExe, []string{n.name, RunnerArg}, &syscall.ProcAttr{
			Dir:   "/",
			Env:   BareEnv,
			Files: []uintptr{0, 1, 2, uintptr(fds[0])},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
	}, func(pid int) {
		n.runners[pid] = id
	})
	if err != nil {
		send(Frame{KindGone, id, []byte(err.Error())})
	}
}

// kill ends a runner that does not answer, with all below it. What escapes the
// strike falls to us with the runner's death.
func (n *nursery) kill(id uint32) {
	n.tree.mu.Lock()
	defer n.tree.mu.Unlock()
	for pid, i := range n.runners {
		if i == id {
			Strike(func(visit func(int)) { visit(pid) })
		}
	}
}

// eachOrphan visits our children that are no runners. It needs tree.mu.
func (n *nursery) eachOrphan(visit func(pid int)) {
	EachOwnChild(func(pid int) {
		if _, ok := n.runners[pid]; !ok {
			visit(pid)
		}
	})
}

// sweepOrphans ends what a dead runner left behind, then reports the runner.
func (n *nursery) sweepOrphans() {
	for range n.wake {
		n.tree.mu.Lock()
		ended := n.ended
		n.ended = nil
		n.tree.mu.Unlock()
		start := time.Now()
		for clean := 0; clean < cleanLooks; {
			n.tree.mu.Lock()
			clean++
			var left []int
			n.eachOrphan(func(pid int) { left = append(left, pid) })
			if len(left) > 0 {
				clean = 0
				Strike(n.eachOrphan)
				n.tree.collect()
				if Beyond(left, time.Since(start)) {
					clean = cleanLooks
				}
			}
			n.tree.mu.Unlock()
			if clean == 0 {
				time.Sleep(sweepPause)
			}
		}
		for _, id := range ended {
			send(Frame{KindGone, id, nil})
		}
	}
}
