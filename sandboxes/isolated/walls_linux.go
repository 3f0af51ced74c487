//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Bits that keep the user with number 0 from being anything special, and their
// locks (linux/securebits.h).
const (
	secureNoRoot    = 1<<0 | 1<<1
	secureNoFixup   = 1<<2 | 1<<3
	secureKeepLock  = 1 << 5
	secureNoAmbient = 1<<6 | 1<<7
)

// wallIn gives up, for this thread and all that it becomes and starts, whatever
// could undo what was built. It comes last, since nothing can be built behind.
func wallIn(p *plan) error {
	if p.Level == None {
		return nil
	}
	if p.Level == Full || hasCapabilities() {
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	if err := step("forbid new privileges", "", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
		return err
	}
	if err := step(landlockStep, "", landlock(grants(p))); err != nil {
		return err
	}
	// A network of its own is what takes the host's away at the full level.
	internet := p.Internet || p.Level == Full
	return step("filter system calls (seccomp)", "", filter(internet).install())
}

// hasCapabilities tells whether there is anything to drop: without a namespace
// of the user's own only root has any.
func hasCapabilities() bool {
	low, high, err := capabilities()
	return err != nil || low|high != 0
}

// capabilities are those of this thread that it has or can have.
func capabilities() (low, high uint32, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err = unix.Capget(&header, &data[0])
	return data[0].Permitted, data[1].Permitted, err
}

// dropCapabilities empties every set. For root this is what keeps the mounts as
// they are.
func dropCapabilities() error {
	if err := step("drop ambient capabilities", "", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)); err != nil {
		return err
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			break // there are no more
		}
		if err := step("drop capabilities", "", err); err != nil {
			return err
		}
	}
	bits := uintptr(secureNoRoot | secureNoFixup | secureKeepLock | secureNoAmbient)
	if err := step("set secure bits", "", unix.Prctl(unix.PR_SET_SECUREBITS, bits, 0, 0, 0)); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return step("drop capabilities", "", unix.Capset(&header, &none[0]))
}

// grants are what Landlock lets through. At the full level it is a second wall
// behind the mounts, at the other one the only one.
func grants(p *plan) []grant {
	var list []grant
	if p.Level == Full {
		list = append(list, grant{"/", rightsRead}, grant{"/dev", rightsDevice})
		for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
			list = append(list, grant{dir, rightsRead | rightsChange})
		}
	} else {
		for _, path := range p.Read {
			list = append(list, grant{path, rightsRead})
		}
		list = append(list, grant{"/proc", rightsRead})
		for name := range strings.FieldsSeq(devices) {
			list = append(list, grant{"/dev/" + name, rightsDevice})
		}
	}
	for _, path := range p.Write {
		list = append(list, grant{path, rightsRead | rightsChange})
	}
	for _, c := range p.Caches {
		list = append(list, grant{c.Target, rightsRead | rightsChange})
	}
	return list
}

// tryWalls does what must not work, and fails when it does.
func tryWalls(p *plan) error {
	const probe = "codework-probe"
	refused := func(what string, err error) error {
		if err == nil {
			return step(checkStep, "", fmt.Errorf("%s is still possible", what))
		}
		return nil
	}
	write := func(dir string) error {
		f, err := os.OpenFile(dir+"/"+probe, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		f.Close()
		return os.Remove(f.Name())
	}
	inside := p.Write[len(p.Write)-1]
	checks := []error{
		refused("mounting", unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "")),
		refused("a new namespace", unix.Unshare(unix.CLONE_NEWUSER)),
		refused("writing to /", write("/")),
		step(checkStep, inside, write(inside)),
	}
	if p.Level != Full && !p.Internet {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		checks = append(checks, refused("the network", err))
		if err == nil {
			unix.Close(fd)
		}
	}
	return errors.Join(checks...)
}
