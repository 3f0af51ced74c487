package local

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOutputWithoutEndIsReadAtAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		start := time.Now()
		read := func(bytes int) time.Duration {
			for range bytes / pieceSize {
				p.hold(pieceSize)
			}
			return time.Since(start)
		}
		if d := read(outputBurst); d > outputNap {
			t.Errorf("what is kept waited %s", d)
		}
		want := 4 * time.Second
		if d := read(4 * outputRate); d < want-10*time.Millisecond || d > want+10*time.Millisecond {
			t.Errorf("the rest took %s, want %s", d, want)
		}
	})
}
