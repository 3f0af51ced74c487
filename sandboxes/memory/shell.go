package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"

	"codework/sandboxes"
)

const (
	codeSyntax        = 2
	codeNotFound      = 127
	codeNotExecutable = 126

	// MaxValues is what a command's variables and arguments may hold together.
	MaxValues = 256 << 20
	// pieceSize bounds a piece of output.
	pieceSize = 64 << 10
	// drainTime is how long output is still taken when the main script has ended
	// and a background job goes on.
	drainTime = 250 * time.Millisecond
	// settle is what a command whose context has ended gets to notice it.
	settle = 1500 * time.Millisecond
)

var (
	errTimeout = errors.New("time limit")
	errValues  = errors.New("a command's variables and arguments may hold 256 MiB")
)

// piece is something printed.
type piece struct {
	stream sandboxes.Stream
	b      []byte
}

// job is one command and what it left in the background.
type job struct {
	m      *mount
	ctx    context.Context // ends it and everything it started
	cancel context.CancelCauseFunc
	out    chan piece
	over   chan struct{} // closed when nobody reads out any more
	joined bool
	live   atomic.Int64 // utilities that run
	calls  atomic.Int64 // commands that were begun
	forks  atomic.Bool  // the script may leave something in the background
}

// Run runs a command; see sandboxes.Shell.
func (m *mount) Run(ctx context.Context, c sandboxes.Command) (exit sandboxes.Exit, err error) {
	exit.Code = -1
	m.sandbox.mu.Lock()
	err = m.alive(ctx)
	if err == nil {
		m.runs.Add(1)
	}
	m.sandbox.mu.Unlock()
	if err != nil {
		return exit, m.endError(ctx)
	}
	defer m.runs.Done()
	if c.Script != "" && len(c.Argv) > 0 {
		return exit, &sandboxes.ShellError{Reason: "both a script and arguments given"}
	}
	for name, value := range c.Env {
		if !validName(name) || strings.IndexByte(value, 0) >= 0 {
			return exit, &sandboxes.ShellError{Reason: fmt.Sprintf("command not started: bad environment variable %q", name)}
		}
	}
	dir := m.dir
	if c.Dir != "" {
		dir = path.Clean(abs(m.dir, c.Dir))
	}
	info, err := m.sandbox.tree.stat(dir, true)
	if err == nil && !info.Mode.IsDir() {
		err = sandboxes.ErrNotDirectory
	}
	if err != nil {
		return exit, &sandboxes.ShellError{Reason: "working directory " + dir, Err: err}
	}
	select {
	case m.sandbox.slots <- struct{}{}:
		defer func() { <-m.sandbox.slots }()
	case <-ctx.Done():
		return exit, m.endError(ctx)
	case <-m.ctx.Done():
		return exit, m.endError(ctx)
	}
	return m.run(ctx, c, dir)
}

func (m *mount) endError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return &sandboxes.ShellError{Reason: "command ended", Err: sandboxes.ErrClosed}
}

// keeper is the file that keeps the whole output.
type keeper struct {
	t     *tree
	file  *node
	kept  int64
	total int64
	cut   bool
}

func (m *mount) keep(full string) (*keeper, error) {
	k := &keeper{t: m.sandbox.tree}
	if full == "" {
		return k, nil
	}
	p := abs(m.scratch, full)
	if path.Dir(p) != m.scratch {
		return nil, &sandboxes.ShellError{Reason: "file for full output: not in scratch: " + full}
	}
	k.t.mu.Lock()
	defer k.t.mu.Unlock()
	if at, err := k.t.walk(p, false); err == nil && at.node != nil {
		k.t.drop(at.node)
		delete(at.parent.children, at.name)
	}
	var err error
	if k.file, err = k.t.open(p, 0o600, true); err != nil {
		return nil, &sandboxes.ShellError{Reason: "file for full output", Err: err}
	}
	return k, nil
}

func (k *keeper) take(b []byte) {
	k.total += int64(len(b))
	if k.file == nil || k.cut {
		return
	}
	if room := sandboxes.FullLimit - k.kept; int64(len(b)) > room {
		b, k.cut = b[:room], true
	}
	k.kept += int64(len(b))
	if k.t.appendTo(k.file, b) != nil {
		k.cut = true
	}
}

func (m *mount) run(ctx context.Context, c sandboxes.Command, dir string) (exit sandboxes.Exit, err error) {
	exit.Code = -1
	full, err := m.keep(c.Full)
	if err != nil {
		return exit, err
	}
	take := func(p piece) {
		full.take(p.b)
		if c.Output != nil {
			c.Output(p.stream, p.b)
		}
	}
	j := &job{m: m, out: make(chan piece), over: make(chan struct{}), joined: c.Joined}
	j.ctx, j.cancel = context.WithCancelCause(m.ctx)
	stop := context.AfterFunc(ctx, func() { j.cancel(context.Cause(ctx)) })
	if c.Timeout > 0 {
		timer := time.AfterFunc(c.Timeout, func() { j.cancel(errTimeout) })
		defer timer.Stop()
	}
	type result struct {
		code int
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, err := j.interpret(c, dir)
		ended <- result{code, err}
	}()
	defer func() { exit.FullBytes, exit.FullCut = full.total, full.cut }()
	var r result
	late, cut := (<-chan time.Time)(nil), j.ctx.Done()
loop:
	for {
		select {
		case p := <-j.out:
			take(p)
		case r = <-ended:
			break loop
		case <-cut:
			late, cut = time.After(settle), nil
		case <-late:
			r = result{-1, nil} // it ends at its next step
			break loop
		}
	}
	cause := context.Cause(j.ctx)
	if stop() && cause == nil && j.forks.Load() {
		exit.Background = j.drain(take)
	}
	close(j.over)
	if !exit.Background {
		j.cancel(nil)
	}
	switch {
	case cause == errTimeout:
		exit.TimedOut = true
		return exit, nil
	case cause != nil:
		return exit, m.endError(ctx)
	case r.err != nil:
		return exit, &sandboxes.ShellError{Reason: "command ended by the shell", Err: r.err}
	}
	exit.Code = r.code
	return exit, nil
}

// drain takes what background jobs say at first, and tells whether any is left.
// The interpreter does not say so itself: one that begins no command and runs no
// utility for a while has ended.
func (j *job) drain(take func(piece)) bool {
	quiet := time.After(drainTime)
	look := time.NewTicker(drainTime / 25)
	defer look.Stop()
	calls, idle := j.calls.Load(), 0
	for {
		select {
		case p := <-j.out:
			take(p)
		case <-quiet:
			return true
		case <-look.C:
			if n := j.calls.Load(); n != calls || j.live.Load() > 0 {
				calls, idle = n, 0
			} else if idle++; idle == 3 {
				return false
			}
		}
	}
}

// writer is one of a job's streams. What it gets goes to the reader of the job,
// in order; when nobody reads any more it is dropped.
type writer struct {
	j      *job
	stream sandboxes.Stream
}

func (w writer) Write(b []byte) (int, error) {
	stream := w.stream
	if w.j.joined {
		stream = sandboxes.Stdout
	}
	for rest := b; len(rest) > 0; {
		n := min(len(rest), pieceSize)
		select {
		case w.j.out <- piece{stream, bytes.Clone(rest[:n])}: // the interpreter uses its buffer again
		case <-w.j.over:
			return len(b), nil
		case <-w.j.ctx.Done():
			return 0, w.j.ctx.Err()
		}
		rest = rest[n:]
	}
	return len(b), nil
}

// interpret runs the command to its end. An error means that the interpreter
// gave up.
func (j *job) interpret(c sandboxes.Command, dir string) (code int, err error) {
	defer func() {
		if v := recover(); v != nil {
			j.m.sandbox.log.Error("shell interpreter failed", "panic", v, "stack", string(debug.Stack()))
			code, err = -1, errors.New("the shell interpreter failed on this script")
		}
	}()
	script, params := c.Script, []string(nil)
	if len(c.Argv) > 0 {
		script, params = `"$@"`, c.Argv
	}
	stdout, stderr := writer{j, sandboxes.Stdout}, writer{j, sandboxes.Stderr}
	file, err := j.parse(script, shellName)
	if err != nil {
		fmt.Fprintln(stderr, "sh:", err)
		return codeSyntax, nil
	}
	env := maps.Clone(j.m.env)
	maps.Copy(env, c.Env)
	r, err := j.runner(env, dir, params, nil, stdout, stderr)
	if err != nil {
		return -1, err
	}
	return j.finish(r.Run(j.ctx, file), stderr)
}

// finish turns what the interpreter says into an exit code.
func (j *job) finish(err error, stderr io.Writer) (int, error) {
	var status interp.ExitStatus
	if errors.As(err, &status) {
		return int(status), nil
	}
	if errors.Is(err, errValues) {
		fmt.Fprintln(stderr, "sh:", err)
		return 1, nil
	}
	return 0, err
}

// runner is an interpreter that sees nothing but the sandbox.
func (j *job) runner(env map[string]string, dir string, params []string, stdin io.Reader, stdout, stderr io.Writer) (*interp.Runner, error) {
	pairs := make([]string, 0, len(env)+1)
	if _, ok := env["HOME"]; !ok {
		pairs = append(pairs, "HOME="+driverEntries["HOME"]) // the interpreter would take the host's
	}
	for name, value := range env {
		if name != "PWD" {
			pairs = append(pairs, name+"="+value)
		}
	}
	r, err := interp.New(
		interp.Dir("/"), // replaced below: the option looks at the host's disk
		interp.Env(expand.ListEnviron(append(pairs, "PWD="+dir)...)),
		interp.Params(append([]string{"--"}, params...)...),
		interp.StdIO(stdin, stdout, stderr),
		interp.CallHandler(j.call),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return j.exec }),
		interp.OpenHandler(j.open),
		interp.ReadDirHandler2(j.readDir),
		interp.StatHandler(j.stat),
		interp.AccessHandler(j.access),
	)
	if err != nil {
		return nil, err
	}
	r.Dir = dir
	return r, nil
}

// builtinsOfOurs replace builtins of the interpreter that look at the host.
var builtinsOfOurs = map[string]string{"type": "type", "hash": "true", "help": "help", "times": "true"}

// call sees every command before it runs.
func (j *job) call(ctx context.Context, args []string) ([]string, error) {
	if err := j.ctx.Err(); err != nil {
		return nil, err
	}
	j.calls.Add(1)
	hc := interp.HandlerCtx(ctx)
	size := 0
	for _, a := range args {
		size += len(a)
	}
	hc.Env.Each(func(_ string, v expand.Variable) bool {
		size += len(v.Str)
		for _, s := range v.List {
			size += len(s)
		}
		for _, s := range v.Map {
			size += len(s)
		}
		return size <= MaxValues
	})
	if size > MaxValues {
		return nil, errValues
	}
	switch name := args[0]; {
	case builtinsOfOurs[name] != "":
		return append([]string{builtinsOfOurs[name] + utilitySuffix}, args[1:]...), nil
	case name == "command" && len(args) > 1 && (args[1] == "-v" || args[1] == "-V"):
		return append([]string{"which" + utilitySuffix}, args[2:]...), nil
	case (name == "source" || name == ".") && len(args) > 1:
		b, err := j.m.sandbox.tree.read(abs(hc.Dir, args[1]))
		if err != nil {
			return []string{"fail" + utilitySuffix, name + ": " + args[1] + ": " + err.Error()}, nil
		}
		if _, err := j.parse(string(b), args[1]); err != nil {
			return []string{"fail" + utilitySuffix, name + ": " + err.Error()}, nil
		}
		return []string{"eval", string(b)}, nil
	case name == "eval":
		if _, err := j.parse(strings.Join(args[1:], " "), "eval"); err != nil {
			return []string{"fail" + utilitySuffix, "eval: " + err.Error()}, nil
		}
	case name == "test" || name == "[":
		args = slices.Clone(args)
		for i, a := range args {
			if a == "-O" || a == "-G" { // everything belongs to the user
				args[i] = "-e"
			}
		}
	}
	return args, nil
}

// utilitySuffix marks names that the interpreter must not take for its own.
const utilitySuffix = "\x00"

// shellName is $0 of a command.
const shellName = "sh"

// parse reads a script and takes out of it what would touch the host.
func (j *job) parse(script, name string) (file *syntax.File, err error) {
	file, err = syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), name)
	if err != nil {
		return nil, err
	}
	var bad error
	background := false
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Stmt:
			background = background || n.Background || n.Coprocess
		case *syntax.ProcSubst:
			bad = errors.New("process substitution is not available in this sandbox")
		case *syntax.Word:
			if lit, ok := first(n); ok && len(lit.Value) > 1 && lit.Value[0] == '~' && lit.Value[1] != '/' {
				lit.Value = `\` + lit.Value // the homes of other users are the host's
			}
		case *syntax.UnaryTest:
			if n.Op == syntax.TsUsrOwn || n.Op == syntax.TsGrpOwn {
				n.Op = syntax.TsExists
			}
		}
		return bad == nil
	})
	if background {
		j.forks.Store(true)
	}
	return file, bad
}

func first(w *syntax.Word) (*syntax.Lit, bool) {
	if len(w.Parts) == 0 {
		return nil, false
	}
	lit, ok := w.Parts[0].(*syntax.Lit)
	return lit, ok
}

// exec runs what is neither a function nor a builtin.
func (j *job) exec(ctx context.Context, args []string) error {
	hc := interp.HandlerCtx(ctx)
	p := &process{j: j, ctx: ctx, args: args, dir: hc.Dir, env: hc.Env, in: hc.Stdin, out: hc.Stdout, err: hc.Stderr}
	j.live.Add(1)
	defer j.live.Add(-1)
	failed := &failing{w: p.out}
	p.out = failed
	code := p.run()
	if err := j.ctx.Err(); err != nil {
		return err
	}
	if failed.err != nil && !errors.Is(failed.err, syscall.EPIPE) {
		p.errorf("write error: %v", failed.err)
		code = 1
	}
	if code == 0 {
		return nil
	}
	return interp.ExitStatus(code)
}

// failing remembers why nothing more could be written.
type failing struct {
	w   io.Writer
	err error
}

func (f *failing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil && f.err == nil {
		f.err = err
	}
	return n, err
}

// open opens files for redirections.
func (j *job) open(ctx context.Context, name string, flag int, perm os.FileMode) (io.ReadWriteCloser, error) {
	hc := interp.HandlerCtx(ctx)
	switch name {
	case "/dev/null":
		return nullFile{}, nil
	case "/dev/stdout":
		return outFile{hc.Stdout}, nil
	case "/dev/stderr":
		return outFile{hc.Stderr}, nil
	}
	return j.openFile(abs(hc.Dir, name), name, flag, perm)
}

func (j *job) openFile(p, shown string, flag int, perm fs.FileMode) (io.ReadWriteCloser, error) {
	t := j.m.sandbox.tree
	fail := func(err error) error { return &os.PathError{Op: "open", Path: shown, Err: err} }
	if flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		b, err := t.read(p)
		if err != nil {
			return nil, fail(err)
		}
		return &readFile{rest: b}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if flag&os.O_CREATE == 0 {
		if _, err := t.find(p, true); err != nil {
			return nil, fail(err)
		}
	}
	n, err := t.open(p, perm&^j.m.umask, flag&os.O_EXCL != 0)
	if err == nil && flag&os.O_TRUNC != 0 {
		err = t.set(n, nil)
	}
	if err != nil {
		return nil, fail(err)
	}
	return &writeFile{t: t, n: n}, nil
}

type nullFile struct{}

func (nullFile) Read([]byte) (int, error)    { return 0, io.EOF }
func (nullFile) Write(b []byte) (int, error) { return len(b), nil }
func (nullFile) Close() error                { return nil }

type outFile struct{ io.Writer }

func (outFile) Read([]byte) (int, error) { return 0, io.EOF }
func (outFile) Close() error             { return nil }

type readFile struct{ rest []byte }

func (f *readFile) Read(b []byte) (int, error) {
	if len(f.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}
func (*readFile) Write([]byte) (int, error) { return 0, syscall.EBADF }
func (*readFile) Close() error              { return nil }

// writeFile appends: a redirection writes from the end of what there is, which
// is the beginning after a truncation.
type writeFile struct {
	t *tree
	n *node
}

func (*writeFile) Read([]byte) (int, error) { return 0, syscall.EBADF }
func (f *writeFile) Write(b []byte) (int, error) {
	if err := f.t.appendTo(f.n, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
func (*writeFile) Close() error { return nil }

// fileInfo shows the sandbox's files to the interpreter.
type fileInfo struct{ i sandboxes.Info }

func (f fileInfo) Name() string       { return f.i.Name }
func (f fileInfo) Size() int64        { return f.i.Size }
func (f fileInfo) Mode() fs.FileMode  { return f.i.Mode }
func (f fileInfo) ModTime() time.Time { return f.i.ModTime }
func (f fileInfo) IsDir() bool        { return f.i.Mode.IsDir() }
func (f fileInfo) Sys() any           { return nil }

func (j *job) stat(ctx context.Context, name string, follow bool) (fs.FileInfo, error) {
	p := abs(interp.HandlerCtx(ctx).Dir, name)
	if path.Clean(p) == "/dev/null" {
		return fileInfo{sandboxes.Info{Name: "null", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666}}, nil
	}
	i, err := j.m.sandbox.tree.stat(p, follow)
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return fileInfo{i}, nil
}

func (j *job) readDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	infos, err := j.m.sandbox.tree.list(abs(interp.HandlerCtx(ctx).Dir, name))
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	entries := make([]fs.DirEntry, len(infos))
	for i, info := range infos {
		entries[i] = fs.FileInfoToDirEntry(fileInfo{info})
	}
	return entries, nil
}

// access checks the owner's permissions: all files are the user's.
func (j *job) access(ctx context.Context, name string, mode interp.AccessMode) error {
	i, err := j.m.sandbox.tree.stat(abs(interp.HandlerCtx(ctx).Dir, name), true)
	if err != nil {
		return err
	}
	if want := fs.FileMode(mode&7) << 6; i.Mode.Perm()&want != want {
		return syscall.EACCES
	}
	return nil
}

// process is one utility that runs.
type process struct {
	j    *job
	ctx  context.Context
	args []string
	dir  string
	env  expand.Environ
	in   io.Reader
	out  io.Writer
	err  io.Writer
}

func (p *process) run() (code int) {
	name := strings.TrimSuffix(p.args[0], utilitySuffix)
	if strings.Contains(name, "/") {
		// A file that is a program's name, or a script of the sandbox.
		if path.Dir(path.Clean(abs(p.dir, name))) == "/bin" {
			name = path.Base(name)
		} else {
			return p.script(name)
		}
	}
	u := utilities[name]
	if u == nil {
		p.errorf("not found")
		return codeNotFound
	}
	return u(p, p.args[1:])
}

// script runs a file of the sandbox through the shell.
func (p *process) script(name string) int {
	file := abs(p.dir, name)
	b, err := p.j.m.sandbox.tree.read(file)
	info, _ := p.j.m.sandbox.tree.stat(file, true)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.errorf("not found")
		return codeNotFound
	case err != nil || info.Mode.Perm()&0o100 == 0:
		p.errorf("permission denied")
		return codeNotExecutable
	}
	if line, ok := strings.CutPrefix(string(b), "#!"); ok {
		line, _, _ = strings.Cut(line, "\n")
		words := strings.Fields(line)
		if len(words) == 0 || !slices.Contains([]string{"sh", "bash", "env"}, path.Base(words[0])) ||
			path.Base(words[0]) == "env" && (len(words) < 2 || words[1] != "sh" && words[1] != "bash") {
			p.errorf("cannot execute: only shell scripts run in this sandbox")
			return codeNotExecutable
		}
	}
	return p.shell(string(b), name, p.args[1:])
}

// shell runs a script in a new interpreter with this process's streams.
func (p *process) shell(script, name string, params []string) int {
	file, err := p.j.parse(script, name)
	if err != nil {
		p.errorf("%v", err)
		return codeSyntax
	}
	env := map[string]string{}
	p.env.Each(func(name string, v expand.Variable) bool {
		if v.Exported && v.Kind == expand.String {
			env[name] = v.Str
		}
		return true
	})
	r, err := p.j.runner(env, p.dir, params, p.in, p.out, p.err)
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	code, err := p.j.finish(r.Run(p.ctx, file), p.err)
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	return code
}

func (p *process) errorf(format string, a ...any) {
	fmt.Fprintf(p.err, "%s: %s\n", strings.TrimSuffix(p.args[0], utilitySuffix), fmt.Sprintf(format, a...))
}

// stopped tells that the command is to end.
func (p *process) stopped() bool { return p.ctx.Err() != nil }
