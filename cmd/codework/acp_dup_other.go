//go:build unix && !linux

package main

import "golang.org/x/sys/unix"

// redirect makes the descriptor to the same as from.
func redirect(from, to int) error { return unix.Dup2(from, to) }
