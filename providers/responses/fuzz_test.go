package responses

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

// The rule: whatever a server sends, the promises of a dialect hold; only a
// stream with a terminal event is a success; and what was received can be sent
// back as valid JSON.
func FuzzStream(f *testing.F) {
	f.Add(true, false, whole)
	f.Add(true, true, whole)
	f.Add(true, false, events(created, ended(0, thoughtItem), said(3, "x"), incomplete("max_output_tokens")))
	f.Add(true, true, events(created, `{"type":"error","error":{"type":"usage_limit_reached","plan_type":"plus","resets_at":"x","resets_in_seconds":1e99}}`))
	f.Add(true, false, events(created, failed("rate_limit_exceeded", "try again in 9999999999999s")))
	f.Add(false, false, `{"id":"r","status":"completed","output":[`+messageItem+`]}`)
	f.Fuzz(func(t *testing.T, stream, codex bool, answer string) {
		kind := "application/json"
		if stream {
			kind = "text/event-stream"
		}
		req := codexRequest("http://provider.example")
		o := dialecttest.RunContext(context.Background(), t, Dialect{Codex: codex}, &http.Client{Transport: canned{kind, answer}}, req)
		if o.End().Kind != messages.StreamDone {
			return
		}
		if stream && !strings.Contains(answer, "response.") && !strings.Contains(answer, `\u`) {
			t.Fatalf("success of %q", answer)
		}
		m := *o.End().Message
		m.State = messages.EntryCommitted
		req.Messages = append(req.Messages, m)
		raw, err := body(req, compatOf(req.Model), codex)
		if err != nil || !json.Valid(raw) {
			t.Fatalf("%v: %s", err, raw)
		}
	})
}

// The rule: where the quick way reads an event at all, it reads the same as the
// decoder.
func FuzzDelta(f *testing.F) {
	f.Add(said(0, "word"))
	f.Add(thinks(3, 12, "ü\n\u2028"))
	f.Add(argued(1, `{"a":"\ud83d\ude00"}`))
	f.Add(`{"type":"response.output_text.delta","Delta":"x","delta":"y","output_index":01,"x":[ ],"n":1.5}`)
	f.Add(`{"type":"response.output_text.delta","delta":"\ud800","delta":null}`)
	f.Add("{ \"type\" : \"response.output_text.delta\" , \"delta\" : \"\xff\" } ")
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

func TestDeltasAreReadTheQuickWay(t *testing.T) {
	for _, data := range []string{said(0, "ü \n"), thinks(3, 12, "x"), argued(1, "{}"),
		`{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"a","logprobs":[],"obfuscation":"x"}`} {
		var e event
		if !e.quick([]byte(data)) {
			t.Errorf("%s", data)
		}
	}
}

// The rule: a schema either has no strict form or one that is valid JSON, and
// closed and complete all the way down.
func FuzzStrictSchema(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"string","enum":["x"]},"b":{"type":"array","items":{"type":"object","properties":{}}}}}`)
	f.Add(`{"type":"object","properties":{"a":{"type":"object","properties":{"\u0041":{"type":"number"}}}},"required":["a"]}`)
	f.Fuzz(func(t *testing.T, schema string) {
		if !json.Valid([]byte(schema)) {
			return
		}
		out := strictSchema(json.RawMessage(schema))
		if out == nil {
			return
		}
		var check func(any)
		check = func(v any) {
			switch v := v.(type) {
			case []any:
				for _, x := range v {
					check(x)
				}
			case map[string]any:
				properties, ok := v["properties"].(map[string]any)
				if v["type"] == "object" && ok {
					if v["additionalProperties"] != false {
						t.Fatalf("open: %s", out)
					}
					required := map[string]bool{}
					for _, name := range v["required"].([]any) {
						required[name.(string)] = true
					}
					for name, p := range properties {
						if !required[name] {
							t.Fatalf("%q is optional: %s", name, out)
						}
						check(p)
					}
				}
				check(v["items"])
				check(v["anyOf"])
			}
		}
		var v any
		if err := json.Unmarshal(out, &v); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		check(v)
	})
}

// What one delta costs, from the bytes to the event.
func BenchmarkDelta(b *testing.B) {
	const deltas = 1000
	answer := events(created, added(0, openMessage)) +
		strings.Repeat(events(said(0, " word")), deltas) +
		events(ended(0, messageItem), completed)
	client := &http.Client{Transport: canned{"text/event-stream", answer}}
	req := request("http://provider.example")
	b.ReportAllocs()
	for b.Loop() {
		Dialect{}.Stream(context.Background(), client, req, func(messages.StreamEvent) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deltas, "ns/delta")
}
