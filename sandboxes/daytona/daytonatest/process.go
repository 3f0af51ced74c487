//go:build linux

package daytonatest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

// sandboxVariable is in the environment of all that runs in a sandbox: it is
// how they are found when it stops, as if it were a machine.
const sandboxVariable = "DAYTONA_SANDBOX_ID"

const (
	// ahead is how far a log may run ahead of who follows it.
	ahead = 4 << 20
	// executeLimit is what a plain command may take that names no limit.
	executeLimit = 6 * time.Minute
)

// environment is what commands of a sandbox start with; nothing of the test's
// own but the path of programs.
func (b *sandbox) environment() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "TMPDIR=" + filepath.Join(b.dir, "tmp"), "USER=daytona", sandboxVariable + "=" + b.ID}
	for name, value := range b.Env {
		env = append(env, name+"="+value)
	}
	return env
}

// killMarked kills what has the entry in its environment until there is
// nothing.
func killMarked(entry string) {
	for none := 0; none < 2; {
		none++
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			env, err := os.ReadFile(dir + "/environ")
			if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+entry+"\x00")) {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				none = 0
			}
		}
	}
}

// execute runs a command by the shell and answers with both streams in one.
func (s *Server) execute(w http.ResponseWriter, r *http.Request, b *sandbox) {
	var in struct {
		Command string            `json:"command"`
		Cwd     string            `json:"cwd"`
		Envs    map[string]string `json:"envs"`
		Timeout int               `json:"timeout"`
	}
	if !take(w, r, &in) {
		return
	}
	limit := executeLimit
	if in.Timeout > 0 {
		limit = time.Duration(in.Timeout) * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit) // a client that goes away ends nothing
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", in.Command)
	cmd.Dir, cmd.Env = b.within(in.Cwd), b.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for name, value := range in.Envs {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		refuse(w, r, http.StatusRequestTimeout, "command execution timeout")
	case err != nil && !errors.As(err, &exit):
		refuse(w, r, http.StatusBadRequest, err.Error())
	default:
		reply(w, http.StatusOK, map[string]any{"exitCode": cmd.ProcessState.ExitCode(), "result": string(out)})
	}
}

// session is a shell's worth of commands. Each has a shell of its own here, so
// that nothing of one is seen by the next.
type session struct {
	sandbox *sandbox
	dir     string // with the logs
	running sync.WaitGroup

	mu       sync.Mutex // guards the following
	commands map[string]*command
	ended    bool
}

// command is one that was started in a session.
type command struct {
	text string
	log  *log
	cmd  *exec.Cmd

	mu   sync.Mutex // guards code
	code *int
}

func (c *command) exitCode() *int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.code
}

func (s *Server) newSession(w http.ResponseWriter, r *http.Request, b *sandbox) {
	var in struct {
		ID string `json:"sessionId"`
	}
	if !take(w, r, &in) {
		return
	}
	dir := filepath.Join(s.root, "sessions", newID())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		refuse(w, r, http.StatusInternalServerError, err.Error())
		return
	}
	s.mu.Lock()
	_, there := b.sessions[in.ID]
	if !there {
		b.sessions[in.ID] = &session{sandbox: b, dir: dir, commands: map[string]*command{}}
	}
	s.mu.Unlock()
	if there || in.ID == "" {
		refuse(w, r, http.StatusConflict, "session already exists")
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (s *Server) inSession(do func(http.ResponseWriter, *http.Request, *session)) http.HandlerFunc {
	return s.inSandbox(func(w http.ResponseWriter, r *http.Request, b *sandbox) {
		s.mu.Lock()
		x := b.sessions[r.PathValue("sid")]
		s.mu.Unlock()
		if x == nil {
			refuse(w, r, http.StatusNotFound, "session not found")
			return
		}
		do(w, r, x)
	})
}

func (s *Server) deleteSession(w http.ResponseWriter, r *http.Request, x *session) {
	s.mu.Lock()
	delete(x.sandbox.sessions, r.PathValue("sid"))
	s.mu.Unlock()
	x.end()
	w.WriteHeader(http.StatusNoContent)
}

// end kills the groups of a session's commands. What left its group lives on.
func (x *session) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	for _, c := range x.commands {
		if c.exitCode() == nil {
			_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // or it has just ended
		}
		c.log.end()
	}
	_ = os.RemoveAll(x.dir) // who has a log open still reads it
}

func (s *Server) sessionExec(w http.ResponseWriter, r *http.Request, x *session) {
	var in struct {
		Command  string `json:"command"`
		RunAsync bool   `json:"runAsync"`
		Async    bool   `json:"async"`
	}
	if !take(w, r, &in) {
		return
	}
	id := newID()
	c, err := x.start(id, in.Command)
	if err != nil {
		refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	if in.RunAsync || in.Async {
		reply(w, http.StatusAccepted, map[string]any{"cmdId": id})
		return
	}
	c.log.wait()
	out, _ := c.log.streams()
	reply(w, http.StatusOK, map[string]any{"cmdId": id, "output": out[0] + out[1], "stdout": out[0], "stderr": out[1], "exitCode": c.exitCode()})
}

// start starts a command whose input stays open and never has a byte.
func (x *session) start(id, text string) (*command, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil, errors.New("session not found")
	}
	file := filepath.Join(x.dir, id)
	if err := os.WriteFile(file+".sh", []byte(text), 0o600); err != nil {
		return nil, err
	}
	log, err := newLog(file + ".log")
	if err != nil {
		return nil, err
	}
	c := &command{text: text, log: log, cmd: exec.Command("sh", file+".sh")}
	c.cmd.Dir, c.cmd.Env = x.sandbox.dir, x.sandbox.environment()
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipes := [3][2]*os.File{} // read, write
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = pipes[0][0], pipes[1][1], pipes[2][1]
	err = c.cmd.Start()
	for _, f := range []*os.File{pipes[0][0], pipes[1][1], pipes[2][1]} {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	x.commands[id] = c
	var labelled sync.WaitGroup
	for i, r := range []*os.File{pipes[1][0], pipes[2][0]} {
		labelled.Go(func() {
			defer r.Close()
			log.label(byte(i+1), r)
		})
	}
	x.running.Go(func() {
		_ = c.cmd.Wait() // the state has it
		pipes[0][1].Close()
		// Only when nobody holds the output open any more, as the daemon does it.
		labelled.Wait()
		status := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
		code := status.ExitStatus()
		if status.Signaled() {
			code = 128 + int(status.Signal())
		}
		c.mu.Lock()
		c.code = &code
		c.mu.Unlock()
		log.end()
	})
	return c, nil
}

func (x *session) find(w http.ResponseWriter, r *http.Request) *command {
	x.mu.Lock()
	c := x.commands[r.PathValue("cid")]
	x.mu.Unlock()
	if c == nil {
		refuse(w, r, http.StatusNotFound, "command not found")
	}
	return c
}

func (s *Server) command(w http.ResponseWriter, r *http.Request, x *session) {
	c := x.find(w, r)
	if c == nil {
		return
	}
	answer := map[string]any{"id": r.PathValue("cid"), "command": c.text}
	if code := c.exitCode(); code != nil {
		answer["exitCode"] = *code
	}
	reply(w, http.StatusOK, answer)
}

// logs gives a command's log, or follows it over a websocket.
func (s *Server) logs(w http.ResponseWriter, r *http.Request, x *session) {
	c := x.find(w, r)
	if c == nil {
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		out, err := c.log.streams()
		if err != nil {
			refuse(w, r, http.StatusInternalServerError, err.Error())
			return
		}
		reply(w, http.StatusOK, map[string]any{"output": out[0] + out[1], "stdout": out[0], "stderr": out[1]})
		return
	}
	conn, err := upgrade(w, r)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	ctx := conn.CloseRead(r.Context())
	stop := context.AfterFunc(ctx, c.log.wake)
	defer stop()
	err = c.log.follow(ctx, func(b []byte) error { return conn.Write(ctx, websocket.MessageBinary, b) })
	if err == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // a client that went away
	}
}

// log is a file of what a command printed: whole lines, each piece with three
// bytes of the stream's number before it.
type log struct {
	file string

	mu      sync.Mutex // guards the following
	changed *sync.Cond
	f       *os.File
	size    int64
	read    int64 // by the fastest follower; -1 is none
	ended   bool
}

func newLog(file string) (*log, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	l := &log{file: file, f: f, read: -1}
	l.changed = sync.NewCond(&l.mu)
	return l, nil
}

func (l *log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.f.Close()
	l.changed.Broadcast()
}

func (l *log) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed.Broadcast()
}

func (l *log) wait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended {
		l.changed.Wait()
	}
}

// add appends, and waits for a follower that is far behind.
func (l *log) add(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended && l.read >= 0 && l.size-l.read > ahead {
		l.changed.Wait()
	}
	if l.ended {
		return
	}
	n, _ := l.f.Write(b) // a full disk loses output, as it does there
	l.size += int64(n)
	l.changed.Broadcast()
}

// label appends a stream's whole lines to the log.
func (l *log) label(stream byte, r io.Reader) {
	mark := []byte{stream, stream, stream}
	var part []byte // of a line
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		part = append(part, buf[:n]...)
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			l.add(append(bytes.Clone(mark), part[:i+1]...))
			part = append(part[:0], part[i+1:]...)
		}
		if err != nil {
			break
		}
	}
	if len(part) > 0 {
		l.add(append(append(bytes.Clone(mark), part...), '\n'))
	}
}

// follow hands the log on as it grows, to its end.
func (l *log) follow(ctx context.Context, send func([]byte) error) error {
	f, err := os.Open(l.file)
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() {
		l.mu.Lock()
		l.read = -1
		l.changed.Broadcast()
		l.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for at := int64(0); ; {
		l.mu.Lock()
		for l.read = at; !l.ended && l.size == at && ctx.Err() == nil; {
			l.changed.Wait()
		}
		over := l.size == at
		l.changed.Broadcast()
		l.mu.Unlock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if over {
			return nil
		}
		n, err := f.Read(buf)
		at += int64(n)
		if err == nil {
			err = send(buf[:n])
		}
		if err != nil {
			return err
		}
	}
}

// streams are the two streams of the log.
func (l *log) streams() (out [2]string, err error) {
	b, err := os.ReadFile(l.file)
	if err != nil {
		return out, err
	}
	current := 0
	for len(b) > 0 {
		switch {
		case bytes.HasPrefix(b, []byte{1, 1, 1}):
			current, b = 0, b[3:]
		case bytes.HasPrefix(b, []byte{2, 2, 2}):
			current, b = 1, b[3:]
		}
		line, rest, found := bytes.Cut(b, []byte("\n"))
		out[current] += string(line)
		if found {
			out[current] += "\n"
		}
		b = rest
	}
	return out, nil
}

// End is how a stream ends.
type End int

// The ends of streams.
const (
	Orderly End = iota // as the service ends it
	Cut                // the connection goes
	Silent             // not before the follower goes
)

// Streamed is an answer to who follows a log: these bytes, and then an end.
func Streamed(b []byte, end End) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrade(w, r)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		if conn.Write(r.Context(), websocket.MessageBinary, b) != nil {
			return // it went
		}
		switch end {
		case Orderly:
			_ = conn.Close(websocket.StatusNormalClosure, "") // it went
		case Silent:
			<-conn.CloseRead(r.Context()).Done()
		}
	}
}
