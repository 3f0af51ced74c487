package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"codework/messages"
)

const (
	// StopWait is how long Execute waits for a handler whose context ended:
	// what a sandbox may take to stop a command, and a margin.
	StopWait = 3 * time.Second
	// notifyGrace is what an after-hook gets to hear of an aborted call.
	notifyGrace = time.Second
	// maxResultText bounds the text of one result together. Built-in tools
	// stay below it by themselves (their 50 KiB and notices); it is there for
	// tools that know no limit.
	maxResultText = 64 << 10

	stoppedText  = "stopped before it finished; it may have had effects"
	noOutputText = "(no output)"
	blockedText  = "the call was refused by a hook"
)

// problem is the details of a call that never reached its handler.
type problem struct {
	Error string `json:"error"`
	Name  string `json:"name"`
	Raw   string `json:"raw,omitempty"`
}

// Execute runs one call: find the tool, parse and check the arguments, ask the
// before-hook, run, tell the after-hook. It gives the result and the terminal
// state: completed, error, or aborted when ctx ended before the handler was
// done. Recording is the caller's.
func Execute(ctx context.Context, set *Set, call Call, c Context) (messages.ToolResult, messages.CallState) {
	type outcome struct {
		result messages.ToolResult
		state  messages.CallState
	}
	o, err := guarded(call.Name, c, func() (outcome, error) {
		result, state := execute(ctx, set, call, c)
		return outcome{bounded(result), state}, nil
	})
	if err != nil { // a panic outside of handler and hooks: in Repair, or in the checking of a strange schema
		return messages.TextResult(clip(oneLine(call.Name), maxNameShown)+": "+reason(err), true), messages.CallError
	}
	return o.result, o.state
}

func execute(ctx context.Context, set *Set, call Call, c Context) (messages.ToolResult, messages.CallState) {
	t, ok := set.Tool(call.Name)
	if !ok {
		name := clip(oneLine(call.Name), maxNameShown)
		return refused(fmt.Sprintf("there is no tool %q; the tools are: %s", name, set.names()),
			problem{Error: "unknown_tool", Name: name})
	}
	args, bad := t.arguments(call.Arguments)
	if bad != nil {
		return refused(bad.text, bad.problem)
	}
	call.Args = args
	if ctx.Err() != nil {
		return aborted(nil), messages.CallAborted
	}

	if t.Before != nil {
		verdict, err := guarded(t.Name, c, func() (*Verdict, error) { return t.Before(ctx, call) })
		switch {
		case ctx.Err() != nil:
			return aborted(nil), messages.CallAborted
		case err != nil:
			return messages.TextResult("before hook failed: "+reason(err), true), messages.CallError
		case verdict != nil && verdict.Block:
			text := strings.TrimSpace(verdict.Reason)
			if text == "" {
				text = blockedText
			}
			return messages.TextResult(text, true), messages.CallError
		}
	}

	result, stopped := t.run(ctx, c, args)
	if stopped {
		t.notify(ctx, call, c, result)
		return result, messages.CallAborted
	}
	if t.After != nil {
		patch, err := guarded(t.Name, c, func() (*Patch, error) {
			return t.After(ctx, call, stateOf(result), result)
		})
		if err == nil {
			err = patch.valid()
		}
		switch {
		case err == nil:
			result = patch.apply(result)
		case ctx.Err() == nil:
			result = messages.TextResult("after hook failed: "+reason(err), true)
		}
		// With ctx ended, the call itself still finished: its result stays.
	}
	return result, stateOf(result)
}

func stateOf(r messages.ToolResult) messages.CallState {
	if r.IsError {
		return messages.CallError
	}
	return messages.CallCompleted
}

func (s *Set) names() string {
	if len(s.tools) == 0 {
		return "(none)"
	}
	names := make([]string, len(s.tools))
	for i, t := range s.tools {
		names[i] = t.Name
	}
	return clip(strings.Join(names, ", "), 2*maxReasonShown)
}

func refused(text string, p problem) (messages.ToolResult, messages.CallState) {
	r := messages.TextResult(text, true)
	r.Details, _ = json.Marshal(p) // three strings always encode
	return r, messages.CallError
}

type badArguments struct {
	text    string
	problem problem
}

// arguments turns what the model wrote into checked arguments.
func (t Tool) arguments(text string) (json.RawMessage, *badArguments) {
	invalid := func(faults []string) *badArguments {
		if len(faults) > maxFaults {
			faults = append(faults[:maxFaults:maxFaults], "and more")
		}
		return &badArguments{
			text:    fmt.Sprintf("invalid arguments for %s: %s", t.Name, strings.Join(faults, "; ")),
			problem: problem{Error: "invalid_arguments", Name: t.Name},
		}
	}
	value, args, err := parseObject(text)
	if errors.Is(err, errNotObject) {
		return nil, invalid([]string{"arguments: must be an object, " + strings.TrimPrefix(err.Error(), errNotObject.Error()+" but ")})
	}
	if err != nil {
		return nil, &badArguments{
			text:    fmt.Sprintf("the arguments for %s are not valid JSON: %s", t.Name, clip(oneLine(err.Error()), maxReasonShown)),
			problem: problem{Error: "invalid_json", Name: t.Name, Raw: clip(text, maxRawKept)},
		}
	}
	if dropNulls(t.check.schema, value) {
		if args, err = t.check.withoutNulls(args); err != nil {
			return nil, invalid([]string{reason(err)})
		}
	}
	if t.Repair != nil {
		if repaired := t.Repair(args); !bytes.Equal(repaired, args) {
			if value, args, err = parseObject(string(repaired)); err != nil {
				return nil, invalid([]string{reason(err)})
			}
		}
	}
	if faults := t.check.faults(value); len(faults) > 0 {
		return nil, invalid(faults)
	}
	return args, nil
}

// run calls the handler. stopped means that ctx ended first: the result is
// then what the call had shown so far.
func (t Tool) run(ctx context.Context, c Context, args json.RawMessage) (result messages.ToolResult, stopped bool) {
	shown := &sink{send: c.Progress}
	defer shown.close()
	hc := c
	hc.Progress = shown.put

	type outcome struct {
		result messages.ToolResult
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		r, err := guarded(t.Name, c, func() (messages.ToolResult, error) { return t.Run(ctx, hc, args) })
		done <- outcome{r, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		// The handler is given the time to stop what it started, so that
		// nothing of an aborted call still runs when it is reported.
		late := time.NewTimer(StopWait)
		defer late.Stop()
		select {
		case o = <-done:
		case <-late.C:
			o.err = ctx.Err()
		}
	}
	switch {
	case ctx.Err() != nil && (o.err != nil || o.result.IsError):
		return aborted(shown.close()), true
	case o.err != nil:
		return messages.TextResult(t.Name+": "+reason(o.err), true), false
	}
	return o.result, false
}

// notify tells the after-hook of an aborted call.
func (t Tool) notify(ctx context.Context, call Call, c Context, result messages.ToolResult) {
	if t.After == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyGrace)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = guarded(t.Name, c, func() (*Patch, error) {
			return t.After(ctx, call, messages.CallAborted, result)
		})
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// guarded turns a panic of f into an error of one line.
func guarded[T any](tool string, c Context, f func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			if c.Fault != nil {
				c.Fault(tool, p, debug.Stack())
			}
			err = fmt.Errorf("internal error: %v", p)
		}
	}()
	return f()
}

func reason(err error) string { return clip(oneLine(err.Error()), maxReasonShown) }

func aborted(shown *messages.ToolResult) messages.ToolResult {
	if shown == nil || len(shown.Content) == 0 {
		return messages.TextResult(stoppedText, true)
	}
	return messages.ToolResult{Content: shown.Content, Details: shown.Details, IsError: true}
}

// sink passes progress on and keeps the last of it.
type sink struct {
	mu     sync.Mutex // guards what follows; held while sending, so that nothing is sent after close
	send   func(messages.ToolResult)
	last   *messages.ToolResult
	closed bool
}

func (s *sink) put(r messages.ToolResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.last = &r
	if s.send != nil {
		s.send(r)
	}
}

// close ends the passing on and gives the last progress, nil if there was none.
func (s *sink) close() *messages.ToolResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.last
}

var errBadPatch = errors.New("not a valid result")

func (p *Patch) valid() error {
	if p == nil {
		return nil
	}
	for _, part := range p.Content {
		if part.Type != messages.PartText && part.Type != messages.PartImage {
			return errBadPatch
		}
	}
	if p.Details != nil && !json.Valid(p.Details) {
		return errBadPatch
	}
	return nil
}

func (p *Patch) apply(r messages.ToolResult) messages.ToolResult {
	if p == nil {
		return r
	}
	if p.Content != nil {
		r.Content = p.Content
	}
	if p.Details != nil {
		r.Details = p.Details
	}
	if p.IsError != nil {
		r.IsError = *p.IsError
	}
	return r
}

// bounded makes a result fit to be sent: some content, valid UTF-8, and no
// more text than maxResultText.
func bounded(r messages.ToolResult) messages.ToolResult {
	content := make([]messages.Part, 0, len(r.Content))
	left, blank := maxResultText, true
	for _, p := range r.Content {
		if p.Type == messages.PartText {
			p.Text = strings.ToValidUTF8(p.Text, "\uFFFD")
			if len(p.Text) > left {
				kept := cutRunes(p.Text, left)
				p.Text = fmt.Sprintf("%s\n\n[cut: %s of %s shown]", kept, formatSize(int64(len(kept))), formatSize(int64(len(p.Text))))
				left = 0
			} else {
				left -= len(p.Text)
			}
			blank = blank && strings.TrimSpace(p.Text) == ""
		} else {
			blank = false
		}
		content = append(content, p)
	}
	if blank {
		content = []messages.Part{{Type: messages.PartText, Text: noOutputText}}
	}
	r.Content = content
	return r
}
