//go:build amd64 || arm64

package isolated

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codework/sandboxes/agent"
)

const (
	// buildPatience bounds the building of a sandbox: tens of milliseconds,
	// more on a machine that is busy.
	buildPatience = 20 * time.Second
	// maxReport bounds what a sandbox says of why it could not be built.
	maxReport = 64 << 10
	// endPatience is how long after the end of the connection process 1 may
	// still be there.
	endPatience = 250 * time.Millisecond
	// maxSaid is how much of what the agent says about trouble is kept.
	maxSaid = 8 << 10
)

// namespaces are those of a sandbox at the level Full.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// builderCaps are what building a sandbox takes: mounts, loopback, giving up
// capabilities, and the kernel's own folders in layers.
var builderCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER}

// canBuild tells whether this process may do all that by itself, as root
// usually does. Others do it in a user namespace of their own.
func canBuild() bool {
	low, _, err := capabilities()
	for _, c := range builderCaps {
		if low&(1<<c) == 0 {
			return false
		}
	}
	return err == nil
}

// building is the process that becomes a sandbox.
type building struct {
	cmd    *exec.Cmd
	conn   net.Conn // to the agent that it becomes
	report *os.File
	said   said
	ended  chan struct{} // closed when it has been waited for
	err    error         // of the wait, then
}

// said keeps the beginning of what is written to it.
type said struct {
	mu sync.Mutex // guards b
	b  []byte
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(s.b, b[:min(len(b), maxSaid-len(s.b))]...)
	return len(b), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(bytes.TrimSpace(s.b))
}

// launch starts the process and hands it the plan.
func (d *Driver) launch(p *plan, g *group) (*building, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	conn, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	report, end, err := os.Pipe()
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer end.Close()
	exe := d.opt.Executable
	if exe == "" {
		exe = ownExe
	}
	b := &building{conn: conn, report: report, ended: make(chan struct{})}
	b.cmd = &exec.Cmd{
		Path:        exe,
		Args:        []string{os.Args[0], setupArg},
		Env:         environment(p),
		Dir:         "/",
		Stdin:       bytes.NewReader(text),
		Stderr:      &b.said,
		ExtraFiles:  []*os.File{far, end}, // connFD and reportFD
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		// Nothing inside holds standard error but the agent; a plan that is not
		// read to its end holds nobody up.
		WaitDelay: endPatience,
	}
	attr := b.cmd.SysProcAttr
	if g != nil {
		// In the group from the first instruction on.
		fd, err := unix.Open(g.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			conn.Close()
			report.Close()
			return nil, fmt.Errorf("open control group: %w", err)
		}
		defer unix.Close(fd)
		attr.UseCgroupFD, attr.CgroupFD = true, fd
	}
	if p.Level == Full {
		attr.Cloneflags = namespaces
		if !p.Internet {
			attr.Cloneflags |= unix.CLONE_NEWNET
		}
		if !canBuild() {
			uid, gid := os.Geteuid(), os.Getegid()
			attr.Cloneflags |= unix.CLONE_NEWUSER
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
			// In the new namespace, where they build the sandbox; starting a
			// program as somebody else than root would lose them.
			attr.AmbientCaps = builderCaps
		}
	}
	if err := b.cmd.Start(); err != nil {
		conn.Close()
		report.Close()
		return nil, step(startStep, "", err)
	}
	go func() {
		b.err = b.cmd.Wait()
		close(b.ended)
	}()
	return b, nil
}

// built waits until the sandbox stands. The error is a *stepError when it could
// not be built.
func (b *building) built(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, buildPatience)
	defer cancel()
	defer b.report.Close()
	defer context.AfterFunc(ctx, func() { _ = b.report.SetReadDeadline(time.Now()) })()
	text, err := io.ReadAll(io.LimitReader(b.report, maxReport))
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("build sandbox: %w", err)
	}
	if len(text) == 0 {
		return nil
	}
	var f failure
	if err := json.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("build sandbox: %w", err)
	}
	cause := errors.New(f.Text)
	if f.Errno != 0 {
		cause = syscall.Errno(f.Errno)
	}
	return step(f.Step, f.Path, cause)
}

// kill ends the process, and with it all that is inside, and waits for it.
func (b *building) kill() {
	b.conn.Close()
	_ = b.cmd.Process.Kill() // ended already is fine
	<-b.ended
}

// start builds a sandbox and reaches its agent.
func (d *Driver) start(ctx context.Context, p *plan, g *group) (*sandbox, error) {
	// Before it is built: what is replaced meanwhile is seen as replaced.
	pinned, err := p.pinned()
	if err != nil {
		return nil, err
	}
	b, err := d.launch(p, g)
	if err != nil {
		return nil, reason(err)
	}
	if err := b.built(ctx); err != nil {
		b.kill()
		return nil, reason(err)
	}
	dial, cancel := context.WithTimeout(ctx, buildPatience)
	defer cancel()
	client, err := agent.Dial(dial, b.conn, agent.DialOptions{Log: d.opt.Log})
	if err != nil {
		b.kill()
		if text := b.said.String(); text != "" {
			err = fmt.Errorf("%w (%s)", err, text)
		}
		return nil, err
	}
	return &sandbox{
		Client: client, building: b, group: g, driver: d, plan: p, pinned: pinned, swept: make(chan struct{}),
	}, nil
}

// socketPair makes a stream socket, close-on-exec at both ends: the near one
// for this process, the far one for a child.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "sandbox"), os.NewFile(uintptr(fds[1]), "sandbox")
	conn, err := net.FileConn(near)
	near.Close() // FileConn has a duplicate; a second one would hide our end
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return conn, far, nil
}
