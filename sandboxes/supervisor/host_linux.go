package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"codework/sandboxes/supervisor/modes"

	"golang.org/x/sys/unix"
)

const (
	// sweepPatience is when a supervisor that was told to end a runner counts as
	// stuck. With modes.GonePatience it leaves the last sweep half a second of the
	// two in which everything ends.
	sweepPatience = 250 * time.Millisecond
	// maxIdle is how many runners wait for a command at most; one costs a few
	// MiB. Three serve what models usually ask for in one message.
	maxIdle = 3
	// aheadDelay is when a command that took the last idle runner gets another
	// one started behind it: most commands end sooner and give theirs back.
	aheadDelay = 10 * time.Millisecond
	// startTries is how often a command is handed to another runner or
	// supervisor when the chosen one turns out to be dead.
	startTries = 3
	// sendPatience bounds the wait for a peer that does not read. Only a large
	// job to a runner that is just starting ever waits, and a loaded machine
	// may take seconds to start one.
	sendPatience = 10 * time.Second
	// serverLooks and serverPause: how often in a row, and how far apart, the
	// server must see nothing that it adopted from a dead supervisor.
	serverLooks = 2
	serverPause = time.Millisecond
)

// Host is the server's side: it starts the supervisor with the first command
// and a new one when it was lost. The server must be a child subreaper
// (Subreaper). What it adopts from a dead supervisor the Host finds by a mark
// that all its processes carry, and reaps by process id, so that it never takes
// a child that somebody else waits for. Safe for concurrent use.
type Host struct {
	opt Options

	mu     sync.Mutex // guards the following
	crew   *crew
	closed bool
}

// NewHost starts nothing yet.
func NewHost(opt Options) *Host {
	if opt.Executable == "" {
		opt.Executable = modes.OwnExe
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Host{opt: opt}
}

// Start starts a command. An error means that nothing was started: ErrClosed,
// or that no supervisor or runner can be had. A program that cannot be run is
// reported by the process.
func (h *Host) Start(j Job) (*Process, error) {
	if len(j.Path) == 0 || len(j.Argv) == 0 {
		return nil, &StartError{Path: j.Path, Err: syscall.EINVAL}
	}
	body := modes.EncodeJob(modes.Job{Path: j.Path, Argv: j.Argv, Env: j.Env, Dir: j.Dir, Umask: j.Umask})
	if len(body) > modes.MaxBody {
		return nil, &StartError{Path: j.Path, Err: syscall.E2BIG}
	}
	fds := []int{int(j.Stdout.Fd()), int(j.Stderr.Fd())}
	if j.Stdin != nil {
		fds = append(fds, int(j.Stdin.Fd()))
	}
	rights := unix.UnixRights(fds...)
	var err error
	for range startTries {
		var c *crew
		if c, err = h.current(); err != nil {
			return nil, err
		}
		var p *Process
		if p, err = c.run(j.Path, body, rights); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("start %s: %w", j.Path, err)
}

// current is the living crew, started if need be.
func (h *Host) current() (*crew, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	if h.crew != nil && !h.crew.isDead() {
		return h.crew, nil
	}
	c, err := newCrew(h.opt)
	if err != nil {
		return nil, err
	}
	h.crew = c
	return c, nil
}

// Close ends everything and returns when nothing of it runs, or with ctx's
// error: then what is left ends on its own within two seconds of the call.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	c := h.crew
	h.mu.Unlock()
	if c == nil {
		return nil
	}
	c.close()
	select {
	case <-c.swept:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// crew is one supervisor and its runners.
type crew struct {
	log   *slog.Logger
	cmd   *exec.Cmd
	conn  *net.UnixConn
	mark  uint64
	swept chan struct{} // closed when the supervisor is dead and all is swept

	mu      sync.Mutex // guards the following
	dead    bool       // no new runner; the supervisor has ended or is about to
	runners map[uint32]*worker
	idle    []*worker
	next    uint32
	ahead   bool // a start ahead is pending
	hard    *time.Timer
}

// worker is the server's end of a runner.
type worker struct {
	id   uint32
	conn *net.UnixConn
	// The following are guarded by crew.mu.
	proc   *Process // at work
	job    uint32   // number of the command at work or the last one
	path   string   // of its program
	timers []*time.Timer
}

func newCrew(opt Options) (*crew, error) {
	conn, peer, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start sandbox supervisor: %w", err)
	}
	defer peer.Close()
	mark := modes.MarkBase + uint64(rand.Uint32())
	cmd := &exec.Cmd{
		Path:        opt.Executable,
		Args:        []string{os.Args[0], modes.SupervisorArg, strconv.FormatUint(mark, 10)},
		Env:         modes.BareEnv,
		Dir:         "/",
		ExtraFiles:  []*os.File{peer}, // descriptor 3, as the modes expect
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start sandbox supervisor: %w", err)
	}
	c := &crew{
		log:     opt.Log,
		cmd:     cmd,
		conn:    conn,
		mark:    mark,
		swept:   make(chan struct{}),
		runners: make(map[uint32]*worker),
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.listen()
	}()
	go c.bury(read)
	return c, nil
}

// socketPair makes a stream socket: the near end for this process, the far end
// for a child. Both are close-on-exec.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	far := os.NewFile(uintptr(fds[1]), "control")
	near := os.NewFile(uintptr(fds[0]), "control")
	c, err := net.FileConn(near)
	near.Close() // FileConn has a duplicate; a second one would hide our end
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), far, nil
}

// post sends a frame, descriptors with its first byte.
func post(c *net.UnixConn, f modes.Frame, rights []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
		return err
	}
	b := f.Encode()
	n, _, err := c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

func (c *crew) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// run hands the job to an idle runner or a new one.
func (c *crew) run(path string, body, rights []byte) (*Process, error) {
	c.mu.Lock()
	w, err := c.take()
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	p := newProcess()
	w.proc, w.path = p, path
	w.job++
	job := w.job
	p.kill = func() { c.kill(w, job) }
	c.mu.Unlock()
	if err := post(w.conn, modes.Frame{Kind: modes.KindRun, ID: job, Body: body}, rights); err != nil {
		// Killed while it was idle, most likely. A part of the job may have
		// arrived; closing ends whatever came of it.
		w.conn.Close()
		return nil, err
	}
	return p, nil
}

// take gets an idle runner or starts one. It needs mu.
func (c *crew) take() (*worker, error) {
	if c.dead {
		return nil, ErrLost
	}
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.startAhead()
		return w, nil
	}
	w, err := c.spawn()
	if err == nil {
		c.startAhead()
	}
	return w, err
}

// startAhead sees to it that a runner will be ready soon. It needs mu.
func (c *crew) startAhead() {
	if c.ahead || len(c.idle) > 0 {
		return
	}
	c.ahead = true
	time.AfterFunc(aheadDelay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ahead = false
		if c.dead || len(c.idle) > 0 {
			return
		}
		w, err := c.spawn()
		if err != nil {
			c.log.Debug("start runner ahead", "error", err)
			return
		}
		c.idle = append(c.idle, w)
	})
}

// spawn starts a runner; jobs may be sent to it at once. It needs mu.
func (c *crew) spawn() (*worker, error) {
	conn, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	c.next++
	w := &worker{id: c.next, conn: conn}
	if err := post(c.conn, modes.Frame{Kind: modes.KindSpawn, ID: w.id}, unix.UnixRights(int(far.Fd()))); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start runner: %w", err)
	}
	c.runners[w.id] = w
	go c.hear(w)
	return w, nil
}

// hear reads what a runner says until its end.
func (c *crew) hear(w *worker) {
	for {
		f, err := modes.ReadFrame(w.conn)
		if err != nil {
			c.lost(w)
			return
		}
		if err := c.handle(w, f); err != nil {
			c.log.Warn("runner talks nonsense", "error", err)
			w.conn.Close()
		}
	}
}

func (c *crew) handle(w *worker, f modes.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := w.proc
	if p == nil || f.ID != w.job {
		return modes.ErrFrame
	}
	switch f.Kind {
	case modes.KindEnded:
		wait, left, err := modes.DecodeEnded(f.Body)
		if err != nil {
			return err
		}
		p.settle(statusOf(syscall.WaitStatus(wait)), nil, !left)
		if left {
			return nil
		}
	case modes.KindFailed:
		errno, dir, err := modes.DecodeFailed(f.Body)
		if err != nil {
			return err
		}
		p.settle(Status{}, &StartError{Path: w.path, Dir: dir, Err: syscall.Errno(errno)}, true)
	case modes.KindEmpty:
	default:
		return modes.ErrFrame
	}
	c.finish(w)
	if !c.dead && len(c.idle) < maxIdle {
		c.idle = append(c.idle, w)
	} else {
		w.conn.Close() // the runner exits on that
	}
	return nil
}

// finish marks the runner's command as gone. It needs mu.
func (c *crew) finish(w *worker) {
	for _, t := range w.timers {
		t.Stop()
	}
	w.timers = nil
	if w.proc != nil {
		w.proc.vanish()
		w.proc = nil
	}
}

// retire sees to it that the runner gets no further command. It needs mu.
func (c *crew) retire(w *worker) {
	w.conn.Close()
	if i := slices.Index(c.idle, w); i >= 0 {
		c.idle = slices.Delete(c.idle, i, i+1)
	}
}

// lost is called when a runner's socket has ended. Its supervisor sweeps and
// then says that it is gone, or has said so already: these are two sockets.
func (c *crew) lost(w *worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retire(w)
	if w.proc == nil || c.dead {
		return
	}
	w.proc.settle(Status{}, ErrLost, false)
	c.killHarder(w, w.proc, 0)
}

// kill asks the runner to end its command, and goes higher when it does not.
func (c *crew) kill(w *worker, job uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.proc == nil || w.job != job || len(w.timers) > 0 {
		return
	}
	c.killHarder(w, w.proc, modes.GonePatience)
	go func() {
		// Not under the lock: a runner that was stopped does not read.
		_ = post(w.conn, modes.Frame{Kind: modes.KindKill, ID: job}, nil)
	}()
}

// killHarder has the supervisor end the runner after a while, and ends the
// supervisor when that did not help either. It needs mu.
func (c *crew) killHarder(w *worker, p *Process, after time.Duration) {
	w.timers = append(w.timers,
		time.AfterFunc(after, func() {
			if c.still(w, p) {
				c.wake()
				_ = post(c.conn, modes.Frame{Kind: modes.KindKill, ID: w.id}, nil)
			}
		}),
		time.AfterFunc(after+sweepPatience, func() {
			if c.still(w, p) {
				c.log.Warn("sandbox supervisor does not answer; killed")
				_ = c.cmd.Process.Kill()
			}
		}))
}

// wake lets a supervisor go on that a command has stopped.
func (c *crew) wake() { _ = c.cmd.Process.Signal(syscall.SIGCONT) }

func (c *crew) still(w *worker, p *Process) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return w.proc == p
}

// listen reads what the supervisor says until its end.
func (c *crew) listen() {
	for {
		f, err := modes.ReadFrame(c.conn)
		if err != nil || f.Kind != modes.KindGone {
			if err == nil {
				err = modes.ErrFrame
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				c.log.Warn("sandbox supervisor", "error", err)
			}
			// Whatever it is, it no longer does its work.
			c.close()
			return
		}
		c.gone(f)
	}
}

// gone is called when the supervisor says that nothing of a runner is left, or
// that it could not be started.
func (c *crew) gone(f modes.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.runners[f.ID]
	delete(c.runners, f.ID)
	if w == nil {
		return
	}
	if len(f.Body) > 0 {
		c.log.Warn("start runner", "error", string(f.Body))
		if w.proc != nil {
			w.proc.settle(Status{}, fmt.Errorf("start runner: %s", f.Body), true)
		}
	}
	c.finish(w)
	c.retire(w)
}

// close lets the supervisor and all runners see the end, and kills the
// supervisor if it has not ended in time.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	c.dead = true
	c.conn.Close()
	for _, w := range c.runners {
		w.conn.Close()
	}
	c.wake()
	c.hard = time.AfterFunc(modes.GonePatience+sweepPatience, func() { _ = c.cmd.Process.Kill() })
}

// bury waits for the supervisor's end and sweeps what the server adopted.
func (c *crew) bury(read <-chan struct{}) {
	err := c.cmd.Wait()
	c.mu.Lock()
	expected := c.dead
	c.mu.Unlock()
	if !expected {
		c.log.Warn("sandbox supervisor was lost", "error", err)
	}
	c.close()
	<-read
	c.sweep()
	c.mu.Lock()
	c.hard.Stop()
	for _, w := range c.runners {
		c.finish(w)
	}
	clear(c.runners)
	c.idle = nil
	c.mu.Unlock()
	close(c.swept)
}

// sweep ends all children of this process that carry the crew's mark. It is
// called when the supervisor, which carries it too, has been waited for.
func (c *crew) sweep() {
	adopted := func(visit func(int)) {
		modes.EachOwnChild(func(pid int) {
			if hasMark(pid, c.mark) {
				visit(pid)
			}
		})
	}
	start := time.Now()
	for clean := 0; clean < serverLooks; {
		modes.Strike(adopted)
		// Others wait for children of this process too, which makes the
		// kernel's list skip some; the table of all processes does not.
		var left []int
		for _, pid := range modes.Parents()[os.Getpid()] {
			if hasMark(pid, c.mark) {
				left = append(left, pid)
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
		clean++
		if len(left) > 0 {
			clean = 0
			if modes.Beyond(left, time.Since(start)) {
				c.log.Warn("processes of commands cannot be ended", "pids", left)
				return
			}
		}
		time.Sleep(serverPause)
	}
}

// Subreaper makes this process the one that adopts the orphans among its
// descendants. They are not reaped by that: see Host.
func Subreaper() error { return modes.Subreaper() }
