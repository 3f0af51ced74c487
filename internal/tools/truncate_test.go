//go:build unix

package tools

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestHead(t *testing.T) {
	for _, tc := range []struct {
		in           string
		lines, bytes int
		want         string
		cut          Cut
	}{
		{"", 2, 9, "", Cut{}},
		{"\n", 2, 9, "\n", Cut{TotalLines: 1, OutputLines: 1, OutputBytes: 1}},
		{"a\nb\n", 2, 9, "a\nb\n", Cut{TotalLines: 2, OutputLines: 2, OutputBytes: 4}},
		{"a\nb", 2, 9, "a\nb", Cut{TotalLines: 2, OutputLines: 2, OutputBytes: 3}},
		{"a\nb\nc\n", 2, 9, "a\nb", Cut{Truncated: true, TruncatedBy: byLines, TotalLines: 3, OutputLines: 2, OutputBytes: 3}},
		{"abcd\nefgh\n", 9, 9, "abcd\nefgh", Cut{TotalLines: 2, OutputLines: 2, OutputBytes: 9}},
		{"abcd\nefghi\n", 9, 9, "abcd", Cut{Truncated: true, TruncatedBy: byBytes, TotalLines: 2, OutputLines: 1, OutputBytes: 4}},
		{"abcdefghij\nk\n", 9, 9, "", Cut{Truncated: true, TruncatedBy: byBytes, TotalLines: 2}},
		{"\n\n\n", 2, 9, "\n", Cut{Truncated: true, TruncatedBy: byLines, TotalLines: 3, OutputLines: 2, OutputBytes: 1}},
		// both limits at once: the one that is hit first is named
		{"a\nb\ncccccccccc\n", 2, 9, "a\nb", Cut{Truncated: true, TruncatedBy: byLines, TotalLines: 3, OutputLines: 2, OutputBytes: 3}},
	} {
		got, cut := Head(tc.in, tc.lines, tc.bytes)
		tc.cut.MaxLines, tc.cut.MaxBytes = tc.lines, tc.bytes
		if got != tc.want || cut != tc.cut {
			t.Errorf("Head(%q, %d, %d) = %q %+v\nwant %q %+v", tc.in, tc.lines, tc.bytes, got, cut, tc.want, tc.cut)
		}
	}
}

func TestTail(t *testing.T) {
	for _, tc := range []struct {
		in           string
		lines, bytes int
		want         string
		cut          Cut
	}{
		{"", 2, 9, "", Cut{}},
		{"a\nb\n", 2, 9, "a\nb\n", Cut{TotalLines: 2, OutputLines: 2, OutputBytes: 4}},
		{"a\nb\nc\n", 2, 9, "b\nc", Cut{Truncated: true, TruncatedBy: byLines, TotalLines: 3, OutputLines: 2, OutputBytes: 3}},
		{"a\nb\nc", 2, 9, "b\nc", Cut{Truncated: true, TruncatedBy: byLines, TotalLines: 3, OutputLines: 2, OutputBytes: 3}},
		{"abcde\nefgh\n", 9, 9, "efgh", Cut{Truncated: true, TruncatedBy: byBytes, TotalLines: 2, OutputLines: 1, OutputBytes: 4}},
		{"a\n0123456789x", 9, 9, "23456789x", Cut{Truncated: true, TruncatedBy: byBytes, TotalLines: 2, OutputLines: 1, OutputBytes: 9}},
		{"éééééé", 9, 9, "éééé", Cut{Truncated: true, TruncatedBy: byBytes, TotalLines: 1, OutputLines: 1, OutputBytes: 8}},
		{"\n\n\n", 2, 9, "\n", Cut{Truncated: true, TruncatedBy: byLines, TotalLines: 3, OutputLines: 2, OutputBytes: 1}},
	} {
		got, cut := Tail(tc.in, tc.lines, tc.bytes)
		tc.cut.MaxLines, tc.cut.MaxBytes = tc.lines, tc.bytes
		if got != tc.want || cut != tc.cut {
			t.Errorf("Tail(%q, %d, %d) = %q %+v\nwant %q %+v", tc.in, tc.lines, tc.bytes, got, cut, tc.want, tc.cut)
		}
	}
}

// FuzzTruncate holds both directions against their rule: what is kept is a
// part of the text from its beginning (or to its end, a last newline aside),
// within both limits, made of whole lines (but for a last line that is too
// long by itself), and no further line would have fitted.
func FuzzTruncate(f *testing.F) {
	f.Add("a\nb\nc\n", 2, 4)
	f.Add("", 1, 1)
	f.Add("\n\n", 1, 1)
	f.Add("ééé\nü", 3, 3)
	f.Add("no newline", 1, 4)
	f.Fuzz(func(t *testing.T, s string, lines, bytes int) {
		if lines < 1 || bytes < 1 || lines > 1<<20 || bytes > 1<<20 || !utf8.ValidString(s) {
			t.Skip()
		}
		body := strings.TrimSuffix(s, "\n")
		all := strings.Split(body, "\n")
		if s == "" {
			all = nil
		}
		check := func(what, got string, cut Cut) {
			if cut.TotalLines != len(all) || cut.MaxLines != lines || cut.MaxBytes != bytes {
				t.Fatalf("%s: %+v for %d lines", what, cut, len(all))
			}
			if cut.OutputBytes != len(got) || len(got) > bytes || cut.OutputLines > lines || !utf8.ValidString(got) {
				t.Fatalf("%s: %q %+v", what, got, cut)
			}
			if !cut.Truncated && (got != s && got != body || cut.TruncatedBy != "" || cut.OutputLines != len(all)) {
				t.Fatalf("%s: not truncated, but %q %+v", what, got, cut)
			}
		}
		got, cut := Head(s, lines, bytes)
		check("head", got, cut)
		if cut.Truncated {
			if got != strings.Join(all[:cut.OutputLines], "\n") {
				t.Fatalf("head: %q is not the first %d lines of %q", got, cut.OutputLines, s)
			}
			if cut.TruncatedBy == byBytes && len(strings.Join(all[:cut.OutputLines+1], "\n")) <= bytes {
				t.Fatalf("head: another line fits into %q", got)
			}
			if cut.TruncatedBy == byLines && cut.OutputLines != lines {
				t.Fatalf("head: %+v", cut)
			}
		}
		got, cut = Tail(s, lines, bytes)
		check("tail", got, cut)
		if cut.Truncated {
			if !strings.HasSuffix(body, got) {
				t.Fatalf("tail: %q is not the end of %q", got, s)
			}
			whole := strings.Join(all[len(all)-cut.OutputLines:], "\n")
			partial := cut.OutputLines == 1 && len(all[len(all)-1]) > bytes
			if got != whole && !partial {
				t.Fatalf("tail: %q is not the last %d lines of %q", got, cut.OutputLines, s)
			}
			if partial && len(got) < bytes-utf8.UTFMax+1 {
				t.Fatalf("tail: %q could be longer", got)
			}
			if cut.TruncatedBy == byLines && cut.OutputLines != lines {
				t.Fatalf("tail: %+v", cut)
			}
		}
	})
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1024: "1.0KB", 51200: "50.0KB", 1<<20 - 1: "1024.0KB", 1 << 20: "1.0MB", 5 << 19: "2.5MB"} {
		if got := formatSize(n); got != want {
			t.Errorf("formatSize(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestNotice(t *testing.T) {
	for _, tc := range []struct {
		text  string
		notes []string
		want  string
	}{
		{"a\n", nil, "a\n"},
		{"a\n", []string{""}, "a\n"},
		{"a\n", []string{"x", "", "y"}, "a\n\n[x. y]"},
		{"", []string{"x"}, "[x]"},
	} {
		if got := notice(tc.text, tc.notes...); got != tc.want {
			t.Errorf("notice(%q, %q) = %q, want %q", tc.text, tc.notes, got, tc.want)
		}
	}
}

func numberLines(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, "line", i)
	}
	return b.String()
}

func BenchmarkHead(b *testing.B) {
	s := numberLines(100_000)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		Head(s, MaxLines, MaxBytes)
	}
}

func BenchmarkTail(b *testing.B) {
	s := numberLines(100_000)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		Tail(s, MaxLines, MaxBytes)
	}
}
