package main

import (
	"fmt"
	"strings"
	"testing"

	"codework/messages"
)

// told is one event in a short form: "12 TYPE MESSAGE TEXT", 0 for a live one.
type told struct {
	seq  int64
	kind string
	id   string
	text string
}

func stampText(n, of int) string { return fmt.Sprintf("@1700000000000000 %d/%d mock text ", n, of) }

func feed(c *checker, events ...told) {
	for _, e := range events {
		b := body{MessageID: e.id}
		switch e.kind {
		case messages.EventLLMTextDelta:
			b.Delta = &e.text
		case messages.EventLLMEnded:
			b.Message = &struct {
				Parts []struct {
					Type messages.PartType `json:"type"`
					Text string            `json:"text"`
				} `json:"parts"`
			}{}
			b.Message.Parts = append(b.Message.Parts, struct {
				Type messages.PartType `json:"type"`
				Text string            `json:"text"`
			}{messages.PartText, e.text})
		}
		c.event(messages.Event{Seq: e.seq, Type: e.kind}, b)
	}
}

const (
	delta   = messages.EventLLMTextDelta
	ended   = messages.EventLLMEnded
	begun   = messages.EventTurnStarted
	failed  = messages.EventLLMFailed
	durable = messages.EventPromptAdmitted
)

func TestWhatIsLostOrDoubledIsCounted(t *testing.T) {
	whole := stampText(1, 3) + stampText(2, 3) + stampText(3, 3)
	one, two, three := stampText(1, 3), stampText(2, 3), stampText(3, 3)
	for _, tt := range []struct {
		name   string
		events []told
		want   faults
	}{
		{"nothing", []told{{1, durable, "", ""}, {0, delta, "m", one}, {0, delta, "m", two}, {0, delta, "m", three}, {2, ended, "m", whole}}, faults{}},
		{"pieces that are cut elsewhere", []told{{0, delta, "m", one[:9]}, {0, delta, "m", one[9:] + two + three[:20]}, {0, delta, "m", three[20:]}, {1, ended, "m", whole}}, faults{}},
		{"a model that does not count", []told{{0, delta, "m", "hello "}, {0, delta, "m", "you"}, {1, ended, "m", "hello you"}}, faults{}},
		{"the first event", []told{{2, durable, "", ""}}, faults{LostEvents: 1}},
		{"events in the middle", []told{{1, durable, "", ""}, {5, durable, "", ""}}, faults{LostEvents: 3}},
		{"an event twice", []told{{1, durable, "", ""}, {2, durable, "", ""}, {1, durable, "", ""}, {3, durable, "", ""}}, faults{DoubledEvents: 1}},
		{"a piece in the middle", []told{{0, delta, "m", one}, {0, delta, "m", three}, {1, ended, "m", whole}}, faults{LostDeltas: 1, WrongTexts: 1}},
		{"the last pieces", []told{{0, delta, "m", one}, {1, ended, "m", whole}}, faults{LostDeltas: 2, WrongTexts: 1}},
		{"all pieces", []told{{1, ended, "m", whole}}, faults{WrongTexts: 1}},
		{"a piece twice", []told{{0, delta, "m", one}, {0, delta, "m", one}, {0, delta, "m", two}, {0, delta, "m", three}, {1, ended, "m", whole}}, faults{DoubledDeltas: 1, WrongTexts: 1}},
		{"an attempt that failed is not whole", []told{{0, delta, "m", one}, {1, failed, "m", ""}, {0, delta, "n", one}, {0, delta, "n", two}, {0, delta, "n", three}, {2, ended, "n", whole}}, faults{}},
		{"uncounted text that differs", []told{{0, delta, "m", "hello"}, {1, ended, "m", "hello you"}}, faults{WrongTexts: 1}},
	} {
		var c checker
		feed(&c, tt.events...)
		if c.faults != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, c.faults, tt.want)
		}
	}
}

// Behind a lost connection live events may be missing once; durable ones may
// not, and the next turn is whole again.
func TestAGapExcusesLiveEventsOnly(t *testing.T) {
	text := func(n int) (s string) {
		for i := range n {
			s += stampText(i+1, n)
		}
		return s
	}
	var c checker
	feed(&c, told{1, durable, "", ""}, told{0, delta, "m", stampText(1, 6)})
	c.gap()
	feed(&c, told{0, delta, "m", stampText(4, 6)}, told{0, delta, "m", stampText(5, 6)}, told{0, delta, "m", stampText(6, 6)}, told{2, ended, "m", text(6)})
	feed(&c, told{3, ended, "n", text(2)}) // all of it was in the gap
	if c.faults.any() {
		t.Fatalf("%+v", c.faults)
	}
	feed(&c, told{0, begun, "", ""}, told{0, delta, "o", stampText(2, 2)}, told{4, ended, "o", text(2)})
	if want := (faults{LostDeltas: 1, WrongTexts: 1}); c.faults != want {
		t.Errorf("%+v, want %+v", c.faults, want)
	}
	c = checker{}
	feed(&c, told{1, durable, "", ""}, told{0, delta, "m", stampText(1, 6)})
	c.gap()
	feed(&c, told{0, delta, "m", stampText(3, 6)}, told{0, delta, "m", stampText(5, 6)}, told{3, durable, "", ""})
	if want := (faults{LostDeltas: 1, LostEvents: 1}); c.faults != want {
		t.Errorf("a second hole: %+v, want %+v", c.faults, want)
	}
}

// However a text is cut into pieces, the same stamps are found in it, and what
// is kept for the next piece stays short.
func FuzzStampsDoNotDependOnTheCuts(f *testing.F) {
	f.Add(stampText(1, 2)+stampText(2, 2), 5)
	f.Add("@@1 @1700000000000000 1/1 mock text @", 3)
	f.Add("@"+strings.Repeat("9", 80)+" 1/1 mock text ", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size < 1 || size > 1<<10 {
			return
		}
		all := func(size int) (found []stamp) {
			pending := ""
			for at := 0; at < len(text); at += size {
				pending += text[at:min(at+size, len(text))]
				for {
					s, rest, ok := cutStamp(pending)
					pending = rest
					if !ok {
						break
					}
					found = append(found, s)
				}
				if len(pending) > maxStamp {
					t.Fatalf("%d bytes are kept", len(pending))
				}
			}
			return found
		}
		whole, cut := all(max(len(text), 1)), all(size)
		if fmt.Sprint(whole) != fmt.Sprint(cut) {
			t.Errorf("%v in one piece, %v in pieces of %d", whole, cut, size)
		}
	})
}
