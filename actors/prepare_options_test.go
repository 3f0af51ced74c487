package actors

import (
	"encoding/json"
	"fmt"
	"testing"

	"codework/internal/settings"
	"codework/messages"
)

// OpenRouter's routing fields have names that options reserve: extras say them,
// to it alone, and an option of the same name wins.
func TestExtrasGoToOpenRouterOnly(t *testing.T) {
	block := settings.Block{
		Extras: map[string]json.RawMessage{"provider": json.RawMessage(`{"order":["x"]}`), "seed": json.RawMessage("1")},
		Extra:  map[string]json.RawMessage{"seed": json.RawMessage("2")},
	}
	for protocol, want := range map[messages.Protocol]string{
		messages.ProtocolOpenRouter: `map[provider:{"order":["x"]} seed:2]`,
		messages.ProtocolCompatible: `map[seed:2]`,
	} {
		got := map[string]string{}
		for k, v := range bodyOptions(messages.Model{Protocol: protocol}, block) {
			got[k] = string(v)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v", protocol, got)
		}
	}
	if len(block.Extras) != 2 || string(block.Extras["seed"]) != "1" {
		t.Errorf("the settings were changed: %s", block.Extras)
	}
}
