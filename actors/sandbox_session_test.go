package actors

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"codework/internal/settings"
	"codework/internal/store"
	"codework/internal/tools"
	"codework/messages"
	"codework/sandboxes"
)

func TestEveryFormOfAReferenceToASandbox(t *testing.T) {
	near := newPlayedDriver("near", messages.KindVirtual)
	b := newBoxRig(t, near, bareDriver{newPlayedDriver("bare", messages.KindVirtual)})
	online, removed := b.make("far").ID, b.make("far").ID
	if err := errors.Join(b.stop(removed), b.destroy(removed)); err != nil {
		t.Fatal(err)
	}
	b.d.put("theirs", "", messages.SandboxOnline)
	for _, tc := range []struct {
		ref       *messages.SandboxRef
		directory string
		want      string // where it works, or the tag of the error
		makes     int
	}{
		{nil, "", "/", 0},
		{nil, "tmp", "/tmp", 0},
		{&messages.SandboxRef{ID: "local"}, "/tmp", "/tmp", 0},
		{&messages.SandboxRef{Driver: "local"}, "/tmp", "/tmp", 0},
		{&messages.SandboxRef{Driver: "local"}, "/tmp/does/not/exist", "Location.DirectoryNotFoundError", 0},
		{&messages.SandboxRef{Driver: "far"}, "", "/work", 1},
		{&messages.SandboxRef{Driver: "far"}, "sub", "/work/sub", 1},
		{&messages.SandboxRef{Driver: "far"}, "/srv", "/srv", 1},
		{&messages.SandboxRef{Driver: "near"}, "", "/work", 1},
		{&messages.SandboxRef{Driver: "near"}, "sub", "/sub", 1},
		{&messages.SandboxRef{ID: online}, "", "/work", 0},
		{&messages.SandboxRef{Driver: "far", ProviderResourceID: "theirs"}, "", "/work", 1},
		{&messages.SandboxRef{Driver: "far", ProviderResourceID: "theirs"}, "x", "/theirs/x", 0},
		{&messages.SandboxRef{Driver: "near"}, "missing", "Location.DirectoryNotFoundError", 1},
		{&messages.SandboxRef{Driver: "near"}, "file", "Location.NotDirectoryError", 1},
		{&messages.SandboxRef{ID: online}, "/missing", "Location.DirectoryNotFoundError", 0},
		{&messages.SandboxRef{ID: "sbx_none"}, "", "SandboxNotFoundError", 0},
		{&messages.SandboxRef{ID: removed}, "", "SandboxRemovedError", 0},
		{&messages.SandboxRef{Driver: "nope"}, "", "SandboxDriverNotRegisteredError", 0},
		{&messages.SandboxRef{Driver: "local", ProviderResourceID: "x"}, "", "SandboxDriverRegistrationError", 0},
		{&messages.SandboxRef{Driver: "bare", ProviderResourceID: "x"}, "", "SandboxDriverRegistrationError", 0},
		{&messages.SandboxRef{}, "", "?sandbox: expected id or driver", 0},
		{&messages.SandboxRef{ProviderResourceID: "x"}, "", "?sandbox: expected id or driver", 0},
		{&messages.SandboxRef{ID: online, Driver: "far"}, "", "?sandbox: id goes without driver and providerResourceId", 0},
		{&messages.SandboxRef{ID: online, ProviderResourceID: "x"}, "", "?sandbox: id goes without driver and providerResourceId", 0},
		{&messages.SandboxRef{Driver: "far", ProviderResourceID: "a b"}, "", "?sandbox.providerResourceId: a resource id holds no spaces or control characters", 0},
	} {
		before := b.list()
		info, err := b.session(messages.CreateSession{Sandbox: tc.ref, Directory: tc.directory})
		after := b.list()
		if got := len(after) - len(before); got != tc.makes {
			t.Errorf("%+v %q: %d sandboxes were made", tc.ref, tc.directory, got)
		}
		if err != nil {
			if tag(err) != tc.want {
				t.Errorf("%+v %q: %v", tc.ref, tc.directory, err)
			}
			if tc.makes > 0 && after[len(after)-1].Status != messages.SandboxOffline {
				t.Errorf("%+v %q: the sandbox that was made for nothing is %s", tc.ref, tc.directory, after[len(after)-1].Status)
			}
			continue
		}
		if info.Directory != tc.want {
			t.Errorf("%+v %q works in %s, want %s", tc.ref, tc.directory, info.Directory, tc.want)
		}
		onHost := tc.ref == nil || tc.ref.ID == "local" || tc.ref.Driver == "local"
		if onHost != (info.Sandbox == nil) || !onHost && info.Sandbox.Status != messages.SandboxOnline {
			t.Errorf("%+v shows the sandbox %+v", tc.ref, info.Sandbox)
		}
	}
	b.is(online, messages.SandboxOnline) // one that was there is left alone
	for _, i := range b.list() {
		if i.RefCount != 0 {
			t.Errorf("%s is used by %d", i.ID, i.RefCount)
		}
	}
	var missing *messages.DirectoryNotFound
	if _, err := b.session(messages.CreateSession{Sandbox: &messages.SandboxRef{ID: online}, Directory: "/missing"}); !errors.As(err, &missing) || missing.SandboxID != online {
		t.Errorf("a missing directory is told as %v", err)
	}
}

func TestASessionThatCannotBeStoredStopsTheSandboxThatWasMadeForIt(t *testing.T) {
	b := newBoxRig(t)
	b.flaky.failWhen(func(batch store.Batch) error {
		if batch.Record != nil {
			return &messages.Refused{Name: messages.RefusedStore, Message: "no room"}
		}
		return nil
	})
	if _, err := b.session(messages.CreateSession{Sandbox: &messages.SandboxRef{Driver: "far"}}); tag(err) != "StoreError" {
		t.Fatalf("got %v", err)
	}
	b.is(b.list()[1].ID, messages.SandboxOffline)
}

func TestASandboxIsBusyWhileSessionsWorkInIt(t *testing.T) {
	g := newGate()
	b := newBoxRig(t)
	b.with(func(ex *Exchange) {
		set, err := tools.NewSet(g.tool("gate"))
		if err != nil {
			t.Fatal(err)
		}
		ex.Tools = set
	})
	id := b.make("far").ID
	var sessions []string
	for range 2 {
		info, err := b.session(messages.CreateSession{Sandbox: &messages.SandboxRef{ID: id}})
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, info.ID)
	}
	if n := b.info(id).RefCount; n != 0 {
		t.Errorf("idle sessions count as %d uses", n)
	}
	for n, s := range sessions {
		b.prompt(s, "go", messages.Steer)
		b.model.next(t).call(toolCall("c", "gate", "{}"))
		g.wait(t)
		if i := b.info(id); i.RefCount != n+1 || i.Usage != "busy" {
			t.Errorf("with %d at work it shows %+v", n+1, i)
		}
	}
	if err := b.stop(id); tag(err) != "SandboxBusyError" {
		t.Errorf("a stop: %v", err)
	}
	if v, err := b.to(sessions[0], messages.GetSession{SessionID: sessions[0]}); err != nil || v.(messages.SessionInfo).Sandbox.RefCount != 2 {
		t.Errorf("the session shows %+v, %v", v, err)
	}
	b.interrupt(sessions[0])
	b.wait(sessions[0])
	g.release <- struct{}{}
	b.model.next(t).answer("done")
	b.wait(sessions[1])
	if err := b.stop(id); err != nil {
		t.Errorf("a stop afterwards: %v", err)
	}
	// Idle sessions do not notice: the next prompt wakes it.
	b.prompt(sessions[1], "again", messages.Steer)
	b.model.next(t).answer("here")
	b.wait(sessions[1])
	b.is(id, messages.SandboxOnline)
}

func TestAPromptForASandboxThatIsGoneFailsAndSaysWhy(t *testing.T) {
	b := newBoxRig(t)
	info, err := b.session(messages.CreateSession{Sandbox: &messages.SandboxRef{Driver: "far"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.stop(info.Sandbox.ID); err != nil {
		t.Fatal(err)
	}
	b.d.lose("res-" + info.Sandbox.ID)
	b.prompt(info.ID, "go", messages.Steer)
	d := b.events.until(t, info.ID, messages.EventExecutionFailed, 1)
	if d.Error.Type != messages.FailSandboxMount || !strings.Contains(d.Error.Message, info.Sandbox.ID) {
		t.Errorf("it failed with %+v", d.Error)
	}
	if n := b.info(info.Sandbox.ID).RefCount; n != 0 {
		t.Errorf("%d still use it", n)
	}
}

func TestRelinkMovesASessionOrChangesNothing(t *testing.T) {
	b := newBoxRig(t)
	id := b.create()
	relink := func(ref *messages.SandboxRef, dir string) (messages.SessionInfo, error) {
		v, err := b.to(id, messages.Relink{SessionID: id, Sandbox: ref, Directory: dir})
		i, _ := v.(messages.SessionInfo)
		return i, err
	}
	i, err := relink(&messages.SandboxRef{Driver: "far"}, "")
	if err != nil || i.Sandbox == nil || i.Directory != "/work" {
		t.Fatalf("moved to %+v, %v", i, err)
	}
	box := i.Sandbox.ID
	if i, err = relink(nil, "sub"); err != nil || i.Sandbox.ID != box || i.Directory != "/work/sub" {
		t.Errorf("a directory below: %+v, %v", i, err)
	}
	if _, err = relink(&messages.SandboxRef{Driver: "far"}, "missing"); tag(err) != "Location.DirectoryNotFoundError" {
		t.Errorf("to a missing directory: %v", err)
	}
	if l := b.list(); len(l) != 3 || l[2].Status != messages.SandboxOffline {
		t.Errorf("what a failed relink made: %+v", l)
	}
	if v, err := b.to(id, messages.GetSession{SessionID: id}); err != nil || v.(messages.SessionInfo).Directory != "/work/sub" || v.(messages.SessionInfo).Sandbox.ID != box {
		t.Errorf("it changed the session to %+v", v)
	}
	if i, err = relink(&messages.SandboxRef{ID: "local"}, "/tmp"); err != nil || i.Sandbox != nil || i.Directory != "/tmp" {
		t.Errorf("back on the host: %+v, %v", i, err)
	}
	b.is(box, messages.SandboxOnline)
}

func TestTheSettingsOfADirectoryChooseTheSandbox(t *testing.T) {
	var asked []string
	say := settings.Sandbox{Driver: "far", Network: settings.Network{None: true}, Limits: settings.Limits{Processes: 7}}
	var broken error
	b := newBoxRigWith(t, func(c *Config) {
		c.Sandboxes = func(hostDir string, _ *messages.World) (settings.Sandbox, error) {
			asked = append(asked, hostDir)
			return say, broken
		}
	})
	i, err := b.session(messages.CreateSession{HostDir: "/srv/app", Directory: "/srv/app"})
	if err != nil {
		t.Fatal(err)
	}
	if i.Sandbox == nil || i.Sandbox.Driver != "far" || i.Directory != "/work" || !slices.Contains(asked, "/srv/app") {
		t.Errorf("it works in %+v", i)
	}
	r := b.stored(i.Sandbox.ID)
	if string(r.Config) != `{"limits":{"processes":7},"network":"none"}` || r.Project != "/srv/app" {
		t.Errorf("the driver is told %s for %s", r.Config, r.Project)
	}
	v, err := b.call(messages.CreateSandbox{Driver: "far", Config: json.RawMessage(`{"network":"host","limits":{"cpus":2}}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(b.stored(v.(messages.SandboxInfo).ID).Config); got != `{"limits":{"cpus":2,"processes":7},"network":"host"}` {
		t.Errorf("with its own configuration a call comes to %s", got)
	}
	if i, err = b.session(messages.CreateSession{HostDir: "/", Directory: "/", Sandbox: &messages.SandboxRef{Driver: "local"}}); err != nil || i.Sandbox != nil {
		t.Errorf("asked for by name, the host is %+v, %v", i, err)
	}
	// Where nobody can say, nobody decides: the exchange fails, not open.
	broken = errors.New("settings.json: not JSON")
	i, err = b.session(messages.CreateSession{HostDir: "/srv/app", Directory: "/"})
	if err != nil || i.Sandbox != nil {
		t.Fatalf("with unreadable settings: %+v, %v", i, err)
	}
	rec, err := b.store.Record(i.ID)
	if err != nil || rec.SandboxID != "" {
		t.Errorf("the record names %q", rec.SandboxID)
	}
	if beyondHost(say, rec.SandboxID) == "" {
		t.Error("such a session works on the host against its settings")
	}
}

func TestAConnectionThatNobodyUsesIsClosedAndOpenedAgain(t *testing.T) {
	b := newBoxRigWith(t, func(c *Config) { c.idleConnection = time.Millisecond })
	id := b.make("far").ID
	for n := 1; n <= 2; n++ {
		_, leave, err := b.system.places.visit(b.ctx, id, "somebody", sandboxes.MountOptions{Umask: -1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		leave()
		eventually(t, "the connection is closed", func() bool { return b.d.count("close") == n })
		if b.d.count("attach") != n {
			t.Errorf("it attached %d times", b.d.count("attach"))
		}
	}
	b.is(id, messages.SandboxOnline)
}

func TestAConnectionOnWhichSomethingHangsIsKept(t *testing.T) {
	b := newBoxRig(t)
	p, err := b.mount(b.make("far").ID, "ses_1")
	if err != nil {
		t.Fatal(err)
	}
	w := p.mount.(*watched)
	run := func(c sandboxes.Command) {
		t.Helper()
		if _, err := w.Run(b.ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	run(sandboxes.Command{Argv: []string{"true"}})
	if w.keeps() {
		t.Error("a command that is over holds the connection")
	}
	run(sandboxes.Command{Argv: []string{"true"}, Full: "/scratch/1"})
	if !w.keeps() {
		t.Error("a file with output that is left does not hold it")
	}
	w.mu.Lock()
	delete(w.kept, "/scratch/1")
	w.mu.Unlock()
	run(sandboxes.Command{Argv: []string{"background"}})
	if !w.keeps() {
		t.Error("a background job does not hold it")
	}
}

func TestACallAfterALostConnectionRunsOnTheNextOne(t *testing.T) {
	b := newBoxRig(t)
	id := b.make("far").ID
	p, err := b.mount(id, "ses_1")
	if err != nil {
		t.Fatal(err)
	}
	lose := func() {
		b.d.mu.Lock()
		conn := b.d.conns[len(b.d.conns)-1]
		b.d.mu.Unlock()
		close(conn.lost)
		begun(t, conn.closed)
	}
	do := func() (got sandboxes.Mount) {
		done := make(chan struct{})
		p.Do(b.ctx, func(_ context.Context, m sandboxes.Mount) { got = m }, func() { close(done) })
		begun(t, done)
		return got
	}
	if do() != p.mount {
		t.Error("the mount changed without a reason")
	}
	lose()
	again := do()
	if again == nil || again == p.mount {
		t.Errorf("it ran on %v", again)
	}
	if _, err := again.Run(b.ctx, sandboxes.Command{Argv: []string{"true"}}); err != nil {
		t.Error(err)
	}
	lose()
	b.d.at("attach", fails("no route to host"))
	_, err = do().Run(b.ctx, sandboxes.Command{Argv: []string{"true"}})
	if err == nil || !strings.Contains(err.Error(), "no route to host") {
		t.Errorf("a call without a sandbox says %v", err)
	}
	b.is(id, messages.SandboxFaulted)
}

func TestTheEndOfTheServerStopsWhatItMade(t *testing.T) {
	b := newBoxRig(t)
	idle, used := b.make("far").ID, b.make("far").ID
	b.d.put("theirs", "", messages.SandboxOnline)
	v, err := b.call(messages.RegisterSandbox{Driver: "far", ProviderResourceID: "theirs"})
	if err != nil {
		t.Fatal(err)
	}
	theirs := v.(messages.SandboxInfo).ID
	if _, err := b.mount(theirs, "ses_1"); err != nil {
		t.Fatal(err)
	}
	p, leave, err := b.system.places.visit(b.ctx, used, "somebody", sandboxes.MountOptions{Umask: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	ended := make(chan error, 1)
	waits := make(chan struct{}, 1)
	go func() {
		_, err := p.mount.Run(b.ctx, sandboxes.Command{Argv: []string{"wait"}, Output: func(sandboxes.Stream, []byte) { waits <- struct{}{} }})
		ended <- err
	}()
	begun(t, waits)
	creating := make(chan struct{}, 8)
	b.d.at("create", hangs(creating))
	made := make(chan error, 1)
	go func() {
		_, err := b.call(messages.CreateSandbox{Driver: "far"})
		made <- err
	}()
	begun(t, creating)

	if err := b.system.StopSandboxes(b.ctx); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("a command went on")
	}
	if err := <-made; err == nil {
		t.Error("a sandbox was made meanwhile")
	}
	b.is(idle, messages.SandboxOffline)
	b.is(used, messages.SandboxOffline)
	b.is(theirs, messages.SandboxOnline)
	if st := b.d.status("theirs"); st != messages.SandboxOnline {
		t.Errorf("the resource of somebody else is %s", st)
	}
	if _, err := b.call(messages.CreateSandbox{Driver: "far"}); tag(err) != "ShutdownError" {
		t.Errorf("a creation afterwards: %v", err)
	}
	if _, err := b.mount(idle, "ses_2"); tag(err) != "ShutdownError" {
		t.Errorf("a mount afterwards: %v", err)
	}
	for _, i := range b.list() {
		if i.Status == messages.SandboxProvisioning || i.Status == messages.SandboxSuspending {
			t.Errorf("%s is left %s", i.ID, i.Status)
		}
	}
}

func TestDriversThatContradictThemselvesStopTheStart(t *testing.T) {
	far := func() sandboxes.Driver { return newPlayedDriver("far", messages.KindRemote) }
	for name, list := range map[string][]sandboxes.Driver{
		"the same name twice": {far(), far()},
		"the host's name":     {newPlayedDriver("local", messages.KindLocal)},
		"no name":             {newPlayedDriver("", messages.KindRemote)},
		"removes what it cannot stop": {struct {
			bareDriver
			sandboxes.Destroyer
		}{bareDriver{far()}, far().(sandboxes.Destroyer)}},
	} {
		if _, err := Boot(t.Context(), Config{Drivers: list, Local: nowhere{}}, Identity{}, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: it started", name)
		}
	}
}

func TestWhatAnOlderProcessLeftIsLookedInto(t *testing.T) {
	far := newPlayedDriver("far", messages.KindRemote)
	blind := bareDriver{newPlayedDriver("blind", messages.KindRemote)}
	virtual := newPlayedDriver("near", messages.KindVirtual)
	for _, tc := range []struct {
		name     string
		driver   string
		was      messages.SandboxStatus
		external bool
		resource messages.SandboxStatus // "" is gone
		want     messages.SandboxStatus
	}{
		{"half made", "far", messages.SandboxProvisioning, false, "", messages.SandboxFaulted},
		{"half made, by a driver that is not there any more", "lost", messages.SandboxProvisioning, false, "", messages.SandboxFaulted},
		{"half stopped, and running", "far", messages.SandboxSuspending, false, messages.SandboxOnline, messages.SandboxOffline},
		{"half stopped, and stopped", "far", messages.SandboxSuspending, false, messages.SandboxOffline, messages.SandboxOffline},
		{"half stopped, and gone", "far", messages.SandboxSuspending, false, "", messages.SandboxUnavail},
		{"half removed, and there", "far", messages.SandboxRemoving, false, messages.SandboxOffline, messages.SandboxOffline},
		{"half removed, and gone", "far", messages.SandboxRemoving, false, "", messages.SandboxUnavail},
		{"half stopped, by a driver that cannot look", "blind", messages.SandboxSuspending, false, messages.SandboxOnline, messages.SandboxFaulted},
		{"running", "far", messages.SandboxOnline, false, messages.SandboxOnline, messages.SandboxOffline},
		{"running, of somebody else", "far", messages.SandboxOnline, true, messages.SandboxOnline, messages.SandboxOnline},
		{"stopped", "far", messages.SandboxOffline, false, messages.SandboxOffline, messages.SandboxOffline},
		{"faulted, and running", "far", messages.SandboxFaulted, false, messages.SandboxOnline, messages.SandboxOffline},
		{"faulted, of somebody else", "far", messages.SandboxFaulted, true, messages.SandboxOnline, messages.SandboxFaulted},
		{"in the memory of the old process", "near", messages.SandboxOffline, false, "", messages.SandboxUnavail},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := messages.NewSandboxID()
			server := "server-1"
			rec := messages.SandboxRecord{ID: id, Driver: tc.driver, Kind: messages.KindRemote, Ownership: "managed", Status: tc.was, ResourceID: "res-" + id, Dir: "/work", CreatedAt: 1, UpdatedAt: 1}
			if tc.external {
				rec.Ownership, server = "external", ""
			}
			if tc.driver == "near" {
				rec.Kind = messages.KindVirtual
			}
			if tc.resource != "" {
				far.put(rec.ResourceID, server, tc.resource)
				blind.Driver.(*playedDriver).put(rec.ResourceID, server, tc.resource)
			}
			b := &boxRig{t: t, d: far}
			b.rig = newRigWith(t, func(c *Config) {
				if err := c.Store.SwapSandbox(t.Context(), rec); err != nil {
					t.Fatal(err)
				}
				c.Drivers, c.Server = []sandboxes.Driver{far, blind, virtual}, "server-1"
			})
			eventually(t, "it is looked into", func() bool { return b.info(id).Status == tc.want })
			b.is(id, tc.want)
			f := b.stored(id).Failure
			if tc.was == messages.SandboxProvisioning && (f == nil || f.Name != failCreation) {
				t.Errorf("the record says %+v", f)
			}
		})
	}
}

func TestTheListWaitsForNoProvider(t *testing.T) {
	far := newPlayedDriver("far", messages.KindRemote)
	sweeping := make(chan struct{}, 1)
	far.at("sweep", hangs(sweeping))
	rec := messages.SandboxRecord{ID: messages.NewSandboxID(), Driver: "far", Kind: messages.KindRemote, Ownership: "managed", Status: messages.SandboxOnline, ResourceID: "r", CreatedAt: 1}
	gone := rec
	gone.ID, gone.Driver = messages.NewSandboxID(), "not-here-any-more"
	b := &boxRig{t: t, d: far}
	b.rig = newRigWith(t, func(c *Config) {
		if err := errors.Join(c.Store.SwapSandbox(t.Context(), rec), c.Store.SwapSandbox(t.Context(), gone)); err != nil {
			t.Fatal(err)
		}
		c.Drivers = []sandboxes.Driver{far}
	})
	begun(t, sweeping)
	if l := b.list(); len(l) != 3 || l[1].ID != rec.ID || l[1].Status != messages.SandboxOnline {
		t.Errorf("the list is %+v", l)
	}
	if _, err := b.mount(gone.ID, "ses_1"); tag(err) != "SandboxDriverNotRegisteredError" {
		t.Errorf("without its driver: %v", err)
	}
}

// TestACrashBetweenAnyTwoSteps ends the process at every step of a life, and
// starts another one on what is left.
func TestACrashBetweenAnyTwoSteps(t *testing.T) {
	const most = 200
	for n := 0; ; n++ {
		if n == most {
			t.Fatal("the life does not come to an end")
		}
		dir := t.TempDir()
		d := newPlayedDriver("far", messages.KindRemote)
		d.put("of another server", "server-2", messages.SandboxOnline)
		d.put("of nobody", "", messages.SandboxOnline)
		whole := live(t, d, dir, &crash{left: n})
		settled := reopen(t, d, dir)
		for id, r := range d.resources {
			switch {
			case r.server != "server-1":
				if r.status != messages.SandboxOnline {
					t.Errorf("crash at %d: resource %q, which is not ours, is %s", n, id, r.status)
				}
			case r.status == messages.SandboxOnline:
				t.Errorf("crash at %d: %s still runs", n, id)
			case !slices.ContainsFunc(settled, func(rec messages.SandboxRecord) bool { return "res-"+rec.ID == id }):
				t.Errorf("crash at %d: nobody knows of %s", n, id)
			}
		}
		for _, rec := range settled {
			switch rec.Status {
			case messages.SandboxOffline, messages.SandboxUnavail, messages.SandboxRemovedState, messages.SandboxFaulted:
			default:
				t.Errorf("crash at %d: %s is left %s", n, rec.ID, rec.Status)
			}
			if rec.Status == messages.SandboxOffline && d.status(rec.ResourceID) != messages.SandboxOffline {
				t.Errorf("crash at %d: one that is offline is %q with its provider", n, d.status(rec.ResourceID))
			}
		}
		if whole {
			if n < 20 {
				t.Errorf("only %d steps were tried", n)
			}
			return
		}
	}
}

// live goes through a life until the crash; whole tells that it was none.
func live(t *testing.T, d *playedDriver, dir string, c *crash) (whole bool) {
	st, err := store.Open(t.Context(), store.Options{Dir: dir, MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	d.crash = c
	s, err := Boot(t.Context(), Config{Store: &boxStore{Store: st, crash: c}, Local: nowhere{}, Drivers: []sandboxes.Driver{d}, Server: "server-1"},
		Identity{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx := soon(t)
	ask := func(m any) (any, error) { return Ask[any](ctx, s.guardian, m) }
	whole = func() bool {
		v, err := ask(boxCall{ctx: ctx, m: messages.CreateSandbox{Driver: "far"}})
		if err != nil {
			return false
		}
		id := v.(messages.SandboxInfo).ID
		for _, m := range []any{
			toBox{id, mountFor{options: sandboxes.MountOptions{Session: "ses_1"}}},
			boxCall{ctx: ctx, m: messages.StopSandbox{SandboxID: id}},
			toBox{id, mountFor{options: sandboxes.MountOptions{Session: "ses_1"}}},
			boxCall{ctx: ctx, m: messages.StopSandbox{SandboxID: id}},
			boxCall{ctx: ctx, m: messages.DestroySandbox{SandboxID: id}},
		} {
			if _, err := ask(m); err != nil {
				return false
			}
		}
		return true
	}()
	s.Shutdown(ctx)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return whole
}

// reopen starts another process on the same store and returns what it makes of
// it.
func reopen(t *testing.T, d *playedDriver, dir string) []messages.SandboxRecord {
	st, err := store.Open(t.Context(), store.Options{Dir: dir, MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	d.mu.Lock()
	d.crash, d.play = nil, map[string]func(context.Context, sandboxes.Spec) error{}
	d.mu.Unlock()
	s, err := Boot(t.Context(), Config{Store: st, Local: nowhere{}, Drivers: []sandboxes.Driver{d}, Server: "server-1"}, Identity{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(soon(t))
	// A call about a driver's sandboxes comes behind what was left of them.
	if _, err := Ask[any](soon(t), s.guardian, boxCall{ctx: t.Context(), m: messages.RegisterSandbox{Driver: "far", ProviderResourceID: "no such"}}); err == nil {
		t.Error("something was registered that is not there")
	}
	all, err := st.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestConfigurationsAreLaidOverEachOther(t *testing.T) {
	set := settings.Sandbox{
		Network: settings.Network{Addresses: []string{"10.0.0.1:80"}}, Limits: settings.Limits{MemoryMiB: 64},
		Container: settings.Container{Image: "img", Pull: true}, SSH: settings.SSH{Host: "h", Port: 22},
		Daytona: settings.Daytona{APIKey: "${K}"}, Isolated: settings.Isolated{Write: []string{"/x"}},
	}
	common := `"limits":{"memoryMiB":64},"network":["10.0.0.1:80"]`
	for _, tc := range []struct{ driver, own, want string }{
		{"memory", ``, `{` + common + `}`},
		{"container", ``, `{"image":"img",` + common + `,"pull":true}`},
		{"container", `{"image":"other","pull":null}`, `{"image":"other",` + common + `}`},
		{"isolated", ``, `{` + common + `,"write":["/x"]}`},
		{"isolated", `{"limits":{"cpus":2},"write":[]}`, `{"limits":{"cpus":2,"memoryMiB":64},"network":["10.0.0.1:80"],"write":[]}`},
		{"ssh", ``, `{"host":"h",` + common + `,"port":22}`},
		{"daytona", `{"network":null,"limits":null}`, `{"apiKey":"${K}"}`},
		{"other", `{"network":null,"limits":null}`, ``},
	} {
		got, err := joinConfig(driverConfig(set, tc.driver), json.RawMessage(tc.own))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s with %s: %s, %v", tc.driver, tc.own, got, err)
		}
	}
}

func TestLeftOversAreLookedForWhereTheirConfigurationsSay(t *testing.T) {
	far := newPlayedDriver("far", messages.KindRemote)
	var asked []string
	far.at("sweep", func(_ context.Context, spec sandboxes.Spec) error {
		asked = append(asked, spec.Server+" "+string(spec.Config))
		return nil
	})
	b := &boxRig{t: t, d: far}
	var first messages.SandboxRecord
	b.rig = newRigWith(t, func(c *Config) {
		for _, config := range []string{`{"image":"a"}`, `{"image":"b"}`, `{"image":"a"}`} {
			rec := messages.SandboxRecord{ID: messages.NewSandboxID(), Driver: "far", Kind: messages.KindRemote, Ownership: "managed",
				Status: messages.SandboxProvisioning, Config: json.RawMessage(config), CreatedAt: 1}
			if err := c.Store.SwapSandbox(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
			first = rec
		}
		c.Drivers, c.Server = []sandboxes.Driver{far}, "server-1"
	})
	if _, err := b.mount(first.ID, "ses_1"); tag(err) != "SandboxUnavailError" {
		t.Errorf("a mount of one that was never made: %v", err)
	}
	slices.Sort(asked)
	if want := []string{`server-1 {"image":"a"}`, `server-1 {"image":"b"}`}; !slices.Equal(asked, want) {
		t.Errorf("looked for with %q", asked)
	}
}

func TestASessionWhoseSandboxIsLostDoesNotLookLikeOneOnTheHost(t *testing.T) {
	b := newBoxRig(t)
	info, err := b.session(messages.CreateSession{Sandbox: &messages.SandboxRef{Driver: "far"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.store.DropSandbox(b.ctx, info.Sandbox.ID); err != nil {
		t.Fatal(err)
	}
	b.down()
	b.boot()
	v, err := b.to(info.ID, messages.GetSession{SessionID: info.ID})
	if err != nil {
		t.Fatal(err)
	}
	if s := v.(messages.SessionInfo).Sandbox; s == nil || s.ID != info.Sandbox.ID || s.Status != messages.SandboxUnavail {
		t.Errorf("it shows %+v", s)
	}
	b.prompt(info.ID, "go", messages.Steer)
	if d := b.events.until(t, info.ID, messages.EventExecutionFailed, 1); d.Error.Type != messages.FailSandboxMount {
		t.Errorf("a prompt fails with %+v", d.Error)
	}
}

func TestSessionsAndSandboxesOutliveTheProcess(t *testing.T) {
	b := newBoxRig(t)
	info, err := b.session(messages.CreateSession{Sandbox: &messages.SandboxRef{Driver: "far"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.system.StopSandboxes(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.down()
	b.boot()
	if v, err := b.to(info.ID, messages.GetSession{SessionID: info.ID}); err != nil || v.(messages.SessionInfo).Sandbox.Status != messages.SandboxOffline {
		t.Errorf("it shows %+v, %v", v, err)
	}
	b.prompt(info.ID, "go", messages.Steer)
	b.model.next(t).answer("here")
	b.wait(info.ID)
	b.is(info.Sandbox.ID, messages.SandboxOnline)
}
