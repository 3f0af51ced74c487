//go:build linux

package home

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func start(ctx context.Context, p Paths, role string, env ...string) error {
	return p.StartBackground(ctx, []string{os.Args[0], rolePrefix + role, p.Home}, env)
}

func logged(t *testing.T, p Paths) string {
	t.Helper()
	b, err := os.ReadFile(p.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestABackgroundProcessReportsHowItsStartWent(t *testing.T) {
	for _, c := range []struct{ role, want string }{
		{"prints", ""},
		{"fails", "the store is from a newer build"},
		{"is second", ""},
	} {
		err := start(soon(t), newHome(t), c.role)
		if text := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && text != c.want {
			t.Errorf("%s: %v", c.role, err)
		}
	}
}

func TestABackgroundProcessThatDiesNamesTheLog(t *testing.T) {
	p := newHome(t)
	err := start(soon(t), p, "dies")
	if err == nil || !strings.Contains(err.Error(), p.Log) || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
}

func TestAProgramThatIsNotThereIsNamed(t *testing.T) {
	err := newHome(t).StartBackground(soon(t), []string{"/no/such/program"}, nil)
	if err == nil || strings.Count(err.Error(), "/no/such/program") != 1 {
		t.Errorf("got %v", err)
	}
}

func TestABackgroundProcessThatNeverReportsIsWaitedForWithinTheContext(t *testing.T) {
	for _, role := range []string{"says nothing", "closes the report"} {
		p := newHome(t)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		err := start(ctx, p, role)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), p.Log) {
			t.Errorf("%s: %v", role, err)
		}
		endAll(t, p.Home)
	}
}

// endAll kills the processes that were started with this home as argument.
func endAll(t *testing.T, home string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range all {
		b, err := os.ReadFile(f)
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if err != nil || len(args) != 3 || args[2] != home || !strings.HasPrefix(args[1], rolePrefix) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(f, "/")[2])
		if err == nil && pid != os.Getpid() {
			syscall.Kill(pid, syscall.SIGKILL)
			n++
		}
	}
	if n == 0 {
		t.Error("no process was left to end")
	}
}

func TestABackgroundProcessPrintsIntoTheLog(t *testing.T) {
	p := newHome(t)
	for range 2 {
		if err := start(soon(t), p, "prints"); err != nil {
			t.Fatal(err)
		}
	}
	const once = "on standard output\non standard error\n"
	if got := logged(t, p); got != once+once {
		t.Errorf("log %q", got)
	}
	if fi, err := os.Stat(p.Log); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

func TestABigLogMakesRoomForANewOne(t *testing.T) {
	p := prepared(t)
	write := func(name string, size int64) {
		t.Helper()
		if err := os.WriteFile(name, []byte("older"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	size := func(name string) int64 {
		fi, err := os.Stat(name)
		if err != nil {
			return -1
		}
		return fi.Size()
	}
	write(p.Log, MaxLog)
	if err := start(soon(t), p, "is second"); err != nil {
		t.Fatal(err)
	}
	if size(p.Log) != MaxLog || size(p.Log+".1") != -1 {
		t.Error("a log that is not over the limit was moved")
	}
	write(p.Log+".1", 7)
	write(p.Log, MaxLog+1)
	if err := start(soon(t), p, "prints"); err != nil {
		t.Fatal(err)
	}
	if size(p.Log+".1") != MaxLog+1 || size(p.Log) > 100 {
		t.Errorf("sizes %d and %d", size(p.Log), size(p.Log+".1"))
	}
}

func TestABackgroundProcessHasAWorldOfItsOwn(t *testing.T) {
	t.Setenv("SECRET_OF_THE_STARTER", "x")
	p := newHome(t)
	if err := start(soon(t), p, "tells its world", "ONLY=this", "AND=that"); err != nil {
		t.Fatal(err)
	}
	if got, want := logged(t, p), "dir /\nleads session true\nONLY=this\nAND=that\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNoEnvironmentMeansNone(t *testing.T) {
	p := newHome(t)
	if err := start(soon(t), p, "tells its world"); err != nil {
		t.Fatal(err)
	}
	if got, want := logged(t, p), "dir /\nleads session true\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A child that inherits the report keeps the starter waiting for as long as it
// lives.
func TestChildrenDoNotInheritTheReport(t *testing.T) {
	p := newHome(t)
	if err := start(soon(t), p, "has a child"); err != nil {
		t.Fatal(err)
	}
	if got, want := logged(t, p), "standard input /dev/null\ndescriptor 3 inherited false\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStartingCostsNoDescriptors(t *testing.T) {
	p := newHome(t)
	before := descriptors(t)
	for _, role := range []string{"prints", "fails", "is second", "dies"} {
		_ = start(soon(t), p, role) // how they end is tested above
	}
	_ = p.StartBackground(soon(t), []string{"/no/such/program"}, nil)
	eventually(t, "no descriptors are left", func() bool { return descriptors(t) <= before })
}

func owners(t *testing.T, p Paths) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.Home, "starts"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

func noViolation(t *testing.T, p Paths) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(p.Home, "violation")); err == nil {
		t.Errorf("two owners at one time: %s", b)
	}
}

func TestTwentyProcessesAtOnceGetOneOwner(t *testing.T) {
	p := newHome(t)
	var wg sync.WaitGroup
	answers := make([]string, 20)
	for i := range answers {
		c, out := startRole(t, "client", p.Home)
		wg.Go(func() {
			answers[i], _ = out.ReadString('\n')
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list := slices.Compact(answers); len(list) != 1 || list[0] == "" {
		t.Errorf("answers %q", answers)
	}
	if list := owners(t, p); len(list) != 1 {
		t.Errorf("owners %v", list)
	}
	noViolation(t, p)
}

func TestTwentyCallersAtOnceStartOnce(t *testing.T) {
	p := newHome(t)
	var starts atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := p.Connect(soon(t), func(ctx context.Context) error {
				starts.Add(1)
				return p.StartBackground(ctx, ownerArgv(p), nil)
			}, func(c net.Conn) error {
				_, err := askPID(c)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := starts.Load(); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestAStarterThatIsKilledLetsTheNextOneTry(t *testing.T) {
	p := newHome(t)
	c, out := startRole(t, "stuck starter", p.Home)
	if line, err := out.ReadString('\n'); line != "starting\n" {
		t.Fatal(line, err)
	}
	got := make(chan error, 1)
	ctx := soon(t)
	go func() {
		_, err := reach(ctx, p)
		got <- err
	}()
	// Still stuck: the other one has to wait, within its context.
	short, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := reach(short, p); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), p.Home) {
		t.Errorf("beside a stuck starter: %v", err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestAFailedStartTellsItsReasonAndIsNotRepeated(t *testing.T) {
	p := newHome(t)
	n := 0
	err := p.Connect(soon(t), func(ctx context.Context) error {
		n++
		return start(ctx, p, "fails")
	}, func(net.Conn) error { return errors.New("there was nobody to probe") })
	if err == nil || err.Error() != "the store is from a newer build" || n != 1 {
		t.Errorf("%v after %d starts", err, n)
	}
	if _, err := reach(soon(t), p); err != nil { // the next one may try
		t.Error(err)
	}
}

func TestAnUnwillingOwnerIsAskedUntilItIsGone(t *testing.T) {
	p := prepared(t)
	l := listen(t, p)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	asked := 0
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	err := p.Connect(ctx, func(context.Context) error { return nil }, func(c net.Conn) error {
		_, err := askPID(c)
		if asked++; asked == 10 {
			cancel()
		}
		return err
	})
	if asked < 10 || !errors.Is(err, context.Canceled) {
		t.Errorf("asked %d times, %v", asked, err)
	}
	if l.Close() != nil || p.Remove() != nil {
		t.Fatal("the owner did not go")
	}
	if _, err := reach(soon(t), p); err != nil {
		t.Error(err)
	}
}

func TestWhatTheProbeSaysIsTheAnswer(t *testing.T) {
	p := newHome(t)
	if _, err := reach(soon(t), p); err != nil {
		t.Fatal(err)
	}
	wrong := errors.New("another world")
	err := p.Connect(soon(t), nil, func(c net.Conn) error { c.Close(); return wrong })
	if !errors.Is(err, wrong) {
		t.Error(err)
	}
}

var rounds = flag.Int("rounds", 10, "rounds of killing and stopping the owner under its clients")

// Clients come while the owner is killed and stopped: each gets an answer, and
// there are never two owners.
func TestEveryClientGetsAnAnswerWhileOwnersDie(t *testing.T) {
	p := newHome(t)
	if _, err := reach(soon(t), p); err != nil {
		t.Fatal(err)
	}
	for round := range *rounds {
		strike := func(sig syscall.Signal) {
			if h := readHolder(p.Lock); h.PID > 1 && h.PID != os.Getpid() {
				_ = syscall.Kill(h.PID, sig) // it may be gone already
			}
		}
		var clients sync.WaitGroup
		var answered atomic.Int32
		for range 30 {
			clients.Go(func() {
				if _, err := reach(soon(t), p); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
				// Once among the first, once in the middle of the crowd.
				switch answered.Add(1) {
				case 1:
					strike(syscall.SIGKILL)
				case 15:
					strike(syscall.SIGTERM)
				}
			})
		}
		strike([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[round%2])
		clients.Wait()
	}
	noViolation(t, p)
	if n := len(owners(t, p)); n <= *rounds {
		t.Errorf("%d owners in %d rounds: hardly anything was tried", n, *rounds)
	}
}
