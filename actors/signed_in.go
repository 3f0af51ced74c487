package actors

import (
	"context"
	"net/http"

	"codework/messages"
	"codework/providers/credentials"
)

// signedIn is a Streamer for a model that is reached with a stored login. Each
// request has the login as it is then, renewed when it is about to end, since
// an exchange may take longer than a token is good for. A token that is refused
// all the same is replaced once.
type signedIn struct {
	to       Streamer
	logins   *credentials.Store
	provider string
	endpoint bool // the login's endpoint counts, not one of the settings
}

func (s signedIn) Stream(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
	fail := func(f *messages.Failure) { emit(messages.StreamEvent{Kind: messages.StreamError, Failure: f}) }
	// Ends with ctx: a renewal that others have asked for too goes on without.
	go func() {
		login, err := s.logins.Fresh(ctx, s.provider)
		if err != nil {
			fail(credentials.Explain(err))
			return
		}
		own := s.with(req, login)
		first := true
		s.to.Stream(ctx, own, func(ev messages.StreamEvent) {
			if f := ev.Failure; first && f != nil && f.Status == http.StatusUnauthorized {
				login, err := s.logins.Renew(ctx, s.provider, own.APIKey)
				switch {
				case err != nil:
					f := credentials.Explain(err)
					f.Status = http.StatusUnauthorized
					fail(f)
					return
				case login != nil:
					s.to.Stream(ctx, s.with(req, login), emit)
					return
				}
			}
			first = false
			emit(ev)
		})
	}()
}

// with is the request with a login; one that was removed meanwhile changes
// nothing.
func (s signedIn) with(req *messages.Request, login *credentials.Login) *messages.Request {
	own := *req
	if login == nil {
		return &own
	}
	own.APIKey = login.Access
	own.Login = &messages.Login{AccountID: login.AccountID}
	if s.endpoint {
		own.Login.Endpoint = login.Endpoint()
	}
	return &own
}
