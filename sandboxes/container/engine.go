package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/go-connections/tlsconfig"
	"github.com/moby/moby/client"

	"codework/sandboxes"
)

// engine is a reached engine.
type engine struct {
	*client.Client
	where    string
	rootless bool
	arch     string // as the engine calls it
}

// engines are the engines that were reached, by address and certificates.
type engines struct {
	mu    sync.Mutex // guards known
	known map[[2]string]*engine
}

func (s *engines) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for key, e := range s.known {
		errs = append(errs, e.Close())
		delete(s.known, key)
	}
	return errors.Join(errs...)
}

// greeting is how long an engine may take to answer at first.
const greeting = 5 * time.Second

// engine reaches the engine that a configuration names, or one where engines
// usually are.
func (d *Driver) engine(ctx context.Context, spec sandboxes.Spec, c Config) (*engine, error) {
	socket, certs := c.Socket, ""
	if socket == "" {
		socket, _ = spec.Lookup("DOCKER_HOST")
	}
	if strings.HasPrefix(socket, "tcp://") || strings.HasPrefix(socket, "https://") {
		certs, _ = spec.Lookup("DOCKER_CERT_PATH")
	}
	if socket == "" {
		for _, s := range usualSockets(spec.Lookup) {
			if info, err := os.Stat(s); err == nil && info.Mode()&fs.ModeSocket != 0 {
				socket = s
				break
			}
		}
	}
	if socket == "" {
		return nil, &sandboxes.ConfigError{Reason: "no container engine found: neither DOCKER_HOST nor a socket of Docker or Podman; " +
			"start one (systemctl --user start podman.socket), or set sandbox.container.socket"}
	}
	if filepath.IsAbs(socket) {
		socket = "unix://" + socket
	}
	key := [2]string{socket, certs}
	d.engines.mu.Lock()
	known := d.engines.known[key]
	d.engines.mu.Unlock()
	if known != nil {
		return known, nil
	}
	e, err := reach(ctx, socket, certs)
	if err != nil {
		return nil, err
	}
	d.engines.mu.Lock()
	defer d.engines.mu.Unlock()
	if d.engines.known == nil {
		d.engines.known = map[[2]string]*engine{}
	}
	if other := d.engines.known[key]; other != nil {
		_ = e.Close() // another call was faster
		return other, nil
	}
	d.engines.known[key] = e
	return e, nil
}

func reach(ctx context.Context, socket, certs string) (*engine, error) {
	bad := func(err error) error {
		return &sandboxes.ConfigError{Reason: "container engine at " + socket + ": " + err.Error()}
	}
	if _, err := client.ParseHostURL(socket); err != nil {
		return nil, bad(err)
	}
	// The client's own reading of the environment is left out: the caller's
	// counts, not this process's.
	opts := []client.Opt{client.WithHost(socket)}
	if certs != "" {
		config, err := tlsconfig.Client(tlsconfig.Options{CAFile: filepath.Join(certs, "ca.pem"),
			CertFile: filepath.Join(certs, "cert.pem"), KeyFile: filepath.Join(certs, "key.pem"), ExclusiveRootPools: true})
		if err != nil {
			return nil, bad(err)
		}
		opts = []client.Opt{client.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: config}, CheckRedirect: client.CheckRedirect}), client.WithHost(socket)}
	}
	c, err := client.New(opts...)
	if err != nil {
		return nil, bad(err)
	}
	e := &engine{Client: c, where: socket}
	limit, cancel := context.WithTimeout(ctx, greeting)
	defer cancel()
	info, err := c.Info(limit, client.InfoOptions{})
	if err != nil {
		_ = c.Close() // the reason is known
		return nil, e.explain("answer", err)
	}
	e.arch = info.Info.Architecture
	for _, o := range info.Info.SecurityOptions {
		if strings.Contains(o, "rootless") {
			e.rootless = true
		}
	}
	return e, nil
}

// user is as whom commands run, so that files of the project belong to the
// user: a rootless engine maps root to it.
func (e *engine) user() string {
	if e.rootless || os.Getuid() < 0 {
		return "0:0"
	}
	return strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid())
}

// explain says what an engine's refusal means.
func (e *engine) explain(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errdefs.IsNotFound(err) && !strings.Contains(doing, "create"):
		return sandboxes.ErrNotFound
	case errors.Is(err, syscall.EACCES) || errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the socket %s may not be used by you; join the engine's group, or use a rootless engine: %w", e.where, err)
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("no engine answers at %s; is it running? %w", e.where, err)
	case strings.Contains(err.Error(), "Resource temporarily unavailable"), strings.Contains(err.Error(), "resource temporarily unavailable"):
		return fmt.Errorf("could not %s: no process can be started in it any more (sandbox.limits.processes); stop the sandbox to end them all: %w", doing, err)
	}
	return fmt.Errorf("the engine at %s could not %s: %w", e.where, doing, err)
}

// image makes sure that the image is there, and returns its architecture.
func (e *engine) image(ctx context.Context, c Config) (string, error) {
	got, err := e.ImageInspect(ctx, c.Image)
	if errdefs.IsNotFound(err) && c.Pull {
		pull, err := e.ImagePull(ctx, c.Image, client.ImagePullOptions{})
		if err == nil {
			err = errors.Join(pull.Wait(ctx), pull.Close())
		}
		if err != nil {
			return "", fmt.Errorf("fetch the image %s: %w", c.Image, err)
		}
		got, err = e.ImageInspect(ctx, c.Image)
		if err != nil {
			return "", e.explain("look at the image", err)
		}
		return got.Architecture, nil
	}
	if errdefs.IsNotFound(err) {
		return "", &sandboxes.ConfigError{Reason: fmt.Sprintf("image: the engine at %s does not have %s; fetch it (podman pull, docker pull), or set sandbox.container.pull", e.where, c.Image)}
	}
	if err != nil {
		return "", e.explain("look at the image", err)
	}
	return got.Architecture, nil
}

// promised checks that the engine did not leave out what confines the
// container: Podman's Docker API ignores a runtime.
func (e *engine) promised(ctx context.Context, id string, c Config) error {
	if c.Runtime == "" {
		return nil
	}
	got, err := e.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return e.explain("look at the container", err)
	}
	if h := got.Container.HostConfig; h == nil || h.Runtime != c.Runtime {
		return &sandboxes.ConfigError{Reason: fmt.Sprintf("runtime: the engine at %s does not use %s for the container (Podman takes its runtime from containers.conf)", e.where, c.Runtime)}
	}
	return nil
}

// stop ends a container; one that is not running, or gone, is fine.
func (e *engine) stop(ctx context.Context, id string) error {
	grace := stopGrace
	_, err := e.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &grace})
	if err == nil || errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
		if errdefs.IsNotFound(err) {
			return sandboxes.ErrNotFound
		}
		return nil
	}
	// An engine that cannot ask may still be able to kill.
	if _, kill := e.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"}); kill == nil {
		return nil
	}
	return e.explain("stop the container", err)
}
