package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"codework/sandboxes/supervisor/modes"
)

func TestMarkIsInheritedAndFound(t *testing.T) {
	const mark = modes.MarkBase + 42
	cmd := exec.Command("bash", "-c", "ulimit -R "+strconv.Itoa(mark)+"; env -i setsid sleep 60; exit")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() {
		modes.Strike(func(visit func(int)) { visit(pid) })
		_ = cmd.Wait()
		for _, pid := range modes.OwnChildren() {
			p, _ := os.FindProcess(pid)
			_, _ = p.Wait()
		}
	}()
	eventually(t, "sleep runs", func() bool { return len(modes.Parents()[pid]) == 1 })
	child := modes.Parents()[pid][0]
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

// FuzzMarkInLimits: the hard limit is found whatever stands around its line.
func FuzzMarkInLimits(f *testing.F) {
	f.Add("Max cpu time              unlimited            unlimited            seconds\n", uint64(modes.MarkBase))
	f.Add("Limit", uint64(0))
	f.Add("", uint64(1))
	f.Fuzz(func(t *testing.T, around string, mark uint64) {
		_ = markInLimits([]byte(around)) // no panic
		if strings.Contains(around, "Max realtime timeout") || around != "" && !strings.HasSuffix(around, "\n") {
			return
		}
		line := fmt.Sprintf("Max realtime timeout      7                    %d                    us        \n", mark)
		if got := markInLimits([]byte(around + line + around)); got != strconv.FormatUint(mark, 10) {
			t.Errorf("%q, want %d", got, mark)
		}
	})
}
