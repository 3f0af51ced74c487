//go:build amd64 || arm64

package isolated

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"

	"codework/sandboxes"
)

// maxTail is how much of the end of what a command printed is searched for a
// denial: a message and what a shell or a build tool adds to it.
const maxTail = 4 << 10

// hintPrefix begins the line that is added to a command's output.
const hintPrefix = "codework sandbox: "

// Run runs a command; see sandboxes.Shell. When a failed one complained of what
// our walls refuse, a line is added to its output that says so and names the
// setting: neither a person nor a model can tell otherwise.
func (m *mount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	if err := m.sandbox.intact(); err != nil {
		return sandboxes.Exit{Code: -1}, &sandboxes.ShellError{Reason: "command not started", Err: err}
	}
	output := c.Output
	if output == nil {
		exit, err := m.Mount.Run(ctx, c)
		return exit, m.lost(err)
	}
	var tail []byte
	c.Output = func(s sandboxes.Stream, b []byte) {
		if s == sandboxes.Stderr || c.Joined {
			tail = append(tail, b[max(0, len(b)-maxTail):]...)
			if len(tail) > 2*maxTail {
				tail = append(tail[:0], tail[len(tail)-maxTail:]...)
			}
		}
		output(s, b)
	}
	exit, err := m.Mount.Run(ctx, c)
	err = m.lost(err)
	if err != nil || exit.Code == 0 || exit.TimedOut {
		return exit, err
	}
	dir := c.Dir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(m.Dir(), dir)
	}
	if h := m.sandbox.plan.hint(string(tail), dir); h != "" {
		stream := sandboxes.Stderr
		if c.Joined {
			stream = sandboxes.Stdout
		}
		line := hintPrefix + h + "\n"
		if len(tail) > 0 && tail[len(tail)-1] != '\n' {
			line = "\n" + line
		}
		output(stream, []byte(line))
	}
	return exit, nil
}

// lost gives the error of a command its cause when its sandbox was ended.
func (m *mount) lost(err error) error {
	var se *sandboxes.ShellError
	if !errors.As(err, &se) {
		return err
	}
	if cause := m.sandbox.intact(); cause != nil {
		return &sandboxes.ShellError{Reason: se.Reason, Err: cause}
	}
	return err
}

// unreachable are what programs say that find no network.
var unreachable = []string{
	"network is unreachable", "could not resolve", "temporary failure in name resolution", "name or service not known",
	"no such host", "enotfound", "eai_again", "enetunreach", "no address associated",
}

// hint explains a denial among the last words of a command that ran in dir; ""
// when there is none of ours.
func (p *plan) hint(text, dir string) string {
	for line := range strings.Lines(text) {
		low := strings.ToLower(line)
		if strings.Contains(low, "read-only file system") {
			return p.readOnlyHint(subject(line, dir))
		}
		if strings.Contains(low, "permission denied") {
			path := subject(line, dir)
			switch {
			case path == "":
			case below(path, p.Hide):
				return p.hiddenHint(path)
			case p.Level == Landlock && !below(path, p.Write):
				return p.readOnlyHint(path)
			}
		}
		if p.Internet {
			continue
		}
		for _, u := range unreachable {
			if strings.Contains(low, u) {
				return `there is no network here but the sandbox's own; the setting sandbox.network "host" gives it`
			}
		}
	}
	return ""
}

func (p *plan) readOnlyHint(path string) string {
	switch {
	case path == "":
		return "only the project is writable here; the setting sandbox.isolated.write adds folders"
	case below(path, p.ReadOnly):
		return path + " is protected from changes, since programs outside trust it"
	}
	return path + " is read-only here; the setting sandbox.isolated.write adds folders that are writable"
}

func (p *plan) hiddenHint(path string) string {
	return path + " is hidden here: it usually holds secrets, or the setting sandbox.isolated.hide names it"
}

// subject finds the path that a message is about: in quotes, or the word with a
// slash in it, or else the word before the reason. Relative ones are dir's. ""
// when there is none.
func subject(line, dir string) string {
	line = strings.TrimSpace(line)
	found := ""
	for _, q := range [][2]string{{"'", "'"}, {`"`, `"`}, {"‘", "’"}, {"`", "`"}} {
		if _, rest, ok := strings.Cut(line, q[0]); ok {
			if in, _, ok := strings.Cut(rest, q[1]); ok && in != "" {
				found = in
				break
			}
		}
	}
	if found == "" {
		for part := range strings.SplitSeq(line, ": ") {
			words := strings.Fields(part)
			if len(words) == 0 {
				continue
			}
			if last := words[len(words)-1]; strings.Contains(last, "/") {
				found = last
			}
		}
	}
	if found == "" {
		return ""
	}
	if !filepath.IsAbs(found) {
		found = filepath.Join(dir, found)
	}
	return filepath.Clean(found)
}

// denied is an error of the file system that our walls are the cause of.
type denied struct {
	err  error
	hint string
}

func (e *denied) Error() string { return e.err.Error() + " (" + e.hint + ")" }
func (e *denied) Unwrap() error { return e.err }

// explain adds the hint to the error of a file operation.
func (m *mount) explain(err error, path string) error {
	var fe *sandboxes.FileError
	if !errors.As(err, &fe) {
		return err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(m.Dir(), path)
	}
	path = filepath.Clean(path)
	p := m.sandbox.plan
	hint := ""
	switch {
	case errors.Is(err, syscall.EROFS):
		hint = p.readOnlyHint(path)
	case errors.Is(err, syscall.EACCES) && below(path, p.Hide):
		hint = p.hiddenHint(path)
	default:
		return err
	}
	return &sandboxes.FileError{Op: fe.Op, Path: fe.Path, Err: &denied{fe.Err, hint}}
}

// The file operations that walls refuse; see sandboxes.Files.

func (m *mount) Read(ctx context.Context, path string, offset, limit int64) ([]byte, error) {
	if err := m.sandbox.intact(); err != nil {
		return nil, &sandboxes.FileError{Op: "read", Path: path, Err: err}
	}
	b, err := m.Mount.Read(ctx, path, offset, limit)
	return b, m.explain(err, path)
}

func (m *mount) List(ctx context.Context, path string) ([]sandboxes.Info, error) {
	if err := m.sandbox.intact(); err != nil {
		return nil, &sandboxes.FileError{Op: "list", Path: path, Err: err}
	}
	list, err := m.Mount.List(ctx, path)
	return list, m.explain(err, path)
}

func (m *mount) Write(ctx context.Context, path string, data []byte) error {
	if err := m.sandbox.intact(); err != nil {
		return &sandboxes.FileError{Op: "write", Path: path, Err: err}
	}
	return m.explain(m.Mount.Write(ctx, path, data), path)
}

func (m *mount) Mkdir(ctx context.Context, path string) error {
	return m.explain(m.Mount.Mkdir(ctx, path), path)
}

func (m *mount) Remove(ctx context.Context, path string) error {
	return m.explain(m.Mount.Remove(ctx, path), path)
}
