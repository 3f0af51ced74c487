package actors

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/internal/store"
	"codework/messages"
)

// course are the events of a session in order, without the ones that only
// carry pieces of text.
func course(types []string) []string {
	var out []string
	for _, k := range types {
		switch k {
		case messages.EventLLMTextDelta, messages.EventLLMTextStart, messages.EventLLMTextEnd, messages.EventSessionUpdated, messages.EventToolProgress:
			continue
		}
		out = append(out, strings.TrimPrefix(k, "session."))
	}
	return out
}

func (r *rig) course(id string, want ...string) {
	r.t.Helper()
	got := course(r.events.types(id))
	if !slices.Equal(got, want) {
		r.t.Errorf("events\n got %v\nwant %v", got, want)
	}
}

func TestPlainAnswerHasItsEventsInOrder(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "hello", messages.Steer)
	r.model.next(t).answer("hi")
	r.wait(id)
	r.events.until(t, id, messages.EventExecutionSucceeded, 1)
	r.course(id, "prompt.admitted", "execution.started", "prompt.promoted", "turn.started", "llm.started", "llm.ended", "turn.ended", "execution.succeeded")
	l := r.ledger(id)
	if len(l.entries) != 2 || l.record.Turns != 1 || l.record.Usage.TotalTokens != 2 || l.record.Title != "hello" {
		t.Errorf("conversation %+v, record %+v", l.entries, l.record)
	}
}

func TestCallsRunInOrderAndTheirResultsGoBack(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("t"))
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	r.model.next(t).call(toolCall("a", "t", "{}"), toolCall("b", "t", ""))
	if got := g.wait(t); got != "a" {
		t.Fatalf("%s ran first", got)
	}
	g.release <- struct{}{}
	g.wait(t)
	g.release <- struct{}{}
	next := r.model.next(t)
	last := next.req.Messages[len(next.req.Messages)-1]
	for i, want := range []string{"result of a", "result of b"} {
		p := last.Parts[i]
		if p.Call != messages.CallCompleted || p.Result.Content[0].Text != want {
			t.Errorf("call %d: %+v", i, p)
		}
	}
	next.answer("done")
	r.wait(id)
	r.events.until(t, id, messages.EventExecutionSucceeded, 1)
	r.course(id, "prompt.admitted", "execution.started", "prompt.promoted", "turn.started", "llm.started", "llm.ended",
		"tool.started", "tool.settled", "tool.started", "tool.settled", "turn.ended",
		"turn.started", "llm.started", "llm.ended", "turn.ended", "execution.succeeded")
}

func TestParallelCallsAllStartAtOnce(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("t"))
	r.with(func(x *Exchange) { x.Parallel = true })
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	r.model.next(t).call(toolCall("a", "t", ""), toolCall("b", "t", ""), toolCall("c", "t", ""))
	started := []string{g.wait(t), g.wait(t), g.wait(t)}
	slices.Sort(started)
	if !slices.Equal(started, []string{"a", "b", "c"}) {
		t.Fatalf("started %v", started)
	}
	for range 3 {
		g.release <- struct{}{}
	}
	next := r.model.next(t)
	for i, want := range []string{"a", "b", "c"} {
		if p := next.req.Messages[1].Parts[i]; p.CallID != want || !p.Call.Terminal() {
			t.Errorf("result %d is %+v", i, p)
		}
	}
	next.answer("done")
	r.wait(id)
}

func TestStopAtEveryPointLeavesAUsableSession(t *testing.T) {
	calls := []messages.Part{toolCall("a", "t", ""), toolCall("b", "t", ""), toolCall("c", "t", "")}
	for _, tc := range []struct {
		name  string
		point func(t *testing.T, r *rig, g *gate, id string)
		want  string // last events
		calls string // states of a, b, c
	}{
		{"before the first event", func(t *testing.T, r *rig, g *gate, id string) {
			r.model.next(t)
		}, "turn.started turn.aborted execution.interrupted", ""},
		{"in text", func(t *testing.T, r *rig, g *gate, id string) {
			a := r.model.next(t)
			a.start()
			a.text("half")
			r.events.until(t, id, messages.EventLLMTextDelta, 1)
		}, "llm.started llm.failed turn.aborted execution.interrupted", ""},
		{"in the first call", func(t *testing.T, r *rig, g *gate, id string) {
			r.model.next(t).call(calls...)
			g.wait(t)
		}, "tool.started tool.settled tool.settled tool.settled turn.ended execution.interrupted", "aborted skipped skipped"},
		{"in the second call", func(t *testing.T, r *rig, g *gate, id string) {
			r.model.next(t).call(calls...)
			g.wait(t)
			g.release <- struct{}{}
			g.wait(t)
		}, "tool.settled tool.started tool.settled tool.settled turn.ended execution.interrupted", "completed aborted skipped"},
		{"between the results and the next request", func(t *testing.T, r *rig, g *gate, id string) {
			r.model.next(t).call(calls[:1]...)
			g.wait(t)
			g.release <- struct{}{}
			r.model.next(t)
		}, "turn.ended turn.started turn.aborted execution.interrupted", "completed"},
		{"waiting for a retry", func(t *testing.T, r *rig, g *gate, id string) {
			r.with(func(x *Exchange) { x.Retry.Base = time.Hour; x.Retry.MaxDelay = time.Hour })
			r.interrupt(id)
			r.wait(id)
			r.prompt(id, "again", messages.Steer)
			for len(r.model.asked) > 1 {
				<-r.model.asked
			}
			for {
				a := r.model.next(t)
				if a.ctx.Err() == nil {
					a.fail(messages.Failure{Type: messages.FailUnavailable, Message: "down", Retryable: true})
					break
				}
			}
			r.events.until(t, id, messages.EventRetryScheduled, 1)
		}, "turn.aborted retry.scheduled turn.aborted execution.interrupted", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGate()
			r := newRig(t, g.tool("t"))
			id := r.create()
			r.prompt(id, "go", messages.Steer)
			tc.point(t, r, g, id)
			if !r.interrupt(id) {
				t.Error("nothing was interrupted")
			}
			if r.interrupt(id) {
				t.Error("interrupted twice")
			}
			r.wait(id)
			ends := 0
			for _, e := range r.log(id) {
				if e.Type == messages.EventExecutionInterrupted {
					ends++
				}
			}
			r.events.until(t, id, messages.EventExecutionInterrupted, ends)
			got := strings.Join(course(r.events.types(id)), " ")
			if !strings.HasSuffix(got, tc.want) {
				t.Errorf("events end with\n%s\nwant\n%s", got, tc.want)
			}
			var states []string
			for _, m := range r.ledger(id).entries {
				for _, p := range m.Parts {
					if p.Type == messages.PartToolCall {
						states = append(states, string(p.Call))
						if p.Result == nil {
							t.Errorf("call %s has no result", p.CallID)
						}
					}
				}
			}
			if s := strings.Join(states, " "); s != tc.calls {
				t.Errorf("calls %q, want %q", s, tc.calls)
			}
			r.with(func(x *Exchange) { x.Retry.Base = time.Millisecond })
			r.prompt(id, "again", messages.Steer)
			for {
				if a := r.model.next(t); a.ctx.Err() == nil {
					a.answer("still here")
					break
				}
			}
			r.wait(id)
			if l := r.ledger(id); !l.finished() || l.running {
				t.Error("the follow-up was not answered")
			}
		})
	}
}

func TestKeptTextOfAStopIsSentAgain(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	a.start()
	a.text("the first half")
	r.events.until(t, id, messages.EventLLMTextDelta, 1)
	r.interrupt(id)
	r.prompt(id, "continue", messages.Steer)
	a = r.model.next(t)
	var kept messages.Message
	for _, m := range a.req.Messages {
		if m.Role == messages.RoleAssistant {
			kept = m
		}
	}
	if kept.State != messages.EntryAborted || len(kept.Parts) != 1 || kept.Parts[0].Text != "the first half" {
		t.Errorf("kept %+v", kept)
	}
	a.answer("ok")
	r.wait(id)
}

func TestSteersJoinTheNextRequestAndFollowUpsWait(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("t"))
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).call(toolCall("a", "t", ""))
	g.wait(t)
	follow := r.prompt(id, "later", messages.FollowUp)
	steer := r.prompt(id, "now", messages.Steer)
	g.release <- struct{}{}
	a := r.model.next(t)
	if last := a.req.Messages[len(a.req.Messages)-1]; last.ID != steer {
		t.Fatalf("the request ends with %+v", last)
	}
	a.answer("two")
	b := r.model.next(t)
	if last := b.req.Messages[len(b.req.Messages)-1]; last.ID != follow {
		t.Fatalf("the request ends with %+v", last)
	}
	b.answer("three")
	r.wait(id)
	got := strings.Join(r.events.types(id), " ")
	if strings.Count(got, messages.EventExecutionStarted) != 1 {
		t.Errorf("more than one busy period: %s", got)
	}
}

func TestRetriesAreCountedAndResetAfterSuccess(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	down := messages.Failure{Type: messages.FailUnavailable, Message: "down", Retryable: true}
	for range 3 { // one attempt and two retries
		r.model.next(t).fail(down)
	}
	r.wait(id)
	d := r.events.until(t, id, messages.EventExecutionFailed, 1)
	if d.Error.Type != messages.FailUnavailable {
		t.Errorf("failed with %+v", d.Error)
	}
	if len(r.model.asked) != 0 {
		t.Error("one request too many")
	}
	r.prompt(id, "again", messages.Steer)
	a := r.model.next(t)
	a.start()
	a.text("lost")
	a.fail(down)
	r.model.next(t).answer("ok")
	r.wait(id)
	for _, m := range r.ledger(id).entries {
		for _, p := range m.Parts {
			if p.Text == "lost" {
				t.Error("what a dropped attempt wrote is part of the conversation")
			}
		}
	}
}

func TestAHintBeyondTheMaximumFailsAtOnce(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	r.model.next(t).fail(messages.Failure{Type: messages.FailRateLimit, Message: "slow down", Retryable: true, RetryAfter: time.Hour})
	r.wait(id)
	if d := r.events.until(t, id, messages.EventExecutionFailed, 1); !strings.Contains(d.Error.Message, "1h0m0s") {
		t.Errorf("the failure does not say the wait: %s", d.Error.Message)
	}
}

func TestPromptIDsAreIdempotent(t *testing.T) {
	r := newRig(t)
	a, b := r.create(), r.create()
	p := messages.Prompt{SessionID: a, Text: "x", ID: "my-id"}
	for range 2 {
		if _, err := r.to(a, p); err != nil {
			t.Fatal(err)
		}
	}
	r.model.next(t).answer("ok")
	r.wait(a)
	if _, err := r.to(a, p); err != nil {
		t.Errorf("a repetition after the work: %v", err)
	}
	other := p
	other.Text = "y"
	elsewhere := p
	elsewhere.SessionID = b
	for _, q := range []messages.Prompt{other, elsewhere} {
		_, err := r.to(q.SessionID, q)
		var conflict *messages.PromptConflict
		if !errors.As(err, &conflict) {
			t.Errorf("got %v", err)
		}
	}
	r.wait(a)
	if n := len(r.ledger(a).entries); n != 2 {
		t.Errorf("%d entries", n)
	}
}

func TestFailureBeforePromotionLeavesThePromptQueued(t *testing.T) {
	r := newRig(t)
	r.mu.Lock()
	r.prepErr = &messages.Failure{Type: messages.FailModelNotFound, Message: "no such model"}
	r.mu.Unlock()
	id := r.create()
	p := r.prompt(id, "x", messages.Steer)
	r.wait(id)
	r.events.until(t, id, messages.EventExecutionFailed, 1)
	r.course(id, "prompt.admitted", "execution.started", "execution.failed")
	v, _ := r.to(id, messages.HasMessage{SessionID: id, MessageID: p})
	if v.(messages.Found).Found {
		t.Error("the prompt is in the conversation")
	}
	v, _ = r.to(id, messages.GetQueue{SessionID: id})
	if q := v.(messages.Queue).Queued; len(q) != 1 || q[0].ID != p {
		t.Errorf("queue %+v", q)
	}
}

func TestACrashedSessionGoesOnFromItsLog(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("t"))
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	r.model.next(t).call(toolCall("a", "t", ""), toolCall("b", "t", ""))
	g.wait(t)
	queued := r.prompt(id, "later", messages.FollowUp)
	if _, err := r.to(id, crashed{errors.New("test")}); err == nil {
		t.Fatal("the asker of a crash got an answer")
	}
	r.wait(id)
	l := r.ledger(id)
	if l.running || l.draft != nil {
		t.Error("work is still open")
	}
	parts := l.entries[len(l.entries)-1].Parts
	if parts[0].Call != messages.CallAborted || parts[1].Call != messages.CallSkipped {
		t.Errorf("calls are %s and %s", parts[0].Call, parts[1].Call)
	}
	if len(l.inbox) != 1 || l.inbox[0].id != queued {
		t.Errorf("inbox %+v", l.inbox)
	}
	r.prompt(id, "again", messages.Steer)
	r.model.next(t).answer("ok")
	r.model.next(t).answer("and the queued one")
	r.wait(id)
}

func TestAFullDiskIsAnErrorAndCostsNothingAcknowledged(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	full := &messages.Refused{Name: messages.RefusedStore, Message: "no space in /data"}
	r.flaky.failWhen(func(store.Batch) error { return full })
	_, err := r.to(id, messages.Prompt{SessionID: id, Text: "two"})
	if !errors.Is(err, full) {
		t.Fatalf("got %v", err)
	}
	r.flaky.failWhen(nil)
	r.prompt(id, "three", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	if n := len(r.ledger(id).entries); n != 4 {
		t.Errorf("%d entries", n)
	}
}

func TestADiskThatFillsUpUnderWorkEndsItLoudly(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	a := r.model.next(t)
	a.start()
	a.text("half")
	r.events.until(t, id, messages.EventLLMTextDelta, 1)
	full := &messages.Refused{Name: messages.RefusedStore, Message: "no space in /data"}
	r.flaky.failWhen(func(store.Batch) error { return full })
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "half and half"})
	d := r.events.until(t, id, messages.EventExecutionFailed, 1)
	if !strings.Contains(d.Error.Message, "/data") {
		t.Errorf("failed with %+v", d.Error)
	}
	r.flaky.failWhen(nil)
	r.prompt(id, "two", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	if l := r.ledger(id); l.running || !l.finished() {
		t.Error("the session did not recover")
	}
}

func TestAClientThatLeavesTakesItsOwnWorkAlong(t *testing.T) {
	r := newRig(t)
	id := r.create()
	mine := messages.Prompt{SessionID: id, Text: "mine", ID: "mine", Bound: "conn-1"}
	if _, err := r.to(id, mine); err != nil {
		t.Fatal(err)
	}
	a := r.model.next(t)
	a.start()
	behind := messages.Prompt{SessionID: id, Text: "mine too", ID: "mine-2", Bound: "conn-1", Delivery: messages.FollowUp}
	if _, err := r.to(id, behind); err != nil {
		t.Fatal(err)
	}
	others := r.prompt(id, "somebody else's", messages.FollowUp)
	r.system.guardian.Tell(leaveLocal{"conn-1"})
	d := r.events.until(t, id, messages.EventExecutionInterrupted, 1)
	if d.Reason != string(messages.ByShutdown) {
		t.Errorf("reason %s", d.Reason)
	}
	next := r.model.next(t)
	if last := next.req.Messages[len(next.req.Messages)-1]; last.ID != others {
		t.Errorf("goes on with %+v", last)
	}
	next.answer("ok")
	r.wait(id)
	if l := r.ledger(id); len(l.inbox) != 0 || l.has("mine-2") {
		t.Error("a queued prompt of the client that left was kept")
	}
}

func TestSkippedCallsOfACutOffAnswer(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	a.start()
	a.done(messages.StopLength, toolCall("a", "t", `{"x":`))
	r.wait(id)
	l := r.ledger(id)
	if p := l.entries[1].Parts[0]; p.Call != messages.CallSkipped || !strings.Contains(p.Result.Content[0].Text, "cut off") {
		t.Errorf("call %+v", p)
	}
	r.events.until(t, id, messages.EventExecutionSucceeded, 1)
}

// The position that comes with a conversation is one that a reader can go on
// from.
func TestThePositionOfAConversationIsOnDisk(t *testing.T) {
	r := newRig(t)
	id := r.create()
	release := sync.OnceFunc(r.flaky.holdAppends())
	defer release()
	prompted := make(chan error, 1)
	go func() {
		_, err := r.to(id, messages.Prompt{SessionID: id, Text: "question"})
		prompted <- err
	}()
	for deadline := time.Now().Add(within); !r.inMemory()[id].pending; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the prompt does not get there")
		}
	}
	history := r.system.guardian.request(toSession{id, messages.GetHistory{SessionID: id}})
	if _, err := r.to(id, messages.GetSession{SessionID: id}); err != nil { // what was asked before is answered, or waits
		t.Fatal(err)
	}
	ended, end := context.WithCancel(r.ctx)
	end()
	for range 20 { // of two that are there, either may be seen
		if h, err := history(ended); !errors.Is(err, context.Canceled) {
			t.Fatalf("answered %+v, %v before it was on disk", h, err)
		}
	}
	release()
	if h, err := history(r.ctx); err != nil || h.(messages.History).Seq == 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if err := <-prompted; err != nil {
		t.Error(err)
	}
	r.model.next(t).answer("answer")
	r.wait(id)
}
