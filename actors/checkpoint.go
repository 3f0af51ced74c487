package actors

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"unicode/utf8"

	"codework/internal/store"
	"codework/messages"
)

// This file keeps what a session's log comes to beside the log, so that a long
// session is there again in milliseconds. Entries never change, so a checkpoint
// holds those that came since the one before it, and what else the ledger knows.
// It says exactly what the log says when it is read: one that cannot be read is
// made anew from the log.

// A checkpoint is written once there is this much behind the one before: about
// what can be read in 5 ms. Short sessions have none. It goes with whatever is
// written then, but with no answer that is under way and with no prompt, whose
// sender waits.
const (
	checkpointEvents = 512
	checkpointText   = 128 << 10
)

// foldVersion is changed with whatever apply makes of the same events, or with
// the form below: checkpoints of another version are not read.
const foldVersion = 1

// A checkpoint is
//
//	version  1 byte
//	rest     a uvarint length and JSON: the ledger but for its entries
//	entries  a uvarint number, and each of them
//
// An entry is its fields in the order of messages.Message, those of its parts in
// the order of messages.Part. Text has a uvarint length before it, integers are
// varints, costs 8 bytes. A list has its length plus one before it, 0 for none
// at all; a value that may be missing has a byte that says whether it is there.
type restOfLedger struct {
	Usage     messages.Usage `json:"usage"`
	Discarded messages.Usage `json:"discarded"`
	Turns     int            `json:"turns"`
	Title     string         `json:"title,omitempty"`
	TitleSet  bool           `json:"titleSet,omitempty"`
	UpdatedAt int64          `json:"updatedAt"`
	Crashes   int            `json:"crashes,omitempty"`
	Running   bool           `json:"running,omitempty"`
	Inbox     []restOfInbox  `json:"inbox,omitempty"`
	// Draft is the answer that is not committed yet.
	Draft *messages.Message `json:"draft,omitempty"`
	Ended bool              `json:"ended,omitempty"`
}

type restOfInbox struct {
	ID       string              `json:"id"`
	Body     messages.PromptBody `json:"body"`
	Delivery messages.Delivery   `json:"delivery"`
	Seq      int64               `json:"seq"`
	At       int64               `json:"at"`
}

// due tells whether there is enough for a checkpoint.
func (l *ledger) due(events int64) bool {
	return l.draft == nil && (l.seq-l.saved >= events || l.unsaved >= checkpointText)
}

// checkpoint is one of what the ledger says now. It goes on from the one before.
func (l *ledger) checkpoint() *store.Checkpoint {
	r := l.record
	rest := restOfLedger{Usage: r.Usage, Discarded: r.Discarded, Turns: r.Turns, Title: r.Title, TitleSet: r.TitleSet,
		UpdatedAt: r.UpdatedAt, Crashes: l.crashes, Running: l.running}
	for _, in := range l.inbox {
		rest.Inbox = append(rest.Inbox, restOfInbox{in.id, in.body, in.delivery, in.seq, in.at})
	}
	if l.draft != nil {
		rest.Draft, rest.Ended = &l.draft.message, l.draft.ended
	}
	text, err := messages.JSON(rest)
	if err != nil {
		panic(err) // nothing in it has no JSON form
	}
	fresh := l.entries[l.kept:]
	p := packer{b: make([]byte, 0, l.unsaved+len(text)+len(fresh)*entryOverhead)}
	p.b = append(p.b, foldVersion)
	p.text(string(text))
	p.length(len(fresh))
	for i := range fresh {
		p.entry(&fresh[i])
	}
	c := &store.Checkpoint{Seq: l.seq, After: l.saved, Data: p.b}
	l.saved, l.kept, l.unsaved = l.seq, len(l.entries), 0
	return c
}

// entryOverhead is about what an entry takes beside its text, entryLeast the
// least that it takes.
const (
	entryOverhead = 128
	entryLeast    = 13
)

// fromCheckpoints is a ledger that says what the events say which the checkpoints
// cover.
func fromCheckpoints(record messages.SessionRecord, list []store.Checkpoint) (*ledger, error) {
	l := newLedger(record)
	var rest restOfLedger
	all := 0
	bodies := make([]unpacker, len(list))
	counts := make([]int, len(list))
	for i := range list {
		u := unpacker{s: string(list[i].Data)}
		if u.byte() != foldVersion {
			return nil, errOtherFold
		}
		text := u.text()
		if i == len(list)-1 && json.Unmarshal([]byte(text), &rest) != nil {
			return nil, errCheckpoint
		}
		if counts[i] = u.length(); counts[i] > u.left()/entryLeast {
			return nil, errCheckpoint
		}
		bodies[i], all = u, all+counts[i]
		l.seq, l.saved = list[i].Seq, list[i].Seq
	}
	if len(list) == 0 {
		return l, nil
	}
	l.restore(rest)
	l.entries = make([]messages.Message, 0, all+all/8) // more will come
	for i := range bodies {
		u := &bodies[i]
		for range counts[i] {
			l.entries = l.entries[:len(l.entries)+1]
			u.entry(&l.entries[len(l.entries)-1])
		}
		if u.bad || u.left() > 0 {
			return nil, errCheckpoint
		}
	}
	l.kept = len(l.entries)
	return l, nil
}

// Reasons why a checkpoint is not read.
var (
	errOtherFold  = errors.New("checkpoint of another version")
	errCheckpoint = errors.New("checkpoint has no known form")
)

func (l *ledger) restore(r restOfLedger) {
	l.record.Usage, l.record.Discarded, l.record.Turns = r.Usage, r.Discarded, r.Turns
	if r.TitleSet && !l.record.TitleSet {
		l.record.Title, l.record.TitleSet = r.Title, true
	}
	l.record.UpdatedAt = max(l.record.UpdatedAt, r.UpdatedAt)
	l.crashes, l.running = r.Crashes, r.Running
	if r.Draft != nil {
		l.draft = &draft{*r.Draft, r.Ended}
	}
	for _, in := range r.Inbox {
		l.inbox = append(l.inbox, input{id: in.ID, body: in.Body, delivery: in.Delivery, seq: in.Seq, at: in.At})
	}
}

// recall is readLedger from the newest checkpoint on.
func recall(ctx context.Context, st Store, id string) (*ledger, store.Snapshot, error) {
	snap, err := st.Recall(ctx, id)
	if err != nil {
		return nil, snap, err
	}
	if snap.Damaged == nil {
		led, err := fromCheckpoints(snap.Record, snap.Checkpoints)
		if err == nil {
			led.load = st.Blob
			if err = led.applyAll(snap.Events); err == nil {
				return led, snap, nil
			}
		}
	}
	return readLedger(ctx, st, id)
}

// checkpointsFit compares what the checkpoints of a session say with its log.
// The answer is what is wrong with them, "" for nothing, and the ledger that
// the log says.
func checkpointsFit(ctx context.Context, st Store, id string) (wrong string, l *ledger, err error) {
	kept, err := st.Recall(ctx, id)
	if err != nil || len(kept.Checkpoints) == 0 || kept.Damaged != nil {
		return "", nil, err // there is nothing to compare
	}
	whole, err := st.Load(ctx, id)
	if err != nil || whole.Damaged != nil {
		return "", nil, err
	}
	last := kept.Checkpoints[len(kept.Checkpoints)-1].Seq
	l = newLedger(whole.Record)
	l.load = st.Blob
	at := slices.IndexFunc(whole.Events, func(e messages.Event) bool { return e.Seq > last })
	if at < 0 {
		at = len(whole.Events)
	}
	if err := l.applyAll(whole.Events[:at]); err != nil {
		return "", nil, err
	}
	led, err := fromCheckpoints(whole.Record, kept.Checkpoints)
	switch {
	case errors.Is(err, errOtherFold): // it was made by another build, and is made anew
		return "", l, nil
	case err != nil:
		wrong = err.Error()
	case !l.same(led):
		wrong = "it says something else than the log"
	}
	if wrong != "" {
		wrong = fmt.Sprintf("checkpoint at event %d: %s", last, wrong)
	}
	return wrong, l, l.applyAll(whole.Events[at:])
}

// same tells whether two ledgers say the same.
func (l *ledger) same(o *ledger) bool {
	return l.seq == o.seq && l.crashes == o.crashes && l.running == o.running && reflect.DeepEqual(l.record, o.record) &&
		reflect.DeepEqual(l.draft, o.draft) && slices.EqualFunc(l.inbox, o.inbox, func(a, b input) bool { return reflect.DeepEqual(a, b) }) &&
		slices.EqualFunc(l.entries, o.entries, func(a, b messages.Message) bool { return reflect.DeepEqual(a, b) })
}

// packer writes entries as their events say them when they are read: in JSON.
type packer struct{ b []byte }

func (p *packer) length(n int)   { p.b = binary.AppendUvarint(p.b, uint64(n)) }
func (p *packer) number(n int64) { p.b = binary.AppendVarint(p.b, n) }

func (p *packer) text(s string) {
	if !utf8.ValidString(s) {
		s = string([]rune(s)) // a replacement for each bad byte, as encoding/json has it
	}
	p.length(len(s))
	p.b = append(p.b, s...)
}

func (p *packer) flag(is bool) bool {
	b := byte(0)
	if is {
		b = 1
	}
	p.b = append(p.b, b)
	return is
}

func (p *packer) cost(f float64) {
	p.b = binary.BigEndian.AppendUint64(p.b, math.Float64bits(f))
}

// raw writes JSON; what is none is nothing.
func (p *packer) raw(r json.RawMessage) {
	var b bytes.Buffer
	if len(r) > 0 && json.Compact(&b, r) != nil {
		b.Reset()
	}
	p.length(b.Len())
	p.b = append(p.b, b.Bytes()...)
}

func (p *packer) entry(m *messages.Message) {
	p.text(m.ID)
	p.text(string(m.Role))
	p.text(string(m.State))
	p.parts(m.Parts)
	p.text(m.Provider)
	p.text(m.Protocol)
	p.text(m.Model)
	p.text(m.ResponseModel)
	p.text(m.ResponseID)
	p.text(string(m.StopReason))
	if p.flag(m.Usage != nil) {
		p.usage(m.Usage)
	}
	if p.flag(m.Failure != nil) {
		text, err := messages.JSON(m.Failure)
		if err != nil {
			panic(err) // it holds numbers and text
		}
		p.text(string(text))
	}
	p.number(m.Timestamp)
}

func (p *packer) usage(u *messages.Usage) {
	for _, n := range [...]int64{u.Input, u.Output, u.Reasoning, u.CacheRead, u.CacheWrite, u.TotalTokens} {
		p.number(n)
	}
	for _, f := range [...]float64{u.Cost.Input, u.Cost.Output, u.Cost.CacheRead, u.Cost.CacheWrite, u.Cost.Total, u.ProviderCost} {
		p.cost(f)
	}
}

func (p *packer) parts(parts []messages.Part) {
	if parts == nil {
		p.length(0)
		return
	}
	p.length(len(parts) + 1)
	for i := range parts {
		q := &parts[i]
		for _, s := range [...]string{string(q.Type), q.Text, q.Signature, q.MediaType, q.Blob,
			q.CallID, q.Name, q.Label, q.Arguments, q.ItemID, string(q.Call)} {
			p.text(s)
		}
		p.flag(q.Redacted)
		p.number(q.Bytes)
		if p.flag(q.Result != nil) {
			p.parts(q.Result.Content)
			p.raw(q.Result.Details)
			p.flag(q.Result.IsError)
		}
	}
}

// unpacker reads what a packer wrote. Text is cut out of the whole, parts and
// usages out of stretches, so that a thousand entries take a few allocations. bad
// says that there was something else; whatever is read then means nothing.
type unpacker struct {
	s      string
	at     int // what is before it was read
	bad    bool
	room   []messages.Part
	usages []messages.Usage
}

// stretch is how many parts and usages are made room for at once.
const stretch = 128

// cut takes n out of a stretch.
func cut[T any](room *[]T, n int) []T {
	if *room == nil || len(*room) < n {
		*room = make([]T, max(n, stretch))
	}
	some := (*room)[:n:n]
	*room = (*room)[n:]
	return some
}

func (u *unpacker) left() int { return len(u.s) - u.at }

func (u *unpacker) take(n int) string {
	if n < 0 || n > u.left() {
		u.bad, u.at = true, len(u.s)
		return ""
	}
	u.at += n
	return u.s[u.at-n : u.at]
}

func (u *unpacker) byte() byte {
	if u.at == len(u.s) {
		u.bad = true
		return 0
	}
	u.at++
	return u.s[u.at-1]
}

func (u *unpacker) flag() bool {
	b := u.byte()
	u.bad = u.bad || b > 1
	return b == 1
}

// uvarint is binary.Uvarint of text.
func (u *unpacker) uvarint() (n uint64) {
	for shift := 0; shift < 64; shift += 7 {
		b := u.byte()
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return n
		}
	}
	u.bad = true
	return 0
}

// length is never more than there is left: nothing is made room for that cannot
// come.
func (u *unpacker) length() int {
	n := u.uvarint()
	if n > uint64(u.left())+1 {
		u.bad = true
		return 0
	}
	return int(n)
}

func (u *unpacker) number() int64 {
	n := u.uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

func (u *unpacker) text() string { return u.take(u.length()) }

func (u *unpacker) cost() float64 {
	s := u.take(8)
	if s == "" {
		return 0
	}
	var n uint64
	for i := range 8 {
		n = n<<8 | uint64(s[i])
	}
	return math.Float64frombits(n)
}

func (u *unpacker) raw() json.RawMessage {
	if s := u.text(); s != "" {
		return json.RawMessage(s)
	}
	return nil
}

func (u *unpacker) entry(m *messages.Message) {
	m.ID = u.text()
	m.Role = messages.Role(u.text())
	m.State = messages.EntryState(u.text())
	m.Parts = u.parts(0)
	m.Provider = u.text()
	m.Protocol = u.text()
	m.Model = u.text()
	m.ResponseModel = u.text()
	m.ResponseID = u.text()
	m.StopReason = messages.StopReason(u.text())
	if u.flag() {
		m.Usage = u.usage()
	}
	if u.flag() {
		m.Failure = &messages.Failure{}
		if json.Unmarshal([]byte(u.text()), m.Failure) != nil {
			u.bad = true
		}
	}
	m.Timestamp = u.number()
}

func (u *unpacker) usage() *messages.Usage {
	v := &cut(&u.usages, 1)[0]
	for _, n := range [...]*int64{&v.Input, &v.Output, &v.Reasoning, &v.CacheRead, &v.CacheWrite, &v.TotalTokens} {
		*n = u.number()
	}
	for _, f := range [...]*float64{&v.Cost.Input, &v.Cost.Output, &v.Cost.CacheRead, &v.Cost.CacheWrite, &v.Cost.Total, &v.ProviderCost} {
		*f = u.cost()
	}
	return v
}

// partBytes is the least that a part takes, nesting how deep parts are in parts:
// the results of calls hold text and images.
const (
	partBytes = 14
	nesting   = 2
)

func (u *unpacker) parts(depth int) []messages.Part {
	n := u.length() - 1
	if n < 0 || u.bad {
		return nil
	}
	if depth == nesting || n > u.left()/partBytes {
		u.bad = true
		return nil
	}
	parts := cut(&u.room, n)
	for i := range parts {
		q := &parts[i]
		q.Type = messages.PartType(u.text())
		for _, s := range [...]*string{&q.Text, &q.Signature, &q.MediaType, &q.Blob, &q.CallID, &q.Name, &q.Label, &q.Arguments, &q.ItemID} {
			*s = u.text()
		}
		q.Call = messages.CallState(u.text())
		q.Redacted = u.flag()
		q.Bytes = u.number()
		if u.flag() {
			q.Result = &messages.ToolResult{Content: u.parts(depth + 1), Details: u.raw(), IsError: u.flag()}
		}
	}
	return parts
}
