package actors

import (
	"encoding/json"
	"time"

	"codework/internal/settings"
	"codework/internal/tools"
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

// otherPlugins says which entries have no effect: this version runs the
// plugins that are part of it, and no others.
func otherPlugins(entries []settings.Plugin) []string {
	known := map[string]bool{"codework.prompt.default": true, "codework.prompt.instruction": true}
	for _, t := range tools.Builtin() {
		known[t.Plugin] = true
	}
	var notices []string
	for _, e := range entries {
		var p builtinPlugin
		if json.Unmarshal(e.Entry, &p) == nil && known[p.Plugin] {
			continue
		}
		entry := []rune(string(e.Entry))
		if len(entry) > maxEntryShown {
			entry = append(entry[:maxEntryShown], '…')
		}
		notices = append(notices, e.File+": plugin entry without effect, only built-in plugins run in this version: "+string(entry))
	}
	return notices
}

// maxEntryShown is how much of a plugin entry a notice repeats, in characters.
const maxEntryShown = 60

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
