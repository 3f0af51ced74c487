//go:build linux

package home

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"bufio"
	"os/exec"
)

func TestTheLockIsSignedByItsHolder(t *testing.T) {
	p := newHome(t)
	first, err := p.Acquire(soon(t), nil)
	if !first || err != nil {
		t.Fatal(first, err)
	}
	defer p.Release()
	host, _ := os.Hostname()
	if h := readHolder(p.Lock); h.PID != os.Getpid() || h.Host != host {
		t.Errorf("signed by %+v", h)
	}
	if fi, err := os.Stat(p.Lock); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}

func TestAHeldLockNamesProcessAndHost(t *testing.T) {
	p := newHome(t)
	if _, err := p.Acquire(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	first, err := p.Acquire(ctx, nil)
	var held *HeldError
	if first || !errors.As(err, &held) || held.Holder.PID != os.Getpid() || held.Path != p.Database {
		t.Fatalf("%v, %v", first, err)
	}
	host, _ := os.Hostname()
	for _, word := range []string{"in use by process ", host, p.Database} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func TestAnUnreadableSignatureNamesNobody(t *testing.T) {
	for _, text := range []string{"", "{", `{"pid":"x"}`, "[]"} {
		p := newHome(t)
		if _, err := p.Acquire(soon(t), nil); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.Lock, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := p.Acquire(expired(), nil)
		if want := "in use by another process: " + p.Database; err == nil || err.Error() != want {
			t.Errorf("%q: %v", text, err)
		}
		p.Release()
	}
}

func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestTheSecondWaitsForTheFirst(t *testing.T) {
	p := newHome(t)
	if _, err := p.Acquire(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 1000)
	got := make(chan error, 1)
	go func() {
		first, err := p.Acquire(soon(t), func() bool { asked <- struct{}{}; return false })
		if !first && err == nil {
			err = errors.New("not first, without a reason")
		}
		got <- err
	}()
	<-asked
	<-asked // it looks again
	select {
	case err := <-got:
		t.Fatal("did not wait:", err)
	default:
	}
	p.Release()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	p.Release()
	p.Release() // once more is nothing
}

func TestAnOwnerThatAnswersEndsTheWait(t *testing.T) {
	p := newHome(t)
	if _, err := p.Acquire(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	n := 0
	first, err := p.Acquire(soon(t), func() bool { n++; return n == 3 })
	if first || err != nil || n != 3 {
		t.Errorf("first %v, %v, asked %d times", first, err, n)
	}
}

// A lock whose file the garbage collector finds is a lock that is gone.
func TestTheLockOutlivesItsVariables(t *testing.T) {
	p := newHome(t)
	func() {
		if _, err := p.Acquire(soon(t), nil); err != nil {
			t.Fatal(err)
		}
	}()
	defer p.Release()
	for range 5 {
		runtime.GC()
	}
	if first, err := p.Acquire(expired(), nil); first || err == nil {
		t.Error("the lock was lost")
	}
}

func TestTheLockEndsWithItsProcess(t *testing.T) {
	p := newHome(t)
	if _, err := reach(soon(t), p); err != nil {
		t.Fatal(err)
	}
	killOwner(t, p)
	first, err := p.Acquire(expired(), nil)
	if !first || err != nil {
		t.Fatal(first, err)
	}
	p.Release()
}

func TestWaitingForTheLockCostsNoDescriptors(t *testing.T) {
	p := newHome(t)
	if _, err := p.Acquire(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	before := descriptors(t)
	for range 20 {
		n := 0
		if first, err := p.Acquire(soon(t), func() bool { n++; return n == 2 }); first || err != nil {
			t.Fatal(first, err)
		}
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// startRole starts this program in a role and returns it with its output.
func startRole(t *testing.T, role string, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{rolePrefix + role}, args...)...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return c, bufio.NewReader(out)
}
