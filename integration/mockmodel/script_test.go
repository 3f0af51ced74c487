package mockmodel

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestScriptsAreReadAsWritten(t *testing.T) {
	const written = `
	// one script by itself
	[
	  [ {"reasoning": "hm", "signature": "s", "field": "think", "split": 2, "delay": "5ms"},
	    {"reasoning": "", "redacted": true},
	    {"text": "hi", "split": 3, "delay": 0.5},
	    {"call": "bash", "id": "t1", "args": {"b": "<&>", "a": 1}, "split": 4, "delay": "1s", "no_index": true, "no_id": true, "whole": true},
	    {"call": "bash", "args": "{\"x\":"}, {"args": "1}", "split": 2},
	    {"call": "bash", "args": null}, {"call": "bash"}, {"call": "bash", "args": ["a"]},
	    {"usage": {"input": 1, "output": 2, "reasoning": 3, "cache_read": 4, "cache_write": 5, "cache_write_1h": 6, "cost": 0.5, "place": "every"}},
	    {"framing": {"newline": "\r\n", "chop": 3}},
	    {"comment": "c", "times": 2, "delay": "1s"}, {"headers": true},
	    {"stall": 1.5}, {"after": 3, "stall": "2m"}, {"hold": "h"}, {"after": 0, "hold": "z"},
	    {"cut": 4}, {"cut": 5, "mode": "reset"}, {"after": 6, "cut": "end"},
	    {"garbage": "x"}, {"garbage": "AAE=", "base64": true},
	    {"end": "length", "no_reason": true, "no_usage": true, "no_done": true} ],
	  [ {"http": 429, "headers": {"A": "b"}, "type": "t", "message": "m", "code": "c"} ],
	  [ {"http": 503, "body": "<html>"} ],
	  [ {"http": 400, "body": {"error": "<x>"}} ],
	  [ {"error": {"type": "t", "message": "m", "code": "c"}} ],
	  [ {"cut": "reset"} ],
	  [ {"garbage": "x", "wire": true} ],
	  "just a text",
	  [],
	]`
	want := Script{
		{Reasoning{Text: "hm", Signature: "s", Field: "think", Split: 2, Delay: 5 * time.Millisecond},
			Reasoning{Redacted: true},
			Text{"hi", 3, 500 * time.Millisecond},
			Call{ID: "t1", Name: "bash", Args: `{"b":"<&>","a":1}`, Split: 4, Delay: time.Second, NoIndex: true, NoID: true, Whole: true},
			Call{Name: "bash", Args: `{"x":`}, Args{Args: "1}", Split: 2},
			Call{Name: "bash", Args: "null"}, Call{Name: "bash"}, Call{Name: "bash", Args: `["a"]`},
			Usage{1, 2, 3, 4, 5, 6, 0.5, "every", ""},
			Framing{"\r\n", 3},
			Comment{"c", 2, time.Second}, Headers{},
			Stall{1500 * time.Millisecond}, After{3, Stall{2 * time.Minute}}, Hold{"h"}, After{0, Hold{"z"}},
			After{4, Cut{}}, After{5, Cut{CutReset}}, After{6, Cut{CutEnd}},
			Garbage{Bytes: []byte("x")}, Garbage{Bytes: []byte{0, 1}},
			End{"length", true, true, true}},
		{HTTP{Status: 429, Header: map[string]string{"A": "b"}, Type: "t", Message: "m", Code: "c"}},
		{HTTP{Status: 503, Body: "<html>"}},
		{HTTP{Status: 400, Body: `{"error":"<x>"}`}},
		{Error{"t", "m", "c"}},
		{Cut{CutReset}},
		{Garbage{Bytes: []byte("x"), Wire: true}},
		{Text{Text: "just a text"}},
		{},
	}
	got, err := ParseScripts([]byte(written))
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range want {
		for j, st := range a {
			if g := got[DefaultScript][i][j]; !reflect.DeepEqual(g, st) {
				t.Errorf("answer %d, step %d:\n got %#v\nwant %#v", i+1, j+1, g, st)
			}
		}
	}
	if !reflect.DeepEqual(got[DefaultScript], want) {
		t.Errorf("got  %#v\nwant %#v", got[DefaultScript], want)
	}
}

func TestScriptsHaveNames(t *testing.T) {
	got, err := ParseScripts([]byte(`{"default": ["a"], "one": [[{"text": "b"}]], "none": []}`))
	want := map[string]Script{"default": {{Text{Text: "a"}}}, "one": {{Text{Text: "b"}}}, "none": {}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%#v %v", got, err)
	}
}

// A slip in a script is an error that says where, not a different answer.
func TestSlipsInScriptsAreRefused(t *testing.T) {
	for _, tt := range []struct{ written, reason string }{
		{``, "read script"},
		{`null`, "want a list"},
		{`7`, "read script"},
		{`{"a": 7}`, "script a: want a list of answers"},
		{`[7]`, "answer 1: want a list of steps"},
		{`[null]`, "answer 1: want a list of steps"},
		{`[[], [7]]`, "answer 2: step 1: want an object"},
		{`[[null]]`, "step 1: want an object"},
		{`[[{"txt": "a"}]]`, `no step has the keys ["txt"]`},
		{`[[{}]]`, "no step has the keys"},
		{`[[{"text": "a", "signature": "s"}]]`, `text: unknown field "signature"`},
		{`[[{"text": 7}]]`, "text: cannot unmarshal"},
		{`[[{"text": "a", "delay": "soon"}]]`, "invalid duration"},
		{`[[{"text": "a", "delay": []}]]`, "want a duration"},
		{`[[{"call": "", "args": {}}]]`, "a call needs a name"},
		{`[[{"args": "x"}]]`, "no call before it"},
		{`[[{"reasoning": "a", "field": "mind"}]]`, `unknown field "mind"`},
		{`[[{"usage": {"place": "here"}}]]`, `unknown place "here"`},
		{`[[{"cut": "gently"}]]`, `unknown mode "gently"`},
		{`[[{"cut": 1.5}]]`, "want a whole number"},
		{`[[{"cut": -1}]]`, "negative number"},
		{`[[{"cut": "close", "mode": "reset"}]]`, "stated twice"},
		{`[[{"cut": true}]]`, "want a mode"},
		{`[[{"stall": -1}]]`, "negative duration"},
		{`[[{"hold": ""}]]`, "a hold needs a name"},
		{`[[{"headers": false}]]`, "want true"},
		{`[[{"http": 20}]]`, "status 20"},
		{`[[{"http": 204}]]`, "status 204"},
		{`[[{"text": "a"}, {"http": 400}]]`, "has already begun"},
		{`[[{"garbage": "?", "base64": true}]]`, "illegal base64"},
		{`[[{"framing": {"newline": "x"}}]]`, "no line end"},
		{`[[{"after": "x", "hold": "a"}]]`, "after: want a number"},
		{`[[{"after": 1, "text": "a"}]]`, "only cut, stall"},
		{`[[{"end": ""}, {"text": "a"}]]`, "comes after end and is never reached"},
		{`[[{"cut": "close"}, {"text": "a"}]]`, "comes after cut"},
		{`[[{"error": {}}, {"text": "a"}]]`, "comes after error"},
		{`[[{"http": 500}, {"text": "a"}]]`, "comes after http"},
		{`[[{"garbage": "a", "wire": true}, {"text": "a"}]]`, "comes after garbage"},
	} {
		_, err := ParseScripts([]byte(tt.written))
		if err == nil || !strings.Contains(err.Error(), tt.reason) {
			t.Errorf("%s: got %v, want %s", tt.written, err, tt.reason)
		}
	}
}

// What settings and triggers follow does not matter.
func TestStepsWithoutAPlaceMayStandLast(t *testing.T) {
	for _, a := range []Answer{
		{End{}, Usage{}},
		{Cut{}, Framing{}},
		{End{}, After{1, Cut{}}},
		{Usage{}, HTTP{Status: 500}},
	} {
		if err := a.check(); err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
	if err := (Answer{nil}).check(); err == nil {
		t.Error("a nil step is taken")
	}
}

func TestNewPanicsOnAScriptThatCannotWork(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	New(Options{Script: Script{{Args{Args: "x"}}}})
}

func TestSplitKeepsTheTextAndItsRunes(t *testing.T) {
	for _, s := range []string{"", "a", "añ✓😀", strings.Repeat("é", 100)} {
		for n := range 12 {
			parts := split(s, n)
			if strings.Join(parts, "") != s {
				t.Errorf("split(%q, %d) = %q", s, n, parts)
			}
			if want := max(1, min(n, len([]rune(s)))); len(parts) != want {
				t.Errorf("split(%q, %d) has %d parts, want %d", s, n, len(parts), want)
			}
			for _, p := range parts {
				if p == "" && s != "" || strings.ContainsRune(p, '\uFFFD') {
					t.Errorf("split(%q, %d) has the part %q", s, n, p)
				}
			}
		}
	}
}

// FuzzParseScripts: whatever is written, reading ends with scripts that pass
// their own check or with an error, and never with a panic.
func FuzzParseScripts(f *testing.F) {
	f.Add([]byte(`[[{"text":"a"},{"call":"b","args":{}},{"cut":3,"mode":"reset"}],"x"]`))
	f.Add([]byte(`{"a":[[{"http":429,"headers":{"a":"b"},"body":{}}]],}`))
	f.Add([]byte(`[[{"after":1,"hold":"x"},{"stall":"1s"},{"usage":{}},{"error":{}}]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ParseScripts(data)
		if err != nil {
			return
		}
		for name, s := range got {
			if err := s.check(); err != nil {
				t.Errorf("script %s: %v", name, err)
			}
		}
	})
}
