package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codework/integration/mockmodel"
	"codework/protocol/acp"
	"codework/protocol/acp/acptest"
)

// pixel is a picture of one pixel.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// shownCall is a call and what an editor must see of it in the end.
type shownCall struct {
	tool, args  string
	title, kind string
	failed      bool
	content     string // in the content, as JSON
	at          string // the location: a file of the project, and its line
}

// Every built-in tool is shown by its kind, its title, what it did and where;
// and a replay shows the same.
func TestEditorSeesEveryToolLiveAndLaterAlike(t *testing.T) {
	t.Parallel()
	calls := []shownCall{
		{tool: "bash", args: `{"command":"printf '\\033[31mred\\033[0m\\n'"}`, title: `printf '\033[31mred\033[0m\n'`, kind: "execute", content: "```console\\nred\\n```"},
		{tool: "bash", args: `{"command":"echo no\nexit 3"}`, title: "echo no exit 3", kind: "execute", failed: true, content: "[exit code 3]"},
		{tool: "bash", args: `{"command":"printf '\\377\\n'"}`, title: `printf '\377\n'`, kind: "execute", content: "\uFFFD"},
		{tool: "bash", args: `{"command":7}`, title: "bash", kind: "execute", failed: true, content: "invalid arguments"},
		{tool: "read", args: `{"path":"a.txt","offset":5,"limit":1}`, title: "Read a.txt", kind: "read", content: "line 5\\n", at: "a.txt:5"},
		{tool: "read", args: `{"path":"fence"}`, title: "Read fence", kind: "read", content: "`````\\n````\\n`````", at: "fence:0"},
		{tool: "read", args: `{"path":"dot.png"}`, title: "Read dot.png", kind: "read", content: `"type":"image","mimeType":"image/png","data":"` + pixel, at: "dot.png:0"},
		{tool: "read", args: `{"path":"missing"}`, title: "Read missing", kind: "read", failed: true, content: "no such file", at: "missing:0"},
		{tool: "write", args: `{"path":"new/file","content":"one\n"}`, title: "Write new/file", kind: "edit", content: `"oldText":null,"newText":"one\n"`, at: "new/file:0"},
		{tool: "write", args: `{"path":"new/file","content":"two\r\n"}`, title: "Write new/file", kind: "edit", content: `"oldText":"one\n","newText":"two\r\n"`, at: "new/file:1"},
		{tool: "write", args: `{"path":"empty","content":""}`, title: "Write empty", kind: "edit", content: `"oldText":null,"newText":""`, at: "empty:0"},
		{tool: "write", args: `{"path":"a.txt/below","content":"x"}`, title: "Write a.txt/below", kind: "edit", failed: true, content: "cannot write", at: "a.txt/below:0"},
		{tool: "edit", args: `{"path":"a.txt","edits":[{"oldText":"line 3\n","newText":"LINE 3\n"},{"oldText":"line 50\n","newText":""}]}`, title: "Edit a.txt", kind: "edit",
			content: `line 51\nline 52\nline 53\nline 54\n"}]`, at: "a.txt:3"},
		{tool: "edit", args: `{"path":"a.txt","oldText":"nowhere","newText":"x"}`, title: "Edit a.txt", kind: "edit", failed: true, content: "is not in the file", at: "a.txt:0"},
		{tool: "grep", args: `{"pattern":"LINE"}`, title: `Search "LINE"`, kind: "search", content: "a.txt"},
		{tool: "grep", args: `{"pattern":"(","path":"new"}`, title: `Search "(" in new`, kind: "search", failed: true, content: "text"},
		{tool: "find", args: `{"pattern":"*.txt"}`, title: `Find "*.txt"`, kind: "search", content: "a.txt"},
		{tool: "ls", args: `{}`, title: "List .", kind: "search", content: "dot.png"},
		{tool: "ls", args: `{"path":"missing"}`, title: "List missing", kind: "search", failed: true, content: "missing"},
		{tool: "unheard_of", args: `{}`, title: "unheard_of", kind: "other", failed: true, content: "there is no tool"},
	}
	var script mockmodel.Script
	for _, c := range calls {
		// Providers may give every call the same id.
		script = append(script, mockmodel.Answer{mockmodel.Text{Text: "now "}, mockmodel.Call{ID: "same", Name: c.tool, Args: c.args}})
	}
	script = append(script, mockmodel.Answer{mockmodel.Text{Text: "done"}})
	w := newEditorWorld(t, map[string]mockmodel.Script{"all": script})
	if err := w.change([]byte(`{"plugins":[{"plugin":"codework.tool.grep","enabled":true},{"plugin":"codework.tool.find","enabled":true},{"plugin":"codework.tool.ls","enabled":true}]}`)); err != nil {
		t.Fatal(err)
	}
	picture, err := base64.StdEncoding.DecodeString(pixel)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for n := range 60 {
		fmt.Fprintf(&lines, "line %d\n", n+1)
	}
	for name, text := range map[string]string{"a.txt": lines.String(), "fence": "````\n", "dot.png": string(picture)} {
		if err := os.WriteFile(filepath.Join(w.project(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := w.desk(t)
	id := d.session()
	if got := d.stop(d.say(id, "script=all")); got != acp.StopEndTurn {
		t.Fatal(got)
	}
	n := len(d.Lines())
	live := callsShown(d.Lines())
	if len(live) != 2*len(calls) {
		t.Fatalf("%d updates of %d calls", len(live), len(calls))
	}
	ids := map[string]bool{}
	for i, c := range calls {
		begun, ended := live[2*i], live[2*i+1]
		ids[begun.ToolCallID] = true
		if begun.Title != c.title || begun.Kind != c.kind || begun.Status != acp.StatusInProgress || string(begun.RawInput) != c.args {
			t.Errorf("%s %s begins as %+v, rawInput %s", c.tool, c.args, begun, begun.RawInput)
		}
		status := acp.StatusCompleted
		if c.failed {
			status = acp.StatusFailed
		}
		at := ""
		for _, l := range ended.Locations {
			if rel, err := filepath.Rel(w.project(), l.Path); err == nil {
				at += fmt.Sprintf("%s:%d", rel, l.Line)
			}
		}
		if ended.ToolCallID != begun.ToolCallID || ended.Status != status || !strings.Contains(string(ended.Content), c.content) || at != c.at {
			t.Errorf("%s %s ends %s at %q, content %s", c.tool, c.args, ended.Status, at, ended.Content)
		}
	}
	if len(ids) != len(calls) {
		t.Errorf("%d ids for %d calls", len(ids), len(calls))
	}
	d.call(acp.MethodLoad, map[string]any{"sessionId": id, "cwd": w.project()}, nil)
	again := callsShown(d.Lines()[n:])
	for i := range live {
		a, errA := json.Marshal(live[i])
		b, errB := json.Marshal(again[min(i, len(again)-1)])
		if errA != nil || errB != nil || len(again) != len(live) || string(a) != string(b) {
			t.Fatalf("%d and %d updates\nlive:   %s\nreplay: %s", len(live), len(again), a, b)
		}
	}
}

// callsShown are the beginnings and ends of calls.
func callsShown(lines []acptest.Line) []acptest.Update {
	var out []acptest.Update
	for _, l := range lines {
		if strings.HasPrefix(l.Kind, "tool_call") && l.Update.Status != "" {
			out = append(out, l.Update)
		}
	}
	return out
}
