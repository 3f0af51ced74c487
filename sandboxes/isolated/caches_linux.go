//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// cacheRoot is where commands find their caches.
const cacheRoot = "/tmp/codework-cache"

// tool is a cache of a build tool: the variable that names it to the tool, its
// folder below cacheRoot, and where the host has it, below a home folder.
type tool struct {
	variable string // "" when it is part of another one
	dir      string
	host     string // "" is not to be shown: it holds passwords too
}

// tools lists parents first.
var tools = []tool{
	{"XDG_CACHE_HOME", "xdg", ".cache"},
	{"GOCACHE", "go-build", ".cache/go-build"},
	{"GOMODCACHE", "go-mod", "go/pkg/mod"},
	{"npm_config_cache", "npm", ".npm"},
	{"PIP_CACHE_DIR", "pip", ".cache/pip"},
	{"CARGO_HOME", "cargo", ""},
	{"", "cargo/registry", ".cargo/registry"},
	{"", "cargo/git", ".cargo/git"},
}

// hostDir is where the host has the cache: where its own variable says, or in
// the usual place. "" means that it has none.
func (t tool) hostDir(getenv func(string) string) string {
	if t.host == "" {
		return ""
	}
	dir := ""
	if t.variable != "" {
		dir = getenv(t.variable)
	}
	if dir == "" && t.variable == "GOMODCACHE" {
		if path := filepath.SplitList(getenv("GOPATH")); len(path) > 0 {
			dir = filepath.Join(path[0], "pkg", "mod")
		}
	}
	if dir == "" {
		if h := homes(); len(h) > 0 {
			dir = filepath.Join(h[0], t.host)
		}
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return ""
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() {
		return ""
	}
	return real
}

// caches makes the folders of a sandbox's caches below base.
func caches(base string, level Level) (list []cache, vars map[string]string, err error) {
	vars = make(map[string]string)
	for _, t := range tools {
		own := filepath.Join(base, filepath.Base(t.dir))
		c := cache{
			Target: filepath.Join(cacheRoot, t.dir),
			Lower:  t.hostDir(os.Getenv),
			Upper:  filepath.Join(own, "files"),
			Work:   filepath.Join(own, "work"),
		}
		if level != Full {
			c.Target = c.Upper
		}
		for _, dir := range []string{c.Upper, c.Work} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, nil, fmt.Errorf("make cache: %w", err)
			}
		}
		if t.variable != "" {
			vars[t.variable] = c.Target
		}
		list = append(list, c)
	}
	return list, vars, nil
}

// hiddenInCaches finds what is hidden and would show through a cache, and keeps
// a cache from showing through that is hidden itself.
func hiddenInCaches(p *plan) (more []string) {
	for i := range p.Caches {
		c := &p.Caches[i]
		if c.Lower == "" {
			continue
		}
		if below(c.Lower, p.Hide) {
			c.Lower = ""
			continue
		}
		for _, path := range p.Hide {
			if rest, ok := within(path, c.Lower); ok {
				more = append(more, join(c.Target, rest))
			}
		}
	}
	return more
}

// removeAll removes a folder with all below it, also what tools and the kernel
// made unwritable.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(path, 0o700) // what fails here fails below again
		}
		return nil
	})
	return os.RemoveAll(dir)
}
