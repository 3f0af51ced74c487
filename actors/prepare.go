package actors

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"

	"codework/internal/plugin"
	"codework/internal/settings"
	"codework/messages"
	"codework/providers/catalog"
	"codework/providers/credentials"
)

// Workshop captures exchanges from what is on disk: settings, catalog,
// credentials, instruction files. It is used by any number of sessions at
// once; between calls it holds what files said, and connections.
type Workshop struct {
	Home        string // folder of settings, credentials and the user's AGENTS.md
	Catalog     *catalog.Catalog
	Credentials *credentials.Store
	Trust       *settings.Trust
	// Asked, if not nil, hears when a model in the network has begun to answer,
	// or has failed to, and how its caller reaches the network; it must not
	// block.
	Asked func(client func() (*http.Client, error))
	// Speaks tells which protocols there is a dialect for.
	Speaks func(messages.Protocol) bool
	// Plugins finds the program of a plugin's module; nil knows local ones.
	// Errors are *plugin.Error.
	Plugins func(plugin.Entry) (plugin.Program, error)

	clients networkClients
	read    settings.Cache

	guardian *Ref // opens connections and mounts
	shelf    *shelf
}

// Prepare reads everything anew and opens what the exchange needs. Errors are
// *messages.Failure, or what the sandbox says.
func (w *Workshop) Prepare(ctx context.Context, q ExchangeQuery) (*Exchange, error) {
	lookup := lookupIn(q.World)
	set, err := w.settings(q)
	if err != nil {
		return nil, err
	}
	ex := &Exchange{
		Retry:      Retry{Max: set.Retry.MaxRetries, Base: set.Retry.BaseDelay, MaxDelay: set.Retry.MaxDelay},
		Background: set.Sandbox.Background == settings.BackgroundServer,
	}
	for _, n := range set.Warnings {
		ex.Notices = append(ex.Notices, n.Text)
	}
	if err := w.model(ctx, ex, q, set, lookup); err != nil {
		return nil, err
	}
	mount, err := w.mount(ctx, q, set, lookup)
	if err != nil {
		return nil, err
	}
	ex.Workplace = mount
	return ex, w.tools(ctx, ex, q, set, lookup, mount.mount)
}

func (w *Workshop) settings(q ExchangeQuery) (*settings.Settings, error) {
	src := settings.Source{Home: w.Home, HostDir: q.Session.HostDir, Trusted: w.Trust.Trusted}
	if q.World != nil {
		src.UserConfigDir = q.World.UserConfigDir
	}
	set, err := w.read.Load(src)
	var bad *settings.Error
	if errors.As(err, &bad) {
		return nil, bad.Failure()
	}
	return set, err
}

// lookupIn looks a variable up in the caller's environment first and in the
// process's own after that.
func lookupIn(w *messages.World) credentials.Lookup {
	return func(name string) (string, bool) {
		if v, ok := w.Lookup(name); ok {
			return v, true
		}
		return os.LookupEnv(name)
	}
}

// secrets are the values that must not show up in what is logged or stored.
func (ex *Exchange) secrets() []string {
	s := []string{ex.APIKey}
	for name, v := range ex.Options.Headers {
		if n := strings.ToLower(name); strings.Contains(n, "auth") || strings.Contains(n, "key") || strings.Contains(n, "token") {
			s = append(s, v)
		}
	}
	return slices.DeleteFunc(s, func(v string) bool { return len(v) < minSecret })
}

// redact masks the exchange's secrets in a failure, by value: a provider may
// repeat them in its answer.
func (ex *Exchange) redact(f *messages.Failure) *messages.Failure {
	clean := *f
	for _, s := range ex.secrets() {
		clean.Message = strings.ReplaceAll(clean.Message, s, "<redacted>")
		clean.Code = strings.ReplaceAll(clean.Code, s, "<redacted>")
		clean.Hint = strings.ReplaceAll(clean.Hint, s, "<redacted>")
	}
	return &clean
}

// minSecret is the shortest value that is masked: shorter ones would blank
// out ordinary words.
const minSecret = 8
