package local

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/sandboxes"
)

// Hidden modes of the test binary beside the supervisor's.
const (
	forkerArg = "__test-forker"
	rootArg   = "__test-root"
	serverArg = "__test-server"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case rootArg:
			becomeRoot(os.Args[2])
		case forkerArg:
			forkForEver(os.Args[2])
		case serverArg:
			serveVictims(os.Args[2], os.Args[3], os.Args[4:])
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

// processesLeft lists our children, zombies included, and every process of the
// machine that is a supervisor or runner of this binary.
func processesLeft() []string {
	var left []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		stat := string(b)
		f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		args := strings.Split(string(cmd), "\x00")
		ours := len(args) > 1 && args[0] == os.Args[0] && strings.HasPrefix(args[1], "__")
		if f[1] == strconv.Itoa(os.Getpid()) || ours {
			left = append(left, stat+" "+strings.Join(args, " "))
		}
	}
	return left
}

// serveVictims is a server with a sandbox that runs scripts until it is killed.
// It begins at the end of its input.
func serveVictims(state, dir string, scripts []string) {
	s, err := New(Options{StateDir: state})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	m, err := s.Mount(context.Background(), sandboxes.MountOptions{Dir: dir, Umask: -1})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, script := range scripts {
		go func() {
			if _, err := m.Run(context.Background(), sandboxes.Command{Script: script}); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}()
	}
	time.Sleep(time.Minute) // the test kills it long before
	os.Exit(1)
}

func newSandbox(t testing.TB) *Sandbox {
	t.Helper()
	s, err := New(Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newMount mounts a folder of its own with the environment of this process.
func newMount(t testing.TB, s *Sandbox) sandboxes.Mount {
	t.Helper()
	return mountAt(t, s, sandboxes.MountOptions{Dir: t.TempDir(), Caller: os.Environ(), Umask: -1})
}

func mountAt(t testing.TB, s *Sandbox, opt sandboxes.MountOptions) sandboxes.Mount {
	t.Helper()
	m, err := s.Mount(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
