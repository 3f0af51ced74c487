package metrics

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"

	"codework/internal/store"
	"codework/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ptr[T any](v T) *T { return &v }

// everything is a state in which nothing is missing.
var everything = State{
	Sessions: map[string]int{"idle": 3, "running": 2}, Stored: ptr(9), Queued: ptr(4), Connections: ptr(5), Readers: &Readers{2, 30, 20},
	Actors: map[string]Actors{"session": {5, 6, 4}}, Plugins: map[string]int{"running": 1}, Sandboxes: map[Sandbox]int{{"memory", "online"}: 2},
	Store: &store.Stats{Commits: 1, Batches: 2, Events: 3, Refused: 4, Queued: 5, QueuedBytes: 6, DiskBytes: 7}, Accepting: ptr(true),
}

func shown(t *testing.T, m *Metrics, s State) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(slog.New(slog.DiscardHandler), func(*http.Request) State { return s }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("answered %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func families(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	var p expfmt.TextParser
	f, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestNamesAndUnitsFollowTheConventions(t *testing.T) {
	text := shown(t, New("1.2.3"), everything)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, namespace+"_") { // the others are the library's
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	word := regexp.MustCompile(`^codework_[a-z]+(_[a-z]+)*$`)
	for name, f := range families(t, text) {
		if !strings.HasPrefix(name, "codework") {
			continue
		}
		switch {
		case !word.MatchString(name):
			t.Errorf("%s: expected words of small letters", name)
		case !strings.HasSuffix(f.GetHelp(), "."):
			t.Errorf("%s: its help is no sentence: %q", name, f.GetHelp())
		case f.GetType() == dto.MetricType_COUNTER != strings.HasSuffix(name, "_total"):
			t.Errorf("%s is a %s", name, f.GetType())
		case f.GetType() == dto.MetricType_HISTOGRAM && !strings.HasSuffix(name, "_seconds"):
			t.Errorf("%s: expected seconds", name)
		}
	}
}

// Whatever is counted, the labels and their values are those of the lists.
func TestLabelsComeFromFixedLists(t *testing.T) {
	m := New("1")
	before := len(families(t, shown(t, m, State{}))["codework_events_total"].Metric)
	secret := "sk-secret ses_0199 rm -rf"
	m.Event(secret)
	m.Prompt(messages.Delivery(secret))
	m.Execution(secret, &messages.Failure{Type: secret, Message: secret})
	m.Turn(secret, time.Second)
	m.Retry(&messages.Failure{Type: secret})
	m.ToolCall(secret, messages.CallState(secret), time.Second)
	text := shown(t, m, State{})
	if strings.Contains(text, "secret") {
		t.Error("what a user or a plugin wrote is in a label")
	}
	after := families(t, text)
	if n := len(after["codework_events_total"].Metric); n != before {
		t.Errorf("%d series of events, %d before", n, before)
	}
	for _, name := range []string{"events_total", "prompts_total", "executions_total", "failures_total", "turns_total", "retries_total", "tool_calls_total"} {
		if v := value(after, name, other); v != 1 {
			t.Errorf("%s: %v as other", name, v)
		}
	}
	allowed := regexp.MustCompile(`^(version|state|type|delivery|outcome|kind|tool|driver|status)$`)
	for name, f := range families(t, shown(t, m, everything)) {
		for _, x := range f.Metric {
			for _, l := range x.Label {
				if strings.HasPrefix(name, namespace) && !allowed.MatchString(l.GetName()) {
					t.Errorf("%s has a label %s", name, l.GetName())
				}
			}
		}
	}
}

// value is that of a counter or gauge whose labels all have one of those values.
func value(f map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	for _, x := range f[namespace+"_"+name].GetMetric() {
		all := true
		for _, l := range x.Label {
			found := false
			for _, want := range labels {
				found = found || l.GetValue() == want
			}
			all = all && found
		}
		if all {
			return x.GetCounter().GetValue() + x.GetGauge().GetValue()
		}
	}
	return -1
}

func TestCountsAreShown(t *testing.T) {
	m := New("1.2.3")
	m.Event(messages.EventLLMTextDelta)
	m.Event(messages.EventLLMTextDelta)
	m.Execution(Failed, &messages.Failure{Type: messages.FailQuota})
	m.Turn(Succeeded, 3*time.Second)
	m.Turn(Succeeded, -1)
	m.Turn(Failed, 5*time.Second)
	m.Usage(&messages.Usage{Input: 10, Output: 5, Reasoning: 2, CacheRead: 7, Cost: messages.Cost{Total: 0.25}})
	m.Usage(&messages.Usage{Input: -1})
	m.ToolCall("bash", messages.CallCompleted, 20*time.Millisecond)
	m.ToolCall("bash", messages.CallSkipped, -1)
	m.Admission(2 * time.Millisecond)
	m.FirstDelta(time.Second)
	m.Append(time.Millisecond)
	m.Overflow()
	m.ActorFailed()
	f := families(t, shown(t, m, everything))
	for _, x := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"events_total", []string{messages.EventLLMTextDelta}, 2},
		{"executions_total", []string{Failed}, 1},
		{"failures_total", []string{messages.FailQuota}, 1},
		{"turns_total", []string{Succeeded}, 2},
		{"turns_total", []string{Failed}, 1},
		{"tokens_total", []string{"input"}, 10},
		{"tokens_total", []string{"output"}, 5},
		{"tokens_total", []string{"cache_read"}, 7},
		{"cost_usd_total", nil, 0.25},
		{"tool_calls_total", []string{"bash", "completed"}, 1},
		{"tool_calls_total", []string{"bash", "skipped"}, 1},
		{"subscriber_overflows_total", nil, 1},
		{"actor_failures_total", nil, 1},
		{"build_info", []string{"1.2.3"}, 1},
		{"sessions", []string{"running"}, 2},
		{"stored_sessions", nil, 9},
		{"queued_prompts", nil, 4},
		{"subscriber_longest_queue_events", nil, 20},
		{"mailbox_messages", []string{"session"}, 6},
		{"sandboxes", []string{"memory", "online"}, 2},
		{"store_events_total", nil, 3},
		{"accepting", nil, 1},
	} {
		if got := value(f, x.name, x.labels...); got != x.want {
			t.Errorf("%s%v is %v, not %v", x.name, x.labels, got, x.want)
		}
	}
	for name, want := range map[string]uint64{"turn_duration_seconds": 1, "admission_duration_seconds": 1, "first_delta_duration_seconds": 1, "store_append_duration_seconds": 1} {
		if h := f["codework_"+name].GetMetric()[0].GetHistogram(); h.GetSampleCount() != want || h.GetSampleSum() <= 0 {
			t.Errorf("%s has %d samples", name, h.GetSampleCount())
		}
	}
	if f["process_resident_memory_bytes"] == nil && f["go_goroutines"] == nil {
		t.Error("nothing is said of the process")
	}
}

// What could not be found out is left out, not shown as nothing.
func TestWhatIsNotKnownIsNotShown(t *testing.T) {
	text := shown(t, New("1"), State{})
	for _, name := range []string{"codework_accepting", "codework_sessions", "codework_stored_sessions", "codework_subscribers", "codework_store_events_total"} {
		if strings.Contains(text, "\n"+name) {
			t.Errorf("%s is shown", name)
		}
	}
}

func TestNobodyCounts(t *testing.T) {
	var m *Metrics
	m.Event("x")
	m.Prompt("x")
	m.Execution(Failed, &messages.Failure{})
	m.Turn(Failed, 0)
	m.Retry(nil)
	m.Usage(&messages.Usage{})
	m.ToolCall("x", "y", 0)
	m.Admission(0)
	m.FirstDelta(0)
	m.Append(0)
	m.Overflow()
	m.ActorFailed()
}

func TestReadersThatLeaveHarmNobody(t *testing.T) {
	m := New("1")
	s := httptest.NewServer(m.Handler(slog.New(slog.DiscardHandler), func(*http.Request) State { return everything }))
	defer s.Close()
	for range 3 {
		r, err := http.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.CopyN(io.Discard, r.Body, 10)
		r.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	if !strings.Contains(shown(t, m, everything), "codework_sessions") {
		t.Error("nothing is shown any more")
	}
}

func BenchmarkEvent(b *testing.B) {
	m := New("1")
	for b.Loop() {
		m.Event(messages.EventLLMTextDelta)
	}
}
