package actors

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"codework/messages"
)

// stage is where an execution stands. What arrives for another stage, or for
// an older turn, is dropped.
type stage uint8

const (
	preparing  stage = iota // the exchange is being captured
	requesting              // the request waits for the disk, or for its first event
	streaming
	retrying
	calling
)

// execution is one busy period.
type execution struct {
	turn   uint64 // generation of the running step
	stage  stage
	ctx    context.Context // of the running step
	cancel context.CancelFunc
	forced bool // resumed: there may be no prompt to promote
	// recorded, if not nil, is closed when the beginning is on disk.
	recorded chan struct{}

	ex      *Exchange
	over    context.CancelFunc // ends what was opened for the exchange
	attempt int                // failed attempts of the running turn
	begins  bool               // the exchange has not promoted anything yet
	bound   map[string]bool    // connections whose prompts the exchange works on
	prompts map[string]bool    // what was promoted since the execution began
	inTurn  bool               // turn.started was told, its end was not
	begun   time.Time          // when it was
	spoken  bool               // the model has said something since

	messageID string
	partial   []partialPart
	calls     []*call
	reason    messages.InterruptReason // why it is being stopped
	barrier   uint64                   // results before this mark are on disk before the next request
}

// partialPart is a part that is still being streamed.
type partialPart struct {
	part messages.Part
	text strings.Builder
}

// Messages that an execution sends itself.
type (
	prepared struct {
		turn uint64
		ex   *Exchange
		err  error
	}
	streamed struct {
		turn uint64
		from *handover
	}
	retryDue struct{ turn uint64 }
)

// step begins a new step of the execution: everything under way for the old
// one is cancelled and its late answers will be dropped.
func (s *session) step(st stage) *execution {
	x := s.exec
	if x.cancel != nil {
		x.cancel()
	}
	x.turn, x.stage = nextGeneration(), st
	x.ctx, x.cancel = context.WithCancel(s.me.Context())
	s.tellDoing()
	return x
}

// start begins a busy period.
func (s *session) start(forced bool) {
	if !forced && len(s.led.next(true)) == 0 {
		return
	}
	s.phase, s.wake = busy, false
	s.exec = &execution{forced: forced, prompts: map[string]bool{}}
	var then func(error)
	if s.led.crashes > 0 {
		// Work that ends the process before its beginning is on disk would not
		// count as a crash, and begin for ever.
		recorded := make(chan struct{})
		s.exec.recorded, then = recorded, func(error) { close(recorded) }
	}
	s.append(write{}, then, record{messages.EventExecutionStarted, messages.EventData{}})
	s.tellState()
	s.beginExchange()
}

// beginExchange captures settings, model, tools and system prompt afresh.
func (s *session) beginExchange() {
	if len(s.led.next(true)) == 0 && (!s.exec.forced || s.led.finished()) {
		s.finish(messages.EventExecutionSucceeded, messages.EventData{})
		return
	}
	x := s.step(preparing)
	x.ex, x.begins, x.bound, x.attempt = nil, true, map[string]bool{}, 0
	x.endExchange()
	q := ExchangeQuery{Session: s.led.record, World: s.world}
	q.Ends, x.over = context.WithCancel(s.me.Context())
	turn, ctx, recorded, trace := x.turn, x.ctx, x.recorded, s.trace.Prepare()
	s.me.Go(func(context.Context) any {
		if recorded != nil {
			select {
			case <-recorded:
			case <-ctx.Done():
			}
		}
		defer s.begins.enter(ctx)()
		ctx, over := trace(ctx)
		ex, err := s.prepare.Prepare(ctx, q)
		over(err)
		return prepared{turn, ex, err}
	})
}

// endExchange lets go of what was opened for the exchange that has ended.
func (x *execution) endExchange() {
	if x.over != nil {
		x.over()
	}
}

func (s *session) onExecution(m any) {
	x := s.exec
	if x == nil {
		return
	}
	switch m := m.(type) {
	case prepared:
		if m.turn == x.turn && s.phase == busy {
			s.onPrepared(m)
		}
	case streamed:
		for _, ev := range m.from.take() {
			if s.exec != x || m.turn != x.turn || s.phase != busy {
				break
			}
			s.onStream(ev)
		}
	case retryDue:
		if m.turn == x.turn && s.phase == busy {
			s.attempt()
		}
	case callProgress:
		if m.turn == x.turn {
			s.onProgress(m)
		}
	case callDone:
		if m.turn == x.turn {
			s.onCallDone(m)
		}
	}
}

func (s *session) onPrepared(m prepared) {
	if m.err != nil {
		s.fail(asFailure(m.err))
		return
	}
	s.exec.ex = m.ex
	s.keepJobs = m.ex.Background
	for _, n := range m.ex.Notices {
		s.notice(n)
	}
	s.attempt()
}

// notice tells the user something once in the session's life in memory.
func (s *session) notice(text string) {
	if !s.told[text] {
		s.told[text] = true
		s.live(messages.EventNotice, messages.EventData{Severity: "warning", Text: text})
	}
}

// attempt promotes what waits and sends one request.
func (s *session) attempt() {
	x := s.step(requesting)
	var promoted []record
	for _, in := range s.led.next(x.begins) {
		d := messages.EventData{MessageID: in.id, Prompt: &in.body, Delivery: in.delivery}
		if !s.led.record.TitleSet && len(promoted) == 0 {
			d.Title = messages.TitleFrom(in.body.Words())
		}
		s.trace.Promoted(in.id, in.delivery, time.UnixMilli(in.at))
		x.prompts[in.id] = true
		if conn := s.bound[in.id]; conn != "" {
			x.bound[conn] = true
		}
		promoted = append(promoted, record{messages.EventPromptPromoted, d})
	}
	if x.begins && len(promoted) == 0 && (!x.forced || s.led.finished()) {
		// What waited was taken back meanwhile.
		s.finish(messages.EventExecutionSucceeded, messages.EventData{})
		return
	}
	x.begins, x.forced = false, false
	if len(promoted) > 0 {
		title := s.led.record.Title
		s.append(write{record: true}, nil, promoted...)
		s.tellState()
		if s.led.record.Title != title {
			info := s.info()
			s.live(messages.EventSessionUpdated, messages.EventData{Session: &info})
		}
	}
	x.messageID = messages.NewMessageID()
	x.partial, x.calls = nil, nil
	x.inTurn = true
	s.live(messages.EventTurnStarted, messages.EventData{})
	turn, over := x.turn, s.trace.Wait()
	s.out.whenDurable(x.barrier, func(err error) {
		over()
		if err == nil && s.exec == x && x.turn == turn {
			s.send()
		}
	})
}

func (s *session) send() {
	x := s.exec
	n := len(s.led.entries)
	if !x.ex.Model.AcceptsImages() && s.led.showsImage() {
		s.notice(x.ex.Model.Ref().String() + " reads no images; it is told that there was one")
	}
	req := &messages.Request{
		SessionID: s.id, MessageID: x.messageID, Model: x.ex.Model, APIKey: x.ex.APIKey, Login: x.ex.Login, System: x.ex.System,
		Messages: s.led.entries[:n:n], Tools: x.ex.Tools.Definitions(), Thinking: x.ex.Thinking,
		Options: x.ex.Options, Blob: s.store.Blob, Cache: s.cache,
	}
	turn, tell := x.turn, s.me.Later()
	h := &handover{ctx: x.ctx, giveWay: s.begins.giveWay}
	h.tell = func() { tell(streamed{turn, h}) }
	x.ex.Streamer.Stream(s.trace.Request(x.ctx, req, x.attempt), req, h.put)
}

// onStream takes one step of the model's answer.
func (s *session) onStream(ev messages.StreamEvent) {
	x := s.exec
	if x.stage != requesting && x.stage != streaming {
		return
	}
	switch ev.Kind {
	case messages.StreamStart:
		x.stage = streaming
		s.tellDoing()
		m := s.draftMessage(messages.EntryDraft)
		s.append(write{}, nil, record{messages.EventLLMStarted, messages.EventData{
			MessageID: m.ID, Message: &m, RequestDigest: ev.RequestDigest}})
	case messages.StreamTextStart, messages.StreamThinkingStart, messages.StreamCallStart:
		for len(x.partial) <= ev.Index {
			x.partial = append(x.partial, partialPart{})
		}
		x.partial[ev.Index].part = ev.Part
		x.partial[ev.Index].part.Type = partType(ev.Kind)
		s.livePart(ev)
	case messages.StreamTextDelta, messages.StreamThinkingDelta, messages.StreamCallDelta:
		if ev.Index < len(x.partial) {
			x.partial[ev.Index].text.WriteString(ev.Delta)
		}
		s.livePart(ev)
	case messages.StreamTextEnd, messages.StreamThinkingEnd, messages.StreamCallEnd:
		s.livePart(ev)
	case messages.StreamDone:
		s.onAnswer(*ev.Message)
	case messages.StreamError:
		s.onStreamError(ev)
	}
}

// draftMessage is the running message with the text that has come so far.
func (s *session) draftMessage(state messages.EntryState) messages.Message {
	x := s.exec
	m := messages.Message{ID: x.messageID, Role: messages.RoleAssistant, State: state, Parts: []messages.Part{},
		Provider: x.ex.Model.Provider.ID, Protocol: string(x.ex.Model.Protocol), Model: x.ex.Model.ID, Timestamp: s.now.UnixMilli()}
	for i := range x.partial {
		if p := &x.partial[i]; p.part.Type == messages.PartText && p.text.Len() > 0 {
			m.Parts = append(m.Parts, messages.Part{Type: messages.PartText, Text: p.text.String()})
		}
	}
	return m
}

func partType(k messages.StreamKind) messages.PartType {
	switch k {
	case messages.StreamThinkingStart:
		return messages.PartThinking
	case messages.StreamCallStart:
		return messages.PartToolCall
	}
	return messages.PartText
}

var partEvents = map[messages.StreamKind]string{
	messages.StreamTextStart: messages.EventLLMTextStart, messages.StreamTextDelta: messages.EventLLMTextDelta, messages.StreamTextEnd: messages.EventLLMTextEnd,
	messages.StreamThinkingStart: messages.EventLLMThinkingStart, messages.StreamThinkingDelta: messages.EventLLMThinkingDelta, messages.StreamThinkingEnd: messages.EventLLMThinkingEnd,
	messages.StreamCallStart: messages.EventLLMCallStart, messages.StreamCallDelta: messages.EventLLMCallDelta, messages.StreamCallEnd: messages.EventLLMCallEnd,
}

func (s *session) livePart(ev messages.StreamEvent) {
	d := messages.EventData{MessageID: s.exec.messageID, PartIndex: &ev.Index}
	switch ev.Kind {
	case messages.StreamTextDelta, messages.StreamThinkingDelta, messages.StreamCallDelta:
		d.Delta = &ev.Delta
	case messages.StreamTextEnd, messages.StreamThinkingEnd:
		d.Content = &ev.Part.Text
	case messages.StreamCallStart:
		d.CallID, d.Name = ev.Part.CallID, ev.Part.Name
	case messages.StreamCallEnd:
		d.CallID, d.Name, d.Arguments = ev.Part.CallID, ev.Part.Name, messages.RawObject(ev.Part.Arguments)
	}
	s.liveOf(partEvents[ev.Kind], d, ev.More)
}

// onAnswer takes a finished message: its calls are run, or the turn ends.
func (s *session) onAnswer(m messages.Message) {
	x := s.exec
	if m.Usage != nil && !m.Usage.Valid() {
		s.onStreamError(messages.StreamEvent{Kind: messages.StreamError, Failure: &messages.Failure{
			Type: messages.FailInvalidResponse, Message: "the provider reported negative token counts"}})
		return
	}
	m.ID, m.Role, m.State = x.messageID, messages.RoleAssistant, messages.EntryDraft
	x.attempt = 0
	for i := range m.Parts {
		if p := &m.Parts[i]; p.Type == messages.PartToolCall {
			p.Call = messages.CallPending
			if m.StopReason == messages.StopStop {
				m.StopReason = messages.StopToolUse
			}
		}
	}
	ended := record{messages.EventLLMEnded, messages.EventData{MessageID: m.ID, Reason: string(m.StopReason), Message: &m}}
	s.runCalls(m, ended)
}

// endTurn goes on after a turn was committed.
func (s *session) endTurn() {
	x := s.exec
	x.inTurn = false
	last := s.led.entries[len(s.led.entries)-1]
	switch {
	case s.phase == stopping:
		s.finish(messages.EventExecutionInterrupted, messages.EventData{Reason: string(x.reason)})
	case last.StopReason == messages.StopToolUse || s.led.hasSteer():
		s.attempt()
	default:
		s.beginExchange()
	}
}

// onStreamError ends an attempt: the turn is tried again, or the execution
// fails.
func (s *session) onStreamError(ev messages.StreamEvent) {
	x := s.exec
	f := ev.Failure
	if f == nil {
		f = &messages.Failure{Type: messages.FailUnknown, Message: "the provider gave no reason"}
	}
	f = x.ex.redact(f)
	f.Model = x.ex.Model.Ref().String()
	if x.stage == streaming {
		s.recordFailedMessage(messages.EntryAborted, "error", f, ev.Message)
	}
	delay, again := s.backoff(f)
	s.trace.Failed(f)
	s.live(messages.EventTurnAborted, messages.EventData{Cause: &messages.AbortCause{Tag: "error", Message: f.Message}})
	x.inTurn = false
	if !again {
		s.fail(f)
		return
	}
	x = s.step(retrying)
	x.attempt++
	ms := delay.Milliseconds()
	s.live(messages.EventRetryScheduled, messages.EventData{Attempt: x.attempt, DelayMs: &ms, Error: f})
	stop := s.me.After(delay, retryDue{x.turn})
	context.AfterFunc(x.ctx, stop)
}

// recordFailedMessage ends the draft. What a stop cut off keeps its text;
// what failed is only recorded, for its usage.
func (s *session) recordFailedMessage(state messages.EntryState, reason string, f *messages.Failure, known *messages.Message) {
	m := s.draftMessage(state)
	m.Failure = f
	if reason == "error" {
		m.Parts = []messages.Part{}
	}
	if known != nil {
		m.ResponseModel, m.ResponseID = known.ResponseModel, known.ResponseID
		if known.Usage != nil && known.Usage.Valid() {
			m.Usage = known.Usage
		}
	}
	s.append(write{}, nil, record{messages.EventLLMFailed, messages.EventData{MessageID: m.ID, Reason: reason, Message: &m}})
}

// backoff tells whether and when a failed attempt is repeated. A provider
// that asks for a longer wait than the user allows fails the turn at once.
func (s *session) backoff(f *messages.Failure) (time.Duration, bool) {
	p := s.exec.ex.Retry
	if !f.Retryable || s.exec.attempt >= p.Max {
		return 0, false
	}
	if f.RetryAfter > p.MaxDelay {
		f.Message += fmt.Sprintf("; the provider asks to wait %s, more than retry.maxDelayMs allows", f.RetryAfter.Round(time.Second))
		return 0, false
	}
	delay := p.MaxDelay
	if grown := float64(p.Base) * math.Pow(2, float64(s.exec.attempt)); grown < float64(p.MaxDelay) {
		delay = time.Duration(grown)
	}
	// Whole milliseconds, rounded up: a hint never shortens the wait.
	hint := (f.RetryAfter + time.Millisecond - 1).Truncate(time.Millisecond)
	return max(delay, hint), true
}

// fail ends the execution with a failure.
func (s *session) fail(f *messages.Failure) {
	if s.exec.inTurn {
		s.live(messages.EventTurnAborted, messages.EventData{Cause: &messages.AbortCause{Tag: "error", Message: f.Message}})
	}
	s.finish(messages.EventExecutionFailed, messages.EventData{Error: f})
}

// finish ends the busy period, and begins the next one if it was asked for.
func (s *session) finish(kind string, d messages.EventData) {
	if s.exec.cancel != nil {
		s.exec.cancel()
	}
	s.exec.endExchange()
	s.exec = nil
	s.phase = idle
	joined := s.joined
	s.joined, s.resumes = s.resumes, nil
	s.append(write{record: true}, func(err error) {
		for _, r := range joined {
			switch {
			case err != nil:
				r.Send(nil, err)
			case d.Error != nil:
				r.Send(nil, d.Error)
			case d.Reason != "":
				r.Send(nil, &messages.Refused{Name: messages.RefusedShutdown, Message: "interrupted"})
			default:
				r.Send(nil, nil)
			}
		}
	}, record{kind, d})
	s.leaveMount()
	switch {
	case s.closing:
	case len(s.joined) > 0:
		s.start(true)
	case s.wake:
		s.start(false)
	}
	if s.phase == idle { // the guardian must not hear of a rest between two periods
		s.tellState()
	}
}

// interrupt stops what runs. It is accepted at once; the end is told by
// events and by Wait.
// The pending wake is forgotten, so that queued prompts stay queued, unless
// keepWake says that they are other people's.
func (s *session) interrupt(m messages.Interrupt, keepWake bool) messages.Interrupted {
	if m.ClearQueue {
		s.removeQueued(func(input) bool { return true }, nil)
	}
	if s.phase != busy {
		return messages.Interrupted{}
	}
	x := s.exec
	x.reason = m.Reason
	if x.reason == "" {
		x.reason = messages.ByUser
	}
	s.phase, s.wake = stopping, keepWake && len(s.led.inbox) > 0
	s.tellState()
	if x.stage == calling {
		s.stopCalls()
		return messages.Interrupted{Interrupted: true}
	}
	switch x.stage {
	case requesting:
		// The request may still be encoded, and it has this one's cache.
		s.cache = &messages.EncodeCache{}
	case streaming:
		s.recordFailedMessage(messages.EntryAborted, "aborted", nil, nil)
	}
	if x.inTurn || x.stage == retrying {
		s.live(messages.EventTurnAborted, messages.EventData{Cause: &messages.AbortCause{Tag: "interrupted"}})
	}
	s.finish(messages.EventExecutionInterrupted, messages.EventData{Reason: string(x.reason)})
	return messages.Interrupted{Interrupted: true}
}

func asFailure(err error) *messages.Failure {
	var f *messages.Failure
	if errors.As(err, &f) {
		return f
	}
	return &messages.Failure{Type: messages.FailUnknown, Message: err.Error()}
}
