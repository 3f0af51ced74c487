package chat

import (
	"fmt"
	"testing"

	"codework/integration/mockmodel"
	"codework/messages"
	"codework/providers/internal/dialecttest"
)

// An answer whose connection breaks after any of its events, in any way, is
// a failure that may be tried again; the same answer unbroken is a success,
// whatever the line ends and however small the pieces.
func TestBrokenAndUnbrokenAnswersOfTheModelServer(t *testing.T) {
	whole := func(more ...mockmodel.Step) mockmodel.Answer {
		return append(mockmodel.Answer{mockmodel.Reasoning{Text: "hm"}, mockmodel.Text{Text: "Grüße 😀", Split: 3},
			mockmodel.Call{ID: "a", Name: "write", Args: `{"path":"f","content":"ü"}`, Split: 4}}, more...)
	}
	const want = `thinking:hm text:Grüße 😀 write(a {"path":"f","content":"ü"})`
	client := dialecttest.Serve(t, dialecttest.Stream("")).Client(t)
	for _, newline := range []string{"\n", "\r\n", "\r"} {
		server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{whole(mockmodel.Framing{Newline: newline, Chop: 1})}})
		if got := parts(t, dialecttest.Run(t, Dialect{}, client, request(server.URL()+"/v1"))); got != want {
			t.Errorf("line end %q: %s", newline, got)
		}
	}
	for _, mode := range []mockmodel.CutMode{mockmodel.CutClose, mockmodel.CutReset, mockmodel.CutEnd} {
		for events := range 9 { // the tenth has the finish reason
			t.Run(fmt.Sprint(mode, " after ", events), func(t *testing.T) {
				server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{whole(mockmodel.After{Events: events, Step: mockmodel.Cut{Mode: mode}})}})
				f := dialecttest.Run(t, Dialect{}, client, request(server.URL()+"/v1")).Failed(t)
				if f.Type != messages.FailTransport || !f.Retryable {
					t.Errorf("%+v", f)
				}
			})
		}
	}
}
