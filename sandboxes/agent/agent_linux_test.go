package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/supervisor"
)

func TestWhatANoisyShellPrintsIsSkipped(t *testing.T) {
	c := start(t, `echo hello; echo; echo "-- the protocol begins -- not"; printf 'no newline'; `)
	if out, exit := run(t, newMount(t, c), sandboxes.Command{Script: `echo $CODEWORK_SANDBOX`}); out != "sbx_test\n" || exit.Code != 0 {
		t.Errorf("%q %+v", out, exit)
	}
}

func TestCommandsHaveTheEnvironmentOfTheAgent(t *testing.T) {
	c := start(t, "")
	caller := []string{"BASE=outside", "PATH=/nowhere", "OUTSIDE=1"}
	m := mountAt(t, c, sandboxes.MountOptions{Dir: t.TempDir(), Umask: -1, Caller: caller})
	out, _ := run(t, m, sandboxes.Command{Script: `echo "$BASE|$HOME|$OUTSIDE|$A_TOKEN|$LD_LIBRARY_PATH"`})
	if out != "inside|/nowhere|||\n" {
		t.Errorf("%q", out)
	}
	m = mountAt(t, c, sandboxes.MountOptions{Dir: t.TempDir(), Umask: 0o027, Pass: []string{"A_TOKEN"}, Withhold: []string{"BASE"}})
	out, _ = run(t, m, sandboxes.Command{Script: `echo "$BASE|$A_TOKEN"; umask`})
	if out != "|x\n0027\n" {
		t.Errorf("%q", out)
	}
}

// What arguments and names hold need not be UTF-8.
func TestBytesArriveUnchanged(t *testing.T) {
	c, _ := overPipe(t, newLocal(t))
	m := newMount(t, c)
	if out, _ := run(t, m, sandboxes.Command{Argv: []string{"printf", "%s", "\xff\xfe"}}); out != "\xff\xfe" {
		t.Errorf("%q", out)
	}
	if out, _ := run(t, m, sandboxes.Command{Script: `printf "$X"`, Env: map[string]string{"X": "\xff"}}); out != "\xff" {
		t.Errorf("%q", out)
	}
	long := strings.Repeat("x", 120_000)
	if out, _ := run(t, m, sandboxes.Command{Argv: []string{"printf", "%s", long, long, long}}); out != long+long+long {
		t.Errorf("%d bytes", len(out))
	}
	// One larger than a message is refused outside.
	_, err := m.Run(ctxb, sandboxes.Command{Script: ": " + strings.Repeat("x", maxMessage)})
	var se *sandboxes.ShellError
	if !errors.As(err, &se) || !errors.Is(err, errTooLarge) {
		t.Errorf("%v", err)
	}
	_, err = m.Run(ctxb, sandboxes.Command{Script: ": " + strings.Repeat("x", 200_000)})
	if !errors.As(err, &se) || !errors.Is(err, syscall.E2BIG) {
		t.Errorf("%v", err)
	}
}

func TestErrorsKeepTheirIdentity(t *testing.T) {
	plain := errors.New("something else")
	for _, want := range []error{
		fs.ErrNotExist, fs.ErrPermission, fs.ErrExist, syscall.ENOENT, syscall.ENOSPC, syscall.ELOOP, sandboxes.ErrIsDirectory,
		sandboxes.ErrNotDirectory, sandboxes.ErrNotRegular, sandboxes.ErrClosed, context.Canceled, context.DeadlineExceeded,
		&fs.PathError{Op: "open", Path: "f", Err: syscall.EACCES},
		&supervisor.StartError{Path: "/bin/x", Err: syscall.E2BIG},
		plain,
	} {
		for _, wrap := range []func(error) error{
			func(e error) error { return e },
			func(e error) error { return &sandboxes.FileError{Op: "read", Path: "f", Err: e} },
			func(e error) error { return &sandboxes.ShellError{Reason: "why", Err: e} },
		} {
			in := wrap(want)
			got := toWireError(in).err()
			for _, s := range sentinels {
				if errors.Is(in, s.err) != errors.Is(got, s.err) {
					t.Errorf("%v became %v: %s differs", in, got, s.name)
				}
			}
			text := in.Error()
			var fe *sandboxes.FileError
			if errors.As(in, &fe) {
				text = fe.Err.Error() // the outside wraps it again
			}
			if got.Error() != text {
				t.Errorf("%q became %q", text, got)
			}
			var a, b *sandboxes.ShellError
			if errors.As(in, &a) != errors.As(got, &b) {
				t.Errorf("%v became %T", in, got)
			}
		}
	}
	var missing *messages.DirectoryNotFound
	if err := toWireError(&messages.DirectoryNotFound{Directory: "/d", SandboxID: "s"}).err(); !errors.As(err, &missing) || *missing != (messages.DirectoryNotFound{Directory: "/d", SandboxID: "s"}) {
		t.Error(err)
	}
	var not *messages.NotDirectory
	if err := toWireError(fmt.Errorf("mount: %w", &messages.NotDirectory{Directory: "/d", SandboxID: "s"})).err(); !errors.As(err, &not) {
		t.Error(err)
	}
	if toWireError(nil) != nil || (*wireError)(nil).err() != nil {
		t.Error("no error became one")
	}
	if err := toWireError(&sandboxes.ShellError{Reason: "alone"}).err(); err.Error() != "alone" {
		t.Error(err)
	}
}

// A dead connection fails what is in flight and what comes, and runs nothing
// again.
func TestALostConnectionFailsWhatIsInFlight(t *testing.T) {
	c := start(t, "")
	m := newMount(t, c)
	type end struct {
		exit sandboxes.Exit
		err  error
	}
	done := make(chan end, 1)
	started := make(chan struct{})
	go func() {
		exit, err := m.Run(ctxb, sandboxes.Command{
			Script: `echo run >> ran; echo; while :; do echo >> beat; sleep 0.02; done`,
			Output: func(sandboxes.Stream, []byte) { close(started) },
		})
		done <- end{exit, err}
	}()
	<-started
	eventually(t, "it runs", func() bool { return size(m.Dir()+"/beat") > 3 })
	unlock, err := m.Lock(ctxb, "f")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Lost():
		t.Fatal("lost already")
	default:
	}
	_ = c.link.conn.Close() // the client, which sees it, closes too
	got := <-done
	var se *sandboxes.ShellError
	if !errors.As(got.err, &se) || !errors.Is(got.err, ErrLost) || got.exit.Code != -1 || !strings.Contains(got.err.Error(), "connection lost") {
		t.Errorf("%+v", got)
	}
	<-c.Lost()
	unlock()
	if _, err := m.Read(ctxb, "f", 0, -1); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	if _, err := m.Run(ctxb, sandboxes.Command{Script: "true"}); !errors.As(err, &se) || !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	if _, err := c.Mount(ctxb, sandboxes.MountOptions{}); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error("all has ended already:", err)
	}
	// The inside sees the end and takes everything with it.
	begin := time.Now()
	c.waited = true
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("agent: %v: %s", err, c.stderr)
	}
	if d := time.Since(begin); d > endPatience {
		t.Errorf("the agent took %v to exit", d)
	}
	first := size(m.Dir() + "/beat")
	time.Sleep(500 * time.Millisecond) // this wait is the measurement
	if now := size(m.Dir() + "/beat"); now != first || first == 0 {
		t.Errorf("the command lives: %d, then %d", first, now)
	}
	if got := size(m.Dir() + "/ran"); got != int64(len("run\n")) {
		t.Errorf("run more than once: %d bytes", got)
	}
	if _, err := os.Stat(m.Scratch()); err == nil {
		t.Error("scratch is left")
	}
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// The agent itself may be killed; its supervisor ends what ran.
func TestAKilledAgentTakesItsCommandsAlong(t *testing.T) {
	if err := supervisor.Subreaper(); err != nil {
		t.Fatal(err)
	}
	c := start(t, "")
	m := newMount(t, c)
	ended := make(chan error, 1)
	go func() {
		_, err := m.Run(ctxb, sandboxes.Command{Script: `setsid sh -c 'trap "" TERM; while :; do echo >> beat; sleep 0.02; done' & sleep 60`})
		ended <- err
	}()
	eventually(t, "it runs", func() bool { return size(m.Dir()+"/beat") > 3 })
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	c.waited = true
	_ = c.cmd.Wait()
	// The supervisor fell to us, another subreaper, and ends by itself.
	eventually(t, "the supervisor has ended", func() bool {
		_, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		return err == syscall.ECHILD
	})
	first := size(m.Dir() + "/beat")
	time.Sleep(500 * time.Millisecond) // this wait is the measurement
	if now := size(m.Dir() + "/beat"); now != first {
		t.Errorf("the command lives: %d, then %d", first, now)
	}
}

func TestServeEndsWithItsContextAndClosesTheSandbox(t *testing.T) {
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(ctxb)
	sb := newLocal(t)
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, far, sb) }()
	c, err := Dial(ctxb, near, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-c.Lost()
	if _, err := sb.Mount(ctxb, sandboxes.MountOptions{}); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
	if err := c.Close(ctxb); err != nil {
		t.Error(err)
	}
}

func TestServeEndsCleanlyWithItsClient(t *testing.T) {
	near, far := net.Pipe()
	done := make(chan error, 1)
	sb := newLocal(t)
	go func() { done <- Serve(ctxb, far, sb) }()
	c, err := Dial(ctxb, near, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := newMount(t, c)
	if err := errors.Join(c.Close(ctxb), c.Close(ctxb)); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := m.Read(ctxb, "f", 0, -1); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
}

// peer speaks for the other end of a connection.
func peer(t *testing.T, say ...[]byte) net.Conn {
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	heard := make(chan struct{})
	go func() {
		_, _ = far.Read(make([]byte, maxBody))
		close(heard)
		_, _ = io.Copy(io.Discard, far)
	}()
	go func() {
		for _, b := range say {
			if _, err := far.Write(b); err != nil {
				return
			}
		}
		<-heard // or the other side may only learn that its handshake got nowhere
		far.Close()
	}()
	return near
}

func TestDialSaysWhatIsWrong(t *testing.T) {
	old := frame{kind: kindHello, body: []byte(`{"protocol":"codework-sandbox-agent","version":99}`)}.encode()
	for _, c := range []struct {
		name, marker string
		say          []byte
		want         string
	}{
		{"another version", "", old, "speaks version 99 of the protocol, this one version 1"},
		{"a shell's complaint", "", []byte("sh: codework: not found\n"), `says "sh: codework: not found\n"`},
		{"nothing", "", nil, "ended before it said anything"},
		{"no handshake", "", frame{kind: kindHello, body: []byte("{}")}.encode(), "no handshake"},
		{"half a frame", "", helloFrame().encode()[:20], "unexpected EOF"},
		{"no marker", "MARK", []byte("This account is not available\n"), "ended before the marker, having said \"This account"},
		{"only noise", "MARK", bytes.Repeat([]byte("noise\n"), maxNoise), "no marker within 65536 bytes"},
		{"the marker and no protocol", "MARK", []byte("x\nMARK\nhello\n"), `says "hello\n"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl, err := Dial(ctxb, peer(t, c.say), DialOptions{Marker: c.marker})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if cl != nil {
				t.Error("a client beside the error")
			}
		})
	}
	// The inside refuses as well.
	near, far := net.Pipe()
	go func() {
		go func() { _, _ = io.Copy(io.Discard, near) }()
		_, _ = near.Write(old)
	}()
	if err := Serve(ctxb, far, newLocal(t)); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Error(err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithTimeout(ctxb, 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, near, DialOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A peer that takes the handshake and nothing more: calls that are given up
// return all the same.
func TestADeadPeerHoldsNoCallUp(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_, _ = readFrame(far)
		_, _ = far.Write(helloFrame().encode())
	}()
	c, err := Dial(ctxb, near, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := &mount{client: c, id: 1}
	ctx, cancel := context.WithTimeout(ctxb, 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := m.Run(ctx, sandboxes.Command{Script: "true"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := m.Write(ctx, "f", make([]byte, 10<<20)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if _, err := m.Lock(ctx, "f"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	wg.Wait()
	if d := time.Since(start); d > cancelPatience+500*time.Millisecond {
		t.Errorf("took %v", d)
	}
	start = time.Now()
	_ = c.Close(ctxb) // an error is fine: nobody answers
	if d := time.Since(start); d > cancelPatience+500*time.Millisecond {
		t.Errorf("closing took %v", d)
	}
}

// What breaks the protocol ends the connection.
func TestTheInsideIsNotTrusted(t *testing.T) {
	credit := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	for _, c := range []struct {
		name   string
		frames []frame
	}{
		{"an answer nobody asked for", []frame{{kindAnswer, 77, []byte("{}")}}},
		{"an answer that is none", []frame{{kindAnswer, 1, []byte("{")}}},
		{"a request", []frame{{kindRequest, 1, []byte("{}")}}},
		{"too much credit", []frame{{kindCredit, 1, credit(1)}}},
		{"credit that is none", []frame{{kindCredit, 1, nil}}},
		{"empty data", []frame{{kindData, 1, nil}}},
		{"more data than asked for", []frame{{kindData, 1, make([]byte, 11)}}},
		{"output of a file", []frame{{kindStdout, 1, []byte("x")}}},
		{"more data than the window", slices.Repeat([]frame{{kindData, 1, make([]byte, pieceSize)}}, windowSize/pieceSize+1)},
		{"an answer without end", slices.Repeat([]frame{{kindPart, 1, make([]byte, maxBody)}}, maxMessage/maxBody+1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			go func() {
				_, _ = far.Write(helloFrame().encode())
				_, _ = readFrame(far) // hello
				_, _ = readFrame(far) // the request
				go func() { _, _ = io.Copy(io.Discard, far) }()
				for _, f := range c.frames {
					if _, err := far.Write(f.encode()); err != nil {
						return
					}
				}
			}()
			cl, err := Dial(ctxb, near, DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m := &mount{client: cl, id: 1}
			if _, err := m.Read(ctxb, "f", 0, 10); !errors.Is(err, ErrLost) || !errors.Is(err, errProtocol) {
				t.Error(err)
			}
			<-cl.Lost()
			if err := cl.Close(ctxb); err != nil {
				t.Error(err)
			}
		})
	}
}

// A consumer that takes nothing holds up its own command and nobody else's, and
// little is kept for it.
func TestASlowConsumerCostsAWindow(t *testing.T) {
	c, _ := overPipe(t, newLocal(t))
	m := newMount(t, c)
	ctx, cancel := context.WithCancel(ctxb)
	defer cancel()
	release := make(chan struct{})
	const slow = 4
	var wg sync.WaitGroup
	inside := make(chan struct{}, slow)
	for range slow {
		wg.Go(func() {
			var once sync.Once
			_, err := m.Run(ctx, sandboxes.Command{Script: "yes", Output: func(sandboxes.Stream, []byte) {
				once.Do(func() { inside <- struct{}{}; <-release })
			}})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for range slow {
		<-inside
	}
	// Everything that the others may send has been sent when this is through.
	big := make([]byte, 4<<20)
	if err := m.Write(ctxb, "f", big); err != nil {
		t.Error(err)
	}
	if got, err := m.Read(ctxb, "f", 0, -1); err != nil || !bytes.Equal(got, big) {
		t.Error(len(got), err)
	}
	held := 0
	c.mu.Lock()
	for _, call := range c.calls {
		call.inbox.mu.Lock()
		for _, f := range call.inbox.frames {
			held += len(f.body)
		}
		call.inbox.mu.Unlock()
	}
	c.mu.Unlock()
	if held > slow*windowSize {
		t.Errorf("%d bytes are kept", held)
	}
	// They can be cancelled all the same, behind the consumer's back.
	cancel()
	eventually(t, "they have ended inside", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.calls) == 0
	})
	close(release)
	wg.Wait()
}

func TestAFloodStaysSmall(t *testing.T) {
	c, _ := overPipe(t, newLocal(t))
	m := newMount(t, c)
	runtime.GC()
	before := resident(t)
	var total, peak int64
	exit, err := m.Run(ctxb, sandboxes.Command{
		Script: "yes | head -c 64M",
		Output: func(_ sandboxes.Stream, b []byte) {
			if total>>22 != (total+int64(len(b)))>>22 {
				peak = max(peak, resident(t))
			}
			total += int64(len(b))
		},
	})
	if err != nil || exit.Code != 0 || total != 64<<20 {
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

func TestMainLeavesOtherArgumentsAlone(t *testing.T) {
	for _, args := range [][]string{nil, {"codework"}, {"codework", "run", Arg}} {
		if handled, _ := Main(args); handled {
			t.Errorf("%q", args)
		}
	}
	for _, bad := range [][]string{{"x", Arg, "-no-such-flag"}, {"x", Arg, "word"}} {
		cmd := exec.Command(os.Args[0], bad[1:]...)
		out, err := cmd.CombinedOutput()
		if err == nil || len(out) == 0 {
			t.Errorf("%q: %v %q", bad, err, out)
		}
	}
}

// BenchmarkTrue compares a command through the agent, in a process of its own,
// with one of the local driver. Every round does both, so that a busy machine
// is busy for both.
func BenchmarkTrue(b *testing.B) {
	direct := newLocal(b)
	defer direct.Close(ctxb)
	plain, through := newMount(b, direct), newMount(b, start(b, ""))
	once := func(m sandboxes.Mount) time.Duration {
		begin := time.Now()
		if exit, err := m.Run(ctxb, sandboxes.Command{Script: "true"}); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
		return time.Since(begin)
	}
	once(plain)
	once(through)
	var here, there []time.Duration
	for b.Loop() {
		here, there = append(here, once(plain)), append(there, once(through))
	}
	slices.Sort(here)
	slices.Sort(there)
	l, a := here[len(here)/2], there[len(there)/2]
	b.ReportMetric(float64(l.Microseconds()), "local-p50-µs")
	b.ReportMetric(float64(a.Microseconds()), "agent-p50-µs")
	b.ReportMetric(float64(a)/float64(l), "ratio")
}
