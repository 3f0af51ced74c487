// Package plugin runs plugins: programs and servers that speak the Model
// Context Protocol, with or without CodeWork's extension of it (package
// protocol/plugin).
//
// An Instance is one running process or connection. It is safe for concurrent
// use by any number of sessions. Calls are sent at once and never again: a
// process that dies ends its open calls with an error, and whoever owns the
// instance (an actor) decides about a new one.
//
// Order: messages to a plugin leave in the order of the calls; answers come
// when they come. Loss: lines on a plugin's standard output that are no
// messages are dropped, with one warning; a plugin that does not read its
// input loses the connection when 32 MiB wait for it.
//
// Blocking: nothing waits for a plugin but the call that is meant for it, and
// that ends with its context. Closing: Close ends the plugin's whole process
// tree within 7 s; Done tells when nothing of it runs. A process runs below
// the supervisor it was started with and so ends with this process in whatever
// way that ends.
package plugin
