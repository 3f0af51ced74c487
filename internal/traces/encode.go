package traces

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	described "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	spans "go.opentelemetry.io/proto/slim/otlp/trace/v1"
)

// request is the message of OTLP that holds a batch, of which there is at least
// one span. All have the one resource and scope of this process. For JSON ids are
// prepared to come out as OTLP wants them.
func request(batch []sdktrace.ReadOnlySpan, json bool) *collector.ExportTraceServiceRequest {
	id := func(b []byte) []byte { return b }
	if json {
		id = hexInBase64
	}
	list := make([]*spans.Span, len(batch))
	for i, s := range batch {
		list[i] = message(s, id)
	}
	by := batch[0].InstrumentationScope()
	return &collector.ExportTraceServiceRequest{ResourceSpans: []*spans.ResourceSpans{{
		Resource: &described.Resource{Attributes: attributes(batch[0].Resource().Attributes())},
		ScopeSpans: []*spans.ScopeSpans{{
			Scope: &common.InstrumentationScope{Name: by.Name, Version: by.Version},
			Spans: list,
		}},
	}}}
}

// hexInBase64 returns the bytes whose base64, which is how the JSON form of
// protobuf writes bytes, is the hexadecimal form of b, which is how that of OTLP
// writes ids. The digits are letters of base64, and 16 or 32 of them fill it
// without a rest.
func hexInBase64(b []byte) []byte {
	raw, err := base64.StdEncoding.DecodeString(hex.EncodeToString(b))
	if err != nil {
		return nil // no id has such a length
	}
	return raw
}

// parentKnown is the bit of a span's flags which says that the next bit tells
// whether its parent is in another process. None is.
const parentKnown = uint32(spans.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)

func message(s sdktrace.ReadOnlySpan, id func([]byte) []byte) *spans.Span {
	c := s.SpanContext()
	traceID, spanID := c.TraceID(), c.SpanID()
	m := &spans.Span{
		TraceId: id(traceID[:]), SpanId: id(spanID[:]), Flags: uint32(c.TraceFlags()) | parentKnown,
		Name: valid(s.Name()), Kind: kinds[s.SpanKind()],
		StartTimeUnixNano: nanos(s.StartTime()), EndTimeUnixNano: nanos(s.EndTime()),
		Attributes: attributes(s.Attributes()), DroppedAttributesCount: uint32(s.DroppedAttributes()),
		DroppedEventsCount: uint32(s.DroppedEvents()),
		Status:             &spans.Status{Code: statuses[s.Status().Code], Message: valid(s.Status().Description)},
	}
	if p := s.Parent(); p.HasSpanID() {
		parent := p.SpanID()
		m.ParentSpanId = id(parent[:])
	}
	for _, e := range s.Events() {
		m.Events = append(m.Events, &spans.Span_Event{TimeUnixNano: nanos(e.Time), Name: valid(e.Name),
			Attributes: attributes(e.Attributes), DroppedAttributesCount: uint32(e.DroppedAttributeCount)})
	}
	return m
}

var kinds = map[trace.SpanKind]spans.Span_SpanKind{
	trace.SpanKindInternal: spans.Span_SPAN_KIND_INTERNAL,
	trace.SpanKindClient:   spans.Span_SPAN_KIND_CLIENT,
}

var statuses = map[codes.Code]spans.Status_StatusCode{
	codes.Unset: spans.Status_STATUS_CODE_UNSET,
	codes.Ok:    spans.Status_STATUS_CODE_OK,
	codes.Error: spans.Status_STATUS_CODE_ERROR,
}

func nanos(t time.Time) uint64 { return uint64(max(0, t.UnixNano())) }

func attributes(list []attribute.KeyValue) []*common.KeyValue {
	out := make([]*common.KeyValue, len(list))
	for i, a := range list {
		out[i] = &common.KeyValue{Key: valid(string(a.Key)), Value: value(a.Value)}
	}
	return out
}

// value has the types that spans here have; any other is told in words.
func value(v attribute.Value) *common.AnyValue {
	switch v.Type() {
	case attribute.BOOL:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	case attribute.STRINGSLICE:
		list := &common.ArrayValue{}
		for _, s := range v.AsStringSlice() {
			list.Values = append(list.Values, text(s))
		}
		return &common.AnyValue{Value: &common.AnyValue_ArrayValue{ArrayValue: list}}
	}
	return text(v.Emit())
}

func text(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: valid(s)}}
}

// valid is s as protobuf takes it: one bad byte would cost the whole batch.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
