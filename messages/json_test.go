package messages

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Long texts change nothing of what an event's data say, and take no more room
// than they need.
func TestLongTextsAreEncodedAsShortOnesAre(t *testing.T) {
	long := strings.Repeat("a\"\\\n\x00\x1f<>&\u2028\u2029é\xff\xf0\x9f\x98\x80\x7f", longText/10)
	short := `"parts":[] "message":` // looks like what is cut apart
	message := func(parts ...Part) *Message {
		return &Message{ID: "m", Role: RoleAssistant, Parts: parts, Model: short, Timestamp: 7}
	}
	for name, d := range map[string]EventData{
		"content":    {Timestamp: 1, SessionID: "s", Content: &long},
		"one part":   {Timestamp: 1, Message: message(Part{Type: PartText, Text: long})},
		"some parts": {Message: message(Part{Type: PartThinking, Text: short}, Part{Type: PartToolCall, CallID: "c", Arguments: long}, Part{Type: PartText, Text: long, Arguments: long}), Reason: short},
		"both":       {Content: &long, Message: message(Part{Type: PartText, Text: long})},
		"short":      {Content: &short, Message: message(Part{Type: PartText, Text: short})},
		"nothing":    {},
	} {
		want, err := JSON(d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d bytes instead of %d", name, len(got), len(want))
		}
		var a, b any
		if err := json.Unmarshal(want, &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got, &b); err != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: it says something else, or nothing: %v", name, err)
		}
		if len(want) > longText && cap(got) > len(got)+len(got)/8 { // rounded up to a page
			t.Errorf("%s: %d bytes take %d", name, len(got), cap(got))
		}
	}
}

// FuzzQuoted: a text is quoted as encoding/json quotes it.
func FuzzQuoted(f *testing.F) {
	f.Add("")
	f.Add("a\"\\\b\f\n\r\t\x00\x7f</script>\u2028\u2029\xff\xed\xa0\x80é\U0001F600")
	f.Fuzz(func(t *testing.T, text string) {
		want, err := JSON(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendQuoted(nil, text); string(got) != string(want) || quotedSize(text) != len(want) {
			t.Errorf("%q, counted as %d, want %q", got, quotedSize(text), want)
		}
	})
}
