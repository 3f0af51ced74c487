package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// nested is an array of so many levels.
func nested(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

var seeds = []string{
	`{"a":1,"b":[true,false,null,{"c":"]}"}],"\u0061\"":"\\\\","":{}}`, ` [ 1 , "x" , [ ] , { } ] `, "null", `""`, `"\u12aF\/\b\f\n\r\t"`,
	"-0.5e+10", "01", "-", "1.", "1e", ".5", "+1", "nul", "truE", `"\x"`, `"\u12"`, `"\u12g4"`, "\"\x01\"", "\"\x7f\xff\"", `"`, `"abcdefg`, `"abcdefgh`,
	"{", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{1:2}`, `{"a" 1}`, "[", "[1", "[1,", "[1,]", "[,]", "[1 2]", "[}", "{]", `[{"a":1]}`, "1 2", "{}}", "[]]",
	"", " ", "\v1", `{"a":1,"a":2}`, nested(64), nested(65), nested(200), `[` + strings.Repeat(`{"a":[`, 70) + strings.Repeat(`]}`, 70) + `]`,
	nested(maxDepth), nested(maxDepth + 1), strings.Repeat("[", 3*maxDepth),
}

// FuzzCut: all functions agree with encoding/json on what is malformed, on what
// an object and an array is, and on every member, element and text that they cut
// out; none of them panics.
func FuzzCut(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		valid := json.Valid(src)
		if Valid(src) != valid {
			t.Fatalf("valid: %v, want %v", !valid, valid)
		}
		var object map[string]json.RawMessage
		isObject := json.Unmarshal(src, &object) == nil && object != nil
		seen := map[string]json.RawMessage{}
		o := Members(src)
		for o.Next() {
			seen[string(o.Key)] = o.Value
			if !json.Valid(o.Value) {
				t.Fatalf("member %q is %q", o.Key, o.Value)
			}
		}
		check(t, "object", o.Err(), valid, isObject)
		if o.Next() {
			t.Fatal("goes on after its end")
		}
		if isObject && len(seen) != len(object) {
			t.Fatalf("%d members, want %d", len(seen), len(object))
		}
		for key, value := range object {
			if !bytes.Equal(seen[key], value) {
				t.Fatalf("member %q is %q, want %q", key, seen[key], value)
			}
		}
		var array []json.RawMessage
		isArray := json.Unmarshal(src, &array) == nil && array != nil
		elements, err := Elements(src)
		check(t, "array", err, valid, isArray)
		if len(elements) != len(array) {
			t.Fatalf("%d elements, want %d", len(elements), len(array))
		}
		for i, value := range array {
			if !bytes.Equal(elements[i], value) {
				t.Fatalf("element %d is %q, want %q", i, elements[i], value)
			}
		}
		var want string
		isText := len(src) > 0 && src[0] == '"' && src[len(src)-1] == '"' && json.Unmarshal(src, &want) == nil
		if got, ok := Text(src); ok != isText || got != want {
			t.Fatalf("text %q %v, want %q %v", got, ok, want, isText)
		}
	})
}

func check(t *testing.T, kind string, err error, valid, is bool) {
	t.Helper()
	want := ErrMalformed
	switch {
	case is:
		want = nil
	case valid:
		want = ErrOtherKind
	}
	if !errors.Is(err, want) {
		t.Fatalf("as an %s: %v, want %v", kind, err, want)
	}
}

// A quote, a backslash or a control character is found wherever it stands in the
// eight bytes that are looked at together, and no other byte is taken for one.
func TestEveryByteIsFoundInEveryPlace(t *testing.T) {
	for c := range 256 {
		for place := range 20 {
			src := []byte(`"` + strings.Repeat("é", 10) + `"`)
			src[1+place] = byte(c)
			if got, want := Valid(src), json.Valid(src); got != want {
				t.Errorf("byte %#x in place %d: valid %v, want %v", c, place, got, want)
			}
		}
	}
}

func TestWhatWasSeenBeforeTheMalformedPlaceIsTold(t *testing.T) {
	o := Members([]byte(`{"a":1,"b":}`))
	if !o.Next() || string(o.Key) != "a" || string(o.Value) != "1" {
		t.Fatalf("first member %q %q", o.Key, o.Value)
	}
	if o.Next() || o.Err() != ErrMalformed || o.Key != nil || o.Value != nil {
		t.Fatalf("went on with %q %q, %v", o.Key, o.Value, o.Err())
	}
}

func BenchmarkValid(b *testing.B) {
	for name, src := range map[string][]byte{
		"event": []byte(`{"timestamp":1767225600000,"sessionId":"ses_01920000-0000-7000-8000-000000000000","messageId":"01920000-0000-7000-8000-000000000000","callID":"call_00000009","part":{"type":"toolCall","arguments":"{\"command\":\"echo step-3\"}","state":"completed","result":{"content":[{"type":"text","text":"step-3\n"}],"details":{"output":"step-3\n","exitCode":0,"truncated":false,"totalLines":1,"outputLines":1},"isError":false}}}`),
		"text":  []byte(`"` + strings.Repeat("Some words of a text, and a line.\\n", 100) + `"`),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				if !Valid(src) {
					b.Fatal("malformed")
				}
			}
		})
	}
}
