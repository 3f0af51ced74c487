package anthropic

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
type canned string

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(string(c))), Request: r}, nil
}

// The rule: whatever a server sends, the promises of a dialect hold, and only
// a stream with message_stop is a success.
func FuzzStream(f *testing.F) {
	f.Add(events(frames([]string{start}, textBlock, callBlock, []string{ended("tool_use"), stop})...))
	f.Add(events(start, opened(0, `{"type":"thinking","thinking":"a","signature":"b"}`), closed(0), opened(3, `{"type":"redacted_thinking","data":"x"}`), ended("refusal"), stop))
	f.Add(events(`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`))
	f.Fuzz(func(t *testing.T, body string) {
		o := dialecttest.RunContext(context.Background(), t, Dialect{}, &http.Client{Transport: canned(body)}, request("http://provider.example"))
		if o.End().Kind == messages.StreamDone && !strings.Contains(body, "message_stop") && !strings.Contains(body, `\u`) {
			t.Fatalf("success of %q", body)
		}
	})
}

// The rule: what is read the quick way is what the decoder makes of it.
func FuzzDelta(f *testing.F) {
	for _, data := range quickDeltas {
		f.Add(data)
	}
	f.Add(`{"type":"content_block_delta","index":0,"Delta":{"type":"text_delta"}}`)
	f.Add("{ \"type\" : \"content_block_delta\" , \"delta\" : { \"text\" : \"\xff\\ud800\" } } ")
	f.Fuzz(func(t *testing.T, data string) {
		var quick, slow event
		if !quick.quick([]byte(data)) {
			return
		}
		if err := json.Unmarshal([]byte(data), &slow); err != nil || !reflect.DeepEqual(quick, slow) {
			t.Fatalf("%q: quick %+v, decoder %+v %v", data, quick, slow, err)
		}
	})
}

var quickDeltas = []string{
	`{"type":"content_block_delta","index":12,"delta":{"type":"text_delta","text":"ü \n"}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"x"}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"a"}}`,
}

func TestDeltasAreReadTheQuickWay(t *testing.T) {
	for _, data := range quickDeltas {
		if !new(event).quick([]byte(data)) {
			t.Errorf("%s", data)
		}
	}
}

// What one delta costs, from the bytes to the event.
func BenchmarkDelta(b *testing.B) {
	const deltas = 1000
	body := events(start, opened(0, `{"type":"text","text":""}`)) +
		strings.Repeat(events(grow(0, `{"type":"text_delta","text":" word"}`)), deltas) +
		events(closed(0), ended("end_turn"), stop)
	client := &http.Client{Transport: canned(body)}
	req := request("http://provider.example")
	b.ReportAllocs()
	for b.Loop() {
		Dialect{}.Stream(context.Background(), client, req, func(messages.StreamEvent) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deltas, "ns/delta")
}
