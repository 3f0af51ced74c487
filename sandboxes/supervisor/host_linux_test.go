package supervisor

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes/supervisor/modes"

	"golang.org/x/sys/unix"
)

func newHost(t *testing.T) *Host {
	h := NewHost(Options{})
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// start starts a shell script and returns what it prints.
func start(t *testing.T, h *Host, script string) (*Process, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	p, err := h.Start(Job{
		Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Umask: -1,
		Stdout: w, Stderr: w,
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return p, r
}

func line(t *testing.T, r *os.File) string {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var out []byte
	for b := make([]byte, 1); ; {
		if _, err := r.Read(b); err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		if b[0] == '\n' {
			return string(out)
		}
		out = append(out, b[0])
	}
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("never happened: " + what)
	}
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never happened: " + what)
		}
	}
}

func TestACommandReadsWhatItIsGiven(t *testing.T) {
	h := newHost(t)
	in, far, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := h.Start(Job{Path: "/bin/cat", Argv: []string{"cat"}, Dir: "/", Umask: -1, Stdin: in, Stdout: w, Stderr: w})
	w.Close()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := far.WriteString("told\n"); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "told" {
		t.Fatalf("%q", got)
	}
	far.Close() // no process of ours holds another end
	wait(t, "end of input", p.Exited())
	if s, err := p.Result(); err != nil || s.Code != 0 {
		t.Fatal(s, err)
	}
}

func TestEndIsReportedWithTheTree(t *testing.T) {
	h := newHost(t)
	for range 200 {
		p, _ := start(t, h, "exit 3")
		wait(t, "exit", p.Exited())
		// Not a moment later: else it would look like a background job.
		if !modes.IsClosed(p.Gone()) {
			t.Fatal("exited but not gone")
		}
		if s, err := p.Result(); err != nil || s.Code != 3 {
			t.Fatal(s, err)
		}
		p.Kill() // does nothing, and nothing to the next
	}
}

// A kill that crosses the end of its command on the way must not meet the next
// command of that runner.
func TestLateKillDoesNotMeetTheNextCommand(t *testing.T) {
	h := newHost(t)
	var wg sync.WaitGroup
	for range 300 {
		p, _ := start(t, h, ":")
		wg.Go(p.Kill)
		wait(t, "exit", p.Exited())
		next, _ := start(t, h, "exit 5")
		wait(t, "exit", next.Exited())
		if s, err := next.Result(); err != nil || s.Code != 5 {
			t.Fatal(s, err)
		}
	}
	wg.Wait()
}

func TestStartErrors(t *testing.T) {
	h := newHost(t)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		job  Job
		want error
		dir  bool
	}{
		{Job{Path: "/no/such", Argv: []string{"x"}, Dir: "/"}, syscall.ENOENT, false},
		{Job{Path: "/bin/sh", Argv: []string{"x"}, Dir: "/no/such"}, syscall.ENOENT, true},
		{Job{Path: "/bin/sh", Argv: []string{"x"}, Dir: "/etc/passwd"}, syscall.ENOTDIR, true},
		{Job{Path: "/etc", Argv: []string{"x"}, Dir: "/"}, syscall.EACCES, false},
		{Job{Path: "/bin/sh", Argv: []string{"x", "nul\x00"}, Dir: "/"}, syscall.EINVAL, false},
		{Job{Path: "/bin/sh", Argv: []string{"x", strings.Repeat("x", 1<<20)}, Dir: "/"}, syscall.E2BIG, false},
	} {
		c.job.Stdout, c.job.Stderr = null, null
		p, err := h.Start(c.job)
		if err != nil {
			t.Errorf("%s: %v", c.job.Path, err)
			continue
		}
		wait(t, "exit", p.Exited())
		_, err = p.Result()
		var se *StartError
		if !errors.As(err, &se) || !errors.Is(err, c.want) || se.Dir != c.dir || !modes.IsClosed(p.Gone()) {
			t.Errorf("%s in %s: %v", c.job.Path, c.job.Dir, err)
		}
	}
	for _, job := range []Job{{}, {Path: "/bin/sh"}, {Path: "/bin/sh", Argv: []string{"x", strings.Repeat("x", modes.MaxBody)}}} {
		job.Stdout, job.Stderr = null, null
		var se *StartError
		if _, err := h.Start(job); !errors.As(err, &se) {
			t.Errorf("%v", err)
		}
	}
	// The runner is none the worse for it.
	p, _ := start(t, h, "exit 4")
	wait(t, "exit", p.Exited())
	if s, err := p.Result(); err != nil || s.Code != 4 {
		t.Error(s, err)
	}
}

// An idle runner may be killed by anybody; the next command does not notice.
func TestIdleRunnerThatDiedIsReplaced(t *testing.T) {
	h := newHost(t)
	for range 20 {
		p, r := start(t, h, "echo $PPID")
		pid, err := strconv.Atoi(line(t, r))
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "exit", p.Exited())
		known := runnersOf(h)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the server knows", func() bool {
			now := runnersOf(h)
			return slices.ContainsFunc(known, func(id uint32) bool { return !slices.Contains(now, id) })
		})
	}
	p, _ := start(t, h, "exit 6")
	wait(t, "exit", p.Exited())
	if s, err := p.Result(); err != nil || s.Code != 6 {
		t.Error(s, err)
	}
}

// What a runner's own socket tells and what its supervisor tells come in any
// order: a dead one must not be given a command between the two.
func TestRunnerThatIsGoneGetsNoCommand(t *testing.T) {
	near, far, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	defer far.Close()
	w := &worker{id: 7, conn: near}
	c := &crew{log: slog.New(slog.DiscardHandler), runners: map[uint32]*worker{7: w}, idle: []*worker{w}}
	c.gone(modes.Frame{Kind: modes.KindGone, ID: 7})
	if len(c.idle) > 0 || len(c.runners) > 0 {
		t.Errorf("still there: %v idle, %v known", c.idle, c.runners)
	}
	if _, err := near.Write([]byte{0}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("its socket is open: %v", err)
	}
}

func runnersOf(h *Host) []uint32 {
	c := h.crew
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.runners))
}

func TestRunnersAreKeptButNotTooMany(t *testing.T) {
	h := newHost(t)
	const many = 10
	var all []*Process
	var out []*os.File
	for range many {
		p, r := start(t, h, "echo; read x <&0; while ! test -e /proc/$PPID/none; do sleep 60; done")
		all, out = append(all, p), append(out, r)
	}
	for _, r := range out {
		line(t, r)
	}
	for _, p := range all {
		p.Kill()
	}
	for _, p := range all {
		wait(t, "gone", p.Gone())
	}
	c := h.crew
	eventually(t, "most runners have ended", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.runners) == maxIdle && len(c.idle) == maxIdle
	})
}

// TestServerTakesNobodyElsesChild: while the supervisor dies and its orphans are
// reaped, other children of this process keep their exit status.
func TestServerTakesNobodyElsesChild(t *testing.T) {
	h := newHost(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !modes.IsClosed(stop) {
				cmd := exec.Command("setsid", "sh", "-c", "exit 9")
				err := cmd.Run()
				var ee *exec.ExitError
				if !errors.As(err, &ee) || ee.ExitCode() != 9 {
					t.Errorf("another child: %v", err)
					return
				}
			}
		})
	}
	for range 10 {
		p, r := start(t, h, `
			setsid sleep 60 & setsid sleep 60 & echo ready
			read -r _ _ _ up _ < /proc/$PPID/stat; kill -9 $up $PPID; sleep 60`)
		line(t, r)
		wait(t, "gone", p.Gone())
		if _, err := p.Result(); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	if left := modes.OwnChildren(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCloseDuringStartsLeavesNothing(t *testing.T) {
	for range 10 {
		h := NewHost(Options{})
		var wg sync.WaitGroup
		const starters = 4
		begun := make(chan struct{}, starters)
		for range starters {
			wg.Go(func() {
				tell := sync.OnceFunc(func() { begun <- struct{}{} })
				defer tell()
				null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
				if err != nil {
					t.Error(err)
					return
				}
				defer null.Close()
				for {
					p, err := h.Start(Job{Path: "/bin/sleep", Argv: []string{"sleep", "60"}, Dir: "/", Umask: -1, Stdout: null, Stderr: null})
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						continue // the crew has just been closed
					}
					tell()
					p.Kill()
					wait(t, "gone", p.Gone())
				}
			})
		}
		for range starters {
			<-begun
		}
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if left := modes.OwnChildren(); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
	}
}

func TestCloseGivesUpWithItsContextButEndsAll(t *testing.T) {
	h := NewHost(Options{})
	p, r := start(t, h, `trap "" TERM; echo; while :; do sleep 1; done`)
	line(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wait(t, "gone", p.Gone())
	if err := h.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestEndOfFileEndsEverything talks to the hidden mode itself: garbage and end
// of file both end it.
func TestEndOfFileEndsEverything(t *testing.T) {
	for _, last := range []string{"", "garbage that is longer than a header", string(modes.Frame{Kind: modes.KindKill, ID: 99}.Encode())} {
		conn, peer, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe", modes.SupervisorArg, "1")
		cmd.ExtraFiles = []*os.File{peer}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		if _, err := io.WriteString(conn, last); err != nil {
			t.Error(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%q: %v", last, err)
		}
		conn.Close()
	}
}

// A process that has no mode goes on to main, one that has a mode never does.
func TestModesKnowTheirOwnArgumentsOnly(t *testing.T) {
	for _, args := range [][]string{nil, {"serve"}, {"--", modes.SupervisorArg}} {
		// The test's own main answers to -test.list with the names it has.
		out, err := exec.Command("/proc/self/exe", append([]string{"-test.list=^TestStatusOf$"}, args...)...).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "TestStatusOf\n") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
	// Wrong arguments, or no control socket.
	for _, args := range [][]string{{modes.SupervisorArg}, {modes.SupervisorArg, "y"}, {modes.SupervisorArg, "1", "2"}, {modes.SupervisorArg, "1"}, {modes.RunnerArg}} {
		out, err := exec.Command("/proc/self/exe", args...).CombinedOutput()
		if err == nil || len(out) > 0 {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}

func TestStatusOf(t *testing.T) {
	for wait, want := range map[syscall.WaitStatus]Status{
		0:                                       {},
		255 << 8:                                {Code: 255},
		syscall.WaitStatus(unix.SIGKILL):        {Code: 137, Signal: "SIGKILL"},
		syscall.WaitStatus(unix.SIGSEGV | 0x80): {Code: 139, Signal: "SIGSEGV"}, // with a core
		40:                                      {Code: 168, Signal: "SIGRT"},
	} {
		if got := statusOf(wait); got != want {
			t.Errorf("%x: %+v", wait, got)
		}
	}
}

// A command that kills its runner takes no other with it.
func TestOtherCommandsOutliveAKilledRunner(t *testing.T) {
	h := newHost(t)
	other, r := start(t, h, "echo; read x < /dev/zero; exit 8")
	line(t, r)
	p, _ := start(t, h, "setsid sleep 60 & kill -9 $PPID; sleep 60")
	wait(t, "gone", p.Gone())
	if _, err := p.Result(); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	if modes.IsClosed(other.Exited()) {
		t.Error("the other one ended")
	}
	other.Kill()
	wait(t, "gone", other.Gone())
	if s, err := other.Result(); err != nil || s.Signal != "SIGTERM" {
		t.Error(s, err)
	}
}
