package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"codework/integration/mockmodel"
)

// credentialsIn is the variable for a file of stored logins of the test's own.
func credentialsIn(w *world) []string {
	return []string{"CODEWORK_CREDENTIALS=" + filepath.Join(w.dir, "logins", "auth.json")}
}

// nowhere is a model that does not exist.
var nowhere = o{"model": o{"provider": "missing-provider", "id": "missing-model"}}

func missing(id string) o { return o{"_tag": "SessionNotFoundError", "sessionId": id} }

const noID = "ses_missing"

func TestServerAnswersEveryMethod(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	s := w.serveHere(t, credentialsIn(w))
	c := s.dial(t)
	work := filepath.Join(w.dir, "work")

	t.Run("sessions are made, shown and changed", func(t *testing.T) {
		c := s.dial(t)
		id := c.create(o{})
		info := c.call("session.info", o{"sessionId": id})
		if !idPattern.MatchString(id) || at(info, "title") != "Session" || at(info, "directory") != work {
			t.Errorf("a session of nothing is %s", info)
		}
		for _, key := range []string{"hostDir", "sandbox", "parentId"} {
			if at(info, key) != "" {
				t.Errorf("the server filled in %s: %s", key, info)
			}
		}
		full := c.call("session.create", o{"title": "é漢🙂", "directory": "sub/..", "hostDir": "/anchor", "sandbox": o{"driver": "local"},
			"runtime": o{"model": o{"provider": "mock", "id": "mock-other"}, "thinkingLevel": "high"}, "surplus": o{"a": 1}, "Title": "no"})
		if at(full, "title") != "é漢🙂" || at(full, "hostDir") != "/anchor" || at(full, "directory") != work || at(full, "sandbox") != "" ||
			at(full, "model", "id") != "mock-other" || at(full, "thinkingLevel") != "high" {
			t.Errorf("a session of everything is %s", full)
		}
		second := at(full, "id")
		if again := c.call("session.create", o{"id": second, "title": "another", "directory": "missing"}); !bytes.Equal(again, full) {
			t.Errorf("made again under its id, it is %s", again)
		}
		if again := c.call("session.info", o{"sessionId": second}); !bytes.Equal(again, full) {
			t.Errorf("session.info says %s, session.create said %s", again, full)
		}
		list := items(t, c.call("session.list", o{}))
		var order []string
		for _, i := range list {
			order = append(order, at(i, "id"))
		}
		if slices.Index(order, second) > slices.Index(order, id) || !slices.Contains(order, second) {
			t.Errorf("the list is not newest first: %v", order)
		}
		if got := items(t, c.call("session.list", o{"limit": 1})); len(got) != 1 || at(got[0], "id") != second {
			t.Errorf("a list of one: %s", got)
		}
		if got := items(t, c.call("session.list", o{"before": second})); len(got) == 0 || at(got[0], "id") != id {
			t.Errorf("those before %s: %s", second, got)
		}
		if got := items(t, c.call("session.list", o{"hostDir": "/anchor"})); len(got) != 1 || at(got[0], "id") != second {
			t.Errorf("those of a folder: %s", got)
		}
		if got := items(t, c.call("session.list", o{"search": "漢"})); len(got) != 1 {
			t.Errorf("those with a word: %s", got)
		}
		// Only the keys that are given change.
		got := c.call("session.configure", o{"sessionId": second, "runtime": o{}})
		if at(got, "model", "id") != "mock-other" || at(got, "thinkingLevel") != "high" {
			t.Errorf("nothing to change, and yet: %s", got)
		}
		got = c.call("session.configure", o{"sessionId": second, "runtime": o{"thinkingLevel": "low"}})
		if at(got, "model", "id") != "mock-other" || at(got, "thinkingLevel") != "low" {
			t.Errorf("the level alone was to change: %s", got)
		}
		got = c.call("session.link", o{"sessionId": id, "hostDir": "/elsewhere"})
		if at(got, "hostDir") != "/elsewhere" {
			t.Errorf("linked: %s", got)
		}
		c.dies("session.link", o{"sessionId": id, "hostDir": "some/project"}, "hostDir")
		c.dies("session.link", o{"sessionId": id, "hostDir": ""}, "hostDir")
		c.dies("session.create", o{"hostDir": ""}, "hostDir")
		if got := c.call("session.info", o{"sessionId": id}); at(got, "hostDir") != "/elsewhere" {
			t.Errorf("a refused link changed it: %s", got)
		}
		if got = c.call("session.link", o{"sessionId": id}); at(got, "hostDir") != "" {
			t.Errorf("unlinked: %s", got)
		}
		if got = c.call("session.rename", o{"sessionId": id, "title": "new name"}); at(got, "title") != "new name" {
			t.Errorf("renamed: %s", got)
		}
		for _, method := range []string{"session.info", "session.wait", "session.link", "session.history", "session.queue",
			"session.fork", "session.delete", "session.check", "session.relink"} {
			c.fails(method, o{"sessionId": noID}, missing(noID))
		}
		c.fails("session.configure", o{"sessionId": noID, "runtime": o{}}, missing(noID))
		c.fails("session.rename", o{"sessionId": noID, "title": "x"}, missing(noID))
		c.fails("session.prompt", o{"sessionId": noID, "text": "x"}, missing(noID))
		c.fails("session.blob", o{"sessionId": noID, "blob": "x"}, missing(noID))
		c.fails("session.blob", o{"sessionId": id, "blob": "x"}, o{"_tag": "BlobNotFoundError", "blob": "x"})
		if got := c.call("session.interrupt", o{"sessionId": noID}); string(got) != `{"interrupted":false}` {
			t.Errorf("interrupt of nothing: %s", got)
		}
		if got := c.call("session.interrupt", o{"sessionId": id}); string(got) != `{"interrupted":false}` {
			t.Errorf("interrupt of an idle one: %s", got)
		}
		for _, session := range []string{noID, id} {
			if got := c.call("session.message", o{"sessionId": session, "messageId": "x"}); string(got) != `{"found":false}` {
				t.Errorf("a message of nothing: %s", got)
			}
		}
		c.idle(id)
	})

	t.Run("places", func(t *testing.T) {
		c := s.dial(t)
		if err := os.WriteFile(filepath.Join(work, "file"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(work, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		before := len(items(t, c.call("session.list", o{})))
		noDir := o{"_tag": "Location.DirectoryNotFoundError", "directory": filepath.Join(work, "missing"), "sandboxInstanceId": "local"}
		noFolder := o{"_tag": "Location.NotDirectoryError", "directory": filepath.Join(work, "file"), "sandboxInstanceId": "local"}
		noBox := o{"_tag": "SandboxNotFoundError", "id": "sbx_missing"}
		c.fails("session.create", o{"directory": "missing"}, noDir)
		c.fails("session.create", o{"directory": "file"}, noFolder)
		c.fails("session.create", o{"sandbox": o{"id": "sbx_missing"}}, noBox)
		for _, ref := range []o{{}, {"id": "local", "driver": "local"}, {"id": "local", "providerResourceId": "x"}, {"providerResourceId": "x"}, {"id": ""}, {"driver": ""}} {
			c.dies("session.create", o{"sandbox": ref}, "sandbox")
		}
		if n := len(items(t, c.call("session.list", o{}))); n != before {
			t.Errorf("refused sessions were made: %d instead of %d", n, before)
		}
		id := c.create(o{})
		if got := c.call("session.relink", o{"sessionId": id, "directory": "sub"}); at(got, "directory") != filepath.Join(work, "sub") {
			t.Errorf("moved: %s", got)
		}
		was := c.call("session.info", o{"sessionId": id})
		c.fails("session.relink", o{"sessionId": id, "directory": filepath.Join(work, "missing")}, noDir)
		c.fails("session.relink", o{"sessionId": id, "directory": filepath.Join(work, "file")}, noFolder)
		c.fails("session.relink", o{"sessionId": id, "sandbox": o{"id": "sbx_missing"}}, noBox)
		c.fails("session.relink", o{"sessionId": id, "sandbox": o{"id": "sbx_missing"}, "directory": work}, noBox)
		if got := c.call("session.info", o{"sessionId": id}); !bytes.Equal(got, was) {
			t.Errorf("a relink that failed changed the session: %s instead of %s", got, was)
		}
		if got := c.call("session.create", o{"sandbox": o{"id": "local"}, "directory": "/"}); at(got, "sandbox") != "" || at(got, "directory") != "/" {
			t.Errorf("a session on the host by its id: %s", got)
		}
	})

	t.Run("sandboxes", func(t *testing.T) {
		c := s.dial(t)
		list := items(t, c.call("sandbox.list", o{}))
		if len(list) == 0 || at(list[0], "id") != "local" || at(list[0], "driver") != "local" || at(list[0], "kind") != "local" ||
			at(list[0], "ownership") != "external" || at(list[0], "providerResourceId") != "null" {
			t.Errorf("the list of sandboxes does not begin with the host: %s", list)
		}
		var names []string
		for _, d := range items(t, c.call("sandbox.drivers", o{})) {
			names = append(names, at(d, "name"))
			if at(d, "name") == "local" || at(d, "kind") != "local" && at(d, "kind") != "virtual" && at(d, "kind") != "remote" {
				t.Errorf("a driver: %s", d)
			}
		}
		if !slices.IsSorted(names) {
			t.Errorf("the drivers are not sorted: %v", names)
		}
		unknown := func(method string, payload o) {
			a := c.ask(method, payload)
			if a.kind != "Fail" || at(a.body, "_tag") != "SandboxDriverNotRegisteredError" || at(a.body, "driver") != "teleport" {
				t.Errorf("%s of an unknown driver: %s", method, a)
			}
		}
		unknown("sandbox.create", o{"driver": "teleport"})
		unknown("sandbox.register", o{"driver": "teleport", "providerResourceId": "x"})
		unknown("session.create", o{"sandbox": o{"driver": "teleport"}})
		for method, payload := range map[string]o{
			"sandbox.register": {"driver": "local", "providerResourceId": "x"},
			"session.create":   {"sandbox": o{"driver": "local", "providerResourceId": "x"}},
		} {
			a := c.ask(method, payload)
			if a.kind != "Fail" || at(a.body, "_tag") != "SandboxDriverRegistrationError" || at(a.body, "driver") != "local" || at(a.body, "reason") == "" {
				t.Errorf("%s of a resource of the host: %s", method, a)
			}
		}
		for _, method := range []string{"sandbox.stop", "sandbox.destroy"} {
			c.fails(method, o{"sandboxId": "sbx_missing"}, o{"_tag": "SandboxNotFoundError", "id": "sbx_missing"})
			operation := strings.TrimPrefix(method, "sandbox.")
			c.fails(method, o{"sandboxId": "local"}, o{"_tag": "SandboxUnsupportedError", "id": "local", "driver": "local", "operation": operation})
		}
		c.fails("sandbox.exec", o{"sandboxId": "sbx_missing", "argv": []string{"true"}}, o{"_tag": "SandboxNotFoundError", "id": "sbx_missing"})
	})

	t.Run("commands in a sandbox", func(t *testing.T) { execInSandbox(t, s) })
	t.Run("logins", func(t *testing.T) { loginsOverWire(t, s) })

	t.Run("models", func(t *testing.T) {
		c := s.dial(t)
		var found bool
		for _, m := range items(t, c.call("models.list", o{"provider": "mock"})) {
			if at(m, "provider") != "mock" {
				t.Errorf("a model of another provider: %s", m)
			}
			found = found || at(m, "id") == "mock-model" && at(m, "available") == "true" && at(m, "contextWindow") == "200000" && at(m, "cost", "output") == "15"
		}
		if !found {
			t.Error("the model of the settings is not among the models")
		}
		if got := c.call("models.list", o{"provider": "nobody"}); string(got) != "[]" {
			t.Errorf("models of nobody: %s", got)
		}
		if len(items(t, c.call("models.list", o{}))) < 2 {
			t.Error("there are hardly any models")
		}
	})

	t.Run("the server", func(t *testing.T) {
		c := s.dial(t)
		info := c.call("server.info", o{})
		if at(info, "name") != "codework" || at(info, "protocol") != "1" || at(info, "pid") != fmt.Sprint(s.proc.cmd.Process.Pid) ||
			at(info, "home") != w.home || at(info, "sessions", "total") == "" || at(info, "sessions", "busy") != "0" {
			t.Errorf("server.info says %s", info)
		}
		if got := c.call("plugin.reload", o{}); at(got, "failure") != "" {
			t.Errorf("plugin.reload says %s", got)
		}
		// Only the socket of this machine knows these, and others are unknown
		// alike.
		hello := o{"version": "1", "build": "b", "protocol": 1, "host": "h", "cwd": "/", "umask": 18, "env": o{}}
		for method, payload := range map[string]o{"server.hello": hello, "server.handover": {}, "nobody.has.this": {}, "Session.list": {}, "": {}} {
			a := c.ask(method, payload)
			if a.kind != "Die" || method != "" && at(a.body) != "Unknown request tag: "+method {
				t.Errorf("%q: %s", method, a)
			}
		}
	})

	// All the time a connection was open that asked for nothing.
	c.pong()
}

// outputs joins what a command printed, and returns the last element.
func outputs(t *testing.T, s *stream) (stdout, stderr string, last json.RawMessage) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, raw := range s.got {
		data, err := base64.StdEncoding.DecodeString(at(raw, "data"))
		if err != nil {
			t.Errorf("output %s: %v", raw, err)
		}
		switch at(raw, "stream") {
		case "stdout":
			stdout += string(data)
		case "stderr":
			stderr += string(data)
		default:
			if i != len(s.got)-1 {
				t.Errorf("there is more behind %s", raw)
			}
			last = raw
		}
		for _, what := range nulls(raw, "output") {
			t.Error(what)
		}
	}
	return stdout, stderr, last
}

func execInSandbox(t *testing.T, s *server) {
	if err := os.MkdirAll(filepath.Join(s.dir, "work", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := s.dial(t)
	run := func(payload o) (string, string, json.RawMessage, answer) {
		payload["sandboxId"] = "local"
		st := c.begin("sandbox.exec", payload).stream
		a := st.wait(t)
		out, errs, last := outputs(t, st)
		return out, errs, last, a
	}
	out, errs, last, a := run(o{"argv": []string{"sh", "-c", `printf 'a b\377'; echo "$X$CODEWORK_SANDBOX" >&2; exit 3`, "-x", "$(id)\n'"}, "env": o{"X": "it's "}})
	if a.kind != "Success" || out != "a b\xff" || errs != "it's local\n" || string(last) != `{"exitCode":3}` {
		t.Errorf("out %q, err %q, last %s, %s", out, errs, last, a)
	}
	if out, _, last, _ = run(o{"argv": []string{"pwd"}, "cwd": "/"}); out != "/\n" || at(last, "exitCode") != "0" {
		t.Errorf("pwd in /: %q, %s", out, last)
	}
	if out, _, _, _ = run(o{"argv": []string{"pwd"}}); out != filepath.Join(s.dir, "work")+"\n" {
		t.Errorf("pwd in no folder: %q", out)
	}
	if _, _, last, _ = run(o{"argv": []string{"sleep", "60"}, "timeoutMs": 200}); at(last, "timedOut") != "true" {
		t.Errorf("a limit that passed: %s", last)
	}
	if _, _, last, _ = run(o{"argv": []string{"sh", "-c", "kill -9 $$"}}); at(last, "exitCode") != "137" || at(last, "signal") == "" {
		t.Errorf("ended by a signal: %s", last)
	}
	if _, _, last, a = run(o{"argv": []string{"no-such-program"}}); at(last, "exitCode") != "127" {
		t.Errorf("no program: %s, %s", last, a)
	}
	// A folder that is not there is no outcome of a command.
	if out, _, _, _ = run(o{"argv": []string{"pwd"}, "cwd": "sub"}); out != filepath.Join(s.dir, "work", "sub")+"\n" {
		t.Errorf("pwd in a folder below: %q", out)
	}
	if _, _, last, a = run(o{"argv": []string{"true"}, "cwd": filepath.Join(s.dir, "missing")}); last != nil || a.kind != "Fail" || !strings.Contains(a.String(), "missing") {
		t.Errorf("no folder: %s, %s", last, a)
	}
	c.dies("sandbox.exec", o{"sandboxId": "local", "argv": []string{}}, "argv")
	c.dies("sandbox.exec", o{"sandboxId": "local", "argv": "ls"}, "argv")

	// A reader that does not acknowledge holds up its command, not the server.
	slow := c.begin("sandbox.exec", o{"sandboxId": "local", "argv": []string{"sh", "-c", "yes " + s.dir + " | head -c 2000000"}}).stream
	slow.stall(true)
	c.call("session.list", o{})
	slow.stall(false)
	if a := slow.wait(t); a.kind != "Success" {
		t.Errorf("much output: %s", a)
	}
	if out, _, last := outputs(t, slow); len(out) != 2000000 || at(last, "exitCode") != "0" {
		t.Errorf("%d bytes came, and %s", len(out), last)
	}
	// Nobody wants to know any more: the command ends.
	mark := "600." + fmt.Sprint(os.Getpid())
	gone := c.begin("sandbox.exec", o{"sandboxId": "local", "argv": []string{"sh", "-c", "echo ready; sleep " + mark}}).stream
	if _, _, err := gone.value(callLimit); err != nil {
		t.Fatal(err)
	}
	gone.interrupt()
	if a := gone.wait(t); a.kind != "Interrupt" || string(a.body) != "null" {
		t.Errorf("interrupted: %s", a)
	}
	c2 := s.dial(t)
	lost := c2.begin("sandbox.exec", o{"sandboxId": "local", "argv": []string{"sh", "-c", "echo ready; sleep " + mark}}).stream
	if _, _, err := lost.value(callLimit); err != nil {
		t.Fatal(err)
	}
	c2.vanish()
	if err := until(endLimit, func() string {
		for _, p := range processesOf(s.dir) {
			if strings.Contains(p.command, mark) {
				return "there still runs " + p.command
			}
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
}

func loginsOverWire(t *testing.T, s *server) {
	c := s.dial(t)
	never := time.Now().Add(24 * time.Hour).UnixMilli()
	codex := o{"provider": "openai-codex", "access": "access-secret-1", "refresh": "refresh-secret-1", "expires": never, "accountId": "acc"}
	copilot := o{"provider": "github-copilot", "access": "access-secret-2", "refresh": "refresh-secret-2", "expires": 0,
		"apiEndpoint": "https://api.example", "availableModelIds": []string{"a", "b"}}
	for _, provider := range []string{"openai-codex", "github-copilot"} {
		for _, method := range []string{"auth.status", "auth.refresh", "auth.logout"} {
			if got := c.call(method, o{"provider": provider}); string(got) != "null" {
				t.Errorf("%s of no login: %s", method, got)
			}
		}
	}
	want := map[string]o{
		"openai-codex":   {"provider": "openai-codex", "expires": never, "accountId": "acc"},
		"github-copilot": {"provider": "github-copilot", "expires": 0, "apiEndpoint": "https://api.example", "availableModels": 2},
	}
	for _, credentials := range []o{codex, copilot} {
		provider := credentials["provider"].(string)
		for _, got := range []json.RawMessage{
			c.call("auth.save", o{"credentials": credentials}),
			c.call("auth.status", o{"provider": provider}),
			c.call("auth.refresh", o{"provider": provider}),
		} {
			if !sameJSON(got, []byte(encoded(t, want[provider]))) {
				t.Errorf("login of %s: %s instead of %s", provider, got, encoded(t, want[provider]))
			}
		}
	}
	file := filepath.Join(s.dir, "logins", "auth.json")
	b, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(b, []byte("access-secret-1")) || !bytes.Contains(b, []byte("refresh-secret-2")) {
		t.Errorf("the file of logins does not hold them: %v", err)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file of logins: %v %v", fi.Mode(), err)
	}
	c.call("auth.logout", o{"provider": "openai-codex"})
	if got := c.call("auth.status", o{"provider": "openai-codex"}); string(got) != "null" {
		t.Errorf("status after logout: %s", got)
	}
	if got := c.call("auth.status", o{"provider": "github-copilot"}); string(got) == "null" {
		t.Error("the logout of one provider took the other's login")
	}
	if strings.Contains(s.proc.err.String(), "secret-") {
		t.Error("a token is in the log")
	}
	// A file that cannot be read is said, and nothing of it.
	if err := os.WriteFile(file, []byte("{access-secret-3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := c.ask("auth.status", o{"provider": "github-copilot"}); a.kind != "Fail" || at(a.body, "_tag") != "Server.OAuthError" || strings.Contains(a.String(), "secret") {
		t.Errorf("status with a broken file: %s", a)
	}
}

// faultyPayloads are, per method, a payload that is good and which of its keys
// are needed. Every other way to write one of the keys is a fault.
var faultyPayloads = map[string]struct {
	good   o
	needed []string
}{
	"session.create": {o{"id": "ses_01234567-89ab-7def-8123-456789abcdef", "title": "x", "directory": "/", "hostDir": "/", "sandbox": o{"driver": "local"}, "runtime": o{"thinkingLevel": "low"}, "appendSystemPrompt": "x"}, nil},
	"session.list":   {o{"hostDir": "/", "search": "x", "limit": 1, "before": "ses_x"}, nil},
	"session.info":   {o{"sessionId": noID}, []string{"sessionId"}},
	"session.configure": {o{"sessionId": noID, "runtime": o{"model": o{"provider": "a", "id": "b"}}},
		[]string{"sessionId", "runtime"}},
	"session.link":   {o{"sessionId": noID, "hostDir": "/"}, []string{"sessionId"}},
	"session.relink": {o{"sessionId": noID, "sandbox": o{"id": "local"}, "directory": "/"}, []string{"sessionId"}},
	"session.prompt": {o{"sessionId": noID, "text": "x", "delivery": "steer", "id": "x", "parts": []o{{"type": "text", "text": "x"}}},
		[]string{"sessionId", "text"}},
	"session.interrupt": {o{"sessionId": noID, "clearQueue": true}, []string{"sessionId"}},
	"session.wait":      {o{"sessionId": noID}, []string{"sessionId"}},
	"session.message":   {o{"sessionId": noID, "messageId": "x"}, []string{"sessionId", "messageId"}},
	"session.history":   {o{"sessionId": noID, "before": "x", "limit": 1}, []string{"sessionId"}},
	"session.queue":     {o{"sessionId": noID, "remove": "x", "clear": true}, []string{"sessionId"}},
	"session.rename":    {o{"sessionId": noID, "title": "x"}, []string{"sessionId", "title"}},
	"session.fork":      {o{"sessionId": noID, "at": "x"}, []string{"sessionId"}},
	"session.delete":    {o{"sessionId": noID, "force": true}, []string{"sessionId"}},
	"session.check":     {o{"sessionId": noID, "repair": true}, []string{"sessionId"}},
	"session.blob":      {o{"sessionId": noID, "blob": "x", "offset": 0}, []string{"sessionId", "blob"}},
	"models.list":       {o{"provider": "x"}, nil},
	"sandbox.create":    {o{"driver": "x"}, []string{"driver"}},
	"sandbox.register":  {o{"driver": "x", "providerResourceId": "x"}, []string{"driver", "providerResourceId"}},
	"sandbox.stop":      {o{"sandboxId": "x"}, []string{"sandboxId"}},
	"sandbox.destroy":   {o{"sandboxId": "x"}, []string{"sandboxId"}},
	"sandbox.exec": {o{"sandboxId": "x", "argv": []string{"x"}, "cwd": "/", "env": o{"A": "b"}, "timeoutMs": 1},
		[]string{"sandboxId", "argv"}},
	"auth.save":       {o{"credentials": o{"provider": "openai-codex", "access": "x", "refresh": "x", "expires": 0, "accountId": "x"}}, []string{"credentials"}},
	"auth.status":     {o{"provider": "openai-codex"}, []string{"provider"}},
	"auth.refresh":    {o{"provider": "openai-codex"}, []string{"provider"}},
	"auth.logout":     {o{"provider": "openai-codex"}, []string{"provider"}},
	"event.subscribe": {o{"sessionId": noID, "after": o{noID: 1}}, nil},
	"sandbox.drivers": {o{}, nil}, "sandbox.list": {o{}, nil}, "plugin.reload": {o{}, nil}, "server.info": {o{}, nil},
	"server.top": {o{"limit": 1}, nil},
}

// A payload that does not decode fails its own call, with a text that names
// the key, and changes nothing.
func TestServerRefusesEveryFaultyPayload(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	s := w.serveHere(t, credentialsIn(w))
	c := s.dial(t)
	with := func(payload o, key string, v any) o {
		p := o{}
		for k, v := range payload {
			p[k] = v
		}
		if v == nil {
			delete(p, key)
		} else {
			p[key] = v
		}
		return p
	}
	n := 0
	for method := range results {
		f, ok := faultyPayloads[method]
		if !ok && method != "server.hello" && method != "server.handover" {
			t.Errorf("no faulty payloads for %s", method)
			continue
		}
		for _, key := range f.needed {
			c.dies(method, with(f.good, key, nil), key)
		}
		for key, v := range f.good {
			for _, bad := range []any{json.RawMessage("null"), wrongType(v), o{"a": []int{1}}} {
				if _, isObject := v.(o); isObject {
					if _, also := bad.(o); also {
						continue
					}
				}
				c.dies(method, with(f.good, key, bad), key)
				n++
			}
		}
		for _, payload := range []string{"null", `"x"`, "7", "[]", "true"} {
			a := c.ask(method, payload)
			if a.kind != "Die" && (payload == "null" || len(f.needed) > 0 || a.kind != "Success") {
				t.Errorf("%s with payload %s: %s", method, payload, a)
			}
			n++
		}
	}
	for _, id := range []string{"", "x", "SES_1", " ses"} {
		c.dies("session.info", o{"sessionId": id}, "sessionId")
	}
	c.fails("session.info", o{"sessionId": "ses"}, missing("ses"))
	for _, bad := range []struct {
		method, payload, says string
	}{
		{"session.create", `{"hostDir":"some/project"}`, "hostDir"},
		{"session.create", `{"id":"ses_mine"}`, "id"},
		{"session.create", `{"runtime":{"thinkingLevel":"huge"}}`, "thinkingLevel"},
		{"session.create", `{"runtime":{"thinkingLevel":""}}`, "thinkingLevel"},
		{"session.create", `{"runtime":{"model":{"provider":"x"}}}`, "model"},
		{"session.create", `{"runtime":{"model":{"provider":"x","id":null}}}`, "id"},
		{"session.create", `{"sandbox":"local"}`, "sandbox"},
		{"session.prompt", `{"sessionId":"ses_x","text":"x","delivery":"later"}`, "delivery"},
		{"session.prompt", `{"sessionId":"ses_x","text":"x","delivery":""}`, "delivery"},
		{"session.prompt", `{"sessionId":"ses_x","text":"x","parts":[{"type":"video"}]}`, "parts"},
		{"session.prompt", `{"sessionId":"ses_x","text":"x","parts":[{"type":"image","data":"AAAA"}]}`, "parts"},
		{"session.prompt", `{"sessionId":"ses_x","text":"x","parts":[{"type":"image","mediaType":"image/png","data":"?"}]}`, ""},
		{"session.list", `{"limit":-1}`, "limit"},
		{"session.list", `{"limit":1.5}`, "limit"},
		{"session.history", `{"sessionId":"ses_x","limit":-1}`, "limit"},
		{"event.subscribe", `{"sessionId":"x"}`, "sessionId"},
		{"event.subscribe", `{"after":{"ses_x":"1"}}`, "after"},
		{"event.subscribe", `{"after":{"ses_x":1.5}}`, "after"},
		{"auth.status", `{"provider":"anthropic"}`, "provider"},
		{"auth.save", `{"credentials":{"provider":"nobody","access":"x","refresh":"x","expires":0}}`, "credentials"},
		{"auth.save", `{"credentials":{"provider":"openai-codex","refresh":"x","expires":0,"accountId":"x"}}`, "access"},
		{"auth.save", `{"credentials":{"provider":"openai-codex","access":"x","refresh":"x","accountId":"x"}}`, "expires"},
		{"auth.save", `{"credentials":{"provider":"openai-codex","access":"x","refresh":"x","expires":0}}`, "accountId"},
		{"auth.save", `{"credentials":{"provider":"github-copilot","access":"x","expires":0}}`, "refresh"},
		{"sandbox.exec", `{"sandboxId":"local","argv":["true"],"timeoutMs":-1}`, "timeoutMs"},
		{"sandbox.exec", `{"sandboxId":"local","argv":["true",1]}`, "argv"},
	} {
		c.dies(bad.method, bad.payload, bad.says)
	}
	// Keys that nobody knows are no fault, nor are those of another spelling.
	for method, payload := range map[string]string{
		"session.list": `{"nobody":null,"LIMIT":"x"}`, "sandbox.list": `{"x":1}`, "server.info": `{"a":{"b":[null]}}`,
		"session.interrupt": `{"sessionId":"ses_missing","SESSIONID":5,"more":true}`,
	} {
		c.call(method, payload)
	}
	if n < 200 {
		t.Errorf("only %d faults were tried", n)
	}
	if got := c.call("session.list", o{}); string(got) != "[]" {
		t.Errorf("faulty payloads made sessions: %s", got)
	}
	if got := c.call("auth.status", o{"provider": "openai-codex"}); string(got) != "null" {
		t.Errorf("faulty payloads stored a login: %s", got)
	}
	c.pong()
	if len(c.defects) > 0 {
		t.Errorf("a call's fault was laid on the connection: %s", c.defects)
	}
}

// wrongType is a value that is not of v's type.
func wrongType(v any) any {
	switch v.(type) {
	case string, o, []string, []o:
		return 5
	}
	return "five"
}

// Ids come back as they were written.
func TestServerEchoesIDsAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial(t)
	for _, id := range []string{"0", `"x"`, `"0"`, "-7", "1.50", "1e3", "9007199254740993", `"é漢"`, `"a\"b"`, `""`} {
		if a := c.request(id, "session.list", o{}).wait(t); a.kind != "Success" {
			t.Errorf("id %s: %s", id, a)
		}
	}
	// 1 and "1" are two calls; an id in flight is nobody else's.
	id := c.create(o{})
	st := c.request(`"1"`, "event.subscribe", o{}).stream
	if a := c.request("1", "session.info", o{"sessionId": id}).wait(t); a.kind != "Success" {
		t.Errorf("the number beside the string: %s", a)
	}
	c.send(`{"_tag":"Request","id":"1","tag":"session.list","payload":{},"headers":[]}` + "\n")
	if d := c.defect(); !strings.Contains(d, "1") {
		t.Errorf("an id in flight: %s", d)
	}
	st.interrupt()
	if a := st.wait(t); a.kind != "Interrupt" || string(a.body) != "null" {
		t.Errorf("the stream in flight: %s", a)
	}
	if a := c.request(`"1"`, "session.list", o{}).wait(t); a.kind != "Success" {
		t.Errorf("an id that is free again: %s", a)
	}
	for _, bad := range []string{
		`{"_tag":"Request","tag":"session.list","payload":{},"headers":[]}`, `{"_tag":"Request","id":null,"tag":"session.list","payload":{}}`,
		`{"_tag":"Request","id":{},"tag":"session.list","payload":{}}`, `{"_tag":"Request","id":true,"tag":"session.list","payload":{}}`,
		"null", "7", `"x"`, "[]", "{}", `{"_tag":"Nothing"}`, "{", "   ", `{"_tag":"Request","id":1`, "\x00", strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000),
	} {
		c.send(bad + "\n")
		if d := c.defect(); d == "null" {
			t.Errorf("%.50s: %s", bad, d)
		}
	}
	// Good frames beside a bad one in a message live; several frames to a
	// message and a frame over several messages are the same; so are CRLF,
	// empty lines and bytes.
	p := &pendingCall{method: "session.list", done: make(chan answer, 3)}
	c.mu.Lock()
	c.calls["501"], c.calls["502"], c.calls["503"] = p, p, p
	c.mu.Unlock()
	frame := func(id string) string {
		return `{"_tag":"Request","id":` + id + `,"tag":"session.list","payload":{"search":"漢🙂"}}`
	}
	c.send(frame("501") + "\n{bad\n\n\r\n" + frame("502") + "\r\n")
	c.defect()
	for _, b := range []byte(frame("503") + "\n") {
		if err := c.write(2, []byte{b}); err != nil { // binary
			t.Fatal(err)
		}
	}
	for range 3 {
		if a := p.wait(t); a.kind != "Success" {
			t.Errorf("one of three: %s", a)
		}
	}
	// Unknown ids in Ack and Interrupt, Eof, and what only servers send.
	c.send(`{"_tag":"Ack","requestId":99}` + "\n" + `{"_tag":"Interrupt","requestId":"x"}` + "\n" + `{"_tag":"Eof"}` + "\n" + `{"_tag":"Pong"}` + "\n")
	c.pong()
	// Notifications are not answered, discards at once.
	c.send(`{"_tag":"Request","id":77,"isNotification":true,"tag":"session.create","payload":{"title":"notified"},"headers":[]}` + "\n")
	d := &pendingCall{method: "session.wait", done: make(chan answer, 1)} // Void
	c.mu.Lock()
	c.calls["78"] = d
	c.mu.Unlock()
	c.send(`{"_tag":"Request","id":78,"discard":true,"tag":"session.create","payload":{"title":"discarded"},"headers":[["a","b"]],"traceId":"x","spanId":"y","sampled":true}` + "\n")
	if a := d.wait(t); a.kind != "Success" || string(a.body) != "null" {
		t.Errorf("a discarding call: %s", a)
	}
	if err := until(endLimit, func() string {
		if n := len(items(t, c.call("session.list", o{"search": "ed"}))); n != 2 {
			return fmt.Sprintf("%d of the two sessions were made", n)
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
}

// The limits of a server are said by name, and leave what runs alone.
func TestServerKeepsItsLimits(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--max-sessions", "3", "--max-running", "1")
	c := s.dial(t)
	s.answers(t, "held", mockmodel.Answer{mockmodel.Hold{Name: "held"}, mockmodel.Text{Text: "done"}}, mockmodel.Answer{mockmodel.Text{Text: "again"}})
	a, b := c.create(o{}), c.create(o{})
	c.create(o{})
	c.dies("session.create", o{}, "BusyError")
	c.dies("session.fork", o{"sessionId": a}, "BusyError")
	c.prompt(a, "script=held")
	s.reached(t, "held")
	c.dies("session.prompt", o{"sessionId": b, "text": "x", "id": "one"}, "BusyError")
	if got := c.call("session.queue", o{"sessionId": b}); string(got) != `{"queued":[]}` {
		t.Errorf("a refused prompt waits: %s", got)
	}
	c.prompt(a, "more of the same") // it works already
	s.model.Release("held")
	c.idle(a)
	c.call("session.delete", o{"sessionId": a})
	d := c.create(o{})
	c.dies("session.create", o{}, "BusyError")
	c.call("session.configure", o{"sessionId": d, "runtime": nowhere})
	c.prompt(d, "x")
	c.idle(d)
}
