package skills

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"codework/sandboxes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is the disk as a mount shows it.
type disk struct {
	sandboxes.Mount
	dir string
}

func (d disk) Dir() string { return d.dir }

func (d disk) List(_ context.Context, p string) ([]sandboxes.Info, error) {
	entries, err := os.ReadDir(p)
	if err != nil {
		return nil, &sandboxes.FileError{Op: "list", Path: p, Err: err}
	}
	var out []sandboxes.Info
	for _, e := range entries {
		out = append(out, sandboxes.Info{Name: e.Name(), Mode: e.Type()})
	}
	return out, nil
}

func (d disk) Lstat(_ context.Context, p string) (sandboxes.Info, error) {
	_, err := os.Lstat(p)
	return sandboxes.Info{}, err
}

func (d disk) Read(_ context.Context, p string, _, limit int64) ([]byte, error) {
	b, err := os.ReadFile(p)
	return b[:min(int64(len(b)), limit)], err
}

func put(t *testing.T, text string, at ...string) {
	t.Helper()
	file := filepath.Join(append(at, "SKILL.md")...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSkillsOfProjectAndUserAreListed(t *testing.T) {
	root, home := t.TempDir(), t.TempDir()
	work := filepath.Join(root, "deep", "down")
	if err := os.MkdirAll(filepath.Join(root, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, "---\nname: release\ndescription: closer\n---\n", work, ".codework/skills/release")
	put(t, "---\nname: release\ndescription: farther\n---\n", root, ".agents/skills/release")
	put(t, "---\nname: review\ndescription: Reviews a change.\nlicense: MIT\n---\nbody", root, ".agents/skills/review")
	put(t, "---\nname: review\ndescription: the user's\n---\n", home, "skills/review")
	put(t, "---\ndescription: named by its folder\n---\n", home, "skills/spell")
	put(t, "no front matter", home, "skills/broken")
	put(t, "---\nname: Bad Name\ndescription: x\n---\n", home, "skills/bad")
	put(t, "---\nname: outside\ndescription: x\n---\n", filepath.Dir(root), ".agents/skills/outside")
	t.Cleanup(func() { os.RemoveAll(filepath.Join(filepath.Dir(root), ".agents")) })
	if err := os.WriteFile(filepath.Join(home, "skills", "README.md"), []byte("no skill"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, warnings, err := Find(context.Background(), disk{dir: work}, home)
	if err != nil {
		t.Fatal(err)
	}
	want := []Skill{
		{"release", "closer", filepath.Join(work, ".codework/skills/release/SKILL.md")},
		{"review", "Reviews a change.", filepath.Join(root, ".agents/skills/review/SKILL.md")},
		{"spell", "named by its folder", filepath.Join(home, "skills/spell/SKILL.md")},
	}
	if !slices.Equal(found, want) {
		t.Errorf("got %v", found)
	}
	if said := strings.Join(warnings, "\n"); len(warnings) != 2 || !strings.Contains(said, "skills/broken/SKILL.md is left out: it does not begin") || !strings.Contains(said, `"Bad Name"`) {
		t.Errorf("%q", warnings)
	}
	text := Section(found)
	if lines := strings.Split(text, "\n"); len(lines) != 4 || lines[2] != "- review: Reviews a change. ("+want[1].Path+")" {
		t.Errorf("%s", text)
	}
}

func TestNothingIsListedWhereNothingIs(t *testing.T) {
	found, warnings, err := Find(context.Background(), disk{dir: t.TempDir()}, t.TempDir())
	if len(found)+len(warnings) != 0 || err != nil || Section(found) != "" {
		t.Error(found, warnings, err)
	}
}

func TestTheListHasAnEnd(t *testing.T) {
	home := t.TempDir()
	for n := range maxSkills + 5 {
		put(t, "---\ndescription: x\n---\n", home, "skills", "s"+string(rune('a'+n/26))+string(rune('a'+n%26)))
	}
	found, warnings, err := Find(context.Background(), disk{dir: t.TempDir()}, home)
	if len(found) != maxSkills || len(warnings) != 1 || err != nil {
		t.Error(len(found), warnings, err)
	}
}

// A path is a line of the prompt, and a warning one of the terminal.
func TestFoldersWithOddNamesAreLeftOut(t *testing.T) {
	home := t.TempDir()
	for _, folder := range []string{"line\nbreak", "esc\x1b[31m", "bad\xff", "rtl\u202e"} {
		put(t, "---\nname: fine\ndescription: x\n---\n", home, "skills", folder)
	}
	put(t, "---\nname: umlaut\ndescription: x\n---\n", home, "skills", "grün und blau")
	found, warnings, err := Find(context.Background(), disk{dir: t.TempDir()}, home)
	if len(found) != 1 || found[0].Name != "umlaut" || len(warnings) != 4 || err != nil {
		t.Errorf("%v %q %v", found, warnings, err)
	}
	if said := strings.Join(warnings, ""); strings.ContainsAny(said, "\n\x1b\u202e") || strings.Contains(said, "\xff") {
		t.Errorf("%q", said)
	}
}

func TestWarningsHaveAnEnd(t *testing.T) {
	home := t.TempDir()
	for n := range 500 {
		put(t, "no front matter", home, "skills", fmt.Sprint("s", n))
	}
	_, warnings, err := Find(context.Background(), disk{dir: t.TempDir()}, home)
	if len(warnings) != maxWarnings+1 || warnings[maxWarnings] != "480 more skills are left out" || err != nil {
		t.Errorf("%q %v", warnings, err)
	}
}

func TestFrontMatter(t *testing.T) {
	for _, c := range []struct{ text, name, description string }{
		{"---\nname: a\ndescription: plain text: with a colon\n---\n", "a", "plain text: with a colon"},
		{"\uFEFF---\r\nname: a\r\ndescription: windows\r\n---\r\n", "a", "windows"},
		{"---\nname: \"a\"\ndescription: \"says \\\"hi\\\" # here\"\n---\n", "a", `says "hi" # here`},
		{"---\nname: 'a'\ndescription: 'it''s'\n---\n", "a", "it's"},
		{"---\nname: a # short\ndescription: >-\n  folded\n  over lines\nother: x\n---\n", "a", "folded over lines"},
		{"---\nname: a\ndescription: |\n  kept\n\n---\n", "a", "kept"},
		{"---\nname: a\ndescription: goes\n  on\nmetadata:\n  description: not this\n---\n", "a", "goes on"},
	} {
		s, err := parse(c.text)
		if err != nil || s.Name != c.name || s.Description != c.description {
			t.Errorf("%q: %+v %v", c.text, s, err)
		}
	}
	for _, text := range []string{"", "---", "---\nname: a\n---\n", "---\nname: a\ndescription: b\n", "----\n", "# Title\n---\n"} {
		if s, err := parse(text); err == nil {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

// Whatever stands in a file, a skill takes one bounded line of valid text.
func FuzzFrontMatter(f *testing.F) {
	f.Add("---\nname: a\ndescription: >-\n  b\n---\n")
	f.Add("---\ndescription: \"\\n\\\\\"\n---")
	f.Add("---\ndescription: '\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text)
		if err != nil {
			return
		}
		for _, v := range []string{s.Name, s.Description} {
			if strings.ContainsAny(v, "\n\r") || !utf8.ValidString(v) {
				t.Errorf("%q", v)
			}
		}
		if s.Description == "" || len(s.Description) > maxDescription+len("…") {
			t.Errorf("%q", s.Description)
		}
	})
}
