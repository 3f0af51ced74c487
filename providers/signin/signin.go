// Package signin lets a person sign in to OpenAI Codex and GitHub Copilot.
//
// It prints, stores and logs nothing: what the person has to see goes through
// the functions of Options, and the login is what a call returns. A call waits
// for the person until the sign-in expires, 15 minutes as a rule, and for a
// service for 30 seconds at a time; it ends with its context at once. Nothing
// of it is left running when it has returned.
//
// No error and no notice holds a token, a code or a verifier: they are masked
// by value, and by their looks, in whatever a service says.
package signin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"codework/providers/credentials"
)

var (
	// ErrPortBusy means that another program has the port of the callback and
	// that nobody is there who could paste the address instead.
	ErrPortBusy = errors.New("the port of the sign-in callback is in use")
	// ErrExpired means that nobody approved the sign-in in time.
	ErrExpired = errors.New("the sign-in has expired")
	// ErrDenied means that the sign-in was refused, by the person or for the
	// account.
	ErrDenied = errors.New("the sign-in was denied")
)

// Options say how to reach the person and the services. Its functions are
// called one at a time and should return soon, but for Paste; nil ones are not
// called.
type Options struct {
	// Open is given the address that the person has to open in a browser.
	Open func(address string)
	// Code is given the address and the code that the person has to enter
	// there, and until when.
	Code func(address, userCode string, until time.Time)
	// Paste asks the person for the address that the browser was sent to. It
	// should return when the context ends. Nil means that nobody can be asked.
	Paste func(ctx context.Context) (string, error)
	// Notice is given a line about what went differently.
	Notice func(text string)

	// CallbackHost is where the Codex callback listens; empty means 127.0.0.1.
	// Its port is registered and cannot be chosen.
	CallbackHost string
	// Listen opens the callback's listener; nil means the network's own.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Client sends the requests; redirects are not followed. Nil means a
	// client of its own, which looks at the proxy variables of this process.
	Client *http.Client
	// URL is where all services are instead of their own addresses, for
	// tests: https://host/path is asked for at URL/host/path.
	URL string
}

const (
	// requestTimeout bounds one request to a service.
	requestTimeout = 30 * time.Second
	// personLimit is how long the person may take, as Codex has it.
	personLimit = 15 * time.Minute
	// maxAnswer bounds an answer; the list of models has some 100 KiB.
	maxAnswer = 4 << 20
	// maxLifetime keeps a nonsensical lifetime from overflowing.
	maxLifetime = 366 * 24 * time.Hour
)

// flow is one sign-in.
type flow struct {
	Options
	provider string
	client   *http.Client
	secrets  []string // what no message may hold
}

func begin(provider string, o Options) *flow {
	f := &flow{Options: o, provider: provider}
	var c http.Client
	if o.Client != nil {
		c = *o.Client
	} else {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DisableKeepAlives = true // the requests are few and seconds apart
		c.Transport = t
	}
	// A code or token goes to the address it is meant for and nowhere else.
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	f.client = &c
	if f.Open == nil {
		f.Open = func(string) {}
	}
	if f.Code == nil {
		f.Code = func(string, string, time.Time) {}
	}
	if f.Notice == nil {
		f.Notice = func(string) {}
	}
	if f.Listen == nil {
		f.Listen = new(net.ListenConfig).Listen
	}
	return f
}

// end gives what a sign-in came to the form in which callers get it.
func (f *flow) end(ctx context.Context, login credentials.Login, err error) (credentials.Credentials, error) {
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return credentials.Credentials{}, fmt.Errorf("sign in to %s: %w", f.provider, err)
	}
	return credentials.Credentials{Provider: f.provider, Login: login}, nil
}

// keep remembers what no message may hold.
func (f *flow) keep(secrets ...string) { f.secrets = append(f.secrets, secrets...) }

// words makes what a service said fit to be shown.
func (f *flow) words(s string) string { return credentials.Redact(s, f.secrets...) }

// at is the address that is asked for in place of one of a service.
func (f *flow) at(address string) string {
	if f.URL == "" {
		return address
	}
	return strings.TrimRight(f.URL, "/") + "/" + strings.TrimPrefix(address, "https://")
}

// reply is the answer of a service.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) ok() bool { return r.status/100 == 2 }

// object are the members of a JSON object, nil when the body is none.
func (r reply) object() map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(r.body, &m) != nil {
		return nil
	}
	return m
}

// refusal is the code of an error answer (RFC 6749 5.2, or an error object)
// and its words.
func (r reply) refusal() (code, says string) {
	m := r.object()
	code, says = text(m["error"]), text(m["error_description"])
	var inner map[string]json.RawMessage
	if json.Unmarshal(m["error"], &inner) == nil {
		code = cmp.Or(text(inner["code"]), text(inner["type"]))
		says = cmp.Or(says, text(inner["message"]))
	}
	return code, cmp.Or(says, text(m["message"]))
}

// refused makes an error of an answer that is none to be used.
func (f *flow) refused(what string, r reply) error {
	code, says := r.refusal()
	told := f.words(cmp.Or(says, code))
	if told == "" {
		return fmt.Errorf("%s: HTTP %d", what, r.status)
	}
	return fmt.Errorf("%s: HTTP %d: %s", what, r.status, told)
}

// send asks a service. Its errors are about the way there and back, and worth
// another try unless the context has ended.
func (f *flow) send(ctx context.Context, method, address string, header http.Header, kind string, body []byte) (reply, error) {
	limit, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(limit, method, f.at(address), bytes.NewReader(body))
	if err != nil {
		return reply{}, errors.New("no usable address") // without it: it may be anything
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("Accept", "application/json")
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", originator)
	}
	res, err := f.client.Do(req)
	var data []byte
	if err == nil {
		defer res.Body.Close()
		data, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	}
	switch {
	case err == nil:
		return reply{res.StatusCode, res.Header, data}, nil
	case ctx.Err() != nil:
		return reply{}, ctx.Err()
	case limit.Err() != nil:
		return reply{}, fmt.Errorf("no answer from %s within %v", req.URL.Host, requestTimeout)
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	return reply{}, fmt.Errorf("ask %s: %s", req.URL.Host, f.words(err.Error()))
}

func (f *flow) postJSON(ctx context.Context, address string, v any) (reply, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return reply{}, err
	}
	return f.send(ctx, http.MethodPost, address, nil, "application/json", body)
}

// text is a JSON text without blanks around it; empty when it is none.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return strings.TrimSpace(s)
}

// seconds reads a number of seconds, also one that is written as a text.
func seconds(raw json.RawMessage) (time.Duration, bool) {
	n, err := strconv.ParseFloat(cmp.Or(text(raw), string(raw)), 64)
	if err != nil || math.IsNaN(n) || n <= 0 {
		return 0, false
	}
	return time.Duration(min(n, maxLifetime.Seconds()) * float64(time.Second)), true
}

// visible tells whether a text is made of visible ASCII, as codes and tokens
// are, and of no more than most characters.
func visible(s string, most int) bool {
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

const (
	// maxToken is more than any token or code has.
	maxToken = 64 << 10
	// maxUserCode is more than a person would type.
	maxUserCode = 64
)

// pause waits, or returns the end of the context.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
