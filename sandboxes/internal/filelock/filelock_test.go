package filelock

import (
	"context"
	"runtime"
	"testing"
)

func TestLockServesInOrderOfArrival(t *testing.T) {
	var l Table
	unlock, err := l.Take(context.Background(), "f")
	if err != nil {
		t.Fatal(err)
	}
	const waiters = 20
	served := make(chan int, waiters)
	for i := range waiters {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			unlock, err := l.Take(ctx, "f")
			if err == nil {
				served <- i
				unlock()
			} else {
				served <- -1
			}
		}()
		for l.Queued("f") != 2+i-i/5 { // the holder, and who waits
			runtime.Gosched()
		}
		if i%5 == 4 { // some leave again
			cancel()
			if got := <-served; got != -1 {
				t.Errorf("%d was served", got)
			}
		}
	}
	unlock()
	for i := range waiters {
		if i%5 == 4 {
			continue
		}
		if got := <-served; got != i {
			t.Errorf("%d was served instead of %d", got, i)
		}
	}
	for l.Len() != 0 { // the last one is about to leave
		runtime.Gosched()
	}
}
