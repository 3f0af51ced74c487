package chat

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"codework/messages"
	"codework/providers/internal/dialecttest"
)

// canned answers every request with the same bytes, without a network.
type canned struct{ kind, body string }

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {c.kind}}, Body: io.NopCloser(strings.NewReader(c.body)), Request: r}, nil
}

// The rule: whatever a server sends, the promises of a dialect hold, and only
// a stream with a finish reason is a success.
func FuzzStream(f *testing.F) {
	f.Add(true, dialecttest.Data(frame(`{"content":"<think>a</think>b","reasoning":"c"}`), finish("stop"), "[DONE]"))
	f.Add(true, dialecttest.Data(frame(`{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{"}},{"index":0,"function":{"arguments":"}"}}]}`), finish("tool_calls")))
	f.Add(true, dialecttest.Data(frame(`{"reasoning_details":[{"type":"reasoning.text","text":"x","index":0}],"content":[{"type":"text","text":"a"}]}`), finish("length"), oneLine(counted)))
	f.Add(true, dialecttest.Data(`{"error":{"message":"x","code":502}}`))
	f.Add(false, `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`)
	f.Fuzz(func(t *testing.T, stream bool, body string) {
		kind := "application/json"
		if stream {
			kind = "text/event-stream"
		}
		o := dialecttest.RunContext(context.Background(), t, Dialect{}, &http.Client{Transport: canned{kind, body}}, request("http://provider.example"))
		if stream && o.End().Kind == messages.StreamDone && !strings.Contains(strings.ToLower(body), "finish_reason") && !strings.Contains(body, `\u`) {
			t.Fatalf("success of %q", body)
		}
	})
}

// The rule: however the text is cut, the same thinking and the same text come
// out, and nothing of it is lost but tags and the white space around them.
func FuzzThink(f *testing.F) {
	f.Add("<think>a</think>b", 3)
	f.Add(" \n<think>a</thi</think>\n\nb</think>", 1)
	f.Add("<thin", 2)
	f.Fuzz(func(t *testing.T, text string, at int) {
		run := func(pieces ...string) (thinking, answer string) {
			s := thinkSplitter{on: true}
			think, say := func(d string) { thinking += d }, func(d string) { answer += d }
			for _, p := range pieces {
				s.split(p, think, say)
			}
			s.flush(think, say)
			return thinking, answer
		}
		wantThinking, wantAnswer := run(text)
		cut := min(max(at, 0), len(text))
		pieces := []string{text[:cut]}
		for _, b := range []byte(text[cut:]) {
			pieces = append(pieces, string([]byte{b}))
		}
		gotThinking, gotAnswer := run(pieces...)
		// What was white space byte by byte may be half of a longer one.
		if strings.ToValidUTF8(text, "") == text && !strings.ContainsFunc(text, func(r rune) bool { return r > 0x7f }) &&
			(gotThinking != wantThinking || gotAnswer != wantAnswer) {
			t.Fatalf("%q: %q %q, in pieces %q %q", text, wantThinking, wantAnswer, gotThinking, gotAnswer)
		}
		if !strings.HasPrefix(strings.TrimSpace(text), thinkOpen) && wantAnswer != text {
			t.Fatalf("%q became %q %q", text, wantThinking, wantAnswer)
		}
	})
}

const oneDelta = `{"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"served","system_fingerprint":"fp","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}`

var quickDeltas = []string{
	oneDelta,
	`{"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":"ü \n"}}],"usage":null}`,
	`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"type":"function","function":{"arguments":"{\"a"}}]}}]}`,
}

// The rule: what is read the quick way is what the decoder makes of it.
func FuzzDelta(f *testing.F) {
	for _, data := range quickDeltas {
		f.Add(data)
	}
	f.Add(`{"choices":[{"Delta":{"content":"x"},"delta":{"content":"\ud800\x"}}]}`)
	f.Add("{ \"choices\" : [ { \"delta\" : { \"reasoning\" : \"\xff\" } } ] } ")
	f.Fuzz(func(t *testing.T, data string) {
		var quick, slow chunk
		if !quick.quick([]byte(data), &chunk{ID: "c1"}) {
			return
		}
		if err := json.Unmarshal([]byte(data), &slow); err != nil || !reflect.DeepEqual(quick, slow) {
			t.Fatalf("%q: quick %+v, decoder %+v %v", data, quick, slow, err)
		}
	})
}

func TestDeltasAreReadTheQuickWay(t *testing.T) {
	for _, data := range quickDeltas {
		if !new(chunk).quick([]byte(data), &chunk{}) {
			t.Errorf("%s", data)
		}
	}
}

// What one delta costs, from the bytes to the event.
func BenchmarkDelta(b *testing.B) {
	const deltas = 1000
	body := dialecttest.Data(frame(`{"role":"assistant","content":""}`)) +
		strings.Repeat(dialecttest.Data(oneDelta), deltas) +
		dialecttest.Data(finish("stop"), "[DONE]")
	client := &http.Client{Transport: canned{"text/event-stream", body}}
	req := request("http://provider.example")
	b.ReportAllocs()
	for b.Loop() {
		Dialect{}.Stream(context.Background(), client, req, func(messages.StreamEvent) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deltas, "ns/delta")
}
