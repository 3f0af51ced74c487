package mockmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestCloseEndsAllThatWaits(t *testing.T) {
	c := start(t, Options{Script: Script{{Stall{}}, {Text{Text: "a"}, Hold{"h"}}, {Text{Text: "ab", Split: 2, Delay: time.Hour}}}})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := c.events(chatPath, ask(chatPath, "x")); err == nil {
				t.Error("an answer ended well")
			}
		})
	}
	wg.Go(func() {
		resp, err := c.http.Get(c.s.URL() + "/_mock/wait?name=never")
		if err != nil {
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("a wait ended well")
		}
	})
	// One that only connects.
	idle, err := net.Dial("tcp", strings.TrimPrefix(c.s.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if err := c.s.WaitRequests(within(t), 3); err != nil {
		t.Fatal(err)
	}
	if err := c.s.Reached(within(t), "h"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	st := c.s.Stats()
	if st.InFlight != 0 || st.Left != 0 {
		t.Errorf("the server's own end counts as clients that left: %+v", st)
	}
	for _, r := range c.s.Requests() {
		if !r.Done || r.Left {
			t.Errorf("%+v", r)
		}
	}
}

func TestCloseWithoutStart(t *testing.T) {
	if err := New(Options{}).Close(); err != nil {
		t.Error(err)
	}
}

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.com:0", "x"} {
		if err := New(Options{Addr: addr}).Start(); err == nil {
			t.Errorf("listens on %s", addr)
		}
	}
}

func TestModelsAreListedAndNotRecorded(t *testing.T) {
	c := start(t, Options{Models: []string{"a", "b"}})
	resp, err := c.http.Get(c.s.URL() + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || len(got.Data) != 2 || got.Data[1].ID != "b" {
		t.Errorf("%+v %v", got, err)
	}
	if st := c.s.Stats(); len(c.s.Requests()) != 0 || st.ModelLists != 1 || st.Requests != 0 {
		t.Errorf("%+v", st)
	}
}

func TestViewReadsTheHistory(t *testing.T) {
	c := start(t, Options{Lenient: true})
	c.post(chatPath, `{"model":"m","reasoning_effort":"low","max_completion_tokens":7,"messages":[
		{"role":"system","content":"s1"},{"role":"developer","content":[{"type":"text","text":"s2"}]},
		{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]},
		{"role":"assistant","content":"ok","reasoning_content":"hm","tool_calls":[{"id":"a","type":"function","function":{"name":"bash","arguments":"{\"x\": \"<\"}"}}]},
		{"role":"tool","tool_call_id":"a","content":"out"},{"role":"user","content":"more"}],
		"tools":[{"type":"function","function":{"name":"bash","description":"d","parameters":{"type":"object"}}}]}`)
	c.post(anthropicPath, `{"model":"m","thinking":{"type":"adaptive"},"max_tokens":7,"system":[{"type":"text","text":"s1\n\ns2"}],"messages":[
		{"role":"user","content":[{"type":"text","text":"look"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"ok"},{"type":"tool_use","id":"a","name":"bash","input":{"x":"<"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"out","is_error":true},{"type":"text","text":"more"}]}],
		"tools":[{"name":"bash","description":"d","input_schema":{"type":"object"}}]}`)
	want := []struct{ thinking, parts string }{
		{"low", `user text "look", user image "data:image/png;base64,AA==", assistant reasoning "hm", assistant text "ok", assistant call a bash {"x": "<"}, tool result a "out" false, user text "more"`},
		{"adaptive", `user text "look", user image "image/png", assistant reasoning "hm", assistant text "ok", assistant call a bash {"x":"<"}, user result a "out" true, user text "more"`},
	}
	for i, r := range c.s.Requests() {
		v := r.View
		var parts []string
		for _, m := range v.Messages {
			for _, p := range m.Parts {
				s := m.Role + " " + p.Kind
				switch p.Kind {
				case PartCall:
					s += fmt.Sprintf(" %s %s %s", p.ID, p.Name, p.Args)
				case PartResult:
					s += fmt.Sprintf(" %s %q %v", p.ID, p.Text, p.IsError)
				default:
					s += fmt.Sprintf(" %q", p.Text)
				}
				parts = append(parts, s)
			}
		}
		if got := strings.Join(parts, ", "); got != want[i].parts {
			t.Errorf("got  %s\nwant %s", got, want[i].parts)
		}
		if v.System != "s1\n\ns2" || v.Model != "m" || v.MaxTokens != 7 || v.Thinking != want[i].thinking || v.Stream {
			t.Errorf("%+v", v)
		}
		if len(v.Tools) != 1 || v.Tools[0].Name != "bash" || v.Tools[0].Description != "d" || string(v.Tools[0].Schema) != `{"type":"object"}` {
			t.Errorf("%+v", v.Tools)
		}
		if p, ok := v.Result("a"); !ok || p.Text != "out" {
			t.Errorf("%+v", p)
		}
		if _, ok := v.Result("b"); ok || v.Prompt() != "more" || strings.Join(v.Texts("user"), "|") != "look|more" {
			t.Errorf("%q %q", v.Prompt(), v.Texts("user"))
		}
	}
}

func TestOldBodiesAreForgottenFirst(t *testing.T) {
	body := ask(chatPath, "x")
	c := start(t, Options{KeepBytes: int64(2 * len(body))})
	for range 5 {
		c.whole(chatPath, body)
	}
	for i, r := range c.s.Requests() {
		if kept := r.Body != nil && r.View != nil; kept != (i >= 3) {
			t.Errorf("request %d: kept %v", i+1, kept)
		}
		if r.Size != len(body) || r.N != i+1 {
			t.Errorf("%+v", r)
		}
	}
}

func TestOldRecordsAreForgottenByHalves(t *testing.T) {
	body := ask(chatPath, "x")
	c := start(t, Options{KeepRequests: 4, KeepBytes: int64(3 * len(body))})
	for i := range 9 {
		c.whole(chatPath, body)
		r := c.s.Requests()
		if len(r) > 4 || r[len(r)-1].N != i+1 || r[len(r)-1].Body == nil {
			t.Errorf("after %d: %+v", i+1, r)
		}
		kept := 0
		for _, r := range r {
			kept += len(r.Body)
		}
		if kept > 3*len(body) || len(r) >= 3 && kept != 3*len(body) {
			t.Errorf("after %d: %d bytes of bodies", i+1, kept)
		}
	}
	if st := c.s.Stats(); st.Requests != 9 {
		t.Errorf("%+v", st)
	}
}

func TestResetStartsAnew(t *testing.T) {
	c := start(t, Options{Script: Script{{Text{Text: "one"}}}})
	c.whole(chatPath, ask(chatPath, "x"))
	c.post(chatPath, "{}")
	c.s.Reset()
	if c.s.Remaining(DefaultScript) != 1 || len(c.s.Requests()) != 0 || len(c.s.Violations()) != 0 || c.s.Stats().Requests != 0 {
		t.Errorf("%+v", c.s.Stats())
	}
	c.whole(chatPath, ask(chatPath, "x"))
	if r := c.s.Requests(); len(r) != 1 || r[0].N != 3 {
		t.Errorf("numbers go on: %+v", r)
	}
}

// The pieces of TB that StartTest uses, to see a test fail.
type fakeTB struct {
	cleanup []func()
	errors  []string
}

func (f *fakeTB) Helper()                   {}
func (f *fakeTB) Cleanup(g func())          { f.cleanup = append(f.cleanup, g) }
func (f *fakeTB) Errorf(s string, a ...any) { f.errors = append(f.errors, fmt.Sprintf(s, a...)) }
func (f *fakeTB) Fatalf(s string, a ...any) { f.Errorf(s, a...) }

func TestStartTestFailsForViolations(t *testing.T) {
	tb := &fakeTB{}
	c := dial(t, StartTest(tb, Options{}))
	c.post(chatPath, with(chatPath, "model", ""))
	if len(tb.errors) != 0 {
		t.Errorf("too early: %q", tb.errors)
	}
	for _, f := range tb.cleanup {
		f()
	}
	if len(tb.errors) != 1 || !strings.Contains(tb.errors[0], "request 1: model: model: field required") {
		t.Errorf("%q", tb.errors)
	}
	if _, err := c.http.Get(c.s.URL()); err == nil {
		t.Error("the server still runs")
	}
}

// call uses the control side and decodes its answer.
func (c *client) call(method, path, body string, into any) int {
	c.t.Helper()
	r, err := http.NewRequestWithContext(within(c.t), method, c.s.URL()+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			c.t.Fatalf("%s: %v", b, err)
		}
	}
	return resp.StatusCode
}

func TestControl(t *testing.T) {
	c := start(t, Options{})
	if s := c.call("POST", "/_mock/script", `{"default": ["one"], "x": [[{"text": "a"}, {"hold": "h"}, {"text": "b"}]]}`, nil); s != 200 {
		t.Fatalf("script: %d", s)
	}
	if s := c.call("POST", "/_mock/script?name=y", `["why"]`, nil); s != 200 {
		t.Fatalf("script by name: %d", s)
	}
	for prompt, want := range map[string]string{"plain": "one", "script=y": "why"} {
		if got := understand(t, chatPath, c.whole(chatPath, ask(chatPath, prompt))).text; got != want {
			t.Errorf("%s: %q", prompt, got)
		}
	}

	done := make(chan string, 1)
	go func() {
		ev, err := c.events(chatPath, ask(chatPath, "script=x"))
		if err != nil {
			done <- err.Error()
			return
		}
		done <- understand(t, chatPath, ev).text
	}()
	if s := c.call("GET", "/_mock/wait?name=h&timeout=10", "", nil); s != 200 {
		t.Fatalf("wait for the hold: %d", s)
	}
	if s := c.call("GET", "/_mock/wait?requests=3", "", nil); s != 200 {
		t.Errorf("wait for requests: %d", s)
	}
	if s := c.call("GET", "/_mock/wait?idle=1&timeout=0.01", "", nil); s != 504 {
		t.Errorf("idle while one is held: %d", s)
	}
	var released struct{ Released int }
	if s := c.call("POST", "/_mock/release?name=h", "", &released); s != 200 || released.Released != 1 {
		t.Errorf("release: %d %+v", s, released)
	}
	if got := <-done; got != "ab" {
		t.Errorf("held answer: %q", got)
	}
	if s := c.call("GET", "/_mock/wait?idle=1", "", nil); s != 200 {
		t.Errorf("idle: %d", s)
	}

	c.post(chatPath, ask(chatPath, " "))
	var violations []Violation
	if c.call("GET", "/_mock/violations", "", &violations); len(violations) != 1 || violations[0].Rule != RuleBlank || violations[0].Request != 4 {
		t.Errorf("%+v", violations)
	}
	var requests []struct {
		N      int
		Body   string
		Script string
		Answer int
		View   View
		Header http.Header
	}
	c.call("GET", "/_mock/requests", "", &requests)
	if len(requests) != 4 || requests[2].Body != ask(chatPath, "script=x") || requests[2].Script != "x" || requests[2].View.Prompt() != "script=x" || requests[2].Header.Get("Content-Type") == "" {
		t.Errorf("%+v", requests)
	}
	var one struct{ N int }
	if s := c.call("GET", "/_mock/requests?n=3", "", &one); s != 200 || one.N != 3 {
		t.Errorf("%d %+v", s, one)
	}
	var stats Stats
	if c.call("GET", "/_mock/stats", "", &stats); stats.Requests != 4 || stats.ByProtocol["chat"] != 4 || stats.ByStatus[200] != 3 || stats.ByStatus[400] != 1 || stats.Violations != 1 || stats.InFlight != 0 || stats.Events == 0 || stats.MaxInFlight < 1 {
		t.Errorf("%+v", stats)
	}
	if s := c.call("POST", "/_mock/reset", "", nil); s != 200 || len(c.s.Requests()) != 0 {
		t.Errorf("reset: %d", s)
	}
	if c.call("GET", "/_mock/violations", "", &violations); len(violations) != 0 {
		t.Errorf("%+v", violations)
	}
}

func TestControlRefusesWhatItDoesNotKnow(t *testing.T) {
	c := start(t, Options{})
	for _, tt := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/_mock/", "", 404},
		{"GET", "/_mock/reset", "", 404},
		{"POST", "/_mock/script", "[[{}]]", 400},
		{"POST", "/_mock/script?name=a", `{"b": []}`, 400},
		{"GET", "/_mock/requests?n=1", "", 404},
		{"GET", "/_mock/requests?n=x", "", 404},
		{"GET", "/_mock/wait", "", 400},
		{"GET", "/_mock/wait?requests=x", "", 400},
		{"GET", "/_mock/wait?idle=1&timeout=x", "", 400},
		{"GET", "/_mock/wait?name=h&timeout=0.001", "", 504},
	} {
		var answer struct {
			OK    bool
			Error string
		}
		if s := c.call(tt.method, tt.path, tt.body, &answer); s != tt.status || answer.OK || answer.Error == "" {
			t.Errorf("%s %s: %d %+v", tt.method, tt.path, s, answer)
		}
	}
	r, err := http.NewRequestWithContext(context.Background(), "POST", c.s.URL()+"/_mock/reset", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Origin", "https://example.com")
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 403 {
		t.Errorf("a web page got %d", resp.StatusCode)
	}
}
