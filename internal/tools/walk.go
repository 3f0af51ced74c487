package tools

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"codework/sandboxes"
)

const (
	// walkLimit bounds how many entries one search looks at: a whole home
	// folder, but not for ever.
	walkLimit = 500_000
	// listAhead is how many folders are listed before it is their turn, which
	// hides the round trips of a remote sandbox.
	listAhead = 8
	// maxIgnoreBytes is how much of a .gitignore is read.
	maxIgnoreBytes = 256 << 10
)

// kernelFolders are not searched when they are come across: their files are
// not files, and reading some of them never ends.
var kernelFolders = []string{"/dev", "/proc", "/sys"}

// errEnough ends a walk early.
var errEnough = errors.New("enough")

// entry is something a walk came by.
type entry struct {
	path string // absolute
	rel  string // below the folder the walk began in
	info sandboxes.Info
}

func (e entry) isDir() bool { return e.info.Mode.IsDir() }

// walker goes through a folder in the order of paths, component by component.
// It does not follow links, leaves out .git and what .gitignore files name,
// and skips folders that cannot be read.
type walker struct {
	mount   sandboxes.Mount
	visit   func(entry) error
	left    int
	skipped int // folders that could not be read
}

// walk visits everything below root, an absolute path. It returns errEnough
// when visit did, or when there was too much.
func (w *walker) walk(ctx context.Context, root string) error {
	w.left = walkLimit
	first := w.list(ctx, root)
	files := outerIgnores(ctx, w.mount, root)
	got := <-first
	if got.err != nil {
		return got.err
	}
	return w.folder(ctx, root, "", got.entries, files)
}

type listing struct {
	entries []sandboxes.Info
	err     error
}

// list begins to list a folder.
func (w *walker) list(ctx context.Context, dir string) <-chan listing {
	c := make(chan listing, 1)
	go func() {
		entries, err := w.mount.List(ctx, dir)
		c <- listing{entries, err}
	}()
	return c
}

func (w *walker) folder(ctx context.Context, dir, rel string, entries []sandboxes.Info, files []ignoreFile) error {
	for _, e := range entries {
		if e.Name == ".gitignore" && e.Mode.IsRegular() {
			files = append(slices.Clip(files), readIgnore(ctx, w.mount, dir))
			break
		}
	}
	kept := make([]entry, 0, len(entries))
	var folders []string
	for _, info := range entries {
		e := entry{path: join(dir, info.Name), rel: join(rel, info.Name), info: info}
		if rel == "" {
			e.rel = info.Name
		}
		if info.Name == ".git" || slices.Contains(kernelFolders, e.path) || ignores(files, e.path, info.Name, e.isDir()) {
			continue
		}
		kept = append(kept, e)
		if e.isDir() {
			folders = append(folders, e.path)
		}
	}
	var ahead []<-chan listing
	defer func() {
		for _, c := range ahead {
			<-c // nothing may still use the mount after the walk
		}
	}()
	for _, e := range kept {
		if err := ctx.Err(); err != nil {
			return err
		}
		if w.left--; w.left < 0 {
			return errEnough
		}
		if err := w.visit(e); err != nil {
			return err
		}
		if !e.isDir() {
			continue
		}
		for len(ahead) < listAhead && len(folders) > 0 {
			ahead = append(ahead, w.list(ctx, folders[0]))
			folders = folders[1:]
		}
		got := <-ahead[0]
		ahead = ahead[1:]
		if got.err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			w.skipped++
			continue
		}
		if err := w.folder(ctx, e.path, e.rel, got.entries, files); err != nil {
			return err
		}
	}
	return nil
}

func join(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

func readIgnore(ctx context.Context, m sandboxes.Mount, dir string) ignoreFile {
	b, err := m.Read(ctx, join(dir, ".gitignore"), 0, maxIgnoreBytes)
	if err != nil {
		return ignoreFile{} // as if it were not there
	}
	return parseIgnore(dir, string(b))
}

// outerIgnores are the rules that folders above root have for what is below
// it: up to the root of the repository, or else to the session's folder.
func outerIgnores(ctx context.Context, m sandboxes.Mount, root string) []ignoreFile {
	var dirs []string // from root's parent outwards
	found := exists(ctx, m, join(root, ".git"))
	for dir := root; dir != "/" && !found; {
		dir = path.Dir(dir)
		dirs = append(dirs, dir)
		found = exists(ctx, m, join(dir, ".git"))
	}
	if !found {
		end := slices.Index(dirs, path.Clean(m.Dir()))
		dirs = dirs[:end+1]
	}
	var files []ignoreFile
	for _, dir := range slices.Backward(dirs) {
		if f := readIgnore(ctx, m, dir); len(f.rules) > 0 {
			files = append(files, f)
		}
	}
	return files
}

func exists(ctx context.Context, m sandboxes.Mount, p string) bool {
	_, err := m.Lstat(ctx, p)
	return err == nil
}

// searchRoot resolves the path argument of a search to an absolute path
// without links.
func searchRoot(ctx context.Context, m sandboxes.Mount, arg string) (string, sandboxes.Info, error) {
	p := folderArgument(arg)
	info, err := m.Stat(ctx, p)
	if err != nil {
		return "", info, err
	}
	real, err := m.RealPath(ctx, p)
	if err == nil && !path.IsAbs(real) {
		err = fs.ErrInvalid
	}
	return real, info, err
}
