package messages

import (
	"encoding/json"
	"time"
)

// EventVersion is the schema version of durable events.
const EventVersion = 1

// Event is one thing that happened. Durable events have a position in their
// session's log; the others are live only and never stored.
type Event struct {
	ID      string
	Type    string
	Session string // "" for events of the server
	// Seq is the position of a durable event, from 1; 0 for live events.
	Seq int64
	// After is the session's last durable position when a live event
	// happened: a reader that has seen a later one can drop it.
	After int64
	// Data is the event's JSON object, with timestamp and sessionId.
	Data     json.RawMessage
	Metadata map[string]string
	// Piece, if not nil, tells how the event can be made one with the next of
	// its kind while both wait for somebody: a reader that is behind is served
	// as well by one that says the same. It does not travel.
	Piece *Piece
}

// Piece is the part of a live event that can be joined or replaced.
type Piece struct {
	At        int64 // timestamp of the event
	MessageID string
	// Part and Text are of a delta: the next one of the same part is joined to
	// it.
	Part int
	Text string
	// More counts the ones of the model that were joined to it before.
	More int
	// CallID is that of a running call, whose newer progress replaces it; "" is
	// a delta.
	CallID string
}

// Durable tells whether the event is in the log.
func (e Event) Durable() bool { return e.Seq > 0 }

// Event types.
const (
	EventConnected = "server.connected"

	EventExecutionStarted     = "session.execution.started"
	EventExecutionSucceeded   = "session.execution.succeeded"
	EventExecutionFailed      = "session.execution.failed"
	EventExecutionInterrupted = "session.execution.interrupted"

	EventPromptAdmitted = "session.prompt.admitted"
	EventPromptPromoted = "session.prompt.promoted"
	EventPromptRemoved  = "session.prompt.removed"

	EventTurnStarted = "session.turn.started"
	EventTurnEnded   = "session.turn.ended"
	EventTurnAborted = "session.turn.aborted"

	EventLLMStarted       = "session.llm.started"
	EventLLMTextStart     = "session.llm.text.start"
	EventLLMTextDelta     = "session.llm.text.delta"
	EventLLMTextEnd       = "session.llm.text.end"
	EventLLMThinkingStart = "session.llm.thinking.start"
	EventLLMThinkingDelta = "session.llm.thinking.delta"
	EventLLMThinkingEnd   = "session.llm.thinking.end"
	EventLLMCallStart     = "session.llm.toolcall.start"
	EventLLMCallDelta     = "session.llm.toolcall.delta"
	EventLLMCallEnd       = "session.llm.toolcall.end"
	EventLLMEnded         = "session.llm.ended"
	EventLLMFailed        = "session.llm.failed"

	EventToolStarted  = "session.tool.started"
	EventToolProgress = "session.tool.progress"
	EventToolSettled  = "session.tool.settled"

	EventForked = "session.next.forked"

	EventRetryScheduled = "session.retry.scheduled"
	EventSessionUpdated = "session.updated"
	EventNotice         = "session.notice"
)

// EventData is the union of what the data of session events may hold. Which
// fields an event has is said beside its type in the RPC contract.
type EventData struct {
	Timestamp int64  `json:"timestamp"` // epoch milliseconds
	SessionID string `json:"sessionId"`
	Recovered bool   `json:"recovered,omitempty"` // written when the session was opened after a crash

	MessageID string          `json:"messageId,omitempty"`
	Prompt    *PromptBody     `json:"prompt,omitempty"`
	Delivery  Delivery        `json:"delivery,omitempty"`
	Title     string          `json:"title,omitempty"` // promoted: the title that the prompt gave
	Message   *Message        `json:"message,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Error     *Failure        `json:"error,omitempty"`
	Cause     *AbortCause     `json:"cause,omitempty"`
	PartIndex *int            `json:"partIndex,omitempty"`
	Delta     *string         `json:"delta,omitempty"`
	Content   *string         `json:"content,omitempty"`
	CallID    string          `json:"callID,omitempty"`
	Name      string          `json:"name,omitempty"`
	Label     string          `json:"label,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Partial   any             `json:"partial,omitempty"`
	Part      *Part           `json:"part,omitempty"`
	Attempt   int             `json:"attempt,omitempty"`
	DelayMs   *int64          `json:"delayMs,omitempty"`
	Session   *SessionInfo    `json:"session,omitempty"`
	Severity  string          `json:"severity,omitempty"`
	Text      string          `json:"text,omitempty"`
	// A fork says where it comes from; Entries names the blob that holds the
	// copied conversation.
	SourceSessionID string `json:"sourceSessionId,omitempty"`
	SourceEntryID   string `json:"sourceEntryId,omitempty"`
	BaseSeq         *int64 `json:"baseSeq,omitempty"`
	Entries         *Part  `json:"entries,omitempty"`
	// RequestDigest is the hex SHA-256 of the request body.
	RequestDigest string `json:"requestDigest,omitempty"`
}

// PromptBody is a prompt as events show it.
type PromptBody struct {
	Text  string `json:"text"`
	Parts []Part `json:"parts,omitempty"`
}

// AbortCause is why a turn came to nothing.
type AbortCause struct {
	Tag     string `json:"_tag"` // interrupted, error, deferred
	Message string `json:"message,omitempty"`
}

// Decode returns the event's data.
func (e Event) Decode() (EventData, error) {
	var d EventData
	err := json.Unmarshal(e.Data, &d)
	return d, err
}

// Terminal tells whether the event type ends a busy period.
func Terminal(eventType string) bool {
	switch eventType {
	case EventExecutionSucceeded, EventExecutionFailed, EventExecutionInterrupted:
		return true
	}
	return false
}

// isoMillis is how dates travel: the form JavaScript's toISOString gives.
const isoMillis = "2006-01-02T15:04:05.000Z"

// ISOTime is a time in the form clients get it.
func ISOTime(epochMillis int64) string {
	return time.UnixMilli(epochMillis).UTC().Format(isoMillis)
}

// EventPluginUpdated tells what became of a plugin.
const EventPluginUpdated = "plugin.updated"

// PluginUpdate is the data of a plugin.updated event.
type PluginUpdate struct {
	Status    PluginStatus `json:"status"`
	Reference string       `json:"reference,omitempty"` // its entry in the settings
	ID        string       `json:"id,omitempty"`
	File      string       `json:"file,omitempty"`
	Error     string       `json:"error,omitempty"`
	SessionID string       `json:"sessionId,omitempty"`
}

// PluginStatus is what became of a plugin.
type PluginStatus string

// The plugin states. A dropped one is not used any more; a restarted one runs
// as a new process.
const (
	PluginLoaded    PluginStatus = "loaded"
	PluginRestarted PluginStatus = "restarted"
	PluginDropped   PluginStatus = "dropped"
	PluginFailed    PluginStatus = "failed"
)
