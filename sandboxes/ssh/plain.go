package ssh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"codework/sandboxes"
	"codework/sandboxes/agent"
	"codework/sandboxes/internal/filelock"
	"codework/sandboxes/local"
)

// maxConnections is how many there are to one host: some allow only few
// channels on each.
const maxConnections = 8

// plain is a sandbox on a host where our runner does not work: files over sftp,
// and a channel for each command.
type plain struct {
	id      string
	dial    func(context.Context) (*ssh.Client, error)
	means   means
	files   *sftp.Client
	locks   filelock.Table
	slots   chan struct{} // one token per running command
	lost    chan struct{}
	dialing chan struct{}   // holds one; who has put it in makes a connection
	gone    context.Context // ends with Close, and with the connection
	closed  atomic.Bool
	finish  context.CancelFunc

	mu     sync.Mutex // guards the following
	hosts  []*host    // the first one carries the files
	mounts map[*plainMount]struct{}
}

// means are what the host offers to end commands with.
type means struct {
	unshare string   // command that makes a namespace, "" if none does
	setsid  bool     // there is a program for sessions
	shell   string   // for scripts
	names   []string // of variables
	scratch string   // folder for scratch folders
}

// meansScript takes our cache folder, or "". A namespace is found by making one.
const meansScript = `
for try in "unshare --pid --fork --kill-child --mount-proc" "unshare --user --map-current-user --pid --fork --kill-child --mount-proc"; do
	if $try true >/dev/null 2>&1; then printf 'unshare=%s\n' "$try"; break; fi
done
if command -v setsid >/dev/null 2>&1; then echo setsid=yes; fi
printf 'shell=%s\n' "$(command -v bash || command -v sh)"
env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/name=\1/p'
if test -n "$1"; then
	find "$1" -name 'scratch-*' -prune -mtime +2 -exec rm -rf {} + 2>/dev/null
	printf 'scratch=%s\n' "$1"
else
	printf 'scratch=%s\n' "$(umask 077; mktemp -d)"
fi
exit 0
`

func parseMeans(reply string) (means, error) {
	var m means
	for line := range strings.Lines(reply) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch name {
		case "unshare":
			m.unshare = value
		case "setsid":
			m.setsid = true
		case "shell":
			m.shell = value
		case "name":
			m.names = append(m.names, value)
		case "scratch":
			m.scratch = value
		}
	}
	if !strings.HasPrefix(m.shell, "/") || !strings.HasPrefix(m.scratch, "/") {
		return m, fmt.Errorf("look at the host: it answers %.300q", reply)
	}
	return m, nil
}

// startPlain finds out what there is and opens the files. The first connection
// is the sandbox's from then on, unless there is an error.
func (h *host) startPlain(ctx context.Context, f facts, id string, dial func(context.Context) (*ssh.Client, error)) (*plain, error) {
	reply, err := h.script(ctx, meansScript, nil, f.cache)
	if err != nil {
		return nil, fmt.Errorf("look at the host: %w", err)
	}
	m, err := parseMeans(reply)
	if err != nil {
		return nil, err
	}
	p := &plain{id: id, dial: dial, means: m, slots: make(chan struct{}, local.MaxCommands), lost: make(chan struct{}), dialing: make(chan struct{}, 1),
		hosts: []*host{h}, mounts: make(map[*plainMount]struct{})}
	s, err := h.session(ctx)
	if err != nil {
		return nil, err
	}
	in, err := s.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = s.RequestSubsystem("sftp"); err == nil {
		p.files, err = sftp.NewClientPipe(out, in, sftp.UseConcurrentWrites(true))
	}
	if err != nil {
		return nil, fmt.Errorf("the host's sftp, which files need where our runner does not work: %w", err)
	}
	p.gone, p.finish = context.WithCancel(context.Background())
	go func() {
		_ = h.client.Wait()
		close(p.lost) // first: it is the reason of what ends
		p.finish()
	}()
	return p, nil
}

// Lost is closed when the connection has ended, in whatever way.
func (p *plain) Lost() <-chan struct{} { return p.lost }

// session opens a channel on a connection that has room, or on a new one.
func (p *plain) session(ctx context.Context) (*ssh.Session, error) {
	deadline := time.Now().Add(sessionPatience)
	for {
		p.mu.Lock()
		hosts := slices.Clone(p.hosts)
		p.mu.Unlock()
		for i, h := range hosts {
			s, err := h.open(ctx)
			var full *ssh.OpenChannelError
			switch {
			case err == nil:
				return s, nil
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case i == 0 && !errors.As(err, &full):
				return nil, p.cut(err)
			case !errors.As(err, &full): // an extra one that was lost
				p.mu.Lock()
				p.hosts = slices.DeleteFunc(p.hosts, func(o *host) bool { return o == h })
				p.mu.Unlock()
			}
		}
		if len(hosts) < maxConnections {
			if err := p.another(ctx, len(hosts)); err == nil {
				continue
			} else if p.gone.Err() != nil || time.Now().After(deadline) {
				return nil, err
			}
		}
		if err := pause(ctx, sessionPause); err != nil {
			return nil, err
		}
	}
}

// another makes one more connection than the given number, unless there is one
// by now. Only one is made at a time: a host takes many at once for an attack.
func (p *plain) another(ctx context.Context, than int) error {
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	have := len(p.hosts)
	p.mu.Unlock()
	if have > than {
		return nil
	}
	client, err := p.dial(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.hosts = append(p.hosts, &host{client: client})
	p.mu.Unlock()
	if p.gone.Err() != nil { // Close may have looked just before
		client.Close()
		return p.endError()
	}
	return nil
}

// lostPatience is how long the end of a connection may take to be seen when
// something on it has ended.
const lostPatience = 250 * time.Millisecond

// cut is why something on the first connection ended: err, unless the
// connection itself did.
func (p *plain) cut(err error) error {
	select {
	case <-p.lost:
		return agent.ErrLost
	case <-time.After(lostPatience):
		return err
	}
}

// Mount makes a session's use of the sandbox.
func (p *plain) Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	if err := local.CheckEntries(o.Set); err != nil {
		return nil, fmt.Errorf("mount %s: %w", o.Dir, err)
	}
	m := &plainMount{plain: p, options: o, umask: max(o.Umask, -1), jobs: make(map[*job]struct{})}
	m.ctx, m.cancel = context.WithCancel(p.gone)
	err := p.do(ctx, func() error {
		if err := m.enter(o.Dir); err != nil {
			return err
		}
		m.scratch = path.Join(p.means.scratch, "scratch-"+rand.Text())
		if err := p.files.Mkdir(m.scratch); err != nil {
			return fmt.Errorf("make scratch: %w", err)
		}
		return p.files.Chmod(m.scratch, 0o700)
	})
	if err != nil {
		m.cancel()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mounts[m] = struct{}{}
	return m, nil
}

// do runs something that talks over sftp. A caller who gives up does not wait
// for a host that does not answer.
func (p *plain) do(ctx context.Context, what func() error) error {
	if p.gone.Err() != nil {
		return p.endError()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- what() }()
	select {
	case err := <-done:
		if err != nil && p.gone.Err() != nil {
			return p.endError()
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends what was started and the connections.
func (p *plain) Close(ctx context.Context) error {
	p.closed.Store(true)
	p.mu.Lock()
	var all []*plainMount
	for m := range p.mounts {
		all = append(all, m)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, m := range all {
		wg.Go(func() { _ = m.Close() })
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	hosts := p.hosts
	p.mu.Unlock()
	for _, h := range hosts {
		h.client.Close()
	}
	<-p.lost
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hosts {
		h.client.Close()
	}
	return err
}
