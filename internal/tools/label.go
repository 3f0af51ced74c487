package tools

import (
	"encoding/json"
	"strings"
	"unicode"
)

// maxLabelChars bounds a line for people.
const maxLabelChars = 200

// Label is one short line for people about a call: the tool's name and what it
// is about, such as "bash  go test ./..." or "edit  main.go". arguments is
// what the model wrote; what is not understood gives the name alone.
func Label(name, arguments string) string {
	name = plainLine(name)
	if subject := Subject(name, arguments); subject != "" {
		return clipRunes(name+"  "+subject, maxLabelChars)
	}
	return clipRunes(name, maxLabelChars)
}

// Subject is what a call is about: the command, the path, the pattern; "" if
// that is not known.
func Subject(name, arguments string) string {
	var args struct{ Command, Path, Pattern string }
	if json.Unmarshal([]byte(arguments), &args) != nil {
		return ""
	}
	path := plainLine(cleanPath(args.Path))
	subject := path
	switch {
	case name == "bash":
		subject = plainLine(args.Command)
	case name == "ls" && path == "":
		subject = "."
	case name == "grep" || name == "find":
		subject = plainLine(args.Pattern)
		if path != "" && path != "." {
			subject += " in " + path
		}
	}
	return clipRunes(subject, maxLabelChars)
}

// plainLine is s on one line and without control characters, which could
// change the terminal it is printed on.
func plainLine(s string) string {
	return oneLine(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, s))
}

func clipRunes(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
