package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const session = "ses_01234567-89ab-7def-8123-456789abcdef"

// serve answers a client's calls with handle, over a pipe.
func serve(t *testing.T, handle func(*effectrpc.Call)) (*Client, *effectrpc.Server) {
	t.Helper()
	here, there := effectrpc.Pipe()
	s := effectrpc.NewServer(there, effectrpc.ServerOptions{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), handle) }()
	c := Over(here)
	t.Cleanup(func() {
		c.Close()
		if err := <-served; err != nil {
			t.Error("server:", err)
		}
	})
	return c, s
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestErrorsThatTheContractDeclaresComeBackTyped(t *testing.T) {
	for _, want := range []messages.Tagged{
		&messages.SessionNotFound{SessionID: session},
		&messages.PromptConflict{SessionID: session, MessageID: "m"},
		&messages.SessionBusy{SessionID: session},
		&messages.DirectoryNotFound{Directory: "/d", SandboxID: "local"},
		&messages.NotDirectory{Directory: "/d", SandboxID: "local"},
		&messages.SubscriptionOverflow{Capacity: 7},
		&messages.EventEncoding{Type: "session.x", Cause: json.RawMessage(`{"a":1}`)},
		&messages.WrongWorld{Reason: "another machine"},
		&messages.BlobNotFound{Blob: "b"},
		&messages.SandboxNotFound{ID: "sbx"},
		&messages.SandboxDriverNotRegistered{Driver: "d", Registered: []string{"local"}},
		&messages.SandboxDriverRegistration{Driver: "d", Reason: "not here"},
		&messages.SandboxUnsupported{ID: "sbx", Driver: "d", Operation: "stop"},
	} {
		body, ok := contract.EncodeError(want)
		if !ok {
			t.Fatalf("%T has no JSON form", want)
		}
		c, _ := serve(t, func(c *effectrpc.Call) { c.Fail(body) })
		_, err := c.Session(soon(t), session)
		if !reflect.DeepEqual(err, error(want)) {
			t.Errorf("got %#v, want %#v", err, want)
		}
	}
}

func TestWhatTheContractDoesNotKnowStaysAsItCame(t *testing.T) {
	for _, body := range []string{`{"_tag":"NewError","x":1}`, `{"_tag":"SessionNotFoundError","sessionId":7}`, `{}`} {
		c, _ := serve(t, func(c *effectrpc.Call) { c.Fail(json.RawMessage(body)) })
		_, err := c.Session(soon(t), session)
		var remote *effectrpc.RemoteError
		if !errors.As(err, &remote) || string(remote.Body) != body {
			t.Errorf("%s: %#v", body, err)
		}
	}
}

func TestRefusalsAreToldByName(t *testing.T) {
	for _, name := range []string{messages.RefusedBusy, messages.RefusedStore, messages.RefusedShutdown, messages.RefusedPosition} {
		c, _ := serve(t, func(c *effectrpc.Call) { c.Die(&effectrpc.Defect{Name: name, Message: "not now"}) })
		_, err := c.Info(soon(t))
		var refused *messages.Refused
		if !errors.As(err, &refused) || refused.Name != name || err.Error() != "not now" {
			t.Errorf("%s: %#v", name, err)
		}
	}
	c, _ := serve(t, func(c *effectrpc.Call) { c.DieUnknownMethod() })
	_, err := c.Info(soon(t))
	var refused *messages.Refused
	if err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), contract.ServerInfo) {
		t.Errorf("a defect without a name: %#v", err)
	}
}

// Each call arrives as the method and payload that the server's half decodes.
func TestCallsArriveAsTheContractHasThem(t *testing.T) {
	type arrived struct {
		method string
		m      any
		err    error
	}
	got := make(chan arrived, 1)
	answer := json.RawMessage(`{}`)
	c, _ := serve(t, func(c *effectrpc.Call) {
		m, err := contract.Decode(c.Method(), c.Payload(), true)
		got <- arrived{c.Method(), m, err}
		if c.Method() == contract.SessionList {
			c.Succeed(json.RawMessage(`[]`))
			return
		}
		c.Succeed(answer)
	})
	ctx := soon(t)
	hello := messages.Hello{Version: "v", Build: "b", Protocol: 1, Host: "h", Cwd: "/", Umask: -1, Env: map[string]string{"A": "b"}}
	model := messages.Runtime{Model: &messages.ModelRef{Provider: "p", ID: "m"}}
	image := []messages.Part{{Type: messages.PartImage, MediaType: "image/png", Data: []byte{0, 1}}}
	for _, x := range []struct {
		method string
		want   any
		call   func() error
	}{
		{contract.ServerHello, hello, func() error { _, err := c.Hello(ctx, hello); return err }},
		{contract.ServerInfo, nil, func() error { _, err := c.Info(ctx); return err }},
		{contract.ServerHandover, nil, func() error { _, err := c.Handover(ctx); return err }},
		{contract.ServerTop, messages.GetTop{Limit: 3}, func() error { _, err := c.Top(ctx, messages.GetTop{Limit: 3}); return err }},
		{contract.SessionCreate, messages.CreateSession{Title: "t"}, func() error { _, err := c.Create(ctx, messages.CreateSession{Title: "t"}); return err }},
		{contract.SessionList, messages.ListSessions{Limit: 3}, func() error { _, err := c.List(ctx, messages.ListSessions{Limit: 3}); return err }},
		{contract.SessionInfo, messages.GetSession{SessionID: session}, func() error { _, err := c.Session(ctx, session); return err }},
		{contract.SessionConfigure, messages.Configure{SessionID: session, Runtime: model}, func() error { _, err := c.Configure(ctx, session, model); return err }},
		{contract.SessionPrompt, messages.Prompt{SessionID: session, Text: "hi", Parts: image, Delivery: messages.Steer, ID: "i"},
			func() error {
				return c.Prompt(ctx, messages.Prompt{SessionID: session, Text: "hi", Parts: image, Delivery: messages.Steer, ID: "i"}, false)
			}},
		{contract.SessionPrompt, messages.Prompt{SessionID: session, Text: "hi", Bound: "bound"},
			func() error { return c.Prompt(ctx, messages.Prompt{SessionID: session, Text: "hi"}, true) }},
		{contract.SessionInterrupt, messages.Interrupt{SessionID: session, ClearQueue: true},
			func() error {
				_, err := c.Interrupt(ctx, messages.Interrupt{SessionID: session, ClearQueue: true, Reason: messages.ByShutdown})
				return err
			}},
		{contract.SessionWait, messages.Wait{SessionID: session}, func() error { return c.Wait(ctx, session) }},
		{contract.SessionMessage, messages.HasMessage{SessionID: session, MessageID: "m"}, func() error { _, err := c.HasMessage(ctx, session, "m"); return err }},
		{contract.SessionQueue, messages.GetQueue{SessionID: session, Remove: "m"}, func() error {
			_, err := c.Queue(ctx, messages.GetQueue{SessionID: session, Remove: "m"})
			return err
		}},
	} {
		if err := x.call(); err != nil {
			t.Errorf("%s: %v", x.method, err)
		}
		a := <-got
		if a.err != nil || a.method != x.method || !reflect.DeepEqual(a.m, x.want) {
			t.Errorf("%s arrived as %s %#v (%v), want %#v", x.method, a.method, a.m, a.err, x.want)
		}
	}
}

func TestAnswersAreDecoded(t *testing.T) {
	c, _ := serve(t, func(c *effectrpc.Call) {
		c.Succeed(json.RawMessage(map[string]string{
			contract.SessionInterrupt: `{"interrupted":true}`,
			contract.SessionMessage:   `{"found":true}`,
			contract.SessionList:      `[{"id":"ses_1"},{"id":"ses_2"}]`,
			contract.SessionQueue:     `{"queued":[{"id":"m"}]}`,
			contract.ServerInfo:       `"nonsense"`,
		}[c.Method()]))
	})
	if ok, err := c.Interrupt(soon(t), messages.Interrupt{SessionID: session}); !ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := c.HasMessage(soon(t), session, "m"); !ok || err != nil {
		t.Error(ok, err)
	}
	if list, err := c.List(soon(t), messages.ListSessions{}); len(list) != 2 || list[1].ID != "ses_2" || err != nil {
		t.Error(list, err)
	}
	if q, err := c.Queue(soon(t), messages.GetQueue{SessionID: session}); len(q.Queued) != 1 || q.Queued[0].ID != "m" || err != nil {
		t.Error(q, err)
	}
	if _, err := c.Info(soon(t)); err == nil || !strings.Contains(err.Error(), contract.ServerInfo) {
		t.Errorf("an answer of another shape: %v", err)
	}
}

// events answers a subscription with these events and then with end.
func events(types []string, end error) func(*effectrpc.Call) {
	return func(c *effectrpc.Call) {
		sent := false
		c.Stream(func(ctx context.Context, _ effectrpc.Batch) ([]json.RawMessage, error) {
			if sent {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			sent = true
			var list []json.RawMessage
			for _, typ := range types {
				list = append(list, json.RawMessage(`{"id":"evt_1","type":"`+typ+`","data":{}}`))
			}
			return list, end
		})
	}
}

func TestASubscriptionBeginsWhenTheServerHasConnectedIt(t *testing.T) {
	c, _ := serve(t, events([]string{messages.EventConnected, messages.EventTurnEnded}, nil))
	e, err := c.Subscribe(soon(t), messages.Subscribe{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if ev, err := e.Next(soon(t)); err != nil || ev.Type != messages.EventTurnEnded {
		t.Errorf("%+v, %v", ev, err)
	}
}

func TestASubscriptionThatBeginsOtherwiseIsRefused(t *testing.T) {
	for _, x := range []struct {
		types []string
		end   error
		want  string
	}{
		{[]string{messages.EventTurnEnded}, nil, "subscription began with " + messages.EventTurnEnded},
		{nil, io.EOF, ErrConnectionLost.Error() + ": " + io.EOF.Error()},
		{nil, &effectrpc.Defect{Name: messages.RefusedPosition, Message: "no such position"}, "no such position"},
	} {
		interrupted := make(chan struct{})
		c, _ := serve(t, func(c *effectrpc.Call) {
			context.AfterFunc(c.Context(), func() { close(interrupted) })
			events(x.types, x.end)(c)
		})
		if _, err := c.Subscribe(soon(t), messages.Subscribe{SessionID: session}); err == nil || err.Error() != x.want {
			t.Errorf("got %v, want %s", err, x.want)
		}
		<-interrupted // the server does not keep it
	}
}

func TestASubscriptionSaysHowItEnds(t *testing.T) {
	overflow, _ := contract.EncodeError(&messages.SubscriptionOverflow{Capacity: 9})
	for _, x := range []struct{ end, want error }{
		{io.EOF, io.EOF},
		{&effectrpc.RemoteError{Body: overflow}, &messages.SubscriptionOverflow{Capacity: 9}},
		{&effectrpc.Defect{Name: messages.RefusedShutdown, Message: "bye"}, &messages.Refused{Name: messages.RefusedShutdown, Message: "bye"}},
	} {
		c, _ := serve(t, events([]string{messages.EventConnected, messages.EventTurnEnded}, x.end))
		e, err := c.Subscribe(soon(t), messages.Subscribe{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Next(soon(t)); err != nil {
			t.Error("what came before the end is lost:", err)
		}
		if _, err := e.Next(soon(t)); !reflect.DeepEqual(err, x.want) {
			t.Errorf("got %#v, want %#v", err, x.want)
		}
	}
}

func TestAnEventThatDoesNotDecodeIsAnError(t *testing.T) {
	c, _ := serve(t, func(c *effectrpc.Call) {
		values := []json.RawMessage{json.RawMessage(`{"id":"e","type":"server.connected","data":{}}`), json.RawMessage(`{"id":7}`)}
		c.Stream(func(context.Context, effectrpc.Batch) ([]json.RawMessage, error) { return values, io.EOF })
	})
	e, err := c.Subscribe(soon(t), messages.Subscribe{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if ev, err := e.Next(soon(t)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("got %+v, %v", ev, err)
	}
}

func TestTheEndOfAContextEndsTheCallAndTellsTheServer(t *testing.T) {
	arrived, told := make(chan struct{}), make(chan struct{})
	c, _ := serve(t, func(c *effectrpc.Call) {
		close(arrived)
		context.AfterFunc(c.Context(), func() {
			c.Succeed(nil)
			close(told)
		})
	})
	ctx, cancel := context.WithCancel(soon(t))
	go func() {
		<-arrived
		cancel()
	}()
	if err := c.Wait(ctx, session); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-told
	select {
	case <-c.Done():
		t.Error("the connection ended with the call")
	default:
	}
}

func TestWaitingForAnEventEndsWithItsContextAndGoesOn(t *testing.T) {
	next := make(chan struct{})
	c, _ := serve(t, func(c *effectrpc.Call) {
		n := 0
		c.Stream(func(ctx context.Context, _ effectrpc.Batch) ([]json.RawMessage, error) {
			n++
			switch n {
			case 1:
				return []json.RawMessage{json.RawMessage(`{"id":"e","type":"server.connected","data":{}}`)}, nil
			case 2:
				<-next
				return []json.RawMessage{json.RawMessage(`{"id":"e","type":"later","data":{}}`)}, io.EOF
			}
			return nil, io.EOF
		})
	})
	e, err := c.Subscribe(soon(t), messages.Subscribe{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(next)
	if ev, err := e.Next(soon(t)); err != nil || ev.Type != "later" {
		t.Errorf("%+v, %v", ev, err)
	}
}

func TestALostConnectionEndsEverything(t *testing.T) {
	calls := make(chan struct{}, 2)
	c, s := serve(t, func(c *effectrpc.Call) {
		if c.Method() == contract.EventSubscribe {
			events([]string{messages.EventConnected}, nil)(c)
			return
		}
		calls <- struct{}{} // never answered
		context.AfterFunc(c.Context(), func() { c.Succeed(nil) })
	})
	e, err := c.Subscribe(soon(t), messages.Subscribe{})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 2)
	go func() { failed <- c.Wait(soon(t), session) }()
	go func() {
		_, err := e.Next(soon(t))
		failed <- err
	}()
	<-calls
	s.Shutdown()
	// A server that goes down ends the stream first, as it may.
	for range 2 {
		if err := <-failed; !errors.Is(err, ErrConnectionLost) && !errors.Is(err, effectrpc.ErrInterrupted) {
			t.Errorf("got %v", err)
		}
	}
	<-c.Done()
	if _, err := c.Info(soon(t)); !errors.Is(err, ErrConnectionLost) {
		t.Errorf("a later call: %v", err)
	}
	if _, err := c.Subscribe(soon(t), messages.Subscribe{}); !errors.Is(err, ErrConnectionLost) {
		t.Errorf("a later subscription: %v", err)
	}
}

// behind returns a connection to an HTTP server with this handler.
func behind(t *testing.T, h http.Handler) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() {
		srv.Serve(l)
		close(served)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-served
	})
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return &counted{Conn: conn}
}

// counted remembers whether it was closed.
type counted struct {
	net.Conn
	closed atomic.Bool
}

func (c *counted) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func TestASocketIsSpokenToAndClosedInTheEnd(t *testing.T) {
	conn := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != contract.Path {
			http.NotFound(w, r)
			return
		}
		ws, err := effectrpc.Accept(w, r, effectrpc.AcceptOptions{TrustHost: true})
		if err != nil {
			return
		}
		s := effectrpc.NewServer(ws, effectrpc.ServerOptions{})
		s.Serve(context.Background(), func(c *effectrpc.Call) { c.Succeed(json.RawMessage(`{"pid":5}`)) })
	}))
	c, err := OverSocket(soon(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := c.Info(soon(t)); err != nil || info.PID != 5 {
		t.Error(info, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := conn.Write([]byte("x")); err == nil {
		t.Error("the connection is still open")
	}
}

func TestASocketWhoseServerRefusesIsClosedWithItsReason(t *testing.T) {
	conn := behind(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "going down", http.StatusServiceUnavailable)
	}))
	_, err := OverSocket(soon(t), conn)
	var status *effectrpc.StatusError
	if !errors.As(err, &status) || status.Status != http.StatusServiceUnavailable || status.Text != "going down" {
		t.Errorf("got %v", err)
	}
	if !conn.(*counted).closed.Load() {
		t.Error("the connection is still open")
	}
}

// There is one connection: what would need a second one fails and dials
// nowhere.
func TestASocketIsUsedOnce(t *testing.T) {
	conn := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		http.Redirect(w, r, "http://127.0.0.1:1/elsewhere", http.StatusFound)
	}))
	_, err := OverSocket(soon(t), conn)
	if err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("got %v", err)
	}
	if !conn.(*counted).closed.Load() {
		t.Error("the connection is still open")
	}
}

func TestAServerThatSaysNothingIsWaitedForWithinTheContext(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	go io.Copy(io.Discard, there)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := OverSocket(ctx, here); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
