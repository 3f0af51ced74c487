// Package traces tells an OpenTelemetry collector what became of each prompt:
// how long it waited, what was prepared, asked of a model and run for it.
//
// The standard variables alone decide (OTEL_…, see docs/observe.md). Where they
// ask for nothing Start returns nil, and a nil *Traces or *Session makes no span,
// holds nothing and costs a comparison. Spans say what was done, when, and how it
// ended, in ids, names, numbers and types of failures: what people, models and
// tools write, names of files and keys have no place in them. Nobody else hears
// of a trace: no request carries its id.
//
// Making a span never blocks. Spans that are over wait in a bounded queue and are
// sent by one goroutine; those that find it full are lost, as are those that the
// collector does not take in time, and the log says so once. Close waits for the
// rest, for at most two seconds. A span that never ended is not sent.
package traces

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"
)

// scope is who made the spans, in each message to the collector.
const scope = "codework"

// flushLimit bounds the end: what the collector has not taken by then is lost.
const flushLimit = 2 * time.Second

// afterlife is how long requests may take to notice that they were given up.
const afterlife = 200 * time.Millisecond

// Traces makes the spans of one process. Any goroutine may use it; a nil *Traces
// makes none.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	out      *exporter
	closed   sync.Once
}

// Start begins to trace if the environment of this process asks for it, and
// returns nil otherwise. What is asked for and cannot be had is told in the log,
// without values that may be secret. Close must be called.
func Start(version string, log *slog.Logger) *Traces {
	c := readConfig(os.Getenv, func(variable, what string) { log.Warn("traces: "+what, "variable", variable) })
	if c == nil {
		return nil
	}
	// The SDK has one place for what is wrong with its own variables.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if !strings.HasSuffix(err.Error(), "unsupported sampler: ") { // a variable that is empty is not set
			log.Warn("traces: a variable of OpenTelemetry is wrong", "err", err)
		}
	}))
	out := newExporter(c, log)
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(out, batching(os.Getenv, log)...),
		sdktrace.WithResource(describe(version)),
	)
	log.Info("traces are sent", "collector", out.host())
	return &Traces{provider: provider, tracer: provider.Tracer(scope, trace.WithInstrumentationVersion(version)), out: out}
}

// Close sends what waits and ends everything; spans that end later are lost.
func (t *Traces) Close() {
	if t != nil {
		t.closed.Do(t.close)
	}
}

func (t *Traces) close() {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	defer cancel()
	t.out.hurry(time.Now().Add(flushLimit))
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.out.log.Debug("traces did not end cleanly", "err", err)
	}
	t.out.giveUp()
	select {
	case <-t.out.done:
	case <-time.After(afterlife):
	}
}

// describe is this process, in each message to the collector. What the
// environment says of it comes first.
func describe(version string) *resource.Resource {
	own := resource.NewSchemaless(semconv.ServiceName("codework"), semconv.ServiceVersion(version), semconv.ProcessPID(os.Getpid()),
		semconv.TelemetrySDKName("opentelemetry"), semconv.TelemetrySDKLanguageGo, semconv.TelemetrySDKVersion(sdk.Version()))
	r, err := resource.Merge(own, resource.Environment())
	if err != nil {
		return own // both have no schema, so they always fit
	}
	return r
}

// batching takes the sizes of the queue from the environment. The SDK does so too,
// and runs round in circles or fails with some that make no sense.
func batching(lookup func(string) string, log *slog.Logger) []sdktrace.BatchSpanProcessorOption {
	number := func(name string, usual int) int {
		text := strings.TrimSpace(lookup(name))
		if text == "" {
			return usual
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxBatching {
			log.Warn(fmt.Sprintf("traces: expected a whole number from 1 to %d; %d is taken", maxBatching, usual), "variable", name)
			return usual
		}
		return n
	}
	ms := func(name string, usual int) time.Duration {
		return time.Duration(number(name, usual)) * time.Millisecond
	}
	queue := number("OTEL_BSP_MAX_QUEUE_SIZE", sdktrace.DefaultMaxQueueSize)
	return []sdktrace.BatchSpanProcessorOption{
		sdktrace.WithMaxQueueSize(queue),
		sdktrace.WithMaxExportBatchSize(min(queue, number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", sdktrace.DefaultMaxExportBatchSize))),
		sdktrace.WithBatchTimeout(ms("OTEL_BSP_SCHEDULE_DELAY", sdktrace.DefaultScheduleDelay)),
		sdktrace.WithExportTimeout(ms("OTEL_BSP_EXPORT_TIMEOUT", sdktrace.DefaultExportTimeout)),
	}
}

// maxBatching keeps a slip of the finger from taking all memory: the queue is
// made at once.
const maxBatching = 1_000_000

// Part begins a span below the one in ctx, if there is one; the returned function
// ends it, with why it came to nothing or nil. Its attributes are names and
// values in turn.
func Part(ctx context.Context, name string, attributes ...string) (end func(error)) {
	above := trace.SpanFromContext(ctx)
	if !above.SpanContext().IsValid() {
		return func(error) {}
	}
	var a []attribute.KeyValue
	for i := 0; i+1 < len(attributes); i += 2 {
		a = append(a, attribute.String(attributes[i], attributes[i+1]))
	}
	_, span := above.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(a...))
	return func(err error) { endWith(span, err) }
}
