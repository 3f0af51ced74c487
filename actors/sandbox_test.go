package actors

import (
	"context"
	"errors"
	"testing"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

// slowDriver makes mounts when the test lets it.
type slowDriver struct {
	asked   chan string
	release chan struct{}
	closed  chan string
}

func newSlowDriver() *slowDriver {
	return &slowDriver{asked: make(chan string, 16), release: make(chan struct{}, 16), closed: make(chan string, 16)}
}

func (d *slowDriver) Mount(_ context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	d.asked <- o.Session
	<-d.release
	return &plainMount{dir: o.Dir, session: o.Session, closed: d.closed}, nil
}

func (d *slowDriver) Close(context.Context) error { return nil }

func closedMount(t testing.TB, d *slowDriver, want string) {
	t.Helper()
	select {
	case got := <-d.closed:
		if got != want {
			t.Errorf("the mount of %s was closed", got)
		}
	case <-time.After(within):
		t.Fatal("the mount was not closed")
	}
}

func spawnSandbox(t testing.TB, d sandboxes.Sandbox) *Ref {
	rt := newTestRuntime(t)
	ref := rt.Spawn(newSandbox(sandbox{row: row{id: messages.LocalSandbox, shelf: newShelf(time.Now())}, conn: d}))
	t.Cleanup(func() { stopAndWait(t, ref) })
	return ref
}

func TestAMountThatNobodyIsLeftToUseIsClosed(t *testing.T) {
	for name, end := range map[string]func(*Ref){
		"stop":  (*Ref).Stop,
		"crash": func(r *Ref) { r.Tell(crashed{errors.New("on purpose")}) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newSlowDriver()
			ref := spawnSandbox(t, d)
			q := ref.request(mountFor{options: sandboxes.MountOptions{Session: "ses_1"}})
			<-d.asked
			end(ref)
			d.release <- struct{}{}
			if _, err := q(soon(t)); err == nil {
				t.Error("the asker got a mount of a sandbox that has ended")
			}
			closedMount(t, d, "ses_1")
		})
	}
}

func TestMountsEndWithTheirSandboxAndWithUnmount(t *testing.T) {
	d := newSlowDriver()
	ref := spawnSandbox(t, d)
	for _, id := range []string{"ses_1", "ses_2"} {
		d.release <- struct{}{}
		if _, err := Ask[place](soon(t), ref, mountFor{options: sandboxes.MountOptions{Session: id}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ref.request(unmount{"ses_1"})(soon(t)); err != nil {
		t.Fatal(err)
	}
	closedMount(t, d, "ses_1")
	if _, err := ref.request(unmount{"ses_1"})(soon(t)); err != nil {
		t.Error("a second unmount fails")
	}
	stopAndWait(t, ref)
	closedMount(t, d, "ses_2")
	if len(d.closed) != 0 {
		t.Error("a mount was closed twice")
	}
}

func TestCallsEndWithTheirSandbox(t *testing.T) {
	d := newSlowDriver()
	ref := spawnSandbox(t, d)
	d.release <- struct{}{}
	p, err := Ask[place](soon(t), ref, mountFor{options: sandboxes.MountOptions{Session: "ses_1"}})
	if err != nil {
		t.Fatal(err)
	}
	started, done := make(chan struct{}), make(chan struct{})
	p.Do(context.Background(), func(ctx context.Context, got sandboxes.Mount) {
		if got != p.mount {
			t.Error("another mount")
		}
		close(started)
		<-ctx.Done()
	}, func() { close(done) })
	<-started
	stopAndWait(t, ref)
	select {
	case <-done:
	default:
		t.Error("the sandbox ended before its call")
	}
	late := make(chan struct{})
	p.Do(context.Background(), func(context.Context, sandboxes.Mount) { t.Error("it ran in a sandbox that has ended") }, func() { close(late) })
	select {
	case <-late:
	case <-time.After(within):
		t.Error("a call to a sandbox that has ended never ends")
	}
}

func TestACallEndsWithItsCaller(t *testing.T) {
	d := newSlowDriver()
	ref := spawnSandbox(t, d)
	d.release <- struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	started, done := make(chan struct{}), make(chan struct{})
	place{ref: ref}.Do(ctx, func(ctx context.Context, _ sandboxes.Mount) {
		close(started)
		<-ctx.Done()
	}, func() { close(done) })
	<-started
	cancel()
	select {
	case <-done:
	case <-time.After(within):
		t.Error("the call goes on")
	}
}
