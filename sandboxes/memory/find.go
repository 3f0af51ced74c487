package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"codework/sandboxes"
)

// found is a file that find looks at.
type found struct {
	path  string
	info  sandboxes.Info
	depth int
	prune bool // a test said not to go below it
}

// test is a part of find's expression; it may have effects.
type test func(f *found) bool

// finder reads find's expression: tests and actions with !, -a, -o and
// parentheses.
type finder struct {
	p        *process
	args     []string
	most     int // depths
	least    int
	deletes  bool // what is below a folder comes first
	acts     bool // there is an action: nothing is printed by itself
	failed   bool
	batch    [][]string // what -exec … {} + has collected
	commands [][]string
}

func find(p *process, args []string) int {
	var roots []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "!" && args[0] != "(" {
		roots, args = append(roots, args[0]), args[1:]
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	f := &finder{p: p, args: args, most: maxDepth}
	expression, err := f.or()
	if err == nil && len(f.args) > 0 {
		err = fmt.Errorf("unexpected %s", f.args[0])
	}
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	for _, root := range roots {
		i, err := p.tree().stat(p.abs(root), false)
		if err != nil {
			p.errorf("'%s': %v", root, err)
			f.failed = true
			continue
		}
		f.walk(expression, &found{path: root, info: i})
	}
	for i, names := range f.batch {
		for group := range slices.Chunk(names, maxBatch) {
			if !p.stopped() && p.start(append(slices.Clone(f.commands[i]), group...), nil) != 0 {
				f.failed = true
			}
		}
	}
	if f.failed {
		return 1
	}
	return 0
}

// maxBatch is how many files -exec … {} + hands to one command.
const maxBatch = 1000

func (f *finder) walk(expression test, e *found) {
	if f.p.stopped() {
		return
	}
	look := func() {
		if e.depth >= f.least && expression(e) && !f.acts {
			f.p.printf("%s\n", e.path)
		}
	}
	if !f.deletes {
		look()
	}
	if e.info.Mode.IsDir() && e.depth < f.most && !e.prune {
		below, err := f.p.tree().list(f.p.abs(e.path))
		if err != nil {
			f.p.errorf("'%s': %v", e.path, err)
			f.failed = true
		}
		for _, i := range below {
			f.walk(expression, &found{path: strings.TrimRight(e.path, "/") + "/" + i.Name, info: i, depth: e.depth + 1})
		}
	}
	if f.deletes {
		look()
	}
}

// next takes the next word if it is one of the given.
func (f *finder) next(words ...string) bool {
	if len(f.args) > 0 && slices.Contains(words, f.args[0]) {
		f.args = f.args[1:]
		return true
	}
	return false
}

func (f *finder) or() (test, error) {
	left, err := f.and()
	for err == nil && f.next("-o", "-or") {
		var right test
		if right, err = f.and(); err == nil {
			a := left
			left = func(e *found) bool { return a(e) || right(e) }
		}
	}
	return left, err
}

func (f *finder) and() (test, error) {
	all := test(func(*found) bool { return true })
	for len(f.args) > 0 && f.args[0] != ")" && f.args[0] != "-o" && f.args[0] != "-or" {
		f.next("-a", "-and")
		t, err := f.one(0)
		if err != nil {
			return nil, err
		}
		a := all
		all = func(e *found) bool { return a(e) && t(e) }
	}
	return all, nil
}

// maxNesting bounds the signs of negation in a row, and parentheses.
const maxNesting = 100

func (f *finder) one(depth int) (test, error) {
	switch {
	case depth > maxNesting:
		return nil, errors.New("nested too deeply")
	case f.next("!", "-not"):
		t, err := f.one(depth + 1)
		return func(e *found) bool { return !t(e) }, err
	case f.next("("):
		t, err := f.or()
		if err == nil && !f.next(")") {
			err = errors.New("a ) is missing")
		}
		return t, err
	}
	if len(f.args) == 0 {
		return nil, errors.New("a test is missing")
	}
	name := f.args[0]
	f.args = f.args[1:]
	switch name {
	case "-print", "-print0":
		end := map[string]string{"-print": "\n", "-print0": "\x00"}[name]
		f.acts = true
		return func(e *found) bool { f.p.printf("%s%s", e.path, end); return true }, nil
	case "-prune":
		return func(e *found) bool { e.prune = true; return true }, nil
	case "-empty":
		return func(e *found) bool {
			if e.info.Mode.IsDir() {
				below, err := f.p.tree().list(f.p.abs(e.path))
				return err == nil && len(below) == 0
			}
			return e.info.Size == 0
		}, nil
	case "-delete":
		f.deletes, f.acts = true, true
		return func(e *found) bool {
			err := f.p.tree().remove(f.p.abs(e.path), false)
			if err != nil {
				f.p.errorf("cannot delete '%s': %v", e.path, err)
				f.failed = true
			}
			return err == nil
		}, nil
	case "-exec":
		return f.exec()
	}
	if len(f.args) == 0 {
		return nil, fmt.Errorf("unknown or incomplete test %s in this sandbox", name)
	}
	value := f.args[0]
	f.args = f.args[1:]
	switch name {
	case "-name", "-iname", "-path":
		if name == "-iname" {
			value = strings.ToLower(value)
		}
		if !doublestar.ValidatePattern(value) {
			return nil, fmt.Errorf("bad pattern %q", value)
		}
		return func(e *found) bool {
			switch name {
			case "-path":
				return doublestar.MatchUnvalidated(strings.ReplaceAll(value, "*", "**"), e.path)
			case "-iname":
				return doublestar.MatchUnvalidated(value, strings.ToLower(path.Base(e.path)))
			}
			return doublestar.MatchUnvalidated(value, path.Base(e.path))
		}, nil
	case "-type":
		return func(e *found) bool {
			switch value {
			case "d":
				return e.info.Mode.IsDir()
			case "l":
				return e.info.Mode&fs.ModeSymlink != 0
			}
			return value == "f" && e.info.Mode.IsRegular()
		}, nil
	case "-maxdepth", "-mindepth":
		n, err := strconv.Atoi(value)
		if err != nil {
			return nil, fmt.Errorf("%s: bad number %q", name, value)
		}
		if name == "-maxdepth" {
			f.most = n
		} else {
			f.least = n
		}
		return func(*found) bool { return true }, nil
	}
	return nil, fmt.Errorf("unknown test %s in this sandbox", name)
}

// exec reads a command up to its ; or +.
func (f *finder) exec() (test, error) {
	end := slices.IndexFunc(f.args, func(s string) bool { return s == ";" || s == "+" })
	if end < 1 {
		return nil, errors.New("-exec: missing command or ';'")
	}
	command, together := f.args[:end], f.args[end] == "+"
	f.args, f.acts = f.args[end+1:], true
	if together {
		if command[len(command)-1] != "{}" {
			return nil, errors.New("-exec: '+' must come right after '{}'")
		}
		n := len(f.batch)
		f.batch, f.commands = append(f.batch, nil), append(f.commands, command[:len(command)-1])
		return func(e *found) bool { f.batch[n] = append(f.batch[n], e.path); return true }, nil
	}
	return func(e *found) bool {
		argv := slices.Clone(command)
		for k := range argv {
			argv[k] = strings.ReplaceAll(argv[k], "{}", e.path)
		}
		return f.p.start(argv, nil) == 0
	}, nil
}
