package messages

import (
	"encoding/json"
	"time"
)

// Failure is why something did not work, in the form that is stored, sent to
// clients and shown to a person. Type is an open vocabulary of kebab-case
// names that end in "-error".
type Failure struct {
	Type    string `json:"type"`
	Message string `json:"message"`          // one line, lower case, no full stop, no secrets
	Status  int    `json:"status,omitempty"` // HTTP status of the provider, if there was one
	Code    string `json:"code,omitempty"`   // the provider's own code, or one of the Code constants
	Request string `json:"requestId,omitempty"`
	Hint    string `json:"hint,omitempty"`  // what a person can do about it
	Model   string `json:"model,omitempty"` // provider/id of the model that was asked

	// Retryable and RetryAfter steer the retry of a turn; they are not part
	// of the recorded failure.
	Retryable bool `json:"-"`
	// RetryAfter is the least wait the provider asked for; 0 means none.
	RetryAfter time.Duration `json:"-"`
}

// Error makes a Failure usable as an error.
func (f *Failure) Error() string { return f.Message }

// Failure types that do not come from a provider.
const (
	FailCatalog          = "model-catalog-error"
	FailModelNotFound    = "model-not-found-error"
	FailStream           = "llm-stream-error"
	FailContextDecode    = "context-decode-error"
	FailContextEncode    = "context-encode-error"
	FailSessionNotFound  = "session-not-found-error"
	FailSettings         = "settings-error"
	FailStateSnapshot    = "state-snapshot-error"
	FailSandboxMount     = "sandbox-mount-error"
	FailSandboxDirectory = "sandbox-directory-not-found-error"
	FailSandboxFiles     = "sandbox-filesystem-error"
	FailUnknown          = "unknown-error"
	FailInternal         = "internal-error"
	FailCrashLoop        = "crash-loop-error"
)

// Failure types of providers: "provider-<category>-error".
const (
	FailAuthentication   = "provider-authentication-error"
	FailAuthorization    = "provider-authorization-error"
	FailConfiguration    = "provider-configuration-error"
	FailModelUnavailable = "provider-model-unavailable-error"
	FailRateLimit        = "provider-rate-limit-error"
	FailQuota            = "provider-quota-error"
	FailInvalidRequest   = "provider-invalid-request-error"
	FailContentFilter    = "provider-content-filter-error"
	FailTimeout          = "provider-timeout-error"
	FailTransport        = "provider-transport-error"
	FailUnavailable      = "provider-unavailable-error"
	FailInvalidResponse  = "provider-invalid-response-error"
	FailProviderUnknown  = "provider-unknown-error"
)

// Codes that our own classification adds.
const (
	// CodeContextOverflow marks a prompt that does not fit the model's window.
	CodeContextOverflow = "context-overflow"
	// CodeMissing, CodeInvalid and CodeExpired tell authentication failures apart.
	CodeMissing = "missing"
	CodeInvalid = "invalid"
	CodeExpired = "expired"
)

// The errors below travel as tagged errors of the RPC contract: Tag is the
// "_tag", the fields are the contract's.

// Tagged is an error that the RPC contract declares.
type Tagged interface {
	error
	Tag() string
}

// SessionNotFound means no session has that id.
type SessionNotFound struct {
	SessionID string `json:"sessionId"`
}

// PromptConflict means the prompt id is already used for something else.
type PromptConflict struct {
	SessionID string `json:"sessionId"`
	MessageID string `json:"messageId"`
}

// SessionBusy means the session must be idle for that.
type SessionBusy struct {
	SessionID string `json:"sessionId"`
}

// DirectoryNotFound means the working folder does not exist in the sandbox.
type DirectoryNotFound struct {
	Directory string `json:"directory"`
	SandboxID string `json:"sandboxInstanceId"`
}

// NotDirectory means the working folder is something else than a folder.
type NotDirectory struct {
	Directory string `json:"directory"`
	SandboxID string `json:"sandboxInstanceId"`
}

// SubscriptionOverflow ends the subscription of a reader that fell behind.
type SubscriptionOverflow struct {
	Capacity int `json:"capacity"`
}

// EventEncoding ends a subscription whose next event has no JSON form.
type EventEncoding struct {
	Type  string          `json:"type"`
	Cause json.RawMessage `json:"cause"`
}

// WrongWorld means the client lives on another host or in another mount
// namespace than the process that owns the home.
type WrongWorld struct {
	Reason string `json:"reason"`
}

// BlobNotFound means the session refers to no blob of that name.
type BlobNotFound struct {
	Blob string `json:"blob"`
}

func (e *SessionNotFound) Tag() string      { return "SessionNotFoundError" }
func (e *PromptConflict) Tag() string       { return "PromptConflictError" }
func (e *SessionBusy) Tag() string          { return "SessionBusyError" }
func (e *DirectoryNotFound) Tag() string    { return "Location.DirectoryNotFoundError" }
func (e *NotDirectory) Tag() string         { return "Location.NotDirectoryError" }
func (e *SubscriptionOverflow) Tag() string { return "SubscriptionOverflowError" }
func (e *EventEncoding) Tag() string        { return "EventEncodingError" }
func (e *WrongWorld) Tag() string           { return "WrongWorldError" }
func (e *BlobNotFound) Tag() string         { return "BlobNotFoundError" }

func (e *SessionNotFound) Error() string { return "no session " + e.SessionID }
func (e *PromptConflict) Error() string {
	return "prompt id " + e.MessageID + " is already used for another prompt"
}
func (e *SessionBusy) Error() string          { return "session " + e.SessionID + " is busy" }
func (e *DirectoryNotFound) Error() string    { return "no such directory: " + e.Directory }
func (e *NotDirectory) Error() string         { return "not a directory: " + e.Directory }
func (e *SubscriptionOverflow) Error() string { return "reader fell too far behind" }
func (e *EventEncoding) Error() string        { return "event " + e.Type + " cannot be encoded" }
func (e *WrongWorld) Error() string           { return e.Reason }
func (e *BlobNotFound) Error() string         { return "no blob " + e.Blob }

// Refused is a failure of a call for which the contract declares no error:
// over a budget, store full, shutting down. Name is one of the Refused names.
type Refused struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// Names of refusals.
const (
	RefusedBusy     = "BusyError"
	RefusedStore    = "StoreError"
	RefusedShutdown = "ShutdownError"
	RefusedInternal = "InternalError"
	// RefusedPosition ends a subscription that names a position which is not
	// in the log: what lies behind it cannot be told without a gap.
	RefusedPosition = "PositionError"
	// RefusedWithdrawn answers a prompt that was taken back before it was
	// admitted.
	RefusedWithdrawn = "WithdrawnError"
)

func (e *Refused) Error() string { return e.Message }
