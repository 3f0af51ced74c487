package actors

import (
	"encoding/json"
	"time"

	"codework/internal/plugin"
)

// builtinPlugin is what the settings say of a plugin that is part of the
// program.
type builtinPlugin struct {
	Enabled *bool
	Options json.RawMessage
}

// builtinPlugins returns what the entries configure, by plugin id: of several
// entries the last "enabled" and the last "options" win.
func builtinPlugins(entries []plugin.Entry) map[string]builtinPlugin {
	found := map[string]builtinPlugin{}
	for _, e := range entries {
		if e.Plugin == "" {
			continue
		}
		p := found[e.Plugin]
		if e.Enabled != nil {
			p.Enabled = e.Enabled
		}
		if e.Options != nil {
			p.Options = e.Options
		}
		found[e.Plugin] = p
	}
	return found
}

// on tells whether the plugin is on, which it is by itself when def.
func (p builtinPlugin) on(def bool) bool {
	if p.Enabled != nil {
		return *p.Enabled
	}
	return def
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
