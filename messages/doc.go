// Package messages is the vocabulary that every other package shares: ids,
// conversations, events, commands, failures, models and sandboxes.
//
// Everything here is plain data. A value is never changed after it was handed
// to somebody else; whoever wants a different one makes a copy. The JSON form
// of these types is what the log stores and what clients receive, so a field's
// name is a promise: fields are added, never renamed.
package messages
