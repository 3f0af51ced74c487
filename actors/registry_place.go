package actors

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"codework/messages"
	"codework/sandboxes"
)

// places finds where sessions are asked to work. It is used beside actors.
type places struct {
	registry *Ref
	shelf    *shelf
	settings sandboxSettings
	dir      string // where sessions on the host work that name no directory
}

// placeQuery asks for a place.
type placeQuery struct {
	ref       *messages.SandboxRef
	directory string
	hostDir   string
	world     *messages.World
	old       *messages.SessionRecord // the session that moves; nil is a new one
}

// placed is where a session works. made tells that its sandbox was made for it.
type placed struct {
	sandbox, dir string
	made         bool
}

// find looks at the place, and makes or registers its sandbox if need be. After
// an error nothing is left of what it made.
func (p places) find(ctx context.Context, q placeQuery) (placed, error) {
	ref, err := p.choose(&q)
	if err != nil {
		return placed{}, err
	}
	at, err := p.sandbox(ctx, q, ref)
	if err != nil {
		return placed{}, err
	}
	if messages.IsHost(at.sandbox) {
		at.dir, err = hostPlace(q.directory, p.base(q))
		return at, err
	}
	if at.dir, err = p.look(ctx, q, at.sandbox); err != nil {
		p.undo(ctx, at)
		return placed{}, err
	}
	return at, nil
}

// choose says which sandbox is meant where the call does not: the one the
// session has, or for a new session what the settings name. Undecided, with the
// empty id, stays a session whose settings cannot be read: its exchanges say so.
func (p places) choose(q *placeQuery) (messages.SandboxRef, error) {
	switch {
	case q.ref != nil:
		return *q.ref, q.ref.Validate()
	case q.old != nil:
		return messages.SandboxRef{ID: q.old.SandboxID}, nil
	}
	set, err := p.settings(q.hostDir, q.world)
	switch {
	case err != nil:
		return messages.SandboxRef{}, nil
	case set.Driver == messages.LocalSandbox:
		return messages.SandboxRef{ID: messages.LocalSandbox}, nil
	}
	// Clients that think of the host name its directory, which is the project
	// inside of the sandbox, whatever it is called there.
	if q.directory == q.hostDir {
		q.directory = ""
	}
	return messages.SandboxRef{Driver: set.Driver}, nil
}

func (p places) sandbox(ctx context.Context, q placeQuery, ref messages.SandboxRef) (placed, error) {
	project := q.hostDir
	if project == "" && q.world != nil {
		project = q.world.Dir
	}
	ask := func(m any) (messages.SandboxInfo, error) {
		return Ask[messages.SandboxInfo](ctx, p.registry, boxCall{ctx, m, q.world, project})
	}
	switch {
	case ref.Driver == messages.LocalSandbox && ref.ProviderResourceID != "":
		return placed{}, &messages.SandboxDriverRegistration{Driver: ref.Driver, Reason: noResources}
	case ref.Driver == messages.LocalSandbox:
		return placed{sandbox: messages.LocalSandbox}, nil
	case ref.ProviderResourceID != "":
		info, err := ask(messages.RegisterSandbox{Driver: ref.Driver, ProviderResourceID: ref.ProviderResourceID})
		return placed{sandbox: info.ID}, err
	case ref.Driver != "":
		info, err := ask(messages.CreateSandbox{Driver: ref.Driver})
		return placed{sandbox: info.ID, made: true}, err
	}
	return placed{sandbox: ref.ID}, nil
}

// base is where a directory on the host starts.
func (p places) base(q placeQuery) string {
	switch {
	case q.old != nil && messages.IsHost(q.old.SandboxID):
		return q.old.Directory
	case q.old != nil && q.old.HostDir != "":
		return q.old.HostDir
	case q.world != nil:
		return q.world.Dir
	}
	return p.dir
}

// look finds the directory inside of a sandbox: an absolute one, or one below
// its working directory; in a virtual one, which is made empty, below its root.
func (p places) look(ctx context.Context, q placeQuery, id string) (string, error) {
	dir := q.directory
	if q.ref == nil && q.old != nil && dir == "" {
		dir = q.old.Directory
	}
	if dir != "" && !path.IsAbs(dir) {
		root := "/"
		if rec, ok := p.shelf.get(id); ok && rec.Kind != messages.KindVirtual {
			root = rec.Dir
		}
		if q.ref == nil && q.old != nil {
			root = q.old.Directory
		}
		dir = path.Join(root, dir)
	}
	visitor := "look-" + messages.NewEventID()
	at, leave, err := p.visit(ctx, id, visitor, sandboxes.MountOptions{Dir: dir, Umask: -1}, q.world)
	if err != nil {
		return "", err
	}
	defer leave()
	return at.mount.Dir(), nil
}

// visit mounts a sandbox for somebody who is no session, and counts as a use of
// it until leave is called.
func (p places) visit(ctx context.Context, id, visitor string, o sandboxes.MountOptions, w *messages.World) (place, func(), error) {
	o.Session = visitor
	p.shelf.hold(id, visitor)
	leave := func() {
		p.registry.Tell(unmountAll{session: visitor})
		p.shelf.release(id, visitor)
		p.registry.Tell(toBox{id, released{}})
	}
	at, err := Ask[place](ctx, p.registry, toBox{id, mountFor{o, lookupIn(w)}})
	if err != nil {
		leave()
		return place{}, nil, err
	}
	return at, leave, nil
}

// undo stops a sandbox that was made for a session that does not come to be.
func (p places) undo(ctx context.Context, at placed) {
	if !at.made {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	_, _ = Ask[any](ctx, p.registry, toBox{at.sandbox, stopBox{}}) // its status tells how that went
}

// hostPlace checks a directory on the host.
func hostPlace(dir, base string) (string, error) {
	if dir == "" {
		dir = base
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(base, dir)
	}
	dir = filepath.Clean(dir)
	switch fi, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return "", &messages.DirectoryNotFound{Directory: dir, SandboxID: messages.LocalSandbox}
	case err != nil || !fi.IsDir():
		return "", &messages.NotDirectory{Directory: dir, SandboxID: messages.LocalSandbox}
	}
	return dir, nil
}

// noResources is why nothing can be registered with the host.
const noResources = "the host has no resources to attach to"
