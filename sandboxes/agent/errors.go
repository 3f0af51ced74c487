package agent

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"codework/messages"
	"codework/sandboxes"
)

// ErrLost means that the connection to the agent has ended: what ran inside
// has been ended, and the result of a call in flight is not known.
var ErrLost = errors.New("connection lost")

// sentinels are the errors that callers tell apart, by their name on the wire.
// The more special come first: an errno may be several of package fs's.
var sentinels = []struct {
	name string
	err  error
}{
	{"is-directory", sandboxes.ErrIsDirectory},
	{"not-directory", sandboxes.ErrNotDirectory},
	{"not-regular", sandboxes.ErrNotRegular},
	{"closed", sandboxes.ErrClosed},
	{"canceled", context.Canceled},
	{"deadline", context.DeadlineExceeded},
	{"ENOENT", syscall.ENOENT},
	{"EACCES", syscall.EACCES},
	{"EPERM", syscall.EPERM},
	{"EEXIST", syscall.EEXIST},
	{"ENOTEMPTY", syscall.ENOTEMPTY},
	{"ENOTDIR", syscall.ENOTDIR},
	{"EISDIR", syscall.EISDIR},
	{"EINVAL", syscall.EINVAL},
	{"ELOOP", syscall.ELOOP},
	{"ENAMETOOLONG", syscall.ENAMETOOLONG},
	{"ENOSPC", syscall.ENOSPC},
	{"EDQUOT", syscall.EDQUOT},
	{"EROFS", syscall.EROFS},
	{"EFBIG", syscall.EFBIG},
	{"EBUSY", syscall.EBUSY},
	{"EXDEV", syscall.EXDEV},
	{"E2BIG", syscall.E2BIG},
	{"EIO", syscall.EIO},
	{"ENOMEM", syscall.ENOMEM},
	{"EAGAIN", syscall.EAGAIN},
	{"EMFILE", syscall.EMFILE},
	{"ENFILE", syscall.ENFILE},
	{"ENOEXEC", syscall.ENOEXEC},
	{"ENXIO", syscall.ENXIO},
	{"not-exist", fs.ErrNotExist},
	{"permission", fs.ErrPermission},
	{"exist", fs.ErrExist},
	{"invalid", fs.ErrInvalid},
}

// The types of errors that have more than a text.
const (
	typeShell        = "shell"
	typeNoDirectory  = "no-directory"
	typeNotDirectory = "not-directory"
)

// wireError is an error that keeps its identity.
type wireError struct {
	Type   string `json:"type,omitempty"` // "" is one without
	Reason string `json:"reason,omitempty"`
	// Is names the sentinel that the error, or its cause, is; "" for none.
	Is   string `json:"is,omitempty"`
	Text string `json:"text,omitempty"` // of the error or its cause
	// Directory and Sandbox are those of typeNoDirectory and typeNotDirectory.
	Directory string `json:"directory,omitempty"`
	Sandbox   string `json:"sandbox,omitempty"`
}

// toWireError translates an error of the sandbox; nil stays nil. Operation and
// path of a file error are known outside.
func toWireError(err error) *wireError {
	var missing *messages.DirectoryNotFound
	var not *messages.NotDirectory
	var se *sandboxes.ShellError
	var fe *sandboxes.FileError
	w := &wireError{}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing):
		return &wireError{Type: typeNoDirectory, Directory: missing.Directory, Sandbox: missing.SandboxID}
	case errors.As(err, &not):
		return &wireError{Type: typeNotDirectory, Directory: not.Directory, Sandbox: not.SandboxID}
	case errors.As(err, &se):
		w.Type, w.Reason = typeShell, se.Reason
		if err = se.Err; err == nil {
			return w
		}
	case errors.As(err, &fe):
		err = fe.Err
	}
	w.Text = err.Error()
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			w.Is = s.name
			break
		}
	}
	return w
}

// err is the error as callers inside would see it; that of a file operation is
// the cause alone.
func (w *wireError) err() error {
	if w == nil {
		return nil
	}
	switch w.Type {
	case typeNoDirectory:
		return &messages.DirectoryNotFound{Directory: w.Directory, SandboxID: w.Sandbox}
	case typeNotDirectory:
		return &messages.NotDirectory{Directory: w.Directory, SandboxID: w.Sandbox}
	case typeShell:
		return &sandboxes.ShellError{Reason: w.Reason, Err: w.cause()}
	}
	if err := w.cause(); err != nil {
		return err
	}
	return errors.New("unknown error")
}

func (w *wireError) cause() error {
	for _, s := range sentinels {
		if s.name == w.Is {
			if s.err.Error() == w.Text {
				return s.err
			}
			return &remoteError{w.Text, s.err}
		}
	}
	if w.Text == "" {
		return nil
	}
	return errors.New(w.Text)
}

// remoteError has the text of an error inside and the identity of its cause.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }
