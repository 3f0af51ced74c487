package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/moby/moby/client"

	"codework/integration/peer"
	"codework/sandboxes"
)

// podman is the engine of the tests, started with the first of them.
var podman struct {
	once   sync.Once
	dir    string
	bin    string // what containers run
	err    error
	engine *peer.Engine
}

const image = peer.Image

func TestMain(m *testing.M) {
	code := m.Run()
	if podman.engine != nil {
		podman.engine.Close()
	}
	if podman.dir != "" {
		if err := os.RemoveAll(podman.dir); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "remove the engine's folder:", err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// engineFor returns the tests' engine, which is started with the first of them.
func engineFor(t testing.TB) (socket, bin string) {
	t.Helper()
	peer.Wanted(t, peer.Container)
	podman.once.Do(func() { podman.err = startPodman() })
	if podman.err != nil {
		peer.Missing(t, peer.Container, podman.err, peer.ContainerHelp)
	}
	return podman.engine.Socket, podman.bin
}

func startPodman() error {
	dir, err := os.MkdirTemp("", "cwpod")
	if err != nil {
		return err
	}
	podman.dir, podman.bin = dir, filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-o", podman.bin, "./testprogram")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program for containers: %w\n%s", err, out)
	}
	podman.engine, err = peer.StartEngine(dir)
	return err
}

// newDriver makes a driver for the tests' engine.
func newDriver(t testing.TB) *Driver {
	t.Helper()
	_, bin := engineFor(t)
	d := New(Options{Cache: t.TempDir(), Executable: bin})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// specFor is a sandbox for a project, with more of its configuration in JSON.
func specFor(t testing.TB, id, project, more string) sandboxes.Spec {
	t.Helper()
	socket, _ := engineFor(t)
	return sandboxes.Spec{ID: id, Server: "server-of-the-tests", Project: project, Lookup: func(string) (string, bool) { return "", false },
		Config: []byte(fmt.Sprintf(`{"socket":%q,"image":%q%s}`, socket, image, more))}
}

// create makes a sandbox that is destroyed at the end.
func create(t testing.TB, d *Driver, spec sandboxes.Spec) sandboxes.Resource {
	t.Helper()
	r, err := d.Create(ctxb, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Destroy(ctxb, spec, r); err != nil {
			t.Error(err)
		}
	})
	return r
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

var ctxb = context.Background()

// raw is the engine without our driver.
func raw(t testing.TB) *client.Client {
	t.Helper()
	socket, _ := engineFor(t)
	c, err := client.New(client.WithHost(socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

var errNever = errors.New("never happened")

func eventually(cond func() bool) error {
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errNever
		}
	}
	return nil
}
