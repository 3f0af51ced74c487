package providers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"codework/messages"
)

// spoken is History with an encoding that a person can read.
func spoken(req *messages.Request, t Target) string {
	var out []string
	for _, turn := range History(req, t, func(m messages.Message) string {
		var parts []string
		for _, p := range m.Parts {
			switch p.Type {
			case messages.PartToolCall:
				var texts []string
				for _, c := range p.Result.Content {
					texts = append(texts, c.Text+c.MediaType)
				}
				failed := ""
				if p.Result.IsError {
					failed = "!"
				}
				parts = append(parts, fmt.Sprintf("%s(%s)=%s%s", p.Name, p.CallID, failed, strings.Join(texts, "+")))
			case messages.PartImage:
				parts = append(parts, p.MediaType)
			default:
				parts = append(parts, fmt.Sprintf("%s:%s/%s", p.Type[:2], p.Text, p.Signature))
			}
		}
		return strings.Join(parts, " ")
	}) {
		out = append(out, string(turn.Role[:1])+"{"+turn.Body+"}")
	}
	return strings.Join(out, " ")
}

func TestWhatOfAConversationIsSent(t *testing.T) {
	text := func(s string) messages.Part { return messages.Part{Type: messages.PartText, Text: s} }
	thought := func(s, sig string) messages.Part {
		return messages.Part{Type: messages.PartThinking, Text: s, Signature: sig}
	}
	user := func(parts ...messages.Part) messages.Message {
		return messages.Message{Role: messages.RoleUser, Parts: parts}
	}
	mine := func(parts ...messages.Part) messages.Message {
		return messages.Message{Role: messages.RoleAssistant, State: messages.EntryCommitted, Provider: "p", Protocol: "openai-compatible", Model: "m", Parts: parts}
	}
	with := func(m messages.Message, change func(*messages.Message)) messages.Message { change(&m); return m }
	foreign := func(m messages.Message) messages.Message {
		return with(m, func(m *messages.Message) { m.Model = "other" })
	}
	aborted := func(f *messages.Failure, parts ...messages.Part) messages.Message {
		return with(mine(parts...), func(m *messages.Message) { m.State, m.Failure = messages.EntryAborted, f })
	}
	call := func(id, name string, state messages.CallState, r *messages.ToolResult) messages.Part {
		return messages.Part{Type: messages.PartToolCall, CallID: id, Name: name, Call: state, Result: r, Signature: "sig", ItemID: "item"}
	}
	said := func(s string, isError bool) *messages.ToolResult { r := messages.TextResult(s, isError); return &r }
	png := messages.Part{Type: messages.PartImage, MediaType: "image/jpeg", Data: []byte("\x89PNG\r\n\x1a\n")}
	images := []string{"text", "image"}
	for _, c := range []struct {
		name   string
		input  []string
		target Target
		stored []messages.Message
		want   string
	}{
		{"blank text", nil, Target{}, []messages.Message{user(text("a"), text(" \n"), text("")), mine(text("\t"), text("b")), user(text("c"))}, "u{te:a/} a{te:b/} u{te:c/}"},
		{"a blank message", nil, Target{}, []messages.Message{user(text("a")), user(text(" ")), mine(text("")), user(text("c"))}, "u{te:a/} u{te:c/}"},
		{"two users in a row", nil, Target{}, []messages.Message{user(text("a")), user(text("b"))}, "u{te:a/} u{te:b/}"},
		{"two answers in a row", nil, Target{}, []messages.Message{user(text("a")), mine(text("b")), mine(text("c")), user(text("d"))}, "u{te:a/} a{te:b/} u{te:Continue./} a{te:c/} u{te:d/}"},
		{"an answer first and last", nil, Target{}, []messages.Message{mine(text("b"))}, "u{te:Continue./} a{te:b/} u{te:Continue./}"},
		{"nothing", nil, Target{}, nil, "u{te:Continue./}"},
		{"calls last", nil, Target{}, []messages.Message{user(text("a")), mine(call("c", "f", messages.CallCompleted, said("x", false)))}, "u{te:a/} a{f(c)=x}"},
		{"thinking of this model", nil, Target{}, []messages.Message{user(text("a")), mine(thought("t", "sig"), thought("u", ""), text("b")), user(text("c"))}, "u{te:a/} a{th:t/sig te:b/} u{te:c/}"},
		{"unsigned thinking where it may go", nil, Target{KeepUnsigned: true}, []messages.Message{user(text("a")), mine(thought("u", ""), text("b")), user(text("c"))}, "u{te:a/} a{th:u/ te:b/} u{te:c/}"},
		{"thinking of another model", nil, Target{KeepUnsigned: true}, []messages.Message{user(text("a")), foreign(mine(thought("t", "sig"), thought(" ", "sig"), messages.Part{Type: messages.PartThinking, Redacted: true, Signature: "x"}, text("b"))), user(text("c"))}, "u{te:a/} a{te:t/ te:b/} u{te:c/}"},
		{"thinking alone", nil, Target{}, []messages.Message{user(text("a")), mine(thought("t", "sig")), user(text("c"))}, "u{te:a/} u{te:c/}"},
		{"thinking last", nil, Target{}, []messages.Message{user(text("a")), mine(text("b"), thought("t", "sig")), user(text("c"))}, "u{te:a/} a{te:b/} u{te:c/}"},
		{"thinking last where it may be", nil, Target{ThinkingAnywhere: true}, []messages.Message{user(text("a")), mine(text("b"), thought("t", "sig")), user(text("c"))}, "u{te:a/} a{te:b/ th:t/sig} u{te:c/}"},
		{"a stopped answer", nil, Target{}, []messages.Message{user(text("a")), aborted(nil, thought("t", "sig"), text("half"), call("c", "f", messages.CallAborted, said("x", true))), user(text("c"))}, "u{te:a/} a{te:half/} u{te:c/}"},
		{"a stopped answer without text", nil, Target{}, []messages.Message{user(text("a")), aborted(nil, thought("t", "sig")), user(text("c"))}, "u{te:a/} u{te:c/}"},
		{"an answer that its caller stopped", nil, Target{}, []messages.Message{user(text("a")), aborted(&messages.Failure{Type: messages.FailProviderUnknown, Code: CodeAborted}, text("half")), user(text("c"))}, "u{te:a/} a{te:half/} u{te:c/}"},
		{"a failed answer", nil, Target{}, []messages.Message{user(text("a")), aborted(&messages.Failure{Type: messages.FailTransport}, text("half")), user(text("c"))}, "u{te:a/} u{te:c/}"},
		{"every state of a call", nil, Target{}, []messages.Message{user(text("a")), mine(
			call("1", "f", messages.CallCompleted, said("ok", false)), call("2", "f", messages.CallError, said("bad", true)), call("3", "f", messages.CallSkipped, said("not run", false)),
			call("4", "f", messages.CallAborted, nil), call("5", "f", messages.CallRunning, nil), call("6", "f", messages.CallPending, nil), call("7", "f", messages.CallCompleted, said(" ", false)),
			call("8", "f", messages.CallError, said("", true)))},
			"u{te:a/} a{f(1)=ok f(2)=!bad f(3)=!not run f(4)=!no result f(5)=!no result f(6)=!no result f(7)=(no output) f(8)=!(failed without a message)}"},
		{"ids and names", nil, Target{}, []messages.Message{user(text("a")), mine(call("a|b", "x.y", messages.CallCompleted, said("1", false)), call("", "", messages.CallCompleted, said("2", false)))},
			"u{te:a/} a{x_y(" + SafeCallID("a|b") + ")=1 unknown(" + SafeCallID("") + ")=2}"},
		{"images", images, Target{}, []messages.Message{user(png, messages.Part{Type: messages.PartImage, Data: []byte("II*")}, messages.Part{Type: messages.PartImage, Blob: "x"})},
			"u{image/png te:" + imageKindText + "/ te:" + imageLostText + "/}"},
		{"an image that is too large", images, Target{MaxImageBytes: 4}, []messages.Message{user(png)}, "u{te:" + imageSizeText + "/}"},
		{"images for a model of text", nil, Target{}, []messages.Message{user(png)}, "u{te:" + imageDeniedText + "/}"},
		{"an image in a result", images, Target{}, []messages.Message{user(text("a")), mine(call("1", "f", messages.CallCompleted, &messages.ToolResult{Content: []messages.Part{text("x"), png}}),
			call("2", "f", messages.CallError, &messages.ToolResult{Content: []messages.Part{png}, IsError: true}))}, "u{te:a/} a{f(1)=x+image/png f(2)=!" + imageErrorText + "}"},
		{"bad bytes", nil, Target{}, []messages.Message{user(text("a\xff"))}, "u{te:a\uFFFD/}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := testRequest("")
			req.Model.Input = c.input
			req.Messages = c.stored
			if got := spoken(req, c.target); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// Servers that number the calls of each answer from 0 give every id many times.
func TestAnIDThatWasGivenTwiceIsMadeTwo(t *testing.T) {
	req := testRequest("")
	r := messages.TextResult("x", false)
	for i := range 3 {
		req.Messages = append(req.Messages, messages.Message{ID: fmt.Sprint(i), Role: messages.RoleAssistant, Parts: []messages.Part{
			{Type: messages.PartToolCall, CallID: "call_0", Name: "f", Call: messages.CallCompleted, Result: &r}}})
	}
	req.Cache = &messages.EncodeCache{}
	first := spoken(req, Target{})
	if strings.Count(first, "(call_0)") != 1 {
		t.Errorf("%s", first)
	}
	if again := spoken(req, Target{}); again != first {
		t.Errorf("first %s\nthen %s", first, again)
	}
	req.Cache = nil
	if fresh := spoken(req, Target{}); fresh != first {
		t.Errorf("first %s\nwithout a cache %s", first, fresh)
	}
}

func TestAMessageIsEncodedOnceWhenItIsFinal(t *testing.T) {
	req := testRequest("")
	done := messages.TextResult("x", false)
	open := messages.Part{Type: messages.PartToolCall, CallID: "c", Name: "f", Call: messages.CallRunning}
	closed := open
	closed.Call, closed.Result = messages.CallCompleted, &done
	req.Messages = []messages.Message{
		{ID: "1", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "a"}}},
		{ID: "2", Role: messages.RoleAssistant, Parts: []messages.Part{closed}},
		{ID: "3", Role: messages.RoleAssistant, Parts: []messages.Part{open}},
	}
	req.Cache = &messages.EncodeCache{}
	times := map[string]int{}
	run := func(key string) {
		History(req, Target{Key: key}, func(m messages.Message) int { times[m.ID]++; return 0 })
	}
	for range 3 {
		run("k")
	}
	if times["1"] != 1 || times["2"] != 1 || times["3"] != 3 {
		t.Errorf("%v", times)
	}
	run("other")
	if times["1"] != 2 {
		t.Errorf("another form used the old one: %v", times)
	}
	req.Model.ID = "other"
	run("other")
	if times["1"] != 3 {
		t.Errorf("another model used the old form: %v", times)
	}
}

func TestToolsAreEncodedOnce(t *testing.T) {
	req := testRequest("")
	req.Cache = &messages.EncodeCache{}
	req.Tools = []messages.ToolDefinition{{Name: "a"}, {Name: "b"}}
	times := 0
	run := func() string {
		return string(Tools(req, Target{}, func(dst []byte, d messages.ToolDefinition) []byte { times++; return append(dst, d.Name...) }))
	}
	for range 3 {
		if got := run(); got != "a,b" {
			t.Errorf("%q", got)
		}
	}
	if times != 2 {
		t.Errorf("encoded %d", times)
	}
	req.Tools = []messages.ToolDefinition{{Name: "c"}, {Name: "d"}}
	if got := run(); got != "c,d" {
		t.Errorf("%q", got)
	}
	req.Tools = nil
	if got := run(); got != "" {
		t.Errorf("%q", got)
	}
}

func TestSchemas(t *testing.T) {
	for in, want := range map[string]string{
		"":                    `{"type":"object","properties":{}}`,
		"null":                `{"type":"object","properties":{}}`,
		"{}":                  `{"type":"object","properties":{}}`,
		"[1]":                 `{"type":"object","properties":{}}`,
		"{bad":                `{"type":"object","properties":{}}`,
		`{ "type": "object"}`: `{"type":"object","properties":{}}`,
		`{"properties":{"a":{}},"required":["a"]}`: `{"properties":{"a":{}},"required":["a"],"type":"object"}`,
	} {
		for _, time := range []string{"first", "again"} { // which is another way
			if got := string(Schema(json.RawMessage(in))); got != want {
				t.Errorf("%s, %s: %s", in, time, got)
			}
		}
	}
}

func TestArguments(t *testing.T) {
	for in, want := range map[string]string{
		"": "{}", `{"a"`: "{}", "null": "{}", `["a"]`: "{}", `"{}"`: "{}", "xxx": "{}", `{"a":1} {"b":2}`: "{}",
		` {"a": 12345678901234567890} `: `{"a": 12345678901234567890}`,
		`{"a":"\ud83d\ude00"}`:          `{"a":"\ud83d\ude00"}`,
		`{"a":"\ud83d"}`:                `{"a":"\ufffd"}`,
		`{"a":"\ude00\ud83d"}`:          `{"a":"\ufffd\ufffd"}`,
		`{"a":"\uD83Dx"}`:               `{"a":"\ufffdx"}`,
		`{"a":"\\ud83d"}`:               `{"a":"\\ud83d"}`,
		"{\"a\":\"\xff\"}":              "{\"a\":\"\uFFFD\"}",
	} {
		if got := SafeArguments(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// The rule: the result is a JSON object in valid UTF-8 that means what the
// input meant to encoding/json, which replaces half surrogate pairs.
func FuzzSafeArguments(f *testing.F) {
	f.Add(`{"a":"\ud800\udc00\ud800 \\\ud800"}`)
	f.Add("{\"\xff\":{}}")
	f.Add("{\"\":\"\xff\xff\"}")
	f.Fuzz(func(t *testing.T, in string) {
		out := SafeArguments(in)
		var got, want map[string]any
		if !utf8.ValidString(out) || json.Unmarshal([]byte(out), &got) != nil {
			t.Fatalf("%q", out)
		}
		if json.Unmarshal([]byte(in), &want) != nil {
			return
		}
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		if want != nil && !bytes.Equal(a, b) {
			t.Fatalf("%s became %s", b, a)
		}
	})
}

// The rule: it reads back as what encoding/json would have made of it.
func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\x00\xff\u2028")
	f.Fuzz(func(t *testing.T, in string) {
		var got, want string
		raw := AppendString(nil, in)
		if err := json.Unmarshal(raw, &got); err != nil || !utf8.Valid(raw) {
			t.Fatalf("%q: %v", raw, err)
		}
		std, _ := json.Marshal(in)
		json.Unmarshal(std, &want)
		if got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

// The rule: the id is of the allowed form, and the same each time.
func FuzzCallID(f *testing.F) {
	f.Add("call|x")
	f.Fuzz(func(t *testing.T, in string) {
		long, short := SafeCallID(in), ShortCallID(in)
		if long == "" || len(long) > maxCallID || strings.IndexFunc(long, unsafeRune) >= 0 || SafeCallID(in) != long || SafeCallID(long) != long {
			t.Fatalf("%q", long)
		}
		if len(short) != 9 || strings.ContainsAny(short, "_-") || strings.IndexFunc(short, unsafeRune) >= 0 || ShortCallID(short) != short {
			t.Fatalf("%q", short)
		}
		if name := SafeToolName(in); name == "" || len(name) > maxToolName || strings.IndexFunc(name, unsafeRune) >= 0 {
			t.Fatalf("%q", name)
		}
	})
}
