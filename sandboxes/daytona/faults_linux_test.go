package daytona

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/daytona/daytonatest"
)

// sparing is a driver that does not really wait, and the waits it was asked for.
func sparing(t testing.TB) (*Driver, func() []time.Duration) {
	d := newDriver(t)
	var mu sync.Mutex
	var waits []time.Duration
	d.pause = func(ctx context.Context, w time.Duration) error {
		mu.Lock()
		waits = append(waits, w)
		mu.Unlock()
		return ctx.Err()
	}
	return d, func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(waits)
	}
}

// on is a fault for the requests of a method whose path has the end, the first
// n times; n < 0 is always.
func on(method, end string, n int, f http.HandlerFunc) daytonatest.Fault {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != method || !strings.HasSuffix(r.URL.Path, end) {
			return false
		}
		mu.Lock()
		hit := n != 0
		if n > 0 {
			n--
		}
		mu.Unlock()
		if hit {
			f(w, r)
		}
		return hit
	}
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"statusCode":%d,"message":"because of %d"}`, code, code)
	}
}

// drop breaks the connection off.
func drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Whatever the service answers is an error that says what it is, is short, and
// does not have the key.
func TestBadAnswersAreErrorsThatSaySo(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s was asked elsewhere, with %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	answers := []struct {
		name string
		with http.HandlerFunc
		says string
	}{
		{"HTML", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>Welcome to the hotel</html>")
		}, "text/html: <html>Welcome"},
		{"half JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":"x`) }, "not the JSON"},
		{"another type", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[17]`) }, "not the JSON"},
		{"nothing of it", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) }, "names none"},
		{"cut", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"id":"x"}`)
		}, "broke off"},
		{"400", status(400), "because of 400"},
		{"401", status(401), "the key is wrong"},
		{"403", status(403), "the key is wrong"},
		{"500", status(500), "because of 500"},
		{"a list of messages", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			fmt.Fprint(w, `{"message":["one","two"]}`)
		}, "one; two"},
		{"a long error", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			chunk := bytes.Repeat([]byte("long "), 1<<18)
			for range 8 {
				if _, err := w.Write(chunk); err != nil {
					return // who read enough hangs up
				}
			}
		}, "long long"},
		{"the key", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"message":"bad %s","code":"%[1]s"}`, r.Header.Get("Authorization"))
		}, "<redacted>"},
		{"the key again and again", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(400)
			fmt.Fprint(w, strings.Repeat(daytonatest.Key, 8<<10))
		}, "<redacted>"},
		{"the key where JSON should be", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, daytonatest.Key) }, "<redacted>"},
		{"a redirect to another host", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/?"+daytonatest.Key, http.StatusTemporaryRedirect)
		}, "redirects"},
		{"redirects in a circle", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		}, "redirects"},
	}
	s := newServer(t)
	d, _ := sparing(t)
	spec := specOn(s)
	r := create(t, d, spec)
	for _, a := range answers {
		s.SetFault(on("GET", "/"+r.ID, -1, a.with))
		_, inspect := d.Inspect(ctxb, spec, r)
		_, att := d.Attach(ctxb, spec, r)
		_, resolve := d.Resolve(ctxb, spec, r.ID)
		for call, err := range map[string]error{
			"inspect": inspect, "attach": att, "resolve": resolve, "wake": d.Wake(ctxb, spec, r), "stop": d.Stop(ctxb, spec, r),
		} {
			switch {
			case err == nil || !strings.Contains(err.Error(), a.says):
				t.Errorf("%s: %s: %.300v", a.name, call, err)
			case errors.Is(err, sandboxes.ErrNotFound):
				t.Errorf("%s: %s: taken for gone", a.name, call)
			case strings.Contains(err.Error(), daytonatest.Key[:12]):
				t.Errorf("%s: %s: has the key", a.name, call)
			case len(err.Error()) > 5<<10:
				t.Errorf("%s: %s: %d bytes", a.name, call, len(err.Error()))
			}
		}
	}
	s.SetFault(nil)
	if got, err := d.Inspect(ctxb, spec, r); err != nil || got != messages.SandboxOnline {
		t.Error("afterwards:", got, err)
	}
}

// Calls that change nothing are repeated, as the service asks.
func TestBusyServicesAreAskedAgain(t *testing.T) {
	s := newServer(t)
	d, waits := sparing(t)
	spec := specOn(s)
	r := create(t, d, spec)
	for _, c := range []struct {
		fault    http.HandlerFunc
		from, to time.Duration
	}{
		{status(429, "Retry-After", "7"), 7 * time.Second, 7*time.Second + firstPause},
		{status(503, "Retry-After", "0"), 0, firstPause},
		{status(500), firstPause / 2, 2 * firstPause},
		{status(502, "Retry-After", "soon"), firstPause / 2, 2 * firstPause},
	} {
		before := len(waits())
		s.SetFault(on("GET", "/"+r.ID, 1, c.fault))
		if got, err := d.Inspect(ctxb, spec, r); err != nil || got != messages.SandboxOnline {
			t.Error(got, err)
		}
		all := waits()[before:]
		if len(all) != 1 || all[0] < c.from || all[0] > c.to {
			t.Errorf("waited %v, not once %v to %v", all, c.from, c.to)
		}
	}
	s.SetFault(on("GET", "/"+r.ID, 2, drop)) // the library itself asks again at once when a kept connection breaks
	if got, err := d.Inspect(ctxb, spec, r); err != nil || got != messages.SandboxOnline {
		t.Error(got, err)
	}
	// There is an end to it, and to what one waits.
	for _, c := range []struct {
		fault http.HandlerFunc
		calls int
	}{{status(500), maxAttempts}, {status(429, "Retry-After", "3600"), 1}, {status(400), 1}, {status(401), 1}} {
		var n atomic.Int64
		s.SetFault(on("GET", "/"+r.ID, -1, func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			c.fault(w, r)
		}))
		if _, err := d.Inspect(ctxb, spec, r); err == nil || n.Load() != int64(c.calls) {
			t.Errorf("%d calls, not %d: %v", n.Load(), c.calls, err)
		}
	}
}

func TestOnlyAnAnswer404IsGone(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	spec := specOn(s)
	gone := sandboxes.Resource{ID: "missing", Dir: "/"}
	_, inspect := d.Inspect(ctxb, spec, gone)
	_, att := d.Attach(ctxb, spec, gone)
	for name, err := range map[string]error{"inspect": inspect, "attach": att, "wake": d.Wake(ctxb, spec, gone), "stop": d.Stop(ctxb, spec, gone)} {
		if !errors.Is(err, sandboxes.ErrNotFound) {
			t.Error(name, err)
		}
	}
	if err := d.Destroy(ctxb, spec, gone); err != nil {
		t.Error("destroy:", err)
	}
	wrong := spec
	wrong.Lookup = func(string) (string, bool) { return "wrong", true }
	if _, err := d.Inspect(ctxb, wrong, gone); err == nil || errors.Is(err, sandboxes.ErrNotFound) {
		t.Error(err)
	}
}

// A sandbox is created at most once, however the answer is lost.
func TestCreateIsNotRepeatedBlindly(t *testing.T) {
	s := newServer(t)
	inner := func(r *http.Request) { // does it, but the answer goes nowhere
		req, err := http.NewRequest(r.Method, s.URL()+"/sandbox", r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = r.Header.Clone()
		req.Header.Set("X-Again", "1")
		if resp, err := http.DefaultTransport.RoundTrip(req); err != nil {
			t.Error(err)
		} else {
			resp.Body.Close()
		}
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for _, c := range []struct {
		name     string
		fault    http.HandlerFunc
		made     bool
		attempts int
	}{
		{"lost answer", func(w http.ResponseWriter, r *http.Request) { inner(r); drop(w, r) }, true, 1},
		{"500 although done", func(w http.ResponseWriter, r *http.Request) { inner(r); status(500)(w, r) }, true, 1},
		{"HTML although done", func(w http.ResponseWriter, r *http.Request) { inner(r); fmt.Fprint(w, "<html>") }, true, 1},
		{"lost before", drop, false, 1},
		{"500", status(500), false, 1},
		{"402", status(402), false, 1},
		{"busy", status(429, "Retry-After", "1"), true, 2},
	} {
		d, _ := sparing(t)
		spec := specOn(s)
		before := len(s.Records())
		var posts atomic.Int64
		fault := on("POST", "/sandbox", 1, c.fault)
		s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("X-Again") != "" {
				return false
			}
			if r.Method == "POST" {
				posts.Add(1)
			}
			return fault(w, r)
		})
		r, err := d.Create(ctxb, spec)
		s.SetFault(nil)
		if (err == nil) != c.made || len(s.Records())-before != map[bool]int{true: 1}[c.made] || posts.Load() != int64(c.attempts) {
			t.Errorf("%s: %v, %d made, %d calls", c.name, err, len(s.Records())-before, posts.Load())
		}
		if c.made {
			if err := d.Destroy(ctxb, spec, r); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAFailedCreationLeavesNothing(t *testing.T) {
	s := newServer(t)
	d, _ := sparing(t)
	for name, fault := range map[string]daytonatest.Fault{
		"does not start": func(w http.ResponseWriter, r *http.Request) bool {
			for _, b := range s.Records() {
				s.SetState(b.ID, "build_failed")
			}
			return false
		},
		"no folder": on("GET", "/work-dir", -1, status(400)),
		"bad tools": on("GET", "/work-dir", -1, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"dir":"relative"}`) }),
	} {
		s.SetFault(fault)
		if _, err := d.Create(ctxb, specOn(s)); err == nil {
			t.Error(name, "did not fail")
		}
		if all := s.Records(); len(all) > 0 {
			t.Error(name, all)
		}
	}
	// Given up on the way.
	ctx, cancel := context.WithCancel(ctxb)
	s.SetFault(on("GET", "", 1, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	if _, err := d.Create(ctx, specOn(s)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if all := s.Records(); len(all) > 0 {
		t.Error("given up:", all)
	}
}

func TestStatesAndWhatTheyMean(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	spec := specOn(s)
	r := create(t, d, spec)
	for state, want := range map[string]messages.SandboxStatus{
		"started": messages.SandboxOnline, "stopped": messages.SandboxOffline, "archived": messages.SandboxOffline,
		"starting": messages.SandboxOffline, "error": messages.SandboxFaulted, "build_failed": messages.SandboxFaulted,
		"unknown": messages.SandboxFaulted, "": messages.SandboxFaulted, "Started": messages.SandboxFaulted, "a new word": messages.SandboxFaulted,
	} {
		s.SetState(r.ID, state)
		if got, err := d.Inspect(ctxb, spec, r); err != nil || got != want {
			t.Errorf("%q: %q %v", state, got, err)
		}
	}
	for _, state := range []string{"destroyed", "destroying"} {
		s.SetState(r.ID, state)
		if _, err := d.Inspect(ctxb, spec, r); !errors.Is(err, sandboxes.ErrNotFound) {
			t.Error(state, err)
		}
	}
	s.SetState(r.ID, "error")
	if _, err := d.Attach(ctxb, spec, r); err == nil {
		t.Error("attached to a broken one")
	}
	if err := d.Wake(ctxb, spec, r); err == nil || errors.Is(err, sandboxes.ErrNotFound) {
		t.Error("woke a broken one:", err)
	}
}

// A stream that breaks is an error, never a result, and what ran is dead.
func TestBrokenStreamsAreNoResults(t *testing.T) {
	half := []byte("\x01\x01\x01half")
	for name, c := range map[string]struct {
		fault daytonatest.Fault
		idle  time.Duration
		says  string
	}{
		"refused": {on("GET", "/logs", -1, status(500)), 0, "because of 500"},
		"cut":     {on("GET", "/logs", -1, daytonatest.Streamed(half, daytonatest.Cut)), 0, errCutOff.Error()},
		"ended":   {on("GET", "/logs", -1, daytonatest.Streamed(half, daytonatest.Orderly)), 0, errCutOff.Error()},
		"silent after its end": {both(on("GET", "/logs", -1, daytonatest.Streamed(half, daytonatest.Silent)),
			onRecord(`{"id":"x","command":"x","exitCode":0}`)), 100 * time.Millisecond, errIdle.Error()},
		"not started": {on("POST", "/exec", -1, status(500)), 0, "because of 500"},
		"unnamed":     {on("POST", "/exec", -1, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }), 0, "names no command"},
		"no session":  {on("POST", "/session", -1, status(409)), 0, "because of 409"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			d, _ := sparing(t)
			if c.idle > 0 {
				d.idle = c.idle
			}
			spec := specOn(s)
			sb := attach(t, d, spec, create(t, d, spec))
			m := mountIn(t, sb)
			s.SetFault(c.fault)
			_, exit, err := run(t, m, sandboxes.Command{Script: "sleep 600"})
			s.SetFault(nil)
			if !isShellError(err) || !strings.Contains(err.Error(), c.says) || exit.Code != -1 {
				t.Errorf("%+v %v", exit, err)
			}
			noProcesses(t, m)
			sb.aside.Wait()
			if n := s.Sessions(); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

// A command may be silent for as long as it runs.
func TestASilentCommandIsNotLost(t *testing.T) {
	s := newServer(t)
	d := newDriver(t)
	d.idle = 40 * time.Millisecond
	spec := specOn(s)
	m := mountIn(t, attach(t, d, spec, create(t, d, spec)))
	out, exit, err := run(t, m, sandboxes.Command{Script: "sleep 0.5; echo done; exit 3"})
	if err != nil || exit.Code != 3 || out != "done\n" {
		t.Errorf("%q %+v %v", out, exit, err)
	}
}

// A script that was killed from inside says nothing, but Daytona knows that it
// ended.
func TestAKilledScriptHasTheCodeOfItsRecord(t *testing.T) {
	_, m := newMount(t)
	_, exit, err := run(t, m, sandboxes.Command{Script: "kill -KILL $PPID"})
	if err != nil || exit.Code != 128+9 {
		t.Errorf("%+v %v", exit, err)
	}
	noProcesses(t, m)
}

// noProcesses wants nothing of the mount's commands to run.
func noProcesses(t *testing.T, m *mount) {
	t.Helper()
	reply, err := m.script(ctxb, mayTry, `grep -lsF "$1" /proc/[0-9]*/environ; exit 0`, m.mark)
	if err != nil || len(reply) > 0 {
		t.Errorf("still running: %q %v", reply, err)
	}
}

func both(a, b daytonatest.Fault) daytonatest.Fault {
	return func(w http.ResponseWriter, r *http.Request) bool { return a(w, r) || b(w, r) }
}

// onRecord answers for the records of commands.
func onRecord(body string) daytonatest.Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		parts := strings.Split(r.URL.Path, "/")
		if r.Method != "GET" || len(parts) < 2 || parts[len(parts)-2] != "command" {
			return false
		}
		fmt.Fprint(w, body)
		return true
	}
}

// Nothing of what is logged has the key.
func TestTheKeyIsNotLogged(t *testing.T) {
	var mu sync.Mutex
	var buf bytes.Buffer
	s := newServer(t)
	d := newDriver(t)
	d.pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	d.log = slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(b)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	spec := specOn(s)
	sb := attach(t, d, spec, create(t, d, spec))
	m := mountIn(t, sb)
	echo := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		fmt.Fprint(w, r.Header.Get("Authorization"))
	}
	s.SetFault(both(on("GET", "/logs", -1, echo), both(on("DELETE", "", -1, echo), on("POST", "/execute", -1, echo))))
	_, _, err := run(t, m, sandboxes.Command{Script: "true", Full: "full"})
	if err == nil || strings.Contains(err.Error(), daytonatest.Key) {
		t.Error(err)
	}
	sb.aside.Wait()
	s.SetFault(nil)
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(buf.String(), "redacted") || strings.Contains(buf.String(), daytonatest.Key) {
		t.Error(buf.String())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// A peer that does not answer holds nobody who gives up.
func TestCancelReturnsAlthoughTheServiceIsSilent(t *testing.T) {
	s, m := newMount(t)
	release := make(chan struct{})
	s.SetFault(func(http.ResponseWriter, *http.Request) bool {
		<-release
		return true
	})
	defer func() {
		s.SetFault(nil)
		close(release)
	}()
	for name, call := range map[string]func(context.Context) error{
		"read": func(ctx context.Context) error { _, err := m.Read(ctx, "x", 0, -1); return err },
		"lock": func(ctx context.Context) error { _, err := m.Lock(ctx, "x"); return err },
		"run": func(ctx context.Context) error {
			_, err := m.Run(ctx, sandboxes.Command{Script: "true"})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(ctxb, 50*time.Millisecond)
		start := time.Now()
		err := call(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > endLimit+time.Second {
			t.Errorf("%s: %v after %v", name, err, time.Since(start))
		}
	}
}
