package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"codework/messages"
)

// parse reads the outer level of a catalog file: providers and what stands
// under them, which is known to be JSON but not yet decoded. With an error
// comes the reason, empty or invalid.
func parse(data []byte) (content, string, error) {
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	if len(data) == 0 {
		return nil, ReasonEmpty, errors.New("no content")
	}
	if data[0] != '{' { // null would decode without a word
		return nil, ReasonInvalid, errors.New("expected an object of providers")
	}
	var providers content
	if err := json.Unmarshal(data, &providers); err != nil {
		return nil, ReasonInvalid, err
	}
	for _, raw := range providers {
		if !bytes.Equal(raw, []byte("{}")) {
			return providers, "", nil
		}
	}
	return nil, ReasonEmpty, errors.New("no models")
}

// parseProvider reads the second level, the models of one provider.
func parseProvider(id string, raw json.RawMessage) (map[string]json.RawMessage, error) {
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil || entries == nil {
		return nil, fmt.Errorf("%s: expected an object of models", id)
	}
	return entries, nil
}

// baseURLs are where the providers live whose entries may leave it out.
var baseURLs = map[string]string{
	"anthropic":  "https://api.anthropic.com/v1",
	"openai":     "https://api.openai.com/v1",
	"openrouter": "https://openrouter.ai/api/v1",
	"xai":        "https://api.x.ai/v1",
}

// decode reads one entry and checks what a request relies on. A protocol that
// is not known is kept as it is written.
func decode(provider, id string, raw json.RawMessage) (messages.Model, error) {
	var m messages.Model
	wrong := func(what string) (messages.Model, error) {
		return messages.Model{}, fmt.Errorf("%s/%s: %s", provider, id, what)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
			return wrong(fmt.Sprintf("%s: unexpected %s", t.Field, t.Value))
		}
		return wrong(err.Error())
	}
	if m.BaseURL == "" {
		m.BaseURL = baseURLs[provider]
	}
	switch u, err := url.Parse(m.BaseURL); {
	case m.ID != id || id == "":
		return wrong("id: expected the key of the entry")
	case m.Provider.ID != provider || provider == "":
		return wrong("provider.id: expected the provider that the entry stands under")
	case m.Protocol == "":
		return wrong("protocol: expected a name")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return wrong("baseUrl: expected an http or https URL")
	case !slices.Contains(m.Input, "text"):
		return wrong("input: expected text among its kinds")
	case !validCost(m.Cost):
		return wrong("cost: expected rates of at least 0")
	case m.ContextWindow < 0 || m.MaxTokens < 0:
		return wrong("contextWindow, maxTokens: expected at least 0")
	}
	return m, nil
}

// refuseProtocol says why a model cannot be used, if it cannot.
func refuseProtocol(m messages.Model) *messages.Failure {
	why := ""
	switch m.Protocol {
	case messages.ProtocolCompatible, messages.ProtocolOpenAI, messages.ProtocolAnthropic,
		messages.ProtocolGoogle, messages.ProtocolOpenRouter, messages.ProtocolXAI,
		messages.ProtocolCodex, messages.ProtocolOffline:
		return nil
	case messages.ProtocolVertex, messages.ProtocolVertexAnthropic:
		why = "is known but not supported yet"
	default:
		why = "is not known to this version"
	}
	return &messages.Failure{
		Type:    messages.FailConfiguration,
		Message: fmt.Sprintf("protocol %q of %s %s", m.Protocol, m.Ref(), why),
		Hint:    "choose another model: codework models",
	}
}

func validCost(c messages.ModelCost) bool {
	ok := func(r messages.Rates) bool {
		return r.Input >= 0 && r.Output >= 0 && r.CacheRead >= 0 && r.CacheWrite >= 0
	}
	for _, t := range c.Tiers {
		if !ok(t.Rates) || t.InputTokensAbove < 0 {
			return false
		}
	}
	return ok(c.Rates)
}
