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
	// heapMany is in use when 200 sessions work. An owner with more of them needs
	// its processor time more than memory: each byte above gives heapFactor bytes
	// of room, up to twice what is in use.
	heapMany   = 16 << 20
	heapFactor = 4
)

// scanShare is how much is alive for each byte that the collector looks through,
// at most, in an owner at work: what sessions keep is half of pointers.
const scanShare = 2

// heapGoal is where the next collection is due when so much is alive, and so much
// of that is looked through. When the store writes a table, 80 MB that nobody looks
// through are alive for a second; a heap that grew by as much again for them would
// be spread over twice the pages and never come together again.
func heapGoal(live, scanned uint64) uint64 {
	used := min(live-min(live, storeTable), scanShare*scanned)
	room := heapRoom + heapFactor*(max(used, heapMany)-heapMany)
	return max(heapFloor, live+max(heapRoom, min(2*used, room)))
}

// paceHeap keeps to heapGoal from now on, unless GOGC says what to do.
var paceHeap = sync.OnceFunc(func() {
	if os.Getenv("GOGC") != "" {
		return
	}
	adjustHeap()
})

// growHeap lets the heap of a process that ends soon grow to heapFloor at once,
// and keeps to heapGoal from then on. Without it the first collection, after which
// a pace can be set, would be due at goMinimum.
func growHeap() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapFloor * 100 / goMinimum)
	}
	paceHeap()
}

// adjustHeap sets the pace by what is alive, and comes back after the next
// collection.
func adjustHeap() {
	now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}, {Name: "/gc/scan/heap:bytes"}}
	metrics.Read(now)
	if live := now[0].Value.Uint64(); live > 0 {
		debug.SetGCPercent(gcPercent(live, now[3].Value.Uint64(), now[1].Value.Uint64()+now[2].Value.Uint64()))
	}
	// Finalizers run after each collection; this object dies in the next.
	runtime.SetFinalizer(&struct{ _ [16]byte }{}, func(any) { adjustHeap() })
}

// goMinimum is what Go lets a heap grow to whatever is alive, at 100 %.
const goMinimum = 4 << 20

// gcPercent is what makes the next collection due at heapGoal. Two rules of Go
// show when little is alive, as in a server at rest: stacks and variables, the
// roots, count among what may grow by so many percent; and its minimum grows with
// the percentage.
func gcPercent(live, scanned, roots uint64) int {
	goal := heapGoal(live, scanned)
	return int(min((goal-live)*100/(live+roots), goal*100/goMinimum))
}

// giveBack gives memory that work needed, and nobody needs now, back to the
// system. Left alone the runtime would keep it until the next collection, for
// which there is no reason in a process that does nothing.
func giveBack() {
	runtime.GC() // pools let go of what they hold in two collections
	debug.FreeOSMemory()
	unmapProgram()
}
