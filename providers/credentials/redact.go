package credentials

import (
	"net/url"
	"regexp"
	"strings"
	"sync"
	"unicode"
)

const (
	redacted = "<redacted>"
	// minSecret is the shortest value that is masked where it stands: shorter
	// ones would blank out ordinary words.
	minSecret = 8
	// maxLine is how much of a stranger's words a person is shown, in
	// characters.
	maxLine = 300
)

// patterns find tokens that are not known by value: those of an answer that
// failed half way, or a part of a known one. They are compiled when they are
// first used: few processes need them, and all would wait for them.
var patterns = sync.OnceValue(func() []pattern {
	return []pattern{
		// A scheme of the Authorization header.
		{regexp.MustCompile(`(?i)\b(bearer|basic)(\s+|%20|\+)["']?[^\s"',;]+`), "$1 " + redacted},
		// name=value, name: value and "name":"value" of the OAuth messages.
		{regexp.MustCompile(`(?i)\b((?:access|refresh|id|device|user|auth|authorization)_?(?:token|code)|device_auth_id|code_verifier|code_challenge|client_secret|code|state|token|authorization)(["']?\s*[=:]\s*|%3D|%22%3A%22)["']?[^\s"',;&}]+`), "$1$2" + redacted},
		// A JWT, which is what Codex tokens are, also one that was cut.
		{regexp.MustCompile(`\beyJ[\w-]{8,}(?:\.[\w-]*)*`), redacted},
		// Tokens with the prefixes of GitHub and OpenAI.
		{regexp.MustCompile(`\b(?:gh[a-z]_|github_pat_|sk-|rt_|rt\.|ac_)[\w.~-]{6,}`), redacted},
		// Whatever else is too long for a word.
		{regexp.MustCompile(`[\w~+/=-]{40,}`), redacted},
	}
})

type pattern struct {
	find *regexp.Regexp
	with string
}

// Redact makes one line of what somebody else said, without the given secrets
// and without whatever looks like one.
func Redact(s string, secrets ...string) string {
	for _, secret := range secrets {
		if len(secret) < minSecret {
			continue
		}
		s = strings.ReplaceAll(s, secret, redacted)
		s = strings.ReplaceAll(s, url.QueryEscape(secret), redacted)
	}
	for _, p := range patterns() {
		s = p.find.ReplaceAllString(s, p.with)
	}
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if r := []rune(s); len(r) > maxLine {
		s = string(r[:maxLine]) + "…"
	}
	return strings.TrimRight(s, ".")
}
