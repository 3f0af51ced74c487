//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"codework/messages"
	"codework/protocol/client"
)

// Refused before anything is started, a home included: exit 2, one line on
// standard error, nothing on standard output.
func TestWrongUseOfRunIsRefused(t *testing.T) {
	for _, c := range []struct {
		args string
		want string // part of the line
	}{
		{"--session " + session + " --continue hi", "--session and --continue"},
		{"--session " + session + " --cwd x hi", "--cwd is for new sessions"},
		{"--continue -C x hi", "--cwd is for new sessions"},
		{"--session " + session + " --sandbox-driver local hi", "for new sessions"},
		{"--continue --sandbox-id sbx hi", "for new sessions"},
		{"--sandbox-driver local --sandbox-id sbx hi", "--sandbox-id goes without"},
		{"--continue --title x hi", "--title is for new sessions"},
		{"--continue --append-system-prompt x hi", "--append-system-prompt is for new sessions"},
		{"--session nonsense hi", `"nonsense" is not a session id`},
		{"--provider p hi", "--provider goes with --model"},
		{"--model m hi", "expected provider/model"},
		{"--model p/ hi", "expected provider/model"},
		{"--model /m hi", "expected provider/model"},
		{"--thinking hard hi", "--thinking: expected off"},
		{"--output-format xml hi", "--output-format: expected text"},
		{"--delivery later hi", "--delivery: expected steer or followUp"},
		{"--timeout=-1s hi", "--timeout: expected a positive duration"},
		{"--timeout soon hi", "--timeout"},
		{"--nonsense hi", "unknown flag: --nonsense"},
		{"--file /no/such/file hi", "--file /no/such/file: no such file or directory"},
		{"--log-level loud hi", "--log-level"},
	} {
		homeDir := filepath.Join(t.TempDir(), "home")
		r := command(t, "", append([]string{"run", "--home", homeDir}, strings.Fields(c.args)...)...)
		lines := strings.Split(strings.TrimSuffix(r.err, "\n"), "\n")
		if len(lines) == 2 && strings.HasPrefix(lines[1], "hint: ") {
			lines = lines[:1]
		}
		if r.code != exitUsage || r.out != "" || len(lines) != 1 || !strings.HasPrefix(lines[0], "error: ") || !strings.Contains(lines[0], c.want) {
			t.Errorf("%s: code %d, out %q\n%s", c.args, r.code, r.out, r.err)
		}
		if _, err := os.Stat(homeDir); err == nil {
			t.Errorf("%s: a home was made", c.args)
		}
	}
}

func TestWrongUseOfOtherCommandsIsRefused(t *testing.T) {
	for _, args := range []string{"nonsense", "models nonsense", "models providers x", "version x", "trust a b", "config x", "config show x",
		"--nonsense", "version --nonsense", "home-process x", "--log-level loud version", "completion bash x"} {
		r := command(t, "", strings.Fields(args)...)
		if r.code != exitUsage || r.out != "" || !strings.HasPrefix(r.err, "error: ") {
			t.Errorf("%s: code %d\n%s\n%s", args, r.code, r.out, r.err)
		}
	}
}

func TestHelpAndVersionGoToStandardOutput(t *testing.T) {
	for args, want := range map[string]string{
		"": "codework run", "--help": "codework run", "run --help": "--output-format", "--version": "codework " + version + "\n",
		"version": "codework " + version + "\n", "version --json": `"go":"go1.`,
	} {
		r := command(t, "", strings.Fields(args)...)
		if r.code != 0 || r.err != "" || !strings.Contains(r.out, want) {
			t.Errorf("%q: code %d\n%s\n%s", args, r.code, r.out, r.err)
		}
	}
}

// stdin is a standard input that holds this text.
func stdin(t *testing.T, text string) *global {
	t.Helper()
	name := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &global{streams: streams{in: f}}
}

func TestThePromptComesFromArgumentsAndStandardInput(t *testing.T) {
	full := strings.Repeat("x", maxPromptPipe)
	for _, c := range []struct {
		args  []string
		stdin string
		want  string // "!" and part of the error
	}{
		{[]string{"hello"}, "not read", "hello"},
		{[]string{"several", "words"}, "not read", "several words"},
		{nil, "from the pipe\n", "from the pipe"},
		{[]string{"-"}, "from the pipe\n\n", "from the pipe"},
		{[]string{"question", "-"}, "the text\n", "question\n\nthe text"},
		{[]string{"question", "-"}, "\n", "question"},
		{[]string{"a", "-", "b"}, "not read", "a - b"},
		{nil, "two\nlines\n", "two\nlines"},
		{nil, "bad \xff bytes", "bad \uFFFD bytes"},
		{nil, "", "!the prompt is empty"},
		{nil, " \n\t\n", "!the prompt is empty"},
		{[]string{""}, "not read", "!the prompt is empty"},
		{nil, full, full},
		{nil, full + "x", "!over 1 MiB"},
		{[]string{"question", "-"}, full + "\n", "!over 1 MiB"},
	} {
		var f runFlags
		p, err := f.prompt(stdin(t, c.stdin), c.args)
		reason, fails := strings.CutPrefix(c.want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), reason) || report(&bytes.Buffer{}, err) != exitUsage):
			t.Errorf("%q with %.20q: %v, want %s", c.args, c.stdin, err, reason)
		case !fails && (err != nil || p.Text != c.want):
			t.Errorf("%q with %.20q: %.40q, %v", c.args, c.stdin, p.Text, err)
		}
	}
}

// A parent may hold an empty pipe open for ever.
func TestAPromptInTheArgumentsLeavesStandardInputAlone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	var f runFlags
	if p, err := f.prompt(&global{streams: streams{in: r}}, []string{"hi"}); err != nil || p.Text != "hi" {
		t.Error(p, err)
	}
	// Nor is it read when the flags are wrong.
	s := streams{in: r, out: os.Stdout, err: discard(t)}
	if code := execute(context.Background(), []string{"run", "--delivery", "x"}, s); code != exitUsage {
		t.Error(code)
	}
}

// onePixel is the smallest PNG there is.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func TestFilesGoAlong(t *testing.T) {
	png, err := base64.StdEncoding.DecodeString(onePixel)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	for name, data := range map[string][]byte{"a.txt": []byte("text\n"), "p.dat": png, "nul.txt": {'a', 0}, "latin": {0xe9, 'a'}, "big": make([]byte, maxAttachment+1), "empty": nil} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo("pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	f := runFlags{files: []string{"a.txt", "p.dat", "empty"}}
	p, err := f.prompt(stdin(t, ""), []string{"look"})
	want := []messages.Part{
		{Type: messages.PartText, Text: "<file path=\"a.txt\">\ntext\n\n</file>"},
		{Type: messages.PartImage, MediaType: "image/png", Data: png},
		{Type: messages.PartText, Text: "<file path=\"empty\">\n\n</file>"},
	}
	if err != nil || p.Text != "look" || !reflect.DeepEqual(p.Parts, want) {
		t.Errorf("%v, %+v", err, p)
	}
	// A picture alone is a prompt.
	f = runFlags{files: []string{"p.dat"}}
	if p, err := f.prompt(stdin(t, ""), []string{""}); err != nil || len(p.Parts) != 1 {
		t.Error(p, err)
	}
	for name, want := range map[string]string{
		"none": "no such file", ".": "not a regular file", "pipe": "not a regular file", "big": "over 8 MiB",
		"nul.txt": "neither text nor an image", "latin": "neither text nor an image",
	} {
		f := runFlags{files: []string{name}}
		_, err := f.prompt(stdin(t, ""), []string{"look"})
		if err == nil || !strings.HasPrefix(err.Error(), "--file "+name+": ") || !strings.Contains(err.Error(), want) || report(&bytes.Buffer{}, err) != exitUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheAddendumIsTextOrAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"rules": "be brief\n\xff", "big": strings.Repeat("x", maxAddendum+1), "fits": strings.Repeat("x", maxAddendum)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for value, want := range map[string]string{"": "", "be brief": "be brief", "a@b": "a@b", "@rules": "be brief\n\uFFFD", "@fits": strings.Repeat("x", maxAddendum)} {
		if got, err := addendum(value); err != nil || got != want {
			t.Errorf("%s: %.40q, %v", value, got, err)
		}
	}
	for value, want := range map[string]string{"@none": "no such file", "@": "no such file", "@.": "is a directory", "@big": "over 256 KiB", "@/dev/zero": "over 256 KiB"} {
		_, err := addendum(value)
		if err == nil || !strings.Contains(err.Error(), want) || report(&bytes.Buffer{}, err) != exitUsage {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func TestModelAndThinkingOverrideTheSettings(t *testing.T) {
	for _, c := range []struct {
		flags runFlags
		want  *messages.Runtime
	}{
		{runFlags{}, nil},
		{runFlags{thinking: "low"}, &messages.Runtime{ThinkingLevel: "low"}},
		{runFlags{model: "p/m"}, &messages.Runtime{Model: &messages.ModelRef{Provider: "p", ID: "m"}}},
		{runFlags{model: "p/a/b"}, &messages.Runtime{Model: &messages.ModelRef{Provider: "p", ID: "a/b"}}},
		{runFlags{provider: "p", model: "a/b", thinking: "max"}, &messages.Runtime{Model: &messages.ModelRef{Provider: "p", ID: "a/b"}, ThinkingLevel: "max"}},
	} {
		if got, err := c.flags.runtime(); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, %v", c.flags, got, err)
		}
	}
}

// A prompt of which nobody knows whether it arrived runs once: it is taken
// back before it is sent again.
func TestAPromptThatAnEndingOwnerMayHaveTakenIsTakenBack(t *testing.T) {
	for _, c := range []struct {
		queued []string
		inTalk bool
		want   bool
	}{
		{[]string{theirs, mine}, false, false},
		{nil, false, false},
		{nil, true, true},
	} {
		s, _, _, _ := newScript(t)
		s.set(func() { s.queued, s.inTalk = c.queued, c.inTalk })
		ran, err := takeBack(soon(t), s.client, session, mine)
		if ran != c.want || err != nil || len(s.queued) > 1 {
			t.Errorf("%+v: %v, %v, queue %v", c, ran, err, s.queued)
		}
	}
	s, _, _, _ := newScript(t)
	s.client.Close()
	if _, err := takeBack(soon(t), s.client, session, mine); !errors.Is(err, client.ErrConnectionLost) {
		t.Error(err)
	}
}

func TestTrustNamesTheRoot(t *testing.T) {
	homeDir, root := project(t, "", "{}")
	if err := os.MkdirAll("deep/er", 0o700); err != nil {
		t.Fatal(err)
	}
	if r := command(t, "", "trust", "deep/er", "--home", homeDir); r.code != 0 || r.out != "Trusted "+root+"\n" || r.err != "" {
		t.Errorf("%+v", r)
	}
	r := command(t, "", "trust", t.TempDir(), "--home", homeDir)
	if r.code != exitFailed || r.out != "" || !strings.HasPrefix(r.err, "error: no project at ") || !strings.Contains(r.err, "\nhint: ") {
		t.Errorf("%+v", r)
	}
	if strings.Contains(fmt.Sprint(r), "\n\n") {
		t.Errorf("not one block: %q", r.err)
	}
}

func TestModelsOfNobodyAreAnError(t *testing.T) {
	homeDir, _ := project(t, `{"models": [`+customModel+`]}`, "")
	t.Setenv("CODEWORK_MODELS_FILE", "")
	r := command(t, "", "models", "--provider", "mine", "--home", homeDir)
	if r.code != 0 || r.out != "mine/m1\n" {
		t.Errorf("%+v", r)
	}
	r = command(t, "", "models", "--provider", "nobody", "--home", homeDir)
	if r.code != exitFailed || r.out != "" || !strings.HasPrefix(r.err, "error[model-not-found]: ") {
		t.Errorf("%+v", r)
	}
	r = command(t, "", "models", "providers", "--json", "--home", homeDir)
	if r.code != 0 || !strings.Contains(r.out, `"mine"`) || !strings.HasPrefix(r.out, "[") {
		t.Errorf("%+v", r)
	}
}
