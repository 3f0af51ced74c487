package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"codework/messages"
)

var (
	savedCodex   = Credentials{"openai-codex", Login{Access: "head.body.sig", Refresh: "rt-1", Expires: 1_800_000_000_000, AccountID: "acc"}}
	savedCopilot = Credentials{"github-copilot", Login{Access: "ghu_x", Refresh: "ghu_x", EnterpriseURL: "ghe.example.com",
		APIEndpoint: "https://api.example.com", AvailableModelIDs: []string{"a", "b"}}}
)

func TestSavedLoginsAreTherePerProviderUntilLogout(t *testing.T) {
	ctx, file := t.Context(), filepath.Join(t.TempDir(), "aikit", "auth.json")
	s := openTest(t, file, "")
	for _, p := range []string{"openai-codex", "github-copilot"} {
		if info, err := s.Status(ctx, p); info != nil || err != nil {
			t.Fatalf("%+v, %v", info, err)
		}
		if err := s.Logout(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(file)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("asking made the folder")
	}
	for _, test := range []struct {
		save Credentials
		json string
	}{
		{savedCodex, `{"provider":"openai-codex","expires":1800000000000,"accountId":"acc"}`},
		{savedCopilot, `{"provider":"github-copilot","expires":0,"apiEndpoint":"https://api.example.com","enterpriseUrl":"ghe.example.com","availableModels":2}`},
	} {
		info, err := s.Save(ctx, test.save)
		if err != nil {
			t.Fatal(err)
		}
		status, err := s.Status(ctx, test.save.Provider)
		if err != nil || !reflect.DeepEqual(*status, info) {
			t.Errorf("saved %+v, status %+v, %v", info, status, err)
		}
		refreshed, err := s.Refresh(ctx, test.save.Provider)
		if err != nil || !reflect.DeepEqual(*refreshed, info) {
			t.Errorf("saved %+v, refreshed %+v, %v", info, refreshed, err)
		}
		if b, _ := json.Marshal(info); string(b) != test.json {
			t.Errorf("%s\nshould be\n%s", b, test.json)
		}
		login, err := s.Fresh(ctx, test.save.Provider)
		if err != nil || !reflect.DeepEqual(*login, test.save.Login) {
			t.Errorf("%+v, %v", login, err)
		}
	}
	// What requests read is what was saved.
	if key, source, f := resolve(model("github-copilot", ""), "", env(), file); key != "ghu_x" || source != SourceLogin || f != nil {
		t.Errorf("%q, %q, %v", key, source, f)
	}
	if err := s.Logout(ctx, "openai-codex"); err != nil {
		t.Fatal(err)
	}
	codex, err := s.Status(ctx, "openai-codex")
	copilot, err2 := s.Status(ctx, "github-copilot")
	if codex != nil || err != nil || copilot == nil || err2 != nil {
		t.Errorf("%v, %v; %v, %v", codex, err, copilot, err2)
	}
}

func TestFileAndFolderAreTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "new", "aikit", "auth.json")
	if _, err := openTest(t, file, "").Save(t.Context(), savedCodex); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "auth.json") // as another program left it
	if err := os.WriteFile(open, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openTest(t, open, "").Save(t.Context(), savedCodex); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{
		filepath.Join(dir, "new"): 0o700, filepath.Dir(file): 0o700, file: 0o600, file + ".lock": 0o600, open: 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	data, err := os.ReadFile(file)
	want := "{\n\t\"openai-codex\": {\n\t\t\"access\": \"head.body.sig\",\n\t\t\"accountId\": \"acc\",\n\t\t\"expires\": 1800000000000,\n\t\t\"refresh\": \"rt-1\"\n\t}\n}\n"
	if err != nil || string(data) != want {
		t.Errorf("%s, %v", data, err)
	}
	left, err := filepath.Glob(file + "*")
	if err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWritingKeepsWhatItDoesNotKnow(t *testing.T) {
	const other = `{"key":"<a&b>","n":12345678901234567890}`
	for name, test := range map[string]struct{ before, codex, rest string }{
		"top": {
			`{"openai-codex":{"access":"old","accountId":"o","type":"oauth","Refresh":"old"},"x":` + other + `}`,
			`{"access":"head.body.sig","accountId":"acc","expires":1800000000000,"refresh":"rt-1","type":"oauth"}`,
			`{"x":` + other + `}`},
		"nested": {
			`{"version":1,"providers":{"openai-codex":{"access":"old","type":"oauth"},"x":` + other + `}}`,
			`{"access":"head.body.sig","accountId":"acc","expires":1800000000000,"refresh":"rt-1","type":"oauth"}`,
			`{"providers":{"x":` + other + `},"version":1}`},
		"whole file": {
			`{"access":"a.b.c","refresh":"old","expires":1,"ACCOUNTID":"o","x":` + other + `}`,
			`{"access":"head.body.sig","accountId":"acc","expires":1800000000000,"refresh":"rt-1"}`,
			`{"x":` + other + `}`},
		"whole file of the other": {
			`{"access":"ghu_x","refresh":"ghu_x","x":` + other + `}`,
			`{"access":"head.body.sig","accountId":"acc","expires":1800000000000,"refresh":"rt-1"}`,
			`{"access":"ghu_x","refresh":"ghu_x","x":` + other + `}`},
		"broken entry": {
			`{"openai-codex":"text","x":` + other + `}`,
			`{"access":"head.body.sig","accountId":"acc","expires":1800000000000,"refresh":"rt-1"}`,
			`{"x":` + other + `}`},
		"odd providers": {
			`{"providers":["x"],"x":` + other + `}`,
			`{"access":"head.body.sig","accountId":"acc","expires":1800000000000,"refresh":"rt-1"}`,
			`{"providers":["x"],"x":` + other + `}`},
		"byte order mark": {
			"\xef\xbb\xbf" + `{"x":` + other + `}`,
			`{"access":"head.body.sig","accountId":"acc","expires":1800000000000,"refresh":"rt-1"}`,
			`{"x":` + other + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			file := authFile(t, test.before)
			s := openTest(t, file, "")
			if _, err := s.Save(t.Context(), savedCodex); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := parseDocument(data)
			if err != nil {
				t.Fatal(err)
			}
			codex := doc["openai-codex"]
			delete(doc, "openai-codex")
			for what, pair := range map[string][2]string{"login": {compact(t, codex), test.codex}, "rest": {compactDoc(t, doc), test.rest}} {
				if pair[0] != pair[1] {
					t.Errorf("%s:\n%s\nshould be\n%s", what, pair[0], pair[1])
				}
			}
			err = s.Logout(t.Context(), "openai-codex")
			if name == "odd providers" {
				mustContain(t, err, file, "providers: expected an object")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if data, err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
			if got := compact(t, data); got != test.rest {
				t.Errorf("after logout:\n%s\nshould be\n%s", got, test.rest)
			}
		})
	}
}

func compact(t *testing.T, data []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return b.String()
}

func compactDoc(t *testing.T, d document) string {
	t.Helper()
	data, err := d.encode()
	if err != nil {
		t.Fatal(err)
	}
	return compact(t, data)
}

func TestDamagedFileIsSetAsideBySavingAndLeftAloneByTheRest(t *testing.T) {
	for _, content := range []string{`{"openai-codex":{"access":"secret-token`, `["secret-token"]`, `null`, "secret-token"} {
		file := authFile(t, content)
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		s := OpenStore(Options{File: file, Now: atNoon, Log: slog.New(slog.NewTextHandler(&log, nil))})
		_, statusErr := s.Status(t.Context(), "openai-codex")
		_, refreshErr := s.Refresh(t.Context(), "openai-codex")
		_, freshErr := s.Fresh(t.Context(), "openai-codex")
		for _, err := range []error{statusErr, refreshErr, freshErr, s.Logout(t.Context(), "openai-codex")} {
			mustContain(t, err, file)
			if strings.Contains(err.Error(), "secret") {
				t.Error(err)
			}
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != content {
			t.Fatalf("changed to %q, %v", data, err)
		}
		if log.Len() > 0 {
			t.Errorf("said %s", &log)
		}
		// Twice in the same second, so that the second has to find a name.
		for n, name := range []string{"20260101T120000Z", "20260101T120000Z-2"} {
			if _, err := s.Save(t.Context(), savedCodex); err != nil {
				t.Fatal(err)
			}
			kept := file + ".bad-" + name
			data, err := os.ReadFile(kept)
			if err != nil || string(data) != content {
				t.Fatalf("kept %q, %v", data, err)
			}
			if info, err := os.Stat(kept); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if !strings.Contains(log.String(), kept) || strings.Contains(log.String(), "secret") || strings.Count(log.String(), "\n") != n+1 {
				t.Errorf("said %s", &log)
			}
			if info, err := s.Status(t.Context(), "openai-codex"); err != nil || info == nil {
				t.Errorf("%v, %v", info, err)
			}
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestEmptyFileIsNothingToKeep(t *testing.T) {
	file := authFile(t, " \n")
	if _, err := openTest(t, file, "").Save(t.Context(), savedCodex); err != nil {
		t.Fatal(err)
	}
	if bad, _ := filepath.Glob(file + ".bad-*"); len(bad) > 0 {
		t.Errorf("%v", bad)
	}
}

func TestWhatIsNoFileIsRefusedAndStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "auth.json")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := openTest(t, dir, "").Save(t.Context(), savedCodex)
	mustContain(t, err, dir, "not a regular file")
	_, err = openTest(t, "", "").Save(t.Context(), savedCodex)
	mustContain(t, err, "no credential file")

	large := authFile(t, `{"x":"`+strings.Repeat("x", maxFile-20)+`"}`)
	_, err = openTest(t, large, "").Save(t.Context(), savedCodex)
	mustContain(t, err, "1 MiB")
	if info, err := os.Stat(large); err != nil || info.Size() < maxFile-20 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestLinksAreFollowedAndHaveOneLock(t *testing.T) {
	dir := t.TempDir()
	real, link, hanging := filepath.Join(dir, "real.json"), filepath.Join(dir, "auth.json"), filepath.Join(dir, "other.json")
	if err := os.Symlink("real.json", link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(link, hanging); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{hanging, link} { // first without a target
		if _, err := openTest(t, name, "").Save(t.Context(), savedCodex); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(name); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v", name, err)
		}
		if members(t, real)["openai-codex"] == "" {
			t.Error("the target has no login")
		}
		if err := openTest(t, real, "").Logout(t.Context(), "openai-codex"); err != nil {
			t.Fatal(err)
		}
	}
	if locks, _ := filepath.Glob(filepath.Join(dir, "*.lock")); len(locks) != 1 {
		t.Errorf("%v", locks)
	}
}

func TestSaveTakesWhatTheWireAllows(t *testing.T) {
	codex, copilot := savedCodex, savedCopilot
	with := func(c Credentials, change func(*Credentials)) Credentials { change(&c); return c }
	for name, c := range map[string]Credentials{
		"blanks around":         with(codex, func(c *Credentials) { c.Access = " head.body.sig\n" }),
		"never":                 with(codex, func(c *Credentials) { c.Expires = 0 }),
		"copilot, bare":         {"github-copilot", Login{Access: "ghu_x"}},
		"enterprise URL":        with(copilot, func(c *Credentials) { c.EnterpriseURL = "https://ghe.example.com" }),
		"enterprise, this host": with(copilot, func(c *Credentials) { c.EnterpriseURL = "http://127.0.0.1:8080" }),
		"endpoint, this host":   with(copilot, func(c *Credentials) { c.APIEndpoint = "http://[::1]:8080/x" }),
		"endpoint, localhost":   with(copilot, func(c *Credentials) { c.APIEndpoint = "http://localhost" }),
	} {
		if _, err := openTest(t, filepath.Join(t.TempDir(), "auth.json"), "").Save(t.Context(), c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, test := range []struct {
		name, want string
		c          Credentials
	}{
		{"no provider", "openai-codex and github-copilot", Credentials{Login: codex.Login}},
		{"unknown provider", "openai-codex and github-copilot", with(codex, func(c *Credentials) { c.Provider = "secret" })},
		{"no access", "access", with(codex, func(c *Credentials) { c.Access = " " })},
		{"no refresh", "refresh", with(codex, func(c *Credentials) { c.Refresh = "" })},
		{"no account", "accountId", with(codex, func(c *Credentials) { c.AccountID = "" })},
		{"copilot, no access", "access", with(copilot, func(c *Credentials) { c.Access = "" })},
		{"line break", "access", with(codex, func(c *Credentials) { c.Access = "secret\nsecret" })},
		{"blank", "refresh", with(codex, func(c *Credentials) { c.Refresh = "secret secret" })},
		{"not ASCII", "accountId", with(codex, func(c *Credentials) { c.AccountID = "secrét" })},
		{"negative", "expires", with(codex, func(c *Credentials) { c.Expires = -1 })},
		{"too late", "expires", with(codex, func(c *Credentials) { c.Expires = 1 << 53 })},
		{"endpoint without TLS", "apiEndpoint", with(copilot, func(c *Credentials) { c.APIEndpoint = "http://secret.example.com" })},
		{"endpoint, close to localhost", "apiEndpoint", with(copilot, func(c *Credentials) { c.APIEndpoint = "http://localhost.secret.com" })},
		{"endpoint without scheme", "apiEndpoint", with(copilot, func(c *Credentials) { c.APIEndpoint = "secret.example.com" })},
		{"endpoint with user", "apiEndpoint", with(copilot, func(c *Credentials) { c.APIEndpoint = "https://u:secret@x.com" })},
		{"endpoint with query", "apiEndpoint", with(copilot, func(c *Credentials) { c.APIEndpoint = "https://x.com?secret" })},
		{"endpoint of a file", "apiEndpoint", with(copilot, func(c *Credentials) { c.APIEndpoint = "file:///secret" })},
		{"enterprise without TLS", "enterpriseUrl", with(copilot, func(c *Credentials) { c.EnterpriseURL = "http://secret.com" })},
		{"enterprise, no host", "enterpriseUrl", with(copilot, func(c *Credentials) { c.EnterpriseURL = "sec ret" })},
		{"empty model", "availableModelIds", with(copilot, func(c *Credentials) { c.AvailableModelIDs = []string{"secret", ""} })},
	} {
		file := filepath.Join(t.TempDir(), "auth.json")
		_, err := openTest(t, file, "").Save(t.Context(), test.c)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(strings.ReplaceAll(err.Error(), " ", ""), "secr") {
			t.Errorf("%s: %v", test.name, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s: was written", test.name)
		}
	}
}

func TestFieldsOfTheOtherProviderAreNotStored(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "auth.json"), "")
	both := Login{Access: "ghu_x", Refresh: "r", AccountID: "acc", APIEndpoint: "https://x.com", EnterpriseURL: "x.com", AvailableModelIDs: []string{}}
	codex, err := s.Save(t.Context(), Credentials{"openai-codex", both})
	copilot, err2 := s.Save(t.Context(), Credentials{"github-copilot", both})
	if err != nil || err2 != nil || codex != (Info{Provider: "openai-codex", AccountID: "acc"}) || copilot.AccountID != "" {
		t.Errorf("%+v, %v; %+v, %v", codex, err, copilot, err2)
	}
	// No models is not the same as no list of them.
	if info, err := s.Status(t.Context(), "github-copilot"); err != nil || info.AvailableModels == nil || *info.AvailableModels != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestUnknownProvidersAreRefused(t *testing.T) {
	s := openTest(t, authFile(t, `{"anthropic":{"access":"x"}}`), "")
	_, status := s.Status(t.Context(), "anthropic")
	_, refresh := s.Refresh(t.Context(), "anthropic")
	_, fresh := s.Fresh(t.Context(), "anthropic")
	_, renew := s.Renew(t.Context(), "anthropic", "x")
	for _, err := range []error{status, refresh, fresh, renew, s.Logout(t.Context(), "anthropic")} {
		mustContain(t, err, "there are openai-codex and github-copilot")
	}
}

// Whoever reads meanwhile sees one state or another, and a login that nobody
// touches is always there.
func TestSavingAndRemovingAtOnceLosesNothing(t *testing.T) {
	const rounds, writers = 15, 6
	file := authFile(t, `{"github-copilot":`+copilotLogin+`,"x":{"n":1}}`)
	stop := make(chan struct{})
	var readers, wg sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			login, f := ReadLogin(file, "openai-codex")
			other, f2 := ReadLogin(file, "github-copilot")
			if f != nil || f2 != nil || other == nil || login != nil && login.Refresh != "rt-of-"+login.AccountID {
				t.Errorf("%v %v, %v %v", login, f, other, f2)
				return
			}
		}
	})
	for w := range writers {
		wg.Go(func() {
			s := OpenStore(Options{File: file, Now: atNoon}) // as another process has it
			for n := range rounds {
				account := fmt.Sprint("account-", w, "-", n)
				if _, err := s.Save(t.Context(), Credentials{"openai-codex", Login{Access: "a.b.c", Refresh: "rt-of-" + account, AccountID: account}}); err != nil {
					t.Error(err)
				}
				if err := s.Logout(t.Context(), "openai-codex"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	readers.Wait()
	got := members(t, file)
	if got["openai-codex"] != "" || got["github-copilot"] == "" || got["x"] != `{"n":1}` {
		t.Errorf("%v", got)
	}
	if left, _ := filepath.Glob(file + "*"); len(left) != 2 {
		t.Errorf("%v", left)
	}
}

func TestWaitingForTheLockEndsWithTheCaller(t *testing.T) {
	file := authFile(t, `{"openai-codex":`+codexLogin+`}`)
	h, err := hold(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer h.release()
	ctx, cancel := context.WithCancel(t.Context())
	saved := make(chan error)
	go func() {
		_, err := openTest(t, file, "").Save(ctx, savedCodex)
		saved <- err
	}()
	cancel()
	if err := <-saved; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Asking needs no lock.
	if info, err := openTest(t, file, "").Status(t.Context(), "openai-codex"); info == nil || err != nil {
		t.Errorf("%v, %v", info, err)
	}
}

// FuzzChange: whatever file can be understood, a login that is put into it is
// read back as it was, a login that is removed is gone, the other provider's
// answer stays the same, and so does everything that is no login.
func FuzzChange(f *testing.F) {
	f.Add([]byte(`{"openai-codex":`+codexLogin+`,"x":1}`), true)
	f.Add([]byte(`{"providers":{"github-copilot":`+copilotLogin+`,"openai-codex":{"Access":"x"}}}`), false)
	f.Add([]byte(codexLogin), false)
	f.Add([]byte(copilotLogin), true)
	f.Add([]byte(`{"access":"ghu_x","ACCESS":"a.b.c","providers":[]}`), true)
	f.Fuzz(func(t *testing.T, data []byte, codex bool) {
		doc, err := parseDocument(data)
		if err != nil {
			return
		}
		saved, other := savedCodex, savedCopilot
		if !codex {
			saved, other = savedCopilot, savedCodex
		}
		others, othersErr := doc.login(other.Provider)
		odd := map[string]string{}
		for name, raw := range doc {
			if plainMember(name) {
				odd[name] = compact(t, raw)
			}
		}
		same := func(when string, doc document) {
			l, err := doc.login(other.Provider)
			if !reflect.DeepEqual(l, others) || fmt.Sprint(err) != fmt.Sprint(othersErr) {
				t.Fatalf("%s: other login %+v, %v; was %+v, %v", when, l, err, others, othersErr)
			}
			for name, raw := range odd {
				if compact(t, doc[name]) != raw {
					t.Fatalf("%s: %q is %s, was %s", when, name, doc[name], raw)
				}
			}
		}
		if err := doc.put(saved.Provider, &saved.Login); err != nil {
			t.Fatal(err)
		}
		encoded, err := doc.encode()
		if err != nil {
			t.Fatal(err)
		}
		if doc, err = parseDocument(encoded); err != nil {
			t.Fatal(err)
		}
		got, err := doc.login(saved.Provider)
		if err != nil || !reflect.DeepEqual(*got, saved.Login) {
			t.Fatalf("%+v, %v", got, err)
		}
		same("put", doc)
		found, err := doc.remove(saved.Provider)
		if !found {
			t.Fatal("found nothing to remove")
		}
		if err == nil {
			if left, err := doc.login(saved.Provider); left != nil || err != nil {
				t.Fatalf("left %+v, %v", left, err)
			}
		}
		same("remove", doc)
	})
}

// plainMember tells whether a top-level member has nothing to do with logins.
func plainMember(name string) bool {
	for _, n := range append([]string{"providers", "openai-codex", "github-copilot"}, loginFields...) {
		if strings.EqualFold(n, name) {
			return false
		}
	}
	return true
}

func TestFailuresOfReadingAreOneLineWithTheirHint(t *testing.T) {
	err := plain(&messages.Failure{Message: "what", Hint: "do this"})
	mustContain(t, err, "what; do this")
}
