package signin

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// headerLimit is how long a browser may take to say what it wants, and to read
// the answer.
const headerLimit = 10 * time.Second

const donePage = `<!doctype html><meta charset="utf-8"><title>CodeWork</title>
<p>CodeWork has what it needs. You can close this page; the terminal says how it went.
`

// callback takes the code that the browser brings.
type callback struct {
	host  string // where it listens
	state string
	found chan found
	srv   *http.Server
	ended chan error
}

type found struct {
	code string
	err  error
}

func newCallback(l net.Listener, host, state string) *callback {
	c := &callback{host: host, state: state, found: make(chan found, 1), ended: make(chan error, 1)}
	c.srv = &http.Server{
		Handler:           c,
		ReadHeaderTimeout: headerLimit,
		WriteTimeout:      headerLimit,
		ErrorLog:          log.New(io.Discard, "", 0), // it would quote requests, which hold codes
	}
	go func() { c.ended <- c.srv.Serve(l) }()
	return c
}

// wait returns the code, and closes the listener and its connections in any
// case. It waits for none of them: browsers keep some open that they may need.
func (c *callback) wait(ctx context.Context) (string, error) {
	var got found
	serving := true
	select {
	case got = <-c.found:
	case got.err = <-c.ended:
		serving = false
		got.err = fmt.Errorf("listen for the browser: %w", got.err)
	case <-ctx.Done():
		got.err = ctx.Err()
	}
	_ = c.srv.Close()
	if serving {
		<-c.ended
	}
	return got.code, got.err
}

// ServeHTTP takes the first code that comes with the right state. What has
// another state ends nothing: any page can send the browser here.
func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Connection", "close")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	q := r.URL.Query()
	switch {
	case !c.named(r.Host):
		http.Error(w, "not the name of this page", http.StatusForbidden)
	case r.URL.Path != callbackPath:
		http.Error(w, "no such page", http.StatusNotFound)
	case r.Method != http.MethodGet:
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
	case subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(c.state)) != 1:
		http.Error(w, "this belongs to another sign-in; go back to the terminal", http.StatusBadRequest)
	case !visible(q.Get("code"), maxToken):
		answer(w, http.StatusBadRequest, "text/plain", "there is no code; go back to the terminal\n")
		if q.Has("error") {
			c.take(found{err: refusedBy(q)})
		}
	default:
		h.Set("Content-Security-Policy", "default-src 'none'")
		answer(w, http.StatusOK, "text/html", donePage)
		c.take(found{code: q.Get("code")})
	}
}

// answer sends a page as a whole, because the connection may be closed right
// after. The code counts also if nobody reads it.
func answer(w http.ResponseWriter, status int, kind, page string) {
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, page)
	_ = http.NewResponseController(w).Flush()
}

func (c *callback) take(f found) {
	select {
	case c.found <- f:
	default: // the first one counts
	}
}

// named tells whether a Host header is a name of this listener. A page that
// made its own name point here is not let in.
func (c *callback) named(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback() || strings.EqualFold(host, c.host)
}

// refusedBy is the error that an authorization server sent along (RFC 6749
// 4.1.2.1). Of its words only the code is repeated, and only if it is one.
func refusedBy(q url.Values) error {
	switch code := q.Get("error"); code {
	case "access_denied":
		return ErrDenied
	case "invalid_request", "unauthorized_client", "unsupported_response_type", "invalid_scope", "server_error", "temporarily_unavailable":
		return fmt.Errorf("%w: %s", ErrDenied, code)
	}
	return ErrDenied
}

var errNoCode = errors.New("there is no code in that")

// parsePasted finds the code, and the state if there is one, in what a person
// copied: the whole address, code#state, a query, or the code alone. A code is
// visible ASCII. The errors repeat nothing of the text.
func parsePasted(s string) (code, state string, err error) {
	s = strings.Trim(strings.TrimSpace(s), `"'<>`)
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", "", errNoCode
	}
	query, isQuery := "", false
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil {
			return "", "", errNoCode
		}
		query, isQuery = u.RawQuery, true
	} else if rest, ok := strings.CutPrefix(s, "?"); ok || strings.Contains(s, "=") && !strings.Contains(s, "#") {
		if q, err := url.ParseQuery(rest); ok || err == nil && (q.Has("code") || q.Has("error")) {
			query, isQuery = rest, true
		}
	}
	if isQuery {
		q, err := url.ParseQuery(query)
		switch {
		case err != nil:
			return "", "", errNoCode
		case q.Get("code") == "" && q.Has("error"):
			return "", "", refusedBy(q)
		}
		code, state = q.Get("code"), q.Get("state")
	} else {
		code, state, _ = strings.Cut(s, "#")
	}
	if !visible(code, maxToken) {
		return "", "", errNoCode
	}
	return code, state, nil
}
