package local

import (
	"context"
	"testing"
	"time"

	"codework/sandboxes"
)

func newMount(t testing.TB, opt sandboxes.MountOptions) sandboxes.Mount {
	t.Helper()
	s, err := New(Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if opt.Dir == "" {
		opt.Dir = t.TempDir()
	}
	m, err := s.Mount(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSmoke(t *testing.T) {
	m := newMount(t, sandboxes.MountOptions{Umask: -1})
	for range 3 {
		start := time.Now()
		e, err := m.Run(context.Background(), sandboxes.Command{Script: "echo hi; echo err >&2; exit 3", Output: func(s sandboxes.Stream, b []byte) { t.Logf("%d %q", s, b) }})
		t.Log(e, err, time.Since(start))
	}
	start := time.Now()
	e, err := m.Run(context.Background(), sandboxes.Command{Script: "sleep 60 & sleep 70", Timeout: 100 * time.Millisecond})
	t.Log(e, err, time.Since(start))
	e, err = m.Run(context.Background(), sandboxes.Command{Script: "sleep 60 & echo $!"})
	t.Log(e, err, time.Since(start))
	start = time.Now()
	t.Log(m.Close(), time.Since(start))
}

func BenchmarkRunTrue(b *testing.B) {
	m := newMount(b, sandboxes.MountOptions{Umask: -1})
	for b.Loop() {
		if e, err := m.Run(context.Background(), sandboxes.Command{Script: "true"}); err != nil || e.Code != 0 {
			b.Fatal(e, err)
		}
	}
}
