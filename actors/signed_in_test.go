package actors

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/internal/settings"
	"codework/messages"
	"codework/providers"
	"codework/providers/credentials"
)

// tokens is a service that renews logins, and counts.
type tokens struct {
	*httptest.Server
	mu    sync.Mutex
	given int
}

func newTokens(t *testing.T) *tokens {
	s := &tokens{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.FormValue("refresh_token") != fmt.Sprintf("refresh-%d", s.given) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		s.given++
		fmt.Fprintf(w, `{"access_token":"access-%d","refresh_token":"refresh-%d","expires_in":3600}`, s.given, s.given)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *tokens) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// replies is a Streamer that takes some tokens and remembers all.
type replies struct {
	takes func(key string) bool
	mu    sync.Mutex // guards sent
	sent  []messages.Request
}

func (r *replies) Stream(ctx context.Context, req *messages.Request, emit func(messages.StreamEvent)) {
	r.mu.Lock()
	r.sent = append(r.sent, *req)
	r.mu.Unlock()
	if !r.takes(req.APIKey) {
		emit(messages.StreamEvent{Kind: messages.StreamError, Failure: &messages.Failure{Type: messages.FailAuthentication, Status: http.StatusUnauthorized, Message: "no"}})
		return
	}
	goodAnswer(ctx, req, emit)
}

// stored writes a login and opens the store of it.
func stored(t *testing.T, login, tokenURL string) *credentials.Store {
	t.Helper()
	file := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(file, []byte(login), 0o600); err != nil {
		t.Fatal(err)
	}
	return credentials.OpenStore(credentials.Options{File: file, TokenURL: tokenURL})
}

// end waits for the end of a request.
func end(t *testing.T, s signedIn) messages.StreamEvent {
	t.Helper()
	last := make(chan messages.StreamEvent, 1)
	s.Stream(soon(t), &messages.Request{MessageID: "m", APIKey: "from the exchange"}, func(ev messages.StreamEvent) {
		if ev.Kind == messages.StreamDone || ev.Kind == messages.StreamError {
			last <- ev
		}
	})
	select {
	case ev := <-last:
		return ev
	case <-time.After(within):
		t.Fatal("the request did not end")
		return messages.StreamEvent{}
	}
}

const (
	dueLogin  = `{"openai-codex":{"access":"access-0","refresh":"refresh-0","expires":1,"accountId":"acc"}}`
	goodLogin = `{"openai-codex":{"access":"access-0","refresh":"refresh-0","expires":9000000000000,"accountId":"acc"}}`
)

func TestEachRequestHasTheLoginAsItIsThen(t *testing.T) {
	service, to := newTokens(t), &replies{takes: func(string) bool { return true }}
	s := signedIn{to, stored(t, dueLogin, service.URL), credentials.CodexID, true}
	for range 2 {
		if ev := end(t, s); ev.Kind != messages.StreamDone {
			t.Fatalf("%+v", ev.Failure)
		}
	}
	if service.count() != 1 || to.sent[0].APIKey != "access-1" || to.sent[1].APIKey != "access-1" || to.sent[0].Login.AccountID != "acc" {
		t.Errorf("renewed %d times, sent %+v", service.count(), to.sent)
	}
}

func TestATokenThatIsRefusedIsReplacedOnce(t *testing.T) {
	service, to := newTokens(t), &replies{takes: func(key string) bool { return key == "access-1" }}
	s := signedIn{to, stored(t, goodLogin, service.URL), credentials.CodexID, true}
	if ev := end(t, s); ev.Kind != messages.StreamDone || len(to.sent) != 2 || service.count() != 1 {
		t.Errorf("%+v, sent %d, renewed %d", ev.Failure, len(to.sent), service.count())
	}
	// A new one that is refused too ends the request.
	to.takes = func(string) bool { return false }
	to.sent = nil
	if ev := end(t, s); ev.Kind != messages.StreamError || ev.Failure.Status != 401 || ev.Failure.Message != "no" || len(to.sent) != 2 {
		t.Errorf("%+v, sent %d", ev, len(to.sent))
	}
}

func TestALoginThatIsOverSaysSo(t *testing.T) {
	service, to := newTokens(t), &replies{takes: func(string) bool { return false }}
	for name, login := range map[string]string{
		"spent while due":     strings.Replace(dueLogin, "refresh-0", "refresh-9", 1),
		"spent when refused":  strings.Replace(goodLogin, "refresh-0", "refresh-9", 1),
		"no refresh possible": `{"openai-codex":{"access":"access-0","expires":9000000000000,"accountId":"acc"}}`,
	} {
		ev := end(t, signedIn{to, stored(t, login, service.URL), credentials.CodexID, true})
		if f := ev.Failure; f == nil || f.Type != messages.FailAuthentication || f.Code != messages.CodeExpired || f.Retryable ||
			!strings.Contains(f.Hint, "codework auth login --openai-codex") || strings.Contains(f.Message+f.Hint, "refresh-9") {
			t.Errorf("%s: %+v", name, f)
		}
	}
	copilot := stored(t, `{"github-copilot":{"access":"ghu_x","refresh":"","expires":0}}`, service.URL)
	if f := end(t, signedIn{to, copilot, credentials.CopilotID, true}).Failure; f == nil || f.Status != 401 || !strings.Contains(f.Hint, "codework auth login --github-copilot") {
		t.Errorf("%+v", f)
	}
}

func TestALoginThatWasRemovedLeavesTheRequestAsItWas(t *testing.T) {
	to := &replies{takes: func(string) bool { return false }}
	s := signedIn{to, stored(t, `{}`, "http://127.0.0.1:1/"), credentials.CodexID, true}
	if ev := end(t, s); ev.Kind != messages.StreamError || ev.Failure.Message != "no" || len(to.sent) != 1 || to.sent[0].APIKey != "from the exchange" {
		t.Errorf("%+v, %+v", ev, to.sent)
	}
}

// loginShop is a shop whose model belongs to a provider with logins.
func loginShop(t *testing.T, provider, auth string) (*shop, ExchangeQuery) {
	s := newShop(t)
	s.w.Speaks = func(messages.Protocol) bool { return true }
	s.settings(s.home, `{}`)
	file := filepath.Join(s.home, "settings.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.ReplaceAll(strings.ReplaceAll(string(text), `"id":"p"`, `"id":"`+provider+`"`), `"provider":"p"`, `"provider":"`+provider+`"`))
	text = []byte(strings.ReplaceAll(string(text), `"SHOP_KEY"`, ``))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.home, "auth.json"), []byte(auth), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, s.query()
}

func TestAnExchangeKnowsTheAccountOfItsLogin(t *testing.T) {
	s, q := loginShop(t, "openai-codex", goodLogin)
	ex := s.prepare(q)
	if _, ok := ex.Streamer.(signedIn); !ok || ex.APIKey != "access-0" || ex.Login == nil || ex.Login.AccountID != "acc" || ex.Login.Endpoint != "" {
		t.Errorf("%T, %+v", ex.Streamer, ex.Login)
	}
	// A token from a variable names its account itself, and is never renewed.
	enc := base64.RawURLEncoding.EncodeToString
	token := enc([]byte(`{}`)) + "." + enc([]byte(`{"https://api.openai.com/auth":{"chatgpt_account_id":"acc-2"}}`)) + ".c2ln"
	q.World.Env = append(q.World.Env, "OPENAI_CODEX_API_KEY="+token)
	ex = s.prepare(q)
	if _, ok := ex.Streamer.(connection); !ok || ex.APIKey != token || ex.Login == nil || ex.Login.AccountID != "acc-2" {
		t.Errorf("%T, %+v", ex.Streamer, ex.Login)
	}
}

func TestALevelThatTheModelHasNotIsSaidOnlyWhenItWasAskedFor(t *testing.T) {
	s := newShop(t)
	q := s.query()
	for level, want := range map[messages.ThinkingLevel]int{"": 0, "off": 0, "high": 1} {
		q.Session.Runtime.ThinkingLevel = level
		if ex := s.prepare(q); len(ex.Notices) != want || ex.Thinking != "off" {
			t.Errorf("%q: %q, %s", level, ex.Notices, ex.Thinking)
		}
	}
}

func TestAnOptionBlockSaysHowAModelIsCalled(t *testing.T) {
	entry := messages.Model{Protocol: messages.ProtocolOpenAI, BaseURL: "https://a", API: &messages.ModelAPI{ID: "real-name", URL: "https://b"}}
	for _, c := range []struct {
		protocol messages.Protocol
		block    settings.Block
		want     messages.Protocol
		base     string
	}{
		{messages.ProtocolOpenAI, settings.Block{}, messages.ProtocolOpenAI, "https://b"},
		{messages.ProtocolOpenAI, settings.Block{BaseURL: "https://c"}, messages.ProtocolOpenAI, "https://c"},
		{messages.ProtocolOpenAI, settings.Block{Method: "chat"}, messages.ProtocolCompatible, "https://b"},
		{messages.ProtocolCompatible, settings.Block{Method: "responses"}, messages.ProtocolOpenAI, "https://b"},
		{messages.ProtocolCompatible, settings.Block{Method: "messages"}, messages.ProtocolAnthropic, "https://b"},
		{messages.ProtocolXAI, settings.Block{Method: "responses"}, messages.ProtocolXAI, "https://b"},
		{messages.ProtocolOpenRouter, settings.Block{Method: "chat"}, messages.ProtocolOpenRouter, "https://b"},
		{messages.ProtocolGoogle, settings.Block{Method: "languageModel"}, messages.ProtocolGoogle, "https://b"},
	} {
		m := entry
		m.Protocol = c.protocol
		got := reached(m, c.block)
		if got.Protocol != c.want || providers.BaseURL(got) != c.base || providers.ModelID(got) != "real-name" || entry.API.URL != "https://b" {
			t.Errorf("%s, %+v: %s at %s", c.protocol, c.block, got.Protocol, providers.BaseURL(got))
		}
	}
}

func TestModelsAreOfferedWhereAKeyCanBeFound(t *testing.T) {
	offered := func(s *shop, provider string, env ...string) bool {
		t.Helper()
		list, err := s.w.Models(soon(t), provider, &messages.World{Env: env})
		if err != nil || len(list) == 0 {
			t.Fatalf("%v, %v", list, err)
		}
		return list[0].Available
	}
	s := newShop(t)
	if !offered(s, "p", "SHOP_KEY=x") || offered(s, "p", "SHOP_KEY=") || offered(s, "p") {
		t.Error("a variable of the provider does not decide")
	}
	for auth, want := range map[string]bool{goodLogin: true, dueLogin: true, `{}`: false} {
		s, _ := loginShop(t, "openai-codex", auth)
		if got := offered(s, "openai-codex"); got != want {
			t.Errorf("%s: %v", auth, got)
		}
	}
	own, _ := loginShop(t, "needs-none", `{}`)
	if !offered(own, "needs-none") {
		t.Error("a provider that wants no key")
	}
}
