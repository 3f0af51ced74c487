package messages

import (
	"encoding/json"
	"errors"
	"path"
)

// GetHistory asks for a page of the conversation, newest entries last. Before
// names an entry: only older ones. The answer is a History.
type GetHistory struct {
	SessionID string `json:"sessionId"`
	Before    string `json:"before,omitempty"`
	Limit     int    `json:"limit,omitempty"` // 0: 50; at most 500
}

// History is a page of a conversation. Seq is the log position it corresponds
// to: a subscription behind it misses nothing.
type History struct {
	Entries []Message `json:"entries"`
	More    bool      `json:"more"`
	Seq     int64     `json:"seq"`
}

// Link sets the host directory that a session is anchored to; "" clears it.
// The answer is a SessionInfo.
type Link struct {
	SessionID string `json:"sessionId"`
	HostDir   string `json:"hostDir,omitempty"`
}

// Validate checks the directory's form; the server resolves nothing.
func (l Link) Validate() error {
	if l.HostDir != "" && !path.IsAbs(l.HostDir) {
		return errors.New("hostDir: expected an absolute path")
	}
	return nil
}

// Relink moves a session to another sandbox or directory. The answer is a
// SessionInfo; a relink that fails changes nothing.
type Relink struct {
	SessionID string      `json:"sessionId"`
	Sandbox   *SandboxRef `json:"sandbox,omitempty"`
	Directory string      `json:"directory,omitempty"`
}

// Rename gives a session its title. The answer is a SessionInfo.
type Rename struct {
	SessionID string `json:"sessionId"`
	Title     string `json:"title"`
}

// Fork asks for a new session with the conversation up to and with an entry;
// "" is the newest. The answer is the new one's SessionInfo.
type Fork struct {
	SessionID string `json:"sessionId"`
	At        string `json:"at,omitempty"`
}

// Delete removes a session for good. A busy one is refused without Force.
type Delete struct {
	SessionID string `json:"sessionId"`
	Force     bool   `json:"force,omitempty"`
}

// Check looks a session's log over and, if asked, mends it. The answer is a
// Findings.
type Check struct {
	SessionID string `json:"sessionId"`
	Repair    bool   `json:"repair,omitempty"`
}

// Findings are what Check found; none means that all is well.
type Findings struct {
	Findings []Finding `json:"findings"`
}

// Finding is one thing that is wrong with a session.
type Finding struct {
	Code     string `json:"code"`
	Detail   string `json:"detail"`
	Repaired bool   `json:"repaired"`
}

// ListModels asks for the models that can be chosen. The answer is
// []ModelInfo.
type ListModels struct {
	Provider string `json:"provider,omitempty"`
}

// ModelInfo is what clients are told of a model. Available means that there is
// a key for it, or that it needs none.
type ModelInfo struct {
	Provider      string    `json:"provider"`
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	Reasoning     bool      `json:"reasoning"`
	Input         []string  `json:"input"`
	ContextWindow int64     `json:"contextWindow"`
	MaxTokens     int64     `json:"maxTokens"`
	Cost          ModelCost `json:"cost"`
	Available     bool      `json:"available"`
}

// GetBlob asks for a piece of an image that a session's messages name. The
// answer is a BlobPiece.
type GetBlob struct {
	SessionID string `json:"sessionId"`
	Blob      string `json:"blob"`
	Offset    int64  `json:"offset,omitempty"`
}

// BlobPiece is at most 1 MiB of a blob, base64 in JSON.
type BlobPiece struct {
	Data []byte `json:"data"`
	More bool   `json:"more"`
}

// DriverInfo is a sandbox driver that new sandboxes can be made with.
type DriverInfo struct {
	Name      string      `json:"name"`
	Kind      SandboxKind `json:"kind"`
	Available *bool       `json:"available,omitempty"`
	Reason    string      `json:"reason,omitempty"`
}

// CreateSandbox and RegisterSandbox ask for a sandbox of a driver; the answer
// is a SandboxInfo.
type (
	CreateSandbox struct {
		Driver string `json:"driver"`
		// Config is laid over what the settings say to the driver.
		Config json.RawMessage `json:"config,omitempty"`
	}
	RegisterSandbox struct {
		Driver             string          `json:"driver"`
		ProviderResourceID string          `json:"providerResourceId"`
		Config             json.RawMessage `json:"config,omitempty"`
	}
)

// StopSandbox and DestroySandbox end a sandbox; stopping keeps its files.
type (
	StopSandbox struct {
		SandboxID string `json:"sandboxId"`
	}
	DestroySandbox struct {
		SandboxID string `json:"sandboxId"`
	}
)

// ExecSandbox runs a command in a sandbox. The answer is a stream.
type ExecSandbox struct {
	SandboxID string            `json:"sandboxId"`
	Argv      []string          `json:"argv"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	TimeoutMs int64             `json:"timeoutMs,omitempty"`
}

// ExecOutput is one element of that stream: output, or at last the exit.
type ExecOutput struct {
	Stream   string `json:"stream,omitempty"` // stdout, stderr
	Data     []byte `json:"data,omitempty"`   // base64 in JSON
	ExitCode *int   `json:"exitCode,omitempty"`
	Signal   string `json:"signal,omitempty"`
	TimedOut bool   `json:"timedOut,omitempty"`
}

// PluginsReloaded answers plugin.reload: how many plugins are in use, and why
// the set before was kept, if it was.
type PluginsReloaded struct {
	Plugins int    `json:"plugins"`
	Failure string `json:"failure,omitempty"`
}

// OAuthCredentials is a login as it travels to a server. Which fields count
// depends on the provider.
type OAuthCredentials struct {
	Provider          string   `json:"provider"`
	Access            string   `json:"access"`
	Refresh           string   `json:"refresh"`
	Expires           int64    `json:"expires"` // epoch milliseconds; 0 is never
	AccountID         string   `json:"accountId,omitempty"`
	EnterpriseURL     string   `json:"enterpriseUrl,omitempty"`
	APIEndpoint       string   `json:"apiEndpoint,omitempty"`
	AvailableModelIDs []string `json:"availableModelIds,omitempty"`
}

// AuthSave stores a login. The answer is an OAuthInfo.
type AuthSave struct {
	Credentials OAuthCredentials `json:"credentials"`
}

// AuthStatus, AuthRefresh and AuthLogout are about a stored login. Status and
// refresh answer with an *OAuthInfo, nil when there is none.
type (
	AuthStatus struct {
		Provider string `json:"provider"`
	}
	AuthRefresh struct {
		Provider string `json:"provider"`
	}
	AuthLogout struct {
		Provider string `json:"provider"`
	}
)

// OAuthInfo is what is told of a login: never a token.
type OAuthInfo struct {
	Provider        string `json:"provider"`
	Expires         int64  `json:"expires"`
	AccountID       string `json:"accountId,omitempty"`
	APIEndpoint     string `json:"apiEndpoint,omitempty"`
	EnterpriseURL   string `json:"enterpriseUrl,omitempty"`
	AvailableModels *int   `json:"availableModels,omitempty"`
}

// OAuthError is why a login could not be stored, renewed or removed.
type OAuthError struct {
	Message string `json:"message"`
}

// RelinkError is why a session cannot be moved.
type RelinkError struct {
	SessionID string `json:"sessionId"`
	Reason    string `json:"reason"`
}

// SandboxMustBeStopped refuses to destroy a sandbox that runs.
type SandboxMustBeStopped struct {
	ID     string        `json:"id"`
	Status SandboxStatus `json:"status"`
}

// Tag is the error's name in the contract.
func (e *OAuthError) Tag() string           { return "Server.OAuthError" }
func (e *RelinkError) Tag() string          { return "RelinkError" }
func (e *SandboxMustBeStopped) Tag() string { return "SandboxMustBeStoppedError" }

func (e *OAuthError) Error() string           { return e.Message }
func (e *RelinkError) Error() string          { return e.Reason }
func (e *SandboxMustBeStopped) Error() string { return "sandbox " + e.ID + " must be stopped first" }
