package providers

import (
	"context"
	"net/http"

	"codework/messages"
)

// Dialect speaks one provider protocol.
type Dialect interface {
	// Stream sends the request and emits the answer. It returns after it has
	// emitted one StreamDone or StreamError. The client must have no deadline
	// of its own; only its transport is used.
	Stream(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent))
}

// ModelID is the name the provider knows the model by.
func ModelID(m messages.Model) string {
	if m.API != nil && m.API.ID != "" {
		return m.API.ID
	}
	return m.ID
}

// BaseURL is where the model's provider is reached.
func BaseURL(m messages.Model) string {
	if m.API != nil && m.API.URL != "" {
		return m.API.URL
	}
	return m.BaseURL
}
