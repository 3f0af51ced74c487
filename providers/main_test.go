package providers

import (
	"testing"

	"go.uber.org/goleak"

	"codework/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func word(s string) *string { return &s }

func testRequest(baseURL string) *messages.Request {
	return &messages.Request{
		MessageID: "answer",
		APIKey:    "sk-very-secret",
		Model: messages.Model{ID: "m", Protocol: "openai-compatible", BaseURL: baseURL,
			Provider: messages.ModelProvider{ID: "p", Name: "Pro", Env: []string{"P_KEY", "P_TOKEN"}}},
	}
}
