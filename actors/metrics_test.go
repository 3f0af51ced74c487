package actors

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"codework/internal/metrics"
	"codework/internal/store"
	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

func counted(c *Config) { c.Metrics = metrics.New("1.2.3") }

// request sends a request to a listener with these rules.
func request(s *System, accept effectrpc.AcceptOptions, method, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = "localhost:7433"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.Handler(accept, false).ServeHTTP(w, r)
	return w
}

func look(s *System, path string) (int, string) {
	w := request(s, effectrpc.AcceptOptions{}, http.MethodGet, path, nil)
	return w.Code, w.Body.String()
}

func TestWhatIsLookedAtFollowsTheRulesOfTheListener(t *testing.T) {
	r := newRigWith(t, counted)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	token := effectrpc.AcceptOptions{Token: "secret"}
	for _, path := range []string{MetricsPath, HealthPath, ReadyPath} {
		for _, x := range []struct {
			name   string
			accept effectrpc.AcceptOptions
			method string
			change func(*http.Request)
			want   int
		}{
			{"plain", effectrpc.AcceptOptions{}, "GET", nil, 200},
			{"head", effectrpc.AcceptOptions{}, "HEAD", nil, 200},
			{"to be written", effectrpc.AcceptOptions{}, "POST", nil, 405},
			{"a rebound name", effectrpc.AcceptOptions{}, "GET", host("evil.example"), 403},
			{"a listed name", effectrpc.AcceptOptions{AllowHosts: []string{"box.example"}}, "GET", host("box.example:9"), 200},
			{"a page", effectrpc.AcceptOptions{}, "GET", header("Origin", "http://localhost:8080"), 403},
			{"no origin", effectrpc.AcceptOptions{}, "GET", header("Origin", "null"), 403},
			{"a listed page", effectrpc.AcceptOptions{AllowOrigins: []string{"https://x.example"}}, "GET", header("Origin", "https://x.example"), 200},
			{"without the token", token, "GET", nil, 401},
			{"a wrong token", token, "GET", header("Authorization", "Bearer wrong"), 401},
			{"the token", token, "GET", header("Authorization", "Bearer secret"), 200},
			{"the token of a rebound name", token, "GET", func(r *http.Request) {
				r.Host = "evil.example"
				r.Header.Set("Authorization", "Bearer secret")
			}, 403},
			{"over the socket", effectrpc.AcceptOptions{TrustHost: true}, "GET", host("codework"), 200},
			{"a page over the socket", effectrpc.AcceptOptions{TrustHost: true}, "GET", header("Origin", "https://x.example"), 403},
		} {
			w := request(r.system, x.accept, x.method, path, x.change)
			if w.Code != x.want {
				t.Errorf("%s, %s: %d, not %d", path, x.name, w.Code, x.want)
			}
			if x.want != 200 && strings.Contains(w.Body.String(), "codework_") {
				t.Errorf("%s, %s: something was shown", path, x.name)
			}
		}
	}
}

func TestAServerWithoutCountersShowsNone(t *testing.T) {
	r := newRig(t)
	if code, _ := look(r.system, MetricsPath); code != http.StatusNotFound {
		t.Errorf("answered %d", code)
	}
	if code, body := look(r.system, ReadyPath); code != http.StatusOK || body != "ok\n" {
		t.Errorf("ready: %d %s", code, body)
	}
}

func TestReadinessIsThatOfTheStore(t *testing.T) {
	r := newRig(t)
	r.flaky.failWhen(func(b store.Batch) error {
		return &messages.Refused{Name: messages.RefusedStore, Message: "the disk is full"}
	})
	if code, body := look(r.system, ReadyPath); code != http.StatusServiceUnavailable || body != "the disk is full\n" {
		t.Errorf("ready with a full disk: %d %s", code, body)
	}
	if code, _ := look(r.system, HealthPath); code != http.StatusOK {
		t.Errorf("healthy with a full disk: %d", code)
	}
	r.flaky.failWhen(nil)
	if code, _ := look(r.system, ReadyPath); code != http.StatusOK {
		t.Errorf("ready again: %d", code)
	}
	if n, err := r.store.Count(r.ctx); n != 0 || err != nil {
		t.Errorf("the question left %d sessions, %v", n, err)
	}
}

func TestAServerThatGoesDownIsHealthyAndNotReady(t *testing.T) {
	r := newRig(t)
	if err := r.system.Settle(soon(t)); err != nil {
		t.Fatal(err)
	}
	if code, body := look(r.system, ReadyPath); code != http.StatusServiceUnavailable || !strings.Contains(body, "going down") {
		t.Errorf("ready: %d %s", code, body)
	}
	if code, _ := look(r.system, HealthPath); code != http.StatusOK {
		t.Errorf("healthy: %d", code)
	}
	system := r.system
	r.down()
	if code, _ := look(system, HealthPath); code != http.StatusServiceUnavailable {
		t.Errorf("healthy without actors: %d", code)
	}
}

// sample is the value of a line of /metrics, "" if there is none.
func sample(t *testing.T, s *System, line string) string {
	t.Helper()
	_, body := look(s, MetricsPath)
	m := regexp.MustCompile(`(?m)^codework_` + regexp.QuoteMeta(line) + ` (.*)$`).FindStringSubmatch(body)
	if m == nil {
		return ""
	}
	return m[1]
}

func TestWhatASessionDoesIsCounted(t *testing.T) {
	r := newRigWith(t, counted)
	id := r.create()
	r.prompt(id, "a prompt that is in no label", messages.Steer)
	a := r.model.next(t)
	a.fail(messages.Failure{Type: messages.FailUnavailable, Retryable: true})
	a = r.model.next(t)
	a.start()
	a.text("hello")
	a.emit(messages.StreamEvent{Kind: messages.StreamDone, Message: &messages.Message{StopReason: messages.StopStop,
		Usage: &messages.Usage{Input: 100, Output: 20, TotalTokens: 120, Cost: messages.Cost{Total: 0.5}},
		Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}}}})
	r.wait(id)
	r.prompt(id, "another", messages.FollowUp)
	r.model.next(t).fail(messages.Failure{Type: messages.FailQuota})
	r.wait(id)
	r.prompt(id, "a third", messages.Steer)
	r.model.next(t)
	if !r.interrupt(id) {
		t.Fatal("not interrupted")
	}
	r.wait(id)
	for line, want := range map[string]string{
		`prompts_total{delivery="steer"}`:                   "2",
		`prompts_total{delivery="followUp"}`:                "1",
		`executions_total{outcome="succeeded"}`:             "1",
		`executions_total{outcome="failed"}`:                "1",
		`executions_total{outcome="interrupted"}`:           "1",
		`turns_total{outcome="succeeded"}`:                  "1",
		`turns_total{outcome="failed"}`:                     "2",
		`turns_total{outcome="interrupted"}`:                "1",
		`retries_total{type="provider-unavailable-error"}`:  "1",
		`failures_total{type="provider-quota-error"}`:       "1",
		`tokens_total{kind="input"}`:                        "100",
		`tokens_total{kind="output"}`:                       "20",
		`cost_usd_total`:                                    "0.5",
		`first_delta_duration_seconds_count`:                "1",
		`turn_duration_seconds_count`:                       "1",
		`events_total{type="session.execution.started"}`:    "3",
		`sessions{state="idle"}`:                            "1",
		`stored_sessions`:                                   "1",
		`subscribers`:                                       "1",
		`actors{kind="session"}`:                            "1",
		`actors{kind="hub"}`:                                "1",
		`accepting`:                                         "1",
		`store_append_duration_seconds_bucket{le="+Inf"}`:   sample(t, r.system, "store_append_duration_seconds_count"),
		`tool_calls_total{outcome="completed",tool="bash"}`: "0",
		`plugins{state="running"}`:                          "0",
	} {
		if got := sample(t, r.system, line); got != want {
			t.Errorf("%s is %q, not %q", line, got, want)
		}
	}
	if _, body := look(r.system, MetricsPath); strings.Contains(body, id) || strings.Contains(body, "in no label") {
		t.Error("a session or a prompt is in a label")
	}
}

func TestToolCallsAreCounted(t *testing.T) {
	gate := newGate()
	r := newRigWith(t, counted, gate.tool("bash"), gate.tool("named-by-a-plugin"))
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	r.model.next(t).call(toolCall("1", "bash", `{}`), toolCall("2", "named-by-a-plugin", `{}`), toolCall("3", "made-up", `{}`))
	for range 2 {
		gate.wait(t)
		gate.release <- struct{}{}
	}
	r.model.next(t).answer("done")
	r.wait(id)
	for line, want := range map[string]string{
		`tool_calls_total{outcome="completed",tool="bash"}`:  "1",
		`tool_calls_total{outcome="completed",tool="other"}`: "1",
		`tool_calls_total{outcome="error",tool="other"}`:     "1",
		`tool_duration_seconds_count{tool="bash"}`:           "1",
	} {
		if got := sample(t, r.system, line); got != want {
			t.Errorf("%s is %q, not %q", line, got, want)
		}
	}
}

func TestAdmissionsOfConnectionsAreTimed(t *testing.T) {
	r := newRigWith(t, counted)
	c := r.dial(t, false)
	id := r.create()
	must[any](t, c, contract.SessionPrompt, object{"sessionId": id, "text": "go"})
	r.model.next(t).answer("ok")
	r.wait(id)
	if _, err := callFor[any](t, c, contract.SessionPrompt, object{"sessionId": "ses_missing", "text": "go"}); err == nil {
		t.Error("a missing session took a prompt")
	}
	if got := sample(t, r.system, "admission_duration_seconds_count"); got != "1" {
		t.Errorf("%s admissions", got)
	}
	r.system.begins.mu.Lock()
	defer r.system.begins.mu.Unlock()
	if n := r.system.begins.under; n != 0 {
		t.Errorf("%d are under way, and none waits for an answer", n)
	}
}

func TestReadersThatAreCutOffAreCounted(t *testing.T) {
	m := metrics.New("1")
	r := newRigWith(t, func(c *Config) { c.Metrics = m })
	sub := newSubscription("")
	if _, err := Ask[any](soon(t), r.system.hub, subscribe{sub}); err != nil {
		t.Fatal(err)
	}
	events := make([]messages.Event, subscriberQueue+1)
	r.system.hub.Tell(publish{announce(events[:subscriberQueue]...)})
	if got := sample(t, r.system, "subscriber_longest_queue_events"); got != "4096" {
		t.Errorf("%s events wait", got)
	}
	r.system.hub.Tell(publish{announce(events[:1]...)})
	if got := sample(t, r.system, "subscribers"); got != "0" && got != "1" { // the rig's own recorder may have kept up
		t.Errorf("%s readers", got)
	}
	if got := sample(t, r.system, "subscriber_overflows_total"); got != "1" && got != "2" {
		t.Errorf("%s readers were cut off", got)
	}
}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestTheLogNamesSessionTurnAndCall(t *testing.T) {
	gate := newGate()
	r := newRig(t, gate.bash())
	r.down()
	log := &lines{}
	var err error
	r.system, err = Boot(r.ctx, Config{Store: r.store, Prepare: r, Local: nowhere{}, Dir: "/"}, Identity{},
		slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	id := r.create()
	r.prompt(id, "words of a person", messages.Steer)
	r.model.next(t).call(toolCall("call-1", "bash", `{"command":"words of a model"}`))
	gate.wait(t)
	gate.release <- struct{}{}
	r.model.next(t).answer("done")
	r.wait(id)
	text := log.String()
	for _, want := range []string{
		`msg="prompt admitted" session=` + id + ` prompt=`,
		`msg="work started" session=` + id,
		`msg="turn started" session=` + id + ` turn=`,
		`msg="tool call settled" session=` + id + ` turn=`, ` call=call-1 tool=bash state=completed`,
		`msg="turn ended" session=` + id + ` turn=`,
		`msg="work done" session=` + id,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the log does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "words of") {
		t.Errorf("what somebody wrote is in the log:\n%s", text)
	}
}

// BenchmarkCounted is a turn of 64 deltas through session and hub, uncounted and
// counted.
func BenchmarkCounted(b *testing.B) {
	for _, x := range []struct {
		name   string
		change func(*Config)
	}{{"without", nil}, {"with", counted}} {
		b.Run(x.name, func(b *testing.B) {
			r := newRigWith(b, x.change)
			const deltas = 64
			r.with(func(x *Exchange) { x.Streamer = instantModel{deltas} })
			id := r.create()
			b.ReportAllocs()
			for b.Loop() {
				r.prompt(id, "a question", messages.Steer)
				r.wait(id)
			}
			b.ReportMetric(float64(b.N)*(deltas+10)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
