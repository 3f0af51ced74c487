package credentials

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"codework/messages"
)

// ErrSignIn means that a stored login is over: nothing but signing in again
// helps, and the message says how.
var ErrSignIn = errors.New("sign in again")

// Options say where logins are stored and how they are renewed.
type Options struct {
	// File is the credential file. Without one nothing is stored and Save
	// fails.
	File string
	// Client sends the requests that renew a login; redirects are not
	// followed. Nil means a client of its own that does not look at the proxy
	// variables of this process.
	Client *http.Client
	// TokenURL is where a Codex login is renewed; empty means OpenAI's.
	TokenURL string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Log is told when a damaged file was set aside; nil means slog.Default.
	Log *slog.Logger
}

// Store keeps the logins of one credential file. It is safe for concurrent
// use, also by many processes and by many Stores of one file.
//
// Its errors are one line for a person and hold no code and no token. They
// wrap ErrSignIn or the error of the caller's context, and nothing else that
// a caller should depend on.
type Store struct {
	file     string
	client   func() (*http.Client, error)
	tokenURL string
	now      func() time.Time
	log      *slog.Logger

	flights *flights
}

// flights are the renewals under way, of a Store and of those that With made
// of it.
type flights struct {
	mu sync.Mutex
	by map[renewal]*flight // guarded by mu
}

// OpenStore makes a Store. It reads nothing yet, so it cannot fail.
func OpenStore(o Options) *Store {
	s := &Store{file: o.File, tokenURL: o.TokenURL, now: o.Now, log: o.Log, flights: &flights{by: map[renewal]*flight{}}}
	if s.tokenURL == "" {
		s.tokenURL = codexTokenURL
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.client = func() (*http.Client, error) { return tokenClient(o.Client), nil }
	return s
}

// With returns the same Store for a caller that reaches the network another
// way: its client is made when a renewal needs one.
func (s *Store) With(client func() (*http.Client, error)) *Store {
	own := *s
	own.client = func() (*http.Client, error) {
		c, err := client()
		if err != nil {
			return nil, err
		}
		return tokenClient(c), nil
	}
	return &own
}

// Close waits until the renewals that are under way are stored, also those
// that their callers have left; the time limits of the lock and of the request
// bound it. A process that ends without it may lose a login. The Store can be
// used afterwards.
func (s *Store) Close() {
	s.flights.mu.Lock()
	running := slices.Collect(maps.Values(s.flights.by))
	s.flights.mu.Unlock()
	for _, f := range running {
		<-f.done
	}
}

// Credentials are a login together with its provider, as auth.save gets them.
type Credentials struct {
	Provider string `json:"provider"` // openai-codex or github-copilot
	Login
}

// Info is what may be told about a stored login: everything but its tokens.
type Info struct {
	Provider        string `json:"provider"`
	Expires         int64  `json:"expires"` // epoch milliseconds; 0 is never
	AccountID       string `json:"accountId,omitempty"`
	APIEndpoint     string `json:"apiEndpoint,omitempty"`
	EnterpriseURL   string `json:"enterpriseUrl,omitempty"`
	AvailableModels *int   `json:"availableModels,omitempty"` // nil: not known
}

func (l *Login) info(provider string) *Info {
	if l == nil {
		return nil
	}
	i := &Info{Provider: provider, Expires: l.Expires, AccountID: l.AccountID, APIEndpoint: l.APIEndpoint, EnterpriseURL: l.EnterpriseURL}
	if l.AvailableModelIDs != nil {
		n := len(l.AvailableModelIDs)
		i.AvailableModels = &n
	}
	return i
}

// Save checks and stores a login in place of the one that was there. A file
// that is damaged is renamed to <file>.bad-<time> first, and the log says so.
func (s *Store) Save(ctx context.Context, c Credentials) (Info, error) {
	login, err := c.checked()
	if err != nil {
		return Info{}, fmt.Errorf("save the login: %w", err)
	}
	h, err := hold(ctx, s.file)
	if err != nil {
		return Info{}, fmt.Errorf("save the login: %w", err)
	}
	defer h.release()
	doc, damaged, err := h.read()
	if err != nil {
		return Info{}, fmt.Errorf("save the login: credential file %s: %w", h.file, err)
	}
	if damaged != nil {
		kept, err := h.setAside(s.now())
		if err != nil {
			return Info{}, fmt.Errorf("save the login: credential file %s: %w; it could not be set aside: %w", h.file, damaged, err)
		}
		s.log.Warn("the credential file was damaged; other logins that it held are gone from it", "file", h.file, "kept", kept, "cause", damaged.Error())
		doc = document{}
	}
	if err := doc.put(c.Provider, login); err != nil {
		return Info{}, fmt.Errorf("save the login: credential file %s: %w", h.file, err)
	}
	if err := h.write(doc); err != nil {
		return Info{}, fmt.Errorf("save the login: credential file %s: %w", h.file, reason(err))
	}
	return *login.info(c.Provider), nil
}

// Status tells about the stored login, nil when there is none. It writes
// nothing and asks nobody.
func (s *Store) Status(_ context.Context, provider string) (*Info, error) {
	login, err := s.stored(provider)
	return login.info(provider), err
}

// Refresh renews the stored login when it ends within a minute, and tells
// about it; nil means there is none. A Copilot login does not expire, so
// there this is Status.
func (s *Store) Refresh(ctx context.Context, provider string) (*Info, error) {
	login, err := s.stored(provider)
	if err == nil && login != nil && logins[provider].refreshes && s.due(login) {
		login, err = s.renew(ctx, renewal{provider: provider})
	}
	if err != nil {
		return nil, err
	}
	return login.info(provider), nil
}

// Fresh returns the stored login for use in a request, renewed when it ends
// within a minute; nil means there is none.
func (s *Store) Fresh(ctx context.Context, provider string) (*Login, error) {
	login, err := s.stored(provider)
	if err != nil || login == nil {
		return nil, err
	}
	if logins[provider].refreshes {
		if !s.due(login) {
			return login, nil
		}
		return s.renew(ctx, renewal{provider: provider})
	}
	if login.due(s.now(), 0) {
		return nil, over(provider, "it has expired")
	}
	return login, nil
}

// Renew is Fresh after a provider has refused an access token with 401: the
// login is renewed although it should still be good, unless another caller
// or process has replaced that token meanwhile. A login that cannot be
// renewed is an error that wraps ErrSignIn.
func (s *Store) Renew(ctx context.Context, provider, refused string) (*Login, error) {
	login, err := s.stored(provider)
	if err != nil || login == nil {
		return nil, err
	}
	if login.Access != refused {
		return s.Fresh(ctx, provider)
	}
	if !logins[provider].refreshes {
		return nil, over(provider, "its token was refused")
	}
	return s.renew(ctx, renewal{provider, refused})
}

// Logout removes the stored login, wherever in the file it stands. Nothing
// stored is fine. A damaged file is an error and stays as it is: nobody can
// tell whether the login is in it.
func (s *Store) Logout(ctx context.Context, provider string) error {
	if err := knownProvider(provider); err != nil {
		return err
	}
	if login, err := s.stored(provider); err == nil && login == nil {
		return nil // do not make a folder for a lock
	}
	h, err := hold(ctx, s.file)
	if err != nil {
		return fmt.Errorf("remove the login for %s: %w", provider, err)
	}
	defer h.release()
	doc, damaged, err := h.read()
	found := false
	if err = cmp.Or(err, damaged); err == nil {
		found, err = doc.remove(provider)
	}
	if err != nil {
		return fmt.Errorf("remove the login for %s: credential file %s: %w; repair or remove it", provider, h.file, err)
	}
	if !found {
		return nil
	}
	if err := h.write(doc); err != nil {
		return fmt.Errorf("remove the login for %s: credential file %s: %w", provider, h.file, reason(err))
	}
	return nil
}

// stored reads without a lock: the file is only ever replaced as a whole.
func (s *Store) stored(provider string) (*Login, error) {
	if err := knownProvider(provider); err != nil {
		return nil, err
	}
	login, failure := ReadLogin(s.file, provider)
	if failure != nil {
		return nil, plain(failure)
	}
	return login, nil
}

func (s *Store) due(l *Login) bool { return l.due(s.now(), renewBefore) }

// plain makes one line of a failure and its hint.
func plain(f *messages.Failure) error { return errors.New(f.Message + "; " + f.Hint) }

// over is the error of a login that cannot be renewed.
func over(provider, why string) error {
	return &renewError{provider: provider, what: "the login for " + provider + " is over: " + why, over: true}
}

// renewError is why a login is not good for a request.
type renewError struct {
	provider, what string
	over           bool // only signing in again helps
}

func (e *renewError) Error() string {
	if e.over {
		return e.what + "; " + ErrSignIn.Error() + " with: " + signInCommand(e.provider)
	}
	return e.what + "; try again later, or sign in with: " + signInCommand(e.provider)
}

func (e *renewError) Unwrap() error {
	if e.over {
		return ErrSignIn
	}
	return nil
}

func signInCommand(provider string) string { return "codework auth login --" + provider }

// Explain gives an error of a Store the form that the failures of requests
// have; nil for none.
func Explain(err error) *messages.Failure {
	if err == nil {
		return nil
	}
	f := &messages.Failure{Type: messages.FailAuthentication, Code: messages.CodeInvalid, Message: err.Error()}
	var renew *renewError
	if errors.As(err, &renew) {
		f.Message = renew.what
		if renew.over {
			f.Code, f.Hint = messages.CodeExpired, "sign in again with: "+signInCommand(renew.provider)
		} else {
			// Most likely the network, or a service that is down for a while.
			f.Type, f.Code, f.Retryable = messages.FailUnavailable, "", true
			f.Hint = "try again later, or sign in with: " + signInCommand(renew.provider)
		}
	}
	return f
}

func knownProvider(provider string) error {
	if _, ok := logins[provider]; !ok {
		// The name is not repeated: it may be anything.
		return fmt.Errorf("no such login; there are %s and %s", CodexID, CopilotID)
	}
	return nil
}

// maxExpires is the largest number that every reader of JSON keeps.
const maxExpires = 1<<53 - 1

// checked returns the login without blanks around its values and without
// what belongs to the other provider. No error repeats a value.
func (c Credentials) checked() (*Login, error) {
	if err := knownProvider(c.Provider); err != nil {
		return nil, err
	}
	l := c.Login
	for _, v := range []*string{&l.Access, &l.Refresh, &l.AccountID, &l.EnterpriseURL, &l.APIEndpoint} {
		*v = strings.TrimSpace(*v)
	}
	if c.Provider == CodexID {
		l.EnterpriseURL, l.APIEndpoint, l.AvailableModelIDs = "", "", nil
	} else {
		l.AccountID = ""
	}
	for _, field := range []struct {
		name, value string
		required    bool
	}{
		{"access", l.Access, true},
		// A Copilot login is never renewed, so that nothing is lost without.
		{"refresh", l.Refresh, c.Provider == CodexID},
		{"accountId", l.AccountID, c.Provider == CodexID},
	} {
		if field.value == "" && field.required {
			return nil, fmt.Errorf("%s: expected a text that is not empty", field.name)
		}
		if !visible(field.value) {
			return nil, fmt.Errorf("%s: holds a blank or another character that cannot be sent in a header", field.name)
		}
	}
	if l.Expires < 0 || l.Expires > maxExpires {
		return nil, errors.New("expires: expected milliseconds since 1970, or 0 for never")
	}
	if l.APIEndpoint != "" && !SafeURL(l.APIEndpoint) {
		return nil, errors.New("apiEndpoint: expected an https URL")
	}
	if e := l.EnterpriseURL; e != "" && !SafeURL(e) && (strings.Contains(e, "://") || !SafeURL("https://"+e)) {
		return nil, errors.New("enterpriseUrl: expected an https URL or the name of a host")
	}
	for _, id := range l.AvailableModelIDs {
		if strings.TrimSpace(id) == "" {
			return nil, errors.New("availableModelIds: expected texts that are not empty")
		}
	}
	return &l, nil
}

// visible tells whether a text has only those characters that tokens are made
// of: visible ASCII.
func visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// SafeURL tells whether a token may be sent there: over TLS, or without it to
// this machine. Paths are appended to these addresses, so they end with one.
func SafeURL(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !visible(s) {
		return false
	}
	if u.Scheme == "http" {
		ip := net.ParseIP(u.Hostname())
		return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	}
	return u.Scheme == "https"
}
