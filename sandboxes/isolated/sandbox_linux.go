//go:build amd64 || arm64

package isolated

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"codework/sandboxes"
	"codework/sandboxes/agent"
)

// sandbox is an agent behind walls.
type sandbox struct {
	*agent.Client
	*building
	driver *Driver
	spec   sandboxes.Spec
	plan   *plan
	vars   map[string]string // in every command
	ending sync.Once
}

// watch sees to it that nothing is left of a sandbox whose connection has
// ended, in whatever way: its agent ends by itself, in at most two seconds.
func (s *sandbox) watch() {
	select {
	case <-s.ended:
	case <-s.Lost():
		select {
		case <-s.ended:
		case <-time.After(2*time.Second + endPatience):
			s.driver.opt.Log.Warn("sandbox does not end; killed", "sandbox", s.spec.ID)
			_ = s.cmd.Process.Kill()
			<-s.ended
		}
	}
	if text := s.said.String(); text != "" {
		s.driver.opt.Log.Info("sandbox agent said", "sandbox", s.spec.ID, "text", text)
	}
	s.driver.mu.Lock()
	delete(s.driver.live, s)
	s.driver.mu.Unlock()
}

// Close asks what runs to end, as the agent does for any sandbox, and then ends
// process 1, which nothing survives.
func (s *sandbox) Close(ctx context.Context) error {
	err := s.Client.Close(ctx)
	select {
	case <-s.ended:
	case <-ctx.Done():
	case <-time.After(endPatience):
	}
	_ = s.cmd.Process.Kill()
	<-s.ended
	if err != nil && ctx.Err() == nil {
		err = nil // the kernel has done what was asked for
	}
	return err
}

// plainNames and plainPrefix are what passes of the caller's variables.
var plainNames = []string{"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "SHELL", "TZ"}

const plainPrefix = "LC_"

// Mount makes a session's use of the sandbox. Of the caller's environment, or
// of the server's own without one, only a short list passes, and what the
// options list.
func (s *sandbox) Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	from := o.Caller
	if from == nil {
		from = os.Environ()
	}
	set := make(map[string]string)
	for _, entry := range from {
		name, value, ok := strings.Cut(entry, "=")
		if ok && passes(name, o) && !strings.ContainsRune(value, 0) {
			set[name] = value
		}
	}
	maps.Copy(set, s.vars)
	maps.Copy(set, o.Set)
	o.Caller, o.Set = nil, set
	m, err := s.Client.Mount(ctx, o)
	if err != nil {
		return nil, err
	}
	return &mount{Mount: m, sandbox: s}, nil
}

// passes tells whether a variable of the caller's reaches commands.
func passes(name string, o sandboxes.MountOptions) bool {
	if !validName(name) {
		return false // exported functions of a shell, and the like
	}
	if slices.Contains(o.Pass, "*") || slices.Contains(o.Pass, name) {
		return true
	}
	plain := slices.Contains(plainNames, name) || strings.HasPrefix(name, plainPrefix)
	return plain && !slices.Contains(o.Withhold, name)
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// mount is a session's use of the sandbox.
type mount struct {
	sandboxes.Mount
	sandbox *sandbox
}
