package plugin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"codework/internal/settings"
	"codework/protocol/plugin"
)

// Entry is one entry of the settings' plugin list. Exactly one of Spec,
// Command, URL, Plugin and Package is set.
type Entry struct {
	// Spec is a module: a path, or where to get one.
	Spec string
	// Command is a program that is there already.
	Command string
	Args    []string
	Env     map[string]string // values may be "${NAME}"
	Cwd     string            // "host" or "" for the session's folder, or a path
	// URL is a server that is reached by HTTP.
	URL     string
	Headers map[string]string // values may be "${NAME}"
	// Plugin and Package configure a plugin that another entry brings, by its
	// id or by its module.
	Plugin  string
	Package string

	ID      string // of a program or server; "" is one made of its name
	Enabled *bool
	Options json.RawMessage // an object; nil when nothing is said

	File    string // the settings file
	Trusted bool
}

// Configures tells whether the entry only configures a plugin.
func (e Entry) Configures() bool { return e.Plugin != "" || e.Package != "" }

// Module tells whether the entry is a module.
func (e Entry) Module() bool { return e.Spec != "" }

// Reference is what the entry is called in messages and events: no arguments,
// environment or headers, which may hold secrets.
func (e Entry) Reference() string {
	for _, s := range []string{e.Spec, e.Command, withoutSecrets(e.URL), e.Plugin, e.Package} {
		if s != "" {
			return shortLine([]byte(s))
		}
	}
	return ""
}

// withoutSecrets is an address without user, query and fragment.
func withoutSecrets(raw string) string {
	u, err := url.Parse(raw)
	if raw == "" || err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// Path is p as the entry means it: absolute, or relative to the folder of its
// settings file.
func (e Entry) Path(p string) string {
	if filepath.IsAbs(p) || e.File == "" {
		return filepath.Clean(p)
	}
	return filepath.Join(filepath.Dir(e.File), p)
}

// ParseEntry reads an entry. The error is an *Error of InvalidDefinition.
func ParseEntry(p settings.Plugin) (Entry, error) {
	e := Entry{File: p.File, Trusted: p.Trusted}
	bad := func(format string, args ...any) (Entry, error) {
		return Entry{}, &Error{Slug: InvalidDefinition, Reference: shortLine(p.Entry), File: p.File, Detail: fmt.Sprintf(format, args...), Required: true}
	}
	if json.Unmarshal(p.Entry, &e.Spec) == nil {
		if strings.TrimSpace(e.Spec) == "" {
			return bad("the module is empty")
		}
		return e, nil
	}
	var o struct {
		Plugin, Package, Command, URL, ID, Cwd *string
		Args                                   []string
		Env, Headers                           map[string]string
		Enabled                                *bool
		Options                                json.RawMessage
	}
	var known map[string]json.RawMessage
	if err := json.Unmarshal(p.Entry, &known); err != nil {
		return bad("it is neither a module nor an object")
	}
	fields := map[string]any{"plugin": &o.Plugin, "package": &o.Package, "command": &o.Command, "url": &o.URL, "id": &o.ID, "cwd": &o.Cwd,
		"args": &o.Args, "env": &o.Env, "headers": &o.Headers, "enabled": &o.Enabled, "options": &o.Options}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		field, ok := fields[key]
		if !ok {
			return bad("%s: is no field of an entry", shortLine([]byte(key)))
		}
		if json.Unmarshal(known[key], field) != nil {
			return bad("%s: has the wrong type", key)
		}
	}
	var of []string
	for _, f := range []struct {
		key   string
		value *string
		to    *string
	}{{"plugin", o.Plugin, &e.Plugin}, {"package", o.Package, &e.Package}, {"command", o.Command, &e.Command}, {"url", o.URL, &e.URL}} {
		if f.value == nil {
			continue
		}
		if strings.TrimSpace(*f.value) == "" {
			return bad("%s: is empty", f.key)
		}
		of = append(of, f.key)
		*f.to = *f.value
	}
	if len(of) != 1 {
		return bad("it needs exactly one of plugin, package, command and url")
	}
	only := func(key string, allowed ...string) error {
		if _, ok := known[key]; ok && !slices.Contains(allowed, of[0]) {
			return fmt.Errorf("%s: does not belong to an entry with %s", key, of[0])
		}
		return nil
	}
	for _, err := range []error{only("args", "command"), only("env", "command"), only("cwd", "command"), only("headers", "url"), only("id", "command", "url")} {
		if err != nil {
			return bad("%v", err)
		}
	}
	if len(o.Options) > 0 {
		if o.Options = bytes.TrimSpace(o.Options); o.Options[0] != '{' {
			return bad("options: is no object")
		}
	}
	if o.ID != nil {
		if e.ID = *o.ID; !plugin.ValidID(e.ID) {
			return bad("id: %q is not vendor.domain.name of a-z, 0-9 and -, with a vendor other than %s", shortLine([]byte(e.ID)), plugin.BuiltinVendor)
		}
	}
	if o.Cwd != nil {
		e.Cwd = *o.Cwd
	}
	if e.URL != "" {
		u, err := url.Parse(e.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return bad("url: is no http or https address")
		}
	}
	for name := range o.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return bad("env: %q is no name of a variable", shortLine([]byte(name)))
		}
	}
	e.Args, e.Env, e.Headers, e.Enabled, e.Options = o.Args, o.Env, o.Headers, o.Enabled, o.Options
	return e, nil
}

// Program is what a host runs: a process or a connection. It is complete:
// nothing in it is looked up again.
type Program struct {
	// ID is what settings call it; "" when it says so itself. Unnamed tells
	// that the id was made of its name, so that the plugin may say another.
	ID      string
	Unnamed bool
	Kind    plugin.Kind // "" when nobody has said

	Argv []string          // the program and its arguments
	Env  map[string]string // laid over Base
	Base []string          // "NAME=value": what it has of the caller's environment
	Dir  string            // absolute working folder; "" is the session's on the host

	URL     string
	Headers map[string]string
	Client  *http.Client // reaches URL; nil is the default

	// Options are the entry's own. A configuration that names the plugin
	// replaces them.
	Options json.RawMessage
	// OptIn keeps it off until something enables it.
	OptIn bool
	// Enabled is what the entry itself says; nil is nothing.
	Enabled *bool
	// Module tells that the entry is a module: sessions fail without it.
	Module bool
	// Names are what a configuration may call the module by.
	Names []string
	// OfEditor tells that an editor brought it along, for one session.
	OfEditor bool

	Reference string
	File      string
	// Revision changes when the files behind a module do.
	Revision string
	// Secrets are masked in what is said about the program.
	Secrets []string
}

// name is what to call it until it has said its id.
func (p Program) name() string {
	if p.ID != "" {
		return p.ID
	}
	return p.Reference
}

// Key tells programs apart that need processes of their own, for sessions
// whose folder on the host is dir. It shows nothing of their environment.
func (p Program) Key(dir string) string {
	b, err := json.Marshal(struct {
		ID, URL, Dir, Host, Revision string
		Argv, Base                   []string
		Env, Headers                 map[string]string
	}{p.ID, p.URL, p.Dir, dir, p.Revision, p.Argv, p.Base, p.Env, p.Headers})
	if err != nil {
		panic(err) // strings always have a JSON form
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// inherited are the variables that a plugin gets of its caller's.
var inherited = []string{"PATH", "HOME", "LANG", "TMPDIR", "SystemRoot"}

// Base chooses what a plugin gets of an environment ("NAME=value"): enough to
// start and to find its files, nothing that is secret.
func Base(env []string) []string {
	var out []string
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if ok && (slices.Contains(inherited, name) || strings.HasPrefix(name, "LC_")) {
			out = append(out, e)
		}
	}
	slices.Sort(out)
	return out
}

// OptionsVariable is where a server that only speaks MCP finds its options.
const OptionsVariable = "CODEWORK_PLUGIN_OPTIONS"

// Program is what an entry with a command or a URL runs. Values of env and
// headers are taken as they are.
func (e Entry) Program() Program {
	p := Program{ID: e.ID, Enabled: e.Enabled, Options: e.Options, Reference: e.Reference(), File: e.File}
	if p.ID == "" {
		p.ID, p.Unnamed = "mcp.tool."+e.short(), true
	}
	if e.URL != "" {
		p.URL, p.Headers = e.URL, e.Headers
		return p
	}
	command := e.Command
	if strings.ContainsAny(command, `/\`) {
		command = e.Path(command)
	}
	p.Argv, p.Env = append([]string{command}, e.Args...), e.Env
	if e.Cwd != "" && e.Cwd != "host" {
		p.Dir = e.Path(e.Cwd)
	}
	return p
}

var (
	// launchers start another program, which gives the better name.
	launchers = []string{"npx", "uvx", "bunx", "pnpx", "node", "bun", "deno", "python", "python3", "uv", "pipx", "docker", "podman", "ruby", "java", "sh", "bash", "env", "npm", "pnpm", "yarn", "go"}
	// fetchers are launchers that may download what they start.
	fetchers = []string{"npx", "uvx", "bunx", "pnpx", "deno", "uv", "pipx", "docker", "podman", "npm", "pnpm", "yarn", "go"}
	// verbs of launchers.
	verbs = []string{"run", "exec", "dlx", "x", "tool", "-y", "--yes"}
	noID  = regexp.MustCompile(`[^a-z0-9]+`)
)

// fetches tells whether the program may have to download what it starts, which
// takes longer than sessions wait.
func (p Program) fetches() bool {
	return len(p.Argv) > 0 && slices.Contains(fetchers, strings.TrimSuffix(filepath.Base(p.Argv[0]), ".exe"))
}

// short makes the last segment of an id of what the entry runs:
// "@scope/server-files@1.2" is files.
func (e Entry) short() string {
	name := path.Base(filepath.ToSlash(e.Command))
	if e.URL != "" {
		if u, err := url.Parse(e.URL); err == nil {
			name = u.Hostname()
		}
	} else if slices.Contains(launchers, strings.TrimSuffix(name, ".exe")) {
		for _, a := range e.Args {
			if strings.HasPrefix(a, "-") || slices.Contains(verbs, a) {
				continue
			}
			name = path.Base(filepath.ToSlash(a))
			break
		}
	}
	if i := strings.LastIndexByte(name, '@'); i > 0 {
		name = name[:i]
	}
	if e.URL == "" {
		name = strings.TrimSuffix(name, path.Ext(name))
	}
	name = strings.Trim(noID.ReplaceAllString(strings.ToLower(name), "-"), "-")
	for _, prefix := range []string{"mcp-server-", "server-", "mcp-"} {
		name = strings.TrimPrefix(name, prefix)
	}
	for _, suffix := range []string{"-mcp-server", "-server", "-mcp"} {
		name = strings.TrimSuffix(name, suffix)
	}
	if len(name) > maxShort {
		name = strings.Trim(name[:maxShort], "-")
	}
	if name == "" {
		name = "server"
	}
	return name
}

// maxShort leaves a tool's own name room in the 64 bytes of both.
const maxShort = 24
