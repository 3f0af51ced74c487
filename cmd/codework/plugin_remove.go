package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"codework/internal/plugin"
	"codework/internal/plugin/source"
	"codework/internal/settings"
)

func newPluginRemove(g *global) *cobra.Command {
	var user, asJSON bool
	c := &cobra.Command{
		Use:   "remove SPEC | ID",
		Short: "Take a plugin and what configures it out of the settings",
		Long: `Take a plugin, and the entries that configure it, out of the project's settings, or
with --global out of yours. It is named as it was added, or by its id. Sessions
do without it from their next prompt on.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.pluginResult(c.Context(), g.removePlugin(c.Context(), args[0], user, asJSON), asJSON)
		},
	}
	c.Flags().BoolVarP(&user, "global", "g", false, "change your settings, not the project's")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

func (g *global) removePlugin(ctx context.Context, name string, user, asJSON bool) error {
	p, err := g.paths()
	if err != nil {
		return err
	}
	dir, err := absolute(".")
	if err != nil {
		return err
	}
	place, err := g.pluginPlace(dir, user, false)
	if err != nil {
		return err
	}
	store := openPlugins(p)
	removed := 0
	if place.dir != "" && exists(place.file()) {
		err = settings.ChangePlugins(ctx, place.dir, func(list []json.RawMessage) (settings.PluginChange, error) {
			which := pluginsCalled(store, name, dir, place.file(), list)
			removed = len(which)
			return settings.PluginChange{Remove: which}, nil
		})
		if err != nil {
			return err
		}
	}
	file := ""
	if place.dir != "" {
		file = place.file()
	}
	switch {
	case asJSON:
		return json.NewEncoder(g.out).Encode(map[string]any{"removed": removed, "file": file})
	case removed == 1:
		return g.done("Removed 1 entry from %s", file)
	case removed > 1:
		return g.done("Removed %d entries from %s", removed, file)
	case file == "":
		return g.done("%s is not configured: there is no project here; your own settings are changed with --global", name)
	}
	return g.done("%s is not configured in %s", name, file)
}

// pluginsCalled are the entries of a file that are, or configure, what a person
// in dir calls name.
func pluginsCalled(store *source.Store, name, dir, file string, list []json.RawMessage) []int {
	entries := make([]plugin.Entry, len(list))
	ids := []string{name}
	var which []int
	asked := plugin.Entry{Spec: name, File: filepath.Join(dir, "here")} // relative to where the person is
	var gone []plugin.Entry
	for i, raw := range list {
		e, err := plugin.ParseEntry(settings.Plugin{Entry: raw, File: file, Trusted: true})
		if err != nil {
			continue
		}
		entries[i] = e
		if e.Configures() {
			continue
		}
		id := idOf(store, e)
		words, _ := commandWords(name) // what is no command line is none of these
		if e.Reference() == name || e.URL != "" && e.URL == name || id == name || samePlugin(store, e, asked) ||
			e.Command != "" && slices.Equal(words, append([]string{e.Command}, e.Args...)) {
			which, gone = append(which, i), append(gone, e)
			if id != "" {
				ids = append(ids, id)
			}
		}
	}
	for i, e := range entries {
		if e.Plugin != "" && slices.Contains(ids, e.Plugin) {
			which = append(which, i)
		}
		if e.Package == "" {
			continue
		}
		module := plugin.Entry{Spec: e.Package, File: file}
		if samePlugin(store, module, asked) || slices.ContainsFunc(gone, func(g plugin.Entry) bool { return samePlugin(store, module, g) }) {
			which = append(which, i)
		}
	}
	return which
}
