package actors

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/internal/store"
	"codework/internal/tools"
	"codework/messages"
	"codework/sandboxes"
)

func TestMain(m *testing.M) {
	if servePlugin() {
		return
	}
	goleak.VerifyTestMain(m,
		// The actor system counts dead letters in a goroutine that ends with
		// the process.
		goleak.IgnoreTopFunction("github.com/asynkron/protoactor-go/actor.NewThrottle.func1"))
}

// within bounds every wait of a test; it is never reached when things work.
const within = 20 * time.Second

// tb is what the rig needs of a test, or of one round of a property.
type tb interface {
	Helper()
	Cleanup(func())
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// rig is a tree of actors on a store in memory, with a model and tools that
// the test plays.
type rig struct {
	t      tb
	store  *store.Store
	flaky  *flakyStore
	system *System
	model  *playedModel
	events *recorder
	ctx    context.Context
	limits func(*Config) // changes what boot starts with
	// loaded and clients count sessions in memory and connections.
	loaded, clients atomic.Int64

	mu       sync.Mutex    // guards what follows
	query    ExchangeQuery // the last one
	exchange Exchange
	prepErr  error
}

// flakyStore refuses appends, or lets things wait, on demand.
type flakyStore struct {
	*store.Store
	looking chan struct{} // a lookup waits

	mu     sync.Mutex // guards what follows
	fail   func(store.Batch) error
	load   error
	hold   chan struct{} // closed to let appends go on
	lookup chan struct{} // closed to let lookups of prompts go on
}

func (f *flakyStore) Append(b store.Batch, done func(error)) {
	f.mu.Lock()
	fail, hold := f.fail, f.hold
	f.mu.Unlock()
	if hold != nil {
		told := done
		done = func(err error) {
			<-hold // holds up everything behind it as well
			told(err)
		}
	}
	if fail != nil {
		if err := fail(b); err != nil {
			// Refused by the store, so that answers keep their order.
			f.Store.Append(store.Batch{Session: b.Session, Events: []messages.Event{{ID: "gap", Type: "gap", Session: b.Session, Seq: 1 << 40}}},
				func(error) { done(err) })
			return
		}
	}
	f.Store.Append(b, done)
}

func (f *flakyStore) Load(ctx context.Context, id string) (store.Snapshot, error) {
	if err := f.loadError(); err != nil {
		return store.Snapshot{}, err
	}
	return f.Store.Load(ctx, id)
}

func (f *flakyStore) Recall(ctx context.Context, id string) (store.Snapshot, error) {
	if err := f.loadError(); err != nil {
		return store.Snapshot{}, err
	}
	return f.Store.Recall(ctx, id)
}

func (f *flakyStore) loadError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.load
}

func (f *flakyStore) Prompt(id string) (session, hash string, ok bool, err error) {
	f.mu.Lock()
	wait := f.lookup
	f.mu.Unlock()
	if wait != nil {
		f.looking <- struct{}{}
		<-wait
	}
	return f.Store.Prompt(id)
}

func (f *flakyStore) failLoads(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.load = err
}

// holdLookups makes lookups of prompt ids wait until release is called; each
// one that waits is told on looking.
func (f *flakyStore) holdLookups() (release func()) {
	wait := make(chan struct{})
	f.mu.Lock()
	f.lookup = wait
	f.mu.Unlock()
	return func() {
		f.mu.Lock()
		f.lookup = nil
		f.mu.Unlock()
		close(wait)
	}
}

func (f *flakyStore) failWhen(fail func(store.Batch) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func newRig(t tb, extra ...tools.Tool) *rig {
	t.Helper()
	return newRigWith(t, nil, extra...)
}

// newRigWith changes what boot starts with.
func newRigWith(t tb, change func(*Config), extra ...tools.Tool) *rig {
	t.Helper()
	return newRigOn(t, store.Options{}, change, extra...)
}

// newRigOn keeps its sessions elsewhere than in memory.
func newRigOn(t tb, where store.Options, change func(*Config), extra ...tools.Tool) *rig {
	t.Helper()
	st, err := store.Open(context.Background(), where)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*within)
	r := &rig{t: t, store: st, flaky: &flakyStore{Store: st, looking: make(chan struct{}, 64)}, model: newPlayedModel(), ctx: ctx, limits: change}
	set, err := tools.NewSet(extra...)
	if err != nil {
		t.Fatal(err)
	}
	r.exchange = Exchange{
		Model: messages.Model{ID: "m", Provider: messages.ModelProvider{ID: "p"}, Protocol: messages.ProtocolCompatible, Input: []string{"text"}},
		Retry: Retry{Max: 2, Base: time.Millisecond, MaxDelay: time.Minute},
		Tools: set, Streamer: r.model, Workplace: directPlace{}, System: "system",
	}
	r.boot()
	t.Cleanup(func() {
		r.down()
		cancel()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// boot starts the actors on what the store has.
func (r *rig) boot() {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if os.Getenv("ACTORS_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	config := Config{Store: r.flaky, Prepare: r, Local: nowhere{}, Dir: "/", checkpoints: 4,
		Watch: func(l Load) {
			r.loaded.Store(int64(l.Loaded))
			r.clients.Store(int64(l.Clients))
		}}
	if r.limits != nil {
		r.limits(&config)
	}
	s, err := Boot(r.ctx, config, Identity{}, log)
	if err != nil {
		r.t.Fatal(err)
	}
	r.system = s
	r.events = r.record()
}

// down stops the actors, as abruptly as a process that is told to end.
func (r *rig) down() {
	if r.system == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	r.system.Shutdown(ctx)
	if ctx.Err() != nil {
		r.t.Error("actors did not stop")
	}
	r.system = nil
}

// Prepare gives every exchange the same.
func (r *rig) Prepare(_ context.Context, q ExchangeQuery) (*Exchange, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.query = q
	if r.prepErr != nil {
		return nil, r.prepErr
	}
	ex := r.exchange
	return &ex, nil
}

func (r *rig) lastQuery() ExchangeQuery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.query
}

func (r *rig) with(change func(*Exchange)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.exchange)
}

func (r *rig) create() string {
	r.t.Helper()
	info, err := Ask[messages.SessionInfo](r.ctx, r.system.guardian, messages.CreateSession{Directory: "/"})
	if err != nil {
		r.t.Fatal(err)
	}
	return info.ID
}

// to sends a message to a session and returns its answer.
func (r *rig) to(id string, m any) (any, error) {
	return Ask[any](r.ctx, r.system.guardian, toSession{id, m})
}

func (r *rig) prompt(id, text string, d messages.Delivery) string {
	r.t.Helper()
	p := messages.Prompt{SessionID: id, Text: text, Delivery: d, ID: messages.NewMessageID()}
	if _, err := r.to(id, p); err != nil {
		r.t.Fatal(err)
	}
	return p.ID
}

func (r *rig) wait(id string) {
	r.t.Helper()
	if _, err := r.to(id, messages.Wait{SessionID: id}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) interrupt(id string) bool {
	r.t.Helper()
	v, err := r.to(id, messages.Interrupt{SessionID: id})
	if err != nil {
		r.t.Fatal(err)
	}
	return v.(messages.Interrupted).Interrupted
}

// log returns the recorded events of a session.
func (r *rig) log(id string) []messages.Event {
	r.t.Helper()
	snap, err := r.store.Load(r.ctx, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return snap.Events
}

// ledger folds the log of a session. Its checkpoints must say the same.
func (r *rig) ledger(id string) *ledger {
	r.t.Helper()
	l, snap, err := readLedger(r.ctx, r.store, id)
	if err != nil {
		r.t.Fatal(err)
	}
	kept, now, err := recall(r.ctx, r.store, id)
	if err != nil {
		r.t.Fatal(err)
	}
	if now.Head == snap.Head && reflect.DeepEqual(now.Record, snap.Record) && !l.same(kept) {
		r.t.Fatalf("the log says\n%+v\nits checkpoints\n%+v", l, kept)
	}
	return l
}

// recorder keeps what a subscriber receives.
type recorder struct {
	mu     sync.Mutex // guards events
	events []messages.Event
	more   chan struct{}
}

func (r *rig) record() *recorder {
	sub := newSubscription("")
	if _, err := r.system.hub.request(subscribe{sub})(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	rec := &recorder{more: make(chan struct{}, 1)}
	go func() {
		for {
			batch, err := sub.next(context.Background(), 64)
			if err != nil {
				return
			}
			rec.mu.Lock()
			for _, p := range batch {
				rec.events = append(rec.events, p.Event)
			}
			rec.mu.Unlock()
			select {
			case rec.more <- struct{}{}:
			default:
			}
		}
	}()
	return rec
}

// types returns the types of a session's events so far, with deltas and
// server events left out.
func (rec *recorder) types(id string) []string {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	var out []string
	for _, e := range rec.events {
		if e.Session == id {
			out = append(out, e.Type)
		}
	}
	return out
}

// until waits for the n-th event of a type.
func (rec *recorder) until(t testing.TB, id, kind string, n int) messages.EventData {
	t.Helper()
	deadline := time.After(within)
	for {
		rec.mu.Lock()
		seen := 0
		for _, e := range rec.events {
			if e.Session == id && e.Type == kind {
				if seen++; seen == n {
					rec.mu.Unlock()
					d, err := e.Decode()
					if err != nil {
						t.Fatal(err)
					}
					return d
				}
			}
		}
		rec.mu.Unlock()
		select {
		case <-rec.more:
		case <-time.After(10 * time.Millisecond): // somebody else took the signal
		case <-deadline:
			t.Fatalf("no %s number %d; saw %v", kind, n, rec.types(id))
		}
	}
}

// playedModel is a model whose answers the test gives.
type playedModel struct{ asked chan *asked }

// asked is one request that waits for the test's answer.
type asked struct {
	ctx  context.Context
	req  *messages.Request
	emit func(messages.StreamEvent)
}

func newPlayedModel() *playedModel { return &playedModel{asked: make(chan *asked, 1024)} }

func (m *playedModel) Stream(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
	m.asked <- &asked{ctx, req, emit}
}

func (m *playedModel) next(t testing.TB) *asked {
	t.Helper()
	select {
	case a := <-m.asked:
		return a
	case <-time.After(within):
		t.Fatal("no request came")
		return nil
	}
}

func (a *asked) start() { a.emit(messages.StreamEvent{Kind: messages.StreamStart, RequestDigest: "d"}) }

func (a *asked) text(s string) {
	a.emit(messages.StreamEvent{Kind: messages.StreamTextStart})
	a.emit(messages.StreamEvent{Kind: messages.StreamTextDelta, Delta: s})
}

func (a *asked) done(stop messages.StopReason, parts ...messages.Part) {
	a.emit(messages.StreamEvent{Kind: messages.StreamDone, Message: &messages.Message{
		ID: a.req.MessageID, Role: messages.RoleAssistant, Provider: "p", Protocol: "openai-compatible", Model: "m",
		StopReason: stop, Parts: parts, Usage: &messages.Usage{Input: 1, Output: 1, TotalTokens: 2}}})
}

func (a *asked) fail(f messages.Failure) {
	a.emit(messages.StreamEvent{Kind: messages.StreamError, Failure: &f})
}

func (a *asked) answer(s string) {
	a.start()
	a.text(s)
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: s})
}

func (a *asked) call(calls ...messages.Part) {
	a.start()
	a.done(messages.StopToolUse, calls...)
}

func toolCall(id, name, args string) messages.Part {
	return messages.Part{Type: messages.PartToolCall, CallID: id, Name: name, Arguments: args}
}

// directPlace runs calls without a sandbox.
type directPlace struct{}

func (directPlace) Do(ctx context.Context, call func(context.Context, sandboxes.Mount), done func()) {
	go func() {
		defer done()
		call(ctx, nil)
	}()
}

// nowhere is a sandbox without mounts.
type nowhere struct{}

func (nowhere) Mount(context.Context, sandboxes.MountOptions) (sandboxes.Mount, error) {
	return nil, sandboxes.ErrClosed
}
func (nowhere) Close(context.Context) error { return nil }

// gate is a tool that runs until the test lets it go.
type gate struct {
	started chan string
	release chan struct{}
}

func newGate() *gate { return &gate{started: make(chan string, 64), release: make(chan struct{}, 64)} }

func (g *gate) tool(name string) tools.Tool {
	return tools.Tool{Name: name, Schema: json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`),
		Run: func(ctx context.Context, c tools.Context, _ json.RawMessage) (messages.ToolResult, error) {
			g.started <- c.CallID
			select {
			case <-g.release:
				return messages.TextResult("result of "+c.CallID, false), nil
			case <-ctx.Done():
				return messages.ToolResult{}, ctx.Err()
			}
		}}
}

func (g *gate) wait(t testing.TB) string {
	t.Helper()
	select {
	case id := <-g.started:
		return id
	case <-time.After(within):
		t.Fatal("the tool did not start")
		return ""
	}
}
