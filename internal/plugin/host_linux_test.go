package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codework/messages"
	"codework/protocol/plugin"
	"codework/sandboxes"
	"codework/sandboxes/supervisor"
)

// soon bounds what should happen quickly, on a machine with much to do.
const soon = 30 * time.Second

type fixture struct {
	t      *testing.T
	host   *Host
	logs   string
	events chan plugin.Event
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, logs: t.TempDir(), events: make(chan plugin.Event, 16)}
	p := supervisor.NewHost(supervisor.Options{})
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		f.host.Wait()
	})
	f.host = NewHost(Options{Processes: p, LogDir: f.logs, Version: "1.2.3", Publish: func(e plugin.Event) { f.events <- e }})
	return f
}

func program(t *testing.T, mode string) Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Program{ID: "acme.tool.raw", Unnamed: true, Argv: []string{self}, Dir: t.TempDir(), Reference: "raw " + mode,
		Base: []string{"PATH=" + os.Getenv("PATH")}, Env: map[string]string{modeVariable: mode}}
}

func (f *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) start(mode string) *Instance {
	f.t.Helper()
	i, err := f.host.Start(f.context(), program(f.t, mode))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(i.Close)
	return i
}

func (f *fixture) refused(p Program, slug string) *Error {
	f.t.Helper()
	i, err := f.host.Start(f.context(), p)
	var e *Error
	if !errors.As(err, &e) {
		if i != nil {
			i.Close()
		}
		f.t.Fatalf("started, or failed oddly: %v", err)
	}
	if e.Slug != slug {
		f.t.Errorf("%s, not %s: %v", e.Slug, slug, e)
	}
	return e
}

func (f *fixture) call(i *Instance, tool, args string) messages.ToolResult {
	f.t.Helper()
	r, err := i.Call(f.context(), Call{SessionID: "ses_1", ID: "call_1", Directory: "/work", Tool: tool, Arguments: json.RawMessage(args), Images: true})
	if err != nil {
		f.t.Fatalf("%s: %v", tool, err)
	}
	return r
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func words(r messages.ToolResult) string {
	var out []string
	for _, p := range r.Content {
		if p.Type == messages.PartText {
			out = append(out, p.Text)
		} else {
			out = append(out, string(p.Type)+" "+p.MediaType)
		}
	}
	return strings.Join(out, "\n")
}

func TestAPlainServerIsCalled(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	if i.ID != "acme.tool.raw" || i.Declared != nil || i.Kind != plugin.KindTool || i.Instructions != "Use it well." {
		t.Errorf("%+v", i)
	}
	if got := words(f.call(i, "echo", `{"a":1}`)); got != `{"arguments":{"a":1},"meta":{"sh.codework/callId":"call_1","sh.codework/directory":"/work","sh.codework/sessionId":"ses_1"}}` {
		t.Error(got)
	}
}

func TestEveryKindOfResultIsShown(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	r := f.call(i, "kinds", `{}`)
	want := "a\nimage image/png\n[audio (audio/wav, 4 bytes) not shown]\n[resource file:///x: x]\n[resource file:///y]\ninside\n[resource file:///z (application/zip, 3 bytes) not shown]"
	if got := words(r); got != want {
		t.Errorf("got %s", got)
	}
	r = f.call(i, "structured", `{}`)
	if words(r) != `{"n":7}` || string(r.Details) != `{"n":7}` {
		t.Errorf("%s, details %s", words(r), r.Details)
	}
	if r := f.call(i, "fails", `{}`); !r.IsError || words(r) != "it broke" {
		t.Errorf("%+v", r)
	}
	if r := f.call(i, "refuses", `{}`); !r.IsError || words(r) != "no such thing" {
		t.Errorf("%+v", r)
	}
	if r := f.call(i, "huge", `{}`); len(words(r)) > maxText+10 {
		t.Errorf("%d bytes", len(words(r)))
	}
	plain, err := i.Call(f.context(), Call{Tool: "kinds", Arguments: json.RawMessage(`{}`)})
	if err != nil || !strings.Contains(words(plain), "this model takes no images") {
		t.Errorf("%v %s", err, words(plain))
	}
}

func TestProgressIsPassedOn(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	got, done := make(chan string, 8), make(chan error, 1)
	go func() {
		_, err := i.Call(f.context(), Call{SessionID: "s", ID: "c", Tool: "slow", Arguments: json.RawMessage(`{}`),
			Progress: func(r messages.ToolResult) { got <- words(r) }})
		done <- err
	}()
	for n := range 3 {
		select {
		case text := <-got:
			if text != fmt.Sprintf("step %d", n+1) {
				t.Error(text)
			}
		case <-time.After(soon):
			t.Fatal("no progress")
		}
	}
	f.call(i, "release", `{}`)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A call that is answered with something else than an answer must not wait for
// ever: calls have no limit of time.
func TestAnAnswerThatCannotBeReadEndsItsCall(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	for _, tool := range []string{"no number", "no error", "deep"} {
		if r := f.call(i, tool, `{}`); !r.IsError || !strings.Contains(words(r), "its answer cannot be read") {
			t.Errorf("%s: %+v", tool, r)
		}
	}
	if !i.Alive() {
		t.Error("it has ended")
	}
}

func TestAResultHasABoundedNumberOfParts(t *testing.T) {
	f := newFixture(t)
	r := f.call(f.start("plain"), "parts", `{}`)
	if n := len(r.Content); n != MaxParts+1 || r.Content[n-1].Text != fmt.Sprintf("[%d more parts not shown]", 5000-MaxParts) {
		t.Errorf("%d parts, the last %q", n, r.Content[n-1].Text)
	}
}

// Readers of events have queues with an end: a plugin must not fill them.
func TestAStormOfProgressIsThinned(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	var told, size atomic.Int64
	began := time.Now()
	_, err := i.Call(f.context(), Call{SessionID: "s", ID: "c", Tool: "storm", Arguments: json.RawMessage(`{}`),
		Progress: func(r messages.ToolResult) {
			told.Add(1)
			size.Store(max(size.Load(), int64(len(words(r)))))
		}})
	if err != nil {
		t.Fatal(err)
	}
	most := burst + int64(time.Since(began)/interval) + 1
	if n := told.Load(); n < burst || n > most {
		t.Errorf("%d were told, not %d to %d", n, burst, most)
	}
	if n := size.Load(); n > maxProgress+4 {
		t.Errorf("one of %d bytes", n)
	}
}

func TestACancelledCallIsToldAndNotAwaited(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	ctx, cancel := context.WithCancel(f.context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := i.Call(ctx, Call{Tool: "wait", Arguments: json.RawMessage(`{}`)}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	eventually(t, "the server hears of it", func() bool { return slices.Contains(i.said.tail.last(), "cancelled") })
	if got := words(f.call(i, "echo", `{}`)); !strings.HasPrefix(got, `{"arguments":{}`) {
		t.Error(got)
	}
}

func TestOlderServersAreSpokenToAsTheyWant(t *testing.T) {
	for _, mode := range []string{"old", "strict"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if got := words(f.call(f.start(mode), "echo", `{}`)); !strings.HasPrefix(got, `{"arguments":{}`) {
				t.Error(got)
			}
		})
	}
}

func TestWhatCannotStartSaysWhy(t *testing.T) {
	for _, c := range []struct{ mode, slug, says string }{
		{"dies", StartFailed, "exit code 3"},
		{"version", Incompatible, "1999-01-01"},
		{"future", Incompatible, "speaks version 2"},
		{"reserved", InvalidDefinition, "codework.tool.bash"},
		{"foreign event", InvalidDefinition, "plugin.other.tool.x.y"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := program(t, c.mode)
			p.Secrets = []string{"sk-secret-value"}
			e := f.refused(p, c.slug)
			if !strings.Contains(e.Error(), c.says) {
				t.Errorf("%v does not say %s", e, c.says)
			}
			if strings.Contains(e.Error(), "sk-secret-value") {
				t.Errorf("a secret is told: %v", e)
			}
			if c.mode == "dies" && !strings.Contains(e.Error(), "no license found for key <redacted>") {
				t.Errorf("its last words are missing: %v", e)
			}
		})
	}
}

func TestAProgramThatIsNotThereIsNamed(t *testing.T) {
	f := newFixture(t)
	p := program(t, "plain")
	p.Argv = []string{"no-such-program-here"}
	if e := f.refused(p, MissingDependency); !strings.Contains(e.Detail, "no-such-program-here") {
		t.Error(e)
	}
	p.Argv = []string{"/no/such/program"}
	f.refused(p, StartFailed)
	p = program(t, "plain")
	p.Dir = "/no/such/folder"
	if e := f.refused(p, StartFailed); !strings.Contains(e.Detail, "/no/such/folder") {
		t.Error(e)
	}
}

func TestSilenceEndsTheHandshake(t *testing.T) {
	for _, mode := range []string{"silent", "floods"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			ctx, cancel := context.WithTimeoutCause(f.context(), 3*time.Second, errHandshakeLate)
			defer cancel()
			begun := time.Now()
			_, err := f.host.Start(ctx, program(t, mode))
			var e *Error
			if !errors.As(err, &e) || e.Slug != HandshakeFailed || !strings.Contains(e.Detail, "no answer") {
				t.Errorf("%v", err)
			}
			if d := time.Since(begun); d > soon {
				t.Errorf("it took %s", d)
			}
		})
	}
}

// Sessions don't wait for a download, so somebody else has to.
func TestWhoFetchesWhatItStartsIsToldHow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := program(t, "silent")
	npx := filepath.Join(t.TempDir(), "npx")
	if err := os.Symlink(p.Argv[0], npx); err != nil {
		t.Fatal(err)
	}
	for program, hint := range map[string]string{p.Argv[0]: "", npx: "plugin list --probe"} {
		p.Argv = []string{program}
		ctx, cancel := context.WithTimeoutCause(f.context(), time.Second, errHandshakeLate)
		defer cancel()
		_, err := f.host.Start(ctx, p)
		var e *Error
		if !errors.As(err, &e) || (e.Hint == "") != (hint == "") || !strings.Contains(e.Hint, hint) {
			t.Errorf("%s: %+v", program, err)
		}
	}
}

func TestADeathEndsOpenCallsAndIsExplained(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	var wg sync.WaitGroup
	errs := make([]error, 5)
	for n := range errs {
		wg.Go(func() { _, errs[n] = i.Call(f.context(), Call{Tool: "wait", Arguments: json.RawMessage(`{}`)}) })
	}
	eventually(t, "the calls are under way", func() bool {
		i.calls.mu.Lock()
		defer i.calls.mu.Unlock()
		return len(i.calls.byToken) == len(errs)
	})
	_, err := i.Call(f.context(), Call{Tool: "die", Arguments: json.RawMessage(`{}`)})
	wg.Wait()
	for _, err := range append(errs, err) {
		var e *Error
		if !errors.As(err, &e) || e.Slug != Crashed || !strings.Contains(e.Error(), "exit code 7") || !strings.Contains(e.Error(), "about to die") {
			t.Errorf("%v", err)
		}
	}
	<-i.Done()
	b, err := os.ReadFile(filepath.Join(f.logs, "acme.tool.raw.log"))
	if err != nil || !strings.Contains(string(b), "about to die\n") {
		t.Errorf("log: %v %s", err, b)
	}
}

func TestAMessageWithoutEndEndsThePlugin(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	_, err := i.Call(f.context(), Call{Tool: "long", Arguments: json.RawMessage(`{}`)})
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Detail, "16 MiB") {
		t.Errorf("%v", err)
	}
	<-i.Done()
}

func TestAPluginThatDoesNotReadBlocksNobody(t *testing.T) {
	f := newFixture(t)
	i := f.start("deaf")
	big, err := json.Marshal(map[string]string{"x": strings.Repeat("y", 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			_, err := i.Call(f.context(), Call{Tool: "echo", Arguments: big})
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(e.Detail, "does not read") {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	<-i.Done()
}

func TestCloseEndsTheWholeTree(t *testing.T) {
	f := newFixture(t)
	i := f.start("stubborn")
	if testing.Short() {
		t.Skip("it takes as long as a plugin may take to end")
	}
	begun := time.Now()
	i.Close()
	if d := time.Since(begun); d < stopGrace || d > stopGrace+3*time.Second {
		t.Errorf("it took %s", d)
	}
	if f := i.Failure(); f != nil {
		t.Errorf("being closed is no failure: %v", f)
	}
	polite := f.start("plain")
	begun = time.Now()
	polite.Close()
	if d := time.Since(begun); d > stopGrace {
		t.Errorf("a polite one took %s", d)
	}
}

func TestToolsAreListedAgainWhenTheyChange(t *testing.T) {
	f := newFixture(t)
	i := f.start("plain")
	before, err := i.Tools(f.context())
	if err != nil {
		t.Fatal(err)
	}
	f.call(i, "more", `{}`)
	eventually(t, "one more tool", func() bool {
		after, err := i.Tools(f.context())
		return err == nil && len(after) == len(before)+1
	})
}

func TestManyAndOddTools(t *testing.T) {
	f := newFixture(t)
	all, err := f.start("hundred").Tools(f.context())
	if err != nil || len(all) != 100 {
		t.Errorf("%d tools, %v", len(all), err)
	}
	odd, err := f.start("odd").Tools(f.context())
	if err != nil || len(odd) != 1 || odd[0].Tool.Label != "Good one" {
		t.Errorf("%+v, %v", odd, err)
	}
}

func TestTheEnvironmentHoldsNothingButWhatIsGiven(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-not-for-plugins")
	f := newFixture(t)
	p := program(t, "plain")
	p.Base = Base([]string{"PATH=/usr/bin:/bin", "HOME=/h", "LC_ALL=C", "OPENAI_API_KEY=sk-not-for-plugins", "LD_PRELOAD=x"})
	p.Env["GIVEN"] = "yes"
	i, err := f.host.Start(f.context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	got := words(f.call(i, "env", `{}`))
	want := strings.Join([]string{"GIVEN=yes", "HOME=/h", "LC_ALL=C", "PATH=/usr/bin:/bin", modeVariable + "=plain", "cwd=" + p.Dir}, "\n")
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// diskMount is a session's place on the disk.
type diskMount struct {
	sandboxes.Mount
	dir string
}

func (m diskMount) List(_ context.Context, p string) ([]sandboxes.Info, error) {
	entries, err := os.ReadDir(p)
	if err != nil {
		return nil, err
	}
	var out []sandboxes.Info
	for _, e := range entries {
		out = append(out, sandboxes.Info{Name: e.Name(), Mode: e.Type()})
	}
	return out, nil
}

func (m diskMount) Lock(context.Context, string) (func(), error) { return func() {}, nil }

func (m diskMount) Write(_ context.Context, p string, b []byte) error {
	return os.WriteFile(p, b, 0o600)
}

func (m diskMount) Read(_ context.Context, p string, offset, limit int64) ([]byte, error) {
	b, err := os.ReadFile(p)
	return b[min(offset, int64(len(b))):], err
}

func (m diskMount) Stat(_ context.Context, p string) (sandboxes.Info, error) {
	return sandboxes.Info{Name: p, Mode: fs.ModeDir}, nil
}

func (m diskMount) Run(_ context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	c.Output(sandboxes.Stdout, []byte(strings.Join(c.Argv[1:], " ")+"\n"))
	return sandboxes.Exit{}, nil
}

func TestAPluginWithTheExtension(t *testing.T) {
	f := newFixture(t)
	i := f.start("extension")
	if i.ID != "acme.tool.guard" || i.Declared == nil || !i.Declared.Hooks || !i.Declared.Prompt || !i.Declared.Sandbox {
		t.Fatalf("%+v", i.Declared)
	}
	plan, err := i.Setup(f.context(), plugin.Setup{SessionID: "s", Model: plugin.Model{ID: "m"}})
	if err != nil {
		t.Fatal(err)
	}
	if plan.Foundation != "You are a m guard." || len(plan.Hooks) != 1 || !plan.Hooks[0].Before || !plan.Hooks[0].After || len(plan.Sections) != 1 || plan.Tools[0].Snippet != "counts files" {
		t.Errorf("%+v", plan)
	}
	if _, err := i.Setup(f.context(), plugin.Setup{Options: json.RawMessage(`{"fail":true}`)}); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("%v", err)
	}
	before := func(args string) (plugin.Verdict, error) {
		return i.Before(f.context(), plugin.Before{SessionID: "s", CallID: "c", Tool: "bash", Arguments: json.RawMessage(args)}, nil)
	}
	if v, err := before(`{"command":"ls"}`); err != nil || v.Block {
		t.Errorf("%+v %v", v, err)
	}
	if v, err := before(`{"command":"rm -rf /"}`); err != nil || !v.Block || v.Reason != "too dangerous" {
		t.Errorf("%+v %v", v, err)
	}
	after := func(status string) (plugin.Change, error) {
		return i.After(f.context(), plugin.After{Before: plugin.Before{SessionID: "s", CallID: "c", Tool: "bash"}, Status: status,
			Result: plugin.Result{Content: []plugin.Content{{Type: "text", Text: "x"}}}}, nil)
	}
	if c, err := after("completed"); err != nil || len(c.Content) != 1 || c.Content[0].Text != "seen: x" {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := after("error"); err == nil || errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "cannot judge it") {
		t.Errorf("%v", err)
	}
}

func TestTheSandboxIsThereDuringACall(t *testing.T) {
	f := newFixture(t)
	i := f.start("extension")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := i.Call(f.context(), Call{SessionID: "ses_9", ID: "c", Directory: dir, Tool: "census", Arguments: json.RawMessage(fmt.Sprintf(`{"path":%q}`, dir)), Mount: diskMount{dir: dir}})
	if err != nil || r.IsError || words(r) != "1 files in a directory; counted" {
		t.Fatalf("%s %v", words(r), err)
	}
	select {
	case e := <-f.events:
		if e.Type != "plugin.acme.tool.guard.seen" || e.SessionID != "ses_9" || string(e.Data) != `{"files":1}` {
			t.Errorf("%+v", e)
		}
	case <-time.After(soon):
		t.Fatal("no event")
	}
	select {
	case e := <-f.events:
		t.Errorf("an event that was not declared: %+v", e)
	default:
	}
	// Behind the call there is no sandbox any more.
	if _, err := i.Call(f.context(), Call{SessionID: "ses_9", ID: "d", Tool: "late", Arguments: json.RawMessage(`{}`), Mount: diskMount{dir: dir}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the late use is refused", func() bool {
		return slices.ContainsFunc(i.said.tail.last(), func(l string) bool { return strings.Contains(l, "no call of this session") })
	})
}
