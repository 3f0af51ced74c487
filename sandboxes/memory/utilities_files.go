package memory

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"codework/sandboxes"
)

func ls(p *process, args []string) int {
	f, ok := p.flags(args, "1aAlRdhFt", "")
	if !ok {
		return usage
	}
	names := f.rest
	if len(names) == 0 {
		names = []string{"."}
	}
	code := 0
	line := func(i sandboxes.Info, shown, full string) {
		if f.has('F') && i.Mode.IsDir() {
			shown += "/"
		}
		if !f.has('l') {
			p.printf("%s\n", shown)
			return
		}
		if to, err := p.tree().readlink(full); err == nil {
			shown += " -> " + to
		}
		p.printf("%s 1 user user %8d %s %s\n", modeText(i.Mode), i.Size, i.ModTime.UTC().Format("Jan _2 15:04"), shown)
	}
	var folders []string
	for _, name := range names {
		i, err := p.tree().stat(p.abs(name), !f.has('l') && !f.has('d'))
		switch {
		case err != nil:
			p.errorf("cannot access '%s': %v", name, err)
			code = usage
		case i.Mode.IsDir() && !f.has('d'):
			folders = append(folders, name)
		default:
			line(i, name, p.abs(name))
		}
	}
	head := len(names) > 1 || f.has('R')
	for k := 0; k < len(folders) && !p.stopped(); k++ {
		name := folders[k]
		infos, err := p.tree().list(p.abs(name))
		if err != nil {
			p.errorf("cannot open '%s': %v", name, err)
			code = usage
			continue
		}
		if head {
			if k > 0 {
				p.printf("\n")
			}
			p.printf("%s:\n", name)
		}
		if f.has('t') {
			slices.SortStableFunc(infos, func(a, b sandboxes.Info) int { return b.ModTime.Compare(a.ModTime) })
		}
		var below []string
		if f.has('a') {
			p.printf(".\n..\n")
		}
		for _, i := range infos {
			if strings.HasPrefix(i.Name, ".") && !f.has('a') && !f.has('A') {
				continue
			}
			full := strings.TrimRight(name, "/") + "/" + i.Name
			line(i, i.Name, p.abs(full))
			if f.has('R') && i.Mode.IsDir() {
				below = append(below, full)
			}
		}
		folders = slices.Insert(folders, k+1, below...)
	}
	return code
}

func modeText(m fs.FileMode) string {
	kind := "-"
	switch {
	case m.IsDir():
		kind = "d"
	case m&fs.ModeSymlink != 0:
		kind = "l"
	}
	return kind + m.Perm().String()[1:]
}

func mkdir(p *process, args []string) int {
	f, ok := p.flags(args, "pv", "m")
	if !ok {
		return usage
	}
	return p.all(f.rest, "cannot create directory", func(name string) error {
		return p.tree().mkdir(p.abs(name), folderPerm&^p.j.m.umask, f.has('p'))
	})
}

// all runs do for every name and says which failed.
func (p *process) all(names []string, what string, do func(name string) error) int {
	if len(names) == 0 {
		p.errorf("missing operand")
		return usage
	}
	code := 0
	for _, name := range names {
		if p.stopped() {
			return 1
		}
		if err := do(name); err != nil {
			p.errorf("%s '%s': %v", what, name, err)
			code = 1
		}
	}
	return code
}

func rmdir(p *process, args []string) int {
	return p.all(args, "cannot remove", func(name string) error {
		i, err := p.tree().stat(p.abs(name), false)
		if err == nil && !i.Mode.IsDir() {
			err = sandboxes.ErrNotDirectory
		}
		if err != nil {
			return err
		}
		return p.tree().remove(p.abs(name), false)
	})
}

func rm(p *process, args []string) int {
	f, ok := p.flags(args, "rRfvi", "")
	if !ok {
		return usage
	}
	if f.has('f') && len(f.rest) == 0 {
		return 0
	}
	return p.all(f.rest, "cannot remove", func(name string) error {
		deep := f.has('r') || f.has('R')
		i, err := p.tree().stat(p.abs(name), false)
		switch {
		case errors.Is(err, fs.ErrNotExist) && f.has('f'):
			return nil
		case err != nil:
			return err
		case i.Mode.IsDir() && !deep:
			return sandboxes.ErrIsDirectory
		}
		return p.tree().remove(p.abs(name), deep)
	})
}

// into is where a file goes that is copied or moved to a target.
func (p *process) into(target, name string) string {
	if i, err := p.tree().stat(p.abs(target), true); err == nil && i.Mode.IsDir() {
		return strings.TrimRight(p.abs(target), "/") + "/" + path.Base(path.Clean(name))
	}
	return p.abs(target)
}

// fromTo runs do for each source of a copy or a move.
func (p *process) fromTo(names []string, what string, do func(from, to string) error) int {
	if len(names) < 2 {
		p.errorf("missing operand")
		return usage
	}
	target := names[len(names)-1]
	if len(names) > 2 {
		if i, err := p.tree().stat(p.abs(target), true); err != nil || !i.Mode.IsDir() {
			p.errorf("target '%s' is not a directory", target)
			return 1
		}
	}
	return p.all(names[:len(names)-1], what, func(name string) error { return do(p.abs(name), p.into(target, name)) })
}

func cp(p *process, args []string) int {
	f, ok := p.flags(args, "rRapfv", "")
	if !ok {
		return usage
	}
	deep := f.has('r') || f.has('R') || f.has('a')
	return p.fromTo(f.rest, "cannot copy", func(from, to string) error { return p.copy(from, to, deep, 0) })
}

// maxDepth bounds a tree that is copied or walked.
const maxDepth = 1000

func (p *process) copy(from, to string, deep bool, depth int) error {
	if p.stopped() {
		return p.ctx.Err()
	}
	t := p.tree()
	i, err := t.stat(from, !deep)
	switch {
	case err != nil:
		return err
	case depth > maxDepth:
		return errors.New("too deep")
	case i.Mode&fs.ModeSymlink != 0:
		target, err := t.readlink(from)
		if err != nil {
			return err
		}
		return t.link(target, to)
	case !i.Mode.IsDir():
		b, err := t.read(from)
		if err != nil {
			return err
		}
		return t.write(to, slices.Clone(b), i.Mode.Perm())
	case !deep:
		return sandboxes.ErrIsDirectory
	}
	a, err := t.realPath(from)
	if err != nil {
		return err
	}
	if b, err := t.realPath(to); err == nil && strings.HasPrefix(b+"/", a+"/") {
		return errors.New("cannot copy a directory into itself")
	}
	infos, err := t.list(from)
	if err == nil {
		err = t.mkdir(to, i.Mode.Perm(), true)
	}
	for _, c := range infos {
		if err == nil {
			err = p.copy(from+"/"+c.Name, to+"/"+c.Name, true, depth+1)
		}
	}
	return err
}

func mv(p *process, args []string) int {
	f, ok := p.flags(args, "fvn", "")
	if !ok {
		return usage
	}
	return p.fromTo(f.rest, "cannot move", func(from, to string) error { return p.tree().rename(from, to) })
}

func touch(p *process, args []string) int {
	f, ok := p.flags(args, "cm", "")
	if !ok {
		return usage
	}
	return p.all(f.rest, "cannot touch", func(name string) error {
		now := time.Now()
		err := p.tree().change(p.abs(name), nil, &now)
		if errors.Is(err, fs.ErrNotExist) && !f.has('c') {
			err = p.tree().write(p.abs(name), nil, filePerm&^p.j.m.umask)
		}
		return err
	})
}

func ln(p *process, args []string) int {
	f, ok := p.flags(args, "sfn", "")
	if !ok {
		return usage
	}
	if !f.has('s') || len(f.rest) < 1 || len(f.rest) > 2 {
		p.errorf("only 'ln -s TARGET [NAME]' works in this sandbox")
		return usage
	}
	to := p.abs(path.Base(f.rest[0]))
	if len(f.rest) == 2 {
		to = p.into(f.rest[1], f.rest[0])
	}
	return p.all(f.rest[:1], "cannot link", func(target string) error {
		if f.has('f') {
			_ = p.tree().remove(to, false) // otherwise making it fails
		}
		return p.tree().link(target, to)
	})
}

var symbolic = regexp.MustCompile(`^([ugoa]*)([-+=])([rwx]*)$`)

func chmod(p *process, args []string) int {
	if len(args) < 2 {
		p.errorf("missing operand")
		return usage
	}
	if args[0] == "-R" {
		p.errorf("unknown option -R in this sandbox")
		return usage
	}
	return p.all(args[1:], "cannot change", func(name string) error {
		i, err := p.tree().stat(p.abs(name), true)
		if err != nil {
			return err
		}
		perm := i.Mode.Perm()
		if n, err := strconv.ParseUint(args[0], 8, 12); err == nil {
			perm = fs.FileMode(n).Perm()
		} else {
			m := symbolic.FindStringSubmatch(args[0])
			if m == nil {
				return fmt.Errorf("invalid mode %q", args[0])
			}
			who, bits := m[1], fs.FileMode(0)
			if who == "" || strings.Contains(who, "a") {
				who = "ugo"
			}
			var whose fs.FileMode
			for _, w := range who {
				shift := map[rune]uint{'u': 6, 'g': 3, 'o': 0}[w]
				whose |= 7 << shift
				for _, b := range m[3] {
					bits |= map[rune]fs.FileMode{'r': 4, 'w': 2, 'x': 1}[b] << shift
				}
			}
			switch m[2] {
			case "+":
				perm |= bits
			case "-":
				perm &^= bits
			default:
				perm = perm&^whose | bits
			}
		}
		return p.tree().change(p.abs(name), &perm, nil)
	})
}

func basename(p *process, args []string) int {
	if len(args) == 0 {
		p.errorf("missing operand")
		return usage
	}
	name := path.Base(args[0])
	if len(args) > 1 && name != args[1] {
		name = strings.TrimSuffix(name, args[1])
	}
	p.printf("%s\n", name)
	return 0
}

func dirname(p *process, args []string) int {
	for _, a := range args {
		p.printf("%s\n", path.Dir(strings.TrimRight(a, "/")))
	}
	return 0
}

func readlink(p *process, args []string) int {
	f, ok := p.flags(args, "fn", "")
	if !ok {
		return usage
	}
	if f.has('f') {
		return realpath(p, f.rest)
	}
	for _, name := range f.rest {
		to, err := p.tree().readlink(p.abs(name))
		if err != nil {
			return 1
		}
		p.printf("%s\n", to)
	}
	return 0
}

func realpath(p *process, args []string) int {
	return p.all(args, "cannot resolve", func(name string) error {
		real, err := p.tree().realPath(p.abs(name))
		if err == nil {
			p.printf("%s\n", real)
		}
		return err
	})
}

func mktemp(p *process, args []string) int {
	f, ok := p.flags(args, "d", "")
	if !ok {
		return usage
	}
	name := "/tmp/tmp." + rand.Text()[:10]
	var err error
	if f.has('d') {
		err = p.tree().mkdir(name, 0o700, false)
	} else {
		err = p.tree().write(name, nil, 0o600)
	}
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	p.printf("%s\n", name)
	return 0
}
