//go:build unix

package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

func TestBashResults(t *testing.T) {
	zero, three, signal := 0, 3, 128+9
	for _, tc := range []struct {
		name, command string
		state         messages.CallState
		want          string
		details       commandDetails
	}{
		{"success", "echo hi", messages.CallCompleted, "hi\n", commandDetails{Output: "hi\n", ExitCode: &zero}},
		{"no output", "true", messages.CallCompleted, "(no output)", commandDetails{ExitCode: &zero}},
		{"blank output", "echo", messages.CallCompleted, "(no output)", commandDetails{Output: "\n", ExitCode: &zero}},
		{"failure", "echo oops; exit 3", messages.CallError, "oops\n\n[exit code 3]", commandDetails{Output: "oops\n", ExitCode: &three}},
		{"failure without output", "exit 3", messages.CallError, "(no output)\n\n[exit code 3]", commandDetails{ExitCode: &three}},
		{"killed", "kill -9 $$", messages.CallError, "(no output)\n\n[exit code 137, killed by SIGKILL]", commandDetails{ExitCode: &signal, Signal: "SIGKILL"}},
		{"the other stream", "echo b >&2", messages.CallCompleted, "b\n", commandDetails{Output: "b\n", ExitCode: &zero}},
		{"stdin is empty", "cat; read x; echo \"got $x\"", messages.CallCompleted, "got \n", commandDetails{Output: "got \n", ExitCode: &zero}},
		{"colours and progress", `printf '\033[31mred\033[0m\r50%%\r100%%\n'`, messages.CallCompleted, "100%\n", commandDetails{Output: "100%\n", ExitCode: &zero}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			r, state := s.call("bash", object{"command": tc.command})
			if state != tc.state || text(r) != tc.want {
				t.Errorf("%s %q, want %s %q", state, text(r), tc.state, tc.want)
			}
			got := details[commandDetails](t, r)
			if got.Output != tc.details.Output || *got.ExitCode != *tc.details.ExitCode || got.Signal != tc.details.Signal || got.Truncated || got.FullOutputPath != "" {
				t.Errorf("details %s", r.Details)
			}
			if left := s.mount.scratchFiles(t); len(left) != 0 {
				t.Errorf("left in scratch: %v", left)
			}
		})
	}
}

func TestBashKeepsTheTailAndNamesTheFile(t *testing.T) {
	s := newSession(t)
	r, state := s.call("bash", object{"command": "seq 1 200000; printf '\\033[1mERROR\\033[0m\\n'; exit 3"})
	d := details[commandDetails](t, r)
	if state != messages.CallError || !strings.HasPrefix(text(r), "198002\n") ||
		!strings.HasSuffix(text(r), "200000\nERROR\n\n[exit code 3. lines 198002-200001 of 200001. Full output: "+d.FullOutputPath+"]") {
		t.Errorf("%s %q", state, text(r)[max(0, len(text(r))-200):])
	}
	if !d.Truncated || d.TruncatedBy != byLines || d.TotalLines != 200_001 || d.OutputLines != 2000 || d.MaxBytes != MaxBytes {
		t.Errorf("details %+v", d.Cut)
	}
	full, err := os.ReadFile(d.FullOutputPath)
	if err != nil || !bytes.HasSuffix(full, []byte("200000\n\x1b[1mERROR\x1b[0m\n")) {
		t.Errorf("full output: %v, …%q", err, full[max(0, len(full)-30):])
	}
	if got := s.ok("read", object{"path": d.FullOutputPath, "offset": 5, "limit": 1}); !strings.HasPrefix(got, "5\n") {
		t.Errorf("read gave %q", got)
	}
}

func TestBashWithOneEndlessLine(t *testing.T) {
	s := newSession(t)
	r, _ := s.call("bash", object{"command": "echo first; head -c 5000000 /dev/zero | tr '\\0' x"})
	if got := text(r); !strings.Contains(got, "xxx\n\n[the last 50.0KB of line 2 of 2. Full output: ") || len(got) > MaxBytes+300 {
		t.Errorf("%d bytes, …%q", len(got), got[max(0, len(got)-200):])
	}
}

func TestBashTimeout(t *testing.T) {
	for name, tc := range map[string]struct {
		args  object
		limit time.Duration
		says  string
	}{
		"asked for":                        {object{"command": "echo begun; sleep 60", "timeout": 1}, 0, "begun\n\n[timed out after 1 s and was stopped]"},
		"below the least":                  {object{"command": "sleep 60", "timeout": -5}, 0, "(no output)\n\n[timed out after 1 s and was stopped]"},
		"the bound of every call":          {object{"command": "sleep 60"}, 500 * time.Millisecond, "(no output)\n\n[timed out after 0.5 s and was stopped]"},
		"more than the bound of all calls": {object{"command": "sleep 60", "timeout": 1e300}, 300 * time.Millisecond, "(no output)\n\n[timed out after 0.3 s and was stopped]"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t)
			s.c.BashTimeout = tc.limit
			r, state := s.call("bash", tc.args)
			if state != messages.CallError || text(r) != tc.says {
				t.Errorf("%s %q", state, text(r))
			}
			if d := details[commandDetails](t, r); d.ExitCode != nil || d.TimeoutSeconds == 0 {
				t.Errorf("details %s", r.Details)
			}
		})
	}
}

func TestBashDoesNotWaitForTheBackground(t *testing.T) {
	for _, command := range []string{"sleep 120 & echo started", "sleep 120 2>/dev/null 1>&1 & echo started"} {
		s := newSession(t)
		begin := time.Now()
		got := s.ok("bash", object{"command": command})
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s took %v", command, took)
		}
		if got != "started\n\n[processes it started still run in the background]" {
			t.Errorf("%s: %q", command, got)
		}
	}
}

func TestBashThatCannotRun(t *testing.T) {
	s := newSession(t)
	s.mount.before = func(op, _ string) error {
		if op == "run" {
			return &sandboxes.ShellError{Reason: "working folder /gone does not exist"}
		}
		return nil
	}
	if got := s.fails("bash", object{"command": "true"}); got != "the command could not be run: working folder /gone does not exist" {
		t.Errorf("text %q", got)
	}
	for _, command := range []string{"", " \n", "a\x00b"} {
		if got := s.fails("bash", object{"command": command}); !strings.HasPrefix(got, "command ") {
			t.Errorf("%q: %q", command, got)
		}
	}
}

// losing is a mount that loses its connection in the middle of a command.
type losing struct{ *hostMount }

func (m losing) Run(_ context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	c.Output(sandboxes.Stdout, []byte("so far\n"))
	return sandboxes.Exit{Code: -1}, &sandboxes.ShellError{Reason: "connection lost", Err: errors.New("reset")}
}

func TestBashThatIsLostKeepsItsOutput(t *testing.T) {
	s := newSession(t)
	s.c.Mount = losing{s.mount}
	r, state := s.call("bash", object{"command": "make"})
	if want := "so far\n\n[the command was lost: connection lost: reset]"; state != messages.CallError || text(r) != want {
		t.Errorf("%s %q", state, text(r))
	}
}

func TestStoppedBashGivesWhatItPrinted(t *testing.T) {
	s := newSession(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.c.Progress = func(r messages.ToolResult) {
		if strings.Contains(text(r), "ready") {
			cancel()
		}
	}
	r, state := s.execute(ctx, "bash", `{"command":"echo one; sleep 0.2; echo ready; echo last >&2; sleep 60"}`)
	if state != messages.CallAborted || !r.IsError || !strings.HasPrefix(text(r), "one\n") || !strings.Contains(text(r), "ready\n") {
		t.Errorf("%s %q", state, text(r))
	}
	if left := s.mount.scratchFiles(t); len(left) != 0 {
		t.Errorf("left in scratch: %v", left)
	}
}

func TestBashShowsProgressAtOnceAndCoalesces(t *testing.T) {
	s := newSession(t)
	go_ := s.mount.dir + "/go"
	var mu sync.Mutex
	var shown []string
	s.c.Progress = func(r messages.ToolResult) {
		mu.Lock()
		defer mu.Unlock()
		shown = append(shown, text(r))
		if len(shown) == 1 {
			// The command waits for this file: its first output has been
			// seen while it runs.
			if err := os.WriteFile(go_, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	args, _ := json.Marshal(object{"command": "echo begin; while [ ! -e go ]; do sleep 0.01; done; seq 1 100000", "timeout": 30})
	begin := time.Now()
	if r, state := s.execute(t.Context(), "bash", string(args)); state != messages.CallCompleted {
		t.Fatalf("%s %q", state, text(r))
	}
	took := time.Since(begin)
	if len(shown) == 0 || shown[0] != "begin\n" {
		t.Fatalf("shown %.100q", shown)
	}
	if most := int(took/progressGap) + 2; len(shown) > most {
		t.Errorf("%d looks in %v", len(shown), took)
	}
	for _, text := range shown {
		if len(text) > MaxBytes {
			t.Errorf("a look of %d bytes", len(text))
		}
	}
}

// TestLooksBecomeRareWhileOutputPassesBy: at once, soon again, and then four times
// a second until nothing new comes for a while.
func TestLooksBecomeRareWhileOutputPassesBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		begin := time.Now()
		looks := make(chan time.Duration, 100)
		v := newViewer(func(messages.ToolResult) { looks <- time.Since(begin) })
		synctest.Wait()
		prints := func(lines int, want ...time.Duration) {
			t.Helper()
			start := time.Since(begin)
			for range lines {
				v.add(sandboxes.Stdout, []byte("line\n"))
				synctest.Wait()
				time.Sleep(ms)
				synctest.Wait() // for a look that was due just now
			}
			var got []time.Duration
			for len(looks) > 0 {
				got = append(got, <-looks-start)
			}
			if !slices.Equal(got, want) {
				t.Errorf("looks after %v instead of %v", got, want)
			}
		}
		prints(1000, 0, 50*ms, 150*ms, 350*ms, 600*ms, 850*ms)
		time.Sleep(time.Second)
		<-looks // what was left
		prints(60, 0, 50*ms)
		v.close(false)
	})
}

func TestMemoryIsFlatWhileMuchIsPrinted(t *testing.T) {
	size := "1G"
	if raceEnabled {
		size = "64M"
	}
	s := newSession(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r, _ := s.call("bash", object{"command": "yes | head -c " + size})
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 32<<20 {
		t.Errorf("memory grew by %d MB", grown>>20)
	}
	d := details[commandDetails](t, r)
	if !strings.HasPrefix(text(r), "y\ny\n") || d.OutputLines != 2000 {
		t.Errorf("%.20q, %+v", text(r), d.Cut)
	}
	if !raceEnabled && !strings.Contains(text(r), "(its first 64.0MB of 1024.0MB)") {
		t.Errorf("the notice does not say that the file is cut: %q", text(r)[len(text(r))-200:])
	}
}
