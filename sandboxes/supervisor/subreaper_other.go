//go:build !linux

package supervisor

// Subreaper does nothing: this system knows no adoption of orphans.
func Subreaper() error { return nil }
