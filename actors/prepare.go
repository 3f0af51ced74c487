package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"codework/internal/prompt"
	"codework/internal/settings"
	"codework/internal/tools"
	"codework/messages"
	"codework/providers"
	"codework/providers/catalog"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// Workshop captures exchanges from what is on disk: settings, catalog,
// credentials, instruction files. It is used by any number of sessions at
// once and holds nothing between calls.
type Workshop struct {
	Home        string // folder of settings, credentials and the user's AGENTS.md
	Catalog     *catalog.Catalog
	Credentials string // the file of stored logins
	Trust       *settings.Trust
	// Speaks tells which protocols there is a dialect for.
	Speaks func(messages.Protocol) bool

	guardian *Ref // opens connections and mounts
}

// Prepare reads everything anew and opens what the exchange needs. Errors are
// *messages.Failure, or what the sandbox says.
func (w *Workshop) Prepare(ctx context.Context, q ExchangeQuery) (*Exchange, error) {
	lookup := lookupIn(q.World)
	set, err := w.settings(q)
	if err != nil {
		return nil, err
	}
	ex := &Exchange{
		Retry:      Retry{Max: set.Retry.MaxRetries, Base: set.Retry.BaseDelay, MaxDelay: set.Retry.MaxDelay},
		Background: set.Sandbox.Background == settings.BackgroundServer,
	}
	for _, n := range set.Warnings {
		ex.Notices = append(ex.Notices, n.Text)
	}
	ex.Notices = append(ex.Notices, otherPlugins(set.Plugins)...)
	if err := w.model(ctx, ex, q, set, lookup); err != nil {
		return nil, err
	}
	mount, err := w.mount(ctx, q, set, lookup)
	if err != nil {
		return nil, err
	}
	ex.Workplace = mount
	return ex, w.tools(ctx, ex, q, set, mount.mount)
}

func (w *Workshop) settings(q ExchangeQuery) (*settings.Settings, error) {
	src := settings.Source{Home: w.Home, HostDir: q.Session.HostDir, Trusted: w.Trust.Trusted}
	if q.World != nil {
		src.UserConfigDir = q.World.UserConfigDir
	}
	set, err := settings.Load(src)
	var bad *settings.Error
	if errors.As(err, &bad) {
		return nil, bad.Failure()
	}
	return set, err
}

// model decides which model answers, how, and over which connection.
func (w *Workshop) model(ctx context.Context, ex *Exchange, q ExchangeQuery, set *settings.Settings, lookup credentials.Lookup) error {
	ref := messages.ModelRef{Provider: set.Model.Provider, ID: set.Model.ID}
	if own := q.Session.Runtime.Model; own != nil {
		ref = *own
	}
	m, err := w.Catalog.Lookup(ref, set.Models)
	if err != nil {
		return err
	}
	if !w.Speaks(m.Protocol) {
		return &messages.Failure{Type: messages.FailConfiguration,
			Message: fmt.Sprintf("%s speaks the protocol %s, which this version does not", ref, m.Protocol),
			Hint: "choose another with --model provider/id, or for good in settings.jsonc (model.provider, model.id); " +
				"codework models lists those that work; without a key: --model offline/guide"}
	}
	block := set.Options(ref.Provider, ref.ID)
	if block.BaseURL != "" {
		m.BaseURL, m.API = block.BaseURL, nil
	}
	if block.ContextWindow > 0 {
		m.ContextWindow = block.ContextWindow
	}
	key, _, failure := credentials.Resolve(m, block.APIKey, lookup, w.Credentials)
	if failure != nil {
		failure.Model = ref.String()
		return failure
	}
	level := block.ThinkingLevel
	if own := q.Session.Runtime.ThinkingLevel; own != "" {
		level = own
	}
	retention := block.CacheRetention
	if retention == "" {
		if v, ok := lookup("CODEWORK_CACHE_RETENTION"); ok {
			retention = messages.CacheRetention(v)
		}
	}
	headers := map[string]string{}
	for _, from := range []map[string]string{m.Headers, block.Headers} {
		for name, value := range from {
			v, err := credentials.Expand("headers."+name, value, lookup)
			if err != nil {
				return err
			}
			headers[name] = v
		}
	}
	m.Headers = nil
	ex.Model, ex.APIKey = m, key
	ex.Thinking = providers.FitThinking(m, level)
	ex.Parallel = block.ToolExecution == settings.Parallel
	ex.Options = messages.RequestOptions{
		Temperature: block.Temperature, MaxTokens: block.MaxTokens, Timeout: block.Timeout, IdleTimeout: block.IdleTimeout, HTTPRetries: block.MaxRetries,
		CacheRetention: retention, Headers: headers, Metadata: block.Metadata, ThinkingBudgets: block.ThinkingBudgets, Extra: block.Extra,
	}
	c := connectionTo{protocol: m.Protocol, baseURL: m.BaseURL, provider: m.Provider.ID, credential: digest(key)}
	for i, name := range networkVariables {
		c.network[i], _ = lookup(name)
	}
	conn, err := Ask[*connectionSlot](ctx, w.guardian, c)
	if err != nil {
		return err
	}
	ex.Streamer = connection{conn, ex.Retry.MaxDelay}
	return nil
}

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
		found, err := prompt.ReadInstructions(ctx, mount, prompt.Options{Home: w.Home, Host: true, Linked: q.Session.HostDir})
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

// lookupIn looks a variable up in the caller's environment first and in the
// process's own after that.
func lookupIn(w *messages.World) credentials.Lookup {
	return func(name string) (string, bool) {
		if v, ok := w.Lookup(name); ok {
			return v, true
		}
		return os.LookupEnv(name)
	}
}

// secrets are the values that must not show up in what is logged or stored.
func (ex *Exchange) secrets() []string {
	s := []string{ex.APIKey}
	for name, v := range ex.Options.Headers {
		if n := strings.ToLower(name); strings.Contains(n, "auth") || strings.Contains(n, "key") || strings.Contains(n, "token") {
			s = append(s, v)
		}
	}
	return slices.DeleteFunc(s, func(v string) bool { return len(v) < minSecret })
}

// redact masks the exchange's secrets in a failure, by value: a provider may
// repeat them in its answer.
func (ex *Exchange) redact(f *messages.Failure) *messages.Failure {
	clean := *f
	for _, s := range ex.secrets() {
		clean.Message = strings.ReplaceAll(clean.Message, s, "<redacted>")
		clean.Code = strings.ReplaceAll(clean.Code, s, "<redacted>")
		clean.Hint = strings.ReplaceAll(clean.Hint, s, "<redacted>")
	}
	return &clean
}

// minSecret is the shortest value that is masked: shorter ones would blank
// out ordinary words.
const minSecret = 8

// Models lists the models of the catalog and of the user's settings, with
// whether there is a key for them.
func (w *Workshop) Models(_ context.Context, provider string, world *messages.World) ([]messages.ModelInfo, error) {
	set, err := w.settings(ExchangeQuery{World: world})
	if err != nil {
		return nil, err
	}
	list, err := w.Catalog.List(provider, set.Models)
	if err != nil {
		return nil, err
	}
	lookup, available := lookupIn(world), map[string]bool{}
	infos := make([]messages.ModelInfo, 0, len(list))
	for _, m := range list {
		who := m.Provider.ID + " " + m.Provider.Key + " " + strings.Join(m.Provider.Env, " ")
		has, known := available[who]
		if !known {
			_, _, failure := credentials.Resolve(m, "", lookup, w.Credentials)
			has = failure == nil
			available[who] = has
		}
		infos = append(infos, messages.ModelInfo{Provider: m.Provider.ID, ID: m.ID, Name: m.Name, Reasoning: m.Reasoning, Input: m.Input,
			ContextWindow: m.ContextWindow, MaxTokens: m.MaxTokens, Cost: m.Cost, Available: has && w.Speaks(m.Protocol)})
	}
	return infos, nil
}
