package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ticks is the number of clock ticks in a second of /proc/PID/stat: the same on
// every Linux that Go runs on.
const ticks = 100

// Fields of /proc/PID/stat, counted from the one behind the program's name.
const (
	fieldUser           = 11
	fieldSystem         = 12
	fieldChildrenUser   = 13
	fieldChildrenSystem = 14
	fieldThreads        = 17
	fieldResident       = 21 // pages
)

// treeUsage measures a process and those below it. A process that ended
// meanwhile counts through its parent. ok is false when there is no such
// process, or no way to measure it.
func treeUsage(pid int) (u usage, ok bool) {
	for _, p := range processTree(pid) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) <= fieldResident {
			continue
		}
		number := func(i int) int64 {
			n, _ := strconv.ParseInt(f[i], 10, 64) // the kernel writes numbers
			return n
		}
		own := float64(number(fieldUser)+number(fieldSystem)) / ticks
		if exact, ok := processCPU(p); ok {
			own = exact
		}
		u.CPU += own + float64(number(fieldChildrenUser)+number(fieldChildrenSystem))/ticks
		u.Threads += int(number(fieldThreads))
		u.Memory += number(fieldResident) * int64(os.Getpagesize())
		u.Processes++
	}
	return u, u.Processes > 0
}

// processCPU is the processor time of a process in seconds by its clock, which
// counts nanoseconds where /proc/PID/stat counts hundredths of a second: the
// work of a short run would be none. The clock's number is that of
// clock_getcpuclockid(3).
func processCPU(pid int) (seconds float64, ok bool) {
	const kind = 2 // CPUCLOCK_SCHED of the kernel, in the lower three bits
	var t unix.Timespec
	if unix.ClockGettime(int32(^pid)<<3|kind, &t) != nil {
		return 0, false
	}
	return float64(t.Nano()) / 1e9, true
}

// processTree lists a process and those below it.
func processTree(pid int) []int {
	out := []int{pid}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return out // it has ended
	}
	for _, t := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, processTree(child)...)
			}
		}
	}
	return out
}

// ownCPU is the processor time of this process in seconds.
func ownCPU() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

// threadCPU is the processor time that a function takes.
func threadCPU(f func()) (took time.Duration, ok bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before) != nil {
		return 0, false
	}
	f()
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after) != nil {
		return 0, false
	}
	return time.Duration(after.Nano() - before.Nano()), true
}

// loadAverage is the machine's, over one minute.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(first, 64) // the kernel writes a number
	return v
}

// lastNice is the rank of what may only use processors that nobody else wants.
const lastNice = 19

// startLast starts a program with that rank, in a session of its own: where the
// kernel makes a scheduling group of each, it counts within one, and the group has
// a rank of its own. A thread's rank is what the processes get that it makes; this
// one is not used for anything else.
func startLast(c *exec.Cmd) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, lastNice); err != nil {
			done <- err
			return
		}
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err := c.Start()
		if err == nil { // without such groups there is no such file
			_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", c.Process.Pid), []byte(strconv.Itoa(lastNice)), 0)
		}
		done <- err
	}()
	return <-done
}
