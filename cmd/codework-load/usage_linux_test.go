package main

import (
	"os"
	"testing"
)

// TestLittleWorkIsMeasured: far less than a clock tick, of this process and of
// another one.
func TestLittleWorkIsMeasured(t *testing.T) {
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		if got, ok := processCPU(pid); !ok || got <= 0 {
			t.Errorf("%d: %v, %v", pid, got, ok)
		}
	}
	before, _ := processCPU(os.Getpid())
	u, ok := treeUsage(os.Getpid())
	after, _ := processCPU(os.Getpid())
	if !ok || before >= after || u.CPU <= before {
		t.Errorf("%v seconds between %v and %v", u.CPU, before, after)
	}
	if _, ok := processCPU(1 << 22); ok { // above the highest there is
		t.Error("a process that is not was measured")
	}
}
