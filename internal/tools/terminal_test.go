//go:build unix

package tools

import (
	"strings"
	"testing"
	"unicode/utf8"

	"codework/sandboxes"
)

func TestScreen(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "a\tb\nc\n", "a\tb\nc\n"},
		{"colours", "\x1b[31mred\x1b[0m \x1b[1;38;5;12mx\x1b[m\n", "red x\n"},
		{"overwritten progress", "\x1b[31mred\x1b[0m\r50%\r100%\n", "100%\n"},
		{"progress that is not overwritten", "50%\r", "50%"},
		{"progress and a line break", "50%\r\nnext\r\n", "50%\nnext\n"},
		{"carriage returns doubled", "a\r\r\nb\n", "a\nb\n"},
		{"overwritten shorter", "a long line\rok\n", "ok\n"},
		{"a title", "\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "alink\n"},
		{"a title that is not ended", "\x1b]0;title\nrest\n", "\nrest\n"},
		{"a sequence that is not ended", "\x1b[31\nrest\n", "\nrest\n"},
		{"a string of another kind", "\x1bPq#0\x1b\\x\n", "x\n"},
		{"charset", "\x1b(Bx\x1b=y\n", "xy\n"},
		{"escape inside a sequence", "\x1b[3\x1b[31mx", "x"},
		{"escape at the end", "x\x1b", "x"},
		{"backspace", "abc\b\bX\n\bé\b!\n", "aX\n!\n"},
		{"bell and others", "a\x07\x0b\x0c\x7fb", "ab"},
		{"NUL separates", "a\x00b\x00", "a\uFFFDb\uFFFD"},
		{"invalid UTF-8", "a\xffb\n", "a\uFFFDb\n"},
		{"half a character at the end", "a\xe2\x82", "a\uFFFD\uFFFD"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, len(tc.in)} {
				var s screen
				for b := []byte(tc.in); len(b) > 0; {
					n := min(size, len(b))
					s.add(sandboxes.Stdout, b[:n])
					b = b[n:]
				}
				s.finish()
				if got, _ := s.output(); got != tc.want {
					t.Errorf("by %d: %q, want %q", size, got, tc.want)
				}
			}
		})
	}
}

func TestScreenKeepsStreamsApart(t *testing.T) {
	var s screen
	s.add(sandboxes.Stdout, []byte("a\xc3"))
	s.add(sandboxes.Stderr, []byte("\x1b[3"))
	s.add(sandboxes.Stdout, []byte("\xa9"))
	s.add(sandboxes.Stderr, []byte("1mb"))
	if got, _ := s.output(); got != "aéb" {
		t.Errorf("%q", got)
	}
}

func TestScreenKeepsTheEndAndCountsAll(t *testing.T) {
	var s screen
	all := numberLines(200_000) + "ERROR\n"
	for b := []byte(all); len(b) > 0; {
		n := min(4000, len(b))
		s.add(sandboxes.Stdout, b[:n])
		b = b[n:]
	}
	got, cut := s.output()
	want, _ := Tail(all, MaxLines, MaxBytes)
	if got != want {
		t.Errorf("got %.50q…%q", got, got[len(got)-50:])
	}
	if cut.TotalLines != 200_001 || cut.OutputLines != 2000 || cut.TruncatedBy != byLines {
		t.Errorf("%+v", cut)
	}
	if cap(s.text) > 2*screenMax {
		t.Errorf("%d bytes are kept", cap(s.text))
	}
}

func TestScreenOfOneEndlessLine(t *testing.T) {
	var s screen
	for range 100 {
		s.add(sandboxes.Stdout, []byte(strings.Repeat("é", 25_000)))
	}
	got, cut := s.output()
	if len(got) > MaxBytes || len(got) < MaxBytes-1 || !utf8.ValidString(got) || cut.TotalLines != 1 || cut.OutputLines != 1 || !cut.Truncated {
		t.Errorf("%d bytes, %+v", len(got), cut)
	}
	s.add(sandboxes.Stdout, []byte("\rdone\n"))
	got, cut = s.output()
	if got != "done\n" || cut.TotalLines != 1 || !cut.Truncated {
		t.Errorf("%q, %+v", got, cut)
	}
}

// FuzzScreen holds: any way to divide the bytes gives the same text, which is
// valid, has no control characters but tabs and line breaks, and text without
// any of those comes out as it was.
func FuzzScreen(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b[0m\r50%\r\n\x1b]0;t\x07x"), uint8(3))
	f.Add([]byte("\xe2\x82\xacuro\b\b\x00"), uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		var whole, parts screen
		whole.add(sandboxes.Stdout, in)
		whole.finish()
		for b := in; len(b) > 0; {
			n := min(int(size)+1, len(b))
			parts.add(sandboxes.Stdout, b[:n])
			b = b[n:]
		}
		parts.finish()
		got, cut := whole.output()
		again, cutAgain := parts.output()
		if got != again || cut != cutAgain {
			t.Fatalf("whole %q, in parts %q", got, again)
		}
		if !utf8.ValidString(got) {
			t.Fatalf("not valid: %q", got)
		}
		plain := true
		for _, c := range in {
			plain = plain && !special[c]
		}
		for i := range len(got) {
			if special[got[i]] {
				t.Fatalf("control character in %q", got)
			}
		}
		if plain && utf8.Valid(in) && !cut.Truncated && got != string(in) {
			t.Fatalf("%q became %q", in, got)
		}
	})
}

func BenchmarkScreen(b *testing.B) {
	in := []byte(numberLines(4000))
	var s screen
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		s.add(sandboxes.Stdout, in)
	}
}
