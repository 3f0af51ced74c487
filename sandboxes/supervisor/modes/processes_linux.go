package modes

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
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
		for _, child := range Parents()[pid] {
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
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	var buf [4096]byte
	child := 0
	for {
		n, err := syscall.Read(fd, buf[:])
		if err == syscall.EINTR {
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

// Beyond tells whether striking again is of no use after so long a time: all
// that is left of the roots and below belongs to another user, or waits for a
// disk or device and ends with that.
func Beyond(roots []int, struck time.Duration) bool {
	if struck < userPatience {
		return false
	}
	for _, pid := range forest(roots) {
		if syscall.Kill(pid, 0) == syscall.EPERM {
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

// Parents maps every process of the machine to its children.
func Parents() map[int][]int {
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
		m := Parents()
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

func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		if pid > 1 {
			_ = syscall.Kill(pid, sig) // gone meanwhile is fine
		}
	}
}

// Strike freezes everything below the roots and kills it. Roots visits them,
// anew each time: the second round meets what was forked during the first.
func Strike(roots func(visit func(pid int))) {
	freeze(roots)
	freeze(roots)
	var list []int
	roots(func(pid int) { list = append(list, pid) })
	signalAll(forest(list), syscall.SIGKILL)
}

// freeze stops the roots and everything below, each process before its children
// are looked for, so that it makes no new ones meanwhile.
func freeze(roots func(visit func(pid int))) {
	var list []int
	seen := make(map[int]bool)
	stop := func(pid int) {
		if pid > 1 && !seen[pid] {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			seen[pid] = true
			list = append(list, pid)
		}
	}
	roots(stop)
	if !hasChildrenFile() {
		signalAll(forest(list), syscall.SIGSTOP)
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
const MarkBase = 1 << 58

// setMark marks this process.
func setMark(mark uint64) error {
	const ofRealTime = 15 // RLIMIT_RTTIME
	return syscall.Setrlimit(ofRealTime, &syscall.Rlimit{Cur: mark, Max: mark})
}
