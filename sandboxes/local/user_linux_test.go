package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAsAnotherUser runs the whole suite's permission tests, and the plain ones
// beside, as a user who is not root.
func TestAsAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root already: the tests themselves run as a user")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "local-user")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	// The binary lies in a folder that only root may enter.
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "test")
	if err := os.WriteFile(bin, self, 0o755); err != nil {
		t.Fatal(err)
	}
	const tests = "ReadOnly|Unreadable|Writable|OddPaths|KeepsMode|ExitCodes|NoInput|ItsParents|Umask|Background|TimeLimit|OtherUser"
	cmd := exec.Command(bin, "-test.v", "-test.run", tests)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "SKIP: TestReadOnly") || !strings.Contains(string(out), "PASS: TestReadOnly") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
