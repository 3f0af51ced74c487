// Package actors is the running system: the sessions, the connections to
// providers, the sandboxes, the event hub, and the gateways to clients, each
// an actor below one guardian.
//
// Order: an actor handles one message at a time, in the order of arrival from
// each sender. The events of a session reach every subscriber in log order;
// between sessions nothing is promised. Calls of one connection are sent on in
// the order in which they were read.
//
// Loss: a prompt is answered when it is on disk, a tool call starts when its
// start is, a request is sent when the results it contains are. A durable
// event is published after its commit and live ones behind it. What is not
// durable (deltas, progress) may be lost with the process. An actor that fails
// is restarted from what is on disk, within a budget.
//
// Blocking: no Receive waits. Work that takes time runs beside its actor with
// a context that ends when the actor stops, restarts or moves on, and its late
// answers are dropped. Mailboxes are run by a few goroutines, in the order in
// which something came into them; when many sessions begin an exchange at once,
// a few do so at a time. Nobody waits for a slow subscriber: past 4096 events it
// is cut off and told. Whoever reads a model's answer waits while much of it is
// still to be taken by its session. Deltas of one part that wait behind each
// other, for whomever, become one event with the same text; of a call's progress
// the newest counts.
//
// Deletion: a subscription to one session ends when that is deleted, behind what
// was published before, and who waits for the end of its work is refused as by a
// session that never was. Subscriptions to all go on.
//
// Closing: System.CloseIfIdle ends admission in one step with the look whether
// anything works, or refuses to: what was admitted has come to its end by then,
// what comes later is refused unwritten. System.Settle interrupts what runs and waits for it to be recorded,
// System.Shutdown stops all actors; whoever opened the store closes it after
// that.
package actors
