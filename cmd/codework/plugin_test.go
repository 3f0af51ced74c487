package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"codework/internal/plugin/source"
)

func TestCommandLinesAreTakenApart(t *testing.T) {
	for line, want := range map[string][]string{
		"npx -y  server":           {"npx", "-y", "server"},
		`a 'b c' "d 'e'" f\ g`:     {"a", "b c", "d 'e'", "f g"},
		`a "" '' b`:                {"a", "", "", "b"},
		`a "x\"y" 'x\y' $HOME '*'`: {"a", `x"y`, `x\y`, "$HOME", "*"},
		"\ta\nb ":                  {"a", "b"},
		"":                         nil,
		"   ":                      nil,
		`a "b`:                     nil,
		`a \`:                      nil,
		`"" a`:                     nil,
	} {
		got, err := commandWords(line)
		if !slices.Equal(got, want) || (err != nil) != (want == nil) {
			t.Errorf("%q: %q %v, want %q", line, got, err, want)
		}
	}
}

func TestPathsAreWrittenForTheFileTheyStandIn(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	project := pluginPlace{dir: filepath.Join(root, ".codework"), root: root}
	user := pluginPlace{dir: filepath.Join(t.TempDir(), "home")}
	for _, c := range []struct {
		text  string
		place pluginPlace
		want  string
	}{
		{"./a/b", project, "../a/b"},
		{"./.codework/a", project, "./a"},
		{".", project, ".."},
		{"../a", project, filepath.Join(filepath.Dir(root), "a")},
		{"./a", user, filepath.Join(root, "a")},
		{"/a/../b", project, "/a/../b"},
		{"~/a", user, "~/a"},
		{"a@1.0.0", user, "a@1.0.0"},
	} {
		if got := fromFile(c.text, c.place); got != c.want {
			t.Errorf("%s: %s, want %s", c.text, got, c.want)
		}
	}
}

func TestRemovingTakesAPluginAndWhatConfiguresIt(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "settings.jsonc")
	var list []json.RawMessage
	for _, e := range []string{
		`"words@1.0.0"`, `{"package": "words", "enabled": false}`, `"./here"`, `{"command": "npx", "args": ["-y", "x"], "id": "a.b.c"}`,
		`{"plugin": "a.b.c", "options": {}}`, `{"url": "http://127.0.0.1/mcp"}`, `{"plugin": "codework.tool.grep", "enabled": true}`,
		`7`, `"github:a/b#v1"`, `{"package": "./here"}`,
	} {
		list = append(list, json.RawMessage(e))
	}
	store := source.Open(source.Options{Home: dir})
	for name, want := range map[string][]int{
		"words":                    {0, 1},
		"words@2":                  {0, 1},
		"./here":                   {2, 9},
		filepath.Join(dir, "here"): {2, 9},
		"a.b.c":                    {3, 4},
		"npx -y x":                 {3, 4},
		"http://127.0.0.1/mcp":     {5},
		"codework.tool.grep":       {6},
		"github:a/b":               {8},
		"other":                    nil,
	} {
		got := pluginsCalled(store, name, dir, file, list)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
