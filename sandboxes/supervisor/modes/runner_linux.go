package modes

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

// runner runs one command at a time and owns the tree below it.
type runner struct {
	tree  *tree
	umask int         // what it was started with
	nice  int         // of commands
	forks chan func() // run by the thread that has stepped back

	// The following are guarded by tree.mu.
	id     uint32 // of the command at work or the last one
	main   int    // its main process, 0 when that has ended
	ended  bool   // the main process was reaped in this round
	status syscall.WaitStatus
}

// serveCommands is the hidden mode of a runner: it returns when the server has
// closed the control socket and nothing is left of any command.
func serveCommands() {
	r := &runner{tree: newTree(), nice: commandNice(), forks: make(chan func())}
	r.umask = syscall.Umask(0)
	syscall.Umask(r.umask)
	r.tree.onExit = func(pid int, w syscall.WaitStatus) {
		if pid == r.main {
			r.main, r.ended, r.status = 0, true, w
		}
	}
	r.tree.onIdle = func(empty bool) {
		switch {
		case r.ended:
			r.ended = false
			send(Frame{KindEnded, r.id, encodeEnded(uint32(r.status), !empty)})
		case empty:
			send(Frame{KindEmpty, r.id, nil})
		}
	}
	go r.tree.reap()
	go r.stepBack()
	for {
		f, fds, err := receive()
		if err != nil {
			r.tree.end(r.tree.current(), TermGrace)
			return
		}
		switch f.Kind {
		case KindRun:
			r.run(f, fds)
		case KindKill:
			closeAll(fds)
			// Beside this loop, which must see the end of the server. The
			// command may have ended while this was under way.
			if which := r.tree.current(); r.isCurrent(f.ID) {
				go func() {
					if !r.tree.end(which, TermGrace) {
						os.Exit(1) // what is out of reach is the supervisor's to report
					}
				}()
			}
		default:
			closeAll(fds)
		}
	}
}

func (r *runner) isCurrent(id uint32) bool {
	r.tree.mu.Lock()
	defer r.tree.mu.Unlock()
	return r.id == id
}

// run starts the command and closes the descriptors that came for it.
func (r *runner) run(f Frame, fds []int) {
	j, err := decodeJob(f.Body)
	if err != nil || len(fds) < 2 || len(fds) > maxFDs {
		closeAll(fds)
		send(Frame{KindFailed, f.ID, encodeFailed(uint32(syscall.EINVAL), false)})
		return
	}
	if j.Umask < 0 {
		j.Umask = r.umask
	}
	syscall.Umask(j.Umask)
	stdin := 0 // our own standard input is the null device
	if len(fds) == maxFDs {
		stdin = fds[2]
	}
	attr := &syscall.ProcAttr{
		Dir:   j.Dir,
		Env:   j.Env,
		Files: []uintptr{uintptr(stdin), uintptr(fds[0]), uintptr(fds[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	err = r.tree.start(func() (int, error) {
		// Closed before the end of the command can be reported: whoever
		// hears of that waits for the end of the pipes.
		defer closeAll(fds)
		return r.fork(j, attr)
	}, func(pid int) {
		r.id, r.main = f.ID, pid
	})
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = syscall.EINVAL
		}
		const executable = 1 // X_OK
		// The error of the fork does not tell folder and program apart.
		dir := syscall.Access(j.Dir+"/.", executable) != nil
		send(Frame{KindFailed, f.ID, encodeFailed(uint32(errno), dir)})
	}
}

// niceBy is how far commands step back behind the server: with nobody else
// there they are as fast as ever, and what keeps all processors busy leaves the
// server about three quarters of one when it needs it.
const niceBy = 5

// commandNice is the nice value for commands, in the usual range from -20 to 19.
func commandNice() int {
	const shift = 20 // the system call gives 20 less the nice value
	own, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		own = shift
	}
	return min(shift-own+niceBy, shift-1)
}

// stepBack runs the forks on a thread of its own that has the lower priority, and
// the usual time slice: whatever begins on it has these from its first instruction.
// The thread never goes back, which would need a privilege. Where it may not step
// back, commands run all the same.
func (r *runner) stepBack() {
	runtime.LockOSThread()
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, r.nice) // of this thread alone
	usualSlice()
	for fork := range r.forks {
		fork()
	}
}

// fork starts the command. Where the kernel makes a scheduling group of each
// session of processes, nice values only count within one, and the group has a
// value of its own; it is set as far as we may.
func (r *runner) fork(j Job, attr *syscall.ProcAttr) (pid int, err error) {
	done := make(chan struct{})
	r.forks <- func() {
		pid, err = syscall.ForkExec(j.Path, j.Argv, attr)
		close(done)
	}
	<-done
	if err != nil {
		return 0, err
	}
	if f, err := os.OpenFile(fmt.Sprintf("/proc/%d/autogroup", pid), os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString(strconv.Itoa(r.nice))
		f.Close()
	}
	return pid, nil
}
