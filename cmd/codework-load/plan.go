package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"codework/messages"
)

// plan is what one run does.
type plan struct {
	scenario    scenario
	sessions    int
	connections int           // 0: one each
	rounds      int           // of each session, when length is 0
	length      time.Duration // no round begins later
	rate        float64       // prompts a second; 0 is a closed loop
	think       time.Duration // pause of a session between two rounds
	timeout     time.Duration // of one round
	seed        uint64
	dir         string             // where the sessions work; "" is the server's choice
	model       *messages.ModelRef // nil: the server's
	ownServer   bool
	beside      []string // flooders that run all the time
	besides     int      // of each
	pairs       int      // of runs without them and with them
	calm        bool     // latencies are given without what slow moments of the machine explain, too
}

// errHelp means that the usage was asked for and printed.
var errHelp = errors.New("help")

// tokenVariable is where a server's token is looked for: never in an argument,
// which others can read.
const tokenVariable = "CODEWORK_SERVER_TOKEN"

// parseFlags reads a command line. It prints nothing but the usage that is
// asked for.
func parseFlags(args []string, stderr io.Writer) (*job, error) {
	j := &job{}
	f := flag.NewFlagSet("codework-load", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	var name, connections, curve, model, stored, entries, resting, beside string
	f.StringVar(&name, "scenario", "stream", "what the sessions do: `NAME`, NAME=WEIGHT,… or a marker such as text:50:20")
	f.IntVar(&j.sessions, "sessions", 50, "`number` of sessions")
	f.StringVar(&connections, "connections", "1", "`number` of connections they share, or each; a curve takes a list")
	f.IntVar(&j.rounds, "rounds", 1, "prompts of each session, one behind the other")
	f.DurationVar(&j.length, "for", 0, "go on for this `time` instead of a number of rounds")
	f.Float64Var(&j.rate, "rate", 0, "open loop: so many prompts a second to sessions that are free, with --for")
	f.DurationVar(&j.think, "think", 0, "`pause` of a session between two rounds")
	f.DurationVar(&j.timeout, "timeout", 2*time.Minute, "a round that takes longer has failed")
	f.Uint64Var(&j.seed, "seed", 1, "what chance begins with")
	f.StringVar(&j.program, "codework", "", "`path` of the program to start (default: beside this one, or in the path)")
	f.StringVar(&j.server, "server", "", "`URL` of a running server instead; its token is in "+tokenVariable)
	f.StringVar(&model, "model", "", "`PROVIDER/ID` of the model for the sessions (default: the server's)")
	f.StringVar(&j.modelAddr, "model-addr", "", "loopback `HOST:PORT` of the scripted model, for a running server (default: any free port)")
	f.StringVar(&j.modelURL, "model-url", "", "base `URL` of another model that speaks Chat Completions, instead of the scripted one")
	f.StringVar(&j.dir, "dir", "", "`folder` on a running server's host where the sessions work")
	f.BoolVar(&j.floor, "floor", false, "measure the same prompts straight to the model first, and compare")
	f.StringVar(&beside, "beside", "", "measure once more with these `names` of flooders at work beside it, and compare")
	f.IntVar(&j.besides, "besides", 1, "`number` of each of them")
	f.IntVar(&j.pairs, "pairs", 1, "with --beside: measure without and with them so `often` in turn, and put the runs of either kind together")
	f.StringVar(&curve, "curve", "", "measure growing `numbers` of sessions (1,10,50), each with a server of its own")
	f.StringVar(&stored, "stored", "", "instead of load: measure list, search and opening with `numbers` of stored sessions (1000,10000)")
	f.StringVar(&entries, "entries", "", "instead of load: measure opening, history and turns of a session with `numbers` of entries")
	f.StringVar(&resting, "idle", "", "instead of load: measure memory and processor time of a server with `numbers` of idle sessions")
	f.IntVar(&j.stock.samples, "samples", 200, "how `often` --stored and --entries measure each operation")
	f.StringVar(&j.stock.home, "home", "", "`folder` where --stored and --entries fill servers' homes once, and find them again")
	f.StringVar(&j.svg, "svg", "", "`folder` for the plots of a curve, or of --stored and --entries")
	f.StringVar(&j.html, "html", "", "`file` for a report with plots")
	f.BoolVar(&j.asJSON, "json", false, "print JSON, one line for each run")
	f.Var(thresholds{false, &j.thresholds}, "max", "`METRIC=VALUE` that may not be exceeded, as admitted.p50=20ms (repeatable)")
	f.Var(thresholds{true, &j.thresholds}, "min", "`METRIC=VALUE` that must be reached, as events.rate=1000 (repeatable)")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(stderr)
			usageText(stderr, f)
			return nil, errHelp
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	j.token = strings.TrimSpace(os.Getenv(tokenVariable))
	var err error
	if j.scenario, err = parseScenario(name); err != nil {
		return nil, fmt.Errorf("--scenario: %w", err)
	}
	if model != "" {
		if j.plan.model, err = modelRef(model); err != nil {
			return nil, err
		}
	}
	if j.curveConnections, err = parseConnections(connections); err != nil {
		return nil, fmt.Errorf("--connections: %w", err)
	}
	j.connections = j.curveConnections[0]
	if curve != "" {
		if j.curve, err = parseNumbers(curve, 1); err != nil {
			return nil, fmt.Errorf("--curve: %w", err)
		}
	}
	for _, l := range []struct {
		flag, text string
		into       *[]int
		least      int
	}{{"stored", stored, &j.stock.stored, 4 * stockPage}, {"entries", entries, &j.stock.entries, stockPage}, {"idle", resting, &j.stock.idle, 1}} {
		if l.text == "" {
			continue
		}
		if *l.into, err = parseNumbers(l.text, l.least); err != nil {
			return nil, fmt.Errorf("--%s: %w", l.flag, err)
		}
	}
	if beside != "" {
		if j.beside, err = parseBeside(beside); err != nil {
			return nil, fmt.Errorf("--beside: %w", err)
		}
	}
	if j.stock.home != "" {
		if j.stock.home, err = filepath.Abs(j.stock.home); err != nil { // servers are started in other folders
			return nil, fmt.Errorf("--home: %w", err)
		}
	}
	if err := j.check(); err != nil {
		return nil, err
	}
	if err := j.checkUnused(f); err != nil {
		return nil, err
	}
	if err := j.checkThresholds(); err != nil {
		return nil, err
	}
	if err := j.checkOutput(); err != nil {
		return nil, err
	}
	if j.server == "" {
		if j.program, err = findProgram(j.program); err != nil {
			return nil, fmt.Errorf("find codework: %w", err)
		}
	}
	return j, nil
}

// mostRate is the largest --rate, far beyond what a machine can send, and
// mostArrivals what --rate and --for may come to: the time of each arrival is
// drawn, and kept, before the first (8 bytes each).
const (
	mostRate     = 100_000
	mostArrivals = 10_000_000
)

// check refuses what makes no sense together.
func (j *job) check() error {
	switch {
	case j.sessions < 1:
		return errors.New("--sessions: expected 1 or more")
	case j.rounds < 1:
		return errors.New("--rounds: expected 1 or more")
	case !(j.rate >= 0 && j.rate <= mostRate): // NaN is neither
		return fmt.Errorf("--rate: expected a number from 0 to %d", mostRate)
	case j.length < 0 || j.think < 0:
		return errors.New("--for and --think: expected no negative times")
	case j.timeout <= 0:
		return errors.New("--timeout: expected more than nothing")
	case j.rate*j.length.Seconds() > mostArrivals:
		return fmt.Errorf("--rate and --for: expected at most %d prompts together", mostArrivals)
	case j.rate > 0 && j.length == 0:
		return errors.New("--rate needs --for")
	case len(j.curveConnections) > 1 && j.curve == nil:
		return errors.New("--connections: a list is for --curve")
	case j.curve != nil && j.server != "":
		return errors.New("--curve starts servers of its own, and so goes without --server")
	case j.stock.wanted() && (j.server != "" || j.curve != nil || j.html != "" || j.floor):
		return errors.New("--stored, --entries and --idle go without --server, --curve, --html and --floor")
	case j.stock.wanted() && j.beside != nil:
		return errors.New("--beside is for load, and so goes without --stored, --entries and --idle")
	case j.stock.samples < 1:
		return errors.New("--samples: expected 1 or more")
	case j.stock.home != "" && j.stock.stored == nil && j.stock.entries == nil:
		return errors.New("--home is for --stored and --entries")
	case j.svg != "" && j.curve == nil && !j.stock.wanted():
		return errors.New("--svg is for --curve, --stored, --entries and --idle; use --html")
	case j.server == "" && j.dir != "":
		return errors.New("--dir is for --server")
	case j.server != "" && j.program != "":
		return errors.New("--codework goes without --server")
	case j.besides < 1:
		return errors.New("--besides: expected 1 or more")
	case j.pairs < 1:
		return errors.New("--pairs: expected 1 or more")
	case j.beside != nil && j.modelURL != "":
		return errors.New("--beside needs the scripted model, and so goes without --model-url")
	case j.modelURL != "" && j.modelAddr != "":
		return errors.New("--model-url goes without --model-addr")
	}
	return nil
}

// checkUnused refuses flags that were given and would do nothing.
func (j *job) checkUnused(f *flag.FlagSet) (err error) {
	refuse := func(format string, name string) {
		if err == nil {
			err = fmt.Errorf(format, name)
		}
	}
	f.Visit(func(given *flag.Flag) {
		switch given.Name {
		case "samples":
			if j.stock.stored == nil && j.stock.entries == nil {
				refuse("--%s is for --stored and --entries", given.Name)
			}
		case "besides", "pairs":
			if j.beside == nil {
				refuse("--%s is for --beside", given.Name)
			}
		case "scenario", "sessions", "connections", "rounds", "for", "rate", "think", "model":
			if j.stock.wanted() {
				refuse("--%s is for load, and so goes without --stored, --entries and --idle", given.Name)
			}
		}
	})
	return err
}

// checkOutput refuses files and folders that could not be written when all is
// measured.
func (j *job) checkOutput() error {
	if j.html != "" {
		if err := writable(j.html); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if j.svg != "" {
		if err := os.MkdirAll(j.svg, 0o755); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
		if err := writable(filepath.Join(j.svg, ".codework-load")); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
	}
	return nil
}

// writable tells why a file cannot be written. One that is there stays as it is,
// one that is not there is not made.
func writable(name string) error {
	_, err := os.Stat(name)
	missing := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	err = f.Close()
	if missing {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

func usageText(w io.Writer, f *flag.FlagSet) {
	fmt.Fprint(w, "Put a server of codework under load, and measure and check it.\n\n  codework-load [flags]\n\nScenarios:\n")
	for _, name := range scenarioNames() {
		about := kinds[name].about
		if m, ok := mixes[name]; ok {
			about = m
		}
		fmt.Fprintf(w, "  %-10s %s\n", name, about)
	}
	fmt.Fprint(w, "\nBeside them, for the whole time:\n")
	for _, name := range flooderNames() {
		fmt.Fprintf(w, "  %-10s %s\n", name, flooders[name].about)
	}
	fmt.Fprint(w, "\nMetrics: create, admitted, first, delta, turn, interrupt, total with .p50 .p90 .p99 .max;\n"+
		"wall, ready, cpu, cpu.event, memory.idle .end .peak .session, events.rate, turns.rate, failures;\n"+
		"with --floor each as METRIC/floor (ratio) and METRIC-floor (difference),\n"+
		"with --beside as METRIC/alone and METRIC-alone, and as calm.LATENCY without those that lay by\n"+
		"half or more in moments in which the machine itself was slow.\n"+
		"With --stored: list, middle, folder, search, common, nothing, open, cli, cli.search, cli.all;\n"+
		"with --entries: open, end, middle, and cold, again, turn, cold.few, turn.few, these also with .admitted and .asked, each with .p50 .p90 .p99 .max;\n"+
		"with --idle: memory.empty, and above that memory.made .restarted, cpu.made .restarted\n\nFlags:\n")
	f.PrintDefaults()
}

// parseNumbers reads a list of whole numbers.
func parseNumbers(s string, least int) (out []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < least {
			return nil, fmt.Errorf("expected numbers from %d on, not %q", least, part)
		}
		out = append(out, n)
	}
	return out, nil
}

// parseConnections reads a list of numbers and the word each, which is 0.
func parseConnections(s string) (out []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(part) == "each" {
			out = append(out, 0)
			continue
		}
		n, err := parseNumbers(part, 1)
		if err != nil {
			return nil, err
		}
		out = append(out, n...)
	}
	return out, nil
}

func cutModel(s string) (provider, id string, ok bool) {
	provider, id, ok = strings.Cut(s, "/")
	return provider, id, ok && provider != "" && id != ""
}

// onThisMachine tells whether a server's address is a loopback one.
func onThisMachine(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
