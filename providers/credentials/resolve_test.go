package credentials

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"codework/messages"
)

func TestAKeyOfADueLoginIsThatOfTheRenewedOne(t *testing.T) {
	server := newTokenServer(t)
	s := openTest(t, authFile(t, `{"openai-codex":`+dueLogin()+`}`), server.URL)
	found, f := s.Resolve(t.Context(), model("openai-codex", ""), "", env())
	if f != nil || found.Key != accessToken(1, "acc-1") || found.Source != SourceLogin || found.Login == nil || found.Login.AccountID != "acc-1" {
		t.Errorf("%+v, %v", found, f)
	}
	// A key from elsewhere has no login, and renews none.
	found, f = s.Resolve(t.Context(), model("openai-codex", ""), "", env("OPENAI_CODEX_API_KEY=k"))
	if asked, _ := server.counts(); f != nil || found.Key != "k" || found.Login != nil || asked != 1 {
		t.Errorf("%+v, %v, asked %d times", found, f, asked)
	}
}

func TestWhetherThereIsAKeyIsToldWithoutAskingAnybody(t *testing.T) {
	server := newTokenServer(t)
	login := authFile(t, `{"openai-codex":`+dueLogin()+`}`)
	for _, test := range []struct {
		name  string
		model messages.Model
		env   []string
		file  string
		want  bool
	}{
		{"a key that is named", model("p", "${K}"), []string{"K=x"}, "", true},
		{"its variable is not set", model("p", "${K}", "OTHER"), []string{"OTHER=x"}, "", false},
		{"its variable is empty", model("p", "${K}"), []string{"K="}, "", false},
		{"none is needed", model("ollama", ""), nil, "", true},
		{"a variable", model("p", "", "A", "B"), []string{"B=x"}, "", true},
		{"no variable", model("p", "", "A", "B"), nil, "", false},
		{"a login, even one that has ended", model("openai-codex", "", "OPENAI_CODEX_API_KEY"), nil, login, true},
		{"no login", model("github-copilot", "", "COPILOT_GITHUB_TOKEN"), nil, login, false},
		{"a token of CI is no login", model("github-copilot", "", "COPILOT_GITHUB_TOKEN"), []string{"GITHUB_TOKEN=ghs_x"}, login, false},
		{"a file that cannot be read", model("openai-codex", ""), nil, authFile(t, "{"), false},
	} {
		if got := openTest(t, test.file, server.URL).Has(test.model, env(test.env...)); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	if asked, _ := server.counts(); asked != 0 {
		t.Errorf("asked %d times", asked)
	}
}

func TestEachCallerRenewsByItsOwnWay(t *testing.T) {
	server := newTokenServer(t)
	s := openTest(t, authFile(t, `{"openai-codex":`+dueLogin()+`}`), server.URL)
	closed := errors.New("no such proxy")
	if _, err := s.With(func() (*http.Client, error) { return nil, closed }).Fresh(t.Context(), "openai-codex"); err == nil || !strings.Contains(err.Error(), closed.Error()) {
		t.Errorf("%v", err)
	}
	if asked, _ := server.counts(); asked != 0 {
		t.Error("the server was asked another way")
	}
	ways := 0
	own := s.With(func() (*http.Client, error) { ways++; return server.Client(), nil })
	for range 2 {
		if login, err := own.Fresh(t.Context(), "openai-codex"); err != nil || login.Access != accessToken(1, "acc-1") {
			t.Errorf("%+v, %v", login, err)
		}
	}
	if ways != 1 {
		t.Errorf("%d clients were made for one renewal", ways)
	}
}

func TestErrorsOfLoginsBecomeFailuresThatSayWhatToDo(t *testing.T) {
	answers := func(status int, body string) *Store {
		return OpenStore(Options{File: authFile(t, `{"openai-codex":`+dueLogin()+`}`), TokenURL: "http://127.0.0.1:1/", Now: atNoon,
			Client: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				if status == 0 {
					return nil, errors.New("unreachable")
				}
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
			})}})
	}
	for name, test := range map[string]struct {
		store *Store
		want  messages.Failure
		says  string
	}{
		"spent":       {answers(400, `{"error":"invalid_grant"}`), messages.Failure{Type: messages.FailAuthentication, Code: messages.CodeExpired, Hint: "sign in again with: codework auth login --openai-codex"}, "is over"},
		"unreachable": {answers(0, ""), messages.Failure{Type: messages.FailUnavailable, Retryable: true, Hint: "try again later, or sign in with: codework auth login --openai-codex"}, "unreachable"},
		"down":        {answers(503, ""), messages.Failure{Type: messages.FailUnavailable, Retryable: true, Hint: "try again later, or sign in with: codework auth login --openai-codex"}, "HTTP 503"},
	} {
		_, f := test.store.Resolve(t.Context(), model("openai-codex", ""), "", env())
		if f == nil || f.Type != test.want.Type || f.Code != test.want.Code || f.Retryable != test.want.Retryable || f.Hint != test.want.Hint || !strings.Contains(f.Message, test.says) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if Explain(nil) != nil {
		t.Error("a failure of nothing")
	}
	if f := Explain(fmt.Errorf("locked: %w", context.Canceled)); f.Type != messages.FailAuthentication || f.Retryable {
		t.Errorf("%+v", f)
	}
}

func TestWhereCopilotIsReached(t *testing.T) {
	for want, login := range map[string]Login{
		"":                                {},
		"https://api.x":                   {APIEndpoint: "https://api.x", EnterpriseURL: "company.ghe.com"},
		"https://copilot-api.company.com": {EnterpriseURL: "company.com"},
		"https://copilot-api.other.com":   {EnterpriseURL: "https://other.com/"},
	} {
		if got := login.Endpoint(); got != want {
			t.Errorf("%+v: %q", login, got)
		}
	}
}
