package gemini

import (
	"context"
	"encoding/json"
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

// What one delta costs, from the bytes to the event.
func BenchmarkDelta(b *testing.B) {
	const deltas = 1000
	one := `{"candidates":[{"content":{"parts":[{"text":" word"}],"role":"model"},"index":0}],` +
		`"usageMetadata":{"promptTokenCount":110,"totalTokenCount":110,"promptTokensDetails":[{"modality":"TEXT","tokenCount":110}]},"modelVersion":"gemini-2.5-flash","responseId":"AbCdEfGhIjKlMnOp"}`
	body := strings.Repeat(dialecttest.Data(one), deltas) + dialecttest.Data(`{"candidates":[{"finishReason":"STOP"}]}`)
	client := &http.Client{Transport: canned(body)}
	req := request("http://provider.example")
	b.ReportAllocs()
	for b.Loop() {
		Dialect{}.Stream(context.Background(), client, req, func(messages.StreamEvent) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deltas, "ns/delta")
}
