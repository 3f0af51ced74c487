package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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

	events   *client.Events
	seq      int64  // of the last durable event that was seen
	sent     bool   // the server may have the prompt
	admitted bool   // the prompt is on disk
	active   bool   // its exchange runs
	aborted  bool   // the last turn came to nothing
	status   string // succeeded, failed, interrupted; "" while it runs
	failure  *messages.Failure
	reason   string // of an interruption
}

// errors that end a run without the work having failed.
var (
	errStillQueued = errors.New("the work before this prompt was stopped or failed, so this prompt has not run")
	errTimeout     = errors.New("the time limit is over")
)

// follow sends the prompt and returns when its work is over: nil when it
// succeeded, otherwise why not.
func (w *watch) follow(ctx context.Context, p messages.Prompt, limit time.Duration) error {
	// The subscription and the interrupt outlive the signal.
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	err := w.subscribe(alive, messages.Subscribe{SessionID: w.session})
	if !stop() {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	defer func() { w.events.Close() }()
	w.sent = true
	if err := w.client.Prompt(ctx, p, true); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	w.admitted = true
	work := ctx
	if limit > 0 {
		var stop context.CancelFunc
		work, stop = context.WithTimeoutCause(ctx, limit, errTimeout)
		defer stop()
	}
	for w.status == "" {
		e, err := w.next(work, alive)
		if err == nil {
			err = w.take(alive, e)
		}
		if work.Err() != nil && w.status == "" {
			return w.stop(context.Cause(work), alive)
		}
		if err != nil {
			return err
		}
	}
	return w.outcome()
}

func (w *watch) subscribe(ctx context.Context, q messages.Subscribe) (err error) {
	w.events, err = w.client.Subscribe(ctx, q)
	return err
}

// next waits for the next event, as long as wait lasts. A reader that was too
// slow, because whoever reads the answer is, goes on from where it was.
func (w *watch) next(wait, alive context.Context) (messages.Event, error) {
	e, err := w.events.Next(wait)
	var overflow *messages.SubscriptionOverflow
	switch {
	case errors.As(err, &overflow):
		if err := w.subscribe(alive, messages.Subscribe{SessionID: w.session, After: map[string]int64{w.session: w.seq}}); err != nil {
			return e, err
		}
		return w.next(wait, alive)
	case errors.Is(err, io.EOF):
		err = client.ErrConnectionLost // the owner ends its streams when it ends
	}
	return e, err
}

// stop interrupts the work and waits for it to settle. A prompt that still
// waits behind other work is taken back instead.
func (w *watch) stop(cause error, ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	if !w.active {
		if ran, err := takeBack(ctx, w.client, w.session, w.prompt); err != nil || !ran {
			return errors.Join(cause, err)
		}
	}
	if _, err := w.client.Interrupt(ctx, messages.Interrupt{SessionID: w.session}); err != nil {
		return errors.Join(cause, err)
	}
	for w.status == "" {
		e, err := w.next(ctx, ctx)
		if err != nil {
			return cause // it did not settle in time; nobody waits longer
		}
		if err := w.take(ctx, e); err != nil {
			return errors.Join(cause, err)
		}
	}
	return cause
}

// outcome is the end of the work as an error.
func (w *watch) outcome() error {
	switch w.status {
	case "failed":
		return w.failure
	case "interrupted":
		return &problem{slug: "interrupted", err: fmt.Errorf("the work was interrupted (%s)", w.reason)}
	}
	return nil
}

// take handles one event of the session.
func (w *watch) take(ctx context.Context, e messages.Event) error {
	w.out.event(e)
	w.seq = max(w.seq, e.Seq)
	d, err := e.Decode()
	if err != nil {
		return fmt.Errorf("event %s: %w", e.Type, err)
	}
	switch e.Type {
	case messages.EventPromptPromoted:
		switch {
		case d.MessageID == w.prompt:
			w.active = true
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

// terminal handles the end of a busy period: of ours, or of work before it.
func (w *watch) terminal(ctx context.Context, kind string, d messages.EventData) error {
	if !w.active {
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
	info, err := w.client.Session(ctx, w.session)
	if err != nil {
		return err
	}
	if info.Status != messages.SessionIdle {
		return nil
	}
	q, err := w.client.Queue(ctx, messages.GetQueue{SessionID: w.session})
	if err != nil {
		return err
	}
	waits := false
	for _, p := range q.Queued {
		waits = waits || p.ID == w.prompt
	}
	if !waits {
		return nil // it was promoted meanwhile: its events follow
	}
	p := &problem{slug: "queued", err: errStillQueued, fields: []field{{"session", w.session}},
		hint: fmt.Sprintf("it stays in the queue and runs before the session's next prompt: codework run --session %s \"…\"", w.session)}
	if kind == messages.EventExecutionFailed && d.Error != nil {
		if !w.aborted {
			// No turn failed, so it was the start of this prompt's own work.
			w.status, w.failure = "failed", d.Error
			return nil
		}
		p.fields = append(p.fields, field{"detail", d.Error.Message})
	}
	return p
}
