package actors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"codework/internal/store"
	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

func (r *rig) do(m any) (any, error) { return Ask[any](r.ctx, r.system.guardian, m) }

func TestAForkGoesOnWithoutItsSource(t *testing.T) {
	r := newRig(t)
	id := r.create()
	for _, text := range []string{"one", "two"} {
		r.prompt(id, text, messages.Steer)
		r.model.next(t).answer("answer to " + text)
		r.wait(id)
	}
	first := r.ledger(id).entries[1]
	v, err := r.do(messages.Fork{SessionID: id, At: first.ID})
	if err != nil {
		t.Fatal(err)
	}
	fork := v.(messages.SessionInfo)
	if fork.ParentID != id || fork.ID == id {
		t.Errorf("fork %+v", fork)
	}
	if _, err := r.do(messages.Delete{SessionID: id}); err != nil {
		t.Fatal(err)
	}
	var missing *messages.SessionNotFound
	if _, err := r.to(id, messages.GetSession{SessionID: id}); !errors.As(err, &missing) {
		t.Errorf("the deleted session answers %v", err)
	}
	r.down()
	r.boot()
	r.prompt(fork.ID, "three", messages.Steer)
	a := r.model.next(t)
	var texts []string
	for _, m := range a.req.Messages {
		texts = append(texts, m.Parts[0].Text)
	}
	if got := strings.Join(texts, ", "); got != "one, answer to one, three" {
		t.Errorf("the model is asked with %s", got)
	}
	a.answer("ok")
	r.wait(fork.ID)
}

// holdingStore tells whether blobs were held while something was done.
type holdingStore struct {
	Store
	mu   sync.Mutex
	held int
	did  []string
}

func (h *holdingStore) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, fmt.Sprint(what, " ", h.held))
}

func (h *holdingStore) HoldBlobs() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held++
	letGo := h.Store.HoldBlobs()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.held--
		letGo()
	}
}

func (h *holdingStore) Recall(ctx context.Context, id string) (store.Snapshot, error) {
	h.note("recall")
	return h.Store.Recall(ctx, id)
}

func (h *holdingStore) PutBlob(data []byte) (string, error) {
	h.note("put")
	return h.Store.PutBlob(data)
}

func (h *holdingStore) Append(b store.Batch, done func(error)) {
	h.Store.Append(b, func(err error) { h.note("committed"); done(err) })
}

// What a fork names is its source's until it is written.
func TestAForkHoldsTheBlobsOfItsSource(t *testing.T) {
	h := &holdingStore{}
	r := newRigWith(t, func(c *Config) { h.Store, c.Store = c.Store, h })
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t).answer("two")
	r.wait(id)
	h.mu.Lock()
	h.did = nil
	h.mu.Unlock()
	if _, err := r.do(messages.Fork{SessionID: id}); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := strings.Join(h.did, ", "); got != "recall 1, put 1, committed 1" || h.held != 0 {
		t.Errorf("%s; %d held behind it", got, h.held)
	}
}

func TestABusySessionIsDeletedOnlyByForce(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	var busy *messages.SessionBusy
	if _, err := r.do(messages.Delete{SessionID: id}); !errors.As(err, &busy) {
		t.Fatalf("got %v", err)
	}
	if _, err := r.do(messages.Delete{SessionID: id, Force: true}); err != nil {
		t.Fatal(err)
	}
	if a.ctx.Err() == nil {
		t.Error("the request of the deleted session goes on")
	}
	if list, _ := r.do(messages.ListSessions{}); len(list.([]messages.SessionInfo)) != 0 {
		t.Error("it is still listed")
	}
}

// Who follows a session and who waits for it hear of its deletion, behind the end
// of its work; a deletion that could not be written ends nothing.
func TestADeletionIsToldToThoseWhoFollowAndWait(t *testing.T) {
	r := newRig(t)
	id, other := r.create(), r.create()
	c := r.dial(t, false)
	all := events(t, c, object{})
	one, err := c.Stream(r.ctx, contract.EventSubscribe, object{"sessionId": id, "after": object{id: 0}})
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	follow := func(until string) error {
		for last != until {
			b, err := one.Next(soon(t))
			if err != nil {
				return err
			}
			e, err := contract.DecodeEvent(b)
			if err != nil {
				t.Fatal(err)
			}
			last = e.Type
		}
		return nil
	}
	r.prompt(id, "go", messages.Steer)
	r.model.next(t)
	if err := follow(messages.EventExecutionStarted); err != nil { // it has read the log before that goes
		t.Fatal(err)
	}
	begin := func() <-chan error {
		over := make(chan error, 1)
		ask := toSession{id, messages.Wait{SessionID: id}}
		wait := r.system.guardian.request(ask) // before the deletion
		go func() {
			_, err := wait(r.ctx)
			if errors.Is(err, errStopped) {
				_, err = askAgain(r.ctx, r.system.guardian, ask)
			}
			over <- err
		}()
		return over
	}
	waits := begin()

	r.flaky.failWhen(func(b store.Batch) error {
		if b.Delete {
			return errors.New("the disk is full")
		}
		return nil
	})
	if _, err := r.do(messages.Delete{SessionID: id, Force: true}); err == nil {
		t.Fatal("it was deleted")
	}
	if err := <-waits; err != nil {
		t.Errorf("a deletion that failed ended the wait with %v", err)
	}
	r.flaky.failWhen(nil)

	r.prompt(id, "go on", messages.Steer)
	r.model.next(t)
	waits = begin()
	if _, err := r.do(messages.Delete{SessionID: id, Force: true}); err != nil {
		t.Fatal(err)
	}
	want := `{"_tag":"SessionNotFoundError","sessionId":"` + id + `"}`
	var missing *messages.SessionNotFound
	if err := <-waits; !errors.As(err, &missing) {
		t.Errorf("the wait ends with %v", err)
	}
	var typed *effectrpc.RemoteError
	if err := follow(""); !errors.As(err, &typed) || string(typed.Body) != want {
		t.Errorf("the subscription ends with %v", err)
	}
	if last != messages.EventExecutionInterrupted {
		t.Errorf("the last event is %s", last)
	}
	r.prompt(other, "hello", messages.Steer)
	r.model.next(t).answer("hi")
	for e := take(t, all); e.Session != other || !messages.Terminal(e.Type); e = take(t, all) {
	}
}

func TestHistoryComesInPages(t *testing.T) {
	r := newRig(t)
	id := r.create()
	for range 3 {
		r.prompt(id, "q", messages.Steer)
		r.model.next(t).answer("a")
		r.wait(id)
	}
	v, err := r.to(id, messages.GetHistory{SessionID: id, Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	h := v.(messages.History)
	if len(h.Entries) != 4 || !h.More || h.Seq != r.ledger(id).seq {
		t.Errorf("page %d, more %v, seq %d", len(h.Entries), h.More, h.Seq)
	}
	v, err = r.to(id, messages.GetHistory{SessionID: id, Before: h.Entries[0].ID})
	if h := v.(messages.History); err != nil || len(h.Entries) != 2 || h.More {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := r.to(id, messages.GetHistory{SessionID: id, Before: "nope"}); err == nil {
		t.Error("an unknown entry was accepted")
	}
}

func TestMovingRenamingAndLinking(t *testing.T) {
	r := newRig(t)
	id := r.create()
	dir := t.TempDir()
	v, err := r.to(id, messages.Relink{SessionID: id, Directory: dir})
	if err != nil || v.(messages.SessionInfo).Directory != dir {
		t.Errorf("%+v, %v", v, err)
	}
	var missing *messages.DirectoryNotFound
	if _, err := r.to(id, messages.Relink{SessionID: id, Directory: "/nope"}); !errors.As(err, &missing) {
		t.Errorf("got %v", err)
	}
	if v, err := r.to(id, messages.Rename{SessionID: id, Title: " a\nb "}); err != nil || v.(messages.SessionInfo).Title != "a b" {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := r.to(id, messages.Link{SessionID: id, HostDir: dir}); err != nil || v.(messages.SessionInfo).HostDir != dir {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := r.to(id, messages.Link{SessionID: id}); err != nil || v.(messages.SessionInfo).HostDir != "" {
		t.Errorf("%+v, %v", v, err)
	}
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	var refused *messages.RelinkError
	if _, err := r.to(id, messages.Relink{SessionID: id, Directory: dir}); !errors.As(err, &refused) {
		t.Errorf("a busy session was moved: %v", err)
	}
	a.answer("ok")
	r.wait(id)
}

func TestQueuedPromptsAreResumedOnRequestAndNotForEver(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "one", messages.Steer)
	r.model.next(t)
	queued := r.prompt(id, "two", messages.FollowUp)
	r.interrupt(id)
	r.wait(id)
	r.down()
	r.boot()
	r.system.Resume()
	a := r.model.next(t)
	if last := a.req.Messages[len(a.req.Messages)-1]; last.ID != queued {
		t.Errorf("resumed with %+v", last)
	}
	a.answer("ok")
	r.wait(id)
}

func TestSessionsMadeTogetherKeepTheLimit(t *testing.T) {
	r := newRig(t)
	r.down()
	const most, wanted = 3, 40
	r.limits = func(c *Config) { c.MaxSessions = most }
	r.boot()
	var made atomic.Int64
	var wg sync.WaitGroup
	for range wanted {
		wg.Go(func() {
			var refused *messages.Refused
			switch _, err := r.do(messages.CreateSession{Directory: "/"}); {
			case err == nil:
				made.Add(1)
			case !errors.As(err, &refused) || refused.Name != messages.RefusedBusy:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != most {
		t.Errorf("%d sessions were made, %d may be", n, most)
	}
}

func TestNoMoreWorkThanAllowed(t *testing.T) {
	r := newRig(t)
	r.down()
	r.limits = func(c *Config) { c.MaxRunning, c.MaxSessions = 1, 2 }
	r.boot()
	a, b := r.create(), r.create()
	var refused *messages.Refused
	if _, err := r.do(messages.CreateSession{Directory: "/"}); !errors.As(err, &refused) || refused.Name != messages.RefusedBusy {
		t.Errorf("a third session: %v", err)
	}
	if _, err := r.do(messages.Fork{SessionID: a}); !errors.As(err, &refused) || refused.Name != messages.RefusedBusy {
		t.Errorf("a third session as a copy: %v", err)
	}
	r.prompt(a, "go", messages.Steer)
	if _, err := r.to(b, messages.Prompt{SessionID: b, Text: "go"}); !errors.As(err, &refused) || refused.Name != messages.RefusedBusy {
		t.Errorf("a second running session: %v", err)
	}
	r.prompt(a, "more", messages.FollowUp)
	r.model.next(t).answer("ok")
	r.model.next(t).answer("ok")
	r.wait(a)
	r.prompt(b, "go", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(b)
}
