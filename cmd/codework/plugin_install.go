package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"codework/internal/plugin"
	"codework/internal/plugin/source"
)

// pluginStep is what became of one entry, for programs.
type pluginStep struct {
	Entry  string       `json:"entry"`
	File   string       `json:"file"`
	Result string       `json:"result"`
	From   string       `json:"from,omitempty"` // the version before
	To     string       `json:"to,omitempty"`
	Error  *resultError `json:"error,omitempty"`

	err error
}

// steps goes through modules one by one, prints what became of each, and in
// the end whether all went well.
func (g *global) steps(ctx context.Context, entries []plugin.Entry, asJSON bool, do func(plugin.Entry) pluginStep) (map[string]int, error) {
	list := []pluginStep{}
	counts := map[string]int{}
	failed := false
	for _, e := range entries {
		s := do(e)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.Entry, s.File = e.Reference(), e.File
		if s.err != nil {
			s.Result, failed = "failed", true
			s.Error = &resultError{Type: plugin.FetchFailed, Message: s.err.Error()}
			var p *problem
			if errors.As(explainPlugin(s.err), &p) {
				s.Error.Type, s.Error.Message = p.slug, p.Error()
				printProblem(g.err, p)
			} else {
				printProblem(g.err, &problem{err: s.err})
			}
		}
		counts[s.Result]++
		list = append(list, s)
		if asJSON {
			continue
		}
		if err := g.printStep(s); err != nil {
			return nil, err
		}
	}
	var err error
	if asJSON {
		err = printList(g, list)
	}
	if failed {
		err = errors.Join(&problem{err: errors.New("not every plugin could be asked for"), silent: true}, err)
	}
	return counts, err
}

func (g *global) printStep(s pluginStep) error {
	switch {
	case s.err != nil:
		return nil
	case s.From != "" && s.To != "" && s.From != s.To:
		return g.done("%s  %s -> %s", s.Entry, s.From, s.To)
	case s.To != "":
		return g.done("%s  %s %s", s.Entry, s.Result, s.To)
	}
	return g.done("%s  %s", s.Entry, s.Result)
}

// modules are the modules among the entries that are called name, or all.
// What makes no sense is among them, and its error shows when it is used.
func modules(store *source.Store, entries []pluginEntry, name string) ([]plugin.Entry, error) {
	var out []plugin.Entry
	for _, e := range entries {
		if e.err != nil && name == "" {
			return nil, e.err
		}
		if e.err != nil || !e.Module() {
			continue
		}
		dir, err := absolute(".")
		if err != nil {
			return nil, err
		}
		if name == "" || e.Spec == name || samePlugin(store, e.Entry, plugin.Entry{Spec: name, File: dir + "/here"}) || idOf(store, e.Entry) == name {
			out = append(out, e.Entry)
		}
	}
	if len(out) == 0 && name != "" {
		return nil, &problem{err: fmt.Errorf("no module %s is configured here", name), hint: "see: codework plugin list"}
	}
	return out, nil
}

func newPluginInstall(g *global) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Fetch every plugin that the settings name",
		Long: `Fetch every plugin that the settings of this directory name and that is not there.
Sessions never do: one whose plugin is missing says so.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.pluginResult(c.Context(), g.installPlugins(c.Context(), asJSON), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print an array of what became of each")
	return c
}

func (g *global) installPlugins(ctx context.Context, asJSON bool) error {
	p, entries, err := g.pluginEntries()
	if err != nil {
		return err
	}
	store := openPlugins(p)
	list, err := modules(store, entries, "")
	if err != nil {
		return err
	}
	counts, err := g.steps(ctx, list, asJSON, func(e plugin.Entry) pluginStep {
		if !remoteModule(e) {
			_, err := store.Resolve(e)
			return pluginStep{Result: "local", err: err}
		}
		if _, err := store.Resolve(e); err == nil {
			have, err := store.Installed(e)
			return pluginStep{Result: "present", To: have.Version, err: err}
		}
		have, _, err := store.Fetch(ctx, e)
		return pluginStep{Result: "installed", To: have.Version, err: err}
	})
	if asJSON || counts == nil {
		return err
	}
	return errors.Join(err, g.done("%d installed, %d present, %d local", counts["installed"], counts["present"], counts["local"]))
}

func newPluginCheck(g *global) *cobra.Command {
	var refresh, asJSON bool
	c := &cobra.Command{
		Use:   "check [SPEC | ID]",
		Short: "Ask for newer versions of plugins",
		Long: `Ask where plugins came from whether there is something newer. Answers are used again
for an hour. Nothing is fetched.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.pluginResult(c.Context(), g.checkPlugins(c.Context(), first(args), refresh, asJSON), asJSON)
		},
	}
	c.Flags().BoolVar(&refresh, "refresh", false, "ask again, however fresh the last answer is")
	c.Flags().BoolVar(&asJSON, "json", false, "print an array of what was found")
	return c
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (g *global) checkPlugins(ctx context.Context, name string, refresh, asJSON bool) error {
	p, entries, err := g.pluginEntries()
	if err != nil {
		return err
	}
	store := openPlugins(p)
	list, err := modules(store, entries, name)
	if err != nil {
		return err
	}
	counts, err := g.steps(ctx, list, asJSON, func(e plugin.Entry) pluginStep {
		if !remoteModule(e) {
			return pluginStep{Result: "local"}
		}
		have, err := store.Installed(e)
		var known *plugin.Error
		if errors.As(err, &known) && known.Slug == plugin.NotInstalled {
			return pluginStep{Result: "not installed"}
		}
		if err != nil {
			return pluginStep{err: err}
		}
		version, revision, err := store.Latest(ctx, e, refresh)
		if err != nil {
			return pluginStep{err: err}
		}
		if revision == have.Revision {
			return pluginStep{Result: "newest", To: have.Version}
		}
		return pluginStep{Result: "newer", From: have.Version, To: version}
	})
	if asJSON || counts == nil {
		return err
	}
	return errors.Join(err, g.done("%d of %d can be updated", counts["newer"], len(list)))
}

func newPluginUpdate(g *global) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "update [SPEC | ID]",
		Short: "Fetch newer versions of plugins",
		Long: `Fetch what is newer than what is there. Exact versions, whole commit ids and archives
stay as they are. Sessions use what is new from their next prompt on.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.pluginResult(c.Context(), g.updatePlugins(c.Context(), first(args), asJSON), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print an array of what became of each")
	return c
}

func (g *global) updatePlugins(ctx context.Context, name string, asJSON bool) error {
	p, entries, err := g.pluginEntries()
	if err != nil {
		return err
	}
	store := openPlugins(p)
	list, err := modules(store, entries, name)
	if err != nil {
		return err
	}
	counts, err := g.steps(ctx, list, asJSON, func(e plugin.Entry) pluginStep {
		if !remoteModule(e) {
			return pluginStep{Result: "local"}
		}
		old, missing := store.Installed(e)
		if missing == nil {
			_, revision, err := store.Latest(ctx, e, true)
			if err != nil {
				return pluginStep{err: err}
			}
			if revision == old.Revision {
				return pluginStep{Result: "newest", To: old.Version}
			}
		}
		have, fresh, err := store.Fetch(ctx, e)
		if err != nil || fresh {
			return pluginStep{Result: "updated", From: old.Version, To: have.Version, err: err}
		}
		return pluginStep{Result: "newest", To: have.Version}
	})
	if asJSON || counts == nil {
		return err
	}
	return errors.Join(err, g.done("%d updated, %d unchanged", counts["updated"], counts["newest"]+counts["local"]))
}
