package actors

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
)

// playedDialect answers requests as the test says. Every request is counted
// before it is answered.
type playedDialect struct {
	mu     sync.Mutex // guards sent
	sent   []string   // message ids, in order
	answer func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent))
}

func (d *playedDialect) Stream(ctx context.Context, _ *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	d.mu.Lock()
	d.sent = append(d.sent, req.MessageID)
	d.mu.Unlock()
	d.answer(ctx, req, emit)
}

func (d *playedDialect) requests() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.sent)
}

func goodAnswer(_ context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
	emit(messages.StreamEvent{Kind: messages.StreamStart})
	emit(messages.StreamEvent{Kind: messages.StreamDone, Message: &messages.Message{ID: req.MessageID, StopReason: messages.StopStop}})
}

func toldToWait(d time.Duration, emit func(messages.StreamEvent)) {
	emit(messages.StreamEvent{Kind: messages.StreamError, Failure: &messages.Failure{
		Type: messages.FailRateLimit, Message: "slow down", Retryable: true, RetryAfter: d}})
}

// untilCancelled is a request whose answer never comes.
func untilCancelled(ctx context.Context, emit func(messages.StreamEvent)) {
	<-ctx.Done()
	emit(messages.StreamEvent{Kind: messages.StreamError, Failure: &messages.Failure{Type: messages.FailTransport, Message: "cancelled"}})
}

// connRig is one provider connection inside a synctest bubble.
type connRig struct {
	t    *testing.T
	conn connection
	ref  *Ref
	dial *playedDialect

	mu   sync.Mutex // guards ends
	ends map[string][]messages.StreamEvent
}

const (
	holdBase = 3 * time.Second
	holdMax  = time.Minute
)

func inConnection(t *testing.T, d *playedDialect, f func(r *connRig)) {
	synctest.Test(t, func(t *testing.T) {
		rt := NewRuntime(slog.New(slog.DiscardHandler))
		ref := rt.Spawn(newProvider(d, &http.Client{Transport: &http.Transport{}}))
		r := &connRig{t: t, ref: ref, conn: connection{&connectionSlot{ref: ref}, Retry{Base: holdBase, MaxDelay: holdMax}, func() {}}, dial: d, ends: map[string][]messages.StreamEvent{}}
		f(r)
		ref.Stop()
		<-ref.Done()
		rt.Shutdown()
		// The actor system counts dead letters, if there were any, for a while
		// after the last one.
		time.Sleep(time.Minute)
		synctest.Wait()
		for id, ends := range r.ends {
			if len(ends) != 1 {
				t.Errorf("request %s ended %d times: %v", id, len(ends), ends)
			}
		}
	})
}

// ask sends a request; every one must end exactly once.
func (r *connRig) ask(ctx context.Context, id, model string) {
	r.mu.Lock()
	r.ends[id] = nil
	r.mu.Unlock()
	r.conn.Stream(ctx, &messages.Request{MessageID: id, Model: messages.Model{ID: model}}, func(ev messages.StreamEvent) {
		if ev.Kind == messages.StreamDone || ev.Kind == messages.StreamError {
			r.mu.Lock()
			r.ends[id] = append(r.ends[id], ev)
			r.mu.Unlock()
		}
	})
}

// end returns how a request ended, nil while it has not.
func (r *connRig) end(id string) *messages.StreamEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ends[id]) == 0 {
		return nil
	}
	return &r.ends[id][0]
}

func (r *connRig) finished() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.ends {
		if len(e) > 0 && e[0].Kind == messages.StreamDone {
			n++
		}
	}
	return n
}

func TestOneRateLimitHoldsBackAllRequestsForThatModel(t *testing.T) {
	limit := true
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		if req.Model.ID == "m" && limit {
			toldToWait(10*time.Second, emit)
			return
		}
		goodAnswer(ctx, req, emit)
	}
	inConnection(t, d, func(r *connRig) {
		ctx := r.t.Context()
		r.ask(ctx, "first", "m")
		synctest.Wait()
		if e := r.end("first"); e == nil || e.Failure == nil || e.Failure.Type != messages.FailRateLimit {
			t.Fatalf("the limited request ended with %+v", e)
		}
		limit = false
		for i := range 100 {
			r.ask(ctx, strconv.Itoa(i), "m")
		}
		r.ask(ctx, "other", "another model")
		synctest.Wait()
		if got := d.requests(); !slices.Equal(got, []string{"first", "other"}) {
			t.Fatalf("sent during the hold: %v", got)
		}
		time.Sleep(10*time.Second - time.Millisecond)
		synctest.Wait()
		if n := len(d.requests()); n != 2 {
			t.Fatalf("%d requests before the wait was over", n-2)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		got := d.requests()[2:]
		if len(got) != 100 || got[0] != "0" {
			t.Fatalf("after the wait %d requests were sent, the first is %v", len(got), got[:min(1, len(got))])
		}
		if n := r.finished(); n != 101 {
			t.Errorf("%d were answered", n)
		}
		r.ask(ctx, "later", "m")
		synctest.Wait()
		if r.end("later") == nil {
			t.Error("the hold outlived its end")
		}
	})
}

func TestTheOldestHeldRequestTriesAndTheOthersWaitForItsAnswer(t *testing.T) {
	var answer chan struct{} // made inside the bubble
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		switch req.MessageID {
		case "first":
			toldToWait(time.Second, emit)
		case "0":
			<-answer
			goodAnswer(ctx, req, emit)
		default:
			goodAnswer(ctx, req, emit)
		}
	}
	inConnection(t, d, func(r *connRig) {
		answer = make(chan struct{})
		r.ask(r.t.Context(), "first", "m")
		synctest.Wait()
		for i := range 10 {
			r.ask(r.t.Context(), strconv.Itoa(i), "m")
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := d.requests(); !slices.Equal(got, []string{"first", "0"}) {
			t.Fatalf("sent while the trial is under way: %v", got)
		}
		close(answer)
		synctest.Wait()
		if n := r.finished(); n != 10 {
			t.Errorf("%d of 10 were answered", n)
		}
	})
}

func TestATrialThatIsToldToWaitProlongsTheHold(t *testing.T) {
	limits := 3
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		if limits > 0 {
			limits--
			toldToWait(5*time.Second, emit)
			return
		}
		goodAnswer(ctx, req, emit)
	}
	inConnection(t, d, func(r *connRig) {
		for i := range 10 {
			r.ask(r.t.Context(), strconv.Itoa(i), "m")
			synctest.Wait()
		}
		for round := 1; round <= 3; round++ {
			if n := len(d.requests()); n != round {
				t.Fatalf("%d requests in round %d", n, round)
			}
			time.Sleep(5*time.Second + time.Millisecond)
			synctest.Wait()
		}
		if n := r.finished(); n != 7 {
			t.Errorf("%d were answered, want the 7 that were not told to wait", n)
		}
	})
}

func TestAnInterruptTakesAHeldRequestOutAtOnce(t *testing.T) {
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		if req.MessageID == "first" {
			toldToWait(30*time.Second, emit)
			return
		}
		goodAnswer(ctx, req, emit)
	}
	inConnection(t, d, func(r *connRig) {
		r.ask(r.t.Context(), "first", "m")
		synctest.Wait()
		ctx, cancel := context.WithCancel(r.t.Context())
		r.ask(ctx, "stopped", "m")
		r.ask(r.t.Context(), "stays", "m")
		synctest.Wait()
		before := time.Now()
		cancel()
		synctest.Wait()
		if e := r.end("stopped"); e == nil || e.Kind != messages.StreamError {
			t.Fatalf("ended with %+v", e)
		}
		if time.Now() != before {
			t.Error("it took time")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if slices.Contains(d.requests(), "stopped") {
			t.Error("an interrupted request was sent")
		}
		if r.end("stays") == nil {
			t.Error("the other one was forgotten")
		}
	})
}

func TestAnInterruptedTrialLetsTheNextOneTry(t *testing.T) {
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		switch req.MessageID {
		case "first":
			toldToWait(time.Second, emit)
		default:
			untilCancelled(ctx, emit)
		}
	}
	inConnection(t, d, func(r *connRig) {
		r.ask(r.t.Context(), "first", "m")
		synctest.Wait()
		ctx, cancel := context.WithCancel(r.t.Context())
		all, cancelAll := context.WithCancel(r.t.Context())
		defer cancelAll()
		r.ask(ctx, "trial", "m")
		for i := range 10 {
			r.ask(all, strconv.Itoa(i), "m")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if got := d.requests(); !slices.Equal(got, []string{"first", "trial", "0"}) {
			t.Errorf("sent %v; nobody knows yet whether the limit is over", got)
		}
	})
}

func TestAnOlderRequestThatIsAnsweredDoesNotEndTheHold(t *testing.T) {
	var release chan struct{} // made inside the bubble
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		switch req.MessageID {
		case "old":
			<-release
			goodAnswer(ctx, req, emit)
		case "first":
			toldToWait(time.Second, emit)
		default:
			untilCancelled(ctx, emit)
		}
	}
	inConnection(t, d, func(r *connRig) {
		all, cancelAll := context.WithCancel(r.t.Context())
		defer cancelAll()
		release = make(chan struct{})
		r.ask(all, "old", "m")
		r.ask(all, "first", "m")
		synctest.Wait()
		r.ask(all, "trial", "m")
		r.ask(all, "next", "m")
		time.Sleep(2 * time.Second)
		close(release)
		synctest.Wait()
		if slices.Contains(d.requests(), "next") {
			t.Error("the answer to a request from before the limit ended the hold")
		}
	})
}

func TestAModelIsHeldBackForAsLongAsItsProviderSaysOrForTheBaseDelay(t *testing.T) {
	for _, tc := range []struct{ asked, want time.Duration }{
		{0, holdBase}, {500 * time.Millisecond, 500 * time.Millisecond}, {10 * time.Second, 10 * time.Second}, {time.Hour, holdMax},
	} {
		d := &playedDialect{}
		d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
			if req.MessageID == "first" {
				toldToWait(tc.asked, emit)
				return
			}
			goodAnswer(ctx, req, emit)
		}
		inConnection(t, d, func(r *connRig) {
			r.ask(r.t.Context(), "first", "m")
			synctest.Wait()
			r.ask(r.t.Context(), "held", "m")
			time.Sleep(tc.want - time.Nanosecond)
			synctest.Wait()
			if slices.Contains(d.requests(), "held") {
				t.Errorf("told %s: asked again before %s", tc.asked, tc.want)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if !slices.Contains(d.requests(), "held") {
				t.Errorf("told %s: still held after %s", tc.asked, tc.want)
			}
		})
	}
}

func TestNoRequestIsHeldLongerThanTheMaximum(t *testing.T) {
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		toldToWait(time.Hour, emit) // for ever
	}
	inConnection(t, d, func(r *connRig) {
		start := time.Now()
		r.ask(r.t.Context(), "first", "m")
		synctest.Wait()
		for i := range 20 {
			r.ask(r.t.Context(), strconv.Itoa(i), "m")
		}
		for r.end("19") == nil && time.Since(start) < 2*time.Hour {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if took := time.Since(start); took > holdMax+2*time.Second {
			t.Errorf("the last request was held for %s, allowed is %s", took, holdMax)
		}
	})
}

func TestACrashOfTheConnectionIsARetryableTransportError(t *testing.T) {
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		switch req.MessageID {
		case "first":
			toldToWait(30*time.Second, emit)
		case "open":
			emit(messages.StreamEvent{Kind: messages.StreamStart})
			untilCancelled(ctx, emit)
		default:
			goodAnswer(ctx, req, emit)
		}
	}
	inConnection(t, d, func(r *connRig) {
		r.ask(r.t.Context(), "open", "m")
		r.ask(r.t.Context(), "first", "m")
		synctest.Wait()
		r.ask(r.t.Context(), "held", "m")
		synctest.Wait()
		r.ref.Tell(crashed{context.Canceled})
		synctest.Wait()
		for _, id := range []string{"open", "held"} {
			e := r.end(id)
			if e == nil || e.Failure == nil || e.Failure.Type != messages.FailTransport || !e.Failure.Retryable {
				t.Errorf("%s ended with %+v", id, e)
			}
		}
		r.ask(r.t.Context(), "after", "m")
		synctest.Wait()
		if e := r.end("after"); e == nil || e.Kind != messages.StreamDone {
			t.Errorf("after the restart: %+v", e)
		}
	})
}

func TestADialectThatPanicsEndsItsRequest(t *testing.T) {
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		if req.MessageID == "bad" {
			emit(messages.StreamEvent{Kind: messages.StreamStart})
			panic("on purpose")
		}
		goodAnswer(ctx, req, emit)
	}
	inConnection(t, d, func(r *connRig) {
		r.ask(r.t.Context(), "bad", "m")
		synctest.Wait()
		if e := r.end("bad"); e == nil || e.Failure == nil || !e.Failure.Retryable {
			t.Fatalf("ended with %+v", e)
		}
		r.ask(r.t.Context(), "good", "m")
		synctest.Wait()
		if e := r.end("good"); e == nil || e.Kind != messages.StreamDone {
			t.Errorf("the next one ended with %+v", e)
		}
	})
}

func TestARequestToAConnectionThatIsGoneFailsAtOnce(t *testing.T) {
	d := &playedDialect{answer: goodAnswer}
	inConnection(t, d, func(r *connRig) {
		r.ref.Stop()
		<-r.ref.Done()
		r.ask(r.t.Context(), "late", "m")
		if e := r.end("late"); e == nil || e.Failure == nil || e.Failure.Type != messages.FailTransport {
			t.Errorf("ended with %+v", e)
		}
	})
}

func TestRetriesBelowTheTurnAreCounted(t *testing.T) {
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		emit(messages.StreamEvent{Kind: messages.StreamError, Failure: &messages.Failure{Type: messages.FailUnavailable, Message: "down", Retryable: true}})
	}
	inConnection(t, d, func(r *connRig) {
		r.mu.Lock()
		r.ends["x"] = nil
		r.mu.Unlock()
		req := &messages.Request{MessageID: "x", Model: messages.Model{ID: "m"}, Options: messages.RequestOptions{HTTPRetries: 2}}
		r.conn.Stream(r.t.Context(), req, func(ev messages.StreamEvent) {
			r.mu.Lock()
			r.ends["x"] = append(r.ends["x"], ev)
			r.mu.Unlock()
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(d.requests()); n != 3 {
			t.Errorf("%d requests, want 1 and 2 retries", n)
		}
	})
}

func TestRateLimitsAreNotRetriedBelowTheTurn(t *testing.T) {
	d := &playedDialect{}
	d.answer = func(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
		toldToWait(30*time.Second, emit)
	}
	inConnection(t, d, func(r *connRig) {
		ends := 0
		req := &messages.Request{MessageID: "x", Model: messages.Model{ID: "m"}, Options: messages.RequestOptions{HTTPRetries: 2}}
		r.conn.Stream(r.t.Context(), req, func(messages.StreamEvent) { ends++ })
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(d.requests()); n != 1 || ends != 1 {
			t.Errorf("%d requests, %d ends", n, ends)
		}
	})
}
