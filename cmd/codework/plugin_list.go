package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"codework/internal/plugin"
	"codework/internal/plugin/source"
)

func newPluginList(g *global) *cobra.Command {
	var verbose, probe, asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the plugins of your settings and the project's",
		Long: `List the plugins that count in this directory, each with its id or with what is
wrong. Nothing is started or fetched, so that a program which only says itself
what it is called has "-" there; --probe starts each plugin and names its tools; it waits 3 minutes, so that
npx and its kind may fetch what they start.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.pluginResult(c.Context(), g.listPlugins(c.Context(), verbose, probe, asJSON), asJSON)
		},
	}
	f := c.Flags()
	f.BoolVarP(&verbose, "verbose", "v", false, "also where each comes from, and entries that only configure")
	f.BoolVar(&probe, "probe", false, "start each plugin and name its tools")
	f.BoolVar(&asJSON, "json", false, "print an array of everything that is known of them")
	return c
}

// pluginRow is one entry for programs.
type pluginRow struct {
	Entry      string       `json:"entry"`
	ID         string       `json:"id,omitempty"`
	Kind       string       `json:"kind,omitempty"`
	Source     string       `json:"source"`
	File       string       `json:"file"`
	Version    string       `json:"version,omitempty"`
	Enabled    bool         `json:"enabled"`
	Configures bool         `json:"configures,omitempty"`
	Unused     bool         `json:"unused,omitempty"` // configures nothing that is there
	Tools      []string     `json:"tools,omitempty"`
	Error      *resultError `json:"error,omitempty"`

	names []string // what configurations may call it
	err   error
}

func (r *pluginRow) fail(err error) {
	r.err, r.Error = err, &resultError{Type: plugin.StartFailed, Message: err.Error()}
	var known *plugin.Error
	if errors.As(err, &known) {
		r.Error.Type, r.Error.Message = known.Slug, known.Detail
	}
}

func (g *global) listPlugins(ctx context.Context, verbose, probe, asJSON bool) error {
	p, entries, err := g.pluginEntries()
	if err != nil {
		return err
	}
	store := openPlugins(p)
	var start *pluginStart
	if probe {
		dir, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("find the working directory: %w", err)
		}
		if start, err = g.newPluginStart(dir); err != nil {
			return err
		}
		defer start.close()
	}
	rows := []pluginRow{}
	for _, e := range entries {
		row := pluginRow{Entry: e.Reference(), Source: sourceOf(e.Entry), File: e.File, Enabled: true}
		var bad *plugin.Error
		switch {
		case errors.As(e.err, &bad):
			row.Entry, row.File, row.Source = bad.Reference, bad.File, "unknown"
			row.fail(e.err)
		case e.Configures():
			row.Configures, row.Unused = true, true
			row.ID = e.Plugin
		default:
			g.describePlugin(ctx, store, start, e.Entry, &row)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rows = append(rows, row)
	}
	configurePlugins(entries, rows)
	if asJSON {
		return errors.Join(printList(g, rows), g.pluginTrouble(rows, probe, true))
	}
	var lines [][]string
	heading := []string{"ENTRY", "PLUGIN"}
	if verbose {
		heading = []string{"ENTRY", "PLUGIN", "STATE", "SOURCE", "FILE"}
	}
	for _, r := range rows {
		if r.Configures && !verbose {
			continue
		}
		cells := []string{r.Entry, r.title()}
		if verbose {
			cells = append(cells, r.state(), strings.TrimSpace(r.Source+" "+r.Version), r.File)
		}
		lines = append(lines, cells)
		for _, t := range r.Tools {
			lines = append(lines, append([]string{"", t}, make([]string, len(heading)-2)...))
		}
	}
	if len(rows) == 0 && !g.quiet {
		fmt.Fprintln(g.err, "no plugins are configured here; see: codework plugin add --help")
	}
	return errors.Join(g.printRows(heading, lines), g.pluginTrouble(rows, probe, false))
}

// title is a plugin's id, or the slug of what is wrong with it.
func (r pluginRow) title() string {
	switch {
	case r.Error != nil:
		return r.Error.Type
	case r.ID == "":
		return "-"
	}
	return r.ID
}

func (r pluginRow) state() string {
	switch {
	case r.Unused:
		return "matches nothing"
	case r.Configures:
		return "configures"
	case !r.Enabled:
		return "off"
	}
	return "on"
}

// describePlugin finds out what an entry is, by starting it if start is given.
func (g *global) describePlugin(ctx context.Context, store *source.Store, start *pluginStart, e plugin.Entry, row *pluginRow) {
	program, err := programOf(store, e)
	if err != nil {
		row.fail(err)
		return
	}
	if remoteModule(e) {
		if have, err := store.Installed(e); err == nil {
			row.Version = have.Version
		}
	}
	row.ID, row.Kind, row.names = program.ID, string(program.Kind), program.Names
	row.Enabled = !program.OptIn
	if program.Enabled != nil {
		row.Enabled = *program.Enabled
	}
	if start == nil {
		return
	}
	inst, tools, err := start.ask(ctx, program)
	if err != nil {
		row.fail(err)
		return
	}
	row.ID, row.Kind, row.Tools = inst.ID, string(inst.Kind), toolNames(inst, tools)
	if inst.Declared != nil && inst.Declared.OptIn && program.Enabled == nil {
		row.Enabled = false
	}
}

// builtinVendor starts the ids of what is part of the program.
const builtinVendor = "codework."

// configurePlugins applies the entries that configure, and finds those that
// match nothing.
func configurePlugins(entries []pluginEntry, rows []pluginRow) {
	for i, e := range entries {
		if e.err != nil || !e.Configures() {
			continue
		}
		if strings.HasPrefix(e.Plugin, builtinVendor) {
			rows[i].Unused = false
		}
		for j := range rows {
			r := &rows[j]
			if r.Configures || e.Plugin != "" && e.Plugin != r.ID || e.Package != "" && !slices.Contains(r.names, e.Package) {
				continue
			}
			rows[i].Unused = false
			if e.Enabled != nil {
				r.Enabled = *e.Enabled
			}
		}
	}
}

// pluginTrouble tells what is wrong with plugins that were started. A listing
// that only reads has said so in its rows.
func (g *global) pluginTrouble(rows []pluginRow, probe, silent bool) error {
	failed := false
	for _, r := range rows {
		var p *problem
		if r.err == nil || !probe || !errors.As(explainPlugin(r.err), &p) {
			continue
		}
		failed = true
		if !silent {
			printProblem(g.err, p)
		}
	}
	if failed {
		return &problem{err: errors.New("not every plugin works"), silent: true}
	}
	return nil
}
