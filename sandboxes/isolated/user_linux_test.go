//go:build amd64 || arm64

package isolated

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"codework/integration/peer"
)

// TestAsAnotherUser runs the tests again as a user who is not root.
func TestAsAnotherUser(t *testing.T) {
	t.Parallel() // mostly waits
	if os.Getuid() != 0 {
		t.Skip("not root already: the tests themselves run as a user")
	}
	newDriver(t) // where root cannot, nobody can
	const nobody = 65534
	dir, err := os.MkdirTemp("/var/lib", "isolated-user-")
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
	cmd := exec.Command(bin, "-test.v")
	if os.Getenv(peer.Full) == "" {
		// The suite is about what the agent does, and that is the same for all.
		cmd.Args = append(cmd.Args, "-test.skip=^TestSuite$")
	}
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir, baseVar + "=" + dir, peer.Full + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS: TestSystemCallsAreRefused") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
