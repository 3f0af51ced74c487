package settings

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// node is a JSON value that remembers which file it came from. Trees are never
// changed once built: merging and stripping make new ones that share parts.
type node struct {
	kind    byte   // as hujson.Kind: { [ " 0 t f n
	lit     []byte // the literal as written, of everything but { and [
	members []member
	elems   []*node
	from    *origin
}

// origin is the file that a value came from.
type origin struct {
	path    string // "" for built-in defaults
	trusted bool
}

type member struct {
	key string
	val *node
}

// place says where in a settings file a value stands, as far as it matters for
// reading: inside the options of a plugin nulls and duplicates are kept.
type place uint8

const (
	atTop place = iota
	atPlugins
	atPlugin
	atPluginOptions
	elsewhere
)

func (p place) under(key string) place {
	switch {
	case p == atTop && key == "plugins":
		return atPlugins
	case p == atPlugin && key == "options":
		return atPluginOptions
	case p == atPluginOptions:
		return atPluginOptions
	}
	return elsewhere
}

// build turns the syntax tree into nodes: of a key that is given twice the
// last value counts, and null means that the key is absent.
func build(v *hujson.Value, from *origin, at place) *node {
	n := new(node)
	n.build(v, from, at)
	return n
}

// fewKeys is up to where looking at each key is quicker than a map.
const fewKeys = 16

func (n *node) build(v *hujson.Value, from *origin, at place) {
	n.kind, n.from = byte(v.Value.Kind()), from
	switch v := v.Value.(type) {
	case hujson.Literal:
		n.lit = v
	case *hujson.Array:
		in := elsewhere
		switch at {
		case atPlugins:
			in = atPlugin
		case atPluginOptions:
			in = atPluginOptions
		}
		nodes := make([]node, len(v.Elements))
		n.elems = make([]*node, len(v.Elements))
		for i := range v.Elements {
			nodes[i].build(&v.Elements[i], from, in)
			n.elems[i] = &nodes[i]
		}
	case *hujson.Object:
		nodes := make([]node, len(v.Members))
		n.members = make([]member, 0, len(v.Members))
		var index map[string]int
		if len(v.Members) > fewKeys {
			index = make(map[string]int, len(v.Members))
		}
		for i := range v.Members {
			key := unquote(v.Members[i].Name.Value.(hujson.Literal))
			nodes[i].build(&v.Members[i].Value, from, at.under(key))
			m := member{key, &nodes[i]}
			if at != atPluginOptions {
				if twice := n.find(key, index); twice >= 0 {
					n.members[twice] = m
					continue
				}
			}
			if index != nil {
				index[key] = len(n.members)
			}
			n.members = append(n.members, m)
		}
		if at != atPluginOptions {
			n.members = withoutNulls(n.members)
		}
	}
}

// find is where key stands among the members, or -1; index may be nil.
func (n *node) find(key string, index map[string]int) int {
	if index != nil {
		if i, ok := index[key]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(n.members, func(m member) bool { return m.key == key })
}

func withoutNulls(in []member) []member {
	out := in[:0]
	for _, m := range in {
		if m.val.kind != 'n' {
			out = append(out, m)
		}
	}
	return out
}

// unquote is the text of a string literal.
func unquote(lit []byte) string {
	for _, c := range lit {
		if c == '\\' {
			var s string
			// The parser has checked the literal, so this cannot fail.
			_ = json.Unmarshal(lit, &s)
			return s
		}
	}
	return string(lit[1 : len(lit)-1])
}

// get is the value of key, or nil. A nil node has no keys.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for i := range n.members {
		if n.members[i].key == key {
			return n.members[i].val
		}
	}
	return nil
}

// at follows keys down.
func (n *node) at(keys ...string) *node {
	for _, k := range keys {
		n = n.get(k)
	}
	return n
}

// The readers below are for values that were validated: they give the zero
// value for nil.

func (n *node) text() string {
	if n == nil || n.kind != '"' {
		return ""
	}
	return unquote(n.lit)
}

func (n *node) number() float64 {
	if n == nil || n.kind != '0' {
		return 0
	}
	f, _ := strconv.ParseFloat(string(n.lit), 64)
	return f
}

// whole is the number without its fraction, at most maxWhole.
func (n *node) whole() int64 { return int64(min(n.number(), maxWhole)) }

func (n *node) truth() bool { return n != nil && n.kind == 't' }

func (n *node) texts() []string {
	if n == nil {
		return nil
	}
	out := make([]string, len(n.elems))
	for i, e := range n.elems {
		out[i] = e.text()
	}
	return out
}

// headers are the texts by name. Of names that differ in case only the last
// one counts, or it would be chance which one is sent.
func (n *node) headers() map[string]string {
	if n == nil {
		return nil
	}
	return mergeKeys(&node{kind: '{'}, n, strings.ToLower).textMap()
}

func (n *node) textMap() map[string]string {
	if n == nil {
		return nil
	}
	out := make(map[string]string, len(n.members))
	for _, m := range n.members {
		out[m.key] = m.val.text()
	}
	return out
}

func (n *node) rawMap() map[string]json.RawMessage {
	if n == nil {
		return nil
	}
	out := make(map[string]json.RawMessage, len(n.members))
	for _, m := range n.members {
		out[m.key] = m.val.raw()
	}
	return out
}

// raw is the value as standard JSON, literals as they were written.
func (n *node) raw() json.RawMessage { return n.appendRaw(nil) }

func (n *node) appendRaw(b []byte) []byte {
	switch n.kind {
	case '{':
		b = append(b, '{')
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, m.key), ':')
			b = m.val.appendRaw(b)
		}
		return append(b, '}')
	case '[':
		b = append(b, '[')
		for i, e := range n.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.appendRaw(b)
		}
		return append(b, ']')
	}
	return append(b, n.lit...)
}

func appendQuoted(b []byte, s string) []byte {
	q, _ := json.Marshal(s) // strings always have a JSON form
	return append(b, q...)
}

// merge lays high over low: objects key by key, everything else is replaced.
func merge(low, high *node) *node { return mergeKeys(low, high, sameKey) }

// mergeKeys is merge for an object whose keys are told apart by what fold
// makes of them.
func mergeKeys(low, high *node, fold func(string) string) *node {
	if low == nil {
		return high
	}
	if high == nil {
		return low
	}
	if low.kind != '{' || high.kind != '{' {
		return high
	}
	out := &node{kind: '{', from: high.from}
	out.members = append(make([]member, 0, len(low.members)+len(high.members)), low.members...)
	index := make(map[string]int, len(out.members))
	for i, m := range low.members {
		index[fold(m.key)] = i
	}
	for _, m := range high.members {
		key := fold(m.key)
		i, ok := index[key]
		if !ok {
			index[key] = len(out.members)
			out.members = append(out.members, m)
			continue
		}
		below := sameKey
		if m.key == "headers" {
			below = strings.ToLower // as the protocol does
		}
		out.members[i] = member{m.key, mergeKeys(out.members[i].val, m.val, below)}
	}
	return out
}

func sameKey(key string) string { return key }

// mergeLayers is merge for whole files: the two lists of the top level grow
// instead of being replaced.
func mergeLayers(low, high *node) *node {
	out := merge(low, high)
	if out == low || out == high {
		return out
	}
	for i := range out.members {
		key := out.members[i].key
		if key != "plugins" && key != "models" {
			continue
		}
		l, h := low.get(key), high.get(key)
		if l == nil || h == nil {
			continue
		}
		both := make([]*node, 0, len(l.elems)+len(h.elems))
		both = append(append(both, l.elems...), h.elems...)
		out.members[i].val = &node{kind: '[', elems: both, from: h.from}
	}
	return out
}

// walkLeaves calls f for every value that merging replaces as a whole, and for
// each entry of the lists that grow.
func (n *node) walkLeaves(path string, f func(path string, n *node)) {
	switch {
	case n.kind == '{' && len(n.members) > 0:
		for _, m := range n.members {
			m.val.walkLeaves(join(path, m.key), f)
		}
	case n.kind == '[' && (path == "plugins" || path == "models"):
		for i, e := range n.elems {
			f(joinIndex(path, i), e)
		}
	default:
		f(path, n)
	}
}
