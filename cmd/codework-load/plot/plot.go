// Package plot draws line charts as SVG, with nothing but numbers and text in
// it: no scripts, no fonts to fetch, readable on a light and on a dark page.
//
// The same chart gives the same bytes. Points that a logarithmic axis cannot
// show are left out, as are values that are no numbers. A chart without points
// says so in its place.
package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Point is one measured value.
type Point struct{ X, Y float64 }

// Series is one line.
type Series struct {
	Name   string
	Points []Point // in order of X
}

// Axis says how an axis is drawn.
type Axis struct {
	Label string
	Log   bool // logarithmic, base 10
	Zero  bool // begins at 0, unless it is logarithmic
	// Ticks, if not nil, are the values that are named.
	Ticks []float64
}

// Chart is a line chart.
type Chart struct {
	Title  string
	X, Y   Axis
	Series []Series
	Marks  bool // each point is marked
}

// Sizes in pixels.
const (
	width, height = 640, 360
	left, right   = 72, 16
	top, bottom   = 40, 64
	legendRow     = 16
	charWidth     = 7 // of the small font, about
)

// colors tell the lines apart, for people who see few colors, too.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000"}

// dashes tell the lines apart without colors.
var dashes = []string{"", "6 3", "2 2", "8 3 2 3"}

// SVG draws the chart.
func (c Chart) SVG() []byte {
	var b bytes.Buffer
	rows := c.legendRows()
	h := height + rows*legendRow
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="sans-serif" font-size="12">`, width, h, width, h)
	b.WriteString("<title>" + escape(c.Title) + "</title>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, h)
	text(&b, left, 22, "start", 14, c.Title)
	x, y, ok := c.scales()
	if !ok {
		text(&b, width/2, height/2, "middle", 12, "no values")
		b.WriteString("</svg>\n")
		return b.Bytes()
	}
	c.frame(&b, x, y)
	for i, s := range c.Series {
		c.line(&b, i, s, x, y)
	}
	c.legend(&b)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// scale maps values to pixels.
type scale struct {
	log      bool
	lo, hi   float64 // logarithms when log
	from, to float64 // pixels
}

func (s scale) fits(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!s.log || v > 0)
}

func (s scale) at(v float64) float64 {
	if s.log {
		v = math.Log10(v)
	}
	return s.from + (v-s.lo)/(s.hi-s.lo)*(s.to-s.from)
}

// scales finds the ranges; ok is false when there is no point.
func (c Chart) scales() (x, y scale, ok bool) {
	x = scale{log: c.X.Log, lo: math.Inf(1), hi: math.Inf(-1), from: left, to: width - right}
	y = scale{log: c.Y.Log, lo: math.Inf(1), hi: math.Inf(-1), from: height - bottom, to: top}
	for _, s := range c.Series {
		for _, p := range s.Points {
			if x.fits(p.X) && y.fits(p.Y) {
				x.grow(p.X)
				y.grow(p.Y)
				ok = true
			}
		}
	}
	x.round(c.X.Zero, false)
	y.round(c.Y.Zero, true)
	return x, y, ok
}

func (s *scale) grow(v float64) {
	if s.log {
		v = math.Log10(v)
	}
	s.lo, s.hi = min(s.lo, v), max(s.hi, v)
}

// round makes a range that has a width and, if wanted, ends at ticks.
func (s *scale) round(zero, outwards bool) {
	if zero && !s.log {
		s.lo, s.hi = min(s.lo, 0), max(s.hi, 0)
	}
	if s.hi == s.lo {
		s.lo, s.hi = s.lo-0.5, s.hi+0.5
		if zero && s.lo < 0 && s.hi > 0 && !s.log {
			s.lo, s.hi = 0, 1
		}
	}
	if !outwards {
		return
	}
	if s.log {
		s.lo, s.hi = math.Floor(s.lo+1e-9), math.Ceil(s.hi-1e-9)
		return
	}
	d := step(s.hi - s.lo)
	s.lo, s.hi = math.Floor(s.lo/d+1e-9)*d, math.Ceil(s.hi/d-1e-9)*d
}

// steps is how many parts an axis is divided into, about.
const steps = 5

// step is a round number that divides a range into about that many parts.
func step(span float64) float64 {
	raw := span / steps
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*unit*1.0001 {
			return m * unit
		}
	}
	return 10 * unit
}

// ticks are the values that an axis names.
func (s scale) ticks(a Axis) []float64 {
	if a.Ticks != nil {
		var out []float64
		for _, v := range a.Ticks {
			if s.fits(v) {
				out = append(out, v)
			}
		}
		return out
	}
	var out []float64
	if s.log {
		few := s.hi-s.lo <= 2
		for e := math.Floor(s.lo); e <= s.hi+1e-9; e++ {
			for _, m := range []float64{1, 2, 5} {
				v := m * math.Pow(10, e)
				if l := math.Log10(v); (m == 1 || few) && l >= s.lo-1e-9 && l <= s.hi+1e-9 {
					out = append(out, v)
				}
			}
		}
		return out
	}
	d := step(s.hi - s.lo)
	for i := math.Ceil(s.lo/d - 1e-9); i*d <= s.hi+d*1e-9; i++ {
		out = append(out, i*d)
	}
	return out
}

func (c Chart) frame(b *bytes.Buffer, x, y scale) {
	for _, v := range y.ticks(c.Y) {
		at := y.at(v)
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, left, width-right, at, at)
		text(b, left-6, at+4, "end", 11, Number(v))
	}
	for _, v := range x.ticks(c.X) {
		at := x.at(v)
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#999"/>`, at, at, height-bottom, height-bottom+4)
		text(b, at, height-bottom+17, "middle", 11, Number(v))
	}
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="#666"/>`+"\n", left, top, height-bottom, width-right)
	text(b, (left+width-right)/2, height-bottom+36, "middle", 12, c.X.Label)
	fmt.Fprintf(b, `<g transform="translate(16 %d) rotate(-90)">`, (top+height-bottom)/2)
	text(b, 0, 0, "middle", 12, c.Y.Label)
	b.WriteString("</g>\n")
}

func (c Chart) line(b *bytes.Buffer, i int, s Series, x, y scale) {
	color := colors[i%len(colors)]
	var path strings.Builder
	var marks bytes.Buffer
	for _, p := range s.Points {
		if !x.fits(p.X) || !y.fits(p.Y) {
			continue
		}
		if path.Len() == 0 {
			path.WriteByte('M')
		} else {
			path.WriteByte('L')
		}
		fmt.Fprintf(&path, "%.1f %.1f", x.at(p.X), y.at(p.Y))
		if c.Marks {
			fmt.Fprintf(&marks, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s: %s, %s</title></circle>`,
				x.at(p.X), y.at(p.Y), color, escape(s.Name), Number(p.X), Number(p.Y))
		}
	}
	if path.Len() == 0 {
		return
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.8" stroke-dasharray="%s"/>`, path.String(), color, dashes[i%len(dashes)])
	b.Write(marks.Bytes())
	b.WriteByte('\n')
}

// legendAt is where the names of the lines stand, in rows below the chart.
func (c Chart) legendAt() (at []struct{ x, row int }) {
	x, row := left, 0
	for _, s := range c.Series {
		w := 34 + charWidth*len([]rune(s.Name))
		if x > left && x+w > width-right {
			x, row = left, row+1
		}
		at = append(at, struct{ x, row int }{x, row})
		x += w
	}
	return at
}

func (c Chart) legendRows() int {
	at := c.legendAt()
	if len(at) == 0 {
		return 0
	}
	return at[len(at)-1].row
}

func (c Chart) legend(b *bytes.Buffer) {
	for i, at := range c.legendAt() {
		y := height - 12 + at.row*legendRow
		fmt.Fprintf(b, `<path d="M%d %dh18" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`, at.x, y-4, colors[i%len(colors)], dashes[i%len(dashes)])
		text(b, float64(at.x+22), float64(y), "start", 11, c.Series[i].Name)
	}
	b.WriteByte('\n')
}

func text(b *bytes.Buffer, x, y float64, anchor string, size int, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="#222">%s</text>`, x, y, anchor, size, escape(s))
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes everything
	return b.String()
}

// Number is a value with three digits that count, and k, M or G for large ones.
func Number(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if math.Abs(v) >= u.size {
			div := u.size
			if u.name == "k" {
				div = 1e3
			}
			return strconv.FormatFloat(v/div, 'g', 3, 64) + u.name
		}
	}
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
