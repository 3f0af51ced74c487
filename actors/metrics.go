package actors

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"codework/internal/metrics"
	"codework/messages"
)

// This file holds what sessions count and log of what they do, at the places
// where it becomes an event. Deltas pass here, so what is not counted costs a
// comparison.

// observe takes note of something that happened. Of durable events it is told
// when they are in memory: one that the disk refuses is counted all the same.
func (s *session) observe(kind string, d *messages.EventData) {
	switch kind {
	case messages.EventLLMTextDelta, messages.EventLLMThinkingDelta, messages.EventLLMCallDelta:
		if x := s.exec; x != nil && !x.spoken {
			x.spoken = true
			s.trace.FirstPiece()
			s.count.FirstDelta(s.now.Sub(x.begun))
		}
	case messages.EventPromptAdmitted:
		s.count.Prompt(d.Delivery)
		s.trace.Admitted(d.MessageID)
		s.logs(slog.LevelDebug, "prompt admitted", "prompt", d.MessageID, "delivery", d.Delivery)
	case messages.EventPromptRemoved:
		s.trace.Removed(d.MessageID)
	case messages.EventTurnStarted:
		s.exec.begun, s.exec.spoken = s.now, false
		s.trace.Turn(s.exec.messageID, s.exec.attempt)
		s.logs(slog.LevelDebug, "turn started", "turn", s.exec.messageID)
	case messages.EventTurnEnded:
		s.turnEnded(d)
	case messages.EventTurnAborted:
		outcome, turn := metrics.Failed, ""
		if d.Cause != nil && d.Cause.Tag == "interrupted" {
			outcome = metrics.Interrupted
		}
		if s.exec != nil {
			turn = s.exec.messageID
		}
		s.count.Turn(outcome, -1)
		s.trace.TurnEnded(outcome)
		s.logs(slog.LevelDebug, "turn came to nothing", "turn", turn, "outcome", outcome)
	case messages.EventLLMStarted:
		s.trace.Streaming()
	case messages.EventLLMEnded:
		s.trace.Answered(d.Message)
	case messages.EventLLMFailed:
		if d.Message != nil {
			s.count.Usage(d.Message.Usage)
			s.trace.Used(d.Message.Usage)
		}
	case messages.EventRetryScheduled:
		s.count.Retry(d.Error)
		s.logs(slog.LevelInfo, "turn is tried again", "turn", s.exec.messageID, "attempt", d.Attempt, "delay_ms", *d.DelayMs, "type", d.Error.Type)
	case messages.EventExecutionStarted:
		s.trace.Began()
		s.logs(slog.LevelInfo, "work started")
	case messages.EventExecutionSucceeded:
		s.count.Execution(metrics.Succeeded, nil)
		s.logs(slog.LevelInfo, "work done")
		s.trace.Ended(metrics.Succeeded, nil, "")
	case messages.EventExecutionInterrupted:
		s.count.Execution(metrics.Interrupted, nil)
		s.logs(slog.LevelInfo, "work interrupted", "reason", d.Reason)
		s.trace.Ended(metrics.Interrupted, nil, d.Reason)
	case messages.EventExecutionFailed:
		s.count.Execution(metrics.Failed, d.Error)
		if d.Error != nil {
			s.logs(slog.LevelInfo, "work failed", "type", d.Error.Type, "status", d.Error.Status)
		}
		s.trace.Ended(metrics.Failed, d.Error, "")
	}
}

// turnEnded counts a turn that is in the conversation now, as its last entry.
func (s *session) turnEnded(d *messages.EventData) {
	took := time.Duration(-1) // one that a crash cut off and healing ended
	if s.exec != nil && s.exec.inTurn {
		took = s.now.Sub(s.exec.begun)
	}
	s.count.Turn(metrics.Succeeded, took)
	switch {
	case s.phase == stopping:
		s.trace.TurnEnded(metrics.Interrupted)
	case took >= 0:
		s.trace.TurnEnded(metrics.Succeeded)
	}
	if n := len(s.led.entries); n > 0 && s.led.entries[n-1].ID == d.MessageID {
		s.count.Usage(s.led.entries[n-1].Usage)
	}
	s.logs(slog.LevelDebug, "turn ended", "turn", d.MessageID, "ms", took.Milliseconds())
}

// observeCall takes note of a call that has its result.
func (s *session) observeCall(c *call) {
	took := time.Duration(-1) // it was not run
	if c.began.IsZero() {
		s.followCall(c)
	} else {
		took = time.Since(c.began)
	}
	s.trace.Settled(c.trace, c.part.Call)
	s.count.ToolCall(c.part.Name, c.part.Call, took)
	s.logs(slog.LevelDebug, "tool call settled", "turn", s.exec.messageID, "call", c.part.CallID, "tool", c.part.Name,
		"state", c.part.Call, "ms", took.Milliseconds())
}

// followCall begins to trace a call. What a model makes up has no place there.
func (s *session) followCall(c *call) {
	if s.trace == nil {
		return
	}
	name := c.part.Name
	if _, ok := s.exec.ex.Tools.Tool(name); !ok {
		name = ""
	}
	c.trace = s.trace.Call(name, c.part.CallID)
}

// logs writes a line that names the session, if such lines are wanted. What a
// person or a model wrote has no place in it.
func (s *session) logs(level slog.Level, text string, args ...any) {
	if log := s.me.Log(); log.Enabled(context.Background(), level) {
		args = append([]any{"session", s.id}, args...)
		if id := s.trace.ID(); id != "" {
			args = append(args, "trace_id", id)
		}
		log.Log(context.Background(), level, text, args...)
	}
}

// What sessions are doing, as far as their status does not say it.
const (
	doingIdle       = "idle"
	doingPreparing  = "preparing"
	doingRequesting = "waiting for the model"
	doingStreaming  = "answering"
	doingRetrying   = "waiting to try again"
	doingCalling    = "running tools"
	doingStopping   = "stopping"
	doingBroken     = "cannot be read"
)

var stageWords = [...]string{preparing: doingPreparing, requesting: doingRequesting, streaming: doingStreaming, retrying: doingRetrying, calling: doingCalling}

// tellDoing says what the session does, for whoever looks.
func (s *session) tellDoing() {
	switch {
	case s.phase == broken:
		s.me.Doing(doingBroken, "")
	case s.phase == stopping:
		s.me.Doing(doingStopping, "")
	case s.exec == nil:
		s.me.Doing(doingIdle, "")
	case s.exec.stage == calling:
		var labels []string
		for _, c := range s.exec.calls {
			if c.running {
				labels = append(labels, c.part.Label)
			}
		}
		s.me.Doing(doingCalling, strings.Join(labels, ", "))
	default:
		s.me.Doing(stageWords[s.exec.stage], "")
	}
}

// What plugins and provider connections are doing.
const (
	doingRunning  = "running"
	doingStarting = "starting"
	doingFailed   = "failed"
	doingGivenUp  = "given up"
	doingStopped  = "stopped"
	doingReady    = "ready"
	doingHolding  = "holding back"
)

func (p *pluginProcess) doing() string {
	switch {
	case p.given:
		return doingGivenUp
	case p.current != nil:
		return doingRunning
	case p.starting:
		return doingStarting
	case p.last != nil:
		return doingFailed
	}
	return doingStopped
}

func (p *provider) doing() (state, detail string) {
	if len(p.holds) == 0 {
		return doingReady, ""
	}
	waiting := 0
	for _, h := range p.holds {
		waiting += len(h.waiting)
	}
	return doingHolding, plural(waiting, "request")
}
