package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wellFormed fails for anything that is no XML, or that fetches or runs
// something.
func wellFormed(t interface{ Fatalf(string, ...any) }, svg []byte) {
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if e, ok := tok.(xml.StartElement); ok {
			switch e.Name.Local {
			case "svg", "title", "rect", "text", "line", "path", "g", "circle":
			default:
				t.Fatalf("an element %s", e.Name.Local)
			}
		}
	}
}

func chart() Chart {
	return Chart{Title: "Delay & <load>", X: Axis{Label: "sessions", Log: true, Ticks: []float64{1, 10, 100}}, Y: Axis{Label: "ms", Zero: true}, Marks: true,
		Series: []Series{{Name: "one", Points: []Point{{1, 5}, {10, 20}, {100, 10}}}, {Name: "two", Points: []Point{{0, 3}, {10, math.NaN()}}}}}
}

func TestPointsStandWhereTheirValuesAre(t *testing.T) {
	svg := chart().SVG()
	wellFormed(t, svg)
	if !bytes.Equal(svg, chart().SVG()) {
		t.Error("the same chart twice is not the same")
	}
	path := regexp.MustCompile(`M([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)"`).FindSubmatch(svg)
	if path == nil {
		t.Fatalf("no line in\n%s", svg)
	}
	var at [6]float64
	for i := range at {
		at[i], _ = strconv.ParseFloat(string(path[i+1]), 64)
	}
	middle := float64(left+width-right) / 2
	if at[0] != left || at[4] != width-right || math.Abs(at[2]-middle) > 0.1 {
		t.Errorf("decades are not equally far apart: %v", at)
	}
	// From 0 to 20, the top is 20.
	if at[3] != top || math.Abs(at[1]-(height-bottom-float64(height-bottom-top)/4)) > 0.1 {
		t.Errorf("heights %v", at)
	}
	if n := strings.Count(string(svg), "<circle"); n != 3 {
		t.Errorf("%d points; those that cannot be shown are left out", n)
	}
	if !bytes.Contains(svg, []byte("Delay &amp; &lt;load&gt;")) {
		t.Error("the title is not escaped")
	}
}

func TestAChartWithoutPointsSaysSo(t *testing.T) {
	svg := Chart{Title: "t", Y: Axis{Log: true}, Series: []Series{{Name: "s", Points: []Point{{1, 0}, {2, -1}}}}}.SVG()
	wellFormed(t, svg)
	if !bytes.Contains(svg, []byte("no values")) {
		t.Errorf("%s", svg)
	}
}

// Whatever the values, all is drawn inside the picture and nothing is endless.
func TestEveryChartIsAPicture(t *testing.T) {
	numbers := regexp.MustCompile(`(?:cx|cy)="([^"]+)"`)
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.Float64Range(-1e6, 1e12), rapid.Just(0.0), rapid.Float64Range(1e-6, 1))
		c := Chart{Title: rapid.String().Draw(t, "title"), Marks: true,
			X: Axis{Log: rapid.Bool().Draw(t, "logX"), Zero: rapid.Bool().Draw(t, "zeroX")},
			Y: Axis{Log: rapid.Bool().Draw(t, "logY"), Zero: rapid.Bool().Draw(t, "zeroY")}}
		for range rapid.IntRange(0, 4).Draw(t, "series") {
			s := Series{Name: rapid.String().Draw(t, "name")}
			for range rapid.IntRange(0, 5).Draw(t, "points") {
				s.Points = append(s.Points, Point{value.Draw(t, "x"), value.Draw(t, "y")})
			}
			c.Series = append(c.Series, s)
		}
		svg := c.SVG()
		wellFormed(t, svg)
		for _, m := range numbers.FindAllSubmatch(svg, -1) {
			v, err := strconv.ParseFloat(string(m[1]), 64)
			if err != nil || v < 0 || v > width {
				t.Fatalf("a point at %s", m[1])
			}
		}
		if len(svg) > 100_000 {
			t.Fatalf("%d bytes", len(svg))
		}
	})
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 12.345: "12.3", 1500: "1500", 20000: "20k", 123456: "123k", 2e6: "2M", 3.5e9: "3.5G", -20000: "-20k"} {
		if got := Number(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}
