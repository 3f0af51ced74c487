package traces

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Waits before a batch is sent again, unless the collector names one: each is
// twice the one before, give or take half.
const (
	firstWait   = time.Second
	longestWait = 30 * time.Second
)

// maxAnswer is how much of an answer is read: it says how many spans were
// refused, and why.
const maxAnswer = 64 << 10

// warnEvery is the least time between two warnings: a collector that comes and
// goes does not fill the log.
const warnEvery = time.Hour

// exporter sends batches of spans by HTTP, each as one message of OTLP, until it
// is taken, refused for good or too late. ExportSpans is called by one goroutine
// at a time, which owns what has no other owner.
type exporter struct {
	*config
	client *http.Client
	log    *slog.Logger
	first  time.Duration // firstWait, less in tests

	ctx     context.Context // ends when everything is given up
	giveUp  context.CancelFunc
	closing chan struct{} // closed by hurry
	until   time.Time     // set before closing is closed: nothing may take longer
	done    chan struct{} // closed by Shutdown

	notBefore time.Time // when the collector wants to hear from us again
	failing   bool      // the last batch was lost
	warned    time.Time
	lost      int // spans, since the last batch that was taken
}

func newExporter(c *config, log *slog.Logger) *exporter {
	e := &exporter{config: c, log: log, first: firstWait, closing: make(chan struct{}), done: make(chan struct{})}
	e.ctx, e.giveUp = context.WithCancel(context.Background())
	e.client = &http.Client{
		// Not by a proxy: the variables of OpenTelemetry know none.
		Transport: &http.Transport{TLSClientConfig: c.tls, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute},
		// Headers with keys would go wherever the answer points.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return e
}

// host names the collector, without what may be secret in its address.
func (e *exporter) host() string { return e.url.Host }

// hurry says that the process ends, and when everything must be over.
func (e *exporter) hurry(until time.Time) {
	e.until = until
	close(e.closing)
}

// Shutdown ends the exporter, after its last batch.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	close(e.done)
	return nil
}

// ExportSpans sends a batch. What becomes of it is the log's matter, not an
// error: nobody could do anything about it.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	body, err := e.encode(spans)
	if err == nil {
		err = e.deliver(ctx, body)
	}
	if err != nil {
		e.dropped(len(spans), err)
		return nil
	}
	if e.failing {
		e.log.Info("traces are delivered again", "collector", e.host(), "lost", e.lost)
		e.failing, e.lost = false, 0
	}
	return nil
}

// dropped tells of spans that are lost: once, when that begins.
func (e *exporter) dropped(n int, err error) {
	e.lost += n
	level := slog.LevelDebug
	if !e.failing && time.Since(e.warned) > warnEvery {
		level, e.warned = slog.LevelWarn, time.Now()
	}
	e.failing = true
	e.log.Log(context.Background(), level, "traces are not delivered; their spans are lost", "collector", e.host(), "spans", n, "err", err)
}

func (e *exporter) encode(spans []sdktrace.ReadOnlySpan) ([]byte, error) {
	var body []byte
	var err error
	if m := request(spans, e.json); e.json {
		// Enumerations are numbers there, says the page of OTLP.
		body, err = protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(m)
	} else {
		body, err = proto.Marshal(m)
	}
	if err != nil || !e.gzip {
		return body, err
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err = w.Write(body); err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}

// again is a failure that may pass: nobody was there, or somebody asks to come
// back, after so long if that is not zero.
type again struct {
	error
	after time.Duration
}

// deliver sends a message until it is taken or there is no sense in it.
func (e *exporter) deliver(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	err := errors.New("the collector asked for a pause")
	backoff := e.first
	for wait := time.Until(e.notBefore); e.pause(ctx, wait); backoff = min(2*backoff, longestWait) {
		err = e.post(ctx, body)
		var a again
		if !errors.As(err, &a) {
			return err
		}
		wait = backoff/2 + rand.N(backoff)
		if a.after > 0 {
			e.notBefore = time.Now().Add(a.after)
			wait = max(wait, a.after)
		}
	}
	return err
}

// pause waits for d, and tells whether it did and there is time left. A wait that
// is too long is not begun.
func (e *exporter) pause(ctx context.Context, d time.Duration) bool {
	over, _ := ctx.Deadline() // deliver has set one
	due := time.Now().Add(d)
	t := time.NewTimer(d)
	defer t.Stop()
	closing := e.closing
	select {
	case <-closing:
		closing = nil
		over = earlier(over, e.until)
	default:
	}
	for {
		if ctx.Err() != nil || d > 0 && !due.Before(over) {
			return false
		}
		select {
		case <-t.C:
			return true
		case <-ctx.Done():
			return false
		case <-closing:
			closing = nil
			over = earlier(over, e.until)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// post sends a message once.
func (e *exporter) post(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = e.headers.Clone()
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "codework-otlp")
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	if e.json {
		req.Header.Set("Content-Type", "application/json")
	}
	if e.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := e.client.Do(req)
	if err != nil {
		var u *url.Error // it repeats the address
		if errors.As(err, &u) {
			err = u.Err
		}
		if ctx.Err() != nil {
			return errors.New("the collector did not answer in time")
		}
		select {
		case <-e.closing:
			return err // there is no time to wait for somebody to come
		default:
			return again{error: err}
		}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusBadGateway,
		resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		return again{fmt.Errorf("the collector answered %d", resp.StatusCode), retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return fmt.Errorf("the collector answered %d", resp.StatusCode)
	case err == nil:
		e.partly(answer)
	}
	return nil
}

// partly tells of spans that the collector refused although it took the rest.
func (e *exporter) partly(answer []byte) {
	var m collector.ExportTraceServiceResponse
	decode := func() error { return proto.Unmarshal(answer, &m) }
	if e.json {
		decode = func() error { return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(answer, &m) }
	}
	if len(answer) == 0 || decode() != nil { // it was taken, says the status
		return
	}
	if n := m.GetPartialSuccess().GetRejectedSpans(); n > 0 && time.Since(e.warned) > warnEvery {
		e.warned = time.Now()
		e.log.Warn("the collector refused some spans", "collector", e.host(), "spans", n)
	}
}

// retryAfter reads the header of that name: seconds or a date. What is neither
// is 0.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
