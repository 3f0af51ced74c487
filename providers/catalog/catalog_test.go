package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/messages"
	"codework/providers"
	"codework/providers/offline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ref(s string) messages.ModelRef {
	p, id, _ := strings.Cut(s, "/")
	return messages.ModelRef{Provider: p, ID: id}
}

// entry is a model as a catalog file holds it.
func entry(provider, id string) string {
	return fmt.Sprintf(`{"id":%q,"name":"N","provider":{"id":%q,"name":"P","source":"api","env":["K"]},
		"protocol":"openai-compatible","baseUrl":"http://127.0.0.1:1/v1","reasoning":false,"input":["text"],
		"cost":{"input":1,"output":2,"cacheRead":0,"cacheWrite":0},"contextWindow":1000,"maxTokens":100}`, id, provider)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func failure(t *testing.T, err error) *messages.Failure {
	t.Helper()
	var f *messages.Failure
	if !errors.As(err, &f) {
		t.Fatalf("error %v is not a *messages.Failure", err)
	}
	return f
}

func TestSnapshotHasTheDefaultModel(t *testing.T) {
	m, err := Open(Options{}).Lookup(DefaultModel, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Protocol != messages.ProtocolOpenAI || m.BaseURL != "https://api.openai.com/v1" ||
		m.Cost.Input != 0.2 || m.Cost.Output != 1.2 || len(m.Cost.Tiers) != 1 || m.Cost.Tiers[0].Output != 1.8 ||
		m.ContextWindow != 272_000 || !m.AcceptsImages() || *m.ThinkingLevelMap["off"] != "none" || m.ThinkingLevelMap["minimal"] != nil {
		t.Errorf("got %+v", m)
	}
}

func TestEveryModelOfTheSnapshotDecodes(t *testing.T) {
	c := Open(Options{})
	all, err := c.List("", nil)
	if err != nil {
		t.Fatal(err)
	}
	// 1,194 models of the source, of which 10 gave way to the 8 of the fixed
	// list, and offline/guide.
	if len(all) != 1193 {
		t.Errorf("%d models", len(all))
	}
	looked := map[string]bool{}
	for _, m := range all {
		// One of each provider: a lookup unpacks all of them.
		if !looked[m.Provider.ID] {
			looked[m.Provider.ID] = true
			got, err := c.Lookup(m.Ref(), nil)
			if err != nil || !reflect.DeepEqual(got, m) {
				t.Errorf("%s: %v, %+v", m.Ref(), err, got)
			}
		}
		if m.Protocol == messages.ProtocolAnthropic && !strings.HasSuffix(m.BaseURL, "/v1") {
			t.Errorf("%s: base URL %s", m.Ref(), m.BaseURL)
		}
	}
	if !slices.IsSortedFunc(all, func(a, b messages.Model) int { return strings.Compare(a.Provider.ID, b.Provider.ID) }) {
		t.Error("not sorted by provider")
	}
}

func TestProvidersAreSortedAndIncludeOwnOnes(t *testing.T) {
	ids, err := Open(Options{}).Providers([]messages.Model{{ID: "m", Provider: messages.ModelProvider{ID: "mine"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) != 29 || !slices.IsSorted(ids) || !slices.Contains(ids, "mine") || !slices.Contains(ids, "offline") || !slices.Contains(ids, "openai-codex") {
		t.Errorf("%d: %v", len(ids), ids)
	}
}

// The list as it is documented, rates per million tokens: input, cache read,
// cache write, output.
func TestCodexListIsTheProgramsOwn(t *testing.T) {
	c := Open(Options{})
	all, err := c.List("openai-codex", nil)
	if err != nil || len(all) != 8 {
		t.Fatalf("%v, %d models", err, len(all))
	}
	for _, want := range []struct {
		id     string
		rates  [4]float64
		levels string
		off    messages.ThinkingLevel // what is used where off is asked for
		long   bool
		image  bool
	}{
		{"gpt-6-luna", [4]float64{0.10, 0.01, 0.125, 0.50}, "off low medium high xhigh max", "off", true, true},
		{"gpt-5.6-luna", [4]float64{0.20, 0.02, 0.25, 1.20}, "off low medium high xhigh max", "off", true, true},
		{"gpt-5.6-terra", [4]float64{2, 0.20, 2.50, 12}, "low medium high xhigh max", "low", true, true},
		{"gpt-5.6-sol", [4]float64{5, 0.50, 6.25, 30}, "low medium high xhigh max", "low", true, true},
		{"gpt-5.5", [4]float64{5, 0.50, 0, 30}, "off low medium high xhigh", "off", true, true},
		{"gpt-5.4", [4]float64{2.50, 0.25, 0, 15}, "low medium high xhigh", "low", true, true},
		{"gpt-5.4-mini", [4]float64{0.75, 0.075, 0, 4.50}, "low medium high xhigh", "low", false, true},
		{"gpt-5.3-codex-spark", [4]float64{1.75, 0.175, 0, 14}, "minimal low medium high xhigh", "minimal", false, false},
	} {
		t.Run(want.id, func(t *testing.T) {
			m, err := c.Lookup(ref("openai-codex/"+want.id), nil)
			if err != nil {
				t.Fatal(err)
			}
			var levels []string
			for _, l := range providers.SupportedThinking(m) {
				levels = append(levels, string(l))
			}
			if got := strings.Join(levels, " "); got != want.levels {
				t.Errorf("levels %s", got)
			}
			if got := providers.FitThinking(m, "off"); got != want.off {
				t.Errorf("off becomes %s", got)
			}
			window := int64(272_000)
			if want.id == "gpt-5.3-codex-spark" {
				window = 128_000
			}
			if m.ContextWindow != window || m.MaxTokens != 128_000 || m.AcceptsImages() != want.image || m.Protocol != messages.ProtocolCodex || !m.Reasoning {
				t.Errorf("%+v", m)
			}
			million := messages.Usage{Input: 100_000, CacheRead: 100_000, CacheWrite: 72_000, Output: 100_000}
			cost := func(u messages.Usage) float64 { return providers.Price(m, u, providers.Billing{}).Cost.Total }
			r := want.rates
			plain := 0.1*r[0] + 0.1*r[1] + 0.072*r[2] + 0.1*r[3]
			if got := cost(million); math.Abs(got-plain) > 1e-9 {
				t.Errorf("up to 272,000 tokens: %g, want %g", got, plain)
			}
			million.CacheRead++ // one token more, and all of them have the other rates
			more := plain
			if want.long {
				more = 2*(0.1*r[0]+0.100001*r[1]+0.072*r[2]) + 1.5*0.1*r[3]
			} else {
				more += r[1] / 1e6
			}
			if got := cost(million); math.Abs(got-more) > 1e-9 {
				t.Errorf("above: %g, want %g", got, more)
			}
		})
	}
}

func TestCodexModelsOfTheFileReplaceTheList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	write(t, path, `{"openai-codex":{"m":`+entry("openai-codex", "m")+`}}`)
	all, err := Open(Options{File: path, Pinned: true}).List("openai-codex", nil)
	if err != nil || len(all) != 1 || all[0].ID != "m" {
		t.Errorf("%v, %v", all, err)
	}
}

func TestOwnModelsReplaceTheCatalogsAndEarlierOnes(t *testing.T) {
	own := func(name string) messages.Model {
		return messages.Model{ID: "gpt-5", Name: name, Protocol: "openai", Provider: messages.ModelProvider{ID: "openai"}}
	}
	custom := []messages.Model{own("first"), own("second")}
	c := Open(Options{})
	if m, err := c.Lookup(ref("openai/gpt-5"), custom); err != nil || m.Name != "second" {
		t.Errorf("%v, %v", m.Name, err)
	}
	all, err := c.List("openai", custom)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.ID == "gpt-5" && m.Name != "second" {
			t.Errorf("listed as %q", m.Name)
		}
	}
	if m, err := c.Lookup(ref("openai/gpt-5"), nil); err != nil || m.Name == "second" {
		t.Errorf("another caller sees %v, %v", m.Name, err)
	}
}

func TestOfflineGuideIsThereWhateverTheFileIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	write(t, path, "broken")
	m, err := Open(Options{File: path, Pinned: true}).Lookup(ref("offline/guide"), nil)
	if err != nil || m.Protocol != messages.ProtocolOffline || m.Reasoning || m.Cost.Input != 0 || m.AcceptsImages() {
		t.Errorf("%+v, %v", m, err)
	}
	if !reflect.DeepEqual(m, offline.Model()) {
		t.Errorf("got %+v", m)
	}
}

func TestModelsThatTheOfflineGuideNamesExist(t *testing.T) {
	var text strings.Builder
	req := &messages.Request{Model: offline.Model(), Messages: []messages.Message{{
		Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}},
	}}}
	offline.Dialect{}.Stream(t.Context(), nil, req, func(e messages.StreamEvent) { text.WriteString(e.Delta) })
	named := regexp.MustCompile(`--model (\S+)`).FindAllStringSubmatch(text.String(), -1)
	if len(named) == 0 {
		t.Fatalf("names %v", named)
	}
	for _, m := range named {
		if _, err := Open(Options{}).Lookup(ref(m[1]), nil); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
	}
}

func TestUnknownModelNamesTheClosest(t *testing.T) {
	c := Open(Options{})
	for _, test := range []struct{ asked, hint string }{
		{"anthropic/claude-sonet-4-5", "anthropic/claude-sonnet-4-5"},
		{"openai/GPT-5", "openai/gpt-5"},
		{"antropic/claude-opus-4-5", "anthropic/claude-opus-4-5"},
		{"openai/claude-opus-4-5", "anthropic/claude-opus-4-5"},
		{"google/argon", "google/gemini-4-argon"},
		{"offline/guid", "offline/guide"},
	} {
		_, err := c.Lookup(ref(test.asked), nil)
		f := failure(t, err)
		if f.Type != messages.FailModelNotFound || f.Message != "no model "+test.asked || !strings.Contains(f.Hint, test.hint) {
			t.Errorf("%s: %+v", test.asked, f)
		}
		if !strings.Contains(f.Hint, "codework models") {
			t.Errorf("%s: no way to the list in %q", test.asked, f.Hint)
		}
	}
	_, err := c.Lookup(ref("zzzzzzzzzz/qqqqqqqqqqqqqqqq"), nil)
	if f := failure(t, err); strings.Contains(f.Hint, "mean") {
		t.Errorf("invented a neighbour: %q", f.Hint)
	}
	_, err = c.Lookup(ref("mine/llama-big"), []messages.Model{{ID: "llama-bigger", Provider: messages.ModelProvider{ID: "mine"}}})
	if f := failure(t, err); !strings.Contains(f.Hint, "mine/llama-bigger") {
		t.Errorf("own models are not suggested: %q", f.Hint)
	}
}

func TestProviderIDsAreNoPaths(t *testing.T) {
	for _, p := range []string{"../snapshot/openai", "", ".", "openai.json.gz", "openai\x00"} {
		_, err := Open(Options{}).Lookup(messages.ModelRef{Provider: p, ID: "gpt-5"}, nil)
		if f := failure(t, err); f.Type != messages.FailModelNotFound {
			t.Errorf("%q: %+v", p, f)
		}
	}
}

func TestFaultsOfTheFileHaveTheirReason(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"empty-bytes": "", "empty-blank": " \n", "empty-object": "{}", "empty-provider": `{"openai":{}}`,
		"invalid-text": "<html>", "invalid-cut": `{"openai":{"a":`, "invalid-null": "null", "invalid-list": "[]",
		"invalid-provider": `{"p":[]}`, "invalid-null-provider": `{"p":null}`,
		"invalid-id":       `{"p":{"m":` + entry("p", "other") + `}}`,
		"invalid-under":    `{"p":{"m":` + entry("q", "m") + `}}`,
		"invalid-type":     `{"p":{"m":{"id":1}}}`,
		"invalid-url":      `{"p":{"m":` + strings.Replace(entry("p", "m"), "http://", "file://", 1) + `}}`,
		"invalid-cost":     `{"p":{"m":` + strings.Replace(entry("p", "m"), `"input":1`, `"input":-1`, 1) + `}}`,
		"invalid-window":   `{"p":{"m":` + strings.Replace(entry("p", "m"), `1000`, `-1000`, 1) + `}}`,
		"invalid-input":    `{"p":{"m":` + strings.Replace(entry("p", "m"), `["text"]`, `["image"]`, 1) + `}}`,
		"invalid-protocol": `{"p":{"m":` + strings.Replace(entry("p", "m"), `"openai-compatible"`, `""`, 1) + `}}`,
	} {
		path := filepath.Join(dir, name)
		write(t, path, content)
		reason, _, _ := strings.Cut(name, "-")
		_, err := Open(Options{File: path}).Lookup(ref("p/m"), nil)
		f := failure(t, err)
		if f.Type != messages.FailCatalog || f.Code != reason || !strings.Contains(f.Message, path) || !strings.Contains(f.Message, reason) || f.Hint == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if f := failure(t, mustFail(Open(Options{File: dir}))); f.Code != ReasonUnreadable {
		t.Errorf("a folder: %+v", f)
	}
	if f := failure(t, mustFail(Open(Options{File: filepath.Join(dir, "none"), Pinned: true}))); f.Code != ReasonMissing {
		t.Errorf("pinned and missing: %+v", f)
	}
}

func mustFail(c *Catalog) error {
	_, err := c.Lookup(ref("openai/gpt-5"), nil)
	return err
}

func TestWrongEntryHurtsNobodyElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	write(t, path, `{"p":{"good":`+entry("p", "good")+`,"bad":{"id":"bad"}}}`)
	c := Open(Options{File: path})
	if _, err := c.Lookup(ref("p/good"), nil); err != nil {
		t.Error(err)
	}
	_, err := c.Lookup(ref("p/bad"), nil)
	if f := failure(t, err); f.Code != ReasonInvalid || !strings.Contains(f.Message, "p/bad: provider.id") {
		t.Errorf("%+v", f)
	}
	if _, err := c.List("", nil); err == nil {
		t.Error("the list hides the fault")
	}
}

func TestFileReplacesTheSnapshotUnlessItIsOlder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	write(t, path, `{"p":{"m":`+entry("p", "m")+`}}`)
	old := snapshotTaken.Add(-time.Hour)
	find := func(o Options, name string) bool {
		_, err := Open(o).Lookup(ref(name), nil)
		return err == nil
	}
	if !find(Options{File: path}, "p/m") || find(Options{File: path}, "openai/gpt-5") {
		t.Error("a new file does not replace the snapshot")
	}
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if find(Options{File: path}, "p/m") || !find(Options{File: path}, "openai/gpt-5") {
		t.Error("an old file replaces the snapshot")
	}
	if !find(Options{File: path, Pinned: true}, "p/m") {
		t.Error("a pinned file must count whatever its age")
	}
	where, when, err := Open(Options{File: path}).Origin()
	if where != "" || !when.Equal(snapshotTaken) || err != nil {
		t.Errorf("origin %q, %v, %v", where, when, err)
	}
	where, when, err = Open(Options{File: path, Pinned: true}).Origin()
	if where != path || !when.Equal(old) || err != nil {
		t.Errorf("origin %q, %v, %v", where, when, err)
	}
}

func TestChangedFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	c := Open(Options{File: path})
	if _, err := c.Lookup(ref("openai/gpt-5"), nil); err != nil {
		t.Fatalf("without a file the snapshot counts: %v", err)
	}
	write(t, path, `{"openai":{"gpt-5":`+entry("openai", "gpt-5")+`}}`)
	if m, err := c.Lookup(ref("openai/gpt-5"), nil); err != nil || m.ContextWindow != 1000 {
		t.Fatalf("%v, %v", m.ContextWindow, err)
	}
	// The same size, another time: what a rewrite of one digit gives.
	write(t, path, strings.Replace(`{"openai":{"gpt-5":`+entry("openai", "gpt-5")+`}}`, "1000", "2000", 1))
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Lookup(ref("openai/gpt-5"), nil); err != nil || m.ContextWindow != 2000 {
		t.Fatalf("%v, %v", m.ContextWindow, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Lookup(ref("openai/gpt-5"), nil); err != nil || m.ContextWindow <= 2000 {
		t.Fatalf("%v, %v", m.ContextWindow, err)
	}
}

func TestUnknownProtocolsAreListedAndRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	with := func(id, protocol string) string {
		return fmt.Sprintf("%q:%s", id, strings.Replace(entry("p", id), "openai-compatible", protocol, 1))
	}
	write(t, path, `{"p":{`+with("new", "telepathy")+","+with("vertex", "google-vertex")+`}}`)
	c := Open(Options{File: path})
	all, err := c.List("p", nil)
	if err != nil || len(all) != 2 || all[0].Protocol != "telepathy" {
		t.Fatalf("%v, %v", all, err)
	}
	for id, word := range map[string]string{"new": "telepathy", "vertex": "not supported"} {
		_, err := c.Lookup(ref("p/"+id), nil)
		if f := failure(t, err); f.Type != messages.FailConfiguration || !strings.Contains(f.Message, word) {
			t.Errorf("%s: %+v", id, f)
		}
	}
}

func TestEntryWithoutBaseURLLivesAtItsProvider(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	write(t, path, `{"anthropic":{"m":`+strings.Replace(entry("anthropic", "m"), "http://127.0.0.1:1/v1", "", 1)+`}}`)
	m, err := Open(Options{File: path}).Lookup(ref("anthropic/m"), nil)
	if err != nil || m.BaseURL != "https://api.anthropic.com/v1" {
		t.Errorf("%q, %v", m.BaseURL, err)
	}
}

func TestStaleIsMissingOrOlderThanTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.gen.json")
	now := time.Now()
	c := Open(Options{File: path, Now: func() time.Time { return now }})
	if !c.Stale(time.Hour) {
		t.Error("a missing file is stale")
	}
	write(t, path, "{}")
	now = time.Now().Add(30 * time.Minute)
	if c.Stale(time.Hour) {
		t.Error("half the limit is not stale")
	}
	now = now.Add(time.Hour)
	if !c.Stale(time.Hour) {
		t.Error("over the limit is stale")
	}
}

func TestLookupOfManySessionsAtOnce(t *testing.T) {
	c := Open(Options{})
	done := make(chan error)
	for range 50 {
		go func() {
			_, err := c.Lookup(ref("openai/gpt-5"), nil)
			done <- err
		}()
	}
	for range 50 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// FuzzFile: whatever the bytes, reading them as a catalog gives models that
// keep the checks of decode, or an error with its reason; never both, and
// never a panic. What decodes once, decodes to the same after encoding.
func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"p":{"m":` + entry("p", "m") + `}}`))
	f.Add([]byte(`{"p":{"m":{"id":"m","thinkingLevelMap":{"off":null},"compat":{"a":[1]}}}}`))
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Add([]byte(`{"p":null,"q":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		top, reason, err := parse(data)
		if (err == nil) != (reason == "") || (err == nil) != (top != nil) {
			t.Fatalf("%v with reason %q", err, reason)
		}
		for p, raw := range top {
			entries, err := parseProvider(p, raw)
			if err != nil {
				continue
			}
			for id, raw := range entries {
				m, err := decode(p, id, raw)
				if err != nil {
					continue
				}
				if m.Ref() != (messages.ModelRef{Provider: p, ID: id}) || m.Protocol == "" || !slices.Contains(m.Input, "text") {
					t.Fatalf("accepted %+v", m)
				}
				again, err := json.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := decode(p, id, again); err != nil {
					t.Fatalf("own encoding refused: %v\n%s", err, again)
				}
			}
		}
	})
}

func BenchmarkColdLookup(b *testing.B) {
	for _, name := range []string{"openai/gpt-5", "openrouter/openai/gpt-5"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Open(Options{}).Lookup(ref(name), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkKnownLookup(b *testing.B) {
	c := Open(Options{File: filepath.Join(b.TempDir(), "none")})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Lookup(ref("openai/gpt-5"), nil); err != nil {
			b.Fatal(err)
		}
	}
}
