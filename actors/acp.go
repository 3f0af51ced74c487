package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"codework/messages"
	"codework/protocol/acp"
)

// editor is the gateway actor of one editor: the process behind a codework acp.
//
// Order: messages are accepted in the order in which they were read, and
// everything that goes back passes one queue with one writer. The events of a
// session are dealt with here, one after the other, and the answer to a prompt
// is put into the queue by the event that ends its turn: so all of a turn's
// updates stand before its answer and none behind it.
//
// Loss: what the editor reads too slowly waits. Pieces of text are joined;
// nothing is dropped.
//
// Blocking: Receive never waits, so a cancel is never behind what it cancels.
// What takes time runs beside the actor, one request of a session at a time.
//
// Closing: when the editor is gone, what its prompts started is interrupted as
// a shutdown, and the connection ends when that is recorded.
type editor struct {
	system   *System
	guardian *Ref
	conn     acp.Conn
	lines    *acp.Lines
	name     string // of the connection, for prompts that are bound to it
	me       *Self  // of the only incarnation that does anything
	begun    bool

	world    *messages.World
	about    acp.Initialize
	out      *outbound
	sessions map[string]*editorSession
	turns    map[string]*turn // that are not answered, by their request's key
	under    int              // other requests under way

	ending bool
	ended  bool  // everything is settled; the writer finishes
	left   bool  // the sessions were told that this client has gone
	moving Reply // who waits for the editor to be handed over
	holds  bool  // what comes waits in held, for the moment in which it is decided whether this process goes on
	held   []any
	paused bool
	asked  bool // to pause
	rest   []byte
}

type (
	// moveEditor asks for the editor to go on with another process.
	moveEditor struct{}
	// holdEditor asks for what the editor says to be held. The answer is whether
	// nothing that it said before is under way.
	holdEditor struct{}
	// goOnEditor ends that.
	goOnEditor struct{}

	editorHello   struct{ word acp.Word }
	editorRestore struct{ st editorState }
	editorLine    struct {
		in     acp.Incoming
		raw    []byte
		prompt acp.Prompt // of session/prompt
		bad    *acp.Error
	}
	editorEnd    struct{}                // the editor has nothing more to say
	editorPaused struct{ unread []byte } // the bridge sends nothing more
	editorGone   struct{ err error }     // the connection has ended
	editorLate   struct{}                // settling has taken too long
	allWritten   struct{}                // the writer has ended
	besideDone   struct {                // a request without a session
		id   acp.ID
		then func(any, error)
		v    any
		err  error
	}
	settledAll struct{}
)

// endGrace is how long an editor's work may take to settle once it is gone.
const endGrace = 4 * time.Second

// ServeEditor answers one editor until its connection ends.
func (s *System) ServeEditor(ctx context.Context, conn acp.Conn) error {
	e := &editor{system: s, guardian: s.guardian, conn: conn, name: messages.NewEventID(), out: newOutbound(),
		sessions: map[string]*editorSession{}, turns: map[string]*turn{}}
	ref, err := Ask[*Ref](ctx, s.guardian, openGateway{e})
	if err != nil {
		conn.Close()
		return err
	}
	ref.Named("editor")
	select {
	case <-ref.Done():
	case <-ctx.Done():
		conn.Close()
		<-ref.Done()
	}
	return nil
}

func (s *System) acceptEditor(w http.ResponseWriter, r *http.Request) {
	conn, err := acp.Accept(w, r)
	if err != nil {
		s.log.Debug("editor refused", "err", err)
		return
	}
	if err := s.ServeEditor(context.WithoutCancel(r.Context()), conn); err != nil {
		s.log.Debug("editor not served", "err", err)
	}
}

// MoveEditors lets editors with nothing running go on with the process that
// owns the home next.
func (s *System) MoveEditors(ctx context.Context) error {
	_, err := Ask[any](ctx, s.guardian, moveEditors{})
	return err
}

func (g *editor) Receive(me *Self, m any) {
	switch m := m.(type) {
	case Started:
		if g.begun { // it failed, and its connection with it
			g.conn.Close()
			me.Ref().Stop()
			return
		}
		g.begun, g.me = true, me
		me.Go(g.read)
		me.Go(g.write)
	case editorHello:
		g.hello(m.word)
	case editorRestore:
		g.restore(m.st)
	case editorLine:
		switch {
		case g.asked:
			g.rest = append(append(g.rest, m.raw...), '\n')
			return
		case g.holds:
			g.held = append(g.held, m)
			return
		}
		g.accept(m)
	case besideDone:
		g.under--
		g.guard(m.id, func() { m.then(m.v, m.err) })
	case opOver:
		g.opDone(m)
	case editorEvents:
		g.events(m)
	case promptAnswered:
		g.promptAnswered(m)
	case outputDue:
		g.outputDue(m.s)
	case moveEditor:
		g.move(me.TakeReply())
	case editorPaused:
		g.paused, g.rest = true, append(g.rest, m.unread...)
	case editorEnd:
		switch {
		case g.holds:
			g.held = append(g.held, m)
			return
		case g.asked && len(g.rest) > 0 && !g.ending:
			g.paused = true // it has left, but what it said last is the next process's to do
		default:
			g.end()
		}
	case holdEditor:
		g.holds = true
		me.Answer(g.quiet(), nil)
	case goOnEditor:
		g.goOn()
	case editorLate:
		if !g.ended {
			me.Log().Warn("an editor's work did not settle in time")
			g.ended = true
			g.out.finish()
		}
	case settledAll:
		g.ended = true
		g.out.finish()
	case editorGone:
		if m.err != nil {
			me.Log().Debug("editor's connection ended", "err", m.err)
		}
		me.Ref().Stop()
	case allWritten:
		g.moving.Send(nil, nil)
		me.Ref().Stop()
	case Stopped:
		g.leave()
		g.moving.Send(nil, nil)
	}
	g.settle()
}

// read takes what comes from the bridge, decodes it and hands it to the actor,
// in order. It never waits for the writer.
func (g *editor) read(ctx context.Context) any {
	defer context.AfterFunc(ctx, func() { g.conn.Close() })()
	tell := g.me.Later()
	first, err := g.conn.Read()
	if err != nil {
		return editorGone{err}
	}
	word, err := acp.Heard(first)
	if err != nil || word.Hello == nil {
		return editorGone{errors.Join(err, errors.New("no hello"))}
	}
	tell(editorHello{word})
	g.lines = acp.NewLines(func() ([]byte, error) {
		f, err := g.conn.Read()
		if err != nil {
			return nil, fmt.Errorf("lost: %w", errors.Join(errLost, err))
		}
		if !f.Control {
			return f.Data, nil
		}
		w, err := acp.Heard(f)
		switch {
		case err != nil:
			return nil, err
		case w.End:
			return nil, io.EOF
		case w.Paused:
			return nil, errPaused
		case w.State != nil:
			var st editorState
			if err := json.Unmarshal(w.State, &st); err != nil {
				return nil, fmt.Errorf("state of an editor: %w", err)
			}
			tell(editorRestore{st})
			return st.Unread, nil
		}
		return nil, nil
	})
	for {
		line, err := g.lines.Next()
		switch {
		case errors.Is(err, acp.ErrLineTooLong):
			tell(editorLine{in: acp.Incoming{ID: acp.ID("null"), Refused: &acp.Error{Code: acp.CodeInvalidRequest,
				Message: fmt.Sprintf("Invalid request: a line of more than %d MiB", acp.MaxLine>>20)}}})
			continue
		case errors.Is(err, errPaused):
			tell(editorPaused{g.lines.Rest()})
			g.drainConn()
			return nil
		case errors.Is(err, io.EOF) && !errors.Is(err, errLost):
			tell(editorEnd{})
			g.drainConn()
			return editorGone{}
		case err != nil:
			return editorGone{err}
		}
		l := editorLine{in: acp.Decode(line), raw: line}
		if l.in.Method == acp.MethodPrompt {
			l.prompt, l.bad = acp.DecodePrompt(l.in.Params)
			l.in.Params = nil
		}
		tell(l)
	}
}

var (
	errPaused = errors.New("the bridge has paused")
	errLost   = errors.New("the bridge is gone")
)

// drainConn waits until the connection has ended: a bridge that dies while its
// work settles must not hold that up.
func (g *editor) drainConn() {
	for {
		if _, err := g.conn.Read(); err != nil {
			return
		}
	}
}

// write is the only one that writes.
func (g *editor) write(ctx context.Context) any {
	for {
		f, word, ok := g.out.take(ctx)
		if !ok {
			g.conn.Close()
			return allWritten{}
		}
		var err error
		if word != nil {
			err = acp.Say(g.conn, *word)
		} else {
			err = g.conn.Write(f)
		}
		if err != nil {
			g.conn.Close() // which the reader hears
			return nil
		}
	}
}

// hello takes down what the editor's world looks like. A bridge of another
// world is refused: a tool must never run elsewhere than its caller thinks.
func (g *editor) hello(w acp.Word) {
	h := w.Hello
	if g.asked {
		g.out.say(acp.Word{Refused: &acp.Refusal{Message: errDraining.Message}})
		g.out.finish()
		return
	}
	if h.Host != g.system.identity.Host || h.MountNamespace != g.system.identity.MountNamespace {
		g.out.say(acp.Word{Refused: &acp.Refusal{World: true, Message: "this home is in use by a process on " + g.system.identity.Host +
			" that sees other files (another machine or container)"}})
		g.out.finish()
		return
	}
	g.world = worldOf(*h)
	g.beside(nil, func(ctx context.Context) (any, error) { return g.system.Info(ctx) }, func(v any, err error) {
		if err != nil {
			g.out.say(acp.Word{Refused: &acp.Refusal{Message: err.Error()}})
			g.out.finish()
			return
		}
		info := v.(messages.ServerInfo)
		g.out.say(acp.Word{Info: &info})
	})
}

func worldOf(h messages.Hello) *messages.World {
	env := make([]string, 0, len(h.Env))
	for k, v := range h.Env {
		env = append(env, k+"="+v)
	}
	return &messages.World{Dir: h.Cwd, Env: env, Umask: h.Umask, UserConfigDir: h.UserConfigDir}
}

// accept begins with one message. A panic costs that request only.
func (g *editor) accept(m editorLine) {
	in := m.in
	if in.Refused != nil {
		g.out.write(acp.Failure(in.ID, in.Refused))
		return
	}
	if in.Method == "" { // a response, or a notification that makes no sense
		return
	}
	g.guard(in.ID, func() {
		if in.ID == nil {
			g.notification(in)
			return
		}
		if err := g.request(m); err != nil {
			g.fail(in.ID, err)
		}
	})
}

// guard turns a panic into an error of the request with that id.
func (g *editor) guard(id acp.ID, f func()) {
	defer func() {
		if p := recover(); p != nil {
			g.me.Log().Error("editor request failed", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if id != nil {
				g.fail(id, acp.Internal("internal error; the log of the home process says more"))
			}
		}
	}()
	f()
}

func (g *editor) reply(id acp.ID, v any)         { g.out.write(acp.Result(id, v)) }
func (g *editor) fail(id acp.ID, err *acp.Error) { g.out.write(acp.Failure(id, err)) }
func (g *editor) failWith(id acp.ID, err error)  { g.fail(id, acp.ErrorOf(err)) }
func (g *editor) tell(session string, m any)     { g.guardian.Tell(toSession{session, m}) }
func (g *editor) ask(ctx context.Context, session string, m any) (any, error) {
	return askAgain(ctx, g.guardian, toSession{session, m})
}

// askAgain asks, and asks once more where the session did not live to answer
// because it was unloaded. Only for what may be asked twice.
func askAgain(ctx context.Context, guardian *Ref, m any) (any, error) {
	v, err := guardian.request(m)(ctx)
	for errors.Is(err, errStopped) && ctx.Err() == nil && !guardian.gone() {
		v, err = guardian.request(m)(ctx)
	}
	return v, err
}

// beside runs what a request needs that is no session's, and then goes on in
// the actor.
func (g *editor) beside(id acp.ID, run func(context.Context) (any, error), then func(any, error)) {
	g.under++
	g.me.Go(func(ctx context.Context) any {
		v, err := safely(ctx, g.me, run)
		return besideDone{id, then, v, err}
	})
}

// safely turns a panic into an error.
func safely(ctx context.Context, me *Self, run func(context.Context) (any, error)) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			me.Log().Error("editor request failed", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			v, err = nil, acp.Internal("internal error; the log of the home process says more")
		}
	}()
	return run(ctx)
}

// end begins with the end: the editor is gone.
func (g *editor) end() {
	if g.ending {
		return
	}
	g.ending = true
	g.me.After(endGrace, editorLate{})
	for _, s := range g.sessions {
		for _, t := range slices.Clone(s.turns) {
			t.cancelled = true
			if !t.sent {
				g.finishTurn(t)
			}
		}
	}
	g.leave()
}

// leave interrupts what this editor's prompts started.
func (g *editor) leave() {
	if !g.left {
		g.left = true
		g.guardian.Tell(leaveLocal{g.name})
	}
}

// settle looks whether the editor can be let go: because it is gone, or
// because another process takes it over.
func (g *editor) settle() {
	if g.ended || !g.ending && !g.paused || !g.quiet() {
		return
	}
	g.ended = true
	if g.paused && !g.ending {
		g.out.say(acp.Word{State: g.state()})
		g.out.finish()
		return
	}
	g.settleSessions()
}

// quiet tells whether nothing is under way.
func (g *editor) quiet() bool {
	if g.under > 0 {
		return false
	}
	for _, s := range g.sessions {
		if len(s.turns) > 0 || s.busy || len(s.ops) > 0 || len(s.closers) > 0 {
			return false
		}
	}
	return true
}

// goOn takes up what was held.
func (g *editor) goOn() {
	held := g.held
	g.holds, g.held = false, nil
	for _, m := range held {
		g.Receive(g.me, m)
	}
}

// settleSessions waits until what the editor's sessions did is on disk and
// what they left running has ended, the editor's servers with it.
func (g *editor) settleSessions() {
	guardian, registry := g.guardian, g.system.places.registry
	var ids []string
	for id, s := range g.sessions {
		if s.prompted {
			ids = append(ids, id)
		}
	}
	g.me.Go(func(ctx context.Context) any {
		for _, id := range ids {
			// One that cannot be read has nothing to settle.
			_, _ = askAgain(ctx, guardian, toSession{id, messages.Wait{SessionID: id}})
			_, _ = registry.request(leftMount{id})(ctx)
			_, _ = guardian.request(leftPlugins{id})(ctx)
		}
		return settledAll{}
	})
}

// move asks the bridge to pause. What is held goes along.
func (g *editor) move(reply Reply) {
	if g.ending || g.asked {
		reply.Send(nil, nil)
		return
	}
	g.asked = true
	if g.world == nil { // the bridge has not heard who is here, and finds the next one by itself
		reply.Send(nil, nil)
		return
	}
	g.moving = reply
	g.out.say(acp.Word{Pause: true})
	g.goOn()
}

// editorState is what the next gateway needs to know. It holds secrets of the
// editor's servers and lives in the memory of bridge and gateways only.
type editorState struct {
	About    acp.Initialize
	Sessions []sessionInEditor
	Unread   []byte
}

type sessionInEditor struct {
	ID      string
	Servers []messages.MCPServer
	Noted   []string
	Notes   []note
}

func (g *editor) state() json.RawMessage {
	st := editorState{About: g.about, Unread: g.rest}
	for _, s := range g.sessions {
		in := sessionInEditor{ID: s.id, Servers: s.world.MCPServers, Notes: s.notes}
		for n := range s.noted {
			in.Noted = append(in.Noted, n)
		}
		st.Sessions = append(st.Sessions, in)
	}
	b, err := json.Marshal(st)
	if err != nil {
		panic(err) // strings and lists of them
	}
	return b
}

// restore goes on where the gateway before was.
func (g *editor) restore(st editorState) {
	g.about = st.About
	for _, in := range st.Sessions {
		s := g.session(in.ID)
		s.setServers(in.Servers)
		s.notes = in.Notes
		for _, n := range in.Noted {
			s.noted[n] = true
		}
		g.op(s, nil, func() work { return g.opening(s) }, func(v any, err error) {
			if err == nil {
				g.opened(s, v.(opening))
			}
		})
	}
}
