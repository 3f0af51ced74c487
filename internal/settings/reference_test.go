package settings

import (
	"testing"
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

func TestHoldsReference(t *testing.T) {
	for value, want := range map[string]bool{
		"${A}": true, "x ${A} y": true, "${${A}}": true, "${x-y} ${A}": true, "${}${A": false, "$A {A}": false, "": false, "${A-}": false,
	} {
		if got := holdsReference(value); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}
