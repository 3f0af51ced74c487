package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"codework/actors"
	"codework/internal/home"
	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// startLimit bounds the search for an owner, its start included.
const startLimit = 15 * time.Second

// connect returns a client of the home's owner, or of the server that was
// asked for. close ends it, and with it an owner that lives in this process.
func (g *global) connect(ctx context.Context) (c *client.Client, close func(), err error) {
	if g.remote() {
		runtime.GOMAXPROCS(clientProcs)
		if c, err = g.dialServer(ctx); err != nil {
			return nil, nil, err
		}
		return c, func() { c.Close() }, nil
	}
	p, err := g.paths()
	if err != nil {
		return nil, nil, err
	}
	if g.embedded || p.Database == home.InMemory || aloneInNamespace() {
		return g.connectEmbedded(ctx, p)
	}
	runtime.GOMAXPROCS(clientProcs)
	hello, err := g.hello()
	if err != nil {
		return nil, nil, err
	}
	limit, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = p.Connect(limit, func(ctx context.Context) error {
		return p.StartBackground(ctx, g.ownerCommand(p), ownerEnvironment())
	}, func(conn net.Conn) error {
		c, err = greet(limit, conn, hello)
		return err
	})
	if err != nil {
		return nil, nil, connectProblem(ctx, err, p)
	}
	return c, func() { c.Close() }, nil
}

// clientProcs is how many processors the process of a client uses. It hands on what
// comes, one step after the other: waking a second processor for that, and letting
// it look for work in vain, takes a tenth of its time.
const clientProcs = 1

// aloneInNamespace tells whether this is process 1: in a container nobody
// would end or reap an owner in the background.
func aloneInNamespace() bool { return os.Getpid() == 1 }

// greet says hello to an owner that accepted. One that is stopping, or that is
// another build with nothing to do, counts as nobody.
func greet(ctx context.Context, conn net.Conn, hello messages.Hello) (*client.Client, error) {
	c, err := client.OverSocket(ctx, conn)
	if err != nil {
		return nil, orNobody(err)
	}
	info, err := c.Hello(ctx, hello)
	switch {
	case lostOwner(err):
		c.Close()
		return nil, home.ErrNobody
	case err != nil:
		c.Close()
		return nil, err
	case info.Build == hello.Build:
		return c, nil
	}
	if replaces(info.Version) && info.Sessions.Busy == 0 && !info.Foreground {
		_, err = c.Handover(ctx)
		c.Close()
		if err == nil || lostOwner(err) {
			return nil, home.ErrNobody
		}
		return nil, err
	}
	if info.Protocol != contract.Version {
		c.Close()
		hint := "it is the newer one: update this program, or use another --home"
		if info.Sessions.Busy > 0 {
			hint = "it has work under way; wait for it to finish, or use another --home"
		}
		return nil, &problem{slug: "connection", err: fmt.Errorf("the process that owns this home is version %s, which this version %s cannot talk to", info.Version, version),
			hint: hint}
	}
	return c, nil
}

// orNobody takes an owner that closes the connection, or says that it is going
// down, for nobody. Any other answer is an answer.
func orNobody(err error) error {
	var status *effectrpc.StatusError
	if errors.As(err, &status) && status.Status != http.StatusServiceUnavailable {
		return err
	}
	return home.ErrNobody
}

func connectProblem(ctx context.Context, err error, p home.Paths) error {
	var done *problem
	if errors.As(err, &done) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var wrong *messages.WrongWorld
	if errors.As(err, &wrong) {
		return &problem{slug: "connection", err: err, hint: "use another --home here"}
	}
	var held *home.HeldError
	if errors.As(err, &held) {
		return &problem{slug: "connection", err: err, hint: "wait until it is done, leave out --embedded, or use another --home"}
	}
	fields := []field{{"home", p.Home}}
	if _, missing := os.Stat(p.Log); missing == nil {
		fields = append(fields, field{"log", p.Log})
	}
	return &problem{slug: "connection", err: err, fields: fields}
}

// hello describes this process to the owner.
func (g *global) hello() (messages.Hello, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return messages.Hello{}, &problem{err: fmt.Errorf("find the working directory: %w", err)}
	}
	config := g.configDir
	if config != "" {
		if config, err = absolute(config); err != nil {
			return messages.Hello{}, err
		}
	}
	host, _ := os.Hostname()
	h := messages.Hello{
		Version: version, Build: build(), Protocol: contract.Version, Host: host, MountNamespace: home.MountNamespace(),
		Cwd: cwd, Umask: umask(), Env: map[string]string{}, UserConfigDir: config,
	}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			h.Env[k] = strings.ToValidUTF8(v, "\uFFFD")
		}
	}
	return h, nil
}

// ownerCommand is how the owner is started.
func (g *global) ownerCommand(p home.Paths) []string {
	return []string{selfExecutable(), homeProcessName, "--report", "--home", p.Home, "--database", p.Database, "--log-level", g.logLevel}
}

// ownerVariables are what an owner in the background keeps of the environment
// it is started from. What its clients need, they bring along.
var ownerVariables = []string{
	"HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME",
	"SYSTEMROOT", "USERPROFILE", "LOCALAPPDATA", "GOMEMLIMIT", "GOMAXPROCS", "GOTRACEBACK", "GORACE",
	"CODEWORK_IDLE_EXIT", "CODEWORK_MODELS_FILE", "CODEWORK_MODELS_TTL", "CODEWORK_MODELS_URL", "CODEWORK_MODELS_DEV_FILE",
	"CODEWORK_CREDENTIALS", signInVariable,
}

// traceVariables are the beginning of those that say where traces go: the owner
// takes them from the client that starts it, for all clients.
const traceVariables = "OTEL_"

func ownerEnvironment() []string {
	var env []string
	for _, name := range ownerVariables {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, traceVariables) {
			env = append(env, kv)
		}
	}
	return env
}

// ownHere makes this process the owner of the home. serve is run with its actors
// until the one client is gone; the returned function waits for that, then ends
// everything and gives the home back.
func (g *global) ownHere(ctx context.Context, p home.Paths, serve func(*actors.System) error) (stop func(), err error) {
	log, err := newLogger(g.logLevel, g.err)
	if err != nil {
		return nil, err
	}
	if p.Database != home.InMemory {
		if err := g.takeHome(ctx, p); err != nil {
			return nil, connectProblem(ctx, err, p)
		}
	}
	o, err := own(ctx, p, log, nil)
	if err != nil {
		p.Release()
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := serve(o.system); err != nil {
			log.Error("not served", "err", err)
		}
	}()
	return func() {
		<-served
		if err := o.close(); err != nil {
			log.Error("did not stop cleanly", "err", err)
		}
		p.Release()
		o.traces.Close()
	}, nil
}

// connectEmbedded makes this process the owner, and talks to itself.
func (g *global) connectEmbedded(ctx context.Context, p home.Paths) (*client.Client, func(), error) {
	here, there := effectrpc.Pipe()
	end, err := g.ownHere(ctx, p, func(s *actors.System) error { return s.Serve(context.Background(), there, true) })
	if err != nil {
		return nil, nil, err
	}
	c := client.Over(here)
	stop := func() {
		c.Close()
		end()
	}
	hello, err := g.hello()
	if err == nil {
		_, err = c.Hello(ctx, hello)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return c, stop, nil
}

// takeHome makes this process the owner. An owner in the background that has
// nothing to do gives way.
func (g *global) takeHome(ctx context.Context, p home.Paths) error {
	_, err := p.Acquire(expired(), nil)
	if err == nil || !g.sendAway(ctx, p) {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	_, err = p.Acquire(limit, nil)
	return err
}

// leaveLimit is how long an owner that has nothing to do may take to end. One
// without a socket, which nobody can ask, is waited for no longer.
const leaveLimit = 2 * time.Second

// sendAway asks an owner without work to end, and tells whether it will.
func (g *global) sendAway(ctx context.Context, p home.Paths) bool {
	hello, err := g.hello()
	if err != nil {
		return false
	}
	limit, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	conn, err := p.Dial(limit)
	if err != nil {
		return errors.Is(err, home.ErrNobody) // it is ending already
	}
	c, err := client.OverSocket(limit, conn)
	if err != nil {
		return errors.Is(orNobody(err), home.ErrNobody)
	}
	defer c.Close()
	info, err := c.Hello(limit, hello)
	if err != nil || info.Sessions.Busy > 0 {
		return false
	}
	_, err = c.Handover(limit)
	return err == nil || lostOwner(err)
}

// expired is a context for trying once.
func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func absolute(path string) (string, error) {
	abs, err := home.Absolute(path)
	if err != nil {
		return "", usagef("%v", err)
	}
	return abs, nil
}
