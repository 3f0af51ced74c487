package mockmodel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAnswersComeInOrderAndCarryTextCallsAndUsage(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{
			{Text{Text: "héllo wörld", Split: 4}},
			{Text{Text: "look"}, Call{ID: "a", Name: "bash", Args: `{"command":"ls"}`, Split: 3}, Call{ID: "b", Name: "read", Args: ""},
				Usage{Input: 7, Output: 5, CacheRead: 3, CacheWrite: 2, CacheWrite1h: 1, Reasoning: 4}},
			{},
		}})
		got := understand(t, path, c.whole(path, ask(path, "one")))
		if got.text != "héllo wörld" || !got.done || len(got.calls) != 0 {
			t.Errorf("first answer: %+v", got)
		}
		if want := map[string]string{chatPath: "stop", anthropicPath: "end_turn"}[path]; got.stop != want {
			t.Errorf("stop reason %q, want %q", got.stop, want)
		}

		body := strings.Replace(ask(path, "two"), `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
		if path == anthropicPath {
			body = ask(path, "two")
		}
		got = understand(t, path, c.whole(path, body))
		want := []Part{{Kind: PartCall, ID: "a", Name: "bash", Args: `{"command":"ls"}`}, {Kind: PartCall, ID: "b", Name: "read"}}
		if got.text != "look" || !slices.Equal(got.calls, want) {
			t.Errorf("second answer: %+v", got)
		}
		if want := map[string]string{chatPath: "tool_calls", anthropicPath: "tool_use"}[path]; got.stop != want {
			t.Errorf("stop reason %q, want %q", got.stop, want)
		}
		usage := map[string][]int{
			chatPath:      {whole(got.usage["prompt_tokens"]), whole(got.usage["completion_tokens"]), whole(obj(got.usage["prompt_tokens_details"])["cached_tokens"])},
			anthropicPath: {whole(got.usage["input_tokens"]), whole(got.usage["output_tokens"]), whole(got.usage["cache_read_input_tokens"])},
		}[path]
		if want := map[string][]int{chatPath: {12, 5, 3}, anthropicPath: {7, 5, 3}}[path]; !slices.Equal(usage, want) {
			t.Errorf("usage %v, want %v", usage, want)
		}

		got = understand(t, path, c.whole(path, ask(path, "three")))
		if got.text != "" || got.calls != nil || !got.done {
			t.Errorf("an empty answer is a message without content, got %+v", got)
		}
		reqs := c.s.Requests()
		if len(reqs) != 3 || reqs[2].Answer != 2 || reqs[2].N != 3 || reqs[2].View.Prompt() != "three" || string(reqs[2].Body) != ask(path, "three") {
			t.Errorf("records: %+v", reqs)
		}
	})
}

func TestReasoningIsSentWhereTheProtocolHasIt(t *testing.T) {
	for _, tt := range []struct {
		field, text, thinking, signature string
	}{
		{"", "answer", "thought", ""},
		{FieldReasoning, "answer", "thought", ""},
		{FieldReasoningText, "answer", "thought", ""},
		{FieldReasoningDetails, "answer", "thought", "sig-1"},
		{FieldThink, "<think>thought</think>answer", "", ""},
	} {
		t.Run("chat "+tt.field, func(t *testing.T) {
			c := start(t, Options{Script: Script{{Reasoning{Text: "thought", Signature: "sig-1", Field: tt.field, Split: 3}, Text{Text: "answer"}}}})
			got := understand(t, chatPath, c.whole(chatPath, ask(chatPath, "x")))
			if got.text != tt.text || got.thinking != tt.thinking || got.signature != tt.signature {
				t.Errorf("%+v", got)
			}
		})
	}
	t.Run("anthropic", func(t *testing.T) {
		c := start(t, Options{Script: Script{
			{Reasoning{Text: "thought", Signature: "sig-1", Split: 3}, Text{Text: "answer"}},
			{Reasoning{Redacted: true, Signature: "data"}, Text{Text: "answer"}},
			{Reasoning{Text: "a"}, Reasoning{Text: "b"}},
		}})
		got := understand(t, anthropicPath, c.whole(anthropicPath, ask(anthropicPath, "x")))
		if got.text != "answer" || got.thinking != "thought" || got.signature != "sig-1" {
			t.Errorf("%+v", got)
		}
		got = understand(t, anthropicPath, c.whole(anthropicPath, ask(anthropicPath, "x")))
		if got.text != "answer" || got.thinking != "" || got.signature != "data" {
			t.Errorf("%+v", got)
		}
		got = understand(t, anthropicPath, c.whole(anthropicPath, ask(anthropicPath, "x")))
		if got.thinking != "ab" || strings.Count(got.signature, "sig-") != 2 {
			t.Errorf("signatures are made up when absent: %+v", got)
		}
	})
}

func TestChatQuirks(t *testing.T) {
	call := func(f func(*Call)) Call {
		c := Call{ID: "a", Name: "bash", Args: `{"x":1}`, Split: 2}
		f(&c)
		return c
	}
	deltas := func(t *testing.T, events []event) []object {
		var out []object
		for _, e := range events {
			if e.data == "[DONE]" {
				continue
			}
			for _, ch := range list(e.json(t)["choices"]) {
				for _, d := range list(obj(obj(ch)["delta"])["tool_calls"]) {
					out = append(out, obj(d))
				}
			}
		}
		return out
	}
	c := start(t, Options{Script: Script{
		{call(func(*Call) {})},
		{call(func(c *Call) { c.NoIndex = true })},
		{call(func(c *Call) { c.NoID = true })},
		{call(func(c *Call) { c.Whole = true })},
		{call(func(*Call) {}), Call{ID: "b", Name: "read"}, End{Reason: "stop", NoDone: true}},
		{Text{Text: "x"}, End{NoReason: true}},
		{Text{Text: "x"}, Usage{Input: 1, Place: PlaceEvery}},
		{Text{Text: "x"}, Usage{Input: 1, Place: PlaceFinish}},
	}})
	next := func() []event { return c.whole(chatPath, ask(chatPath, "x")) }

	if d := deltas(t, next()); len(d) != 3 || d[0]["index"] != 0.0 || d[0]["id"] != "a" || d[1]["id"] != nil {
		t.Errorf("usual: %v", d)
	}
	for _, d := range deltas(t, next()) {
		if _, ok := d["index"]; ok {
			t.Errorf("no index: %v", d)
		}
	}
	for _, d := range deltas(t, next()) {
		if _, ok := d["id"]; ok {
			t.Errorf("no id: %v", d)
		}
	}
	if d := deltas(t, next()); len(d) != 1 || str(obj(d[0]["function"])["arguments"]) != `{"x":1}` {
		t.Errorf("whole: %v", d)
	}
	if got := understand(t, chatPath, next()); got.stop != "stop" || got.done || len(got.calls) != 2 {
		t.Errorf("stop in spite of calls, no [DONE]: %+v", got)
	}
	if got := understand(t, chatPath, next()); got.stop != "" || !got.done {
		t.Errorf("no reason: %+v", got)
	}
	count := func(events []event) (n int) {
		for _, e := range events {
			if e.data != "[DONE]" && e.json(t)["usage"] != nil {
				n++
			}
		}
		return n
	}
	if ev := next(); count(ev) != len(ev)-1 {
		t.Errorf("usage in every chunk: %v", ev)
	}
	if ev := next(); count(ev) != 1 || ev[len(ev)-2].json(t)["usage"] == nil {
		t.Errorf("usage in the finish chunk: %v", ev)
	}
}

func TestEndReasonsAreTranslated(t *testing.T) {
	for _, tt := range []struct{ reason, chat, anthropic string }{
		{"length", "length", "max_tokens"},
		{"max_tokens", "length", "max_tokens"},
		{"content_filter", "content_filter", "refusal"},
		{"refusal", "content_filter", "refusal"},
		{"tool_use", "tool_calls", "tool_use"},
		{"end_turn", "stop", "end_turn"},
		{"pause_turn", "pause_turn", "pause_turn"},
	} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{Script: Script{{End{Reason: tt.reason}}}})
			got := understand(t, path, c.whole(path, ask(path, "x"))).stop
			if want := map[string]string{chatPath: tt.chat, anthropicPath: tt.anthropic}[path]; got != want {
				t.Errorf("%s: got %q, want %q", tt.reason, got, want)
			}
		})
	}
}

func TestPartsOfTheEndCanBeLeftOut(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{
			{Text{Text: "x"}, End{NoReason: true}},
			{Text{Text: "x"}, End{NoDone: true}},
			{Text{Text: "x"}, End{NoUsage: true}, Usage{Input: 1, Output: 77, Cost: 0.25, CacheWrite: 3}},
			{Text{Text: "x"}, Usage{Input: 1, Output: 77, Cost: 0.25, CacheWrite: 3}},
		}})
		next := func() said {
			body := with(path)
			if path == chatPath {
				body = with(path, "stream_options", `{"include_usage":true}`)
			}
			return understand(t, path, c.whole(path, body))
		}
		if got := next(); got.stop != "" || !got.done {
			t.Errorf("no reason: %+v", got)
		}
		if got := next(); got.stop == "" || got.done {
			t.Errorf("no closing event: %+v", got)
		}
		if got := next(); !got.done || strings.Contains(text(got.usage), "77") {
			t.Errorf("no usage: %+v", got)
		}
		got := next()
		if !strings.Contains(text(got.usage), "77") {
			t.Errorf("usage: %+v", got)
		}
		if path == chatPath && (got.usage["cost"] != 0.25 || obj(got.usage["prompt_tokens_details"])["cache_write_tokens"] != 3.0) {
			t.Errorf("usage: %+v", got)
		}
	})
}

func TestReasoningWithoutAStream(t *testing.T) {
	for field, want := range map[string]string{
		"":                    `{"content":"x","reasoning_content":"ab","role":"assistant"}`,
		FieldReasoning:        `{"content":"x","reasoning":"ab","role":"assistant"}`,
		FieldThink:            `{"content":"<think>a</think><think>b</think>x","role":"assistant"}`,
		FieldReasoningDetails: `{"content":"x","reasoning":"ab","reasoning_details":[{"format":"anthropic-claude-v1","index":0,"signature":"1","text":"a","type":"reasoning.text"},{"format":"anthropic-claude-v1","index":0,"signature":"2","text":"b","type":"reasoning.text"}],"role":"assistant"}`,
	} {
		c := start(t, Options{Script: Script{{Reasoning{Text: "a", Signature: "1", Field: field}, Reasoning{Redacted: true, Field: field},
			Reasoning{Text: "b", Signature: "2", Field: field}, Text{Text: "x"}}}})
		_, body := c.post(chatPath, with(chatPath, "stream", "false"))
		o := event{data: body}.json(t)
		if got := text(obj(list(o["choices"])[0])["message"]); got != want {
			t.Errorf("%s:\n got %s\nwant %s", field, got, want)
		}
	}
}

func TestErrorTypesFollowTheStatus(t *testing.T) {
	for _, tt := range []struct {
		status          int
		chat, anthropic string
	}{
		{400, "invalid_request_error", "invalid_request_error"},
		{401, "invalid_request_error", "authentication_error"},
		{403, "invalid_request_error", "permission_error"},
		{404, "invalid_request_error", "not_found_error"},
		{413, "invalid_request_error", "request_too_large"},
		{429, "rate_limit_error", "rate_limit_error"},
		{500, "server_error", "api_error"},
		{503, "server_error", "api_error"},
		{529, "server_error", "overloaded_error"},
	} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{Script: Script{{HTTP{Status: tt.status}}}})
			status, body := c.post(path, ask(path, "x"))
			got := str(obj(event{data: body}.json(t)["error"])["type"])
			if want := map[string]string{chatPath: tt.chat, anthropicPath: tt.anthropic}[path]; status != tt.status || got != want {
				t.Errorf("%d: %d %s, want %s", tt.status, status, got, want)
			}
		})
	}
}

// full is a message with everything, whose events the cuts go through.
var full = Answer{Reasoning{Text: "hm"}, Text{Text: "let me", Split: 2}, Call{ID: "a", Name: "write", Args: `{"path":"f"}`, Split: 2}}

func TestCutBreaksAfterEveryNumberOfEvents(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		probe := start(t, Options{Script: Script{full}})
		all := len(probe.whole(path, ask(path, "x")))
		if got := probe.s.Requests()[0].Events; got != all {
			t.Fatalf("%d events recorded, %d read", got, all)
		}
		for _, mode := range []CutMode{CutClose, CutReset, CutEnd} {
			var script Script
			for n := range all {
				script = append(script, append(slices.Clone(full), After{n, Cut{mode}}))
			}
			c := start(t, Options{Script: script})
			for n := range all {
				events, err := c.events(path, ask(path, "x"))
				switch {
				case mode == CutEnd && err != nil:
					t.Errorf("end after %d: %v", n, err)
				case mode == CutClose && !errors.Is(err, io.ErrUnexpectedEOF):
					t.Errorf("close after %d: %v", n, err)
				case mode == CutReset && !errors.Is(err, syscall.ECONNRESET):
					t.Errorf("reset after %d: %v", n, err)
				}
				// A reset may overtake what was sent before.
				if mode != CutReset && len(events) != n {
					t.Errorf("%s after %d events, read %d", mode, n, len(events))
				}
				if err := c.s.WaitIdle(within(t)); err != nil {
					t.Fatal(err)
				}
				if r := c.s.Requests()[n]; r.Events != n || r.Left || !r.Done {
					t.Errorf("%s after %d: recorded %+v", mode, n, r)
				}
			}
		}
	})
}

func TestCutBeforeHeadersGivesNoAnswer(t *testing.T) {
	for _, mode := range []CutMode{CutClose, CutReset} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{Script: Script{{Cut{mode}}}})
			resp, err := c.do(within(t), path, ask(path, "x"))
			if err == nil {
				resp.Body.Close()
				t.Fatalf("%s: got status %d", mode, resp.StatusCode)
			}
			want := map[CutMode]error{CutClose: io.EOF, CutReset: syscall.ECONNRESET}[mode]
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", mode, err)
			}
		})
	}
}

func TestArgsStepContinuesTheCall(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{{Call{ID: "a", Name: "bash", Args: `{"x":`}, Hold{"mid"}, Args{Args: `"y"}`, Split: 2}}}})
		resp, err := c.do(within(t), path, ask(path, "x"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := c.s.Reached(within(t), "mid"); err != nil {
			t.Fatal(err)
		}
		sent := c.s.Requests()[0].Events
		r := newReader(resp.Body)
		for range sent {
			if _, err := r.next(); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.s.Release("mid"); n != 1 {
			t.Errorf("released %d", n)
		}
		rest, err := r.all()
		if err != nil || len(rest) == 0 {
			t.Errorf("%v, %v", rest, err)
		}
	})
}

func TestHoldStopsWhereItStands(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{{Hold{"head"}, Text{Text: "a"}, Hold{"between"}, Text{Text: "b"}, After{1, Hold{"one"}}, After{0, Hold{"none"}}}}})
		type result struct {
			events []event
			err    error
		}
		got := make(chan result, 1)
		go func() {
			ev, err := c.events(path, ask(path, "x"))
			got <- result{ev, err}
		}()
		for _, at := range []struct {
			name   string
			status int
			events int
		}{{"head", 0, 0}, {"none", 200, 0}, {"one", 200, 1}, {"between", 200, -1}} {
			if err := c.s.Reached(within(t), at.name); err != nil {
				t.Fatal(err)
			}
			r := c.s.Requests()[0]
			if r.Status != at.status || at.events >= 0 && r.Events != at.events || r.Done {
				t.Errorf("at %s: %+v", at.name, r)
			}
			c.s.Release(at.name)
		}
		res := <-got
		if res.err != nil || understand(t, path, res.events).text != "ab" {
			t.Errorf("%+v", res)
		}
	})
}

func TestReleaseOfNothingDoesNothing(t *testing.T) {
	s := StartTest(t, Options{})
	if n := s.Release("x"); n != 0 {
		t.Errorf("released %d", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Reached(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("reached: %v", err)
	}
}

func TestStallEndsWhenTheClientLeaves(t *testing.T) {
	for name, a := range map[string]Answer{
		"before headers": {Stall{}},
		"after headers":  {Headers{}, Stall{For: time.Hour}},
		"after events":   {Text{Text: "abc", Split: 3}, After{2, Stall{}}},
		"at a hold":      {Text{Text: "a"}, Hold{"x"}},
		"in a delay":     {Text{Text: "ab", Split: 2, Delay: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, path string) {
				c := start(t, Options{Script: Script{a, {Text{Text: "next"}}}})
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					resp, err := c.do(ctx, path, ask(path, "x"))
					if err == nil {
						_, err = io.ReadAll(resp.Body)
						resp.Body.Close()
					}
					ended <- err
				}()
				if err := c.s.WaitRequests(within(t), 1); err != nil {
					t.Fatal(err)
				}
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("client got %v", err)
				}
				if err := c.s.WaitIdle(within(t)); err != nil {
					t.Fatal(err)
				}
				if r := c.s.Requests()[0]; !r.Left || !r.Done {
					t.Errorf("recorded %+v", r)
				}
				if got := understand(t, path, c.whole(path, ask(path, "x"))); got.text != "next" {
					t.Errorf("the next request got %+v", got)
				}
			})
		})
	}
}

func TestStallHasALength(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		const pause = 30 * time.Millisecond
		c := start(t, Options{Script: Script{{Stall{For: pause}, Text{Text: "a"}, After{1, Stall{For: pause}}}}})
		began := time.Now()
		if got := understand(t, path, c.whole(path, ask(path, "x"))); got.text != "a" || !got.done {
			t.Errorf("%+v", got)
		}
		if d := time.Since(began); d < 2*pause {
			t.Errorf("took %v", d)
		}
	})
}

func TestHTTPErrors(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{
			{HTTP{Status: 429, Header: map[string]string{"Retry-After": "{date+3s}", "X-Empty": ""}}},
			{HTTP{Status: 503, Body: "<html>down</html>"}},
			{Stall{For: time.Millisecond}, HTTP{Status: 400, Message: "prompt is too long", Code: "context_length_exceeded"}},
			{HTTP{Status: 529}},
		}})
		send := func() (*http.Response, string) {
			resp, err := c.do(within(t), path, ask(path, "x"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp, string(b)
		}
		before := time.Now()
		resp, body := send()
		at, err := http.ParseTime(resp.Header.Get("Retry-After"))
		if d := at.Sub(before); resp.StatusCode != 429 || err != nil || d < time.Second || d > 2*patience {
			t.Errorf("date %v in %v: %v", at, d, err)
		}
		if !strings.Contains(body, `"rate_limit_error"`) {
			t.Errorf("body %s", body)
		}
		if resp.Header.Get("Request-Id") == "" || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("no request id: %v", resp.Header)
		}
		if resp, body = send(); body != "<html>down</html>" || resp.StatusCode != 503 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		if resp, body = send(); resp.StatusCode != 400 || !strings.Contains(body, "prompt is too long") || !strings.Contains(body, `"context_length_exceeded"`) || !strings.Contains(body, `"invalid_request_error"`) {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		want := map[string]string{chatPath: "server_error", anthropicPath: "overloaded_error"}[path]
		if resp, body = send(); resp.StatusCode != 529 || !strings.Contains(body, want) {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		if got := c.s.Stats().ByStatus; got[429] != 1 || got[503] != 1 {
			t.Errorf("by status: %v", got)
		}
	})
}

func TestErrorInsideTheStreamEndsIt(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{
			{Text{Text: "half"}, Error{Type: "overloaded_error", Message: "busy"}},
			{Text{Text: "a long way", Split: 5}, After{3, Error{Message: "broken", Code: "boom"}}},
		}})
		got := understand(t, path, c.whole(path, ask(path, "x")))
		if got.text != "half" || got.done || got.stop != "" || str(got.fault["type"]) != "overloaded_error" || str(got.fault["message"]) != "busy" {
			t.Errorf("%+v", got)
		}
		ev := c.whole(path, ask(path, "x"))
		if got := understand(t, path, ev); len(ev) != 4 || str(got.fault["message"]) != "broken" || got.done {
			t.Errorf("%d events, %+v", len(ev), got)
		}
	})
}

func TestCommentsAreNoEvents(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{{Comment{Text: "wait", Times: 3, Delay: time.Millisecond}, Text{Text: "a"}, After{1, Comment{Text: "more"}}}}})
		resp, err := c.do(within(t), path, ask(path, "x"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		r := newReader(resp.Body)
		ev, err := r.all()
		if err != nil || understand(t, path, ev).text != "a" {
			t.Errorf("%v %v", ev, err)
		}
		if want := []string{"wait", "wait", "wait", "more"}; !slices.Equal(r.comments, want) {
			t.Errorf("comments %q", r.comments)
		}
		if n := c.s.Requests()[0].Events; n != len(ev) {
			t.Errorf("%d events recorded, %d read", n, len(ev))
		}
	})
}

func TestGarbage(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: Script{
			{Text{Text: "a"}, Garbage{Bytes: []byte("\x00\xff{{\n")}, Text{Text: "b"}},
			{Garbage{Bytes: []byte("SSH-2.0-x\r\n"), Wire: true}},
		}})
		resp, err := c.do(within(t), path, ask(path, "x"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(b), "\n\x00\xff{{\n") {
			t.Errorf("%q %v", b, err)
		}
		if resp, err := c.do(within(t), path, ask(path, "x")); err == nil {
			resp.Body.Close()
			t.Errorf("an answer that is no HTTP was taken: %d", resp.StatusCode)
		}
	})
}

func TestFraming(t *testing.T) {
	for _, newline := range []string{"\n", "\r\n", "\r"} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{Script: Script{{Text{Text: "größe ✓", Split: 3}, Framing{Newline: newline, Chop: 1}}}})
			resp, err := c.do(within(t), path, ask(path, "x"))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			ev, err := newReader(strings.NewReader(string(b))).all()
			if err != nil || understand(t, path, ev).text != "größe ✓" {
				t.Errorf("%v %v", ev, err)
			}
			if n := strings.Count(string(b), newline+newline); n != len(ev) {
				t.Errorf("%d events end with %q, of %d", n, newline, len(ev))
			}
			if newline != "\n" && strings.Count(string(b), "\n") != strings.Count(newline, "\n")*strings.Count(string(b), "\r") {
				t.Errorf("other line ends than %q", newline)
			}
		})
	}
}

func TestDelayPacesTheDeltas(t *testing.T) {
	const delay = 10 * time.Millisecond
	c := start(t, Options{Script: Script{{Text{Text: "abcde", Split: 5, Delay: delay}}}})
	began := time.Now()
	c.whole(chatPath, ask(chatPath, "x"))
	if d := time.Since(began); d < 4*delay {
		t.Errorf("five deltas took %v", d)
	}
}

func TestAnswersWithoutAStream(t *testing.T) {
	script := Script{
		{Reasoning{Text: "hm", Signature: "s"}, Text{Text: "look", Split: 2}, Call{ID: "a", Name: "bash", Args: `{"x":`}, Args{Args: `1}`}, Usage{Input: 9}},
		{End{Reason: "length"}},
		{Text{Text: "x"}, After{3, Cut{}}},
		{Error{Message: "inside"}},
		{HTTP{Status: 500}},
	}
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{Script: script})
		body := strings.Replace(ask(path, "x"), `"stream":true`, `"stream":false`, 1)
		post := func() object {
			status, b := c.post(path, body)
			if status != 200 {
				t.Fatalf("%d %s", status, b)
			}
			return event{data: b}.json(t)
		}
		o := post()
		if path == chatPath {
			m := obj(obj(list(o["choices"])[0])["message"])
			f := obj(obj(list(m["tool_calls"])[0])["function"])
			if m["content"] != "look" || m["reasoning_content"] != "hm" || f["arguments"] != `{"x":1}` ||
				obj(list(o["choices"])[0])["finish_reason"] != "tool_calls" || obj(o["usage"])["prompt_tokens"] != 9.0 {
				t.Errorf("%v", o)
			}
		} else {
			want := `[{"signature":"s","thinking":"hm","type":"thinking"},{"text":"look","type":"text"},{"id":"a","input":{"x":1},"name":"bash","type":"tool_use"}]`
			if text(o["content"]) != want || o["stop_reason"] != "tool_use" || obj(o["usage"])["input_tokens"] != 9.0 {
				t.Errorf("%v", text(o))
			}
		}
		if o := text(post()); !strings.Contains(o, `"length"`) && !strings.Contains(o, `"max_tokens"`) {
			t.Errorf("%s", o)
		}
		resp, err := c.do(within(t), path, body)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !errors.Is(err, io.ErrUnexpectedEOF) || len(b) == 0 {
			t.Errorf("cut in mid-body: %q %v", b, err)
		}
		if o := post(); str(obj(o["error"])["message"]) != "inside" {
			t.Errorf("%v", o)
		}
		if status, b := c.post(path, body); status != 500 {
			t.Errorf("%d %s", status, b)
		}
	})
}

func TestInvalidArgumentsAreSentAsTheyAre(t *testing.T) {
	for _, args := range []string{"", `{"path":"a"`, "null", `["a"]`, `"{\"path\":\"a\"}"`, strings.Repeat("x", 200_000), `{"a":"<&>"}`} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{Script: Script{{Call{Name: "write", Args: args, Split: 3}}}})
			got := understand(t, path, c.whole(path, ask(path, "x")))
			if len(got.calls) != 1 || got.calls[0].Args != args || got.calls[0].ID == "" {
				t.Errorf("%.40q came as %.40v", args, got.calls)
			}
		})
	}
}

func TestManyClientsGetEveryAnswerOnce(t *testing.T) {
	const n = 50
	var script Script
	for i := range n {
		script = append(script, Answer{Text{Text: fmt.Sprint(i)}})
	}
	c := start(t, Options{Script: script})
	got := make(chan string, n)
	for range n {
		go func() {
			ev, err := c.events(chatPath, ask(chatPath, "x"))
			if err != nil {
				got <- err.Error()
				return
			}
			got <- understand(t, chatPath, ev).text
		}()
	}
	seen := map[string]int{}
	for range n {
		seen[<-got]++
	}
	for i := range n {
		if seen[fmt.Sprint(i)] != 1 {
			t.Errorf("answer %d came %d times", i, seen[fmt.Sprint(i)])
		}
	}
	if left := c.s.Remaining(DefaultScript); left != 0 {
		t.Errorf("%d answers remain", left)
	}
}
