package catalog

import (
	"encoding/json"
	"fmt"
	"slices"

	"codework/messages"
)

const (
	codexID  = "openai-codex"
	codexURL = "https://chatgpt.com/backend-api"

	// codexWindow is both the usual context window of a plan and where the
	// long-context rates begin.
	codexWindow = 272_000
	sparkWindow = 128_000
	codexOutput = 128_000
)

// codexModels are the models of ChatGPT plans: no public list names them. The
// rates are what the same tokens cost on the API, since a plan has none.
var codexModels = []struct {
	id, name string
	rates    messages.Rates
	long     bool // has the long-context tier
	window   int64
	textOnly bool
	levels   []messages.ThinkingLevel
}{
	{"gpt-6-luna", "GPT-6 Luna", messages.Rates{Input: 0.10, CacheRead: 0.01, CacheWrite: 0.125, Output: 0.50}, true, codexWindow, false,
		[]messages.ThinkingLevel{"off", "low", "medium", "high", "xhigh", "max"}},
	{"gpt-5.6-luna", "GPT-5.6 Luna", messages.Rates{Input: 0.20, CacheRead: 0.02, CacheWrite: 0.25, Output: 1.20}, true, codexWindow, false,
		[]messages.ThinkingLevel{"off", "low", "medium", "high", "xhigh", "max"}},
	{"gpt-5.6-terra", "GPT-5.6 Terra", messages.Rates{Input: 2, CacheRead: 0.20, CacheWrite: 2.50, Output: 12}, true, codexWindow, false,
		[]messages.ThinkingLevel{"low", "medium", "high", "xhigh", "max"}},
	{"gpt-5.6-sol", "GPT-5.6 Sol", messages.Rates{Input: 5, CacheRead: 0.50, CacheWrite: 6.25, Output: 30}, true, codexWindow, false,
		[]messages.ThinkingLevel{"low", "medium", "high", "xhigh", "max"}},
	{"gpt-5.5", "GPT-5.5", messages.Rates{Input: 5, CacheRead: 0.50, Output: 30}, true, codexWindow, false,
		[]messages.ThinkingLevel{"off", "low", "medium", "high", "xhigh"}},
	{"gpt-5.4", "GPT-5.4", messages.Rates{Input: 2.50, CacheRead: 0.25, Output: 15}, true, codexWindow, false,
		[]messages.ThinkingLevel{"low", "medium", "high", "xhigh"}},
	{"gpt-5.4-mini", "GPT-5.4 Mini", messages.Rates{Input: 0.75, CacheRead: 0.075, Output: 4.50}, false, codexWindow, false,
		[]messages.ThinkingLevel{"low", "medium", "high", "xhigh"}},
	{"gpt-5.3-codex-spark", "GPT-5.3 Codex Spark", messages.Rates{Input: 1.75, CacheRead: 0.175, Output: 14}, false, sparkWindow, true,
		[]messages.ThinkingLevel{"minimal", "low", "medium", "high", "xhigh"}},
}

// codexEntries gives the list the form in which files hold it, so that it goes
// through the same checks.
func codexEntries() (map[string]json.RawMessage, error) {
	entries := map[string]json.RawMessage{}
	for _, c := range codexModels {
		m := messages.Model{
			ID:   c.id,
			Name: c.name,
			Provider: messages.ModelProvider{
				ID: codexID, Name: "OpenAI Codex", Source: "api", Env: []string{"OPENAI_CODEX_API_KEY"},
			},
			Protocol:         messages.ProtocolCodex,
			BaseURL:          codexURL,
			Reasoning:        true,
			ThinkingLevelMap: map[messages.ThinkingLevel]*string{},
			Input:            []string{"text", "image"},
			Cost:             messages.ModelCost{Rates: c.rates},
			ContextWindow:    c.window,
			MaxTokens:        codexOutput,
		}
		for _, level := range messages.ThinkingLevels {
			m.ThinkingLevelMap[level] = nil
			if slices.Contains(c.levels, level) {
				word := string(level)
				if level == "off" {
					word = "none" // the backend's word for it
				}
				m.ThinkingLevelMap[level] = &word
			}
		}
		if c.textOnly {
			m.Input = []string{"text"}
		}
		if c.long {
			m.Cost.Tiers = []messages.CostTier{{InputTokensAbove: codexWindow, Rates: messages.Rates{
				Input: c.rates.Input * 2, Output: c.rates.Output * 1.5,
				CacheRead: c.rates.CacheRead * 2, CacheWrite: c.rates.CacheWrite * 2,
			}}}
		}
		raw, err := json.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", m.Ref(), err)
		}
		entries[c.id] = raw
	}
	return entries, nil
}
