//go:build amd64 || arm64

package isolated

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"codework/integration/peer"
	"codework/sandboxes"
	"codework/sandboxes/agent"
)

var bg = context.Background()

func TestMain(m *testing.M) {
	for _, mode := range []func([]string) (bool, int){agent.Main, Main} {
		if handled, code := mode(os.Args); handled {
			syscall.Exit(code) // os.Exit takes a second under the race detector
		}
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case attackArg:
			runAttacks(os.Args[2:])
		case serverArg:
			serveVictims(os.Args[2], os.Args[3], os.Args[4:])
		case probeArg:
			printLevel(os.Args[2])
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := processesLeft(); len(left) > 0 {
			fmt.Fprintln(os.Stderr, "processes left after the tests:\n"+strings.Join(left, "\n"))
			code = 1
		}
		os.Exit(code)
	}))
}

// processesLeft lists the processes of this binary in a hidden mode.
func processesLeft() []string {
	var left []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, _ := os.ReadFile(path)
		args := strings.Split(string(b), "\x00")
		if len(args) > 1 && args[0] == os.Args[0] && strings.HasPrefix(args[1], "__") {
			left = append(left, path+" "+strings.Join(args, " "))
		}
	}
	return left
}

// peerName is what the kernel's walls are called where a test has to do without.
const peerName = "ISOLATED"

func newDriver(t testing.TB) *Driver {
	t.Helper()
	peer.Wanted(t, peerName)
	d := New(Options{StateDir: filepath.Join(t.TempDir(), "state")})
	if err := d.Available(bg, sandboxes.Spec{}); err != nil {
		peer.Missing(t, peerName, err, "run the tests where they may make namespaces")
	}
	return d
}

// newSandbox attaches a sandbox around a folder.
func newSandbox(t testing.TB, d *Driver, project, config string) sandboxes.Sandbox {
	t.Helper()
	spec := sandboxes.Spec{ID: "sbx_test", Project: project, Config: []byte(config)}
	r, err := d.Create(bg, spec)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := d.Attach(bg, spec, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(bg); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func newMount(t testing.TB, sb sandboxes.Sandbox) sandboxes.Mount {
	t.Helper()
	m, err := sb.Mount(bg, sandboxes.MountOptions{Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

type result struct {
	sandboxes.Exit
	out, err string
}

func run(t testing.TB, m sandboxes.Mount, script string) result {
	t.Helper()
	var r result
	var err error
	r.Exit, err = m.Run(bg, sandboxes.Command{Script: script, Output: func(s sandboxes.Stream, b []byte) {
		if s == sandboxes.Stdout {
			r.out += string(b)
		} else {
			r.err += string(b)
		}
	}})
	if err != nil {
		t.Fatalf("run %q: %v", script, err)
	}
	return r
}
