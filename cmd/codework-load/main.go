// Command codework-load puts a server of codework under load and measures it:
// hundreds of sessions that prompt, steer, stop, lose their connection and come
// back, over the same protocol that every client speaks, with a scripted model
// that is asked over HTTP like a real one.
//
// Every session is checked while it is measured. Durable events must come once
// and in order up to the last one that the server has, pieces of text must come
// with every number that the model gave them, and whole answers must be what
// their pieces were; work that was stopped may leave no command running. What is
// lost or comes twice, and every failure, makes the exit code 1, as a threshold
// does that is missed.
//
// The same seed gives the same scenarios, delays and arrivals; what the machine
// does is not repeated by it. In an open loop (--rate) a latency counts from when
// a prompt was due, so that a slow server cannot slow down its own measurement.
//
// The table, or JSON, goes to standard output; the progress line to standard
// error, when that is a terminal. Exit codes: 0 all is well, 1 something was
// lost, failed or missed, 2 wrong use, 130 interrupted.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"codework/cmd/codework-load/plot"
	"codework/integration/mockmodel"
	"codework/messages"
	"codework/protocol/client"
)

// The exit codes beside 0.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == floodProcess {
		os.Exit(floodMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run measures what the arguments ask for and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	j, err := parseFlags(args, stderr)
	if err != nil {
		if errors.Is(err, errHelp) {
			return 0
		}
		fmt.Fprintf(stderr, "codework-load: %v\n", err)
		return exitUsage
	}
	j.out, j.progress = stdout, progressLine(stderr)
	good, err := j.run(ctx)
	j.progress("")
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "codework-load: interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(stderr, "codework-load: %v\n", err)
		return exitFailed
	case !good:
		return exitFailed
	}
	return 0
}

// progressLine writes over one line of a terminal; elsewhere it says nothing.
func progressLine(w io.Writer) func(string) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func(string) {}
	}
	return func(s string) { fmt.Fprintf(w, "\r\x1b[K%s", s) }
}

// job is what a command line asks for.
type job struct {
	plan
	program          string // path of codework
	server, token    string // a running server instead
	modelAddr        string // where the scripted model listens
	modelURL         string // another model instead
	floor            bool
	asJSON           bool
	html, svg        string
	curve            []int
	curveConnections []int
	thresholds       []threshold
	stock            stock

	out      io.Writer
	progress func(string)
	model    *mockmodel.Server
}

func (j *job) run(ctx context.Context) (good bool, err error) {
	if j.modelURL == "" {
		if j.model, err = startModel(j.modelAddr); err != nil {
			return false, err
		}
		defer j.model.Close()
		j.modelURL = modelAddress(j.model.URL())
	}
	if j.stock.wanted() {
		return j.runStock(ctx)
	}
	if j.curve == nil {
		r, err := j.one(ctx, j.plan)
		if err != nil {
			return false, err
		}
		if err := j.say(r); err != nil {
			return false, err
		}
		if j.html != "" {
			err = writeHTML(j.html, "codework under load: "+r.Scenario, []*report{r}, r.charts())
		}
		return r.good(), err
	}
	reports, err := j.runCurve(ctx)
	if err != nil {
		return false, err
	}
	charts := curveCharts(reports)
	if j.svg != "" {
		err = writeCharts(j.svg, charts)
	}
	if j.html != "" {
		var ordered []plot.Chart
		for _, name := range chartOrder {
			if c, ok := charts[name]; ok {
				ordered = append(ordered, c)
			}
		}
		err = errors.Join(err, writeHTML(j.html, "codework under load: "+j.scenario.name+" by number of sessions", reports, ordered))
	}
	good = true
	for _, r := range reports {
		good = good && r.good()
	}
	return good, err
}

// startModel starts the scripted model, on any free port without an address.
// Nobody looks at the bodies, and records cost memory in a long run.
func startModel(addr string) (*mockmodel.Server, error) {
	m := mockmodel.New(mockmodel.Options{Addr: addr, KeepBytes: 1, KeepRequests: 1000})
	return m, m.Start()
}

// good tells whether nothing was lost, failed or missed.
func (r *report) good() bool {
	return r.failed() == 0 && !r.Faults.any() && len(r.Missed) == 0 && (r.Alone == nil || r.Alone.good())
}

// printed is a report of any kind.
type printed interface{ print(io.Writer) error }

// say prints a report.
func (j *job) say(r printed) error {
	j.progress("")
	if j.asJSON {
		return json.NewEncoder(j.out).Encode(r)
	}
	if err := r.print(j.out); err != nil {
		return err
	}
	_, err := fmt.Fprintln(j.out)
	return err
}

// one measures one plan, behind the floor and the same without flooders.
func (j *job) one(ctx context.Context, p plan) (*report, error) {
	var floor *report
	var err error
	if j.floor && p.scenario.comparable() {
		if floor, err = runDirect(ctx, p, j.modelURL, j.progress); err != nil {
			return nil, err
		}
	}
	var r, alone *report
	if p.beside == nil {
		r, err = j.measure(ctx, p, j.progress)
	} else {
		r, alone, err = j.compare(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	r.Floor, r.Alone = floor, alone
	r.Missed = check(j.thresholds, r.metrics())
	return r, nil
}

// compare measures a plan with flooders and without, in turn: what a machine
// does by itself meets both, and the rare slow moments that make a p99 are many
// together. Each pair has arrivals of its own.
func (j *job) compare(ctx context.Context, p plan) (with, without *report, err error) {
	for i := range p.pairs {
		for _, run := range []struct {
			sum    **report
			about  string
			beside []string
		}{{&without, "alone, ", nil}, {&with, "", p.beside}} {
			q := p
			q.seed, q.beside, q.calm = p.seed+uint64(i), run.beside, true
			r, err := j.measure(ctx, q, func(s string) { j.progress(run.about + s) })
			switch {
			case err != nil:
				return nil, nil, err
			case *run.sum == nil:
				*run.sum = r
			default:
				(*run.sum).add(r)
			}
		}
	}
	return with, without, nil
}

// measure measures one plan, by a server of its own or the one that is named.
func (j *job) measure(ctx context.Context, p plan, progress func(string)) (r *report, err error) {
	f := &fleet{plan: p}
	if p.beside != nil {
		if f.beside, err = startFlood(); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.beside.stop()) }()
	}
	var own *program
	if j.server == "" {
		if own, err = startProgram(ctx, j.program, f.models(j.modelURL)); err != nil {
			return nil, err
		}
		defer own.close()
		f.address.endpoint, f.pid, f.plan.ownServer, f.plan.dir = own.url, own.pid, true, own.work
	} else {
		if f.pid, err = j.lookAtServer(ctx); err != nil {
			return nil, err
		}
		f.address = address{j.server, j.token}
	}
	r, err = f.run(ctx, progress)
	if own != nil {
		select {
		case <-own.ended:
			err = errors.Join(err, fmt.Errorf("the server ended:\n%s", own.tail()))
		default:
		}
	}
	if err != nil {
		return nil, err
	}
	if own != nil {
		r.ReadySeconds = own.ready.Seconds()
		for _, word := range own.complaints() {
			r.Failures["the log of the server has: "+word]++
		}
	}
	if j.model != nil {
		for _, v := range j.model.TakeViolations() {
			r.Failures["model: "+string(v.Rule)+": "+v.Reason]++
		}
	}
	return r, nil
}

// lookAtServer returns the process of a running server when it is on this
// machine, 0 otherwise.
func (j *job) lookAtServer(ctx context.Context) (pid int, err error) {
	if j.server, err = client.Endpoint(j.server); err != nil {
		return 0, err
	}
	c, err := client.Dial(ctx, j.server, j.token)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	info, err := c.Info(ctx)
	if err != nil {
		return 0, err
	}
	if onThisMachine(j.server) {
		return info.PID, nil
	}
	return 0, nil
}

// modelRef reads PROVIDER/ID.
func modelRef(s string) (*messages.ModelRef, error) {
	provider, id, ok := cutModel(s)
	if !ok {
		return nil, fmt.Errorf("--model: expected PROVIDER/ID, not %q", s)
	}
	return &messages.ModelRef{Provider: provider, ID: id}, nil
}
