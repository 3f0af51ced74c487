package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
	"codework/protocol/contract"
)

// pieceEvent is a delta as a session makes it.
func pieceEvent(session, message string, part int, text string) messages.Event {
	d := messages.EventData{Timestamp: 1, SessionID: session, MessageID: message, PartIndex: &part, Delta: &text}
	return messages.Event{ID: messages.NewEventID(), Type: messages.EventLLMTextDelta, Session: session, After: 1, Data: encode(d),
		Piece: pieceOf(messages.EventLLMTextDelta, &d, 0)}
}

func progressEvent(session, call, text string) messages.Event {
	d := messages.EventData{Timestamp: 1, SessionID: session, MessageID: "m", CallID: call, Partial: messages.TextResult(text, false)}
	return messages.Event{ID: messages.NewEventID(), Type: messages.EventToolProgress, Session: session, After: 1, Data: encode(d),
		Piece: pieceOf(messages.EventToolProgress, &d, 0)}
}

// unread takes everything that waits for a reader, as it would come over the wire.
func unread(t testing.TB, sub *subscription) []messages.Event {
	t.Helper()
	var out []messages.Event
	for {
		sub.mu.Lock()
		left := len(sub.queue)
		sub.mu.Unlock()
		if left == 0 {
			return out
		}
		batch, err := sub.next(soon(t), 256)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range batch {
			b, err := p.envelope()
			if err != nil {
				t.Fatal(err)
			}
			e, err := contract.DecodeEvent(b)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
	}
}

// TestJoinedPiecesSayTheSameInTheSameOrder publishes pieces of several sessions
// and parts, with other events between, to readers that read at random times.
// What each gets, with neighbours of one part written as one, must be what was
// published.
func TestJoinedPiecesSayTheSameInTheSameOrder(t *testing.T) {
	for round := range uint64(30) {
		rnd := rand.New(rand.NewPCG(round, 1))
		h := newHub(nil).(*hub)
		subs := []*subscription{newSubscription(""), newSubscription(""), newSubscription("ses_1")}
		for _, s := range subs {
			h.add(s)
		}
		boxes := map[string]*outbox{}
		var held []*published // in the hub's mailbox
		for i := range 3 {
			boxes[fmt.Sprint("ses_", i)] = &outbox{told: &position{}, publish: func(p []*published) { held = append(held, p...) }}
		}
		flat := func(events []messages.Event) map[string][]string {
			out := map[string][]string{}
			for _, e := range events {
				d, err := e.Decode()
				if err != nil {
					t.Fatal(err)
				}
				key, text := e.Type+" "+e.ID, ""
				if d.Delta != nil {
					key, text = fmt.Sprint(e.Type, d.MessageID, *d.PartIndex, "\x00"), *d.Delta
				}
				list := out[e.Session]
				if n := len(list); n > 0 && d.Delta != nil && strings.HasPrefix(list[n-1], key) {
					list[n-1] += text
				} else {
					list = append(list, key+text)
				}
				out[e.Session] = list
			}
			return out
		}
		var sent []messages.Event
		got := make([][]messages.Event, len(subs))
		for i := range 400 {
			id := fmt.Sprint("ses_", rnd.IntN(3))
			box := boxes[id]
			switch rnd.IntN(12) {
			case 0:
				e := event(id, 0)
				sent = append(sent, e)
				box.live(e)
			case 1: // a durable event goes to the disk and comes back some time later
				if len(box.waiting) < 2 {
					e := event(id, int64(i+1))
					sent = append(sent, e)
					box.add([]messages.Event{e}, nil)
				}
			case 2:
				if len(box.waiting) > 0 {
					box.committed()
				}
			case 3:
				h.Receive(nil, publish{held})
				held = nil
			case 4:
				which := rnd.IntN(len(subs))
				got[which] = append(got[which], unread(t, subs[which])...)
			default:
				text := []string{"a", "\"<é\\", "words ", "\u2028", "日"}[rnd.IntN(5)]
				e := pieceEvent(id, fmt.Sprint("m", rnd.IntN(2)), rnd.IntN(2), text)
				sent = append(sent, e)
				box.live(e)
			}
		}
		for _, box := range boxes {
			for len(box.waiting) > 0 {
				box.committed()
			}
		}
		h.Receive(nil, publish{held})
		want := flat(sent)
		for i, s := range subs {
			have := flat(append(got[i], unread(t, s)...))
			for id, list := range want {
				if s.session != "" && s.session != id {
					continue
				}
				if !slices.Equal(have[id], list) {
					t.Fatalf("round %d, reader %d, %s:\n%q\nwant\n%q", round, i, id, have[id], list)
				}
			}
			if s.joined != 0 || len(s.pieces) != 0 {
				t.Errorf("an empty queue counts %d joined bytes and %d pieces", s.joined, len(s.pieces))
			}
		}
	}
}

func TestPiecesThatWaitAreOneEvent(t *testing.T) {
	hub := spawnHub(t)
	slow, other := subscribeTo(t, hub, ""), subscribeTo(t, hub, "")
	const n = subscriberQueue/2 - 2 // of each: so many may wait for any time
	for i := range n {
		hub.Tell(publish{announce(pieceEvent("ses_a", "m", 0, fmt.Sprint(i, " ")), pieceEvent("ses_b", "m", 0, "b"))})
		if i == 0 {
			read(t, other, 2) // shared events are not changed by what a slow reader joins to them
		}
	}
	hub.Tell(publish{announce(event("ses_a", 1))})
	ask := subscribeTo(t, hub, "") // now all of that has been handed out
	hub.Tell(unsubscribe{ask})
	var want strings.Builder
	for i := range n {
		fmt.Fprint(&want, i, " ")
	}
	for _, sub := range []*subscription{slow, other} {
		var text strings.Builder
		if sub == other {
			text.WriteString("0 ") // which it has read
		}
		events := unread(t, sub)
		for _, e := range events {
			if d, err := e.Decode(); err != nil {
				t.Fatal(err)
			} else if d.Delta != nil && e.Session == "ses_a" {
				text.WriteString(*d.Delta)
			}
		}
		if text.String() != want.String() {
			t.Errorf("the text is another: %d bytes, want %d", text.Len(), want.Len())
		}
		if len(events) > 6 {
			t.Errorf("%d events", len(events))
		}
		if last := events[len(events)-1]; last.Seq != 1 {
			t.Errorf("the last event is a %s", last.Type)
		}
	}
}

func TestAReaderThatDoesNotReadKeepsABoundedMuchOfText(t *testing.T) {
	sub := newSubscription("")
	piece := strings.Repeat("x", 1000)
	n := 0
	for sub.offer(announce(pieceEvent("ses_a", "m", n/5000, piece))[0]) {
		if n++; n > 100*subscriberQueue {
			t.Fatal("it takes everything")
		}
	}
	size := 0
	for _, e := range unread(t, sub) {
		size += len(e.Data)
	}
	if most := subscriberJoined + 2*subscriberQueue*len(piece); size > most {
		t.Errorf("%d bytes wait, at most should %d", size, most)
	}
	var over *messages.SubscriptionOverflow
	if _, err := sub.next(soon(t), 1); !errors.As(err, &over) {
		t.Errorf("it ends with %v", err)
	}
}

func TestPiecesCountInAQueueFromWhichNothingIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled, slow := newSubscription(""), newSubscription("")
		// Half of what may wait comes joined by the session, the other half one
		// by one: each counts.
		write := func(n int) {
			for i := range n / 2 {
				e := pieceEvent("ses_a", "m", i/1000%2, "x")
				e.Piece.More = 1
				for _, sub := range []*subscription{stalled, slow} {
					sub.offer(announce(e)[0])
				}
			}
		}
		for range 10 {
			write(subscriberQueue)
			time.Sleep(stalledAfter / 2)
			if _, err := slow.next(t.Context(), 256); err != nil {
				t.Fatalf("a reader that takes something twice a second is cut off: %v", err)
			}
		}
		if events := unread(t, slow); len(events) > 0 || slow.grown != 0 || slow.joined != 0 {
			t.Errorf("%d events wait behind what was taken; it counts %d pieces of %d bytes", len(events), slow.grown, slow.joined)
		}
		unread(t, stalled)
		var over *messages.SubscriptionOverflow
		if _, err := stalled.next(t.Context(), 1); !errors.As(err, &over) {
			t.Errorf("a reader that takes nothing ends with %v", err)
		}
	})
}

func TestNewerProgressReplacesWhatWasNotRead(t *testing.T) {
	sub := newSubscription("")
	for i := range 2 * subscriberQueue {
		for _, call := range []string{"a", "a", "b"} {
			if !sub.offer(announce(progressEvent("ses_"+call, call, fmt.Sprint("look ", i)))[0]) {
				t.Fatal("it was cut off")
			}
		}
	}
	events := unread(t, sub)
	if len(events) != 2 {
		t.Fatalf("%d events wait", len(events))
	}
	for _, e := range events {
		if !strings.Contains(string(e.Data), fmt.Sprint("look ", 2*subscriberQueue-1)) {
			t.Errorf("it is not the last: %s", e.Data)
		}
	}
}

func delta(index int, text string) messages.StreamEvent {
	return messages.StreamEvent{Kind: messages.StreamTextDelta, Index: index, Delta: text}
}

func TestAnAnswerHasOneMessageInTheMailbox(t *testing.T) {
	told := 0
	h := &handover{ctx: t.Context(), tell: func() { told++ }}
	h.put(messages.StreamEvent{Kind: messages.StreamStart})
	for _, ev := range []messages.StreamEvent{delta(0, "a"), delta(0, "b"), delta(1, "c"), delta(1, "d"), {Kind: messages.StreamTextEnd, Index: 1}, delta(0, "e")} {
		h.put(ev)
	}
	if told != 1 {
		t.Errorf("announced %d times", told)
	}
	got := h.take()
	want := []messages.StreamEvent{{Kind: messages.StreamStart}, delta(0, "ab"), delta(1, "cd"), {Kind: messages.StreamTextEnd, Index: 1}, delta(0, "e")}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i].Kind != want[i].Kind || got[i].Index != want[i].Index || got[i].Delta != want[i].Delta {
			t.Errorf("event %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	h.put(delta(0, "f"))
	if again := h.take(); told != 2 || len(again) != 1 || again[0].Delta != "f" {
		t.Errorf("announced %d times, then %+v", told, again)
	}
}

// A session that is slow holds up the reading of its answer, which then goes on
// or ends with the turn.
func TestAnAnswerWaitsForItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &handover{ctx: ctx, tell: func() {}}
		piece := strings.Repeat("x", 1000)
		put := 0
		var model sync.WaitGroup
		model.Go(func() {
			for ctx.Err() == nil {
				h.put(delta(0, piece))
				put++
			}
		})
		synctest.Wait()
		if most := maxHandover/len(piece) + 1; put > most {
			t.Fatalf("%d pieces were taken, at most should %d", put, most)
		}
		before := put
		if got := h.take(); len(got) != 1 || len(got[0].Delta) != before*len(piece) {
			t.Errorf("%d events", len(got))
		}
		synctest.Wait()
		if put == before {
			t.Error("it did not go on")
		}
		h.put(messages.StreamEvent{Kind: messages.StreamDone}) // the end never waits
		cancel()
		model.Wait()
	})
}

func TestAStreamThatIsTooFastIsReadAtAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var p pace
		for range streamBurst {
			p.hold(t.Context())
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("the first pieces waited %s", d)
		}
		for range 2 * streamRate {
			p.hold(t.Context())
		}
		if d := time.Since(start); d < 2*time.Second-2*streamNap || d > 2*time.Second+streamNap {
			t.Errorf("two seconds' worth took %s", d)
		}
		time.Sleep(time.Hour) // a pause saves up next to nothing
		start = time.Now()
		for range streamRate {
			p.hold(t.Context())
		}
		if d := time.Since(start); d < time.Second-2*streamNap {
			t.Errorf("after a pause a second's worth took %s", d)
		}
		for range streamRate { // a usual model is not held up
			time.Sleep(time.Second / 500)
			before := time.Now()
			p.hold(t.Context())
			if time.Since(before) > 0 {
				t.Fatal("it waited")
			}
		}
	})
}

// An answer gives way before every piece but its first, and tells when it last did.
func TestAnAnswerGivesWayBehindItsFirstWord(t *testing.T) {
	var gave []time.Time
	h := &handover{ctx: t.Context(), tell: func() {}, giveWay: func(_ context.Context, last time.Time) time.Time {
		gave = append(gave, last)
		return last.Add(time.Second)
	}}
	for _, ev := range []messages.StreamEvent{{Kind: messages.StreamStart}, {Kind: messages.StreamTextStart}, delta(0, "a"), delta(0, "b"), delta(0, "c"), {Kind: messages.StreamTextEnd}, {Kind: messages.StreamDone}} {
		h.put(ev)
	}
	if want := []time.Time{{}, time.Time{}.Add(time.Second)}; !slices.Equal(gave, want) {
		t.Errorf("gave way at %v, want %v", gave, want)
	}
}
