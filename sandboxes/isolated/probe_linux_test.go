//go:build amd64 || arm64

package isolated

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"codework/sandboxes"
)

// probeArg is a hidden mode of the test binary: it prints what level works
// where it runs, and why no better one does.
const probeArg = "__test-probe"

func printLevel(state string) {
	d := New(Options{StateDir: state})
	fmt.Printf("%s\n%v\n", d.Level(bg), d.Available(bg, sandboxes.Spec{}))
	_, err := d.Create(bg, sandboxes.Spec{ID: "sbx_x", Project: "/tmp"})
	fmt.Println("create:", err)
	os.Exit(0)
}

// TestDeniedNamespacesAreTold runs the probe where namespaces are forbidden: in
// a sandbox.
func TestDeniedNamespacesAreTold(t *testing.T) {
	s := newScene(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.project, "probe"), self, 0o755); err != nil {
		t.Fatal(err)
	}
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	r := run(t, m, "./probe "+probeArg+" /tmp/state")
	lines := strings.SplitN(r.out, "\n", 3)
	if r.Code != 0 || len(lines) != 3 || lines[0] != string(Landlock) {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{`"full" is demanded`, "denied by policy", "operation not permitted"} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("no %q in %q", want, lines[1])
		}
	}
	if !strings.Contains(lines[2], "denied by policy") {
		t.Errorf("created all the same: %q", lines[2])
	}
}

func TestReasons(t *testing.T) {
	for _, c := range []struct {
		step string
		err  error
		want string
	}{
		{startStep, syscall.ENOSPC, "max_user_namespaces"},
		{startStep, syscall.EPERM, "denied by policy"},
		{"make mounts private", syscall.EACCES, "apparmor"},
		{procStep, syscall.EPERM, "container"},
		{landlockStep, syscall.EOPNOTSUPP, "Landlock"},
		{"make everything read-only", syscall.ENOSYS, "too old"},
		{startStep, syscall.EINVAL, "without the namespaces"},
	} {
		var re *ReasonError
		if err := reason(step(c.step, "", c.err)); !errors.As(err, &re) || !strings.Contains(re.Reason, c.want) || !errors.Is(err, c.err) {
			t.Errorf("%s %v: %v", c.step, c.err, err)
		}
	}
	if err := errors.New("else"); reason(err) != err {
		t.Error("a reason was made up")
	}
}

func TestNoLevelIsKeptFromACancelledProbe(t *testing.T) {
	d := New(Options{StateDir: filepath.Join(t.TempDir(), "state")})
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_ = d.Available(ctx, sandboxes.Spec{})
	if err := d.Available(bg, sandboxes.Spec{}); err != nil {
		t.Error(err)
	}
}
