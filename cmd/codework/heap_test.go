package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestTheHeapMayGrowByWhatIsInUse(t *testing.T) {
	const mb = 1 << 20
	for _, tc := range []struct{ live, scanned, goal uint64 }{
		{1 * mb, 1 * mb, heapFloor},
		{26 * mb, 4 * mb, heapFloor},         // an owner without sessions
		{37 * mb, 12 * mb, 37*mb + heapRoom}, // 200 of them at work
		{41 * mb, 12 * mb, 64 * mb},
		{81 * mb, 35 * mb, 201 * mb},          // a thousand
		{107 * mb, 5 * mb, 107*mb + heapRoom}, // some, while the store writes a table
	} {
		if got := heapGoal(tc.live, tc.scanned); got != tc.goal {
			t.Errorf("with %d MB alive the next collection is due at %d MB, not %d", tc.live/mb, got/mb, tc.goal/mb)
		}
	}
}

func TestThePaceFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for _, size := range []int{0, 64 << 20} { // a server at rest, and one at work
		ballast := make([]byte, size)
		adjustHeap()
		goal := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/goal:bytes"}, {Name: "/gc/scan/heap:bytes"}}
		for deadline := time.Now().Add(10 * time.Second); ; {
			runtime.GC()
			metrics.Read(goal)
			live, at, scanned := goal[0].Value.Uint64(), goal[1].Value.Uint64(), goal[2].Value.Uint64()
			if want := heapGoal(live, scanned); live > uint64(size) && at > live && at-min(at, want) < 4<<20 && want-min(at, want) < 4<<20 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d MB are alive; the next collection is due at %d MB, wanted %d", live>>20, at>>20, heapGoal(live, scanned)>>20)
			}
		}
		runtime.KeepAlive(ballast)
	}
}
