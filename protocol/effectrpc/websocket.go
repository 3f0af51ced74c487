package effectrpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// readSize and largeReadSize are how much is read at once: little while
	// messages are short, since every connection holds such a buffer, and more
	// once one was longer.
	readSize      = 4 << 10
	largeReadSize = 32 << 10
)

// NewWebSocketConn makes ws a Conn and takes it over.
func NewWebSocketConn(ws *websocket.Conn) Conn {
	// The library's limit is per message, where boundaries mean nothing here,
	// and messages are read in pieces: the limit of a line is the one that
	// holds.
	ws.SetReadLimit(-1)
	c := &webSocketConn{ws: ws, buffer: make([]byte, readSize)}
	c.life, c.cut = context.WithCancel(context.Background())
	return c
}

type webSocketConn struct {
	ws      *websocket.Conn
	message io.Reader // what is left of a message, or nil
	buffer  []byte
	once    sync.Once

	// life ends the connection at once while a Read is in progress. The
	// library's CloseNow does not do that behind a Close that still waits for
	// the peer.
	life context.Context
	cut  context.CancelFunc
}

func (c *webSocketConn) Read() ([]byte, error) {
	for {
		if c.message == nil {
			_, message, err := c.ws.Reader(c.life)
			if err != nil {
				return nil, readError(err)
			}
			c.message = message
		}
		n, err := c.message.Read(c.buffer)
		piece := c.buffer[:n]
		if n == len(c.buffer) && n < largeReadSize {
			c.buffer = make([]byte, largeReadSize)
		}
		if err == io.EOF {
			c.message, err = nil, nil
		}
		switch {
		case err != nil:
			return nil, readError(err)
		case n > 0:
			return piece, nil
		}
	}
}

func readError(err error) error {
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed):
		return &CloseError{Code: int(closed.Code), Reason: closed.Reason}
	case errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled):
		return ErrClosed
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF // gone without a close
	default:
		return fmt.Errorf("read: %w", innermost(err))
	}
}

// innermost takes off what the libraries wrap around an error of the network:
// steps of their own, and an address that may hold a secret.
func innermost(err error) error {
	var op *net.OpError
	var of *url.Error
	switch {
	case errors.As(err, &op):
		return op
	case errors.As(err, &of):
		return of.Err
	default:
		return err
	}
}

func (c *webSocketConn) Write(p []byte) error {
	// Without a deadline: one that passes would end the connection just the
	// same, and Close does that.
	return c.ws.Write(context.Background(), websocket.MessageText, p)
}

func (c *webSocketConn) Close(code int, reason string) error {
	var err error
	c.once.Do(func() {
		late := time.AfterFunc(closeGrace, c.cut)
		err = c.ws.Close(websocket.StatusCode(code), reason)
		late.Stop()
		c.cut()
	})
	return err
}

// AcceptOptions are the rules of a listener. The zero value admits clients that
// name the server by a loopback name or an address and send no Origin.
type AcceptOptions struct {
	// AllowHosts are further names by which clients may call the server. Ports
	// are not compared, so that forwarded ports work.
	AllowHosts []string

	// AllowOrigins are the origins (scheme://host[:port]) whose pages may
	// connect. No page may otherwise, one served on this machine included: it
	// could drive the shell.
	AllowOrigins []string

	// TrustHost admits every Host: for a unix socket, where names mean nothing.
	TrustHost bool

	// Token, if not empty, must come as Authorization: Bearer.
	Token string
}

// Admit applies the rules of a listener to a request. If it may not come in, Admit
// answers it and returns the reason: 403 for a foreign Host or Origin, 401 for a
// missing or wrong token, in that order. Whatever a listener serves asks it before
// anything else happens.
func Admit(w http.ResponseWriter, r *http.Request, opts AcceptOptions) error {
	if !opts.TrustHost && !hostAllowed(r.Host, opts.AllowHosts) {
		return refuse(w, http.StatusForbidden, "host not allowed")
	}
	for _, origin := range r.Header.Values("Origin") {
		if !originAllowed(origin, opts.AllowOrigins) {
			return refuse(w, http.StatusForbidden, "origin not allowed")
		}
	}
	if opts.Token != "" && !bearer(r.Header.Values("Authorization"), opts.Token) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return refuse(w, http.StatusUnauthorized, "token missing or wrong")
	}
	return nil
}

func refuse(w http.ResponseWriter, status int, why string) error {
	http.Error(w, why, status)
	return fmt.Errorf("refused with %d: %s", status, why)
}

// Accept turns a request into a connection. If it may not, Accept answers it and
// returns the reason: those of Admit, then 400 for a request that is no upgrade.
// Which paths exist is the caller's business.
func Accept(w http.ResponseWriter, r *http.Request, opts AcceptOptions) (Conn, error) {
	if err := Admit(w, r, opts); err != nil {
		return nil, err
	}
	if !hasToken(r.Header, "Connection", "upgrade") || !hasToken(r.Header, "Upgrade", "websocket") {
		return nil, refuse(w, http.StatusBadRequest, "this is a WebSocket endpoint")
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		// Its own check compares Origin with Host, which DNS rebinding passes;
		// the stricter one is above.
		InsecureSkipVerify: true,
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, err
	}
	return NewWebSocketConn(ws), nil
}

// hasToken reports whether a header that lists tokens has this one.
func hasToken(h http.Header, name, token string) bool {
	for _, list := range h.Values(name) {
		for t := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// hostAllowed reports whether a Host header may be answered: names that DNS can
// point anywhere are only those that somebody listed.
func hostAllowed(host string, allowed []string) bool {
	host = hostName(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	for _, a := range allowed {
		if host != "" && host == hostName(a) {
			return true
		}
	}
	return false
}

// hostName takes port, brackets and the final dot off a host and lowers it.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func originAllowed(origin string, allowed []string) bool {
	for _, a := range allowed {
		if strings.EqualFold(strings.TrimSuffix(a, "/"), origin) {
			return true
		}
	}
	return false
}

// bearer reports whether the only Authorization header carries the token. The
// time it takes tells nothing about the token.
func bearer(headers []string, token string) bool {
	if len(headers) != 1 {
		return false
	}
	scheme, given, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	a, b := sha256.Sum256([]byte(strings.TrimSpace(given))), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// DialOptions say how to reach a server.
type DialOptions struct {
	// HTTPClient makes the connection; one whose transport dials a unix socket
	// reaches that. Nil means http.DefaultClient, proxies of the environment
	// included.
	HTTPClient *http.Client

	// Token, if not empty, is sent as Authorization: Bearer.
	Token string
}

// StatusError is the answer of a server that did not upgrade.
type StatusError struct {
	Status int    // HTTP status
	Text   string // first line of the body
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("server answered %d (%s)", e.Status, e.Text)
}

// Dial connects to an endpoint, ws://host:port/path. The context bounds the
// connecting only. A server that answers but does not upgrade is a *StatusError.
func Dial(ctx context.Context, endpoint string, opts DialOptions) (Conn, error) {
	header := http.Header{}
	if opts.Token != "" {
		header.Set("Authorization", "Bearer "+opts.Token)
	}
	ws, answer, err := websocket.Dial(ctx, endpoint, &websocket.DialOptions{
		HTTPClient:      opts.HTTPClient,
		HTTPHeader:      header,
		CompressionMode: websocket.CompressionDisabled,
	})
	if err == nil {
		return NewWebSocketConn(ws), nil
	}
	if answer != nil && answer.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(answer.Body) // at most the 1 KiB that the library keeps
		text, _, _ := strings.Cut(string(body), "\n")
		err = &StatusError{Status: answer.StatusCode, Text: text}
	}
	return nil, fmt.Errorf("connect to %s: %w", withoutSecrets(endpoint), innermost(err))
}

// withoutSecrets drops the parts of an address that may hold one.
func withoutSecrets(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "server"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}
