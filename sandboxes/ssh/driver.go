package ssh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

// Name is the driver's.
const Name = "ssh"

// Options are what the driver needs to know.
type Options struct {
	// Executable is the program that is brought to hosts, one whose main calls
	// agent.Main; "" is the running one. It must need no
	// libraries of the system.
	Executable string
	// Log receives what is worth knowing; nil drops it.
	Log *slog.Logger
}

// Driver makes and reaches sandboxes on hosts.
type Driver struct {
	opt       Options
	keepalive time.Duration
	runner    runnerOnce

	mu     sync.Mutex // guards the following
	open   map[*Sandbox]struct{}
	warned map[string]bool // hosts about which the log has been told
}

var (
	_ sandboxes.Driver    = (*Driver)(nil)
	_ sandboxes.Registrar = (*Driver)(nil)
	_ sandboxes.Inspector = (*Driver)(nil)
	_ sandboxes.Waker     = (*Driver)(nil)
	_ sandboxes.Stopper   = (*Driver)(nil)
	_ sandboxes.Destroyer = (*Driver)(nil)
)

// New makes the driver. Nothing is started.
func New(o Options) *Driver {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{opt: o, keepalive: keepaliveEvery, open: make(map[*Sandbox]struct{}), warned: make(map[string]bool)}
}

// Name is what calls and settings name the driver by.
func (d *Driver) Name() string { return Name }

// Kind tells that it is elsewhere.
func (d *Driver) Kind() messages.SandboxKind { return messages.KindRemote }

// Available is always true: whether a host is there is another matter.
func (d *Driver) Available(context.Context, sandboxes.Spec) error { return nil }

// extra is what is stored of a sandbox beside its address.
type extra struct {
	// Managed tells that the folder is of our making.
	Managed bool `json:"managed,omitempty"`
}

// createScript takes the base, made if it is missing, and the name of the new
// folder in it.
const createScript = `
set -e
base="$1"
case "$base" in /*) ;; *) base="$HOME/$base" ;; esac
mkdir -p -- "$base"
cd -- "$base"
mkdir -m 700 -- "$2"
cd -- "$2"
pwd -P
`

// Create makes a fresh folder below the configured base.
func (d *Driver) Create(ctx context.Context, spec sandboxes.Spec) (sandboxes.Resource, error) {
	c, err := readConfig(spec)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	if c.Host == "" {
		return sandboxes.Resource{}, &sandboxes.ConfigError{Reason: "host: missing; name the host on which sandboxes are made"}
	}
	at := address{user: c.User, host: c.Host, port: c.Port}
	var dir string
	err = d.visit(ctx, c, at, func(h *host) error {
		reply, err := h.script(ctx, createScript, nil, c.Base, spec.ID)
		if err != nil {
			return fmt.Errorf("make the folder: %w", err)
		}
		dir, err = oneLine(reply)
		return err
	})
	if err != nil {
		return sandboxes.Resource{}, err
	}
	at.dir = dir
	r, err := resource(at, true)
	if err != nil {
		// The folder's name cannot be written as an address; nothing is left.
		return sandboxes.Resource{}, errors.Join(err, d.visit(ctx, c, at, func(h *host) error {
			_, err := h.script(ctx, `rmdir -- "$1"`, nil, dir)
			return err
		}))
	}
	return r, nil
}

// oneLine is the only line of a reply, an absolute path.
func oneLine(reply string) (string, error) {
	if len(reply) < 2 || reply[0] != '/' || reply[len(reply)-1] != '\n' {
		return "", fmt.Errorf("the host answers %.300q instead of a folder", reply)
	}
	return path.Clean(reply[:len(reply)-1]), nil
}

// resource is what is stored of a sandbox that is there.
func resource(at address, managed bool) (sandboxes.Resource, error) {
	id := at.String()
	if again, err := parseAddress(id); err != nil || again != at {
		return sandboxes.Resource{}, &sandboxes.ConfigError{Reason: "the sandbox's folder cannot be part of an address"}
	}
	b, err := json.Marshal(extra{Managed: managed})
	if err != nil {
		return sandboxes.Resource{}, err
	}
	return sandboxes.Resource{ID: id, Status: messages.SandboxOnline, Dir: at.dir, Extra: b}, nil
}

// visit connects for a moment.
func (d *Driver) visit(ctx context.Context, c Config, at address, do func(*host) error) error {
	client, err := d.connect(ctx, c, at)
	if err != nil {
		return err
	}
	defer client.Close()
	// Whatever waits for a host that does not answer ends with its connection.
	stop := context.AfterFunc(ctx, func() { client.Close() })
	err = do(&host{client: client})
	if !stop() && err != nil {
		err = ctx.Err()
	}
	return err
}

// reach reads the configuration and the address of a sandbox that exists. Its
// address counts, not what the configuration says by now.
func reach(spec sandboxes.Spec, r sandboxes.Resource) (Config, address, error) {
	c, err := readConfig(spec)
	if err != nil {
		return c, address{}, err
	}
	at, err := parseAddress(r.ID)
	return c, at, err
}

// Resolve takes a folder that somebody else made.
func (d *Driver) Resolve(ctx context.Context, spec sandboxes.Spec, resourceID string) (sandboxes.Resource, error) {
	c, at, err := reach(spec, sandboxes.Resource{ID: resourceID})
	if err != nil {
		return sandboxes.Resource{}, err
	}
	if err := d.find(ctx, c, at); err != nil {
		return sandboxes.Resource{}, err
	}
	return resource(at, false)
}

// find is nil when the folder is there.
func (d *Driver) find(ctx context.Context, c Config, at address) error {
	return d.visit(ctx, c, at, func(h *host) error {
		f, err := h.look(ctx, "", at.dir)
		if err == nil && !f.folder {
			err = fmt.Errorf("%s: %w", at, sandboxes.ErrNotFound)
		}
		return err
	})
}

// Attach reaches a sandbox, and reaches it again whenever the connection was
// lost.
func (d *Driver) Attach(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (sandboxes.Sandbox, error) {
	c, at, err := reach(spec, r)
	if err != nil {
		return nil, err
	}
	first, err := d.begin(ctx, spec, c, at)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{driver: d, spec: spec, config: c, at: at, turn: make(chan struct{}, 1), life: first}
	s.gone, s.end = context.WithCancel(context.Background())
	d.mu.Lock()
	d.open[s] = struct{}{}
	d.mu.Unlock()
	return s, nil
}

// warn tells the log once about each host that our runner does not work there.
func (d *Driver) warn(host string, m means, reason error) {
	d.mu.Lock()
	again := d.warned[host]
	d.warned[host] = true
	d.mu.Unlock()
	if again {
		return
	}
	what := "commands may leave processes behind"
	if m.unshare != "" {
		what = "commands run in namespaces instead"
	}
	d.opt.Log.Warn("our runner does not work on this host, "+what, "host", host, "reason", reason)
}

func (d *Driver) forget(s *Sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, s)
}

// Inspect tells whether the folder is there; a host has no other states.
func (d *Driver) Inspect(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (messages.SandboxStatus, error) {
	c, at, err := reach(spec, r)
	if err != nil {
		return "", err
	}
	if err := d.find(ctx, c, at); err != nil {
		return "", err
	}
	return messages.SandboxOnline, nil
}

// Wake checks that the folder is still there: nothing runs in a stopped one,
// and nothing has to.
func (d *Driver) Wake(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	_, err := d.Inspect(ctx, spec, r)
	return err
}

// Stop ends what was started through this driver in the sandbox. Nothing else
// runs there by our doing: what another process had started has ended with its
// connection.
func (d *Driver) Stop(ctx context.Context, _ sandboxes.Spec, r sandboxes.Resource) error {
	at, err := parseAddress(r.ID)
	if err != nil {
		return err
	}
	d.mu.Lock()
	var all []*Sandbox
	for s := range d.open {
		if s.at == at {
			all = append(all, s)
		}
	}
	d.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Close(ctx))
	}
	return errors.Join(errs...)
}

// destroyScript takes the folder. Its parent is left.
const destroyScript = `
if test -L "$1"; then echo "a link lies in its place" >&2; exit 1; fi
rm -rf -- "$1"
`

// Destroy removes the folder with all that is in it. Only one of our own making
// is removed.
func (d *Driver) Destroy(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	c, at, err := reach(spec, r)
	if err != nil {
		return err
	}
	var e extra
	if len(r.Extra) > 0 {
		if err := json.Unmarshal(r.Extra, &e); err != nil {
			return fmt.Errorf("what is stored of %s: %w", at, err)
		}
	}
	if !e.Managed || path.Base(at.dir) != spec.ID {
		return fmt.Errorf("%s is not of our making and stays", at)
	}
	return d.visit(ctx, c, at, func(h *host) error {
		if _, err := h.script(ctx, destroyScript, nil, at.dir); err != nil {
			return fmt.Errorf("remove %s: %w", at, err)
		}
		return nil
	})
}
