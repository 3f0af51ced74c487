package peer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Container is what the environment calls a container engine.
const Container = "CONTAINER"

// ContainerHelp says what an engine for tests takes.
const ContainerHelp = "install podman, runc and busybox-static"

// Image is the name of the engine's only image: busybox and a user.
const Image = "codework-test:latest"

// Engine is a container engine for tests, with images and containers of its own.
type Engine struct {
	Socket string // its address, a URL
	cmd    *exec.Cmd
	dir    string
	podman func(args ...string) *exec.Cmd
}

// engineStart bounds the start of the engine.
const engineStart = 20 * time.Second

// StartEngine starts Podman below a folder, whose name is best short, since
// sockets have short paths. Where DOCKER_HOST names an engine that one is used;
// it needs to have the image.
func StartEngine(dir string) (*Engine, error) {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return &Engine{Socket: host}, nil
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("the test image needs busybox-static: %w", err)
	}
	tarball := filepath.Join(dir, "image.tar")
	files, err := imageOf(busybox)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(tarball, files, 0o600); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "containers.conf")
	text := "[engine]\nevents_logger=\"file\"\ncgroup_manager=\"cgroupfs\"\nruntime=\"runc\"\n[containers]\nnetns=\"none\"\n" +
		"default_ulimits=[\"nofile=1024:1024\",\"nproc=1024:1024\"]\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args := []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs", "--tmpdir", filepath.Join(dir, "tmp")}
	command := func(more ...string) *exec.Cmd {
		c := exec.Command("podman", append(args, more...)...)
		c.Env = append(os.Environ(), "CONTAINERS_CONF="+conf, "XDG_RUNTIME_DIR="+dir)
		return c
	}
	if out, err := command("import", tarball, Image).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("import the test image: %w\n%s", err, out)
	}
	e := &Engine{Socket: "unix://" + filepath.Join(dir, "s"), dir: dir, podman: command}
	e.cmd = command("system", "service", "--time=0", e.Socket)
	var log bytes.Buffer
	e.cmd.Stderr = &log
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(engineStart); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "s")); err == nil {
			return e, nil
		}
		if time.Now().After(deadline) {
			e.Close()
			return nil, fmt.Errorf("podman does not listen: %s", log.String())
		}
	}
}

// Containers lists the containers that there are, running or not, with their
// labels. It is for engines that StartEngine started.
func (e *Engine) Containers() (string, error) {
	if e.podman == nil {
		return "", nil
	}
	out, err := e.podman("ps", "--all", "--format", "{{.ID}} {{.State}} {{.Labels}}").Output()
	return string(out), err
}

// Close ends an engine that StartEngine started, and what it keeps running for
// minutes after the end of a command. Containers must be gone already.
func (e *Engine) Close() {
	if e.cmd == nil {
		return
	}
	_ = e.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = e.cmd.Wait()                          // with that signal
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		args, _ := os.ReadFile(file) // it may be gone
		if !bytes.Contains(args, []byte("conmon")) || !bytes.Contains(args, []byte(e.dir)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
	}
}

// imageOf packs a file system with busybox, its links and a user.
func imageOf(busybox []byte) ([]byte, error) {
	applets, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list what busybox has: %w", err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	var errs []error
	put := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		errs = append(errs, w.WriteHeader(&h))
		_, err := w.Write(content)
		errs = append(errs, err)
	}
	for _, dir := range []string{"bin/", "etc/", "proc/", "root/", "sys/", "dev/"} {
		put(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	put(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, busybox)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	// Debian's static busybox has none.
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/nohup", Mode: 0o755}, []byte("#!/bin/sh\ntrap '' HUP\nexec \"$@\"\n"))
	for name := range strings.FieldsSeq(string(applets)) {
		if name != "busybox" {
			put(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}, nil)
		}
	}
	return out.Bytes(), errors.Join(append(errs, w.Close())...)
}
