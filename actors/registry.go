package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"codework/messages"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// registry is the actor that knows the sandboxes and their drivers. It starts
// the actor of the sandbox that a message is for.
//
// At its start it reads the records and looks into what an older process may
// have left: messages about a driver's sandboxes wait for that. Those about the
// host never do.
type registry struct {
	registryDeps

	host     *Ref
	boxes    map[string]*Ref
	loading  bool
	failed   error           // the records cannot be read
	settling map[string]bool // by driver: what an older process left is being looked into
	held     []heldBox
	stopping bool // the process ends: nothing is made or woken
}

// registryDeps are what the registry shares with nobody but the shelf.
type registryDeps struct {
	store    Store
	shelf    *shelf
	local    sandboxes.Sandbox
	drivers  map[string]sandboxes.Driver
	server   string
	settings sandboxSettings
	idle     time.Duration
}

// idleConnection is how long a connection stays that nobody uses.
const idleConnection = 30 * time.Second

type heldBox struct {
	driver string
	m      any
	reply  Reply
}

type (
	// boxCall is a call about sandboxes: create, register, stop, destroy.
	boxCall struct {
		ctx     context.Context
		m       any
		world   *messages.World
		hostDir string // whose settings count, and the project of what is made
	}
	// toBox is a message for the actor of a sandbox.
	toBox struct {
		id string
		m  any
	}
	// unmountAll ends a session's mounts: on the host, or everywhere.
	unmountAll struct {
		session  string
		onlyHost bool
	}
	stopAll     struct{} // stop what is ours; the answer comes when that is done
	listDrivers struct {
		ctx   context.Context
		world *messages.World // whose settings count; nil: the server's own
	}
	listBoxes struct{}

	boxesLoaded struct {
		records []messages.SandboxRecord
		err     error
	}
	settled struct{ driver string }
	toMake  struct {
		ctx    context.Context
		record messages.SandboxRecord
		lookup credentials.Lookup
		reply  Reply
		err    error
	}
	resolved struct {
		ctx    context.Context
		record messages.SandboxRecord
		lookup credentials.Lookup
		reply  Reply
		err    error
	}
)

// checkDrivers refuses drivers that contradict themselves or each other.
func checkDrivers(list []sandboxes.Driver) (map[string]sandboxes.Driver, error) {
	drivers := map[string]sandboxes.Driver{}
	for _, d := range list {
		name := d.Name()
		_, destroys := d.(sandboxes.Destroyer)
		_, stops := d.(sandboxes.Stopper)
		switch {
		case name == "" || name == messages.LocalSandbox:
			return nil, fmt.Errorf("a sandbox driver cannot be called %q", name)
		case drivers[name] != nil:
			return nil, fmt.Errorf("two sandbox drivers are called %s", name)
		case destroys && !stops:
			return nil, fmt.Errorf("sandbox driver %s removes sandboxes that it cannot stop", name)
		}
		drivers[name] = d
	}
	return drivers, nil
}

func newRegistry(d registryDeps) func() Actor {
	return func() Actor { return &registry{registryDeps: d, boxes: map[string]*Ref{}, settling: map[string]bool{}} }
}

func (r *registry) Receive(me *Self, m any) {
	switch m := m.(type) {
	case Started:
		r.start(me)
	case boxesLoaded:
		r.loaded(me, m)
	case settled:
		delete(r.settling, m.driver)
		r.release(me)
	case toMake:
		r.make(me, m)
	case resolved:
		r.register(me, m)
	case leftMount:
		me.Forward(r.host, m)
	case restMounts:
		r.host.Tell(m) // elsewhere they go with their connection
	case unmountAll:
		r.host.Tell(unmount{m.session})
		if !m.onlyHost {
			for _, b := range r.boxes {
				b.Tell(unmount{m.session})
			}
		}
	case Ended:
		if m.Child == r.host {
			me.Log().Error("the host's sandbox has failed too often")
			me.Ref().Stop()
			return
		}
		maps.DeleteFunc(r.boxes, func(_ string, b *Ref) bool { return b == m.Child })
	default:
		r.handle(me, m)
	}
}

func (r *registry) handle(me *Self, m any) {
	switch m := m.(type) {
	case boxCall:
		r.call(me, m)
	case toBox:
		r.route(me, m)
	case stopAll:
		r.stopAll(me)
	case listDrivers:
		r.listDrivers(me, m)
	case listBoxes:
		// What lived in an older process is looked into at once, without asking
		// anybody far away.
		for name := range r.settling {
			if d := r.drivers[name]; d != nil && d.Kind() == messages.KindVirtual {
				r.hold(me, name, m)
				return
			}
		}
		if r.waits("") {
			r.hold(me, "", m)
			return
		}
		me.Answer(r.shelf.infos(), r.failed)
	}
}

// start brings up the host and reads the records.
func (r *registry) start(me *Self) {
	r.host = me.Spawn(newSandbox(sandbox{row: row{messages.LocalSandbox, r.store, r.shelf}, conn: r.local})).Named(messages.LocalSandbox)
	r.loading = true
	store := r.store
	me.Go(func(ctx context.Context) any {
		records, err := store.Sandboxes(ctx)
		return boxesLoaded{records, err}
	})
}

// loaded puts the records on the shelf and looks into those that were not left
// in order.
func (r *registry) loaded(me *Self, m boxesLoaded) {
	r.loading = false
	if m.err != nil {
		me.Log().Error("the list of sandboxes cannot be read", "err", m.err)
		r.failed = &messages.Refused{Name: messages.RefusedStore, Message: "the list of sandboxes cannot be read: " + m.err.Error()}
	}
	left := map[string][]messages.SandboxRecord{}
	for _, rec := range m.records {
		r.shelf.put(rec)
		if r.unsettled(rec) {
			left[rec.Driver] = append(left[rec.Driver], rec)
		}
	}
	for driver, records := range left {
		r.settling[driver] = true
		me.Go(func(ctx context.Context) any {
			r.settle(ctx, me, driver, records)
			return settled{driver}
		})
	}
	r.release(me)
}

// waits tells whether a message has to wait: for the records, or for what an
// older process left of a driver.
func (r *registry) waits(driver string) bool { return r.loading || r.settling[driver] }

func (r *registry) hold(me *Self, driver string, m any) {
	r.held = append(r.held, heldBox{driver, m, me.TakeReply()})
}

// release goes on with what does not have to wait any more.
func (r *registry) release(me *Self) {
	held := r.held
	r.held = nil
	for _, h := range held {
		if r.waits(h.driver) {
			r.held = append(r.held, h)
			continue
		}
		me.reply = h.reply
		r.handle(me, h.m)
		me.reply = Reply{}
	}
}

// route hands a message to the actor of its sandbox.
func (r *registry) route(me *Self, m toBox) {
	if messages.IsHost(m.id) {
		me.Forward(r.host, m.m)
		return
	}
	if r.waits("") {
		r.hold(me, "", m)
		return
	}
	if _, ok := m.m.(mountFor); ok && r.stopping {
		me.Answer(nil, errDraining)
		return
	}
	rec, ok := r.shelf.get(m.id)
	switch {
	case r.failed != nil:
		me.Answer(nil, r.failed)
	case !ok:
		me.Answer(nil, &messages.SandboxNotFound{ID: m.id})
	case rec.Status == messages.SandboxRemovedState:
		me.Answer(nil, sandboxRemoved(rec))
	case r.waits(rec.Driver):
		r.hold(me, rec.Driver, m)
	case r.drivers[rec.Driver] == nil:
		me.Answer(nil, r.noDriver(rec.Driver))
	default:
		me.Forward(r.box(me, rec.ID, rec.Driver), m.m)
	}
}

// box is the actor of a sandbox, which is started if need be.
func (r *registry) box(me *Self, id, driver string) *Ref {
	b := r.boxes[id]
	if b == nil {
		b = me.Spawn(newSandbox(sandbox{row: row{id, r.store, r.shelf}, driver: r.drivers[driver], server: r.server, idle: r.idle})).Named(id)
		r.boxes[id] = b
	}
	return b
}

// maxNamed is how many drivers an error names.
const maxNamed = 5

func (r *registry) noDriver(name string) error {
	names := append(slices.Collect(maps.Keys(r.drivers)), messages.LocalSandbox)
	slices.Sort(names)
	return &messages.SandboxDriverNotRegistered{Driver: name, Registered: names[:min(len(names), maxNamed)]}
}

// call answers the calls about sandboxes.
func (r *registry) call(me *Self, c boxCall) {
	switch m := c.m.(type) {
	case messages.CreateSandbox:
		if m.Driver == messages.LocalSandbox {
			me.Answer(nil, &messages.SandboxUnsupported{Driver: m.Driver, Operation: "create"})
			return
		}
		r.create(me, c, m)
	case messages.RegisterSandbox:
		r.find(me, c, m)
	case messages.StopSandbox:
		if messages.IsHost(m.SandboxID) {
			me.Answer(nil, &messages.SandboxUnsupported{ID: m.SandboxID, Driver: messages.LocalSandbox, Operation: "stop"})
			return
		}
		r.route(me, toBox{m.SandboxID, stopBox{ctx: c.ctx}})
	case messages.DestroySandbox:
		if messages.IsHost(m.SandboxID) {
			me.Answer(nil, &messages.SandboxUnsupported{ID: m.SandboxID, Driver: messages.LocalSandbox, Operation: "destroy"})
			return
		}
		r.route(me, toBox{m.SandboxID, destroyBox{c.ctx}})
	}
}

// mayBegin tells whether a driver can be asked for a sandbox now. If it cannot,
// the call is answered, or waits.
func (r *registry) mayBegin(me *Self, c boxCall, driver string) (sandboxes.Driver, bool) {
	d := r.drivers[driver]
	switch {
	case r.stopping:
		me.Answer(nil, errDraining)
	case d == nil:
		me.Answer(nil, r.noDriver(driver))
	case r.waits(driver):
		r.hold(me, driver, c)
	case r.failed != nil:
		me.Answer(nil, r.failed)
	default:
		return d, true
	}
	return nil, false
}

// create makes a managed sandbox.
func (r *registry) create(me *Self, c boxCall, m messages.CreateSandbox) {
	d, ok := r.mayBegin(me, c, m.Driver)
	if !ok {
		return
	}
	reply := me.TakeReply()
	me.Go(func(ctx context.Context) any {
		ctx, cancel := joined(ctx, c.ctx)
		defer cancel()
		rec, err := r.newRecord(ctx, d, c, m.Config)
		rec.Ownership, rec.Status = messages.SandboxManaged, messages.SandboxProvisioning
		return toMake{c.ctx, rec, lookupIn(c.world), reply, err}
	})
}

// joined is a context that ends with either.
func joined(ctx, caller context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if caller == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(caller, cancel)
	return ctx, func() { stop(); cancel() }
}

// newRecord is a sandbox of a driver that works here, with the configuration
// that settings and call come to.
func (r *registry) newRecord(ctx context.Context, d sandboxes.Driver, c boxCall, own json.RawMessage) (messages.SandboxRecord, error) {
	now := time.Now().UnixMilli()
	rec := messages.SandboxRecord{ID: messages.NewSandboxID(), Driver: d.Name(), Kind: d.Kind(), CreatedAt: now, UpdatedAt: now}
	if filepath.IsAbs(c.hostDir) {
		rec.Project = c.hostDir
	}
	set, err := r.settings(c.hostDir, c.world)
	if err != nil {
		return rec, &messages.SandboxDriverRegistration{Driver: rec.Driver, Reason: "its settings cannot be read: " + err.Error()}
	}
	if rec.Config, err = joinConfig(driverConfig(set, rec.Driver), own); err != nil {
		return rec, err
	}
	if err := checkSecrets(rec.Driver, rec.Config); err != nil {
		return rec, err
	}
	if err := r.available(ctx, d, rec, c.world); err != nil {
		return rec, &messages.SandboxDriverRegistration{Driver: rec.Driver, Reason: err.Error()}
	}
	return rec, nil
}

// available tells whether a driver works here with what a record says to it.
func (r *registry) available(ctx context.Context, d sandboxes.Driver, rec messages.SandboxRecord, w *messages.World) error {
	clean := &cleaner{}
	spec := sandboxes.Spec{Server: r.server, Project: rec.Project, Config: rec.Config, Lookup: clean.through(lookupIn(w))}
	_, err := insist(ctx, lookLimit, func(ctx context.Context) (any, error) { return nil, d.Available(ctx, spec) }, nil)
	return clean.error(err)
}

func (r *registry) make(me *Self, m toMake) {
	switch {
	case m.err != nil:
		m.reply.Send(nil, m.err)
	case r.stopping:
		m.reply.Send(nil, errDraining)
	default:
		r.box(me, m.record.ID, m.record.Driver).pass(makeBox{m.ctx, m.record, m.lookup}, m.reply)
	}
}

// find registers a sandbox that somebody else made, or finds it again.
func (r *registry) find(me *Self, c boxCall, m messages.RegisterSandbox) {
	refuse := func(why string) {
		me.Answer(nil, &messages.SandboxDriverRegistration{Driver: m.Driver, Reason: why})
	}
	if m.Driver == messages.LocalSandbox {
		refuse(noResources)
		return
	}
	d, ok := r.mayBegin(me, c, m.Driver)
	if !ok {
		return
	}
	registrar, ok := d.(sandboxes.Registrar)
	if !ok {
		refuse("it takes no sandboxes that somebody else made")
		return
	}
	if err := messages.ValidateResourceID(m.ProviderResourceID); err != nil {
		refuse(err.Error())
		return
	}
	reply := me.TakeReply()
	me.Go(func(ctx context.Context) any {
		ctx, cancel := joined(ctx, c.ctx)
		defer cancel()
		out := resolved{ctx: c.ctx, lookup: lookupIn(c.world), reply: reply}
		rec, err := r.newRecord(ctx, d, c, m.Config)
		rec.Ownership, rec.ResourceID = messages.SandboxExternal, m.ProviderResourceID
		if known, ok := r.known(rec); err == nil && ok && known.Status != messages.SandboxUnavail && known.Status != messages.SandboxFaulted {
			out.record, out.err = rec, nil // the provider need not be asked
			return out
		}
		if err == nil {
			clean := &cleaner{}
			spec := sandboxes.Spec{ID: rec.ID, Server: r.server, Project: rec.Project, Config: rec.Config, Lookup: clean.through(lookupIn(c.world))}
			var have sandboxes.Resource
			have, err = insist(ctx, reachLimit, func(ctx context.Context) (sandboxes.Resource, error) {
				return registrar.Resolve(ctx, spec, m.ProviderResourceID)
			}, nil)
			switch {
			case errors.Is(err, sandboxes.ErrNotFound):
				err = &messages.SandboxDriverRegistration{Driver: m.Driver, Reason: "its provider does not know that resource"}
			case err == nil && !filepath.IsAbs(have.Dir):
				err = &messages.SandboxDriverRegistration{Driver: m.Driver, Reason: "the driver names no absolute working directory"}
			case err != nil:
				err = wireFailure(clean, rec.ID, m.Driver, "register", err)
			}
			keep(&rec, have)
			rec.Status = observed(have.Status)
		}
		out.record, out.err = rec, err
		return out
	})
}

// known is the sandbox that is there already for a driver's resource.
func (r *registry) known(rec messages.SandboxRecord) (messages.SandboxRecord, bool) {
	for _, old := range r.shelf.all() {
		if old.Driver == rec.Driver && old.ResourceID == rec.ResourceID && old.Status != messages.SandboxRemovedState {
			return old, true
		}
	}
	return messages.SandboxRecord{}, false
}

// register takes a resource that was found. The same one again is the same
// sandbox.
func (r *registry) register(me *Self, m resolved) {
	refuse := func(why string) {
		m.reply.Send(nil, &messages.SandboxDriverRegistration{Driver: m.record.Driver, Reason: why})
	}
	old, ok := r.known(m.record)
	switch {
	case m.err != nil:
		m.reply.Send(nil, m.err)
	case ok && old.Ownership != messages.SandboxExternal:
		refuse("that is a sandbox of this server: use it by its id " + old.ID)
	case ok && !sameConfig(old.Config, m.record.Config):
		refuse("that resource is registered as " + old.ID + " with another configuration")
	case ok && (old.Status == messages.SandboxUnavail || old.Status == messages.SandboxFaulted):
		r.box(me, old.ID, old.Driver).pass(lookAt{m.ctx, m.lookup}, m.reply)
	case ok:
		m.reply.Send(old.Info(r.shelf.count(old.ID)), nil)
	case r.stopping:
		m.reply.Send(nil, errDraining)
	default:
		// On the shelf first: whoever names the same resource meanwhile finds it.
		rec := m.record
		row := row{rec.ID, r.store, r.shelf}
		r.shelf.put(rec)
		me.Go(func(ctx context.Context) any {
			if err := row.insert(ctx, rec); err != nil {
				r.shelf.drop(rec.ID)
				m.reply.Send(nil, err)
				return nil
			}
			m.reply.Send(rec.Info(r.shelf.count(rec.ID)), nil)
			return nil
		})
	}
}

func sameConfig(a, b json.RawMessage) bool {
	var x, y any
	if len(a) > 0 && json.Unmarshal(a, &x) != nil || len(b) > 0 && json.Unmarshal(b, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}

// listDrivers tells which drivers there are, and whether they work here.
func (r *registry) listDrivers(me *Self, m listDrivers) {
	reply, drivers := me.TakeReply(), r.drivers
	me.Go(func(ctx context.Context) any {
		ctx, cancel := joined(ctx, m.ctx)
		defer cancel()
		dir := ""
		if m.world != nil {
			dir = m.world.Dir
		}
		set, unread := r.settings(dir, m.world)
		out := []messages.DriverInfo{}
		for _, name := range slices.Sorted(maps.Keys(drivers)) {
			out = append(out, messages.DriverInfo{Name: name, Kind: drivers[name].Kind()})
		}
		var probes sync.WaitGroup
		for i := range out {
			probes.Go(func() {
				d := drivers[out[i].Name]
				err := unread
				if err == nil {
					var config json.RawMessage
					if config, err = joinConfig(driverConfig(set, d.Name()), nil); err == nil {
						rec := messages.SandboxRecord{Config: config, Project: dir}
						err = r.available(ctx, d, rec, m.world)
					}
				}
				works := err == nil
				out[i].Available = &works
				if err != nil {
					out[i].Reason = (&cleaner{}).text(err.Error())
				}
			})
		}
		probes.Wait()
		reply.Send(out, nil)
		return nil
	})
}

// stopAll stops every sandbox of ours that may be running, whoever uses it, and
// makes and wakes none from now on.
func (r *registry) stopAll(me *Self) {
	r.stopping = true
	held := r.held
	r.held = nil
	for _, h := range held { // what waits is not begun any more
		h.reply.Send(nil, errDraining)
	}
	var ends []func(context.Context) (any, error)
	for _, rec := range r.shelf.all() {
		if rec.Ownership != messages.SandboxManaged || r.drivers[rec.Driver] == nil || r.settling[rec.Driver] {
			continue
		}
		if _, ok := r.drivers[rec.Driver].(sandboxes.Stopper); !ok {
			continue
		}
		switch rec.Status {
		case messages.SandboxOffline, messages.SandboxUnavail, messages.SandboxRemovedState, messages.SandboxRemoving:
		default:
			ends = append(ends, r.box(me, rec.ID, rec.Driver).request(stopBox{force: true}))
		}
	}
	reply := me.TakeReply()
	me.Go(func(ctx context.Context) any {
		var failed error
		for _, end := range ends {
			_, err := end(ctx)
			failed = errors.Join(failed, err)
		}
		reply.Send(nil, failed)
		return nil
	})
}
