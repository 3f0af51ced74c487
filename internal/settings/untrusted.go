package settings

import (
	"slices"
	"strings"
)

// builtinVendor starts the ids of the plugins that are part of the program; no
// other plugin may use it.
const builtinVendor = "codework."

// redirecting are the keys of an option block that say where a request goes
// and whose key it carries.
var redirecting = []string{"baseURL", "headers", "apiKey", "extras"}

// withoutTrust is what a file of a project that is not trusted may say, and
// the paths of what it may not.
func withoutTrust(file *node) (*node, []string) {
	var ignored []string
	drop := func(path string) { ignored = append(ignored, path) }

	// A block loses the keys that redirect.
	block := func(path string, n *node) *node {
		return n.filter(func(m member) bool {
			if slices.Contains(redirecting, m.key) {
				drop(join(path, m.key))
				return false
			}
			return true
		})
	}
	out := file.filter(func(m member) bool {
		if m.key == "models" || m.key == "sandbox" {
			drop(m.key)
			return false
		}
		return true
	})
	out = out.edit("model", func(model *node) *node {
		model = model.edit("options", func(n *node) *node { return block("model.options", n) })
		return model.edit("providerOptions", func(providers *node) *node {
			return providers.each(func(provider string, patterns *node) *node {
				return patterns.each(func(pattern string, n *node) *node {
					return block(join(join("model.providerOptions", provider), pattern), n)
				})
			})
		})
	})
	out = out.edit("plugins", func(list *node) *node {
		if list.kind != '[' {
			return list
		}
		kept := &node{kind: '[', from: list.from}
		for i, e := range list.elems {
			if configuresBuiltin(e) && !e.holdsReference() {
				kept.elems = append(kept.elems, e)
			} else {
				drop(joinIndex("plugins", i))
			}
		}
		return kept
	})
	return out.withoutReferences("", drop), ignored
}

// configuresBuiltin tells whether a plugin entry only says something about a
// built-in plugin. A key beyond those of a configuration may start a program.
func configuresBuiltin(e *node) bool {
	if e.kind != '{' || !strings.HasPrefix(e.get("plugin").text(), builtinVendor) {
		return false
	}
	for _, m := range e.members {
		if m.key != "plugin" && m.key != "enabled" && m.key != "options" {
			return false
		}
	}
	return true
}

// withoutReferences leaves out every key whose value is, or is a list that
// holds, text with "${NAME}" in it. The entries of plugins were looked at
// before.
func (n *node) withoutReferences(path string, drop func(path string)) *node {
	if n.kind != '{' {
		return n
	}
	kept := n.filter(func(m member) bool {
		if m.val.kind != '{' && m.val.holdsReference() {
			drop(join(path, m.key))
			return false
		}
		return true
	})
	return kept.each(func(key string, val *node) *node {
		return val.withoutReferences(join(path, key), drop)
	})
}

// holdsReference tells whether "${NAME}" stands in any text of the value.
func (n *node) holdsReference() bool {
	switch n.kind {
	case '"':
		return holdsReference(n.text())
	case '[':
		return slices.ContainsFunc(n.elems, (*node).holdsReference)
	case '{':
		return slices.ContainsFunc(n.members, func(m member) bool { return m.val.holdsReference() })
	}
	return false
}

// filter is the object with the members that keep says; anything else is
// itself.
func (n *node) filter(keep func(member) bool) *node {
	if n.kind != '{' {
		return n
	}
	out := &node{kind: '{', from: n.from}
	for _, m := range n.members {
		if keep(m) {
			out.members = append(out.members, m)
		}
	}
	return out
}

// each is the object with every value replaced; anything else is itself.
func (n *node) each(f func(key string, val *node) *node) *node {
	if n.kind != '{' {
		return n
	}
	out := &node{kind: '{', from: n.from, members: make([]member, len(n.members))}
	for i, m := range n.members {
		out.members[i] = member{m.key, f(m.key, m.val)}
	}
	return out
}

// edit is the object with one value replaced, if it is there.
func (n *node) edit(key string, f func(*node) *node) *node {
	if n.get(key) == nil {
		return n
	}
	return n.each(func(k string, val *node) *node {
		if k == key {
			return f(val)
		}
		return val
	})
}
