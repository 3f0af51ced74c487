package settings

import (
	"fmt"
	"strings"

	"codework/messages"
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

// Resolve replaces a value of the form "${NAME}" by the variable's value
// without surrounding white space; any other value is its own result. setting
// is the key the value stands at, for the message. The error is a
// *messages.Failure that names the variable when it is not set or empty. The
// variable's value is not looked into: a "$" in it means itself.
func Resolve(setting, value string, lookup func(name string) (string, bool)) (string, error) {
	name, ok := Reference(value)
	if !ok {
		return value, nil
	}
	got, set := lookup(name)
	if got = strings.TrimSpace(got); got != "" {
		return got, nil
	}
	state := "is not set"
	if set {
		state = "is empty"
	}
	return "", &messages.Failure{
		Type:    messages.FailAuthentication,
		Code:    messages.CodeMissing,
		Message: fmt.Sprintf("%s refers to the variable %s, which %s", setting, name, state),
		Hint:    "set " + name + " in the environment",
	}
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
