package actors

import (
	"encoding/json"
	"testing"
	"time"

	"codework/internal/tools"
	"codework/messages"
	"codework/protocol/contract"
)

// untilTop looks until that is so.
func untilTop(t *testing.T, r *rig, so func(messages.Top) bool) messages.Top {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		top := r.system.Top(soon(t), messages.GetTop{})
		if so(top) {
			return top
		}
		if time.Now().After(deadline) {
			t.Fatalf("it never came to that: %+v", top)
		}
	}
}

func TestTopSaysWhatSessionsDo(t *testing.T) {
	gate := newGate()
	r := newRig(t, gate.bash())
	idle, busy := r.create(), r.create()
	if _, err := r.to(idle, messages.HasMessage{SessionID: idle}); err != nil {
		t.Fatal(err)
	}
	session := func(state string) func(messages.Top) bool {
		return func(top messages.Top) bool {
			return len(top.Sessions) == 2 && top.Sessions[0].SessionID == busy && top.Sessions[0].State == state
		}
	}
	r.prompt(busy, "a question", messages.Steer)
	a := r.model.next(t)
	untilTop(t, r, session(doingRequesting))
	a.start()
	untilTop(t, r, session(doingStreaming))
	a.call(toolCall("1", "bash", `{"command":"go test ./..."}`))
	gate.wait(t)
	r.prompt(busy, "for later", messages.FollowUp)
	top := untilTop(t, r, session(doingCalling))
	s := top.Sessions[0]
	if s.Detail != "bash  go test ./..." || s.Title != "a question" || s.Status != messages.SessionRunning || s.Queued != 1 || s.Kind != "session" {
		t.Errorf("got %+v", s)
	}
	if rests := top.Sessions[1]; rests.SessionID != idle || rests.State != doingIdle || rests.Queued != 0 {
		t.Errorf("the idle one: %+v", rests)
	}
	if !top.Complete || top.Server.Sessions != (messages.SessionCount{Total: 2, Busy: 1}) || top.Subscribers == nil || top.Subscribers.Count != 1 {
		t.Errorf("got %+v", top)
	}
	gate.release <- struct{}{}
	r.model.next(t).answer("done")
	r.model.next(t).answer("later")
	r.wait(busy)
	untilTop(t, r, func(top messages.Top) bool {
		return top.Sessions[0].State == doingIdle && top.Sessions[1].State == doingIdle
	})
}

func TestTopShowsEveryActorOnceAndForgetsThoseThatEnd(t *testing.T) {
	r := newRig(t)
	kinds := func(top messages.Top) map[string]int {
		n := map[string]int{}
		for _, a := range top.Actors {
			n[a.Kind+" "+a.Name]++
		}
		return n
	}
	c := r.dial(t, true)
	// The registry starts the host's sandbox in its own time, and a gateway gets
	// its name when it has begun.
	untilTop(t, r, func(top messages.Top) bool {
		return kinds(top)["sandbox local"] == 1 && kinds(top)["gateway local"] == 1
	})
	top := must[messages.Top](t, c, contract.ServerTop, object{})
	for _, want := range []string{"guardian ", "hub ", "registry ", "plugins ", "sandbox local", "gateway local"} {
		if kinds(top)[want] != 1 {
			t.Errorf("%q: %v", want, kinds(top))
		}
	}
	for _, a := range top.Actors {
		if a.Kind == "guardian" && (a.Handled == 0 || a.Restarts != 0) {
			t.Errorf("the guardian: %+v", a)
		}
	}
	c.Close()
	untilTop(t, r, func(top messages.Top) bool { return kinds(top)["gateway local"] == 0 })
}

func TestTopShowsAnActorThatHangsAndWhatWaitsForIt(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}), make(chan struct{})
	type stuck struct{}
	ref := r.system.rt.Spawn(func() Actor {
		return fake(func(_ *Self, m any) {
			if _, ok := m.(stuck); ok {
				close(entered)
				<-release
			}
		})
	}).Named("hanging one")
	ref.Tell(stuck{})
	<-entered
	for range 3 {
		ref.Tell("more")
	}
	top := untilTop(t, r, func(top messages.Top) bool {
		for _, a := range top.Actors {
			if a.Name == "hanging one" {
				return a.HandlingMs >= 5
			}
		}
		return false
	})
	for _, a := range top.Actors {
		if a.Name == "hanging one" && (a.Handling != "stuck" || a.Mailbox != 3) {
			t.Errorf("got %+v", a)
		}
	}
	close(release)
	ref.Stop()
	<-ref.Done()
}

// A hub that hangs takes its own numbers away, and nothing else.
func TestTopDoesWithoutThoseThatDoNotAnswer(t *testing.T) {
	r := newRig(t)
	r.system.hub.Stop()
	<-r.system.hub.Done()
	top := r.system.Top(soon(t), messages.GetTop{})
	if top.Complete || top.Subscribers != nil || top.Sessions == nil || top.Actors == nil {
		t.Errorf("got %+v", top)
	}
}

func TestTopIsBounded(t *testing.T) {
	r := newRig(t)
	for range 5 {
		id := r.create()
		if _, err := r.to(id, messages.HasMessage{SessionID: id}); err != nil {
			t.Fatal(err)
		}
	}
	top := r.system.Top(soon(t), messages.GetTop{Limit: 2})
	if len(top.Sessions) != 2 || top.Omitted != 3 {
		t.Errorf("%d sessions, %d more", len(top.Sessions), top.Omitted)
	}
}

func TestRestartsShow(t *testing.T) {
	rt := newTestRuntime(t)
	failed := make(chan struct{}, 8)
	rt.failed = func() { failed <- struct{}{} }
	ref := spawnFake(t, rt, func(_ *Self, m any) {
		if m == "fail" {
			panic("on purpose")
		}
	})
	ref.Tell("fail")
	<-failed
	if _, err := Ask[any](soon(t), ref, "answer"); err != nil {
		t.Fatal(err)
	}
	if v := ref.look(time.Now()); v.restarts != 1 || v.message != "" && v.handling > within {
		t.Errorf("got %+v", v)
	}
}

// bash is a gate that takes a command, which labels show.
func (g *gate) bash() tools.Tool {
	t := g.tool("bash")
	t.Schema = json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"required":["command"],"additionalProperties":false}`)
	return t
}
