// Package acp is the Agent Client Protocol, version 1, as editors speak it: the
// JSON-RPC codec, the types of the wire, and the translation of what sessions
// do into what an editor shows. It knows neither actors nor processes.
//
// Order: Lines gives the messages of a stream in the order in which they were
// read. A Translator is used by one goroutine at a time; live events and the
// replay of a stored conversation go through the same code, so that an editor
// sees the same calls, ids and texts either way.
//
// Loss: a line over the limit is reported and skipped, and the stream goes on.
// Nothing else is dropped. What is too long to be shown is cut, and says so.
//
// Blocking: reading and writing a Conn waits for the other side; everything
// else computes. Whoever opened a Conn closes it.
package acp
