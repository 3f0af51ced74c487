package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// serverVariable and tokenVariable name a server and what it asks for.
const (
	serverVariable = "CODEWORK_SERVER"
	tokenVariable  = "CODEWORK_SERVER_TOKEN"
)

// reachLimit is how long a server may take to accept and to say who it is.
const reachLimit = 10 * time.Second

// addServerFlag adds --server to a command and those below it.
func (g *global) addServerFlag(c *cobra.Command) {
	c.PersistentFlags().StringVar(&g.server, "server", "", "work with this server, such as ws://127.0.0.1:7433 (or "+serverVariable+")")
}

// chooseServer finds out whether a command talks to a server, before anything
// else happens. What belongs to a home on this machine does not go with one.
func (g *global) chooseServer(c *cobra.Command) error {
	local := ""
	for _, x := range []struct {
		flag string
		set  bool
	}{{"--home", g.home != ""}, {"--database", g.database != ""}, {"--user-config-dir", g.configDir != ""}, {"--embedded", g.embedded}} {
		if x.set {
			local = x.flag
			break
		}
	}
	if !c.Flags().Changed("server") {
		if local != "" {
			return nil // the variable gives way
		}
		g.server = strings.TrimSpace(os.Getenv(serverVariable))
		if g.server == "" {
			return nil
		}
		if _, err := client.Endpoint(g.server); err != nil {
			return usagef("%s: %w", serverVariable, err)
		}
		return nil
	}
	if g.server == "" {
		return nil // --server= turns the variable off
	}
	if local != "" {
		return &problem{err: fmt.Errorf("%s does not go with --server", local), code: exitUsage,
			hint: "the server has its own; give " + local + " to codework serve"}
	}
	if _, err := client.Endpoint(g.server); err != nil {
		return usagef("--server: %w", err)
	}
	return nil
}

// remote tells whether this call talks to a server.
func (g *global) remote() bool { return g.server != "" }

// serverFlag is what a command line that is suggested ends in.
func (g *global) serverFlag() string {
	if !g.remote() {
		return ""
	}
	return " --server " + g.server
}

// dialServer connects to the server and makes sure that it is one.
func (g *global) dialServer(ctx context.Context) (*client.Client, error) {
	limit, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	token := strings.TrimSpace(os.Getenv(tokenVariable))
	c, err := client.Dial(limit, g.server, token)
	var info messages.ServerInfo
	if err == nil {
		if info, err = c.Info(limit); err != nil {
			c.Close()
			err = notCodeWork(err)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, g.serverProblem(err, token != "")
	case info.Protocol != contract.Version:
		c.Close()
		return nil, g.unreachable(fmt.Errorf("the server is version %s, which this version %s cannot talk to", orUnknown(info.Version), version),
			"update the older one of the two", nil)
	}
	return c, nil
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// errNotCodeWork means that something answers, but not as a server of ours.
var errNotCodeWork = errors.New("what answers there is no CodeWork server")

// notCodeWork tells a server that does not know who it is from one that
// cannot say so now.
func notCodeWork(err error) error {
	var refused *messages.Refused
	if errors.As(err, &refused) || errors.Is(err, client.ErrConnectionLost) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", errNotCodeWork, err)
}

func (g *global) unreachable(err error, hint string, cause error) error {
	p := &problem{slug: "connection", err: err, fields: []field{{"server", g.server}}, hint: hint}
	if cause != nil {
		p.err = &explained{err, cause}
	}
	return p
}

// explained is an error in other words: as a text it is what it says, as an
// error also what it was.
type explained struct{ says, was error }

func (e *explained) Error() string   { return e.says.Error() }
func (e *explained) Unwrap() []error { return []error{e.says, e.was} }

// serverProblem says in a person's words why there is no connection.
func (g *global) serverProblem(err error, token bool) error {
	address, host, path := g.server, g.server, ""
	if endpoint, bad := client.Endpoint(g.server); bad == nil {
		if u, bad := url.Parse(endpoint); bad == nil {
			address, host, path = u.Host, u.Hostname(), u.Path
		}
	}
	says := func(hint, format string, args ...any) error {
		return g.unreachable(fmt.Errorf(format, args...), hint, err)
	}
	var status *effectrpc.StatusError
	if errors.As(err, &status) {
		return g.statusProblem(status, address, host, path, token, says)
	}
	var refused *messages.Refused
	if errors.As(err, &refused) {
		return err
	}
	var name *net.DNSError
	var notTLS tls.RecordHeaderError
	var unknown x509.UnknownAuthorityError
	var wrongName x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return says("start one there with: codework serve", "nobody listens on %s", address)
	case errors.As(err, &name):
		return says("check the name, and that this machine has a network", "the name %s cannot be resolved", host)
	case errors.As(err, &notTLS), errors.Is(err, http.ErrSchemeMismatch):
		return says("use ws:// instead of wss://, or a proxy that speaks TLS", "what listens on %s does not speak TLS", address)
	case errors.As(err, &unknown), errors.As(err, &wrongName), errors.As(err, &invalid):
		return says("", "the certificate of %s is not good: %w", address, err)
	case errors.Is(err, errNotCodeWork):
		return says("", "what answers on %s is no CodeWork server", address)
	case errors.Is(err, context.DeadlineExceeded):
		return says("", "no answer from %s within %s", address, reachLimit)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return says("check that this machine has a network", "there is no way to %s", address)
	case errors.Is(err, client.ErrConnectionLost), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return says("is that the port of a CodeWork server?", "what listens on %s closes the connection", address)
	case strings.Contains(err.Error(), "malformed HTTP"):
		return says("is that the port of a CodeWork server?", "what answers on %s is no CodeWork server", address)
	}
	return says("", "no connection to %s: %w", address, err)
}

// statusProblem explains the answer of an HTTP server that did not let us in.
func (g *global) statusProblem(s *effectrpc.StatusError, address, host, path string, token bool, says func(hint, format string, args ...any) error) error {
	switch s.Status {
	case http.StatusNotFound:
		hint := "is that the port of a CodeWork server?"
		if path != contract.Path {
			hint = "leave the path out, it is " + contract.Path
		}
		return says(hint, "there is no CodeWork server under %s on %s", path, address)
	case http.StatusUnauthorized:
		if token {
			return says("compare "+tokenVariable+" with the token that the server was started with", "the server refuses the token")
		}
		return says("set "+tokenVariable+" to the token that the server was started with", "the server asks for a token")
	case http.StatusForbidden:
		return says("start it with --allow-host "+host+", or use its address", "the server does not want to be called %s", host)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		text := s.Text
		if text == "" {
			text = "it takes no more connections"
		}
		err := says("try again in a moment", "the server is busy: %s", text)
		var p *problem
		if errors.As(err, &p) {
			p.slug = "busy"
		}
		return err
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return says("is the server behind it running?", "a proxy answers on %s, but the server behind it does not (HTTP %d)", address, s.Status)
	}
	return says("is that the port of a CodeWork server?", "what answers on %s is no CodeWork server (HTTP %d)", address, s.Status)
}
