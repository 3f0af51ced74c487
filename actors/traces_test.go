package actors

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"codework/internal/store"
	"codework/internal/tools"
	"codework/internal/traces"
	"codework/internal/traces/tracestest"
	"codework/messages"
)

// traced is a rig whose spans a collector gets.
type traced struct {
	*rig
	collector *tracestest.Collector
	traces    *traces.Traces
}

func newTraced(t *testing.T, change func(*Config), extra ...tools.Tool) *traced {
	t.Helper()
	x := &traced{collector: tracestest.New(t)}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", x.collector.URL)
	x.traces = traces.Start("1.2.3", slog.New(slog.DiscardHandler))
	t.Cleanup(x.traces.Close) // after the rig
	x.rig = newRigWith(t, func(c *Config) {
		c.Traces = x.traces
		if change != nil {
			change(c)
		}
	}, extra...)
	return x
}

// tree ends the tracing and shows what came of it, but for waits for the disk,
// which sometimes take no time. What people, models and tools said, which begins
// with "words of" in these tests, must be in no span.
func (x *traced) tree(t *testing.T) string {
	t.Helper()
	x.traces.Close()
	spans := slices.DeleteFunc(x.collector.Spans(), func(s tracestest.Span) bool { return s.Name == "store.commit" })
	if text := fmt.Sprint(spans); strings.Contains(text, "words of") {
		t.Errorf("what somebody wrote is in a span: %s", text)
	}
	return tracestest.Tree(spans, "codework.prompt.delivery", "codework.retries", "gen_ai.tool.name", "codework.tool.state",
		"codework.outcome", "codework.interrupt.reason", "http.response.status_code")
}

func (x *traced) expect(t *testing.T, want string) {
	t.Helper()
	if got := x.tree(t); got != want {
		t.Errorf("got\n%snot\n%s", got, want)
	}
}

func TestATraceOfCallsAndARetry(t *testing.T) {
	gate := newGate()
	x := newTraced(t, nil, gate.bash())
	id := x.create()
	x.prompt(id, "words of a person", messages.Steer)
	x.model.next(t).fail(messages.Failure{Type: messages.FailUnavailable, Message: "words of a provider", Status: 503, Retryable: true})
	x.model.next(t).call(toolCall("1", "bash", `{"command":"words of a model"}`), toolCall("2", "words of a model, again", `{}`))
	gate.wait(t)
	gate.release <- struct{}{}
	x.model.next(t).answer("words of a model")
	x.wait(id)
	x.expect(t, `execution succeeded
  prompt steer
  exchange.prepare succeeded
  turn 0 failed 503 !provider-unavailable-error
    model.request 0 failed 503 !provider-unavailable-error
  turn 1 succeeded
    model.request 1 succeeded
    tool bash completed
    tool unknown error !tool-error
  turn 0 succeeded
    model.request 0 succeeded
`)
	for _, s := range x.collector.Spans() {
		a := s.Attributes
		switch s.Name {
		case "execution":
			if a["gen_ai.conversation.id"] != id {
				t.Errorf("the work has %v", a)
			}
		case "prompt":
			if len(s.Events) != 1 || s.Events[0].Name != "stored" {
				t.Errorf("the prompt has %+v", s.Events)
			}
		case "model.request":
			if a["gen_ai.request.model"] != "m" || a["gen_ai.provider.name"] != "p" || a["codework.protocol"] != "openai-compatible" {
				t.Errorf("a request has %v", a)
			}
			if s.Error == "" && (a["gen_ai.usage.input_tokens"] != int64(1) || a["gen_ai.usage.output_tokens"] != int64(1) || s.Events[0].Name != "stream.started") {
				t.Errorf("an answer has %v, %+v", a, s.Events)
			}
		}
	}
}

func TestATraceOfTwoExchanges(t *testing.T) {
	x := newTraced(t, nil)
	id := x.create()
	x.prompt(id, "one", messages.Steer)
	a := x.model.next(t)
	x.prompt(id, "two", messages.FollowUp)
	taken := x.prompt(id, "three", messages.FollowUp)
	if _, err := x.to(id, messages.GetQueue{SessionID: id, Remove: taken}); err != nil {
		t.Fatal(err)
	}
	a.answer("first")
	x.model.next(t).answer("second")
	x.wait(id)
	x.prompt(id, "four", messages.Steer)
	x.model.next(t).answer("third")
	x.wait(id)
	const turn = "  turn 0 succeeded\n    model.request 0 succeeded\n"
	x.expect(t, "execution succeeded\n  prompt steer\n  exchange.prepare succeeded\n"+turn+
		"  prompt followUp\n  exchange.prepare succeeded\n"+turn+
		"execution succeeded\n  prompt steer\n  exchange.prepare succeeded\n"+turn)
}

func TestATraceOfAStop(t *testing.T) {
	for _, at := range []struct {
		name string
		stop func(t *testing.T, x *traced, id string, g *gate)
		want string
	}{
		{"before the answer", func(t *testing.T, x *traced, id string, g *gate) { x.model.next(t) },
			"  turn 0 interrupted\n    model.request 0 interrupted\n"},
		{"in text", func(t *testing.T, x *traced, id string, g *gate) {
			a := x.model.next(t)
			a.start()
			a.text("half")
			x.events.until(t, id, messages.EventLLMTextDelta, 1)
		}, "  turn 0 interrupted\n    model.request 0 interrupted\n"},
		{"in a call", func(t *testing.T, x *traced, id string, g *gate) {
			x.model.next(t).call(toolCall("1", "bash", `{"command":"x"}`), toolCall("2", "bash", `{"command":"y"}`))
			g.wait(t)
		}, "  turn 0 interrupted\n    model.request 0 succeeded\n    tool bash aborted\n    tool bash skipped\n"},
		{"before a retry", func(t *testing.T, x *traced, id string, g *gate) {
			x.model.next(t).fail(messages.Failure{Type: messages.FailRateLimit, Status: 429, Retryable: true, RetryAfter: within})
			x.events.until(t, id, messages.EventRetryScheduled, 1)
		}, "  turn 0 failed 429 !provider-rate-limit-error\n    model.request 0 failed 429 !provider-rate-limit-error\n"},
	} {
		t.Run(at.name, func(t *testing.T) {
			gate := newGate()
			x := newTraced(t, nil, gate.bash())
			id := x.create()
			x.prompt(id, "go", messages.Steer)
			at.stop(t, x, id, gate)
			if !x.interrupt(id) {
				t.Fatal("not interrupted")
			}
			x.wait(id)
			x.expect(t, "execution interrupted user\n  prompt steer\n  exchange.prepare succeeded\n"+at.want)
		})
	}
}

// waitsToPrepare prepares nothing before it is told to stop.
type waitsToPrepare struct{ begun chan struct{} }

func (w waitsToPrepare) Prepare(ctx context.Context, _ ExchangeQuery) (*Exchange, error) {
	close(w.begun)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestATraceOfAStopDuringThePreparation(t *testing.T) {
	w := waitsToPrepare{make(chan struct{})}
	x := newTraced(t, func(c *Config) { c.Prepare = w })
	id := x.create()
	x.prompt(id, "go", messages.Steer)
	<-w.begun
	x.interrupt(id)
	x.wait(id)
	x.down() // the preparation ends by itself
	x.expect(t, "execution interrupted user\n  exchange.prepare interrupted\n")
}

func TestATraceOfAFailure(t *testing.T) {
	for _, in := range []struct {
		name string
		fail func(t *testing.T, x *traced, id string)
		want string
	}{
		{"of the model", func(t *testing.T, x *traced, id string) {
			x.prompt(id, "go", messages.Steer)
			a := x.model.next(t)
			a.start()
			a.fail(messages.Failure{Type: messages.FailQuota, Message: "words of a provider", Status: 402})
		}, `execution failed 402 !provider-quota-error
  prompt steer
  exchange.prepare succeeded
  turn 0 failed 402 !provider-quota-error
    model.request 0 failed 402 !provider-quota-error
`},
		{"of the preparation", func(t *testing.T, x *traced, id string) {
			x.mu.Lock()
			x.prepErr = &messages.Failure{Type: messages.FailModelNotFound, Message: "words of a person"}
			x.mu.Unlock()
			x.prompt(id, "go", messages.Steer)
		}, "execution failed !model-not-found-error\n  exchange.prepare failed !model-not-found-error\n"},
		{"of the disk", func(t *testing.T, x *traced, id string) {
			x.prompt(id, "go", messages.Steer)
			a := x.model.next(t)
			x.flaky.failWhen(func(store.Batch) error {
				return &messages.Refused{Name: messages.RefusedStore, Message: "words of a disk"}
			})
			a.start()
			x.events.until(t, id, messages.EventExecutionFailed, 1)
			x.flaky.failWhen(nil)
		}, `execution failed !internal-error
  prompt steer
  exchange.prepare succeeded
  turn 0 failed !internal-error
    model.request 0 failed !internal-error
`},
		{"of the session itself", func(t *testing.T, x *traced, id string) {
			x.with(func(ex *Exchange) { ex.Streamer = panics{} })
			x.prompt(id, "go", messages.Steer)
			x.events.until(t, id, messages.EventExecutionFailed, 1)
		}, `execution failed !internal-error
  prompt steer
  exchange.prepare succeeded
  turn 0 failed !internal-error
    model.request 0 failed !internal-error
`},
	} {
		t.Run(in.name, func(t *testing.T) {
			x := newTraced(t, nil)
			id := x.create()
			in.fail(t, x, id)
			x.wait(id)
			x.expect(t, in.want)
		})
	}
}

type panics struct{}

func (panics) Stream(context.Context, *messages.Request, func(messages.StreamEvent)) {
	panic("on purpose")
}

func TestLinesAboutWorkNameItsTrace(t *testing.T) {
	for _, on := range []bool{true, false} {
		log := &lines{}
		var r *rig
		var x *traced
		if on {
			x = newTraced(t, nil)
			r = x.rig
		} else {
			r = newRig(t)
		}
		r.down()
		config := Config{Store: r.store, Prepare: r, Local: nowhere{}, Dir: "/"}
		if on {
			config.Traces = x.traces
		}
		var err error
		if r.system, err = Boot(r.ctx, config, Identity{}, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))); err != nil {
			t.Fatal(err)
		}
		id := r.create()
		r.prompt(id, "go", messages.Steer)
		r.model.next(t).answer("ok")
		r.wait(id)
		if !on {
			if strings.Contains(log.String(), "trace_id") {
				t.Errorf("nobody traces, and the log says\n%s", log)
			}
			continue
		}
		x.traces.Close()
		trace := x.collector.Spans()[0].Trace
		for line := range strings.Lines(log.String()) {
			for _, text := range []string{"work started", "turn started", "turn ended", "work done"} {
				if strings.Contains(line, `msg="`+text+`"`) && !strings.Contains(line, "trace_id="+trace) {
					t.Errorf("trace %s is not named: %s", trace, line)
				}
			}
		}
		if !strings.Contains(log.String(), trace) {
			t.Errorf("the log says\n%s", log)
		}
	}
}

// BenchmarkTraced is a turn of 64 deltas through session and hub, untraced and
// traced, with a collector that takes everything.
func BenchmarkTraced(b *testing.B) {
	for _, on := range []bool{false, true} {
		name := map[bool]string{false: "without", true: "with"}[on]
		b.Run(name, func(b *testing.B) {
			r := newRigWith(b, tracedBy(b, on))
			const deltas = 64
			r.with(func(x *Exchange) { x.Streamer = instantModel{deltas} })
			id := r.create()
			b.ReportAllocs()
			for b.Loop() {
				r.prompt(id, "a question", messages.Steer)
				r.wait(id)
			}
		})
	}
}

// BenchmarkEventPathTraced is BenchmarkEventPath with somebody who traces.
func BenchmarkEventPathTraced(b *testing.B) { eventPath(b, newRigWith(b, tracedBy(b, true))) }

func tracedBy(b *testing.B, on bool) func(*Config) {
	if !on {
		return nil
	}
	c := tracestest.New(b)
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	tr := traces.Start("1", slog.New(slog.DiscardHandler))
	b.Cleanup(tr.Close)
	return func(c *Config) { c.Traces = tr }
}
