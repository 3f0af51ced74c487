package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"codework/messages"
	"codework/protocol/client"
)

// createWidth is how many sessions are made at a time: as many as a program
// that restores its windows would.
const createWidth = 16

// tick is how often the run is measured for its timeline.
const tick = 250 * time.Millisecond

// fleet are all sessions of a run and what is counted of them.
type fleet struct {
	plan     plan
	address  address
	pid      int    // of the server; 0 when it cannot be measured
	beside   *flood // nil: nobody
	sessions []*session
	readers  []*reader
	links    []*link // that several readers share

	arrivals chan time.Time // of an open loop; nil in a closed one
	end      time.Time      // no round begins later; zero when rounds are counted

	events, turns, running, played atomic.Int64

	*counts
	timeline []moment // guarded by its mutex, too
}

// moment is one point of the timeline.
type moment struct {
	At      float64 `json:"atSeconds"`
	Running int64   `json:"running"`
	Events  int64   `json:"events"` // so far
	Turns   int64   `json:"turns"`
	CPU     float64 `json:"cpuSeconds"` // of the server, so far
	Memory  int64   `json:"rssBytes"`
}

// next waits for the next round of a session and tells from when it counts: in
// an open loop from when it was due, however late somebody was free for it.
func (f *fleet) next(ctx context.Context, n int) (time.Time, bool) {
	if f.arrivals != nil {
		select {
		case at, ok := <-f.arrivals:
			return at, ok
		case <-ctx.Done():
			return time.Time{}, false
		}
	}
	if n > 0 && f.plan.think > 0 {
		if pause(ctx, f.plan.think) != nil {
			return time.Time{}, false
		}
	}
	now := time.Now()
	if f.end.IsZero() {
		return now, n < f.plan.rounds && ctx.Err() == nil
	}
	return now, now.Before(f.end) && ctx.Err() == nil
}

// connect makes a session over a connection, nil for one of its own, and
// subscribes to it.
func (f *fleet) connect(ctx context.Context, s *session, l *link) error {
	if l == nil {
		var err error
		if l, err = f.address.dial(ctx); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	if err := s.open(ctx, l.Client); err != nil {
		l.Close()
		return err
	}
	r := &reader{fleet: f, one: s.id, cuts: s.kind.vanish, link: l, sessions: map[string]*session{s.id: s}}
	// The stream outlives this call. Nothing has happened in the session yet,
	// and without a position to go on from every live event comes, too.
	events, err := l.Subscribe(context.WithoutCancel(ctx), messages.Subscribe{SessionID: s.id})
	if err != nil {
		l.Close()
		return fmt.Errorf("subscribe: %w", err)
	}
	s.reader = r
	r.start(events)
	return nil
}

// share is the one connection that subscribes to everything, as a program with
// many windows does.
func (f *fleet) share(ctx context.Context) (*reader, error) {
	l, err := f.address.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	r := &reader{fleet: f, link: l, sessions: map[string]*session{}}
	events, err := l.Subscribe(context.WithoutCancel(ctx), messages.Subscribe{})
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	r.start(events)
	return r, nil
}

// run makes the sessions, lets them work, and reports.
func (f *fleet) run(ctx context.Context, progress func(string)) (*report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rep := f.plan.report("codework")
	f.counts = newCounts()
	idle, measured := f.usage()
	defer f.close()
	began := time.Now()
	if err := f.prepare(ctx, progress); err != nil {
		return nil, err
	}
	rep.CreateSeconds = time.Since(began).Seconds()
	created, _ := f.usage()

	if f.beside != nil {
		if err := f.floods(ctx); err != nil {
			return nil, err
		}
	}

	began = time.Now()
	ownBefore := ownCPU()
	f.schedule(ctx, began)
	watched := f.watch(ctx, began, progress)
	moments := func() ([]span, bool) { return nil, false }
	if f.plan.calm {
		moments = watchSlow(ctx)
	}
	slow, stopSlow := f.slowReaders(ctx)
	var all sync.WaitGroup
	for _, s := range f.sessions {
		all.Go(func() { s.live(ctx) })
	}
	all.Wait()
	rep.WallSeconds = time.Since(began).Seconds()
	watched()
	spans, calmKnown := moments()
	stopSlow()
	slow.Wait()
	ended, _ := f.usage()
	rep.LoadCPU = ownCPU() - ownBefore
	if f.beside != nil {
		t, err := f.beside.end()
		if err != nil {
			return nil, err
		}
		f.add(t.Failures, t.Notes)
	}

	// The check is no part of what is measured.
	for _, s := range f.sessions {
		if s.kind.churn || s.reader == nil {
			continue
		}
		all.Go(func() {
			if err := s.settle(ctx); err != nil && ctx.Err() == nil {
				f.fail("at the end: " + err.Error())
			}
		})
	}
	all.Wait()
	f.leftovers(ctx)
	lat := f.fill(rep)
	if calmKnown {
		rep.calm(lat, spans)
	}
	if measured {
		rep.Server = serverUsage(idle, created, ended, f.timeline, len(f.sessions), rep.Events)
	}
	return rep, context.Cause(ctx)
}

// floods lets the flooders begin.
func (f *fleet) floods(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.plan.timeout, errors.New("what runs beside did not begin"))
	defer cancel()
	o := order{Endpoint: f.address.endpoint, Token: f.address.token, Dir: f.plan.dir, Model: f.plan.model, Names: f.plan.beside, Each: f.plan.besides}
	if f.plan.ownServer {
		o.Model = &messages.ModelRef{Provider: floodProvider, ID: modelID}
	}
	return f.beside.begin(ctx, o)
}

func (f *fleet) usage() (usage, bool) {
	if f.pid == 0 {
		return usage{}, false
	}
	return treeUsage(f.pid)
}

// prepare makes sessions and connections.
func (f *fleet) prepare(ctx context.Context, progress func(string)) error {
	var all *reader
	var links []*link
	switch n := min(f.plan.connections, f.plan.sessions); {
	case n == 1:
		var err error
		if all, err = f.share(ctx); err != nil {
			return err
		}
		f.keep(all)
	case n > 1:
		for range n {
			l, err := f.address.dial(ctx)
			if err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			links = append(links, l)
			f.links = append(f.links, l)
		}
	}
	sc := f.plan.scenario.shuffled(rand.New(rand.NewPCG(f.plan.seed, 0)))
	var made atomic.Int64
	var wg sync.WaitGroup
	gate := make(chan struct{}, createWidth)
	for i := range f.plan.sessions {
		s := &session{fleet: f, index: i, kind: sc.of(i), rand: rand.New(rand.NewPCG(f.plan.seed, uint64(i)+1)), news: make(chan struct{})}
		f.sessions = append(f.sessions, s)
		if s.kind.churn {
			continue // it connects in each round
		}
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if err := f.enter(ctx, s, all, links); err != nil {
				if ctx.Err() == nil {
					f.fail(err.Error())
				}
				return
			}
			progress(fmt.Sprintf("%d of %d sessions are made", made.Add(1), f.plan.sessions))
		})
	}
	wg.Wait()
	f.sessions = slices.DeleteFunc(f.sessions, func(s *session) bool { return s.reader == nil && !s.kind.churn })
	if len(f.sessions) == 0 {
		return errors.Join(fmt.Errorf("no session could be made: %v", f.failures), context.Cause(ctx))
	}
	return context.Cause(ctx)
}

// enter makes a session on the connection that is its: all's, one of links, or
// its own.
func (f *fleet) enter(ctx context.Context, s *session, all *reader, links []*link) error {
	if all == nil || s.kind.vanish {
		var l *link
		if len(links) > 0 && !s.kind.vanish {
			l = links[s.index%len(links)]
		}
		err := f.connect(ctx, s, l)
		if err == nil {
			f.keep(s.reader)
		}
		return err
	}
	if err := s.open(ctx, all.client()); err != nil {
		return err
	}
	all.add(s)
	s.reader = all
	return nil
}

func (f *fleet) keep(r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers = append(f.readers, r)
}

// close ends all readers before any connection: they share some, and would take
// the end of one for a loss.
func (f *fleet) close() {
	for _, r := range f.readers {
		r.cancel()
	}
	for _, r := range f.readers {
		<-r.done
	}
	var wg sync.WaitGroup
	for _, r := range f.readers {
		wg.Go(r.close)
	}
	for _, l := range f.links {
		wg.Go(func() { l.Close() })
	}
	wg.Wait()
}

// schedule says when rounds begin.
func (f *fleet) schedule(ctx context.Context, began time.Time) {
	p := f.plan
	if p.rate <= 0 {
		if p.length > 0 {
			f.end = began.Add(p.length)
		}
		return
	}
	// Arrivals of a Poisson process: people do not come at even intervals.
	r := rand.New(rand.NewPCG(p.seed, 0))
	var due []time.Duration
	for at := time.Duration(0); at < p.length; at += time.Duration(r.ExpFloat64() / p.rate * float64(time.Second)) {
		due = append(due, at)
	}
	f.arrivals = make(chan time.Time, len(due))
	go func() {
		defer close(f.arrivals)
		for _, at := range due {
			if pause(ctx, time.Until(began.Add(at))) != nil {
				return
			}
			f.arrivals <- began.Add(at)
		}
	}()
}

// watch measures the run until the function it returns is called.
func (f *fleet) watch(ctx context.Context, began time.Time, progress func(string)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			u, _ := f.usage()
			m := moment{time.Since(began).Seconds(), f.running.Load(), f.events.Load(), f.turns.Load(), u.CPU, u.Memory}
			f.mu.Lock()
			f.timeline = append(f.timeline, m)
			failed := 0
			for _, n := range f.failures {
				failed += n
			}
			f.mu.Unlock()
			progress(fmt.Sprintf("%.0f s: %d running, %d rounds, %d turns, %d events, %d failures", m.At, m.Running, f.played.Load(), m.Turns, m.Events, failed))
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// One in slowShare sessions of that kind brings a subscriber that takes one
// event in slowPause.
const (
	slowShare = 10
	slowPause = 100 * time.Millisecond
)

// slowReaders subscribe to everything and hardly read.
func (f *fleet) slowReaders(ctx context.Context) (*sync.WaitGroup, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	n := 0
	for _, s := range f.sessions {
		if !s.kind.slow {
			continue
		}
		if n++; n%slowShare != 1 {
			continue
		}
		wg.Go(func() {
			if err := f.slowReader(ctx); err != nil && ctx.Err() == nil {
				f.fail("a slow subscriber: " + err.Error())
			}
		})
	}
	return &wg, cancel
}

func (f *fleet) slowReader(ctx context.Context) error {
	l, err := f.address.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	var events *client.Events
	for {
		if events == nil {
			if events, err = l.Subscribe(ctx, messages.Subscribe{}); err != nil {
				return err
			}
			f.note("slow subscriptions")
		}
		_, err := events.Next(ctx)
		var overflow *messages.SubscriptionOverflow
		switch {
		case errors.As(err, &overflow):
			f.note("slow subscriptions that were cut off")
			events = nil
		case err != nil:
			return err
		}
		if err := pause(ctx, slowPause); err != nil {
			return err
		}
	}
}

// leftLimit is how long a command may outlive the work that it was part of.
const leftLimit = 3 * time.Second

// leftovers looks for commands of interrupted work that still run.
func (f *fleet) leftovers(ctx context.Context) {
	if f.pid == 0 || !f.plan.ownServer {
		return
	}
	late := time.Now().Add(leftLimit)
	for {
		left := append(commandsBelow(f.pid, "sleep"), commandsBelow(f.pid, "yes")...)
		if len(left) == 0 {
			return
		}
		if time.Now().After(late) {
			for _, c := range left {
				f.fail("left running: " + c)
			}
			return
		}
		if pause(ctx, tick) != nil {
			return
		}
	}
}

// fill adds up what the sessions counted, and returns their latencies.
func (f *fleet) fill(rep *report) (l latencies) {
	for _, s := range f.sessions {
		s.mu.Lock()
		l.add(&s.lat)
		rep.Faults.add(s.check.faults)
		s.mu.Unlock()
	}
	rep.times = measureAll(l)
	rep.Events, rep.Turns, rep.Rounds = f.events.Load(), f.turns.Load(), f.played.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	rep.Failures, rep.Notes, rep.Timeline = f.failures, f.notes, f.timeline
	return l
}
