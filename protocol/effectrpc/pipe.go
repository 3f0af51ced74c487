package effectrpc

import (
	"bytes"
	"sync"
)

// pipeDepth is how many messages wait in one direction of a pipe before Write
// waits: enough to keep both sides running, at most 1 MiB with messages of
// messageSize.
const pipeDepth = 16

// Pipe returns the two ends of a connection inside the process. It behaves like
// a WebSocket: messages sent before Close arrive before the news of it.
func Pipe() (Conn, Conn) {
	ab, ba := make(chan []byte, pipeDepth), make(chan []byte, pipeDepth)
	a, b := &pipeEnd{in: ba, out: ab, closed: make(chan struct{})}, &pipeEnd{in: ab, out: ba, closed: make(chan struct{})}
	a.peer, b.peer = b, a
	return a, b
}

type pipeEnd struct {
	in   <-chan []byte
	out  chan<- []byte
	peer *pipeEnd

	once   sync.Once
	closed chan struct{}
	reason CloseError // set before closed is closed
}

func (p *pipeEnd) Read() ([]byte, error) {
	select {
	case <-p.closed:
		return nil, ErrClosed
	default:
	}
	select {
	case m := <-p.in:
		return m, nil
	case <-p.closed:
		return nil, ErrClosed
	case <-p.peer.closed:
	}
	select {
	case m := <-p.in:
		return m, nil
	default:
		reason := p.peer.reason
		return nil, &reason
	}
}

func (p *pipeEnd) Write(m []byte) error {
	select {
	case <-p.closed:
		return ErrClosed
	case <-p.peer.closed:
		return ErrClosed
	default:
	}
	select {
	case p.out <- bytes.Clone(m):
		return nil
	case <-p.closed:
		return ErrClosed
	case <-p.peer.closed:
		return ErrClosed
	}
}

func (p *pipeEnd) Close(code int, reason string) error {
	p.once.Do(func() {
		p.reason = CloseError{Code: code, Reason: reason}
		close(p.closed)
	})
	return nil
}
