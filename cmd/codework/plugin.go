package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"codework/protocol/client"
)

func newPlugin(g *global) *cobra.Command {
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Look after plugins",
		Long: `Look after plugins: programs that speak the Model Context Protocol and bring tools,
hooks and words for the system prompt. They are listed in your settings or the
project's, and run with your rights, outside of a session's sandbox.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for codework plugin", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newPluginAdd(g), newPluginRemove(g), newPluginInstall(g), newPluginList(g), newPluginCheck(g), newPluginUpdate(g), newPluginReload(g))
	return c
}

func newPluginReload(g *global) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "reload",
		Short: "Restart the plugins of the running server",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withServer(c, asJSON, func(ctx context.Context, cl *client.Client) error {
				r, err := cl.PluginReload(ctx)
				switch {
				case err != nil:
					return err
				case asJSON:
					err = json.NewEncoder(g.out).Encode(r)
				case r.Plugins == 1:
					err = g.done("1 plugin in use")
				default:
					err = g.done("%d plugins in use", r.Plugins)
				}
				if r.Failure != "" {
					err = errors.Join(&problem{slug: "plugin-reload", err: errors.New(r.Failure), silent: asJSON,
						fields: []field{{"detail", fmt.Sprintf("the %d plugins of before are kept", r.Plugins)}}}, err)
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	g.addServerFlag(c)
	return c
}
