package actors

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"codework/integration/mockmodel"
	"codework/internal/store"
	"codework/internal/tools"
	"codework/messages"
	"codework/providers"
	"codework/providers/anthropic"
	"codework/providers/chat"
)

var long = flag.Bool("actors.long", false, "run the long form of the property tests (minutes)")

// Rounds of the property test, each of some thirty steps.
const (
	shortRounds = "20"
	longRounds  = "3000"
)

// setRounds says how many rounds a property is tried, unless a flag does: so many
// in the short form.
func setRounds(t *testing.T, short string) {
	t.Helper()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		rounds := short
		if *long {
			rounds = longRounds
		}
		if err := checks.Value.Set(rounds); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
	}
	// Rounds depend on timing too: a file to replay one would not help.
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		t.Fatal(err)
	}
}

// TestSessionsKeepTheirPromises drives sessions with everything that may
// happen to them, in any order, and checks each time they have come to rest
// what the package promises.
func TestSessionsKeepTheirPromises(t *testing.T) {
	setRounds(t, shortRounds)
	mock := mockmodel.StartTest(t, mockmodel.Options{KeepBytes: 1 << 20})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	rapid.Check(t, func(rt *rapid.T) {
		d := newDriver(rt, mock, client)
		rt.Repeat(map[string]func(*rapid.T){
			"prompt":        d.prompt,
			"prompt again":  d.promptAgain,
			"more prompts":  d.prompt,
			"model":         d.modelStep,
			"model goes on": d.modelStep,
			"model is done": d.modelDone,
			"tool":          d.toolStep,
			"interrupt":     d.interruptStep,
			"resume":        d.resume,
			"wait":          d.waitStep,
			"queue":         d.queueStep,
			"client leaves": d.clientLeaves,
			"crash":         d.crash,
			"append fails":  d.appendFails,
			"no exchange":   d.prepareFails,
			"parallel":      d.parallel,
			"retire":        d.retire,
			"reboot":        d.reboot,
			"wake":          d.wakeStep,
			"mend":          d.mend,
			"rename":        d.rename,
			"rest":          d.rest,
		})
		d.rest(rt)
		d.reboot(rt)
		d.rest(rt)
	})
}

// driver is one round: a rig, two sessions, and what the test knows of them.
type driver struct {
	*rig
	rt       *rapid.T
	mock     *mockmodel.Server
	client   *http.Client
	sessions []*driven
	conns    []string // local clients that are there
	n        int      // for names
	failing  int      // appends that are still to fail

	tools struct {
		mu      sync.Mutex // guards blocked
		blocked map[int][]*blockedCall
	}
}

// driven is a session under test.
type driven struct {
	n       int
	id      string
	prompts []*sentPrompt
	turn    *modelTurn // the live request
	base    int64      // end of the log when the subscriber came
	waits   []func(context.Context) (any, error)
	reqs    []*messages.Request // since the last rest
	unsure  bool                // something was thrown away since the last rest
	caches  map[string]*messages.EncodeCache
}

// sentPrompt is a prompt that was sent; its text is its own.
type sentPrompt struct {
	messages.Prompt
	acked bool
	gone  bool // its client has left
}

// modelTurn is a request and how far its answer is.
type modelTurn struct {
	*asked
	started bool
	parts   int
}

type blockedCall struct{ release chan struct{} }

func newDriver(rt *rapid.T, mock *mockmodel.Server, client *http.Client) *driver {
	d := &driver{rt: rt, mock: mock, client: client}
	d.tools.blocked = map[int][]*blockedCall{}
	schema := json.RawMessage(`{"type":"object","properties":{"s":{"type":"integer"}},"required":["s"],"additionalProperties":false}`)
	tool := func(name string, run func(ctx context.Context, c tools.Context) (messages.ToolResult, error)) tools.Tool {
		return tools.Tool{Name: name, Schema: schema, Run: func(ctx context.Context, c tools.Context, args json.RawMessage) (messages.ToolResult, error) {
			if name != "block" {
				return run(ctx, c)
			}
			var a struct{ S int }
			if err := json.Unmarshal(args, &a); err != nil {
				return messages.ToolResult{}, err
			}
			return d.block(ctx, a.S)
		}}
	}
	d.rig = newRig(rt,
		tool("ok", func(_ context.Context, c tools.Context) (messages.ToolResult, error) {
			c.Progress(messages.TextResult("so far", false))
			return messages.TextResult("result", false), nil
		}),
		tool("empty", func(context.Context, tools.Context) (messages.ToolResult, error) { return messages.ToolResult{}, nil }),
		tool("fail", func(context.Context, tools.Context) (messages.ToolResult, error) {
			return messages.ToolResult{}, errors.New("did not work")
		}),
		tool("panic", func(context.Context, tools.Context) (messages.ToolResult, error) { panic("on purpose") }),
		tool("block", nil))
	d.flaky.failWhen(d.failAppend)
	for i := range 2 {
		d.sessions = append(d.sessions, &driven{n: i, id: d.create(), caches: map[string]*messages.EncodeCache{}})
	}
	return d
}

func (d *driver) block(ctx context.Context, session int) (messages.ToolResult, error) {
	b := &blockedCall{release: make(chan struct{})}
	d.tools.mu.Lock()
	d.tools.blocked[session] = append(d.tools.blocked[session], b)
	d.tools.mu.Unlock()
	defer func() {
		d.tools.mu.Lock()
		d.tools.blocked[session] = slices.DeleteFunc(d.tools.blocked[session], func(o *blockedCall) bool { return o == b })
		d.tools.mu.Unlock()
	}()
	select {
	case <-b.release:
		return messages.TextResult("released", false), nil
	case <-ctx.Done():
		return messages.ToolResult{}, ctx.Err()
	}
}

// release lets blocked calls of a session go, and tells whether there were any.
func (d *driver) release(s *driven, all bool) bool {
	d.tools.mu.Lock()
	defer d.tools.mu.Unlock()
	calls := d.tools.blocked[s.n]
	if len(calls) == 0 {
		return false
	}
	if !all {
		calls = calls[:1]
	}
	for _, b := range calls {
		close(b.release)
	}
	d.tools.blocked[s.n] = slices.Clone(d.tools.blocked[s.n][len(calls):])
	return true
}

func (d *driver) failAppend(store.Batch) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failing == 0 {
		return nil
	}
	d.failing--
	return &messages.Refused{Name: messages.RefusedStore, Message: "no space left"}
}

func (d *driver) some(rt *rapid.T) *driven {
	return d.sessions[rapid.IntRange(0, len(d.sessions)-1).Draw(rt, "session")]
}

// calm waits until a session waits for something that the test decides: it is
// idle, a request is unanswered or a call is blocked. It tells whether it is
// idle.
func (d *driver) calm(s *driven) bool {
	deadline := time.Now().Add(within)
	for {
		d.takeRequests()
		v, err := d.to(s.id, messages.GetSession{SessionID: s.id})
		if err == nil {
			switch v.(messages.SessionInfo).Status {
			case messages.SessionIdle:
				return true
			case messages.SessionRunning:
				d.takeRequests()
				d.tools.mu.Lock()
				blocked := len(d.tools.blocked[s.n])
				d.tools.mu.Unlock()
				if s.turn != nil && s.turn.ctx.Err() == nil || blocked > 0 {
					return false
				}
			}
		}
		if time.Now().After(deadline) {
			d.rt.Fatalf("session %d hangs: %v, %v; events %v", s.n, v, err, d.events.types(s.id))
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// takeRequests notes new requests, each of which a strict provider must take.
func (d *driver) takeRequests() {
	for {
		select {
		case a := <-d.model.asked:
			for _, s := range d.sessions {
				if s.id == a.req.SessionID {
					d.takeRequest(s, a)
				}
			}
		default:
			return
		}
	}
}

func (d *driver) takeRequest(s *driven, a *asked) {
	if s.turn != nil && s.turn.ctx.Err() == nil {
		d.rt.Fatalf("session %d has two requests under way", s.n)
	}
	s.turn = &modelTurn{asked: a}
	s.reqs = append(s.reqs, a.req)
	d.strict(s, a.req, "chat", chat.Dialect{}, messages.ProtocolCompatible)
	d.strict(s, a.req, "anthropic", anthropic.Dialect{}, messages.ProtocolAnthropic)
}

// strict sends the conversation of a request to a provider that refuses
// everything a real one might.
func (d *driver) strict(s *driven, req *messages.Request, name string, dialect providers.Dialect, p messages.Protocol) {
	if s.caches[name] == nil {
		s.caches[name] = &messages.EncodeCache{}
	}
	own := *req
	own.Cache, own.APIKey = s.caches[name], "key"
	own.Model.Protocol, own.Model.Provider.ID, own.Model.BaseURL, own.Model.MaxTokens = p, "strict", d.mock.URL()+"/v1", 4096
	var end messages.StreamEvent
	dialect.Stream(context.Background(), d.client, &own, func(ev messages.StreamEvent) { end = ev })
	if end.Kind != messages.StreamDone {
		b, _ := json.MarshalIndent(req.Messages, "", " ")
		d.rt.Fatalf("%s refuses the request: %+v\n%v\n%s", name, end.Failure, d.mock.TakeViolations(), b)
	}
}

// Steps.

func (d *driver) prompt(rt *rapid.T) {
	s := d.some(rt)
	d.n++
	p := &sentPrompt{Prompt: messages.Prompt{SessionID: s.id,
		Text:     fmt.Sprintf("p%d%s", d.n, rapid.SampledFrom([]string{"", "", " <b>&</b>", "\u2028", "\x00", "😀", "\n\n# x"}).Draw(rt, "suffix")),
		Delivery: rapid.SampledFrom([]messages.Delivery{messages.Steer, messages.FollowUp, ""}).Draw(rt, "delivery")}}
	if rapid.Bool().Draw(rt, "own id") {
		p.ID = fmt.Sprintf("id-%d", d.n)
	}
	if rapid.IntRange(0, 3).Draw(rt, "bound") == 0 {
		if len(d.conns) < 2 {
			d.conns = append(d.conns, fmt.Sprintf("conn-%d", d.n))
		}
		p.Bound = rapid.SampledFrom(d.conns).Draw(rt, "connection")
	}
	s.prompts = append(s.prompts, p)
	_, err := d.to(s.id, p.Prompt)
	p.acked = err == nil
	d.mu.Lock()
	unsure := s.unsure || d.failing > 0
	d.mu.Unlock()
	if err != nil && !unsure {
		rt.Fatalf("prompt refused: %v", err)
	}
	d.calm(s)
}

func (d *driver) promptAgain(rt *rapid.T) {
	var all []*sentPrompt
	for _, s := range d.sessions {
		for _, p := range s.prompts {
			if p.ID != "" && p.acked {
				all = append(all, p)
			}
		}
	}
	if len(all) == 0 {
		rt.Skip("no prompt with an id")
	}
	p := rapid.SampledFrom(all).Draw(rt, "which").Prompt
	p.Bound = ""
	how := rapid.SampledFrom([]string{"same", "other text", "other session"}).Draw(rt, "how")
	switch how {
	case "other text":
		p.Text += " changed"
	case "other session":
		for _, s := range d.sessions {
			if s.id != p.SessionID {
				p.SessionID = s.id
				break
			}
		}
	}
	_, err := d.to(p.SessionID, p)
	var conflict *messages.PromptConflict
	if how == "same" && err != nil || how != "same" && !errors.As(err, &conflict) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.failing == 0 {
			var refused *messages.Refused
			if !errors.As(err, &refused) {
				rt.Fatalf("%s: %v", how, err)
			}
		}
	}
}

func (d *driver) modelStep(rt *rapid.T) {
	s := d.some(rt)
	if d.calm(s) || s.turn == nil || s.turn.ctx.Err() != nil {
		rt.Skip("no request")
	}
	t := s.turn
	step := rapid.SampledFrom([]string{"start", "text", "thinking", "arguments", "fail", "cut"}).Draw(rt, "step")
	if step != "fail" && step != "cut" && !t.started {
		t.started = true
		t.start()
	}
	switch step {
	case "text":
		t.part(messages.StreamTextStart, messages.StreamTextDelta, messages.Part{}, rapid.SampledFrom([]string{"half", " ", "a\x00b"}).Draw(rt, "text"))
	case "thinking":
		t.part(messages.StreamThinkingStart, messages.StreamThinkingDelta, messages.Part{}, "hm")
	case "arguments":
		t.part(messages.StreamCallStart, messages.StreamCallDelta, messages.Part{CallID: "z", Name: "ok"}, `{"s"`)
	case "fail":
		f := messages.Failure{Type: messages.FailUnavailable, Message: "down", Retryable: rapid.Bool().Draw(rt, "retryable")}
		if rapid.IntRange(0, 4).Draw(rt, "hint") == 0 {
			f.RetryAfter = time.Hour
		}
		s.turn = nil
		t.fail(f)
	case "cut":
		s.turn = nil
		t.emit(lostConnection())
	}
	d.calm(s)
}

func (t *modelTurn) part(start, delta messages.StreamKind, p messages.Part, text string) {
	t.emit(messages.StreamEvent{Kind: start, Index: t.parts, Part: p})
	t.emit(messages.StreamEvent{Kind: delta, Index: t.parts, Delta: text})
	t.parts++
}

func (d *driver) modelDone(rt *rapid.T) {
	s := d.some(rt)
	if d.calm(s) || s.turn == nil || s.turn.ctx.Err() != nil {
		rt.Skip("no request")
	}
	t := s.turn
	s.turn = nil
	if !t.started {
		t.start()
	}
	var parts []messages.Part
	if rapid.IntRange(0, 3).Draw(rt, "thinks") == 0 {
		parts = append(parts, messages.Part{Type: messages.PartThinking, Text: "hm", Signature: "sig"})
	}
	if rapid.Bool().Draw(rt, "says something") {
		parts = append(parts, messages.Part{Type: messages.PartText, Text: "so"})
	}
	calls := rapid.IntRange(0, 3).Draw(rt, "calls")
	for i := range calls {
		c := toolCall(fmt.Sprintf("call_%d", i), rapid.SampledFrom([]string{"ok", "ok", "empty", "fail", "panic", "block", "block", "nosuch", "odd name!"}).Draw(rt, "tool"),
			rapid.SampledFrom([]string{fmt.Sprintf(`{"s":%d}`, s.n), fmt.Sprintf(`{"s":%d}`, s.n), fmt.Sprintf(`{"s":%d}`, s.n), "", "null", "[]", "{bad", `{"s":"x"}`}).Draw(rt, "arguments"))
		parts = append(parts, c)
	}
	if len(parts) == 0 {
		parts = append(parts, messages.Part{Type: messages.PartText, Text: "done"})
	}
	stop := messages.StopStop
	if calls > 0 {
		stop = rapid.SampledFrom([]messages.StopReason{messages.StopToolUse, messages.StopToolUse, messages.StopStop, messages.StopLength}).Draw(rt, "stop")
	}
	t.done(stop, parts...)
	d.calm(s)
}

func (d *driver) toolStep(rt *rapid.T) {
	s := d.some(rt)
	if !d.release(s, rapid.Bool().Draw(rt, "all")) {
		rt.Skip("no call is blocked")
	}
	d.calm(s)
}

func (d *driver) interruptStep(rt *rapid.T) {
	s := d.some(rt)
	busy := !d.calm(s)
	v, err := d.to(s.id, messages.Interrupt{SessionID: s.id, ClearQueue: rapid.IntRange(0, 3).Draw(rt, "clear") == 0})
	if err == nil && v.(messages.Interrupted).Interrupted != busy && !s.unsure {
		rt.Fatalf("interrupted is %v while busy is %v", v, busy)
	}
	if rapid.Bool().Draw(rt, "twice") {
		if _, err := d.to(s.id, messages.Interrupt{SessionID: s.id}); err != nil && !s.unsure {
			rt.Fatal(err)
		}
	}
	d.calm(s)
}

func (d *driver) resume(rt *rapid.T) {
	s := d.some(rt)
	s.waits = append(s.waits, d.system.guardian.request(toSession{s.id, resumeSession{}}))
	d.calm(s)
}

func (d *driver) waitStep(rt *rapid.T) {
	s := d.some(rt)
	s.waits = append(s.waits, d.system.guardian.request(toSession{s.id, messages.Wait{SessionID: s.id}}))
}

func (d *driver) queueStep(rt *rapid.T) {
	s := d.some(rt)
	v, err := d.to(s.id, messages.GetQueue{SessionID: s.id})
	if err != nil {
		return
	}
	if q := v.(messages.Queue).Queued; len(q) > 0 {
		_, _ = d.to(s.id, messages.GetQueue{SessionID: s.id, Remove: rapid.SampledFrom(q).Draw(rt, "which").ID})
	}
}

func (d *driver) clientLeaves(rt *rapid.T) {
	if len(d.conns) == 0 {
		rt.Skip("nobody is there")
	}
	conn := d.conns[0]
	d.conns = d.conns[1:]
	d.system.guardian.Tell(leaveLocal{conn})
	for _, s := range d.sessions {
		for _, p := range s.prompts {
			if p.Bound == conn {
				p.gone = true
			}
		}
		d.calm(s)
	}
}

// thrownAway notes that the session's memory was lost: what it knew beside its
// log is gone.
func (s *driven) thrownAway() {
	s.unsure, s.reqs = true, nil
	for _, p := range s.prompts {
		p.Bound = ""
	}
}

func (d *driver) crash(rt *rapid.T) {
	s := d.some(rt)
	s.thrownAway()
	if _, err := d.to(s.id, crashed{errors.New("on purpose")}); err == nil {
		rt.Fatal("the asker of a crash got an answer")
	}
	d.calm(s)
}

func (d *driver) appendFails(rt *rapid.T) {
	n := rapid.IntRange(1, 3).Draw(rt, "appends")
	for _, s := range d.sessions {
		if n > 1 || s.unsure {
			s.thrownAway() // not even the end of the work may be written
		}
		s.unsure, s.reqs = true, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = n
}

func (d *driver) prepareFails(rt *rapid.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prepErr = &messages.Failure{Type: messages.FailModelNotFound, Message: "no such model"}
	if rapid.Bool().Draw(rt, "works again") {
		d.prepErr = nil
	}
}

func (d *driver) parallel(rt *rapid.T) {
	p := rapid.Bool().Draw(rt, "parallel")
	d.with(func(x *Exchange) { x.Parallel = p })
}

func (d *driver) retire(rt *rapid.T) {
	d.system.guardian.Tell(retireSession{d.some(rt).id})
}

func (d *driver) wakeStep(rt *rapid.T) {
	s := d.some(rt)
	d.system.guardian.Tell(toSession{s.id, wakeQueued{}})
	d.calm(s)
}

// mend takes the session out of memory while its log is looked at, unless it
// works.
func (d *driver) mend(rt *rapid.T) {
	s := d.some(rt)
	busy := !d.calm(s)
	_, err := d.answered(d.system.guardian.request(messages.Check{SessionID: s.id, Repair: true}))
	var works *messages.SessionBusy
	switch {
	case err == nil:
		s.thrownAway()
	case !errors.As(err, &works) || !busy && !s.unsure:
		rt.Fatalf("busy %v, and mending says %v", busy, err)
	}
	d.calm(s)
}

func (d *driver) rename(rt *rapid.T) {
	s := d.some(rt)
	d.n++
	title := fmt.Sprintf("title %d", d.n)
	v, err := d.to(s.id, messages.Rename{SessionID: s.id, Title: title})
	if err == nil && v.(messages.SessionInfo).Title != title {
		rt.Fatalf("renamed to %q, it says %+v", title, v)
	}
}

// reboot ends the process, with or without settling, and starts another on
// the same store.
func (d *driver) reboot(rt *rapid.T) {
	type state struct {
		log    int
		ledger string
	}
	before := map[string]state{}
	for _, s := range d.sessions {
		if d.calm(s) && !s.unsure {
			d.wait(s.id)
			before[s.id] = state{len(d.log(s.id)), d.fold(s.id)}
		}
	}
	if rapid.Bool().Draw(rt, "settle first") {
		if err := d.system.Settle(d.ctx); err != nil {
			rt.Fatalf("settle: %v", err)
		}
		for _, s := range d.sessions {
			if l := d.ledger(s.id); l.running && !s.unsure {
				rt.Fatalf("settled, and session %d still runs: %v", s.n, d.events.types(s.id))
			}
		}
	}
	d.down()
	for _, s := range d.sessions {
		for _, wait := range s.waits {
			_, _ = d.answered(wait)
		}
		s.waits, s.turn = nil, nil
		s.thrownAway()
	}
	d.conns = nil
	d.mu.Lock()
	d.failing = 0
	d.mu.Unlock()
	for len(d.model.asked) > 0 {
		<-d.model.asked
	}
	d.boot()
	for _, s := range d.sessions {
		s.base = int64(len(d.log(s.id)))
		if !d.calm(s) {
			rt.Fatalf("session %d works though nobody asked it to", s.n)
		}
		was, known := before[s.id]
		if now := d.fold(s.id); known && (now != was.ledger || len(d.log(s.id)) != was.log) {
			rt.Fatalf("session %d before and after\n%s\n%s", s.n, was.ledger, now)
		}
	}
}

// fold is what the log of a session says, as text.
func (d *driver) fold(id string) string {
	l := d.ledger(id)
	b, err := json.Marshal([]any{l.record, l.entries, l.queued(), l.running, l.draft != nil})
	if err != nil {
		d.rt.Fatal(err)
	}
	return string(b)
}

// answered waits for an answer that must come.
func (d *driver) answered(wait func(context.Context) (any, error)) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	v, err := wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		d.rt.Fatal("an answer never came")
	}
	return v, err
}

// rest lets everything finish and checks every promise.
func (d *driver) rest(rt *rapid.T) {
	d.mu.Lock()
	d.failing, d.prepErr = 0, nil
	d.mu.Unlock()
	for _, s := range d.sessions {
		for rounds := 0; !d.calm(s); rounds++ {
			if rounds > 1000 {
				rt.Fatal("it never comes to rest")
			}
			if t := s.turn; t != nil && t.ctx.Err() == nil {
				s.turn = nil
				if !t.started {
					t.start()
				}
				t.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "ok"})
			}
			d.release(s, true)
		}
		for _, wait := range s.waits {
			_, _ = d.answered(wait)
		}
		s.waits = nil
		d.settled(s)
		d.check(s)
		s.unsure, s.reqs = false, nil
	}
}

// settled waits for the disk. An append that fails meanwhile fails the wait.
func (d *driver) settled(s *driven) {
	deadline := time.Now().Add(within)
	for {
		_, err := d.to(s.id, messages.Wait{SessionID: s.id})
		if err == nil {
			return
		}
		if !s.unsure || time.Now().After(deadline) {
			d.rt.Fatalf("wait: %v", err)
		}
	}
}

// check holds a session at rest against its promises.
func (d *driver) check(s *driven) {
	l := d.ledger(s.id) // which checks that positions have no gap
	log := d.log(s.id)
	if l.running || l.draft != nil {
		d.rt.Fatalf("session %d is idle and its log is not", s.n)
	}
	d.checkCourse(s, log)
	d.checkPrompts(s, l, log)
	d.checkCalls(s, l, log)
	if s.unsure {
		s.reqs = nil // they may have been ahead of what was thrown away
	}
	for _, req := range s.reqs {
		got, _ := json.Marshal(req.Messages)
		want, _ := json.Marshal(l.entries[:min(len(req.Messages), len(l.entries))])
		if string(got) != string(want) {
			d.rt.Fatalf("a request was not what the log says\n%s\n%s", got, want)
		}
	}
	d.checkReader(s, log)
}

// checkCourse wants one end for every beginning.
func (d *driver) checkCourse(s *driven, log []messages.Event) {
	running := false
	for _, e := range log {
		switch {
		case e.Type == messages.EventExecutionStarted:
			if running {
				d.rt.Fatalf("event %d of session %d: executions overlap", e.Seq, s.n)
			}
			running = true
		case messages.Terminal(e.Type):
			if !running {
				d.rt.Fatalf("event %d of session %d ends nothing", e.Seq, s.n)
			}
			running = false
		}
	}
}

// checkPrompts wants every acknowledged prompt to be promoted once, to wait,
// or to be removed.
func (d *driver) checkPrompts(s *driven, l *ledger, log []messages.Event) {
	count := map[string]map[string]int{}
	ids := map[string]string{} // id to text
	for _, e := range log {
		data, err := e.Decode()
		if err != nil {
			d.rt.Fatal(err)
		}
		switch e.Type {
		case messages.EventPromptAdmitted:
			ids[data.MessageID] = data.Prompt.Text
			fallthrough
		case messages.EventPromptPromoted, messages.EventPromptRemoved:
			text := ids[data.MessageID]
			if count[text] == nil {
				count[text] = map[string]int{}
			}
			count[text][e.Type]++
		}
	}
	for _, in := range l.inbox {
		count[in.body.Text]["queued"]++
	}
	for _, p := range s.prompts {
		c := count[p.Text]
		ends := c[messages.EventPromptPromoted] + c[messages.EventPromptRemoved] + c["queued"]
		if n := c[messages.EventPromptAdmitted]; n > 1 || p.acked && n != 1 || ends != n {
			d.rt.Fatalf("prompt %q (acknowledged %v): %v", p.Text, p.acked, c)
		}
		if p.gone && p.Bound != "" && c["queued"] > 0 {
			d.rt.Fatalf("prompt %q waits though its client has left", p.Text)
		}
	}
}

// checkCalls wants one result for every call of a message.
func (d *driver) checkCalls(s *driven, l *ledger, log []messages.Event) {
	settled := map[string]int{}
	for _, e := range log {
		if e.Type == messages.EventToolSettled {
			data, err := e.Decode()
			if err != nil {
				d.rt.Fatal(err)
			}
			settled[data.MessageID+" "+data.CallID]++
		}
	}
	for _, m := range l.entries {
		for _, p := range m.Parts {
			if p.Type != messages.PartToolCall {
				continue
			}
			if !p.Call.Terminal() || p.Result == nil || settled[m.ID+" "+p.CallID] != 1 {
				d.rt.Fatalf("session %d: call %s is %s and was settled %d times", s.n, p.CallID, p.Call, settled[m.ID+" "+p.CallID])
			}
		}
	}
}

// checkReader wants a subscriber to have seen the log, and one end for every
// beginning. An end that could not be recorded is told without a position,
// and a second time when the log could be written again.
func (d *driver) checkReader(s *driven, log []messages.Event) {
	var want []int64
	for _, e := range log {
		if e.Seq > s.base {
			want = append(want, e.Seq)
		}
	}
	deadline := time.Now().Add(within)
	for !slices.Equal(d.events.durable(s.id), want) {
		if got := d.events.durable(s.id); time.Now().After(deadline) || len(got) > len(want) {
			d.rt.Fatalf("session %d: readers were given %v, the log has %d to %d", s.n, got, s.base+1, len(log))
		}
		time.Sleep(time.Millisecond)
	}
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	running, unrecorded := false, false
	for _, e := range d.events.events {
		if e.Session != s.id {
			continue
		}
		switch {
		case e.Type == messages.EventExecutionStarted:
			if running {
				d.rt.Fatal("readers saw executions overlap")
			}
			running = true
		case messages.Terminal(e.Type):
			if !running && !unrecorded && s.base == 0 {
				d.rt.Fatalf("readers of session %d saw an end of nothing: %s", s.n, e.Type)
			}
			running, unrecorded = false, !e.Durable()
		}
	}
	if running {
		d.rt.Fatalf("readers of session %d did not see the end", s.n)
	}
}
