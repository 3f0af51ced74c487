package messages

import (
	"strings"

	"github.com/google/uuid"
)

// LocalSandbox is the reserved id of the sandbox that is this machine itself.
const LocalSandbox = "local"

// NewSessionID returns a fresh session id; ids sort by creation.
func NewSessionID() string { return "ses_" + newUUID() }

// NewSandboxID returns a fresh id for a sandbox; ids sort by creation.
func NewSandboxID() string { return "sbx_" + newUUID() }

// NewMessageID returns a fresh id for a prompt or an assistant message.
func NewMessageID() string { return newUUID() }

// NewEventID returns a fresh event id.
func NewEventID() string { return "evt_" + newUUID() }

// ValidSessionID tells whether id may name a session: clients may bring any
// id with the prefix, so nothing more than that is checked.
func ValidSessionID(id string) bool { return strings.HasPrefix(id, "ses") }

// newSessionID tells whether id may become the id of a new session: it has the
// form of those that are made here, since it names more than a row in a store.
func newSessionID(id string) bool {
	text, ok := strings.CutPrefix(id, "ses_")
	u, err := uuid.Parse(text)
	return ok && err == nil && u.String() == text
}

func newUUID() string {
	// NewV7 fails only when the system's random source does, which ends the
	// process in crypto/rand before it gets here.
	return uuid.Must(uuid.NewV7()).String()
}
