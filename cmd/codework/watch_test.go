package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// script is the server half of a test: it answers calls from its fields, and
// the events are those that the test sends.
type script struct {
	t      *testing.T
	client *client.Client // of the first connection

	mu       sync.Mutex // guards what follows
	server   *effectrpc.Server
	calls    []string // what was called, in order
	status   messages.SessionStatus
	queued   []string // prompt ids
	inTalk   bool     // the prompt is part of the conversation
	onCall   map[string]func(*effectrpc.Call) bool
	after    []int64 // positions that subscriptions named, -1 for none
	sent     int
	streams  []chan streamed // one for each subscription
	position int64
}

type streamed struct {
	value json.RawMessage
	end   error
}

const mine, theirs = "mine", "theirs"

// newScript starts a server and a watch on it. Both end with the test.
func newScript(t *testing.T) (*script, *watch, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	s := &script{t: t, status: messages.SessionRunning, onCall: map[string]func(*effectrpc.Call) bool{}}
	s.client = s.connect()
	o, out, err := buffered("text")
	return s, &watch{client: s.client, out: o, session: session, prompt: mine}, out, err
}

// connect opens one more connection to the server.
func (s *script) connect() *client.Client {
	here, there := effectrpc.Pipe()
	server := effectrpc.NewServer(there, effectrpc.ServerOptions{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(context.Background(), s.handle)
	}()
	c := client.Over(here)
	s.t.Cleanup(func() {
		c.Close()
		<-served
	})
	s.set(func() { s.server = server })
	return c
}

// remote makes the watch one of a server that goes on without its clients.
func (s *script) remote(w *watch) {
	w.server = &remoteServer{flags: " --server ws://box", dial: func(context.Context) (*client.Client, error) { return s.connect(), nil }}
}

// lose ends the newest connection, and returns when it has ended.
func (s *script) lose() {
	s.mu.Lock()
	server := s.server
	s.mu.Unlock()
	server.Shutdown()
	synctest.Wait()
}

func (s *script) handle(c *effectrpc.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Method() != contract.EventSubscribe && c.Method() != contract.SessionHistory {
		s.calls = append(s.calls, c.Method())
	}
	if f := s.onCall[c.Method()]; f != nil && f(c) {
		return
	}
	switch c.Method() {
	case contract.EventSubscribe:
		s.subscribe(c)
	case contract.SessionInfo:
		c.Succeed(encode(s.t, messages.SessionInfo{ID: session, Status: s.status}))
	case contract.SessionQueue:
		var q messages.GetQueue
		if err := json.Unmarshal(c.Payload(), &q); err != nil {
			s.t.Error(err)
		}
		s.queued = slices.DeleteFunc(s.queued, func(id string) bool { return id == q.Remove })
		answer := messages.Queue{Queued: []messages.QueuedPrompt{}}
		for _, id := range s.queued {
			answer.Queued = append(answer.Queued, messages.QueuedPrompt{ID: id})
		}
		c.Succeed(encode(s.t, answer))
	case contract.SessionMessage:
		c.Succeed(encode(s.t, messages.Found{Found: s.inTalk}))
	case contract.SessionInterrupt:
		c.Succeed(encode(s.t, messages.Interrupted{Interrupted: true}))
	case contract.SessionHistory:
		c.Succeed(encode(s.t, messages.History{Seq: s.position}))
	case contract.SessionPrompt, contract.SessionWait:
		c.Succeed(nil)
	default:
		c.DieUnknownMethod()
	}
}

func (s *script) subscribe(c *effectrpc.Call) {
	var q messages.Subscribe
	if err := json.Unmarshal(c.Payload(), &q); err != nil || q.SessionID != session {
		s.t.Errorf("subscribed to %+v, %v", q, err)
	}
	at, ok := q.After[session]
	if !ok {
		at = -1
	}
	s.after = append(s.after, at)
	stream := make(chan streamed, 100)
	stream <- streamed{value: json.RawMessage(`{"id":"evt_0","type":"server.connected","data":{}}`)}
	s.streams = append(s.streams, stream)
	c.Stream(func(ctx context.Context, _ effectrpc.Batch) ([]json.RawMessage, error) {
		select {
		case v := <-stream:
			if v.end != nil {
				return nil, v.end
			}
			return []json.RawMessage{v.value}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}

// durable are the types that have a position.
var durable = []string{messages.EventExecutionStarted, messages.EventPromptAdmitted, messages.EventPromptPromoted,
	messages.EventPromptRemoved, messages.EventTurnEnded, messages.EventLLMEnded, messages.EventLLMFailed}

// send sends an event to the newest subscription, which it waits for.
func (s *script) send(typ string, d messages.EventData) {
	s.t.Helper()
	d.SessionID, d.Timestamp = session, 1
	s.mu.Lock()
	defer s.mu.Unlock()
	e := messages.Event{ID: fmt.Sprintf("evt_%d", s.sent), Type: typ, Session: session, Data: encode(s.t, d)}
	s.sent++
	if slices.Contains(durable, typ) || messages.Terminal(typ) {
		s.position++
		e.Seq = s.position
	}
	b, err := contract.EncodeEvent(e)
	if err != nil {
		s.t.Error(err)
	}
	s.streams[len(s.streams)-1] <- streamed{value: b}
}

func (s *script) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[len(s.streams)-1] <- streamed{end: err}
}

// waiting is how many events the newest subscription was not yet asked for, once
// everything rests.
func (s *script) waiting() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams[len(s.streams)-1])
}

// set changes what the server answers.
func (s *script) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *script) called() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls, " ")
}

func (s *script) promoted(id string, d messages.Delivery) {
	s.send(messages.EventPromptPromoted, messages.EventData{MessageID: id, Delivery: d})
}

// turn is one whole turn that answers with a text.
func (s *script) turn(text string) {
	id := "msg_" + text
	s.send(messages.EventTurnStarted, messages.EventData{MessageID: id})
	s.send(messages.EventLLMTextDelta, messages.EventData{MessageID: id, Delta: &text})
	s.send(messages.EventLLMEnded, answer(id, text, &messages.Usage{}))
	s.send(messages.EventTurnEnded, messages.EventData{MessageID: id})
}

// following runs follow in a bubble of its own time. Once the prompt is
// admitted play is called; result is what follow returned.
func following(t *testing.T, limit time.Duration, play func(s *script, stop context.CancelCauseFunc, result <-chan error) error) (printed string, w *watch, s *script) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var out *bytes.Buffer
		s, w, out, _ = newScript(t)
		ctx, stop := context.WithCancelCause(context.Background())
		defer stop(nil)
		result := make(chan error, 1)
		go func() {
			result <- w.follow(ctx, messages.Prompt{SessionID: session, ID: mine, Text: "hi", Delivery: messages.FollowUp}, limit)
		}()
		synctest.Wait()
		if err := play(s, stop, result); err != nil {
			t.Error(err)
		}
		printed = out.String()
	})
	return printed, w, s
}

// got compares the result of follow: its text, "" for success.
func got(result <-chan error, want string) error {
	err := <-result
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != want {
		return fmt.Errorf("follow returned %q, want %q", text, want)
	}
	return nil
}

func TestOnlyTheWorkOnTheOwnPromptIsPrinted(t *testing.T) {
	printed, _, s := following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.send(messages.EventPromptAdmitted, messages.EventData{MessageID: mine})
		s.turn("work under way")
		s.promoted(theirs, messages.FollowUp) // before ours in the queue
		s.turn("their answer")
		s.promoted(mine, messages.FollowUp)
		s.turn("our answer")
		s.promoted("another", messages.Steer) // joins our work
		s.turn("and with it")
		s.promoted("third", messages.FollowUp) // begins the next work
		s.turn("no longer ours")
		return got(result, "")
	})
	same(t, "printed", printed, "our answer\n\nand with it")
	same(t, "calls", s.called(), contract.SessionPrompt)
}

func TestEventsComeAtIntervalsOnlyWhileToolsRun(t *testing.T) {
	progress := func(s *script) {
		for range 5 {
			s.send(messages.EventToolProgress, messages.EventData{MessageID: "1"})
		}
	}
	waits := func(s *script, some bool, when string) {
		if n := s.waiting(); (n > 0) != some {
			s.t.Errorf("%s: %d events wait", when, n)
		}
	}
	following(t, 0, func(s *script, stop context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp)
		s.turn("answer")
		progress(s)
		waits(s, false, "without a tool")
		s.send(messages.EventToolStarted, messages.EventData{MessageID: "1"})
		progress(s)
		waits(s, true, "with a tool")
		time.Sleep(5 * toolPace)
		waits(s, false, "after a while")
		s.turn("more")
		time.Sleep(5 * toolPace)
		progress(s)
		waits(s, false, "after more text")
		s.send(messages.EventToolStarted, messages.EventData{MessageID: "1"})
		progress(s)
		stop(stopped{exitInterrupt})
		waits(s, false, "once it was stopped")
		s.send(messages.EventExecutionInterrupted, messages.EventData{Reason: "user"})
		return got(result, "interrupted")
	})
}

func TestTheEndOfABusyPeriodEndsTheWork(t *testing.T) {
	for _, c := range []struct {
		typ  string
		data messages.EventData
		want string
	}{
		{messages.EventExecutionSucceeded, messages.EventData{}, ""},
		{messages.EventExecutionFailed, messages.EventData{Error: &messages.Failure{Type: "x-error", Message: "broken"}}, "broken"},
		{messages.EventExecutionFailed, messages.EventData{}, "the work failed without a reason"},
		{messages.EventExecutionInterrupted, messages.EventData{Reason: "user"}, "the work was interrupted (user)"},
	} {
		following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
			s.promoted(mine, messages.FollowUp)
			s.turn("answer")
			s.send(c.typ, c.data)
			return got(result, c.want)
		})
	}
}

// The event of a deletion is that of a shutdown: the session is looked for.
func TestWorkThatADeletionStoppedIsSaidSo(t *testing.T) {
	const gone = "session " + session + " was deleted"
	missing := json.RawMessage(`{"_tag":"SessionNotFoundError","sessionId":"` + session + `"}`)
	for _, c := range []struct {
		name string
		info func(*effectrpc.Call) bool // answers for the session, if not as usual
		want string
	}{
		{"deleted", func(c *effectrpc.Call) bool { c.Fail(missing); return true }, gone},
		{"stopped", nil, "the work was interrupted (shutdown)"},
		{"refused", func(c *effectrpc.Call) bool {
			c.Die(&effectrpc.Defect{Name: messages.RefusedShutdown})
			return true
		}, "the work was interrupted (shutdown)"},
		{"silent", func(*effectrpc.Call) bool { return true }, "the work was interrupted (shutdown)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
				s.set(func() { s.onCall[contract.SessionInfo] = c.info })
				s.promoted(mine, messages.FollowUp)
				s.send(messages.EventExecutionInterrupted, messages.EventData{Reason: "shutdown"})
				return got(result, c.want)
			})
		})
	}
	// A prompt that waited has no event of its own.
	following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.end(&effectrpc.RemoteError{Body: missing})
		return got(result, gone)
	})
	// A server is not looked for again.
	if _, told := followingServer(t, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.end(&effectrpc.RemoteError{Body: missing})
		return got(result, gone)
	}); told != "" {
		t.Errorf("it says %q", told)
	}
}

func TestBusyPeriodsBeforeOursPassBy(t *testing.T) {
	printed, _, _ := following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		for _, end := range []string{messages.EventExecutionSucceeded, messages.EventExecutionInterrupted, messages.EventExecutionFailed} {
			s.send(messages.EventExecutionStarted, messages.EventData{})
			s.promoted(theirs, messages.FollowUp)
			s.turn("their answer")
			s.send(end, messages.EventData{Error: &messages.Failure{Message: "theirs"}}) // the session is busy again at once
		}
		s.promoted(mine, messages.FollowUp)
		s.turn("our answer")
		s.send(messages.EventExecutionSucceeded, messages.EventData{})
		return got(result, "")
	})
	same(t, "printed", printed, "our answer")
}

func TestAPromptThatStaysInTheQueueIsSaidSo(t *testing.T) {
	for _, c := range []struct {
		typ, detail string
		data        messages.EventData
	}{
		{messages.EventExecutionInterrupted, "", messages.EventData{Reason: "user"}},
		{messages.EventExecutionFailed, "their model is gone", messages.EventData{Error: &messages.Failure{Message: "their model is gone"}}},
	} {
		following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
			s.set(func() { s.status, s.queued = messages.SessionIdle, []string{"another", mine} })
			s.send(messages.EventTurnStarted, messages.EventData{})
			s.send(messages.EventTurnAborted, messages.EventData{})
			s.send(c.typ, c.data)
			var p *problem
			if err := <-result; !errors.As(err, &p) || p.slug != "queued" || p.code != 0 || !strings.Contains(p.hint, session) {
				return fmt.Errorf("%s: got %v", c.typ, err)
			}
			if d := p.fields[len(p.fields)-1]; c.detail != "" && d.value != c.detail {
				return fmt.Errorf("detail %q", d)
			}
			return nil
		})
	}
}

// The model does not exist, say: the prompt never enters the conversation.
func TestAFailureBeforePromotionIsTheRunsOwn(t *testing.T) {
	following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.set(func() { s.status, s.queued = messages.SessionIdle, []string{mine} })
		s.turn("work before it, which went well")
		s.send(messages.EventExecutionFailed, messages.EventData{Error: &messages.Failure{Message: "no such model"}})
		return got(result, "no such model")
	})
}

// Whoever reads only that it failed sends it again, and then it runs twice.
func TestAServersPromptThatFailsBeforePromotionIsSaidToWait(t *testing.T) {
	followingServer(t, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.set(func() { s.status, s.queued = messages.SessionIdle, []string{mine} })
		s.send(messages.EventExecutionFailed, messages.EventData{Error: &messages.Failure{Message: "no such model"}})
		err := <-result
		var said strings.Builder
		if code := report(&said, err); code != exitFailed || !strings.Contains(said.String(), "no such model") ||
			!strings.Contains(said.String(), "it stays in the queue") || !strings.Contains(said.String(), "codework session queue "+session) {
			return fmt.Errorf("%d, said %q", code, said.String())
		}
		return nil
	})
}

func TestAPromptThatWasPromotedMeanwhileIsWaitedFor(t *testing.T) {
	following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.set(func() { s.status, s.queued = messages.SessionIdle, nil })
		s.send(messages.EventExecutionInterrupted, messages.EventData{Reason: "user"})
		s.promoted(mine, messages.FollowUp)
		s.send(messages.EventExecutionSucceeded, messages.EventData{})
		return got(result, "")
	})
}

func TestAPromptThatSomebodyRemovesIsOver(t *testing.T) {
	following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.send(messages.EventPromptRemoved, messages.EventData{MessageID: theirs})
		s.send(messages.EventPromptRemoved, messages.EventData{MessageID: mine})
		return got(result, "this prompt was taken out of the queue before it ran")
	})
}

func TestCtrlCInterruptsAndWaitsForTheEnd(t *testing.T) {
	printed, w, s := following(t, 0, func(s *script, stop context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp)
		s.send(messages.EventLLMTextDelta, messages.EventData{MessageID: "1", Delta: ptr("Hal")})
		synctest.Wait()
		stop(stopped{130})
		synctest.Wait()
		if s.called() != contract.SessionPrompt+" "+contract.SessionInterrupt {
			return fmt.Errorf("calls %s", s.called())
		}
		s.send(messages.EventLLMFailed, messages.EventData{MessageID: "1", Reason: "aborted"})
		s.send(messages.EventExecutionInterrupted, messages.EventData{Reason: "user"})
		return got(result, "interrupted")
	})
	same(t, "printed", printed, "Hal")
	if w.status != "interrupted" {
		t.Errorf("status %q, calls %s", w.status, s.called())
	}
}

func TestCtrlCWaitsFiveSecondsAtMost(t *testing.T) {
	following(t, 0, func(s *script, stop context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp)
		synctest.Wait()
		start := time.Now()
		stop(stopped{130})
		if err := got(result, "interrupted"); err != nil {
			return err
		}
		if d := time.Since(start); d != settleWait {
			return fmt.Errorf("waited %s", d)
		}
		return nil
	})
}

func TestCtrlCWhileOtherWorkRunsTakesThePromptBack(t *testing.T) {
	_, _, s := following(t, 0, func(s *script, stop context.CancelCauseFunc, result <-chan error) error {
		s.set(func() { s.queued = []string{theirs, mine} })
		s.turn("their answer")
		synctest.Wait()
		stop(stopped{143})
		return got(result, "interrupted")
	})
	if !slices.Equal(s.queued, []string{theirs}) || strings.Contains(s.called(), contract.SessionInterrupt) {
		t.Errorf("queue %v, calls %s", s.queued, s.called())
	}
}

func TestCtrlCInTheMomentOfPromotionInterrupts(t *testing.T) {
	_, w, s := following(t, 0, func(s *script, stop context.CancelCauseFunc, result <-chan error) error {
		s.set(func() { s.inTalk = true })
		stop(stopped{130})
		synctest.Wait()
		s.promoted(mine, messages.FollowUp)
		s.send(messages.EventExecutionInterrupted, messages.EventData{Reason: "user"})
		return got(result, "interrupted")
	})
	if w.status != "interrupted" || !strings.Contains(s.called(), contract.SessionInterrupt) {
		t.Errorf("status %q, calls %s", w.status, s.called())
	}
}

// The event was taken from the stream: it must not be lost to the signal.
func TestAnEndInTheMomentOfCtrlCCounts(t *testing.T) {
	for range 20 { // which of the two is seen first is left to chance
		following(t, 0, func(s *script, stop context.CancelCauseFunc, result <-chan error) error {
			s.promoted(mine, messages.FollowUp)
			synctest.Wait()
			start := time.Now()
			s.send(messages.EventExecutionSucceeded, messages.EventData{})
			stop(stopped{130})
			err := <-result
			if d := time.Since(start); d != 0 {
				return fmt.Errorf("waited %s, %v", d, err)
			}
			return nil
		})
	}
}

func TestTheTimeLimitInterrupts(t *testing.T) {
	_, w, _ := following(t, time.Minute, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		start := time.Now()
		s.set(func() {
			s.onCall[contract.SessionInterrupt] = func(*effectrpc.Call) bool {
				go s.send(messages.EventExecutionInterrupted, messages.EventData{Reason: "user"}) // its lock is held here
				return false
			}
		})
		s.promoted(mine, messages.FollowUp)
		if err := got(result, errTimeout.Error()); err != nil {
			return err
		}
		if d := time.Since(start); d != time.Minute {
			return fmt.Errorf("after %s", d)
		}
		return nil
	})
	if w.status != "interrupted" {
		t.Errorf("status %q", w.status)
	}
}

func TestCtrlCWhileTheServerSaysNothingEndsTheWait(t *testing.T) {
	for _, method := range []string{contract.EventSubscribe, contract.SessionPrompt} {
		synctest.Test(t, func(t *testing.T) {
			s, w, _, _ := newScript(t)
			s.onCall[method] = func(c *effectrpc.Call) bool {
				context.AfterFunc(c.Context(), func() { c.Succeed(nil) })
				return true
			}
			ctx, stop := context.WithCancelCause(context.Background())
			result := make(chan error, 1)
			go func() { result <- w.follow(ctx, messages.Prompt{SessionID: session, ID: mine}, 0) }()
			synctest.Wait()
			stop(stopped{130})
			if err := got(result, "interrupted"); err != nil {
				t.Errorf("%s: %v", method, err)
			}
			if w.admitted {
				t.Error("admitted without an answer")
			}
		})
	}
}

func TestAReaderThatWasTooSlowGoesOnFromItsPosition(t *testing.T) {
	printed, _, s := following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp) // position 1
		s.send(messages.EventLLMTextDelta, messages.EventData{MessageID: "msg", Delta: ptr("He")})
		body, _ := contract.EncodeError(&messages.SubscriptionOverflow{Capacity: 4096})
		s.end(&effectrpc.RemoteError{Body: body})
		synctest.Wait()
		s.send(messages.EventLLMEnded, answer("msg", "Hello", &messages.Usage{}))
		s.send(messages.EventExecutionSucceeded, messages.EventData{})
		return got(result, "")
	})
	same(t, "printed", printed, "Hello")
	if !slices.Equal(s.after, []int64{-1, 1}) {
		t.Errorf("subscribed after %v", s.after)
	}
}

func TestAStreamThatEndsMeansThatTheOwnerEnded(t *testing.T) {
	following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp)
		s.end(io.EOF)
		if err := <-result; !lostOwner(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

func TestARunThatWasStoppedHasNotLostItsOwner(t *testing.T) {
	for err, want := range map[error]bool{
		nil:                      false,
		client.ErrConnectionLost: true,
		errors.New("other"):      false,
		stopped{130}:             false,
		errors.Join(stopped{130}, client.ErrConnectionLost):                          false,
		errors.Join(errTimeout, client.ErrConnectionLost):                            false,
		error(&messages.Refused{Name: messages.RefusedShutdown, Message: "go away"}): true,
		error(&messages.Refused{Name: messages.RefusedBusy, Message: "too much"}):    false,
	} {
		if got := lostOwner(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestNoticesAreToldWhoeverTheyConcern(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _, stderr := newScript(t)
		result := make(chan error, 1)
		go func() { result <- w.follow(context.Background(), messages.Prompt{SessionID: session, ID: mine}, 0) }()
		synctest.Wait()
		s.send(messages.EventNotice, messages.EventData{Text: "mind the " + hostile})
		s.promoted(mine, messages.FollowUp)
		s.send(messages.EventExecutionSucceeded, messages.EventData{})
		if err := <-result; err != nil {
			t.Error(err)
		}
		noControls(t, "a notice", stderr.String())
		if !strings.HasPrefix(stderr.String(), "warning: mind the a") {
			t.Errorf("got %q", stderr)
		}
	})
}

func TestEventsOfTypesThatNobodyKnowsAreSkipped(t *testing.T) {
	printed, _, _ := following(t, 0, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp)
		s.send("session.of.the.future", messages.EventData{Text: "x"})
		s.turn("a")
		s.send(messages.EventExecutionSucceeded, messages.EventData{})
		return got(result, "")
	})
	same(t, "printed", printed, "a")
}

// followingServer is following with a watch of a server.
func followingServer(t *testing.T, play func(s *script, stop context.CancelCauseFunc, result <-chan error) error) (printed, told string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, w, out, err := newScript(t)
		s.remote(w)
		ctx, stop := context.WithCancelCause(context.Background())
		defer stop(nil)
		result := make(chan error, 1)
		go func() { result <- w.follow(ctx, messages.Prompt{SessionID: session, ID: mine, Text: "hi"}, 0) }()
		synctest.Wait()
		if e := play(s, stop, result); e != nil {
			t.Error(e)
		}
		printed, told = out.String(), err.String()
	})
	return printed, told
}

func TestAServerThatComesBackIsFollowedOn(t *testing.T) {
	printed, told := followingServer(t, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp)
		s.send(messages.EventLLMTextDelta, messages.EventData{MessageID: "msg", Delta: ptr("He")})
		synctest.Wait()
		s.lose()
		time.Sleep(time.Second) // it is found again meanwhile
		s.send(messages.EventLLMEnded, answer("msg", "Hello", &messages.Usage{}))
		s.send(messages.EventExecutionSucceeded, messages.EventData{})
		if err := got(result, ""); err != nil {
			return err
		}
		if !slices.Equal(s.after, []int64{0, 1}) {
			return fmt.Errorf("subscribed after %v", s.after)
		}
		return nil
	})
	same(t, "printed", printed, "Hello")
	same(t, "told", told, "warning: the connection is lost; looking for the server again\nwarning: connected again\n")
}

// No event tells that a server which was started again leaves a prompt where it
// is.
func TestAPromptThatARestartedServerLeavesInTheQueueIsSaidSo(t *testing.T) {
	followingServer(t, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.send(messages.EventPromptAdmitted, messages.EventData{MessageID: mine})
		synctest.Wait()
		s.set(func() { s.status, s.queued = messages.SessionIdle, []string{mine} })
		s.lose()
		start := time.Now()
		var p *problem
		if err := <-result; !errors.As(err, &p) || p.slug != "queued" {
			return fmt.Errorf("got %v", err)
		}
		if d := time.Since(start); d < resumeWait || d > resumeWait+time.Second {
			return fmt.Errorf("after %s", d)
		}
		return nil
	})
}

func TestAServerThatDoesNotComeBackIsGivenUp(t *testing.T) {
	followingServer(t, func(s *script, _ context.CancelCauseFunc, result <-chan error) error {
		s.promoted(mine, messages.FollowUp)
		synctest.Wait()
		start := time.Now()
		s.set(func() {
			s.onCall[contract.EventSubscribe] = func(c *effectrpc.Call) bool {
				c.Die(&effectrpc.Defect{Name: messages.RefusedShutdown, Message: "bye"})
				return true
			}
		})
		s.lose()
		if err := <-result; !errors.Is(err, client.ErrConnectionLost) {
			return fmt.Errorf("got %v", err)
		}
		if d := time.Since(start); d != patience {
			return fmt.Errorf("after %s", d)
		}
		return nil
	})
}

func TestCtrlCStopsAServersSessionForEverybody(t *testing.T) {
	followingServer(t, func(s *script, stop context.CancelCauseFunc, result <-chan error) error {
		s.set(func() { s.queued = []string{theirs, mine} })
		stop(stopped{130})
		if err := got(result, "interrupted"); err != nil {
			return err
		}
		if !slices.Equal(s.queued, []string{theirs}) || !strings.Contains(s.called(), contract.SessionInterrupt) {
			return fmt.Errorf("queue %v, calls %s", s.queued, s.called())
		}
		return nil
	})
}

func TestDetachingLeavesTheWorkToTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, out, _ := newScript(t)
		s.remote(w)
		said := discard(t)
		if err := w.leave(t.Context(), messages.Prompt{SessionID: session, ID: mine, Text: "hi"}, &global{streams: streams{err: said}}); err != nil {
			t.Error(err)
		}
		same(t, "printed", out.String(), session+"\n")
		same(t, "calls", s.called(), contract.SessionPrompt)
	})
}
