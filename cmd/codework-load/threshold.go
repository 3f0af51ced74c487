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

// check tells which thresholds a run missed. One that was not measured is
// missed.
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
