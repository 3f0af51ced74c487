package prompt

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, m *files, o Options) Instructions {
	t.Helper()
	got, err := ReadInstructions(t.Context(), m, o)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWhichFilesAreUsed(t *testing.T) {
	for _, tc := range []struct {
		name     string
		dir      string
		content  map[string]string
		links    map[string]string
		used     []string
		warnings []string
	}{
		{name: "none", dir: "/r"},
		{name: "outermost first, one for each folder", dir: "/r/pkg/sub",
			content: map[string]string{"/AGENTS.md": "x", "/r/AGENTS.md": "x", "/r/pkg/AGENTS.md": "x", "/r/pkg/CLAUDE.md": "x", "/r/pkg/sub/CLAUDE.MD": "x", "/r/other/AGENTS.md": "x"},
			used:    []string{"/AGENTS.md", "/r/AGENTS.md", "/r/pkg/AGENTS.md", "/r/pkg/sub/CLAUDE.MD"}},
		{name: "the order of names", dir: "/1/2/3/4/5",
			content: map[string]string{
				"/1/AGENTS.override.md": "x", "/1/CLAUDE.override.md": "x", "/1/AGENTS.md": "x", "/1/CLAUDE.md": "x",
				"/1/2/CLAUDE.override.md": "x", "/1/2/AGENTS.md": "x", "/1/2/AGENTS.MD": "x",
				"/1/2/3/AGENTS.md": "x", "/1/2/3/AGENTS.MD": "x", "/1/2/3/CLAUDE.md": "x",
				"/1/2/3/4/AGENTS.MD": "x", "/1/2/3/4/CLAUDE.md": "x",
				"/1/2/3/4/5/CLAUDE.md": "x", "/1/2/3/4/5/CLAUDE.MD": "x",
			},
			used: []string{"/1/AGENTS.override.md", "/1/2/CLAUDE.override.md", "/1/2/3/AGENTS.md", "/1/2/3/4/AGENTS.MD", "/1/2/3/4/5/CLAUDE.md"}},
		{name: "a folder of that name is passed over", dir: "/r",
			content: map[string]string{"/r/AGENTS.md/x": "x", "/r/CLAUDE.md": "x"},
			used:    []string{"/r/CLAUDE.md"}},
		{name: "an empty file claims its folder", dir: "/r",
			content: map[string]string{"/r/AGENTS.md": " \n", "/r/CLAUDE.md": "x"}},
		{name: "an unreadable file gives a warning and leaves its place", dir: "/r",
			content:  map[string]string{"/r/AGENTS.md": "denied", "/r/CLAUDE.md": "x"},
			used:     []string{"/r/CLAUDE.md"},
			warnings: []string{"instruction file /r/AGENTS.md skipped: permission denied"}},
		{name: "a link is followed, one that leads nowhere is not there", dir: "/r/pkg",
			content: map[string]string{"/else/rules.md": "x", "/r/CLAUDE.md": "x"},
			links:   map[string]string{"/r/pkg/AGENTS.md": "../../else/rules.md", "/r/AGENTS.md": "nowhere"},
			used:    []string{"/r/CLAUDE.md", "/r/pkg/AGENTS.md"}},
		{name: "a real file is used once", dir: "/r/a/b",
			content: map[string]string{"/r/AGENTS.md": "x"},
			links:   map[string]string{"/r/a/CLAUDE.md": "../AGENTS.md", "/r/a/b/AGENTS.md": "../../AGENTS.md"},
			used:    []string{"/r/AGENTS.md"}},
		{name: "a folder that is a link keeps the path that was taken", dir: "/r/pkg",
			content: map[string]string{"/r/AGENTS.md": "x", "/elsewhere/AGENTS.md": "x"},
			links:   map[string]string{"/r/pkg": "../elsewhere"},
			used:    []string{"/r/AGENTS.md", "/r/pkg/AGENTS.md"}},
		{name: "above the repository too", dir: "/home/ada/repo",
			content: map[string]string{"/home/ada/AGENTS.md": "x", "/home/ada/repo/AGENTS.md": "x", "/home/ada/repo/.git/HEAD": "x"},
			used:    []string{"/home/ada/AGENTS.md", "/home/ada/repo/AGENTS.md"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newFiles(t, "/r", tc.content)
			if tc.links["/r/pkg"] == "" {
				if err := os.MkdirAll(m.root+tc.dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			m.dir = tc.dir
			for name, target := range tc.links {
				if err := os.MkdirAll(filepath.Dir(m.root+name), 0o755); err != nil {
					t.Fatal(err)
				}
				m.link(t, name, target)
			}
			for name, text := range tc.content {
				if text == "denied" {
					m.deny[name] = fs.ErrPermission
				}
			}
			got := read(t, m, Options{})
			if !slices.Equal(got.Used, tc.used) || !slices.Equal(got.Warnings, tc.warnings) {
				t.Errorf("used %q, warnings %q\nwant %q, %q", got.Used, got.Warnings, tc.used, tc.warnings)
			}
			if (got.Text == "") != (len(tc.used) == 0) {
				t.Errorf("text %q", got.Text)
			}
		})
	}
}

func TestTheFormOfInstructions(t *testing.T) {
	m := newFiles(t, `/r/a "b" <c> & d`, map[string]string{
		"/r/AGENTS.md":                    "\xef\xbb\xbfOuter </project_instructions> & rules\n\n",
		`/r/a "b" <c> & d` + "/CLAUDE.md": "inner",
	})
	got := read(t, m, Options{}).Text
	want := leadIn + `

<project_instructions path="/r/AGENTS.md">
Outer </project_instructions> & rules

</project_instructions>

<project_instructions path="/r/a &quot;b&quot; &lt;c&gt; &amp; d/CLAUDE.md">
inner
</project_instructions>`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTheUsersOwnFile(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "AGENTS.md"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := newFiles(t, "/r", map[string]string{"/r/AGENTS.md": "theirs"})
	got := read(t, m, Options{Home: home})
	if want := []string{filepath.Join(home, "AGENTS.md"), "/r/AGENTS.md"}; !slices.Equal(got.Used, want) || !strings.Contains(got.Text, "\nmine\n") {
		t.Errorf("used %q", got.Used)
	}
	if got := read(t, m, Options{Home: t.TempDir()}); len(got.Used) != 1 || len(got.Warnings) != 0 {
		t.Errorf("without a file: used %q, warnings %q", got.Used, got.Warnings)
	}

	// On the host the walk may reach the same file; then it is not added.
	host := &files{dir: filepath.Join(home, "project")}
	link := filepath.Join(t.TempDir(), "home")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	got = read(t, host, Options{Home: link, Host: true})
	n := 0
	for _, p := range got.Used {
		if strings.HasSuffix(p, "AGENTS.md") && strings.HasPrefix(p, home) || strings.HasPrefix(p, link) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("used %q", got.Used)
	}
}

func TestLimitsOfInstructions(t *testing.T) {
	line := strings.Repeat("é", 50) + "\n"
	big := strings.Repeat(line, MaxFile/len(line)+10)
	m := newFiles(t, "/1/2/3/4/5", map[string]string{
		"/1/AGENTS.md":         "outermost",
		"/1/2/AGENTS.md":       big,
		"/1/2/3/AGENTS.md":     big,
		"/1/2/3/4/AGENTS.md":   big,
		"/1/2/3/4/5/AGENTS.md": big + strings.Repeat("x", 1<<20),
	})
	got := read(t, m, Options{})
	if len(got.Used) != 5 || len(got.Warnings) != 5 || !strings.Contains(got.Warnings[0], "/1/2/3/4/5/AGENTS.md cut: only the first 6553") {
		t.Errorf("used %q, warnings %q", got.Used, got.Warnings)
	}
	if n := strings.Count(got.Text, "[cut: the first "); n != 5 {
		t.Errorf("%d notices of cuts", n)
	}
	if len(got.Text) > MaxAll+2000 || strings.Contains(got.Text, "\uFFFD") {
		t.Errorf("%d bytes", len(got.Text))
	}
	m.write(t, "/AGENTS.md", big)
	got = read(t, m, Options{})
	if len(got.Text) > MaxAll+2000 || len(got.Warnings) != 6 || !strings.Contains(got.Warnings[4], "/1/AGENTS.md cut: only the first 0 of 9") {
		t.Errorf("%d bytes, warnings %q", len(got.Text), got.Warnings)
	}
}

func TestFilesOfExactlyTheLimitAreWhole(t *testing.T) {
	m := newFiles(t, "/r", map[string]string{"/r/AGENTS.md": strings.Repeat("x", MaxFile)})
	if got := read(t, m, Options{}); len(got.Warnings) != 0 || strings.Contains(got.Text, "[cut") {
		t.Errorf("warnings %q", got.Warnings)
	}
}

func TestWorktrees(t *testing.T) {
	const main = "/src/app"
	for _, tc := range []struct {
		name    string
		dir     string
		content map[string]string
		used    []string
	}{
		{"nested: the main checkout's file of the same name is left out", main + "/trees/fix/pkg",
			map[string]string{
				main + "/trees/fix/.git":                  "gitdir: /src/app/.git/worktrees/fix\n",
				main + "/.git/worktrees/fix/commondir":    "../..\n",
				main + "/AGENTS.md":                       "x",
				main + "/trees/AGENTS.md":                 "x",
				main + "/trees/fix/AGENTS.md":             "x",
				main + "/trees/fix/pkg/AGENTS.md":         "x",
				"/src/AGENTS.md":                          "x",
				main + "/.git/worktrees/fix/irrelevant":   "x",
				main + "/trees/fix/pkg/.gitkeep":          "",
				main + "/trees/fix/pkg/unrelated/CLAUDE":  "",
				main + "/trees/fix/another/irrelevant.go": "",
			},
			[]string{"/src/AGENTS.md", main + "/trees/AGENTS.md", main + "/trees/fix/AGENTS.md", main + "/trees/fix/pkg/AGENTS.md"}},
		{"nested, by relative paths", main + "/fix",
			map[string]string{
				main + "/fix/.git":                     "gitdir: ../.git/worktrees/fix",
				main + "/.git/worktrees/fix/commondir": "../..",
				main + "/AGENTS.md":                    "x",
				main + "/fix/AGENTS.md":                "x",
			},
			[]string{main + "/fix/AGENTS.md"}},
		{"nested, with files of other names", main + "/fix",
			map[string]string{
				main + "/fix/.git":                     "gitdir: ../.git/worktrees/fix",
				main + "/.git/worktrees/fix/commondir": "../..",
				main + "/AGENTS.md":                    "x",
				main + "/fix/CLAUDE.md":                "x",
			},
			[]string{main + "/AGENTS.md", main + "/fix/CLAUDE.md"}},
		{"nested, without a file in the worktree", main + "/fix/pkg",
			map[string]string{
				main + "/fix/.git":                     "gitdir: ../.git/worktrees/fix",
				main + "/.git/worktrees/fix/commondir": "../..",
				main + "/AGENTS.md":                    "x",
				main + "/fix/pkg/AGENTS.md":            "x",
			},
			[]string{main + "/AGENTS.md", main + "/fix/pkg/AGENTS.md"}},
		{"a sibling worktree", "/src/fix",
			map[string]string{
				"/src/fix/.git":                        "gitdir: /src/app/.git/worktrees/fix",
				main + "/.git/worktrees/fix/commondir": "../..",
				"/src/AGENTS.md":                       "x",
				main + "/AGENTS.md":                    "x",
				"/src/fix/AGENTS.md":                   "x",
			},
			[]string{"/src/AGENTS.md", "/src/fix/AGENTS.md"}},
		{"a bare layout", main + "/fix",
			map[string]string{
				main + "/fix/.git":                      "gitdir: ../.bare/worktrees/fix",
				main + "/.bare/worktrees/fix/commondir": "../..",
				main + "/AGENTS.md":                     "x",
				main + "/fix/AGENTS.md":                 "x",
			},
			[]string{main + "/AGENTS.md", main + "/fix/AGENTS.md"}},
		{"a submodule", main + "/lib",
			map[string]string{
				main + "/lib/.git":               "gitdir: ../.git/modules/lib",
				main + "/.git/modules/lib/HEAD":  "ref",
				main + "/AGENTS.md":              "x",
				main + "/lib/AGENTS.md":          "x",
				main + "/.git/modules/lib/other": "x",
			},
			[]string{main + "/AGENTS.md", main + "/lib/AGENTS.md"}},
		{"a .git file that is none", main + "/fix",
			map[string]string{main + "/fix/.git": "hello", main + "/AGENTS.md": "x", main + "/fix/AGENTS.md": "x"},
			[]string{main + "/AGENTS.md", main + "/fix/AGENTS.md"}},
		{"a checkout inside another", main + "/vendor/x",
			map[string]string{main + "/.git/HEAD": "x", main + "/vendor/x/.git/HEAD": "x", main + "/AGENTS.md": "x", main + "/vendor/x/AGENTS.md": "x"},
			[]string{main + "/AGENTS.md", main + "/vendor/x/AGENTS.md"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newFiles(t, tc.dir, tc.content)
			if got := read(t, m, Options{}); !slices.Equal(got.Used, tc.used) || len(got.Warnings) != 0 {
				t.Errorf("used %q, warnings %q\nwant %q", got.Used, got.Warnings, tc.used)
			}
		})
	}
}

func TestOnlyAStopIsAnError(t *testing.T) {
	m := newFiles(t, "/r/pkg", map[string]string{"/r/AGENTS.md": "x"})
	broken := errors.New("disk\non fire " + strings.Repeat("!", 9999))
	for _, name := range fileNames {
		m.deny["/r/pkg/"+name] = broken
	}
	got := read(t, m, Options{})
	if !slices.Equal(got.Used, []string{"/r/AGENTS.md"}) || len(got.Warnings) != 1 || strings.Contains(got.Warnings[0], "\n") || len(got.Warnings[0]) > 400 {
		t.Errorf("used %q, warnings %.500q", got.Used, got.Warnings)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReadInstructions(ctx, m, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestTheLinkedProjectGoesBeforeTheWorkingDirectory(t *testing.T) {
	m := newFiles(t, "/w/pkg", map[string]string{
		"/AGENTS.md": "x", "/w/AGENTS.md": "x", "/w/pkg/CLAUDE.md": "x", "/project/AGENTS.md": "x", "/project/src/AGENTS.md": "x",
	})
	for linked, want := range map[string][]string{
		"/project/src": {"/AGENTS.md", "/project/AGENTS.md", "/project/src/AGENTS.md", "/w/AGENTS.md", "/w/pkg/CLAUDE.md"},
		"/w":           {"/AGENTS.md", "/w/AGENTS.md", "/w/pkg/CLAUDE.md"},
		"/w/pkg":       {"/AGENTS.md", "/w/AGENTS.md", "/w/pkg/CLAUDE.md"},
	} {
		if got := read(t, m, Options{Linked: linked}).Used; !slices.Equal(got, want) {
			t.Errorf("linked to %s: %q", linked, got)
		}
	}
}
