package actors

import (
	"context"
	"time"

	"codework/internal/tools"
	"codework/internal/traces"
	"codework/messages"
	"codework/sandboxes"
)

// call is one tool call of the running turn.
type call struct {
	part    messages.Part
	running bool
	queued  bool // its start is on its way to the disk
	began   time.Time
	trace   *traces.Call
	cancel  context.CancelFunc
}

type (
	callProgress struct {
		turn  uint64
		index int
		from  *progress
	}
	callDone struct {
		turn   uint64
		index  int
		result messages.ToolResult
		state  messages.CallState
	}
)

// runCalls records the finished message and begins with its calls: the first
// one, or all of them where the settings say so. A message without calls, or
// one that was cut off, ends its turn at once.
func (s *session) runCalls(m messages.Message, ended record) {
	x := s.step(calling)
	x.calls = nil
	for _, p := range m.Parts {
		if p.Type == messages.PartToolCall {
			x.calls = append(x.calls, &call{part: p})
		}
	}
	if len(x.calls) == 0 {
		s.append(write{record: true}, nil, ended, record{messages.EventTurnEnded, messages.EventData{MessageID: m.ID}})
		s.endTurn()
		return
	}
	if m.StopReason != messages.StopToolUse {
		s.append(write{}, nil, ended)
		s.skipRest(textCutOff)
		return
	}
	first := 1
	if x.ex.Parallel {
		first = len(x.calls)
	}
	s.startCalls(0, first, write{}, ended)
}

// startCalls records that calls [from, to) begin; they run once that is on
// disk, or recovery would take them for calls that never started.
func (s *session) startCalls(from, to int, w write, records ...record) {
	x := s.exec
	for _, c := range x.calls[from:to] {
		c.queued = true
		w.start = append(w.start, c.part.CallID)
	}
	turn, over := x.turn, s.trace.Wait()
	s.append(w, func(err error) {
		over()
		if err != nil || s.exec != x || x.turn != turn || s.phase != busy {
			return
		}
		for i := from; i < to; i++ {
			s.runCall(i)
		}
	}, records...)
}

func (s *session) runCall(i int) {
	x := s.exec
	c := x.calls[i]
	c.running = true
	s.followCall(c)
	c.began = time.Now()
	c.part.Label = tools.Label(c.part.Name, c.part.Arguments)
	s.tellDoing()
	s.live(messages.EventToolStarted, messages.EventData{MessageID: x.messageID, CallID: c.part.CallID,
		Name: c.part.Name, Label: c.part.Label, Arguments: messages.RawObject(c.part.Arguments)})
	ctx, cancel := context.WithCancel(x.ctx)
	c.cancel = cancel
	turn, tell, ex, message, part, seen := x.turn, s.me.Later(), x.ex, x.messageID, c.part, s.seen
	shown := &progress{}
	shown.tell = func() { tell(callProgress{turn, i, shown}) }
	out := callDone{turn: turn, index: i, state: messages.CallAborted, result: messages.TextResult(textLostPlace, true)}
	ex.Workplace.Do(ctx, func(ctx context.Context, m sandboxes.Mount) {
		out.result, out.state = tools.Execute(ctx, ex.Tools, tools.Call{ID: part.CallID, Name: part.Name, MessageID: message, Arguments: part.Arguments}, tools.Context{
			Mount: m, Seen: seen, Images: ex.Model.AcceptsImages(), CallID: part.CallID, BashTimeout: ex.BashLimit,
			Progress: shown.put,
		})
		s.storeImages(&out.result)
	}, func() {
		cancel()
		tell(out)
	})
}

// storeImages moves the images of a result beside the log.
func (s *session) storeImages(r *messages.ToolResult) {
	for i := range r.Content {
		p := &r.Content[i]
		if len(p.Data) == 0 {
			continue
		}
		name, err := s.store.PutBlob(p.Data)
		if err != nil {
			*p = messages.Part{Type: messages.PartText, Text: "[image could not be stored: " + err.Error() + "]"}
			continue
		}
		p.Blob, p.Bytes, p.Data = name, int64(len(p.Data)), nil
	}
}

func (s *session) onProgress(m callProgress) {
	r := m.from.take()
	if c := s.exec.calls[m.index]; s.phase == busy && c.running {
		s.live(messages.EventToolProgress, messages.EventData{MessageID: s.exec.messageID, CallID: c.part.CallID, Partial: r})
	}
}

// onCallDone records a result and goes on: the next call, the end of the
// turn, or the end of a stop.
func (s *session) onCallDone(m callDone) {
	x := s.exec
	c := x.calls[m.index]
	c.running = false
	settle(&c.part, m.state, m.result)
	settled := s.settled(c)
	s.tellDoing()
	w := write{settle: []string{c.part.CallID}}
	next := m.index + 1
	if s.phase == busy && !x.ex.Parallel && next < len(x.calls) {
		s.startCalls(next, next+1, w, settled)
		return
	}
	if x.anyRunning() || s.phase == busy && x.anyOpen() {
		s.append(w, nil, settled)
		return
	}
	if !x.anyOpen() {
		s.endCalls(w, settled)
		return
	}
	s.append(w, nil, settled)
	s.skipRest(textSkipped)
}

func (s *session) settled(c *call) record {
	part := c.part
	s.observeCall(c)
	return record{messages.EventToolSettled, messages.EventData{MessageID: s.exec.messageID, CallID: part.CallID, Part: &part}}
}

// stopCalls cancels what runs; calls that have not begun are not run. The
// turn is committed when the last one has reported.
func (s *session) stopCalls() {
	for _, c := range s.exec.calls {
		if c.cancel != nil {
			c.cancel()
		}
	}
	if !s.exec.anyRunning() {
		s.skipRest(textSkipped)
	}
}

// skipRest settles every open call as skipped and ends the turn.
func (s *session) skipRest(why string) {
	var w write
	var records []record
	for _, c := range s.exec.calls {
		if !c.part.Call.Terminal() {
			settle(&c.part, messages.CallSkipped, messages.TextResult(why, true))
			records = append(records, s.settled(c))
			if c.queued {
				w.settle = append(w.settle, c.part.CallID)
			}
		}
	}
	s.endCalls(w, records...)
}

func (s *session) endCalls(w write, records ...record) {
	w.record = true
	records = append(records, record{messages.EventTurnEnded, messages.EventData{MessageID: s.exec.messageID}})
	s.append(w, nil, records...)
	s.exec.barrier = s.out.mark()
	s.endTurn()
}

func (x *execution) anyRunning() bool {
	for _, c := range x.calls {
		if c.running {
			return true
		}
	}
	return false
}

// anyOpen tells whether a call has no result yet.
func (x *execution) anyOpen() bool {
	for _, c := range x.calls {
		if !c.part.Call.Terminal() {
			return true
		}
	}
	return false
}
