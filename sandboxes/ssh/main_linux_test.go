package ssh

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/integration/peer"
	"codework/sandboxes"
)

// program builds, once, a small static one that is brought to hosts.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ssh-test-")
	if err != nil {
		return "", err
	}
	programDir = dir
	path := filepath.Join(dir, "runner")
	build := exec.Command("go", "build", "-o", path, "./testprogram")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the runner: %w\n%s", err, out)
	}
	return path, nil
})

// programDir is where program has built; "" while it has not.
var programDir string

// theProgram is the path of what program builds.
func theProgram(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMain(m *testing.M) {
	// The tests mostly wait, for hosts and for clocks.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// For the test that nothing of this process reaches commands on a host.
	if err := os.Setenv("FROM_HERE", "leak"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(programDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

var ctxb = context.Background()

// missing ends a test whose peer is not there.
func missing(t testing.TB, what string) {
	t.Helper()
	peer.Wanted(t, "SSH")
	peer.Missing(t, "SSH", errors.New(what), "install openssh-server and run the tests as root")
}

// server is an sshd of this machine.
type server struct {
	user  *user.User
	dir   string // its own folder, the home of those who log in
	port  int
	log   *lockedBuffer
	known string // file with its key
	key   string // file of the user's key
}

// lockedBuffer is a buffer that a process writes to.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// me is who runs the tests.
func me(t testing.TB) *user.User {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// somebody is a user who is not root and may log in.
func somebody(t testing.TB) *user.User {
	t.Helper()
	if u := me(t); u.Uid != "0" {
		return u
	}
	b, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 7 {
			continue
		}
		uid, err := strconv.Atoi(f[2])
		if err == nil && uid >= 1000 && uid < 65000 && strings.HasSuffix(f[6], "sh") {
			if _, err := os.Stat(f[6]); err == nil {
				return &user.User{Uid: f[2], Gid: f[3], Username: f[0], HomeDir: f[5]}
			}
		}
	}
	missing(t, "there is no user who is not root and has a shell")
	return nil
}

// newServer starts an sshd that lets the user in, with further lines of
// configuration.
func newServer(t testing.TB, u *user.User, config ...string) *server {
	t.Helper()
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		missing(t, "there is no sshd")
	}
	dir, err := os.MkdirTemp("", "ssh-server-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &server{user: u, dir: dir, log: &lockedBuffer{}, known: dir + "/known_hosts", key: dir + "/user_key"}
	for _, key := range []string{"host_key", "user_key"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir+"/"+key).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.Rename(dir+"/user_key.pub", dir+"/authorized_keys"); err != nil {
		t.Fatal(err)
	}
	s.port = freePort(t)
	s.know(t, s.port)
	lines := append([]string{
		"Port " + strconv.Itoa(s.port), "ListenAddress 127.0.0.1", "HostKey " + dir + "/host_key", "PidFile " + dir + "/pid",
		"AuthorizedKeysFile " + dir + "/authorized_keys", "UsePAM no", "StrictModes no", "PermitRootLogin yes",
		"Subsystem sftp internal-sftp", "SetEnv HOME=" + dir + " TMPDIR=" + dir + " A_TOKEN=secret PLAIN=plain", "PrintMotd no",
	}, config...)
	if err := os.WriteFile(dir+"/config", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sshd, "-D", "-e", "-f", dir+"/config")
	cmd.Stderr = s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
			if err == nil {
				err = os.Chown(path, uid, gid)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd: %s", s.log)
		}
	})
	eventually(t, "sshd listens", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(s.port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return s
}

// know writes the host's key down for a port.
func (s *server) know(t testing.TB, port int) {
	t.Helper()
	pub, err := os.ReadFile(s.dir + "/host_key.pub")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.known, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "[127.0.0.1]:%d %s", port, pub); err != nil {
		t.Fatal(err)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// spec is that of a sandbox on the server.
func (s *server) spec(t testing.TB, change ...func(*Config)) sandboxes.Spec {
	t.Helper()
	c := Config{Host: "127.0.0.1", User: s.user.Username, Port: s.port, KeyFile: s.key, KnownHosts: s.known, Base: s.dir + "/base"}
	for _, f := range change {
		f(&c)
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxes.Spec{ID: "sbx_" + strings.ToLower(filepath.Base(t.TempDir())) + strconv.Itoa(time.Now().Nanosecond()), Server: "test", Config: b, Lookup: os.LookupEnv}
}

// newDriver brings our small program to hosts.
func newDriver(t testing.TB) *Driver {
	t.Helper()
	return New(Options{Executable: theProgram(t), Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))})
}

// plainDriver has no program to bring.
func plainDriver(t testing.TB) *Driver {
	t.Helper()
	return New(Options{Executable: "/bin/sh", Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))})
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("log: %s", bytes.TrimSpace(b))
	return len(b), nil
}

// create makes a sandbox and reaches it.
func create(t testing.TB, d *Driver, spec sandboxes.Spec) (sandboxes.Sandbox, sandboxes.Resource) {
	t.Helper()
	r, err := d.Create(ctxb, spec)
	if err != nil {
		t.Fatal(err)
	}
	return attach(t, d, spec, r), r
}

func attach(t testing.TB, d *Driver, spec sandboxes.Spec, r sandboxes.Resource) sandboxes.Sandbox {
	t.Helper()
	sb, err := d.Attach(ctxb, spec, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(ctxb); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func newMount(t testing.TB, sb sandboxes.Sandbox) sandboxes.Mount {
	t.Helper()
	m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// run gives what a script prints.
func run(t testing.TB, m sandboxes.Mount, script string) string {
	t.Helper()
	var out strings.Builder
	exit, err := m.Run(ctxb, sandboxes.Command{Script: script, Output: func(_ sandboxes.Stream, b []byte) { out.Write(b) }})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v %v %s", script, exit, err, out.String())
	}
	return out.String()
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("never happened: " + what)
		}
	}
}

// size is that of a file of this machine, where all hosts are.
func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// still proves that what writes to a file has ended.
func still(t testing.TB, file string) {
	t.Helper()
	first := size(file)
	for range 2 {
		time.Sleep(500 * time.Millisecond) // this wait is the measurement
		if now := size(file); now != first || now == 0 {
			t.Errorf("%s: %d bytes became %d", file, first, now)
		}
	}
}

// relay passes connections on and can cut or freeze them.
type relay struct {
	listener net.Listener
	to       string

	mu     sync.Mutex // guards the following
	conns  []net.Conn
	frozen bool
	count  int
	copies sync.WaitGroup
}

func newRelay(t testing.TB, s *server) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, to: "127.0.0.1:" + strconv.Itoa(s.port)}
	s.know(t, r.port())
	r.copies.Go(r.serve)
	t.Cleanup(func() {
		l.Close()
		r.cut()
		r.copies.Wait()
	})
	return r
}

func (r *relay) port() int { return r.listener.Addr().(*net.TCPAddr).Port }

func (r *relay) serve() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		r.count++
		r.mu.Unlock()
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			r.copies.Go(func() {
				_, _ = io.Copy(gate{r, pair[0]}, pair[1])
				pair[0].Close()
				pair[1].Close()
			})
		}
	}
}

// gate drops what is written while the relay is frozen.
type gate struct {
	relay *relay
	net.Conn
}

func (g gate) Write(b []byte) (int, error) {
	g.relay.mu.Lock()
	frozen := g.relay.frozen
	g.relay.mu.Unlock()
	if frozen {
		return len(b), nil
	}
	return g.Conn.Write(b)
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func (r *relay) connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

func (r *relay) freeze(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = on
}
