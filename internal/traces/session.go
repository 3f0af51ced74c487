package traces

import (
	"context"
	"errors"
	"net/http/httptrace"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"codework/messages"
)

// Names of spans. Each busy period of a session is a trace of its own.
const (
	spanExecution = "execution"
	spanPrompt    = "prompt"
	spanPrepare   = "exchange.prepare"
	spanTurn      = "turn"
	spanRequest   = "model.request"
	spanTool      = "tool"
	spanCommit    = "store.commit"
)

// Attributes for which OpenTelemetry has no name, or has one since this version
// of its names.
const (
	keyOutcome     = attribute.Key("codework.outcome") // succeeded, failed, interrupted
	keyReason      = attribute.Key("codework.interrupt.reason")
	keyPrompt      = attribute.Key("codework.prompt.id")
	keyDelivery    = attribute.Key("codework.prompt.delivery")
	keyTurn        = attribute.Key("codework.turn.id")
	keyRetries     = attribute.Key("codework.retries") // failed attempts of the turn before this one
	keyProtocol    = attribute.Key("codework.protocol")
	keyRetryable   = attribute.Key("codework.retryable")
	keyRetryAfter  = attribute.Key("codework.retry_after_ms")
	keyState       = attribute.Key("codework.tool.state")
	keyReasoning   = attribute.Key("codework.usage.reasoning_tokens")
	keyCost        = attribute.Key("codework.usage.cost_usd")
	keyCacheRead   = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	keyCacheWrite  = attribute.Key("gen_ai.usage.cache_creation.input_tokens")
	keyConnection  = attribute.Key("codework.connection.reused")
	eventStored    = "stored"
	eventConnected = "http.connected"
	eventSent      = "http.request.sent"
	eventHeaders   = "http.response.headers"
	eventStream    = "stream.started"
	eventPiece     = "stream.first_piece"
)

// How work ends.
const (
	succeeded   = "succeeded"
	failed      = "failed"
	interrupted = "interrupted"
)

// Session follows the work of one session. A nil *Session follows nothing. Its
// methods are called by one goroutine at a time; what they return may be used by
// any.
//
// What has no end when the work ends, ends with it: whoever follows need not tell
// the end of everything that was under way.
type Session struct {
	t  *Traces
	id string

	prompts map[string]arrival // that wait
	work    trace.Span         // nil between executions, and so on
	turn    trace.Span
	request trace.Span
	calls   []*Call
	failure *messages.Failure // of the turn's request
}

// arrival is when a prompt came and when it was on disk.
type arrival struct{ admitted, stored time.Time }

// Session begins to follow a session, or returns nil if nobody traces.
func (t *Traces) Session(id string) *Session {
	if t == nil {
		return nil
	}
	return &Session{t: t, id: id, prompts: map[string]arrival{}}
}

// ID is that of the trace of the work under way; "" is none.
func (s *Session) ID() string {
	if s == nil || s.work == nil {
		return ""
	}
	return s.work.SpanContext().TraceID().String()
}

// begin begins a span below another one; nil is none.
func (s *Session) begin(parent trace.Span, name string, options ...trace.SpanStartOption) trace.Span {
	ctx := context.Background()
	if parent != nil {
		ctx = trace.ContextWithSpan(ctx, parent)
	}
	_, span := s.t.tracer.Start(ctx, name, options...)
	return span
}

// Admitted says that a prompt waits, on its way to the disk.
func (s *Session) Admitted(prompt string) {
	if s != nil {
		s.prompts[prompt] = arrival{admitted: time.Now()}
	}
}

// Stored says that a prompt is on disk.
func (s *Session) Stored(prompt string) {
	if s == nil {
		return
	}
	if a, ok := s.prompts[prompt]; ok {
		a.stored = time.Now()
		s.prompts[prompt] = a
	}
}

// Removed says that a prompt waits no longer: it was taken back.
func (s *Session) Removed(prompt string) {
	if s != nil {
		delete(s.prompts, prompt)
	}
}

// Promoted says that a prompt is worked on now. at is when it was admitted, for
// one that was before this process.
func (s *Session) Promoted(prompt string, d messages.Delivery, at time.Time) {
	if s == nil || s.work == nil {
		return
	}
	a, ok := s.prompts[prompt]
	delete(s.prompts, prompt)
	if !ok {
		a.admitted = at
	}
	span := s.begin(s.work, spanPrompt, trace.WithTimestamp(a.admitted),
		trace.WithAttributes(keyPrompt.String(prompt), keyDelivery.String(string(d))))
	if !a.stored.IsZero() {
		span.AddEvent(eventStored, trace.WithTimestamp(a.stored))
	}
	span.End()
}

// Began says that the session began to work.
func (s *Session) Began() {
	if s == nil {
		return
	}
	s.Ended(failed, nil, "") // there is none, unless an end was missed
	s.work = s.begin(nil, spanExecution, trace.WithAttributes(semconv.GenAIOperationNameInvokeAgent,
		semconv.GenAIAgentName("codework"), semconv.GenAIConversationID(s.id)))
}

// Ended says how the work ended: with f, if it failed, and reason, if it was
// interrupted.
func (s *Session) Ended(outcome string, f *messages.Failure, reason string) {
	if s == nil || s.work == nil {
		return
	}
	s.failure = f
	s.TurnEnded(outcome)
	s.failure = nil
	if reason != "" {
		s.work.SetAttributes(keyReason.String(reason))
	}
	endAs(s.work, outcome, f)
	s.work = nil
}

// Prepare follows the capture of an exchange, which begins with the returned
// function. That gives a context with which parts of it can be told, and what ends
// it, with why it came to nothing or nil.
func (s *Session) Prepare() func(context.Context) (context.Context, func(error)) {
	if s == nil || s.work == nil {
		return unfollowed
	}
	t, work := s.t, s.work
	return func(ctx context.Context) (context.Context, func(error)) {
		ctx, span := t.tracer.Start(trace.ContextWithSpan(ctx, work), spanPrepare)
		return ctx, func(err error) { endWith(span, err) }
	}
}

func unfollowed(ctx context.Context) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// Turn says that a turn began; retries are its attempts that failed before.
func (s *Session) Turn(id string, retries int) {
	if s == nil || s.work == nil {
		return
	}
	s.failure = nil
	s.turn = s.begin(s.work, spanTurn, trace.WithAttributes(keyTurn.String(id), keyRetries.Int(retries)))
}

// TurnEnded says how the turn ended, with all that belongs to it.
func (s *Session) TurnEnded(outcome string) {
	if s == nil {
		return
	}
	if s.request != nil {
		endAs(s.request, outcome, s.failure)
		s.request = nil
	}
	for _, c := range s.calls {
		endAs(c.span, outcome, s.failure)
	}
	s.calls = nil
	if s.turn != nil {
		endAs(s.turn, outcome, s.failure)
		s.turn = nil
	}
}

// Request says that the model is asked, with a context from which HTTP tells how
// far it is. It carries nothing that would be sent.
func (s *Session) Request(ctx context.Context, r *messages.Request, retries int) context.Context {
	if s == nil || s.turn == nil {
		return ctx
	}
	span := s.begin(s.turn, spanRequest, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.GenAIOperationNameChat, semconv.GenAIProviderNameKey.String(providerName(r.Model.Provider.ID)),
		semconv.GenAIRequestModel(r.Model.ID), semconv.GenAIConversationID(s.id),
		keyProtocol.String(string(r.Model.Protocol)), keyRetries.Int(retries)))
	s.request = span
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			span.AddEvent(eventConnected, trace.WithAttributes(keyConnection.Bool(i.Reused)))
		},
		WroteRequest:         func(httptrace.WroteRequestInfo) { span.AddEvent(eventSent) },
		GotFirstResponseByte: func() { span.AddEvent(eventHeaders) },
	})
}

// providerName is what OpenTelemetry calls a provider that it knows by another
// name than models.dev does.
func providerName(id string) string {
	if name, ok := otherNames[id]; ok {
		return name
	}
	return id
}

var otherNames = map[string]string{
	"google":  semconv.GenAIProviderNameGCPGemini.Value.AsString(),
	"xai":     semconv.GenAIProviderNameXAI.Value.AsString(),
	"mistral": semconv.GenAIProviderNameMistralAI.Value.AsString(),
}

// Streaming says that the model's answer began.
func (s *Session) Streaming() { s.note(eventStream) }

// FirstPiece says that the first words came.
func (s *Session) FirstPiece() { s.note(eventPiece) }

func (s *Session) note(event string) {
	if s != nil && s.request != nil {
		s.request.AddEvent(event)
	}
}

// Used says what the request took, also one that came to nothing.
func (s *Session) Used(u *messages.Usage) {
	if s == nil || s.request == nil || u == nil {
		return
	}
	// With what came from the cache and went into it, says OpenTelemetry.
	s.request.SetAttributes(semconv.GenAIUsageInputTokens(int(u.Input+u.CacheRead+u.CacheWrite)), semconv.GenAIUsageOutputTokens(int(u.Output)))
	for _, x := range []struct {
		key attribute.Key
		n   int64
	}{{keyReasoning, u.Reasoning}, {keyCacheRead, u.CacheRead}, {keyCacheWrite, u.CacheWrite}} {
		if x.n > 0 {
			s.request.SetAttributes(x.key.Int64(x.n))
		}
	}
	if u.Cost.Total > 0 {
		s.request.SetAttributes(keyCost.Float64(u.Cost.Total))
	}
}

// Answered ends the request with the whole message.
func (s *Session) Answered(m *messages.Message) {
	if s == nil || s.request == nil {
		return
	}
	s.Used(m.Usage)
	s.request.SetAttributes(semconv.GenAIResponseFinishReasons(string(m.StopReason)))
	if m.ResponseModel != "" {
		s.request.SetAttributes(semconv.GenAIResponseModel(m.ResponseModel))
	}
	if m.ResponseID != "" {
		s.request.SetAttributes(semconv.GenAIResponseID(m.ResponseID))
	}
	endAs(s.request, succeeded, nil)
	s.request = nil
}

// Failed ends the request, and is why its turn comes to nothing.
func (s *Session) Failed(f *messages.Failure) {
	if s == nil || s.request == nil {
		return
	}
	s.failure = f
	s.request.SetAttributes(keyRetryable.Bool(f.Retryable))
	if f.RetryAfter > 0 {
		s.request.SetAttributes(keyRetryAfter.Int64(f.RetryAfter.Milliseconds()))
	}
	endAs(s.request, failed, f)
	s.request = nil
}

// Wait follows something that the work waits for until the returned function is
// called. What took no time to speak of leaves no span.
func (s *Session) Wait() (over func()) {
	if s == nil || s.turn == nil {
		return nothing
	}
	turn, began := s.turn, time.Now()
	return func() {
		if time.Since(began) >= worthTelling {
			s.begin(turn, spanCommit, trace.WithTimestamp(began)).End()
		}
	}
}

func nothing() {}

// worthTelling is less than any disk takes, and more than a call of a function
// does.
const worthTelling = 100 * time.Microsecond

// Call is a tool call under way.
type Call struct{ span trace.Span }

// Call says that a tool call began. name is that of a tool; "" is one that there
// is not, whose name the model made up.
func (s *Session) Call(name, id string) *Call {
	if s == nil || s.turn == nil {
		return nil
	}
	if name == "" {
		name = "unknown"
	}
	c := &Call{s.begin(s.turn, spanTool, trace.WithAttributes(semconv.GenAIOperationNameExecuteTool,
		semconv.GenAIToolName(name), semconv.GenAIToolCallID(id), semconv.GenAIToolType("function")))}
	s.calls = append(s.calls, c)
	return c
}

// Settled says that a call has its result.
func (s *Session) Settled(c *Call, state messages.CallState) {
	if s == nil || c == nil {
		return
	}
	for i, other := range s.calls {
		if other == c {
			s.calls = append(s.calls[:i], s.calls[i+1:]...)
			break
		}
	}
	c.span.SetAttributes(keyState.String(string(state)))
	if state == messages.CallError {
		setError(c.span, toolError)
	}
	c.span.End()
}

// toolError is the type of what a tool reports as its failure, in the manner of
// messages.Failure.
const toolError = "tool-error"

// endAs ends a span of work.
func endAs(span trace.Span, outcome string, f *messages.Failure) {
	span.SetAttributes(keyOutcome.String(outcome))
	if outcome == failed {
		if f == nil {
			f = &messages.Failure{Type: messages.FailInternal}
		}
		setError(span, f.Type)
		if f.Status != 0 {
			span.SetAttributes(semconv.HTTPResponseStatusCode(f.Status))
		}
	}
	span.End()
}

// endWith ends a span of something that fails with an error or not at all.
func endWith(span trace.Span, err error) {
	var f *messages.Failure
	switch {
	case err == nil:
		endAs(span, succeeded, nil)
	case errors.Is(err, context.Canceled):
		endAs(span, interrupted, nil)
	case errors.As(err, &f):
		endAs(span, failed, f)
	default:
		endAs(span, failed, &messages.Failure{Type: messages.FailUnknown})
	}
}

// setError marks a span. The message of a failure may repeat what somebody wrote,
// so that only its type is told.
func setError(span trace.Span, kind string) {
	span.SetStatus(codes.Error, kind)
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
}
