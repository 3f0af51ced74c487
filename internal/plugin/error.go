package plugin

import (
	"fmt"
	"strings"
)

// The slugs that say what is wrong with a plugin.
const (
	UnsupportedSource   = "plugin-unsupported-source"
	NotFound            = "plugin-not-found"
	EscapesRoot         = "plugin-escapes-root"
	NotInstalled        = "plugin-not-installed"
	ResolveFailed       = "plugin-resolve-failed"
	FetchFailed         = "plugin-fetch-failed"
	NoCommit            = "plugin-no-commit"
	IntegrityFailed     = "plugin-integrity-failed"
	NoEntrypoint        = "plugin-no-entrypoint"
	MissingDependency   = "plugin-missing-dependency"
	StartFailed         = "plugin-start-failed"
	InvalidDefinition   = "plugin-invalid-definition"
	HandshakeFailed     = "plugin-handshake-failed"
	Incompatible        = "plugin-incompatible"
	UnsupportedPlatform = "plugin-unsupported-platform"
	Crashed             = "plugin-crashed"
	LockTimeout         = "plugin-lock-timeout"
	MarkerInvalid       = "plugin-marker-invalid"
	CollectFailed       = "plugin-collect-failed"
)

// Error is what is wrong with a plugin. It holds no secrets.
type Error struct {
	Slug      string
	Reference string // the entry as the settings have it, or a short form
	File      string // the settings file; "" when the entry has none
	ID        string // "" when not known
	Detail    string // lower case, without the name of the plugin
	Hint      string // what to do; "" when there is nothing to say
	// Tail are the last lines the plugin wrote to its standard error.
	Tail []string
	// Required tells that sessions must not go on without the plugin: its
	// hooks may be what keeps them safe.
	Required bool
}

// Name is what to call the plugin: its id, or its entry.
func (e *Error) Name() string {
	if e.ID != "" {
		return e.ID
	}
	return e.Reference
}

func (e *Error) Error() string {
	s := fmt.Sprintf("plugin %s: %s (%s)", e.Name(), e.Detail, e.Slug)
	if len(e.Tail) > 0 {
		s += "; it said: " + strings.Join(e.Tail, " / ")
	}
	return s
}
