package daytona

import (
	"flag"
	"os/exec"
	"strings"
	"testing"

	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

var long = flag.Bool("long", false, "run the suite with the tools of busybox, too")

func TestDaytonaPassesTheDriverSuite(t *testing.T) { suite(t, "daytona") }

// Images such as Alpine's have no other tools.
func TestDaytonaPassesTheDriverSuiteWithBusybox(t *testing.T) {
	if !*long {
		t.Skip("with -long")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("busybox is needed: ", err)
	}
	bin := t.TempDir()
	if out, err := exec.Command(busybox, "--install", "-s", bin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("PATH", bin)
	suite(t, "daytona with busybox")
}

func suite(t *testing.T, name string) {
	s, d := newServer(t), newDriver(t)
	type made struct {
		spec sandboxes.Spec
		r    sandboxes.Resource
	}
	all := map[string]made{}
	drivertest.Run(t, drivertest.Subject{
		Name: name, HidesSignals: true, HasPrograms: true, HasLinks: true, HasModes: true, HasRawNames: true,
		Open: func(t testing.TB) (sandboxes.Sandbox, string) {
			spec := specOn(s)
			r := create(t, d, spec)
			all[r.Dir] = made{spec, r}
			return attach(t, d, spec, r), r.Dir
		},
		Again: func(t testing.TB, dir string) sandboxes.Sandbox {
			for known, m := range all {
				if strings.HasPrefix(dir, known) {
					return attach(t, d, m.spec, m.r)
				}
			}
			t.Fatal("no sandbox has " + dir)
			return nil
		},
	})
}
