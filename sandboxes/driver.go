package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"codework/messages"
)

// Driver makes and reaches one sort of sandbox. What it can do beyond that it
// shows by the interfaces below; one that is a Destroyer is a Stopper too.
type Driver interface {
	// Name is what calls and settings name the driver by.
	Name() string
	Kind() messages.SandboxKind
	// Available tells whether the driver works here with a configuration, found
	// out by trying as far as that costs nothing; the spec has no sandbox. The
	// error says what failed and what to do about it. Answers may be kept for a
	// while, but not for ever: an engine may be started meanwhile.
	Available(ctx context.Context, spec Spec) error
	// Create makes a sandbox that is online. After an error nothing of it is
	// left. A configuration that the driver refuses is a *ConfigError.
	Create(ctx context.Context, spec Spec) (Resource, error)
	// Attach reaches a sandbox that is online. A resource that its provider
	// does not know any more is ErrNotFound. Several may be attached to one
	// resource, by several sessions one after the other; the registry holds one
	// at a time.
	Attach(ctx context.Context, spec Spec, r Resource) (Sandbox, error)
}

// Sandbox is a reached sandbox. It is safe for concurrent use.
type Sandbox interface {
	// Mount makes a session's use of it.
	Mount(ctx context.Context, o MountOptions) (Mount, error)
	// Close ends every command and background job that was started through
	// this Sandbox and lets go of the connection. The resource stays. It
	// returns within two seconds, or with ctx's error. Closing again is fine.
	Close(ctx context.Context) error
}

// Lost is a Sandbox that can break by itself. Lost is closed when it has: the
// next use needs a new Attach.
type Lost interface {
	Lost() <-chan struct{}
}

// Registrar is a driver that takes sandboxes which somebody else made.
type Registrar interface {
	// Resolve finds the resource that a user names.
	Resolve(ctx context.Context, spec Spec, resourceID string) (Resource, error)
}

// Inspector is a driver that can look at a sandbox without waking it: online,
// offline or faulted. A resource that is gone is ErrNotFound.
type Inspector interface {
	Inspect(ctx context.Context, spec Spec, r Resource) (messages.SandboxStatus, error)
}

// Waker is a driver that brings a stopped sandbox back online.
type Waker interface {
	Wake(ctx context.Context, spec Spec, r Resource) error
}

// Stopper is a driver that takes a sandbox offline, with all that runs in it.
// Files are kept where the driver can. Stopping one that is stopped is fine.
type Stopper interface {
	Stop(ctx context.Context, spec Spec, r Resource) error
}

// Destroyer is a driver that removes a stopped sandbox with its files. One that
// is gone already is fine.
type Destroyer interface {
	Destroy(ctx context.Context, spec Spec, r Resource) error
}

// Sweeper is a driver whose sandboxes may outlive the process that made them.
// Sweep stops those that carry the server's id, and touches no others. The spec
// has no sandbox; its configuration, which one of those had that were left, says
// where to look. It is called once for each, before anything is attached.
type Sweeper interface {
	Sweep(ctx context.Context, spec Spec) error
}

// Spec is for which sandbox a driver is asked. The same one comes with every
// call about that sandbox.
type Spec struct {
	ID     string // of the sandbox, "sbx_…"
	Server string // id of the home, for the labels of what is made
	// Project is the session's folder on this machine, absolute; "" when there
	// is none.
	Project string
	// Config is the driver's own configuration, a JSON object; nil is the
	// defaults. Fields that the driver does not know are a *ConfigError.
	Config json.RawMessage
	// Lookup finds the values of variables that the configuration refers to as
	// "${NAME}". It is never nil.
	Lookup func(name string) (string, bool)
}

// Resource is what a driver needs to find a sandbox again. It is stored, and
// holds no secrets.
type Resource struct {
	ID     string                 `json:"id"` // the provider's locator, shown to people
	Status messages.SandboxStatus `json:"-"`  // as it was seen by the call that gave this
	Dir    string                 `json:"dir"`
	// Extra is the driver's own; nil when there is nothing.
	Extra json.RawMessage `json:"extra,omitempty"`
}

// Network is what commands in a sandbox may reach. In JSON it is "none", "host"
// or a list of addresses; the zero value leaves it to the driver.
type Network struct {
	None      bool
	Host      bool
	Addresses []string // not nil: only these
}

// UnmarshalJSON reads one of the three forms.
func (n *Network) UnmarshalJSON(b []byte) error {
	var list []string
	if json.Unmarshal(b, &list) == nil && list != nil {
		*n = Network{Addresses: list}
		return nil
	}
	var word string
	if json.Unmarshal(b, &word) != nil || word != "none" && word != "host" {
		return fmt.Errorf(`network: expected "none", "host" or a list of addresses, not %s`, b)
	}
	*n = Network{None: word == "none", Host: word == "host"}
	return nil
}

// MarshalJSON is the inverse of UnmarshalJSON.
func (n Network) MarshalJSON() ([]byte, error) {
	switch {
	case n.Addresses != nil:
		return json.Marshal(n.Addresses)
	case n.None:
		return []byte(`"none"`), nil
	case n.Host:
		return []byte(`"host"`), nil
	}
	return []byte("null"), nil
}

// IsZero tells that nothing was said.
func (n Network) IsZero() bool { return !n.None && !n.Host && n.Addresses == nil }

// Limits are ceilings of one sandbox; 0 leaves one to the driver.
type Limits struct {
	MemoryMiB int64   `json:"memoryMiB,omitempty"`
	Processes int64   `json:"processes,omitempty"`
	CPUs      float64 `json:"cpus,omitempty"`
	OpenFiles int64   `json:"openFiles,omitempty"`
}

// ErrNotFound means that the provider does not know a resource any more. An
// answer that may have other reasons (a wrong key, another region) is not this.
var ErrNotFound = errors.New("the sandbox does not exist any more")

// ConfigError means that a driver refuses a configuration or a resource id;
// Reason says which field, and what to do.
type ConfigError struct {
	Reason string
}

func (e *ConfigError) Error() string { return e.Reason }
