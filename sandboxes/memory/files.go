package memory

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"syscall"

	"codework/sandboxes"
)

// filePerm and folderPerm are what new files and folders get before the umask.
const (
	filePerm   = 0o666
	folderPerm = 0o777
)

func (m *mount) Dir() string     { return m.dir }
func (m *mount) Scratch() string { return m.scratch }

// abs makes a path absolute without interpreting it.
func abs(dir, p string) string {
	if p == "" || path.IsAbs(p) {
		return p
	}
	return strings.TrimRight(dir, "/") + "/" + p
}

func (m *mount) fileOp(ctx context.Context, op, p string, do func(abs string) error) error {
	err := m.alive(ctx)
	switch {
	case err != nil:
	case p == "":
		err = errors.New("empty path")
	default:
		err = do(abs(m.dir, p))
	}
	switch {
	case err == nil:
		return nil
	case err == syscall.EISDIR:
		err = sandboxes.ErrIsDirectory
	case err == syscall.ENOTDIR:
		err = sandboxes.ErrNotDirectory
	}
	return &sandboxes.FileError{Op: op, Path: p, Err: err}
}

func (m *mount) Read(ctx context.Context, p string, offset, limit int64) (data []byte, err error) {
	err = m.fileOp(ctx, "read", p, func(abs string) error {
		if offset < 0 {
			return syscall.EINVAL
		}
		all, err := m.sandbox.tree.read(abs)
		if err != nil {
			return err
		}
		all = all[min(offset, int64(len(all))):]
		if limit >= 0 {
			all = all[:min(limit, int64(len(all)))]
		}
		data = slices.Clone(all)
		return nil
	})
	return data, err
}

func (m *mount) Write(ctx context.Context, p string, data []byte) error {
	return m.fileOp(ctx, "write", p, func(abs string) error {
		t := m.sandbox.tree
		perm := filePerm &^ m.umask
		err := t.write(abs, slices.Clone(data), perm)
		if err == syscall.ENOENT && p != "" && !strings.HasSuffix(abs, "/") {
			if real, e := t.parentOf(abs); e == nil {
				if err := t.mkdir(real, folderPerm&^m.umask, true); err != nil {
					return err
				}
				err = t.write(abs, slices.Clone(data), perm)
			}
		}
		return err
	})
}

// parentOf is the folder in which writing p would make a file: that of the
// target, where p is a link to nowhere.
func (t *tree) parentOf(p string) (string, error) {
	for range maxLinks {
		to, err := t.readlink(p)
		if err != nil {
			return path.Dir(p), nil
		}
		p = abs(path.Dir(p), to)
	}
	return "", syscall.ELOOP
}

func (m *mount) Stat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.stat(ctx, "stat", p, true)
}

func (m *mount) Lstat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.stat(ctx, "lstat", p, false)
}

func (m *mount) stat(ctx context.Context, op, p string, follow bool) (info sandboxes.Info, err error) {
	err = m.fileOp(ctx, op, p, func(abs string) (err error) {
		info, err = m.sandbox.tree.stat(abs, follow)
		return err
	})
	return info, err
}

func (m *mount) List(ctx context.Context, p string) (infos []sandboxes.Info, err error) {
	err = m.fileOp(ctx, "list", p, func(abs string) (err error) {
		infos, err = m.sandbox.tree.list(abs)
		return err
	})
	return infos, err
}

func (m *mount) Mkdir(ctx context.Context, p string) error {
	return m.fileOp(ctx, "mkdir", p, func(abs string) error {
		return m.sandbox.tree.mkdir(abs, folderPerm&^m.umask, true)
	})
}

func (m *mount) Remove(ctx context.Context, p string) error {
	return m.fileOp(ctx, "remove", p, func(abs string) error { return m.sandbox.tree.remove(abs, false) })
}

func (m *mount) RealPath(ctx context.Context, p string) (real string, err error) {
	err = m.fileOp(ctx, "realpath", p, func(abs string) (err error) {
		real, err = m.sandbox.tree.realPath(abs)
		return err
	})
	return real, err
}

func (m *mount) Lock(ctx context.Context, p string) (unlock func(), err error) {
	err = m.fileOp(ctx, "lock", p, func(abs string) error {
		name, err := m.sandbox.tree.lockName(abs)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(m.ctx, func() { cancel(sandboxes.ErrClosed) })()
		if unlock, err = m.sandbox.locks.Take(ctx, name); err != nil {
			return context.Cause(ctx)
		}
		return nil
	})
	return unlock, err
}

// lockName is the real path of a file, or where folders are missing, that of
// what there is and the rest.
func (t *tree) lockName(p string) (string, error) {
	real, err := t.realPath(p)
	if err != syscall.ENOENT || path.Dir(p) == p || p == "" {
		return real, err
	}
	parent, err := t.lockName(path.Dir(path.Clean(p)))
	return path.Join(parent, path.Base(p)), err
}
