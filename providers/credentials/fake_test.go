package credentials

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// tokenServer renews logins as the real one does: each refresh token is good
// once.
type tokenServer struct {
	*httptest.Server

	mu     sync.Mutex  // guards what follows
	before func(n int) // runs in front of each answer, with the count of requests
	good   string      // the refresh token that is good now
	asked  int
	reused int
}

const firstRefresh = "refresh-token-number-0"

func newTokenServer(t *testing.T) *tokenServer {
	s := &tokenServer{good: firstRefresh}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked++
	n, before := s.asked, s.before
	s.mu.Unlock()
	if before != nil {
		before(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method != "POST", r.FormValue("grant_type") != "refresh_token", r.FormValue("client_id") != "app_EMoamEEZ73f0CkXaXp7hrann",
		r.Header.Get("Content-Type") != "application/x-www-form-urlencoded":
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_request"}`)
	case r.FormValue("refresh_token") != s.good:
		s.reused++
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_grant","error_description":"the token has been used."}`)
	default:
		s.good = fmt.Sprintf("refresh-token-number-%d", n)
		fmt.Fprintf(w, `{"access_token":%q,"refresh_token":%q,"expires_in":3600,"token_type":"bearer"}`, accessToken(n, "acc-1"), s.good)
	}
}

// first sets before; a child's request is not ordered after it otherwise.
func (s *tokenServer) first(before func(n int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func (s *tokenServer) counts() (asked, reused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.reused
}

// accessToken is a JWT of the shape of a Codex token.
func accessToken(n int, account string) string {
	payload := fmt.Sprintf(`{"jti":"%d","https://api.openai.com/auth":{"chatgpt_account_id":%q}}`, n, account)
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"none"}`)) + "." + enc([]byte(payload)) + ".c2ln"
}

// noon is the time in the tests, 2026-01-01T12:00:00Z.
var noon = time.UnixMilli(1_767_268_800_000)

func atNoon() time.Time { return noon }

// dueLogin ends within the minute.
func dueLogin() string {
	return fmt.Sprintf(`{"access":%q,"refresh":%q,"expires":%d,"accountId":"acc-1"}`, accessToken(0, "acc-1"), firstRefresh, noon.Add(time.Minute).UnixMilli())
}

func openTest(t *testing.T, file, tokenURL string) *Store {
	t.Helper()
	s := OpenStore(Options{File: file, TokenURL: tokenURL, Now: atNoon})
	t.Cleanup(s.Close)
	return s
}

// members are the file's top-level members, as compact JSON.
func members(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var top map[string]any
	if err := json.Unmarshal(data, &top); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	out := map[string]string{}
	for name, v := range top {
		b, _ := json.Marshal(v) // came from JSON
		out[name] = string(b)
	}
	return out
}

func mustContain(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("no %q in %q", p, err)
		}
	}
	if strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("more than a line: %q", err)
	}
}
