package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"codework/internal/plugin"
	"codework/internal/prompt"
	"codework/internal/settings"
	"codework/internal/tools"
	"codework/messages"
	extension "codework/protocol/plugin"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// pluginList is what the entries of the settings come to, in order.
type pluginList struct {
	entries  []plugin.Entry
	programs []plugin.Program // those that are not switched off
	notices  []string
	trouble  []*plugin.Error
}

// pluginConfig is what the settings say of one plugin.
type pluginConfig struct {
	enabled bool
	options json.RawMessage
}

// config is what the entries say of a plugin: of several, the last "enabled"
// and the last "options" win.
func (l *pluginList) config(p plugin.Program) pluginConfig {
	c := pluginConfig{enabled: !p.OptIn, options: p.Options}
	if p.Enabled != nil {
		c.enabled = *p.Enabled
	}
	for _, e := range l.entries {
		if e.Plugin != "" && e.Plugin != p.ID || e.Package != "" && !slices.Contains(p.Names, e.Package) || !e.Configures() {
			continue
		}
		if e.Enabled != nil {
			c.enabled = *e.Enabled
		}
		if e.Options != nil {
			c.options = e.Options
		}
	}
	return c
}

// off tells whether a module that is not there is switched off.
func (l *pluginList) off(e plugin.Entry) bool {
	p := plugin.Program{Names: []string{e.Spec}}
	if plugin.IsLocal(e.Spec) {
		if path, err := plugin.LocalPath(e); err == nil {
			p.Names = append(p.Names, path)
		}
	}
	return !l.config(p).enabled
}

// readPlugins reads the entries and finds the programs behind them. An entry
// that makes no sense, or a module that is not there, is an error: what a
// session is to be kept from may be in it.
func (w *Workshop) readPlugins(q ExchangeQuery, set *settings.Settings, lookup credentials.Lookup) (*pluginList, error) {
	l := &pluginList{}
	for _, p := range set.Plugins {
		e, err := plugin.ParseEntry(p)
		if err != nil {
			return l, err
		}
		l.entries = append(l.entries, e)
	}
	env := os.Environ()
	if q.World != nil && q.World.Env != nil {
		env = q.World.Env
	}
	base := plugin.Base(env)
	add := func(p plugin.Program) error {
		p.Base = base
		if err := w.complete(&p, q, lookup); err != nil {
			return err
		}
		l.programs = slices.DeleteFunc(l.programs, func(old plugin.Program) bool {
			again := old.ID == p.ID && p.ID != ""
			if again && old.Reference != p.Reference {
				l.notices = append(l.notices, fmt.Sprintf("two plugin entries are called %s; the last one counts: %s", p.ID, p.Reference))
			}
			return again || old.ID == "" && old.Reference == p.Reference
		})
		l.programs = append(l.programs, p)
		return nil
	}
	for _, e := range l.entries {
		if e.Configures() {
			continue
		}
		p := e.Program()
		if e.Module() {
			resolve := w.Plugins
			if resolve == nil {
				resolve = plugin.Local
			}
			var err error
			if p, err = resolve(e); err != nil {
				if l.off(e) {
					continue
				}
				return l, err
			}
		}
		if err := add(p); err != nil {
			if e.Module() {
				return l, err
			}
			l.leaveOut(err)
		}
	}
	if q.World != nil {
		for _, s := range q.World.MCPServers {
			if err := add(plugin.OfEditor(s)); err != nil {
				l.leaveOut(err)
			}
		}
	}
	kept := l.programs[:0]
	for _, p := range l.programs {
		c := l.config(p)
		if !c.enabled {
			continue // what has no id yet is asked for it, and may still be off
		}
		if p.Options = c.options; len(p.Options) > 0 {
			p.Env = maps.Clone(p.Env)
			if p.Env == nil {
				p.Env = map[string]string{}
			}
			p.Env[plugin.OptionsVariable] = string(p.Options)
		}
		kept = append(kept, p)
	}
	l.programs = kept
	return l, nil
}

func (l *pluginList) leaveOut(err error) {
	var known *plugin.Error
	if errors.As(err, &known) {
		l.trouble = append(l.trouble, known)
	}
	l.notices = append(l.notices, noticeOf(err))
}

// noticeOf is what a person hears of a plugin that sessions go on without.
func noticeOf(err error) string {
	var known *plugin.Error
	if !errors.As(err, &known) {
		return "a plugin is left out: " + err.Error()
	}
	text := known.Error() + "; it is left out"
	if known.Hint != "" {
		text += "; " + known.Hint
	}
	return text
}

// complete fills in what a program gets of the session and its caller.
func (w *Workshop) complete(p *plugin.Program, q ExchangeQuery, lookup credentials.Lookup) error {
	for _, m := range []struct {
		name   string
		values *map[string]string
	}{{"env", &p.Env}, {"headers", &p.Headers}} {
		full := maps.Clone(*m.values)
		for name, value := range full {
			v, err := credentials.Expand(m.name+"."+name, value, lookup)
			if err != nil {
				return &plugin.Error{Slug: plugin.StartFailed, Reference: p.Reference, File: p.File, ID: p.ID, Detail: err.Error()}
			}
			if v != value || m.name == "headers" {
				p.Secrets = append(p.Secrets, v)
			}
			full[name] = v
		}
		*m.values = full
	}
	if p.Dir == "" {
		if p.Dir = q.Session.HostDir; p.Dir == "" {
			p.Dir = w.Home
		}
	}
	if p.URL != "" {
		var c connectionTo
		for i, name := range networkVariables {
			c.network[i], _ = lookup(name)
		}
		client, err := w.clients.get(c)
		if err != nil {
			return &plugin.Error{Slug: plugin.StartFailed, Reference: p.Reference, File: p.File, ID: p.ID, Detail: err.Error()}
		}
		p.Client = client
	}
	return nil
}

// networkClients are the HTTP clients for servers that plugins entries name,
// by what the caller's environment says of the network.
type networkClients struct {
	mu   sync.Mutex // guards made
	made map[connectionTo]*http.Client
}

func (n *networkClients) get(c connectionTo) (*http.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if have := n.made[c]; have != nil {
		return have, nil
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	if n.made == nil {
		n.made = map[connectionTo]*http.Client{}
	}
	n.made[c] = client
	return client, nil
}

// heldPlugin is a plugin in the hands of an exchange.
type heldPlugin struct {
	program plugin.Program
	id      string
	kind    extension.Kind
	plain   bool
	options json.RawMessage
	tools   []plugin.Tool
	says    string // its words for the system prompt

	ref  *Ref
	ends context.Context
	turn chan struct{} // holds one: whoever has it may touch the following
	inst *plugin.Instance
	// told is what the plugin's setup was told; nil before that. Each process
	// is told it once: a guard may keep there what it is to refuse.
	told *extension.Setup
}

// get is the plugin's process: the one that the exchange began with, or the
// one that came after it had ended, set up as the first was.
func (h *heldPlugin) get(ctx context.Context) (*plugin.Instance, error) {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if h.inst != nil && h.inst.Alive() {
		return h.inst, nil
	}
	inst, err := Ask[*plugin.Instance](ctx, h.ref, usePlugin{h.ends})
	if err != nil {
		return nil, err
	}
	if h.id != "" && (inst.ID != h.id || inst.Declared == nil != h.plain) {
		return nil, h.invalid("it was started again as something else")
	}
	if h.told != nil {
		// What it answers changes nothing: the tools and the prompt are fixed.
		if _, err := inst.Setup(ctx, *h.told); err != nil {
			return nil, h.setupFailed(err)
		}
	}
	h.inst = inst
	return inst, nil
}

func (h *heldPlugin) setupFailed(err error) error {
	return &plugin.Error{Slug: plugin.StartFailed, ID: h.id, Reference: h.program.Reference, File: h.program.File, Detail: "its setup failed: " + err.Error(), Required: true}
}

// setUp tells the plugin of the exchange.
func (h *heldPlugin) setUp(ctx context.Context, told extension.Setup) (extension.Declaration, extension.Plan, error) {
	inst, err := h.get(ctx)
	if err != nil {
		return extension.Declaration{}, extension.Plan{}, err
	}
	plan, err := inst.Setup(ctx, told)
	if err != nil {
		if ctx.Err() == nil {
			err = h.setupFailed(err)
		}
		return extension.Declaration{}, extension.Plan{}, err
	}
	h.told = &told // no call has begun that could look at it
	return *inst.Declared, plan, nil
}

// startPlugins starts what is not running yet, side by side, and gives the
// plugins in the order in which they are set up.
func (w *Workshop) startPlugins(ctx context.Context, q ExchangeQuery, l *pluginList) ([]*heldPlugin, error) {
	ends := q.Ends
	if ends == nil {
		ends = ctx
	}
	found, errs := make([]*heldPlugin, len(l.programs)), make([]error, len(l.programs))
	var wg sync.WaitGroup
	for i, p := range l.programs {
		wg.Go(func() { found[i], errs[i] = w.startPlugin(ctx, ends, q, p) })
	}
	wg.Wait()
	var held []*heldPlugin
	for i, h := range found {
		if err := errs[i]; err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			var known *plugin.Error
			if l.programs[i].Module || errors.As(err, &known) && known.Required {
				return nil, err
			}
			l.notices = append(l.notices, noticeOf(err))
			continue
		}
		p := l.programs[i]
		p.ID, p.OptIn = h.id, p.OptIn || h.inst.Declared != nil && h.inst.Declared.OptIn
		c := l.config(p)
		if !c.enabled {
			continue
		}
		h.options = c.options
		held = append(held, h)
	}
	slices.SortStableFunc(held, func(a, b *heldPlugin) int {
		rank := map[extension.Kind]int{extension.KindTool: 0, extension.KindPrompt: 1}
		return rank[a.kind] - rank[b.kind]
	})
	return held, nil
}

func (w *Workshop) startPlugin(ctx, ends context.Context, q ExchangeQuery, p plugin.Program) (*heldPlugin, error) {
	f := pluginFor{program: p, key: p.Key(q.Session.HostDir)}
	if p.OfEditor {
		f.session = q.Session.ID
		f.key += " " + f.session
	}
	ref, err := Ask[*Ref](ctx, w.guardian, f)
	if err != nil {
		return nil, err
	}
	h := &heldPlugin{program: p, ref: ref, ends: ends, turn: make(chan struct{}, 1)}
	inst, err := h.get(ctx)
	if err != nil {
		return nil, err
	}
	if h.tools, err = inst.Tools(ctx); err != nil {
		return nil, err
	}
	h.id, h.kind, h.plain, h.says = inst.ID, inst.Kind, inst.Declared == nil, inst.Instructions
	return h, nil
}

// toolbox is what tools an exchange has, in order, while they are collected.
type toolbox struct {
	list  []tools.Tool
	hooks map[string][]pluginHook // by tool
}

type pluginHook struct {
	by            *heldPlugin
	before, after bool
}

func (b *toolbox) find(name string) *tools.Tool {
	for i := range b.list {
		if b.list[i].Name == name {
			return &b.list[i]
		}
	}
	return nil
}

// put adds a tool; one of the same name is replaced in its place.
func (b *toolbox) put(t tools.Tool) {
	if old := b.find(t.Name); old != nil {
		*old = t
		return
	}
	b.list = append(b.list, t)
}

func (b *toolbox) infos() []extension.ToolInfo {
	out := make([]extension.ToolInfo, 0, len(b.list))
	for _, t := range b.list {
		out = append(out, extension.ToolInfo{Name: t.Name, Plugin: t.Plugin, Label: t.Label, Description: t.Description})
	}
	return out
}

// pluginRun is what the plugins of one exchange are set up with.
type pluginRun struct {
	w     *Workshop
	q     ExchangeQuery
	ex    *Exchange
	mount sandboxes.Mount
	id    string // of the exchange
	box   *toolbox
	parts *prompt.Parts
	plans []promptPlan
}

// promptPlan is what a plugin does to the system prompt. It is done when all
// tools are known, since the rules begin with theirs.
type promptPlan struct {
	by         *heldPlugin
	foundation string
	changes    []prompt.Change
}

// setUp adds what a plugin brings: its tools, and what it says about the
// exchange.
func (r *pluginRun) setUp(ctx context.Context, h *heldPlugin) error {
	if h.plain {
		for _, t := range h.tools {
			name := plugin.WireName(h.id, t.Name, func(n string) bool { return r.box.find(n) != nil })
			r.box.put(r.tool(h, t, name))
		}
		r.plans = append(r.plans, promptPlan{by: h, changes: h.instructions()})
		return nil
	}
	invalid := h.invalid
	for _, t := range h.tools {
		if !plugin.ValidToolName(t.Name) {
			return invalid("the tool name %.80q has more than 64 letters, or others than A-Z, a-z, 0-9, _ and -", t.Name)
		}
		r.box.put(r.tool(h, t, t.Name))
	}
	may, plan, err := h.setUp(ctx, extension.Setup{
		SessionID: r.q.Session.ID, ExchangeID: r.id, Options: h.options,
		Model:    extension.Model{Provider: r.ex.Model.Provider.ID, ID: r.ex.Model.ID},
		Location: extension.Location{Directory: r.mount.Dir(), Host: r.q.Session.HostDir},
		Sandbox:  extension.Sandbox{ID: sandboxOf(r.q.Session)}, Tools: r.box.infos(),
	})
	if err != nil {
		return err
	}
	for _, p := range plan.Tools {
		t := r.box.find(p.Name)
		if t == nil || t.Plugin != h.id {
			return invalid("its setup names the tool %.80q, which is not its own", p.Name)
		}
		if p.Enabled != nil && !*p.Enabled {
			r.box.list = slices.DeleteFunc(r.box.list, func(t tools.Tool) bool { return t.Name == p.Name })
			continue
		}
		if p.Label != "" {
			t.Label = p.Label
		}
		t.Snippet, t.Guidelines = p.Snippet, p.Guidelines
	}
	for _, p := range plan.Patches {
		if t := r.box.find(p.Tool); t != nil {
			patchTool(t, p)
		}
	}
	for _, k := range plan.Hooks {
		if !may.Hooks {
			return invalid("it has a hook, but did not declare hooks")
		}
		r.box.hooks[k.Tool] = append(r.box.hooks[k.Tool], pluginHook{h, k.Before, k.After})
	}
	if !may.Prompt && (len(plan.Sections) > 0 || plan.Foundation != "") {
		return invalid("it changes the system prompt, but did not declare prompt")
	}
	does := promptPlan{by: h, foundation: plan.Foundation}
	for _, s := range plan.Sections {
		does.changes = append(does.changes, prompt.Change{Name: s.Name, Format: prompt.Format(s.Format), Op: prompt.Op(s.Op), Entries: s.Entries})
	}
	does.changes = append(does.changes, h.instructions()...)
	r.plans = append(r.plans, does)
	return nil
}

// apply does what the plugins of a kind do to the system prompt.
func (r *pluginRun) apply(kind extension.Kind) error {
	for _, p := range r.plans {
		if p.by.kind != kind {
			continue
		}
		if p.foundation != "" {
			r.parts.Foundation = p.foundation
		}
		for _, c := range p.changes {
			if err := r.parts.Apply(c); err != nil {
				return p.by.invalid("%v", err)
			}
		}
	}
	return nil
}

// invalid is what is wrong with an answer of the plugin.
func (h *heldPlugin) invalid(format string, args ...any) error {
	return &plugin.Error{Slug: plugin.InvalidDefinition, ID: h.id, Reference: h.program.Reference, File: h.program.File, Detail: fmt.Sprintf(format, args...), Required: true}
}

func sandboxOf(s messages.SessionRecord) string {
	if s.SandboxID == "" {
		return messages.LocalSandbox
	}
	return s.SandboxID
}

func patchTool(t *tools.Tool, p extension.ToolPatch) {
	set := func(to, from *string) {
		if from != nil {
			*to = *from
		}
	}
	set(&t.Description, p.Description)
	set(&t.Label, p.Label)
	set(&t.Snippet, p.Snippet)
	if p.Guidelines != nil {
		t.Guidelines = *p.Guidelines
	}
}

// maxInstructions bounds what a server adds to every request by its words.
const maxInstructions = 8 << 10

// instructions puts a server's words into a section of its own.
func (h *heldPlugin) instructions() []prompt.Change {
	text := strings.TrimSpace(h.says)
	if text == "" {
		return nil
	}
	if len(text) > maxInstructions {
		text = strings.ToValidUTF8(text[:maxInstructions], "") + "…"
	}
	name := h.id[strings.LastIndexByte(h.id, '.')+1:]
	if slices.Contains(prompt.Sections, name) {
		name = "plugin-" + name // a server must not write into rules or skills
	}
	return []prompt.Change{{Name: name, Op: prompt.Append, Entries: []string{text}}}
}

// tool is a plugin's tool as the session calls it.
func (r *pluginRun) tool(h *heldPlugin, t plugin.Tool, name string) tools.Tool {
	out, own := t.Tool, t.Name
	out.Name, out.Plugin = name, h.id
	session, dir := r.q.Session.ID, r.mount.Dir()
	out.Run = func(ctx context.Context, c tools.Context, args json.RawMessage) (messages.ToolResult, error) {
		inst, err := h.get(ctx)
		if err != nil {
			return messages.ToolResult{}, err
		}
		return inst.Call(ctx, plugin.Call{SessionID: session, ID: c.CallID, Directory: dir, Tool: own, Arguments: args,
			Images: c.Images, Mount: c.Mount, Progress: c.Progress})
	}
	return out
}

// hooked is the tools with the hooks around them.
func (r *pluginRun) hooked() []tools.Tool {
	out := slices.Clone(r.box.list)
	for i := range out {
		var before, after []*heldPlugin
		for _, k := range r.box.hooks[out[i].Name] {
			if k.before {
				before = append(before, k.by)
			}
			if k.after {
				after = append(after, k.by)
			}
		}
		if len(before) > 0 {
			out[i].Before = r.before(before)
		}
		if len(after) > 0 {
			out[i].After = r.after(after)
		}
	}
	return out
}

func (r *pluginRun) call(c tools.Call) extension.Before {
	return extension.Before{SessionID: r.q.Session.ID, MessageID: c.MessageID, CallID: c.ID, Tool: c.Name, Arguments: c.Args}
}

// before asks the plugins in order; the first that refuses decides. One that
// cannot be asked is a refusal too.
func (r *pluginRun) before(hooks []*heldPlugin) func(context.Context, tools.Call) (*tools.Verdict, error) {
	return func(ctx context.Context, c tools.Call) (*tools.Verdict, error) {
		for _, h := range hooks {
			inst, err := h.get(ctx)
			if err != nil {
				return nil, err
			}
			v, err := inst.Before(ctx, r.call(c), r.mount)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", h.id, err)
			}
			if v.Block {
				return &tools.Verdict{Block: true, Reason: v.Reason}, nil
			}
		}
		return nil, nil
	}
}

// after tells the plugins in order, each of what those before made of the
// result. One that cannot be asked changes nothing.
func (r *pluginRun) after(hooks []*heldPlugin) func(context.Context, tools.Call, messages.CallState, messages.ToolResult) (*tools.Patch, error) {
	return func(ctx context.Context, c tools.Call, state messages.CallState, result messages.ToolResult) (*tools.Patch, error) {
		patch := &tools.Patch{}
		for _, h := range hooks {
			change, err := r.askAfter(ctx, h, c, state, result)
			if errors.Is(err, plugin.ErrUnavailable) {
				r.w.guardian.Tell(pluginNotice{r.q.Session.ID, "plugin " + h.id + ": its hook after " + c.Name + " was left out: " + err.Error()})
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", h.id, err)
			}
			if change.Content != nil {
				if patch.Content, err = fromContent(ctx, change.Content); err != nil {
					return nil, fmt.Errorf("plugin %s: %w", h.id, err)
				}
				result.Content = patch.Content
			}
			if len(change.Details) > plugin.MaxDetails {
				return nil, fmt.Errorf("plugin %s: details of more than %d KiB", h.id, plugin.MaxDetails>>10)
			}
			if change.Details != nil {
				patch.Details, result.Details = change.Details, change.Details
			}
			if change.IsError != nil {
				patch.IsError, result.IsError = change.IsError, *change.IsError
				if state != messages.CallAborted {
					state = messages.CallCompleted
					if result.IsError {
						state = messages.CallError
					}
				}
			}
		}
		return patch, nil
	}
}

func (r *pluginRun) askAfter(ctx context.Context, h *heldPlugin, c tools.Call, state messages.CallState, result messages.ToolResult) (extension.Change, error) {
	inst, err := h.get(ctx)
	if err != nil {
		return extension.Change{}, fmt.Errorf("%w: %w", plugin.ErrUnavailable, err)
	}
	return inst.After(ctx, extension.After{Before: r.call(c), Status: string(state), Result: toContent(result)}, r.mount)
}

func toContent(r messages.ToolResult) extension.Result {
	out := extension.Result{Content: []extension.Content{}, Details: r.Details, IsError: r.IsError}
	for _, p := range r.Content {
		out.Content = append(out.Content, extension.Content{Type: string(p.Type), Text: p.Text, MimeType: p.MediaType})
	}
	return out
}

func fromContent(ctx context.Context, content []extension.Content) ([]messages.Part, error) {
	out := []messages.Part{}
	if len(content) > plugin.MaxParts {
		return nil, fmt.Errorf("more than %d parts of content", plugin.MaxParts)
	}
	for _, c := range content {
		switch c.Type {
		case string(messages.PartText):
			out = append(out, messages.Part{Type: messages.PartText, Text: c.Text})
		case string(messages.PartImage):
			p, err := tools.Image(ctx, c.Data)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		default:
			return nil, fmt.Errorf("content of type %.40q", c.Type)
		}
	}
	return out, nil
}

// asPluginFailure is why an exchange fails for a plugin.
func asPluginFailure(err error) error {
	var known *plugin.Error
	if !errors.As(err, &known) {
		return err
	}
	return &messages.Failure{Type: messages.FailStateSnapshot, Code: known.Slug, Message: known.Error(), Hint: known.Hint}
}
