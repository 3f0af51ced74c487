package source

import (
	"strings"
	"testing"
)

const sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestSpecsAreTakenApart(t *testing.T) {
	commit := sum[:40]
	for _, c := range []struct {
		text  string
		want  Spec
		base  string
		fixed bool
	}{
		{"./plugin", Spec{Kind: Local}, "./plugin", false},
		{"~/plugin", Spec{Kind: Local}, "~/plugin", false},
		{"file:///opt/plugin", Spec{Kind: Local}, "file:///opt/plugin", false},
		{"words", Spec{Kind: NPM, Name: "words"}, "words", false},
		{"words@latest", Spec{Kind: NPM, Name: "words", Version: "latest"}, "words", false},
		{"@acme/words@^1.2 || 3", Spec{Kind: NPM, Name: "@acme/words", Version: "^1.2 || 3"}, "@acme/words", false},
		{"@acme/words@1.2.3-rc.1", Spec{Kind: NPM, Name: "@acme/words", Version: "1.2.3-rc.1"}, "@acme/words", true},
		{"github:acme/words", Spec{Kind: Git, URL: "https://github.com/acme/words.git"}, "github:acme/words", false},
		{"github:acme/words.git#v1", Spec{Kind: Git, URL: "https://github.com/acme/words.git", Ref: "v1"}, "github:acme/words", false},
		{"git+https://example.com/words.git#" + commit + "::path:a/b", Spec{Kind: Git, URL: "https://example.com/words.git", Ref: commit, Sub: "a/b"},
			"git+https://example.com/words.git#::path:a/b", true},
		{"git+https://example.com/words#::path:/a/", Spec{Kind: Git, URL: "https://example.com/words", Sub: "a"}, "git+https://example.com/words#::path:a", false},
		{"git+file:///srv/words#main", Spec{Kind: Git, URL: "file:///srv/words", Ref: "main"}, "git+file:///srv/words", false},
		{"https://example.com/w-1.tar.gz#sha256=" + strings.ToUpper(sum), Spec{Kind: Archive, URL: "https://example.com/w-1.tar.gz", SHA256: sum}, "https://example.com/w-1.tar.gz", true},
	} {
		got, err := Parse(c.text)
		c.want.Text = c.text
		if err != nil || got != c.want || got.Base() != c.base || got.Fixed() != c.fixed {
			t.Errorf("%s: %+v %v, base %s, fixed %v", c.text, got, err, got.Base(), got.Fixed())
		}
	}
}

func TestWhatIsNotFetchedIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                        "none of",
		"--registry=http://evil":                  "makes no sense",
		"-g":                                      "none of",
		"words@npm:other":                         "no version",
		"words@file:..":                           "no version",
		"words@http://example.com/x.tgz":          "makes no sense",
		"words@-g":                                "no version",
		"Words":                                   "none of",
		"a/b/c":                                   "none of",
		"../":                                     "", // a path
		"github:acme":                             "owner/repository",
		"github:acme/../x":                        "owner/repository",
		"git+ssh://example.com/a":                 "addresses are fetched",
		"git+file:/srv/a":                         "not complete",
		"git+ext::sh -c x":                        "addresses are fetched",
		"git+http://example.com/a":                "addresses are fetched",
		"git+https://u:secret@example.com/a":      "password",
		"git+https://example.com/a?x=1":           "query",
		"git+https://example.com":                 "not complete",
		"git+file://host/a":                       "not complete",
		"github:acme/words#--upload-pack=x":       "no branch",
		"github:acme/words#a..b":                  "no branch",
		"github:acme/words#a:b":                   "no branch",
		"github:acme/words#a::path:../b":          "not path:",
		"github:acme/words#a::path:":              "not path:",
		"github:acme/words#a::sub":                "not path:",
		"https://example.com/a.tar.gz":            "sha256",
		"https://example.com/a.tgz#sha256=12":     "sha256",
		"http://example.com/a.tgz#sha256=" + sum:  "addresses are fetched",
		"https://example.com/a.zip#sha256=" + sum: "tar.gz",
		"words\n":                                 "control",
		strings.Repeat("a", 3000):                 "too long",
	} {
		s, err := Parse(text)
		switch {
		case want == "":
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
		case err == nil:
			t.Errorf("%q is taken for %+v", text, s)
		case !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v, want %q", text, err, want)
		case strings.Contains(err.Error(), "secret"):
			t.Errorf("%q: %v shows a password", text, err)
		}
	}
}

// Whatever a module is, nothing in it is taken for a flag, another address or
// a way out of the package; and the same module has one canonical form.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"words@^1", "@a/b@1.0.0", "github:a/b#c::path:d", "git+file:///a#b", "https://h/a.tgz#sha256=" + sum, "./x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil || s.Kind == Local {
			return
		}
		for _, v := range []string{s.Name, s.Version, s.URL, s.Ref, s.Sub} {
			if strings.HasPrefix(v, "-") || strings.ContainsAny(v, "\x00\n\r") {
				t.Errorf("%q: %q", text, v)
			}
		}
		switch {
		case s.Kind == NPM && strings.ContainsAny(s.Name+s.Version, ":\\"):
			t.Errorf("%q is an address", text)
		case s.Kind == Git && (strings.Contains("/"+s.Sub+"/", "/../") || strings.ContainsAny(s.Ref, ": ")):
			t.Errorf("%q leads out", text)
		case s.Kind == Git && !strings.HasPrefix(s.URL, "https://") && !strings.HasPrefix(s.URL, "file:///"), s.Kind == Archive && !strings.HasPrefix(s.URL, "https://"):
			t.Errorf("%q is fetched from %q", text, s.URL)
		}
		again, err := Parse(text)
		if err != nil || again.canonical() != s.canonical() || s.Base() == "" {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// What a marker names lies in its generation.
func FuzzParseMarker(f *testing.F) {
	f.Add([]byte(`{"spec":"words","name":"words","version":"1.0.0","revision":"1.0.0","entrypoint":"node_modules/words","createdAt":1}`))
	f.Add([]byte(`{"spec":"a","version":"1","revision":"1","entrypoint":"../x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMarker(b)
		if err == nil && (m.Revision == "" || strings.HasPrefix(m.Entrypoint, "/") || strings.HasPrefix(m.Entrypoint, "..") && !strings.HasPrefix(m.Entrypoint, "...")) {
			if m.Entrypoint != "" && strings.HasPrefix(m.Entrypoint, "..") && len(m.Entrypoint) > 2 && m.Entrypoint[2] != '/' {
				return // a name such as "..a"
			}
			t.Errorf("%q: %+v", b, m)
		}
	})
}
