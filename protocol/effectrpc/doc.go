// Package effectrpc is the wire of Effect RPC over WebSocket with
// newline-delimited JSON: both halves of it, without knowing any method.
//
// A frame is one JSON value and a line feed. Message boundaries mean nothing:
// one message may hold several frames and one frame may be spread over several
// messages, in both directions.
//
// Server promises:
//   - Requests reach the handler one at a time and in the order of arrival. The
//     handler runs on the reading goroutine, so it must not block.
//   - A call is answered once, when it is finished, in order of completion. What
//     is said to a finished call, or to one whose connection is gone, is dropped.
//   - A stream has at most one chunk on its way; the next values are asked for
//     when the client acknowledged it, so the queue behind a stream belongs to
//     its owner. Values keep their order and none is lost before the stream ends.
//   - Pong overtakes everything that waits to be written.
//   - Finishing a call never blocks. A client that does not read is cut off when
//     too much waits for it or when a write makes no progress; other connections
//     do not notice.
//   - When a connection ends the contexts of its calls are cancelled. Serve
//     returns after everything that it started has ended.
//   - Whatever a client sends costs at most its own connection.
//
// Client promises:
//   - Call returns as soon as its context ends; the server is told.
//   - A stream is acknowledged only while its reader keeps up, so what waits in
//     the client is bounded, and not more often than at its pace. A value that
//     comes later than that after the one before it is not kept waiting.
//   - A silent server is noticed after ten seconds; everything in flight then
//     fails with ErrConnectionLost. The client does not dial again by itself.
//
// A Conn given to NewServer or NewClient belongs to it and is closed by it.
package effectrpc
