package memory

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
)

// utility is a program of the sandbox; it returns its exit code.
type utility func(p *process, args []string) int

// utilities are all there are beside the shell's builtins. It is filled in by
// init, since some of them start others.
var utilities map[string]utility

func init() {
	utilities = map[string]utility{
		"basename": basename, "bash": sh, "cat": cat, "chmod": chmod, "cp": cp, "cut": cut, "date": date, "dirname": dirname,
		"env": env, "fail": fail, "find": find, "grep": grep, "head": head, "help": help, "hostname": hostname, "id": id, "ln": ln, "ls": ls,
		"mkdir": mkdir, "mktemp": mktemp, "mv": mv, "nohup": nohup, "printenv": printenv, "readlink": readlink, "realpath": realpath,
		"rm": rm, "rmdir": rmdir, "sed": sed, "seq": seq, "sh": sh, "sleep": sleep, "sort": sort, "tac": tac, "tail": tail, "tee": tee,
		"touch": touch, "tr": tr, "true": func(*process, []string) int { return 0 }, "type": typeOf, "uname": uname, "uniq": uniq, "wc": wc,
		"which": which, "whoami": whoami, "xargs": xargs, "yes": yes,
	}
}

// hidden are utilities that exist for the interpreter's sake only.
var hidden = []string{"fail", "type", "help", "true"}

// flags reads single-letter options: with are those that take a value, alone
// those that do not. "-n5", "-n 5" and "-abc" are understood, "--" ends them.
// Numbers such as "-5" count as the value of digit.
type flags struct {
	set  map[byte][]string
	rest []string
}

func (p *process) flags(args []string, alone, with string) (flags, bool) {
	f := flags{set: map[byte][]string{}}
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			f.rest = append(f.rest, args[i+1:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			f.rest = append(f.rest, a)
			continue
		}
		for k := 1; k < len(a); k++ {
			c := a[k]
			switch {
			case strings.IndexByte(alone, c) >= 0:
				f.set[c] = append(f.set[c], "")
			case strings.IndexByte(with, c) >= 0:
				value := a[k+1:]
				if value == "" {
					if i++; i >= len(args) {
						p.errorf("option -%c needs a value", c)
						return f, false
					}
					value = args[i]
				}
				f.set[c] = append(f.set[c], value)
				k = len(a)
			default:
				p.errorf("unknown option %s in this sandbox", a)
				return f, false
			}
		}
	}
	return f, true
}

func (f flags) has(c byte) bool { return f.set[c] != nil }

func (f flags) last(c byte) string {
	v := f.set[c]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// usage is the exit code of a utility that was called wrongly.
const usage = 2

// input reads a file of the sandbox, or standard input for "-".
func (p *process) input(name string) (io.Reader, error) {
	if name == "-" {
		if f, ok := p.in.(*os.File); p.in == nil || ok && f == nil {
			return strings.NewReader(""), nil
		}
		return p.in, nil
	}
	if name == "/dev/null" {
		return strings.NewReader(""), nil
	}
	b, err := p.tree().read(p.abs(name))
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(b), nil
}

// each runs do over the named inputs, or standard input when there are none.
func (p *process) each(names []string, do func(name string, r io.Reader) error) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	code := 0
	for _, name := range names {
		r, err := p.input(name)
		if err == nil {
			err = do(name, r)
		}
		if err == errEnough {
			return code
		}
		if err != nil {
			p.errorf("%s: %v", name, err)
			code = 1
		}
	}
	return code
}

// errEnough ends each early.
var errEnough = errors.New("enough")

// maxLine bounds a line that utilities work on by lines.
const maxLine = 64 << 20

// lines calls do with every line, without its end; last tells that it had none.
func (p *process) lines(r io.Reader, do func(line string, whole bool) error) error {
	b := bufio.NewReaderSize(r, pieceSize)
	var long []byte
	for {
		if p.stopped() {
			return p.ctx.Err()
		}
		part, err := b.ReadSlice('\n')
		switch {
		case err == bufio.ErrBufferFull:
			if long = append(long, part...); len(long) > maxLine {
				return errors.New("line too long")
			}
			continue
		case err != nil && err != io.EOF:
			return err
		}
		line := append(long, part...)
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		text, whole := strings.CutSuffix(string(line), "\n")
		if e := do(text, whole); e != nil {
			return e
		}
		if err == io.EOF {
			return nil
		}
		long = long[:0]
	}
}

func (p *process) tree() *tree               { return p.j.m.sandbox.tree }
func (p *process) abs(name string) string    { return abs(p.dir, name) }
func (p *process) printf(f string, a ...any) { fmt.Fprintf(p.out, f, a...) }

func fail(p *process, args []string) int {
	fmt.Fprintln(p.err, strings.Join(args, " "))
	return 1
}

func help(p *process, _ []string) int {
	var names []string
	for name := range utilities {
		if !slices.Contains(hidden, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	p.printf("The memory sandbox has the shell's builtins and: %s\n", strings.Join(names, " "))
	return 0
}

func sh(p *process, args []string) int {
	f, ok := p.flags(args, "eux", "c")
	if !ok {
		return usage
	}
	set := ""
	for _, c := range "eux" {
		if f.has(byte(c)) {
			set += "set -" + string(c) + "\n"
		}
	}
	if f.has('c') {
		zero := shellName
		if len(f.rest) > 0 {
			zero, f.rest = f.rest[0], f.rest[1:]
		}
		return p.shell(set+f.last('c'), zero, f.rest)
	}
	name := "-"
	if len(f.rest) > 0 {
		name, f.rest = f.rest[0], f.rest[1:]
	}
	r, err := p.input(name)
	if err != nil {
		p.errorf("%s: %v", name, err)
		return codeNotFound
	}
	script, err := io.ReadAll(io.LimitReader(r, maxLine))
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	return p.shell(set+string(script), name, f.rest)
}

// start runs another utility as a child of this one.
func (p *process) start(args []string, extra map[string]string) int {
	child := *p
	child.args = args
	if len(extra) > 0 {
		pairs := []string{}
		p.env.Each(func(name string, v expand.Variable) bool {
			if _, ok := extra[name]; v.Exported && !ok {
				pairs = append(pairs, name+"="+v.Str)
			}
			return true
		})
		for name, value := range extra {
			pairs = append(pairs, name+"="+value)
		}
		child.env = expand.ListEnviron(pairs...)
	}
	if utilities[args[0]] == nil && interp.IsBuiltin(args[0]) {
		return child.shell(`"$@"`, shellName, args)
	}
	return child.run()
}

func env(p *process, args []string) int {
	extra := map[string]string{}
	for len(args) > 0 {
		if args[0] == "-i" {
			p.env = expand.ListEnviron()
			args = args[1:]
			continue
		}
		name, value, ok := strings.Cut(args[0], "=")
		if !ok {
			break
		}
		extra[name] = value
		args = args[1:]
	}
	if len(args) > 0 {
		return p.start(args, extra)
	}
	all := maps.Clone(extra)
	p.env.Each(func(name string, v expand.Variable) bool {
		if _, ok := all[name]; !ok && v.Exported {
			all[name] = v.Str
		}
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p.printf("%s=%s\n", name, all[name])
	}
	return 0
}

func printenv(p *process, args []string) int {
	if len(args) == 0 {
		return env(p, nil)
	}
	code := 0
	for _, name := range args {
		if v := p.env.Get(name); v.Exported {
			p.printf("%s\n", v.Str)
		} else {
			code = 1
		}
	}
	return code
}

func nohup(p *process, args []string) int {
	if len(args) == 0 {
		p.errorf("no command given")
		return usage
	}
	return p.start(args, nil)
}

func sleep(p *process, args []string) int {
	var total time.Duration
	for _, a := range args {
		unit := time.Second
		switch {
		case strings.HasSuffix(a, "s"):
			a = a[:len(a)-1]
		case strings.HasSuffix(a, "m"):
			a, unit = a[:len(a)-1], time.Minute
		case strings.HasSuffix(a, "h"):
			a, unit = a[:len(a)-1], time.Hour
		}
		n, err := strconv.ParseFloat(a, 64)
		if err != nil || n < 0 {
			p.errorf("invalid time %q", a)
			return 1
		}
		total += time.Duration(n * float64(unit))
	}
	select {
	case <-time.After(total):
	case <-p.ctx.Done():
	}
	return 0
}

func date(p *process, args []string) int {
	now := time.Now()
	format := "%a %b %e %H:%M:%S UTC %Y"
	for _, a := range args {
		switch {
		case a == "-u":
		case strings.HasPrefix(a, "+"):
			format = a[1:]
		default:
			p.errorf("unknown option %s in this sandbox", a)
			return 1
		}
	}
	now = now.UTC()
	layouts := map[byte]string{'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'F': "2006-01-02", 'T': "15:04:05",
		'a': "Mon", 'b': "Jan", 'e': "_2", 'y': "06", 'A': "Monday", 'B': "January", 'Z': "MST", 'z': "-0700", 'I': "03", 'p': "PM", 'j': "002", 'N': "000000000"}
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		switch c := format[i]; {
		case c == 's':
			fmt.Fprint(&out, now.Unix())
		case c == 'N':
			fmt.Fprintf(&out, "%09d", now.Nanosecond())
		case c == '%':
			out.WriteByte('%')
		case layouts[c] != "":
			out.WriteString(now.Format(layouts[c]))
		default:
			out.WriteString(format[i-1 : i+1])
		}
	}
	p.printf("%s\n", out.String())
	return 0
}

func which(p *process, args []string) int {
	code := 0
	for _, name := range args {
		switch {
		case utilities[name] != nil && !slices.Contains(hidden, name):
			p.printf("/bin/%s\n", name)
		case interp.IsBuiltin(name):
			p.printf("%s\n", name)
		default:
			code = 1
		}
	}
	return code
}

func typeOf(p *process, args []string) int {
	code := 0
	for _, name := range args {
		switch {
		case interp.IsBuiltin(name):
			p.printf("%s is a shell builtin\n", name)
		case utilities[name] != nil && !slices.Contains(hidden, name):
			p.printf("%s is /bin/%s\n", name, name)
		default:
			fmt.Fprintf(p.err, "type: %s: not found\n", name)
			code = 1
		}
	}
	return code
}

func xargs(p *process, args []string) int {
	most, replace, zero := 0, "", false
	i := 0
loop:
	for ; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-0":
			zero = true
		case a == "-r":
		case strings.HasPrefix(a, "-n") || strings.HasPrefix(a, "-I"):
			value := a[2:]
			if value == "" {
				if i++; i >= len(args) {
					p.errorf("option %s needs a value", a)
					return usage
				}
				value = args[i]
			}
			if a[1] == 'I' {
				replace = value
			} else if n, err := strconv.Atoi(value); err == nil {
				most = n
			}
		case strings.HasPrefix(a, "-"):
			p.errorf("unknown option %s in this sandbox", a)
			return usage
		default:
			break loop
		}
	}
	command := args[i:]
	if len(command) == 0 {
		command = []string{"echo"}
	}
	r, err := p.input("-")
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	all, err := io.ReadAll(io.LimitReader(r, maxLine))
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	var items []string
	switch {
	case zero:
		items = strings.FieldsFunc(string(all), func(r rune) bool { return r == 0 })
	case replace != "":
		items = strings.FieldsFunc(string(all), func(r rune) bool { return r == '\n' })
	default:
		items = strings.Fields(string(all))
	}
	child := *p
	child.in = nil
	code := 0
	run := func(argv []string) {
		if c := child.start(argv, nil); c != 0 {
			code = 123 // as xargs says that some command failed
		}
	}
	switch {
	case replace != "":
		for _, item := range items {
			argv := slices.Clone(command)
			for k := range argv {
				argv[k] = strings.ReplaceAll(argv[k], replace, item)
			}
			run(argv)
		}
	case most > 0:
		for group := range slices.Chunk(items, most) {
			run(append(slices.Clone(command), group...))
		}
	case len(items) > 0:
		run(append(slices.Clone(command), items...))
	}
	return code
}

func uname(p *process, args []string) int {
	if len(args) > 0 && strings.Contains(args[0], "a") {
		p.printf("CodeWork memory sandbox\n")
		return 0
	}
	p.printf("CodeWork\n")
	return 0
}

func whoami(p *process, _ []string) int {
	p.printf("user\n")
	return 0
}

func id(p *process, args []string) int {
	if len(args) > 0 && strings.Contains(args[0], "u") {
		p.printf("1000\n")
		return 0
	}
	p.printf("uid=1000(user) gid=1000(user)\n")
	return 0
}

func hostname(p *process, _ []string) int {
	p.printf("memory\n")
	return 0
}
