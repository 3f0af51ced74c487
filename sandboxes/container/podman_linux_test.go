package container

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/moby/moby/client"

	"codework/integration/peer"
	"codework/sandboxes"
)

// peerName is what the environment calls the engine.
const peerName = "CONTAINER"

// podman is the engine of the tests, started with the first of them.
var podman struct {
	once   sync.Once
	dir    string
	socket string
	bin    string // what containers run
	err    error
	cmd    *exec.Cmd
}

// image is the name of the test image: busybox and a user.
const image = "codework-test:latest"

func TestMain(m *testing.M) {
	code := m.Run()
	if podman.cmd != nil {
		_ = podman.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = podman.cmd.Wait()                          // with that signal
	}
	if podman.dir != "" {
		endMonitors(podman.dir)
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

// endMonitors ends the monitors of commands that the engine keeps for five
// minutes after their end.
func endMonitors(dir string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		args, _ := os.ReadFile(file) // it may be gone
		if !bytes.Contains(args, []byte("conmon")) || !bytes.Contains(args, []byte(dir)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
	}
}

// engineFor returns the tests' engine, which is started with the first of them.
func engineFor(t testing.TB) (socket, bin string) {
	t.Helper()
	peer.Wanted(t, peerName)
	podman.once.Do(func() { podman.err = startPodman() })
	if podman.err != nil {
		peer.Missing(t, peerName, podman.err, "install podman, runc and busybox-static")
	}
	return podman.socket, podman.bin
}

func startPodman() error {
	dir, err := os.MkdirTemp("", "cwpod") // short: sockets have short paths
	if err != nil {
		return err
	}
	podman.dir, podman.bin = dir, filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-o", podman.bin, "./testprogram")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program for containers: %w\n%s", err, out)
	}
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		podman.socket = host
		return nil
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("the test image needs busybox-static: %w", err)
	}
	tarball := filepath.Join(dir, "image.tar")
	if err := os.WriteFile(tarball, imageOf(busybox), 0o600); err != nil {
		return err
	}
	conf := filepath.Join(dir, "containers.conf")
	text := "[engine]\nevents_logger=\"file\"\ncgroup_manager=\"cgroupfs\"\nruntime=\"runc\"\n[containers]\nnetns=\"none\"\n" +
		"default_ulimits=[\"nofile=1024:1024\",\"nproc=1024:1024\"]\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	args := []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs", "--tmpdir", filepath.Join(dir, "tmp")}
	command := func(more ...string) *exec.Cmd {
		c := exec.Command("podman", append(args, more...)...)
		c.Env = append(os.Environ(), "CONTAINERS_CONF="+conf, "XDG_RUNTIME_DIR="+dir)
		return c
	}
	if out, err := command("import", tarball, image).CombinedOutput(); err != nil {
		return fmt.Errorf("import the test image: %w\n%s", err, out)
	}
	podman.socket = "unix://" + filepath.Join(dir, "s")
	podman.cmd = command("system", "service", "--time=0", podman.socket)
	var log bytes.Buffer
	podman.cmd.Stderr = &log
	if err := podman.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "s")); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("podman does not listen: %s", log.String())
		}
	}
}

// imageOf packs a file system with busybox, its links and a user.
func imageOf(busybox []byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			panic(err) // memory does not fail
		}
		if _, err := w.Write(content); err != nil {
			panic(err)
		}
	}
	for _, dir := range []string{"bin/", "etc/", "proc/", "root/", "sys/", "dev/"} {
		put(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	put(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, busybox)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	// Debian's static busybox has none.
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/nohup", Mode: 0o755}, []byte("#!/bin/sh\ntrap '' HUP\nexec \"$@\"\n"))
	applets, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		panic(err)
	}
	for name := range strings.FieldsSeq(string(applets)) {
		if name != "busybox" {
			put(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}, nil)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
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
