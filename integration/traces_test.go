package integration

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"codework/integration/mockmodel"
	"codework/internal/traces/tracestest"
)

// Whoever owns the home sends the whole trace before it is gone, and its models
// hear nothing of it.
func TestATraceArrivesBeforeItsProcessIsGone(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		args []string
	}{
		{"of the home process", nil},
		{"of the command itself", []string{"--embedded"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := newServerWorld(t)
			w.script(t, map[string]mockmodel.Script{"default": {
				{mockmodel.Call{ID: "a", Name: "bash", Args: `{"command":"echo $OTEL_SERVICE_NAME $OTEL_EXPORTER_OTLP_HEADERS > seen"}`}},
				{mockmodel.Text{Text: "done"}},
			}})
			c := tracestest.New(t)
			// Nothing is sent before the end.
			o := w.runWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_EXPORTER_OTLP_HEADERS=x-key=word", "OTEL_SERVICE_NAME=mine",
				"OTEL_BSP_SCHEDULE_DELAY=1000000"}, append(x.args, "a prompt")...)
			o.must(t, "done")
			if err := w.nothingRuns(leftLimit); err != nil {
				t.Fatal(err)
			}
			spans := slices.DeleteFunc(c.Spans(), func(s tracestest.Span) bool { return s.Name == "store.commit" })
			if got := tracestest.Tree(spans, "codework.outcome", "codework.tool.state"); got != `execution succeeded
  prompt
  exchange.prepare succeeded
    sandbox.mount succeeded
  turn succeeded
    model.request succeeded
    tool completed
  turn succeeded
    model.request succeeded
` {
				t.Errorf("got\n%s", got)
			}
			for _, s := range spans {
				if s.Name != "model.request" {
					continue
				}
				var events []string
				for _, e := range s.Events {
					events = append(events, e.Name)
				}
				if got := strings.Join(events, " "); !strings.HasPrefix(got, "http.connected http.request.sent http.response.headers stream.started") {
					t.Errorf("a request has %s", got)
				}
			}
			if c.Resource()["service.name"] != "mine" || c.Requests()[0].Header.Get("X-Key") != "word" {
				t.Errorf("came as %v, %v", c.Resource(), c.Requests()[0].Header)
			}
			for _, r := range w.model.Requests() {
				if r.Header.Get("Traceparent") != "" {
					t.Error("the model heard of the trace")
				}
			}
			if seen, err := os.ReadFile(w.dir + "/seen"); string(seen) != "mine\n" {
				t.Errorf("the command saw %q, %v", seen, err)
			}
		})
	}
}

// Nobody there to take a trace is nobody's trouble.
func TestACollectorThatIsGoneIsToldOnce(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	w.script(t, map[string]mockmodel.Script{"default": {{mockmodel.Text{Text: "done"}}}})
	gone := httptest.NewServer(nil)
	gone.Close()
	w.runWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + gone.URL, "OTEL_BSP_SCHEDULE_DELAY=5"}, "a prompt").must(t, "done")
	if err := w.nothingRuns(leftLimit); err != nil {
		t.Fatal(err)
	}
	if log := w.log(); strings.Count(log, "traces are not delivered") != 1 {
		t.Errorf("the log says\n%s", log)
	}
}

// A collector that never answers keeps its process for two seconds, but not the
// home from whoever comes next.
func TestACollectorThatHangsDoesNotKeepTheHome(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	w.script(t, map[string]mockmodel.Script{"default": {{mockmodel.Text{Text: "one"}}, {mockmodel.Text{Text: "two"}}}})
	reached, over := make(chan struct{}, 16), make(chan struct{})
	c := tracestest.New(t)
	c.Answer(func(http.ResponseWriter, *http.Request) {
		reached <- struct{}{}
		<-over
	})
	defer close(over)
	w.runWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL}, "a prompt").must(t, "one")
	<-reached // it is at its end
	if fault := w.locked(); fault != "" {
		t.Error(fault)
	}
	w.run(t, w.dir, "another prompt").must(t, "two")
}

// runWith runs codework to its end with more variables.
func (w *world) runWith(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	p, err := launch(start{dir: w.dir, argv0: w.program, args: append([]string{"run"}, args...), env: append(append(w.environment(), "TMPDIR="+w.dir), env...)})
	if err != nil {
		t.Fatal(err)
	}
	return w.ended(t, p)
}
