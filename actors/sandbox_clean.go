package actors

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"codework/providers/credentials"
	"codework/sandboxes"
)

// maxErrorText is the longest text of a provider that is kept, in bytes.
const maxErrorText = 4 << 10

// redacted stands for a secret.
const redacted = "<redacted>"

// cleaner takes secrets out of texts: by value those that a sandbox's
// configuration referred to, by their form those that a provider may add.
type cleaner struct {
	mu     sync.Mutex // guards values
	values map[string]bool
}

// through is a lookup whose answers are secrets from then on.
func (c *cleaner) through(lookup credentials.Lookup) credentials.Lookup {
	return func(name string) (string, bool) {
		v, ok := lookup(name)
		c.learn(v)
		return v, ok
	}
}

func (c *cleaner) learn(v string) {
	v = strings.TrimSpace(v)
	if len(v) < minSecret {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[string]bool{}
	}
	c.values[v] = true
}

// secretForms are secrets that show by where they stand: in a header, in a
// query, before the host of an address. The first group stays. They are
// compiled when they are first used: few processes need them.
var secretForms = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?i)(authorization["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?)[^\s"',}]+`),
		regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`),
		regexp.MustCompile(`(?i)([?&](?:[a-z_-]*(?:token|key|secret|signature|password)|sig|auth)=)[^&\s"']+`),
		regexp.MustCompile(`(?i)(x-(?:api-key|access-token)["']?\s*[:=]\s*["']?)[^\s"',}]+`),
		regexp.MustCompile(`(://[^\s/:@]*:)[^\s/@]+@`),
	}
})

// text is s without secrets, at most maxErrorText long.
func (c *cleaner) text(s string) string {
	// What is cut off first may leave half a secret at the end, and what is
	// cleaned first may be 10 MB: so there is some room to cut from again.
	s = strings.ToValidUTF8(s[:min(len(s), 2*maxErrorText)], "\uFFFD")
	c.mu.Lock()
	// The longest first: one may be part of another.
	values := slices.SortedFunc(maps.Keys(c.values), func(a, b string) int { return len(b) - len(a) })
	c.mu.Unlock()
	for _, v := range values {
		s = strings.ReplaceAll(s, v, redacted)
	}
	forms := secretForms()
	for i, form := range forms {
		with := "${1}" + redacted
		if i == len(forms)-1 {
			with += "@"
		}
		s = form.ReplaceAllString(s, with)
	}
	if len(s) > maxErrorText {
		s = strings.ToValidUTF8(s[:maxErrorText-len("…")], "") + "…"
	}
	return s
}

// error is err without secrets. What it is stays known, what it says does not.
func (c *cleaner) error(err error) error {
	if err == nil {
		return nil
	}
	var file *sandboxes.FileError
	if errors.As(err, &file) {
		return &sandboxes.FileError{Op: file.Op, Path: file.Path, Err: c.plain(file.Err)}
	}
	var shell *sandboxes.ShellError
	if errors.As(err, &shell) {
		clean := &sandboxes.ShellError{Reason: c.text(shell.Reason)}
		if shell.Err != nil {
			clean.Err = c.plain(shell.Err)
		}
		return clean
	}
	return c.plain(err)
}

func (c *cleaner) plain(err error) error {
	text := err.Error()
	clean := c.text(text)
	if clean == text {
		return err
	}
	return &cleanError{clean, err}
}

// cleanError is another error in clean words. It does not unwrap, so that
// nobody prints what is inside.
type cleanError struct {
	text string
	was  error
}

func (e *cleanError) Error() string        { return e.text }
func (e *cleanError) Is(target error) bool { return errors.Is(e.was, target) }
