package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzDecode holds for any bytes: they are refused with one line that names a
// fault, or they are settings. Settings written out again as plain JSON are
// the same settings. What an untrusted project may say never redirects.
func FuzzDecode(f *testing.F) {
	for _, text := range accepted {
		f.Add([]byte(text))
	}
	for _, c := range rejected {
		f.Add([]byte(c.text))
	}
	f.Add([]byte(hostile))
	f.Add([]byte("\xef\xbb\xbf// c\n{\"a\":[1,],}/*"))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		tree, _, err := decode("f", data, "")
		if !bytes.Equal(data, before) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Detail == "" || strings.ContainsAny(err.Error(), "\n\r\x00") {
				t.Fatalf("bad error: %q", err)
			}
		} else {
			raw := tree.raw()
			if !json.Valid(raw) {
				t.Fatalf("no JSON: %s", raw)
			}
			again, _, err := decode("f", raw, "")
			if err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
			if !bytes.Equal(again.raw(), raw) || !reflect.DeepEqual(settingsOf(again), settingsOf(tree)) {
				t.Fatalf("not stable: %s, then %s", raw, again.raw())
			}
		}

		tree, warnings, err := decode("f", data, "/root")
		if err != nil {
			return
		}
		for _, w := range warnings {
			if strings.ContainsAny(w.Text, "\n\r\x00") {
				t.Fatalf("bad warning: %q", w.Text)
			}
		}
		s := settingsOf(tree)
		if tree.holdsReference() || len(s.Models) > 0 || !reflect.DeepEqual(s.Sandbox, settingsOf(nil).Sandbox) {
			t.Fatalf("an untrusted file says too much: %s", tree.raw())
		}
		check := func(b Block) {
			if b.BaseURL != "" || b.APIKey != "" || b.Headers != nil || b.Extras != nil {
				t.Fatalf("an untrusted file redirects: %+v", b)
			}
		}
		check(s.Options("p", "m"))
		if providers := tree.at("model", "providerOptions"); providers != nil {
			for _, p := range providers.members {
				for _, m := range p.val.members {
					check(s.Options(p.key, m.key))
				}
			}
		}
		for _, p := range s.Plugins {
			var entry map[string]json.RawMessage
			if json.Unmarshal(p.Entry, &entry) != nil || !strings.HasPrefix(string(entry["plugin"]), `"codework.`) || entry["command"] != nil {
				t.Fatalf("an untrusted plugin: %s", p.Entry)
			}
		}
	})
}

// settingsOf is what a file alone comes to.
func settingsOf(tree *node) *Settings {
	s := &Settings{}
	s.fill(mergeLayers(defaults, tree))
	return s
}

// FuzzTrustList holds for any bytes: an error, or absolute paths.
func FuzzTrustList(f *testing.F) {
	f.Add([]byte(`["/a", "/b"] // c`))
	f.Add([]byte(``))
	f.Add([]byte(`[null]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		roots, err := parseRoots(data)
		if err != nil && roots != nil {
			t.Fatal("both")
		}
		for _, r := range roots {
			if !filepath.IsAbs(r) {
				t.Fatalf("%q", r)
			}
		}
	})
}

// FuzzMatch compares with a matcher that is slow and obvious.
func FuzzMatch(f *testing.F) {
	f.Add("a*b*", "axxb")
	f.Add("*", "")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if len(pattern) > 12 || len(s) > 20 {
			return
		}
		var slow func(p, s string) bool
		slow = func(p, s string) bool {
			switch {
			case p == "":
				return s == ""
			case p[0] == '*':
				return slow(p[1:], s) || s != "" && slow(p, s[1:])
			}
			return s != "" && p[0] == s[0] && slow(p[1:], s[1:])
		}
		if got, want := match(pattern, s), slow(pattern, s); got != want {
			t.Fatalf("%q on %q: %v", pattern, s, got)
		}
	})
}

// BenchmarkLoad is what every exchange pays: a user's and a project's file,
// with the walk to the project and the trust list. It is to stay below 0.3 ms.
func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	home, project := filepath.Join(dir, "home"), filepath.Join(dir, "project")
	write(b, filepath.Join(home, "settings.jsonc"), `{
		// what I use
		"model": {"provider": "anthropic", "id": "claude-sonnet-4-5", "thinkingLevel": "high",
			"options": {"temperature": 0.5, "headers": {"x-team": "${TEAM}"}},
			"providerOptions": {"openai": {"gpt-5*": {"thinkingLevel": "low"}, "*": {"maxTokens": 8000}}}},
		"models": [`+fullModel+`],
		"plugins": ["~/plugins/one", {"plugin": "codework.tool.grep", "enabled": true}],
		"retry": {"maxRetries": 5},
	}`)
	write(b, filepath.Join(project, ".codework", "settings.jsonc"), `{
		"model": {"id": "claude-opus-4-5"}, "plugins": ["./two"], "sandbox": {"driver": "isolated", "env": {"set": {"CI": "1"}}},
	}`)
	deep := filepath.Join(project, "a", "b", "c", "d")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		b.Fatal(err)
	}
	trust := OpenTrust(home)
	if err := trust.Trust(project); err != nil {
		b.Fatal(err)
	}
	src := Source{Home: home, HostDir: deep, Trusted: trust.Trusted}
	for b.Loop() {
		s, err := Load(src)
		if err != nil || !s.Trusted {
			b.Fatal(err)
		}
		_ = s.Options("anthropic", "claude-opus-4-5")
	}
}
