package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"codework/sandboxes"
)

var endRows = []row{
	{"a cancelled command ends", 0, cancelledCommand},
	{"a background job does not delay the result", programs, background},
	{"nothing outlives a cancel", programs | cancels, outlivesCancel},
	{"nothing outlives a time limit", programs | cancels, outlivesLimit},
	{"nothing outlives its mount", programs | cancels, outlivesMount},
	{"nothing outlives its sandbox", programs | cancels | again, outlivesSandbox},
	{"a closed sandbox refuses", 0, closedSandbox},
}

// A victim is a way to get out of a command's process group, session or
// parentage. Each appends to the file $F as long as it lives: that the file
// stands still is the proof that it does not.
type victim struct{ name, script string }

const beat = `while :; do echo >> "$F"; sleep 0.05; done`

var victims = []victim{
	{"background", `( ` + beat + ` ) &`},
	{"nohup", `nohup sh -c '` + beat + `' >/dev/null 2>&1 &`},
	{"setsid", `setsid sh -c '` + beat + `' &`},
	{"daemon", `( setsid sh -c '( ` + beat + ` ) </dev/null >/dev/null 2>&1 & exit 0' & )`},
	{"deaf", `setsid sh -c 'trap "" TERM HUP INT; ` + beat + `' &`},
	{"env -i", `env -i PATH="$PATH" F="$F" setsid sh -c '` + beat + `' &`},
	// Forks, leaves its session and lets the parent exit, again and again.
	{"forker", `printf '%s\n' 'echo >> "$F"; setsid sh "$0" & exit' > "$F.sh"; setsid sh "$F.sh" &`},
}

// eachVictim runs the end against all of them at once, and wants them dead
// afterwards, as look sees them.
func eachVictim(t *testing.T, s *scene, look *scene, end func(v victim, file string) error) {
	t.Helper()
	var wg sync.WaitGroup
	for i, v := range victims {
		file := fmt.Sprintf("%s/counter%d", s.dir, i)
		wg.Go(func() {
			if err := end(v, file); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
			if err := still(look, file); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
		})
	}
	wg.Wait()
}

// still proves that a victim is dead.
func still(s *scene, file string) error {
	first := s.size(file)
	if first == 0 {
		return errors.New("the victim never lived")
	}
	for range 2 {
		time.Sleep(500 * time.Millisecond) // this wait is the measurement
		if now := s.size(file); now != first {
			return fmt.Errorf("the victim lives: %d bytes became %d", first, now)
		}
	}
	return nil
}

func (s *scene) command(v victim, file, then string) sandboxes.Command {
	return sandboxes.Command{Script: v.script + "\n" + then, Env: map[string]string{"F": file}}
}

// beating waits until the victim lives.
func (s *scene) beating(file string) error {
	return eventually("the victim writes", func() bool { return s.size(file) > 3 })
}

// leave runs the victim's command to its end and checks that the victim lives
// on.
func (s *scene) leave(v victim, file string) error {
	exit, err := s.mount.Run(ctxb, s.command(v, file, ""))
	if err != nil || exit.Code != 0 || !exit.Background {
		return fmt.Errorf("leave the victim behind: %+v %v", exit, err)
	}
	if err := s.beating(file); err != nil {
		return err
	}
	now := s.size(file)
	return eventually("the victim outlives its command", func() bool { return s.size(file) > now })
}

func cancelledCommand(t *testing.T, s *scene) {
	ctx, cancel := context.WithCancel(ctxb)
	defer cancel()
	var start time.Time
	_, err := s.mount.Run(ctx, sandboxes.Command{
		Script: "echo running; while :; do sleep 1; done",
		Output: func(sandboxes.Stream, []byte) {
			start = time.Now()
			cancel()
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := within(start); err != nil {
		t.Error(err)
	}
	s.sh(t, "true")
}

func background(t *testing.T, s *scene) {
	for _, script := range []string{"echo hi; sleep 120 &", "echo hi; setsid sleep 120 &"} {
		m := s.another(t)
		start := time.Now()
		r := m.run(t, sandboxes.Command{Script: script})
		if d := time.Since(start); d > time.Second {
			t.Errorf("%s took %v", script, d)
		}
		if r.out != "hi\n" || r.Code != 0 || !r.Background {
			t.Errorf("%s: %+v", script, r)
		}
		if err := m.mount.Close(); err != nil {
			t.Error(err)
		}
	}
}

func outlivesCancel(t *testing.T, s *scene) {
	eachVictim(t, s, s, func(v victim, file string) error {
		ctx, cancel := context.WithCancel(ctxb)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := s.mount.Run(ctx, s.command(v, file, "sleep 60"))
			done <- err
		}()
		err := s.beating(file)
		start := time.Now()
		cancel()
		if got := <-done; !errors.Is(got, context.Canceled) {
			return fmt.Errorf("cancelled: %v (%v)", got, err)
		}
		return errors.Join(err, within(start))
	})
}

func outlivesLimit(t *testing.T, s *scene) {
	eachVictim(t, s, s, func(v victim, file string) error {
		c := s.command(v, file, "sleep 60")
		c.Timeout = time.Second
		start := time.Now()
		exit, err := s.mount.Run(ctxb, c)
		if err != nil || !exit.TimedOut {
			return fmt.Errorf("time limit: %+v %v", exit, err)
		}
		return within(start.Add(c.Timeout))
	})
}

func outlivesMount(t *testing.T, s *scene) {
	eachVictim(t, s, s, func(v victim, file string) error {
		m := s.another(t)
		if err := m.leave(v, file); err != nil {
			return err
		}
		start := time.Now()
		return errors.Join(m.mount.Close(), within(start))
	})
}

func outlivesSandbox(t *testing.T, s *scene) {
	own := s.own(t)
	var left sync.WaitGroup
	for i, v := range victims {
		left.Go(func() {
			if err := own.leave(v, fmt.Sprintf("%s/counter%d", own.dir, i)); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
		})
	}
	running := make(chan error, 1)
	go func() {
		_, err := own.mount.Run(ctxb, sandboxes.Command{Script: "sleep 60"})
		running <- err
	}()
	left.Wait()
	start := time.Now()
	if err := errors.Join(own.sandbox.Close(ctxb), within(start)); err != nil {
		t.Error(err)
	}
	if err := <-running; !isClosed(err) {
		t.Error("a command that ran:", err)
	}
	sb := s.subject.Again(t, own.dir)
	t.Cleanup(func() {
		if err := sb.Close(ctxb); err != nil {
			t.Error(err)
		}
	})
	look := &scene{s.subject, sb, mountAt(t, sb, own.dir), own.dir}
	eachVictim(t, look, look, func(victim, string) error { return nil })
}

func closedSandbox(t *testing.T, s *scene) {
	own := s.own(t)
	own.sh(t, "true")
	if err := own.sandbox.Close(ctxb); err != nil {
		t.Fatal(err)
	}
	if _, err := own.mount.Run(ctxb, sandboxes.Command{Script: "true"}); !isClosed(err) {
		t.Error(err)
	}
	if _, err := own.mount.Read(ctxb, "x", 0, -1); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
	if _, err := own.sandbox.Mount(ctxb, sandboxes.MountOptions{Dir: own.dir}); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
	if err := errors.Join(own.mount.Close(), own.sandbox.Close(ctxb)); err != nil {
		t.Error("closing again:", err)
	}
}
