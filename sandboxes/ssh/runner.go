package ssh

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// runner is our own program, as it can run on other hosts.
type runner struct {
	path     string
	sum      string // SHA-256, in hex
	size     int64
	os, arch string // as uname has them
}

// ownExe names the running program also when its file was replaced.
const ownExe = "/proc/self/exe"

// machines are what uname calls the machines that Linux programs are for.
var machines = map[elf.Machine]string{
	elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64", elf.EM_RISCV: "riscv64", elf.EM_PPC64: "ppc64le", elf.EM_S390: "s390x",
}

// newRunner looks at a program: it must be one for Linux that needs no
// libraries of the system, since those of another host are others.
func newRunner(path string) (*runner, error) {
	if path == "" {
		path = ownExe
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the runner: %w", err)
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, fmt.Errorf("the runner: %s is no program for Linux", path)
	}
	r := &runner{path: path, os: "Linux", arch: machines[e.Machine]}
	if r.arch == "" || e.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("the runner: %s is for a machine without name", path)
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, errors.New("the runner: this program needs libraries of the system and may not run on another host; build it with CGO_ENABLED=0")
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("the runner: %w", err)
	}
	hash := sha256.New()
	if r.size, err = io.Copy(hash, f); err != nil {
		return nil, fmt.Errorf("the runner: %w", err)
	}
	r.sum = hex.EncodeToString(hash.Sum(nil))
	return r, nil
}

func (r *runner) open() (*os.File, error) {
	f, err := os.Open(r.path)
	if err != nil {
		return nil, fmt.Errorf("the runner: %w", err)
	}
	return f, nil
}

// name is that of the file on hosts; every build has its own.
func (r *runner) name() string { return "runner-" + r.sum[:32] }

// runnerOnce looks at the program when it is needed first.
type runnerOnce struct {
	once sync.Once
	r    *runner
	err  error
}

func (o *runnerOnce) get(path string) (*runner, error) {
	o.once.Do(func() { o.r, o.err = newRunner(path) })
	return o.r, o.err
}
