package actors

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"codework/messages"
	"codework/protocol/acp"
)

// listPage is how many sessions one answer of session/list holds.
const listPage = 50

// notification handles what is never answered.
func (g *editor) notification(in acp.Incoming) {
	switch in.Method {
	case acp.MethodCancel:
		if id, err := acp.DecodeSession(in.Params); err == nil {
			if s := g.sessions[id]; s != nil {
				g.cancel(s)
			}
		}
	case acp.MethodCancelAny:
		if t := g.turns[acp.DecodeCancelled(in.Params)]; t != nil {
			g.cancelTurn(t)
		}
	}
}

// request begins with a request. The error answers it; without one somebody
// has answered it or will.
func (g *editor) request(m editorLine) *acp.Error {
	id, p := m.in.ID, m.in.Params
	switch m.in.Method {
	case acp.MethodInitialize:
		about, err := acp.DecodeInitialize(p)
		if err != nil {
			return err
		}
		g.about = about
		g.reply(id, acp.Initialized(g.system.identity.Version))
		return nil
	case acp.MethodNew:
		return g.newSession(id, p)
	case acp.MethodLoad:
		return g.load(id, p, true)
	case acp.MethodResume:
		return g.load(id, p, false)
	case acp.MethodPrompt:
		return g.prompt(m)
	case acp.MethodList:
		return g.list(id, p)
	case acp.MethodSetConfig:
		return g.setConfig(id, p)
	case acp.MethodClose:
		return g.close(id, p)
	case acp.MethodDelete:
		return g.delete(id, p)
	}
	return acp.UnknownMethod(m.in.Method)
}

// newSession makes a session with the host as its sandbox.
func (g *editor) newSession(id acp.ID, p acp.Params) *acp.Error {
	o, bad := acp.DecodeOpen(p, false)
	if bad != nil {
		return bad
	}
	world := g.world
	g.beside(id, func(ctx context.Context) (any, error) {
		if err := isFolder(o.Cwd); err != nil {
			return nil, err
		}
		info, err := Ask[messages.SessionInfo](ctx, g.guardian, messages.CreateSession{Directory: o.Cwd, HostDir: o.Cwd,
			Sandbox: &messages.SandboxRef{Driver: "local"}, World: world})
		if err != nil {
			return nil, err
		}
		return g.look(ctx, info.ID, world, true)
	}, func(v any, err error) {
		if err != nil {
			g.failWith(id, err)
			return
		}
		found := v.(opening)
		s := g.session(found.info.ID)
		s.setServers(o.Servers)
		g.opened(s, found)
		g.reply(id, acp.NewResult{SessionID: s.id, ConfigOptions: acp.Options(s.choices)})
		g.aboutServers(s, o)
		g.release(s)
	})
	return nil
}

// isFolder refuses a folder that is none.
func isFolder(path string) error {
	switch fi, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return &messages.DirectoryNotFound{Directory: path}
	case err != nil || !fi.IsDir():
		return &messages.NotDirectory{Directory: path}
	}
	return nil
}

// load opens a stored session, with its conversation or without.
func (g *editor) load(id acp.ID, p acp.Params, replay bool) *acp.Error {
	o, bad := acp.DecodeOpen(p, true)
	if bad != nil {
		return bad
	}
	s := g.session(o.SessionID)
	g.op(s, id, func() work {
		look := g.opening(s)
		return func(ctx context.Context) (any, error) {
			found, err := look(ctx)
			if err != nil || !replay {
				return found, err
			}
			return g.replay(ctx, found.(opening))
		}
	}, func(v any, err error) {
		if err != nil {
			g.failWith(id, err)
			return
		}
		found := v.(opening)
		s.setServers(o.Servers)
		g.opened(s, found)
		for message := range found.replayed {
			if s.active() {
				s.tr.Replayed(message)
			}
		}
		g.reply(id, acp.ConfigResult{ConfigOptions: acp.Options(s.choices)})
		if found.info.Title != "" {
			g.out.update(s.id, acp.Titled(found.info.Title, found.info.UpdatedAt))
		}
		g.aboutServers(s, o)
	})
	return nil
}

// historyPage is how many entries are asked for at once.
const historyPage = historyMost

// replay writes the whole conversation, oldest first.
func (g *editor) replay(ctx context.Context, found opening) (any, error) {
	var pages [][]messages.Message
	before := ""
	for {
		v, err := g.ask(ctx, found.info.ID, messages.GetHistory{SessionID: found.info.ID, Before: before, Limit: historyPage})
		if err != nil {
			return nil, err
		}
		h := v.(messages.History)
		if len(pages) == 0 {
			found.seq = h.Seq
		}
		pages = append(pages, h.Entries)
		if !h.More || len(h.Entries) == 0 {
			break
		}
		before = h.Entries[0].ID
	}
	tr := g.translator(found.info)
	found.replayed = map[string]bool{}
	for i := len(pages) - 1; i >= 0; i-- {
		for _, m := range pages[i] {
			found.replayed[m.ID] = true
			for _, u := range tr.Replay(m) {
				if room := g.out.room(); room != nil {
					select {
					case <-room:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				g.out.update(found.info.ID, u)
			}
		}
	}
	return found, nil
}

func (g *editor) translator(info messages.SessionInfo) *acp.Translator {
	return &acp.Translator{Dir: info.Directory, Local: folderOf(info) != "", Blob: g.system.config.Store.Blob}
}

// list answers from the store alone.
func (g *editor) list(id acp.ID, p acp.Params) *acp.Error {
	l, bad := acp.DecodeList(p)
	if bad != nil {
		return bad
	}
	q := messages.ListSessions{HostDir: l.Cwd, Limit: listPage + 1}
	if l.Cursor != "" {
		var ok bool
		if q.Before, q.BeforeTime, ok = readCursor(l.Cursor); !ok {
			return acp.Invalid("cursor: not one of this list")
		}
	}
	st := g.system.config.Store
	g.beside(id, func(ctx context.Context) (any, error) { return st.List(ctx, q) }, func(v any, err error) {
		if err != nil {
			g.failWith(id, err)
			return
		}
		records := v.([]messages.SessionRecord)
		r := acp.ListResult{Sessions: []acp.SessionEntry{}}
		for i, rec := range records {
			if i == listPage {
				last := records[i-1]
				r.NextCursor = cursor(last.ID, last.UpdatedAt)
				break
			}
			cwd := rec.HostDir
			if cwd == "" {
				cwd = rec.Directory
			}
			r.Sessions = append(r.Sessions, acp.SessionEntry{SessionID: rec.ID, Cwd: cwd, Title: rec.Title, UpdatedAt: messages.ISOTime(rec.UpdatedAt)})
		}
		g.reply(id, r)
	})
	return nil
}

// cursor is the place behind a session in the list, with a mark by which what
// was not handed out here is told.
func cursor(id string, at int64) string {
	text := fmt.Sprintf("%d %s", at, id)
	return base64.RawURLEncoding.EncodeToString([]byte(text + " " + digest("cursor " + text)[:8]))
}

func readCursor(c string) (id string, at int64, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(c)
	if err != nil {
		return "", 0, false
	}
	if _, err := fmt.Sscanf(string(b), "%d %s", &at, &id); err != nil || at <= 0 || cursor(id, at) != c {
		return "", 0, false
	}
	return id, at, true
}

// setConfig changes the model or the level of a session.
func (g *editor) setConfig(id acp.ID, p acp.Params) *acp.Error {
	c, bad := acp.DecodeSetConfig(p)
	if bad != nil {
		return bad
	}
	s := g.session(c.SessionID)
	g.op(s, id, func() work {
		look, world := g.opening(s), s.world
		return func(ctx context.Context) (any, error) {
			found, err := look(ctx)
			if err != nil {
				return nil, err
			}
			o := found.(opening)
			r, bad := acp.Choose(o.choices, c.ConfigID, c.Value)
			if bad != nil {
				return nil, refusedValue{o, bad}
			}
			v, err := g.ask(ctx, s.id, messages.Configure{SessionID: s.id, Runtime: r})
			if err != nil {
				return nil, err
			}
			o.info = v.(messages.SessionInfo)
			o.choices = g.choices(ctx, o.info, world)
			return o, nil
		}
	}, func(v any, err error) {
		var refused refusedValue
		switch {
		case errors.As(err, &refused):
			g.opened(s, refused.opening)
			g.fail(id, refused.err)
		case err != nil:
			g.failWith(id, err)
		default:
			g.opened(s, v.(opening))
			g.reply(id, acp.ConfigResult{ConfigOptions: acp.Options(s.choices)})
		}
	})
	return nil
}

// refusedValue is a choice that is not there, for a session that is.
type refusedValue struct {
	opening
	err *acp.Error
}

func (r refusedValue) Error() string { return r.err.Message }

// prompt registers a turn at once, so that a cancel right behind it finds it,
// and hands the prompt to its session.
func (g *editor) prompt(m editorLine) *acp.Error {
	if m.bad != nil {
		return m.bad
	}
	q := m.prompt
	p := messages.Prompt{SessionID: q.SessionID, Text: q.Text, Parts: q.Parts, ID: messages.NewMessageID(), Bound: g.name, UnlessBusy: true}
	if !messages.ValidSessionID(q.SessionID) {
		return acp.NotFound(q.SessionID)
	}
	if err := p.Validate(); err != nil {
		return acp.Invalid(strings.TrimPrefix(err.Error(), "text: "))
	}
	s := g.session(q.SessionID)
	for _, t := range s.turns {
		if !t.cancelled {
			return acp.Busy()
		}
	}
	t := &turn{id: m.in.ID, key: m.in.Key(), s: s, prompt: p.ID}
	s.turns = append(s.turns, t)
	g.turns[t.key] = t
	g.op(s, m.in.ID, func() work {
		look, open, dir := g.opening(s), s.feed != nil, s.dir
		return func(ctx context.Context) (any, error) {
			var found any
			if !open || q.Images {
				var err error
				if found, err = look(ctx); err != nil {
					return nil, err
				}
				dir = folderOf(found.(opening).info)
			}
			// A session keeps its place in its sandbox, so it would not notice.
			if dir != "" && isFolder(dir) != nil {
				return found, acp.Internal("the folder of this session does not exist any more: " + dir + "; make it again, or start a new session")
			}
			return found, nil
		}
	}, func(v any, err error) {
		if v != nil {
			g.opened(s, v.(opening))
		}
		if t.done {
			return
		}
		if err != nil {
			g.drop(t, acp.ErrorOf(err))
			return
		}
		if c := s.choices.Current(); q.Images && c != nil && !c.Images {
			g.drop(t, acp.Invalid(c.Ref.String()+" does not accept images"))
			return
		}
		g.send(t, p)
	})
	return nil
}

// close releases a session: its turn is stopped, and when that is over what it
// holds goes.
func (g *editor) close(id acp.ID, p acp.Params) *acp.Error {
	session, bad := acp.DecodeSession(p)
	if bad != nil {
		return bad
	}
	s := g.sessions[session]
	if s == nil {
		g.reply(id, acp.Done{})
		return nil
	}
	g.cancel(s)
	s.closers = append(s.closers, id)
	g.maybeClose(s)
	return nil
}

// maybeClose goes on with a close when the session's turns are answered.
func (g *editor) maybeClose(s *editorSession) {
	if len(s.closers) == 0 || len(s.turns) > 0 || s.closing {
		return
	}
	s.closing = true
	g.op(s, nil, func() work {
		return func(ctx context.Context) (any, error) {
			// Queued prompts go, and with its last client what it left running.
			if _, err := g.ask(ctx, s.id, clientGone{g.name}); err != nil {
				return nil, err
			}
			if _, err := g.ask(ctx, s.id, messages.Wait{SessionID: s.id}); err != nil {
				return nil, err
			}
			if _, err := g.system.places.registry.request(leftMount{s.id})(ctx); err != nil {
				return nil, err
			}
			return g.guardian.request(leftPlugins{s.id})(ctx)
		}
	}, func(any, error) { // one that is gone is closed as well
		ids := s.closers
		s.closers, s.closing = nil, false
		g.forget(s)
		for _, id := range ids {
			g.reply(id, acp.Done{})
		}
	})
}

// delete removes a stored session.
func (g *editor) delete(id acp.ID, p acp.Params) *acp.Error {
	session, bad := acp.DecodeSession(p)
	if bad != nil {
		return bad
	}
	if s := g.sessions[session]; s != nil {
		g.cancel(s)
	}
	g.beside(id, func(ctx context.Context) (any, error) {
		return Ask[any](ctx, g.guardian, messages.Delete{SessionID: session, Force: true})
	}, func(_ any, err error) {
		var missing *messages.SessionNotFound
		if err != nil && !errors.As(err, &missing) {
			g.failWith(id, err)
			return
		}
		if s := g.sessions[session]; s != nil {
			for len(s.turns) > 0 {
				g.finishTurn(s.turns[0])
			}
			g.forget(s)
		}
		g.reply(id, acp.Done{})
	})
	return nil
}

// aboutServers tells of the editor's MCP servers that are not used.
func (g *editor) aboutServers(s *editorSession, o acp.Open) {
	if s.choices.Notice != "" {
		g.note(s, note{"warning", "Settings", s.choices.Notice})
	}
	for _, name := range o.Others {
		g.note(s, note{"warning", "MCP server not used", fmt.Sprintf("MCP server %q from the editor is not used: CodeWork starts servers with a command, and connects to none by URL.", name)})
	}
}

// retryText is what a person reads of a failed attempt.
func retryText(d messages.EventData) string {
	text := "the model did not answer"
	if d.Error != nil {
		text = d.Error.Message
	}
	wait := ""
	if d.DelayMs != nil {
		wait = " in " + (time.Duration(*d.DelayMs) * time.Millisecond).Round(100*time.Millisecond).String()
	}
	return fmt.Sprintf("%s; attempt %d follows%s", text, d.Attempt+1, wait)
}
