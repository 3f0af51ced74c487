package local

import (
	"testing"
	"testing/synctest"
	"time"

	"codework/sandboxes"
)

func TestOutputWithoutEndIsReadAtAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace{kept: sandboxes.FullLimit}
		start := time.Now()
		read := func(bytes int) time.Duration {
			for range bytes / pieceSize {
				p.hold(pieceSize)
			}
			return time.Since(start)
		}
		if d := read(outputBurst); d > 0 {
			t.Errorf("the beginning waited %s", d)
		}
		took := func(what string, bytes, rate int) {
			t.Helper()
			start = time.Now()
			want := time.Second * time.Duration(bytes) / time.Duration(rate)
			if d := read(bytes); d < want-5*outputNap || d > want+5*outputNap {
				t.Errorf("%s took %s, want %s", what, d, want)
			}
		}
		took("the middle", outputRate, outputRate)
		time.Sleep(time.Hour)
		took("as much after a pause, which saves up next to nothing,", outputRate, outputRate)
		took("the rest of what is kept", sandboxes.FullLimit-outputBurst-2*outputRate, outputRate)
		took("what nobody keeps", 2*lostRate, lostRate)
		p.kept = 0
		took("what a consumer gets", outputRate, outputRate)
	})
}
