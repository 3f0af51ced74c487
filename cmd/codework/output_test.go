package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"codework/messages"
)

var golden = messages.Usage{Input: 2318, Output: 904, Reasoning: 260, CacheRead: 38700, TotalTokens: 41922,
	Cost: messages.Cost{Total: 0.0321}}

const session = "ses_0199f3c2-7b1e-7d40-9a6c-2f5be0c41d77"

func TestHeaderAndUsageAsTheManualShowsThem(t *testing.T) {
	o, out, err := buffered("text")
	o.header(messages.SessionInfo{ID: session, Directory: "/srv/app"})
	o.work(messages.EventLLMTextDelta, messages.EventData{MessageID: "1", Delta: ptr("(answer)")})
	o.work(messages.EventLLMEnded, answer("1", "(answer)", &golden))
	for range 4 {
		o.work(messages.EventTurnEnded, messages.EventData{})
	}
	if e := o.end(&watch{status: "succeeded"}, nil); e != nil {
		t.Fatal(e)
	}
	same(t, "standard output", out.String(), "(answer)\n")
	same(t, "standard error", err.String(), `session  ses_0199f3c2-7b1e-7d40-9a6c-2f5be0c41d77
sandbox  local · /srv/app

── response ────────────────────────────────────────────────────────────
── usage ───────────────────────────────────────────────────────────────
model    anthropic/claude-sonnet-4-5
tokens   2,318 input · 904 output · 260 reasoning · 41,922 total
cache    38,700 read · 0 write
cost     $0.0321 · 4 turns
`)
}

func TestASandboxThatIsNotLocalShowsItsId(t *testing.T) {
	o, _, err := buffered("text")
	o.header(messages.SessionInfo{ID: session, Directory: "/work", Sandbox: &messages.SandboxInfo{ID: "sbx_1", Driver: "docker", Kind: messages.KindVirtual}})
	same(t, "header", err.String(), `session  ses_0199f3c2-7b1e-7d40-9a6c-2f5be0c41d77
sandbox  docker · /work
sandbox-id sbx_1

── response ────────────────────────────────────────────────────────────
`)
	err.Reset()
	o.header(messages.SessionInfo{ID: session}) // the same after another attempt
	same(t, "the same session again", err.String(), "")
}

func TestTheRuleIsAsWideAsItMayBe(t *testing.T) {
	for _, width := range []int{ruleLeast, ruleDefault, ruleMost} {
		for _, name := range []string{"usage", "response"} {
			o, _, err := buffered("text")
			o.width = width
			o.rule(name)
			if n := len([]rune(strings.TrimSuffix(err.String(), "\n"))); n != width {
				t.Errorf("%q is %d wide, want %d", err, n, width)
			}
		}
	}
}

func TestUsageLines(t *testing.T) {
	for _, c := range []struct {
		usage messages.Usage
		turns int
		want  []string
	}{
		{messages.Usage{}, 1, []string{"tokens   0 input · 0 output · 0 total", "cost     $0.0000 · 1 turn"}},
		{messages.Usage{Input: 999, Output: 1000, TotalTokens: 1234567}, 2, []string{"tokens   999 input · 1,000 output · 1,234,567 total", "· 2 turns"}},
		{messages.Usage{Reasoning: 1}, 2, []string{" · 1 reasoning · "}},
		{messages.Usage{CacheRead: 1000, CacheWrite: 20}, 2, []string{"cache    1,000 read · 20 write"}},
		{messages.Usage{Cost: messages.Cost{Total: 0.000123}}, 2, []string{"cost     $0.000123 · "}},
		{messages.Usage{Cost: messages.Cost{Total: 0.009999}}, 2, []string{"$0.009999"}},
		{messages.Usage{Cost: messages.Cost{Total: 0.01}}, 2, []string{"$0.0100"}},
		{messages.Usage{Cost: messages.Cost{Total: 1234.5}}, 2, []string{"$1234.5000"}},
	} {
		o, _, err := buffered("text")
		o.usage, o.turns, o.model = c.usage, c.turns, "p/m"
		o.printUsage()
		for _, want := range c.want {
			if !strings.Contains(err.String(), want) {
				t.Errorf("%+v: no %q in\n%s", c.usage, want, err)
			}
		}
		if c.usage.Reasoning == 0 && strings.Contains(err.String(), "reasoning") {
			t.Errorf("reasoning of none:\n%s", err)
		}
	}
}

func TestUsageAddsUpAndTheLastModelIsNamed(t *testing.T) {
	o, _, err := buffered("text")
	for i, model := range []string{"first", "second"} {
		d := answer(fmt.Sprint(i), "", &messages.Usage{Input: 600, TotalTokens: 600})
		d.Message.Model = model
		o.work(messages.EventLLMEnded, d)
		o.work(messages.EventTurnEnded, messages.EventData{})
	}
	_ = o.end(&watch{}, nil)
	for _, want := range []string{"model    anthropic/second", "1,200 input", "2 turns"} {
		if !strings.Contains(err.String(), want) {
			t.Errorf("no %q in\n%s", want, err)
		}
	}
}

func TestUsageIsShownWheneverATurnEnded(t *testing.T) {
	for _, c := range []struct {
		turns int
		quiet bool
		end   error
		want  bool
	}{
		{1, false, nil, true},
		{1, false, &messages.Failure{Type: messages.FailTimeout, Message: "too slow"}, true},
		{1, false, stopped{130}, true},
		{1, false, errTimeout, true},
		{0, false, nil, false},
		{0, false, stopped{130}, false},
		{1, true, nil, false},
	} {
		o, _, err := buffered("text")
		o.turns, o.quiet = c.turns, c.quiet
		_ = o.end(&watch{}, c.end)
		if got := strings.Contains(err.String(), "── usage"); got != c.want {
			t.Errorf("%+v: shown %v", c, got)
		}
	}
}

// step is one thing that happens to an output.
type step func(*output)

func text(id, s string) step {
	return func(o *output) { o.work(messages.EventLLMTextDelta, messages.EventData{MessageID: id, Delta: &s}) }
}

func ended(id, s string) step {
	return func(o *output) { o.work(messages.EventLLMEnded, answer(id, s, nil)) }
}

func dropped(id, reason, s string) step {
	return func(o *output) {
		d := answer(id, s, nil)
		d.Reason = reason
		o.work(messages.EventLLMFailed, d)
	}
}

func tool(label string) step {
	return func(o *output) { o.work(messages.EventToolStarted, messages.EventData{Label: label}) }
}

func TestTextOfAnAnswer(t *testing.T) {
	const mark = "· the text above is of an attempt that failed and does not count\n"
	for _, c := range []struct {
		name        string
		steps       []step
		piped, live string
		liveErr     string
	}{
		{"in pieces", []step{text("1", "He"), text("1", "llo"), ended("1", "Hello")}, "Hello\n", "Hello\n", ""},
		{"without text", []step{ended("1", "")}, "", "", ""},
		{"with its own line end", []step{text("1", "Hello\n"), ended("1", "Hello\n")}, "Hello\n", "Hello\n", ""},
		{"two messages", []step{text("1", "a"), ended("1", "a"), text("2", "b"), ended("2", "b")}, "a\n\nb\n", "a\n\nb\n", ""},
		{"two messages, line end between", []step{text("1", "a\n"), ended("1", "a\n"), text("2", "b"), ended("2", "b")}, "a\n\nb\n", "a\n\nb\n", ""},
		{"a silent message between", []step{text("1", "a"), ended("1", "a"), ended("2", ""), text("3", "b"), ended("3", "b")}, "a\n\nb\n", "a\n\nb\n", ""},
		{"stopped in the middle", []step{text("1", "Hal"), dropped("1", "aborted", "Hal")}, "Hal\n", "Hal\n", ""},
		{"a dropped attempt", []step{text("1", "Hal"), dropped("1", "error", "Hal"), text("2", "Whole"), ended("2", "Whole")},
			"Whole\n", "Hal\n\nWhole\n", mark},
		{"a dropped attempt of another message", []step{text("1", "a"), dropped("0", "error", ""), ended("1", "a")}, "a\n", "a\n", ""},
		{"a dropped attempt that ends its line", []step{text("1", "Hal\n"), dropped("1", "error", "Hal\n")}, "", "Hal\n", mark},
		{"dropped without a text", []step{dropped("1", "error", ""), text("2", "b"), ended("2", "b")}, "b\n", "b\n", ""},
		{"cut off by the end", []step{text("1", "Hal")}, "", "Hal\n", ""},
		{"a tool between", []step{text("1", "a"), ended("1", "a"), tool("bash  ls"), text("2", "b"), ended("2", "b")}, "a\n\nb\n", "a\n\nb\n", "· bash  ls\n"},
		{"pieces lost at the end", []step{text("1", "He"), ended("1", "Hello")}, "Hello\n", "Hello\n", ""},
		{"all pieces lost", []step{ended("1", "Hello")}, "Hello\n", "Hello\n", ""},
		{"pieces lost in the middle", []step{text("1", "He"), text("1", "o"), ended("1", "Hello")}, "Hello\n", "Heo\n\nHello\n", ""},
		{"stopped, pieces lost", []step{dropped("1", "aborted", "Hal")}, "Hal\n", "Hal\n", ""},
	} {
		for _, live := range []bool{false, true} {
			o, out, err := buffered("text")
			o.live, o.progress = live, live
			for _, s := range c.steps {
				s(o)
			}
			_ = o.end(&watch{}, nil)
			want, wantErr := c.piped, ""
			if live {
				want, wantErr = c.live, c.liveErr
			}
			same(t, fmt.Sprintf("%s, live %v", c.name, live), out.String(), want)
			same(t, fmt.Sprintf("%s, live %v, standard error", c.name, live), err.String(), wantErr)
		}
	}
}

func TestThinkingNeverReachesTheOutput(t *testing.T) {
	o, out, err := buffered("text")
	o.live, o.progress = true, true
	o.work(messages.EventLLMThinkingDelta, messages.EventData{MessageID: "1", Delta: ptr("secret thought")})
	ended("1", "")(o)
	same(t, "output", out.String()+err.String(), "")
}

func TestProgressOfARetry(t *testing.T) {
	o, _, err := buffered("text")
	o.progress = true
	o.work(messages.EventRetryScheduled, messages.EventData{Attempt: 1, DelayMs: ptr(int64(2000)), Error: &messages.Failure{Message: "overloaded"}})
	same(t, "progress", err.String(), "· waiting 2s before attempt 2: overloaded\n")
}

func result1(t *testing.T, line string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return m
}

func TestJSONIsOneObjectAtTheEnd(t *testing.T) {
	o, out, err := buffered("json")
	o.header(messages.SessionInfo{ID: session, Directory: "/srv"})
	for _, s := range []step{text("1", "Hal"), dropped("1", "error", "Hal"), text("2", "<b>"), ended("2", "<b>"), text("3", "c"), ended("3", "c")} {
		s(o)
	}
	o.usage, o.turns = golden, 2
	o.notice("careful")
	if e := o.end(&watch{status: "succeeded"}, nil); e != nil {
		t.Fatal(e)
	}
	same(t, "standard error", err.String(), "")
	m := result1(t, out.String())
	if strings.Count(out.String(), "\n") != 1 || m["session"] != session || m["status"] != "succeeded" || m["text"] != "<b>\n\nc" ||
		m["stopReason"] != "stop" || m["turns"] != 2.0 || m["cost"] != 0.0321 || m["error"] != nil {
		t.Errorf("got %s", out)
	}
	if u, ok := m["usage"].(map[string]any); !ok || u["totalTokens"] != 41922.0 {
		t.Errorf("usage %v", m["usage"])
	}
}

func TestEveryErrorIsInTheJSON(t *testing.T) {
	for _, c := range []struct {
		name   string
		status string // of the watch
		err    error
		want   string // status, type, message
		code   int
	}{
		{"nothing", "succeeded", nil, "succeeded", 0},
		{"failure", "failed", &messages.Failure{Type: messages.FailRateLimit, Message: "slow down", Status: 429, Model: "p/m"},
			"failed provider-rate-limit-error slow down 429", 1},
		{"stopped", "interrupted", stopped{130}, "interrupted", 130},
		{"stopped before it began", "", stopped{143}, "interrupted", 143},
		{"time limit", "interrupted", errTimeout, "interrupted timeout the time limit of this run is over; the work was interrupted", 1},
		{"tagged", "", &messages.SessionNotFound{SessionID: session}, "failed session-not-found-error no session " + session, 1},
		{"refused", "", &messages.Refused{Name: messages.RefusedBusy, Message: "too much"}, "failed busy too much", 1},
		{"anything else", "", io.ErrUnexpectedEOF, "failed unknown-error unexpected EOF", 1},
		{"problem", "", &problem{slug: "queued", err: errStillQueued}, "failed queued " + errStillQueued.Error(), 1},
	} {
		for _, format := range []string{"json", "stream-json"} {
			o, out, _ := buffered(format)
			err := o.end(&watch{status: c.status}, c.err)
			m := result1(t, out.String())
			got := fmt.Sprint(m["status"])
			if e, ok := m["error"].(map[string]any); ok {
				got += fmt.Sprintf(" %v %v", e["type"], e["message"])
				if e["status"] != nil {
					got += fmt.Sprint(" ", e["status"])
				}
			}
			if code := report(io.Discard, err); got != c.want || code != c.code {
				t.Errorf("%s as %s: %q with code %d, want %q with %d", c.name, format, got, code, c.want, c.code)
			}
		}
	}
}

func TestStreamJSONIsEveryEventAsALine(t *testing.T) {
	o, out, _ := buffered("stream-json")
	e := messages.Event{ID: "evt_1", Type: messages.EventTurnEnded, Session: session, Seq: 7, Data: json.RawMessage(`{"timestamp":1,"sessionId":"` + session + `"}`)}
	o.event(e)
	text("1", "not as text")(o)
	ended("1", "not as text")(o)
	_ = o.end(&watch{status: "succeeded"}, nil)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("lines %q", lines)
	}
	first := result1(t, lines[0])
	if d, ok := first["durable"].(map[string]any); !ok || first["type"] != messages.EventTurnEnded || d["seq"] != 7.0 {
		t.Errorf("event %s", lines[0])
	}
	if result1(t, lines[1])["text"] != "not as text" {
		t.Errorf("result %s", lines[1])
	}
	o, out, _ = buffered("text")
	o.event(e)
	same(t, "an event as text", out.String(), "")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAnAnswerThatCannotBePrintedIsAFailure(t *testing.T) {
	for _, format := range []string{"text", "json", "stream-json"} {
		o, _, _ := buffered(format)
		o.out = fullDisk{}
		text("1", "a")(o)
		ended("1", "a")(o)
		err := o.end(&watch{status: "succeeded"}, nil)
		if err == nil || !strings.Contains(err.Error(), "write the answer: no space left on device") {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func TestErrorBlocks(t *testing.T) {
	o := &output{session: session}
	for _, c := range []struct {
		err  error
		want string
		code int
	}{
		{usagef("--model: expected %s", "provider/model"), "error: --model: expected provider/model\n", 2},
		{errors.New("plain"), "error: plain\n", 1},
		{&messages.Failure{Type: messages.FailRateLimit, Message: "slow down", Status: 429, Request: "req_1", Model: "p/m", Hint: "wait 20 s"},
			"error[provider-rate-limit-error]: p/m: slow down\nsession: " + session + "\nrequest: req_1\nstatus: 429\nhint: wait 20 s\n", 1},
		{&messages.Failure{Type: messages.FailSettings, Code: "settings-decode-failed", Message: "/h/settings.jsonc: decode: model.id: expected a string"},
			"error[settings-decode-failed]: /h/settings.jsonc\ndetail: model.id: expected a string\n", 1},
		{&messages.SessionNotFound{SessionID: "ses_x"},
			"error[session-not-found-error]: no session ses_x\nhint: the newest session of a directory continues with: codework run --continue\n", 1},
		{&messages.SandboxDriverNotRegistered{Driver: "moon", Registered: []string{"docker", "local"}},
			"error[sandbox-driver-not-registered]: no sandbox driver moon\nregistered: docker, local\n", 1},
		{&messages.DirectoryNotFound{Directory: "/none"}, "error[location-directory-not-found]: no such directory: /none\n", 1},
		{&messages.Refused{Name: messages.RefusedStore, Message: "the disk is full"}, "error[store]: the disk is full\n", 1},
		{fmt.Errorf("open: %w", &messages.SessionBusy{SessionID: "ses_x"}), "error[session-busy]: open: session ses_x is busy\n", 1},
		{&problem{slug: "connection", err: errors.New("gone"), fields: []field{{"home", "/h"}, {"log", ""}}, hint: "look"},
			"error[connection]: gone\nhome: /h\nhint: look\n", 1},
		{stopped{130}, "", 130},
		{fmt.Errorf("wrapped: %w", stopped{143}), "", 143},
		{nil, "", 0},
	} {
		var b strings.Builder
		code := report(&b, explain(c.err, o.session))
		same(t, fmt.Sprint(c.err), b.String(), c.want)
		if code != c.code {
			t.Errorf("%v: code %d, want %d", c.err, code, c.code)
		}
	}
}

func TestControlCharactersNeverReachTheTerminal(t *testing.T) {
	o, _, err := buffered("text")
	o.progress = true
	o.header(messages.SessionInfo{ID: hostile, Directory: "/" + hostile, Sandbox: &messages.SandboxInfo{ID: hostile, Driver: hostile}})
	o.notice(hostile)
	tool(hostile)(o)
	o.work(messages.EventRetryScheduled, messages.EventData{DelayMs: ptr(int64(1)), Error: &messages.Failure{Message: hostile}})
	d := answer("1", "", &golden)
	d.Message.Provider, d.Message.Model = hostile, hostile
	o.work(messages.EventLLMEnded, d)
	o.printUsage()
	printProblem(err, &problem{slug: "x", err: errors.New(hostile), fields: []field{{"title", hostile}}, hint: hostile})
	printProblem(err, explain(&messages.Failure{Type: messages.FailUnknown, Message: hostile, Request: hostile}, o.session).(*problem))
	noControls(t, "standard error", err.String())
	if !strings.Contains(err.String(), "a]52;c;eA==b[2Jc  d31mef g") {
		t.Errorf("the text itself is gone:\n%s", err)
	}
}

// Whatever comes in: one line, no control characters, and done once is done.
func FuzzOneLineIsOneLine(f *testing.F) {
	for _, s := range []string{"", "plain", hostile, "\xff\xfe", " \t ", "line\nline"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := oneLine(s)
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0x2028 }) {
			t.Errorf("%q became %q", s, got)
		}
		if again := oneLine(got); strings.TrimSpace(got) != again {
			t.Errorf("%q, again %q", got, again)
		}
	})
}
