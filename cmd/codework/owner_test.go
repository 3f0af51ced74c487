//go:build linux

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"codework/actors"
	"codework/internal/home"
	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

func TestIdleExitIsADuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"": defaultIdleExit, "0": 0, "0s": 0, "250ms": 250 * time.Millisecond, "1h": time.Hour} {
		t.Setenv("CODEWORK_IDLE_EXIT", text)
		if got, err := idleExit(); err != nil || got != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"5", "-1s", "soon", " 5s"} {
		t.Setenv("CODEWORK_IDLE_EXIT", text)
		if got, err := idleExit(); err == nil || !strings.Contains(err.Error(), "CODEWORK_IDLE_EXIT") {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	os.Unsetenv("CODEWORK_IDLE_EXIT")
	if got, err := idleExit(); err != nil || got != defaultIdleExit {
		t.Error(got, err)
	}
}

// tree stands for the actors of an owner.
type tree struct {
	takeover, failed chan struct{}
	refuse           *atomic.Int64 // how often an end of admission is refused
}

func (t tree) Takeover() <-chan struct{} { return t.takeover }
func (t tree) Failed() <-chan struct{}   { return t.failed }

func (t tree) CloseIfIdle(context.Context) (bool, error) { return t.refuse.Add(-1) < 0, nil }

// owning runs untilIdle in a bubble of its own time and returns how long it
// took.
func owning(t *testing.T, grace time.Duration, play func(tr tree, d *door, loads chan<- actors.Load, stop func())) (took time.Duration, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tr := tree{make(chan struct{}), make(chan struct{}), new(atomic.Int64)}
		loads := make(chan actors.Load, 64)
		var d door
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		start := time.Now()
		done := make(chan struct{})
		go func() {
			err = untilIdle(ctx, tr, &d, loads, grace)
			took = time.Since(start)
			close(done)
		}()
		play(tr, &d, loads, stop)
		<-done
		if d.closed.Load() && d.inside.Load() > 0 {
			t.Error("somebody was shut in")
		}
	})
	return took, err
}

func TestAnOwnerWithoutWorkEnds(t *testing.T) {
	const s = time.Second
	client, busy, nobody := actors.Load{Clients: 1}, actors.Load{Busy: 1, Loaded: 1}, actors.Load{Loaded: 1}
	for _, c := range []struct {
		name  string
		grace time.Duration
		play  func(tr tree, d *door, loads chan<- actors.Load, stop func())
		want  time.Duration
	}{
		{"nobody ever comes", 0, func(tree, *door, chan<- actors.Load, func()) {}, firstClient},
		{"nobody ever comes, long grace", 9 * s, func(tree, *door, chan<- actors.Load, func()) {}, 9 * s},
		{"its client leaves", 5 * s, func(_ tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- client
			time.Sleep(60 * s)
			l <- nobody
		}, 65 * s},
		{"at once, without grace", 0, func(_ tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- client
			time.Sleep(s)
			l <- nobody
		}, s},
		{"work outlives its client", 5 * s, func(_ tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- client
			l <- actors.Load{Clients: 1, Busy: 1}
			time.Sleep(s)
			l <- busy
			time.Sleep(600 * s)
			l <- nobody
		}, 606 * s},
		{"a client comes back in time", 5 * s, func(_ tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- nobody
			time.Sleep(4 * s)
			l <- client
			time.Sleep(10 * s)
			l <- nobody
		}, 19 * s},
		{"somebody is in the door", 2 * s, func(_ tree, d *door, l chan<- actors.Load, _ func()) {
			l <- nobody
			time.Sleep(s)
			d.inside.Add(1)
			time.Sleep(2 * s) // the grace is over
			if d.closed.Load() {
				panic("the door stayed closed")
			}
			d.inside.Add(-1)
		}, 2*s + firstClient},
		{"a signal", 5 * s, func(_ tree, _ *door, l chan<- actors.Load, stop func()) {
			l <- busy
			time.Sleep(s)
			stop()
		}, s},
		{"handed over, idle", 5 * s, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- client
			time.Sleep(s)
			close(tr.takeover)
		}, s},
		{"handed over, busy", 5 * s, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- actors.Load{Clients: 1, Busy: 2}
			time.Sleep(s)
			close(tr.takeover)
			l <- actors.Load{Clients: 1, Busy: 1}
			time.Sleep(30 * s)
			l <- client // it reads how the work ended
		}, 31*s + partingTime},
		{"handed over, busy, its client leaves", 5 * s, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- actors.Load{Clients: 1, Busy: 1}
			time.Sleep(s)
			close(tr.takeover)
			time.Sleep(30 * s)
			l <- client
			time.Sleep(partingTime / 2)
			l <- nobody
		}, 31*s + partingTime/2},
		{"handed over, busy again", 5 * s, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- actors.Load{Clients: 1, Busy: 1}
			close(tr.takeover)
			time.Sleep(s)
			l <- client
			time.Sleep(partingTime / 2)
			l <- actors.Load{Clients: 1, Busy: 1}
			time.Sleep(10 * s)
			l <- nobody
		}, 11*s + partingTime/2},
		{"handed over, but somebody has come", 5 * s, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- client
			time.Sleep(s)
			tr.refuse.Store(3) // before their load is told
			close(tr.takeover)
			time.Sleep(tryAgain * 3 / 2)
			l <- actors.Load{Clients: 1, Busy: 1}
			time.Sleep(30 * s)
			l <- nobody // refused once more
		}, 31*s + tryAgain*3/2 + tryAgain},
		{"handed over while an editor looks around", 5 * s, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- client
			time.Sleep(s)
			tr.refuse.Store(2)
			close(tr.takeover)
		}, s + 2*tryAgain},
		{"its client has left work behind", s, func(tr tree, d *door, l chan<- actors.Load, _ func()) {
			l <- client
			tr.refuse.Store(1)
			l <- nobody
			time.Sleep(2 * s)
			if d.closed.Load() {
				panic("the door stayed closed")
			}
			l <- busy
			time.Sleep(30 * s)
			l <- nobody
		}, 33 * s},
		{"handed over in the moment work begins", 5 * s, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
			l <- busy
			close(tr.takeover) // perhaps heard first
			time.Sleep(s)
			l <- nobody
		}, s},
	} {
		took, err := owning(t, c.grace, c.play)
		if took != c.want || err != nil {
			t.Errorf("%s: ended after %s, want %s; %v", c.name, took, c.want, err)
		}
	}
}

func TestAnOwnerWhoseActorsFailedEndsWithAnError(t *testing.T) {
	took, err := owning(t, time.Second, func(tr tree, _ *door, l chan<- actors.Load, _ func()) {
		l <- actors.Load{Clients: 1, Busy: 1}
		time.Sleep(time.Minute)
		close(tr.failed)
	})
	if took != time.Minute || err == nil {
		t.Error(took, err)
	}
}

func TestAClosedDoorAnswersThatItIsGoingDown(t *testing.T) {
	var d door
	in := make(chan struct{})
	out := make(chan struct{})
	h := d.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(in)
		<-out
	}))
	ask := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Code
	}
	first := make(chan int, 1)
	go func() { first <- ask() }()
	<-in
	if d.closeIfEmpty() {
		t.Error("closed with somebody inside")
	}
	if d.closed.Load() {
		t.Error("the door stayed closed")
	}
	close(out)
	if code := <-first; code != http.StatusOK {
		t.Error(code)
	}
	if !d.closeIfEmpty() {
		t.Error("nobody is inside")
	}
	if code := ask(); code != http.StatusServiceUnavailable {
		t.Error(code)
	}
}

func TestABuildTakesThePlaceOfAnOlderOne(t *testing.T) {
	was := version
	t.Cleanup(func() { version = was })
	for _, c := range []struct {
		own, running string
		want         bool
	}{
		{"1.2.0", "1.1.9", true}, {"v1.2.0", "1.1.9", true}, {"1.2.0", "v1.2.0", false}, {"1.1.9", "1.2.0", false},
		{"1.10.0", "1.9.0", true}, {"1.2.0", "1.2.0-rc.1", true}, {devVersion, "9.0.0", true}, {"1.0.0", devVersion, true},
		{"1.0.0", "", true}, {"1.0.0", "nonsense", true},
	} {
		version = c.own
		if got := replaces(c.running); got != c.want {
			t.Errorf("%s in place of %q: %v", c.own, c.running, got)
		}
	}
}

func TestAnOwnerGetsOnlyWhatItNeedsOfTheEnvironment(t *testing.T) {
	t.Setenv("SECRET_KEY", "x")
	t.Setenv("OPENAI_API_KEY", "x")
	t.Setenv("TZ", "UTC")
	t.Setenv("CODEWORK_IDLE_EXIT", "1s")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
	for _, kv := range ownerEnvironment() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.Contains(name, "KEY") || !slices.Contains(ownerVariables, name) && !strings.HasPrefix(name, "OTEL_") {
			t.Errorf("passes on %s", name)
		}
	}
	for _, want := range []string{"TZ=UTC", "CODEWORK_IDLE_EXIT=1s", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"} {
		if env := ownerEnvironment(); !slices.Contains(env, want) {
			t.Errorf("%s is missing: %v", want, env)
		}
	}
}

// An owner traces if its own environment asks for it, and only then.
func TestAnOwnerTracesOnlyIfAsked(t *testing.T) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for _, asked := range []bool{false, true} {
		if asked {
			t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
		}
		p, err := (&global{home: t.TempDir(), database: home.InMemory}).paths()
		if err != nil {
			t.Fatal(err)
		}
		o, err := own(t.Context(), p, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		if traces := o.traces != nil; traces != asked {
			t.Errorf("asked: %v, traces: %v", asked, traces)
		}
		if _, made := otel.GetTracerProvider().(*sdktrace.TracerProvider); made {
			t.Error("the whole process got a provider")
		}
		if err := o.close(); err != nil {
			t.Error(err)
		}
		o.traces.Close()
	}
}

func TestTheHelloTellsTheCallersWorld(t *testing.T) {
	t.Setenv("ODD", "a=b\xff")
	dir := t.TempDir()
	t.Chdir(dir)
	h, err := (&global{configDir: "conf"}).hello()
	if err != nil {
		t.Fatal(err)
	}
	if h.Cwd != dir || h.UserConfigDir != dir+"/conf" || h.Env["ODD"] != "a=b\uFFFD" || h.Protocol != contract.Version ||
		h.Build == "" || h.Version != version || h.MountNamespace == "" || h.Umask < 0 {
		t.Errorf("got %+v", h)
	}
	if again := umask(); again != h.Umask {
		t.Errorf("asking changed the mask: %o, then %o", h.Umask, again)
	}
}

// ownerOf is the home of an owner that answers the hello with answer.
func ownerOf(t *testing.T, h http.Handler) home.Paths {
	t.Helper()
	dir, err := os.MkdirTemp("", "cw") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p, err := home.Resolve(dir, "", func(string) (string, bool) { return "", false })
	if err == nil {
		err = p.Prepare()
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.Listen()
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l) // ends with Close
	}()
	t.Cleanup(func() {
		srv.Close()
		<-served
	})
	return p
}

func rpc(handle func(*effectrpc.Call)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := effectrpc.Accept(w, r, effectrpc.AcceptOptions{TrustHost: true})
		if err != nil {
			return
		}
		_ = effectrpc.NewServer(conn, effectrpc.ServerOptions{}).Serve(context.Background(), handle)
	})
}

func TestGreetingAnOwner(t *testing.T) {
	was := version
	t.Cleanup(func() { version = was })
	version = "2.0.0"
	info := func(change func(*messages.ServerInfo)) func(*effectrpc.Call) {
		i := messages.ServerInfo{Name: "codework", Version: "1.0.0", Build: "other", Protocol: contract.Version}
		change(&i)
		return func(c *effectrpc.Call) {
			if c.Method() == contract.ServerHandover {
				c.Succeed(encode(t, messages.Handover{}))
				return
			}
			c.Succeed(encode(t, i))
		}
	}
	var wrong *messages.WrongWorld
	for _, c := range []struct {
		name  string
		owner http.Handler
		check func(error) bool
	}{
		{"the same build", rpc(info(func(i *messages.ServerInfo) { i.Build = "mine" })), func(err error) bool { return err == nil }},
		{"an older build without work", rpc(info(func(*messages.ServerInfo) {})), func(err error) bool { return errors.Is(err, home.ErrNobody) }},
		{"an older build with work", rpc(info(func(i *messages.ServerInfo) { i.Sessions.Busy = 1 })), func(err error) bool { return err == nil }},
		{"a newer build", rpc(info(func(i *messages.ServerInfo) { i.Version = "3.0.0" })), func(err error) bool { return err == nil }},
		{"another protocol, with work", rpc(info(func(i *messages.ServerInfo) { i.Sessions.Busy, i.Protocol = 1, 99 })),
			func(err error) bool {
				var p *problem
				return errors.As(err, &p) && strings.Contains(p.hint, "wait for it")
			}},
		{"another protocol, newer", rpc(info(func(i *messages.ServerInfo) { i.Version, i.Protocol = "3.0.0", 99 })),
			func(err error) bool {
				var p *problem
				return errors.As(err, &p) && strings.Contains(p.hint, "update")
			}},
		{"another world", rpc(func(c *effectrpc.Call) {
			b, _ := contract.EncodeError(&messages.WrongWorld{Reason: "elsewhere"})
			c.Fail(b)
		}), func(err error) bool { return errors.As(err, &wrong) }},
		{"going down", rpc(func(c *effectrpc.Call) { c.Die(&effectrpc.Defect{Name: messages.RefusedShutdown, Message: "bye"}) }),
			func(err error) bool { return errors.Is(err, home.ErrNobody) }},
		{"closed", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "going down", http.StatusServiceUnavailable)
		}),
			func(err error) bool { return errors.Is(err, home.ErrNobody) }},
		{"something else", http.NotFoundHandler(), func(err error) bool {
			var status *effectrpc.StatusError
			return errors.As(err, &status)
		}},
		{"gone", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
			func(err error) bool { return errors.Is(err, home.ErrNobody) }},
	} {
		p := ownerOf(t, c.owner)
		conn, err := p.Dial(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		cl, err := greet(soon(t), conn, messages.Hello{Build: "mine", Version: version, Env: map[string]string{}})
		if !c.check(err) || (cl == nil) == (err == nil) {
			t.Errorf("%s: %v, %v", c.name, cl, err)
		}
		if cl != nil {
			cl.Close()
		}
	}
}

func TestAnOwnerServesUntilItsDoorIsClosed(t *testing.T) {
	var d door
	p := ownerOf(t, d.guard(rpc(func(c *effectrpc.Call) { c.Succeed(nil) })))
	if !serves(soon(t), p) {
		t.Error("does not serve")
	}
	d.closed.Store(true)
	if serves(soon(t), p) {
		t.Error("serves behind a closed door")
	}
	if err := p.Remove(); err != nil {
		t.Fatal(err)
	}
	if serves(soon(t), p) {
		t.Error("serves without a socket")
	}
}

func TestConnectionProblemsNameTheWayOut(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := home.Paths{Home: "/h", Log: log}
	stopping, cancel := context.WithCancelCause(context.Background())
	cancel(stopped{130})
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want string
		code int
	}{
		{soon(t), &messages.WrongWorld{Reason: "in use elsewhere"}, "error[connection]: in use elsewhere\nhint: use another --home here\n", 1},
		{soon(t), &home.HeldError{Path: "/d", Holder: home.Holder{PID: 7, Host: "box"}},
			"error[connection]: in use by process 7 on box: /d\nhint: wait until it is done, leave out --embedded, or use another --home\n", 1},
		{soon(t), client.ErrConnectionLost, "error[connection]: connection lost\nhome: /h\nlog: " + log + "\n", 1},
		{soon(t), &problem{slug: "x", err: errors.New("done")}, "error[x]: done\n", 1},
		{stopping, errors.New("whatever"), "", 130},
	} {
		var b strings.Builder
		if code := report(&b, connectProblem(c.ctx, c.err, p)); code != c.code || b.String() != c.want {
			t.Errorf("%v: code %d\n%s", c.err, code, b.String())
		}
	}
}
