package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// agents are the columns of the table: the name of each in one-shot runs, and of
// its server's driver.
var agents = []struct{ name, shot, server string }{
	{"codework", "codework", "codework"},
	{"codex", "codex-native", "codex-ws"},
	{"opencode", "opencode", "opencode"},
	{"qwen", "qwen", "qwen"},
	{"pi", "pi", ""}, // has no server
	{"floor", "", floorDriver},
}

// rival is the agent that ratios are to.
const rival = "codex"

// toolTurns is how many tool calls the scenario of tool turns has.
const toolTurns = 20

// The scenarios of one-shot runs.
const (
	oneAnswer = "text:1"
	toolCalls = "tools:20"
	onlyPrint = "version"
)

// warm is the name of codework's runs that find a home process.
const warm = "codework-warm"

// times begins the relation of a ratio.
const times = "× "

// budget is a row of the table.
type budget struct {
	what string
	unit string // of the values
	// value is what an agent needed; false: not measured.
	value func(s *samples, agent int) (float64, bool)
	// own is codework's, where that is another figure than the others'.
	own func(s *samples) (float64, bool)

	limit float64 // not above this
	// against relates codework's value to another's before it is judged; nil
	// judges the value itself.
	against  func(s *samples, own float64) (related float64, unjudged string)
	relation string // in which against stands to its result, such as "× codex"
}

var budgets = []budget{
	{what: "one short answer, cold: wall", unit: "s", value: shots(oneAnswer, wall), limit: 0.5, against: toRival(shots(oneAnswer, wall)), relation: times + rival},
	{what: "… CPU", unit: "s", value: shots(oneAnswer, cpu), limit: 0.3, against: toRival(shots(oneAnswer, cpu)), relation: times + rival},
	{what: "… memory of the tree", unit: "MB", value: shots(oneAnswer, memory), limit: 60},
	{what: "… with a running home process: wall", unit: "s", value: shots(oneAnswer, wall), own: warmly(oneAnswer, wall, nil), limit: 0.15, against: toRival(shots(oneAnswer, wall)), relation: times + rival},
	{what: "… CPU, home process included", unit: "s", value: shots(oneAnswer, cpu), own: warmly(oneAnswer, cpu, homeCPU), limit: 0.15, against: toRival(shots(oneAnswer, cpu)), relation: times + rival},
	{what: "… memory, home process included", unit: "MB", value: shots(oneAnswer, memory), own: warmly(oneAnswer, memory, homeMB), limit: 60},
	{what: "harness time per tool turn, p50", unit: "ms", value: gaps, limit: 5},
	{what: "… with a running home process", unit: "ms", value: gaps, own: func(s *samples) (float64, bool) { return gapsOf(s, warm) }, limit: 5},
	{what: "CPU per tool turn, bash included", unit: "ms", value: turnCPU, limit: 5},
	{what: "… with a running home process", unit: "ms", value: turnCPU, own: warmTurnCPU, limit: 5},
	{what: "first request", unit: "KB", value: shots(oneAnswer, sent), limit: 5},
	{what: "server ready", unit: "s", value: servers("", 0, ofServer(func(l load) float64 { return l.ReadyS })), limit: 0.06},

	{what: "200 sessions prompted at once: wall", unit: "s", value: at200(wallOf), limit: 1.3, against: toFloor(200), relation: times + "floor"},
	{what: "… sessions failed or short", value: failed(200), limit: 0},
	{what: "… prompt admitted, p50", unit: "ms", value: at200(ofServer(func(l load) float64 { return nth(l.AdmitMs, 0) })), limit: 20},
	{what: "… delay of a delta, p99", unit: "ms", value: at200(delay), limit: 20, against: aboveFloor, relation: "ms + floor"},
	{what: "… CPU of the server", unit: "s", value: at200(ofServer(func(l load) float64 { return l.CreateCPU + l.PromptCPU })), limit: 4},
	{what: "… memory above idle per session", unit: "KB", value: at200(ofServer(aboveIdle)), limit: 150},
	{what: "1000 sessions: wall", unit: "s", value: servers("load", 1000, wallOf), limit: 1.5, against: toFloor(1000), relation: times + "floor"},
	{what: "… sessions failed or short", value: failed(1000), limit: 0},

	{what: "interrupt during sleep 60: reported, p50", unit: "ms", value: servers("interrupt", 0, func(l load) float64 { return nth(l.StoppedMs, 0) }), limit: 5},
	{what: "… process gone, p50", unit: "ms", value: servers("interrupt", 0, gone), limit: 5},
	{what: "… left running, or failed", value: left, limit: 0},
	{what: "stripped binary", unit: "MB", own: once("binary_mb"), limit: 25},
	{what: "--version", unit: "ms", value: shots(onlyPrint, func(o oneshot) float64 { return o.Wall * 1000 }), limit: 15},
	{what: "memory of an idle home process", unit: "MB", own: once("idle_mb"), limit: 25},
}

// report prints the table and tells whether every budget is met.
func report(w io.Writer, s *samples) bool {
	head := "| row | budget | measured | |"
	for _, a := range agents {
		head += " " + a.name + " |"
	}
	fmt.Fprintln(w, head)
	fmt.Fprintln(w, "|"+strings.Repeat("---|", strings.Count(head, "|")-1))
	missed := 0
	for _, b := range budgets {
		measured, word := b.judge(s)
		if strings.HasPrefix(word, "missed") || word == "not measured" {
			missed++
			word = "**" + word + "**"
		}
		row := fmt.Sprintf("| %s | %s | %s | %s |", b.what, b.goal(), measured, word)
		for i := range agents {
			row += " " + b.cell(s, i) + " |"
		}
		fmt.Fprintln(w, row)
	}
	for _, a := range agents {
		if why := s.absent[a.name]; why != "" {
			fmt.Fprintf(w, "\n%s is absent: %s.", a.name, why)
		}
	}
	fmt.Fprintf(w, "\n%d budgets: %d not met.\n", len(budgets), missed)
	return missed == 0
}

func (b budget) goal() string {
	if b.against != nil {
		return fmt.Sprintf("≤ %g %s", b.limit, b.relation)
	}
	return strings.TrimSpace(fmt.Sprintf("≤ %g %s", b.limit, b.unit))
}

// judge returns what is compared with the limit, and met, missed or why neither.
func (b budget) judge(s *samples) (measured, word string) {
	v, ok := b.mine(s)
	if !ok {
		return "–", "not measured"
	}
	measured = show(v, b.unit)
	if b.against != nil {
		related, unjudged := b.against(s, v)
		if unjudged != "" {
			return "–", unjudged
		}
		v, measured = related, fmt.Sprintf("%.3g %s", related, b.relation)
	}
	if v > b.limit {
		return measured, "missed"
	}
	return measured, "met"
}

func (b budget) mine(s *samples) (float64, bool) {
	if b.own != nil {
		return b.own(s)
	}
	return b.value(s, 0)
}

// cell is what stands in an agent's column, with its unit.
func (b budget) cell(s *samples, agent int) string {
	v, ok := 0.0, false
	switch {
	case agent == 0:
		v, ok = b.mine(s)
	case b.value != nil:
		v, ok = b.value(s, agent)
	}
	if !ok {
		return "–"
	}
	return show(v, b.unit)
}

// show writes a value with the digits that its unit deserves.
func show(v float64, unit string) string {
	switch {
	case unit == "":
		return fmt.Sprintf("%.0f", v)
	case v == 0:
		return "0 " + unit
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v)))) // three significant ones
	return fmt.Sprintf("%.*f %s", min(max(digits, 0), 3), v, unit)
}

// shots is the median of an agent's counted one-shot runs that ended well.
func shots(scenario string, of func(oneshot) float64) func(*samples, int) (float64, bool) {
	return func(s *samples, agent int) (float64, bool) { return shotsOf(s, agents[agent].shot, scenario, of) }
}

func shotsOf(s *samples, name, scenario string, of func(oneshot) float64) (float64, bool) {
	var all []float64
	for _, o := range s.counted(name, scenario) {
		all = append(all, of(o))
	}
	return median(all)
}

// counted are the runs of an agent that count: those that ended well, and of
// codework none when one did not.
func (s *samples) counted(name, scenario string) (out []oneshot) {
	for _, o := range s.oneshot {
		switch {
		case o.Peer != name || o.Scenario != scenario || o.Run < 0:
		case o.Exit == 0:
			out = append(out, o)
		case name == agents[0].shot || name == warm:
			return nil
		}
	}
	return out
}

// warmly is codework's value in runs that found a home process, with what that
// used itself.
func warmly(scenario string, of func(oneshot) float64, home func(homeSample) float64) func(*samples) (float64, bool) {
	return func(s *samples) (float64, bool) {
		v, ok := shotsOf(s, warm, scenario, of)
		if !ok || home == nil {
			return v, ok
		}
		h, ok := s.home[scenario]
		return v + home(h), ok
	}
}

func wall(o oneshot) float64   { return o.Wall }
func cpu(o oneshot) float64    { return o.User + o.System }
func memory(o oneshot) float64 { return o.TreeMB }

// sent is the first request's size where there is only one.
func sent(o oneshot) float64 { return o.SentKB / float64(max(o.Requests, 1)) }

func homeCPU(h homeSample) float64 { return h.CPU / float64(h.Runs) }
func homeMB(h homeSample) float64  { return h.MB }

// gaps is the median of all times between the end of an answer and the next
// request, the command in between included.
func gaps(s *samples, agent int) (float64, bool) { return gapsOf(s, agents[agent].shot) }

func gapsOf(s *samples, name string) (float64, bool) {
	var all []float64
	for _, o := range s.counted(name, toolCalls) {
		all = append(all, o.GapsMs...)
	}
	return median(all)
}

// turnCPU is what a run with tool calls needs above one without, for each.
func turnCPU(s *samples, agent int) (float64, bool) {
	with, ok1 := shots(toolCalls, cpu)(s, agent)
	without, ok2 := shots(oneAnswer, cpu)(s, agent)
	return 1000 * (with - without) / toolTurns, ok1 && ok2
}

func warmTurnCPU(s *samples) (float64, bool) {
	with, ok1 := warmly(toolCalls, cpu, homeCPU)(s)
	without, ok2 := warmly(oneAnswer, cpu, homeCPU)(s)
	return 1000 * (with - without) / toolTurns, ok1 && ok2
}

// servers is the median of a server's runs: of all for an empty mode and no
// sessions. Runs that lost sessions count only where there are no others, and
// never for codework.
func servers(mode string, sessions int, of func(load) float64) func(*samples, int) (float64, bool) {
	return func(s *samples, agent int) (float64, bool) {
		var clean, all []float64
		for _, l := range s.runs(agent, mode, sessions) {
			v := of(l)
			if math.IsNaN(v) {
				continue
			}
			all = append(all, v)
			if l.Failures == 0 {
				clean = append(clean, v)
			}
		}
		if len(clean) > 0 && agent != 0 {
			all = clean
		}
		return median(all)
	}
}

func (s *samples) runs(agent int, mode string, sessions int) (out []load) {
	name := agents[agent].server
	for _, l := range s.loads {
		if l.Driver == name && name != "" && (mode == "" || l.Mode == mode) && (sessions == 0 || l.Sessions == sessions) &&
			(agent != 0 || l.Mode != "load" || l.floor != nil) {
			out = append(out, l)
		}
	}
	return out
}

func at200(of func(load) float64) func(*samples, int) (float64, bool) {
	return servers("load", 200, of)
}

func wallOf(l load) float64 { return l.WallS }
func delay(l load) float64  { return nth(l.DeltaMs, 2) } // p99

func aboveIdle(l load) float64 { return (l.EndMB - l.IdleMB) * 1024 / float64(l.Sessions) }

// ofServer leaves the floor out, which has no server that could be measured.
func ofServer(of func(load) float64) func(load) float64 {
	return func(l load) float64 {
		if l.Driver == floorDriver {
			return math.NaN()
		}
		return of(l)
	}
}

// gone is how long the command lived on; one that was never seen to go is not in
// it, and told of elsewhere.
func gone(l load) float64 {
	if l.StillAlive > 0 {
		return math.NaN()
	}
	return nth(l.GoneMs, 0)
}

// failed is the largest number of sessions that a run lost or cut short.
func failed(sessions int) func(*samples, int) (float64, bool) {
	return most("load", sessions, func(l load) int { return l.Failures + l.Short })
}

func left(s *samples, agent int) (float64, bool) {
	return most("interrupt", 0, func(l load) int { return l.Failures + l.StillAlive })(s, agent)
}

func most(mode string, sessions int, of func(load) int) func(*samples, int) (float64, bool) {
	return func(s *samples, agent int) (float64, bool) {
		worst := -1
		for _, l := range s.runs(agent, mode, sessions) {
			worst = max(worst, of(l))
		}
		return float64(worst), worst >= 0
	}
}

func once(key string) func(*samples) (float64, bool) {
	return func(s *samples) (float64, bool) {
		v, ok := s.once[key]
		return v, ok
	}
}

// toRival divides by the rival's value of the same run.
func toRival(value func(*samples, int) (float64, bool)) func(*samples, float64) (float64, string) {
	return func(s *samples, own float64) (float64, string) {
		for i, a := range agents {
			if a.name != rival {
				continue
			}
			if v, ok := value(s, i); ok {
				return own / v, ""
			}
		}
		if s.absent[rival] != "" {
			return 0, "not judged: " + rival + " is absent"
		}
		return 0, "not measured" // it is there, so that it failed
	}
}

// toFloor is the median of each round's wall by that round's floor.
func toFloor(sessions int) func(*samples, float64) (float64, string) {
	return func(s *samples, _ float64) (float64, string) {
		v, _ := servers("load", sessions, func(l load) float64 { return l.WallS / l.floor.WallS })(s, 0)
		return v, "" // there is a floor: without one nothing counts as measured
	}
}

// aboveFloor is the median of what each round's delay has above that round's
// floor.
func aboveFloor(s *samples, _ float64) (float64, string) {
	v, _ := at200(func(l load) float64 { return delay(l) - delay(*l.floor) })(s, 0)
	return v, ""
}

// nth is one of the quantiles of a sample.
func nth(v []float64, i int) float64 {
	if i >= len(v) {
		return math.NaN()
	}
	return v[i]
}

func median(v []float64) (float64, bool) {
	if len(v) == 0 {
		return 0, false
	}
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2, true
}
