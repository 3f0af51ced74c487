package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"codework/messages"
)

// Path is where the protocol is served, on the socket of a home only.
const Path = "/acp"

// Frame is one message between a bridge and the process that owns the home:
// bytes of the protocol, or a word between the two (Control).
type Frame struct {
	Control bool
	Data    []byte
}

// Conn carries frames. Read and Write may be called at the same time, each by
// one goroutine.
type Conn interface {
	// Read waits for the next frame, which is the caller's. It fails with
	// io.EOF when the other side closed.
	Read() (Frame, error)
	// Write waits for as long as the other side does not read, or until Close.
	Write(Frame) error
	// Close ends the connection; what was written before arrives.
	Close() error
}

// Word is what a Control frame says. The first of a connection is the
// bridge's hello, its answer the process's Info or Refused.
type Word struct {
	Hello *messages.Hello `json:"hello,omitempty"`
	// State is what a gateway hands to the next: to the bridge, which closes
	// and dials again, and from it behind the next one's Info.
	State json.RawMessage `json:"state,omitempty"`

	Info    *messages.ServerInfo `json:"info,omitempty"`
	Refused *Refusal             `json:"refused,omitempty"`

	// Pause asks the bridge to send nothing more, Paused answers that. State
	// follows when everything is answered.
	Pause  bool `json:"pause,omitempty"`
	Paused bool `json:"paused,omitempty"`
	// End says that the editor is gone: what it asked for is to be stopped.
	// The connection is closed when that is done.
	End bool `json:"end,omitempty"`
}

// Refusal is why a bridge is not served.
type Refusal struct {
	World   bool   `json:"world,omitempty"` // it sees other files than the process
	Message string `json:"message"`
}

// Say writes a word.
func Say(c Conn, w Word) error {
	b, err := messages.JSON(w)
	if err != nil {
		return err
	}
	return c.Write(Frame{Control: true, Data: b})
}

// Heard reads the word of a frame.
func Heard(f Frame) (Word, error) {
	var w Word
	if !f.Control {
		return w, errors.New("expected a word of the bridge, not bytes")
	}
	if err := json.Unmarshal(f.Data, &w); err != nil {
		return w, fmt.Errorf("word of the bridge: %w", err)
	}
	return w, nil
}

// Accept turns a request over the home's socket into a connection. A page
// never gets one.
func Accept(w http.ResponseWriter, r *http.Request) (Conn, error) {
	if r.Header.Get("Origin") != "" {
		http.Error(w, "origin not allowed", http.StatusForbidden)
		return nil, errors.New("refused: an origin")
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err
	}
	return newSocket(ws), nil
}

// Dial speaks to the process behind a connected socket.
func Dial(ctx context.Context, c net.Conn) (Conn, error) {
	used := false
	t := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		if used {
			return nil, errors.New("the socket's connection is used up")
		}
		used = true
		return c, nil
	}}
	ws, answer, err := websocket.Dial(ctx, "ws://codework"+Path, &websocket.DialOptions{HTTPClient: &http.Client{Transport: t}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		c.Close()
		if answer != nil && answer.StatusCode != http.StatusSwitchingProtocols {
			return nil, &StatusError{answer.StatusCode}
		}
		return nil, fmt.Errorf("connect: %w", err)
	}
	return newSocket(ws), nil
}

// StatusError is the answer of a process that serves no bridge.
type StatusError struct{ Status int }

func (e *StatusError) Error() string { return fmt.Sprintf("the process answered %d", e.Status) }

func newSocket(ws *websocket.Conn) *socket {
	ws.SetReadLimit(-1) // the limit is that of a line
	s := &socket{ws: ws}
	s.life, s.cut = context.WithCancel(context.Background())
	return s
}

type socket struct {
	ws   *websocket.Conn
	life context.Context
	cut  context.CancelFunc
	once sync.Once
}

func (s *socket) Read() (Frame, error) {
	kind, data, err := s.ws.Read(s.life)
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed):
		return Frame{}, io.EOF
	case err != nil:
		return Frame{}, fmt.Errorf("read: %w", err)
	}
	return Frame{Control: kind == websocket.MessageText, Data: data}, nil
}

func (s *socket) Write(f Frame) error {
	kind := websocket.MessageBinary
	if f.Control {
		kind = websocket.MessageText
	}
	return s.ws.Write(s.life, kind, f.Data)
}

func (s *socket) Close() error {
	s.once.Do(func() {
		_ = s.ws.Close(websocket.StatusNormalClosure, "") // the other side may be gone
		s.cut()
	})
	return nil
}

// pipeDepth is how many frames wait in one direction of a pipe.
const pipeDepth = 16

// Pipe returns the two ends of a connection inside the process.
func Pipe() (Conn, Conn) {
	ab, ba := make(chan Frame, pipeDepth), make(chan Frame, pipeDepth)
	a, b := &pipeEnd{in: ba, out: ab, closed: make(chan struct{})}, &pipeEnd{in: ab, out: ba, closed: make(chan struct{})}
	a.peer, b.peer = b, a
	return a, b
}

type pipeEnd struct {
	in     <-chan Frame
	out    chan<- Frame
	peer   *pipeEnd
	once   sync.Once
	closed chan struct{}
}

func (p *pipeEnd) Read() (Frame, error) {
	select {
	case f := <-p.in:
		return f, nil
	default:
	}
	select {
	case f := <-p.in:
		return f, nil
	case <-p.closed:
		return Frame{}, net.ErrClosed
	case <-p.peer.closed:
	}
	select {
	case f := <-p.in: // written before the close
		return f, nil
	default:
		return Frame{}, io.EOF
	}
}

func (p *pipeEnd) Write(f Frame) error {
	data := append([]byte(nil), f.Data...)
	select {
	case <-p.closed:
		return net.ErrClosed
	case <-p.peer.closed:
		return net.ErrClosed
	default:
	}
	select {
	case p.out <- Frame{f.Control, data}:
		return nil
	case <-p.closed:
		return net.ErrClosed
	case <-p.peer.closed:
		return net.ErrClosed
	}
}

func (p *pipeEnd) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
