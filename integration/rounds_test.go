package integration

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"codework/integration/mockmodel"
)

// eachProtocol runs a test over both wires, each in a world of its own.
func eachProtocol(t *testing.T, f func(t *testing.T, w *world)) {
	t.Parallel()
	for name, protocol := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp(built.dir, "r")
			if err != nil {
				t.Fatal(err)
			}
			w, err := newWorld(dir, protocol)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := w.end(t.Failed()); err != nil {
					t.Error(err)
				}
				if t.Failed() {
					t.Logf("log of the home process:\n%s", w.log())
				}
			})
			f(t, w)
		})
	}
}

// outcome is how a run of codework went.
type outcome struct {
	code     int
	out, err string
	session  string // as the header names it
}

// run runs codework to its end in the folder.
func (w *world) run(t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	p := w.begin(t, dir, args...)
	return w.ended(t, p)
}

func (w *world) begin(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	env := append(w.environment(), "TMPDIR="+w.dir)
	p, err := launch(start{dir: dir, argv0: w.program, args: append([]string{"run"}, args...), env: env})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *world) ended(t *testing.T, p *process) outcome {
	t.Helper()
	code, err := p.finish(endLimit)
	if err != nil {
		_ = p.cmd.Process.Kill()
		t.Fatalf("%v: %v\n%s%s", p.cmd.Args, err, p.out.String(), p.err.String())
	}
	o := outcome{code: code, out: p.out.String(), err: p.err.String()}
	if m := headerLine.FindStringSubmatch(o.err); m != nil {
		o.session = m[1]
	}
	return o
}

// must checks that a run succeeded with this answer.
func (o outcome) must(t *testing.T, answer string) {
	t.Helper()
	if o.code != 0 || o.out != answer+"\n" {
		t.Fatalf("exit code %d, answer %q, standard error:\n%s", o.code, o.out, o.err)
	}
}

func (w *world) script(t *testing.T, scripts map[string]mockmodel.Script) {
	t.Helper()
	if err := w.start(scripts); err != nil {
		t.Fatal(err)
	}
}

// A connection that breaks after any number of events is no answer: it is tried
// again, nothing of it is run or printed, and what the model then asks for is
// done once.
func TestBrokenAnswersAreNotTakenForWhole(t *testing.T) {
	full := func(n int) mockmodel.Answer {
		return mockmodel.Answer{
			mockmodel.Text{Text: "Writing now", Split: 2},
			mockmodel.Call{ID: fmt.Sprintf("w%d", n), Name: "write", Args: `{"path":"f","content":"content\n"}`, Split: 3},
			mockmodel.Call{ID: fmt.Sprintf("b%d", n), Name: "bash", Args: `{"command":"echo x >> log"}`},
		}
	}
	eachProtocol(t, func(t *testing.T, w *world) {
		w.script(t, map[string]mockmodel.Script{"default": {full(0), {mockmodel.Text{Text: "done"}}}})
		w.run(t, w.dir, "measure").must(t, "Writing now\n\ndone")
		events := w.model.Requests()[0].Events
		// The last two events of a chat stream state the usage and that nothing
		// follows: the message has told its end before, and is whole without them.
		if w.protocol == "openai-compatible" {
			events -= 2
		}
		modes := []mockmodel.CutMode{mockmodel.CutClose, mockmodel.CutReset, mockmodel.CutEnd}
		for n := range events {
			for i, mode := range modes {
				if !*long && i != n%len(modes) {
					continue
				}
				dir := filepath.Join(w.dir, fmt.Sprintf("%d%s", n, mode))
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				broken := append(mockmodel.Answer{mockmodel.After{Events: n, Step: mockmodel.Cut{Mode: mode}}}, full(1)...)
				w.script(t, map[string]mockmodel.Script{"default": {
					broken, full(2), {mockmodel.Text{Text: "done"}}, {mockmodel.Text{Text: "still here"}},
				}})
				before := len(w.model.Requests())
				o := w.run(t, dir, "write")
				if got, _ := os.ReadFile(filepath.Join(dir, "log")); string(got) != "x\n" {
					t.Fatalf("cut (%s) after %d of %d events: the command ran %d times", mode, n, events, bytes.Count(got, []byte("x")))
				}
				o.must(t, "Writing now\n\ndone")
				if got, _ := os.ReadFile(filepath.Join(dir, "f")); string(got) != "content\n" {
					t.Fatalf("cut (%s) after %d of %d events: the file says %q", mode, n, events, got)
				}
				if got := len(w.model.Requests()) - before; got != 3 {
					t.Fatalf("cut (%s) after %d of %d events: %d requests", mode, n, events, got)
				}
				w.run(t, dir, "--session", o.session, "again").must(t, "still here")
			}
		}
	})
}

// rounds is how often a test of chance is repeated.
func rounds(short, full int) int {
	if *long {
		return full
	}
	return short
}

// treeEnds is how long a killed process's helpers may take to notice and end;
// with the race detector each needs a second for its own end.
const treeEnds = 10 * time.Second

// A home process that is killed at any instant leaves sessions that work: each
// call has one result, nothing is run a second time, and the next prompt is
// answered.
func TestKilledHomeProcessLosesNothing(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		rnd := rand.New(rand.NewPCG(1, uint64(len(w.protocol))))
		for round := range rounds(8, 200) {
			dir := filepath.Join(w.dir, fmt.Sprint("round", round))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			w.script(t, map[string]mockmodel.Script{
				"maybe": {
					{mockmodel.Text{Text: "Let me see.", Split: 3, Delay: 10 * time.Millisecond},
						mockmodel.Call{ID: "a", Name: "bash", Args: `{"command":"echo x >> log; sleep 0.1"}`},
						mockmodel.Call{ID: "b", Name: "bash", Args: `{"command":"echo y >> log"}`}},
					{mockmodel.Text{Text: "finished", Split: 5, Delay: 10 * time.Millisecond}},
				},
				"after": {{mockmodel.Text{Text: "still here"}}, {mockmodel.Text{Text: "and again"}}},
			})
			asked := len(w.model.Requests())
			p := w.begin(t, dir, "script=maybe work")
			if err := until(endLimit, func() string {
				if headerLine.MatchString(p.err.String()) {
					return ""
				}
				return "no header was printed"
			}); err != nil {
				_ = p.cmd.Process.Kill()
				t.Fatal(err)
			}
			// From before the first request to after the last.
			instant := time.Duration(rnd.IntN(350)) * time.Millisecond
			time.Sleep(instant)
			before := len(w.model.Requests())
			old := map[int]bool{}
			for _, r := range processesOf(w.dir) {
				old[r.pid] = r.pid != p.cmd.Process.Pid
			}
			killed := w.killHome() == nil
			o := w.ended(t, p)
			if killed && o.code != 0 && o.code != 1 || !killed && o.code != 0 {
				t.Fatalf("round %d, killed %t after %s: exit code %d\n%s", round, killed, instant, o.code, o.err)
			}
			// A command that was just starting may still write until it is ended.
			if err := until(treeEnds, func() string {
				for _, r := range processesOf(w.dir) {
					if killed && old[r.pid] || strings.HasPrefix(r.command, "bash -c echo") {
						return "this is left of the killed process: " + r.String()
					}
				}
				return ""
			}); err != nil {
				t.Fatalf("round %d, killed after %s: %v", round, instant, err)
			}
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			for _, answer := range []string{"still here", "and again"} {
				next := w.run(t, dir, "--session", o.session, "script=after and now?")
				if next.code != 0 || next.out != answer+"\n" {
					t.Fatalf("round %d, killed after %s: the next prompt ended with %d, %q\n%s", round, instant, next.code, next.out, next.err)
				}
			}
			// A prompt that had not begun is kept, and runs before the next one.
			kept := before == asked
			if now, _ := os.ReadFile(filepath.Join(dir, "log")); !kept && !bytes.Equal(now, log) || strings.Count(string(now), "x") > 1 || strings.Count(string(now), "y") > 1 {
				t.Fatalf("round %d, killed after %s: the commands wrote %q, then %q", round, instant, log, now)
			}
			view := w.model.Requests()[len(w.model.Requests())-1].View
			if calls, results := len(view.Parts(mockmodel.PartCall)), len(view.Parts(mockmodel.PartResult)); calls != results {
				t.Fatalf("round %d, killed after %s: %d calls and %d results", round, instant, calls, results)
			}
		}
	})
}

// Ctrl-c at any instant leaves a session that works.
func TestStoppedAtAnyInstantASessionGoesOn(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		rnd := rand.New(rand.NewPCG(2, uint64(len(w.protocol))))
		session := ""
		for round := range rounds(12, 300) {
			w.script(t, map[string]mockmodel.Script{
				"maybe": {
					{mockmodel.Reasoning{Text: "hm, a listing", Split: 3, Delay: 5 * time.Millisecond},
						mockmodel.Text{Text: "Let me see.", Split: 3, Delay: 5 * time.Millisecond},
						mockmodel.Call{ID: fmt.Sprint("a", round), Name: "bash", Args: `{"command":"echo a; sleep 0.05"}`, Split: 4, Delay: 5 * time.Millisecond},
						mockmodel.Call{ID: fmt.Sprint("b", round), Name: "read", Args: `{"path":"nothing"}`},
						mockmodel.Call{ID: fmt.Sprint("c", round), Name: "bash", Args: `{"command":"echo c"}`}},
					{mockmodel.HTTP{Status: 503}},
					{mockmodel.Text{Text: "finished", Split: 5, Delay: 5 * time.Millisecond}},
				},
				"after": {{mockmodel.Text{Text: "still here"}}},
			})
			args := []string{"script=maybe work"}
			if session != "" {
				args = append([]string{"--session", session}, args...)
			}
			before := len(w.model.Requests())
			p := w.begin(t, w.dir, args...)
			if err := until(endLimit, func() string {
				if headerLine.MatchString(p.err.String()) {
					return ""
				}
				return "no header was printed: " + p.err.String()
			}); err != nil {
				_ = p.cmd.Process.Kill()
				t.Fatal(err)
			}
			instant := time.Duration(rnd.IntN(300)) * time.Millisecond
			time.Sleep(instant)
			if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
			o := w.ended(t, p)
			if o.code != 130 && o.code != 0 {
				t.Fatalf("round %d, stopped after %s and %d requests: exit code %d\n%s", round, instant, len(w.model.Requests())-before, o.code, o.err)
			}
			session = o.session
			next := w.run(t, w.dir, "--session", session, "script=after and now?")
			if next.code != 0 || next.out != "still here\n" {
				t.Fatalf("round %d, stopped after %s: the next prompt ended with %d, %q\n%s", round, instant, next.code, next.out, next.err)
			}
		}
	})
}

// Ctrl-c while the program starts ends it at once, with nothing left behind
// that would hold up the next run.
func TestStoppedWhileStarting(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		rnd := rand.New(rand.NewPCG(3, uint64(len(w.protocol))))
		for round := range rounds(10, 200) {
			w.script(t, map[string]mockmodel.Script{
				"maybe": {{mockmodel.Stall{}}},
				"after": {{mockmodel.Text{Text: "still here"}}},
			})
			p := w.begin(t, w.dir, "script=maybe work")
			// The signals must be caught, or the shell's own rule applies.
			instant := time.Duration(10+rnd.IntN(150)) * time.Millisecond
			time.Sleep(instant)
			if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			if o := w.ended(t, p); o.code != 130 || o.out != "" {
				t.Fatalf("round %d, stopped after %s: exit code %d, %q\n%s", round, instant, o.code, o.out, o.err)
			}
			w.run(t, w.dir, "script=after and now?").must(t, "still here")
		}
	})
}

// Edits of one file from two sessions at the same time, and several in one
// message, are all kept.
func TestEditsOfOneFileAreAllKept(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w *world) {
		var lines strings.Builder
		for i := range 40 {
			fmt.Fprintf(&lines, "line %02d.\n", i)
		}
		for round := range rounds(4, 200) {
			file := filepath.Join(w.dir, "f")
			if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			scripts := map[string]mockmodel.Script{}
			for s, name := range []string{"one", "two"} {
				var edits mockmodel.Answer
				for i := range 5 {
					n := 10*i + s
					if n >= 40 {
						n = 5 + s
					}
					edits = append(edits, mockmodel.Call{ID: fmt.Sprintf("%s%d", name, i), Name: "edit",
						Args: fmt.Sprintf(`{"path":"f","edits":[{"oldText":"line %02d.","newText":"LINE %02d!"}]}`, n, n)})
				}
				scripts[name] = mockmodel.Script{edits, {mockmodel.Text{Text: "done"}}}
			}
			w.script(t, scripts)
			if round == 0 {
				if err := w.change([]byte(`{"model": {"toolExecution": "parallel"}}`)); err != nil {
					t.Fatal(err)
				}
			}
			one := w.begin(t, w.dir, "script=one edit")
			two := w.begin(t, w.dir, "script=two edit")
			w.ended(t, one).must(t, "done")
			w.ended(t, two).must(t, "done")
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(got, []byte("LINE")); n != 10 || bytes.Count(got, []byte("\n")) != 40 {
				t.Fatalf("round %d: %d of 10 edits are there:\n%s", round, n, got)
			}
		}
	})
}
