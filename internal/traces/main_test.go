package traces

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/internal/traces/tracestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged is a log that can be read while it is written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// warnings counts the lines that a person would be shown.
func (l *logged) warnings() int { return strings.Count(l.String(), "level=WARN") }

func newLog() (*slog.Logger, *logged) {
	l := &logged{}
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), l
}

// begin starts to trace to a collector, with variables beside its address; waits
// are short.
func begin(t *testing.T, url string, variables ...string) (*Traces, *logged) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	for i := 0; i < len(variables); i += 2 {
		t.Setenv(variables[i], variables[i+1])
	}
	log, l := newLog()
	tr := Start("1.2.3", log)
	if tr == nil {
		t.Fatalf("nobody traces:\n%s", l)
	}
	tr.out.first = 4 * time.Millisecond
	t.Cleanup(tr.Close)
	return tr, l
}

// work makes a trace of three spans.
func work(tr *Traces) {
	s := tr.Session("ses_1")
	s.Admitted("msg_1")
	s.Stored("msg_1")
	s.Began()
	s.Promoted("msg_1", "steer", time.Time{})
	s.Turn("msg_2", 0)
	s.TurnEnded("succeeded")
	s.Ended("succeeded", nil, "")
}

const workTree = "execution\n  prompt\n  turn\n"

// whole tells that work has come.
func whole(list []tracestest.Span, _ []tracestest.Request) bool { return len(list) == 3 }

func asked(n int) func([]tracestest.Span, []tracestest.Request) bool {
	return func(_ []tracestest.Span, r []tracestest.Request) bool { return len(r) >= n }
}
