// Package local is the sandbox driver of the host: the disk of this machine and
// commands on it, without confinement.
//
// Files are reached directly. A write never shows a half: it goes to a
// temporary file that is renamed, except where the folder takes no new file, or
// the target is a mount point of its own; there it is written in place. Mode,
// and owner where that is allowed, are kept; hard links and extended attributes
// are not.
//
// Commands run below a supervisor (package supervisor says what that promises),
// which is started with the first command. At most MaxCommands run at once, the
// others wait in line; background jobs do not count. Output is handed on as it
// comes and a slow consumer slows the command down; memory per command is two
// buffers of 64 KiB. Background jobs belong to the mount and end with it, with
// the sandbox, and with this process in whatever way it ends.
//
// A Sandbox is safe for concurrent use. Who made it closes it.
package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/internal/filelock"
	"codework/sandboxes/supervisor"
)

// ID is the reserved id of the host, and the driver's name.
const ID = "local"

// MaxCommands is how many commands of a sandbox run at once.
const MaxCommands = 32

// Options are what a sandbox needs to know.
type Options struct {
	// ID is what commands find in CODEWORK_SANDBOX and errors name; "" is that
	// of the host.
	ID string
	// Executable is a program that imports package supervisor; "" is the running
	// one.
	Executable string
	// StateDir is where scratch folders are made; it is created if missing.
	// Several processes may share it.
	StateDir string
	// Log receives what is worth knowing; nil drops it.
	Log *slog.Logger
}

// Sandbox is the host.
type Sandbox struct {
	id      string
	host    *supervisor.Host
	scratch *scratch
	locks   filelock.Table
	started time.Time
	slots   chan struct{} // one token per running command

	mu     sync.Mutex // guards the following
	closed bool
	mounts map[*mount]struct{}
}

// New makes this process fit to end what it will start, and removes scratch
// folders that dead processes left in the state folder. Nothing is started.
func New(opt Options) (*Sandbox, error) {
	if err := supervisor.Subreaper(); err != nil {
		return nil, fmt.Errorf("local sandbox: %w", err)
	}
	sc, err := newScratch(opt.StateDir)
	if err != nil {
		return nil, fmt.Errorf("local sandbox: %w", err)
	}
	return &Sandbox{
		id:      cmp.Or(opt.ID, ID),
		host:    supervisor.NewHost(supervisor.Options{Executable: opt.Executable, Log: opt.Log}),
		scratch: sc,
		started: time.Now(),
		slots:   make(chan struct{}, MaxCommands),
		mounts:  make(map[*mount]struct{}),
	}, nil
}

// Info is the host's entry in the list of sandboxes.
func (s *Sandbox) Info() messages.SandboxInfo {
	at := s.started.UTC().Format("2006-01-02T15:04:05.000Z")
	return messages.SandboxInfo{
		ID:        ID,
		Driver:    ID,
		Kind:      messages.KindLocal,
		Ownership: "external",
		Status:    messages.SandboxOnline,
		Usage:     "pinned",
		CreatedAt: at,
		UpdatedAt: at,
	}
}

// Mount makes a session's use of the host. A folder that is missing is a
// *messages.DirectoryNotFound, one that is something else a
// *messages.NotDirectory.
func (s *Sandbox) Mount(ctx context.Context, opt sandboxes.MountOptions) (sandboxes.Mount, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := mountDir(opt.Dir, s.id)
	if err != nil {
		return nil, err
	}
	env, err := newEnviron(opt, os.Environ(), s.id)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	m := &mount{sandbox: s, dir: dir, env: env, umask: opt.Umask}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	if m.umask < 0 {
		m.umask = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, sandboxes.ErrClosed
	}
	m.scratch = filepath.Join(s.scratch.dir, rand.Text()) // made when something is put there
	s.mounts[m] = struct{}{}
	return m, nil
}

// mountDir is the working folder of a mount, absolute and clean.
func mountDir(asked, id string) (string, error) {
	dir := asked
	if dir == "" || !filepath.IsAbs(dir) {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("working directory: %w", err)
		}
		dir = wd + string(filepath.Separator) + dir
	}
	info, err := os.Stat(dir)
	if err == nil {
		dir, err = cleanDir(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG):
		return "", &messages.DirectoryNotFound{Directory: dir, SandboxID: id}
	case errors.Is(err, syscall.ENOTDIR):
		return "", &messages.NotDirectory{Directory: dir, SandboxID: id}
	case err != nil:
		return "", fmt.Errorf("mount: %w", err)
	case !info.IsDir():
		return "", &messages.NotDirectory{Directory: dir, SandboxID: id}
	}
	return dir, nil
}

// cleanDir is the folder's plain name. What ".." means behind a symlink is not
// for the text to say.
func cleanDir(dir string) (string, error) {
	if slices.Contains(strings.Split(filepath.ToSlash(dir), "/"), "..") {
		return filepath.EvalSymlinks(dir)
	}
	return filepath.Clean(dir), nil
}

// Close ends all commands and background jobs, of all mounts, and removes the
// scratch folders. It returns within two seconds, or with ctx's error; then
// what is left still ends on its own. Closing again is fine.
func (s *Sandbox) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for m := range s.mounts {
		m.cancel(sandboxes.ErrClosed)
	}
	s.mu.Unlock()
	err := s.host.Close(ctx)
	return errors.Join(err, s.scratch.remove())
}
