package effectrpc

import (
	"errors"
	"fmt"
)

// Conn is one connection that carries messages. Read and Write may be called
// at the same time, each by one goroutine; Close by any number.
type Conn interface {
	// Read waits for the next bytes: a message or a part of one, since
	// boundaries mean nothing here. They are valid until the next Read. It fails
	// with a *CloseError when the peer closed, and soon after Close.
	Read() ([]byte, error)

	// Write sends p, which must be valid UTF-8, as one text message and does not
	// keep it. It waits for as long as the peer does not read, or until Close.
	Write(p []byte) error

	// Close ends the connection, telling the peer why; code is one of the
	// WebSocket status codes. It returns within about a second, whatever the
	// peer does, provided that somebody keeps calling Read. Only the first call
	// has an effect.
	Close(code int, reason string) error
}

// WebSocket status codes (RFC 6455, 7.4.1) with which a connection is closed.
const (
	CloseNormal    = 1000 // a client that is done
	CloseGoingAway = 1001 // a server that goes down
	CloseNoStatus  = 1005 // never sent: what Read reports for a close without a code
	ClosePolicy    = 1008 // a peer that does not read
	CloseTooBig    = 1009 // a line over the limit
)

// CloseError says that the peer closed the connection, and how.
type CloseError struct {
	Code   int
	Reason string
}

func (e *CloseError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("closed by the peer (%d)", e.Code)
	}
	return fmt.Sprintf("closed by the peer (%d, %s)", e.Code, e.Reason)
}

// ErrConnectionLost means that the connection ended before the answer came; the
// cause is wrapped beside it.
var ErrConnectionLost = errors.New("connection lost")

// ErrClosed means that this side closed the connection.
var ErrClosed = errors.New("connection closed")

// ErrLineTooLong means that the peer sent a line over the limit.
var ErrLineTooLong = errors.New("line too long")

// ErrPeerStuck means that the peer did not read what was sent to it.
var ErrPeerStuck = errors.New("peer does not read")
