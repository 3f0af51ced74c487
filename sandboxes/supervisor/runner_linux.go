package supervisor

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// runner runs one command at a time and owns the tree below it.
type runner struct {
	tree  *tree
	umask int // what it was started with

	// The following are guarded by tree.mu.
	id     uint32 // of the command at work or the last one
	main   int    // its main process, 0 when that has ended
	ended  bool   // the main process was reaped in this round
	status syscall.WaitStatus
}

// serveCommands is the hidden mode of a runner: it returns when the server has
// closed the control socket and nothing is left of any command.
func serveCommands() {
	r := &runner{tree: newTree()}
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
			send(frame{kindEnded, r.id, encodeEnded(uint32(r.status), !empty)})
		case empty:
			send(frame{kindEmpty, r.id, nil})
		}
	}
	go r.tree.reap()
	for {
		f, fds, err := receive()
		if err != nil {
			r.tree.end(r.tree.current(), termGrace)
			return
		}
		switch f.kind {
		case kindRun:
			r.run(f, fds)
		case kindKill:
			closeAll(fds)
			// Beside this loop, which must see the end of the server. The
			// command may have ended while this was under way.
			if which := r.tree.current(); r.isCurrent(f.id) {
				go func() {
					if !r.tree.end(which, termGrace) {
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
func (r *runner) run(f frame, fds []int) {
	j, err := decodeJob(f.body)
	if err != nil || len(fds) < 2 || len(fds) > maxFDs {
		closeAll(fds)
		send(frame{kindFailed, f.id, encodeFailed(uint32(syscall.EINVAL), false)})
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
		return syscall.ForkExec(j.Path, j.Argv, attr)
	}, func(pid int) {
		r.id, r.main = f.id, pid
	})
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = syscall.EINVAL
		}
		// The error of the fork does not tell folder and program apart.
		dir := unix.Access(j.Dir+"/.", unix.X_OK) != nil
		send(frame{kindFailed, f.id, encodeFailed(uint32(errno), dir)})
	}
}
