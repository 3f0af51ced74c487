package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"codework/internal/plugin"
	"codework/internal/plugin/source"
	"codework/internal/settings"
	"codework/messages"
	"codework/protocol/client"
)

// pluginAdd are the flags of codework plugin add.
type pluginAdd struct {
	user    bool
	session string
	command string
	url     string
	id      string
	env     []string
	headers []string
	asJSON  bool
}

func newPluginAdd(g *global) *cobra.Command {
	var a pluginAdd
	c := &cobra.Command{
		Use:   "add SPEC | add --command PROGRAM [-- ARGUMENT…] | add --url ADDRESS",
		Short: "Fetch a plugin, try it, and write it into the settings",
		Long: `Fetch a plugin, start it once to see that it works, and write it into the project's
settings, or with --global into yours. A plugin runs with your rights, outside of
a session's sandbox: add only what you trust. SPEC is one of

  ./path                          a program or a package on this machine
  name, name@version              a package from npm
  github:owner/repository#ref     a repository
  git+https://host/path.git#ref::path:folder
  https://host/file.tar.gz#sha256=…

A server that speaks the Model Context Protocol, and is there already or is
started by another program, is added with --command:

  codework plugin add --command "npx -y @modelcontextprotocol/server-everything"`,
		RunE: func(c *cobra.Command, args []string) error {
			return g.pluginResult(c.Context(), a.run(c, g, args), a.asJSON)
		},
	}
	f := c.Flags()
	f.BoolVarP(&a.user, "global", "g", false, "write into your settings, not the project's")
	f.StringVar(&a.session, "session", "", "write into the settings of the project that this session is linked to")
	f.StringVar(&a.command, "command", "", "a program that speaks the Model Context Protocol, with its arguments")
	f.StringVar(&a.url, "url", "", "the address of such a server")
	f.StringVar(&a.id, "id", "", "what to call a program or server, as vendor.domain.name")
	f.StringArrayVar(&a.env, "env", nil, "NAME=value for a program; the value may be '${NAME}' of your environment")
	f.StringArrayVar(&a.headers, "header", nil, "NAME=value for a server; the value may be '${NAME}' of your environment")
	f.BoolVar(&a.asJSON, "json", false, "print the result as JSON")
	return c
}

// pluginAdded is the result for programs.
type pluginAdded struct {
	Result  string   `json:"result"` // added, replaced or present
	ID      string   `json:"id"`
	Entry   string   `json:"entry"`
	Version string   `json:"version,omitempty"`
	File    string   `json:"file"`
	Tools   []string `json:"tools"`
}

func (a *pluginAdd) run(c *cobra.Command, g *global, args []string) error {
	ctx := c.Context()
	if a.user && a.session != "" {
		return usagef("--global does not go with --session")
	}
	written, err := a.entry(args)
	if err != nil {
		return err
	}
	dir, err := absolute(".")
	if err != nil {
		return err
	}
	if a.session != "" && g.configDir == "" {
		if dir, err = a.linked(c, g); err != nil {
			return err
		}
	}
	place, err := g.pluginPlace(dir, a.user, true)
	if err != nil {
		return err
	}
	e, raw, err := a.written(written, place)
	if err != nil {
		return err
	}
	p, err := g.paths()
	if err != nil {
		return err
	}
	store := openPlugins(p)
	out := pluginAdded{Entry: e.Reference(), File: place.file(), Tools: []string{}}
	name := e.Reference()
	if remoteModule(e) {
		if _, err := source.Parse(e.Spec); err == nil && !g.quiet {
			fmt.Fprintf(g.err, "fetching %s\n", oneLine(name))
		}
		have, _, err := store.Fetch(ctx, e)
		if err != nil {
			return meantPath(err, args)
		}
		out.Version, name = have.Version, have.Name()
	}
	program, err := programOf(store, e)
	if err != nil {
		return meantPath(err, args)
	}
	if !g.quiet {
		fmt.Fprintf(g.err, "starting %s once; a plugin runs with your rights, outside of a session's sandbox\n", oneLine(name))
	}
	start, err := g.newPluginStart(dir)
	if err != nil {
		return err
	}
	inst, tools, err := start.ask(ctx, program)
	if err = errors.Join(err, start.close()); err != nil {
		return err
	}
	out.ID, out.Tools = inst.ID, toolNames(inst, tools)
	if err := a.write(ctx, g, store, place, e, raw, &out); err != nil {
		return err
	}
	if !place.trusted && !g.quiet {
		fmt.Fprintf(g.err, "warning: the project is not trusted, so its plugins are not used until: codework trust %s\n", oneLine(place.root))
	}
	if a.asJSON {
		return json.NewEncoder(g.out).Encode(out)
	}
	switch out.Result {
	case "present":
		return g.done("%s (%s) is already in %s", out.ID, name, out.File)
	case "replaced":
		return g.done("Replaced %s (%s) in %s", out.ID, name, out.File)
	}
	return g.done("Added %s (%s) to %s", out.ID, name, out.File)
}

// meantPath tells somebody who left out the "./" of a path.
func meantPath(err error, args []string) error {
	var e *plugin.Error
	if errors.As(err, &e) && len(args) == 1 && !plugin.IsLocal(args[0]) {
		if _, missing := os.Stat(args[0]); missing == nil {
			e.Hint = "for what lies here: codework plugin add ./" + args[0]
		}
	}
	return err
}

// pluginObject is an entry for a program or server as it is written down.
type pluginObject struct {
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	ID      string            `json:"id,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// entry is what the flags and arguments ask for: a module, or an object.
func (a *pluginAdd) entry(args []string) (any, error) {
	object := a.command != "" || a.url != ""
	switch {
	case a.command != "" && a.url != "":
		return nil, usagef("--command does not go with --url")
	case a.url != "" && len(args) > 0:
		return nil, usagef("--url takes no arguments")
	case !object && len(args) != 1:
		return nil, usagef("expected one plugin, or --command or --url")
	case !object && a.id != "":
		return nil, usagef("--id goes with --command and --url; a module says itself what it is called")
	case len(a.env) > 0 && a.command == "":
		return nil, usagef("--env goes with --command")
	case len(a.headers) > 0 && a.url == "":
		return nil, usagef("--header goes with --url")
	case !object:
		return args[0], nil
	}
	o := pluginObject{URL: a.url, ID: a.id}
	if a.command != "" {
		words, err := commandWords(a.command)
		if err != nil {
			return nil, usagef("--command: %v", err)
		}
		o.Command, o.Args = words[0], append(words[1:], args...)
	}
	var err error
	if o.Env, err = pairs("--env", a.env); err != nil {
		return nil, err
	}
	if o.Headers, err = pairs("--header", a.headers); err != nil {
		return nil, err
	}
	return o, nil
}

// pairs reads NAME=value.
func pairs(flag string, list []string) (map[string]string, error) {
	var out map[string]string
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usagef("%s: expected NAME=value", flag)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value
	}
	return out, nil
}

// commandWords takes a command line apart as a shell does with plain words and
// quotes. Nothing in it is expanded.
func commandWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote := false, rune(0)
	escaped := false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, in = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if in {
				words = append(words, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("a quote is not closed")
	}
	if in {
		words = append(words, word.String())
	}
	if len(words) == 0 || words[0] == "" {
		return nil, errors.New("it names no program")
	}
	return words, nil
}

// linked is the folder of the session's project.
func (a *pluginAdd) linked(c *cobra.Command, g *global) (string, error) {
	var dir string
	err := g.withSession(c, a.session, false, func(_ context.Context, _ *client.Client, info messages.SessionInfo) error {
		if dir = info.HostDir; dir == "" {
			return &problem{slug: "session-not-linked", err: errors.New("the session is linked to no directory"), fields: []field{{"session", info.ID}},
				hint: "codework session link " + info.ID + " PATH"}
		}
		return nil
	})
	return dir, err
}

// written is the entry as it stands in the file: relative paths start there.
func (a *pluginAdd) written(entry any, place pluginPlace) (plugin.Entry, json.RawMessage, error) {
	if text, ok := entry.(string); ok {
		entry = fromFile(text, place)
	}
	if o, ok := entry.(pluginObject); ok && strings.ContainsRune(o.Command, filepath.Separator) {
		o.Command = fromFile(o.Command, place)
		entry = o
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // people read it
	if err := enc.Encode(entry); err != nil {
		return plugin.Entry{}, nil, err
	}
	raw := json.RawMessage(bytes.TrimSpace(b.Bytes()))
	e, err := plugin.ParseEntry(settings.Plugin{Entry: raw, File: place.file(), Trusted: place.trusted})
	return e, raw, err
}

// fromFile rewrites a relative path for the file that it is written into: it is
// relative to the file when both lie in one project, else absolute.
func fromFile(text string, place pluginPlace) string {
	relative := text == "." || text == ".." || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
	if !relative {
		return text
	}
	abs, err := filepath.Abs(text)
	if err != nil {
		return text
	}
	if place.root != "" {
		inside, err := filepath.Rel(place.root, abs)
		if rel, relErr := filepath.Rel(place.dir, abs); err == nil && relErr == nil && filepath.IsLocal(inside) {
			if rel = filepath.ToSlash(rel); !strings.HasPrefix(rel, "../") && rel != ".." && rel != "." {
				rel = "./" + rel
			}
			return rel
		}
	}
	return abs
}

// write puts the entry into the file. One for the same plugin is replaced.
func (a *pluginAdd) write(ctx context.Context, g *global, store *source.Store, place pluginPlace, e plugin.Entry, raw json.RawMessage, out *pluginAdded) error {
	if !exists(place.dir) {
		perm := os.FileMode(0o700)
		if place.root != "" {
			perm = 0o755 // other people's tools look at a project too
		}
		if err := os.MkdirAll(place.dir, perm); err != nil {
			return err
		}
		if place.fresh && !g.quiet {
			fmt.Fprintf(g.err, "created %s\n", oneLine(place.dir))
		}
	}
	return settings.ChangePlugins(ctx, place.dir, func(list []json.RawMessage) (settings.PluginChange, error) {
		out.Result = "added"
		change := settings.PluginChange{Append: []json.RawMessage{raw}}
		for i, text := range list {
			other, err := plugin.ParseEntry(settings.Plugin{Entry: text, File: e.File, Trusted: e.Trusted})
			if err != nil || other.Configures() {
				continue // not ours to judge
			}
			switch {
			case bytes.Equal(text, raw):
				out.Result = "present"
				return settings.PluginChange{}, nil
			case samePlugin(store, e, other):
				out.Result = "replaced"
				change = settings.PluginChange{Replace: map[int]json.RawMessage{i: raw}}
			case idOf(store, other) == out.ID && !g.quiet:
				fmt.Fprintf(g.err, "warning: %s is called %s too; the last one in the list counts\n", oneLine(other.Reference()), out.ID)
			}
		}
		return change, nil
	})
}
