//go:build !linux

package main

import (
	"os/exec"
	"time"
)

// treeUsage can be measured on Linux only.
func treeUsage(int) (u usage, ok bool) { return usage{}, false }

func ownCPU() float64 { return 0 }

func threadCPU(func()) (took time.Duration, ok bool) { return 0, false }

func loadAverage() float64 { return 0 }

func processTree(pid int) []int { return []int{pid} }

// startLast starts a program that should have the lowest rank; that is done on
// Linux only.
func startLast(c *exec.Cmd) error { return c.Start() }
