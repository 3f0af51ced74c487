package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"codework/integration/mockmodel"
	"codework/integration/peer"
	"codework/messages"
)

// host is what all others are compared with.
const host = messages.LocalSandbox

// sameCall is a call whose result says the same wherever tools run.
type sameCall struct {
	tool string
	args map[string]any
	// has is what the result on the host must say, for the comparison to be one
	// of something.
	has string
}

func bash(command, has string) sameCall {
	return sameCall{"bash", map[string]any{"command": command}, has}
}

// octal is a command that writes bytes which no text can hold.
func octal(data []byte, file string) string {
	var s strings.Builder
	for _, b := range data {
		fmt.Fprintf(&s, `\%03o`, b)
	}
	return "printf '" + s.String() + "' > " + file
}

// The smallest picture: one black dot.
const dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="

// sameCalls are one session's, in order.
func sameCalls(t *testing.T) []sameCall {
	t.Helper()
	png, err := base64.StdEncoding.DecodeString(dot)
	if err != nil {
		t.Fatal(err)
	}
	var huge strings.Builder
	for i := range 12000 {
		fmt.Fprintf(&huge, "line %05d of a file that is longer than an answer may be\n", i)
	}
	odd := "odd/ä 'q' \"d\" $x *"
	path := func(p string) map[string]any { return map[string]any{"path": p} }
	content := func(p, c string) map[string]any { return map[string]any{"path": p, "content": c} }
	edit := func(p string, pairs ...string) map[string]any {
		var edits []any
		for i := 0; i < len(pairs); i += 2 {
			edits = append(edits, map[string]any{"oldText": pairs[i], "newText": pairs[i+1]})
		}
		return map[string]any{"path": p, "edits": edits}
	}
	return []sameCall{
		// Commands.
		bash("pwd", ""),
		bash("echo out; echo err >&2; exit 3", "code 3"),
		bash("cat; echo end of input", "end of input"),
		bash("nosuchprogram-anywhere 2>/dev/null; echo $?", "127"),
		bash(`printf 'a\000b\377c\n'`, "a"),
		bash(`printf '\033[31mred\033[0m\nprogress 1\rprogress 2\n'`, "red"),
		bash("cd / && pwd; exit 0", "/"),
		bash("pwd", ""), // as before
		bash("seq 1 30000", "30000"),
		bash("yes | head -c 3000000", "y"),
		bash("echo begun; sleep 600 & echo $!x > /dev/null; echo returned", "returned"),
		{"bash", map[string]any{"command": "echo before; sleep 600", "timeout": 1}, "before"},
		bash("exit 0", ""),
		// Text.
		{"write", content("text.txt", "one\ntwo\nthree\n"), ""},
		{"read", path("text.txt"), "two"},
		{"read", map[string]any{"path": "text.txt", "offset": 2, "limit": 1}, "two"},
		{"read", map[string]any{"path": "text.txt", "offset": 99}, "99"},
		{"write", content("a/deep/er/file.go", "package deep\n\nfunc Deep() {}\n"), ""},
		{"write", content("text.txt", "one\ntwo\nthree\nfour\n"), ""},
		{"edit", edit("text.txt", "two", "2"), ""},
		{"edit", edit("text.txt", "one\n", "1\n", "four\n", "4\n"), ""},
		{"edit", edit("text.txt", "nowhere", "x"), ""},
		{"edit", edit("a/deep/er/file.go", "e", "x"), ""},
		{"edit", edit("missing.txt", "a", "b"), ""},
		bash("cat text.txt", "1\n2\nthree\n4"),
		// Line endings, a byte-order mark, no end of line.
		{"write", content("crlf.txt", "\ufeffa\r\nb\r\nc"), ""},
		{"edit", edit("crlf.txt", "b", "B"), ""},
		bash("wc -c < crlf.txt | tr -d ' '", "10"),
		// Modes and links.
		bash("echo x > run.sh && chmod 755 run.sh", ""),
		{"read", path("run.sh"), "x"},
		{"write", content("run.sh", "#!/bin/sh\necho ran\n"), ""},
		bash("test -x run.sh && echo still executable; sh run.sh", "still executable"),
		bash("mkdir -p target && ln -s target link && ln -s nowhere dangling && ln -s text.txt alias", ""),
		{"read", path("alias"), "three"},
		{"edit", edit("alias", "three", "3"), ""},
		bash("cat text.txt; readlink alias", "text.txt"),
		{"read", path("dangling"), ""},
		{"write", content("link/through.txt", "through\n"), ""},
		bash("cat target/through.txt", "through"),
		// Odd names.
		{"write", content(odd, "odd\n"), ""},
		{"read", path(odd), "odd"},
		{"edit", edit(odd, "odd", "even"), ""},
		{"write", content("-dash", "dash\n"), ""},
		{"read", path("-dash"), "dash"},
		{"write", content(strings.Repeat("n", 256), "x"), ""},
		{"read", path("a\x00b"), ""},
		{"write", content(strings.Repeat("d/", 60)+"bottom", "deep\n"), ""},
		{"read", path(strings.Repeat("d/", 60) + "bottom"), "deep"},
		// Large and binary files, pictures.
		{"write", content("huge.txt", huge.String()), ""},
		{"read", path("huge.txt"), "line 00000"},
		{"read", map[string]any{"path": "huge.txt", "offset": 11990}, "line 11999"},
		{"edit", edit("huge.txt", "line 06000 of", "LINE 06000 of"), ""},
		{"grep", map[string]any{"pattern": "LINE", "path": "huge.txt"}, "6001"},
		bash(octal([]byte("bin\x00\x01\xff\xfeary"), "binary.dat"), ""),
		{"read", path("binary.dat"), ""},
		bash(octal(png, "dot.png"), ""),
		{"read", path("dot.png"), "dot.png"},
		// What is no file.
		{"read", path("missing.txt"), "missing.txt"},
		{"read", path("a"), ""},
		{"write", content("a", "x"), ""},
		{"write", content("text.txt/below", "x"), ""},
		{"ls", path("text.txt"), ""},
		{"ls", path("missing"), ""},
		{"read", path(""), ""},
		// Searching.
		{"grep", map[string]any{"pattern": "func|even"}, "file.go"},
		{"grep", map[string]any{"pattern": "PACKAGE", "ignoreCase": true, "glob": "*.go", "context": 1}, "package deep"},
		{"grep", map[string]any{"pattern": "[", "literal": true}, ""},
		{"grep", map[string]any{"pattern": "["}, ""},
		{"grep", map[string]any{"pattern": "nothing says this"}, ""},
		{"grep", map[string]any{"pattern": "line", "limit": 3}, "line"},
		{"find", map[string]any{"pattern": "*.txt"}, "target/through.txt"},
		{"find", map[string]any{"pattern": "deep/**/*.go"}, "file.go"},
		{"find", map[string]any{"pattern": "*", "path": "odd"}, "ä"},
		{"find", map[string]any{"pattern": "*.txt", "limit": 2}, "crlf.txt"},
		{"find", map[string]any{"pattern": "*", "path": "missing"}, ""},
		{"ls", map[string]any{}, "text.txt"},
		{"ls", map[string]any{"path": "a", "limit": 1}, "deep"},
		{"write", content(".gitignore", "ignored/\n*.log\n"), ""},
		{"write", content("ignored/secret.txt", "func ignored\n"), ""},
		{"write", content("x.log", "func logged\n"), ""},
		{"grep", map[string]any{"pattern": "func"}, "file.go"},
		{"find", map[string]any{"pattern": "*.txt"}, "text.txt"},
	}
}

// What may differ between sandboxes without being a difference.
var (
	fullOutput = regexp.MustCompile(`/[^\s\]]*/(bash-)?[0-9A-Za-z_.-]+\.(log|txt|out)\b`)
	ours       = []string{".codework/"} // made in the project to be protected
)

// callPlace is a driver that the calls are made with.
type callPlace struct {
	driver   string
	settings map[string]any
	onDisk   bool // the project is a folder of the test
}

// staticProgram is codework as it is published: without a C library, so that it
// runs in any container.
func staticProgram(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, ".static", "codework")
	cmd := exec.Command("go", "build", "-o", path, "codework/cmd/codework")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build codework: %v\n%s", err, out)
	}
	return path
}

// TestToolsAnswerTheSameInEverySandbox has one session make the same calls in
// sandboxes of every driver, and compares what the model is told with what it is
// told of the host.
func TestToolsAnswerTheSameInEverySandbox(t *testing.T) {
	dir, err := os.MkdirTemp(built.dir, "t")
	if err != nil {
		t.Fatal(err)
	}
	program := staticProgram(t, dir)
	calls := sameCalls(t)
	want := toolResults(t, program, callPlace{driver: host, onDisk: true}, calls)
	for i, c := range calls {
		if !strings.Contains(want[i], c.has) {
			t.Errorf("on the host call %d, %s, says %q and not %q", i, c.describe(), want[i], c.has)
		}
	}
	for _, p := range []callPlace{
		{driver: "memory"},
		{driver: "isolated", onDisk: true},
		{driver: "container", onDisk: true},
	} {
		t.Run(p.driver, func(t *testing.T) {
			p.settings, _ = driverSettings(t, p.driver)
			got := toolResults(t, program, p, calls)
			for i, c := range calls {
				if got[i] != want[i] {
					t.Errorf("call %d, %s:\n%s: %s\n%s: %s", i, c.describe(), p.driver, shortened(got[i]), host, shortened(want[i]))
				}
			}
		})
	}
}

// driverSettings are what a driver of the tests needs to work here, and its
// engine if it has one. The test is left out where the driver cannot be.
func driverSettings(t *testing.T, driver string) (map[string]any, *peer.Engine) {
	t.Helper()
	switch driver {
	case "isolated":
		peer.Wanted(t, "ISOLATED")
	case "container":
		peer.Wanted(t, peer.Container)
		dir, err := os.MkdirTemp("", "cwp") // not below built.dir: sockets have short paths
		if err != nil {
			t.Fatal(err)
		}
		engine, err := peer.StartEngine(dir)
		if err != nil {
			_ = os.RemoveAll(dir)
			peer.Missing(t, peer.Container, err, peer.ContainerHelp)
		}
		t.Cleanup(func() {
			engine.Close()
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		return map[string]any{"container": map[string]any{"socket": engine.Socket, "image": peer.Image}}, engine
	}
	return nil, nil
}

func (c sameCall) describe() string {
	b, err := json.Marshal(c.args)
	if err != nil {
		return c.tool
	}
	return c.tool + " " + shortened(string(b))
}

func shortened(s string) string {
	const most = 600
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q … %q (%d bytes)", s[:most/2], s[len(s)-most/2:], len(s))
}

// toolResults makes the calls in a session of the driver and returns what the
// model was told of each. It also stops a command of it, which must end.
func toolResults(t *testing.T, program string, p callPlace, calls []sameCall) []string {
	t.Helper()
	dir, err := os.MkdirTemp(built.dir, "t")
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(dir, "openai-compatible")
	if err != nil {
		t.Fatal(err)
	}
	if w.program, err = w.link(program); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.end(t.Failed()); err != nil {
			t.Error(err)
		}
	})
	project := filepath.Join(dir, "project")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	var script mockmodel.Script
	for i, c := range calls {
		args, err := json.Marshal(c.args)
		if err != nil {
			t.Fatal(err)
		}
		script = append(script, mockmodel.Answer{mockmodel.Call{ID: fmt.Sprint("c", i), Name: c.tool, Args: string(args)}})
	}
	script = append(script, mockmodel.Answer{mockmodel.Text{Text: "done"}})
	w.script(t, map[string]mockmodel.Script{"default": script})
	sandbox := map[string]any{"driver": p.driver}
	merge(sandbox, p.settings)
	var more []any
	for _, tool := range []string{"grep", "find", "ls"} {
		more = append(more, map[string]any{"plugin": "codework.tool." + tool, "enabled": true})
	}
	merge(w.settings, map[string]any{"sandbox": sandbox, "plugins": more})
	if err := w.writeSettings(); err != nil {
		t.Fatal(err)
	}
	o := w.run(t, project, "work")
	o.must(t, "done")
	view := w.model.Requests()[len(w.model.Requests())-1].View
	told := map[string]string{}
	for _, m := range view.Messages {
		for i, part := range m.Parts {
			if part.Kind != mockmodel.PartResult {
				continue
			}
			text := part.Text
			if part.IsError {
				text = "error: " + text
			}
			if slices.ContainsFunc(m.Parts[i:], func(p mockmodel.Part) bool { return p.Kind == mockmodel.PartImage }) {
				text += " and a picture"
			}
			told[part.ID] = text
		}
	}
	home := "/workspace"
	if p.driver == host || p.driver == "isolated" {
		home = project
	}
	out := make([]string, len(calls))
	for i := range calls {
		text, ok := told[fmt.Sprint("c", i)]
		if !ok {
			t.Errorf("%s: call %d has no result", p.driver, i)
		}
		text = strings.ReplaceAll(text, home, "<project>")
		text = fullOutput.ReplaceAllString(text, "<full output>")
		var lines []string
		for line := range strings.Lines(text) {
			if !slices.Contains(ours, strings.TrimSpace(line)) {
				lines = append(lines, line)
			}
		}
		out[i] = strings.Join(lines, "")
	}
	if p.onDisk {
		stopped(t, w, project, o.session)
	}
	return out
}

// stopped stops a run whose command counts in a file: the count must stand
// still then.
func stopped(t *testing.T, w *world, project, session string) {
	t.Helper()
	w.script(t, map[string]mockmodel.Script{"maybe": {
		{mockmodel.Call{ID: "beat", Name: "bash", Args: `{"command":"setsid sh -c 'while :; do echo x >> beat; sleep 0.02; done' & while :; do echo x >> beat; sleep 0.02; done"}`}},
		{mockmodel.Text{Text: "not reached"}},
	}})
	p := w.begin(t, project, "--session", session, "script=maybe beat")
	beat := func() int64 {
		info, err := os.Stat(filepath.Join(project, "beat"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	if err := until(endLimit, func() string {
		if beat() > 4 {
			return ""
		}
		return "the command does not begin: " + p.err.String()
	}); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	if o := w.ended(t, p); o.code != 130 {
		t.Errorf("stopped: exit code %d\n%s", o.code, o.err)
	}
	for range 2 {
		before := beat()
		time.Sleep(500 * time.Millisecond) // it would have counted 25 times
		if now := beat(); now != before {
			t.Errorf("a stopped command still counts: %d, then %d", before, now)
		}
	}
}
