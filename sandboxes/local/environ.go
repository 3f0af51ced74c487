package local

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"codework/sandboxes"
)

// secretWords are what makes a variable's name look secret, as a whole word
// between underscores, also in the plural.
var secretWords = []string{"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH"}

// plainNames are what a command gets of the server's own variables when there
// is no caller.
var plainNames = []string{"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "SHELL", "TZ"}

// plainPrefix adds the locale's variables to plainNames.
const plainPrefix = "LC_"

// unset are never in a command's environment as they come: BASH_ENV and ENV name
// files that a shell would run first, PWD and OLDPWD are the caller's.
var unset = []string{"BASH_ENV", "ENV", "PWD", "OLDPWD"}

// idVariable tells a command which sandbox it runs in.
const idVariable = "CODEWORK_SANDBOX"

// driverEntries are set in every command: nothing may wait in a pager or for a
// password.
var driverEntries = map[string]string{
	"PAGER":               "cat",
	"GIT_PAGER":           "cat",
	"GIT_TERMINAL_PROMPT": "0",
}

// environ is the environment of a mount's commands.
type environ struct {
	vars map[string]string
}

// newEnviron chooses from the caller's variables, or the server's own (own)
// when there is no caller, and adds the driver's, with the sandbox's id, and the
// session's. A bad name or value among the session's is an error.
func newEnviron(opt sandboxes.MountOptions, own []string, id string) (*environ, error) {
	from := opt.Caller
	if from == nil {
		from = own
	}
	all := slices.Contains(opt.Pass, "*")
	e := &environ{vars: make(map[string]string, len(from)+len(driverEntries)+len(opt.Set))}
	for _, entry := range from {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || !validName(name) || strings.IndexByte(value, 0) >= 0 {
			continue // exported functions of a shell, and the like
		}
		passed := all || slices.Contains(opt.Pass, name)
		if Withheld(opt, name) || opt.Caller == nil && !passed && !plain(name) {
			continue
		}
		e.vars[name] = value
	}
	maps.Copy(e.vars, Entries(id))
	if err := CheckEntries(opt.Set); err != nil {
		return nil, err
	}
	maps.Copy(e.vars, opt.Set)
	return e, nil
}

// Withheld tells whether a variable stays outside by its name. It is for drivers
// that cannot hand the environment of commands over as a whole.
func Withheld(opt sandboxes.MountOptions, name string) bool {
	if slices.Contains(opt.Pass, "*") || slices.Contains(opt.Pass, name) {
		return false
	}
	return secret(name) || slices.Contains(opt.Withhold, name)
}

// Entries are set in every command of the sandbox with the id.
func Entries(id string) map[string]string {
	all := maps.Clone(driverEntries)
	all[idVariable] = id
	return all
}

// with is the complete environment of one command: add wins over what the mount
// has.
func (e *environ) with(add map[string]string, dir string) ([]string, error) {
	if err := CheckEntries(add); err != nil {
		return nil, err
	}
	out := make([]string, 0, len(e.vars)+len(add)+1)
	put := func(name, value string) {
		if !slices.Contains(unset, name) {
			out = append(out, name+"="+value)
		}
	}
	for name, value := range e.vars {
		if _, ok := add[name]; !ok {
			put(name, value)
		}
	}
	for name, value := range add {
		put(name, value)
	}
	out = append(out, "PWD="+dir)
	slices.Sort(out)
	return out, nil
}

// get is the value of a variable in a command's environment.
func get(env []string, name string) string {
	for _, entry := range env {
		if n, value, ok := strings.Cut(entry, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// CheckEntries refuses names that are none and values that cannot be passed.
func CheckEntries(m map[string]string) error {
	for name, value := range m {
		if !validName(name) {
			return fmt.Errorf("bad name of an environment variable: %q", name)
		}
		if strings.IndexByte(value, 0) >= 0 {
			return errors.New("NUL byte in the environment variable " + name)
		}
	}
	return nil
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func plain(name string) bool {
	return slices.Contains(plainNames, name) || strings.HasPrefix(name, plainPrefix)
}

// secret tells whether a variable is withheld by its name.
func secret(name string) bool {
	name = strings.ToUpper(name)
	if name == "SSH_AUTH_SOCK" || strings.HasSuffix(name, "_ASKPASS") || strings.HasPrefix(name, "CODEWORK_") {
		return true
	}
	for word := range strings.SplitSeq(name, "_") {
		if slices.Contains(secretWords, word) || slices.Contains(secretWords, strings.TrimSuffix(word, "S")) {
			return true
		}
	}
	return false
}
