package settings

import (
	"net/url"
	"slices"
	"strings"
)

const mask = `"***"`

// secretWords mark names whose text is not shown.
var secretWords = []string{"auth", "key", "token", "secret", "password", "credential", "cookie"}

// masked is the tree as it may be shown: literal text under a name that
// speaks of a secret is replaced. References are shown, and so are numbers:
// maxTokens is none.
func masked(key string, n *node) *node {
	switch n.kind {
	case '{':
		return n.each(masked)
	case '[':
		out := &node{kind: '[', from: n.from, elems: make([]*node, len(n.elems))}
		for i, e := range n.elems {
			out.elems[i] = masked(key, e)
		}
		return out
	case '"':
		if t := n.text(); !isReference(t) && (namesSecret(key) || holdsLogin(t)) {
			return &node{kind: '"', lit: []byte(mask), from: n.from}
		}
	}
	return n
}

func namesSecret(key string) bool {
	key = strings.ToLower(key)
	if strings.HasSuffix(key, "file") {
		return false // where a key lies is no secret
	}
	return slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(key, w) })
}

// holdsLogin tells whether the text is an address with somebody's name or
// token in it. A name alone is needed to reach a machine, and shown.
func holdsLogin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.User != nil && !strings.HasSuffix(u.Scheme, "ssh")
}
