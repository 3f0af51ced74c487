//go:build unix

package tools

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes"
)

// hostMount is a mount over a folder of this machine: just enough of one for
// the tools. It counts the bytes that were read.
type hostMount struct {
	dir, scratch string

	mu    sync.Mutex // guards what follows
	locks map[string]*sync.Mutex
	read  int64
	lists int

	// before is called before each operation, if it is set; its error fails it.
	before func(op, path string) error
}

func newMount(t testing.TB) *hostMount {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &hostMount{dir: dir, scratch: t.TempDir(), locks: make(map[string]*sync.Mutex)}
}

func (m *hostMount) Dir() string     { return m.dir }
func (m *hostMount) Scratch() string { return m.scratch }
func (m *hostMount) Close() error    { return nil }

func (m *hostMount) at(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return m.dir + "/" + p
}

func (m *hostMount) fail(ctx context.Context, op, p string, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil && m.before != nil {
		err = m.before(op, p)
	}
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, syscall.EISDIR):
		err = sandboxes.ErrIsDirectory
	case errors.Is(err, syscall.ENOTDIR):
		err = sandboxes.ErrNotDirectory
	}
	return &sandboxes.FileError{Op: op, Path: p, Err: err}
}

func (m *hostMount) Lock(ctx context.Context, p string) (func(), error) {
	real, err := m.RealPath(ctx, p)
	if err != nil {
		real = m.at(p)
	}
	m.mu.Lock()
	l := m.locks[real]
	if l == nil {
		l = new(sync.Mutex)
		m.locks[real] = l
	}
	m.mu.Unlock()
	l.Lock()
	return l.Unlock, nil
}

func (m *hostMount) Read(ctx context.Context, p string, offset, limit int64) ([]byte, error) {
	if err := m.fail(ctx, "read", p, nil); err != nil {
		return nil, err
	}
	f, err := os.Open(m.at(p))
	if err != nil {
		return nil, m.fail(ctx, "read", p, err)
	}
	defer f.Close()
	if limit < 0 {
		limit = 1 << 62
	}
	b, err := io.ReadAll(io.NewSectionReader(f, offset, limit))
	m.mu.Lock()
	m.read += int64(len(b))
	m.mu.Unlock()
	if err != nil {
		return nil, m.fail(ctx, "read", p, err)
	}
	return b, nil
}

func (m *hostMount) Write(ctx context.Context, p string, data []byte) error {
	if err := m.fail(ctx, "write", p, nil); err != nil {
		return err
	}
	target, err := m.RealPath(ctx, p)
	if err != nil {
		target = m.at(p)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return m.fail(ctx, "write", p, err)
		}
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(target); err == nil {
		if info.IsDir() {
			return m.fail(ctx, "write", p, sandboxes.ErrIsDirectory)
		}
		mode = info.Mode().Perm()
	}
	tmp := target + ".tmp"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return m.fail(ctx, "write", p, err)
	}
	if err := os.Rename(tmp, target); err != nil {
		return m.fail(ctx, "write", p, err)
	}
	return nil
}

func infoOf(i fs.FileInfo) sandboxes.Info {
	return sandboxes.Info{Name: i.Name(), Size: i.Size(), Mode: i.Mode(), ModTime: i.ModTime()}
}

func (m *hostMount) Stat(ctx context.Context, p string) (sandboxes.Info, error) {
	i, err := os.Stat(m.at(p))
	if err = m.fail(ctx, "stat", p, err); err != nil {
		return sandboxes.Info{}, err
	}
	return infoOf(i), nil
}

func (m *hostMount) Lstat(ctx context.Context, p string) (sandboxes.Info, error) {
	i, err := os.Lstat(m.at(p))
	if err = m.fail(ctx, "lstat", p, err); err != nil {
		return sandboxes.Info{}, err
	}
	return infoOf(i), nil
}

func (m *hostMount) List(ctx context.Context, p string) ([]sandboxes.Info, error) {
	m.mu.Lock()
	m.lists++
	m.mu.Unlock()
	entries, err := os.ReadDir(m.at(p))
	if err = m.fail(ctx, "list", p, err); err != nil {
		return nil, err
	}
	out := make([]sandboxes.Info, 0, len(entries))
	for _, e := range entries {
		if i, err := e.Info(); err == nil {
			out = append(out, infoOf(i))
		}
	}
	return out, nil
}

func (m *hostMount) Mkdir(ctx context.Context, p string) error {
	return m.fail(ctx, "mkdir", p, os.MkdirAll(m.at(p), 0o755))
}

func (m *hostMount) Remove(ctx context.Context, p string) error {
	return m.fail(ctx, "remove", p, os.Remove(m.at(p)))
}

func (m *hostMount) RealPath(ctx context.Context, p string) (string, error) {
	p = m.at(p)
	real, err := filepath.EvalSymlinks(p)
	if errors.Is(err, fs.ErrNotExist) {
		var dir string
		dir, err = filepath.EvalSymlinks(filepath.Dir(p))
		real = filepath.Join(dir, filepath.Base(p))
	}
	return real, m.fail(ctx, "realpath", p, err)
}

// outputs hands two streams to one function from one goroutine.
type outputs struct {
	mu     sync.Mutex // guards all
	full   io.Writer
	bytes  int64
	output func(sandboxes.Stream, []byte)
}

type stream struct {
	to *outputs
	id sandboxes.Stream
}

func (s stream) Write(b []byte) (int, error) {
	o := s.to
	o.mu.Lock()
	defer o.mu.Unlock()
	if room := sandboxes.FullLimit - o.bytes; room > 0 {
		if _, err := o.full.Write(b[:min(int64(len(b)), room)]); err != nil {
			return 0, err
		}
	}
	o.bytes += int64(len(b))
	if o.output != nil {
		o.output(s.id, b)
	}
	return len(b), nil
}

func (m *hostMount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	if m.before != nil {
		if err := m.before("run", c.Script); err != nil {
			return sandboxes.Exit{Code: -1}, err
		}
	}
	argv := c.Argv
	if c.Script != "" {
		argv = []string{"bash", "-c", c.Script}
	}
	run, cancel := ctx, context.CancelFunc(func() {})
	if c.Timeout > 0 {
		run, cancel = context.WithTimeout(ctx, c.Timeout)
	}
	defer cancel()
	o := outputs{full: new(bytes.Buffer), output: c.Output}
	if c.Full != "" {
		f, err := os.Create(c.Full)
		if err != nil {
			return sandboxes.Exit{Code: -1}, &sandboxes.ShellError{Reason: "cannot keep the output", Err: err}
		}
		defer f.Close()
		o.full = f
	}
	cmd := exec.CommandContext(run, argv[0], argv[1:]...)
	cmd.Dir = m.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 250 * time.Millisecond
	cmd.Stdout, cmd.Stderr = stream{&o, sandboxes.Stdout}, stream{&o, sandboxes.Stderr}
	err := cmd.Run()
	exit := sandboxes.Exit{Code: -1}
	if cmd.ProcessState != nil {
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
			exit.Code, exit.Signal = 128+int(ws.Signal()), "SIG"+map[syscall.Signal]string{syscall.SIGKILL: "KILL", syscall.SIGTERM: "TERM"}[ws.Signal()]
		} else {
			exit.Code = ws.ExitStatus()
		}
		// What is left of the session ends with the test.
		left := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) == nil
		exit.Background = left && run.Err() == nil
	}
	exit.FullBytes, exit.FullCut = o.bytes, o.bytes > sandboxes.FullLimit
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return exit, ctx.Err()
	case run.Err() != nil:
		exit.TimedOut = true
		return exit, nil
	case err != nil && !errors.As(err, &failed) && !errors.Is(err, exec.ErrWaitDelay):
		return exit, &sandboxes.ShellError{Reason: "cannot start the shell", Err: err}
	}
	return exit, nil
}

// file writes a file of the mount.
func (m *hostMount) file(t testing.TB, name, content string) string {
	t.Helper()
	p := m.at(name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// content is what a file of the mount holds.
func (m *hostMount) content(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(m.at(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (m *hostMount) scratchFiles(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(m.scratch)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}
