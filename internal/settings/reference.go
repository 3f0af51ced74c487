package settings

import (
	"strings"
)

// Reference is the variable that a value of the form "${NAME}" refers to. The
// whole value must have that form: there are no defaults, no nesting and no
// text around it.
func Reference(value string) (name string, ok bool) {
	inner, found := strings.CutPrefix(value, "${")
	name, closed := strings.CutSuffix(inner, "}")
	if !found || !closed || !isName(name) {
		return "", false
	}
	return name, true
}

func isReference(s string) bool { _, ok := Reference(s); return ok }

// isPlain tells whether s is a reference, or text in which nobody could see
// one: a placeholder with something around it would be sent as it is.
func isPlain(s string) bool { return !strings.Contains(s, "${") || isReference(s) }

// holdsReference tells whether "${NAME}" stands anywhere in s.
func holdsReference(s string) bool {
	for {
		_, rest, found := strings.Cut(s, "${")
		if !found {
			return false
		}
		if name, _, closed := strings.Cut(rest, "}"); closed && isName(name) {
			return true
		}
		s = rest
	}
}

func isName(s string) bool {
	for i, r := range s {
		if !isNameRune(r) || i == 0 && '0' <= r && r <= '9' {
			return false
		}
	}
	return s != ""
}

func isNameRune(r rune) bool {
	return r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}
