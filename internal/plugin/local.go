package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"codework/messages"
	"codework/protocol/plugin"
)

// ManifestName is the file that makes a folder a package.
const ManifestName = "codework-plugin.json"

// maxManifest bounds a manifest, in bytes.
const maxManifest = 1 << 20

// Manifest says how a package is run.
type Manifest struct {
	ID    string      `json:"id"`
	Kind  plugin.Kind `json:"kind"`
	OptIn bool        `json:"optIn"`
	// Command is the program and its arguments. A program with a slash lies in
	// the package, any other is looked for on the PATH.
	Command []string `json:"command"`
	// Platforms holds other commands for "linux/amd64" and the like.
	Platforms map[string][]string `json:"platforms"`
	// Protocol is "mcp", which "" means too.
	Protocol string `json:"protocol"`
	// Name is another name for configurations; "" has none.
	Name string `json:"name"`
}

// IsLocal tells whether a module is a path of this machine.
func IsLocal(spec string) bool {
	for _, prefix := range []string{"./", "../", "~/", "/", "file:"} {
		if strings.HasPrefix(spec, prefix) {
			return true
		}
	}
	return spec == "." || spec == ".." || filepath.IsAbs(spec)
}

// LocalPath is the absolute path of a local module, with no claim that
// anything is there.
func LocalPath(e Entry) (string, error) {
	spec := e.Spec
	switch {
	case strings.HasPrefix(spec, "file:///"):
		return filepath.Clean(strings.TrimPrefix(spec, "file://")), nil
	case strings.HasPrefix(spec, "file:"):
		return "", e.problem(UnsupportedSource, "file: needs an absolute path, as in file:///home/ada/plugin")
	case strings.HasPrefix(spec, "~/"):
		home, err := os.UserHomeDir()
		if err != nil {
			return "", e.problem(ResolveFailed, "%v", err)
		}
		return filepath.Join(home, spec[2:]), nil
	}
	return e.Path(spec), nil
}

func (e Entry) problem(slug, format string, args ...any) *Error {
	return &Error{Slug: slug, Reference: e.Reference(), File: e.File, Detail: fmt.Sprintf(format, args...), Required: true}
}

// Local finds the program of a local module: a package, or a program that is
// its own command and says itself what it is called. The error is an *Error.
func Local(e Entry) (Program, error) {
	if !IsLocal(e.Spec) {
		err := e.problem(NotInstalled, "it is not installed")
		err.Hint = "codework plugin install"
		return Program{}, err
	}
	path, err := LocalPath(e)
	if err != nil {
		return Program{}, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Program{}, e.problem(NotFound, "there is no %s", path)
	case err != nil:
		return Program{}, e.problem(ResolveFailed, "%v", err)
	case info.IsDir():
		return Package(e, path)
	case !info.Mode().IsRegular():
		return Program{}, e.problem(NoEntrypoint, "%s is no file", path)
	case runtime.GOOS != "windows" && info.Mode()&0o111 == 0:
		p := e.problem(NoEntrypoint, "%s is not executable", path)
		p.Hint = "chmod +x it, with a first line such as #!/usr/bin/env node"
		return Program{}, p
	}
	return Program{Argv: []string{path}, Dir: filepath.Dir(path), Module: true, Names: []string{e.Spec, path}, Reference: e.Reference(), File: e.File}, nil
}

// Package reads the manifest of the package in dir, which e names. The error
// is an *Error. For what is installed, the caller adds names and a revision.
func Package(e Entry, dir string) (Program, error) {
	file := filepath.Join(dir, ManifestName)
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxManifest {
		return Program{}, e.problem(NoEntrypoint, "%s has no %s", dir, ManifestName)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return Program{}, e.problem(ResolveFailed, "%v", err)
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return Program{}, e.problem(InvalidDefinition, "%s: %v", file, err)
	}
	switch {
	case !plugin.ValidID(m.ID):
		return Program{}, e.problem(InvalidDefinition, "%s: id %.80q is not vendor.domain.name of a-z, 0-9 and -, with a vendor other than %s", file, m.ID, plugin.BuiltinVendor)
	case m.Kind != plugin.KindTool && m.Kind != plugin.KindPrompt:
		return Program{}, e.problem(InvalidDefinition, "%s: kind is %.40q; tool and prompt are possible", file, m.Kind)
	case m.Protocol != "" && m.Protocol != "mcp":
		return Program{}, e.problem(Incompatible, "%s: protocol is %.40q; mcp is possible", file, m.Protocol)
	}
	argv := m.Command
	if own, ok := m.Platforms[runtime.GOOS+"/"+runtime.GOARCH]; ok {
		argv = own
	} else if len(argv) == 0 && len(m.Platforms) > 0 {
		return Program{}, e.problem(UnsupportedPlatform, "it has no program for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if len(argv) == 0 || argv[0] == "" {
		return Program{}, e.problem(NoEntrypoint, "%s: command is missing", file)
	}
	argv = append([]string(nil), argv...)
	for i, arg := range argv {
		if filepath.IsAbs(arg) && i == 0 || !inside(dir, arg) {
			return Program{}, e.problem(EscapesRoot, "%s: %.80q is outside of the package", file, arg)
		}
	}
	if strings.ContainsAny(argv[0], `/\`) {
		argv[0] = filepath.Join(dir, argv[0])
	}
	p := Program{ID: m.ID, Kind: m.Kind, Argv: argv, Dir: dir, OptIn: m.OptIn, Module: true, Names: []string{e.Spec, dir}, Reference: e.Reference(), File: e.File}
	if m.Name != "" {
		p.Names = append(p.Names, m.Name)
	}
	return p, nil
}

// inside tells that an argument, if it names a file, names one of the package.
func inside(dir, arg string) bool {
	if filepath.IsAbs(arg) || strings.HasPrefix(arg, "-") {
		return true
	}
	if !filepath.IsLocal(arg) && arg != "" {
		return false
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(filepath.Join(dir, arg))
	if err != nil {
		return true // no file
	}
	return real == root || strings.HasPrefix(real, root+string(filepath.Separator))
}

// OfEditor is the program of a server that an editor brings along for one
// session.
func OfEditor(s messages.MCPServer) Program {
	env := map[string]string{}
	var secrets []string
	for _, e := range s.Env {
		if name, value, ok := strings.Cut(e, "="); ok && name != "" {
			env[name] = value
			secrets = append(secrets, value)
		}
	}
	short := Entry{Command: s.Name}.short()
	return Program{ID: "mcp.editor." + short, Unnamed: true, Argv: append([]string{s.Command}, s.Args...), Env: env, OfEditor: true,
		Reference: shortLine([]byte(s.Name)), Secrets: secrets}
}
