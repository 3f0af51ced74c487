package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/sandboxes"
)

var shellRows = []row{
	{"exit codes", 0, exitCodes},
	{"death by a signal", programs | signalled, signals},
	{"a program that cannot be run", programs, unrunnable},
	{"arguments arrive unchanged", 0, arguments},
	{"there is no input and no terminal", programs, noInput},
	{"the working folder", 0, workingFolder},
	{"a working folder that is none", 0, badFolder},
	{"variables", 0, variables},
	{"bad variables are refused", 0, badVariables},
	{"streams apart and joined", 0, streams},
	{"output is streamed", 0, streamed},
	{"output that is not text", 0, rawOutput},
	{"full output is kept in scratch", 0, fullOutput},
	{"a flood ends", programs, flood},
	{"a slow consumer holds up nobody else", programs, slowConsumer},
	{"many commands at once", 0, manyCommands},
	{"a time limit keeps the output and is told apart", 0, timeLimit},
	{"cancelled before it begins", 0, cancelledBefore},
	{"a closed mount refuses", 0, closedMount},
}

func exitCodes(t *testing.T, s *scene) {
	for script, want := range map[string]int{
		"": 0, "true": 0, "false": 1, "exit 255": 255, "exit 124": 124, "no-such-program-here": 127,
	} {
		if r := s.run(t, sandboxes.Command{Script: script}); r.Code != want || r.Signal != "" || r.TimedOut || r.Background {
			t.Errorf("%q: %+v, want %d", script, r.Exit, want)
		}
	}
	r := s.run(t, sandboxes.Command{Argv: []string{"no-such-program-here"}})
	if r.Code != 127 || r.err == "" {
		t.Errorf("argv: %+v", r)
	}
}

func signals(t *testing.T, s *scene) {
	for name, n := range map[string]int{"TERM": 15, "KILL": 9, "SEGV": 11} {
		r := s.run(t, sandboxes.Command{Argv: []string{"sh", "-c", "kill -" + name + " $$"}})
		if r.Code != 128+n || r.Signal != "SIG"+name {
			t.Errorf("%s: %+v", name, r.Exit)
		}
	}
}

func unrunnable(t *testing.T, s *scene) {
	s.write(t, "plain", "no program")
	for path, want := range map[string]int{"./missing": 127, "./plain": 126, "./plain/x": 127, s.dir: 126, "": 127} {
		if r := s.run(t, sandboxes.Command{Argv: []string{path}}); r.Code != want || r.err == "" {
			t.Errorf("%q: %+v, want %d", path, r, want)
		}
	}
}

func arguments(t *testing.T, s *scene) {
	args := []string{"-n", "a b", "it's", `"`, "$(id)", "`id`", "\\", "new\nline", "", "*", "~", "%s", "Grüße"}
	want := ""
	for _, a := range args {
		want += a + "|"
	}
	if r := s.run(t, sandboxes.Command{Argv: append([]string{"printf", `%s|`}, args...)}); r.out != want {
		t.Errorf("got %q want %q", r.out, want)
	}
}

func noInput(t *testing.T, s *scene) {
	start := time.Now()
	if out := s.sh(t, `cat; read x; echo "got $x $?"`); out != "got  1\n" {
		t.Errorf("%q", out)
	}
	if out := s.sh(t, `if ( exec 3</dev/tty ) 2>/dev/null; then echo open; else echo none; fi`); out != "none\n" {
		t.Errorf("%q", out)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

func workingFolder(t *testing.T, s *scene) {
	if err := s.mount.Mkdir(ctxb, "sub/deep"); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"": "", ".": "", "sub": "/sub", s.dir + "/sub": "/sub", "sub/deep/..": "/sub", "./sub//deep/": "/sub/deep",
	} {
		if r := s.run(t, sandboxes.Command{Script: "pwd", Dir: dir}); r.out != s.dir+want+"\n" {
			t.Errorf("%q: %q", dir, r.out)
		}
	}
	if out := s.sh(t, "cd sub; pwd"); out != s.dir+"/sub\n" {
		t.Errorf("%q", out)
	}
	if out := s.sh(t, "pwd"); out != s.dir+"\n" {
		t.Errorf("cd of one command changed the next: %q", out)
	}
}

func badFolder(t *testing.T, s *scene) {
	s.write(t, "file", "")
	for _, dir := range []string{"missing", s.dir + "/missing", "file", "nul\x00", strings.Repeat("x", 300)} {
		r, err := s.try(ctxb, sandboxes.Command{Script: "echo ran", Dir: dir})
		var se *sandboxes.ShellError
		if !errors.As(err, &se) || !strings.Contains(err.Error(), dir) || r.out != "" {
			t.Errorf("%.20q: %v %q", dir, err, r.out)
		}
	}
}

func variables(t *testing.T, s *scene) {
	m, err := s.sandbox.Mount(ctxb, sandboxes.MountOptions{
		Dir: s.dir, Umask: -1, Set: map[string]string{"A": "mount", "B": "mount", "A_TOKEN": "set"},
		Caller: []string{"PATH=/usr/bin:/bin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	set := &scene{s.subject, s.sandbox, m, s.dir}
	odd := "new\nline 'quoted' $HOME \\"
	r := set.run(t, sandboxes.Command{
		Script: `printf '%s|' "$A" "$B" "$A_TOKEN" "$ODD" "$PAGER" "$GIT_PAGER" "$GIT_TERMINAL_PROMPT"`,
		Env:    map[string]string{"B": "command", "ODD": odd},
	})
	if want := "mount|command|set|" + odd + "|cat|cat|0|"; r.out != want {
		t.Errorf("got %q want %q", r.out, want)
	}
	if out := s.sh(t, `echo "$A$B$ODD$A_TOKEN"`); out != "\n" {
		t.Errorf("leaked into another mount: %q", out)
	}
	if out := s.sh(t, `echo "$CODEWORK_SANDBOX"`); out == "\n" {
		t.Error("a command does not know its sandbox")
	}
}

func badVariables(t *testing.T, s *scene) {
	for _, bad := range []map[string]string{{"": "x"}, {"1A": "x"}, {"A-B": "x"}, {"A=B": "x"}, {"Ä": "x"}, {"A": "x\x00y"}} {
		r, err := s.try(ctxb, sandboxes.Command{Script: "echo ran", Env: bad})
		var se *sandboxes.ShellError
		if !errors.As(err, &se) || r.out != "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func streams(t *testing.T, s *scene) {
	const script = "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"
	if r := s.run(t, sandboxes.Command{Script: script}); r.out != "o1\no2\no3\no4\no5\n" || r.err != "e1\ne2\ne3\ne4\ne5\n" {
		t.Errorf("apart: %q %q", r.out, r.err)
	}
	if r := s.run(t, sandboxes.Command{Script: script, Joined: true}); r.out != "o1\ne1\no2\ne2\no3\ne3\no4\ne4\no5\ne5\n" || r.err != "" {
		t.Errorf("joined: %q %q", r.out, r.err)
	}
}

func streamed(t *testing.T, s *scene) {
	var got strings.Builder
	first := make(chan struct{})
	var once sync.Once
	wrote := make(chan error, 1)
	go func() {
		<-first // arrives while the command runs, which waits for the file
		wrote <- s.mount.Write(ctxb, "go", nil)
	}()
	ctx, cancel := context.WithTimeout(ctxb, patience)
	defer cancel()
	exit, err := s.mount.Run(ctx, sandboxes.Command{
		Script: `echo first; while ! test -e go; do sleep 0.02; done; echo second`,
		Output: func(_ sandboxes.Stream, b []byte) {
			got.Write(b)
			once.Do(func() { close(first) })
		},
	})
	once.Do(func() { close(first) })
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err != nil || exit.Code != 0 || got.String() != "first\nsecond\n" {
		t.Errorf("%+v %v %q", exit, err, got.String())
	}
}

func rawOutput(t *testing.T, s *scene) {
	raw := "\x00\x01\xff\xfe\r\n\xc3"
	s.write(t, "raw", raw)
	if r := s.run(t, sandboxes.Command{Argv: []string{"cat", "raw"}}); r.out != raw {
		t.Errorf("got %q", r.out)
	}
}

func fullOutput(t *testing.T, s *scene) {
	r := s.run(t, sandboxes.Command{Script: "echo a; echo b >&2", Joined: true, Full: "full"})
	if got := s.text(t, s.mount.Scratch()+"/full"); got != "a\nb\n" || r.FullBytes != 4 || r.FullCut || r.out != "a\nb\n" {
		t.Errorf("%q %+v", got, r)
	}
	for _, bad := range []string{"/tmp/x", "../x", s.dir + "/x"} {
		r, err := s.try(ctxb, sandboxes.Command{Script: "echo ran", Full: bad})
		var se *sandboxes.ShellError
		if !errors.As(err, &se) || r.out != "" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func flood(t *testing.T, s *scene) {
	const n = 64 << 20
	var total int
	ok := true
	exit, err := s.mount.Run(ctxb, sandboxes.Command{
		Script: fmt.Sprintf("yes | head -c %d", n),
		Output: func(_ sandboxes.Stream, b []byte) {
			ok = ok && b[0] == "y\n"[total%2]
			total += len(b)
		},
	})
	if err != nil || exit.Code != 0 || total != n || !ok {
		t.Errorf("%+v %v: %d bytes of %d (in order: %v)", exit, err, total, n, ok)
	}
}

func slowConsumer(t *testing.T, s *scene) {
	ctx, cancel := context.WithCancel(ctxb)
	defer cancel()
	inside, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := s.mount.Run(ctx, sandboxes.Command{
			Script: "yes",
			Output: func(sandboxes.Stream, []byte) {
				once.Do(func() { close(inside); <-release })
			},
		})
		done <- err
	}()
	<-inside
	for range 3 {
		if out := s.sh(t, "echo quick"); out != "quick\n" {
			t.Error(out)
		}
		s.write(t, "f", strings.Repeat("x", 1<<20))
		if got := len(s.text(t, "f")); got != 1<<20 {
			t.Error(got)
		}
	}
	cancel()
	close(release)
	start := time.Now()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := within(start); err != nil {
		t.Error(err)
	}
}

func manyCommands(t *testing.T, s *scene) {
	var wg sync.WaitGroup
	for i := range 6 {
		m := s.another(t)
		wg.Go(func() {
			for k := range 8 {
				want := fmt.Sprintf("%d-%d\n", i, k)
				r, err := m.try(ctxb, sandboxes.Command{Script: "echo " + strings.TrimSpace(want)})
				if err != nil || r.Code != 0 || r.out != want {
					t.Errorf("got %+v %v want %q", r, err, want)
				}
			}
		})
	}
	wg.Wait()
}

func timeLimit(t *testing.T, s *scene) {
	start := time.Now()
	r, err := s.try(ctxb, sandboxes.Command{Script: "echo hi; sleep 60; echo late", Timeout: time.Second})
	if err != nil || !r.TimedOut || r.out != "hi\n" {
		t.Errorf("%+v %v", r, err)
	}
	if err := within(start.Add(time.Second)); err != nil {
		t.Error(err)
	}
}

func cancelledBefore(t *testing.T, s *scene) {
	ctx, cancel := context.WithCancel(ctxb)
	cancel()
	exit, err := s.mount.Run(ctx, sandboxes.Command{Script: "echo > ran"})
	if !errors.Is(err, context.Canceled) || exit.Code != -1 || s.size("ran") > 0 {
		t.Error(exit, err)
	}
}

func closedMount(t *testing.T, s *scene) {
	m := s.another(t)
	if err := m.mount.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.mount.Run(ctxb, sandboxes.Command{Script: "true"}); !isClosed(err) {
		t.Error(err)
	}
	if _, err := m.mount.Read(ctxb, "x", 0, -1); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
	if _, err := m.mount.Lock(ctxb, "x"); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
	if err := m.mount.Close(); err != nil {
		t.Error("closing again:", err)
	}
	s.sh(t, "true") // the other does not care
}
