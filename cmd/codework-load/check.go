package main

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"codework/messages"
)

// faults are what a session's reader did not get, or got twice. All of them
// must be zero.
type faults struct {
	LostEvents    int64 `json:"lostEvents"`    // durable: positions that never came
	DoubledEvents int64 `json:"doubledEvents"` // durable: positions that came again
	LostDeltas    int64 `json:"lostDeltas"`    // by the numbers that the model wrote
	DoubledDeltas int64 `json:"doubledDeltas"` // or that came out of order
	WrongTexts    int64 `json:"wrongTexts"`    // answers that differ from their deltas
}

func (f faults) any() bool { return f != faults{} }

func (f *faults) add(g faults) {
	f.LostEvents += g.LostEvents
	f.DoubledEvents += g.DoubledEvents
	f.LostDeltas += g.LostDeltas
	f.DoubledDeltas += g.DoubledDeltas
	f.WrongTexts += g.WrongTexts
}

// checker looks for holes and repetitions in what one reader gets of one
// session: durable events by their position, deltas by the number that the
// model wrote into them, whole answers by comparing them with their deltas. The
// zero value is for a session that is read from its beginning.
type checker struct {
	seq     int64 // last durable position
	answers map[string]*answer
	holed   bool // live events were missed, and no turn has begun since
	faults  faults
}

// answer is a message that is being written.
type answer struct {
	last    int  // number of the last delta
	total   int  // of them, once one has come; 0 for a model that does not count
	partial bool // some of it was missed with the connection
	jump    bool // the next number may be any
	pending string
	text    strings.Builder
}

// body is what the checker and the session read of an event's data.
type body struct {
	MessageID string  `json:"messageID"`
	Delta     *string `json:"delta"`
	Error     *struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	Message *struct {
		Parts []struct {
			Type messages.PartType `json:"type"`
			Text string            `json:"text"`
		} `json:"parts"`
	} `json:"message"`
}

// read decodes the data of those events that matter here.
func read(e messages.Event) (b body, err error) {
	switch e.Type {
	case messages.EventLLMTextDelta, messages.EventLLMEnded, messages.EventLLMFailed, messages.EventPromptPromoted,
		messages.EventExecutionFailed:
		err = json.Unmarshal(e.Data, &b)
	}
	return b, err
}

// gap tells that the reader lost its subscription: durable events go on behind
// the last position, live ones of the time between are gone.
func (c *checker) gap() {
	c.holed = true
	for _, a := range c.answers {
		a.partial, a.jump, a.pending = true, true, ""
	}
}

// event takes the next event; sent has, for a delta, the times at which the
// model wrote what is in it.
func (c *checker) event(e messages.Event, b body) (sent []time.Time) {
	if e.Durable() {
		if e.Seq <= c.seq {
			c.faults.DoubledEvents++
		} else {
			c.faults.LostEvents += e.Seq - c.seq - 1
			c.seq = e.Seq
		}
	}
	switch e.Type {
	case messages.EventTurnStarted:
		c.holed = false
	case messages.EventLLMTextDelta:
		if b.Delta != nil {
			sent = c.delta(c.answer(b.MessageID), *b.Delta)
		}
	case messages.EventLLMEnded:
		c.ended(b)
		delete(c.answers, b.MessageID)
	case messages.EventLLMFailed:
		delete(c.answers, b.MessageID)
	}
	return sent
}

func (c *checker) answer(id string) *answer {
	a := c.answers[id]
	if a == nil {
		if c.answers == nil {
			c.answers = map[string]*answer{}
		}
		a = &answer{partial: c.holed, jump: c.holed}
		c.answers[id] = a
	}
	return a
}

// delta checks the numbers in a piece of text, which need not be one of the
// model's pieces.
func (c *checker) delta(a *answer, text string) (sent []time.Time) {
	a.text.WriteString(text)
	a.pending += text
	for {
		s, rest, ok := cutStamp(a.pending)
		a.pending = rest
		if !ok {
			return sent
		}
		sent = append(sent, s.at)
		a.total = s.of
		if s.number <= a.last {
			c.faults.DoubledDeltas++
			continue
		}
		if !a.jump {
			c.faults.LostDeltas += int64(s.number - a.last - 1)
		}
		a.last, a.jump = s.number, false
	}
}

// ended compares a whole answer with what came of it.
func (c *checker) ended(b body) {
	a := c.answers[b.MessageID]
	if b.Message == nil || a == nil && c.holed || a != nil && a.partial {
		return
	}
	var whole strings.Builder
	for _, p := range b.Message.Parts {
		if p.Type == messages.PartText {
			whole.WriteString(p.Text)
		}
	}
	if a == nil {
		a = &answer{}
	}
	if a.total > a.last {
		c.faults.LostDeltas += int64(a.total - a.last)
	}
	// A final text may lack the blank at its end.
	if strings.TrimSpace(a.text.String()) != strings.TrimSpace(whole.String()) {
		c.faults.WrongTexts++
	}
}

// over ends an answer of which only the deltas are known.
func (c *checker) over(id string) {
	if a := c.answers[id]; a != nil {
		c.faults.LostDeltas += int64(a.total - a.last)
		delete(c.answers, id)
	}
}

// stamp is what the scripted model writes at the head of each delta.
type stamp struct {
	at         time.Time
	number, of int
}

// stampTail ends the stamped part of a delta.
const stampTail = " mock text "

// cutStamp takes the first whole stamp out of text. What is left when there is
// none is the beginning of one that may still come.
func cutStamp(text string) (s stamp, rest string, ok bool) {
	for {
		i := strings.IndexByte(text, '@')
		if i < 0 {
			return s, "", false
		}
		text = text[i:]
		end := strings.Index(text, stampTail)
		if end < 0 {
			if next := strings.LastIndexByte(text, '@'); next > 0 {
				text = text[next:]
			}
			if len(text) > maxStamp {
				text = ""
			}
			return s, text, false
		}
		if s, ok = parseStamp(text[1:end]); ok && end+len(stampTail) <= maxStamp {
			return s, text[end+len(stampTail):], true
		}
		text = text[1:]
	}
}

// maxStamp is more than a stamp with the largest numbers has; what is longer is
// none.
const maxStamp = 64

// parseStamp reads "MICROSECONDS NUMBER/TOTAL".
func parseStamp(text string) (s stamp, ok bool) {
	at, count, ok := strings.Cut(text, " ")
	if !ok {
		return s, false
	}
	n, of, ok := strings.Cut(count, "/")
	if !ok {
		return s, false
	}
	us, err1 := strconv.ParseInt(at, 10, 64)
	number, err2 := strconv.Atoi(n)
	total, err3 := strconv.Atoi(of)
	if err1 != nil || err2 != nil || err3 != nil || number < 1 || total < number {
		return s, false
	}
	return stamp{time.UnixMicro(us), number, total}, true
}
