package integration

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"codework/protocol/acp"
)

// deafServer is a server of an editor that does not mind the end of its input.
const deafServer = `
import json, sys, time
for line in sys.stdin:
    m = json.loads(line)
    r = {}
    if m.get("method") == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "deaf", "version": "1"}}
    elif m.get("method") == "tools/list":
        r = {"tools": []}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
time.sleep(600)
`

// The servers that an editor brings along have ended when the process has, also
// those that do not want to.
func TestEditorsServersEndBeforeItsProcess(t *testing.T) {
	t.Parallel()
	w := newEditorWorld(t, nil)
	script := filepath.Join(w.dir, "deaf.py")
	if err := os.WriteFile(script, []byte(deafServer), 0o600); err != nil {
		t.Fatal(err)
	}
	servers := func() (n int) {
		for _, p := range processesOf(w.dir) {
			if filepath.Base(p.command) == "deaf.py" {
				n++
			}
		}
		return n
	}
	for name, end := range map[string]func(*desk){
		"input ends": func(d *desk) { d.in.Close() },
		"TERM":       func(d *desk) { _ = d.cmd.Process.Signal(syscall.SIGTERM) },
	} {
		d := w.desk(t)
		d.call(acp.MethodInitialize, map[string]any{"protocolVersion": 1}, nil)
		var s acp.NewResult
		d.call(acp.MethodNew, map[string]any{"cwd": w.project(), "mcpServers": []any{
			map[string]any{"name": "deaf", "command": "python3", "args": []any{script}, "env": []any{}}}}, &s)
		if got := d.stop(d.say(s.SessionID, "mock=text:1")); got != acp.StopEndTurn {
			t.Fatal(got)
		}
		if servers() != 1 {
			t.Fatalf("%s: %d servers run", name, servers())
		}
		end(d)
		if took := d.exit(0); took > 3*time.Second {
			t.Errorf("%s: it took %s", name, took)
		}
		if n := servers(); n != 0 {
			t.Errorf("%s: %d servers are left", name, n)
		}
	}
}
