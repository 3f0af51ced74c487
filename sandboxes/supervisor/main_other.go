//go:build !linux

package supervisor

// Main serves the hidden modes of the binary; there are none on this system.
func Main([]string) (handled bool, code int) { return false, 0 }

// Subreaper does nothing: this system knows no adoption of orphans.
func Subreaper() error { return nil }
