package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdFetch reads a page of a running server, or of the home process over its
// socket, and prints it.
func cmdFetch(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 3, 9, "fetch STATUS server|socket PATH [HEADER VALUE]…")
	ctx, cancel := limited()
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	base := strings.TrimSuffix(ts.Getenv("SERVER"), "/rpc/v1")
	if args[1] == "socket" {
		base = "http://codework"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(worldOf(ts).home, "run", "home.sock"))
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+args[2], nil)
	ts.Check(err)
	for i := 3; i+1 < len(args); i += 2 {
		if args[i] == "Host" {
			req.Host = args[i+1]
		} else {
			req.Header.Set(args[i], args[i+1])
		}
	}
	resp, err := transport.RoundTrip(req)
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ts.Check(err)
	fmt.Fprint(ts.Stdout(), string(body))
	if resp.StatusCode != number(ts, args[0]) {
		ts.Fatalf("the server answered %s", resp.Status)
	}
}
