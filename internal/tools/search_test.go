//go:build unix

package tools

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
	"time"

	"codework/messages"
)

// tree writes files, given as "name: content" lines; a name that ends with a
// slash is a folder, "name -> target" is a link.
func (m *hostMount) tree(t testing.TB, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if name, target, ok := strings.Cut(line, " -> "); ok {
			if err := os.Symlink(target, m.at(name)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		name, content, _ := strings.Cut(line, ": ")
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(m.at(name), 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		m.file(t, name, strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\x00`, "\x00").Replace(content))
	}
}

const smallTree = `
	.git/config: TODO in git
	.gitignore: *.log\n/build/\n!keep.log
	.hidden: TODO hidden\n
	README.md: # Title\n\nTODO: write\nthe end\n
	a.log: TODO logged\n
	build/out.go: TODO built\n
	keep.log: TODO kept\n
	src/build/x.go: package x // todo\n
	src/main.go: package main\n\nfunc main() {\n\t// TODO main\n}\n
	src/sub/.gitignore: *.txt\n
	src/sub/a.txt: TODO ignored by the inner file\n
	src/sub/b.bin: TODO\x00
	loop -> .
	empty/
`

func TestGrep(t *testing.T) {
	for _, tc := range []struct {
		name string
		args object
		want string
	}{
		{"all files but ignored and binary ones", object{"pattern": "TODO"},
			".hidden:1: TODO hidden\nREADME.md:3: TODO: write\nkeep.log:1: TODO kept\nsrc/main.go:4: \t// TODO main"},
		{"ignoring case", object{"pattern": "todo", "ignoreCase": true, "path": "src"},
			"build/x.go:1: package x // todo\nmain.go:4: \t// TODO main"},
		{"a regular expression", object{"pattern": `^func \w+\(`, "glob": "*.go"}, "src/main.go:3: func main() {"},
		{"the end of a line", object{"pattern": `write$`}, "README.md:3: TODO: write"},
		{"the whole line", object{"pattern": `\A# Title\z`}, "README.md:1: # Title"},
		{"cases beyond ASCII", object{"pattern": "KELVIN", "ignoreCase": true, "path": "kelvin"}, "kelvin:1: 1 \u212aelvin\nkelvin:2: kelVin"},
		{"literally", object{"pattern": "main() {", "literal": true}, "src/main.go:3: func main() {"},
		{"literally, ignoring case", object{"pattern": "MAIN() {", "literal": true, "ignoreCase": true}, "src/main.go:3: func main() {"},
		{"with context", object{"pattern": "^func", "context": 1}, "src/main.go-2- \nsrc/main.go:3: func main() {\nsrc/main.go-4- \t// TODO main"},
		{"context at the edges", object{"pattern": "Title|end", "context": 9, "path": "README.md"},
			"README.md:1: # Title\nREADME.md-2- \nREADME.md-3- TODO: write\nREADME.md:4: the end"},
		{"one file", object{"pattern": "main", "path": "src/main.go"}, "main.go:1: package main\nmain.go:3: func main() {\nmain.go:4: \t// TODO main"},
		{"an ignored file by name", object{"pattern": "TODO", "path": "a.log"}, "a.log:1: TODO logged"},
		{"an ignored folder by name", object{"pattern": "TODO", "path": "build"}, "out.go:1: TODO built"},
		{"rules of folders above", object{"pattern": "TODO", "path": "src/sub"}, "no matches"},
		{"a glob with a path", object{"pattern": "TODO|todo", "glob": "src/**/*.go"}, "src/build/x.go:1: package x // todo\nsrc/main.go:4: \t// TODO main"},
		{"a glob that leaves out", object{"pattern": "TODO", "glob": "!*.{md,log}"}, ".hidden:1: TODO hidden\nsrc/main.go:4: \t// TODO main"},
		{"a limit", object{"pattern": "TODO", "limit": 2}, ".hidden:1: TODO hidden\nREADME.md:3: TODO: write\n\n[only the first 2 matches. Use limit=4 or a narrower pattern]"},
		{"a limit that is just enough", object{"pattern": "TODO", "limit": 4, "glob": "*"}, ".hidden:1: TODO hidden\nREADME.md:3: TODO: write\nkeep.log:1: TODO kept\nsrc/main.go:4: \t// TODO main"},
		{"a limit inside one file", object{"pattern": "a", "path": "src/main.go", "limit": 1}, "main.go:1: package main\n\n[only the first 1 matches. Use limit=2 or a narrower pattern]"},
		{"nothing", object{"pattern": "nowhere"}, "no matches"},
		{"a pattern of two lines", object{"pattern": "Title\\n\\nTODO"}, "no matches"},
		{"a pattern that could match a line break", object{"pattern": `Title\s+TODO`}, "no matches"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			s.mount.tree(t, smallTree)
			s.mount.file(t, "kelvin", "1 \u212aelvin\nkelVin\n")
			if got := s.ok("grep", tc.args); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestSearchFailures(t *testing.T) {
	s := newSession(t)
	s.mount.tree(t, smallTree)
	for _, tc := range []struct {
		tool string
		args object
		want string
	}{
		{"grep", object{"pattern": "("}, "bad pattern: error parsing regexp: missing closing ): `(`"},
		{"grep", object{"pattern": ")("}, "bad pattern: error parsing regexp: unexpected ): `)(`"},
		{"grep", object{"pattern": "x", "glob": "[a"}, `bad glob "[a": syntax error in pattern`},
		{"grep", object{"pattern": "x", "path": "none"}, "cannot search none: no such file or directory (ENOENT)"},
		{"find", object{"pattern": "[a"}, `bad glob "[a": syntax error in pattern`},
		{"find", object{"pattern": ""}, `bad glob "": syntax error in pattern`},
		{"find", object{"pattern": "*", "path": "none"}, "cannot search none: no such file or directory (ENOENT)"},
		{"find", object{"pattern": "*", "path": "README.md"}, "cannot search README.md: not a directory (ENOTDIR)"},
		{"ls", object{"path": "none"}, "cannot list none: no such file or directory (ENOENT)"},
		{"ls", object{"path": "README.md"}, "cannot list README.md: not a directory (ENOTDIR)"},
	} {
		if got := s.fails(tc.tool, tc.args); got != tc.want {
			t.Errorf("%s %v: %q, want %q", tc.tool, tc.args, got, tc.want)
		}
	}
	s.mount.before = func(op, p string) error {
		if op == "list" && strings.HasSuffix(p, "/src/sub") || op == "read" && strings.HasSuffix(p, "/keep.log") || op == "list" && p == "empty" {
			return fs.ErrPermission
		}
		return nil
	}
	if got := s.ok("grep", object{"pattern": "kept"}); got != "no matches\n\n[1 folder could not be read. 1 file could not be read]" {
		t.Errorf("grep: %q", got)
	}
	if got := s.ok("find", object{"pattern": "*.txt"}); got != "no files match\n\n[1 folder could not be read]" {
		t.Errorf("find: %q", got)
	}
	if got := s.fails("ls", object{"path": "empty"}); got != "cannot list empty: permission denied (EACCES)" {
		t.Errorf("ls: %q", got)
	}
}

func TestGrepLongLines(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "f", "needle "+strings.Repeat("é", 600)+"\n"+strings.Repeat("x", 500)+"needle\nneedle"+strings.Repeat("y", 494)+"\n")
	got := s.ok("grep", object{"pattern": "needle"})
	want := "f:1: needle " + strings.Repeat("é", 493) + "… [cut]\nf:2: " + strings.Repeat("x", 500) + "… [cut]\nf:3: needle" + strings.Repeat("y", 494) +
		"\n\n[long lines are cut at 500 characters; read the file to see them]"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestGrepOverChunks(t *testing.T) {
	s := newSession(t)
	// Lines of all lengths, so that chunks end everywhere, the second half with
	// CRLF; then a line of 3 MB, of which only the beginning is searched.
	var b strings.Builder
	var lines []string
	add := func(text, end string) {
		lines = append(lines, text)
		b.WriteString(text + end)
	}
	for i := range 20_000 {
		text := strings.Repeat("z", i%97)
		if i%1000 == 500 {
			text += "HIT"
		}
		add(text, map[bool]string{false: "\n", true: "\r\n"}[i > 10_000])
	}
	add(strings.Repeat("w", 3<<20)+"HIT", "\n")
	add("the HIT", "")
	s.mount.file(t, "f", b.String())

	var want []string
	for i := range 20 {
		for n := i*1000 + 500; n <= i*1000+502; n++ {
			mark := map[bool]string{false: "-", true: ":"}[n%1000 == 501]
			want = append(want, fmt.Sprintf("f%s%d%s %s", mark, n, mark, lines[n-1]))
		}
	}
	want = append(want, "f-20001- "+strings.Repeat("w", 500)+"… [cut]", "f:20002: the HIT")
	got, _, _ := strings.Cut(s.ok("grep", object{"pattern": "HIT$", "context": 1, "path": "f"}), "\n\n[")
	if got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// FuzzGrep compares the search of blocks with one line at a time.
func FuzzGrep(f *testing.F) {
	f.Add("a\nb\r\nca\n", "a$", uint8(1))
	f.Add("\n\nx", "^$|x", uint8(0))
	f.Add("ab\nb", `a\s*b|b\z`, uint8(3))
	f.Add("xABc\n\u212aey\nKEY", `(?i)b+c|(?i:key)`, uint8(0))
	f.Add("KEY\n\u212aey\nno", `(?i)(key)`, uint8(0))
	f.Add("abab\nab", `(ab){2}`, uint8(0))
	f.Fuzz(func(t *testing.T, file, expr string, around uint8) {
		if strings.Contains(file, "\x00") || strings.HasPrefix(file, "\ufeff") || len(file) > 4096 {
			t.Skip()
		}
		p, err := newLinePattern(expr, false, false)
		if err != nil {
			t.Skip()
		}
		p.limit, p.context = 1000, int(around%4)
		m := newMount(t)
		m.file(t, "f", file)
		got, err := p.search(context.Background(), m, "f", int64(len(file)))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(file, "\n"), "\n")
		if file == "" {
			lines = nil
		}
		show := make(map[int]bool)
		for i, l := range lines {
			if p.line.MatchString(strings.TrimSuffix(l, "\r")) {
				show[i] = true
			}
		}
		var want []string
		for i, l := range lines {
			near := false
			for j := i - p.context; j <= i+p.context; j++ {
				near = near || show[j]
			}
			if near {
				want = append(want, fmt.Sprint(i+1, show[i], showLine(0, []byte(strings.TrimSuffix(l, "\r")), false).text))
			}
		}
		var have []string
		for _, l := range got.lines {
			have = append(have, fmt.Sprint(l.number, l.match, l.text))
		}
		if strings.Join(have, "\n") != strings.Join(want, "\n") {
			t.Fatalf("%q in %q: got %q, want %q", expr, file, have, want)
		}
	})
}

func TestFind(t *testing.T) {
	for _, tc := range []struct {
		name string
		args object
		want string
	}{
		{"names at any depth", object{"pattern": "*.go"}, "src/build/x.go\nsrc/main.go"},
		{"everything", object{"pattern": "**"}, ".gitignore\n.hidden\nREADME.md\nempty/\nkeep.log\nloop\nsrc/\nsrc/build/\nsrc/build/x.go\nsrc/main.go\nsrc/sub/\nsrc/sub/.gitignore\nsrc/sub/b.bin"},
		{"dotfiles", object{"pattern": ".h*"}, ".hidden"},
		{"a path", object{"pattern": "build/*.go"}, "src/build/x.go"},
		{"a path at any depth", object{"pattern": "**/sub/*"}, "src/sub/.gitignore\nsrc/sub/b.bin"},
		{"from the folder searched", object{"pattern": "/src/*.go"}, "src/main.go"},
		{"folders only", object{"pattern": "s*/"}, "src/\nsrc/sub/"},
		{"braces", object{"pattern": "*.{md,bin}"}, "README.md\nsrc/sub/b.bin"},
		{"in a folder", object{"pattern": "*.go", "path": "src"}, "build/x.go\nmain.go"},
		{"nothing", object{"pattern": "*.rs"}, "no files match"},
		{"a limit", object{"pattern": "*.go", "limit": 1}, "src/build/x.go\n\n[only the first 1 results. Use limit=2 or a narrower pattern]"},
		{"a limit that is just enough", object{"pattern": "*.go", "limit": 2}, "src/build/x.go\nsrc/main.go"},
		{"an empty path is the working folder", object{"pattern": "*.md", "path": ""}, "README.md"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			s.mount.tree(t, smallTree)
			if got := s.ok("find", tc.args); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestFindByAbsolutePattern(t *testing.T) {
	s := newSession(t)
	s.mount.tree(t, smallTree)
	if got := s.ok("find", object{"pattern": s.mount.dir + "/src/*.go"}); got != "src/main.go" {
		t.Errorf("got %q", got)
	}
}

func TestLs(t *testing.T) {
	s := newSession(t)
	s.mount.tree(t, `
		b: x
		A: x
		.dot: x
		dir/
		empty/
		link -> b
		to_dir -> dir
		gone -> nowhere
	`)
	for _, tc := range []struct {
		args object
		want string
	}{
		{object{}, ".dot\nA\nb\ndir/\nempty/\nlink\nto_dir/"},
		{object{"path": "."}, ".dot\nA\nb\ndir/\nempty/\nlink\nto_dir/"},
		{object{"path": "empty"}, "(empty directory)"},
		{object{"path": "to_dir"}, "(empty directory)"},
		{object{"limit": 2}, ".dot\nA\n\n[only the first 2 entries. Use limit=4]"},
		{object{"limit": 7}, ".dot\nA\nb\ndir/\nempty/\nlink\nto_dir/"},
	} {
		if got := s.ok("ls", tc.args); got != tc.want {
			t.Errorf("ls %v:\n%s\nwant\n%s", tc.args, got, tc.want)
		}
	}
}

func TestListsHaveTheCommonLimits(t *testing.T) {
	s := newSession(t)
	for i := range 2500 {
		s.mount.file(t, fmt.Sprintf("few/%04d", i), "")
	}
	for i := range 300 {
		s.mount.file(t, fmt.Sprintf("long/%s%03d", strings.Repeat("n", 200), i), "x\n")
	}
	r, _ := s.call("ls", object{"path": "few", "limit": 9999})
	if d := details[Cut](t, r); d.TruncatedBy != byLines || d.OutputLines != 2000 || d.TotalLines != 2500 || !strings.HasSuffix(text(r), "\n1999\n\n[cut at 2000 lines]") {
		t.Errorf("ls: %+v", d)
	}
	r, _ = s.call("find", object{"path": "long", "pattern": "*"})
	if d := details[Cut](t, r); d.TruncatedBy != byBytes || d.OutputBytes > MaxBytes || !strings.HasSuffix(text(r), "\n\n[cut at 50.0KB]") {
		t.Errorf("find: %+v", d)
	}
	r, _ = s.call("grep", object{"path": "long", "pattern": "x", "limit": 1000})
	if d := details[Cut](t, r); d.TruncatedBy != byBytes || d.OutputBytes > MaxBytes || !strings.HasSuffix(text(r), "\n\n[cut at 50.0KB]") {
		t.Errorf("grep: %+v", d)
	}
}

func TestSearchEndsWhenItIsStopped(t *testing.T) {
	for _, call := range []struct{ tool, args string }{{"grep", `{"pattern":"x"}`}, {"find", `{"pattern":"*"}`}} {
		s := newSession(t)
		for i := range 50 {
			s.mount.file(t, fmt.Sprintf("d%d/f", i), "x\n")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		s.mount.before = func(op, _ string) error {
			s.mount.mu.Lock()
			defer s.mount.mu.Unlock()
			if n++; n == 20 {
				cancel()
			}
			return nil
		}
		begin := time.Now()
		r, state := s.execute(ctx, call.tool, call.args)
		if state != messages.CallAborted || time.Since(begin) > time.Second {
			t.Errorf("%s: %s %q after %v", call.tool, state, text(r), time.Since(begin))
		}
	}
}

func TestSearchIsBounded(t *testing.T) {
	s := newSession(t)
	s.mount.tree(t, smallTree)
	w := walker{mount: s.mount, visit: func(entry) error { return nil }}
	if err := w.walk(t.Context(), s.mount.dir); err != nil || w.left >= walkLimit || len(w.notes()) != 0 {
		t.Errorf("%v, %d left", err, w.left)
	}
	w.left = 3
	entries, _ := s.mount.List(t.Context(), s.mount.dir)
	if err := w.folder(t.Context(), s.mount.dir, "", entries, nil); err != errEnough || len(w.notes()) != 1 {
		t.Errorf("%v, notes %v", err, w.notes())
	}
}

func TestKernelFoldersAreNotSearched(t *testing.T) {
	s := newSession(t)
	w := walker{mount: s.mount}
	w.visit = func(e entry) error {
		if e.rel == "proc" || strings.HasPrefix(e.rel, "proc/") || e.rel == "dev" || e.rel == "sys" {
			t.Errorf("visited %s", e.path)
		}
		if strings.Contains(e.rel, "/") {
			return errEnough
		}
		return nil
	}
	entries, err := s.mount.List(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		if entries[i].Name != "proc" && entries[i].Name != "dev" && entries[i].Name != "sys" {
			entries[i].Mode = 0 // not to be entered
		}
	}
	if err := w.folder(t.Context(), "/", "", entries, nil); err != nil && err != errEnough {
		t.Error(err)
	}
}

// TestIgnoreRulesAreThoseOfGit asks git itself about every path of a tree.
func TestIgnoreRulesAreThoseOfGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatal("git is needed to know its rules: ", err)
	}
	s := newSession(t)
	m := s.mount
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = m.dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return string(out)
	}
	git("init", "-q")
	m.file(t, ".gitignore", strings.Join([]string{
		"# a comment", "", `\#hash`, `\!bang`, "*.log", "!keep.log", "/rooted", "dir/", "a/b", "a/**/z", "**/deep", "inside/**", "!inside/keep",
		"trail   ", `space\ `, "[!a-c]x", "[xyz]y", "b{1,2}", "q?.c", "*.[oa]", "x**y", "mid/**/end/", "/only/*", "!/only/this", `back\\slash`, "crlf\r", "[bad", "/", "!",
	}, "\n"))
	m.file(t, "sub/.gitignore", "!*.log\nlocal\n/here\n")
	paths := []string{
		"#hash", "!bang", "a.log", "keep.log", "d/keep.log", "rooted", "d/rooted", "dir/f", "d/dir/f", "d2/dir", "a/b", "d/a/b", "a/z", "a/1/z", "a/1/2/z",
		"deep/f", "d/deep", "inside/f", "inside/keep", "inside/d/f", "trail", "space ", "space", "dx", "ax", "xy", "ay", "b{1,2}", "b1", "q1.c", "q12.c", "f.o", "f.b",
		"xaay", "xy2", "mid/end/f", "mid/1/end/f", "mid/1/endless", "only/f", "only/this", `back\slash`, "crlf", "sub/a.log", "sub/local", "sub/here", "sub/d/here", "sub/d/local", "plain", "x.y",
	}
	for _, p := range paths {
		m.file(t, p, "x")
	}
	tracked := git("ls-files", "-z", "--others", "--exclude-standard")
	want := make(map[string]bool)
	for p := range strings.SplitSeq(strings.TrimSuffix(tracked, "\x00"), "\x00") {
		want[p] = true
	}
	got := make(map[string]bool)
	w := walker{mount: m, visit: func(e entry) error {
		if !e.isDir() {
			got[e.rel] = true
		}
		return nil
	}}
	if err := w.walk(t.Context(), m.dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(paths, ".gitignore", "sub/.gitignore") {
		if got[p] != want[p] {
			t.Errorf("%q: found %v, git says %v", p, got[p], want[p])
		}
	}
}

// TestIgnoreRulesAreThoseOfGitForAnyPattern does the same with patterns put
// together by chance. Left out is a star run behind a literal beginning of a
// component ("x**/a"), which git reads in a way that its manual does not tell.
func TestIgnoreRulesAreThoseOfGitForAnyPattern(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	odd := regexp.MustCompile(`[^/*]\*\*+(/|$)`)
	for range 60 {
		m := newMount(t)
		init := exec.Command("git", "init", "-q")
		init.Dir = m.dir
		if err := init.Run(); err != nil {
			t.Fatal("git is needed to know its rules: ", err)
		}
		var patterns []string
		for range 1 + r.IntN(4) {
			p := ""
			for range 1 + r.IntN(5) {
				p += pick("a", "b", "a", "b", "x", "/", "/", "*", "?", "[ab]", "[!a]", "!", "**/", "/**", `\a`, "/**/")
			}
			if !odd.MatchString(p) {
				patterns = append(patterns, p)
			}
		}
		m.file(t, ".gitignore", strings.Join(patterns, "\n"))
		for range 25 {
			p := pick("a", "b", "ab", "x", "xa", "c")
			for range r.IntN(4) {
				p += "/" + pick("a", "b", "ab", "x", "xa", "c")
			}
			// Where a file is in the way of a folder, or the other way round,
			// there is one less.
			if os.MkdirAll(filepath.Dir(m.at(p)), 0o755) == nil {
				_ = os.WriteFile(m.at(p), nil, 0o644)
			}
		}
		list := exec.Command("git", "ls-files", "--others", "--exclude-standard")
		list.Dir = m.dir
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Fields(string(out))
		var got []string
		w := walker{mount: m, visit: func(e entry) error {
			if !e.isDir() {
				got = append(got, e.rel)
			}
			return nil
		}}
		if err := w.walk(t.Context(), m.dir); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q: found %q, git says %q", patterns, got, want)
		}
	}
}

func TestIgnoreRulesAbove(t *testing.T) {
	for _, tc := range []struct {
		name, repository string
		want             string
	}{
		{"up to the root of the repository", "outer/.git/", "no files match"},
		{"up to the session's folder without one", "", "f.skip"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			s.mount.tree(t, `
				outer/.gitignore: *.skip
				outer/mid/sub/f.skip: x
				outer/mid/.gitignore: other
			`+tc.repository)
			s.mount.dir += "/outer/mid"
			if got := s.ok("find", object{"pattern": "*.skip", "path": "sub"}); got != tc.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestRemoteFoldersAreListedAhead(t *testing.T) {
	s := newSession(t)
	for i := range 20 {
		s.mount.file(t, fmt.Sprintf("d%02d/f", i), "x\n")
	}
	together := make(chan struct{}, 100)
	waiting := make(chan struct{})
	s.mount.before = func(op, p string) error {
		if op != "list" || filepath.Base(p) == filepath.Base(s.mount.dir) {
			return nil
		}
		// The first listings wait for each other: one at a time would not end.
		together <- struct{}{}
		if len(together) == listAhead {
			close(waiting)
		}
		select {
		case <-waiting:
			return nil
		case <-time.After(10 * time.Second):
			return os.ErrDeadlineExceeded
		}
	}
	if got := s.ok("find", object{"pattern": "f"}); strings.Count(got, "\n") != 19 {
		t.Errorf("got %q", got)
	}
}

func bigTree(b *testing.B) *session {
	s := newSession(b)
	for d := range 200 {
		for f := range 50 {
			s.mount.file(b, fmt.Sprintf("d%d/e%d/f%d.go", d%10, d, f), numberLines(200))
		}
	}
	s.mount.file(b, ".gitignore", "*.log\n/build/\nnode_modules/\n**/tmp/**\n")
	return s
}

func BenchmarkFind(b *testing.B) {
	s := bigTree(b)
	for b.Loop() {
		s.ok("find", object{"pattern": "f49.go", "limit": 9999})
	}
}

func TestRequiredLiterals(t *testing.T) {
	for expr, want := range map[string]string{
		"abc": "abc", "(?i)aBc": "abc/i", "x(abcd)+y": "abcd", "ab|abc": "ab", "a*bc": "bc", "(?:foo){2,}": "foo", "(?:foo){0,2}": "",
		`\bname\s*=`: "name", "[ab]c": "c", "(?i)é+x": "x/i", ".*": "", "(a)?": "",
	} {
		tree, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		lit, fold := required(tree)
		if fold {
			lit += "/i"
		}
		if lit != want {
			t.Errorf("%s: %q, want %q", expr, lit, want)
		}
	}
}

func BenchmarkGrepIgnoringCase(b *testing.B) {
	s := bigTree(b)
	for b.Loop() {
		s.ok("grep", object{"pattern": "NOWHERE to be found", "ignoreCase": true})
	}
}

func BenchmarkGrep(b *testing.B) {
	s := bigTree(b)
	for b.Loop() {
		s.ok("grep", object{"pattern": "line 20[1-9]"})
	}
}
