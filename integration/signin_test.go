package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"

	"codework/providers/signin/signintest"
)

// These commands are for the scripts about signing in:
//
//	signin [-busy]            start the services, $SIGNIN is where; $CALLBACK is an
//	                          address for the callback, whose port may be in use
//	browse [-stay] NAME       be the browser that a running sign-in sends away, up to
//	                          the callback, or stay before it with its address in
//	                          $REDIRECT
//	renews TOKEN|-spent       the next renewal of a login gives this token, or is
//	                          refused because the refresh token was used before
//	signedin                  the services must have found nothing wrong
//	nosecrets [TOKEN…]        no token or code is in stdout, in stderr, in the list
//	                          of processes, or in a file but auth.json
func init() {
	commands["signin"] = cmdSignin
	commands["browse"] = cmdBrowse
	commands["renews"] = cmdRenews
	commands["signedin"] = cmdSignedin
	commands["nosecrets"] = cmdNosecrets
}

// services are those of each script, by its world.
var services sync.Map

func servicesOf(ts *testscript.TestScript) *signintest.Server {
	s, ok := services.Load(worldOf(ts))
	if !ok {
		ts.Fatalf("there are no services yet; signin starts them")
	}
	return s.(*signintest.Server)
}

// callbackPort is the one that the callback has everywhere.
const callbackPort = "1455"

func cmdSignin(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 1, "signin [-busy]")
	s := &signintest.Server{Interval: "1", API: "https://api.individual.githubcopilot.com"}
	h := httptest.NewServer(s)
	w := worldOf(ts)
	services.Store(w, s)
	ts.Defer(func() { services.Delete(w); h.Close() })
	ts.Setenv("SIGNIN", h.URL)
	// All of 127.0.0.0/8 is this machine: nobody else listens on the same one.
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(256), 1+rand.N(254))
	ts.Setenv("CALLBACK", host)
	if len(args) > 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(host, callbackPort))
		ts.Check(err)
		ts.Defer(func() { l.Close() })
	}
}

var authorizeAddress = regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+/auth\.openai\.com/oauth/authorize\?[!-~]+`)

func cmdBrowse(ts *testscript.TestScript, neg bool, args []string) {
	stay := len(args) > 0 && args[0] == "-stay"
	if stay {
		args = args[1:]
	}
	usage(ts, neg, args, 1, 1, "browse [-stay] NAME")
	p, address := procOf(ts, args[0]), ""
	ts.Check(until(endLimit, func() string {
		text := p.out.String() + p.err.String()
		if address = authorizeAddress.FindString(text); address == "" || !strings.Contains(text, "Waiting") {
			return "it has printed:\n" + text
		}
		return ""
	}))
	callback := net.JoinHostPort(ts.Getenv("CALLBACK"), callbackPort)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		if to == net.JoinHostPort("localhost", callbackPort) {
			to = callback
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}}
	redirect := ""
	browser := &http.Client{Transport: transport, Timeout: endLimit, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		redirect = r.URL.String()
		if stay {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	res, err := browser.Get(address)
	ts.Check(err)
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%d %s\n", res.StatusCode, page)
	ts.Setenv("REDIRECT", redirect)
}

func cmdRenews(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "renews TOKEN|-spent")
	answer := signintest.Answer{Body: fmt.Sprintf(
		`{"access_token":%q,"refresh_token":%q,"expires_in":864000,"token_type":"bearer"}`, args[0], signintest.RefreshToken)}
	if args[0] == "-spent" {
		answer = signintest.Answer{Status: http.StatusBadRequest, Body: `{"error":"invalid_grant"}`}
	}
	servicesOf(ts).Script("/oauth/token", answer)
}

func cmdSignedin(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 0, "signedin")
	s := servicesOf(ts)
	if v := s.Violations(); len(v) > 0 {
		ts.Fatalf("the services refused: %q", v)
	}
	fmt.Fprintln(ts.Stdout(), strings.Join(s.Requests(), "\n"))
}

func cmdNosecrets(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 9, "nosecrets [TOKEN…]")
	texts := map[string]string{"stdout": ts.ReadFile("stdout"), "stderr": ts.ReadFile("stderr")}
	secrets := append(servicesOf(ts).Secrets(), args...)
	for _, p := range processesOf(worldOf(ts).dir) {
		texts["the list of processes"] += p.command + "\n"
	}
	ts.Check(filepath.WalkDir(worldOf(ts).dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() || d.Name() == "auth.json" {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of a process that ends
		}
		texts[path] = string(data)
		return err
	}))
	for where, text := range texts {
		for _, secret := range secrets {
			if secret != "" && strings.Contains(text, secret) {
				ts.Fatalf("a secret (%.12s…) is in %s", secret, where)
			}
		}
	}
}
