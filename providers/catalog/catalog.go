// Package catalog knows the models: where they are reached, what they cost and
// what they can do.
//
// A model is looked for, in this order, in the caller's own entries, in the
// program (offline/guide), and in the catalog file, or the embedded snapshot
// while there is no file that is newer. The openai-codex models are a fixed
// list in the program unless the file has its own.
//
// Nothing is read before it is asked for, and looking up one model decodes
// that model only: a wrong entry in the file fails its own lookup and List,
// nothing else. A file whose time or size changed is read again at the next
// call. A Catalog is safe for concurrent use. The models it returns are shared:
// nobody changes them.
//
// Only Refresh and Keep write the file, from the list that models.dev
// publishes: whole or not at all, and nobody who looks up a model waits for it.
//
// The snapshot was made from a catalog file with: go run ./gen <file> snapshot
package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"codework/messages"
	"codework/providers/offline"
)

// DefaultModel is the model of a session for which nobody chose one.
var DefaultModel = messages.ModelRef{Provider: "openai", ID: "gpt-5.6-luna"}

// Reasons of a failure to load the catalog, in Failure.Code.
const (
	ReasonMissing    = "missing"
	ReasonUnreadable = "unreadable"
	ReasonEmpty      = "empty"
	ReasonInvalid    = "invalid"
)

// maxFile bounds what is read into memory: a catalog of every known model is
// under one MiB, so a file of this size is something else.
const maxFile = 64 << 20

// Options say where the catalog is.
type Options struct {
	// File is the path of models.gen.json; empty means the snapshot only.
	File string
	// Pinned means that the user named this file: it must exist, and it counts
	// also when it is older than the snapshot.
	Pinned bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Catalog answers which models there are.
type Catalog struct {
	file   string
	pinned bool
	now    func() time.Time

	mu    sync.Mutex // guards what follows
	read  version    // of the file that known was read from
	known map[messages.ModelRef]messages.Model

	samples map[string]*messages.Model // one of each provider, nil of an empty one; see Usable
	sampled version                    // of the file that samples were read from
}

// version tells one content of the file from another. The zero version is
// that of no file.
type version struct {
	time time.Time
	size int64
}

// Open makes a Catalog. It reads nothing yet, so it cannot fail.
func Open(o Options) *Catalog {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Catalog{file: o.File, pinned: o.Pinned, now: o.Now, known: map[messages.ModelRef]messages.Model{}}
}

// Lookup returns a model that can be used. Entries of custom replace the
// catalog's, later ones earlier ones. Errors are *messages.Failure: of type
// FailModelNotFound with the closest names as a hint, FailCatalog when the
// file is at fault, FailConfiguration when this program does not speak the
// model's protocol.
func (c *Catalog) Lookup(ref messages.ModelRef, custom []messages.Model) (messages.Model, error) {
	m, err := c.find(ref, custom)
	if err != nil {
		return messages.Model{}, err
	}
	if f := refuseProtocol(m); f != nil {
		return messages.Model{}, f
	}
	return m, nil
}

func (c *Catalog) find(ref messages.ModelRef, custom []messages.Model) (messages.Model, error) {
	for _, m := range slices.Backward(custom) {
		if m.Ref() == ref {
			return m, nil
		}
	}
	if m := offline.Model(); m.Ref() == ref {
		return m, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.current()
	if err != nil {
		return messages.Model{}, err
	}
	if m, ok := c.known[ref]; ok {
		return m, nil
	}
	src, err := c.open(now)
	if err != nil {
		return messages.Model{}, err
	}
	entries, err := src.provider(ref.Provider)
	if err != nil {
		return messages.Model{}, c.fault(ReasonInvalid, err)
	}
	raw, ok := entries[ref.ID]
	if !ok {
		return messages.Model{}, notFound(ref, src, custom)
	}
	m, err := decode(ref.Provider, ref.ID, raw)
	if err != nil {
		return messages.Model{}, c.fault(ReasonInvalid, err)
	}
	c.known[ref] = m
	return m, nil
}

// List returns every model, sorted by provider and id; of one provider when
// provider is not empty. It decodes all of them: for commands and pickers, not
// for the way to a request. Models that Lookup refuses are listed too.
func (c *Catalog) List(provider string, custom []messages.Model) ([]messages.Model, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	src, err := c.fresh()
	if err != nil {
		return nil, err
	}
	all := map[messages.ModelRef]messages.Model{}
	for _, p := range src.names() {
		if provider != "" && provider != p {
			continue
		}
		entries, err := src.provider(p)
		if err != nil {
			return nil, c.fault(ReasonInvalid, err)
		}
		for id, raw := range entries {
			m, err := decode(p, id, raw)
			if err != nil {
				return nil, c.fault(ReasonInvalid, err)
			}
			all[m.Ref()] = m
		}
	}
	for _, m := range append([]messages.Model{offline.Model()}, custom...) {
		if provider == "" || provider == m.Provider.ID {
			all[m.Ref()] = m
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b messages.Model) int {
		return cmp.Or(cmp.Compare(a.Provider.ID, b.Provider.ID), cmp.Compare(a.ID, b.ID))
	}), nil
}

// Providers returns the ids of all providers, sorted.
func (c *Catalog) Providers(custom []messages.Model) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	src, err := c.fresh()
	if err != nil {
		return nil, err
	}
	ids := append(src.names(), offline.Model().Provider.ID)
	for _, m := range custom {
		ids = append(ids, m.Provider.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Origin says what the catalog is read from: the path of the file and when it
// was written, or no path and when the snapshot's data was published.
func (c *Catalog) Origin() (path string, written time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.stat()
	switch {
	case err != nil:
		return c.file, time.Time{}, err
	case v == version{}:
		return "", snapshotTaken, nil
	}
	return c.file, v.time, nil
}

// Stale tells whether the file is missing or older than maxAge. One from far
// in the future, of a clock that was wrong, is too.
func (c *Catalog) Stale(maxAge time.Duration) bool {
	info, err := os.Stat(c.file)
	if err != nil {
		return true
	}
	age := c.now().Sub(info.ModTime())
	return age > maxAge || -age > max(maxAge, time.Hour)
}

// Path is the file that the catalog is kept in; empty for the snapshot alone.
func (c *Catalog) Path() string { return c.file }

// current notices another version of the file and forgets what was known of
// the one before. c.mu is held.
func (c *Catalog) current() (version, error) {
	v, err := c.stat()
	if err == nil && v != c.read {
		c.read = v
		clear(c.known)
	}
	return v, err
}

// open reads the outer level of that version. c.mu is held.
func (c *Catalog) open(v version) (source, error) {
	if v == (version{}) {
		return withCodex{snapshot{}}, nil
	}
	in, err := os.Open(c.file)
	if err != nil {
		return nil, c.fault(ReasonUnreadable, err)
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile))
	if err != nil {
		return nil, c.fault(ReasonUnreadable, err)
	}
	parsed, reason, err := parse(data)
	if err != nil {
		return nil, c.fault(reason, err)
	}
	return withCodex{parsed}, nil
}

// fresh is the source as it is at this moment. c.mu is held.
func (c *Catalog) fresh() (source, error) {
	v, err := c.current()
	if err != nil {
		return nil, err
	}
	return c.open(v)
}

// stat returns the version of the file that counts, the zero one when that is
// the snapshot.
func (c *Catalog) stat() (version, error) {
	if c.file == "" {
		return version{}, nil
	}
	info, err := os.Stat(c.file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !c.pinned:
		return version{}, nil
	case errors.Is(err, fs.ErrNotExist):
		return version{}, c.fault(ReasonMissing, err)
	case err != nil:
		return version{}, c.fault(ReasonUnreadable, err)
	case !info.Mode().IsRegular():
		return version{}, c.fault(ReasonUnreadable, errors.New("not a regular file"))
	case info.Size() > maxFile:
		return version{}, c.fault(ReasonUnreadable, fmt.Errorf("larger than %d MiB", maxFile>>20))
	case !c.pinned && info.ModTime().Before(snapshotTaken):
		return version{}, nil
	}
	return version{time: info.ModTime(), size: info.Size()}, nil
}

// fault is a failure to load the file. A *PathError would name it twice.
func (c *Catalog) fault(reason string, err error) *messages.Failure {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	where := c.file
	if where == "" {
		where = "embedded snapshot"
	}
	hint := "make it anew with: codework models refresh --force; or remove it: the catalog inside the program is used then"
	if c.pinned {
		hint = "make it with: codework models refresh --force; or unset CODEWORK_MODELS_FILE"
	}
	return &messages.Failure{
		Type:    messages.FailCatalog,
		Code:    reason,
		Message: fmt.Sprintf("model catalog is %s: %s: %v", reason, where, err),
		Hint:    hint,
	}
}
