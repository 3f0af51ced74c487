package daytona

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/internal/filelock"
	"codework/sandboxes/local"
)

const (
	maxPath      = 4096 // bytes, with the NUL that ends it in the kernel
	maxComponent = 255
	// endLimit is within what everything has ended that is ended.
	endLimit = 2 * time.Second
	// asideLimit is for clearing up behind what has ended.
	asideLimit = 15 * time.Second
)

var (
	errEmptyPath = errors.New("empty path")
	errNUL       = errors.New("NUL byte in path")
	errLost      = errors.New("the sandbox has stopped")
)

// Sandbox is a reached sandbox.
type Sandbox struct {
	client *client
	log    *slog.Logger
	id     string // ours
	remote string // Daytona's id
	tools  *url.URL
	dir    string // where a mount works that names no folder
	idle   time.Duration
	shell  string
	names  []string // of the variables that commands would inherit
	temp   string   // for scratch folders
	mark   string   // begins the marks of all commands
	locks  filelock.Table
	slots  chan struct{} // one token per running command
	ctx    context.Context
	cancel context.CancelFunc
	aside  sync.WaitGroup // what is still cleared up
	lost   chan struct{}
	lose   func()

	mu     sync.Mutex // guards mounts, and that none is made once ctx has ended
	mounts map[*mount]struct{}
}

// probeScript looks at what commands will find.
const probeScript = `
b=$(command -v bash)
case $b in /*) ;; *) b=/bin/sh ;; esac
printf 'shell=%s\n' "$b"
printf 'temp=%s\n' "${TMPDIR:-/tmp}"
env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/name=\1/p'
`

// Attach reaches a sandbox that has started.
func (d *Driver) Attach(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (sandboxes.Sandbox, error) {
	_, c, err := d.reach(spec)
	if err != nil {
		return nil, err
	}
	m, err := c.look(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	if !isUp(m) {
		return nil, fmt.Errorf("the sandbox has not started: %w", m.fault())
	}
	tools, err := c.tools(ctx, m)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{client: c, log: d.log, id: spec.ID, remote: m.ID, tools: tools, dir: r.Dir, idle: d.idle, mark: rand.Text(),
		slots: make(chan struct{}, local.MaxCommands), lost: make(chan struct{}), mounts: map[*mount]struct{}{}}
	s.lose = sync.OnceFunc(func() { close(s.lost) })
	reply, err := s.script(ctx, mayTry, probeScript)
	if err != nil {
		return nil, fmt.Errorf("look into the sandbox: %w", err)
	}
	for line := range strings.Lines(string(reply)) {
		switch name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); name {
		case "shell":
			s.shell = value
		case "temp":
			s.temp = value
		case "name":
			s.names = append(s.names, value)
		}
	}
	if !strings.HasPrefix(s.shell, "/") || !strings.HasPrefix(s.temp, "/") {
		return nil, fmt.Errorf("look into the sandbox: it answers %.300q", reply)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// tool is the address of a tool in the sandbox.
func (s *Sandbox) tool(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = url.PathEscape(p)
	}
	return s.tools.JoinPath(escaped...).String()
}

// Lost is closed when a call found the sandbox stopped, as it does by itself
// when it is idle, or gone.
func (s *Sandbox) Lost() <-chan struct{} { return s.lost }

// lostBy finds out whether a call failed because the sandbox does not run any
// more.
func (s *Sandbox) lostBy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	m, look := s.client.look(ctx, s.remote)
	switch {
	case errors.Is(look, sandboxes.ErrNotFound):
		s.lose()
		return sandboxes.ErrNotFound
	case look == nil && !isUp(m):
		s.lose()
		return errors.Join(errLost, err)
	}
	return err
}

// mount is a session's use of a sandbox.
type mount struct {
	*Sandbox
	options sandboxes.MountOptions
	umask   string // for scripts; "" is the sandbox's
	dir     string
	scratch string
	mark    string
	ctx     context.Context // ends with the mount or the sandbox
	cancel  context.CancelFunc
	finish  func() error

	mu   sync.Mutex      // guards the following, and that no run begins once ctx has ended
	ran  bool            // a command was started
	left map[string]bool // sessions with background jobs
	runs sync.WaitGroup
}

// mountScript takes the folder and the scratch folder to be made. It gives the
// folder's real name.
const mountScript = `
test -e "$1" || why "$1"
test -d "$1" || fail notdir
cd -P "$1" 2>/dev/null || fail perm
e=$(umask 077; mkdir "$2" 2>&1) || cause "$e"
pwd -P
`

// Mount makes a session's use of the sandbox. Of the caller's environment
// nothing is passed on.
func (s *Sandbox) Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	if s.ctx.Err() != nil {
		return nil, sandboxes.ErrClosed
	}
	if err := local.CheckEntries(o.Set); err != nil {
		return nil, fmt.Errorf("mount %s: %w", o.Dir, err)
	}
	abs, err := absolute(s.dir, o.Dir)
	if o.Dir == "" {
		abs, err = s.dir, nil
	}
	m := &mount{Sandbox: s, options: o, scratch: path.Join(s.temp, "codework-"+rand.Text()), mark: s.mark + "." + rand.Text(), left: map[string]bool{}}
	var reply []byte
	if err == nil {
		reply, err = s.script(ctx, once, mountScript, abs, m.scratch)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, errNUL):
		return nil, &messages.DirectoryNotFound{Directory: o.Dir, SandboxID: s.id}
	case errors.Is(err, sandboxes.ErrNotDirectory):
		return nil, &messages.NotDirectory{Directory: o.Dir, SandboxID: s.id}
	case err != nil:
		return nil, fmt.Errorf("mount %s: %w", abs, err)
	}
	if m.dir = path.Clean(abs); slices.Contains(strings.Split(abs, "/"), "..") {
		m.dir = strings.TrimSuffix(string(reply), "\n")
	}
	if o.Umask >= 0 {
		m.umask = fmt.Sprintf("%04o", o.Umask&0o777)
	}
	m.ctx, m.cancel = context.WithCancel(s.ctx)
	m.finish = sync.OnceValue(m.end)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		m.cancel()
		return nil, sandboxes.ErrClosed
	}
	s.mounts[m] = struct{}{}
	return m, nil
}

// absolute makes a path absolute without interpreting it.
func absolute(dir, p string) (string, error) {
	if p == "" {
		return "", errEmptyPath
	}
	if strings.IndexByte(p, 0) >= 0 {
		return "", errNUL
	}
	if !path.IsAbs(p) {
		p = dir + "/" + p
	}
	if len(p) >= maxPath {
		return "", syscall.ENAMETOOLONG
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > maxComponent {
			return "", syscall.ENAMETOOLONG
		}
	}
	return p, nil
}

func (m *mount) Dir() string     { return m.dir }
func (m *mount) Scratch() string { return m.scratch }

// Close ends commands and background jobs and removes the scratch folder.
func (m *mount) Close() error {
	m.mu.Lock()
	m.cancel()
	m.mu.Unlock()
	return m.finish()
}

func (m *mount) end() error {
	m.runs.Wait()
	m.mu.Lock()
	left, ran := m.left, m.ran
	m.mu.Unlock()
	var errs []error
	if ran { // what a command left may have been overlooked at its end
		errs = append(errs, m.kill(m.mark))
	}
	for session := range left {
		m.drop(session)
	}
	m.Sandbox.mu.Lock()
	delete(m.mounts, m)
	m.Sandbox.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	if !m.isLost() {
		_, err := m.script(ctx, mayTry, `e=$(rm -rf "$1" 2>&1) || cause "$e"`, m.scratch)
		errs = append(errs, err)
	}
	if m.isLost() {
		return nil // nothing of it runs, and its scratch is gone or will go with it
	}
	return errors.Join(errs...)
}

func (s *Sandbox) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

// Close ends everything that was started through this Sandbox.
func (s *Sandbox) Close(ctx context.Context) error {
	s.mu.Lock()
	s.cancel()
	var all []*mount
	for m := range s.mounts {
		all = append(all, m)
	}
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		errs := make([]error, len(all))
		var wg sync.WaitGroup
		for i, m := range all {
			wg.Go(func() { errs[i] = m.Close() })
		}
		wg.Wait()
		s.aside.Wait()
		done <- errors.Join(errs...)
	}()
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-limit.C:
		return errors.New("the service did not say in time that everything has ended")
	}
}
