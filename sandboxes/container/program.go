package container

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"codework/sandboxes"
)

// program is our own program as containers run it: a copy for each build, since
// the file that was started may be replaced while containers are bound to it.
type program struct {
	executable string
	cache      string

	mu   sync.Mutex // guards copied
	copy string
}

// architectures are the engine's names of what ELF files are for.
var architectures = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_RISCV: "riscv64", elf.EM_386: "386", elf.EM_ARM: "arm"}

// copyFor returns the path of a copy that runs on an architecture; "" stands
// for one that the engine does not name.
func (p *program) copyFor(arch string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := p.executable
	if name == "" {
		var err error
		if name, err = os.Executable(); err != nil {
			return "", fmt.Errorf("find our own program: %w", err)
		}
		if _, err := os.Stat("/proc/self/exe"); err == nil {
			name = "/proc/self/exe" // also when the file was replaced
		}
	}
	if err := fits(name, arch); err != nil {
		return "", err
	}
	if p.copy != "" {
		if _, err := os.Stat(p.copy); err == nil {
			return p.copy, nil
		}
	}
	to, err := copyInto(p.cache, name)
	if err == nil {
		p.copy = to
	}
	return to, err
}

// fits refuses a program that cannot run in a container.
func fits(name, arch string) error {
	f, err := elf.Open(name)
	if err != nil {
		return &sandboxes.ConfigError{Reason: "containers run a copy of codework for Linux, and this one is none: " + err.Error()}
	}
	defer f.Close()
	if got := architectures[f.Machine]; arch != "" && got != arch {
		return &sandboxes.ConfigError{Reason: fmt.Sprintf("the image is for %s, and this codework for %s; take an image for %s", arch, got, got)}
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			return &sandboxes.ConfigError{Reason: "this codework is linked dynamically and may not run in the image; build it with CGO_ENABLED=0"}
		}
	}
	return nil
}

// copyInto copies a program into the cache under the name of its content.
func copyInto(cache, name string) (to string, err error) {
	in, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("read our own program: %w", err)
	}
	defer in.Close()
	dir := filepath.Join(cache, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder for programs: %w", err)
	}
	temp, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return "", fmt.Errorf("copy our own program: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(temp, sum), in)
	if err == nil {
		err = temp.Chmod(0o755)
	}
	if e := temp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return "", fmt.Errorf("copy our own program: %w", err)
	}
	to = filepath.Join(dir, "codework-"+hex.EncodeToString(sum.Sum(nil))[:16])
	if _, err := os.Stat(to); err == nil {
		return to, os.Remove(temp.Name())
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return to, os.Rename(temp.Name(), to)
}
