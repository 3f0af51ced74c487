//go:build !linux

package container

// Main serves nothing here: containers run Linux.
func Main([]string) (handled bool, code int) { return false, 0 }
