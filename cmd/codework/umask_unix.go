//go:build unix

package main

import "syscall"

// umask reads the process's mask, which the system only gives away when a new
// one is set.
func umask() int {
	m := syscall.Umask(0o077)
	syscall.Umask(m)
	return m
}
