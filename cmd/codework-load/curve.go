package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"codework/cmd/codework-load/plot"
)

// runCurve measures the same with growing numbers of sessions, for one
// connection and for one each, every point with a server of its own.
func (j *job) runCurve(ctx context.Context) ([]*report, error) {
	var out []*report
	for _, connections := range j.curveConnections {
		for _, n := range j.curve {
			p := j.plan
			p.sessions, p.connections = n, connections
			r, err := j.one(ctx, p)
			if err != nil {
				return out, fmt.Errorf("%d sessions, %s: %w", n, connectionsText(connections), err)
			}
			out = append(out, r)
			if err := j.say(r); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// curveCharts draw how each measure grows with the number of sessions.
func curveCharts(reports []*report) map[string]plot.Chart {
	type line struct {
		name  string
		value func(*report) float64
	}
	var ticks []float64
	for _, r := range reports {
		if !slices.Contains(ticks, float64(r.Sessions)) {
			ticks = append(ticks, float64(r.Sessions))
		}
	}
	chart := func(title, label string, log bool, lines ...line) plot.Chart {
		c := plot.Chart{Title: title, X: plot.Axis{Label: "sessions", Log: true, Ticks: ticks}, Y: plot.Axis{Label: label, Log: log, Zero: !log}, Marks: true}
		for _, l := range lines {
			var series []plot.Series
			index := map[int]int{}
			for _, r := range reports {
				i, ok := index[r.Connections]
				if !ok {
					i = len(series)
					index[r.Connections] = i
					series = append(series, plot.Series{Name: l.name + connectionsText(r.Connections)})
				}
				series[i].Points = append(series[i].Points, plot.Point{X: float64(r.Sessions), Y: l.value(r)})
			}
			c.Series = append(c.Series, series...)
		}
		return c
	}
	server := func(f func(*serverReport) float64) func(*report) float64 {
		return func(r *report) float64 {
			if r.Server == nil {
				return -1 // left out of a logarithmic axis
			}
			return f(r.Server)
		}
	}
	floor := func(f func(*report) float64) func(*report) float64 {
		return func(r *report) float64 {
			if r.Floor == nil {
				return 0
			}
			return f(r.Floor)
		}
	}
	out := map[string]plot.Chart{
		"admitted": chart("Until a prompt is on disk", "ms", true,
			line{"p50, ", func(r *report) float64 { return ms(r.Admitted.P50) }}, line{"p99, ", func(r *report) float64 { return ms(r.Admitted.P99) }}),
		"first": chart("Until the first piece of the answer", "ms", true,
			line{"p50, ", func(r *report) float64 { return ms(r.First.P50) }}, line{"floor, ", floor(func(r *report) float64 { return ms(r.First.P50) })}),
		"delta": chart("A piece of text, from the model to the client, p99", "ms", true,
			line{"", func(r *report) float64 { return ms(r.Delta.P99) }}, line{"floor, ", floor(func(r *report) float64 { return ms(r.Delta.P99) })}),
		"wall": chart("From the first prompt to the last end", "s", false,
			line{"", func(r *report) float64 { return r.WallSeconds }}, line{"floor, ", floor(func(r *report) float64 { return r.WallSeconds })}),
		"cpu":    chart("Processor time of the server for an event", "µs", true, line{"", server(func(s *serverReport) float64 { return s.CPUPerUnit })}),
		"memory": chart("Memory of a session, above an idle server", "KB", true, line{"", server(func(s *serverReport) float64 { return float64(s.PerSession) / (1 << 10) })}),
	}
	if !slices.ContainsFunc(reports, func(r *report) bool { return r.Server != nil }) {
		delete(out, "cpu")
		delete(out, "memory")
	}
	return out
}

// chartOrder is how the charts of a curve follow each other on a page.
var chartOrder = []string{"wall", "admitted", "first", "delta", "cpu", "memory"}

// writeCharts writes each chart into the folder.
func writeCharts(dir string, charts map[string]plot.Chart) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, c := range charts {
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), c.SVG(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
