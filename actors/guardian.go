package actors

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"codework/internal/metrics"
	"codework/internal/plugin"
	"codework/internal/settings"
	"codework/internal/store"
	"codework/internal/traces"
	"codework/messages"
	"codework/providers"
	"codework/sandboxes"
)

// guardian is the root of the tree. It finds or starts the actor that a
// message is for, restarts what fails within a budget, and knows what runs.
type guardian struct {
	config Config
	begun  *atomic.Bool // an earlier incarnation was started
	deps   sessionDeps
	hub    *Ref
	boxes  registryDeps
	begins *turnstile
	limit  *limit

	registry *Ref // of the sandboxes
	places   places
	plugins  *Ref

	sessions    map[string]*sessionSlot
	busy        int        // sessions that have work, or are about to
	calls       int        // under way, that leave something behind
	resting     *list.List // the slots of sessions without work, the one that rests longest first
	connections map[connectionTo]*connectionSlot
	connecting  map[connectionTo][]Reply // connections that are being made, and who waits
	gateways    map[*Ref]bool            // whether it is an editor's
	making      map[string][]heldMessage // sessions that are made under an id the caller chose, and who waits for that
	draining    bool
	deciding    bool // whether to drain, while editors hold
	last        Load
	stirred     bool // there was work, or a session went, since the look was arranged
	calming     bool // a look whether all is calm is arranged
	trimming    bool // a look who has rested for long is arranged
}

// sessionSlot is a session in memory.
type sessionSlot struct {
	ref      *Ref
	state    sessionState
	prompted bool // a prompt was sent on, and its session has not said yet what it does
	retiring bool
	held     []heldMessage // what came while it was being unloaded
	then     *quiet        // what is done once it is unloaded
	rest     *list.Element // its place among the resting ones; nil while it works
	since    time.Time     // it was needed last
}

// works tells whether the session has work, or is about to.
func (s *sessionSlot) works() bool {
	return s.prompted || s.state.pending || s.state.status != messages.SessionIdle
}

type heldMessage struct {
	m     any
	reply Reply
}

// toSession is a message for a session.
type toSession struct {
	id string
	m  any
}

type (
	retireSession struct{ id string }
	restSession   struct { // the answer to mayRest
		id  string
		yes bool
	}
	drain       struct{}              // refuse new work and stop what runs
	running     struct{}              // asks what runs
	leaveLocal  struct{ conn string } // a local client is gone
	openGateway struct{ g Actor }
	moveEditors struct{} // editors are to go on with another process
	getParts    struct{}
	treeParts   struct {
		hub    *Ref
		places places
	}
	resumeAll struct{} // begin with the prompts that wait in all sessions
)

// Load is what runs in the process.
type Load struct {
	Loaded  int // sessions in memory
	Busy    int // sessions with work or about to have some, and calls under way that leave something behind
	Clients int // connections
}

func (g *guardian) Receive(me *Self, m any) {
	if g.hub == nil {
		// What everybody holds on to (the hub, the sandbox) went down with the
		// incarnation before: whoever watches the guardian ends the process.
		if _, ok := m.(Started); !ok || g.begun.Swap(true) {
			me.Answer(nil, errStopped)
			me.Ref().Stop()
			return
		}
	}
	if !g.admits(me, m) {
		return
	}
	switch m := m.(type) {
	case Started:
		g.start(me)
	case callEnded:
		g.callEnded()
	case closeIfIdle:
		g.closeIfIdle(me)
	case editorsHold:
		g.onEditorsHold(m)
	case underWay:
		g.count()
		me.Answer(nil, nil)
		me.Go(func(ctx context.Context) any {
			select {
			case <-m.done:
			case <-ctx.Done():
			}
			return callEnded{}
		})
	case toSession:
		g.route(me, m)
	case messages.CreateSession:
		g.create(me, m)
	case messages.ListSessions:
		g.list(me, m)
	case sessionMade:
		g.onMade(me, m.id)
	case running:
		me.Answer(g.running(), nil)
	case sessionState:
		if s := g.sessions[m.id]; s != nil {
			g.uses(m.id, s.state.uses(), m.uses())
			g.busy += m.busy() - s.state.busy()
			s.state, s.prompted = m, false
			g.rests(me, s)
			g.calm(me)
		}
		g.tell()
	case retireSession:
		if s := g.sessions[m.id]; s != nil && !s.retiring {
			s.retiring, g.stirred = true, true // what it leaves is given back
			g.forgetRest(s)
			s.ref.Tell(mayRest{})
		}
	case restSession:
		g.rest(me, m)
	case trimDue:
		g.trimming = false
		g.trim(me)
	case isCalm:
		g.onCalm(me)
	case listed:
		g.onListed(me, m)
	case mustLoad:
		me.reply = m.reply
		g.hand(me, m.m)
	case quiesce:
		g.quiesce(me, m)
	case quiet:
		g.onQuiet(me, m)
	case quiesced:
		g.onQuiesced(me, m)
	case messages.Delete:
		g.delete(me, m)
	case messages.Check:
		g.check(me, m)
	case messages.Fork:
		g.fork(me, m)
	case resumeAll:
		g.resumeAll(me)
	case moveEditors:
		g.moveEditors(me)
	case Ended:
		g.ended(me, m.Child)
	case leaveLocal:
		for _, s := range g.sessions {
			if s.retiring {
				s.held = append(s.held, heldMessage{m: clientGone(m)})
				continue
			}
			s.ref.Tell(clientGone(m))
		}
	case connectionTo:
		g.connect(me, m)
	case connectionMade:
		g.connected(me, m)
	case pluginFor, leftPlugins, reloadPlugins, pluginTrouble, pluginNotice:
		me.Forward(g.plugins, m)
	case toBox, listDrivers, listBoxes, stopAll:
		me.Forward(g.registry, m)
	case boxCall:
		me.Forward(g.registry, m)
	case drain:
		g.drain(me)
	case openGateway:
		if g.draining {
			me.Answer(nil, errDraining)
			return
		}
		ref := me.Spawn(func() Actor { return m.g })
		_, g.gateways[ref] = m.g.(*editor)
		me.Answer(ref, nil)
		g.tell()
	case takeStock:
		me.Answer(g.stock(), nil)
	case getParts:
		me.Answer(treeParts{g.hub, g.places}, nil)
	}
}

func (g *guardian) start(me *Self) {
	g.sessions, g.connections, g.gateways = map[string]*sessionSlot{}, map[connectionTo]*connectionSlot{}, map[*Ref]bool{}
	g.resting = list.New()
	g.connecting, g.making = map[connectionTo][]Reply{}, map[string][]heldMessage{}
	count := g.config.Metrics
	g.hub = me.Spawn(func() Actor { return newHub(count) })
	g.registry = me.Spawn(newRegistry(g.boxes))
	g.places = places{registry: g.registry, shelf: g.boxes.shelf, settings: g.boxes.settings, dir: g.config.Dir}
	self := me.Ref()
	hub, registry := g.hub, g.registry
	tell := func(events []*published) {
		for _, e := range events {
			count.Event(e.Type)
		}
		hub.Tell(publish{events})
	}
	g.plugins = me.Spawn(newPlugins(g.config.Plugins, usualPace, func(events []messages.Event) { tell(announce(events...)) }))
	ofPlugins := g.plugins
	g.deps = sessionDeps{
		store: g.config.Store, prepare: g.config.Prepare, clock: time.Now, idle: idleAfter, claims: &claims{}, begins: g.begins, sights: &sights{},
		publish: tell, inHub: hub.Tell, count: count, traces: g.config.Traces,
		changed: func(s sessionState) { self.Tell(s) },
		retire:  func(id string) { self.Tell(retireSession{id}) },
		rests:   func(id string, yes bool) { self.Tell(restSession{id, yes}) },
		unmount: func(session string, onlyHost bool) {
			ofPlugins.Tell(endPlugins{session}) // first: who hears that the mount is left asks for these next
			registry.Tell(unmountAll{session, onlyHost})
		},
		places: g.places, checkpoints: checkpointEvents,
	}
	if g.config.checkpoints > 0 {
		g.deps.checkpoints = g.config.checkpoints
	}
}

// route brings a message to its session, or answers it without.
func (g *guardian) route(me *Self, m toSession) {
	if g.sessions[m.id] == nil && reads(m.m) {
		g.read(me, m)
		return
	}
	g.hand(me, m)
}

// hand hands a message to its session, which is started if need be. One that
// is being unloaded gets it afterwards, as a new incarnation.
func (g *guardian) hand(me *Self, m toSession) {
	s := g.sessions[m.id]
	if _, prompt := m.m.(messages.Prompt); prompt {
		if err := g.mayPrompt(s); err != nil {
			me.Answer(nil, err)
			return
		}
		defer func() { g.sessions[m.id].prompted = true }()
	}
	if s == nil {
		s = g.open(me, m.id)
	}
	if s.rest != nil {
		g.keep(s)
	}
	if s.retiring {
		s.held = append(s.held, heldMessage{m.m, me.TakeReply()})
		return
	}
	me.Forward(s.ref, m.m)
}

func (g *guardian) open(me *Self, id string) *sessionSlot {
	s := &sessionSlot{ref: me.Spawn(newSession(g.deps, id)).Named(id), state: sessionState{id: id, status: messages.SessionIdle}}
	g.sessions[id] = s
	if g.draining {
		s.ref.Tell(wrapUp{})
	}
	return s
}

const (
	// mostResting is how many sessions without work stay in memory: enough for
	// the people and programs of a server that take turns in them, few enough
	// that what they keep does not show. One that is needed again is read from
	// its log.
	mostResting = 32
	// restsFor is how long those stay that are too many: a session between two
	// turns would otherwise be read for each, a third of the work of hundreds
	// that get their prompts one after the other. It is shorter than calmAfter.
	restsFor = time.Second
)

// trimDue looks who of too many has rested for long.
type trimDue struct{}

// rests takes note whether a session has work, and unloads those that have had
// none for longest when there are too many.
func (g *guardian) rests(me *Self, s *sessionSlot) {
	if s.works() || s.retiring {
		g.stirred = true
		g.forgetRest(s)
		return
	}
	g.keep(s)
	g.trim(me)
}

// keep makes a session the one that rests for the shortest time.
func (g *guardian) keep(s *sessionSlot) {
	s.since = time.Now()
	if s.rest == nil {
		s.rest = g.resting.PushBack(s)
	} else {
		g.resting.MoveToBack(s.rest)
	}
}

func (g *guardian) trim(me *Self) {
	for g.resting.Len() > mostResting && !g.trimming {
		oldest := g.resting.Front().Value.(*sessionSlot)
		if early := cmp.Or(g.config.restsFor, restsFor) - time.Since(oldest.since); early > 0 {
			g.trimming = true
			me.After(early, trimDue{})
			return
		}
		g.forgetRest(oldest)
		oldest.retiring = true
		oldest.ref.Tell(mayRest{})
	}
}

func (g *guardian) forgetRest(s *sessionSlot) {
	if s.rest != nil {
		g.resting.Remove(s.rest)
		s.rest = nil
	}
}

// calmAfter is how long all work must have ended before it is calm: a person who
// answers at once is not made to wait for what happens then.
const calmAfter = 2 * time.Second

// isCalm looks whether there is still no work.
type isCalm struct{}

// calm has a look in a while, when all work has ended.
func (g *guardian) calm(me *Self) {
	if g.stirred && !g.calming && g.resting.Len() == len(g.sessions) {
		g.stirred, g.calming = false, true
		me.After(calmAfter, isCalm{})
	}
}

// onCalm tells that it is calm, unless there was work since then: its end begins
// anew.
func (g *guardian) onCalm(me *Self) {
	g.calming = false
	if g.stirred || g.resting.Len() != len(g.sessions) {
		g.calm(me)
		return
	}
	if calm := g.config.Calm; calm != nil {
		me.Go(func(context.Context) any {
			calm()
			return nil
		})
	}
}

// rest unloads a session that has nothing to do, or gives it what came
// meanwhile.
func (g *guardian) rest(me *Self, m restSession) {
	s := g.sessions[m.id]
	if s == nil || !s.retiring {
		return
	}
	if m.yes {
		s.ref.Stop()
		return
	}
	s.retiring = false // and among the resting ones again once it has said what it does
	held := s.held
	s.held = nil
	g.release(me, m.id, held)
}

// release routes what was held back for a session: now, before anything that
// came behind it.
func (g *guardian) release(me *Self, id string, held []heldMessage) {
	for _, h := range held {
		me.reply = h.reply
		if q, ok := h.m.(quiesce); ok {
			g.quiesce(me, q)
		} else {
			g.route(me, toSession{id, h.m})
		}
		me.reply = Reply{}
	}
}

// drain stops all work and is answered when what it came to is on disk.
func (g *guardian) drain(me *Self) {
	g.draining = true
	var settled []func(context.Context) (any, error)
	for _, s := range g.sessions {
		if s.ref != nil { // otherwise it is being deleted or mended
			settled = append(settled, s.ref.request(wrapUp{}))
		}
	}
	reply := me.TakeReply()
	me.Go(func(ctx context.Context) any {
		for _, wait := range settled {
			_, _ = wait(ctx) // one that cannot be read, or ends meanwhile, has nothing to record
		}
		reply.Send(nil, nil)
		return nil
	})
}

// ended forgets a child that has stopped: a session that was unloaded, or one
// that failed too often. Whoever waits for it gets a new one.
func (g *guardian) ended(me *Self, child *Ref) {
	if _, ok := g.gateways[child]; ok {
		delete(g.gateways, child)
		g.tell()
		return
	}
	for id, s := range g.sessions {
		if s.ref != child {
			continue
		}
		g.uses(id, s.state.uses(), "")
		g.busy -= s.state.busy()
		s.state = sessionState{id: id, status: messages.SessionIdle}
		g.forgetRest(s)
		if s.then != nil {
			g.act(me, *s.then)
			s.then, s.ref = nil, nil
			return
		}
		if !s.retiring {
			me.Log().Error("session failed too often and was given up; its next prompt starts it again", "session", id)
		}
		delete(g.sessions, id)
		g.registry.Tell(restMounts{id})
		g.release(me, id, s.held)
		g.calm(me)
		g.tell()
		return
	}
	for key, c := range g.connections {
		if c.ref == child {
			me.Log().Info("provider connection ended; the next request opens it again", "provider", key.provider)
			delete(g.connections, key)
			return
		}
	}
	if child == g.hub || child == g.registry || child == g.plugins {
		// Without them nothing works: whoever watches the guardian ends the
		// process.
		me.Log().Error("a part that everything needs has failed too often")
		me.Ref().Stop()
	}
}

// moveEditors is answered when every editor that has nothing running here has
// what it needs to go on with another process.
func (g *guardian) moveEditors(me *Self) {
	var moved []func(context.Context) (any, error)
	for ref := range g.gateways {
		moved = append(moved, ref.request(moveEditor{})) // others than editors' answer at once
	}
	reply := me.TakeReply()
	me.Go(func(ctx context.Context) any {
		for _, wait := range moved {
			_, _ = wait(ctx) // one that ends meanwhile needs nothing
		}
		reply.Send(nil, nil)
		return nil
	})
}

func (g *guardian) running() []sessionState {
	var out []sessionState
	for _, s := range g.sessions {
		if s.works() {
			out = append(out, s.state)
		}
	}
	return out
}

// tell says what runs to whoever decides about the end of the process.
func (g *guardian) tell() {
	l := Load{Loaded: len(g.sessions), Busy: g.busy + g.calls, Clients: len(g.gateways)}
	if l != g.last && g.config.Watch != nil {
		g.last = l
		g.config.Watch(l)
	}
}

// create makes a session. It is answered when its record is on disk. Who asks
// again under the same id, because the answer was lost, gets the session that
// was made.
func (g *guardian) create(me *Self, m messages.CreateSession) {
	if g.draining {
		me.Answer(nil, errDraining)
		return
	}
	self, places, limit := me.Ref(), g.places, g.limit
	if m.ID == "" {
		reply := me.TakeReply()
		me.Go(func(ctx context.Context) any {
			reply.Send(makeSession(ctx, limit, places, m))
			return nil
		})
		return
	}
	if waiting, ok := g.making[m.ID]; ok {
		g.making[m.ID] = append(waiting, heldMessage{m, me.TakeReply()})
		return
	}
	g.making[m.ID] = nil
	reply := me.TakeReply()
	me.Go(func(ctx context.Context) any {
		info, err := made(ctx, self, m.ID)
		var missing *messages.SessionNotFound
		if errors.As(err, &missing) {
			info, err = makeSession(ctx, limit, places, m)
		}
		reply.Send(info, err)
		return sessionMade{m.ID}
	})
}

// made is the session that was made under an id before.
func made(ctx context.Context, guardian *Ref, id string) (messages.SessionInfo, error) {
	v, err := askAgain(ctx, guardian, toSession{id, messages.GetSession{SessionID: id}})
	if err != nil {
		return messages.SessionInfo{}, err
	}
	return v.(messages.SessionInfo), nil
}

// makeSession finds a place for a new session and writes its record.
func makeSession(ctx context.Context, limit *limit, places places, m messages.CreateSession) (messages.SessionInfo, error) {
	room, err := limit.take(ctx)
	if err != nil {
		return messages.SessionInfo{}, err
	}
	defer room.leave()
	at, err := places.find(ctx, placeQuery{ref: m.Sandbox, directory: m.Directory, hostDir: m.HostDir, world: m.World})
	if err != nil {
		return messages.SessionInfo{}, err
	}
	rec := newRecord(m, at)
	if err := room.write(ctx, store.Batch{Session: rec.ID, Record: &rec}); err != nil {
		places.undo(ctx, at)
		return messages.SessionInfo{}, err
	}
	return infoOf(rec, places.shelf), nil
}

// sessionMade tells that the making of a session has come to its end.
type sessionMade struct{ id string }

// onMade answers those who asked for the same session meanwhile.
func (g *guardian) onMade(me *Self, id string) {
	waiting := g.making[id]
	delete(g.making, id)
	for _, h := range waiting {
		me.reply = h.reply
		g.create(me, h.m.(messages.CreateSession))
		me.reply = Reply{}
	}
}

// mayPrompt refuses a prompt that would begin more work than is allowed.
func (g *guardian) mayPrompt(s *sessionSlot) error {
	if g.draining {
		return errDraining
	}
	most := g.config.MaxRunning
	if most <= 0 || s != nil && s.works() {
		return nil
	}
	n := 0
	for _, s := range g.sessions {
		if s.works() {
			n++
		}
	}
	if n >= most {
		return &messages.Refused{Name: messages.RefusedBusy, Message: fmt.Sprintf("the limit of this server is reached: %d of %d sessions work (--max-running); try again when one is done", n, most)}
	}
	return nil
}

// newRecord describes a session that works in a place.
func newRecord(m messages.CreateSession, at placed) messages.SessionRecord {
	now := time.Now().UnixMilli()
	rec := messages.SessionRecord{
		ID: cmp.Or(m.ID, messages.NewSessionID()), Title: messages.DefaultTitle, Directory: at.dir, SandboxID: at.sandbox, HostDir: m.HostDir,
		AppendSystemPrompt: m.AppendSystemPrompt, CreatedAt: now, UpdatedAt: now,
	}
	if m.Title != "" {
		rec.Title, rec.TitleSet = m.Title, true
	}
	if m.Runtime != nil {
		rec.Runtime = *m.Runtime
	}
	return rec
}

// list answers with sessions from the store; what those that are in memory do is
// added after that.
func (g *guardian) list(me *Self, m messages.ListSessions) {
	reply, store := me.TakeReply(), g.config.Store
	me.Go(func(ctx context.Context) any {
		records, err := store.List(ctx, m)
		if err != nil || len(records) == 0 {
			reply.Send([]messages.SessionInfo{}, err)
			return nil
		}
		return listed{records, reply}
	})
}

// listed are records whose sessions may be in memory.
type listed struct {
	records []messages.SessionRecord
	reply   Reply
}

func (g *guardian) onListed(me *Self, m listed) {
	live := map[int]sessionState{}
	for i := range m.records {
		if s := g.sessions[m.records[i].ID]; s != nil {
			live[i] = s.state
		}
	}
	boxes := g.boxes.shelf
	me.Go(func(context.Context) any {
		infos := make([]messages.SessionInfo, len(m.records))
		for i, r := range m.records {
			infos[i] = infoOf(r, boxes)
			if s, ok := live[i]; ok {
				infos[i].Status, infos[i].Queued = s.status, s.queued
			}
		}
		m.reply.Send(infos, nil)
		return nil
	})
}

// uses counts a session that works among the users of its sandbox.
func (g *guardian) uses(session, was, is string) {
	if was == is {
		return
	}
	if is != "" {
		g.boxes.shelf.hold(is, session)
	}
	if was != "" {
		g.boxes.shelf.release(was, session)
		g.registry.Tell(toBox{was, released{}})
	}
}

// connect answers with the actor of a provider connection. A new one is made
// beside the guardian, since certificates are read from files, and once however
// many ask meanwhile: hundreds of sessions may begin at the same time.
func (g *guardian) connect(me *Self, key connectionTo) {
	if c := g.connections[key]; c != nil {
		c.touch()
		me.Answer(c, nil)
		return
	}
	waiting := append(g.connecting[key], me.TakeReply())
	g.connecting[key] = waiting
	if len(waiting) > 1 {
		return
	}
	me.Go(func(context.Context) any {
		client, err := key.client()
		return connectionMade{key, client, err}
	})
}

func (g *guardian) connected(me *Self, m connectionMade) {
	dialect := g.config.Dialects[m.key.protocol]
	waiting := g.connecting[m.key]
	delete(g.connecting, m.key)
	refuse := func(why string) {
		for _, r := range waiting {
			r.Send(nil, &messages.Failure{Type: messages.FailConfiguration, Message: why})
		}
	}
	switch {
	case m.err != nil:
		refuse(m.err.Error())
		return
	case dialect == nil:
		refuse("protocol " + string(m.key.protocol) + " is not supported")
		return
	}
	for key, old := range g.connections {
		if time.Since(time.UnixMilli(old.used.Load())) > connectionRest {
			delete(g.connections, key)
			old.ref.Stop()
		}
	}
	c := &connectionSlot{ref: me.Spawn(newProvider(dialect, m.client)).Named(m.key.provider)}
	g.connections[m.key] = c
	c.touch()
	for _, r := range waiting {
		r.Send(c, nil)
	}
}

// connectionRest is how long a connection stays that nobody uses: longer than
// any request may take.
const connectionRest = 2 * time.Hour

// connectionSlot is a provider connection and when it was last used, by a
// request too: an exchange may take longer than connectionRest.
type connectionSlot struct {
	ref  *Ref
	used atomic.Int64 // epoch milliseconds
}

func (c *connectionSlot) touch() { c.used.Store(time.Now().UnixMilli()) }

type connectionMade struct {
	key    connectionTo
	client *http.Client
	err    error
}

// Config is what the tree of actors is made of.
type Config struct {
	Store    Store
	Prepare  Preparer
	Local    sandboxes.Sandbox // the host
	Drivers  []sandboxes.Driver
	Server   string // id of the home, by which its sandboxes are told from others'
	Dialects map[messages.Protocol]providers.Dialect
	Plugins  plugin.Options // Publish is set here
	Dir      string         // where sessions work that name no directory
	// Models lists what can be chosen.
	Models func(ctx context.Context, provider string, w *messages.World) ([]messages.ModelInfo, error)
	// Logins are the stored logins.
	Logins Logins
	// Calm is called beside the actors when there was no work for two seconds, and
	// again when sessions were unloaded; nil never: memory can be given back.
	Calm func()
	// Limits of sessions and of those that work at once; 0 is none.
	MaxSessions int
	MaxRunning  int
	// Sandboxes finds what the settings say about sandboxes; nil asks Prepare if
	// that knows, and else has no settings.
	Sandboxes func(hostDir string, w *messages.World) (settings.Sandbox, error)
	// Watch hears what runs whenever that changes; it must not block.
	Watch func(Load)
	// Metrics count what happens; nil counts nothing, and there is no /metrics.
	Metrics *metrics.Metrics
	// Traces follow what sessions do; nil follows nothing.
	Traces *traces.Traces

	idleConnection time.Duration // for tests; 0 is the constant of that name
	restsFor       time.Duration // the same
	checkpoints    int64         // for tests; 0 is checkpointEvents
}

// sandboxSettings is how settings are found.
func (c Config) sandboxSettings() sandboxSettings {
	if c.Sandboxes != nil {
		return c.Sandboxes
	}
	if w, ok := c.Prepare.(*Workshop); ok {
		return w.SandboxSettings
	}
	return func(string, *messages.World) (settings.Sandbox, error) {
		return settings.Sandbox{Driver: messages.LocalSandbox}, nil
	}
}
