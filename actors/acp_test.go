package actors

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"codework/messages"
	"codework/protocol/acp"
	"codework/protocol/acp/acptest"
)

var (
	large   = flag.Bool("large", false, "a prompt of 64 MiB instead of 8")
	cancels = flag.Int("cancels", 60, "rounds of a cancel right behind its prompt")
)

// Choices gives every session the same models.
func (r *rig) Choices(_ context.Context, q ExchangeQuery) (messages.Choices, error) {
	if strings.HasSuffix(q.Session.HostDir, "panics") {
		panic("on purpose")
	}
	c := messages.Choices{Model: messages.ModelRef{Provider: "p", ID: "m"}, Level: "high", Models: []messages.Choice{
		{Ref: messages.ModelRef{Provider: "p", ID: "m"}, Name: "P: M", Levels: []messages.ThinkingLevel{"off", "low", "high"}, Default: "high", ContextWindow: 1000},
		{Ref: messages.ModelRef{Provider: "p", ID: "sees/all"}, Name: "P: Sees", Levels: []messages.ThinkingLevel{"off"}, Default: "off", Images: true},
	}}
	if own := q.Session.Runtime.Model; own != nil {
		c.Model, c.Level = *own, "off"
	}
	if own := q.Session.Runtime.ThinkingLevel; own != "" {
		c.Level = own
	}
	return c, nil
}

// desk is an editor at work with a rig.
type desk struct {
	t *testing.T
	r *rig
	*acptest.Client
	conn   acp.Conn
	gate   *sync.Mutex // while it is locked the editor reads nothing
	served chan struct{}
	dir    string
}

// gated is an editor's end that can be made to read nothing.
type gated struct {
	acp.Conn
	mu sync.Mutex
}

func (g *gated) Read() (acp.Frame, error) {
	f, err := g.Conn.Read()
	g.mu.Lock()
	defer g.mu.Unlock()
	return f, err
}

func newDesk(t *testing.T, r *rig) *desk {
	t.Helper()
	pipe, there := acp.Pipe()
	here := &gated{Conn: pipe}
	d := &desk{t: t, r: r, conn: here, gate: &here.mu, served: make(chan struct{}), dir: t.TempDir()}
	go func() {
		defer close(d.served)
		if err := r.system.ServeEditor(context.Background(), there); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		here.Close()
		<-d.served
		for _, f := range d.Faults() {
			t.Error(f)
		}
	})
	return d
}

// open says hello and initialize, and makes a session.
func (d *desk) open() string {
	d.t.Helper()
	d.hello()
	d.call(acp.MethodInitialize, map[string]any{"protocolVersion": 1})
	return d.session()
}

func (d *desk) hello() {
	d.t.Helper()
	c, err := acptest.Over(d.conn, messages.Hello{Cwd: d.dir, Env: map[string]string{}, Umask: -1})
	if err != nil {
		d.t.Fatal(err)
	}
	d.Client = c
}

func (d *desk) session() string {
	d.t.Helper()
	var s acp.NewResult
	if err := json.Unmarshal(d.call(acp.MethodNew, map[string]any{"cwd": d.dir, "mcpServers": []any{}}), &s); err != nil {
		d.t.Fatal(err)
	}
	return s.SessionID
}

func (d *desk) call(method string, params any) json.RawMessage {
	d.t.Helper()
	var r json.RawMessage
	if err := d.Call(within, method, params, &r); err != nil {
		d.t.Fatalf("%s: %v", method, err)
	}
	return r
}

// refused calls and returns the error that must come.
func (d *desk) refused(method string, params any) *acp.Error {
	d.t.Helper()
	var e *acp.Error
	if err := d.Call(within, method, params, nil); !errors.As(err, &e) {
		d.t.Fatalf("%s was not refused: %v", method, err)
	}
	return e
}

func words(session, text string) map[string]any {
	return map[string]any{"sessionId": session, "prompt": []any{map[string]any{"type": "text", "text": text}}}
}

func (d *desk) say(session, text string) string {
	d.t.Helper()
	id, err := d.Ask(acp.MethodPrompt, words(session, text))
	if err != nil {
		d.t.Fatal(err)
	}
	return id
}

// stop waits for the answer to a prompt: its stop reason.
func (d *desk) stop(id string) string {
	d.t.Helper()
	l, err := d.Answer(within, id)
	if err != nil {
		d.t.Fatal(err)
	}
	if l.Error != nil {
		return l.Error.Message
	}
	var r acp.PromptResult
	if err := json.Unmarshal(l.Result, &r); err != nil {
		d.t.Fatal(err)
	}
	return r.StopReason
}

func (d *desk) until(kind string, n int) acptest.Line {
	d.t.Helper()
	l, _, err := d.Until(within, 0, func(l acptest.Line) bool {
		if l.Kind == kind {
			n--
		}
		return n == 0
	})
	if err != nil {
		d.t.Fatalf("%s: %v", kind, err)
	}
	return l
}

// kinds are the kinds of updates and answers so far, runs of one kind once.
func (d *desk) kinds(from int) []string {
	var out []string
	for _, l := range d.Lines()[from:] {
		k := l.Kind
		if k == "" {
			k = "answer"
		}
		if k == "tool_call_update" && l.Update.Status != "" {
			k = l.Update.Status
		}
		if len(out) == 0 || out[len(out)-1] != k {
			out = append(out, k)
		}
	}
	return out
}

func (d *desk) text(kind string) string {
	var b strings.Builder
	for _, l := range d.Lines() {
		if l.Kind == kind {
			b.WriteString(l.Update.Text())
		}
	}
	return b.String()
}

func (d *desk) expect(what string, got, want any) {
	d.t.Helper()
	g, w := fmt.Sprint(got), fmt.Sprint(want)
	if g != w {
		d.t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

func TestEditorSeesATurnInOrder(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("slow"))
	d := newDesk(t, r)
	id := d.open()
	from := len(d.Lines())
	p := d.say(id, "# Do *it*\nnow")
	a := r.model.next(t)
	a.start()
	a.text("first words")
	a.done(messages.StopToolUse, messages.Part{Type: messages.PartText, Text: "first words"}, toolCall("c1", "slow", `{}`), toolCall("c2", "nothing", `{"x":1}`))
	g.wait(t)
	g.release <- struct{}{}
	r.model.next(t).answer("last words")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	d.expect("order", d.kinds(from), []string{"session_info_update", "agent_message_chunk", "usage_update", "tool_call", "completed", "tool_call", "failed", "agent_message_chunk", "usage_update", "answer"})
	d.expect("title", d.until("session_info_update", 1).Update.Title, "Do *it")
	d.expect("text", d.text(acp.AgentChunk), "first wordslast words")

	// A replay shows the same.
	var live, again []string
	show := func(l acptest.Line) string {
		return strings.Join([]string{l.Kind, l.Update.MessageID, l.Update.ToolCallID, l.Update.Title, l.Update.Status, string(l.Update.Content), string(l.Update.RawOutput)}, "|")
	}
	for _, l := range d.Lines()[from:] {
		if l.Kind == acp.AgentChunk || strings.HasPrefix(l.Kind, "tool_call") {
			live = append(live, show(l))
		}
	}
	from = len(d.Lines())
	d.call(acp.MethodLoad, map[string]any{"sessionId": id, "cwd": d.dir})
	for _, l := range d.Lines()[from:] {
		if l.Kind == acp.AgentChunk || strings.HasPrefix(l.Kind, "tool_call") {
			again = append(again, show(l))
		}
	}
	if !slices.Equal(live, again) {
		t.Errorf("live:\n%s\nreplay:\n%s", strings.Join(live, "\n"), strings.Join(again, "\n"))
	}
	d.expect("words of the user", d.text(acp.UserChunk), "# Do *it*\nnow")
}

func TestACancelInThePacketOfItsPromptStopsIt(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // the model begins and never ends
		for {
			select {
			case a := <-r.model.asked:
				a.start()
			case <-stop:
				return
			}
		}
	}()
	for n := range *cancels {
		line, p := d.Line(acp.MethodPrompt, words(id, fmt.Sprint("round ", n)))
		note := acptest.Note(acp.MethodCancel, map[string]any{"sessionId": id})
		next, q := d.Line(acp.MethodPrompt, words(id, "and this instead"))
		if n%2 == 1 {
			note = acptest.Note(acp.MethodCancelAny, map[string]any{"requestId": json.RawMessage(p)})
		}
		last := acptest.Note(acp.MethodCancel, map[string]any{"sessionId": id})
		if err := d.Send(line + note + next + last); err != nil {
			t.Fatal(err)
		}
		if a, b := d.stop(p), d.stop(q); a != acp.StopCancelled || b != acp.StopCancelled {
			t.Fatalf("round %d: the prompts ended with %s and %s", n, a, b)
		}
	}
}

func TestACancelDoesNotHitTheNextPrompt(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	for range 3 {
		if err := d.Send(acptest.Note(acp.MethodCancel, map[string]any{"sessionId": id})); err != nil {
			t.Fatal(err)
		}
		p := d.say(id, "go on")
		r.model.next(t).answer("done")
		d.expect("stop", d.stop(p), acp.StopEndTurn)
	}
	for _, odd := range []string{`{}`, `{"sessionId":"ses_missing"}`, `{"sessionId":7}`, `[]`, `null`} {
		if err := d.Send(`{"jsonrpc":"2.0","method":"session/cancel","params":` + odd + "}\n"); err != nil {
			t.Fatal(err)
		}
	}
	p := d.say(id, "still here")
	r.model.next(t).answer("yes")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
}

func TestAPromptBehindACancelIsTheNextTurn(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("slow"))
	d := newDesk(t, r)
	id := d.open()
	p := d.say(id, "one")
	r.model.next(t).call(toolCall("c1", "slow", `{}`))
	g.wait(t)
	d.until("tool_call", 1)
	from := len(d.Lines())
	note := acptest.Note(acp.MethodCancel, map[string]any{"sessionId": id})
	next, q := d.Line(acp.MethodPrompt, words(id, "two"))
	busy, b := d.Line(acp.MethodPrompt, words(id, "three"))
	if err := d.Send(note + next + busy); err != nil {
		t.Fatal(err)
	}
	d.expect("first", d.stop(p), acp.StopCancelled)
	d.expect("third", d.stop(b), acp.Busy().Message)
	r.model.next(t).answer("answer to two")
	d.expect("second", d.stop(q), acp.StopEndTurn)
	var order []string
	for _, l := range d.Lines()[from:] {
		switch {
		case string(l.ID) == p:
			order = append(order, "one is answered")
		case string(l.ID) == q:
			order = append(order, "two is answered")
		case l.Kind == acp.AgentChunk:
			order = append(order, l.Update.Text())
		case l.Update.Status != "":
			order = append(order, l.Update.Status)
		}
	}
	d.expect("order", order, []string{"failed", "one is answered", "answer to two", "two is answered"})
}

func TestAWorkingSessionRefusesAnEditorsPrompt(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	p := d.say(id, "mine")
	a := r.model.next(t)
	a.start()
	d.expect("own work", d.refused(acp.MethodPrompt, words(id, "again")).Code, acp.CodeInvalidRequest)
	a.text("undisturbed")
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "undisturbed"})
	d.expect("stop", d.stop(p), acp.StopEndTurn)

	// Work of somebody else counts, and is not shown.
	from := len(d.Lines())
	r.prompt(id, "theirs", messages.Steer)
	a = r.model.next(t)
	a.start()
	e := d.refused(acp.MethodPrompt, words(id, "mine again"))
	d.expect("their work", e.Code, acp.CodeInvalidRequest)
	a.text("for others")
	a.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "for others"})
	r.wait(id)
	for _, m := range r.ledger(id).entries {
		for _, part := range m.Parts {
			if strings.Contains(part.Text, "again") {
				t.Errorf("the refused prompt left %q", part.Text)
			}
		}
	}
	p = d.say(id, "now mine")
	r.model.next(t).answer("mine")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	d.expect("what was shown", d.kinds(from), []string{"answer", "usage_update", "agent_message_chunk", "usage_update", "answer"})
}

func TestASlowEditorLosesNothing(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("slow"))
	d := newDesk(t, r)
	d.hello()
	d.call(acp.MethodInitialize, map[string]any{"protocolVersion": 1})
	id := d.session()
	d.gate.Lock()
	p := d.say(id, "much")
	// More than a subscription holds, and more than the queue.
	var want strings.Builder
	a := r.model.next(t)
	a.start()
	a.emit(messages.StreamEvent{Kind: messages.StreamTextStart})
	piece := strings.Repeat("é", 100)
	for n := range 3 * subscriberQueue {
		text := fmt.Sprintf("%d%s ", n, piece)
		want.WriteString(text)
		a.emit(messages.StreamEvent{Kind: messages.StreamTextDelta, Delta: text})
	}
	a.done(messages.StopToolUse, messages.Part{Type: messages.PartText, Text: want.String()}, toolCall("c1", "slow", `{}`))
	g.wait(t)
	g.release <- struct{}{}
	b := r.model.next(t)
	b.start()
	b.text("the end")
	b.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "the end"})
	r.wait(id) // nobody waited for the editor
	d.gate.Unlock()
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	if got := d.text(acp.AgentChunk); got != want.String()+"the end" {
		t.Errorf("%d bytes came of %d", len(got), want.Len()+7)
	}
	d.expect("call", d.until("tool_call", 1).Update.Status, "in_progress")
}

// What waits for an editor is joined where it is streamed; the parts of a prompt
// stay what they are.
func TestPiecesOfTextAreJoinedAndPartsOfPromptsAreNot(t *testing.T) {
	for kind, want := range map[string]int{acp.AgentChunk: 1, acp.ThoughtChunk: 1, acp.UserChunk: 2} {
		o := newOutbound()
		for range 2 {
			o.update("ses_1", acp.Chunk{SessionUpdate: kind, MessageID: "m", Content: acp.Block{Type: "text", Text: "x"}})
		}
		o.finish()
		f, _, _ := o.take(t.Context())
		if got := bytes.Count(f.Data, []byte("\n")); got != want {
			t.Errorf("%s: %d lines", kind, got)
		}
	}
}

func TestADeadEditorsWorkEndsAndNobodyElses(t *testing.T) {
	for _, how := range []string{"says so", "is killed"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			d := newDesk(t, r)
			mine, theirs := d.open(), r.create()
			p := d.say(mine, "mine")
			r.model.next(t).start()
			r.prompt(theirs, "theirs", messages.Steer)
			b := r.model.next(t)
			b.start()
			if how == "says so" {
				if err := acp.Say(d.conn, acp.Word{End: true}); err != nil {
					t.Fatal(err)
				}
				d.expect("stop", d.stop(p), acp.StopCancelled)
			} else {
				d.conn.Close()
			}
			end := r.events.until(t, mine, messages.EventExecutionInterrupted, 1)
			d.expect("reason", end.Reason, messages.ByShutdown)
			<-d.served
			b.text("goes on")
			b.done(messages.StopStop, messages.Part{Type: messages.PartText, Text: "goes on"})
			r.events.until(t, theirs, messages.EventExecutionSucceeded, 1)
		})
	}
}

func TestHowATurnEndsIsItsAnswer(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	for _, tc := range []struct {
		name, want string
		play       func(*asked)
	}{
		{"cut off", acp.StopMaxTokens, func(a *asked) {
			a.start()
			a.done(messages.StopLength, messages.Part{Type: messages.PartText, Text: "so f"})
		}},
		{"refused by the provider", acp.StopRefusal, func(a *asked) {
			a.fail(messages.Failure{Type: messages.FailContentFilter, Message: "not that"})
		}},
		{"failed", "p/m: insufficient credits. Top up your account", func(a *asked) {
			a.start()
			a.text("half")
			a.fail(messages.Failure{Type: messages.FailQuota, Message: "insufficient credits", Status: 402, Hint: "top up your account"})
		}},
		{"done", acp.StopEndTurn, func(a *asked) { a.answer("well") }},
	} {
		p := d.say(id, tc.name)
		tc.play(r.model.next(t))
		d.expect(tc.name, d.stop(p), tc.want)
		if tc.name == "failed" {
			l, err := d.Answer(within, p)
			if err != nil || l.Error.Code != acp.CodeInternal {
				t.Fatalf("%+v %v", l.Error, err)
			}
			d.expect("data", l.Error.Data, map[string]any{"type": messages.FailQuota, "status": float64(402)})
		}
	}
	r.mu.Lock()
	r.prepErr = &messages.Failure{Type: messages.FailAuthentication, Code: messages.CodeMissing, Message: "no credentials for anthropic", Hint: "set ANTHROPIC_API_KEY"}
	r.mu.Unlock()
	d.expect("no key", d.stop(d.say(id, "x")), "No credentials for anthropic. Set ANTHROPIC_API_KEY")
}

func TestConfigOptionsChangeInOrderAndTellOthersChanges(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	set := func(option, value string) (string, string) {
		return d.Line(acp.MethodSetConfig, map[string]any{"sessionId": id, "configId": option, "value": value})
	}
	a, aid := set("thought_level", "low")
	b, bid := set("thought_level", "off")
	c, cid := set("model", "p/sees/all")
	if err := d.Send(a + b + c); err != nil {
		t.Fatal(err)
	}
	current := func(id string) (out []string) {
		l, err := d.Answer(within, id)
		if err != nil || l.Error != nil {
			t.Fatal(err, l.Error)
		}
		var r acp.ConfigResult
		if err := json.Unmarshal(l.Result, &r); err != nil {
			t.Fatal(err)
		}
		for _, o := range r.ConfigOptions {
			out = append(out, o.CurrentValue)
		}
		return out
	}
	d.expect("first", current(aid), []string{"p/m", "low"})
	d.expect("second", current(bid), []string{"p/m", "off"})
	d.expect("third", current(cid), []string{"p/sees/all"})
	for _, bad := range []map[string]any{
		{"sessionId": id, "configId": "model", "value": "p/none"},
		{"sessionId": id, "configId": "thought_level", "value": "high"}, // the model does not think
		{"sessionId": id, "configId": "mode", "value": "x"},
		{"sessionId": id, "configId": "model", "value": true, "type": "boolean"},
	} {
		d.expect("refusal", d.refused(acp.MethodSetConfig, bad).Code, acp.CodeInvalidParams)
	}
	d.expect("missing", d.refused(acp.MethodSetConfig, map[string]any{"sessionId": "ses_none", "configId": "model", "value": "p/m"}).Code, acp.CodeSessionNotFound)

	if _, err := r.to(id, messages.Configure{SessionID: id, Runtime: messages.Runtime{Model: &messages.ModelRef{Provider: "p", ID: "m"}, ThinkingLevel: "low"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.to(id, messages.Rename{SessionID: id, Title: "by somebody"}); err != nil {
		t.Fatal(err)
	}
	l := d.until("config_option_update", 1)
	d.expect("changed elsewhere", l.Update.ConfigOptions[1].CurrentValue, "low")
	d.expect("renamed elsewhere", d.until("session_info_update", 1).Update.Title, "by somebody")
	if n := strings.Count(fmt.Sprint(d.kinds(0)), "config_option_update"); n != 1 {
		t.Errorf("told %d times", n)
	}
}

func TestPromptsThatCannotBeTakenLeaveNothing(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	image := map[string]any{"type": "image", "mimeType": "image/png", "data": base64.StdEncoding.EncodeToString([]byte("png"))}
	block := func(b ...any) map[string]any { return map[string]any{"sessionId": id, "prompt": b} }
	for name, p := range map[string]map[string]any{
		"no blocks":         {"sessionId": id, "prompt": []any{}},
		"no list":           {"sessionId": id, "prompt": "text"},
		"null":              {"sessionId": id, "prompt": nil},
		"text without text": block(map[string]any{"type": "text"}),
		"blank":             block(map[string]any{"type": "text", "text": " \n"}),
		"audio":             block(map[string]any{"type": "audio", "data": "AA==", "mimeType": "audio/wav"}),
		"unknown":           block(map[string]any{"type": "video"}),
		"blob":              block(map[string]any{"type": "resource", "resource": map[string]any{"uri": "file:///x", "blob": "AA=="}}),
		"bad base64":        block(map[string]any{"type": "image", "mimeType": "image/png", "data": "?"}),
		"no image":          block(map[string]any{"type": "image", "mimeType": "text/plain", "data": "AA=="}),
		"image":             block(image), // the model does not see
	} {
		e := d.refused(acp.MethodPrompt, p)
		if e.Code != acp.CodeInvalidParams || !strings.HasPrefix(e.Message, "Invalid params: ") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	d.expect("unknown session", d.refused(acp.MethodPrompt, words("ses_none", "x")).Code, acp.CodeSessionNotFound)
	if len(r.log(id)) != 0 {
		t.Error("the session has a trace of them")
	}
	d.call(acp.MethodSetConfig, map[string]any{"sessionId": id, "configId": "model", "value": "p/sees/all"})
	q, err := d.Ask(acp.MethodPrompt, block(map[string]any{"type": "text", "text": "look"}, map[string]any{"type": "resource", "resource": map[string]any{"uri": "file:///a.md", "text": "```\nx\n```"}},
		map[string]any{"type": "resource_link", "uri": "zed:///b", "name": "b"}, image))
	if err != nil {
		t.Fatal(err)
	}
	a := r.model.next(t)
	user := a.req.Messages[len(a.req.Messages)-1]
	d.expect("text", user.Parts[0].Text, "look\n\nfile:///a.md\n````\n```\nx\n```\n````\n\n[b](zed:///b)")
	if len(user.Parts) != 2 || user.Parts[1].Blob == "" {
		t.Errorf("parts %+v", user.Parts)
	}
	a.answer("seen")
	d.expect("stop", d.stop(q), acp.StopEndTurn)
}

func TestListPagesAndRefusesStrangeCursors(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	d.open()
	for range listPage {
		d.session()
	}
	seen := map[string]bool{}
	cursor := ""
	for page := 0; page < 2; page++ {
		var l acp.ListResult
		if err := json.Unmarshal(d.call(acp.MethodList, map[string]any{"cwd": d.dir + "/.", "cursor": cursor}), &l); err != nil {
			t.Fatal(err)
		}
		for _, s := range l.Sessions {
			if seen[s.SessionID] || s.Cwd != d.dir {
				t.Errorf("page %d: %+v", page, s)
			}
			seen[s.SessionID] = true
		}
		cursor = l.NextCursor
	}
	if len(seen) != listPage+1 || cursor != "" {
		t.Errorf("%d sessions, cursor %q", len(seen), cursor)
	}
	for _, c := range []string{"50", "MQ", cursor + "x", base64.RawURLEncoding.EncodeToString([]byte("1 ses_1 00000000"))} {
		d.expect("cursor "+c, d.refused(acp.MethodList, map[string]any{"cursor": c}).Code, acp.CodeInvalidParams)
	}
	d.expect("relative", d.refused(acp.MethodList, map[string]any{"cwd": "x"}).Code, acp.CodeInvalidParams)
	d.expect("no session there", string(d.call(acp.MethodList, map[string]any{"cwd": "/nowhere"})), `{"sessions":[]}`)
}

func TestNewSessionsNeedAFolder(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	d.open()
	file := filepath.Join(d.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cwd := range []any{nil, 7, "", "relative", file, filepath.Join(d.dir, "gone")} {
		e := d.refused(acp.MethodNew, map[string]any{"cwd": cwd})
		if e.Code != acp.CodeInvalidParams {
			t.Errorf("%v: %+v", cwd, e)
		}
		if s, ok := cwd.(string); ok && s != "" && !strings.Contains(e.Message, s) {
			t.Errorf("%v is not named: %s", cwd, e.Message)
		}
	}
	for _, servers := range []string{`[{}]`, `[{"name":"x"}]`, `["x"]`, `[{"name":"x","command":"y","env":{"A":"b"}}]`} {
		d.expect(servers, d.refused(acp.MethodNew, map[string]any{"cwd": d.dir, "mcpServers": json.RawMessage(servers)}).Code, acp.CodeInvalidParams)
	}
}

func TestServersOfTheEditorReachTheExchangeOrAreNamed(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	d.open()
	var s acp.NewResult
	if err := json.Unmarshal(d.call(acp.MethodNew, map[string]any{"cwd": d.dir, "mcpServers": json.RawMessage(
		`[{"name":"files","command":"/bin/files","args":["-v"],"env":[{"name":"KEY","value":"secret-value"}]},{"type":"http","name":"web","url":"https://h/m","headers":[]}]`)}), &s); err != nil {
		t.Fatal(err)
	}
	p := d.say(s.SessionID, "go")
	r.model.next(t).answer("gone")
	d.stop(p)
	w := r.lastQuery().World
	if len(w.MCPServers) != 1 || w.MCPServers[0].Env[0] != "KEY=secret-value" || w.MCPServers[0].Args[0] != "-v" {
		t.Errorf("servers %+v", w.MCPServers)
	}
	first := d.until(acp.AgentChunk, 1).Update.Text()
	if !strings.HasPrefix(first, "> ⚠ MCP server \"web\"") {
		t.Errorf("the first words are %q", first)
	}
	p = d.say(s.SessionID, "again")
	r.model.next(t).answer("gone")
	d.stop(p)
	if n := strings.Count(d.text(acp.AgentChunk), "MCP server"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}

func TestAFaultCostsOneRequest(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	bad := filepath.Join(d.dir, "panics")
	if err := os.Mkdir(bad, 0o700); err != nil {
		t.Fatal(err)
	}
	e := d.refused(acp.MethodNew, map[string]any{"cwd": bad})
	d.expect("code", e.Code, acp.CodeInternal)
	p := d.say(id, "still here")
	r.model.next(t).answer("yes")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
}

func TestOddLinesAreAnsweredAndTheConnectionGoesOn(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	for _, tc := range []struct{ line, want string }{
		{"{", `null -32700`},
		{"[]", `null -32600`},
		{`[{"jsonrpc":"2.0","id":1,"method":"session/list"}]`, `null -32600`},
		{`"x"`, `null -32600`},
		{`{"jsonrpc":"1.0","id":"a","method":"session/list"}`, `"a" -32600`},
		{`{"jsonrpc":"2.0","id":{},"method":"session/list"}`, `null -32600`},
		{`{"jsonrpc":"2.0","id":"b","method":"_x/y","type":"request"}`, `"b" -32601`},
		{`{"jsonrpc":"2.0","id":12345678901234567890,"method":"session/set_mode"}`, `12345678901234567890 -32601`},
		{`{"jsonrpc":"2.0","id":"7","method":"session/new","params":[]}`, `"7" -32602`},
		{`{"jsonrpc":"2.0","id":"v","method":"initialize","params":{"protocolVersion":"1"}}`, `"v" -32602`},
		{`{"jsonrpc":"2.0","id":null,"method":"session/load","params":{"sessionId":"ses_none","cwd":"/"}}`, `null -32002`},
	} {
		from := len(d.Lines())
		// Ids of the table are none that the client has asked with.
		if err := d.Send("\r\n  \n" + tc.line + "\r\n"); err != nil {
			t.Fatal(err)
		}
		l, _, err := d.Until(within, from, func(l acptest.Line) bool { return l.Error != nil })
		if err != nil {
			t.Fatal(err)
		}
		d.expect(tc.line, fmt.Sprint(string(l.ID), " ", l.Error.Code), tc.want)
	}
	for _, silent := range []string{`{"jsonrpc":"2.0","method":"x"}`, `{"jsonrpc":"2.0","method":"session/new","params":7}`, `{"jsonrpc":"2.0","id":9,"result":{}}`} {
		if err := d.Send(silent + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	p := d.say(id, "still here")
	r.model.next(t).answer("yes")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	for _, l := range d.Faults() {
		if !strings.HasPrefix(l, "answer to nothing") {
			t.Error(l)
		}
	}
	d.Client = acptest.New(nil) // their faults were looked at
}

func TestALargeLineIsTakenAndOneOverTheLimitIsNot(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	d.call(acp.MethodSetConfig, map[string]any{"sessionId": id, "configId": "model", "value": "p/sees/all"})
	line, p := d.Line(acp.MethodPrompt, map[string]any{"sessionId": id, "prompt": []any{map[string]any{"type": "text", "text": "look"}, map[string]any{"type": "image", "mimeType": "image/png", "data": "DATA"}}})
	size := acp.MaxLine
	if !*large {
		size = 8 << 20
	}
	room := (size - len(line) + 1 + len("DATA")) / 4 * 4
	line = strings.Replace(line, "DATA", strings.Repeat("AAAA", room/4), 1)
	if err := d.Send(line); err != nil {
		t.Fatal(err)
	}
	r.model.next(t).answer("large")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	if err := d.Send(`{"jsonrpc":"2.0","id":5,"x":"` + strings.Repeat("y", acp.MaxLine) + "\"}\n"); err != nil {
		t.Fatal(err)
	}
	l, _, err := d.Until(within, 0, func(l acptest.Line) bool { return string(l.ID) == "null" })
	if err != nil || l.Error.Code != acp.CodeInvalidRequest {
		t.Errorf("%+v %v", l, err)
	}
	p = d.say(id, "still here")
	r.model.next(t).answer("yes")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
}

func TestCloseStopsAndDeleteRemoves(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	p := d.say(id, "long")
	r.model.next(t).start()
	d.expect("close", string(d.call(acp.MethodClose, map[string]any{"sessionId": id})), "{}")
	d.expect("stop", d.stop(p), acp.StopCancelled)
	d.expect("not open", string(d.call(acp.MethodClose, map[string]any{"sessionId": id})), "{}")
	from := len(d.Lines())
	d.call(acp.MethodResume, map[string]any{"sessionId": id, "cwd": d.dir})
	d.expect("no replay", d.kinds(from)[0], "answer")
	p = d.say(id, "again")
	r.model.next(t).start()
	d.expect("delete", string(d.call(acp.MethodDelete, map[string]any{"sessionId": id})), "{}")
	d.expect("stop", d.stop(p), acp.StopCancelled)
	d.expect("gone", d.refused(acp.MethodLoad, map[string]any{"sessionId": id, "cwd": d.dir}).Code, acp.CodeSessionNotFound)
	d.expect("unknown", string(d.call(acp.MethodDelete, map[string]any{"sessionId": id})), "{}")
}

func TestALoadDuringATurnIsFollowedByTheRestOfIt(t *testing.T) {
	g := newGate()
	r := newRig(t, g.tool("slow"))
	d := newDesk(t, r)
	id := d.open()
	p := d.say(id, "one")
	a := r.model.next(t)
	a.start()
	a.text("before")
	a.done(messages.StopToolUse, messages.Part{Type: messages.PartText, Text: "before"}, toolCall("c1", "slow", `{}`))
	g.wait(t)
	d.until("tool_call", 1)
	load, err := d.Ask(acp.MethodLoad, map[string]any{"sessionId": id, "cwd": d.dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Answer(within, load); err != nil {
		t.Fatal(err)
	}
	d.until("session_info_update", 2) // the title, once more
	from := len(d.Lines())
	g.release <- struct{}{}
	r.model.next(t).answer("after")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	d.expect("behind the load", d.kinds(from), []string{"completed", "agent_message_chunk", "usage_update", "answer"})
}

func TestASessionWithoutItsFolderIsReplayedAndNotPrompted(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	d.open()
	dir := filepath.Join(d.dir, "project")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var s acp.NewResult
	if err := json.Unmarshal(d.call(acp.MethodNew, map[string]any{"cwd": dir}), &s); err != nil {
		t.Fatal(err)
	}
	p := d.say(s.SessionID, "one")
	r.model.next(t).answer("first")
	d.stop(p)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	d.call(acp.MethodLoad, map[string]any{"sessionId": s.SessionID, "cwd": d.dir})
	d.expect("replay", d.text(acp.UserChunk), "one")
	e := d.refused(acp.MethodPrompt, words(s.SessionID, "two"))
	if e.Code != acp.CodeInternal || !strings.Contains(e.Message, dir) {
		t.Errorf("%+v", e)
	}
}

func TestAClientWithNoticesGetsThemAtOnceAndNoText(t *testing.T) {
	r := newRig(t)
	r.with(func(x *Exchange) { x.Notices = []string{"a key is unknown"} })
	d := newDesk(t, r)
	d.hello()
	d.call(acp.MethodInitialize, map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{"session": map[string]any{"notices": map[string]any{}}}})
	var s acp.NewResult
	if err := json.Unmarshal(d.call(acp.MethodNew, map[string]any{"cwd": d.dir, "mcpServers": json.RawMessage(`[{"type":"sse","name":"old","url":"https://h/s","headers":[]}]`)}), &s); err != nil {
		t.Fatal(err)
	}
	if got := d.until("notice", 1).Update.Description; !strings.Contains(got, `"old"`) {
		t.Errorf("%q", got)
	}
	p := d.say(s.SessionID, "go")
	r.model.next(t).fail(messages.Failure{Type: messages.FailUnavailable, Message: "overloaded", Retryable: true})
	r.model.next(t).answer("well")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	d.expect("text", d.text(acp.AgentChunk), "well")
	d.expect("settings", d.until("notice", 2).Update.Description, "a key is unknown")
	if got := d.until("notice", 3).Update.Description; !strings.HasPrefix(got, "overloaded; attempt 2") {
		t.Errorf("%q", got)
	}
}

func TestAnEditorGoesOnWithAnotherGateway(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	moved := make(chan error, 1)
	go func() { moved <- r.system.MoveEditors(r.ctx) }()
	next, there := acp.Pipe()
	line, p := d.Line(acp.MethodPrompt, words(id, "between two"))
	half := len(line) / 2
	if word := <-d.Words; !word.Pause {
		t.Fatalf("told %+v", word)
	}
	if err := d.Send(line[:half]); err != nil {
		t.Fatal(err)
	}
	if err := acp.Say(d.conn, acp.Word{Paused: true}); err != nil {
		t.Fatal(err)
	}
	word := <-d.Words
	if word.State == nil || <-moved != nil {
		t.Fatalf("told %+v", word)
	}
	<-d.served
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = r.system.ServeEditor(context.Background(), there)
	}()
	t.Cleanup(func() { next.Close(); <-served })
	again, err := acptest.Over(next, messages.Hello{Cwd: d.dir, Env: map[string]string{}, Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := acp.Say(next, acp.Word{State: word.State}); err != nil {
		t.Fatal(err)
	}
	if err := again.Send(line[half:]); err != nil {
		t.Fatal(err)
	}
	r.model.next(t).answer("here")
	l, err := again.Answer(within, p)
	if err != nil || !strings.Contains(string(l.Result), acp.StopEndTurn) {
		t.Errorf("%s %v", l.Result, err)
	}
}

// An editor that is asked to hold does nothing of what it says meanwhile. It
// goes on with it when its process does, and else hands it over unread.
func TestAnEditorHoldsWhatItSaysWhileItsProcessDecides(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	editor := r.editor()
	hold := func(want bool) {
		t.Helper()
		if quiet, err := Ask[bool](r.ctx, editor, holdEditor{}); quiet != want || err != nil {
			t.Fatalf("nothing is under way: %v, %v", quiet, err)
		}
	}
	hold(true)
	p := d.say(id, "held")
	editor.Tell(goOnEditor{})
	a := r.model.next(t)
	hold(false)
	editor.Tell(goOnEditor{})
	a.answer("here")
	d.expect("stop", d.stop(p), acp.StopEndTurn)

	hold(true)
	d.say(id, "for the next one")
	moved := make(chan error, 1)
	go func() { moved <- r.system.MoveEditors(r.ctx) }()
	if word := <-d.Words; !word.Pause {
		t.Fatalf("told %+v", word)
	}
	if err := acp.Say(d.conn, acp.Word{End: true}); err != nil { // it has left, behind what it said
		t.Fatal(err)
	}
	word := <-d.Words
	var st editorState
	if word.State == nil || <-moved != nil || json.Unmarshal(word.State, &st) != nil || !strings.Contains(string(st.Unread), "for the next one") {
		t.Errorf("handed over with %s", word.State)
	}
	<-d.served
	if n := len(r.model.asked); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

// The end of admission is refused while an editor has something under way, and
// takes the editor along otherwise.
func TestAdmissionDoesNotEndUnderAnEditorsTurn(t *testing.T) {
	r := newRig(t)
	d := newDesk(t, r)
	id := d.open()
	p := d.say(id, "go")
	a := r.model.next(t)
	if r.closes() {
		t.Fatal("admission ended")
	}
	a.answer("ok")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	p = d.say(id, "again") // it goes on after that
	a = r.model.next(t)
	a.answer("ok")
	d.expect("stop", d.stop(p), acp.StopEndTurn)
	r.closesAtLast()
	d.say(id, "behind the end")
	moved := make(chan error, 1)
	go func() { moved <- r.system.MoveEditors(r.ctx) }()
	if word := <-d.Words; !word.Pause {
		t.Fatalf("told %+v", word)
	}
	if err := acp.Say(d.conn, acp.Word{Paused: true}); err != nil {
		t.Fatal(err)
	}
	word := <-d.Words
	var st editorState
	if word.State == nil || <-moved != nil || json.Unmarshal(word.State, &st) != nil || !strings.Contains(string(st.Unread), "behind the end") {
		t.Errorf("handed over with %s", word.State)
	}
	<-d.served
}

// editor is the one editor's actor.
func (r *rig) editor() *Ref {
	r.t.Helper()
	for _, v := range r.system.rt.look() {
		if v.kind == "editor" {
			return v.ref
		}
	}
	r.t.Fatal("there is no editor")
	return nil
}
