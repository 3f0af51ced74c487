package local

import (
	"testing"

	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

func TestDriverSuite(t *testing.T) {
	drivertest.Run(t, drivertest.Subject{
		Name: "local",
		Open: func(t testing.TB) (sandboxes.Sandbox, string) { return newSandbox(t), t.TempDir() },
		Again: func(t testing.TB, _ string) sandboxes.Sandbox {
			return newSandbox(t)
		},
		HasPrograms: true, HasCancels: true, HasLinks: true, HasModes: true, HasRawNames: true,
	})
}
