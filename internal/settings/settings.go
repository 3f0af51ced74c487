package settings

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"codework/messages"
)

// Source says where settings are looked for. All paths are absolute.
type Source struct {
	// Home holds the user's settings; "" means that there are none.
	Home string
	// UserConfigDir, when not empty, is read instead of Home; a project still
	// wins over it.
	UserConfigDir string
	// HostDir is the session's directory on this machine, from which the
	// project is looked for; "" reads the user's settings only.
	HostDir string
	// Trusted tells whether a project root is trusted; nil trusts none.
	Trusted func(root string) bool
}

// Settings is what the layers come to. It never changes.
type Settings struct {
	Model   Model
	Models  []messages.Model // laid over the catalog, each provider and id once
	Plugins []Plugin         // the user's, then the project's
	Retry   Retry
	Sandbox Sandbox

	// Files are the files that were read, lowest layer first.
	Files []string
	// Project is the project root that HostDir lies in, "" when there is none.
	Project string
	// Trusted tells whether Project is trusted.
	Trusted bool
	// Warnings are what a person should hear once.
	Warnings []Warning

	merged *node
}

// Warning is something that was ignored. Load gives it again and again; Key
// stays the same as long as file and content do, so that a caller can say it
// once.
type Warning struct {
	Key  string
	Text string
}

// ToolExecution says whether the tool calls of one answer run side by side.
type ToolExecution string

// The ways to run tool calls.
const (
	Sequential ToolExecution = "sequential"
	Parallel   ToolExecution = "parallel"
)

// Model is the choice of a model and its thinking, before a session's own
// choice. Options tells what belongs to a request.
type Model struct {
	Provider        string
	ID              string
	ThinkingLevel   messages.ThinkingLevel
	ToolExecution   ToolExecution
	ThinkingBudgets map[messages.ThinkingLevel]int64 // tokens; nil when nobody said anything
}

// Plugin is one entry of the plugin list as it stands in its file. Whether it
// makes sense is for whoever loads plugins to say.
type Plugin struct {
	Entry json.RawMessage // a string, or an object whose options are kept as written
	File  string          // relative paths in Entry start at its directory
	// Trusted is false for what a project may say without being trusted: the
	// configuration of built-in plugins.
	Trusted bool
}

// Retry is how often and when a failed turn is tried again.
type Retry struct {
	MaxRetries int           // attempts after the first; 0 is off
	BaseDelay  time.Duration // before the first retry, doubled for each further one
	MaxDelay   time.Duration // a provider that asks for longer fails the turn
}

// defaults is the lowest layer. Its values belong to no file.
var defaults = mustParse(`{
	"model": {"provider": "openai", "id": "gpt-5.6-luna", "thinkingLevel": "high", "toolExecution": "sequential"},
	"retry": {"maxRetries": 3, "baseDelayMs": 2000, "maxDelayMs": 60000},
	"sandbox": {"driver": "local", "background": "session"},
}`)

func mustParse(text string) *node {
	n, err := parse(&origin{}, []byte(text))
	if err != nil {
		panic(err)
	}
	return n
}

// Load reads and merges the user's and the project's settings. Its errors are
// *Error.
func Load(src Source) (*Settings, error) {
	return read(src).settings()
}

// written is what there is to merge: all that settings are made of.
type written struct {
	user, project file
	root          string // of the project, "" when there is none
	trusted       bool   // whether that is trusted
}

// file is a settings file as it was found; without a path there is none.
type file struct {
	path string
	data []byte
	err  error
}

func read(src Source) written {
	var w written
	dir := src.Home
	if src.UserConfigDir != "" {
		dir = src.UserConfigDir
	}
	if dir != "" {
		w.user = readDir(dir)
	}
	if root, ok := FindProject(src.HostDir, src.Home); ok {
		w.root = root
		w.trusted = src.Trusted != nil && src.Trusted(root)
		w.project = readDir(filepath.Join(root, projectDir))
	}
	return w
}

func (w written) settings() (*Settings, error) {
	s := &Settings{Project: w.root, Trusted: w.trusted}
	distrusted := w.root
	if w.trusted {
		distrusted = ""
	}
	user, err := s.layer(w.user, "")
	if err != nil {
		return nil, err
	}
	project, err := s.layer(w.project, distrusted)
	if err != nil {
		return nil, err
	}
	merged := mergeLayers(mergeLayers(defaults, user), project)
	if err := checkDelays(merged); err != nil {
		return nil, err
	}
	s.fill(merged)
	return s, nil
}

// layer is one file's settings; nil means that there are none. distrusted is
// the project root when that is not trusted.
func (s *Settings) layer(f file, distrusted string) (*node, error) {
	if f.err != nil || f.path == "" {
		return nil, f.err
	}
	tree, warnings, err := decode(f.path, f.data, distrusted)
	if err != nil {
		return nil, err
	}
	s.Files = append(s.Files, f.path)
	s.Warnings = append(s.Warnings, warnings...)
	return tree, nil
}

// decode is everything between the bytes of one file and the tree that is
// merged.
func decode(file string, data []byte, distrusted string) (*node, []Warning, error) {
	tree, err := parse(&origin{path: file, trusted: distrusted == ""}, data)
	if err != nil {
		return nil, nil, err
	}
	var warnings []Warning
	warn := func(kind, text string) {
		sum := sha256.Sum256(data)
		warnings = append(warnings, Warning{
			Key:  kind + ":" + file + ":" + hex.EncodeToString(sum[:8]),
			Text: printable(file) + ": " + text,
		})
	}
	if distrusted != "" {
		var ignored []string
		tree, ignored = withoutTrust(tree)
		if len(ignored) > 0 {
			warn("untrusted", fmt.Sprintf("ignored until the project is trusted (codework trust %s): %s",
				shellWord(distrusted), some(shortAll(ignored), ", ")))
		}
	}
	var c checker
	c.check("", fileShape, tree)
	if len(c.faults) > 0 {
		return nil, nil, decodeError(file, c.faults)
	}
	if len(c.unknown) > 0 {
		warn("unknown", "unknown keys are ignored: "+some(shortAll(c.unknown), ", "))
	}
	return tree, warnings, nil
}

// checkDelays holds the two delays against each other after all layers have
// spoken. A default gives way in silence; of two that were written the fault
// is laid at the higher layer.
func checkDelays(merged *node) error {
	retry := merged.get("retry")
	base, limit := retry.get("baseDelayMs"), retry.get("maxDelayMs")
	if base.number() <= limit.number() || base.from.path == "" {
		return nil
	}
	if limit.from.path == "" || limit.from == base.from || retry.from == base.from {
		return decodeError(base.from.path, []Fault{{"retry.baseDelayMs",
			fmt.Sprintf("expected at most maxDelayMs, which is %d", limit.whole())}})
	}
	return decodeError(limit.from.path, []Fault{{"retry.maxDelayMs",
		fmt.Sprintf("expected at least baseDelayMs, which is %d in %s", base.whole(), printable(base.from.path))}})
}

func (s *Settings) fill(merged *node) {
	s.merged = merged
	model := merged.get("model")
	s.Model = Model{
		Provider:        model.get("provider").text(),
		ID:              model.get("id").text(),
		ThinkingLevel:   messages.ThinkingLevel(model.get("thinkingLevel").text()),
		ToolExecution:   ToolExecution(model.get("toolExecution").text()),
		ThinkingBudgets: budgetsOf(model.get("thinkingBudgets")),
	}
	if list := merged.get("models"); list != nil {
		s.Models = make([]messages.Model, 0, len(list.elems))
		seen := make(map[messages.ModelRef]int, len(list.elems))
		for _, e := range list.elems {
			m := modelOf(e)
			if i, again := seen[m.Ref()]; again {
				s.Models[i] = m
				continue
			}
			seen[m.Ref()] = len(s.Models)
			s.Models = append(s.Models, m)
		}
	}
	if list := merged.get("plugins"); list != nil {
		s.Plugins = make([]Plugin, len(list.elems))
		for i, e := range list.elems {
			s.Plugins[i] = Plugin{Entry: e.raw(), File: e.from.path, Trusted: e.from.trusted}
		}
	}
	retry := merged.get("retry")
	s.Retry = Retry{
		MaxRetries: int(retry.get("maxRetries").whole()),
		MaxDelay:   milliseconds(retry.get("maxDelayMs")),
	}
	s.Retry.BaseDelay = min(milliseconds(retry.get("baseDelayMs")), s.Retry.MaxDelay)
	s.Sandbox = sandboxOf(merged.get("sandbox"))
}

// longest is how long a wait may be at most. Nobody sees the difference, and
// deadlines stay within what a time can hold.
const longest = 100 * 365 * 24 * time.Hour

func milliseconds(n *node) time.Duration {
	if ms := n.whole(); ms < int64(longest/time.Millisecond) {
		return time.Duration(ms) * time.Millisecond
	}
	return longest
}

func budgetsOf(n *node) map[messages.ThinkingLevel]int64 {
	if n == nil {
		return nil
	}
	out := make(map[messages.ThinkingLevel]int64, len(n.members))
	for _, m := range n.members {
		out[messages.ThinkingLevel(m.key)] = m.val.whole()
	}
	return out
}

func modelOf(n *node) messages.Model {
	provider, cost := n.get("provider"), n.get("cost")
	m := messages.Model{
		ID:   n.get("id").text(),
		Name: n.get("name").text(),
		Provider: messages.ModelProvider{
			ID:      provider.get("id").text(),
			Name:    provider.get("name").text(),
			Source:  provider.get("source").text(),
			Env:     provider.get("env").texts(),
			Key:     provider.get("key").text(),
			Options: provider.get("options").rawMap(),
		},
		Protocol:      messages.Protocol(n.get("protocol").text()),
		BaseURL:       n.get("baseUrl").text(),
		Reasoning:     n.get("reasoning").truth(),
		Input:         n.get("input").texts(),
		Cost:          messages.ModelCost{Rates: ratesOf(cost)},
		ContextWindow: n.get("contextWindow").whole(),
		MaxTokens:     n.get("maxTokens").whole(),
		Headers:       n.get("headers").headers(),
		Compat:        n.get("compat").rawMap(),
		Options:       n.get("options").rawMap(),
	}
	if tiers := cost.get("tiers"); tiers != nil {
		for _, t := range tiers.elems {
			m.Cost.Tiers = append(m.Cost.Tiers, messages.CostTier{
				Rates: ratesOf(t), InputTokensAbove: t.get("inputTokensAbove").whole()})
		}
	}
	if levels := n.get("thinkingLevelMap"); levels != nil {
		m.ThinkingLevelMap = make(map[messages.ThinkingLevel]*string, len(levels.members))
		for _, l := range levels.members {
			word := l.val.text()
			m.ThinkingLevelMap[messages.ThinkingLevel(l.key)] = &word
		}
	}
	if options := n.get("providerOptions"); options != nil {
		m.ProviderOptions = make(map[string]map[string]json.RawMessage, len(options.members))
		for _, o := range options.members {
			m.ProviderOptions[o.key] = o.val.rawMap()
		}
	}
	if api := n.get("api"); api != nil {
		m.API = &messages.ModelAPI{
			ID:     api.get("id").text(),
			URL:    api.get("url").text(),
			Method: api.get("method").text(),
		}
	}
	return m
}

func ratesOf(n *node) messages.Rates {
	return messages.Rates{
		Input:      n.get("input").number(),
		Output:     n.get("output").number(),
		CacheRead:  n.get("cacheRead").number(),
		CacheWrite: n.get("cacheWrite").number(),
	}
}

// Origins names for every key that a file sets, its parts joined with dots,
// the file it came from. Keys that are missing have their default. Of arrays
// only those that grow over the layers, plugins and models, are listed entry
// by entry.
func (s *Settings) Origins() map[string]string {
	out := map[string]string{}
	s.merged.walkLeaves("", func(path string, n *node) {
		if n.from.path != "" {
			out[path] = n.from.path
		}
	})
	return out
}

// Merged is the result of all layers, defaults included, as JSON for people.
// Text that may be a secret (headers and variables given literally whose name
// says so) is masked.
func (s *Settings) Merged() json.RawMessage {
	return masked("", s.merged).raw()
}
