package credentials

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"codework/messages"
)

// The providers that have a login.
const (
	CodexID   = "openai-codex"
	CopilotID = "github-copilot"
)

// signIn is a provider that has a login beside, or instead of, keys.
type signIn struct {
	own []string // variables that are meant for this provider alone
	// shared variables are often set for other purposes, so that a stored
	// login comes before them.
	shared []string
	// refreshes: the login can be renewed without the person.
	refreshes bool
}

var logins = map[string]signIn{
	CodexID:   {own: []string{"OPENAI_CODEX_API_KEY"}, refreshes: true},
	CopilotID: {own: []string{"COPILOT_GITHUB_TOKEN"}, shared: []string{"GITHUB_TOKEN", "GH_TOKEN"}},
}

// variables splits what an entry names and what the provider has anyway into
// those before and those after the stored login.
func (s signIn) variables(named []string) (early, late []string) {
	for _, name := range append(slices.Clone(named), s.own...) {
		if !slices.Contains(s.shared, name) && !slices.Contains(early, name) {
			early = append(early, name)
		}
	}
	return early, s.shared
}

// copilotToken tells whether a GitHub token belongs to a signed-in person.
// Tokens of CI jobs and fine-grained ones have no access to Copilot, and
// trying them would end in a refusal instead of the hint to sign in.
func copilotToken(token string) bool {
	return strings.HasPrefix(token, "ghu_") || strings.HasPrefix(token, "gho_")
}

// Login is what signing in to a provider left in the credential file. The
// names are those of the file and of credentials on the wire.
type Login struct {
	Access  string `json:"access"`
	Refresh string `json:"refresh"`
	Expires int64  `json:"expires"` // epoch milliseconds; 0 is never

	AccountID string `json:"accountId,omitempty"` // Codex

	EnterpriseURL     string   `json:"enterpriseUrl,omitempty"` // Copilot
	APIEndpoint       string   `json:"apiEndpoint,omitempty"`
	AvailableModelIDs []string `json:"availableModelIds,omitzero"`
}

// Endpoint is the base URL that the login's provider is reached at; empty
// where that is the model's own. Copilot's is what GitHub has told, else that
// of the person's GitHub Enterprise.
func (l *Login) Endpoint() string {
	if l.APIEndpoint != "" || l.EnterpriseURL == "" {
		return l.APIEndpoint
	}
	host := strings.TrimPrefix(strings.TrimPrefix(l.EnterpriseURL, "https://"), "http://")
	return "https://copilot-api." + strings.TrimRight(host, "/")
}

// due tells whether a login ends within the given time from now.
func (l *Login) due(now time.Time, within time.Duration) bool {
	return l.Expires > 0 && l.Expires <= now.Add(within).UnixMilli()
}

// maxFile bounds the credential file; a real one has a few KiB.
const maxFile = 1 << 20

// ReadLogin returns the stored login of a provider, nil when there is none. A
// missing file has no logins; one that cannot be read or understood is a
// failure, so that nobody takes it for a missing login and writes over it.
//
// A login stands at the top level under the provider's id, under providers, or
// is the whole file; the first of these that is there counts.
func ReadLogin(file, provider string) (*Login, *messages.Failure) {
	if file == "" {
		return nil, nil
	}
	data, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var login *Login
	if err == nil {
		login, err = parseLogin(data, provider)
	}
	if err != nil {
		return nil, &messages.Failure{
			Type:    messages.FailAuthentication,
			Code:    messages.CodeInvalid,
			Message: fmt.Sprintf("credential file %s: %v", file, reason(err)),
			Hint:    "repair or remove it, or sign in again with: codework auth login --" + provider,
		}
	}
	return login, nil
}

// reason is an error without the path, which the caller names.
func reason(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

func read(file string) ([]byte, error) {
	// Asked first: opening a pipe waits for somebody who writes into it.
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		return nil, errors.New("larger than 1 MiB")
	}
	return data, err
}

// editorToken finds the token that the Copilot extension of an editor stored.
// These files belong to somebody else: what cannot be used is as good as none.
func editorToken(lookup Lookup) string {
	dir, _ := lookup("XDG_CONFIG_HOME")
	if dir == "" {
		home, _ := lookup("HOME")
		dir = filepath.Join(home, ".config")
	}
	if local, _ := lookup("LOCALAPPDATA"); local != "" { // Windows
		dir = local
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	for _, name := range []string{"hosts.json", "apps.json"} {
		data, err := read(filepath.Join(dir, "github-copilot", name))
		if err != nil {
			continue
		}
		if token := parseEditor(data); token != "" {
			return token
		}
	}
	return ""
}

// parseEditor reads {"github.com": {"oauth_token": …}}, where apps.json has
// the app's id behind the host. Of several apps the first by name counts.
func parseEditor(data []byte) string {
	var hosts map[string]json.RawMessage
	if json.Unmarshal(data, &hosts) != nil {
		return ""
	}
	var names []string
	for name := range hosts {
		if host, _, _ := strings.Cut(name, ":"); host == "github.com" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		var entry struct {
			Token string `json:"oauth_token"`
		}
		if json.Unmarshal(hosts[name], &entry) == nil && copilotToken(entry.Token) {
			return entry.Token
		}
	}
	return ""
}
