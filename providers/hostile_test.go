package providers_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"codework/messages"
	"codework/providers"
	"codework/providers/anthropic"
	"codework/providers/chat"
	"codework/providers/gemini"
	"codework/providers/internal/dialecttest"
	"codework/providers/responses"
)

// patience is how long an answer may take, on a slow machine.
const patience = time.Minute

// canned is a transport that gives every request the same answer.
type canned struct {
	header http.Header
	status int
	body   io.Reader
}

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	h := http.Header{"Content-Type": {"text/event-stream"}}
	for name, v := range c.header {
		h[name] = v
	}
	return &http.Response{StatusCode: max(c.status, http.StatusOK), Header: h, Body: io.NopCloser(c.body), Request: r}, nil
}

// tongue writes the stream of one dialect.
type tongue struct {
	protocol messages.Protocol
	dialect  providers.Dialect
	begin    string
	text     func(s string) string
	call     func(i int, id, args string) string // with a whole JSON value as arguments
	used     func(n string) string               // the end, with n for each count
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func data(format string, a ...any) string { return "data: " + fmt.Sprintf(format, a...) + "\n\n" }

var tongues = []tongue{
	{messages.ProtocolCompatible, chat.Dialect{}, "",
		func(s string) string { return data(`{"choices":[{"delta":{"content":%s}}]}`, quote(s)) },
		func(i int, id, args string) string {
			return data(`{"choices":[{"delta":{"tool_calls":[{"index":%d,"id":%s,"function":{"name":"bash","arguments":%s}}]}}]}`, i, quote(id), quote(args))
		},
		func(n string) string {
			return data(`{"choices":[{"delta":{},"finish_reason":"stop"}]}`) +
				data(`{"choices":[],"usage":{"prompt_tokens":%[1]s,"completion_tokens":%[1]s,"prompt_tokens_details":{"cached_tokens":%[1]s}}}`, n) + data("[DONE]")
		}},
	{messages.ProtocolOpenAI, responses.Dialect{}, data(`{"type":"response.created","response":{"id":"r"}}`),
		func(s string) string {
			return data(`{"type":"response.output_text.delta","output_index":0,"delta":%s}`, quote(s))
		},
		func(i int, id, args string) string {
			return data(`{"type":"response.output_item.done","output_index":%d,"item":{"type":"function_call","id":"fc_%[1]d","call_id":%s,"name":"bash","arguments":%s}}`,
				i+1, quote(id), quote(args))
		},
		func(n string) string {
			return data(`{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":%[1]s,"output_tokens":%[1]s,"input_tokens_details":{"cached_tokens":%[1]s}}}}`, n)
		}},
	{messages.ProtocolAnthropic, anthropic.Dialect{},
		data(`{"type":"message_start","message":{"id":"m"}}`) + data(`{"type":"content_block_start","index":0,"content_block":{"type":"text"}}`),
		func(s string) string {
			return data(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%s}}`, quote(s))
		},
		func(i int, id, args string) string {
			return data(`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":%s,"name":"bash","input":{}}}`, i+1, quote(id)) +
				data(`{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%s}}`, i+1, quote(args)) +
				data(`{"type":"content_block_stop","index":%d}`, i+1)
		},
		func(n string) string {
			return data(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":%[1]s,"output_tokens":%[1]s,"cache_read_input_tokens":%[1]s}}`, n) +
				data(`{"type":"message_stop"}`)
		}},
	{messages.ProtocolGoogle, gemini.Dialect{}, "",
		func(s string) string { return data(`{"candidates":[{"content":{"parts":[{"text":%s}]}}]}`, quote(s)) },
		func(_ int, id, args string) string {
			return data(`{"candidates":[{"content":{"parts":[{"functionCall":{"id":%s,"name":"bash","args":%s}}]}}]}`, quote(id), args)
		},
		func(n string) string {
			return data(`{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":%[1]s,"candidatesTokenCount":%[1]s,"thoughtsTokenCount":%[1]s}}`, n)
		}},
}

func (w tongue) end() string { return w.used("1") }

// calls are n whole calls, with an id for each.
func (w tongue) calls(n int, id func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(w.call(i, id(i), "{}"))
	}
	return b.String()
}

// answer streams one answer; the promises of a dialect are checked with it.
func (w tongue) answer(t *testing.T, c canned) dialecttest.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req := request("http://provider.example")
	req.Model.Protocol = w.protocol
	return dialecttest.RunContext(ctx, t, w.dialect, &http.Client{Transport: c}, req)
}

// each runs a test for every dialect.
func each(t *testing.T, test func(t *testing.T, w tongue)) {
	for _, w := range tongues {
		t.Run(string(w.protocol), func(t *testing.T) { test(t, w) })
	}
}

// numbered gives ids that are all different.
func numbered(i int) string { return fmt.Sprint("c", i) }

// Whatever a server sends, the answer has an end, and what it costs stays
// within a few times of what was sent.
func TestNoStreamTakesTheProcessWithIt(t *testing.T) {
	again := strings.Repeat
	const maxMemory = 200 << 20 // all that is allocated for an answer, not at once
	cases := []struct {
		name string
		body func(w tongue) string
		ends string // a failure's type, empty for a finished answer
	}{
		{"more calls than an answer may have", func(w tongue) string { return w.calls(10_001, numbered) }, messages.FailInvalidResponse},
		{"calls of one id", func(w tongue) string { return w.calls(300, func(int) string { return "c" }) }, ""},
		{"indexes in no order", func(w tongue) string {
			return w.call(7, "a", "{}") + w.call(2, "b", "{}") + w.call(1<<30, "c", "{}") + w.call(-5, "d", "{}")
		}, ""},
		{"arguments deep as a well", func(w tongue) string { return w.call(0, "a", again(`{"a":`, 5000)+"1"+again("}", 5000)) }, ""},
		{"a frame deep as a well", func(w tongue) string { return data("%s", again(`{"a":`, 20_000)+"1"+again("}", 20_000)) }, messages.FailInvalidResponse},
		{"millions of empty choices", func(w tongue) string { return data(`{"choices":[%s{}]}`, again("{},", 1<<20)) }, messages.FailInvalidResponse},
		{"millions of empty parts", func(w tongue) string {
			return data(`{"candidates":[{"content":{"parts":[%s0]}}]}`, again("0,", 3<<20))
		}, messages.FailInvalidResponse},
		{"a huge delta", func(w tongue) string { return w.text(again("x", 2<<20+1)) }, messages.FailInvalidResponse},
		{"deltas of nothing", func(w tongue) string { return again(w.text(""), 2000) }, ""},
		{"events of nothing", func(w tongue) string { return again("data:\n\ndata: \n\n", 2000) }, ""},
		{"comments of nothing", func(w tongue) string { return again(": still here\n\n", 50_000) }, ""},
		{"bytes that are not UTF-8", func(w tongue) string {
			return strings.ReplaceAll(w.text("<>"), `\u003c\u003e`, "a\xff\xfe\xed\xa0\x80")
		}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, w tongue) {
				body := w.begin + c.body(w) + w.text("x") + w.end()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				o := w.answer(t, canned{body: strings.NewReader(body)})
				runtime.ReadMemStats(&after)
				if got := after.TotalAlloc - before.TotalAlloc; got > maxMemory {
					t.Errorf("%d MiB were allocated for %d KiB", got>>20, len(body)>>10)
				}
				if c.ends == "" {
					for _, p := range o.Done(t).Parts {
						if !json.Valid([]byte(quote(p.Text))) || strings.ToValidUTF8(p.Text, "") != p.Text {
							t.Errorf("%q", p.Text)
						}
					}
				} else if got := o.Failed(t); got.Type != c.ends || got.Retryable {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// One frame of Chat Completions can hold more calls than an answer may have,
// and fragments that look as if they could begin another call.
func TestCallsOfChatAreReadInOnePass(t *testing.T) {
	w := tongues[0]
	var ids strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&ids, `{"id":"%d"},`, i)
	}
	o := w.answer(t, canned{body: strings.NewReader(data(`{"choices":[{"delta":{"tool_calls":[%s{}]}}]}`, ids.String()) + w.end())})
	if got := o.Failed(t); got.Type != messages.FailInvalidResponse {
		t.Errorf("%+v", got)
	}

	named := func(args string) string {
		return data(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"write","arguments":%s}}]}}]}`, quote(args))
	}
	long := named(`{"a":["`+strings.Repeat("x", 1<<20)) + strings.Repeat(named(`","`), 20_000) + named(`"]}`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last messages.StreamEvent
	client := &http.Client{Transport: canned{body: strings.NewReader(long + named(`{"b":1}`) + w.end())}}
	w.dialect.Stream(ctx, client, request("http://provider.example"), func(e messages.StreamEvent) { last = e })
	if last.Kind != messages.StreamDone {
		t.Fatalf("%+v", last.Failure)
	}
	if done := last.Message; len(done.Parts) != 2 || done.Parts[1].Arguments != `{"b":1}` || !json.Valid([]byte(done.Parts[0].Arguments)) {
		t.Errorf("%d parts", len(done.Parts))
	}
}

func TestCountsThatCannotBeAreMadeSane(t *testing.T) {
	for _, n := range []string{"-1", "0", fmt.Sprint(math.MinInt64), fmt.Sprint(math.MaxInt64), "1e400", "99999999999999999999999", `"12"`, "1.5", "null"} {
		each(t, func(t *testing.T, w tongue) {
			u := w.answer(t, canned{body: strings.NewReader(w.begin + w.text("x") + w.used(n))}).Done(t).Usage
			if u == nil {
				return
			}
			sum := *u
			for range 1000 { // a session adds up
				sum.Input += u.Input
				sum.TotalTokens += u.TotalTokens
			}
			if !u.Valid() || !sum.Valid() {
				t.Errorf("%s: %+v", n, u)
			}
		})
	}
}

// Gateways end every stream as Chat Completions does.
func TestAWordBehindTheEndSpoilsNoAnswer(t *testing.T) {
	each(t, func(t *testing.T, w tongue) {
		w.answer(t, canned{body: strings.NewReader(w.begin + w.text("x") + w.end() + data("[DONE]"))}).Done(t)
	})
}

func TestContentBehindTheEndFailsTheAnswer(t *testing.T) {
	each(t, func(t *testing.T, w tongue) {
		end := strings.TrimSuffix(w.end(), data("[DONE]"))
		o := w.answer(t, canned{body: strings.NewReader(w.begin + w.text("x") + end + w.text("y"))})
		if got := o.Failed(t); got.Type != messages.FailStream || got.Retryable {
			t.Errorf("%+v", got)
		}
	})
}

func zipped(s string) io.Reader {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return &b
}

// An answer is asked for as it is; some proxies compress it all the same.
func TestCompressedAnswersAreRead(t *testing.T) {
	each(t, func(t *testing.T, w tongue) {
		gz := http.Header{"Content-Encoding": {"gzip"}}
		whole := w.begin + w.text("x") + w.end()
		if m := w.answer(t, canned{header: gz, body: zipped(whole)}).Done(t); m.Parts[0].Text != "x" {
			t.Errorf("%+v", m.Parts)
		}
		cut, _ := io.ReadAll(zipped(whole))
		if f := w.answer(t, canned{header: gz, body: bytes.NewReader(cut[:len(cut)/2])}).Failed(t); f.Type != messages.FailTransport || !f.Retryable {
			t.Errorf("cut: %+v", f)
		}
		if f := w.answer(t, canned{header: gz, status: 401, body: zipped(`{"error":{"message":"No such key","type":"x"}}`)}).Failed(t); f.Message != "no such key" {
			t.Errorf("error: %+v", f)
		}
		if f := w.answer(t, canned{header: gz, body: strings.NewReader(whole)}).Failed(t); f.Type != messages.FailInvalidResponse || f.Retryable {
			t.Errorf("not compressed: %+v", f)
		}
		br := http.Header{"Content-Encoding": {"br"}}
		if f := w.answer(t, canned{header: br, body: strings.NewReader("\x0b\x02\x80")}).Failed(t); f.Type != messages.FailInvalidResponse ||
			!strings.Contains(f.Message, "br") || f.Hint == "" {
			t.Errorf("brotli: %+v", f)
		}
	})
	// A few KiB that become a line of many MiB.
	if f := tongues[0].answer(t, canned{header: http.Header{"Content-Encoding": {"gzip"}}, body: zipped("data: " + strings.Repeat("x", 20<<20))}).Failed(t); f.Type != messages.FailInvalidResponse {
		t.Errorf("bomb: %+v", f)
	}
}
