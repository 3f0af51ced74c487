//go:build unix

package tools

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"codework/messages"
)

func TestReadWindows(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	for _, tc := range []struct {
		name, file    string
		offset, limit any
		want          string
		cut           Cut
	}{
		{name: "whole file", file: "a\nb\n", want: "a\nb\n", cut: Cut{TotalLines: 2, OutputLines: 2, OutputBytes: 4}},
		{name: "no newline at the end", file: "a\nb", want: "a\nb", cut: Cut{TotalLines: 2, OutputLines: 2, OutputBytes: 3}},
		{name: "empty", file: "", want: "(empty file)"},
		{name: "empty from line 1", file: "", offset: 1, want: "(empty file)"},
		{name: "blank lines", file: "\n\n", want: "[2 blank lines]"},
		{name: "from an offset", file: "a\nb\nc\n", offset: 2, want: "b\nc\n"},
		{name: "offset below 1 is 1", file: "a\nb\n", offset: -3, want: "a\nb\n"},
		{name: "fractions are cut off", file: "a\nb\nc\n", offset: 2.9, limit: 1.5, want: "b\n\n[1 more lines. Use offset=3 to go on]"},
		{name: "limit below 1 is 1", file: "a\nb\n", limit: 0, want: "a\n\n[1 more lines. Use offset=2 to go on]"},
		{name: "limit reached at the end", file: "a\nb\n", limit: 2, want: "a\nb\n"},
		{name: "limit reached, more follows", file: numberLines(10), offset: 3, limit: 2, want: "line 3\nline 4\n\n[6 more lines. Use offset=5 to go on]",
			cut: Cut{TotalLines: 10, OutputLines: 2, OutputBytes: 13}},
		{name: "cut by lines", file: numberLines(2500), offset: 101, want: "line 101…line 2100\n\n[lines 101-2100 of 2500. Use offset=2101 to go on]",
			cut: Cut{Truncated: true, TruncatedBy: byLines, TotalLines: 2500, OutputLines: 2000, OutputBytes: 19100}},
		{name: "a limit above the line limit", file: numberLines(2500), limit: 2400, want: "line 1…line 2000\n\n[lines 1-2000 of 2500. Use offset=2001 to go on]"},
		{name: "cut by bytes", file: "a\nb\n" + long[:51190] + "\nccccccccc\n", want: "a…" + long[:51190] + "\n\n[lines 1-3 of 4 (50.0KB limit). Use offset=4 to go on]",
			cut: Cut{Truncated: true, TruncatedBy: byBytes, TotalLines: 4, OutputLines: 3, OutputBytes: 51194}},
		{name: "a line too long behind others", file: "a\n" + long + "\nb\n", want: "a\n\n[lines 1-1 of 3 (50.0KB limit). Use offset=2 to go on]"},
		{name: "first line too long", file: "a\n" + long + "\nb\n", offset: 2,
			want: "[line 2 is 60.0KB, more than the 50.0KB a call can show. View a part with bash: sed -n 2p 'f' | head -c 51200]"},
		{name: "exactly 50 KiB", file: long[:50<<10] + "\n", want: long[:50<<10]},
		{name: "byte-order mark is hidden", file: "\xef\xbb\xbfusing X;\n", want: "using X;\n"},
		{name: "carriage returns stay", file: "a\r\nb\r\n", want: "a\r\nb\r\n"},
		{name: "invalid UTF-8", file: "caf\xe9\xe8\n", want: "caf\uFFFD\uFFFD\n"},
		{name: "invalid UTF-8 grows over the limit", file: strings.Repeat(strings.Repeat("\xe9", 999)+"\n", 30), want: strings.Repeat("\uFFFD", 999) + "…\n\n[lines 1-17 of 30 (50.0KB limit). Use offset=18 to go on]"},
		{name: "NUL far inside is text", file: strings.Repeat("a", 8000) + "\x00\n", want: strings.Repeat("a", 8000) + "\x00\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			s.mount.file(t, "f", tc.file)
			args := object{"path": "f"}
			if tc.offset != nil {
				args["offset"] = tc.offset
			}
			if tc.limit != nil {
				args["limit"] = tc.limit
			}
			r, state := s.call("read", args)
			if state != messages.CallCompleted {
				t.Fatalf("%s: %s", state, text(r))
			}
			begin, end, _ := strings.Cut(tc.want, "…")
			if got := text(r); !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) || !strings.Contains(tc.want, "…") && got != tc.want {
				t.Errorf("got %.200q … %q\nwant %.200q", got, got[max(0, len(got)-100):], tc.want)
			}
			if tc.cut != (Cut{}) {
				tc.cut.MaxLines, tc.cut.MaxBytes = MaxLines, MaxBytes
				if d := details[Cut](t, r); d != tc.cut {
					t.Errorf("details %+v\nwant %+v", d, tc.cut)
				}
			}
		})
	}
}

func TestReadFailures(t *testing.T) {
	s := newSession(t)
	s.mount.file(t, "dir/f", "a\nb\n")
	s.mount.file(t, "bin", "a\x00b")
	if err := syscall.Mkfifo(s.mount.at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.mount.before = func(op, p string) error {
		if op == "read" && strings.HasSuffix(p, "secret") {
			return fs.ErrPermission
		}
		return nil
	}
	s.mount.file(t, "secret", "x")
	for _, tc := range []struct {
		args object
		want string
	}{
		{object{"path": "@no/such"}, "cannot read no/such: no such file or directory (ENOENT)"},
		{object{"path": "dir"}, "cannot read dir: is a directory (EISDIR); list it with a command"},
		{object{"path": "pipe"}, "cannot read pipe: not a regular file"},
		{object{"path": "dir/f/x"}, "cannot read dir/f/x: not a directory (ENOTDIR)"},
		{object{"path": "bin"}, "cannot read bin: it is a binary file (3B); use a command to inspect it"},
		{object{"path": "secret"}, "cannot read secret: permission denied (EACCES)"},
		{object{"path": "dir/f", "offset": 4}, "cannot read dir/f from line 4: it has 2 lines"},
		{object{"path": ""}, "path is empty"},
		{object{"path": "@"}, "path is empty"},
	} {
		if got := s.fails("read", tc.args); got != tc.want {
			t.Errorf("read %v: %q, want %q", tc.args, got, tc.want)
		}
	}
	if got := s.fails("read", object{"path": strings.Repeat("long/", 700)}); len(got) > 500 {
		t.Errorf("a long path is repeated whole: %d bytes", len(got))
	}
}

func TestReadFindsNamesThatModelsCannotType(t *testing.T) {
	for asked, real := range map[string]string{
		"Screenshot 9.41 AM.txt":      "Screenshot 9.41\u202fAM.txt",
		"at 9 pm":                     "at 9\u202fpm",
		"caf\u00e9.txt":               "cafe\u0301.txt",
		"it's.txt":                    "it\u2019s.txt",
		"l'\u00e9t\u00e9.txt":         "l\u2019e\u0301te\u0301.txt",
		"plain\u00a0space.txt":        "plain space.txt",
		"Screenshot 9.41\u202fAM.txt": "Screenshot 9.41\u202fAM.txt",
	} {
		s := newSession(t)
		s.mount.file(t, real, "here")
		if got := s.ok("read", object{"path": asked}); got != "here" {
			t.Errorf("read %q gave %q", asked, got)
		}
	}
}

func TestReadHoldsOnlyTheWindow(t *testing.T) {
	s := newSession(t)
	line := strings.Repeat("y", 99) + "\n"
	big := strings.Repeat(line, 400_000) // 40 MB
	s.mount.file(t, "big", big[:len(big)-len(line)]+"the end\n")
	big = ""
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	got := s.ok("read", object{"path": "big", "offset": 399_999})
	runtime.ReadMemStats(&after)
	if got != line+"the end\n" {
		t.Errorf("got %q", got)
	}
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 24<<20 {
		t.Errorf("memory grew by %d MB", grown>>20)
	}
}

func TestReadStopsCountingFarBehindTheWindow(t *testing.T) {
	s := newSession(t)
	p := s.mount.file(t, "huge", strings.Repeat("short\n", 2000))
	if err := os.Truncate(p, 300<<20); err != nil { // a hole of NULs, no line break in it
		t.Fatal(err)
	}
	got := s.ok("read", object{"path": "huge", "limit": 10})
	if !strings.HasSuffix(got, "\n\n[more than 1991 more lines. Use offset=11 to go on]") {
		t.Errorf("got %q", got[max(0, len(got)-100):])
	}
	if s.mount.read > maxScanBytes+2*chunkBytes {
		t.Errorf("%d MB were read", s.mount.read>>20)
	}
}

func TestReadOfAFileWhoseSizeIsNotKnown(t *testing.T) {
	s := newSession(t)
	got := s.ok("read", object{"path": "/proc/self/status", "limit": 1})
	if !strings.HasPrefix(got, "Name:") {
		t.Errorf("got %q", got)
	}
}

// FuzzReadWindow compares the window that was collected chunk by chunk with
// what splitting the whole file gives.
func FuzzReadWindow(f *testing.F) {
	f.Add([]byte("a\nb\nc\n"), uint8(1), uint8(2), uint8(2))
	f.Add([]byte("\n\n\xff\xfe\n"), uint8(0), uint8(1), uint8(1))
	f.Add([]byte("x"), uint8(3), uint8(9), uint8(7))
	f.Fuzz(func(t *testing.T, file []byte, skip, limit, chunk uint8) {
		if len(file) > 4096 || bytes.HasPrefix(file, utf8BOM) {
			t.Skip()
		}
		w := window{first: int(skip) + 1, lines: int(limit) + 1, limited: int(limit) + 1, about: newDigest()}
		for b := file; len(b) > 0; {
			n := min(len(b), int(chunk)+1)
			if !w.add(b[:n]) {
				t.Fatal("stopped early")
			}
			b = b[n:]
		}
		w.end()
		r, err := w.result("f")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(bytes.Runes(file)), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		if int(skip) >= max(1, len(lines)) {
			if !r.IsError {
				t.Fatalf("offset %d of %d lines: %q", skip+1, len(lines), text(r))
			}
			return
		}
		end := min(len(lines), int(skip)+int(limit)+1)
		want := strings.Join(lines[min(int(skip), len(lines)):end], "")
		if len(want) > MaxBytes || strings.TrimSpace(want) == "" {
			return // the tables show these
		}
		if end < len(lines) {
			want = notice(want, fmt.Sprintf("%d more lines. Use offset=%d to go on", len(lines)-end, end+1))
		}
		if text(r) != want {
			t.Fatalf("got %q, want %q", text(r), want)
		}
	})
}

func TestPathsAreCleaned(t *testing.T) {
	for arg, want := range map[string]string{
		"a/b": "a/b", "@a": "a", "@@a": "@a", "a\u00a0b\u2009c": "a b c", "": "", "../x": "../x",
	} {
		if got := cleanPath(arg); got != want {
			t.Errorf("cleanPath(%q) = %q, want %q", arg, got, want)
		}
	}
}

func TestFileReasonIsShort(t *testing.T) {
	if got := fileReason(errors.New("a\n" + strings.Repeat("b", 9999))); len(got) > 300 || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
}
