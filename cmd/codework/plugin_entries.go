package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"codework/internal/home"
	"codework/internal/plugin"
	"codework/internal/plugin/source"
	"codework/internal/settings"
	"codework/providers/credentials"
	"codework/sandboxes/supervisor"
)

// openPlugins is the store of plugins of a home.
func openPlugins(p home.Paths) *source.Store {
	return source.Open(source.Options{Home: p.Home, Trusted: settings.OpenTrust(p.Home).Trusted})
}

// pluginEntry is an entry of the settings that hold here, and what is wrong
// with it.
type pluginEntry struct {
	plugin.Entry
	err error
}

// pluginEntries are the entries that count in this directory.
func (g *global) pluginEntries() (home.Paths, []pluginEntry, error) {
	p, set, err := g.settings()
	if err != nil {
		return p, nil, err
	}
	if !g.quiet {
		for _, w := range set.Warnings {
			fmt.Fprintln(g.err, "warning: "+oneLine(w.Text))
		}
	}
	var list []pluginEntry
	for _, raw := range set.Plugins {
		e, err := plugin.ParseEntry(raw)
		list = append(list, pluginEntry{e, err})
	}
	return p, list, nil
}

// explainPlugin gives an error about a plugin the form that a person reads.
func explainPlugin(err error) error {
	var e *plugin.Error
	if errors.As(err, &e) {
		return &problem{slug: e.Slug, err: errors.New(e.Detail), hint: e.Hint, fields: []field{
			{"reference", e.Reference}, {"declared in", e.File}, {"id", e.ID}, {"detail", strings.Join(e.Tail, " / ")}}}
	}
	var bad *settings.Error
	if errors.As(err, &bad) {
		return explainFailure(bad.Failure(), "")
	}
	if errors.Is(err, settings.ErrLocked) {
		return &problem{slug: plugin.LockTimeout, err: err, hint: "wait for it, or end it"}
	}
	return err
}

// pluginResult ends a command about plugins: a signal is told as such.
func (g *global) pluginResult(ctx context.Context, err error, asJSON bool) error {
	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	return g.inJSON(explainPlugin(err), asJSON)
}

// sourceOf is what kind of entry it is.
func sourceOf(e plugin.Entry) string {
	switch {
	case e.Configures():
		return "configuration"
	case e.Command != "":
		return "command"
	case e.URL != "":
		return "url"
	}
	s, _ := source.Parse(e.Spec) // what makes no sense has no kind
	return string(s.Kind)
}

// remoteModule tells that a module is fetched.
func remoteModule(e plugin.Entry) bool {
	return e.Module() && !plugin.IsLocal(e.Spec)
}

// programOf is what an entry runs.
func programOf(store *source.Store, e plugin.Entry) (plugin.Program, error) {
	if e.Module() {
		return store.Resolve(e)
	}
	return e.Program(), nil
}

// idOf is what an entry's plugin is called, as far as it is written somewhere.
func idOf(store *source.Store, e plugin.Entry) string {
	if e.Configures() {
		return e.Plugin
	}
	p, err := programOf(store, e)
	if err != nil {
		return ""
	}
	return p.ID
}

// pluginStart starts plugins in this process.
type pluginStart struct {
	host      *plugin.Host
	processes *supervisor.Host
	dir       string
}

// firstHandshake is how long a plugin that is added or tried may take to start:
// npx and its kind download a program first. Sessions do not wait that long.
const firstHandshake = 3 * time.Minute

// newPluginStart is for plugins that work for a session in dir.
func (g *global) newPluginStart(dir string) (*pluginStart, error) {
	log, err := newLogger(g.logLevel, g.err)
	if err != nil {
		return nil, err
	}
	if err := supervisor.Subreaper(); err != nil {
		return nil, err
	}
	processes := supervisor.NewHost(supervisor.Options{Log: log})
	return &pluginStart{plugin.NewHost(plugin.Options{Processes: processes, Log: log, Version: version, Handshake: firstHandshake}), processes, dir}, nil
}

// pluginStop bounds the end of the processes.
const pluginStop = 10 * time.Second

func (s *pluginStart) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), pluginStop)
	defer cancel()
	return s.processes.Close(ctx)
}

// ask starts a plugin, has it name itself and its tools, and ends it.
func (s *pluginStart) ask(ctx context.Context, p plugin.Program) (*plugin.Instance, []plugin.Tool, error) {
	if err := fillIn(&p, s.dir); err != nil {
		return nil, nil, err
	}
	inst, err := s.host.Start(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	defer inst.Close()
	tools, err := inst.Tools(ctx)
	return inst, tools, err
}

// fillIn completes a program with what it gets of this process.
func fillIn(p *plugin.Program, dir string) error {
	for _, m := range []struct {
		name   string
		values *map[string]string
	}{{"env", &p.Env}, {"headers", &p.Headers}} {
		full := map[string]string{}
		for name, value := range *m.values {
			v, err := credentials.Expand(m.name+"."+name, value, os.LookupEnv)
			if err != nil {
				return &plugin.Error{Slug: plugin.StartFailed, Reference: p.Reference, File: p.File, ID: p.ID, Detail: err.Error()}
			}
			if v != value || m.name == "headers" {
				p.Secrets = append(p.Secrets, v)
			}
			full[name] = v
		}
		*m.values = full
	}
	if len(p.Options) > 0 && !p.Module {
		p.Env[plugin.OptionsVariable] = string(p.Options)
	}
	p.Base = plugin.Base(os.Environ())
	if p.Dir == "" {
		p.Dir = dir
	}
	if p.URL != "" {
		p.Client = http.DefaultClient
	}
	return nil
}

// toolNames are what a model calls a plugin's tools.
func toolNames(inst *plugin.Instance, tools []plugin.Tool) []string {
	names := []string{}
	for _, t := range tools {
		name := t.Name
		if inst.Declared == nil {
			name = plugin.WireName(inst.ID, t.Name, func(n string) bool { return slices.Contains(names, n) })
		}
		names = append(names, name)
	}
	return names
}

// samePlugin tells whether two entries are the same plugin, in whatever
// version.
func samePlugin(store *source.Store, a, b plugin.Entry) bool {
	switch {
	case a.Module() && b.Module():
		x, errX := source.Parse(a.Spec)
		y, errY := source.Parse(b.Spec)
		if errX != nil || errY != nil || x.Kind != y.Kind {
			return a.Spec == b.Spec
		}
		if x.Kind == source.Local {
			p, errP := plugin.LocalPath(a)
			q, errQ := plugin.LocalPath(b)
			return errP == nil && errQ == nil && p == q
		}
		return x.Base() == y.Base()
	case a.Command != "" && b.Command != "", a.URL != "" && b.URL != "":
		return a.Program().ID == b.Program().ID
	}
	return false
}

// pluginPlace is the settings file that a command changes.
type pluginPlace struct {
	dir     string // of the file
	root    string // of the project; "" for the user's
	trusted bool
	fresh   bool // the folder is to be made
}

func (p pluginPlace) file() string { return settings.FileIn(p.dir) }

// pluginPlace finds the settings file: the user's, or the one of the project
// that dir lies in. Without a project, dir becomes one where create is set.
func (g *global) pluginPlace(dir string, user, create bool) (pluginPlace, error) {
	p, err := g.paths()
	if err != nil {
		return pluginPlace{}, err
	}
	if g.configDir != "" {
		own, err := absolute(g.configDir)
		return pluginPlace{dir: own, trusted: true}, err
	}
	if user {
		return pluginPlace{dir: p.Home, trusted: true}, nil
	}
	root, found := settings.FindProject(dir, p.Home)
	if !found {
		if filepath.Join(dir, ".codework") == p.Home {
			return pluginPlace{dir: p.Home, trusted: true}, nil // a project here would be the home itself
		}
		if !create {
			return pluginPlace{}, nil
		}
		root = dir
	}
	return pluginPlace{dir: filepath.Join(root, ".codework"), root: root, trusted: settings.OpenTrust(p.Home).Trusted(root), fresh: !found}, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
