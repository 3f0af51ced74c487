package modes

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never happened: " + what)
		}
	}
}

// TestBothWaysToListChildrenAgree holds the kernel's lists against the table of
// all processes, which serves where there are no lists.
func TestBothWaysToListChildrenAgree(t *testing.T) {
	if !hasChildrenFile() {
		t.Fatal("this kernel has no lists of children: the usual way is not tested")
	}
	cmd := exec.Command("sh", "-c", "sh -c 'sleep 60 & sleep 60 & wait' & sleep 60 & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		var list []int
		Strike(func(visit func(int)) { visit(cmd.Process.Pid) })
		_ = cmd.Wait()
		eventually(t, "the orphans are reaped", func() bool {
			list = OwnChildren()
			for _, pid := range list {
				if p, err := os.FindProcess(pid); err == nil {
					_, _ = p.Wait()
				}
			}
			return len(list) == 0
		})
	}()
	eventually(t, "all are there", func() bool { return len(forest([]int{cmd.Process.Pid})) == 5 })
	table := Parents()
	for _, pid := range append(forest([]int{cmd.Process.Pid}), os.Getpid()) {
		got, want := childrenOf(pid), slices.Clone(table[pid])
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("children of %d: %v and %v", pid, got, want)
		}
	}
	all := forest([]int{cmd.Process.Pid})
	if all[0] != cmd.Process.Pid {
		t.Errorf("the parent comes first: %v", all)
	}
}
