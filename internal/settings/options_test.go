package settings

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"codework/messages"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, model string
		want           bool
	}{
		{"*", "", true},
		{"*", "anything/at:all", true},
		{"gpt-*", "gpt-5", true},
		{"gpt-*", "gpt-", true},
		{"gpt-*", "xgpt-5", false},
		{"*-mini", "gpt-5-mini", true},
		{"*-mini", "gpt-5-mini-x", false},
		{"gpt-*-mini", "gpt-5-mini", true},
		{"gpt-*-mini", "gpt-mini", false},
		{"a*a", "a", false},
		{"a*a", "aa", true},
		{"a*b*c", "abbc", true},
		{"a*b*c", "acbc", true},
		{"a*b*c", "acb", false},
		{"a**b", "ab", true},
		{"*ab*ab", "ab", false},
		{"*ab*ab", "xabyab", true},
		{"GPT*", "gpt-5", false},
		{"a.c*", "abc", false},
		{"a?c*", "abc", false},
	} {
		if got := match(c.pattern, c.model); got != c.want {
			t.Errorf("%q on %q: %v", c.pattern, c.model, got)
		}
	}
}

// Each block writes its own name where the others write theirs, so that the
// winner is seen, and into a header that nobody else writes, so that it is
// seen who takes part.
func TestOrderOfBlocks(t *testing.T) {
	f := newFixture(t)
	f.trusted = true
	block := func(name string) string {
		return `{"baseURL": "http://` + name + `", "headers": {"` + name + `": "1"}, "metadata": {"last": "` + name + `"}}`
	}
	f.user(`{"model": {"options": ` + block("options") + `, "providerOptions": {
		"p": {
			"m-1": ` + block("exact") + `,
			"m-*": ` + block("long") + `,
			"m*": ` + block("short") + `,
			"*": ` + block("all") + `,
			"*1": ` + block("tail") + `,
			"n*": ` + block("other") + `
		},
		"q": {"*": ` + block("q") + `, "m-1": ` + block("q-exact") + `}}}}`)
	s := f.load()
	for _, c := range []struct {
		provider, model, winner string
		part                    []string
	}{
		{"p", "m-1", "exact", []string{"options", "all", "tail", "short", "long", "exact"}},
		{"p", "m-2", "long", []string{"options", "all", "short", "long"}},
		{"p", "mx", "short", []string{"options", "all", "short"}},
		{"p", "x1", "tail", []string{"options", "all", "tail"}},
		{"p", "x", "all", []string{"options", "all"}},
		{"q", "m-1", "q-exact", []string{"options", "q", "q-exact"}},
		{"r", "m-1", "options", []string{"options"}},
	} {
		b := s.Options(c.provider, c.model)
		headers := map[string]string{}
		for _, p := range c.part {
			headers[p] = "1"
		}
		if b.BaseURL != "http://"+c.winner || string(b.Metadata["last"]) != `"`+c.winner+`"` || !reflect.DeepEqual(b.Headers, headers) {
			t.Errorf("%s/%s: %+v", c.provider, c.model, b)
		}
	}
	// The inputs stay as they are: asking again gives the same.
	if again := s.Options("p", "m-1"); again.BaseURL != "http://exact" || len(s.Options("r", "x").Headers) != 1 {
		t.Errorf("asking changed something: %+v", again)
	}
}

func TestAModelWhoseNameHoldsAStar(t *testing.T) {
	f := newFixture(t)
	f.user(`{"model": {"providerOptions": {"p": {"odd*": {"maxTokens": 2}, "odd*name*": {"maxTokens": 1}}}}}`)
	s := f.load()
	if got := s.Options("p", "odd*").MaxTokens; got != 2 {
		t.Errorf("exact: %d", got)
	}
	// Both have the prefix "odd": the one that is written later counts.
	if got := s.Options("p", "odd-name").MaxTokens; got != 1 {
		t.Errorf("pattern: %d", got)
	}
}

func TestLevelAndToolExecutionBelowAllBlocks(t *testing.T) {
	f := newFixture(t)
	f.trusted = true
	f.user(`{"model": {"thinkingLevel": "low", "toolExecution": "parallel", "thinkingBudgets": {"low": 1, "high": 2},
		"options": {"thinkingBudgets": {"high": 3.9}},
		"providerOptions": {"p": {"m": {"thinkingLevel": "max", "toolExecution": "sequential"}}}},
		"models": [` + fullModel + `]}`)
	s := f.load()
	if b := s.Options("p", "x"); b.ThinkingLevel != "low" || b.ToolExecution != Parallel || b.ThinkingBudgets["low"] != 1 || b.ThinkingBudgets["high"] != 3 {
		t.Errorf("got %+v", b)
	}
	if b := s.Options("p", "m"); b.ThinkingLevel != "max" || b.ToolExecution != Sequential {
		t.Errorf("got %+v", b)
	}
}

func TestOptionsOfTheModelsOwnEntryComeFirst(t *testing.T) {
	entry := func(options string) string {
		return `{"models": [{"id": "m", "name": "M", "provider": {"id": "p", "name": "P", "source": "config", "env": []}, "protocol": "openai",
			"baseUrl": "http://h", "reasoning": false, "input": ["text"], "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
			"contextWindow": 0, "maxTokens": 0, "options": ` + options + `}]}`
	}
	f := newFixture(t)
	f.trusted = true
	f.user(entry(`{"temperature": 1, "maxTokens": 1, "thinkingLevel": "off"}`))
	if b := f.load().Options("p", "m"); *b.Temperature != 1 || b.MaxTokens != 1 || b.ThinkingLevel != "off" {
		t.Errorf("above the defaults: %+v", b)
	}
	f.inProject(`{"model": {"thinkingLevel": "low", "options": {"temperature": 2}}, ` + entry(`{"maxTokens": 3, "temperature": 3}`)[1:])
	if b := f.load().Options("p", "m"); *b.Temperature != 2 || b.MaxTokens != 3 || b.ThinkingLevel != "low" {
		t.Errorf("below what is written, the last entry alone: %+v", b)
	}
	if b := f.load().Options("p", "other"); b.MaxTokens != 0 {
		t.Errorf("another model: %+v", b)
	}
}

func TestBlockFields(t *testing.T) {
	f := newFixture(t)
	f.user(`{"model": {"options": {
		"temperature": 0, "maxTokens": 4e3, "timeoutMs": 1500, "idleTimeoutMs": 9007199254740991, "maxRetries": 2, "cacheRetention": "long",
		"headers": {"a": "${B}"}, "baseURL": "http://h", "apiKey": "${K}", "metadata": {"u": 1}, "thinkingBudgets": {"max": 1e300},
		"method": "chat", "thinkingLevel": "off", "toolExecution": "parallel", "contextWindow": 1000.7, "extras": {"x": true},
		"top_p": 0.10, "own": {"b": 1, "a": [1, 2,],},
	}}}`)
	zero := 0.0
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	want := Block{
		Temperature: &zero, MaxTokens: 4000, Timeout: 1500 * time.Millisecond, IdleTimeout: longest, MaxRetries: 2, CacheRetention: "long",
		Headers: map[string]string{"a": "${B}"}, BaseURL: "http://h", APIKey: "${K}", Metadata: map[string]json.RawMessage{"u": raw("1")},
		ThinkingBudgets: map[messages.ThinkingLevel]int64{"max": maxWhole}, Method: "chat", ThinkingLevel: "off", ToolExecution: Parallel,
		ContextWindow: 1000, Extras: map[string]json.RawMessage{"x": raw("true")},
		Extra: map[string]json.RawMessage{"top_p": raw("0.10"), "own": raw(`{"b":1,"a":[1,2]}`)},
	}
	if got := f.load().Options("openai", "x"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
