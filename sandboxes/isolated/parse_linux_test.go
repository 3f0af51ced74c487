//go:build amd64 || arm64

package isolated

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const mountList = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
24 22 254:0 /home/u /mnt/home\040of\134u rw - ext4 /dev/vda rw
25 22 8:1 / /home/u/disk rw master:2 - xfs /dev/sdb rw
26 22 8:1 /sub /other rw - xfs /dev/sdb rw
nonsense
`

func TestMounts(t *testing.T) {
	mounts := parseMounts(mountList)
	if len(mounts) != 5 || mounts[2].path != `/mnt/home of\u` || mounts[1].kind != "proc" {
		t.Fatalf("%+v", mounts)
	}
	for path, want := range map[string][]string{
		"/home/u/.ssh":       {`/mnt/home of\u/.ssh`},
		"/home/u":            {`/mnt/home of\u`},
		"/etc/x":             nil,
		"/home/u/disk/sub/x": {"/other/x"},
		"/other/x":           {"/home/u/disk/sub/x"},
		"/home/u2/x":         nil,
	} {
		if got := aliases(mounts, path); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestSocketPath(t *testing.T) {
	for line, want := range map[string]string{
		"ffff8: 00000002 00000000 00010000 0001 01 12345 /run/a b.sock": "/run/a b.sock",
		"ffff8: 00000002 00000000 00010000 0001 01 12345 @abstract":     "",
		"ffff8: 00000002 00000000 00010000 0001 01    45 /x":            "/x",
		"ffff8: 00000002 00000000 00010000 0001 01 12345 run/relative":  "run/relative",
		"ffff8: 00000002 00000000 00010000 0001 01 12345":               "",
		"Num       RefCount Protocol Flags    Type St Inode Path":       "",
		"": "",
	} {
		if got := socketPath(line); got != want {
			t.Errorf("%q: %q", line, got)
		}
	}
}

// FuzzMounts: whatever the list says, all paths that come of it are those of a
// line of it, and aliases never name the path itself.
func FuzzMounts(f *testing.F) {
	f.Add(mountList, "/home/u/.ssh")
	f.Fuzz(func(t *testing.T, list, path string) {
		mounts := parseMounts(list)
		if len(mounts) > strings.Count(list, " - ") {
			t.Error("more mounts than lines")
		}
		if slices.Contains(aliases(mounts, path), path) {
			t.Error("a path is its own alias")
		}
	})
}

// FuzzSocketPath: what is found is no abstract name and stands at the line's end.
func FuzzSocketPath(f *testing.F) {
	f.Add("ffff8: 00000002 00000000 00010000 0001 01 12345 /run/a b.sock")
	f.Fuzz(func(t *testing.T, line string) {
		if got := socketPath(line); got != "" && (got[0] == '@' || !strings.HasSuffix(line, got)) {
			t.Errorf("%q", got)
		}
	})
}

// FuzzHint: any output gives one line at most, which names no path that is
// relative.
func FuzzHint(f *testing.F) {
	f.Add("touch: cannot touch '/etc/x': Read-only file system\n")
	f.Add("a: Permission denied")
	p := &plan{Level: Full, Hide: []string{"/h"}}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(p.hint(text, "/d"), "\n") {
			t.Error("more than a line")
		}
		for line := range strings.Lines(text) {
			if got := subject(line, "/d"); got != "" && !filepath.IsAbs(got) {
				t.Errorf("relative: %q", got)
			}
		}
	})
}
