package messages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// SandboxKind is where a sandbox lives.
type SandboxKind string

// The kinds.
const (
	KindLocal   SandboxKind = "local"
	KindVirtual SandboxKind = "virtual"
	KindRemote  SandboxKind = "remote"
)

// SandboxStatus is the last observation of a sandbox.
type SandboxStatus string

// The statuses.
const (
	SandboxProvisioning SandboxStatus = "provisioning"
	SandboxOnline       SandboxStatus = "online"
	SandboxOffline      SandboxStatus = "offline"
	SandboxSuspending   SandboxStatus = "suspending"
	SandboxRemoving     SandboxStatus = "removing"
	SandboxRemovedState SandboxStatus = "removed"
	SandboxUnavail      SandboxStatus = "unavail"
	SandboxFaulted      SandboxStatus = "faulted"
)

// Who made a sandbox. Those of others are never stopped.
const (
	SandboxManaged  = "managed"
	SandboxExternal = "external"
)

// What a sandbox is used for.
const (
	SandboxIdle   = "idle"
	SandboxInUse  = "busy"
	SandboxPinned = "pinned"
)

// SandboxRecord is what the store keeps of a sandbox. It outlives the sandbox,
// so that its id is never used again, and holds no secrets.
type SandboxRecord struct {
	ID        string        `json:"id"`
	Driver    string        `json:"driver"`
	Kind      SandboxKind   `json:"kind"`
	Ownership string        `json:"ownership"`
	Status    SandboxStatus `json:"status"`
	// ResourceID, Dir and Extra are the driver's resource; empty as long as
	// there is none.
	ResourceID string          `json:"resourceId,omitempty"`
	Dir        string          `json:"dir,omitempty"`
	Extra      json.RawMessage `json:"extra,omitempty"`
	Project    string          `json:"project,omitempty"`
	Config     json.RawMessage `json:"config,omitempty"` // with references, not with what they stand for
	// Failure is why the sandbox is faulted or unavailable.
	Failure *CleanedError `json:"failure,omitempty"`
	// Waking tells that it is being woken: it may run, whatever Status says.
	Waking    bool  `json:"waking,omitempty"`
	CreatedAt int64 `json:"createdAt"` // epoch milliseconds
	UpdatedAt int64 `json:"updatedAt"` // when the status was observed
}

// Info is what clients are told, with how many use the sandbox.
func (r SandboxRecord) Info(refCount int) SandboxInfo {
	i := SandboxInfo{ID: r.ID, Driver: r.Driver, Kind: r.Kind, Ownership: r.Ownership, Status: r.Status, Usage: SandboxIdle,
		RefCount: refCount, CreatedAt: ISOTime(r.CreatedAt), UpdatedAt: ISOTime(r.UpdatedAt)}
	if r.ResourceID != "" {
		i.ProviderResourceID = &r.ResourceID
	}
	if refCount > 0 {
		i.Usage = SandboxInUse
	}
	return i
}

// SandboxInfo is what clients are told of a sandbox.
type SandboxInfo struct {
	ID                 string        `json:"id"`
	Driver             string        `json:"driver"`
	Kind               SandboxKind   `json:"kind"`
	ProviderResourceID *string       `json:"providerResourceId"`
	Ownership          string        `json:"ownership"` // managed, external
	Status             SandboxStatus `json:"status"`
	Usage              string        `json:"usage"` // idle, busy, pinned
	RefCount           int           `json:"refCount"`
	CreatedAt          string        `json:"createdAt"`
	UpdatedAt          string        `json:"updatedAt"`
}

// SandboxNotFound means no sandbox has that id.
type SandboxNotFound struct {
	ID string `json:"id"`
}

// SandboxDriverNotRegistered means there is no driver of that name.
// Registered holds at most five names, sorted.
type SandboxDriverNotRegistered struct {
	Driver     string   `json:"driver"`
	Registered []string `json:"registered,omitempty"`
}

// SandboxDriverRegistration means the driver refuses that configuration or
// resource, or does not work here; Reason says what to do.
type SandboxDriverRegistration struct {
	Driver string `json:"driver"`
	Reason string `json:"reason"`
}

// SandboxUnsupported means the driver or the ownership does not allow it.
type SandboxUnsupported struct {
	ID        string `json:"id,omitempty"`
	Driver    string `json:"driver"`
	Operation string `json:"operation"`
}

// SandboxProvider means that what the sandbox lives in failed, or could not do
// what was asked. Sanitized is the cause without secrets.
type SandboxProvider struct {
	Driver    string       `json:"driver"`
	Operation string       `json:"operation"`
	Sanitized CleanedError `json:"sanitized"`
}

// CleanedError is somebody else's error, without secrets.
type CleanedError struct {
	Name    string `json:"name"`
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
}

// SandboxUnavailable means that the sandbox is gone, or cannot be used in the state
// in which it is.
type SandboxUnavailable struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// SandboxRemoved means that the sandbox was removed by us.
type SandboxRemoved struct {
	ID        string `json:"id"`
	RemovedAt string `json:"removedAt,omitempty"` // ISO 8601
}

// SandboxTransitionConflict means that somebody else is changing the sandbox,
// or has changed it just before.
type SandboxTransitionConflict struct {
	ID       string          `json:"id"`
	Expected []SandboxStatus `json:"expected"`
	Actual   SandboxStatus   `json:"actual"`
}

// SandboxBusy refuses to stop a sandbox that is in use.
type SandboxBusy struct {
	ID       string `json:"id"`
	RefCount int    `json:"refCount"`
}

func (e *SandboxUnavailable) Tag() string        { return "SandboxUnavailError" }
func (e *SandboxRemoved) Tag() string            { return "SandboxRemovedError" }
func (e *SandboxTransitionConflict) Tag() string { return "SandboxTransitionConflictError" }
func (e *SandboxBusy) Tag() string               { return "SandboxBusyError" }

func (e *SandboxUnavailable) Error() string {
	return "sandbox " + e.ID + " cannot be used: " + e.Reason
}
func (e *SandboxRemoved) Error() string { return "sandbox " + e.ID + " was removed" }
func (e *SandboxTransitionConflict) Error() string {
	return fmt.Sprintf("sandbox %s is %s", e.ID, e.Actual)
}
func (e *SandboxBusy) Error() string {
	return fmt.Sprintf("sandbox %s is in use (%d)", e.ID, e.RefCount)
}

// IsHost tells whether a session's sandbox is this machine itself.
func IsHost(sandboxID string) bool { return sandboxID == "" || sandboxID == LocalSandbox }

// maxSandboxConfig and maxResourceID bound what callers send, in bytes.
const (
	maxSandboxConfig = 64 << 10
	maxResourceID    = 2048
)

// ValidateSandboxConfig checks the form of a driver's configuration: a JSON
// object. What may stand in it is the driver's to say.
func ValidateSandboxConfig(config json.RawMessage) error {
	if len(config) == 0 {
		return nil
	}
	var o map[string]json.RawMessage
	if json.Unmarshal(config, &o) != nil || o == nil {
		return errors.New("config: expected an object")
	}
	if len(config) > maxSandboxConfig {
		return errors.New("config: over 64 KiB")
	}
	return nil
}

// ValidateResourceID checks the form of a provider's resource id.
func ValidateResourceID(id string) error {
	if id == "" || len(id) > maxResourceID {
		return errors.New("a resource id has 1 to 2048 bytes")
	}
	if strings.ContainsFunc(id, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == 0xfffd || unicode.IsSpace(r) || unicode.IsControl(r)
	}) {
		return errors.New("a resource id holds no spaces or control characters")
	}
	return nil
}

func (e *SandboxNotFound) Tag() string            { return "SandboxNotFoundError" }
func (e *SandboxDriverNotRegistered) Tag() string { return "SandboxDriverNotRegisteredError" }
func (e *SandboxDriverRegistration) Tag() string  { return "SandboxDriverRegistrationError" }
func (e *SandboxUnsupported) Tag() string         { return "SandboxUnsupportedError" }
func (e *SandboxProvider) Tag() string            { return "SandboxProviderError" }

func (e *SandboxNotFound) Error() string { return "no sandbox " + e.ID }
func (e *SandboxDriverNotRegistered) Error() string {
	return "no sandbox driver " + e.Driver
}
func (e *SandboxDriverRegistration) Error() string {
	return "sandbox driver " + e.Driver + ": " + e.Reason
}
func (e *SandboxProvider) Error() string {
	return "sandbox driver " + e.Driver + " could not " + e.Operation + ": " + e.Sanitized.Message
}
func (e *SandboxUnsupported) Error() string {
	return "sandbox driver " + e.Driver + " cannot " + e.Operation
}
