package traces

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"codework/internal/traces/tracestest"
)

func TestSpansArriveInEveryForm(t *testing.T) {
	var sizes []int
	for _, x := range []struct {
		name, kind, coding string
		env                []string
	}{
		{"protobuf", "application/x-protobuf", "", nil},
		{"protobuf, packed", "application/x-protobuf", "gzip", []string{"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"}},
		{"json", "application/json", "", []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"}},
		{"json, packed", "application/json", "gzip", []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := tracestest.New(t)
			tr, l := begin(t, c.URL+"/base", append(x.env, "OTEL_EXPORTER_OTLP_HEADERS", "x-key=top%20secret")...)
			work(tr)
			tr.Close()
			if got := tracestest.Tree(c.Spans()); got != workTree {
				t.Errorf("got\n%s", got)
			}
			r := c.Requests()[0]
			if r.Path != "/base/v1/traces" || r.Header.Get("Content-Type") != x.kind || r.Header.Get("Content-Encoding") != x.coding || r.Header.Get("X-Key") != "top secret" {
				t.Errorf("sent as %+v", r)
			}
			if strings.Contains(l.String(), "secret") || l.warnings() > 0 {
				t.Errorf("the log says\n%s", l)
			}
			sizes = append(sizes, r.Bytes)
		})
	}
	if len(sizes) == 4 && (sizes[1] >= sizes[0] || sizes[3] >= sizes[2]) {
		t.Errorf("packing does not make it smaller: %v", sizes)
	}
}

func TestTheResourceIsThatOfTheEnvironment(t *testing.T) {
	for _, x := range []struct {
		env  []string
		want map[string]any
	}{
		{nil, map[string]any{"service.name": "codework", "service.version": "1.2.3", "telemetry.sdk.language": "go", "process.pid": int64(os.Getpid())}},
		{[]string{"OTEL_SERVICE_NAME", "mine", "OTEL_RESOURCE_ATTRIBUTES", "service.name=other,service.version=9,team=a%20b,odd=%ff"},
			map[string]any{"service.name": "mine", "service.version": "9", "team": "a b", "odd": "\uFFFD"}},
	} {
		c := tracestest.New(t)
		tr, _ := begin(t, c.URL, x.env...)
		work(tr)
		tr.Close()
		for k, want := range x.want {
			if got := c.Resource()[k]; got != want {
				t.Errorf("%s is %v, not %v", k, got, want)
			}
		}
	}
}

func TestSamplersAndLimitsAreThoseOfTheSDK(t *testing.T) {
	for _, x := range []struct {
		env   []string
		spans int
		warns int
	}{
		{[]string{"OTEL_TRACES_SAMPLER", "always_off"}, 0, 0},
		{[]string{"OTEL_TRACES_SAMPLER", "traceidratio", "OTEL_TRACES_SAMPLER_ARG", "0"}, 0, 0},
		{[]string{"OTEL_TRACES_SAMPLER", "parentbased_always_on"}, 3, 0},
		{[]string{"OTEL_TRACES_SAMPLER", ""}, 3, 0},
		{[]string{"OTEL_TRACES_SAMPLER", "xray"}, 3, 1},
		{[]string{"OTEL_BSP_MAX_QUEUE_SIZE", "-5", "OTEL_BSP_SCHEDULE_DELAY", "0"}, 3, 2},
		{[]string{"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1"}, 3, 0},
	} {
		t.Run(strings.Join(x.env, " "), func(t *testing.T) {
			c := tracestest.New(t)
			tr, l := begin(t, c.URL, x.env...)
			work(tr)
			tr.Close()
			got := c.Spans()
			if len(got) != x.spans || l.warnings() != x.warns {
				t.Errorf("%d spans; the log says\n%s", len(got), l)
			}
			for _, s := range got {
				if x.env[0] == "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" && len(s.Attributes) != 1 {
					t.Errorf("%s has %v", s.Name, s.Attributes)
				}
			}
		})
	}
}

func TestBatchesAreSentWhileWorkGoesOn(t *testing.T) {
	c := tracestest.New(t)
	tr, _ := begin(t, c.URL, "OTEL_BSP_SCHEDULE_DELAY", "5")
	work(tr)
	c.Until("the spans", whole)
}

func TestACollectorIsAskedAgainWhenThatMayHelp(t *testing.T) {
	for _, x := range []struct {
		status int
		again  bool
	}{
		{429, true}, {502, true}, {503, true}, {504, true},
		{400, false}, {401, false}, {404, false}, {408, false}, {413, false}, {500, false}, {501, false}, {302, false},
	} {
		t.Run(http.StatusText(x.status), func(t *testing.T) {
			c := tracestest.New(t)
			elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("sent elsewhere") }))
			defer elsewhere.Close()
			c.Answer(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", elsewhere.URL)
				w.WriteHeader(x.status)
				c.Answer(nil)
			})
			tr, l := begin(t, c.URL)
			work(tr)
			tr.Close()
			asked, arrived := 1, 0
			if x.again {
				asked, arrived = 2, 3
			}
			if len(c.Requests()) != asked || len(c.Spans()) != arrived {
				t.Errorf("asked %d times, %d spans arrived", len(c.Requests()), len(c.Spans()))
			}
			if warned := l.warnings() == 1; warned == x.again || strings.Contains(l.String(), elsewhere.URL) {
				t.Errorf("the log says\n%s", l)
			}
		})
	}
}

func TestTroubleIsToldOnce(t *testing.T) {
	c := tracestest.New(t)
	c.Answer(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	tr, l := begin(t, c.URL, "OTEL_BSP_SCHEDULE_DELAY", "1")
	for n := range 4 {
		work(tr)
		c.Until("a request", asked(n+1))
	}
	c.Answer(nil)
	work(tr)
	tr.Close()
	text := l.String()
	if l.warnings() != 1 || !strings.Contains(text, "traces are delivered again") || !strings.Contains(text, "the collector answered 403") {
		t.Errorf("the log says\n%s", text)
	}
}

func TestSpansThatTheCollectorRefusedAreTold(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "http/json"} {
		c := tracestest.New(t)
		c.Answer(func(w http.ResponseWriter, r *http.Request) {
			m := &collector.ExportTraceServiceResponse{PartialSuccess: &collector.ExportTracePartialSuccess{RejectedSpans: 2, ErrorMessage: "words of a collector"}}
			b, err := proto.Marshal(m)
			if protocol == "http/json" {
				b, err = protojson.Marshal(m)
			}
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(b)
		})
		tr, l := begin(t, c.URL, "OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		work(tr)
		tr.Close()
		if l.warnings() != 1 || !strings.Contains(l.String(), "refused some spans") || len(c.Requests()) != 1 {
			t.Errorf("%s: %d requests; the log says\n%s", protocol, len(c.Requests()), l)
		}
	}
}

// hangs takes requests and answers none before the test is over.
func hangs(t *testing.T) string {
	over := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(over); s.Close() })
	return s.URL
}

func TestACollectorThatIsNotThereHoldsNobodyUp(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, x := range []struct {
		name, url string
		env       []string
		least     time.Duration // of the end
		most      time.Duration
	}{
		{"nobody there", gone.URL, nil, 0, time.Second},
		{"nobody there, during work", gone.URL, []string{"OTEL_BSP_SCHEDULE_DELAY", "1", "OTEL_EXPORTER_OTLP_TIMEOUT", "30"}, 0, time.Second},
		{"a short limit", hangs(t), []string{"OTEL_EXPORTER_OTLP_TIMEOUT", "20"}, 20 * time.Millisecond, time.Second},
		{"no answer", hangs(t), nil, flushLimit, flushLimit + time.Second},
		{"no answer, during work", hangs(t), []string{"OTEL_BSP_SCHEDULE_DELAY", "1"}, flushLimit, flushLimit + time.Second},
	} {
		t.Run(x.name, func(t *testing.T) {
			tr, l := begin(t, x.url, x.env...)
			at := time.Now()
			for range 2000 { // more than the queue holds
				work(tr)
			}
			if took := time.Since(at); took > 5*time.Second {
				t.Errorf("work took %v", took)
			}
			at = time.Now()
			tr.Close()
			if took := time.Since(at); took < x.least || took > x.most {
				t.Errorf("the end took %v", took)
			}
			if l.warnings() != 1 {
				t.Errorf("the log says\n%s", l)
			}
			work(tr) // nobody minds
		})
	}
}

func TestTheCollectorIsTrustedByItsCertificate(t *testing.T) {
	c := tracestest.NewUnstarted(t)
	c.StartTLS()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	tr, l := begin(t, c.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", file)
	work(tr)
	tr.Close()
	if len(c.Spans()) != 3 || l.warnings() != 0 {
		t.Errorf("%d spans; the log says\n%s", len(c.Spans()), l)
	}
	c.Config.ErrorLog = nil
	tr, l = begin(t, c.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE", "")
	work(tr)
	tr.Close()
	if len(c.Spans()) != 3 || !strings.Contains(l.String(), "certificate") {
		t.Errorf("%d spans; the log says\n%s", len(c.Spans()), l)
	}
}

// played answers requests with these statuses, the last one again and again, and
// notes when they came.
type played struct {
	start    time.Time
	statuses []int // 0 is nobody there
	after    string
	at       []time.Duration
}

func (p *played) RoundTrip(r *http.Request) (*http.Response, error) {
	n := len(p.at)
	p.at = append(p.at, time.Since(p.start))
	status := p.statuses[min(n, len(p.statuses)-1)]
	if status == 0 {
		return nil, errors.New("nobody there")
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {p.after}}, Body: io.NopCloser(bytes.NewReader(nil))}, nil
}

// The waits are those of a clock that the test moves.
func TestWaitsBetweenAttempts(t *testing.T) {
	const s = time.Second
	for _, x := range []struct {
		name     string
		statuses []int
		after    string
		closing  time.Duration // when the process ends; 0 is not
		ok       bool
		at       [][2]time.Duration // of each attempt: from, to
	}{
		{name: "taken at once", statuses: []int{200}, ok: true, at: [][2]time.Duration{{0, 0}}},
		{name: "growing", statuses: []int{503, 0, 504, 200}, ok: true, at: [][2]time.Duration{{0, 0}, {s / 2, 3 * s / 2}, {3 * s / 2, 9 * s / 2}, {7 * s / 2, 10 * s}}},
		{name: "as the collector says", statuses: []int{429, 200}, after: "3", ok: true, at: [][2]time.Duration{{0, 0}, {3 * s, 3 * s}}},
		{name: "at the date that it says", statuses: []int{503, 200}, after: "Sat, 01 Jan 2000 00:00:05 GMT", ok: true, at: [][2]time.Duration{{0, 0}, {5 * s, 5 * s}}},
		{name: "later than the batch may take", statuses: []int{503, 200}, after: "11", at: [][2]time.Duration{{0, 0}}},
		{name: "never in a hurry before the time that it says", statuses: []int{503, 200}, after: "5", closing: s, at: [][2]time.Duration{{0, 0}}},
		{name: "soon enough for the end", statuses: []int{503, 200}, after: "2", closing: s, ok: true, at: [][2]time.Duration{{0, 0}, {2 * s, 2 * s}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, _ := newLog()
				e := newExporter(readConfig(env("TRACES_EXPORTER=otlp"), func(string, string) {}), log)
				p := &played{start: time.Now(), statuses: x.statuses, after: x.after}
				e.client.Transport = p
				if x.closing > 0 {
					time.AfterFunc(x.closing, func() { e.hurry(time.Now().Add(flushLimit)) })
				}
				err := e.deliver(context.Background(), nil)
				if (err == nil) != x.ok || len(p.at) != len(x.at) {
					t.Fatalf("attempts at %v, then %v", p.at, err)
				}
				for i, at := range p.at {
					if at < x.at[i][0] || at > x.at[i][1] {
						t.Errorf("attempt %d after %v", i, at)
					}
				}
				e.giveUp()
			})
		})
	}
}

func TestAPauseHoldsForTheNextBatchToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := newLog()
		e := newExporter(readConfig(env("TRACES_EXPORTER=otlp"), func(string, string) {}), log)
		p := &played{start: time.Now(), statuses: []int{503, 200}, after: "15"}
		e.client.Transport = p
		for range 2 { // the second is not sent at all
			if e.deliver(context.Background(), nil) == nil {
				t.Error("delivered")
			}
		}
		time.Sleep(6 * time.Second) // by the clock of the test
		if err := e.deliver(context.Background(), nil); err != nil || !slices.Equal(p.at, []time.Duration{0, 15 * time.Second}) {
			t.Errorf("attempts at %v, %v", p.at, err)
		}
		e.giveUp()
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "120", "-1", "99999999999999999999", "1.5", "Sat, 01 Jan 2000 00:00:05 GMT", "Fri, 31 Dec 1999 23:59:59 GMT", "soon"} {
		f.Add(s)
	}
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		if d := retryAfter(s, now); d < 0 {
			t.Errorf("%q is %v: the past is no time to wait for", s, d)
		}
	})
}

// Whatever a collector says beside its status, its taking the batch counts.
func FuzzAnswer(f *testing.F) {
	b, err := proto.Marshal(&collector.ExportTraceServiceResponse{PartialSuccess: &collector.ExportTracePartialSuccess{RejectedSpans: 2}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, false)
	f.Add([]byte(`{"partialSuccess":{"rejectedSpans":"2"}}`), true)
	f.Add([]byte("<html>"), false)
	f.Fuzz(func(t *testing.T, answer []byte, json bool) {
		log, l := newLog()
		c := readConfig(env("TRACES_EXPORTER=otlp"), func(string, string) {})
		c.json = json
		e := newExporter(c, log)
		defer e.giveUp()
		e.partly(answer)
		if n := l.warnings(); n > 1 || e.failing {
			t.Errorf("%d warnings, failing: %v", n, e.failing)
		}
	})
}
