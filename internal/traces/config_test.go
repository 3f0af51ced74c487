package traces

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// env is "NAME=value" lines without the prefix OTEL_.
func env(lines string) func(string) string {
	m := map[string]string{}
	for line := range strings.Lines(lines) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		m["OTEL_"+k] = v
	}
	return func(name string) string { return m[name] }
}

func TestTheEnvironmentDecides(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	missing, empty := filepath.Join(dir, "missing"), file("empty.pem", "nothing")
	const on = "EXPORTER_OTLP_ENDPOINT=http://box:4318\n"
	for _, x := range []struct {
		name string
		env  string
		url  string // "" is off
		warn string // variables that are named in warnings
		more func(c *config) bool
	}{
		{name: "nothing"},
		{name: "another signal's address", env: "EXPORTER_OTLP_METRICS_ENDPOINT=http://box:4318"},
		{name: "other settings alone", env: "SERVICE_NAME=x\nEXPORTER_OTLP_HEADERS=a=b"},
		{name: "an address", env: on, url: "http://box:4318/v1/traces"},
		{name: "empty is not set", env: "EXPORTER_OTLP_ENDPOINT=\nTRACES_EXPORTER="},
		{name: "blank is not set", env: "EXPORTER_OTLP_ENDPOINT=  "},
		{name: "asked for", env: "TRACES_EXPORTER=otlp", url: "http://localhost:4318/v1/traces"},
		{name: "asked for among others", env: "TRACES_EXPORTER=otlp,console", url: "http://localhost:4318/v1/traces", warn: "TRACES_EXPORTER"},
		{name: "none", env: on + "TRACES_EXPORTER=none"},
		{name: "another exporter", env: on + "TRACES_EXPORTER=zipkin", warn: "TRACES_EXPORTER"},
		{name: "disabled", env: on + "SDK_DISABLED=TRUE"},
		{name: "not disabled", env: on + "SDK_DISABLED=false", url: "http://box:4318/v1/traces"},
		{name: "disabled by an odd word", env: on + "SDK_DISABLED=yes", url: "http://box:4318/v1/traces", warn: "SDK_DISABLED"},

		{name: "a folder", env: "EXPORTER_OTLP_ENDPOINT=https://box/otlp/", url: "https://box/otlp/v1/traces"},
		{name: "a folder with a query", env: "EXPORTER_OTLP_ENDPOINT=https://box/otlp?x=1", url: "https://box/otlp/v1/traces?x=1"},
		{name: "that of traces is taken as it is", env: on + "EXPORTER_OTLP_TRACES_ENDPOINT=http://other:1/in", url: "http://other:1/in"},
		{name: "that of traces without a path", env: "EXPORTER_OTLP_TRACES_ENDPOINT=http://other:1", url: "http://other:1/"},
		{name: "no scheme", env: "EXPORTER_OTLP_ENDPOINT=localhost:4318", warn: "EXPORTER_OTLP_ENDPOINT"},
		{name: "another scheme", env: "EXPORTER_OTLP_TRACES_ENDPOINT=grpc://box", warn: "EXPORTER_OTLP_TRACES_ENDPOINT"},
		{name: "no address", env: "EXPORTER_OTLP_ENDPOINT=http://", warn: "EXPORTER_OTLP_ENDPOINT"},
		{name: "a broken address", env: "EXPORTER_OTLP_ENDPOINT=http://a b%zz", warn: "EXPORTER_OTLP_ENDPOINT"},

		{name: "protobuf", env: on + "EXPORTER_OTLP_PROTOCOL=http/protobuf", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return !c.json }},
		{name: "json", env: on + "EXPORTER_OTLP_PROTOCOL=http/json", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return c.json }},
		{name: "json for traces", env: on + "EXPORTER_OTLP_PROTOCOL=grpc\nEXPORTER_OTLP_TRACES_PROTOCOL=http/json", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return c.json }},
		{name: "grpc", env: on + "EXPORTER_OTLP_PROTOCOL=grpc", warn: "EXPORTER_OTLP_PROTOCOL"},
		{name: "grpc for traces", env: on + "EXPORTER_OTLP_TRACES_PROTOCOL=grpc", warn: "EXPORTER_OTLP_TRACES_PROTOCOL"},

		{name: "headers", env: on + "EXPORTER_OTLP_HEADERS=x-key = a%20b=c , authorization=Basic%20eA==", url: "http://box:4318/v1/traces",
			more: func(c *config) bool {
				return len(c.headers) == 2 && c.headers.Get("X-Key") == "a b=c" && c.headers.Get("Authorization") == "Basic eA=="
			}},
		{name: "headers for traces replace the others", env: on + "EXPORTER_OTLP_HEADERS=a=1\nEXPORTER_OTLP_TRACES_HEADERS=b=2", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return len(c.headers) == 1 && c.headers.Get("B") == "2" }},
		{name: "headers that cannot be sent", env: on + "EXPORTER_OTLP_HEADERS=ok=1,novalue,a=%zz,b=x%0d%0ay,c d=e", url: "http://box:4318/v1/traces",
			warn: "EXPORTER_OTLP_HEADERS EXPORTER_OTLP_HEADERS EXPORTER_OTLP_HEADERS EXPORTER_OTLP_HEADERS",
			more: func(c *config) bool { return len(c.headers) == 1 && c.headers.Get("Ok") == "1" }},

		{name: "no limit given", env: on, url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return c.timeout == 10*time.Second && !c.gzip && c.tls == nil }},
		{name: "a limit", env: on + "EXPORTER_OTLP_TIMEOUT=250", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return c.timeout == 250*time.Millisecond }},
		{name: "a limit for traces", env: on + "EXPORTER_OTLP_TIMEOUT=x\nEXPORTER_OTLP_TRACES_TIMEOUT=7", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return c.timeout == 7*time.Millisecond }},
		{name: "a limit in words", env: on + "EXPORTER_OTLP_TIMEOUT=10s", url: "http://box:4318/v1/traces", warn: "EXPORTER_OTLP_TIMEOUT",
			more: func(c *config) bool { return c.timeout == 10*time.Second }},
		{name: "no time at all", env: on + "EXPORTER_OTLP_TIMEOUT=0", url: "http://box:4318/v1/traces", warn: "EXPORTER_OTLP_TIMEOUT",
			more: func(c *config) bool { return c.timeout == 10*time.Second }},

		{name: "gzip", env: on + "EXPORTER_OTLP_COMPRESSION=gzip", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return c.gzip }},
		{name: "gzip, but not for traces", env: on + "EXPORTER_OTLP_COMPRESSION=gzip\nEXPORTER_OTLP_TRACES_COMPRESSION=none", url: "http://box:4318/v1/traces",
			more: func(c *config) bool { return !c.gzip }},
		{name: "another compression", env: on + "EXPORTER_OTLP_COMPRESSION=zstd", url: "http://box:4318/v1/traces", warn: "EXPORTER_OTLP_COMPRESSION",
			more: func(c *config) bool { return !c.gzip }},

		{name: "a certificate that is not there", env: on + "EXPORTER_OTLP_CERTIFICATE=" + missing, warn: "EXPORTER_OTLP_CERTIFICATE"},
		{name: "a certificate that is none", env: on + "EXPORTER_OTLP_TRACES_CERTIFICATE=" + empty, warn: "EXPORTER_OTLP_TRACES_CERTIFICATE"},
		{name: "a key without a certificate", env: on + "EXPORTER_OTLP_CLIENT_KEY=" + empty, warn: "EXPORTER_OTLP_CLIENT_CERTIFICATE"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var warned []string
			c := readConfig(env(x.env), func(variable, what string) {
				warned = append(warned, strings.TrimPrefix(variable, "OTEL_"))
				if strings.Contains(what, dir) {
					t.Errorf("a path is told: %s", what)
				}
			})
			url := ""
			if c != nil {
				url = c.url.String()
			}
			if got := strings.Join(warned, " "); url != x.url || got != x.warn {
				t.Errorf("sent to %q, not %q; warned of %q, not %q", url, x.url, got, x.warn)
			}
			if x.more != nil && c != nil && !x.more(c) {
				t.Errorf("got %+v", c)
			}
		})
	}
}

// quiet takes away what the tester's own environment asks for.
func quiet(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

func TestNothingIsMadeUnlessAsked(t *testing.T) {
	quiet(t)
	log, l := newLog()
	before := runtime.NumGoroutine()
	tr := Start("1", log)
	if tr != nil || tr.Session("ses_1") != nil {
		t.Error("somebody traces")
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines more", n-before)
	}
	if _, made := otel.GetTracerProvider().(*sdktrace.TracerProvider); made || l.String() != "" {
		t.Errorf("there is a provider: %v; the log says %q", made, l)
	}
	tr.Close()
}

// Nobody else in the process may begin to trace, or to send ids along, because we
// do: the client of containers would.
func TestTracesAreNobodyElses(t *testing.T) {
	begin(t, "http://127.0.0.1:9")
	if _, made := otel.GetTracerProvider().(*sdktrace.TracerProvider); made {
		t.Error("everybody got our provider")
	}
	if f := otel.GetTextMapPropagator().Fields(); len(f) > 0 {
		t.Errorf("requests get %v", f)
	}
}

func TestSizesOfTheQueueThatMakeNoSenseAreNotTaken(t *testing.T) {
	usual := sdktrace.BatchSpanProcessorOptions{MaxQueueSize: 2048, MaxExportBatchSize: 512, BatchTimeout: 5 * time.Second, ExportTimeout: 30 * time.Second}
	for _, x := range []struct {
		env   string
		want  sdktrace.BatchSpanProcessorOptions
		warns int
	}{
		{"", usual, 0},
		{"BSP_MAX_QUEUE_SIZE=10\nBSP_MAX_EXPORT_BATCH_SIZE=5\nBSP_SCHEDULE_DELAY=1\nBSP_EXPORT_TIMEOUT=1000000",
			sdktrace.BatchSpanProcessorOptions{MaxQueueSize: 10, MaxExportBatchSize: 5, BatchTimeout: time.Millisecond, ExportTimeout: 1000 * time.Second}, 0},
		{"BSP_MAX_QUEUE_SIZE=10", sdktrace.BatchSpanProcessorOptions{MaxQueueSize: 10, MaxExportBatchSize: 10, BatchTimeout: 5 * time.Second, ExportTimeout: 30 * time.Second}, 0},
		{"BSP_MAX_QUEUE_SIZE=-1", usual, 1}, {"BSP_MAX_QUEUE_SIZE=2000000000", usual, 1}, {"BSP_MAX_EXPORT_BATCH_SIZE=0", usual, 1},
		{"BSP_SCHEDULE_DELAY=0\nBSP_EXPORT_TIMEOUT=1s", usual, 2},
	} {
		log, l := newLog()
		var got sdktrace.BatchSpanProcessorOptions
		for _, set := range batching(env(x.env), log) {
			set(&got)
		}
		if got != x.want || l.warnings() != x.warns {
			t.Errorf("%q gives %+v and %d warnings", x.env, got, l.warnings())
		}
	}
}
