package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"codework/actors"
	"codework/internal/home"
	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// defaultPort is where a server listens unless told otherwise.
const defaultPort = 7433

// maxConnections is how many clients a server's TCP port takes at once.
const maxConnections = 4096

// maxToken is the longest token file that is read.
const maxToken = 4096

type serveFlags struct {
	host        string
	port        int
	tokenFile   string
	insecure    bool
	hosts       []string
	origins     []string
	maxSessions int
	maxRunning  int
	resume      bool
	asJSON      bool
}

func newServe(g *global) *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a server that owns sessions and goes on when clients leave",
		Long: `Run the process that owns this home in the foreground, with a TCP port beside its
socket. Clients are codework run --server, codework session …, and every program
that speaks Effect RPC.

Everybody who can connect can run commands as you. Without a token only programs
on this machine can; any other --host asks for one.`,
		Example: `  codework serve
  CODEWORK_SERVER_TOKEN=… codework serve --host 0.0.0.0 --allow-host box.example`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.serve(c.Context(), g) },
	}
	fl := c.Flags()
	fl.StringVar(&f.host, "host", "127.0.0.1", "address to listen on")
	fl.IntVar(&f.port, "port", defaultPort, "port to listen on; 0 is any free one")
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the token that clients must send (or CODEWORK_SERVER_TOKEN)")
	fl.BoolVar(&f.insecure, "insecure", false, "listen beyond this machine without a token")
	fl.StringArrayVar(&f.hosts, "allow-host", nil, "a name by which clients may call this server (repeatable)")
	fl.StringArrayVar(&f.origins, "allow-origin", nil, "an origin whose web pages may connect (repeatable)")
	fl.IntVar(&f.maxSessions, "max-sessions", 0, "refuse to make more sessions than this; 0 is no limit")
	fl.IntVar(&f.maxRunning, "max-running", 0, "refuse to let more sessions work at once; 0 is no limit")
	fl.BoolVar(&f.resume, "resume", false, "begin with the prompts that wait in sessions")
	fl.BoolVar(&f.asJSON, "json", false, "print the address as JSON on standard output")
	return c
}

// check refuses flags that make no sense, and finds the token.
func (f *serveFlags) check() (token string, err error) {
	switch {
	case f.port < 0 || f.port > 65535:
		return "", usagef("--port: expected 0 to 65535, not %d", f.port)
	case f.maxSessions < 0:
		return "", usagef("--max-sessions: expected 0 or more")
	case f.maxRunning < 0:
		return "", usagef("--max-running: expected 0 or more")
	}
	token = strings.TrimSpace(os.Getenv("CODEWORK_SERVER_TOKEN"))
	if f.tokenFile != "" {
		if token, err = readToken(f.tokenFile); err != nil {
			return "", err
		}
	}
	if token == "" && !f.insecure && !loopback(f.host) {
		return "", &problem{err: fmt.Errorf("--host %s: everybody who can reach it could run commands as you", f.host), code: exitUsage,
			hint: "ask for a token with --token-file or CODEWORK_SERVER_TOKEN, or take the risk with --insecure"}
	}
	return token, nil
}

func readToken(name string) (string, error) {
	fi, err := os.Stat(name)
	var b []byte
	if err == nil && fi.Size() <= maxToken {
		b, err = os.ReadFile(name)
	}
	token := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		err = bareError(err)
	case token == "":
		err = errors.New("no token in it")
	case strings.ContainsAny(token, " \t\r\n"):
		err = errors.New("a token is one word")
	case fi.Mode().Perm()&0o077 != 0 && umask() >= 0:
		err = fmt.Errorf("others can read it; chmod 600 %s", name)
	default:
		return token, nil
	}
	return "", &problem{err: fmt.Errorf("--token-file %s: %w", name, err), code: exitUsage}
}

// loopback tells whether an address is reached from this machine only.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback()
}

// serve is the life of a server.
func (f *serveFlags) serve(ctx context.Context, g *global) error {
	token, err := f.check()
	if err != nil {
		return err
	}
	p, err := g.paths()
	if err != nil {
		return err
	}
	log, err := newLogger(g.logLevel, g.err)
	if err != nil {
		return err
	}
	// The port first: that it is taken is known at once, and nobody is sent
	// away for nothing.
	l, err := net.Listen("tcp", net.JoinHostPort(strings.Trim(f.host, "[]"), strconv.Itoa(f.port)))
	if err != nil {
		return f.listenProblem(err)
	}
	defer l.Close()
	if p.Database != home.InMemory {
		if err := g.takeOver(ctx, p); err != nil {
			return err
		}
	}
	o, err := own(ctx, p, log, func(c *actors.Config, id *actors.Identity) {
		c.MaxSessions, c.MaxRunning, id.Foreground = f.maxSessions, f.maxRunning, true
	})
	if err != nil {
		p.Release()
		return err
	}
	defer o.traces.Close()
	defer p.Release()
	var door door
	accept := effectrpc.AcceptOptions{AllowHosts: append([]string{f.host}, f.hosts...), AllowOrigins: f.origins, Token: token}
	servers := []*http.Server{serveHTTP(l, door.guard(door.atMost(maxConnections, o.system.Handler(accept, false))))}
	if p.Database != home.InMemory {
		sock, err := p.Listen()
		if err != nil {
			return errors.Join(err, o.close())
		}
		servers = append(servers, serveHTTP(sock, door.guard(o.system.Handler(effectrpc.AcceptOptions{TrustHost: true}, true))))
	}
	if f.resume {
		o.system.Resume()
	}
	if token == "" && !loopback(f.host) {
		fmt.Fprintln(g.err, "warning: everybody who can reach this address can run commands as you (--insecure)")
	}
	f.announce(g, l.Addr())

	var failed error
	select {
	case <-ctx.Done():
	case <-o.system.Failed():
		failed = errors.New("the server cannot go on; the log says why")
	}
	door.closed.Store(true)
	err = o.close()
	if p.Database != home.InMemory {
		err = errors.Join(err, p.Remove())
	}
	for _, s := range servers {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(failed, err)
}

// listenProblem explains why there is no port to listen on.
func (f *serveFlags) listenProblem(err error) error {
	p := &problem{slug: "connection", err: fmt.Errorf("listen on %s port %d: %w", f.host, f.port, err)}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		p.err = fmt.Errorf("port %d on %s is in use", f.port, f.host)
		p.hint = "is a codework serve running already? use it with --server, or choose another --port (0 is any free one)"
	case errors.Is(err, syscall.EACCES):
		p.hint = "ports below 1024 belong to root; choose a higher one"
	}
	return p
}

// announce prints the address once the server answers there.
func (f *serveFlags) announce(g *global, addr net.Addr) {
	host := f.host
	if a, ok := addr.(*net.TCPAddr); ok {
		host = net.JoinHostPort(strings.Trim(f.host, "[]"), strconv.Itoa(a.Port))
	}
	url := "ws://" + host + contract.Path
	if f.asJSON {
		// Standard output that is closed is nobody's loss.
		_ = json.NewEncoder(g.out).Encode(map[string]any{"url": url, "pid": os.Getpid()})
		return
	}
	fmt.Fprintln(g.err, "listening on "+url)
}

// takeOver makes this process the owner of its home. One that runs in the
// background is asked to hand over: at once if it has nothing to do, otherwise
// when that is done.
func (g *global) takeOver(ctx context.Context, p home.Paths) error {
	if first, err := p.Acquire(expired(), nil); err == nil && first {
		return nil
	}
	hello, err := g.hello()
	if err != nil {
		return err
	}
	if conn, err := p.Dial(ctx); err == nil {
		if err := g.askToHandOver(ctx, conn, hello); err != nil {
			return err
		}
	}
	for {
		limit, cancel := context.WithTimeout(ctx, startLimit)
		_, err := p.Acquire(limit, nil)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		var held *home.HeldError
		if !errors.As(err, &held) {
			return err
		}
		// It still works, which is worth waiting for, or another one has taken
		// its place meanwhile and has not been asked.
		if conn, dialErr := p.Dial(ctx); dialErr == nil {
			if err := g.askToHandOver(ctx, conn, hello); err != nil {
				return err
			}
			continue
		}
		return connectProblem(ctx, err, p)
	}
}

func (g *global) askToHandOver(ctx context.Context, conn net.Conn, hello messages.Hello) error {
	c, err := client.OverSocket(ctx, conn)
	if err != nil {
		return nil // it is ending already
	}
	defer c.Close()
	info, err := c.Hello(ctx, hello)
	switch {
	case lostOwner(err):
		return nil // it is ending already
	case err != nil:
		return connectProblem(ctx, err, home.Paths{})
	}
	if info.Foreground {
		return &problem{slug: "connection", err: fmt.Errorf("a server owns this home already: process %d", info.PID),
			hint: "use it with codework run, or use another --home"}
	}
	h, err := c.Handover(ctx)
	if lostOwner(err) {
		return nil // it had nothing to do and was gone before it could say so
	}
	if err != nil {
		return err
	}
	if len(h.WaitsFor) > 0 {
		fmt.Fprintln(g.err, "waiting for the work that runs in this home:")
		for _, w := range h.WaitsFor {
			fmt.Fprintf(g.err, "  %s  %s\n", w.SessionID, oneLine(w.Title))
		}
	}
	return nil
}

// atMost refuses more than n connections at once.
func (d *door) atMost(n int64, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.inside.Load() > n {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many connections", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}
