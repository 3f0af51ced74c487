package actors

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"codework/internal/plugin"
	"codework/internal/settings"
	"codework/internal/tools"
	"codework/messages"
	extension "codework/protocol/plugin"
	"codework/sandboxes"
	"codework/sandboxes/supervisor"
)

var longPlugins = flag.Bool("plugins", false, "run the long form of the test of many sessions and dying plugins")

// pluginMode makes the test binary a plugin.
const pluginMode = "ACTORS_TEST_PLUGIN"

// servePlugin does what the test binary was started for, if that is not to
// run tests.
func servePlugin() bool {
	mode := os.Getenv(pluginMode)
	if mode == "" {
		return false
	}
	switch mode {
	case "plain":
		plainPlugin()
	case "broken":
		os.Exit(4)
	default:
		guardPlugin(mode)
	}
	return true
}

func plainPlugin() {
	s := mcp.NewServer(&mcp.Implementation{Name: "plain", Version: "1"}, &mcp.ServerOptions{Instructions: "Be plain."})
	tool := func(name string, run func() string) {
		mcp.AddTool(s, &mcp.Tool{Name: name, Description: name}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: run()}}}, nil, nil
		})
	}
	tool("pid", func() string { return strconv.Itoa(os.Getpid()) })
	tool("options", func() string { return os.Getenv(plugin.OptionsVariable) })
	tool("die", func() string { os.Exit(5); return "" })
	_ = s.Run(context.Background(), &mcp.StdioTransport{})
}

func guardPlugin(mode string) {
	p := extension.New("acme.tool."+mode, "1")
	p.Declare(func(d *extension.Declaration) { d.OptIn = mode == "shy" })
	extension.Tool(p, mode+"_pid", "Says its process.", func(context.Context, *extension.Call, struct{}) (string, error) {
		return strconv.Itoa(os.Getpid()), nil
	})
	extension.Tool(p, mode+"_die", "Dies.", func(context.Context, *extension.Call, struct{}) (string, error) { os.Exit(5); return "", nil })
	if mode == "reader" {
		extension.Tool(p, "read", "Reads in its own way.", func(context.Context, *extension.Call, struct{}) (string, error) { return "read by the plugin", nil })
	}
	var forbidden string // what is forbidden is known when it is set up
	p.Before("bash", func(_ context.Context, _ *extension.Call, b extension.Before) (extension.Verdict, error) {
		if strings.Contains(string(b.Arguments), "kill the guard") {
			os.Exit(6)
		}
		return extension.Verdict{Block: forbidden != "" && strings.Contains(string(b.Arguments), forbidden), Reason: "not with " + mode + " in " + b.MessageID}, nil
	})
	p.After("bash", func(_ context.Context, _ *extension.Call, a extension.After) (extension.Change, error) {
		text := a.Result.Content[0].Text
		if strings.Contains(text, "die after") {
			os.Exit(6)
		}
		change := extension.Change{Content: []extension.Content{{Type: "text", Text: text + " [" + mode + "]"}}}
		switch {
		case strings.Contains(text, "many parts"):
			change.Content = make([]extension.Content, plugin.MaxParts+1)
		case strings.Contains(text, "much detail"):
			change.Details = json.RawMessage(`"` + strings.Repeat("x", plugin.MaxDetails) + `"`)
		}
		return change, nil
	})
	p.Section(extension.Section{Name: "rules", Op: "append", Entries: []string{"Mind the " + mode + "."}})
	p.Setup(func(_ context.Context, s extension.Setup, plan *extension.Plan) error {
		var o struct{ Fail bool }
		if err := json.Unmarshal(s.Options, &o); err != nil {
			return err
		}
		if o.Fail {
			return errors.New("options ask for failure")
		}
		forbidden = "forbidden"
		return nil
	})
	_ = p.Run(context.Background())
}

// pluginShop is a Workshop whose guardian is only the plugins' part of it.
type pluginShop struct {
	t       testing.TB
	w       *Workshop
	home    string
	plugins *Ref
	mu      sync.Mutex // guards events
	events  []messages.Event
}

// quickPace lets tests see in moments what takes its time otherwise.
var quickPace = pluginPace{first: 10 * time.Millisecond, longest: 40 * time.Millisecond, patience: within, rest: time.Hour}

func newPluginShop(t testing.TB, pace pluginPace) *pluginShop {
	t.Helper()
	if err := supervisor.Subreaper(); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	processes := supervisor.NewHost(supervisor.Options{})
	rt := NewRuntime(log)
	s := &pluginShop{t: t, home: t.TempDir()}
	s.plugins = rt.Spawn(newPlugins(plugin.Options{Processes: processes}, pace, func(e []messages.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e...)
	}))
	s.w = &Workshop{Home: s.home, guardian: s.plugins}
	t.Cleanup(func() {
		s.plugins.Stop()
		<-s.plugins.Done()
		rt.Shutdown()
		if err := processes.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// entry is a settings entry that runs the test binary in a mode.
func entry(t testing.TB, mode, more string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"command":%q,"env":{%q:%q}%s}`, self, pluginMode, mode, more)
}

func (s *pluginShop) set(entries ...string) *settings.Settings {
	set := &settings.Settings{}
	for _, e := range entries {
		set.Plugins = append(set.Plugins, settings.Plugin{Entry: json.RawMessage(e), File: filepath.Join(s.home, "settings.json"), Trusted: true})
	}
	return set
}

// prepare makes an exchange of a session; end ends it.
func (s *pluginShop) prepare(session string, set *settings.Settings) (ex *Exchange, end func(), err error) {
	ends, end := context.WithCancel(context.Background())
	ex = &Exchange{}
	q := ExchangeQuery{Session: messages.SessionRecord{ID: session, HostDir: s.home}, Ends: ends}
	if strings.HasPrefix(session, "ses_editor") {
		self, _ := os.Executable()
		q.World = &messages.World{Env: os.Environ(), MCPServers: []messages.MCPServer{{Name: "Their Files", Command: self, Env: []string{pluginMode + "=plain"}}}}
	}
	err = s.w.tools(soon(s.t), ex, q, set, os.LookupEnv, &shellMount{plainMount{dir: s.home}})
	return ex, end, err
}

func (s *pluginShop) must(session string, set *settings.Settings) (*Exchange, func()) {
	s.t.Helper()
	ex, end, err := s.prepare(session, set)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(end)
	return ex, end
}

// shellMount answers every command with itself.
type shellMount struct{ plainMount }

func (m *shellMount) Scratch() string                      { return m.dir }
func (m *shellMount) Remove(context.Context, string) error { return nil }
func (m *shellMount) Run(_ context.Context, c sandboxes.Command) (sandboxes.Exit, error) {
	c.Output(sandboxes.Stdout, []byte("ran "+c.Script))
	return sandboxes.Exit{}, nil
}

func (s *pluginShop) call(ex *Exchange, tool, args string) (string, messages.CallState) {
	s.t.Helper()
	r, state := tools.Execute(soon(s.t), ex.Tools, tools.Call{ID: "call", Name: tool, MessageID: "msg", Arguments: args},
		tools.Context{Mount: &shellMount{plainMount{dir: s.home}}, CallID: "call"})
	return r.Content[0].Text, state
}

func names(ex *Exchange) []string {
	var out []string
	for _, t := range ex.Tools.Tools() {
		out = append(out, t.Name)
	}
	return out
}

// statuses are the plugin.updated events so far.
func (s *pluginShop) statuses() []messages.PluginStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []messages.PluginStatus
	for _, e := range s.events {
		var u messages.PluginUpdate
		if e.Type == messages.EventPluginUpdated && json.Unmarshal(e.Data, &u) == nil {
			out = append(out, u.Status)
		}
	}
	return out
}

func TestToolsOfPluginsJoinAnExchange(t *testing.T) {
	s := newPluginShop(t, quickPace)
	ex, _ := s.must("ses_1", s.set(entry(t, "plain", `,"id":"acme.tool.one","options":{"a":1}`), entry(t, "plain", `,"id":"other.tool.one"`), entry(t, "reader", "")))
	got := names(ex)
	for _, want := range []string{"read", "bash", "one_pid", "one_options", "one_die", "reader_pid"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %v", want, got)
		}
	}
	// Names that two servers have are told apart, and nothing is lost.
	if len(slices.Compact(slices.Sorted(slices.Values(got)))) != len(got) || len(got) != 4+3+3+2 {
		t.Errorf("%v", got)
	}
	if text, _ := s.call(ex, "one_options", `{}`); text != `{"a":1}` {
		t.Error(text)
	}
	if text, _ := s.call(ex, "read", `{}`); text != "read by the plugin" {
		t.Error(text)
	}
	for _, want := range []string{"<one>\nBe plain.\n\nBe plain.\n</one>", "- Mind the reader."} {
		if !strings.Contains(ex.System, want) {
			t.Errorf("no %q in %s", want, ex.System)
		}
	}
	if text, state := s.call(ex, "bash", `{"command":"ls"}`); state != messages.CallCompleted || !strings.HasSuffix(text, "[reader]") {
		t.Error(text, state)
	}
	if text, state := s.call(ex, "bash", `{"command":"forbidden"}`); state != messages.CallError || text != "not with reader in msg" {
		t.Error(text, state)
	}
}

func TestSettingsSwitchPlugins(t *testing.T) {
	s := newPluginShop(t, quickPace)
	for _, c := range []struct {
		name    string
		entries []string
		want    string // a tool
		there   bool
	}{
		{"the entry itself", []string{entry(t, "plain", `,"id":"acme.tool.one","enabled":false`)}, "one_pid", false},
		{"a configuration", []string{entry(t, "plain", `,"id":"acme.tool.one"`), `{"plugin":"acme.tool.one","enabled":false}`}, "one_pid", false},
		{"the last one counts", []string{entry(t, "plain", `,"id":"acme.tool.one"`), `{"plugin":"acme.tool.one","enabled":false}`, `{"plugin":"acme.tool.one","enabled":true}`}, "one_pid", true},
		{"its own choice", []string{entry(t, "shy", "")}, "shy_pid", false},
		{"asked for", []string{entry(t, "shy", ""), `{"plugin":"acme.tool.shy","enabled":true}`}, "shy_pid", true},
		{"a module that is not there", []string{`"./gone"`, `{"package":"./gone","enabled":false}`, `"no-such@1"`, `{"package":"no-such@1","enabled":false}`}, "read", true},
		{"a built-in", []string{`{"plugin":"codework.tool.grep","enabled":true}`}, "grep", true},
		{"another built-in", []string{`{"plugin":"codework.tool.bash","enabled":false}`}, "bash", false},
		{"somebody else", []string{`{"plugin":"acme.tool.none","enabled":true}`}, "read", true},
	} {
		ex, end, err := s.prepare("ses_1", s.set(c.entries...))
		end()
		if err != nil || slices.Contains(names(ex), c.want) != c.there {
			t.Errorf("%s: %v %v", c.name, err, names(ex))
		}
	}
}

func TestWhatAnExchangeCannotDoWithout(t *testing.T) {
	s := newPluginShop(t, quickPace)
	// A server that brings only tools is left out.
	ex, _ := s.must("ses_1", s.set(entry(t, "broken", `,"id":"acme.tool.broken"`), `{"command":"no-such-program-at-all"}`))
	if said := strings.Join(ex.Notices, "\n"); len(ex.Notices) != 2 || !strings.Contains(said, "acme.tool.broken: it ended with exit code 4") || !strings.Contains(said, "no-such-program-at-all") {
		t.Errorf("%q", ex.Notices)
	}
	if got := s.statuses(); !slices.Contains(got, messages.PluginFailed) {
		t.Errorf("%v", got)
	}
	fails := func(slug string, entries ...string) {
		t.Helper()
		_, end, err := s.prepare("ses_2", s.set(entries...))
		end()
		var f *messages.Failure
		if !errors.As(err, &f) || f.Type != messages.FailStateSnapshot || f.Code != slug {
			t.Errorf("%v", err)
		}
	}
	// A module may be what guards a session, and so may what was seen to.
	fails(plugin.NotFound, `"./not-there"`)
	fails(plugin.NotInstalled, `"some-npm-package@1.2.3"`)
	fails(plugin.InvalidDefinition, `{"command":"x","url":"https://y"}`)
	fails(plugin.StartFailed, entry(t, "guard", `,"options":{"fail":true}`))
}

func TestHooksThatCannotBeAsked(t *testing.T) {
	s := newPluginShop(t, quickPace)
	ex, _ := s.must("ses_1", s.set(entry(t, "guard", "")))
	// It dies in its answer to the first call, and is there again for the next.
	if text, state := s.call(ex, "bash", `{"command":"kill the guard"}`); state != messages.CallError || strings.Contains(text, "ran ") || !strings.Contains(text, "acme.tool.guard") {
		t.Error(text, state)
	}
	if text, state := s.call(ex, "bash", `{"command":"ls"}`); state != messages.CallCompleted || text != "ran ls [guard]" {
		t.Error(text, state)
	}
	// The new process was set up too.
	if text, state := s.call(ex, "bash", `{"command":"forbidden"}`); state != messages.CallError || text != "not with guard in msg" {
		t.Error(text, state)
	}
	for _, too := range []string{"many parts", "much detail"} {
		if text, state := s.call(ex, "bash", `{"command":"`+too+`"}`); state != messages.CallError || !strings.Contains(text, "acme.tool.guard") {
			t.Error(too, text, state)
		}
	}
	// An after-hook that dies leaves the result as it is.
	if text, state := s.call(ex, "bash", `{"command":"die after"}`); state != messages.CallCompleted || text != "ran die after" {
		t.Error(text, state)
	}
	told := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.events, func(e messages.Event) bool {
			return e.Type == messages.EventNotice && e.Session == "ses_1" && strings.Contains(string(e.Data), "acme.tool.guard")
		})
	}
	for end := time.Now().Add(within); !told(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nobody was told")
		}
	}
}

func TestSessionsOfOneFolderShareAProcess(t *testing.T) {
	s := newPluginShop(t, quickPace)
	set := s.set(entry(t, "plain", `,"id":"acme.tool.one"`))
	a, endA := s.must("ses_1", set)
	b, _ := s.must("ses_2", set)
	first, _ := s.call(a, "one_pid", `{}`)
	if again, _ := s.call(b, "one_pid", `{}`); again != first {
		t.Errorf("%s and %s", first, again)
	}
	// A death is an error of the call that saw it, and of no other.
	if text, state := s.call(a, "one_die", `{}`); state != messages.CallError || !strings.Contains(text, "acme.tool.one") {
		t.Error(text, state)
	}
	next, state := s.call(b, "one_pid", `{}`)
	if state != messages.CallCompleted || next == first {
		t.Errorf("%s after %s, %s", next, first, state)
	}
	endA()
	if got := s.statuses(); !slices.Equal(got, []messages.PluginStatus{messages.PluginLoaded, messages.PluginFailed, messages.PluginRestarted}) {
		t.Errorf("%v", got)
	}
}

func TestAPluginThatServesIsNeverGivenUp(t *testing.T) {
	s := newPluginShop(t, quickPace)
	ex, _ := s.must("ses_1", s.set(entry(t, "plain", `,"id":"acme.tool.one"`)))
	for n := range 2 * crashBudget {
		if text, state := s.call(ex, "one_pid", `{}`); state != messages.CallCompleted {
			t.Fatalf("after %d deaths: %s", n, text)
		}
		if text, state := s.call(ex, "one_die", `{}`); state != messages.CallError {
			t.Fatal(text)
		}
	}
}

func TestAPluginThatKeepsDyingIsGivenUpUntilAReload(t *testing.T) {
	s := newPluginShop(t, quickPace)
	ex, _ := s.must("ses_1", s.set(entry(t, "plain", `,"id":"acme.tool.one"`)))
	deaths := 0
	for end := time.Now().Add(within); ; deaths++ {
		text, state := s.call(ex, "one_die", `{}`)
		if state != messages.CallError || time.Now().After(end) {
			t.Fatal(text)
		}
		if strings.Contains(text, "not started again") {
			break
		}
	}
	if deaths < crashBudget {
		t.Errorf("given up after %d deaths", deaths)
	}
	r, err := Ask[messages.PluginsReloaded](soon(t), s.plugins, reloadPlugins{})
	if err != nil || r.Failure != "" || r.Plugins != builtinsInUse()+1 {
		t.Fatalf("%+v %v", r, err)
	}
	if text, state := s.call(ex, "one_pid", `{}`); state != messages.CallCompleted {
		t.Error(text)
	}
}

// Who waits for the next start of a plugin gets what a reload brings before.
func TestAReloadServesWhoWaits(t *testing.T) {
	pace := quickPace
	pace.first, pace.longest, pace.patience = time.Hour, time.Hour, 2*time.Hour
	s := newPluginShop(t, pace)
	set := s.set(entry(t, "plain", `,"id":"acme.tool.one"`))
	ex, _ := s.must("ses_1", set)
	s.call(ex, "one_die", `{}`)
	q := ExchangeQuery{Session: messages.SessionRecord{ID: "ses_1", HostDir: s.home}}
	list, err := s.w.readPlugins(q, set, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	p := list.programs[0]
	ref, err := Ask[*Ref](soon(t), s.plugins, pluginFor{program: p, key: p.Key(s.home)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := soon(t)
	wait := ref.request(usePlugin{ctx})
	if r, err := Ask[messages.PluginsReloaded](ctx, s.plugins, reloadPlugins{}); err != nil || r.Failure != "" {
		t.Fatalf("%+v %v", r, err)
	}
	if v, err := wait(ctx); err != nil || !v.(*plugin.Instance).Alive() {
		t.Errorf("%v %v", v, err)
	}
}

// alive tells whether the process of a test runs.
func alive(t testing.TB, pid string) bool {
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	return syscall.Kill(n, 0) == nil
}

func untilGone(t testing.TB, pid string) {
	t.Helper()
	for end := time.Now().Add(within); alive(t, pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %s runs on", pid)
		}
	}
}

func TestAReloadSwapsAllPluginsOrNone(t *testing.T) {
	s := newPluginShop(t, quickPace)
	script := filepath.Join(s.home, "plugin.sh")
	write := func(mode string) {
		self, _ := os.Executable()
		if err := os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\n%s=%s exec %s\n", pluginMode, mode, self), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("guard")
	set := s.set(`"./plugin.sh"`, entry(t, "plain", `,"id":"acme.tool.one"`))
	old, endOld := s.must("ses_1", set)
	guard, _ := s.call(old, "guard_pid", `{}`)
	one, _ := s.call(old, "one_pid", `{}`)

	reload := func() messages.PluginsReloaded {
		t.Helper()
		r, err := Ask[messages.PluginsReloaded](soon(t), s.plugins, reloadPlugins{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	write("broken")
	if r := reload(); !strings.Contains(r.Failure, plugin.StartFailed) {
		t.Errorf("%+v", r)
	}
	after, end := s.must("ses_2", set)
	if now, _ := s.call(after, "one_pid", `{}`); now != one {
		t.Errorf("half a reload: %s, not %s", now, one)
	}
	end()

	write("guard")
	if r := reload(); r.Failure != "" || r.Plugins != builtinsInUse()+2 {
		t.Errorf("%+v", r)
	}
	fresh, _ := s.must("ses_2", set)
	newGuard, _ := s.call(fresh, "guard_pid", `{}`)
	newOne, _ := s.call(fresh, "one_pid", `{}`)
	if newGuard == guard || newOne == one {
		t.Errorf("the processes are the old ones")
	}
	// The exchange that runs keeps what it began with, and ends it.
	if now, _ := s.call(old, "guard_pid", `{}`); now != guard {
		t.Errorf("swapped under a running exchange: %s, not %s", now, guard)
	}
	if !alive(t, one) {
		t.Error("a process in use was ended")
	}
	endOld()
	untilGone(t, guard)
	untilGone(t, one)
}

func TestAPluginThatNobodyUsesEnds(t *testing.T) {
	pace := quickPace
	pace.rest = 20 * time.Millisecond
	s := newPluginShop(t, pace)
	set := s.set(entry(t, "plain", `,"id":"acme.tool.one"`))
	ex, end := s.must("ses_1", set)
	pid, _ := s.call(ex, "one_pid", `{}`)
	time.Sleep(5 * pace.rest) // it must not end: nothing can be waited for
	if !alive(t, pid) {
		t.Fatal("ended in an exchange")
	}
	end()
	untilGone(t, pid)
	ex, _ = s.must("ses_1", set)
	if again, _ := s.call(ex, "one_pid", `{}`); again == pid {
		t.Error("not started again")
	}
}

func TestAServerOfAnEditorIsForItsSessionOnly(t *testing.T) {
	s := newPluginShop(t, quickPace)
	a, endA := s.must("ses_editor_a", s.set())
	b, _ := s.must("ses_editor_b", s.set())
	pidA, state := s.call(a, "their-files_pid", `{}`)
	pidB, _ := s.call(b, "their-files_pid", `{}`)
	if state != messages.CallCompleted || pidA == pidB {
		t.Fatal(pidA, pidB, names(a))
	}
	endA()
	s.plugins.Tell(endPlugins{"ses_editor_a"})
	untilGone(t, pidA)
	if !alive(t, pidB) {
		t.Error("the other session's ended too")
	}
}

// Whatever dies, every call is answered, and what does not die itself is never
// held up by what does.
func TestManySessionsShareDyingPlugins(t *testing.T) {
	const plugins = 5
	sessions, calls := 50, 4
	if *longPlugins {
		calls = 200
	}
	pace := quickPace
	pace.first, pace.longest = time.Millisecond, time.Millisecond
	s := newPluginShop(t, pace)
	var entries []string
	for n := range plugins {
		entries = append(entries, entry(t, "plain", fmt.Sprintf(`,"id":"acme.tool.p%d"`, n)))
	}
	set := s.set(entries...)
	var answered, lost atomic.Int64
	var wg sync.WaitGroup
	for n := range sessions {
		wg.Go(func() {
			ex, end, err := s.prepare(fmt.Sprintf("ses_%d", n), set)
			defer end()
			if err != nil {
				t.Error(err)
				return
			}
			for c := range calls {
				for p := range plugins {
					tool := "pid"
					if n == p && c < crashBudget-1 { // one session kills each, not so often that it is given up
						tool = "die"
					}
					text, state := s.call(ex, fmt.Sprintf("p%d_%s", p, tool), `{}`)
					if _, err := strconv.Atoi(text); err == nil && state == messages.CallCompleted {
						answered.Add(1)
					} else if state == messages.CallError && strings.Contains(text, fmt.Sprintf("acme.tool.p%d", p)) {
						lost.Add(1)
					} else {
						t.Errorf("p%d_%s: %s (%s)", p, tool, text, state)
					}
				}
			}
		})
	}
	wg.Wait()
	if want := int64(sessions * calls * plugins); answered.Load()+lost.Load() != want || answered.Load() < want/2 {
		t.Errorf("%d answered, %d lost, of %d", answered.Load(), lost.Load(), want)
	}
}
