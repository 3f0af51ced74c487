package main

import (
	"context"
	"errors"
	"fmt"
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

	admitted bool   // the prompt is on disk
	active   bool   // its exchange runs
	status   string // succeeded, failed, interrupted; "" while it runs
	failure  *messages.Failure
	reason   string // of an interruption
}

// errors that end a run without the work having failed.
var errStillQueued = errors.New("the work before this prompt was stopped, so this prompt has not run")

// follow sends the prompt and returns when its work is over: nil when it
// succeeded, otherwise why not.
func (w *watch) follow(ctx context.Context, p messages.Prompt, limit time.Duration) error {
	// The subscription and the interrupt outlive the signal.
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	events, err := w.client.Subscribe(alive, messages.Subscribe{SessionID: w.session})
	if err != nil {
		return err
	}
	defer events.Close()
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
		e, err := events.Next(work)
		if work.Err() != nil {
			return w.stop(context.Cause(work), alive, events)
		}
		if err != nil {
			return err
		}
		if err := w.take(alive, e); err != nil {
			return err
		}
	}
	return w.outcome()
}

var errTimeout = errors.New("the time limit is over")

// stop interrupts the work and waits for it to settle. A prompt that still
// waits behind other work is taken back instead.
func (w *watch) stop(cause error, ctx context.Context, events *client.Events) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	if !w.active {
		if _, err := w.client.Queue(ctx, messages.GetQueue{SessionID: w.session, Remove: w.prompt}); err != nil {
			return errors.Join(cause, err)
		}
		if ran, err := w.client.HasMessage(ctx, w.session, w.prompt); err != nil || !ran {
			return errors.Join(cause, err)
		}
	}
	if _, err := w.client.Interrupt(ctx, messages.Interrupt{SessionID: w.session}); err != nil {
		return errors.Join(cause, err)
	}
	for w.status == "" {
		e, err := events.Next(ctx)
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
	if kind == messages.EventExecutionFailed && d.Error != nil {
		w.status, w.failure = "failed", d.Error
		return nil
	}
	return &problem{slug: "queued", err: errStillQueued, fields: []field{{"session", w.session}},
		hint: "run it again when the session is free"}
}
