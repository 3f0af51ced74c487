package actors

import (
	"context"
	"sync"
	"time"

	"codework/sandboxes"
)

// watched is a mount in a sandbox that is not the host: it keeps secrets out of
// errors, and knows whether closing its connection would take something away
// that a session still counts on.
type watched struct {
	sandboxes.Mount
	clean *cleaner

	mu   sync.Mutex      // guards what follows
	jobs bool            // a command left something running
	kept map[string]bool // files with whole outputs that were not removed
}

// keeps tells whether the connection should stay.
func (w *watched) keeps() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.jobs || len(w.kept) > 0
}

func (w *watched) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	exit, err := w.Mount.Run(ctx, c)
	w.mu.Lock()
	w.jobs = w.jobs || exit.Background
	if c.Full != "" {
		if w.kept == nil {
			w.kept = map[string]bool{}
		}
		w.kept[c.Full] = true
	}
	w.mu.Unlock()
	if ctx.Err() == nil {
		err = w.clean.error(err)
	}
	return exit, err
}

func (w *watched) Remove(ctx context.Context, path string) error {
	err := w.Mount.Remove(ctx, path)
	if err == nil {
		w.mu.Lock()
		delete(w.kept, path)
		w.mu.Unlock()
	}
	return w.clean.error(err)
}

func (w *watched) Read(ctx context.Context, path string, offset, limit int64) ([]byte, error) {
	b, err := w.Mount.Read(ctx, path, offset, limit)
	return b, w.clean.error(err)
}

func (w *watched) Write(ctx context.Context, path string, data []byte) error {
	return w.clean.error(w.Mount.Write(ctx, path, data))
}

func (w *watched) Stat(ctx context.Context, path string) (sandboxes.Info, error) {
	i, err := w.Mount.Stat(ctx, path)
	return i, w.clean.error(err)
}

func (w *watched) Lstat(ctx context.Context, path string) (sandboxes.Info, error) {
	i, err := w.Mount.Lstat(ctx, path)
	return i, w.clean.error(err)
}

func (w *watched) List(ctx context.Context, path string) ([]sandboxes.Info, error) {
	l, err := w.Mount.List(ctx, path)
	return l, w.clean.error(err)
}

func (w *watched) Mkdir(ctx context.Context, path string) error {
	return w.clean.error(w.Mount.Mkdir(ctx, path))
}

func (w *watched) RealPath(ctx context.Context, path string) (string, error) {
	p, err := w.Mount.RealPath(ctx, path)
	return p, w.clean.error(err)
}

func (w *watched) Lock(ctx context.Context, path string) (func(), error) {
	unlock, err := w.Mount.Lock(ctx, path)
	return unlock, w.clean.error(err)
}

// noMount stands for a mount that could not be had again in the middle of an
// exchange: the calls that need it say why.
type noMount struct {
	dir string
	err error
}

func (b noMount) fail(op, path string) error {
	return &sandboxes.FileError{Op: op, Path: path, Err: b.err}
}

func (b noMount) Dir() string     { return b.dir }
func (b noMount) Scratch() string { return b.dir }
func (b noMount) Close() error    { return nil }

func (b noMount) Run(context.Context, sandboxes.Command) (sandboxes.Exit, error) {
	return sandboxes.Exit{Code: -1}, &sandboxes.ShellError{Reason: "the sandbox cannot be reached", Err: b.err}
}

func (b noMount) Read(_ context.Context, path string, _, _ int64) ([]byte, error) {
	return nil, b.fail("read", path)
}
func (b noMount) Write(_ context.Context, path string, _ []byte) error { return b.fail("write", path) }
func (b noMount) Stat(_ context.Context, path string) (sandboxes.Info, error) {
	return sandboxes.Info{}, b.fail("stat", path)
}
func (b noMount) Lstat(_ context.Context, path string) (sandboxes.Info, error) {
	return sandboxes.Info{}, b.fail("stat", path)
}
func (b noMount) List(_ context.Context, path string) ([]sandboxes.Info, error) {
	return nil, b.fail("list", path)
}
func (b noMount) Mkdir(_ context.Context, path string) error  { return b.fail("mkdir", path) }
func (b noMount) Remove(_ context.Context, path string) error { return b.fail("remove", path) }
func (b noMount) RealPath(_ context.Context, path string) (string, error) {
	return "", b.fail("resolve", path)
}
func (b noMount) Lock(_ context.Context, path string) (func(), error) {
	return nil, b.fail("lock", path)
}

// closing bounds the end of a connection or a mount that does not answer.
const closing = 2 * time.Second
