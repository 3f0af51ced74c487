package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"codework/internal/settings"
)

func newTrust(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "trust [path]",
		Short: "Let a project's settings start programs, redirect requests and choose the sandbox",
		Long: `Until a project is trusted, what its .codework/settings.jsonc says about plugins,
models, addresses, headers, keys and sandboxes is ignored. Trust lasts, and holds
for the project's real path.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			root, err := g.trust(dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(g.out, "Trusted %s\n", oneLine(root))
			return err
		},
	}
}

// trust adds the project that dir lies in to the trusted ones.
func (g *global) trust(dir string) (string, error) {
	p, err := g.paths()
	if err != nil {
		return "", err
	}
	abs, err := absolute(dir)
	if err != nil {
		return "", err
	}
	root, ok := settings.FindProject(abs, p.Home)
	if !ok {
		return "", &problem{err: fmt.Errorf("no project at %s: no folder above it has a .codework folder", abs),
			hint: "trust is about a project's own settings; without .codework/settings.jsonc there are none"}
	}
	if err := p.Prepare(); err != nil {
		return "", err
	}
	return root, settings.OpenTrust(p.Home).Trust(root)
}
