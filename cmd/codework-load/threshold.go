package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// threshold is a bound that a run must keep.
type threshold struct {
	text   string
	metric string
	bound  float64
	least  bool // the value must not be below, instead of above
}

// parseThreshold reads METRIC=VALUE. A value is a duration (20ms), a size
// (150KB, of 1024) or a number.
func parseThreshold(text string, least bool) (threshold, error) {
	metric, value, ok := strings.Cut(text, "=")
	if !ok || metric == "" {
		return threshold{}, fmt.Errorf("%q: expected METRIC=VALUE", text)
	}
	t := threshold{text: text, metric: metric, least: least}
	var err error
	if t.bound, err = parseValue(value); err != nil {
		return t, fmt.Errorf("%q: %w", text, err)
	}
	return t, nil
}

// units are sizes; the longer names first.
var units = []struct {
	suffix string
	size   float64
}{{"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}}

func parseValue(s string) (float64, error) {
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		return v, nil
	}
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			if v, err := strconv.ParseFloat(n, 64); err == nil {
				return v * u.size, nil
			}
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is neither a duration, a size (KB, MB, GB) nor a number", s)
	}
	return d.Seconds(), nil
}

// The metrics of the kinds of runs: those that are measured often have quantiles
// behind their names. The floor has no server, and prompts nobody.
var (
	loadTimes    = []string{"create", "admitted", "first", "delta", "turn", "interrupt", "total"}
	calmTimes    = []string{"calm.create", "calm.admitted", "calm.first", "calm.delta", "calm.turn", "calm.interrupt", "calm.total"}
	loadNumbers  = []string{"wall", "events.rate", "turns.rate"}
	loadServer   = []string{"ready", "failures", "cpu", "cpu.event", "memory.idle", "memory.end", "memory.peak", "memory.session"}
	floorTimes   = []string{"first", "delta", "turn", "total"}
	storedTimes  = []string{"list", "middle", "folder", "search", "common", "nothing", "open", "cli", "cli.search", longest}
	entriesTimes = []string{"open", "end", "middle",
		"cold", "cold.admitted", "cold.asked", "cold.few", "cold.few.admitted", "cold.few.asked",
		"again", "again.admitted", "again.asked",
		"turn", "turn.admitted", "turn.asked", "turn.few", "turn.few.admitted", "turn.few.asked"}
	idleNumbers = []string{"memory.empty", "memory.made", "memory.restarted", "cpu.empty", "cpu.made", "cpu.restarted"}
)

// quantileNames are names with each of the quantiles.
func quantileNames(times []string) (names []string) {
	for _, name := range times {
		for _, q := range []string{".p50", ".p90", ".p99", ".max"} {
			names = append(names, name+q)
		}
	}
	return names
}

// metricNames are the metrics that the runs of a job may give.
func (j *job) metricNames() (names []string) {
	if j.stock.wanted() {
		names = []string{"ready", "failures"}
		if j.stock.stored != nil {
			names = append(names, quantileNames(storedTimes)...)
		}
		if j.stock.entries != nil {
			names = append(names, quantileNames(entriesTimes)...)
		}
		if j.stock.idle != nil {
			names = append(names, idleNumbers...)
		}
		return names
	}
	plain := slices.Concat(loadNumbers, loadServer, quantileNames(loadTimes))
	names = slices.Clone(plain)
	compared := func(what string, with []string) {
		for _, name := range with {
			names = append(names, name+"/"+what, name+"-"+what)
		}
	}
	if j.floor && j.scenario.comparable() {
		compared("floor", append(quantileNames(floorTimes), loadNumbers...))
	}
	if j.beside != nil {
		plain = append(plain, quantileNames(calmTimes)...)
		names = append(names, quantileNames(calmTimes)...)
		compared("alone", plain)
	}
	return names
}

// checkThresholds refuses those that no run could keep, since none gives their
// metric.
func (j *job) checkThresholds() error {
	names := j.metricNames()
	for _, t := range j.thresholds {
		if !slices.Contains(names, t.metric) {
			return fmt.Errorf("%q: no metric of this run is called %q; there are %s", t.text, t.metric, strings.Join(names, " "))
		}
	}
	return nil
}

// check tells which thresholds a run missed. One that was not measured, because
// what it names did not happen, is missed.
func check(all []threshold, metrics map[string]float64) (missed []string) {
	for _, t := range all {
		v, ok := metrics[t.metric]
		switch {
		case !ok:
			missed = append(missed, fmt.Sprintf("%s: not measured; measured were %s", t.text, strings.Join(slices.Sorted(maps.Keys(metrics)), " ")))
		case t.least && v < t.bound, !t.least && v > t.bound:
			missed = append(missed, fmt.Sprintf("%s: it is %s", t.text, t.show(v)))
		}
	}
	return missed
}

// show writes a value in the unit of the bound.
func (t threshold) show(v float64) string {
	_, value, _ := strings.Cut(t.text, "=")
	for _, u := range units {
		if strings.HasSuffix(value, u.suffix) {
			return fmt.Sprintf("%.1f%s", v/u.size, u.suffix)
		}
	}
	if _, err := time.ParseDuration(value); err == nil && value != "0" {
		return time.Duration(v * float64(time.Second)).Round(10 * time.Microsecond).String()
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// thresholds is a flag that may be repeated.
type thresholds struct {
	least bool
	all   *[]threshold
}

func (t thresholds) String() string { return "" }

func (t thresholds) Set(s string) error {
	one, err := parseThreshold(s, t.least)
	if err == nil {
		*t.all = append(*t.all, one)
	}
	return err
}
