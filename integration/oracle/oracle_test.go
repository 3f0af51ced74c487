package oracle

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"codework/integration/mockmodel"
	"codework/messages"
	"codework/providers"
)

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

// key is what both clients send; the servers do not look at it.
const key = "k-oracle"

// png is the beginning of an image, as much as is needed to tell its kind.
var png = []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")

var pngBase64 = base64.StdEncoding.EncodeToString(png)

// answer is what a client made of a stream.
type answer struct {
	Text, Thinking                                  string
	Signatures                                      []string // as they are on the wire
	Calls                                           []call
	Input, Output, Reasoning, CacheRead, CacheWrite int64
	Stop                                            string
}

type call struct {
	ID, Name string
	Args     any // decoded
}

func decoded(t *testing.T, args string) any {
	t.Helper()
	if args == "" {
		args = "{}"
	}
	var v any
	if err := json.Unmarshal([]byte(args), &v); err != nil {
		t.Fatalf("arguments %q: %v", args, err)
	}
	return v
}

// scripts are answers that both clients get, each from its own copy.
var scripts = []struct {
	name   string
	answer mockmodel.Answer
}{
	{"text", mockmodel.Answer{mockmodel.Text{Text: "Grüße 😀 \"quoted\" \\ \u2028 <b>&amp;", Split: 9},
		mockmodel.Usage{Input: 11, Output: 22, CacheRead: 33, CacheWrite: 0}}},
	{"thinking and text", mockmodel.Answer{mockmodel.Reasoning{Text: "let me think\n", Signature: "c2lnMQ==", Split: 3}, mockmodel.Text{Text: "Done.", Split: 2},
		mockmodel.Usage{Input: 5, Output: 40, Reasoning: 30}}},
	{"parallel calls", mockmodel.Answer{mockmodel.Text{Text: "Two things."},
		mockmodel.Call{ID: "call_a", Name: "read", Args: `{"path":"ü.txt","lines":[1,2],"deep":{"x":null,"y":1.5}}`, Split: 7},
		mockmodel.Call{ID: "call_b", Name: "bash", Args: `{"command":"echo \"hi\""}`, Split: 2}}},
	{"a call without arguments", mockmodel.Answer{mockmodel.Call{ID: "call_a", Name: "list", Args: `{}`}}},
	{"the limit", mockmodel.Answer{mockmodel.Text{Text: "cut of"}, mockmodel.End{Reason: "length"}}},
	{"in pieces", mockmodel.Answer{mockmodel.Text{Text: "byte by byte", Split: 4}, mockmodel.Call{ID: "call_a", Name: "bash", Args: `{"a":"b"}`},
		mockmodel.Framing{Newline: "\r\n", Chop: 1}}},
}

// decodes plays each script to the provider's client and to ours and compares
// what they made of it. Model is what both ask for.
func decodes(t *testing.T, d providers.Dialect, model messages.Model, theirs func(t *testing.T, url string) answer) {
	for _, c := range scripts {
		t.Run(c.name, func(t *testing.T) {
			server := mockmodel.StartTest(t, mockmodel.Options{Script: mockmodel.Script{c.answer, c.answer}, Lenient: true})
			want := theirs(t, server.URL())
			model.BaseURL = server.URL() + "/v1"
			got := ours(t, d, request(model))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("ours   %+v\ntheirs %+v", got, want)
			}
			if want.Text == "" && want.Calls == nil {
				t.Error("nothing was compared")
			}
		})
	}
}

func model(protocol messages.Protocol, id string) messages.Model {
	return messages.Model{ID: id, Protocol: protocol, Provider: messages.ModelProvider{ID: "p", Name: "P"},
		Input: []string{"text", "image"}, Reasoning: true, MaxTokens: 32000, ContextWindow: 200000}
}

func request(m messages.Model) *messages.Request {
	return &messages.Request{MessageID: "answer", Model: m, APIKey: key, Thinking: "low", System: "Be brief.",
		Messages: []messages.Message{{ID: "u1", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}}}},
		Options:  messages.RequestOptions{CacheRetention: messages.CacheNone}}
}

func ours(t *testing.T, d providers.Dialect, req *messages.Request) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var end messages.StreamEvent
	d.Stream(ctx, client(t), req, func(e messages.StreamEvent) { end = e })
	if end.Kind != messages.StreamDone {
		t.Fatalf("ours failed: %+v", end.Failure)
	}
	m := end.Message
	a := answer{Stop: string(m.StopReason)}
	for _, p := range m.Parts {
		if s := onTheWire(req.Model.Protocol, p); s != "" {
			a.Signatures = append(a.Signatures, s)
		}
		switch p.Type {
		case messages.PartText:
			a.Text += p.Text
		case messages.PartThinking:
			a.Thinking += p.Text
		case messages.PartToolCall:
			a.Calls = append(a.Calls, call{p.CallID, p.Name, decoded(t, p.Arguments)})
		}
	}
	if u := m.Usage; u != nil {
		a.Input, a.Output, a.Reasoning, a.CacheRead, a.CacheWrite = u.Input, u.Output, u.Reasoning, u.CacheRead, u.CacheWrite
	}
	return a
}

// onTheWire is the signature of a part as the provider sent it. Of Responses we
// keep it together with ids, which are new with each answer.
func onTheWire(protocol messages.Protocol, p messages.Part) string {
	if protocol != messages.ProtocolOpenAI {
		return p.Signature
	}
	var s struct {
		Encrypted string `json:"reasoningEncryptedContent"`
	}
	if json.Unmarshal([]byte(p.Signature), &s) != nil {
		return "" // the id of a text
	}
	return s.Encrypted
}

// client is one whose connections end with the test.
func client(t *testing.T) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// Tools that both requests offer.
var toolSchema = json.RawMessage(`{"type":"object","properties":{"path":{"type":"string","description":"which file"},"lines":{"type":"integer"}},"required":["path"]}`)

// conversation is what both requests hold: a picture, thinking that was signed,
// two calls of which one failed, and another question. The signature is in the
// form of the protocol; on says which parts carry it.
func conversation(m messages.Model, signature string, on messages.PartType) *messages.Request {
	part := func(p messages.Part) messages.Part {
		if p.Type == on {
			p.Signature = signature
		}
		return p
	}
	ok, failed := messages.TextResult("line one\nline two", false), messages.TextResult("no such file", true)
	req := request(m)
	req.Tools = []messages.ToolDefinition{{Name: "read", Description: "Reads a file.", Schema: toolSchema}}
	first := part(messages.Part{Type: messages.PartToolCall, CallID: "call_a", Name: "read", Arguments: `{"path":"a.txt","lines":3}`, Call: messages.CallCompleted, Result: &ok})
	second := messages.Part{Type: messages.PartToolCall, CallID: "call_b", Name: "read", Arguments: `{"path":"ü \"b\".txt"}`, Call: messages.CallError, Result: &failed}
	req.Messages = []messages.Message{
		{ID: "u1", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "what is this?"}, {Type: messages.PartImage, Data: png}}},
		{ID: "a1", Role: messages.RoleAssistant, State: messages.EntryCommitted, Provider: m.Provider.ID, Protocol: string(m.Protocol), Model: m.ID,
			Parts: []messages.Part{part(messages.Part{Type: messages.PartThinking, Text: "I had better look"}), {Type: messages.PartText, Text: "Let me look."}, first, second}},
		{ID: "u2", Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "and now?"}}},
	}
	return req
}

// recorder keeps the bodies that it is sent and refuses them.
type recorder struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
}

func record(t *testing.T) *recorder {
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.bodies = append(r.bodies, body)
		r.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"type":"error","error":{"type":"invalid_request_error","message":"only looking","code":400,"status":"INVALID_ARGUMENT"}}`)
	}))
	t.Cleanup(r.Close)
	return r
}

// encodes compares the body of our request with the one that the provider's
// client makes of the same conversation; normal says how both may differ.
func encodes(t *testing.T, d providers.Dialect, req *messages.Request, theirs func(t *testing.T, url string), normal func(body map[string]any)) {
	t.Helper()
	r := record(t)
	theirs(t, r.URL)
	req.Model.BaseURL = r.URL + "/v1"
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d.Stream(ctx, client(t), req, func(messages.StreamEvent) {})
	if len(r.bodies) != 2 {
		t.Fatalf("%d requests", len(r.bodies))
	}
	var want, got map[string]any
	for i, into := range []*map[string]any{&want, &got} {
		if err := json.Unmarshal(r.bodies[i], into); err != nil {
			t.Fatalf("%v in %s", err, r.bodies[i])
		}
		if normal != nil {
			normal(*into)
		}
	}
	if diff := differences("", want, got); len(diff) > 0 {
		t.Errorf("theirs and ours differ:\n%s\ntheirs %s\nours   %s", strings.Join(diff, "\n"), r.bodies[0], r.bodies[1])
	}
}

// differences lists where two JSON values differ.
func differences(at string, want, got any) []string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		var out []string
		for k := range w {
			out = append(out, differences(at+"."+k, w[k], g[k])...)
		}
		for k := range g {
			if _, ok := w[k]; !ok {
				out = append(out, differences(at+"."+k, nil, g[k])...)
			}
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			break
		}
		var out []string
		for i := range w {
			out = append(out, differences(at+"[]", w[i], g[i])...)
		}
		return out
	}
	if reflect.DeepEqual(want, got) {
		return nil
	}
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	return []string{at + ": theirs " + string(a) + ", ours " + string(b)}
}
