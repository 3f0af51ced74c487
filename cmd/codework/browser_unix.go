//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// apart keeps a program out of this terminal, so that ctrl-c here does not end
// the browser.
func apart(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
