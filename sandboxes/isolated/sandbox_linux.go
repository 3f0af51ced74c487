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
	group  *group // nil: none
	driver *Driver
	spec   sandboxes.Spec
	plan   *plan
	vars   map[string]string   // in every command
	swept  chan struct{}       // closed when nothing of it is left
	pinned map[string]identity // protected and hidden files and folders, before it was built

	unpinned sync.Once
}

// watch sees to it that nothing is left of a sandbox whose connection has
// ended, in whatever way: its agent ends by itself, in at most two seconds.
func (s *sandbox) watch() {
	if names := newWatch(s.pinned); names != nil {
		guarded := make(chan struct{})
		go func() {
			defer close(guarded)
			s.guard(names)
		}()
		defer func() {
			names.Close()
			<-guarded
		}()
	}
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
	if s.group != nil {
		if err := s.group.remove(); err != nil {
			s.driver.opt.Log.Warn("control group of a sandbox is left", "error", err)
		}
	}
	close(s.swept)
	s.driver.mu.Lock()
	delete(s.driver.live, s)
	s.driver.mu.Unlock()
}

// closePatience is what the agent gets to end everything inside: it lets
// commands clean up for a second. What is left then the kernel ends.
const closePatience = 1600 * time.Millisecond

// Close asks what runs to end, as the agent does for any sandbox, and then ends
// process 1, which nothing survives. It has done so when it returns, also when
// ctx ends.
func (s *sandbox) Close(ctx context.Context) error {
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		// Whether it works or not, what follows does.
		_ = s.Client.Close(ctx)
	}()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-asked:
		// The process ends by itself now; a moment for its last words.
		patience.Reset(endPatience)
	case <-ctx.Done():
		patience.Reset(0)
	case <-patience.C:
		patience.Reset(0)
	}
	select {
	case <-s.ended:
	case <-patience.C:
	}
	_ = s.cmd.Process.Kill()
	<-s.swept
	<-asked
	return nil
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
