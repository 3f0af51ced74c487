package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// process is a program that a test started and has not waited for.
type process struct {
	cmd      *exec.Cmd
	out, err buffer
	done     chan struct{} // closed when it has ended
	waitErr  error         // valid then
	terminal *os.File      // of one started in a terminal: our side of it
	input    *os.File      // the end that keeps its standard input open
}

// buffer collects output while it is read.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// pipeGrace is how long output may stay open behind a process that has ended:
// somebody it started holds it, which is a fault.
const pipeGrace = 5 * time.Second

// start is how a process begins.
type start struct {
	dir, argv0 string
	args, env  []string
	terminal   bool // its streams are a terminal that it controls
	openInput  bool // standard input is a pipe that nobody writes to or closes
}

func launch(s start) (*process, error) {
	p := &process{done: make(chan struct{})}
	p.cmd = exec.Command(s.argv0, s.args...)
	p.cmd.Dir, p.cmd.Env = s.dir, s.env
	p.cmd.WaitDelay = pipeGrace
	copied := make(chan struct{})
	var theirs *os.File // ends of the program that are not ours to keep
	switch {
	case s.terminal:
		ours, tty, err := pty.Open()
		if err != nil {
			return nil, err
		}
		theirs = tty
		if p.terminal, err = unblocked(ours); err != nil {
			tty.Close()
			return nil, err
		}
		p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = tty, tty, tty
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		go func() { defer close(copied); _, _ = io.Copy(&p.out, p.terminal) }() // an error is its end
	default:
		close(copied)
		p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
		if s.openInput {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			p.input, theirs = w, r
			p.cmd.Stdin = r
		}
	}
	err := p.cmd.Start()
	if theirs != nil {
		theirs.Close()
	}
	if err != nil {
		p.closeOurs()
		return nil, err
	}
	go func() {
		p.waitErr = p.cmd.Wait()
		if s.terminal {
			select { // what it printed last
			case <-copied:
			case <-time.After(pipeGrace):
			}
		}
		close(p.done)
	}()
	return p, nil
}

// unblocked is the same file in a form whose Close ends a read that waits:
// otherwise the terminal would stay open as long as somebody listens to it.
func unblocked(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (p *process) closeOurs() {
	if p.terminal != nil {
		p.terminal.Close()
	}
	if p.input != nil {
		p.input.Close()
	}
}

// finish waits for the end of the process and returns its exit code, in the
// words of a shell: 128 and the signal when one ended it.
func (p *process) finish(limit time.Duration) (int, error) {
	select {
	case <-p.done:
	case <-time.After(limit):
		return 0, fmt.Errorf("it still runs after %s", limit)
	}
	p.closeOurs()
	if errors.Is(p.waitErr, exec.ErrWaitDelay) {
		return 0, errors.New("it ended, but something that it started holds its output open")
	}
	var exit *exec.ExitError
	switch {
	case p.waitErr == nil:
		return 0, nil
	case !errors.As(p.waitErr, &exit):
		return 0, p.waitErr
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// running is a live process that belongs to a test.
type running struct {
	pid     int
	command string
}

func (r running) String() string { return strconv.Itoa(r.pid) + " " + r.command }

// processesOf finds the live processes that belong to the folder: it stands in
// their command line or environment, they work in it, or their program lies in
// it.
func processesOf(dir string) []running {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []running{{0, "cannot look for processes: " + err.Error()}}
	}
	var out []running
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process that ends meanwhile has nothing to read.
		root := filepath.Join("/proc", e.Name())
		line, _ := os.ReadFile(filepath.Join(root, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(root, "environ"))
		cwd, _ := os.Readlink(filepath.Join(root, "cwd"))
		exe, _ := os.Readlink(filepath.Join(root, "exe"))
		if !mentions(string(line), dir) && !mentions(string(env), dir) && !mentions(cwd, dir) && !mentions(exe, dir) {
			continue
		}
		if len(line) == 0 {
			continue // a zombie, or the kernel's
		}
		out = append(out, running{pid, strings.TrimRight(strings.ReplaceAll(string(line), "\x00", " "), " ")})
	}
	return out
}

// mentions finds dir in text as a whole path or the beginning of one.
func mentions(text, dir string) bool {
	for {
		i := strings.Index(text, dir)
		if i < 0 {
			return false
		}
		text = text[i+len(dir):]
		if text == "" || strings.ContainsRune("/\x00:\" \n", rune(text[0])) {
			return true
		}
	}
}

// patience is how often something is looked at that cannot tell by itself that
// it has changed.
const patience = 5 * time.Millisecond

// until polls a condition, which tells what is still wrong or nothing.
func until(limit time.Duration, wrong func() string) error {
	deadline := time.Now().Add(limit)
	for {
		what := wrong()
		if what == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s %s", limit, what)
		}
		time.Sleep(patience)
	}
}
