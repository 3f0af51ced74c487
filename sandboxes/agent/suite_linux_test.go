package agent

import (
	"testing"

	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

// TestDriverSuite runs with the inside in this process and in one of its own.
func TestDriverSuite(t *testing.T) {
	subject := drivertest.Subject{
		HasPrograms: true, HasCancels: true, HasLinks: true, HasModes: true, HasRawNames: true,
	}
	pipe := func(t testing.TB) sandboxes.Sandbox {
		c, _ := overPipe(t, newLocal(t))
		return c
	}
	process := func(t testing.TB) sandboxes.Sandbox { return start(t, "").Client }
	for name, open := range map[string]func(t testing.TB) sandboxes.Sandbox{"pipe": pipe, "process": process} {
		t.Run(name, func(t *testing.T) {
			subject.Name = name
			subject.Open = func(t testing.TB) (sandboxes.Sandbox, string) { return open(t), t.TempDir() }
			subject.Again = func(t testing.TB, _ string) sandboxes.Sandbox { return open(t) }
			drivertest.Run(t, subject)
		})
	}
}
