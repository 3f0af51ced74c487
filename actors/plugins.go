package actors

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"codework/internal/plugin"
	"codework/messages"
	extension "codework/protocol/plugin"
)

// plugins knows the processes of plugins that run, one actor each, and
// restarts all of them or none when it is asked to.
type plugins struct {
	host      *plugin.Host
	pace      pluginPace
	publish   func([]messages.Event)
	slots     map[string]*pluginSlot // by key
	ending    []*pluginSlot          // of sessions that were left, until their processes have ended
	reloading bool
	reloads   []Reply // of those who wait for the reload under way
}

// pluginSlot is a plugin that runs, or may.
type pluginSlot struct {
	ref     *Ref
	session string // "" when sessions share it
}

type (
	// pluginFor asks for the actor of a program. The answer is its *Ref.
	// Programs with equal keys are the same one.
	pluginFor struct {
		program plugin.Program
		key     string
		session string // the only session that it is for, or ""
	}
	// endPlugins ends what was started for one session only, leftPlugins is
	// answered when that has ended.
	endPlugins  struct{ session string }
	leftPlugins struct{ session string }
	// pluginRests is said by a plugin that nobody has used for long.
	pluginRests struct {
		key string
		ref *Ref
	}
	// reloadPlugins restarts all plugins. It is answered with a
	// messages.PluginsReloaded.
	reloadPlugins struct{}
	reloaded      struct{ answer messages.PluginsReloaded }
	// pluginTrouble tells listeners of a plugin that cannot even be started.
	pluginTrouble struct {
		session string
		err     *plugin.Error
	}
	// pluginNotice tells those who follow a session something about a plugin.
	pluginNotice struct{ session, text string }
)

func newPlugins(opt plugin.Options, pace pluginPace, publish func([]messages.Event)) func() Actor {
	opt.Publish = func(e extension.Event) { publish([]messages.Event{pluginEvent(e)}) }
	host := plugin.NewHost(opt)
	return func() Actor {
		return &plugins{host: host, pace: pace, publish: publish, slots: map[string]*pluginSlot{}}
	}
}

func (p *plugins) Receive(me *Self, m any) {
	switch m := m.(type) {
	case pluginFor:
		s := p.slots[m.key]
		if s == nil {
			s = &pluginSlot{me.Spawn(newPlugin(p.host, p.pace, m, p.publish, me.Ref())).Named(cmp.Or(m.program.ID, m.program.Reference)), m.session}
			p.slots[m.key] = s
		}
		me.Answer(s.ref, nil)
	case pluginRests:
		if s := p.slots[m.key]; s != nil && s.ref == m.ref {
			delete(p.slots, m.key)
			s.ref.Stop()
		}
	case endPlugins:
		for key, s := range p.slots {
			if s.session == m.session {
				delete(p.slots, key)
				s.ref.Stop()
				p.ending = append(p.ending, s)
			}
		}
	case leftPlugins:
		reply, ending := me.TakeReply(), slices.Clone(p.ending)
		me.Go(func(context.Context) any {
			for _, s := range ending {
				if s.session == m.session {
					<-s.ref.Done()
				}
			}
			reply.Send(nil, nil)
			return nil
		})
	case Ended:
		p.ending = slices.DeleteFunc(p.ending, func(s *pluginSlot) bool { return s.ref == m.Child })
		for key, s := range p.slots {
			if s.ref == m.Child {
				delete(p.slots, key)
			}
		}
	case reloadPlugins:
		p.reloads = append(p.reloads, me.TakeReply())
		if !p.reloading {
			p.reloading = true
			p.reload(me)
		}
	case reloaded:
		p.reloading = false
		for _, r := range p.reloads {
			r.Send(m.answer, nil)
		}
		p.reloads = nil
	case pluginNotice:
		p.publish([]messages.Event{liveEvent(messages.EventNotice, m.session, messages.EventData{
			Timestamp: time.Now().UnixMilli(), SessionID: m.session, Severity: "warning", Text: m.text})})
	case pluginTrouble:
		p.publish([]messages.Event{pluginUpdate(messages.PluginFailed, m.err, m.session)})
	}
}

// reload has every plugin start anew beside the process it has. Only if all of
// them can, they change over.
func (p *plugins) reload(me *Self) {
	var asked []func(context.Context) (any, error)
	var refs []*Ref
	for _, s := range p.slots {
		refs = append(refs, s.ref)
		asked = append(asked, s.ref.request(startAgain{}))
	}
	me.Go(func(ctx context.Context) any {
		answer := messages.PluginsReloaded{Plugins: builtinsInUse()}
		for _, wait := range asked {
			v, err := wait(ctx)
			if again, ok := v.(startedAgain); ok && again.runs {
				answer.Plugins++
			}
			if err != nil && answer.Failure == "" {
				answer.Failure = err.Error()
			}
		}
		for _, ref := range refs {
			ref.Tell(changeOver{keep: answer.Failure == ""})
		}
		return reloaded{answer}
	})
}

// pluginEvent is a plugin's event as listeners get it. It has no place in a
// session's log, and so is behind everything that is there.
func pluginEvent(e extension.Event) messages.Event {
	data := map[string]json.RawMessage{}
	if len(e.Data) > 0 && json.Unmarshal(e.Data, &data) != nil {
		data = map[string]json.RawMessage{} // the host has checked that it is an object
	}
	if _, ok := data["timestamp"]; !ok {
		data["timestamp"], _ = json.Marshal(time.Now().UnixMilli()) // a number has a JSON form
	}
	delete(data, "sessionId")
	if e.SessionID != "" {
		data["sessionId"], _ = json.Marshal(e.SessionID) // so has a string
	}
	return liveEvent(e.Type, e.SessionID, data)
}

// pluginUpdate tells what became of a plugin.
func pluginUpdate(status messages.PluginStatus, about *plugin.Error, session string) messages.Event {
	u := messages.PluginUpdate{Status: status, Reference: about.Reference, ID: about.ID, File: about.File, SessionID: session}
	if status == messages.PluginFailed {
		u.Error = about.Error()
	}
	return liveEvent(messages.EventPluginUpdated, session, u)
}

func liveEvent(kind, session string, data any) messages.Event {
	b, err := messages.JSON(data)
	if err != nil {
		panic(err) // maps and structs of JSON values and strings
	}
	return messages.Event{ID: messages.NewEventID(), Type: kind, Session: session, After: math.MaxInt64, Data: b}
}
