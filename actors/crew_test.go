package actors

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func (c *crew) count() (hands, idle int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hands, c.idle
}

func TestRunsBeginInTheOrderInWhichTheyWereScheduled(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		c := newCrew()
		c.usual = 1
		hold := make(chan struct{})
		c.Schedule(func() { <-hold })
		var got []int
		const runs = 5000 // more than what a queue keeps
		for i := range runs {
			c.Schedule(func() { got = append(got, i) })
		}
		close(hold)
		synctest.Wait()
		if len(got) != runs || !slices.IsSorted(got) {
			t.Errorf("%d of %d runs, in order: %v", len(got), runs, slices.IsSorted(got))
		}
		c.mu.Lock()
		room := cap(c.queue)
		c.mu.Unlock()
		c.close()
		if room > compactAt {
			t.Errorf("an empty queue keeps room for %d", room)
		}
	})
}

func TestRunsThatWaitKeepNobodyElseWaitingForLong(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		c := newCrew()
		defer c.close()
		hold := make(chan struct{})
		const stuck = 50
		began := time.Now()
		for range stuck {
			c.Schedule(func() { <-hold })
		}
		reached := make(chan time.Time, 1)
		c.Schedule(func() { reached <- time.Now() })
		if took := (<-reached).Sub(began); took > (stuck+1)*patience {
			t.Errorf("behind %d runs that wait, one waited %s", stuck, took)
		}
		if hands, _ := c.count(); hands <= c.usual {
			t.Errorf("%d hands for %d runs", hands, stuck)
		}
		close(hold)
		synctest.Wait()
		if hands, idle := c.count(); hands != c.usual || idle != c.usual {
			t.Errorf("%d hands are left, %d of them idle; usual are %d", hands, idle, c.usual)
		}
	})
}

func TestACrewThatWasClosedStillRunsWhatIsScheduled(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		c := newCrew()
		hold, last := make(chan struct{}), make(chan struct{})
		var queued sync.WaitGroup
		for range 3 * c.usual {
			queued.Add(1)
			c.Schedule(func() { <-hold; queued.Done() })
		}
		c.close()
		c.Schedule(func() { close(last) })
		<-last
		close(hold)
		queued.Wait()
		synctest.Wait()
		if hands, _ := c.count(); hands != 0 {
			t.Errorf("%d goroutines stay", hands)
		}
	})
}

// Whoever runs a mailbox unlocks on the way out of a panic as well: without the
// lock that would end the process for another reason than the one to be seen.
func TestAPanicOfARunLeavesTheLockTaken(t *testing.T) {
	c := newCrew()
	c.mu.Lock()
	func() {
		defer func() {
			if p := recover(); p != "the reason" {
				t.Errorf("it ends with %v", p)
			}
		}()
		c.run(func() { panic("the reason") })
	}()
	if c.mu.TryLock() {
		t.Error("nobody holds the lock")
	}
	c.mu.Unlock()
}

// BenchmarkMailboxes is a message to each of 200 actors that have nothing else
// to do: what it costs to get to the actor.
func BenchmarkMailboxes(b *testing.B) {
	c := newCrew()
	defer c.close()
	var deep func(n int) int
	deep = func(n int) int { // as an encoder or the store does
		var frame [256]byte
		if n == 0 {
			return int(frame[0])
		}
		return deep(n-1) + int(frame[n])
	}
	for _, how := range []struct {
		name     string
		schedule func(func())
	}{{"crew", c.Schedule}, {"goroutines", func(f func()) { go f() }}} {
		b.Run(how.name, func(b *testing.B) {
			for b.Loop() {
				var all sync.WaitGroup
				for range 200 {
					all.Add(1)
					how.schedule(func() { deep(40); all.Done() })
				}
				all.Wait()
			}
		})
	}
}
