package actors

import (
	"context"
	"time"

	"codework/internal/store"
	"codework/internal/tools"
	"codework/messages"
	"codework/sandboxes"
)

// Store is what the actors need of the session logs.
type Store interface {
	// Append queues a batch and returns at once; done runs exactly once, from
	// another goroutine, when the batch is on disk or refused. Batches of one
	// session are committed in order.
	Append(b store.Batch, done func(error))
	Load(ctx context.Context, session string) (store.Snapshot, error)
	// Recall is Load from the newest checkpoint on.
	Recall(ctx context.Context, session string) (store.Snapshot, error)
	// Repair takes what cannot be read off the end of a damaged log.
	Repair(ctx context.Context, session string) ([]string, error)
	// Check says what is wrong with a session, one line each.
	Check(ctx context.Context, session string) ([]string, error)
	Events(ctx context.Context, session string, after int64, limit int, f func(messages.Event) error) error
	// Back reads a log from its end; an event is valid during the call.
	Back(ctx context.Context, session string, below int64, f func(messages.Event) (more bool)) (messages.SessionRecord, error)
	// Mention finds the newest event below a position that has a text in it.
	Mention(ctx context.Context, session, text string, below int64) (seq int64, err error)
	List(ctx context.Context, q messages.ListSessions) ([]messages.SessionRecord, error)
	Count(ctx context.Context) (int, error)
	Prompt(id string) (session, hash string, ok bool, err error)
	// Sandboxes returns the records of all sandboxes, oldest first.
	Sandboxes(ctx context.Context) ([]messages.SandboxRecord, error)
	// SwapSandbox writes a record over one with a status of from, or where there
	// is none; otherwise it fails with *messages.SandboxTransitionConflict.
	SwapSandbox(ctx context.Context, r messages.SandboxRecord, from ...messages.SandboxStatus) error
	DropSandbox(ctx context.Context, id string) error
	PutBlob(data []byte) (name string, err error)
	Blob(name string) ([]byte, error)
	// HoldBlobs keeps what sessions name until release is called.
	HoldBlobs() (release func())
}

// Logins are the logins that a server keeps for its models. Errors are for
// people and hold no tokens.
type Logins interface {
	Save(ctx context.Context, c messages.OAuthCredentials) (messages.OAuthInfo, error)
	Status(ctx context.Context, provider string) (*messages.OAuthInfo, error)
	Refresh(ctx context.Context, provider string) (*messages.OAuthInfo, error)
	Logout(ctx context.Context, provider string) error
}

// Streamer asks a model. Stream returns at once; emit is called in order from
// another goroutine until a StreamDone or a StreamError, and not after that. It
// may wait while deltas come faster than they are taken, until ctx ends.
type Streamer interface {
	Stream(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent))
}

// Workplace runs tool calls. Do returns at once and runs call beside the
// caller, with a context that ends with ctx or with the sandbox; done is
// called once when call has returned.
type Workplace interface {
	Do(ctx context.Context, call func(ctx context.Context, m sandboxes.Mount), done func())
}

// Exchange is what is captured once for all turns of an exchange.
type Exchange struct {
	Model      messages.Model
	APIKey     string
	Login      *messages.Login // of the account behind the key; nil when nothing is known
	Thinking   messages.ThinkingLevel
	Options    messages.RequestOptions
	Retry      Retry
	Parallel   bool // run the calls of one message side by side
	System     string
	Tools      *tools.Set
	BashLimit  time.Duration // upper bound of one command; 0 is the tool's own
	Streamer   Streamer
	Workplace  Workplace
	Notices    []string // for the user, each said once per session
	Background bool     // jobs left behind outlive the session's clients
}

// Retry is the policy for failed attempts of a turn.
type Retry struct {
	Max      int // attempts after the first
	Base     time.Duration
	MaxDelay time.Duration
}

// Preparer captures an exchange: settings, model, key, tools, system prompt.
// It is called beside the session and may take its time. Errors are
// *messages.Failure where they have a type.
type Preparer interface {
	Prepare(ctx context.Context, q ExchangeQuery) (*Exchange, error)
}

// ExchangeQuery says for which session an exchange is prepared.
type ExchangeQuery struct {
	Session messages.SessionRecord
	World   *messages.World // nil: the server's own
	// Ends ends with the exchange: what was opened for it can go then. Nil ends
	// when Prepare does.
	Ends context.Context
}
