package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// closes asks for the end of admission and tells whether it has come.
func (r *rig) closes() bool {
	r.t.Helper()
	closed, err := r.system.CloseIfIdle(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return closed
}

// closesAtLast polls for the end of admission.
func (r *rig) closesAtLast() {
	r.t.Helper()
	for deadline := time.Now().Add(within); !r.closes(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatal("admission does not end")
		}
	}
}

func refusedAs(err error, name string) bool {
	var refused *messages.Refused
	return errors.As(err, &refused) && refused.Name == name
}

// Whatever of a call is under way in the moment of the question counts as work,
// also while it waits for the disk.
func TestAdmissionDoesNotEndUnderACall(t *testing.T) {
	type begun struct {
		wait    func(context.Context) (any, error)
		release func()
	}
	heldAppend := func(r *rig, m any) begun {
		release := r.flaky.holdAppends()
		return begun{r.system.guardian.request(m), release}
	}
	for name, begin := range map[string]func(r *rig, id string) begun{
		"create": func(r *rig, _ string) begun { return heldAppend(r, messages.CreateSession{Directory: "/"}) },
		"create by id": func(r *rig, _ string) begun {
			return heldAppend(r, messages.CreateSession{ID: messages.NewSessionID(), Directory: "/"})
		},
		"fork":   func(r *rig, id string) begun { return heldAppend(r, messages.Fork{SessionID: id}) },
		"delete": func(r *rig, id string) begun { return heldAppend(r, messages.Delete{SessionID: id}) },
		"rename": func(r *rig, id string) begun {
			return heldAppend(r, toSession{id, messages.Rename{SessionID: id, Title: "x"}})
		},
		"prompt that is looked up": func(r *rig, id string) begun {
			release := r.flaky.holdLookups()
			wait := r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "a", ID: "own"}})
			<-r.flaky.looking
			return begun{wait, release}
		},
		"prompt that is written": func(r *rig, id string) begun {
			return heldAppend(r, toSession{id, messages.Prompt{SessionID: id, Text: "a"}})
		},
		"command in a sandbox": func(r *rig, _ string) begun {
			done := make(chan struct{})
			wait := r.system.guardian.request(underWay{done})
			return begun{wait, func() { close(done) }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.create()
			r.prompt(id, "one", messages.Steer)
			r.model.next(t).answer("ok")
			r.wait(id)
			b := begin(r, id)
			closed := r.closes()
			b.release()
			if closed {
				t.Fatal("admission ended under it")
			}
			if _, err := b.wait(r.ctx); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "prompt") { // its work is work as well
				a := r.model.next(t)
				if r.closes() {
					t.Error("admission ended under a prompt's work")
				}
				a.answer("ok")
			}
			r.closesAtLast()
		})
	}
}

// Between two busy periods of a session, of which the second was asked for
// during the first, it rests for nobody: not even for a moment is there no work.
func TestASessionDoesNotRestBetweenTwoPrompts(t *testing.T) {
	var rests atomic.Int64
	r := newRigWith(t, func(c *Config) {
		c.Watch = func(l Load) {
			if l.Busy == 0 {
				rests.Add(1)
			}
		}
	})
	id := r.create()
	if _, err := r.do(running{}); err != nil { // behind what the create has told
		t.Fatal(err)
	}
	before := rests.Load()
	if _, err := r.to(id, messages.Prompt{SessionID: id, Text: "one", Bound: "conn"}); err != nil {
		t.Fatal(err)
	}
	stopped := r.model.next(t)
	if r.closes() || rests.Load() != before {
		t.Error("the session was taken for one that rests between a prompt and its work")
	}
	r.prompt(id, "two", messages.FollowUp)
	before = rests.Load()
	// The work ends with its client; the prompt of another one begins the next.
	r.system.guardian.Tell(leaveLocal{"conn"})
	<-stopped.ctx.Done()
	next := r.model.next(t)
	if r.closes() || rests.Load() != before {
		t.Error("the session was taken for one that rests")
	}
	next.answer("ok")
	r.wait(id)
	r.closesAtLast()
}

func TestWhatComesBehindTheEndOfAdmissionIsRefusedUnwritten(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	r.closesAtLast()
	events := len(r.log(id))
	for _, m := range []any{
		messages.CreateSession{Directory: "/"}, messages.CreateSession{ID: messages.NewSessionID()}, messages.Fork{SessionID: id}, messages.Delete{SessionID: id},
		messages.Check{SessionID: id, Repair: true}, toSession{id, messages.Prompt{SessionID: id, Text: "a", ID: "own"}},
		toSession{id, messages.Rename{SessionID: id, Title: "x"}}, toSession{id, messages.Configure{SessionID: id}},
		boxCall{ctx: r.ctx, m: messages.CreateSandbox{Driver: "x"}}, underWay{make(chan struct{})}, openGateway{},
	} {
		if _, err := r.do(m); !refusedAs(err, messages.RefusedShutdown) {
			t.Errorf("%T: %v", m, err)
		}
	}
	if _, err := r.to(id, messages.GetSession{SessionID: id}); err != nil {
		t.Errorf("a look at a session: %v", err)
	}
	if !r.closes() {
		t.Error("admission has begun again")
	}
	if n, err := r.store.Count(r.ctx); n != 1 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
	if now := len(r.log(id)); now != events {
		t.Errorf("%d events were written", now-events)
	}
}

// A stop that waits for nobody refuses prompts that are not written yet: they
// are told so, and not found in the queue later.
func TestAPromptThatIsLookedUpAtTheEndIsRefusedUnwritten(t *testing.T) {
	r := newRig(t)
	id := r.create()
	release := r.flaky.holdLookups()
	wait := r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "a", ID: "own"}})
	<-r.flaky.looking
	if err := r.system.Settle(r.ctx); err != nil {
		t.Fatal(err)
	}
	release()
	if _, err := wait(r.ctx); !refusedAs(err, messages.RefusedShutdown) {
		t.Errorf("got %v", err)
	}
	r.down()
	if n := len(r.log(id)); n != 0 {
		t.Errorf("%d events", n)
	}
}

// A session whose prompt came to nothing, or that fails under one, is not taken
// for one with work.
func TestAdmissionEndsAfterPromptsThatCameToNothing(t *testing.T) {
	for name, fail := range map[string]func(r *rig, id string){
		"refused": func(r *rig, id string) {
			if _, err := r.to(id, messages.Prompt{SessionID: id, Text: " "}); err == nil {
				r.t.Error("not refused")
			}
		},
		"repeated": func(r *rig, id string) {
			p := messages.Prompt{SessionID: id, Text: "a", ID: "own"}
			for i := range 2 {
				if _, err := r.to(id, p); err != nil {
					r.t.Error(err)
				}
				if i == 0 {
					(<-r.model.asked).answer("ok")
					r.wait(id)
				}
			}
		},
		"of another session": func(r *rig, id string) {
			other := r.create()
			if _, err := r.to(other, messages.Prompt{SessionID: other, Text: "a", ID: "own"}); err != nil {
				r.t.Error(err)
			}
			(<-r.model.asked).answer("ok")
			r.wait(other)
			var conflict *messages.PromptConflict
			if _, err := r.to(id, messages.Prompt{SessionID: id, Text: "a", ID: "own"}); !errors.As(err, &conflict) {
				r.t.Error(err)
			}
		},
		"lost to the disk": func(r *rig, id string) {
			r.flaky.failLoads(errors.New("no disk"))
			defer r.flaky.failLoads(nil)
			if _, err := r.to(id, messages.Prompt{SessionID: id, Text: "a"}); err == nil {
				r.t.Error("not refused")
			}
		},
		"crashed": func(r *rig, id string) {
			release := r.flaky.holdLookups()
			wait := r.system.guardian.request(toSession{id, messages.Prompt{SessionID: id, Text: "a", ID: "own"}})
			<-r.flaky.looking
			crash := r.system.guardian.request(toSession{id, crashed{errors.New("test")}})
			release()
			if _, err := crash(r.ctx); err == nil {
				r.t.Error("no crash")
			}
			if _, err := wait(r.ctx); err == nil {
				(<-r.model.asked).answer("ok")
			}
		},
		"no session": func(r *rig, _ string) {
			id := messages.NewSessionID()
			if _, err := r.to(id, messages.Prompt{SessionID: id, Text: "a"}); err == nil {
				r.t.Error("not refused")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			fail(r, r.create())
			r.closesAtLast()
		})
	}
}

func TestASessionIsMadeOnceUnderOneId(t *testing.T) {
	r := newRig(t)
	m := messages.CreateSession{ID: messages.NewSessionID(), Directory: "/", Title: "first"}
	release := r.flaky.holdAppends()
	var waits []func(context.Context) (any, error)
	for range 3 {
		waits = append(waits, r.system.guardian.request(m))
		m.Title = "again"
	}
	release()
	for _, wait := range waits {
		v, err := wait(r.ctx)
		if err != nil || v.(messages.SessionInfo).ID != m.ID || v.(messages.SessionInfo).Title != "first" {
			t.Errorf("%+v, %v", v, err)
		}
	}
	r.prompt(m.ID, "one", messages.Steer)
	a := r.model.next(t)
	if v, err := r.do(m); err != nil || v.(messages.SessionInfo).Status != messages.SessionRunning {
		t.Errorf("while it works: %+v, %v", v, err)
	}
	a.answer("ok")
	r.wait(m.ID)
	r.down()
	r.boot()
	if v, err := r.do(m); err != nil || v.(messages.SessionInfo).Title != "first" {
		t.Errorf("after a restart: %+v, %v", v, err)
	}
	if l := r.ledger(m.ID); len(l.entries) != 2 {
		t.Errorf("%d entries", len(l.entries))
	}
	if n, err := r.store.Count(r.ctx); n != 1 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
}

// TestAdmissionEndsInOneStep lets creates, forks, prompts and answers of disk and
// model come in any order, and asks for the end of admission in between. Once it
// has ended, everything that was asked before is answered, what was admitted has
// been worked on and nothing was interrupted; what is asked behind it is refused,
// and the store shows nothing of it.
func TestAdmissionEndsInOneStep(t *testing.T) {
	setRounds(t, "60")
	ends := 0
	rapid.Check(t, func(rt *rapid.T) {
		d := &closingDriver{rig: newRig(rt), rt: rt}
		rt.Cleanup(func() { // otherwise a round that fails would wait for ever
			d.freeDisk()
			d.freeLookup()
		})
		for range 2 {
			d.sessions = append(d.sessions, d.create())
			d.made++
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create":         func(rt *rapid.T) { d.ask("", messages.CreateSession{Directory: "/"}) },
			"create by id":   func(*rapid.T) { d.ask("", messages.CreateSession{ID: messages.NewSessionID(), Directory: "/"}) },
			"fork":           d.fork,
			"prompt":         d.prompt,
			"another prompt": d.prompt,
			"model":          d.modelAnswers,
			"model goes on":  d.modelAnswers,
			"hold disk":      d.holdDisk,
			"free disk":      func(*rapid.T) { d.freeDisk() },
			"free it again":  func(*rapid.T) { d.freeDisk() },
			"hold lookups":   d.holdLookup,
			"free lookups":   func(*rapid.T) { d.freeLookup() },
			"unload":         d.unload,
			"close":          d.close,
			"close again":    d.close,
		})
		if d.closed {
			ends++
		}
		d.end()
	})
	t.Logf("admission ended under way in %d rounds", ends)
}

type closingDriver struct {
	*rig
	rt       *rapid.T
	sessions []string
	made     int // sessions that were acknowledged
	n        int
	asks     []closingAsk
	acked    map[string][]string // texts of prompts that were acknowledged, by session
	refused  []string            // texts of those that were not
	closed   bool
	disk     func()
	lookup   func()
}

// closingAsk is a call that is not known to be answered.
type closingAsk struct {
	session, text string // of a prompt
	late          bool   // behind the end of admission
	wait          func(context.Context) (any, error)
}

func (d *closingDriver) ask(session string, m any) {
	a := closingAsk{session: session, late: d.closed}
	if t, ok := m.(toSession); ok {
		a.text = t.m.(messages.Prompt).Text
	}
	a.wait = d.system.guardian.request(m)
	d.asks = append(d.asks, a)
}

func (d *closingDriver) some(rt *rapid.T) string {
	return rapid.SampledFrom(d.sessions).Draw(rt, "session")
}

func (d *closingDriver) fork(rt *rapid.T) {
	id := d.some(rt)
	if d.disk != nil || d.asked(id) { // a fork of what has no entries yet is an error of its own
		rt.Skip("no conversation")
	}
	if l := d.ledger(id); len(l.entries) == 0 {
		rt.Skip("no conversation")
	}
	d.ask("", messages.Fork{SessionID: id})
}

func (d *closingDriver) asked(id string) bool {
	return slices.ContainsFunc(d.asks, func(a closingAsk) bool { return a.session == id })
}

func (d *closingDriver) prompt(rt *rapid.T) {
	d.n++
	p := messages.Prompt{SessionID: d.some(rt), Text: fmt.Sprint("p", d.n), Delivery: rapid.SampledFrom([]messages.Delivery{messages.Steer, messages.FollowUp}).Draw(rt, "delivery")}
	if rapid.Bool().Draw(rt, "own id") {
		p.ID = p.Text
	}
	d.ask(p.SessionID, toSession{p.SessionID, p})
}

func (d *closingDriver) modelAnswers(rt *rapid.T) {
	select {
	case a := <-d.model.asked:
		a.answer("ok")
	default:
		rt.Skip("nothing is asked")
	}
}

func (d *closingDriver) holdDisk(rt *rapid.T) {
	if d.disk != nil {
		rt.Skip("held already")
	}
	d.disk = d.flaky.holdAppends()
}

func (d *closingDriver) freeDisk() {
	if d.disk != nil {
		d.disk()
		d.disk = nil
	}
}

func (d *closingDriver) holdLookup(rt *rapid.T) {
	if d.lookup != nil {
		rt.Skip("held already")
	}
	d.lookup = d.flaky.holdLookups()
}

func (d *closingDriver) freeLookup() {
	if d.lookup != nil {
		d.lookup()
		d.lookup = nil
	}
}

func (d *closingDriver) unload(rt *rapid.T) { d.system.guardian.Tell(retireSession{d.some(rt)}) }

// close asks for the end of admission. When it has come, every call before it has
// its answer already.
func (d *closingDriver) close(*rapid.T) {
	was := d.closed
	d.closed = d.closes()
	if was && !d.closed {
		d.rt.Fatal("admission has begun again")
	}
	if !d.closed || was {
		return
	}
	expired, cancel := context.WithCancel(d.ctx)
	cancel()
	d.collect(expired)
	if n := len(d.model.asked); n > 0 {
		d.rt.Fatalf("admission ended with %d requests unanswered", n)
	}
}

// collect takes the answers of all calls.
func (d *closingDriver) collect(ctx context.Context) {
	for _, a := range d.asks {
		v, err := a.wait(ctx)
		switch {
		case a.late:
			if !refusedAs(err, messages.RefusedShutdown) {
				d.rt.Fatalf("behind the end: %v, %v", v, err)
			}
			if a.text != "" {
				d.refused = append(d.refused, a.text)
			}
		case err != nil:
			d.rt.Fatalf("before the end: %q in %q: %v", a.text, a.session, err)
		case a.text != "":
			if d.acked == nil {
				d.acked = map[string][]string{}
			}
			d.acked[a.session] = append(d.acked[a.session], a.text)
		default:
			d.made++
			d.sessions = append(d.sessions, v.(messages.SessionInfo).ID)
		}
	}
	d.asks = nil
}

// end lets everything come to rest and looks into the store.
func (d *closingDriver) end() {
	d.freeDisk()
	d.freeLookup()
	ctx, stop := context.WithCancel(d.ctx)
	var answers sync.WaitGroup
	answers.Go(func() {
		for {
			select {
			case a := <-d.model.asked:
				a.answer("ok")
			case <-d.flaky.looking:
			case <-ctx.Done():
				return
			}
		}
	})
	d.collect(d.ctx)
	d.closesAtLast()
	stop()
	answers.Wait()
	if err := d.system.Settle(d.ctx); err != nil {
		d.rt.Fatal(err)
	}
	d.down()
	if n, err := d.store.Count(d.ctx); n != d.made || err != nil {
		d.rt.Fatalf("%d sessions were acknowledged, there are %d; %v", d.made, n, err)
	}
	for _, id := range d.sessions {
		for _, e := range d.log(id) {
			if e.Type == messages.EventExecutionInterrupted || e.Type == messages.EventExecutionFailed {
				d.rt.Fatalf("work ended with %s", e.Data)
			}
		}
		l := d.ledger(id)
		if len(l.inbox) > 0 {
			d.rt.Fatalf("%d prompts were left behind", len(l.inbox))
		}
		said := map[string]int{}
		for _, m := range l.entries {
			if m.Role == messages.RoleUser {
				said[m.Parts[0].Text]++
			}
		}
		for _, text := range d.acked[id] {
			if said[text] != 1 {
				d.rt.Fatalf("prompt %s was worked on %d times", text, said[text])
			}
		}
		for _, text := range d.refused {
			if said[text] != 0 {
				d.rt.Fatalf("prompt %s was refused and worked on", text)
			}
		}
	}
}

// A process that stops waits for what is being written, and the answer leaves
// before the connection closes: a client that did not hear of it would do it
// again.
func TestASessionThatIsMadeWhileTheProcessStopsIsTold(t *testing.T) {
	var busy atomic.Int64
	r := newRigWith(t, func(c *Config) { c.Watch = func(l Load) { busy.Store(int64(l.Busy)) } })
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(within); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("in vain: " + what)
			}
		}
	}
	c := r.dial(t, true)
	id := r.create()
	release := r.flaky.holdAppends()
	type told struct {
		info messages.SessionInfo
		err  error
	}
	answers := make(chan told, 2)
	ask := func(method string, payload any) {
		var a told
		a.err = c.Call(soon(t), method, payload, &a.info)
		answers <- a
	}
	go ask(contract.SessionCreate, messages.CreateSession{Directory: "/"})
	until("the create is under way", func() bool { return busy.Load() == 1 })
	go ask(contract.SessionDelete, messages.Delete{SessionID: id})
	until("the delete is under way", func() bool { return busy.Load() == 2 })
	guardian := r.system.guardian
	guardian.Stop()
	until("it stops", func() bool { return (*guardian.vitals.mailbox.Load()).UserMessageCount() == 0 })
	release()
	for range 2 {
		if a := <-answers; a.err != nil {
			t.Errorf("got %+v, %v", a.info, a.err)
		}
	}
	<-guardian.Done()
	if n, err := r.store.Count(r.ctx); n != 1 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
}

// Calls that were read and that the gateway does not get to are answered, too.
func TestCallsThatAGatewayDoesNotGetToAreHandedBack(t *testing.T) {
	var q callQueue
	first, second := &effectrpc.Call{}, &effectrpc.Call{}
	if !q.put(first) || !q.put(second) || q.take() != first {
		t.Fatal("not the first one first")
	}
	if left := q.close(); len(left) != 1 || left[0] != second {
		t.Errorf("left: %v", left)
	}
	if q.put(first) || q.take() != nil {
		t.Error("it takes calls after its end")
	}
}
