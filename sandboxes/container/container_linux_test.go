package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

func TestContainersPassTheDriverSuite(t *testing.T) {
	d := newDriver(t)
	spec := map[string]sandboxes.Spec{}
	resources := map[string]sandboxes.Resource{}
	n := 0
	drivertest.Run(t, drivertest.Subject{
		Name: "container", HasPrograms: true, HasCancels: true, HasLinks: true, HasModes: true, HasRawNames: true,
		Open: func(t testing.TB) (sandboxes.Sandbox, string) {
			n++
			s := specFor(t, fmt.Sprintf("suite%d", n), t.TempDir(), "")
			r := create(t, d, s)
			dir := fmt.Sprintf("%s/at%d", Workspace, n) // tells one sandbox from the other
			sb := attach(t, d, s, r)
			m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(m.Mkdir(ctxb, dir), m.Close()); err != nil {
				t.Fatal(err)
			}
			spec[dir], resources[dir] = s, r
			return sb, dir
		},
		Again: func(t testing.TB, dir string) sandboxes.Sandbox {
			for known, r := range resources {
				if dir == known || strings.HasPrefix(dir, known+"/") {
					return attach(t, d, spec[known], r)
				}
			}
			t.Fatal("no sandbox has " + dir)
			return nil
		},
	})
}

// run runs a script in a mount and returns what it printed.
func run(t testing.TB, sb sandboxes.Sandbox, script string) (string, sandboxes.Exit) {
	t.Helper()
	m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var out strings.Builder
	exit, err := m.Run(ctxb, sandboxes.Command{Script: script, Joined: true, Timeout: 30 * time.Second, Output: func(_ sandboxes.Stream, b []byte) { out.Write(b) }})
	if err != nil {
		t.Fatal(script, err)
	}
	return out.String(), exit
}

func TestTheProjectIsTheWorkspaceAndItsFilesAreTheUsers(t *testing.T) {
	d := newDriver(t)
	project := t.TempDir()
	if err := os.WriteFile(filepath.Join(project, "from-outside"), []byte("out\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := specFor(t, "files", project, "")
	r := create(t, d, spec)
	sb := attach(t, d, spec, r)
	out, _ := run(t, sb, "pwd; cat from-outside; echo in > from-inside; echo $CODEWORK_SANDBOX")
	if out != "/workspace\nout\nfiles\n" {
		t.Errorf("%q", out)
	}
	info, err := os.Stat(filepath.Join(project, "from-inside"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Getuid() {
		t.Errorf("the file belongs to %d", uid)
	}
}

func TestAContainerIsConfined(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "x")
	d := newDriver(t)
	spec := specFor(t, "confined", t.TempDir(), `,"limits":{"processes":64,"memoryMiB":64}`)
	sb := attach(t, d, spec, create(t, d, spec))
	for script, want := range map[string]string{
		"env | grep -c SECRET_OF":                              "0\n",
		"grep CapEff /proc/self/status":                        "CapEff:\t0000000000000000\n",
		"grep NoNewPrivs /proc/self/status":                    "NoNewPrivs:\t1\n",
		"ls /sys/class/net":                                    "lo\n",
		"echo x > /.codework/codework || echo refused":         "sh: can't create /.codework/codework: Read-only file system\nrefused\n",
		"kill -9 1; sleep 0.2; echo alive":                     "alive\n",
		"mount -t tmpfs none /tmp 2>/dev/null || echo refused": "refused\n",
	} {
		if out, _ := run(t, sb, script); out != want {
			t.Errorf("%s: %q", script, out)
		}
	}
}

// TestACommandThatUsesUpAllProcessesEndsAlone: what watches over it needs
// threads of its own for that, each time anew.
func TestACommandThatUsesUpAllProcessesEndsAlone(t *testing.T) {
	d := newDriver(t)
	spec := specFor(t, "bomb", t.TempDir(), `,"limits":{"processes":64,"memoryMiB":64}`)
	r := create(t, d, spec)
	for range 5 {
		sb := attach(t, d, spec, r)
		out, exit := run(t, sb, "i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; echo $i")
		if strings.HasSuffix(out, "200\n") || exit.Code == 0 {
			t.Errorf("two hundred processes were started: %+v, %q", exit, out)
		}
		if err := sb.Close(ctxb); err != nil {
			t.Error(err)
		}
	}
}

// TestAFullContainerSaysSoAndCanBeStopped: no process can be started, and the
// error tells what to do.
func TestAFullContainerSaysSoAndCanBeStopped(t *testing.T) {
	d := newDriver(t)
	spec := specFor(t, "full", t.TempDir(), `,"limits":{"processes":30}`)
	r := create(t, d, spec)
	sb := attach(t, d, spec, r)
	m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Run(ctxb, sandboxes.Command{Script: "while :; do sleep 60 & done 2>/dev/null", Timeout: time.Second})
	if err != nil {
		t.Log("the bomb:", err)
	}
	begin := time.Now()
	if err := d.Stop(ctxb, spec, r); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 12*time.Second {
		t.Error("stop took", took)
	}
	if s, err := d.Inspect(ctxb, spec, r); err != nil || s != messages.SandboxOffline {
		t.Error(s, err)
	}
}

func TestTheLifeOfAContainer(t *testing.T) {
	d := newDriver(t)
	spec := specFor(t, "life", t.TempDir(), "")
	r := create(t, d, spec)
	want := func(s messages.SandboxStatus) {
		t.Helper()
		if got, err := d.Inspect(ctxb, spec, r); got != s || err != nil {
			t.Fatalf("%s, %v instead of %s", got, err, s)
		}
	}
	want(messages.SandboxOnline)
	sb := attach(t, d, spec, r)
	run(t, sb, "echo kept > /tmp/kept")
	for range 2 {
		if err := d.Stop(ctxb, spec, r); err != nil {
			t.Fatal(err)
		}
	}
	want(messages.SandboxOffline)
	// The engine may take five seconds to end the connection of an agent that
	// went with its container; and what closes it before that waits two.
	lost := func(sb sandboxes.Sandbox) {
		t.Helper()
		select {
		case <-sb.(sandboxes.Lost).Lost():
		case <-time.After(30 * time.Second):
			t.Fatal("the connection does not notice")
		}
	}
	lost(sb)
	if _, err := d.Attach(ctxb, spec, r); err == nil {
		t.Error("attached to a stopped container")
	}
	if err := d.Wake(ctxb, spec, r); err != nil {
		t.Fatal(err)
	}
	sb = attach(t, d, spec, r)
	if out, _ := run(t, sb, "cat /tmp/kept"); out != "kept\n" {
		t.Errorf("%q", out)
	}
	for range 2 {
		if err := d.Destroy(ctxb, spec, r); err != nil {
			t.Fatal(err)
		}
	}
	lost(sb)
	_, err := d.Attach(ctxb, spec, r)
	_, inspect := d.Inspect(ctxb, spec, r)
	for _, err := range []error{err, inspect, d.Stop(ctxb, spec, r), d.Wake(ctxb, spec, r)} {
		if !errors.Is(err, sandboxes.ErrNotFound) {
			t.Error(err)
		}
	}
}

// TestWhatIsMissingIsSaid: a refusal names the thing and what to do.
func TestWhatIsMissingIsSaid(t *testing.T) {
	d := newDriver(t)
	good := specFor(t, "refused", t.TempDir(), "")
	socket, bin := engineFor(t)
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>a web page</html>") }))
	defer html.Close()
	page := "tcp://" + strings.TrimPrefix(html.URL, "http://")
	for config, want := range map[string]string{
		`{}`:                                 "image: none is named",
		fmt.Sprintf(`{"socket":%q}`, socket): "image: none is named",
		fmt.Sprintf(`{"socket":%q,"image":"nosuch:1"}`, socket):                           "does not have nosuch:1",
		fmt.Sprintf(`{"socket":%q,"image":%q,"network":["example.com"]}`, socket, image):  "list of addresses",
		fmt.Sprintf(`{"socket":%q,"image":%q,"limits":{"processes":-1}}`, socket, image):  "negative",
		fmt.Sprintf(`{"socket":%q,"imgae":%q}`, socket, image):                            `"imgae"`,
		fmt.Sprintf(`{"socket":%q,"image":%q,"runtime":"nosuch-runtime"}`, socket, image): "nosuch-runtime",
		`{"socket":"/nowhere/engine.sock","image":"x"}`:                                   "/nowhere/engine.sock",
		`{"socket":"what://x","image":"x"}`:                                               "what://x",
		fmt.Sprintf(`{"socket":%q,"image":"x"}`, page):                                    page,
	} {
		spec := good
		spec.Config = []byte(config)
		if config == `{}` {
			spec.Lookup = func(name string) (string, bool) { return socket, name == "DOCKER_HOST" }
		}
		_, err := d.Create(ctxb, spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
	none := New(Options{Cache: t.TempDir(), Executable: bin})
	if _, err := none.engine(ctxb, sandboxes.Spec{Lookup: func(string) (string, bool) { return "", false }}, Config{}); err == nil && os.Getenv("DOCKER_HOST") == "" {
		t.Log("there is an engine on this machine")
	} else if err != nil && !strings.Contains(err.Error(), "sandbox.container.socket") {
		t.Error(err)
	}
	dynamic := New(Options{Cache: t.TempDir(), Executable: "/bin/sh"})
	defer dynamic.Close()
	if _, err := dynamic.Create(ctxb, good); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Error(err)
	}
	for _, id := range []string{"", "a b", "a\nb", "../x", "no/such", strings.Repeat("x", 3000)} {
		var bad *sandboxes.ConfigError
		if _, err := d.Resolve(ctxb, good, id); !errors.As(err, &bad) {
			t.Errorf("%.20q: %v", id, err)
		}
	}
	list, err := raw(t).ContainerList(ctxb, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelInstance+"=refused")})
	if err != nil || len(list.Items) != 0 {
		t.Error("something is left:", list.Items, err)
	}
}

func TestAContainerOfSomebodyElseIsUsedAndLeftAlone(t *testing.T) {
	d := newDriver(t)
	c := raw(t)
	made, err := c.ContainerCreate(ctxb, client.ContainerCreateOptions{Name: "theirs", Config: &container.Config{Image: image, Cmd: []string{"/bin/sh", "-c", "while :; do sleep 1; done"}, WorkingDir: "/root"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := c.ContainerRemove(ctxb, made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.ContainerStart(ctxb, made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	spec := specFor(t, "external", "", "")
	r, err := d.Resolve(ctxb, spec, "theirs")
	if err != nil || r.Dir != "/root" || r.Status != messages.SandboxOnline || r.ID != made.ID {
		t.Fatal(r, err)
	}
	for range 2 { // the second time our program is there
		sb := attach(t, d, spec, r)
		if out, exit := run(t, sb, "pwd; ls /nosuch"); exit.Code == 0 || !strings.HasPrefix(out, "/\n") && !strings.HasPrefix(out, "/root\n") {
			t.Errorf("%q %+v", out, exit)
		}
		run(t, sb, "sleep 1000 &")
		if err := sb.Close(ctxb); err != nil {
			t.Error(err)
		}
	}
	if err := eventually(func() bool {
		top, err := c.ContainerTop(ctxb, made.ID, client.ContainerTopOptions{})
		return err == nil && !strings.Contains(fmt.Sprint(top.Processes), "1000") && strings.Contains(fmt.Sprint(top.Processes), "while")
	}); err != nil {
		top, _ := c.ContainerTop(ctxb, made.ID, client.ContainerTopOptions{})
		t.Error(err, top.Processes)
	}
	ours := specFor(t, "ours", t.TempDir(), "")
	own := create(t, d, ours)
	if _, err := d.Resolve(ctxb, spec, own.ID); err == nil || !strings.Contains(err.Error(), "CodeWork's own") {
		t.Error(err)
	}
}

// TestSweepStopsWhatThisServerLeftAndNothingElse: of two servers on one engine.
func TestSweepStopsWhatThisServerLeftAndNothingElse(t *testing.T) {
	socket, _ := engineFor(t)
	t.Setenv("DOCKER_HOST", socket)
	d := newDriver(t)
	mine, other := specFor(t, "mine", t.TempDir(), ""), specFor(t, "others", t.TempDir(), "")
	mine.Server, other.Server = "crashed", "living"
	a, b := create(t, d, mine), create(t, d, other)
	if err := d.Sweep(ctxb, sandboxes.Spec{Server: "crashed", Config: mine.Config, Lookup: mine.Lookup}); err != nil {
		t.Fatal(err)
	}
	if s, err := d.Inspect(ctxb, mine, a); s != messages.SandboxOffline {
		t.Error(s, err)
	}
	if s, err := d.Inspect(ctxb, other, b); s != messages.SandboxOnline {
		t.Error(s, err)
	}
	if err := d.Available(ctxb, mine); err != nil {
		t.Error(err)
	}
}

// TestProcessesThatLostTheirParentsEnd: a command that kills the runner and the
// agent itself leaves nothing behind.
func TestProcessesThatLostTheirParentsEnd(t *testing.T) {
	d := newDriver(t)
	project := t.TempDir()
	spec := specFor(t, "orphans", project, "")
	sb := attach(t, d, spec, create(t, d, spec))
	m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Run(ctxb, sandboxes.Command{Timeout: 30 * time.Second, Script: `
		setsid sh -c 'while :; do echo x >> beat; sleep 0.02; done' &
		while [ ! -s beat ]; do sleep 0.02; done
		for p in /proc/[0-9]*; do grep -q __sandbox $p/cmdline 2>/dev/null && kill -9 ${p#/proc/}; done`})
	if err == nil {
		t.Error("the command's end was known although its agent was killed")
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(project, "beat"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	last, since := size(), time.Now()
	for begin := time.Now(); time.Since(since) < time.Second; time.Sleep(20 * time.Millisecond) {
		if s := size(); s != last {
			last, since = s, time.Now()
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the job beats on")
		}
	}
}

// TestTheEndOfTheConnectionEndsWhatRan: as when this process is killed.
func TestTheEndOfTheConnectionEndsWhatRan(t *testing.T) {
	relay := newRelay(t)
	d := newDriver(t)
	spec := specFor(t, "cut", t.TempDir(), "")
	r := create(t, d, spec)
	cut := spec
	cut.Config = []byte(fmt.Sprintf(`{"socket":%q,"image":%q}`, relay.socket, image))
	sb := attach(t, d, cut, r)
	m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := m.Run(ctxb, sandboxes.Command{Script: "while :; do echo x >> beat; sleep 0.02; done"})
		done <- err
	}()
	beat := filepath.Join(spec.Project, "beat")
	if err := eventually(func() bool { _, err := os.Stat(beat); return err == nil }); err != nil {
		t.Fatal(err)
	}
	relay.cut()
	var lost *sandboxes.ShellError
	if err := <-done; !errors.As(err, &lost) {
		t.Error(err)
	}
	size := func() int64 { info, _ := os.Stat(beat); return info.Size() }
	last, since := size(), time.Now()
	for begin := time.Now(); time.Since(since) < time.Second; time.Sleep(20 * time.Millisecond) {
		if s := size(); s != last {
			last, since = s, time.Now()
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the command goes on")
		}
	}
}

// relay stands before the engine and can cut all connections.
type relay struct {
	socket string
	conns  chan net.Conn
}

func newRelay(t *testing.T) *relay {
	socket, _ := engineFor(t)
	dir, err := os.MkdirTemp("", "cwrelay")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{socket: filepath.Join(dir, "s"), conns: make(chan net.Conn, 100)}
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	copies := make(chan struct{}, 200)
	n := 0
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", strings.TrimPrefix(socket, "unix://"))
			if err != nil {
				in.Close()
				continue
			}
			r.conns <- in
			r.conns <- out
			n += 2
			pipe := func(to, from net.Conn) {
				_, _ = io.Copy(to, from) // the end, in whatever way
				_ = to.(*net.UnixConn).CloseWrite()
				copies <- struct{}{}
			}
			go pipe(in, out)
			go pipe(out, in)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
		r.cut()
		for range n {
			<-copies
		}
		os.RemoveAll(dir)
	})
	return r
}

func (r *relay) cut() {
	for {
		select {
		case c := <-r.conns:
			c.Close()
		default:
			return
		}
	}
}

func TestCancelledCallsReturn(t *testing.T) {
	d := newDriver(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	spec := specFor(t, "silent", t.TempDir(), "")
	spec.Config = []byte(fmt.Sprintf(`{"socket":"tcp://%s","image":"x"}`, silent.Addr()))
	ctx, cancel := context.WithTimeout(ctxb, 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := d.Create(ctx, spec); err == nil || time.Since(begin) > 2*time.Second {
		t.Error(err, time.Since(begin))
	}
}

func TestTheInitModeRefusesToRunElsewhere(t *testing.T) {
	_, bin := engineFor(t)
	if out, err := exec.Command(bin, InitArg).CombinedOutput(); err == nil || !strings.Contains(string(out), "process 1") {
		t.Error(string(out), err)
	}
}
