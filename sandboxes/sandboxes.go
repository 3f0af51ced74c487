// Package sandboxes says what a sandbox is to its users: files, a shell, and
// locks, reached through a mount. The drivers live in packages below it.
//
// All calls take a context; cancelling it returns within two seconds. Driver
// code is safe for concurrent use. Paths are POSIX, in the sandbox's own
// coordinates; relative ones are relative to the mount's directory.
package sandboxes

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// Mount is one session's use of a sandbox. Nothing of one mount (directory,
// environment) leaks into another. Close ends the mount, not the sandbox;
// background jobs that its commands left behind end with it.
type Mount interface {
	Files
	Shell

	// Dir is the absolute working directory.
	Dir() string
	// Scratch is an absolute folder for this mount's own files, such as full
	// command output; it is there once one was put into it, and removed with
	// the mount.
	Scratch() string
	// Lock holds the file's lock until unlock is called. All mounts of a
	// sandbox share the locks; two names of one file share one. The file need
	// not exist. Locking again while holding it deadlocks.
	Lock(ctx context.Context, path string) (unlock func(), err error)
	// Close ends what the mount started and frees what it holds.
	Close() error
}

// Keeper is a mount that knows whether closing it would take something away: a
// command, a background job, a file in its scratch folder. A mount that is no
// Keeper is taken to hold something.
type Keeper interface{ Keeps() bool }

// MountOptions say how a session sees the sandbox.
type MountOptions struct {
	Session string
	// Dir is the working directory; "" is the driver's default.
	Dir string
	// Caller is the environment of the local client ("NAME=value"); nil means
	// there is none and the server's own allow-listed variables are used.
	Caller []string
	Umask  int // -1: the server's own
	// Pass lists variables that are passed on although they look secret;
	// "*" passes everything.
	Pass []string
	// Set is added to every command's environment.
	Set map[string]string
	// Withhold are further names that are never passed on unless Pass says so:
	// the variables that hold provider keys.
	Withhold []string
}

// Info is what a sandbox knows of a file. Size and ModTime are zero when
// unknown.
type Info struct {
	Name    string
	Size    int64
	Mode    fs.FileMode // type bits and permissions; with Lstat, of the link itself
	ModTime time.Time
}

// Files is the sandbox's file namespace. Errors are *FileError.
type Files interface {
	// Read returns up to limit bytes from offset; limit < 0 reads all. Reading
	// past the end gives what there is.
	Read(ctx context.Context, path string, offset, limit int64) ([]byte, error)
	// Write replaces the file by data: a temporary file in the same folder,
	// synced and renamed, so that no reader sees a half. It makes missing
	// parents, keeps the mode of an existing file, writes through a symlink to
	// its target, and refuses what is not a regular file.
	Write(ctx context.Context, path string, data []byte) error
	Stat(ctx context.Context, path string) (Info, error)
	Lstat(ctx context.Context, path string) (Info, error)
	// List returns the entries of a folder, sorted by name, with Lstat modes.
	List(ctx context.Context, path string) ([]Info, error)
	Mkdir(ctx context.Context, path string) error // with parents; an existing folder is fine
	// Remove removes a file, a link itself, or an empty folder.
	Remove(ctx context.Context, path string) error
	// RealPath resolves every symlink; the last component need not exist.
	RealPath(ctx context.Context, path string) (string, error)
}

// Shell runs commands.
type Shell interface {
	// Run runs a command to its end. A command that ran and failed is an Exit,
	// not an error; an error is a *ShellError: it could not be run, or its
	// result is unknown. Output is handed to Command.Output in order per
	// stream, from one goroutine. When ctx ends the whole process tree is
	// stopped and Run returns ctx's error with the Exit filled in as far as it
	// is known; nothing of the tree runs when it returns.
	Run(ctx context.Context, c Command) (Exit, error)
}

// Command is what to run: Script through the sandbox's shell, or Argv without
// one.
type Command struct {
	Script string
	Argv   []string
	Dir    string            // "": the mount's
	Env    map[string]string // added last
	// Timeout ends the command like a cancelled context, but is told apart; 0
	// means none. It is no error: Exit.TimedOut tells, with the output so far.
	Timeout time.Duration
	// Output receives what the command prints, as it comes; nil drops it. The
	// bytes are the callee's only during the call.
	Output func(stream Stream, b []byte)
	// Joined sends both streams through one pipe: what was printed arrives in
	// exactly that order, all of it as Stdout. Apart, the order between the
	// two streams is that of arrival, which may differ a little.
	Joined bool
	// Full names a file in scratch that receives the whole output, both
	// streams in arrival order, up to FullLimit bytes; "" keeps none.
	Full string
}

// FullLimit bounds the file that keeps a command's whole output.
const FullLimit = 64 << 20

// Stream is where a command printed something.
type Stream uint8

// The streams.
const (
	Stdout Stream = iota + 1
	Stderr
)

// Exit is how a command ended.
type Exit struct {
	Code     int    // 0-255; 128+n for death by signal n; -1 if unknown
	Signal   string // "SIGKILL" and the like, "" if none
	TimedOut bool
	// Background tells that processes of the command were still running when
	// it ended by itself.
	Background bool
	// FullBytes is how much the command printed; FullCut tells that the file
	// named by Full holds only the first FullLimit bytes of it.
	FullBytes int64
	FullCut   bool
}

// FileError is a failed file operation. It unwraps to fs.ErrNotExist,
// fs.ErrPermission and the like where that is the cause.
type FileError struct {
	Op   string
	Path string
	Err  error
}

func (e *FileError) Error() string { return e.Op + " " + e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// ShellError means a command could not be run, or that how it ended is not
// known.
type ShellError struct {
	Reason string
	Err    error
}

func (e *ShellError) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Err.Error()
}
func (e *ShellError) Unwrap() error { return e.Err }

// ErrClosed means the mount or its sandbox has ended.
var ErrClosed = errors.New("sandbox closed")

// Causes of file errors that package fs has no name for.
var (
	ErrIsDirectory  = errors.New("is a directory")
	ErrNotDirectory = errors.New("not a directory")
	ErrNotRegular   = errors.New("not a regular file")
)
