//go:build amd64 || arm64

package isolated

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codework/sandboxes"
)

// groupPrefix begins the names of our control groups; the server's id follows.
const groupPrefix = "codework-"

const (
	// groupPatience is how long a group may be busy after all in it was killed.
	groupPatience = 500 * time.Millisecond
	groupPause    = 2 * time.Millisecond
	// cpuPeriod is that of the limit on CPU time, in microseconds: the kernel's
	// own choice.
	cpuPeriod = 100_000
)

// groups is the place where control groups (version 2) of sandboxes are made:
// below the group that this process is in.
type groups struct {
	base string
}

// findGroups finds the place, and proves by making a group that it is ours to
// use. Nil means that there is none.
func findGroups() *groups {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := readMounts()
	if err != nil {
		return nil
	}
	for _, m := range mounts {
		if m.kind != "cgroup2" {
			continue
		}
		path, ok := ownGroup(string(own))
		rest, below := within(path, m.root)
		if !ok || !below {
			continue
		}
		g := &groups{base: join(m.path, rest)}
		// Where this may not be done, limits are not to be had by groups.
		for _, c := range []string{"+memory", "+pids", "+cpu"} {
			_ = writeGroup(g.base, "cgroup.subtree_control", c)
		}
		probe, err := g.make("probe", strconv.Itoa(os.Getpid()))
		if err != nil {
			continue
		}
		_, err = os.Stat(filepath.Join(probe.dir, "cgroup.kill"))
		if probe.remove() == nil && err == nil {
			return g
		}
	}
	return nil
}

// ownGroup finds the path in /proc/self/cgroup (cgroups(7)).
func ownGroup(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok && strings.HasPrefix(path, "/") {
			return path, true
		}
	}
	return "", false
}

// group is the control group of one sandbox.
type group struct {
	dir string
}

// groupsOf begins the names of a server's groups; the dot is in no id.
func groupsOf(server string) string {
	if !plainID(server) {
		server = "unnamed"
	}
	return groupPrefix + server + "."
}

// make makes a group for a sandbox.
func (g *groups) make(server, id string) (*group, error) {
	one := &group{filepath.Join(g.base, groupsOf(server)+id+"."+rand.Text())}
	return one, os.Mkdir(one.dir, 0o755)
}

// limit sets those of the limits that groups keep here.
func (one *group) limit(g *groups, l sandboxes.Limits) error {
	memory, processes, cpus := g.keeps()
	for _, f := range []struct {
		field, file, value string
		set                bool
	}{
		{"memoryMiB", "memory.max", strconv.FormatInt(l.MemoryMiB<<20, 10), memory && l.MemoryMiB > 0},
		{"processes", "pids.max", strconv.FormatInt(l.Processes, 10), processes && l.Processes > 0},
		{"cpus", "cpu.max", fmt.Sprintf("%d %d", int64(l.CPUs*cpuPeriod), cpuPeriod), cpus && l.CPUs > 0},
	} {
		if !f.set {
			continue
		}
		if err := writeGroup(one.dir, f.file, f.value); err != nil {
			return fmt.Errorf("limits.%s: %w", f.field, err)
		}
	}
	return nil
}

// keeps tells which limits groups made here can keep.
func (g *groups) keeps() (memory, processes, cpus bool) {
	if g == nil {
		return false, false, false
	}
	b, _ := os.ReadFile(filepath.Join(g.base, "cgroup.subtree_control"))
	for name := range strings.FieldsSeq(string(b)) {
		switch name {
		case "memory":
			memory = true
		case "pids":
			processes = true
		case "cpu":
			cpus = true
		}
	}
	return memory, processes, cpus
}

// kill ends everything in the group.
func (one *group) kill() { _ = writeGroup(one.dir, "cgroup.kill", "1") }

// remove ends everything in the group and the group.
func (one *group) remove() error {
	one.kill()
	for deadline := time.Now().Add(groupPatience); ; time.Sleep(groupPause) {
		err := unix.Rmdir(one.dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY || time.Now().After(deadline) {
			return &os.PathError{Op: "rmdir", Path: one.dir, Err: err}
		}
	}
}

// emptyAge is when an empty group counts as left over: a living one is empty
// only between its making and the start of its first process.
const emptyAge = time.Minute

// sweep removes the groups of a server's earlier life, with what is in them, and
// the empty ones of any: whose home was removed nobody else would.
func (g *groups) sweep(server string) error {
	if g == nil {
		return nil
	}
	left, err := filepath.Glob(filepath.Join(g.base, groupPrefix+"*"))
	errs := []error{err}
	for _, dir := range left {
		if strings.HasPrefix(filepath.Base(dir), groupsOf(server)) {
			errs = append(errs, (&group{dir}).remove())
		} else if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > emptyAge {
			_ = unix.Rmdir(dir) // which the kernel refuses for one in use
		}
	}
	return errors.Join(errs...)
}

func writeGroup(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
