// Package offline is the embedded model offline/guide, which needs no key and
// no network.
//
// It is a set of fixed rules and says so. A rule recognises what the newest
// prompt asks for, calls the session's tools to find it out, and writes its
// answer from their results, so that a first run shows the whole loop of
// prompt, tool calls and answer. The same conversation gives the same answer.
//
// The model keeps nothing between requests. A rule runs from its beginning at
// every request and finds the results of the calls it made before in the
// conversation; the first call without a result is the one to make next. A
// prompt is answered after at most six rounds of calls. Only tools that the
// request offers are called.
package offline
