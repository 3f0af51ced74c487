package actors

import (
	"encoding/json"
	"time"

	"codework/internal/settings"
)

// builtinPlugin is what the settings say of a plugin that is part of the
// program.
type builtinPlugin struct {
	Plugin  string          `json:"plugin"`
	Enabled *bool           `json:"enabled"`
	Options json.RawMessage `json:"options"`
}

// builtinPlugins returns what the entries configure, by plugin id: of several
// entries the last "enabled" and the last "options" win.
func builtinPlugins(entries []settings.Plugin) map[string]builtinPlugin {
	found := map[string]builtinPlugin{}
	for _, e := range entries {
		var p builtinPlugin
		if json.Unmarshal(e.Entry, &p) != nil || p.Plugin == "" {
			continue // a module, or an entry that only a plugin loader understands
		}
		have := found[p.Plugin]
		if p.Enabled != nil {
			have.Enabled = p.Enabled
		}
		if p.Options != nil {
			have.Options = p.Options
		}
		found[p.Plugin] = have
	}
	return found
}

// timeout is the option timeoutMs; 0 when nobody said a usable number.
func (p builtinPlugin) timeout() time.Duration {
	var o struct {
		TimeoutMs float64 `json:"timeoutMs"`
	}
	if json.Unmarshal(p.Options, &o) != nil || o.TimeoutMs <= 0 {
		return 0
	}
	return time.Duration(o.TimeoutMs * float64(time.Millisecond))
}
