package mockmodel

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// history is a request after n tool turns that followed the prompt.
func history(path, prompt string, n int) string {
	msgs := []object{{"role": "user", "content": prompt}}
	for i := range n {
		id := "c" + strconv.Itoa(i)
		if path == chatPath {
			msgs = append(msgs,
				object{"role": "assistant", "content": nil, "tool_calls": []object{{"id": id, "type": "function", "function": object{"name": "bash", "arguments": "{}"}}}},
				object{"role": "tool", "tool_call_id": id, "content": "mock=text:99"})
			continue
		}
		msgs = append(msgs,
			object{"role": "assistant", "content": []object{{"type": "tool_use", "id": id, "name": "bash", "input": object{}}}},
			object{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": id, "content": "mock=text:99"}}})
	}
	o := object{"model": "m", "stream": true, "messages": msgs}
	if path == anthropicPath {
		o["max_tokens"] = 100
	}
	return text(o)
}

var stampPattern = regexp.MustCompile(`@(\d+) (\d+/\d+) mock text `)

func TestMarkerText(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{})
		before := time.Now()
		got := understand(t, path, c.whole(path, ask(path, "please mock=text:5:2#a.")))
		after := time.Now()
		stamps := stampPattern.FindAllStringSubmatch(got.text, -1)
		if len(stamps) != 5 {
			t.Fatalf("%q", got.text)
		}
		last := before.UnixMicro()
		for i, m := range stamps {
			if want := fmt.Sprintf("%d/5", i+1); m[2] != want {
				t.Errorf("delta %s, want %s", m[2], want)
			}
			us, err := strconv.ParseInt(m[1], 10, 64)
			if err != nil || us < last || us > after.UnixMicro() {
				t.Errorf("stamp %s is not between %d and %d", m[1], last, after.UnixMicro())
			}
			last = us
		}
		if d := after.Sub(before); d < 8*time.Millisecond {
			t.Errorf("five deltas 2 ms apart took %v", d)
		}
		if r := c.s.Requests()[0]; r.Marker != "text:5:2#a" || r.Answer != -1 || r.Script != "" {
			t.Errorf("%+v", r)
		}
	})
}

func TestMarkerTurnsFollowTheToolResults(t *testing.T) {
	sh := "sh:" + base64.StdEncoding.EncodeToString([]byte(`echo "a" | wc`))
	for _, tt := range []struct {
		marker string
		turns  []string // the arguments of each turn; then comes a text
	}{
		{"tools:2", []string{`{"command":"echo step-1"}`, `{"command":"echo step-2"}`}},
		{"sleep", []string{`{"command":"sleep 60"}`}},
		{"sleep:3", []string{`{"command":"sleep 3"}`}},
		{sh, []string{`{"command":"echo \"a\" | wc"}`}},
		{"ttfb:1,tools:1,text:3", []string{`{"command":"echo step-1"}`}},
	} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{})
			for i, args := range tt.turns {
				got := understand(t, path, c.whole(path, history(path, "mock="+tt.marker, i)))
				if got.text != "" || len(got.calls) != 1 || got.calls[0].Name != "bash" || got.calls[0].Args != args {
					t.Errorf("%s, turn %d: %+v", tt.marker, i, got)
				}
			}
			got := understand(t, path, c.whole(path, history(path, "mock="+tt.marker, len(tt.turns))))
			if len(got.calls) != 0 || !stampPattern.MatchString(got.text) {
				t.Errorf("%s, end: %+v", tt.marker, got)
			}
		})
	}
}

func TestNewestMarkerDecides(t *testing.T) {
	c := start(t, Options{Script: Script{{Text{Text: "default"}}}, Scripts: map[string]Script{"s": {{Text{Text: "named"}}}}})
	for _, tt := range []struct {
		texts []string
		want  string
	}{
		{[]string{"plain"}, "default"},
		{[]string{"script=s", "go on"}, "named"},
		{[]string{"script=s", "mock=text:2"}, "@@"},
		{[]string{"mock=text:9 then mock=text:1"}, "@"},
		{[]string{"unscript=s or hammock=x", "(mock=text:3)"}, "@@@"},
	} {
		var msgs []object
		for _, s := range tt.texts {
			msgs = append(msgs, object{"role": "user", "content": []object{{"type": "text", "text": s}}})
		}
		got := understand(t, chatPath, c.whole(chatPath, text(object{"model": "m", "stream": true, "messages": msgs}))).text
		if strings.HasPrefix(tt.want, "@") {
			got = strings.Repeat("@", strings.Count(got, "@"))
		}
		if got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.texts, got, tt.want)
		}
	}
}

func TestMarkerFaults(t *testing.T) {
	both(t, func(t *testing.T, path string) {
		c := start(t, Options{})
		for i, want := range []int{429, 429, 500, 200} {
			if status, body := c.post(path, ask(path, "mock=429:2,500:1#x")); status != want {
				t.Errorf("request %d: %d %s", i, status, body)
			}
		}
		if status, _ := c.post(path, ask(path, "mock=429:2,500:1#y")); status != 429 {
			t.Errorf("another id has its own count: %d", status)
		}
		ev, err := c.events(path, ask(path, "mock=text:6,drop:1"))
		if !errors.Is(err, io.ErrUnexpectedEOF) || understandCut(t, path, ev) != 3 {
			t.Errorf("drop: %d events, %v", len(ev), err)
		}
		if got := understand(t, path, c.whole(path, ask(path, "mock=text:6,drop:1"))); strings.Count(got.text, "@") != 6 {
			t.Errorf("second time: %+v", got)
		}
		if _, err := c.events(path, ask(path, "mock=tools:1,drop:1")); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("drop of a call: %v", err)
		}
	})
}

// understandCut counts the deltas of a stream that broke.
func understandCut(t *testing.T, path string, ev []event) int {
	return strings.Count(understand(t, path, ev).text, "@")
}

func TestMarkerWaitsBeforeTheFirstByte(t *testing.T) {
	c := start(t, Options{})
	began := time.Now()
	resp, err := c.do(within(t), chatPath, ask(chatPath, "mock=ttfb:30,text:1"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if d := time.Since(began); d < 30*time.Millisecond {
		t.Errorf("headers after %v", d)
	}
}

func TestMarkersThatMeanNothingAreViolations(t *testing.T) {
	for _, m := range []string{"txt:1", "text:x", "text:1:x", "text:-1", "sh", "sh:?", "sh:a", "text:1:2:3"} {
		s := StartTest(t, Options{})
		status, body := dial(t, s).post(chatPath, ask(chatPath, "mock="+m+" "))
		if status != 500 || !strings.Contains(body, "marker mock=") {
			t.Errorf("%s: %d %s", m, status, body)
		}
		if v := s.TakeViolations(); len(v) != 1 || v[0].Rule != RuleScript {
			t.Errorf("%s: %v", m, v)
		}
	}
}

func TestScriptsCountForThemselves(t *testing.T) {
	c := start(t, Options{
		Script:  Script{{Text{Text: "d1"}}, {Text{Text: "d2"}}},
		Scripts: map[string]Script{"a": {{Text{Text: "a1"}}, {Text{Text: "a2"}}}, "b": {{Text{Text: "b1"}}}},
	})
	for _, tt := range []struct{ prompt, want string }{
		{"script=a.", "a1"}, {"x", "d1"}, {"script=b, please", "b1"}, {"script=a", "a2"}, {"y", "d2"},
	} {
		if got := understand(t, chatPath, c.whole(chatPath, ask(chatPath, tt.prompt))).text; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.prompt, got, tt.want)
		}
	}
	if r := c.s.Requests()[3]; r.Script != "a" || r.Answer != 1 {
		t.Errorf("%+v", r)
	}
}

func TestScriptsRunOutLoudly(t *testing.T) {
	for prompt, reason := range map[string]string{
		"x":            "script default has run out: it has 1 answers",
		"script=a":     "script a has run out: it has 0 answers",
		"script=other": "there is no script other",
	} {
		both(t, func(t *testing.T, path string) {
			c := start(t, Options{Script: Script{{Text{Text: "only"}}}, Scripts: map[string]Script{"a": {}}})
			c.whole(path, ask(path, "x"))
			resp, err := c.do(context.Background(), path, ask(path, prompt))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusInternalServerError || !strings.Contains(string(b), reason) || resp.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s: %d %s %v", prompt, resp.StatusCode, b, err)
			}
			v := c.s.TakeViolations()
			if len(v) != 1 || v[0] != (Violation{Request: 2, Rule: RuleScript, Reason: reason}) {
				t.Errorf("%s: %v", prompt, v)
			}
		})
	}
}
