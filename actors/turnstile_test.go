package actors

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFewBeginAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		const all = 100
		most, inside, seen := cap(s.slots), make(chan struct{}, all), make(chan int, all)
		done := make(chan struct{})
		for range all {
			go func() {
				leave := s.enter(t.Context())
				inside <- struct{}{}
				seen <- len(inside)
				time.Sleep(beginsWithin / 2)
				<-inside
				leave()
				done <- struct{}{}
			}()
		}
		for range all {
			<-done
		}
		peak := 0
		for range all {
			peak = max(peak, <-seen)
		}
		if peak != most || len(s.slots) != 0 {
			t.Errorf("%d were inside at once, %d may be; %d are left", peak, most, len(s.slots))
		}
	})
}

func TestOneThatTakesLongLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		began := time.Now()
		var leaves []func()
		for range cap(s.slots) {
			leaves = append(leaves, s.enter(t.Context()))
		}
		leave := s.enter(t.Context())
		if took := time.Since(began); took != beginsWithin {
			t.Errorf("entered after %s, not %s", took, beginsWithin)
		}
		for _, l := range leaves {
			l() // its turn is long over: nothing may be let in for it again
		}
		if len(s.slots) != 1 {
			t.Errorf("%d are counted inside, 1 is", len(s.slots))
		}
		leave()
		leave()
		if len(s.slots) != 0 {
			t.Errorf("%d are counted inside, none is", len(s.slots))
		}
	})
}

func TestWhoStopsWaitingDoesNotEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		for range cap(s.slots) {
			s.slots <- struct{}{}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.enter(ctx)()
		if len(s.slots) != cap(s.slots) {
			t.Errorf("%d are inside of %d", len(s.slots), cap(s.slots))
		}
	})
}

func TestAdmissionsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		enters := func() <-chan time.Duration {
			took, began := make(chan time.Duration, 1), time.Now()
			go func() {
				s.enter(t.Context())()
				took <- time.Since(began)
			}()
			return took
		}
		one, two := s.admit(), s.admit()
		first := enters()
		time.Sleep(yieldsFor / 4)
		one()
		time.Sleep(yieldsFor / 4)
		two()
		if took := <-first; took != yieldsFor/2 {
			t.Errorf("entered after %s, when the last was admitted that is %s", took, yieldsFor/2)
		}
		if took := <-enters(); took != 0 {
			t.Errorf("entered after %s, with no admission under way", took)
		}
	})
}

func TestAdmissionsWithoutEndDoNotKeepOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		defer s.admit()()
		began := time.Now()
		s.enter(t.Context())()
		if took := time.Since(began); took != yieldsFor {
			t.Errorf("entered after %s, not %s", took, yieldsFor)
		}
	})
}

func TestAnswersGiveWayToACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		gives := func(ctx context.Context, waiting int64, last time.Time, want time.Duration) time.Time {
			t.Helper()
			s.waiting.Store(waiting)
			began := time.Now()
			last = s.giveWay(ctx, last)
			if took := time.Since(began); took != want {
				t.Errorf("gave way to %d for %s, not %s", waiting, took, want)
			}
			return last
		}
		never := time.Time{}
		gives(t.Context(), 0, never, 0)
		gives(t.Context(), crowd-1, never, 0)
		last := gives(t.Context(), crowd, never, crowd*givesWayFor)
		gives(t.Context(), crowd, last, 0) // it goes on for a while
		time.Sleep(givesWayMost)
		gives(t.Context(), 1_000_000, last, givesWayMost)
		ctx, cancel := context.WithTimeout(t.Context(), givesWayFor)
		defer cancel()
		gives(ctx, crowd, never, givesWayFor) // it was stopped
	})
}

// Whoever waits is counted, and nobody else.
func TestACrowdIsThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		for range cap(s.slots) {
			s.slots <- struct{}{}
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range crowd {
			go func() { s.enter(ctx)() }()
		}
		synctest.Wait()
		if n := s.waiting.Load(); n != crowd {
			t.Errorf("%d of %d wait", n, crowd)
		}
		<-s.slots // one enters and leaves after the other, until somebody stays
		cancel()
		synctest.Wait()
		if n := s.waiting.Load(); n != 0 {
			t.Errorf("%d wait when all have gone", n)
		}
	})
}
