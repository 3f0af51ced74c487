//go:build unix

package tools

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	"codework/messages"
)

func TestWrite(t *testing.T) {
	s := newSession(t)
	r, _ := s.call("write", object{"path": "new/deep/f.txt", "content": "a\r\nb"})
	if got := text(r); got != "created new/deep/f.txt (4B)" {
		t.Errorf("text %q", got)
	}
	if d := details[change](t, r); d != (change{Path: s.mount.dir + "/new/deep/f.txt", Created: true}) {
		t.Errorf("details %+v", d)
	}
	if got := s.mount.content(t, "new/deep/f.txt"); got != "a\r\nb" {
		t.Errorf("content %q", got)
	}

	s.mount.file(t, "f", numberLines(20))
	if err := os.Chmod(s.mount.at("f"), 0o755); err != nil {
		t.Fatal(err)
	}
	r, _ = s.call("write", object{"path": "@f", "content": strings.Replace(numberLines(20), "line 10\n", "line X\n", 1)})
	if got := text(r); got != "wrote f (150B)" {
		t.Errorf("text %q", got)
	}
	d := details[change](t, r)
	if d.FirstChangedLine != 10 || d.Created || d.Diff != `  6 line 6
  7 line 7
  8 line 8
  9 line 9
-10 line 10
+10 line X
 11 line 11
 12 line 12
 13 line 13
 14 line 14` {
		t.Errorf("details %+v", d)
	}
	if !strings.HasPrefix(d.Patch, "--- "+s.mount.dir+"/f\n+++ "+s.mount.dir+"/f\n@@ -6,9 +6,9 @@\n line 6\n") {
		t.Errorf("patch %q", d.Patch)
	}
	if info, _ := os.Stat(s.mount.at("f")); info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestWriteFailures(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "dir/f", "x")
	s.mount.before = func(op, p string) error {
		if op == "write" && p == "readonly" {
			return fs.ErrPermission
		}
		return nil
	}
	for path, want := range map[string]string{
		"dir":      "cannot write dir: is a directory (EISDIR)",
		"readonly": "cannot write readonly: permission denied (EACCES)",
		"dir/f/g":  "cannot write dir/f/g: not a directory (ENOTDIR)",
		"":         "path is empty",
	} {
		if got := s.fails("write", object{"path": path, "content": "y"}); got != want {
			t.Errorf("write %q: %q, want %q", path, got, want)
		}
	}
}

func TestByteOrderMarkSurvivesAWriteOfWhatWasRead(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "f", "\xef\xbb\xbfusing X;\n")
	got := s.ok("read", object{"path": "f"})
	s.ok("edit", object{"path": "f", "edits": []object{{"oldText": "using X", "newText": "using Y"}}})
	s.ok("write", object{"path": "f", "content": got + "more\n"})
	if got := s.mount.content(t, "f"); got != "\xef\xbb\xbfusing X;\nmore\n" {
		t.Errorf("content %q", got)
	}
	s.mount.file(t, "g", "plain\n")
	s.ok("write", object{"path": "g", "content": "other\n"})
	if got := s.mount.content(t, "g"); got != "other\n" {
		t.Errorf("content %q", got)
	}
}

func TestWriteOverWhatSomebodyElseChanged(t *testing.T) {
	read := func(s *session) { s.ok("read", object{"path": "f"}) }
	write := func(content string) func(*session) {
		return func(s *session) { s.ok("write", object{"path": "f", "content": content}) }
	}
	edit := func(old, new string) func(*session) {
		return func(s *session) {
			s.ok("edit", object{"path": "f", "edits": []object{{"oldText": old, "newText": new}}})
		}
	}
	outside := func(content string) func(*session) {
		return func(s *session) { s.mount.file(s.t, "f", content) }
	}
	for _, tc := range []struct {
		name    string
		steps   []func(*session)
		refused bool
	}{
		{"never read", []func(*session){outside("b\n")}, false},
		{"read, unchanged", []func(*session){read}, false},
		{"read, then changed", []func(*session){read, outside("a\nmine\n")}, true},
		{"read in part, then changed", []func(*session){
			func(s *session) { s.ok("read", object{"path": "f", "limit": 1}) }, outside("a\nmine\n"),
		}, true},
		{"read, then the same bytes again", []func(*session){read, outside("a\n")}, false},
		{"read, changed, read again", []func(*session){read, outside("b\n"), read}, false},
		{"changed by our own edit", []func(*session){read, edit("a", "b")}, false},
		{"changed, then edited: still not known", []func(*session){read, outside("a\nmine\n"), edit("a", "b")}, true},
		{"written by us, then changed", []func(*session){write("b\n"), outside("c\n")}, true},
		{"written by us twice", []func(*session){write("b\n"), write("c\n")}, false},
		{"removed meanwhile", []func(*session){read, func(s *session) { _ = os.Remove(s.mount.at("f")) }}, false},
		{"read through a link, changed", []func(*session){
			func(s *session) { _ = os.Symlink("f", s.mount.at("link")); s.ok("read", object{"path": "link"}) }, outside("b\n"),
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			s.mount.file(t, "f", "a\n")
			for _, step := range tc.steps {
				step(s)
			}
			before, _ := os.ReadFile(s.mount.at("f"))
			r, _ := s.call("write", object{"path": "f", "content": "new\n"})
			if r.IsError != tc.refused {
				t.Errorf("refused %v: %s", r.IsError, text(r))
			}
			if tc.refused {
				if !strings.Contains(text(r), "changed by somebody else") {
					t.Errorf("text %q", text(r))
				}
				if got := s.mount.content(t, "f"); got != string(before) {
					t.Errorf("the file was changed to %q", got)
				}
			}
		})
	}
}

func TestDiffsThatAreTooLargeAreLeftOut(t *testing.T) {
	old, new := strings.Repeat("old line of some length\n", 6000), strings.Repeat("new line of some length\n", 6000)
	for name, tc := range map[string]struct {
		before, after string
		omitted       bool
	}{
		"all of 140 KB":         {old, new, true},
		"one line of 3 MB":      {strings.Repeat(old, 20) + "x\n", strings.Repeat(old, 20) + "y\n", false},
		"one line of 5 MB":      {strings.Repeat(old, 35) + "x\n", strings.Repeat(old, 35) + "y\n", true},
		"one line of 500 KB":    {strings.Repeat(old, 3) + "x\n", strings.Repeat(old, 3) + "y\n", false},
		"one long line":         {strings.Repeat("x", 200<<10), strings.Repeat("y", 200<<10), true},
		"every other line":      {strings.Repeat("a\nb\n", 5000), strings.Repeat("a\nc\n", 5000), false},
		"from nothing to 10 KB": {"", strings.Repeat("x\n", 5000), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t)
			s.mount.file(t, "f", tc.before)
			r, _ := s.call("write", object{"path": "f", "content": tc.after})
			d := details[change](t, r)
			if d.DiffOmitted != tc.omitted || (d.Patch == "") != tc.omitted || (d.Diff == "") != tc.omitted {
				t.Errorf("omitted %v, %d bytes of patch, %d of diff", d.DiffOmitted, len(d.Patch), len(d.Diff))
			}
			if len(d.Patch)+len(d.Diff) > maxDiffBytes {
				t.Errorf("%d bytes", len(d.Patch)+len(d.Diff))
			}
		})
	}
}

func TestCompare(t *testing.T) {
	lines := numberLines(30)
	for _, tc := range []struct {
		name, before, after string
		first               int
		diff, patch         string
	}{
		{"nothing", "a\n", "a\n", 0, "", ""},
		{"first line", "a\nb\n", "A\nb\n", 1, "-1 a\n+1 A\n 2 b", "@@ -1,2 +1,2 @@\n-a\n+A\n b\n"},
		{"last line without a break", "a\nb", "a\nc", 2, " 1 a\n-2 b\n+2 c", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"},
		{"only the break", "a\nb", "a\nb\n", 2, " 1 a\n-2 b\n+2 b", ""},
		{"added at the end", "a\n", "a\nb\n", 2, " 1 a\n+2 b", "@@ -1 +1,2 @@\n a\n+b\n"},
		{"removed at the front", "a\nb\n", "b\n", 1, "-1 a\n 1 b", "@@ -1,2 +1 @@\n-a\n b\n"},
		{"carriage returns", "a\r\nb\r\n", "a\r\nc\r\n", 2, " 1 a\n-2 b\n+2 c", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"},
		{"two places", lines, strings.Replace(strings.Replace(lines, "line 3\n", "", 1), "line 20\n", "x\ny\n", 1), 3,
			"  1 line 1\n  2 line 2\n- 3 line 3\n  3 line 4\n  4 line 5\n  5 line 6\n  6 line 7\n    ...\n" +
				" 15 line 16\n 16 line 17\n 17 line 18\n 18 line 19\n-20 line 20\n+19 x\n+20 y\n 21 line 21\n 22 line 22\n 23 line 23\n 24 line 24", ""},
		{"repeated lines", "a\na\na\n", "a\na\na\na\n", 4, " 1 a\n 2 a\n 3 a\n+4 a", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := change{Path: "/f"}
			c.compare(tc.before, tc.after)
			if c.FirstChangedLine != tc.first {
				t.Errorf("first changed line %d, want %d", c.FirstChangedLine, tc.first)
			}
			if c.Diff != tc.diff {
				t.Errorf("diff\n%s\nwant\n%s", c.Diff, tc.diff)
			}
			if want := "--- /f\n+++ /f\n" + tc.patch; tc.patch != "" && c.Patch != want {
				t.Errorf("patch\n%s\nwant\n%s", c.Patch, want)
			}
		})
	}
}

func TestEditRepairsNearlyRightArguments(t *testing.T) {
	for name, args := range map[string]string{
		"as it should be":          `{"path":"f","edits":[{"oldText":"a","newText":"b"}]}`,
		"list as a string":         `{"path":"f","edits":"[{\"oldText\":\"a\",\"newText\":\"b\"}]"}`,
		"object as a string":       `{"path":"f","edits":"{\"oldText\":\"a\",\"newText\":\"b\"}"}`,
		"one object":               `{"path":"f","edits":{"oldText":"a","newText":"b"}}`,
		"at the top":               `{"path":"f","oldText":"a","newText":"b"}`,
		"at the top, empty list":   `{"path":"f","oldText":"a","newText":"b","edits":[]}`,
		"at the top, null list":    `{"path":"f","oldText":"a","newText":"b","edits":null}`,
		"at the top and in a list": `{"path":"f","oldText":"a","newText":"b","edits":[{"oldText":"x","newText":"y"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t)
			s.mount.file(t, "f", "a x\n")
			r, state := s.execute(t.Context(), "edit", args)
			if state != messages.CallCompleted {
				t.Fatalf("%s: %s", state, text(r))
			}
			want, says := "b x\n", "replaced 1 block in f"
			if strings.Contains(args, `"x"`) {
				want, says = "b y\n", "replaced 2 blocks in f"
			}
			if got := s.mount.content(t, "f"); got != want || text(r) != says {
				t.Errorf("content %q, text %q", got, text(r))
			}
		})
	}
	for name, args := range map[string]string{
		"a string that is no JSON": `{"path":"f","edits":"a -> b"}`,
		"no list":                  `{"path":"f","edits":[]}`,
		"nothing":                  `{"path":"f"}`,
		"half at the top":          `{"path":"f","oldText":"a"}`,
		"a fault inside":           `{"path":"f","edits":[{"oldText":"a","newText":"b"},{"oldText":"a","new":"b"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t)
			s.mount.file(t, "f", "a\n")
			r, state := s.execute(t.Context(), "edit", args)
			if state != messages.CallError || details[problem](t, r).Error != "invalid_arguments" || !strings.Contains(text(r), "edits") {
				t.Errorf("%s: %s", state, text(r))
			}
			if name == "a fault inside" && !strings.Contains(text(r), "edits[1].newText: is missing; edits[1].new: is not a field") {
				t.Errorf("text %q", text(r))
			}
		})
	}
}

func TestEditTool(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "f.txt", "“a”\nb\n")
	if err := os.Chmod(s.mount.at("f.txt"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f.txt", s.mount.at("link")); err != nil {
		t.Fatal(err)
	}
	r, _ := s.call("edit", object{"path": "link", "edits": []object{{"oldText": `"a"`, "newText": "A"}}})
	if got := text(r); !strings.HasPrefix(got, "replaced 1 block in link\n\n[oldText did not match exactly") {
		t.Errorf("text %q", got)
	}
	if d := details[change](t, r); d.FirstChangedLine != 1 || d.Diff != "-1 “a”\n+1 A\n 2 b" || d.Path != s.mount.dir+"/link" {
		t.Errorf("details %+v", d)
	}
	if info, _ := os.Lstat(s.mount.at("link")); info.Mode()&fs.ModeSymlink == 0 {
		t.Error("the link is gone")
	}
	if info, _ := os.Stat(s.mount.at("f.txt")); info.Mode().Perm() != 0o755 || s.mount.content(t, "f.txt") != "A\nb\n" {
		t.Errorf("mode %v, content %q", info.Mode(), s.mount.content(t, "f.txt"))
	}
}

func TestEditFailuresChangeNothing(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "dir/f", "a\na\n")
	s.mount.file(t, "readonly", "a\n")
	s.mount.before = func(op, p string) error {
		if op == "write" && p == "readonly" {
			return fs.ErrPermission
		}
		return nil
	}
	edit := []object{{"oldText": "a", "newText": "b"}}
	for path, want := range map[string]string{
		"dir":      "cannot edit dir: is a directory (EISDIR)",
		"none":     "cannot edit none: no such file or directory (ENOENT)",
		"readonly": "cannot edit readonly: permission denied (EACCES)",
		"dir/f":    "cannot edit dir/f: edits[0]: oldText occurs 2 times, on lines 1, 2; add more of the text around it",
		"":         "path is empty",
	} {
		if got := s.fails("edit", object{"path": path, "edits": edit}); got != want {
			t.Errorf("edit %q: %q, want %q", path, got, want)
		}
	}
	if got := s.mount.content(t, "dir/f"); got != "a\na\n" {
		t.Errorf("content %q", got)
	}
	p := s.mount.file(t, "huge", "")
	if err := os.Truncate(p, maxEditBytes+1); err != nil {
		t.Fatal(err)
	}
	if got := s.fails("edit", object{"path": "huge", "edits": edit}); !strings.Contains(got, "larger than 32.0MB") {
		t.Errorf("text %q", got)
	}
}

func TestParallelEditsOfOneFileAllCount(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "n", numberLines(100))
	if err := os.Symlink("n", s.mount.at("alias")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := 1; i <= 100; i++ {
		wg.Go(func() {
			path := "n"
			if i%2 == 0 {
				path = "alias" // two names of one file share a lock
			}
			b, _ := json.Marshal(object{"path": path, "edits": []object{{"oldText": fmt.Sprintf("line %d\n", i), "newText": fmt.Sprintf("LINE %d!\n", i)}}})
			if r, state := s.execute(t.Context(), "edit", string(b)); state != messages.CallCompleted {
				t.Errorf("edit %d: %s", i, text(r))
			}
		})
	}
	wg.Wait()
	if got := strings.Count(s.mount.content(t, "n"), "!"); got != 100 {
		t.Errorf("%d of 100 edits are there", got)
	}
}
