package offline

import "codework/messages"

// contextWindow is what the model claims to take. It reads only the newest
// question and what was found for it, so the number is a promise without a
// price.
const contextWindow = 200_000

// maxTokens bounds an answer; the rules write far less.
const maxTokens = 8_192

// Model is the catalog entry of offline/guide.
func Model() messages.Model {
	return messages.Model{
		ID:   "guide",
		Name: "Offline guide",
		Provider: messages.ModelProvider{
			ID: "offline", Name: "Offline", Source: "custom", Env: []string{},
		},
		Protocol:      messages.ProtocolOffline,
		Input:         []string{"text"},
		ContextWindow: contextWindow,
		MaxTokens:     maxTokens,
	}
}
