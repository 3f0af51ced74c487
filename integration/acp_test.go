package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"codework/protocol/acp"
	"codework/protocol/acp/acptest"
)

// desk is an editor with a codework acp of its own.
type desk struct {
	*acptest.Client
	t     *testing.T
	w     *world
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *os.File
	err   buffer
	done  chan struct{}
	ended bool
}

func (w *world) desk(t *testing.T, args ...string) *desk {
	t.Helper()
	d := &desk{t: t, w: w, done: make(chan struct{})}
	d.cmd = exec.Command(w.program, append([]string{"acp"}, args...)...)
	d.cmd.Dir, d.cmd.Env = w.dir, append(w.environment(), "TMPDIR="+w.dir)
	d.cmd.Stderr = &d.err
	d.cmd.WaitDelay = pipeGrace
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.out, d.cmd.Stdout = r, wr
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wr.Close()
	d.Client = acptest.New(d.in)
	read := make(chan struct{})
	go func() { defer close(read); d.Read(r) }()
	go func() { defer close(d.done); _ = d.cmd.Wait() }()
	t.Cleanup(func() {
		d.in.Close()
		if !d.ended {
			d.exit(0)
		}
		r.Close()
		<-read
		for _, f := range d.Faults() {
			t.Error(f)
		}
		if t.Failed() {
			t.Logf("codework acp said: %s", d.err.String())
		}
	})
	return d
}

// exit waits for the end of the process.
func (d *desk) exit(code int) time.Duration {
	d.t.Helper()
	began := time.Now()
	d.ended = true
	select {
	case <-d.done:
	case <-time.After(endLimit):
		_ = d.cmd.Process.Kill()
		<-d.done
		d.t.Errorf("codework acp still ran after %s", endLimit)
	}
	if got := d.cmd.ProcessState.ExitCode(); got != code {
		d.t.Errorf("codework acp ended with %d, not %d: %s", got, code, d.err.String())
	}
	return time.Since(began)
}

func (d *desk) call(method string, params, result any) {
	d.t.Helper()
	if err := d.Call(endLimit, method, params, result); err != nil {
		d.t.Fatalf("%s: %v\n%s", method, err, d.err.String())
	}
}

func (d *desk) session() string {
	d.t.Helper()
	d.call(acp.MethodInitialize, map[string]any{"protocolVersion": 1}, nil)
	var s acp.NewResult
	d.call(acp.MethodNew, map[string]any{"cwd": d.w.project(), "mcpServers": []any{}}, &s)
	return s.SessionID
}

func (d *desk) say(session, text string) string {
	d.t.Helper()
	id, err := d.Ask(acp.MethodPrompt, map[string]any{"sessionId": session, "prompt": []any{map[string]any{"type": "text", "text": text}}})
	if err != nil {
		d.t.Fatal(err)
	}
	return id
}

func (d *desk) stop(id string) string {
	d.t.Helper()
	l, err := d.Answer(endLimit, id)
	if err != nil {
		d.t.Fatalf("%v\n%s", err, d.err.String())
	}
	if l.Error != nil {
		return l.Error.Message
	}
	var r acp.PromptResult
	if err := json.Unmarshal(l.Result, &r); err != nil {
		d.t.Fatal(err)
	}
	return r.StopReason
}

// victim is a command of the agent's that is easily found.
func (w *world) victim(seconds int) string {
	return fmt.Sprintf("sleep %d.%d", seconds, os.Getpid()%9000+1000)
}

func (w *world) runs(command string) []running {
	var out []running
	for _, p := range processesOf(w.dir) {
		if strings.HasPrefix(p.command, "sleep ") && strings.Contains(p.command, command[len("sleep "):]) {
			out = append(out, p)
		}
	}
	return out
}

func (w *world) awaitRuns(t *testing.T, command string) {
	t.Helper()
	if err := until(endLimit, func() string {
		if len(w.runs(command)) == 0 {
			return "the command does not run"
		}
		return ""
	}); err != nil {
		t.Fatal(err)
	}
}

// sh is a prompt on which the model runs a command.
func sh(command string) string {
	return "mock=sh:" + base64.StdEncoding.EncodeToString([]byte(command))
}

// However an editor goes, what it asked for is stopped, recorded, and nothing
// of it is left when the process has ended.
func TestEditorsEnd(t *testing.T) {
	for name, end := range map[string]func(*desk){
		"input ends": func(d *desk) { d.in.Close() },
		"TERM":       func(d *desk) { _ = d.cmd.Process.Signal(syscall.SIGTERM) },
		"INT":        func(d *desk) { _ = d.cmd.Process.Signal(syscall.SIGINT) },
		"HUP":        func(d *desk) { _ = d.cmd.Process.Signal(syscall.SIGHUP) },
		"output is broken": func(d *desk) {
			d.out.Close()
			_ = d.Send(`{"jsonrpc":"2.0","id":"x","method":"session/list"}` + "\n")
		},
	} {
		for _, where := range []string{"home", "embedded"} {
			if where == "embedded" && !*long && name != "input ends" && name != "output is broken" {
				continue
			}
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				w := newEditorWorld(t, nil)
				var args []string
				if where == "embedded" {
					args = []string{"--embedded"}
				}
				d := w.desk(t, args...)
				id := d.session()
				command, behind := w.victim(300), w.victim(301)
				d.say(id, sh(behind+" & "+command))
				w.awaitRuns(t, command)
				w.awaitRuns(t, behind)
				end(d)
				if took := d.exit(0); took > 5*time.Second {
					t.Errorf("it took %s", took)
				}
				if left := append(w.runs(command), w.runs(behind)...); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				again := w.desk(t)
				again.call(acp.MethodLoad, map[string]any{"sessionId": id, "cwd": w.project()}, nil)
				l, _, err := again.Until(endLimit, 0, func(l acptest.Line) bool { return l.Update.Status != "" && l.Kind == "tool_call_update" })
				if err != nil || l.Update.Status != acp.StatusFailed {
					t.Errorf("the replay shows %+v %v", l.Update, err)
				}
			})
		}
	}
}

func TestEditorThatIsIdleEndsAtOnce(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	d := w.desk(t)
	d.session()
	d.in.Close()
	if took := d.exit(0); took > time.Second {
		t.Errorf("it took %s", took)
	}
	// A last line without its end is still a message.
	c := w.command(t.Context(), "acp")
	c.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	out, err := c.Output()
	if err != nil || acptest.Valid(bytes.TrimSpace(out)) != nil || !strings.Contains(string(out), `"id":1`) {
		t.Errorf("%v %s", err, out)
	}
}

// A bridge that is killed cannot say so; its work ends all the same, and what a
// terminal has asked for in the same home goes on.
func TestEditorThatIsKilledLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	d := w.desk(t)
	id := d.session()
	mine, theirs := w.victim(300), w.victim(302)
	d.say(id, sh(mine))
	w.awaitRuns(t, mine)
	other, err := launch(start{dir: w.project(), argv0: w.program, args: []string{"run", sh(theirs)}, env: w.environment()})
	if err != nil {
		t.Fatal(err)
	}
	w.awaitRuns(t, theirs)
	_ = d.cmd.Process.Kill()
	d.ended = true
	<-d.done
	if err := until(leftLimit, func() string { return left(w.runs(mine)) }); err != nil {
		t.Error(err)
	}
	if len(w.runs(theirs)) == 0 {
		t.Error("the terminal's work was stopped with it")
	}
	_ = other.cmd.Process.Signal(syscall.SIGINT)
	if _, err := other.finish(endLimit); err != nil {
		t.Error(err)
	}
}

func left(r []running) string {
	if len(r) == 0 {
		return ""
	}
	return fmt.Sprint("there is still ", r)
}

// A session that an editor has begun goes on in a terminal, and the other way
// round; what one changes the other is told.
func TestSessionsOfEditorAndTerminal(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	d := w.desk(t)
	id := d.session()
	if got := d.stop(d.say(id, "mock=text:2")); got != acp.StopEndTurn {
		t.Fatal(got)
	}
	terminal := func(args ...string) string {
		t.Helper()
		out, err := w.command(t.Context(), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("codework %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out := terminal("session", "list"); !strings.Contains(out, id) {
		t.Errorf("it is not listed:\n%s", out)
	}
	from := len(d.Lines())
	terminal("run", "--session", id, "mock=text:1")
	terminal("session", "rename", id, "Named by hand")
	l, _, err := d.Until(endLimit, from, func(l acptest.Line) bool { return l.Kind == "session_info_update" })
	if err != nil || l.Update.Title != "Named by hand" {
		t.Errorf("the new title: %+v %v", l.Update, err)
	}
	// The terminal's answer is part of the conversation, and stops the editor's.
	d.call(acp.MethodLoad, map[string]any{"sessionId": id, "cwd": w.project()}, nil)
	users := 0
	for _, l := range d.Lines() {
		if l.Kind == acp.UserChunk {
			users++
		}
	}
	if users != 2 {
		t.Errorf("%d prompts are replayed", users)
	}
	command := w.victim(300)
	p := d.say(id, sh(command))
	w.awaitRuns(t, command)
	terminal("session", "interrupt", id)
	if got := d.stop(p); got != acp.StopCancelled {
		t.Errorf("the turn ended with %s", got)
	}
	// And one that was begun in a terminal is found in the editor.
	terminal("run", "--title", "From a terminal", "mock=text:1")
	var list acp.ListResult
	d.call(acp.MethodList, map[string]any{"cwd": w.project()}, &list)
	if len(list.Sessions) != 2 || list.Sessions[0].Title != "From a terminal" {
		t.Fatalf("sessions %+v", list.Sessions)
	}
	d.call(acp.MethodResume, map[string]any{"sessionId": list.Sessions[0].SessionID, "cwd": w.project()}, nil)
	if got := d.stop(d.say(list.Sessions[0].SessionID, "mock=text:1")); got != acp.StopEndTurn {
		t.Error(got)
	}
}

// Another owner of the home, by plan, is nothing that an editor notices.
func TestEditorOutlivesTheOwnerOfTheHome(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	d := w.desk(t)
	id := d.session()
	if got := d.stop(d.say(id, "mock=text:1")); got != acp.StopEndTurn {
		t.Fatal(got)
	}
	before := w.homeProcesses()
	if len(before) != 1 {
		t.Fatalf("owners %v", before)
	}
	w.serveHere(t, nil)
	if got := d.stop(d.say(id, "mock=text:1")); got != acp.StopEndTurn {
		t.Errorf("behind the move: %s", got)
	}
	for _, p := range w.homeProcesses() {
		if p.pid == before[0].pid {
			t.Error("the owner is still the first one")
		}
	}
	d.in.Close()
	d.exit(0)
}

// So is a newer build that takes the home over.
func TestEditorOutlivesANewerBuild(t *testing.T) {
	t.Parallel()
	newer, err := newerProgram()
	if err != nil {
		t.Fatal(err)
	}
	w := newEditorWorld(t, nil)
	d := w.desk(t)
	id := d.session()
	before := w.homeProcesses()
	if newer, err = w.link(newer); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), newer, "session", "list")
	c.Dir, c.Env = w.project(), w.environment()
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := d.stop(d.say(id, "mock=text:1")); got != acp.StopEndTurn {
		t.Errorf("behind the move: %s", got)
	}
	for _, p := range w.homeProcesses() {
		if len(before) == 1 && p.pid == before[0].pid {
			t.Error("the owner is still the older build")
		}
	}
}

// One that dies under the editor is another thing.
func TestEditorSaysThatTheOwnerDied(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	d := w.desk(t)
	d.session()
	if err := w.killHome(); err != nil {
		t.Fatal(err)
	}
	d.exit(1)
	if !strings.Contains(d.err.String(), "the process that owns the home has ended") {
		t.Errorf("it says %q", d.err.String())
	}
}

func TestEditorIsToldWhyThereIsNoHome(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	file := filepath.Join(w.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := w.desk(t, "--home", file)
	var e *acp.Error
	if err := d.Call(endLimit, acp.MethodInitialize, map[string]any{"protocolVersion": 1}, nil); !errors.As(err, &e) || e.Code != acp.CodeInternal || !strings.Contains(e.Message, "file") {
		t.Errorf("it answers %v", err)
	}
	d.exit(1)
}

// Two editors and a terminal have one home.
func TestEditorsShareAHome(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	a, b := w.desk(t), w.desk(t)
	one, two := a.session(), b.session()
	p, q := a.say(one, "mock=text:5:10"), b.say(two, "mock=text:5:10")
	if x, y := a.stop(p), b.stop(q); x != acp.StopEndTurn || y != acp.StopEndTurn {
		t.Errorf("they ended with %s and %s", x, y)
	}
	var list acp.ListResult
	a.call(acp.MethodList, map[string]any{}, &list)
	if len(list.Sessions) != 2 {
		t.Errorf("sessions %+v", list.Sessions)
	}
	if n := len(w.homeProcesses()); n != 1 {
		t.Errorf("%d owners", n)
	}
}
