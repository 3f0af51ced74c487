package prompt

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"codework/sandboxes"
)

// files is a mount of which only reading works, over folders of this machine.
// A root lets tests have a file system of their own: "/x" is root + "/x".
type files struct {
	sandboxes.Mount // nil: whatever else is called fails the test
	root, dir       string
	deny            map[string]error // by the path asked for
}

func (m *files) Dir() string { return m.dir }

func (m *files) check(ctx context.Context, op, p string, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if m.deny[p] != nil {
		err = m.deny[p]
	}
	if err == nil {
		return nil
	}
	return &sandboxes.FileError{Op: op, Path: p, Err: err}
}

func (m *files) Read(ctx context.Context, p string, offset, limit int64) ([]byte, error) {
	f, err := os.Open(m.root + p)
	if err = m.check(ctx, "read", p, err); err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, offset, limit))
}

func (m *files) info(ctx context.Context, op, p string, stat func(string) (os.FileInfo, error)) (sandboxes.Info, error) {
	i, err := stat(m.root + p)
	if err = m.check(ctx, op, p, err); err != nil {
		return sandboxes.Info{}, err
	}
	return sandboxes.Info{Name: i.Name(), Size: i.Size(), Mode: i.Mode(), ModTime: i.ModTime()}, nil
}

func (m *files) Stat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.info(ctx, "stat", p, os.Stat)
}

func (m *files) Lstat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.info(ctx, "lstat", p, os.Lstat)
}

func (m *files) RealPath(ctx context.Context, p string) (string, error) {
	real, err := filepath.EvalSymlinks(m.root + p)
	if err = m.check(ctx, "realpath", p, err); err != nil {
		return "", err
	}
	rel, err := filepath.Rel(m.root, real)
	if err != nil {
		return "", errors.New("outside of the test's root")
	}
	return filepath.Join("/", rel), nil
}

func newFiles(t *testing.T, dir string, content map[string]string) *files {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &files{root: root, dir: dir, deny: make(map[string]error)}
	if err := os.MkdirAll(root+dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range content {
		m.write(t, name, text)
	}
	return m
}

func (m *files) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.root+name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.root+name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m *files) link(t *testing.T, name, target string) {
	t.Helper()
	if err := os.Symlink(target, m.root+name); err != nil {
		t.Fatal(err)
	}
}
