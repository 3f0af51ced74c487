package main

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQuantilesAreValuesThatWereMeasured(t *testing.T) {
	var ten []time.Duration
	for i := range 10 {
		ten = append(ten, time.Duration(10-i))
	}
	q := measure(ten)
	if q.N != 10 || q.P50 != 5 || q.P90 != 9 || q.P99 != 10 || q.Max != 10 {
		t.Errorf("%+v", q)
	}
	if q := measure(nil); q.N != 0 || q.Max != 0 {
		t.Errorf("of nothing: %+v", q)
	}
	if q := measure([]time.Duration{7}); q.P50 != 7 || q.P99 != 7 {
		t.Errorf("of one: %+v", q)
	}
}

// At least the share p of all values is not above the quantile, and less than p
// is below it.
func TestQuantilesSplitTheValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, 50), 1, 300).Draw(t, "values")
		percent := rapid.IntRange(1, 100).Draw(t, "percent")
		var d []time.Duration
		for _, v := range values {
			d = append(d, time.Duration(v))
		}
		at := measure(d).at(float64(percent) / 100)
		below, upTo := 0, 0
		for _, v := range d {
			if v < at {
				below++
			}
			if v <= at {
				upTo++
			}
		}
		if upTo*100 < percent*len(d) || below*100 >= percent*len(d) {
			t.Errorf("%d%% of %v: %d, with %d below and %d up to it", percent, d, at, below, upTo)
		}
	})
}

func TestThresholds(t *testing.T) {
	metrics := map[string]float64{"admitted.p50": 0.020, "memory.session": 200 << 10, "wall/floor": 1.3, "failures": 0}
	for text, want := range map[string]string{
		"admitted.p50=20ms":    "",
		"admitted.p50=19ms":    "it is 20ms",
		"admitted.p50=0.019":   "it is 0.02",
		"memory.session=200KB": "",
		"memory.session=150KB": "it is 200.0KB",
		"memory.session=1MB":   "",
		"wall/floor=1.2":       "it is 1.3",
		"failures=0":           "",
		"delta.p99=1s":         "not measured",
	} {
		th, err := parseThreshold(text, false)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		missed := strings.Join(check([]threshold{th}, metrics), "; ")
		if (missed == "") != (want == "") || !strings.Contains(missed, want) {
			t.Errorf("%s: %q, want %q", text, missed, want)
		}
	}
	th, err := parseThreshold("wall/floor=1.4", true)
	if err != nil || len(check([]threshold{th}, metrics)) != 1 {
		t.Errorf("a value below the least is not missed: %v", err)
	}
	for _, text := range []string{"", "wall", "=1", "wall=", "wall=soon", "wall=1XB"} {
		if _, err := parseThreshold(text, false); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestScenarios(t *testing.T) {
	sc, err := parseScenario("stream=3,tools")
	if err != nil || len(sc.kinds) != 4 || sc.kinds[3].name != "tools" || sc.kinds[0].name != "stream" {
		t.Errorf("%+v, %v", sc, err)
	}
	if sc, err = parseScenario("text:7:1,ttfb:5"); err != nil || sc.kinds[0].marks[0] != "text:7:1,ttfb:5" {
		t.Errorf("%+v, %v", sc, err)
	}
	for _, bad := range []string{"", "unknown", "stream=0", "stream=x", "stream=1001", "stream,,tools"} {
		if _, err := parseScenario(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, name := range scenarioNames() {
		if _, err := parseScenario(name); err != nil {
			t.Error(err)
		}
	}
	seeded := func(seed uint64) (out []string) {
		mix, err := parseScenario("mix")
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, 0))
		mix = mix.shuffled(r)
		for i := range 30 {
			out = append(out, mix.of(i).name+" "+mix.of(i).prompt(r, i, 0))
		}
		return out
	}
	if !reflect.DeepEqual(seeded(1), seeded(1)) || reflect.DeepEqual(seeded(1), seeded(2)) {
		t.Error("the seed does not decide")
	}
}
