package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// sampleSmaps has one mapping of each sort; what is left out of it does not count.
const sampleSmaps = `00400000-00f41000 r-xp 00000000 fe:00 108 /opt/my tools/codework
Rss:                9216 kB
Anonymous:             0 kB
Swap:                  0 kB
SwapPss:               0 kB
VmFlags: rd ex mr mw me sd
00f41000-01aca000 r--p 00b41000 fe:00 108 /opt/my tools/codework (deleted)
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me sd
01aca000-01b61000 r--p 016ca000 fe:00 108 /opt/my tools/codework
Anonymous:             4 kB
Swap:                  0 kB
VmFlags: rd mr mw me ac sd
02aca000-02b61000 r--p 016ca000 fe:00 108 /opt/my tools/codework
Anonymous:             0 kB
Swap:                  4 kB
VmFlags: rd mr mw me ac sd
03aca000-03b61000 rw-p 016ca000 fe:00 108 /opt/my tools/codework
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me ac sd
7f6c04600000-7f6c06600000 r--s 00000000 fe:00 102 /opt/my tools/codework
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd sh mr mw me ms sd
7f6c03600000-7f6c04600000 r--p 00000000 fe:00 102 /opt/my tools/codework.old
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me ms sd
7f6c06610000-7f6c066d0000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me ac sd
7fff5c9d8000-7fff5c9f9000 r-xp 00000000 00:00 0 /opt/my tools/codework
Anonymous:             0 kB
VmFlags: rd ex
`

func clean(t testing.TB, smaps string) (found []string) {
	err := eachClean(bufio.NewScanner(strings.NewReader(smaps)), "/opt/my tools/codework", func(from, to uintptr) {
		found = append(found, fmt.Sprintf("%x-%x", from, to))
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

func TestOnlyMappingsWithoutPagesOfTheirOwnAreLetGoOf(t *testing.T) {
	if got := clean(t, sampleSmaps); !slices.Equal(got, []string{"400000-f41000", "f41000-1aca000"}) {
		t.Errorf("%q", got)
	}
}

// FuzzEachClean: whatever the text, a mapping that is visited was named by it, is
// not empty, and nothing is visited twice for one line of flags.
func FuzzEachClean(f *testing.F) {
	f.Add(sampleSmaps)
	f.Add("1-2 r--p 0 0 0 /opt/my tools/codework\nAnonymous: 0 kB\nSwap: 0 kB\nVmFlags:")
	f.Fuzz(func(t *testing.T, smaps string) {
		n := 0
		_ = eachClean(bufio.NewScanner(strings.NewReader(smaps)), "/opt/my tools/codework", func(from, to uintptr) {
			n++
			if from >= to || !strings.Contains(smaps, "/opt/my tools/codework") {
				t.Errorf("%x-%x", from, to)
			}
		})
		if n > strings.Count(smaps, "VmFlags:") {
			t.Errorf("%d of %q", n, smaps)
		}
	})
}

// The pages of this very program go, and it goes on.
func TestTheProgramIsLetGoOf(t *testing.T) {
	before := fileRSS(t)
	unmapProgram()
	after := fileRSS(t)
	if after > before/2 {
		t.Errorf("%d KB of files before, %d KB after", before, after)
	}
	if got := clean(t, sampleSmaps); len(got) != 2 {
		t.Errorf("%q", got)
	}
}

// fileRSS is how much of files is mapped and in memory, in KB.
func fileRSS(t *testing.T) (kb int) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(status), "RssFile:")
	if !ok {
		t.Fatal("this kernel does not tell RssFile")
	}
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}
