package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"codework/messages"
)

// good has a payload with every field for each method.
var good = map[string]string{
	"session.create": `{"id":"ses_01234567-89ab-7def-8123-456789abcdef","title":"t","directory":"d","hostDir":"/h","sandbox":{"driver":"local"},` +
		`"runtime":{"model":{"provider":"p","id":"m"},"thinkingLevel":"high"},"appendSystemPrompt":"a"}`,
	"session.list":      `{"hostDir":"/h","search":"s","limit":5,"before":"ses_1"}`,
	"session.info":      `{"sessionId":"ses_1"}`,
	"session.configure": `{"sessionId":"ses_1","runtime":{"thinkingLevel":"off"}}`,
	"session.prompt": `{"sessionId":"ses_1","text":"x","delivery":"followUp","id":"m","bound":true,` +
		`"parts":[{"type":"text","text":"y"},{"type":"image","mediaType":"image/png","data":"AAAA"}]}`,
	"session.interrupt": `{"sessionId":"ses_1","clearQueue":true}`,
	"session.wait":      `{"sessionId":"ses_1"}`,
	"session.message":   `{"sessionId":"ses_1","messageId":"m"}`,
	"session.queue":     `{"sessionId":"ses_1","remove":"m","clear":false}`,
	"session.history":   `{"sessionId":"ses_1","before":"m","limit":5}`,
	"session.link":      `{"sessionId":"ses_1","hostDir":"/h"}`,
	"session.relink":    `{"sessionId":"ses_1","sandbox":{"id":"sbx_1"},"directory":"d"}`,
	"session.rename":    `{"sessionId":"ses_1","title":"t"}`,
	"session.fork":      `{"sessionId":"ses_1","at":"m"}`,
	"session.delete":    `{"sessionId":"ses_1","force":true}`,
	"session.check":     `{"sessionId":"ses_1","repair":true}`,
	"session.blob":      `{"sessionId":"ses_1","blob":"b","offset":1}`,
	"models.list":       `{"provider":"p"}`,
	"sandbox.drivers":   `{}`,
	"sandbox.list":      `{}`,
	"sandbox.create":    `{"driver":"d","config":{"a":[1]}}`,
	"sandbox.register":  `{"driver":"d","providerResourceId":"r","config":{}}`,
	"sandbox.stop":      `{"sandboxId":"sbx_1"}`,
	"sandbox.destroy":   `{"sandboxId":"sbx_1"}`,
	"sandbox.exec":      `{"sandboxId":"sbx_1","argv":["ls"],"cwd":"/","env":{"A":"b"},"timeoutMs":5}`,
	"auth.save":         `{"credentials":{"provider":"openai-codex","access":"a","refresh":"r","expires":1,"accountId":"i"}}`,
	"auth.status":       `{"provider":"openai-codex"}`,
	"auth.refresh":      `{"provider":"openai-codex"}`,
	"auth.logout":       `{"provider":"openai-codex"}`,
	"plugin.reload":     `{}`,
	"event.subscribe":   `{"sessionId":"ses_1","after":{"ses_1":4}}`,
	"server.info":       `{}`,
	"server.hello":      `{"version":"1","build":"b","protocol":1,"host":"h","mountNamespace":"n","cwd":"/","umask":18,"env":{"A":"b"},"userConfigDir":"/c"}`,
	"server.handover":   `{}`,
	"server.top":        `{"limit":3}`,
}

func keysOf(t testing.TB, payload string) map[string]json.RawMessage {
	t.Helper()
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(payload), &keys); err != nil {
		t.Fatal(err)
	}
	return keys
}

func encoded(t testing.TB, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryMethodTakesItsPayload(t *testing.T) {
	for _, name := range Methods() {
		payload, ok := good[name]
		if !ok {
			t.Errorf("%s has no example here", name)
			continue
		}
		if _, err := Decode(name, json.RawMessage(payload), true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		more := keysOf(t, payload)
		more["somethingNewer"] = json.RawMessage(`{"x":null}`)
		if _, err := Decode(name, encoded(t, more), true); err != nil {
			t.Errorf("%s refuses a key it does not know: %v", name, err)
		}
	}
}

func TestMissingKeysAreNamed(t *testing.T) {
	for _, name := range Methods() {
		for _, key := range methods[name].required {
			less := keysOf(t, good[name])
			delete(less, key)
			if _, err := Decode(name, encoded(t, less), true); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s without %s: %v", name, key, err)
			}
		}
	}
}

func TestNullIsNoValue(t *testing.T) {
	for _, name := range Methods() {
		for key := range keysOf(t, good[name]) {
			with := keysOf(t, good[name])
			with[key] = json.RawMessage("null")
			if _, err := Decode(name, encoded(t, with), true); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s with %s null: %v", name, key, err)
			}
		}
	}
	for _, tc := range []struct{ name, payload, key string }{
		{SessionCreate, `{"id":null}`, "id"},
		{SessionCreate, `{"id":"ses_x"}`, "id"},
		{SessionCreate, `{"id":"ses_../../etc"}`, "id"},
		{SessionCreate, `{"id":"ses_01234567-89AB-7DEF-8123-456789ABCDEF"}`, "id"},
		{SessionCreate, `{"id":"01234567-89ab-7def-8123-456789abcdef"}`, "id"},
		{SessionCreate, `{"runtime":{"model":null}}`, "model"},
		{SessionCreate, `{"runtime":{"model":{"provider":"p","id":"m"},"thinkingLevel":null}}`, "thinkingLevel"},
		{SessionCreate, `{"sandbox":{"driver":"local","providerResourceId":null}}`, "providerResourceId"},
		{SessionConfigure, `{"sessionId":"ses_1","runtime":{"model":null}}`, "model"},
		{SessionPrompt, `{"sessionId":"ses_1","text":"x","parts":[{"type":"text","text":null}]}`, "text"},
		{SessionPrompt, `{"sessionId":"ses_1","text":"x","parts":[null]}`, "parts"},
		{EventSubscribe, `{"after":{"ses_1":null}}`, "after"},
	} {
		if _, err := Decode(tc.name, json.RawMessage(tc.payload), true); err == nil || !strings.Contains(err.Error(), tc.key) {
			t.Errorf("%s %s: %v", tc.name, tc.payload, err)
		}
	}
}

func TestWhatIsNoObjectIsRefused(t *testing.T) {
	for _, name := range Methods() {
		for _, payload := range []string{`null`, `[]`, `1`, `"x"`, `true`, `[{}]`} {
			if _, err := Decode(name, json.RawMessage(payload), true); err == nil {
				t.Errorf("%s takes %s", name, payload)
			}
		}
	}
}

func TestKeysAreTakenAsTheyAreSpelled(t *testing.T) {
	v, err := Decode(SessionPrompt, json.RawMessage(`{"sessionId":"ses_1","text":"x","SESSIONID":"ses_2","Text":"y","ID":"z","BOUND":true}`), true)
	if err != nil {
		t.Fatal(err)
	}
	want := messages.Prompt{SessionID: "ses_1", Text: "x"}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v", v)
	}
}

func TestMethodsOfTheLocalSocketAreUnknownElsewhere(t *testing.T) {
	for _, name := range []string{ServerHello, ServerHandover} {
		if _, err := Decode(name, json.RawMessage(good[name]), false); !errors.Is(err, ErrUnknownMethod) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Decode("session.teleport", json.RawMessage(`{}`), true); !errors.Is(err, ErrUnknownMethod) {
		t.Errorf("got %v", err)
	}
}

func TestAPromptKeepsAllItsParts(t *testing.T) {
	v, err := Decode(SessionPrompt, json.RawMessage(good[SessionPrompt]), true)
	if err != nil {
		t.Fatal(err)
	}
	want := messages.Prompt{SessionID: "ses_1", Text: "x", Delivery: messages.FollowUp, ID: "m", Bound: "bound", Parts: []messages.Part{
		{Type: messages.PartText, Text: "y"}, {Type: messages.PartImage, MediaType: "image/png", Data: []byte{0, 0, 0}}}}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v", v)
	}
}

func TestErrorsTravelWithTheirTagAndFields(t *testing.T) {
	for tag, make := range tagged {
		e := make()
		fill(reflect.ValueOf(e).Elem())
		b, ok := EncodeError(e)
		if !ok || !json.Valid(b) || !bytes.HasPrefix(b, []byte(`{"_tag":"`+tag+`"`)) {
			t.Errorf("%s is encoded as %s", tag, b)
			continue
		}
		got, ok := DecodeError(tag, b)
		if !ok || !reflect.DeepEqual(got, e) {
			t.Errorf("%s came back as %+v, was %+v", tag, got, e)
		}
	}
	b, ok := EncodeError(&messages.SessionNotFound{SessionID: "ses_1"})
	if want := `{"_tag":"SessionNotFoundError","sessionId":"ses_1"}`; !ok || string(b) != want {
		t.Errorf("got %s, want %s", b, want)
	}
	if _, ok := EncodeError(&messages.Refused{Name: messages.RefusedBusy}); ok {
		t.Error("a refusal is no error of the contract")
	}
	if _, ok := DecodeError("SomethingElse", json.RawMessage(`{}`)); ok {
		t.Error("an unknown tag was decoded")
	}
}

// fill gives every field a value.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("some " + v.Type().Field(i).Name)
		case reflect.Int, reflect.Int64:
			f.SetInt(7)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			switch f.Type() {
			case reflect.TypeFor[json.RawMessage]():
				f.SetBytes([]byte(`{"a":1}`))
			case reflect.TypeFor[[]string]():
				f.Set(reflect.ValueOf([]string{"a", "b"}))
			}
		}
	}
}

func TestEventsComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		data, err := json.Marshal(map[string]any{"sessionId": "ses_1", "x": text.Draw(t, "x")})
		if err != nil {
			t.Fatal(err)
		}
		e := messages.Event{ID: text.Draw(t, "id"), Type: text.Draw(t, "type"), Session: "ses_1", Data: data}
		if rapid.Bool().Draw(t, "durable") {
			e.Seq = rapid.Int64Min(1).Draw(t, "seq")
		}
		if rapid.Bool().Draw(t, "metadata") {
			e.Metadata = map[string]string{text.Draw(t, "key"): text.Draw(t, "value")}
		}
		b, err := EncodeEvent(e)
		if err != nil || !json.Valid(b) {
			t.Fatalf("encoded as %s, %v", b, err)
		}
		got, err := DecodeEvent(b)
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("came back as %+v, %v", got, err)
		}
	})
}

func TestEventsHaveTheEnvelopeOfTheContract(t *testing.T) {
	durable := messages.Event{ID: "evt_1", Type: messages.EventTurnEnded, Session: "ses_1", Seq: 3, Data: json.RawMessage(`{"sessionId":"ses_1"}`)}
	live := messages.Event{ID: "evt_2", Type: messages.EventConnected, Data: json.RawMessage(`{}`)}
	for _, tc := range []struct {
		e    messages.Event
		want string
	}{
		{durable, `{"id":"evt_1","type":"session.turn.ended","durable":{"aggregateId":"ses_1","seq":3,"version":1},"data":{"sessionId":"ses_1"}}`},
		{live, `{"id":"evt_2","type":"server.connected","data":{}}`},
	} {
		if b, err := EncodeEvent(tc.e); err != nil || string(b) != tc.want {
			t.Errorf("got %s, %v\nwant %s", b, err, tc.want)
		}
	}
	live.Data = json.RawMessage(`{"a":`)
	var bad *messages.EventEncoding
	if _, err := EncodeEvent(live); !errors.As(err, &bad) || bad.Type != live.Type {
		t.Errorf("data that is not JSON: %v", err)
	}
}

// FuzzDecodeEvent holds DecodeEvent to what encoding/json says of the same keys:
// it accepts the same envelopes and finds the same in them, and what it accepts
// comes back as it was when it is encoded and decoded again.
func FuzzDecodeEvent(f *testing.F) {
	for _, s := range []string{
		`{"id":"evt_1","type":"session.turn.ended","durable":{"aggregateId":"ses_1","seq":3,"version":1},"data":{"sessionId":"ses_2"}}`,
		`{"data":{"timestamp":1,"sessionId":"ses_\u0031","x":[]},"type":"a\"b","id":"\\","metadata":{"a":"b"},"more":1}`,
		`{"id":null,"type":null,"durable":null,"data":null,"metadata":null}`, `{"ID":"x","data":[1],"durable":{}}`, `{"data":{"sessionId":1}}`,
		`{"id":1}`, `{"id":1,"id":"a"}`, `{"durable":7}`, `{"durable":{"seq":1.0}}`, `{"durable":{"seq":99999999999999999999}}`, `{"durable":{"aggregateId":[]}}`, `{"durable":{"aggregateId":null,"seq":null}}`, `{"durable":{},"durable":null,"data":{"sessionId":"a","sessionId":"b"}}`, `{"metadata":[]}`, `{"metadata":{"a":1}}`,
		`{}`, `[]`, `null`, `{"id":"a"`, `{"id":"a"} x`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := DecodeEvent(b)
		want, wantErr := decodeByReflection(b)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("decoded as %+v\nwant %+v", got, want)
		}
		if got.Data == nil || !got.Durable() && got.Seq != 0 {
			return // nothing that is encoded
		}
		again, err := EncodeEvent(got)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Durable() {
			return // its session is in its data
		}
		if back, err := DecodeEvent(again); err != nil || !reflect.DeepEqual(back, got) {
			t.Fatalf("came back as %+v, %v\nwant %+v", back, err, got)
		}
	})
}

// decodeByReflection does the work of DecodeEvent with encoding/json.
func decodeByReflection(b []byte) (e messages.Event, err error) {
	var keys, durable map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil || keys == nil {
		return e, errors.New("not an object")
	}
	if d := keys["data"]; string(d) != "null" {
		e.Data = d
	}
	member := func(from map[string]json.RawMessage, key string, into any) {
		if value, ok := from[key]; ok && err == nil {
			err = json.Unmarshal(value, into)
		}
	}
	member(keys, "id", &e.ID)
	member(keys, "type", &e.Type)
	member(keys, "metadata", &e.Metadata)
	member(keys, "durable", &durable)
	if durable != nil {
		member(durable, "aggregateId", &e.Session)
		member(durable, "seq", &e.Seq)
		return e, err
	}
	data := json.NewDecoder(bytes.NewReader(e.Data))
	if begin, _ := data.Token(); begin != json.Delim('{') {
		return e, err
	}
	for data.More() {
		key, keyErr := data.Token()
		var value any
		if keyErr != nil || data.Decode(&value) != nil {
			return e, err
		}
		if key == "sessionId" {
			e.Session, _ = value.(string)
			return e, err
		}
	}
	return e, err
}

// An envelope as it is on most ways, of a live event and of one with a large
// message.
var benchEvents = map[string]string{
	"delta": `{"id":"evt_01920000-0000-7000-8000-000000000000","type":"session.llm.text.delta","data":{"timestamp":1767225600000,"sessionId":"ses_01920000-0000-7000-8000-000000000000","messageId":"01920000-0000-7000-8000-000000000000","partIndex":0,"delta":"` + strings.Repeat("x", 40) + `"}}`,
	"ended": `{"id":"evt_01920000-0000-7000-8000-000000000000","type":"session.llm.ended","durable":{"aggregateId":"ses_01920000-0000-7000-8000-000000000000","seq":13,"version":1},"data":{"timestamp":1767225600000,"sessionId":"ses_01920000-0000-7000-8000-000000000000","messageId":"01920000-0000-7000-8000-000000000000","message":{"id":"01920000-0000-7000-8000-000000000000","role":"assistant","state":"draft","parts":[{"type":"toolCall","callID":"call_00000009","name":"bash","arguments":"{\"command\":\"echo step-3\"}","state":"pending"}],"provider":"mock","protocol":"openai-compatible","model":"mock-model","stopReason":"toolUse","usage":{"input":100,"output":10,"cacheRead":0,"cacheWrite":0,"totalTokens":110,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}},"timestamp":1767225600000},"reason":"toolUse"}}`,
}

func BenchmarkDecodeEvent(b *testing.B) {
	for name, e := range benchEvents {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(e)))
			for b.Loop() {
				if _, err := DecodeEvent(json.RawMessage(e)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncodeEvent(b *testing.B) {
	for name, s := range benchEvents {
		b.Run(name, func(b *testing.B) {
			e, err := DecodeEvent(json.RawMessage(s))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				if _, err := EncodeEvent(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestNothingIsTheResultOfMethodsWithoutOne(t *testing.T) {
	if b, err := Encode(nil); err != nil || string(b) != "null" {
		t.Errorf("got %s, %v", b, err)
	}
}

// FuzzDecode holds Decode to this: whatever comes in, it answers with a command
// or with an error that says something; a command for a session names one that
// is well formed.
func FuzzDecode(f *testing.F) {
	for name, payload := range good {
		f.Add(name, []byte(payload))
	}
	f.Add(SessionPrompt, []byte(`{"sessionId":"ses_1","text":"x","parts":[{"type":"image","data":1}]}`))
	f.Fuzz(func(t *testing.T, name string, payload []byte) {
		v, err := Decode(name, payload, true)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		if v == nil {
			return
		}
		if id := reflect.ValueOf(v).FieldByName("SessionID"); id.IsValid() && id.String() != "" && !messages.ValidSessionID(id.String()) {
			t.Errorf("%s for session %q", name, id)
		}
	})
}

func TestADriversConfigurationIsAnObject(t *testing.T) {
	for _, config := range []string{`null`, `[1]`, `"x"`, `7`, `{"a":"` + strings.Repeat("x", 64<<10) + `"}`} {
		for _, payload := range []string{`{"driver":"d","config":` + config + `}`, `{"driver":"d","providerResourceId":"r","config":` + config + `}`} {
			for _, name := range []string{SandboxCreate, SandboxRegister} {
				if _, err := Decode(name, json.RawMessage(payload), true); err == nil || !strings.Contains(err.Error(), "config") && !strings.Contains(err.Error(), "providerResourceId") {
					t.Errorf("%s %.60s: %v", name, payload, err)
				}
			}
		}
	}
}
