package actors

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"codework/messages"
)

// One client must not be able to hurt another one's session with an id.
func TestTheSameIDInTwoSessionsAtOnceIsOneConflictAndNoLoss(t *testing.T) {
	for range 20 {
		r := newRig(t)
		ids := []string{r.create(), r.create()}
		for _, id := range ids {
			r.prompt(id, "work", messages.Steer)
		}
		running := []*asked{r.model.next(t), r.model.next(t)}
		errs := make([]error, len(ids))
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() {
				_, errs[i] = r.to(id, messages.Prompt{SessionID: id, Text: "x", ID: "same", Delivery: messages.FollowUp})
			})
		}
		wg.Wait()
		conflicts := 0
		for _, err := range errs {
			var conflict *messages.PromptConflict
			switch {
			case errors.As(err, &conflict):
				conflicts++
			case err != nil:
				t.Fatal(err)
			}
		}
		if conflicts != 1 {
			t.Fatalf("%d conflicts", conflicts)
		}
		for _, a := range running {
			if a.ctx.Err() != nil {
				t.Fatal("running work was stopped")
			}
			a.answer("ok")
		}
		r.model.next(t).answer("the one that won")
		for _, id := range ids {
			r.wait(id)
		}
		r.down()
	}
}

func TestAPromptThatFitsNoFrameIsRefused(t *testing.T) {
	r := newRig(t)
	id := r.create()
	_, err := r.to(id, messages.Prompt{SessionID: id, Text: strings.Repeat("\x01", 3<<20)})
	if err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("got %v", err)
	}
}
