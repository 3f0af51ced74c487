package daytona

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"codework/sandboxes"
)

// split takes a log apart in pieces of n bytes.
func split(log []byte, n int, token string) (out [3]string, verdicts [3]string) {
	var d demux
	ends := [3]*ending{1: newEnding(token), 2: newEnding(token)}
	for len(log) > 0 {
		k := min(n, len(log))
		d.take(log[:k], func(s sandboxes.Stream, b []byte) { out[s] += string(ends[s].take(b)) })
		log = log[k:]
	}
	for s := 1; s < 3; s++ {
		out[s] += string(ends[s].rest())
		verdicts[s] = ends[s].verdict
	}
	return out, verdicts
}

func TestLogsAreTakenApartWhereverTheyAreSplit(t *testing.T) {
	for _, c := range []struct{ log, out, err, verdict string }{
		{"", "", "", ""},
		{"plain\n", "plain\n", "", ""},
		{"\x01\x01\x01out\n\x02\x02\x02err\n\x01\x01\x01more\n", "out\nmore\n", "err\n", ""},
		{"\x01\x01\x01a\x01b\x01\x01c\n", "a\x01b\x01\x01c\n", "", ""},
		{"\x01\x01\x01a\x02\x01\x02\n", "a\x02\x01\x02\n", "", ""},
		{"\x01\x01\x01out\n\x01\x01\x01\n\x01\x01\x01T 0\n\x02\x02\x02\n\x02\x02\x02T 0\n", "out\n", "", "0"},
		{"\x01\x01\x01part\n\x01\x01\x01T 7 left\n", "part", "", "7 left"},
		{"\x01\x01\x01\nT\nTx 1\n\nT 3\nafter", "\nT\nTx 1\n", "", "3"},
		{"\x01\x01\x01unfinished\n", "unfinished\n", "", ""},
		{"\x01\x01\x01unfinished\nT", "unfinished\nT", "", ""},
	} {
		for n := 1; n <= len(c.log)+1; n++ {
			out, verdicts := split([]byte(c.log), n, "T")
			if out[1] != c.out || out[2] != c.err || verdicts[1] != c.verdict {
				t.Errorf("%q by %d: %q %q %q", c.log, n, out[1], out[2], verdicts[1])
			}
		}
	}
}

// However a log is split, the result is the same; what has neither marks nor
// the token comes out as it is.
func FuzzLog(f *testing.F) {
	f.Add([]byte("\x01\x01\x01out\n\x02\x02\x02err\n\nT 0\n"), 3)
	f.Add([]byte("\x01\x01\x02\x02\x02\x01\n\nT\n"), 1)
	f.Fuzz(func(t *testing.T, log []byte, n int) {
		if n < 1 {
			return
		}
		whole, v := split(log, len(log)+1, "T")
		pieces, w := split(log, n, "T")
		if whole != pieces || v != w {
			t.Errorf("%q %q differ from %q %q", whole, v, pieces, w)
		}
		// Without marks and the token all of it is standard output.
		if !bytes.ContainsAny(log, "\x01\x02") && !bytes.Contains(log, []byte("\nT ")) && whole[1] != string(log) {
			t.Errorf("%q became %q", log, whole)
		}
	})
}

func TestListsAreReadWithTheOddestNames(t *testing.T) {
	list, err := parseList("81a4 5 1700000000 /./b\n41ed 4096 -1 /./a\n81a4 5 17 fake\n\na1ff 1 2 /./new\nline\n")
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	for i, want := range []struct {
		name string
		mode fs.FileMode
	}{{"a\n81a4 5 17 fake\n", fs.ModeDir | 0o755}, {"b", 0o644}, {"new\nline", fs.ModeSymlink | 0o777}} {
		if list[i].Name != want.name || list[i].Mode != want.mode {
			t.Errorf("%+v, want %+v", list[i], want)
		}
	}
	if list[1].Size != 5 || !list[1].ModTime.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("%+v", list[1])
	}
	for _, bad := range []string{"x", "\n81a4 5 17 /./b\n", "81a4 5 17 /./\n", "81a4 5 17 /./a/b\n", "fffffffff 5 17 /./a\n", "81a4 99999999999999999999 1 /./a\n"} {
		if list, err := parseList(bad); err == nil {
			t.Errorf("%q: %+v", bad, list)
		}
	}
}

// What is read has names that a folder can have, in order.
func FuzzList(f *testing.F) {
	f.Add("81a4 5 17 /./b\n41ed 4096 -1 /./a\n")
	f.Fuzz(func(t *testing.T, reply string) {
		list, err := parseList(reply)
		for i, e := range list {
			if err != nil || e.Name == "" || strings.ContainsAny(e.Name, "/\x00") || e.Size < 0 || i > 0 && list[i-1].Name > e.Name {
				t.Errorf("%q: %+v %v", reply, list, err)
			}
		}
	})
}

func TestRepliesOfScripts(t *testing.T) {
	enc := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for in, want := range map[string]string{"\n0": "", "a\nb\n0": "a\nb", "\x00\n\n0": "\x00\n"} {
		if got, err := scriptReply(enc(in)); err != nil || string(got) != want {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
	for in, want := range map[string]error{"missing\n9": fs.ErrNotExist, "notdir\n9": sandboxes.ErrNotDirectory, "perm\n9": fs.ErrPermission} {
		if _, err := scriptReply(enc(in)); !errors.Is(err, want) {
			t.Errorf("%q: %v", in, err)
		}
	}
	for in, says := range map[string]string{
		enc("other it broke\n9"): "it broke", enc("half\n127"): "ends with 127", enc("nothing"): "prints", enc("x\n"): "prints", "": "prints", "sh: base64: not found": "base64",
	} {
		if got, err := scriptReply(in); err == nil || !strings.Contains(err.Error(), says) || got != nil {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
}

// A reply is only one with the status 0.
func FuzzReply(f *testing.F) {
	f.Add("CjA=")
	f.Add("bWlzc2luZwo5")
	f.Fuzz(func(t *testing.T, result string) {
		got, err := scriptReply(result)
		if err == nil {
			back, e := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(result), ""))
			if e != nil || string(back) != string(got)+"\n0" {
				t.Errorf("%q gives %q", result, got)
			}
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Duration{
		"": -1, "soon": -1, "-1": -1, "1.5": -1, "99999999999": -1, "0": 0, " 7 ": 7 * time.Second,
		"Fri, 02 Jan 2026 03:04:15 GMT": 10 * time.Second, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		if got := retryAfter(s, now); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
