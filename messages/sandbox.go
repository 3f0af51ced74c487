package messages

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
