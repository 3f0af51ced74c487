//go:build amd64 || arm64

package isolated

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"codework/sandboxes"
)

// secrets are what of a home folder no command may read.
var secrets = []string{
	".ssh", ".gnupg", ".aws", ".config/gcloud", ".kube", ".docker", ".netrc", ".git-credentials", ".npmrc", ".pypirc",
}

// covered are the folders that every sandbox has of its own.
var covered = []string{"/dev", "/run", "/var/run", "/tmp", "/var/tmp"}

// kernelPaths are no place for files.
var kernelPaths = []string{"/proc", "/sys", "/dev"}

// homes are the user's home folders: by the environment and by the accounts.
func homes() []string {
	var out []string
	if dir, err := os.UserHomeDir(); err == nil && filepath.IsAbs(dir) {
		out = append(out, dir)
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) && !slices.Contains(out, u.HomeDir) {
		out = append(out, u.HomeDir)
	}
	return out
}

// writable resolves a folder or file that is to be writable.
func writable(field, path string) (string, error) {
	refuse := func(why string) error {
		return &sandboxes.ConfigError{Reason: fmt.Sprintf("%s: %s %s", field, path, why)}
	}
	if !filepath.IsAbs(path) {
		return "", refuse("is not absolute")
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", refuse("does not exist")
	case err != nil:
		return "", refuse("cannot be reached: " + err.Error())
	case real == "/":
		return "", refuse("is the whole disk")
	}
	for _, k := range kernelPaths {
		if _, ok := within(real, k); ok {
			return "", refuse("is the kernel's")
		}
	}
	return real, nil
}

// hidden resolves what is not to be read. What does not exist is left out of
// the paths; names has it too, as it was given and as it is.
func (d *Driver) hidden(more []string) (paths, names []string, err error) {
	var list []string
	for _, home := range homes() {
		for _, s := range secrets {
			list = append(list, filepath.Join(home, s))
		}
	}
	list = append(list, d.opt.StateDir)
	list = append(list, d.opt.Hide...)
	for _, path := range more {
		if !filepath.IsAbs(path) {
			return nil, nil, &sandboxes.ConfigError{Reason: "config: hide: " + path + " is not absolute"}
		}
		list = append(list, path)
	}
	for _, path := range list {
		if path == "" {
			continue
		}
		names = append(names, filepath.Clean(path))
		real, err := filepath.EvalSymlinks(path)
		if err != nil || slices.Contains(paths, real) {
			continue
		}
		if real == "/" {
			return nil, nil, &sandboxes.ConfigError{Reason: "config: hide: " + path + " is the whole disk"}
		}
		paths = append(paths, real)
	}
	names = append(names, paths...)
	slices.Sort(names)
	return topmost(paths), slices.Compact(names), nil
}

// topmost sorts paths and leaves out those that lie below others.
func topmost(paths []string) []string {
	slices.Sort(paths)
	var out []string
	for _, path := range paths {
		if !below(path, out) {
			out = append(out, path)
		}
	}
	return out
}

// below tells whether a path is one of the folders or lies in one.
func below(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, ok := within(path, dir)
		return ok
	})
}

// sockets are those that programs of the host listen at, where commands could
// reach them: making a file system read-only does not end that.
func sockets(write []string) []string {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil
	}
	defer f.Close()
	var out, dirs []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name := socketPath(sc.Text())
		if name == "" {
			continue
		}
		paths := []string{name}
		if !filepath.IsAbs(name) {
			// Whoever made it was in its folder, and perhaps still is.
			if dirs == nil {
				dirs = append(workingDirs(), homes()...)
			}
			paths = paths[:0]
			for _, dir := range dirs {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
		for _, path := range paths {
			if below(path, covered) && !below(path, write) || slices.Contains(out, path) {
				continue
			}
			if real, err := filepath.EvalSymlinks(path); err == nil {
				if info, err := os.Lstat(real); err == nil && info.Mode()&fs.ModeSocket != 0 {
					out = append(out, real)
				}
			}
		}
	}
	return out
}

// workingDirs are those of the processes that this user may look at.
func workingDirs() []string {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // as far as they go
	var out []string
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if dir, err := os.Readlink("/proc/" + name + "/cwd"); err == nil && filepath.IsAbs(dir) {
			out = append(out, dir)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// socketPath finds the path in a line of /proc/net/unix (unix(7)): the eighth
// field, to the end of the line, as it was given to who bound it. "" is none, or
// an abstract name.
func socketPath(line string) string {
	for range 7 {
		line = strings.TrimLeft(line, " ")
		_, rest, ok := strings.Cut(line, " ")
		if !ok {
			return ""
		}
		line = rest
	}
	line = strings.TrimLeft(line, " ")
	if strings.HasPrefix(line, "@") || line == "Path" { // the list's head
		return ""
	}
	return line
}
