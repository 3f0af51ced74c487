package local

import (
	"context"
	"testing"

	"codework/sandboxes"
)

func BenchmarkRunTrue(b *testing.B) {
	m := newMount(b, newSandbox(b))
	for b.Loop() {
		if e, err := m.Run(context.Background(), sandboxes.Command{Script: "true"}); err != nil || e.Code != 0 {
			b.Fatal(e, err)
		}
	}
}
