package settings

import (
	"bytes"
	"sync"
)

// maxKept is how many different sources a Cache remembers: more projects than
// one server works in at a time.
const maxKept = 256

// Cache is Load for those who ask again and again: files are read every time,
// and what is in them is parsed, checked and merged when it differs from the
// last time. The zero Cache is empty and ready; any number of goroutines may
// use it. Settings that it returns are shared, as they never change.
type Cache struct {
	mu   sync.Mutex // guards kept
	kept map[source]kept
}

// source is where settings were read.
type source struct {
	user, project, root string
	trusted             bool
}

type kept struct {
	from written
	set  *Settings
}

// Load is the package's Load.
func (c *Cache) Load(src Source) (*Settings, error) {
	w := read(src)
	at := source{w.user.path, w.project.path, w.root, w.trusted}
	c.mu.Lock()
	last := c.kept[at]
	c.mu.Unlock()
	if last.set != nil && w.user.same(last.from.user) && w.project.same(last.from.project) {
		return last.set, nil
	}
	set, err := w.settings()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) >= maxKept {
		c.kept = map[source]kept{}
	}
	c.kept[at] = kept{w, set}
	return set, nil
}

// same tells whether two files say the same.
func (f file) same(g file) bool {
	return f.err == nil && g.err == nil && f.path == g.path && bytes.Equal(f.data, g.data)
}
