package ssh

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
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

	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/agent"
)

// drivers are the two ways to work on a host.
var drivers = map[string]func(testing.TB) *Driver{"runner": newDriver, "plain": plainDriver}

func eachDriver(t *testing.T, check func(t *testing.T, d *Driver)) {
	for name, d := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, d(t))
		})
	}
}

// users are who hosts are tested as.
func users(t testing.TB) map[string]*user.User {
	all := map[string]*user.User{"user": somebody(t)}
	if u := me(t); u.Uid == "0" {
		all["root"] = u
	} else {
		t.Log("not root: logging in as root is not tested")
	}
	return all
}

func TestLifeOfASandbox(t *testing.T) {
	t.Parallel()
	for name, u := range users(t) {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, u)
			eachDriver(t, func(t *testing.T, d *Driver) {
				spec := s.spec(t)
				r, err := d.Create(ctxb, spec)
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("ssh://%s@127.0.0.1:%d%s/base/%s", u.Username, s.port, s.dir, spec.ID); r.ID != want || r.Dir != s.dir+"/base/"+spec.ID ||
					r.Status != messages.SandboxOnline {
					t.Errorf("%+v, want %s", r, want)
				}
				info, err := os.Stat(r.Dir)
				if err != nil || info.Mode().Perm() != 0o700 || strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid)) != u.Uid {
					t.Errorf("%v %v", info, err)
				}
				if _, err := d.Create(ctxb, spec); err == nil {
					t.Error("the folder is not fresh")
				}
				sb := attach(t, d, spec, r)
				m := newMount(t, sb)
				if out := run(t, m, "id -un; pwd; echo $CODEWORK_SANDBOX; echo kept > kept"); out != u.Username+"\n"+r.Dir+"\n"+spec.ID+"\n" {
					t.Errorf("%q", out)
				}
				if st, err := d.Inspect(ctxb, spec, r); err != nil || st != messages.SandboxOnline {
					t.Error(st, err)
				}
				ended := make(chan error, 1)
				go func() {
					_, err := m.Run(ctxb, sandboxes.Command{Script: "setsid sh -c 'while :; do echo >> beat; sleep 0.02; done' & sleep 60"})
					ended <- err
				}()
				eventually(t, "it runs", func() bool { return size(r.Dir+"/beat") > 3 })
				if err := d.Stop(ctxb, spec, r); err != nil {
					t.Error(err)
				}
				if err := <-ended; !errors.Is(err, sandboxes.ErrClosed) {
					t.Error(err)
				}
				still(t, r.Dir+"/beat")
				if err := d.Stop(ctxb, spec, r); err != nil {
					t.Error("stopped already:", err)
				}
				if err := d.Wake(ctxb, spec, r); err != nil {
					t.Error(err)
				}
				if got := run(t, newMount(t, attach(t, d, spec, r)), "cat kept"); got != "kept\n" {
					t.Errorf("%q", got)
				}
				if err := errors.Join(d.Stop(ctxb, spec, r), d.Destroy(ctxb, spec, r)); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(r.Dir); err == nil {
					t.Error("the folder is still there")
				}
				if err := d.Destroy(ctxb, spec, r); err != nil {
					t.Error("destroyed already:", err)
				}
				for what, err := range map[string]error{
					"wake":    d.Wake(ctxb, spec, r),
					"inspect": func() error { _, err := d.Inspect(ctxb, spec, r); return err }(),
					"attach":  func() error { _, err := d.Attach(ctxb, spec, r); return err }(),
				} {
					if !errors.Is(err, sandboxes.ErrNotFound) {
						t.Errorf("%s of what is gone: %v", what, err)
					}
				}
			})
		})
	}
}

func TestTheBaseMayBeBelowHome(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	for base, want := range map[string]string{"": s.dir + "/" + defaultBase, "some where/it's": s.dir + "/some where/it's"} {
		spec := s.spec(t, func(c *Config) { c.Base = base })
		d := newDriver(t)
		sb, r := create(t, d, spec)
		if r.Dir != want+"/"+spec.ID {
			t.Errorf("%q: %s", base, r.Dir)
		}
		if again, err := d.Resolve(ctxb, spec, r.ID); err != nil || again.Dir != r.Dir {
			t.Errorf("%s: %+v %v", r.ID, again, err)
		}
		if out := run(t, newMount(t, sb), "pwd"); out != r.Dir+"\n" {
			t.Errorf("%q", out)
		}
	}
}

func TestRegistered(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	d := newDriver(t)
	dir := s.dir + "/theirs"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.dir+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("ssh://%s@127.0.0.1:%d", s.user.Username, s.port)
	// The address counts, not the configured host.
	spec := s.spec(t, func(c *Config) { c.Host, c.User, c.Port = "", "", 0 })
	r, err := d.Resolve(ctxb, spec, prefix+dir+"/")
	if err != nil || r.ID != prefix+dir || r.Dir != dir {
		t.Fatalf("%+v %v", r, err)
	}
	if out := run(t, newMount(t, attach(t, d, spec, r)), "pwd"); out != dir+"\n" {
		t.Errorf("%q", out)
	}
	for _, gone := range []string{"/none", s.dir + "/file"} {
		if _, err := d.Resolve(ctxb, spec, prefix+gone); !errors.Is(err, sandboxes.ErrNotFound) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	if _, err := d.Create(ctxb, spec); !isConfig(err) || !strings.Contains(err.Error(), "host: missing") {
		t.Error(err)
	}
	// What is not of our making stays, whatever it is called.
	spec.ID = "theirs"
	if err := d.Destroy(ctxb, spec, r); err == nil {
		t.Error("removed somebody's folder")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	// Nor is what lies somewhere else than where we made it.
	r.Extra = []byte(`{"managed":true}`)
	spec.ID = "sbx_x"
	if err := d.Destroy(ctxb, spec, r); err == nil {
		t.Error("removed another folder")
	}
}

func TestHostKeysAreChecked(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	d := newDriver(t)
	print, err := exec.Command("ssh-keygen", "-lf", s.dir+"/host_key.pub").Output()
	if err != nil {
		t.Fatal(err)
	}
	fingerprint := strings.Fields(string(print))[1]
	other, err := os.ReadFile(s.dir + "/authorized_keys")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(s.dir + "/host_key.pub")
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("[127.0.0.1]:%d ", s.port)
	for _, c := range []struct {
		name, known string
		want        []string
	}{
		{"no file", "", []string{"not known", fingerprint}},
		{"no entry", "[127.0.0.1]:1 " + string(own), []string{"not known", fingerprint}},
		{"another key", at + string(other), []string{"has changed", fingerprint}},
		{"revoked", "@revoked " + at + string(own), []string{"revoked", fingerprint}},
		{"no such file of keys", "nonsense\n", []string{"known hosts"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "known")
			if c.known != "" {
				if err := os.WriteFile(file, []byte(c.known), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			_, err := d.Create(ctxb, s.spec(t, func(c *Config) { c.KnownHosts = file }))
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

// A host has keys of several makes; the one that is known must be asked for.
func TestTheKnownKeyIsAskedFor(t *testing.T) {
	t.Parallel()
	u := somebody(t)
	dir, err := os.MkdirTemp("", "ssh-key-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", dir+"/rsa").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if os.Getuid() == 0 {
		uid, _ := strconv.Atoi(u.Uid)
		if err := errors.Join(os.Chown(dir, uid, 0), os.Chown(dir+"/rsa", uid, 0)); err != nil {
			t.Fatal(err)
		}
	}
	s := newServer(t, u, "HostKey "+dir+"/rsa")
	pub, err := os.ReadFile(dir + "/rsa.pub")
	if err != nil {
		t.Fatal(err)
	}
	known := dir + "/known"
	if err := os.WriteFile(known, fmt.Appendf(nil, "[127.0.0.1]:%d %s", s.port, pub), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newDriver(t).Create(ctxb, s.spec(t, func(c *Config) { c.KnownHosts = known })); err != nil {
		t.Error(err)
	}
}

func TestWhoWeAre(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	d := newDriver(t)
	dir := t.TempDir()
	_, wrong, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, block *pem.Block, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir + "/" + name
	}
	block, err := ssh.MarshalPrivateKey(wrong, "")
	wrongFile := write("wrong", block, err)
	block, err = ssh.MarshalPrivateKeyWithPassphrase(wrong, "", []byte("open sesame"))
	lockedFile := write("locked", block, err)
	if err := os.WriteFile(dir+"/garbage", []byte("top secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		wrongFile: "does not accept the key", lockedFile: "needs a passphrase", dir + "/garbage": "is no private key", dir + "/none": "no such file",
	} {
		_, err := d.Create(ctxb, s.spec(t, func(c *Config) { c.KeyFile = file }))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "top secret") {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
	// With an agent, named by a variable.
	b, err := os.ReadFile(s.key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	ring := sshagent.NewKeyring()
	if err := ring.Add(sshagent.AddedKey{PrivateKey: key}); err != nil {
		t.Fatal(err)
	}
	socket := dir + "/agent"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				_ = sshagent.ServeAgent(ring, c)
				c.Close()
			})
		}
	})
	defer served.Wait()
	defer l.Close()
	spec := s.spec(t, func(c *Config) { c.KeyFile, c.Agent = "", "${TEST_AGENT}" })
	spec.Lookup = func(name string) (string, bool) { return socket, name == "TEST_AGENT" }
	sb, _ := create(t, d, spec)
	// The inside does not see it.
	if out := run(t, newMount(t, sb), `echo "$SSH_AUTH_SOCK"`); out != "\n" {
		t.Errorf("%q", out)
	}
	if _, err := d.Create(ctxb, s.spec(t, func(c *Config) { c.KeyFile, c.Agent = "", dir+"/nobody" })); err == nil || !strings.Contains(err.Error(), "ssh agent") {
		t.Error(err)
	}
}

func TestConfigurationsAreChecked(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	for config, want := range map[string]string{
		`{"hots":"x"}`:                                      "hots",
		`{"host":1}`:                                        "host",
		`{"host":"h"}`:                                      "keyFile",
		`{"keyFile":"k"}`:                                   "host: missing",
		`{"host":"h","keyFile":"k","port":-1}`:              "port",
		`{"host":"h","keyFile":"k","port":70000}`:           "port",
		`{"host":"h","keyFile":"k","network":"none"}`:       "network",
		`{"host":"h","keyFile":"k","network":["x"]}`:        "network",
		`{"host":"h","keyFile":"k","limits":{"cpus":1}}`:    "limits",
		`{"host":"h","keyFile":"${NO_SUCH_VARIABLE_HERE}"}`: "NO_SUCH_VARIABLE_HERE is not set",
		`{"host":"h\n","keyFile":"k"}`:                      "host",
	} {
		spec := sandboxes.Spec{ID: "sbx_x", Config: []byte(config), Lookup: os.LookupEnv}
		if _, err := d.Create(ctxb, spec); !isConfig(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}

// beatIn runs a command until its end, which it gives, and waits until it runs.
func beatIn(t *testing.T, m sandboxes.Mount) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := m.Run(ctxb, sandboxes.Command{Script: "echo run >> ran; setsid sh -c 'while :; do echo >> beat; sleep 0.02; done' & sleep 60"})
		ended <- err
	}()
	eventually(t, "it runs", func() bool { return size(m.Dir()+"/beat") > 3 })
	return ended
}

func TestALostConnectionIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	eachDriver(t, func(t *testing.T, d *Driver) {
		r := newRelay(t, s)
		sb, res := create(t, d, s.spec(t, func(c *Config) { c.Port = r.port() }))
		m := newMount(t, sb)
		ended := beatIn(t, m)
		unlock, err := m.Lock(ctxb, "f")
		if err != nil {
			t.Fatal(err)
		}
		r.cut()
		err = <-ended
		var se *sandboxes.ShellError
		if !errors.As(err, &se) || !errors.Is(err, agent.ErrLost) || !strings.Contains(err.Error(), "connection lost") {
			t.Error(err)
		}
		// Who holds a lock of the lost connection gives it back first.
		if err := m.Write(ctxb, "f", nil); !errors.Is(err, agent.ErrLost) {
			t.Error(err)
		}
		unlock()
		if err := m.Write(ctxb, "f", []byte("x")); err != nil {
			t.Error(err)
		}
		if m.Dir() != res.Dir {
			t.Error(m.Dir())
		}
		if out := run(t, m, "pwd; cat ran; echo again"); out != res.Dir+"\nrun\nagain\n" {
			t.Errorf("%q", out)
		}
		if err := m.Write(ctxb, m.Scratch()+"/f", nil); err != nil {
			t.Error("scratch:", err)
		}
		time.Sleep(2 * time.Second) // within what everything has ended
		still(t, res.Dir+"/beat")
		if size(res.Dir+"/ran") != int64(len("run\n")) {
			t.Error("run more than once")
		}
	})
}

func TestAHostThatDoesNotAnswerIsLost(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	eachDriver(t, func(t *testing.T, d *Driver) {
		r := newRelay(t, s)
		d.keepalive = 250 * time.Millisecond
		sb, _ := create(t, d, s.spec(t, func(c *Config) { c.Port = r.port() }))
		m := newMount(t, sb)
		run(t, m, "true")
		// An answering host stays, however often it is asked.
		time.Sleep(6 * d.keepalive)                                                 // this wait is the measurement
		if out := run(t, m, "echo here"); out != "here\n" || r.connections() != 2 { // one of them made the folder
			t.Errorf("%q, %d connections", out, r.connections())
		}
		ended := beatIn(t, m)
		r.freeze(true)
		start := time.Now()
		if err := <-ended; !errors.Is(err, agent.ErrLost) {
			t.Error(err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		r.cut()
		r.freeze(false)
		if out := run(t, m, "echo again"); out != "again\n" {
			t.Errorf("%q", out)
		}
	})
}

// A cancel is not held up by a host that does not answer.
func TestCancelWhileTheHostIsSilent(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	eachDriver(t, func(t *testing.T, d *Driver) {
		r := newRelay(t, s)
		sb, _ := create(t, d, s.spec(t, func(c *Config) { c.Port = r.port() }))
		m := newMount(t, sb)
		cancelled, cancelRun := context.WithCancel(ctxb)
		defer cancelRun()
		ended := make(chan error, 1)
		begun := make(chan struct{})
		go func() {
			_, err := m.Run(cancelled, sandboxes.Command{Script: "echo begun; sleep 60", Output: func(sandboxes.Stream, []byte) { close(begun) }})
			ended <- err
		}()
		<-begun
		r.freeze(true)
		since := time.Now()
		cancelRun()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if took := time.Since(since); took > 2500*time.Millisecond {
			t.Errorf("a running command took %v", took)
		}
		calls := map[string]func(context.Context) error{
			"run":   func(ctx context.Context) error { _, err := m.Run(ctx, sandboxes.Command{Script: "true"}); return err },
			"read":  func(ctx context.Context) error { _, err := m.Read(ctx, "f", 0, -1); return err },
			"write": func(ctx context.Context) error { return m.Write(ctx, "f", make([]byte, 8<<20)) },
			"mount": func(ctx context.Context) error { _, err := sb.Mount(ctx, sandboxes.MountOptions{}); return err },
		}
		var wg sync.WaitGroup
		for name, call := range calls {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctxb, 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
				if took := time.Since(start); took > 2500*time.Millisecond {
					t.Errorf("%s took %v", name, took)
				}
			})
		}
		wg.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(ctxb, 2*time.Second)
		defer cancel()
		_ = sb.Close(ctx) // an error is fine: nobody answers
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("close took %v", took)
		}
	})
}

func TestAHostThatSaysNothingAtAll(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it takes connections and never reads them
	s := newServer(t, somebody(t))
	ctx, cancel := context.WithTimeout(ctxb, 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = newDriver(t).Create(ctx, s.spec(t, func(c *Config) { c.Port = l.Addr().(*net.TCPAddr).Port }))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// The host may fall silent behind the handshake as well.
func TestAHostThatFallsSilent(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	r := newRelay(t, s)
	d := newDriver(t)
	spec := s.spec(t, func(c *Config) { c.Port = r.port() })
	client, err := d.connect(ctxb, mustConfig(t, spec), address{user: s.user.Username, host: "127.0.0.1", port: r.port(), dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r.freeze(true)
	ctx, cancel := context.WithTimeout(ctxb, 200*time.Millisecond)
	defer cancel()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	start := time.Now()
	if _, err := d.inhabit(ctx, spec, mustConfig(t, spec), client, address{dir: "/"}); err == nil || time.Since(start) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func mustConfig(t *testing.T, spec sandboxes.Spec) Config {
	t.Helper()
	c, err := readConfig(spec)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAHostThatIsGone(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	r := newRelay(t, s)
	d := newDriver(t)
	sb, _ := create(t, d, s.spec(t, func(c *Config) { c.Port = r.port() }))
	m := newMount(t, sb)
	r.listener.Close()
	r.cut()
	ctx, cancel := context.WithTimeout(ctxb, 500*time.Millisecond)
	defer cancel()
	eventually(t, "the loss is seen", func() bool { return sb.(*Sandbox).current() == nil })
	if _, err := m.Run(ctx, sandboxes.Command{Script: "true"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// Closing ends the tries.
	done := make(chan error, 1)
	go func() {
		_, err := m.Read(ctxb, "f", 0, -1)
		done <- err
	}()
	if err := sb.Close(ctxb); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
}

// What others run on the host is nobody's business.
func TestClosingEndsOnlyWhatWasStartedThere(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	eachDriver(t, func(t *testing.T, d *Driver) {
		a, resA := create(t, d, s.spec(t))
		b, resB := create(t, d, s.spec(t))
		endA, endB := beatIn(t, newMount(t, a)), beatIn(t, newMount(t, b))
		if err := a.Close(ctxb); err != nil {
			t.Error(err)
		}
		<-endA
		still(t, resA.Dir+"/beat")
		now := size(resB.Dir + "/beat")
		eventually(t, "the other goes on", func() bool { return size(resB.Dir+"/beat") > now })
		if err := b.Close(ctxb); err != nil {
			t.Error(err)
		}
		<-endB
		still(t, resB.Dir+"/beat")
	})
}

func TestSecretsOfTheHostStayOutOfCommands(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t))
	eachDriver(t, func(t *testing.T, d *Driver) {
		sb, _ := create(t, d, s.spec(t))
		const script = `echo "$A_TOKEN|$PLAIN|$FROM_HERE|$SSH_CONNECTION|$LANG_X"`
		if out := run(t, newMount(t, sb), script); out != "|plain|||\n" {
			t.Errorf("%q", out)
		}
		m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: 0o077, Pass: []string{"A_TOKEN"}, Withhold: []string{"PLAIN"},
			Caller: os.Environ(), Set: map[string]string{"LANG_X": "set it's"}})
		if err != nil {
			t.Fatal(err)
		}
		if out := run(t, m, script+"; umask"); out != "secret||||set it's\n0077\n" {
			t.Errorf("%q", out)
		}
	})
}

// The program is brought once, and again when it is not what it was.
func TestTheRunnerIsBroughtOnce(t *testing.T) {
	t.Parallel()
	s := noisy(t, newServer(t, somebody(t)))
	d := newDriver(t)
	spec := s.spec(t)
	_, r := create(t, d, spec)
	files, err := filepath.Glob(s.dir + "/.cache/codework/bin/*")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	first, err := os.Stat(files[0])
	if err != nil || first.Mode().Perm() != 0o700 {
		t.Fatal(first, err)
	}
	if info, err := os.Stat(filepath.Dir(files[0])); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info, err)
	}
	attach(t, d, spec, r)
	if again, err := os.Stat(files[0]); err != nil || !os.SameFile(first, again) {
		t.Error("brought again", err)
	}
	// Somebody broke it.
	if err := os.WriteFile(s.dir+"/broken", []byte("#!/bin/sh\necho broken\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.dir+"/broken", files[0]); err != nil {
		t.Fatal(err)
	}
	m := newMount(t, attach(t, d, spec, r))
	if out := run(t, m, "echo fine"); out != "fine\n" {
		t.Errorf("%q", out)
	}
	if left, _ := filepath.Glob(s.dir + "/.cache/codework/bin/{.new,}*"); len(left) > 1 {
		t.Errorf("left: %q", left)
	}
}

// isPlain tells how the sandbox is reached.
func isPlain(sb sandboxes.Sandbox) bool {
	_, is := sb.(*Sandbox).current().(*plain)
	return is
}

func TestWhereTheRunnerDoesNotWork(t *testing.T) {
	t.Parallel()
	u := somebody(t)
	t.Run("no private folder", func(t *testing.T) {
		s := newServer(t, u)
		if err := os.WriteFile(s.dir+"/.cache", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		sb, _ := create(t, newDriver(t), s.spec(t))
		if out := run(t, newMount(t, sb), "echo fine"); out != "fine\n" || !isPlain(sb) {
			t.Errorf("%q", out)
		}
	})
	t.Run("it does not start", func(t *testing.T) {
		broken := filepath.Join(t.TempDir(), "broken")
		b, err := os.ReadFile(theProgram(t))
		if err != nil {
			t.Fatal(err)
		}
		copy(b[len(b)/8:], make([]byte, len(b)/2)) // its headers stay
		if err := os.WriteFile(broken, b, 0o755); err != nil {
			t.Fatal(err)
		}
		sb, _ := create(t, New(Options{Executable: broken}), newServer(t, u).spec(t))
		if out := run(t, newMount(t, sb), "echo fine"); out != "fine\n" || !isPlain(sb) {
			t.Errorf("%q", out)
		}
	})
	t.Run("programs that cannot be brought", func(t *testing.T) {
		text := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{
			"/bin/sh": "needs libraries of the system", text: "is no program for Linux", "/no/such": "no such file",
		} {
			if _, err := newRunner(path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", path, err)
			}
		}
		r, err := newRunner(theProgram(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []facts{{os: "Darwin", arch: r.arch, cache: "/c"}, {os: "Linux", arch: "mips", cache: "/c"}} {
			if err := f.fits(r); err == nil || !strings.Contains(err.Error(), f.os+" on "+f.arch) {
				t.Error(err)
			}
		}
	})
}

// A host may allow one channel per connection; more commands then need more
// connections.
func TestOneChannelPerConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t, somebody(t), "MaxSessions 1")
	eachDriver(t, func(t *testing.T, d *Driver) {
		sb, _ := create(t, d, s.spec(t))
		m := newMount(t, sb)
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				var out strings.Builder
				exit, err := m.Run(ctxb, sandboxes.Command{Script: fmt.Sprintf("sleep 0.2; echo %d", i),
					Output: func(_ sandboxes.Stream, b []byte) { out.Write(b) }})
				if err != nil || exit.Code != 0 || out.String() != fmt.Sprintln(i) {
					t.Errorf("%+v %v %q", exit, err, out.String())
				}
			})
		}
		wg.Wait()
		if err := m.Write(ctxb, "f", []byte("x")); err != nil {
			t.Error(err)
		}
	})
}
