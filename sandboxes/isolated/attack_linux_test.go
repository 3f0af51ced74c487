//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attackArg is a hidden mode of the test binary: it tries to get out by system
// calls that shells have no commands for, and prints what each gave.
const attackArg = "__test-attack"

// attack is one way out. A wall that holds gives one of the errors.
type attack struct {
	name  string
	try   func() error
	holds []error
}

func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return e
	}
	return nil
}

// cloneNew makes a child in new namespaces by the old call.
func cloneNew(flags uintptr) error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

func attacks() []attack {
	perm := []error{unix.EPERM}
	space := []byte("/\x00")
	root := uintptr(unsafe.Pointer(&space[0]))
	pidfdOf := func(pid int) uintptr {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return ^uintptr(0)
		}
		return uintptr(fd)
	}
	list := []attack{
		{"remount", func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }, perm},
		{"bind", func() error { return unix.Mount("/etc", "/tmp", "", unix.MS_BIND, "") }, perm},
		{"tmpfs", func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") }, perm},
		{"unmount", func() error { return unix.Unmount("/tmp", unix.MNT_DETACH) }, perm},
		{"pivot", func() error { return unix.PivotRoot("/tmp", "/tmp") }, perm},
		{"chroot", func() error { return unix.Chroot("/tmp") }, perm},
		{"mount attributes", func() error {
			return unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
		}, perm},
		{"open tree", func() error { return call(unix.SYS_OPEN_TREE, ^uintptr(99), root, unix.OPEN_TREE_CLONE) }, perm},
		{"fsopen", func() error { _, err := unix.Fsopen("tmpfs", 0); return err }, perm},
		{"move mount", func() error { return unix.MoveMount(unix.AT_FDCWD, "/tmp", unix.AT_FDCWD, "/var/tmp", 0) }, perm},
		{"unshare user", func() error { return unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNS) }, perm},
		{"unshare mounts", func() error { return unix.Unshare(unix.CLONE_NEWNS) }, perm},
		{"clone user", func() error { return cloneNew(unix.CLONE_NEWUSER | unix.CLONE_NEWNS) }, perm},
		{"clone with high bits", func() error { return cloneNew(unix.CLONE_NEWUSER | 1<<40) }, perm},
		{"clone3", func() error { return call(unix.SYS_CLONE3) }, []error{unix.ENOSYS}},
		{"setns", func() error {
			fd, err := unix.Open("/proc/1/ns/mnt", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			return unix.Setns(fd, unix.CLONE_NEWNS)
		}, perm},
		{"ptrace", func() error { return unix.PtraceAttach(1) }, perm},
		{"read memory", func() error {
			var b [1]byte
			_, err := unix.ProcessVMReadv(1, []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{{Base: 4096, Len: 1}}, 0)
			return err
		}, perm},
		{"write memory by /proc", func() error { _, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0); return err },
			[]error{unix.EROFS, unix.EACCES}},
		{"take the control descriptor", func() error { return call(unix.SYS_PIDFD_GETFD, pidfdOf(1), 0, 0) }, perm},
		{"open the control descriptor", func() error { _, err := os.OpenFile("/proc/1/fd/0", os.O_RDWR, 0); return err },
			[]error{unix.ENXIO, unix.EACCES, unix.EROFS}},
		{"take the runner's descriptor", func() error { return call(unix.SYS_PIDFD_GETFD, pidfdOf(os.Getppid()), 3, 0) }, perm},
		{"bpf", func() error { return call(unix.SYS_BPF) }, perm},
		{"perf", func() error { return call(unix.SYS_PERF_EVENT_OPEN) }, perm},
		{"io_uring", func() error { return call(unix.SYS_IO_URING_SETUP) }, perm},
		{"userfaultfd", func() error { return call(unix.SYS_USERFAULTFD) }, perm},
		{"keys", func() error { return call(unix.SYS_KEYCTL) }, perm},
		{"module", func() error { return call(unix.SYS_FINIT_MODULE) }, perm},
		{"kexec", func() error { return call(unix.SYS_KEXEC_LOAD) }, perm},
		{"device", func() error { return unix.Mknod("/tmp/disk", unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))) }, append(perm, unix.EACCES)},
		{"device in the project", func() error { return unix.Mknod("disk", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))) }, append(perm, unix.EACCES)},
		{"capabilities back", func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
			return unix.Capset(&header, &data[0])
		}, perm},
		{"another user", func() error { return syscall.Setuid(12345) }, append(perm, unix.EINVAL)},
		{"typing into a terminal", func() error { return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, root) }, perm},
		{"typing with high bits", func() error { return call(unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<32, root) }, perm},
		{"socket to the machine's host", func() error { _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); return err },
			[]error{unix.EAFNOSUPPORT}},
		{"packets", func() error { _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); return err },
			[]error{unix.EAFNOSUPPORT}},
		{"raise a limit", func() error {
			var l unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
				return err
			}
			l.Max++
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
		}, perm},
	}
	return append(list, attacksHere()...)
}

// runAttacks is the hidden mode: it prints a line per attack. Words behind the
// name of the mode are targets on the host: network:address, or kill:pid.
func runAttacks(targets []string) {
	runtime.LockOSThread()
	for _, a := range attacks() {
		report(a.name, a.try(), a.holds)
	}
	for _, target := range targets {
		kind, at, _ := strings.Cut(target, ":")
		var err error
		holds := []error{unix.ENETUNREACH, unix.ECONNREFUSED, unix.EPERM, unix.EACCES, unix.EADDRNOTAVAIL, unix.ENOENT}
		if kind == "kill" {
			pid, _ := strconv.Atoi(at)
			err, holds = unix.Kill(pid, unix.SIGKILL), []error{unix.ESRCH, unix.EPERM}
		} else {
			err = reachServer(kind, at)
		}
		report(target, err, holds)
	}
	fmt.Println("done")
	os.Exit(0)
}

func reachServer(network, address string) error {
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("out"))
	return err
}

func report(name string, err error, holds []error) {
	for _, h := range holds {
		if errors.Is(err, h) {
			fmt.Printf("held\t%s\t%v\n", name, err)
			return
		}
	}
	fmt.Printf("OPEN\t%s\t%v\n", name, err)
}
