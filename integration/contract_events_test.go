package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"codework/integration/mockmodel"
)

// course is the order of events: "D type" or "L type" without "session.", the
// deltas of a part as one, and without what may come at any time.
func course(events []event) string {
	var out []string
	last := ""
	for _, e := range events {
		if e.Type == "session.updated" || e.Type == "session.tool.progress" || e.Type == "session.notice" ||
			strings.HasPrefix(e.Type, "session.llm.toolcall.") || e.Type == last && strings.HasSuffix(e.Type, ".delta") {
			continue
		}
		last = e.Type
		kind := "L "
		if e.Durable != nil {
			kind = "D "
		}
		out = append(out, kind+strings.TrimPrefix(e.Type, "session."))
	}
	return strings.Join(out, "\n")
}

// The usual pieces of a course.
const (
	begun    = "D prompt.admitted\nD execution.started\nD prompt.promoted\n"
	textPart = "L llm.text.start\nL llm.text.delta\nL llm.text.end\n"
	textTurn = "L turn.started\nD llm.started\n" + textPart + "D llm.ended\nD turn.ended\n"
	callTurn = "L turn.started\nD llm.started\nD llm.ended\n"
	succeeds = "D execution.succeeded"
)

func follows(t *testing.T, events []event, want string) {
	t.Helper()
	if got := course(events); got != want {
		t.Errorf("the order is\n%s\ninstead of\n%s", got, want)
	}
}

// one returns the only event of a type.
func one(t *testing.T, events []event, kind string) event {
	t.Helper()
	var found []event
	for _, e := range events {
		if e.Type == kind {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d events %s in %s", len(found), kind, strings.Join(typesOf(events), " "))
	}
	return found[0]
}

// inOrder checks what holds for every session at all times: its positions have
// no gap, its busy periods do not overlap and end once, its turns end, and a
// part is the sum of its deltas.
func inOrder(t *testing.T, events []event) {
	t.Helper()
	type state struct {
		seq           int64
		running, turn bool
		text          string
	}
	all := map[string]*state{}
	ids := map[string]bool{}
	for i, e := range events {
		if ids[e.ID] {
			t.Errorf("event %s came twice", e.ID)
		}
		ids[e.ID] = true
		s := all[e.session()]
		if s == nil {
			s = &state{}
			all[e.session()] = s
		}
		if e.Durable != nil {
			if s.seq != 0 && e.seq() != s.seq+1 {
				t.Errorf("session %s: event %d follows event %d", e.session(), e.seq(), s.seq)
			}
			s.seq = e.seq()
		}
		wrong := false
		switch {
		case e.Type == "session.execution.started":
			wrong = s.running
			s.running = true
		case terminal(e.Type):
			wrong = !s.running || s.turn
			s.running = false
		case e.Type == "session.turn.started":
			wrong = !s.running || s.turn
			s.turn = true
		case e.Type == "session.turn.ended", e.Type == "session.turn.aborted":
			wrong = !s.turn
			s.turn = false
		case strings.HasPrefix(e.Type, "session.llm."), strings.HasPrefix(e.Type, "session.tool."):
			wrong = !s.turn
		}
		if wrong {
			t.Errorf("session %s: %s at the wrong time: %s", e.session(), e.Type, strings.Join(typesOf(ofSession(events[:i+1], e.session())), " "))
		}
		switch e.Type {
		case "session.llm.text.start", "session.llm.thinking.start":
			s.text = ""
		case "session.llm.text.delta", "session.llm.thinking.delta":
			s.text += at(e.Data, "delta")
		case "session.llm.text.end", "session.llm.thinking.end":
			if got := at(e.Data, "content"); got != s.text {
				t.Errorf("a part says %q, its deltas said %q", got, s.text)
			}
		}
	}
}

// Every course of things that clients rely on, and the fields that they read.
func TestServerTellsEventsInOrder(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	s := w.serveHere(t, nil)
	c, other := s.dial(t), s.dial(t)
	all, second := c.subscribe(o{}), other.subscribe(o{})
	var seen []event
	// work prompts a new session and returns its events.
	work := func(t *testing.T, name string, during func(session string), script ...mockmodel.Answer) (string, []event) {
		t.Helper()
		s.answers(t, name, script...)
		id := c.create(o{"title": name})
		c.prompt(id, "script="+name)
		if during != nil {
			during(id)
		}
		events := all.toEnd(t, id)
		seen = append(seen, events...)
		c.idle(id)
		return id, ofSession(events, id)
	}
	hello := mockmodel.Answer{mockmodel.Text{Text: "Hello", Split: 3}}
	call := func(id, command string) mockmodel.Call {
		return mockmodel.Call{ID: id, Name: "bash", Args: `{"command":` + encoded(t, command) + `}`}
	}

	id, events := work(t, "plain", nil, mockmodel.Answer{mockmodel.Usage{Input: 10, Output: 5, CacheRead: 3},
		mockmodel.Reasoning{Text: "hm hm", Split: 2}, mockmodel.Text{Text: "Hello", Split: 3}})
	follows(t, events, begun+"L turn.started\nD llm.started\nL llm.thinking.start\nL llm.thinking.delta\nL llm.thinking.end\n"+textPart+
		"D llm.ended\nD turn.ended\n"+succeeds)
	if first := events[0]; first.seq() != 1 || at(first.Data, "prompt", "text") != "script=plain" || at(first.Data, "delivery") != "steer" {
		t.Errorf("the admission is %s", first.raw)
	}
	prompt := at(events[0].Data, "messageId")
	ended := one(t, events, "session.llm.ended")
	answered := at(ended.Data, "messageId")
	if at(ended.Data, "reason") != "stop" || at(ended.Data, "message", "usage", "cacheRead") != "3" || at(ended.Data, "message", "usage", "input") != "10" ||
		at(ended.Data, "message", "model") != "mock-model" || at(ended.Data, "message", "id") != answered {
		t.Errorf("the end of the answer is %s", ended.raw)
	}
	if digest := at(one(t, events, "session.llm.started").Data, "requestDigest"); len(digest) != 64 {
		t.Errorf("the digest of the request is %q", digest)
	}
	for _, m := range []string{prompt, answered} {
		if got := c.call("session.message", o{"sessionId": id, "messageId": m}); string(got) != `{"found":true}` {
			t.Errorf("message %s: %s", m, got)
		}
	}
	elsewhere := c.create(o{})
	if got := c.call("session.message", o{"sessionId": elsewhere, "messageId": prompt}); string(got) != `{"found":false}` {
		t.Errorf("a message of another session: %s", got)
	}

	_, events = work(t, "calls", nil, mockmodel.Answer{call("a", "true"), call("b", "exit 3")}, hello)
	follows(t, events, begun+callTurn+strings.Repeat("L tool.started\nD tool.settled\n", 2)+"D turn.ended\n"+textTurn+succeeds)
	var results []string
	for _, e := range events {
		switch e.Type {
		case "session.tool.started":
			if at(e.Data, "name") != "bash" || at(e.Data, "arguments", "command") == "" {
				t.Errorf("the start of a call is %s", e.raw)
			}
		case "session.tool.settled":
			results = append(results, at(e.Data, "callID")+" "+at(e.Data, "part", "name")+" "+at(e.Data, "part", "result", "isError"))
			if !strings.HasPrefix(at(e.Data, "part", "result", "content"), "[{") {
				t.Errorf("the end of a call is %s", e.raw)
			}
		}
	}
	if got := strings.Join(results, ","); !strings.HasPrefix(got, "a bash false,b bash ") {
		t.Errorf("the calls ended as %s", got)
	}
	if reason := at(events[slices.IndexFunc(events, func(e event) bool { return e.Type == "session.llm.ended" })].Data, "reason"); reason != "toolUse" {
		t.Errorf("a message with calls ended with %s", reason)
	}

	_, events = work(t, "retries", nil, mockmodel.Answer{mockmodel.HTTP{Status: 503}},
		mockmodel.Answer{mockmodel.Text{Text: "Ba"}, mockmodel.Cut{}}, hello)
	follows(t, events, begun+"L turn.started\nL turn.aborted\nL retry.scheduled\nL turn.started\nD llm.started\nL llm.text.start\nL llm.text.delta\n"+
		"D llm.failed\nL turn.aborted\nL retry.scheduled\n"+textTurn+succeeds)
	if failed := one(t, events, "session.llm.failed"); at(failed.Data, "reason") != "error" {
		t.Errorf("a broken answer is %s", failed.raw)
	}
	for _, e := range events {
		if e.Type == "session.turn.aborted" && (at(e.Data, "cause", "_tag") != "error" || at(e.Data, "cause", "message") == "") {
			t.Errorf("a failed attempt is %s", e.raw)
		}
	}

	_, events = work(t, "refused", nil, mockmodel.Answer{mockmodel.HTTP{Status: 401}})
	follows(t, events, begun+"L turn.started\nL turn.aborted\nD execution.failed")
	if e := events[len(events)-1]; at(e.Data, "error", "type") != "provider-authentication-error" || at(e.Data, "error", "status") != "401" || at(e.Data, "error", "message") == "" {
		t.Errorf("the failure is %s", e.raw)
	}

	_, events = work(t, "length", nil, mockmodel.Answer{mockmodel.Text{Text: "to be cont"}, mockmodel.End{Reason: "length"}})
	if e := one(t, events, "session.llm.ended"); at(e.Data, "reason") != "length" {
		t.Errorf("an answer that was cut off is %s", e.raw)
	}

	// Stopped in text.
	stop := func(id string) {
		if got := c.call("session.interrupt", o{"sessionId": id}); string(got) != `{"interrupted":true}` {
			t.Errorf("an interrupt of work: %s", got)
		}
		again := c.call("session.interrupt", o{"sessionId": id})
		c.idle(id)
		if string(again) != `{"interrupted":false}` {
			t.Errorf("a second interrupt: %s", again)
		}
	}
	var before []event
	isDelta := func(e event) bool { return e.Type == "session.llm.text.delta" }
	id, events = work(t, "stopped", func(id string) {
		before = all.to(t, "text", isDelta)
		seen = append(seen, before...)
		stop(id)
	},
		mockmodel.Answer{mockmodel.Text{Text: "Once"}, mockmodel.Hold{Name: "stopped"}}, hello)
	follows(t, append(before, events...), begun+"L turn.started\nD llm.started\nL llm.text.start\nL llm.text.delta\nD llm.failed\nL turn.aborted\nD execution.interrupted")
	if at(events[len(events)-1].Data, "reason") != "user" || at(one(t, events, "session.llm.failed").Data, "reason") != "aborted" ||
		at(one(t, events, "session.turn.aborted").Data, "cause", "_tag") != "interrupted" {
		t.Errorf("the stop is %s", events[len(events)-1].raw)
	}
	c.prompt(id, "go on") // it stays usable
	events = all.toEnd(t, id)
	seen = append(seen, events...)
	follows(t, ofSession(events, id), begun+textTurn+succeeds)

	// Stopped in the first of two calls, and while the tool tells of progress.
	_, events = work(t, "stoppedcall", func(id string) {
		seen = append(seen, all.to(t, "progress", func(e event) bool { return e.Type == "session.tool.progress" })...)
		stop(id)
	}, mockmodel.Answer{call("c", "echo working; sleep 700"), call("d", "true")})
	follows(t, events, "D tool.settled\nD tool.settled\nD turn.ended\nD execution.interrupted")
	for i, want := range []string{"c aborted", "d skipped"} {
		if got := at(events[i].Data, "callID") + " " + at(events[i].Data, "part", "state"); got != want {
			t.Errorf("call %d: %s instead of %s", i, got, want)
		}
	}

	// Steered while a tool runs, and in the final answer; a follow-up waits.
	flag := filepath.Join(w.dir, "work", "go")
	_, events = work(t, "steered", func(id string) {
		seen = append(seen, all.to(t, "start", func(e event) bool { return e.Type == "session.tool.started" })...)
		c.prompt(id, "hurry")
		if err := os.WriteFile(flag, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}, mockmodel.Answer{call("e", "while ! test -e go; do sleep 0.02; done")}, hello)
	follows(t, events, "D prompt.admitted\nD tool.settled\nD turn.ended\nD prompt.promoted\n"+textTurn+succeeds)

	_, events = work(t, "late", func(id string) {
		before = all.to(t, "text", isDelta)
		seen = append(seen, before...)
		s.reached(t, "late")
		c.prompt(id, "one more")
		s.model.Release("late")
	},
		mockmodel.Answer{mockmodel.Text{Text: "The end"}, mockmodel.Hold{Name: "late"}}, hello)
	follows(t, append(before, events...), begun+"L turn.started\nD llm.started\nL llm.text.start\nL llm.text.delta\nD prompt.admitted\nL llm.text.end\nD llm.ended\nD turn.ended\nD prompt.promoted\n"+textTurn+succeeds)

	var queued string
	_, events = work(t, "queue", func(id string) {
		before = all.to(t, "text", isDelta)
		seen = append(seen, before...)
		s.reached(t, "queue")
		for _, p := range []string{"q1", "q2", "q3"} {
			c.call("session.prompt", o{"sessionId": id, "text": "later " + p, "delivery": "followUp", "id": p})
		}
		if got := c.call("session.message", o{"sessionId": id, "messageId": "q1"}); string(got) != `{"found":false}` {
			t.Errorf("a prompt that waits: %s", got)
		}
		if info := c.call("session.info", o{"sessionId": id}); at(info, "queued") != "3" || at(info, "status") != "busy" {
			t.Errorf("a session with a queue: %s", info)
		}
		queued = string(c.call("session.queue", o{"sessionId": id}))
		c.call("session.queue", o{"sessionId": id, "remove": "q2"})
		c.fails("session.delete", o{"sessionId": id}, o{"_tag": "SessionBusyError", "sessionId": id})
		a := c.ask("session.relink", o{"sessionId": id, "directory": "/"})
		if a.kind != "Fail" || at(a.body, "_tag") != "RelinkError" || at(a.body, "sessionId") != id {
			t.Errorf("a busy session was moved: %s", a)
		}
		s.model.Release("queue")
	}, mockmodel.Answer{mockmodel.Text{Text: "First"}, mockmodel.Hold{Name: "queue"}}, hello, hello)
	follows(t, append(before, events...), begun+"L turn.started\nD llm.started\nL llm.text.start\nL llm.text.delta\n"+strings.Repeat("D prompt.admitted\n", 3)+
		"D prompt.removed\nL llm.text.end\nD llm.ended\nD turn.ended\n"+strings.Repeat("D prompt.promoted\n"+textTurn, 2)+succeeds)
	for i, p := range []string{"q1", "q2", "q3"} {
		key := fmt.Sprint(i)
		if q := json.RawMessage(queued); at(q, "queued", key, "id") != p || at(q, "queued", key, "text") != "later "+p ||
			at(q, "queued", key, "delivery") != "followUp" || !datePattern.MatchString(at(q, "queued", key, "admittedAt")) {
			t.Errorf("the queue is %s", queued)
		}
	}
	if got := at(one(t, events, "session.prompt.removed").Data, "messageId"); got != "q2" {
		t.Errorf("%s was removed", got)
	}

	// Interrupted: what waits stays, or goes where that is asked for.
	id, _ = work(t, "cleared", func(id string) {
		s.reached(t, "cleared")
		c.call("session.prompt", o{"sessionId": id, "text": "later", "delivery": "followUp", "id": "c1"})
		c.call("session.interrupt", o{"sessionId": id})
		c.idle(id)
		if got := c.call("session.queue", o{"sessionId": id}); at(got, "queued", "0", "id") != "c1" {
			t.Errorf("an interrupt took the queue: %s", got)
		}
	}, mockmodel.Answer{mockmodel.Text{Text: "First"}, mockmodel.Hold{Name: "cleared"}})
	c.call("session.interrupt", o{"sessionId": id, "clearQueue": true})
	if got := c.call("session.queue", o{"sessionId": id}); string(got) != `{"queued":[]}` {
		t.Errorf("the queue was to be cleared: %s", got)
	}
	seen = append(seen, all.to(t, "removal", func(e event) bool { return e.Type == "session.prompt.removed" && e.session() == id })...)

	// A failure before promotion.
	id = c.create(o{"runtime": nowhere})
	c.call("session.prompt", o{"sessionId": id, "text": "x", "id": "lost"})
	events = all.toEnd(t, id)
	seen = append(seen, events...)
	follows(t, ofSession(events, id), "D prompt.admitted\nD execution.started\nD execution.failed")
	if kind := at(events[len(events)-1].Data, "error", "type"); kind != "model-not-found-error" {
		t.Errorf("no such model: %s", kind)
	}
	if got := c.call("session.message", o{"sessionId": id, "messageId": "lost"}); string(got) != `{"found":false}` {
		t.Errorf("a prompt that never entered the conversation: %s", got)
	}

	// What changes about a session.
	changed := func(what string, do func()) {
		t.Helper()
		do()
		seen = append(seen, all.to(t, "session.updated of "+what, func(e event) bool { return e.Type == "session.updated" })...)
	}
	changed("rename", func() { c.call("session.rename", o{"sessionId": id, "title": "x"}) })
	changed("configure", func() { c.call("session.configure", o{"sessionId": id, "runtime": o{"thinkingLevel": "low"}}) })
	changed("link", func() { c.call("session.link", o{"sessionId": id, "hostDir": "/x"}) })
	changed("relink", func() { c.call("session.relink", o{"sessionId": id, "directory": "/"}) })

	// A project that nobody trusts.
	project := filepath.Join(w.dir, "project", ".codework")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(project, "settings.jsonc"), []byte(`{"model":{"options":{"baseURL":"http://127.0.0.1:1"}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	s.answers(t, "notice", hello)
	id = c.create(o{"directory": filepath.Dir(project), "hostDir": filepath.Dir(project)})
	c.prompt(id, "script=notice")
	events = all.toEnd(t, id)
	seen = append(seen, events...)
	if e := one(t, events, "session.notice"); at(e.Data, "severity") != "warning" || at(e.Data, "text") == "" {
		t.Errorf("the notice is %s", e.raw)
	}

	inOrder(t, seen)
	kinds := map[string]bool{}
	for _, e := range seen {
		kinds[e.Type] = true
	}
	for kind := range eventShapes {
		if !kinds[kind] && kind != "session.next.forked" { // of which a test of its own tells
			t.Errorf("no event %s was seen", kind)
		}
	}
	// The other client has seen the same.
	got := second.to(t, "last event", func(e event) bool { return e.ID == seen[len(seen)-1].ID })
	mine, theirs := toldOf(seen), toldOf(got)
	// Where the server's sessions work at once their events may be mixed
	// differently; here they take turns.
	if !slices.Equal(mine, theirs) {
		t.Errorf("two subscribers were told %d and %d things", len(mine), len(theirs))
	}
}

// A prompt's id is good for one prompt; the same again is no second one.
func TestServerTakesAPromptOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial(t)
	text := mockmodel.Answer{mockmodel.Text{Text: "ok"}}
	s.answers(t, "once", mockmodel.Answer{mockmodel.Hold{Name: "once"}, mockmodel.Text{Text: "ok"}}, text, text)
	a, b := c.create(o{}), c.create(o{})
	conflict := func(session string, payload o) {
		t.Helper()
		payload["id"] = "p1"
		payload["sessionId"] = session
		c.fails("session.prompt", payload, o{"_tag": "PromptConflictError", "sessionId": session, "messageId": "p1"})
	}
	c.prompt(a, "script=once")
	s.reached(t, "once")
	first := o{"sessionId": a, "text": "mine", "delivery": "followUp", "id": "p1"}
	for range 3 { // while it waits
		c.call("session.prompt", first)
	}
	conflict(a, o{"text": "other", "delivery": "followUp"})
	conflict(a, o{"text": "mine"})
	conflict(a, o{"text": "mine", "delivery": "steer"})
	conflict(b, o{"text": "mine", "delivery": "followUp"})
	s.model.Release("once")
	c.idle(a)
	if got := c.call("session.message", o{"sessionId": a, "messageId": "p1"}); string(got) != `{"found":true}` {
		t.Errorf("the prompt has run, and yet: %s", got)
	}
	c.call("session.prompt", first) // after it ran: equal in everything
	c.idle(a)
	conflict(a, o{"text": "other", "delivery": "followUp"})
	conflict(b, o{"text": "mine", "delivery": "followUp"})
	if n := len(s.model.Requests()); n != 2 {
		t.Errorf("the model was asked %d times instead of twice", n)
	}
	// Ten at the same instant over two connections are one.
	d := s.dial(t)
	var all []*pendingCall
	for range 5 {
		for _, over := range []*wire{c, d} {
			all = append(all, over.begin("session.prompt", o{"sessionId": a, "text": "script=once at once", "id": "p2"}))
		}
	}
	for _, p := range all {
		if got := p.wait(t); got.kind != "Success" {
			t.Errorf("one of ten: %s", got)
		}
	}
	c.idle(a)
	if n := len(s.model.Requests()); n != 3 {
		t.Errorf("ten equal prompts at once made %d requests", n-2)
	}
}

// Waiting is for the end of all work, and stops nothing when it ends early.
func TestServerWaitsForTheEndOfAllWork(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c, other := s.dial(t), s.dial(t)
	text := mockmodel.Answer{mockmodel.Text{Text: "ok"}}
	s.answers(t, "wait", mockmodel.Answer{mockmodel.Hold{Name: "one"}, mockmodel.Text{Text: "ok"}}, mockmodel.Answer{mockmodel.Hold{Name: "two"}, mockmodel.Text{Text: "ok"}}, text)
	id := c.create(o{})
	c.idle(id)
	c.prompt(id, "script=wait")
	s.reached(t, "one")
	c.call("session.prompt", o{"sessionId": id, "text": "next", "delivery": "followUp"})
	mine, gone, theirs := c.begin("session.wait", o{"sessionId": id}), c.request(`"gone"`, "session.wait", o{"sessionId": id}), other.begin("session.wait", o{"sessionId": id})
	c.send(`{"_tag":"Interrupt","requestId":"gone"}` + "\n")
	if a := gone.wait(t); a.kind != "Interrupt" || string(a.body) != "null" {
		t.Errorf("an interrupted wait: %s", a)
	}
	lost := s.dial(t)
	lost.begin("session.wait", o{"sessionId": id})
	lost.vanish()
	s.model.Release("one")
	s.reached(t, "two")
	// Between the two prompts nobody was told that the end had come.
	for _, p := range []*pendingCall{mine, theirs} {
		select {
		case a := <-p.done:
			t.Errorf("a wait ended between two prompts: %s", a)
		default:
		}
	}
	s.model.Release("two")
	for _, p := range []*pendingCall{mine, theirs} {
		if a := p.wait(t); a.kind != "Success" || string(a.body) != "null" {
			t.Errorf("a wait: %s", a)
		}
	}
	if info := c.call("session.info", o{"sessionId": id}); at(info, "status") != "idle" {
		t.Errorf("after the wait: %s", info)
	}
	// Who leaves does not take his prompt along.
	lost = s.dial(t)
	lost.prompt(id, "still mine")
	lost.vanish()
	c.idle(id)
	if n := len(s.model.Requests()); n != 3 {
		t.Errorf("the model was asked %d times", n)
	}
}

// noise is a picture that does not shrink: larger than one piece of a blob.
func noise(t *testing.T) []byte {
	t.Helper()
	m := image.NewNRGBA(image.Rect(0, 0, 540, 540))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range m.Pix {
		m.Pix[i] = byte(r.Uint32())
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A conversation can be read page by page with its pictures, forked, checked
// and deleted.
func TestServerKeepsConversations(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial(t)
	all := c.subscribe(o{})
	picture := noise(t)
	var script []mockmodel.Answer
	for i := range 4 {
		script = append(script, mockmodel.Answer{mockmodel.Text{Text: fmt.Sprint("answer ", i)}})
	}
	s.answers(t, "talk", script...)
	id := c.create(o{"title": "talk"})
	c.call("session.prompt", o{"sessionId": id, "text": "script=talk see", "id": "m0", "parts": []o{
		{"type": "image", "mediaType": "image/png", "data": base64.StdEncoding.EncodeToString(picture)}, {"type": "text", "text": "and this"}}})
	c.idle(id)
	c.call("session.prompt", o{"sessionId": id, "text": "two", "id": "m1"})
	c.idle(id)
	page := c.call("session.history", o{"sessionId": id})
	var h struct {
		Entries []struct {
			ID, Role, State string
			Parts           []struct {
				Type, Text, MediaType, Blob, Data string
				Bytes                             int
			}
		}
		More bool
		Seq  int64
	}
	if err := json.Unmarshal(page, &h); err != nil {
		t.Fatal(err)
	}
	if len(h.Entries) != 4 || h.More || h.Entries[0].ID != "m0" || h.Entries[1].Role != "assistant" || h.Entries[2].ID != "m1" {
		t.Fatalf("the history is %.1000s", page)
	}
	var blob string
	for _, p := range h.Entries[0].Parts {
		if p.Type == "image" {
			blob = p.Blob
			if p.MediaType != "image/png" || p.Bytes != len(picture) || p.Data != "" {
				t.Errorf("the picture is told as %+v", p)
			}
		}
	}
	if len(page) > len(picture) {
		t.Errorf("the history has %d bytes: it holds the picture", len(page))
	}
	fetch := func(session string) []byte {
		var got []byte
		for {
			piece := c.call("session.blob", o{"sessionId": session, "blob": blob, "offset": len(got)})
			data, err := base64.StdEncoding.DecodeString(at(piece, "data"))
			if err != nil || len(data) == 0 || len(data) > 1<<20 {
				t.Fatalf("a piece of %d bytes, %v", len(data), err)
			}
			got = append(got, data...)
			if at(piece, "more") == "false" {
				return got
			}
		}
	}
	if got := fetch(id); !bytes.Equal(got, picture) {
		t.Errorf("the picture comes back as %d bytes instead of %d", len(got), len(picture))
	}
	stranger := c.create(o{})
	c.fails("session.blob", o{"sessionId": stranger, "blob": blob}, o{"_tag": "BlobNotFoundError", "blob": blob})
	c.fails("session.blob", o{"sessionId": id, "blob": "../../home.lock"}, o{"_tag": "BlobNotFoundError", "blob": "../../home.lock"})

	// Pages, newest last.
	last := c.call("session.history", o{"sessionId": id, "limit": 1})
	if at(last, "more") != "true" || at(last, "entries", "0", "id") != h.Entries[3].ID || at(last, "entries", "1") != "" {
		t.Errorf("the last entry is %s", last)
	}
	before := c.call("session.history", o{"sessionId": id, "limit": 2, "before": h.Entries[3].ID})
	if at(before, "more") != "true" || at(before, "entries", "0", "id") != h.Entries[1].ID || at(before, "entries", "1", "id") != "m1" {
		t.Errorf("the two before it are %s", before)
	}
	c.dies("session.history", o{"sessionId": id, "before": "nobody"}, "before")
	// The position of a page: what a subscription behind it tells follows it.
	back := s.dial(t).subscribe(o{"sessionId": id, "after": o{id: h.Seq}})
	c.prompt(id, "three")
	if e, err := back.next(callLimit); err != nil || e.Type != "session.prompt.admitted" || e.seq() != h.Seq+1 {
		t.Errorf("behind the page comes %s, %v", e.raw, err)
	}
	c.idle(id)

	// A fork at an entry is a session of its own, told to everybody.
	fork := c.call("session.fork", o{"sessionId": id, "at": h.Entries[1].ID})
	forked := at(fork, "id")
	if forked == id || at(fork, "parentId") != id || at(fork, "status") != "idle" {
		t.Errorf("the fork is %s", fork)
	}
	told := all.to(t, "the fork", func(e event) bool { return e.Type == "session.next.forked" })
	if e := told[len(told)-1]; e.session() != forked || at(e.Data, "sourceSessionId") != id || at(e.Data, "sourceEntryId") != h.Entries[1].ID || at(e.Data, "baseSeq") == "" {
		t.Errorf("the fork is told as %s", e.raw)
	}
	c.dies("session.fork", o{"sessionId": id, "at": "nobody"}, "at")
	if got := c.call("session.history", o{"sessionId": forked}); at(got, "entries", "1", "id") == "" || at(got, "entries", "2") != "" {
		t.Errorf("the fork's history is %.500s", got)
	}
	c.prompt(forked, "go on here")
	c.idle(forked)
	request := s.model.Requests()[len(s.model.Requests())-1]
	if texts := strings.Join(request.View.Texts("user"), "\n"); !strings.Contains(texts, "see") || !strings.Contains(texts, "go on here") || strings.Contains(texts, "three") {
		t.Errorf("the fork asks the model %q", texts)
	}
	events := ofSession(all.toEnd(t, forked), forked)
	inOrder(t, append([]event{told[len(told)-1]}, events...))
	behind := s.dial(t).subscribe(o{"after": o{forked: 0}})
	if e, err := behind.next(callLimit); err != nil || e.Type != "session.next.forked" {
		t.Errorf("the log of the fork begins with %s, %v", e.raw, err)
	}

	for _, session := range []string{id, forked} {
		if got := c.call("session.check", o{"sessionId": session}); string(got) != `{"findings":[]}` {
			t.Errorf("the check of %s found %s", session, got)
		}
		if got := c.call("session.check", o{"sessionId": session, "repair": true}); string(got) != `{"findings":[]}` {
			t.Errorf("the repair of %s found %s", session, got)
		}
	}
	c.call("session.delete", o{"sessionId": id})
	c.fails("session.info", o{"sessionId": id}, missing(id))
	c.fails("session.history", o{"sessionId": id}, missing(id))
	if got := fetch(forked); !bytes.Equal(got, picture) {
		t.Error("with the source the fork's picture is gone")
	}
	c.call("session.history", o{"sessionId": forked})
	// One that works is deleted by force only.
	s.answers(t, "busy", mockmodel.Answer{mockmodel.Text{Text: "x"}, mockmodel.Hold{Name: "busy"}})
	c.prompt(stranger, "script=busy")
	s.reached(t, "busy")
	c.fails("session.delete", o{"sessionId": stranger}, o{"_tag": "SessionBusyError", "sessionId": stranger})
	wait := c.begin("session.wait", o{"sessionId": stranger})
	c.call("session.delete", o{"sessionId": stranger, "force": true})
	c.fails("session.prompt", o{"sessionId": stranger, "text": "x"}, missing(stranger))
	if a := wait.wait(t); a.kind != "Fail" || at(a.body, "_tag") != "SessionNotFoundError" {
		t.Errorf("a wait for a session that is deleted: %s", a)
	}
	if list := c.call("session.list", o{}); strings.Contains(string(list), stranger) || !strings.Contains(string(list), forked) {
		t.Errorf("after the deletions the list is %s", list)
	}
}

// Many clients prompt and interrupt the same sessions. Whatever comes of it,
// its order is good, and ten subscribers are told the same.
// toldOf is what events say, with pieces of one part that follow each other as
// one: those that wait for a reader are joined.
func toldOf(events []event) (told []string) {
	part := "" // that the last entry is of
	for _, e := range events {
		if !strings.HasPrefix(e.Type, "session.llm.") || !strings.HasSuffix(e.Type, ".delta") {
			told, part = append(told, e.ID), ""
			continue
		}
		if p := e.Type + " " + at(e.Data, "messageId") + "/" + at(e.Data, "partIndex") + " "; p != part {
			told, part = append(told, p), p
		}
		told[len(told)-1] += at(e.Data, "delta")
	}
	return told
}

func TestServerTellsTenSubscribersTheSame(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const readers, sessions, clients, prompts = 10, 4, 6, 6
	c := s.dial(t)
	var streams []*stream
	for range readers {
		streams = append(streams, s.dial(t).subscribe(o{}))
	}
	var ids []string
	for range sessions {
		ids = append(ids, c.create(o{}))
	}
	var working sync.WaitGroup
	for n := range clients {
		d := s.dial(t)
		working.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 7))
			for i := range prompts {
				id := ids[r.IntN(sessions)]
				delivery := []string{"steer", "followUp"}[r.IntN(2)]
				if a := d.ask("session.prompt", o{"sessionId": id, "text": fmt.Sprintf("mock=text:4:1 %d %d", n, i), "delivery": delivery}); a.kind != "Success" {
					t.Errorf("a prompt: %s", a)
				}
				if r.IntN(3) == 0 {
					d.ask("session.interrupt", o{"sessionId": ids[r.IntN(sessions)]})
				}
			}
		})
	}
	working.Wait()
	for _, id := range ids {
		// What an interrupt left in the queue runs behind the next prompt.
		c.prompt(id, "mock=text:1 last")
		c.idle(id)
		if got := c.call("session.queue", o{"sessionId": id}); string(got) != `{"queued":[]}` {
			t.Errorf("at rest there waits %s", got)
		}
	}
	// An event behind everything.
	mark := c.create(o{})
	c.call("session.rename", o{"sessionId": mark, "title": "mark"})
	var first map[string][]string
	for i, st := range streams {
		events := st.to(t, "mark", func(e event) bool { return e.session() == mark })
		if i == 0 {
			inOrder(t, events)
		}
		bySession := map[string][]string{}
		for _, id := range ids {
			bySession[id] = toldOf(ofSession(events, id))
		}
		if first == nil {
			first = bySession
			if len(events) < 100 {
				t.Errorf("there were only %d events", len(events))
			}
			continue
		}
		for _, id := range ids {
			if !slices.Equal(first[id], bySession[id]) {
				t.Errorf("subscriber %d was told something else of session %s", i, id)
			}
		}
	}
	starts, ends, admitted, promoted := 0, 0, 0, 0
	replay := o{}
	for _, id := range ids {
		replay[id] = 0
	}
	log := s.dial(t).subscribe(o{"after": replay})
	at0 := map[string]int64{}
	for _, id := range ids {
		var h struct{ Seq int64 }
		if err := json.Unmarshal(c.call("session.history", o{"sessionId": id, "limit": 1}), &h); err != nil {
			t.Fatal(err)
		}
		at0[id] = h.Seq
	}
	for len(at0) > 0 {
		e, err := log.next(callLimit)
		if err != nil {
			t.Fatal(err)
		}
		if e.seq() == at0[e.session()] {
			delete(at0, e.session())
		}
		switch {
		case e.Type == "session.execution.started":
			starts++
		case terminal(e.Type):
			ends++
		case e.Type == "session.prompt.admitted":
			admitted++
		case e.Type == "session.prompt.promoted":
			promoted++
		}
	}
	if starts != ends || admitted != promoted || admitted != clients*prompts+sessions {
		t.Errorf("%d starts and %d ends, %d admitted and %d promoted", starts, ends, admitted, promoted)
	}
}
