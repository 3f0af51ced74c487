package daytona

import (
	"strings"
	"testing"

	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

func TestDaytonaPassesTheDriverSuite(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	type made struct {
		spec sandboxes.Spec
		r    sandboxes.Resource
	}
	all := map[string]made{}
	drivertest.Run(t, drivertest.Subject{
		Name: "daytona", HidesSignals: true, HasPrograms: true, HasLinks: true, HasModes: true, HasRawNames: true,
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
