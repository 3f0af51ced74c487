package signin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"codework/providers/credentials"
	"codework/providers/signin/signintest"
)

// soon bounds what should take no time at all.
const soon = 20 * time.Second

// browsed is what a sign-in by a browser came to.
type browsed struct {
	login credentials.Credentials
	err   error
}

// signInBrowser signs in while browse plays the browser, which is given the
// page to open and the address of the callback's listener.
func signInBrowser(t *testing.T, s *signintest.Server, browse func(opened, callback string)) browsed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	w := &told{}
	o := w.options(s)
	listening := ""
	o.Listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		if network != "tcp" || address != "127.0.0.1:1455" {
			t.Errorf("listens on %s %s", network, address)
		}
		l, err := new(net.ListenConfig).Listen(ctx, network, "127.0.0.1:0")
		if err == nil {
			listening = l.Addr().String()
		}
		return l, err
	}
	opened := make(chan string, 1)
	o.Open = func(address string) { opened <- address }
	done := make(chan browsed, 1)
	go func() {
		login, err := Codex(ctx, o)
		done <- browsed{login, err}
	}()
	select {
	case address := <-opened:
		browse(address, listening)
	case b := <-done:
		t.Fatalf("over before the browser opened: %v", b.err)
	}
	b := <-done
	if l, err := net.Listen("tcp", listening); err != nil {
		t.Errorf("the port is still in use: %v", err)
	} else {
		l.Close()
	}
	clean(t, s, w, b.err)
	return b
}

// agree opens the page, where the person agrees, and returns where the browser
// is sent.
func agree(t *testing.T, s *signintest.Server, opened string) *url.URL {
	t.Helper()
	c := http.Client{Transport: s, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := c.Get(opened)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	to, err := res.Location()
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// visit asks the callback for an address, by the name that it has for a browser.
func visit(t *testing.T, callback, method, name, address string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+callback+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = name
	c := http.Client{Timeout: soon, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(page)
}

func TestCodexSignsInByABrowser(t *testing.T) {
	s := &signintest.Server{}
	b := signInBrowser(t, s, func(opened, callback string) {
		if !strings.HasPrefix(opened, "https://auth.openai.com/oauth/authorize?") {
			t.Errorf("opened %s", opened)
		}
		to := agree(t, s, opened)
		status, page := visit(t, callback, "GET", to.Host, to.RequestURI())
		if status != 200 || !strings.Contains(page, "close this page") || strings.Contains(page, to.Query().Get("code")) {
			t.Errorf("%d %s", status, page)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	if b.login.Provider != "openai-codex" || b.login.Access != signintest.AccessToken || b.login.Refresh != signintest.RefreshToken ||
		b.login.AccountID != signintest.Account || time.Until(time.UnixMilli(b.login.Expires)).Round(time.Hour) != 240*time.Hour {
		t.Errorf("got %+v", b.login)
	}
}

// Browsers open connections that they may need; they hold nothing up.
func TestIdleConnectionsEndWithTheSignIn(t *testing.T) {
	s := &signintest.Server{}
	var idle net.Conn
	b := signInBrowser(t, s, func(opened, callback string) {
		to := agree(t, s, opened)
		var err error
		if idle, err = net.Dial("tcp", callback); err != nil {
			t.Fatal(err)
		}
		if status, _ := visit(t, callback, "GET", to.Host, to.RequestURI()); status != 200 {
			t.Errorf("%d", status)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	defer idle.Close()
	if err := idle.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still open: %v", err)
	}
}

// What is not the browser coming back is refused, and ends nothing.
func TestTheCallbackWaitsForTheRightOne(t *testing.T) {
	s := &signintest.Server{}
	b := signInBrowser(t, s, func(opened, callback string) {
		to := agree(t, s, opened)
		state, good := to.Query().Get("state"), to.RequestURI()
		for _, c := range []struct {
			name, method, host, address string
			status                      int
		}{
			{"wrong path", "GET", to.Host, "/?" + to.RawQuery, 404},
			{"icon", "GET", to.Host, "/favicon.ico", 404},
			{"wrong state", "GET", to.Host, "/auth/callback?code=ac_evil&state=0123", 400},
			{"no state", "GET", to.Host, "/auth/callback?code=ac_evil", 400},
			{"no code", "GET", to.Host, "/auth/callback?state=" + state, 400},
			{"odd code", "GET", to.Host, "/auth/callback?code=a%0Ab&state=" + state, 400},
			{"error of another", "GET", to.Host, "/auth/callback?error=access_denied&state=0123", 400},
			{"post", "POST", to.Host, good, 405},
			{"a name that was made to point here", "GET", "evil.example:1455", good, 403},
		} {
			if status, page := visit(t, callback, c.method, c.host, c.address); status != c.status || strings.Contains(page, "ac_") {
				t.Errorf("%s: %d %s", c.name, status, page)
			}
		}
		if status, _ := visit(t, callback, "GET", "127.0.0.1:1455", good); status != 200 {
			t.Errorf("the right one: %d", status)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
}

func TestADenialInTheBrowserEndsTheSignIn(t *testing.T) {
	s := &signintest.Server{}
	for code, want := range map[string]string{"access_denied": "", "server_error": ": server_error", "%1b%5b2J": ""} {
		b := signInBrowser(t, s, func(opened, callback string) {
			state := agree(t, s, opened).Query().Get("state")
			if status, _ := visit(t, callback, "GET", "localhost:1455", "/auth/callback?error="+code+"&state="+state); status != 400 {
				t.Errorf("%d", status)
			}
		})
		mustBe(t, b.err, ErrDenied)
		if !strings.HasSuffix(b.err.Error(), ErrDenied.Error()+want) {
			t.Errorf("%q", b.err)
		}
	}
}

// A code of another sign-in does not fit the challenge, which the service finds.
func TestAForeignCodeIsOfNoUse(t *testing.T) {
	s := &signintest.Server{}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	opened := ""
	o := (&told{}).options(s)
	o.Open = func(address string) { opened = address }
	o.Listen = busy
	o.Paste = func(context.Context) (string, error) {
		foreign, err := url.Parse(opened)
		if err != nil {
			return "", err
		}
		q := foreign.Query()
		q.Set("code_challenge", challenge(newVerifier()))
		foreign.RawQuery = q.Encode()
		return agree(t, s, foreign.String()).Query().Get("code"), nil
	}
	_, err := Codex(ctx, o)
	mustBe(t, err, nil, "wrong verifier")
}

func busy(context.Context, string, string) (net.Listener, error) {
	return nil, &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
}

func TestABusyPortWithoutATerminalIsAnError(t *testing.T) {
	s, w := &signintest.Server{}, &told{}
	o := w.options(s)
	o.Listen = busy
	_, err := Codex(t.Context(), o)
	mustBe(t, err, ErrPortBusy, "127.0.0.1:1455")
	if w.opened != "" || len(s.Requests()) > 0 {
		t.Error("and the browser was opened")
	}
}

func TestTheListenersOwnErrorIsTold(t *testing.T) {
	s, w := &signintest.Server{}, &told{}
	o := w.options(s)
	o.CallbackHost = "192.0.2.1"
	o.Listen = func(_ context.Context, _, address string) (net.Listener, error) {
		return nil, fmt.Errorf("listen %s: no such address", address)
	}
	_, err := Codex(t.Context(), o)
	mustBe(t, err, nil, "listen for the browser", "192.0.2.1:1455: no such address")
}

func TestABusyPortLetsThePersonPaste(t *testing.T) {
	for name, form := range map[string]func(*url.URL) string{
		"address":     func(u *url.URL) string { return u.String() + "\n" },
		"code#state":  func(u *url.URL) string { return u.Query().Get("code") + "#" + u.Query().Get("state") },
		"query":       func(u *url.URL) string { return u.RawQuery },
		"?query":      func(u *url.URL) string { return "?" + u.RawQuery },
		"code":        func(u *url.URL) string { return "  " + u.Query().Get("code") + "\r\n" },
		"quoted":      func(u *url.URL) string { return `"` + u.String() + `"` },
		"third time":  func(u *url.URL) string { return u.String() },
		"no state":    func(u *url.URL) string { return "http://localhost:1455/auth/callback?code=" + u.Query().Get("code") },
		"other order": func(u *url.URL) string { return "state=" + u.Query().Get("state") + "&code=" + u.Query().Get("code") },
	} {
		t.Run(name, func(t *testing.T) {
			s, w := &signintest.Server{}, &told{}
			o := w.options(s)
			o.Listen = busy
			asked := 0
			o.Paste = func(context.Context) (string, error) {
				asked++
				switch {
				case name == "third time" && asked == 1:
					return "", nil
				case name == "third time" && asked == 2:
					return "ac_other#0123", nil
				}
				return form(agree(t, s, w.opened)), nil
			}
			got, err := Codex(t.Context(), o)
			if err != nil || got.Access != signintest.AccessToken {
				t.Errorf("%v, %+v", err, got)
			}
			clean(t, s, w, err)
		})
	}
}

func TestPastingEndsTheSignIn(t *testing.T) {
	gone := errors.New("hung up")
	for _, c := range []struct {
		name, line string
		err, is    error
		part       string
		asked      int
	}{
		{"nothing of use", "no idea", nil, errNoCode, "", 3},
		{"another sign-in", "http://localhost:1455/auth/callback?code=ac_evil12345&state=0123", nil, nil, "another sign-in", 3},
		{"denied", "http://localhost:1455/auth/callback?error=access_denied&state=0123", nil, ErrDenied, "", 1},
		{"end of input", "", gone, gone, "ask for the address", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, w := &signintest.Server{}, &told{}
			o := w.options(s)
			o.Listen = busy
			asked := 0
			o.Paste = func(context.Context) (string, error) { asked++; return c.line, c.err }
			_, err := Codex(t.Context(), o)
			mustBe(t, err, c.is, c.part)
			if asked != c.asked || strings.Contains(err.Error()+strings.Join(w.notices, " "), "evil") {
				t.Errorf("asked %d times: %v %q", asked, err, w.notices)
			}
			if len(s.Requests()) > 0 {
				t.Errorf("the service was asked %q", s.Requests())
			}
		})
	}
}

func TestNobodyComesBackFromTheBrowser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, start := &told{}, time.Now()
		o := w.options(&signintest.Server{})
		o.Listen = busy
		o.Paste = func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		_, err := Codex(t.Context(), o)
		mustBe(t, err, ErrExpired)
		if took := time.Since(start); took != personLimit {
			t.Errorf("took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w, start := &told{}, time.Now()
		o := w.options(&signintest.Server{})
		o.Listen = func(context.Context, string, string) (net.Listener, error) { return newQuiet(), nil }
		_, err := Codex(t.Context(), o)
		mustBe(t, err, ErrExpired)
		if took := time.Since(start); took != personLimit {
			t.Errorf("took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("ctrl-c")
		ctx, cancel := context.WithCancelCause(t.Context())
		o := (&told{}).options(&signintest.Server{})
		o.Listen = func(context.Context, string, string) (net.Listener, error) { return newQuiet(), nil }
		o.Open = func(string) { cancel(cause) }
		_, err := Codex(ctx, o)
		mustBe(t, err, cause)
	})
}

// quiet is a listener that nobody connects to.
type quiet struct{ closed chan struct{} }

func newQuiet() *quiet { return &quiet{make(chan struct{})} }

func (q *quiet) Accept() (net.Conn, error) { <-q.closed; return nil, net.ErrClosed }
func (q *quiet) Close() error {
	select {
	case <-q.closed:
	default:
		close(q.closed)
	}
	return nil
}
func (q *quiet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1455} }

// The rule: a code is visible ASCII and stands in the text, a state only comes
// with a code, and an error repeats nothing of the text.
func FuzzParsePasted(f *testing.F) {
	for _, s := range []string{
		"", "ac_code", "ac_code#state", "#", "?", "code=a&state=b", "?code=a&state=b", "http://localhost:1455/auth/callback?code=a&state=b",
		"http://localhost:1455/auth/callback?error=access_denied", "https://x/?code=%00", "a=b", "code=%zz", "://", "ac_x==", "code=a#b", "\u202e", `"ac_code"`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		code, state, err := parsePasted(s)
		if err != nil {
			if code != "" || state != "" {
				t.Fatalf("%q and %q beside an error", code, state)
			}
			if !errors.Is(err, errNoCode) && !errors.Is(err, ErrDenied) {
				t.Fatalf("another error: %v", err)
			}
			return
		}
		if !visible(code, maxToken) {
			t.Fatalf("odd code %q", code)
		}
		if !strings.Contains(s, code) && !strings.ContainsAny(s, "%+") {
			t.Fatalf("code %q does not stand in %q", code, s)
		}
	})
}

// The rule: no panic, and models have usable, different names.
func FuzzParseModels(f *testing.F) {
	for _, s := range []string{`{"data":[]}`, `{"data":null}`, `[]`, `{"data":[{"id":"a","capabilities":{"supports":{"tool_calls":true}}}]}`, `{"data":[1]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		models, err := parseModels(body)
		if err != nil && models != nil {
			t.Fatal("models beside an error")
		}
		seen := map[string]bool{}
		for _, m := range models {
			if !visible(m.id, maxModelID) || seen[m.id] {
				t.Fatalf("odd model %q", m.id)
			}
			seen[m.id] = true
		}
	})
}
