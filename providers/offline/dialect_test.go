package offline

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"codework/messages"
)

// kinds is a stream without what its events carry, runs of deltas as one.
func kinds(events []messages.StreamEvent) (ks []messages.StreamKind) {
	for _, e := range events {
		if len(ks) == 0 || ks[len(ks)-1] != e.Kind {
			ks = append(ks, e.Kind)
		}
	}
	return ks
}

func prompt(text string) []messages.Message {
	return []messages.Message{{ID: "u1", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: text}}}}
}

func TestTextComesInSeveralDeltas(t *testing.T) {
	s := &session{t: t, tools: defaultTools, history: prompt("hello")}
	events := stream1(context.Background(), s.req())
	want := []messages.StreamKind{
		messages.StreamStart, messages.StreamTextStart, messages.StreamTextDelta, messages.StreamTextEnd, messages.StreamDone,
	}
	if got := kinds(events); !reflect.DeepEqual(got, want) {
		t.Fatalf("kinds %v", got)
	}
	var text strings.Builder
	n := 0
	for _, e := range events {
		if e.Kind == messages.StreamTextDelta {
			text.WriteString(e.Delta)
			n++
			if e.Delta == "" || e.Index != 0 {
				t.Errorf("%+v", e)
			}
		}
	}
	m := events[len(events)-1].Message
	if n < 5 || text.String() != m.Parts[0].Text || text.String() != events[len(events)-2].Part.Text {
		t.Errorf("%d deltas, %q", n, text.String())
	}
	if m.ID != "a-1" || m.Role != messages.RoleAssistant || m.State != messages.EntryDraft || m.StopReason != messages.StopStop ||
		m.Provider != "offline" || m.Protocol != "offline" || m.Model != "guide" || m.Timestamp == 0 {
		t.Errorf("%+v", m)
	}
	if u := m.Usage; u.Input == 0 || u.Output != tokens(text.Len()) || u.TotalTokens != u.Input+u.Output || u.Cost.Total != 0 {
		t.Errorf("%+v", u)
	}
}

func TestCallsAreStreamedWithTheirArguments(t *testing.T) {
	s := &session{t: t, tools: defaultTools, history: prompt("git status")}
	events := stream1(context.Background(), s.req())
	want := []messages.StreamKind{
		messages.StreamStart,
		messages.StreamCallStart, messages.StreamCallDelta, messages.StreamCallEnd,
		messages.StreamCallStart, messages.StreamCallDelta, messages.StreamCallEnd,
		messages.StreamDone,
	}
	if got := kinds(events); !reflect.DeepEqual(got, want) {
		t.Fatalf("kinds %v", got)
	}
	arguments := map[int]string{}
	for _, e := range events {
		switch e.Kind {
		case messages.StreamCallDelta:
			arguments[e.Index] += e.Delta
		case messages.StreamCallEnd:
			if e.Part.Arguments != arguments[e.Index] || e.Part.Call != messages.CallPending || !json.Valid([]byte(e.Part.Arguments)) {
				t.Errorf("%+v", e)
			}
		}
	}
	m := events[len(events)-1].Message
	if m.StopReason != messages.StopToolUse || len(m.Parts) != 2 || m.Parts[0].CallID == m.Parts[1].CallID {
		t.Errorf("%+v", m)
	}
}

func TestSameConversationGivesTheSameStream(t *testing.T) {
	stream := func() []messages.StreamEvent {
		s := &session{t: t, tools: defaultTools, history: prompt("Summarize the open TODOs")}
		events := stream1(context.Background(), s.req())
		events[len(events)-1].Message.Timestamp = 0
		return events
	}
	if a, b := stream(), stream(); !reflect.DeepEqual(a, b) {
		t.Errorf("%+v\n%+v", a, b)
	}
}

func TestDigestIsThatOfTheConversation(t *testing.T) {
	s := &session{t: t, tools: defaultTools, history: prompt("hello")}
	req := s.req()
	sum := func() string { return stream1(context.Background(), req)[0].RequestDigest }
	first := sum()
	if len(first) != 64 || sum() != first {
		t.Errorf("%q, then %q", first, sum())
	}
	req.Cache = nil
	if sum() != first {
		t.Error("another digest without the cache")
	}
	req.Messages = append(req.Messages, messages.Message{ID: "u2", Role: messages.RoleUser})
	if sum() == first {
		t.Error("the same digest with another message")
	}
	req.Messages = req.Messages[:1]
	req.System = "other"
	if sum() == first {
		t.Error("the same digest with another system prompt")
	}
}

func TestConversationWithoutAJSONFormIsAFailure(t *testing.T) {
	s := &session{t: t, tools: defaultTools, history: prompt("hello")}
	req := s.req()
	req.Tools[0].Schema = json.RawMessage("{")
	events := stream1(context.Background(), req)
	if len(events) != 1 || events[0].Kind != messages.StreamError || events[0].Failure.Type != messages.FailContextEncode {
		t.Errorf("%+v", events)
	}
}

func TestStopEndsTheStreamAtOnce(t *testing.T) {
	for stopAt := range 6 {
		ctx, cancel := context.WithCancel(context.Background())
		if stopAt == 0 {
			cancel()
		}
		s := &session{t: t, tools: defaultTools, history: prompt("hello")}
		var events []messages.StreamEvent
		Dialect{}.Stream(ctx, nil, s.req(), func(e messages.StreamEvent) {
			if events = append(events, e); len(events) == stopAt {
				cancel()
			}
		})
		cancel()
		last := events[len(events)-1]
		if len(events) != stopAt+1 || last.Kind != messages.StreamError || last.Failure == nil || last.Message.Parts != nil {
			t.Errorf("stopped after %d events: %d events, the last %+v", stopAt, len(events), last)
		}
	}
}

func TestDeltasKeepEveryByte(t *testing.T) {
	for _, text := range []string{"", "a", strings.Repeat("word ", 100), strings.Repeat("é", 500), strings.Repeat("世 界\n", 60)} {
		var parts []string
		for d := range deltas(text) {
			parts = append(parts, d)
		}
		if strings.Join(parts, "") != text {
			t.Errorf("%q became %q", text, parts)
		}
		for _, p := range parts {
			if strings.ToValidUTF8(p, "") != p {
				t.Errorf("%q was cut within a character", text)
			}
		}
	}
}
