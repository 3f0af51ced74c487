package signin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codework/providers/credentials"
	"codework/providers/signin/signintest"
)

// told is what a sign-in told the person.
type told struct {
	opened, address, code string
	until                 time.Time
	notices               []string
}

// options are those of a sign-in with these services, without a network.
func (w *told) options(s http.RoundTripper) Options {
	return Options{
		Client: &http.Client{Transport: s},
		Open:   func(address string) { w.opened = address },
		Code: func(address, userCode string, until time.Time) {
			w.address, w.code, w.until = address, userCode, until
		},
		Notice: func(text string) { w.notices = append(w.notices, text) },
	}
}

// clean fails when a service refused something, or a secret was told.
func clean(t *testing.T, s *signintest.Server, w *told, err error) {
	t.Helper()
	if v := s.Violations(); len(v) > 0 {
		t.Errorf("the services refused: %q", v)
	}
	texts := append([]string{w.address}, w.notices...)
	if err != nil {
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		if strings.ContainsAny(text, "\r\n\x1b") {
			t.Errorf("more than a line: %q", text)
		}
		for _, secret := range s.Secrets() {
			if secret != "" && strings.Contains(text, secret) {
				t.Errorf("a secret in %q", text)
			}
		}
	}
}

// mustBe fails unless the error wraps one and says all of it.
func mustBe(t *testing.T, err, is error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%q is not %q", err, is)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("no %q in %q", p, err)
		}
	}
}

const (
	pollPath  = "/login/oauth/access_token"
	startPath = "/login/device/code"
	usercode  = "/api/accounts/deviceauth/usercode"
	codexPoll = "/api/accounts/deviceauth/token"
)

func say(status int, body string) signintest.Answer {
	return signintest.Answer{Status: status, Body: body}
}

func TestCodexSignsInByACode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, start := &signintest.Server{Interval: `"7"`, Pending: 2}, &told{}, time.Now()
		got, err := CodexDevice(t.Context(), w.options(s))
		if err != nil {
			t.Fatal(err)
		}
		want := credentials.Login{Access: signintest.AccessToken, Refresh: signintest.RefreshToken, AccountID: signintest.Account, Expires: time.Now().Add(240 * time.Hour).UnixMilli()}
		if got.Provider != "openai-codex" || !same(t, got.Login, want) {
			t.Errorf("got %+v", got)
		}
		if w.address != "https://auth.openai.com/codex/device" || w.code != signintest.UserCode || !w.until.Equal(start.Add(15*time.Minute)) {
			t.Errorf("the person was told %+v", w)
		}
		if took := time.Since(start); took != 21*time.Second {
			t.Errorf("three polls, 7 s apart as a text says, took %v", took)
		}
		clean(t, s, w, err)
	})
}

func TestCopilotSignsInByACode(t *testing.T) {
	for _, c := range []struct {
		name, enterprise, domain, api, base string
	}{
		{"github.com", "", "", "", "api.githubcopilot.com"},
		{"the account's endpoint", "", "", "https://api.individual.githubcopilot.com/", "api.individual.githubcopilot.com"},
		{"an enterprise", "https://Company.ghe.com/", "company.ghe.com", "", "copilot-api.company.ghe.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, start := &signintest.Server{Domain: c.domain, API: c.api, Pending: 2}, &told{}, time.Now()
				got, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s), Enterprise: c.enterprise, EnableModels: true})
				if err != nil {
					t.Fatal(err)
				}
				want := credentials.Login{Access: signintest.GitHubToken, EnterpriseURL: c.domain, APIEndpoint: strings.TrimRight(c.api, "/"),
					AvailableModelIDs: []string{"gpt-5", "claude-sonnet", "gpt-4.1"}}
				if got.Provider != "github-copilot" || !same(t, got.Login, want) {
					t.Errorf("got %+v", got)
				}
				if !slices.Equal(s.Enabled(), []string{"claude-sonnet"}) {
					t.Errorf("enabled %q", s.Enabled())
				}
				if !slices.Contains(s.Requests(), "GET /"+c.base+"/models") {
					t.Errorf("no models of %s in %q", c.base, s.Requests())
				}
				if took := time.Since(start); took != 5*time.Second+8*time.Second+8*time.Second {
					t.Errorf("polls after 5, 8 and 8 s took %v", took)
				}
				clean(t, s, w, err)
			})
		})
	}
}

func TestModelsAreEnabledOnlyWhenAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := &signintest.Server{}, &told{}
		if _, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)}); err != nil {
			t.Fatal(err)
		}
		if got := s.Enabled(); len(got) != 0 {
			t.Errorf("enabled %q", got)
		}
	})
}

// same compares logins as they are stored.
func same(t *testing.T, a, b credentials.Login) bool {
	t.Helper()
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	if err := errors.Join(errX, errY); err != nil {
		t.Fatal(err)
	}
	return string(x) == string(y)
}

// How a poll goes on after an answer, and how long that takes until the
// approval that follows. Copilot begins after 5 s and then waits 3 s more.
func TestPollsGoOnAfterWhatPasses(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []signintest.Answer
		took    time.Duration
	}{
		{"at once", nil, 5 * time.Second},
		{"pending", []signintest.Answer{say(200, `{"error":"authorization_pending"}`)}, 13 * time.Second},
		{"slow down", []signintest.Answer{say(200, `{"error":"slow_down"}`)}, 18 * time.Second},
		{"slow down by the service's interval", []signintest.Answer{say(200, `{"error":"slow_down","interval":20}`)}, 28 * time.Second},
		{"an interval of less than a second", []signintest.Answer{say(200, `{"error":"slow_down","interval":0.01}`)}, 9 * time.Second},
		{"slow down twice", []signintest.Answer{say(400, `{"error":"slow_down"}`), say(400, `{"error":"slow_down"}`)}, 5*time.Second + 13*time.Second + 18*time.Second},
		{"slower stays", []signintest.Answer{say(200, `{"error":"slow_down"}`), say(200, `{"error":"authorization_pending"}`)}, 5*time.Second + 13*time.Second + 13*time.Second},
		{"too many requests", []signintest.Answer{say(429, `slow`)}, 18 * time.Second},
		{"server errors", []signintest.Answer{say(500, `<html>`), say(503, ``)}, 21 * time.Second},
		{"server errors now and then", []signintest.Answer{say(500, ``), say(502, ``), say(200, `{"error":"authorization_pending"}`), say(500, ``), say(500, ``)}, 45 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w, start := &signintest.Server{}, &told{}, time.Now()
				s.Script(pollPath, c.answers...)
				_, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("took %v", took)
				}
				clean(t, s, w, err)
			})
		})
	}
}

func TestADeviceSignInEndsWith(t *testing.T) {
	slow := say(200, `{"error":"slow_down","interval":900}`)
	leak := `{"error":"server_trouble","error_description":"for device-3584d83530557fdd1f46af8289938c8ef79f9dc5 and ` + signintest.GitHubToken + `"}`
	for _, c := range []struct {
		name, path string
		answers    []signintest.Answer
		is         error
		parts      []string
	}{
		{"start refused", startPath, []signintest.Answer{say(401, `{"error":"unauthorized_client","error_description":"no such client"}`)}, nil, []string{"start: HTTP 401: no such client"}},
		{"start refused with 200", startPath, []signintest.Answer{say(200, `{"error":"device_flow_disabled"}`)}, nil, []string{"device_flow_disabled"}},
		{"start without JSON", startPath, []signintest.Answer{say(200, `<html>hello</html>`)}, nil, []string{"no usable code"}},
		{"start redirected", startPath, []signintest.Answer{{Status: 302, Header: http.Header{"Location": {"https://elsewhere.example/"}}}}, nil, []string{"HTTP 302"}},
		{"start with a server error", startPath, []signintest.Answer{say(500, `oops`)}, nil, []string{"HTTP 500"}},
		{"a code of control characters", startPath, []signintest.Answer{say(200, `{"device_code":"device-code-1","user_code":"\u001b[2J","verification_uri":"https://github.com/login/device"}`)}, nil, []string{"no usable code"}},
		{"expired", pollPath, []signintest.Answer{say(200, `{"error":"expired_token"}`)}, ErrExpired, []string{"nobody approved"}},
		{"expired after slow down", pollPath, []signintest.Answer{slow}, ErrExpired, []string{"clock"}},
		{"denied", pollPath, []signintest.Answer{say(200, `{"error":"access_denied"}`)}, ErrDenied, nil},
		{"something else", pollPath, []signintest.Answer{say(400, leak)}, nil, []string{"HTTP 400", "<redacted>"}},
		{"no JSON", pollPath, []signintest.Answer{say(200, `granted!`)}, nil, []string{"no usable token"}},
		{"no token", pollPath, []signintest.Answer{say(200, `{}`)}, nil, []string{"no usable token"}},
		{"a token of two lines", pollPath, []signintest.Answer{say(200, `{"access_token":"ghu_a\r\nX-Evil: 1"}`)}, nil, []string{"no usable token"}},
		{"three server errors in a row", pollPath, []signintest.Answer{say(500, leak), say(502, ``), say(503, leak)}, nil, []string{"HTTP 503"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := &signintest.Server{}, &told{}
				s.Script(c.path, c.answers...)
				_, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
				mustBe(t, err, c.is, append(c.parts, "sign in to github-copilot: ")...)
				clean(t, s, w, err)
			})
		})
	}
}

func TestACodexDeviceSignInEndsWith(t *testing.T) {
	for _, c := range []struct {
		name, path string
		answer     signintest.Answer
		is         error
		parts      []string
	}{
		{"not available", usercode, say(404, `{}`), ErrDenied, []string{"not available for this account"}},
		{"no code", usercode, say(200, `{"device_auth_id":"x"}`), nil, []string{"no usable code"}},
		{"denied", codexPoll, say(403, `{"error":{"code":"access_denied"}}`), ErrDenied, nil},
		{"an approval without a verifier", codexPoll, say(200, `{"authorization_code":"ac_123456789"}`), nil, []string{"no usable code"}},
		{"exchange refused", "/oauth/token", say(400, `{"error":"invalid_grant","error_description":"code ac_0123456789 is used"}`), nil, []string{"exchange the code: HTTP 400", "<redacted>"}},
		{"exchange with a server error", "/oauth/token", say(500, `oops`), nil, []string{"HTTP 500"}},
		{"exchange without JSON", "/oauth/token", say(200, `oops`), nil, []string{"no usable access_token, refresh_token, expires_in"}},
		{"no refresh token", "/oauth/token", say(200, `{"access_token":"`+signintest.AccessToken+`","expires_in":3600}`), nil, []string{"no usable refresh_token"}},
		{"no lifetime", "/oauth/token", say(200, `{"access_token":"`+signintest.AccessToken+`","refresh_token":"rt_123456"}`), nil, []string{"no usable expires_in"}},
		{"no account", "/oauth/token", say(200, `{"access_token":"a.b.c","refresh_token":"rt_123456","expires_in":1}`), nil, []string{"names no ChatGPT account"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := &signintest.Server{}, &told{}
				s.Script(c.path, c.answer)
				_, err := CodexDevice(t.Context(), w.options(s))
				mustBe(t, err, c.is, append(c.parts, "sign in to openai-codex: ")...)
				clean(t, s, w, err)
			})
		})
	}
}

// 403, 404 and a code of its own all mean that nobody has approved yet.
func TestCodexPollsGoOnWhilePending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, start := &signintest.Server{}, &told{}, time.Now()
		s.Script(codexPoll, say(403, ``), say(404, `<html>`), say(400, `{"error":"deviceauth_authorization_pending"}`),
			say(400, `{"error":{"code":"deviceauth_authorization_pending"}}`), say(403, `{"error":{"code":"slow_down"}}`))
		_, err := CodexDevice(t.Context(), w.options(s))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 5*5*time.Second+10*time.Second {
			t.Errorf("took %v", took)
		}
		clean(t, s, w, err)
	})
}

func TestNobodyApproves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, start := &signintest.Server{Pending: 1 << 30}, &told{}, time.Now()
		_, err := CodexDevice(t.Context(), w.options(s))
		mustBe(t, err, ErrExpired, "nobody approved it in time")
		if took := time.Since(start); took != 15*time.Minute {
			t.Errorf("took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, w, start := &signintest.Server{Pending: 1 << 30}, &told{}, time.Now()
		_, err := Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
		mustBe(t, err, ErrExpired)
		if took := time.Since(start); took != 899*time.Second {
			t.Errorf("took %v, the code lived 899 s", took)
		}
	})
}

func TestAPollEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("ctrl-c")
		ctx, cancel := context.WithCancelCause(t.Context())
		s, w, start := &signintest.Server{Pending: 1 << 30}, &told{}, time.Now()
		time.AfterFunc(time.Minute, func() { cancel(cause) })
		_, err := CodexDevice(ctx, w.options(s))
		mustBe(t, err, cause)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
	})
}

// silent never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestASilentServiceIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, start := &told{}, time.Now()
		_, err := CodexDevice(t.Context(), w.options(silent{}))
		mustBe(t, err, nil, "no answer from auth.openai.com within 30s")
		if took := time.Since(start); took != requestTimeout {
			t.Errorf("took %v", took)
		}
	})
}

func TestNoBrowserIsSentAnywhereButTheWeb(t *testing.T) {
	for address, good := range map[string]bool{
		"https://github.com/login/device":       true,
		"http://ghe.internal:8080/login/device": true,
		"javascript:alert(1)":                   false,
		"file:///etc/passwd":                    false,
		"ms-settings:privacy":                   false,
		"--help":                                false,
		"":                                      false,
		"https://":                              false,
		"https://github.com@evil.example/":      false,
		"https://evil.example/\u001b[2J":        false,
		"https://evil.example/\u202egpj":        false,
		"https://evil.example/a b":              false,
		"https://evil.example/" + strings.Repeat("a", 3000): false,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, w := &signintest.Server{}, &told{}
			body, err := json.Marshal(map[string]any{"device_code": "device-3584d83530557fdd1f46af8289938c8ef79f9dc5", "user_code": "A-B", "verification_uri": address})
			if err != nil {
				t.Fatal(err)
			}
			s.Script(startPath, say(200, string(body)))
			_, err = Copilot(t.Context(), CopilotOptions{Options: w.options(s)})
			if good != (err == nil) || good != (w.address == address && address != "") {
				t.Errorf("%q: %v, told %q", address, err, w.address)
			}
			if !good {
				mustBe(t, err, nil, "no usable address")
			}
		})
	}
}
