package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/internal/filelock"
)

// Name is the driver's name.
const Name = "memory"

// workspace is where a session works that names no directory.
const workspace = "/workspace"

// Options are what a Driver needs to know.
type Options struct {
	// Log receives what is worth knowing; nil drops it.
	Log *slog.Logger
}

// Driver holds the sandboxes of this process.
type Driver struct {
	log *slog.Logger

	mu     sync.Mutex // guards stores
	stores map[string]*store
}

// store is what stays of a sandbox while it is offline.
type store struct {
	id    string
	tree  *tree
	locks filelock.Table
	slots chan struct{} // commands that may still start
	log   *slog.Logger
}

// maxCommands is how many commands of a sandbox run at once; the others wait.
const maxCommands = 32

// New returns a driver without sandboxes.
func New(o Options) *Driver {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{log: o.Log, stores: map[string]*store{}}
}

// Config has no fields yet: one that is given is refused.
type Config struct{}

// Name is "memory".
func (d *Driver) Name() string { return Name }

// Kind is virtual.
func (d *Driver) Kind() messages.SandboxKind { return messages.KindVirtual }

// Available is always the case.
func (d *Driver) Available(context.Context, sandboxes.Spec) error { return nil }

// Create makes an empty sandbox.
func (d *Driver) Create(_ context.Context, spec sandboxes.Spec) (sandboxes.Resource, error) {
	if _, err := sandboxes.ReadConfig[Config](spec.Config); err != nil {
		return sandboxes.Resource{}, err
	}
	s := &store{id: spec.ID, tree: newTree(), slots: make(chan struct{}, maxCommands), log: d.log}
	for _, dir := range []string{workspace, "/tmp", "/home/user", "/bin", "/etc"} {
		if err := s.tree.mkdir(dir, 0o755, true); err != nil {
			return sandboxes.Resource{}, fmt.Errorf("make %s: %w", dir, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stores[spec.ID] != nil {
		return sandboxes.Resource{}, fmt.Errorf("there is a sandbox %s already", spec.ID)
	}
	d.stores[spec.ID] = s
	return sandboxes.Resource{ID: spec.ID, Status: messages.SandboxOnline, Dir: workspace}, nil
}

func (d *Driver) find(id string) (*store, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.stores[id]; s != nil {
		return s, nil
	}
	return nil, sandboxes.ErrNotFound
}

// Attach reaches a sandbox of this process.
func (d *Driver) Attach(_ context.Context, _ sandboxes.Spec, r sandboxes.Resource) (sandboxes.Sandbox, error) {
	s, err := d.find(r.ID)
	if err != nil {
		return nil, err
	}
	a := &Sandbox{store: s, mounts: map[*mount]struct{}{}}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	return a, nil
}

// Inspect tells whether the sandbox is of this process.
func (d *Driver) Inspect(_ context.Context, _ sandboxes.Spec, r sandboxes.Resource) (messages.SandboxStatus, error) {
	_, err := d.find(r.ID)
	return messages.SandboxOnline, err
}

// Wake has nothing to do: the files are there.
func (d *Driver) Wake(_ context.Context, _ sandboxes.Spec, r sandboxes.Resource) error {
	_, err := d.find(r.ID)
	return err
}

// Stop has nothing to do: what ran ended with the attached Sandbox.
func (d *Driver) Stop(_ context.Context, _ sandboxes.Spec, r sandboxes.Resource) error {
	_, err := d.find(r.ID)
	return err
}

// Destroy forgets the files.
func (d *Driver) Destroy(_ context.Context, _ sandboxes.Spec, r sandboxes.Resource) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.stores, r.ID)
	return nil
}

// Sandbox is a reached sandbox.
type Sandbox struct {
	*store
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	mu     sync.Mutex // guards mounts, and that none is made once ctx has ended
	mounts map[*mount]struct{}
}

// mount is a session's use of a sandbox.
type mount struct {
	sandbox *Sandbox
	dir     string
	scratch string
	env     map[string]string
	umask   fs.FileMode
	ctx     context.Context // ends with the mount or the sandbox
	cancel  context.CancelCauseFunc
	runs    sync.WaitGroup
}

// driverEntries are set in every command.
var driverEntries = map[string]string{
	"PATH": "/bin", "HOME": "/home/user", "USER": "user", "SHELL": "/bin/sh", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb",
	"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0",
}

// defaultUmask is the umask where the caller says none.
const defaultUmask = 0o022

// Mount makes a session's use of the sandbox. Of the caller's environment
// nothing is passed on; its umask is.
func (s *Sandbox) Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir := path.Clean(abs(workspace, o.Dir))
	if o.Dir == "" {
		dir = workspace
	}
	info, err := s.tree.stat(dir, true)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &messages.DirectoryNotFound{Directory: dir, SandboxID: s.id}
	case err != nil:
		return nil, &sandboxes.FileError{Op: "stat", Path: dir, Err: err}
	case !info.Mode.IsDir():
		return nil, &messages.NotDirectory{Directory: dir, SandboxID: s.id}
	}
	m := &mount{sandbox: s, dir: dir, scratch: "/tmp/codework-" + strings.ToLower(rand.Text()), env: maps.Clone(driverEntries), umask: defaultUmask}
	if o.Umask >= 0 {
		m.umask = fs.FileMode(o.Umask).Perm()
	}
	m.env["CODEWORK_SANDBOX"] = s.id
	for name, value := range o.Set {
		if !validName(name) || strings.IndexByte(value, 0) >= 0 {
			return nil, &sandboxes.ShellError{Reason: fmt.Sprintf("bad environment variable %q", name)}
		}
		m.env[name] = value
	}
	m.ctx, m.cancel = context.WithCancelCause(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, sandboxes.ErrClosed
	}
	if err := s.tree.mkdir(m.scratch, 0o700, true); err != nil {
		return nil, &sandboxes.FileError{Op: "mkdir", Path: m.scratch, Err: err}
	}
	s.mounts[m] = struct{}{}
	return m, nil
}

// alive is the reason not to begin anything.
func (m *mount) alive(ctx context.Context) error {
	if m.ctx.Err() != nil {
		return sandboxes.ErrClosed
	}
	return ctx.Err()
}

// Close ends the mount's commands and jobs and removes its scratch folder.
func (m *mount) Close() error {
	m.sandbox.mu.Lock()
	m.cancel(sandboxes.ErrClosed)
	delete(m.sandbox.mounts, m)
	m.sandbox.mu.Unlock()
	m.runs.Wait()
	err := m.sandbox.tree.remove(m.scratch, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Close ends everything that runs; the files stay.
func (s *Sandbox) Close(ctx context.Context) error {
	s.mu.Lock()
	s.cancel(sandboxes.ErrClosed)
	mounts := s.mounts
	s.mounts = nil
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		var errs []error
		for m := range mounts {
			errs = append(errs, m.Close())
		}
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(closeLimit):
		return errors.New("a command did not end")
	}
}

// closeLimit is within what a closed sandbox must have ended.
const closeLimit = 2 * time.Second

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
