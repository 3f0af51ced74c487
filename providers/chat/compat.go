package chat

import (
	"encoding/json"
	"net/url"
	"strings"

	"codework/messages"
	"codework/providers"
)

// compat is what a server of this protocol does its own way. The names are
// those of a model's compat entry; what it leaves open is taken from hosts by
// the base URL, then from the defaults below.
type compat struct {
	// MaxTokensField is max_tokens or max_completion_tokens.
	MaxTokensField string `json:"maxTokensField"`
	// AsksForMaximum sends the model's maximum where the user set no cap. Some
	// services count what is asked for against rate limits or credits.
	AsksForMaximum bool `json:"asksForMaximum"`
	// SupportsDeveloperRole sends the system prompt of reasoning models as
	// "developer".
	SupportsDeveloperRole bool `json:"supportsDeveloperRole"`
	// SupportsUsageInStreaming sends stream_options.include_usage.
	SupportsUsageInStreaming bool `json:"supportsUsageInStreaming"`
	// SupportsTemperature false drops the option.
	SupportsTemperature bool `json:"supportsTemperature"`
	// ThinkingFormat says how reasoning is asked for: "openai"
	// (reasoning_effort), "openrouter" (reasoning.effort), "deepseek" and "zai"
	// (thinking.type), "together" (reasoning.enabled), "qwen"
	// (enable_thinking), "baseten" (chat_template_args alone).
	ThinkingFormat string `json:"thinkingFormat"`
	// SupportsReasoningEffort allows reasoning_effort; unset, it is allowed
	// where ThinkingFormat is "openai".
	SupportsReasoningEffort *bool `json:"supportsReasoningEffort"`
	// ChatTemplateArgs goes into the body; {"$var":"thinking.enabled"} becomes
	// true or false.
	ChatTemplateArgs map[string]json.RawMessage `json:"chatTemplateArgs"`
	// RequiresReasoningContent sends the model's own thinking back as
	// reasoning_content, on every assistant message.
	RequiresReasoningContent bool `json:"requiresReasoningContentOnAssistantMessages"`
	// InlineThink reads <think>…</think> at the start of the text as thinking.
	InlineThink bool `json:"inlineThink"`
	// ToolIDFormat "alnum9" limits call ids to nine letters and digits.
	ToolIDFormat string `json:"toolIdFormat"`
	// RequiresToolResultName names the tool in its result.
	RequiresToolResultName bool `json:"requiresToolResultName"`
	// ImagesInToolResults sends images inside results instead of in a user
	// message behind them.
	ImagesInToolResults bool `json:"imagesInToolResults"`
	// EmptyContent sends "" for the content of a message that only calls
	// tools; else it is null.
	EmptyContent bool `json:"requiresEmptyContent"`
	// PromptCacheKey sends prompt_cache_key and prompt_cache_retention.
	PromptCacheKey bool `json:"supportsPromptCacheKey"`
	// SupportsLongCacheRetention false never asks for a day.
	SupportsLongCacheRetention bool `json:"supportsLongCacheRetention"`
	// CacheControlFormat "anthropic" marks the system prompt, the last tool and
	// the last user message for a cache that keeps only what is marked.
	CacheControlFormat string `json:"cacheControlFormat"`
	// SendSessionAffinityHeaders names the session in headers, for services
	// that route by it to find their cache again.
	SendSessionAffinityHeaders bool `json:"sendSessionAffinityHeaders"`
	// ZAIToolStream asks for the arguments of calls as they are written.
	ZAIToolStream bool `json:"zaiToolStream"`
}

// hosts are the defaults of known services, by the end of the host name.
var hosts = []struct{ host, compat string }{
	{"api.openai.com", `{"maxTokensField":"max_completion_tokens","asksForMaximum":false,"supportsDeveloperRole":true,
		"thinkingFormat":"openai","inlineThink":false,"supportsPromptCacheKey":true}`},
	{"openai.azure.com", `{"maxTokensField":"max_completion_tokens","asksForMaximum":false,"supportsDeveloperRole":true,
		"thinkingFormat":"openai","inlineThink":false}`},
	{"openrouter.ai", `{"thinkingFormat":"openrouter","asksForMaximum":false}`},
	{"groq.com", `{"maxTokensField":"max_completion_tokens","asksForMaximum":false,"thinkingFormat":"openai"}`},
	{"cerebras.ai", `{"maxTokensField":"max_completion_tokens","asksForMaximum":false,"thinkingFormat":"openai"}`},
	{"mistral.ai", `{"toolIdFormat":"alnum9","requiresEmptyContent":true,"requiresToolResultName":true,
		"supportsUsageInStreaming":false,"asksForMaximum":false}`}, // it reports usage unasked
	{"deepseek.com", `{"thinkingFormat":"deepseek","supportsReasoningEffort":true,"requiresReasoningContentOnAssistantMessages":true}`},
	{"z.ai", `{"thinkingFormat":"zai"}`},
	{"bigmodel.cn", `{"thinkingFormat":"zai"}`},
	{"together.ai", `{"thinkingFormat":"together"}`},
	{"together.xyz", `{"thinkingFormat":"together"}`},
	{"fireworks.ai", `{"thinkingFormat":"openai"}`},
	{"huggingface.co", `{"thinkingFormat":"openai","asksForMaximum":false}`},
	{"opencode.ai", `{"thinkingFormat":"openai"}`},
	{"githubcopilot.com", `{"asksForMaximum":false}`},
	// Servers on the own machine know best how long an answer may get.
	{"localhost", `{"asksForMaximum":false}`},
	{"127.0.0.1", `{"asksForMaximum":false}`},
	{"::1", `{"asksForMaximum":false}`},
}

// compatOf is what holds for a model. A value of a wrong type counts as unset:
// catalogs are made by others.
func compatOf(m messages.Model) compat {
	c := compat{
		MaxTokensField:             "max_tokens",
		AsksForMaximum:             true,
		SupportsUsageInStreaming:   true,
		SupportsTemperature:        true,
		InlineThink:                true,
		SupportsLongCacheRetention: true,
	}
	if u, err := url.Parse(providers.BaseURL(m)); err == nil {
		name := strings.ToLower(u.Hostname())
		for _, h := range hosts {
			if name == h.host || strings.HasSuffix(name, "."+h.host) {
				json.Unmarshal([]byte(h.compat), &c) // a constant, tested
				break
			}
		}
	}
	for name, raw := range m.Compat {
		field, _ := json.Marshal(map[string]json.RawMessage{name: raw})
		json.Unmarshal(field, &c)
	}
	if m.Protocol == messages.ProtocolOpenRouter && c.ThinkingFormat == "" {
		c.ThinkingFormat = "openrouter"
	}
	return c
}

func (c compat) effort() bool {
	if c.SupportsReasoningEffort != nil {
		return *c.SupportsReasoningEffort
	}
	return c.ThinkingFormat == "openai"
}

// target is what the history must look like for the server.
func (c compat) target() providers.Target {
	t := providers.Target{KeepUnsigned: c.RequiresReasoningContent, ThinkingAnywhere: true}
	flags := []bool{c.RequiresReasoningContent, c.RequiresToolResultName, c.ImagesInToolResults, c.EmptyContent}
	key := []byte(c.ToolIDFormat + " " + c.ThinkingFormat + " ")
	for _, f := range flags {
		if f {
			key = append(key, '1')
		} else {
			key = append(key, '0')
		}
	}
	t.Key = string(key)
	if c.ToolIDFormat == "alnum9" {
		t.CallID = providers.ShortCallID
	}
	return t
}
