package acp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"codework/messages"
)

func TestKindsFollowTheName(t *testing.T) {
	for name, want := range map[string]string{
		"bash": "execute", "read": "read", "write": "edit", "edit": "edit", "grep": "search", "find": "search", "ls": "search",
		"Shell": "execute", "mcp_files_remove": "delete", "fs.rename": "move", "web_search": "fetch", "tavily/search": "search",
		"apply_patch": "edit", "todo": "think", "server_bash": "execute", "frobnicate": "other", "": "other",
	} {
		if got := Kind(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestTitlesAreOneLineForPeople(t *testing.T) {
	tr := &Translator{Dir: "/home/ada/project"}
	for _, tc := range []struct{ name, args, label, want string }{
		{"bash", `{"command":"go test ./...\n  && echo \u001b[31mdone"}`, "", "go test ./... && echo done"},
		{"read", `{"path":"/home/ada/project/main.go"}`, "", "Read main.go"},
		{"read", `{"path":"/etc/hosts"}`, "", "Read /etc/hosts"},
		{"read", `{"path":"/home/ada/project2/x"}`, "", "Read /home/ada/project2/x"},
		{"edit", `{"path":"@go.mod","edits":7}`, "", "Edit go.mod"},
		{"grep", `{"pattern":"TODO","path":"src"}`, "", `Search "TODO" in src`},
		{"find", `{"pattern":"*.go"}`, "", `Find "*.go"`},
		{"ls", `{}`, "", "List ."},
		{"bash", `not json`, "bash", "bash"},
		{"weather", `{}`, "Weather in Rome", "Weather in Rome"},
		{"weather", `{}`, "", "weather"},
		{"bash", `{"command":"` + strings.Repeat("x", 300) + `"}`, "", strings.Repeat("x", 199) + "…"},
	} {
		got := tr.title(messages.Part{Name: tc.name, Arguments: tc.args, Label: tc.label})
		if got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.name, tc.args, got, tc.want)
		}
	}
}

func settled(name, args string, state messages.CallState, details string, text string) messages.Part {
	r := messages.TextResult(text, state != messages.CallCompleted)
	if details != "" {
		r.Details = json.RawMessage(details)
	}
	return messages.Part{Type: messages.PartToolCall, CallID: "c", Name: name, Arguments: args, Call: state, Result: &r}
}

func last(u []Update) ToolCallUpdate { return u[len(u)-1].(ToolCallUpdate) }

func TestAChangeIsShownAsDiffsAndNothingElse(t *testing.T) {
	tr := &Translator{Dir: "/p", Local: true}
	before := "module project\n\ngo 1.25\n" + strings.Repeat("line\n", 30) + "end"
	after := strings.Replace(strings.Replace(before, "1.25", "1.26", 1), "\nend", "\nthe end\n", 1)
	patch := udiff.Unified("/p/go.mod", "/p/go.mod", before, after)
	details, err := messages.JSON(map[string]any{"path": "/p/go.mod", "patch": patch, "firstChangedLine": 3})
	if err != nil {
		t.Fatal(err)
	}
	u := last(tr.settle("m", settled("edit", `{"path":"go.mod","edits":[]}`, messages.CallCompleted, string(details), "replaced 1 block")))
	if len(u.Content) != 2 || u.RawOutput != nil || u.Locations[0] != (Location{"/p/go.mod", 3}) {
		t.Fatalf("%+v", u)
	}
	at := before
	for _, c := range u.Content {
		if c.Diff == nil || strings.Count(at, *c.Diff.OldText) != 1 {
			t.Fatalf("%+v", c)
		}
		at = strings.Replace(at, *c.Diff.OldText, c.Diff.NewText, 1)
	}
	if at != after {
		t.Errorf("the diffs give %q", at)
	}
	u = last(tr.settle("m", settled("write", `{"path":"new","content":"all\n"}`, messages.CallCompleted, `{"path":"/p/new","created":true}`, "created")))
	b, err := messages.JSON(u)
	if err != nil || !strings.Contains(string(b), `"content":[{"type":"diff","path":"/p/new","oldText":null,"newText":"all\n"}]`) {
		t.Errorf("%s %v", b, err)
	}
	u = last(tr.settle("m", settled("edit", `{"path":"x"}`, messages.CallError, "", "cannot edit x: no such file")))
	if u.Status != StatusFailed || u.Content[0].Block.Text != "cannot edit x: no such file" {
		t.Errorf("%+v", u)
	}
	big := strings.Repeat("é", maxDiffs)
	u = last(tr.settle("m", settled("write", `{"path":"x","content":"`+big+`"}`, messages.CallCompleted, `{"path":"/p/x","created":true}`, "created")))
	if len(u.Content) != 2 || len(u.Content[0].Diff.NewText) > maxDiffs || !utf8.ValidString(u.Content[0].Diff.NewText) || u.Content[1].Block == nil {
		t.Errorf("%d blocks", len(u.Content))
	}
}

// A patch of any two texts, cut into hunks, turns the one into the other.
func FuzzHunks(f *testing.F) {
	f.Add("a\nb\nc\n", "a\nx\nc")
	f.Add("", "new")
	f.Add("-a\n+b\n@@ c\n\\ d\n", "+a\n-b\n")
	f.Fuzz(func(t *testing.T, before, after string) {
		if before == after || strings.ContainsRune(before+after, '\r') {
			return
		}
		patch := udiff.Unified("f", "f", before, after)
		var at strings.Builder
		rest := before
		for _, h := range hunks("/f", patch) {
			i := strings.Index(rest, *h.OldText)
			if i < 0 {
				t.Fatalf("%q is not in what is left of the file: %q\n%s", *h.OldText, rest, patch)
			}
			if strings.LastIndex(rest, *h.OldText) != i {
				return // an editor is told no lines either
			}
			at.WriteString(rest[:i] + h.NewText)
			rest = rest[i+len(*h.OldText):]
		}
		if got := at.String() + rest; got != after {
			t.Errorf("got %q, want %q\n%s", got, after, patch)
		}
	})
}

// What is shown is valid UTF-8 without control characters, and text without
// any is left alone.
func FuzzPlainText(f *testing.F) {
	for _, s := range []string{"plain\n\ttext", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07x", "\x1b]8;;http://h\x1b\\link\x1b]8;;\x1b\\", "\x9b1m", "\xff\xfe", "50%\r100%", "\x1b", "\x1b[", "\x1bé", "\x1b\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := plainText(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q became %q", s, got)
		}
		if again := plainText(got); again != got {
			t.Errorf("%q changes again: %q", got, again)
		}
		if strings.Count(got, "\n") < strings.Count(s, "\n") {
			t.Errorf("%q lost lines: %q", s, got)
		}
	})
}

func TestOutputIsFencedWhateverIsInIt(t *testing.T) {
	tr := &Translator{Dir: "/p"}
	u := last(tr.settle("m", settled("bash", `{"command":"x"}`, messages.CallError, `{"output":"a\n`+"````"+`\n","exitCode":3}`, "a\n````\n\n[exit code 3]")))
	if text := u.Content[0].Block.Text; !strings.HasPrefix(text, "`````console\n") || !strings.HasSuffix(text, "\n`````") {
		t.Errorf("%q", text)
	}
	if string(u.RawOutput) != `{"exitCode":3,"output":"a\n`+"````"+`\n"}` {
		t.Errorf("%s", u.RawOutput)
	}
	if u.Locations != nil {
		t.Errorf("%+v", u.Locations) // no local paths, and no file
	}
	u = last(tr.settle("m", settled("other", `{}`, messages.CallCompleted, "", "**bold**")))
	if u.Content[0].Block.Text != "**bold**" {
		t.Errorf("%+v", u.Content[0])
	}
}

func event(kind, data string) (messages.Event, messages.EventData) {
	e := messages.Event{Type: kind, Data: json.RawMessage(data)}
	d, err := e.Decode()
	if err != nil {
		panic(err)
	}
	return e, d
}

func TestProgressIsShownAtMostFourTimesASecondAndTheLastInAnyCase(t *testing.T) {
	tr := &Translator{Dir: "/p"}
	now := time.Unix(1000, 0)
	e, d := event(messages.EventToolStarted, `{"messageId":"m","callID":"c","name":"bash","arguments":{"command":"x"}}`)
	if n := len(tr.Event(e, d, now)); n != 1 {
		t.Fatal(n)
	}
	shown, text := 0, ""
	see := func(us []Update) {
		for _, u := range us {
			shown++
			text = u.(ToolCallUpdate).Content[0].Block.Text
		}
	}
	for i := range 100 {
		now = now.Add(10 * time.Millisecond)
		e, d = event(messages.EventToolProgress, fmt.Sprintf(`{"messageId":"m","callID":"c","partial":{"content":[{"type":"text","text":"line %d"}]}}`, i))
		see(tr.Event(e, d, now))
	}
	if shown > 5 {
		t.Errorf("%d times in a second", shown)
	}
	wait := tr.Due(now)
	if wait <= 0 || wait > progressGap {
		t.Errorf("due in %s", wait)
	}
	see(tr.Held(now.Add(wait)))
	if !strings.Contains(text, "line 99") || tr.Due(now.Add(wait)) != 0 {
		t.Errorf("the last is %q", text)
	}
	out := tr.Close()
	if len(out) != 1 || last(out).Status != StatusFailed || len(tr.Close()) != 0 {
		t.Errorf("%+v", out)
	}
}

func TestLinesThatAreSentStayBelowTheLimit(t *testing.T) {
	tr := &Translator{Dir: "/p", Local: true, Blob: func(string) ([]byte, error) { return make([]byte, 20<<20), nil }}
	nasty := strings.Repeat("\x01\"\\", 1<<20)
	details, err := messages.JSON(map[string]any{"output": nasty, "list": []string{nasty, nasty}})
	if err != nil {
		t.Fatal(err)
	}
	args, err := messages.JSON(map[string]any{"command": nasty})
	if err != nil {
		t.Fatal(err)
	}
	p := settled("bash", string(args), messages.CallCompleted, string(details), nasty)
	for range 5 {
		p.Result.Content = append(p.Result.Content, messages.Part{Type: messages.PartImage, MediaType: "image/png", Blob: "b", Bytes: 1 << 20})
	}
	all := tr.settle("m", p)
	all = append(all, tr.Replay(messages.Message{ID: "u", Role: messages.RoleUser, Parts: []messages.Part{
		{Type: messages.PartText, Text: nasty}, {Type: messages.PartImage, MediaType: "image/png", Blob: "b", Bytes: 20 << 20}}})...)
	path, err := messages.JSON(map[string]any{"path": nasty})
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, tr.settle("m2", settled("read", string(path), messages.CallError, "", "no such file"))...)
	joined := 0
	for _, u := range all {
		if n := len(Notify("ses_1", u)); n >= MaxOut {
			t.Errorf("a line of %d bytes: %T", n, u)
		}
		if c, ok := u.(Chunk); ok && c.SessionUpdate == UserChunk && c.MessageID == "u" && c.Content.Text[0] != '[' {
			joined += len(c.Content.Text)
		}
	}
	if joined != len(nasty) {
		t.Errorf("%d bytes of %d came", joined, len(nasty))
	}
}

func TestADifferentModelKeepsTheLevelWhereItHasIt(t *testing.T) {
	c := messages.Choices{Model: messages.ModelRef{Provider: "a", ID: "x"}, Level: "high", Models: []messages.Choice{
		{Ref: messages.ModelRef{Provider: "a", ID: "x"}, Levels: []messages.ThinkingLevel{"off", "high"}, Default: "high"},
		{Ref: messages.ModelRef{Provider: "a", ID: "y/z"}, Levels: []messages.ThinkingLevel{"low", "high"}, Default: "low"},
		{Ref: messages.ModelRef{Provider: "b", ID: "q"}, Levels: []messages.ThinkingLevel{"off", "low"}, Default: "low"},
	}}
	for value, want := range map[string]messages.ThinkingLevel{"a/y/z": "high", "b/q": "low", "a/x": ""} {
		r, err := Choose(c, OptionModel, value)
		if err != nil || r.Model.String() != value || r.ThinkingLevel != want {
			t.Errorf("%s: %+v %v", value, r, err)
		}
	}
	gone := messages.Choices{Model: messages.ModelRef{Provider: "old", ID: "gone"}, Models: c.Models}
	o := Options(gone)
	if len(o) != 1 || o[0].CurrentValue != "old/gone" || o[0].Options[0].Value != "old/gone" {
		t.Errorf("%+v", o)
	}
}
