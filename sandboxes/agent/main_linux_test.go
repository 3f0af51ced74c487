package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/sandboxes"
	"codework/sandboxes/local"
)

func TestMain(m *testing.M) {
	if handled, code := Main(os.Args); handled {
		syscall.Exit(code) // os.Exit takes a second under the race detector
	}
	goleak.VerifyTestMain(m)
}

var ctxb = context.Background()

// newLocal is what the agent serves.
func newLocal(t testing.TB) *local.Sandbox {
	t.Helper()
	sb, err := local.New(local.Options{ID: "sbx_test", StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// overPipe serves the sandbox in this process and reaches it; served gives what
// Serve returned.
func overPipe(t testing.TB, sb sandboxes.Sandbox) (c *Client, served <-chan error) {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- Serve(ctxb, far, sb) }()
	c, err := Dial(ctxb, near, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(ctxb); err != nil {
			t.Error(err)
		}
	})
	return c, done
}

// child is an agent in a process of its own.
type child struct {
	*Client
	cmd    *exec.Cmd
	stderr *strings.Builder
	waited bool // for the process, by the test itself
}

// stdioConn is our end of a child's input and output.
type stdioConn struct {
	io.ReadCloser
	io.WriteCloser
}

func (c stdioConn) Close() error {
	err := c.WriteCloser.Close()
	if e := c.ReadCloser.Close(); err == nil {
		err = e
	}
	return err
}

// start starts an agent below a shell that is noisy first.
func start(t testing.TB, noise string) *child {
	t.Helper()
	const marker = "-- the protocol begins --"
	args := append([]string{"-c", noise + `exec "$0" "$@"`, os.Args[0]}, Args(ServeOptions{ID: "sbx_test", Marker: marker})...)
	c := &child{cmd: exec.Command("sh", args...), stderr: &strings.Builder{}}
	c.cmd.Stderr = c.stderr
	c.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere", "TMPDIR=" + t.TempDir(), "BASE=inside", "A_TOKEN=x", "LD_LIBRARY_PATH=/x"}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.Client, err = Dial(ctxb, stdioConn{out, in}, DialOptions{Marker: marker})
	if err != nil {
		t.Fatal(err, c.stderr.String())
	}
	t.Cleanup(func() {
		if err := c.Close(ctxb); err != nil {
			t.Error(err)
		}
		if c.waited {
			return
		}
		begin := time.Now()
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("agent: %v: %s", err, c.stderr.String())
		}
		if d := time.Since(begin); d > endPatience {
			t.Errorf("the agent took %v to exit", d)
		}
	})
	return c
}

func mountAt(t testing.TB, sb sandboxes.Sandbox, o sandboxes.MountOptions) sandboxes.Mount {
	t.Helper()
	m, err := sb.Mount(ctxb, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newMount(t testing.TB, sb sandboxes.Sandbox) sandboxes.Mount {
	t.Helper()
	return mountAt(t, sb, sandboxes.MountOptions{Dir: t.TempDir(), Umask: -1})
}

// run gives what a command prints.
func run(t testing.TB, m sandboxes.Mount, c sandboxes.Command) (string, sandboxes.Exit) {
	t.Helper()
	var out strings.Builder
	c.Output = func(_ sandboxes.Stream, b []byte) { out.Write(b) }
	exit, err := m.Run(ctxb, c)
	if err != nil {
		t.Fatalf("%+v: %v", c.Script, err)
	}
	return out.String(), exit
}

// eventually polls until the condition holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Sprint("never happened: ", what))
		}
	}
}
