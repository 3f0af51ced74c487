package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const source = `{
"anthropic":{"b":{"id":"b","provider":{"id":"anthropic","env":["K"]},"protocol":"anthropic","baseUrl":"https://api.anthropic.com/","cost":{"input":0.30000000000000004}}},
"github-copilot":{"c":{"id":"c","provider":{"id":"github-copilot","env":[]},"protocol":"openai","baseUrl":"https://x/v2"},
	"e":{"id":"e","provider":{"id":"github-copilot","env":[]},"protocol":"openai","baseUrl":"https://api.individual.githubcopilot.com"}},
"openai-codex":{"d":{"id":"d","provider":{"id":"openai-codex"}}}}`

type model struct {
	BaseURL  string
	Provider struct{ Env []string }
	Cost     struct{ Input json.Number }
}

func unpack(t *testing.T, path string) map[string]model {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var models map[string]model
	if err := json.NewDecoder(z).Decode(&models); err != nil {
		t.Fatal(err)
	}
	return models
}

func TestSourceIsBroughtIntoTheFilesShape(t *testing.T) {
	in, out := filepath.Join(t.TempDir(), "in.json"), t.TempDir()
	if err := os.WriteFile(in, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := generate(in, out); err != nil {
		t.Fatal(err)
	}
	b := unpack(t, filepath.Join(out, "anthropic.json.gz"))["b"]
	if b.BaseURL != "https://api.anthropic.com/v1" || b.Cost.Input != "0.30000000000000004" {
		t.Errorf("%+v", b)
	}
	c := unpack(t, filepath.Join(out, "github-copilot.json.gz"))["c"]
	if c.BaseURL != "https://x/v2" || len(c.Provider.Env) != 3 || c.Provider.Env[0] != "COPILOT_GITHUB_TOKEN" {
		t.Errorf("%+v", c)
	}
	if e := unpack(t, filepath.Join(out, "github-copilot.json.gz"))["e"]; e.BaseURL != "https://api.githubcopilot.com" {
		t.Errorf("%+v", e)
	}
	if _, err := os.Stat(filepath.Join(out, "openai-codex.json.gz")); err == nil {
		t.Error("the list of the program was written")
	}
	first, err := os.ReadFile(filepath.Join(out, "anthropic.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if err := generate(in, out); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(filepath.Join(out, "anthropic.json.gz")); err != nil || !bytes.Equal(first, again) {
		t.Errorf("other bytes the second time (%v)", err)
	}
}

func TestWrongInputIsNamed(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.json")
	for content, want := range map[string]string{
		"[":              `read ` + in + `: unexpected EOF`,
		`{"p":{"m":{}}}`: "p/m: provider: expected an object",
	} {
		if err := os.WriteFile(in, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := generate(in, t.TempDir()); err == nil || err.Error() != want {
			t.Errorf("%v, not %q", err, want)
		}
	}
}
