package mockmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// DefaultScript is the name of the script for requests that name none.
const DefaultScript = "default"

// DefaultModel is the model that GET …/models lists.
const DefaultModel = "mock-model"

const (
	// defaultKeepBytes is enough for any test, and little beside what a load
	// run of a thousand sessions sends.
	defaultKeepBytes = 256 << 20
	// maxBody is above what any provider takes, so that a request is never cut
	// here by accident.
	maxBody = 64 << 20
	// defaultKeepRequests bounds the records without bodies of a long load run.
	defaultKeepRequests = 200_000
	// headerTime is for a client that connects and says nothing.
	headerTime = 30 * time.Second
)

// Options is how a server behaves. The zero value is a strict server without a
// script on a free port.
type Options struct {
	// Addr is a loopback HOST:PORT; empty is 127.0.0.1 on a free port.
	Addr string
	// Script is for requests that name no script; nil is none.
	Script Script
	// Scripts are for requests whose newest marker is script=NAME.
	Scripts map[string]Script
	// Lenient answers histories that a provider would refuse.
	Lenient bool
	// RequireKey is the key that requests must carry as a bearer token, in
	// x-api-key or in x-goog-api-key. "any" takes every key; empty asks for none.
	RequireKey string
	// Models are the ids that GET …/models lists; nil is DefaultModel alone.
	Models []string
	// KeepBytes bounds the request bodies that are kept, in bytes; 0 is 256 MiB.
	KeepBytes int64
	// KeepRequests bounds the records: when it is reached, the older half is
	// forgotten. 0 is 200,000.
	KeepRequests int
}

// Request is what was received, and what became of it.
type Request struct {
	N        int         `json:"n"` // from 1, in order of arrival
	At       time.Time   `json:"at"`
	Method   string      `json:"method"`
	Path     string      `json:"path"`
	Protocol string      `json:"protocol"` // empty for a path that is none's
	Header   http.Header `json:"header"`
	// Body and View are nil once newer bodies have taken their place.
	Body []byte `json:"-"`
	View *View  `json:"view"`
	Size int    `json:"size"` // of the body, in bytes
	// Script and Answer tell which answer it got, counted from 0. Answer is -1
	// when the answer came from a marker or the request was turned away.
	Script string `json:"script"`
	Answer int    `json:"answer"`
	Marker string `json:"marker"` // of mock=, without the word
	Status int    `json:"status"` // sent so far; 0: no headers yet
	Events int    `json:"events"` // sent so far
	// Left tells that the client went away before the end of its answer.
	Left bool `json:"left"`
	Done bool `json:"done"` // the answer is over, one way or the other
}

// Violation is a request that a provider would have refused, or one that the
// script did not foresee.
type Violation struct {
	Request int    `json:"request"`
	Rule    Rule   `json:"rule"`
	Reason  string `json:"reason"`
}

func (v Violation) String() string {
	return fmt.Sprintf("request %d: %s: %s", v.Request, v.Rule, v.Reason)
}

// Stats are totals since the start or the last reset.
type Stats struct {
	Requests    int            `json:"requests"`
	ByProtocol  map[string]int `json:"by_protocol"`
	ByStatus    map[int]int    `json:"by_status"` // 0: ended before any header
	ModelLists  int            `json:"model_lists"`
	Bytes       int64          `json:"bytes"` // of request bodies
	Events      int            `json:"events"`
	Left        int            `json:"left"`
	Violations  int            `json:"violations"`
	InFlight    int            `json:"in_flight"`
	MaxInFlight int            `json:"max_in_flight"`
	Connections int            `json:"connections"` // accepted
}

// Server is a scripted model server. All methods may be called at any time from
// any goroutine.
type Server struct {
	opts   Options
	issued *issued
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	http   *http.Server
	ln     net.Listener
	served chan struct{}

	// mu guards all below. changed is closed and replaced whenever something
	// that a wait may be for has happened.
	mu         sync.Mutex
	changed    chan struct{}
	closed     bool
	scripts    map[string]Script
	next       map[string]int // answers given, by script
	faults     map[string]int // faults given, by marker
	requests   []*Request
	first      int // N of requests[0]
	kept       int // index of the oldest request that may still have its body
	keptBytes  int64
	violations []Violation
	holds      map[string][]chan struct{}
	stats      Stats
	ids        int64
	conns      int // open connections that are not hijacked
	running    int // handlers, control included
}

// New returns a server that does not listen yet. It panics on scripts that
// cannot work as written, like regexp.MustCompile: they are part of a test's
// source.
func New(o Options) *Server {
	if o.KeepBytes == 0 {
		o.KeepBytes = defaultKeepBytes
	}
	if o.KeepRequests == 0 {
		o.KeepRequests = defaultKeepRequests
	}
	if o.Models == nil {
		o.Models = []string{DefaultModel}
	}
	s := &Server{opts: o, issued: newIssued(), served: make(chan struct{}),
		changed: make(chan struct{}), holds: map[string][]chan struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	scripts := maps.Clone(o.Scripts)
	if scripts == nil {
		scripts = map[string]Script{}
	}
	if o.Script != nil {
		scripts[DefaultScript] = o.Script
	}
	if err := s.SetScripts(scripts); err != nil {
		panic("mockmodel: " + err.Error())
	}
	s.Reset()
	return s
}

// Start begins to listen. It refuses addresses other than loopback.
func (s *Server) Start() error {
	addr := s.opts.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("listen: %s is not a loopback address", addr)
	}
	if s.ln, err = net.Listen("tcp", addr); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: headerTime,
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ErrorLog:          log.New(io.Discard, "", 0), // clients that leave are recorded, not logged
		ConnState: func(_ net.Conn, st http.ConnState) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch st {
			case http.StateNew:
				s.stats.Connections++
				s.conns++
			case http.StateClosed, http.StateHijacked:
				s.conns--
				s.change()
			}
		},
	}
	go func() {
		defer close(s.served)
		s.http.Serve(s.ln) // always ends by Close, whose error says nothing new
	}()
	return nil
}

// TB is what StartTest needs of a *testing.T or *testing.B.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// StartTest starts a server for a test, closes it at the end of the test, and
// fails the test for every violation that it has not taken.
func StartTest(tb TB, o Options) *Server {
	tb.Helper()
	s := New(o)
	if err := s.Start(); err != nil {
		tb.Fatalf("start the model server: %v", err)
	}
	tb.Cleanup(func() {
		tb.Helper()
		s.Close()
		for _, v := range s.TakeViolations() {
			tb.Errorf("model server: %s", v)
		}
	})
	return s
}

// URL is the root of the server, such as http://127.0.0.1:41234. The base URL of
// a provider is this and any path; "/v1" is usual.
func (s *Server) URL() string { return "http://" + s.ln.Addr().String() }

// Close ends all answers and connections and waits until nothing is running.
// Records can still be read. It may be called more than once.
func (s *Server) Close() error {
	s.cancel()
	if s.ln == nil {
		return nil
	}
	err := s.http.Close()
	<-s.served
	// A connection that was accepted at the same moment is known only now.
	if cerr := s.http.Close(); err == nil {
		err = cerr
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	// The handlers have been told to end and none of them waits for anything but
	// that, so this needs no limit of its own.
	if werr := s.wait(context.Background(), func() bool { return s.running == 0 && s.conns == 0 }); err == nil {
		err = werr
	}
	if err != nil {
		return fmt.Errorf("close the model server: %w", err)
	}
	return nil
}

// change wakes the waits. The caller holds mu.
func (s *Server) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait blocks until cond, which is called under mu, is true.
func (s *Server) wait(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		ok, changed := cond(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// SetScripts replaces all scripts and starts their counts anew.
func (s *Server) SetScripts(scripts map[string]Script) error {
	for name, sc := range scripts {
		if err := sc.check(); err != nil {
			return fmt.Errorf("script %s: %w", name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts = maps.Clone(scripts)
	if s.scripts == nil {
		s.scripts = map[string]Script{}
	}
	s.next = map[string]int{}
	return nil
}

// SetScript replaces or adds one script and starts its count anew.
func (s *Server) SetScript(name string, sc Script) error {
	if err := sc.check(); err != nil {
		return fmt.Errorf("script %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[name] = sc
	delete(s.next, name)
	return nil
}

// Remaining tells how many answers of a script have not been given.
func (s *Server) Remaining(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.scripts[name]) - s.next[name]
}

// Reset forgets requests, violations and counts, and starts the scripts anew.
// What this server issued, such as signatures, stays valid.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.faults = map[string]int{}, map[string]int{}
	s.first += len(s.requests)
	if s.first == 0 {
		s.first = 1
	}
	s.requests, s.kept, s.keptBytes = nil, 0, 0
	s.violations = nil
	s.stats = Stats{ByProtocol: map[string]int{}, ByStatus: map[int]int{}, InFlight: s.stats.InFlight, MaxInFlight: s.stats.InFlight}
	s.change()
}

// Requests returns what was received, in order of arrival. The values are
// copies of this moment; what they point to is not to be changed.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Request, len(s.requests))
	for i, r := range s.requests {
		out[i] = *r
	}
	return out
}

// Violations returns what was wrong, in order.
func (s *Server) Violations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// TakeViolations returns what was wrong and forgets it: for tests that provoke
// a violation on purpose.
func (s *Server) TakeViolations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.violations
	s.violations = nil
	return out
}

// Stats returns the totals of this moment.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.ByProtocol, st.ByStatus = maps.Clone(st.ByProtocol), maps.Clone(st.ByStatus)
	st.Violations = len(s.violations)
	return st
}

// WaitRequests blocks until n requests have arrived since the last reset, or the
// context ends.
func (s *Server) WaitRequests(ctx context.Context, n int) error {
	if err := s.wait(ctx, func() bool { return s.stats.Requests >= n }); err != nil {
		return fmt.Errorf("wait for request %d, got %d: %w", n, s.Stats().Requests, err)
	}
	return nil
}

// WaitIdle blocks until no request is being answered, or the context ends.
func (s *Server) WaitIdle(ctx context.Context) error {
	if err := s.wait(ctx, func() bool { return s.stats.InFlight == 0 }); err != nil {
		return fmt.Errorf("wait for the answers to end: %w", err)
	}
	return nil
}

// Reached blocks until a request stands at the hold of that name, or the
// context ends. A request whose client left stands there until the server has
// noticed; use a name once where that matters.
func (s *Server) Reached(ctx context.Context, name string) error {
	if err := s.wait(ctx, func() bool { return len(s.holds[name]) > 0 }); err != nil {
		return fmt.Errorf("wait for a request at hold %s: %w", name, err)
	}
	return nil
}

// Release lets go all requests that stand at the hold of that name and tells how
// many there were. One that comes later stops there again.
func (s *Server) Release(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.holds[name]
	delete(s.holds, name)
	for _, c := range held {
		close(c)
	}
	return len(held)
}

// hold blocks at a hold point.
func (s *Server) hold(ctx context.Context, name string) error {
	c := make(chan struct{})
	s.mu.Lock()
	s.holds[name] = append(s.holds[name], c)
	s.change()
	s.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[name] = slices.DeleteFunc(s.holds[name], func(x chan struct{}) bool { return x == c })
	return errLeft
}

// violate records a violation.
func (s *Server) violate(rec *Request, rule Rule, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, Violation{Request: rec.N, Rule: rule, Reason: reason})
	s.change()
}

// update changes a record under the lock.
func (s *Server) update(rec *Request, f func(*Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(rec)
}

// arrive records a request.
func (s *Server) arrive(rec *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.requests); n >= s.opts.KeepRequests {
		// Half at once, so that a long run does not copy them all each time.
		gone := (n + 1) / 2
		for _, r := range s.requests[:gone] {
			s.keptBytes -= int64(len(r.Body))
		}
		s.requests = slices.Clone(s.requests[gone:])
		s.first += gone
		s.kept = max(s.kept-gone, 0)
	}
	rec.N = s.first + len(s.requests)
	s.requests = append(s.requests, rec)
	s.stats.Requests++
	s.stats.ByProtocol[rec.Protocol]++
	s.stats.Bytes += int64(rec.Size)
	s.keptBytes += int64(len(rec.Body))
	for s.keptBytes > s.opts.KeepBytes && s.kept < len(s.requests) {
		old := s.requests[s.kept]
		s.keptBytes -= int64(len(old.Body))
		old.Body, old.View = nil, nil
		s.kept++
	}
	s.change()
}

// begin counts a handler; it is false once the server is closed. end undoes it.
func (s *Server) begin(control bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running++
	if !control {
		s.stats.InFlight++
		s.stats.MaxInFlight = max(s.stats.MaxInFlight, s.stats.InFlight)
	}
	return true
}

func (s *Server) end(control bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if !control {
		s.stats.InFlight--
	}
	s.change()
}

func (s *Server) settle(rec *Request, events int, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec.Done, rec.Left = true, left
	s.stats.ByStatus[rec.Status]++
	s.stats.Events += events
	if left {
		s.stats.Left++
	}
	s.change()
}

// dialects are the protocols that the server speaks.
var dialects = []dialect{chat{}, anthropic{}, gemini{}, responses{}, responses{codex: true}}

// dialectOf finds the protocol of a path; ok is false for a path of none.
func dialectOf(path string) (d dialect, ok bool) {
	for _, d := range dialects {
		if d.serves(path) {
			return d, true
		}
	}
	// An error to a stranger is in the shape that most clients read.
	return chat{}, false
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	control := strings.HasPrefix(r.URL.Path, controlPrefix)
	if !s.begin(control) {
		return
	}
	defer s.end(control)
	if control {
		s.control(w, r)
		return
	}
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/models") {
		s.listModels(w)
		return
	}
	s.answer(w, r)
}

func (s *Server) listModels(w http.ResponseWriter) {
	s.mu.Lock()
	s.stats.ModelLists++
	s.mu.Unlock()
	data := []object{}
	for _, id := range s.opts.Models {
		// The fields of both protocols' lists together: their readers take what
		// they know.
		data = append(data, object{"id": id, "object": "model", "created": 1700000000, "owned_by": "mock",
			"type": "model", "display_name": id, "created_at": "2023-11-14T22:13:20Z"})
	}
	out := object{"object": "list", "data": data, "has_more": false}
	if n := len(s.opts.Models); n > 0 {
		out["first_id"], out["last_id"] = s.opts.Models[0], s.opts.Models[n-1]
	}
	writeJSON(w, http.StatusOK, out)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	w.WriteHeader(status)
	_, err = w.Write(b)
	return err
}

// answer takes one request to a model.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	rec := &Request{At: time.Now(), Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Answer: -1}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return // the client left in mid-request; there is nobody to answer
	}
	d, known := dialectOf(r.URL.Path)
	if known {
		rec.Protocol = d.name()
	}
	rec.Body, rec.Size = data, len(data)
	var body object
	jsonErr := json.Unmarshal(data, &body)
	v := d.view(r, body)
	rec.View = v

	s.mu.Lock()
	s.ids++
	id := s.ids
	s.mu.Unlock()
	s.arrive(rec)

	run := &run{s: s, w: w, r: r, d: d, rec: rec, view: v, id: id}
	defer run.settle()
	refuse := func(status int, rule Rule, reason string) {
		s.violate(rec, rule, reason)
		// Trying again does not help, and would only make the failure slow.
		run.http(HTTP{Status: status, Message: reason, Header: map[string]string{"X-Should-Retry": "false"}})
	}
	c := &checker{issued: s.issued, view: v}
	switch {
	case !known:
		refuse(http.StatusNotFound, RulePath, "no such path: "+r.URL.Path)
		return
	case r.Method != http.MethodPost:
		refuse(http.StatusMethodNotAllowed, RulePath, "method not allowed: "+r.Method)
		return
	case !s.keyFits(r.Header):
		refuse(http.StatusUnauthorized, RuleKey, keyFault(r.Header))
		return
	case body == nil || jsonErr != nil:
		refuse(http.StatusBadRequest, RuleJSON, "the body is not a JSON object")
		return
	case !s.opts.Lenient:
		c.raw(data)
		c.contentType(r.Header)
		d.check(c, r.Header, body)
		if c.rule != "" {
			refuse(http.StatusBadRequest, c.rule, c.reason)
			return
		}
	}
	steps, err := s.choose(rec, v)
	if err != nil {
		refuse(http.StatusInternalServerError, RuleScript, err.Error())
		return
	}
	run.answer(steps)
}

// keyFits tells whether the request carries the key that is asked for.
func (s *Server) keyFits(h http.Header) bool {
	switch key := keyOf(h); s.opts.RequireKey {
	case "":
		return true
	case "any":
		return key != ""
	default:
		return key == s.opts.RequireKey
	}
}

func keyOf(h http.Header) string {
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if k := h.Get(name); k != "" {
			return strings.TrimSpace(k)
		}
	}
	scheme, key, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// keyFault never shows the key: test logs are kept.
func keyFault(h http.Header) string {
	if keyOf(h) == "" {
		return "no key: neither x-api-key, x-goog-api-key nor Authorization: Bearer"
	}
	return "wrong key"
}

// choose picks the answer: by the newest marker, else from the default script.
func (s *Server) choose(rec *Request, v *View) (Answer, error) {
	mark := findMarker(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	name := DefaultScript
	switch {
	case mark.script != "":
		name = mark.script
	case mark.mock != "":
		rec.Marker = mark.mock
		return s.fromMarker(mark)
	case len(s.scripts) == 0:
		rec.Marker = unscripted
		return s.fromMarker(marker{mock: unscripted})
	}
	rec.Script = name
	sc, ok := s.scripts[name]
	if !ok {
		return nil, fmt.Errorf("there is no script %s", name)
	}
	n := s.next[name]
	if n >= len(sc) {
		return nil, fmt.Errorf("script %s has run out: it has %d answers", name, len(sc))
	}
	s.next[name] = n + 1
	rec.Answer = n
	return sc[n], nil
}

var (
	// errLeft ends an answer whose client went away, or whose server closes.
	errLeft = errors.New("the client left")
	// errOver ends an answer in which a step had the last word.
	errOver = errors.New("the answer is over")
)
