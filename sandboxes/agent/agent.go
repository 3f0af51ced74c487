package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"codework/sandboxes/local"
)

// Arg is the hidden mode of the binary.
const Arg = "__sandbox-agent"

// spareThreads are what calls that wait in the system may need when a command
// has used up a limit on processes, which counts threads: without one the
// runtime ends the process, and with it the sandbox.
const spareThreads = 8

// ServeOptions are what the agent inside needs to know.
type ServeOptions struct {
	// ID is the sandbox's; commands find it in CODEWORK_SANDBOX.
	ID string
	// StateDir is where scratch folders are made; "" is a temporary folder of
	// the agent's own, which it removes.
	StateDir string
	// Marker is a line that the agent prints before the protocol starts, for
	// shells that print something themselves; "" prints none.
	Marker string
}

// Args is the command line, after the program's path, that starts the agent.
func Args(o ServeOptions) []string {
	return []string{Arg, "-id=" + o.ID, "-state=" + o.StateDir, "-marker=" + o.Marker}
}

// Main serves the hidden mode of the binary and must be called first thing in
// main, with os.Args. The agent talks over standard
// input and output and reports trouble on standard error. When handled is false
// the arguments are somebody else's; else the process has done its work and
// exits with code.
func Main(args []string) (handled bool, code int) {
	if len(args) < 2 || args[1] != Arg {
		return false, 0
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := serveStdio(args[2:], log); err != nil {
		log.Error("sandbox agent", "error", err)
		return true, 1
	}
	return true, 0
}

func serveStdio(args []string, log *slog.Logger) error {
	reserveThreads(spareThreads)
	var o ServeOptions
	fs := flag.NewFlagSet(Arg, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.ID, "id", "", "")
	fs.StringVar(&o.StateDir, "state", "", "")
	fs.StringVar(&o.Marker, "marker", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	// The end comes with that of the input, and with these. A broken pipe is
	// an error of writing and not the end of the process: something is still to
	// be cleaned up. Ignored signals would be passed on to commands.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	if o.StateDir == "" {
		dir, err := os.MkdirTemp("", "codework-agent-")
		if err != nil {
			return fmt.Errorf("make state folder: %w", err)
		}
		defer os.RemoveAll(dir)
		o.StateDir = dir
	}
	sb, err := local.New(local.Options{ID: o.ID, StateDir: o.StateDir, Log: log})
	if err != nil {
		return err
	}
	if o.Marker != "" {
		// On a line of its own, whatever was printed before.
		if _, err := fmt.Fprintf(os.Stdout, "\n%s\n", o.Marker); err != nil {
			return errors.Join(fmt.Errorf("print the marker: %w", err), sb.Close(ctx))
		}
	}
	err = Serve(ctx, stdio{}, sb)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	return err
}

// stdio is the connection of the agent to those who started it.
type stdio struct{}

func (stdio) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (stdio) Write(b []byte) (int, error) { return os.Stdout.Write(b) }

// Close ends the output. The input is left alone: a read of it that waits could
// keep the call from returning, and the process is about to end.
func (stdio) Close() error { return os.Stdout.Close() }

// reserveThreads has the runtime make n threads, which it keeps.
func reserveThreads(n int) {
	var made, left sync.WaitGroup
	enough := make(chan struct{})
	made.Add(n)
	for range n {
		left.Go(func() {
			runtime.LockOSThread() // one each
			made.Done()
			<-enough
			runtime.UnlockOSThread() // that of a goroutine which ends locked would end, too
		})
	}
	made.Wait()
	close(enough)
	left.Wait()
}
