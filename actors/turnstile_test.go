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
		most, inside, seen := cap(s), make(chan struct{}, all), make(chan int, all)
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
		if peak != most || len(s) != 0 {
			t.Errorf("%d were inside at once, %d may be; %d are left", peak, most, len(s))
		}
	})
}

func TestOneThatTakesLongLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		began := time.Now()
		var leaves []func()
		for range cap(s) {
			leaves = append(leaves, s.enter(t.Context()))
		}
		leave := s.enter(t.Context())
		if took := time.Since(began); took != beginsWithin {
			t.Errorf("entered after %s, not %s", took, beginsWithin)
		}
		for _, l := range leaves {
			l() // its turn is long over: nothing may be let in for it again
		}
		if len(s) != 1 {
			t.Errorf("%d are counted inside, 1 is", len(s))
		}
		leave()
		leave()
		if len(s) != 0 {
			t.Errorf("%d are counted inside, none is", len(s))
		}
	})
}

func TestWhoStopsWaitingDoesNotEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurnstile()
		for range cap(s) {
			s <- struct{}{}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.enter(ctx)()
		if len(s) != cap(s) {
			t.Errorf("%d are inside of %d", len(s), cap(s))
		}
	})
}
