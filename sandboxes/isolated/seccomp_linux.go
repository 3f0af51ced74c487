//go:build amd64 || arm64

package isolated

import (
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets into what a filter looks at (struct seccomp_data of linux/seccomp.h).
// Arguments are 64 bits wide; both machines are little-endian.
const (
	atNumber = 0
	atArch   = 4
	atArgs   = 16
	argSize  = 8
)

// x32Bit marks system calls of the x32 machine interface, which shares its
// architecture number with the 64-bit one.
const x32Bit = 0x40000000

// newNamespaces are the flags of clone that make namespaces. The one for time
// is none of clone's: there its bit belongs to the signal number.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// tioclinux is an ioctl that types into a console, as TIOCSTI does.
const tioclinux = 0x541c

// refused are the system calls that fail with EPERM. Most need a capability
// that commands do not have; they are here as well because a mistake in the
// kernel is likeliest where it is used least.
var refused = append([]uint32{
	// What is mounted where.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR,
	unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	// Other namespaces.
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	// Other processes: our own agent and runners are among them, with the
	// descriptors that they are controlled by.
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	// Large and seldom used parts of the kernel.
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER,
	unix.SYS_IO_URING_REGISTER, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_FANOTIFY_INIT,
	unix.SYS_OPEN_BY_HANDLE_AT,
	// The machine.
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_REBOOT, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_SETHOSTNAME,
	unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL,
}, refusedHere...)

// program is a filter in the making: a list of tests, each of which decides or
// goes on to the next.
type program []unix.SockFilter

func (p *program) add(code uint16, k uint32, yes, no uint8) {
	*p = append(*p, unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k})
}

// load looks at a word of the data.
func (p *program) load(at uint32) { p.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, at, 0, 0) }

// arg looks at the low half of an argument: what is compared here the kernel
// itself takes as 32 bits, whatever stands above them.
func (p *program) arg(n uint32) { p.load(atArgs + argSize*n) }

func (p *program) decide(verdict uint32) { p.add(unix.BPF_RET|unix.BPF_K, verdict, 0, 0) }

// when decides if the comparison of what was loaded with k holds.
func (p *program) when(test uint16, k, verdict uint32) {
	p.add(unix.BPF_JMP|test|unix.BPF_K, k, 0, 1)
	p.decide(verdict)
}

// unless is the opposite of when.
func (p *program) unless(test uint16, k, verdict uint32) {
	p.add(unix.BPF_JMP|test|unix.BPF_K, k, 1, 0)
	p.decide(verdict)
}

// only has body decide if it is system call nr; body must decide for all cases.
func (p *program) only(nr uint32, body program) {
	if len(body) > math.MaxUint8 {
		panic("isolated: filter too long for one jump")
	}
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, nr, 0, uint8(len(body)))
	*p = append(*p, body...)
}

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// filter is what every command's system calls go through. Internet says whether
// sockets of the internet may be made: without a network of its own it is the
// filter that takes it away.
func filter(internet bool) program {
	var p program
	// First: a number means something else for another machine, such as the
	// 32-bit one that this processor also runs.
	p.load(atArch)
	p.unless(unix.BPF_JEQ, auditArch, unix.SECCOMP_RET_KILL_PROCESS)
	p.load(atNumber)
	p.when(unix.BPF_JGE, x32Bit, errno(unix.ENOSYS))
	// Programs fall back to clone, whose flags can be looked at.
	p.when(unix.BPF_JEQ, unix.SYS_CLONE3, errno(unix.ENOSYS))
	for _, nr := range refused {
		p.when(unix.BPF_JEQ, nr, errno(unix.EPERM))
	}
	var clone program
	clone.arg(0)
	clone.when(unix.BPF_JSET, newNamespaces, errno(unix.EPERM))
	clone.decide(unix.SECCOMP_RET_ALLOW)
	p.only(unix.SYS_CLONE, clone)
	var ioctl program
	ioctl.arg(1)
	ioctl.when(unix.BPF_JEQ, unix.TIOCSTI, errno(unix.EPERM))
	ioctl.when(unix.BPF_JEQ, tioclinux, errno(unix.EPERM))
	ioctl.decide(unix.SECCOMP_RET_ALLOW)
	p.only(unix.SYS_IOCTL, ioctl)
	var socket program
	socket.arg(0)
	socket.when(unix.BPF_JEQ, unix.AF_UNIX, unix.SECCOMP_RET_ALLOW)
	if internet {
		for _, family := range []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
			socket.when(unix.BPF_JEQ, family, unix.SECCOMP_RET_ALLOW)
		}
	} else {
		for _, family := range []uint32{unix.AF_INET, unix.AF_INET6} {
			socket.when(unix.BPF_JEQ, family, errno(unix.EACCES))
		}
	}
	// The rest is not of this network only (AF_VSOCK reaches the machine that
	// this one is a guest of) or seldom used.
	socket.decide(errno(unix.EAFNOSUPPORT))
	p.only(unix.SYS_SOCKET, socket)
	p.decide(unix.SECCOMP_RET_ALLOW)
	return p
}

// install puts the filter on this thread and all that comes of it, for ever.
func (p program) install() error {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return e
	}
	return nil
}
