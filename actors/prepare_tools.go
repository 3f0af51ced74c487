package actors

import (
	"context"

	"codework/internal/prompt"
	"codework/internal/settings"
	"codework/internal/skills"
	"codework/internal/tools"
	"codework/messages"
	extension "codework/protocol/plugin"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// tools chooses the tools and writes the system prompt: first the plugins of
// the program, then the others in the order of the settings, those of kind
// tool before those of kind prompt.
func (w *Workshop) tools(ctx context.Context, ex *Exchange, q ExchangeQuery, set *settings.Settings, lookup credentials.Lookup, mount sandboxes.Mount) error {
	list, err := w.readPlugins(q, set, lookup)
	if err == nil {
		err = w.compose(ctx, ex, q, list, mount)
	}
	ex.Notices = append(ex.Notices, list.notices...)
	for _, t := range list.trouble {
		w.guardian.Tell(pluginTrouble{q.Session.ID, t})
	}
	return asPluginFailure(err)
}

func (w *Workshop) compose(ctx context.Context, ex *Exchange, q ExchangeQuery, list *pluginList, mount sandboxes.Mount) error {
	builtin := builtinPlugins(list.entries)
	parts := prompt.Parts{Dir: mount.Dir()}
	run := &pluginRun{w: w, q: q, ex: ex, mount: mount, id: messages.NewMessageID(), box: &toolbox{hooks: map[string][]pluginHook{}}, parts: &parts}
	for _, t := range tools.Builtin() {
		p := builtin[t.Plugin]
		if !p.on(t.On) {
			continue
		}
		if t.Name == "bash" {
			ex.BashLimit = p.timeout()
		}
		run.box.put(t)
	}
	held, err := w.startPlugins(ctx, q, list)
	if err != nil {
		return err
	}
	for _, h := range held {
		if err := run.setUp(ctx, h); err != nil {
			return err
		}
	}
	final := run.hooked()
	if !ex.Model.AcceptsTools() {
		final = nil
	}
	if ex.Tools, err = tools.NewSet(final...); err != nil {
		return &messages.Failure{Type: messages.FailStateSnapshot, Message: err.Error()}
	}
	for _, t := range final {
		parts.Tools = append(parts.Tools, prompt.Tool{Name: t.Name, Snippet: t.Snippet})
		parts.Rules = append(parts.Rules, t.Guidelines...)
	}
	if err := run.apply(extension.KindTool); err != nil {
		return err
	}
	if builtin["codework.prompt.default"].on(true) && parts.Foundation == "" {
		parts.Foundation = prompt.Default
	}
	if builtin["codework.prompt.instruction"].on(true) {
		where := prompt.Options{Home: w.Home}
		if w.onThisDisk(q.Session.SandboxID) {
			where.Host, where.Linked = true, q.Session.HostDir
		}
		found, err := prompt.ReadInstructions(ctx, mount, where)
		if err != nil {
			return &messages.Failure{Type: messages.FailSandboxFiles, Message: err.Error()}
		}
		ex.Notices = append(ex.Notices, found.Warnings...)
		if found.Text != "" {
			parts.ProjectContext = append(parts.ProjectContext, found.Text)
		}
	}
	home := ""
	if w.onThisDisk(q.Session.SandboxID) {
		home = w.Home // elsewhere its files cannot be read
	}
	known, warnings, err := skills.Find(ctx, mount, home)
	if err != nil {
		return err
	}
	ex.Notices = append(ex.Notices, warnings...)
	if text := skills.Section(known); text != "" {
		parts.Skills = append(parts.Skills, text)
	}
	if q.Session.AppendSystemPrompt != "" {
		parts.Addendum = append(parts.Addendum, q.Session.AppendSystemPrompt)
	}
	parts.Rules = append(parts.Rules, prompt.StandingRules...)
	if err := run.apply(extension.KindPrompt); err != nil {
		return err
	}
	ex.System = prompt.Build(parts)
	return nil
}
