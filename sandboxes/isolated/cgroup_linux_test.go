//go:build amd64 || arm64

package isolated

import (
	"errors"
	"os"

	"path/filepath"
	"strings"
	"testing"

	"codework/sandboxes"
)

func TestOwnGroup(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"0::/user.slice/a b\n", "/user.slice/a b"},
		{"4:memory:/x\n0::/\n", "/"},
		{"4:memory:/x\n", ""},
		{"0::", ""},
		{"", ""},
	} {
		if got, ok := ownGroup(c.text); got != c.want || ok != (c.want != "") {
			t.Errorf("%q: %q %v", c.text, got, ok)
		}
	}
}

// TestGroupHoldsTheSandboxAndEndsWithIt needs a place for groups, which
// only some machines give.
func TestGroupHoldsTheSandboxAndEndsWithIt(t *testing.T) {
	d := newDriver(t)
	if d.findGroups() == nil {
		t.Skip("no control group (version 2) here that may be divided")
	}
	s := newScene(t)
	spec := sandboxes.Spec{ID: "sbx_group", Server: "srv_test", Project: s.project}
	sb, err := d.Attach(bg, spec, sandboxes.Resource{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close(bg)
	g := sb.(*sandbox).group
	m := newMount(t, sb)
	run(t, m, "sleep 600 &")
	b, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil || strings.Count(string(b), "\n") < 4 { // agent, supervisor, runner, command
		t.Errorf("in the group: %q %v", b, err)
	}
	if r := run(t, m, "echo 1 > "+g.dir+"/cgroup.kill; echo $$ > "+g.base()+"/cgroup.procs"); r.Code == 0 {
		t.Error("a command changed groups")
	}
	// A server's groups are not another's to sweep.
	if err := d.Sweep(bg, sandboxes.Spec{Server: "srv"}); err != nil {
		t.Error(err)
	}
	run(t, m, "true")
	if err := d.Sweep(bg, sandboxes.Spec{Server: "srv_test"}); err != nil {
		t.Error(err)
	}
	<-sb.(sandboxes.Lost).Lost()
	if err := sb.Close(bg); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(g.dir); err == nil {
		t.Error("the group is left")
	}
}

func (one *group) base() string { return filepath.Dir(one.dir) }

func TestLimitsGoWhereTheyAreKept(t *testing.T) {
	base := t.TempDir()
	write(t, base+"/cgroup.subtree_control", "cpu memory pids\n")
	all := &groups{base}
	dir := t.TempDir()
	for _, f := range []string{"memory.max", "pids.max", "cpu.max"} {
		write(t, filepath.Join(dir, f), "")
	}
	c := Config{Limits: sandboxes.Limits{MemoryMiB: 100, Processes: 50, CPUs: 1.5, OpenFiles: 99}}
	if got, err := c.rlimits(all); err != nil || got != (limits{OpenFiles: 99}) {
		t.Errorf("%+v %v", got, err)
	}
	if err := (&group{dir}).limit(all, c.Limits); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]string{"memory.max": "104857600", "pids.max": "50", "cpu.max": "150000 100000"} {
		if got := read(t, filepath.Join(dir, f)); got != want {
			t.Errorf("%s: %q", f, got)
		}
	}
	// One that cannot be set is an error, and none where nothing keeps it.
	if err := (&group{t.TempDir()}).limit(all, c.Limits); err == nil {
		t.Error("a limit was not set and nobody said so")
	}
	if _, err := c.rlimits(nil); !isConfigError(err) {
		t.Errorf("CPUs without groups: %v", err)
	}
	c.Limits.CPUs = 0
	got, err := c.rlimits(nil)
	if os.Geteuid() == 0 {
		if !isConfigError(err) {
			t.Errorf("processes of root without groups: %v", err)
		}
	} else if err != nil || got != (limits{OpenFiles: 99, Processes: 50, Data: 100 << 20}) {
		t.Errorf("%+v %v", got, err)
	}
}

// TestProcessesOfAUserAreLimited needs no group.
func TestProcessesOfAUserAreLimited(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("for root only groups limit them")
	}
	s := newScene(t)
	m := newMount(t, newSandbox(t, newDriver(t), s.project, `{"limits":{"processes":64}}`))
	var out strings.Builder
	exit, err := m.Run(bg, sandboxes.Command{
		Script: "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); echo > n$i; done; kill $(jobs -p)", Joined: true,
		Output: func(_ sandboxes.Stream, b []byte) { out.Write(b) },
	})
	// What the limit meets first may also be the agent, which ends the sandbox.
	var se *sandboxes.ShellError
	if !strings.Contains(out.String(), "Resource temporarily unavailable") && !errors.As(err, &se) {
		t.Errorf("%+v %v %q", exit, err, out.String())
	}
	if _, err := os.Stat(s.project + "/n100"); err == nil {
		t.Error("a hundred processes were started")
	}
}
