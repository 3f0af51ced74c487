package plugin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"codework/internal/settings"
	"codework/messages"
)

func parsed(t *testing.T, text string) Entry {
	t.Helper()
	e, err := ParseEntry(settings.Plugin{Entry: json.RawMessage(text), File: "/home/ada/.codework/settings.jsonc"})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return e
}

func TestEntriesAreRead(t *testing.T) {
	if e := parsed(t, `"./plugins/guard"`); !e.Module() || e.Path(e.Spec) != "/home/ada/.codework/plugins/guard" {
		t.Errorf("%+v", e)
	}
	e := parsed(t, `{"command":"./bin/x","args":["-v"],"env":{"A":"${B}"},"cwd":"data","id":"acme.tool.x","enabled":false,"options":{"n":null}}`)
	p := e.Program()
	if !slices.Equal(p.Argv, []string{"/home/ada/.codework/bin/x", "-v"}) || p.Dir != "/home/ada/.codework/data" || p.ID != "acme.tool.x" || p.Unnamed || *p.Enabled || string(p.Options) != `{"n":null}` || p.Env["A"] != "${B}" {
		t.Errorf("%+v", p)
	}
	if p := parsed(t, `{"command":"x","cwd":"host"}`).Program(); p.Dir != "" || p.Argv[0] != "x" {
		t.Errorf("%+v", p)
	}
	if e := parsed(t, `{"url":"https://user:pass@example.com/mcp?key=1#x","headers":{"A":"b"}}`); e.Reference() != "https://example.com/mcp" {
		t.Errorf("%s", e.Reference())
	}
	if e := parsed(t, `{"plugin":"codework.tool.grep","enabled":true}`); !e.Configures() {
		t.Errorf("%+v", e)
	}
}

func TestEntriesWithoutSenseAreRefused(t *testing.T) {
	for _, text := range []string{
		`""`, `7`, `[]`, `{}`, `{"command":""}`, `{"command":"x","url":"https://y"}`, `{"plugin":"a.b.c","package":"d"}`,
		`{"command":7}`, `{"command":"x","enabled":"yes"}`, `{"command":"x","options":[]}`, `{"command":"x","options":7}`,
		`{"command":"x","headers":{}}`, `{"url":"https://x","args":[]}`, `{"plugin":"a.b.c","env":{}}`, `{"command":"x","colour":"red"}`,
		`{"command":"x","id":"two.segments"}`, `{"command":"x","id":"codework.tool.x"}`, `{"command":"x","id":"A.b.c"}`,
		`{"url":"ftp://x"}`, `{"url":"nonsense"}`, `{"command":"x","env":{"A=B":"c"}}`,
	} {
		_, err := ParseEntry(settings.Plugin{Entry: json.RawMessage(text), File: "/f"})
		var e *Error
		if !errors.As(err, &e) || e.Slug != InvalidDefinition || e.File != "/f" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestNamesAreMadeOfWhatIsRun(t *testing.T) {
	for text, want := range map[string]string{
		`{"command":"npx","args":["-y","@modelcontextprotocol/server-filesystem@2026.1.1","/tmp"]}`: "mcp.tool.filesystem",
		`{"command":"uvx","args":["mcp-server-git"]}`:                                               "mcp.tool.git",
		`{"command":"/opt/tools/Weather_Service.exe"}`:                                              "mcp.tool.weather-service",
		`{"command":"node","args":["--no-warnings","dist/tickets.mjs"]}`:                            "mcp.tool.tickets",
		`{"command":"github-mcp-server","args":["stdio"]}`:                                          "mcp.tool.github",
		`{"command":"docker","args":["run","-i","--rm","mcp/time"]}`:                                "mcp.tool.time",
		`{"url":"https://mcp.example.com/v1"}`:                                                      "mcp.tool.example-com",
		`{"command":"日本"}`:                                                                          "mcp.tool.server",
	} {
		if p := parsed(t, text).Program(); p.ID != want || !p.Unnamed {
			t.Errorf("%s: %s", text, p.ID)
		}
	}
}

func TestToolNamesFitEveryProvider(t *testing.T) {
	never := func(string) bool { return false }
	if got := WireName("acme.tool.fs", "read.file now", never); got != "fs_read_file_now" {
		t.Error(got)
	}
	long := strings.Repeat("x", 80)
	a, b := WireName("acme.tool.fs", long+"a", never), WireName("acme.tool.fs", long+"b", never)
	if a == b || !ValidToolName(a) || !ValidToolName(b) || len(a) != maxToolName || a != WireName("acme.tool.fs", long+"a", never) {
		t.Error(a, b)
	}
	taken := WireName("acme.tool.fs", "x", func(n string) bool { return n == "fs_x" })
	if taken == "fs_x" || !strings.HasPrefix(taken, "fs_x_") {
		t.Error(taken)
	}
}

func TestPackagesStayInTheirFolder(t *testing.T) {
	dir := t.TempDir()
	pack := func(manifest string) (Program, error) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, ManifestName), []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		return Local(Entry{Spec: dir})
	}
	if err := os.WriteFile(filepath.Join(dir, "index.js"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	p, err := pack(`{"id":"acme.tool.x","kind":"prompt","optIn":true,"command":["node","index.js","--port=0"],"name":"x"}`)
	if err != nil || p.ID != "acme.tool.x" || p.Dir != dir || !p.OptIn || !p.Module || p.Argv[0] != "node" || !slices.Contains(p.Names, "x") {
		t.Errorf("%+v %v", p, err)
	}
	if p, err := pack(`{"id":"acme.tool.x","kind":"tool","command":["./index.js"]}`); err != nil || p.Argv[0] != filepath.Join(dir, "index.js") {
		t.Errorf("%+v %v", p, err)
	}
	for manifest, slug := range map[string]string{
		`{"id":"acme.tool.x","kind":"tool","command":["/bin/sh"]}`:                       EscapesRoot,
		`{"id":"acme.tool.x","kind":"tool","command":["../evil"]}`:                       EscapesRoot,
		`{"id":"acme.tool.x","kind":"tool","command":["node","a/../../b.js"]}`:           EscapesRoot,
		`{"id":"acme.tool.x","kind":"tool","command":["./link"]}`:                        EscapesRoot,
		`{"id":"acme.tool.x","kind":"tool"}`:                                             NoEntrypoint,
		`{"id":"acme.tool.x","kind":"tool","platforms":{"plan9/mips":["x"]}}`:            UnsupportedPlatform,
		`{"id":"codework.tool.x","kind":"tool","command":["x"]}`:                         InvalidDefinition,
		`{"id":"acme.tool.x","kind":"skill","command":["x"]}`:                            InvalidDefinition,
		`{"id":"acme.tool.x","kind":"tool","command":["x"],"protocol":"carrier pigeon"}`: Incompatible,
		`not json`: InvalidDefinition,
	} {
		_, err := pack(manifest)
		var e *Error
		if !errors.As(err, &e) || e.Slug != slug || !e.Required {
			t.Errorf("%s: %v", manifest, err)
		}
	}
}

func TestLocalModulesAreFound(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "p")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(spec, slug string) {
		t.Helper()
		_, err := Local(Entry{Spec: spec, File: filepath.Join(dir, "settings.json")})
		var e *Error
		if !errors.As(err, &e) || e.Slug != slug {
			t.Errorf("%s: %v", spec, err)
		}
	}
	refused("./p", NoEntrypoint) // not executable
	refused("./missing", NotFound)
	refused("file:p", UnsupportedSource)
	refused("some-package@1", NotInstalled)
	refused(".", NoEntrypoint) // a folder without manifest
	if err := os.Chmod(file, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []string{"./p", file, "file://" + file} {
		p, err := Local(Entry{Spec: spec, File: filepath.Join(dir, "settings.json")})
		if err != nil || p.Argv[0] != file || p.ID != "" || p.Dir != dir {
			t.Errorf("%s: %+v %v", spec, p, err)
		}
	}
}

func TestProgramsOfOneKeyAreTheSame(t *testing.T) {
	p := Program{Argv: []string{"a"}, Env: map[string]string{"K": "secret-value"}, Base: []string{"PATH=/bin"}}
	key := p.Key("/work")
	if strings.Contains(key, "secret") {
		t.Error(key)
	}
	for name, change := range map[string]func(*Program) string{
		"another folder":      func(p *Program) string { return p.Key("/other") },
		"another argument":    func(p *Program) string { p.Argv = []string{"a", "b"}; return p.Key("/work") },
		"another environment": func(p *Program) string { p.Env = map[string]string{"K": "x"}; return p.Key("/work") },
		"another revision":    func(p *Program) string { p.Revision = "2"; return p.Key("/work") },
		"another header":      func(p *Program) string { p.Headers = map[string]string{"A": "b"}; return p.Key("/work") },
	} {
		other := p
		if change(&other) == key {
			t.Error(name)
		}
	}
	same := p
	same.Client, same.Secrets, same.Options = nil, []string{"x"}, json.RawMessage(`{}`)
	if same.Key("/work") != key {
		t.Error("what does not change the process changes the key")
	}
}

func TestServersOfEditorsKeepTheirSecrets(t *testing.T) {
	p := OfEditor(messages.MCPServer{Name: "Their Files", Command: "/x", Args: []string{"--a"}, Env: []string{"KEY=top-secret", "bad"}})
	if p.ID != "mcp.editor.their-files" || !p.OfEditor || p.Env["KEY"] != "top-secret" || !slices.Contains(p.Secrets, "top-secret") {
		t.Errorf("%+v", p)
	}
}

// An entry that is taken names exactly one thing and gives it an id that is
// valid; nothing makes it fail but an *Error.
func FuzzEntry(f *testing.F) {
	for _, s := range []string{`"./x"`, `{"command":"npx","args":["-y","@a/b@1"]}`, `{"url":"https://x/y"}`, `{"plugin":"a.b.c","options":{}}`, `{"command":"x","env":{"A":"b"},"cwd":"/"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !json.Valid(b) {
			return
		}
		e, err := ParseEntry(settings.Plugin{Entry: b, File: "/f/settings.json"})
		var known *Error
		if err != nil {
			if !errors.As(err, &known) {
				t.Fatalf("%T", err)
			}
			return
		}
		if e.Module() || e.Configures() {
			return
		}
		if p := e.Program(); (len(p.Argv) == 0) == (p.URL == "") || !validID(p.ID) {
			t.Errorf("%s: %+v", b, p)
		}
	})
}

func validID(id string) bool {
	return strings.Count(id, ".") == 2 && !strings.HasPrefix(id, "codework.")
}

// Whatever a plugin prints: messages come out in order, noise between them is
// skipped, and no line is kept that is longer than is allowed. The id of an
// answer is found without understanding it.
func FuzzLines(f *testing.F) {
	f.Add([]byte("noise\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n"))
	f.Add([]byte("[{\"jsonrpc\":\"2.0\",\"method\":\"a\"},{\"jsonrpc\":\"2.0\",\"method\":\"b\"}]\n"))
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"method\":\"x\"}"))
	f.Add([]byte("\x00\xff{\n[\n"))
	f.Add([]byte("{\"result\":{\"id\":[\"}\\\"\"]},\"jsonrpc\":\"2.0\",\"id\":\"a\\u00e9\"}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		mark := []byte("\n{\"jsonrpc\":\"2.0\",\"method\":\"the/end\"}\n")
		r := bufio.NewReaderSize(bytes.NewReader(append(b, mark...)), 16)
		last := ""
		for {
			line, err := readLine(r)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				break
			}
			if found, ok := decodeLine(line); ok {
				last = string(bytes.TrimSpace(line))
				if len(found) == 0 {
					t.Error("nothing was found in a good line")
				}
				for _, m := range found {
					// One without either is no answer, whatever the library makes of it.
					if a, ok := m.(*jsonrpc.Response); ok && (a.Result != nil || a.Error != nil) {
						if line, err := jsonrpc.EncodeMessage(a); err != nil || answerID(line) != a.ID {
							t.Errorf("the id in %s is %v (%v)", line, answerID(line), err)
						}
					}
				}
			}
			_, _ = shortLine(line), answerID(line)
		}
		if last != strings.TrimSpace(string(mark)) {
			t.Errorf("the message behind %q was lost", b)
		}
	})
}
