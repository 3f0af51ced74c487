//go:build unix

package prompt

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFilesOfOtherUsersAreNotUsedOnTheHost needs root, since only root can
// give a file away; the tests of the project run as root at least once.
func TestFilesOfOtherUsersAreNotUsedOnTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: needs root to make a file of another user")
	}
	const other = 12345
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string) string {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	foreign := write("AGENTS.md")
	if err := os.Chown(foreign, other, other); err != nil {
		t.Fatal(err)
	}
	mine := write("a/AGENTS.md")
	secret := write("secret")
	link := filepath.Join(root, "a/b/AGENTS.md")
	write("a/b/CLAUDE.md")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(link, other, other); err != nil {
		t.Fatal(err)
	}
	m := &files{dir: filepath.Join(root, "a/b")}

	got := read(t, m, Options{Host: true})
	if !slices.Contains(got.Used, mine) || !slices.Contains(got.Used, filepath.Join(root, "a/b/CLAUDE.md")) || slices.Contains(got.Used, foreign) || slices.Contains(got.Used, link) {
		t.Errorf("used %q", got.Used)
	}
	for _, p := range []string{foreign, link} {
		if !slices.ContainsFunc(got.Warnings, func(w string) bool { return strings.Contains(w, p) && strings.Contains(w, "another user") }) {
			t.Errorf("no warning for %s: %q", p, got.Warnings)
		}
	}
	// In a sandbox of its own, owners mean nothing.
	if got := read(t, m, Options{}); !slices.Contains(got.Used, foreign) || !slices.Contains(got.Used, link) {
		t.Errorf("elsewhere: used %q", got.Used)
	}
}
