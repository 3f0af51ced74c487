package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// toolCall is a call that the model makes, and what the result must hold.
type toolCall struct {
	tool string
	args map[string]any
	want string
}

// calls has the model make all calls in one message, and checks what it is
// told of each.
func (w *world) calls(t *testing.T, plugins []any, calls []toolCall) {
	t.Helper()
	var steps []any
	for i, c := range calls {
		steps = append(steps, map[string]any{"call": c.tool, "id": fmt.Sprint("call", i), "args": c.args})
	}
	script, err := json.Marshal([]any{steps, "done"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.serve(script); err != nil {
		t.Fatal(err)
	}
	over, err := json.Marshal(map[string]any{"plugins": plugins})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.change(over); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(w.dir, "project")
	if err := os.MkdirAll(filepath.Join(work, ".codework"), 0o755); err != nil {
		t.Fatal(err)
	}
	if o := w.run(t, work, "do it"); o.code != 0 || o.out != "done\n" || strings.Contains(o.err, "warning:") {
		t.Fatalf("%d %q %q", o.code, o.out, o.err)
	}
	all := w.model.Requests()
	for i, c := range calls {
		if p, ok := all[len(all)-1].View.Result(fmt.Sprint("call", i)); !ok || !strings.Contains(p.Text, c.want) {
			t.Errorf("%s(%v): %q, want %q", c.tool, c.args, p.Text, c.want)
		}
	}
}

// The examples of the documentation run as they stand, together: each brings a
// tool and a hook before bash.
func TestExamplePluginsRun(t *testing.T) {
	for _, name := range []string{"node", "python3"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%s is needed for the examples: %v", name, err)
		}
	}
	examples, err := filepath.Abs("../docs/examples/plugins")
	if err != nil {
		t.Fatal(err)
	}
	words := filepath.Join(t.TempDir(), "words")
	if out, err := exec.Command("go", "build", "-o", words, "codework/docs/examples/plugins/go").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eachProtocol(t, func(t *testing.T, w *world) {
		text := func(s string) map[string]any { return map[string]any{"text": s} }
		w.calls(t, []any{words, filepath.Join(examples, "node"), filepath.Join(examples, "python", "plugin.py")}, []toolCall{
			{"count_words", text("one two"), "2"},
			{"count_words_node", text("one two three"), "3"},
			{"count_words_python", text("one two three four"), "4"},
			{"bash", map[string]any{"command": "git push --force"}, "force-pushing is not allowed here"},
			{"bash", map[string]any{"command": "echo fine"}, "fine"},
		})
	})
}

// npmLimit is for installing a few packages over a slow network.
const npmLimit = 5 * time.Minute

// Servers that people use work unchanged: as programs of their own, started
// with what an entry says of them.
func TestPublishedServersWork(t *testing.T) {
	t.Parallel()
	npm := npm(t)
	servers := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json"} {
		b, err := os.ReadFile(filepath.Join("testdata", "npm", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(servers, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), npmLimit)
	defer cancel()
	install := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
	install.Dir = servers
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	dir, err := os.MkdirTemp(built.dir, "n")
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(dir, "anthropic")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.end(t.Failed()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of the home process:\n%s", w.log())
		}
	})
	bin := func(name string) string { return filepath.Join(servers, "node_modules", ".bin", name) }
	files := filepath.Join(dir, "project")
	w.calls(t, []any{
		map[string]any{"command": bin("mcp-server-everything")},
		map[string]any{"command": bin("mcp-server-filesystem"), "args": []string{dir}},
		map[string]any{"command": bin("mcp-server-memory"), "env": map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.jsonl")}},
	}, []toolCall{
		{"everything_echo", map[string]any{"message": "hello there"}, "hello there"},
		{"everything_get-sum", map[string]any{"a": 2, "b": 40}, "42"},
		{"everything_get-structured-content", map[string]any{"location": "Chicago"}, "temperature"},
		{"everything_trigger-long-running-operation", map[string]any{"duration": 1, "steps": 4}, "completed"},
		{"everything_get-tiny-image", nil, "image"},
		{"filesystem_write_file", map[string]any{"path": filepath.Join(files, "a.txt"), "content": "written by a server"}, "Successfully"},
		{"filesystem_read_text_file", map[string]any{"path": filepath.Join(files, "a.txt")}, "written by a server"},
		{"filesystem_read_text_file", map[string]any{"path": "/etc/passwd"}, "Access denied"},
		{"memory_create_entities", map[string]any{"entities": []any{map[string]any{"name": "Ada", "entityType": "person", "observations": []string{"counts"}}}}, "Ada"},
		{"memory_search_nodes", map[string]any{"query": "Ada"}, "counts"},
	})
	all := w.model.Requests()
	first := all[0].View
	for _, want := range []string{"read", "bash", "everything_echo", "filesystem_read_text_file", "memory_read_graph"} {
		found := false
		for _, tool := range first.Tools {
			found = found || tool.Name == want
		}
		if !found {
			t.Errorf("the first request has no tool %s", want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(files, "a.txt")); err != nil || string(b) != "written by a server" {
		t.Errorf("%v %q", err, b)
	}
}
