package settings

import (
	"errors"
	"strings"
	"testing"

	"codework/messages"
)

func TestReference(t *testing.T) {
	for value, want := range map[string]string{
		"${A}": "A", "${_a9}": "_a9", "${LONG_NAME}": "LONG_NAME",
		"": "", "A": "", "$A": "", "${}": "", "${A": "", "${9A}": "", "${A-B}": "", "${A:-x}": "", "${${A}}": "",
		" ${A}": "", "${A}\n": "", "x${A}": "", "${A}${B}": "", "${Ä}": "", "${ A }": "",
	} {
		name, ok := Reference(value)
		if name != want || ok != (want != "") {
			t.Errorf("%q: %q %v", value, name, ok)
		}
	}
}

func TestResolve(t *testing.T) {
	env := map[string]string{"SET": "value", "SPACED": " \tva lue\r\n", "EMPTY": "", "BLANK": " \n", "DOLLAR": "a$SET${SET}"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for value, want := range map[string]string{
		"${SET}": "value", "${SPACED}": "va lue", "${DOLLAR}": "a$SET${SET}", "plain $SET ": "plain $SET ", "": "",
	} {
		if got, err := Resolve("model.options.apiKey", value, lookup); got != want || err != nil {
			t.Errorf("%q: %q %v", value, got, err)
		}
	}
	for value, want := range map[string]string{
		"${UNSET}": "model.options.apiKey refers to the variable UNSET, which is not set",
		"${EMPTY}": "model.options.apiKey refers to the variable EMPTY, which is empty",
		"${BLANK}": "model.options.apiKey refers to the variable BLANK, which is empty",
	} {
		got, err := Resolve("model.options.apiKey", value, lookup)
		var f *messages.Failure
		if got != "" || !errors.As(err, &f) || f.Type != messages.FailAuthentication || f.Code != messages.CodeMissing || f.Message != want || !strings.HasPrefix(f.Hint, "set ") {
			t.Errorf("%q: %q %+v", value, got, err)
		}
	}
}

func TestHoldsReference(t *testing.T) {
	for value, want := range map[string]bool{
		"${A}": true, "x ${A} y": true, "${${A}}": true, "${x-y} ${A}": true, "${}${A": false, "$A {A}": false, "": false, "${A-}": false,
	} {
		if got := holdsReference(value); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}
