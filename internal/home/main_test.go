//go:build linux

package home

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// This test program plays the other processes of the story itself: started
// with a role as its first argument, it is an owner, a client or somebody who
// misbehaves.
const rolePrefix = "role="

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], rolePrefix) {
		// Past the exit handlers: those of the race detector take a second.
		syscall.Exit(play(strings.TrimPrefix(os.Args[1], rolePrefix), os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

func play(role string, args []string) int {
	switch role {
	case "owner":
		return beOwner(testPaths(args[0]))
	case "client":
		return beClient(testPaths(args[0]))
	case "stuck starter":
		return beStuckStarter(testPaths(args[0]))
	case "fails":
		OpenReport().Fail(errors.New("the store is from a newer build"))
		return 1
	case "dies":
		return 3
	case "is second":
		return 0
	case "says nothing", "closes the report":
		r := OpenReport()
		if role == "closes the report" {
			r.f.Close()
		}
		select {}
	case "prints":
		fmt.Println("on standard output")
		fmt.Fprintln(os.Stderr, "on standard error")
		OpenReport().Ready()
		return 0
	case "tells its world":
		dir, _ := os.Getwd()
		sid, _ := unix.Getsid(0)
		fmt.Printf("dir %s\nleads session %v\n%s\n", dir, sid == os.Getpid(), strings.Join(os.Environ(), "\n"))
		OpenReport().Ready()
		return 0
	case "has a child":
		r := OpenReport()
		// The child lives on with whatever it inherited.
		c := exec.Command("/proc/self/exe", rolePrefix+"lists descriptors")
		c.Stdout = os.Stdout
		if err := c.Run(); err != nil {
			r.Fail(err)
			return 1
		}
		r.Ready()
		return 0
	case "lists descriptors":
		_, err := os.Readlink("/proc/self/fd/3")
		own, _ := os.Readlink("/proc/self/fd/0")
		fmt.Printf("standard input %s\ndescriptor 3 inherited %v\n", own, err == nil && pipeAt(3))
		return 0
	case "dials":
		return beDialer(args[0])
	case "listens":
		return beListener(args[0])
	}
	fmt.Fprintln(os.Stderr, "no such role:", role)
	return 9
}

// pipeAt tells whether a descriptor is a pipe: the runtime's own are not.
func pipeAt(fd int) bool {
	var st syscall.Stat_t
	return syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFIFO
}

// testPaths are the paths of a home in which everything has its usual place.
func testPaths(dir string) Paths {
	p, err := Resolve(dir, "", func(string) (string, bool) { return "", false })
	if err != nil {
		panic(err)
	}
	return p
}

// newHome makes a home whose owner, if one is left, is killed in the end.
func newHome(t *testing.T) Paths {
	t.Helper()
	dir, err := os.MkdirTemp("", "cwh") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	p := testPaths(dir)
	t.Cleanup(func() {
		killOwner(t, p)
		os.RemoveAll(dir)
	})
	return p
}

// killOwner ends the owner and waits until the lock is free.
func killOwner(t *testing.T, p Paths) {
	t.Helper()
	if _, err := os.Stat(p.Lock); err != nil {
		return
	}
	eventually(t, "the lock is free", func() bool {
		l := flock.New(p.Lock)
		ok, err := l.TryLock()
		if ok {
			l.Unlock()
			return true
		}
		if h := readHolder(p.Lock); err == nil && h.PID != 0 && h.PID != os.Getpid() {
			syscall.Kill(h.PID, syscall.SIGKILL)
		}
		return false
	})
}

// eventually polls, with an end.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// beOwner serves connections with its process number until SIGTERM. From then
// on it says that it is going, for a moment, as an owner does that settles.
func beOwner(p Paths) int {
	r := OpenReport()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	first, err := p.Acquire(ctx, func() bool {
		c, err := p.Dial(ctx)
		if err != nil {
			return false
		}
		_, err = askPID(c)
		return err == nil
	})
	switch {
	case err != nil:
		r.Fail(err)
		return 1
	case !first:
		return 0
	}
	// A second owner at the same time is a broken promise.
	alone := flock.New(filepath.Join(p.Home, "alone"))
	if ok, err := alone.TryLock(); !ok {
		os.WriteFile(filepath.Join(p.Home, "violation"), fmt.Appendf(nil, "%v", err), 0o600)
		r.Fail(errors.New("not alone"))
		return 1
	}
	starts, err := os.OpenFile(filepath.Join(p.Home, "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintln(starts, os.Getpid())
		starts.Close()
	}
	l, err := p.Listen()
	if err != nil {
		r.Fail(err)
		return 1
	}
	r.Ready()
	var leaving atomic.Bool
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if leaving.Load() {
				fmt.Fprintln(c, "leaving")
			} else {
				fmt.Fprintln(c, os.Getpid())
			}
			c.Close()
		}
	}()
	<-stop
	leaving.Store(true)
	time.Sleep(20 * time.Millisecond) // what settling takes: not a wait for anything
	if err := p.Remove(); err != nil {
		return 1
	}
	l.Close()
	return 0
}

// askPID reads an owner's answer. One that is leaving, or gone, is nobody.
func askPID(c net.Conn) (int, error) {
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	var pid int
	if err != nil {
		return 0, ErrNobody
	}
	if _, err := fmt.Sscan(line, &pid); err != nil {
		return 0, ErrNobody
	}
	return pid, nil
}

// ownerArgv starts the owner of a home.
func ownerArgv(p Paths) []string { return []string{os.Args[0], rolePrefix + "owner", p.Home} }

// reach connects, with an owner in the background, and returns the owner's
// process number.
func reach(ctx context.Context, p Paths) (int, error) {
	var pid int
	err := p.Connect(ctx, func(ctx context.Context) error {
		return p.StartBackground(ctx, ownerArgv(p), nil)
	}, func(c net.Conn) (err error) {
		pid, err = askPID(c)
		return err
	})
	return pid, err
}

func beClient(p Paths) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pid, err := reach(ctx, p)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(pid)
	return 0
}

// beStuckStarter becomes the one that starts an owner, and gets no further.
func beStuckStarter(p Paths) int {
	err := p.Connect(context.Background(), func(context.Context) error {
		fmt.Println("starting")
		select {}
	}, func(c net.Conn) error { c.Close(); return nil })
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// beDialer tells what became of a connection: whether a byte was answered.
func beDialer(socket string) int {
	c, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println("dial:", err)
		return 0
	}
	b := make([]byte, 1)
	n, _ := c.Read(b)
	fmt.Println("read", n)
	return 0
}

func beListener(socket string) int {
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		return 1
	}
	fmt.Println("listening")
	l.Accept()
	return 0
}
