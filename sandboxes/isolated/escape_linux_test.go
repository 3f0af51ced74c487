//go:build amd64 || arm64

package isolated

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"codework/sandboxes"
)

// baseVar names a folder for tests, made by the test that starts them as
// another user.
const baseVar = "TEST_ISOLATED_BASE"

// scene is a home with a project in it, outside the folders that every sandbox
// has of its own.
type scene struct {
	home, project string
}

func newScene(t testing.TB) scene {
	t.Helper()
	var dir string
	var err error
	for _, base := range []string{os.Getenv(baseVar), "/var/lib", "."} {
		if base == "" {
			continue
		}
		if dir, err = os.MkdirTemp(base, "isolated-test-"); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := scene{dir, filepath.Join(dir, "src", "project")}
	if err := os.MkdirAll(s.project, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", dir)
	return s
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// runHost runs a program outside and gives its exit code.
func runHost(t testing.TB, argv ...string) int {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.CombinedOutput()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatalf("%q: %v %s", argv, err, out)
	}
	return cmd.ProcessState.ExitCode()
}

// attackIn runs the attacks in a mount and fails for each wall that is open.
func attackIn(t *testing.T, m sandboxes.Mount, project string, targets ...string) {
	t.Helper()
	// The test binary may lie where the sandbox has a folder of its own.
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(project, "attack")
	if err := os.WriteFile(bin, self, 0o755); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	exit, err := m.Run(bg, sandboxes.Command{Argv: append([]string{bin, attackArg}, targets...), Output: func(_ sandboxes.Stream, b []byte) {
		out.Write(b)
	}})
	if err != nil || exit.Code != 0 || !strings.HasSuffix(out.String(), "done\n") {
		t.Fatalf("%+v %v\n%s", exit, err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "OPEN") {
			t.Error(line)
		}
	}
	if n := strings.Count(out.String(), "held\t"); n != len(attacks())+len(targets) {
		t.Errorf("%d walls held:\n%s", n, out.String())
	}
}

func TestSystemCallsAreRefused(t *testing.T) {
	s := newScene(t)
	attackIn(t, newMount(t, newSandbox(t, newDriver(t), s.project, "")), s.project)
}

// TestNothingIsLeftToUndoTheWalls looks at what every command is started with.
// For root the empty sets are what keeps the mounts as they are.
func TestNothingIsLeftToUndoTheWalls(t *testing.T) {
	s := newScene(t)
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	r := run(t, m, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status /proc/1/status | cut -d: -f3 | sort -u | tr -d '\\t'; ls /proc/self/fd | wc -l; ls -l /proc/1/fd | grep -c host")
	if want := "0000000000000000\n1\n2\n4\n0\n"; r.out != want {
		t.Errorf("%q, want %q", r.out, want)
	}
}

// TestTheHostsNetworkOpensNothingElse runs the attacks in a sandbox that has
// the host's network: sockets of programs there are no network.
func TestTheHostsNetworkOpensNothingElse(t *testing.T) {
	s := newScene(t)
	targets := []string{"kill:" + pidOfTest()}
	for _, address := range []string{fmt.Sprintf("@codework-test-%d", time.Now().UnixNano()), s.home + "/socket"} {
		ln, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		targets = append(targets, "unix:"+address)
	}
	attackIn(t, newMount(t, newSandbox(t, newDriver(t), s.project, `{"network":"host"}`)), s.project, targets...)
}

// TestWritesAreConfined tries to write outside by commands and by the files of
// the mount.
func TestWritesAreConfined(t *testing.T) {
	s := newScene(t)
	write(t, s.home+"/note", "mine")
	if err := os.Symlink(s.home, s.project+"/way-out"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(s.home+"/note", s.project+"/note-out"); err != nil {
		t.Fatal(err)
	}
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	for _, path := range []string{
		"/etc/codework-test", "/codework-test", s.home + "/new", s.home + "/note", filepath.Dir(s.project) + "/new",
		"way-out/new", "way-out/note", "note-out", "../new", "../../note", "/proc/sys/kernel/hostname", "/sys/kernel/mm/ksm/run",
		"/run/new", "/dev/new", ".codework/settings.json",
	} {
		if r := run(t, m, "echo out > '"+path+"'"); r.Code == 0 {
			t.Errorf("a command wrote %s", path)
		}
		if err := m.Write(bg, path, []byte("out")); err == nil {
			t.Errorf("the file system wrote %s", path)
		}
	}
	for _, script := range []string{
		"rm -f ../../note", "mv ../../note x", "ln ../../note x", "mkdir ../x", "chmod 777 ../../note", "touch ../../note",
		"mv ../project ../p2", "ln -f x ../../note", "truncate -s0 ../../note", "setfattr -n user.a -v b ../../note",
	} {
		if r := run(t, m, script); r.Code == 0 {
			t.Errorf("%s: worked", script)
		}
	}
	if read(t, s.home+"/note") != "mine" {
		t.Error("the note was changed")
	}
	if list, _ := filepath.Glob(s.home + "/*"); !slices.Equal(list, []string{s.home + "/note", s.home + "/src"}) {
		t.Errorf("in the home folder: %v", list)
	}
	if list, _ := filepath.Glob(s.home + "/src/*"); len(list) != 1 {
		t.Errorf("beside the project: %v", list)
	}
	// And what must work.
	if r := run(t, m, "echo in > file && mkdir d && mv file d/ && echo tmp > /tmp/x && echo shm > /dev/shm/x && cat d/file > /dev/null && echo > /var/tmp/x"); r.Code != 0 {
		t.Errorf("inside: %+v", r)
	}
	if err := m.Write(bg, "deep/er/file", []byte("in")); err != nil || read(t, s.project+"/deep/er/file") != "in" {
		t.Error(err)
	}
	if _, err := os.Stat("/tmp/x"); err == nil {
		t.Error("/tmp is the host's")
	}
}

func TestFilesBelongToTheUser(t *testing.T) {
	s := newScene(t)
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	if r := run(t, m, "touch f && stat -c %u f && id -u"); r.out != fmt.Sprintf("%d\n%d\n", os.Getuid(), os.Getuid()) {
		t.Errorf("%+v", r)
	}
	info, err := os.Stat(s.project + "/f")
	if err != nil || !ownedByUs(s.project) || info.Mode() != 0o644 {
		t.Error(info, err)
	}
}

func TestSecretsCannotBeRead(t *testing.T) {
	s := newScene(t)
	for _, name := range secrets {
		if strings.HasPrefix(name, ".netrc") || strings.HasPrefix(name, ".git-") || strings.HasPrefix(name, ".npm") || strings.HasPrefix(name, ".pypi") {
			write(t, filepath.Join(s.home, name), "secret")
		} else {
			write(t, filepath.Join(s.home, name, "key"), "secret")
		}
	}
	write(t, s.home+"/server/database", "secret")
	write(t, s.home+"/other/.env", "secret")
	write(t, s.project+"/own/.env", "secret")
	// By another name too.
	if err := os.Symlink(s.home+"/.ssh", s.project+"/keys"); err != nil {
		t.Fatal(err)
	}
	d := New(Options{StateDir: s.home + "/server/state", Hide: []string{s.home + "/server"}})
	m := newMount(t, newSandbox(t, d, s.project, `{"hide":["`+s.home+`/other/.env","`+s.project+`/own/.env"]}`))
	if r := run(t, m, "grep -rl secret "+s.home+"; echo looked"); r.out != "looked\n" {
		t.Errorf("found: %s", r.out)
	}
	for _, path := range []string{
		s.home + "/.ssh/key", "keys/key", s.home + "/.netrc", s.home + "/server/database", s.home + "/other/.env", "own/.env",
		s.home + "/.config/gcloud/key",
	} {
		if _, err := m.Read(bg, path, 0, -1); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("read %s: %v", path, err)
		}
		if r := run(t, m, "cat '"+path+"'"); r.Code == 0 || strings.Contains(r.out, "secret") {
			t.Errorf("cat %s: %+v", path, r)
		}
	}
	// Uncovering.
	run(t, m, "umount -l "+s.home+"/.ssh own/.env; chmod 777 "+s.home+"/.ssh own/.env; mv own other; rm -rf other; true")
	for _, path := range []string{s.home + "/.ssh/key", "own/.env", "other/.env"} {
		if r := run(t, m, "cat '"+path+"'"); strings.Contains(r.out, "secret") {
			t.Errorf("cat %s after the cover was shaken: %+v", path, r)
		}
	}
	if read(t, s.project+"/own/.env") != "secret" { // its folder stays too, where the next sandbox looks for it
		t.Error("what was hidden has changed")
	}
}

// TestHostCannotBeReached has servers of every sort listen on the host.
func TestHostCannotBeReached(t *testing.T) {
	s := newScene(t)
	reached := make(chan string, 16)
	var targets []string
	abstract := fmt.Sprintf("@codework-test-%d", time.Now().UnixNano())
	for _, l := range [][2]string{
		{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", abstract}, {"unix", s.home + "/socket"}, {"unix", s.project + "/socket"},
	} {
		ln, err := net.Listen(l[0], l[1])
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				b, _ := io.ReadAll(c)
				c.Close()
				if string(b) != "host" {
					reached <- ln.Addr().String()
				}
			}
		}()
		// It can be reached from here, or the test would prove nothing.
		c, err := net.Dial(l[0], ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "host")
		c.Close()
		targets = append(targets, l[0]+":"+ln.Addr().String())
	}
	for _, l := range [][2]string{{"udp", "127.0.0.1:0"}, {"unixgram", s.home + "/datagrams"}, {"unixgram", abstract + "d"}} {
		pc, err := net.ListenPacket(l[0], l[1])
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		go func() {
			var b [16]byte
			for {
				if _, _, err := pc.ReadFrom(b[:]); err != nil {
					return
				}
				reached <- pc.LocalAddr().String()
			}
		}()
		if l[0] != "udp" { // to nobody a datagram gives no error at once
			targets = append(targets, l[0]+":"+pc.LocalAddr().String())
			continue
		}
		m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
		_, port, _ := strings.Cut(pc.LocalAddr().String(), ":")
		run(t, m, "echo out > /dev/udp/127.0.0.1/"+port)
	}
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	targets = append(targets, fmt.Sprint("kill:", sleeper.Process.Pid))
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	attackIn(t, m, s.project, targets...)
	select {
	case who := <-reached:
		t.Errorf("%s was reached", who)
	default:
	}
	// Everything that a command sees it may kill, but for process 1.
	_, _ = m.Run(bg, sandboxes.Command{Script: "kill -9 -1; sleep 1"})
	if r := run(t, m, "echo on"); r.out != "on\n" {
		t.Errorf("after everything was killed: %+v", r)
	}
	if err := sleeper.Process.Kill(); err != nil {
		t.Errorf("the host's process was ended: %v", err)
	}
	_ = sleeper.Wait()
}

func TestLoopbackWorks(t *testing.T) {
	s := newScene(t)
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	r := run(t, m, `python3 - <<'E'
import socket
for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    a = socket.socket(family); a.bind((address, 0)); a.listen()
    b = socket.create_connection(a.getsockname()[:2]); b.send(b"x")
    print(a.accept()[0].recv(1))
E`)
	if r.out != "b'x'\nb'x'\n" {
		t.Errorf("%+v", r)
	}
}

func TestNetworkOfTheHostBySetting(t *testing.T) {
	s := newScene(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	m := newMount(t, newSandbox(t, newDriver(t), s.project, `{"network":"host"}`))
	_, port, _ := strings.Cut(ln.Addr().String(), ":")
	if r := run(t, m, "echo > /dev/tcp/127.0.0.1/"+port); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

func pidOfTest() string { return fmt.Sprint(os.Getpid()) }
