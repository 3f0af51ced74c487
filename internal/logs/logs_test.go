package logs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, l *File, line string) {
	t.Helper()
	if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(line), err)
	}
}

func TestALongLogMakesRoomForANewOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var began []string
	l, err := Open(path, 10, func(f *os.File) { began = append(began, f.Name()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, line := range []string{"first\n", "two\n", "third\n", "4\n", "longer than the limit\n", "6\n"} {
		write(t, l, line)
	}
	if got := read(t, path); got != "6\n" {
		t.Errorf("the log holds %q", got)
	}
	if got := read(t, path+".1"); got != "longer than the limit\n" {
		t.Errorf("the older log holds %q", got)
	}
	if len(began) != 3 || began[0] != path {
		t.Errorf("told of %v", began)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the new log is %v, %v", fi.Mode(), err)
	}
}

func TestALogGoesOnWhereItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for i := range 2 {
		l, err := Open(path, 100, nil)
		if err != nil {
			t.Fatal(err)
		}
		write(t, l, fmt.Sprintf("%d\n", i))
		l.Close()
	}
	if got := read(t, path); got != "0\n1\n" {
		t.Errorf("the log holds %q", got)
	}
}

// The disk may be full, or the folder gone: the log grows on, and is tried again
// later.
func TestAFileThatCannotBeRenamedGrowsOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path, 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 3 {
		write(t, l, "12\n")
	}
	if got := read(t, path); got != "12\n12\n12\n" {
		t.Errorf("the log holds %q", got)
	}
	if err := os.RemoveAll(path + ".1"); err != nil {
		t.Fatal(err)
	}
	write(t, l, "12\n") // twice the size at which it failed is not reached or just so
	write(t, l, "new\n")
	if got := read(t, path+".1") + read(t, path); got != "12\n12\n12\n12\nnew\n" {
		t.Errorf("both hold %q", got)
	}
}

// A process of another database prints into the same log: it must not rename the
// file that somebody else has begun meanwhile.
func TestAFileThatAnotherProcessMovedIsLeftToIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	a, err := Open(path, 5, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	write(t, a, "aaaa\n")
	b, err := Open(path, 5, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	write(t, b, "b\n") // b makes room
	write(t, a, "a\n") // a finds it made
	if got := read(t, path); got != "b\na\n" {
		t.Errorf("the log holds %q", got)
	}
	if got := read(t, path+".1"); got != "aaaa\n" {
		t.Errorf("the older log holds %q", got)
	}
}

func TestLinesOfManyStayWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const writers, lines = 8, 200
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for range lines {
				if _, err := l.Write([]byte(strings.Repeat(string(rune('a'+i)), 50) + "\n")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	all := bytes.Fields([]byte(read(t, path)))
	if len(all) != writers*lines {
		t.Errorf("%d lines of %d", len(all), writers*lines)
	}
	for _, line := range all {
		if len(line) != 50 || strings.Trim(string(line), string(line[:1])) != "" {
			t.Errorf("a torn line: %q", line)
		}
	}
}
