package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/internal/plugin"
)

const manifest = `{"id": "acme.tool.words", "kind": "tool", "command": ["./run"]}`

// file is one entry of an archive.
type file struct {
	name, text string
	link       string // of a symbolic link
	kind       byte   // 0 is a file or link
	mode       int64
}

func archive(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Size: int64(len(f.text)), Mode: 0o644, Linkname: f.link}
		if f.link != "" {
			h.Typeflag = tar.TypeSymlink
		}
		if f.kind != 0 {
			h.Typeflag = f.kind
		}
		if f.mode != 0 {
			h.Mode = f.mode
		}
		err := w.WriteHeader(h)
		if err == nil {
			_, err = w.Write([]byte(f.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func plain(t *testing.T) []byte {
	return archive(t, file{name: "words-1.0/codework-plugin.json", text: manifest}, file{name: "words-1.0/run", text: "#!/bin/sh\n", mode: 0o755},
		file{name: "words-1.0/lib/a.txt", text: "a"}, file{name: "words-1.0/b.txt", link: "lib/a.txt"})
}

// world is a store and a server of archives.
type world struct {
	*Store
	server *httptest.Server
	mu     sync.Mutex // guards serve and asked
	serve  []byte
	asked  int
	home   string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{home: t.TempDir()}
	w.server = httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asked++
		switch r.URL.Path {
		case "/gone.tgz":
			http.NotFound(out, r)
		case "/plain.tgz":
			http.Redirect(out, r, "http://"+r.Host+"/words.tgz", http.StatusFound)
		default:
			_, _ = out.Write(w.serve)
		}
	}))
	t.Cleanup(w.server.Close)
	w.Store = Open(Options{Home: w.home, Client: w.server.Client(), Trusted: func(string) bool { return true }})
	return w
}

func (w *world) entry(spec string) plugin.Entry {
	return plugin.Entry{Spec: spec, File: filepath.Join(w.home, "settings.jsonc"), Trusted: true}
}

// archived serves an archive and gives the entry for it.
func (w *world) archived(b []byte) plugin.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serve = b
	s := sha256.Sum256(b)
	return w.entry(w.server.URL + "/words.tgz#sha256=" + hex.EncodeToString(s[:]))
}

// refused is an error of that slug.
func refused(t *testing.T, err error, slug, detail string) {
	t.Helper()
	var e *plugin.Error
	if !errors.As(err, &e) || e.Slug != slug || !strings.Contains(e.Detail, detail) || e.Reference == "" {
		t.Errorf("got %#v %v, want %s with %q", e, err, slug, detail)
	}
}

// nothingLeft checks that no staging folder is left.
func (w *world) nothingLeft(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(w.dir, "*", "*", stagingPrefix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestAnArchiveIsInstalledOnce(t *testing.T) {
	w := newWorld(t)
	e := w.archived(plain(t))
	_, err := w.Resolve(e)
	refused(t, err, plugin.NotInstalled, "")
	have, fresh, err := w.Fetch(t.Context(), e)
	if err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	p, err := w.Resolve(e)
	if err != nil || p.ID != "acme.tool.words" || p.Argv[0] != filepath.Join(have.Dir, "run") || p.Revision == "" || !p.Module {
		t.Errorf("%+v %v", p, err)
	}
	for name, want := range map[string]string{"b.txt": "a", "lib/a.txt": "a", "run": "#!/bin/sh\n"} {
		if b, err := os.ReadFile(filepath.Join(have.Dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	if _, fresh, err := w.Fetch(t.Context(), e); err != nil || fresh || w.asked != 1 {
		t.Errorf("again: %v %v, asked %d times", fresh, err, w.asked)
	}
	if _, revision, err := w.Latest(t.Context(), e, true); err != nil || revision != have.Revision || w.asked != 1 {
		t.Errorf("%s %v, asked %d times", revision, err, w.asked)
	}
	w.nothingLeft(t)
}

func TestABadArchiveLeavesNothing(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(w.home, "outside")
	good := file{name: "codework-plugin.json", text: manifest}
	for name, c := range map[string]struct {
		files  []file
		slug   string
		detail string
	}{
		"a name that leads out":       {[]file{good, {name: "../x", text: "x"}}, plugin.EscapesRoot, "leads out"},
		"an absolute name":            {[]file{good, {name: outside, text: "x"}}, plugin.EscapesRoot, "leads out"},
		"a link that leads out":       {[]file{good, {name: "x", link: "../../y"}}, plugin.EscapesRoot, "leads out"},
		"an absolute link":            {[]file{good, {name: "x", link: "/etc/passwd"}}, plugin.EscapesRoot, "leads out"},
		"a link over a link":          {[]file{good, {name: "d/e/", kind: tar.TypeDir}, {name: "l", link: "d/e"}, {name: "m", link: "l/../../.."}}, plugin.EscapesRoot, "leads out"},
		"a file through a link":       {[]file{good, {name: "l", link: "."}, {name: "l/codework-plugin.json", text: "{}"}}, plugin.FetchFailed, "exists"},
		"a hard link":                 {[]file{good, {name: "x", kind: tar.TypeLink, link: "codework-plugin.json"}}, plugin.FetchFailed, "neither"},
		"a pipe":                      {[]file{good, {name: "x", kind: tar.TypeFifo}}, plugin.FetchFailed, "neither"},
		"the same name twice":         {[]file{good, good}, plugin.FetchFailed, "exists"},
		"no manifest":                 {[]file{{name: "a", text: "x"}}, plugin.NoEntrypoint, "codework-plugin.json"},
		"a manifest of another kind":  {[]file{{name: "codework-plugin.json", text: "{}"}}, plugin.InvalidDefinition, "id"},
		"a program out of it":         {[]file{{name: "codework-plugin.json", text: strings.Replace(manifest, "./run", "../run", 1)}}, plugin.EscapesRoot, "outside"},
		"no program for this machine": {[]file{{name: "codework-plugin.json", text: `{"id":"a.b.c","kind":"tool","platforms":{"plan9/mips":["x"]}}`}}, plugin.UnsupportedPlatform, ""},
	} {
		e := w.archived(archive(t, c.files...))
		_, _, err := w.Fetch(t.Context(), e)
		t.Log(name)
		refused(t, err, c.slug, c.detail)
		_, err = w.Resolve(e)
		refused(t, err, plugin.NotInstalled, "")
		if strings.Contains(fmt.Sprint(err), stagingPrefix) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(outside); err == nil {
		t.Error("a file was written outside")
	}
	e := w.archived(plain(t))
	w.serve = append(w.serve, 0)
	_, _, err := w.Fetch(t.Context(), e)
	refused(t, err, plugin.IntegrityFailed, "checksum")
	_, _, err = w.Fetch(t.Context(), w.entry(w.server.URL+"/gone.tgz#sha256="+sum))
	refused(t, err, plugin.NotFound, "")
	_, _, err = w.Fetch(t.Context(), w.entry(w.server.URL+"/plain.tgz#sha256="+sum))
	refused(t, err, plugin.FetchFailed, "without https")
	w.server.Close()
	_, _, err = w.Fetch(t.Context(), e)
	refused(t, err, plugin.FetchFailed, "")
	w.nothingLeft(t)
}

// repository is a git repository on this disk.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	r := &repository{t, t.TempDir()}
	r.git("init", "--quiet", "--initial-branch=main")
	return r
}

func (r *repository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir, "-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "protocol.file.allow=always"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit writes files and gives the commit.
func (r *repository) commit(files map[string]string) string {
	r.t.Helper()
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o755)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	r.git("add", "--all")
	r.git("commit", "--quiet", "--message=change")
	return r.git("rev-parse", "HEAD")
}

func TestACommitIsFetchedAndMovesOnlyWithItsBranch(t *testing.T) {
	w, r := newWorld(t), newRepository(t)
	one := r.commit(map[string]string{"sub/codework-plugin.json": manifest, "sub/run": "one", "other/big": "x"})
	r.git("tag", "--annotate", "--message=v1", "v1")
	at := func(fragment string) plugin.Entry { return w.entry("git+file://" + r.dir + "#" + fragment) }
	specs := []string{"::path:sub", "main::path:sub", "v1::path:sub", one + "::path:sub"}
	for _, s := range specs {
		have, fresh, err := w.Fetch(t.Context(), at(s))
		if err != nil || !fresh || have.Revision != one || have.Version != one[:12] {
			t.Fatalf("%s: %+v %v %v", s, have, fresh, err)
		}
		if b, err := os.ReadFile(filepath.Join(have.Dir, "run")); err != nil || string(b) != "one" {
			t.Errorf("%s: %q %v", s, b, err)
		}
		if info, err := os.Stat(filepath.Join(have.Dir, "run")); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v %v", s, info, err)
		}
		if _, err := os.Stat(filepath.Join(have.Dir, "..", "git")); err == nil {
			t.Errorf("%s: the repository is left there", s)
		}
		if _, revision, err := w.Latest(t.Context(), at(s), false); err != nil || revision != one {
			t.Errorf("%s: %s %v", s, revision, err)
		}
	}
	before, err := w.Resolve(at(specs[0]))
	if err != nil {
		t.Fatal(err)
	}
	two := r.commit(map[string]string{"sub/run": "two"})
	for i, s := range specs {
		want := one
		if i < 2 {
			want = two
		}
		if _, revision, err := w.Latest(t.Context(), at(s), false); err != nil || revision != one {
			t.Errorf("%s: asked again within the hour: %s %v", s, revision, err)
		}
		if _, revision, err := w.Latest(t.Context(), at(s), true); err != nil || revision != want {
			t.Errorf("%s: %s %v", s, revision, err)
		}
		have, fresh, err := w.Fetch(t.Context(), at(s))
		if err != nil || fresh != (want == two) || have.Revision != want {
			t.Errorf("%s: %+v %v %v", s, have, fresh, err)
		}
	}
	// Who runs the old one keeps it; who looks anew finds the new one.
	if b, err := os.ReadFile(before.Argv[0]); err != nil || string(b) != "one" {
		t.Errorf("%q %v", b, err)
	}
	after, err := w.Resolve(at(specs[0]))
	if err != nil || after.Key("") == before.Key("") {
		t.Errorf("%+v %v", after, err)
	}
	w.nothingLeft(t)
}

func TestARepositoryRunsNothing(t *testing.T) {
	w, r := newWorld(t), newRepository(t)
	ran := filepath.Join(t.TempDir(), "ran")
	inner := newRepository(t)
	inner.commit(map[string]string{"a": "a"})
	r.git("submodule", "--quiet", "add", inner.dir, "inner")
	r.commit(map[string]string{"codework-plugin.json": manifest, "run": "x", ".gitattributes": "* filter=evil"})
	hook := filepath.Join(r.dir, ".git", "hooks", "post-checkout")
	config := filepath.Join(t.TempDir(), "gitconfig")
	program := "#!/bin/sh\ntouch " + ran + "\ncat\n"
	if err := os.WriteFile(config, []byte("[filter \"evil\"]\n\tsmudge = touch "+ran+"; cat\n[core]\n\tfsmonitor = touch "+ran+"\n\thooksPath = "+filepath.Dir(hook)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"post-checkout", "reference-transaction", "post-index-change"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(hook), name), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	t.Setenv("GIT_DIR", inner.dir)
	have, _, err := w.Fetch(t.Context(), w.entry("git+file://"+r.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program of the repository or of git's settings has run")
	}
	if b, err := os.ReadFile(filepath.Join(have.Dir, "run")); err != nil || string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(have.Dir, "inner", "a")); err == nil {
		t.Error("the submodule was fetched")
	}
}

func TestWhatARepositoryDoesNotHave(t *testing.T) {
	w, r := newWorld(t), newRepository(t)
	r.commit(map[string]string{"codework-plugin.json": manifest})
	at := "git+file://" + r.dir
	for spec, slug := range map[string]string{
		at + "#nothing":                         plugin.NoCommit,
		at + "#" + strings.Repeat("1", 40):      plugin.NoCommit,
		at + "#main::path:nothing":              plugin.NotFound,
		at + "#main::path:codework-plugin.json": plugin.NotFound,
		at + "-gone":                            plugin.FetchFailed,
	} {
		_, _, err := w.Fetch(t.Context(), w.entry(spec))
		t.Log(spec)
		refused(t, err, slug, "")
	}
	_, _, err := w.Latest(t.Context(), w.entry(at+"#nothing"), true)
	refused(t, err, plugin.NoCommit, "")
	_, _, err = w.Latest(t.Context(), w.entry(at+"-gone"), true)
	refused(t, err, plugin.FetchFailed, "")
	w.nothingLeft(t)
	t.Setenv("PATH", t.TempDir())
	_, _, err = w.Fetch(t.Context(), w.entry(at))
	refused(t, err, plugin.MissingDependency, "git")
	_, _, err = w.Fetch(t.Context(), w.entry("words"))
	refused(t, err, plugin.MissingDependency, "npm")
}

func TestAFetchEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	cancel(over)
	if _, _, err := w.Fetch(ctx, w.archived(plain(t))); !errors.Is(err, over) {
		t.Error(err)
	}
	w.nothingLeft(t)
}

func TestOldGenerationsAndStagingGo(t *testing.T) {
	w, r := newWorld(t), newRepository(t)
	e := w.entry("git+file://" + r.dir)
	clock := time.Now()
	w.now = func() time.Time { return clock }
	fetch := func(text string) string {
		t.Helper()
		r.commit(map[string]string{"codework-plugin.json": manifest, "run": text})
		have, fresh, err := w.Fetch(t.Context(), e)
		if err != nil || !fresh {
			t.Fatal(fresh, err)
		}
		return have.Generation
	}
	sp, err := Parse(e.Spec)
	if err != nil {
		t.Fatal(err)
	}
	slot := w.slot(e, sp)
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(slot, name))
		return err == nil
	}
	a := fetch("a")
	b := fetch("b") // in the same millisecond
	clock = clock.Add(-time.Hour)
	c := fetch("c") // by a clock that was set back
	if !there(a) || !there(b) || !there(c) || number(c) <= number(b) {
		t.Error(a, b, c)
	}
	stale, young := stagingPrefix+strconv.FormatInt(clock.UnixMilli(), 10)+"-1", ""
	clock = clock.Add(8 * 24 * time.Hour)
	young = stagingPrefix + strconv.FormatInt(clock.UnixMilli(), 10) + "-1"
	for _, name := range []string{stale, young} {
		if err := os.Mkdir(filepath.Join(slot, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d := fetch("d")
	for name, want := range map[string]bool{a: false, b: false, c: true, d: true, stale: false, young: true} {
		if there(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestADamagedMarkerIsNoPlugin(t *testing.T) {
	w := newWorld(t)
	e := w.archived(plain(t))
	have, _, err := w.Fetch(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(have.Dir, "..", "..", markerName)
	for _, text := range []string{"", "{}", `{"spec":"a","version":"1","revision":"1","entrypoint":"../../../../.."}`, "[]"} {
		if err := os.WriteFile(mark, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := w.Resolve(e)
		refused(t, err, plugin.MarkerInvalid, markerName)
	}
	// It is fetched again.
	if _, fresh, err := w.Fetch(t.Context(), e); err != nil || !fresh {
		t.Error(fresh, err)
	}
	if _, err := w.Resolve(e); err != nil {
		t.Error(err)
	}
}

func TestManyFetchesAtOnceMakeOne(t *testing.T) {
	w := newWorld(t)
	e := w.archived(plain(t))
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 8 {
		wg.Go(func() {
			_, fresh, err := w.Fetch(t.Context(), e)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if fresh {
				made++
			}
		})
	}
	wg.Wait()
	if made != 1 || w.asked != 1 {
		t.Errorf("%d made, asked %d times", made, w.asked)
	}
}
