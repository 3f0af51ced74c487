package acp

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"codework/messages"
)

// The error codes of the protocol.
const (
	CodeParse           = -32700
	CodeInvalidRequest  = -32600
	CodeUnknownMethod   = -32601
	CodeInvalidParams   = -32602
	CodeInternal        = -32603
	CodeSessionNotFound = -32002
	CodeCancelled       = -32800
)

// Error is why a request failed. Message is what editors show.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// FailureData tells programs what kind of failure ended a turn.
type FailureData struct {
	Type   string `json:"type"`
	Status int    `json:"status,omitempty"` // of the provider's answer
}

func invalid(text string) *Error {
	return &Error{Code: CodeInvalidParams, Message: "Invalid params: " + text}
}

// Invalid refuses params.
func Invalid(text string) *Error { return invalid(text) }

// Busy refuses a prompt for a session that works already.
func Busy() *Error {
	return &Error{Code: CodeInvalidRequest, Message: "A prompt is already running for this session"}
}

// NotFound means that no session has that id.
func NotFound(session string) *Error {
	return &Error{Code: CodeSessionNotFound, Message: "Session not found: " + session}
}

// UnknownMethod refuses a request.
func UnknownMethod(method string) *Error {
	return &Error{Code: CodeUnknownMethod, Message: "Method not found: " + method}
}

// Internal is a fault of the program.
func Internal(text string) *Error { return &Error{Code: CodeInternal, Message: sentence(text)} }

// TurnFailed is why a turn came to nothing.
func TurnFailed(f *messages.Failure) *Error {
	text := f.Message
	if f.Model != "" && !strings.Contains(text, f.Model) {
		text = f.Model + ": " + text
	} else {
		text = sentence(text)
	}
	if f.Hint != "" {
		text = strings.TrimRight(text, ".") + ". " + sentence(f.Hint)
	}
	return &Error{Code: CodeInternal, Message: text, Data: FailureData{Type: f.Type, Status: f.Status}}
}

// ErrorOf gives an error of the system the form of the protocol.
func ErrorOf(err error) *Error {
	var (
		own      *Error
		missing  *messages.SessionNotFound
		busy     *messages.SessionBusy
		noFolder *messages.DirectoryNotFound
		odd      *messages.NotDirectory
		failed   *messages.Failure
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &missing):
		return NotFound(missing.SessionID)
	case errors.As(err, &busy):
		return Busy()
	case errors.As(err, &noFolder):
		return invalid("cwd: no such directory: " + noFolder.Directory)
	case errors.As(err, &odd):
		return invalid("cwd: not a directory: " + odd.Directory)
	case errors.As(err, &failed):
		return TurnFailed(failed)
	}
	return Internal(err.Error())
}

// sentence begins a text with a capital, unless it begins with a name or a
// path.
func sentence(text string) string {
	r, n := utf8.DecodeRuneInString(text)
	word, _, _ := strings.Cut(text, " ")
	if n == 0 || strings.ContainsAny(word, "/._-:") {
		return text
	}
	return string(unicode.ToUpper(r)) + text[n:]
}
