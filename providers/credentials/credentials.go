// Package credentials finds the key for a model: the user's settings first,
// then the model's entry, then the provider's environment variables, then a
// stored login. A Store keeps those logins.
//
// Keys are read when a request is built and belong to nobody else: nothing
// here keeps, logs or prints one, and no failure shows one, not even one that
// stands where it should not.
//
// The credential file is read anew for each question and without a lock: a
// reader sees it as it was before or after a change, never in between. Only a
// Store writes it, one process at a time; what others put into it stays. A
// refresh token is good for one use, so of all processes that share the file
// one renews a login and the others take what it has stored. A renewal that
// has been asked for is finished and stored even when the caller leaves.
package credentials

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"codework/messages"
)

// Lookup returns the value of an environment variable: of the caller's world
// first, then of the process, as whoever builds the request decides.
type Lookup = func(name string) (value string, ok bool)

// Sources of a key that are not a variable of the provider, whose source is
// the variable's name.
const (
	// SourceSettings is the apiKey of an option block.
	SourceSettings = "model.options.apiKey"
	// SourceProvider is the key of the model's own entry.
	SourceProvider = "provider.key"
	// SourceLogin is a login stored in the credential file.
	SourceLogin = "login"
	// SourceEditor is a Copilot login that an editor stored.
	SourceEditor = "editor login"
)

// Found is a key and where it was found.
type Found struct {
	Key    string // empty where the provider needs none
	Source string
	// Login is the stored login that the key is of; nil for one from elsewhere.
	Login *Login
}

// Resolve returns the key for a model. A provider that names no variable and
// no key needs none: Key and Source are empty then. settingsKey is the
// "${NAME}" of the settings, or empty. A login that ends within a minute is
// renewed first, which asks its provider.
//
// A reference that leads nowhere fails instead of falling through to the next
// source: a person who names a variable means that account and no other.
func (s *Store) Resolve(ctx context.Context, model messages.Model, settingsKey string, lookup Lookup) (Found, *messages.Failure) {
	return find(model, settingsKey, lookup, func(provider string) (*Login, *messages.Failure) {
		login, failure := ReadLogin(s.file, provider)
		if failure != nil || login == nil {
			return nil, failure
		}
		login, err := s.Fresh(ctx, provider)
		return login, Explain(err)
	})
}

// Has tells whether there is a key for a model, or none is needed. It asks
// nobody: a stored login counts, whatever has become of it.
func (s *Store) Has(model messages.Model, lookup Lookup) bool {
	_, failure := find(model, "", lookup, func(provider string) (*Login, *messages.Failure) {
		return ReadLogin(s.file, provider)
	})
	return failure == nil
}

// find looks in all places, in their order.
func find(model messages.Model, settingsKey string, lookup Lookup, stored func(provider string) (*Login, *messages.Failure)) (Found, *messages.Failure) {
	named := []struct{ source, value string }{
		{SourceSettings, settingsKey},
		{SourceProvider, model.Provider.Key},
	}
	for _, n := range named {
		if n.value == "" {
			continue
		}
		if _, ok := reference(n.value); !ok {
			return Found{}, literalKey(n.source)
		}
		key, failure := expand(n.source, n.value, lookup)
		return Found{Key: key, Source: n.source}, failure
	}

	early, late := model.Provider.Env, []string(nil)
	login, hasLogin := logins[model.Provider.ID]
	if hasLogin {
		early, late = login.variables(model.Provider.Env)
	}
	for _, name := range early {
		if key, failure := fromVariable(name, lookup); key != "" || failure != nil {
			return Found{Key: key, Source: name}, failure
		}
	}
	if !hasLogin {
		if len(early) == 0 {
			return Found{}, nil
		}
		return Found{}, missing(model.Provider, early)
	}
	own, failure := stored(model.Provider.ID)
	if failure != nil {
		return Found{}, failure
	}
	if own != nil {
		return Found{Key: own.Access, Source: SourceLogin, Login: own}, nil
	}
	for _, name := range late {
		if key, failure := fromVariable(name, lookup); failure == nil && copilotToken(key) {
			return Found{Key: key, Source: name}, nil
		}
	}
	if model.Provider.ID == CopilotID {
		if key := editorToken(lookup); key != "" {
			return Found{Key: key, Source: SourceEditor}, nil
		}
	}
	return Found{}, missing(model.Provider, early)
}

// Expand gives the value that a setting stands for: what the variable NAME
// holds when the whole of it is "${NAME}", itself otherwise. The result is not
// expanded again, so it may hold a "$". A variable that is unset or empty is a
// *messages.Failure that names it and the setting.
func Expand(setting, value string, lookup Lookup) (string, error) {
	expanded, failure := expand(setting, value, lookup)
	if failure != nil {
		return "", failure
	}
	return expanded, nil
}

func expand(setting, value string, lookup Lookup) (string, *messages.Failure) {
	name, ok := reference(value)
	if !ok {
		return value, nil
	}
	got, failure := fromVariable(name, lookup)
	if failure == nil && got == "" {
		failure = &messages.Failure{
			Type:    messages.FailAuthentication,
			Code:    messages.CodeMissing,
			Message: fmt.Sprintf("%s is not set, but %s asks for it", name, setting),
			Hint:    fmt.Sprintf("set %s, or take it out of %s", name, setting),
		}
	}
	return got, failure
}

// fromVariable returns a variable's value without the blanks and line ends
// that copying leaves around keys; empty when there is none.
func fromVariable(name string, lookup Lookup) (string, *messages.Failure) {
	value, _ := lookup(name)
	value = strings.TrimSpace(value)
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", &messages.Failure{
			Type:    messages.FailAuthentication,
			Code:    messages.CodeInvalid,
			Message: name + " holds a line break or another control character",
			Hint:    "set " + name + " to the key alone",
		}
	}
	return value, nil
}

// reference returns the name in "${NAME}".
func reference(value string) (name string, ok bool) {
	name, ok = strings.CutPrefix(value, "${")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "}")
	return name, ok && isName(name)
}

func isName(s string) bool {
	for i, r := range s {
		letter := r == '_' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// literalKey refuses a key that was written into a file, without showing it.
func literalKey(setting string) *messages.Failure {
	return &messages.Failure{
		Type:    messages.FailConfiguration,
		Message: setting + ` must name a variable, as "${NAME}"`,
		Hint:    "put the key into an environment variable and name that",
	}
}

// missing says which variable or command gives a key.
func missing(p messages.ModelProvider, names []string) *messages.Failure {
	f := &messages.Failure{
		Type:    messages.FailAuthentication,
		Code:    messages.CodeMissing,
		Message: "no key for " + p.ID,
	}
	var ways []string
	if l, ok := logins[p.ID]; ok {
		ways = append(ways, "sign in with: codework auth login --"+p.ID)
		names = l.own
	}
	if len(names) > 0 {
		ways = append(ways, "set "+strings.Join(slices.Compact(slices.Clone(names)), " or "))
	}
	f.Hint = strings.Join(ways, "; or ") + "; or try it without a key: --model offline/guide"
	return f
}
