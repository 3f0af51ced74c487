package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tailscale/hujson"
)

// changed applies c to a file with that text and gives what became of it.
func changed(t *testing.T, text string, c PluginChange) (string, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "settings.jsonc")
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	err := ChangePlugins(t.Context(), dir, func([]json.RawMessage) (PluginChange, error) { return c, nil })
	b, readErr := os.ReadFile(file)
	if readErr != nil {
		t.Fatal(readErr)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	return string(b), err
}

func raws(texts ...string) (out []json.RawMessage) {
	for _, s := range texts {
		out = append(out, json.RawMessage(s))
	}
	return out
}

func TestEntriesAreAddedAsTheirNeighboursStand(t *testing.T) {
	object := `{"command":"npx","args":["-y","a"]}`
	for _, c := range []struct{ name, text, want string }{
		{"no list", "{}", "{\n\t\"plugins\": [\n\t\t\"b\",\n\t\t{ \"command\": \"npx\", \"args\": [\"-y\", \"a\"] }\n\t]\n}"},
		{"nothing but space", "{\n}\n", "{\n\t\"plugins\": [\n\t\t\"b\",\n\t\t{ \"command\": \"npx\", \"args\": [\"-y\", \"a\"] }\n\t]\n}\n"},
		{"an empty list", "{\n  \"plugins\": []\n}", "{\n  \"plugins\": [\n    \"b\",\n    { \"command\": \"npx\", \"args\": [\"-y\", \"a\"] }\n  ]\n}"},
		{"a list on one line", `{ "plugins": ["a"] }`, `{ "plugins": ["a", "b", { "command": "npx", "args": ["-y", "a"] }] }`},
		{"null", `{"plugins":null}`, `{"plugins":["b", { "command": "npx", "args": ["-y", "a"] }]}`},
		{"comments and commas", "// top\n{\n\t\"plugins\": [\n\t\t// about a\n\t\t\"a\", // behind a\n\t\t// last\n\t], // list\n\t\"retry\": {}, // end\n}\n// bottom\n",
			"// top\n{\n\t\"plugins\": [\n\t\t// about a\n\t\t\"a\", // behind a\n\t\t\"b\",\n\t\t{ \"command\": \"npx\", \"args\": [\"-y\", \"a\"] },\n\t\t// last\n\t], // list\n\t\"retry\": {}, // end\n}\n// bottom\n"},
		{"another member before", "{\n  \"retry\": {}, // r\n}\n", "{\n  \"retry\": {}, // r\n  \"plugins\": [\n    \"b\",\n    { \"command\": \"npx\", \"args\": [\"-y\", \"a\"] }\n  ],\n}\n"},
		{"a mark and other line ends", "\ufeff{\r\n\t\"plugins\": [\r\n\t\t\"a\"\r\n\t]\r\n}\r\n", "\ufeff{\r\n\t\"plugins\": [\r\n\t\t\"a\",\n\t\t\"b\",\n\t\t{ \"command\": \"npx\", \"args\": [\"-y\", \"a\"] }\r\n\t]\r\n}\r\n"},
	} {
		got, err := changed(t, c.text, PluginChange{Append: raws(`"b"`, object)})
		if err != nil || got != c.want {
			t.Errorf("%s: %v\n%q, want\n%q", c.name, err, got, c.want)
		}
	}
}

func TestEntriesAreReplacedAndRemovedInTheirPlace(t *testing.T) {
	const lines = "{\n\t\"plugins\": [\n\t\t\"a\", // behind a\n\n\t\t// about b\n\t\t\"b\",\n\t\t\"c\",\n\t]\n}"
	for _, c := range []struct {
		name, text string
		change     PluginChange
		want       string
	}{
		{"the first", lines, PluginChange{Remove: []int{0}}, "{\n\t\"plugins\": [\n\n\t\t// about b\n\t\t\"b\",\n\t\t\"c\",\n\t]\n}"},
		{"the middle", lines, PluginChange{Remove: []int{1}}, "{\n\t\"plugins\": [\n\t\t\"a\", // behind a\n\n\t\t\"c\",\n\t]\n}"},
		{"the last", lines, PluginChange{Remove: []int{2}}, "{\n\t\"plugins\": [\n\t\t\"a\", // behind a\n\n\t\t// about b\n\t\t\"b\",\n\t]\n}"},
		{"all", lines, PluginChange{Remove: []int{2, 0, 1, 1}}, "{\n\t\"plugins\": []\n}"},
		{"on one line", `{"plugins": ["a", "b", "c"]}`, PluginChange{Remove: []int{0, 2}}, `{"plugins": ["b"]}`},
		{"replaced", lines, PluginChange{Replace: map[int]json.RawMessage{1: json.RawMessage(`{"x":1}`)}}, strings.Replace(lines, `"b"`, `{ "x": 1 }`, 1)},
	} {
		got, err := changed(t, c.text, c.change)
		if err != nil || got != c.want {
			t.Errorf("%s: %v\n%q, want\n%q", c.name, err, got, c.want)
		}
	}
}

func TestAFileThatIsNotInOrderIsNotChanged(t *testing.T) {
	for text, slug := range map[string]string{
		`{"plugins": [}`:                            SlugParse,
		`{"plugins": "a"}`:                          SlugDecode,
		`{"plugins": [], "plugins": ["a"]}`:         SlugDecode,
		`{"retry": {"maxRetries": "x"}}`:            SlugDecode,
		`{"model": {"id": "a", "id": "b"}}`:         SlugDecode,
		`[]`:                                        SlugParse,
		"{\"plugins\": [\"" + "\xff" + "\"]}":       SlugParse,
		strings.Repeat(`{"a":`, 300):                SlugParse,
		`{"plugins": [{"a": 1, "a": 2}, "secret"]}`: SlugDecode,
	} {
		got, err := changed(t, text, PluginChange{Append: raws(`"b"`)})
		var bad *Error
		if !errors.As(err, &bad) || bad.Slug != slug || strings.Contains(bad.Detail, "secret") {
			t.Errorf("%.40s: %v, want %s", text, err, slug)
		}
		if got != text {
			t.Errorf("%.40s: became %q", text, got)
		}
	}
	// What would make it so is not written either.
	if got, err := changed(t, "{}", PluginChange{Append: raws("7")}); err == nil || got != "{}" {
		t.Errorf("%q %v", got, err)
	}
	stop := errors.New("stop")
	if err := ChangePlugins(t.Context(), t.TempDir(), func([]json.RawMessage) (PluginChange, error) { return PluginChange{}, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func TestManyChangesAtOnceAllCount(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			err := ChangePlugins(t.Context(), dir, func([]json.RawMessage) (PluginChange, error) {
				return PluginChange{Append: raws(fmt.Sprintf(`"./p%d"`, i))}, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	set, err := Load(Source{Home: dir})
	if err != nil || len(set.Plugins) != 10 {
		t.Errorf("%v %v", set, err)
	}
	info, err := os.Stat(filepath.Join(dir, "settings.jsonc"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// A file that is changed is one that can be read, with the entries it should
// have; without a change it would be the same bytes.
func FuzzChangePlugins(f *testing.F) {
	for _, s := range []string{"{}", "{\n}\n", `{"plugins": ["a", "b",],}`, "{ // c\n\"plugins\": [ /* x */ \"a\" // y\n, // z\n\"b\" ] }", `{"plugins":null,"retry":{}}`} {
		f.Add(s, 0)
		f.Add(s, 1)
	}
	dir := f.TempDir()
	file := filepath.Join(dir, "settings.jsonc")
	f.Fuzz(func(t *testing.T, text string, remove int) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var want []json.RawMessage
		err := ChangePlugins(t.Context(), dir, func(list []json.RawMessage) (PluginChange, error) {
			c := PluginChange{Append: raws(`"new"`)}
			for i, e := range list {
				if i == remove {
					c.Remove = []int{i}
				} else {
					want = append(want, e)
				}
			}
			want = append(want, c.Append...)
			return c, nil
		})
		b, readErr := os.ReadFile(file)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if err != nil {
			if string(b) != text {
				t.Errorf("%v, and %q became %q", err, text, b)
			}
			return
		}
		root, err := hujson.Parse(append([]byte(strings.TrimPrefix(string(b), "\ufeff")), '\n'))
		if err != nil {
			t.Fatalf("%q became %q: %v", text, b, err)
		}
		got := rawEntries(pluginList(&root))
		if fmt.Sprintf("%s", got) != fmt.Sprintf("%s", want) {
			t.Errorf("%q became %q: %s, want %s", text, b, got, want)
		}
	})
}
