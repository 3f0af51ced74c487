//go:build amd64 || arm64

package isolated

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/agent"
)

// driver is what the driver keeps on this system.
type driver struct {
	probing sync.Mutex // one probe at a time; guards the following two
	probed  probed
	groups  *groups // nil: none

	mu   sync.Mutex // guards live
	live map[*sandbox]struct{}
}

var (
	_ sandboxes.Stopper   = (*Driver)(nil)
	_ sandboxes.Waker     = (*Driver)(nil)
	_ sandboxes.Destroyer = (*Driver)(nil)
	_ sandboxes.Sweeper   = (*Driver)(nil)
)

// agentState is where the agent keeps its own files inside.
const agentState = "/tmp/codework-agent"

// Create checks the configuration and that the level that it demands can be
// had. Nothing runs until the sandbox is attached.
func (d *Driver) Create(ctx context.Context, spec sandboxes.Spec) (sandboxes.Resource, error) {
	cfg, level, err := d.settle(ctx, spec)
	if err != nil {
		return sandboxes.Resource{}, err
	}
	p, _, err := d.plan(spec, cfg, level, d.findGroups())
	if err != nil {
		return sandboxes.Resource{}, errors.Join(err, removeAll(d.dirOf(spec)))
	}
	return sandboxes.Resource{ID: spec.ID, Status: messages.SandboxOnline, Dir: p.Dir}, nil
}

// settle reads the configuration and finds the level that is used: the best
// there is, and no less than demanded.
func (d *Driver) settle(ctx context.Context, spec sandboxes.Spec) (Config, Level, error) {
	cfg, err := sandboxes.ReadConfig[Config](spec.Config)
	if err != nil {
		return cfg, None, err
	}
	if err := cfg.check(); err != nil {
		return cfg, None, err
	}
	if !plainID(spec.ID) {
		return cfg, None, badID(spec.ID)
	}
	level, err := d.reach(ctx, d.demanded(&cfg))
	return cfg, level, err
}

// maxID bounds the id of a sandbox, which names a folder.
const maxID = 128

// plainID tells whether an id can be the name of a folder, and a part of one.
func plainID(id string) bool {
	for _, c := range []byte(id) {
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return id != "" && len(id) <= maxID
}

func badID(id string) error { return fmt.Errorf("sandbox id %.200q cannot name a folder", id) }

// dirOf is the sandbox's folder on this machine.
func (d *Driver) dirOf(spec sandboxes.Spec) string {
	return filepath.Join(d.opt.StateDir, spec.ID)
}

// tmpOf is where temporary files go at the levels without mounts.
func (d *Driver) tmpOf(spec sandboxes.Spec) string { return filepath.Join(d.dirOf(spec), "tmp") }

// plan decides what the sandbox looks like, and makes what it needs on disk.
// The variables are those that every command gets.
func (d *Driver) plan(spec sandboxes.Spec, cfg Config, level Level, g *groups) (*plan, map[string]string, error) {
	if d.opt.StateDir == "" {
		return nil, nil, errors.New("no state folder given")
	}
	if spec.Project == "" {
		return nil, nil, &sandboxes.ConfigError{Reason: "an isolated sandbox needs a project folder"}
	}
	project, err := writable("project", spec.Project)
	if err != nil {
		return nil, nil, err
	}
	if info, err := os.Stat(project); err != nil || !info.IsDir() {
		return nil, nil, &sandboxes.ConfigError{Reason: "project: " + spec.Project + " is no folder"}
	}
	roots := []string{project}
	for _, path := range cfg.Write {
		real, err := writable("config: write", path)
		if err != nil {
			return nil, nil, err
		}
		roots = append(roots, real)
	}
	var pinned pins
	if err := pinned.pinProject(project, cfg.GitReadOnly); err != nil {
		return nil, nil, err
	}
	roots = topmost(roots)
	for _, root := range roots {
		// In a larger writable folder it could be moved away as a whole.
		if rest, ok := within(project, root); ok && rest != "" {
			pinned.keep = append(chain(root, rest), pinned.keep...)
		}
		if root == project {
			continue
		}
		if err := pinned.pinGit(root, cfg.GitReadOnly); err != nil {
			return nil, nil, err
		}
	}
	if err := os.MkdirAll(d.dirOf(spec), 0o700); err != nil {
		return nil, nil, fmt.Errorf("make state folder: %w", err)
	}
	p := &plan{
		Level:    level,
		Dir:      project,
		Write:    topmost(append(roots, pinned.write...)),
		Keep:     pinned.keep,
		ReadOnly: pinned.readOnly,
		Internet: cfg.Network.Host,
		Args:     agent.Args(agent.ServeOptions{ID: spec.ID, StateDir: agentState}),
	}
	if p.Hide, p.Secrets, err = d.hidden(cfg.Hide); err != nil {
		return nil, nil, err
	}
	for _, path := range p.Write {
		if below(path, p.Hide) {
			return nil, nil, &sandboxes.ConfigError{Reason: path + " is to be writable and lies in a folder that is hidden"}
		}
	}
	if level == Full {
		p.Keep = append(p.Keep, above(p.Hide, p.Write)...)
	}
	p.Hide = append(p.Hide, sockets(p.Write)...)
	if p.Limits, err = cfg.rlimits(g); err != nil {
		return nil, nil, err
	}
	var vars map[string]string
	if p.Caches, vars, err = caches(filepath.Join(d.dirOf(spec), "cache"), level); err != nil {
		return nil, nil, err
	}
	p.Hide = append(p.Hide, hiddenInCaches(p)...)
	vars["TMPDIR"] = "/tmp"
	vars["CODEWORK_SANDBOX"] = spec.ID
	if level == Full {
		p.Show = resolvers(p.Internet)
		return p, vars, nil
	}
	return p, vars, d.byPaths(spec, p, vars)
}

// chain lists the folders from one to what lies below it, without the first.
func chain(dir, rest string) []string {
	var out []string
	for part := range strings.SplitSeq(strings.TrimPrefix(rest, "/"), "/") {
		dir += "/" + part
		out = append(out, dir)
	}
	return out
}

// above lists the folders between what can be written and what is hidden in it.
// What is hidden goes along when one of them is moved, and would be looked for in
// vain by the next sandbox.
func above(hide, write []string) []string {
	var out []string
	for _, path := range hide {
		for _, root := range write {
			if rest, ok := within(path, root); ok && rest != "" {
				folders := chain(root, rest)
				out = append(out, folders[:len(folders)-1]...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// resolvers are the files about names of a machine's network that lie in a
// covered folder.
func resolvers(internet bool) []string {
	real, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil || !internet || !below(real, covered) {
		return nil
	}
	return []string{real}
}

// byPaths adds what the level without mounts needs.
func (d *Driver) byPaths(spec sandboxes.Spec, p *plan, vars map[string]string) error {
	tmp := d.tmpOf(spec)
	state := filepath.Join(tmp, "agent")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("make scratch: %w", err)
	}
	vars["TMPDIR"] = tmp
	p.Args = agent.Args(agent.ServeOptions{ID: spec.ID, StateDir: state})
	if p.Level == None {
		return nil
	}
	p.Read = around("/", slices.Concat(p.Hide, kernelPaths))
	var write []string
	for _, path := range p.Write {
		write = append(write, around(path, slices.Concat(p.ReadOnly, p.Keep, p.Hide))...)
		p.Read = append(p.Read, around(path, p.Hide)...)
	}
	p.Write = append(write, tmp)
	return nil
}

// around lists what there is below a folder without the given paths: the folder
// itself when none of them lies in it.
func around(dir string, without []string) []string {
	if below(dir, without) {
		return nil
	}
	through := false
	for _, w := range without {
		if _, ok := within(w, dir); ok {
			through = true
		}
	}
	if !through {
		return []string{dir}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			out = append(out, around(filepath.Join(dir, e.Name()), without)...)
		}
	}
	return out
}

// rlimits are the limits that processes keep themselves, where no group keeps
// them. A limit that nothing here can keep is refused.
func (c *Config) rlimits(g *groups) (limits, error) {
	memory, processes, cpus := g.keeps()
	l := c.Limits
	refuse := func(field, why string) error {
		return &sandboxes.ConfigError{Reason: "config: limits." + field + " cannot be kept here: it needs a control group (version 2) that this program may divide" + why}
	}
	out := limits{OpenFiles: uint64(l.OpenFiles)}
	if l.CPUs > 0 && !cpus {
		return out, refuse("cpus", "")
	}
	if l.Processes > 0 && !processes {
		if os.Geteuid() == 0 {
			return out, refuse("processes", " when it runs as root")
		}
		out.Processes = uint64(l.Processes)
	}
	if l.MemoryMiB > 0 && !memory {
		out.Data = uint64(l.MemoryMiB) << 20
	}
	return out, nil
}

// Attach builds the sandbox and starts its agent.
func (d *Driver) Attach(ctx context.Context, spec sandboxes.Spec, _ sandboxes.Resource) (sandboxes.Sandbox, error) {
	cfg, level, err := d.settle(ctx, spec)
	if err != nil {
		return nil, err
	}
	p, vars, err := d.plan(spec, cfg, level, d.findGroups())
	if err != nil {
		return nil, err
	}
	g, err := d.group(spec, &cfg)
	if err != nil {
		return nil, err
	}
	s, err := d.start(ctx, p, g)
	if err != nil {
		if g != nil {
			err = errors.Join(err, g.remove())
		}
		return nil, err
	}
	s.spec, s.vars = spec, vars
	d.mu.Lock()
	if d.live == nil {
		d.live = make(map[*sandbox]struct{})
	}
	d.live[s] = struct{}{}
	d.mu.Unlock()
	go s.watch()
	return s, nil
}

// findGroups is the place of control groups, found out with the level.
func (d *Driver) findGroups() *groups {
	d.probing.Lock()
	defer d.probing.Unlock()
	return d.groups
}

// group makes the sandbox's control group; nil where there are none. They are
// an addition: without limits to keep, one that cannot be made is done without.
func (d *Driver) group(spec sandboxes.Spec, cfg *Config) (*group, error) {
	groups := d.findGroups()
	if groups == nil {
		return nil, nil
	}
	g, err := groups.make(spec.Server, spec.ID)
	if err != nil {
		if cfg.Limits != (sandboxes.Limits{}) {
			return nil, fmt.Errorf("make control group: %w", err)
		}
		return nil, nil
	}
	if err := g.limit(groups, cfg.Limits); err != nil {
		return nil, errors.Join(fmt.Errorf("limit control group: %w", err), g.remove())
	}
	return g, nil
}

// Sweep ends what an earlier life of the server left in control groups. Usually
// there is nothing: sandboxes end with the connection to who made them.
func (d *Driver) Sweep(ctx context.Context, spec sandboxes.Spec) error {
	d.probe(ctx)
	return d.findGroups().sweep(spec.Server)
}

// Stop ends what is attached to the sandbox. The project and the caches stay.
func (d *Driver) Stop(ctx context.Context, spec sandboxes.Spec, _ sandboxes.Resource) error {
	if !plainID(spec.ID) {
		return badID(spec.ID)
	}
	d.mu.Lock()
	var of []*sandbox
	for s := range d.live {
		if s.spec.ID == spec.ID {
			of = append(of, s)
		}
	}
	d.mu.Unlock()
	var errs []error
	for _, s := range of {
		errs = append(errs, s.Close(ctx))
	}
	// Temporary files outside memory, where there are no mounts.
	return errors.Join(append(errs, removeAll(d.tmpOf(spec)))...)
}

// Wake checks that the sandbox can be attached again.
func (d *Driver) Wake(ctx context.Context, spec sandboxes.Spec, _ sandboxes.Resource) error {
	_, _, err := d.settle(ctx, spec)
	return err
}

// Destroy removes the sandbox's caches. The project is the user's and stays.
func (d *Driver) Destroy(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) error {
	if err := d.Stop(ctx, spec, r); err != nil {
		return err
	}
	return removeAll(d.dirOf(spec))
}

// environment is what the agent is started with: the little that a program
// needs, before what each mount adds.
func environment(p *plan) []string {
	env := []string{"LANG=C.UTF-8", "TMPDIR=/tmp"}
	for _, name := range []string{"PATH", "HOME", "USER"} {
		if value, ok := os.LookupEnv(name); ok && !strings.ContainsRune(value, 0) {
			env = append(env, name+"="+value)
		}
	}
	return env
}
