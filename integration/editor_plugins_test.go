package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codework/integration/mockmodel"
	"codework/protocol/acp"
)

// whereServer is a server with one tool, which tells where it runs and with
// what.
const whereServer = `
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    a = {"jsonrpc": "2.0", "id": m["id"]}
    if m["method"] == "initialize":
        a["result"] = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "where", "version": "1"}}
    elif m["method"] == "tools/list":
        a["result"] = {"tools": [{"name": "where", "description": "Tells where.", "inputSchema": {"type": "object"}}]}
    elif m["method"] == "tools/call":
        text = "in %s with %s and key %s" % (os.getcwd(), os.environ.get("GREETING"), os.environ.get("MOCK_API_KEY"))
        a["result"] = {"content": [{"type": "text", "text": text}]}
    else:
        a["error"] = {"code": -32601, "message": "method not found"}
    print(json.dumps(a), flush=True)
`

// What an editor brings along is there for the session that it was named for,
// in its folder, and ends when the editor closes it. One that cannot start is
// told and harms nothing.
func TestServersOfAnEditorBelongToItsSession(t *testing.T) {
	t.Parallel()
	text := func(s string) mockmodel.Answer { return mockmodel.Answer{mockmodel.Text{Text: s}} }
	w := newEditorWorld(t, map[string]mockmodel.Script{
		"first":  {{mockmodel.Call{ID: "a", Name: "their-files_where", Args: `{}`}}, text("told")},
		"second": {text("nothing to tell")},
		"third":  {text("still here")},
	})
	file := filepath.Join(w.dir, "where.py")
	if err := os.WriteFile(file, []byte(whereServer), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(w.dir, "not-there")
	d := w.desk(t)
	other := d.session()
	var s acp.NewResult
	d.call(acp.MethodNew, map[string]any{"cwd": w.project(), "mcpServers": []any{
		map[string]any{"name": "Their Files", "command": "python3", "args": []string{file}, "env": []any{map[string]any{"name": "GREETING", "value": "hello"}}},
		map[string]any{"name": "no-such-server", "command": missing, "args": []string{}, "env": []any{}},
	}}, &s)
	servers := func() []running {
		var out []running
		for _, p := range processesOf(w.dir) {
			if strings.Contains(p.command, "python") && strings.HasSuffix(p.command, file) {
				out = append(out, p)
			}
		}
		return out
	}
	if all := servers(); len(all) > 0 {
		t.Errorf("it was started before a prompt: %v", all)
	}
	if got := d.stop(d.say(s.SessionID, "script=first")); got != acp.StopEndTurn {
		t.Fatal(got)
	}
	all := w.model.Requests()
	want := "in " + w.project() + " with hello and key None"
	if p, ok := all[len(all)-1].View.Result("a"); !ok || p.Text != want {
		t.Errorf("the call gave %q, want %q", p.Text, want)
	}
	warned := 0
	for _, l := range d.Lines() {
		if l.Kind == acp.AgentChunk && strings.Contains(string(l.Update.Content), missing) {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("the server that cannot start was told %d times", warned)
	}
	if got := d.stop(d.say(other, "script=second")); got != acp.StopEndTurn {
		t.Fatal(got)
	}
	all = w.model.Requests()
	for _, tool := range all[len(all)-1].View.Tools {
		if strings.HasPrefix(tool.Name, "their-files") {
			t.Errorf("another session has %s", tool.Name)
		}
	}
	if all := servers(); len(all) != 1 {
		t.Errorf("servers: %v", all)
	}
	d.call(acp.MethodClose, map[string]any{"sessionId": s.SessionID}, nil)
	for end := time.Now().Add(endLimit); len(servers()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the session was closed, and there are still %v", servers())
		}
	}
	if got := d.stop(d.say(other, "script=third")); got != acp.StopEndTurn {
		t.Error(got)
	}
}
