package daytona

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"codework/sandboxes"
	"codework/sandboxes/local"
)

// markVariable is in the environment of every process of a command.
const markVariable = "CODEWORK_CALL"

// markedScript defines what lists the processes that carry the mark $m. It looks
// at all in one go, with lines in place of NUL bytes, which the grep of busybox
// takes for an end.
const markedScript = `
marked() {
	tail -v -c +1 /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' |
		sed -n -e '/^==> \/proc\/[0-9]*\/environ <==$/h' -e "/$m/{g;s|^==> /proc/\([0-9]*\)/.*|\1|p;}"
}
`

// runScript takes a token, the folder, the umask or "", the mark, names of
// variables that are not passed on, and what to run. Lines with the token end
// the output. What a pipeline or a subshell leaves behind may take a moment to
// go, and a process that forks while the others are looked at may be missed: so
// what is left is looked for several times.
const runScript = markedScript + `
t=$1 d=$2 u=$3 m=$4 n=$5
shift 5
end() { printf '\n%s %s\n' "$t" "$1" >&2; printf '\n%s %s\n' "$t" "$1"; }
case $d in
*/.. | */../*) cd -P "$d" 2>/dev/null ;;
*) cd "$d" 2>/dev/null ;;
esac || {
	if ! test -e "$d"; then end missing
	elif ! test -d "$d"; then end notdir
	else end perm
	fi
	exit
}
unset BASH_ENV ENV OLDPWD $n
test -z "$u" || umask "$u"
"$@" </dev/null
s=$?
i=0 none=0
while test $i -lt 5 && test $none -lt 2; do
	if test -n "$(marked)"; then
		none=0 i=$((i+1))
		sleep 0.02
	else
		none=$((none+1))
	fi
done
if test $none -lt 2; then end "$s left"; else end "$s"; fi
`

// startScript becomes the program. Shells differ about one without a name.
const startScript = `if test -z "$1"; then echo ": not found" >&2; exit 127; fi
exec "$@"`

// killScript takes a mark. It gives what carries it a second to end, and then
// kills until nothing is left, several times in a row: a process that forks may
// be missed once.
const killScript = markedScript + `
m=$1
p=$(marked)
test -z "$p" || kill -TERM $p
i=0
while test $i -lt 10 && test -n "$(marked)"; do sleep 0.1; i=$((i+1)); done
i=0 none=0
while test $i -lt 100; do
	p=$(marked)
	if test -z "$p"; then
		none=$((none+1))
		test $none -lt 3 || exit 0
	else
		none=0
		kill -KILL $p
	fi
	i=$((i+1))
done
fail "other processes do not end"
`

var (
	errTimedOut = errors.New("time limit")
	errCutOff   = errors.New("the connection to its output was lost")
)

// command is one that was checked.
type command struct {
	sandboxes.Command
	line  string // for the session's shell
	token string
	mark  string
}

// Run runs a command; see sandboxes.Shell.
func (m *mount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	none := sandboxes.Exit{Code: -1}
	m.mu.Lock()
	closed := m.ctx.Err() != nil
	if !closed {
		m.runs.Add(1)
		m.ran = true
	}
	m.mu.Unlock()
	if closed {
		return none, m.runError(ctx, sandboxes.ErrClosed)
	}
	defer m.runs.Done()
	checked, err := m.check(c)
	if err != nil {
		return none, m.runError(ctx, err)
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return none, ctx.Err()
	case <-m.ctx.Done():
		return none, m.runError(ctx, sandboxes.ErrClosed)
	}
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	exit, err := m.run(ctx, checked)
	if err != nil {
		return exit, m.runError(ctx, err)
	}
	return exit, nil
}

// runError dresses an error of a command.
func (m *mount) runError(ctx context.Context, err error) error {
	var se *sandboxes.ShellError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &se):
		return err
	case m.ctx.Err() != nil:
		return &sandboxes.ShellError{Reason: "command ended", Err: sandboxes.ErrClosed}
	}
	return &sandboxes.ShellError{Reason: "command not started", Err: err}
}

// check makes the line for the session's shell. The script of a command is an
// argument in it, and so is every other word.
func (m *mount) check(c sandboxes.Command) (command, error) {
	none := command{}
	if c.Script != "" && len(c.Argv) > 0 {
		return none, errors.New("both a script and arguments given")
	}
	if err := local.CheckEntries(c.Env); err != nil {
		return none, err
	}
	dir := m.dir
	if c.Dir != "" {
		abs, err := absolute(m.dir, c.Dir)
		if err != nil {
			return none, &sandboxes.ShellError{Reason: "working directory " + c.Dir, Err: err}
		}
		if dir = abs; !slices.Contains(strings.Split(abs, "/"), "..") {
			dir = path.Clean(abs)
		}
	}
	if c.Full != "" {
		name := c.Full
		if !path.IsAbs(name) {
			name = path.Join(m.scratch, name)
		}
		if path.Dir(name) != m.scratch {
			return none, &sandboxes.ShellError{Reason: "file for full output: not in scratch: " + c.Full}
		}
		c.Full = name
	}
	argv := c.Argv
	if len(argv) == 0 {
		argv = []string{m.shell, "-c", c.Script}
	}
	out := command{Command: c, token: "codework-" + rand.Text(), mark: m.mark + "." + rand.Text()}
	env := local.Entries(m.id)
	maps.Copy(env, m.options.Set)
	maps.Copy(env, c.Env)
	env[markVariable] = out.mark
	withheld := []string{markVariable}
	for _, name := range m.names {
		if local.Withheld(m.options, name) {
			withheld = append(withheld, name)
		}
	}
	start := startScript
	if c.Joined {
		start = "exec 2>&1\n" + start
	}
	words := []string{"/bin/sh", "-c", runScript, "sh", out.token, dir, m.umask, markVariable + "=" + out.mark, strings.Join(withheld, " "), "env"}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		words = append(words, name+"="+env[name])
	}
	words = append(words, "/bin/sh", "-c", start, "sh")
	words = append(words, argv...)
	for _, w := range words {
		if strings.IndexByte(w, 0) >= 0 {
			return none, errors.New("NUL byte in an argument")
		}
		if len(w) >= maxArgument {
			return none, syscall.E2BIG
		}
	}
	out.line = quoteAll(words)
	return out, nil
}

// run starts the command and sees it through.
func (m *mount) run(caller context.Context, c command) (exit sandboxes.Exit, err error) {
	exit.Code = -1
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(sandboxes.ErrClosed) })()
	if c.Timeout > 0 {
		defer time.AfterFunc(c.Timeout, func() { cancel(errTimedOut) }).Stop()
	}
	out := &output{deliver: c.Output, keep: c.Full != ""}
	defer out.drop()

	session := "codework-" + rand.Text()
	verdict, begun, err := m.follow(ctx, session, c, out)
	word, left, _ := strings.Cut(verdict, " ")
	if code, e := strconv.Atoi(word); e == nil && code >= 0 && code <= 255 {
		exit.Code = code
	}
	ended := ctx.Err() != nil || exit.Code < 0 && causes[word] == nil
	switch {
	case begun && ended:
		if e := m.kill(markVariable + "=" + c.mark); e != nil {
			m.log.Warn("processes of a command may be left in a sandbox", "sandbox", m.id, "err", e)
		}
		m.drop(session)
	case begun && left == "left":
		exit.Background = true
		m.mu.Lock()
		m.left[session] = true
		m.mu.Unlock()
	case begun:
		m.drop(session)
	}
	exit.FullBytes = out.total
	if c.Full != "" {
		exit.FullCut = m.keepFull(caller, c.Full, out) != nil || out.total > sandboxes.FullLimit
	}
	switch {
	case caller.Err() != nil:
		exit.Background = false
		return exit, caller.Err()
	case errors.Is(context.Cause(ctx), errTimedOut):
		exit.TimedOut, exit.Code = true, -1
		return exit, nil
	case ctx.Err() != nil:
		return exit, sandboxes.ErrClosed
	case err != nil && begun:
		return exit, &sandboxes.ShellError{Reason: "command lost", Err: err}
	case err != nil:
		return exit, err
	case exit.Code < 0 && causes[word] != nil:
		return exit, &sandboxes.ShellError{Reason: "working directory " + c.Dir, Err: causes[word]}
	case exit.Code < 0:
		return exit, &sandboxes.ShellError{Reason: "command lost", Err: fmt.Errorf("it says that it ended with %q", verdict)}
	}
	return exit, nil
}

// follow starts the command in a session and hands on what it prints, until it
// says how it ended. begun tells that something may run, or a session be there.
func (m *mount) follow(ctx context.Context, session string, c command, out *output) (verdict string, begun bool, err error) {
	calls := m.client
	err = calls.call(ctx, once, http.MethodPost, m.tool("process", "session"), map[string]any{"sessionId": session}, nil)
	if err != nil {
		return "", unknown(err), fmt.Errorf("make a session: %w", m.lostBy(ctx, err))
	}
	var answer struct {
		ID string `json:"cmdId"`
	}
	in := map[string]any{"command": c.line, "runAsync": true, "async": true}
	if err := calls.call(ctx, once, http.MethodPost, m.tool("process", "session", session, "exec"), in, &answer); err != nil {
		return "", true, fmt.Errorf("start: %w", m.lostBy(ctx, err))
	}
	if answer.ID == "" {
		return "", true, errors.New("start: Daytona's answer names no command")
	}
	record := m.tool("process", "session", session, "command", answer.ID)
	verdict, err = m.read(ctx, record, c.token, out)
	if err == nil || ctx.Err() != nil {
		return verdict, true, err
	}
	// Who ended the script and not its session may still be told.
	if done, code := m.recorded(ctx, record); done && errors.Is(err, io.EOF) && code != 0 {
		return strconv.Itoa(code), true, nil
	}
	if errors.Is(err, io.EOF) {
		err = errCutOff
	}
	return "", true, m.lostBy(ctx, err)
}

// unknown tells whether a call may have been done although it failed.
func unknown(err error) bool {
	var e *Error
	return !errors.As(err, &e) || e.Status >= 500 || e.Status < 300
}

// recorded asks how a command ended. done is false as long as nobody knows.
func (m *mount) recorded(ctx context.Context, record string) (done bool, code int) {
	var answer struct {
		Code *int `json:"exitCode"`
	}
	if err := m.client.call(ctx, mayTry, http.MethodGet, record, nil, &answer); err != nil || answer.Code == nil {
		return false, 0
	}
	return true, *answer.Code
}

// read follows the command's log. io.EOF means that it ended in an orderly way
// without saying how the command did.
func (m *mount) read(ctx context.Context, record, token string, out *output) (verdict string, err error) {
	var conn *websocket.Conn
	err = m.client.again(ctx, mayTry, func() (err error) {
		conn, err = m.client.dial(ctx, record+"/logs?follow=true")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("follow its output: %w", err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1) // messages are read in pieces
	ctx, cancel := context.WithCancelCause(ctx)
	watch := m.watch(ctx, cancel, conn, record)
	defer func() {
		cancel(nil)
		watch.ended.Wait()
	}()
	var log demux
	ends := map[sandboxes.Stream]*ending{sandboxes.Stdout: newEnding(token), sandboxes.Stderr: newEnding(token)}
	buf := make([]byte, 64<<10)
	for {
		watch.wait(true)
		_, message, err := conn.Reader(ctx)
		for err == nil {
			var n int
			watch.wait(true)
			n, err = message.Read(buf)
			watch.wait(false)
			log.take(buf[:n], func(s sandboxes.Stream, b []byte) {
				if b := ends[s].take(b); len(b) > 0 {
					out.take(s, b)
				}
			})
			if ends[sandboxes.Stdout].done && ends[sandboxes.Stderr].done {
				return ends[sandboxes.Stdout].verdict, nil
			}
		}
		if err == io.EOF { // of the message
			continue
		}
		for _, stream := range []sandboxes.Stream{sandboxes.Stdout, sandboxes.Stderr} {
			if b := ends[stream].rest(); len(b) > 0 {
				out.take(stream, b)
			}
		}
		switch {
		case errors.Is(context.Cause(ctx), errIdle):
			return "", errIdle
		case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
			return "", io.EOF
		}
		return "", fmt.Errorf("%w: %w", errCutOff, m.client.hide(err))
	}
}

// dial opens a websocket.
func (c *client) dial(ctx context.Context, url string) (*websocket.Conn, error) {
	// The limit is for the handshake only: afterwards the context does not count
	// any more.
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	h := http.Header{}
	c.sign(h)
	conn, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: h})
	if err == nil {
		return conn, nil
	}
	if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, c.failure(resp)
	}
	return nil, c.hide(err)
}

// watch ends a stream that is silent for too long. Pings keep it alive, and a
// command that is still running may be silent for as long as it likes.
type watch struct {
	reading atomic.Bool // false while a slow consumer holds us up
	last    atomic.Int64
	ended   sync.WaitGroup
}

func (w *watch) wait(reading bool) {
	w.last.Store(time.Now().UnixNano())
	w.reading.Store(reading)
}

func (m *mount) watch(ctx context.Context, cancel context.CancelCauseFunc, conn *websocket.Conn, record string) *watch {
	w := &watch{}
	w.wait(true)
	w.ended.Go(func() {
		tick := time.NewTicker(m.idle / 4)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !w.reading.Load() {
				continue
			}
			if time.Since(time.Unix(0, w.last.Load())) >= m.idle {
				if done, _ := m.recorded(ctx, record); done {
					cancel(errIdle)
					return
				}
				w.last.Store(time.Now().UnixNano())
			}
			ping, stop := context.WithTimeout(ctx, m.idle/4)
			_ = conn.Ping(ping) // it keeps the way open; what is dead is found by the record
			stop()
		}
	})
	return w
}

// kill ends all processes that carry a mark. It returns within endLimit, but
// what takes longer goes on.
func (m *mount) kill(mark string) error {
	done := make(chan error, 1)
	m.beside(func(ctx context.Context) {
		_, err := m.script(ctx, mayTry, killScript, mark)
		done <- err
	})
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return errors.New("the service did not say in time that the processes have ended")
	}
}

// drop deletes a session, whose shell ends with it. Nobody waits for that.
func (m *mount) drop(session string) {
	m.beside(func(ctx context.Context) {
		err := m.client.call(ctx, mayTry, http.MethodDelete, m.tool("process", "session", session), nil, nil)
		if err != nil && !isStatus(err, http.StatusNotFound) && !m.isLost() {
			m.log.Debug("a session stays in a sandbox", "sandbox", m.id, "err", err)
		}
	})
}

// beside does something that nobody waits for but the sandbox's end.
func (m *mount) beside(what func(context.Context)) {
	m.aside.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), asideLimit)
		defer cancel()
		what(ctx)
	})
}

// output takes what a command prints.
type output struct {
	deliver func(sandboxes.Stream, []byte)
	keep    bool
	total   int64
	head    bytes.Buffer // the whole of it, as long as it is short
	spool   *os.File     // then a file that has no name
	err     error
}

// take hands output on, and keeps it up to the limit.
func (o *output) take(s sandboxes.Stream, b []byte) {
	room := max(0, sandboxes.FullLimit-o.total)
	o.total += int64(len(b))
	if o.keep && o.err == nil {
		o.err = o.write(b[:min(int64(len(b)), room)])
	}
	if o.deliver != nil {
		o.deliver(s, b)
	}
}

func (o *output) write(b []byte) error {
	if o.spool == nil && o.head.Len()+len(b) <= inlineWrite {
		_, err := o.head.Write(b)
		return err
	}
	if o.spool == nil {
		f, err := os.CreateTemp("", "codework-output-*")
		if err != nil {
			return err
		}
		o.spool = f
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
		if _, err := f.Write(o.head.Bytes()); err != nil {
			return err
		}
		o.head.Reset()
	}
	_, err := o.spool.Write(b)
	return err
}

func (o *output) drop() {
	if o.spool != nil {
		o.spool.Close()
	}
}

// keepFull puts the whole output into scratch.
func (m *mount) keepFull(ctx context.Context, name string, o *output) error {
	err := o.err
	if err == nil {
		from, size := io.Reader(&o.head), int64(o.head.Len())
		if o.spool != nil {
			size = min(o.total, sandboxes.FullLimit)
			from = io.NewSectionReader(o.spool, 0, size)
		}
		err = m.fileOp(ctx, "write", name, func(ctx context.Context, abs string) error { return m.store(ctx, abs, from, size) })
	}
	if err != nil {
		m.log.Warn("the full output of a command is not kept", "sandbox", m.id, "err", err)
	}
	return err
}
