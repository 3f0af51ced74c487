package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// built is the program under test, made once.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == floodProcess {
		os.Exit(floodMain())
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built.dir != "" {
			if err := os.RemoveAll(built.dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
		os.Exit(code)
	}))
}

func codework(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "cwl"); built.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", filepath.Join(built.dir, "codework"), "codework/cmd/codework").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("build codework: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "codework")
}

// ran is what a command line left behind.
type ran struct {
	code     int
	out, err string
}

func load(t *testing.T, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, err bytes.Buffer
	code := run(ctx, append([]string{"--codework", codework(t), "--timeout", "30s"}, args...), &out, &err)
	return ran{code, out.String(), err.String()}
}

// One kind of each, over a connection that all share and over one each: nothing
// is lost, nothing fails, and the report says what was done.
func TestTwentySessionsLoseNothing(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	for _, connections := range []string{"1", "3", "each"} {
		r := load(t, "--sessions", "20", "--connections", connections, "--json", "--html", page, "--scenario",
			"short=4,stream=2,tools=3,steer=3,interrupt=2,image=2,vanish=2,churn=1,faults=1", "--min", "turns.rate=0.1")
		if r.code != 0 {
			t.Fatalf("%s connections: %+v", connections, r)
		}
		var rep report
		var metrics struct {
			Interrupt, Total, Admitted struct{ N int }
		}
		if err := json.Unmarshal([]byte(r.out), &rep); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(r.out), &metrics); err != nil {
			t.Fatal(err)
		}
		if rep.Sessions != 20 || rep.Rounds != 20 || metrics.Total.N != 20 || rep.Faults.any() || rep.failed() != 0 {
			t.Errorf("%s connections: %s", connections, r.out)
		}
		// Two are stopped; three bring two steers and a followUp each.
		if metrics.Interrupt.N != 2 || metrics.Admitted.N != 29 {
			t.Errorf("%s connections: %d interrupts, %d prompts", connections, metrics.Interrupt.N, metrics.Admitted.N)
		}
		if rep.Notes["connections that broke off and were made anew"] != 2 {
			t.Errorf("%s connections: %v", connections, rep.Notes)
		}
		if rep.Server == nil || rep.Server.CPU <= 0 || rep.Server.End.Memory <= 0 {
			t.Errorf("the server was not measured: %+v", rep.Server)
		}
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "<svg "); n != 5 {
		t.Errorf("%d plots", n)
	}
	for _, outside := range []string{"<script", "<link", "src=", "href=", "url(", "@import"} {
		if strings.Contains(string(b), outside) {
			t.Errorf("the page has %s", outside)
		}
	}
}

func TestAMissedThresholdMakesTheExitCode(t *testing.T) {
	r := load(t, "--sessions", "2", "--scenario", "short", "--floor", "--max", "admitted.p50=1ns", "--max", "wall/floor=100000", "--max", "interrupt.p50=1s")
	if r.code != exitFailed {
		t.Errorf("exit code %d", r.code)
	}
	for _, want := range []string{"missed: admitted.p50=1ns: it is ", "missed: interrupt.p50=1s: not measured", "times that", "failures: 0"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing in\n%s", want, r.out)
		}
	}
	if strings.Contains(r.out, "missed: wall/floor") {
		t.Error(r.out)
	}
}

// What runs beside the sessions is at work all the time, leaves nothing behind,
// and the report has both runs.
func TestFloodersRunBesideAndAreCompared(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	names := strings.Join(flooderNames(), ",")
	r := load(t, "--sessions", "4", "--scenario", "text:5:10", "--beside", names, "--pairs", "2", "--json", "--html", page,
		"--max", "turn.p50/alone=1000", "--max", "admitted.p99/alone=1000", "--min", "delta.p99-alone=-1000")
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	var rep report
	if err := json.Unmarshal([]byte(r.out), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Beside) != len(flooders) || rep.Besides != 1 || rep.Pairs != 2 || rep.Alone == nil || rep.Alone.Beside != nil || rep.Alone.Rounds != 8 || rep.Rounds != 8 {
		t.Errorf("the report is %s", r.out)
	}
	for _, r := range []*report{&rep, rep.Alone} {
		if runtime.GOOS == "linux" && (r.Calm == nil || r.Calm.Delta.N > r.Delta.N || r.SlowSeconds > r.WallSeconds) {
			t.Errorf("of %d pieces in %v s these met no slow moment: %+v", r.Delta.N, r.WallSeconds, r.Calm)
		}
	}
	for _, name := range flooderNames() {
		found := false
		for note := range rep.Notes {
			found = found || strings.HasPrefix(note, "beside: "+name)
		}
		if !found {
			t.Errorf("nothing is said of %s in %v", name, rep.Notes)
		}
	}
	b, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(b), "times that") || !strings.Contains(string(b), "delta, alone") {
		t.Errorf("the page lacks the comparison: %v", err)
	}
	if r := load(t, "--sessions", "2", "--scenario", "short", "--beside", "deaf", "--max", "turn.p50/alone=0.0001"); r.code != exitFailed || !strings.Contains(r.out, "missed: turn.p50/alone") {
		t.Errorf("%+v", r)
	}
}

func TestAnOpenLoopCountsFromWhenAPromptWasDue(t *testing.T) {
	// One session, and prompts that come faster than it can work.
	r := load(t, "--sessions", "1", "--scenario", "text:3:50", "--rate", "40", "--for", "400ms", "--json")
	var rep struct {
		Rounds int64
		Total  struct{ MaxMs, P50Ms float64 }
	}
	if err := json.Unmarshal([]byte(r.out), &rep); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	// The last one waits for all before it, which take 100 ms each.
	if least := float64(rep.Rounds-5) * 100; rep.Rounds < 5 || rep.Total.MaxMs < least {
		t.Errorf("%d rounds, the slowest took %v ms", rep.Rounds, rep.Total.MaxMs)
	}
}

func TestACurveWritesItsPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plots")
	r := load(t, "--curve", "1,3", "--connections", "1,each", "--scenario", "short", "--floor", "--svg", dir, "--json")
	if r.code != 0 || strings.Count(r.out, "\n") != 4 {
		t.Fatalf("%+v", r)
	}
	for _, name := range chartOrder {
		b, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil || !bytes.Contains(b, []byte("<path")) || bytes.Contains(b, []byte("no values")) {
			t.Errorf("%s: %v\n%s", name, err, b)
		}
	}
}

// A run against a server that is there already leaves it as it is.
func TestARunningServerIsUsed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	model, err := startModel("")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	own, err := startProgram(ctx, codework(t), map[string]string{modelProvider: modelAddress(model.URL())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := own.close(); err != nil {
			t.Error(err)
		}
	}()
	var out, errs bytes.Buffer
	for range 2 {
		code := run(ctx, []string{"--server", own.url, "--model-url", modelAddress(model.URL()), "--sessions", "3", "--scenario", "tools", "--dir", own.work}, &out, &errs)
		if code != 0 {
			t.Fatalf("%d\n%s%s", code, out.String(), errs.String())
		}
	}
	if strings.Count(out.String(), "server: CPU") != 2 {
		t.Error(out.String())
	}
	select {
	case <-own.ended:
		t.Error("the server has ended")
	default:
	}
}

func TestWrongUseIsToldBeforeAnythingRuns(t *testing.T) {
	for _, args := range [][]string{
		{"--sessions", "0"}, {"--rate", "5"}, {"--connections", "none"}, {"--connections", "1,2"}, {"--curve", "1,x"},
		{"--max", "wall"}, {"--max", "wall=fast"}, {"--svg", "x"}, {"--model", "x"}, {"extra"}, {"--scenario", "short,unknown"}, {"--codework", "/does/not/exist"},
		{"--beside", "nobody"}, {"--beside", "burn", "--besides", "0"}, {"--beside", "burn", "--pairs", "0"}, {"--pairs", "2"}, {"--beside", "burn", "--model-url", "http://127.0.0.1:1/v1"},
		{"--rate", "NaN", "--for", "1s"}, {"--rate", "Inf", "--for", "1s"}, {"--rate", "1e9", "--for", "1s"}, {"--rate", "90000", "--for", "1h"}, {"--timeout", "0"}, {"--think", "-1s"},
		{"--besides", "3"}, {"--samples", "5"}, {"--idle", "5", "--samples", "5"}, {"--stored", "1000", "--sessions", "5"}, {"--entries", "100", "--rounds", "2"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != exitUsage || out.Len() > 0 || errs.Len() == 0 {
			t.Errorf("%v: %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
}

// What would only be found out at the end, after all was measured, is refused at
// the beginning.
func TestWhatNoRunCanGiveIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--max", "nothing=1"}, "wall events.rate"},
		{[]string{"--min", "admitted=1s"}, "admitted.p50"},
		{[]string{"--max", "wall/floor=1.3"}, "wall"},
		{[]string{"--floor", "--max", "create.p50/floor=2"}, "first.p50/floor"},
		{[]string{"--floor", "--scenario", "churn", "--max", "wall/floor=2"}, "wall"},
		{[]string{"--stored", "1000", "--max", "wall=1s"}, "search.p99"},
		{[]string{"--entries", "100", "--max", "search.p50=1s"}, "cold.few.asked.p50"},
		{[]string{"--idle", "5", "--max", "open.p50=1s"}, "memory.restarted"},
		{[]string{"--html", filepath.Join(dir, "absent", "report.html")}, "--html: open "},
		{[]string{"--html", dir}, "--html: open "},
		{[]string{"--curve", "1", "--svg", file}, "--svg: mkdir "},
	} {
		var out, errs bytes.Buffer
		args := append([]string{"--codework", codework(t)}, c.args...)
		if code := run(t.Context(), args, &out, &errs); code != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%v: %d, %q, %q", c.args, code, out.String(), errs.String())
		}
	}
	// Looking whether a file can be written leaves it as it is.
	absent := filepath.Join(dir, "report.html")
	for _, name := range []string{file, absent} {
		if _, err := parseFlags([]string{"--codework", codework(t), "--html", name}, io.Discard); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if _, err := os.Stat(absent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was made: %v", err)
	}
}

// A threshold may name all that a report has.
func TestEveryMetricOfAReportHasItsName(t *testing.T) {
	j, err := parseFlags([]string{"--codework", codework(t), "--floor", "--beside", "burn", "--scenario", "short"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	some := latencies{}
	some.each(func(s *[]sample) { *s = []sample{{took: time.Second}} })
	whole := func() *report {
		u := usage{CPU: 1, Memory: 1}
		r := &report{WallSeconds: 1, ReadySeconds: 1, Events: 1, Turns: 1, Failures: map[string]int{"one": 1},
			Server: &serverReport{CPU: 1, CPUPerUnit: 1, Idle: u, End: u, Peak: 1, PerSession: 1}}
		r.times = measureAll(some)
		r.Calm = &r.times
		return r
	}
	r := whole()
	r.Alone = whole()
	r.Floor = &report{WallSeconds: 1, Events: 1, Turns: 1}
	r.Floor.times = measureAll(latencies{first: some.first, delta: some.delta, turn: some.turn, total: some.total})
	names := j.metricNames()
	slices.Sort(names)
	if got := slices.Sorted(maps.Keys(r.metrics())); !slices.Equal(got, names) {
		t.Errorf("a report has\n%v\nand a threshold may name\n%v", got, names)
	}
}

// timeout(1) and a terminal send signals to all of a group. Flooders that ended by
// them would leave their work at a server that is not this program's.
func TestFloodersEndTheirWorkWhateverTheSignal(t *testing.T) {
	p, err := startFlood()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	// It still takes an order, and says what became of it.
	if err := p.begin(t.Context(), order{Endpoint: "ws://127.0.0.1:1", Names: []string{"burn"}, Each: 1}); err == nil || !strings.Contains(err.Error(), "did not begin: map[burn: ") {
		t.Errorf("it says %v", err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}
