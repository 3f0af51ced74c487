package offline

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"codework/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var defaultTools = []string{"read", "write", "edit", "bash"}

// session is a conversation with the model in a real folder, with tools that
// keep the rules of the product's own as far as the answers depend on them.
type session struct {
	t     *testing.T
	dir   string
	tools []string
	env   []string
	shell string // instead of bash

	history []messages.Message
	calls   []messages.Part // of the last prompt
	rounds  int             // of the last prompt
}

func (s *session) ask(prompt string) string {
	s.t.Helper()
	s.history = append(s.history, messages.Message{
		ID: fmt.Sprintf("u%d", len(s.history)), Role: messages.RoleUser,
		Parts: []messages.Part{{Type: messages.PartText, Text: prompt}},
	})
	s.calls, s.rounds = nil, 0
	for {
		m := s.request()
		s.history = append(s.history, m)
		if m.StopReason != messages.StopToolUse {
			return m.Parts[0].Text
		}
		if s.rounds++; s.rounds > maxRounds {
			s.t.Fatalf("%q: more than %d rounds", prompt, maxRounds)
		}
		for i := range m.Parts {
			p := &m.Parts[i]
			r := s.run(p.Name, p.Arguments)
			p.Call, p.Result = messages.CallCompleted, &r
			if r.IsError {
				p.Call = messages.CallError
			}
			s.calls = append(s.calls, *p)
		}
	}
}

// request sends the history and checks the form of the stream.
func (s *session) request() messages.Message {
	s.t.Helper()
	events := stream1(context.Background(), s.req())
	last := events[len(events)-1]
	if last.Kind != messages.StreamDone {
		s.t.Fatalf("ended with %+v: %v", last, last.Failure)
	}
	return *last.Message
}

func (s *session) req() *messages.Request {
	req := &messages.Request{
		SessionID: "ses_1", MessageID: fmt.Sprintf("a-%d", len(s.history)), Model: Model(), System: "system",
		Messages: s.history, Cache: &messages.EncodeCache{},
	}
	for _, name := range s.tools {
		req.Tools = append(req.Tools, messages.ToolDefinition{Name: name, Schema: json.RawMessage("{}")})
	}
	return req
}

func stream1(ctx context.Context, req *messages.Request) (events []messages.StreamEvent) {
	Dialect{}.Stream(ctx, nil, req, func(e messages.StreamEvent) { events = append(events, e) })
	return events
}

func (s *session) run(name, arguments string) messages.ToolResult {
	var a struct {
		Command, Path, Content, Pattern string
		Offset, Limit                   int
		Literal                         bool
		Edits                           []struct{ OldText, NewText string }
	}
	if err := json.Unmarshal([]byte(arguments), &a); err != nil {
		s.t.Fatalf("%s: arguments %s: %v", name, arguments, err)
	}
	path := a.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	switch name {
	case "bash":
		return s.bash(a.Command)
	case "read":
		data, err := os.ReadFile(path)
		if err != nil {
			return messages.TextResult("read "+a.Path+": "+err.Error(), true)
		}
		lines := strings.SplitAfter(strings.TrimSuffix(string(data), "\n"), "\n")
		first := min(max(a.Offset, 1), len(lines))
		end := min(first-1+a.Limit, len(lines))
		text := strings.Join(lines[first-1:end], "")
		if end < len(lines) {
			text += fmt.Sprintf("\n\n[%d more lines in file. Use offset=%d to continue.]", len(lines)-end, end+1)
		}
		return messages.TextResult(text, false)
	case "write":
		if err := os.WriteFile(path, []byte(a.Content), 0o644); err != nil {
			return messages.TextResult(err.Error(), true)
		}
		return messages.TextResult("wrote "+a.Path, false)
	case "edit":
		data, err := os.ReadFile(path)
		if err != nil {
			return messages.TextResult(err.Error(), true)
		}
		if n := strings.Count(string(data), a.Edits[0].OldText); n != 1 {
			return messages.TextResult(fmt.Sprintf("edit 1: %d matches", n), true)
		}
		text := strings.Replace(string(data), a.Edits[0].OldText, a.Edits[0].NewText, 1)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return messages.TextResult(err.Error(), true)
		}
		return messages.TextResult("replaced 1 text in "+a.Path, false)
	case "grep":
		flag := "-rnE"
		if a.Literal {
			flag = "-rnF"
		}
		out, _ := exec.Command("grep", flag, "--", a.Pattern, s.dir).Output() // no match is not an error
		return messages.TextResult(strings.ReplaceAll(string(out), s.dir+"/", ""), false)
	}
	s.t.Fatalf("unknown tool %s", name)
	return messages.ToolResult{}
}

// bash keeps the end of the output, as the real one does.
func (s *session) bash(command string) messages.ToolResult {
	cmd := exec.Command(cmp.Or(s.shell, "bash"), "-c", command)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	cmd.Env = append(cmd.Env, s.env...)
	out, err := cmd.CombinedOutput()
	text := string(out)
	if lines := strings.SplitAfter(text, "\n"); len(text) > 51200 || len(lines) > 2001 {
		s.t.Errorf("output of %d bytes would be cut: %s", len(text), command)
	}
	if text == "" {
		text = "(no output)"
	}
	if err != nil {
		return messages.TextResult(strings.TrimSuffix(text, "\n")+"\n\n[command failed: "+err.Error()+"]", true)
	}
	return messages.TextResult(text, false)
}

// tree writes files into a new folder that is in no git repository.
func tree(t *testing.T, files map[string]string) *session {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &session{t: t, dir: dir, tools: defaultTools}
}

// commit makes the folder a git repository with one commit of everything.
func (s *session) commit() *session {
	s.t.Helper()
	for _, command := range []string{
		"git init -q -b main", "git add -A",
		"git -c user.name=Ann -c user.email=ann@example.com commit -q -m 'first commit'",
	} {
		if r := s.bash(command); r.IsError {
			s.t.Fatalf("%s: %s", command, content(r))
		}
	}
	return s
}
