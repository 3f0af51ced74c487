package supervisor

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// hasChildrenFile tells whether the kernel lists children under
// /proc/<pid>/task/<tid>/children; without it every process is looked at.
var hasChildrenFile = sync.OnceValue(func() bool {
	pid := strconv.Itoa(os.Getpid())
	_, err := os.Stat("/proc/" + pid + "/task/" + pid + "/children")
	return err == nil
})

// childrenOf lists the children of a process, zombies included. While children
// are waited for the list may miss one; callers repeat.
func childrenOf(pid int) []int {
	var out []int
	eachChild(pid, func(child int) { out = append(out, child) })
	return out
}

// eachChild visits the children of a process as soon as it learns of them. What
// is adopted belongs to the first thread, so this comes first: a process that
// forks as fast as it can is hit before it has gone on.
func eachChild(pid int, visit func(child int)) {
	if !hasChildrenFile() {
		for _, child := range parents()[pid] {
			visit(child)
		}
		return
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	main := strconv.Itoa(pid)
	eachListed(dir+"/"+main+"/children", visit)
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	tids, _ := d.Readdirnames(-1)
	d.Close()
	for _, tid := range tids {
		if tid != main {
			eachListed(dir+"/"+tid+"/children", visit)
		}
	}
}

// eachListed visits the numbers in a file that lists children. Plain system
// calls, since every microsecond counts against a fast forker.
func eachListed(path string, visit func(child int)) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var buf [4096]byte
	child := 0
	for {
		n, err := unix.Read(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		for _, c := range buf[:n] {
			switch {
			case c >= '0' && c <= '9':
				child = child*10 + int(c-'0')
			case child > 0:
				visit(child)
				child = 0
			}
		}
	}
}

// beyond tells whether striking again is of no use after so long a time: all
// that is left of the roots and below belongs to another user, or waits for a
// disk or device and ends with that.
func beyond(roots []int, struck time.Duration) bool {
	if struck < userPatience {
		return false
	}
	for _, pid := range forest(roots) {
		if unix.Kill(pid, 0) == unix.EPERM {
			continue
		}
		if struck < diskPatience {
			return false
		}
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || stateInStat(b) != "D" {
			return false
		}
	}
	return true
}

// parents maps every process of the machine to its children.
func parents() map[int][]int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := d.Readdirnames(-1)
	d.Close()
	m := make(map[int][]int, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if ppid, ok := parentInStat(b); ok {
			m[ppid] = append(m[ppid], pid)
		}
	}
	return m
}

// parentInStat finds the parent's id in the text of /proc/<pid>/stat.
func parentInStat(b []byte) (int, bool) {
	f := statFields(b)
	if len(f) < 2 {
		return 0, false
	}
	n, err := strconv.Atoi(string(f[1]))
	return n, err == nil && n >= 0
}

// stateInStat finds the letter of the process's state there.
func stateInStat(b []byte) string {
	if f := statFields(b); len(f) > 0 {
		return string(f[0])
	}
	return ""
}

// statFields are the fields behind the command name, which stands in
// parentheses and may itself hold spaces and parentheses.
func statFields(b []byte) [][]byte {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil
	}
	return bytes.Fields(b[i+1:])
}

// forest lists roots and everything below them, parents before children: a
// shell must be hit before what it waits for, or it would start its next
// command.
func forest(roots []int) []int {
	below := childrenOf
	if !hasChildrenFile() {
		m := parents()
		below = func(pid int) []int { return m[pid] }
	}
	seen := make(map[int]bool, len(roots))
	out := make([]int, 0, len(roots))
	add := func(pids []int) {
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				out = append(out, pid)
			}
		}
	}
	add(roots)
	for i := 0; i < len(out); i++ {
		add(below(out[i]))
	}
	return out
}

func signalAll(pids []int, sig unix.Signal) {
	for _, pid := range pids {
		if pid > 1 {
			_ = unix.Kill(pid, sig) // gone meanwhile is fine
		}
	}
}

// strike freezes everything below the roots and kills it. Roots visits them,
// anew each time: the second round meets what was forked during the first.
func strike(roots func(visit func(pid int))) {
	freeze(roots)
	freeze(roots)
	var list []int
	roots(func(pid int) { list = append(list, pid) })
	signalAll(forest(list), unix.SIGKILL)
}

// freeze stops the roots and everything below, each process before its children
// are looked for, so that it makes no new ones meanwhile.
func freeze(roots func(visit func(pid int))) {
	var list []int
	seen := make(map[int]bool)
	stop := func(pid int) {
		if pid > 1 && !seen[pid] {
			_ = unix.Kill(pid, unix.SIGSTOP)
			seen[pid] = true
			list = append(list, pid)
		}
	}
	roots(stop)
	if !hasChildrenFile() {
		signalAll(forest(list), unix.SIGSTOP)
		return
	}
	for i := 0; i < len(list); i++ {
		eachChild(list[i], stop)
	}
}

// A supervisor marks itself and so all its descendants by a limit that has no
// effect: CPU time of real-time threads, in microseconds, some ten thousand
// years. Limits are inherited by fork and exec, whatever else a process changes
// of itself (session, group, parent, environment, name). By the mark the server
// tells what it adopted from a supervisor that died from its own children.
const markBase = 1 << 58

// setMark marks this process.
func setMark(mark uint64) error {
	return unix.Setrlimit(unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: mark, Max: mark})
}

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
