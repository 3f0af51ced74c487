package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"codework/sandboxes"
	"codework/sandboxes/supervisor"
)

// Exit codes of a command whose program cannot be run, as shells have them.
const (
	codeNotFound      = 127
	codeNotExecutable = 126
)

// lastBreath is what processes get to vanish that have closed the output but
// are still there: most are just ending, and no background job to speak of.
const lastBreath = 10 * time.Millisecond

var errTimeout = errors.New("time limit")

// What became of a command.
const (
	running int32 = iota
	exited        // by itself
	killed        // by its context, its time limit or the end of the mount
)

// Run runs a command; see sandboxes.Shell. The time that a command waits for
// one of the sandbox's slots does not count against its time limit.
func (m *mount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	none := sandboxes.Exit{Code: -1}
	if err := m.begin(ctx); err != nil {
		return none, m.endError(ctx)
	}
	defer m.runs.Done()
	job, err := m.job(c)
	if err != nil {
		if code, text := unrunnable(err); code != 0 {
			out := output{deliver: c.Output}
			if err := out.open(m, c.Full); err != nil {
				return none, err
			}
			out.take(sandboxes.Stderr, []byte(text))
			exit := sandboxes.Exit{Code: code}
			out.close(&exit)
			return exit, nil
		}
		return none, err
	}
	select {
	case m.sandbox.slots <- struct{}{}:
		defer func() { <-m.sandbox.slots }()
	case <-ctx.Done():
		return none, m.endError(ctx)
	case <-m.ctx.Done():
		return none, m.endError(ctx)
	}
	return m.run(ctx, c, job)
}

// endError is why a command was ended early: the caller's context, or the end
// of the mount.
func (m *mount) endError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return &sandboxes.ShellError{Reason: "command ended", Err: sandboxes.ErrClosed}
}

func (m *mount) run(ctx context.Context, c sandboxes.Command, job supervisor.Job) (exit sandboxes.Exit, err error) {
	exit.Code = -1
	out := output{deliver: c.Output}
	if err := out.open(m, c.Full); err != nil {
		return exit, err
	}
	defer func() { out.close(&exit) }()

	kept := int64(0)
	if c.Full != "" {
		kept = sandboxes.FullLimit
	}
	pipes, err := openPipes(&job, c.Joined, kept)
	if err != nil {
		return exit, &sandboxes.ShellError{Reason: "make pipe", Err: err}
	}
	p, err := m.sandbox.host.Start(job)
	pipes.closeFar()
	if err != nil {
		pipes.close()
		if errors.Is(err, supervisor.ErrClosed) {
			err = sandboxes.ErrClosed
		}
		return exit, &sandboxes.ShellError{Reason: "command not started", Err: err}
	}
	m.track(p)

	// The end is watched beside the output, whose consumer may be slow.
	limit, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.Timeout > 0 {
		timer := time.AfterFunc(c.Timeout, func() { cancel(errTimeout) })
		defer timer.Stop()
	}
	defer context.AfterFunc(m.ctx, func() { cancel(sandboxes.ErrClosed) })()
	var fate atomic.Int32
	defer context.AfterFunc(limit, func() {
		if fate.CompareAndSwap(running, killed) {
			p.Kill()
		}
	})()

	pipes.read()
	eof := pipes.deliver(p.Exited(), out.take, func() {
		// When it ended by itself, what it left behind stays. Closing the mount
		// kills it, too, and may be faster than the watch above.
		if m.ctx.Err() != nil {
			fate.CompareAndSwap(running, killed)
		}
		if _, err := p.Result(); err != nil || !fate.CompareAndSwap(running, exited) {
			<-p.Gone()
		}
	})
	exit.Background = !gone(p, eof)
	if exit.Background {
		pipes.discard(p.Gone())
	} else {
		pipes.close()
	}

	status, err := p.Result()
	if err == nil {
		exit.Code, exit.Signal = status.Code, status.Signal
	}
	var se *supervisor.StartError
	if errors.As(err, &se) {
		code, text := unrunnable(err)
		switch {
		case code != 0:
			out.take(sandboxes.Stderr, []byte(text))
			exit.Code = code
			return exit, nil
		case se.Dir:
			return exit, dirError(job.Dir, se.Err)
		}
		return exit, &sandboxes.ShellError{Reason: "command not started", Err: err}
	}
	if fate.Load() == killed {
		if context.Cause(limit) == errTimeout {
			exit.TimedOut = true
			return exit, nil
		}
		return exit, m.endError(ctx)
	}
	if err != nil {
		return exit, &sandboxes.ShellError{Reason: "command lost", Err: err}
	}
	return exit, nil
}

// gone tells whether nothing of the command runs any more.
func gone(p *supervisor.Process, eof bool) bool {
	wait := time.Duration(0)
	if eof {
		wait = lastBreath
	}
	select {
	case <-p.Gone():
		return true
	default:
	}
	select {
	case <-p.Gone():
		return true
	case <-time.After(wait):
		return false
	}
}

// job is what to start. The error is a *ShellError, or a *StartError for a
// program that cannot be run.
func (m *mount) job(c sandboxes.Command) (supervisor.Job, error) {
	job := supervisor.Job{Dir: m.dir, Umask: m.umask}
	if c.Script != "" && len(c.Argv) > 0 {
		return job, &sandboxes.ShellError{Reason: "both a script and arguments given"}
	}
	if c.Dir != "" {
		dir, err := m.at(c.Dir)
		if err == nil {
			dir, err = cleanDir(dir)
		}
		if err != nil {
			return job, dirError(c.Dir, err)
		}
		job.Dir = dir
	}
	info, err := os.Stat(job.Dir)
	if err == nil && !info.IsDir() {
		err = sandboxes.ErrNotDirectory
	}
	if err == nil {
		err = enterable(job.Dir)
	}
	if err != nil {
		return job, dirError(job.Dir, err)
	}
	if job.Env, err = m.env.with(c.Env, job.Dir); err != nil {
		return job, &sandboxes.ShellError{Reason: "command not started", Err: err}
	}
	path := get(job.Env, "PATH")
	if len(c.Argv) > 0 {
		job.Argv = c.Argv
		job.Path, err = lookUp(c.Argv[0], path, job.Dir)
		return job, err
	}
	for _, shell := range []string{"bash", "sh"} {
		for _, in := range []string{path, "/bin:/usr/bin"} {
			if job.Path, err = lookUp(shell, in, job.Dir); err == nil {
				job.Argv = []string{shell, "-c", c.Script}
				return job, nil
			}
		}
	}
	return job, &sandboxes.ShellError{Reason: "no shell found", Err: err}
}

func dirError(dir string, err error) error {
	return &sandboxes.ShellError{Reason: "working directory " + dir, Err: cause(err)}
}

// lookUp finds a program as a shell would, in the command's PATH and folder.
// The error is a *supervisor.StartError.
func lookUp(name, path, dir string) (string, error) {
	if name == "" {
		return "", &supervisor.StartError{Path: name, Err: fs.ErrNotExist}
	}
	if filepath.Base(name) != name {
		if !filepath.IsAbs(name) {
			name = dir + "/" + name
		}
		return name, nil // starting it tells
	}
	var denied error
	for _, in := range filepath.SplitList(path) {
		if !filepath.IsAbs(in) {
			in = dir + "/" + in
		}
		full := in + "/" + name
		info, err := os.Stat(full)
		if err != nil || info.IsDir() {
			continue
		}
		if err := enterable(full); err != nil {
			denied = err
			continue
		}
		return full, nil
	}
	if denied != nil {
		return "", &supervisor.StartError{Path: name, Err: denied}
	}
	return "", &supervisor.StartError{Path: name, Err: fs.ErrNotExist}
}

// unrunnable translates the failure to start a program to the exit code and
// the line that a shell would give; 0 when it is no such failure.
func unrunnable(err error) (code int, text string) {
	var se *supervisor.StartError
	if !errors.As(err, &se) || se.Dir {
		return 0, ""
	}
	switch {
	case errors.Is(se.Err, fs.ErrNotExist), errors.Is(se.Err, syscall.ENOTDIR), errors.Is(se.Err, syscall.ELOOP),
		errors.Is(se.Err, syscall.ENAMETOOLONG):
		return codeNotFound, se.Path + ": not found\n"
	case errors.Is(se.Err, fs.ErrPermission), errors.Is(se.Err, syscall.ENOEXEC), errors.Is(se.Err, syscall.EISDIR):
		return codeNotExecutable, se.Path + ": cannot execute: " + cause(se.Err).Error() + "\n"
	}
	return 0, ""
}
