package ssh

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode"

	"codework/sandboxes"
)

// isConfig is a refusal of a configuration.
func isConfig(err error) bool {
	var ce *sandboxes.ConfigError
	return errors.As(err, &ce)
}

func TestAddresses(t *testing.T) {
	for id, want := range map[string]address{
		"ssh://u@h/":                   {"u", "h", 22, "/"},
		"ssh://u@h/a/b":                {"u", "h", 22, "/a/b"},
		"ssh://u@h:22/a":               {"u", "h", 22, "/a"},
		"ssh://u@h.example:2222/a//./": {"u", "h.example", 2222, "/a"},
		"ssh://u@[::1]:2222/a":         {"u", "::1", 2222, "/a"},
		"ssh://u@[fe80::1]/a":          {"u", "fe80::1", 22, "/a"},
		"ssh://first.last@h/a%20b":     {"first.last", "h", 22, "/a b"},
	} {
		got, err := parseAddress(id)
		if err != nil || got != want {
			t.Errorf("%s: %+v %v", id, got, err)
		}
		if again, err := parseAddress(got.String()); err != nil || again != got {
			t.Errorf("%s became %s: %+v %v", id, got, again, err)
		}
	}
	for _, id := range []string{
		"", "h", "u@h:/a", "ssh://", "ssh://h/a", "ssh://@h/a", "ssh://u@/a", "ssh://u@h", "ssh:u@h/a", "http://u@h/a",
		"ssh://u@h/a b", "ssh://u@h/a\n", "ssh://u@h/a%0Ab", "ssh://u@h/a\x00", "ssh://u@h/\u0085", "ssh://u%0A@h/a", "ssh://u@h/a?x", "ssh://u@h/a#x", "ssh://u@h/a?",
		"ssh://u@::1/", "ssh://u@[:]/a", "ssh://u@h:0/a", "ssh://u@h:70000/a", "ssh://u@h:x/a", "ssh://u@h/a/../b", "ssh://u@h/%2e%2e/b", "ssh://u@h/" + strings.Repeat("a", maxResource),
	} {
		if got, err := parseAddress(id); !isConfig(err) {
			t.Errorf("%.60q: %+v %v", id, got, err)
		}
	}
	if _, err := parseAddress("ssh://u:hunter2@h/a"); !isConfig(err) || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	if _, err := parseAddress("ssh://u:hunter2@h:port/a"); !isConfig(err) || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

// FuzzAddress reads resource ids. The rule: what is taken has every part, an
// absolute folder without "..", and comes back the same from its own text.
func FuzzAddress(f *testing.F) {
	for _, id := range []string{"ssh://u@h/a", "ssh://u@[::1]:1/a%20b", "ssh://u:p@h/..", "ssh://u@h:22/"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		a, err := parseAddress(id)
		if err != nil {
			if !isConfig(err) {
				t.Errorf("%v is no refusal", err)
			}
			return
		}
		if a.user == "" || a.host == "" || a.port < 1 || !strings.HasPrefix(a.dir, "/") || strings.Contains(a.dir+"/", "/../") ||
			strings.ContainsFunc(a.dir+a.user+a.host, unicode.IsControl) {
			t.Errorf("%q: %+v", id, a)
		}
		if again, err := parseAddress(a.String()); err != nil || again != a {
			t.Errorf("%q: %+v became %s: %+v %v", id, a, a, again, err)
		}
	})
}

// FuzzReplies reads what hosts answer. The rule: an answer that is taken has an
// absolute home, shell and folder for scratch.
func FuzzReplies(f *testing.F) {
	f.Add("os=Linux\narch=x86_64\nhome=/root\ncache=/c\nrunner=00\nfolder=yes\n")
	f.Add("unshare=unshare --pid\nsetsid=yes\nshell=/bin/sh\nname=PATH\nscratch=/tmp\n")
	f.Fuzz(func(t *testing.T, reply string) {
		if got, err := parseFacts(reply); err == nil && (!strings.HasPrefix(got.home, "/") || got.os == "") {
			t.Errorf("%+v", got)
		}
		if got, err := parseMeans(reply); err == nil && (!strings.HasPrefix(got.shell, "/") || !strings.HasPrefix(got.scratch, "/")) {
			t.Errorf("%+v", got)
		}
		if line, err := oneLine(reply); err == nil && (line == "" || line[0] != '/') {
			t.Errorf("%q", line)
		}
	})
}

// FuzzFraming finds output between noise and the last line, in pieces of any
// size. The rule: what was printed comes out, whole and in order, and so does
// the verdict.
func FuzzFraming(f *testing.F) {
	f.Add("welcome\n", []byte("out\n"), "0", 3)
	f.Add("", []byte("\nTOKEN\nTOKEN"), "143 left", 1)
	f.Add("no newline", []byte{}, "folder", 100)
	f.Fuzz(func(t *testing.T, noise string, output []byte, verdict string, size int) {
		const token = "TOKEN-of-this-command"
		if size < 1 || len(verdict) > maxVerdict || strings.Contains(verdict, "\n") || len(noise) > maxNoise ||
			strings.Contains(noise, token) || bytes.Contains(output, []byte(token)) {
			return
		}
		all := append([]byte(noise+"\n"+token+"\n"), output...)
		all = append(all, "\n"+token+" "+verdict+"\n"+"what a job prints later"...)
		fr := newFraming(token)
		var got []byte
		done := false
		for at := 0; at < len(all) && !done; at += size {
			var out []byte
			out, done = fr.take(all[at:min(at+size, len(all))])
			got = append(got, out...)
		}
		if !done || fr.verdict != verdict || !bytes.Equal(got, output) {
			t.Errorf("done %v: %q with %q, want %q with %q", done, got, fr.verdict, output, verdict)
		}
	})
}

func TestFramingIsBounded(t *testing.T) {
	f := newFraming("TOKEN")
	done := false
	for i := 0; !done; i++ {
		if i > maxNoise/100+1 || len(f.held) > maxNoise {
			t.Fatalf("%d bytes are kept", len(f.held))
		}
		_, done = f.take(bytes.Repeat([]byte("x"), 100))
	}
	f = newFraming("TOKEN")
	if _, done := f.take([]byte("\nTOKEN\nout\nTOKEN " + strings.Repeat("x", maxVerdict+1))); !done || f.verdict != "" {
		t.Error("a verdict without end")
	}
}

func TestQuoting(t *testing.T) {
	for in, want := range map[string]string{"": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(id)\n": "'$(id)\n'"} {
		if got := quote(in); got != want {
			t.Errorf("%q: %s", in, got)
		}
	}
}
