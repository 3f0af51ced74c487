package credentials

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestDueLoginIsRenewedOnceAndStored(t *testing.T) {
	server := newTokenServer(t)
	file := authFile(t, `{"openai-codex":`+strings.Replace(dueLogin(), "{", `{"type":"oauth",`, 1)+`,"github-copilot":`+copilotLogin+`}`)
	s := openTest(t, file, server.URL)
	for range 2 { // the second time it is not due any more
		info, err := s.Refresh(t.Context(), "openai-codex")
		if err != nil || info.Expires != noon.Add(time.Hour).UnixMilli() || info.AccountID != "acc-1" {
			t.Fatalf("%+v, %v", info, err)
		}
	}
	login, err := s.Fresh(t.Context(), "openai-codex")
	if err != nil || login.Access != accessToken(1, "acc-1") || login.Refresh != "refresh-token-number-1" {
		t.Errorf("%+v, %v", login, err)
	}
	if asked, reused := server.counts(); asked != 1 || reused != 0 {
		t.Errorf("asked %d times, %d of them with a spent token", asked, reused)
	}
	got := members(t, file)
	if !strings.Contains(got["openai-codex"], `"type":"oauth"`) || !strings.Contains(got["github-copilot"], "ghu_stored") {
		t.Errorf("%v", got)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestLoginIsRenewedFromAMinuteBeforeItsEnd(t *testing.T) {
	for expires, due := range map[int64]bool{
		0: false, 1: true, noon.UnixMilli(): true, noon.Add(time.Minute).UnixMilli(): true, noon.Add(time.Minute).UnixMilli() + 1: false,
	} {
		server := newTokenServer(t)
		s := openTest(t, authFile(t, fmt.Sprintf(`{"openai-codex":{"access":"a.b.c","refresh":%q,"expires":%d,"accountId":"x"}}`, firstRefresh, expires)), server.URL)
		if _, err := s.Fresh(t.Context(), "openai-codex"); err != nil {
			t.Error(err)
		}
		if asked, _ := server.counts(); (asked == 1) != due {
			t.Errorf("%d: asked %d times", expires, asked)
		}
	}
}

// roundTrip is a way to the server that needs no network, so that the clock
// of a synctest bubble goes on.
type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// A renewal that fails shows it: the lock alone would let each caller ask.
func TestCallersOfOneProcessShareARenewalAndItsFailure(t *testing.T) {
	for status, body := range map[int]string{200: `{"access_token":"new","refresh_token":"new-refresh","expires_in":60}`, 503: ``} {
		synctest.Test(t, func(t *testing.T) {
			asked, answer := 0, make(chan struct{})
			s := OpenStore(Options{File: authFile(t, `{"openai-codex":`+dueLogin()+`}`), Now: atNoon, Client: &http.Client{
				Transport: roundTrip(func(*http.Request) (*http.Response, error) {
					asked++
					<-answer
					return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body))}, nil
				})}})
			for range 20 {
				go func() {
					login, err := s.Fresh(t.Context(), "openai-codex")
					if status == 200 && (err != nil || login.Access != "new") || status == 503 && err == nil {
						t.Errorf("%d: %+v, %v", status, login, err)
					}
				}()
			}
			synctest.Wait() // all of them wait for one answer
			close(answer)
			synctest.Wait()
			if asked != 1 {
				t.Errorf("%d: asked %d times", status, asked)
			}
		})
	}
}

func TestSilentServerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := secretLogin(t)
		s := OpenStore(Options{File: file, Client: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}})
		began := time.Now()
		_, err := s.Refresh(t.Context(), "openai-codex")
		mustContain(t, err, "no answer within 30s", "try again")
		if took := time.Since(began); took != requestTimeout || errors.Is(err, ErrSignIn) {
			t.Errorf("after %v: %v", took, err)
		}
		h, err := hold(t.Context(), file) // the lock is free again
		if err != nil {
			t.Fatal(err)
		}
		h.release()
	})
}

func TestLockThatNobodyReleasesIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := secretLogin(t)
		h, err := hold(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer h.release()
		s := OpenStore(Options{File: file, TokenURL: "http://127.0.0.1:1"})
		_, refresh := s.Refresh(t.Context(), "openai-codex")
		_, save := s.Save(t.Context(), savedCodex)
		for _, err := range []error{refresh, save, s.Logout(t.Context(), "openai-codex")} {
			mustContain(t, err, file, "another process has kept it busy for 40s", "try again")
		}
	})
}

func TestRefusedTokenIsReplacedOnceForAllWhoHadIt(t *testing.T) {
	server := newTokenServer(t)
	file := authFile(t, fmt.Sprintf(`{"openai-codex":{"access":"a.b.c","refresh":%q,"expires":0,"accountId":"x"}}`, firstRefresh))
	var wg sync.WaitGroup
	for range 10 {
		s := openTest(t, file, server.URL) // as another process has it
		wg.Go(func() {
			login, err := s.Renew(t.Context(), "openai-codex", "a.b.c")
			if err != nil || login.Access != accessToken(1, "acc-1") {
				t.Errorf("%+v, %v", login, err)
			}
		})
	}
	wg.Wait()
	if asked, reused := server.counts(); asked != 1 || reused != 0 {
		t.Errorf("asked %d times, %d of them with a spent token", asked, reused)
	}
	// A new account comes with its token.
	if info, err := openTest(t, file, "").Status(t.Context(), "openai-codex"); err != nil || info.AccountID != "acc-1" {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestCopilotLoginIsNeverRenewed(t *testing.T) {
	server := newTokenServer(t)
	for content, ok := range map[string]bool{
		`{"access":"ghu_x","refresh":"r","expires":0}`: true,
		`{"access":"ghu_x","refresh":"r","expires":1}`: false,
	} {
		s := openTest(t, authFile(t, `{"github-copilot":`+content+`}`), server.URL)
		if info, err := s.Refresh(t.Context(), "github-copilot"); err != nil || info == nil {
			t.Errorf("%v, %v", info, err)
		}
		login, err := s.Fresh(t.Context(), "github-copilot")
		if ok && (err != nil || login.Access != "ghu_x") || !ok && !errors.Is(err, ErrSignIn) {
			t.Errorf("%s: %+v, %v", content, login, err)
		}
		_, err = s.Renew(t.Context(), "github-copilot", "ghu_x")
		mustContain(t, err, "codework auth login --github-copilot")
		if !errors.Is(err, ErrSignIn) {
			t.Error(err)
		}
	}
	if asked, _ := server.counts(); asked != 0 {
		t.Errorf("asked %d times", asked)
	}
}

func TestNothingStoredIsNothingToRenew(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "auth.json"), "http://127.0.0.1:1")
	info, err := s.Refresh(t.Context(), "openai-codex")
	login, err2 := s.Fresh(t.Context(), "openai-codex")
	again, err3 := s.Renew(t.Context(), "openai-codex", "x")
	if info != nil || login != nil || again != nil || err != nil || err2 != nil || err3 != nil {
		t.Errorf("%v %v, %v %v, %v %v", info, err, login, err2, again, err3)
	}
}

// The token is spent as soon as the request is out, whether or not anybody
// still wants to know.
func TestRenewalIsStoredThoughItsCallerLeft(t *testing.T) {
	server := newTokenServer(t)
	file := authFile(t, `{"openai-codex":`+dueLogin()+`}`)
	s := openTest(t, file, server.URL)
	arrived, answer := make(chan struct{}), make(chan struct{})
	server.first(func(int) { close(arrived); <-answer })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := s.Refresh(ctx, "openai-codex"); done <- err }()
	<-arrived
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(answer)
	s.Close()
	login, f := ReadLogin(file, "openai-codex")
	if f != nil || login.Access != accessToken(1, "acc-1") || login.Refresh != "refresh-token-number-1" {
		t.Errorf("%+v, %v", login, f)
	}
	if _, err := s.Refresh(ctx, "openai-codex"); err != nil {
		t.Errorf("not due, but %v", err)
	}
}

func TestLogoutDuringARenewalIsTheLastWord(t *testing.T) {
	server := newTokenServer(t)
	file := authFile(t, `{"openai-codex":`+dueLogin()+`}`)
	s := openTest(t, file, server.URL)
	arrived, answer := make(chan struct{}), make(chan struct{})
	server.first(func(int) { close(arrived); <-answer })
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Refresh(t.Context(), "openai-codex"); err != nil {
			t.Error(err)
		}
	})
	<-arrived
	wg.Go(func() {
		if err := s.Logout(t.Context(), "openai-codex"); err != nil {
			t.Error(err)
		}
	})
	close(answer)
	wg.Wait()
	if info, err := s.Status(t.Context(), "openai-codex"); info != nil || err != nil {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestFullFolderCostsNoRefreshToken(t *testing.T) {
	server := newTokenServer(t)
	file := authFile(t, `{"openai-codex":`+dueLogin()+`}`)
	// Something that cannot be removed stands where the new file should be.
	if err := os.MkdirAll(filepath.Join(file+".new", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := openTest(t, file, server.URL).Fresh(t.Context(), "openai-codex")
	mustContain(t, err, file)
	if asked, _ := server.counts(); asked != 0 {
		t.Errorf("asked %d times", asked)
	}
}

const (
	secretAccess  = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJzZWNyZXQifQ.c2VjcmV0"
	secretRefresh = "s3cr3t/refresh+token=="
)

func secretLogin(t *testing.T) string {
	return authFile(t, fmt.Sprintf(`{"openai-codex":{"access":%q,"refresh":%q,"expires":1,"accountId":"acc"}}`, secretAccess, secretRefresh))
}

func TestFailedRenewalSaysWhatToDoAndShowsNoSecret(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		body   string
		signIn bool
		parts  []string
	}{
		{"reused", 400, `{"error":"invalid_grant","error_description":"token ` + secretRefresh + ` was used."}`, true, []string{"HTTP 400: token <redacted> was used"}},
		{"OpenAI's own", 401, `{"error":{"message":"Your refresh token has already been used.","type":"invalid_request_error","code":"refresh_token_reused"}}`, true,
			[]string{"already been used)"}},
		{"code only", 400, `{"error":{"code":"refresh_token_expired"}}`, true, []string{"refresh_token_expired"}},
		{"unauthorized", 401, `<html>` + secretAccess + `</html>`, true, []string{"HTTP 401"}},
		{"overloaded", 503, `{"message":"Bearer ` + secretAccess + ` later"}`, false, []string{"HTTP 503: Bearer <redacted> later", "try again"}},
		{"page", 502, `<html>` + secretRefresh + `</html>`, false, []string{"HTTP 502", "try again"}},
		{"edge", 403, `{"detail":"x"}`, false, []string{"HTTP 403", "try again"}},
		{"limit", 429, `{"error":{"message":"slow down refresh_token=` + url.QueryEscape(secretRefresh) + `&x"}}`, false, []string{"HTTP 429: slow down", "try again"}},
		{"no JSON", 200, `<html>` + secretRefresh, false, []string{"no JSON", "try again"}},
		{"no token", 200, `{"refresh_token":"` + secretRefresh + `"}`, false, []string{"no usable access token"}},
		{"odd token", 200, `{"access_token":"` + secretAccess + ` x"}`, false, []string{"no usable access token"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.FormValue("refresh_token") != secretRefresh {
					t.Errorf("got %q", r.FormValue("refresh_token"))
				}
				w.WriteHeader(test.status)
				fmt.Fprint(w, test.body)
			}))
			defer server.Close()
			file := secretLogin(t)
			before := members(t, file)
			_, err := openTest(t, file, server.URL).Refresh(t.Context(), "openai-codex")
			mustContain(t, err, append(test.parts, "codework auth login --openai-codex")...)
			mustHide(t, err)
			if errors.Is(err, ErrSignIn) != test.signIn {
				t.Errorf("signing in again: %v", err)
			}
			if after := members(t, file); after["openai-codex"] != before["openai-codex"] {
				t.Errorf("the file was changed to %s", after)
			}
			if left, _ := filepath.Glob(file + ".new*"); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func mustHide(t *testing.T, err error) {
	t.Helper()
	for _, secret := range []string{secretAccess, secretRefresh, url.QueryEscape(secretRefresh), "c2VjcmV0", "s3cr3t"} {
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), secret) {
				t.Errorf("shows %q: %q", secret, e)
			}
		}
	}
}

func TestUnreachableServerLeavesTheLoginAsItWas(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	file := secretLogin(t)
	_, err := openTest(t, file, server.URL).Refresh(t.Context(), "openai-codex")
	mustContain(t, err, "refused", "try again")
	if errors.Is(err, ErrSignIn) {
		t.Error(err)
	}
	// What speaks no HTTP may repeat what it was told.
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(conn, "refresh_token %s %s\r\n\r\n", secretRefresh, secretAccess)
		_ = conn.Close()
	}))
	defer broken.Close()
	_, err = openTest(t, file, broken.URL).Refresh(t.Context(), "openai-codex")
	mustContain(t, err, "malformed", "try again")
	mustHide(t, err)
}

func TestRefreshTokenGoesToTheTokenAddressOnly(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("was sent on") }))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	for name, client := range map[string]*http.Client{"own": nil, "given": server.Client()} {
		s := OpenStore(Options{File: secretLogin(t), TokenURL: server.URL, Client: client})
		_, err := s.Refresh(t.Context(), "openai-codex")
		if err == nil || !strings.Contains(err.Error(), "HTTP 307") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := OpenStore(Options{File: secretLogin(t), TokenURL: "http://example.com/token"}).Refresh(t.Context(), "openai-codex")
	mustContain(t, err, "https")
}

func TestProxyVariablesOfTheProcessDoNotCount(t *testing.T) {
	if proxy := tokenClient(nil).Transport.(*http.Transport).Proxy; proxy != nil {
		t.Error("has a proxy")
	}
}

func TestLoginWithoutRefreshTokenIsOver(t *testing.T) {
	s := openTest(t, authFile(t, `{"openai-codex":{"access":"a.b.c","expires":1,"accountId":"x"}}`), "http://127.0.0.1:1")
	_, err := s.Fresh(t.Context(), "openai-codex")
	mustContain(t, err, "without a refresh token", "codework auth login --openai-codex")
	if !errors.Is(err, ErrSignIn) {
		t.Error(err)
	}
}

func TestAnswerNeedsNothingButTheAccessToken(t *testing.T) {
	old := &Login{Access: "old", Refresh: "old-refresh", Expires: 1, AccountID: "old-account"}
	for _, test := range []struct {
		name, body string
		want       Login
		lives      time.Duration
	}{
		{"all", `{"access_token":"new","refresh_token":"new-refresh","expires_in":60}`, Login{Access: "new", Refresh: "new-refresh", AccountID: "old-account"}, time.Minute},
		{"no refresh token", `{"access_token":"new","expires_in":"90"}`, Login{Access: "new", Refresh: "old-refresh", AccountID: "old-account"}, 90 * time.Second},
		{"no lifetime", `{"access_token":"new"}`, Login{Access: "new", Refresh: "old-refresh", AccountID: "old-account"}, time.Hour},
		{"odd lifetime", `{"access_token":"new","expires_in":{}}`, Login{Access: "new", Refresh: "old-refresh", AccountID: "old-account"}, time.Hour},
		{"negative lifetime", `{"access_token":"new","expires_in":-5}`, Login{Access: "new", Refresh: "old-refresh", AccountID: "old-account"}, time.Hour},
		{"endless", `{"access_token":"new","expires_in":1e300}`, Login{Access: "new", Refresh: "old-refresh", AccountID: "old-account"}, 366 * 24 * time.Hour},
		{"account", `{"access_token":"` + accessToken(1, "acc") + `"}`, Login{Access: accessToken(1, "acc"), Refresh: "old-refresh", AccountID: "acc"}, time.Hour},
		{"odd account", `{"access_token":"` + accessToken(1, "a b") + `"}`, Login{Access: accessToken(1, "a b"), Refresh: "old-refresh", AccountID: "old-account"}, time.Hour},
	} {
		got, err := parseAnswer([]byte(test.body), old, noon)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		test.want.Expires = noon.Add(test.lives).UnixMilli()
		if fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", test.want) {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

// FuzzAnswer: whatever a token endpoint answers, the result is a login that
// can be used and stored and ends in the future, or an error in fixed words.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"access_token":"` + accessToken(1, "acc") + `","refresh_token":"r","expires_in":3600}`))
	f.Add([]byte(`{"access_token":"a.e30.b","expires_in":"1e9"}`))
	f.Add([]byte(`{"access_token":1,"expires_in":null}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		old := savedCodex.Login
		login, err := parseAnswer(body, &old, noon)
		if err != nil {
			if e := err.Error(); e != "no JSON object in it" && e != "no usable access token in it" {
				t.Fatal(e)
			}
			return
		}
		if login.Expires < noon.UnixMilli() {
			t.Fatalf("ends at %d", login.Expires)
		}
		if _, err := (Credentials{CodexID, *login}).checked(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRefusal: whatever is said in an error answer, what a person sees of it
// is one line of bounded length without the secrets that were sent.
func FuzzRefusal(f *testing.F) {
	f.Add([]byte(`{"error":"invalid_grant","error_description":"` + secretRefresh + `"}`))
	f.Add([]byte(`{"error":{"message":"Bearer ` + secretAccess + `","code":"x"}}`))
	f.Add([]byte(`{"message":"a\nb\u001b[31m"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, words := parseRefusal(body)
		got := Redact(words, secretAccess, secretRefresh)
		if strings.Contains(got, secretAccess) || strings.Contains(got, secretRefresh) {
			t.Fatalf("shows a secret: %q", got)
		}
		if strings.ContainsAny(got, "\r\n\x1b") || len([]rune(got)) > maxLine+1 {
			t.Fatalf("no line: %q", got)
		}
	})
}

func TestWordsOfStrangersLoseWhatLooksLikeASecret(t *testing.T) {
	for in, want := range map[string]string{
		"plain words stay, even refresh_token_reused and code 5.": "plain words stay, even refresh_token_reused and code 5",
		"Authorization: Bearer abc.def":                           "Authorization: <redacted> <redacted>",
		"bearer%20abc failed":                                     "bearer <redacted> failed",
		`{"refresh_token": "short"}`:                              `{"refresh_token": <redacted>"}`,
		"code=abc&code_verifier=def&state=ghi":                    "code=<redacted>&code_verifier=<redacted>&state=<redacted>",
		"device_code=abc; user_code: ABCD-EFGH.":                  "device_code=<redacted>; user_code: <redacted>",
		"got eyJhbGciOiJub25lIn0.eyJz":                            "got <redacted>",
		"got ghu_16C7e42F292c and sk-abcdefgh":                    "got <redacted> and <redacted>",
		"got " + strings.Repeat("q", 40):                          "got <redacted>",
		"by value known-secret!":                                  "by value <redacted>!",
		"in an address known%2Fone!":                              "in an address <redacted>!",
		"two\r\nlines\tand \x1b[31mred":                           "two lines and [31mred",
	} {
		if got := Redact(in, "known-secret", "known/one", "two"); got != want {
			t.Errorf("%q\nshould be %q", got, want)
		}
	}
	if got := Redact(strings.Repeat("word ", 1000)); len([]rune(got)) > maxLine+1 {
		t.Errorf("%d characters", len(got))
	}
}
