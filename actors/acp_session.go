package actors

import (
	"context"
	"slices"
	"time"

	"codework/messages"
	"codework/protocol/acp"
)

// editorSession is a session that an editor has to do with. Its requests run
// one at a time, in order; prompts end theirs when the session has them.
type editorSession struct {
	id    string
	world *messages.World
	ops   []sessionOp
	busy  bool // one of them runs, and its updates wait

	feed    *feed // nil: not open
	stop    context.CancelFunc
	credit  chan struct{}  // lets the feed go on
	held    []editorEvents // while an operation runs
	choices messages.Choices
	runtime messages.Runtime // what the choices were made from
	title   string
	dir     string // on this machine; "" elsewhere
	cost    float64
	seq     int64 // the cost is known up to there
	tr      *acp.Translator
	timer   bool // for output that is held back

	turns    []*turn // not answered yet, oldest first
	prompted bool
	notes    []note          // wait for a turn
	noted    map[string]bool // said already
	closers  []acp.ID        // requests that wait for the session to be closed
	closing  bool
}

// note is a word to the user.
type note struct{ Severity, Title, Text string }

// turn is a prompt that is not answered yet.
type turn struct {
	id     acp.ID
	key    string // of the id, by which the request is cancelled
	s      *editorSession
	prompt string // its id in the session

	sent      bool // the session has it
	admitted  bool // and has recorded it
	running   bool // the execution that works on it has begun
	cancelled bool
	done      bool
	length    bool // the last answer was cut off by the model's limit
}

// work runs beside the actor and touches nothing of it.
type work func(context.Context) (any, error)

type sessionOp struct {
	id acp.ID // of the request, if it is one's
	// start is called when it is its turn and returns what runs beside the
	// actor, or nil.
	start func() work
	then  func(any, error)
}

type (
	opOver struct {
		s   *editorSession
		op  sessionOp
		v   any
		err error
	}
	editorEvents struct {
		s     *editorSession
		feed  *feed
		batch eventBatch
	}
	promptAnswered struct {
		t   *turn
		err error
	}
	outputDue struct{ s *editorSession }
)

// opening is what is known of a session that is being opened.
type opening struct {
	info     messages.SessionInfo
	choices  messages.Choices
	feed     *feed // nil: there is one already
	seq      int64
	replayed map[string]bool
}

// session is the place for a session, which may not exist.
func (g *editor) session(id string) *editorSession {
	s := g.sessions[id]
	if s == nil {
		s = &editorSession{id: id, noted: map[string]bool{}}
		own := messages.World{}
		if g.world != nil {
			own = *g.world
		}
		s.world = &own
		g.sessions[id] = s
	}
	return s
}

func (s *editorSession) setServers(servers []messages.MCPServer) {
	own := *s.world
	own.MCPServers = servers
	s.world = &own
}

// op queues an operation of a session.
func (g *editor) op(s *editorSession, id acp.ID, start func() work, then func(any, error)) {
	s.ops = append(s.ops, sessionOp{id, start, then})
	g.nextOp(s)
}

func (g *editor) nextOp(s *editorSession) {
	for !s.busy && len(s.ops) > 0 {
		op := s.ops[0]
		s.ops = s.ops[1:]
		run := op.start()
		if run == nil {
			g.guard(op.id, func() { op.then(nil, nil) })
			continue
		}
		s.busy = true
		g.me.Go(func(ctx context.Context) any {
			v, err := safely(ctx, g.me, run)
			return opOver{s, op, v, err}
		})
	}
}

func (g *editor) opDone(m opOver) {
	s := m.s
	g.guard(m.op.id, func() { m.op.then(m.v, m.err) })
	s.busy = false
	g.release(s)
	g.nextOp(s)
	// A place for a session that does not exist is nobody's.
	if s.feed == nil && len(s.turns) == 0 && len(s.ops) == 0 && !s.busy && g.sessions[s.id] == s {
		delete(g.sessions, s.id)
	}
}

// opening finds out what there is to know of a session, and begins to follow
// one that is not open yet.
func (g *editor) opening(s *editorSession) work {
	open, world := s.feed != nil, s.world
	return func(ctx context.Context) (any, error) {
		if !messages.ValidSessionID(s.id) {
			return nil, acp.NotFound(s.id)
		}
		return g.look(ctx, s.id, world, !open)
	}
}

func (g *editor) look(ctx context.Context, id string, world *messages.World, follow bool) (opening, error) {
	var o opening
	v, err := g.ask(ctx, id, messages.GetSession{SessionID: id})
	if err != nil {
		return o, err
	}
	o.info = v.(messages.SessionInfo)
	if follow {
		o.feed = &feed{session: id, hub: g.system.hub, store: g.system.config.Store, sub: newSubscription(id)}
		if _, err := g.system.hub.request(subscribe{o.feed.sub})(ctx); err != nil {
			return o, err
		}
	}
	o.choices = g.choices(ctx, o.info, world)
	return o, nil
}

func (g *editor) choices(ctx context.Context, info messages.SessionInfo, world *messages.World) messages.Choices {
	rec := messages.SessionRecord{ID: info.ID, Directory: info.Directory, HostDir: info.HostDir, Runtime: runtimeOf(info)}
	if c, ok := g.system.config.Prepare.(chooser); ok {
		got, err := c.Choices(ctx, ExchangeQuery{Session: rec, World: world})
		if err == nil {
			return got
		}
		return messages.Choices{Notice: err.Error()}
	}
	return messages.Choices{}
}

func runtimeOf(info messages.SessionInfo) messages.Runtime {
	return messages.Runtime{Model: info.Model, ThinkingLevel: info.ThinkingLevel}
}

func sameRuntime(a, b messages.Runtime) bool {
	if (a.Model == nil) != (b.Model == nil) || a.ThinkingLevel != b.ThinkingLevel {
		return false
	}
	return a.Model == nil || *a.Model == *b.Model
}

// opened takes down what was found.
func (g *editor) opened(s *editorSession, o opening) {
	s.choices, s.runtime, s.title, s.dir = o.choices, runtimeOf(o.info), o.info.Title, folderOf(o.info)
	if o.seq > 0 {
		s.seq = o.seq
	}
	if o.info.Usage != nil {
		s.cost = o.info.Usage.Cost.Total
	}
	if o.feed == nil {
		return
	}
	if s.feed != nil { // somebody was quicker
		g.system.hub.Tell(unsubscribe{o.feed.sub})
		return
	}
	s.feed, s.tr = o.feed, g.translator(o.info)
	s.credit = make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(g.me.Context())
	s.stop = cancel
	tell, f, credit := g.me.Later(), o.feed, s.credit
	g.me.Go(func(context.Context) any {
		f.run(ctx, func(b eventBatch) error {
			if len(b.events) == 0 && !b.gap {
				return nil
			}
			tell(editorEvents{s, f, b})
			select {
			case <-credit:
				return g.roomFor(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		return nil
	})
}

// folderOf is where a session works on this machine; "" elsewhere.
func folderOf(info messages.SessionInfo) string {
	if info.Sandbox != nil && info.Sandbox.Kind != messages.KindLocal {
		return ""
	}
	return info.Directory
}

// roomFor waits until the editor has read enough.
func (g *editor) roomFor(ctx context.Context) error {
	room := g.out.room()
	if room == nil {
		return nil
	}
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forget ends what this editor has to do with a session.
func (g *editor) forget(s *editorSession) {
	if s.stop != nil {
		s.stop()
	}
	s.feed, s.stop, s.tr, s.held, s.notes, s.noted = nil, nil, nil, nil, nil, map[string]bool{}
	if len(s.ops) == 0 && len(s.turns) == 0 {
		delete(g.sessions, s.id)
	}
}

// active tells whether a turn of this editor is at work.
func (s *editorSession) active() bool {
	return slices.ContainsFunc(s.turns, func(t *turn) bool { return t.running })
}

// events deals with what has happened, unless an operation of the session has
// to come first.
func (g *editor) events(m editorEvents) {
	s := m.s
	if s.feed != m.feed {
		return
	}
	if s.busy || len(s.held) > 0 {
		s.held = append(s.held, m)
		return
	}
	g.deal(m)
}

// release deals with what waited for an operation.
func (g *editor) release(s *editorSession) {
	for len(s.held) > 0 && !s.busy {
		m := s.held[0]
		s.held = s.held[1:]
		if s.feed == m.feed {
			g.deal(m)
		}
	}
}

func (g *editor) deal(m editorEvents) {
	s := m.s
	defer func() {
		select {
		case s.credit <- struct{}{}:
		default:
		}
	}()
	if m.batch.gap {
		s.tr.Gap()
	}
	now := time.Now()
	for _, e := range m.batch.events {
		if e.Type == messages.EventPluginUpdated {
			continue // its data has another form; what a person should know of it is a notice
		}
		d, err := e.Decode()
		if err != nil {
			g.me.Log().Error("event cannot be read", "session", s.id, "type", e.Type, "err", err)
			continue
		}
		if e.Type == messages.EventLLMStarted && m.batch.live {
			s.tr.Whole()
		}
		g.event(s, e, d, now)
		if s.feed != m.feed {
			return
		}
	}
	g.outputTimer(s, now)
}

// event deals with one event of a session. Beside a turn only the words that
// may be said at any time are passed on.
func (g *editor) event(s *editorSession, e messages.Event, d messages.EventData, now time.Time) {
	switch e.Type {
	case messages.EventPromptAdmitted:
		if t := s.turnOf(d.MessageID); t != nil {
			t.admitted = true
		}
	case messages.EventExecutionStarted:
		for _, t := range s.turns {
			t.running = t.running || t.admitted
		}
	case messages.EventPromptPromoted:
		if d.Title != "" && d.Title != s.title {
			s.title = d.Title
			g.out.update(s.id, acp.Titled(d.Title, messages.ISOTime(d.Timestamp)))
		}
		if t := s.turnOf(d.MessageID); t != nil {
			t.running = true
			g.flushNotes(s)
		}
	case messages.EventPromptRemoved:
		if t := s.turnOf(d.MessageID); t != nil {
			t.cancelled = true
			g.finishTurn(t)
		}
	case messages.EventExecutionSucceeded, messages.EventExecutionFailed, messages.EventExecutionInterrupted:
		g.executionEnded(s, e, d)
	case messages.EventSessionUpdated:
		g.updated(s, d)
	case messages.EventNotice:
		if s.active() || g.about.Notices {
			g.note(s, note{d.Severity, "Note", d.Text})
		}
	case messages.EventRetryScheduled:
		if s.active() && g.about.Notices {
			g.out.update(s.id, acp.Note(true, "", "warning", "Trying again", retryText(d)))
		}
	default:
		if s.active() {
			g.put(s, s.tr.Event(e, d, now))
		}
		if e.Type == messages.EventLLMEnded {
			g.answered(s, e, d)
		}
	}
}

func (g *editor) put(s *editorSession, updates []acp.Update) {
	for _, u := range updates {
		g.out.update(s.id, u)
	}
}

func (s *editorSession) turnOf(prompt string) *turn {
	for _, t := range s.turns {
		if t.prompt == prompt {
			return t
		}
	}
	return nil
}

// answered takes down how a message of the model ended.
func (g *editor) answered(s *editorSession, e messages.Event, d messages.EventData) {
	for _, t := range s.turns {
		if t.running {
			t.length = d.Reason == string(messages.StopLength)
		}
	}
	if d.Message == nil || d.Message.Usage == nil {
		return
	}
	u := d.Message.Usage
	if e.Seq > s.seq {
		s.cost += u.Cost.Total
	}
	c := s.choices.Find(messages.ModelRef{Provider: d.Message.Provider, ID: d.Message.Model})
	used := u.Input + u.CacheRead + u.CacheWrite + u.Output
	if c != nil && c.ContextWindow > 0 && used > 0 {
		g.out.update(s.id, acp.Used(used, c.ContextWindow, s.cost))
	}
}

// executionEnded answers the turns that the execution worked on.
func (g *editor) executionEnded(s *editorSession, e messages.Event, d messages.EventData) {
	if !s.active() {
		return
	}
	g.flushNotes(s)
	for _, t := range slices.Clone(s.turns) {
		if !t.running {
			continue
		}
		switch {
		case t.cancelled || e.Type == messages.EventExecutionInterrupted:
			g.answer(t, acp.StopCancelled)
		case e.Type == messages.EventExecutionFailed:
			f := d.Error
			if f == nil {
				f = &messages.Failure{Type: messages.FailUnknown, Message: "the turn failed"}
			}
			if f.Type == messages.FailContentFilter {
				g.put(s, s.tr.Close())
				g.put(s, acp.Said(messages.NewMessageID(), acp.TurnFailed(f).Message))
				g.answer(t, acp.StopRefusal)
				continue
			}
			g.drop(t, acp.TurnFailed(f))
		case t.length:
			g.answer(t, acp.StopMaxTokens)
		default:
			g.answer(t, acp.StopEndTurn)
		}
	}
}

// answer ends a turn with a stop reason.
func (g *editor) answer(t *turn, reason string) {
	g.over(t)
	g.reply(t.id, acp.PromptResult{StopReason: reason})
	g.maybeClose(t.s)
}

// drop ends a turn with an error.
func (g *editor) drop(t *turn, err *acp.Error) {
	if t.cancelled {
		g.answer(t, acp.StopCancelled)
		return
	}
	g.over(t)
	g.fail(t.id, err)
	g.maybeClose(t.s)
}

// finishTurn ends a turn that was cancelled.
func (g *editor) finishTurn(t *turn) {
	if !t.done {
		g.answer(t, acp.StopCancelled)
	}
}

// over closes what the turn has open.
func (g *editor) over(t *turn) {
	s := t.s
	t.done = true
	if s.tr != nil && (t.running || !s.active()) {
		g.put(s, s.tr.Close())
	}
	s.turns = slices.DeleteFunc(s.turns, func(o *turn) bool { return o == t })
	if g.turns[t.key] == t {
		delete(g.turns, t.key)
	}
}

// send hands the prompt to its session.
func (g *editor) send(t *turn, p messages.Prompt) {
	s := t.s
	t.sent, s.prompted = true, true
	p.World = s.world
	admitted, wait := g.system.admitting(), g.guardian.request(toSession{s.id, p})
	if g.left { // the news that the editor is gone was before it
		g.tell(s.id, messages.Interrupt{SessionID: s.id, Prompt: p.ID, Reason: messages.ByShutdown})
	}
	g.me.Go(func(ctx context.Context) any {
		_, err := wait(ctx)
		admitted(err)
		return promptAnswered{t, err}
	})
}

// promptAnswered hears whether the session has taken the prompt. What comes of
// it is told by events.
func (g *editor) promptAnswered(m promptAnswered) {
	if m.err != nil && !m.t.done {
		g.drop(m.t, acp.ErrorOf(m.err))
	}
}

// cancel stops the turn of a session that is at work.
func (g *editor) cancel(s *editorSession) {
	for _, t := range slices.Clone(s.turns) {
		g.cancelTurn(t)
	}
}

func (g *editor) cancelTurn(t *turn) {
	if t.cancelled || t.done {
		return
	}
	t.cancelled = true
	if !t.sent {
		g.finishTurn(t)
		return
	}
	g.tell(t.s.id, messages.Interrupt{SessionID: t.s.id, Prompt: t.prompt})
}

// updated passes on what somebody else has changed.
func (g *editor) updated(s *editorSession, d messages.EventData) {
	if d.Session == nil {
		return
	}
	if d.Session.Title != s.title {
		s.title = d.Session.Title
		g.out.update(s.id, acp.Titled(s.title, d.Session.UpdatedAt))
	}
	if sameRuntime(runtimeOf(*d.Session), s.runtime) {
		return
	}
	// The event may be about a change of our own that is older than the
	// newest: what holds now is looked up.
	g.op(s, nil, func() work { return g.opening(s) }, func(v any, err error) {
		if err != nil {
			return
		}
		o := v.(opening)
		changed := !sameRuntime(runtimeOf(o.info), s.runtime)
		s.choices, s.runtime = o.choices, runtimeOf(o.info)
		if changed {
			g.out.update(s.id, acp.Configured(acp.Options(s.choices)))
		}
	})
}

// note tells the user something beside the conversation, once.
func (g *editor) note(s *editorSession, n note) {
	if s.noted[n.Text] {
		return
	}
	s.noted[n.Text] = true
	if g.about.Notices {
		g.out.update(s.id, acp.Note(true, "", n.Severity, n.Title, n.Text))
		return
	}
	s.notes = append(s.notes, n)
}

// flushNotes tells inside a turn what waited for one.
func (g *editor) flushNotes(s *editorSession) {
	for _, n := range s.notes {
		g.out.update(s.id, acp.Note(false, messages.NewMessageID(), n.Severity, n.Title, n.Text))
	}
	s.notes = nil
}

// outputTimer sees to it that output which was held back is shown.
func (g *editor) outputTimer(s *editorSession, now time.Time) {
	if s.timer || s.tr == nil || !s.active() {
		return
	}
	if wait := s.tr.Due(now); wait > 0 {
		s.timer = true
		g.me.After(wait, outputDue{s})
	}
}

func (g *editor) outputDue(s *editorSession) {
	s.timer = false
	if s.tr == nil || !s.active() {
		return
	}
	now := time.Now()
	if !s.busy {
		g.put(s, s.tr.Held(now))
	}
	g.outputTimer(s, now)
}
