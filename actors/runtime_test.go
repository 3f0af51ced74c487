package actors

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"codework/messages"
)

// fake is an actor made of a function.
type fake func(me *Self, m any)

func (f fake) Receive(me *Self, m any) { f(me, m) }

// newTestRuntime returns a runtime that ends with the test.
func newTestRuntime(t testing.TB) *Runtime {
	rt := NewRuntime(slog.New(slog.DiscardHandler))
	t.Cleanup(rt.Shutdown)
	return rt
}

// spawnFake starts an actor of the test, which ends before the test does.
func spawnFake(t testing.TB, rt *Runtime, f func(me *Self, m any)) *Ref {
	ref := rt.Spawn(func() Actor { return fake(f) })
	t.Cleanup(func() { stopAndWait(t, ref) })
	return ref
}

func stopAndWait(t testing.TB, ref *Ref) {
	t.Helper()
	ref.Stop()
	ended(t, ref)
}

func ended(t testing.TB, ref *Ref) {
	t.Helper()
	select {
	case <-ref.Done():
	case <-time.After(within):
		t.Fatal("the actor did not end")
	}
}

// soon is a context that bounds one wait.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

type echo struct{ v any }

func TestAskGetsTheAnswerOfEachMessageInOrder(t *testing.T) {
	rt := newTestRuntime(t)
	var n int
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if _, ok := m.(echo); ok {
			n++
			me.Answer(n, nil)
		}
	})
	var waits []func(context.Context) (any, error)
	for range 100 {
		waits = append(waits, ref.request(echo{}))
	}
	for i, wait := range waits {
		v, err := wait(soon(t))
		if err != nil || v != i+1 {
			t.Fatalf("answer %d is %v, %v", i+1, v, err)
		}
	}
}

func TestAskReportsAnAnswerOfAnotherType(t *testing.T) {
	rt := newTestRuntime(t)
	ref := spawnFake(t, rt, func(me *Self, m any) { me.Answer("text", nil) })
	if _, err := Ask[int](soon(t), ref, echo{}); err == nil {
		t.Error("a string passed for an int")
	}
}

func TestAMessageNobodyAnsweredIsAnsweredWithNothing(t *testing.T) {
	rt := newTestRuntime(t)
	ref := spawnFake(t, rt, func(*Self, any) {})
	if v, err := ref.request(echo{})(soon(t)); v != nil || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestAskEndsWithItsContext(t *testing.T) {
	rt := newTestRuntime(t)
	var kept Reply
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if _, ok := m.(echo); ok {
			kept = me.TakeReply()
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	wait := ref.request(echo{})
	cancel()
	if _, err := wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	stopAndWait(t, ref)
	kept.Send("late", nil) // must neither block nor panic
	kept.Send("later", nil)
}

func TestOnlyTheFirstAnswerCounts(t *testing.T) {
	rt := newTestRuntime(t)
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if _, ok := m.(echo); ok {
			r := me.TakeReply()
			r.Send(1, nil)
			r.Send(2, nil)
			me.Answer(3, nil)
		}
	})
	if v, err := Ask[int](soon(t), ref, echo{}); v != 1 || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestForwardedQuestionsAreAnsweredByWhoGotThem(t *testing.T) {
	rt := newTestRuntime(t)
	back := spawnFake(t, rt, func(me *Self, m any) {
		if e, ok := m.(echo); ok {
			me.Answer(e.v, nil)
		}
	})
	front := spawnFake(t, rt, func(me *Self, m any) {
		if e, ok := m.(echo); ok {
			me.Forward(back, e)
		}
	})
	if v, err := Ask[string](soon(t), front, echo{"x"}); v != "x" || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestAQuestionForwardedToAnActorThatStopsIsAnswered(t *testing.T) {
	rt := newTestRuntime(t)
	entered, release := make(chan struct{}), make(chan struct{})
	back := spawnFake(t, rt, func(me *Self, m any) {
		if m == "block" {
			close(entered)
			<-release
			me.Ref().Stop()
		}
	})
	front := spawnFake(t, rt, func(me *Self, m any) {
		if _, ok := m.(echo); ok {
			me.Forward(back, m)
		}
	})
	back.Tell("block")
	<-entered
	// This one is in the mailbox behind the stop: Stop drains only what was
	// there before it.
	back.Stop()
	behind := front.request(echo{})
	if _, err := Ask[any](soon(t), front, nil); err != nil { // the forward has happened
		t.Fatal(err)
	}
	close(release)
	if _, err := behind(soon(t)); !errors.Is(err, errStopped) {
		t.Errorf("behind the stop: %v", err)
	}
	ended(t, back)
	if _, err := front.request(echo{})(soon(t)); !errors.Is(err, errStopped) {
		t.Errorf("after the end: %v", err)
	}
}

func TestALostMessageIsToldToItsSender(t *testing.T) {
	rt := newTestRuntime(t)
	ref := spawnFake(t, rt, func(*Self, any) {})
	stopAndWait(t, ref)
	lost := make(chan struct{})
	ref.TellOr(echo{}, func() { close(lost) })
	select {
	case <-lost:
	case <-time.After(within):
		t.Error("nobody was told")
	}
}

func TestAMessageThatArrivesIsNotLost(t *testing.T) {
	rt := newTestRuntime(t)
	got := make(chan any, 1)
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if _, ok := m.(echo); ok {
			got <- m
		}
	})
	lost := make(chan struct{}, 1)
	ref.TellOr(echo{1}, func() { lost <- struct{}{} })
	if m := <-got; m != (echo{1}) {
		t.Errorf("got %v", m)
	}
	stopAndWait(t, ref)
	if len(lost) != 0 {
		t.Error("told as lost although it arrived")
	}
}

func TestAnActorThatWaitsForItsChildrenTakesNoMessages(t *testing.T) {
	rt := newTestRuntime(t)
	release := make(chan struct{})
	running := make(chan struct{})
	var children int
	parent := spawnFake(t, rt, func(me *Self, m any) {
		switch m.(type) {
		case Started, echo:
			children++
			me.Spawn(func() Actor {
				return fake(func(me *Self, m any) {
					if _, ok := m.(Started); ok {
						me.Go(func(context.Context) any {
							select {
							case running <- struct{}{}:
							case <-release:
							}
							<-release
							return nil
						})
					}
				})
			})
		}
	})
	<-running
	parent.Stop()
	// The parent is ending now and waits for its child.
	q := parent.request(echo{})
	close(release)
	if _, err := q(soon(t)); !errors.Is(err, errStopped) {
		t.Errorf("got %v", err)
	}
	ended(t, parent)
	if children != 1 {
		t.Errorf("%d children were spawned", children)
	}
}

func TestAPanicIsAnsweredAndTheActorStartsAnew(t *testing.T) {
	rt := newTestRuntime(t)
	incarnations := 0
	ref := rt.Spawn(func() Actor {
		incarnations++
		n := incarnations
		return fake(func(me *Self, m any) {
			switch m {
			case "keep":
				me.TakeReply()
			case "panic":
				panic("on purpose")
			case "take and panic":
				me.TakeReply()
				panic("on purpose")
			case "which":
				me.Answer(n, nil)
			}
		})
	})
	defer stopAndWait(t, ref)
	owed := ref.request("keep")
	failing := ref.request("panic")
	behind := ref.request("which")
	var refused *messages.Refused
	if _, err := failing(soon(t)); !errors.As(err, &refused) || refused.Name != messages.RefusedInternal {
		t.Errorf("the asker of a panic got %v", err)
	}
	if _, err := owed(soon(t)); !errors.Is(err, errStopped) {
		t.Errorf("a promised answer: %v", err)
	}
	if v, err := behind(soon(t)); v != 2 || err != nil {
		t.Errorf("the message behind the panic was answered by %v, %v", v, err)
	}
	if _, err := ref.request("take and panic")(soon(t)); err == nil {
		t.Error("an answer that was taken and never given is lost")
	}
}

func TestAPanicNamesNoSecretToTheAsker(t *testing.T) {
	rt := newTestRuntime(t)
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if m == "panic" {
			panic("sk-secret")
		}
	})
	_, err := ref.request("panic")(soon(t))
	if err == nil || err.Error() != "internal error; the log says more" {
		t.Errorf("got %v", err)
	}
}

func TestLateResultsOfAnOlderIncarnationAreDropped(t *testing.T) {
	rt := newTestRuntime(t)
	var tells []func(any)
	got := make(chan any, 8)
	ref := spawnFake(t, rt, func(me *Self, m any) {
		switch m := m.(type) {
		case Started:
			tells = append(tells, me.Later())
		case string:
			if m == "panic" {
				panic("on purpose")
			}
			got <- m
		}
	})
	if _, err := ref.request("panic")(soon(t)); err == nil {
		t.Fatal("no error")
	}
	if _, err := ref.request(echo{})(soon(t)); err != nil { // the second has started
		t.Fatal(err)
	}
	tells[0]("old")
	tells[1]("new")
	if m := <-got; m != "new" {
		t.Errorf("got %v", m)
	}
}

func TestStopWaitsForWhatRunsBeside(t *testing.T) {
	rt := newTestRuntime(t)
	started, finished := make(chan struct{}), false
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if _, ok := m.(Started); ok {
			me.Go(func(ctx context.Context) any {
				close(started)
				<-ctx.Done()
				finished = true
				return "dropped"
			})
		}
	})
	<-started
	stopAndWait(t, ref)
	if !finished {
		t.Error("the actor ended before what it had started")
	}
}

func TestStopDrainsTheMailboxFirst(t *testing.T) {
	rt := newTestRuntime(t)
	n := 0
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if m == 1 {
			n++
		}
	})
	for range 1000 {
		ref.Tell(1)
	}
	stopAndWait(t, ref)
	if n != 1000 {
		t.Errorf("%d of 1000 messages were handled", n)
	}
}

func TestAPanicBesideAnActorRestartsIt(t *testing.T) {
	rt := newTestRuntime(t)
	starts := make(chan struct{}, 4)
	ref := spawnFake(t, rt, func(me *Self, m any) {
		switch m {
		case Started{}:
			starts <- struct{}{}
		case "go":
			me.Go(func(context.Context) any { panic("beside") })
		}
	})
	<-starts
	ref.Tell("go")
	select {
	case <-starts:
	case <-time.After(within):
		t.Error("the actor was not restarted")
	}
}

func TestAPanicWhileStoppingDoesNotReviveTheActor(t *testing.T) {
	rt := newTestRuntime(t)
	ref := spawnFake(t, rt, func(me *Self, m any) {
		if m == (Stopped{}) {
			panic("in the end")
		}
	})
	stopAndWait(t, ref)
}

func TestParentsHearOfChildrenThatEndForGood(t *testing.T) {
	rt := newTestRuntime(t)
	var child *Ref
	heard := make(chan *Ref, 4)
	parent := spawnFake(t, rt, func(me *Self, m any) {
		switch m := m.(type) {
		case Started:
			child = me.Spawn(func() Actor {
				return fake(func(me *Self, m any) {
					if m == "panic" {
						panic("on purpose")
					}
				})
			})
		case Ended:
			heard <- m.Child
		}
	})
	if _, err := parent.request(echo{})(soon(t)); err != nil {
		t.Fatal(err)
	}
	for i := range restarts {
		child.request("panic")(soon(t))
		if _, err := child.request(echo{})(soon(t)); err != nil {
			t.Fatalf("after %d panics: %v", i+1, err)
		}
	}
	if len(heard) != 0 {
		t.Error("given up within the budget")
	}
	child.request("panic")(soon(t))
	select {
	case who := <-heard:
		if who != child {
			t.Error("another child ended")
		}
	case <-time.After(within):
		t.Fatal("the parent was not told")
	}
	ended(t, child)
	if _, err := child.request(echo{})(soon(t)); !errors.Is(err, errStopped) {
		t.Errorf("the dead answer %v", err)
	}
}

func TestRestartsAreForgivenWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := NewRuntime(slog.New(slog.DiscardHandler))
		defer rt.Shutdown()
		ended := false
		var child *Ref
		parent := rt.Spawn(func() Actor {
			return fake(func(me *Self, m any) {
				switch m.(type) {
				case Started:
					child = me.Spawn(func() Actor {
						return fake(func(me *Self, m any) {
							if m == "panic" {
								panic("on purpose")
							}
						})
					})
				case Ended:
					ended = true
				}
			})
		})
		synctest.Wait()
		for range 3 * restarts {
			child.Tell("panic")
			synctest.Wait()
			time.Sleep(restartsWithin / (restarts - 1))
		}
		if ended {
			t.Error("given up although the failures were far apart")
		}
		parent.Stop()
		<-parent.Done()
	})
}

func TestTimersTellOnceAndCanBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := NewRuntime(slog.New(slog.DiscardHandler))
		defer rt.Shutdown()
		var got []any
		var stop func()
		ref := rt.Spawn(func() Actor {
			return fake(func(me *Self, m any) {
				switch m {
				case Started{}:
					me.After(time.Hour, "hour")
					me.After(time.Minute, "minute")
					stop = me.After(time.Second, "second")
				case "panic":
					panic("on purpose")
				case Stopped{}:
				default:
					got = append(got, m)
				}
			})
		})
		synctest.Wait()
		stop()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(got) != 1 || got[0] != "minute" {
			t.Fatalf("got %v", got)
		}
		ref.Tell("panic") // the timer of an hour was the old incarnation's
		synctest.Wait()
		stop()
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if len(got) != 2 {
			t.Errorf("got %v, want the minute of the new incarnation only", got)
		}
		ref.Stop()
		<-ref.Done()
		time.Sleep(2 * time.Hour)
		if len(got) != 2 {
			t.Errorf("a timer told a stopped actor: %v", got)
		}
	})
}

// gone collects until nobody can reach what w points to.
func gone[T any](t *testing.T, w weak.Pointer[T]) {
	t.Helper()
	for deadline := time.Now().Add(within); w.Value() != nil; {
		if time.Now().After(deadline) {
			t.Fatal("it stays in memory")
		}
		runtime.GC()
	}
}

// The runtime keeps stopped timers in its table as long as others are many more.
func TestAStoppedTimerKeepsNothingInMemory(t *testing.T) {
	type message struct{ _ [1 << 10]byte }
	me := &Self{}
	var w weak.Pointer[message]
	func() {
		const others = 100
		m := &message{}
		w = weak.Make(m)
		var stop func()
		for i := range others {
			if i == others/2 {
				stop = me.After(time.Hour, m)
			}
			t.Cleanup(me.After(time.Hour, "later"))
		}
		stop()
	}()
	for range 3 { // in time it would tidy up
		runtime.GC()
	}
	if w.Value() != nil {
		t.Error("the message of a stopped timer stays in memory")
	}
}

func TestAChildThatEndedIsNotKeptInMemory(t *testing.T) {
	rt := newTestRuntime(t)
	type behaviour struct {
		fake
		_ [1 << 10]byte
	}
	const n = 10
	begun, over := make(chan weak.Pointer[behaviour], n), make(chan bool, n)
	var children []*Ref
	parent := spawnFake(t, rt, func(me *Self, m any) {
		switch m.(type) {
		case Started:
			for range n {
				children = append(children, me.Spawn(func() Actor {
					b := &behaviour{fake: func(*Self, any) {}}
					begun <- weak.Make(b)
					return b
				}))
			}
		case Ended:
			over <- true
		}
	})
	if _, err := parent.request(echo{})(soon(t)); err != nil {
		t.Fatal(err)
	}
	for i := range children {
		stopAndWait(t, children[i])
		select {
		case <-over:
		case <-time.After(within):
			t.Fatal("the parent was not told")
		}
		children[i] = nil
	}
	for range n {
		gone(t, <-begun)
	}
	runtime.KeepAlive(parent)
}

func TestNoAnswerIsOwedForWhatWasHandedOn(t *testing.T) {
	rt := newTestRuntime(t)
	back := spawnFake(t, rt, func(me *Self, m any) { me.Answer(1, nil) })
	var held []Reply
	front := spawnFake(t, rt, func(me *Self, m any) {
		switch m {
		case "owed":
			me.mu.Lock()
			n := len(me.owed)
			me.mu.Unlock()
			me.Answer(n, nil)
		case "hold":
			held = append(held, me.TakeReply())
		case "go":
			for _, r := range held {
				back.pass(echo{}, r)
			}
		}
	})
	q := front.request("hold")
	front.Tell("go")
	if v, err := q(soon(t)); v != 1 || err != nil {
		t.Fatalf("got %v, %v", v, err)
	}
	if n, err := Ask[int](soon(t), front, "owed"); n != 0 || err != nil {
		t.Errorf("%d answers are still owed, %v", n, err)
	}
	back.mu.Lock()
	defer back.mu.Unlock()
	if n := len(back.mail); n != 0 {
		t.Errorf("%d letters are kept", n)
	}
}

// An answer that was given counts, whatever ended meanwhile: who took it for an
// error would do again what is done.
func TestAnAnswerThatIsGivenIsNotLostToTheEndOfTheAsking(t *testing.T) {
	rt := newTestRuntime(t)
	ref := spawnFake(t, rt, func(me *Self, m any) { me.Answer(m, nil) })
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for range 64 { // a choice at random would err once
		wait := ref.request("asked")
		if _, err := Ask[string](soon(t), ref, "behind it"); err != nil {
			t.Fatal(err)
		}
		if v, err := wait(over); v != "asked" || err != nil {
			t.Fatalf("%v, %v", v, err)
		}
	}
}

func TestAnAnswerIsNotedOnceWhoeverGivesIt(t *testing.T) {
	rt := newTestRuntime(t)
	told := make(chan struct{}, 64)
	keeps := spawnFake(t, rt, func(me *Self, m any) {
		switch m {
		case "twice":
			r := me.TakeReply()
			r.Send(nil, nil)
			r.Send(nil, nil)
		case "keep":
			me.TakeReply()
		case "fail":
			panic("on purpose")
		}
	})
	front := spawnFake(t, rt, func(me *Self, m any) {
		if _, ok := m.(string); ok {
			me.reply = me.reply.noting(func() { told <- struct{}{} })
			me.Forward(keeps, m)
		}
	})
	hears := func(what string) {
		t.Helper()
		select {
		case <-told: // perhaps a moment behind the answer
		case <-time.After(within):
			t.Fatalf("%s: not told", what)
		}
	}
	for _, m := range []string{"twice", "fail", "not answered"} {
		_, _ = Ask[any](soon(t), front, m)
		hears(m)
	}
	front.Tell("nobody asks")
	hears("nobody asks")
	kept := front.request("keep")
	stopAndWait(t, front)
	stopAndWait(t, keeps)
	if _, err := kept(soon(t)); !errors.Is(err, errStopped) {
		t.Error(err)
	}
	hears("keep")
	if n := len(told); n != 0 {
		t.Errorf("told %d times more", n)
	}
}
