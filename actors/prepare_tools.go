package actors

import (
	"context"

	"codework/internal/prompt"
	"codework/internal/settings"
	"codework/internal/tools"
	"codework/messages"
	"codework/sandboxes"
)

// tools chooses the tools and writes the system prompt.
func (w *Workshop) tools(ctx context.Context, ex *Exchange, q ExchangeQuery, set *settings.Settings, mount sandboxes.Mount) error {
	plugins := builtinPlugins(set.Plugins)
	var chosen []tools.Tool
	var parts prompt.Parts
	for _, t := range tools.Builtin() {
		on := t.On
		if p, ok := plugins[t.Plugin]; ok && p.Enabled != nil {
			on = *p.Enabled
		}
		if !on {
			continue
		}
		if t.Name == "bash" {
			ex.BashLimit = plugins[t.Plugin].timeout()
		}
		chosen = append(chosen, t)
		parts.Tools = append(parts.Tools, prompt.Tool{Name: t.Name, Snippet: t.Snippet})
		parts.Rules = append(parts.Rules, t.Guidelines...)
	}
	var err error
	if ex.Tools, err = tools.NewSet(chosen...); err != nil {
		return &messages.Failure{Type: messages.FailStateSnapshot, Message: err.Error()}
	}
	if p := plugins["codework.prompt.instruction"]; p.Enabled == nil || *p.Enabled {
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
			parts.ProjectContext = []string{found.Text}
		}
	}
	if q.Session.AppendSystemPrompt != "" {
		parts.Addendum = []string{q.Session.AppendSystemPrompt}
	}
	parts.Rules = append(parts.Rules, prompt.StandingRules...)
	parts.Dir = mount.Dir()
	ex.System = prompt.Build(parts)
	return nil
}
