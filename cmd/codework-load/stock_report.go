package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"codework/cmd/codework-load/plot"
)

// stockReport is what was measured of one stock.
type stockReport struct {
	Stock   string    `json:"stock"` // stored, entries or idle
	Number  int       `json:"number"`
	Seed    uint64    `json:"seed"`
	Began   time.Time `json:"began"`
	Machine machine   `json:"machine"`

	FillSeconds  float64     `json:"fillSeconds,omitempty"` // none: it was there
	ReadySeconds float64     `json:"readySeconds"`          // from the start to the address, with the stock in the store
	Operations   []operation `json:"operations,omitempty"`
	Idle         *idleReport `json:"idle,omitempty"`

	Failures map[string]int `json:"failures"`
	Missed   []string       `json:"missed,omitempty"` // thresholds
}

// operation is what a client does, and how long it took.
type operation struct {
	Name  string    `json:"name"`
	About string    `json:"about"`
	Times quantiles `json:"times"`

	once func(context.Context) (time.Duration, error)
}

// idleReport compares a server that does nothing with an empty one.
type idleReport struct {
	Empty, Made, Restarted resting
}

// resting is what a server uses that nobody asks anything.
type resting struct {
	Memory int64   `json:"rssBytes"`
	CPU    float64 `json:"cpuSeconds"` // within idleWindow
}

// metrics are all values that a threshold can name.
func (r *stockReport) metrics() map[string]float64 {
	n := 0
	for _, v := range r.Failures {
		n += v
	}
	m := map[string]float64{"ready": r.ReadySeconds, "failures": float64(n)}
	for _, o := range r.Operations {
		o.Times.metrics(m, o.Name)
	}
	if i := r.Idle; i != nil {
		m["memory.empty"], m["cpu.empty"] = float64(i.Empty.Memory), i.Empty.CPU
		m["memory.made"], m["cpu.made"] = float64(i.Made.Memory-i.Empty.Memory), i.Made.CPU-i.Empty.CPU
		m["memory.restarted"], m["cpu.restarted"] = float64(i.Restarted.Memory-i.Empty.Memory), i.Restarted.CPU-i.Empty.CPU
	}
	return m
}

func (r *stockReport) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, seed %d, load average %.1f on %d processors; ready after %.0f ms", map[string]string{
		"stored": plural(r.Number, "stored session"), "entries": fmt.Sprintf("a session of %d entries", r.Number), "idle": plural(r.Number, "idle session")}[r.Stock],
		r.Seed, r.Machine.Load, r.Machine.CPUs, 1000*r.ReadySeconds)
	if r.FillSeconds > 0 {
		fmt.Fprintf(&b, "; filled in %.1f s", r.FillSeconds)
	}
	b.WriteString("\n")
	t := latencyTable(&b)
	for _, o := range r.Operations {
		latencyRow(t, o.Name, o.Times)
	}
	if len(r.Operations) > 0 {
		t.Flush() // into memory
	}
	if i := r.Idle; i != nil {
		for _, l := range []struct {
			name string
			r    resting
		}{{"empty", i.Empty}, {"just made", i.Made}, {"started anew", i.Restarted}} {
			fmt.Fprintf(&b, "%s: memory %s (%s more), processor time in %s: %.2f s\n", l.name, bytesText(l.r.Memory), bytesText(l.r.Memory-i.Empty.Memory), idleWindow, l.r.CPU)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Fprintf(&b, "failure: %d × %s\n", r.Failures[k], k)
	}
	for _, m := range r.Missed {
		fmt.Fprintf(&b, "missed: %s\n", m)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// stockCharts draw how each operation grows with what is stored.
func stockCharts(reports []*stockReport) map[string]plot.Chart {
	out := map[string]plot.Chart{}
	for _, kind := range []struct{ name, title, label string }{
		{"stored", "Operations by number of stored sessions, p50", "stored sessions"},
		{"entries", "Operations by length of the session, p50", "entries"},
	} {
		c := plot.Chart{Title: kind.title, X: plot.Axis{Label: kind.label, Log: true}, Y: plot.Axis{Label: "ms", Log: true}, Marks: true}
		index := map[string]int{}
		for _, r := range reports {
			if r.Stock != kind.name {
				continue
			}
			c.X.Ticks = append(c.X.Ticks, float64(r.Number))
			for _, o := range r.Operations {
				i, ok := index[o.Name]
				if !ok {
					i = len(c.Series)
					index[o.Name] = i
					c.Series = append(c.Series, plot.Series{Name: o.Name})
				}
				c.Series[i].Points = append(c.Series[i].Points, plot.Point{X: float64(r.Number), Y: ms(o.Times.P50)})
			}
		}
		if len(c.Series) > 0 {
			out[kind.name] = c
		}
	}
	return out
}
