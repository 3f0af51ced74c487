package providers_test

import (
	"strings"
	"testing"

	"codework/messages"
	"codework/providers"
	"codework/providers/internal/dialecttest"
)

// assemble runs f on an Assembler and holds what it emits to the contract.
func assemble(t *testing.T, f func(a *providers.Assembler)) dialecttest.Outcome {
	t.Helper()
	req := request("")
	var o dialecttest.Outcome
	f(providers.NewAssembler(req, strings.Repeat("0", 64), func(e messages.StreamEvent) {
		if e.Kind != messages.StreamTextDelta || len(o.Events) < 10 { // what is large is not kept
			o.Events = append(o.Events, e)
		}
	}))
	return o
}

func TestAnAnswerIsBounded(t *testing.T) {
	deltas := 0
	piece := strings.Repeat("x", 1<<20)
	o := assemble(t, func(a *providers.Assembler) {
		for !a.Ended() {
			a.Text(piece)
			deltas++
		}
	})
	if f := o.Failed(t); f.Type != messages.FailInvalidResponse || f.Retryable || deltas != 3 {
		t.Errorf("%+v after %d MiB", f, deltas)
	}
	o = assemble(t, func(a *providers.Assembler) {
		b := a.Begin(messages.Part{Type: messages.PartThinking})
		for !a.Ended() {
			a.Sign(b, piece)
		}
	})
	if f := o.Failed(t); f.Type != messages.FailInvalidResponse {
		t.Errorf("signatures: %+v", f)
	}
	blocks := 0
	o = assemble(t, func(a *providers.Assembler) {
		for !a.Ended() {
			a.End(a.Begin(messages.Part{Type: messages.PartText}))
			blocks++
		}
	})
	if f := o.Failed(t); f.Type != messages.FailInvalidResponse || blocks > 10_001 {
		t.Errorf("%+v after %d parts", f, blocks)
	}
}

func TestNothingComesAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(a *providers.Assembler){
		"done":   func(a *providers.Assembler) { a.Text("a"); a.Stop(messages.StopStop); a.Finish() },
		"failed": func(a *providers.Assembler) { a.Fail(&messages.Failure{Type: messages.FailTransport, Message: "x"}) },
	} {
		t.Run(name, func(t *testing.T) {
			count := -1
			req := request("")
			events := []messages.StreamEvent{}
			a := providers.NewAssembler(req, strings.Repeat("0", 64), func(e messages.StreamEvent) { events = append(events, e) })
			end(a)
			count = len(events)
			a.Start()
			a.Text("b")
			a.Thinking("c")
			a.SignThinking("d")
			b := a.Begin(messages.Part{Type: messages.PartToolCall, Name: "f"})
			a.Append(b, "{}")
			a.Named(b, "i", "n")
			a.End(b)
			a.Response("other", "")
			a.Usage(func(*messages.Usage, *providers.Billing) { t.Error("usage was taken") })
			a.Stop(messages.StopStop)
			a.Finish()
			a.Fail(&messages.Failure{Type: messages.FailStream, Message: "y"})
			if len(events) != count {
				t.Errorf("%+v", events[count:])
			}
			dialecttest.Check(t, req, events)
		})
	}
}

func TestAPartThatStaysBlankIsNone(t *testing.T) {
	o := assemble(t, func(a *providers.Assembler) {
		a.Text("\n")
		a.Thinking(" ")
		a.Text(" \n")
		a.Text("a")
		a.Thinking("")
		a.Text(" ")
		a.Stop(messages.StopStop)
		a.Finish()
	})
	m := o.Done(t)
	if len(m.Parts) != 1 || m.Parts[0].Text != " \na " {
		t.Errorf("%+v", m.Parts)
	}
}

func TestASignatureAloneMakesAPart(t *testing.T) {
	m := assemble(t, func(a *providers.Assembler) {
		a.SignThinking("sig")
		a.Text("a")
		a.Stop(messages.StopStop)
		a.Finish()
	}).Done(t)
	if len(m.Parts) != 2 || m.Parts[0].Type != messages.PartText || m.Parts[1].Signature != "sig" {
		t.Errorf("%+v", m.Parts)
	}
}

func TestAFailedAnswerTellsItsUsage(t *testing.T) {
	e := assemble(t, func(a *providers.Assembler) {
		a.Start()
		a.Response("r", "served")
		a.Usage(func(u *messages.Usage, _ *providers.Billing) { u.Input, u.Output = 5, 2 })
		a.Text("half")
		a.Fail(&messages.Failure{Type: messages.FailTransport, Message: "cut", Retryable: true})
	}).End()
	if m := e.Message; m.Usage == nil || m.Usage.TotalTokens != 7 || m.ResponseID != "r" || m.ResponseModel != "served" || m.ID != "answer" || len(m.Parts) != 0 {
		t.Errorf("%+v", m)
	}
}

func TestALongResponseIDIsStillTheSame(t *testing.T) {
	id := strings.Repeat("r", 1000)
	m := assemble(t, func(a *providers.Assembler) {
		a.Response(id, "")
		a.Text("a")
		a.Response(id, "")
		a.Stop(messages.StopStop)
		a.Finish()
	}).Done(t)
	if len(m.ResponseID) > 200 {
		t.Errorf("kept %d bytes of it", len(m.ResponseID))
	}
}
