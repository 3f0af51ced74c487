package actors

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"codework/internal/tools"
	"codework/messages"
)

func TestSightsOfTheLastSessionsAreKept(t *testing.T) {
	var s sights
	first, second := s.of("first"), s.of("second")
	if s.of("first") != first || s.of("second") != second || first == second {
		t.Fatal("two sessions have the same, or one has two")
	}
	for i := range sightsKept - 1 {
		s.of(fmt.Sprint(i))
		if s.of("second") != second { // the newest each time
			t.Fatalf("forgotten after %d others", i+1)
		}
	}
	if s.of("first") == first {
		t.Error("the oldest was not forgotten")
	}
	if len(s.known) != sightsKept || len(s.order) != sightsKept {
		t.Errorf("%d are known, %d in order", len(s.known), len(s.order))
	}
}

// A session that was unloaded between two turns still knows what it has read.
func TestASessionThatComesBackKnowsWhatItHasSeen(t *testing.T) {
	seen := make(chan *tools.Seen, 2)
	r := newRig(t, tools.Tool{Name: "look", Schema: json.RawMessage(`{"type":"object"}`),
		Run: func(_ context.Context, c tools.Context, _ json.RawMessage) (messages.ToolResult, error) {
			seen <- c.Seen
			return messages.TextResult("seen", false), nil
		}})
	id := r.create()
	for range 2 {
		r.prompt(id, "look", messages.Steer)
		r.model.next(t).call(toolCall("c", "look", "{}"))
		r.model.next(t).answer("done")
		r.wait(id)
		r.system.guardian.Tell(retireSession{id})
		for deadline := time.Now().Add(within); len(r.inMemory()) > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it stays in memory")
			}
		}
	}
	if first := <-seen; first == nil || <-seen != first {
		t.Error("what it had seen is forgotten")
	}
}
