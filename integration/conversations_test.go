package integration

import (
	"maps"
	"slices"
	"testing"
)

// wires are all protocols that the model server speaks and a key is enough for.
var wires = map[string]string{
	"chat":       "openai-compatible",
	"openrouter": "openrouter",
	"anthropic":  "anthropic",
	"gemini":     "google",
	"responses":  "openai",
	"codex":      "openai-codex",
}

// A conversation means the same over every wire: text, thinking, turns with
// tools, calls in parallel, images, stops, restarts, changes of the model, and
// answers that break.
func TestConversations(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(wires)) {
		t.Run(name, func(t *testing.T) { runScripts(t, "conversation", name, wires[name]) })
	}
}
