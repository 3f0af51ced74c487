package supervisor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hasMark tells whether a process carries the mark.
func hasMark(pid int, mark uint64) bool {
	var l unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &l) == nil {
		return l.Max == mark
	}
	// A process that changed its user is open to this look only.
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	return err == nil && markInLimits(b) == strconv.FormatUint(mark, 10)
}

// markInLimits finds the hard limit of real-time CPU time in the text of
// /proc/<pid>/limits.
func markInLimits(b []byte) string {
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Max realtime timeout"); ok {
			if f := strings.Fields(rest); len(f) >= 2 {
				return f[1]
			}
		}
	}
	return ""
}
