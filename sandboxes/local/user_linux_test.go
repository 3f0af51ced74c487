package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes"
)

// suidVar names the variable with the path of a test binary that runs as root.
const suidVar = "TEST_SUID_BINARY"

// becomeRoot is a command that a user cannot signal. It ends when the file is
// gone.
func becomeRoot(file string) {
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		os.Exit(3)
	}
	if err := os.WriteFile(file+".root", []byte("x"), 0o644); err != nil {
		os.Exit(4)
	}
	for size(file) > 0 {
		time.Sleep(5 * time.Millisecond)
	}
	_ = os.Remove(file + ".root")
	os.Exit(0)
}

// TestProcessOutOfReachDoesNotHoldTheCallUp has a command become another user.
func TestProcessOutOfReachDoesNotHoldTheCallUp(t *testing.T) {
	suid := os.Getenv(suidVar)
	if suid == "" {
		t.Skip("run by TestAsAnotherUser, which makes the program")
	}
	s := newSandbox(t)
	m := newMount(t, s)
	file := filepath.Join(m.Dir(), "f")
	put(t, file, "x", 0o644)
	if err := os.Chmod(m.Dir(), 0o777); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctxb)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		exit, err := m.Run(ctx, sandboxes.Command{Script: suid + " " + rootArg + " " + file + "; echo $?"})
		if err == nil {
			t.Errorf("ended with %+v", exit)
		}
		done <- err
	}()
	if err := eventually("it is root", func() bool { return size(file+".root") > 0 }); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := within(start); err != nil {
		t.Error(err)
	}
	if size(file+".root") == 0 {
		t.Error("it was in reach after all")
	}
	run(t, m, sandboxes.Command{Script: "true"})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := eventually("it ends", func() bool { _, err := os.Stat(file + ".root"); return err != nil }); err != nil {
		t.Error(err)
	}
	if err := s.Close(ctxb); err != nil {
		t.Error(err)
	}
	reapAdopted(t) // it is ours if the machine was so slow that the supervisor was given up
}

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
	const tests = "ReadOnly|Unreadable|Writable|OddPaths|KeepsMode|ExitCodes|NoInput|ItsParents|Umask|Background|TimeLimit|OutOfReach|ForkBomb|NothingOutlivesItsEnd/^supervisor"
	suid := filepath.Join(dir, "suid")
	if err := os.WriteFile(suid, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(suid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-test.v", "-test.run", tests)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir, suidVar + "=" + suid}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "SKIP: TestReadOnly") || !strings.Contains(string(out), "PASS: TestReadOnly") ||
		!strings.Contains(string(out), "PASS: TestProcessOutOfReach") || !strings.Contains(string(out), "PASS: TestForkBomb") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// TestForkBombEnds needs a limit on processes, which root does not have.
func TestForkBombEnds(t *testing.T) {
	asUser(t)
	m := newMount(t, newSandbox(t))
	file := filepath.Join(m.Dir(), "counter")
	ctx, cancel := context.WithCancel(ctxb)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := m.Run(ctx, sandboxes.Command{Env: map[string]string{"F": file}, Script: `
			exec 2>/dev/null; ulimit -u 300; trap "" TERM
			bomb() { echo >> "$F"; bomb & bomb & wait; }
			bomb; sleep 60`})
		done <- err
	}()
	if err := eventually("it goes off", func() bool { return size(file) > 100 }); err != nil {
		t.Error(err)
	}
	start := time.Now()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := errors.Join(within(start), still(file)); err != nil {
		t.Error(err)
	}
}
