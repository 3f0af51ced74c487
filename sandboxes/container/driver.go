package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codework/messages"
	"codework/sandboxes"
)

// Name is the driver's name.
const Name = "container"

// Workspace is where the project lies in a container that we made.
const Workspace = "/workspace"

const (
	// inside is where our program and its scratch lie.
	insideProgram = "/.codework/codework"
	insideState   = "/.codework/state"

	labelManaged  = "codework-managed"
	labelInstance = "codework-instance"
	labelServer   = "codework-server"

	// defaultProcesses is the ceiling of processes where the settings say none:
	// enough for a build, too few for a fork bomb to hurt the machine.
	defaultProcesses = 512
	// stopGrace is what a container gets between TERM and KILL, in seconds.
	stopGrace = 10
	// maxResourceID bounds the id of a container that somebody names.
	maxResourceID = 2048
)

// Options are what a Driver needs to know.
type Options struct {
	// Cache is the folder for copies of our program that containers are bound
	// to; it is created if missing and may be shared by several processes.
	Cache string
	// Executable is the program that containers run: for Linux, linked
	// statically, with a main that calls Main of this package and agent.Main.
	// "" is the running one.
	Executable string
	// Log receives what is worth knowing; nil drops it.
	Log *slog.Logger
}

// Config is what settings and calls say of one sandbox.
type Config struct {
	Socket  string            `json:"socket"`  // path or URL of the engine; "" looks where engines usually are
	Image   string            `json:"image"`   // must be said
	Pull    bool              `json:"pull"`    // fetch an image that the engine does not have
	Runtime string            `json:"runtime"` // an engine runtime by name, such as runsc
	Volume  string            `json:"volume"`  // a named volume instead of the project
	Network sandboxes.Network `json:"network"` // none by default
	Limits  sandboxes.Limits  `json:"limits"`
}

// Driver makes and reaches containers.
type Driver struct {
	opt     Options
	program program
	engines engines
}

// New returns a driver that has done nothing yet.
func New(o Options) *Driver {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{opt: o, program: program{executable: o.Executable, cache: o.Cache}}
}

// Name is "container".
func (d *Driver) Name() string { return Name }

// Kind is remote.
func (d *Driver) Kind() messages.SandboxKind { return messages.KindRemote }

// Close lets go of the connections to engines.
func (d *Driver) Close() error { return d.engines.close() }

// Available tells whether the engine answers.
func (d *Driver) Available(ctx context.Context, spec sandboxes.Spec) error {
	_, _, err := d.read(ctx, spec)
	return err
}

// read reads the configuration and reaches its engine.
func (d *Driver) read(ctx context.Context, spec sandboxes.Spec) (Config, *engine, error) {
	c, err := sandboxes.ReadConfig[Config](spec.Config)
	if err != nil {
		return c, nil, err
	}
	switch l := c.Limits; {
	case l.MemoryMiB < 0 || l.Processes < 0 || l.CPUs < 0 || l.OpenFiles < 0:
		return c, nil, &sandboxes.ConfigError{Reason: "limits: a negative number"}
	case c.Network.Addresses != nil:
		return c, nil, &sandboxes.ConfigError{Reason: `network: a list of addresses is not possible with containers; say "none" or "host"`}
	}
	e, err := d.engine(ctx, spec, c)
	return c, e, err
}

// Create makes a container and starts it.
func (d *Driver) Create(ctx context.Context, spec sandboxes.Spec) (sandboxes.Resource, error) {
	c, e, err := d.read(ctx, spec)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	if c.Image == "" {
		return sandboxes.Resource{}, &sandboxes.ConfigError{Reason: "image: none is named; set sandbox.container.image, for example to debian:stable"}
	}
	if c.Volume == "" && spec.Project == "" {
		return sandboxes.Resource{}, &sandboxes.ConfigError{Reason: "there is no project folder to mount; name a volume (sandbox.container.volume), or start from a folder"}
	}
	platform, err := e.image(ctx, c)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	bin, err := d.program.copyFor(platform)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	host, err := d.hostConfig(c, spec, bin)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	created, err := e.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: "codework-" + spec.ID,
		Config: &container.Config{
			Image: c.Image, User: e.user(), WorkingDir: Workspace, Entrypoint: []string{insideProgram}, Cmd: []string{InitArg},
			Env:    []string{"HOME=/tmp"},
			Labels: map[string]string{labelManaged: "true", labelInstance: spec.ID, labelServer: spec.Server},
		},
		HostConfig: host,
	})
	if err != nil {
		return sandboxes.Resource{}, e.explain("create the container", err)
	}
	err = e.promised(ctx, created.ID, c)
	if err == nil {
		_, err = e.ContainerStart(ctx, created.ID, client.ContainerStartOptions{})
		err = e.explain("start the container", err)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace*time.Second)
		defer cancel()
		_, rm := e.ContainerRemove(clean, created.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		return sandboxes.Resource{}, errors.Join(err, rm)
	}
	extra, err := json.Marshal(extra{Program: insideProgram, State: insideState})
	if err != nil {
		return sandboxes.Resource{}, err
	}
	return sandboxes.Resource{ID: created.ID, Status: messages.SandboxOnline, Dir: Workspace, Extra: extra}, nil
}

// extra is what is stored of a container beside its id.
type extra struct {
	Program string `json:"program"` // where our program lies in it
	State   string `json:"state"`   // for its scratch; "" is a temporary folder
}

// hostConfig is what the container may see and use.
func (d *Driver) hostConfig(c Config, spec sandboxes.Spec, bin string) (*container.HostConfig, error) {
	workspace := mount.Mount{Type: mount.TypeVolume, Source: c.Volume, Target: Workspace}
	if c.Volume == "" {
		// The folder itself, not what a link may name by the time it is mounted.
		real, err := filepath.EvalSymlinks(spec.Project)
		if err != nil {
			return nil, &sandboxes.ConfigError{Reason: "project folder: " + err.Error()}
		}
		if info, err := os.Stat(real); err != nil || !info.IsDir() || real == "/" {
			return nil, &sandboxes.ConfigError{Reason: "project folder: " + spec.Project + " is not a folder that can be mounted"}
		}
		workspace = mount.Mount{Type: mount.TypeBind, Source: real, Target: Workspace}
	}
	processes := c.Limits.Processes
	if processes == 0 {
		processes = defaultProcesses
	}
	network := container.NetworkMode("none")
	if c.Network.Host {
		network = "host"
	}
	h := &container.HostConfig{
		NetworkMode: network,
		CapDrop:     []string{"ALL"},
		SecurityOpt: []string{"no-new-privileges"},
		Runtime:     c.Runtime,
		Mounts:      []mount.Mount{workspace, {Type: mount.TypeBind, Source: bin, Target: insideProgram, ReadOnly: true}},
		Tmpfs:       map[string]string{insideState: "mode=1777,rw"},
		Resources: container.Resources{
			PidsLimit: &processes, Memory: c.Limits.MemoryMiB << 20, MemorySwap: c.Limits.MemoryMiB << 20,
			NanoCPUs: int64(c.Limits.CPUs * 1e9),
		},
	}
	if n := c.Limits.OpenFiles; n > 0 {
		h.Ulimits = []*container.Ulimit{{Name: "nofile", Soft: n, Hard: n}}
	}
	return h, nil
}

// Resolve finds a container that somebody else made, by name or id.
func (d *Driver) Resolve(ctx context.Context, spec sandboxes.Spec, id string) (sandboxes.Resource, error) {
	if id == "" || len(id) > maxResourceID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("/?#%", r) }) {
		return sandboxes.Resource{}, &sandboxes.ConfigError{Reason: fmt.Sprintf("%.60q is not the name or id of a container", id)}
	}
	_, e, err := d.read(ctx, spec)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	got, err := e.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return sandboxes.Resource{}, &sandboxes.ConfigError{Reason: fmt.Sprintf("there is no container %q on the engine at %s", id, e.where)}
	}
	if err != nil {
		return sandboxes.Resource{}, e.explain("look at the container", err)
	}
	in := got.Container
	if in.Config != nil && in.Config.Labels[labelManaged] == "true" {
		return sandboxes.Resource{}, &sandboxes.ConfigError{Reason: "container " + id + " is one of CodeWork's own; use it by the id of its sandbox"}
	}
	dir := "/"
	if in.Config != nil && strings.HasPrefix(in.Config.WorkingDir, "/") {
		dir = in.Config.WorkingDir
	}
	return sandboxes.Resource{ID: in.ID, Status: statusOf(in.State), Dir: dir}, nil
}

// statusOf reads an engine's state: what it does not know is faulted.
func statusOf(s *container.State) messages.SandboxStatus {
	if s == nil {
		return messages.SandboxFaulted
	}
	switch s.Status {
	case "running":
		return messages.SandboxOnline
	case "created", "exited", "stopped", "paused", "configured", "stopping":
		return messages.SandboxOffline
	}
	return messages.SandboxFaulted
}

// Inspect asks the engine for the container's state.
func (d *Driver) Inspect(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (messages.SandboxStatus, error) {
	_, e, err := d.read(ctx, spec)
	if err != nil {
		return messages.SandboxFaulted, err
	}
	got, err := e.ContainerInspect(ctx, r.ID, client.ContainerInspectOptions{})
	if err != nil {
		return messages.SandboxFaulted, e.explain("look at the container", err)
	}
	return statusOf(got.Container.State), nil
}

// Wake starts a stopped container.
func (d *Driver) Wake(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	_, e, err := d.read(ctx, spec)
	if err != nil {
		return err
	}
	_, err = e.ContainerStart(ctx, r.ID, client.ContainerStartOptions{})
	return e.explain("start the container", err)
}

// Stop ends everything in the container; its files stay.
func (d *Driver) Stop(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	_, e, err := d.read(ctx, spec)
	if err != nil {
		return err
	}
	return e.stop(ctx, r.ID)
}

// Destroy removes the container and what only it uses.
func (d *Driver) Destroy(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	_, e, err := d.read(ctx, spec)
	if err != nil {
		return err
	}
	_, err = e.ContainerRemove(ctx, r.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return e.explain("remove the container", err)
}

// Sweep stops the containers that an earlier process of this server left
// running. Without an engine there is nothing to sweep.
func (d *Driver) Sweep(ctx context.Context, spec sandboxes.Spec) error {
	c, err := sandboxes.ReadConfig[Config](spec.Config)
	if err != nil {
		return err
	}
	e, err := d.engine(ctx, spec, c)
	if err != nil {
		return nil // no engine, no containers
	}
	server := spec.Server
	list, err := e.ContainerList(ctx, client.ContainerListOptions{
		Filters: client.Filters{}.Add("label", labelManaged+"=true", labelServer+"="+server).Add("status", "running"),
	})
	if err != nil {
		return e.explain("list the containers", err)
	}
	var errs []error
	for _, c := range list.Items {
		if c.Labels[labelManaged] == "true" && c.Labels[labelServer] == server {
			errs = append(errs, e.stop(ctx, c.ID))
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

// usualSockets are where engines listen that are not configured.
func usualSockets(lookup func(string) (string, bool)) []string {
	sockets := []string{"/var/run/docker.sock", "/run/podman/podman.sock"}
	if dir, ok := lookup("XDG_RUNTIME_DIR"); ok && filepath.IsAbs(dir) {
		sockets = slices.Insert(sockets, 0, filepath.Join(dir, "podman", "podman.sock"), filepath.Join(dir, "docker.sock"))
	}
	return sockets
}

// InitArg is the hidden mode of the binary that is process 1 of a container.
const InitArg = "__container-init"
