package actors

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"codework/messages"
)

// ledger is one session as its log tells it. Every change of it is an event;
// apply is the only writer, for events that are read and for new ones alike.
type ledger struct {
	record messages.SessionRecord
	seq    int64 // of the last event
	inbox  []input
	// entries are the conversation: user messages, committed assistant
	// messages, and of stopped ones what text they had. An entry never changes.
	entries []messages.Message
	draft   *draft
	// running is set between execution.started and its end.
	// load reads a blob; only the log of a fork needs it.
	load func(blob string) ([]byte, error)
	// crashes counts the executions in a row that the process did not survive.
	crashes int
	running bool
	// prompts holds the content hash of every prompt id that was admitted here
	// behind the checkpoint that the ledger was read from. Older ones the store
	// knows.
	prompts map[string]string
	// The newest checkpoint is of the event at saved and covers the first kept
	// entries; those behind have about unsaved bytes of text.
	saved   int64
	kept    int
	unsaved int
	// Whether there is an image in the first looked entries.
	looked int
	image  bool
}

// input is a prompt that was admitted and not promoted yet.
type input struct {
	id        string
	body      messages.PromptBody
	delivery  messages.Delivery
	seq       int64
	at        int64
	unwritten bool // on its way to the disk: nothing may happen because of it
}

// draft is an assistant message that is not committed yet.
type draft struct {
	message messages.Message
	ended   bool // the model has finished it; its calls are being settled
}

// newLedger is a session without events. Its totals are folded anew: the
// stored ones are for lists.
func newLedger(record messages.SessionRecord) *ledger {
	record.Usage, record.Discarded, record.Turns = messages.Usage{}, messages.Usage{}, 0
	return &ledger{record: record, prompts: map[string]string{}}
}

// apply takes the next event of the log.
func (l *ledger) apply(e messages.Event, d messages.EventData) error {
	if e.Type == messages.EventForked && l.seq == 0 {
		l.seq = e.Seq - 1 // a fork's log starts above what it copied
	}
	if e.Seq != l.seq+1 {
		return fmt.Errorf("event %d follows %d", e.Seq, l.seq)
	}
	l.seq = e.Seq
	l.record.UpdatedAt = max(l.record.UpdatedAt, d.Timestamp)
	switch e.Type {
	case messages.EventExecutionStarted:
		l.running = true
	case messages.EventExecutionSucceeded, messages.EventExecutionFailed, messages.EventExecutionInterrupted:
		l.running = false
		if d.Recovered {
			l.crashes++
		} else if d.Error == nil || d.Error.Type != messages.FailCrashLoop {
			l.crashes = 0
		}
	case messages.EventForked:
		return l.copied(d)
	case messages.EventPromptAdmitted:
		if d.Prompt == nil {
			return fmt.Errorf("event %d has no prompt", e.Seq)
		}
		l.inbox = append(l.inbox, input{id: d.MessageID, body: *d.Prompt, delivery: d.Delivery, seq: e.Seq, at: d.Timestamp})
		l.prompts[d.MessageID] = promptHash(*d.Prompt, d.Delivery)
	case messages.EventPromptRemoved:
		l.dequeue(d.MessageID)
	case messages.EventPromptPromoted:
		if d.Prompt == nil {
			return fmt.Errorf("event %d has no prompt", e.Seq)
		}
		l.dequeue(d.MessageID)
		if d.Title != "" && !l.record.TitleSet {
			l.record.Title, l.record.TitleSet = d.Title, true
		}
		l.add(userMessage(d.MessageID, *d.Prompt, d.Timestamp))
	case messages.EventLLMStarted, messages.EventLLMEnded:
		if d.Message == nil {
			return fmt.Errorf("event %d has no message", e.Seq)
		}
		l.draft = &draft{message: *d.Message, ended: e.Type == messages.EventLLMEnded}
		l.draft.message.Parts = slices.Clone(d.Message.Parts)
	case messages.EventLLMFailed:
		l.draft = nil
		if d.Message == nil {
			break
		}
		if d.Message.Usage != nil {
			l.record.Discarded = l.record.Discarded.Add(*d.Message.Usage)
		}
		if d.Message.State == messages.EntryAborted && len(d.Message.Parts) > 0 {
			l.add(*d.Message)
		}
	case messages.EventToolSettled:
		if l.draft == nil || d.Part == nil {
			break // a settlement without its message: check names it
		}
		for i := range l.draft.message.Parts {
			p := &l.draft.message.Parts[i]
			if p.Type == messages.PartToolCall && p.CallID == d.CallID {
				*p = *d.Part
			}
		}
	case messages.EventTurnEnded:
		if l.draft == nil {
			break
		}
		m := l.draft.message
		l.draft = nil
		m.State = messages.EntryCommitted
		l.add(m)
		l.record.Turns++
		if m.Usage != nil {
			l.record.Usage = l.record.Usage.Add(*m.Usage)
		}
	}
	return nil
}

// applyAll takes the next events of the log.
func (l *ledger) applyAll(events []messages.Event) error {
	for _, e := range events {
		d, err := e.Decode()
		if err == nil {
			err = l.apply(e, d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// showsImage tells whether there is an image in the conversation. Each entry is
// looked at once: they do not change.
func (l *ledger) showsImage() bool {
	for ; !l.image && l.looked < len(l.entries); l.looked++ {
		l.image = showsImage(l.entries[l.looked])
	}
	return l.image
}

// showsImage tells whether there is an image in a message or in the results of
// its calls.
func showsImage(m messages.Message) bool {
	is := func(p messages.Part) bool { return p.Type == messages.PartImage }
	return slices.ContainsFunc(m.Parts, func(p messages.Part) bool {
		return is(p) || p.Result != nil && slices.ContainsFunc(p.Result.Content, is)
	})
}

// copied takes over the conversation that a fork begins with.
func (l *ledger) copied(d messages.EventData) error {
	if d.Entries == nil || l.load == nil {
		return errors.New("the fork does not say what it copied")
	}
	b, err := l.load(d.Entries.Blob)
	if err != nil {
		return fmt.Errorf("copied conversation: %w", err)
	}
	var entries []messages.Message
	if err := json.Unmarshal(b, &entries); err != nil {
		return fmt.Errorf("copied conversation: %w", err)
	}
	for _, m := range entries {
		l.add(m)
	}
	return nil
}

func (l *ledger) add(m messages.Message) {
	l.entries = append(l.entries, m)
	l.unsaved += textSize(m)
}

// textSize is about how much an entry says, in bytes.
func textSize(m messages.Message) (n int) {
	for _, p := range m.Parts {
		n += len(p.Text) + len(p.Signature) + len(p.Arguments)
		if p.Result != nil {
			n += len(p.Result.Details)
			for _, q := range p.Result.Content {
				n += len(q.Text)
			}
		}
	}
	return n
}

func (l *ledger) dequeue(id string) {
	l.inbox = slices.DeleteFunc(l.inbox, func(in input) bool { return in.id == id })
}

// queued returns the waiting prompts as clients see them.
func (l *ledger) queued() []messages.QueuedPrompt {
	q := make([]messages.QueuedPrompt, 0, len(l.inbox))
	for _, in := range l.inbox {
		q = append(q, messages.QueuedPrompt{ID: in.id, Text: in.body.Text, Delivery: in.delivery, AdmittedAt: messages.ISOTime(in.at)})
	}
	return q
}

// waiting tells whether a prompt waits, and whether its admission is still on
// its way to the disk.
func (l *ledger) waiting(id string) (queued, arriving bool) {
	for _, in := range l.inbox {
		if in.id == id {
			return true, in.unwritten
		}
	}
	return false, false
}

// ready says that the admission of a prompt is on disk.
func (l *ledger) ready(id string) {
	for i := range l.inbox {
		if l.inbox[i].id == id {
			l.inbox[i].unwritten = false
		}
	}
}

// taken tells whether a message that is no prompt has that id.
func (l *ledger) taken(id string) bool {
	return l.has(id) || l.draft != nil && l.draft.message.ID == id
}

// has tells whether an entry has that id. It is asked too seldom for an index
// of tens of thousands of entries to be kept.
func (l *ledger) has(id string) bool {
	return slices.ContainsFunc(l.entries, func(m messages.Message) bool { return m.ID == id })
}

// hasSteer tells whether a prompt waits to join the running exchange.
func (l *ledger) hasSteer() bool { return len(l.next(false)) > 0 }

// next returns what is promoted now: the steers, oldest first; or, where an
// exchange begins and no steer waits, the oldest followUp.
func (l *ledger) next(exchangeBegins bool) []input {
	var steers, others []input
	for _, in := range l.inbox {
		switch {
		case in.unwritten:
		case in.delivery == messages.Steer:
			steers = append(steers, in)
		default:
			others = append(others, in)
		}
	}
	if len(steers) == 0 && exchangeBegins && len(others) > 0 {
		return others[:1]
	}
	return steers
}

// finished tells whether the conversation has nothing that a model should
// answer.
func (l *ledger) finished() bool {
	if len(l.entries) == 0 {
		return true
	}
	last := l.entries[len(l.entries)-1]
	return last.Role == messages.RoleAssistant && last.State == messages.EntryCommitted &&
		(last.StopReason == messages.StopStop || last.StopReason == messages.StopLength)
}

func userMessage(id string, p messages.PromptBody, at int64) messages.Message {
	m := messages.Message{ID: id, Role: messages.RoleUser, Timestamp: at}
	if p.Text != "" {
		m.Parts = append(m.Parts, messages.Part{Type: messages.PartText, Text: p.Text})
	}
	m.Parts = append(m.Parts, p.Parts...)
	return m
}

// promptHash is the identity of a prompt's content: the same id may be sent
// again only with the same hash.
func promptHash(p messages.PromptBody, d messages.Delivery) string {
	h := sha256.New()
	// Encoding a struct of strings cannot fail.
	_ = json.NewEncoder(h).Encode(struct {
		P messages.PromptBody
		D messages.Delivery
	}{p, d})
	return hex.EncodeToString(h.Sum(nil))
}

// keptText is what stays of a stopped message: its text, never thinking or
// calls. Without text nothing stays.
func keptText(parts []messages.Part) []messages.Part {
	kept := []messages.Part{} // none is an empty list for clients, never null
	for _, p := range parts {
		if p.Type == messages.PartText && p.Text != "" {
			kept = append(kept, messages.Part{Type: messages.PartText, Text: p.Text})
		}
	}
	return kept
}
