package actors

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"codework/internal/store"
	"codework/messages"
)

// oddTexts are those that a log says in another way, or that look like something
// else.
var oddTexts = []string{"", "", "heron", "<b>&</b>", "\u2028", "\x00", "\xff\xfe", "a\xc3", "😀", "\"\\\n", strings.Repeat("long ", 200)}

// fill makes a value at random, the fields that have no JSON form left out.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(oddTexts[r.IntN(len(oddTexts))])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int64:
		v.SetInt(r.Int64N(1<<40) * int64(r.IntN(3)-1) >> r.IntN(41))
	case reflect.Float64:
		v.SetFloat(r.Float64() * float64(r.IntN(2)))
	case reflect.Pointer:
		if depth > 0 && r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), depth-1)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte([]string{"", "null", `{"a": [1, "<" ]}`, `"\u2028"`}[r.IntN(4)]))
			return
		}
		if n := r.IntN(4) - 1; n >= 0 && depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(r, v.Index(i), depth-1)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") != "-" {
				fill(r, v.Field(i), depth)
			}
		}
	default:
		panic("a field of a kind that is new: " + v.Type().String())
	}
}

// An entry comes out of a checkpoint as it comes out of the log, whatever is in
// it: also in a field that is new.
func TestAnEntryInACheckpointIsThatOfTheLog(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var m, logged, kept messages.Message
		fill(r, reflect.ValueOf(&m).Elem(), 4)
		if err := json.Unmarshal(encodeAny(t, m), &logged); err != nil {
			t.Fatal(err)
		}
		var p packer
		p.entry(&m)
		u := unpacker{s: string(p.b)}
		if u.entry(&kept); u.bad || u.left() > 0 || !reflect.DeepEqual(kept, logged) {
			t.Fatalf("%+v\nis in the log\n%+v\nin the checkpoint (%t, %d left)\n%+v", m, logged, u.bad, u.left(), kept)
		}
		if len(p.b) < entryLeast {
			t.Fatalf("an entry of %d bytes", len(p.b))
		}
	}
}

func encodeAny(tb testing.TB, v any) json.RawMessage {
	b, err := messages.JSON(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// story draws the events of a session: such as happen, and some that do not.
func story(t *rapid.T, n int) (all []record) {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 7))
	var waiting []messages.EventData
	var calls []string
	message, ids := messages.Message{}, 0
	text := func() string { return oddTexts[r.IntN(len(oddTexts))] }
	id := func() string { ids++; return fmt.Sprint("id-", ids) }
	add := func(kind string, d messages.EventData) {
		d.Timestamp = int64(1000 + r.IntN(1000))
		all = append(all, record{kind, d})
	}
	for len(all) < n {
		switch r.IntN(10) {
		case 0, 1:
			d := messages.EventData{MessageID: id(), Prompt: &messages.PromptBody{Text: text()}, Delivery: messages.Steer}
			fill(r, reflect.ValueOf(&d.Prompt.Parts).Elem(), 2)
			waiting = append(waiting, d)
			add(messages.EventPromptAdmitted, d)
		case 2, 3:
			if len(waiting) > 0 {
				i := r.IntN(len(waiting))
				d := waiting[i]
				waiting = append(waiting[:i:i], waiting[i+1:]...)
				if r.IntN(4) == 0 {
					add(messages.EventPromptRemoved, messages.EventData{MessageID: d.MessageID})
					break
				}
				d.Title = text()
				add(messages.EventPromptPromoted, d)
			}
		case 4:
			add(messages.EventExecutionStarted, messages.EventData{})
		case 5:
			kinds := []string{messages.EventExecutionSucceeded, messages.EventExecutionFailed, messages.EventExecutionInterrupted}
			add(kinds[r.IntN(3)], messages.EventData{Recovered: r.IntN(2) == 0})
		case 6, 7:
			message, calls = messages.Message{}, nil
			fill(r, reflect.ValueOf(&message).Elem(), 4)
			message.ID = id()
			for i := range message.Parts {
				if p := &message.Parts[i]; r.IntN(2) == 0 {
					p.Type, p.CallID = messages.PartToolCall, id()
					calls = append(calls, p.CallID)
				}
			}
			kind := messages.EventLLMEnded
			if r.IntN(3) == 0 {
				kind = messages.EventLLMStarted
			}
			m := message
			add(kind, messages.EventData{MessageID: m.ID, Message: &m})
		case 8:
			if len(calls) > 0 {
				d := messages.EventData{MessageID: message.ID, CallID: calls[0], Part: &messages.Part{}}
				fill(r, reflect.ValueOf(d.Part).Elem(), 3)
				d.Part.Type, d.Part.CallID = messages.PartToolCall, calls[0]
				calls = calls[1:]
				add(messages.EventToolSettled, d)
				break
			}
			m := message
			m.State = messages.EntryAborted
			add(messages.EventLLMFailed, messages.EventData{MessageID: m.ID, Message: &m})
		case 9:
			add(messages.EventTurnEnded, messages.EventData{MessageID: message.ID})
		}
	}
	return all
}

// Checkpoints at any positions and the events behind them say what all events
// say.
func TestCheckpointsAndTheRestAreTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := story(t, rapid.IntRange(1, 40).Draw(t, "events"))
		rec := messages.SessionRecord{ID: "ses_a", Title: "A", TitleSet: rapid.Bool().Draw(t, "title set")}
		led := newLedger(rec)
		var events []messages.Event
		var list []store.Checkpoint
		for i, r := range records {
			e := messages.Event{Type: r.kind, Seq: led.seq + 1, Data: encode(r.data)}
			if err := led.apply(e, r.data); err != nil {
				t.Fatal(err)
			}
			events = append(events, e)
			if rapid.IntRange(0, 9).Draw(t, "checkpoint") == 0 || i == len(records)-1 {
				list = append(list, *led.checkpoint())
			}
		}
		whole := newLedger(rec)
		if err := whole.applyAll(events); err != nil {
			t.Fatal(err)
		}
		for n := range len(list) + 1 {
			l, err := fromCheckpoints(rec, list[:n])
			if err == nil {
				err = l.applyAll(events[l.seq:])
			}
			if err != nil || !l.same(whole) {
				t.Fatalf("%d checkpoints, %v: they say\n%+v\nthe log says\n%+v", n, err, l, whole)
			}
		}
	})
}

// FuzzCheckpoint: no bytes make it panic, or take more room than a multiple of
// them; what is read can be written and read again.
func FuzzCheckpoint(f *testing.F) {
	led := newLedger(messages.SessionRecord{ID: "ses_a"})
	led.add(messages.Message{ID: "m", Role: messages.RoleAssistant, Usage: &messages.Usage{Input: 1}, Failure: &messages.Failure{Type: "x"},
		Parts: []messages.Part{{Type: messages.PartToolCall, CallID: "c", Result: &messages.ToolResult{Content: []messages.Part{{Type: messages.PartText, Text: "heron"}}}}}})
	good := led.checkpoint().Data
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte{foldVersion, 2, '{', '}', 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := fromCheckpoints(messages.SessionRecord{}, []store.Checkpoint{{Seq: 1, Data: data}})
		if err != nil {
			return
		}
		l.kept = 0
		again, err := fromCheckpoints(messages.SessionRecord{}, []store.Checkpoint{*l.checkpoint()})
		if err != nil || len(again.entries) != len(l.entries) {
			t.Errorf("%v: %d entries, then %d", err, len(l.entries), len(again.entries))
		}
	})
}

// A session that comes back reads its checkpoints and the end of its log, and is
// what it was.
func TestALongSessionComesBackFromItsCheckpoints(t *testing.T) {
	r := newRig(t)
	r.with(func(x *Exchange) { x.Streamer = instantModel{1} })
	id := r.create()
	for i := range 20 {
		r.prompt(id, fmt.Sprint("question ", i), messages.Steer)
		r.wait(id)
	}
	snap, err := r.store.Recall(r.ctx, id)
	if err != nil || len(snap.Checkpoints) < 10 || len(snap.Events) > 10 {
		t.Fatalf("%d checkpoints and %d events, %v", len(snap.Checkpoints), len(snap.Events), err)
	}
	before := r.ledger(id) // compares
	r.down()
	r.boot()
	old := r.prompt(id, "once more", messages.Steer)
	r.wait(id)
	if l := r.ledger(id); len(l.entries) != len(before.entries)+2 || l.record.Turns != before.record.Turns+1 {
		t.Errorf("%d entries and %d turns behind %d and %d", len(l.entries), l.record.Turns, len(before.entries), before.record.Turns)
	}
	// Prompts that were admitted before the checkpoint are known.
	first := before.entries[0].ID
	same := messages.Prompt{SessionID: id, ID: first, Text: "question 0", Delivery: messages.Steer}
	if _, err := r.to(id, same); err != nil {
		t.Errorf("the same prompt again: %v", err)
	}
	same.Text = "another question"
	if _, err := r.to(id, same); err == nil {
		t.Error("another prompt was taken with the id of an old one")
	}
	if v, err := r.to(id, messages.HasMessage{SessionID: id, MessageID: first}); err != nil || !v.(messages.Found).Found {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := r.to(id, messages.GetHistory{SessionID: id, Limit: 500}); err != nil || len(v.(messages.History).Entries) != 42 || v.(messages.History).Entries[40].ID != old {
		t.Errorf("%v, %v", v, err)
	}
}

// A checkpoint that says something else than the log is found by session check,
// and made anew.
func TestACheckpointThatSaysSomethingElseIsFoundAndMended(t *testing.T) {
	r := newRig(t)
	r.with(func(x *Exchange) { x.Streamer = instantModel{1} })
	id := r.create()
	for range 5 {
		r.prompt(id, "a question", messages.Steer)
		r.wait(id)
	}
	check := func(repair bool) []messages.Finding {
		t.Helper()
		v, err := Ask[messages.Findings](r.ctx, r.system.guardian, messages.Check{SessionID: id, Repair: repair})
		if err != nil {
			t.Fatal(err)
		}
		return v.Findings
	}
	if f := check(false); len(f) > 0 {
		t.Fatalf("%+v", f)
	}
	led, _, err := readLedger(r.ctx, r.store, id)
	if err != nil {
		t.Fatal(err)
	}
	led.entries[3].Parts[0].Text = "never said"
	if err := commit(r.ctx, r.store, store.Batch{Session: id, Checkpoint: led.checkpoint()}); err != nil {
		t.Fatal(err)
	}
	for _, repair := range []bool{false, true} {
		if f := check(repair); len(f) != 1 || f[0].Code != "checkpoint" || f[0].Repaired != repair || !strings.Contains(f[0].Detail, "something else than the log") {
			t.Errorf("repair %t: %+v", repair, f)
		}
	}
	if f := check(false); len(f) > 0 {
		t.Errorf("after the repair: %+v", f)
	}
	r.ledger(id) // compares
	// Another version of the fold is no fault: it is made anew.
	c := led.checkpoint()
	c.After, c.Data[0] = 0, 0xfe
	if err := commit(r.ctx, r.store, store.Batch{Session: id, Checkpoint: c}); err != nil {
		t.Fatal(err)
	}
	if f := check(false); len(f) > 0 {
		t.Errorf("of another version: %+v", f)
	}
	r.ledger(id) // compares: the log is read instead
}

// longSession is a store on disk with a session of n answered prompts, written as
// a session writes them, with checkpoints or without. It is read from tables, as
// after a start.
func longSession(tb testing.TB, n int, checkpoints bool) *store.Store {
	dir := tb.TempDir()
	open := func() *store.Store {
		st, err := store.Open(context.Background(), store.Options{Dir: dir})
		if err != nil {
			tb.Fatal(err)
		}
		return st
	}
	st := open()
	rec := messages.SessionRecord{ID: "ses_long", Title: "Long", Directory: "/"}
	led := newLedger(rec)
	if err := commit(context.Background(), st, store.Batch{Session: rec.ID, Record: &rec}); err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 3*n)
	at := int64(1_700_000_000_000)
	write := func(records ...record) {
		b := store.Batch{Session: rec.ID}
		for _, r := range records {
			at++
			r.data.Timestamp, r.data.SessionID = at, rec.ID
			e := messages.Event{ID: messages.NewEventID(), Type: r.kind, Session: rec.ID, Seq: led.seq + 1, Data: encode(r.data)}
			if err := led.apply(e, r.data); err != nil {
				tb.Fatal(err)
			}
			b.Events = append(b.Events, e)
		}
		if checkpoints && led.due(checkpointEvents) {
			b.Checkpoint = led.checkpoint()
		}
		st.Append(b, func(err error) { done <- err })
	}
	for i := range n {
		body := messages.PromptBody{Text: fmt.Sprintf("Look at bed %d of the garden and tell what grows there", i)}
		p := messages.EventData{MessageID: messages.NewMessageID(), Prompt: &body, Delivery: messages.Steer}
		write(record{messages.EventPromptAdmitted, p})
		write(record{messages.EventExecutionStarted, messages.EventData{}}, record{messages.EventPromptPromoted, p})
		m := messages.Message{ID: messages.NewMessageID(), Role: messages.RoleAssistant, State: messages.EntryDraft, Provider: "load", Protocol: "openai-compatible",
			Model: "mock-model", ResponseModel: "mock-model", ResponseID: fmt.Sprintf("chatcmpl-%d", i), StopReason: messages.StopStop, Timestamp: at,
			Parts: []messages.Part{{Type: messages.PartText, Text: fmt.Sprintf("In bed %d there are leeks, and a heron.", i)}}, Usage: &messages.Usage{Input: 100, Output: 20, TotalTokens: 120}}
		begun := m
		begun.Parts = []messages.Part{}
		write(record{messages.EventLLMStarted, messages.EventData{MessageID: m.ID, Message: &begun}},
			record{messages.EventLLMEnded, messages.EventData{MessageID: m.ID, Message: &m}}, record{messages.EventTurnEnded, messages.EventData{MessageID: m.ID}},
			record{messages.EventExecutionSucceeded, messages.EventData{}})
	}
	for range 3 * n {
		if err := <-done; err != nil {
			tb.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		tb.Fatal(err)
	}
	st = open()
	tb.Cleanup(func() {
		if err := st.Close(); err != nil {
			tb.Error(err)
		}
	})
	return st
}

// BenchmarkRead is what a session of 10,000 entries costs that comes back into
// memory, from its log alone and with checkpoints.
func BenchmarkRead(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(map[bool]string{false: "log", true: "checkpoints"}[with], func(b *testing.B) {
			st := longSession(b, 5000, with)
			b.ReportAllocs()
			for b.Loop() {
				led, _, err := recall(context.Background(), st, "ses_long")
				if err != nil || len(led.entries) != 10_000 {
					b.Fatal(len(led.entries), err)
				}
			}
		})
	}
}
