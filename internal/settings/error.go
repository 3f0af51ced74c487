package settings

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"codework/messages"
)

// The slugs of an Error: what could not be done with the file.
const (
	SlugRead   = "settings-read-failed"
	SlugParse  = "settings-parse-failed"
	SlugDecode = "settings-decode-failed"
)

// Error is a settings file that exists and is of no use.
type Error struct {
	Slug   string // one of the Slug constants
	File   string
	Detail string // one line
	// Faults are the single faults of SlugDecode, in file order; Detail shows
	// the first maxFaultsShown of them.
	Faults []Fault
}

// Fault is one value that is not accepted.
type Fault struct {
	Path string // keys and array indexes joined with dots
	Want string // what is accepted there
}

// maxFaultsShown keeps a message readable when a file is wrong throughout.
const maxFaultsShown = 20

// retryHint is true of every settings error: files are read again each time.
const retryHint = "correct the file and try again; it is read anew for every prompt"

// Reason is the slug's middle: read, parse or decode.
func (e *Error) Reason() string {
	return strings.TrimSuffix(strings.TrimPrefix(e.Slug, "settings-"), "-failed")
}

// Error is the form that clients receive: file, reason and detail.
func (e *Error) Error() string {
	return e.File + ": " + e.Reason() + ": " + e.Detail
}

// Failure is the error as an exchange reports it; Code holds the slug.
func (e *Error) Failure() *messages.Failure {
	return &messages.Failure{
		Type:    messages.FailSettings,
		Message: e.Error(),
		Code:    e.Slug,
		Hint:    retryHint,
	}
}

func decodeError(file string, faults []Fault) *Error {
	var b strings.Builder
	for i, f := range faults {
		if i == maxFaultsShown {
			fmt.Fprintf(&b, "; and %d more", len(faults)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(f.Path + ": " + f.Want)
	}
	return &Error{Slug: SlugDecode, File: file, Detail: b.String(), Faults: faults}
}

// join appends a key to a dotted path. Keys that would tear a line apart are
// quoted; dots inside keys stay, as model names are full of them.
func join(path, key string) string {
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func joinIndex(path string, i int) string { return path + "." + strconv.Itoa(i) }
