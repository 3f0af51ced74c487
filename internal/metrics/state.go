package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"codework/internal/store"
)

// State is what a process is like at one moment. What is nil or empty could not
// be found out, and is not shown.
type State struct {
	// Sessions in memory, by status: idle, busy, stopping.
	Sessions map[string]int
	// Stored is the number of sessions there are, in memory or not.
	Stored *int
	// Queued is the number of prompts that wait in sessions in memory.
	Queued *int
	// Connections of clients.
	Connections *int
	// Readers of events and what waits for them.
	Readers *Readers
	// Actors, by kind.
	Actors map[string]Actors
	// Plugins, by what they do.
	Plugins map[string]int
	// Sandboxes, by driver and status.
	Sandboxes map[Sandbox]int
	// Store is how the store is doing.
	Store *store.Stats
	// Accepting tells whether new work is taken.
	Accepting *bool
}

// Readers are the subscribers of events.
type Readers struct {
	Count   int
	Queued  int // events that wait for them
	Longest int // the longest queue
}

// Actors are those of one kind.
type Actors struct {
	Count   int
	Waiting int // messages in their mailboxes
	Longest int // the longest mailbox
}

// Sandbox is what sandboxes are counted by.
type Sandbox struct{ Driver, Status string }

// gauges shows a State.
type gauges struct {
	s       State
	version string
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	buildInfo     = desc("build_info", "Always 1; the version of the program is in the label.", "version")
	accepting     = desc("accepting", "1 while new work is taken, 0 at the end of the process.")
	sessions      = desc("sessions", "Sessions in memory, by state.", "state")
	stored        = desc("stored_sessions", "Sessions in the store.")
	queued        = desc("queued_prompts", "Prompts that wait in sessions in memory.")
	connections   = desc("connections", "Clients that are connected.")
	readers       = desc("subscribers", "Readers of events.")
	readersQueued = desc("subscriber_queued_events", "Events that wait for readers.")
	readersMost   = desc("subscriber_longest_queue_events", "Events that wait for the reader that is furthest behind.")
	actorCount    = desc("actors", "Actors, by kind.", "kind")
	mailbox       = desc("mailbox_messages", "Messages that wait in mailboxes, by kind of the actor.", "kind")
	mailboxMost   = desc("mailbox_longest_messages", "Messages that wait in the longest mailbox, by kind of the actor.", "kind")
	plugins       = desc("plugins", "Plugin processes, by state.", "state")
	sandboxes     = desc("sandboxes", "Sandboxes, by driver and status; the host is not counted.", "driver", "status")
	storeCommits  = desc("store_commits_total", "Transactions of the store that are on disk.")
	storeBatches  = desc("store_batches_total", "Batches of sessions that are on disk.")
	storeEvents   = desc("store_events_total", "Events that are on disk.")
	storeRefused  = desc("store_refused_batches_total", "Batches that were answered with an error.")
	storeQueued   = desc("store_queued_batches", "Batches that wait for the disk.")
	storeBytes    = desc("store_queued_bytes", "Size of what waits for the disk.")
	storeDisk     = desc("store_disk_bytes", "Size of the store's tables and logs, without images and other large values; counted once a minute.")
)

// Describe tells nothing: which gauges there are depends on what is known.
func (gauges) Describe(chan<- *prometheus.Desc) {}

func (g gauges) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	number := func(d *prometheus.Desc, n *int) {
		if n != nil {
			gauge(d, float64(*n))
		}
	}
	gauge(buildInfo, 1, g.version)
	if g.s.Accepting != nil {
		v := 0.0
		if *g.s.Accepting {
			v = 1
		}
		gauge(accepting, v)
	}
	for state, n := range g.s.Sessions {
		gauge(sessions, float64(n), state)
	}
	number(stored, g.s.Stored)
	number(queued, g.s.Queued)
	number(connections, g.s.Connections)
	if r := g.s.Readers; r != nil {
		gauge(readers, float64(r.Count))
		gauge(readersQueued, float64(r.Queued))
		gauge(readersMost, float64(r.Longest))
	}
	for kind, a := range g.s.Actors {
		gauge(actorCount, float64(a.Count), kind)
		gauge(mailbox, float64(a.Waiting), kind)
		gauge(mailboxMost, float64(a.Longest), kind)
	}
	for state, n := range g.s.Plugins {
		gauge(plugins, float64(n), state)
	}
	for s, n := range g.s.Sandboxes {
		gauge(sandboxes, float64(n), s.Driver, s.Status)
	}
	if st := g.s.Store; st != nil {
		total := func(d *prometheus.Desc, v int64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
		}
		total(storeCommits, st.Commits)
		total(storeBatches, st.Batches)
		total(storeEvents, st.Events)
		total(storeRefused, st.Refused)
		gauge(storeQueued, float64(st.Queued))
		gauge(storeBytes, float64(st.QueuedBytes))
		gauge(storeDisk, float64(st.DiskBytes))
	}
}
