// Package drivertest is the suite that every sandbox driver runs: one table of
// what a mount must do with files, commands and locks, and of how commands and
// sandboxes end. Everything is looked at through mounts, so that it does not
// matter where the inside is.
//
// A subject says what its sandboxes have beyond the plain; rows that need more
// are reported as not run, by name. Rows share a sandbox and have a folder and
// a mount of their own, but for those that end it.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"codework/sandboxes"
)

// Subject is a driver whose sandboxes are to be tested.
type Subject struct {
	Name string
	// Open makes a sandbox with an empty folder that commands may write to, and
	// sees to the end of both with t.Cleanup. Several may be open at once.
	Open func(t testing.TB) (sb sandboxes.Sandbox, dir string)
	// Again reaches the sandbox that has the folder once more, after it was
	// closed; nil when that is not possible.
	Again func(t testing.TB, dir string) sandboxes.Sandbox
	// HasPrograms tells that commands are real processes, with the usual
	// programs of a small system and bash or a POSIX sh.
	HasPrograms bool
	// HidesSignals tells that a death by a signal looks like an exit.
	HidesSignals bool
	// HasCancels tells that the end of a command is that of its whole tree.
	HasCancels bool
	// HasLinks tells that `ln -s` works.
	HasLinks bool
	// HasModes tells that `chmod` works.
	HasModes bool
	// HasRawNames tells that names of files need not be UTF-8.
	HasRawNames bool
}

// need is what a row asks of its subject.
type need uint8

const (
	programs need = 1 << iota
	signalled
	cancels
	links
	modes
	rawNames
	again
)

// lacks names what the subject does not have of what is needed.
func (s Subject) lacks(n need) string {
	var out []string
	for _, c := range []struct {
		need need
		has  bool
		name string
	}{
		{programs, s.HasPrograms, "programs"}, {signalled, !s.HidesSignals, "signals"},
		{cancels, s.HasCancels, "cancels"}, {links, s.HasLinks, "links"},
		{modes, s.HasModes, "modes"}, {rawNames, s.HasRawNames, "raw names"}, {again, s.Again != nil, "a way to reach it again"},
	} {
		if n&c.need != 0 && !c.has {
			out = append(out, c.name)
		}
	}
	return strings.Join(out, ", ")
}

// row is one thing that must hold.
type row struct {
	name  string
	needs need
	check func(t *testing.T, s *scene)
}

// scene is what a row works with.
type scene struct {
	subject Subject
	sandbox sandboxes.Sandbox
	mount   sandboxes.Mount
	dir     string // of the mount, and the row's own
}

// ctxb is for what is not to be cancelled.
var ctxb = context.Background()

const (
	// limit is within what everything ends that is ended.
	limit = 2 * time.Second
	// slack is what a loaded machine may take on top.
	slack = 500 * time.Millisecond
	// patience is when something counts as never happening.
	patience = 20 * time.Second
)

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	sb, dir := s.Open(t)
	for i, r := range append(append(append([]row{}, fileRows...), shellRows...), endRows...) {
		t.Run(r.name, func(t *testing.T) {
			if lacks := s.lacks(r.needs); lacks != "" {
				t.Skipf("%s does not have: %s", s.Name, lacks)
			}
			r.check(t, newScene(t, s, sb, fmt.Sprintf("%s/row%d", dir, i)))
		})
	}
}

// newScene mounts a new folder.
func newScene(t testing.TB, s Subject, sb sandboxes.Sandbox, dir string) *scene {
	t.Helper()
	parent := dir[:strings.LastIndexByte(dir, '/')]
	base := mountAt(t, sb, parent)
	if err := base.Mkdir(ctxb, dir); err != nil {
		t.Fatal(err)
	}
	if err := base.Close(); err != nil {
		t.Error(err)
	}
	m := mountAt(t, sb, dir)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error("close the mount:", err)
		}
	})
	return &scene{subject: s, sandbox: sb, mount: m, dir: dir}
}

// own is a scene in a sandbox of its own, which the row may end.
func (s *scene) own(t testing.TB) *scene {
	t.Helper()
	sb, dir := s.subject.Open(t)
	return newScene(t, s.subject, sb, dir+"/own")
}

// another is one more mount of the same folder.
func (s *scene) another(t testing.TB) *scene {
	t.Helper()
	return newScene(t, s.subject, s.sandbox, s.dir)
}

func mountAt(t testing.TB, sb sandboxes.Sandbox, dir string) sandboxes.Mount {
	t.Helper()
	m, err := sb.Mount(ctxb, sandboxes.MountOptions{Session: "test", Dir: dir, Umask: -1})
	if err != nil {
		t.Fatal("mount:", err)
	}
	return m
}

// result is what a command printed and how it ended.
type result struct {
	sandboxes.Exit
	out, err string
}

// try runs a command.
func (s *scene) try(ctx context.Context, c sandboxes.Command) (result, error) {
	var r result
	var out, stderr strings.Builder
	c.Output = func(stream sandboxes.Stream, b []byte) {
		if stream == sandboxes.Stdout {
			out.Write(b)
		} else {
			stderr.Write(b)
		}
	}
	var err error
	r.Exit, err = s.mount.Run(ctx, c)
	r.out, r.err = out.String(), stderr.String()
	return r, err
}

// run runs a command and wants it to have run.
func (s *scene) run(t testing.TB, c sandboxes.Command) result {
	t.Helper()
	r, err := s.try(ctxb, c)
	if err != nil {
		t.Fatalf("run %.200q %.200q: %v", c.Script, c.Argv, err)
	}
	return r
}

// sh runs a script that must succeed.
func (s *scene) sh(t testing.TB, script string) string {
	t.Helper()
	r := s.run(t, sandboxes.Command{Script: script})
	if r.Code != 0 {
		t.Fatalf("%s: %+v %q", script, r.Exit, r.err)
	}
	return r.out
}

func (s *scene) write(t testing.TB, path, text string) {
	t.Helper()
	if err := s.mount.Write(ctxb, path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func (s *scene) text(t testing.TB, path string) string {
	t.Helper()
	b, err := s.mount.Read(ctxb, path, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// size is that of a file, 0 when there is none or nobody can tell.
func (s *scene) size(path string) int64 {
	info, err := s.mount.Stat(ctxb, path)
	if err != nil {
		return 0
	}
	return info.Size
}

// eventually polls until the condition holds.
func eventually(what string, cond func() bool) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if cond() {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("never happened: " + what)
		}
	}
}

// within fails when it took longer than what everything may take to end.
func within(start time.Time) error {
	if d := time.Since(start); d > limit+slack {
		return fmt.Errorf("took %v", d)
	}
	return nil
}

// isClosed is what a command reports that the end of its mount ended.
func isClosed(err error) bool {
	var se *sandboxes.ShellError
	return errors.As(err, &se) && errors.Is(err, sandboxes.ErrClosed)
}
