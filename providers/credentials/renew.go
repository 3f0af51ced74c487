package credentials

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Facts of the sign-in that the Codex client of OpenAI is registered with.
const (
	codexTokenURL = "https://auth.openai.com/oauth/token"
	// CodexClientID is who asks, in the sign-in and in renewals.
	CodexClientID = "app_EMoamEEZ73f0CkXaXp7hrann"
	// accountClaim is where a Codex access token names its account.
	accountClaim = "https://api.openai.com/auth"
)

const (
	// renewBefore is how long before its end a login is renewed, so that a
	// request that starts now does not outlive its token on the way.
	renewBefore = time.Minute
	// requestTimeout bounds one renewal. It is generous: giving up on a
	// request that the other side has served costs the person a sign-in.
	requestTimeout = 30 * time.Second
	// maxAnswer bounds the answer to it, which has a few KiB.
	maxAnswer = 1 << 20
	// defaultLifetime is assumed when an answer does not tell one, which
	// RFC 6749 5.1 allows; real ones are days.
	defaultLifetime = time.Hour
	// maxLifetime keeps a nonsensical one from overflowing.
	maxLifetime = 366 * 24 * time.Hour
)

// renewal is what callers have in common who wait for the same answer.
type renewal struct {
	provider string
	refused  string // the access token that is to be replaced though not due
}

// flight is one renewal under way; the results may be read once done closes.
type flight struct {
	done  chan struct{}
	login *Login
	err   error
}

// renew lets callers wait for one renewal. It runs beside them, because an
// answer that nobody stores is a login that is lost.
func (s *Store) renew(ctx context.Context, r renewal) (*Login, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("renew the login for %s: %w", r.provider, err)
	}
	s.flights.mu.Lock()
	f := s.flights.by[r]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		s.flights.by[r] = f
		go func() {
			f.login, f.err = s.renewOnce(context.WithoutCancel(ctx), r)
			s.flights.mu.Lock()
			delete(s.flights.by, r)
			s.flights.mu.Unlock()
			close(f.done)
		}()
	}
	s.flights.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("renew the login for %s: %w", r.provider, ctx.Err())
	}
	if f.err != nil || f.login == nil {
		return nil, f.err
	}
	own := *f.login
	return &own, nil
}

// renewOnce renews a login unless another process has done so while this one
// waited for the lock.
func (s *Store) renewOnce(ctx context.Context, r renewal) (*Login, error) {
	h, err := hold(ctx, s.file)
	if err != nil {
		return nil, fmt.Errorf("renew the login for %s: %w", r.provider, err)
	}
	defer h.release()
	doc, damaged, err := h.read()
	var login *Login
	if err = cmp.Or(err, damaged); err == nil {
		login, err = doc.login(r.provider)
	}
	if err != nil {
		return nil, fmt.Errorf("renew the login for %s: credential file %s: %w", r.provider, h.file, err)
	}
	if login == nil || !s.due(login) && login.Access != r.refused {
		return login, nil
	}
	if login.Refresh == "" {
		return nil, over(r.provider, "it came without a refresh token")
	}
	// Before the refresh token is spent: a disk that cannot take the new one
	// should cost nothing.
	if err := h.stage(); err != nil {
		return nil, fmt.Errorf("renew the login for %s: credential file %s: %w", r.provider, h.file, reason(err))
	}
	renewed, err := s.ask(ctx, r.provider, login)
	if err != nil {
		return nil, err
	}
	if err := doc.put(r.provider, renewed); err != nil {
		return nil, fmt.Errorf("renew the login for %s: credential file %s: %w", r.provider, h.file, err)
	}
	if err := h.write(doc); err != nil {
		return nil, over(r.provider, fmt.Sprintf("the renewed one could not be written to %s (%v)", h.file, reason(err)))
	}
	return renewed, nil
}

// tokenClient sends refresh tokens to one place only: a redirect is an answer
// like any other, and the proxy variables of this process are not those of
// whoever asks.
func tokenClient(given *http.Client) *http.Client {
	var c http.Client
	if given != nil {
		c = *given
	} else {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil
		c.Transport = t
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

// ask spends the refresh token.
func (s *Store) ask(ctx context.Context, provider string, login *Login) (*Login, error) {
	if !SafeURL(s.tokenURL) {
		return nil, fmt.Errorf("renew the login for %s: the token address must be an https URL", provider)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {login.Refresh}, "client_id": {CodexClientID}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.tokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, fmt.Errorf("renew the login for %s: the token address is no URL", provider)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "codework")
	status, body, err := s.send(req)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %v", requestTimeout)
		}
		return nil, unrenewed(provider, Redact(err.Error(), login.Access, login.Refresh))
	}
	if status/100 == 2 {
		renewed, err := parseAnswer(body, login, s.now())
		if err != nil {
			// Possibly the word of something in between, so the login may be
			// as good as before.
			return nil, unrenewed(provider, "the answer has "+err.Error())
		}
		return renewed, nil
	}
	code, text := parseRefusal(body)
	what := fmt.Sprintf("HTTP %d", status)
	if text = Redact(text, login.Access, login.Refresh); text != "" {
		what += ": " + text
	}
	if status == http.StatusUnauthorized || slices.Contains(spent, code) {
		return nil, over(provider, "the provider does not renew it ("+what+")")
	}
	return nil, unrenewed(provider, what)
}

// unrenewed is the error of a renewal that may work another time.
func unrenewed(provider, what string) error {
	return &renewError{provider: provider, what: "renew the login for " + provider + ": " + what}
}

func (s *Store) send(req *http.Request) (status int, body []byte, err error) {
	client, err := s.client()
	if err != nil {
		return 0, nil, err
	}
	defer client.CloseIdleConnections() // the next request is hours away
	res, err := client.Do(req)
	if err != nil {
		// Without the address, which may be the user's own.
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err
		}
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return res.StatusCode, body, err
}

// spent are the codes for a refresh token that will never be taken again:
// RFC 6749 5.2, and those of OpenAI.
var spent = []string{"invalid_grant", "refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated"}

// parseAnswer makes the new login out of the old one and what a token
// endpoint answers. The old refresh token is gone by now, so it insists on
// nothing but the new access token. Its errors repeat nothing of the answer.
func parseAnswer(body []byte, old *Login, now time.Time) (*Login, error) {
	var a map[string]json.RawMessage
	if json.Unmarshal(body, &a) != nil || a == nil {
		return nil, errors.New("no JSON object in it")
	}
	renewed := *old
	if renewed.Access = text(a["access_token"]); renewed.Access == "" || !visible(renewed.Access) {
		return nil, errors.New("no usable access token in it")
	}
	// RFC 6749 6: without a new refresh token the old one stays good.
	if r := text(a["refresh_token"]); r != "" && visible(r) {
		renewed.Refresh = r
	}
	if account := AccountOf(renewed.Access); account != "" {
		renewed.AccountID = account
	}
	renewed.Expires = now.Add(lifetime(a["expires_in"])).UnixMilli()
	return &renewed, nil
}

// lifetime reads a number of seconds, also one that is written as a text.
func lifetime(raw json.RawMessage) time.Duration {
	seconds, err := strconv.ParseFloat(cmp.Or(text(raw), string(raw)), 64)
	if err != nil || math.IsNaN(seconds) || seconds <= 0 {
		return defaultLifetime
	}
	return time.Duration(min(seconds, maxLifetime.Seconds()) * float64(time.Second))
}

// text is a JSON text without blanks around it; empty when it is none.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return strings.TrimSpace(s)
}

// AccountOf reads the account out of a Codex access token, which is a JWT;
// empty when it names none.
// The signature is the provider's business: it gets the token back.
func AccountOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return ""
	}
	var claims, auth map[string]json.RawMessage
	if json.Unmarshal(payload, &claims) != nil || json.Unmarshal(claims[accountClaim], &auth) != nil {
		return ""
	}
	account := text(auth["chatgpt_account_id"])
	if !visible(account) {
		return ""
	}
	return account
}

// parseRefusal finds the code and the words in an error answer: those of
// RFC 6749 5.2 or an error object. A page is neither.
func parseRefusal(body []byte) (code, words string) {
	var a map[string]json.RawMessage
	if json.Unmarshal(body, &a) != nil {
		return "", ""
	}
	code, words = text(a["error"]), text(a["error_description"])
	var object map[string]json.RawMessage
	if json.Unmarshal(a["error"], &object) == nil {
		code = cmp.Or(text(object["code"]), text(object["type"]))
		words = cmp.Or(words, text(object["message"]))
	}
	return code, cmp.Or(words, text(a["message"]), code)
}
