package settings

import (
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
	SlugWrite  = "settings-write-failed"
)

// Error is a settings file that exists and is of no use.
type Error struct {
	Slug   string // one of the Slug constants
	File   string
	Detail string // one line
	// Faults are the single faults of SlugDecode, in file order, also where
	// Detail shows only the first of them.
	Faults []Fault
}

// Fault is one value that is not accepted.
type Fault struct {
	Path string // keys and array indexes joined with dots
	Want string // what is accepted there
}

// retryHint is true of every settings error: files are read again each time.
const retryHint = "correct the file and try again; it is read anew for every prompt"

// Reason is the slug's middle: read, parse or decode.
func (e *Error) Reason() string {
	return strings.TrimSuffix(strings.TrimPrefix(e.Slug, "settings-"), "-failed")
}

// Error is the form that clients receive: file, reason and detail.
func (e *Error) Error() string {
	return printable(e.File) + ": " + e.Reason() + ": " + e.Detail
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
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = short(f.Path) + ": " + f.Want
	}
	return &Error{Slug: SlugDecode, File: file, Detail: some(lines, "; "), Faults: faults}
}

const (
	// maxShown keeps a message readable when a file is wrong throughout.
	maxShown = 20
	// maxPathShown does so for keys that are none, such as a pasted text.
	maxPathShown = 200
)

// some joins the first maxShown texts and counts the rest.
func some(texts []string, sep string) string {
	if n := len(texts) - maxShown; n > 0 {
		return strings.Join(texts[:maxShown], sep) + sep + "and " + strconv.Itoa(n) + " more"
	}
	return strings.Join(texts, sep)
}

// short cuts a path that is too long to show, between characters.
func short(path string) string {
	if len(path) <= maxPathShown {
		return path
	}
	return strings.ToValidUTF8(path[:maxPathShown], "") + "…"
}

func shortAll(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = short(p)
	}
	return out
}

// join appends a key to a dotted path. Keys that would tear a line apart are
// quoted; dots inside keys stay, as model names are full of them.
func join(path, key string) string {
	if key == "" {
		key = `""`
	}
	key = printable(key)
	if path == "" {
		return key
	}
	return path + "." + key
}

// printable is the text if it may go to a terminal as it is, else a quoted form
// of it: names of files and keys are a stranger's choice.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// shellWord is a path as a person may paste it into a shell.
func shellWord(path string) string {
	const plain = "/._-+,@"
	if p := printable(path); p != path {
		return p
	}
	if strings.ContainsFunc(path, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(plain, r)
	}) {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}

func joinIndex(path string, i int) string { return path + "." + strconv.Itoa(i) }
