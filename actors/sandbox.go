package actors

import (
	"context"
	"reflect"

	"codework/sandboxes"
)

// Driver makes mounts of one sandbox.
type Driver interface {
	Mount(ctx context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error)
	// Close ends everything that runs in the sandbox.
	Close(ctx context.Context) error
}

// sandbox is the actor of one sandbox: its mounts and what runs in them. When
// it ends, every call that runs there ends as aborted.
type sandbox struct {
	driver Driver
	mounts map[string][]*mounted // by session; the last one is current
}

type mounted struct {
	options sandboxes.MountOptions
	mount   sandboxes.Mount
}

type (
	// mountFor asks for a session's mount; the answer is a sandboxes.Mount. A
	// session keeps its mount while its options stay the same. Where they
	// change, the old one stays until unmount, with its background jobs.
	mountFor struct{ options sandboxes.MountOptions }
	// unmount ends a session's mounts and what they left running.
	unmount   struct{ session string }
	mountMade struct {
		options sandboxes.MountOptions
		mount   sandboxes.Mount
		err     error
		reply   Reply
	}
	toolRun struct {
		ctx   context.Context
		mount sandboxes.Mount
		call  func(context.Context, sandboxes.Mount)
		done  func()
	}
)

func newSandbox(d Driver) func() Actor {
	return func() Actor { return &sandbox{driver: d, mounts: map[string][]*mounted{}} }
}

func (s *sandbox) Receive(me *Self, m any) {
	switch m := m.(type) {
	case mountFor:
		if have := s.mounts[m.options.Session]; len(have) > 0 {
			if last := have[len(have)-1]; reflect.DeepEqual(last.options, m.options) {
				me.Answer(last.mount, nil)
				return
			}
		}
		reply, driver := me.TakeReply(), s.driver
		me.Go(func(ctx context.Context) any {
			mount, err := driver.Mount(ctx, m.options)
			made := mountMade{m.options, mount, err, reply}
			me.LaterOr(made, func() {
				if err == nil {
					go closeMounts(me, []*mounted{{m.options, mount}})
				}
			})
			return nil
		})
	case mountMade:
		if m.err != nil {
			m.reply.Send(nil, m.err)
			return
		}
		s.mounts[m.options.Session] = append(s.mounts[m.options.Session], &mounted{m.options, m.mount})
		m.reply.Send(m.mount, nil)
	case unmount:
		old := s.mounts[m.session]
		delete(s.mounts, m.session)
		reply := me.TakeReply()
		me.Go(func(context.Context) any {
			closeMounts(me, old)
			reply.Send(nil, nil)
			return nil
		})
	case toolRun:
		s.run(me, m)
	case Stopped:
		for _, old := range s.mounts {
			closeMounts(me, old)
		}
	}
}

func closeMounts(me *Self, old []*mounted) {
	for _, m := range old {
		if err := m.mount.Close(); err != nil {
			me.Log().Warn("mount did not close cleanly", "session", m.options.Session, "err", err)
		}
	}
}

// run runs a tool call beside the actor; the call's context ends with the
// caller's and with the sandbox.
func (s *sandbox) run(me *Self, m toolRun) {
	me.Go(func(actorEnds context.Context) any {
		defer m.done()
		ctx, cancel := context.WithCancel(m.ctx)
		defer cancel()
		defer context.AfterFunc(actorEnds, cancel)()
		m.call(ctx, m.mount)
		return nil
	})
}

// place is a Workplace in a mount of a sandbox actor.
type place struct {
	ref   *Ref
	mount sandboxes.Mount
}

func (p place) Do(ctx context.Context, call func(context.Context, sandboxes.Mount), done func()) {
	p.ref.TellOr(toolRun{ctx, p.mount, call, done}, done)
}
