package local

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"codework/sandboxes"
)

const (
	// readPiece is what is read between two looks at the context.
	readPiece = 1 << 20
	// tempPrefix begins the names of half-written files.
	tempPrefix = ".codework-"
)

// fileOp runs a file operation on a path and dresses its error.
func (m *mount) fileOp(ctx context.Context, op, path string, do func(abs string) error) error {
	err := m.alive(ctx)
	if err == nil {
		var abs string
		if abs, err = m.at(path); err == nil {
			err = do(abs)
		}
	}
	if err != nil {
		return &sandboxes.FileError{Op: op, Path: path, Err: cause(err)}
	}
	return nil
}

func (m *mount) Read(ctx context.Context, path string, offset, limit int64) (data []byte, err error) {
	err = m.fileOp(ctx, "read", path, func(abs string) error {
		if offset < 0 {
			return syscall.EINVAL
		}
		// Looked at before it is opened, which may do things to a device, and
		// after, since it may be another one by then.
		info, err := os.Stat(abs)
		if err == nil {
			err = onlyRegular(info)
		}
		if err != nil {
			return err
		}
		f, err := openPlain(abs)
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err = f.Stat(); err == nil {
			err = onlyRegular(info)
		}
		if err != nil {
			return err
		}
		data, err = readRange(ctx, f, info.Size(), offset, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// readRange reads to the limit or the end, whichever comes first. The size is
// only a hint: files of /proc have none.
func readRange(ctx context.Context, f *os.File, size, offset, limit int64) ([]byte, error) {
	want := max(size-offset, 0) + 1 // one more, to see the end at once
	if limit >= 0 {
		want = min(want, limit)
	}
	data := make([]byte, 0, want)
	for limit < 0 || int64(len(data)) < limit {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, 512)
		}
		room := min(cap(data)-len(data), readPiece)
		if limit >= 0 {
			room = int(min(int64(room), limit-int64(len(data))))
		}
		n, err := f.ReadAt(data[len(data):len(data)+room], offset+int64(len(data)))
		data = data[:len(data)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return data, nil
}

func onlyRegular(info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return sandboxes.ErrIsDirectory
	case !info.Mode().IsRegular():
		return sandboxes.ErrNotRegular
	}
	return nil
}

func (m *mount) Write(ctx context.Context, path string, data []byte) error {
	return m.fileOp(ctx, "write", path, func(abs string) error {
		if strings.HasSuffix(abs, "/") {
			return sandboxes.ErrIsDirectory
		}
		name, err := target(abs)
		if err != nil {
			return err
		}
		parent, last := split(name)
		if last == "." || last == ".." {
			return sandboxes.ErrIsDirectory
		}
		old, err := os.Lstat(name)
		switch {
		case err == nil:
			if err := onlyRegular(old); err != nil {
				return err
			}
			// Renaming over it would succeed, but a file that is read-only is
			// meant to be.
			if err := writable(name); err != nil {
				return err
			}
		case errors.Is(err, fs.ErrNotExist):
			old = nil
			if err := m.mkdirAll(parent); err != nil {
				return err
			}
		default:
			return err
		}
		err = m.replace(parent, name, old, data)
		if old != nil && inPlace(err) {
			return overwrite(name, data)
		}
		return err
	})
}

// replace writes a temporary file and renames it.
func (m *mount) replace(parent, name string, old fs.FileInfo, data []byte) (err error) {
	perm := fs.FileMode(0o600)
	if old == nil && m.umask < 0 {
		perm = 0o666 // the server's own umask applies
	}
	temp := parent + "/" + tempPrefix + rand.Text()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = m.dress(f, old)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temp, name)
	}
	return err
}

// dress gives the new file the owner and mode of the old one.
func (m *mount) dress(f *os.File, old fs.FileInfo) error {
	switch {
	case old != nil:
		keepOwner(f, old) // before the mode: it takes set-id bits away
		return f.Chmod(old.Mode())
	case m.umask >= 0:
		return f.Chmod(0o666 &^ fs.FileMode(m.umask))
	}
	return nil
}

// inPlace tells whether the file itself may be writable although its folder
// takes no new one or its name cannot be renamed over.
func inPlace(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) ||
		errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV)
}

func overwrite(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// mkdirAll makes a folder and its parents with the mount's umask.
func (m *mount) mkdirAll(dir string) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return sandboxes.ErrNotDirectory
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if parent, last := split(dir); last != "." {
		if err := m.mkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		// Somebody else made it meanwhile; or it is a link to nowhere.
		if info, e := os.Stat(dir); e == nil && info.IsDir() {
			return nil
		}
		return err
	}
	if m.umask < 0 {
		return nil
	}
	if info, err = os.Stat(dir); err != nil {
		return err
	}
	if perm := 0o777 &^ fs.FileMode(m.umask); info.Mode().Perm() != perm {
		return os.Chmod(dir, info.Mode()&^fs.ModePerm|perm) // an inherited set-group-id bit stays
	}
	return nil
}

func (m *mount) Mkdir(ctx context.Context, path string) error {
	return m.fileOp(ctx, "mkdir", path, m.mkdirAll)
}

func (m *mount) Stat(ctx context.Context, path string) (info sandboxes.Info, err error) {
	return m.stat(ctx, "stat", path, os.Stat)
}

func (m *mount) Lstat(ctx context.Context, path string) (info sandboxes.Info, err error) {
	return m.stat(ctx, "lstat", path, os.Lstat)
}

func (m *mount) stat(ctx context.Context, op, path string, stat func(string) (fs.FileInfo, error)) (info sandboxes.Info, err error) {
	err = m.fileOp(ctx, op, path, func(abs string) error {
		fi, err := stat(abs)
		if err == nil {
			info = infoOf(fi)
		}
		return err
	})
	return info, err
}

func infoOf(fi fs.FileInfo) sandboxes.Info {
	return sandboxes.Info{Name: fi.Name(), Size: fi.Size(), Mode: fi.Mode(), ModTime: fi.ModTime()}
}

func (m *mount) List(ctx context.Context, path string) (list []sandboxes.Info, err error) {
	err = m.fileOp(ctx, "list", path, func(abs string) error {
		entries, err := os.ReadDir(abs) // sorted by name
		if err != nil {
			return err
		}
		list = make([]sandboxes.Info, 0, len(entries))
		for i, e := range entries {
			if i%1024 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			fi, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since
			}
			if err != nil {
				return err
			}
			list = append(list, infoOf(fi))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Remove removes a file, a link itself, or an empty folder.
func (m *mount) Remove(ctx context.Context, path string) error {
	return m.fileOp(ctx, "remove", path, os.Remove)
}

func (m *mount) RealPath(ctx context.Context, path string) (got string, err error) {
	err = m.fileOp(ctx, "realpath", path, func(abs string) error {
		var err error
		got, err = real(abs)
		return err
	})
	return got, err
}

func (m *mount) Lock(ctx context.Context, path string) (unlock func(), err error) {
	err = m.fileOp(ctx, "lock", path, func(abs string) error {
		name, err := lockPath(abs)
		if err != nil {
			return err
		}
		// The mount's end ends the wait too.
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
