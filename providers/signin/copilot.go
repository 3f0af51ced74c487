package signin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"codework/providers/credentials"
)

// Facts of the client that GitHub knows Copilot in editors by.
const (
	copilotClientID = "Iv1.b507a08c87ecfe98"
	copilotScope    = "read:user"
	copilotBase     = "https://api.githubcopilot.com"
	githubDomain    = "github.com"
	deviceGrant     = "urn:ietf:params:oauth:grant-type:device_code" // RFC 8628 3.4
	// userVersion is the version of GitHub's interface that tells about the
	// account, modelsVersion that of Copilot's own.
	userVersion   = "2025-04-01"
	modelsVersion = "2026-08-01"
)

const (
	// pollMargin keeps polls from coming early by a clock that is a bit fast,
	// which GitHub answers with a longer interval.
	pollMargin = 3 * time.Second
	// maxExpiry bounds the lifetime that GitHub gives a code; it is 15 minutes.
	maxExpiry = time.Hour
	// modelsRetries and modelsLimit bound the wait for the list of models.
	modelsRetries = 2
	modelsLimit   = 5 * time.Second
	// enableLimit bounds enabling all models.
	enableLimit = time.Minute
	// maxModels is more than any account has.
	maxModels = 500
	// maxModelID is longer than any name.
	maxModelID = 200
)

// CopilotOptions are Options for Copilot.
type CopilotOptions struct {
	Options
	// Enterprise is the host of a GitHub Enterprise; empty means github.com.
	Enterprise string
	// EnableModels accepts the terms of models that were not asked about yet.
	EnableModels bool
}

// Copilot signs in to GitHub Copilot by a browser on any machine, where the
// person enters a code. An account without Copilot is refused. What cannot be
// found out about the account is a notice, not an error.
func Copilot(ctx context.Context, o CopilotOptions) (credentials.Credentials, error) {
	f := begin(credentials.CopilotID, o.Options)
	login, err := f.copilot(ctx, o)
	return f.end(ctx, login, err)
}

func (f *flow) copilot(ctx context.Context, o CopilotOptions) (credentials.Login, error) {
	l := credentials.Login{}
	enterprise, err := EnterpriseHost(o.Enterprise)
	if err != nil {
		return l, err
	}
	domain := cmp.Or(enterprise, githubDomain)
	token, err := f.githubToken(ctx, domain)
	if err != nil {
		return l, err
	}
	l.Access, l.EnterpriseURL = token, enterprise
	if l.APIEndpoint, err = f.entitlement(ctx, domain, token); err != nil {
		return l, err
	}
	base := copilotBase
	if enterprise != "" {
		base = "https://copilot-api." + enterprise
	}
	base = strings.TrimRight(cmp.Or(l.APIEndpoint, base), "/")
	models, err := f.models(ctx, base, token)
	if ctx.Err() != nil {
		return l, ctx.Err()
	}
	if err != nil {
		f.Notice(err.Error())
		return l, nil
	}
	l.AvailableModelIDs = []string{}
	var fresh []string
	for _, m := range models {
		l.AvailableModelIDs = append(l.AvailableModelIDs, m.id)
		if m.policy == "unconfigured" {
			fresh = append(fresh, m.id)
		}
	}
	if o.EnableModels {
		f.enable(ctx, base, token, fresh)
	}
	return l, ctx.Err()
}

var hostForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+(:[0-9]{1,5})?$`)

// EnterpriseHost makes the name of a host of what a person calls their GitHub
// Enterprise: a host or its https address. It is empty for github.com itself.
func EnterpriseHost(s string) (string, error) {
	host := strings.ToLower(strings.TrimSpace(s))
	host = strings.TrimSuffix(strings.TrimPrefix(host, "https://"), "/")
	switch host {
	case "", githubDomain, "www." + githubDomain:
		return "", nil
	}
	if len(host) > 253 || !hostForm.MatchString(host) {
		return "", errors.New("the enterprise must be the name of a host, such as company.ghe.com")
	}
	return host, nil
}

// githubToken lets the person approve and returns the token.
func (f *flow) githubToken(ctx context.Context, domain string) (string, error) {
	r, err := f.postJSON(ctx, "https://"+domain+"/login/device/code", map[string]string{"client_id": copilotClientID, "scope": copilotScope})
	switch {
	case err != nil:
		return "", fmt.Errorf("start: %w", err)
	case !r.ok():
		return "", f.refused("start", r)
	}
	m := r.object()
	id, userCode, address := text(m["device_code"]), text(m["user_code"]), text(m["verification_uri"])
	if !visible(id, maxToken) || !visible(userCode, maxUserCode) {
		if m["error"] != nil { // GitHub says so with status 200
			return "", f.refused("start", r)
		}
		return "", errors.New("start: the answer has no usable code")
	}
	if !webAddress(address) {
		return "", errors.New("start: the answer has no usable address, only http and https are")
	}
	f.keep(id)
	interval, _ := seconds(m["interval"])
	expiry, ok := seconds(m["expires_in"])
	if !ok {
		expiry = personLimit
	}
	expiry = min(expiry, maxExpiry)
	f.Code(address, userCode, time.Now().Add(expiry))
	var token string
	err = device{interval: interval, margin: pollMargin, limit: expiry}.poll(ctx, func(ctx context.Context) (state, time.Duration, error) {
		r, err := f.postJSON(ctx, "https://"+domain+"/login/oauth/access_token",
			map[string]string{"client_id": copilotClientID, "device_code": id, "grant_type": deviceGrant})
		if err != nil {
			return stumbled, 0, err
		}
		m := r.object()
		if !r.ok() || m["error"] != nil {
			return f.judge(r)
		}
		if token = text(m["access_token"]); !visible(token, maxToken) {
			return granted, 0, errors.New("the approval has no usable token")
		}
		f.keep(token)
		return granted, 0, nil
	})
	return token, err
}

// maxAddress is longer than an address that a person could check.
const maxAddress = 2048

// webAddress tells whether a browser may be sent there.
func webAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && visible(s, maxAddress) && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil
}

// entitlement looks whether the account has Copilot, and where.
func (f *flow) entitlement(ctx context.Context, domain, token string) (endpoint string, err error) {
	header := http.Header{"Authorization": {"Bearer " + token}, "X-Github-Api-Version": {userVersion}}
	r, err := f.send(ctx, http.MethodGet, "https://api."+domain+"/copilot_internal/user", header, "", nil)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	const what = "look up what the account may do"
	m := r.object()
	switch {
	case err != nil:
		f.Notice(what + ": " + err.Error())
		return "", nil
	case !r.ok():
		f.Notice(f.refused(what, r).Error())
		return "", nil
	case m == nil:
		f.Notice(what + ": the answer is no JSON object")
		return "", nil
	}
	if string(m["chat_enabled"]) == "false" {
		why := ""
		for _, name := range []string{"error_details", "reason", "message", "access_type_sku", "copilot_plan"} {
			var inner map[string]json.RawMessage
			_ = json.Unmarshal(m[name], &inner) // most are texts
			if why = cmp.Or(text(inner["message"]), text(m[name])); why != "" {
				break
			}
		}
		why = cmp.Or(f.words(why), "no reason given")
		return "", fmt.Errorf("%w: Copilot Chat is not enabled for this account (%s)", ErrDenied, why)
	}
	var endpoints map[string]json.RawMessage
	_ = json.Unmarshal(m["endpoints"], &endpoints) // without it there is a default
	endpoint = strings.TrimRight(text(endpoints["api"]), "/")
	if endpoint != "" && (!strings.HasPrefix(endpoint, "https://") || !credentials.SafeURL(endpoint)) {
		f.Notice(what + ": the address of the models is no https URL and is not used")
		return "", nil
	}
	return endpoint, nil
}

// model is one that can call tools and is not disabled.
type model struct{ id, policy string }

func copilotHeader(token string) http.Header {
	return http.Header{
		"Authorization":          {"Bearer " + token},
		"User-Agent":             {"GitHubCopilotChat/0.35.0"},
		"Editor-Version":         {"vscode/1.107.0"},
		"Editor-Plugin-Version":  {"copilot-chat/0.35.0"},
		"Copilot-Integration-Id": {"vscode-chat"},
		"X-Github-Api-Version":   {modelsVersion},
	}
}

// models lists what the account can use.
func (f *flow) models(ctx context.Context, base, token string) ([]model, error) {
	const what = "list the models"
	limit, cancel := context.WithTimeout(ctx, modelsLimit)
	defer cancel()
	var r reply
	for n := 0; ; n++ {
		var err error
		// The wait for another try is short, an answer may take its time.
		if r, err = f.send(ctx, http.MethodGet, base+"/models", copilotHeader(token), "", nil); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if r.status != http.StatusTooManyRequests || n == modelsRetries {
			break
		}
		delay, ok := seconds(json.RawMessage(r.header.Get("Retry-After")))
		if !ok {
			delay = time.Second << n
		}
		if deadline, _ := limit.Deadline(); time.Now().Add(delay).After(deadline) || pause(limit, delay) != nil {
			break
		}
	}
	if !r.ok() {
		return nil, f.refused(what, r)
	}
	models, err := parseModels(r.body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return models, nil
}

// parseModels reads a list of models. What is no model is left out.
func parseModels(body []byte) ([]model, error) {
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil || list.Data == nil {
		return nil, errors.New("the answer is no list")
	}
	var models []model
	seen := map[string]bool{}
	for _, raw := range list.Data[:min(len(list.Data), maxModels)] {
		var m struct {
			ID           string `json:"id"`
			Capabilities struct {
				Supports struct {
					ToolCalls bool `json:"tool_calls"`
				} `json:"supports"`
			} `json:"capabilities"`
			Policy struct {
				State string `json:"state"`
			} `json:"policy"`
		}
		if json.Unmarshal(raw, &m) != nil || !visible(m.ID, maxModelID) || seen[m.ID] ||
			!m.Capabilities.Supports.ToolCalls || m.Policy.State == "disabled" {
			continue
		}
		seen[m.ID] = true
		models = append(models, model{m.ID, m.Policy.State})
	}
	return models, nil
}

// enable accepts the terms of models.
func (f *flow) enable(ctx context.Context, base, token string, ids []string) {
	limit, cancel := context.WithTimeout(ctx, enableLimit)
	defer cancel()
	for _, id := range ids {
		r, err := f.send(limit, http.MethodPost, base+"/models/"+url.PathEscape(id)+"/policy", copilotHeader(token), "application/json", []byte(`{"state":"enabled"}`))
		switch {
		case ctx.Err() != nil:
			return
		case limit.Err() != nil:
			f.Notice(fmt.Sprintf("not all models could be enabled within %v", enableLimit))
			return
		case err != nil:
			f.Notice(fmt.Sprintf("enable the model %s: %v", id, err))
		case !r.ok():
			f.Notice(f.refused("enable the model "+id, r).Error())
		default:
			f.Notice("enabled the model " + id)
		}
	}
}
