//go:build amd64 || arm64

package isolated

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// setupArg is the hidden mode of the binary that builds a sandbox around
// itself.
const setupArg = "__sandbox-isolated"

// Descriptors of that mode beside standard input, which holds the plan.
const (
	connFD   = 3 // becomes the agent's input and output
	reportFD = 4 // takes the failure; its end without one means success
)

// ownExe names the running program also when its file is gone or hidden.
const ownExe = "/proc/self/exe"

// Main serves the hidden mode of the binary and must be called first thing in
// main, with os.Args. When handled is false the
// arguments are somebody else's; else the process could not become a sandbox
// and exits with code.
func Main(args []string) (handled bool, code int) {
	if len(args) != 2 || args[1] != setupArg {
		return false, 0
	}
	// What is given up is given up by one thread; starting the agent is what
	// ends all the others.
	runtime.LockOSThread()
	err := forgetInherited()
	if err == nil {
		err = becomeSandbox(args[0])
	}
	if err == nil {
		return true, 0
	}
	f := failure{Step: err.Error(), Text: err.Error()}
	var se *stepError
	if errors.As(err, &se) {
		f.Step, f.Path = se.step, se.path
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		f.Errno = int(e)
	}
	b, _ := json.Marshal(f)
	_, _ = unix.Write(reportFD, b)
	return true, 1
}

// forgetInherited keeps from the agent every descriptor but the standard ones:
// the two above, and whatever the server itself was started with. A folder of
// the host among them would be a way around all mounts, by /proc/1/fd.
func forgetInherited() error {
	return step("close inherited descriptors", "", unix.CloseRange(connFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC))
}

// Steps whose failure has usual causes.
const (
	startStep    = "start in new namespaces"
	procStep     = "mount /proc"
	landlockStep = "restrict paths (Landlock)"
	checkStep    = "check the walls"
)

// stepError tells what was being done when building failed.
type stepError struct {
	step string
	path string
	err  error
}

func (e *stepError) Error() string {
	if e.path == "" {
		return e.step + ": " + e.err.Error()
	}
	return e.step + " " + e.path + ": " + e.err.Error()
}
func (e *stepError) Unwrap() error { return e.err }

// step dresses an error; nil stays nil.
func step(what, path string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{what, path, err}
}

// becomeSandbox does not return when all went well, unless it was only a try.
func becomeSandbox(name string) error {
	var p plan
	if err := json.NewDecoder(os.Stdin).Decode(&p); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	if p.Level == Full {
		if err := build(&p); err != nil {
			return err
		}
	}
	if err := step("enter", p.Dir, os.Chdir(p.Dir)); err != nil {
		return err
	}
	if err := p.Limits.set(); err != nil {
		return err
	}
	if err := wallIn(&p); err != nil {
		return err
	}
	if p.Try {
		return tryWalls(&p)
	}
	for _, fd := range []int{0, 1} {
		if err := step("hand over the connection", "", unix.Dup3(connFD, fd, 0)); err != nil {
			return err
		}
	}
	err := syscall.Exec(ownExe, append([]string{name}, p.Args...), os.Environ())
	return step("start the agent", "", err)
}

func (l limits) set() error {
	for _, one := range []struct {
		name  string
		which int
		max   uint64
	}{
		{"memory", unix.RLIMIT_DATA, l.Data},
		{"processes", unix.RLIMIT_NPROC, l.Processes},
		{"open files", unix.RLIMIT_NOFILE, l.OpenFiles},
	} {
		if one.max == 0 {
			continue
		}
		var now unix.Rlimit
		if err := unix.Getrlimit(one.which, &now); err != nil {
			return step("limit "+one.name, "", err)
		}
		one.max = min(one.max, now.Max)
		// The runtime puts a lower limit on open files back when it starts a
		// program, unless it is told otherwise by a call of package syscall.
		err := syscall.Setrlimit(one.which, &syscall.Rlimit{Cur: one.max, Max: one.max})
		if err := step("limit "+one.name, "", err); err != nil {
			return err
		}
	}
	return nil
}

// Sizes of what a sandbox has of its own in memory. A build that unpacks a
// compiler fits, and several sandboxes do not fill a machine.
const (
	tmpSize    = "size=2g,nr_inodes=1m"
	varTmpSize = "size=1g,nr_inodes=1m"
	shmSize    = "size=512m,nr_inodes=64k"
	smallSize  = "size=1m,nr_inodes=4k" // holds no more than names
)

const (
	quiet = unix.MS_NOSUID | unix.MS_NODEV
	// devices are those of the host that a sandbox has too.
	devices = "null zero full random urandom tty"
)

// builder makes the sandbox's view of the files. What is to be seen is first
// taken hold of, as copies that are mounted nowhere; then everything becomes
// read-only and is covered, and the copies are put where they belong.
type builder struct {
	plan   *plan
	copies []copied
}

// copied is a mount that is not yet in its place.
type copied struct {
	fd   int
	path string
	dir  bool
}

func build(p *plan) error {
	b := &builder{plan: p}
	if err := step("make mounts private", "", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	err := unix.Mount("proc", "/proc", "proc", quiet|unix.MS_NOEXEC|unix.MS_RDONLY, "")
	if err := step(procStep, "", err); err != nil {
		return err
	}
	for _, do := range []func() error{b.hold, b.seal, b.cover, b.place, b.pin, b.hide} {
		if err := do(); err != nil {
			return err
		}
	}
	if !p.Internet {
		return step("bring up loopback", "", loopbackUp())
	}
	return nil
}

// hold takes copies of what must stay as it is: read-only would go for them too.
func (b *builder) hold() error {
	for _, path := range b.plan.Write {
		if err := b.copy(path, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
			return err
		}
	}
	for _, path := range b.plan.Show {
		if err := b.copy(path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
			return err
		}
	}
	for name := range strings.FieldsSeq(devices) {
		if err := b.copy("/dev/"+name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	return b.layerCaches()
}

// copy takes a copy of a mount tree, with attributes added.
func (b *builder) copy(path string, attrs uint64) error {
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err := step("open", path, err); err != nil {
		return err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := step("look at", path, unix.Fstat(at, &st)); err != nil {
		return err
	}
	fd, err := copyMount(at, attrs)
	if err != nil {
		return step("copy mount", path, err)
	}
	b.copies = append(b.copies, copied{fd, path, st.Mode&unix.S_IFMT == unix.S_IFDIR})
	return nil
}

func copyMount(at int, attrs uint64) (int, error) {
	fd, err := unix.OpenTree(at, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil || attrs == 0 {
		return fd, err
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attrs})
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// put mounts a copy on a path.
func put(fd int, path string) error {
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// layerCaches lays a writable layer over each of the host's caches. Where that
// cannot be (the state folder is on a layered file system itself, say), the
// cache begins empty.
func (b *builder) layerCaches() error {
	if len(b.plan.Caches) == 0 {
		return nil
	}
	for _, c := range b.plan.Caches {
		fd, err := layer(c)
		if err != nil {
			if err := b.copy(c.Upper, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
				return err
			}
			b.copies[len(b.copies)-1].path = c.Target
			continue
		}
		b.copies = append(b.copies, copied{fd, c.Target, true})
	}
	return nil
}

func layer(c cache) (int, error) {
	if c.Lower == "" {
		return -1, unix.ENOENT
	}
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{{"lowerdir", c.Lower}, {"upperdir", c.Upper}, {"workdir", c.Work}} {
		at, err := unix.Open(o[1], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return -1, err
		}
		defer unix.Close(at)
		// By number: the names may hold what separates options.
		if err := unix.FsconfigSetString(fs, o[0], fmt.Sprintf("/proc/self/fd/%d", at)); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigSetFlag(fs, "userxattr"); err != nil {
		return -1, err
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// seal makes everything read-only, with no devices and no programs that change
// the user.
func (b *builder) seal() error {
	return step("make everything read-only", "", unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
	}))
}

// cover puts folders of the sandbox's own over those of the host that hold
// devices, sockets and everybody's temporary files.
func (b *builder) cover() error {
	// Elsewhere mounted, the host's processes would be seen as before.
	if err := b.coverOthers("proc", "/proc"); err != nil {
		return err
	}
	own := []struct{ path, options string }{
		{"/dev", "mode=755," + smallSize},
		{"/run", "mode=755," + smallSize},
		{"/var/run", "mode=755," + smallSize}, // where it is no symlink
		{"/tmp", "mode=1777," + tmpSize},
		{"/var/tmp", "mode=1777," + varTmpSize},
	}
	for _, o := range own {
		if info, err := os.Lstat(o.path); err != nil || !info.IsDir() {
			if o.path == "/dev" || o.path == "/tmp" {
				return step("find", o.path, fmt.Errorf("no folder: %w", unix.ENOTDIR))
			}
			continue
		}
		if err := step("cover", o.path, unix.Mount("tmpfs", o.path, "tmpfs", quiet, o.options)); err != nil {
			return err
		}
	}
	return b.devices()
}

// devices fills /dev but for the devices, which are among the copies.
func (b *builder) devices() error {
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := step("make", "/dev/"+name, os.Symlink(to, "/dev/"+name)); err != nil {
			return err
		}
	}
	for _, m := range []struct{ dir, kind, options string }{
		{"/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=620"},
		{"/dev/shm", "tmpfs", "mode=1777," + shmSize},
	} {
		if err := step("make", m.dir, os.Mkdir(m.dir, 0o755)); err != nil {
			return err
		}
		flags := uintptr(unix.MS_NOSUID | unix.MS_NOEXEC)
		if m.kind == "tmpfs" {
			flags = quiet
		}
		if err := step("mount", m.dir, unix.Mount(m.kind, m.dir, m.kind, flags, m.options)); err != nil {
			return err
		}
	}
	return nil
}

// coverOthers hides all mounts of a kind but one.
func (b *builder) coverOthers(kind, but string) error {
	mounts, err := readMounts()
	if err != nil {
		return step("read the list of mounts", "", err)
	}
	for _, m := range mounts {
		if m.kind != kind || m.path == but || strings.HasPrefix(m.path, but+"/") {
			continue
		}
		err := unix.Mount("tmpfs", m.path, "tmpfs", quiet|unix.MS_RDONLY, "mode=000,"+smallSize)
		if err != nil && !errors.Is(err, unix.ENOENT) { // covered already
			return step("hide", m.path, err)
		}
	}
	return nil
}

// place puts the copies where they belong, parents first.
func (b *builder) place() error {
	slices.SortStableFunc(b.copies, func(a, c copied) int { return strings.Count(a.path, "/") - strings.Count(c.path, "/") })
	for _, c := range b.copies {
		if err := step("make place for", c.path, makePlace(c.path, c.dir)); err != nil {
			return err
		}
		if err := step("place", c.path, put(c.fd, c.path)); err != nil {
			return err
		}
		unix.Close(c.fd)
	}
	for _, path := range []string{"/dev", "/run"} {
		err := unix.MountSetattr(unix.AT_FDCWD, path, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err != nil && !(path == "/run" && errors.Is(err, unix.ENOENT)) {
			return step("make read-only", path, err)
		}
	}
	return nil
}

// makePlace makes what a copy is mounted on, where it lies in a covered folder.
func makePlace(path string, dir bool) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	parent := path
	if !dir {
		parent = filepath.Dir(path)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if dir {
		return nil
	}
	return os.WriteFile(path, nil, 0o444)
}

// pin mounts parts of what is writable on themselves: a mount point can be
// neither moved nor removed, and may be read-only.
func (b *builder) pin() error {
	for _, list := range []struct {
		paths []string
		attrs uint64
	}{
		{b.plan.Keep, 0},
		{b.plan.ReadOnly, unix.MOUNT_ATTR_RDONLY},
	} {
		for _, path := range list.paths {
			at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
				Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS,
			})
			if err := step("pin", path, err); err != nil {
				return err
			}
			fd, err := copyMount(at, list.attrs)
			if err == nil {
				err = unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
				unix.Close(fd)
			}
			unix.Close(at)
			if err := step("pin", path, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// hide covers what is not to be read, by whatever mount it can be reached.
func (b *builder) hide() error {
	mounts, err := readMounts()
	if err != nil {
		return step("read the list of mounts", "", err)
	}
	if len(b.plan.Hide) == 0 {
		return nil
	}
	// A file that nobody may read, to be mounted over others.
	void, err := makeVoid()
	if err != nil {
		return step("make cover", voidPath, err)
	}
	defer unix.Close(void)
	for _, path := range b.plan.Hide {
		for _, name := range append([]string{path}, aliases(mounts, path)...) {
			if err := hide(name, void); err != nil {
				return step("hide", name, err)
			}
		}
	}
	return step("remove", voidPath, os.Remove(voidPath))
}

// voidPath is for a moment in the sandbox's own folder.
const voidPath = "/tmp/.codework-hidden"

func makeVoid() (int, error) {
	return unix.Open(voidPath, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// hide covers a file, or a folder with all below it. What does not exist, or is
// covered already, is fine.
func hide(path string, void int) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return unix.Mount("tmpfs", path, "tmpfs", quiet|unix.MS_RDONLY, "mode=000,"+smallSize)
	}
	fd, err := copyMount(void, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return put(fd, path)
}
