package offline

import (
	"encoding/json"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"codework/messages"
)

func TestPromptsFindTheirRule(t *testing.T) {
	for _, test := range []struct {
		rule    rule
		prompts []string
	}{
		{markers, []string{
			"Summarize the open TODOs in this repo", "list all TODOs", "any FIXMEs left?", "What to-dos are there in src/?", "find TODO comments",
		}},
		{layout, []string{
			"Describe the layout of this project", "What is this repo about?", "explain this codebase", "give me an overview",
			"Summarize this project", "which languages are used here?", "list the files", "what is the structure of internal/?", "ls",
		}},
		{file, []string{
			"show README.md", "read main.go", "cat ./docs/style.md", "explain internal/store/log.go", "what does Makefile do?",
			"Summarize README", "open @cmd/main.go", "print .gitignore", "show main.go lines 3-9", "what is in docs/?",
		}},
		{checks, []string{
			"Run the checks", "run the tests", "Do the tests pass?", "does it compile?", "Please run the linter", "test", "build it", "run all the checks that the project names",
		}},
		{find, []string{
			"find uses of NewServer", "where is parseConfig defined?", "Who calls Open?", "search for \"connection refused\"", "grep ErrBusy", "look for retry in internal/", "references to Foo", "find main.go",
		}},
		{count, []string{"How many lines of code are there?", "count the files", "how many files are in src/?", "how big is this project?"}},
		{history, []string{"git status", "Show the last 5 commits", "what changed?", "are there uncommitted changes?", "which branch am I on"}},
		{command, []string{"run `go version`", "please run the command `ls -la`", "$ sleep 60", "! make"}},
		{replace, []string{`replace "a b" with "c" in docs/x.md`, "change `x` to `y` in main.go"}},
		{create, []string{`create notes.txt with "milk"`, "Write a new file docs/a.md containing `text`"}},
		{help, []string{"", "hello", "what can you do?", "Write a compiler for Lisp", "refactor the store", "fix the bug", "why?", "translate this to French", "Make it faster and/or smaller."}},
	} {
		for _, p := range test.prompts {
			if got := choose(&talk{question: p}); name(got) != name(test.rule) {
				t.Errorf("%q: %s, not %s", p, name(got), name(test.rule))
			}
		}
	}
}

func name(r rule) string {
	full := runtime.FuncForPC(reflect.ValueOf(r).Pointer()).Name()
	return full[strings.LastIndex(full, ".")+1:]
}

func TestPathsInSentences(t *testing.T) {
	for q, want := range map[string][]string{
		"show README.md, please":          {"README.md"},
		"Compare a/b.go and `c d`.":       {"a/b.go"},
		"see https://example.com/x.html":  nil,
		"e.g. this and/or that, 1.2 3.0.": nil,
		"what is in .github/workflows?":   {".github/workflows"},
		"the Makefile. And go.mod!":       {"Makefile", "go.mod"},
		"explain été.go":                  {"été.go"},
		"":                                nil,
	} {
		if got := paths(q); !slices.Equal(got, want) {
			t.Errorf("%q: %q", q, got)
		}
	}
}

func TestScopes(t *testing.T) {
	for q, want := range map[string]string{
		"TODOs in this repo":               "",
		"TODOs in src/":                    "src/",
		"TODOs in the store folder":        "store",
		"TODOs under internal/store.":      "internal/store",
		"TODOs in `cmd/x.go`?":             "cmd/x.go",
		"list of all TODOs in the project": "",
	} {
		if got := scope(q); got != want {
			t.Errorf("%q: %q", q, got)
		}
	}
}

func TestWhatIsSought(t *testing.T) {
	for q, want := range map[string]string{
		"find uses of NewServer":                     "NewServer",
		"Where is the function parseConfig defined?": "parseConfig",
		"where is parseConfig() defined":             "parseConfig",
		"who calls store.Open?":                      "store.Open",
		`search the code for "connection refused".`:  "connection refused",
		"grep -n in ErrBusy":                         "-n in ErrBusy",
		"look for retry in this repo":                "retry",
		"find all references to Foo in internal/":    "Foo",
		"Where do we set the timeout?":               "set the timeout",
		"find `a b c`":                               "a b c",
		"find":                                       "",
	} {
		if got := sought(q); got != want {
			t.Errorf("%q: %q, not %q", q, got, want)
		}
	}
}

func TestNewestPromptIsAnswered(t *testing.T) {
	s := tree(t, map[string]string{"a.go": "// TODO: one\n", "README.md": "# Hi\n"})
	if a := s.ask("list the TODOs"); !strings.Contains(a, "a.go:1 TODO: one") {
		t.Error(a)
	}
	if a := s.ask("show README.md"); !strings.Contains(a, "# Hi") || s.calls[0].Name != "read" {
		t.Error(a)
	}
	if a := s.ask("list the TODOs"); !strings.Contains(a, "a.go:1 TODO: one") || len(s.calls) != 1 {
		t.Error(a)
	}
	seen := map[string]bool{}
	for _, m := range s.history {
		for _, p := range m.Parts {
			if p.Type == messages.PartToolCall {
				if seen[p.CallID] {
					t.Errorf("call id %s twice", p.CallID)
				}
				seen[p.CallID] = true
			}
		}
	}
}

// called is an assistant message of a protocol with one bash call.
func called(protocol, text string, state messages.CallState) messages.Message {
	r := messages.TextResult(text, state != messages.CallCompleted)
	return messages.Message{ID: "a1", Role: messages.RoleAssistant, Protocol: protocol, Parts: []messages.Part{
		{Type: messages.PartToolCall, CallID: "c", Name: "bash", Arguments: "{}", Call: state, Result: &r},
	}}
}

func TestCallsOfAnotherModelAreNotTakenForOwnOnes(t *testing.T) {
	s := &session{t: t, tools: defaultTools, history: append(prompt("list the TODOs"), called("anthropic", "x.go:1:// TODO: no", messages.CallCompleted))}
	if m := s.request(); m.StopReason != messages.StopToolUse {
		t.Errorf("answered %+v", m.Parts)
	}
}

func TestStoppedCallsAreSaidToBeStopped(t *testing.T) {
	for _, state := range []messages.CallState{messages.CallAborted, messages.CallSkipped} {
		s := &session{t: t, tools: defaultTools, history: append(prompt("list the TODOs"), called("offline", "x.go:1:// TODO: half", state))}
		m := s.request()
		if m.StopReason != messages.StopStop || !strings.Contains(m.Parts[0].Text, "stopped before bash had finished") {
			t.Errorf("%s: %+v", state, m.Parts)
		}
	}
}

func TestFailedAndMissingResultsAreReported(t *testing.T) {
	failed := called("offline", "cannot start a shell", messages.CallError)
	lost := called("offline", "", messages.CallCompleted)
	lost.Parts[0].Result = nil
	for want, m := range map[string]messages.Message{"cannot start a shell": failed, "no result": lost} {
		s := &session{t: t, tools: defaultTools, history: append(prompt("list the TODOs"), m)}
		if a := s.request(); !strings.Contains(a.Parts[0].Text, want) {
			t.Errorf("no %q in %q", want, a.Parts[0].Text)
		}
	}
}

func TestToolsThatAreOffAreNotCalled(t *testing.T) {
	s := tree(t, map[string]string{"a.go": "x\n"})
	s.tools = []string{"read"}
	if a := s.ask("run `ls`"); !strings.Contains(a, "tool bash, which is switched off") || s.rounds != 0 {
		t.Error(a)
	}
	if a := s.ask("show a.go"); !strings.Contains(a, "x\n") {
		t.Error(a)
	}
	s.tools = nil
	if a := s.ask("show a.go"); !strings.Contains(a, "tool read, which is switched off") {
		t.Error(a)
	}
}

func TestSearchUsesTheGrepToolWhenThereIsNoShell(t *testing.T) {
	s := tree(t, map[string]string{"a.go": "// TODO: one\nfunc Open() {}\n"})
	s.tools = []string{"grep"}
	if a := s.ask("list the TODOs"); !strings.Contains(a, "a.go:1 TODO: one") || s.calls[0].Name != "grep" {
		t.Error(a)
	}
	if a := s.ask("where is Open defined?"); !strings.Contains(a, "a.go:2 func Open()") {
		t.Error(a)
	}
}

func TestFilesAreShownByTheShellWhenThereIsNoReadTool(t *testing.T) {
	s := tree(t, map[string]string{"it's.txt": "hello\n"})
	s.tools = []string{"bash"}
	if a := s.ask(`show "./it's.txt"`); !strings.Contains(a, "hello") || s.calls[0].Name != "bash" {
		t.Error(a)
	}
}

func TestNoPromptIsAnsweredWithMoreThanSixRounds(t *testing.T) {
	endless := func(t *talk) string {
		for {
			if t.ask(verbatim("true", 1)) == nil {
				return ""
			}
		}
	}
	k := &talk{tools: map[string]bool{"bash": true}}
	for round := range maxRounds {
		k.at, k.next = 0, nil
		if _, calls := k.run(endless); len(calls) != 1 {
			t.Fatalf("no call in round %d", round)
		}
		r := messages.TextResult("", false)
		k.rounds = append(k.rounds, []messages.Part{{Type: messages.PartToolCall, Name: "bash", Result: &r}})
	}
	k.at, k.next = 0, nil
	if text, calls := k.run(endless); calls != nil || !strings.Contains(text, "six times") {
		t.Errorf("%q, %v", text, calls)
	}
}

func TestLongPromptsAreCutAtACharacter(t *testing.T) {
	q := question(prompt(strings.Repeat("é", maxQuestion))[0])
	if len(q) > maxQuestion || strings.ToValidUTF8(q, "") != q {
		t.Errorf("%d bytes", len(q))
	}
}

// FuzzReply: whatever is asked and whatever the tools say, each request gives
// either an answer or calls of tools that are on, with arguments that are a
// JSON object, and after at most six rounds an answer.
func FuzzReply(f *testing.F) {
	for _, p := range []string{
		"list TODOs in src/", "describe this project", "show a.go", "explain README.md", "run the checks", "find uses of X",
		"how many lines?", "git log", "run `x`", "replace `a` with `b` in c", "create a with `b`", "show x lines 3-1",
	} {
		f.Add(p, "a.go:1:// TODO: x\n", false)
		f.Add(p, "@file package.json\n{\"scripts\":{\"test\":\"x\"}}\n@have npm\ntotal 3\nfile 1 README.md\n## main\n M a\n", false)
		f.Add(p, "@folder\na\nb\n", true)
	}
	f.Fuzz(func(t *testing.T, ask, result string, isError bool) {
		s := &session{t: t, tools: defaultTools, history: prompt(ask)}
		for round := 0; ; round++ {
			m := s.request()
			if m.StopReason == messages.StopStop {
				if strings.TrimSpace(m.Parts[0].Text) == "" {
					t.Fatal("an empty answer")
				}
				return
			}
			if round == maxRounds {
				t.Fatal("too many rounds")
			}
			for i := range m.Parts {
				p := &m.Parts[i]
				var object map[string]any
				if !slices.Contains(defaultTools, p.Name) || json.Unmarshal([]byte(p.Arguments), &object) != nil || object == nil {
					t.Fatalf("call %+v", p)
				}
				r := messages.TextResult(result, isError)
				p.Call, p.Result = messages.CallCompleted, &r
			}
			s.history = append(s.history, m)
		}
	})
}

// FuzzHits: what is read from a search names a path and a line of at least 0,
// and no more lines than there were.
func FuzzHits(f *testing.F) {
	f.Add("a.go:12:text\n./b c:3:x:4:y\n[notice: 1:2:3]\n:1:x\n")
	f.Fuzz(func(t *testing.T, output string) {
		found := hits(output)
		if len(found) > strings.Count(output, "\n")+1 {
			t.Fatalf("%d hits", len(found))
		}
		for _, h := range found {
			if h.path == "" || h.line < 0 || strings.Contains(h.path+h.text, "\n") {
				t.Fatalf("%+v", h)
			}
			if markAt(h.text) >= 0 && markerText(h.text) == "" {
				t.Fatalf("marker without text in %q", h.text)
			}
		}
	})
}
