// Package providers is what the wire dialects share: the HTTP attempt with its
// two deadlines, the classification of failures, the assembly of an answer,
// prices, thinking levels, and what of a stored conversation is sent.
//
// A dialect calls emit in the order of the stream from the goroutine that
// called Stream, each delta as soon as its bytes have arrived, and ends with
// exactly one StreamDone or StreamError. Stream blocks until then; a caller
// stops it through its context, which also closes the connection. Nothing is
// retried here, nothing is read from the environment, and no key, header or
// body is part of a failure.
package providers
