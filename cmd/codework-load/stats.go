package main

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// quantiles describe a set of durations exactly. The zero value is of an empty
// set.
type quantiles struct {
	N                  int
	P50, P90, P99, Max time.Duration

	sorted []time.Duration
}

// measure sorts d, which it takes over.
func measure(d []time.Duration) quantiles {
	slices.Sort(d)
	q := quantiles{N: len(d), sorted: d}
	q.P50, q.P90, q.P99, q.Max = q.at(0.5), q.at(0.9), q.at(0.99), q.at(1)
	return q
}

// measureSamples measures how long samples took.
func measureSamples(samples []sample) quantiles {
	d := make([]time.Duration, len(samples))
	for i, s := range samples {
		d[i] = s.took
	}
	return measure(d)
}

// at is the least value that is not exceeded by a share p of all, 0 when there
// is none.
func (q quantiles) at(p float64) time.Duration {
	if len(q.sorted) == 0 {
		return 0
	}
	// Half a billionth less, so that 0.9 of 10 is 9 in spite of binary fractions.
	i := int(math.Ceil(p*float64(len(q.sorted))-5e-10)) - 1
	return q.sorted[min(max(i, 0), len(q.sorted)-1)]
}

// metrics puts the values under their names, in seconds.
func (q quantiles) metrics(into map[string]float64, name string) {
	if q.N == 0 {
		return
	}
	into[name+".p50"], into[name+".p90"] = q.P50.Seconds(), q.P90.Seconds()
	into[name+".p99"], into[name+".max"] = q.P99.Seconds(), q.Max.Seconds()
}

// MarshalJSON gives milliseconds.
func (q quantiles) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		N   int     `json:"n"`
		P50 float64 `json:"p50Ms"`
		P90 float64 `json:"p90Ms"`
		P99 float64 `json:"p99Ms"`
		Max float64 `json:"maxMs"`
	}{q.N, ms(q.P50), ms(q.P90), ms(q.P99), ms(q.Max)})
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// sample is one latency, and when it was over.
type sample struct {
	end  time.Time
	took time.Duration
}

func took(began, end time.Time) sample { return sample{end, end.Sub(began)} }

// latencies are the samples of one session or of all.
type latencies struct {
	create, admitted, first, delta, turn, interrupt, total []sample
}

// each visits all kinds of samples.
func (l *latencies) each(visit func(*[]sample)) {
	for _, s := range []*[]sample{&l.create, &l.admitted, &l.first, &l.delta, &l.turn, &l.interrupt, &l.total} {
		visit(s)
	}
}

func (l *latencies) add(m *latencies) {
	for _, p := range []struct{ to, from *[]sample }{
		{&l.create, &m.create}, {&l.admitted, &m.admitted}, {&l.first, &m.first}, {&l.delta, &m.delta},
		{&l.turn, &m.turn}, {&l.interrupt, &m.interrupt}, {&l.total, &m.total},
	} {
		*p.to = append(*p.to, *p.from...)
	}
}
