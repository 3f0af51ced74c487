package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"codework/internal/settings"
	"codework/internal/traces"
	"codework/messages"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// mount opens the session's place in its sandbox.
func (w *Workshop) mount(ctx context.Context, q ExchangeQuery, set *settings.Settings, lookup credentials.Lookup) (place, error) {
	if key := beyondHost(set.Sandbox, q.Session.SandboxID); key != "" {
		return place{}, &messages.Failure{Type: messages.FailSandboxMount,
			Message: "the settings ask for " + key + ", which this session does not have: it works on the host",
			Hint:    "start a new session, or take it out of the settings to let commands run on this machine without confinement"}
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
		Pass: set.Sandbox.Pass, Set: env, Withhold: append(credentials.EnvNames(set.Models), traces.SecretVariables...),
	}
	// What a caller's environment says is true on this machine only.
	if q.World != nil && w.onThisDisk(q.Session.SandboxID) {
		o.Caller, o.Umask = q.World.Env, q.World.Umask
	}
	over := traces.Part(ctx, "sandbox.mount", "codework.sandbox.driver", w.shelf.driver(q.Session.SandboxID))
	p, err := Ask[place](ctx, w.guardian, toBox{q.Session.SandboxID, mountFor{o, lookup}})
	if err != nil {
		err = mountFailure(err)
	}
	over(err)
	return p, err
}

// onThisDisk tells whether a sandbox has the files of this machine, by their
// names.
func (w *Workshop) onThisDisk(id string) bool { return w.shelf.kind(id) == messages.KindLocal }

// mountFailure is why an exchange has no place to work in.
func mountFailure(err error) error {
	var refused *messages.Refused
	if errors.As(err, &refused) {
		return err
	}
	f := &messages.Failure{Type: messages.FailSandboxMount, Message: err.Error()}
	var missing *messages.DirectoryNotFound
	var odd *messages.NotDirectory
	var gone *messages.SandboxUnavailable
	var removed *messages.SandboxRemoved
	var noDriver *messages.SandboxDriverNotRegistered
	switch {
	case errors.As(err, &missing), errors.As(err, &odd):
		f.Type = messages.FailSandboxDirectory
		f.Hint = "the session works in that directory: make it again, or start a new session"
	case errors.As(err, &gone), errors.As(err, &removed):
		f.Hint = "see: codework sandbox list; a session of a sandbox that is gone cannot go on: start a new one"
	case errors.As(err, &noDriver):
		f.Hint = "drivers here: " + strings.Join(noDriver.Registered, ", ")
	}
	return f
}

// beyondHost names what the settings ask of a sandbox that the host does not
// have: a promise of confinement is kept or refused, never forgotten. A session
// of which nobody has decided where it works, because its settings could not be
// read, works on the host only if they say so.
func beyondHost(s settings.Sandbox, id string) string {
	n := s.Network
	switch {
	case !messages.IsHost(id):
		return ""
	case s.Driver != messages.LocalSandbox && id == "":
		return fmt.Sprintf("the sandbox driver %q", s.Driver)
	case n.None || n.Addresses != nil:
		return "sandbox.network"
	case s.Limits != settings.Limits{}:
		return "sandbox.limits"
	}
	return ""
}
