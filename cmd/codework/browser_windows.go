package main

import "os/exec"

// apart has nothing to do: the program hands the page on and ends.
func apart(*exec.Cmd) {}
