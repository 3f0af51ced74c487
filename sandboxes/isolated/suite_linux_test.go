//go:build amd64 || arm64

package isolated

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

// TestSuite runs what every driver must hold.
func TestSuite(t *testing.T) {
	t.Parallel() // mostly waits
	d := newDriver(t)
	var n atomic.Int32
	open := func(t testing.TB, dir string) sandboxes.Sandbox {
		id := fmt.Sprintf("sbx_%d", n.Add(1))
		sb, err := d.Attach(bg, sandboxes.Spec{ID: id, Project: dir}, sandboxes.Resource{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := sb.Close(bg); err != nil {
				t.Error(err)
			}
		})
		return sb
	}
	drivertest.Run(t, drivertest.Subject{
		Name: Name,
		Open: func(t testing.TB) (sandboxes.Sandbox, string) {
			dir := strings.TrimSuffix(t.TempDir(), "/")
			return open(t, dir), dir
		},
		Again:       func(t testing.TB, dir string) sandboxes.Sandbox { return open(t, dir) },
		HasPrograms: true,
		HasCancels:  true,
		HasLinks:    true,
		HasModes:    true,
		HasRawNames: true,
	})
}
