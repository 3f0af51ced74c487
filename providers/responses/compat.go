package responses

import (
	"encoding/json"
	"net/url"
	"strings"

	"codework/messages"
	"codework/providers"
)

// compat are the names of a model's compat entry that this dialect knows. What
// the entry leaves open depends on who offers the API.
type compat struct {
	// SupportsStrictMode sends the schemas of tools in the form whose exact
	// observance the provider promises, where they have one.
	SupportsStrictMode bool `json:"supportsStrictMode"`
	// SupportsReasoningEffort false leaves the effort to the model.
	SupportsReasoningEffort bool `json:"supportsReasoningEffort"`
	// SupportsReasoningSummary false asks for no summary of the reasoning;
	// OpenAI gives some only to organizations that it has verified.
	SupportsReasoningSummary bool `json:"supportsReasoningSummary"`
	// SupportsEncryptedReasoning false does not ask for reasoning to send back.
	SupportsEncryptedReasoning bool `json:"supportsEncryptedReasoning"`
	// SupportsTemperature sends the option; unset, it goes to models that do
	// not reason, and to xAI's.
	SupportsTemperature bool `json:"supportsTemperature"`
	// SupportsLongCacheRetention false never asks for a day.
	SupportsLongCacheRetention bool `json:"supportsLongCacheRetention"`
	// SupportsMetadata sends the option.
	SupportsMetadata bool `json:"supportsMetadata"`
	// ImagesInToolResults sends images inside results instead of in a user
	// message behind them.
	ImagesInToolResults bool `json:"imagesInToolResults"`
}

// compatOf is what holds for a model. A value of a wrong type counts as unset:
// catalogs are made by others.
func compatOf(m messages.Model) compat {
	xai := m.Protocol == messages.ProtocolXAI
	c := compat{
		SupportsReasoningEffort:    true,
		SupportsReasoningSummary:   true,
		SupportsEncryptedReasoning: true,
		SupportsTemperature:        !m.Reasoning || xai,
		SupportsMetadata:           !xai,
		ImagesInToolResults:        !xai, // its results are documented as text
	}
	if u, err := url.Parse(providers.BaseURL(m)); err == nil {
		c.SupportsLongCacheRetention = strings.EqualFold(u.Hostname(), "api.openai.com")
	}
	for name, raw := range m.Compat {
		field, _ := json.Marshal(map[string]json.RawMessage{name: raw})
		json.Unmarshal(field, &c)
	}
	return c
}

// target is what the history must look like for the provider.
func (c compat) target() providers.Target {
	key := "images behind"
	if c.ImagesInToolResults {
		key = "images inside"
	}
	if c.SupportsStrictMode {
		key += ", strict"
	}
	return providers.Target{Key: key, CallID: callID}
}

// callID is an id in the form that is accepted. Of the two ids that some
// clients of the Codex backend store as one, "call|item", it is the first.
func callID(id string) string {
	call, _, _ := strings.Cut(id, "|")
	return providers.SafeCallID(call)
}
