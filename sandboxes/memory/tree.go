package memory

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"codework/sandboxes"
)

// Bounds of one sandbox.
const (
	// MaxBytes is what all files together may hold.
	MaxBytes = 256 << 20
	// MaxFiles is how many files, folders and links there may be.
	MaxFiles = 1 << 20
)

const (
	maxPath      = 4096
	maxComponent = 255
	maxLinks     = 40
)

// tree is the file system of a sandbox: absolute POSIX paths, one owner.
type tree struct {
	mu    sync.RWMutex // guards everything below, and all nodes
	root  *node
	bytes int64
	nodes int
	free  int64 // what MaxBytes leaves; smaller in tests
}

// node is a file, a folder or a link. The bytes of a file are never changed in
// place, but for what lies behind their end, so a reader keeps what it got.
type node struct {
	mode     fs.FileMode // type bits and permissions
	modified time.Time
	data     []byte
	target   string
	children map[string]*node
}

func newTree() *tree {
	t := &tree{root: newFolder(0o755), nodes: 1, free: MaxBytes}
	t.root.modified = time.Now()
	return t
}

func newFolder(perm fs.FileMode) *node {
	return &node{mode: fs.ModeDir | perm, modified: time.Now(), children: map[string]*node{}}
}

var errNUL = errors.New("NUL byte in path")

// checkPath refuses paths that no system takes.
func checkPath(p string) error {
	switch {
	case p == "":
		return syscall.ENOENT
	case strings.IndexByte(p, 0) >= 0:
		return errNUL
	case len(p) >= maxPath:
		return syscall.ENAMETOOLONG
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > maxComponent {
			return syscall.ENAMETOOLONG
		}
	}
	return nil
}

// place is where a path leads: the folder, the name in it, and what is there
// (nil: nothing). The root is its own folder, with the name "/".
type place struct {
	parent *node
	name   string
	node   *node
	real   string // without links, as far as they were followed
}

// walk resolves an absolute path; follow tells whether a link at its end is
// followed too. The last component need not exist. The caller holds the lock.
func (t *tree) walk(p string, follow bool) (place, error) {
	if err := checkPath(p); err != nil {
		return place{}, err
	}
	at, real := []*node{t.root}, []string{}
	todo := strings.Split(p, "/")
	links := 0
	needFolder := strings.HasSuffix(p, "/")
	for i := 0; i < len(todo); i++ {
		name := todo[i]
		here := at[len(at)-1]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(at) > 1 {
				at, real = at[:len(at)-1], real[:len(real)-1]
			}
			continue
		}
		last := !slices.ContainsFunc(todo[i+1:], func(s string) bool { return s != "" })
		child := here.children[name]
		if child == nil {
			if last {
				return place{parent: here, name: name, real: "/" + strings.Join(append(slices.Clone(real), name), "/")}, nil
			}
			return place{}, syscall.ENOENT
		}
		switch {
		case child.mode&fs.ModeSymlink != 0 && (!last || follow || needFolder):
			if links++; links > maxLinks {
				return place{}, syscall.ELOOP
			}
			if path.IsAbs(child.target) {
				at, real = at[:1], real[:0]
			}
			todo = append(strings.Split(child.target, "/"), todo[i+1:]...)
			i = -1
		case last:
			if needFolder && !child.mode.IsDir() {
				return place{}, syscall.ENOTDIR
			}
			return place{parent: here, name: name, node: child, real: "/" + strings.Join(append(slices.Clone(real), name), "/")}, nil
		case !child.mode.IsDir():
			return place{}, syscall.ENOTDIR
		default:
			at, real = append(at, child), append(real, name)
		}
	}
	end := at[len(at)-1]
	if len(at) == 1 {
		return place{parent: t.root, name: "/", node: t.root, real: "/"}, nil
	}
	return place{parent: at[len(at)-2], name: real[len(real)-1], node: end, real: "/" + strings.Join(real, "/")}, nil
}

// find is walk for something that must be there.
func (t *tree) find(p string, follow bool) (place, error) {
	at, err := t.walk(p, follow)
	if err == nil && at.node == nil {
		err = syscall.ENOENT
	}
	return at, err
}

// stat describes what is at a path.
func (t *tree) stat(p string, follow bool) (sandboxes.Info, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.find(p, follow)
	if err != nil {
		return sandboxes.Info{}, err
	}
	return at.node.info(path.Base(strings.TrimRight(p, "/"))), nil
}

func (n *node) info(name string) sandboxes.Info {
	i := sandboxes.Info{Name: name, Mode: n.mode, ModTime: n.modified, Size: int64(len(n.data))}
	if n.mode&fs.ModeSymlink != 0 {
		i.Size = int64(len(n.target))
	}
	return i
}

// read returns the bytes of a regular file; they must not be changed.
func (t *tree) read(p string) ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.find(p, true)
	switch {
	case err != nil:
		return nil, err
	case at.node.mode.IsDir():
		return nil, syscall.EISDIR
	case at.node.mode.Perm()&0o400 == 0:
		return nil, syscall.EACCES
	}
	return at.node.data, nil
}

// write replaces a file, or makes it. It keeps data.
func (t *tree) write(p string, data []byte, perm fs.FileMode) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.open(p, perm, false)
	if err != nil {
		return err
	}
	return t.set(n, data)
}

// open finds a file that is to be written, or makes an empty one. The caller
// holds the lock.
func (t *tree) open(p string, perm fs.FileMode, exclusive bool) (*node, error) {
	at, err := t.walk(p, true)
	switch {
	case err != nil:
		return nil, err
	case at.node == nil && strings.HasSuffix(p, "/"):
		return nil, syscall.EISDIR
	case at.node == nil:
		n := &node{mode: perm.Perm(), modified: time.Now()}
		return n, t.add(at, n)
	case at.node.mode.IsDir():
		return nil, syscall.EISDIR
	case exclusive:
		return nil, syscall.EEXIST
	case at.node.mode.Perm()&0o200 == 0:
		return nil, syscall.EACCES
	}
	return at.node, nil
}

// set gives a file its bytes. The caller holds the lock.
func (t *tree) set(n *node, data []byte) error {
	more := int64(len(data) - len(n.data))
	if t.bytes+more > t.free {
		return syscall.ENOSPC
	}
	t.bytes += more
	n.data, n.modified = data, time.Now()
	return nil
}

// add puts a node where there is none. The caller holds the lock.
func (t *tree) add(at place, n *node) error {
	if t.nodes >= MaxFiles {
		return syscall.ENOSPC
	}
	if more := int64(len(n.data)); t.bytes+more > t.free {
		return syscall.ENOSPC
	} else {
		t.bytes += more
	}
	t.nodes++
	at.parent.children[at.name] = n
	at.parent.modified = time.Now()
	return nil
}

// appendTo adds to the end of an open file.
func (t *tree) appendTo(n *node, b []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes+int64(len(b)) > t.free {
		return syscall.ENOSPC
	}
	t.bytes += int64(len(b))
	n.data, n.modified = append(n.data, b...), time.Now()
	return nil
}

// mkdir makes a folder; with parents all that are missing, and an existing one
// is fine.
func (t *tree) mkdir(p string, perm fs.FileMode, parents bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.walk(strings.TrimRight(p, "/")+"/", true)
	if err == syscall.ENOENT && parents && path.Dir(strings.TrimRight(p, "/")) != p {
		t.mu.Unlock()
		err = t.mkdir(path.Dir(strings.TrimRight(p, "/")), perm, true)
		t.mu.Lock()
		if err == nil {
			at, err = t.walk(strings.TrimRight(p, "/")+"/", true)
		}
	}
	switch {
	case err != nil:
		return err
	case at.node == nil:
		return t.add(at, newFolder(perm.Perm()))
	case !at.node.mode.IsDir():
		return syscall.ENOTDIR
	case !parents:
		return syscall.EEXIST
	}
	return nil
}

// list returns what a folder holds, sorted by name.
func (t *tree) list(p string) ([]sandboxes.Info, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.find(p, true)
	switch {
	case err != nil:
		return nil, err
	case !at.node.mode.IsDir():
		return nil, syscall.ENOTDIR
	case at.node.mode.Perm()&0o400 == 0:
		return nil, syscall.EACCES
	}
	infos := make([]sandboxes.Info, 0, len(at.node.children))
	for name, n := range at.node.children {
		infos = append(infos, n.info(name))
	}
	slices.SortFunc(infos, func(a, b sandboxes.Info) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// remove removes a file, a link, or a folder: only an empty one unless all.
func (t *tree) remove(p string, all bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.find(p, false)
	switch {
	case err != nil:
		return err
	case at.node == t.root:
		return syscall.EBUSY
	case at.node.mode.IsDir() && len(at.node.children) > 0 && !all:
		return syscall.ENOTEMPTY
	}
	t.drop(at.node)
	delete(at.parent.children, at.name)
	at.parent.modified = time.Now()
	return nil
}

// drop takes a node and what is below it off the books.
func (t *tree) drop(n *node) {
	t.nodes--
	t.bytes -= int64(len(n.data))
	for _, c := range n.children {
		t.drop(c)
	}
}

// link makes a symbolic link.
func (t *tree) link(target, p string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := checkPath(target); err != nil {
		return err
	}
	at, err := t.walk(p, false)
	switch {
	case err != nil:
		return err
	case at.node != nil:
		return syscall.EEXIST
	}
	return t.add(at, &node{mode: fs.ModeSymlink | 0o777, target: target, modified: time.Now()})
}

// readlink is where a link points.
func (t *tree) readlink(p string) (string, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.find(p, false)
	if err == nil && at.node.mode&fs.ModeSymlink == 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		return "", err
	}
	return at.node.target, nil
}

// rename moves what is at a path; a file may replace a file, a folder an empty
// folder.
func (t *tree) rename(from, to string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.find(from, false)
	if err != nil {
		return err
	}
	b, err := t.walk(strings.TrimRight(to, "/"), false)
	switch {
	case err != nil:
		return err
	case a.node == t.root || b.node == t.root:
		return syscall.EBUSY
	case a.node == b.node:
		return nil
	case a.node.mode.IsDir() && strings.HasPrefix(b.real+"/", a.real+"/"):
		return syscall.EINVAL
	case b.node == nil:
	case b.node.mode.IsDir() && !a.node.mode.IsDir():
		return syscall.EISDIR
	case !b.node.mode.IsDir() && a.node.mode.IsDir():
		return syscall.ENOTDIR
	case len(b.node.children) > 0:
		return syscall.ENOTEMPTY
	}
	if b.node != nil {
		t.drop(b.node)
	}
	delete(a.parent.children, a.name)
	b.parent.children[b.name] = a.node
	now := time.Now()
	a.parent.modified, b.parent.modified = now, now
	return nil
}

// change alters the permissions and the time of what is at a path; nil leaves
// one as it is.
func (t *tree) change(p string, perm *fs.FileMode, modified *time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.find(p, true)
	if err != nil {
		return err
	}
	if perm != nil {
		at.node.mode = at.node.mode&^fs.ModePerm | perm.Perm()
	}
	if modified != nil {
		at.node.modified = *modified
	}
	return nil
}

// realPath resolves all links; the last component need not exist.
func (t *tree) realPath(p string) (string, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.walk(p, true)
	return at.real, err
}
