package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codework/integration/mockmodel"
)

// kill ends the server as a crash would.
func (s *server) kill(t *testing.T) {
	t.Helper()
	s.ended = true
	_ = s.proc.cmd.Process.Kill()
	if code, err := s.proc.finish(endLimit); code != 137 || err != nil {
		t.Fatalf("killed: exit code %d, %v", code, err)
	}
}

// logOf returns a session's recorded events.
func logOf(t *testing.T, c *wire, id string) []event {
	t.Helper()
	var h struct{ Seq int64 }
	if err := json.Unmarshal(c.call("session.history", o{"sessionId": id, "limit": 1}), &h); err != nil {
		t.Fatal(err)
	}
	st := c.subscribe(o{"sessionId": id, "after": o{id: 0}})
	events := st.to(t, "end of the log", func(e event) bool { return e.seq() >= h.Seq })
	st.interrupt()
	st.wait(t)
	return events
}

// A server that is told to stop ends its work in words, closes its connections
// as one that goes away, leaves nothing running, and what it knew is there
// when it comes again.
func TestServerStopsInGoodOrder(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	s := w.serveHere(t, nil)
	c := s.dial(t)
	s.answers(t, "text", mockmodel.Answer{mockmodel.Text{Text: "Half"}, mockmodel.Hold{Name: "text"}}, mockmodel.Answer{mockmodel.Text{Text: "again"}})
	s.answers(t, "call", mockmodel.Answer{mockmodel.Call{ID: "a", Name: "bash", Args: `{"command":"sleep 601 & echo up; sleep 602"}`}},
		mockmodel.Answer{mockmodel.Text{Text: "again"}})
	watch := c.subscribe(o{})
	inText, inCall := c.create(o{}), c.create(o{})
	c.prompt(inText, "script=text")
	c.prompt(inCall, "script=call")
	s.reached(t, "text")
	watch.to(t, "command", func(e event) bool { return e.Type == "session.tool.progress" })
	c.call("session.prompt", o{"sessionId": inText, "text": "later", "delivery": "followUp", "id": "later"})
	other := s.dial(t)
	wait := other.begin("session.wait", o{"sessionId": inText})
	exec := other.begin("sandbox.exec", o{"sandboxId": "local", "argv": []string{"sh", "-c", "echo up; sleep 603"}}).stream
	if _, _, err := exec.value(callLimit); err != nil {
		t.Fatal(err)
	}
	silent := s.dial(t)
	silent.subscribe(o{}).stall(true)

	begin := time.Now()
	s.stop(t)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the stop took %s", took)
	}
	for i, d := range []*wire{c, other, silent} {
		if code := d.code(); code != websocket.StatusGoingAway {
			t.Errorf("connection %d was closed with %d: %v", i, code, d.why)
		}
	}
	if a := wait.wait(t); a.kind == "Die" && at(a.body, "name") != "ShutdownError" {
		t.Errorf("who waited was told %s", a)
	}
	if err := w.nothingRuns(5 * time.Second); err != nil {
		t.Error(err)
	}
	if what := w.locked(); what != "" {
		t.Error(what)
	}
	if _, err := net.Dial("unix", filepath.Join(w.home, "run", "home.sock")); err == nil {
		t.Error("somebody answers on the socket")
	}
	// Those who listened heard how it ended.
	heard := map[string]string{}
	for {
		e, err := watch.next(callLimit)
		if err != nil {
			break
		}
		if terminal(e.Type) {
			heard[e.session()] = at(e.Data, "reason")
		}
	}

	s = w.serveHere(t, nil)
	c = s.dial(t)
	for _, id := range []string{inText, inCall} {
		if heard[id] != "shutdown" {
			t.Errorf("the subscriber heard of the end of %s: %q", id, heard[id])
		}
		events := logOf(t, c, id)
		last := events[len(events)-1]
		if last.Type != "session.execution.interrupted" || at(last.Data, "reason") != "shutdown" || at(last.Data, "recovered") != "" {
			t.Errorf("the log ends with %s", last.raw)
		}
		inOrder(t, withTurns(events))
	}
	if settled := one(t, logOf(t, c, inCall), "session.tool.settled"); at(settled.Data, "part", "state") != "aborted" {
		t.Errorf("the call that ran is %s", settled.raw)
	}
	// What waited waits: a person may have stopped the server to stop it.
	if got := c.call("session.queue", o{"sessionId": inText}); at(got, "queued", "0", "id") != "later" {
		t.Errorf("the queue is %s", got)
	}
	c.idle(inText)
	c.call("session.queue", o{"sessionId": inText, "clear": true})
	for _, id := range []string{inText, inCall} {
		c.prompt(id, "go on")
		c.idle(id)
		events := logOf(t, c, id)
		if last := events[len(events)-1]; last.Type != "session.execution.succeeded" {
			t.Errorf("the next prompt ended with %s", last.raw)
		}
	}
}

// withTurns adds the live events that a log lacks, so that it can be held
// against the same rules: a message begins a turn, and what follows a failed
// one ends it.
func withTurns(events []event) []event {
	var out []event
	turn := false
	for i, e := range events {
		switch {
		case e.Type == "session.llm.started":
			out = append(out, event{ID: fmt.Sprint("turn", i), Type: "session.turn.started", Data: e.Data})
			turn = true
		case e.Type == "session.turn.ended":
			turn = false
		}
		out = append(out, e)
		if e.Type == "session.llm.failed" && turn {
			out = append(out, event{ID: fmt.Sprint("aborted", i), Type: "session.turn.aborted", Data: e.Data})
			turn = false
		}
	}
	return out
}

// The second signal ends the server at once, whatever still runs; that ends
// too.
func TestServerEndsAtOnceOnASecondSignal(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	s := w.serveHere(t, nil)
	c := s.dial(t)
	s.answers(t, "stubborn", mockmodel.Answer{mockmodel.Call{ID: "a", Name: "bash", Args: `{"command":"trap '' TERM INT HUP; echo up; while :; do sleep 604; done"}`}},
		mockmodel.Answer{mockmodel.Text{Text: "again"}})
	watch := c.subscribe(o{})
	id := c.create(o{})
	c.prompt(id, "script=stubborn")
	watch.to(t, "command", func(e event) bool { return e.Type == "session.tool.progress" })
	s.ended = true
	_ = s.proc.cmd.Process.Signal(syscall.SIGTERM)
	if err := until(endLimit, func() string {
		select {
		case <-s.proc.done:
			return ""
		default:
		}
		if conn, err := net.Dial("tcp", s.addr); err == nil {
			conn.Close()
			if resp, _ := knock(t, s.addr, upgrade("/rpc/v1", s.addr)); resp.StatusCode == 101 {
				return "the server still lets clients in"
			}
		}
		return ""
	}); err != nil {
		t.Fatal(err)
	}
	_ = s.proc.cmd.Process.Signal(syscall.SIGTERM)
	begin := time.Now()
	code, err := s.proc.finish(endLimit)
	if err != nil || code != 143 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the second signal took %s", took)
	}
	if err := w.nothingRuns(leftLimit); err != nil {
		t.Error(err)
	}
	s = w.serveHere(t, nil)
	c = s.dial(t)
	c.prompt(id, "go on")
	c.idle(id)
	if events := logOf(t, c, id); events[len(events)-1].Type != "session.execution.succeeded" {
		t.Errorf("after it the next prompt ended with %s", events[len(events)-1].raw)
	}
}

// A port that is taken, and a home that is, are said at once and harm nobody.
func TestServerRefusesToShareItsPlace(t *testing.T) {
	t.Parallel()
	first := newServer(t)
	c := first.dial(t)
	refused := func(w *world, says string, args ...string) {
		t.Helper()
		s := w.beginServe(t, nil, args...)
		s.ended = true
		code, err := s.proc.finish(endLimit)
		if text := s.proc.err.String(); code != 1 || err != nil || !strings.Contains(text, says) || s.proc.out.String() != "" {
			t.Errorf("serve %v: exit code %d, %v, %s%s", args, code, err, s.proc.out.String(), text)
		}
	}
	_, port, err := net.SplitHostPort(first.addr)
	if err != nil {
		t.Fatal(err)
	}
	refused(newServerWorld(t), "in use", "--port", port)
	for range 2 {
		refused(first.world, fmt.Sprint("process ", first.proc.cmd.Process.Pid))
	}
	c.idle(c.create(o{}))
	c.pong()
	first.dial(t).pong()
}

// quietModel waits until the model has noticed that nobody listens any more:
// what stands at a hold after that is a new request.
func quietModel(t *testing.T, w *world) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), endLimit)
	defer cancel()
	if err := w.model.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
}

// With --resume what waits is begun when the server comes again, but not for
// ever when that is what kills it.
func TestServerResumesWhatWaits(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	s := w.serveHere(t, nil)
	c := s.dial(t)
	const queued = 6
	var script []mockmodel.Answer
	for range 3 {
		script = append(script, mockmodel.Answer{mockmodel.Text{Text: "x"}, mockmodel.Hold{Name: "resume"}})
	}
	ok := mockmodel.Answer{mockmodel.Text{Text: "ok"}}
	script = append(script, ok, ok, ok, ok, ok)
	s.answers(t, "resume", script...)
	id := c.create(o{})
	c.prompt(id, "script=resume")
	s.reached(t, "resume")
	for i := range queued {
		c.call("session.prompt", o{"sessionId": id, "text": fmt.Sprint("number ", i), "delivery": "followUp", "id": fmt.Sprint("n", i)})
	}
	waiting := func() int {
		t.Helper()
		var q struct{ Queued []json.RawMessage }
		if err := json.Unmarshal(c.call("session.queue", o{"sessionId": id}), &q); err != nil {
			t.Fatal(err)
		}
		return len(q.Queued)
	}
	s.kill(t)
	quietModel(t, w)

	// Without the flag nothing begins.
	s = w.serveHere(t, nil)
	c = s.dial(t)
	if n := waiting(); n != queued {
		t.Errorf("%d prompts wait, %d were admitted", n, queued)
	}
	c.idle(id)
	events := logOf(t, c, id)
	if last := events[len(events)-1]; last.Type != "session.prompt.admitted" && (last.Type != "session.execution.failed" || at(last.Data, "error", "type") != "internal-error" || at(last.Data, "recovered") != "true") {
		t.Errorf("what the crash ended is told as %s", last.raw)
	}
	if n := len(s.model.Requests()); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
	s.stop(t)

	for crash := 2; crash <= 3; crash++ {
		s = w.serveHere(t, nil, "--resume")
		s.reached(t, "resume")
		// What a request is made of may reach the disk behind it: then the prompt
		// would wait again behind the kill, and be asked once more.
		c := s.dial(t)
		if err := until(endLimit, func() string {
			if events := logOf(t, c, id); events[len(events)-1].Type != "session.llm.started" {
				return "the log ends with " + string(events[len(events)-1].raw)
			}
			return ""
		}); err != nil {
			t.Fatal(err)
		}
		s.kill(t)
		quietModel(t, w)
	}
	s = w.serveHere(t, nil, "--resume")
	c = s.dial(t)
	var last event
	if err := until(endLimit, func() string {
		events := logOf(t, c, id)
		last = events[len(events)-1]
		if at(last.Data, "error", "type") != "crash-loop-error" {
			return "the log ends with " + string(last.raw)
		}
		return ""
	}); err != nil {
		t.Fatal(err)
	}
	if n := waiting(); n != queued-2 {
		t.Errorf("%d prompts wait", n)
	}
	if n := len(s.model.Requests()); n != 3 {
		t.Errorf("the model was asked %d times", n)
	}
	// A person who prompts begins it again.
	c.prompt(id, "go on")
	c.idle(id)
	if n := waiting(); n != 0 {
		t.Errorf("%d prompts still wait", n)
	}
	events = logOf(t, c, id)
	if last := events[len(events)-1]; last.Type != "session.execution.succeeded" {
		t.Errorf("it ended with %s", last.raw)
	}
	var promoted []string
	for _, e := range events {
		if e.Type == "session.prompt.promoted" {
			promoted = append(promoted, at(e.Data, "messageId"))
		}
	}
	slices.Sort(promoted)
	if n := len(slices.Compact(promoted)); n != queued+2 || len(promoted) != n {
		t.Errorf("promoted: %v", promoted)
	}
	inOrder(t, withTurns(events))
}

// A server takes the place of the home process that is there: at once when it
// has nothing to do, otherwise when its work is done, of which nothing is lost.
func TestServerTakesOverFromAHomeProcess(t *testing.T) {
	t.Parallel()
	t.Run("idle", func(t *testing.T) {
		w := newServerWorld(t)
		if err := w.model.SetScript("default", mockmodel.Script{{mockmodel.Text{Text: "one"}}}); err != nil {
			t.Fatal(err)
		}
		env := append(w.environment(), "TMPDIR="+w.dir, "CODEWORK_IDLE_EXIT=10m")
		p, err := launch(start{dir: w.dir, argv0: w.program, args: []string{"run", "hello"}, env: env})
		if err != nil {
			t.Fatal(err)
		}
		w.ended(t, p).must(t, "one")
		if n := len(w.homeProcesses()); n != 1 {
			t.Fatalf("%d home processes", n)
		}
		begin := time.Now()
		s := w.serveHere(t, nil)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("taking over from an idle process took %s", took)
		}
		if text := s.proc.err.String(); strings.Contains(text, "waiting") {
			t.Errorf("it waited for nothing: %s", text)
		}
		if err := until(leftLimit, func() string { return shown(w.homeProcesses()) }); err != nil {
			t.Error(err)
		}
		if list := items(t, s.dial(t).call("session.list", o{})); len(list) != 1 {
			t.Errorf("the session is not there: %s", list)
		}
	})
	t.Run("busy", func(t *testing.T) {
		for range rounds(2, 20) {
			w := newServerWorld(t)
			const clients = 4
			var all []*process
			scripts := map[string]mockmodel.Script{}
			for i := range clients {
				name := fmt.Sprint("busy", i)
				scripts[name] = mockmodel.Script{{mockmodel.Text{Text: "done "}, mockmodel.Hold{Name: name}, mockmodel.Text{Text: name}}}
			}
			if err := w.start(scripts); err != nil {
				t.Fatal(err)
			}
			for i := range clients {
				all = append(all, w.begin(t, w.dir, fmt.Sprint("script=busy", i)))
			}
			probe := &server{world: w}
			for i := range clients {
				probe.reached(t, fmt.Sprint("busy", i))
			}
			s := w.beginServe(t, nil)
			if err := until(endLimit, func() string {
				if text := s.proc.err.String(); strings.Count(text, "ses_") != clients || !strings.Contains(text, "waiting") {
					return "it says " + text
				}
				return ""
			}); err != nil {
				t.Error(err)
			}
			if s.proc.out.String() != "" {
				t.Error("it listens already")
			}
			for i := range clients {
				w.model.Release(fmt.Sprint("busy", i))
			}
			for i, p := range all {
				w.ended(t, p).must(t, fmt.Sprint("done busy", i))
			}
			s.announced(t)
			c := s.dial(t)
			for _, info := range items(t, c.call("session.list", o{})) {
				events := logOf(t, c, at(info, "id"))
				if last := events[len(events)-1]; last.Type != "session.execution.succeeded" {
					t.Errorf("the work ended with %s", last.raw)
				}
			}
			s.stop(t)
		}
	})
}

// While runs come and go, each of which may start a home process of its own, a
// server takes the place sooner or later, and no run is harmed.
func TestServerTakesOverWhileRunsComeAndGo(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	const together = 3
	each := rounds(5, 40)
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			for range each {
				p, err := launch(start{dir: w.dir, argv0: w.program, args: []string{"run", "mock=text:2"}, env: append(w.environment(), "TMPDIR="+w.dir)})
				if err != nil {
					t.Error(err)
					return
				}
				if code, err := p.finish(endLimit); code != 0 || err != nil {
					t.Errorf("a run: exit code %d, %v, %s%s", code, err, p.out.String(), p.err.String())
				}
			}
		})
	}
	if err := until(endLimit, func() string {
		if len(w.homeProcesses()) == 0 {
			return "there is no home process"
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
	s := w.serveHere(t, nil)
	all.Wait()
	if list := items(t, s.dial(t).call("session.list", o{})); len(list) != together*each {
		t.Errorf("%d runs made %d sessions", together*each, len(list))
	}
}

func shown(all []running) string {
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprint("there are ", all)
}
