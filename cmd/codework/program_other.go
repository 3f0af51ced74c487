//go:build !linux

package main

// unmapProgram does nothing: elsewhere it is not known how.
func unmapProgram() {}
