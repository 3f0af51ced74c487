// Package metrics counts what a process does and shows it in the text format of
// Prometheus.
//
// Counting never blocks, takes no lock that another counter holds and makes
// nothing: a counter is an atomic addition, a duration two. What has a state of
// its own, such as the number of sessions, is asked for when somebody reads.
// Any goroutine may count and read. Labels come from fixed lists; what is on none
// of them is counted as "other", so that neither names of users nor ids nor
// anything secret can get into one, and their number stays what it is.
package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"codework/messages"
)

// other is the label of what is not on a label's list.
const other = "other"

// Metrics are the counters of one process. A nil *Metrics counts nothing.
type Metrics struct {
	version  string
	registry func() *prometheus.Registry // made when it is first read

	events      family
	prompts     family
	executions  family
	turns       family
	failures    family
	retries     family
	calls       map[string]family // by tool
	tokens      family
	cost        prometheus.Counter
	overflows   prometheus.Counter
	panics      prometheus.Counter
	admission   prometheus.Histogram
	firstDelta  prometheus.Histogram
	turn        prometheus.Histogram
	tool        map[string]prometheus.Observer
	storeAppend prometheus.Histogram

	all []prometheus.Collector
}

// family are counters that differ in one label.
type family map[string]prometheus.Counter

func (f family) at(label string) prometheus.Counter {
	if c, ok := f[label]; ok {
		return c
	}
	return f[other]
}

// Boundaries of the histograms, in seconds. Each reaches from what a good
// moment takes to where a person gives up, in steps of about two.
var (
	admissionSeconds = []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 10}
	appendSeconds    = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
	answerSeconds    = []float64{.05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300}
	workSeconds      = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1200}
)

// New makes the counters. version is the program's.
func New(version string) *Metrics {
	m := &Metrics{version: version}
	m.events = m.family("events_total", "Events told to readers, by type.", "type", eventTypes)
	m.prompts = m.family("prompts_total", "Prompts admitted, by delivery.", "delivery", []string{string(messages.Steer), string(messages.FollowUp)})
	m.executions = m.family("executions_total", "Busy periods of sessions that came to an end, by outcome.", "outcome",
		[]string{Succeeded, Failed, Interrupted})
	m.turns = m.family("turns_total", "Turns that came to an end, by outcome. One that is tried again counts each time.", "outcome",
		[]string{Succeeded, Failed, Interrupted})
	m.failures = m.family("failures_total", "Busy periods that failed, by type of the failure.", "type", failureTypes)
	m.retries = m.family("retries_total", "Turns that are tried again, by type of the failure before.", "type", failureTypes)
	m.tokens = m.family("tokens_total", "Tokens that providers counted, of answers that were thrown away too. Input excludes the cache, output includes reasoning.",
		"kind", []string{"input", "output", "reasoning", "cache_read", "cache_write"})
	m.cost = m.counter("cost_usd_total", "What the answers cost in US dollars, as far as prices are known.")
	m.overflows = m.counter("subscriber_overflows_total", "Readers of events that fell too far behind and were cut off.")
	m.panics = m.counter("actor_failures_total", "Messages on which an actor failed; it is restarted.")
	m.admission = m.histogram("admission_duration_seconds", "From the arrival of a prompt to its answer, when it is on disk.", admissionSeconds)
	m.firstDelta = m.histogram("first_delta_duration_seconds", "From the start of a turn to the first piece of the model's answer.", answerSeconds)
	m.turn = m.histogram("turn_duration_seconds", "Length of turns that succeeded, their tools included.", workSeconds)
	m.storeAppend = m.histogram("store_append_duration_seconds", "From a session's append to its answer, when it is on disk or refused.", appendSeconds)
	m.toolMetrics()
	m.registry = sync.OnceValue(m.register)
	return m
}

func (m *Metrics) toolMetrics() {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "tool_calls_total",
		Help: "Tool calls that have a result, by tool and outcome. Tools of plugins count as other."}, []string{"tool", "outcome"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: "tool_duration_seconds",
		Help: "From the start of a tool call to its result.", Buckets: workSeconds}, []string{"tool"})
	m.calls, m.tool = map[string]family{}, map[string]prometheus.Observer{}
	for _, t := range append([]string{other}, toolNames...) {
		m.calls[t] = family{}
		for _, o := range append([]string{other}, callStates...) {
			m.calls[t][o] = total.WithLabelValues(t, o)
		}
		m.tool[t] = seconds.WithLabelValues(t)
	}
	m.all = append(m.all, total, seconds)
}

const namespace = "codework"

func (m *Metrics) family(name, help, label string, values []string) family {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
	m.all = append(m.all, v)
	f := family{other: v.WithLabelValues(other)}
	for _, x := range values {
		f[x] = v.WithLabelValues(x)
	}
	return f
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	m.all = append(m.all, c)
	return c
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	m.all = append(m.all, h)
	return h
}

// register makes what collects the counters; also those of the process and of
// the Go runtime.
func (m *Metrics) register() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(m.all...)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler shows all metrics: what was counted, and what state says of this
// moment. It asks state once for each request.
func (m *Metrics) Handler(log *slog.Logger, state func(r *http.Request) State) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := prometheus.NewRegistry()
		now.MustRegister(gauges{state(r), m.version})
		promhttp.HandlerFor(prometheus.Gatherers{m.registry(), now}, promhttp.HandlerOpts{ErrorLog: errorLog{log}}).ServeHTTP(w, r)
	})
}

// errorLog hands on what promhttp has to say: mostly that the reader went away
// before it had read all.
type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) {
	l.log.Debug("metrics were not shown whole", "err", fmt.Sprint(v...))
}

// Event counts an event that was told to readers.
func (m *Metrics) Event(kind string) {
	if m != nil {
		m.events.at(kind).Inc()
	}
}

// Prompt counts a prompt that was admitted.
func (m *Metrics) Prompt(d messages.Delivery) {
	if m != nil {
		m.prompts.at(string(d)).Inc()
	}
}

// Outcomes of turns and executions.
const (
	Succeeded   = "succeeded"
	Failed      = "failed"
	Interrupted = "interrupted"
)

// Execution counts the end of a busy period; f is why it failed, or nil.
func (m *Metrics) Execution(outcome string, f *messages.Failure) {
	if m == nil {
		return
	}
	m.executions.at(outcome).Inc()
	if f != nil {
		m.failures.at(f.Type).Inc()
	}
}

// Turn counts the end of a turn; took, which only counts where it succeeded, is
// below zero where the start is not known.
func (m *Metrics) Turn(outcome string, took time.Duration) {
	if m == nil {
		return
	}
	m.turns.at(outcome).Inc()
	if outcome == Succeeded && took >= 0 {
		m.turn.Observe(took.Seconds())
	}
}

// Retry counts a turn that is tried again because of f.
func (m *Metrics) Retry(f *messages.Failure) {
	if m != nil && f != nil {
		m.retries.at(f.Type).Inc()
	}
}

// Usage counts what an answer took, also one that was thrown away.
func (m *Metrics) Usage(u *messages.Usage) {
	if m == nil || u == nil || !u.Valid() {
		return
	}
	m.tokens.at("input").Add(float64(u.Input))
	m.tokens.at("output").Add(float64(u.Output))
	m.tokens.at("reasoning").Add(float64(u.Reasoning))
	m.tokens.at("cache_read").Add(float64(u.CacheRead))
	m.tokens.at("cache_write").Add(float64(u.CacheWrite))
	m.cost.Add(u.Cost.Total)
}

// ToolCall counts a call that has its result. took is below zero for one that
// never ran.
func (m *Metrics) ToolCall(tool string, state messages.CallState, took time.Duration) {
	if m == nil {
		return
	}
	if m.calls[tool] == nil {
		tool = other
	}
	m.calls[tool].at(string(state)).Inc()
	if took >= 0 {
		m.tool[tool].Observe(took.Seconds())
	}
}

// Admission counts how long a prompt waited for its answer.
func (m *Metrics) Admission(took time.Duration) {
	if m != nil {
		m.admission.Observe(took.Seconds())
	}
}

// FirstDelta counts how long the model's first words took.
func (m *Metrics) FirstDelta(took time.Duration) {
	if m != nil {
		m.firstDelta.Observe(took.Seconds())
	}
}

// Append counts how long an append to the store took.
func (m *Metrics) Append(took time.Duration) {
	if m != nil {
		m.storeAppend.Observe(took.Seconds())
	}
}

// Overflow counts a reader that was cut off.
func (m *Metrics) Overflow() {
	if m != nil {
		m.overflows.Inc()
	}
}

// ActorFailed counts a message on which an actor failed.
func (m *Metrics) ActorFailed() {
	if m != nil {
		m.panics.Inc()
	}
}
