package signin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"codework/providers/credentials"
)

// Facts of the client that OpenAI knows Codex by.
const (
	codexIssuer = "https://auth.openai.com"
	codexScope  = "openid profile email offline_access"
	originator  = "codework"
	// codexRedirect is registered as it is, port included.
	codexRedirect       = "http://localhost:1455" + callbackPath
	codexDeviceRedirect = codexIssuer + "/deviceauth/callback"
	callbackPath        = "/auth/callback"
	callbackPort        = "1455"
	callbackHost        = "127.0.0.1"
)

// pasteTries is how often the person may paste something that is of no use.
const pasteTries = 3

// Codex signs in to OpenAI Codex by a browser on this machine, which is sent
// back to a port here. When another program has that port, the person is asked
// for the address that the browser ended at.
func Codex(ctx context.Context, o Options) (credentials.Credentials, error) {
	f := begin(credentials.CodexID, o)
	login, err := f.codex(ctx)
	return f.end(ctx, login, err)
}

func (f *flow) codex(ctx context.Context) (credentials.Login, error) {
	verifier, state := newVerifier(), newState()
	f.keep(verifier, state)
	host := f.CallbackHost
	if host == "" {
		host = callbackHost
	}
	// Before the browser opens: it may be back at once.
	l, err := f.Listen(ctx, "tcp", net.JoinHostPort(host, callbackPort))
	busy := errors.Is(err, syscall.EADDRINUSE)
	switch {
	case busy && f.Paste == nil:
		return credentials.Login{}, fmt.Errorf("%w: %s", ErrPortBusy, net.JoinHostPort(host, callbackPort))
	case busy:
		f.Notice("another program uses port " + callbackPort + ", so the browser cannot report back by itself")
	case err != nil:
		return credentials.Login{}, fmt.Errorf("listen for the browser: %w", err)
	}
	address := f.at(codexIssuer+"/oauth/authorize") + "?" + url.Values{
		"response_type":              {"code"},
		"client_id":                  {credentials.CodexClientID},
		"redirect_uri":               {codexRedirect},
		"scope":                      {codexScope},
		"code_challenge":             {challenge(verifier)},
		"code_challenge_method":      {"S256"},
		"state":                      {state},
		"id_token_add_organizations": {"true"},
		"codex_cli_simplified_flow":  {"true"},
		"originator":                 {originator},
	}.Encode()
	limit, cancel := context.WithTimeout(ctx, personLimit)
	defer cancel()
	var code string
	if busy {
		f.Open(address)
		code, err = f.pasted(limit, state)
	} else {
		c := newCallback(l, host, state)
		f.Open(address)
		code, err = c.wait(limit)
	}
	if err != nil {
		if ctx.Err() == nil && limit.Err() != nil {
			err = fmt.Errorf("%w; nobody approved it in time", ErrExpired)
		}
		return credentials.Login{}, err
	}
	return f.exchange(ctx, code, verifier, codexRedirect)
}

// pasted asks the person for what the browser got.
func (f *flow) pasted(ctx context.Context, state string) (string, error) {
	for n := 1; ; n++ {
		line, err := f.Paste(ctx)
		if err != nil {
			return "", fmt.Errorf("ask for the address: %w", err)
		}
		code, got, err := parsePasted(line)
		if err == nil && got != "" && got != state {
			err = errors.New("it belongs to another sign-in")
		}
		switch {
		case err == nil:
			return code, nil
		case n == pasteTries || errors.Is(err, ErrDenied):
			return "", err
		}
		f.Notice(err.Error() + "; try again")
	}
}

// CodexDevice signs in to OpenAI Codex by a browser on any machine, where the
// person enters a code.
func CodexDevice(ctx context.Context, o Options) (credentials.Credentials, error) {
	f := begin(credentials.CodexID, o)
	login, err := f.codexDevice(ctx)
	return f.end(ctx, login, err)
}

func (f *flow) codexDevice(ctx context.Context) (credentials.Login, error) {
	const accounts = codexIssuer + "/api/accounts/deviceauth/"
	none := credentials.Login{}
	r, err := f.postJSON(ctx, accounts+"usercode", map[string]string{"client_id": credentials.CodexClientID})
	switch {
	case err != nil:
		return none, fmt.Errorf("start: %w", err)
	case r.status == http.StatusNotFound:
		return none, fmt.Errorf("%w: signing in by a code is not available for this account", ErrDenied)
	case !r.ok():
		return none, f.refused("start", r)
	}
	m := r.object()
	id, userCode := text(m["device_auth_id"]), text(m["user_code"])
	if !visible(id, maxToken) || !visible(userCode, maxUserCode) {
		return none, errors.New("start: the answer has no usable code")
	}
	f.keep(id)
	interval, _ := seconds(m["interval"])
	f.Code(f.at(codexIssuer+"/codex/device"), userCode, time.Now().Add(personLimit))
	var code, verifier string
	err = device{interval: interval, limit: personLimit}.poll(ctx, func(ctx context.Context) (state, time.Duration, error) {
		r, err := f.postJSON(ctx, accounts+"token", map[string]string{"device_auth_id": id, "user_code": userCode})
		if err != nil {
			return stumbled, 0, err
		}
		if !r.ok() {
			return f.judge(r, http.StatusForbidden, http.StatusNotFound)
		}
		m := r.object()
		code, verifier = text(m["authorization_code"]), text(m["code_verifier"])
		if code == "" && m["error"] != nil {
			return f.judge(r)
		}
		if !visible(code, maxToken) || !visible(verifier, maxToken) {
			return granted, 0, errors.New("the approval has no usable code")
		}
		f.keep(code, verifier)
		return granted, 0, nil
	})
	if err != nil {
		return none, err
	}
	return f.exchange(ctx, code, verifier, codexDeviceRedirect)
}

// exchange makes a login of a code. A code is good once, so this is not tried
// again.
func (f *flow) exchange(ctx context.Context, code, verifier, redirect string) (credentials.Login, error) {
	none := credentials.Login{}
	f.keep(code)
	form := url.Values{
		"grant_type":    {"authorization_code"},
		"client_id":     {credentials.CodexClientID},
		"code":          {code},
		"code_verifier": {verifier},
		"redirect_uri":  {redirect},
	}
	r, err := f.send(ctx, http.MethodPost, codexIssuer+"/oauth/token", nil, "application/x-www-form-urlencoded", []byte(form.Encode()))
	const what = "exchange the code"
	switch {
	case err != nil:
		return none, fmt.Errorf("%s: %w", what, err)
	case !r.ok():
		return none, f.refused(what, r)
	}
	m := r.object()
	l := credentials.Login{Access: text(m["access_token"]), Refresh: text(m["refresh_token"])}
	lifetime, hasLifetime := seconds(m["expires_in"])
	var missing []string
	for _, field := range []struct {
		name string
		good bool
	}{
		{"access_token", visible(l.Access, maxToken)},
		{"refresh_token", visible(l.Refresh, maxToken)},
		{"expires_in", hasLifetime},
	} {
		if !field.good {
			missing = append(missing, field.name)
		}
	}
	if len(missing) > 0 {
		return none, fmt.Errorf("%s: the answer has no usable %s", what, strings.Join(missing, ", "))
	}
	if l.AccountID = credentials.AccountOf(l.Access); l.AccountID == "" {
		return none, fmt.Errorf("%s: the token names no ChatGPT account", what)
	}
	l.Expires = time.Now().Add(lifetime).UnixMilli()
	return l, nil
}

// newVerifier makes a PKCE verifier (RFC 7636 4.1) of 32 random bytes.
func newVerifier() string { return base64.RawURLEncoding.EncodeToString(random(32)) }

// newState makes a text that no other page can know.
func newState() string { return hex.EncodeToString(random(16)) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: the program ends before it would
	return b
}

// challenge is the S256 of a verifier (RFC 7636 4.2).
func challenge(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
