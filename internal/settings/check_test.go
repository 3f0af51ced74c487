package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// secret stands where a person may have pasted a key; no message repeats it.
const secret = "sk-LITERAL-0123456789"

// inOptions and its siblings wrap what a case is about.
func inOptions(text string) string { return `{"model": {"options": {` + text + `}}}` }
func inPattern(text string) string {
	return `{"model": {"providerOptions": {"p": {"m*": {` + text + `}}}}}`
}
func inSandbox(text string) string { return `{"sandbox": {` + text + `}}` }
func inModels(old, new string) string {
	if !strings.Contains(fullModel, old) {
		panic("not in the model: " + old)
	}
	return `{"models": [` + fullModel + `, ` + strings.Replace(fullModel, old, new, 1) + `]}`
}

// rejected are settings with the paths of their faults. lax ones have a fault
// that JSON Schema does not see.
var rejected = []struct {
	text   string
	lax    bool
	faults []string
}{
	{`{"$schema": 1}`, false, []string{"$schema"}},
	{`{"model": []}`, false, []string{"model"}},
	{`{"model": {"provider": "", "id": 5}}`, false, []string{"model.provider", "model.id"}},
	{`{"model": {"thinkingLevel": "High"}}`, false, []string{"model.thinkingLevel"}},
	{`{"model": {"toolExecution": "both"}}`, false, []string{"model.toolExecution"}},
	{`{"model": {"thinkingBudgets": {"off": 1, "low": -1, "high": "9", "max": 1e999}}}`, true,
		[]string{"model.thinkingBudgets.off", "model.thinkingBudgets.low", "model.thinkingBudgets.high", "model.thinkingBudgets.max"}},
	{`{"model": {"thinkingBudgets": {"off": 1}}}`, false, []string{"model.thinkingBudgets.off"}},
	{`{"model": {"providerOptions": {"p": {"m": 1}, "q": 2}}}`, false, []string{"model.providerOptions.p.m", "model.providerOptions.q"}},

	{inOptions(`"temperature": "0.5"`), false, []string{"model.options.temperature"}},
	{inOptions(`"temperature": 1e999`), true, []string{"model.options.temperature"}},
	{inOptions(`"maxTokens": 0`), false, []string{"model.options.maxTokens"}},
	{inOptions(`"maxTokens": 1.5`), false, []string{"model.options.maxTokens"}},
	{inOptions(`"timeoutMs": 0, "idleTimeoutMs": -1`), false, []string{"model.options.timeoutMs", "model.options.idleTimeoutMs"}},
	{inOptions(`"maxRetries": -1`), false, []string{"model.options.maxRetries"}},
	{inOptions(`"cacheRetention": "forever"`), false, []string{"model.options.cacheRetention"}},
	{inOptions(`"headers": {"x": 1, "y": ["a"]}`), false, []string{"model.options.headers.x", "model.options.headers.y"}},
	{inOptions(`"headers": {"x y": "a"}`), false, []string{"model.options.headers.x y"}},
	{inOptions(`"headers": {"x": "Bearer ${TOKEN}"}`), false, []string{"model.options.headers.x"}},
	{inOptions(`"headers": {"x": "${TOKEN:-none}"}`), false, []string{"model.options.headers.x"}},
	{inOptions(`"headers": {"x": "${${A}}"}`), false, []string{"model.options.headers.x"}},
	{inOptions(`"headers": {"x": "two\nlines"}`), true, []string{"model.options.headers.x"}},
	{inOptions(`"baseURL": "ftp://h"`), false, []string{"model.options.baseURL"}},
	{inOptions(`"baseURL": "example.com/v1"`), false, []string{"model.options.baseURL"}},
	{inOptions(`"baseURL": "https://"`), false, []string{"model.options.baseURL"}},
	{inOptions(`"baseURL": "${URL}"`), false, []string{"model.options.baseURL"}},
	{inOptions(`"apiKey": "` + secret + `"`), false, []string{"model.options.apiKey"}},
	{inOptions(`"apiKey": "${KEY} "`), false, []string{"model.options.apiKey"}},
	{inOptions(`"apiKey": "${1KEY}"`), false, []string{"model.options.apiKey"}},
	{inOptions(`"apiKey": "$KEY"`), false, []string{"model.options.apiKey"}},
	{inOptions(`"apiKey": ""`), false, []string{"model.options.apiKey"}},
	{inOptions(`"apiKey": {"env": "KEY"}`), false, []string{"model.options.apiKey"}},
	{inOptions(`"metadata": []`), false, []string{"model.options.metadata"}},
	{inOptions(`"method": "chats"`), false, []string{"model.options.method"}},
	{inOptions(`"thinkingLevel": "some"`), false, []string{"model.options.thinkingLevel"}},
	{inOptions(`"toolExecution": true`), false, []string{"model.options.toolExecution"}},
	{inOptions(`"contextWindow": "big"`), false, []string{"model.options.contextWindow"}},
	{inOptions(`"contextWindow": -1`), false, []string{"model.options.contextWindow"}},
	{inOptions(`"extras": "x"`), false, []string{"model.options.extras"}},
	{inPattern(`"apiKey": "` + secret + `", "maxTokens": "1"`), false,
		[]string{"model.providerOptions.p.m*.apiKey", "model.providerOptions.p.m*.maxTokens"}},

	{`{"retry": 3}`, false, []string{"retry"}},
	{`{"retry": {"maxRetries": 101}}`, false, []string{"retry.maxRetries"}},
	{`{"retry": {"maxRetries": -1}}`, false, []string{"retry.maxRetries"}},
	{`{"retry": {"maxRetries": 1.5}}`, false, []string{"retry.maxRetries"}},
	{`{"retry": {"maxDelayMs": 86400001}}`, false, []string{"retry.maxDelayMs"}},
	{`{"retry": {"baseDelayMs": -1}}`, false, []string{"retry.baseDelayMs"}},

	{`{"plugins": {}}`, false, []string{"plugins"}},
	{`{"plugins": ["a", 1, "", true, null, []]}`, false, []string{"plugins.1", "plugins.2", "plugins.3", "plugins.4", "plugins.5"}},

	{`{"models": {}}`, false, []string{"models"}},
	{`{"models": ["m"]}`, false, []string{"models.0"}},
	{`{"models": [{}]}`, false, []string{"models.0.id", "models.0.name", "models.0.provider", "models.0.protocol", "models.0.baseUrl",
		"models.0.reasoning", "models.0.input", "models.0.cost", "models.0.contextWindow", "models.0.maxTokens"}},
	{inModels(`"id": "m"`, `"id": ""`), false, []string{"models.1.id"}},
	{inModels(`"name": "M"`, `"name": null`), false, []string{"models.1.name"}},
	{inModels(`"id": "p"`, `"id": 1`), false, []string{"models.1.provider.id"}},
	{inModels(`"source": "config"`, `"source": "file"`), false, []string{"models.1.provider.source"}},
	{inModels(`"P_OLD"`, `"P OLD"`), false, []string{"models.1.provider.env.1"}},
	{inModels(`"key": "${P_KEY}"`, `"key": "`+secret+`"`), false, []string{"models.1.provider.key"}},
	{inModels(`"options": {"region": "x"}`, `"options": 1`), false, []string{"models.1.provider.options"}},
	{inModels(`"openai-compatible"`, `"offline"`), false, []string{"models.1.protocol"}},
	{inModels(`"http://127.0.0.1:8080/v1"`, `"unix:///x"`), false, []string{"models.1.baseUrl"}},
	{inModels(`"reasoning": true`, `"reasoning": "yes"`), false, []string{"models.1.reasoning"}},
	{inModels(`["text", "image"]`, `["image"]`), false, []string{"models.1.input"}},
	{inModels(`["text", "image"]`, `["text", "audio"]`), false, []string{"models.1.input.1"}},
	{inModels(`["text", "image"]`, `[]`), false, []string{"models.1.input"}},
	{inModels(`"input": 1`, `"input": -1`), false, []string{"models.1.cost.input"}},
	{inModels(`"output": 2.5, `, ``), false, []string{"models.1.cost.output"}},
	{inModels(`"inputTokensAbove": 200000`, `"inputTokensAbove": 0.5`), false, []string{"models.1.cost.tiers.0.inputTokensAbove"}},
	{inModels(`"contextWindow": 1e5`, `"contextWindow": -1`), false, []string{"models.1.contextWindow"}},
	{inModels(`"maxTokens": 0`, `"maxTokens": "0"`), false, []string{"models.1.maxTokens"}},
	{inModels(`"high": "strong"`, `"extreme": "strong"`), false, []string{"models.1.thinkingLevelMap.extreme"}},
	{inModels(`"high": "strong"`, `"high": 3`), false, []string{"models.1.thinkingLevelMap.high"}},
	{inModels(`"${TEAM}"`, `"a ${TEAM}"`), false, []string{"models.1.headers.x-team"}},
	{inModels(`{"supportsStrictMode": false}`, `[]`), false, []string{"models.1.compat"}},
	{inModels(`"temperature": 0.1`, `"protocol": "x"`), false, []string{"models.1.options.protocol"}},
	{inModels(`{"a": 1}`, `1`), false, []string{"models.1.providerOptions.p"}},
	{inModels(`"method": "chat"`, `"method": "talk"`), false, []string{"models.1.api.method"}},

	{inSandbox(`"drivers": "local"`), false, []string{"sandbox.drivers"}},
	{inSandbox(`"driver": ""`), false, []string{"sandbox.driver"}},
	{inSandbox(`"env": {"pass": ["A B"], "set": {"1X": "a", "Y": 1}, "unset": []}`), false,
		[]string{"sandbox.env.pass.0", "sandbox.env.set.1X", "sandbox.env.set.Y", "sandbox.env.unset"}},
	{inSandbox(`"env": {"set": {"P": "${HOME}/bin"}}`), false, []string{"sandbox.env.set.P"}},
	{inSandbox(`"env": {"set": {"P": "a\u0000b"}}`), true, []string{"sandbox.env.set.P"}},
	{inSandbox(`"background": "always"`), false, []string{"sandbox.background"}},
	{inSandbox(`"network": "some"`), false, []string{"sandbox.network"}},
	{inSandbox(`"network": true`), false, []string{"sandbox.network"}},
	{inSandbox(`"network": ["a", 1]`), false, []string{"sandbox.network.1"}},
	{inSandbox(`"limits": {"memoryMiB": 0, "processes": 1.5, "cpus": 0, "openFiles": "9", "disk": 1}`), false,
		[]string{"sandbox.limits.memoryMiB", "sandbox.limits.processes", "sandbox.limits.cpus", "sandbox.limits.openFiles", "sandbox.limits.disk"}},
	{inSandbox(`"isolated": {"write": "x", "hide": [""], "gitReadOnly": 1, "level": "half", "read": []}`), false,
		[]string{"sandbox.isolated.write", "sandbox.isolated.hide.0", "sandbox.isolated.gitReadOnly", "sandbox.isolated.level", "sandbox.isolated.read"}},
	{inSandbox(`"container": {"socket": "", "image": 1, "pull": "always", "runtime": [], "volume": {}, "name": "x"}`), false,
		[]string{"sandbox.container.socket", "sandbox.container.image", "sandbox.container.pull", "sandbox.container.runtime", "sandbox.container.volume", "sandbox.container.name"}},
	{inSandbox(`"ssh": {"host": "", "user": 1, "port": 65536, "base": "", "keyFile": "", "agent": 1, "knownHosts": [], "password": "` + secret + `"}`), false,
		[]string{"sandbox.ssh.host", "sandbox.ssh.user", "sandbox.ssh.port", "sandbox.ssh.base", "sandbox.ssh.keyFile", "sandbox.ssh.agent", "sandbox.ssh.knownHosts", "sandbox.ssh.password"}},
	{inSandbox(`"daytona": {"baseURL": "x", "apiKey": "` + secret + `", "organization": "", "region": 1, "image": "", "target": "eu"}`), false,
		[]string{"sandbox.daytona.baseURL", "sandbox.daytona.apiKey", "sandbox.daytona.organization", "sandbox.daytona.region", "sandbox.daytona.image", "sandbox.daytona.target"}},
}

// accepted are settings in which nothing is wrong.
var accepted = []string{
	`{}`,
	`{"$schema": "https://example.com/settings.schema.json"}`,
	`{"model": {"thinkingBudgets": {"minimal": 0, "low": 1.5, "medium": 2, "high": 3, "xhigh": 4, "max": 1e6}}}`,
	`{"model": {"providerOptions": {"p": {"*": {}, "a*b*": {"thinkingLevel": "off", "toolExecution": "parallel"}}}}}`,
	inOptions(`"temperature": -1, "maxTokens": 1, "timeoutMs": 1, "idleTimeoutMs": 9007199254740991, "maxRetries": 0, "cacheRetention": "none"`),
	inOptions(`"maxTokens": 4e3, "timeoutMs": 1.0, "contextWindow": 0, "method": "languageModel", "metadata": {"user": "u"}, "extras": {"a": [1]}`),
	inOptions(`"headers": {"X-A": "", "x_b": "${NAME}", "x-c": "100$ {x} $$ $"}, "baseURL": "HTTPS://h:1/v1?x=y", "apiKey": "${_k9}"`),
	inOptions(`"reasoningEffort": "x", "stop": ["a", null], "nested": {"apiKey": "its own business"}`),
	inPattern(`"headers": {"a": "b"}, "extras": {}, "frequency_penalty": 0.5`),
	`{"retry": {"maxRetries": 0, "baseDelayMs": 0, "maxDelayMs": 0}}`,
	`{"retry": {"maxRetries": 100, "baseDelayMs": 86400000, "maxDelayMs": 86400000}}`,
	`{"plugins": ["./x", {"plugin": "a.b.c"}, {"command": "npx", "args": ["-y"]}, {}]}`,
	`{"models": [` + fullModel + `]}`,
	inSandbox(`"driver": "isolated", "background": "server", "network": "none", "env": {"pass": ["*"], "set": {"A": "${B}", "C": "a b"}}`),
	inSandbox(`"network": ["10.0.0.0/8", "example.com:443"], "limits": {"memoryMiB": 512, "processes": 100, "cpus": 0.5, "openFiles": 1024}`),
	inSandbox(`"isolated": {"write": ["./out"], "hide": [], "gitReadOnly": true, "level": "landlock"}, "network": "host"`),
	inSandbox(`"container": {"socket": "unix:///run/x.sock", "image": "i", "pull": false, "runtime": "runsc", "volume": "v"}`),
	inSandbox(`"ssh": {"host": "h", "user": "u", "port": 22, "base": "/srv", "keyFile": "~/.ssh/id", "agent": true, "knownHosts": "k"}`),
	inSandbox(`"daytona": {"baseURL": "https://h", "apiKey": "${K}", "organization": "o", "region": "eu", "image": "i"}`),
}

func TestWhatIsAccepted(t *testing.T) {
	for _, text := range accepted {
		if _, warnings, err := decode("f", []byte(text), ""); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v %v", text, err, warnings)
		}
	}
}

func TestWhatIsRejectedIsNamedButNotRepeated(t *testing.T) {
	for _, c := range rejected {
		_, _, err := decode("f", []byte(c.text), "")
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: accepted", c.text)
			continue
		}
		var paths []string
		for _, f := range e.Faults {
			paths = append(paths, f.Path)
			if f.Want == "" || !strings.Contains(e.Detail, f.Path+": "+f.Want) {
				t.Errorf("%s: detail %q lacks %+v", c.text, e.Detail, f)
			}
		}
		if e.Slug != SlugDecode || !reflect.DeepEqual(paths, c.faults) {
			t.Errorf("%s:\n got %s %q\nwant %q", c.text, e.Slug, paths, c.faults)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the message repeats a value: %s", c.text, err)
		}
	}
}

func TestReservedNamesAreRefusedInEveryBlock(t *testing.T) {
	names := strings.Fields("toolChoice activeTools provider id signal sessionId reasoning modelId onPayload api npm " +
		"providerOptionsKey compat thinkingLevelMap protocol")
	for _, name := range names {
		for _, c := range [][2]string{
			{inOptions(`"` + name + `": 1`), "model.options." + name},
			{inPattern(`"` + name + `": {}`), "model.providerOptions.p.m*." + name},
		} {
			_, _, err := decode("f", []byte(c[0]), "")
			if err == nil || !strings.Contains(err.Error(), c[1]+": is reserved") {
				t.Errorf("%s: %v", c[0], err)
			}
		}
		// Absent is absent.
		if _, _, err := decode("f", []byte(inOptions(`"`+name+`": null`)), ""); err != nil {
			t.Errorf("%s: null: %v", name, err)
		}
	}
}

func TestDetailSaysWhatIsAccepted(t *testing.T) {
	f := newFixture(t)
	file := f.user(`{"model": {"thinkingLevel": 3, "toolExecution": "both"}, "models": [` +
		strings.Replace(fullModel, `"input": 1`, `"input": "1"`, 1) + `]}`)
	e := f.loadError()
	want := `model.thinkingLevel: expected one of off, minimal, low, medium, high, xhigh, max, found a number; ` +
		`model.toolExecution: expected one of sequential, parallel; ` +
		`models.0.cost.input: expected a finite number, 0 or more, found a string`
	if e.Detail != want {
		t.Errorf("got  %s\nwant %s", e.Detail, want)
	}
	fail := e.Failure()
	if fail.Type != "settings-error" || fail.Code != SlugDecode || fail.Message != file+": decode: "+want || fail.Hint == "" {
		t.Errorf("failure: %+v", fail)
	}
}

func TestManyFaultsAreCounted(t *testing.T) {
	text := `{"plugins": [` + strings.Repeat("1,", 50) + `]}`
	_, _, err := decode("f", []byte(text), "")
	e := err.(*Error)
	if len(e.Faults) != 50 || !strings.HasSuffix(e.Detail, "; and 30 more") || strings.Count(e.Detail, ";") != 20 {
		t.Errorf("%d faults: %s", len(e.Faults), e.Detail)
	}
}

func TestOddKeysDoNotTearTheMessage(t *testing.T) {
	_, _, err := decode("f", []byte(`{"sandbox": {"a\nb": 1, "": 2, "`+strings.Repeat("é", 5000)+`": 3}}`), "")
	if d := err.(*Error).Detail; strings.Contains(d, "\n") || len(d) > 1000 || !strings.Contains(d, `sandbox."a\nb": `) || !strings.Contains(d, `sandbox."": `) {
		t.Errorf("detail: %q", d)
	}
}

func TestParseErrorsHaveAPosition(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "found the end of the file while parsing value at 1:1"},
		{`[]`, "expected an object, found an array at 1:1"},
		{" // x\n  \"x\"", "expected an object, found a string at 2:3"},
		{`null`, "expected an object, found null at 1:1"},
		{`{`, "found the end of the file while parsing value at 1:2"},
		{"{\n\t\"a\": 1\n\t\"b\": 2\n}", "invalid character '\"' after object value (expecting ',' or '}') at 3:2"},
		{"{\n  \"a\" 1}", "invalid character '1' after object name at 2:7"},
		{"{\"é\": x}", "expected a value, found a word or number that is none at 1:7"},
		{"\xef\xbb\xbf{\"a\": ?}", "invalid character '?' at start of value at 1:7"},
		{`{"a": ` + secret + `}`, "expected a value, found a word or number that is none at 1:7"},
		{`{"a": "` + secret + "\n\"}", "found a string that is not closed on its line or has an invalid escape at 1:7"},
		{`{"a": "` + secret, "found the end of the file while parsing string at 1:29"},
		{`{"a": 1} {}`, "invalid character '{' after top-level value at 1:10"},
		{`{"a": 01}`, "expected a value, found a word or number that is none at 1:7"},
		{`{"a": NaN}`, "expected a value, found a word or number that is none at 1:7"},
		{`{"a": 'b'}`, "invalid character '\\'' at start of value at 1:7"},
		{"{\r\n\"a\": \"\xff\"}", "expected UTF-8 text, found another byte at 2:7"},
		{"{} /* open", "found the end of the file while parsing comment at 1:4"},
		{`{"a": ` + strings.Repeat("[", 1000), "expected at most 200 levels of nesting at 1:206"},
		{"{,}", "invalid character ',' at start of value at 1:2"},
	} {
		_, _, err := decode("f", []byte(c.text), "")
		var e *Error
		if !errors.As(err, &e) || e.Slug != SlugParse || e.Detail != c.want {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: the message repeats a value", c.text)
		}
	}
}

func TestWhatCountsAsJSONC(t *testing.T) {
	for _, text := range []string{
		"\xef\xbb\xbf{\"model\": {\"id\": \"x\"}}",
		"{\"model\": {\"id\": \"x\",},} // no end of line",
		"// first\n/* second */ {/**/\"model\"/**/:/**/{\"id\":\"x\"/**/}}\r\n",
		`{"model": {"id": "\u0078"}}`,
		`{"model": {"id": "// y"}, "model": {"id": "y", "id": "x"}}`,
		`{"\u006dodel": {"id": "x", "provider": null}}`,
	} {
		f := newFixture(t)
		f.user(text)
		if s := f.load(); s.Model.ID != "x" || s.Model.Provider != "openai" || len(s.Warnings) != 0 {
			t.Errorf("%q: %+v %v", text, s.Model, s.Warnings)
		}
	}
}

func TestTheLastOfManyEqualKeysCounts(t *testing.T) {
	for _, n := range []int{2, fewKeys, 10 * fewKeys} {
		var text strings.Builder
		text.WriteString(`{"model": {"options": {`)
		for i := range n {
			fmt.Fprintf(&text, `"k%d": 0, "maxTokens": %d, `, i, i+1)
		}
		text.WriteString(`}}}`)
		f := newFixture(t)
		f.user(text.String())
		if b := f.load().Options("p", "m"); b.MaxTokens != int64(n) || len(b.Extra) != n {
			t.Errorf("%d: %d tokens, %d others", n, b.MaxTokens, len(b.Extra))
		}
	}
}

func TestNullMeansAbsentExceptInPluginOptions(t *testing.T) {
	f := newFixture(t)
	f.trusted = true
	f.user(`{"model": {"id": "user", "options": {"maxTokens": 7, "headers": {"a": "b"}}}, "retry": null, "sandbox": {"network": null}}`)
	f.inProject(`{
		"model": {"id": null, "thinkingBudgets": null, "options": {"maxTokens": null, "headers": null, "own": {"deep": null, "list": [null]}}},
		"models": null,
		"plugins": [{"plugin": "a.b.c", "enabled": null, "options": {"b": null, "a": 1.50, "a": [ null, {"x": null}, /* c */ ], "s": "\u0041"}}, {"package": "p", "options": null}],
	}`)
	s := f.load()
	b := s.Options("openai", "user")
	if s.Model.ID != "user" || b.MaxTokens != 7 || b.Headers["a"] != "b" {
		t.Errorf("null hides a lower layer: %+v %+v", s.Model, b)
	}
	if got := string(b.Extra["own"]); got != `{"list":[null]}` {
		t.Errorf("own option: %s", got)
	}
	if got, want := string(s.Plugins[0].Entry), `{"plugin":"a.b.c","options":{"b":null,"a":1.50,"a":[null,{"x":null}],"s":"\u0041"}}`; got != want {
		t.Errorf("entry: %s", got)
	}
	if got := string(s.Plugins[1].Entry); got != `{"package":"p"}` {
		t.Errorf("entry: %s", got)
	}
}

func TestFilesThatCannotBeReadFail(t *testing.T) {
	for _, c := range []struct {
		name, want string
		make       func(t *testing.T, file string)
	}{
		{"a directory", "is a directory", func(t *testing.T, file string) {
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"a link to nowhere", "links to a file that does not exist", func(t *testing.T, file string) {
			if err := os.Symlink("nowhere", file); err != nil {
				t.Fatal(err)
			}
		}},
		{"a link to itself", "too many levels of symbolic links", func(t *testing.T, file string) {
			if err := os.Symlink(filepath.Base(file), file); err != nil {
				t.Fatal(err)
			}
		}},
		{"a device", "is not a regular file", func(t *testing.T, file string) {
			if err := os.Symlink("/dev/zero", file); err != nil {
				t.Fatal(err)
			}
		}},
		{"a huge file", "is larger than 1 MiB", func(t *testing.T, file string) {
			write(t, file, strings.Repeat(" ", maxFileSize+1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			file := filepath.Join(f.home, "settings.jsonc")
			c.make(t, file)
			// What comes second is not a way out.
			write(t, filepath.Join(f.home, "settings.json"), `{}`)
			e := f.loadError()
			if e.Slug != SlugRead || e.File != file || e.Detail != c.want || e.Error() != file+": read: "+c.want {
				t.Errorf("got %+v", e)
			}
		})
	}
	t.Run("no permission", func(t *testing.T) {
		// Root may read everything, so the system's answer is made up.
		err := &os.PathError{Op: "open", Path: "/x", Err: os.ErrPermission}
		if got := reason(err); got != "permission denied" {
			t.Errorf("reason: %q", got)
		}
		if os.Getuid() == 0 {
			t.Skip("the rest needs a user whom file modes stop, and this is root")
		}
		f := newFixture(t)
		if err := os.Chmod(f.user(`{}`), 0); err != nil {
			t.Fatal(err)
		}
		if e := f.loadError(); e.Slug != SlugRead || e.Detail != "permission denied" {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("in the project", func(t *testing.T) {
		f := newFixture(t)
		f.user(`{}`)
		file := f.inProject(`{`)
		if e := f.loadError(); e.File != file {
			t.Errorf("got %+v", e)
		}
	})
}

func TestUnknownKeysAreWarnedAboutOncePerContent(t *testing.T) {
	f := newFixture(t)
	file := f.user(`{"hooks": {}, "model": {"name": "x", "options": {"anything": 1}}, "retry": {"max": 1}}`)
	first, again := f.load().Warnings, f.load().Warnings
	if len(first) != 1 || !reflect.DeepEqual(first, again) {
		t.Fatalf("warnings: %v, then %v", first, again)
	}
	if want := file + ": unknown keys are ignored: hooks, model.name, retry.max"; first[0].Text != want {
		t.Errorf("got %q", first[0].Text)
	}
	f.user(`{"hooks": {}}`)
	if changed := f.load().Warnings; len(changed) != 1 || changed[0].Key == first[0].Key {
		t.Errorf("another content has another key: %v", changed)
	}
}

func TestMergedIsJSONWithoutLiteralSecrets(t *testing.T) {
	f := newFixture(t)
	f.user(`{"model": {"options": {"headers": {"Authorization": "` + secret + `", "x-team": "blue", "x-api-key": "${KEY}"}, "maxTokens": 5}},
		"sandbox": {"env": {"set": {"MY_TOKEN": "` + secret + `"}}, "ssh": {"keyFile": "/k"}, "daytona": {"baseURL": "https://me:` + secret + `@h"}},
		"plugins": [{"command": "x", "env": {"A_SECRET": "` + secret + `"}}, "git+https://` + secret + `@h/r", "git+ssh://git@h/r"]}`)
	merged := string(f.load().Merged())
	if strings.Contains(merged, secret) {
		t.Errorf("a secret is shown: %s", merged)
	}
	for _, want := range []string{`"x-team":"blue"`, `"x-api-key":"${KEY}"`, `"maxTokens":5`, `"keyFile":"/k"`, `"git+ssh://git@h/r"`, `"provider":"openai"`} {
		if !strings.Contains(merged, want) {
			t.Errorf("%s is missing in %s", want, merged)
		}
	}
	if !json.Valid([]byte(merged)) {
		t.Errorf("no JSON: %s", merged)
	}
}
