package actors

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"codework/internal/metrics"
	"codework/internal/store"
	"codework/messages"
	"codework/protocol/contract"
)

// stockLimit is how long guardian and hub may take to say what they know. They
// take microseconds, unless they hang: then the rest is shown without them.
const stockLimit = time.Second

type (
	// takeStock asks guardian or hub what they know of this moment.
	takeStock struct{}
	stock     struct {
		sessions map[string]sessionState
		gateways int
		draining bool
	}
)

func (g *guardian) stock() stock {
	st := stock{sessions: make(map[string]sessionState, len(g.sessions)), gateways: len(g.gateways), draining: g.draining}
	for id, s := range g.sessions {
		st.sessions[id] = s.state
	}
	return st
}

func (h *hub) readers() messages.TopSubscribers {
	r := messages.TopSubscribers{Count: len(h.subs)}
	for s := range h.subs {
		n := s.waiting()
		r.Queued += n
		r.Longest = max(r.Longest, n)
	}
	return r
}

// waiting is how many events wait for the reader.
func (s *subscription) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// kindNames are what actors are called where their type is called otherwise.
var kindNames = map[string]string{"pluginProcess": "plugin"}

func (v vitalSigns) kindName() string { return cmp.Or(kindNames[v.kind], v.kind) }

func (v vitalSigns) actor(now time.Time) messages.TopActor {
	a := messages.TopActor{Kind: v.kindName(), Name: v.name, State: v.doing.state, Detail: v.doing.detail, Mailbox: v.waiting,
		Handled: v.handled, Beside: v.beside, Restarts: v.restarts, Handling: v.message, HandlingMs: v.handling.Milliseconds()}
	if !v.doing.since.IsZero() {
		a.ForMs = max(now.Sub(v.doing.since).Milliseconds(), 0)
	}
	return a
}

// Top looks at everything that runs. It asks guardian and hub, and does without
// them if they do not answer.
func (s *System) Top(ctx context.Context, q messages.GetTop) messages.Top {
	ctx, cancel := context.WithTimeout(ctx, stockLimit)
	defer cancel()
	known, err := Ask[stock](ctx, s.guardian, takeStock{})
	readers, unread := Ask[messages.TopSubscribers](ctx, s.hub, takeStock{})
	now := time.Now()
	t := messages.Top{At: messages.ISOTime(now.UnixMilli()), Server: s.about(), Complete: err == nil && unread == nil,
		Sessions: []messages.TopSession{}, Actors: []messages.TopActor{}}
	if unread == nil {
		t.Subscribers = &readers
	}
	for _, v := range s.rt.look() {
		a := v.actor(now)
		switch v.kind {
		case "session":
			st := known.sessions[v.name]
			t.Sessions = append(t.Sessions, messages.TopSession{TopActor: a, SessionID: v.name, Title: st.title, Status: st.status, Queued: st.queued, Sandbox: st.sandbox})
			if st.status != messages.SessionIdle && st.status != "" {
				t.Server.Sessions.Busy++
			}
			continue
		case "sandbox":
			s.describeSandbox(&a)
		}
		t.Actors = append(t.Actors, a)
	}
	t.Server.Sessions.Total = len(t.Sessions)
	if n, err := s.config.Store.Count(ctx); err == nil {
		t.Server.Sessions.Total = n
	} else {
		t.Complete = false
	}
	slices.SortFunc(t.Sessions, bySessionWork)
	slices.SortFunc(t.Actors, func(a, b messages.TopActor) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	most := q.Limit
	if most == 0 {
		most = messages.TopLimit
	}
	if most = min(most, messages.TopMost); len(t.Sessions) > most {
		t.Omitted = len(t.Sessions) - most
		t.Sessions = t.Sessions[:most]
	}
	return t
}

// bySessionWork puts sessions that work first, and those first that have done
// the same for longest.
func bySessionWork(a, b messages.TopSession) int {
	rests := func(s messages.TopSession) int {
		if s.State == doingIdle {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rests(a), rests(b)), cmp.Compare(b.ForMs, a.ForMs), cmp.Compare(a.SessionID, b.SessionID))
}

// describeSandbox says of a sandbox what its record does.
func (s *System) describeSandbox(a *messages.TopActor) {
	if messages.IsHost(a.Name) {
		a.State = string(messages.SandboxOnline)
		return
	}
	rec, ok := s.places.shelf.get(a.Name)
	if !ok {
		return
	}
	a.State, a.Detail = string(rec.Status), rec.Driver
	if n := s.places.shelf.count(a.Name); n > 0 {
		a.Detail += ", used by " + plural(n, "session")
	}
	a.ForMs = max(time.Since(time.UnixMilli(rec.UpdatedAt)).Milliseconds(), 0)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// state is what metrics show beside what was counted.
func (s *System) state(ctx context.Context) metrics.State {
	ctx, cancel := context.WithTimeout(ctx, stockLimit)
	defer cancel()
	st := metrics.State{Actors: map[string]metrics.Actors{}, Sandboxes: map[metrics.Sandbox]int{},
		Plugins: map[string]int{doingRunning: 0, doingStarting: 0, doingFailed: 0, doingGivenUp: 0, doingStopped: 0}}
	if known, err := Ask[stock](ctx, s.guardian, takeStock{}); err == nil {
		queued, accepting := 0, !known.draining
		st.Sessions = map[string]int{string(messages.SessionIdle): 0, string(messages.SessionRunning): 0, string(messages.SessionStopping): 0}
		for _, x := range known.sessions {
			st.Sessions[string(x.status)]++
			queued += x.queued
		}
		st.Queued, st.Connections, st.Accepting = &queued, &known.gateways, &accepting
	}
	if r, err := Ask[messages.TopSubscribers](ctx, s.hub, takeStock{}); err == nil {
		st.Readers = &metrics.Readers{Count: r.Count, Queued: r.Queued, Longest: r.Longest}
	}
	for _, v := range s.rt.look() {
		a := st.Actors[v.kindName()]
		a.Count++
		a.Waiting += v.waiting
		a.Longest = max(a.Longest, v.waiting)
		st.Actors[v.kindName()] = a
		if v.kind == "pluginProcess" {
			st.Plugins[cmp.Or(v.doing.state, doingStopped)]++
		}
	}
	for _, r := range s.places.shelf.all() {
		st.Sandboxes[metrics.Sandbox{Driver: s.driverLabel(r.Driver), Status: string(r.Status)}]++
	}
	if n, err := s.config.Store.Count(ctx); err == nil {
		st.Stored = &n
	}
	if counting, ok := s.config.Store.(interface{ Stats() store.Stats }); ok {
		stats := counting.Stats()
		st.Store = &stats
	}
	return st
}

// driverLabel is the name of a driver of this process: records may hold others.
func (s *System) driverLabel(name string) string {
	for _, d := range s.config.Drivers {
		if d.Name() == name {
			return name
		}
	}
	return "other"
}

// about says which process this is.
func (s *System) about() messages.ServerInfo {
	return messages.ServerInfo{
		Name: "codework", Version: s.identity.Version, Build: s.identity.Build, Protocol: contract.Version,
		StartedAt: messages.ISOTime(s.started.UnixMilli()), PID: os.Getpid(), Home: s.identity.Home, Foreground: s.identity.Foreground,
	}
}

// Where a server tells how it is.
const (
	MetricsPath = "/metrics" // everything that is counted, in the text format of Prometheus
	HealthPath  = "/healthz" // 200 while the process can work at all
	ReadyPath   = "/readyz"  // 200 while it takes new work and the disk takes it
)

// alive answers whether the actors do anything.
func (s *System) alive(ctx context.Context) error {
	select {
	case <-s.guardian.Done():
		return errDown("the actors have ended")
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, stockLimit)
	defer cancel()
	if _, err := Ask[stock](ctx, s.guardian, takeStock{}); err != nil {
		return errDown("the actors do not answer")
	}
	return nil
}

// ready answers whether new work is taken, and the disk takes it.
func (s *System) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stockLimit)
	defer cancel()
	known, err := Ask[stock](ctx, s.guardian, takeStock{})
	switch {
	case err != nil:
		return errDown("the actors do not answer")
	case known.draining:
		return errDown("the server is going down")
	}
	return storeAccepts(ctx, s.config.Store)
}

// nobodysSession has the form of a session's id, and is none: nothing is ever
// written for it.
const nobodysSession = "ses_ready"

// storeAccepts answers whether a batch would be written. An empty one for a
// session that there is not goes the whole way to the disk and is turned away
// there only.
func storeAccepts(ctx context.Context, st Store) error {
	err := commit(ctx, st, store.Batch{Session: nobodysSession})
	if _, missing := err.(*messages.SessionNotFound); missing || err == nil {
		return nil
	}
	if refused, ok := err.(*messages.Refused); ok {
		return errDown(refused.Message)
	}
	return errDown("the session store does not answer")
}

// errDown is why a server is not well, in words that may be shown to whoever
// may ask.
type errDown string

func (e errDown) Error() string { return string(e) }

// answerProbe is the handler of a question with yes or no.
func answerProbe(ask func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if err := ask(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}
