package actors

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"codework/internal/metrics"
	"codework/messages"
	"codework/protocol/acp"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// Identity says which process this is, for clients that ask.
type Identity struct {
	Version        string
	Build          string
	Home           string
	Host           string
	MountNamespace string
	// Foreground tells that somebody started the process as a server: it hands
	// its home over to nobody.
	Foreground bool
}

// System is the tree of actors of one process.
type System struct {
	rt       *Runtime
	guardian *Ref
	begins   *turnstile
	hub      *Ref
	places   places
	config   Config
	identity Identity
	started  time.Time
	takeover chan struct{}
	once     sync.Once
	log      *slog.Logger
}

// Boot starts the actors. Shutdown ends them; the store stays the caller's.
// Sandbox drivers that contradict themselves or each other are an error.
func Boot(ctx context.Context, config Config, id Identity, log *slog.Logger) (*System, error) {
	drivers, err := checkDrivers(config.Drivers)
	if err != nil {
		return nil, err
	}
	rt := NewRuntime(log)
	rt.failed = config.Metrics.ActorFailed
	s := &System{rt: rt, config: config, identity: id, started: time.Now(), begins: newTurnstile(), takeover: make(chan struct{}), log: log}
	deps := registryDeps{store: config.Store, shelf: newShelf(s.started), local: config.Local, drivers: drivers, server: config.Server,
		settings: config.sandboxSettings(), idle: idleConnection}
	// Sessions show their sandboxes from the first moment on. That the records
	// cannot be read is the registry's to tell.
	if records, err := config.Store.Sandboxes(ctx); err == nil {
		for _, rec := range records {
			deps.shelf.put(rec)
		}
	}
	if config.idleConnection > 0 {
		deps.idle = config.idleConnection
	}
	begun := new(atomic.Bool)
	limit := &limit{store: s.config.Store, most: s.config.MaxSessions}
	s.guardian = rt.Spawn(func() Actor {
		return &guardian{config: s.config, begun: begun, boxes: deps, begins: s.begins, limit: limit}
	})
	if w, ok := config.Prepare.(*Workshop); ok {
		w.guardian, w.shelf = s.guardian, deps.shelf
	}
	parts, err := Ask[treeParts](ctx, s.guardian, getParts{})
	if err != nil {
		return nil, err
	}
	s.hub, s.places = parts.hub, parts.places
	return s, nil
}

// Failed is closed when the tree has come to its end, by Shutdown or because
// it cannot go on.
func (s *System) Failed() <-chan struct{} { return s.guardian.Done() }

// Takeover is closed when another process has asked to own the home.
func (s *System) Takeover() <-chan struct{} { return s.takeover }

// admitting is told of a prompt before it is sent on, and over when it was
// answered.
func (s *System) admitting() (over func(error)) {
	at, admitted := time.Now(), s.begins.admit()
	return func(err error) {
		admitted()
		if err == nil {
			s.config.Metrics.Admission(time.Since(at))
		}
	}
}

// Serve answers one connection until it ends. local tells that it comes over
// the socket of this machine.
func (s *System) Serve(ctx context.Context, conn effectrpc.Conn, local bool) error {
	g := &gateway{system: s, local: local, name: messages.NewEventID(), guardian: s.guardian, hub: s.hub}
	g.server = effectrpc.NewServer(conn, effectrpc.ServerOptions{
		OnPanic: func(method string, v any, stack []byte) {
			s.log.Error("call failed", "method", method, "panic", v, "stack", string(stack))
		},
	})
	ref, err := Ask[*Ref](ctx, s.guardian, openGateway{g})
	if err != nil {
		conn.Close(effectrpc.CloseGoingAway, "server is going down")
		return err
	}
	ref.Named("network")
	if local {
		ref.Named("local")
	}
	select {
	case <-ref.Done():
	case <-ctx.Done():
		g.server.Shutdown()
		<-ref.Done()
	}
	return nil
}

// Handler serves the contract over HTTP.
func (s *System) Handler(accept effectrpc.AcceptOptions, local bool) http.Handler {
	mux := http.NewServeMux()
	rpc := func(w http.ResponseWriter, r *http.Request) {
		conn, err := effectrpc.Accept(w, r, accept)
		if err != nil {
			s.log.Debug("connection refused", "err", err)
			return
		}
		// The request's context ends with the handler, the connection's work
		// with the connection.
		if err := s.Serve(context.WithoutCancel(r.Context()), conn, local); err != nil {
			s.log.Debug("connection not served", "err", err)
		}
	}
	mux.HandleFunc(contract.Path, rpc)
	mux.HandleFunc(contract.LegacyPath, rpc)
	if local {
		mux.HandleFunc(acp.Path, s.acceptEditor)
	}
	look := func(path string, h http.Handler) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if err := effectrpc.Admit(w, r, accept); err != nil {
				s.log.Debug("request refused", "path", path, "err", err)
				return
			}
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				w.Header().Set("Allow", "GET, HEAD")
				http.Error(w, "only to be read", http.StatusMethodNotAllowed)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	look(HealthPath, answerProbe(s.alive))
	look(ReadyPath, answerProbe(s.ready))
	if m := s.config.Metrics; m != nil {
		look(MetricsPath, m.Handler(s.log, func(r *http.Request) metrics.State { return s.state(r.Context()) }))
	}
	return mux
}

// Resume begins with the prompts that wait in all sessions.
func (s *System) Resume() { s.guardian.Tell(resumeAll{}) }

// Info says who this is and what runs.
func (s *System) Info(ctx context.Context) (messages.ServerInfo, error) {
	states, err := Ask[[]sessionState](ctx, s.guardian, running{})
	if err != nil {
		return messages.ServerInfo{}, err
	}
	all, err := s.config.Store.Count(ctx)
	if err != nil {
		return messages.ServerInfo{}, err
	}
	info := s.about()
	info.Sessions = messages.SessionCount{Total: all, Busy: len(states)}
	return info, nil
}

// handover asks for the end of this process as soon as nothing runs.
func (s *System) handover(ctx context.Context) (messages.Handover, error) {
	if s.identity.Foreground {
		return messages.Handover{}, &messages.Refused{Name: messages.RefusedBusy, Message: "a server in the foreground hands its home over to nobody; stop it where it runs"}
	}
	states, err := Ask[[]sessionState](ctx, s.guardian, running{})
	if err != nil {
		return messages.Handover{}, err
	}
	h := messages.Handover{WaitsFor: []messages.HandoverSession{}}
	for _, st := range states {
		h.WaitsFor = append(h.WaitsFor, messages.HandoverSession{SessionID: st.id, Title: st.title})
	}
	s.once.Do(func() { close(s.takeover) })
	return h, nil
}

// CloseIfIdle ends admission for good, unless something works, and tells whether
// it has ended. What was admitted before is answered by then and was waited for,
// what comes behind is refused as by a shutdown, before anything is written. An
// error leaves open which it is.
func (s *System) CloseIfIdle(ctx context.Context) (bool, error) {
	return Ask[bool](ctx, s.guardian, closeIfIdle{})
}

// Settle refuses new work, interrupts what runs as a shutdown and waits for
// it to be recorded, or for ctx.
//
// Readers get the events up to there, if they read: those that do not are not
// waited for.
func (s *System) Settle(ctx context.Context) error {
	if _, err := Ask[any](ctx, s.guardian, drain{}); err != nil {
		return err
	}
	subs, err := Ask[[]*subscription](ctx, s.hub, lastEvents{})
	if err != nil {
		return err
	}
	late := time.After(lastWords)
	for _, sub := range subs {
		select {
		case <-sub.done:
		case <-late:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// StopSandboxes stops every sandbox that was made here, whoever uses it, and
// waits for that, or for ctx. None is made or woken after that.
func (s *System) StopSandboxes(ctx context.Context) error {
	_, err := Ask[any](ctx, s.guardian, stopAll{})
	return err
}

// lastWords is how long readers have at the end to take what they still get.
const lastWords = time.Second

// Shutdown stops every actor and all they started, and waits for that, or for
// ctx.
func (s *System) Shutdown(ctx context.Context) {
	s.guardian.Stop()
	select {
	case <-s.guardian.Done():
	case <-ctx.Done():
		s.log.Error("actors did not stop in time")
	}
	s.rt.Shutdown()
}
