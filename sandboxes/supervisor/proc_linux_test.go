package supervisor

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
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
		strike(func(visit func(int)) { visit(cmd.Process.Pid) })
		_ = cmd.Wait()
		eventually(t, "the orphans are reaped", func() bool {
			list = ownChildren()
			for _, pid := range list {
				if p, err := os.FindProcess(pid); err == nil {
					_, _ = p.Wait()
				}
			}
			return len(list) == 0
		})
	}()
	eventually(t, "all are there", func() bool { return len(forest([]int{cmd.Process.Pid})) == 5 })
	table := parents()
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

func TestMarkIsInheritedAndFound(t *testing.T) {
	const mark = markBase + 42
	cmd := exec.Command("bash", "-c", "ulimit -R "+strconv.Itoa(mark)+"; env -i setsid sleep 60; exit")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() {
		strike(func(visit func(int)) { visit(pid) })
		_ = cmd.Wait()
		for _, pid := range ownChildren() {
			p, _ := os.FindProcess(pid)
			_, _ = p.Wait()
		}
	}()
	eventually(t, "sleep runs", func() bool { return len(childrenOf(pid)) == 1 })
	child := childrenOf(pid)[0]
	for _, p := range []int{pid, child} {
		if !hasMark(p, mark) || hasMark(p, mark+1) {
			t.Errorf("%d", p)
		}
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/limits")
		if err != nil || markInLimits(b) != strconv.Itoa(mark) {
			t.Errorf("%q %v", b, err)
		}
	}
	if hasMark(os.Getpid(), mark) || hasMark(1<<22+1, mark) {
		t.Error("found where it is not")
	}
	b, err := os.ReadFile("/proc/self/limits")
	if err != nil || !strings.Contains(string(b), "Max realtime timeout") {
		t.Error("the kernel names the limit otherwise", err)
	}
}
