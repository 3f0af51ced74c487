// Package copilot speaks to GitHub Copilot, which offers each model in one of
// three formats: Messages, Responses or Chat Completions. The request is sent
// by the dialect of that format, under the headers that Copilot wants.
//
// Which format a model has is told by the account's own list of models, else
// by the model's name, else by its entry in the catalog. The list is asked for
// with the first request of an account and kept for half an hour; a request
// waits for it three seconds at most, and a list that cannot be had is no
// error. What an answer is recorded as has the protocol of the format.
//
// For order, blocking and cancellation see package providers.
package copilot

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"codework/messages"
	"codework/providers"
	"codework/providers/anthropic"
	"codework/providers/catalog"
	"codework/providers/chat"
	"codework/providers/responses"
)

// Dialect speaks to Copilot. It is made by New.
type Dialect struct {
	formats map[messages.Protocol]providers.Dialect
	lists   lists
}

// New returns a Dialect that knows no account yet.
func New() *Dialect {
	return &Dialect{
		formats: map[messages.Protocol]providers.Dialect{
			messages.ProtocolAnthropic:  anthropic.Dialect{Bearer: true},
			messages.ProtocolCompatible: chat.Dialect{},
			messages.ProtocolOpenAI:     responses.Dialect{LooseIDs: true}, // Copilot encrypts them each time anew
		},
		lists: lists{by: map[string]*list{}},
	}
}

// Stream sends the request; see providers.Dialect.
func (d *Dialect) Stream(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	own := *req
	base := baseURL(req)
	format := choose(req.Model, d.lists.endpoints(ctx, client, base, req)[providers.ModelID(req.Model)])
	own.Model = adapt(req.Model, format, base)
	own.Model.Headers = headers(&own, format)
	own.Options.Headers = withoutBetas(own.Options.Headers, own.Model)
	if !own.Model.Reasoning {
		own.Thinking = providers.Off
	}
	d.formats[format].Stream(ctx, client, &own, emit)
}

// baseURL is where the account's Copilot is.
func baseURL(req *messages.Request) string {
	base := providers.BaseURL(req.Model)
	if req.Login != nil && req.Login.Endpoint != "" {
		base = req.Login.Endpoint
	}
	base = strings.TrimRight(strings.TrimSpace(base), "/")
	if req.Model.Protocol == messages.ProtocolAnthropic {
		// The catalog has the version in it for Messages. The other paths go
		// without, and so does the list of models.
		base = strings.TrimSuffix(base, "/v1")
	}
	return base
}

// adapt makes of a model what the dialect of a format is to know.
func adapt(m messages.Model, format messages.Protocol, base string) messages.Model {
	m.Protocol = format
	m.BaseURL = base
	if m.API != nil {
		api := *m.API
		api.URL = ""
		m.API = &api
	}
	compat := maps.Clone(m.Compat)
	if compat == nil {
		compat = map[string]json.RawMessage{}
	}
	if format == messages.ProtocolCompatible {
		// This route has no control of reasoning, and what is asked for counts
		// against the plan.
		m.Reasoning = false
		if compat["asksForMaximum"] == nil {
			compat["asksForMaximum"] = json.RawMessage("false")
		}
	}
	m.Compat = compat
	return m
}

// endpoints are the formats by their paths, in the order in which one is taken
// when the guessed one is not offered.
var endpoints = []struct {
	path   string
	format messages.Protocol
}{
	{"/responses", messages.ProtocolOpenAI},
	{"/v1/messages", messages.ProtocolAnthropic},
	{"/chat/completions", messages.ProtocolCompatible},
}

// methods are the formats by the names that settings have for them.
var methods = map[string]messages.Protocol{
	"responses": messages.ProtocolOpenAI, "messages": messages.ProtocolAnthropic, "chat": messages.ProtocolCompatible,
}

// choose decides about the format of a model, unless the settings do. supported are the paths that the
// account's list names for it.
func choose(m messages.Model, supported []string) messages.Protocol {
	if m.API != nil && methods[m.API.Method] != "" {
		return methods[m.API.Method]
	}
	guess := catalog.CopilotFormat(providers.ModelID(m), m.Protocol)
	first := messages.Protocol("")
	for _, e := range endpoints {
		if !slices.Contains(supported, e.path) {
			continue
		}
		if e.format == guess {
			return guess
		}
		if first == "" {
			first = e.format
		}
	}
	if first != "" {
		return first
	}
	return guess
}
