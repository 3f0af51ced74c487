package effectrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// defaultInFlight is how many calls one connection may have unfinished: one
	// client may wait for some thousand sessions at once.
	defaultInFlight = 8192

	// defaultInFlightBytes is how much the payloads of unfinished calls may hold
	// together: four of the largest requests.
	defaultInFlightBytes = 64 << 20
)

// Names of the defects that this package answers with. A Defect with a name is
// the way to tell a failure for which a method declares no error.
const (
	BusyError     = "BusyError"     // over a limit of the connection
	InternalError = "InternalError" // the handler failed
	ShutdownError = "ShutdownError" // the connection is being closed
)

var (
	// ErrInterrupted is the cause of a call's context when the client lost
	// interest, and what the client half returns for a call that the other side
	// interrupted.
	ErrInterrupted = errors.New("interrupted")

	// ErrFinished is the cause of a call's context after it was answered.
	ErrFinished = errors.New("call finished")
)

// ServerOptions are the limits of one connection.
type ServerOptions struct {
	// MaxInFlight is how many calls may be unfinished; one more is answered with
	// BusyError. Zero means 8192.
	MaxInFlight int

	// MaxInFlightBytes is how many bytes the payloads of unfinished calls may
	// hold together; beyond it one that is not alone is answered with BusyError.
	// Zero means 64 MiB.
	MaxInFlightBytes int

	// MaxQueuedBytes is how much may wait for a client that does not read before
	// its connection is closed. Zero means 64 MiB.
	MaxQueuedBytes int

	// MaxLineBytes is the longest line the client may send; a longer one closes
	// the connection with 1009. Zero means 16 MiB.
	MaxLineBytes int

	// WriteTimeout is how long the client may take to accept one message (64 KiB
	// at most) before the connection is closed. Zero means 30 seconds.
	WriteTimeout time.Duration

	// OnPanic, if set, is told when a handler or a stream's source panicked.
	// The client learns only that the call failed.
	OnPanic func(method string, value any, stack []byte)
}

// Server is the server half of one connection.
type Server struct {
	link *link
	opts ServerOptions

	streams sync.WaitGroup

	mu       sync.Mutex // guards what follows and the state of the calls
	calls    map[string]*Call
	inFlight int
	bytes    int
	stopping bool
	answered chan struct{} // closed when no call is unfinished; nil unless somebody waits for that
	over     bool          // Serve waits for its streams: none may begin
}

// NewServer returns the server half for conn, which it takes over.
func NewServer(conn Conn, opts ServerOptions) *Server {
	if opts.MaxInFlight <= 0 {
		opts.MaxInFlight = defaultInFlight
	}
	if opts.MaxInFlightBytes <= 0 {
		opts.MaxInFlightBytes = defaultInFlightBytes
	}
	return &Server{
		link:  newLink(conn, opts.MaxLineBytes, opts.MaxQueuedBytes, opts.WriteTimeout),
		opts:  opts,
		calls: map[string]*Call{},
	}
}

// Serve reads requests and calls handle for each, in the order of arrival, until
// the connection ends. handle must not block: until it returns nothing is read,
// neither a Ping nor an Interrupt. It must see to it that the call is finished
// sometime, from any goroutine.
//
// The end of ctx cancels every call and closes the connection as Shutdown does,
// once the calls are finished, for which they have two seconds: what was done is
// told, also at the end. Serve is called once; it returns when everything that it started has ended:
// nil after a close in good order from either side, otherwise the reason.
func (s *Server) Serve(ctx context.Context, handle func(*Call)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(ErrConnectionLost)
	settled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(settled)
		s.settle()
	})
	err := s.link.run(nil,
		func(line []byte) { s.receive(ctx, line, handle) },
		func() {
			if stop() {
				close(settled)
			}
			cancel(ErrConnectionLost)
		})
	<-settled
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.streams.Wait()

	var closed *CloseError
	switch {
	case err == nil, errors.Is(err, ErrClosed):
		return nil
	case errors.As(err, &closed):
		if closed.Code == CloseNormal || closed.Code == CloseGoingAway || closed.Code == CloseNoStatus {
			return nil
		}
		return err
	case errors.Is(err, ErrLineTooLong), errors.Is(err, ErrPeerStuck):
		return err
	default:
		return fmt.Errorf("%w: %w", ErrConnectionLost, err)
	}
}

// answerGrace is how long calls that are cancelled at the end have to finish.
const answerGrace = 2 * time.Second

// settle refuses further calls and closes the connection behind the answers of
// those that there are.
func (s *Server) settle() {
	s.mu.Lock()
	s.stopping = true
	answered := make(chan struct{})
	if s.inFlight == 0 {
		close(answered)
	} else {
		s.answered = answered
	}
	s.mu.Unlock()
	late := time.NewTimer(answerGrace)
	defer late.Stop()
	select {
	case <-answered:
	case <-s.link.over:
	case <-late.C:
	}
	s.Shutdown()
}

// Shutdown closes the connection with 1001 after writing what is queued, for
// which the client has two seconds. It does not wait; Serve returns when it is
// done. Requests that still arrive are answered with ShutdownError.
func (s *Server) Shutdown() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.link.end(nil, CloseGoingAway, "server is going down", true)
}

func (s *Server) receive(ctx context.Context, line []byte, handle func(*Call)) {
	f, err := parseFrame(line)
	if err != nil {
		s.link.put(frame{kind: kindDefect, defect: frameDefect(err)})
		return
	}
	switch f.kind {
	case kindRequest:
		s.request(ctx, f, handle)
	case kindAck:
		s.acknowledged(string(f.id))
	case kindInterrupt:
		s.interrupt(string(f.id))
	case kindPing:
		s.link.pong()
	}
	// Eof only says that no request follows; what runs goes on. Frames that only
	// a server sends mean nothing here.
}

// frameDefect is what the client is told about a line that no call can be
// blamed for. The shape for malformed JSON is the library's.
func frameDefect(err error) json.RawMessage {
	var bad *badFrame
	if errors.As(err, &bad) {
		return quote(bad.text)
	}
	return json.RawMessage(`{"name":"NdjsonDecodeError","message":"","cause":{"name":"SyntaxError","message":` +
		string(quote(err.Error())) + `}}`)
}

func (s *Server) request(ctx context.Context, f frame, handle func(*Call)) {
	c := &Call{
		server: s, id: f.id, method: f.method, payload: f.payload,
		discard: f.discard, notification: f.notification,
	}
	s.mu.Lock()
	if _, taken := s.calls[string(f.id)]; taken && !f.notification {
		s.mu.Unlock()
		s.link.put(frame{kind: kindDefect, defect: quote("Request id in flight: " + shorten(string(f.id)))})
		return
	}
	refusal := s.admit(len(f.payload))
	s.inFlight++
	s.bytes += len(f.payload)
	if !f.notification {
		s.calls[string(f.id)] = c
	}
	s.mu.Unlock()

	c.ctx, c.cancel = context.WithCancelCause(ctx)
	switch {
	case refusal != nil:
		c.Die(refusal)
	case f.method == "":
		c.Die("Missing key\n  at [\"tag\"]")
	case f.payload == nil:
		c.Die("Missing key\n  at [\"payload\"]")
	default:
		defer c.survive()
		handle(c)
	}
}

// admit returns why no further call with that many bytes may run, or nil. s.mu
// is held.
func (s *Server) admit(bytes int) *Defect {
	switch {
	case s.stopping:
		return &Defect{Name: ShutdownError, Message: "server is going down"}
	case s.inFlight >= s.opts.MaxInFlight:
		return &Defect{Name: BusyError, Message: fmt.Sprintf("%d calls are running on this connection", s.inFlight)}
	case s.inFlight > 0 && s.bytes+bytes > s.opts.MaxInFlightBytes:
		return &Defect{Name: BusyError, Message: fmt.Sprintf("running calls on this connection hold %d bytes", s.bytes)}
	}
	return nil
}

func (s *Server) acknowledged(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[id]; c != nil && c.awaiting {
		c.awaiting = false
		c.acked <- struct{}{} // has room: it was awaited
	}
}

func (s *Server) interrupt(id string) {
	s.mu.Lock()
	c := s.calls[id]
	if c != nil {
		c.interrupted = true
	}
	s.mu.Unlock()
	if c != nil {
		c.cancel(ErrInterrupted)
	}
}

// survive turns a panic into the failure of the call alone.
func (c *Call) survive() {
	value := recover()
	if value == nil {
		return
	}
	if c.server.opts.OnPanic != nil {
		c.server.opts.OnPanic(c.method, value, debug.Stack())
	}
	c.Die(&Defect{Name: InternalError, Message: fmt.Sprintf("%s failed: %v", c.method, value)})
}
