//go:build !linux

package supervisor

// WakeFirst does nothing here.
func WakeFirst() {}
