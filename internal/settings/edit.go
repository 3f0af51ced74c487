package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"github.com/tailscale/hujson"
)

// ErrLocked means that another command has been changing the same file for too
// long.
var ErrLocked = errors.New("another command is changing the file")

// editWait is how long a change waits for another one: long enough for any
// that works, and for a person to see that one does not.
const editWait = 2 * time.Minute

// PluginChange is what becomes of a plugin list. Indexes are those of the list
// as it was.
type PluginChange struct {
	Replace map[int]json.RawMessage
	Remove  []int
	Append  []json.RawMessage
}

func (c PluginChange) empty() bool {
	return len(c.Replace) == 0 && len(c.Remove) == 0 && len(c.Append) == 0
}

// FileIn is the settings file of a directory: the one that is read, or the one
// that would be made.
func FileIn(dir string) string {
	for _, name := range fileNames {
		file := filepath.Join(dir, name)
		if _, err := os.Lstat(file); err == nil {
			return file
		}
	}
	return filepath.Join(dir, fileNames[0])
}

// ChangePlugins changes the plugin list of the settings in dir, which exists.
// change gets the entries and says what becomes of them. The rest of the file
// keeps its comments, order and white space; of an entry that is removed the
// comments around it go as well. Nothing is written when change fails or
// wants nothing, or when the file or what would become of it is not in order.
// At most one process changes a file at a time; the others wait.
//
// The errors of the file are *Error, or ErrLocked.
func ChangePlugins(ctx context.Context, dir string, change func(list []json.RawMessage) (PluginChange, error)) error {
	file := FileIn(dir)
	unlock, err := lockFile(ctx, file)
	if err != nil {
		return err
	}
	defer unlock()
	was := readDir(dir)
	if was.err != nil {
		return was.err
	}
	data := was.data
	fresh := data == nil
	if fresh {
		data = []byte("{\n}\n")
	}
	mark := len(data) - len(bytes.TrimPrefix(data, byteOrderMark))
	from := &origin{path: file, trusted: true}
	if err := checkFile(from, data); err != nil {
		return err
	}
	ended := !fresh && len(data) > 0 && data[len(data)-1] != '\n'
	root, err := hujson.Parse(append(slices.Clone(data[mark:]), '\n'))
	if err != nil {
		return &Error{Slug: SlugParse, File: file, Detail: "it cannot be changed by a command"}
	}
	if key := duplicate(&root); key != "" {
		return &Error{Slug: SlugDecode, File: file, Detail: short(key) + ": is there twice; a command cannot tell which one to change"}
	}
	list := pluginList(&root)
	c, err := change(rawEntries(list))
	if err != nil || c.empty() {
		return err
	}
	if err := changeList(&root, list, c); err != nil {
		return fmt.Errorf("change %s: %w", file, err)
	}
	text := root.Pack()
	text = text[:len(text)-1] // the line end that was added
	if !ended && (len(text) == 0 || text[len(text)-1] != '\n') {
		text = append(text, '\n')
	}
	text = append(slices.Clone(data[:mark]), text...)
	if err := checkFile(from, text); err != nil {
		return err
	}
	if err := writeFile(file, text); err != nil {
		return &Error{Slug: SlugWrite, File: file, Detail: reason(err)}
	}
	return nil
}

// checkFile tells what is wrong with the text of a file.
func checkFile(from *origin, data []byte) error {
	tree, err := parse(from, data)
	if err != nil {
		return err
	}
	var c checker
	c.check("", fileShape, tree)
	if len(c.faults) > 0 {
		return decodeError(from.path, c.faults)
	}
	return nil
}

// lockFile keeps others from changing the file. The lock is a file beside it,
// which goes away with the lock: project folders are under version control.
func lockFile(ctx context.Context, file string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, editWait, ErrLocked)
	defer cancel()
	for {
		lock := flock.New(file+".lock", flock.SetPermissions(0o600))
		if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("lock %s: %w", file, context.Cause(ctx))
			}
			return nil, &Error{Slug: SlugWrite, File: file, Detail: reason(err)}
		}
		// Whoever had it before may have removed it meanwhile.
		held, err := lock.Stat()
		if err == nil {
			if there, statErr := os.Stat(lock.Path()); statErr == nil && os.SameFile(held, there) {
				return func() {
					_ = os.Remove(lock.Path())
					_ = lock.Close()
				}, nil
			}
		}
		_ = lock.Close()
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
	}
}

// duplicate is a key that an object has twice; "" is none.
func duplicate(root *hujson.Value) string {
	for v := range root.All() {
		o, ok := v.Value.(*hujson.Object)
		if !ok {
			continue
		}
		seen := map[string]bool{}
		for _, m := range o.Members {
			name := m.Name.Value.(hujson.Literal).String()
			if seen[name] {
				return name
			}
			seen[name] = true
		}
	}
	return ""
}

// pluginMember is the member of the plugin list; nil when there is none.
func pluginMember(root *hujson.Value) *hujson.ObjectMember {
	o := root.Value.(*hujson.Object)
	for i := range o.Members {
		if o.Members[i].Name.Value.(hujson.Literal).String() == "plugins" {
			return &o.Members[i]
		}
	}
	return nil
}

func pluginList(root *hujson.Value) *hujson.Array {
	m := pluginMember(root)
	if m == nil {
		return nil
	}
	list, _ := m.Value.Value.(*hujson.Array) // null is no list
	return list
}

func rawEntries(list *hujson.Array) []json.RawMessage {
	if list == nil {
		return nil
	}
	out := make([]json.RawMessage, len(list.Elements))
	for i, e := range list.Elements {
		e = e.Clone()
		e.BeforeExtra, e.AfterExtra = nil, nil
		e.Standardize()
		var compact bytes.Buffer
		if json.Compact(&compact, e.Pack()) == nil { // the file was parsed
			out[i] = compact.Bytes()
		}
	}
	return out
}

type patch struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

func apply(root *hujson.Value, p patch) error {
	b, err := json.Marshal([]patch{p})
	if err != nil {
		return err
	}
	return root.Patch(b)
}

// changeList makes the change. What the library does not do is white space:
// entries that are new stand as their neighbours do.
func changeList(root *hujson.Value, list *hujson.Array, c PluginChange) error {
	for i, entry := range c.Replace {
		if err := apply(root, patch{"replace", fmt.Sprintf("/plugins/%d", i), entry}); err != nil {
			return err
		}
		spaced(&list.Elements[i])
	}
	removed := slices.Clone(c.Remove)
	slices.Sort(removed)
	for _, i := range slices.Backward(slices.Compact(removed)) {
		comma, before := list.Elements[len(list.Elements)-1].AfterExtra != nil, list.Elements[i].BeforeExtra
		if err := apply(root, patch{Op: "remove", Path: fmt.Sprintf("/plugins/%d", i)}); err != nil {
			return err
		}
		switch n := len(list.Elements); {
		case n == 0 && len(bytes.TrimSpace(list.AfterExtra)) == 0:
			list.AfterExtra = nil
		case n > 0 && i == 0 && len(bytes.TrimSpace(list.Elements[0].BeforeExtra)) == 0 && len(bytes.TrimSpace(before)) == 0:
			list.Elements[0].BeforeExtra = before
		}
		if n := len(list.Elements); n > 0 && comma && list.Elements[n-1].AfterExtra == nil {
			list.Elements[n-1].AfterExtra = hujson.Extra{}
		}
	}
	for _, entry := range c.Append {
		if err := appendEntry(root, entry); err != nil {
			return err
		}
	}
	return nil
}

func appendEntry(root *hujson.Value, entry json.RawMessage) error {
	top := root.Value.(*hujson.Object)
	if pluginList(root) == nil {
		added := pluginMember(root) == nil
		comma := len(top.Members) > 0 && top.Members[len(top.Members)-1].Value.AfterExtra != nil
		if err := apply(root, patch{"add", "/plugins", json.RawMessage("[]")}); err != nil {
			return err
		}
		if added {
			m := &top.Members[len(top.Members)-1]
			m.Value.BeforeExtra = hujson.Extra(" ")
			if comma {
				m.Value.AfterExtra = hujson.Extra{}
			}
			like := hujson.Extra("\n\t")
			if len(top.Members) > 1 {
				like = top.Members[len(top.Members)-2].Name.BeforeExtra
			}
			m.Name.BeforeExtra = onNewLine(m.Name.BeforeExtra, indentOf(like))
			if lines(like) && !lines(top.AfterExtra) {
				top.AfterExtra = append(top.AfterExtra, '\n')
			}
		}
	}
	list, m := pluginList(root), pluginMember(root)
	n := len(list.Elements)
	comma := n > 0 && list.Elements[n-1].AfterExtra != nil
	if err := apply(root, patch{"add", "/plugins/-", entry}); err != nil {
		return err
	}
	e := &list.Elements[n]
	spaced(e)
	if comma {
		e.AfterExtra = hujson.Extra{}
	}
	switch {
	case n > 0:
		e.BeforeExtra = onNewLine(e.BeforeExtra, indentOf(list.Elements[n-1].BeforeExtra))
	case lines(m.Name.BeforeExtra):
		outer := indentOf(m.Name.BeforeExtra)
		unit := outer
		if unit == nil || len(*unit) == 0 {
			tab := "\t"
			unit = &tab
		}
		inner := *outer + *unit
		e.BeforeExtra = onNewLine(e.BeforeExtra, &inner)
		if !lines(list.AfterExtra) {
			list.AfterExtra = append(list.AfterExtra, "\n"+*outer...)
		}
	}
	return nil
}

// lines tells whether a line ends in white space.
func lines(x hujson.Extra) bool { return bytes.IndexByte(x, '\n') >= 0 }

// indentOf is what stands between the start of the line and what follows x;
// nil when that does not begin a line.
func indentOf(x hujson.Extra) *string {
	i := bytes.LastIndexByte(x, '\n')
	if i < 0 {
		return nil
	}
	rest := x[i+1:]
	s := string(rest[:len(rest)-len(bytes.TrimLeft(rest, " \t"))])
	return &s
}

// onNewLine puts what follows x on a line of its own, or behind a blank where
// indent is nil.
func onNewLine(x hujson.Extra, indent *string) hujson.Extra {
	if indent == nil && !lines(x) {
		return append(bytes.TrimRight(x, " \t"), ' ')
	}
	x = bytes.TrimRight(x, " \t")
	if len(x) == 0 || x[len(x)-1] != '\n' {
		x = append(x, '\n')
	}
	if indent != nil {
		x = append(x, *indent...)
	}
	return x
}

// spaced puts blanks into an entry as a person would.
func spaced(e *hujson.Value) {
	for v := range e.All() {
		switch c := v.Value.(type) {
		case *hujson.Object:
			for i := range c.Members {
				c.Members[i].Name.BeforeExtra, c.Members[i].Value.BeforeExtra = hujson.Extra(" "), hujson.Extra(" ")
			}
			if len(c.Members) > 0 {
				c.AfterExtra = hujson.Extra(" ")
			}
		case *hujson.Array:
			for i := range c.Elements {
				if i > 0 {
					c.Elements[i].BeforeExtra = hujson.Extra(" ")
				}
			}
		}
	}
}
