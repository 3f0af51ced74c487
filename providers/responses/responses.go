// Package responses speaks OpenAI's Responses API, as OpenAI, xAI and GitHub
// Copilot offer it, and the backend of ChatGPT plans ("Codex"), which is the
// same API under other rules.
//
// The answer is complete with response.completed, response.incomplete or
// response.failed; a stream that ends before is a dropped connection, whatever
// it brought. Nothing is kept at the provider: reasoning goes back encrypted,
// byte for byte and in front of what it led to, each item under the id that it
// came with. For order, blocking and cancellation see package providers.
package responses

import (
	"context"
	"net/http"
	"strings"

	"codework/messages"
	"codework/providers"
	"codework/providers/credentials"
)

// Dialect speaks Responses. The zero value is ready for use.
type Dialect struct {
	// Codex speaks to the backend of ChatGPT plans.
	Codex bool
	// LooseIDs allows a response to change its id within one stream, as
	// gateways do that encrypt ids each time they show them.
	LooseIDs bool
}

// Stream sends the request; see providers.Dialect.
func (d Dialect) Stream(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	c := compatOf(req.Model)
	raw, err := body(req, c, d.Codex)
	if err != nil {
		providers.NewAssembler(req, "", emit).Fail(&messages.Failure{
			Type:    messages.FailContextEncode,
			Message: "the request cannot be encoded: an option is not valid JSON",
		})
		return
	}
	h := http.Header{}
	if key := strings.TrimSpace(req.APIKey); key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
	if d.Codex {
		if failure := codexHeader(h, req); failure != nil {
			providers.NewAssembler(req, "", emit).Fail(failure)
			return
		}
	}
	s := &stream{req: req, dialect: d, items: map[int]*item{}}
	providers.Attempt{
		URL:     d.endpoint(providers.BaseURL(req.Model)),
		Header:  h,
		Body:    raw,
		Event:   s.event,
		Whole:   s.whole,
		Refused: s.refused,
	}.Run(ctx, client, req, emit)
}

// endpoint puts the path behind a base URL, which may have a part of it or
// all.
func (d Dialect) endpoint(base string) string {
	if base == "" {
		return ""
	}
	path := "responses"
	if d.Codex {
		trimmed, _, _ := strings.Cut(base, "?")
		trimmed = strings.TrimRight(strings.TrimSpace(trimmed), "/")
		if !strings.HasSuffix(trimmed, "/codex") {
			path = "codex/responses"
		}
	}
	u, err := providers.JoinURL(base, path)
	if err != nil {
		return ""
	}
	return u
}

// originator is the name by which ChatGPT's backend knows this program.
const originator = "codework"

// accountHeader names the ChatGPT account whose plan pays.
const accountHeader = "chatgpt-account-id"

// codexHeader sets what the Codex backend wants beside the token.
func codexHeader(h http.Header, req *messages.Request) *messages.Failure {
	account := ""
	if req.Login != nil {
		account = req.Login.AccountID
	}
	if account == "" {
		account = credentials.AccountOf(req.APIKey)
	}
	switch {
	case account != "":
		h.Set(accountHeader, account)
	case named(accountHeader, req.Model.Headers, req.Options.Headers):
	case strings.TrimSpace(req.APIKey) == "":
		return providers.MissingKey(req.Model)
	default:
		return &messages.Failure{
			Type:    messages.FailAuthentication,
			Code:    messages.CodeInvalid,
			Message: "the key names no ChatGPT account",
			Hint:    "sign in with: codework auth login --" + credentials.CodexID,
		}
	}
	h.Set("OpenAI-Beta", "responses=experimental")
	h.Set("originator", originator)
	if req.SessionID != "" {
		h.Set("session-id", req.SessionID)
		h.Set("x-client-request-id", req.SessionID)
	}
	return nil
}

// named tells whether a header is set by the model's entry or the settings.
func named(header string, sets ...map[string]string) bool {
	for _, set := range sets {
		for name, value := range set {
			if strings.EqualFold(name, header) && strings.TrimSpace(value) != "" {
				return true
			}
		}
	}
	return false
}
