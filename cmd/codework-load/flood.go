package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"codework/messages"
)

// Flooders are played by a process of their own, the lowest in rank on the
// machine: their model and their clients are programs on other machines, or at
// least other programs, and must not take the processor from those that measure.
// It takes one order as a line of JSON and works until its standard input ends;
// so it ends with this process, however that ends. A server that is named has but
// one scripted model, which this process plays for the flooders, too.

// floodProcess, as the only argument, makes this program that process.
const floodProcess = "flood-process"

// order is what the process is told.
type order struct {
	Endpoint, Token string
	Dir             string             // where the sessions work
	Model           *messages.ModelRef // nil: the server's
	Names           []string           // of flooders
	Each            int                // how many of each
}

// notice is a line that the process writes: where its model is, once its flooders
// are at work, and in the end what they did.
type notice struct {
	Model           string
	Begun           bool
	Ended           bool
	Failures, Notes map[string]int
}

// flood is that process.
type flood struct {
	model string // the URL of its scripted model

	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startFlood starts the process; stop must be called in the end.
func startFlood() (*flood, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &flood{cmd: exec.Command(own, floodProcess)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := startLast(p.cmd); err != nil {
		return nil, err
	}
	p.in, p.out = in, json.NewDecoder(out)
	t, err := p.hear()
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	p.model = t.Model
	return p, nil
}

// hear reads what the process says next.
func (p *flood) hear() (t notice, err error) {
	if err = p.out.Decode(&t); err != nil {
		err = fmt.Errorf("what runs beside ended: %w", err)
	}
	return t, err
}

// begin gives the order and returns when all flooders are at work, or what kept
// them from it.
func (p *flood) begin(ctx context.Context, o order) error {
	stop := context.AfterFunc(ctx, func() { p.in.Close() })
	defer stop()
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		return fmt.Errorf("what runs beside: %w", err)
	}
	t, err := p.hear()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil && !t.Begun {
		err = fmt.Errorf("what runs beside did not begin: %v", t.Failures)
	}
	return err
}

// end stops the flooders and returns what they did.
func (p *flood) end() (notice, error) {
	p.in.Close()
	return p.hear()
}

// stop ends the process and waits for it.
func (p *flood) stop() error {
	p.in.Close()
	return p.cmd.Wait()
}

// runFlood is what the process does.
func runFlood(in io.Reader, out io.Writer) error {
	model, err := startModel("")
	if err != nil {
		return err
	}
	defer model.Close()
	say := json.NewEncoder(out)
	if err := say.Encode(notice{Model: modelAddress(model.URL())}); err != nil {
		return err
	}
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil // nothing was ordered
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, r) // until it ends
	}()
	f := &flooding{counts: newCounts(), order: o}
	err = f.run(ctx, func() error { return say.Encode(notice{Begun: true}) })
	for _, v := range model.TakeViolations() {
		f.fail("model: " + string(v.Rule) + ": " + v.Reason)
	}
	return errors.Join(err, say.Encode(notice{Ended: true, Failures: f.failures, Notes: f.notes}))
}

// floodMain is the process, and returns its exit code.
func floodMain() int {
	// Signals to all of a group, of a terminal or timeout(1), and a pipe that nobody
	// reads: ended by them, flooders would leave their work at a server that lives
	// on. Whoever gave the order ends it.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	if err := runFlood(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "codework-load: what runs beside: %v\n", err)
		return exitFailed
	}
	return 0
}

// models are those of a server of its own: the one that is asked by the sessions,
// and the flooders'.
func (f *fleet) models(url string) map[string]string {
	m := map[string]string{modelProvider: url}
	if f.beside != nil {
		m[floodProvider] = f.beside.model
	}
	return m
}
