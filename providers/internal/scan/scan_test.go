package scan

import (
	"encoding/json"
	"testing"
)

// The rule: what Skip takes as a whole is JSON.
func FuzzSkip(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":null}],"c":true}`, `[,]`, `{"a":1,}`, `[1,]`, `01`, `1.5`, `"\\u0041"`, `"ü"`, `nul`, ` [ ] `, `[[[[[[1]]]]]]`, `falsey`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data string) {
		s := Scanner{Data: []byte(data)}
		if s.Skip() && s.End() && !json.Valid([]byte(data)) {
			t.Fatalf("%q is no JSON", data)
		}
	})
}

func TestSimpleValuesAreSkipped(t *testing.T) {
	for _, data := range []string{`"a"`, `0`, `123456789`, `1700000000123456789012`, `null`, `true`, `false`, `[]`, `{}`, ` [ 1 , {"a" : "b"} ] `, `[{"modality":"TEXT","tokenCount":110}]`} {
		if s := (Scanner{Data: []byte(data)}); !s.Skip() || !s.End() {
			t.Errorf("%s", data)
		}
	}
}

func TestNamesComeOnce(t *testing.T) {
	for data, want := range map[string]bool{`{}`: true, `{"a":1}`: true, `{"a":1,"b":2}`: true, `{"a":1,"a":2}`: false, `{"A":1}`: false, `{,"a":1}`: false, `{"a":1,}`: false, `{"a":1`: false} {
		s := Scanner{Data: []byte(data)}
		got := s.Object(func(name []byte) int {
			if n := int(name[0]) - 'a'; n >= 0 && s.Skip() {
				return n
			}
			return -1
		})
		if got != want {
			t.Errorf("%s: %v", data, got)
		}
	}
}
