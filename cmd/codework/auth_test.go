package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"codework/providers/signin/signintest"
)

// storedLogins writes a file of logins: Codex until the given time, Copilot for
// ever.
func storedLogins(t *testing.T, expires string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "auth.json")
	logins := `{
	"openai-codex": {"access": "secret-access", "refresh": "` + signintest.RefreshToken + `", "expires": ` + expires + `, "accountId": "acc-1"},
	"github-copilot": {"access": "secret-github", "refresh": "", "expires": 0, "enterpriseUrl": "company.ghe.com",
		"apiEndpoint": "https://copilot-api.company.ghe.com", "availableModelIds": ["a", "b"]}}`
	if err := os.WriteFile(file, []byte(logins), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAuthStatusTellsAllButTheTokens(t *testing.T) {
	zone := time.Local
	time.Local = time.FixedZone("EST", -5*60*60)
	t.Cleanup(func() { time.Local = zone })
	file := storedLogins(t, "4102488000000") // 2100-01-01T12:00:00Z
	for args, want := range map[string]string{
		"--openai-codex":          "Provider: openai-codex\nAccount: acc-1\nExpires: 2100-01-01 07:00:00 EST\n",
		"--openai-codex --json":   `{"provider":"openai-codex","expires":4102488000000,"accountId":"acc-1","expiresAt":"2100-01-01T12:00:00Z"}` + "\n",
		"--github-copilot":        "Provider: github-copilot\nEnterprise: company.ghe.com\nAPI endpoint: https://copilot-api.company.ghe.com\nAvailable models: 2\nExpires: never\n",
		"--github-copilot --json": `{"provider":"github-copilot","expires":0,"apiEndpoint":"https://copilot-api.company.ghe.com","enterpriseUrl":"company.ghe.com","availableModels":2,"expiresAt":null}` + "\n",
	} {
		r := command(t, "", append([]string{"auth", "status", "--auth-file", file}, strings.Fields(args)...)...)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s: exit code %d, %s", args, r.code, r.err)
		}
		same(t, args, r.out, want)
	}
}

func TestAuthRefreshRenewsWhatHasExpired(t *testing.T) {
	s := &signintest.Server{}
	h := httptest.NewServer(s)
	defer h.Close()
	t.Setenv(signInVariable, h.URL)
	file := storedLogins(t, "1")
	for range 2 { // the second time nothing is due
		r := command(t, "", "auth", "refresh", "--openai-codex", "--auth-file", file)
		if r.code != 0 || !strings.Contains(r.out, "Account: "+signintest.Account+"\n") {
			t.Errorf("exit code %d, %s%s", r.code, r.out, r.err)
		}
	}
	if got := s.Requests(); len(got) != 1 || len(s.Violations()) > 0 {
		t.Errorf("requests %q, violations %q", got, s.Violations())
	}
	data, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(data), signintest.AccessToken) || !strings.Contains(string(data), "secret-github") {
		t.Errorf("the file: %v %s", err, data)
	}
	s.Script("/oauth/token", signintest.Answer{Status: 400, Body: `{"error":"invalid_grant","error_description":"` + signintest.RefreshToken + ` is used"}`})
	r := command(t, "", "auth", "refresh", "--openai-codex", "--json", "--auth-file", storedLogins(t, "1"))
	if r.code != exitFailed || !strings.HasPrefix(r.out, `{"error":{"type":"oauth","message":"`) || strings.Contains(r.out+r.err, signintest.RefreshToken) {
		t.Errorf("exit code %d, %s%s", r.code, r.out, r.err)
	}
}

func TestAuthSaysWhatIsWrongWithTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(file, []byte(`{"openai-codex": {"access": "secret-acc`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"status", "refresh", "logout"} {
		r := command(t, "", "auth", action, "--openai-codex", "--auth-file", file)
		if r.code != exitFailed || r.out != "" || !strings.HasPrefix(r.err, "error[oauth]: ") || !strings.Contains(r.err, file) || strings.Contains(r.err, "secret") {
			t.Errorf("%s: exit code %d, %s%s", action, r.code, r.out, r.err)
		}
	}
}

func TestASignInThatFailsIsToldWithoutSecrets(t *testing.T) {
	s := &signintest.Server{Interval: "1"}
	h := httptest.NewServer(s)
	defer h.Close()
	t.Setenv(signInVariable, h.URL+"/")
	s.Script("/copilot_internal/user", signintest.Answer{Body: `{"chat_enabled":false,"message":"no seat for ` + signintest.GitHubToken + `\u001b[2J"}`})
	file := filepath.Join(t.TempDir(), "auth.json")
	r := command(t, "", "auth", "login", "--github-copilot", "--json", "--no-browser", "--auth-file", file)
	const says = "sign in to github-copilot: the sign-in was denied: Copilot Chat is not enabled for this account (no seat for <redacted>"
	if r.code != exitFailed || !strings.Contains(r.err, "error[oauth]: "+says) || !strings.HasPrefix(r.out, `{"error":{"type":"oauth","message":"`) {
		t.Errorf("exit code %d, %s%s", r.code, r.out, r.err)
	}
	for _, secret := range append(s.Secrets(), "\x1b") {
		if strings.Contains(r.out+r.err, secret) {
			t.Errorf("a secret is told: %q", r.out+r.err)
		}
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a file was written: %v", err)
	}
}

func TestABrowserIsOpenedWhereThereIsAScreen(t *testing.T) {
	const page = "https://example.com/?a=b&c=d"
	for _, c := range []struct {
		system, screen string
		want           []string
	}{
		{"linux", "", nil},
		{"linux", "DISPLAY", []string{"xdg-open", page}},
		{"freebsd", "WAYLAND_DISPLAY", []string{"xdg-open", page}},
		{"darwin", "", []string{"open", page}},
		{"windows", "", []string{"rundll32", "url.dll,FileProtocolHandler", page}},
	} {
		getenv := func(name string) string {
			if name == c.screen {
				return ":0"
			}
			return ""
		}
		if got := browserCommand(c.system, getenv, page); !slices.Equal(got, c.want) {
			t.Errorf("%s with %q: %q", c.system, c.screen, got)
		}
	}
}
