package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTheLifeOfRealSandboxes takes a sandbox of each driver through everything
// that can happen to it, with the server killed and ended in between.
func TestTheLifeOfRealSandboxes(t *testing.T) {
	dir, err := os.MkdirTemp(built.dir, "l")
	if err != nil {
		t.Fatal(err)
	}
	program := staticProgram(t, dir)
	for _, driver := range []struct {
		name string
		keep bool // files outlive the server
		disk bool // the project is a folder of the test
	}{
		{name: "memory"}, {name: "isolated", keep: true, disk: true}, {name: "container", keep: true, disk: true},
	} {
		t.Run(driver.name, func(t *testing.T) {
			settings, engine := driverSettings(t, driver.name)
			l := newLife(t, program, settings)
			t.Cleanup(func() {
				if engine == nil {
					return
				}
				if left, err := engine.Containers(); err != nil || left != "" {
					t.Errorf("containers left: %v %s", err, left)
				}
			})
			l.serve(t)
			// created, used, stopped, woken
			id := strings.TrimSpace(l.must(t, 0, "create", driver.name))
			l.status(t, id, "online")
			l.must(t, 0, "exec", id, "--", "sh", "-c", "echo kept > file")
			l.must(t, 1, "destroy", id) // it runs
			l.must(t, 0, "stop", id)
			l.must(t, 0, "stop", id)
			l.status(t, id, "offline")
			if got := l.must(t, 0, "exec", id, "--", "cat", "file"); got != "kept\n" {
				t.Errorf("after waking the file says %q", got)
			}
			l.status(t, id, "online")
			// not stopped while a command runs, which its caller can end
			var busy *process
			if driver.disk {
				busy = l.beat(t, id)
				l.must(t, 1, "stop", id)
				if err := busy.cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Error(err)
				}
				l.finished(t, busy)
				l.still(t)
				l.must(t, 0, "stop", id)
				// killed while it is busy
				busy = l.beat(t, id)
			}
			l.end(t, syscall.SIGKILL, 137)
			l.still(t)
			if busy != nil {
				l.finished(t, busy)
			}
			l.serve(t)
			if driver.keep {
				if err := until(endLimit, func() string { return l.is(id, "offline") }); err != nil {
					t.Error(err)
				}
				if got := l.must(t, 0, "exec", id, "--", "cat", "file"); got != "kept\n" {
					t.Errorf("after a crash the file says %q", got)
				}
			} else {
				if err := until(endLimit, func() string { return l.is(id, "unavail") }); err != nil {
					t.Error(err)
				}
				l.must(t, 1, "exec", id, "--", "true")
			}
			// ended in order while it is busy
			if driver.disk {
				busy = l.beat(t, id)
			}
			l.end(t, syscall.SIGTERM, 0)
			l.still(t)
			if busy != nil {
				l.finished(t, busy)
			}
			if engine != nil {
				if all, err := engine.Containers(); err != nil || strings.Contains(all, " running ") {
					t.Errorf("a container runs behind the server: %v %s", err, all)
				}
			}
			l.serve(t)
			if driver.keep {
				l.must(t, 0, "stop", id)
			}
			l.must(t, 0, "destroy", id)
			l.status(t, id, "removed")
			l.must(t, 1, "destroy", id) // says that it is removed
			l.must(t, 1, "exec", id, "--", "true")
			if driver.disk {
				if b, err := os.ReadFile(filepath.Join(l.project, "file")); err != nil || string(b) != "kept\n" {
					t.Errorf("the project did not stay: %q %v", b, err)
				}
			}
			l.end(t, syscall.SIGTERM, 0)
		})
	}
}

// life is a home whose server is started and ended.
type life struct {
	w       *world
	project string
	server  *process
}

func newLife(t *testing.T, program string, sandbox map[string]any) *life {
	t.Helper()
	dir, err := os.MkdirTemp(built.dir, "l")
	if err != nil {
		t.Fatal(err)
	}
	l := &life{project: filepath.Join(dir, "project")}
	if l.w, err = newWorld(dir, "openai-compatible"); err != nil {
		t.Fatal(err)
	}
	if l.w.program, err = l.w.link(program); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l.server != nil { // the test failed: in order, so that nothing is left
			_ = l.server.cmd.Process.Signal(syscall.SIGTERM)
			_, _ = l.server.finish(endLimit)
		}
		if err := l.w.end(t.Failed()); err != nil {
			t.Error(err)
		}
	})
	l.w.settings = map[string]any{"sandbox": sandbox}
	if sandbox == nil {
		l.w.settings = map[string]any{}
	}
	if err := errors.Join(l.w.writeSettings(), os.Mkdir(l.project, 0o755)); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *life) begin(t *testing.T, args ...string) *process {
	t.Helper()
	p, err := launch(start{dir: l.project, argv0: l.w.program, args: args, env: append(l.w.environment(), "TMPDIR="+l.w.dir)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (l *life) serve(t *testing.T) {
	t.Helper()
	p := l.begin(t, "serve", "--port", "0")
	if err := until(endLimit, func() string {
		if strings.Contains(p.out.String()+p.err.String(), "listening on") {
			return ""
		}
		return "the server does not listen: " + p.out.String() + p.err.String()
	}); err != nil {
		_ = p.cmd.Process.Kill()
		t.Fatal(err)
	}
	l.server = p
}

func (l *life) end(t *testing.T, sig syscall.Signal, code int) {
	t.Helper()
	p := l.server
	l.server = nil
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
	if got, err := p.finish(endLimit); err != nil || got != code {
		t.Errorf("the server ended with %d, %v\n%s", got, err, p.err.String())
	}
}

// must runs a sandbox command to its end, which must have this code.
func (l *life) must(t *testing.T, code int, args ...string) string {
	t.Helper()
	p := l.begin(t, append([]string{"sandbox"}, args...)...)
	got, err := p.finish(endLimit)
	if err != nil || got != code {
		t.Fatalf("%q ended with %d, %v\n%s%s", args, got, err, p.out.String(), p.err.String())
	}
	return p.out.String()
}

func (l *life) finished(t *testing.T, p *process) {
	t.Helper()
	if code, err := p.finish(endLimit); err != nil || code == 0 {
		t.Errorf("a command whose server went ended with %d, %v", code, err)
	}
}

// is says what is wrong when a sandbox does not have the status.
func (l *life) is(id, status string) string {
	p, err := launch(start{dir: l.project, argv0: l.w.program, args: []string{"sandbox", "list"}, env: append(l.w.environment(), "TMPDIR="+l.w.dir)})
	if err != nil {
		return err.Error()
	}
	if _, err := p.finish(endLimit); err != nil {
		return err.Error()
	}
	for line := range strings.Lines(p.out.String()) {
		if f := strings.Split(line, "\t"); len(f) > 2 && f[0] == id && f[2] == status {
			return ""
		}
	}
	return fmt.Sprintf("%s is not %s:\n%s", id, status, p.out.String())
}

func (l *life) status(t *testing.T, id, status string) {
	t.Helper()
	if fault := l.is(id, status); fault != "" {
		t.Error(fault)
	}
}

func (l *life) beats() int64 {
	info, err := os.Stat(filepath.Join(l.project, "beat"))
	if err != nil {
		return 0
	}
	return info.Size()
}

// beat starts a command that counts in a file, itself and from a session of its
// own.
func (l *life) beat(t *testing.T, id string) *process {
	t.Helper()
	before := l.beats()
	const count = "while :; do echo x >> beat; sleep 0.02; done"
	p := l.begin(t, "sandbox", "exec", id, "--", "sh", "-c", "trap '' TERM HUP; setsid sh -c '"+count+"' & "+count)
	if err := until(endLimit, func() string {
		if l.beats() > before+8 {
			return ""
		}
		return "the command does not count: " + p.err.String()
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// still checks that nothing counts any more, two seconds later at most.
func (l *life) still(t *testing.T) {
	t.Helper()
	stood := 0
	if err := until(endLimit, func() string {
		before := l.beats()
		time.Sleep(500 * time.Millisecond) // it would have counted 25 times
		if l.beats() != before {
			stood = 0
			return "something still counts"
		}
		if stood++; stood < 2 {
			return "not yet sure"
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
}
