package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes"
	"codework/sandboxes/supervisor"
)

// result is what a command printed and how it ended.
type result struct {
	sandboxes.Exit
	out, err string
}

// run runs a command and wants it to have run.
func run(t testing.TB, m sandboxes.Mount, c sandboxes.Command) result {
	t.Helper()
	r, err := tryRun(context.Background(), m, c)
	if err != nil {
		t.Fatalf("run %q %q: %v", c.Script, c.Argv, err)
	}
	return r
}

func tryRun(ctx context.Context, m sandboxes.Mount, c sandboxes.Command) (result, error) {
	var streams [2]strings.Builder
	c.Output = func(s sandboxes.Stream, b []byte) { streams[s-sandboxes.Stdout].Write(b) }
	exit, err := m.Run(ctx, c)
	return result{Exit: exit, out: streams[0].String(), err: streams[1].String()}, err
}

func TestExitCodes(t *testing.T) {
	m := newMount(t, newSandbox(t))
	plain := filepath.Join(m.Dir(), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(m.Dir(), "garbage")
	if err := os.WriteFile(garbage, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	argv := func(a ...string) sandboxes.Command { return sandboxes.Command{Argv: a} }
	script := func(s string) sandboxes.Command { return sandboxes.Command{Script: s} }
	for _, c := range []struct {
		name    string
		command sandboxes.Command
		code    int
		signal  string
	}{
		{"nothing", script(""), 0, ""},
		{"true", script("true"), 0, ""},
		{"255", script("exit 255"), 255, ""},
		{"124 is no time limit", script("exit 124"), 124, ""},
		{"TERM", script("kill -TERM $$"), 128 + 15, "SIGTERM"},
		{"KILL", script("kill -KILL $$"), 128 + 9, "SIGKILL"},
		{"SEGV", argv("sh", "-c", "kill -SEGV $$"), 128 + 11, "SIGSEGV"},
		{"not found by the shell", script("no-such-program-here"), 127, ""},
		{"not found", argv("no-such-program-here"), 127, ""},
		{"not found by path", argv("./no-such-program"), 127, ""},
		{"not found below a file", argv("./plain/x"), 127, ""},
		{"empty name", argv(""), 127, ""},
		{"not executable", argv(plain), 126, ""},
		{"no format", argv("./garbage"), 126, ""},
		{"a folder", argv(m.Dir()), 126, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, m, c.command)
			if r.Code != c.code || r.Signal != c.signal || r.TimedOut || r.Background {
				t.Errorf("got %+v, want code %d signal %q", r, c.code, c.signal)
			}
			if c.code == 127 || c.code == 126 {
				if r.err == "" {
					t.Error("no word about why")
				}
			}
		})
	}
}

func TestArgumentsArriveUnchanged(t *testing.T) {
	m := newMount(t, newSandbox(t))
	args := []string{"-n", "a b", "it's", `"`, "$(id)", "`id`", "\\", "new\nline", "", "*", "\xff"}
	r := run(t, m, sandboxes.Command{Argv: append([]string{"printf", `%s\0`, "--"}, args...)})
	if want := "--\x00" + strings.Join(args, "\x00") + "\x00"; r.out != want {
		t.Errorf("got %q want %q", r.out, want)
	}
}

func TestCommandHasNoInputNoTerminalAndItsOwnSession(t *testing.T) {
	m := newMount(t, newSandbox(t))
	for _, c := range []struct{ script, want string }{
		{`cat; read x; echo "got $x $?"`, "got  1\n"},
		{`readlink /proc/self/fd/0`, "/dev/null\n"},
		{`if ( exec 3</dev/tty ) 2>/dev/null; then echo open; else echo none; fi`, "none\n"},
		// pid, group and session are one
		{`read -r pid _ _ _ pgrp sid tty _ < /proc/$$/stat; test $pid = $pgrp -a $pid = $sid && echo $tty`, "0\n"},
		// 3 is the folder that ls itself has opened
		{`ls /proc/self/fd`, "0\n1\n2\n3\n"},
		{`exec ls /proc/self/fd`, "0\n1\n2\n3\n"},
		{`for s in HUP INT QUIT TERM PIPE; do trap -p $s; done; grep -E '^Sig(Blk|Ign)' /proc/self/status | tr -d '\t '`,
			"SigBlk:0000000000000000\nSigIgn:0000000000000000\n"},
	} {
		start := time.Now()
		if r := run(t, m, sandboxes.Command{Script: c.script}); r.out != c.want {
			t.Errorf("%s: got %q %q, want %q", c.script, r.out, r.err, c.want)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s took %v", c.script, d)
		}
	}
}

func TestCommandHasTheServersLimits(t *testing.T) {
	m := newMount(t, newSandbox(t))
	// os/exec gives a child the limits this process was started with.
	// Its priority is lower: the server must answer beside whatever runs.
	const limits, stepsBack = "ulimit -Sn; ulimit -Hn; ulimit -u; ulimit -c; ", 5
	script := limits + "nice"
	want, err := exec.Command("bash", "-c", limits+fmt.Sprintf("n=$(($(nice)+%d)); echo $((n>19?19:n))", stepsBack)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if r := run(t, m, sandboxes.Command{Script: script}); r.out != string(want) {
		t.Errorf("got %q want %q", r.out, want)
	}
}

// TestCommandHasNoneOfTheServersHaste: the server's threads, those that it makes
// later, too, have a short time slice, a command has the usual one.
func TestCommandHasNoneOfTheServersHaste(t *testing.T) {
	slice := func(text string) string {
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "se.slice" {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	ofThread := func() string {
		b, err := os.ReadFile("/proc/thread-self/sched")
		if err != nil {
			return err.Error()
		}
		return slice(string(b))
	}
	usual := make(chan string)
	go func() { // a thread of its own, which ends with it
		runtime.LockOSThread()
		usual <- ofThread()
	}()
	want := <-usual
	supervisor.WakeFirst()
	for range 20 {
		go func() { // holds a thread, so that there are new ones
			runtime.LockOSThread()
			usual <- ofThread()
		}()
	}
	short := <-usual
	for range 19 {
		if s := <-usual; s != short {
			t.Errorf("a thread has %s, another one %s", s, short)
		}
	}
	if want == "" || short == want {
		t.Skipf("this kernel has no slices of processes (%s, then %s)", want, short)
	}
	if r := run(t, newMount(t, newSandbox(t)), sandboxes.Command{Script: "cat /proc/self/sched"}); slice(r.out) != want {
		t.Errorf("a command has %q instead of %s", slice(r.out), want)
	}
}

// runnerMode is the argument by which the runner is told from the server.
const runnerMode = "__sandbox-runner"

func TestNothingOfTheServerIsInItsParentsEnvironment(t *testing.T) {
	t.Setenv("SOME_API_KEY", "hush-hush")
	m := newMount(t, newSandbox(t))
	r := run(t, m, sandboxes.Command{Script: `
		read -r _ _ _ up _ < /proc/$PPID/stat
		for p in $PPID $up; do tr '\0' '\n' < /proc/$p/environ; done`})
	if r.out != "GOMAXPROCS=2\nGOMAXPROCS=2\n" {
		t.Errorf("environments of runner and supervisor: %q %q", r.out, r.err)
	}
	r = run(t, m, sandboxes.Command{Script: `env; cat /proc/$PPID/cmdline`})
	if strings.Contains(r.out, "hush-hush") || !strings.Contains(r.out, runnerMode) {
		t.Errorf("the key is visible: %q", r.out)
	}
	r = run(t, m, sandboxes.Command{Script: `
		read -r _ _ _ up _ < /proc/$PPID/stat
		for p in $$ $PPID $up; do for f in /proc/$p/fd/*; do readlink $f; done; echo; done`})
	own, others, _ := strings.Cut(r.out, "\n\n")
	for line := range strings.Lines(others) {
		switch what, _, _ := strings.Cut(line, ":"); {
		case line == "\n", line == "/dev/null\n", what == "socket", what == "anon_inode":
		case strings.HasPrefix(line, "/sys/fs/cgroup/"): // the runtime looks for limits of its threads
		case strings.Contains(own+"\n", line): // the runner may be about to close the command's pipes
		default:
			t.Errorf("runner or supervisor holds %s", line)
		}
	}
}

func TestDescriptorsTheServerInheritedDoNotReachCommands(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd := int(w.Fd())
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, 0); errno != 0 {
		t.Fatal(errno)
	}
	m := newMount(t, newSandbox(t))
	if got := run(t, m, sandboxes.Command{Script: "ls /proc/self/fd"}).out; got != "0\n1\n2\n3\n" {
		t.Errorf("command sees %q", got)
	}
	// Nor does the supervisor hold it open.
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("pipe still open below: %d %v", n, err)
	}
}

func TestWorkingFolder(t *testing.T) {
	m := newMount(t, newSandbox(t))
	dir := m.Dir()
	if err := os.MkdirAll(filepath.Join(dir, "real/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real/sub", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{
		"":              dir,
		"real":          dir + "/real",
		dir + "/real":   dir + "/real",
		"link":          dir + "/real/sub",
		"link/..":       dir + "/real",
		"./real/../":    dir,
		"real/sub/../.": dir + "/real",
	} {
		if r := run(t, m, sandboxes.Command{Script: "pwd -P", Dir: asked}); r.out != want+"\n" {
			t.Errorf("%q: got %q want %q", asked, r.out, want)
		}
	}
	for _, asked := range []string{"missing", dir + "/missing", "file", "nul\x00", strings.Repeat("x", 300), strings.Repeat("x/", 3000)} {
		ran := false
		_, err := m.Run(context.Background(), sandboxes.Command{Script: "echo ran", Dir: asked,
			Output: func(sandboxes.Stream, []byte) { ran = true }})
		var se *sandboxes.ShellError
		if !errors.As(err, &se) || !strings.Contains(err.Error(), asked) || ran {
			t.Errorf("%q: %v (ran: %v)", asked, err, ran)
		}
	}
	if r := run(t, m, sandboxes.Command{Script: "cd real; pwd"}); r.out != dir+"/real\n" {
		t.Error(r.out)
	}
	if r := run(t, m, sandboxes.Command{Script: "pwd"}); r.out != dir+"\n" {
		t.Error("cd of one command changed the next: ", r.out)
	}
}

func TestScriptTooLongIsAnErrorThatSaysSo(t *testing.T) {
	m := newMount(t, newSandbox(t))
	_, err := m.Run(context.Background(), sandboxes.Command{Script: ": " + strings.Repeat("x", 200_000)})
	var se *sandboxes.ShellError
	if !errors.As(err, &se) || !errors.Is(err, syscall.E2BIG) {
		t.Error(err)
	}
	// One that fits travels in more than one piece.
	long := strings.Repeat("x", 120_000)
	r := run(t, m, sandboxes.Command{Argv: []string{"printf", "%s", long, long, long}})
	if r.out != long+long+long {
		t.Errorf("got %d bytes", len(r.out))
	}
}

func TestBackgroundJobDoesNotDelayTheResult(t *testing.T) {
	s := newSandbox(t)
	for _, script := range []string{
		"echo started; sleep 120 &",
		"echo started; setsid sleep 120 &",
		"echo started; nohup sh -c 'while :; do sleep 1; done' >/dev/null 2>&1 &",
		"echo started; sleep 120 2>/dev/null 1>&1 &",
		"echo started; ( while :; do echo flood; done ) &",
	} {
		t.Run(script, func(t *testing.T) {
			m := newMount(t, s)
			start := time.Now()
			r := run(t, m, sandboxes.Command{Script: script})
			if d := time.Since(start); d > time.Second {
				t.Errorf("took %v", d)
			}
			if !strings.HasPrefix(r.out, "started\n") || r.Code != 0 || !r.Background {
				t.Errorf("got %+v", r.Exit)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLateOutputWithinTheDrainIsKept(t *testing.T) {
	m := newMount(t, newSandbox(t))
	var r result
	for range 5 { // a busy machine may take longer over the 50 ms than the drain waits
		r = run(t, m, sandboxes.Command{Script: "( sleep 0.05; echo late ) & echo early"})
		if r.out == "early\nlate\n" && !r.Background {
			return
		}
	}
	t.Errorf("got %q %+v", r.out, r.Exit)
}

// A job whose pipe nobody read any more would stop or die of its next line.
func TestBackgroundJobMayGoOnPrinting(t *testing.T) {
	m := newMount(t, newSandbox(t))
	r := run(t, m, sandboxes.Command{Script: `
		( sleep 0.5; head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; echo alive > mark ) &`})
	if !r.Background {
		t.Fatalf("%+v", r.Exit)
	}
	if err := eventually("the job goes on", func() bool { return size(filepath.Join(m.Dir(), "mark")) > 0 }); err != nil {
		t.Error(err)
	}
}

func TestRunnerServesTheNextCommandWhenItsTreeIsEmpty(t *testing.T) {
	m := newMount(t, newSandbox(t))
	parent := func(script string) string {
		return strings.TrimSpace(run(t, m, sandboxes.Command{Script: script}).out)
	}
	first := parent("echo $PPID")
	if next := parent("echo $PPID"); next != first {
		t.Errorf("runner %s, then %s", first, next)
	}
	if busy := parent("sleep 60 >/dev/null 2>&1 & echo $PPID"); busy != first {
		t.Errorf("runner %s, then %s", first, busy)
	}
	if next := parent("echo $PPID"); next == first {
		t.Error("a runner with a background job took another command")
	}
}

func TestNothingIsStartedBeforeTheFirstCommand(t *testing.T) {
	before := len(children(t))
	m := newMount(t, newSandbox(t))
	if got := len(children(t)); got != before {
		t.Errorf("%d children, then %d", before, got)
	}
	run(t, m, sandboxes.Command{Script: "true"})
	if got := len(children(t)); got != before+1 {
		t.Errorf("%d children, then %d", before, got)
	}
}

func TestJoinedStreamsKeepTheirOrder(t *testing.T) {
	m := newMount(t, newSandbox(t))
	r := run(t, m, sandboxes.Command{Joined: true, Script: `for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done`})
	if want := "o1\ne1\no2\ne2\no3\ne3\no4\ne4\no5\ne5\n"; r.out != want || r.err != "" {
		t.Errorf("got %q %q", r.out, r.err)
	}
}

func TestOutputIsStreamedInOrderFromOneGoroutine(t *testing.T) {
	m := newMount(t, newSandbox(t))
	var inside atomic.Int32
	var got [3][]byte
	ready := make(chan struct{})
	var once sync.Once
	go func() {
		<-ready // arrives while the command runs, which waits for the file
		_ = os.WriteFile(filepath.Join(m.Dir(), "go"), nil, 0o600)
	}()
	exit, err := m.Run(context.Background(), sandboxes.Command{
		Script: `echo first; while ! test -e go; do sleep 0.01; done; seq 1 50000; seq 1 50000 >&2`,
		Output: func(s sandboxes.Stream, b []byte) {
			if inside.Add(1) != 1 {
				t.Error("two calls at once")
			}
			once.Do(func() { close(ready) })
			got[s] = append(got[s], b...)
			inside.Add(-1)
		},
	})
	if err != nil || exit.Code != 0 {
		t.Fatal(exit, err)
	}
	var want bytes.Buffer
	for i := range 50000 {
		fmt.Fprintln(&want, i+1)
	}
	if string(got[sandboxes.Stdout]) != "first\n"+want.String() || string(got[sandboxes.Stderr]) != want.String() {
		t.Errorf("got %d and %d bytes", len(got[sandboxes.Stdout]), len(got[sandboxes.Stderr]))
	}
}

func TestFullOutput(t *testing.T) {
	m := newMount(t, newSandbox(t))
	path := filepath.Join(m.Scratch(), "full")
	t.Run("both streams", func(t *testing.T) {
		r := run(t, m, sandboxes.Command{Script: "echo a; echo b >&2", Full: path, Joined: true})
		got, err := os.ReadFile(path)
		if err != nil || string(got) != "a\nb\n" || r.FullBytes != 4 || r.FullCut {
			t.Errorf("%q %v %+v", got, err, r.Exit)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Error(info.Mode(), err)
		}
	})
	t.Run("a link planted there is not followed", func(t *testing.T) {
		run(t, m, sandboxes.Command{Script: `echo keep > precious; ln -sf "$PWD/precious" "` + path + `"`})
		run(t, m, sandboxes.Command{Script: "echo new", Full: "full"})
		if got, _ := os.ReadFile(filepath.Join(m.Dir(), "precious")); string(got) != "keep\n" {
			t.Errorf("written through the link: %q", got)
		}
		if got, _ := os.ReadFile(path); string(got) != "new\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("outside scratch", func(t *testing.T) {
		for _, bad := range []string{"/tmp/x", "../x", m.Scratch(), "sub/x", filepath.Join(m.Dir(), "x")} {
			_, err := m.Run(context.Background(), sandboxes.Command{Script: "echo ran > ran", Full: bad})
			var se *sandboxes.ShellError
			if !errors.As(err, &se) {
				t.Errorf("%q: %v", bad, err)
			}
		}
		if size(filepath.Join(m.Dir(), "ran")) > 0 {
			t.Error("the command ran")
		}
	})
	t.Run("cut at the limit", func(t *testing.T) {
		const more = 1 << 20
		r := run(t, m, sandboxes.Command{Script: fmt.Sprintf("head -c %d /dev/zero | tee /dev/null >&2", sandboxes.FullLimit+more), Full: path})
		if size(path) != sandboxes.FullLimit || r.FullBytes != sandboxes.FullLimit+more || !r.FullCut {
			t.Errorf("%d %+v", size(path), r.Exit)
		}
	})
}

func TestFloodStaysSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds: what a command prints is read at a pace")
	}
	m := newMount(t, newSandbox(t))
	runtime.GC()
	before := resident(t)
	var total, peak int64
	exit, err := m.Run(context.Background(), sandboxes.Command{
		Script: "yes | head -c 96M",
		Output: func(_ sandboxes.Stream, b []byte) {
			if total>>24 != (total+int64(len(b)))>>24 {
				peak = max(peak, resident(t))
			}
			total += int64(len(b))
		},
	})
	if err != nil || exit.Code != 0 || total != 96<<20 {
		t.Fatal(exit, err, total)
	}
	if grown := peak - before; grown > 32<<20 {
		t.Errorf("grew by %d MiB", grown>>20)
	}
}

// resident is the memory of this process in bytes.
func resident(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, rss int64
	if _, err := fmt.Sscan(string(b), &size, &rss); err != nil {
		t.Fatal(err)
	}
	return rss * int64(os.Getpagesize())
}

func TestSlowConsumerSlowsTheCommandAndDoesNotOutliveIt(t *testing.T) {
	m := newMount(t, newSandbox(t))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var taken int
	inside, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := m.Run(ctx, sandboxes.Command{
			Script: `while :; do echo >> beat; head -c 4096 /dev/zero; done`,
			Output: func(_ sandboxes.Stream, b []byte) {
				if taken == 0 {
					close(inside)
					<-release
				}
				taken += len(b)
			},
		})
		done <- err
	}()
	<-inside
	file := filepath.Join(m.Dir(), "beat")
	var last int64 = -1
	if err := eventually("the command stands still behind a full pipe", func() bool {
		now := size(file)
		same := now == last
		last = now
		time.Sleep(50 * time.Millisecond)
		return same && now > 0
	}); err != nil {
		t.Error(err)
	}
	// The consumer does not keep the command from being killed.
	cancel()
	if err := eventually("killed behind the consumer's back", func() bool { return len(strings.Fields(listing(m.Dir()))) == 0 }); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if taken > 1<<20 {
		t.Errorf("%d bytes came through", taken)
	}
}

// listing names the processes whose working folder is dir.
func listing(dir string) string {
	var out strings.Builder
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == dir {
			fmt.Fprintln(&out, link)
		}
	}
	return out.String()
}

func TestTimeLimitKeepsTheOutputAndIsToldApart(t *testing.T) {
	m := newMount(t, newSandbox(t))
	r, err := tryRun(context.Background(), m, sandboxes.Command{
		Script: `trap 'echo bye; exit 0' TERM; echo hi; sleep 60 & wait`, Timeout: 300 * time.Millisecond})
	if err != nil || !r.TimedOut || r.Code != 0 || r.out != "hi\nbye\n" || r.Background {
		t.Errorf("%+v %v", r, err)
	}
}

func TestGraceIsNotExtended(t *testing.T) {
	m := newMount(t, newSandbox(t))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan time.Time, 1)
	go func() {
		// Every TERM starts another process that wants a second of its own.
		_, _ = m.Run(ctx, sandboxes.Command{Script: `
			trap 'sleep 5 & wait; sleep 5' TERM; echo > ready; while :; do sleep 0.1; done`})
		done <- time.Now()
	}()
	if err := eventually("ready", func() bool { return size(filepath.Join(m.Dir(), "ready")) > 0 }); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	cancel()
	if d := (<-done).Sub(start); d < 900*time.Millisecond || d > limit {
		t.Errorf("took %v", d)
	}
}

func TestAlreadyCancelledStartsNothing(t *testing.T) {
	m := newMount(t, newSandbox(t))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	exit, err := m.Run(ctx, sandboxes.Command{Script: "echo > ran"})
	if !errors.Is(err, context.Canceled) || exit.Code != -1 || size(filepath.Join(m.Dir(), "ran")) > 0 {
		t.Error(exit, err)
	}
}

func TestAtMostThirtyTwoCommandsAtOnceAndWaitersCanLeave(t *testing.T) {
	s := newSandbox(t)
	a, b := newMount(t, s), newMount(t, s)
	var wg sync.WaitGroup
	for i := range MaxCommands {
		m := []sandboxes.Mount{a, b}[i%2]
		wg.Go(func() {
			exit, err := m.Run(context.Background(), sandboxes.Command{
				Script: "echo > started" + fmt.Sprint(i) + "; while ! test -e go; do sleep 0.05; done"})
			if err != nil || exit.Code != 0 {
				t.Error(exit, err)
			}
		})
	}
	started := func() int {
		all, _ := filepath.Glob(a.Dir() + "/started*")
		more, _ := filepath.Glob(b.Dir() + "/started*")
		return len(all) + len(more)
	}
	if err := eventually("all have started", func() bool { return started() == MaxCommands }); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Run(ctx, sandboxes.Command{Script: "echo > started-too-many"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	wg.Go(func() {
		if _, err := a.Run(context.Background(), sandboxes.Command{Script: "echo > after"}); err != nil {
			t.Error(err)
		}
	})
	if started() != MaxCommands {
		t.Errorf("%d started", started())
	}
	for _, m := range []sandboxes.Mount{a, b} {
		if err := m.Write(context.Background(), "go", nil); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if size(filepath.Join(a.Dir(), "after")) == 0 {
		t.Error("the one that waited did not run")
	}
}

func TestUmask(t *testing.T) {
	s := newSandbox(t)
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	for _, c := range []struct {
		umask       int
		file, below fs.FileMode
	}{{-1, 0o644, 0o755}, {0o077, 0o600, 0o700}, {0o002, 0o664, 0o775}, {0, 0o666, 0o777}, {0o027, 0o640, 0o750}} {
		m := mountAt(t, s, sandboxes.MountOptions{Dir: t.TempDir(), Umask: c.umask, Caller: os.Environ()})
		run(t, m, sandboxes.Command{Script: "echo > by-command; mkdir folder"})
		if err := m.Write(context.Background(), "new/by-write", nil); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]fs.FileMode{"by-command": c.file, "folder": c.below, "new/by-write": c.file, "new": c.below} {
			info, err := m.Stat(context.Background(), name)
			if err != nil || info.Mode.Perm() != want {
				t.Errorf("umask %o, %s: %v %v, want %v", c.umask, name, info.Mode, err, want)
			}
		}
	}
}

func TestShellFallsBackToSh(t *testing.T) {
	s := newSandbox(t)
	bin := t.TempDir()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sh, filepath.Join(bin, "bash")); err != nil {
		t.Fatal(err)
	}
	// The caller's PATH decides which bash it is.
	m := mountAt(t, s, sandboxes.MountOptions{Dir: t.TempDir(), Umask: -1, Caller: []string{"PATH=" + bin}})
	if r := run(t, m, sandboxes.Command{Script: `echo "$0 $BASH_VERSION"`}); r.out != "bash \n" {
		t.Errorf("got %q %q", r.out, r.err)
	}
	// Without any in the PATH the usual folders serve.
	m = mountAt(t, s, sandboxes.MountOptions{Dir: t.TempDir(), Umask: -1, Caller: []string{"PATH=" + t.TempDir()}})
	if r := run(t, m, sandboxes.Command{Script: `echo fine`}); r.out != "fine\n" {
		t.Errorf("got %q %q", r.out, r.err)
	}
}

func TestClosedMountAndSandboxRefuse(t *testing.T) {
	s := newSandbox(t)
	m, other := newMount(t, s), newMount(t, s)
	run(t, m, sandboxes.Command{Script: "true"})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	refuses := func(m sandboxes.Mount) {
		t.Helper()
		if _, err := m.Run(context.Background(), sandboxes.Command{Script: "true"}); !isClosed(err) {
			t.Error(err)
		}
		if _, err := m.Read(context.Background(), "x", 0, -1); !errors.Is(err, sandboxes.ErrClosed) {
			t.Error(err)
		}
		if _, err := m.Lock(context.Background(), "x"); !errors.Is(err, sandboxes.ErrClosed) {
			t.Error(err)
		}
		if _, err := os.Stat(m.Scratch()); !errors.Is(err, fs.ErrNotExist) {
			t.Error("scratch is still there", err)
		}
	}
	refuses(m)
	run(t, other, sandboxes.Command{Script: "true"}) // it does not care
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	refuses(other)
	if _, err := s.Mount(context.Background(), sandboxes.MountOptions{}); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
	if err := errors.Join(m.Close(), other.Close(), s.Close(context.Background())); err != nil {
		t.Error("closing again:", err)
	}
}

func TestManyCommandsManyMountsOneSandbox(t *testing.T) {
	s := newSandbox(t)
	var wg sync.WaitGroup
	for i := range 8 {
		m := newMount(t, s)
		wg.Go(func() {
			for k := range 25 {
				ctx, cancel := context.WithCancel(context.Background())
				if k%5 == 4 {
					time.AfterFunc(time.Duration(k)*time.Millisecond/4, cancel)
				}
				want := fmt.Sprintf("%d-%d\n", i, k)
				r, err := tryRun(ctx, m, sandboxes.Command{Script: "printf '%s\n' " + strings.TrimSpace(want)})
				switch {
				case err != nil && !(k%5 == 4 && errors.Is(err, context.Canceled)):
					t.Error(err)
				case err == nil && (r.out != want || r.Code != 0 || r.Background):
					t.Errorf("got %+v want %q", r, want)
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

// p50 reports the median beside the mean, which a loaded machine spoils.
func p50(b *testing.B, all []time.Duration) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
}

func BenchmarkRunTrue(b *testing.B) {
	m := newMount(b, newSandbox(b))
	run(b, m, sandboxes.Command{Script: "true"})
	var all []time.Duration
	for b.Loop() {
		start := time.Now()
		if e, err := m.Run(context.Background(), sandboxes.Command{Script: "true"}); err != nil || e.Code != 0 {
			b.Fatal(e, err)
		}
		all = append(all, time.Since(start))
	}
	p50(b, all)
}

func BenchmarkCancelSleep(b *testing.B) {
	m := newMount(b, newSandbox(b))
	var all []time.Duration
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		var start time.Time
		_, err := m.Run(ctx, sandboxes.Command{Script: "echo; sleep 60", Output: func(sandboxes.Stream, []byte) {
			start = time.Now()
			cancel()
		}})
		if !errors.Is(err, context.Canceled) {
			b.Fatal(err)
		}
		all = append(all, time.Since(start))
	}
	p50(b, all)
}
