package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
)

// devList is a list as models.dev publishes it.
const devList = `{
	"anthropic": {"id": "anthropic", "name": "Anthropic", "env": ["ANTHROPIC_API_KEY"], "npm": "@ai-sdk/anthropic", "models": {
		"claude-opus-4-8": {"id": "claude-opus-4-8", "name": "Claude Opus 4.8", "tool_call": true, "reasoning": true, "temperature": false,
			"modalities": {"input": ["text", "image", "pdf"], "output": ["text"]},
			"cost": {"input": 5, "output": 25, "cache_read": 0.5, "cache_write": 6.25}, "limit": {"context": 1000000, "output": 64000}},
		"claude-future-7-1": {"name": "Claude Future", "tool_call": true, "reasoning": true},
		"claude-old-3-5": {"name": "Claude Old", "tool_call": true}}},
	"openai": {"name": "OpenAI", "env": ["OPENAI_API_KEY"], "npm": "@ai-sdk/openai", "models": {
		"gpt-5.6-luna": {"tool_call": true, "cost": {"input": 1, "output": 2, "tiers": [{"input": 2, "output": 3, "tier": {"type": "context", "size": 272000}}],
			"context_over_200k": {"input": 9, "output": 9}}},
		"image-maker": {"tool_call": false}, "words-only": {}}},
	"xai": {"npm": "@ai-sdk/xai", "env": ["XAI_API_KEY"], "models": {"grok": {"tool_call": true}}},
	"google": {"npm": "@ai-sdk/google", "env": ["GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY"], "models": {
		"gemini-x": {"tool_call": true, "cost": {"input": 1, "output": 2, "cache_read": 0.1, "context_over_200k": {"input": 2, "output": 4, "cache_read": 0.2}}}}},
	"openrouter": {"npm": "@openrouter/ai-sdk-provider", "models": {"a/b": {"tool_call": true}}},
	"google-vertex": {"npm": "@ai-sdk/google-vertex", "models": {"g": {"tool_call": true}}},
	"acme": {"name": "Acme", "env": ["ACME_KEY"], "npm": "@acme/ai", "api": "https://acme.example/v1", "models": {
		"one": {"tool_call": true},
		"two": {"tool_call": true, "provider": {"npm": "@ai-sdk/anthropic", "api": "https://acme.example/claude/v1"}},
		"three": {"tool_call": true, "api": "https://three.example/v1", "provider": {"api": "https://acme.example/no"}},
		"broken": ["no model"]}},
	"nowhere": {"npm": "@nowhere/ai", "models": {"lost": {"tool_call": true}}},
	"template": {"npm": "@ai-sdk/openai-compatible", "api": "https://${HOST}/v1", "models": {"t": {"tool_call": true}}},
	"openai-codex": {"api": "https://not.used/v1", "models": {"c": {"tool_call": true}}},
	"github-copilot": {"npm": "@ai-sdk/github-copilot", "api": "https://api.githubcopilot.com", "env": ["GITHUB_TOKEN"], "models": {
		"claude-opus-5": {"tool_call": true}, "gpt-4.1": {"tool_call": true}, "gpt-9-nova": {"tool_call": true, "reasoning": true}}},
	"junk": 7
}`

func refreshed(t *testing.T, list string) *Catalog {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Join(dir, "api.json")
	if err := os.WriteFile(from, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Open(Options{File: filepath.Join(dir, "home", "models.gen.json"), Pinned: true}) // it counts however old it is
	if changed, err := c.Refresh(t.Context(), Remote{File: from}); err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	return c
}

func TestTheListOfModelsDevBecomesACatalog(t *testing.T) {
	c := refreshed(t, devList)
	list, err := c.List("", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]messages.Model{}
	for _, m := range list {
		if m.Provider.ID != "offline" && m.Provider.ID != codexID {
			got[m.Ref().String()] = m
		}
	}
	for ref, want := range map[string]struct {
		protocol messages.Protocol
		base     string
		env      []string
	}{
		"anthropic/claude-opus-4-8":    {messages.ProtocolAnthropic, "https://api.anthropic.com/v1", []string{"ANTHROPIC_API_KEY"}},
		"anthropic/claude-future-7-1":  {messages.ProtocolAnthropic, "https://api.anthropic.com/v1", []string{"ANTHROPIC_API_KEY"}},
		"anthropic/claude-old-3-5":     {messages.ProtocolAnthropic, "https://api.anthropic.com/v1", []string{"ANTHROPIC_API_KEY"}},
		"openai/gpt-5.6-luna":          {messages.ProtocolOpenAI, "https://api.openai.com/v1", []string{"OPENAI_API_KEY"}},
		"xai/grok":                     {messages.ProtocolXAI, "https://api.x.ai/v1", []string{"XAI_API_KEY"}},
		"google/gemini-x":              {messages.ProtocolGoogle, "https://generativelanguage.googleapis.com/v1beta", []string{"GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"}},
		"openrouter/a/b":               {messages.ProtocolOpenRouter, "https://openrouter.ai/api/v1", []string{}},
		"acme/one":                     {messages.ProtocolCompatible, "https://acme.example/v1", []string{"ACME_KEY"}},
		"acme/two":                     {messages.ProtocolAnthropic, "https://acme.example/claude/v1", []string{"ACME_KEY"}},
		"acme/three":                   {messages.ProtocolCompatible, "https://three.example/v1", []string{"ACME_KEY"}},
		"github-copilot/claude-opus-5": {messages.ProtocolAnthropic, "https://api.githubcopilot.com", []string{"COPILOT_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"}},
		"github-copilot/gpt-4.1":       {messages.ProtocolCompatible, "https://api.githubcopilot.com", []string{"COPILOT_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"}},
		"github-copilot/gpt-9-nova":    {messages.ProtocolOpenAI, "https://api.githubcopilot.com", []string{"COPILOT_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"}},
	} {
		m, ok := got[ref]
		if !ok || m.Protocol != want.protocol || m.BaseURL != want.base || !slices.Equal(m.Provider.Env, want.env) || m.Provider.Source != "api" {
			t.Errorf("%s: %v %+v", ref, ok, m)
		}
		delete(got, ref)
	}
	for ref := range got {
		t.Errorf("%s should not be there", ref)
	}
	if _, err := c.Lookup(messages.ModelRef{Provider: codexID, ID: "gpt-5.5"}, nil); err != nil {
		t.Errorf("the program's own list: %v", err)
	}

	opus, err := c.Lookup(messages.ModelRef{Provider: "anthropic", ID: "claude-opus-4-8"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if opus.Cost.Rates != (messages.Rates{Input: 5, Output: 25, CacheRead: 0.5, CacheWrite: 6.25}) || opus.ContextWindow != 1000000 || opus.MaxTokens != 64000 ||
		!slices.Equal(opus.Input, []string{"text", "image"}) || !opus.Reasoning || opus.Name != "Claude Opus 4.8" {
		t.Errorf("%+v", opus)
	}
	// What the snapshot knows of it stays.
	if string(opus.Compat["forceAdaptiveThinking"]) != "true" || string(opus.Compat["supportsTemperature"]) != "false" || opus.ThinkingLevelMap["xhigh"] == nil {
		t.Errorf("%v, %v", opus.Compat, opus.ThinkingLevelMap)
	}
	future, _ := c.Lookup(messages.ModelRef{Provider: "anthropic", ID: "claude-future-7-1"}, nil)
	old, _ := c.Lookup(messages.ModelRef{Provider: "anthropic", ID: "claude-old-3-5"}, nil)
	if string(future.Compat["forceAdaptiveThinking"]) != "true" || old.Compat != nil || old.ContextWindow != unknownLimit || old.MaxTokens != unknownLimit {
		t.Errorf("%+v, %+v", future.Compat, old)
	}
	luna, _ := c.Lookup(messages.ModelRef{Provider: "openai", ID: "gpt-5.6-luna"}, nil)
	if want := []messages.CostTier{{Rates: messages.Rates{Input: 2, Output: 3}, InputTokensAbove: 272000}}; !reflect.DeepEqual(luna.Cost.Tiers, want) {
		t.Errorf("%+v", luna.Cost)
	}
	gemini, _ := c.Lookup(messages.ModelRef{Provider: "google", ID: "gemini-x"}, nil)
	if want := []messages.CostTier{{Rates: messages.Rates{Input: 2, Output: 4, CacheRead: 0.2}, InputTokensAbove: 200000}}; !reflect.DeepEqual(gemini.Cost.Tiers, want) {
		t.Errorf("%+v", gemini.Cost)
	}
}

func TestNamesOfModelsTellCopilotsFormat(t *testing.T) {
	for id, want := range map[string]messages.Protocol{
		"claude-haiku-4.5": messages.ProtocolAnthropic, "claude-fable-5.1": messages.ProtocolAnthropic, "claude-opus-41": messages.ProtocolAnthropic,
		"claude-3.7-sonnet": messages.ProtocolCompatible, "claude-sonnet-3": messages.ProtocolCompatible,
		"gpt-5": messages.ProtocolOpenAI, "gpt-5-mini": messages.ProtocolOpenAI, "gpt-6.2-sol": messages.ProtocolOpenAI, "gpt-10": messages.ProtocolOpenAI,
		"gpt-4o": messages.ProtocolCompatible, "gpt-4.1": messages.ProtocolCompatible, "gpt-3.5-turbo": messages.ProtocolCompatible,
		"grok-4.5": messages.ProtocolOpenAI, "grok-code-fast-1": messages.ProtocolOpenAI, "oswe-vscode-prime": messages.ProtocolOpenAI, "mai-code-2": messages.ProtocolOpenAI,
		"gemini-4-neon": messages.ProtocolCompatible, "kimi-k3": messages.ProtocolCompatible, "": messages.ProtocolCompatible,
	} {
		if got := CopilotFormat(id, messages.ProtocolCompatible); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	if CopilotFormat("x", messages.ProtocolGoogle) != messages.ProtocolCompatible {
		t.Error("an entry's protocol that Copilot does not speak")
	}
}

// site serves a list, or what a test wants instead.
type site struct {
	*httptest.Server
	mu     sync.Mutex // guards what follows
	list   string
	etag   string
	answer http.HandlerFunc // nil: the list
	full   int              // lists sent
}

func newSite(t *testing.T) *site {
	s := &site{list: devList, etag: `"v1"`}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case r.URL.Path != "/api.json":
			http.NotFound(w, r)
		case s.answer != nil:
			s.answer(w, r)
		case r.Header.Get("If-None-Match") == s.etag:
			w.WriteHeader(http.StatusNotModified)
		default:
			s.full++
			w.Header().Set("ETag", s.etag)
			_, _ = io.WriteString(w, s.list)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func inHome(t *testing.T) *Catalog {
	return Open(Options{File: filepath.Join(t.TempDir(), "models.gen.json"), Pinned: true})
}

func (c *Catalog) mustRefresh(t *testing.T, r Remote, want bool) {
	t.Helper()
	if changed, err := c.Refresh(t.Context(), r); err != nil || changed != want {
		t.Fatalf("changed %v, %v", changed, err)
	}
}

func TestAListThatIsTheSameIsNotFetchedAgain(t *testing.T) {
	s, c := newSite(t), inHome(t)
	r := Remote{URL: s.URL}
	c.mustRefresh(t, r, true)
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(c.file, long, long); err != nil {
		t.Fatal(err)
	}
	c.mustRefresh(t, r, false)
	if s.full != 1 {
		t.Errorf("the list was sent %d times", s.full)
	}
	if c.Stale(time.Minute) {
		t.Error("the file still counts as old")
	}
	s.set(func() { s.etag, s.list = `"v2"`, strings.Replace(devList, "Acme", "Acme II", 1) })
	c.mustRefresh(t, r, true)
	// Somebody else's file was not made of that list.
	if err := os.WriteFile(c.file, []byte(`{"p":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.mustRefresh(t, r, true)
	if s.full != 3 {
		t.Errorf("the list was sent %d times", s.full)
	}
	// Nor is the tag of another site good for this one.
	other := newSite(t)
	c.mustRefresh(t, Remote{URL: other.URL + "/api.json"}, true)
	if other.full != 1 {
		t.Errorf("the other list was sent %d times", other.full)
	}
}

func TestARefreshThatFailsLeavesTheFileAsItWas(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"an error":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) },
		"a page":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>sign in to this network</html>") },
		"nothing":     func(http.ResponseWriter, *http.Request) {},
		"no models":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"p":{"models":{"m":{}}}}`) },
		"null":        func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `null`) },
		"a list":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[]`) },
		"unasked 304": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) },
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99999")
			fmt.Fprint(w, devList[:300])
		},
		"half an object": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, devList[:len(devList)-5]) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newSite(t), inHome(t)
			before := []byte(`{"p":{"m":{}}}`)
			if err := os.WriteFile(c.file, before, 0o600); err != nil {
				t.Fatal(err)
			}
			s.set(func() { s.answer = answer })
			if changed, err := c.Refresh(t.Context(), Remote{URL: s.URL}); err == nil || changed {
				t.Errorf("changed %v, %v", changed, err)
			}
			if after, err := os.ReadFile(c.file); err != nil || !bytes.Equal(after, before) {
				t.Errorf("%s, %v", after, err)
			}
			left, err := os.ReadDir(filepath.Dir(c.file))
			if err != nil || len(left) != 1 {
				t.Errorf("%v, %v", left, err)
			}
		})
	}
	s := newSite(t)
	s.set(func() {
		s.answer = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }
	})
	withKey := strings.Replace(s.URL, "http://", "http://user:secret-word@", 1)
	if _, err := inHome(t).Refresh(t.Context(), Remote{URL: withKey}); err == nil || strings.Contains(err.Error(), "secret-word") {
		t.Errorf("%v", err)
	}
	if _, err := inHome(t).Refresh(t.Context(), Remote{URL: "ftp://x"}); err == nil {
		t.Error("an address of another kind")
	}
	if _, err := inHome(t).Refresh(t.Context(), Remote{File: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a copy that is not there")
	}
	c := inHome(t)
	if err := os.Mkdir(c.file, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Refresh(t.Context(), Remote{File: "unused"}); err == nil {
		t.Error("a folder in the place of the file")
	}
}

func TestALinkToTheFileStaysALink(t *testing.T) {
	s, c := newSite(t), inHome(t)
	target := filepath.Join(t.TempDir(), "elsewhere.json")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, c.file); err != nil {
		t.Fatal(err)
	}
	c.mustRefresh(t, Remote{URL: s.URL}, true)
	if to, err := os.Readlink(c.file); err != nil || to != target {
		t.Errorf("%q, %v", to, err)
	}
	if b, err := os.ReadFile(target); err != nil || len(b) == 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// The hint of a file that cannot be read is to refresh it.
func TestAFileThatCannotBeReadIsMadeAnew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "models.gen.json")
	if err := os.Symlink(file, file); err != nil { // a link to itself, which root cannot read either
		t.Fatal(err)
	}
	c := Open(Options{File: file, Pinned: true})
	if _, err := c.Providers(nil); err == nil {
		t.Fatal("it can be read")
	}
	c.mustRefresh(t, Remote{URL: newSite(t).URL}, true)
	if _, err := c.Providers(nil); err != nil {
		t.Error(err)
	}
	folder := Open(Options{File: t.TempDir(), Pinned: true})
	if _, err := folder.Refresh(t.Context(), Remote{URL: newSite(t).URL}); err == nil {
		t.Error("a folder became a file")
	}
}

func TestNobodySeesHalfAFile(t *testing.T) {
	s, c := newSite(t), inHome(t)
	c.mustRefresh(t, Remote{URL: s.URL}, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers, readers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for i := range 6 {
				s.set(func() {
					s.etag, s.list = fmt.Sprintf(`"%d"`, i), strings.Replace(devList, "Acme", strings.Repeat("A", 1+i*100), 1)
				})
				if _, err := c.Refresh(ctx, Remote{URL: s.URL}); err != nil {
					t.Error(err)
				}
			}
		})
		readers.Go(func() {
			own := Open(Options{File: c.file, Pinned: true})
			for ctx.Err() == nil {
				if _, err := own.List("", nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	cancel()
	readers.Wait()
}

// network answers without one.
type network func(r *http.Request) (*http.Response, error)

func (n network) RoundTrip(r *http.Request) (*http.Response, error) { return n(r) }

func (n network) remote() Remote {
	return Remote{URL: "http://models.example", Client: func() (*http.Client, error) { return &http.Client{Transport: n}, nil }}
}

func TestARefreshIsGivenUpAfterTenSeconds(t *testing.T) {
	c := inHome(t)
	synctest.Test(t, func(t *testing.T) {
		silent := network(func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() })
		began := time.Now()
		_, err := c.Refresh(t.Context(), silent.remote())
		if err == nil || !strings.Contains(err.Error(), "no list within 10s") || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestKeepLooksEveryMinuteOnceItHasBegun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "models.gen.json")
	synctest.Test(t, func(t *testing.T) {
		c := Open(Options{File: file})
		var asked atomic.Int64
		var fail atomic.Bool
		n := network(func(*http.Request) (*http.Response, error) {
			asked.Add(1)
			if fail.Load() {
				return nil, errors.New("unreachable")
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(devList))}, nil
		})
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		begin, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			c.Keep(ctx, Keeping{Remote: n.remote(), MaxAge: 15 * time.Minute, Begin: begin, Log: slog.New(slog.NewTextHandler(&log, nil))})
		}()
		after := func(d time.Duration, want int64) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if asked.Load() != want {
				t.Fatalf("asked %d times, want %d", asked.Load(), want)
			}
		}
		after(time.Hour, 0)
		begin <- struct{}{}
		after(0, 1)
		after(15*time.Minute, 1)
		after(2*time.Minute, 2)
		fail.Store(true)
		after(15*time.Minute, 3)
		after(3*time.Minute, 6) // until it works again
		if got := strings.Count(log.String(), "level=WARN"); got != 1 {
			t.Errorf("%d warnings:\n%s", got, log.String())
		}
		fail.Store(false)
		after(time.Minute, 7)
		after(10*time.Minute, 7)
		cancel()
		<-ended
	})
}

func TestKeepLeavesAPinnedFileAlone(t *testing.T) {
	fails := network(func(*http.Request) (*http.Response, error) {
		t.Error("the network was asked")
		return nil, errors.New("no")
	})
	begin := make(chan struct{}, 1)
	begin <- struct{}{}
	for _, k := range []struct {
		c   *Catalog
		age time.Duration
	}{
		{inHome(t), time.Minute},
		{Open(Options{File: filepath.Join(t.TempDir(), "f")}), Forever},
		{Open(Options{}), time.Minute},
	} {
		k.c.Keep(t.Context(), Keeping{Remote: fails.remote(), MaxAge: k.age, Begin: begin, Log: slog.New(slog.DiscardHandler)})
	}
}

func TestAgesAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 15 * time.Minute, "15 minutes": 15 * time.Minute, "1 hour": time.Hour, " 2 Days ": 48 * time.Hour, "90m": 90 * time.Minute,
		"500 millis": 500 * time.Millisecond, "1.5 hours": 90 * time.Minute, "off": Forever, "Infinity": Forever, "never": Forever, "0s": 1, "0 seconds": 1, "1 week": 168 * time.Hour,
	} {
		if got, err := ParseMaxAge(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"soon", "15", "-1m", "-2 hours", "5 fortnights", "NaN minutes", "1e300 days", "99999999h", "minutes"} {
		if got, err := ParseMaxAge(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Whatever the list says, the catalog made of it can be read as a whole, or
// there is none.
func FuzzModelsDev(f *testing.F) {
	f.Add([]byte(devList))
	f.Add([]byte(`{"p":{"api":"http://x","models":{"":{"tool_call":true}}}}`))
	f.Add([]byte(`{"p":{"api":"http://x","models":{"m":{"tool_call":true,"cost":{"input":-1},"limit":{"context":1e300}}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		made, err := fromModelsDev(data)
		if err != nil {
			return
		}
		parsed, _, err := parse(made)
		if err != nil {
			t.Fatal(err)
		}
		for provider := range parsed {
			entries, err := parsed.provider(provider)
			if err != nil {
				t.Fatal(err)
			}
			for id, raw := range entries {
				if _, err := decode(provider, id, raw); err != nil {
					t.Fatal(err)
				}
				if !json.Valid(raw) {
					t.Fatalf("%s/%s is no JSON", provider, id)
				}
			}
		}
	})
}
