package actors

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// dial connects a client to the rig over a pipe.
func (r *rig) dial(t testing.TB, local bool) *effectrpc.Client {
	t.Helper()
	conn := r.accept(t, local)
	c := effectrpc.NewClient(conn, effectrpc.ClientOptions{PingInterval: -1})
	t.Cleanup(func() { c.Close() })
	return c
}

// accept returns the client's end of a connection that the rig serves.
func (r *rig) accept(t testing.TB, local bool) effectrpc.Conn {
	t.Helper()
	ours, theirs := effectrpc.Pipe()
	served := make(chan struct{})
	ctx, system := r.ctx, r.system
	go func() {
		defer close(served)
		_ = system.Serve(ctx, theirs, local)
	}()
	t.Cleanup(func() {
		ours.Close(effectrpc.CloseNormal, "")
		select {
		case <-served:
		case <-time.After(within):
			t.Error("the connection's actor did not end")
		}
	})
	return ours
}

func callFor[T any](t testing.TB, c *effectrpc.Client, method string, payload any) (T, error) {
	t.Helper()
	var v T
	err := c.Call(soon(t), method, payload, &v)
	return v, err
}

func must[T any](t testing.TB, c *effectrpc.Client, method string, payload any) T {
	t.Helper()
	v, err := callFor[T](t, c, method, payload)
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return v
}

type object = map[string]any

// events reads a subscription in the background.
func events(t testing.TB, c *effectrpc.Client, payload any) <-chan messages.Event {
	t.Helper()
	s, err := c.Stream(context.Background(), contract.EventSubscribe, payload) // ends with the connection
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan messages.Event, 1<<16)
	go func() {
		defer close(out)
		for {
			b, err := s.Next(context.Background())
			if err != nil {
				return
			}
			e, err := contract.DecodeEvent(b)
			if err != nil {
				return
			}
			out <- e
		}
	}()
	if e := take(t, out); e.Type != messages.EventConnected {
		t.Fatalf("the first event is %s", e.Type)
	}
	return out
}

func take(t testing.TB, from <-chan messages.Event) messages.Event {
	t.Helper()
	select {
	case e, ok := <-from:
		if !ok {
			t.Fatal("the subscription has ended")
		}
		return e
	case <-time.After(within):
		t.Fatal("no event came")
		return messages.Event{}
	}
}

func untilType(t testing.TB, from <-chan messages.Event, kind string) messages.Event {
	t.Helper()
	for {
		if e := take(t, from); e.Type == kind {
			return e
		}
	}
}

func TestAPromptTravelsThroughAConnection(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, false)
	evs := events(t, c, object{})
	info := must[messages.SessionInfo](t, c, contract.SessionCreate, object{"title": "T", "directory": "/"})
	if info.Title != "T" || info.Directory != "/" {
		t.Errorf("created %+v", info)
	}
	must[any](t, c, contract.SessionPrompt, object{"sessionId": info.ID, "text": "hello", "id": "m1"})
	if q := must[messages.Found](t, c, contract.SessionMessage, object{"sessionId": info.ID, "messageId": "nobody's"}); q.Found {
		t.Error("a message that does not exist was found")
	}
	r.model.next(t).answer("hi")
	must[any](t, c, contract.SessionWait, object{"sessionId": info.ID})
	var seq int64
	for {
		e := take(t, evs)
		if e.Durable() {
			if seq++; e.Seq != seq || e.Session != info.ID {
				t.Fatalf("event %d of %s behind %d", e.Seq, e.Session, seq-1)
			}
		}
		if messages.Terminal(e.Type) {
			break
		}
	}
	if f := must[messages.Found](t, c, contract.SessionMessage, object{"sessionId": info.ID, "messageId": "m1"}); !f.Found {
		t.Error("the prompt is not part of the conversation")
	}
	if l := must[[]messages.SessionInfo](t, c, contract.SessionList, object{}); len(l) != 1 || l[0].ID != info.ID || l[0].Status != messages.SessionIdle {
		t.Errorf("list %+v", l)
	}
	i := must[messages.SessionInfo](t, c, contract.SessionInfo, object{"sessionId": info.ID})
	if i.Usage == nil || i.Usage.TotalTokens != 2 {
		t.Errorf("info %+v", i)
	}
	i = must[messages.SessionInfo](t, c, contract.SessionConfigure, object{"sessionId": info.ID, "runtime": object{"thinkingLevel": "low"}})
	if i.ThinkingLevel != "low" {
		t.Errorf("configured %+v", i)
	}
	if q := must[messages.Queue](t, c, contract.SessionQueue, object{"sessionId": info.ID}); q.Queued == nil || len(q.Queued) != 0 {
		t.Errorf("queue %+v", q)
	}
	if v := must[messages.Interrupted](t, c, contract.SessionInterrupt, object{"sessionId": info.ID}); v.Interrupted {
		t.Error("idle work was interrupted")
	}
	if v := must[messages.ServerInfo](t, c, contract.ServerInfo, object{}); v.Name != "codework" || v.Sessions.Total != 1 || v.Protocol != contract.Version {
		t.Errorf("server %+v", v)
	}
}

func TestFailuresHaveTheTypesOfTheContract(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, false)
	id := r.create()
	r.prompt(id, "x", messages.Steer)
	r.model.next(t).answer("ok")
	r.wait(id)
	must[any](t, c, contract.SessionPrompt, object{"sessionId": id, "text": "mine", "id": "taken"})
	r.model.next(t).answer("ok")
	const unknown = "ses_unknown"
	for _, tc := range []struct {
		method  string
		payload object
		tag     string
		fields  object
	}{
		{contract.SessionInfo, object{"sessionId": unknown}, "SessionNotFoundError", object{"sessionId": unknown}},
		{contract.SessionConfigure, object{"sessionId": unknown, "runtime": object{}}, "SessionNotFoundError", object{"sessionId": unknown}},
		{contract.SessionPrompt, object{"sessionId": unknown, "text": "x"}, "SessionNotFoundError", object{"sessionId": unknown}},
		{contract.SessionPrompt, object{"sessionId": unknown, "text": "x", "id": "own"}, "SessionNotFoundError", object{"sessionId": unknown}},
		{contract.SessionWait, object{"sessionId": unknown}, "SessionNotFoundError", object{"sessionId": unknown}},
		{contract.SessionQueue, object{"sessionId": unknown}, "SessionNotFoundError", object{"sessionId": unknown}},
		{contract.SessionPrompt, object{"sessionId": id, "text": "other", "id": "taken"}, "PromptConflictError", object{"sessionId": id, "messageId": "taken"}},
		{contract.SessionCreate, object{"directory": "/does/not/exist"}, "Location.DirectoryNotFoundError", object{"directory": "/does/not/exist", "sandboxInstanceId": "local"}},
		{contract.SessionCreate, object{"directory": "/proc/self/status"}, "Location.NotDirectoryError", object{"directory": "/proc/self/status", "sandboxInstanceId": "local"}},
		{contract.SessionCreate, object{"sandbox": object{"driver": "nope"}}, "SandboxDriverNotRegisteredError", object{"driver": "nope"}},
		{contract.SessionCreate, object{"sandbox": object{"id": "sbx_none"}}, "SandboxNotFoundError", object{"id": "sbx_none"}},
	} {
		err := c.Call(soon(t), tc.method, tc.payload, nil)
		var remote *effectrpc.RemoteError
		if !errors.As(err, &remote) || remote.Tag != tc.tag {
			t.Errorf("%s %v: got %v, want %s", tc.method, tc.payload, err, tc.tag)
			continue
		}
		var got object
		if err := json.Unmarshal(remote.Body, &got); err != nil {
			t.Fatal(err)
		}
		for k, v := range tc.fields {
			if got[k] != v {
				t.Errorf("%s: %s is %v, want %v", tc.tag, k, got[k], v)
			}
		}
	}
	// These declare no error.
	if v := must[messages.Interrupted](t, c, contract.SessionInterrupt, object{"sessionId": unknown}); v.Interrupted {
		t.Error("an unknown session was interrupted")
	}
	if v := must[messages.Found](t, c, contract.SessionMessage, object{"sessionId": unknown, "messageId": "x"}); v.Found {
		t.Error("found in an unknown session")
	}
}

func TestPayloadsThatDoNotDecodeAreRefusedPerCall(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, false)
	id := r.create()
	for _, tc := range []struct {
		method, payload, names string
	}{
		{contract.SessionInfo, `{}`, "sessionId"},
		{contract.SessionInfo, `{"sessionId":1}`, "sessionId"},
		{contract.SessionInfo, `{"sessionId":null}`, "sessionId"},
		{contract.SessionInfo, `{"sessionId":"x_1"}`, "sessionId"},
		{contract.SessionInfo, `[]`, "object"},
		{contract.SessionInfo, `"x"`, "object"},
		{contract.SessionCreate, `{"hostDir":"relative"}`, "hostDir"},
		{contract.SessionCreate, `{"hostDir":null}`, "hostDir"},
		{contract.SessionCreate, `{"sandbox":{}}`, "sandbox"},
		{contract.SessionCreate, `{"title":5}`, "title"},
		{contract.SessionCreate, `{"runtime":{"thinkingLevel":"much"}}`, "thinkingLevel"},
		{contract.SessionList, `{"limit":-1}`, "limit"},
		{contract.SessionList, `{"limit":1.5}`, "limit"},
		{contract.SessionConfigure, `{"sessionId":"` + id + `"}`, "runtime"},
		{contract.SessionConfigure, `{"sessionId":"` + id + `","runtime":null}`, "runtime"},
		{contract.SessionConfigure, `{"sessionId":"` + id + `","runtime":{"model":{"provider":"p"}}}`, "model"},
		{contract.SessionPrompt, `{"sessionId":"` + id + `"}`, "text"},
		{contract.SessionPrompt, `{"sessionId":"` + id + `","text":" "}`, "text"},
		{contract.SessionPrompt, `{"sessionId":"` + id + `","text":"x","delivery":"now"}`, "delivery"},
		{contract.SessionPrompt, `{"sessionId":"` + id + `","text":"x","id":null}`, "id"},
		{contract.SessionPrompt, `{"sessionId":"` + id + `","text":"x","parts":[{"type":"image"}]}`, "parts"},
		{contract.SessionPrompt, `{"sessionId":"` + id + `","text":"x","parts":[{"type":"toolCall"}]}`, "parts"},
		{contract.SessionPrompt, `{"sessionId":"` + id + `","text":"x","parts":[{"type":"image","mediaType":"image/png","data":"%%%"}]}`, ""},
		{contract.SessionInterrupt, `{}`, "sessionId"},
		{contract.SessionInterrupt, `{"sessionId":"` + id + `","clearQueue":"yes"}`, "clearQueue"},
		{contract.SessionWait, `{}`, "sessionId"},
		{contract.SessionMessage, `{"sessionId":"` + id + `"}`, "messageId"},
		{contract.SessionQueue, `{}`, "sessionId"},
		{contract.EventSubscribe, `{"sessionId":"nope"}`, "sessionId"},
		{contract.EventSubscribe, `{"after":[]}`, "after"},
		{contract.EventSubscribe, `{"after":null}`, "after"},
		{contract.ServerHello, `{}`, "Unknown request tag: server.hello"}, // not the local socket
		{contract.ServerHandover, `{}`, "Unknown request tag: server.handover"},
		{"session.teleport", `{}`, "Unknown request tag: session.teleport"},
	} {
		err := c.Call(soon(t), tc.method, json.RawMessage(tc.payload), nil)
		var defect *effectrpc.Defect
		if !errors.As(err, &defect) || !strings.Contains(defect.Message, tc.names) {
			t.Errorf("%s %s: got %v, want it to name %q", tc.method, tc.payload, err, tc.names)
		}
	}
	if l := r.ledger(id); len(l.entries)+len(l.inbox) != 0 {
		t.Error("a refused payload did something")
	}
}

func TestInterruptingAWaitLeavesTheSessionAlone(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, false)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	a.start()
	ctx, cancel := context.WithCancel(soon(t))
	waiting := make(chan error, 1)
	go func() { waiting <- c.Call(ctx, contract.SessionWait, object{"sessionId": id}, nil) }()
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if i := must[messages.SessionInfo](t, c, contract.SessionInfo, object{"sessionId": id}); i.Status != messages.SessionRunning {
		t.Errorf("the session is %s", i.Status)
	}
	if a.ctx.Err() != nil {
		t.Error("the request was cancelled")
	}
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "ok"})
	must[any](t, c, contract.SessionWait, object{"sessionId": id})
}

func TestAWaitOutlivesARestartOfItsSession(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, false)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	r.model.next(t).start()
	waiting := make(chan error, 1)
	ctx := soon(t)
	go func() { waiting <- c.Call(ctx, contract.SessionWait, object{"sessionId": id}, nil) }()
	must[messages.SessionInfo](t, c, contract.SessionInfo, object{"sessionId": id})
	if _, err := r.to(id, crashed{errors.New("test")}); err == nil {
		t.Fatal("no crash")
	}
	if err := <-waiting; err != nil {
		t.Errorf("got %v", err)
	}
}

func TestBoundPromptsEndWithTheirConnection(t *testing.T) {
	for _, local := range []bool{true, false} {
		t.Run(fmt.Sprintf("local %v", local), func(t *testing.T) {
			r := newRig(t)
			c := r.dial(t, local)
			id := r.create()
			must[any](t, c, contract.SessionPrompt, object{"sessionId": id, "text": "go", "id": "mine", "bound": true})
			a := r.model.next(t)
			a.start()
			must[any](t, c, contract.SessionPrompt, object{"sessionId": id, "text": "later", "id": "mine-2", "delivery": "followUp", "bound": true})
			c.Close()
			if !local {
				r.interruptsNothing(t, a)
				a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "ok"})
				r.model.next(t).answer("ok")
				r.wait(id)
				return
			}
			d := r.events.until(t, id, messages.EventExecutionInterrupted, 1)
			if d.Reason != string(messages.ByShutdown) {
				t.Errorf("reason %q", d.Reason)
			}
			r.wait(id)
			if l := r.ledger(id); len(l.inbox) != 0 || l.has("mine-2") {
				t.Error("the queued prompt was not taken back")
			}
		})
	}
}

// interruptsNothing waits until the rig has no connection and looks whether
// the request goes on.
func (r *rig) interruptsNothing(t testing.TB, a *asked) {
	t.Helper()
	r.untilClients(t, 0)
	if _, err := r.to(a.req.SessionID, messages.GetSession{SessionID: a.req.SessionID}); err != nil {
		t.Fatal(err)
	}
	if a.ctx.Err() != nil {
		t.Error("the work was interrupted")
	}
}

func (r *rig) untilClients(t testing.TB, n int64) {
	t.Helper()
	deadline := time.Now().Add(within)
	for r.clients.Load() != n {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections, want %d", r.clients.Load(), n)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestADisconnectFreesEverything(t *testing.T) {
	r := newRig(t)
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	a.start()
	cycle := func() {
		c := effectrpc.NewClient(r.accept(t, false), effectrpc.ClientOptions{PingInterval: -1})
		s, err := c.Stream(soon(t), contract.EventSubscribe, object{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(soon(t)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			_ = c.Call(ctx, contract.SessionWait, object{"sessionId": id}, nil)
		}()
		must[messages.SessionInfo](t, c, contract.SessionInfo, object{"sessionId": id})
		c.Close()
		cancel()
		<-waited
		r.untilClients(t, 0)
	}
	cycle()
	before := runtime.NumGoroutine()
	for range 50 {
		cycle()
	}
	deadline := time.Now().Add(within)
	for runtime.NumGoroutine() > before+5 {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, before %d", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "ok"})
	r.wait(id)
	if _, err := Ask[any](r.ctx, r.system.guardian, running{}); err != nil {
		t.Fatal(err)
	}
}

func TestGarbageHarmsNobody(t *testing.T) {
	r := newRig(t)
	good := r.dial(t, false)
	evs := events(t, good, object{})
	id := r.create()
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	for _, garbage := range []string{
		"\n\n", "null\n", "{\n", "[]\n", "42\n", `"x"` + "\n", "{}\n", "\x00\xff\xfe\n", deep + "\n",
		`{"_tag":"Request"}` + "\n", `{"_tag":"Request","id":null,"tag":"session.list","payload":{},"headers":[]}` + "\n",
		`{"_tag":"Request","id":1,"tag":"session.list","payload":` + deep + `,"headers":[]}` + "\n",
		`{"_tag":"Request","id":2,"tag":5,"payload":{}}` + "\n",
		`{"_tag":"Request","id":3,"tag":"session.info","payload":{"sessionId":"ses_\u0000"}}` + "\n",
		`{"_tag":"Request","id":4,"tag":"session.info","payload":{"sessionId":"ses_` + strings.Repeat("x", 100_000) + `"}}` + "\n",
		`{"_tag":"Request","id":4,"tag":"session.info","payload":{"sessionId":"ses/../../x"}}` + "\n",
		`{"_tag":"Request","id":6,"tag":"event.subscribe","payload":{"after":{"ses_x":9223372036854775807}}}` + "\n",
		`{"_tag":"Request","id":7,"tag":"event.subscribe","payload":{"after":{"` + id + `":-9223372036854775808}}}` + "\n",
		`{"_tag":"Ack","requestId":99}` + "\n", `{"_tag":"Interrupt","requestId":99}` + "\n", `{"_tag":"Exit","requestId":1}` + "\n",
		`{"_tag":"Request","id":5,"tag":"session.wait","payload":{"sessionId":"` + id + `"`,
	} {
		conn := r.accept(t, false)
		if err := conn.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
		if err := conn.Write([]byte(`{"_tag":"Ping"}` + "\n")); err != nil && !errors.Is(err, effectrpc.ErrClosed) {
			t.Fatal(err)
		}
		if strings.HasSuffix(garbage, "\n") { // otherwise the ping is inside a frame
			readUntil(t, conn, `"Pong"`)
		}
		conn.Close(effectrpc.CloseNormal, "")
	}
	must[any](t, good, contract.SessionPrompt, object{"sessionId": id, "text": "still here?"})
	r.model.next(t).answer("yes")
	untilType(t, evs, messages.EventExecutionSucceeded)
}

// readUntil reads from a connection until it says text, or is closed.
func readUntil(t testing.TB, conn effectrpc.Conn, text string) {
	t.Helper()
	found := make(chan error, 1)
	go func() {
		for {
			b, err := conn.Read()
			if err != nil || bytes.Contains(b, []byte(text)) {
				found <- err
				return
			}
		}
	}()
	select {
	case err := <-found:
		var closed *effectrpc.CloseError
		if err != nil && !errors.As(err, &closed) {
			t.Errorf("waiting for %s: %v", text, err)
		}
	case <-time.After(within):
		t.Fatalf("no %s", text)
	}
}

func TestAClientOfAnotherWorldIsRefused(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, true)
	hello := object{"version": "1", "build": "b", "protocol": contract.Version, "host": "elsewhere", "cwd": "/", "umask": 18, "env": object{}}
	err := c.Call(soon(t), contract.ServerHello, hello, nil)
	var remote *effectrpc.RemoteError
	if !errors.As(err, &remote) || remote.Tag != "WrongWorldError" {
		t.Errorf("got %v", err)
	}
}

func TestACallersWorldTravelsWithItsPrompts(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	c := r.dial(t, true)
	secret := "value-of-a-secret-variable"
	hello := object{"version": "1", "build": "b", "protocol": contract.Version, "host": "", "cwd": dir, "umask": 18, "env": object{"TOKEN": secret}}
	must[messages.ServerInfo](t, c, contract.ServerHello, hello)
	evs := events(t, c, object{})
	info := must[messages.SessionInfo](t, c, contract.SessionCreate, object{})
	if info.Directory != dir {
		t.Errorf("it works in %s", info.Directory)
	}
	must[any](t, c, contract.SessionPrompt, object{"sessionId": info.ID, "text": "go"})
	r.model.next(t).answer("ok")
	for {
		e := take(t, evs)
		if bytes.Contains(e.Data, []byte(secret)) {
			t.Errorf("%s tells the environment", e.Type)
		}
		if messages.Terminal(e.Type) {
			break
		}
	}
	q := r.lastQuery()
	if v, _ := q.World.Lookup("TOKEN"); v != secret {
		t.Errorf("the exchange sees TOKEN=%q", v)
	}
	remote := r.dial(t, false)
	must[any](t, remote, contract.SessionPrompt, object{"sessionId": info.ID, "text": "again"})
	r.model.next(t).answer("ok")
	must[any](t, remote, contract.SessionWait, object{"sessionId": info.ID})
}

// TestPromptsFullOfMarkupDoNotGrow guards the limit of a frame: with escapes
// as for HTML, a prompt far below it makes an event that ends every
// subscription.
func TestPromptsFullOfMarkupDoNotGrow(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, false)
	evs := events(t, c, object{})
	id := r.create()
	text := strings.Repeat("<&>", 20_000)
	must[any](t, c, contract.SessionPrompt, object{"sessionId": id, "text": text})
	r.model.next(t).answer("ok")
	e := untilType(t, evs, messages.EventPromptPromoted)
	if d, err := e.Decode(); err != nil || d.Prompt.Text != text {
		t.Errorf("the prompt came as something else (%v)", err)
	}
	if n := len(e.Data); n > len(text)+1000 {
		t.Errorf("a prompt of %d bytes made an event of %d", len(text), n)
	}
	untilType(t, evs, messages.EventExecutionSucceeded)
}

func TestASubscriberThatDoesNotReadIsToldSo(t *testing.T) {
	r := newRig(t)
	good := r.dial(t, false)
	evs := events(t, good, object{})
	stuck := r.accept(t, false)
	if err := stuck.Write([]byte(`{"_tag":"Request","id":1,"tag":"event.subscribe","payload":{},"headers":[]}` + "\n")); err != nil {
		t.Fatal(err)
	}
	readUntil(t, stuck, messages.EventConnected) // and never acknowledges it
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	a.start()
	const n = subscriberQueue + 500
	for i := range n {
		a.emit(messages.StreamEvent{Kind: messages.StreamTextStart, Index: i}) // what cannot be joined
		if i%100 == 99 {                                                       // the good reader keeps up
			for range 100 {
				untilType(t, evs, messages.EventLLMTextStart)
			}
		}
	}
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "x"})
	untilType(t, evs, messages.EventExecutionSucceeded)
	// Now it acknowledges: what was queued comes, then the reason.
	got := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		for {
			b, err := stuck.Read()
			if err != nil {
				got <- all.String()
				return
			}
			all.Write(b)
			if bytes.Contains(all.Bytes(), []byte("SubscriptionOverflowError")) {
				got <- all.String()
				return
			}
		}
	}()
	deadline := time.After(within)
	for {
		if err := stuck.Write([]byte(`{"_tag":"Ack","requestId":1}` + "\n")); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-got:
			if !strings.Contains(s, `"capacity":4096`) {
				t.Errorf("it ends with %.300s", s[max(0, len(s)-300):])
			}
			if n := strings.Count(s, `"session.llm.text.start"`); n < subscriberQueue-100 {
				t.Errorf("only %d queued events came first", n)
			}
			return
		case <-deadline:
			t.Fatal("no word of the overflow")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestAReconnectingClientGetsWhatItMissed(t *testing.T) {
	r := newRig(t)
	id := r.create()
	first := r.dial(t, false)
	evs := events(t, first, object{})
	r.prompt(id, "one", messages.Steer)
	e := untilType(t, evs, messages.EventExecutionStarted)
	first.Close()
	r.model.next(t).answer("ok")
	r.wait(id)
	second := r.dial(t, false)
	evs = events(t, second, object{"sessionId": id, "after": object{id: e.Seq}})
	for want := e.Seq + 1; ; want++ {
		e := take(t, evs)
		if e.Seq != want {
			t.Fatalf("got %d, want %d", e.Seq, want)
		}
		if messages.Terminal(e.Type) {
			break
		}
	}
}

func TestAPositionBeyondTheLogIsADefect(t *testing.T) {
	r := newRig(t)
	id := r.create()
	c := r.dial(t, false)
	s, err := c.Stream(soon(t), contract.EventSubscribe, object{"after": object{id: 99}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = s.Next(soon(t)); err != nil {
			break
		}
	}
	var defect *effectrpc.Defect
	if !errors.As(err, &defect) || defect.Name != messages.RefusedPosition {
		t.Errorf("got %v", err)
	}
}

func TestSubscriptionsEndWhenTheSystemDoes(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, false)
	s, err := c.Stream(soon(t), contract.EventSubscribe, object{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(soon(t)); err != nil {
		t.Fatal(err)
	}
	r.down()
	if _, err := s.Next(soon(t)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("it ends with %v", err)
	}
	select {
	case <-c.Done():
	case <-time.After(within):
		t.Error("the connection stays open")
	}
	var closed *effectrpc.CloseError
	if err := c.Err(); !errors.As(err, &closed) || closed.Code != effectrpc.CloseGoingAway {
		t.Errorf("it was closed with %v", err)
	}
}
