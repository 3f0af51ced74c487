package ssh

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"codework/sandboxes"
	"codework/sandboxes/agent"
	"codework/sandboxes/local"
)

const (
	// endPatience is how long the end of a command is waited for once it was
	// asked for: the script gives it a second between TERM and KILL.
	endPatience = 2 * time.Second
	// maxLine is what the system there takes as one argument, which our whole
	// command line is, less what the login shell adds.
	maxLine = 127 << 10
	// maxNoise is what start files may print.
	maxNoise = 64 << 10
)

// runScript takes a token, the folder, the umask or "", "group" or
// "namespace", names of variables that are not passed on, and what to run. Its
// input is a dead man's switch: at its end everything ends; a line on it says
// that nothing is left to be ended. Token lines frame the output. Whether
// something is left in a namespace is looked at several times: a process that
// forks and exits between the look at the folder and at its entry is missed.
const runScript = `
t=$1 d=$2 u=$3 m=$4 n=$5
shift 5
unset SSH_CLIENT SSH2_CLIENT SSH_CONNECTION SSH_TTY BASH_ENV ENV OLDPWD $n
end() { printf '\n%s %s\n' "$t" "$1" >&2; printf '\n%s %s\n' "$t" "$1"; }
left() {
	if test "$m" = group; then kill -0 -- "-$p" 2>/dev/null; return; fi
	for k in 1 2 3; do
		c=0
		for f in /proc/[0-9]*/stat; do
			{ read -r l < "$f"; } 2>/dev/null || continue
			case ${l##*) } in Z*) ;; *) c=$((c+1)) ;; esac
		done
		if test $c -gt 2; then return 0; fi
	done
	return 1
}
hit() { if test "$m" = group; then kill "-$1" -- "-$p"; else kill "-$1" -1; fi; }
printf '\n%s\n' "$t"
printf '\n%s\n' "$t" >&2
if ! cd -- "$d" 2>/dev/null; then end folder; exit 0; fi
if test -n "$u"; then umask "$u"; fi
exec 3<&0 </dev/null
if test "$m" = namespace; then
	"$@" 3<&- &
elif command -v setsid >/dev/null 2>&1; then
	setsid "$@" 3<&- &
else
	set -m
	"$@" 3<&- &
	set +m
fi
p=$!
(
	if read -r l <&3; then exit; fi
	hit TERM
	i=0
	while left && test $i -lt 10; do sleep 0.1; i=$((i+1)); done
	hit KILL
) >/dev/null 2>&1 &
w=$!
wait "$p" 2>/dev/null
s=$?
if left; then end "$s left"; else end "$s"; fi
exec >/dev/null 2>&1
while left && kill -0 "$w"; do sleep 0.5; done
if ! left; then kill -KILL "$w"; fi
wait "$w"
`

// startScript becomes the program. Shells differ about one without a name.
const startScript = `if test -z "$1"; then echo ": not found" >&2; exit 127; fi
exec "$@"`

var errScript = errors.New("the script that ran it was killed, or never began")

// job is a command that was started, until nothing of it runs.
type job struct {
	session *ssh.Session
	stdin   io.WriteCloser
	ended   chan struct{} // closed when nothing of it runs
	over    chan struct{} // closed when that is not waited for any more
	once    sync.Once
}

func newJob(s *ssh.Session) *job {
	return &job{session: s, ended: make(chan struct{}), over: make(chan struct{})}
}

// kill ends everything. It does not wait: a host that does not answer takes no
// end of file.
func (j *job) kill() {
	j.once.Do(func() {
		go j.stdin.Close()
		time.AfterFunc(endPatience, func() {
			close(j.over)
			j.session.Close()
		})
	})
}

// release tells that nothing is left to be ended.
func (j *job) release() {
	j.once.Do(func() {
		go func() {
			_, _ = io.WriteString(j.stdin, "done\n")
			j.stdin.Close()
		}()
	})
}

// gone waits for the end of everything, once it was asked for.
func (j *job) gone() {
	select {
	case <-j.ended:
	case <-j.over:
	}
}

// Run runs a command; see sandboxes.Shell.
func (m *plainMount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	none := sandboxes.Exit{Code: -1}
	line, token, err := m.commandLine(ctx, c)
	if err != nil {
		return none, m.runError(ctx, err)
	}
	select {
	case m.plain.slots <- struct{}{}:
		defer func() { <-m.plain.slots }()
	case <-ctx.Done():
		return none, ctx.Err()
	case <-m.ctx.Done():
		return none, m.runError(ctx, m.plain.endError())
	}
	exit, err := m.run(ctx, c, line, token)
	if err != nil {
		return exit, m.runError(ctx, err)
	}
	return exit, nil
}

// runError dresses an error of a command.
func (m *plainMount) runError(ctx context.Context, err error) error {
	var se *sandboxes.ShellError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &se):
		return err
	case errors.Is(err, sandboxes.ErrClosed):
		return &sandboxes.ShellError{Reason: "command ended", Err: err}
	case errors.Is(err, agent.ErrLost):
		return &sandboxes.ShellError{Reason: "command lost", Err: err}
	}
	return &sandboxes.ShellError{Reason: "command not started", Err: err}
}

// commandLine is what the login shell gets.
func (m *plainMount) commandLine(ctx context.Context, c sandboxes.Command) (line, token string, err error) {
	if c.Script != "" && len(c.Argv) > 0 {
		return "", "", &sandboxes.ShellError{Reason: "both a script and arguments given"}
	}
	if m.ctx.Err() != nil {
		return "", "", m.plain.endError()
	}
	if err := local.CheckEntries(c.Env); err != nil {
		return "", "", err
	}
	dir := m.dir
	if c.Dir != "" {
		err := m.plain.do(ctx, func() (err error) {
			dir, err = m.folder(c.Dir)
			return err
		})
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		if err != nil {
			return "", "", &sandboxes.ShellError{Reason: "working directory " + c.Dir, Err: err}
		}
	}
	argv := c.Argv
	if len(argv) == 0 {
		argv = []string{m.plain.means.shell, "-c", c.Script}
	}
	for _, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return "", "", fmt.Errorf("NUL byte in an argument")
		}
	}
	env := local.Entries(m.plain.id)
	maps.Copy(env, m.options.Set)
	maps.Copy(env, c.Env)
	words := []string{"env"}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		words = append(words, name+"="+env[name])
	}
	start := startScript
	if c.Joined {
		start = "exec 2>&1\n" + start
	}
	words = append(words, "/bin/sh", "-c", start, "sh")
	words = append(words, argv...)
	var withheld []string
	for _, name := range m.plain.means.names {
		if local.Withheld(m.options, name) {
			withheld = append(withheld, name)
		}
	}
	umask := ""
	if m.umask >= 0 {
		umask = fmt.Sprintf("%04o", m.umask)
	}
	mode := "group"
	if m.plain.means.unshare != "" {
		mode = "namespace"
	}
	token = "codework-" + rand.Text()
	words = append([]string{token, dir, umask, mode, strings.Join(withheld, " ")}, words...)
	line = shellCommand(runScript, words...)
	if mode == "namespace" {
		line = "exec " + m.plain.means.unshare + " -- " + strings.TrimPrefix(line, "exec ")
	}
	if len(line) > maxLine {
		return "", "", syscall.E2BIG
	}
	return line, token, nil
}

// run starts the command and sees it through.
func (m *plainMount) run(ctx context.Context, c sandboxes.Command, line, token string) (exit sandboxes.Exit, err error) {
	exit.Code = -1
	full, err := m.openFull(ctx, c.Full)
	if err != nil {
		return exit, err
	}
	out := &plainOutput{deliver: c.Output, full: full}
	defer out.close(&exit)
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	s, err := m.plain.session(opening)
	if err != nil {
		if ctx.Err() == nil && m.ctx.Err() != nil {
			err = m.plain.endError()
		}
		return exit, err
	}
	j := newJob(s)
	streams, err := j.start(opening, line)
	if err != nil {
		if ctx.Err() == nil && m.ctx.Err() != nil {
			err = m.plain.endError()
		}
		return exit, err
	}
	if !m.track(j) {
		j.kill()
	}
	var timedOut atomic.Bool
	if c.Timeout > 0 {
		defer time.AfterFunc(c.Timeout, func() {
			timedOut.Store(true)
			j.kill()
		}).Stop()
	}
	defer context.AfterFunc(ctx, j.kill)()

	verdict := out.copy(j, streams, token)
	early := ctx.Err() != nil || timedOut.Load() || m.ctx.Err() != nil
	if early {
		j.kill()
		j.gone()
	}
	word, left, _ := strings.Cut(verdict, " ")
	if code, e := strconv.Atoi(word); e == nil && code >= 0 && code <= 255 {
		exit.Code = code
	}
	switch {
	case timedOut.Load() && ctx.Err() == nil:
		exit.TimedOut = true
		return exit, nil
	case ctx.Err() != nil:
		return exit, ctx.Err()
	case m.ctx.Err() != nil:
		return exit, m.plain.endError()
	case word == "folder":
		j.release()
		return exit, &sandboxes.ShellError{Reason: "working directory " + c.Dir, Err: syscall.EACCES}
	case exit.Code < 0:
		j.kill()
		return exit, &sandboxes.ShellError{Reason: "command lost", Err: m.plain.cut(errScript)}
	}
	if exit.Background = left == "left"; !exit.Background {
		j.release()
	}
	return exit, nil
}

// start starts the command line; its streams must be read. After an error
// nothing of it goes on.
func (j *job) start(ctx context.Context, line string) (streams [2]io.Reader, err error) {
	if j.stdin, err = j.session.StdinPipe(); err != nil {
		return streams, err
	}
	if streams[0], err = j.session.StdoutPipe(); err != nil {
		return streams, err
	}
	if streams[1], err = j.session.StderrPipe(); err != nil {
		return streams, err
	}
	started := make(chan error, 1)
	go func() { started <- j.session.Start(line) }()
	select {
	case err = <-started:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		go func() {
			j.stdin.Close()
			j.session.Close()
		}()
		return streams, fmt.Errorf("start: %w", err)
	}
	go func() {
		_ = j.session.Wait()
		close(j.ended)
	}()
	return streams, nil
}

// plainOutput takes what a command prints.
type plainOutput struct {
	deliver func(sandboxes.Stream, []byte)
	full    *sftp.File
	total   int64
	written int64
	cut     bool
}

// openFull makes the file for the whole output in scratch.
func (m *plainMount) openFull(ctx context.Context, full string) (f *sftp.File, err error) {
	if full == "" {
		return nil, nil
	}
	name := full
	if !path.IsAbs(name) {
		name = path.Join(m.scratch, name)
	}
	if path.Dir(name) != m.scratch {
		return nil, &sandboxes.ShellError{Reason: "file for full output: not in scratch: " + full}
	}
	err = m.plain.do(ctx, func() error {
		_ = m.plain.files.Remove(name) // commands can write there, and could have left a link
		f, err = m.create(name)
		return err
	})
	if err != nil {
		return nil, &sandboxes.ShellError{Reason: "file for full output", Err: err}
	}
	return f, nil
}

func (o *plainOutput) take(stream sandboxes.Stream, b []byte) {
	o.total += int64(len(b))
	if o.full != nil && !o.cut {
		keep := b
		if room := sandboxes.FullLimit - o.written; int64(len(keep)) > room {
			keep, o.cut = keep[:room], true
		}
		n, err := o.full.Write(keep)
		o.written += int64(n)
		if err != nil { // a full disk, say: the command goes on
			o.cut = true
		}
	}
	if o.deliver != nil {
		o.deliver(stream, b)
	}
}

func (o *plainOutput) close(exit *sandboxes.Exit) {
	exit.FullBytes, exit.FullCut = o.total, o.cut
	if o.full != nil && o.full.Close() != nil {
		exit.FullCut = true
	}
}

// copy hands the output on until both streams have said how it ended, or have
// ended, or the end is not waited for any more. What comes after is dropped, since a background job would wait for it
// to be read.
func (o *plainOutput) copy(j *job, streams [2]io.Reader, token string) (verdict string) {
	type piece struct {
		stream sandboxes.Stream
		b      []byte
		last   bool
		word   string
	}
	pieces, next := make(chan piece), make(chan struct{})
	for i, r := range streams {
		stream := sandboxes.Stdout + sandboxes.Stream(i)
		go func() {
			f := newFraming(token)
			buf := make([]byte, 32<<10)
			for said := false; ; {
				n, err := r.Read(buf)
				if said {
					if err != nil {
						return
					}
					continue
				}
				b, done := f.take(buf[:n])
				if len(b) > 0 {
					select {
					case pieces <- piece{stream: stream, b: b}:
						<-next
					case <-j.over:
						said = true
					}
				}
				if (done || err != nil) && !said {
					said = true
					select {
					case pieces <- piece{stream: stream, last: true, word: f.verdict}:
					case <-j.over:
					}
				}
				if err != nil {
					return
				}
			}
		}()
	}
	for open := len(streams); open > 0; {
		var p piece
		select {
		case p = <-pieces:
		case <-j.over:
			return verdict
		}
		if p.last {
			open--
			if p.stream == sandboxes.Stdout {
				verdict = p.word
			}
			continue
		}
		o.take(p.stream, p.b)
		next <- struct{}{}
	}
	return verdict
}

// framing finds the command's output between what start files print and the
// line that says how it ended.
type framing struct {
	begin, end []byte
	held       []byte // what may be the beginning of a line of ours
	begun      bool
	noise      int
	done       bool
	verdict    string
}

func newFraming(token string) *framing {
	return &framing{begin: []byte("\n" + token + "\n"), end: []byte("\n" + token + " "), held: []byte("\n")}
}

// maxVerdict bounds what follows the token in the last line.
const maxVerdict = 64

// take gives what of the bytes is output, and whether the end was seen. What it
// gives is valid until the next call.
func (f *framing) take(b []byte) (out []byte, done bool) {
	f.held = append(f.held, b...)
	if !f.begun {
		i := bytes.Index(f.held, f.begin)
		if i < 0 {
			if f.noise += len(b); f.noise > maxNoise {
				f.done = true
				return nil, true
			}
			f.held = f.held[max(0, len(f.held)-len(f.begin)+1):]
			return nil, f.done
		}
		f.begun = true
		f.held = f.held[i+len(f.begin):]
	}
	if i := bytes.Index(f.held, f.end); i >= 0 {
		out, rest := f.held[:i], f.held[i+len(f.end):]
		if j := bytes.IndexByte(rest, '\n'); j >= 0 {
			f.done, f.verdict = true, string(rest[:j])
		} else if len(rest) > maxVerdict {
			f.done = true
		}
		f.held = bytes.Clone(f.held[i:])
		if f.done {
			f.held = nil
		}
		return out, f.done
	}
	keep := suffix(f.held, f.end)
	out = f.held[:len(f.held)-keep]
	f.held = bytes.Clone(f.held[len(f.held)-keep:])
	return out, false
}

// suffix is how long an end of b is that begins what.
func suffix(b, what []byte) int {
	for n := min(len(b), len(what)-1); n > 0; n-- {
		if bytes.HasPrefix(what, b[len(b)-n:]) {
			return n
		}
	}
	return 0
}
