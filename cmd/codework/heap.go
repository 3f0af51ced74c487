package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// How far the heap of an owner may grow before it is looked through again. Go's
// own rule, once more what is alive, does not fit: with Go's 100 % an owner whose
// sessions need 12 MB would let 35 MB of garbage lie.
const (
	// storeTable is the store's table of recent writes: it counts as alive with
	// all that it may hold one day, and is hardly touched.
	storeTable = 21 << 20
	// heapFloor is what the heap may always grow to: 200 sessions that are
	// prompted at once get under way without a collection.
	heapFloor = 40 << 20
	// heapRoom is the least between what is alive and the next collection.
	heapRoom = 7 << 20
	// heapLarge is in use where Go's own rule begins to hold: an owner of a
	// thousand busy sessions needs its processor time more than memory.
	heapLarge = 40 << 20
)

// heapGoal is where the next collection is due when so much is alive.
func heapGoal(live uint64) uint64 {
	used := live - min(live, storeTable)
	room := min(used, used*used/heapLarge)
	return max(heapFloor, live+max(heapRoom, room))
}

// paceHeap keeps to heapGoal from now on, unless GOGC says what to do.
var paceHeap = sync.OnceFunc(func() {
	if os.Getenv("GOGC") != "" {
		return
	}
	adjustHeap()
})

// adjustHeap sets the pace by what is alive, and comes back after the next
// collection.
func adjustHeap() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if n := live[0].Value.Uint64(); n > 0 {
		debug.SetGCPercent(int((heapGoal(n) - n) * 100 / n))
	}
	// Finalizers run after each collection; this object dies in the next.
	runtime.SetFinalizer(&struct{ _ [16]byte }{}, func(any) { adjustHeap() })
}
