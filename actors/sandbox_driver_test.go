package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

// playedDriver is a driver whose resources are entries of a table, and which
// fails, hangs or panics at any step that the test chooses. It outlives the
// actors, as a provider does.
type playedDriver struct {
	name string
	kind messages.SandboxKind

	mu        sync.Mutex // guards what follows
	resources map[string]*playedResource
	play      map[string]func(context.Context, sandboxes.Spec) error
	calls     []string
	crash     *crash // nil: none
	conns     []*playedConn
}

type playedResource struct {
	server string
	status messages.SandboxStatus
}

func newPlayedDriver(name string, kind messages.SandboxKind) *playedDriver {
	return &playedDriver{name: name, kind: kind, resources: map[string]*playedResource{}, play: map[string]func(context.Context, sandboxes.Spec) error{}}
}

// at makes the driver do f at a step, before the step has an effect; nil makes
// it do what it should again.
func (d *playedDriver) at(step string, f func(context.Context, sandboxes.Spec) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.play[step] = f
}

func fails(text string) func(context.Context, sandboxes.Spec) error {
	return func(context.Context, sandboxes.Spec) error { return errors.New(text) }
}

// hangs waits for the end of the call.
func hangs(begun chan<- struct{}) func(context.Context, sandboxes.Spec) error {
	return func(ctx context.Context, _ sandboxes.Spec) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
}

// step is what every call of the driver goes through.
func (d *playedDriver) step(ctx context.Context, name string, spec sandboxes.Spec, effect func() error) error {
	d.mu.Lock()
	play := d.play[name]
	d.calls = append(d.calls, name)
	crash := d.crash
	d.mu.Unlock()
	if !crash.alive() {
		return errCrash
	}
	if play != nil {
		if err := play(ctx, spec); err != nil {
			return err
		}
	}
	d.mu.Lock()
	err := effect()
	d.mu.Unlock()
	if !crash.alive() {
		return errCrash
	}
	return err
}

func (d *playedDriver) has(id string) (*playedResource, error) {
	if r := d.resources[id]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("look for %s: %w", id, sandboxes.ErrNotFound)
}

func (d *playedDriver) count(step string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, c := range d.calls {
		if c == step {
			n++
		}
	}
	return n
}

// lose makes the provider forget a resource.
func (d *playedDriver) lose(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.resources, id)
}

// put makes a resource that nobody here made.
func (d *playedDriver) put(id, server string, st messages.SandboxStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resources[id] = &playedResource{server, st}
}

func (d *playedDriver) status(id string) messages.SandboxStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.resources[id]; r != nil {
		return r.status
	}
	return ""
}

func (d *playedDriver) Name() string               { return d.name }
func (d *playedDriver) Kind() messages.SandboxKind { return d.kind }

func (d *playedDriver) Available(ctx context.Context, _ sandboxes.Spec) error {
	return d.step(ctx, "available", sandboxes.Spec{}, func() error { return nil })
}

// playedConfig is what the driver understands.
type playedConfig struct {
	Network sandboxes.Network `json:"network"`
	Limits  sandboxes.Limits  `json:"limits"`
	APIKey  string            `json:"apiKey"`
	Image   string            `json:"image"`
}

func (d *playedDriver) Create(ctx context.Context, spec sandboxes.Spec) (sandboxes.Resource, error) {
	id := "res-" + spec.ID
	config, err := sandboxes.ReadConfig[playedConfig](spec.Config)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	if name, ok := strings.CutPrefix(config.APIKey, "${"); ok {
		spec.Lookup(strings.TrimSuffix(name, "}"))
	}
	err = d.step(ctx, "create", spec, func() error {
		d.resources[id] = &playedResource{spec.Server, messages.SandboxOnline}
		return nil
	})
	return sandboxes.Resource{ID: id, Status: messages.SandboxOnline, Dir: "/work", Extra: json.RawMessage(`{"n":1}`)}, err
}

func (d *playedDriver) Attach(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (sandboxes.Sandbox, error) {
	c := &playedConn{driver: d, spec: spec, lost: make(chan struct{}), closed: make(chan struct{})}
	err := d.step(ctx, "attach", spec, func() error {
		have, err := d.has(r.ID)
		switch {
		case err != nil:
			return err
		case have.status != messages.SandboxOnline:
			return errors.New("it does not run")
		}
		d.conns = append(d.conns, c)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *playedDriver) set(ctx context.Context, step string, spec sandboxes.Spec, r sandboxes.Resource, to messages.SandboxStatus) error {
	return d.step(ctx, step, spec, func() error {
		have, err := d.has(r.ID)
		if err == nil {
			have.status = to
		}
		return err
	})
}

func (d *playedDriver) Wake(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	return d.set(ctx, "wake", spec, r, messages.SandboxOnline)
}

func (d *playedDriver) Stop(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	return d.set(ctx, "stop", spec, r, messages.SandboxOffline)
}

func (d *playedDriver) Destroy(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	return d.step(ctx, "destroy", spec, func() error {
		_, err := d.has(r.ID)
		delete(d.resources, r.ID)
		return err
	})
}

func (d *playedDriver) Inspect(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (st messages.SandboxStatus, err error) {
	err = d.step(ctx, "inspect", spec, func() error {
		have, err := d.has(r.ID)
		if err == nil {
			st = have.status
		}
		return err
	})
	return st, err
}

func (d *playedDriver) Resolve(ctx context.Context, spec sandboxes.Spec, id string) (sandboxes.Resource, error) {
	err := d.step(ctx, "resolve", spec, func() error {
		_, err := d.has(id)
		return err
	})
	return sandboxes.Resource{ID: id, Status: messages.SandboxOnline, Dir: "/theirs"}, err
}

func (d *playedDriver) Sweep(ctx context.Context, spec sandboxes.Spec) error {
	return d.step(ctx, "sweep", spec, func() error {
		for _, r := range d.resources {
			if r.server == spec.Server {
				r.status = messages.SandboxOffline
			}
		}
		return nil
	})
}

// bareDriver can do nothing beyond making and reaching.
type bareDriver struct{ sandboxes.Driver }

// playedConn is a connection to a resource.
type playedConn struct {
	driver *playedDriver
	spec   sandboxes.Spec
	lost   chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (c *playedConn) Lost() <-chan struct{} { return c.lost }

func (c *playedConn) Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	dir := o.Dir
	if dir == "" {
		dir = "/work"
	}
	err := c.driver.step(ctx, "mount", c.spec, func() error {
		switch {
		case strings.HasSuffix(dir, "/missing"):
			return &messages.DirectoryNotFound{Directory: dir}
		case strings.HasSuffix(dir, "/file"):
			return &messages.NotDirectory{Directory: dir}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &playedMount{conn: c, dir: dir}, nil
}

func (c *playedConn) Close(ctx context.Context) error {
	c.once.Do(func() { close(c.closed) })
	return c.driver.step(ctx, "close", c.spec, func() error { return nil })
}

// playedMount runs commands that say what they are.
type playedMount struct {
	sandboxes.Mount
	conn *playedConn
	dir  string
}

func (m *playedMount) Dir() string     { return m.dir }
func (m *playedMount) Scratch() string { return "/scratch" }
func (m *playedMount) Close() error    { return nil }

func (m *playedMount) Run(ctx context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	switch c.Argv[0] {
	case "wait":
		if c.Output != nil {
			c.Output(sandboxes.Stdout, []byte("waiting"))
		}
		select {
		case <-ctx.Done():
			return sandboxes.Exit{Code: -1}, ctx.Err()
		case <-m.conn.closed:
			return sandboxes.Exit{Code: -1}, &sandboxes.ShellError{Reason: "connection lost"}
		}
	case "background":
		return sandboxes.Exit{Background: true}, nil
	case "echo":
		c.Output(sandboxes.Stdout, []byte(strings.Join(c.Argv[1:], " ")))
		return sandboxes.Exit{Code: 3}, nil
	case "leak":
		return sandboxes.Exit{Code: -1}, &sandboxes.ShellError{Reason: "not run", Err: errors.New("HTTP 401 for " + c.Argv[1])}
	}
	return sandboxes.Exit{}, nil
}

// crash is a process that ends at the n-th thing that it does: nothing that it
// does behind that has an effect.
type crash struct {
	mu   sync.Mutex // guards left
	left int
}

var errCrash = errors.New("the process is gone")

func (c *crash) alive() bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left--
	return c.left >= 0
}

// boxStore fails to write records when the test wants it to.
type boxStore struct {
	Store
	mu    sync.Mutex // guards what follows
	swap  func(messages.SandboxRecord) error
	crash *crash
}

func (s *boxStore) SwapSandbox(ctx context.Context, r messages.SandboxRecord, from ...messages.SandboxStatus) error {
	s.mu.Lock()
	swap, crash := s.swap, s.crash
	s.mu.Unlock()
	if !crash.alive() {
		return errCrash
	}
	if swap != nil {
		if err := swap(r); err != nil {
			return err
		}
	}
	return s.Store.SwapSandbox(ctx, r, from...)
}

func (s *boxStore) DropSandbox(ctx context.Context, id string) error {
	s.mu.Lock()
	crash := s.crash
	s.mu.Unlock()
	if !crash.alive() {
		return errCrash
	}
	return s.Store.DropSandbox(ctx, id)
}

func (s *boxStore) failWhen(f func(messages.SandboxRecord) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.swap = f
}

// boxRig is a rig with sandboxes.
type boxRig struct {
	*rig
	t     testing.TB
	d     *playedDriver
	boxes *boxStore
}

// newBoxRig has the driver "far", which can do everything, and those given.
func newBoxRig(t testing.TB, more ...sandboxes.Driver) *boxRig {
	return newBoxRigWith(t, func(*Config) {}, more...)
}

func newBoxRigWith(t testing.TB, change func(*Config), more ...sandboxes.Driver) *boxRig {
	t.Helper()
	b := &boxRig{t: t, d: newPlayedDriver("far", messages.KindRemote)}
	b.rig = newRigWith(t, func(c *Config) {
		b.boxes = &boxStore{Store: c.Store}
		c.Store, c.Server, c.Prepare = b.boxes, "server-1", boxPreparer{b}
		c.Drivers = append([]sandboxes.Driver{b.d}, more...)
		change(c)
	})
	return b
}

// boxPreparer gives every exchange the same, in the session's sandbox.
type boxPreparer struct{ *boxRig }

func (p boxPreparer) Prepare(ctx context.Context, q ExchangeQuery) (*Exchange, error) {
	ex, err := p.rig.Prepare(ctx, q)
	if err != nil || messages.IsHost(q.Session.SandboxID) {
		return ex, err
	}
	at, err := Ask[place](ctx, p.system.guardian, toBox{q.Session.SandboxID, mountFor{
		options: sandboxes.MountOptions{Session: q.Session.ID, Dir: q.Session.Directory}}})
	if err != nil {
		return nil, mountFailure(err)
	}
	ex.Workplace = at
	return ex, nil
}

// session makes a session and returns what is known of it.
func (b *boxRig) session(m messages.CreateSession) (messages.SessionInfo, error) {
	return Ask[messages.SessionInfo](b.ctx, b.system.guardian, m)
}

// ask sends a message the way that calls go.
func (b *boxRig) ask(m any) (any, error) {
	return Ask[any](b.ctx, b.system.guardian, m)
}

func (b *boxRig) call(m any) (any, error) { return b.ask(boxCall{ctx: b.ctx, m: m}) }

func (b *boxRig) make(driver string) messages.SandboxInfo {
	b.t.Helper()
	v, err := b.call(messages.CreateSandbox{Driver: driver})
	if err != nil {
		b.t.Fatal(err)
	}
	return v.(messages.SandboxInfo)
}

func (b *boxRig) mount(id, session string) (place, error) {
	return Ask[place](b.ctx, b.system.guardian, toBox{id, mountFor{options: sandboxes.MountOptions{Session: session}}})
}

func (b *boxRig) stop(id string) error {
	_, err := b.call(messages.StopSandbox{SandboxID: id})
	return err
}

func (b *boxRig) destroy(id string) error {
	_, err := b.call(messages.DestroySandbox{SandboxID: id})
	return err
}

func (b *boxRig) list() []messages.SandboxInfo {
	b.t.Helper()
	v, err := b.ask(listBoxes{})
	if err != nil {
		b.t.Fatal(err)
	}
	return v.([]messages.SandboxInfo)
}

func (b *boxRig) info(id string) messages.SandboxInfo {
	b.t.Helper()
	for _, i := range b.list() {
		if i.ID == id {
			return i
		}
	}
	return messages.SandboxInfo{}
}

// stored is a record as it is on disk.
func (b *boxRig) stored(id string) messages.SandboxRecord {
	b.t.Helper()
	all, err := b.store.Sandboxes(b.ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, r := range all {
		if r.ID == id {
			return r
		}
	}
	return messages.SandboxRecord{}
}

// is checks a status, in the list and on disk.
func (b *boxRig) is(id string, want messages.SandboxStatus) {
	b.t.Helper()
	if got := b.info(id).Status; got != want {
		b.t.Errorf("the list says %s, want %s", got, want)
	}
	if got := b.stored(id).Status; got != want {
		b.t.Errorf("the disk says %s, want %s", got, want)
	}
}

// tag is the name of an error on the wire.
func tag(err error) string {
	var t messages.Tagged
	var refused *messages.Refused
	switch {
	case err == nil:
		return ""
	case errors.As(err, &t):
		return t.Tag()
	case errors.As(err, &refused):
		return refused.Name
	}
	return "?" + err.Error()
}

// begun waits until a step has begun.
func begun(t testing.TB, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(within):
		t.Fatal("it did not begin")
	}
}

// eventually waits for something that is not told.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !f(); {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
