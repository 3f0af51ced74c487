//go:build amd64 || arm64

package isolated

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codework/sandboxes"
)

func TestEnvironment(t *testing.T) {
	s := newScene(t)
	sb := newSandbox(t, newDriver(t), s.project, "")
	env := func(o sandboxes.MountOptions) map[string]string {
		o.Umask = -1
		m, err := sb.Mount(bg, o)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		out := map[string]string{}
		for line := range strings.Lines(run(t, m, "env").out) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			out[name] = value
		}
		return out
	}
	caller := []string{"PATH=/usr/bin:/bin", "HOME=" + s.home, "LC_ALL=C", "EDITOR=vi", "API_KEY=k", "LD_PRELOAD=/x", "TMPDIR=/nowhere",
		"GOCACHE=/nowhere", "BASH_FUNC_f%%=() { :; }"}
	got := env(sandboxes.MountOptions{Caller: caller, Set: map[string]string{"MINE": "1"}})
	for name, want := range map[string]string{
		"PATH": "/usr/bin:/bin", "HOME": s.home, "LC_ALL": "C", "EDITOR": "", "API_KEY": "", "LD_PRELOAD": "", "TMPDIR": "/tmp", "MINE": "1",
		"GOCACHE": cacheRoot + "/go-build", "CODEWORK_SANDBOX": "sbx_test",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	got = env(sandboxes.MountOptions{Caller: caller, Pass: []string{"API_KEY"}, Set: map[string]string{"GOCACHE": "/set"}})
	if got["API_KEY"] != "k" || got["EDITOR"] != "" || got["GOCACHE"] != "/set" {
		t.Errorf("with a list: %v", got)
	}
	if got = env(sandboxes.MountOptions{Caller: caller, Pass: []string{"*"}}); got["EDITOR"] != "vi" || got["API_KEY"] != "k" {
		t.Errorf("with everything: %v", got)
	}
	t.Setenv("SERVER_SECRET", "x")
	if got = env(sandboxes.MountOptions{}); got["HOME"] != s.home || got["SERVER_SECRET"] != "" {
		t.Errorf("without a caller: %v", got)
	}
}

// TestCachesOfTheHostShowThrough has a build tool's cache on the host.
func TestCachesOfTheHostShowThrough(t *testing.T) {
	s := newScene(t)
	t.Setenv("GOPATH", "")
	for _, tool := range tools { // the tests may run with some of their own
		if tool.variable != "" {
			t.Setenv(tool.variable, "")
		}
	}
	write(t, s.home+"/go/pkg/mod/a@v1/a.go", "package a")
	write(t, s.home+"/.cargo/credentials.toml", "secret")
	write(t, s.home+"/.cache/private/file", "secret")
	write(t, s.home+"/.npm/file", "secret")
	d := New(Options{StateDir: filepath.Join(s.home, "state")})
	spec := sandboxes.Spec{ID: "sbx_cache", Project: s.project, Config: []byte(`{"hide":["` + s.home + `/.cache/private","` + s.home + `/.npm"]}`)}
	attach := func() sandboxes.Mount {
		sb, err := d.Attach(bg, spec, sandboxes.Resource{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sb.Close(bg) })
		return newMount(t, sb)
	}
	m := attach()
	if r := run(t, m, `cat "$GOMODCACHE/a@v1/a.go" && echo b > "$GOMODCACHE/a@v1/a.go" && echo new > "$GOMODCACHE/new" && echo c > "$CARGO_HOME/x"
		echo x > "$npm_config_cache/x"; echo x > "$XDG_CACHE_HOME/x"; ls "$CARGO_HOME"`); r.Code != 0 || !strings.HasPrefix(r.out, "package a") ||
		strings.Contains(r.out, "credentials") {
		t.Fatalf("%+v", r)
	}
	if r := run(t, m, `cat "$XDG_CACHE_HOME/private/file" "$npm_config_cache/file"`); strings.Contains(r.out, "secret") {
		t.Errorf("what is hidden shows through: %+v", r)
	}
	if read(t, s.home+"/go/pkg/mod/a@v1/a.go") != "package a" {
		t.Error("the host's cache was changed")
	}
	if _, err := os.Stat(s.home + "/go/pkg/mod/new"); err == nil {
		t.Error("the host's cache was added to")
	}
	if err := d.Stop(bg, spec, sandboxes.Resource{}); err != nil {
		t.Fatal(err)
	}
	if err := d.Wake(bg, spec, sandboxes.Resource{}); err != nil {
		t.Fatal(err)
	}
	if r := run(t, attach(), `cat "$GOMODCACHE/a@v1/a.go" "$GOMODCACHE/new"`); r.out != "b\nnew\n" {
		t.Errorf("after a stop: %+v", r)
	}
	if err := d.Destroy(bg, spec, sandboxes.Resource{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.dirOf(spec)); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the cache is left", err)
	}
	if err := d.Destroy(bg, spec, sandboxes.Resource{}); err != nil {
		t.Error(err)
	}
}

func TestGoBuilds(t *testing.T) {
	if os.Getenv(baseVar) != "" {
		t.Skip("for the other user the standard library would have to be compiled first")
	}
	out, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(out)))
	s := newScene(t)
	write(t, s.project+"/go.mod", "module x\n")
	write(t, s.project+"/main.go", "package main\nfunc main() { println(1) }\n")
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	if r := run(t, m, "GOFLAGS=-buildvcs=false go build -o x . && ./x"); r.Code != 0 || r.err != "1\n" {
		t.Errorf("%+v", r)
	}
}

func TestScratchIsTheSandboxsAndEndsWithIt(t *testing.T) {
	s := newScene(t)
	d := newDriver(t)
	m := newMount(t, newSandbox(t, d, s.project, ""))
	if r := run(t, m, "echo x > /tmp/x; df --output=size -m /tmp | tail -1; ! head -c 600m /dev/zero > /dev/shm/big"); r.Code != 0 || strings.TrimSpace(r.out) != "2048" {
		t.Errorf("%+v", r)
	}
	if err := d.Stop(bg, sandboxes.Spec{ID: "sbx_test"}, sandboxes.Resource{}); err != nil {
		t.Error(err)
	}
	if r := run(t, newMount(t, newSandbox(t, d, s.project, "")), "ls /tmp"); strings.Contains(r.out, "x\n") {
		t.Errorf("%+v", r)
	}
}

func TestLimits(t *testing.T) {
	s := newScene(t)
	config := `{"limits":{"openFiles":100,"memoryMiB":512}}`
	m := newMount(t, newSandbox(t, newDriver(t), s.project, config))
	if r := run(t, m, "ulimit -n; ulimit -Hn; ! python3 -c 'x=b\"x\"*(1<<30)' && python3 -c 'x=b\"x\"*(1<<28)'"); r.Code != 0 || r.out != "100\n100\n" {
		t.Errorf("%+v", r)
	}
}

func TestLevelNoneConfinesNothingAndEndsAll(t *testing.T) {
	s := newScene(t)
	d := New(Options{StateDir: filepath.Join(s.home, "state"), Level: None})
	d.probed = probed{at: time.Now(), level: None}
	sb := newSandbox(t, d, s.project, "")
	if r := run(t, newMount(t, sb), "echo x > ../new"); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	// What is demanded by one sandbox is not lowered by what the driver takes.
	_, err := d.Create(bg, sandboxes.Spec{ID: "sbx_x", Project: s.project, Config: []byte(`{"level":"landlock"}`)})
	if err == nil || !strings.Contains(err.Error(), `"landlock" is demanded`) {
		t.Error(err)
	}
}

// TestCancelledAttachLeavesNothing cancels at several moments.
func TestCancelledAttachLeavesNothing(t *testing.T) {
	s := newScene(t)
	d := newDriver(t)
	spec := sandboxes.Spec{ID: "sbx_c", Project: s.project}
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(bg, after)
		start := time.Now()
		sb, err := d.Attach(ctx, spec, sandboxes.Resource{})
		cancel()
		if took := time.Since(start); took > limit {
			t.Errorf("after %v: took %v", after, took)
		}
		if err == nil {
			if err := sb.Close(bg); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", after, err)
		}
	}
	if left := processesLeft(); len(left) > 0 {
		t.Error(left)
	}
}
