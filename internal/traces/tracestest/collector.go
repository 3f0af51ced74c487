// Package tracestest plays an OpenTelemetry collector for tests.
//
// A Collector takes what is sent by OTLP over HTTP, protobuf or JSON, on an
// address of this machine. It reads both forms for itself, in the words of the
// protocol's page, so that it is no mirror of what sends. A message that is not as
// that page wants it fails the test. It keeps everything until the test is over.
package tracestest

import (
	"cmp"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	spans "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector is a collector on this machine.
type Collector struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex // guards what follows
	answer   http.HandlerFunc
	spans    []Span
	requests []Request
	resource map[string]any
	changed  chan struct{} // closed when something came
}

// Span is one that was sent.
type Span struct {
	Trace, ID, Parent string // hexadecimal; Parent is "" for a root
	Name              string
	Client            bool // of kind client, not internal
	Start, End        time.Time
	Attributes        map[string]any // string, bool, int64, float64, []any
	Events            []Event
	Error             string // "" is no error
}

// Event is something that happened in a span.
type Event struct {
	Name       string
	Time       time.Time
	Attributes map[string]any
}

// Request is a message as it came.
type Request struct {
	Path   string
	Header http.Header
	Bytes  int
	At     time.Time
}

// New starts a collector that ends with the test.
func New(t testing.TB) *Collector {
	c := NewUnstarted(t)
	c.Start()
	return c
}

// NewUnstarted is a collector that the test starts.
func NewUnstarted(t testing.TB) *Collector {
	c := &Collector{t: t, changed: make(chan struct{})}
	c.Server = httptest.NewUnstartedServer(c)
	t.Cleanup(c.Close)
	return c
}

// Answer lets f answer what comes from now on; nil is the usual answer. What f
// writes an answer to is not kept.
func (c *Collector) Answer(f http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

// ServeHTTP takes a message.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	wire, err := io.ReadAll(r.Body)
	if err != nil {
		return // whoever sent it has gone
	}
	c.mu.Lock()
	answer := c.answer
	c.requests = append(c.requests, Request{r.URL.RequestURI(), r.Header, len(wire), time.Now()})
	c.tell()
	c.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	got, resource, err := read(r.Header, wire)
	if err != nil {
		c.t.Errorf("what came is no message of OTLP: %v", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans, c.resource = append(c.spans, got...), resource
	c.tell()
}

// tell wakes whoever waits; c.mu is held.
func (c *Collector) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Until waits until ok says that enough has come, of the spans, which are in order
// of their beginning, and the requests.
func (c *Collector) Until(what string, ok func([]Span, []Request) bool) {
	c.t.Helper()
	late := time.After(limit)
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		s, r := c.Spans(), c.Requests()
		if ok(s, r) {
			return
		}
		select {
		case <-changed:
		case <-late:
			c.t.Fatalf("waited in vain for %s; got %d requests and these spans:\n%s", what, len(r), Tree(s))
		}
	}
}

// limit bounds a wait; it is never reached when things work.
const limit = 20 * time.Second

// Spans are those that came, in order of their beginning.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.spans)
	slices.SortStableFunc(list, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return list
}

// Requests are the messages that came.
func (c *Collector) Requests() []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// Resource is what the last message says of its sender.
func (c *Collector) Resource() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resource
}

// Tree shows spans, a line each, those below another one indented; with the values
// of these attributes, where a span has them, and its error.
func Tree(list []Span, attributes ...string) string {
	known := map[string]bool{}
	for _, s := range list {
		known[s.ID] = true
	}
	var b strings.Builder
	var show func(parent, indent string)
	show = func(parent, indent string) {
		for _, s := range list {
			if s.Parent != parent && (parent != "" || known[s.Parent]) {
				continue
			}
			fmt.Fprintf(&b, "%s%s", indent, s.Name)
			if s.Parent != "" && !known[s.Parent] {
				fmt.Fprint(&b, " (below a span that is not here)")
			}
			for _, a := range attributes {
				if v, ok := s.Attributes[a]; ok {
					fmt.Fprintf(&b, " %v", v)
				}
			}
			if s.Error != "" {
				fmt.Fprintf(&b, " !%s", s.Error)
			}
			b.WriteByte('\n')
			show(s.ID, indent+"  ")
		}
	}
	show("", "")
	return b.String()
}

func read(h http.Header, wire []byte) ([]Span, map[string]any, error) {
	body := io.Reader(strings.NewReader(string(wire)))
	switch e := h.Get("Content-Encoding"); e {
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, nil, err
		}
		body = z
	case "":
	default:
		return nil, nil, fmt.Errorf("content encoding %s", e)
	}
	plain, err := io.ReadAll(body)
	if err != nil {
		return nil, nil, err
	}
	switch t := h.Get("Content-Type"); t {
	case "application/x-protobuf":
		return readBinary(plain)
	case "application/json":
		return readJSON(plain)
	default:
		return nil, nil, fmt.Errorf("content type %s", t)
	}
}

func readBinary(body []byte) ([]Span, map[string]any, error) {
	var m collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, nil, err
	}
	var list []Span
	var resource map[string]any
	for _, r := range m.GetResourceSpans() {
		resource = attributes(r.GetResource().GetAttributes())
		for _, sc := range r.GetScopeSpans() {
			for _, s := range sc.GetSpans() {
				x := Span{
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
					Name: s.GetName(), Client: s.GetKind() == spans.Span_SPAN_KIND_CLIENT, Attributes: attributes(s.GetAttributes()),
					Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
				}
				if s.GetStatus().GetCode() == spans.Status_STATUS_CODE_ERROR {
					x.Error = cmp.Or(s.GetStatus().GetMessage(), "?")
				}
				for _, e := range s.GetEvents() {
					x.Events = append(x.Events, Event{e.GetName(), time.Unix(0, int64(e.GetTimeUnixNano())), attributes(e.GetAttributes())})
				}
				list = append(list, x)
			}
		}
	}
	return list, resource, check(list)
}

func attributes(list []*common.KeyValue) map[string]any {
	m := map[string]any{}
	for _, a := range list {
		m[a.GetKey()] = value(a.GetValue())
	}
	return m
}

func value(v *common.AnyValue) any {
	switch x := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return x.StringValue
	case *common.AnyValue_BoolValue:
		return x.BoolValue
	case *common.AnyValue_IntValue:
		return x.IntValue
	case *common.AnyValue_DoubleValue:
		return x.DoubleValue
	case *common.AnyValue_ArrayValue:
		list := []any{}
		for _, e := range x.ArrayValue.GetValues() {
			list = append(list, value(e))
		}
		return list
	}
	return nil
}

// The JSON form: names in camel case, ids in hexadecimal, 64-bit numbers as text,
// enumerations as numbers.
type (
	jsonRequest struct {
		ResourceSpans []struct {
			Resource struct {
				Attributes []jsonAttribute `json:"attributes"`
			} `json:"resource"`
			ScopeSpans []struct {
				Scope any        `json:"scope"`
				Spans []jsonSpan `json:"spans"`
			} `json:"scopeSpans"`
		} `json:"resourceSpans"`
	}
	jsonSpan struct {
		TraceID      string          `json:"traceId"`
		SpanID       string          `json:"spanId"`
		ParentSpanID string          `json:"parentSpanId"`
		Flags        uint32          `json:"flags"`
		Name         string          `json:"name"`
		Kind         int             `json:"kind"`
		Start        string          `json:"startTimeUnixNano"`
		End          string          `json:"endTimeUnixNano"`
		Attributes   []jsonAttribute `json:"attributes"`
		Events       []struct {
			Time       string          `json:"timeUnixNano"`
			Name       string          `json:"name"`
			Attributes []jsonAttribute `json:"attributes"`
		} `json:"events"`
		Status struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"status"`
	}
	jsonAttribute struct {
		Key   string    `json:"key"`
		Value jsonValue `json:"value"`
	}
	jsonValue struct {
		String *string  `json:"stringValue"`
		Bool   *bool    `json:"boolValue"`
		Int    *string  `json:"intValue"`
		Double *float64 `json:"doubleValue"`
		Array  *struct {
			Values []jsonValue `json:"values"`
		} `json:"arrayValue"`
	}
)

func readJSON(body []byte) ([]Span, map[string]any, error) {
	var m jsonRequest
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, nil, err
	}
	var list []Span
	var resource map[string]any
	for _, r := range m.ResourceSpans {
		resource = jsonAttributes(r.Resource.Attributes)
		for _, sc := range r.ScopeSpans {
			for _, s := range sc.Spans {
				x := Span{Trace: s.TraceID, ID: s.SpanID, Parent: s.ParentSpanID, Name: s.Name, Client: s.Kind == int(spans.Span_SPAN_KIND_CLIENT),
					Attributes: jsonAttributes(s.Attributes), Start: jsonTime(s.Start), End: jsonTime(s.End)}
				if s.Status.Code == int(spans.Status_STATUS_CODE_ERROR) {
					x.Error = cmp.Or(s.Status.Message, "?")
				}
				for _, e := range s.Events {
					x.Events = append(x.Events, Event{e.Name, jsonTime(e.Time), jsonAttributes(e.Attributes)})
				}
				list = append(list, x)
			}
		}
	}
	return list, resource, check(list)
}

func jsonTime(s string) time.Time {
	n, _ := strconv.ParseInt(s, 10, 64) // 0 is refused by check
	return time.Unix(0, n)
}

func jsonAttributes(list []jsonAttribute) map[string]any {
	m := map[string]any{}
	for _, a := range list {
		m[a.Key] = a.Value.any()
	}
	return m
}

func (v jsonValue) any() any {
	switch {
	case v.String != nil:
		return *v.String
	case v.Bool != nil:
		return *v.Bool
	case v.Int != nil:
		n, _ := strconv.ParseInt(*v.Int, 10, 64)
		return n
	case v.Double != nil:
		return *v.Double
	case v.Array != nil:
		list := []any{}
		for _, e := range v.Array.Values {
			list = append(list, e.any())
		}
		return list
	}
	return nil
}

// check holds spans to what every backend expects.
func check(list []Span) error {
	for _, s := range list {
		trace, err1 := hex.DecodeString(s.Trace)
		id, err2 := hex.DecodeString(s.ID)
		parent, err3 := hex.DecodeString(s.Parent)
		switch {
		case err1 != nil || err2 != nil || err3 != nil, len(trace) != 16, len(id) != 8, len(parent) != 0 && len(parent) != 8:
			return fmt.Errorf("span %q has the ids %q, %q, %q", s.Name, s.Trace, s.ID, s.Parent)
		case s.Name == "":
			return fmt.Errorf("span %s has no name", s.ID)
		case s.Start.Unix() <= 0 || s.End.Before(s.Start):
			return fmt.Errorf("span %q lasts from %v to %v", s.Name, s.Start, s.End)
		}
	}
	return nil
}
