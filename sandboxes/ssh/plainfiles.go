package ssh

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/pkg/sftp"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/agent"
)

const (
	maxPath      = 4096 // bytes, with the NUL that ends it in the kernel
	maxComponent = 255
	maxLinks     = 40 // symlinks followed in one path, as in the kernel
	// readPiece is what is read between two looks at the context.
	readPiece = 1 << 20
	// tempPrefix begins the names of half-written files.
	tempPrefix = ".codework-"
)

var (
	errEmptyPath = errors.New("empty path")
	errNUL       = errors.New("NUL byte in path")
)

// plainMount is a session's use of a plain sandbox.
type plainMount struct {
	plain   *plain
	options sandboxes.MountOptions
	umask   int // -1: the host's
	dir     string
	scratch string
	ctx     context.Context // ends with the mount
	cancel  context.CancelFunc

	mu   sync.Mutex // guards jobs, and that none begins once ctx has ended
	jobs map[*job]struct{}
}

// endError is why nothing works any more.
func (p *plain) endError() error {
	if !p.closed.Load() && isLost(p) {
		return agent.ErrLost
	}
	return sandboxes.ErrClosed
}

func (m *plainMount) Dir() string     { return m.dir }
func (m *plainMount) Scratch() string { return m.scratch }

// track remembers a command until nothing of it runs; false when the mount has
// ended.
func (m *plainMount) track(j *job) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jobs[j] = struct{}{}
	go func() {
		<-j.ended
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.jobs, j)
	}()
	return m.ctx.Err() == nil
}

// Close ends commands and background jobs and removes the scratch folder.
func (m *plainMount) Close() error {
	m.mu.Lock()
	first := m.ctx.Err() == nil
	m.cancel()
	var left []*job
	for j := range m.jobs {
		left = append(left, j)
	}
	m.mu.Unlock()
	for _, j := range left {
		j.kill()
	}
	var wg sync.WaitGroup
	for _, j := range left {
		wg.Go(j.gone)
	}
	wg.Wait()
	m.plain.mu.Lock()
	delete(m.plain.mounts, m)
	m.plain.mu.Unlock()
	if !first {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	err := m.plain.do(ctx, func() error { return m.plain.files.RemoveAll(m.scratch) })
	if errors.Is(err, agent.ErrLost) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// at makes a path absolute without interpreting it.
func (m *plainMount) at(p string) (string, error) {
	if p == "" {
		return "", errEmptyPath
	}
	if strings.IndexByte(p, 0) >= 0 {
		return "", errNUL
	}
	if !path.IsAbs(p) {
		p = m.dir + "/" + p
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

// enter sets the working folder. A missing one is a *messages.DirectoryNotFound,
// one that is something else a *messages.NotDirectory.
func (m *plainMount) enter(dir string) error {
	got, err := m.folder(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, errNUL):
		return &messages.DirectoryNotFound{Directory: dir, SandboxID: m.plain.id}
	case errors.Is(err, sandboxes.ErrNotDirectory):
		return &messages.NotDirectory{Directory: dir, SandboxID: m.plain.id}
	}
	m.dir = got
	return err
}

// folder is a folder's plain name.
func (m *plainMount) folder(dir string) (string, error) {
	abs, err := m.at(dir)
	if err != nil {
		return "", err
	}
	info, err := m.plain.files.Stat(abs)
	if err != nil {
		return "", m.cause(abs, err)
	}
	if !info.IsDir() {
		return "", sandboxes.ErrNotDirectory
	}
	if slices.Contains(strings.Split(abs, "/"), "..") {
		return m.real(abs)
	}
	return path.Clean(abs), nil
}

// fileOp runs a file operation on a path and dresses its error.
func (m *plainMount) fileOp(ctx context.Context, op, p string, do func(abs string) error) error {
	abs, err := m.at(p)
	if m.ctx.Err() != nil {
		err = m.plain.endError()
	}
	if err == nil {
		err = m.plain.do(ctx, func() error {
			if err := do(abs); err != nil {
				return m.cause(abs, err)
			}
			return nil
		})
	}
	if err != nil {
		return &sandboxes.FileError{Op: op, Path: p, Err: err}
	}
	return nil
}

// cause finds what is behind an error: the protocol has one number for what is
// missing, what is no folder, and a loop of links, and one for all the rest.
func (m *plainMount) cause(abs string, err error) error {
	var pe *fs.PathError
	for errors.As(err, &pe) {
		err = pe.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, e := m.walk(abs); e != nil && !errors.Is(e, fs.ErrNotExist) {
			return e
		}
		return fs.ErrNotExist
	}
	var status *sftp.StatusError
	if errors.As(err, &status) {
		return errors.New("the host refuses it: " + status.FxCode().Error())
	}
	return err
}

// walk resolves every symlink by looking at each part. Missing ones give
// fs.ErrNotExist, with the path as far as it is known.
func (m *plainMount) walk(abs string) (string, error) {
	done := "/"
	todo := strings.Split(abs, "/")
	missing := false
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			if missing {
				return "", fs.ErrNotExist // what it means nobody can tell
			}
			done = path.Dir(done)
			continue
		case missing:
			done = path.Join(done, part)
			continue
		}
		next := path.Join(done, part)
		info, err := m.plain.files.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if done != "/" {
				if above, err := m.plain.files.Lstat(done); err == nil && !above.IsDir() {
					return "", sandboxes.ErrNotDirectory
				}
			}
			missing = true
			done = next
			continue
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		to, err := m.plain.files.ReadLink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(to) {
			done = "/"
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	if missing {
		return done, fs.ErrNotExist
	}
	return done, nil
}

// real resolves every symlink; the last component need not exist.
func (m *plainMount) real(abs string) (string, error) {
	got, err := m.walk(abs)
	if got != "" && errors.Is(err, fs.ErrNotExist) {
		if info, e := m.plain.files.Lstat(path.Dir(got)); e == nil && info.IsDir() {
			return got, nil
		}
	}
	return got, err
}

func (m *plainMount) Read(ctx context.Context, p string, offset, limit int64) (data []byte, err error) {
	var got []byte
	err = m.fileOp(ctx, "read", p, func(abs string) error {
		if offset < 0 {
			return syscall.EINVAL
		}
		// Looked at before it is opened: a pipe would wait for its writer.
		info, err := m.plain.files.Stat(abs)
		if err == nil {
			err = onlyRegular(info)
		}
		if err != nil {
			return err
		}
		f, err := m.plain.files.Open(abs)
		if err != nil {
			return err
		}
		defer f.Close()
		got, err = readRange(ctx, f, info.Size(), offset, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

// readRange reads to the limit or the end. The size is only a hint.
func readRange(ctx context.Context, f *sftp.File, size, offset, limit int64) ([]byte, error) {
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

// create makes a file that is not there yet, for its owner alone.
func (m *plainMount) create(name string) (*sftp.File, error) {
	f, err := m.plain.files.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (m *plainMount) Write(ctx context.Context, p string, data []byte) error {
	return m.fileOp(ctx, "write", p, func(abs string) error {
		if last := path.Base(abs); strings.HasSuffix(abs, "/") || last == "." || last == ".." {
			return sandboxes.ErrIsDirectory
		}
		name, err := m.walk(abs)
		var old fs.FileInfo
		switch {
		case err == nil:
			if old, err = m.plain.files.Lstat(name); err == nil {
				err = onlyRegular(old)
			}
			if err == nil {
				// Renaming over it would succeed, but a file that is read-only
				// is meant to be.
				err = m.touch(name)
			}
			if err != nil {
				return err
			}
		case name == "" || !errors.Is(err, fs.ErrNotExist):
			return err
		default:
			if err := m.mkdirAll(path.Dir(name)); err != nil {
				return err
			}
		}
		err = m.replace(name, old, data)
		if old != nil && errors.Is(err, fs.ErrPermission) {
			// The folder takes no new file, but the file may be written.
			return m.overwrite(name, data)
		}
		return err
	})
}

func (m *plainMount) touch(name string) error {
	f, err := m.plain.files.OpenFile(name, os.O_WRONLY)
	if err != nil {
		return err
	}
	return f.Close()
}

// replace writes a temporary file and renames it.
func (m *plainMount) replace(name string, old fs.FileInfo, data []byte) (err error) {
	temp := path.Dir(name) + "/" + tempPrefix + rand.Text()
	f, err := m.create(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = m.plain.files.Remove(temp)
		}
	}()
	switch {
	case old != nil:
		err = m.dress(f, old)
	case m.umask >= 0:
		err = f.Chmod(0o666 &^ fs.FileMode(m.umask))
	}
	if err == nil {
		err = fill(f, data)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = m.plain.files.PosixRename(temp, name)
	}
	return err
}

// dress gives the new file the owner and mode of the old one.
func (m *plainMount) dress(f *sftp.File, old fs.FileInfo) error {
	want, ok := old.Sys().(*sftp.FileStat)
	if now, err := f.Stat(); ok && err == nil {
		if have, ok := now.Sys().(*sftp.FileStat); ok && (have.UID != want.UID || have.GID != want.GID) {
			_ = f.Chown(int(want.UID), int(want.GID)) // only root may
		}
	}
	return f.Chmod(old.Mode())
}

// fill writes all and brings it to the disk where the host can.
func fill(f *sftp.File, data []byte) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	var status *sftp.StatusError
	err := f.Sync()
	if errors.As(err, &status) && status.FxCode() == sftp.ErrSSHFxOpUnsupported {
		err = nil
	}
	return err
}

func (m *plainMount) overwrite(name string, data []byte) error {
	f, err := m.plain.files.OpenFile(name, os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		return err
	}
	err = fill(f, data)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// mkdirAll makes a folder and its parents with the mount's umask.
func (m *plainMount) mkdirAll(dir string) error {
	info, err := m.plain.files.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return sandboxes.ErrNotDirectory
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := m.mkdirAll(path.Dir(dir)); err != nil {
		return err
	}
	if err := m.plain.files.Mkdir(dir); err != nil {
		// Somebody else made it meanwhile; or it is a link to nowhere.
		if info, e := m.plain.files.Stat(dir); e == nil && info.IsDir() {
			return nil
		}
		return err
	}
	if m.umask < 0 {
		return nil
	}
	return m.plain.files.Chmod(dir, 0o777&^fs.FileMode(m.umask))
}

func (m *plainMount) Mkdir(ctx context.Context, p string) error {
	return m.fileOp(ctx, "mkdir", p, func(abs string) error {
		// A name that cannot be tells better before something is made.
		got, err := m.walk(abs)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist) && got != "":
			return m.mkdirAll(got)
		}
		return err
	})
}

func (m *plainMount) Stat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.stat(ctx, "stat", p, m.plain.files.Stat)
}

func (m *plainMount) Lstat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.stat(ctx, "lstat", p, m.plain.files.Lstat)
}

func (m *plainMount) stat(ctx context.Context, op, p string, stat func(string) (os.FileInfo, error)) (sandboxes.Info, error) {
	var info sandboxes.Info
	err := m.fileOp(ctx, op, p, func(abs string) error {
		fi, err := stat(abs)
		if err == nil {
			info = infoOf(fi)
		}
		return err
	})
	if err != nil {
		return sandboxes.Info{}, err
	}
	return info, nil
}

func infoOf(fi fs.FileInfo) sandboxes.Info {
	return sandboxes.Info{Name: fi.Name(), Size: fi.Size(), Mode: fi.Mode(), ModTime: fi.ModTime()}
}

func (m *plainMount) List(ctx context.Context, p string) ([]sandboxes.Info, error) {
	list := []sandboxes.Info{}
	err := m.fileOp(ctx, "list", p, func(abs string) error {
		info, err := m.plain.files.Stat(abs)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return sandboxes.ErrNotDirectory
		}
		entries, err := m.plain.files.ReadDirContext(ctx, abs)
		if err != nil {
			return err
		}
		for _, e := range entries {
			list = append(list, infoOf(e))
		}
		slices.SortFunc(list, func(a, b sandboxes.Info) int { return strings.Compare(a.Name, b.Name) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (m *plainMount) Remove(ctx context.Context, p string) error {
	return m.fileOp(ctx, "remove", p, func(abs string) error {
		info, err := m.plain.files.Lstat(abs)
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return m.plain.files.RemoveDirectory(abs)
		}
		return m.plain.files.Remove(abs)
	})
}

func (m *plainMount) RealPath(ctx context.Context, p string) (string, error) {
	var got string
	err := m.fileOp(ctx, "realpath", p, func(abs string) (err error) {
		got, err = m.real(abs)
		return err
	})
	if err != nil {
		return "", err
	}
	return got, nil
}

func (m *plainMount) Lock(ctx context.Context, p string) (func(), error) {
	var name string
	err := m.fileOp(ctx, "lock", p, func(abs string) (err error) {
		name, err = m.walk(abs)
		if name != "" && errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	unlock, err := m.plain.locks.Take(waiting, name)
	if err != nil {
		if ctx.Err() == nil {
			err = m.plain.endError()
		}
		return nil, &sandboxes.FileError{Op: "lock", Path: p, Err: err}
	}
	return unlock, nil
}
