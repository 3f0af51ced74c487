package signin

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codework/providers/signin/signintest"
)

func TestAnAccountWithoutCopilotIsRefused(t *testing.T) {
	for body, why := range map[string]string{
		`{"chat_enabled":false,"access_type_sku":"no_access"}`:                                 "no_access",
		`{"chat_enabled":false,"error_details":{"message":"your company\nhas turned it off"}}`: "your company has turned it off",
		`{"chat_enabled":false,"message":"token ` + signintest.GitHubToken + ` has no seat"}`:  "token <redacted> has no seat",
		`{"chat_enabled":false}`: "no reason given",
	} {
		synctest.Test(t, func(t *testing.T) {
			s, w := &signintest.Server{}, &told{}
			s.Script("/copilot_internal/user", say(200, body))
			_, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
			mustBe(t, err, ErrDenied, "not enabled for this account ("+why+")")
			clean(t, s, w, err)
		})
	}
}

// What cannot be found out about the account does not stand in the way.
func TestLookupsThatFailAreNotices(t *testing.T) {
	later := func(s string) http.Header { return http.Header{"Retry-After": {s}} }
	for _, c := range []struct {
		name, path string
		answers    []signintest.Answer
		notice     string
		models     int // -1: not known
		took       time.Duration
	}{
		{"no such page", "/copilot_internal/user", []signintest.Answer{say(404, `{"message":"Not Found"}`)}, "look up what the account may do: HTTP 404: Not Found", 3, 0},
		{"a server error", "/copilot_internal/user", []signintest.Answer{say(500, ``)}, "HTTP 500", 3, 0},
		{"no JSON", "/copilot_internal/user", []signintest.Answer{say(200, `hello`)}, "no JSON object", 3, 0},
		{"an endpoint without TLS", "/copilot_internal/user", []signintest.Answer{say(200, `{"endpoints":{"api":"http://127.0.0.1:80"}}`)}, "no https URL", 3, 0},
		{"a token in the words", "/copilot_internal/user", []signintest.Answer{say(403, `{"message":"Bearer `+signintest.GitHubToken+`"}`)}, "HTTP 403: Bearer <redacted>", 3, 0},
		{"models refused", "/models", []signintest.Answer{say(403, `{"error":{"message":"no"}}`)}, "list the models: HTTP 403: no", -1, 0},
		{"models without JSON", "/models", []signintest.Answer{say(200, `hello`)}, "no list", -1, 0},
		{"models rate-limited once", "/models", []signintest.Answer{say(429, ``)}, "", 3, time.Second},
		{"models rate-limited twice", "/models", []signintest.Answer{say(429, ``), say(429, ``)}, "", 3, 3 * time.Second},
		{"models rate-limited always", "/models", []signintest.Answer{say(429, ``), say(429, ``), say(429, ``)}, "HTTP 429", -1, 3 * time.Second},
		{"models rate-limited for a while", "/models", []signintest.Answer{{Status: 429, Header: later("2")}}, "", 3, 2 * time.Second},
		{"models rate-limited for longer", "/models", []signintest.Answer{{Status: 429, Header: later("60")}}, "HTTP 429", -1, 0},
		{"no models", "/models", []signintest.Answer{say(200, `{"data":[]}`)}, "", 0, 0},
		{"odd models", "/models", []signintest.Answer{say(200, `{"data":[7,null,{"id":5},{"id":"a b","capabilities":{"supports":{"tool_calls":true}}},{"id":"ok","capabilities":{"supports":{"tool_calls":true}}},{"id":"ok","capabilities":{"supports":{"tool_calls":true}}}]}`)}, "", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, start := &signintest.Server{}, &told{}, time.Now()
				s.Script(c.path, c.answers...)
				got, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
				if err != nil {
					t.Fatal(err)
				}
				models := len(got.AvailableModelIDs)
				if got.AvailableModelIDs == nil {
					models = -1
				}
				if models != c.models || got.Access != signintest.GitHubToken || got.APIEndpoint != "" {
					t.Errorf("got %d models, endpoint %q", models, got.APIEndpoint)
				}
				if said := strings.Join(w.notices, "\n"); c.notice == "" && said != "" || !strings.Contains(said, c.notice) {
					t.Errorf("notices: %q", said)
				}
				if took := time.Since(start) - defaultInterval; took != c.took {
					t.Errorf("took %v", took)
				}
				clean(t, s, w, nil)
			})
		})
	}
}

func TestAModelThatCannotBeEnabledIsANotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := &signintest.Server{}, &told{}
		s.Script("/models/claude-sonnet/policy", say(403, `{"message":"ask your admin"}`))
		got, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s), EnableModels: true})
		if err != nil || len(got.AvailableModelIDs) != 3 {
			t.Errorf("%v, %q", err, got.AvailableModelIDs)
		}
		if want := []string{"enable the model claude-sonnet: HTTP 403: ask your admin"}; !slices.Equal(w.notices, want) {
			t.Errorf("notices: %q", w.notices)
		}
	})
}

func TestEnterpriseHosts(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "github.com": "", "https://github.com/": "", "WWW.GitHub.com": "",
		"company.ghe.com": "company.ghe.com", " https://Company.ghe.com/ ": "company.ghe.com", "git.corp.example:8443": "git.corp.example:8443",
	} {
		if got, err := EnterpriseHost(in); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"http://company.ghe.com", "company", "a/b.example", "user@host.example", "host.example/path", "host.example?q", "host.example#f",
		"-a.example", "a..example", "host.example:port", "h\u00f6st.example", "host.example\nx", strings.Repeat("a.", 200) + "example"} {
		if got, err := EnterpriseHost(in); err == nil {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestACodeThatLivesForYearsIsWaitedForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, start := &signintest.Server{}, &told{}, time.Now()
		s.Script(startPath, say(200, `{"device_code":"some-device-code","user_code":"A-B","verification_uri":"https://github.com/login/device","expires_in":1e12,"interval":1e6}`))
		_, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
		mustBe(t, err, ErrExpired)
		if took := time.Since(start); took != time.Hour {
			t.Errorf("took %v", took)
		}
	})
}

// A token is masked because it is known, also one that looks like a word.
func TestTokensAreMaskedByValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := &signintest.Server{}, &told{}
		s.Script(pollPath, say(200, `{"access_token":"plainword"}`))
		s.Script("/copilot_internal/user", say(200, `{"chat_enabled":false,"message":"no seat for plainword"}`))
		_, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
		mustBe(t, err, ErrDenied, "no seat for <redacted>")
	})
}
