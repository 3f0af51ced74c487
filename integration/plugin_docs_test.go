package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What the page on plugins tells people to type works, in that order. What it
// names of other machines is on this one here.
func TestDocumentedPluginCommandsWork(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/plugins.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## Adding, updating, removing\n")
	_, block, more := strings.Cut(section, "```sh\n")
	block, _, ended := strings.Cut(block, "```")
	if !found || !more || !ended {
		t.Fatal("the page has no such commands")
	}
	dir, err := os.MkdirTemp(built.dir, "d")
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
	})
	const server = `#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    a = {"jsonrpc": "2.0", "id": m["id"], "result": {"tools": [{"name": "t", "description": "A tool.", "inputSchema": {"type": "object"}}]}}
    if m["method"] == "initialize":
        a["result"] = {"protocolVersion": m["params"]["protocolVersion"], "serverInfo": {"name": "s", "version": "1"}, "capabilities": {"tools": {}}}
    elif m["method"] != "tools/list":
        a = {"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "method not found"}}
    print(json.dumps(a), flush=True)
`
	manifest := func(id string) string {
		return `{"id": "` + id + `", "kind": "tool", "command": ["./run"]}`
	}
	for name, text := range map[string]string{
		"p/.codework/settings.jsonc":            "{\n}\n",
		"p/plugins/guard/codework-plugin.json":  manifest("acme.tool.guard"),
		"p/plugins/guard/run":                   server,
		"p/tools/issues":                        server,
		"repository/words/codework-plugin.json": manifest("acme.tool.words"),
		"repository/words/run":                  server,
	} {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), w.environment()...)
	env = append(env, "ISSUES_TOKEN=sesame", "GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=a@example.com")
	ctx, cancel := context.WithTimeout(t.Context(), npmLimit)
	defer cancel()
	run := func(folder, line string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, "sh", "-c", line)
		cmd.Dir, cmd.Env = filepath.Join(dir, folder), env
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "not configured") {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	run("repository", "git init --quiet --initial-branch=main && git add . && git commit --quiet --message=words")
	run("p", "codework trust")
	here := strings.NewReplacer("github:acme/words#", "git+file://"+filepath.Join(dir, "repository")+"#", "npx -y @modelcontextprotocol/server-memory", "python3 tools/issues")
	lines := 0
	for line := range strings.Lines(block) {
		run("p", here.Replace(strings.TrimSpace(line)))
		lines++
	}
	if lines < 5 {
		t.Errorf("only %d commands", lines)
	}
}
