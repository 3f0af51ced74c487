package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"codework/messages"
)

// mapping counts the ways in which a list of models.dev was turned into a
// catalog: what an older program has made of the same list is made again.
const mapping = 1

// unknownLimit is what stands for a window or an answer whose size the list
// does not tell.
const unknownLimit = 4096

// devProvider and devModel are a provider and a model in the api.json of
// models.dev, as far as they are used.
type devProvider struct {
	Name   string                     `json:"name"`
	Env    []string                   `json:"env"`
	NPM    string                     `json:"npm"`
	API    string                     `json:"api"`
	Models map[string]json.RawMessage `json:"models"`
}

type devModel struct {
	Name        string `json:"name"`
	ToolCall    bool   `json:"tool_call"`
	Reasoning   bool   `json:"reasoning"`
	Temperature *bool  `json:"temperature"`
	Modalities  struct {
		Input []string `json:"input"`
	} `json:"modalities"`
	Cost struct {
		devRates
		Over200k *devRates `json:"context_over_200k"`
		Tiers    []struct {
			devRates
			Tier struct {
				Type string  `json:"type"`
				Size float64 `json:"size"`
			} `json:"tier"`
		} `json:"tiers"`
	} `json:"cost"`
	Limit struct {
		Context *float64 `json:"context"`
		Output  *float64 `json:"output"`
	} `json:"limit"`
	API      string `json:"api"`
	Provider struct {
		NPM string `json:"npm"`
		API string `json:"api"`
	} `json:"provider"`
}

type devRates struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read"`
	CacheWrite float64 `json:"cache_write"`
}

func (r devRates) rates() messages.Rates {
	return messages.Rates{Input: r.Input, Output: r.Output, CacheRead: r.CacheRead, CacheWrite: r.CacheWrite}
}

// packages are the client libraries that the list names, by what they speak.
// Any other is one more server of the compatible kind.
var packages = map[string]messages.Protocol{
	"@ai-sdk/anthropic":               messages.ProtocolAnthropic,
	"@ai-sdk/openai":                  messages.ProtocolOpenAI,
	"@ai-sdk/xai":                     messages.ProtocolXAI,
	"@ai-sdk/google":                  messages.ProtocolGoogle,
	"@openrouter/ai-sdk-provider":     messages.ProtocolOpenRouter,
	"@ai-sdk/google-vertex":           messages.ProtocolVertex,
	"@ai-sdk/google-vertex/anthropic": messages.ProtocolVertexAnthropic,
}

// ownURLs are where providers are whose address the list leaves to their
// libraries, beside baseURLs.
var ownURLs = map[string]string{
	"google":     "https://generativelanguage.googleapis.com/v1beta",
	"groq":       "https://api.groq.com/openai/v1",
	"cerebras":   "https://api.cerebras.ai/v1",
	"mistral":    "https://api.mistral.ai/v1",
	"deepinfra":  "https://api.deepinfra.com/v1/openai",
	"togetherai": "https://api.together.xyz/v1",
	"perplexity": "https://api.perplexity.ai",
}

// fromModelsDev makes a catalog file of the api.json of models.dev. Models that
// call no tools are left out, and so are those that could not be reached; it
// is an error when nothing is left.
//
// What the list does not tell of a model, such as its levels of thinking and
// the quirks of its server, is taken from the snapshot where that has it.
func fromModelsDev(data []byte) ([]byte, error) {
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	var list map[string]json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("it is no list of providers: %w", err)
	}
	out := map[string]map[string]messages.Model{}
	for id, raw := range list {
		var p devProvider
		if id == "" || id == codexID || json.Unmarshal(raw, &p) != nil {
			continue
		}
		known, err := (snapshot{}).provider(id)
		if err != nil {
			return nil, err
		}
		for name, raw := range p.Models {
			var m devModel
			if json.Unmarshal(raw, &m) != nil || !m.ToolCall {
				continue
			}
			entry := m.entry(id, name, &p, known[name])
			written, err := json.Marshal(entry)
			if err != nil {
				return nil, fmt.Errorf("%s/%s: %w", id, name, err)
			}
			if _, err := decode(id, name, written); err != nil {
				continue // no address, most often
			}
			if out[id] == nil {
				out[id] = map[string]messages.Model{}
			}
			out[id][name] = entry
		}
	}
	if len(out) == 0 {
		return nil, errors.New("it has no models that can be used")
	}
	made, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return append(made, '\n'), nil
}

// entry is a model in the form of a catalog. known is the snapshot's entry,
// nil where it has none.
func (d *devModel) entry(provider, id string, p *devProvider, known json.RawMessage) messages.Model {
	m := messages.Model{
		ID: id, Name: d.Name, Reasoning: d.Reasoning, Input: []string{"text"},
		Provider:      messages.ModelProvider{ID: provider, Name: p.Name, Source: "api", Env: variables(provider, p.Env)},
		Cost:          messages.ModelCost{Rates: d.Cost.rates(), Tiers: d.tiers()},
		ContextWindow: limit(d.Limit.Context), MaxTokens: limit(d.Limit.Output),
	}
	if m.Name == "" {
		m.Name = id
	}
	if m.Provider.Name == "" {
		m.Provider.Name = provider
	}
	if slices.Contains(d.Modalities.Input, "image") {
		m.Input = append(m.Input, "image")
	}
	npm := d.Provider.NPM
	if npm == "" {
		npm = p.NPM
	}
	m.Protocol = messages.ProtocolCompatible
	if spoken, ok := packages[npm]; ok {
		m.Protocol = spoken
	}
	if provider == copilotID {
		m.Protocol = CopilotFormat(id, messages.ProtocolCompatible)
	}
	var old messages.Model
	if known != nil {
		old, _ = decode(provider, id, known) // the snapshot's are tested
	}
	for _, u := range []string{d.API, d.Provider.API, p.API, baseURLs[provider], ownURLs[provider], old.BaseURL} {
		if u != "" {
			m.BaseURL = u
			break
		}
	}
	if strings.Contains(m.BaseURL, "${") {
		m.BaseURL = "-" // a template for a library to fill in: no address
	}
	switch {
	case known != nil && old.Protocol == m.Protocol:
		m.Compat, m.ThinkingLevelMap, m.Headers = old.Compat, old.ThinkingLevelMap, old.Headers
	case m.Protocol == messages.ProtocolAnthropic && adaptive.MatchString(id):
		m.Compat = map[string]json.RawMessage{"forceAdaptiveThinking": json.RawMessage("true")}
	case provider == copilotID && m.Protocol == messages.ProtocolOpenAI:
		m.ThinkingLevelMap = map[messages.ThinkingLevel]*string{"off": nil, "minimal": nil}
	}
	if d.Temperature != nil && !*d.Temperature {
		compat := map[string]json.RawMessage{"supportsTemperature": json.RawMessage("false")}
		for name, v := range m.Compat {
			compat[name] = v
		}
		m.Compat = compat
	}
	return m
}

// adaptive are the names of Claude models that take an effort instead of a
// budget: those from 4.6 on.
var adaptive = regexp.MustCompile(`claude-[a-z]+-(4[.-]([6-9]|[1-9][0-9])|[5-9]|[1-9][0-9])([.@:-]|$)`)

func (d *devModel) tiers() []messages.CostTier {
	var out []messages.CostTier
	for _, t := range d.Cost.Tiers {
		if t.Tier.Type == "context" && t.Tier.Size > 0 {
			out = append(out, messages.CostTier{Rates: t.rates(), InputTokensAbove: int64(t.Tier.Size)})
		}
	}
	if out == nil && d.Cost.Over200k != nil {
		out = append(out, messages.CostTier{Rates: d.Cost.Over200k.rates(), InputTokensAbove: 200_000})
	}
	return out
}

func limit(n *float64) int64 {
	if n == nil || *n < 0 || *n > 1<<53 {
		return unknownLimit
	}
	return int64(*n)
}

// variables are those that may hold the provider's key.
func variables(provider string, listed []string) []string {
	switch provider {
	case copilotID:
		return []string{"COPILOT_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"}
	case "google":
		// Both are in use; Google's own name comes first.
		out := []string{"GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"}
		for _, name := range listed {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
		return out
	}
	if listed == nil {
		return []string{}
	}
	return listed
}
