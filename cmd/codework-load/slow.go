package main

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A virtual machine's processors may be slow for moments, whatever runs: once in
// 1.5 seconds, for 30 to 80 ms, on the one for which this was written. They are
// found by how much processor time a fixed piece of work takes. That does not grow
// when others want the processors, only when these are slow.
const (
	probeGap  = 4 * time.Millisecond
	probeWork = 15000 // rounds, some 50 µs
	// slowFactor is how many times the median of a run a probe takes in a slow
	// moment.
	slowFactor = 2.5
	// slowAfter is how long what had to wait may make others wait.
	slowAfter = 20 * time.Millisecond
)

// span is a part of a run.
type span struct{ from, to time.Time }

// probe is one measurement, which is a gap after the one before, and the processor
// time that it took.
type probe struct {
	span
	took time.Duration
}

// watchSlow looks for slow moments until the function it returns is called, which
// gives them; not ok where processor time cannot be measured.
func watchSlow(ctx context.Context) (stop func() (slow []span, ok bool)) {
	ctx, cancel := context.WithCancel(ctx)
	var probes []probe
	var wg sync.WaitGroup
	wg.Go(func() {
		var done uint64
		for pause(ctx, probeGap) == nil {
			at := time.Now()
			took, ok := threadCPU(func() { done = work(done, probeWork) })
			if !ok {
				return
			}
			probes = append(probes, probe{span{at, time.Now()}, took})
		}
		runtime.KeepAlive(done) // or the compiler might leave out the work
	})
	return func() ([]span, bool) {
		cancel()
		wg.Wait()
		return slowSpans(probes), len(probes) > 0
	}
}

// work does a fixed number of rounds from x on, each of which needs the result of
// the one before, and no memory.
func work(x uint64, rounds int) uint64 {
	for range rounds {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

// slowSpans are the slow moments among probes, from the probe before on, which was
// not slow yet.
func slowSpans(probes []probe) (spans []span) {
	var times []time.Duration
	for _, p := range probes {
		times = append(times, p.took)
	}
	limit := time.Duration(slowFactor * float64(measure(times).P50))
	for i, p := range probes {
		if p.took <= limit {
			continue
		}
		s := span{probes[max(i-1, 0)].from, p.to.Add(slowAfter)}
		if last := len(spans) - 1; last >= 0 && !s.from.After(spans[last].to) {
			spans[last].to = s.to
		} else {
			spans = append(spans, s)
		}
	}
	return spans
}

// length is how long spans are together.
func length(spans []span) (d time.Duration) {
	for _, s := range spans {
		d += s.to.Sub(s.from)
	}
	return d
}

// calm are the samples that no slow moment explains: those of which slow moments
// have less than half. What takes longer than from one to the next meets some
// whatever held it up, and a server that stalls must not look calm for that. Spans
// are in order and do not touch each other.
func calm(samples []sample, slow []span) (out []sample) {
	for _, s := range samples {
		began := s.end.Add(-s.took)
		i, _ := slices.BinarySearchFunc(slow, began, func(w span, began time.Time) int { return w.to.Compare(began) })
		met := false
		var part time.Duration
		for ; i < len(slow) && !slow[i].from.After(s.end); i++ {
			met = true
			from, to := slow[i].from, slow[i].to
			if from.Before(began) {
				from = began
			}
			if to.After(s.end) {
				to = s.end
			}
			part += to.Sub(from)
		}
		if !met || 2*part < s.took {
			out = append(out, s)
		}
	}
	return out
}
