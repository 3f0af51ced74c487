//go:build !linux

package home

// MountNamespace is always "": there is one view of the file system.
func MountNamespace() string { return "" }
