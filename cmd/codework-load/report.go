package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what was measured in one run.
type report struct {
	Driver      string    `json:"driver"` // codework, or direct: straight to the model
	Scenario    string    `json:"scenario"`
	Sessions    int       `json:"sessions"`
	Connections int       `json:"connections"` // 0: one each
	Seed        uint64    `json:"seed"`
	Rate        float64   `json:"rate,omitempty"` // prompts a second of an open loop
	Began       time.Time `json:"began"`
	Machine     machine   `json:"machine"`

	ReadySeconds  float64 `json:"readySeconds,omitempty"` // of a server of the run's own
	CreateSeconds float64 `json:"createSeconds,omitempty"`
	WallSeconds   float64 `json:"wallSeconds"` // from the first prompt to the last end
	times

	Rounds   int64          `json:"rounds"`
	Turns    int64          `json:"turns"`
	Events   int64          `json:"events"`
	Failures map[string]int `json:"failures"`
	Faults   faults         `json:"faults"`
	Notes    map[string]int `json:"notes,omitempty"`
	Missed   []string       `json:"missed,omitempty"` // thresholds

	Server   *serverReport `json:"server,omitempty"`
	LoadCPU  float64       `json:"loadCPUSeconds"` // of this program, its model included
	Timeline []moment      `json:"timeline,omitempty"`
	Floor    *report       `json:"floor,omitempty"`
	Beside   []string      `json:"beside,omitempty"` // flooders that ran all the time
	Besides  int           `json:"besides,omitempty"`
	Pairs    int           `json:"pairs,omitempty"` // runs that were put together
	Alone    *report       `json:"alone,omitempty"` // the same without them

	SlowSeconds float64 `json:"slowSeconds,omitempty"` // in which the machine itself was slow
	Calm        *times  `json:"calm,omitempty"`        // the latencies without those that such moments explain
}

// times are the latencies of a run.
type times struct {
	Create    quantiles `json:"create"`
	Admitted  quantiles `json:"admitted"`
	First     quantiles `json:"first"`
	Delta     quantiles `json:"delta"`
	Turn      quantiles `json:"turn"`
	Interrupt quantiles `json:"interrupt"`
	Total     quantiles `json:"total"`
}

// machine is where it was measured.
type machine struct {
	CPUs int     `json:"cpus"`
	OS   string  `json:"os"`
	Arch string  `json:"arch"`
	Go   string  `json:"go"`
	Load float64 `json:"loadAverage"` // before the run, over one minute
}

// serverReport is what the server used, with all its processes.
type serverReport struct {
	CPUPrepare float64 `json:"cpuPrepareSeconds"` // start, connections, sessions
	CPU        float64 `json:"cpuSeconds"`        // of the work
	CPUPerUnit float64 `json:"cpuMicrosecondsPerEvent"`
	Idle       usage   `json:"idle"`
	Created    usage   `json:"created"`
	End        usage   `json:"end"`
	Peak       int64   `json:"peakBytes"`
	PerSession int64   `json:"bytesPerSession"` // at the end, above idle
}

func (p plan) report(driver string) *report {
	if p.beside == nil {
		p.besides, p.pairs = 0, 0
	}
	return &report{Driver: driver, Beside: p.beside, Besides: p.besides, Pairs: p.pairs, Scenario: p.scenario.name, Sessions: p.sessions, Connections: p.connections, Seed: p.seed, Rate: p.rate, Began: time.Now(),
		Machine: machine{runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), loadAverage()}}
}

func serverUsage(idle, created, ended usage, timeline []moment, sessions int, events int64) *serverReport {
	s := &serverReport{CPUPrepare: created.CPU, CPU: ended.CPU - created.CPU, Idle: idle, Created: created, End: ended, Peak: max(created.Memory, ended.Memory)}
	for _, m := range timeline {
		s.Peak = max(s.Peak, m.Memory)
	}
	s.PerSession = (ended.Memory - idle.Memory) / int64(sessions)
	s.perUnit(events)
	return s
}

func (s *serverReport) perUnit(events int64) {
	if events > 0 {
		s.CPUPerUnit = s.CPU / float64(events) * 1e6
	}
}

// add puts another run of the same to a report. Memory stays that of the first,
// the timeline that of the last.
func (r *report) add(o *report) {
	r.times.add(&o.times)
	if r.Calm != nil && o.Calm != nil {
		r.Calm.add(o.Calm)
		r.SlowSeconds += o.SlowSeconds
	}
	r.WallSeconds += o.WallSeconds
	r.LoadCPU += o.LoadCPU
	r.Rounds += o.Rounds
	r.Turns += o.Turns
	r.Events += o.Events
	addCounts(r.Failures, o.Failures)
	addCounts(r.Notes, o.Notes)
	r.Faults.add(o.Faults)
	r.Timeline = o.Timeline
	if r.Server != nil && o.Server != nil {
		r.Server.CPUPrepare += o.Server.CPUPrepare
		r.Server.CPU += o.Server.CPU
		r.Server.perUnit(r.Events)
	}
}

// add puts the latencies of another run to these.
func (t *times) add(o *times) {
	for _, p := range []struct{ to, from *quantiles }{
		{&t.Create, &o.Create}, {&t.Admitted, &o.Admitted}, {&t.First, &o.First}, {&t.Delta, &o.Delta},
		{&t.Turn, &o.Turn}, {&t.Interrupt, &o.Interrupt}, {&t.Total, &o.Total},
	} {
		*p.to = measure(slices.Concat(p.to.sorted, p.from.sorted))
	}
}

// measureAll measures all that sessions took down.
func measureAll(l latencies) times {
	return times{measureSamples(l.create), measureSamples(l.admitted), measureSamples(l.first), measureSamples(l.delta),
		measureSamples(l.turn), measureSamples(l.interrupt), measureSamples(l.total)}
}

// calm adds the latencies without those that slow moments explain.
func (r *report) calm(l latencies, slow []span) {
	l.each(func(s *[]sample) { *s = calm(*s, slow) })
	t := measureAll(l)
	r.SlowSeconds, r.Calm = length(slow).Seconds(), &t
}

// rows are the latencies by name.
func (t *times) rows() []struct {
	name, about string
	q           quantiles
} {
	return []struct {
		name, about string
		q           quantiles
	}{
		{"create", "a session is made", t.Create},
		{"admitted", "a prompt is on disk", t.Admitted},
		{"first", "first piece of the answer", t.First},
		{"delta", "a piece, from the model to the client", t.Delta},
		{"turn", "a turn", t.Turn},
		{"interrupt", "until the work has stopped", t.Interrupt},
		{"total", "a prompt until its work is done", t.Total},
	}
}

// calmly is in front of the names of latencies that no slow moments explain.
const calmly = "calm."

// failed counts all failures.
func (r *report) failed() (n int) {
	for _, v := range r.Failures {
		n += v
	}
	return n
}

// metrics are all values that a threshold can name. Times are in seconds,
// memory in bytes.
func (r *report) metrics() map[string]float64 {
	m := map[string]float64{"wall": r.WallSeconds, "ready": r.ReadySeconds, "failures": float64(r.failed())}
	for _, row := range r.rows() {
		row.q.metrics(m, row.name)
	}
	if r.Calm != nil {
		for _, row := range r.Calm.rows() {
			row.q.metrics(m, calmly+row.name)
		}
	}
	if r.WallSeconds > 0 {
		m["events.rate"], m["turns.rate"] = float64(r.Events)/r.WallSeconds, float64(r.Turns)/r.WallSeconds
	}
	if s := r.Server; s != nil {
		m["cpu"], m["cpu.event"] = s.CPU, s.CPUPerUnit/1e6
		m["memory.idle"], m["memory.end"], m["memory.peak"] = float64(s.Idle.Memory), float64(s.End.Memory), float64(s.Peak)
		m["memory.session"] = float64(s.PerSession)
	}
	compared := maps.Clone(m)
	for what, other := range map[string]*report{"floor": r.Floor, "alone": r.Alone} {
		if other == nil {
			continue
		}
		for name, base := range other.metrics() {
			if v, ok := m[name]; ok && base != 0 {
				compared[name+"/"+what], compared[name+"-"+what] = v/base, v-base
			}
		}
	}
	return compared
}

// print writes the report as a table for people.
func (r *report) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %s, seed %d, load average %.1f on %d processors\n",
		r.Scenario, plural(r.Sessions, "session"), connectionsText(r.Connections), r.Seed, r.Machine.Load, r.Machine.CPUs)
	if r.Alone != nil {
		fmt.Fprintf(&b, "beside %d × %s; runs of either kind: %d\n", r.Besides, strings.Join(r.Beside, ", "), r.Pairs)
	}
	printLatencies(&b, &r.times, timesOf(r.Floor), timesOf(r.Alone))
	if a := r.Alone; a != nil && r.Calm != nil && a.Calm != nil {
		fmt.Fprintf(&b, "without what lay by half in moments in which the machine itself was slow (%.1f %% of the time; alone %.1f %%):\n",
			r.SlowSeconds/r.WallSeconds*100, a.SlowSeconds/a.WallSeconds*100)
		printLatencies(&b, r.Calm, nil, a.Calm)
	}
	fmt.Fprintf(&b, "%.2f s", r.WallSeconds)
	if f := r.Floor; f != nil && f.WallSeconds > 0 {
		fmt.Fprintf(&b, " (floor %.2f s, %.2f times that)", f.WallSeconds, r.WallSeconds/f.WallSeconds)
	}
	fmt.Fprintf(&b, ": %d rounds, %d turns (%.0f/s), %d events (%.0f/s)\n", r.Rounds, r.Turns, float64(r.Turns)/r.WallSeconds, r.Events, float64(r.Events)/r.WallSeconds)
	if s := r.Server; s != nil {
		fmt.Fprintf(&b, "server: CPU %.2f s + %.2f s to prepare, %.0f µs an event; memory %s idle, %s at the end, %s at most, %s a session\n",
			s.CPU, s.CPUPrepare, s.CPUPerUnit, bytesText(s.Idle.Memory), bytesText(s.End.Memory), bytesText(s.Peak), bytesText(s.PerSession))
	}
	fmt.Fprintf(&b, "this program with its model: CPU %.2f s\n", r.LoadCPU)
	for _, k := range slices.Sorted(maps.Keys(r.Notes)) {
		fmt.Fprintf(&b, "%s: %d\n", k, r.Notes[k])
	}
	f := r.Faults
	fmt.Fprintf(&b, "lost: %d events, %d pieces of text; doubled: %d, %d; answers that differ from their pieces: %d\n",
		f.LostEvents, f.LostDeltas, f.DoubledEvents, f.DoubledDeltas, f.WrongTexts)
	fmt.Fprintf(&b, "failures: %d\n", r.failed())
	for _, k := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Fprintf(&b, "  %d × %s\n", r.Failures[k], k)
	}
	if a := r.Alone; a != nil && !a.good() {
		fmt.Fprintf(&b, "alone: lost or doubled %v, failures %v\n", a.Faults, a.Failures)
	}
	for _, m := range r.Missed {
		fmt.Fprintf(&b, "missed: %s\n", m)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printLatencies writes a table of latencies, and under each those of others, of
// which any may be nil.
func printLatencies(w io.Writer, r, floor, alone *times) {
	t := latencyTable(w)
	defer t.Flush() // into memory
	for i, row := range r.rows() {
		latencyRow(t, row.name, row.q)
		if floor != nil {
			latencyRow(t, "floor", floor.rows()[i].q)
		}
		if alone == nil {
			continue
		}
		under := alone.rows()[i].q
		latencyRow(t, "alone", under)
		if row.q.N > 0 && under.N > 0 {
			fmt.Fprintf(t, "times that\t\t%s\t%s\t%s\t%s\t\n", ratio(row.q.P50, under.P50), ratio(row.q.P90, under.P90), ratio(row.q.P99, under.P99), ratio(row.q.Max, under.Max))
		}
	}
}

// latencyTable is a table whose rows are latencies.
func latencyTable(w io.Writer) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tn\tp50\tp90\tp99\tmax\t")
	return t
}

func latencyRow(t *tabwriter.Writer, name string, q quantiles) {
	if q.N > 0 {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t\n", name, q.N, short(q.P50), short(q.P90), short(q.P99), short(q.Max))
	}
}

// timesOf are the latencies of a run, if there is one.
func timesOf(r *report) *times {
	if r == nil {
		return nil
	}
	return &r.times
}

// ratio is how often a fits into b.
func ratio(a, b time.Duration) string {
	if b == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", float64(a)/float64(b))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func connectionsText(n int) string {
	if n == 0 {
		return "a connection each"
	}
	return plural(n, "connection")
}

// short is a duration with as many digits as count.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", ms(d))
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", ms(d))
	case d < 10*time.Second:
		return fmt.Sprintf("%.0f ms", ms(d))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// bytesText is a size in KB or MB of 1024.
func bytesText(n int64) string {
	if math.Abs(float64(n)) < 1<<20 {
		return fmt.Sprintf("%.0f KB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
}
