package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"codework/internal/home"
	"codework/internal/settings"
	"codework/messages"
)

func newModels(g *global) *cobra.Command {
	var provider string
	var all, asJSON bool
	c := &cobra.Command{
		Use:   "models",
		Short: "List the models that can be chosen",
		Long: `List the models of the catalog and of your settings, as provider/model.

Using one takes a key of its provider; a model that has none says which variable
to set.`,
		Args: cobra.NoArgs,
		RunE: g.telling(&asJSON, func(*cobra.Command) error {
			list, err := g.models(provider)
			if err != nil {
				return err
			}
			if !all {
				list = g.spoken(list)
			}
			if asJSON {
				return printList(g, list)
			}
			for _, m := range list {
				if _, err := fmt.Fprintln(g.out, oneLine(m.Ref().String())); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	c.Flags().StringVar(&provider, "provider", "", "only this provider's models")
	c.Flags().BoolVar(&all, "all", false, "also those whose protocol this version does not speak")
	c.Flags().BoolVar(&asJSON, "json", false, "print everything that is known of them as JSON")
	var idsAsJSON bool
	providers := &cobra.Command{
		Use:   "providers",
		Short: "List the providers",
		Args:  cobra.NoArgs,
		RunE: g.telling(&idsAsJSON, func(*cobra.Command) error {
			p, own, err := g.catalogSources()
			if err != nil {
				return err
			}
			ids, err := openCatalog(p).Providers(own)
			if err != nil {
				return explain(err, "")
			}
			if idsAsJSON {
				return printList(g, ids)
			}
			for _, id := range ids {
				if _, err := fmt.Fprintln(g.out, oneLine(id)); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	providers.Flags().BoolVar(&idsAsJSON, "json", false, "print them as a JSON array")
	c.AddCommand(providers, newModelsRefresh(g))
	return c
}

// telling is a command that tells its error in JSON too, where it was asked for
// that.
func (g *global) telling(asJSON *bool, do func(c *cobra.Command) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error { return g.inJSON(do(c), *asJSON) }
}

// spoken leaves out the models whose protocol there is no dialect for, and says
// how many those are.
func (g *global) spoken(list []messages.Model) []messages.Model {
	can := slices.DeleteFunc(slices.Clone(list), func(m messages.Model) bool { return dialects[m.Protocol] == nil })
	if n := len(list) - len(can); n > 0 && !g.quiet {
		fmt.Fprintf(g.err, "%d more have a protocol that this version does not speak; --all lists them\n", n)
	}
	return can
}

// printList prints a listing as one JSON array, also an empty one.
func printList[T any](g *global, list []T) error {
	if list == nil {
		list = []T{}
	}
	return json.NewEncoder(g.out).Encode(list)
}

func (g *global) models(provider string) ([]messages.Model, error) {
	p, own, err := g.catalogSources()
	if err != nil {
		return nil, err
	}
	list, err := openCatalog(p).List(provider, own)
	if err != nil {
		return nil, explain(err, "")
	}
	if provider != "" && len(list) == 0 {
		return nil, &problem{slug: "model-not-found", err: fmt.Errorf("no models of a provider %q", provider), hint: "see: codework models providers"}
	}
	return list, nil
}

// catalogSources are the home's paths and the models that the settings of this
// directory add.
func (g *global) catalogSources() (home.Paths, []messages.Model, error) {
	p, set, err := g.settings()
	if err != nil {
		return p, nil, err
	}
	return p, set.Models, nil
}

// settings are those of this directory, read here: for commands that only
// touch files.
func (g *global) settings() (home.Paths, *settings.Settings, error) {
	p, err := g.paths()
	if err != nil {
		return p, nil, err
	}
	dir, err := absolute(".")
	if err != nil {
		return p, nil, err
	}
	src := settings.Source{Home: p.Home, HostDir: dir, Trusted: settings.OpenTrust(p.Home).Trusted}
	if g.configDir != "" {
		if src.UserConfigDir, err = absolute(g.configDir); err != nil {
			return p, nil, err
		}
	}
	set, err := settings.Load(src)
	var bad *settings.Error
	if errors.As(err, &bad) {
		err = explainFailure(bad.Failure(), "")
	}
	return p, set, err
}
