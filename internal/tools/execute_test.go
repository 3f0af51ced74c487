//go:build unix

package tools

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"codework/messages"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// session is a set of tools on a mount.
type session struct {
	t     testing.TB
	set   *Set
	mount *hostMount
	c     Context
}

func newSession(t testing.TB, tools ...Tool) *session {
	t.Helper()
	if tools == nil {
		tools = Builtin()
	}
	set, err := NewSet(tools...)
	if err != nil {
		t.Fatal(err)
	}
	m := newMount(t)
	return &session{t: t, set: set, mount: m, c: Context{Mount: m, Seen: new(Seen), Images: true, CallID: "call_1"}}
}

func (s *session) execute(ctx context.Context, name, args string) (messages.ToolResult, messages.CallState) {
	return Execute(ctx, s.set, Call{ID: "call_1", Name: name, Arguments: args}, s.c)
}

// call runs a call whose arguments are given as a Go value.
func (s *session) call(name string, args any) (messages.ToolResult, messages.CallState) {
	s.t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.execute(s.t.Context(), name, string(b))
}

// ok runs a call that must succeed and gives its text.
func (s *session) ok(name string, args any) string {
	s.t.Helper()
	r, state := s.call(name, args)
	if state != messages.CallCompleted || r.IsError {
		s.t.Fatalf("%s %v: %s: %s", name, args, state, text(r))
	}
	return text(r)
}

// fails runs a call that must fail and gives its text.
func (s *session) fails(name string, args any) string {
	s.t.Helper()
	r, state := s.call(name, args)
	if state != messages.CallError || !r.IsError {
		s.t.Fatalf("%s %v: %s: %s, want an error", name, args, state, text(r))
	}
	return text(r)
}

type object = map[string]any

func text(r messages.ToolResult) string {
	var out []string
	for _, p := range r.Content {
		if p.Type == messages.PartText {
			out = append(out, p.Text)
		}
	}
	return strings.Join(out, "\n")
}

func details[T any](t testing.TB, r messages.ToolResult) T {
	t.Helper()
	var d T
	if err := json.Unmarshal(r.Details, &d); err != nil {
		t.Fatalf("details %q: %v", r.Details, err)
	}
	return d
}

func TestUnusableArgumentsNeverReachTheTool(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		kind       string
		says       []string
	}{
		{"empty text counts as an empty object", "", "invalid_arguments", []string{"write", "path: is missing", "content: is missing"}},
		{"cut off", `{"path":"a"`, "invalid_json", []string{"write", "unexpected end"}},
		{"null", `null`, "invalid_arguments", []string{"write", "must be an object, null"}},
		{"an array", `["a"]`, "invalid_arguments", []string{"write", "must be an object, array"}},
		{"JSON inside a string", `"{\"path\":\"a\",\"content\":\"x\"}"`, "invalid_arguments", []string{"must be an object, string"}},
		{"two values", `{"path":"a","content":"b"} {}`, "invalid_json", []string{"after top-level value"}},
		{"200 KB of x", strings.Repeat("x", 200_000), "invalid_json", []string{"write", "invalid character 'x'"}},
		{"wrong types", `{"path":7,"content":["a"]}`, "invalid_arguments", []string{"path: must be string, is number", "content: must be string, is array"}},
		{"a field too many", `{"path":"a","content":"b","mode":"0644"}`, "invalid_arguments", []string{"mode: is not a field"}},
		{"null for a required field", `{"path":"a","content":null}`, "invalid_arguments", []string{"content: must be string, is null"}},
		{"a long bad name", `{"path":"a","content":"b","` + strings.Repeat("n", 5000) + `":1}`, "invalid_arguments", []string{"nnn…: is not a field"}},
		{"many faults", `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}`, "invalid_arguments", []string{"path: is missing", "and more"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			r, state := s.execute(t.Context(), "write", tc.args)
			if state != messages.CallError || !r.IsError {
				t.Errorf("state %s, IsError %v", state, r.IsError)
			}
			for _, want := range tc.says {
				if !strings.Contains(text(r), want) {
					t.Errorf("text %q does not say %q", text(r), want)
				}
			}
			if n := len(text(r)); n > 600 {
				t.Errorf("text has %d bytes: %s", n, text(r))
			}
			d := details[problem](t, r)
			if d.Error != tc.kind || d.Name != "write" {
				t.Errorf("details %+v", d)
			}
			if len(r.Details) > 2*maxRawKept {
				t.Errorf("details have %d bytes", len(r.Details))
			}
			if tc.kind == "invalid_json" && d.Raw == "" {
				t.Error("the raw text is not in the details")
			}
			if entries, _ := os.ReadDir(s.mount.dir); len(entries) != 0 {
				t.Errorf("files were written: %v", entries)
			}
		})
	}
}

func TestUnknownToolIsToldTheRealNames(t *testing.T) {
	s := newSession(t)
	for _, name := range []string{"Bash", "repo_browser.print_tree", "", strings.Repeat("x", 10_000)} {
		r, state := s.execute(t.Context(), name, "{}")
		if state != messages.CallError || !r.IsError {
			t.Errorf("%.20q: state %s", name, state)
		}
		if !strings.Contains(text(r), "read, bash, edit, write, grep, find, ls") || len(text(r)) > 400 {
			t.Errorf("%.20q: text %q", name, text(r))
		}
		if d := details[problem](t, r); d.Error != "unknown_tool" {
			t.Errorf("%.20q: details %+v", name, d)
		}
	}
}

func TestNullMeansAbsentForOptionalArguments(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "f", "one\ntwo\n")
	r, _ := s.execute(t.Context(), "read", `{"path":"f","offset":null,"limit":null}`)
	if text(r) != "one\ntwo\n" {
		t.Errorf("read gave %q", text(r))
	}
}

// echo is a tool that answers with its arguments.
func echo() Tool {
	return Tool{
		Name: "echo", Schema: json.RawMessage(`{"type":"object","properties":{"n":{"type":["number","null"]},"o":{"type":"object","properties":{"x":{"type":"string"}}}}}`),
		Run: func(_ context.Context, _ Context, args json.RawMessage) (messages.ToolResult, error) {
			return messages.TextResult(string(args), false), nil
		},
	}
}

func TestNullStaysWhereTheSchemaAllowsItAndNumbersKeepTheirDigits(t *testing.T) {
	s := newSession(t, echo())
	r, state := s.execute(t.Context(), "echo", `{"n":null,"o":{"x":null},"big":12345678901234567890}`)
	if want := `{"big":12345678901234567890,"n":null,"o":{}}`; text(r) != want || state != messages.CallCompleted {
		t.Errorf("%s %q, want %q", state, text(r), want)
	}
	r, _ = s.execute(t.Context(), "echo", ` {"n": 1.0} `)
	if text(r) != ` {"n": 1.0} ` {
		t.Errorf("arguments were changed: %q", text(r))
	}
}

func TestHooks(t *testing.T) {
	no := errors.New("no\nway")
	yes := true
	for _, tc := range []struct {
		name   string
		before func(context.Context, Call) (*Verdict, error)
		after  func(context.Context, Call, messages.CallState, messages.ToolResult) (*Patch, error)
		text   string
		state  messages.CallState
		runs   int32
	}{
		{name: "none", text: `{"n":1}`, state: messages.CallCompleted, runs: 1},
		{name: "before lets pass", text: `{"n":1}`, state: messages.CallCompleted, runs: 1,
			before: func(_ context.Context, c Call) (*Verdict, error) {
				if string(c.Args) != `{"n":1}` || c.Name != "echo" || c.ID != "call_1" {
					return nil, errors.New("wrong call")
				}
				return nil, nil
			}},
		{name: "before blocks", text: "not on Sundays", state: messages.CallError,
			before: func(context.Context, Call) (*Verdict, error) {
				return &Verdict{Block: true, Reason: "not on Sundays"}, nil
			}},
		{name: "before blocks without a reason", text: blockedText, state: messages.CallError,
			before: func(context.Context, Call) (*Verdict, error) { return &Verdict{Block: true}, nil }},
		{name: "before fails", text: "before hook failed: no way", state: messages.CallError,
			before: func(context.Context, Call) (*Verdict, error) { return nil, no }},
		{name: "before panics", text: "before hook failed: internal error: boom", state: messages.CallError,
			before: func(context.Context, Call) (*Verdict, error) { panic("boom") }},
		{name: "after changes nothing", text: `{"n":1}`, state: messages.CallCompleted, runs: 1,
			after: func(context.Context, Call, messages.CallState, messages.ToolResult) (*Patch, error) {
				return nil, nil
			}},
		{name: "after replaces", text: "patched", state: messages.CallError, runs: 1,
			after: func(_ context.Context, _ Call, s messages.CallState, r messages.ToolResult) (*Patch, error) {
				if s != messages.CallCompleted || text(r) != `{"n":1}` {
					return nil, errors.New("wrong result")
				}
				return &Patch{Content: messages.TextResult("patched", false).Content, IsError: &yes, Details: json.RawMessage(`{}`)}, nil
			}},
		{name: "after fails", text: "after hook failed: no way", state: messages.CallError, runs: 1,
			after: func(context.Context, Call, messages.CallState, messages.ToolResult) (*Patch, error) {
				return nil, no
			}},
		{name: "after gives a call as content", text: "after hook failed: not a valid result", state: messages.CallError, runs: 1,
			after: func(context.Context, Call, messages.CallState, messages.ToolResult) (*Patch, error) {
				return &Patch{Content: []messages.Part{{Type: messages.PartToolCall}}}, nil
			}},
		{name: "after gives broken details", text: "after hook failed: not a valid result", state: messages.CallError, runs: 1,
			after: func(context.Context, Call, messages.CallState, messages.ToolResult) (*Patch, error) {
				return &Patch{Details: json.RawMessage(`{`)}, nil
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tool := echo()
			var runs atomic.Int32
			run := tool.Run
			tool.Run = func(ctx context.Context, c Context, args json.RawMessage) (messages.ToolResult, error) {
				runs.Add(1)
				return run(ctx, c, args)
			}
			tool.Before, tool.After = tc.before, tc.after
			s := newSession(t, tool)
			r, state := s.execute(t.Context(), "echo", `{"n":1}`)
			if text(r) != tc.text || state != tc.state || r.IsError != (tc.state == messages.CallError) || runs.Load() != tc.runs {
				t.Errorf("text %q, state %s, IsError %v, %d runs", text(r), state, r.IsError, runs.Load())
			}
		})
	}
}

func TestHandlerFailuresAreOneLine(t *testing.T) {
	for name, run := range map[string]func() (messages.ToolResult, error){
		"an error": func() (messages.ToolResult, error) { return messages.ToolResult{}, errors.New("a\n  b") },
		"a panic":  func() (messages.ToolResult, error) { panic("index out of\nrange " + strings.Repeat("z", 9000)) },
	} {
		t.Run(name, func(t *testing.T) {
			tool := echo()
			tool.Run = func(context.Context, Context, json.RawMessage) (messages.ToolResult, error) { return run() }
			s := newSession(t, tool)
			var faults int
			s.c.Fault = func(tool string, _ any, stack []byte) {
				if tool == "echo" && len(stack) > 0 {
					faults++
				}
			}
			r, state := s.execute(t.Context(), "echo", "{}")
			if state != messages.CallError || !r.IsError || strings.ContainsAny(text(r), "\n") || len(text(r)) > 300 || strings.Contains(text(r), ".go:") {
				t.Errorf("state %s, text %q", state, text(r))
			}
			if want := map[string]int{"a panic": 1}[name]; faults != want {
				t.Errorf("%d faults reported, want %d", faults, want)
			}
		})
	}
}

func TestStopWhileTheHandlerRuns(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(ctx context.Context, c Context, stop func()) (messages.ToolResult, error)
		text string
		is   messages.CallState
	}{
		{"without progress", func(ctx context.Context, _ Context, stop func()) (messages.ToolResult, error) {
			stop()
			<-ctx.Done()
			return messages.ToolResult{}, ctx.Err()
		}, stoppedText, messages.CallAborted},
		{"with progress", func(ctx context.Context, c Context, stop func()) (messages.ToolResult, error) {
			c.Progress(messages.TextResult("one", false))
			c.Progress(messages.TextResult("two", false))
			stop()
			<-ctx.Done()
			return messages.ToolResult{}, ctx.Err()
		}, "two", messages.CallAborted},
		{"a handler that does not listen", func(_ context.Context, c Context, stop func()) (messages.ToolResult, error) {
			c.Progress(messages.TextResult("busy", false))
			stop()
			time.Sleep(time.Hour)
			c.Progress(messages.TextResult("too late", false))
			return messages.TextResult("never seen", false), nil
		}, "busy", messages.CallAborted},
		{"a handler that fails because of it", func(ctx context.Context, _ Context, stop func()) (messages.ToolResult, error) {
			stop()
			<-ctx.Done()
			return messages.TextResult("cannot read f: context canceled", true), nil
		}, stoppedText, messages.CallAborted},
		{"a handler that was done just then", func(_ context.Context, _ Context, stop func()) (messages.ToolResult, error) {
			stop()
			return messages.TextResult("done", false), nil
		}, "done", messages.CallCompleted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				tool := echo()
				tool.Run = func(ctx context.Context, c Context, _ json.RawMessage) (messages.ToolResult, error) {
					return tc.run(ctx, c, cancel)
				}
				var told []messages.CallState
				tool.After = func(_ context.Context, _ Call, s messages.CallState, r messages.ToolResult) (*Patch, error) {
					told = append(told, s)
					return &Patch{Content: []messages.Part{}}, errors.New("ignored")
				}
				set, err := NewSet(tool)
				if err != nil {
					t.Fatal(err)
				}
				var sent []string
				begin := time.Now()
				r, state := Execute(ctx, set, Call{Name: "echo"}, Context{Progress: func(r messages.ToolResult) { sent = append(sent, text(r)) }})
				if took := time.Since(begin); took > StopWait {
					t.Errorf("took %v", took)
				}
				if state != tc.is || text(r) != tc.text || r.IsError != (tc.is == messages.CallAborted) {
					t.Errorf("state %s, text %q, IsError %v", state, text(r), r.IsError)
				}
				if len(told) != 1 || told[0] != tc.is {
					t.Errorf("the after hook heard %v", told)
				}
				time.Sleep(2 * time.Hour) // a handler that is late may not send any more
				if len(sent) > 0 && sent[len(sent)-1] == "too late" {
					t.Error("progress after the result")
				}
			})
		})
	}
}

func TestSlowAfterHookOfAStoppedCallGetsOneSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		tool := echo()
		tool.Run = func(ctx context.Context, _ Context, _ json.RawMessage) (messages.ToolResult, error) {
			cancel()
			return messages.ToolResult{}, ctx.Err()
		}
		tool.After = func(ctx context.Context, _ Call, _ messages.CallState, _ messages.ToolResult) (*Patch, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		set, err := NewSet(tool)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, state := Execute(ctx, set, Call{Name: "echo"}, Context{}); state != messages.CallAborted {
			t.Errorf("state %s", state)
		}
		if took := time.Since(begin); took != notifyGrace {
			t.Errorf("took %v", took)
		}
	})
}

func TestStoppedBeforeItBegan(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newSession(t)
	if _, state := s.execute(ctx, "write", `{"path":"f","content":"x"}`); state != messages.CallAborted {
		t.Errorf("state %s", state)
	}
	if _, err := os.Stat(s.mount.at("f")); err == nil {
		t.Error("the file was written")
	}
}

func TestLaterToolOfTheSameNameReplaces(t *testing.T) {
	mine := echo()
	mine.Name, mine.Description = "read", "mine"
	set, err := NewSet(append(Builtin(), mine)...)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(set.Tools()); n != 7 {
		t.Errorf("%d tools", n)
	}
	if d := set.Definitions()[0]; d.Name != "read" || d.Description != "mine" {
		t.Errorf("first definition is %+v", d)
	}
	if tool, _ := set.Tool("read"); tool.Description != "mine" {
		t.Error("the name finds the replaced tool")
	}
}

func TestSchemaThatCannotBeUsedIsNamed(t *testing.T) {
	for _, schema := range []string{``, `[]`, `{"type":"string"}`} {
		tool := echo()
		tool.Schema = json.RawMessage(schema)
		if _, err := NewSet(tool); err == nil || !strings.Contains(err.Error(), "echo") {
			t.Errorf("schema %q: error %v", schema, err)
		}
	}
}

func TestForeignSchemas(t *testing.T) {
	for _, tc := range []struct {
		name, schema string
		says         string // "" if {"a":"x"} is fine
	}{
		{"draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"type":"number"}}}`, "a: must be number, is string"},
		{"draft 7 by another name", `{"$schema":"https://json-schema.org/draft-07/schema","type":"object","properties":{"a":{"type":"number"}}}`, "a: must be number, is string"},
		{"an unknown dialect", `{"$schema":"https://example.org/mine","type":"object","properties":{"a":{"type":"number"}}}`, "a: must be number, is string"},
		{"a reference", `{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"number"}}}`, "number"},
		{"a rule without words of its own", `{"type":"object","properties":{"a":{"type":"string","pattern":"^y+$"}}}`, "pattern"},
		{"an enumeration", `{"type":"object","properties":{"a":{"enum":["y","z"]}}}`, `a: must be one of ["y","z"]`},
		{"a minimum", `{"type":"object","properties":{"a":{"type":"string","minLength":2}}}`, "a: is too short"},
		{"a pattern that cannot be checked here", `{"type":"object","properties":{"a":{"type":"string","pattern":"^(?=y)"}}}`, ""},
		{"a reference to nothing", `{"type":"object","properties":{"a":{"$ref":"#/$defs/none"}}}`, ""},
		{"no rules", `{}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tool := echo()
			tool.Schema = json.RawMessage(tc.schema)
			s := newSession(t, tool)
			r, state := s.execute(t.Context(), "echo", `{"a":"x"}`)
			if tc.says == "" && state != messages.CallCompleted || tc.says != "" && (state != messages.CallError || !strings.Contains(text(r), tc.says)) {
				t.Errorf("%s %q", state, text(r))
			}
		})
	}
}

func TestPanicOutsideOfTheHandler(t *testing.T) {
	tool := echo()
	tool.Repair = func(json.RawMessage) json.RawMessage { panic("boom") }
	s := newSession(t, tool)
	if r, state := s.execute(t.Context(), "echo", "{}"); state != messages.CallError || text(r) != "echo: internal error: boom" {
		t.Errorf("%s %q", state, text(r))
	}
}

func TestResultsHaveAHardLimitAndSomeContent(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   messages.ToolResult
		want func(string) bool
	}{
		{"nothing", messages.ToolResult{}, func(s string) bool { return s == noOutputText }},
		{"blanks", messages.TextResult(" \n", false), func(s string) bool { return s == noOutputText }},
		{"too much", messages.TextResult(strings.Repeat("é", maxResultText), false), func(s string) bool {
			return len(s) < maxResultText+100 && strings.HasSuffix(s, "[cut: 64.0KB of 128.0KB shown]")
		}},
		{"invalid UTF-8", messages.TextResult("a\xffb", false), func(s string) bool { return s == "a\uFFFDb" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tool := echo()
			tool.Run = func(context.Context, Context, json.RawMessage) (messages.ToolResult, error) { return tc.in, nil }
			s := newSession(t, tool)
			if got := text(first(s.execute(t.Context(), "echo", ""))); !tc.want(got) {
				t.Errorf("text of %d bytes: %.80q", len(got), got)
			}
		})
	}
}

func first[A, B any](a A, _ B) A { return a }

func TestBuiltinsOnByDefault(t *testing.T) {
	on := make(map[string]bool)
	for _, tool := range Builtin() {
		on[tool.Name] = tool.On
		if tool.Plugin != "codework.tool."+tool.Name {
			t.Errorf("%s comes from %s", tool.Name, tool.Plugin)
		}
		if tool.Snippet == "" || tool.Description == "" || tool.Label == "" {
			t.Errorf("%s lacks a text", tool.Name)
		}
	}
	for name, want := range map[string]bool{"read": true, "write": true, "edit": true, "bash": true, "grep": false, "find": false, "ls": false} {
		if got, ok := on[name]; !ok || got != want {
			t.Errorf("%s: on %v, there %v", name, got, ok)
		}
	}
}

func TestLabel(t *testing.T) {
	for _, tc := range []struct{ name, args, want string }{
		{"bash", `{"command":"go test\n  ./..."}`, "bash  go test ./..."},
		{"read", `{"path":"@main.go"}`, "read  main.go"},
		{"grep", `{"pattern":"TODO","path":"src"}`, "grep  TODO in src"},
		{"find", `{"pattern":"*.go"}`, "find  *.go"},
		{"ls", `{}`, "ls  ."},
		{"bash", `{"command`, "bash"},
		{"mcp_thing", `{"a":1}`, "mcp_thing"},
		{"bash", `{"command":"printf '\u001b[31mx'"}`, "bash  printf '[31mx'"},
		{"bash", `{"command":"` + strings.Repeat("é", 500) + `"}`, "bash  " + strings.Repeat("é", 193) + "…"},
	} {
		if got := Label(tc.name, tc.args); got != tc.want {
			t.Errorf("Label(%s, %.40s) = %q, want %q", tc.name, tc.args, got, tc.want)
		}
	}
}
