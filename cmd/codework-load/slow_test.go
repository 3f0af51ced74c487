package main

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSlowMomentsLieBetweenCalmProbes(t *testing.T) {
	const ms = time.Millisecond
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	var probes []probe
	for i := range 200 {
		probes = append(probes, probe{span{at(time.Duration(i) * 4 * ms), at(time.Duration(i)*4*ms + ms)}, 50 * time.Microsecond})
	}
	if s := slowSpans(probes); s != nil {
		t.Errorf("found %v", s)
	}
	probes[0].took, probes[99].took, probes[101].took, probes[150].took = ms, ms, ms, ms
	want := []span{{at(0), at(21 * ms)}, {at(98 * 4 * ms), at(101*4*ms + 21*ms)}, {at(149 * 4 * ms), at(150*4*ms + 21*ms)}}
	if s := slowSpans(probes); !slices.Equal(s, want) {
		t.Errorf("found %v instead of %v", s, want)
	}
	if d := length(want); d != 21*ms+33*ms+25*ms {
		t.Error(d)
	}
	if s := slowSpans(nil); s != nil {
		t.Errorf("found %v without a probe", s)
	}
}

// A sample is calm when slow moments have less than half of it; one that took no
// time, when it is in none.
func TestSlowMomentsHaveLessThanHalfOfCalmSamples(t *testing.T) {
	start := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(1, 10)
		var slow []span
		now := 0
		for range rapid.IntRange(0, 5).Draw(t, "moments") {
			from := now + number.Draw(t, "calm")
			now = from + number.Draw(t, "slow")
			slow = append(slow, span{start.Add(time.Duration(from)), start.Add(time.Duration(now))})
		}
		var samples, want []sample
		for range rapid.IntRange(0, 20).Draw(t, "samples") {
			s := sample{start.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "end"))), time.Duration(rapid.IntRange(0, 30).Draw(t, "took"))}
			samples = append(samples, s)
			met, part := false, 0
			for _, w := range slow {
				met = met || !w.from.After(s.end) && !w.to.Before(s.end.Add(-s.took))
				for at := s.end.Add(-s.took); at.Before(s.end); at = at.Add(1) {
					if !at.Before(w.from) && at.Before(w.to) {
						part++
					}
				}
			}
			if !met || 2*part < int(s.took) {
				want = append(want, s)
			}
		}
		if got := calm(samples, slow); !slices.Equal(got, want) {
			t.Errorf("%v of %v beside %v", got, samples, slow)
		}
	})
}

// A stall of seconds meets a slow moment wherever it is, but is none.
func TestStallsAreNotTakenForSlowMoments(t *testing.T) {
	start := time.Now()
	var slow []span
	for i := range 10 {
		from := start.Add(time.Duration(i) * 1500 * time.Millisecond)
		slow = append(slow, span{from, from.Add(80 * time.Millisecond)})
	}
	stall := sample{start.Add(5 * time.Second), 2 * time.Second}
	slowed := sample{start.Add(1560 * time.Millisecond), 70 * time.Millisecond}
	if got := calm([]sample{stall, slowed}, slow); !slices.Equal(got, []sample{stall}) {
		t.Errorf("calm are %v", got)
	}
}

func TestProbesAreTaken(t *testing.T) {
	stop := watchSlow(t.Context())
	if err := pause(t.Context(), 10*probeGap); err != nil {
		t.Fatal(err)
	}
	if _, ok := stop(); ok != (runtime.GOOS == "linux") {
		t.Errorf("on %s it is %v that there are probes", runtime.GOOS, ok)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if slow, ok := watchSlow(ended)(); ok || slow != nil {
		t.Errorf("%v, %v without time", slow, ok)
	}
}

// TestTheWorkIsDone: a compiler that leaves it out would have clocks and
// interrupts measured.
func TestTheWorkIsDone(t *testing.T) {
	var x uint64
	took := func(rounds int) time.Duration {
		least := time.Hour
		for range 20 {
			d, ok := threadCPU(func() { x = work(x, rounds) })
			if !ok {
				t.Skip("no processor time of threads on " + runtime.GOOS)
			}
			least = min(least, d)
		}
		return least
	}
	if one, ten := took(probeWork), took(10*probeWork); ten < 5*one || one < probeWork*time.Nanosecond/2 {
		t.Errorf("the work takes %v, ten times that %v: %x", one, ten, x)
	}
}
