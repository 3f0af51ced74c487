package messages

// GetTop asks what every session and actor of a process is doing.
type GetTop struct {
	// Limit is how many sessions are told of at most, those that work first; 0
	// is TopLimit.
	Limit int `json:"limit,omitempty"`
}

// TopLimit is how many sessions an answer holds unless more are asked for, and
// TopMost how many it ever holds: it must fit a frame.
const (
	TopLimit = 500
	TopMost  = 10_000
)

// Top is what a process is doing at one moment, as its actors show it without
// being asked: also those that hang are in it.
type Top struct {
	At     string     `json:"at"`
	Server ServerInfo `json:"server"`
	// Complete tells that those who know more of sessions and readers than the
	// actors show have answered in time.
	Complete bool `json:"complete"`
	// Sessions in memory, those that work first, each group by how long it does
	// what it does; Omitted is how many more there are.
	Sessions    []TopSession    `json:"sessions"`
	Omitted     int             `json:"omitted"`
	Actors      []TopActor      `json:"actors"` // the others, by kind and name
	Subscribers *TopSubscribers `json:"subscribers,omitempty"`
}

// TopActor is a look at one actor.
type TopActor struct {
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"`
	// State is what it does, one of few words; Detail says more, to people. ForMs
	// is for how long it has done that.
	State  string `json:"state,omitempty"`
	Detail string `json:"detail,omitempty"`
	ForMs  int64  `json:"forMs"`
	// Mailbox is the number of messages that wait for it, Handled that of those
	// that it has dealt with, and Beside that of the requests, commands and the
	// like that run for it.
	Mailbox  int   `json:"mailbox"`
	Handled  int64 `json:"handled"`
	Beside   int64 `json:"beside"`
	Restarts int64 `json:"restarts"`
	// Handling is the kind of the message that it is at right now. An actor is
	// done with any in less than a millisecond: HandlingMs shows one that hangs.
	Handling   string `json:"handling,omitempty"`
	HandlingMs int64  `json:"handlingMs,omitempty"`
}

// TopSession is a session in memory and its actor.
type TopSession struct {
	TopActor
	SessionID string        `json:"sessionId"`
	Title     string        `json:"title,omitempty"`
	Status    SessionStatus `json:"status,omitempty"`
	Queued    int           `json:"queued"` // prompts that wait
	Sandbox   string        `json:"sandbox,omitempty"`
}

// TopSubscribers are the readers of events.
type TopSubscribers struct {
	Count   int `json:"count"`
	Queued  int `json:"queued"`  // events that wait for them
	Longest int `json:"longest"` // for the one that is furthest behind
}
