//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"codework/sandboxes"
)

// pins are what of a writable folder must stay as it is.
type pins struct {
	write    []string // repositories elsewhere
	keep     []string // not to be moved away, parents first
	readOnly []string
}

// maxModules bounds how many submodules are looked at: each costs five mounts.
const maxModules = 256

// pinProject protects what programs outside trust in a writable folder. What is
// absent is made, empty, unless the folder takes nothing.
func (p *pins) pinProject(dir string, gitReadOnly bool) error {
	if err := p.ensure(filepath.Join(dir, ".codework"), true, ""); err != nil {
		return err
	}
	return p.pinGit(dir, gitReadOnly)
}

// pinGit protects the repository that a folder is the work tree of.
func (p *pins) pinGit(dir string, readOnly bool) error {
	dotGit := filepath.Join(dir, ".git")
	info, err := os.Lstat(dotGit)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return unpinnable(dotGit)
	case readOnly || !info.IsDir():
		p.readOnly = append(p.readOnly, dotGit)
	}
	switch {
	case readOnly:
		return nil
	case info.IsDir():
		return p.pinRepository(dotGit)
	}
	common, ok := worktreeOf(dotGit)
	if !ok {
		return nil // a submodule, say: its repository stays read-only
	}
	if _, inside := within(common, dir); !inside {
		p.write = append(p.write, common)
	}
	return p.pinRepository(common)
}

// unpinnable refuses a name that leads elsewhere: it could be made to lead to
// another place at any time.
func unpinnable(path string) error {
	return &sandboxes.ConfigError{Reason: path + " is a symbolic link and cannot be protected; replace it by what it leads to"}
}

// ensure makes an entry read-only, and makes it first if need be. Where it
// cannot be made commands cannot make it either.
func (p *pins) ensure(path string, dir bool, content string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if dir {
			err = os.Mkdir(path, 0o755)
		} else {
			err = createFile(path, content)
		}
		if errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) && !ownedByUs(filepath.Dir(path)) {
			return nil
		}
		if err == nil {
			info, err = os.Lstat(path)
		}
	}
	if err != nil {
		return fmt.Errorf("protect: %w", err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return unpinnable(path)
	}
	p.readOnly = append(p.readOnly, path)
	return nil
}

func createFile(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// ownedByUs tells whether who runs commands could give themselves the right to
// write there.
func ownedByUs(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// pinRepository protects what git runs or believes in a repository, and in
// those of its worktrees and submodules. Each folder on the way to a protected
// entry is kept: it could be moved away with it otherwise.
func (p *pins) pinRepository(dir string) error {
	p.keep = append(p.keep, dir)
	for _, e := range []struct {
		name    string
		dir     bool
		content string
	}{
		{"hooks", true, ""},
		{"config", false, ""},
		{"config.worktree", false, ""},
		// It says where hooks and config really are. An empty one is an error to
		// git; this one says "here".
		{"commondir", false, ".\n"},
	} {
		if err := p.ensure(filepath.Join(dir, e.name), e.dir, e.content); err != nil {
			return err
		}
	}
	if err := p.pinWorktrees(filepath.Join(dir, "worktrees")); err != nil {
		return err
	}
	return p.pinModules(filepath.Join(dir, "modules"))
}

func (p *pins) pinWorktrees(dir string) error {
	entries, err := folder(dir)
	if err != nil || entries == nil {
		return err
	}
	p.keep = append(p.keep, dir)
	for _, e := range entries {
		own := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(own, "gitdir")); err != nil {
			continue // no worktree's
		}
		p.keep = append(p.keep, own)
		for _, name := range []string{"gitdir", "commondir", "config.worktree"} {
			if err := p.ensure(filepath.Join(own, name), false, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// pinModules protects the repositories of submodules, whose names may have
// several parts.
func (p *pins) pinModules(dir string) error {
	entries, err := folder(dir)
	if err != nil || entries == nil {
		return err
	}
	if len(p.keep) > maxModules {
		return &sandboxes.ConfigError{Reason: dir + ": too many submodules to protect; set gitReadOnly"}
	}
	if _, err := os.Lstat(filepath.Join(dir, "HEAD")); err == nil {
		return p.pinRepository(dir)
	}
	p.keep = append(p.keep, dir)
	for _, e := range entries {
		if e.IsDir() {
			if err := p.pinModules(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// folder lists a folder; one that is absent gives nothing.
func folder(dir string) ([]os.DirEntry, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil, unpinnable(dir)
	}
	if !info.IsDir() {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if entries == nil {
		entries = []os.DirEntry{}
	}
	return entries, err
}

// worktreeOf finds the repository of which a .git file says that its folder is
// a worktree. The repository must say the same: the file may have been written
// by a command, to have some other folder made writable.
func worktreeOf(dotGit string) (common string, ok bool) {
	own, ok := pathIn(dotGit, "gitdir: ")
	if !ok {
		return "", false
	}
	worktrees, name := filepath.Dir(own), filepath.Base(own)
	common = filepath.Dir(worktrees)
	if filepath.Base(worktrees) != "worktrees" || name == "." {
		return "", false
	}
	back, ok := pathIn(filepath.Join(own, "gitdir"), "")
	if !ok || back != dotGit {
		return "", false
	}
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Lstat(filepath.Join(common, name)); err != nil {
			return "", false
		}
	}
	return common, true
}

// maxPointer bounds a file that holds a path.
const maxPointer = 4096 + 16

// pathIn reads a file that holds one path behind a prefix, and resolves it.
func pathIn(file, prefix string) (string, bool) {
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxPointer {
		return "", false
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	path, ok := strings.CutPrefix(strings.TrimRight(string(b), "\r\n"), prefix)
	if !ok || path == "" {
		return "", false
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(file), path)
	}
	path, err = filepath.EvalSymlinks(path)
	return path, err == nil
}
