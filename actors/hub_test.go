package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"codework/internal/store"
	"codework/messages"
	"codework/protocol/contract"
)

// spawnHub starts a hub of its own.
func spawnHub(t testing.TB) *Ref {
	rt := newTestRuntime(t)
	ref := rt.Spawn(func() Actor { return newHub(nil) })
	t.Cleanup(func() { stopAndWait(t, ref) })
	return ref
}

func subscribeTo(t testing.TB, hub *Ref, session string, after ...map[string]int64) *subscription {
	t.Helper()
	sub := newSubscription(session)
	for _, a := range after {
		sub.after = a
	}
	if _, err := hub.request(subscribe{sub})(soon(t)); err != nil {
		t.Fatal(err)
	}
	return sub
}

func at(session string, seq int64) map[string]int64 { return map[string]int64{session: seq} }

func event(session string, seq int64) messages.Event {
	return messages.Event{ID: fmt.Sprintf("evt_%s_%d", session, seq), Type: messages.EventTurnEnded, Session: session, Seq: seq,
		Data: json.RawMessage(fmt.Sprintf(`{"timestamp":1,"sessionId":%q}`, session))}
}

// read takes n events.
func read(t testing.TB, sub *subscription, n int) []messages.Event {
	t.Helper()
	var got []messages.Event
	for len(got) < n {
		batch, err := sub.next(soon(t), n-len(got))
		if err != nil {
			t.Fatalf("after %d of %d: %v", len(got), n, err)
		}
		for _, p := range batch {
			got = append(got, p.Event)
		}
	}
	return got
}

func TestSubscribersGetEventsInTheOrderOfPublishing(t *testing.T) {
	hub := spawnHub(t)
	all, one := subscribeTo(t, hub, ""), subscribeTo(t, hub, "ses_a")
	var publishers sync.WaitGroup
	const n = 500
	for _, id := range []string{"ses_a", "ses_b", "ses_c"} {
		publishers.Go(func() {
			for seq := int64(1); seq <= n; seq += 2 {
				hub.Tell(publish{announce(event(id, seq), event(id, seq+1))})
			}
		})
	}
	last := map[string]int64{}
	for _, e := range read(t, all, 3*n) {
		if e.Seq != last[e.Session]+1 {
			t.Fatalf("%s: %d follows %d", e.Session, e.Seq, last[e.Session])
		}
		last[e.Session] = e.Seq
	}
	for i, e := range read(t, one, n) {
		if e.Session != "ses_a" || e.Seq != int64(i+1) {
			t.Fatalf("event %d is %s %d", i, e.Session, e.Seq)
		}
	}
	publishers.Wait()
}

func TestAReaderThatFallsBehindIsCutOffAndNobodyElse(t *testing.T) {
	hub := spawnHub(t)
	slow, good := subscribeTo(t, hub, ""), subscribeTo(t, hub, "")
	const n = subscriberQueue + 100
	for seq := int64(1); seq <= n; seq++ {
		hub.Tell(publish{announce(event("ses_a", seq))})
		if seq%50 == 0 {
			read(t, good, 50)
		}
	}
	got := read(t, slow, subscriberQueue)
	if first, last := got[0].Seq, got[len(got)-1].Seq; first != 1 || last != subscriberQueue {
		t.Errorf("the queued events are %d to %d", first, last)
	}
	var over *messages.SubscriptionOverflow
	if _, err := slow.next(soon(t), 1); !errors.As(err, &over) || over.Capacity != subscriberQueue {
		t.Errorf("it ends with %v", err)
	}
	if _, err := slow.next(soon(t), 1); !errors.As(err, &over) {
		t.Errorf("and then with %v", err)
	}
	hub.Tell(publish{announce(event("ses_a", n+1))})
	if e := read(t, good, 1+n%50); e[len(e)-1].Seq != n+1 {
		t.Errorf("the good reader is at %d", e[len(e)-1].Seq)
	}
	// It may come again.
	again := subscribeTo(t, hub, "")
	hub.Tell(publish{announce(event("ses_a", n+2))})
	if e := read(t, again, 1); e[0].Seq != n+2 {
		t.Errorf("the new subscription begins with %d", e[0].Seq)
	}
}

func TestExactlyTheCapacityIsNoOverflow(t *testing.T) {
	hub := spawnHub(t)
	sub := subscribeTo(t, hub, "")
	for seq := int64(1); seq <= subscriberQueue; seq++ {
		hub.Tell(publish{announce(event("ses_a", seq))})
	}
	read(t, sub, subscriberQueue)
	hub.Tell(publish{announce(event("ses_a", subscriberQueue+1))})
	if e := read(t, sub, 1); e[0].Seq != subscriberQueue+1 {
		t.Errorf("got %d", e[0].Seq)
	}
}

func TestUnsubscribedReadersEndAfterWhatIsQueued(t *testing.T) {
	hub := spawnHub(t)
	sub := subscribeTo(t, hub, "")
	hub.Tell(publish{announce(event("ses_a", 1))})
	hub.Tell(unsubscribe{sub})
	hub.Tell(publish{announce(event("ses_a", 2))})
	if e := read(t, sub, 1); e[0].Seq != 1 {
		t.Errorf("got %d", e[0].Seq)
	}
	if _, err := sub.next(soon(t), 1); err == nil {
		t.Error("it goes on after its end")
	}
}

func TestADeletedSessionEndsTheSubscriptionsToItAlone(t *testing.T) {
	hub := spawnHub(t)
	all, one, other := subscribeTo(t, hub, ""), subscribeTo(t, hub, "ses_a"), subscribeTo(t, hub, "ses_b")
	hub.Tell(publish{announce(event("ses_a", 1))})
	hub.Tell(deleted{"ses_a"})
	hub.Tell(publish{announce(event("ses_b", 1))})
	if e := read(t, one, 1); e[0].Seq != 1 {
		t.Errorf("what was published before came as %+v", e)
	}
	var missing *messages.SessionNotFound
	if _, err := one.next(soon(t), 1); !errors.As(err, &missing) || missing.SessionID != "ses_a" {
		t.Errorf("it ends with %v", err)
	}
	if e := read(t, all, 2); e[1].Session != "ses_b" {
		t.Errorf("the reader of all got %+v", e)
	}
	if e := read(t, other, 1); e[0].Session != "ses_b" {
		t.Errorf("the reader of another session got %+v", e)
	}
}

func TestSubscribersAreToldWhenTheHubStops(t *testing.T) {
	hub := spawnHub(t)
	sub := subscribeTo(t, hub, "")
	waiting := make(chan error, 1)
	ctx := soon(t)
	go func() {
		_, err := sub.next(ctx, 1)
		waiting <- err
	}()
	stopAndWait(t, hub)
	if err := <-waiting; !errors.Is(err, errStopped) {
		t.Errorf("got %v", err)
	}
}

// logged is a store with one session whose log the test writes.
type logged struct {
	*store.Store
	id  string
	seq int64
}

func newLogged(t testing.TB) *logged {
	t.Helper()
	st, err := store.Open(context.Background(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	l := &logged{Store: st, id: messages.NewSessionID()}
	done := make(chan error, 1)
	st.Append(store.Batch{Session: l.id, Record: &messages.SessionRecord{ID: l.id}}, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return l
}

// append records n events and returns them once they are on disk.
func (l *logged) append(n int) []messages.Event {
	var events []messages.Event
	for range n {
		l.seq++
		events = append(events, event(l.id, l.seq))
	}
	done := make(chan error, 1)
	l.Append(store.Batch{Session: l.id, Events: events}, func(err error) { done <- err })
	if err := <-done; err != nil {
		panic(err)
	}
	return events
}

// positions reads until the durable event with that position has come.
func positions(t testing.TB, r *reader, until int64) (seqs []int64, types []string) {
	t.Helper()
	for len(seqs) == 0 || seqs[len(seqs)-1] < until {
		batch, err := r.next(soon(t), 64)
		if err != nil {
			t.Fatalf("after %v: %v", seqs, err)
		}
		if len(batch) == 0 {
			t.Fatal("an empty batch")
		}
		for _, b := range batch {
			e, err := contract.DecodeEvent(b)
			if err != nil {
				t.Fatal(err)
			}
			types = append(types, e.Type)
			if e.Durable() {
				seqs = append(seqs, e.Seq)
			}
		}
	}
	return seqs, types
}

// TestAReaderWithAPositionMissesNothingAndGetsNothingTwice subscribes at a
// random moment of a running session, from a random position.
func TestAReaderWithAPositionMissesNothingAndGetsNothingTwice(t *testing.T) {
	hub := spawnHub(t)
	const total = 300
	for round := range 12 {
		rnd := rand.New(rand.NewPCG(uint64(round), 1))
		l := newLogged(t)
		before := rnd.IntN(200)
		if before > 0 {
			l.append(before)
		}
		var publishing sync.WaitGroup
		publishing.Go(func() {
			for l.seq < total {
				events := l.append(min(1+rnd.IntN(20), total-int(l.seq)))
				// A live event of before may come behind them.
				live := messages.Event{ID: "evt_live", Type: messages.EventTurnStarted, Session: l.id, After: l.seq, Data: json.RawMessage(`{"timestamp":1,"sessionId":"` + l.id + `"}`)}
				hub.Tell(publish{announce(append(events, live)...)})
			}
		})
		own := rand.New(rand.NewPCG(uint64(round), 2))
		for range 3 {
			after := int64(own.IntN(before + 1))
			filter := ""
			if own.IntN(2) == 0 {
				filter = l.id
			}
			sub := subscribeTo(t, hub, filter, at(l.id, after))
			r := newReader(sub, hub, l)
			seqs, types := positions(t, r, total)
			if types[0] != messages.EventConnected {
				t.Fatalf("the first event is %s", types[0])
			}
			for i, seq := range seqs {
				if seq != after+int64(i)+1 {
					t.Fatalf("round %d: behind %d came %v", round, after, seqs[:i+1])
				}
			}
			hub.Tell(unsubscribe{sub})
		}
		publishing.Wait()
	}
}

// The log may be ahead of what readers were told. Whatever is published after
// they came reaches them in its order, the live events too.
func TestALogThatIsAheadHidesNoLiveEvents(t *testing.T) {
	live := func(l *logged, after int64, id string) messages.Event {
		return messages.Event{ID: id, Type: messages.EventTurnStarted, Session: l.id, After: after, Data: json.RawMessage(`{"sessionId":"` + l.id + `"}`)}
	}
	for _, when := range []string{"in memory", "opened before the reader reads", "opened while the reader reads"} {
		t.Run(when, func(t *testing.T) {
			hub := spawnHub(t)
			l := newLogged(t)
			old := l.append(2)
			if when == "in memory" {
				hub.Tell(opened{l.id, 1})
				hub.Tell(publish{announce(old[1:]...)})
			}
			sub := subscribeTo(t, hub, "", at(l.id, 0))
			r := newReader(sub, hub, l)
			if when == "opened while the reader reads" {
				if _, err := r.next(soon(t), 1); err != nil { // server.connected
					t.Fatal(err)
				}
				if got, err := r.next(soon(t), 1); err != nil || len(got) != 1 {
					t.Fatal(got, err)
				}
			}
			if when != "in memory" {
				hub.Tell(opened{l.id, 2})
			}
			fresh := l.append(3)  // on disk before it is published
			unread := l.append(1) // and never published, for its session was lost
			last := l.append(1)
			publishAll := func() {
				hub.Tell(publish{announce(fresh[0], live(l, 3, "live 3"), fresh[1], live(l, 4, "live 4"), fresh[2], live(l, 5, "live 5"))})
				hub.Tell(publish{announce(last...)})
			}
			want := []string{old[0].ID, old[1].ID, fresh[0].ID, "live 3", fresh[1].ID, "live 4", fresh[2].ID, "live 5", unread[0].ID, last[0].ID}
			var ids []string
			if when == "opened while the reader reads" {
				ids = []string{"", old[0].ID}
			}
			for len(ids) < 3 { // what was there before
				batch, err := r.next(soon(t), 1)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range batch {
					e, _ := contract.DecodeEvent(b)
					ids = append(ids, e.ID)
				}
			}
			publishAll()
			for len(ids) < 1+len(want) {
				batch, err := r.next(soon(t), 16)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range batch {
					e, _ := contract.DecodeEvent(b)
					ids = append(ids, e.ID)
				}
			}
			if !slices.Equal(ids[1:], want) {
				t.Errorf("got %v, want %v", ids[1:], want)
			}
		})
	}
}

func TestAnEndThatWasNotRecordedReachesReadersWithAPosition(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	a := r.model.next(t)
	a.start()
	r.events.until(t, id, messages.EventLLMStarted, 1)
	sub := newSubscription(id)
	sub.after = at(id, 1)
	if _, err := r.system.hub.request(subscribe{sub})(r.ctx); err != nil {
		t.Fatal(err)
	}
	rd := newReader(sub, r.system.hub, r.flaky)
	if _, err := rd.next(r.ctx, 1); err != nil { // server.connected
		t.Fatal(err)
	}
	r.flaky.failWhen(func(store.Batch) error {
		return &messages.Refused{Name: messages.RefusedStore, Message: "no space"}
	})
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "x"})
	for {
		batch, err := rd.next(soon(t), 64)
		if err != nil {
			t.Fatalf("the end never came: %v", err)
		}
		for _, b := range batch {
			if e, _ := contract.DecodeEvent(b); e.Type == messages.EventExecutionFailed {
				r.flaky.failWhen(nil)
				return
			}
		}
	}
}

// A reader that comes back to many sessions gets what it missed in as few
// pieces as it takes: each piece waits for the reader's answer to the last.
func TestWhatWasMissedOfManySessionsComesTogether(t *testing.T) {
	const sessions, each, most = 40, 3, 64
	hub := spawnHub(t)
	l := newLogged(t)
	after := map[string]int64{}
	for range sessions {
		l.id, l.seq = messages.NewSessionID(), 0
		done := make(chan error, 1)
		l.Append(store.Batch{Session: l.id, Record: &messages.SessionRecord{ID: l.id}}, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		l.append(each)
		after[l.id] = 1
	}
	r := newReader(subscribeTo(t, hub, "", after), hub, l)
	if _, err := r.next(soon(t), most); err != nil { // server.connected
		t.Fatal(err)
	}
	last, total, pieces := map[string]int64{}, 0, 0
	for total < sessions*(each-1) {
		batch, err := r.next(soon(t), most)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) == 0 || len(batch) > most {
			t.Fatalf("a piece of %d", len(batch))
		}
		pieces++
		for _, b := range batch {
			e, err := contract.DecodeEvent(b)
			if err != nil {
				t.Fatal(err)
			}
			if before := max(last[e.Session], 1); e.Seq != before+1 {
				t.Fatalf("behind %d came %d", before, e.Seq)
			}
			last[e.Session] = e.Seq
			total++
		}
	}
	if want := (sessions*(each-1) + most - 1) / most; pieces != want {
		t.Errorf("%d events came in %d pieces, want %d", total, pieces, want)
	}
}

func TestPositionsThatAreNotInTheLogAreRefused(t *testing.T) {
	hub := spawnHub(t)
	l := newLogged(t)
	l.append(3)
	for _, after := range []map[string]int64{{l.id: 4}, {l.id: -1}, {"ses_unknown": 0}, {"ses_unknown": 7}, {"": 1}} {
		r := newReader(subscribeTo(t, hub, "", after), hub, l)
		if _, err := r.next(soon(t), 8); err != nil { // server.connected
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := r.next(ctx, 8)
		cancel()
		var refused *messages.Refused
		if !errors.As(err, &refused) || refused.Name != messages.RefusedPosition {
			t.Errorf("%v: %v", after, err)
		}
	}
	r := newReader(subscribeTo(t, hub, "", at(l.id, 3)), hub, l)
	if _, err := r.next(soon(t), 8); err != nil {
		t.Fatal(err)
	}
	hub.Tell(publish{announce(l.append(1)...)})
	if seqs, _ := positions(t, r, 4); !slices.Equal(seqs, []int64{4}) {
		t.Errorf("behind the end of the log came %v", seqs)
	}
}

// The log of a session that is deleted may be gone before its reader has come to
// it, or in the middle of it.
func TestTheReaderOfADeletedSessionIsToldSo(t *testing.T) {
	for _, replayed := range []int{0, 1} {
		hub := spawnHub(t)
		l := newLogged(t)
		l.append(3)
		r := newReader(subscribeTo(t, hub, l.id, at(l.id, 0)), hub, l)
		for range 1 + replayed { // server.connected first
			if _, err := r.next(soon(t), 1); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		l.Append(store.Batch{Session: l.id, Delete: true}, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		var missing *messages.SessionNotFound
		if _, err := r.next(soon(t), 8); !errors.As(err, &missing) || missing.SessionID != l.id {
			t.Errorf("behind %d events: %v", replayed, err)
		}
	}
}

func TestASlowReaderDelaysNobody(t *testing.T) {
	hub := spawnHub(t)
	for range 8 {
		subscribeTo(t, hub, "") // never reads
	}
	good := subscribeTo(t, hub, "")
	for seq := int64(1); seq <= 3*subscriberQueue; seq++ {
		hub.Tell(publish{announce(event("ses_a", seq))})
		if e := read(t, good, 1); e[0].Seq != seq {
			t.Fatalf("got %d, want %d", e[0].Seq, seq)
		}
	}
}

// aheadStore lets something happen before a log is read.
type aheadStore struct {
	Store
	before func()
}

func (s *aheadStore) Events(ctx context.Context, session string, after int64, limit int, f func(messages.Event) error) error {
	if s.before != nil {
		s.before()
	}
	return s.Store.Events(ctx, session, after, limit, f)
}

// Thousands of forks that nobody opens must not be remembered for ever.
func TestTheHubRemembersNoSessionThatIsNotInMemory(t *testing.T) {
	h := newHub(nil).(*hub)
	forked := announce(messages.Event{ID: messages.NewEventID(), Type: messages.EventForked, Session: "ses_fork", Seq: 3, Data: json.RawMessage("{}")})
	h.Receive(nil, publish{forked})
	h.Receive(nil, opened{"ses_open", 2})
	h.Receive(nil, publish{announce(messages.Event{ID: messages.NewEventID(), Type: messages.EventForked, Session: "ses_open", Seq: 3, Data: json.RawMessage("{}")})})
	if len(h.standings) != 1 || h.standings["ses_open"] != (standing{2, 3}) {
		t.Errorf("%v", h.standings)
	}
	h.Receive(nil, closed{"ses_open"})
	h.Receive(nil, publish{forked})
	if len(h.standings) != 0 {
		t.Errorf("%v", h.standings)
	}
}

// A fork's log does not begin with 1, and it may be opened while a reader reads
// it from its beginning.
func TestAForkThatIsOpenedWhileItsLogIsReadIsToldWhole(t *testing.T) {
	r := newRig(t)
	_, fork := forked(t, r)
	r.restart()
	ahead := &aheadStore{Store: r.store}
	sub := subscribeTo(t, r.system.hub, fork.ID, at(fork.ID, 0))
	rd := newReader(sub, r.system.hub, ahead)
	looks := 0
	ahead.before = func() {
		if looks++; looks == 2 { // the first is whether the position is there
			r.prompt(fork.ID, "and now", messages.Steer)
			r.model.next(t).answer("so")
			r.wait(fork.ID)
		}
	}
	var got, want []int64
	for len(want) == 0 || len(got) < len(want) {
		batch, err := rd.next(soon(t), 64)
		if err != nil {
			t.Fatal(got, err)
		}
		for _, b := range batch {
			e, err := contract.DecodeEvent(b)
			if err != nil {
				t.Fatalf("%q: %v", b, err)
			}
			if e.Durable() {
				got = append(got, e.Seq)
			}
		}
		if looks < 2 {
			continue
		}
		want = nil
		for _, e := range r.log(fork.ID) {
			want = append(want, e.Seq)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
