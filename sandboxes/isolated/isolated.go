package isolated

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"codework/messages"
	"codework/sandboxes"
)

// Name is what calls and settings name the driver by.
const Name = "isolated"

// Level is how much is walled in.
type Level string

// The levels, from most to least.
const (
	Full     Level = "full"
	Landlock Level = "landlock"
	None     Level = "none"
)

// Options are what the driver needs to know.
type Options struct {
	// StateDir is where caches of sandboxes are kept; it is made if missing.
	StateDir string
	// Executable is the program whose main calls Main and agent.Main; ""
	// is the running one.
	Executable string
	// Hide are files and folders that no sandbox may read, such as the
	// server's own home. What does not exist is left out.
	Hide []string
	// Level is the least that will do where a sandbox's configuration does not
	// say; "" is Full.
	Level Level
	// Log receives what is worth knowing; nil drops it.
	Log *slog.Logger
}

// Config is a sandbox's configuration. Paths are absolute.
type Config struct {
	Network     sandboxes.Network `json:"network"` // zero: none
	Limits      sandboxes.Limits  `json:"limits"`
	Write       []string          `json:"write"` // writable beside the project
	Hide        []string          `json:"hide"`  // unreadable beside the usual ones
	GitReadOnly bool              `json:"gitReadOnly"`
	Level       Level             `json:"level"` // the least that will do; "": the driver's
}

// The least that a sandbox needs for its own processes, whose threads count too.
const (
	minProcesses = 64
	minOpenFiles = 64
	minMemoryMiB = 64
)

// check refuses what makes no sense anywhere.
func (c *Config) check() error {
	refuse := func(format string, args ...any) error {
		return &sandboxes.ConfigError{Reason: "config: " + fmt.Sprintf(format, args...)}
	}
	switch c.Level {
	case "", Full, Landlock, None:
	default:
		return refuse(`level: expected "full", "landlock" or "none", not %q`, c.Level)
	}
	if c.Network.Addresses != nil {
		return refuse(`network: a list of addresses cannot be enforced here; use "none" or "host"`)
	}
	l := c.Limits
	switch {
	case l.MemoryMiB < 0 || l.Processes < 0 || l.OpenFiles < 0 || l.CPUs < 0:
		return refuse("limits: negative")
	case l.MemoryMiB > 0 && l.MemoryMiB < minMemoryMiB:
		return refuse("limits.memoryMiB: at least %d", minMemoryMiB)
	case l.Processes > 0 && l.Processes < minProcesses:
		return refuse("limits.processes: at least %d", minProcesses)
	case l.OpenFiles > 0 && l.OpenFiles < minOpenFiles:
		return refuse("limits.openFiles: at least %d", minOpenFiles)
	case l.MemoryMiB > maxMemoryMiB || l.CPUs > maxCPUs:
		return refuse("limits: absurdly large")
	}
	return nil
}

// Beyond these a number is a mistake.
const (
	maxMemoryMiB = 1 << 30
	maxCPUs      = 1 << 16
)

// Driver makes isolated sandboxes. It is safe for concurrent use.
type Driver struct {
	opt Options
	driver
}

var _ sandboxes.Driver = (*Driver)(nil)

// New starts nothing.
func New(opt Options) *Driver {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Level == "" {
		opt.Level = Full
	}
	if opt.StateDir != "" {
		if dir, err := filepath.Abs(opt.StateDir); err == nil {
			opt.StateDir = dir
		}
	}
	return &Driver{opt: opt}
}

// Name is "isolated".
func (d *Driver) Name() string { return Name }

// Kind tells that files are those of this machine.
func (d *Driver) Kind() messages.SandboxKind { return messages.KindLocal }
