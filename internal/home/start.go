package home

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// startStep is how often a client looks for an owner that is starting.
const startStep = 3 * time.Millisecond

// Connect returns a connection to the owner, after start has been called to
// start one if nobody answered. probe says whether an owner that accepted is
// willing: one that is about to end is asked again until it is gone.
func (p Paths) Connect(ctx context.Context, start func(ctx context.Context) error, probe func(net.Conn) error) error {
	if err := p.Prepare(); err != nil {
		return err
	}
	starter := flock.New(p.Lock+".start", flock.SetPermissions(0o600))
	defer func() { _ = starter.Close() }()
	for {
		err := p.tryOwner(ctx, probe)
		if !errors.Is(err, ErrNobody) {
			return err
		}
		// One client starts an owner, the others wait for it.
		mine, err := starter.TryLock()
		if err != nil {
			return fmt.Errorf("lock %s.start: %w", p.Lock, explain(err))
		}
		if mine {
			err := p.tryOwner(ctx, probe)
			if errors.Is(err, ErrNobody) {
				err = start(ctx)
				if err == nil {
					err = ErrNobody // look again
				}
			}
			_ = starter.Unlock() // goes with the descriptor at the latest
			if !errors.Is(err, ErrNobody) {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer from the process that owns %s: %w", p.Home, ctx.Err())
		case <-time.After(startStep):
		}
	}
}

func (p Paths) tryOwner(ctx context.Context, probe func(net.Conn) error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer from the process that owns %s: %w", p.Home, ctx.Err())
	}
	c, err := p.Dial(ctx)
	if err != nil {
		return err
	}
	return probe(c)
}

// StartBackground starts argv as a process of its own that outlives this one,
// and waits until it reports that it serves, or why it does not. env is all of
// its environment. It works in the root folder and prints into the log; one log
// that got too long is kept beside it.
func (p Paths) StartBackground(ctx context.Context, argv, env []string) error {
	if err := p.Prepare(); err != nil {
		return err
	}
	if fi, err := os.Stat(p.Log); err == nil && fi.Size() > MaxLog {
		// At worst it grows on. A process that still prints into the old one
		// (of another database) goes on doing so.
		_ = os.Rename(p.Log, p.Log+".1")
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", p.Log, explain(err))
	}
	defer log.Close()
	report, child, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	defer report.Close()
	c := exec.Command(argv[0], argv[1:]...)
	c.Args[0] = "codework" // in the list of processes
	// Not nil, which would be this process's own environment.
	c.Dir, c.Env = string(os.PathSeparator), append([]string{}, env...)
	c.Stdout, c.Stderr = log, log
	if err = detach(c, child); err == nil {
		err = c.Start()
	}
	child.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", argv[0], explain(err))
	}
	exited := make(chan error, 1)
	go func() { exited <- c.Wait() }()

	stop := context.AfterFunc(ctx, func() { _ = report.SetReadDeadline(time.Now()) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(report, maxReport))
	if ctx.Err() != nil {
		return fmt.Errorf("the process in the background did not start in time; see %s: %w", p.Log, ctx.Err())
	}
	switch text := string(said); {
	case err != nil:
		return fmt.Errorf("read the report of the process in the background: %w", err)
	case text == reportReady:
		return nil
	case text != "":
		return errors.New(strings.TrimSpace(text))
	}
	select {
	case err := <-exited:
		if err != nil {
			return fmt.Errorf("the process in the background ended at once (%w); see %s", err, p.Log)
		}
		return nil // another owner was there first
	case <-ctx.Done():
		return fmt.Errorf("the process in the background did not start in time; see %s: %w", p.Log, ctx.Err())
	}
}

// MaxLog is the size in bytes from which on the log makes room for a new one: at
// the next start, and while its process runs. One older log is kept.
const MaxLog = 5 << 20

const (
	reportReady = "ready\n"
	maxReport   = 64 << 10
)

// Report is what a process that was started in the background tells its
// starter.
type Report struct{ f *os.File }

// OpenReport returns the report to the process that started this one.
func OpenReport() *Report { return &Report{reportFile()} }

// Ready says that this process serves.
func (r *Report) Ready() { r.send(reportReady) }

// Fail says why it does not.
func (r *Report) Fail(err error) { r.send(err.Error() + "\n") }

// send is silent about a starter that has gone away.
func (r *Report) send(text string) {
	_, _ = r.f.WriteString(text)
	_ = r.f.Close()
}
