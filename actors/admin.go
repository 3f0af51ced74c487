package actors

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"codework/internal/store"
	"codework/internal/tools"
	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
	"codework/sandboxes"
)

// This file holds what the guardian does with whole sessions and sandboxes:
// fork, delete, check, and the calls about sandboxes.

// quiesce is something that is done to a session while nobody has it in
// memory. What comes for it meanwhile waits.
type quiesce struct {
	id     string
	force  bool // also when it works: the work is stopped
	action func(context.Context) (any, error)
}

type (
	quiet struct { // the session has stopped its work
		q     quiesce
		reply Reply
	}
	quiesced struct{ id string } // the action is done and answered
)

func (g *guardian) quiesce(me *Self, q quiesce) {
	s := g.sessions[q.id]
	switch {
	case s == nil:
		s = &sessionSlot{retiring: true, state: sessionState{id: q.id, status: messages.SessionIdle}}
		g.sessions[q.id] = s
		g.act(me, quiet{q, me.TakeReply()})
		return
	case s.retiring:
		s.held = append(s.held, heldMessage{q, me.TakeReply()})
		return
	case s.works() && !q.force:
		me.Answer(nil, &messages.SessionBusy{SessionID: q.id})
		return
	}
	s.retiring = true
	g.forgetRest(s)
	reply, wait := me.TakeReply(), s.ref.request(wrapUp{unloads: true})
	me.Go(func(ctx context.Context) any {
		_, _ = wait(ctx) // one that cannot be read has nothing to stop
		return quiet{q, reply}
	})
}

// onQuiet ends the session's actor; the action follows its end.
func (g *guardian) onQuiet(me *Self, m quiet) {
	s := g.sessions[m.q.id]
	if s == nil || s.ref == nil || !s.retiring { // it has ended by itself meanwhile
		me.reply = m.reply
		g.quiesce(me, m.q)
		return
	}
	s.then = &m
	s.ref.Stop()
}

// act runs the action beside the guardian.
func (g *guardian) act(me *Self, m quiet) {
	me.Go(func(ctx context.Context) any {
		v, err := m.q.action(ctx)
		m.reply.Send(v, err) // from here: the guardian may have ended when it is done
		return quiesced{m.q.id}
	})
}

func (g *guardian) onQuiesced(me *Self, m quiesced) {
	held := g.sessions[m.id].held
	delete(g.sessions, m.id)
	g.tell()
	g.release(me, m.id, held)
}

func (g *guardian) delete(me *Self, m messages.Delete) {
	st, boxes, hub := g.config.Store, g.registry, g.hub
	g.quiesce(me, quiesce{m.SessionID, m.Force, func(ctx context.Context) (any, error) {
		boxes.Tell(unmountAll{session: m.SessionID})
		err := commit(context.WithoutCancel(ctx), st, store.Batch{Session: m.SessionID, Delete: true})
		if err == nil {
			hub.Tell(deleted{m.SessionID}) // behind all that the session published
		}
		return nil, err
	}})
}

// check looks at a log; mending it takes the session out of memory.
func (g *guardian) check(me *Self, m messages.Check) {
	st := g.config.Store
	if !m.Repair {
		reply := me.TakeReply()
		me.Go(func(ctx context.Context) any {
			lines, err := st.Check(ctx, m.SessionID)
			if err == nil && len(lines) == 0 {
				var wrong string
				if wrong, _, err = checkpointsFit(ctx, st, m.SessionID); wrong != "" {
					lines = []string{wrong}
				}
			}
			reply.Send(findings(lines, false), err)
			return nil
		})
		return
	}
	g.quiesce(me, quiesce{m.SessionID, false, func(ctx context.Context) (any, error) {
		lines, err := st.Repair(ctx, m.SessionID)
		if err == nil && len(lines) == 0 {
			wrong, led, fits := checkpointsFit(ctx, st, m.SessionID)
			if err = fits; err == nil && wrong != "" {
				lines = []string{wrong}
				err = commit(ctx, st, store.Batch{Session: m.SessionID, Checkpoint: led.checkpoint()})
			}
		}
		return findings(lines, err == nil), err
	}})
}

func findings(lines []string, repaired bool) messages.Findings {
	f := messages.Findings{Findings: []messages.Finding{}}
	for _, l := range lines {
		code := "list"
		for _, c := range [...]string{"log", "checkpoint"} {
			if strings.HasPrefix(l, c+" ") {
				code = c
			}
		}
		f.Findings = append(f.Findings, messages.Finding{Code: code, Detail: l, Repaired: repaired})
	}
	return f
}

// commit appends a batch and waits for it. Who would do it again after an error
// waits to the end, which always comes: what is given up on may be written all
// the same.
func commit(ctx context.Context, st Store, b store.Batch) error {
	done := make(chan error, 1)
	st.Append(b, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fork makes a session with another one's conversation up to an entry. The
// copied entries lie in a blob, so that the source may go.
func (g *guardian) fork(me *Self, m messages.Fork) {
	reply, limit, publish, boxes := me.TakeReply(), g.limit, g.deps.publish, g.boxes.shelf
	me.Go(func(ctx context.Context) any {
		info, err := forkOf(ctx, limit, publish, boxes, m)
		reply.Send(info, err)
		return nil
	})
}

// forkOf writes the new session and tells readers of it, before anybody can
// prompt it.
func forkOf(ctx context.Context, limit *limit, publish func([]*published), boxes *shelf, m messages.Fork) (messages.SessionInfo, error) {
	room, err := limit.take(ctx)
	if err != nil {
		return messages.SessionInfo{}, err
	}
	defer room.leave()
	st := limit.store
	defer st.HoldBlobs()() // the source may go meanwhile, and its images stay
	led, snap, err := recall(ctx, st, m.SessionID)
	if err != nil {
		return messages.SessionInfo{}, err
	}
	entries := led.entries
	at := m.At
	if at != "" {
		i := slices.IndexFunc(entries, func(e messages.Message) bool { return e.ID == at })
		if i < 0 {
			return messages.SessionInfo{}, errors.New("at: no such entry in this session")
		}
		entries = entries[:i+1]
	}
	if len(entries) == 0 {
		return messages.SessionInfo{}, errors.New("the session has no conversation to fork")
	}
	at = entries[len(entries)-1].ID
	copied, err := messages.JSON(entries)
	if err != nil {
		return messages.SessionInfo{}, err
	}
	blob, err := st.PutBlob(copied)
	if err != nil {
		return messages.SessionInfo{}, err
	}
	now := time.Now().UnixMilli()
	rec := led.record
	rec.ID, rec.ParentID, rec.CreatedAt, rec.UpdatedAt, rec.Queued = messages.NewSessionID(), m.SessionID, now, now, 0
	rec.Usage, rec.Discarded, rec.Turns, rec.TitleSet = messages.Usage{}, messages.Usage{}, 0, true
	base := snap.Head.Seq
	e := messages.Event{ID: messages.NewEventID(), Type: messages.EventForked, Session: rec.ID, Seq: base + 1,
		Data: encode(messages.EventData{Timestamp: now, SessionID: rec.ID, SourceSessionID: m.SessionID, SourceEntryID: at,
			BaseSeq: &base, Entries: &messages.Part{Type: messages.PartText, Blob: blob, Bytes: int64(len(copied))}})}
	events := []messages.Event{e}
	if err := room.write(ctx, store.Batch{Session: rec.ID, Record: &rec, Base: &snap.Head, Events: events}); err != nil {
		return messages.SessionInfo{}, err
	}
	publish(announce(events...))
	return infoOf(rec, boxes), nil
}

// readLedger folds a session's log.
func readLedger(ctx context.Context, st Store, id string) (*ledger, store.Snapshot, error) {
	snap, err := st.Load(ctx, id)
	if err == nil && snap.Damaged != nil {
		// What was torn off is kept aside; everything before it counts.
		if _, err = st.Repair(ctx, id); err == nil {
			snap, err = st.Load(ctx, id)
		}
	}
	if err != nil {
		return nil, snap, err
	}
	led := newLedger(snap.Record)
	led.load = st.Blob
	return led, snap, led.applyAll(snap.Events)
}

// resumeAll wakes the sessions in which prompts wait.
func (g *guardian) resumeAll(me *Self) {
	st, self := g.config.Store, me.Ref()
	me.Go(func(ctx context.Context) any {
		records, err := st.List(ctx, messages.ListSessions{})
		if err != nil {
			me.Log().Error("sessions to resume cannot be listed", "err", err)
			return nil
		}
		for _, r := range records {
			if r.Queued > 0 {
				self.Tell(toSession{r.ID, wakeQueued{}})
			}
		}
		return nil
	})
}

// exec runs a command in a sandbox and streams what it prints.
func (g *gateway) exec(me *Self, c *effectrpc.Call, m messages.ExecSandbox) {
	visitor := "exec-" + messages.NewEventID() // a mount of its own
	o := sandboxes.MountOptions{Dir: m.Cwd, Umask: -1}
	places, world := g.system.places, g.world
	driver := places.shelf.driver(m.SandboxID)
	if world != nil && places.shelf.kind(m.SandboxID) == messages.KindLocal {
		o.Caller, o.Umask = world.Env, world.Umask
	}
	if messages.IsHost(m.SandboxID) && !filepath.IsAbs(m.Cwd) {
		dir := places.dir
		if world != nil {
			dir = world.Dir
		}
		o.Dir = filepath.Join(dir, m.Cwd)
	}
	over := make(chan struct{})
	admitted := g.guardian.request(underWay{over})
	me.Go(func(context.Context) any {
		defer close(over)
		if _, err := admitted(c.Context()); err != nil {
			failCall(c, err)
			return nil
		}
		p, leave, err := places.visit(c.Context(), m.SandboxID, visitor, o, world)
		if err != nil {
			failCall(c, notRun(driver, err))
			return nil
		}
		defer leave()
		end := io.EOF // read when out is closed
		out := make(chan messages.ExecOutput, execBuffered)
		cmd := sandboxes.Command{Argv: m.Argv, Env: m.Env, Timeout: time.Duration(m.TimeoutMs) * time.Millisecond,
			Output: func(s sandboxes.Stream, b []byte) {
				e := messages.ExecOutput{Stream: "stdout", Data: slices.Clone(b)}
				if s == sandboxes.Stderr {
					e.Stream = "stderr"
				}
				select {
				case out <- e:
				case <-c.Context().Done():
				}
			}}
		c.Stream(func(ctx context.Context, _ effectrpc.Batch) ([]json.RawMessage, error) {
			return nextOutput(ctx, out, &end)
		})
		exit, err := p.mount.Run(c.Context(), cmd)
		leave() // who reads the end may stop the sandbox
		if err != nil {
			end = streamError(notRun(driver, err))
		} else {
			select {
			case out <- messages.ExecOutput{ExitCode: &exit.Code, Signal: exit.Signal, TimedOut: exit.TimedOut}:
			case <-c.Context().Done():
			}
		}
		close(out)
		return nil
	})
}

// execBuffered is how many pieces of output wait for the client before the
// command does.
const execBuffered = 16

// notRun is why a command did not come to an end of its own, as an error that
// the call declares.
func notRun(driver string, err error) error {
	var tagged messages.Tagged
	var missing *messages.DirectoryNotFound
	var odd *messages.NotDirectory
	var refused *messages.Refused
	switch {
	case errors.As(err, &missing), errors.As(err, &odd): // which this call does not declare
	case errors.As(err, &tagged), errors.As(err, &refused):
		return err
	}
	return &messages.SandboxProvider{Driver: driver, Operation: "exec", Sanitized: messages.CleanedError{Name: "ShellError", Message: err.Error()}}
}

// nextOutput returns what comes from out, then end.
func nextOutput(ctx context.Context, out <-chan messages.ExecOutput, end *error) ([]json.RawMessage, error) {
	select {
	case e, ok := <-out:
		if !ok {
			return nil, *end
		}
		b, err := contract.Encode(e)
		return []json.RawMessage{b}, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// builtinsInUse counts the plugins of the program that are on by default: its
// tools, its system prompt and the instruction files.
func builtinsInUse() int {
	n := 2
	for _, t := range tools.Builtin() {
		if t.On {
			n++
		}
	}
	return n
}
