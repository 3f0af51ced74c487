package integration

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/integration/mockmodel"
)

// stampOf is when the model wrote a delta, of those that tell.
func stampOf(e event) (time.Time, bool) {
	text, ok := strings.CutPrefix(at(e.Data, "delta"), "@")
	if !ok {
		return time.Time{}, false
	}
	digits := strings.TrimRight(text, " .\n")
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i]
	}
	micros, err := strconv.ParseInt(digits, 10, 64)
	return time.UnixMicro(micros), err == nil
}

// delays are how long the deltas of events were under way, sorted.
func delays(t *testing.T, events []event) []time.Duration {
	t.Helper()
	var out []time.Duration
	for _, e := range events {
		if e.Type != "session.llm.text.delta" {
			continue
		}
		if written, ok := stampOf(e); ok {
			out = append(out, e.time.Sub(written))
		}
	}
	if len(out) == 0 {
		t.Fatal("no delta tells when it was written")
	}
	slices.Sort(out)
	return out
}

func percentile(sorted []time.Duration, p int) time.Duration { return sorted[(len(sorted)-1)*p/100] }

// queueOf is how many events wait for a subscriber.
const queueOf = 4096

// burst is how many deltas of one letter the model writes at once.
const burst = 1000

// stalledFor is how long a reader takes nothing before its pieces count one by
// one, and a little more.
const stalledFor = 1200 * time.Millisecond

// textOf is what the pieces among events say.
func textOf(events []event) string {
	var b strings.Builder
	for _, e := range events {
		if e.Type == "session.llm.text.delta" {
			b.WriteString(at(e.Data, "delta"))
		}
	}
	return b.String()
}

// toText returns the events up to the piece with which the text is so long.
func (s *stream) toText(t *testing.T, had, want int) []event {
	t.Helper()
	return s.to(t, fmt.Sprintf("text of %d", want), func(e event) bool {
		had += len(textOf([]event{e}))
		return had >= want
	})
}

// A subscriber that stops reading is cut off with its own error, behind what
// was queued for it; nobody else notices, and it may come again. The same holds
// for one that does not even read its connection.
func TestServerCutsOffAStalledReaderAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	bursts := 50
	if raceDetector && !*long {
		bursts = 10 // still more than twice what waits for a reader
	}
	good, bad, deaf := s.dial(t), s.dial(t), s.dial(t)
	all := good.subscribe(o{})
	id := good.create(o{})
	// Alone, for comparison.
	good.prompt(id, "mock=text:300:1#calm")
	calm := delays(t, all.toEnd(t, id))

	stalled := bad.subscribe(o{})
	stalled.stall(true)
	beside := bad.subscribe(o{"sessionId": id}) // on the same connection
	deaf.subscribe(o{}).stall(true)
	var storm mockmodel.Answer
	for i := range bursts {
		storm = append(storm, mockmodel.Text{Text: strings.Repeat("x", burst), Split: burst}, mockmodel.Hold{Name: fmt.Sprint("burst", i)})
	}
	s.answers(t, "storm", storm)
	good.prompt(id, "script=storm")
	began := time.Now()
	var events, theirs []event
	for i := range bursts {
		// The next burst comes when the good readers have had this one: however
		// slow the machine, they never have more than that to read.
		s.reached(t, fmt.Sprint("burst", i))
		events = append(events, all.toText(t, len(textOf(events)), (i+1)*burst)...)
		theirs = append(theirs, beside.toText(t, len(textOf(theirs)), (i+1)*burst)...)
		if i == bursts-2 { // by then the stalled ones have taken nothing for long enough
			<-time.After(time.Until(began.Add(stalledFor)))
		}
		s.model.Release(fmt.Sprint("burst", i))
	}
	events = append(events, all.toEnd(t, id)...)
	inOrder(t, events)
	theirs = append(theirs, beside.toEnd(t, id)...)
	if told := toldOf(ofSession(theirs, id)); !slices.Equal(told, toldOf(events)) {
		t.Errorf("the stream beside the stalled one was told %d things, the good reader others", len(told))
	}
	// A calm answer while the stalled ones are still there.
	good.prompt(id, "mock=text:300:1#again")
	again := delays(t, all.toEnd(t, id))
	if before, now := percentile(calm, 50), percentile(again, 50); now > 5*before+20*time.Millisecond {
		t.Errorf("the good reader's delay was %s alone and is %s beside stalled ones", before, now)
	}

	bad.call("session.list", o{}) // the connection lives
	bad.pong()
	stalled.stall(false)
	end := stalled.wait(t)
	if end.kind != "Fail" || !sameJSON(end.body, []byte(`{"_tag":"SubscriptionOverflowError","capacity":4096}`)) {
		t.Errorf("the stalled reader's stream ended with %s", end)
	}
	var queued []event
	for {
		e, err := stalled.next(callLimit)
		if err != nil {
			if !errors.Is(err, errOver) {
				t.Fatal(err)
			}
			break
		}
		queued = append(queued, e)
	}
	// What was under way, and what was queued behind it: a beginning of the
	// whole, and no less than waits for a reader.
	whole, told := textOf(events), textOf(queued)
	if len(told) < queueOf/2 || len(told) >= len(whole) || !strings.HasPrefix(whole, told) {
		t.Errorf("the stalled reader was told %d pieces of %d", len(told), len(whole))
	}
	last := int64(0)
	for _, e := range queued {
		last = max(last, e.seq())
	}
	// It may come again, from where it was.
	back := bad.subscribe(o{"sessionId": id, "after": o{id: last}})
	var missed []int64
	for _, e := range back.toEnd(t, id) {
		if e.Durable != nil {
			missed = append(missed, e.seq())
		}
	}
	if len(missed) == 0 || missed[0] != last+1 {
		t.Errorf("after position %d it is told %v", last, missed)
	}
	deaf.vanish()
}

// A client that drops its connection in the middle learns what it missed, the
// end included; one that reconnects all the time sees every recorded event
// once.
func TestServerTellsWhatWasMissed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial(t)
	t.Run("once", func(t *testing.T) {
		first := s.dial(t)
		sub := first.subscribe(o{})
		id := c.create(o{})
		s.answers(t, "missed", mockmodel.Answer{mockmodel.Hold{Name: "missed"}, mockmodel.Text{Text: "ok"}})
		c.prompt(id, "script=missed")
		seq := int64(0)
		for range 3 {
			e, err := sub.next(callLimit)
			if err != nil {
				t.Fatal(err)
			}
			seq = max(seq, e.seq())
		}
		first.vanish()
		s.reached(t, "missed")
		s.model.Release("missed")
		c.idle(id)
		second := s.dial(t)
		got := second.subscribe(o{"after": o{id: seq}}).toEnd(t, id)
		for i, e := range got {
			if e.seq() != seq+1+int64(i) {
				t.Errorf("after %d event %d is %s", seq, i, e.raw)
			}
		}
		if last := got[len(got)-1]; last.Type != "session.execution.succeeded" {
			t.Errorf("the end was missed: %s", last.raw)
		}
		var h struct{ Seq int64 }
		h.Seq = got[len(got)-1].seq()
		if now := at(c.call("session.history", o{"sessionId": id}), "seq"); now != strconv.FormatInt(h.Seq, 10) {
			t.Errorf("the history corresponds to %s, the log ends at %d", now, h.Seq)
		}
		// Positions that are not there are refused, not passed over.
		for _, after := range []o{{id: h.Seq + 1}, {id: 1 << 50}, {id: -1}, {noID: 1}, {noID: 0}} {
			p := second.begin("event.subscribe", o{"after": after})
			if e, err := p.stream.next(callLimit); err != nil || e.Type != "server.connected" {
				t.Errorf("after %v: %s, %v", after, e.raw, err)
			}
			if a := p.stream.wait(t); a.kind != "Die" || at(a.body, "name") == "" || !strings.Contains(at(a.body, "message"), "position") {
				t.Errorf("after %v: %s", after, a)
			}
		}
		second.pong()
	})

	t.Run("again and again", func(t *testing.T) {
		ids := []string{c.create(o{}), c.create(o{}), c.create(o{})}
		const each = 5
		var prompting sync.WaitGroup
		defer prompting.Wait()
		prompting.Go(func() {
			for i := range each {
				for _, id := range ids {
					if a := c.ask("session.prompt", o{"sessionId": id, "text": fmt.Sprintf("mock=tools:2:10 %d", i), "delivery": "followUp"}); a.kind != "Success" {
						t.Errorf("a prompt: %s", a)
					}
				}
			}
		})
		seen := map[string]int64{}
		for _, id := range ids {
			seen[id] = 0
		}
		ends, count, links, live := map[string]int{}, 0, 0, 0
		done := func() bool {
			for _, id := range ids {
				if ends[id] <= each {
					return false
				}
			}
			return true
		}
		over := s.dial(t)
		for !done() {
			after := o{}
			for id, seq := range seen {
				after[id] = seq
			}
			sub := over.subscribe(o{"after": after})
			links++
			for n := 0; n < 7 && !done(); {
				e, err := sub.next(endLimit)
				if err != nil {
					t.Fatalf("after %v: %v", seen, err)
				}
				if e.Durable == nil {
					live++
					continue
				}
				n++
				count++
				if e.seq() != seen[e.session()]+1 {
					t.Fatalf("session %s: event %d follows event %d", e.session(), e.seq(), seen[e.session()])
				}
				seen[e.session()] = e.seq()
				if e.Type == "session.prompt.promoted" || terminal(e.Type) {
					ends[e.session()]++
				}
			}
			// Half of the times with its connection, half of the times alone.
			if links%2 == 0 {
				sub.interrupt()
				continue
			}
			over.vanish()
			over = s.dial(t)
		}
		for _, id := range ids {
			c.idle(id)
		}
		t.Logf("%d recorded events over %d subscriptions, %d live ones", count, links, live)
	})
}

// Two sessions that work at once do not wait for each other, and a subscription
// to one hears nothing of the other.
func TestServerKeepsSessionsApart(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial(t)
	s.answers(t, "stands", mockmodel.Answer{mockmodel.Text{Text: "x"}, mockmodel.Hold{Name: "stands"}})
	a, b := c.create(o{}), c.create(o{})
	only := c.subscribe(o{"sessionId": b})
	c.prompt(a, "script=stands")
	s.reached(t, "stands")
	c.prompt(b, "mock=text:3")
	events := only.toEnd(t, b)
	if i := slices.IndexFunc(events, func(e event) bool { return e.session() != b }); i >= 0 {
		t.Errorf("a subscription to one session heard %s", events[i].raw)
	}
	inOrder(t, events)
	if got := c.call("server.info", o{}); at(got, "sessions", "busy") != "1" {
		t.Errorf("one works: %s", got)
	}
	s.model.Release("stands")
	c.idle(a)
}
