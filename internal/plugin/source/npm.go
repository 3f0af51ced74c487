package source

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"codework/internal/plugin"
)

// npmrc is npm's own settings file.
const npmrc = ".npmrc"

// npmrcOf is the npm settings beside the settings that an entry stands in: the
// user's, or those of a project that is trusted. "" is none.
func (s *Store) npmrcOf(e plugin.Entry) string {
	if e.File == "" {
		return ""
	}
	dir := filepath.Dir(e.File)
	if filepath.Base(dir) == ".codework" && dir != filepath.Clean(s.opt.Home) {
		if dir = filepath.Dir(dir); !s.opt.Trusted(dir) {
			return ""
		}
	}
	file := filepath.Join(dir, npmrc)
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return file
}

// registry is where npm gets a package, as far as files say; "" is npm's own
// default. It keeps apart what different registries call the same.
func (s *Store) registry(e plugin.Entry, sp Spec) string {
	files := []string{s.npmrcOf(e)}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, npmrc))
	}
	scope, _, scoped := strings.Cut(sp.Name, "/")
	var general string
	for _, file := range files {
		if file == "" {
			continue
		}
		values := readNPMRC(file)
		if r := values[scope+":registry"]; scoped && r != "" {
			return r
		}
		if general == "" {
			general = values["registry"]
		}
	}
	return general
}

// readNPMRC reads the plain "name = value" lines of npm settings; the rest is
// npm's business.
func readNPMRC(file string) map[string]string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	out := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if ok && !strings.HasPrefix(strings.TrimSpace(name), ";") && !strings.HasPrefix(strings.TrimSpace(name), "#") {
			out[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return out
}

// npm is an npm command that works in dir with the settings of the entry.
func (s *Store) npm(ctx context.Context, e plugin.Entry, dir string, args ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath("npm")
	if err == nil {
		_, err = exec.LookPath("node")
	}
	if err != nil {
		f := fault(e, plugin.MissingDependency, "node and npm are not on the PATH")
		f.Hint = "install Node.js, or run the server as a program with --command"
		return nil, f
	}
	if file := s.npmrcOf(e); file != "" {
		if err := os.Symlink(file, filepath.Join(dir, npmrc)); err != nil {
			return nil, fault(e, plugin.FetchFailed, "%v", err)
		}
	}
	cmd := command(ctx, path, args...)
	cmd.Dir = dir
	return cmd, nil
}

// npmQuiet keeps npm to what is asked, and its scripts from running. One retry
// has to do, as a person waits.
var npmQuiet = []string{"--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--color=false", "--progress=false"}

func (sp Spec) forNPM() string {
	if sp.Version == "" {
		return sp.Name + "@latest"
	}
	return sp.Name + "@" + sp.Version
}

// fetchNPM has npm install a package, which checks what comes against what the
// registry says of it.
func (s *Store) fetchNPM(ctx context.Context, e plugin.Entry, sp Spec, dir string) (fetched, error) {
	// A root of its own, so that npm looks no further up.
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte("{\"private\": true}\n"), 0o600); err != nil {
		return fetched{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	args := append([]string{"install", "--omit=dev", "--prefix", dir, "--no-save"}, npmQuiet...)
	cmd, err := s.npm(ctx, e, dir, append(args, "--", sp.forNPM())...)
	if err != nil {
		return fetched{}, err
	}
	out, err := cmd.CombinedOutput()
	if gone := os.Remove(filepath.Join(dir, npmrc)); gone != nil && !errors.Is(gone, os.ErrNotExist) {
		return fetched{}, fault(e, plugin.FetchFailed, "%v", gone)
	}
	if err != nil {
		return fetched{}, npmFailure(e, sp, out, err)
	}
	entrypoint := filepath.Join("node_modules", filepath.FromSlash(sp.Name))
	p, err := readPackage(filepath.Join(dir, entrypoint))
	if err != nil || p.Version == "" {
		return fetched{}, fault(e, plugin.FetchFailed, "npm has installed no %s", sp.Name)
	}
	return fetched{entrypoint, p.Version, p.Version}, nil
}

// npmFailure says why npm has failed; its codes are in its own documentation.
func npmFailure(e plugin.Entry, sp Spec, out []byte, err error) error {
	code, text := "", ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "npm error"), "npm ERR!"))
		if c, ok := strings.CutPrefix(line, "code "); ok && code == "" {
			code = c
			continue
		}
		if text == "" && line != "" && !strings.HasPrefix(line, "{") {
			text = line
		}
	}
	if text == "" {
		text = err.Error()
	}
	text = lastLine([]byte(text))
	switch code {
	case "E404":
		return fault(e, plugin.NotFound, "the registry has no %s", sp.Name)
	case "ETARGET", "ENOVERSIONS":
		return fault(e, plugin.NotFound, "the registry has no %s", sp.forNPM())
	case "EINTEGRITY":
		return fault(e, plugin.IntegrityFailed, "npm: %s", text)
	case "EBADPLATFORM":
		return fault(e, plugin.UnsupportedPlatform, "it has no program for %s/%s", runtime.GOOS, runtime.GOARCH)
	case "":
		return fault(e, plugin.FetchFailed, "npm: %s", text)
	}
	return fault(e, plugin.FetchFailed, "npm: %s (%s)", text, code)
}

// askNPM asks which version a module is now.
func (s *Store) askNPM(ctx context.Context, e plugin.Entry, sp Spec) (string, error) {
	dir, err := os.MkdirTemp("", "codework-npm-")
	if err != nil {
		return "", fault(e, plugin.FetchFailed, "%v", err)
	}
	defer os.RemoveAll(dir)
	args := append([]string{"view", "--json", "--prefix", dir}, npmQuiet...)
	cmd, err := s.npm(ctx, e, dir, append(args, "--", sp.forNPM(), "version", "dist-tags")...)
	if err != nil {
		return "", err
	}
	var messages capped
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		return "", npmFailure(e, sp, messages.b, err)
	}
	version, err := newestOf(out)
	if err != nil {
		return "", fault(e, plugin.ResolveFailed, "npm: %v", err)
	}
	return version, nil
}

// newestOf is the version that npm would install of those it lists, oldest
// first: the one tagged as latest, else the newest.
func newestOf(out []byte) (string, error) {
	type listed struct {
		Version string            `json:"version"`
		Tags    map[string]string `json:"dist-tags"`
	}
	var list []listed
	if json.Unmarshal(out, &list) != nil {
		var one listed
		if err := json.Unmarshal(out, &one); err != nil {
			return "", errors.New("its answer makes no sense")
		}
		list = []listed{one}
	}
	if len(list) == 0 || list[len(list)-1].Version == "" {
		return "", errors.New("its answer names no version")
	}
	for _, l := range list {
		if l.Version == l.Tags["latest"] {
			return l.Version, nil
		}
	}
	return list[len(list)-1].Version, nil
}

// nodePackage is what is read of a package.json.
type nodePackage struct {
	Name    string          `json:"name"`
	Version string          `json:"version"`
	Bin     json.RawMessage `json:"bin"`
}

// maxPackage bounds a package.json, in bytes.
const maxPackage = 4 << 20

func readPackage(dir string) (nodePackage, error) {
	var p nodePackage
	file := filepath.Join(dir, "package.json")
	info, err := os.Stat(file)
	if err != nil {
		return p, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxPackage {
		return p, fmt.Errorf("%s is no file of that kind", file)
	}
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	return p, err
}

// program is the package's one program: the only one, or the one that is called
// as the package is.
func (p nodePackage) program(name string) string {
	var one string
	if json.Unmarshal(p.Bin, &one) == nil {
		return one
	}
	var several map[string]string
	if json.Unmarshal(p.Bin, &several) != nil {
		return ""
	}
	if own := several[name[strings.LastIndexByte(name, '/')+1:]]; own != "" || len(several) != 1 {
		return own
	}
	for _, one = range several {
	}
	return one
}

// nodeProgram is how a package without a manifest is run: most servers for MCP
// on npm are one program.
func nodeProgram(e plugin.Entry, have Installed) (plugin.Program, error) {
	p, err := readPackage(have.Dir)
	if err != nil {
		return plugin.Program{}, fault(e, plugin.NoEntrypoint, "its package.json cannot be read: %v", err)
	}
	bin := p.program(have.Spec.Name)
	if bin == "" {
		f := fault(e, plugin.NoEntrypoint, "it has neither a %s nor one program of its name", plugin.ManifestName)
		f.Hint = "a plugin for another agent is no program; a package with several programs is used with --command"
		return plugin.Program{}, f
	}
	file := filepath.Join(have.Dir, filepath.FromSlash(bin))
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		return plugin.Program{}, fault(e, plugin.NoEntrypoint, "its program %.80q is missing", bin)
	}
	root, err := filepath.EvalSymlinks(have.Dir)
	if err != nil || !strings.HasPrefix(real, root+string(filepath.Separator)) {
		return plugin.Program{}, fault(e, plugin.EscapesRoot, "its program %.80q is outside of the package", bin)
	}
	named := plugin.Entry{Command: "npx", Args: []string{have.Spec.Name}, File: e.File}.Program()
	return plugin.Program{ID: named.ID, Unnamed: true, Argv: []string{"node", file}, Dir: have.Dir, Module: true,
		Names: []string{e.Spec}, Reference: e.Reference(), File: e.File}, nil
}
