//go:build amd64 || arm64

package isolated

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codework/sandboxes"
)

// newLandlocked is a sandbox of a driver that finds no namespaces here.
func newLandlocked(t *testing.T, s scene, config string) sandboxes.Mount {
	t.Helper()
	d := New(Options{StateDir: filepath.Join(s.home, "state"), Level: Landlock})
	if err := d.try(bg, Landlock); err != nil {
		t.Fatal(err)
	}
	d.probed = probed{at: time.Now(), level: Landlock}
	return newMount(t, newSandbox(t, d, s.project, config))
}

func TestLevelLandlock(t *testing.T) {
	s := newScene(t)
	git(t, s.project, "init", "-q")
	write(t, s.home+"/.ssh/key", "secret")
	write(t, s.home+"/note", "mine")
	write(t, s.project+"/src/file", "x")
	write(t, s.project+"/top", "x")
	if err := os.Symlink(s.home, s.project+"/src/out"); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := strings.Cut(ln.Addr().String(), ":")
	m := newLandlocked(t, s, "")
	for _, script := range []string{
		"echo x > ../../note", "echo x > src/out/note", "echo x > ../note", "echo x > /etc/x", "echo x > /tmp/codework-test-x", "cat ~/.ssh/key", "ls ~/.ssh",
		"echo x > .git/hooks/pre-commit", "mv .git g", "git config a.b c", "echo x > .codework/settings.json",
		"echo > /dev/tcp/127.0.0.1/" + port, "echo > /dev/udp/127.0.0.1/" + port, "mount -t tmpfs x /mnt", "unshare -U true",
		"kill -9 " + pidOfTest(), "cat /proc/" + pidOfTest() + "/environ", "ls " + filepath.Join(s.home, "state"),
	} {
		if r := run(t, m, script); r.Code == 0 {
			t.Errorf("%s: worked", script)
		}
	}
	if r := run(t, m, `set -e; echo y > src/file; echo y > top; mkdir -p src/a/b; touch src/a/b/c; mv src/a src/d; rm -r src/d
		touch "$TMPDIR/x" "$GOCACHE/x"; cat ../../note; git status --short > /dev/null; echo > /dev/null`); r.Code != 0 || r.out != "mine" {
		t.Errorf("%+v", r)
	}
	if read(t, s.home+"/note") != "mine" {
		t.Error("the note was changed")
	}
	if r := run(t, m, "touch ../x"); !strings.Contains(r.err, "sandbox.isolated.write") {
		t.Errorf("no hint: %q", r.err)
	}
}
