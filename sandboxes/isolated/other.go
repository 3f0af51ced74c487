//go:build !linux || !(amd64 || arm64)

package isolated

import (
	"context"
	"errors"

	"codework/sandboxes"
)

// driver has nothing to keep here.
type driver struct{}

var errSystem = errors.New("the driver isolated needs Linux on amd64 or arm64")

// Main serves the hidden mode of the binary; there is none on this system.
func Main([]string) (handled bool, code int) { return false, 0 }

// Available tells that it is not.
func (d *Driver) Available(context.Context, sandboxes.Spec) error { return errSystem }

// Level is what this system has.
func (d *Driver) Level(context.Context) Level { return None }

// Create refuses.
func (d *Driver) Create(context.Context, sandboxes.Spec) (sandboxes.Resource, error) {
	return sandboxes.Resource{}, errSystem
}

// Attach refuses.
func (d *Driver) Attach(context.Context, sandboxes.Spec, sandboxes.Resource) (sandboxes.Sandbox, error) {
	return nil, errSystem
}
