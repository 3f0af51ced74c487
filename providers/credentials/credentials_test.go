package credentials

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"codework/messages"
	"codework/providers/catalog"
)

func TestMain(m *testing.M) {
	if os.Getenv(childFile) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// env looks variables up in "NAME=value" lines.
func env(lines ...string) Lookup {
	return (&messages.World{Env: lines}).Lookup
}

func model(provider, key string, env ...string) messages.Model {
	return messages.Model{ID: "m", Provider: messages.ModelProvider{ID: provider, Key: key, Env: env}}
}

func authFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// resolve asks a Store that has nobody to renew a login with.
func resolve(m messages.Model, settingsKey string, lookup Lookup, file string) (key, source string, failure *messages.Failure) {
	found, failure := OpenStore(Options{File: file, TokenURL: "http://127.0.0.1:1/"}).Resolve(context.Background(), m, settingsKey, lookup)
	return found.Key, found.Source, failure
}

func TestSourcesCountInTheirOrder(t *testing.T) {
	all := env("SET=from-settings", "ENTRY=from-entry", "FIRST=from-first", "SECOND=from-second")
	for _, test := range []struct {
		name        string
		model       messages.Model
		settings    string
		lookup      Lookup
		key, source string
	}{
		{"settings", model("p", "${ENTRY}", "FIRST"), "${SET}", all, "from-settings", SourceSettings},
		{"entry", model("p", "${ENTRY}", "FIRST"), "", all, "from-entry", SourceProvider},
		{"first variable", model("p", "", "FIRST", "SECOND"), "", all, "from-first", "FIRST"},
		{"second variable", model("p", "", "UNSET", "SECOND"), "", all, "from-second", "SECOND"},
		{"empty counts as unset", model("p", "", "BLANK", "SECOND"), "", env("BLANK= \t", "SECOND=x"), "x", "SECOND"},
		{"no key needed", model("ollama", ""), "", all, "", ""},
		{"blanks around", model("p", "", "K"), "", env("K=\t key \r\n"), "key", "K"},
		{"a dollar is a dollar", model("p", "${K}"), "", env("K=${FIRST}", "FIRST=no"), "${FIRST}", SourceProvider},
	} {
		key, source, f := resolve(test.model, test.settings, test.lookup, "")
		if f != nil || key != test.key || source != test.source {
			t.Errorf("%s: %q from %q, %v", test.name, key, source, f)
		}
	}
}

func TestNoKeySaysWhatToDo(t *testing.T) {
	for _, test := range []struct {
		model messages.Model
		hints []string
	}{
		{model("anthropic", "", "ANTHROPIC_API_KEY"), []string{"set ANTHROPIC_API_KEY", "offline/guide"}},
		{model("google", "", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"), []string{"GEMINI_API_KEY or GOOGLE_GENERATIVE_AI_API_KEY"}},
		{model("openai-codex", "", "OPENAI_CODEX_API_KEY"), []string{"codework auth login --openai-codex", "OPENAI_CODEX_API_KEY"}},
		{model("github-copilot", ""), []string{"codework auth login --github-copilot", "set COPILOT_GITHUB_TOKEN;"}},
	} {
		_, _, f := resolve(test.model, "", env(), filepath.Join(t.TempDir(), "auth.json"))
		if f == nil || f.Type != messages.FailAuthentication || f.Code != messages.CodeMissing || !strings.Contains(f.Message, test.model.Provider.ID) {
			t.Errorf("%s: %+v", test.model.Provider.ID, f)
			continue
		}
		for _, h := range test.hints {
			if !strings.Contains(f.Hint, h) {
				t.Errorf("%s: no %q in %q", test.model.Provider.ID, h, f.Hint)
			}
		}
	}
}

func TestReferenceToNothingFailsAndNamesBoth(t *testing.T) {
	for _, lookup := range []Lookup{env("FIRST=x"), env("FIRST=x", "GONE="), env("FIRST=x", "GONE=  ")} {
		_, _, f := resolve(model("p", "", "FIRST"), "${GONE}", lookup, "")
		if f == nil || f.Code != messages.CodeMissing || !strings.Contains(f.Message, "GONE") || !strings.Contains(f.Message, "model.options.apiKey") {
			t.Errorf("%+v", f)
		}
	}
	_, err := Expand("headers.x-team", "${GONE}", env())
	if err == nil || !strings.Contains(err.Error(), "GONE") || !strings.Contains(err.Error(), "headers.x-team") {
		t.Errorf("%v", err)
	}
}

func TestExpandTakesWholeReferencesOnly(t *testing.T) {
	lookup := env("A=value", "a_1=lower")
	for in, want := range map[string]string{
		"${A}": "value", "${a_1}": "lower", "plain": "plain", "": "", "x${A}": "x${A}", "${A}x": "${A}x",
		"$A": "$A", "${}": "${}", "${1A}": "${1A}", "${A-b}": "${A-b}", "${${A}}": "${${A}}", "${A": "${A",
	} {
		if got, err := Expand("s", in, lookup); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

func TestLiteralKeysAreRefusedWithoutShowingThem(t *testing.T) {
	for _, secret := range []string{"sk-secret", "${A}sk-secret", "$SECRET-sk-secret"} {
		for _, try := range []func() *messages.Failure{
			func() *messages.Failure { _, _, f := resolve(model("p", secret), "", env("A=b"), ""); return f },
			func() *messages.Failure { _, _, f := resolve(model("p", ""), secret, env("A=b"), ""); return f },
		} {
			f := try()
			if f == nil || f.Type != messages.FailConfiguration || strings.Contains(f.Message+f.Hint, "secret") {
				t.Errorf("%+v", f)
			}
		}
	}
}

func TestKeyWithALineBreakIsRefusedWithoutShowingIt(t *testing.T) {
	key, _, f := resolve(model("p", "", "K"), "", env("K=sk-one\nsk-two"), "")
	if key != "" || f == nil || f.Code != messages.CodeInvalid || !strings.Contains(f.Message, "K ") || strings.Contains(f.Message+f.Hint, "sk-") {
		t.Errorf("%q, %+v", key, f)
	}
}

const (
	codexLogin   = `{"access":"a.codex.token","refresh":"r","expires":0,"accountId":"acc"}`
	copilotLogin = `{"access":"ghu_stored","refresh":"r","expires":0,"apiEndpoint":"https://api.x","availableModelIds":["a","b"]}`
)

func TestLoginsAreReadInAllThreeShapes(t *testing.T) {
	for name, content := range map[string]string{
		"top":    `{"openai-codex":` + codexLogin + `,"github-copilot":` + copilotLogin + `,"other":{"x":1}}`,
		"nested": `{"version":1,"providers":{"openai-codex":` + codexLogin + `,"github-copilot":` + copilotLogin + `}}`,
		"mixed":  `{"openai-codex":` + codexLogin + `,"providers":{"openai-codex":{"access":"old"},"github-copilot":` + copilotLogin + `}}`,
		"bom":    "\xef\xbb\xbf" + `{"openai-codex":` + codexLogin + `,"github-copilot":` + copilotLogin + `}`,
	} {
		file := authFile(t, content)
		for provider, want := range map[string]string{"openai-codex": "a.codex.token", "github-copilot": "ghu_stored"} {
			key, source, f := resolve(model(provider, ""), "", env(), file)
			if f != nil || key != want || source != SourceLogin {
				t.Errorf("%s, %s: %q from %q, %v", name, provider, key, source, f)
			}
		}
	}
	login, f := ReadLogin(authFile(t, copilotLogin), "github-copilot")
	want := &Login{Access: "ghu_stored", Refresh: "r", APIEndpoint: "https://api.x", AvailableModelIDs: []string{"a", "b"}}
	if f != nil || !reflect.DeepEqual(login, want) {
		t.Errorf("%+v, %v", login, f)
	}
}

func TestLoginThatIsTheWholeFileGoesToItsProviderOnly(t *testing.T) {
	for content, owner := range map[string]string{
		codexLogin:                "openai-codex",
		`{"access":"head.b.sig"}`: "openai-codex",
		copilotLogin:              "github-copilot",
		`{"access":"ghu_x"}`:      "github-copilot",
	} {
		for _, provider := range []string{"openai-codex", "github-copilot"} {
			login, f := ReadLogin(authFile(t, content), provider)
			if f != nil || (login != nil) != (provider == owner) {
				t.Errorf("%s for %s: %v, %v", content, provider, login, f)
			}
		}
	}
}

func TestBrokenCredentialFileIsReportedWithoutItsContent(t *testing.T) {
	for name, content := range map[string]string{
		"empty":        "",
		"cut":          `{"openai-codex":{"access":"secret`,
		"list":         `["secret"]`,
		"null":         `null`,
		"text login":   `{"openai-codex":"secret"}`,
		"number token": `{"openai-codex":{"access":1}}`,
		"no token":     `{"openai-codex":{"refresh":"secret"}}`,
		"bad nesting":  `{"providers":["secret"]}`,
		"garbage":      "secret{",
	} {
		file := authFile(t, content)
		key, _, f := resolve(model("openai-codex", ""), "", env(), file)
		if key != "" || f == nil || f.Type != messages.FailAuthentication || f.Code != messages.CodeInvalid ||
			!strings.Contains(f.Message, file) || strings.Contains(f.Message+f.Hint, "secret") {
			t.Errorf("%s: %q, %+v", name, key, f)
		}
		after, err := os.ReadFile(file)
		if err != nil || string(after) != content {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if _, f := ReadLogin(t.TempDir(), "openai-codex"); f == nil {
		t.Error("a folder is no credential file")
	}
	// A key that needs no file does not care.
	if key, _, f := resolve(model("openai-codex", ""), "", env("OPENAI_CODEX_API_KEY=k"), authFile(t, "broken")); key != "k" || f != nil {
		t.Errorf("%q, %v", key, f)
	}
}

func TestExpiredLoginThatCannotBeRenewedSaysToSignIn(t *testing.T) {
	file := authFile(t, `{"openai-codex":{"access":"a","expires":1,"accountId":"x"},"github-copilot":{"access":"ghu_a","expires":1}}`)
	for provider, hint := range map[string]string{
		"openai-codex":   "codework auth login --openai-codex",
		"github-copilot": "codework auth login --github-copilot",
	} {
		_, _, f := resolve(model(provider, ""), "", env(), file)
		if f == nil || f.Code != messages.CodeExpired || !strings.Contains(f.Hint, hint) {
			t.Errorf("%s: %+v", provider, f)
		}
	}
}

func TestCopilotPrefersItsOwnTokenThenTheLoginThenSharedOnes(t *testing.T) {
	file, none := authFile(t, `{"github-copilot":`+copilotLogin+`}`), filepath.Join(t.TempDir(), "none")
	editor := t.TempDir()
	if err := os.MkdirAll(filepath.Join(editor, "github-copilot"), 0o700); err != nil {
		t.Fatal(err)
	}
	apps := `{"example.com:Iv1.x":{"oauth_token":"ghu_other"},"github.com:Iv1.y":{"user":"u","oauth_token":"ghu_editor"}}`
	if err := os.WriteFile(filepath.Join(editor, "github-copilot", "apps.json"), []byte(apps), 0o600); err != nil {
		t.Fatal(err)
	}
	m := model("github-copilot", "", "COPILOT_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
	for _, test := range []struct {
		name, file  string
		env         []string
		key, source string
	}{
		{"own", file, []string{"COPILOT_GITHUB_TOKEN=own", "GITHUB_TOKEN=gho_x"}, "own", "COPILOT_GITHUB_TOKEN"},
		{"login", file, []string{"GITHUB_TOKEN=gho_x"}, "ghu_stored", SourceLogin},
		{"shared", none, []string{"GITHUB_TOKEN=ghs_ci", "GH_TOKEN=gho_x"}, "gho_x", "GH_TOKEN"},
		{"editor", none, []string{"GITHUB_TOKEN=ghs_ci", "XDG_CONFIG_HOME=" + editor}, "ghu_editor", SourceEditor},
	} {
		key, source, f := resolve(m, "", env(test.env...), test.file)
		if f != nil || key != test.key || source != test.source {
			t.Errorf("%s: %q from %q, %v", test.name, key, source, f)
		}
	}
	if key, _, f := resolve(m, "", env("GITHUB_TOKEN=ghs_ci", "GH_TOKEN=github_pat_x"), none); f == nil {
		t.Errorf("took %q, which has no access to Copilot", key)
	}
}

func TestOwnEntryOfALoginProviderMayNameItsVariable(t *testing.T) {
	key, source, f := resolve(model("openai-codex", "", "MY_TOKEN"), "", env("MY_TOKEN=mine", "OPENAI_CODEX_API_KEY=k"), "")
	if f != nil || key != "mine" || source != "MY_TOKEN" {
		t.Errorf("%q from %q, %v", key, source, f)
	}
}

func TestKnownNamesAreThoseOfTheSnapshotAndOfTheProgram(t *testing.T) {
	all, err := catalog.Open(catalog.Options{}).List("", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"DAYTONA_API_KEY", "VERCEL_OIDC_TOKEN", "CODEWORK_SERVER_TOKEN"}
	for _, m := range all {
		want = append(want, m.Provider.Env...)
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if got := EnvNames(nil); !slices.Equal(got, want) {
		t.Errorf("names.go should have\n%s\nbut has\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

func TestOwnModelsAddTheirNames(t *testing.T) {
	got := EnvNames([]messages.Model{model("p", "${MY_KEY}", "OTHER", "OPENAI_API_KEY"), model("q", "")})
	for _, name := range []string{"MY_KEY", "OTHER", "OPENAI_API_KEY"} {
		if !slices.Contains(got, name) {
			t.Errorf("no %s", name)
		}
	}
	if len(got) != len(EnvNames(nil))+2 || !slices.IsSorted(got) {
		t.Errorf("%v", got)
	}
}

// ownWords are all the errors that parseLogin has: none has room for a token.
var ownWords = regexp.MustCompile(`^(no content|not JSON at byte \d+|expected a JSON object|providers: expected an object` +
	`|(openai-codex|github-copilot): (expected an object|no access token|wrong type of value)` +
	`|(access|refresh|expires|accountId|enterpriseUrl|apiEndpoint|availableModelIds): wrong type of value)$`)

// FuzzLogin: whatever the bytes, the credential file gives a login with a
// token, none, or an error; an error never repeats what the file holds, and
// one file that is a login as a whole never serves both providers.
func FuzzLogin(f *testing.F) {
	f.Add([]byte(`{"openai-codex":` + codexLogin + `}`))
	f.Add([]byte(`{"providers":{"github-copilot":` + copilotLogin + `}}`))
	f.Add([]byte(codexLogin))
	f.Add([]byte(copilotLogin))
	f.Add([]byte(`{"access":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		found := 0
		for _, provider := range []string{"openai-codex", "github-copilot"} {
			login, err := parseLogin(data, provider)
			if err != nil && login != nil || login != nil && login.Access == "" {
				t.Fatalf("%+v with %v", login, err)
			}
			if login != nil {
				found++
			}
			if err != nil && !ownWords.MatchString(err.Error()) {
				t.Fatalf("error %q", err)
			}
		}
		var top map[string]json.RawMessage
		if json.Unmarshal(data, &top) == nil && found == 2 {
			if absent(top["openai-codex"]) && absent(top["github-copilot"]) && absent(top["providers"]) {
				t.Fatal("one token for both providers")
			}
		}
	})
}

// FuzzEditor: files of editors give a token of a signed-in person or nothing.
func FuzzEditor(f *testing.F) {
	f.Add([]byte(`{"github.com":{"oauth_token":"gho_x"}}`))
	f.Add([]byte(`{"github.com:app":{"oauth_token":1},"github.com":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if token := parseEditor(data); token != "" && !copilotToken(token) {
			t.Fatalf("took %q", token)
		}
	})
}
