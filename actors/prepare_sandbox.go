package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"codework/internal/settings"
	"codework/messages"
	"codework/providers/credentials"
	"codework/sandboxes"
)

func (w *Workshop) mount(ctx context.Context, q ExchangeQuery, set *settings.Settings, lookup credentials.Lookup) (place, error) {
	if key := beyondHost(set.Sandbox, q.Session.SandboxID); key != "" {
		return place{}, &messages.Failure{Type: messages.FailSandboxMount,
			Message: "the settings ask for " + key + ", which the host, the only sandbox of this version, cannot give",
			Hint:    "take it out of the settings to let commands run on this machine without confinement"}
	}
	env := maps.Clone(set.Sandbox.Set)
	for name, value := range env {
		v, err := credentials.Expand("sandbox.env.set."+name, value, lookup)
		if err != nil {
			return place{}, err
		}
		env[name] = v
	}
	o := sandboxes.MountOptions{
		Session: q.Session.ID, Dir: q.Session.Directory, Umask: -1,
		Pass: set.Sandbox.Pass, Set: env, Withhold: credentials.EnvNames(set.Models),
	}
	if q.World != nil {
		o.Caller, o.Umask = q.World.Env, q.World.Umask
	}
	p, err := Ask[place](ctx, w.guardian, o)
	if err == nil {
		return p, nil
	}
	f := &messages.Failure{Type: messages.FailSandboxMount, Message: err.Error()}
	var missing *messages.DirectoryNotFound
	var odd *messages.NotDirectory
	if errors.As(err, &missing) || errors.As(err, &odd) {
		f.Type = messages.FailSandboxDirectory
		f.Hint = "the session works in that directory: make it again, or start a new session"
	}
	return place{}, f
}

// beyondHost names what the settings ask of a sandbox that the host does not
// have: a promise of confinement is kept or refused, never forgotten. A
// session that was made for the host by name does not ask the settings which
// driver to take.
func beyondHost(s settings.Sandbox, made string) string {
	n := s.Network
	switch {
	case s.Driver != "local" && made != messages.LocalSandbox:
		return fmt.Sprintf("the sandbox driver %q", s.Driver)
	case n.None || n.Addresses != nil:
		return "sandbox.network"
	case s.Limits != settings.Limits{}:
		return "sandbox.limits"
	}
	return ""
}
