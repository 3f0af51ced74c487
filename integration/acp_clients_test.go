package integration

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codework/integration/mockmodel"
)

// newEditorWorld has a project, and a model that does what a prompt's marker
// says, also for clients that know no markers.
func newEditorWorld(t *testing.T, scripts map[string]mockmodel.Script) *world {
	t.Helper()
	w := newServerWorld(t)
	w.script(t, scripts)
	return w
}

func (w *world) project() string { return filepath.Join(w.dir, "work") }

// The client of the official library drives the program unchanged.
func TestEditorPassesStockSmokeClient(t *testing.T) {
	t.Parallel()
	dir := clientFolder(t, "acp-smoke")
	w := newEditorWorld(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	c := exec.CommandContext(ctx, "node", "smoke.mjs", "--project", w.project(),
		"--text", "mock=text:10:20", "--tool", "mock=tools:1", "--slow", "mock=text:200:30",
		"--", w.program, "acp", "--home", w.home)
	c.Dir, c.Env = dir, append(w.environment(), "NODE_NO_WARNINGS=1")
	out, err := c.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "7 passed, 0 failed\n") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// acpxVersion is the command line client that is tried.
const acpxVersion = "0.19.1"

// acpx is a person's way to an agent without an editor: it keeps sessions by
// loading them again for each prompt, and cancels.
func TestEditorPassesAcpx(t *testing.T) {
	t.Parallel()
	npm := npm(t)
	w := newEditorWorld(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	home := t.TempDir()
	install := exec.CommandContext(ctx, npm, "install", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts", "--prefix", home, "acpx@"+acpxVersion)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install acpx: %v\n%s", err, out)
	}
	acpx := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, filepath.Join(home, "node_modules", ".bin", "acpx"),
			append([]string{"--agent", w.program + " acp", "--cwd", w.project(), "--approve-all"}, args...)...)
		c.Dir = w.project()
		c.Env = append(w.environment(), "HOME="+home, "NODE_NO_WARNINGS=1")
		return c
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := acpx(args...).CombinedOutput()
		if err != nil {
			t.Fatalf("acpx %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out := run("exec", "mock=text:3"); !strings.Contains(out, "@") {
		t.Errorf("the answer is not shown:\n%s", out)
	}
	run("sessions", "new")
	if out := run("mock=tools:1"); !strings.Contains(out, "echo step-") {
		t.Errorf("the call is not shown:\n%s", out)
	}
	if out := run("mock=text:2"); !strings.Contains(out, "@") {
		t.Errorf("the session does not go on:\n%s", out)
	}
	// A prompt that takes long is cancelled from another terminal.
	slow := acpx("mock=text:2000:20")
	var shown buffer
	slow.Stdout, slow.Stderr = &shown, &shown
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	if err := until(endLimit, func() string {
		if !strings.Contains(shown.String(), "@") {
			return "nothing is shown of the slow answer:\n" + shown.String()
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
	run("cancel")
	began := time.Now()
	_ = slow.Wait() // how it says that it was cancelled is its own
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("the cancelled prompt went on for %s", d)
	}
	if out := run("mock=text:1"); !strings.Contains(out, "@") {
		t.Errorf("nothing works after the cancel:\n%s", out)
	}
	run("sessions", "close")
	var list []struct{ ID string }
	out, err := w.command(ctx, "session", "list", "--json").Output()
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil || len(list) != 2 {
		t.Errorf("the terminal knows of %d sessions: %v\n%s", len(list), err, out)
	}
}

// command is the program as a person calls it in the project.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, w.program, args...)
	c.Dir, c.Env = w.project(), w.environment()
	return c
}
