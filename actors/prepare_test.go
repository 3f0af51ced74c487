package actors

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"codework/internal/settings"
	"codework/messages"
	"codework/providers"
	"codework/providers/catalog"
	"codework/providers/chat"
	"codework/providers/credentials"
	"codework/sandboxes"
)

// shop is a Workshop over folders of the test, with what it needs of a
// guardian.
type shop struct {
	t      testing.TB
	w      *Workshop
	home   string
	dir    string // where sessions work
	driver *countedDriver
	system *System
}

// countedDriver makes mounts that remember how they were asked for.
type countedDriver struct {
	asked  chan sandboxes.MountOptions
	closed chan string
}

func (d *countedDriver) Mount(_ context.Context, o sandboxes.MountOptions) (sandboxes.Mount, error) {
	if _, err := os.Stat(o.Dir); err != nil {
		return nil, &messages.DirectoryNotFound{Directory: o.Dir, SandboxID: messages.LocalSandbox}
	}
	d.asked <- o
	return &plainMount{dir: o.Dir, session: o.Session, closed: d.closed}, nil
}

func (d *countedDriver) Close(context.Context) error { return nil }

// plainMount is the host's files, to read only.
type plainMount struct {
	sandboxes.Mount
	dir, session string
	closed       chan string
}

// fileError is an error as a driver reports it.
func fileError(op, path string, err error) error {
	return &sandboxes.FileError{Op: op, Path: path, Err: err}
}

func (m *plainMount) Dir() string { return m.dir }
func (m *plainMount) Close() error {
	m.closed <- m.session
	return nil
}

func (m *plainMount) Read(_ context.Context, path string, offset, limit int64) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fileError("read", path, err)
	}
	if offset >= int64(len(b)) {
		return nil, nil
	}
	if b = b[offset:]; limit >= 0 && int64(len(b)) > limit {
		b = b[:limit]
	}
	return b, nil
}

func info(fi os.FileInfo) sandboxes.Info {
	return sandboxes.Info{Name: fi.Name(), Size: fi.Size(), Mode: fi.Mode(), ModTime: fi.ModTime()}
}

func (m *plainMount) Stat(_ context.Context, path string) (sandboxes.Info, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return sandboxes.Info{}, fileError("stat", path, err)
	}
	return info(fi), nil
}

func (m *plainMount) Lstat(_ context.Context, path string) (sandboxes.Info, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return sandboxes.Info{}, fileError("stat", path, err)
	}
	return info(fi), nil
}

func (m *plainMount) List(_ context.Context, path string) ([]sandboxes.Info, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fileError("list", path, err)
	}
	var out []sandboxes.Info
	for _, e := range entries {
		fi, err := e.Info()
		if err == nil {
			out = append(out, info(fi))
		}
	}
	return out, nil
}

func (m *plainMount) RealPath(_ context.Context, path string) (string, error) {
	p, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fileError("resolve", path, err)
	}
	return p, nil
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{t: t, home: t.TempDir(), dir: t.TempDir(),
		driver: &countedDriver{asked: make(chan sandboxes.MountOptions, 64), closed: make(chan string, 64)}}
	log := slog.New(slog.DiscardHandler)
	s.w = &Workshop{
		Home: s.home, Catalog: catalog.Open(catalog.Options{File: filepath.Join(s.home, "models.json")}),
		Credentials: credentials.OpenStore(credentials.Options{File: filepath.Join(s.home, "auth.json"), Log: log}), Trust: settings.OpenTrust(s.home),
		Speaks: func(p messages.Protocol) bool { return p == messages.ProtocolCompatible },
	}
	s.settings(s.home, `{}`)
	l := newLogged(t)
	system, err := Boot(soon(t), Config{Store: l, Prepare: s.w, Local: s.driver, Dir: s.dir,
		Dialects: map[messages.Protocol]providers.Dialect{messages.ProtocolCompatible: chat.Dialect{}}}, Identity{}, log)
	if err != nil {
		t.Fatal(err)
	}
	s.system = system
	t.Cleanup(func() { system.Shutdown(soon(t)) })
	return s
}

// model is a model of the user's own settings.
const model = `{"id":"m","name":"M","provider":{"id":"p","name":"P","source":"custom","env":["SHOP_KEY"]},"protocol":"openai-compatible",` +
	`"baseUrl":"http://127.0.0.1:1/v1","reasoning":false,"input":["text"],"contextWindow":1000,"maxTokens":100,` +
	`"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0}}`

// settings writes a settings file with the model in it.
func (s *shop) settings(folder, text string) {
	s.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		s.t.Fatal(err)
	}
	if folder == s.home {
		v["models"] = []json.RawMessage{json.RawMessage(model)}
		block, _ := v["model"].(map[string]any)
		if block == nil {
			block = map[string]any{}
		}
		block["provider"], block["id"] = "p", "m"
		v["model"] = block
	}
	b, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "settings.json"), b, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

const shopKey = "sk-shop-0123456789"

func (s *shop) query() ExchangeQuery {
	return ExchangeQuery{
		Session: messages.SessionRecord{ID: "ses_1", Directory: s.dir, HostDir: s.dir},
		World:   &messages.World{Dir: s.dir, Env: []string{"SHOP_KEY=" + shopKey, "TEAM=blue"}, Umask: 0o22},
	}
}

func (s *shop) prepare(q ExchangeQuery) *Exchange {
	s.t.Helper()
	ex, err := s.w.Prepare(soon(s.t), q)
	if err != nil {
		s.t.Fatal(err)
	}
	return ex
}

func TestAnExchangeIsWhatSettingsAndTheCallerSay(t *testing.T) {
	s := newShop(t)
	s.settings(s.home, `{"model":{"toolExecution":"parallel","options":{"maxTokens":7,"headers":{"x-team":"${TEAM}"}}},
		"retry":{"maxRetries":5,"baseDelayMs":10,"maxDelayMs":2000}}`)
	ex := s.prepare(s.query())
	if ex.APIKey != shopKey || ex.Model.ID != "m" || ex.Options.Headers["x-team"] != "blue" || !ex.Parallel {
		t.Errorf("exchange %+v", ex)
	}
	if ex.Options.MaxTokens != 7 {
		t.Errorf("max tokens %v", ex.Options.MaxTokens)
	}
	if want := (Retry{Max: 5, Base: 10 * time.Millisecond, MaxDelay: 2 * time.Second}); ex.Retry != want {
		t.Errorf("retry %+v", ex.Retry)
	}
	if ex.Thinking != "off" {
		t.Errorf("a model that does not reason is asked for %s", ex.Thinking)
	}
	for _, want := range []string{"read", "write", "edit", "bash"} {
		if _, ok := ex.Tools.Tool(want); !ok {
			t.Errorf("no tool %s", want)
		}
	}
	o := <-s.driver.asked
	if o.Dir != s.dir || o.Umask != 0o22 || !slices.Contains(o.Withhold, "SHOP_KEY") {
		t.Errorf("mounted with %+v", o)
	}
}

func TestTheKeyIsNotTheServersWhenTheCallerHasOne(t *testing.T) {
	s := newShop(t)
	t.Setenv("SHOP_KEY", "sk-of-the-server")
	if ex := s.prepare(s.query()); ex.APIKey != shopKey {
		t.Error("the caller's variable does not count first")
	}
	q := s.query()
	q.World = nil
	if ex := s.prepare(q); ex.APIKey != "sk-of-the-server" {
		t.Error("without a caller the server's variable does not count")
	}
}

func TestFailuresOfAnExchangeHaveTheirType(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(s *shop, q *ExchangeQuery)
		want string
		says string
	}{
		{"no key", func(s *shop, q *ExchangeQuery) { q.World.Env = nil }, messages.FailAuthentication, "SHOP_KEY"},
		{"no such model", func(s *shop, q *ExchangeQuery) {
			q.Session.Runtime.Model = &messages.ModelRef{Provider: "p", ID: "n"}
		}, messages.FailModelNotFound, "p/n"},
		{"settings do not parse", func(s *shop, q *ExchangeQuery) {
			if err := os.WriteFile(filepath.Join(s.home, "settings.json"), []byte(`{"model":`), 0o600); err != nil {
				s.t.Fatal(err)
			}
		}, messages.FailSettings, "settings.json"},
		{"a variable is not set", func(s *shop, q *ExchangeQuery) {
			s.settings(s.home, `{"model":{"options":{"headers":{"x":"${SHOP_NOT_SET}"}}}}`)
		}, "", "SHOP_NOT_SET"},
		{"the directory is gone", func(s *shop, q *ExchangeQuery) { q.Session.Directory = filepath.Join(s.dir, "gone") }, messages.FailSandboxDirectory, "gone"},
		{"certificates cannot be read", func(s *shop, q *ExchangeQuery) {
			s.settings(s.home, `{"model":{"options":{"baseURL":"https://127.0.0.1:1/v1"}}}`)
			q.World.Env = append(q.World.Env, "SSL_CERT_FILE=/does/not/exist.pem")
		}, messages.FailConfiguration, "SSL_CERT_FILE"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newShop(t)
			q := s.query()
			tc.set(s, &q)
			_, err := s.w.Prepare(soon(t), q)
			var f *messages.Failure
			if !errors.As(err, &f) || tc.want != "" && f.Type != tc.want {
				t.Fatalf("got %v", err)
			}
			if text := f.Message + f.Hint; !strings.Contains(text, tc.says) || strings.Contains(text, shopKey) {
				t.Errorf("it says %q", text)
			}
		})
	}
}

func TestExchangesShareAConnectionWhenEverythingIsTheSame(t *testing.T) {
	s := newShop(t)
	conn := func(q ExchangeQuery) *Ref { return s.prepare(q).Streamer.(connection).slot.ref }
	first := conn(s.query())
	other := s.query()
	other.Session.ID = "ses_2"
	if conn(other) != first {
		t.Error("two sessions with the same key have two connections")
	}
	for _, env := range []string{"SHOP_KEY=another-key-entirely", "HTTPS_PROXY=http://127.0.0.1:3128", "NO_PROXY=example.com"} {
		q := s.query()
		q.World.Env = append(q.World.Env, env)
		if conn(q) == first {
			t.Errorf("with %s the connection is the same", env)
		}
	}
}

func TestAMountStaysWhileNothingChanges(t *testing.T) {
	s := newShop(t)
	s.prepare(s.query())
	s.prepare(s.query())
	if n := len(s.driver.asked); n != 1 {
		t.Errorf("%d mounts for the same exchange", n)
	}
	changed := s.query()
	changed.World.Env = append(changed.World.Env, "VIRTUAL_ENV=/v")
	s.prepare(changed)
	if n := len(s.driver.asked); n != 2 {
		t.Errorf("%d mounts after the environment has changed", n)
	}
	if len(s.driver.closed) != 0 {
		t.Error("the older mount was closed under its background jobs")
	}
}

func TestToolsCanBeTurnedOnAndOff(t *testing.T) {
	s := newShop(t)
	s.settings(s.home, `{"plugins":[{"plugin":"codework.tool.bash","enabled":false},{"plugin":"codework.tool.grep","enabled":true}]}`)
	ex := s.prepare(s.query())
	if _, ok := ex.Tools.Tool("bash"); ok {
		t.Error("bash is there")
	}
	if _, ok := ex.Tools.Tool("grep"); !ok {
		t.Error("grep is not there")
	}
	if strings.Contains(ex.System, "- bash") {
		t.Error("the system prompt speaks of a tool that is off")
	}
}

func TestInstructionFilesAndTheAddendumAreInTheSystemPrompt(t *testing.T) {
	s := newShop(t)
	if err := os.WriteFile(filepath.Join(s.dir, "AGENTS.md"), []byte("always whistle"), 0o600); err != nil {
		t.Fatal(err)
	}
	q := s.query()
	q.Session.AppendSystemPrompt = "and dance"
	ex := s.prepare(q)
	for _, want := range []string{"always whistle", "and dance", s.dir} {
		if !strings.Contains(ex.System, want) {
			t.Errorf("the system prompt does not say %q", want)
		}
	}
	if strings.Contains(ex.System, shopKey) {
		t.Error("the system prompt has the key in it")
	}
}

func TestAnUntrustedProjectCannotRedirectRequests(t *testing.T) {
	s := newShop(t)
	project := filepath.Join(s.dir, ".codework")
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	s.settings(project, `{"model":{"options":{"baseURL":"http://evil.example/v1"}}}`)
	ex := s.prepare(s.query())
	if strings.Contains(providers.BaseURL(ex.Model), "evil") {
		t.Error("requests go where the project says")
	}
	if len(ex.Notices) == 0 {
		t.Error("nobody is told that the key was ignored")
	}
	if err := s.w.Trust.Trust(s.dir); err != nil {
		t.Fatal(err)
	}
	if ex := s.prepare(s.query()); !strings.Contains(providers.BaseURL(ex.Model), "evil") {
		t.Error("the trusted project's key does not count")
	}
}

func TestSecretsOfAnExchangeAreMaskedInFailures(t *testing.T) {
	ex := &Exchange{APIKey: shopKey, Options: messages.RequestOptions{Headers: map[string]string{"X-Auth-Token": "token-0123456789", "x-team": "harmless-value"}}}
	f := &messages.Failure{Type: messages.FailAuthentication, Message: "key " + shopKey + " is wrong", Code: "token-0123456789", Hint: "harmless-value " + shopKey}
	got := ex.redact(f)
	if text := got.Message + got.Code + got.Hint; strings.Contains(text, shopKey) || strings.Contains(text, "token-0") {
		t.Errorf("it says %q", text)
	}
	if !strings.Contains(got.Hint, "harmless-value") {
		t.Error("harmless values are masked too")
	}
	if f.Message != "key "+shopKey+" is wrong" {
		t.Error("the provider's own failure was changed")
	}
}

func TestProvidersThatEchoTheKeyDoNotGetItIntoTheLog(t *testing.T) {
	r := newRig(t)
	r.with(func(x *Exchange) { x.APIKey = shopKey })
	id := r.create()
	r.prompt(id, "go", messages.Steer)
	a := r.model.next(t)
	a.start()
	a.fail(messages.Failure{Type: messages.FailAuthentication, Message: "incorrect key " + shopKey, Status: 401})
	r.wait(id)
	for _, e := range r.log(id) {
		if strings.Contains(string(e.Data), shopKey) {
			t.Errorf("%s holds the key", e.Type)
		}
	}
}
