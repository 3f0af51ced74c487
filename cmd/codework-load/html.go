package main

import (
	"bytes"
	"fmt"
	"html/template"
	"os"

	"codework/cmd/codework-load/plot"
)

// page is the report for a browser: one file that needs nothing else.
var page = template.Must(template.New("report").Parse(`<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{{.Title}}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:1340px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
pre{background:#f4f4f4;padding:1em;overflow:auto}
figure{display:inline-block;margin:0 1em 1em 0;vertical-align:top}
</style>
<h1>{{.Title}}</h1>
<p>{{.Began}}</p>
{{range .Texts}}<pre>{{.}}</pre>
{{end}}{{range .Charts}}<figure>{{.}}</figure>
{{end}}</html>
`))

func writeHTML(name, title string, reports []*report, charts []plot.Chart) error {
	d := struct {
		Title, Began string
		Texts        []string
		Charts       []template.HTML
	}{Title: title}
	for _, r := range reports {
		if d.Began == "" {
			d.Began = fmt.Sprintf("%s, %d processors, %s/%s, %s", r.Began.Format("2006-01-02 15:04 MST"), r.Machine.CPUs, r.Machine.OS, r.Machine.Arch, r.Machine.Go)
		}
		var b bytes.Buffer
		if err := r.print(&b); err != nil {
			return err
		}
		d.Texts = append(d.Texts, b.String())
	}
	for _, c := range charts {
		d.Charts = append(d.Charts, template.HTML(c.SVG())) // its texts are escaped
	}
	var b bytes.Buffer
	if err := page.Execute(&b, d); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

// charts are the plots of one run.
func (r *report) charts() []plot.Chart {
	spread := plot.Chart{Title: "Latency by share of all", X: plot.Axis{Label: "percent of all are faster", Zero: true}, Y: plot.Axis{Label: "ms", Log: true}}
	add := func(name string, q quantiles) {
		if q.N == 0 {
			return
		}
		s := plot.Series{Name: name}
		for p := 0.0; p <= 100; p++ {
			s.Points = append(s.Points, plot.Point{X: p, Y: ms(q.at(p / 100))})
		}
		spread.Series = append(spread.Series, s)
	}
	for _, row := range r.rows() {
		add(row.name, row.q)
	}
	if r.Floor != nil {
		add("delta, floor", r.Floor.Delta)
		add("first, floor", r.Floor.First)
	}
	if r.Alone != nil {
		add("delta, alone", r.Alone.Delta)
		add("admitted, alone", r.Alone.Admitted)
	}
	over := func(title, label string, series ...plot.Series) plot.Chart {
		return plot.Chart{Title: title, X: plot.Axis{Label: "seconds", Zero: true}, Y: plot.Axis{Label: label, Zero: true}, Series: series}
	}
	events, cpu := plot.Series{Name: "events a second"}, plot.Series{Name: "server"}
	running, memory := plot.Series{Name: "running rounds"}, plot.Series{Name: "server"}
	for i, m := range r.Timeline {
		running.Points = append(running.Points, plot.Point{X: m.At, Y: float64(m.Running)})
		memory.Points = append(memory.Points, plot.Point{X: m.At, Y: float64(m.Memory) / (1 << 20)})
		if i == 0 {
			continue
		}
		before := r.Timeline[i-1]
		if span := m.At - before.At; span > 0 {
			events.Points = append(events.Points, plot.Point{X: m.At, Y: float64(m.Events-before.Events) / span})
			cpu.Points = append(cpu.Points, plot.Point{X: m.At, Y: (m.CPU - before.CPU) / span})
		}
	}
	out := []plot.Chart{spread, over("Events", "a second", events), over("Running", "rounds", running)}
	if r.Server != nil {
		out = append(out, over("Processor time of the server", "processors", cpu), over("Memory of the server", "MB", memory))
	}
	return out
}
