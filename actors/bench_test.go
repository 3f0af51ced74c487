package actors

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"codework/internal/store"
	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// instantModel answers every request at once with n deltas.
type instantModel struct{ deltas int }

func (m instantModel) Stream(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
	go func() {
		emit(messages.StreamEvent{Kind: messages.StreamStart})
		emit(messages.StreamEvent{Kind: messages.StreamTextStart})
		for range m.deltas {
			emit(messages.StreamEvent{Kind: messages.StreamTextDelta, Delta: "word "})
		}
		text := strings.Repeat("word ", m.deltas)
		emit(messages.StreamEvent{Kind: messages.StreamTextEnd, Part: messages.Part{Type: messages.PartText, Text: text}})
		emit(messages.StreamEvent{Kind: messages.StreamDone, Message: &messages.Message{ID: req.MessageID,
			StopReason: messages.StopStop, Parts: []messages.Part{{Type: messages.PartText, Text: text}}}})
	}()
}

// BenchmarkTurn is one prompt and its answer behind a history of so many
// messages, without the provider's part. Its cost must not grow with the
// history.
func BenchmarkTurn(b *testing.B) {
	for _, history := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(history), func(b *testing.B) {
			r := newRig(b)
			r.with(func(x *Exchange) { x.Streamer = instantModel{4} })
			id := r.create()
			for range history / 2 {
				r.prompt(id, "a question of some words", messages.Steer)
				r.wait(id)
			}
			b.ReportAllocs()
			for b.Loop() {
				r.prompt(id, "a question of some words", messages.Steer)
				r.wait(id)
			}
		})
	}
}

// TestTheCostOfATurnDoesNotGrowWithItsHistory compares what is allocated,
// which a busy machine does not change.
func TestTheCostOfATurnDoesNotGrowWithItsHistory(t *testing.T) {
	r := newRig(t)
	r.with(func(x *Exchange) { x.Streamer = instantModel{4} })
	id := r.create()
	turn := func() {
		r.prompt(id, "a question of some words", messages.Steer)
		r.wait(id)
	}
	early := testing.AllocsPerRun(50, turn)
	for range 300 {
		turn()
	}
	late := testing.AllocsPerRun(50, turn)
	if late > 1.3*early {
		t.Errorf("a turn behind 700 messages makes %v allocations, behind 100 it makes %v", late, early)
	}
}

// BenchmarkEventPath is the way of a delta from the provider to a client that
// is connected inside the process.
func BenchmarkEventPath(b *testing.B) { eventPath(b, newRig(b)) }

func eventPath(b *testing.B, r *rig) {
	c := r.dial(b, false)
	until := awaiting(b, c, object{})
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(b)
	a.start()
	a.emit(messages.StreamEvent{Kind: messages.StreamTextStart})
	until(messages.EventLLMTextStart)
	b.ReportAllocs()
	for b.Loop() {
		a.emit(messages.StreamEvent{Kind: messages.StreamTextDelta, Delta: "word "})
		until(messages.EventLLMTextDelta)
	}
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "x"})
	r.wait(id)
}

// awaiting subscribes, and returns what reads events up to one of a type.
func awaiting(b *testing.B, c *effectrpc.Client, payload object) (until func(kind string)) {
	s, err := c.Stream(context.Background(), contract.EventSubscribe, payload) // ends with the connection
	if err != nil {
		b.Fatal(err)
	}
	return func(kind string) {
		for {
			raw, err := s.Next(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			e, err := contract.DecodeEvent(raw)
			if err != nil {
				b.Fatal(err)
			}
			if e.Type == kind {
				return
			}
		}
	}
}

// BenchmarkLongAnswer is the end of an answer of 1.6 MB with a reader of its
// events, and a store in a folder: what others of the process wait for.
func BenchmarkLongAnswer(b *testing.B) {
	r := newRigOn(b, store.Options{Dir: b.TempDir()}, nil)
	text := strings.Repeat("40 characters that differ from nobody's.", 40_000)
	c := r.dial(b, false)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		id := r.create()
		until := awaiting(b, c, object{"sessionId": id})
		until(messages.EventConnected)
		r.prompt(id, "go", messages.Steer)
		a := r.model.next(b)
		a.start()
		a.text("word ")
		until(messages.EventLLMTextDelta)
		b.StartTimer()
		part := messages.Part{Type: messages.PartText, Text: text}
		a.emit(messages.StreamEvent{Kind: messages.StreamTextEnd, Part: part})
		a.done(messages.StopStop, part)
		until(messages.EventExecutionSucceeded)
		b.StopTimer()
		r.wait(id)
		b.StartTimer()
	}
}
