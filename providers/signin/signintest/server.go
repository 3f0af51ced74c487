// Package signintest plays the services that a person signs in with: OpenAI's
// for Codex, GitHub's and Copilot's. Everything that those would refuse, such
// as a verifier that is not that of the challenge, a code that is used twice or
// a request without its token, is refused here too and counts as a violation.
//
// A Server is asked for https://host/path at /host/path. It is safe for
// concurrent use; its exported fields are set before the first request.
package signintest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// What the services give out.
const (
	Account      = "acc-7f31"
	RefreshToken = "rt_9d2c41f0a7b84e55refresh"
	GitHubToken  = "ghu_16C7e42F292c6912E7710c838347Ae178B4a"
	UserCode     = "WDJB-MJHT"
	deviceID     = "device-3584d83530557fdd1f46af8289938c8ef79f9dc5"
	deviceProof  = "device-verifier-0f6c2b7e91d84a3c95e1b7d20a4f8c6e"
)

// AccessToken is the Codex token, a JWT that names Account.
var AccessToken = jwt(`{"https://api.openai.com/auth":{"chatgpt_account_id":"` + Account + `"}}`)

func jwt(payload string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"none"}`)) + "." + enc([]byte(payload)) + ".c2lnbmF0dXJl"
}

// Facts of the clients that the services know.
const (
	codexClient   = "app_EMoamEEZ73f0CkXaXp7hrann"
	copilotClient = "Iv1.b507a08c87ecfe98"
	redirect      = "http://localhost:1455/auth/callback"
	openAI        = "/auth.openai.com"
)

// Answer is one that a test wants instead of the usual one.
type Answer struct {
	Status int // 0 is 200
	Body   string
	Header http.Header
}

// Server plays all services.
type Server struct {
	// Domain is that of GitHub; empty means github.com.
	Domain string
	// API is what GitHub says where Copilot is.
	API string
	// Interval is that of the codes, as JSON; empty means 5.
	Interval string
	// Pending is how often a poll says that nobody has approved yet.
	Pending int

	mu         sync.Mutex // guards what follows
	scripts    map[string][]Answer
	challenges map[string]grant // by code
	polls      int
	enabled    []string
	requests   []string
	secrets    []string
	violations []string
}

// grant is what a code is good for, once.
type grant struct{ challenge, redirect string }

// Script gives the next answers to requests for a path below their host, such
// as /oauth/token, in place of the usual ones.
func (s *Server) Script(path string, answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scripts == nil {
		s.scripts = map[string][]Answer{}
	}
	s.scripts[path] = append(s.scripts[path], answers...)
}

// Requests are the methods and paths that were asked for.
func (s *Server) Requests() []string { return s.copied(&s.requests) }

// Enabled are the models whose terms were accepted.
func (s *Server) Enabled() []string { return s.copied(&s.enabled) }

// Violations are the requests that a service would have refused.
func (s *Server) Violations() []string { return s.copied(&s.violations) }

// Secrets are all codes, verifiers and tokens that were used so far.
func (s *Server) Secrets() []string {
	return append(s.copied(&s.secrets), AccessToken, RefreshToken, GitHubToken, deviceID, deviceProof)
}

func (s *Server) copied(list *[]string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(*list)
}

// RoundTrip answers a request without a network.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	in := r.Clone(r.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	in.URL = &url.URL{Path: "/" + r.URL.Host + r.URL.Path, RawQuery: r.URL.RawQuery}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, in)
	return w.Result(), nil
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has left
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	host, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	path = "/" + path
	if next := s.scripts[path]; len(next) > 0 {
		s.scripts[path] = next[1:]
		for name, values := range next[0].Header {
			w.Header()[name] = values
		}
		if next[0].Status != 0 {
			w.WriteHeader(next[0].Status)
		}
		_, _ = io.WriteString(w, next[0].Body)
		return
	}
	var fields map[string]string
	if r.Header.Get("Content-Type") == "application/json" {
		_ = json.Unmarshal(body, &fields) // what is missing is refused below
	}
	domain := s.Domain
	if domain == "" {
		domain = "github.com"
	}
	switch r.Method + " /" + host + path {
	case "GET " + openAI + "/oauth/authorize":
		s.authorize(w, r)
	case "POST " + openAI + "/oauth/token":
		s.token(w, r)
	case "POST " + openAI + "/api/accounts/deviceauth/usercode":
		if s.refuse(w, fields["client_id"] != codexClient, "usercode: client_id") {
			return
		}
		fmt.Fprintf(w, `{"device_auth_id":%q,"user_code":%q,"interval":%s}`, deviceID, UserCode, s.interval())
	case "POST " + openAI + "/api/accounts/deviceauth/token":
		s.devicePoll(w, fields)
	case "POST /" + domain + "/login/device/code":
		if s.refuse(w, fields["client_id"] != copilotClient || fields["scope"] != "read:user", "device code: client_id or scope") {
			return
		}
		fmt.Fprintf(w, `{"device_code":%q,"user_code":%q,"verification_uri":"https://%s/login/device","expires_in":899,"interval":%s}`, deviceID, UserCode, domain, s.interval())
	case "POST /" + domain + "/login/oauth/access_token":
		bad := fields["client_id"] != copilotClient || fields["device_code"] != deviceID || fields["grant_type"] != "urn:ietf:params:oauth:grant-type:device_code"
		if s.refuse(w, bad, "access_token: fields") {
			return
		}
		if s.polls++; s.polls <= s.Pending {
			fmt.Fprint(w, `{"error":"authorization_pending"}`)
			return
		}
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer","scope":"read:user"}`, GitHubToken)
	case "GET /api." + domain + "/copilot_internal/user":
		if s.refuse(w, !bearer(r) || r.Header.Get("X-GitHub-Api-Version") != "2025-04-01", "user: headers") {
			return
		}
		fmt.Fprintf(w, `{"chat_enabled":true,"copilot_plan":"individual","endpoints":{"api":%q}}`, s.API)
	default:
		s.copilot(w, r, path)
	}
}

// copilot is on any host that the account was told.
func (s *Server) copilot(w http.ResponseWriter, r *http.Request, path string) {
	name, isPolicy := strings.CutPrefix(path, "/models/")
	switch {
	case s.refuse(w, !bearer(r) || r.Header.Get("Copilot-Integration-Id") == "", r.Method+" "+r.URL.Path+": headers"):
	case r.Method == http.MethodGet && path == "/models":
		fmt.Fprint(w, `{"data":[
			{"id":"gpt-5","capabilities":{"supports":{"tool_calls":true}},"policy":{"state":"enabled"}},
			{"id":"claude-sonnet","capabilities":{"supports":{"tool_calls":true}},"policy":{"state":"unconfigured"}},
			{"id":"old","capabilities":{"supports":{"tool_calls":true}},"policy":{"state":"disabled"}},
			{"id":"embedding","capabilities":{"supports":{}}},
			{"id":"gpt-4.1","capabilities":{"supports":{"tool_calls":true}}}]}`)
	case r.Method == http.MethodPost && isPolicy && strings.HasSuffix(name, "/policy"):
		body, _ := io.ReadAll(r.Body) // from memory
		if !s.refuse(w, string(body) != `{"state":"enabled"}`, "policy: body") {
			s.enabled = append(s.enabled, strings.TrimSuffix(name, "/policy"))
		}
	default:
		s.refuse(w, true, r.Method+" "+r.URL.Path+": no such thing")
	}
}

func bearer(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+GitHubToken }

// interval is what codes say about polling.
func (s *Server) interval() string {
	if s.Interval == "" {
		return "5"
	}
	return s.Interval
}

// refuse answers a request that is not as it should be.
func (s *Server) refuse(w http.ResponseWriter, bad bool, what string) bool {
	if !bad {
		return false
	}
	s.violations = append(s.violations, what)
	w.WriteHeader(http.StatusBadRequest)
	fmt.Fprintf(w, `{"error":"invalid_request","error_description":%q}`, what)
	return true
}

// authorize is the page in the browser, where the person agrees at once.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	for name, want := range map[string]string{
		"response_type": "code", "client_id": codexClient, "redirect_uri": redirect,
		"scope": "openid profile email offline_access", "code_challenge_method": "S256",
		"id_token_add_organizations": "true", "codex_cli_simplified_flow": "true", "originator": "codework",
	} {
		if s.refuse(w, q.Get(name) != want, "authorize: "+name) {
			return
		}
	}
	if s.refuse(w, len(q.Get("state")) != 32, "authorize: state") || s.refuse(w, len(q.Get("code_challenge")) != 43, "authorize: challenge") {
		return
	}
	code := s.grant(grant{q.Get("code_challenge"), redirect})
	http.Redirect(w, r, redirect+"?"+url.Values{"code": {code}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
}

// grant makes a code.
func (s *Server) grant(g grant) string {
	if s.challenges == nil {
		s.challenges = map[string]grant{}
	}
	code := fmt.Sprintf("ac_code%d%x", len(s.challenges), sha256.Sum256([]byte(g.challenge)))
	s.challenges[code] = g
	s.secrets = append(s.secrets, code)
	return code
}

func (s *Server) devicePoll(w http.ResponseWriter, fields map[string]string) {
	if s.refuse(w, fields["device_auth_id"] != deviceID || fields["user_code"] != UserCode, "device token: fields") {
		return
	}
	if s.polls++; s.polls <= s.Pending {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"error":{"code":"deviceauth_authorization_unknown","message":"not yet"}}`)
		return
	}
	code := s.grant(grant{challenge(deviceProof), "https://auth.openai.com/deviceauth/callback"})
	fmt.Fprintf(w, `{"authorization_code":%q,"code_verifier":%q}`, code, deviceProof)
}

func challenge(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// token makes tokens of a code, or of RefreshToken as often as one likes.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm() // what is missing is refused below
	const tokens = `{"access_token":%q,"refresh_token":%q,"expires_in":864000,"token_type":"bearer"}`
	if r.PostForm.Get("grant_type") == "refresh_token" {
		if !s.refuse(w, r.PostForm.Get("refresh_token") != RefreshToken || r.PostForm.Get("client_id") != codexClient, "refresh: fields") {
			fmt.Fprintf(w, tokens, AccessToken, RefreshToken)
		}
		return
	}
	code, verifier := r.PostForm.Get("code"), r.PostForm.Get("code_verifier")
	g, ok := s.challenges[code]
	delete(s.challenges, code)
	s.secrets = append(s.secrets, verifier)
	switch {
	case s.refuse(w, r.PostForm.Get("grant_type") != "authorization_code" || r.PostForm.Get("client_id") != codexClient, "token: fields"):
	case s.refuse(w, !ok, "token: unknown code"):
	case s.refuse(w, g.challenge != challenge(verifier), "wrong verifier"):
	case s.refuse(w, g.redirect != r.PostForm.Get("redirect_uri"), "token: redirect_uri"):
	default:
		fmt.Fprintf(w, tokens, AccessToken, RefreshToken)
	}
}
