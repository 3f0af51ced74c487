package modes

import (
	"runtime"
	"syscall"
	"unsafe"
)

// setAttr is the number of sched_setattr(2), which package syscall does not have;
// that of sched_getattr(2) is the next one.
var setAttr = map[string]uintptr{"386": 351, "amd64": 314, "arm": 380, "arm64": 274, "loong64": 274, "ppc64le": 355, "riscv64": 274, "s390x": 345}[runtime.GOARCH]

// schedAttr is the kernel's struct sched_attr.
type schedAttr struct {
	size, policy                uint32
	flags                       uint64
	nice                        int32
	priority                    uint32
	runtime, deadline, period   uint64
	utilizationMin, utilization uint32
}

// usualSlice gives this thread the time slice that the system gives everybody,
// where the server has a shorter one (supervisor.WakeFirst).
func usualSlice() {
	if setAttr == 0 {
		return
	}
	var a schedAttr
	const size = unsafe.Sizeof(a)
	if _, _, errno := syscall.RawSyscall6(setAttr+1, 0, uintptr(unsafe.Pointer(&a)), size, 0, 0, 0); errno != 0 || a.policy != 0 {
		return
	}
	a.size, a.runtime = uint32(size), 0
	_, _, _ = syscall.RawSyscall(setAttr, 0, uintptr(unsafe.Pointer(&a)), 0)
}
