package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"codework/sandboxes"
)

const (
	maxPath      = 4096 // bytes, with the NUL that ends it in the kernel
	maxComponent = 255
	maxLinks     = 40 // symlinks followed in one path, as in the kernel
)

var (
	errEmptyPath = errors.New("empty path")
	errNUL       = errors.New("NUL byte in path")
)

// at makes a path absolute without interpreting it: what ".." means behind a
// symlink is for the system to say.
func (m *mount) at(path string) (string, error) {
	if path == "" {
		return "", errEmptyPath
	}
	if strings.IndexByte(path, 0) >= 0 {
		return "", errNUL
	}
	if !filepath.IsAbs(path) {
		path = m.dir + "/" + path
	}
	path = filepath.ToSlash(path)
	if len(path) >= maxPath {
		return "", syscall.ENAMETOOLONG
	}
	for part := range strings.SplitSeq(path, "/") {
		if len(part) > maxComponent {
			return "", syscall.ENAMETOOLONG
		}
	}
	return path, nil
}

// cause strips what the standard library wraps around a system's error, and
// gives the causes that package fs has no name for ours.
func cause(err error) error {
	for {
		switch e := err.(type) { // errors.As is slow, and most of what is looked for is not there
		case *fs.PathError:
			err = e.Err
		case *os.LinkError:
			err = e.Err
		case *os.SyscallError:
			err = e.Err
		default:
			switch err {
			case syscall.EISDIR:
				return sandboxes.ErrIsDirectory
			case syscall.ENOTDIR:
				return sandboxes.ErrNotDirectory
			}
			return err
		}
	}
}

// split cuts a path before its last component without interpreting either;
// trailing slashes count as the component's.
func split(path string) (parent, last string) {
	trimmed := strings.TrimRight(path, "/")
	if trimmed == "" {
		return "/", "."
	}
	i := strings.LastIndexByte(trimmed, '/')
	if i <= 0 {
		return "/", trimmed[i+1:]
	}
	return trimmed[:i], trimmed[i+1:]
}

// target follows symlinks at the end of the path to the name that writing
// creates or replaces; that name need not exist. Links among the parents are
// left to the system.
func target(path string) (string, error) {
	for range maxLinks {
		info, err := os.Lstat(path)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return path, nil
			}
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return path, nil
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if to = filepath.ToSlash(to); !filepath.IsAbs(to) {
			parent, _ := split(path)
			to = parent + "/" + to
		}
		path = to
	}
	return "", syscall.ELOOP
}

// real resolves every symlink; the last component need not exist.
func real(path string) (string, error) {
	got, err := filepath.EvalSymlinks(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return got, err
	}
	name, terr := target(path)
	if terr != nil {
		return "", terr
	}
	parent, last := split(name)
	if last == ".." || last == "." {
		return "", err
	}
	got, err = filepath.EvalSymlinks(parent)
	if err != nil {
		return "", err
	}
	return filepath.Join(got, last), nil
}

// lockPath is the name under which a file is locked: its real path, or where
// folders are missing as well, the real path of what there is and the rest.
func lockPath(path string) (string, error) {
	got, err := real(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return got, err
	}
	parent, last := split(path)
	if parent == path || parent == "/" && last == "." {
		return "", err
	}
	got, err = lockPath(parent)
	if err != nil {
		return "", err
	}
	return filepath.Join(got, last), nil
}
