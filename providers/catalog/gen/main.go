// Command gen turns a catalog file into the snapshot that package catalog
// embeds: one compressed file per provider, the same bytes for the same input.
//
//	cd providers/catalog && go run ./gen <models.json> snapshot
//
// The input has the shape of models.gen.json. What it says differently from
// that shape is put right here, once, instead of at every start:
// Anthropic base URLs get the /v1 they come without, GitHub Copilot gets its
// variables and an address that is not that of one plan, and the fixed list of
// openai-codex is left out.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gen <models.json> <folder>")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func generate(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var all map[string]map[string]map[string]any
	in := json.NewDecoder(bytes.NewReader(data))
	in.UseNumber() // prices keep their digits
	if err := in.Decode(&all); err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	delete(all, "openai-codex")
	for id, models := range all {
		for name, model := range models {
			if err := adjust(model); err != nil {
				return fmt.Errorf("%s/%s: %w", id, name, err)
			}
		}
		packed, err := pack(models)
		if err != nil {
			return fmt.Errorf("pack %s: %w", id, err)
		}
		if err := os.WriteFile(filepath.Join(to, id+".json.gz"), packed, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func adjust(model map[string]any) error {
	provider, ok := model["provider"].(map[string]any)
	if !ok {
		return fmt.Errorf("provider: expected an object")
	}
	if provider["id"] == "github-copilot" {
		provider["env"] = []string{"COPILOT_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"}
		if model["baseUrl"] == "https://api.individual.githubcopilot.com" {
			model["baseUrl"] = "https://api.githubcopilot.com"
		}
	}
	if model["protocol"] == "anthropic" {
		base, _ := model["baseUrl"].(string)
		if base = strings.TrimRight(base, "/"); !strings.HasSuffix(base, "/v1") {
			model["baseUrl"] = base + "/v1"
		}
	}
	return nil
}

// pack writes members in the order of their names and no time, so that
// running it twice changes nothing.
func pack(models map[string]map[string]any) ([]byte, error) {
	data, err := json.Marshal(models)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
