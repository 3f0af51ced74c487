package actors

import (
	"slices"

	"codework/messages"
)

// heal settles what a crash, a restart or an append that failed left open, by
// ordinary events marked as recovered. Doing it twice changes nothing.
func (s *session) heal(started []string) {
	var records []record
	add := func(kind string, d messages.EventData) {
		d.Recovered = true
		records = append(records, record{kind, d})
	}
	if d := s.led.draft; d != nil && !d.ended {
		m := d.message
		m.State, m.Parts = messages.EntryAborted, keptText(m.Parts)
		add(messages.EventLLMFailed, messages.EventData{MessageID: m.ID, Reason: "aborted", Message: &m})
	} else if d != nil {
		for _, p := range d.message.Parts {
			if p.Type != messages.PartToolCall || p.Call.Terminal() {
				continue
			}
			if slices.Contains(started, p.CallID) {
				what := "the process ended"
				if s.lostTo != nil {
					what = "the session could not be written (" + s.lostTo.Error() + ")"
				}
				settle(&p, messages.CallAborted, messages.TextResult(what+" while this ran; its outcome is unknown", true))
			} else {
				settle(&p, messages.CallSkipped, messages.TextResult(textSkipped, true))
			}
			add(messages.EventToolSettled, messages.EventData{MessageID: d.message.ID, CallID: p.CallID, Part: &p})
		}
		add(messages.EventTurnEnded, messages.EventData{MessageID: d.message.ID})
	}
	if s.led.running {
		why := "the process ended before this work was finished"
		if s.lostTo != nil {
			why = s.lostTo.Error()
		}
		add(messages.EventExecutionFailed, messages.EventData{Error: &messages.Failure{Type: messages.FailInternal, Message: why}})
	}
	s.lostTo = nil
	if len(records) == 0 && len(started) == 0 {
		return
	}
	s.healing = true
	s.append(write{settle: started, record: true}, func(error) { s.healing = false }, records...)
}

// Texts that stand in for results of calls that have none.
const (
	textSkipped   = "not run: the work was stopped before this call started"
	textCutOff    = "not run: the answer reached its length limit, so the arguments of this call were cut off"
	textLostPlace = "stopped: the sandbox ended while this ran; its outcome is unknown"
)

func settle(p *messages.Part, state messages.CallState, r messages.ToolResult) {
	p.Call, p.Result = state, &r
}
