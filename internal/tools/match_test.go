//go:build unix

package tools

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write what the code gives into the files of expected output")

// marks make visible what text files hide.
var marks = strings.NewReplacer("␍", "\r", "␄\n", "", "␢", "\ufeff")

func marked(s string) string {
	s = strings.NewReplacer("\r", "␍", "\ufeff", "␢").Replace(s)
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "␄\n"
	}
	return s
}

// TestEdits applies the edits of each file in testdata/edit: a line about it,
// the file (␍ is a carriage return, ␄ no line break at the end, ␢ a byte-order
// mark), the edits as JSON lines, and what comes out.
func TestEdits(t *testing.T) {
	files, err := filepath.Glob("testdata/edit/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			parts := strings.SplitN(string(b), "=====\n", 4)
			if len(parts) != 4 {
				t.Fatalf("%d parts", len(parts))
			}
			var edits []replacement
			for line := range strings.Lines(parts[2]) {
				if strings.TrimSpace(line) == "" {
					continue
				}
				var e replacement
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
				edits = append(edits, e)
			}
			out, err := applyEdits(marks.Replace(parts[1]), edits)
			got := marked(out.content)
			switch {
			case err != nil:
				got = "error: " + err.Error() + "\n"
			case out.forgiving:
				got = "(forgiving)\n" + got
			}
			if *update {
				parts[3] = got
				if err := os.WriteFile(name, []byte(strings.Join(parts, "=====\n")), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got != parts[3] {
				t.Errorf("%sgot:\n%s\nwant:\n%s", parts[0], got, parts[3])
			}
		})
	}
}

// FuzzEdit holds one edit against its rule. In the exact form the result, line
// endings aside, is the text with its one occurrence replaced, every byte in
// front of and behind it is the file's own, and a new line break is the
// file's. In the forgiving form the lines outside the match keep their bytes,
// and the result reads, in the forgiving form, like the replacement made
// there. What is refused is refused for the stated reason.
func FuzzEdit(f *testing.F) {
	f.Add("a\r\nb\nc", "b", "B\nB")
	f.Add("\ufeffusing X;\n", "using", "Using")
	f.Add("“q” – x  \ny\n", "\"q\" - x\ny", "z")
	f.Add("ﬁne\n", "ine", "x")
	f.Add("aaa", "aa", "b")
	f.Add("e\u0301\n", "é", "e")
	f.Add("foo\tbar", "foo ", "x")
	f.Add("x \u00a8", "x", "y")
	f.Fuzz(func(t *testing.T, file, old, new string) {
		if len(file) > 1<<12 || strings.Contains(file+old+new, "\r\r") || !utf8.ValidString(old) || !utf8.ValidString(new) ||
			strings.Contains(file, "\ufeff") || strings.Contains(old+new, "\ufeff") {
			t.Skip()
		}
		checkEdit(t, file, old, new)
	})
}

// checkEdit holds the rule of FuzzEdit.
func checkEdit(t interface{ Fatalf(string, ...any) }, file, old, new string) {
	out, err := applyEdits(file, []replacement{{old, new}})
	unixFile, unixOld, unixNew := unixLines(file), unixLines(old), unixLines(new)
	exact := 0
	if unixOld != "" {
		exact = len(occurrences(unixFile, unixOld))
	}
	if err != nil {
		switch {
		case old == "", exact > 1 && strings.Contains(err.Error(), "occurs"):
		case exact == 1 && strings.Contains(err.Error(), "equals") && unixOld == unixNew:
		case exact == 1 && strings.Contains(err.Error(), "equals") && strings.Contains(unixOld+unixNew, "\r"):
		case exact == 0:
		default:
			t.Fatalf("refused with %d exact matches: %v", exact, err)
		}
		return
	}
	if out.forgiving != (exact == 0) || exact > 1 {
		t.Fatalf("forgiving %v with %d exact matches", out.forgiving, exact)
	}
	if !out.forgiving {
		at := strings.Index(unixFile, unixOld)
		want := unixFile[:at] + unixNew + unixFile[at+len(unixOld):]
		if !strings.Contains(want, "\r") && unixLines(out.content) != want {
			t.Fatalf("got %q, want %q", out.content, want)
		}
		l := newLines(file)
		head, tail := file[:l.rawIndex(at)], file[l.rawIndex(at+len(unixOld)):]
		if !strings.HasPrefix(out.content, head) || !strings.HasSuffix(out.content, tail) || len(out.content) < len(head)+len(tail) {
			t.Fatalf("bytes outside the edit changed: %q from %q", out.content, file)
		}
		return
	}
	// What lies in front of the first and behind the last line that
	// changed is a part of the file in whole lines; what is between must
	// be explained by the one match.
	was := newForgiven(unixFile).text
	needle := newForgiven(unixOld).text
	if !strings.Contains(was, needle) || needle == "" {
		t.Fatalf("%q is not in %q", needle, was)
	}
	found := false
	core := strings.Trim(unixNew, " \t\n")
	there := strings.Contains(unixLines(out.content), core) || strings.Contains(newForgiven(unixLines(out.content)).text, newForgiven(core).text)
	for _, at := range occurrences(was, needle) {
		begin := strings.Count(was[:at], "\n")
		end := strings.Count(was[at+len(needle):], "\n")
		lines := strings.SplitAfter(file, "\n")
		head := strings.Join(lines[:begin], "")
		tail := strings.Join(lines[len(lines)-end:], "")
		if strings.HasPrefix(out.content, head) && strings.HasSuffix(out.content, tail) && there {
			found = true
		}
	}
	if !found && !hasMarks(unixNew) {
		t.Fatalf("no match explains %q from %q by %q to %q", out.content, file, old, new)
	}
}

// editAlphabet has everything that the forgiving form treats in its own way.
var editAlphabet = []string{"a", "b", "a", "b", "\n", "\n", "\r\n", " ", "\t", "\"", "“", "”", "-", "–", "\u00a0", "ﬁ", "fi", "é", "e\u0301", "\u0301", "ＡＢ", "\u00a8", "\xff"}

func textOf(n int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(editAlphabet), 0, n).Draw(t, "parts"), "")
	})
}

func TestEditsOfManyTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		file, old, new := textOf(20).Draw(t, "file"), textOf(4).Draw(t, "old"), textOf(4).Draw(t, "new")
		if rapid.Bool().Draw(t, "there") { // as a model would type it
			begin := rapid.IntRange(0, len(file)).Draw(t, "begin")
			old = lookAlike.Replace(file[begin:rapid.IntRange(begin, len(file)).Draw(t, "end")])
		}
		if utf8.ValidString(old) && utf8.ValidString(new) {
			checkEdit(t, file, old, new)
		}
	})
}

// TestSeveralEditsAreIndependent cuts a file of unlike lines into pieces and
// replaces some of them, in any order: the result is that of replacing each.
func TestSeveralEditsAreIndependent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var file, want strings.Builder
		var edits []replacement
		for i := range rapid.IntRange(1, 20).Draw(t, "pieces") {
			piece := fmt.Sprintf("<%d>%s", i, rapid.SampledFrom([]string{"", "\r\n", "\n", " x "}).Draw(t, "end"))
			file.WriteString(piece)
			if rapid.Bool().Draw(t, "edited") {
				new := rapid.SampledFrom([]string{"", "new", "<<>>"}).Draw(t, "new")
				edits = append(edits, replacement{piece, new})
				piece = new
			}
			want.WriteString(piece)
		}
		if len(edits) == 0 {
			return
		}
		out, err := applyEdits(file.String(), rapid.Permutation(edits).Draw(t, "order"))
		if err != nil || out.content != want.String() || out.forgiving {
			t.Fatalf("%q: got %q, %v, want %q", file.String(), out.content, err, want.String())
		}
	})
}

// hasMarks tells whether s holds characters that may join with what is in
// front of them once they are normalised.
func hasMarks(s string) bool {
	for _, r := range s {
		if r > 0x7f {
			return true
		}
	}
	return false
}

func TestForgivenMapsBack(t *testing.T) {
	// Every place of the forgiving text leads to where it came from.
	original := "plain “q”  \nﬁ e\u0301 – end\t\n\nlast \u00a0"
	f := newForgiven(original)
	if want := "plain \"q\"\nfi é - end\n\nlast"; f.text != want {
		t.Fatalf("text %q, want %q", f.text, want)
	}
	for i := range len(f.text) {
		if i > 0 && !utf8.RuneStart(f.text[i]) {
			continue
		}
		at, keep := f.start(i)
		if got := newForgiven(original[at:]).text; got != keep+f.text[i:] {
			t.Errorf("start(%d) = %d, %q: leads to %q, want %q", i, at, keep, got, f.text[i:])
		}
	}
}

func benchmarkFile() string {
	var b strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&b, "func name%d(a, b int) int { return a + b*%d }\r\n", i, i)
	}
	return b.String()
}

func BenchmarkEditExact(b *testing.B) {
	file := benchmarkFile()
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if _, err := applyEdits(file, []replacement{{"b*15000 }", "b }"}, {"b*10 }", "b }"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEditForgiving(b *testing.B) {
	file := benchmarkFile() + "“the end”\r\n"
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if _, err := applyEdits(file, []replacement{{"b*15000 }", "b }"}, {`"the end"`, "x"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompare(b *testing.B) {
	file := benchmarkFile()
	after, err := applyEdits(file, []replacement{{"b*15000 }", "b }"}, {"b*10 }", "b }"}})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		c := change{Path: "/f"}
		c.compare(file, after.content)
		if c.Patch == "" {
			b.Fatal("no patch")
		}
	}
}
