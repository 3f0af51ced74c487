package source

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"codework/integration/peer"
	"codework/internal/plugin"
)

// registry is an npm registry in memory.
type registry struct {
	*httptest.Server
	mu       sync.Mutex // guards the following
	packages map[string]map[string]any
	latest   map[string]string
	tarballs map[string][]byte
	broken   bool // what it sends is not what it says
}

func newRegistry(t *testing.T) *registry {
	t.Helper()
	peer.Wanted(t, "NPM")
	for _, name := range []string{"npm", "node"} {
		if _, err := exec.LookPath(name); err != nil {
			peer.Missing(t, "NPM", err, "install Node.js with npm")
		}
	}
	r := &registry{packages: map[string]map[string]any{}, latest: map[string]string{}, tarballs: map[string][]byte{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		name := strings.TrimPrefix(q.URL.Path, "/")
		if b, ok := r.tarballs[name]; ok {
			if r.broken {
				b = append([]byte("x"), b...)
			}
			_, _ = w.Write(b)
			return
		}
		versions, ok := r.packages[name]
		if !ok {
			http.Error(w, `{"error":"not found"}`, http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": r.latest[name]}, "versions": versions})
	}))
	t.Cleanup(r.Close)
	// npm keeps what it fetched, also its logs, in its home.
	t.Setenv("HOME", t.TempDir())
	t.Setenv("npm_config_cache", t.TempDir())
	return r
}

// publish adds a version of a package; more is laid over its package.json.
func (r *registry) publish(t *testing.T, name, version string, more map[string]any, files ...file) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := map[string]any{"name": name, "version": version}
	for k, v := range more {
		p[k] = v
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	all := []file{{name: "package/package.json", text: string(b)}}
	for _, f := range files {
		f.name = "package/" + f.name
		all = append(all, f)
	}
	tarball := archive(t, all...)
	sum := sha512.Sum512(tarball)
	path := "-/" + name + "-" + version + ".tgz"
	r.tarballs[path] = tarball
	p["dist"] = map[string]string{"tarball": r.URL + "/" + path, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	if r.packages[name] == nil {
		r.packages[name] = map[string]any{}
	}
	r.packages[name][version] = p
	r.latest[name] = version
}

// use names the registry in the npm settings beside the user's settings.
func (r *registry) use(t *testing.T, w *world) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.home, npmrc), []byte("registry="+r.URL+"/\n//"+r.Listener.Addr().String()+"/:_authToken=secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPackagesComeFromTheRegistryAndRunNothing(t *testing.T) {
	r, w := newRegistry(t), newWorld(t)
	r.use(t, w)
	ran := filepath.Join(t.TempDir(), "ran")
	scripts := map[string]any{"preinstall": "touch " + ran, "install": "touch " + ran, "postinstall": "touch " + ran, "prepare": "touch " + ran}
	r.publish(t, "dep", "2.0.0", map[string]any{"scripts": scripts}, file{name: "index.js", text: ""})
	server := map[string]any{"bin": map[string]string{"words": "./server.js"}, "dependencies": map[string]string{"dep": "^2.0.0"}, "scripts": scripts,
		"devDependencies": map[string]string{"nothing": "1.0.0"}}
	r.publish(t, "words", "1.0.0", server, file{name: "server.js", text: "one"})
	e := w.entry("words")
	have, fresh, err := w.Fetch(t.Context(), e)
	if err != nil || !fresh || have.Version != "1.0.0" || have.Name() != "words@1.0.0" {
		t.Fatal(have, fresh, err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a script has run")
	}
	p, err := w.Resolve(e)
	if err != nil || p.ID != "mcp.tool.words" || !p.Unnamed || p.Argv[0] != "node" || p.Argv[1] != filepath.Join(have.Dir, "server.js") {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := os.Stat(filepath.Join(have.Dir, "..", "dep", "index.js")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{npmrc} {
		if _, err := os.Lstat(filepath.Join(have.Dir, "..", "..", name)); err == nil {
			t.Errorf("%s was left in the store", name)
		}
	}

	// An exact version stays; the others move.
	exact, ranged := w.entry("words@1.0.0"), w.entry("words@^1.0.0")
	for _, e := range []plugin.Entry{exact, ranged} {
		if _, fresh, err := w.Fetch(t.Context(), e); err != nil || !fresh {
			t.Fatal(fresh, err)
		}
	}
	r.publish(t, "words", "1.1.0", server, file{name: "server.js", text: "two"})
	r.publish(t, "words", "2.0.0", server, file{name: "server.js", text: "three"})
	for spec, want := range map[string]string{"words": "2.0.0", "words@1.0.0": "1.0.0", "words@^1.0.0": "1.1.0"} {
		e := w.entry(spec)
		if version, _, err := w.Latest(t.Context(), e, true); err != nil || version != want {
			t.Errorf("%s: %s %v", spec, version, err)
		}
		if have, fresh, err := w.Fetch(t.Context(), e); err != nil || have.Version != want || fresh != (want != "1.0.0") {
			t.Errorf("%s: %+v %v %v", spec, have, fresh, err)
		}
	}
	w.nothingLeft(t)
}

func TestWhatARegistryDoesNotHave(t *testing.T) {
	r, w := newRegistry(t), newWorld(t)
	r.use(t, w)
	r.publish(t, "library", "1.0.0", nil, file{name: "index.js"})
	r.publish(t, "out", "1.0.0", map[string]any{"bin": "../../x.js"})
	r.publish(t, "lost", "1.0.0", map[string]any{"bin": "lost.js"})
	r.publish(t, "whole", "1.0.0", nil, file{name: "codework-plugin.json", text: manifest}, file{name: "run"})
	for spec, slug := range map[string]string{
		"nothing":       plugin.NotFound,
		"library@9.0.0": plugin.NotFound,
		"library":       plugin.NoEntrypoint,
		"out":           plugin.NoEntrypoint,
		"lost":          plugin.NoEntrypoint,
	} {
		_, _, err := w.Fetch(t.Context(), w.entry(spec))
		t.Log(spec)
		refused(t, err, slug, "")
	}
	if _, _, err := w.Fetch(t.Context(), w.entry("whole")); err != nil {
		t.Error(err)
	}
	if p, err := w.Resolve(w.entry("whole")); err != nil || p.ID != "acme.tool.words" {
		t.Errorf("%+v %v", p, err)
	}
	_, _, err := w.Latest(t.Context(), w.entry("nothing"), true)
	refused(t, err, plugin.NotFound, "")
	r.publish(t, "bad", "1.0.0", map[string]any{"bin": "a.js"}, file{name: "a.js"})
	r.mu.Lock()
	r.broken = true
	r.mu.Unlock()
	_, _, err = w.Fetch(t.Context(), w.entry("bad"))
	refused(t, err, plugin.IntegrityFailed, "")
	w.nothingLeft(t)
}

// Two projects may mean different packages by one name; and what a project says
// of registries counts only when it is trusted.
func TestRegistriesAreKeptApart(t *testing.T) {
	w := newWorld(t)
	t.Setenv("HOME", t.TempDir())
	project := filepath.Join(t.TempDir(), "p")
	if err := os.MkdirAll(filepath.Join(project, ".codework"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "; comment\nregistry = https://a.example/\n@acme:registry=\"https://b.example/\"\n"
	if err := os.WriteFile(filepath.Join(project, npmrc), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mine := w.entry("words")
	theirs := plugin.Entry{Spec: "words", File: filepath.Join(project, ".codework", "settings.jsonc")}
	sp, scoped := Spec{Kind: NPM, Name: "words"}, Spec{Kind: NPM, Name: "@acme/words"}
	if got := w.registry(theirs, sp) + " " + w.registry(theirs, scoped) + w.registry(mine, sp); got != "https://a.example/ https://b.example/" {
		t.Error(got)
	}
	if w.slot(mine, sp) == w.slot(theirs, sp) {
		t.Error("one place for two registries")
	}
	w.opt.Trusted = func(string) bool { return false }
	if got := w.registry(theirs, sp); got != "" {
		t.Error(got)
	}
}

func TestTheVersionThatNPMWouldInstall(t *testing.T) {
	for text, want := range map[string]string{
		`{"version":"1.2.0","dist-tags":{"latest":"1.2.0"}}`:                                                      "1.2.0",
		`[{"version":"1.0.0","dist-tags":{"latest":"2.0.0"}},{"version":"1.1.0","dist-tags":{"latest":"2.0.0"}}]`: "1.1.0",
		`[{"version":"1.0.0","dist-tags":{"latest":"1.0.0"}},{"version":"1.1.0","dist-tags":{"latest":"1.0.0"}}]`: "1.0.0",
		`[]`:       "",
		`{}`:       "",
		`"1.0.0"`:  "",
		`not json`: "",
	} {
		if got, err := newestOf([]byte(text)); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %s %v", text, got, err)
		}
	}
}
