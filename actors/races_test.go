package actors

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/internal/store"
	"codework/messages"
	"codework/protocol/effectrpc"
)

// durable returns the positions that a subscriber was given, in order.
func (rec *recorder) durable(id string) []int64 {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	var out []int64
	for _, e := range rec.events {
		if e.Session == id && e.Durable() {
			out = append(out, e.Seq)
		}
	}
	return out
}

// sawWholeLog fails the test if a subscriber from the beginning was not given
// every event of the log, in order.
func (r *rig) sawWholeLog(id string) {
	r.t.Helper()
	var want []int64
	for _, e := range r.log(id) {
		want = append(want, e.Seq)
	}
	deadline := time.Now().Add(within)
	for {
		got := r.events.durable(id)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) || len(got) > len(want) {
			r.t.Fatalf("readers were given %v of %d events", got, len(want))
		}
		time.Sleep(time.Millisecond)
	}
}

// holdAppends makes appends wait until the returned function is called.
func (f *flakyStore) holdAppends() (release func()) {
	held := make(chan struct{})
	f.mu.Lock()
	f.hold = held
	f.mu.Unlock()
	return func() {
		f.mu.Lock()
		f.hold = nil
		f.mu.Unlock()
		close(held)
	}
}

func TestAnInterruptedRequestKeepsItsEncodeCacheToItself(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	old := r.model.next(t)
	r.interrupt(id)
	r.prompt(id, "two", messages.Steer)
	next := r.model.next(t)
	if old.req.Cache == next.req.Cache {
		t.Error("the stopped request may still be encoding, and shares its cache with the next one")
	}
	next.answer("ok")
	r.wait(id)
	r.prompt(id, "three", messages.Steer)
	after := r.model.next(t)
	if after.req.Cache != next.req.Cache {
		t.Error("a finished request's cache was thrown away")
	}
	after.answer("ok")
	r.wait(id)
}

func TestReadersMissNothingWhenASessionCrashesBeforeItToldThem(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	// The batch is committed, but the session fails before it hears of it.
	release := r.flaky.holdAppends()
	admitted := r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "two"}})
	crash := r.system.guardian.request(toSession{id, crashed{errors.New("test")}})
	if _, err := crash(r.ctx); err == nil {
		t.Fatal("no crash")
	}
	release()
	if _, err := admitted(r.ctx); err == nil {
		t.Fatal("the asker of a crash got an answer")
	}
	r.wait(id)
	r.prompt(id, "three", messages.Steer)
	for {
		a := r.model.next(t)
		a.answer("ok")
		if a.req.Messages[len(a.req.Messages)-1].Parts[0].Text == "three" {
			break
		}
	}
	r.wait(id)
	r.sawWholeLog(id)
}

func TestASessionThatGetsWorkIsNotUnloaded(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	for i := range 50 {
		p := messages.Prompt{SessionID: id, Text: "go"}
		if i%2 == 0 {
			p.ID = "id-" + strconv.Itoa(i) // is looked up beside the session
		}
		admitted := r.system.guardian.request(toSession{id, p})
		r.system.guardian.Tell(retireSession{id})
		if _, err := admitted(r.ctx); err != nil {
			t.Fatalf("prompt %d: %v", i, err)
		}
		r.model.next(t).answer("ok")
		r.wait(id)
	}
	if l := r.ledger(id); len(l.entries) != 102 || len(l.inbox) != 0 {
		t.Errorf("%d entries, %d prompts wait", len(l.entries), len(l.inbox))
	}
	r.sawWholeLog(id)
}

func TestAnIdleSessionIsUnloadedAndComesBack(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	r.system.guardian.Tell(retireSession{id})
	deadline := time.Now().Add(within)
	for {
		if _, err := Ask[any](r.ctx, r.system.guardian, running{}); err != nil {
			t.Fatal(err)
		}
		if r.loaded.Load() == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it stays in memory")
		}
	}
	r.prompt(id, "two", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	if n := len(r.ledger(id).entries); n != 4 {
		t.Errorf("%d entries", n)
	}
	r.sawWholeLog(id)
}

func TestAClientThatLeavesWhileItsPromptIsLookedUp(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	release := r.flaky.holdLookups()
	q := r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "mine", ID: "mine", Bound: "conn-1"}})
	<-r.flaky.looking
	r.system.guardian.Tell(leaveLocal{"conn-1"})
	r.wait(id) // clientGone was handled
	release()
	_, err := q(r.ctx)
	r.wait(id)
	if l := r.ledger(id); err == nil || len(l.inbox) != 0 || l.has("mine") {
		t.Errorf("the prompt of a client that has gone was admitted (%v)", err)
	}
	r.system.guardian.Tell(retireSession{id})
	r.prompt(id, "two", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
}

func TestAClientThatLeavesWhileItsSessionIsUnloaded(t *testing.T) {
	r := newRig(t)
	id := r.create()
	for i := range 20 {
		r.system.guardian.Tell(retireSession{id})
		q := r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "mine", ID: "mine-" + strconv.Itoa(i), Bound: "conn-1"}})
		r.system.guardian.Tell(leaveLocal{"conn-1"})
		q(r.ctx)
		r.wait(id)
		l := r.ledger(id)
		if l.running || len(l.inbox) != 0 {
			t.Fatal("work of a client that has gone is left")
		}
	}
}

func TestNothingBeginsOnceTheSystemSettles(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("t"))
	idle, busy, stopping := r.create(), r.create(), r.create()
	for _, id := range []string{busy, stopping} {
		r.prompt(id, "go", messages.Steer)
		r.model.next(t).call(toolCall("a", "t", ""))
		g.wait(t)
	}
	release := sync.OnceFunc(r.flaky.holdAppends())
	defer release()
	var admitted []func(context.Context) (any, error)
	// Admissions are on their way to the disk when the system settles.
	for _, id := range []string{idle, busy, stopping} {
		if id == stopping {
			r.system.guardian.request(toSession{id, messages.Interrupt{SessionID: id}})
		}
		admitted = append(admitted, r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "late"}}))
	}
	settled := r.system.guardian.request(drain{})
	refused := r.system.guardian.request(toSession{idle, messages.Prompt{SessionID: idle, Text: "too late"}})
	for _, id := range []string{idle, busy, stopping} { // has got all of that when it answers
		if _, err := r.to(id, messages.GetSession{SessionID: id}); err != nil {
			t.Fatal(err)
		}
	}
	release()
	if _, err := settled(r.ctx); err != nil {
		t.Fatal(err)
	}
	for _, wait := range admitted {
		if _, err := wait(r.ctx); err != nil {
			t.Errorf("a prompt from before: %v", err)
		}
	}
	var no *messages.Refused
	if _, err := refused(r.ctx); !errors.As(err, &no) || no.Name != messages.RefusedShutdown {
		t.Errorf("a prompt from after: %v", err)
	}
	r.down()
	for _, id := range []string{idle, busy, stopping} {
		l := r.ledger(id)
		if l.running {
			t.Error("work was begun and not ended")
		}
		if len(l.inbox) != 1 {
			t.Errorf("%d prompts wait, want the late one", len(l.inbox))
		}
	}
	for _, id := range []string{busy, stopping} {
		n := 0
		for _, e := range r.log(id) {
			if e.Type == messages.EventExecutionInterrupted {
				n++
			}
		}
		if n != 1 {
			t.Errorf("interrupted %d times", n)
		}
	}
	r.boot()
}

func TestAPromptMayNotTakeTheIDOfAnAnswer(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	answer := r.ledger(id).entries[1].ID
	_, err := r.to(id, messages.Prompt{SessionID: id, Text: "two", ID: answer})
	var conflict *messages.PromptConflict
	if !errors.As(err, &conflict) {
		t.Fatalf("got %v", err)
	}
	r.prompt(id, "three", messages.Steer)
	a := r.model.next(t)
	a.start()
	r.events.until(t, id, messages.EventLLMStarted, 2)
	_, err = r.to(id, messages.Prompt{SessionID: id, Text: "two", ID: a.req.MessageID})
	if !errors.As(err, &conflict) {
		t.Errorf("the id of the running answer: %v", err)
	}
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "ok"})
	r.wait(id)
}

func TestTheEndOfWorkIsToldThoughTheLogCannotBeRead(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	a := r.model.next(t)
	a.start()
	r.events.until(t, id, messages.EventLLMStarted, 1)
	r.flaky.failWhen(func(store.Batch) error {
		return &messages.Refused{Name: messages.RefusedStore, Message: "disk on fire"}
	})
	r.flaky.failLoads(errors.New("disk on fire"))
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "x"})
	d := r.events.until(t, id, messages.EventExecutionFailed, 1)
	if !strings.Contains(d.Error.Message, "fire") {
		t.Errorf("failed with %+v", d.Error)
	}
	r.flaky.failWhen(nil)
	r.flaky.failLoads(nil)
	deadline := time.Now().Add(within)
	for { // refused until the broken session has been unloaded
		_, err := r.to(id, messages.Prompt{SessionID: id, Text: "two"})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	r.model.next(t).answer("ok")
	r.wait(id)
}

func TestAClientThatLeavesAfterAFailedWriteTakesItsQueueAlong(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "theirs", messages.Steer)
	a := r.model.next(t)
	a.start()
	r.events.until(t, id, messages.EventLLMStarted, 1)
	if _, err := r.to(id, messages.Prompt{SessionID: id, Text: "mine", ID: "mine", Bound: "conn-1", Delivery: messages.FollowUp}); err != nil {
		t.Fatal(err)
	}
	full := &messages.Refused{Name: messages.RefusedStore, Message: "no space"}
	var once sync.Once
	r.flaky.failWhen(func(store.Batch) (err error) {
		once.Do(func() { err = full })
		return err
	})
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "x"})
	r.events.until(t, id, messages.EventExecutionFailed, 1)
	r.flaky.failWhen(nil)
	r.system.guardian.Tell(leaveLocal{"conn-1"})
	r.wait(id)
	if l := r.ledger(id); len(l.inbox) != 0 {
		t.Errorf("%d prompts wait", len(l.inbox))
	}
	r.sawWholeLog(id)
}

func TestPromptsKeepTheirOrderAroundAnUnloadThatDoesNotHappen(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "begin", messages.Steer)
	a := r.model.next(t)
	a.start()
	const rounds, each = 40, 5
	var sent []string
	var waits []func(context.Context) (any, error)
	for i := range rounds {
		r.system.guardian.Tell(retireSession{id}) // it is busy, and stays
		for j := range each {
			text := strconv.Itoa(i) + "." + strconv.Itoa(j)
			sent = append(sent, text)
			waits = append(waits, r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: text, Delivery: messages.FollowUp}}))
			for range i * j * 20 { // at another moment each time
				r.loaded.Load()
			}
		}
	}
	for _, wait := range waits {
		if _, err := wait(r.ctx); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, in := range r.ledger(id).inbox {
		got = append(got, in.body.Text)
	}
	if !slices.Equal(got, sent) {
		t.Errorf("admitted in the order %v", got)
	}
	if _, err := r.to(id, messages.Interrupt{SessionID: id, ClearQueue: true}); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
}

// TestAServerDoesNotGrow runs many sessions through a server, each with a
// client that leaves without a word, and compares what is left behind.
func TestAServerDoesNotGrow(t *testing.T) {
	g := newGate()
	close(g.release) // calls end at once
	r := newRig(t, g.tool("t"))
	cycle := func() {
		conn := r.accept(t, true)
		if err := conn.Write([]byte(`{"_tag":"Request","id":1,"tag":"event.subscribe","payload":{},"headers":[]}` + "\n")); err != nil {
			t.Fatal(err)
		}
		readUntil(t, conn, messages.EventConnected)
		id := r.create()
		r.prompt(id, "go", messages.Steer)
		r.model.next(t).call(toolCall("a", "t", ""))
		<-g.started
		r.model.next(t).answer("ok")
		r.wait(id)
		conn.Close(effectrpc.CloseNormal, "")
		r.system.guardian.Tell(retireSession{id})
		r.untilClients(t, 0)
		deadline := time.Now().Add(within)
		for r.loaded.Load() > 0 {
			if time.Now().After(deadline) {
				t.Fatal("the session stays in memory")
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	goroutines := func() int {
		least := runtime.NumGoroutine()
		for range 50 {
			time.Sleep(time.Millisecond)
			least = min(least, runtime.NumGoroutine())
		}
		return least
	}
	rounds := 60
	if *long {
		rounds = 2000
	}
	for range 10 {
		cycle()
	}
	before := goroutines()
	for range rounds {
		cycle()
	}
	if after := goroutines(); after > before+before/10+3 {
		t.Errorf("%d goroutines after %d cycles, %d before", after, rounds, before)
	}
	r.system.guardian.mu.Lock()
	letters := len(r.system.guardian.mail)
	r.system.guardian.mu.Unlock()
	if letters > 0 {
		t.Errorf("%d letters are kept", letters)
	}
	if n := len(g.started); n > 0 {
		t.Errorf("%d calls too many", n)
	}
}

func TestTheQueueOfASessionIsBounded(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "begin", messages.Steer)
	a := r.model.next(t)
	a.start()
	const more = 200
	var waits []func(context.Context) (any, error)
	for i := range maxQueued + more { // all at once, so that most are being looked up
		waits = append(waits, r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "x", ID: "q-" + strconv.Itoa(i), Delivery: messages.FollowUp}}))
	}
	refused := 0
	for _, wait := range waits {
		_, err := wait(r.ctx)
		var busy *messages.Refused
		switch {
		case errors.As(err, &busy) && busy.Name == messages.RefusedBusy:
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	if refused != more {
		t.Errorf("%d of %d prompts were refused, want %d", refused, len(waits), more)
	}
	if _, err := r.to(id, messages.Interrupt{SessionID: id, ClearQueue: true}); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
}
