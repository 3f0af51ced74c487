package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// project makes a home and a trusted project in it, goes there, and returns
// both.
func project(t *testing.T, user, own string) (homeDir, root string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	homeDir, root = filepath.Join(base, "home"), filepath.Join(base, "project")
	for name, text := range map[string]string{
		filepath.Join(homeDir, "settings.jsonc"):           user,
		filepath.Join(root, ".codework", "settings.jsonc"): own,
	} {
		err := os.MkdirAll(filepath.Dir(name), 0o700)
		if err == nil && text != "" {
			err = os.WriteFile(name, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	return homeDir, root
}

const customModel = `{"id": "m1", "name": "M", "provider": {"id": "mine", "name": "Mine", "source": "custom", "env": ["MINE_KEY"]},
	"protocol": "openai-compatible", "baseUrl": "http://127.0.0.1:1/v1", "headers": {"Authorization": "Bearer literal-secret"},
	"reasoning": false, "input": ["text"], "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}, "contextWindow": 1000, "maxTokens": 100}`

func TestConfigShowPrintsWhatTheLayersComeTo(t *testing.T) {
	homeDir, _ := project(t, `{"model": {"provider": "p", "id": "user"}, "models": [`+customModel+`]}`, `{"model": {"id": "project"}} // comment`)
	r := command(t, "", "config", "show", "--home", homeDir)
	if r.code != 0 || r.err != "" {
		t.Fatalf("code %d, %s", r.code, r.err)
	}
	var m struct {
		Model struct{ Provider, ID, ThinkingLevel string }
	}
	if err := json.Unmarshal([]byte(r.out), &m); err != nil || m.Model.Provider != "p" || m.Model.ID != "project" || m.Model.ThinkingLevel == "" {
		t.Errorf("%v\n%s", err, r.out)
	}
	if !strings.HasPrefix(r.out, "{\n  \"") || !strings.HasSuffix(r.out, "}\n") {
		t.Errorf("not indented:\n%s", r.out)
	}
	one := command(t, "", "config", "show", "--json", "--home", homeDir)
	if strings.Count(one.out, "\n") != 1 || !json.Valid([]byte(one.out)) {
		t.Errorf("--json: %s", one.out)
	}
	for _, out := range []string{r.out, one.out} {
		if strings.Contains(out, "literal-secret") || !strings.Contains(out, "***") {
			t.Errorf("a secret is shown:\n%s", out)
		}
	}
}

func TestConfigShowNamesTheFileOfEachValue(t *testing.T) {
	homeDir, root := project(t, `{"model": {"provider": "p", "id": "user"}, "models": [`+customModel+`]}`, `{"model": {"id": "project"}}`)
	user, own := filepath.Join(homeDir, "settings.jsonc"), filepath.Join(root, ".codework", "settings.jsonc")
	r := command(t, "", "config", "show", "--origin", "--home", homeDir)
	lines := strings.Split(r.out, "\n")
	for _, want := range []string{
		`model.id = "project"  # ` + own,
		`model.provider = "p"  # ` + user,
		`model.thinkingLevel = "high"  # default`,
		`retry.maxRetries = 3  # default`,
	} {
		found := false
		for _, l := range lines {
			found = found || l == want
		}
		if !found {
			t.Errorf("no line %q in\n%s", want, r.out)
		}
	}
	if !strings.Contains(r.out, `models.0 = {"id":"m1"`) || strings.Contains(r.out, "literal-secret") {
		t.Errorf("the list of models:\n%s", r.out)
	}

	var list []setting
	r = command(t, "", "config", "show", "--origin", "--json", "--home", homeDir)
	if err := json.Unmarshal([]byte(r.out), &list); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for i, s := range list {
		if i > 0 && list[i-1].Key >= s.Key {
			t.Errorf("%s comes before %s", list[i-1].Key, s.Key)
		}
		files[s.Key] = s.File
	}
	if files["model.id"] != own || files["models.0"] != user || files["retry.maxRetries"] != "" {
		t.Errorf("files %v", files)
	}
}

func TestConfigShowWarnsOfWhatIsIgnored(t *testing.T) {
	homeDir, _ := project(t, "", `{"sandbox": {"driver": "docker"}}`)
	r := command(t, "", "config", "show", "--home", homeDir)
	if r.code != 0 || !strings.HasPrefix(r.err, "warning: ") || !strings.Contains(r.err, "codework trust") || strings.Contains(r.out, "docker") {
		t.Errorf("code %d\n%s\n%s", r.code, r.out, r.err)
	}
	if r := command(t, "", "config", "show", "--quiet", "--home", homeDir); r.err != "" {
		t.Errorf("--quiet: %s", r.err)
	}
}

func TestConfigShowOfABrokenFileIsAnErrorBlock(t *testing.T) {
	homeDir, _ := project(t, `{"model": `, "")
	for _, args := range [][]string{{"config", "show"}, {"models"}, {"models", "providers"}} {
		r := command(t, "", append(args, "--home", homeDir)...)
		if r.code != 1 || r.out != "" || !strings.HasPrefix(r.err, "error[settings-parse-failed]: "+filepath.Join(homeDir, "settings.jsonc")+"\ndetail: ") {
			t.Errorf("%v: code %d\n%s\n%s", args, r.code, r.out, r.err)
		}
	}
}

func TestConfigShowReadsAnotherUserFolder(t *testing.T) {
	homeDir, _ := project(t, `{"model": {"provider": "p", "id": "user"}}`, "")
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "settings.jsonc"), []byte(`{"model": {"provider": "p", "id": "other"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := command(t, "", "config", "show", "--origin", "--home", homeDir, "--user-config-dir", other)
	if !strings.Contains(r.out, `model.id = "other"  # `+other) {
		t.Errorf("got\n%s", r.out)
	}
}

// What is printed means the same and cannot drive a terminal.
func FuzzEscapedControlsMeanTheSame(f *testing.F) {
	for _, s := range []string{"", hostile, "\u0085\u202e\u2066"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		in, err := json.Marshal(s)
		if err != nil {
			t.Skip()
		}
		out := escapeControls(string(in))
		var a, b string
		if json.Unmarshal(in, &a) != nil || json.Unmarshal([]byte(out), &b) != nil || a != b {
			t.Errorf("%q became %q", in, out)
		}
		noControls(t, "escaped JSON", out)
	})
}
