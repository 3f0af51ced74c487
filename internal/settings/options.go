package settings

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"codework/messages"
)

// What holds for a request when nobody says otherwise.
const (
	// DefaultTimeout is for the whole request: long thinking takes its time.
	DefaultTimeout = time.Hour
	// DefaultIdleTimeout is how long a stream may send nothing at all.
	DefaultIdleTimeout = 5 * time.Minute
)

// Block is what the settings say about requests to one model. Zero values
// mean that nobody said anything, unless stated otherwise.
type Block struct {
	Temperature     *float64
	MaxTokens       int64         // cap on answer tokens
	Timeout         time.Duration // never 0
	IdleTimeout     time.Duration // never 0
	MaxRetries      int           // inside the HTTP client, beside the retries of a turn
	CacheRetention  messages.CacheRetention
	Headers         map[string]string // may hold references
	BaseURL         string
	APIKey          string // "${NAME}"
	Metadata        map[string]json.RawMessage
	ThinkingBudgets map[messages.ThinkingLevel]int64
	Method          string
	ThinkingLevel   messages.ThinkingLevel // never ""
	ToolExecution   ToolExecution          // never ""
	ContextWindow   int64
	Extras          map[string]json.RawMessage // for the provider's client
	// Extra are all other keys, for the provider's own option bag.
	Extra map[string]json.RawMessage
}

// modelKeys are the keys of model that every block starts with.
var modelKeys = []string{"thinkingLevel", "toolExecution", "thinkingBudgets"}

// Options is what holds for one model. Later ones win: defaults, the options
// of the model's own entry in the settings, model.thinkingLevel with its
// siblings, model.options, and of model.providerOptions for that provider "*",
// then the patterns that match, the shorter text before their first "*"
// before the longer, then the model's own name.
func (s *Settings) Options(provider, model string) Block {
	settings := s.merged.get("model")
	def, own := &node{kind: '{'}, &node{kind: '{'}
	for _, key := range modelKeys {
		val := settings.get(key)
		switch {
		case val == nil:
		case val.from.path == "":
			def.members = append(def.members, member{key, val})
		default:
			own.members = append(own.members, member{key, val})
		}
	}
	block := merge(def, s.entryOptions(provider, model))
	block = merge(block, own)
	block = merge(block, settings.get("options"))
	for _, b := range matching(settings.at("providerOptions", provider), model) {
		block = merge(block, b)
	}
	return blockOf(block)
}

// entryOptions are the options in the model's own entry, the last one of its
// name.
func (s *Settings) entryOptions(provider, model string) *node {
	list := s.merged.get("models")
	if list == nil {
		return nil
	}
	for _, e := range slices.Backward(list.elems) {
		if e.get("id").text() == model && e.at("provider", "id").text() == provider {
			return e.get("options")
		}
	}
	return nil
}

// matching are the blocks whose pattern matches the model, in the order in
// which they are merged. Patterns of equal rank keep the order in which they
// were written.
func matching(patterns *node, model string) []*node {
	if patterns == nil {
		return nil
	}
	const (
		everything = -1
		exact      = math.MaxInt
	)
	type hit struct {
		rank int
		val  *node
	}
	var hits []hit
	for _, m := range patterns.members {
		prefix, _, wild := strings.Cut(m.key, "*")
		switch {
		case m.key == model:
			hits = append(hits, hit{exact, m.val})
		case m.key == "*":
			hits = append(hits, hit{everything, m.val})
		case wild && match(m.key, model):
			hits = append(hits, hit{len(prefix), m.val})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.rank, b.rank) })
	out := make([]*node, len(hits))
	for i, h := range hits {
		out[i] = h.val
	}
	return out
}

// match tells whether the pattern, in which "*" stands for any run of
// characters, covers the whole of s.
func match(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return pattern == s
	}
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(s, p)
		if !found {
			return false
		}
		s = rest
	}
	return true
}

func blockOf(n *node) Block {
	b := Block{
		MaxTokens:       n.get("maxTokens").whole(),
		Timeout:         DefaultTimeout,
		IdleTimeout:     DefaultIdleTimeout,
		MaxRetries:      int(min(n.get("maxRetries").whole(), maxRetries)),
		CacheRetention:  messages.CacheRetention(n.get("cacheRetention").text()),
		Headers:         n.get("headers").headers(),
		BaseURL:         n.get("baseURL").text(),
		APIKey:          n.get("apiKey").text(),
		Metadata:        n.get("metadata").rawMap(),
		ThinkingBudgets: budgetsOf(n.get("thinkingBudgets")),
		Method:          n.get("method").text(),
		ThinkingLevel:   messages.ThinkingLevel(n.get("thinkingLevel").text()),
		ToolExecution:   ToolExecution(n.get("toolExecution").text()),
		ContextWindow:   n.get("contextWindow").whole(),
		Extras:          n.get("extras").rawMap(),
	}
	if t := n.get("temperature"); t != nil {
		f := t.number()
		b.Temperature = &f
	}
	if t := n.get("timeoutMs"); t != nil {
		b.Timeout = milliseconds(t)
	}
	if t := n.get("idleTimeoutMs"); t != nil {
		b.IdleTimeout = milliseconds(t)
	}
	for _, m := range n.members {
		if !slices.ContainsFunc(optionBlock.fields, func(f field) bool { return f.key == m.key }) {
			if b.Extra == nil {
				b.Extra = map[string]json.RawMessage{}
			}
			b.Extra[m.key] = m.val.raw()
		}
	}
	return b
}
