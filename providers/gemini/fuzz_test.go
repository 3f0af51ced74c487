package gemini

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
// a stream with a finishReason is a success.
func FuzzStream(f *testing.F) {
	f.Add(dialecttest.Data(frame(thoughtPart), frame(textPart), frame(signedCall, otherCall), last("STOP", loneSig)))
	f.Add(dialecttest.Data(frame(loneSig), frame(`{"text":"a","thoughtSignature":"QQ=="}`), last("MAX_TOKENS", `{"text":"b","thoughtSignature":"Qg=="}`)))
	f.Add(dialecttest.Data(`{"promptFeedback":{"blockReason":"SAFETY"}}`))
	f.Add(dialecttest.Data(`{"error":{"code":429,"details":[{"retryDelay":"3s"}]}}`))
	f.Fuzz(func(t *testing.T, body string) {
		o := dialecttest.RunContext(context.Background(), t, Dialect{}, &http.Client{Transport: canned(body)}, request("http://provider.example"))
		lower := strings.ToLower(body) // keys are told apart by nothing but their letters
		if o.End().Kind == messages.StreamDone && !strings.Contains(lower, "finishreason") && !strings.Contains(body, `\u`) && !strings.Contains(body, "ſ") {
			t.Fatalf("success of %q", body)
		}
	})
}

// The rule: whatever schema a tool has, what becomes of it is accepted, and is
// the same each time.
func FuzzParameters(f *testing.F) {
	for _, c := range schemas {
		f.Add(c.in)
	}
	f.Add(`{"$ref":"#"}`)
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`)
	f.Add(`{"allOf":[{"$ref":"#"},{"$ref":"#"}]}`)
	f.Fuzz(func(t *testing.T, in string) {
		got := parameters([]byte(in))
		if got == nil {
			return
		}
		if again := parameters([]byte(in)); string(again) != string(got) {
			t.Fatalf("%s\nand then %s", got, again)
		}
		var v map[string]any
		if err := json.Unmarshal(got, &v); err != nil {
			t.Fatal(err)
		}
		if v["type"] != "object" {
			t.Fatalf("type of %s", got)
		}
		accepted(t, v)
	})
}

const delta = `{"candidates":[{"content":{"parts":[{"text":" word"}],"role":"model"},"index":0}],` +
	`"usageMetadata":{"promptTokenCount":110,"totalTokenCount":110,"promptTokensDetails":[{"modality":"TEXT","tokenCount":110}]},"modelVersion":"gemini-2.5-flash","responseId":"AbCdEfGhIjKlMnOp"}`

// The rule: what is read the quick way is what the decoder makes of it, also
// with what a chunk before has left.
func FuzzDelta(f *testing.F) {
	f.Add(delta)
	f.Add(frame(thoughtPart))
	f.Add(`{"candidates":[{"content":{"parts":[{"text":"\ud800","thought":false,"thoughtSignature":"QQ=="}]}}],"createTime":{}}`)
	f.Add(`{"candidates":[{"content":{"parts":[{"Text":"x"}]},"index":1}]}`)
	f.Add("{ \"candidates\" : [ { \"content\" : { \"parts\" : [ { \"text\" : \"\xff\" } ] } } ] } ")
	f.Fuzz(func(t *testing.T, data string) {
		var quick, slow chunk
		for _, before := range []string{"{}", delta} {
			json.Unmarshal([]byte(before), &quick)
			quick.reset()
			if !quick.quick([]byte(data)) {
				return
			}
			slow = chunk{}
			if err := json.Unmarshal([]byte(data), &slow); err != nil {
				t.Fatalf("%q: %v", data, err)
			}
			if q, s := shown(t, quick), shown(t, slow); q != s {
				t.Fatalf("%q: quick %s, decoder %s", data, q, s)
			}
		}
	})
}

// shown is a chunk in a form that tells no empty list from none.
func shown(t *testing.T, c chunk) string {
	t.Helper()
	return fmt.Sprintf("%+v %+v %+v %s %s %s", c.Candidates, c.Feedback, c.Usage, c.Model, c.ID, c.Error)
}

func TestDeltasAreReadTheQuickWay(t *testing.T) {
	for _, data := range []string{delta, frame(textPart), frame(thoughtPart)} {
		if !new(chunk).quick([]byte(data)) {
			t.Errorf("%s", data)
		}
	}
}

// What one delta costs, from the bytes to the event.
func BenchmarkDelta(b *testing.B) {
	const deltas = 1000
	body := strings.Repeat(dialecttest.Data(delta), deltas) + dialecttest.Data(`{"candidates":[{"finishReason":"STOP"}]}`)
	client := &http.Client{Transport: canned(body)}
	req := request("http://provider.example")
	b.ReportAllocs()
	for b.Loop() {
		Dialect{}.Stream(context.Background(), client, req, func(messages.StreamEvent) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deltas, "ns/delta")
}
