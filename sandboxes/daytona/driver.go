package daytona

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

// Name is the driver's name.
const Name = "daytona"

const (
	labelManaged  = "codework-managed"
	labelInstance = "codework-instance"
	labelServer   = "codework-server"

	// autoStop is after how many idle minutes Daytona stops a sandbox: it is
	// paid for, and a server that died cannot stop it.
	autoStop = 60
	// never is an interval that never passes.
	never = -1
	// settleLimit is how long a sandbox may take to get to another state: an
	// image may have to be fetched first.
	settleLimit = 10 * time.Minute
	// firstLook and nextLook are between looks at a state: most change at once.
	firstLook = 100 * time.Millisecond
	lastLook  = 2 * time.Second
	// findTries is how often a sandbox is looked for whose creation got no
	// answer: lists of the service may lag behind.
	findTries = 4
	// cleanLimit is for removing what is left of a failed creation.
	cleanLimit = 10 * time.Second
	// maxPages bounds a list; a page has up to 100 sandboxes.
	maxPages = 100
	// maxResourceID bounds the id of a sandbox that somebody names.
	maxResourceID = 2048
)

// Options are what a Driver needs to know.
type Options struct {
	// Log receives what is worth knowing; nil drops it.
	Log *slog.Logger
}

// Driver makes and reaches sandboxes of Daytona.
type Driver struct {
	log   *slog.Logger
	http  *http.Client
	pause func(context.Context, time.Duration) error
	idle  time.Duration
}

// New returns a driver that has done nothing yet.
func New(o Options) *Driver {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{log: o.Log, http: &http.Client{Transport: newTransport(), CheckRedirect: sameHost}, pause: sleep, idle: idleLimit}
}

// Name is "daytona".
func (d *Driver) Name() string { return Name }

// Kind is remote.
func (d *Driver) Kind() messages.SandboxKind { return messages.KindRemote }

// Close lets go of idle connections.
func (d *Driver) Close() error {
	d.http.CloseIdleConnections()
	return nil
}

func (d *Driver) client(a account) *client { return &client{account: a, http: d.http, pause: d.pause} }

// reach reads the configuration of a call.
func (d *Driver) reach(spec sandboxes.Spec) (Config, *client, error) {
	c, a, err := readConfig(spec)
	if err != nil {
		return c, nil, err
	}
	return c, d.client(a), nil
}

// Available tells whether the service answers to the key.
func (d *Driver) Available(ctx context.Context, spec sandboxes.Spec) error {
	_, c, err := d.reach(spec)
	if err != nil {
		return err
	}
	var page page
	if err := c.call(ctx, mayTry, "GET", c.base.JoinPath("sandbox").String()+"?limit=1", nil, &page); err != nil {
		return fmt.Errorf("ask %s: %w", c.base.Host, err)
	}
	return nil
}

// machine is what the service says of a sandbox.
type machine struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	State  string            `json:"state"`
	Reason string            `json:"errorReason"`
	Labels map[string]string `json:"labels"`
	Tools  string            `json:"toolboxProxyUrl"`
}

type page struct {
	Items []machine `json:"items"`
	Next  string    `json:"nextCursor"`
}

// statuses are what the states of sandboxes mean. Those on their way up are
// offline until they have arrived: waking waits for it. Others are faulted.
var statuses = map[string]messages.SandboxStatus{
	"started":           messages.SandboxOnline,
	"creating":          messages.SandboxOffline,
	"pending_build":     messages.SandboxOffline,
	"building_snapshot": messages.SandboxOffline,
	"pulling_snapshot":  messages.SandboxOffline,
	"restoring":         messages.SandboxOffline,
	"starting":          messages.SandboxOffline,
	"resuming":          messages.SandboxOffline,
	"resizing":          messages.SandboxOffline,
	"snapshotting":      messages.SandboxOffline,
	"forking":           messages.SandboxOffline,
	"stopping":          messages.SandboxOffline,
	"stopped":           messages.SandboxOffline,
	"pausing":           messages.SandboxOffline,
	"paused":            messages.SandboxOffline,
	"archiving":         messages.SandboxOffline,
	"archived":          messages.SandboxOffline,
}

// statusOf is never online for a word that is not known.
func statusOf(state string) messages.SandboxStatus {
	if s, ok := statuses[state]; ok {
		return s
	}
	return messages.SandboxFaulted
}

// isGone tells whether a sandbox is being removed, or was.
func (m machine) isGone() bool { return m.State == "destroyed" || m.State == "destroying" }

// isDown tells whether a sandbox stays as it is unless it is started.
func (m machine) isDown() bool {
	return m.State == "stopped" || m.State == "paused" || m.State == "archived"
}

func (m machine) fault() error {
	s := fmt.Sprintf("its state is %.60q", m.State)
	if m.Reason != "" {
		s += ": " + m.Reason
	}
	return errors.New(s)
}

func (c *client) sandboxURL(id string, more ...string) string {
	return c.base.JoinPath(append([]string{"sandbox", url.PathEscape(id)}, more...)...).String()
}

// look asks for a sandbox by id or name.
func (c *client) look(ctx context.Context, id string) (machine, error) {
	var m machine
	err := c.call(ctx, mayTry, "GET", c.sandboxURL(id), nil, &m)
	switch {
	case isStatus(err, http.StatusNotFound):
		return m, sandboxes.ErrNotFound
	case err != nil:
		return m, fmt.Errorf("look at the sandbox: %w", err)
	case m.ID == "":
		return m, errors.New("look at the sandbox: the answer names none")
	case m.isGone():
		return m, sandboxes.ErrNotFound
	}
	m.Reason = c.clean(m.Reason)
	return m, nil
}

// list finds the sandboxes that carry labels.
func (c *client) list(ctx context.Context, labels map[string]string) ([]machine, error) {
	want, err := json.Marshal(labels)
	if err != nil {
		return nil, err
	}
	var all []machine
	query := url.Values{"labels": {string(want)}, "limit": {"100"}}
	for range maxPages {
		var p page
		if err := c.call(ctx, mayTry, "GET", c.base.JoinPath("sandbox").String()+"?"+query.Encode(), nil, &p); err != nil {
			return nil, fmt.Errorf("list the sandboxes: %w", err)
		}
		for _, m := range p.Items {
			if has(m.Labels, labels) && !m.isGone() { // whatever the service takes the query for
				all = append(all, m)
			}
		}
		if p.Next == "" {
			return all, nil
		}
		query.Set("cursor", p.Next)
	}
	return nil, errors.New("list the sandboxes: Daytona's list does not end")
}

func has(labels, want map[string]string) bool {
	for name, value := range want {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// await looks at a sandbox until it is as wanted. A sandbox that got into a
// state which it does not leave by itself is an error.
func (c *client) await(ctx context.Context, id string, done func(machine) bool) (machine, error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		m, err := c.look(ctx, id)
		switch {
		case err != nil:
			return m, err
		case done(m):
			return m, nil
		case statusOf(m.State) == messages.SandboxFaulted:
			return m, m.fault()
		}
		if err := c.pause(ctx, pause); err != nil {
			return m, fmt.Errorf("wait for the sandbox, whose state is %.60q: %w", m.State, err)
		}
	}
}

func isUp(m machine) bool { return m.State == "started" }

// order is what a sandbox is created with.
type order struct {
	Labels     map[string]string `json:"labels"`
	Target     string            `json:"target,omitempty"`
	Build      *build            `json:"buildInfo,omitempty"`
	CPU        int64             `json:"cpu,omitempty"`
	Memory     int64             `json:"memory,omitempty"` // GiB
	AutoStop   int               `json:"autoStopInterval"`
	AutoDelete int               `json:"autoDeleteInterval"`
	Closed     bool              `json:"networkBlockAll,omitempty"`
	Networks   string            `json:"networkAllowList,omitempty"`
	Hosts      string            `json:"domainAllowList,omitempty"`
}

type build struct {
	Dockerfile string `json:"dockerfileContent"`
}

// Create makes a sandbox and waits until it has started.
func (d *Driver) Create(ctx context.Context, spec sandboxes.Spec) (sandboxes.Resource, error) {
	conf, c, err := d.reach(spec)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	labels := map[string]string{labelManaged: "true", labelInstance: spec.ID, labelServer: spec.Server}
	o := order{Labels: labels, Target: conf.Region, CPU: int64(conf.Limits.CPUs), Memory: conf.Limits.MemoryMiB / 1024,
		AutoStop: autoStop, AutoDelete: never, Closed: conf.Network.None || conf.Network.Addresses != nil && len(conf.Network.Addresses) == 0}
	if conf.Image != "" {
		o.Build = &build{Dockerfile: "FROM " + conf.Image + "\n"}
	}
	networks, hosts, err := reachable(conf.Network.Addresses)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	o.Networks, o.Hosts = strings.Join(networks, ","), strings.Join(hosts, ",")
	m, err := c.create(ctx, o)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	r, err := c.made(ctx, m.ID)
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		if rm := c.remove(clean, m.ID); rm != nil {
			err = errors.Join(err, rm)
		}
		return sandboxes.Resource{}, err
	}
	return r, nil
}

// create makes a sandbox at most once. When it is not known whether it was
// made, it is looked for; after an end of ctx too, so that it can be removed.
func (c *client) create(ctx context.Context, o order) (machine, error) {
	var m machine
	err := c.call(ctx, once, "POST", c.base.JoinPath("sandbox").String(), o, &m)
	if err == nil && m.ID != "" {
		return m, nil
	}
	if err == nil {
		err = errors.New("the answer names no sandbox")
	}
	err = fmt.Errorf("create a sandbox: %w", err)
	var e *Error
	if errors.As(err, &e) && e.Status >= 300 && e.Status < 500 {
		return m, err
	}
	search, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	for pause, n := firstLook, 1; ; pause, n = 2*pause, n+1 {
		found, e := c.list(search, o.Labels)
		switch {
		case e != nil:
			return m, errors.Join(err, e)
		case len(found) > 0:
			return found[0], nil
		case n == findTries || c.pause(search, pause) != nil:
			return m, err
		}
	}
}

// made waits until a new sandbox has started and finds its working folder.
func (c *client) made(ctx context.Context, id string) (sandboxes.Resource, error) {
	m, err := c.await(ctx, id, isUp)
	if err != nil {
		return sandboxes.Resource{}, fmt.Errorf("start the new sandbox: %w", err)
	}
	dir, err := c.workDir(ctx, m)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	return sandboxes.Resource{ID: m.ID, Status: messages.SandboxOnline, Dir: dir}, nil
}

// workDir asks a started sandbox for its working folder.
func (c *client) workDir(ctx context.Context, m machine) (string, error) {
	tools, err := c.tools(ctx, m)
	if err != nil {
		return "", err
	}
	var answer struct {
		Dir string `json:"dir"`
	}
	if err := c.call(ctx, mayTry, "GET", tools.JoinPath("work-dir").String(), nil, &answer); err != nil {
		return "", fmt.Errorf("ask for the working folder: %w", err)
	}
	if !strings.HasPrefix(answer.Dir, "/") {
		return "", fmt.Errorf("ask for the working folder: %.60q is no absolute path", answer.Dir)
	}
	return answer.Dir, nil
}

// tools is the address of what serves commands and files of a sandbox.
func (c *client) tools(ctx context.Context, m machine) (*url.URL, error) {
	if m.Tools == "" {
		var answer struct {
			URL string `json:"url"`
		}
		if err := c.call(ctx, mayTry, "GET", c.sandboxURL(m.ID, "toolbox-proxy-url"), nil, &answer); err != nil {
			return nil, fmt.Errorf("ask for the address of the sandbox's tools: %w", err)
		}
		m.Tools = answer.URL
	}
	u, err := serviceURL(m.Tools)
	if err != nil {
		return nil, fmt.Errorf("the address of the sandbox's tools: %w", err)
	}
	if u.Scheme == "http" && c.base.Scheme != "http" {
		return nil, errors.New("the address of the sandbox's tools is one without TLS")
	}
	return u.JoinPath(url.PathEscape(m.ID)), nil
}

// Resolve finds a sandbox that somebody else made, by id or name.
func (d *Driver) Resolve(ctx context.Context, spec sandboxes.Spec, id string) (sandboxes.Resource, error) {
	if id == "" || len(id) > maxResourceID || strings.Trim(id, ".") == "" ||
		strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("/?#%", r) }) {
		return sandboxes.Resource{}, refused("%.60q is not the name or id of a sandbox", id)
	}
	_, c, err := d.reach(spec)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	m, err := c.look(ctx, id)
	if errors.Is(err, sandboxes.ErrNotFound) {
		return sandboxes.Resource{}, refused("there is no sandbox %q at %s for this key", id, c.base.Host)
	}
	if err != nil {
		return sandboxes.Resource{}, err
	}
	if m.Labels[labelManaged] == "true" {
		return sandboxes.Resource{}, refused("%s is one of CodeWork's own; use it by the id of its sandbox", id)
	}
	r := sandboxes.Resource{ID: m.ID, Status: statusOf(m.State), Dir: "/"}
	if isUp(m) { // else nobody can be asked
		r.Dir, err = c.workDir(ctx, m)
	}
	return r, err
}

// Inspect asks for the sandbox's state.
func (d *Driver) Inspect(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (messages.SandboxStatus, error) {
	_, c, err := d.reach(spec)
	if err != nil {
		return messages.SandboxFaulted, err
	}
	m, err := c.look(ctx, r.ID)
	if err != nil {
		return messages.SandboxFaulted, err
	}
	return statusOf(m.State), nil
}

// Wake starts a stopped sandbox and waits until it has.
func (d *Driver) Wake(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	_, c, err := d.reach(spec)
	if err != nil {
		return err
	}
	m, err := c.await(ctx, r.ID, func(m machine) bool { return isUp(m) || m.isDown() })
	if err != nil || isUp(m) {
		return err
	}
	if err := c.change(ctx, r.ID, "start", isUp); err != nil {
		return err
	}
	_, err = c.await(ctx, r.ID, isUp)
	return err
}

// change asks for another state. Asking twice may be refused, since it is on
// the way there already: only when it is not, that is an error.
func (c *client) change(ctx context.Context, id, what string, done func(machine) bool) error {
	err := c.call(ctx, mayTry, "POST", c.sandboxURL(id, what), nil, nil)
	if err == nil {
		return nil
	}
	if isStatus(err, http.StatusNotFound) {
		return sandboxes.ErrNotFound
	}
	if m, e := c.look(ctx, id); e == nil && done(m) {
		return nil
	}
	return fmt.Errorf("%s the sandbox: %w", what, err)
}

// Stop ends everything in the sandbox; its files stay.
func (d *Driver) Stop(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	_, c, err := d.reach(spec)
	if err != nil {
		return err
	}
	return c.stop(ctx, r.ID)
}

func (c *client) stop(ctx context.Context, id string) error {
	m, err := c.look(ctx, id)
	if err != nil || m.isDown() {
		return err
	}
	going := func(m machine) bool { return m.isDown() || m.State == "stopping" || m.State == "archiving" }
	if !going(m) {
		if err := c.change(ctx, id, "stop", going); err != nil {
			return err
		}
	}
	_, err = c.await(ctx, id, machine.isDown)
	return err
}

// Destroy removes the sandbox with its files.
func (d *Driver) Destroy(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	_, c, err := d.reach(spec)
	if err != nil {
		return err
	}
	return c.remove(ctx, r.ID)
}

func (c *client) remove(ctx context.Context, id string) error {
	err := c.call(ctx, mayTry, "DELETE", c.sandboxURL(id), nil, nil)
	if err == nil || isStatus(err, http.StatusNotFound) {
		return nil
	}
	return fmt.Errorf("remove the sandbox: %w", err)
}

// Sweep stops the sandboxes that an earlier process of this server left
// running. Without a key for them nobody can be asked, but they stop by
// themselves after an idle hour.
func (d *Driver) Sweep(ctx context.Context, spec sandboxes.Spec) error {
	_, c, err := d.reach(spec)
	if err != nil {
		return err
	}
	all, err := c.list(ctx, map[string]string{labelManaged: "true", labelServer: spec.Server})
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range all {
		if statusOf(m.State) == messages.SandboxFaulted || m.isDown() {
			continue
		}
		if err := c.stop(ctx, m.ID); err != nil && !errors.Is(err, sandboxes.ErrNotFound) {
			errs = append(errs, fmt.Errorf("%s: %w", m.ID, err))
		}
	}
	return errors.Join(errs...)
}

var (
	_ sandboxes.Driver    = (*Driver)(nil)
	_ sandboxes.Registrar = (*Driver)(nil)
	_ sandboxes.Inspector = (*Driver)(nil)
	_ sandboxes.Waker     = (*Driver)(nil)
	_ sandboxes.Destroyer = (*Driver)(nil)
	_ sandboxes.Stopper   = (*Driver)(nil)
	_ sandboxes.Sweeper   = (*Driver)(nil)
)
