package actors

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"codework/internal/metrics"
	"codework/internal/store"
	"codework/internal/tools"
	"codework/internal/traces"
	"codework/messages"
)

// idleAfter is how long a session without work stays in memory: as long as the
// store keeps its database open. Who prompts it later waits for that anyway, much
// longer than for the session.
const idleAfter = 30 * time.Second

// maxPromptEvent bounds a prompt as it travels: an event must fit a frame of
// 16 MiB with room to spare.
const maxPromptEvent = 12 << 20

// maxQueued bounds the prompts that wait in one session.
const maxQueued = 1000

// sessionDeps are what every session shares.
type sessionDeps struct {
	store   Store
	prepare Preparer
	publish func([]*published)
	inHub   func(any)          // tells the hub that the session is in memory, or no more
	changed func(sessionState) // tells the guardian what the session does now
	retire  func(id string)    // asks the guardian to unload the session
	// rests answers mayRest: whether the session can be unloaded now.
	rests func(id string, yes bool)
	// unmount ends a session's mounts: on the host, or everywhere.
	unmount func(session string, onlyHost bool)
	places  places
	clock   func() time.Time
	claims  *claims
	begins  *turnstile
	sights  *sights
	idle    time.Duration
	// checkpoints is how many events there are between two, at least.
	checkpoints int64
	count       *metrics.Metrics // nil counts nothing
	traces      *traces.Traces   // nil follows nothing
}

// sessionState is what the guardian knows of a live session.
type sessionState struct {
	id     string
	status messages.SessionStatus
	queued int
	title  string
	// pending tells that a prompt is on its way to the disk: it is answered, and
	// work follows.
	pending bool
	sandbox string // where it works
}

// uses is the sandbox that the session works in now; "" is none that counts
// its users.
func (s sessionState) uses() string {
	if s.status == messages.SessionIdle || messages.IsHost(s.sandbox) {
		return ""
	}
	return s.sandbox
}

// busy is 1 for a session that has work, or is about to.
func (s sessionState) busy() int {
	if s.status == messages.SessionIdle && !s.pending {
		return 0
	}
	return 1
}

type phase uint8

const (
	loading phase = iota
	broken        // the log cannot be read or healed now; every message is refused
	idle
	busy
	stopping
)

// session is the actor of one session: its inbox, its conversation, and the
// state machine that turns prompts into requests and tool runs.
//
// Messages that come while the log is being read wait for it. Everything
// recorded is an event: append puts it into the log and into memory at once,
// and tells readers when it is on disk. When an append fails, memory is thrown
// away and read from the log again, so that it never runs ahead.
type session struct {
	sessionDeps
	id  string
	me  *Self
	now time.Time // of the message being handled
	// trace outlives restarts of the session: work that one cut off ends with the
	// event that says so.
	trace *traces.Session

	phase   phase
	epoch   uint64 // of the state in memory: answers to an older one are dropped
	held    []held // what came while loading
	led     *ledger
	out     outbox
	exec    *execution
	wake    bool  // a prompt came while busy
	healing bool  // what a crash left open is being settled
	lostTo  error // the append that failed and made the session read its log again
	waiters []Reply
	joined  []Reply // resumes that wait for the running execution's outcome
	resumes []Reply // resumes that came while stopping: they start the next one

	// clients are the local connections whose life the session's work is tied
	// to; world is what the latest of them sees.
	clients  map[string]bool
	world    *messages.World
	leave    bool // the last local client has left; its mount goes when work ends
	keepJobs bool // background jobs outlive the session's clients
	seen     *tools.Seen
	// bound tells of prompts with which client their work ends. It is kept
	// beside the log, which may be read again under it.
	bound    map[string]string
	checking map[string]int  // prompts that are looked up, by the client they are bound to
	left     map[string]bool // clients that have gone while their prompts were looked up
	lookups  map[string]bool // prompts that are looked up, by id; true: taken back meanwhile
	closing  bool            // the process ends: nothing new is begun
	cache    *messages.EncodeCache
	told     map[string]bool // notices said already
	rest     func()          // stops the timer of the rest
	stays    bool            // it could not be unloaded when it was asked; the guardian hears when it can
}

type held struct {
	m     any
	reply Reply
}

// Messages of the session to itself.
type (
	loaded struct {
		epoch  uint64
		led    *ledger
		calls  []string         // started and not settled
		untold []messages.Event // recorded, but readers were not given them
		err    error
	}
	written struct {
		epoch uint64
		err   error
	}
	checked struct { // the id of a prompt was looked up
		prompt messages.Prompt
		body   messages.PromptBody
		reply  Reply
		err    error
		known  bool
		lookup string // its place in session.lookups
	}
	restOver struct{ epoch uint64 }
)

// clientGone tells a session that a local client has ended.
type clientGone struct{ conn string }

// mayRest asks a session whether it can be unloaded: whoever asks holds back
// what comes for it until rests was called.
type mayRest struct{}

// wrapUp makes a session stop its work and begin nothing new. It is answered
// when all is on disk. Where the session is unloaded then, others who wait for
// the end of its work are not: they ask again, for it may be deleted meanwhile.
type wrapUp struct{ unloads bool }

// resumeSession starts work that is pending, or goes on with a conversation
// that waits for an answer; it is answered with the outcome.
type resumeSession struct{}

func newSession(d sessionDeps, id string) func() Actor {
	told, trace := &position{unknown: true}, d.traces.Session(id)
	return func() Actor {
		return &session{sessionDeps: d, id: id, trace: trace, clients: map[string]bool{}, told: map[string]bool{}, seen: d.sights.of(id),
			bound: map[string]string{}, checking: map[string]int{}, left: map[string]bool{}, lookups: map[string]bool{}, cache: &messages.EncodeCache{}, out: outbox{told: told}}
	}
}

// Receive owns every field of s and never waits.
func (s *session) Receive(me *Self, m any) {
	s.me, s.now = me, s.clock()
	switch m := m.(type) {
	case Started:
		s.out.publish = s.publish
		s.out.opened = func(seq int64) { s.inHub(opened{s.id, seq}) }
		s.load()
	case Stopped:
		if s.rest != nil {
			s.rest() // a timer that waits keeps the whole session in memory
		}
		s.claims.dropAll(s.id)
		s.out.fail(errStopped)
		s.inHub(closed{s.id})
		return
	case loaded:
		if m.epoch == s.epoch {
			s.opened(m)
		}
	case written:
		if m.epoch == s.epoch {
			s.onWritten(m.err)
		}
	default:
		switch s.phase {
		case loading:
			s.held = append(s.held, held{m, me.TakeReply()})
		case broken:
			if _, ok := m.(mayRest); ok {
				s.rests(s.id, true)
				return
			}
			// Whatever stood in the way may be gone: the log is read again.
			s.held = append(s.held, held{m, me.TakeReply()})
			s.load()
		default:
			s.handle(m)
		}
	}
}

func (s *session) handle(m any) {
	me := s.me
	switch m := m.(type) {
	case messages.Prompt:
		s.prompt(m, me.TakeReply())
		s.tellState() // the guardian counts on hearing of every prompt
	case checked:
		s.onChecked(m)
		s.tellState() // it is pending no more, or written
	case messages.Interrupt:
		if m.Prompt != "" {
			me.Answer(s.takeBackPrompt(m), nil)
			break
		}
		me.Answer(s.interrupt(m, false), nil)
	case messages.Wait:
		s.waiters = append(s.waiters, me.TakeReply())
		s.answerWaiters()
	case resumeSession:
		s.onResume(me.TakeReply())
	case messages.GetSession:
		me.Answer(s.info(), nil)
	case messages.Configure:
		s.configure(m, me.TakeReply())
	case messages.HasMessage:
		me.Answer(messages.Found{Found: s.led.has(m.MessageID)}, nil)
	case messages.GetQueue:
		s.queue(m, me.TakeReply())
	case messages.GetHistory:
		s.history(m, me.TakeReply())
	case messages.Rename:
		s.rename(m, me.TakeReply())
	case messages.Link:
		s.link(m, me.TakeReply())
	case messages.Relink:
		s.relink(m, me.TakeReply())
	case moved:
		s.onMoved(m)
	case messages.GetBlob:
		s.blob(m, me.TakeReply())
	case wakeQueued:
		s.wakeQueued()
	case clientGone:
		s.clientGone(m.conn)
	case wrapUp:
		s.closing = true
		s.interrupt(messages.Interrupt{Reason: messages.ByShutdown}, false)
		if m.unloads {
			s.waiters = nil
		}
		s.waiters = append(s.waiters, me.TakeReply())
	case mayRest:
		s.stays = !s.canRest()
		s.rests(s.id, !s.stays)
	case restOver:
		if m.epoch == s.epoch && s.phase == idle && len(s.clients) == 0 {
			s.retire(s.id)
		}
	default:
		s.onExecution(m)
	}
	s.afterMessage()
}

// afterMessage does what follows from the new state: answers to those who
// wait, and the timer of the rest.
func (s *session) afterMessage() {
	if s.phase == loading || s.phase == broken {
		return
	}
	s.answerWaiters()
	if s.stays && s.canRest() {
		s.stays = false
		s.tellState()
	}
	if s.rest != nil {
		s.rest()
		s.rest = nil
	}
	if s.phase == idle && s.idle > 0 {
		s.rest = s.me.After(s.idle, restOver{s.epoch})
	}
}

// canRest tells whether nothing would be missed if the session were unloaded.
func (s *session) canRest() bool {
	return s.phase == idle && len(s.out.waiting) == 0 && len(s.checking) == 0 && len(s.clients) == 0
}

func (s *session) answerWaiters() {
	if s.phase != idle || len(s.out.waiting) > 0 {
		return
	}
	for _, r := range s.waiters {
		r.Send(nil, nil)
	}
	s.waiters = nil
}

// load reads the log, beside the actor.
func (s *session) load() {
	s.phase = loading
	s.me.Doing("loading", "")
	s.epoch = nextGeneration()
	if s.exec != nil {
		s.exec.endExchange()
	}
	s.exec = nil
	epoch, id, told := s.epoch, s.id, *s.out.told
	// What was appended before, by an earlier incarnation too, is on disk or
	// refused when the log is read: batches are answered in order.
	settled := make(chan struct{})
	if told.unknown {
		close(settled)
	} else {
		s.store.Append(store.Batch{Session: id}, func(error) { close(settled) })
	}
	s.me.Go(func(ctx context.Context) any {
		select {
		case <-settled:
		case <-ctx.Done():
			return nil
		}
		read := recall
		if !told.unknown {
			read = readLedger // readers may lack events that a checkpoint covers
		}
		led, snap, err := read(ctx, s.store, id)
		if err != nil {
			return loaded{epoch: epoch, err: err}
		}
		return loaded{epoch: epoch, led: led, calls: snap.Started, untold: told.behind(snap.Events)}
	})
}

// opened goes on with what load found.
func (s *session) opened(m loaded) {
	if m.err != nil {
		var missing *messages.SessionNotFound
		if !errors.As(m.err, &missing) {
			s.me.Log().Error("session cannot be read", "session", s.id, "err", m.err)
			m.err = &messages.Refused{Name: messages.RefusedStore, Message: "session " + s.id + " cannot be read: " + m.err.Error()}
		}
		s.breakDown(m.err)
		return
	}
	s.led = m.led
	s.phase = idle
	s.cache = &messages.EncodeCache{}
	s.out.catchUp(m.led.seq, m.untold)
	s.heal(m.calls)
	s.takeBack()
	s.tellState()
	waiting := s.held
	s.held = nil
	for _, h := range waiting {
		s.me.reply = h.reply
		s.handle(h.m)
		s.me.reply = Reply{}
	}
	s.afterMessage()
}

// breakDown refuses everything with err and asks to be unloaded, so that the
// next message tries anew.
func (s *session) breakDown(err error) {
	s.phase = broken
	s.tellDoing()
	s.trace.Ended(metrics.Failed, nil, "")
	if s.out.running {
		// Not even the end of the work can be written. It is told all the same.
		s.out.live(s.unrecordedEnd(err))
		s.out.running = false
	}
	for _, h := range s.held {
		switch m := h.m.(type) {
		case mayRest: // the guardian holds everything back until it hears
			s.rests(s.id, true)
		case checked:
			s.claims.dropFor(m.prompt.ID, s.id)
			m.reply.Send(nil, err)
		case moved:
			m.reply.Send(nil, err)
		default:
			h.reply.Send(nil, err)
		}
	}
	s.held = nil
	s.checking, s.left, s.lookups = map[string]int{}, map[string]bool{}, map[string]bool{}
	s.refuseWaiters(err)
	s.retire(s.id)
}

func (s *session) refuseWaiters(err error) {
	for _, r := range slices.Concat(s.waiters, s.joined, s.resumes) {
		r.Send(nil, err)
	}
	s.waiters, s.joined, s.resumes = nil, nil, nil
}

// record is an event to be appended.
type record struct {
	kind string
	data messages.EventData
}

// write is what one append puts on disk beside its events.
type write struct {
	start  []string // calls whose handler runs once this is on disk
	settle []string // calls that have their result
	prompt *checked
	record bool // the session's own record changed
}

// append records events, in memory now and on disk soon; then runs once they
// are on disk, or with the error that threw the session's memory away.
func (s *session) append(w write, then func(error), records ...record) {
	b := store.Batch{Session: s.id, Started: w.start, Settled: w.settle}
	for _, r := range records {
		d := r.data
		d.Timestamp, d.SessionID = s.now.UnixMilli(), s.id
		e := messages.Event{ID: messages.NewEventID(), Type: r.kind, Session: s.id, Seq: s.led.seq + 1, Data: encode(d)}
		if err := s.led.apply(e, d); err != nil {
			panic(err) // our own event does not fit our own state
		}
		b.Events = append(b.Events, e)
		s.observe(r.kind, &d)
	}
	if w.prompt != nil { // who sent it waits: no checkpoint
		b.PromptID, b.PromptHash = w.prompt.prompt.ID, promptHash(w.prompt.body, w.prompt.prompt.Delivery)
	} else if len(b.Events) > 0 && s.led.due(s.checkpoints) {
		b.Checkpoint = s.led.checkpoint()
	}
	if w.record {
		rec := s.led.record
		rec.Queued = len(s.led.inbox)
		b.Record = &rec
	}
	s.out.add(slices.Clip(b.Events), then)
	epoch, tell, count, at := s.epoch, s.me.Later(), s.count, time.Now()
	s.store.Append(b, func(err error) {
		count.Append(time.Since(at))
		tell(written{epoch, err})
	})
}

// live tells readers something that is not recorded.
func (s *session) live(kind string, d messages.EventData) { s.liveOf(kind, d, 0) }

// liveOf is live for a piece that others were joined to.
func (s *session) liveOf(kind string, d messages.EventData, more int) {
	d.Timestamp, d.SessionID = s.now.UnixMilli(), s.id
	s.observe(kind, &d)
	e := messages.Event{ID: messages.NewEventID(), Type: kind, Session: s.id, Data: encode(d), Piece: pieceOf(kind, &d, more)}
	if s.led != nil {
		e.After = s.led.seq
	}
	s.out.live(e)
}

// pieceOf tells what can be joined of a live event; nil when nothing can.
func pieceOf(kind string, d *messages.EventData, more int) *messages.Piece {
	switch kind {
	case messages.EventLLMTextDelta, messages.EventLLMThinkingDelta, messages.EventLLMCallDelta:
		return &messages.Piece{At: d.Timestamp, MessageID: d.MessageID, Part: *d.PartIndex, Text: *d.Delta, More: more}
	case messages.EventToolProgress:
		return &messages.Piece{At: d.Timestamp, MessageID: d.MessageID, CallID: d.CallID}
	}
	return nil
}

func encode(d messages.EventData) json.RawMessage {
	b, err := d.JSON()
	if err != nil {
		panic(err) // EventData holds nothing that has no JSON form
	}
	return b
}

func (s *session) onWritten(err error) {
	if err == nil {
		s.out.committed()
		s.afterMessage()
		return
	}
	s.lost(err)
}

// lost throws memory away after an append that failed: the log is the truth.
// Whoever waited is told why. Work that runs by the log ends when the log has
// been read again.
func (s *session) lost(err error) {
	s.me.Log().Warn("session could not be written", "session", s.id, "err", err)
	if s.exec != nil && s.exec.cancel != nil {
		s.exec.cancel()
	}
	healing := s.healing
	s.out.fail(err)
	if healing {
		s.breakDown(err)
		return
	}
	s.refuseWaiters(err)
	s.wake, s.lostTo = false, err
	s.load()
}

func (s *session) unrecordedEnd(err error) messages.Event {
	f := messages.Failure{Type: messages.FailInternal, Message: err.Error()}
	return messages.Event{ID: messages.NewEventID(), Type: messages.EventExecutionFailed, Session: s.id, After: s.led.seq,
		Data: encode(messages.EventData{Timestamp: s.now.UnixMilli(), SessionID: s.id, Error: &f})}
}

// prompt checks a prompt and looks up its id; nothing is written yet.
func (s *session) prompt(p messages.Prompt, reply Reply) {
	if err := p.Validate(); err != nil {
		reply.Send(nil, err)
		return
	}
	waiting := len(s.led.inbox)
	for _, n := range s.checking {
		waiting += n
	}
	if waiting >= maxQueued {
		reply.Send(nil, &messages.Refused{Name: messages.RefusedBusy, Message: "too many prompts wait in this session; wait for some to finish, or clear its queue"})
		return
	}
	if p.UnlessBusy && s.works() {
		reply.Send(nil, &messages.SessionBusy{SessionID: s.id})
		return
	}
	if p.Delivery == "" {
		p.Delivery = messages.Steer
	}
	body := messages.PromptBody{Text: p.Text, Parts: p.Parts}
	if len(encode(messages.EventData{Prompt: &body})) > maxPromptEvent {
		reply.Send(nil, errors.New("text: the prompt is too large"))
		return
	}
	c := checked{prompt: p, body: body, reply: reply}
	images := slices.ContainsFunc(p.Parts, func(q messages.Part) bool { return len(q.Data) > 0 })
	if !images && (p.ID == "" || p.UnlessBusy) {
		if p.ID == "" {
			c.prompt.ID = messages.NewMessageID()
		}
		s.admit(c)
		return
	}
	if hash, ok := s.led.prompts[p.ID]; ok && !images {
		c.known = hash == promptHash(body, p.Delivery)
		if !c.known {
			c.err = &messages.PromptConflict{SessionID: s.id, MessageID: p.ID}
		}
		s.admit(c)
		return
	}
	s.checking[p.Bound]++
	c.lookup = p.ID
	if c.lookup == "" {
		c.lookup = messages.NewMessageID() // nobody can take it back
	}
	s.lookups[c.lookup] = false
	s.me.Go(func(context.Context) any { return s.check(c) })
}

// onChecked takes a prompt that was looked up, unless its client has gone
// meanwhile and with it who wanted an answer.
func (s *session) onChecked(c checked) {
	conn := c.prompt.Bound
	if s.left[conn] && c.err == nil && !c.known {
		c.err = &messages.Refused{Name: messages.RefusedShutdown, Message: "the client has gone"}
	}
	back := s.lookups[c.lookup]
	delete(s.lookups, c.lookup)
	switch {
	case c.err != nil || c.known:
	case s.closing:
		c.err = errStopped // whose work would not begin any more
	case back:
		c.err = &messages.Refused{Name: messages.RefusedWithdrawn, Message: "the prompt was taken back"}
	case c.prompt.UnlessBusy && s.works(): // since it was asked
		c.err = &messages.SessionBusy{SessionID: s.id}
	}
	if s.checking[conn]--; s.checking[conn] <= 0 {
		delete(s.checking, conn)
		delete(s.left, conn)
	}
	s.admit(c)
}

// check does beside the actor what needs the disk: images become blobs, and
// the prompt's id must not be another session's.
func (s *session) check(c checked) checked {
	if c.prompt.ID == "" {
		c.prompt.ID = messages.NewMessageID()
	}
	c.body.Parts = slices.Clone(c.body.Parts)
	for i := range c.body.Parts {
		p := &c.body.Parts[i]
		if len(p.Data) == 0 {
			continue
		}
		name, err := s.store.PutBlob(p.Data)
		if err != nil {
			c.err = err
			return c
		}
		p.Blob, p.Bytes, p.Data = name, int64(len(p.Data)), nil
	}
	if !s.claims.take(c.prompt.ID, s.id) {
		c.err = &messages.PromptConflict{SessionID: s.id, MessageID: c.prompt.ID}
		return c
	}
	owner, hash, ok, err := s.store.Prompt(c.prompt.ID)
	switch {
	case err != nil:
		c.err = err
	case ok && (owner != s.id || hash != promptHash(c.body, c.prompt.Delivery)):
		c.err = &messages.PromptConflict{SessionID: s.id, MessageID: c.prompt.ID}
	case ok:
		c.known = true
	}
	return c
}

// admit writes a checked prompt; it is answered when it is on disk, and only
// then does anything happen because of it.
func (s *session) admit(c checked) {
	// Another prompt of the same id may have come in meanwhile.
	if hash, ok := s.led.prompts[c.prompt.ID]; ok && c.err == nil && !c.known {
		if c.known = hash == promptHash(c.body, c.prompt.Delivery); !c.known {
			c.err = &messages.PromptConflict{SessionID: s.id, MessageID: c.prompt.ID}
		}
	}
	if c.err == nil && !c.known && s.led.taken(c.prompt.ID) {
		c.err = &messages.PromptConflict{SessionID: s.id, MessageID: c.prompt.ID}
	}
	queued, arriving := s.led.waiting(c.prompt.ID)
	if (c.err != nil || c.known) && !arriving {
		s.claims.dropFor(c.prompt.ID, s.id)
	}
	if c.err != nil {
		c.reply.Send(nil, c.err)
		return
	}
	if c.known && !queued {
		s.out.whenDurable(s.out.mark(), func(err error) { c.reply.Send(nil, err) })
		return
	}
	if c.prompt.World != nil {
		s.world = c.prompt.World
	}
	if c.prompt.Bound != "" {
		s.clients[c.prompt.Bound] = true
		s.bound[c.prompt.ID] = c.prompt.Bound
	}
	if c.known {
		// It waits since before a crash, say: who repeats it wants it done.
		s.out.whenDurable(s.out.mark(), func(err error) {
			// The guardian hears of the work before it does of the answer.
			if queued, _ := s.led.waiting(c.prompt.ID); err == nil && queued {
				s.awake()
			}
			c.reply.Send(nil, err)
		})
		return
	}
	then := func(err error) {
		s.claims.dropFor(c.prompt.ID, s.id)
		c.reply.Send(nil, err)
		if err == nil {
			s.trace.Stored(c.prompt.ID)
			s.led.ready(c.prompt.ID)
			s.awake()
		}
	}
	s.append(write{prompt: &c, record: true}, then, record{messages.EventPromptAdmitted,
		messages.EventData{MessageID: c.prompt.ID, Prompt: &c.body, Delivery: c.prompt.Delivery}})
	s.led.inbox[len(s.led.inbox)-1].unwritten = true
	s.tellState()
}

// works tells whether the session has work or is about to begin some. What is
// being stopped, and what waits after a stop or a failure, is none.
func (s *session) works() bool {
	if s.phase == busy || s.phase == stopping && s.wake {
		return true
	}
	for _, back := range s.lookups {
		if !back {
			return true
		}
	}
	return slices.ContainsFunc(s.led.inbox, func(in input) bool { return in.unwritten })
}

// takeBackPrompt stops what works on one prompt, or takes it back if nothing
// does yet. Other prompts are left alone, unless they are worked on with it.
func (s *session) takeBackPrompt(m messages.Interrupt) messages.Interrupted {
	if _, looked := s.lookups[m.Prompt]; looked {
		s.lookups[m.Prompt] = true
		return messages.Interrupted{Interrupted: true}
	}
	if queued, _ := s.led.waiting(m.Prompt); queued {
		s.removeQueued(func(in input) bool { return in.id == m.Prompt }, nil)
		if s.phase == busy && s.exec.stage == preparing && len(s.led.next(true)) == 0 {
			s.interrupt(m, false) // it was being prepared for nothing else
		}
		return messages.Interrupted{Interrupted: true}
	}
	if s.phase == busy && s.exec.prompts[m.Prompt] {
		return s.interrupt(m, false)
	}
	return messages.Interrupted{}
}

// awake starts work, or remembers that there is some.
func (s *session) awake() {
	switch {
	case s.closing:
	case s.phase != idle:
		s.wake = true
	default:
		s.start(false)
	}
}

func (s *session) onResume(reply Reply) {
	switch s.phase {
	case idle:
		s.joined = append(s.joined, reply)
		s.start(true)
	case busy:
		s.joined = append(s.joined, reply)
	case stopping:
		s.resumes = append(s.resumes, reply)
	}
}

func (s *session) configure(m messages.Configure, reply Reply) {
	if err := m.Runtime.Validate(); err != nil {
		reply.Send(nil, err)
		return
	}
	if m.Runtime.Model != nil {
		s.led.record.Runtime.Model = m.Runtime.Model
	}
	if m.Runtime.ThinkingLevel != "" {
		s.led.record.Runtime.ThinkingLevel = m.Runtime.ThinkingLevel
	}
	s.saveRecord(reply)
}

func (s *session) queue(m messages.GetQueue, reply Reply) {
	s.removeQueued(func(in input) bool { return m.Clear || in.id == m.Remove && m.Remove != "" }, nil)
	q := messages.Queue{Queued: s.led.queued()}
	s.out.whenDurable(s.out.mark(), func(err error) { reply.Send(q, err) })
}

func (s *session) removeQueued(which func(input) bool, then func(error)) {
	var removed []record
	for _, in := range s.led.inbox {
		if which(in) {
			removed = append(removed, record{messages.EventPromptRemoved, messages.EventData{MessageID: in.id}})
		}
	}
	if len(removed) > 0 {
		s.append(write{record: true}, then, removed...)
		s.tellState()
	}
}

// clientGone ends what a local client has left: its queued prompts are taken
// back, its running work is stopped. What others asked for goes on.
func (s *session) clientGone(conn string) {
	if s.checking[conn] > 0 {
		s.left[conn] = true
	}
	if !s.clients[conn] {
		return
	}
	delete(s.clients, conn)
	s.takeBack()
	s.leave = len(s.clients) == 0
	if s.leave {
		s.world = nil
	}
	if s.phase == busy && s.exec.bound[conn] {
		s.interrupt(messages.Interrupt{Reason: messages.ByShutdown}, true)
	}
	if s.exec == nil {
		s.leaveMount()
	}
}

// takeBack removes the queued prompts of clients that have gone. Which they
// are is remembered until that is on disk.
func (s *session) takeBack() {
	gone := func(id, conn string) bool { return !s.clients[conn] }
	forget := func(err error) {
		if err == nil {
			maps.DeleteFunc(s.bound, gone)
		}
	}
	which := func(in input) bool { return s.bound[in.id] != "" && gone(in.id, s.bound[in.id]) }
	if slices.ContainsFunc(s.led.inbox, which) {
		s.removeQueued(which, forget)
		return
	}
	forget(nil)
}

// leaveMount ends the background jobs of a session whose last local client is
// gone. An execution that others asked for keeps them until it ends.
func (s *session) leaveMount() {
	if s.leave && !s.keepJobs {
		s.unmount(s.id, true) // elsewhere they belong to the sandbox
	}
	s.leave = false
}

func (s *session) info() messages.SessionInfo {
	i := infoOf(s.led.record, s.places.shelf)
	i.Status, i.Queued = s.status(), len(s.led.inbox)
	return i
}

func (s *session) status() messages.SessionStatus {
	switch s.phase {
	case busy:
		return messages.SessionRunning
	case stopping:
		return messages.SessionStopping
	}
	return messages.SessionIdle
}

func (s *session) tellState() {
	s.tellDoing()
	pending := len(s.checking) > 0 || slices.ContainsFunc(s.led.inbox, func(in input) bool { return in.unwritten })
	s.changed(sessionState{s.id, s.status(), len(s.led.inbox), s.led.record.Title, pending, s.led.record.SandboxID})
}

// infoOf is what a record says of its session.
func infoOf(r messages.SessionRecord, boxes *shelf) messages.SessionInfo {
	return messages.SessionInfo{
		ID: r.ID, Title: r.Title, Directory: r.Directory, HostDir: r.HostDir, Sandbox: boxes.info(r.SandboxID), Status: messages.SessionIdle,
		Model: r.Runtime.Model, ThinkingLevel: r.Runtime.ThinkingLevel, Usage: &r.Usage,
		Queued: r.Queued, CreatedAt: messages.ISOTime(r.CreatedAt), UpdatedAt: messages.ISOTime(r.UpdatedAt), ParentID: r.ParentID,
	}
}
