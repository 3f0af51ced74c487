package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"archive/tar"
	"os"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/agent"
)

// Attach starts the agent in the container.
func (d *Driver) Attach(ctx context.Context, spec sandboxes.Spec, r sandboxes.Resource) (sandboxes.Sandbox, error) {
	_, e, err := d.read(ctx, spec)
	if err != nil {
		return nil, err
	}
	got, err := e.ContainerInspect(ctx, r.ID, client.ContainerInspectOptions{})
	if err != nil {
		return nil, e.explain("look at the container", err)
	}
	if s := statusOf(got.Container.State); s != messages.SandboxOnline {
		return nil, fmt.Errorf("the container is not running (%s)", got.Container.State.Status)
	}
	var x extra
	if len(r.Extra) > 0 {
		if err := json.Unmarshal(r.Extra, &x); err != nil {
			return nil, fmt.Errorf("read what is stored of the container: %w", err)
		}
	}
	user := ""
	if x.Program == "" {
		if x.Program, err = d.lend(ctx, e, r.ID); err != nil {
			return nil, err
		}
	} else {
		user = e.user()
	}
	created, err := e.ExecCreate(ctx, r.ID, client.ExecCreateOptions{
		User: user, AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Cmd: append([]string{x.Program}, agent.Args(agent.ServeOptions{ID: spec.ID, StateDir: x.State})...),
	})
	if err != nil {
		return nil, e.explain("start the agent", err)
	}
	// The connection lives longer than this call.
	hijacked, err := e.ExecAttach(context.WithoutCancel(ctx), created.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, e.explain("start the agent", err)
	}
	line := newLine(hijacked.HijackedResponse)
	c, err := agent.Dial(ctx, line, agent.DialOptions{Log: d.opt.Log})
	if err != nil {
		_ = line.Close() // the reason is known
		if said := line.said(); said != "" {
			err = fmt.Errorf("%w; it said: %s", err, said)
		}
		if strings.Contains(err.Error(), "temporarily unavailable") {
			return nil, e.explain("start the agent", err)
		}
		return nil, fmt.Errorf("start the agent in the container: %w", err)
	}
	return c, nil
}

// lend puts our program into a container of somebody else's, where it is not
// yet.
func (d *Driver) lend(ctx context.Context, e *engine, id string) (string, error) {
	bin, err := d.program.copyFor(goArch(e.arch))
	if err != nil {
		return "", err
	}
	name := "tmp/.codework/" + bin[strings.LastIndexByte(bin, '/')+1:]
	if _, err := e.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: "/" + name}); err == nil {
		return "/" + name, nil
	}
	f, err := os.Open(bin)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		t := tar.NewWriter(w)
		err := errors.Join(
			t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/.codework/", Mode: 0o755}),
			t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: info.Size()}))
		if err == nil {
			_, err = io.Copy(t, f)
		}
		w.CloseWithError(errors.Join(err, t.Close())) // nil is the end
	}()
	_, err = e.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: r})
	r.CloseWithError(io.ErrClosedPipe) // the packer must end when the engine did not read it all
	<-packed
	if err != nil {
		return "", e.explain("take our program", err)
	}
	return "/" + name, nil
}

// goArch is Go's word for what an engine calls its machine.
func goArch(arch string) string {
	switch arch {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return arch
}

// line is the agent's standard input and output, out of what the engine sends:
// both outputs in one stream of frames.
type line struct {
	hijacked client.HijackedResponse
	out      *io.PipeReader
	once     sync.Once
	ended    chan struct{}

	mu  sync.Mutex // guards err
	err bytes.Buffer
}

// maxSaid bounds what is kept of the agent's standard error.
const maxSaid = 4 << 10

func newLine(h client.HijackedResponse) *line {
	r, w := io.Pipe()
	l := &line{hijacked: h, out: r, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		_, err := stdcopy.StdCopy(w, complaints{l}, h.Reader)
		w.CloseWithError(err) // nil is the end
	}()
	return l
}

func (l *line) Read(b []byte) (int, error)  { return l.out.Read(b) }
func (l *line) Write(b []byte) (int, error) { return l.hijacked.Conn.Write(b) }

// Close ends the connection, and with it the agent.
func (l *line) Close() error {
	l.once.Do(func() {
		l.hijacked.Close()
		l.out.CloseWithError(io.ErrClosedPipe)
		<-l.ended
	})
	return nil
}

func (l *line) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(l.err.String(), "\uFFFD"))
}

// complaints keeps the beginning of standard error.
type complaints struct{ l *line }

func (c complaints) Write(b []byte) (int, error) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.err.Write(b[:min(len(b), max(0, maxSaid-c.l.err.Len()))])
	return len(b), nil
}
