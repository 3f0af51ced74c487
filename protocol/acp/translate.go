package acp

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"codework/messages"
)

const (
	// progressGap is the least time between two updates with output of one
	// call: at most four a second.
	progressGap = 250 * time.Millisecond
	// maxChunk is the longest text in one chunk; a longer one goes out in
	// several with one id.
	maxChunk = 1 << 20
)

// Translator turns what happens in one session into updates. Live events of
// turns and the messages of a stored conversation come out alike.
type Translator struct {
	Dir   string // the session's folder
	Local bool   // its paths mean something to the editor
	// Blob loads an image by its name.
	Blob func(name string) ([]byte, error)

	sent  map[stream]int   // bytes that were sent
	lost  bool             // live events were lost: see Gap
	calls map[string]*call // open ones, by their id on the wire
	order []string
	over  map[string]bool // messages that were replayed as they ended
}

// stream is the text of a message, or its reasoning.
type stream struct {
	message  string
	thinking bool
}

// call is a tool call that has begun and not ended.
type call struct {
	part    messages.Part
	told    time.Time // when its output was last shown
	pending []ToolContent
}

// callID names a call in its session: providers may give the same id to calls
// of different messages.
func callID(message, id string) string { return message + "/" + id }

// thoughtID names the reasoning of a message.
func thoughtID(message string) string { return message + "t" }

// Event translates one event of a turn. now is the time, by which output is
// held back; Due tells until when.
func (t *Translator) Event(e messages.Event, d messages.EventData, now time.Time) []Update {
	if t.over[d.MessageID] && d.MessageID != "" {
		return nil
	}
	switch e.Type {
	case messages.EventLLMTextDelta, messages.EventLLMThinkingDelta:
		if d.Delta == nil || *d.Delta == "" || t.lost {
			return nil
		}
		return t.say(stream{d.MessageID, e.Type == messages.EventLLMThinkingDelta}, *d.Delta)
	case messages.EventLLMEnded, messages.EventLLMFailed:
		return t.catchUp(d)
	case messages.EventToolStarted:
		return t.begin(d.MessageID, messages.Part{CallID: d.CallID, Name: d.Name, Label: d.Label, Arguments: string(d.Arguments)})
	case messages.EventToolProgress:
		return t.progressed(e, d, now)
	case messages.EventToolSettled:
		if d.Part == nil || d.Part.Result == nil {
			return nil
		}
		return t.settle(d.MessageID, *d.Part)
	}
	return nil
}

// say sends text of a message.
func (t *Translator) say(at stream, text string) []Update {
	if t.sent == nil {
		t.sent = map[stream]int{}
	}
	t.sent[at] += len(text)
	kind, id := AgentChunk, at.message
	if at.thinking {
		kind, id = ThoughtChunk, thoughtID(at.message)
	}
	return textChunks(kind, id, text)
}

// Gap says that live events were lost, because the client reads more slowly
// than there is news. Until Whole the pieces of text are not used: what they
// add up to comes with the recorded messages.
func (t *Translator) Gap() { t.lost = true }

// Whole says that from the next message on every event comes.
func (t *Translator) Whole() { t.lost = false }

// catchUp sends what is missing of a message that has ended.
func (t *Translator) catchUp(d messages.EventData) []Update {
	var out []Update
	if t.lost && d.Message != nil && d.Reason != "error" {
		for _, thinking := range []bool{true, false} {
			at, kind := stream{d.MessageID, thinking}, messages.PartText
			if thinking {
				kind = messages.PartThinking
			}
			var all strings.Builder
			for _, p := range d.Message.Parts {
				if p.Type == kind {
					all.WriteString(p.Text)
				}
			}
			if n, text := t.sent[at], all.String(); n < len(text) {
				out = append(out, t.say(at, text[n:])...)
			}
		}
	}
	delete(t.sent, stream{d.MessageID, false})
	delete(t.sent, stream{d.MessageID, true})
	return out
}

func textChunks(kind, id, text string) []Update {
	text = strings.ToValidUTF8(text, "\uFFFD")
	var out []Update
	for len(text) > 0 {
		n := min(len(text), maxChunk)
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n--
		}
		out = append(out, textChunk(kind, id, text[:n]))
		text = text[n:]
	}
	return out
}

// begin tells of a call once.
func (t *Translator) begin(message string, p messages.Part) []Update {
	id := callID(message, p.CallID)
	if t.calls[id] != nil {
		return nil
	}
	if t.calls == nil {
		t.calls = map[string]*call{}
	}
	t.calls[id] = &call{part: p}
	t.order = append(t.order, id)
	return []Update{ToolCall{SessionUpdate: "tool_call", ToolCallID: id, Title: t.title(p), Name: p.Name, Kind: Kind(p.Name),
		Status: StatusInProgress, RawInput: rawInput(p.Arguments), Locations: t.locations(p, details{})}}
}

func (t *Translator) progressed(e messages.Event, d messages.EventData, now time.Time) []Update {
	id := callID(d.MessageID, d.CallID)
	c := t.calls[id]
	if c == nil {
		return nil
	}
	var partial struct{ Partial messages.ToolResult }
	if json.Unmarshal(e.Data, &partial) != nil {
		return nil
	}
	content := progress(c.part.Name, partial.Partial)
	if content == nil {
		return nil
	}
	c.pending = content
	return t.show(id, c, now)
}

func (t *Translator) show(id string, c *call, now time.Time) []Update {
	if c.pending == nil || now.Sub(c.told) < progressGap {
		return nil
	}
	u := ToolCallUpdate{SessionUpdate: "tool_call_update", ToolCallID: id, Content: c.pending}
	c.pending, c.told = nil, now
	return []Update{u}
}

// Due is how long from now output is held back; 0 when there is none.
func (t *Translator) Due(now time.Time) time.Duration {
	least := time.Duration(0)
	for _, c := range t.calls {
		if c.pending == nil {
			continue
		}
		wait := max(progressGap-now.Sub(c.told), time.Millisecond)
		if least == 0 || wait < least {
			least = wait
		}
	}
	return least
}

// Held returns the output that was held back for long enough.
func (t *Translator) Held(now time.Time) []Update {
	var out []Update
	for _, id := range t.order {
		out = append(out, t.show(id, t.calls[id], now)...)
	}
	return out
}

// settle ends a call, which is told first when it never began.
func (t *Translator) settle(message string, p messages.Part) []Update {
	out := t.begin(message, p)
	id := callID(message, p.CallID)
	t.forget(id)
	u := ToolCallUpdate{SessionUpdate: "tool_call_update", ToolCallID: id, Status: StatusFailed}
	if p.Call == messages.CallCompleted {
		u.Status = StatusCompleted
	}
	u.Locations = t.locations(p, detailsOf(p.Result.Details))
	if u.Content = t.diffs(p); u.Content == nil {
		u.Content, u.RawOutput = t.content(p), rawOutput(*p.Result)
	}
	return append(out, u)
}

func (t *Translator) forget(id string) {
	delete(t.calls, id)
	t.order = slices.DeleteFunc(t.order, func(o string) bool { return o == id })
}

// unsettled is what is said of a call that nobody told the end of.
const unsettled = "the call did not come to an end"

// Close ends the calls that are still open, as failed.
func (t *Translator) Close() []Update {
	var out []Update
	for len(t.order) > 0 {
		id := t.order[0]
		t.forget(id)
		out = append(out, ToolCallUpdate{SessionUpdate: "tool_call_update", ToolCallID: id, Status: StatusFailed,
			Content: []ToolContent{{Block: &Block{Type: "text", Text: unsettled}}}})
	}
	t.sent = nil
	t.over = nil
	return out
}

// Replay translates a message of the stored conversation.
func (t *Translator) Replay(m messages.Message) []Update {
	var out []Update
	if m.Role == messages.RoleUser {
		for _, p := range m.Parts {
			switch p.Type {
			case messages.PartText:
				out = append(out, textChunks(UserChunk, m.ID, p.Text)...)
			case messages.PartImage:
				room := maxOutImage
				out = append(out, Chunk{UserChunk, m.ID, t.image(p, &room)})
			}
		}
		return out
	}
	for _, p := range m.Parts {
		switch p.Type {
		case messages.PartText:
			out = append(out, textChunks(AgentChunk, m.ID, p.Text)...)
		case messages.PartThinking:
			out = append(out, textChunks(ThoughtChunk, thoughtID(m.ID), p.Text)...)
		case messages.PartToolCall:
			if p.Result == nil {
				r := messages.TextResult(unsettled, true)
				p.Result, p.Call = &r, messages.CallAborted
			}
			t.forget(callID(m.ID, p.CallID)) // told before the replay; it is told again
			out = append(out, t.settle(m.ID, p)...)
		}
	}
	return out
}

// maxOutImage is the largest image in base64 that fits a line.
const maxOutImage = MaxOut - 1<<20

// Replayed says that a message was replayed: what is still told of it live is
// known.
func (t *Translator) Replayed(message string) {
	if t.over == nil {
		t.over = map[string]bool{}
	}
	t.over[message] = true
	for _, id := range slices.Clone(t.order) {
		if strings.HasPrefix(id, message+"/") {
			t.forget(id)
		}
	}
}

// Note is a word to the user: a notice where the client shows them, otherwise
// a message of its own that is not part of the conversation.
func Note(notices bool, id, severity, title, text string) Update {
	text = clip(text, maxMessage)
	if notices {
		return Notice{"notice", severity, title, text}
	}
	return textChunk(AgentChunk, id, "> ⚠ "+strings.Join(strings.Split(strings.TrimSpace(text), "\n"), "\n> ")+"\n\n")
}

// Said is a text of the agent that is not the model's.
func Said(id, text string) []Update { return textChunks(AgentChunk, id, text) }
