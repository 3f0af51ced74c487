package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"codework/actors"
	"codework/internal/home"
	"codework/internal/metrics"
	"codework/internal/plugin"
	"codework/internal/settings"
	"codework/internal/store"
	"codework/internal/traces"
	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/effectrpc"
	"codework/providers"
	"codework/providers/anthropic"
	"codework/providers/catalog"
	"codework/providers/chat"
	"codework/providers/copilot"
	"codework/providers/credentials"
	"codework/providers/gemini"
	"codework/providers/offline"
	"codework/providers/responses"
	"codework/sandboxes"
	"codework/sandboxes/container"
	"codework/sandboxes/daytona"
	"codework/sandboxes/isolated"
	"codework/sandboxes/local"
	"codework/sandboxes/memory"
	"codework/sandboxes/ssh"
	"codework/sandboxes/supervisor"
)

// How long the end of the owner may take: work that is interrupted settles
// within the first; sandboxes stop within the second, and then commands end.
const (
	settleLimit = 10 * time.Second
	stopLimit   = 20 * time.Second
)

// owner is everything that belongs to the one process that owns a home.
type owner struct {
	system  *actors.System
	store   *store.Store
	sandbox *local.Sandbox
	plugins *supervisor.Host // runs the plugins
	logins  *credentials.Store
	models  *catalogKeeper
	traces  *traces.Traces // closed when the home is given back: nobody else waits for a collector
	log     *slog.Logger
}

// own opens the store and starts the actors; adjust, if not nil, changes what
// they are started with.
func own(ctx context.Context, p home.Paths, log *slog.Logger, adjust func(*actors.Config, *actors.Identity)) (*owner, error) {
	if p.Database != home.InMemory { // which needs no home that can be written
		if err := p.Prepare(); err != nil {
			return nil, err
		}
	}
	state, err := stateDir(p)
	if err != nil {
		return nil, err
	}
	paceHeap()
	supervisor.WakeFirst()
	st, err := store.Open(ctx, store.Options{Dir: p.Database, Log: log, Rested: giveBack})
	if err != nil {
		return nil, err
	}
	o := &owner{store: st, log: log}
	if err := st.Migrate(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	if o.sandbox, err = local.New(local.Options{StateDir: state, Log: log}); err != nil {
		return nil, errors.Join(err, o.close())
	}
	o.plugins = supervisor.NewHost(supervisor.Options{Log: log})
	dir, err := os.Getwd()
	if err != nil {
		dir = string(filepath.Separator)
	}
	host, _ := os.Hostname() // "" then stands on both sides of the comparison
	if o.logins, err = openLogins(credentialFile(p), log); err != nil {
		return nil, errors.Join(err, o.close())
	}
	workshop := &actors.Workshop{
		Home: p.Home, Credentials: o.logins, Trust: settings.OpenTrust(p.Home), Catalog: openCatalog(p),
		Speaks:  func(p messages.Protocol) bool { return dialects[p] != nil },
		Plugins: openPlugins(p).Resolve,
	}
	server, err := st.ServerID(ctx)
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	config := actors.Config{
		Metrics: metrics.New(version),
		Store:   st, Local: o.sandbox, Drivers: drivers(p, state, log), Server: server, Dir: dir, Dialects: dialects, Prepare: workshop, Models: workshop.Models, Logins: logins{o.logins}, Calm: giveBack,
		Plugins: plugin.Options{Processes: o.plugins, LogDir: pluginLogs(p), Log: log, Version: version},
	}
	id := actors.Identity{Version: version, Build: build(), Home: p.Home, Host: host, MountNamespace: home.MountNamespace()}
	if adjust != nil {
		adjust(&config, &id)
	}
	if p.Database != home.InMemory { // which leaves nothing behind
		if o.models, err = keepCatalog(workshop.Catalog, id.Foreground, log); err != nil {
			return nil, errors.Join(err, o.close())
		}
		workshop.Asked = o.models.asked
	}
	o.traces = traces.Start(version, log)
	config.Traces = o.traces
	if o.system, err = actors.Boot(ctx, config, id, log); err != nil {
		o.traces.Close()
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// dialects are the protocols that this version speaks.
var dialects = map[messages.Protocol]providers.Dialect{
	messages.ProtocolCompatible: chat.Dialect{},
	messages.ProtocolOpenRouter: chat.Dialect{},
	messages.ProtocolAnthropic:  anthropic.Dialect{},
	messages.ProtocolGoogle:     gemini.Dialect{},
	messages.ProtocolOpenAI:     responses.Dialect{},
	messages.ProtocolXAI:        responses.Dialect{},
	messages.ProtocolCodex:      responses.Dialect{Codex: true},
	messages.ProtocolOffline:    offline.Dialect{},
	messages.ProtocolCopilot:    copilot.New(),
}

// pluginLogs is where plugins' standard errors are kept; "" keeps none.
func pluginLogs(p home.Paths) string {
	if p.Database == home.InMemory {
		return ""
	}
	return filepath.Join(p.Home, "log", "plugins")
}

// stateDir is where sandboxes keep what ends with this process.
func stateDir(p home.Paths) (string, error) {
	if p.Database == home.InMemory {
		dir, err := os.MkdirTemp("", "codework-")
		if err != nil {
			return "", fmt.Errorf("make a temporary folder: %w", err)
		}
		return dir, nil
	}
	dir := filepath.Join(p.Home, "cache", "sandboxes")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make %s: %w", dir, err)
	}
	return dir, nil
}

func openCatalog(p home.Paths) *catalog.Catalog {
	if pinned, ok := os.LookupEnv("CODEWORK_MODELS_FILE"); ok && pinned != "" {
		return catalog.Open(catalog.Options{File: pinned, Pinned: true})
	}
	return catalog.Open(catalog.Options{File: filepath.Join(p.Home, "models.gen.json")})
}

func credentialFile(p home.Paths) string {
	if f, ok := os.LookupEnv("CODEWORK_CREDENTIALS"); ok && f != "" {
		return f
	}
	return filepath.Join(p.Home, "aikit", "auth.json")
}

// drivers are what sandboxes can be made with, beside the host.
func drivers(p home.Paths, state string, log *slog.Logger) []sandboxes.Driver {
	hidden := []string{p.Home, credentialFile(p)}
	if p.Database != home.InMemory {
		hidden = append(hidden, p.Database)
	}
	return []sandboxes.Driver{
		memory.New(memory.Options{Log: log}),
		container.New(container.Options{Cache: filepath.Join(p.Home, "cache"), Log: log}),
		isolated.New(isolated.Options{StateDir: state, Hide: hidden, Log: log}),
		ssh.New(ssh.Options{Log: log}),
		daytona.New(daytona.Options{Log: log}),
	}
}

// close settles what runs and ends everything, in this order: sandboxes,
// actors, commands, store.
func (o *owner) close() error {
	if o.system != nil {
		settle, stop := context.WithTimeout(context.Background(), settleLimit)
		if err := o.system.Settle(settle); err != nil {
			o.log.Warn("work did not settle in time", "err", err)
		}
		stop()
		boxes, stop := context.WithTimeout(context.Background(), stopLimit)
		if err := o.system.StopSandboxes(boxes); err != nil {
			o.log.Warn("not every sandbox was stopped", "err", err)
		}
		stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if o.system != nil {
		o.system.Shutdown(ctx)
	}
	if o.models != nil {
		o.models.close()
	}
	if o.logins != nil {
		o.logins.Close()
	}
	var err error
	if o.plugins != nil {
		err = o.plugins.Close(ctx)
	}
	if o.sandbox != nil {
		err = errors.Join(err, o.sandbox.Close(ctx))
	}
	return errors.Join(err, o.store.Close())
}

func newLogger(level string, w io.Writer) (*slog.Logger, error) {
	l, err := zerolog.ParseLevel(level)
	if err != nil || level == "" {
		return nil, usagef("--log-level: expected debug, info, warn or error, not %q", level)
	}
	return slog.New(zerolog.NewSlogHandler(zerolog.New(w).Level(l).With().Timestamp().Logger())), nil
}

// defaultIdleExit is how long an owner in the background stays without a
// client and without work.
const defaultIdleExit = 5 * time.Second

func idleExit() (time.Duration, error) {
	text, ok := os.LookupEnv("CODEWORK_IDLE_EXIT")
	if !ok || text == "" {
		return defaultIdleExit, nil
	}
	if text == "0" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, usagef("CODEWORK_IDLE_EXIT: expected a duration such as 5s, not %q", text)
	}
	return d, nil
}

// newHomeProcess is the hidden command that clients start in the background.
func newHomeProcess(g *global) *cobra.Command {
	var reports bool
	c := &cobra.Command{
		Use:    homeProcessName,
		Short:  "Own the home for clients on this machine (started by them)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report := func(error) {}
			if reports {
				r := home.OpenReport()
				report = func(err error) {
					if err != nil {
						r.Fail(err)
						return
					}
					r.Ready()
				}
			}
			err := g.ownHome(c.Context(), func() { report(nil) })
			if err != nil {
				report(err)
			}
			return err
		},
	}
	c.Flags().BoolVar(&reports, "report", false, "say on descriptor 3 whether the start went well")
	return c
}

const homeProcessName = "home-process"

// ownHome is the life of an owner in the background.
func (g *global) ownHome(ctx context.Context, ready func()) error {
	p, err := g.paths()
	if err != nil {
		return err
	}
	grace, err := idleExit()
	if err != nil {
		return err
	}
	lines, closeLog := homeLog(p, g.err)
	defer closeLog()
	log, err := newLogger(g.logLevel, lines)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, lockLimit)
	first, err := p.Acquire(limit, func() bool { return serves(limit, p) })
	cancel()
	if err != nil || !first {
		if err == nil {
			ready()
		}
		return err
	}
	loads := make(chan actors.Load, 1)
	o, err := own(ctx, p, log, func(c *actors.Config, _ *actors.Identity) {
		c.Watch = func(l actors.Load) { newest(loads, l) }
	})
	if err != nil {
		return err
	}
	defer o.traces.Close()
	defer p.Release()
	l, err := p.Listen()
	if err != nil {
		return errors.Join(err, o.close())
	}
	var door door
	srv := serveHTTP(l, door.guard(o.system.Handler(effectrpc.AcceptOptions{TrustHost: true}, true)))
	ready()
	err = untilIdle(ctx, o.system, &door, loads, grace)
	door.closed.Store(true)
	o.moveEditors()
	return errors.Join(err, o.close(), p.Remove(), srv.Close())
}

// moveEditors lets editors go on with the owner that follows, if one does.
func (o *owner) moveEditors() {
	select {
	case <-o.system.Takeover():
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	if err := o.system.MoveEditors(ctx); err != nil {
		o.log.Warn("editors were not handed over", "err", err)
	}
}

// lockLimit is how long an owner that is starting waits for one that ends: less
// than its client does, so that the client hears who is in the way.
const lockLimit = startLimit - 3*time.Second

// serves tells whether there is an owner that lets clients in. One that is
// ending still has its socket, and refuses.
func serves(ctx context.Context, p home.Paths) bool {
	conn, err := p.Dial(ctx)
	if err != nil {
		return false
	}
	c, err := client.OverSocket(ctx, conn)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// newest leaves a load for whoever reads loads, which holds one, in place of one
// that was not read. Nobody else may send.
func newest(loads chan actors.Load, l actors.Load) {
	for {
		select {
		case loads <- l:
			return
		default:
		}
		select {
		case <-loads:
		default:
		}
	}
}

// running is what an owner watches of its actors.
type running interface {
	Takeover() <-chan struct{}
	Failed() <-chan struct{}
	// CloseIfIdle ends admission unless something works. What is watched only
	// tells when to try: by then somebody may have come.
	CloseIfIdle(context.Context) (bool, error)
}

// untilIdle returns when the owner should end: nil when nobody needs it or
// another one is to take over, in which case nothing works and nothing begins any
// more, or when a signal came; an error when its actors cannot go on.
func untilIdle(ctx context.Context, o running, door *door, loads <-chan actors.Load, grace time.Duration) error {
	// The client that asked for this start has not connected yet.
	idle := time.NewTimer(max(grace, firstClient))
	defer idle.Stop()
	var now actors.Load
	leaving := o.Takeover()
	takeover, worked, parted := false, false, false
	var parting, again <-chan time.Time
	for {
		select {
		case now = <-loads:
			idle.Stop()
			if now.Clients == 0 && now.Busy == 0 {
				idle.Reset(grace)
			}
		case <-leaving:
			takeover, leaving = true, nil
			for len(loads) > 0 { // what was told before counts
				now = <-loads
			}
		case <-parting:
			parted = true
		case <-again:
		case <-idle.C:
			if door.closeIfEmpty() {
				if closed, _ := o.CloseIfIdle(ctx); closed {
					return nil
				}
				door.closed.Store(false)
			}
			idle.Reset(firstClient) // somebody has just come in, or left work behind
		case <-ctx.Done():
			return nil
		case <-o.Failed():
			return errors.New("the actors of this process cannot go on; the log says why")
		}
		switch {
		case !takeover:
		case now.Busy > 0:
			worked, parted, parting = true, false, nil
		case !worked || parted || now.Clients == 0:
			// An error means that the actors have ended, or that a signal came.
			if closed, _ := o.CloseIfIdle(ctx); closed {
				return nil
			}
			again = time.After(tryAgain)
		case parting == nil:
			parting = time.After(partingTime)
		}
	}
}

// tryAgain is when an owner that hands over tries it once more, if its load has
// not changed: an editor may be busy with what is no work.
const tryAgain = 50 * time.Millisecond

// partingTime is how long an owner that hands over stays after its work is done,
// for clients that still read how it ended.
const partingTime = time.Second

// firstClient is how long an owner waits for the client that started it.
const firstClient = 5 * time.Second

// door counts who is inside, so that an owner without work never shuts out
// somebody who has just come in. Closed, it answers 503, which clients take for
// nobody being there.
type door struct {
	inside atomic.Int64
	closed atomic.Bool
}

// closeIfEmpty closes the door unless somebody is inside.
func (d *door) closeIfEmpty() bool {
	d.closed.Store(true)
	if d.inside.Load() > 0 {
		d.closed.Store(false)
		return false
	}
	return true
}

func (d *door) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.inside.Add(1)
		defer d.inside.Add(-1)
		if d.closed.Load() {
			http.Error(w, "going down", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// headerLimit is how long a client may take to say what it wants, also after it
// was turned away: otherwise a page could hold connections for ever.
const headerLimit = 10 * time.Second

func serveHTTP(l net.Listener, h http.Handler) *http.Server {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: headerLimit, IdleTimeout: headerLimit}
	go func() { _ = srv.Serve(l) }() // ends with Close
	return srv
}
