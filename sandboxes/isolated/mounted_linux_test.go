//go:build amd64 || arm64

package isolated

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"codework/integration/peer"
)

// mountsVar says that this process may mount what it likes.
const mountsVar = "TEST_ISOLATED_MOUNTS"

// TestOtherMountsShowNothing runs itself again in a mount namespace, where the
// home is mounted a second time, and the list of processes too.
func TestOtherMountsShowNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts")
	}
	if os.Getenv(mountsVar) == "" {
		newDriver(t)
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestOtherMountsShowNothing$")
		cmd.Env = append(os.Environ(), mountsVar+"=1", peer.Full+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "PASS: TestOtherMountsShowNothing") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	s := newScene(t)
	write(t, s.home+"/.ssh/key", "secret")
	again, proc := filepath.Join(s.project, "again"), filepath.Join(s.home, "proc")
	for _, dir := range []string{again, proc} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(s.home, again, "", unix.MS_BIND, ""),
		unix.Mount("proc", proc, "proc", 0, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer unix.Unmount(proc, unix.MNT_DETACH)
	defer unix.Unmount(again, unix.MNT_DETACH)
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	if r := run(t, m, "ls again && cat again/.ssh/key"); r.Code == 0 || strings.Contains(r.out, "secret") || !strings.Contains(r.out, "src") {
		t.Errorf("by the other mount: %+v", r)
	}
	if r := run(t, m, "ls "+proc+"/1"); r.Code == 0 {
		t.Errorf("the host's processes: %+v", r)
	}
}
