package settings

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"codework/messages"
)

func TestWithoutFilesTheDefaultsHold(t *testing.T) {
	f := newFixture(t)
	s := f.load()
	if want := (Model{Provider: "openai", ID: "gpt-5.6-luna", ThinkingLevel: "high", ToolExecution: Sequential}); !reflect.DeepEqual(s.Model, want) {
		t.Errorf("model: %+v", s.Model)
	}
	if want := (Retry{MaxRetries: 3, BaseDelay: 2 * time.Second, MaxDelay: time.Minute}); s.Retry != want {
		t.Errorf("retry: %+v", s.Retry)
	}
	if want := (Sandbox{Driver: "local", Background: BackgroundSession}); !reflect.DeepEqual(s.Sandbox, want) {
		t.Errorf("sandbox: %+v", s.Sandbox)
	}
	b := s.Options("openai", "gpt-5.6-luna")
	if want := (Block{Timeout: time.Hour, IdleTimeout: 5 * time.Minute, ThinkingLevel: "high", ToolExecution: Sequential}); !reflect.DeepEqual(b, want) {
		t.Errorf("block: %+v", b)
	}
	if len(s.Files)+len(s.Models)+len(s.Plugins)+len(s.Warnings)+len(s.Origins()) != 0 || s.Project != "" {
		t.Errorf("something came from nowhere: %+v", s)
	}
}

func TestLayers(t *testing.T) {
	f := newFixture(t)
	f.trusted = true
	user := f.user(`{
		// comments and trailing commas are welcome
		"model": {"provider": "anthropic", "id": "a", "options": {"temperature": 0.5, "headers": {"x-a": "1", "x-b": "1"}, "stop": ["u"]}},
		"plugins": ["./one", {"plugin": "acme.tool.x", "enabled": false}],
		"retry": {"maxRetries": 5, "maxDelayMs": 9000},
		"sandbox": {"env": {"pass": ["A"], "set": {"U": "1"}}},
	}`)
	project := f.inProject(`{
		"model": {"id": "b", "options": {"headers": {"x-b": "2"}, "stop": ["p", "q"]}}, /* here too */
		"plugins": ["./two"],
		"retry": {"maxRetries": 0},
		"sandbox": {"env": {"pass": [], "set": {"P": "2"}}},
	}`)
	s := f.load()
	if s.Model.Provider != "anthropic" || s.Model.ID != "b" {
		t.Errorf("model: %+v", s.Model)
	}
	if want := (Retry{MaxRetries: 0, BaseDelay: 2 * time.Second, MaxDelay: 9 * time.Second}); s.Retry != want {
		t.Errorf("retry: %+v", s.Retry)
	}
	b := s.Options("anthropic", "b")
	if want := map[string]string{"x-a": "1", "x-b": "2"}; !reflect.DeepEqual(b.Headers, want) {
		t.Errorf("headers: %v", b.Headers)
	}
	if got := string(b.Extra["stop"]); got != `["p","q"]` {
		t.Errorf("arrays are replaced, got %s", got)
	}
	if *b.Temperature != 0.5 {
		t.Errorf("temperature: %v", *b.Temperature)
	}
	wantPlugins := []Plugin{
		{json.RawMessage(`"./one"`), user, true},
		{json.RawMessage(`{"plugin":"acme.tool.x","enabled":false}`), user, true},
		{json.RawMessage(`"./two"`), project, true},
	}
	if !reflect.DeepEqual(s.Plugins, wantPlugins) {
		t.Errorf("plugins: %+v", s.Plugins)
	}
	if want := []string{}; !reflect.DeepEqual(s.Sandbox.Pass, want) {
		t.Errorf("pass: %v", s.Sandbox.Pass)
	}
	if want := map[string]string{"U": "1", "P": "2"}; !reflect.DeepEqual(s.Sandbox.Set, want) {
		t.Errorf("set: %v", s.Sandbox.Set)
	}
	if want := []string{user, project}; !reflect.DeepEqual(s.Files, want) {
		t.Errorf("files: %v", s.Files)
	}
	if s.Project != f.project || !s.Trusted {
		t.Errorf("project %q trusted %v", s.Project, s.Trusted)
	}
	wantOrigins := map[string]string{
		"model.provider": user, "model.id": project,
		"model.options.temperature": user, "model.options.stop": project,
		"model.options.headers.x-a": user, "model.options.headers.x-b": project,
		"plugins.0": user, "plugins.1": user, "plugins.2": project,
		"retry.maxRetries": project, "retry.maxDelayMs": user,
		"sandbox.env.pass": project, "sandbox.env.set.U": user, "sandbox.env.set.P": project,
	}
	if got := s.Origins(); !reflect.DeepEqual(got, wantOrigins) {
		t.Errorf("origins: %v", got)
	}
}

func TestJSONBeforeJSONC(t *testing.T) {
	f := newFixture(t)
	write(t, filepath.Join(f.home, "settings.json"), `{"model": {"id": "json"}}`)
	if got := f.load().Model.ID; got != "json" {
		t.Errorf("settings.json alone: %q", got)
	}
	f.user(`{}`)
	if got := f.load().Model.ID; got != "gpt-5.6-luna" {
		t.Errorf("settings.jsonc hides settings.json, got %q", got)
	}
}

func TestUserConfigDirReplacesTheUserFile(t *testing.T) {
	f := newFixture(t)
	f.user(`{"model": {"provider": "home"}, "retry": {"maxRetries": 9}}`)
	f.inProject(`{"model": {"id": "project"}}`)
	other := t.TempDir()
	file := write(t, filepath.Join(other, "settings.jsonc"), `{"model": {"provider": "other", "id": "other"}}`)
	src := f.source()
	src.UserConfigDir = other
	s, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	if s.Model.Provider != "other" || s.Model.ID != "project" || s.Retry.MaxRetries != 3 {
		t.Errorf("got %+v %+v", s.Model, s.Retry)
	}
	if s.Files[0] != file || len(s.Files) != 2 {
		t.Errorf("files %v", s.Files)
	}
	src.UserConfigDir = filepath.Join(other, "absent")
	if s, err = Load(src); err != nil || s.Model.Provider != "openai" {
		t.Errorf("an empty directory replaces too: %+v %v", s, err)
	}
}

func TestWithoutHostDirOnlyTheUserLayerCounts(t *testing.T) {
	f := newFixture(t)
	f.inProject(`{"model": {"id": "project"}}`)
	t.Chdir(f.project)
	for _, dir := range []string{"", ".", "deep"} {
		src := f.source()
		src.HostDir = dir
		s, err := Load(src)
		if err != nil || s.Project != "" || s.Model.ID != "gpt-5.6-luna" {
			t.Errorf("host dir %q: %+v %v", dir, s, err)
		}
	}
}

func TestFindProject(t *testing.T) {
	base := t.TempDir()
	mk := func(parts ...string) string {
		dir := filepath.Join(append([]string{base}, parts...)...)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	home := mk("u", ".codework")
	outer := mk("u", "outer")
	mk("u", "outer", ".codework")
	inner := mk("u", "outer", "a", "inner")
	mk("u", "outer", "a", "inner", ".codework")
	deep := mk("u", "outer", "a", "inner", "x", "y")
	beside := mk("u", "outer", "a", "other")
	write(t, filepath.Join(beside, ".codework"), "a file is no directory")
	loose := mk("u", "loose")
	linked := mk("u", "outer", "linked")
	if err := os.Symlink(home, filepath.Join(linked, ".codework")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, from, home, root string
	}{
		{"the directory itself", inner, home, inner},
		{"the nearest ancestor", deep, home, inner},
		{"an empty one counts", outer, home, outer},
		{"a file does not", beside, home, outer},
		{"home does not", loose, home, ""},
		{"home under another name neither", linked, home, outer},
		{"what is somebody's home elsewhere is a project here", loose, filepath.Join(base, "absent"), filepath.Join(base, "u")},
		{"a directory that is gone", filepath.Join(deep, "gone"), home, inner},
	} {
		root, ok := FindProject(c.from, c.home)
		if root != c.root || ok != (c.root != "") {
			t.Errorf("%s: got %q %v, want %q", c.name, root, ok, c.root)
		}
	}
}

func TestDelaysAreHeldAgainstEachOther(t *testing.T) {
	for _, c := range []struct {
		name, user, project string
		file                string // whose fault, "" for none
		fault               string
		base                time.Duration
	}{
		{name: "the default gives way", user: `{"retry": {"maxDelayMs": 500}}`, base: 500 * time.Millisecond},
		{name: "equal is fine", user: `{"retry": {"baseDelayMs": 500, "maxDelayMs": 500}}`, base: 500 * time.Millisecond},
		{name: "one file", user: `{"retry": {"baseDelayMs": 501, "maxDelayMs": 500}}`, file: "user", fault: "retry.baseDelayMs"},
		{name: "above the default", user: `{"retry": {"baseDelayMs": 60001}}`, file: "user", fault: "retry.baseDelayMs"},
		{name: "the project raises the base", user: `{"retry": {"maxDelayMs": 500}}`, project: `{"retry": {"baseDelayMs": 501}}`, file: "project", fault: "retry.baseDelayMs"},
		{name: "the project lowers the limit", user: `{"retry": {"baseDelayMs": 501}}`, project: `{"retry": {"maxDelayMs": 500}}`, file: "project", fault: "retry.maxDelayMs"},
		{name: "the project has nothing to do with it", user: `{"retry": {"baseDelayMs": 501, "maxDelayMs": 500}}`, project: `{"retry": {"maxRetries": 1}}`, file: "user", fault: "retry.baseDelayMs"},
		{name: "the project repairs it", user: `{"retry": {"baseDelayMs": 70000}}`, project: `{"retry": {"maxDelayMs": 70000}}`, base: 70 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			files := map[string]string{"user": f.user(c.user)}
			if c.project != "" {
				files["project"] = f.inProject(c.project)
			}
			if c.file == "" {
				if got := f.load().Retry.BaseDelay; got != c.base {
					t.Errorf("base %v", got)
				}
				return
			}
			e := f.loadError()
			if e.Slug != SlugDecode || e.File != files[c.file] || len(e.Faults) != 1 || e.Faults[0].Path != c.fault {
				t.Errorf("got %+v", e)
			}
		})
	}
}

const fullModel = `{
	"id": "m", "name": "M",
	"provider": {"id": "p", "name": "P", "source": "config", "env": ["P_KEY", "P_OLD"], "key": "${P_KEY}", "options": {"region": "x"}},
	"protocol": "openai-compatible", "baseUrl": "http://127.0.0.1:8080/v1", "reasoning": true, "input": ["text", "image"],
	"cost": {"input": 1, "output": 2.5, "cacheRead": 0, "cacheWrite": 0.1,
		"tiers": [{"input": 2, "output": 5, "cacheRead": 0, "cacheWrite": 0, "inputTokensAbove": 200000}]},
	"contextWindow": 1e5, "maxTokens": 0,
	"thinkingLevelMap": {"high": "strong", "off": null}, "headers": {"x-team": "${TEAM}"},
	"compat": {"supportsStrictMode": false}, "options": {"temperature": 0.1},
	"providerOptions": {"p": {"a": 1}}, "api": {"method": "chat"}
}`

func TestModels(t *testing.T) {
	f := newFixture(t)
	f.trusted = true
	f.user(`{"models": [` + fullModel + `, ` + strings.Replace(fullModel, `"id": "m"`, `"id": "n"`, 1) + `]}`)
	f.inProject(`{"models": [` + strings.Replace(fullModel, `"name": "M"`, `"name": "later"`, 1) + `]}`)
	s := f.load()
	if len(s.Models) != 2 || s.Models[0].Name != "later" || s.Models[1].ID != "n" {
		t.Fatalf("models: %+v", s.Models)
	}
	strong := "strong"
	want := messages.Model{
		ID: "n", Name: "M",
		Provider: messages.ModelProvider{ID: "p", Name: "P", Source: "config", Env: []string{"P_KEY", "P_OLD"}, Key: "${P_KEY}",
			Options: map[string]json.RawMessage{"region": json.RawMessage(`"x"`)}},
		Protocol: messages.ProtocolCompatible, BaseURL: "http://127.0.0.1:8080/v1", Reasoning: true, Input: []string{"text", "image"},
		Cost: messages.ModelCost{Rates: messages.Rates{Input: 1, Output: 2.5, CacheWrite: 0.1},
			Tiers: []messages.CostTier{{Rates: messages.Rates{Input: 2, Output: 5}, InputTokensAbove: 200000}}},
		ContextWindow:    100000,
		ThinkingLevelMap: map[messages.ThinkingLevel]*string{"high": &strong},
		Headers:          map[string]string{"x-team": "${TEAM}"},
		Compat:           map[string]json.RawMessage{"supportsStrictMode": json.RawMessage("false")},
		Options:          map[string]json.RawMessage{"temperature": json.RawMessage("0.1")},
		ProviderOptions:  map[string]map[string]json.RawMessage{"p": {"a": json.RawMessage("1")}},
		API:              &messages.ModelAPI{Method: "chat"},
	}
	if !reflect.DeepEqual(s.Models[1], want) {
		t.Errorf("got  %+v\nwant %+v", s.Models[1], want)
	}
}

func TestAFileThatIsBothLayersIsTrustedAsTheUsers(t *testing.T) {
	f := newFixture(t)
	f.inProject(`{"plugins": ["./own", {"plugin": "codework.tool.ls", "enabled": true}]}`)
	src := f.source()
	src.UserConfigDir = filepath.Join(f.project, ".codework")
	s, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	var trusted []bool
	for _, p := range s.Plugins {
		trusted = append(trusted, p.Trusted)
	}
	if want := []bool{true, true, false}; !reflect.DeepEqual(trusted, want) {
		t.Errorf("got %v", trusted)
	}
}

func TestHeaderNamesAreMergedWhateverTheirCase(t *testing.T) {
	f := newFixture(t)
	f.trusted = true
	f.user(`{"model": {"options": {"headers": {"Authorization": "low", "x-a": "first", "X-A": "second"}},
		"providerOptions": {"p": {"*": {"headers": {"authoriZation": "top"}}}}}}`)
	f.inProject(`{"model": {"options": {"headers": {"authorization": "middle"}}}}`)
	s := f.load()
	if got, want := s.Options("q", "m").Headers, map[string]string{"authorization": "middle", "X-A": "second"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	if got, want := s.Options("p", "m").Headers, map[string]string{"authoriZation": "top", "X-A": "second"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestNamesOfDirectoriesDoNotReachTheTerminalRaw(t *testing.T) {
	for _, c := range []struct{ dir, shown string }{
		{"plain-1.0", "/plain-1.0)"},
		{"it's here; ls", `/it'\''s here; ls')`},
		{"red\x1b[31m", `/red\x1b[31m")`},
	} {
		f := newFixture(t)
		f.project = filepath.Join(f.project, c.dir)
		src := f.source()
		file := f.inProject(`{"sandbox": {}}`)
		src.HostDir = f.project
		s, err := Load(src)
		if err != nil || len(s.Warnings) != 1 {
			t.Fatalf("%+v %v", s, err)
		}
		if text := s.Warnings[0].Text; strings.ContainsRune(text, 0x1b) || !strings.Contains(text, c.shown) {
			t.Errorf("warning %q", text)
		}
		write(t, file, `{`)
		if _, err = Load(src); err == nil || strings.ContainsRune(err.Error(), 0x1b) {
			t.Errorf("error %q", err)
		}
	}
}
