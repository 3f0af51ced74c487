package agent

import (
	"testing"

	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

// TestDriverSuite runs with the inside in a process of its own, whose end the
// clean-up checks.
func TestDriverSuite(t *testing.T) {
	drivertest.Run(t, drivertest.Subject{
		Name:        "agent",
		Open:        func(t testing.TB) (sandboxes.Sandbox, string) { return start(t, "").Client, t.TempDir() },
		Again:       func(t testing.TB, _ string) sandboxes.Sandbox { return start(t, "").Client },
		HasPrograms: true, HasCancels: true, HasLinks: true, HasModes: true, HasRawNames: true,
	})
}
