package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/messages"
)

func TestMain(m *testing.M) {
	// No test looks for the list of models by itself.
	if err := os.Setenv(modelsAgeVariable, "off"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// ranCommand is what a command line left behind.
type ranCommand struct {
	code     int
	out, err string
}

// command runs a command line with this standard input, in this process, in a
// home of its own.
func command(t *testing.T, stdin string, args ...string) ranCommand {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) *os.File {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	s := streams{file("in", stdin), file("out", ""), file("err", "")}
	r := ranCommand{code: execute(context.Background(), args, s)}
	for f, text := range map[*os.File]*string{s.out: &r.out, s.err: &r.err, s.in: nil} {
		if text != nil {
			b, err := os.ReadFile(f.Name())
			if err != nil {
				t.Fatal(err)
			}
			*text = string(b)
		}
		f.Close()
	}
	return r
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n--- got\n%s\n--- want\n%s", what, got, want)
	}
}

func ptr[T any](v T) *T { return &v }

func encode(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	return b
}

// buffered is an output with both its ends in memory.
func buffered(format string) (o *output, out, err *bytes.Buffer) {
	out, err = &bytes.Buffer{}, &bytes.Buffer{}
	return &output{out: out, err: err, format: format, quiet: format != "text", width: ruleDefault}, out, err
}

func answer(id, text string, u *messages.Usage) messages.EventData {
	return messages.EventData{MessageID: id, Reason: "stop", Message: &messages.Message{
		ID: id, Role: messages.RoleAssistant, Provider: "anthropic", Model: "claude-sonnet-4-5", StopReason: messages.StopStop, Usage: u,
		Parts: []messages.Part{{Type: messages.PartThinking, Text: "hm"}, {Type: messages.PartText, Text: text}},
	}}
}

// discard is a stream that nobody reads.
func discard(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// hostile is text as a file, a model or a server may bring it: with control
// sequences of terminals, line ends and marks that turn the reading direction.
const hostile = "a\x1b]52;c;eA==\x07b\x1b[2Jc\r\nd\u009b31me\u202ef\u2028g\x7f"

func noControls(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); oneLine(line) != strings.TrimSpace(line) {
			t.Errorf("%s lets control characters through: %q", what, line)
		}
	}
}
