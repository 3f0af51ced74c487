package actors

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

// restart ends the actors and starts them anew on what is stored: nothing is in
// memory then.
func (r *rig) restart() {
	r.t.Helper()
	r.down()
	r.boot()
}

// inMemory are the sessions that the guardian has.
func (r *rig) inMemory() map[string]sessionState {
	r.t.Helper()
	st, err := Ask[stock](r.ctx, r.system.guardian, takeStock{})
	if err != nil {
		r.t.Fatal(err)
	}
	return st.sessions
}

// variedSession has everything in it that a conversation can have.
func variedSession(t *testing.T, r *rig, g *gate) string {
	id := r.create()
	for i := range 6 {
		r.prompt(id, fmt.Sprint("question ", i), messages.Steer)
		a := r.model.next(t)
		switch i % 3 {
		case 0:
			a.answer(fmt.Sprint("answer ", i))
		case 1: // tools, and a steer that joins
			a.call(toolCall(fmt.Sprint("c", i), "wait", "{}"), toolCall(fmt.Sprint("d", i), "wait", "{}"))
			g.wait(t)
			r.prompt(id, "and this", messages.Steer)
			g.release <- struct{}{}
			g.wait(t)
			g.release <- struct{}{}
			r.model.next(t).answer("done")
		case 2: // stopped half way, with some text
			a.start()
			a.text("half an ans")
			r.events.until(t, id, messages.EventLLMTextDelta, i+1) // one in each round
			r.interrupt(id)
		}
		r.wait(id)
	}
	return id
}

// What is read of a session from the end of its log is what the session says
// when all of it is in memory.
func TestWhatIsReadWithoutTheSessionIsWhatItWouldSay(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("wait"))
	id := variedSession(t, r, g)
	fork, err := Ask[messages.SessionInfo](r.ctx, r.system.guardian, messages.Fork{SessionID: id})
	if err != nil {
		t.Fatal(err)
	}
	r.prompt(fork.ID, "go on", messages.Steer)
	r.model.next(t).answer("yes")
	r.wait(fork.ID)
	fresh := r.create()
	for _, id := range []string{id, fork.ID, fresh} {
		r.restart()
		questions := []any{messages.GetSession{SessionID: id}, messages.GetQueue{SessionID: id}, messages.Wait{SessionID: id}}
		before := []string{""}
		if id != fork.ID { // what a fork copied is in no log
			for _, e := range r.ledger(id).entries {
				before = append(before, e.ID)
			}
		}
		for _, b := range before {
			for _, limit := range []int{0, 1, 2, 3, 7} {
				questions = append(questions, messages.GetHistory{SessionID: id, Before: b, Limit: limit})
			}
		}
		var without []any
		for _, q := range questions {
			v, err := r.to(id, q)
			if err != nil {
				t.Fatal(err)
			}
			without = append(without, v)
		}
		if in := r.inMemory(); len(in) != 0 {
			t.Fatalf("in memory: %v", in)
		}
		if _, err := r.to(id, messages.HasMessage{SessionID: id, MessageID: "x"}); err != nil || len(r.inMemory()) != 1 {
			t.Fatal(err, r.inMemory())
		}
		for i, q := range questions {
			v, err := r.to(id, q)
			if err != nil || !reflect.DeepEqual(v, without[i]) {
				t.Errorf("%#v\n  it says   %+v, %v\n  there was %+v", q, v, err, without[i])
			}
		}
	}
}

// forked is a session of three turns, and its fork.
func forked(t *testing.T, r *rig) (id string, fork messages.SessionInfo) {
	t.Helper()
	id = r.create()
	for range 3 {
		r.prompt(id, "question", messages.Steer)
		r.model.next(t).answer("answer")
		r.wait(id)
	}
	fork, err := Ask[messages.SessionInfo](r.ctx, r.system.guardian, messages.Fork{SessionID: id})
	if err != nil {
		t.Fatal(err)
	}
	return id, fork
}

func TestAnEntryThatAForkCopiedIsFound(t *testing.T) {
	r := newRig(t)
	id, fork := forked(t, r)
	entries := r.ledger(id).entries
	r.restart()
	v, err := r.to(fork.ID, messages.GetHistory{SessionID: fork.ID, Before: entries[3].ID, Limit: 2})
	if h, ok := v.(messages.History); err != nil || !ok || !reflect.DeepEqual(h.Entries, entries[1:3]) || !h.More {
		t.Errorf("%+v, %v", v, err)
	}
}

// A message that only quotes the id of another one is not taken for it.
func TestAQuotedIDIsNotTheEntry(t *testing.T) {
	r := newRig(t)
	id := r.create()
	first := r.prompt(id, "question", messages.Steer)
	r.model.next(t).answer("answer")
	r.wait(id)
	r.prompt(id, "what was "+first+"?", messages.Steer)
	r.model.next(t).answer(first + " was a question")
	r.wait(id)
	r.restart()
	v, err := r.to(id, messages.GetHistory{SessionID: id, Before: first})
	if h, ok := v.(messages.History); err != nil || !ok || len(h.Entries) != 0 || h.More {
		t.Errorf("%+v, %v", v, err)
	}
	if in := r.inMemory(); len(in) != 0 {
		t.Errorf("in memory: %v", in)
	}
	if _, err := r.to(id, messages.GetHistory{SessionID: id, Before: "nobody"}); err == nil {
		t.Error("an entry that there is not was found")
	}
}

// What a crash left open is settled before anything is said of a session.
func TestASessionThatACrashCutOffIsHealedBeforeItIsShown(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "question", messages.Steer)
	a := r.model.next(t)
	a.start()
	r.events.until(t, id, messages.EventLLMStarted, 1)
	r.restart()
	if _, err := r.to(id, messages.GetHistory{SessionID: id}); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
	if log := r.log(id); log[len(log)-1].Type != messages.EventExecutionFailed {
		t.Errorf("the log ends with %s", log[len(log)-1].Type)
	}
}

// However many sessions had work, only some stay in memory, and those that were
// unloaded go on where they were.
func TestSessionsWithoutWorkLeaveMemoryWhenThereAreMany(t *testing.T) {
	r := newRig(t)
	r.with(func(x *Exchange) { x.Streamer = instantModel{1} })
	const n = 3 * mostResting
	ids := make([]string, n)
	for i := range ids {
		ids[i] = r.create()
	}
	for round := range 2 {
		for _, id := range ids {
			r.prompt(id, "question", messages.Steer)
			r.wait(id)
		}
		// One more than the limit may be on its way.
		deadline := time.Now().Add(within)
		for len(r.inMemory()) > mostResting+1 {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: %d sessions in memory", round, len(r.inMemory()))
			}
			time.Sleep(time.Millisecond)
		}
	}
	for _, i := range []int{0, n / 2, n - 1} {
		if l := r.ledger(ids[i]); len(l.entries) != 4 || l.running {
			t.Errorf("session %d has %d entries", i, len(l.entries))
		}
	}
}

// A session between two turns stays in memory, however many have some.
func TestSessionsThatTakeTurnsStayInMemory(t *testing.T) {
	r := newRigWith(t, func(c *Config) { c.restsFor = time.Hour })
	r.with(func(x *Exchange) { x.Streamer = instantModel{1} })
	const n = 3 * mostResting
	for range n {
		id := r.create()
		r.prompt(id, "question", messages.Steer)
		r.wait(id)
	}
	if in := r.inMemory(); len(in) != n {
		t.Errorf("%d of %d are in memory", len(in), n)
	}
}

// A session that could not leave yet, since something of it was on its way to
// the disk, is among those that may leave as soon as that is there.
func TestASessionThatCouldNotLeaveLeavesLater(t *testing.T) {
	r := newRig(t)
	id := r.create()
	release := sync.OnceFunc(r.flaky.holdAppends())
	defer release()
	renamed := r.system.guardian.request(toSession{id, messages.Rename{SessionID: id, Title: "new"}})
	r.system.guardian.Tell(retireSession{id})
	if _, err := r.to(id, messages.GetSession{SessionID: id}); err != nil { // held back until it has said that it stays
		t.Fatal(err)
	}
	release()
	if _, err := renamed(r.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.to(id, messages.GetSession{SessionID: id}); err != nil { // it has said that it rests before it answers this
		t.Fatal(err)
	}
	for range mostResting {
		other := r.create()
		if _, err := r.to(other, messages.HasMessage{SessionID: other}); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(within / 4); ; time.Sleep(time.Millisecond) {
		in := r.inMemory()
		if _, stays := in[id]; !stays && len(in) <= mostResting {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it stays, among %d in memory", len(in))
		}
	}
}

// A list says what the sessions in it do, also of those that are in memory.
func TestAListSaysWhatItsSessionsDo(t *testing.T) {
	r := newRig(t)
	idle, busy := r.create(), r.create()
	r.prompt(busy, "question", messages.Steer)
	a := r.model.next(t)
	r.prompt(busy, "later", messages.FollowUp)
	list, err := Ask[[]messages.SessionInfo](r.ctx, r.system.guardian, messages.ListSessions{})
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, i := range list {
		want, queued := messages.SessionIdle, 0
		if i.ID == busy {
			want, queued = messages.SessionRunning, 1
		} else if i.ID != idle {
			t.Errorf("another session: %s", i.ID)
		}
		if i.Status != want || i.Queued != queued {
			t.Errorf("%+v, want %s and %d waiting", i, want, queued)
		}
	}
	a.answer("ok")
	r.model.next(t).answer("ok")
	r.wait(busy)
}

// keptMount is a mount that may hold something.
type keptMount struct {
	sandboxes.Mount
	keeps  bool
	closed chan struct{}
	once   sync.Once
}

func (m *keptMount) Keeps() bool { return m.keeps }
func (m *keptMount) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

// hostOf makes mounts for sessions.
type hostOf struct {
	nowhere
	mu    sync.Mutex // guards made
	keeps bool
	made  []*keptMount
}

func (h *hostOf) Mount(context.Context, sandboxes.MountOptions) (sandboxes.Mount, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &keptMount{keeps: h.keeps, closed: make(chan struct{})}
	h.made = append(h.made, m)
	return m, nil
}

// The mount of a session that is unloaded goes with it, unless something in it
// would be missed, or somebody was given it meanwhile.
func TestMountsThatHoldNothingGoWithTheirSession(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		host := &hostOf{keeps: keeps}
		r := newRigWith(t, func(c *Config) { c.Local = host })
		id := r.create()
		get := func() sandboxes.Mount {
			p, err := Ask[place](r.ctx, r.system.guardian, toBox{messages.LocalSandbox, mountFor{options: sandboxes.MountOptions{Session: id}}})
			if err != nil {
				t.Fatal(err)
			}
			return p.mount
		}
		first := get().(*keptMount)
		if _, err := r.to(id, messages.HasMessage{SessionID: id}); err != nil {
			t.Fatal(err)
		}
		r.system.guardian.Tell(retireSession{id})
		if keeps {
			for deadline := time.Now().Add(within); len(r.inMemory()) > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("it stays in memory")
				}
			}
			if get() != sandboxes.Mount(first) {
				t.Error("a mount with something in it was left")
			}
			continue
		}
		select {
		case <-first.closed:
		case <-time.After(within):
			t.Fatal("the mount stays")
		}
		if get() == sandboxes.Mount(first) {
			t.Error("a closed mount was handed out")
		}
	}
	// Whoever gets a mount while it is looked at keeps it.
	s := &sandbox{mounts: map[string][]*mounted{}}
	m := &mounted{mount: &keptMount{closed: make(chan struct{})}}
	s.mounts["ses"] = []*mounted{m}
	m.used++
	s.closeRestful(nil, restful{"ses", map[*mounted]int{m: 0}})
	if len(s.mounts["ses"]) != 1 {
		t.Error("a mount in use was closed")
	}
}

func TestItIsCalmOnceThereWasNoWorkForAWhile(t *testing.T) {
	calm := make(chan time.Time, 8)
	r := newRigWith(t, func(c *Config) { c.Calm = func() { calm <- time.Now() } })
	r.with(func(x *Exchange) { x.Streamer = instantModel{1} })
	id := r.create()
	next := func() time.Time {
		t.Helper()
		select {
		case at := <-calm:
			return at
		case <-time.After(within):
			t.Fatal("it is never calm")
			return time.Time{}
		}
	}
	r.prompt(id, "hello", messages.Steer)
	r.wait(id)
	select {
	case <-time.After(calmAfter / 2): // what a person takes to go on
	case <-calm:
		t.Fatal("it is calm too soon")
	}
	r.prompt(id, "and now", messages.Steer)
	r.wait(id)
	ended := time.Now()
	if after := next().Sub(ended); after < calmAfter*9/10 { // the work had ended when the client heard of it
		t.Errorf("it is calm %s behind the last work", after)
	}
	r.prompt(id, "go on", messages.Steer)
	r.wait(id)
	r.system.guardian.Tell(isCalm{}) // too early
	next()
}

// What a session had in memory can be given back, too.
func TestItIsCalmAgainOnceASessionWasUnloaded(t *testing.T) {
	calm := make(chan bool, 8)
	r := newRigWith(t, func(c *Config) { c.Calm = func() { calm <- true } })
	id := r.create()
	if _, err := r.to(id, messages.HasMessage{SessionID: id}); err != nil { // no work
		t.Fatal(err)
	}
	r.system.guardian.Tell(retireSession{id})
	select {
	case <-calm:
	case <-time.After(within):
		t.Fatal("it is never calm")
	}
	if in := r.inMemory(); len(in) != 0 {
		t.Errorf("%d are in memory", len(in))
	}
}

// BenchmarkReadUnloaded is a look at a session that is not in memory: its cost
// must not grow with the conversation, but for the search of a place in it.
func BenchmarkReadUnloaded(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		r := newRig(b)
		r.with(func(x *Exchange) { x.Streamer = instantModel{4} })
		id := r.create()
		for range n / 2 {
			r.prompt(id, "a question of some words", messages.Steer)
			r.wait(id)
		}
		entries := r.ledger(id).entries
		r.down()
		r.boot()
		chance := rand.New(rand.NewPCG(1, 1))
		for name, q := range map[string]func() any{
			"info":   func() any { return messages.GetSession{SessionID: id} },
			"end":    func() any { return messages.GetHistory{SessionID: id} },
			"middle": func() any { return messages.GetHistory{SessionID: id, Before: entries[n/4+chance.IntN(n/2)].ID} },
		} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.to(id, q()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
