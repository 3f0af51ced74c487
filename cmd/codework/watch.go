package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"codework/messages"
	"codework/protocol/client"
)

// watch follows the work on one prompt and prints what belongs to it.
type watch struct {
	client  *client.Client
	out     *output
	session string
	prompt  string
	server  *remoteServer // nil is the home's owner

	events   *client.Follower
	sent     bool      // the server may have the prompt
	admitted bool      // the prompt is on disk
	active   bool      // its exchange runs
	aborted  bool      // the last turn came to nothing
	rests    time.Time // when to look whether the session rests without our work; zero: never
	status   string    // succeeded, failed, interrupted; "" while it runs
	failure  *messages.Failure
	reason   string // of an interruption
	waits    string // that a prompt which failed before it ran is still queued: sent again, it would run twice
}

// remoteServer is what a watch needs to know of a server that goes on without
// its clients.
type remoteServer struct {
	dial  func(context.Context) (*client.Client, error)
	flags string // that lead to it, as a suggested command line ends in them
}

// errors that end a run without the work having failed.
var (
	errStillQueued = errors.New("the work before this prompt was stopped or failed, so this prompt has not run")
	errTimeout     = errors.New("the time limit is over")
)

const (
	// patience is how long a run looks for a server that it has lost: a
	// restart takes a few seconds, a laptop that changes its network a few
	// more.
	patience = 30 * time.Second

	// resumeWait is what a server that was told to resume gets to begin with
	// the prompts that wait.
	resumeWait = 2 * time.Second

	// toolPace is the least time between two deliveries while tools run: an event
	// at a time would cost each side more than what it says. Nobody sees two
	// hundred changes a second, and no work waits for them to be seen.
	toolPace = 5 * time.Millisecond
)

// pace makes events come one by one while text is written, and at intervals
// while tools are called.
func pace(f *client.Follower, kind string) {
	switch kind {
	case messages.EventToolStarted:
		f.Pace(toolPace)
	case messages.EventLLMTextDelta:
		f.Pace(0)
	}
}

// subscribe begins to follow the session.
func (w *watch) subscribe(ctx context.Context) (err error) {
	o := client.FollowOptions{Session: w.session}
	if w.server != nil {
		o.Dial, o.Patience = w.server.dial, patience
		o.Lost = func(error) { w.out.notice("the connection is lost; looking for the server again") }
	}
	w.events, err = client.Follow(ctx, w.client, o)
	return err
}

// follow sends the prompt and returns when its work is over: nil when it
// succeeded, otherwise why not.
func (w *watch) follow(ctx context.Context, p messages.Prompt, limit time.Duration) error {
	if err := w.send(ctx, p); err != nil {
		return deleted(err)
	}
	defer w.events.Close()
	// What is asked behind the signal outlives it.
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	work := ctx
	if limit > 0 {
		var stop context.CancelFunc
		work, stop = context.WithTimeoutCause(ctx, limit, errTimeout)
		defer stop()
	}
	for w.status == "" {
		err := w.next(work, alive)
		if work.Err() != nil && w.status == "" {
			return w.stop(context.Cause(work), alive)
		}
		if err != nil {
			return deleted(err)
		}
	}
	if err := w.deleted(alive); err != nil {
		return err
	}
	return w.outcome()
}

// deleted is the error of work that was stopped because its session is deleted.
// The event does not tell that from the end of the server.
func (w *watch) deleted(ctx context.Context) error {
	if w.status != "interrupted" || w.reason != string(messages.ByShutdown) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	_, err := w.events.Client().Session(ctx, w.session) // answered when the session is gone
	var missing *messages.SessionNotFound
	if !errors.As(err, &missing) {
		return nil
	}
	return deleted(err)
}

// send subscribes and saves the prompt.
func (w *watch) send(ctx context.Context, p messages.Prompt) error {
	err := w.subscribe(ctx)
	if err == nil {
		w.sent = true
		if w.server == nil {
			err = w.client.Prompt(ctx, p, true)
		} else {
			err = w.events.Prompt(ctx, p)
		}
		if err == nil {
			w.admitted = true
			return nil
		}
		w.events.Close()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// leave saves the prompt, prints the session's id and leaves the work to the
// server.
func (w *watch) leave(ctx context.Context, p messages.Prompt, g *global) error {
	if err := w.send(ctx, p); err != nil {
		return err
	}
	w.events.Close()
	w.out.print(w.session + "\n")
	if !g.quiet {
		fmt.Fprintln(g.err, "follow it with: codework session attach "+w.session+w.server.flags)
	}
	return nil
}

// next waits for the next event, as long as wait lasts, and handles it.
func (w *watch) next(wait, alive context.Context) error {
	if !w.rests.IsZero() {
		var cancel context.CancelFunc
		wait, cancel = context.WithDeadline(wait, w.rests)
		defer cancel()
	}
	step, err := w.events.Next(wait)
	switch {
	case err != nil && !w.rests.IsZero() && !time.Now().Before(w.rests):
		w.rests = time.Time{}
		return w.restedBefore(alive, "", messages.EventData{})
	case err != nil:
		return err
	case step.Gap != nil:
		w.reconnected(step.Gap)
		return nil
	}
	pace(w.events, step.Event.Type)
	return w.take(alive, step.Event)
}

// reconnected takes note of a gap. A server that was started again may have
// found our prompt in the queue and left it there, which no event tells.
func (w *watch) reconnected(gap *client.Reconnected) {
	if !errors.Is(gap.Cause, client.ErrConnectionLost) {
		return // this reader was too slow; it goes on from where it was
	}
	w.out.notice("connected again")
	if !w.active {
		w.rests = time.Now().Add(resumeWait)
	}
}

// stop interrupts the work and waits for it to settle. A prompt that still
// waits behind other work is taken back; that work goes on, unless the session
// is a server's, which is stopped for everybody.
func (w *watch) stop(cause error, ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	w.events.Pace(0)
	if !w.active {
		ran, err := w.takeBack(ctx)
		if w.server == nil && (err != nil || !ran) {
			return errors.Join(cause, err)
		}
	}
	err := w.events.Do(ctx, func(c *client.Client) error {
		_, err := c.Interrupt(ctx, messages.Interrupt{SessionID: w.session})
		return err
	})
	if err != nil {
		if w.server != nil {
			w.out.notice("the server could not be told to stop, the work may go on; later: codework session interrupt " + w.session + w.server.flags)
		}
		return errors.Join(cause, err)
	}
	if !w.active && w.server != nil {
		// Others' work settles; how it ends is not ours to tell.
		_ = w.events.Do(ctx, func(c *client.Client) error { return c.Wait(ctx, w.session) })
		return cause
	}
	w.rests = time.Time{}
	for w.status == "" {
		step, err := w.events.Next(ctx)
		if err != nil {
			return cause // it did not settle in time; nobody waits longer
		}
		if step.Gap != nil {
			continue
		}
		if err := w.take(ctx, step.Event); err != nil {
			return errors.Join(cause, err)
		}
	}
	return cause
}

// takeBack takes our prompt out of the queue and tells whether it is too late
// for that.
func (w *watch) takeBack(ctx context.Context) (ran bool, err error) {
	err = w.events.Do(ctx, func(c *client.Client) (err error) {
		ran, err = takeBack(ctx, c, w.session, w.prompt)
		return err
	})
	return ran, err
}

// flags are what a suggested command line ends in.
func (w *watch) flags() string {
	if w.server == nil {
		return ""
	}
	return w.server.flags
}

// queued tells whether our prompt is in the queue.
func (w *watch) queued(q messages.Queue) bool {
	return slices.ContainsFunc(q.Queued, func(p messages.QueuedPrompt) bool { return p.ID == w.prompt })
}

// stays says what becomes of a prompt that is left in the queue.
func (w *watch) stays() string {
	return "it stays in the queue and runs with the session's next prompt; see: codework session queue " + w.session + w.flags()
}

// outcome is the end of the work as an error.
func (w *watch) outcome() error {
	switch w.status {
	case "failed":
		if w.waits != "" {
			p := explainFailure(w.failure, w.session)
			p.fields = append(p.fields, field{"prompt", w.waits})
			return p
		}
		return w.failure
	case "interrupted":
		return &problem{slug: "interrupted", err: fmt.Errorf("the work was interrupted (%s)", w.reason)}
	}
	return nil
}

// take handles one event of the session.
func (w *watch) take(ctx context.Context, e messages.Event) error {
	w.out.event(e)
	var d messages.EventData
	if w.reads(e.Type) {
		var err error
		if d, err = e.Decode(); err != nil {
			return fmt.Errorf("event %s: %w", e.Type, err)
		}
	}
	switch e.Type {
	case messages.EventPromptPromoted:
		switch {
		case d.MessageID == w.prompt:
			w.active = true
			w.rests = time.Time{}
		case w.active && d.Delivery == messages.FollowUp:
			w.status = "succeeded" // the next prompt's exchange begins
		}
		return nil
	case messages.EventPromptRemoved:
		if d.MessageID == w.prompt {
			return &problem{slug: "removed", err: errors.New("this prompt was taken out of the queue before it ran")}
		}
		return nil
	case messages.EventNotice:
		w.out.notice(d.Text)
		return nil
	case messages.EventTurnStarted:
		w.aborted = false
	case messages.EventTurnAborted:
		w.aborted = true
	}
	if messages.Terminal(e.Type) {
		return w.terminal(ctx, e.Type, d)
	}
	if w.active {
		w.out.work(e.Type, d)
	}
	return nil
}

// reads tells whether take looks into an event of this type.
func (w *watch) reads(kind string) bool {
	switch kind {
	case messages.EventPromptPromoted, messages.EventPromptRemoved, messages.EventNotice:
		return true
	}
	return messages.Terminal(kind) || w.active && w.out.reads(kind)
}

// terminal handles the end of a busy period: of ours, or of work before it.
func (w *watch) terminal(ctx context.Context, kind string, d messages.EventData) error {
	if !w.active {
		w.rests = time.Time{}
		return w.restedBefore(ctx, kind, d)
	}
	switch kind {
	case messages.EventExecutionSucceeded:
		w.status = "succeeded"
	case messages.EventExecutionInterrupted:
		w.status, w.reason = "interrupted", d.Reason
	case messages.EventExecutionFailed:
		w.status, w.failure = "failed", d.Error
		if w.failure == nil {
			w.failure = &messages.Failure{Type: messages.FailUnknown, Message: "the work failed without a reason"}
		}
	}
	return nil
}

// restedBefore decides what it means that a busy period ended before our
// prompt was promoted: either the session goes on at once, or it rests with
// our prompt in the queue.
func (w *watch) restedBefore(ctx context.Context, kind string, d messages.EventData) error {
	var info messages.SessionInfo
	var q messages.Queue
	err := w.events.Do(ctx, func(c *client.Client) (err error) {
		if info, err = c.Session(ctx, w.session); err == nil && info.Status == messages.SessionIdle {
			q, err = c.Queue(ctx, messages.GetQueue{SessionID: w.session})
		}
		return err
	})
	if err != nil || info.Status != messages.SessionIdle {
		return err
	}
	if !w.queued(q) {
		return nil // it was promoted meanwhile: its events follow
	}
	p := &problem{slug: "queued", err: errStillQueued, fields: []field{{"session", w.session}}, hint: w.stays()}
	if kind == messages.EventExecutionFailed && d.Error != nil {
		if !w.aborted && !d.Recovered {
			// No turn failed, so it was the start of this prompt's own work.
			w.status, w.failure = "failed", d.Error
			if w.server != nil { // the owner of a home takes it back when we leave
				w.waits = w.stays()
			}
			return nil
		}
		p.fields = append(p.fields, field{"detail", d.Error.Message})
	}
	return p
}
