package main

import (
	"context"

	"codework/messages"
	"codework/providers/credentials"
)

// logins are the stored logins as the server's calls see them.
type logins struct{ store *credentials.Store }

func (l logins) Save(ctx context.Context, c messages.OAuthCredentials) (messages.OAuthInfo, error) {
	info, err := l.store.Save(ctx, credentials.Credentials{Provider: c.Provider, Login: credentials.Login{
		Access: c.Access, Refresh: c.Refresh, Expires: c.Expires, AccountID: c.AccountID,
		EnterpriseURL: c.EnterpriseURL, APIEndpoint: c.APIEndpoint, AvailableModelIDs: c.AvailableModelIDs,
	}})
	return messages.OAuthInfo(info), err
}

func (l logins) Status(ctx context.Context, provider string) (*messages.OAuthInfo, error) {
	info, err := l.store.Status(ctx, provider)
	return (*messages.OAuthInfo)(info), err
}

func (l logins) Refresh(ctx context.Context, provider string) (*messages.OAuthInfo, error) {
	info, err := l.store.Refresh(ctx, provider)
	return (*messages.OAuthInfo)(info), err
}

func (l logins) Logout(ctx context.Context, provider string) error {
	return l.store.Logout(ctx, provider)
}
